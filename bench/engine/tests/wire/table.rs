//! What may differ from the captures, and why; what is not simulated; and the requests that were made.

use super::node::Free;

/// Paths that end so may differ, in every capture.
const EVERYWHERE: [(&str, Free, &str); 27] = [
    (".id", Free::Value, "drawn"),
    (".item_id", Free::Value, "drawn"),
    (".request_id", Free::Value, "drawn"),
    (".created", Free::Value, "time"),
    (".created_at", Free::Value, "time"),
    (".content", Free::Value, "text"),
    (".text", Free::Value, "text"),
    (".delta.text", Free::Value, "text"),
    (".delta", Free::Value, "text, where it is a string"),
    (".arguments", Free::Value, "text"),
    (".partial_json", Free::Value, "text"),
    (".token_ids", Free::Value, "tokens"),
    (".token_ids[]", Free::Value, "tokens"),
    (".prompt_token_ids", Free::Value, "tokens"),
    (".prompt_token_ids[]", Free::Value, "tokens"),
    (".prompt_tokens", Free::Value, "another tokenizer; the sums are checked"),
    (".total_tokens", Free::Value, "another tokenizer; the sums are checked"),
    (".input_tokens", Free::Value, "another tokenizer; the sums are checked"),
    (".original_input_tokens", Free::Value, "another tokenizer"),
    (".sequence_number", Free::Value, "their chunks hold more than one token; counted apart"),
    ("_ms", Free::Value, "time"),
    (".tokens_per_second", Free::Value, "time"),
    (".logprobs.content", Free::Value, "one entry for each token of a chunk, and theirs hold several"),
    (".logprobs.content[].token", Free::Value, "text"),
    (".logprob", Free::Value, "not simulated; always the same"),
    (".bytes", Free::Value, "text"),
    (".bytes[]", Free::Value, "text"),
];

/// Paths of one capture that may differ.
const HERE: [(&str, &str, Free, &str); 28] = [
    (
        "chat-nonstream-per-request-metrics.http",
        ".cached_tokens",
        Free::Value,
        "their engine knew the prompt",
    ),
    (
        "chat-nonstream-per-request-metrics.http",
        ".created_cache_tokens",
        Free::Value,
        "their engine knew the prompt",
    ),
    ("chat-stream-logprobs.sse", ".top_logprobs[].token", Free::Value, "text"),
    ("completions-stream-logprobs.sse", ".text_offset[]", Free::Value, "text"),
    ("completions-stream-logprobs.sse", ".token_logprobs[]", Free::Value, "not simulated"),
    ("completions-stream-logprobs.sse", ".tokens[]", Free::Value, "text"),
    ("completions-stream-logprobs.sse", ".top_logprobs[]", Free::Anything, "members named by text"),
    (
        "chat-stream-tools-auto.sse",
        ".choices[].delta",
        Free::Anything,
        "their last token was half a character",
    ),
    (
        "chat-stream-tools-required.sse",
        ".completion_tokens",
        Free::Value,
        "cut by a smaller limit: our arguments are short",
    ),
    ("chat-stream-tools-required.sse", ".created_cache_tokens", Free::Value, "another tokenizer"),
    ("chat-nonstream-tools-required.http", ".completion_tokens", Free::Value, "cut by a smaller limit"),
    ("chat-nonstream-tools-required.http", ".cached_tokens", Free::Value, "another tokenizer"),
    ("messages-stream-tools.sse", ".output_tokens", Free::Value, "cut by a smaller limit"),
    ("messages-stream-tools.sse", ".cache_creation_input_tokens", Free::Value, "another tokenizer"),
    ("chat-cache-salt.http", ".created_cache_tokens", Free::Value, "another tokenizer"),
    ("chat-stream-sigterm-no-drain-tail.sse", ".completion_tokens", Free::Value, "ended elsewhere"),
    ("models.http", ".root", Free::Value, "another folder"),
    ("models-lora.json", ".root", Free::Value, "another folder"),
    ("tokenize-chat.http", ".count", Free::Value, "another tokenizer"),
    ("tokenize-chat.http", ".tokens", Free::Value, "another tokenizer"),
    ("tokenize-chat.http", ".tokens[]", Free::Value, "another tokenizer"),
    ("tokenize-prompt.http", ".count", Free::Value, "another tokenizer"),
    ("tokenize-prompt.http", ".tokens", Free::Value, "another tokenizer"),
    ("tokenize-prompt.http", ".tokens[]", Free::Value, "another tokenizer"),
    ("tokenize-prompt.http", ".token_strs", Free::Value, "another tokenizer"),
    ("tokenize-prompt.http", ".token_strs[]", Free::Value, "another tokenizer"),
    ("detokenize.http", ".prompt", Free::Value, "another tokenizer"),
    ("chat-stream-40tok-usage.sse", ".created_cache_tokens", Free::Value, "another tokenizer"),
];

