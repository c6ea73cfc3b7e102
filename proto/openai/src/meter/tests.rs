use super::*;
use crate::api::Api;
use crate::plan::Strip;

fn tally(api: Api, kind: BodyKind, body: &str) -> Tally {
    let mut meter = ResponseMeter::new(Plan { api, stream: true, strip: Strip::Nothing }, kind);
    meter.push(body.as_bytes(), &mut Vec::new());
    meter.finish(&mut Vec::new());
    meter.tally()
}

fn chat(events: &[&str]) -> Tally {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    tally(Api::ChatCompletions, BodyKind::Sse, &body)
}

#[test]
fn content_types_are_told_by_their_essence() {
    assert_eq!(BodyKind::of("text/event-stream; charset=utf-8"), BodyKind::Sse);
    assert_eq!(BodyKind::of("Text/Event-Stream"), BodyKind::Sse);
    assert_eq!(BodyKind::of("application/json"), BodyKind::Json);
    for other in ["", "text/html", "application/jsonl", "text/event-streamx"] {
        assert_eq!(BodyKind::of(other), BodyKind::Other);
    }
    assert!(tally(Api::ChatCompletions, BodyKind::Other, "x").unparsed);
    assert!(!tally(Api::ChatCompletions, BodyKind::Other, "").unparsed);
}

#[test]
fn what_is_no_count_is_unknown_and_told() {
    let body = |count: &str| {
        format!(
            r#"{{"choices":[],"usage":{{"prompt_tokens":{count},"completion_tokens":{count},"input_tokens":{count},"output_tokens":{count},"prompt_tokens_details":{{"cached_tokens":{count}}}}}}}"#
        )
    };
    let most = crate::limits::COUNT_MAX;
    for count in [
        "99999999999999999999999",
        &(most + 1).to_string(),
        "-3",
        "10.0",
        "1e3",
        "\"7\"",
        "[7]",
        "{}",
        "true",
    ] {
        let body = body(count);
        for read in [
            chat(&[&body]),
            tally(Api::ChatCompletions, BodyKind::Json, &body),
            tally(Api::Messages, BodyKind::Json, &body),
        ] {
            let wanted = (Usage::default(), UsageSource::None, true);
            assert_eq!((read.usage, read.source, read.unparsed), wanted, "{count}");
        }
    }
    let read = chat(&[&body(&most.to_string())]);
    assert_eq!((read.usage.total(), read.source), (Some(2 * most), UsageSource::Final));
    assert!(!read.unparsed);
    for odd in [
        r#"{"choices":[],"usage":[1]}"#,
        r#"{"choices":[],"usage":"x"}"#,
        r#"{"choices":[],"usage":null}"#,
        r#"{"choices":[],"usage":{}}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":null,"completion_tokens":null,"x":-1}}"#,
    ] {
        let read = chat(&[odd]);
        let wanted = (Usage::default(), UsageSource::None, false);
        assert_eq!((read.usage, read.source, read.unparsed), wanted, "{odd}");
    }
}

