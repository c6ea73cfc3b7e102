//! First tokens, gaps and signs of life, by a scripted clock.

use super::*;

#[test]
fn first_token_gaps_and_signs_of_life_follow_the_clock() {
    let host = FakeHost::with_verdict("tok", "1;messages;stream;strip=nothing");
    let mut root = root(&host, true);
    let mut stream = root.open_stream();
    host.respond(200, SSE);
    stream.on_request_headers(&host);
    stream.on_response_headers(&host, false);
    let events: Vec<&[u8]> = MESSAGES.split_inclusive(|b| *b == b'\n').collect();
    host.pass_us(500_000);
    push(&host, &mut stream, b": keep-alive\n\n", false);
    let mut elapsed = 500_000;
    for line in events {
        if line.starts_with(b"data: ") {
            host.pass_us(100_000);
            elapsed += 100_000;
        }
        push(&host, &mut stream, line, false);
    }
    push(&host, &mut stream, b"", true);
    let (_, end) = log(&host, &mut root, &mut stream);
    assert_eq!((end.ttft_us, end.duration_us), (600_000, elapsed));
    let gaps = end.gaps.unwrap();
    assert_eq!((gaps.count, gaps.max_us), (end.events - 1, 100_000));
    assert_eq!(end.usage.unwrap().output, Some(60));
    let sent = host.sent();
    let first: Vec<_> = sent.iter().filter(|e| matches!(e.event, Some(Event::FirstToken(_)))).collect();
    assert_eq!(first.len(), 1);
    let numbers: Vec<_> = sent
        .iter()
        .filter_map(|e| match &e.event {
            Some(Event::Progress(p)) => Some((p.number, p.usage.is_some(), e.at_unix_ms)),
            _ => None,
        })
        .collect();
    assert_eq!(numbers.len() as u64, elapsed / 1_000_000);
    assert!(numbers.iter().enumerate().all(|(n, p)| p.0 == n as u32 + 1 && p.1), "{numbers:?}");
    assert!(numbers.windows(2).all(|w| w[1].2 - w[0].2 >= 1000), "{numbers:?}");
}

#[test]
fn errors_have_no_first_token() {
    let host = FakeHost::with_verdict("tok", STRIP_NOTHING);
    let mut root = root(&host, true);
    let mut stream = root.open_stream();
    host.respond(429, SSE);
    respond(&host, &mut stream, CONTINUOUS, 100);
    let (_, end) = log(&host, &mut root, &mut stream);
    assert_eq!((host.sent().len(), end.ttft_us), (1, 0));
}

#[test]
fn a_clock_that_jumps_back_gives_no_huge_times() {
    let host = FakeHost::with_verdict("tok", STRIP_NOTHING);
    let mut root = root(&host, true);
    let mut stream = root.open_stream();
    host.respond(200, SSE);
    stream.on_request_headers(&host);
    stream.on_response_headers(&host, false);
    for (n, chunk) in CONTINUOUS.chunks(100).enumerate() {
        // Back by a second, and on to where it was.
        let step = if n % 2 == 0 { -1_000_000 } else { 1_000_000 };
        host.now_us.set(host.now_us.get().checked_add_signed(step).unwrap());
        push(&host, &mut stream, chunk, false);
    }
    let (_, end) = log(&host, &mut root, &mut stream);
    assert_eq!((end.duration_us, end.gaps.unwrap().max_us), (0, 0));
}
