//! Hostile and random streams: the cuts never matter, and nothing panics.

use proptest::prelude::*;
use proto_openai::{Api, BodyKind, Plan, Strip, UsageSource, limits};

use crate::support::{STRIPS, run, stream};

fn line_end() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("\n"), Just("\r"), Just("\r\n")]
}

/// Pieces that events are made of, sensible and not.
fn payload() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("{\"choices\":[{\"delta\":{\"content\":\"hé\\n\"},\"finish_reason\":null}]}".to_owned()),
        Just("{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}".to_owned()),
        Just("{\"choices\":[{\"text\":\"x\",\"finish_reason\":\"abort\"}],\"usage\":{\"prompt_tokens\":7}}".to_owned()),
        Just("{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3},\"system_fingerprint\":\"f\"}".to_owned()),
        Just("{\"error\":{\"code\":500}}".to_owned()),
        Just("{\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3}}}".to_owned()),
        Just("{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"x\"},\"usage\":{\"output_tokens\":4}}".to_owned()),
        Just("{\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3}}}".to_owned()),
        Just("{\"usage\":{\"prompt_tokens\":-5,\"completion_tokens\":1e9,\"prompt_tokens_details\":[]}}".to_owned()),
        Just("{\"id\":\"a\",\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}".to_owned()),
        (0..200u8).prop_map(|index| format!("{{\"choices\":[{{\"index\":{index},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{index}}}}}")),
        Just("{\"usage\":".to_owned()),
        Just("[DONE]".to_owned()),
        "[ -~]{0,20}",
    ]
}

prop_compose! {
    pub(crate) fn event()(
        prefix in prop_oneof![4 => Just("data: "), 1 => Just("data:"), 1 => Just(": "), 1 => Just("event: "), 1 => Just("\u{feff}data: ")],
        payload in payload(),
        first in line_end(),
        second in prop_oneof![6 => Just("\n"), 1 => Just("\r"), 1 => Just("\r\n"), 1 => Just("")],
    ) -> String {
        format!("{prefix}{payload}{first}{second}")
    }
}

pub(crate) fn any_api() -> impl Strategy<Value = Api> {
    proptest::sample::select(Api::ALL.to_vec())
}

pub(crate) fn any_strip() -> impl Strategy<Value = Strip> {
    proptest::sample::select(STRIPS.to_vec())
}

pub(crate) fn chunks<'a>(body: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
    at.push(body.len());
    at.sort_unstable();
    let mut start = 0;
    at.into_iter().map(|end| &body[std::mem::replace(&mut start, end)..end]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_split_of_any_stream_gives_the_same(
        api in any_api(),
        strip in any_strip(),
        events in prop::collection::vec(event(), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let body = events.concat();
        for kind in [BodyKind::Sse, BodyKind::Json, BodyKind::Other] {
            let plan = stream(api, strip);
            let whole = run(plan, kind, [body.as_bytes()]);
            prop_assert_eq!(&run(plan, kind, chunks(body.as_bytes(), &cuts)), &whole);
            prop_assert_eq!(&run(plan, kind, body.as_bytes().chunks(1)).client, &whole.client);
            if strip == Strip::Nothing {
                prop_assert_eq!(whole.client, body.as_bytes());
            }
        }
    }

    #[test]
    fn hostile_bytes_never_panic_and_never_depend_on_the_split(
        strip in any_strip(),
        body in prop::collection::vec(
            prop_oneof![any::<u8>(), proptest::sample::select(b"\r\n\"\\{}[]:,data usage".to_vec())], 0..300),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        for kind in [BodyKind::Sse, BodyKind::Json] {
            let plan = stream(Api::ChatCompletions, strip);
            let whole = run(plan, kind, [body.as_slice()]);
            prop_assert_eq!(run(plan, kind, chunks(&body, &cuts)), whole);
        }
    }

    #[test]
    fn a_json_body_is_read_as_serde_json_reads_it(
        content in ".{0,40}",
        prompt in 0..=limits::COUNT_MAX,
        completion in prop::option::of(0..=limits::COUNT_MAX),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let decoy = serde_json::json!({"usage": {"prompt_tokens": 1}, "error": {"a": 1}, "finish_reason": "abort"});
        let body = serde_json::json!({
            "a": decoy, "choices": [{"message": {"content": content, "tool_calls": [decoy, decoy.to_string()]},
                                     "finish_reason": "stop"}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "x": [{"prompt_tokens": 2}]},
            "z": [decoy], "error": null,
        });
        let text = if prompt % 2 == 0 { serde_json::to_string(&body) } else { serde_json::to_string_pretty(&body) };
        let text = text.unwrap();
        let plan = Plan { api: Api::ChatCompletions, stream: false, strip: Strip::All };
        let outcome = run(plan, BodyKind::Json, chunks(text.as_bytes(), &cuts));
        prop_assert_eq!(outcome.tally.usage.input, Some(prompt));
        prop_assert_eq!(outcome.tally.usage.output, completion);
        prop_assert_eq!(outcome.tally.source, UsageSource::Final);
        prop_assert!(outcome.tally.complete && !outcome.tally.unparsed);
        prop_assert!(!outcome.tally.error_event && !outcome.tally.engine_abort);
    }
}

#[test]
fn an_event_over_the_bound_passes_raw_whatever_the_cuts() {
    for size in [limits::EVENT_BYTES_MAX, limits::EVENT_BYTES_MAX + 1] {
        let frame = "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":5},\"b\":\"\"}\n\n";
        let long = frame.replace("\"b\":\"\"", &format!("\"b\":\"{}\"", "x".repeat(size - frame.len())));
        assert_eq!(long.len(), size);
        let body = format!("{long}{frame}");
        let plan = stream(Api::ChatCompletions, Strip::All);
        let whole = run(plan, BodyKind::Sse, [body.as_bytes()]);
        let over = size > limits::EVENT_BYTES_MAX;
        assert_eq!(whole.tally.truncated, over);
        assert_eq!(whole.tally.events, 2);
        assert_eq!(whole.client.starts_with(long.as_bytes()), over);
        for length in [1000, size / 2, size - 1, size, size + 1] {
            assert!(run(plan, BodyKind::Sse, body.as_bytes().chunks(length)) == whole, "{size} by {length}");
        }
    }
}

#[test]
fn a_usage_object_over_the_bound_is_given_up() {
    let filler = "x".repeat(limits::USAGE_BYTES_MAX);
    let body = format!("{{\"usage\":{{\"prompt_tokens\":5,\"b\":\"{filler}\"}}}}");
    let plan = stream(Api::ChatCompletions, Strip::Nothing);
    let whole = run(plan, BodyKind::Json, [body.as_bytes()]);
    assert!(whole.tally.truncated && whole.tally.complete);
    assert_eq!(whole.tally.source, UsageSource::None);
    assert!(run(plan, BodyKind::Json, body.as_bytes().chunks(777)) == whole);
}
