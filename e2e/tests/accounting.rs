//! 2,000 mixed exchanges with a tenth of them aborted: every token that the engines counted is recorded, no other.

use e2e::Harness;
use e2e::bodies::{Wish, chat, choices, mixed};
use e2e::client::load::{Until, run};
use e2e::client::{self, Call, Ended, Reply};
use e2e::engine::{Cache, Outcome};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const EXCHANGES: u64 = 2000;
const TOKENS_MAX: u64 = 40;

fn is_aborted(n: u64) -> bool {
    n % 10 == 3
}

/// Running usage is of one choice. Clients that leave before the final one have used what all choices used together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_has_used_all_its_choices() {
    let mut harness = Harness::builder().start().await.unwrap();
    let with_n = |n: u64, mut body: Value| {
        body["n"] = json!(n);
        body
    };
    let batch = |prompts: &[&str]| json!({"model": "tiny-llama", "stream": true, "max_tokens": 200, "prompt": prompts});
    let different =
        ["one", "a longer prompt, and one more", "the longest prompt of them all, and then some more"];
    let alike = ["same", "same", "same", "same"];
    // Path, body, and whether the input is known exactly.
    let cases = [
        ("/v1/chat/completions", with_n(4, chat(200, Wish::Nothing)), true),
        ("/v1/chat/completions", with_n(4, chat(200, Wish::Continuous)), true),
        ("/v1/chat/completions", with_n(1, chat(200, Wish::Nothing)), true),
        ("/v1/completions", batch(&different), true),
        ("/v1/completions", with_n(2, batch(&different)), true),
        ("/v1/completions", batch(&alike), false),
    ];
    for (path, body, input_known) in &cases {
        let call = Call::json(path, body).header("x-engine-interval-ms", "5").abort_after(40);
        let reply = harness.send(call).await.unwrap();
        assert_eq!((reply.status, &reply.ended), (200, &Ended::HungUp));
        let seen = reply.tokens_seen();
        assert!(seen > 30, "{seen} tokens are too few to tell choices apart");
        let id = reply.request_id();
        let service = harness.service().unwrap();
        let limit = Duration::from_secs(10);
        let records = service
            .records_when("the record", limit, |log| log.by_request_id().contains_key(id.as_str()))
            .await
            .unwrap();
        let records = records.by_request_id();
        let record = records[id.as_str()];
        let engines: Vec<_> = harness.engines.iter().map(|(_, engine)| engine.books()).collect();
        let entry = engines.iter().find_map(|books| books.by_request_id().get(id.as_str()).copied()).unwrap();
        let output = record.usage.output.unwrap();
        assert!((seen..=entry.completion_tokens).contains(&output), "{seen} seen, {record:?}\n{entry:?}");
        let input = record.usage.input.unwrap();
        assert!(input > 0 && input <= entry.prompt_tokens, "{record:?}\n{entry:?}");
        assert_eq!(input == entry.prompt_tokens, *input_known, "{record:?}\n{entry:?}");
        assert_eq!(record.usage_source.as_deref(), Some("cumulative"));
        assert_eq!(record.end.as_deref(), Some("client_abort"));
    }
}

/// For every exchange that the engine finished: recorded tokens = the engine's own. For every abort: a record. For every
/// client: the transcript of a direct call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_tokens_are_the_engines_own() {
    let mut harness = Harness::builder().start().await.unwrap();
    for (_, engine) in &harness.engines {
        engine.set(|settings| settings.cache = Cache::FromBody);
    }
    let seen: Arc<Mutex<HashMap<u64, Reply>>> = Arc::default();
    let keep = Arc::clone(&seen);
    let make = |n: u64| {
        let call = mixed(n, TOKENS_MAX).header("x-test-id", &n.to_string());
        let call = if n.is_multiple_of(3) { call.header("x-engine-split", &n.to_string()) } else { call };
        if is_aborted(n) {
            call.header("x-engine-interval-ms", "20").abort_after(usize::try_from(n % 4).unwrap())
        } else {
            call
        }
    };
    let report = run(harness.address(), 32, Until::Calls(EXCHANGES), make, move |n, reply| {
        keep.lock().unwrap().insert(n, reply.clone());
    });
    let report = report.await.unwrap();
    println!("{}", report.line("mixed exchanges"));
    assert_eq!(report.statuses.keys().collect::<Vec<_>>(), [&200], "{}", report.line("mixed"));
    assert_eq!(report.broken, 0);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len() as u64, EXCHANGES);

    let count = seen.len();
    let service = harness.service().unwrap();
    let limit = Duration::from_secs(20);
    let records =
        service.records_when("a record of each", limit, |log| log.newest().len() >= count).await.unwrap();
    assert!(
        records.bad.is_empty() && records.doubled().is_empty(),
        "{:?} {:?}",
        records.bad,
        records.doubled()
    );
    assert_eq!(records.newest().len(), count, "more records than exchanges");
    let records = records.by_request_id();
    let (mut finished, mut aborted, mut cached) = (0, 0, 0);
    for (pool, engine) in &harness.engines {
        let books = engine.books();
        assert_eq!(books.without_verdict(), 0);
        for entry in books.entries() {
            let record =
                records.get(entry.request_id.as_str()).unwrap_or_else(|| panic!("no record of {entry:?}"));
            assert_eq!(
                (record.pool.as_ref(), record.endpoint.as_deref()),
                (Some(pool), Some(engine.authority().as_str()))
            );
            let reply = &seen[&entry.test_id.parse::<u64>().unwrap()];
            if entry.outcome == Outcome::Finished && reply.ended == Ended::Complete {
                finished += 1;
                cached += entry.cached_tokens;
                assert_eq!(record.usage.input, Some(entry.prompt_tokens), "{record:?}\n{entry:?}");
                assert_eq!(
                    record.usage.output.unwrap_or(0),
                    entry.completion_tokens,
                    "{record:?}\n{entry:?}"
                );
                assert_eq!(record.usage.cached.unwrap_or(0), entry.cached_tokens, "{record:?}\n{entry:?}");
                assert_eq!(record.end.as_deref(), Some("complete"), "{record:?}");
                assert_eq!(record.usage_source.as_deref(), Some("final"), "{record:?}");
            } else {
                aborted += 1;
                let output = record.usage.output.unwrap_or(0);
                assert!(output <= entry.completion_tokens, "{record:?}\n{entry:?}");
                assert!(output >= reply.tokens_seen(), "the client has seen more: {record:?}\n{entry:?}");
            }
        }
    }
    println!("{finished} finished, {aborted} aborted, {cached} cached tokens");
    assert_eq!(finished + aborted, count);
    assert!(cached > 1000 && aborted > 100 && finished > 1700, "{finished} {aborted} {cached}");

    for (n, reply) in &seen {
        let call = mixed(*n, TOKENS_MAX);
        let choices = choices(&call);
        let engine = if call.body.windows(6).any(|window| window == b"tiny-b") { 2 } else { 0 };
        let direct = client::send(harness.engine(engine).address, call).await.unwrap();
        let (ours, theirs) = (reply.comparable(choices), direct.comparable(choices));
        if reply.ended == Ended::Complete {
            assert_eq!(ours, theirs, "exchange {n}");
        } else {
            let whole = ours.rfind("\n\n").map_or("", |end| &ours[..end]);
            assert!(theirs.starts_with(whole), "exchange {n}: {whole}\nis no beginning of\n{theirs}");
        }
    }
}
