//! Faults on demand, restarts and books, over the wire.

use super::{Reply, capture, config, runs, send};
use crate::table::Kind;
use bench_engine::{End, Engine, EngineConfig, MetricsFault};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

fn body(tokens: u32, more: &str) -> String {
    format!(
        r#"{{"messages":[{{"role":"user","content":"hello there"}}],"ignore_eos":true,"max_tokens":{tokens}{more}}}"#
    )
}

fn engine() -> Engine {
    Engine::start(config(Kind::Plain)).expect("an engine")
}

/// Steps of virtual hours: nothing ends unless it is made to.
fn slow_engine() -> Engine {
    let engine = engine();
    engine.set(|faults| faults.slow = 1e6);
    engine
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not in time: {what}");
}

/// The last shapes of a stream, as many as the capture has.
fn assert_tail(name: &str, ours: &Reply) {
    let theirs = Reply { status: 200, headers: Vec::new(), body: capture(name), chunks: Vec::new() };
    let shapes =
        |reply: &Reply| runs(name, &reply.events()).into_iter().map(|(shape, _)| shape).collect::<Vec<_>>();
    let (ours, theirs) = (shapes(ours), shapes(&theirs));
    assert!(ours.ends_with(&theirs), "{ours:#?}\n{theirs:#?}");
}

