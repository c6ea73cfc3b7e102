//! Responses that an engine made before: fetched or cancelled, they pass as they are and count nothing.

use super::*;

const PLAN: &str = "1;stored_response;whole;strip=nothing";
const RESPONSE: &[u8] = include_bytes!("../../../../../proto/openai/tests/captures/responses-nonstream.http");
const EVENTS: &[u8] = include_bytes!("../../../../../proto/openai/tests/captures/responses-stream.sse");

#[test]
fn a_fetched_response_passes_as_it_is_and_is_not_counted_again() {
    for (content_type, response) in [("application/json", body(RESPONSE)), (SSE, EVENTS)] {
        for step in [1, 7, usize::MAX] {
            let host = FakeHost::with_verdict("tok", PLAN);
            let mut root = root(&host, true);
            let mut stream = root.open_stream();
            host.respond(200, content_type);
            assert_eq!(respond(&host, &mut stream, response, step), response);
            assert!(!host.replaced.get());
            let (token, end) = log(&host, &mut root, &mut stream);
            assert_eq!((token.as_str(), end.reason()), ("tok", v1::EndReason::Complete));
            assert_eq!((end.source(), end.usage), (v1::UsageSource::None, Some(v1::Usage::default())));
            assert_eq!((end.status, end.body_bytes), (200, response.len() as u64));
            assert_eq!((host.counted(Counter::InputTokens), host.counted(Counter::OutputTokens)), (0, 0));
        }
    }
}

#[test]
fn a_fetch_that_the_client_leaves_is_an_abort() {
    let host = FakeHost::with_verdict("tok", PLAN);
    let mut root = root(&host, true);
    let mut stream = root.open_stream();
    host.respond(200, SSE);
    assert_eq!(stream.on_request_headers(&host), Passage::Passed);
    stream.on_response_headers(&host, false);
    let part = &EVENTS[..EVENTS.len() / 2];
    assert_eq!(push(&host, &mut stream, part, false), part);
    host.set_integer(&["response", "flags"], CLIENT_LEFT);
    assert_eq!(log(&host, &mut root, &mut stream).1.reason(), v1::EndReason::ClientAbort);
}

#[test]
fn without_a_verdict_it_is_refused_where_one_is_required_and_owes_no_tokens_where_none_is() {
    for (method, path) in
        [("GET", "/v1/responses/resp_1?stream=true"), ("POST", "/v1/responses/resp_1/cancel")]
    {
        let host = FakeHost::without_verdict();
        host.set_request(":method", method);
        host.set_request(":path", path);
        let mut protected = root(&host, true).open_stream();
        assert_eq!(protected.on_request_headers(&host), Passage::Answered);
        assert_eq!(host.counted(Counter::NoVerdict), 1);
        let mut open = root(&host, false);
        let mut stream = open.open_stream();
        host.respond(200, "application/json");
        assert_eq!(respond(&host, &mut stream, body(RESPONSE), 64), body(RESPONSE));
        stream.on_log(&host);
        open.on_tick(&host);
        assert!(host.calls.borrow().is_empty(), "nobody could be billed for it, and nothing has to be");
    }
}
