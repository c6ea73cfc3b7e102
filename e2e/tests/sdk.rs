//! The OpenAI and Anthropic Python SDKs, unmodified, through the whole: what they see, what is recorded, what they raise.
//!
//! `cargo xtask e2e sdk` runs this; the cases are the Python files of `e2e/sdk`.

use e2e::client::Call;
use e2e::process::wait_for;
use e2e::{Harness, sdk};
use serde_json::json;
use std::time::Duration;

const SETTLED: Duration = Duration::from_secs(20);

/// Plays the groups, and holds what the SDKs saw against the records.
async fn agree(harness: &mut Harness, engine: &str, groups: &[&str]) -> usize {
    let (address, dir) = (harness.address(), harness.dir());
    let played = sdk::play(address, &dir, engine, groups).await.unwrap();
    let count = sdk::exchanges(&played);
    let service = harness.service().unwrap();
    let log =
        service.records_when("a record of each", SETTLED, |log| log.newest().len() >= count).await.unwrap();
    sdk::agree(&played, &log).unwrap();
    assert_eq!(log.newest().len(), count, "more records than exchanges");
    println!("{groups:?}: {} cases, {count} exchanges, each recorded as the SDK saw it", played.len());
    played.len()
}

/// Every API, streamed and whole, sync and async.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "cargo xtask e2e sdk"]
async fn answers_are_what_the_sdks_expect_and_are_recorded_as_they_saw_them() {
    let mut harness = Harness::builder().start().await.unwrap();
    let played = agree(&mut harness, "small", &["answers"]).await;
    assert!(played >= 20, "{played} cases only");
}

/// The same against two simulated vLLM engines, which call tools, know logprobs and take their time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "cargo xtask e2e sdk"]
async fn the_same_against_the_simulator() {
    let config = bench_engine::EngineConfig {
        max_model_len: 4096,
        // As long as it was asked to be.
        answer_tokens: 2000..=2000,
        ..bench_engine::EngineConfig::default()
    };
    let engines: Vec<_> = (0..2).map(|_| bench_engine::Engine::start(config.clone()).unwrap()).collect();
    let addresses = engines.iter().map(bench_engine::Engine::address).collect();
    let mut harness = Harness::builder()
        .config(|config| config["pools"] = json!([{"name": "a", "models": ["tiny-llama"], "engine": "vllm"}]))
        .endpoints(vec![("a".to_owned(), addresses)])
        .start()
        .await
        .unwrap();
    let played = agree(&mut harness, "sim", &["answers", "refusals", "leaving"]).await;
    assert!(played >= 30, "{played} cases only");
    let books: Vec<_> = engines.iter().map(bench_engine::Engine::books).collect();
    assert!(books.iter().all(|books| books.entries().len() > 5), "one engine served everything");
}

/// Errors of the gateway and of the engine are the SDKs' own exceptions. What the gateway refused is no exchange.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "cargo xtask e2e sdk"]
async fn errors_are_the_sdks_own_exceptions() {
    let mut harness = Harness::builder()
        .config(|config| config["limits"] = json!({"body_bytes_max": 1 << 20}))
        .start()
        .await
        .unwrap();
    agree(&mut harness, "small", &["refusals", "limits", "faults"]).await;
}

/// A gateway without a default tenant answers 401 to who names none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "cargo xtask e2e sdk"]
async fn who_names_no_tenant_gets_an_authentication_error() {
    let mut harness = Harness::builder()
        .config(|config| config["tenant"] = json!({"header": "x-tenant", "trusted": true}))
        .start()
        .await
        .unwrap();
    agree(&mut harness, "small", &["nobody"]).await;
    assert_eq!(harness.reached().0, 0);
}

/// Clients that leave: the exception is theirs, the record says `client_abort`, and the engine stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "cargo xtask e2e sdk"]
async fn timeouts_and_cancelled_streams_are_recorded_as_such() {
    let mut harness = Harness::builder().start().await.unwrap();
    agree(&mut harness, "small", &["leaving"]).await;
    let service = harness.service().unwrap();
    let idle = wait_for("nothing in flight", SETTLED, async || {
        let metrics = service.metrics().await.ok()?;
        let busy = metrics.sum("tokenweir_in_flight", &[]) + metrics.sum("tokenweir_open_exchanges", &[]);
        (busy == 0.0).then_some(())
    });
    idle.await.unwrap();
}

/// No endpoint: 503 with Retry-After. The SDK's own retries wait for that, and then succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "cargo xtask e2e sdk"]
async fn no_endpoint_is_a_503_that_the_sdks_retry() {
    let mut harness = Harness::builder().start().await.unwrap();
    let (address, dir) = (harness.address(), harness.dir());
    harness.set_ready(&[false, false, true]).unwrap();
    let gone = wait_for("the service to see it", SETTLED, async || {
        let call = Call::json("/v1/chat/completions", &json!({"model": "tiny-llama", "messages": []}));
        (harness.send(call).await.ok()?.status == 503).then_some(())
    });
    gone.await.unwrap();
    sdk::play(address, &dir, "small", &["away"]).await.unwrap();

    let refused = async |harness: &mut Harness| {
        let metrics = harness.service().unwrap().metrics().await.unwrap();
        metrics.sum("tokenweir_rejects_total", &[("reason", "none_ready")])
    };
    let before = refused(&mut harness).await;
    let running = sdk::begin(address, &dir, "small", &["retries"]).unwrap();
    let deadline = std::time::Instant::now() + SETTLED;
    while refused(&mut harness).await == before {
        assert!(std::time::Instant::now() < deadline, "the SDK never asked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    harness.set_ready(&[true, true, true]).unwrap();
    let played = running.finish().await.unwrap();
    let service = harness.service().unwrap();
    let log = service.records_when("its record", SETTLED, |log| !log.newest().is_empty()).await.unwrap();
    sdk::agree(&played, &log).unwrap();
}

/// The service is away: Envoy's own 503 is an exception of the SDKs too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "cargo xtask e2e sdk"]
async fn a_service_that_is_away_is_a_503_for_the_sdks() {
    let mut harness = Harness::builder().start().await.unwrap();
    harness.service().unwrap().kill().unwrap();
    sdk::play(harness.address(), &harness.dir(), "small", &["down"]).await.unwrap();
    assert_eq!(harness.reached().0, 0);
}
