use super::super::tests::{body, grant, head, immediate_of, rules, run};
use super::*;
use crate::event::{Answer, Denial, Event, Finish, Grant, ResponseHead, TenantHeader};
use crate::phase::step;
use crate::verdict::Verdict;

const ID: &str = "resp_0123";
const MODES: [BodyMode; 2] = [BodyMode::Buffered, BodyMode::FullDuplex];

fn fetch() -> RequestHead {
    RequestHead {
        method: "GET".into(),
        path: format!("/v1/responses/{ID}?stream=true&starting_after=3"),
        end: true,
        ..RequestHead::default()
    }
}

fn cancel(end: bool) -> RequestHead {
    RequestHead {
        method: "POST".into(),
        path: format!("/v1/responses/{ID}/cancel"),
        end,
        ..RequestHead::default()
    }
}

fn denied(denial: Denial) -> Event {
    Event::Answer(Answer::Denied(denial))
}

fn verdict_of(effects: &[Effect]) -> &Verdict {
    match effects.last() {
        Some(Effect::Reply(Reply::Verdict(verdict))) => verdict,
        _ => panic!("no verdict but {effects:?}"),
    }
}

/// A `POST /v1/responses` up to its question.
fn create(model: &str, members: &str) -> (Phase, Vec<Effect>) {
    let text = format!(r#"{{"model":"{model}","input":"hi"{members}}}"#);
    run(BodyMode::Buffered, &rules(), vec![Event::RequestHeaders(head("/v1/responses")), body(&text)])
}

fn asked(effects: &[Effect]) -> &Inquiry {
    match effects.last() {
        Some(Effect::Ask(inquiry)) => inquiry,
        _ => panic!("no question but {effects:?}"),
    }
}

#[test]
fn without_a_body_the_reply_to_the_headers_is_the_verdict_in_both_modes() {
    for (mode, head) in MODES.into_iter().flat_map(|mode| [(mode, fetch()), (mode, cancel(true))]) {
        let (phase, effects) = run(mode, &rules(), vec![Event::RequestHeaders(head)]);
        let [Effect::Ask(inquiry)] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!((inquiry.api, inquiry.stored.as_deref()), (Api::StoredResponse, Some(ID)));
        assert_eq!((inquiry.tenant.as_str(), inquiry.names_response), ("anonymous", false));
        let (phase, effects) = step(phase, grant(), &rules());
        let [Effect::Reply(Reply::Verdict(verdict))] = effects.as_slice() else { panic!("{effects:?}") };
        assert!(verdict.is_bodiless() && !verdict.is_edited() && verdict.body().is_empty());
        assert_eq!(
            (verdict.pool(), verdict.plan().to_string().as_str()),
            ("a", "1;stored_response;whole;strip=nothing")
        );
        let response =
            Event::ResponseHeaders(ResponseHead { status: 200, upstream: None, retry_after: None });
        let (_, effects) = step(phase, response, &rules());
        assert!(matches!(effects.last(), Some(Effect::Finish(Finish::Ok(_)))));
    }
}

#[test]
fn with_a_body_the_verdict_waits_for_it_and_it_goes_on_as_it_is() {
    for text in ["", "{}", "no json"] {
        let (_, effects) = run(
            BodyMode::Buffered,
            &rules(),
            vec![Event::RequestHeaders(cancel(false)), body(text), grant()],
        );
        assert!(matches!(effects.as_slice(), [Effect::Reply(Reply::Proceed), Effect::Ask(_), _]));
        let verdict = verdict_of(&effects);
        assert!(!verdict.is_bodiless() && !verdict.is_edited());
        assert_eq!(verdict.body(), text.as_bytes());
    }
    let piece = |end| Event::RequestBody { chunk: b"{".to_vec(), end };
    let begun = vec![Event::RequestHeaders(cancel(false)), piece(false)];
    let (phase, effects) = run(BodyMode::FullDuplex, &rules(), begun);
    assert!(effects.is_empty() && !phase.is_decided());
    let (phase, effects) = step(phase, Event::RequestTrailers, &rules());
    assert!(matches!(effects.as_slice(), [Effect::Ask(_)]));
    let (_, effects) = step(phase, grant(), &rules());
    assert!(verdict_of(&effects).has_trailers());
    let begun = vec![Event::RequestHeaders(cancel(false)), Event::RequestTrailers];
    let (_, effects) = run(BodyMode::Buffered, &rules(), begun);
    assert_eq!(
        effects.last(),
        Some(&Effect::Finish(Finish::Error(StreamError::OutOfOrder))),
        "a reply to trailers can carry no verdict"
    );
}

#[test]
fn what_is_not_found_is_a_404_as_vllm_words_it() {
    let unknown = || denied(Denial::Gone);
    let (_, effects) = run(BodyMode::Buffered, &rules(), vec![Event::RequestHeaders(fetch()), unknown()]);
    let (status, label, text) = immediate_of(&effects);
    assert_eq!((status, label), (404, "unknown_response"));
    let wanted = r#"{"error":{"message":"Response with id 'resp_0123' not found.","type":"invalid_request_error","param":"response_id","code":404}}"#;
    assert_eq!(text, wanted);
    let (phase, effects) = create("m", r#","previous_response_id":"resp_0123""#);
    assert_eq!(asked(&effects).stored.as_deref(), Some(ID));
    let (_, effects) = step(phase, unknown(), &rules());
    assert_eq!(immediate_of(&effects).2, wanted);
    let long = format!(r#","previous_response_id":"{}é""#, "x".repeat(127));
    let (_, effects) = create("m", &long);
    let (status, _, text) = immediate_of(&effects);
    assert!(
        status == 404 && text.contains(&format!("'{}'", "x".repeat(127))),
        "nothing so long is looked up: {text}"
    );
}

#[test]
fn an_engine_that_is_away_is_a_503_that_says_when_to_come_back() {
    let events = vec![Event::RequestHeaders(fetch()), denied(Denial::NoneReady)];
    let (_, effects) = run(BodyMode::Buffered, &rules(), events);
    let (status, label, _) = immediate_of(&effects);
    assert_eq!((status, label), (503, "response_away"));
}

#[test]
fn bad_requests_are_refused_before_anything_is_asked() {
    let refused = |change: fn(&mut RequestHead)| {
        let mut head = cancel(false);
        change(&mut head);
        let (_, effects) = run(BodyMode::Buffered, &rules(), vec![Event::RequestHeaders(head)]);
        let (status, label, _) = immediate_of(&effects);
        (status, label.to_owned())
    };
    assert_eq!(refused(|h| h.content_length = Some(4097)), (413, "too_large".into()));
    assert_eq!(refused(|h| h.tenant = TenantHeader::Ambiguous), (400, "bad_tenant".into()));
    assert_eq!(refused(|h| h.method = "DELETE".into()), (405, "wrong_method".into()));
    let (_, effects) = step(Phase::new(None), Event::RequestHeaders(fetch()), &rules());
    assert_eq!(immediate_of(&effects).1, "body_mode");
    let chunk = Event::RequestBody { chunk: vec![b' '; 4097], end: false };
    for mode in MODES {
        let (_, effects) = run(mode, &rules(), vec![Event::RequestHeaders(cancel(false)), chunk.clone()]);
        assert_eq!(immediate_of(&effects).0, 413);
    }
}

#[test]
fn a_response_is_named_where_an_engine_keeps_it() {
    let granted = |phase| {
        let named = Grant {
            pool: "a".into(),
            endpoints: vec![([10, 0, 0, 1], 8000).into()],
            token: "tok".into(),
            response_id: Some("resp_1".into()),
        };
        let (_, effects) = step(phase, Event::Answer(Answer::Granted(named)), &rules());
        let verdict = verdict_of(&effects);
        (verdict.is_edited(), String::from_utf8(verdict.body().to_vec()).expect("text"))
    };
    let (phase, effects) = create("m", r#","background":true,"stream":true"#);
    assert!(asked(&effects).names_response && asked(&effects).background);
    let edited = r#"{"request_id":"resp_1","model":"m","input":"hi","background":true,"stream":true}"#;
    assert_eq!(granted(phase), (true, edited.to_owned()));
    let chat = r#"{"model":"m","messages":[]}"#;
    let events = vec![Event::RequestHeaders(head("/v1/chat/completions")), body(chat)];
    let (phase, effects) = run(BodyMode::Buffered, &rules(), events);
    assert!(!asked(&effects).names_response && asked(&effects).stored.is_none());
    assert_eq!(granted(phase), (false, chat.to_owned()), "only responses have names");
}

#[test]
fn what_a_provider_keeps_passes_as_it_is_but_not_into_the_background() {
    let (_, effects) = create("forced", r#","previous_response_id":"resp_0123""#);
    let inquiry = asked(&effects);
    assert!(inquiry.stored.is_none() && !inquiry.names_response);
    let (_, effects) = create("forced", r#","background":true"#);
    let (status, label, text) = immediate_of(&effects);
    assert_eq!((status, label), (400, "bad_body"));
    assert!(text.contains("can't be counted") && text.contains(r#""param":"background""#), "{text}");
}
