//! The harness itself: the engine answers as the captures do, and real Envoy takes our configuration.

use e2e::Harness;
use e2e::client::{self, Call, Ended};
use e2e::engine::{Cache, Engine, Outcome};
use serde_json::json;
use std::time::Duration;

fn chat(tokens: u64) -> serde_json::Value {
    json!({"model": "tiny-llama", "stream": true, "max_tokens": tokens,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "w".repeat(600)}]})
}

/// The engine's stream has exactly the shape of the capture of the same request: same events, same keys.
#[tokio::test]
async fn the_engine_speaks_as_the_captures_do() {
    let engine = Engine::start("a0").unwrap();
    let shape = |value: &serde_json::Value| -> Vec<String> {
        let mut keys = Vec::new();
        walk(value, "", &mut keys);
        keys
    };
    let tool = json!([{"name": "get_weather", "input_schema": {}}]);
    let cases = [
        ("chat-stream-usage.sse", "/v1/chat/completions", chat(7)),
        (
            "completions-stream-usage.sse",
            "/v1/completions",
            json!({"model": "tiny-llama", "stream": true,
            "max_tokens": 6, "prompt": "This", "stream_options": {"include_usage": true}}),
        ),
        (
            "messages-stream-tools.sse",
            "/v1/messages",
            json!({"model": "tiny-llama", "stream": true, "max_tokens": 17,
            "messages": [], "tools": tool}),
        ),
        (
            "responses-stream.sse",
            "/v1/responses",
            json!({"model": "tiny-llama", "stream": true,
            "max_output_tokens": 5, "input": "x"}),
        ),
    ];
    for (capture, path, body) in cases {
        let real =
            client::send(engine.address, Call::json(path, &body).header("x-play", capture)).await.unwrap();
        let ours = client::send(engine.address, Call::json(path, &body)).await.unwrap();
        let shapes = |reply: &client::Reply| reply.data().iter().map(shape).collect::<Vec<_>>();
        assert_eq!(shapes(&ours), shapes(&real), "{capture}");
        assert_eq!(ours.has_terminal_event(), real.has_terminal_event(), "{capture}");
        assert!(ours.has_terminal_event());
    }
}

fn walk(value: &serde_json::Value, path: &str, keys: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(members) => {
            members.iter().for_each(|(name, value)| walk(value, &format!("{path}/{name}"), keys));
        }
        serde_json::Value::Array(items) => {
            items.iter().for_each(|item| walk(item, &format!("{path}/-"), keys))
        }
        _ => keys.push(path.to_owned()),
    }
}

/// The prefix cache of one engine shows in the second call's usage, and the books agree with the stream.
#[tokio::test]
async fn the_engine_keeps_its_own_books() {
    let engine = Engine::start("a0").unwrap();
    for expected in [0, 128] {
        let reply = client::send(engine.address, Call::json("/v1/chat/completions", &chat(9))).await.unwrap();
        let usage = reply.data().last().unwrap()["usage"].clone();
        assert_eq!(usage["completion_tokens"], 9);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], expected);
        let books = engine.books();
        let entry = books.entries().last().unwrap();
        assert_eq!(
            (entry.outcome, entry.completion_tokens, entry.cached_tokens),
            (Outcome::Finished, 9, expected)
        );
    }
    let call =
        Call::json("/v1/chat/completions", &chat(500)).header("x-engine-interval-ms", "5").abort_after(3);
    assert_eq!(client::send(engine.address, call).await.unwrap().ended, Ended::HungUp);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let books = engine.books();
    let entry = books.entries().last().unwrap();
    assert_eq!(entry.outcome, Outcome::Aborted);
    assert!(entry.completion_tokens < 60, "{entry:?}");
}

/// Real Envoy takes the configuration without service and filter; the open route serves, the protected one refuses,
/// and a client's own control headers choose nothing.
#[tokio::test]
async fn bare_envoy_routes_and_refuses() {
    let harness = Harness::builder().bare().start().await.unwrap();
    harness.engine(0).set(|settings| settings.cache = Cache::FromBody);
    let call = Call::json("/v1/chat/completions", &chat(20)).header("x-engine-interval-ms", "1");
    let direct = client::send(harness.engine(0).address, call.clone()).await.unwrap();
    let mut spoofed = call.clone().open().header("X-Tokenweir-Pool", "b");
    spoofed = spoofed.header("x-gateway-destination-endpoint", &harness.engine(2).authority());
    harness.engine(1).set(|settings| settings.cache = Cache::FromBody);
    let reply = harness.send(spoofed).await.unwrap();
    assert_eq!((reply.status, reply.text()), (200, direct.text()));
    assert_eq!(harness.reached(), (2, 2));
    let refused = harness.send(call).await.unwrap();
    assert_eq!((refused.status, refused.text().as_str()), (503, "no verdict (route)\n"));
    assert_eq!(harness.reached(), (2, 2), "the protected route let a request through");
    assert!(harness.engine(2).books().entries().is_empty());
    let log = harness.envoy.access_log().await.unwrap();
    assert_eq!(log.iter().filter(|line| line["route"] == "open-default").count(), 1, "{log:?}");
}

/// Listener and clusters can be replaced while a stream runs, and the stream isn't cut.
#[tokio::test]
async fn configuration_is_replaced_under_traffic() {
    let mut harness = Harness::builder().bare().start().await.unwrap();
    let call = Call::json("/v1/chat/completions", &chat(100)).header("x-engine-interval-ms", "10").open();
    let mut open = client::open(harness.address(), call.clone()).await.unwrap();
    open.until(5, Duration::from_secs(5)).await.unwrap();
    harness.envoy.replace_listener(|options| options.buffer_bytes = 1 << 20).await.unwrap();
    harness.envoy.replace_clusters(|options| options.pools[0].1.truncate(1)).await.unwrap();
    assert_eq!(harness.send(call).await.unwrap().status, 200);
    let reply = open.finish(Duration::from_secs(10)).await;
    assert_eq!((reply.events_so_far(), reply.ended), (103, Ended::Complete));
}
