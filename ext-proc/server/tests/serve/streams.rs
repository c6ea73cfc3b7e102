//! ext_proc streams.

use std::time::Duration;

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{CommonResponse, HttpTrailers, ProcessingResponse};
use tonic::Code;

use crate::play::{CHAT, Served, Stream, decision, http_headers, metadata};

fn header(common: &CommonResponse, name: &str) -> Option<String> {
    let set = &common.header_mutation.as_ref()?.set_headers;
    let found = set.iter().filter_map(|option| option.header.as_ref()).find(|header| header.key == name)?;
    String::from_utf8(found.raw_value.clone()).ok()
}

fn body_common(reply: &ProcessingResponse) -> &CommonResponse {
    match &reply.response {
        Some(Response::RequestBody(body)) => body.response.as_ref().expect("a common response"),
        other => panic!("not a reply to the body: {other:?}"),
    }
}

fn immediate_status(reply: &ProcessingResponse) -> i32 {
    match &reply.response {
        Some(Response::ImmediateResponse(immediate)) => immediate.status.as_ref().expect("status").code,
        other => panic!("not an immediate response: {other:?}"),
    }
}

#[tokio::test]
async fn a_buffered_request_gets_its_verdict_and_the_stream_ends_with_ok_after_the_response_headers() {
    let served = Served::start("").await;
    let mut stream = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    let reply = stream.verdict().await;
    let common = body_common(&reply);
    assert_eq!(header(common, "x-tokenweir-pool").as_deref(), Some("a"));
    let destination = header(common, "x-gateway-destination-endpoint").expect("a destination");
    assert_eq!(destination, "127.0.0.1:9001,127.0.0.1:9002");
    assert_eq!(metadata(&reply, "envoy.lb", "x-gateway-destination-endpoint"), Some(destination));
    let (plan, token) = decision(&reply).expect("a verdict");
    assert!(token.starts_with("tw1.own."));
    assert_eq!(plan, "1;chat_completions;stream;strip=all");
    let removed = &common.header_mutation.as_ref().expect("mutation").remove_headers;
    assert_eq!(removed, &["x-tokenweir-pool"], "the client's copy goes first");
    assert!(common.clear_route_cache);
    let Some(Mutation::Body(body)) = common.body_mutation.as_ref().and_then(|m| m.mutation.as_ref()) else {
        panic!("usage must be asked for")
    };
    let sent: serde_json::Value = serde_json::from_slice(body).expect("json");
    assert_eq!(sent["stream_options"]["include_usage"], true);
    assert_eq!(sent["messages"][0]["content"], "hi");

    stream.response_headers("127.0.0.1:9002").await;
    let reply = stream.reply().await.expect("open").expect("a reply");
    assert!(matches!(reply.response, Some(Response::ResponseHeaders(_))));
    assert!(stream.reply().await.expect("OK").is_none(), "the stream ends with status OK");
}

#[tokio::test]
async fn full_duplex_sends_the_whole_body_back_in_small_chunks_and_ignores_a_doubled_end() {
    let served = Served::start("").await;
    let mut stream = Stream::open(&served, BodySendMode::FullDuplexStreamed).await.expect("open");
    let filler = "x".repeat(300_000);
    let text = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{filler}"}}]}}"#);
    stream.headers("/v1/chat/completions").await;
    for chunk in text.as_bytes().chunks(65_000) {
        stream.body(chunk, false).await;
    }
    stream.body(b"", true).await;
    stream.body(b"", true).await;
    let headers = stream.reply().await.expect("open").expect("headers first");
    let Some(Response::RequestHeaders(reply)) = &headers.response else { panic!("{headers:?}") };
    let common = reply.response.as_ref().expect("common");
    assert_eq!(header(common, "x-tokenweir-pool").as_deref(), Some("a"));
    assert!(decision(&headers).is_some());
    let mut back = Vec::new();
    loop {
        let reply = stream.reply().await.expect("open").expect("a chunk");
        let mutation = body_common(&reply).body_mutation.as_ref().and_then(|m| m.mutation.clone());
        let Some(Mutation::StreamedResponse(piece)) = mutation else { panic!("{reply:?}") };
        assert!(piece.body.len() <= 62_000, "{} bytes in a chunk", piece.body.len());
        back.extend_from_slice(&piece.body);
        if piece.end_of_stream {
            break;
        }
    }
    assert!(back == text.as_bytes(), "the body came back changed");
    stream.response_headers("127.0.0.1:9001").await;
    assert!(matches!(
        stream.reply().await.expect("open").expect("reply").response,
        Some(Response::ResponseHeaders(_))
    ));
    assert!(stream.reply().await.expect("OK").is_none());
}

#[tokio::test]
async fn request_trailers_end_a_full_duplex_request() {
    let served = Served::start("").await;
    let mut stream = Stream::open(&served, BodySendMode::FullDuplexStreamed).await.expect("open");
    stream.headers("/v1/chat/completions").await;
    stream.body(CHAT.as_bytes(), false).await;
    stream.say(Request::RequestTrailers(HttpTrailers::default())).await;
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let reply = stream.reply().await.expect("open").expect("a reply");
        kinds.push(match reply.response {
            Some(Response::RequestHeaders(_)) => "headers",
            Some(Response::RequestBody(body)) => {
                let mutation = body.response.and_then(|r| r.body_mutation).and_then(|m| m.mutation);
                assert!(matches!(mutation, Some(Mutation::StreamedResponse(piece)) if !piece.end_of_stream));
                "body"
            }
            Some(Response::RequestTrailers(_)) => "trailers",
            _ => "other",
        });
    }
    assert_eq!(kinds, ["headers", "body", "trailers"]);
}