/// Whatever the last usage lacks, what was counted before it isn't dropped for it.
#[test]
fn a_last_usage_without_counts_takes_nothing_away() {
    for usage in
        ["{}", "[]", r#"{"completion_tokens":7.0}"#, r#"{"prompt_tokens":-1,"completion_tokens":-7}"#]
    {
        let last = format!(r#"{{"choices":[],"usage":{usage}}}"#);
        let content = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
        let read = chat(&[content, content, &last, "[DONE]"]);
        assert_eq!((read.usage.output, read.source), (Some(2), UsageSource::Estimated), "{usage}");
        let running = r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":4}}"#;
        let read = chat(&[running, &last, "[DONE]"]);
        let wanted = (Some(5), Some(4), UsageSource::Cumulative);
        assert_eq!((read.usage.input, read.usage.output, read.source), wanted, "{usage}");
        let stream = format!(
            "data: {{\"type\":\"response.output_text.delta\"}}\n\ndata: {{\"type\":\"response.completed\",\"response\":{{\"usage\":{usage}}}}}\n\n"
        );
        let read = tally(Api::Responses, BodyKind::Sse, &stream);
        assert_eq!((read.usage.output, read.source), (Some(1), UsageSource::Estimated), "{usage}");
        let usage = usage.replace("prompt", "input").replace("completion", "output");
        let stream = format!(
            "data: {{\"type\":\"content_block_delta\"}}\n\ndata: {{\"type\":\"message_delta\",\"usage\":{usage}}}\n\ndata: {{\"type\":\"message_stop\"}}\n\n"
        );
        let read = tally(Api::Messages, BodyKind::Sse, &stream);
        assert_eq!((read.usage.output, read.source), (Some(1), UsageSource::Estimated), "{usage}");
    }
    let stream = "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{}}}\n\n";
    assert_eq!(tally(Api::Responses, BodyKind::Sse, stream).source, UsageSource::None);
    // The count that a message starts with is no last one.
    let stream = concat!(
        "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n",
        "data: {\"type\":\"content_block_delta\"}\n\ndata: {\"type\":\"content_block_delta\"}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"x\"},\"usage\":{}}\n\n",
        "data: {\"type\":\"message_stop\"}\n\n",
    );
    let read = tally(Api::Messages, BodyKind::Sse, stream);
    let wanted = (Some(9), Some(2), UsageSource::Estimated);
    assert_eq!((read.usage.input, read.usage.output, read.source), wanted);
    let input_only = r#"{"choices":[],"usage":{"prompt_tokens":5}}"#;
    let read = chat(&[r#"{"choices":[{"delta":{"content":"a"}}]}"#, input_only]);
    let wanted = (Some(5), Some(1), UsageSource::Estimated);
    assert_eq!((read.usage.input, read.usage.output, read.source), wanted);
}

#[test]
fn running_counts_merge_by_maximum_and_the_last_ones_are_final() {
    let running = |p: u32, c: u32| {
        format!(r#"{{"choices":[{{"index":0}}],"usage":{{"prompt_tokens":{p},"completion_tokens":{c}}}}}"#)
    };
    let read = chat(&[&running(5, 9), &running(5, 7)]);
    assert_eq!(
        (read.usage.input, read.usage.output, read.source),
        (Some(5), Some(9), UsageSource::Cumulative)
    );
    let last = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":16}}"#;
    let read = chat(&[&running(5, 9), last]);
    assert_eq!((read.usage.output, read.source), (Some(16), UsageSource::Final));
}

/// One event of the choice `index`, as vLLM writes it with running usage.
fn running(index: u64, input: u64, output: u64, finish: &str) -> String {
    format!(
        r#"{{"choices":[{{"index":{index},"delta":{{"content":"a"}},"finish_reason":{finish}}}],"usage":{{"prompt_tokens":{input},"completion_tokens":{output}}}}}"#
    )
}

#[test]
fn running_counts_are_of_one_choice_and_add_up() {
    let mut events = Vec::new();
    for output in 1..=25 {
        events.extend((0..4).map(|index| running(index, 10 + index / 2, output, "null")));
    }
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    for (api, input) in [(Api::ChatCompletions, 11), (Api::Completions, 21)] {
        let read = tally(api, BodyKind::Sse, &body);
        let wanted = (Some(input), Some(100), UsageSource::Cumulative);
        assert_eq!((read.usage.input, read.usage.output, read.source), wanted);
        // The final usage is a sum already.
        let last = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":99}}"#;
        let read = tally(api, BodyKind::Sse, &format!("{body}{last}\n\n"));
        let wanted = (Some(9), Some(99), UsageSource::Final);
        assert_eq!((read.usage.input, read.usage.output, read.source), wanted);
    }
    // Counts of several choices at once are of all of them.
    let both = r#"{"choices":[{"index":0},{"index":1}],"usage":{"prompt_tokens":5,"completion_tokens":9}}"#;
    assert_eq!(chat(&[both, both]).usage.output, Some(9));
    let odd = running(0, 5, 9, "null").replace("\"index\":0", "\"index\":-1");
    assert_eq!(chat(&[&odd, &odd]).usage.output, Some(9));
}

#[test]
fn counts_on_the_last_event_of_each_choice_are_final_once_the_stream_is_over() {
    let source = |events: &[&str]| chat(events).source;
    let content = r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#;
    let stop = |index| running(index, 5, 7, "\"stop\"");
    let read = chat(&[content, content, &stop(0), "[DONE]"]);
    assert_eq!((read.usage.output, read.source), (Some(7), UsageSource::Final));
    assert_eq!(source(&[content, &stop(0)]), UsageSource::Cumulative, "not over");
    assert_eq!(source(&[&running(0, 5, 6, "null"), "[DONE]"]), UsageSource::Cumulative, "never finished");
    let second = running(1, 5, 6, "null");
    assert_eq!(source(&[&second, &stop(0), "[DONE]"]), UsageSource::Cumulative, "one never finished");
    let read = chat(&[&second, &stop(0), &stop(1), "[DONE]"]);
    assert_eq!((read.usage.output, read.source), (Some(14), UsageSource::Final));
    let error = r#"{"error":{"code":500}}"#;
    assert_eq!(source(&[&stop(0), error, "[DONE]"]), UsageSource::Cumulative, "the engine died");
}

#[test]
fn a_newer_anthropic_usage_replaces_the_input_group() {
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":204,"output_tokens":1}}}"#;
    let split = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":12,"cache_read_input_tokens":150,"output_tokens":60}}"#;
    let bare = r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":60}}"#;
    let read = |events: &[&str]| {
        let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        tally(Api::Messages, BodyKind::Sse, &body)
    };
    let tally = read(&[start, split]);
    let wanted = Usage { input: Some(162), cached: Some(150), output: Some(60), ..Usage::default() };
    assert_eq!((tally.usage, tally.source), (wanted, UsageSource::Final));
    let resplit = split.replace("\"cache_read_input_tokens\":150", "\"cache_creation_input_tokens\":20");
    let tally = read(&[start, split, &resplit]);
    let wanted = Usage { input: Some(32), cache_write: Some(20), output: Some(60), ..Usage::default() };
    assert_eq!(tally.usage, wanted, "the older cache counts are gone, not kept");
    let tally = read(&[start, bare]);
    assert_eq!(
        (tally.usage.input, tally.usage.output, tally.source),
        (Some(204), Some(60), UsageSource::Cumulative)
    );
    let tally = read(&[start, bare, r#"{"type":"message_stop"}"#]);
    assert_eq!((tally.source, tally.complete), (UsageSource::Final, true));
    let tally = read(&[start, r#"{"type":"content_block_delta"}"#, r#"{"type":"content_block_delta"}"#]);
    assert_eq!((tally.usage.output, tally.source), (Some(2), UsageSource::Estimated));
    let tally = read(&[start, r#"{"type":"error","error":{"type":"overloaded_error"}}"#]);
    assert!(tally.error_event && !tally.complete);
}

#[test]
fn every_end_of_a_response_stream_carries_usage() {
    for (kind, failed) in [("completed", false), ("incomplete", false), ("failed", true)] {
        let event = format!(
            "event: response.{kind}\ndata: {{\"type\":\"response.{kind}\",\"response\":{{\"x\":{{\"usage\":1}},\"usage\":{{\"input_tokens\":3,\"output_tokens\":4,\"output_tokens_details\":{{\"reasoning_tokens\":2}}}}}}}}\n\n"
        );
        for body in [event.clone(), event.replace(&format!("event: response.{kind}\n"), "")] {
            let tally = tally(Api::Responses, BodyKind::Sse, &body);
            let wanted = Usage { input: Some(3), output: Some(4), reasoning: Some(2), ..Usage::default() };
            assert_eq!((tally.usage, tally.source), (wanted, UsageSource::Final));
            assert_eq!((tally.complete, tally.error_event, tally.unparsed), (true, failed, false));
        }
    }
    let delta =
        "event: response.output_text.delta\ndata: {}\n\ndata: {\"type\":\"response.refusal.delta\"}\n\n";
    let tally = tally(Api::Responses, BodyKind::Sse, delta);
    assert_eq!((tally.usage.output, tally.source), (Some(2), UsageSource::Estimated));
}

#[test]
fn inputs_without_outputs_are_read_from_either_count() {
    let read = |api, body: &str| tally(api, BodyKind::Json, body).usage;
    let input = |input| Usage { input: Some(input), ..Usage::default() };
    assert_eq!(read(Api::Embeddings, r#"{"usage":{"prompt_tokens":5,"total_tokens":5}}"#), input(5));
    assert_eq!(read(Api::Rerank, r#"{"results":[],"usage":{"total_tokens":6}}"#), input(6));
    let zero = r#"{"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0,"prompt_tokens_details":null}}"#;
    assert_eq!(read(Api::Score, zero), Usage { output: Some(0), ..input(7) });
}

#[test]
fn errors_aborts_and_damage_are_flagged() {
    let read = chat(&[r#"{"choices":[{"delta":{},"finish_reason" : "abort"}]}"#]);
    assert!(read.engine_abort && !read.error_event && !read.complete);
    let read =
        chat(&[r#"{"choices":[{"delta":{},"finish_reason":"error"}],"error":{"code":502}}"#, "[DONE]"]);
    assert!(read.error_event && read.complete);
    let fooled = r#"{"choices":[{"delta":{"content":"{\"error\":{}, \"usage\":{}, \"finish_reason\":\"abort\"}"},"finish_reason":null}]}"#;
    let read = chat(&[fooled]);
    assert!(!read.error_event && !read.engine_abort && !read.unparsed);
    assert_eq!((read.usage.output, read.source), (Some(1), UsageSource::Estimated));
    assert!(chat(&[r#"{"usage":{"#]).unparsed);
    assert!(tally(Api::ChatCompletions, BodyKind::Sse, "\u{1f}\u{8b}binary").unparsed);
    assert!(!tally(Api::ChatCompletions, BodyKind::Sse, ": keep-alive\n\n").unparsed);
    for (body, complete, unparsed) in [
        ("{}", true, false),
        ("[1]", true, false),
        (" {\"a\":\"}\"} \n", true, false),
        ("{\"a\":1", false, false),
        ("{} {}", true, true),
        ("}", false, true),
        ("<html>", false, true),
        ("{\"usage\":{]}", true, true),
    ] {
        let read = tally(Api::ChatCompletions, BodyKind::Json, body);
        assert_eq!((read.complete, read.unparsed), (complete, unparsed), "{body}");
    }
    let abort = r#"{"choices":[{"finish_reason":null},{"finish_reason":"abort"}]}"#;
    assert!(tally(Api::ChatCompletions, BodyKind::Json, abort).engine_abort);
    let decoy = r#"{"choices":[{"message":{"finish_reason":"abort"},"x":"finish_reason","y":"abort"}],"a":[{"finish_reason":"abort"}]}"#;
    assert!(!tally(Api::ChatCompletions, BodyKind::Json, decoy).engine_abort);
}
