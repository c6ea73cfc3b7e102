use std::collections::BTreeMap;
use std::net::SocketAddr;

use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::*;
use crate::event::TenantHeader;
use crate::rules::{ModelRule, TenantRule};

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#;

pub(super) fn rules() -> Rules {
    let rule = |pool: &str, usage| ModelRule {
        pool: pool.into(),
        usage,
        prefix: true,
        keeps_responses: pool == "a",
    };
    Rules {
        models: BTreeMap::from([
            ("m".into(), rule("a", UsageMode::Inject { continuous: true })),
            ("once".into(), rule("a", UsageMode::Inject { continuous: false })),
            ("forced".into(), rule("b", UsageMode::Forced)),
        ]),
        tenant: TenantRule::Header { default: Some("anonymous".into()) },
        body_bytes_max: 1024,
        retry_after_s: 3,
        hold_stream: false,
        since_unix_s: 7,
    }
}

pub(super) fn head(path: &str) -> RequestHead {
    RequestHead {
        method: "POST".into(),
        path: path.into(),
        content_type: Some("application/json; charset=utf-8".into()),
        ..RequestHead::default()
    }
}

pub(super) fn grant() -> Event {
    let endpoints = vec![SocketAddr::from(([10, 0, 0, 1], 8000)), SocketAddr::from(([10, 0, 0, 2], 8000))];
    Event::Answer(Answer::Granted(Grant {
        pool: "a".into(),
        endpoints,
        token: "tok".into(),
        response_id: None,
    }))
}

pub(super) fn body(text: &str) -> Event {
    Event::RequestBody { chunk: text.into(), end: true }
}

pub(super) fn run(mode: BodyMode, rules: &Rules, events: Vec<Event>) -> (Phase, Vec<Effect>) {
    let mut phase = Phase::new(Some(mode));
    let mut all = Vec::new();
    for event in events {
        let (next, effects) = step(phase, event, rules);
        phase = next;
        all.extend(effects);
    }
    (phase, all)
}

pub(super) fn immediate_of(effects: &[Effect]) -> (u16, &str, String) {
    match effects {
        [.., Effect::Reply(Reply::Immediate(response)), Effect::Finish(Finish::Ok(_))] => {
            (response.status, response.label, String::from_utf8(response.body.clone()).expect("text"))
        }
        other => panic!("no immediate response but {other:?}"),
    }
}

fn asked(path: &str, text: &str) -> (u16, &'static str) {
    let (_, effects) = run(BodyMode::Buffered, &rules(), vec![Event::RequestHeaders(head(path)), body(text)]);
    match effects.last() {
        Some(Effect::Ask(_)) => (0, "asked"),
        _ => {
            let (status, label, _) = immediate_of(&effects);
            (
                status,
                ["bad_body", "unknown_model", "too_large", "empty_body"]
                    .into_iter()
                    .find(|l| *l == label)
                    .expect(label),
            )
        }
    }
}

#[test]
fn a_buffered_exchange_proceeds_asks_decides_and_ends_with_ok_after_the_response_headers() {
    let response = ResponseHead { status: 200, upstream: None, retry_after: None };
    let events = vec![
        Event::RequestHeaders(head("/v1/chat/completions?x=1")),
        body(CHAT),
        grant(),
        Event::RequestTrailers,
        Event::ResponseHeaders(response),
    ];
    let (phase, effects) = run(BodyMode::Buffered, &rules(), events);
    assert!(matches!(phase, Phase::Done));
    let [
        Effect::Reply(Reply::Proceed),
        Effect::Ask(inquiry),
        Effect::Reply(Reply::Verdict(verdict)),
        rest @ ..,
    ] = effects.as_slice()
    else {
        panic!("{effects:?}")
    };
    assert_eq!((inquiry.pool.as_str(), inquiry.model.as_str(), inquiry.stream), ("a", "m", true));
    assert_eq!(inquiry.tenant, "anonymous");
    assert_eq!(verdict.destination(), "10.0.0.1:8000,10.0.0.2:8000");
    assert_eq!(
        verdict.plan().to_string(),
        Plan { api: Api::ChatCompletions, stream: true, strip: Strip::All }.to_string()
    );
    assert_eq!(
        rest,
        [
            Effect::Reply(Reply::Trailers),
            Effect::Served(response),
            Effect::Reply(Reply::ResponseHeaders),
            finish_ok()
        ]
    );
}

