//! Bad input through real Envoy: each case has one answer, in the shape of the client's API, and reaches no engine.

use e2e::Harness;
use e2e::bodies::{Wish, chat, chat_call};
use e2e::client::load::{Until, percentile, run};
use e2e::client::raw::{self, Step};
use e2e::client::{self, Call, Protocol};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const QUIET: Duration = Duration::from_secs(3);

fn assert_openai(body: &Value, status: u16, what: &str) {
    assert!(body.pointer("/error/message").is_some_and(Value::is_string), "{what}: {body}");
    assert_eq!(body.pointer("/error/code"), Some(&json!(status)), "{what}: {body}");
}

/// Broken, empty, mistyped and ambiguous bodies are 4xx with an error of the API's own shape; none reaches an engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_cannot_be_served_are_refused_in_the_apis_own_shape() {
    let harness = Harness::builder().start().await.unwrap();
    let path = "/v1/chat/completions";
    let cases = [
        ("cut JSON", Call::post(path, r#"{"model":"tiny-llama","messages":["#), 400),
        ("not JSON", Call::post(path, "model=tiny-llama"), 400),
        ("empty", Call::post(path, ""), 400),
        ("an array", Call::post(path, "[]"), 400),
        ("no model", Call::json(path, &json!({"messages": []})), 400),
        ("model is a number", Call::json(path, &json!({"model": 7, "messages": []})), 400),
        ("model twice", Call::post(path, r#"{"model":"tiny-llama","model":"tiny-b","messages":[]}"#), 400),
        (
            "model twice, once escaped",
            Call::post(path, r#"{"model":"tiny-llama","mod\u0065l":"tiny-b","messages":[]}"#),
            400,
        ),
        ("unknown model", Call::json(path, &json!({"model": "none", "messages": []})), 404),
        ("wrong type", Call::json(path, &chat(3, Wish::Nothing)).content_type("text/plain"), 400),
        ("not UTF-8", Call::post(path, b"{\"model\":\"\xff\xfe\",\"messages\":[]}".to_vec()), 400),
        (
            "deep",
            Call::post(path, format!("{{\"model\":\"tiny-llama\",\"messages\":{}", "[".repeat(200_000))),
            400,
        ),
    ];
    for (what, call, status) in cases {
        let reply = harness.send(call).await.unwrap();
        assert!(
            reply.status == status || (what == "wrong type" && reply.status == 415),
            "{what}: {} {}",
            reply.status,
            reply.text()
        );
        assert_openai(&reply.json(), reply.status, what);
    }
    let unknown = harness.send(Call::json(path, &json!({"model": "none", "messages": []}))).await.unwrap();
    let message = unknown.json()["error"]["message"].to_string();
    assert!(message.contains("tiny-llama") && message.contains("tiny-b"), "it lists what exists: {message}");
    let anthropic =
        harness.send(Call::json("/v1/messages", &json!({"model": "none", "messages": []}))).await.unwrap();
    assert_eq!(anthropic.status, 404);
    assert_eq!(anthropic.json()["type"], "error");
    assert_eq!(anthropic.json()["error"]["type"], "not_found_error");
    assert_eq!(harness.reached().0, 0, "something reached an engine");
}

/// Paths outside the list are 404 (or 405) at the gateway, whatever they would do on an engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_paths_are_never_passed_on() {
    let harness = Harness::builder().start().await.unwrap();
    let paths = [
        "/metrics",
        "/collective_rpc",
        "/sleep",
        "/pause",
        "/reset_prefix_cache",
        "/v1/nothing",
        "/",
        "/v1/chat/completions/",
        "/v1/chat/completions/render",
        "/V1/chat/completions",
        "/v1/chat%2fcompletions",
        "/v1/chat/completions;x",
        "/inference/v1/generate",
        "/v1/audio/speech",
        "/v1/load_lora_adapter",
    ];
    for path in paths {
        for call in [Call::get(path), Call::json(path, &chat(1, Wish::Nothing))] {
            let reply = harness.send(call.clone()).await.unwrap();
            // Envoy itself redirects a path with an escaped slash.
            let expected = if path.contains('%') { [307, 404] } else { [404, 405] };
            assert!(expected.contains(&reply.status), "{} {path}: {}", call.method, reply.status);
        }
    }
    // Envoy normalises these before anyone sees them: they are the known path.
    for path in ["//v1/chat/completions", "/v1/./chat/completions", "/sleep/../v1/chat/completions"] {
        let reply = harness.send(Call::json(path, &chat(1, Wish::Nothing))).await.unwrap();
        assert_eq!(reply.status, 200, "{path}");
    }
    assert_eq!(harness.reached(), (3, 0));
    let books = harness.engine(0).books();
    assert!(books.entries().iter().all(|entry| entry.path == "/v1/chat/completions"), "{books:?}");
}

/// A body over the service's limit is 413 from the service; over Envoy's buffer it is 413 from Envoy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_over_the_limit_are_413() {
    let harness = Harness::builder().start().await.unwrap();
    for (mib, ours) in [(32 << 20, true), (34 << 20, false)] {
        let content = "x".repeat(mib + 1000);
        let body = json!({"model": "tiny-llama", "messages": [{"role": "user", "content": content}]});
        let reply = harness.send(Call::json("/v1/chat/completions", &body)).await.unwrap();
        assert_eq!(reply.status, 413, "{mib}: {}", reply.text());
        if ours {
            assert_openai(&reply.json(), 413, "body over the limit");
        }
    }
    assert_eq!(harness.reached().0, 0);
}

/// An open route lets pass what the service can't answer; so no size of body may keep the service from answering. Around
/// every limit, chunked and not: refused, and never passed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_size_of_body_gets_past_the_service_on_an_open_route() {
    let harness = Harness::builder().start().await.unwrap();
    let buffer = usize::try_from(harness.envoy.options.buffer_bytes).unwrap();
    let frame = r#"{"model":"tiny-llama","priority":-5,"messages":[{"role":"user","content":""}]}"#;
    for limit in [32 << 20, buffer, 33 << 20] {
        for size in [limit - 4096, limit - 20, limit - 1, limit, limit + 1, limit + 4096] {
            let text = frame
                .replace(r#""content":"""#, &format!(r#""content":"{}""#, "x".repeat(size - frame.len())));
            assert_eq!(text.len(), size);
            let reply = harness.send(Call::post("/v1/chat/completions", text).open()).await.unwrap();
            assert!([400, 413].contains(&reply.status), "{size}: {} {}", reply.status, reply.text());
        }
    }
    assert_eq!(harness.reached(), (0, 0));
}

/// 20 MB bodies with images pass beside small requests, on HTTP/1.1 and HTTP/2, and the small ones stay fast.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn big_bodies_pass_beside_small_ones() {
    let harness = Harness::builder().start().await.unwrap();
    let image = format!("data:image/png;base64,{}", "QUJD".repeat(5 << 20));
    let body = json!({"model": "tiny-llama", "stream": true, "max_tokens": 3, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": image}}]}]});
    let big = Call::json("/v1/chat/completions", &body);
    assert!(big.body.len() > 20_000_000);
    let address = harness.address();
    let small = |_| {
        let mut body = chat(2, Wish::Nothing);
        body["messages"][1]["content"] = json!("s".repeat(900));
        Call::json("/v1/chat/completions", &body)
    };
    let alone = run(address, 8, Until::Time(Duration::from_secs(3)), small, |_, _| {}).await.unwrap();
    let large = Arc::new(Mutex::new(Vec::new()));
    let uploads = {
        let (large, big) = (Arc::clone(&large), big.clone());
        tokio::spawn(async move {
            for n in 0..6 {
                let protocol = if n % 2 == 0 { Protocol::H1 } else { Protocol::H2 };
                let mut connection = client::Connection::open(address, protocol).await.unwrap();
                let reply = connection.send(&big).await.unwrap();
                assert_eq!(reply.status, 200, "{}", reply.text());
                large.lock().unwrap().push(reply.took);
            }
        })
    };
    let beside = run(address, 8, Until::Time(Duration::from_secs(6)), small, |_, _| {}).await.unwrap();
    uploads.await.unwrap();
    let mut large = large.lock().unwrap().clone();
    large.sort_unstable();
    println!("{}\n{}", alone.line("1 KB alone"), beside.line("1 KB beside 20 MB"));
    println!("20 MB: p50 {:?}, slowest {:?}", percentile(&large, 50.0), percentile(&large, 100.0));
    assert_eq!(beside.statuses.keys().collect::<Vec<_>>(), [&200]);
    assert!(beside.percentile(99.0) < Duration::from_secs(2), "{}", beside.line("beside"));
    assert_eq!(harness.reached().1, 0);
}

/// Uploads that break off midway, lie about their length, or end in trailers: none reaches an engine half-read, and the
/// service holds no stream for them afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_cut_midway_reach_no_engine() {
    let mut harness = Harness::builder().start().await.unwrap();
    let body = chat(2, Wish::Nothing).to_string();
    let (first, second) = body.split_at(40);
    let chunked = raw::head("/v1/chat/completions", &["transfer-encoding: chunked"]);
    let long = raw::head("/v1/chat/completions", &[&format!("content-length: {}", body.len() + 50)]);
    let both = raw::head("/v1/chat/completions", &["transfer-encoding: chunked", "content-length: 3"]);
    let cut: Vec<(&str, Vec<Step>)> = vec![
        ("chunked, closed", vec![Step::text(&chunked), Step::text(&raw::chunk(first)), Step::Shut]),
        ("chunked, reset", vec![Step::text(&chunked), Step::text(&raw::chunk(first)), Step::Reset]),
        ("inside a chunk", vec![Step::text(&chunked), Step::text("ff\r\n{\"model\""), Step::Shut]),
        ("bad chunk size", vec![Step::text(&chunked), Step::text("zz\r\n"), Step::Shut]),
        ("shorter than its length", vec![Step::text(&long), Step::text(&body), Step::Shut]),
        ("headers only", vec![Step::text(&chunked), Step::Shut]),
        (
            "length and chunks",
            vec![Step::text(&both), Step::text(&raw::chunk(&body)), Step::text("0\r\n\r\n"), Step::Shut],
        ),
    ];
    for (what, steps) in cut {
        let answer = raw::converse(harness.address(), &steps, QUIET).await.unwrap();
        let status = raw::status(&answer);
        assert!(
            status.is_none_or(|status| (400..500).contains(&status)),
            "{what}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert_eq!(harness.reached().0, 0, "half a body reached an engine");
    let whole = [
        Step::text(&chunked),
        Step::text(&raw::chunk(first)),
        Step::Pause(Duration::from_millis(50)),
        Step::text(&raw::chunk(second)),
        Step::text("0\r\nx-tokenweir-pool: b\r\nx-note: end\r\n\r\n"),
    ];
    let answer = raw::converse(harness.address(), &whole, QUIET).await.unwrap();
    assert_eq!(
        raw::status(&answer),
        Some(200),
        "trailers end a request: {}",
        String::from_utf8_lossy(&answer)
    );
    assert_eq!(harness.reached(), (1, 0));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let metrics = harness.service().unwrap().metrics().await.unwrap();
    assert_eq!(metrics.sum("tokenweir_ext_proc_streams", &[]), 0.0, "a stream was left open");
}

/// Without a ready endpoint the answer is 503 with Retry-After; when one comes back, the next request is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_ready_endpoint_is_503_until_one_is_back() {
    let mut harness = Harness::builder().start().await.unwrap();
    harness.set_ready(&[false, false, true]).unwrap();
    let refused = e2e::process::wait_for("a 503", Duration::from_secs(5), async || {
        let reply = harness.send(chat_call(2)).await.ok()?;
        (reply.status == 503).then_some(reply)
    });
    let refused = refused.await.unwrap();
    assert_eq!(refused.header("retry-after"), "1");
    assert_openai(&refused.json(), 503, "no endpoint");
    let before = harness.reached();
    harness.set_ready(&[false, true, true]).unwrap();
    let served = e2e::process::wait_for("a 200", Duration::from_secs(5), async || {
        (harness.send(chat_call(2)).await.ok()?.status == 200).then_some(())
    });
    served.await.unwrap();
    assert_eq!(harness.reached(), (before.0 + 1, 0));
    assert_eq!(harness.engine(1).books().entries().last().unwrap().status, 200);
}
