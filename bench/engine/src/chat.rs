//! Answers of `/v1/chat/completions`.

use crate::answer::Answer;
use crate::flow::{Death, Progress};
use crate::refusal::DEAD;
use crate::scheduler::Finish;
use crate::stream::{DONE, Events, Writer, event};
use crate::turn::{Turn, Usage, quote, quoted};
use std::fmt::Write;
use std::ops::Range;

/// What every answer says of the server's build.
pub(crate) const FINGERPRINT: &str = "\"system_fingerprint\":\"vllm-0.32.0-260fbee7\"";

/// A token's `logprobs`. The numbers mean nothing.
fn logprobs(answer: &Answer, tokens: &Range<u32>, alternatives: u32, out: &mut String) {
    let one = |index: u32, shift: u32, out: &mut String| {
        let text = answer.text(index..index + 1);
        let _ = write!(
            out,
            "{{\"token\":{},\"logprob\":{:?},\"bytes\":[",
            quoted(&text),
            -0.5 - f64::from(shift)
        );
        for (at, byte) in text.bytes().enumerate() {
            let _ = write!(out, "{}{byte}", if at == 0 { "" } else { "," });
        }
        out.push(']');
    };
    out.push_str("{\"content\":[");
    for index in tokens.clone() {
        out.push_str(if index == tokens.start { "" } else { "," });
        one(index, 0, out);
        out.push_str(",\"top_logprobs\":[");
        for shift in 0..alternatives {
            out.push_str(if shift == 0 { "" } else { "," });
            one(index + shift, shift, out);
            out.push('}');
        }
        out.push_str("]}");
    }
    out.push_str("]}");
}

fn ids(answer: &Answer, tokens: Range<u32>) -> String {
    let mut list = String::from("[");
    for (at, index) in tokens.enumerate() {
        let _ = write!(list, "{}{}", if at == 0 { "" } else { "," }, answer.id(index));
    }
    list + "]"
}

pub(crate) fn list(tokens: &[u32]) -> String {
    let mut list = String::with_capacity(tokens.len() * 10 + 2);
    list.push('[');
    for (at, token) in tokens.iter().enumerate() {
        let _ = write!(list, "{}{token}", if at == 0 { "" } else { "," });
    }
    list.push(']');
    list
}

/// What made an answer stop, in two members.
pub(crate) fn reasons(answer: &Answer, whole: bool) -> (&'static str, String) {
    let finish = match (answer.finish, answer.called()) {
        // A tool that was named is no "call"; one that was required is.
        (Finish::Stop, Some(call)) if !call.named || whole => "\"tool_calls\"",
        (Finish::Stop, _) => "\"stop\"",
        (Finish::Length, _) => "\"length\"",
    };
    (finish, answer.stop.as_deref().map_or("null".to_owned(), quoted))
}

/// Which tokens of which choice a chunk holds; with the reasons of its end, where these are the last.
struct Piece<'a> {
    at: usize,
    tokens: &'a Range<u32>,
    last: Option<(&'a str, &'a str)>,
}

/// Writes a stream of chunks.
pub(crate) struct Chunks {
    /// An event up to the first choice.
    head: String,
    begun: bool,
    /// Whether each sequence's tool call was announced.
    called: Vec<bool>,
    call_ids: Vec<String>,
}

impl Chunks {
    pub(crate) fn new(turn: &Turn, random: impl Fn() -> String) -> Self {
        let mut head = String::with_capacity(160);
        let _ = write!(
            head,
            r#"data: {{"id":{},"object":"chat.completion.chunk","created":{},"model":{},"choices":["#,
            quoted(&turn.id),
            turn.created,
            quoted(&turn.model)
        );
        let call_ids = turn.answers.iter().filter(|answer| answer.call.is_some()).map(|_| random()).collect();
        Self { head, begun: false, called: vec![false; turn.answers.len()], call_ids }
    }

    fn usage(turn: &Turn, generated: u64, out: &mut String) {
        if !turn.continuous_usage {
            return;
        }
        let prompt = turn.prompt_tokens();
        let _ = write!(
            out,
            ",\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{generated},\
             \"completion_tokens_details\":null}}",
            prompt + generated
        );
    }

