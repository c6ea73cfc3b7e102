//! Conversations and shared beginnings: with the pick's own strategy more of the prompts is cached than with round robin.
//!
//! One client at a time, so that only the prefix decides. Seven conversations on two engines: with round robin each turn
//! goes to the engine that did not have the one before.

use super::Stage;
use e2e::client::{Call, Ended};
use serde_json::{Value, json};
use std::time::Duration;

const CONVERSATIONS: usize = 7;
const TURNS: usize = 3;
const STRATEGIES: [&str; 2] = ["round_robin", "least_work"];

pub async fn are_found(stage: &mut Stage) {
    let default = stage.service().config.clone();
    let mut cached = Vec::new();
    println!(
        "strategy         conversations: cached of prompt tokens      shared beginnings: cached of prompt tokens"
    );
    for (run, strategy) in STRATEGIES.into_iter().enumerate() {
        restart_service(stage, Some(strategy)).await;
        let (talk, talk_prompt) = conversations(stage, run).await;
        let (share, share_prompt) = shared(stage, run).await;
        println!("{strategy:<16} {talk:>26} of {talk_prompt:>6} {share:>36} of {share_prompt:>6}");
        cached.push((talk, share));
    }
    stage.service().config = default;
    restart_service(stage, None).await;
    let [(talk_plain, share_plain), (talk, share)] = cached[..] else { unreachable!() };
    assert!(talk * 2 > talk_plain * 3, "conversations: {talk} against {talk_plain}");
    assert!(share * 4 > share_plain * 5, "shared beginnings: {share} against {share_plain}");
}

async fn restart_service(stage: &mut Stage, strategy: Option<&str>) {
    let service = stage.service();
    service.stop(Duration::from_secs(60)).await.unwrap();
    if let Some(strategy) = strategy {
        service.config["pools"][0]["strategy"] = json!(strategy);
    }
    service.start().await.unwrap();
}

/// Text of about 150 tokens that no other seed has.
fn beginning(seed: &str) -> String {
    (0..40).map(|n| format!("{seed} {} ", n * n)).collect()
}

async fn ask(stage: &Stage, tenant: &str, messages: &[Value]) -> String {
    let body = json!({"model": "tiny-llama", "max_tokens": 4, "temperature": 0, "messages": messages});
    let call = Call::json("/v1/chat/completions", &body).header("x-tenant", tenant);
    let reply = stage.harness.send(call).await.unwrap();
    assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete), "{}", reply.text());
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

async fn sums(stage: &mut Stage, tenant: &str, count: usize) -> (u64, u64) {
    let records = stage.records_of(tenant, count).await;
    let sum = |of: fn(&e2e::records::Usage) -> Option<u64>| {
        records.iter().filter_map(|record| of(&record.usage)).sum::<u64>()
    };
    (sum(|usage| usage.cached), sum(|usage| usage.input))
}

async fn conversations(stage: &mut Stage, run: usize) -> (u64, u64) {
    let tenant = format!("talk-{run}");
    let mut talks: Vec<Vec<Value>> = (0..CONVERSATIONS)
        .map(|n| vec![json!({"role": "system", "content": beginning(&format!("{run} talk {n}"))})])
        .collect();
    for turn in 0..TURNS {
        for talk in &mut talks {
            talk.push(json!({"role": "user", "content": format!("Question {turn}: how much water passed?")}));
            let answer = ask(stage, &tenant, talk).await;
            talk.push(json!({"role": "assistant", "content": answer}));
        }
    }
    sums(stage, &tenant, CONVERSATIONS * TURNS).await
}

/// Each of seven beginnings with three questions, in turn.
async fn shared(stage: &mut Stage, run: usize) -> (u64, u64) {
    let tenant = format!("share-{run}");
    for turn in 0..TURNS {
        for n in 0..CONVERSATIONS {
            let system = json!({"role": "system", "content": beginning(&format!("{run} share {n}"))});
            let question = json!({"role": "user", "content": format!("{} is my question", turn * 7 + n)});
            ask(stage, &tenant, &[system, question]).await;
        }
    }
    sums(stage, &tenant, CONVERSATIONS * TURNS).await
}
