//! A minute of answers that no engine should give (five with `TOKENWEIR_FULL=1`): every worker's VM survives.

use e2e::Harness;
use e2e::bodies::{Wish, chat, chat_call};
use e2e::client::Call;
use e2e::client::load::{Until, run};
use e2e::client::raw;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Most that Envoy may grow by, in bytes: two instances of the filter on two workers, and what is in flight.
const GROWTH_MAX: u64 = 700 << 20;

/// Seeded garbage through real Envoy: noise, bombs, endless lines, deep nesting, damaged streams, resets. Afterwards both
/// filters serve on both workers, and their counts are right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_answers_kill_no_vm() {
    let full = std::env::var_os("TOKENWEIR_FULL").is_some();
    let time = Duration::from_secs(if full { 300 } else { 60 });
    let mut harness = Harness::builder().start().await.unwrap();
    let alive = harness.envoy.vms_alive().await.unwrap();
    let resident = harness.envoy.process().resident_bytes();
    let make = |n: u64| {
        let wish = [Wish::Nothing, Wish::Final, Wish::Continuous][usize::try_from(n % 3).unwrap()];
        let call = match n % 5 {
            0 => Call::json("/v1/messages", &chat(n % 30 + 1, Wish::Nothing)),
            1 => Call::json(
                "/v1/responses",
                &serde_json::json!({"model": "tiny-llama", "stream": true, "input": "x"}),
            ),
            _ => Call::json("/v1/chat/completions", &chat(n % 30 + 1, wish)),
        };
        let call = call.header("x-engine-hostile", &n.to_string()).within(Duration::from_secs(20));
        if n.is_multiple_of(4) { call.open() } else { call }
    };
    let report = run(harness.address(), 16, Until::Time(time), make, |_, _| {}).await.unwrap();
    println!("{}", report.line("hostile answers"));
    let grown = harness.envoy.process().resident_bytes().saturating_sub(resident);
    println!("Envoy grew by {} MiB", grown >> 20);
    let answers: u64 = report.statuses.values().sum();
    assert!(answers > 200, "too few to mean anything: {}", report.line("hostile"));
    assert_eq!(harness.envoy.process().ended().unwrap(), None, "Envoy died");
    assert_eq!(harness.envoy.vms_alive().await.unwrap(), alive, "a VM died");
    let failed = harness.envoy.stats("wasm.*(fail|crash|recover_error)").await.unwrap();
    assert!(failed.values().all(|count| *count == 0), "{failed:?}");
    let mut details = BTreeMap::<String, u64>::new();
    for line in harness.envoy.access_log().await.unwrap() {
        let text = line["details"].as_str().unwrap_or("");
        *details.entry(text.split('{').next().unwrap_or("").to_owned()).or_default() += 1;
    }
    println!("response code details: {details:?}");
    assert!(details.keys().all(|text| !text.contains("wasm")), "a dead VM answered: {details:?}");
    assert!(grown < GROWTH_MAX, "Envoy grew by {grown} bytes");
    for n in 0..40 {
        // New connections, so that both workers are met.
        let call = if n % 2 == 0 { chat_call(5) } else { chat_call(5).open() };
        let reply = harness.send(call).await.unwrap();
        assert_eq!((reply.status, reply.has_terminal_event()), (200, true));
    }
    let good =
        harness.service().unwrap().records_when("forty good records", Duration::from_secs(10), |log| {
            let good = |record: &&e2e::records::Record| {
                record.usage.output == Some(5) && record.end.as_deref() == Some("complete")
            };
            log.all.iter().rev().filter(good).take(40).count() == 40
        });
    good.await.unwrap();
    assert_eq!(harness.reached().1, 0);
}

/// Streams of half-finished events, together more than a VM has memory for.
const UNFINISHED: usize = 1300;
/// Just below the longest event that the filter reads.
const UNFINISHED_BYTES: usize = 1_040_000;

/// The engine begins events and never ends them. What the filter keeps of them stays within its budget: no VM dies, and
/// other streams are metered as ever. When the clients have left, each exchange has its record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_events_kill_no_vm() {
    let mut harness = Harness::builder().envoy(|options| options.concurrency = 1).start().await.unwrap();
    let alive = harness.envoy.vms_alive().await.unwrap();
    let resident = harness.envoy.process().resident_bytes();
    let body = chat(5, Wish::Nothing).to_string();
    let head = raw::head(
        "/v1/chat/completions",
        &[&format!("x-engine-unfinished: {UNFINISHED_BYTES}"), &format!("content-length: {}", body.len())],
    );
    let mut clients = Vec::new();
    for _ in 0..UNFINISHED {
        let mut client = TcpStream::connect(harness.address()).await.unwrap();
        client.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        // Only its beginning is held back, if anything: the head comes at once.
        let mut answer = vec![0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(20), client.read(&mut answer)).await;
        let read = read.expect("no answer within 20 s").unwrap();
        assert_eq!(raw::status(&answer[..read]), Some(200), "after {} streams", clients.len());
        // Reads on, so that the engine may write all.
        clients.push(tokio::spawn(async move {
            while client.read(&mut answer).await.is_ok_and(|read| read > 0) {}
        }));
    }
    assert_eq!(harness.envoy.vms_alive().await.unwrap(), alive, "a VM died");
    let reply = harness.send(chat_call(5)).await.unwrap();
    assert!(reply.status == 200 && reply.has_terminal_event() && !reply.text().contains("usage"));
    let grown = harness.envoy.process().resident_bytes().saturating_sub(resident);
    println!("{UNFINISHED} unfinished events: Envoy grew by {} MiB", grown >> 20);
    assert!(grown < GROWTH_MAX, "Envoy grew by {grown} bytes");
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    let service = harness.service().unwrap();
    let limit = Duration::from_secs(20);
    let records =
        service.records_when("a record of each", limit, |log| log.newest().len() > UNFINISHED).await.unwrap();
    let newest = records.newest();
    let left = newest.values().filter(|record| record.end.as_deref() == Some("client_abort")).count();
    assert_eq!((newest.len(), left), (UNFINISHED + 1, UNFINISHED));
    let whole = newest.values().find(|record| record.end.as_deref() == Some("complete")).unwrap();
    assert_eq!((whole.usage.output, whole.usage_source.as_deref()), (Some(5), Some("final")));
    let truncated = newest.values().filter(|record| record.flags["truncated"] == true).count();
    assert!(truncated > UNFINISHED / 2, "the budget was put to the test: {truncated}");
    let failed = harness.envoy.stats("wasm.*(fail|crash|recover_error)").await.unwrap();
    assert!(failed.values().all(|count| *count == 0), "{failed:?}");
}
