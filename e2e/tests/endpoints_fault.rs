//! Engines that fail, and clients that leave: who serves, what is recorded, what is released.

use e2e::Harness;
use e2e::bodies::{Wish, chat, chat_call};
use e2e::client::{self, Call, Ended};
use e2e::engine::Outcome;
use e2e::process::wait_for;
use std::time::Duration;

const SETTLED: Duration = Duration::from_secs(10);

/// The chosen endpoint refuses connections: the next one serves, the client sees 200, and the record names the one
/// that served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusing_endpoint_is_passed_over_and_the_record_says_so() {
    let mut harness = Harness::builder().start().await.unwrap();
    let (dead, alive) = (harness.engine(0).authority(), harness.engine(1).authority());
    harness.engine_mut(0).refuse();
    let mut ids = Vec::new();
    for _ in 0..6 {
        let reply = harness.send(chat_call(4)).await.unwrap();
        assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete), "{}", reply.text());
        ids.push(reply.request_id());
    }
    assert_eq!(harness.engine(1).books().count(Outcome::Finished), 6);
    let service = harness.service().unwrap();
    let records = service.records_when("six records", SETTLED, |log| log.newest().len() >= 6).await.unwrap();
    let records = records.by_request_id();
    let mut retried = 0;
    for id in &ids {
        let record = records[id.as_str()];
        assert_eq!(record.endpoint.as_deref(), Some(alive.as_str()), "{record:?}");
        assert_eq!(record.usage.output, Some(4));
        retried += usize::from(record.endpoints.first() == Some(&dead));
    }
    assert!(retried >= 1, "the dead endpoint was never chosen first, so nothing was proved");
}

/// The engine dies mid-stream, as vLLM does: the client sees vLLM's own error event, and the produced tokens count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_dies_mid_stream_is_seen_and_counted() {
    let mut harness = Harness::builder().start().await.unwrap();
    for wish in [Wish::Nothing, Wish::Final, Wish::Continuous] {
        let call = Call::json("/v1/chat/completions", &chat(50, wish)).header("x-engine-die-after", "11");
        let reply = harness.send(call.clone()).await.unwrap();
        assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete));
        let text = reply.text();
        assert!(
            text.contains("EngineCore encountered an issue") && text.ends_with("data: [DONE]\n\n"),
            "{text}"
        );
        assert_eq!(text.contains("\"usage\""), wish == Wish::Continuous, "{wish:?}");
    }
    let service = harness.service().unwrap();
    let records =
        service.records_when("three records", SETTLED, |log| log.newest().len() >= 3).await.unwrap();
    for record in records.newest().values() {
        // One role chunk and ten tokens.
        assert_eq!(record.usage.output, Some(10), "{record:?}");
        assert_eq!(record.end.as_deref(), Some("upstream_error"), "{record:?}");
        assert_ne!(record.usage_source.as_deref(), Some("final"), "{record:?}");
    }
}

/// The engine's connection is reset mid-stream: the client's stream breaks, the tokens so far count, nothing is in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_mid_stream_is_counted_and_released() {
    let mut harness = Harness::builder().start().await.unwrap();
    let call = chat_call(50).header("x-engine-reset-after", "11").header("x-engine-interval-ms", "5");
    let reply = harness.send(call).await.unwrap();
    assert_eq!(reply.status, 200);
    assert!(!reply.has_terminal_event() && matches!(reply.ended, Ended::Cut(_)), "{:?}", reply.ended);
    let service = harness.service().unwrap();
    let records = service.records_when("the record", SETTLED, |log| !log.all.is_empty()).await.unwrap();
    let newest = records.newest();
    let record = newest.values().next().unwrap();
    assert_eq!(record.end.as_deref(), Some("upstream_error"), "{record:?}");
    assert!(record.usage.output.is_some_and(|output| (1..=10).contains(&output)), "{record:?}");
    assert_idle(&mut harness).await;
}

/// The engine refuses by itself (queue full, draining): its answer reaches the client unchanged and is no usage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engines_own_errors_reach_the_client_unchanged() {
    let mut harness = Harness::builder().start().await.unwrap();
    for (fault, status) in [("queue-full", 503), ("draining", 500)] {
        let call = chat_call(4).header("x-engine-fault", fault);
        let direct = client::send(harness.engine(0).address, call.clone()).await.unwrap();
        let reply = harness.send(call).await.unwrap();
        assert_eq!((reply.status, reply.text()), (status, direct.text()));
    }
    let service = harness.service().unwrap();
    let records = service.records_when("two records", SETTLED, |log| log.newest().len() >= 2).await.unwrap();
    for record in records.newest().values() {
        assert!(matches!(record.status, Some(500 | 503)), "{record:?}");
        assert_eq!(record.usage.output.unwrap_or(0), 0, "{record:?}");
    }
    assert_idle(&mut harness).await;
}

/// Clients hang up: after some events, and before the first. Each leaves a record, the engine stops, and nothing stays in
/// flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hang_up_are_counted_and_released() {
    let mut harness = Harness::builder().start().await.unwrap();
    // The first event of a chat holds no token yet.
    for after in [2, 5, 9] {
        let call = chat_call(2000).header("x-engine-interval-ms", "5").abort_after(after);
        assert_eq!(harness.send(call).await.unwrap().ended, Ended::HungUp);
    }
    // Before the response headers: a whole answer that takes its time.
    let body = serde_json::json!({"model": "tiny-llama", "max_tokens": 100, "messages": []});
    let slow = Call::json("/v1/chat/completions", &body).header("x-engine-interval-ms", "100");
    assert!(harness.send(slow.within(Duration::from_millis(500))).await.is_err());
    let service = harness.service().unwrap();
    let records = service.records_when("four records", SETTLED, |log| log.newest().len() >= 4).await.unwrap();
    for record in records.newest().values() {
        assert_eq!(record.end.as_deref(), Some("client_abort"), "{record:?}");
    }
    let counted = records.newest().values().filter(|record| record.usage.output.unwrap_or(0) > 0).count();
    assert_eq!(counted, 3, "{records:?}");
    assert_idle(&mut harness).await;
    let aborted: usize =
        harness.engines.iter().map(|(_, engine)| engine.books().count(Outcome::Aborted)).sum();
    assert_eq!(aborted, 4, "the engines did not see the clients leave");
}

async fn assert_idle(harness: &mut Harness) {
    let service = harness.service().unwrap();
    let idle = wait_for("nothing in flight", Duration::from_secs(5), async || {
        let metrics = service.metrics().await.ok()?;
        let busy = metrics.sum("tokenweir_in_flight", &[]) + metrics.sum("tokenweir_open_exchanges", &[]);
        (busy == 0.0).then_some(())
    });
    idle.await.unwrap();
}
