//! Requests per second through Envoy with and without Tokenweir. It prints; it fails only when answers are not whole.

use e2e::bodies::{Wish, chat};
use e2e::client::load::{Report, Until, run};
use e2e::client::{Call, Reply};
use e2e::{Harness, HarnessBuilder};
use serde_json::json;
use std::time::Duration;

const CONNECTIONS: usize = 16;
const TIME: Duration = Duration::from_secs(5);

async fn measure(name: &str, builder: HarnessBuilder) -> Report {
    let harness = builder.start().await.unwrap();
    let make = |n: u64| {
        let mut body = chat(8, Wish::Nothing);
        body["stream"] = json!(n.is_multiple_of(2));
        body["messages"][1]["content"] = json!("s".repeat(900));
        Call::json("/v1/chat/completions", &body).open()
    };
    let whole = |_: u64, reply: &Reply| assert_eq!(reply.status, 200);
    // Warm up: connections, caches, compiled filter.
    run(harness.address(), CONNECTIONS, Until::Time(Duration::from_secs(1)), make, whole).await.unwrap();
    let report = run(harness.address(), CONNECTIONS, Until::Time(TIME), make, whole).await.unwrap();
    println!("{}", report.line(name));
    assert_eq!((report.broken, report.statuses.len()), (0, 1), "{}", report.line(name));
    report
}

/// The same small chats through bare Envoy, through Envoy with the service, and with both parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_per_second_with_and_without() {
    let bare = measure("Envoy alone", Harness::builder().bare()).await;
    measure("with the service", Harness::builder().without_filter()).await;
    let both = measure("with service and filter", Harness::builder()).await;
    println!("a request costs {:?} more at p50", both.percentile(50.0).saturating_sub(bare.percentile(50.0)));
}
