//! What a client sees after stripping is what a direct call would have shown it.

use proto_openai::{Api, BodyKind, Strip};

use crate::support::{capture, run, stream};

/// What differs between two calls with the same prompt: ids and times.
fn normal(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let Some((head, rest)) = line.split_once("\",\"object\"") else {
            lines.push(line.to_owned());
            continue;
        };
        assert!(head.starts_with("data: {\"id\":\""), "{head}");
        let (object, rest) = rest.split_once("\"created\":").unwrap();
        let (_, rest) = rest.split_once(',').unwrap();
        lines.push(format!("data: {{\"id\":\"\",\"object\"{object}\"created\":0,{rest}"));
    }
    lines.join("\n")
}

fn stripped(api: Api, file: &str, strip: Strip) -> String {
    let body = capture(file);
    normal(&run(stream(api, strip), BodyKind::Sse, [body.as_slice()]).client)
}

fn direct(file: &str) -> String {
    normal(&capture(file))
}

#[test]
fn without_usage_the_transcript_is_a_direct_calls_byte_for_byte() {
    let chat = direct("chat-stream.sse");
    assert!(chat.contains("system_fingerprint") && !chat.contains("usage"));
    assert_eq!(stripped(Api::ChatCompletions, "chat-stream-usage.sse", Strip::All), chat);
    assert_eq!(stripped(Api::ChatCompletions, "chat-stream-usage-continuous.sse", Strip::All), chat);
    assert_eq!(stripped(Api::ChatCompletions, "chat-stream.sse", Strip::All), chat);
    let completion = direct("completions-stream.sse");
    assert_eq!(stripped(Api::Completions, "completions-stream-usage.sse", Strip::All), completion);
    assert_eq!(stripped(Api::Completions, "completions-stream.sse", Strip::All), completion);
}

#[test]
fn with_the_final_usage_only_the_running_one_goes() {
    let wanted = direct("chat-stream-usage.sse");
    assert_eq!(stripped(Api::ChatCompletions, "chat-stream-usage-continuous.sse", Strip::Continuous), wanted);
    assert_eq!(stripped(Api::ChatCompletions, "chat-stream-usage.sse", Strip::Continuous), wanted);
}

