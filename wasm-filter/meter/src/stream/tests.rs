//! Whole streams against a scripted proxy.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

use super::*;
use crate::budget::Budget;
use crate::fake::FakeHost;
use crate::root::Root;

mod memory;
mod stored;
mod timing;

const CONTINUOUS: &[u8] =
    include_bytes!("../../../../proto/openai/tests/captures/chat-stream-usage-continuous.sse");
const MESSAGES: &[u8] = include_bytes!("../../../../proto/openai/tests/captures/messages-stream-tools.sse");
const DEATH: &[u8] =
    include_bytes!("../../../../proto/openai/tests/captures/chat-stream-engine-death-tail.sse");
const WHOLE: &[u8] = include_bytes!("../../../../proto/openai/tests/captures/chat-nonstream.http");

const STRIP_ALL: &str = "1;chat_completions;stream;strip=all";
const STRIP_NOTHING: &str = "1;chat_completions;stream;strip=nothing";
const SSE: &str = "text/event-stream; charset=utf-8";
const CLIENT_LEFT: u64 = 0x4000;

/// The body of a capture that has a head.
fn body(capture: &[u8]) -> &[u8] {
    let head = capture.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    &capture[head + 4..]
}

fn root(host: &FakeHost, require_verdict: bool) -> Root {
    let mut root = Root::new("test".to_owned());
    let config = format!(r#"{{"require_verdict": {require_verdict}, "report_clusters": ["c"]}}"#);
    assert!(root.configure(host, config.as_bytes()).is_some());
    root
}

/// Sends a chunk through; answers what the client gets.
fn push(host: &FakeHost, stream: &mut Stream, chunk: &[u8], end: bool) -> Vec<u8> {
    host.chunk.replace(Some(chunk.to_vec()));
    host.replaced.set(false);
    stream.on_response_body(host, chunk.len(), end);
    host.chunk.take().unwrap()
}

/// A request that passes, and its response in chunks of `step` bytes, to the end of the body. Answers what the client got.
fn respond(host: &FakeHost, stream: &mut Stream, response: &[u8], step: usize) -> Vec<u8> {
    assert_eq!(stream.on_request_headers(host), Passage::Passed);
    stream.on_response_headers(host, false);
    let mut client = Vec::new();
    for chunk in response.chunks(step) {
        host.pass_us(1000);
        client.extend(push(host, stream, chunk, false));
    }
    client.extend(push(host, stream, b"", true));
    client
}

fn log(host: &FakeHost, root: &mut Root, stream: &mut Stream) -> (String, v1::End) {
    stream.on_log(host);
    root.on_tick(host);
    host.sent_end()
}

#[test]
fn a_stream_is_counted_and_stripped_whatever_the_cuts() {
    for step in [1, 2, 7, 64, 1000, usize::MAX] {
        let host = FakeHost::with_verdict("tok", STRIP_ALL);
        let mut root = root(&host, true);
        let mut stream = root.open_stream();
        host.respond(200, SSE);
        let client = String::from_utf8(respond(&host, &mut stream, CONTINUOUS, step)).unwrap();
        assert!(!client.contains("usage"), "the client did not ask for it: {client}");
        assert!(client.ends_with("data: [DONE]\n\n") && client.matches("data: ").count() == 9, "{client}");
        let (token, end) = log(&host, &mut root, &mut stream);
        assert_eq!(token, "tok");
        let usage = end.usage.unwrap();
        assert_eq!((usage.input, usage.cached, usage.output), (Some(38), Some(32), Some(8)));
        assert_eq!((end.source(), end.reason()), (v1::UsageSource::Final, v1::EndReason::Complete));
        assert_eq!((end.status, end.body_bytes, end.events), (200, CONTINUOUS.len() as u64, 9));
        assert_eq!(end.upstream_address, "127.0.0.1:8001");
        assert_eq!((host.counted(Counter::InputTokens), host.counted(Counter::OutputTokens)), (38, 8));
        assert_eq!(host.counted(Counter::Ends), 1);
    }
}

#[test]
fn without_a_verdict_nothing_passes() {
    let long = "t".repeat(TOKEN_BYTES_MAX + 1);
    for (token, plan) in [("", ""), ("", STRIP_ALL), ("a b", STRIP_ALL), (long.as_str(), STRIP_ALL)] {
        let host = FakeHost::with_verdict(token, plan);
        let mut root = root(&host, true);
        let mut stream = root.open_stream();
        assert_eq!(stream.on_request_headers(&host), Passage::Answered);
        let (status, body) = host.reply.take().unwrap();
        assert_eq!(status, 503);
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["code"], "no_verdict");
        assert_eq!(host.counted(Counter::NoVerdict), 1);
        stream.on_response_headers(&host, false);
        assert_eq!(push(&host, &mut stream, b"x", true), b"x");
        stream.on_log(&host);
        root.on_tick(&host);
        assert!(host.calls.borrow().is_empty(), "there is no exchange to report");
    }
}