/// Captures of what is not simulated: their paths answer 404 here.
pub const NOT_SIMULATED: [&str; 1] = ["metrics-dp2.txt"];

/// What may differ at a path of a capture.
pub fn free(capture: &str, path: &str) -> Free {
    let here = HERE.iter().find(|(name, end, ..)| *name == capture && path.ends_with(end)).map(|one| one.2);
    here.or_else(|| EVERYWHERE.iter().find(|(end, ..)| path.ends_with(end)).map(|one| one.1))
        .unwrap_or(Free::Nothing)
}

/// How the engine of a capture was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As usual.
    Plain,
    /// With usage for everybody, and metrics of each request.
    Forced,
    /// With a queue of nothing.
    Full,
    /// Metrics of each request only.
    Timed,
}

/// One capture and the request that it answers.
pub struct Case {
    pub capture: &'static str,
    pub kind: Kind,
    pub path: &'static str,
    pub body: String,
    pub headers: &'static [(&'static str, &'static str)],
}

const MESSAGES: &str = r#""messages":[{"role":"system","content":"You are a license bot."},{"role":"user","content":"Which license is this program under, and may I redistribute it?"}]"#;
const TOOLS: &str = r#""tools":[{"type":"function","function":{"name":"get_weather","description":"w","parameters":{"type":"object","properties":{"city":{"type":"string","enum":["Paris","Rome"]},"unit":{"type":"string","enum":["c","f"]}},"required":["city","unit"],"additionalProperties":false}}}]"#;
const USAGE: &str = r#""stream":true,"stream_options":{"include_usage":true}"#;

