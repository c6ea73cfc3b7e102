//! Clients that leave half-way: what they have read ≤ what is recorded ≤ what vLLM counted.
//!
//! vLLM counts a prompt when its first token comes out, and each token when its API process takes it from the engine, until
//! it notices that the client is gone. What it makes after the last byte that Envoy read is counted there and not here.

use super::Stage;
use e2e::client::{Call, Ended, Reply};
use serde_json::{Value, json};
use std::time::Duration;

/// Events after which the clients leave.
const AFTER: [usize; 3] = [6, 20, 45];

pub async fn is_counted(stage: &mut Stage) {
    let chat = json!({"model": "tiny-llama", "max_tokens": 1500, "stream": true,
        "messages": [{"role": "user", "content": "How much water passed?"}]});
    let prompt = json!({"model": "tiny-llama", "max_tokens": 1500, "stream": true, "prompt": "The weir"});
    let input =
        json!({"model": "tiny-llama", "max_output_tokens": 1500, "stream": true, "input": "The weir"});
    let calls: [(&str, &str, &Value); 4] = [
        ("chat_completions", "/v1/chat/completions", &chat),
        ("completions", "/v1/completions", &prompt),
        ("responses", "/v1/responses", &input),
        ("messages", "/v1/messages", &chat),
    ];
    let mut count = 0;
    println!("api               seen  recorded  vLLM     prompt: recorded  vLLM");
    for (api, path, body) in calls {
        for after in AFTER {
            let before = stage.counted().await;
            let call = Call::json(path, body).header("x-tenant", "half-way").abort_after(after);
            let reply = stage.harness.send(call.within(Duration::from_secs(300))).await.unwrap();
            assert_eq!((reply.status, &reply.ended), (200, &Ended::HungUp), "{}", reply.text());
            count += 1;
            let id = reply.request_id();
            let records = stage.records_of("half-way", count).await;
            let record = records.iter().find(|record| record.request_id == id).unwrap();
            let counted = stage.counted().await.since(before);
            let (seen, output) = (seen(api, &reply), record.usage.output.unwrap_or(0));
            let input = record.usage.input.map_or_else(|| "unknown".to_owned(), |input| input.to_string());
            println!(
                "{api:<16} {seen:>5} {output:>9} {:>5} {input:>21} {:>5}",
                counted.generation, counted.prompt
            );
            assert_eq!(record.end.as_deref(), Some("client_abort"), "{record:?}");
            assert_ne!(record.usage_source.as_deref(), Some("final"), "{record:?}");
            assert!(seen <= output, "the client has read {seen}: {record:?}");
            assert!(output <= counted.generation, "{record:?} {counted:?}");
            // The stream of responses says its usage at the end only.
            if api == "responses" {
                assert!(record.usage.input.unwrap_or(0) <= counted.prompt, "{record:?}");
            } else {
                assert_eq!(record.usage.input, Some(counted.prompt), "{record:?}");
            }
        }
    }
}

/// Tokens that the client has read whole: at least one for each event with text.
fn seen(api: &str, reply: &Reply) -> u64 {
    let text = reply.text();
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let has_token = |event: &&str| match api {
        "responses" => event.contains("response.output_text.delta"),
        "messages" => event.contains("\"text_delta\"") && !event.contains("\"text\":\"\""),
        "completions" => event.contains("\"text\":") && !event.contains("\"text\":\"\""),
        _ => event.contains("\"content\":") && !event.contains("\"content\":\"\""),
    };
    whole.split("\n\n").filter(has_token).count() as u64
}