#[test]
fn a_verdict_with_an_unknown_plan_is_refused_and_its_exchange_ended() {
    let host = FakeHost::with_verdict("tok", "9;chat_completions;stream;strip=all");
    let mut root = root(&host, true);
    let mut stream = root.open_stream();
    assert_eq!(stream.on_request_headers(&host), Passage::Answered);
    let (token, end) = log(&host, &mut root, &mut stream);
    assert_eq!(token, "tok");
    assert!(end.flags.unwrap().local_reply);
    assert_eq!(end.source(), v1::UsageSource::None);
}

#[test]
fn without_a_configuration_everything_is_refused() {
    let host = FakeHost::without_verdict();
    let mut root = Root::new("test".to_owned());
    assert!(root.configure(&host, b"{}").is_none());
    assert_eq!(host.lines.borrow().len(), 1);
    assert_eq!(root.open_stream().on_request_headers(&host), Passage::Answered);
}

#[test]
fn open_routes_are_metered_by_path_and_not_stripped() {
    let host = FakeHost::without_verdict();
    let mut root = root(&host, false);
    let mut stream = root.open_stream();
    host.respond(200, SSE);
    assert_eq!(respond(&host, &mut stream, CONTINUOUS, 100), CONTINUOUS);
    let (token, end) = log(&host, &mut root, &mut stream);
    assert_eq!((token.as_str(), end.usage.unwrap().output), ("", Some(8)));

    host.set_request(":path", "/anything/else");
    let mut stream = root.open_stream();
    respond(&host, &mut stream, CONTINUOUS, 100);
    stream.on_log(&host);
    assert_eq!(host.counted(Counter::Ends), 1, "what is no API has no end");
}

#[test]
fn the_length_goes_only_where_the_body_may_change() {
    for (plan, status, content_type, encoding, removed) in [
        (STRIP_ALL, 200, SSE, "", true),
        ("1;chat_completions;stream;strip=continuous", 200, SSE, "identity", true),
        (STRIP_NOTHING, 200, SSE, "", false),
        (STRIP_ALL, 400, SSE, "", false),
        (STRIP_ALL, 200, "application/json", "", false),
        (STRIP_ALL, 200, SSE, "gzip", false),
        ("1;chat_completions;whole;strip=all", 200, SSE, "", false),
    ] {
        let host = FakeHost::with_verdict("tok", plan);
        let mut stream = root(&host, true).open_stream();
        host.respond(status, content_type);
        host.set_response("content-length", "7");
        host.set_response("content-encoding", encoding);
        stream.on_request_headers(&host);
        stream.on_response_headers(&host, false);
        assert_eq!(
            !host.response_headers.borrow().contains_key("content-length"),
            removed,
            "{plan} {status} {content_type} {encoding}"
        );
        if !removed {
            assert_eq!(push(&host, &mut stream, CONTINUOUS, true), CONTINUOUS);
        }
        assert_eq!(host.counted(Counter::Unstripped), u64::from(encoding == "gzip"));
    }
}

#[test]
fn compressed_bodies_are_counted_or_told_unparsed() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(CONTINUOUS).unwrap();
    let gzip = gzip.finish().unwrap();
    for (encoding, bytes, output, unparsed) in [
        ("gzip", gzip.as_slice(), Some(8), false),
        ("br", &gzip, None, true),
        ("gzip", CONTINUOUS, None, true),
    ] {
        let host = FakeHost::with_verdict("tok", STRIP_ALL);
        let mut root = root(&host, true);
        let mut stream = root.open_stream();
        host.respond(200, SSE);
        host.set_response("content-encoding", encoding);
        assert_eq!(respond(&host, &mut stream, bytes, 10), bytes, "a compressed body passes unchanged");
        let end = log(&host, &mut root, &mut stream).1;
        assert_eq!(
            (end.usage.unwrap().output, end.flags.unwrap().unparsed),
            (output, unparsed),
            "{encoding}"
        );
        assert_eq!(end.reason(), v1::EndReason::Complete);
        assert_eq!(host.counted(Counter::Unparsed), u64::from(unparsed));
    }
}

