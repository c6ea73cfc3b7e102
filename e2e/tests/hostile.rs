//! A minute of answers that no engine should give (five with `TOKENWEIR_FULL=1`): every worker's VM survives.

use e2e::Harness;
use e2e::bodies::{Wish, chat, chat_call};
use e2e::client::Call;
use e2e::client::load::{Until, run};
use std::collections::BTreeMap;
use std::time::Duration;

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