#[test]
fn forced_usage_goes_and_the_fingerprint_comes_back() {
    for (api, file, events) in [
        (Api::ChatCompletions, "chat-stream-force-include-usage.sse", 6),
        (Api::Completions, "completions-stream-force-include-usage.sse", 5),
    ] {
        let text = stripped(api, file, Strip::All);
        assert!(!text.contains("usage") && !text.contains("metrics"), "{text}");
        assert_eq!(text.matches("data: {").count(), events - 1);
        let finishing =
            text.split("\n\n").find(|event| event.contains("\"finish_reason\":\"length\"")).unwrap();
        assert!(finishing.ends_with("}],\"system_fingerprint\":\"vllm-0.32.0-260fbee7\"}"), "{finishing}");
        assert!(text.ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn choices_that_finish_together_all_get_the_fingerprint() {
    for (api, file) in [
        (Api::ChatCompletions, "chat-stream-n2-usage.sse"),
        (Api::Completions, "completions-stream-batch2-usage.sse"),
    ] {
        let text = stripped(api, file, Strip::All);
        assert!(!text.contains("usage"));
        let finishing: Vec<_> =
            text.split("\n\n").filter(|event| event.contains("\"finish_reason\":\"length\"")).collect();
        assert_eq!(finishing.len(), 2);
        for event in finishing {
            assert!(event.ends_with("}],\"system_fingerprint\":\"vllm-0.32.0-260fbee7\"}"), "{event}");
        }
    }
}

fn run_text(strip: Strip, body: &str) -> String {
    String::from_utf8(run(stream(Api::ChatCompletions, strip), BodyKind::Sse, [body.as_bytes()]).client)
        .unwrap()
}

const FINISH: &str = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
const FINISH_MARKED: &str =
    "data: {\"choices\":[{\"finish_reason\":\"stop\"}],\"system_fingerprint\":\"f\"}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1},\"system_fingerprint\":\"f\"}\n\n";
const CONTENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[test]
fn the_wait_ends_with_any_other_event_and_with_the_stream() {
    let all = |body: &str| run_text(Strip::All, body);
    assert_eq!(all(&format!("{FINISH}{USAGE}{DONE}")), format!("{FINISH_MARKED}{DONE}"));
    assert_eq!(all(&format!("{FINISH}: ka\n\n{USAGE}{DONE}")), format!("{FINISH_MARKED}: ka\n\n{DONE}"));
    assert_eq!(all(&format!("{FINISH}{FINISH}{USAGE}")), format!("{FINISH_MARKED}{FINISH_MARKED}"));
    assert_eq!(all(&format!("{FINISH}{CONTENT}{USAGE}{DONE}")), format!("{FINISH}{CONTENT}{DONE}"));
    assert_eq!(all(&format!("{FINISH}{DONE}")), format!("{FINISH}{DONE}"));
    assert_eq!(all(FINISH), FINISH);
    assert_eq!(all(&format!("{FINISH_MARKED}{USAGE}")), FINISH_MARKED);
    let many = FINISH.repeat(200);
    let out = all(&format!("{many}{USAGE}"));
    assert_eq!(out.matches("finish_reason").count(), 200, "a bounded wait loses nothing");
    assert!(out.starts_with(FINISH) && out.ends_with(FINISH_MARKED));
}

#[test]
fn nothing_waits_unless_all_usage_is_stripped() {
    for strip in [Strip::Nothing, Strip::Continuous] {
        let mut meter = proto_openai::ResponseMeter::new(stream(Api::ChatCompletions, strip), BodyKind::Sse);
        let mut out = Vec::new();
        assert!(!meter.push(FINISH.as_bytes(), &mut out).edited);
        assert!(out.is_empty());
    }
}

#[test]
fn the_member_goes_with_one_comma_wherever_it_stands() {
    let c = "\"choices\":[{}]";
    for (before, after) in [
        (format!("{{\"usage\":{{\"a\":[1,{{}}]}},{c}}}"), format!("{{{c}}}")),
        (format!("{{ \"usage\": {{}} , {c} }}"), format!("{{ {c} }}")),
        (format!("{{{c},\"usage\":{{}}}}"), format!("{{{c}}}")),
        (format!("{{{c}, \"usage\": null}}"), format!("{{{c}}}")),
        (format!("{{{c},\"usage\":{{}},\"b\":\"usage\"}}"), format!("{{{c},\"b\":\"usage\"}}")),
        ("{\"usage\":{},\"d\":1}".into(), "{\"d\":1}".into()),
        (format!("{{{c},\"b\":{{\"usage\":{{}}}}}}"), format!("{{{c},\"b\":{{\"usage\":{{}}}}}}")),
    ] {
        let wrap = |json: &str| format!("data: {json}\n\n");
        assert_eq!(run_text(Strip::All, &wrap(&before)), wrap(&after));
    }
}

#[test]
fn line_ends_of_every_kind_and_data_in_several_lines() {
    let body =
        "\u{feff}data:{\"choices\":[{}],\r\ndata: \"usage\":{\r\ndata:},\"b\":1}\r\n\r\ndata: [DONE]\r\r";
    let wanted = "\u{feff}data:{\"choices\":[{}],\"b\":1}\r\n\r\ndata: [DONE]\r\r";
    assert_eq!(run_text(Strip::All, body), wanted);
    let dropped = format!("{}{}", USAGE.replace('\n', "\r\n"), DONE.replace('\n', "\r\n"));
    assert_eq!(run_text(Strip::All, &dropped), DONE.replace('\n', "\r\n"), "the last LF goes with its event");
}

#[test]
fn empty_choices_without_counts_stay() {
    let filters = "data: {\"choices\":[],\"prompt_filter_results\":[],\"usage\":null}\n\n";
    assert_eq!(run_text(Strip::All, filters), "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n");
    assert_eq!(run_text(Strip::Continuous, filters), filters);
}

#[test]
fn of_an_event_that_is_usage_only_nothing_is_left() {
    let usage = "\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}";
    let lead = "\"id\":\"a\",\"object\":\"o\",\"created\":1,\"model\":\"m\",\"service_tier\":\"x\"";
    for members in [
        usage.to_owned(),
        format!("{lead},{usage}"),
        format!("{usage},{lead},\"choices\":null,\"metrics\":null"),
        format!("{lead},\"choices\":[],{usage},\"metrics\":{{\"a\":1}}"),
        format!("{lead},\"usage\":null"),
    ] {
        let body = format!("{CONTENT}data: {{{members}}}\n\n{DONE}");
        assert_eq!(run_text(Strip::All, &body), format!("{CONTENT}{DONE}"), "{members}");
        assert_eq!(run_text(Strip::Continuous, &body), body);
        assert_eq!(run_text(Strip::Nothing, &body), body);
    }
    // What says something else keeps that.
    let body = format!("data: {{{lead},{usage},\"error\":{{\"code\":500}}}}\n\n");
    assert_eq!(run_text(Strip::All, &body), format!("data: {{{lead},\"error\":{{\"code\":500}}}}\n\n"));
    let fingerprint = format!("data: {{{usage},\"system_fingerprint\":\"f\"}}\n\n");
    assert_eq!(
        run_text(Strip::All, &format!("{FINISH}{fingerprint}{DONE}")),
        format!("{FINISH_MARKED}{DONE}")
    );
}