#[tokio::test]
async fn a_dead_engine_ends_its_streams_with_an_error_and_is_gone() {
    let engine = engine();
    engine.set(|faults| faults.die_after_tokens = Some(5));
    let reply = send(engine.address(), CHAT, &body(500, r#","stream":true"#), &[("x-request-id", "a")]).await;
    assert_tail("chat-stream-engine-death-tail.sse", &reply.expect("a stream"));
    let health = send(engine.address(), "/health", "", &[]).await;
    assert!(health.is_err() || health.is_ok_and(|reply| reply.status == 503));
    let entry = engine.books().of("a").cloned().expect("an entry");
    assert_eq!((entry.end, entry.status), (End::Died, 200));
    assert!((5..500).contains(&entry.generated_tokens), "{entry:?}");
    engine.set(|faults| faults.die_after_tokens = None);
    engine.restart().await.expect("the same port");
    assert_eq!(send(engine.address(), CHAT, &body(3, ""), &[]).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn a_server_told_to_end_says_what_it_has() {
    let engine = Engine::start(EngineConfig { time_scale: 1.0, ..config(Kind::Plain) }).expect("an engine");
    let address = engine.address();
    let more = r#","stream":true,"stream_options":{"include_usage":true}"#;
    let stream = tokio::spawn(async move { send(address, CHAT, &body(1900, more), &[]).await });
    until("tokens", || engine.stats().generation_tokens > 2).await;
    engine.terminate();
    let reply = stream.await.expect("a task").expect("a stream");
    assert_tail("chat-stream-sigterm-no-drain-tail.sse", &reply);
    assert_eq!(engine.books().count(End::Died), 1);
}

#[tokio::test]
async fn a_draining_engine_finishes_and_takes_nothing_new() {
    let engine = engine();
    let address = engine.address();
    let running = tokio::spawn(async move { send(address, CHAT, &body(300, ""), &[]).await });
    until("the request", || engine.unfinished() == 1).await;
    engine.set(|faults| faults.draining = true);
    let refused = send(address, CHAT, &body(3, ""), &[]).await.expect("an answer");
    assert_eq!(refused.status, 500);
    assert!(refused.body.contains("cannot schedule new futures after shutdown"), "{}", refused.body);
    assert_eq!(send(address, "/health", "", &[]).await.expect("an answer").status, 200);
    assert_eq!(running.await.expect("a task").expect("an answer").status, 200);
}

#[tokio::test]
async fn a_stalled_engine_is_healthy_and_does_nothing() {
    let engine = engine();
    let address = engine.address();
    engine.set(|faults| faults.stalled = true);
    let waiting = tokio::spawn(async move { send(address, CHAT, &body(3, ""), &[]).await });
    until("the request", || engine.unfinished() == 1).await;
    assert_eq!(send(address, "/health", "", &[]).await.expect("an answer").status, 200);
    // Gauges are those of the newest step, and there is none.
    assert_eq!((engine.gauges().waiting, engine.stats().generation_tokens), (0, 0));
    engine.set(|faults| faults.stalled = false);
    assert_eq!(waiting.await.expect("a task").expect("an answer").status, 200);
}

#[tokio::test]
async fn a_sleeping_engine_hangs_and_says_so() {
    let engine = engine();
    let address = engine.address();
    engine.set(|faults| faults.sleeping = true);
    let waiting = tokio::spawn(async move { send(address, CHAT, &body(3, ""), &[]).await });
    until("the entry", || engine.books().entries().len() == 1).await;
    let page = send(address, "/metrics", "", &[]).await.expect("a page").body;
    assert!(
        page.contains("sleep_state=\"awake\"} 0.0")
            && page.contains("sleep_state=\"weights_offloaded\"} 1.0")
    );
    assert_eq!(engine.unfinished(), 0);
    engine.set(|faults| faults.sleeping = false);
    assert_eq!(waiting.await.expect("a task").expect("an answer").status, 200);
}

#[tokio::test]
async fn connections_are_reset_where_they_are_told_to_be() {
    let engine = engine();
    engine.set(|faults| faults.reset_after_tokens = Some(0));
    let error = send(engine.address(), CHAT, &body(3, ""), &[]).await.err().expect("no answer");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    engine.set(|faults| faults.reset_after_tokens = Some(4));
    let mut stream = TcpStream::connect(engine.address()).await.expect("a connection");
    let body = body(100, r#","stream":true"#);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.expect("written");
    let error = stream.read_to_end(&mut Vec::new()).await.expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(engine.books().count(End::Died), 2);
}

#[tokio::test]
async fn a_stopped_engine_refuses_and_a_restarted_one_has_forgotten() {
    let engine = engine();
    let address = engine.address();
    let prompt = format!(r#"{{"prompt":"{}","max_tokens":2}}"#, "water under the weir ".repeat(20));
    let cached = async || {
        send(address, "/v1/completions", &prompt, &[]).await.expect("an answer");
        engine.books().entries().last().map(|entry| (entry.prompt_tokens, entry.cached_tokens))
    };
    assert_eq!(cached().await, Some((105, 0)));
    assert_eq!(cached().await, Some((105, 96)));
    engine.stop();
    until("the port", || std::net::TcpStream::connect(address).is_err()).await;
    assert!(!engine.is_running());
    engine.restart().await.expect("the same port");
    assert_eq!(engine.stats().prompt_tokens, 0);
    assert_eq!(cached().await, Some((105, 0)));
    assert_eq!(engine.books().entries().len(), 3);
}

#[tokio::test]
async fn idle_connections_are_closed_and_busy_ones_are_not() {
    let engine = engine();
    engine.set(|faults| {
        faults.keep_alive_ms = Some(50);
        faults.slow = 30.0;
    });
    let mut stream = TcpStream::connect(engine.address()).await.expect("a connection");
    // Longer than the limit: 8 steps of 6 ms and more.
    let body = body(8, "");
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.expect("written");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.expect("an end, not a reset");
    assert!(String::from_utf8_lossy(&bytes).starts_with("HTTP/1.1 200"), "{bytes:?}");
}

#[tokio::test]
async fn metrics_lie_on_demand() {
    let engine = engine();
    let page = async |fault| {
        engine.set(|faults| faults.metrics = fault);
        send(engine.address(), "/metrics", "", &[]).await.expect("a page")
    };
    let frozen = page(MetricsFault::Frozen).await;
    send(engine.address(), CHAT, &body(3, ""), &[]).await.expect("an answer");
    assert_eq!(send(engine.address(), "/metrics", "", &[]).await.expect("a page").body, frozen.body);
    assert_ne!(page(MetricsFault::None).await.body, frozen.body);
    assert!(page(MetricsFault::Absurd).await.body.contains("NaN"));
    assert_eq!(page(MetricsFault::Status500).await.status, 500);
    assert!(page(MetricsFault::Html).await.body.starts_with("<html>"));
    assert!(page(MetricsFault::Huge).await.body.len() > bench_engine::config::HUGE);
}

#[tokio::test]
async fn a_full_cache_and_failures_on_purpose() {
    let engine = engine();
    let address = engine.address();
    engine.set(|faults| faults.held_cache = 1.0);
    assert!((engine.gauges().kv_usage - 1.0).abs() < 1e-9);
    let waiting = tokio::spawn(async move { send(address, CHAT, &body(3, ""), &[]).await });
    until("the request", || engine.gauges().waiting == 1).await;
    engine.set(|faults| faults.held_cache = 0.0);
    assert_eq!(waiting.await.expect("a task").expect("an answer").status, 200);
    engine.set(|faults| {
        faults.fail_with = Some(429);
        faults.retry_after_s = Some(7);
    });
    let refused = send(address, CHAT, &body(3, ""), &[]).await.expect("an answer");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("7")));
}

#[tokio::test]
async fn who_leaves_is_aborted() {
    let engine = slow_engine();
    let address = engine.address();
    let leaving =
        tokio::spawn(async move { send(address, CHAT, &body(500, r#","stream":true"#), &[]).await });
    until("the request", || engine.unfinished() == 1).await;
    leaving.abort();
    until("its end", || engine.unfinished() == 0).await;
    until("its entry", || engine.books().count(End::Aborted) == 1).await;
    assert_eq!(engine.stats().gauges.running, 0);
}

#[tokio::test]
async fn books_metrics_and_usage_say_the_same() {
    let engine = engine();
    let address = engine.address();
    let calls = (0..24).map(|at| {
        let more = match at % 3 {
            0 => r#","stream":true,"stream_options":{"include_usage":true}"#,
            1 => r#","n":2"#,
            _ => "",
        };
        let body = body(5 + at, more);
        tokio::spawn(async move { send(address, CHAT, &body, &[("x-request-id", &format!("r{at}"))]).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.expect("a task").expect("an answer").status, 200);
    }
    until("all books", || engine.books().count(End::Length) == 24).await;
    let (books, stats) = (engine.books(), engine.stats());
    for at in 0..24_u32 {
        let entry = books.of(&format!("r{at}")).expect("an entry");
        let n = if at % 3 == 1 { 2 } else { 1 };
        assert_eq!(entry.generated_tokens, u64::from((5 + at) * n));
        assert!(entry.first_token_us.is_some() && entry.first_token_us <= entry.last_token_us);
    }
    assert_eq!(books.sum(|entry| entry.generated_tokens), stats.generation_tokens);
    // vLLM counts the prompt of every sequence.
    let prompts = books.sum(|entry| entry.prompt_tokens * u64::from(entry.sequences));
    assert_eq!(prompts, stats.prompt_tokens);
    assert_eq!(stats.at_length, 32);
}

#[tokio::test]
async fn the_three_kinds_of_input_of_a_message_add_up() {
    let engine = engine();
    let words = "water under the weir ".repeat(20);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}],"max_tokens":2}}"#);
    for read in [0.0, 96.0] {
        let reply = send(engine.address(), "/v1/messages", &body, &[]).await.expect("an answer");
        let usage = super::Node::parse(&reply.body);
        let number = |member: &str| usage.number(&format!("usage.{member}")).expect("a number");
        let (cached, created) = (number("cache_read_input_tokens"), number("cache_creation_input_tokens"));
        assert_eq!((cached, created), (read, 96.0 - read));
        let prompt = engine.books().entries().last().map(|entry| entry.prompt_tokens as f64);
        assert_eq!(Some(number("input_tokens") + cached + created), prompt);
    }
}

#[tokio::test]
async fn responses_are_kept_continued_and_cancelled() {
    let engine = Engine::start(EngineConfig { time_scale: 1.0, ..config(Kind::Plain) }).expect("an engine");
    let address = engine.address();
    let post = async |path: &str, body: &str| send(address, path, body, &[]).await.expect("an answer");
    let first =
        post("/v1/responses", r#"{"input":"hello","max_output_tokens":4,"request_id":"resp_0a"}"#).await;
    assert!(first.body.starts_with(r#"{"id":"resp_0a""#), "{}", first.body);
    let got = send(address, "/v1/responses/resp_0a", "", &[]).await.expect("an answer");
    assert_eq!((got.status, got.body), (200, first.body));
    let next = r#"{"input":"and then?","max_output_tokens":4,"previous_response_id":"resp_0a"}"#;
    let next = super::Node::parse(&post("/v1/responses", next).await.body);
    let alone = super::Node::parse(
        &post("/v1/responses", r#"{"input":"and then?","max_output_tokens":4}"#).await.body,
    );
    assert!(next.number("usage.input_tokens") > alone.number("usage.input_tokens"));
    let missing = r#"{"input":"x","previous_response_id":"resp_0b"}"#;
    let missing = post("/v1/responses", missing).await;
    assert_eq!(missing.status, 404);
    assert!(missing.body.contains("Response with id 'resp_0b' not found."), "{}", missing.body);
    let late = post("/v1/responses/resp_0a/cancel", "{}").await;
    assert_eq!(late.status, 400);
    engine.set(|faults| faults.slow = 1000.0);
    let queued =
        r#"{"input":"x","background":true,"max_output_tokens":400,"ignore_eos":true,"request_id":"resp_0c"}"#;
    assert!(post("/v1/responses", queued).await.body.contains(r#""status":"queued""#));
    let cancelled = post("/v1/responses/resp_0c/cancel", "{}").await;
    assert!(cancelled.body.contains(r#""status":"cancelled""#), "{}", cancelled.body);
    engine.set(|faults| faults.slow = 1.0);
    until("its end", || engine.unfinished() == 0).await;
    assert_eq!(engine.books().count(End::Aborted), 1);
}
