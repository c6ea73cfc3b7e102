//! The prompt as a pick sees it: its prefix, in the order in which an engine would render it, and its size.
//!
//! Chat templates put tools and system texts first, wherever the client wrote them; then come the messages in order.
//! Two requests whose bytes agree from the start in this order will mostly share their engine's cache as well. It is an
//! estimate: nothing but the choice of an endpoint hangs on it.

use ext_proc_pick::{Prefix, PrefixBuilder};
use proto_openai::{Api, Request, Span, SpanKind};

/// Stands for the tools, beside the roles below.
const TOOLS: u8 = 0;

fn kind(kind: SpanKind) -> u8 {
    match kind {
        SpanKind::System => 1,
        SpanKind::User => 2,
        SpanKind::Assistant => 3,
        SpanKind::Tool => 4,
        SpanKind::Plain => 5,
    }
}

/// The prompt's prefix. Escapes are taken as written: a client writes the same text the same way.
pub(crate) fn prefix(model: &str, request: &Request<'_>, body: &[u8]) -> Prefix {
    let mut builder = PrefixBuilder::new(&[model.as_bytes()]);
    if let Some(tools) = request.tools.as_ref().and_then(|range| body.get(range.clone())) {
        builder = builder.text(TOOLS, tools);
    }
    let add = |builder: PrefixBuilder, span: &Span| match body.get(span.range.clone()) {
        Some(text) => builder.text(kind(span.kind), text),
        None => builder,
    };
    let spans = request.prompt.spans.iter();
    if system_is_apart(request.api) {
        let is_system = |span: &&Span| span.kind == SpanKind::System;
        builder = spans.clone().filter(is_system).fold(builder, add);
        builder = spans.filter(|span| !is_system(span)).fold(builder, add);
    } else {
        builder = spans.fold(builder, add);
    }
    builder.finish()
}

/// Whether the system's text is a member of its own, which may stand behind the messages it is rendered before.
fn system_is_apart(api: Api) -> bool {
    matches!(api, Api::Messages | Api::Responses)
}

/// The most tokens that a request lets the engine generate, over all its choices; `None`: it doesn't say.
pub(crate) fn output_tokens_max(request: &Request<'_>) -> Option<u64> {
    if !request.api.can_stream() {
        // Nothing is generated for embeddings, scores and token counts.
        return Some(0);
    }
    request.max_tokens.map(|max| max.saturating_mul(u64::from(request.n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(api: Api, body: &str) -> Prefix {
        let request = proto_openai::scan(api, body.as_bytes()).expect("a good body");
        prefix("m", &request, body.as_bytes())
    }

    /// A text that is a few chunks long.
    fn long(word: &str) -> String {
        word.repeat(200)
    }

    #[test]
    fn tools_and_system_come_first_wherever_they_are_written() {
        let (system, user, tools) =
            (long("system "), long("user "), format!(r#"[{{"x":"{}"}}]"#, long("tool ")));
        let message = format!(r#"{{"role":"user","content":"{user}"}}"#);
        let before = format!(r#"{{"model":"m","system":"{system}","tools":{tools},"messages":[{message}]}}"#);
        let after = format!(r#"{{"messages":[{message}],"tools":{tools},"system":"{system}","model":"m"}}"#);
        assert_eq!(of(Api::Messages, &before), of(Api::Messages, &after));
        let instructed =
            format!(r#"{{"model":"m","input":[{message}],"instructions":"{system}","tools":{tools}}}"#);
        assert_eq!(of(Api::Responses, &instructed), of(Api::Messages, &before), "one conversation, two APIs");
        let chat = format!(
            r#"{{"model":"m","tools":{tools},"messages":[{{"role":"system","content":"{system}"}},{message}]}}"#
        );
        assert_eq!(of(Api::ChatCompletions, &chat), of(Api::Messages, &before));
    }

    #[test]
    fn who_speaks_and_the_model_keep_prompts_apart() {
        let say = |role: &str| {
            format!(r#"{{"model":"m","messages":[{{"role":"{role}","content":"{}"}}]}}"#, long("hello "))
        };
        assert_ne!(of(Api::ChatCompletions, &say("user")), of(Api::ChatCompletions, &say("assistant")));
        let body = say("user");
        let request = proto_openai::scan(Api::ChatCompletions, body.as_bytes()).expect("a good body");
        assert_ne!(prefix("m", &request, body.as_bytes()), prefix("n", &request, body.as_bytes()));
    }

    #[test]
    fn every_choice_may_be_as_long_as_the_request_allows() {
        let max = |api, body: &str| {
            output_tokens_max(&proto_openai::scan(api, body.as_bytes()).expect("a good body"))
        };
        let body = r#"{"model":"m","messages":[],"max_tokens":10,"n":3}"#;
        assert_eq!(max(Api::ChatCompletions, body), Some(30));
        assert_eq!(max(Api::ChatCompletions, r#"{"model":"m","messages":[]}"#), None);
        assert_eq!(max(Api::Embeddings, r#"{"model":"m","input":"x"}"#), Some(0));
    }
}
