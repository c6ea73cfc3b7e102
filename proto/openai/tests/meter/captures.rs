//! Every capture beside its expectation, whole and cut at every byte.

use proto_openai::{Api, BodyKind, Plan, Strip, Tally, Usage, UsageSource};
use serde_json::Value;

use crate::support::{STRIPS, capture, captures_dir, run, stream};

pub(crate) struct Expected {
    pub(crate) file: String,
    pub(crate) api: Api,
    pub(crate) kind: BodyKind,
    pub(crate) tally: Tally,
}

pub(crate) fn expectations() -> Vec<Expected> {
    let mut files: Vec<_> = std::fs::read_dir(captures_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".sse") || name.ends_with(".http"))
        .collect();
    files.sort();
    files.into_iter().map(expectation).collect()
}

fn expectation(file: String) -> Expected {
    let beside = file.rsplit_once('.').unwrap().0.to_owned() + ".expected.json";
    let text = std::fs::read(captures_dir().join(&beside)).unwrap_or_else(|_| panic!("{beside} is missing"));
    let json: Value = serde_json::from_slice(&text).unwrap();
    let count = |name: &str| json["usage"][name].as_u64();
    let flag = |name: &str| json[name].as_bool().unwrap();
    let tally = Tally {
        usage: Usage {
            input: count("input"),
            cached: count("cached"),
            cache_write: count("cache_write"),
            output: count("output"),
            reasoning: count("reasoning"),
        },
        source: [UsageSource::None, UsageSource::Estimated, UsageSource::Cumulative, UsageSource::Final]
            .into_iter()
            .find(|source| json["source"] == source.as_label())
            .unwrap(),
        complete: flag("complete"),
        error_event: flag("error_event"),
        engine_abort: flag("engine_abort"),
        unparsed: false,
        truncated: false,
        events: json["events"].as_u64().unwrap(),
    };
    let api = Api::from_label(json["api"].as_str().unwrap()).unwrap();
    let kind = if json["body"] == "sse" { BodyKind::Sse } else { BodyKind::Json };
    Expected { file, api, kind, tally }
}

#[test]
fn every_capture_gives_its_expected_tally_under_every_plan() {
    let all = expectations();
    assert_eq!(all.len(), 40);
    for Expected { file, api, kind, tally } in all {
        let body = capture(&file);
        for strip in STRIPS {
            let plan = Plan { api, stream: kind == BodyKind::Sse, strip };
            let outcome = run(plan, kind, [body.as_slice()]);
            assert_eq!(outcome.tally, tally, "{file} {strip:?}");
            assert_eq!(outcome.data_events, tally.events, "{file} {strip:?}");
            if !(plan.stream && api.takes_stream_options()) {
                assert!(outcome.client == body, "{file} {strip:?} must pass untouched");
            }
        }
    }
}

#[test]
fn a_cut_at_any_byte_changes_nothing() {
    for Expected { file, api, kind, .. } in expectations() {
        let body = capture(&file);
        // The two extremes; what lies between is in the random splits below.
        for strip in [Strip::Nothing, Strip::All] {
            let plan = Plan { api, stream: true, strip };
            let whole = run(plan, kind, [body.as_slice()]);
            for at in 0..=body.len() {
                let (left, right) = body.split_at(at);
                assert!(run(plan, kind, [left, right]) == whole, "{file} {strip:?} cut at {at}");
            }
            assert!(run(plan, kind, body.chunks(1)) == whole, "{file} {strip:?} byte by byte");
        }
    }
}

#[test]
fn seeded_random_splits_change_nothing() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    for Expected { file, api, kind, .. } in expectations() {
        let body = capture(&file);
        for strip in STRIPS {
            let plan = Plan { api, stream: true, strip };
            let whole = run(plan, kind, [body.as_slice()]);
            for _ in 0..20 {
                let mut chunks = Vec::new();
                let mut rest = body.as_slice();
                while !rest.is_empty() {
                    let (chunk, after) = rest.split_at((next(60) + next(60) * next(4)).min(rest.len()));
                    chunks.push(chunk);
                    rest = after;
                }
                assert!(run(plan, kind, chunks.iter().copied()) == whole, "{file} {strip:?} in {chunks:?}");
            }
        }
    }
}

#[test]
fn a_stream_cut_off_early_is_incomplete_and_keeps_what_is_known() {
    let body = capture("chat-stream-usage-continuous.sse");
    let end = body.windows(2).enumerate().filter(|(_, pair)| *pair == b"\n\n").nth(3).unwrap().0 + 2;
    for strip in STRIPS {
        let tally = run(stream(Api::ChatCompletions, strip), BodyKind::Sse, [&body[..end]]).tally;
        assert_eq!(tally.source, UsageSource::Cumulative);
        assert_eq!((tally.usage.input, tally.usage.output, tally.usage.cached), (Some(38), Some(3), None));
        assert!(!tally.complete);
    }
    let body = capture("messages-stream.sse");
    let ends: Vec<_> =
        body.windows(2).enumerate().filter(|(_, pair)| *pair == b"\n\n").map(|(at, _)| at + 2).collect();
    let at = |events: usize| {
        let plan = stream(Api::Messages, Strip::Nothing);
        let tally = run(plan, BodyKind::Sse, [&body[..ends[events - 1]]]).tally;
        (tally.source, tally.usage.input, tally.usage.output, tally.complete)
    };
    assert_eq!(at(1), (UsageSource::Cumulative, Some(30), Some(0), false));
    assert_eq!(at(2), (UsageSource::Cumulative, Some(30), Some(0), false));
    assert_eq!(at(5), (UsageSource::Estimated, Some(30), Some(3), false));
    assert_eq!(at(9), (UsageSource::Final, Some(30), Some(6), false));
    assert_eq!(at(10), (UsageSource::Final, Some(30), Some(6), true));
}
