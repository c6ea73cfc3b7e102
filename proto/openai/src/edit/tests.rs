use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::api::Api;
use crate::body::scan;

fn injected(api: Api, body: &str, continuous: bool) -> Option<String> {
    let request = scan(api, body.as_bytes()).unwrap();
    request.inject_usage(continuous).map(|edits| String::from_utf8(edits.apply(body.as_bytes())).unwrap())
}

#[test]
fn each_form_of_stream_options_gets_the_smallest_edit() {
    let both = r#""include_usage":true,"continuous_usage_stats":true"#;
    let m = r#""model":"m","stream":true"#;
    for (before, after) in [
        (format!("{{{m}}}"), format!("{{\"stream_options\":{{{both}}},{m}}}")),
        (format!(" {{ {m} }} "), format!(" {{\"stream_options\":{{{both}}}, {m} }} ")),
        (format!("{{{m},\"stream_options\": null }}"), format!("{{{m},\"stream_options\": {{{both}}} }}")),
        (format!("{{{m},\"stream_options\":{{}}}}"), format!("{{{m},\"stream_options\":{{{both}}}}}")),
        (
            format!("{{{m},\"stream_options\":{{ \"x\":1}}}}"),
            format!("{{{m},\"stream_options\":{{{both}, \"x\":1}}}}"),
        ),
        (
            format!("{{{m},\"stream_options\":{{\"include_usage\":true}}}}"),
            format!("{{{m},\"stream_options\":{{\"continuous_usage_stats\":true,\"include_usage\":true}}}}"),
        ),
        (
            format!("{{\"stream_options\":{{\"continuous_usage_stats\":null,\"include_usage\":false}},{m}}}"),
            format!("{{\"stream_options\":{{\"continuous_usage_stats\":true,\"include_usage\":true}},{m}}}"),
        ),
    ] {
        for api in [Api::ChatCompletions, Api::Completions] {
            assert_eq!(injected(api, &before, true).unwrap(), after);
        }
    }
    let last = r#"{"model":"m","stream":true,"stream_options":{"include_usage":false}}"#;
    assert_eq!(injected(Api::Completions, last, false).unwrap(), last.replace("false", "true"));
}