#[test]
fn a_local_reply_has_no_usage() {
    let host = FakeHost::with_verdict("tok", STRIP_ALL);
    let mut root = root(&host, true);
    let mut stream = root.open_stream();
    host.respond(503, "application/json");
    host.set_property(&["response", "code_details"], b"no_healthy_upstream");
    host.set_integer(&["response", "flags"], 2);
    respond(&host, &mut stream, br#"{"usage":{"prompt_tokens":5,"completion_tokens":6}}"#, 100);
    let end = log(&host, &mut root, &mut stream).1;
    assert_eq!((end.source(), end.usage.unwrap()), (v1::UsageSource::None, v1::Usage::default()));
    assert_eq!((end.reason(), end.flags.unwrap().local_reply), (v1::EndReason::UpstreamError, true));
    assert!(!end.flags.unwrap().unparsed, "a local reply is not unmetered");
}

#[test]
fn an_abort_is_counted_up_to_its_last_event() {
    let mut seen = Vec::new();
    for cut in [CONTINUOUS.len() / 2, CONTINUOUS.len()] {
        let host = FakeHost::with_verdict("tok", STRIP_NOTHING);
        let mut root = root(&host, true);
        let mut stream = root.open_stream();
        host.respond(200, SSE);
        stream.on_request_headers(&host);
        stream.on_response_headers(&host, false);
        push(&host, &mut stream, &CONTINUOUS[..cut], false);
        host.set_integer(&["response", "flags"], CLIENT_LEFT);
        let end = log(&host, &mut root, &mut stream).1;
        assert_eq!(end.response_flags, CLIENT_LEFT);
        seen.push((end.reason(), end.source(), end.usage.unwrap().output.unwrap()));
    }
    assert_eq!(seen[0].0, v1::EndReason::ClientAbort);
    assert_eq!(seen[0].1, v1::UsageSource::Cumulative);
    assert!((1..8).contains(&seen[0].2), "{seen:?}");
    assert_eq!(seen[1], (v1::EndReason::Complete, v1::UsageSource::Final, 8), "the engine had finished");
}

#[test]
fn an_engine_that_dies_is_an_upstream_error() {
    for response in [DEATH, &CONTINUOUS[..CONTINUOUS.len() / 2]] {
        let host = FakeHost::with_verdict("tok", STRIP_NOTHING);
        let mut root = root(&host, true);
        let mut stream = root.open_stream();
        host.respond(200, SSE);
        respond(&host, &mut stream, response, 50);
        let (_, end) = log(&host, &mut root, &mut stream);
        assert_eq!(end.reason(), v1::EndReason::UpstreamError, "{end:?}");
    }
}

#[test]
fn every_stream_with_a_token_has_one_end() {
    // The client left before any response.
    let host = FakeHost::with_verdict("tok", STRIP_ALL);
    let mut one = root(&host, true);
    let mut stream = one.open_stream();
    stream.on_request_headers(&host);
    host.set_integer(&["response", "flags"], CLIENT_LEFT);
    host.set_integer(&["response", "code"], 0);
    stream.on_log(&host);
    stream.on_log(&host);
    let (_, end) = log(&host, &mut one, &mut stream);
    assert_eq!((end.status, end.reason(), end.ttft_us), (0, v1::EndReason::ClientAbort, 0));

    // The client left between the verdict and this filter.
    let host = FakeHost::with_verdict("tok", STRIP_ALL);
    let mut one = root(&host, true);
    let mut stream = one.open_stream();
    assert_eq!(log(&host, &mut one, &mut stream).0, "tok");

    // An earlier filter refused: there was no exchange.
    let host = FakeHost::without_verdict();
    let mut one = root(&host, true);
    let mut stream = one.open_stream();
    stream.on_response_headers(&host, true);
    stream.on_log(&host);
    one.on_tick(&host);
    assert!(host.calls.borrow().is_empty());
}

#[test]
fn a_whole_answer_is_counted() {
    let host = FakeHost::with_verdict("tok", "1;chat_completions;whole;strip=nothing");
    let mut root = root(&host, true);
    let mut stream = root.open_stream();
    host.respond(200, "application/json");
    assert_eq!(respond(&host, &mut stream, body(WHOLE), 100), body(WHOLE));
    let (_, end) = log(&host, &mut root, &mut stream);
    assert_eq!((end.usage.unwrap().output, end.reason()), (Some(8), v1::EndReason::Complete));
    assert_eq!((end.ttft_us, host.sent().len()), (1000, 1), "the end alone tells the first byte");
}

#[test]
fn trailers_end_a_body() {
    let host = FakeHost::with_verdict("tok", STRIP_NOTHING);
    let mut root = root(&host, true);
    let mut stream = root.open_stream();
    host.respond(429, "application/json");
    stream.on_request_headers(&host);
    stream.on_response_headers(&host, false);
    push(&host, &mut stream, b"{", false);
    stream.on_response_trailers(&host);
    assert_eq!(log(&host, &mut root, &mut stream).1.reason(), v1::EndReason::Complete);
}

#[test]
fn held_bytes_follow_the_last_chunk() {
    let bytes = |text: &str| text.as_bytes().to_vec();
    assert_eq!(joined(bytes("chunk"), None, Vec::new()), None);
    assert_eq!(joined(bytes("chunk"), None, bytes("+held")), Some(bytes("chunk+held")));
    assert_eq!(joined(bytes("chunk"), Some(bytes("edited")), bytes("+held")), Some(bytes("edited+held")));
    assert_eq!(joined(bytes("chunk"), Some(Vec::new()), Vec::new()), Some(Vec::new()));
}

#[test]
fn a_response_that_announces_trailers_is_not_edited() {
    let host = FakeHost::with_verdict("tok", STRIP_ALL);
    let mut stream = root(&host, true).open_stream();
    host.respond(200, SSE);
    host.set_response("trailer", "x-checksum");
    assert_eq!(respond(&host, &mut stream, CONTINUOUS, 100), CONTINUOUS);
    assert_eq!(host.counted(Counter::Unstripped), 1);
}

#[test]
fn a_chunk_that_the_proxy_withholds_is_told() {
    let host = FakeHost::with_verdict("tok", STRIP_NOTHING);
    let mut root = root(&host, true);
    let mut stream = root.open_stream();
    host.respond(200, SSE);
    stream.on_request_headers(&host);
    stream.on_response_headers(&host, false);
    host.chunk.replace(None);
    stream.on_response_body(&host, 10, false);
    assert!(log(&host, &mut root, &mut stream).1.flags.unwrap().unparsed);
}

#[test]
fn a_busy_reporter_costs_a_counted_event_and_no_panic() {
    let host = FakeHost::with_verdict("tok", STRIP_NOTHING);
    let reporter = Rc::new(RefCell::new(Reporter::new("r".to_owned())));
    let mut stream =
        Stream::new(Some(Rc::new(Config::default())), Rc::clone(&reporter), Budget::default().share());
    stream.on_request_headers(&host);
    let held = reporter.borrow_mut();
    stream.on_log(&host);
    drop(held);
    assert_eq!(host.counted(Counter::QueueDropped), 1);
}

proptest! {
    #[test]
    fn hostile_responses_end_once_and_pass_unchanged(
        seed in proptest::collection::vec((0..4096_usize, any::<u8>()), 0..40),
        plan in prop_oneof![
            Just("1;chat_completions;stream;strip=nothing"), Just("1;messages;stream;strip=nothing"),
            Just("1;responses;whole;strip=nothing"), Just("1;embeddings;whole;strip=nothing")
        ],
        content_type in prop_oneof![Just(SSE), Just("application/json"), Just("\u{fffd}"), Just("")],
        encoding in prop_oneof![Just(""), Just("gzip"), Just("deflate"), Just("br, gzip")],
        code in any::<Option<Vec<u8>>>(),
        flags in any::<u64>(),
        step in 1_usize..300,
        close in any::<bool>(),
    ) {
        let mut bytes = [CONTINUOUS, MESSAGES].concat();
        for (at, byte) in seed {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let host = FakeHost::with_verdict("tok", plan);
        let mut root = root(&host, true);
        let mut stream = root.open_stream();
        host.respond(200, content_type);
        host.set_response("content-encoding", encoding);
        if let Some(code) = code {
            host.set_property(&["response", "code"], &code);
        }
        host.set_integer(&["response", "flags"], flags);
        stream.on_request_headers(&host);
        stream.on_response_headers(&host, false);
        let mut client = Vec::new();
        for chunk in bytes.chunks(step) {
            client.extend(push(&host, &mut stream, chunk, false));
        }
        if close {
            client.extend(push(&host, &mut stream, b"", true));
        }
        prop_assert_eq!(client, bytes);
        log(&host, &mut root, &mut stream);
    }
}

#[test]
fn a_header_that_comes_twice_is_read_as_envoy_gives_it() {
    let pair = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    let headers = [pair("content-encoding", b"gzip"), pair("a", b""), pair("content-encoding", b"br")];
    assert_eq!(header(&headers, "content-encoding").as_deref(), Some(b"gzip,br".as_slice()));
    assert_eq!(header(&headers, "a").as_deref(), Some(b"".as_slice()));
    assert_eq!(header(&headers, "b"), None);
}