fn case(capture: &'static str, path: &'static str, body: &str) -> Case {
    let body = body
        .replace("$M", r#""model":"tiny-llama","temperature":1.0,"seed":7"#)
        .replace("$MSG", MESSAGES)
        .replace("$T", TOOLS)
        .replace("$U", USAGE);
    Case { capture, kind: Kind::Plain, path, body, headers: &[] }
}

fn chats() -> Vec<Case> {
    let chat = |capture, rest: &str| {
        case(
            capture,
            "/v1/chat/completions",
            &format!("{{#M,#G,{rest}}}").replace("#M", "$M").replace("#G", MESSAGES),
        )
    };
    let orca = |mut case: Case, format| {
        case.headers = format;
        case
    };
    let salt = "GNU GENERAL PUBLIC LICENSE. ".repeat(18);
    vec![
        orca(chat("chat-nonstream.http", r#""max_tokens":8"#), &[("x-request-id", "req-abc-123")]),
        orca(
            chat("chat-nonstream-orca-text.http", r#""max_tokens":4"#),
            &[("endpoint-load-metrics-format", "TEXT")],
        ),
        orca(
            chat("chat-nonstream-orca-json.http", r#""max_tokens":4"#),
            &[("endpoint-load-metrics-format", "JSON")],
        ),
        orca(
            chat("chat-stream-orca.http", r#""max_tokens":4,"stream":true"#),
            &[("endpoint-load-metrics-format", "TEXT")],
        ),
        chat("chat-stream.sse", r#""max_tokens":8,"stream":true"#),
        chat("chat-stream-usage.sse", r#""max_tokens":8,$U"#),
        chat(
            "chat-stream-usage-continuous.sse",
            r#""max_tokens":8,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#,
        ),
        chat(
            "chat-stream-continuous-only.sse",
            r#""max_tokens":4,"stream":true,"stream_options":{"include_usage":false,"continuous_usage_stats":true}"#,
        ),
        chat("chat-stream-n2-usage.sse", r#""max_tokens":5,"n":2,$U"#),
        chat("chat-stream-logprobs.sse", r#""max_tokens":3,"logprobs":true,"top_logprobs":2,"stream":true"#),
        chat("chat-stream-token-ids.sse", r#""max_tokens":4,"return_token_ids":true,"stream":true"#),
        chat(
            "chat-stream-stop.sse",
            r#""max_tokens":40,"stop_token_ids":[2],"logit_bias":{"2":12},"stream":true"#,
        ),
        chat("chat-stream-tools-required.sse", r#"$T,"tool_choice":"required","max_tokens":16,$U"#),
        chat(
            "chat-stream-tools-named.sse",
            r#"$T,"tool_choice":{"type":"function","function":{"name":"get_weather"}},"max_tokens":80,"stream":true"#,
        ),
        chat("chat-nonstream-tools-required.http", r#"$T,"tool_choice":"required","max_tokens":16"#),
        chat("chat-stream-tools-auto.sse", r#"$T,"tool_choice":"auto","max_tokens":6,"stream":true"#),
        case(
            "chat-cache-salt.http",
            "/v1/chat/completions",
            &format!(
                r#"{{$M,"cache_salt":"tenant-A","messages":[{{"role":"user","content":"{salt}"}}],"max_tokens":2}}"#
            ),
        ),
        case(
            "chat-stream-40tok-usage.sse",
            "/v1/chat/completions",
            r#"{$M,"messages":[{"role":"user","content":"hi there"}],"max_tokens":40,"ignore_eos":true,$U}"#,
        ),
        Case { kind: Kind::Timed, ..chat("chat-nonstream-per-request-metrics.http", r#""max_tokens":4"#) },
        Case {
            kind: Kind::Forced,
            ..chat("chat-stream-force-include-usage.sse", r#""max_tokens":4,"stream":true"#)
        },
    ]
}

fn others() -> Vec<Case> {
    let completion = |capture, rest| case(capture, "/v1/completions", rest);
    let responses =
        r#"{"model":"tiny-llama","temperature":1.0,"input":"Which license is this?","max_output_tokens":6"#;
    let anthropic = r#"{"model":"tiny-llama","max_tokens":6,"temperature":1.0,"system":"You are a license bot.","messages":[{"role":"user","content":"Which license is this?"}]"#;
    let weather = r#"{"model":"tiny-llama","max_tokens":16,"messages":[{"role":"user","content":"weather?"}],"tools":[{"name":"get_weather","description":"w","input_schema":{"type":"object","properties":{"city":{"type":"string","enum":["Paris","Rome"]}},"required":["city"],"additionalProperties":false}}],"tool_choice":{"type":"any"},"stream":true}"#;
    vec![
        completion(
            "completions-stream.sse",
            r#"{$M,"prompt":"This program is free software","max_tokens":6,"stream":true}"#,
        ),
        completion(
            "completions-stream-usage.sse",
            r#"{$M,"prompt":"This program is free software","max_tokens":6,$U}"#,
        ),
        completion(
            "completions-stream-batch2-usage.sse",
            r#"{$M,"prompt":["This program","is free software"],"max_tokens":4,$U}"#,
        ),
        completion(
            "completions-stream-logprobs.sse",
            r#"{$M,"prompt":"This program","max_tokens":3,"logprobs":2,"stream":true}"#,
        ),
        completion(
            "completions-stream-echo.sse",
            r#"{$M,"prompt":"This program","echo":true,"max_tokens":3,"stream":true}"#,
        ),
        completion("completions-nonstream.http", r#"{$M,"prompt":[1,2,3,4,5,100,200],"max_tokens":6}"#),
        Case {
            kind: Kind::Forced,
            ..completion(
                "completions-stream-force-include-usage.sse",
                r#"{$M,"prompt":"This is it","max_tokens":4,"stream":true}"#,
            )
        },
        case("responses-nonstream.http", "/v1/responses", &format!("{responses}}}")),
        case("responses-stream.sse", "/v1/responses", &format!("{responses},\"stream\":true}}")),
        case("messages-nonstream.http", "/v1/messages", &format!("{anthropic}}}")),
        case("messages-stream.sse", "/v1/messages", &format!("{anthropic},\"stream\":true}}")),
        case("messages-stream-tools.sse", "/v1/messages", weather),
        case("messages-count-tokens.http", "/v1/messages/count_tokens", &format!("{anthropic}}}")),
        case(
            "messages-error-model.http",
            "/v1/messages",
            r#"{"model":"nope","max_tokens":6,"messages":[{"role":"user","content":"x"}]}"#,
        ),
        case(
            "tokenize-prompt.http",
            "/tokenize",
            r#"{"model":"tiny-llama","prompt":"This program is free software","return_token_strs":true}"#,
        ),
        case(
            "tokenize-chat.http",
            "/tokenize",
            &format!(r#"{{"model":"tiny-llama",{MESSAGES},"add_generation_prompt":true}}"#),
        ),
        case("detokenize.http", "/detokenize", r#"{"model":"tiny-llama","tokens":[1,712,264,202]}"#),
        case(
            "render-chat.http",
            "/v1/chat/completions/render",
            &format!("{{$M,{MESSAGES},\"max_tokens\":4}}"),
        ),
        case(
            "render-completions.http",
            "/v1/completions/render",
            r#"{$M,"prompt":"This program is","max_tokens":4}"#,
        ),
        case(
            "render-messages.http",
            "/v1/messages/render",
            r#"{"model":"tiny-llama","max_tokens":6,"messages":[{"role":"user","content":"hi"}]}"#,
        ),
        case(
            "render-responses.http",
            "/v1/responses/render",
            r#"{"model":"tiny-llama","input":"hi","max_output_tokens":6}"#,
        ),
        case("models.http", "/v1/models", ""),
        case("version.http", "/version", ""),
        case("health.http", "/health", ""),
        case("ping.http", "/ping", ""),
        case("load.http", "/load", ""),
    ]
}

fn errors() -> Vec<Case> {
    let chat = |capture, body: &str| case(capture, "/v1/chat/completions", body);
    let with = |rest: &str| format!("{{$M,{MESSAGES}{rest}}}");
    let long = "free software ".repeat(1500);
    let long = |stream: &str| {
        format!(r#"{{"model":"tiny-llama"{stream},"messages":[{{"role":"user","content":"{long}"}}]}}"#)
    };
    vec![
        chat("err-unknown-model.http", &format!(r#"{{"model":"nope",{MESSAGES}}}"#)),
        chat("err-too-long.http", &long("")),
        chat("err-too-long-stream.http", &long(r#","stream":true"#)),
        chat("err-max-tokens-too-large.http", &with(r#","max_tokens":99999"#)),
        chat("err-bad-json.http", r#"{"model":"tiny-llama","messages":["#),
        chat("err-missing-messages.http", r#"{"model":"tiny-llama"}"#),
        chat("err-bad-type.http", &with(r#","max_tokens":"abc""#)),
        chat("err-stream-options-without-stream.http", &with(r#","stream_options":{"include_usage":true}"#)),
        case("err-unknown-path.http", "/v1/nothing", "{}"),
        Case { headers: &[("content-type", "text/plain")], ..chat("err-content-type.http", "{}") },
        Case { headers: &[("x-data-parallel-rank", "3")], ..chat("err-bad-dp-rank.http", &with("")) },
        Case { kind: Kind::Full, ..chat("err-503-queue-full.http", &with("")) },
        Case { kind: Kind::Full, ..chat("err-503-queue-full-stream.http", &with(r#","stream":true"#)) },
    ]
}

/// All captures that are compared by a request of their own, in the order in which the requests were made.
pub fn cases() -> Vec<Case> {
    [chats(), others(), errors()].into_iter().flatten().collect()
}