#[test]
fn where_there_is_nothing_to_do_there_is_no_edit() {
    let all = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    assert_eq!(injected(Api::ChatCompletions, all, true), None);
    let last = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
    assert_eq!(injected(Api::ChatCompletions, last, false), None);
    for body in [r#"{"model":"m"}"#, r#"{"model":"m","stream":false}"#, r#"{"model":"m","stream":null}"#] {
        assert_eq!(injected(Api::ChatCompletions, body, true), None);
    }
    for api in [Api::Responses, Api::Messages, Api::Embeddings, Api::Tokenize] {
        assert_eq!(injected(api, r#"{"model":"m","stream":true}"#, true), None);
    }
}

#[test]
fn the_model_is_replaced_where_it_stands() {
    let body = r#"{"messages":[{"content":"m"}], "mod\u0065l" : "m\n" ,"stream":true}"#;
    let request = scan(Api::ChatCompletions, body.as_bytes()).unwrap();
    let rewritten = request.rewrite_model("a\"b\\c/é").apply(body.as_bytes());
    let wanted = body.replace(r#""m\n""#, r#""a\"b\\c/é""#);
    assert_eq!(String::from_utf8(rewritten).unwrap(), wanted);
}

#[test]
fn a_response_is_named_by_a_first_member_and_every_other_byte_stays() {
    let named = |body: &str| {
        let request = scan(Api::Responses, body.as_bytes()).unwrap();
        String::from_utf8(request.first_member().name_response("resp_1").apply(body.as_bytes())).unwrap()
    };
    for (before, after) in [
        (r#"{"model":"m"}"#, r#"{"request_id":"resp_1","model":"m"}"#),
        (
            " {\n\"input\": 1.50e0, \"model\" :\"m\" }",
            " {\"request_id\":\"resp_1\",\n\"input\": 1.50e0, \"model\" :\"m\" }",
        ),
        (
            r#"{"metadata":{"request_id":"x"},"model":"m","stream":true}"#,
            r#"{"request_id":"resp_1","metadata":{"request_id":"x"},"model":"m","stream":true}"#,
        ),
    ] {
        assert_eq!(named(before), after);
        let once: Value = serde_json::from_str(after).unwrap();
        assert_eq!(once["request_id"], "resp_1");
        assert!(scan(Api::Responses, after.as_bytes()).is_err(), "no client may send what an engine gets");
    }
}

/// A body with any members around those that matter, in any order, each written by serde_json.
fn any_body() -> impl Strategy<Value = Vec<(String, String)>> {
    let options = prop_oneof![
        Just("null".to_owned()),
        prop::collection::vec(
            prop_oneof![
                Just("\"include_usage\": true"),
                Just("\"include_usage\":false "),
                Just("\"continuous_usage_stats\":null"),
                Just("\"other\":{\"include_usage\":1}")
            ],
            0..2
        )
        .prop_map(|mut members| {
            members.dedup();
            if members.iter().filter(|member| member.contains("\"include_usage\": true")).count() > 0 {
                members.retain(|member| !member.contains("false"));
            }
            format!("{{{}}}", members.join(","))
        }),
    ];
    let other = (
        "x[a-z]{0,5}",
        crate::json::tests::any_json().prop_map(|value| serde_json::to_string_pretty(&value).unwrap()),
    );
    (prop::option::of(options), prop::collection::vec(other, 0..5), any::<prop::sample::Index>(), ".{1,20}")
        .prop_map(|(options, mut members, rotate, model)| {
            members.push(("model".into(), json!(model).to_string()));
            members.push(("stream".into(), "true".into()));
            members.extend(options.map(|options| ("stream_options".into(), options)));
            let by = rotate.index(members.len());
            members.rotate_left(by);
            members
        })
}

fn without(mut value: Value, keys: &[&str]) -> Map<String, Value> {
    let map = value.as_object_mut().unwrap();
    for key in keys {
        map.remove(*key);
    }
    std::mem::take(map)
}

/// Whether `after` is `before` with some bytes added or replaced, all within the edits' ranges.
fn kept_outside(edits: &super::Edits, before: &[u8], after: &[u8]) -> bool {
    let (mut b, mut a) = (0, 0);
    for edit in &edits.list {
        let kept = edit.range.start - b;
        if before[b..b + kept] != after[a..a + kept] {
            return false;
        }
        a += kept + edit.text.len();
        b = edit.range.end;
    }
    before[b..] == after[a..]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn only_the_edited_members_change(members in any_body(), continuous in any::<bool>(), model in ".{1,20}") {
        let inner: Vec<_> = members.iter().map(|(key, value)| format!("{}:{value}", json!(key))).collect();
        let body = format!("{{{}}}", inner.join(" , "));
        let request = scan(Api::ChatCompletions, body.as_bytes()).unwrap();
        let rewrite = request.rewrite_model(&model);
        let edits = match request.inject_usage(continuous) {
            Some(inject) => inject.merge(rewrite),
            None => rewrite,
        };
        let after = edits.apply(body.as_bytes());
        prop_assert!(kept_outside(&edits, body.as_bytes(), &after));
        let (old, new): (Value, Value) =
            (serde_json::from_str(&body).unwrap(), serde_json::from_slice(&after).unwrap());
        prop_assert_eq!(&new["model"], &json!(model));
        let options = &new["stream_options"];
        prop_assert_eq!(&options["include_usage"], &json!(true));
        if continuous {
            prop_assert_eq!(&options["continuous_usage_stats"], &json!(true));
        }
        let keys = ["include_usage", "continuous_usage_stats"];
        let old_options = if old["stream_options"].is_object() { old["stream_options"].clone() } else { json!({}) };
        prop_assert_eq!(without(options.clone(), &keys), without(old_options, &keys));
        let keys = ["model", "stream_options"];
        prop_assert_eq!(without(old, &keys), without(new, &keys));
        let again = scan(Api::ChatCompletions, &after).unwrap();
        prop_assert_eq!(again.inject_usage(continuous), None, "an edited body needs no further edit");
        prop_assert_eq!(&*again.model.decode(), model.as_str());
    }
}