#[test]
fn full_duplex_holds_every_reply_until_the_body_is_whole_and_ignores_a_repeated_end() {
    let chunks = CHAT.as_bytes().chunks(7).map(|c| Event::RequestBody { chunk: c.to_vec(), end: false });
    let mut events = vec![Event::RequestHeaders(head("/v1/chat/completions"))];
    events.extend(chunks);
    let (phase, effects) = run(BodyMode::FullDuplex, &rules(), events);
    assert!(effects.is_empty(), "{effects:?}");
    let (phase, effects) = step(phase, Event::RequestTrailers, &rules());
    assert!(matches!(effects.as_slice(), [Effect::Ask(_)]));
    let (phase, effects) = step(phase, grant(), &rules());
    let [Effect::Reply(Reply::Verdict(verdict))] = effects.as_slice() else { panic!("{effects:?}") };
    assert!(verdict.has_trailers());
    let (phase, effects) = step(phase, Event::RequestBody { chunk: Vec::new(), end: true }, &rules());
    assert!(effects.is_empty() && matches!(phase, Phase::AwaitResponse(_)));
}

#[test]
fn usage_is_asked_for_and_hidden_as_the_client_and_the_pool_have_it() {
    let cases = [
        ("m", "", true, Strip::All),
        ("m", r#","stream_options":{"include_usage":true}"#, true, Strip::Continuous),
        (
            "m",
            r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#,
            false,
            Strip::Nothing,
        ),
        ("once", r#","stream_options":{"include_usage":true}"#, false, Strip::Nothing),
        ("once", "", true, Strip::All),
        ("forced", "", false, Strip::All),
        ("forced", r#","stream_options":{"include_usage":true}"#, false, Strip::Continuous),
    ];
    for (model, options, edited, strip) in cases {
        let text = format!(r#"{{"model":"{model}","messages":[],"stream":true{options}}}"#);
        let events = vec![Event::RequestHeaders(head("/v1/chat/completions")), body(&text), grant()];
        let (_, effects) = run(BodyMode::Buffered, &rules(), events);
        let Some(Effect::Reply(Reply::Verdict(verdict))) = effects.last() else { panic!("{effects:?}") };
        assert_eq!((verdict.is_edited(), verdict.plan().strip), (edited, strip), "{text}");
    }
    let whole = r#"{"model":"m","messages":[]}"#;
    let events = vec![Event::RequestHeaders(head("/v1/chat/completions")), body(whole), grant()];
    let (_, effects) = run(BodyMode::Buffered, &rules(), events);
    let Some(Effect::Reply(Reply::Verdict(verdict))) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(verdict.body(), whole.as_bytes(), "a request without a stream is never edited");
}

#[test]
fn bad_requests_are_answered_here_in_the_shape_of_their_api() {
    assert_eq!(asked("/v1/chat/completions", CHAT), (0, "asked"));
    assert_eq!(asked("/v1/chat/completions", "{"), (400, "bad_body"));
    assert_eq!(asked("/v1/chat/completions", ""), (400, "empty_body"));
    assert_eq!(asked("/v1/chat/completions", r#"{"model":"no","messages":[]}"#), (404, "unknown_model"));
    assert_eq!(asked("/v1/chat/completions", &"x".repeat(1025)), (413, "too_large"));

    let headers = |change: fn(&mut RequestHead), path: &str| {
        let mut head = head(path);
        change(&mut head);
        let (phase, effects) =
            step(Phase::new(Some(BodyMode::Buffered)), Event::RequestHeaders(head), &rules());
        assert!(phase.is_decided());
        let (status, label, text) = immediate_of(&effects);
        (status, label.to_owned(), text)
    };
    let chat = "/v1/chat/completions";
    assert_eq!(headers(|h| h.content_type = Some("text/plain".into()), chat).0, 400);
    assert_eq!(headers(|h| h.content_type = None, chat).1, "content_type");
    assert_eq!(headers(|h| h.content_encoding = Some("gzip".into()), chat).1, "content_encoding");
    assert_eq!(headers(|h| h.content_length = Some(1025), chat).0, 413);
    assert_eq!(headers(|h| h.end = true, chat).1, "empty_body");
    assert_eq!(headers(|h| h.tenant = TenantHeader::Ambiguous, chat).1, "bad_tenant");
    assert_eq!(headers(|h| h.method = "GET".into(), chat).0, 405);
    for path in ["/metrics", "/collective_rpc", "/sleep", "/v1/chat/completions/", "//v1/chat/completions"] {
        assert_eq!(headers(|_| (), path).0, 404, "{path}");
    }
    let (_, _, text) = headers(|h| h.end = true, "/v1/messages");
    assert!(text.starts_with(r#"{"type":"error","error":{"type":"invalid_request_error""#), "{text}");
}

#[test]
fn an_unknown_model_is_told_what_exists() {
    let text = r#"{"model":"no","messages":[],"max_tokens":1}"#;
    let (_, effects) = run(
        BodyMode::Buffered,
        &rules(),
        vec![Event::RequestHeaders(head("/v1/chat/completions")), body(text)],
    );
    let (_, _, text) = immediate_of(&effects);
    let value: serde_json::Value = serde_json::from_str(&text).expect("json");
    assert_eq!(value["error"]["message"], "The model `no` does not exist. Valid models: forced, m, once.");
    assert_eq!(value["error"]["param"], "model");
}

#[test]
fn models_are_listed_in_both_shapes_and_one_by_one() {
    let get = |path: &str, anthropic| {
        let head = RequestHead {
            method: "GET".into(),
            path: path.into(),
            anthropic,
            end: true,
            ..RequestHead::default()
        };
        let (_, effects) = step(Phase::new(Some(BodyMode::Buffered)), Event::RequestHeaders(head), &rules());
        let (status, _, text) = immediate_of(&effects);
        (status, serde_json::from_str::<serde_json::Value>(&text).expect("json"))
    };
    let (_, list) = get("/v1/models", false);
    assert_eq!(list["data"][1]["id"], "m");
    assert_eq!(list["data"][1]["created"], 7);
    let (_, list) = get("/v1/models", true);
    assert_eq!((&list["first_id"], &list["last_id"]), (&"forced".into(), &"once".into()));
    assert_eq!(get("/v1/models/m", false).0, 200);
    assert_eq!(get("/v1/models/x", false).0, 404);
}

#[test]
fn every_denial_says_what_it_means_and_when_to_come_back() {
    let denied = |denial| {
        let events = vec![
            Event::RequestHeaders(head("/v1/chat/completions")),
            body(CHAT),
            Event::Answer(Answer::Denied(denial)),
        ];
        let (_, effects) = run(BodyMode::Buffered, &rules(), events);
        let [.., Effect::Reply(Reply::Immediate(response)), _] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        let text = String::from_utf8(response.body.clone()).expect("text");
        (response.status, response.label, response.headers.clone(), text)
    };
    let retry = vec![("retry-after", "3".to_owned())];
    for (denial, label, said) in [
        (Denial::NoneReady, "none_ready", "No endpoint of pool `a` is ready"),
        (Denial::NoneServes, "none_serves", "No ready endpoint of pool `a` has loaded the requested model"),
        (Denial::Full, "full", "as many requests as it can"),
    ] {
        let (status, have, headers, text) = denied(denial);
        assert_eq!((status, have, headers), (503, label, retry.clone()));
        assert!(text.contains(said), "{text}");
    }
    let (status, label, headers, _) = denied(Denial::Gone);
    assert_eq!((status, label, headers), (404, "unknown_response", Vec::new()), "coming back would not help");
}

#[test]
fn a_pick_learns_how_large_a_request_is_and_what_it_begins_with() {
    let asked = |rules: &Rules, path: &str, text: &str| {
        let events = vec![Event::RequestHeaders(head(path)), body(text)];
        match run(BodyMode::Buffered, rules, events).1.pop() {
            Some(Effect::Ask(inquiry)) => inquiry,
            other => panic!("{other:?}"),
        }
    };
    let words = "one two three ".repeat(40);
    let chat = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{words}"}}],"max_completion_tokens":7,"n":2}}"#
    );
    let inquiry = asked(&rules(), "/v1/chat/completions", &chat);
    assert_eq!(inquiry.prompt_bytes, words.len() as u64);
    assert_eq!((inquiry.prompt_token_ids, inquiry.output_tokens_max), (0, Some(14)));
    assert!(inquiry.prefix.chunks() > 0);
    let ids = asked(&rules(), "/v1/completions", r#"{"model":"m","prompt":[1,2,3]}"#);
    assert_eq!((ids.prompt_bytes, ids.prompt_token_ids, ids.output_tokens_max), (0, 3, None));

    let mut blind = rules();
    blind.models.values_mut().for_each(|rule| rule.prefix = false);
    assert_eq!(
        asked(&blind, "/v1/chat/completions", &chat).prefix,
        Prefix::default(),
        "nobody would look at it"
    );
    let vectors = format!(r#"{{"model":"m","input":"{words}"}}"#);
    assert_eq!(asked(&rules(), "/v1/embeddings", &vectors).prefix, Prefix::default());
}

#[test]
fn a_mode_that_cannot_work_is_refused_at_once() {
    let (_, effects) = step(Phase::new(None), Event::RequestHeaders(head("/v1/completions")), &rules());
    assert_eq!(immediate_of(&effects).1, "body_mode");
}

#[test]
fn a_held_stream_ends_with_the_exchange() {
    let rules = Rules { hold_stream: true, ..rules() };
    let events = vec![
        Event::RequestHeaders(head("/v1/chat/completions")),
        body(CHAT),
        grant(),
        Event::ResponseHeaders(ResponseHead { status: 200, upstream: None, retry_after: None }),
    ];
    let (phase, effects) = run(BodyMode::Buffered, &rules, events);
    assert!(matches!(phase, Phase::Held));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Finish(_))));
    let (_, effects) = step(phase, Event::Closed, &rules);
    assert_eq!(effects, [Effect::Ended, finish_ok()]);
}

#[test]
fn envoy_leaving_before_the_verdict_is_an_error_and_after_it_is_not() {
    let (_, effects) = step(Phase::new(Some(BodyMode::Buffered)), Event::Closed, &rules());
    assert_eq!(effects, [Effect::Finish(Finish::Error(StreamError::Gone))]);
    let events =
        vec![Event::RequestHeaders(head("/v1/chat/completions")), body(CHAT), grant(), Event::Closed];
    let (_, effects) = run(BodyMode::Buffered, &rules(), events);
    assert_eq!(effects[3..], [Effect::Abandoned, finish_ok()]);
}

fn any_event() -> impl proptest::strategy::Strategy<Value = Event> {
    let path = prop_oneof![
        Just("/v1/chat/completions"),
        Just("/v1/messages"),
        Just("/nothing"),
        Just("/v1/responses/resp_1"),
        Just("/v1/responses/resp_1/cancel"),
    ];
    let chunk = prop_oneof![Just(CHAT.as_bytes().to_vec()), Just(b"{".to_vec()), Just(Vec::new())];
    prop_oneof![
        (path, any::<bool>(), any::<bool>()).prop_map(|(path, end, get)| {
            let method = if get { "GET" } else { "POST" }.into();
            Event::RequestHeaders(RequestHead { method, end, ..head(path) })
        }),
        (chunk, any::<bool>()).prop_map(|(chunk, end)| Event::RequestBody { chunk, end }),
        Just(Event::RequestTrailers),
        Just(grant()),
        Just(Event::Answer(Answer::Denied(Denial::Full))),
        Just(Event::Answer(Answer::Denied(Denial::Gone))),
        Just(Event::ResponseHeaders(ResponseHead { status: 200, upstream: None, retry_after: None })),
        Just(Event::Closed),
    ]
}

proptest! {
    /// No verdict, no OK; one verdict at most; nothing after the end.
    #[test]
    fn in_whatever_order_events_come_no_stream_ends_with_ok_before_its_verdict(
        duplex in any::<bool>(),
        hold_stream in any::<bool>(),
        events in prop::collection::vec(any_event(), 0..12),
    ) {
        let rules = Rules { hold_stream, ..rules() };
        let mode = if duplex { BodyMode::FullDuplex } else { BodyMode::Buffered };
        let (_, effects) = run(mode, &rules, events);
        let mut decided = 0;
        let mut finished = false;
        for effect in &effects {
            prop_assert!(!finished, "nothing follows the end: {effects:?}");
            match effect {
                Effect::Reply(Reply::Verdict(_) | Reply::Immediate(_)) => decided += 1,
                Effect::Finish(Finish::Ok(_)) => {
                    prop_assert_eq!(decided, 1);
                    finished = true;
                }
                Effect::Finish(Finish::Error(_)) => finished = true,
                _ => {}
            }
        }
        prop_assert!(decided <= 1);
    }
}