    fn begin(&mut self, turn: &Turn, events: &mut Events) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let prompt = if turn.token_ids { list(&turn.prompts[0]) } else { "null".to_owned() };
        for index in 0..turn.answers.len() {
            let mut out = self.head.clone();
            let _ = write!(
                out,
                r#"{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]"#
            );
            Self::usage(turn, 0, &mut out);
            let _ = write!(out, r#","prompt_token_ids":{prompt},"prompt_text":null}}"#);
            events.push(event(out));
        }
    }

    /// One chunk of one choice. `delta` is complete.
    fn chunk(&self, turn: &Turn, piece: &Piece<'_>, delta: &str, events: &mut Events) {
        let Piece { at, tokens, last } = piece;
        let answer = &turn.answers[*at];
        let mut out = String::with_capacity(self.head.len() + delta.len() + 128);
        out.push_str(&self.head);
        let _ = write!(out, "{{\"index\":{at},\"delta\":{delta},\"logprobs\":");
        match turn.logprobs {
            Some(alternatives) if !tokens.is_empty() => logprobs(answer, tokens, alternatives, &mut out),
            _ => out.push_str("null"),
        }
        match last {
            None => out.push_str(",\"finish_reason\":null"),
            Some((finish, stop)) => {
                let _ = write!(out, ",\"finish_reason\":{finish},\"stop_reason\":{stop}");
            }
        }
        if turn.token_ids {
            let _ = write!(out, ",\"token_ids\":{}}}]", ids(answer, (*tokens).clone()));
        } else {
            out.push_str(",\"token_ids\":null}]");
        }
        Self::usage(turn, u64::from(tokens.end), &mut out);
        if last.is_some() && !turn.include_usage {
            let _ = write!(out, ",{FINGERPRINT}");
        }
        out.push('}');
        events.push(event(out));
    }

    /// The part of a tool call that some tokens hold.
    fn call(&mut self, turn: &Turn, at: usize, tokens: &Range<u32>, events: &mut Events) {
        let answer = &turn.answers[at];
        let Some(call) = &answer.call else { return };
        let place = answer.place(tokens);
        if place.end >= call.arguments.start && !std::mem::replace(&mut self.called[at], true) {
            let delta = format!(
                r#"{{"content":null,"tool_calls":[{{"id":"chatcmpl-tool-{}","type":"function","index":0,"function":{{"name":{}}}}}]}}"#,
                self.call_ids[at],
                quoted(&call.name)
            );
            self.chunk(turn, &Piece { at, tokens, last: None }, &delta, events);
        }
        let (from, to) = (place.start.max(call.arguments.start), place.end.min(call.arguments.end));
        if from < to {
            let text = quoted(&answer.script(from..to));
            let delta = format!(
                r#"{{"content":null,"tool_calls":[{{"index":0,"function":{{"arguments":{text}}}}}]}}"#
            );
            self.chunk(turn, &Piece { at, tokens, last: None }, &delta, events);
        }
    }

    fn last_usage(&self, turn: &Turn, usage: Usage, metrics: Option<String>, events: &mut Events) {
        let mut out = self.head.clone();
        let _ = write!(
            out,
            r#"],"usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{}"#,
            usage.prompt,
            usage.prompt + usage.generated,
            usage.generated
        );
        if turn.details {
            let _ = write!(
                out,
                r#","prompt_tokens_details":{{"cached_tokens":{},"created_cache_tokens":{}}}"#,
                usage.cached, usage.created
            );
        }
        let _ = write!(out, "}},{FINGERPRINT}");
        if let Some(metrics) = metrics {
            let _ = write!(out, ",\"metrics\":{metrics}}}");
        }
        out.push('}');
        events.push(event(out));
    }
}

impl Writer for Chunks {
    fn tokens(&mut self, turn: &Turn, at: usize, tokens: Range<u32>, finished: bool, events: &mut Events) {
        self.begin(turn, events);
        let answer = &turn.answers[at];
        let (finish, stop) = reasons(answer, false);
        let last = finished.then_some((finish, stop.as_str()));
        if answer.call.is_some() {
            self.call(turn, at, &tokens, events);
            if finished {
                self.chunk(turn, &Piece { at, tokens: &(tokens.end..tokens.end), last }, "{}", events);
            }
            return;
        }
        let text = answer.text(tokens.clone());
        let mut delta = String::with_capacity(text.len() + 14);
        if text.is_empty() {
            delta.push_str("{}");
        } else {
            delta.push_str("{\"content\":");
            quote(&text, &mut delta);
            delta.push('}');
        }
        self.chunk(turn, &Piece { at, tokens: &tokens, last }, &delta, events);
    }

