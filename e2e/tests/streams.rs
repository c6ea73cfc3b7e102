//! 5,000 streams, all open at once.

use e2e::Harness;
use e2e::bodies::chat_call;
use e2e::client::{self, Ended};
use e2e::process::wait_for;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const STREAMS: usize = 5000;
const TOKENS: u64 = 20;
/// Streams that are being started at the same time.
const STARTING: usize = 500;

/// Every stream is whole, every token is recorded, and at one moment all of them were open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_streams_are_open_at_once_and_all_are_counted() {
    let mut harness = Harness::builder().start().await.unwrap();
    let address = harness.address();
    let (gate, begun) = (Arc::new(Semaphore::new(STARTING)), Arc::new(AtomicUsize::new(0)));
    let started = Instant::now();
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
        streams.spawn(async move {
            // Each waits after its second event until all have come so far.
            let call =
                chat_call(TOKENS).header("x-engine-hold-after", "2").header("x-engine-interval-ms", "1000");
            let permit = gate.acquire().await.unwrap();
            let mut open = client::open(address, call).await.unwrap();
            assert_eq!(open.reply.status, 200, "{}", open.reply.text());
            open.until(2, Duration::from_secs(60)).await.unwrap();
            drop(permit);
            begun.fetch_add(1, Ordering::Relaxed);
            open.finish(Duration::from_secs(180)).await
        });
    }
    let open = wait_for("all streams to be open", Duration::from_secs(100), async || {
        let open: usize = harness.engines.iter().map(|(_, engine)| engine.running()).sum();
        (open == STREAMS && begun.load(Ordering::Relaxed) == STREAMS).then_some(())
    });
    open.await.unwrap();
    println!("{STREAMS} open at once after {:.1} s", started.elapsed().as_secs_f64());
    harness.engines.iter().for_each(|(_, engine)| engine.release());
    let mut ids = Vec::with_capacity(STREAMS);
    while let Some(stream) = streams.join_next().await {
        let reply = stream.unwrap();
        assert_eq!((&reply.ended, reply.has_terminal_event()), (&Ended::Complete, true));
        assert_eq!(reply.events_so_far() as u64, TOKENS + 2);
        ids.push(reply.request_id());
    }
    let envoy = harness.envoy.process().resident_bytes();
    let service = harness.service().unwrap();
    let own = service.process().unwrap().resident_bytes();
    println!("resident: Envoy {} MiB, service {} MiB", envoy >> 20, own >> 20);
    let limit = Duration::from_secs(30);
    let records =
        service.records_when("5,000 records", limit, |log| log.newest().len() >= STREAMS).await.unwrap();
    assert!(records.doubled().is_empty() && records.bad.is_empty());
    let records = records.by_request_id();
    for id in &ids {
        assert_eq!(records[id.as_str()].usage.output, Some(TOKENS), "{:?}", records[id.as_str()]);
    }
    assert_eq!(harness.reached(), (STREAMS, 0));
}
