//! A meter that must free its memory at any moment keeps every byte of the client.

use proptest::prelude::*;
use proto_openai::{Api, BodyKind, Plan, ResponseMeter, Strip, Tally, limits};

use crate::captures::expectations;
use crate::splits::{any_api, any_strip, chunks, event};
use crate::support::{capture, run, stream};

/// As `run`, but lets go after the chunks that `when` picks. A free meter keeps nothing.
fn run_short<'a>(
    plan: Plan,
    kind: BodyKind,
    chunks: impl IntoIterator<Item = &'a [u8]>,
    mut when: impl FnMut(usize) -> bool,
) -> (Vec<u8>, Tally) {
    let mut meter = ResponseMeter::new(plan, kind);
    let mut client = Vec::new();
    for (number, chunk) in chunks.into_iter().enumerate() {
        if !meter.push(chunk, &mut client).edited {
            client.extend_from_slice(chunk);
        }
        if when(number) {
            let before = client.len();
            meter.let_go(&mut client);
            assert!(plan.strip != Strip::Nothing || client.len() == before, "nothing was held back");
            assert!(meter.kept_bytes() <= 32, "{} bytes are kept", meter.kept_bytes());
        }
    }
    meter.finish(&mut client);
    (client, meter.tally())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn letting_go_never_changes_what_an_unstripped_client_gets(
        api in any_api(),
        strip in any_strip(),
        events in prop::collection::vec(event(), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        when in any::<u32>(),
    ) {
        let body = events.concat();
        for kind in [BodyKind::Sse, BodyKind::Json, BodyKind::Other] {
            let chunks = chunks(body.as_bytes(), &cuts);
            let (client, _) =
                run_short(stream(api, Strip::Nothing), kind, chunks.iter().copied(), |n| when >> (n % 32) & 1 == 1);
            prop_assert_eq!(client, body.as_bytes());
            // Where something is stripped, at most that is missing.
            let (client, tally) =
                run_short(stream(api, strip), kind, chunks.iter().copied(), |n| when >> (n % 32) & 1 == 1);
            let usual = run(stream(api, strip), kind, chunks.iter().copied());
            prop_assert!(client.len() <= body.len().max(usual.client.len()));
            if !tally.truncated && !usual.client.windows(18).any(|w| w == b"system_fingerprint") {
                prop_assert_eq!(client, usual.client);
            }
        }
    }
}

#[test]
fn between_events_nothing_is_lost_by_letting_go() {
    for expected in expectations() {
        let body = capture(&expected.file);
        let plan = stream(expected.api, Strip::Nothing);
        let events: Vec<_> = if expected.kind == BodyKind::Sse {
            body.split_inclusive(|byte| *byte == b'\n').collect()
        } else {
            vec![&body]
        };
        // After each empty line, where no event is under way.
        let (client, tally) = run_short(plan, expected.kind, events.iter().copied(), |n| {
            events[n] == b"\n" || events.len() == 1
        });
        assert_eq!((client, tally), {
            let whole = run(plan, expected.kind, [body.as_slice()]);
            (whole.client, whole.tally)
        });
    }
}

#[test]
fn an_event_that_was_let_go_is_told_and_the_next_one_read() {
    let body = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\n";
    let plan = stream(Api::ChatCompletions, Strip::All);
    let (client, tally) = run_short(plan, BodyKind::Sse, [&body[..30], &body[30..]], |n| n == 0);
    let first = body.windows(2).position(|w| w == b"\n\n").unwrap() + 2;
    assert_eq!(client, body[..first], "the first passes unread, the second is stripped");
    assert!(tally.truncated && tally.events == 2);
    assert_eq!((tally.usage.input, tally.usage.output), (Some(5), Some(6)));
    // Its later lines pass unread too.
    let lines = b"data: {\ndata: \"usage\":{\"prompt_tokens\":1}}\ndata: [DONE]\n\n";
    let (client, tally) = run_short(plan, BodyKind::Sse, [&lines[..8], &lines[8..]], |n| n == 0);
    assert_eq!(client, lines);
    assert!(tally.truncated && !tally.unparsed && !tally.complete && tally.events == 1);
    let whole = b"{\"usage\":{\"prompt_tokens\":1},\"error\":{}}";
    let (client, tally) = run_short(plan, BodyKind::Json, [&whole[..20], &whole[20..]], |n| n == 0);
    assert_eq!(client, whole);
    assert!(tally.truncated && tally.complete && tally.error_event && tally.usage.is_empty());
}

#[test]
fn what_is_kept_is_booked_with_its_room_and_freed_with_the_event() {
    let mut meter = ResponseMeter::new(stream(Api::ChatCompletions, Strip::Nothing), BodyKind::Sse);
    let mut sent = 0;
    while sent < limits::EVENT_BYTES_MAX {
        let chunk = [b'x'; 10_000];
        let chunk = &chunk[..chunk.len().min(limits::EVENT_BYTES_MAX - sent)];
        meter.push(chunk, &mut Vec::new());
        sent += chunk.len();
        assert!((sent..=limits::EVENT_BYTES_MAX).contains(&meter.kept_bytes()), "{}", meter.kept_bytes());
    }
    meter.push(b"\n\n", &mut Vec::new());
    assert!(meter.kept_bytes() <= limits::ROOM_BYTES_MAX);
    meter.push(&[b'x'; 100_000], &mut Vec::new());
    meter.push(b"\n\n", &mut Vec::new());
    assert!(meter.kept_bytes() <= limits::ROOM_BYTES_MAX, "{}", meter.kept_bytes());
}
