use proptest::prelude::*;

use super::*;
use crate::limits::{INTEGER_DIGITS_MAX, MEMBERS_MAX, MODEL_BYTES_MAX, SPANS_MAX};

const CHAT: Api = Api::ChatCompletions;

fn refused(api: Api, body: &str) -> BodyError {
    match scan(api, body.as_bytes()) {
        Err(error) => error,
        Ok(_) => panic!("accepted: {body}"),
    }
}

fn accepted(api: Api, body: &str) -> Request<'_> {
    scan(api, body.as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// `model` and these members.
fn with(members: &str) -> String {
    format!("{{\"model\":\"m\",{members}}}")
}

fn texts(request: &Request<'_>, body: &str) -> Vec<(SpanKind, String)> {
    let prompt = &request.prompt;
    prompt.spans.iter().map(|span| (span.kind, prompt.text(body.as_bytes(), span).into_owned())).collect()
}

#[test]
fn a_body_must_be_one_json_object() {
    for (body, part) in [
        ("", "empty"),
        (" \n", "empty"),
        ("[]", "an array"),
        ("\"x\"", "a string"),
        ("{", "ends too early, at byte 1"),
        ("{} {}", "byte 3"),
        ("\u{feff}{}", "byte order mark"),
    ] {
        let error = refused(CHAT, body);
        assert!(error.message.contains(part), "{body}: {error}");
        assert_eq!(error.param, None);
    }
    assert!(scan(CHAT, b"{\"model\":\"m\xff\"}").unwrap_err().message.contains("UTF-8"));
}

#[test]
fn the_model_is_a_short_non_empty_string() {
    for body in [
        "{}",
        "{\"model\":null}",
        "{\"model\":\"\"}",
        "{\"model\":1}",
        "{\"model\":[\"m\"]}",
        "{\"model\":\"\\ud800\"}",
    ] {
        assert_eq!(refused(CHAT, body).param, Some("model"), "{body}");
    }
    let named = |name: &str| format!("{{\"model\":\"{name}\"}}");
    let longest = "é".repeat(MODEL_BYTES_MAX / 2);
    assert_eq!(accepted(CHAT, &named(&longest)).model.decode(), longest);
    assert_eq!(
        accepted(CHAT, &named(&"\\u0061".repeat(MODEL_BYTES_MAX))).model.decode().len(),
        MODEL_BYTES_MAX
    );
    for name in [format!("{longest}x"), "\\u0061".repeat(MODEL_BYTES_MAX + 1), "x".repeat(100_000)] {
        assert_eq!(refused(CHAT, &named(&name)).param, Some("model"));
    }
    assert_eq!(accepted(CHAT, "{\"mod\\u0065l\":\"\\ud83d\\ude00\"}").model.decode(), "😀");
}

#[test]
fn no_member_that_is_read_may_appear_twice_however_it_is_written() {
    for key in [
        "model",
        "messages",
        "prompt",
        "input",
        "system",
        "instructions",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "best_of",
        "tools",
        "cache_salt",
        "priority",
        "user",
        "previous_response_id",
        "kv_transfer_params",
        "vllm_xargs",
        "metadata",
        "prompt_cache_key",
    ] {
        let (first, rest) = key.split_at(1);
        let escaped = format!("\\u{:04x}{rest}", u32::from(first.chars().next().unwrap()));
        for second in [key, &escaped] {
            let body = format!("{{\"{key}\":null,\"a\":[{{\"{key}\":1}}],\"{second}\":null}}")
                .replace("{\"model\":null", "{\"model\":\"m\"");
            let error = refused(CHAT, &body);
            assert!(error.message.contains("twice") && error.message.contains(key), "{error}");
            assert_eq!(error.param, Some(key));
        }
    }
    for inner in ["include_usage", "continuous_usage_stats"] {
        let body =
            with(&format!("\"stream\":true,\"stream_options\":{{\"{inner}\":true,\"{inner}\":false}}"));
        assert!(refused(CHAT, &body).message.contains(&format!("stream_options.{inner}")));
    }
    accepted(
        CHAT,
        &with("\"logit_bias\":1,\"logit_bias\":2,\"messages\":[{\"role\":\"user\",\"role\":\"user\"}]"),
    );
}

#[test]
fn what_engines_would_coerce_is_refused() {
    for wrong in ["\"true\"", "1", "0", "[]", "{}", "\"\""] {
        let error = refused(CHAT, &with(&format!("\"stream\":{wrong}")));
        assert_eq!(error.param, Some("stream"));
        assert!(error.message.contains("true, false or null"));
        let options = |inner: &str| with(&format!("\"stream_options\":{inner},\"stream\":true"));
        assert_eq!(
            refused(CHAT, &options(&format!("{{\"include_usage\":{wrong}}}"))).param,
            Some("stream_options")
        );
        if wrong != "{}" {
            assert_eq!(refused(CHAT, &options(wrong)).param, Some("stream_options"));
        }
        accepted(CHAT, &with(&format!("\"stream_options\":{wrong}")));
        accepted(Api::Embeddings, &with(&format!("\"stream\":{wrong}")));
    }
    for key in ["n", "max_tokens", "max_completion_tokens"] {
        for wrong in ["\"5\"", "5.0", "5e0", "true", "NaN", "[5]"] {
            assert_eq!(refused(CHAT, &with(&format!("\"{key}\":{wrong}"))).param, Some(key));
        }
        accepted(CHAT, &with(&format!("\"{key}\":-1")));
        accepted(CHAT, &with(&format!("\"{key}\":null")));
    }
}

#[test]
fn what_could_not_be_counted_is_refused() {
    let pooling = [Api::Embeddings, Api::Rerank, Api::Score];
    for format in ["bytes", "bytes_only", "b\\u0079tes"] {
        let body = with(&format!("\"input\":\"x\",\"encoding_format\":\"{format}\""));
        for api in pooling {
            let error = refused(api, &body);
            assert_eq!(error.param, Some("encoding_format"));
            assert!(error.message.contains("base64"), "{error}");
        }
        accepted(CHAT, &body);
    }
    for format in ["\"float\"", "\"base64\"", "null", "1", "[\"bytes\"]", "\"Bytes\""] {
        accepted(Api::Embeddings, &with(&format!("\"encoding_format\":{format}")));
    }
}

#[test]
fn what_decides_about_a_stored_response_is_read_and_never_guessed_at() {
    let read = |member: &str| {
        let body = with(member);
        let request = accepted(Api::Responses, &body);
        let previous = request.session.previous_response_id.map(|id| id.decode().into_owned());
        (request.background, previous)
    };
    assert_eq!(read("\"background\":true"), (true, None));
    for value in ["false", "null"] {
        assert_eq!(read(&format!("\"background\":{value}")), (false, None));
    }
    assert_eq!(read("\"previous_response_id\":\"resp_\\u0061\""), (false, Some("resp_a".into())));
    assert_eq!(read("\"previous_response_id\":\"\""), (false, Some(String::new())), "it names something");
    assert_eq!(read("\"previous_response_id\":null"), (false, None));
    for (key, wrong) in
        [("background", ["\"true\"", "1", "{}"]), ("previous_response_id", ["1", "[\"resp_a\"]", "false"])]
    {
        for value in wrong {
            let body = with(&format!("\"input\":\"x\",\"{key}\":{value}"));
            assert_eq!(refused(Api::Responses, &body).param, Some(key));
            assert!(!accepted(CHAT, &body).background, "of other APIs it is no member");
        }
    }
    let twice = refused(Api::Responses, &with("\"background\":false,\"background\":true"));
    assert!(twice.message.contains("twice"));
}

#[test]
fn a_client_names_no_response_itself_however_it_writes_it() {
    for api in Api::ALL {
        for key in ["request_id", "request\\u005fid", "\\u0072equest_id"] {
            for value in ["\"resp_x\"", "null", "1", "{}"] {
                let error = refused(api, &with(&format!("\"{key}\":{value}")));
                assert_eq!(error.param, Some("request_id"));
                assert!(error.message.contains("set by the gateway"), "{error}");
            }
        }
        accepted(api, &with("\"metadata\":{\"request_id\":\"mine\"}"));
    }
}

#[test]
fn integers_that_python_refuses_are_refused_wherever_they_stand() {
    let most = "9".repeat(INTEGER_DIGITS_MAX);
    for place in ["\"max_tokens\":@", "\"seed\":-@", "\"x\":{\"y\":[@]}"] {
        let number = |digits: &str| with(&place.replace('@', digits));
        accepted(CHAT, &number(&most));
        let error = refused(CHAT, &number(&format!("{most}9")));
        assert!(error.message.contains("4300 digits"), "{error}");
    }
    for float in [format!("{most}9.0"), format!("{most}9e0"), format!("0.{most}9")] {
        accepted(CHAT, &with(&format!("\"x\":{float}")));
    }
}

#[test]
fn what_the_gateway_sets_is_refused_unless_null() {
    for key in ["priority", "cache_salt", "kv_transfer_params", "ec_transfer_params"] {
        for api in Api::ALL {
            for value in ["0", "\"s\"", "{}", "false"] {
                let error = refused(api, &with(&format!("\"{key}\":{value}")));
                assert_eq!(error.param, Some(key));
                assert!(error.message.contains("set by the gateway"));
            }
            accepted(api, &with(&format!("\"{key}\":null")));
        }
    }
    for inner in ["kv_cache_report_mode", "kv_transfer_params", "kv_cache_\\u0072eport_mode"] {
        let error = refused(CHAT, &with(&format!("\"vllm_xargs\":{{\"a\":1,\"{inner}\":\"full\"}}")));
        assert_eq!(error.param, Some("vllm_xargs"));
        accepted(CHAT, &with(&format!("\"vllm_xargs\":{{\"{inner}\":null,\"b\":[1]}}")));
    }
    let media = |uuid: &str| {
        with(&format!(
            "\"messages\":[{{\"content\":[{{\"uuid\":{uuid},\"type\":\"image_url\",\"image_url\":null}}]}}]"
        ))
    };
    assert!(refused(CHAT, &media("\"u\"")).message.contains("uuid"));
    accepted(CHAT, &media("null"));
}

#[test]
fn numbers_and_wishes() {
    let read = |api, members: &str| {
        let body = with(members);
        let request = accepted(api, &body);
        (request.stream, request.usage_wish, request.max_tokens, request.n)
    };
    let none = UsageWish::None;
    assert_eq!(read(CHAT, "\"a\":1"), (false, none, None, 1));
    assert_eq!(
        read(CHAT, "\"stream\":null,\"n\":3,\"max_tokens\":9,\"max_completion_tokens\":7"),
        (false, none, Some(7), 3)
    );
    assert_eq!(read(CHAT, "\"max_output_tokens\":7,\"max_completion_tokens\":null"), (false, none, None, 1));
    assert_eq!(read(Api::Completions, "\"n\":2,\"best_of\":5,\"max_tokens\":0"), (false, none, Some(0), 5));
    assert_eq!(
        read(Api::Responses, "\"max_output_tokens\":7,\"max_tokens\":1,\"stream\":true"),
        (true, none, Some(7), 1)
    );
    assert_eq!(
        read(Api::Messages, "\"max_tokens\":99999999999999999999,\"n\":\"x\""),
        (false, none, Some(u64::MAX), 1)
    );
    assert_eq!(read(CHAT, "\"n\":99999999999").3, u32::MAX);
    assert_eq!(read(Api::Embeddings, "\"stream\":true,\"max_tokens\":\"x\""), (false, none, None, 1));
    let wish = |options: &str| read(CHAT, &format!("\"stream_options\":{options},\"stream\":true")).1;
    assert_eq!(wish("null"), none);
    assert_eq!(wish("{}"), none);
    assert_eq!(wish("{\"include_usage\":null,\"continuous_usage_stats\":true}"), none);
    assert_eq!(wish("{\"include_us\\u0061ge\":true}"), UsageWish::Final);
    assert_eq!(
        wish("{\"continuous_usage_stats\":true,\"x\":1,\"include_usage\":true}"),
        UsageWish::Continuous
    );
}

#[test]
fn chat_texts_have_their_owners() {
    let body = with(
        r#""messages":[{"role":"system","content":"S\n"},{"content":[{"type":"text","text":"U"},{"type":"image_url","image_url":{"url":"data:x"}},{"image":"y"}],"role":"user"},
        {"role":"assistant","content":null,"refusal":"R","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
        {"role":"tool","content":"T"},{"role":"odd","cont\u0065nt":"O"},{"content":""}],"tools":[{"x":"text"}]"#,
    );
    let request = accepted(CHAT, &body);
    use SpanKind::{Assistant, System, Tool, User};
    let wanted =
        [(System, "S\n"), (User, "U"), (Assistant, "R"), (Assistant, "{\"a\":1}"), (Tool, "T"), (User, "O")];
    assert_eq!(texts(&request, &body), wanted.map(|(kind, text)| (kind, text.to_owned())));
    assert_eq!((request.prompt.media, request.prompt.token_ids), (2, 0));
    assert_eq!(request.prompt.text_bytes, 3 + 1 + 1 + 9 + 1 + 1);
    assert_eq!(body.get(request.tools.unwrap()).unwrap(), "[{\"x\":\"text\"}]");
}

#[test]
fn anthropic_texts_have_their_owners() {
    let body = with(
        r#""system":[{"type":"text","text":"S"}],"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"T"},{"type":"image","source":{"type":"base64","data":"zz"}}]},{"type":"text","text":"U"},{"type":"document","source":{"data":"D","type":"text"}}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"H"},{"type":"tool_use","name":"f","input":{"q":"text"}}]}],"metadata":{"user_id":"u1","x":{}}"#,
    );
    for api in [Api::Messages, Api::CountTokens] {
        let request = accepted(api, &body);
        use SpanKind::{Assistant, System, Tool, User};
        let wanted = [
            (System, "S"),
            (Tool, "T"),
            (User, "U"),
            (User, "D"),
            (Assistant, "H"),
            (Assistant, "{\"q\":\"text\"}"),
        ];
        assert_eq!(texts(&request, &body), wanted.map(|(kind, text)| (kind, text.to_owned())));
        assert_eq!(request.prompt.media, 2);
        assert_eq!(request.session.metadata_user_id.unwrap().decode(), "u1");
    }
    let plain = with("\"system\":\"S\",\"messages\":[]");
    assert_eq!(texts(&accepted(Api::Messages, &plain), &plain), [(SpanKind::System, "S".to_owned())]);
}

#[test]
fn responses_and_plain_inputs() {
    use SpanKind::{Assistant, Plain, System, Tool, User};
    type Case = (Api, &'static str, &'static [(SpanKind, &'static str)], u64);
    let cases: [Case; 9] = [
        (Api::Responses, r#""instructions":"I","input":"U""#, &[(System, "I"), (User, "U")], 0),
        (
            Api::Responses,
            r#""input":[{"role":"developer","content":[{"type":"input_text","text":"D"}]},{"type":"function_call","arguments":"A"},{"type":"function_call_output","output":"T"},{"type":"input_image","image_url":"x"},{"type":"reasoning","summary":[{"text":"R"}]}],"prompt":{"id":"p","variables":{"text":"x"}}"#,
            &[(System, "D"), (Assistant, "A"), (Tool, "T"), (Assistant, "R")],
            0,
        ),
        (
            Api::Completions,
            r#""prompt":["a","b"],"suffix":"c""#,
            &[(Plain, "a"), (Plain, "b"), (Plain, "c")],
            0,
        ),
        (Api::Completions, r#""prompt":[[1,2],[3]]"#, &[], 3),
        (Api::Embeddings, r#""input":"a""#, &[(Plain, "a")], 0),
        (Api::Embeddings, r#""input":[1,2,3,4]"#, &[], 4),
        (Api::Detokenize, r#""tokens":[7,8]"#, &[], 2),
        (
            Api::Rerank,
            r#""query":"q","documents":["a",{"text":"b"}]"#,
            &[(Plain, "q"), (Plain, "a"), (Plain, "b")],
            0,
        ),
        (Api::Score, r#""text_1":"q","text_2":["a"]"#, &[(Plain, "q"), (Plain, "a")], 0),
    ];
    for (api, members, wanted, token_ids) in cases {
        let body = with(members);
        let request = accepted(api, &body);
        let wanted: Vec<_> = wanted.iter().map(|(kind, text)| (*kind, (*text).to_owned())).collect();
        assert_eq!(texts(&request, &body), wanted, "{body}");
        assert_eq!(request.prompt.token_ids, token_ids, "{body}");
    }
}

#[test]
fn session_hints() {
    let body = with(
        r#""user":"a","prompt_cache_key":"b","previous_response_id":"c","safety_identifier":"d","metadata":null"#,
    );
    let session = accepted(Api::Responses, &body).session;
    let read = |hint: &Option<Text<'_>>| hint.as_ref().map(|text| text.decode().into_owned());
    assert_eq!(read(&session.user).as_deref(), Some("a"));
    assert_eq!(read(&session.prompt_cache_key).as_deref(), Some("b"));
    assert_eq!(read(&session.previous_response_id).as_deref(), Some("c"));
    assert_eq!(read(&session.safety_identifier).as_deref(), Some("d"));
    assert!(session.metadata_user_id.is_none());
    let body = with(r#""user":"","prompt_cache_key":1"#);
    let session = accepted(CHAT, &body).session;
    assert!(session.user.is_none() && session.prompt_cache_key.is_none());
}

#[test]
fn bounds_hold() {
    let members = |count: usize| with(&vec!["\"x\":1"; count].join(","));
    accepted(CHAT, &members(MEMBERS_MAX - 1));
    assert!(refused(CHAT, &members(MEMBERS_MAX)).message.contains("256 members"));
    let inputs = |count: usize| with(&format!("\"input\":[{}]", vec!["\"x\""; count].join(",")));
    assert_eq!(accepted(Api::Embeddings, &inputs(SPANS_MAX)).prompt.spans.len(), SPANS_MAX);
    assert!(refused(Api::Embeddings, &inputs(SPANS_MAX + 1)).message.contains("65536"));
    let deep = with(&format!("\"messages\":{}{}", "[{\"content\":".repeat(200), "}]".repeat(200)));
    assert!(refused(CHAT, &deep).message.contains("deeper than 128"));
}

#[test]
fn errors_repeat_no_text_of_the_body() {
    let secret = "sk-secret";
    for body in [
        format!("{{\"model\":\"m\",\"stream\":\"{secret}\"}}"),
        format!("{{\"model\":[\"{secret}\"]}}"),
        format!("{{\"model\":\"m\",\"messages\":\"{secret}\",\"messages\":\"{secret}\"}}"),
        format!("{{\"model\":\"m\",\"cache_salt\":\"{secret}\"}}"),
        format!("{{\"model\":\"m\",\"prompt\":\"{secret}\u{1}\"}}"),
        format!("{{\"model\":\"m\",\"n\":\"{secret}\"}}"),
        format!("{{\"model\":\"m\",\"prompt\":\"{secret}"),
    ] {
        assert!(!refused(CHAT, &body).message.contains(secret));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_is_accepted_is_json_and_whatever_comes_never_panics(
        value in crate::json::tests::any_json(),
        key in proptest::sample::select(vec!["messages", "input", "prompt", "tools", "system", "stream_options", "metadata", "x"]),
        api in proptest::sample::select(Api::ALL.to_vec()),
        noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let body = format!("{{\"model\":\"m\",\"{key}\":{value}}}");
        if let Ok(request) = scan(api, body.as_bytes()) {
            for span in &request.prompt.spans {
                let _ = request.prompt.text(body.as_bytes(), span);
            }
        } else {
            prop_assert!(key != "x", "an unknown member is never at fault");
        }
        let _ = scan(api, &noise);
    }
}