#[tokio::test]
async fn a_request_without_a_body_is_answered_and_nothing_hangs() {
    let served = Served::start("").await;
    for mode in [BodySendMode::Buffered, BodySendMode::FullDuplexStreamed] {
        let mut stream = Stream::open(&served, mode).await.expect("open");
        let mut headers = http_headers(&[(":method", "GET"), (":path", "/v1/models")]);
        headers.end_of_stream = true;
        stream.say(Request::RequestHeaders(headers)).await;
        assert_eq!(immediate_status(&stream.reply().await.expect("open").expect("reply")), 200);
        assert!(stream.reply().await.expect("OK").is_none());
    }
}

#[tokio::test]
async fn a_stream_that_envoy_ends_before_the_verdict_never_ends_with_ok() {
    let served = Served::start("").await;
    for after_headers in [false, true] {
        let mut stream = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
        if after_headers {
            stream.headers("/v1/chat/completions").await;
            stream.reply().await.expect("open").expect("proceed");
        }
        stream.send = None;
        let status = stream.reply().await.expect_err("an error, never OK");
        assert_eq!(status.code(), Code::Cancelled);
    }
}

#[tokio::test]
async fn messages_out_of_order_are_an_error() {
    let served = Served::start("").await;
    let mut stream = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    stream.body(CHAT.as_bytes(), true).await;
    assert_eq!(stream.reply().await.expect_err("an error").code(), Code::InvalidArgument);
    let mut stream = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    stream.headers("/v1/chat/completions").await;
    stream.reply().await.expect("open").expect("proceed");
    stream.response_headers("127.0.0.1:9001").await;
    assert_eq!(stream.reply().await.expect_err("an error").code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_mode_that_cannot_work_is_told_apart_from_a_bad_request() {
    let served = Served::start("").await;
    let mut stream = Stream::open(&served, BodySendMode::Streamed).await.expect("open");
    stream.headers("/v1/chat/completions").await;
    assert_eq!(immediate_status(&stream.reply().await.expect("open").expect("reply")), 500);
}

#[tokio::test]
async fn twenty_megabytes_pass_and_one_byte_over_the_limit_does_not() {
    let served = Served::start("limits: {body_bytes_max: 20971520}\n").await;
    for (length, status) in [(20 << 20, None), ((20 << 20) + 1, Some(413))] {
        let mut stream = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
        stream.headers("/v1/chat/completions").await;
        stream.reply().await.expect("open").expect("proceed");
        let frame = r#"{"model":"m","messages":[{"role":"user","content":""}]}"#;
        let text = frame.replace(r#""""#, &format!("\"{}\"", "x".repeat(length - frame.len())));
        assert_eq!(text.len(), length);
        stream.body(text.as_bytes(), true).await;
        let reply = stream.reply().await.expect("open").expect("reply");
        match status {
            None => assert!(body_common(&reply).clear_route_cache),
            Some(status) => assert_eq!(immediate_status(&reply), status),
        }
    }
}

#[tokio::test]
async fn nothing_ready_is_a_503() {
    let served = Served::start("").await;
    let mut stream = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    stream.headers("/v1/chat/completions").await;
    stream.reply().await.expect("open").expect("proceed");
    stream.body(br#"{"model":"none","messages":[]}"#, true).await;
    assert_eq!(immediate_status(&stream.reply().await.expect("open").expect("reply")), 503);
}

#[tokio::test]
async fn overload_is_an_error_and_never_ok() {
    let served = Served::start("limits: {streams_max: 1}\n").await;
    let _held = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    let refused = match Stream::open(&served, BodySendMode::Buffered).await {
        Err(status) => status,
        Ok(mut stream) => stream.reply().await.expect_err("refused"),
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_drain_ends_decided_streams_with_ok_finishes_verdicts_and_exits_0() {
    let mut served = Served::start("drain: {delay_s: 0, grace_s: 10}\n").await;
    let mut decided = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    decided.verdict().await;
    let mut undecided = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    undecided.headers("/v1/chat/completions").await;
    undecided.reply().await.expect("open").expect("proceed");
    served.terminate();
    assert!(decided.reply().await.expect("OK").is_none(), "a decided stream ends with OK");
    undecided.body(CHAT.as_bytes(), true).await;
    let reply = undecided.reply().await.expect("open").expect("a verdict while draining");
    assert!(body_common(&reply).clear_route_cache);
    assert!(undecided.reply().await.expect("OK").is_none());
    assert!(served.exit(Duration::from_secs(10)).await.success());
}

#[tokio::test]
async fn when_the_grace_period_is_over_an_undecided_stream_ends_with_an_error() {
    let mut served = Served::start("drain: {delay_s: 0, grace_s: 1}\n").await;
    let mut undecided = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    undecided.headers("/v1/chat/completions").await;
    undecided.reply().await.expect("open").expect("proceed");
    served.terminate();
    assert_eq!(undecided.reply().await.expect_err("never OK").code(), Code::Unavailable);
    assert!(served.exit(Duration::from_secs(15)).await.success());
}