    fn end(&mut self, turn: &Turn, progress: &[Progress], events: &mut Events) {
        if turn.include_usage {
            self.last_usage(turn, turn.usage(progress), turn.metrics(progress), events);
        }
        events.push(DONE);
    }

    fn died(&mut self, turn: &Turn, death: Death, progress: &[Progress], events: &mut Events) {
        if death == Death::Failed {
            events.push(failed());
            events.push(DONE);
            return;
        }
        for (at, one) in progress.iter().enumerate().filter(|(_, one)| !one.finished) {
            let none = one.generated..one.generated;
            let aborted = Piece { at, tokens: &none, last: Some(("\"abort\"", "null")) };
            self.chunk(turn, &aborted, "{}", events);
        }
        self.end(turn, progress, events);
    }
}

/// The event of a failed engine core. Its spaces are vLLM's: another encoder wrote it.
pub(crate) fn failed() -> bytes::Bytes {
    event(format!(
        r#"data: {{"error": {{"message": "{DEAD}", "type": "InternalServerError", "param": null, "code": 500}}}}"#
    ))
}

/// Usage of a whole answer.
pub(crate) fn usage(turn: &Turn, usage: Usage, created: &str) -> String {
    let details = if turn.details {
        format!(
            r#"{{"cached_tokens":{},"created_cache_tokens":{created},"multimodal_tokens":null}}"#,
            usage.cached
        )
    } else {
        "null".to_owned()
    };
    format!(
        r#"{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"prompt_tokens_details":{details},"completion_tokens_details":null}}"#,
        usage.prompt,
        usage.prompt + usage.generated,
        usage.generated
    )
}

/// A whole answer.
pub(crate) fn whole(turn: &Turn, progress: &[Progress], random: impl Fn() -> String) -> String {
    let mut out = format!(
        r#"{{"id":{},"object":"chat.completion","created":{},"model":{},"choices":["#,
        quoted(&turn.id),
        turn.created,
        quoted(&turn.model)
    );
    for (at, (answer, one)) in turn.answers.iter().zip(progress).enumerate() {
        let tokens = 0..one.generated;
        let text = answer.text(tokens.clone());
        let (finish, stop) = reasons(answer, true);
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(out, r#"{comma}{{"index":{at},"message":{{"role":"assistant","content":"#);
        match answer.called() {
            Some(_) => out.push_str("null"),
            None => quote(&text, &mut out),
        }
        out.push_str(r#","refusal":null,"annotations":null,"audio":null,"function_call":null,"#);
        if let Some(call) = answer.called() {
            let arguments = quoted(&answer.script(call.arguments.clone()));
            let (id, name) = (random(), quoted(&call.name));
            let _ = write!(
                out,
                r#""tool_calls":[{{"id":"chatcmpl-tool-{id}","type":"function","function":{{"name":{name},"arguments":{arguments}}}}}],"#
            );
        }
        out.push_str(r#""reasoning":null},"logprobs":"#);
        match turn.logprobs {
            Some(alternatives) => logprobs(answer, &tokens, alternatives, &mut out),
            None => out.push_str("null"),
        }
        let ids = if turn.token_ids { ids(answer, tokens) } else { "null".to_owned() };
        let _ = write!(
            out,
            r#","finish_reason":{finish},"stop_reason":{stop},"token_ids":{ids},"routed_experts":null}}"#
        );
    }
    let used = turn.usage(progress);
    let prompt = if turn.token_ids { list(&turn.prompts[0]) } else { "null".to_owned() };
    let metrics =
        turn.metrics(progress).map_or("null".to_owned(), |all| all + ",\"speculative_decoding\":null}");
    let _ = write!(
        out,
        r#"],"service_tier":null,{FINGERPRINT},"usage":{},"prompt_logprobs":null,"prompt_token_ids":{prompt},"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":{metrics}}}"#,
        usage(turn, used, &used.created.to_string())
    );
    out
}
