//! However many streams leave whatever unfinished, memory stays bounded, and no client loses a byte.

use super::*;
use crate::budget::ROOT_KEPT_BYTES_MAX;

/// An answer that never ends what it began: an event, held events, a usage object, a compressed stream.
fn unfinished(number: usize) -> (&'static str, &'static str, &'static str, Vec<u8>) {
    let filler = "x".repeat(100_000);
    let event = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{filler}").into_bytes();
    match number % 4 {
        0 => (STRIP_ALL, SSE, "", event),
        1 => (STRIP_NOTHING, SSE, "", event),
        2 => {
            let finish = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n".repeat(100);
            (STRIP_ALL, SSE, "", finish.into_bytes())
        }
        _ => {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            gzip.write_all(&event).unwrap();
            gzip.flush().unwrap();
            (STRIP_NOTHING, SSE, "gzip", gzip.get_ref().clone())
        }
    }
}

#[test]
fn what_streams_leave_unfinished_stays_within_the_budget() {
    let verdict = FakeHost::with_verdict("tok", STRIP_ALL);
    let root = root(&verdict, true);
    let mut open = Vec::new();
    let mut held_back = 0;
    for number in 0..4000 {
        let (plan, content_type, encoding, body) = unfinished(number);
        let host = FakeHost::with_verdict("tok", plan);
        host.respond(200, content_type);
        host.set_response("content-encoding", encoding);
        let mut stream = root.open_stream();
        stream.on_request_headers(&host);
        stream.on_response_headers(&host, false);
        let mut client = Vec::new();
        for chunk in body.chunks(16 * 1024) {
            client.extend(push(&host, &mut stream, chunk, false));
            assert!(root.kept_bytes() <= ROOT_KEPT_BYTES_MAX, "{} after stream {number}", root.kept_bytes());
        }
        assert!(body.starts_with(&client));
        held_back += body.len() - client.len();
        open.push((host, stream, body, client));
    }
    assert!(root.kept_bytes() > ROOT_KEPT_BYTES_MAX / 2, "the budget was put to the test");
    assert!(
        root.kept_bytes() + 64 * 1024 <= ROOT_KEPT_BYTES_MAX,
        "there is room left for those that keep little"
    );
    assert!(held_back > ROOT_KEPT_BYTES_MAX / 8);

    // Beside them an ordinary stream is metered and stripped as ever.
    for step in [7, 1000] {
        let host = FakeHost::with_verdict("tok", STRIP_ALL);
        host.respond(200, SSE);
        let mut root = root_with_budget_of(&root, &host);
        let mut stream = root.open_stream();
        let client = String::from_utf8(respond(&host, &mut stream, CONTINUOUS, step)).unwrap();
        assert!(!client.contains("usage") && client.ends_with("data: [DONE]\n\n"), "{client}");
        let (_, end) = log(&host, &mut root, &mut stream);
        assert_eq!((end.usage.unwrap().output, end.source()), (Some(8), v1::UsageSource::Final));
        assert!(!end.flags.unwrap().truncated);
    }

    let mut truncated = 0;
    for (host, mut stream, body, mut client) in open {
        client.extend(push(&host, &mut stream, b"", true));
        assert!(client == body, "a client lost bytes");
        truncated += usize::from(stream.end(&host, Phase::Passed).flags.unwrap().truncated);
    }
    assert!(truncated > 100, "what was let go is told: {truncated}");
    assert_eq!(root.kept_bytes(), 0, "all went back");
}

/// A root context with a reporter of its own that shares the budget of another.
fn root_with_budget_of(other: &Root, host: &FakeHost) -> Root {
    let mut root = root(host, true);
    root.share_budget(other);
    root
}
