//! 2,000 mixed exchanges with a tenth of them aborted: every token that the engines counted is recorded, no other.

use e2e::Harness;
use e2e::bodies::{choices, mixed};
use e2e::client::load::{Until, run};
use e2e::client::{self, Ended, Reply};
use e2e::engine::{Cache, Outcome};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const EXCHANGES: u64 = 2000;
const TOKENS_MAX: u64 = 40;

fn is_aborted(n: u64) -> bool {
    n % 10 == 3
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
                assert!(record.usage.output.unwrap_or(0) <= entry.completion_tokens, "{record:?}\n{entry:?}");
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
