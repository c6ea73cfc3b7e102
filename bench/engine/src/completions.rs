//! Answers of `/v1/completions`.

use crate::answer::Answer;
use crate::chat::{self, FINGERPRINT, failed, list, reasons};
use crate::flow::{Death, Progress};
use crate::stream::{DONE, Events, Writer, event};
use crate::turn::{Turn, quote, quoted};
use std::fmt::Write;
use std::ops::Range;

/// Tokens' `logprobs`. The numbers mean nothing.
fn logprobs(answer: &Answer, tokens: &Range<u32>, alternatives: u32, before: usize, out: &mut String) {
    let texts: Vec<String> = tokens.clone().map(|index| answer.text(index..index + 1)).collect();
    let join = |out: &mut String, one: &dyn Fn(usize) -> String| {
        for at in 0..texts.len() {
            let _ = write!(out, "{}{}", if at == 0 { "" } else { "," }, one(at));
        }
    };
    let start = answer.place(tokens).start + before;
    out.push_str("{\"text_offset\":[");
    join(out, &|at| (start + texts[..at].iter().map(String::len).sum::<usize>()).to_string());
    out.push_str("],\"token_logprobs\":[");
    join(out, &|_| "-0.5".to_owned());
    out.push_str("],\"tokens\":[");
    join(out, &|at| quoted(&texts[at]));
    out.push_str("],\"top_logprobs\":[");
    join(out, &|at| {
        let mut all = format!("{{{}:-0.5", quoted(&texts[at]));
        for shift in 1..=alternatives {
            let _ = write!(all, ",\" {shift}\":{:?}", -0.5 - f64::from(shift));
        }
        all + "}"
    });
    out.push_str("]}");
}

/// Writes a stream of chunks.
pub(crate) struct Chunks {
    head: String,
    begun: Vec<bool>,
}

impl Chunks {
    pub(crate) fn new(turn: &Turn) -> Self {
        let head = format!(
            r#"data: {{"id":{},"object":"text_completion","created":{},"model":{},"choices":["#,
            quoted(&turn.id),
            turn.created,
            quoted(&turn.model)
        );
        Self { head, begun: vec![false; turn.answers.len()] }
    }

    fn chunk(
        &mut self,
        turn: &Turn,
        at: usize,
        tokens: &Range<u32>,
        last: Option<(&str, &str)>,
        events: &mut Events,
    ) {
        let (answer, prompt) = (&turn.answers[at], at / turn.n);
        let first = !std::mem::replace(&mut self.begun[at], true);
        let echoed = turn.echo.as_ref().map_or("", |texts| texts[prompt].as_str());
        let mut text = if first { echoed.to_owned() } else { String::new() };
        text.push_str(&answer.text(tokens.clone()));
        let mut out = String::with_capacity(self.head.len() + text.len() + 160);
        out.push_str(&self.head);
        let _ = write!(out, "{{\"index\":{at},\"text\":");
        quote(&text, &mut out);
        out.push_str(",\"logprobs\":");
        match turn.logprobs {
            Some(alternatives) => logprobs(answer, tokens, alternatives, echoed.len(), &mut out),
            None => out.push_str("null"),
        }
        let (finish, stop) = last.unwrap_or(("null", "null"));
        let ids = |wanted: bool, ids: &dyn Fn() -> String| if wanted { ids() } else { "null".to_owned() };
        let prompt_ids =
            ids(first && (turn.token_ids || turn.echo.is_some()), &|| list(&turn.prompts[prompt]));
        let own =
            ids(turn.token_ids, &|| list(&tokens.clone().map(|index| answer.id(index)).collect::<Vec<_>>()));
        let _ = write!(
            out,
            r#","finish_reason":{finish},"stop_reason":{stop},"prompt_token_ids":{prompt_ids},"token_ids":{own}}}]"#
        );
        if turn.continuous_usage {
            let (prompt, generated) = (turn.prompts[prompt].len() as u64, u64::from(tokens.end));
            let _ = write!(
                out,
                r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{generated}}}"#,
                prompt + generated
            );
        }
        if last.is_some() && !turn.include_usage {
            let _ = write!(out, ",{FINGERPRINT}");
        }
        out.push('}');
        events.push(event(out));
    }
}

impl Writer for Chunks {
    fn tokens(&mut self, turn: &Turn, at: usize, tokens: Range<u32>, finished: bool, events: &mut Events) {
        let (finish, stop) = reasons(&turn.answers[at], false);
        self.chunk(turn, at, &tokens, finished.then_some((finish, stop.as_str())), events);
    }

    fn end(&mut self, turn: &Turn, progress: &[Progress], events: &mut Events) {
        if turn.include_usage {
            let usage = turn.usage(progress);
            let mut out = self.head.clone();
            let _ = write!(
                out,
                r#"],"usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{}"#,
                usage.prompt,
                usage.prompt + usage.generated,
                usage.generated
            );
            if turn.details {
                let _ = write!(out, r#","prompt_tokens_details":{{"cached_tokens":{}}}"#, usage.cached);
            }
            let _ = write!(out, "}},{FINGERPRINT}");
            if let Some(metrics) = turn.metrics(progress) {
                let _ = write!(out, ",\"metrics\":{metrics}}}");
            }
            out.push('}');
            events.push(event(out));
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
            self.chunk(turn, at, &(one.generated..one.generated), Some(("\"abort\"", "null")), events);
        }
        self.end(turn, progress, events);
    }
}

/// A whole answer.
pub(crate) fn whole(turn: &Turn, progress: &[Progress]) -> String {
    let mut out = format!(
        r#"{{"id":{},"object":"text_completion","created":{},"model":{},"choices":["#,
        quoted(&turn.id),
        turn.created,
        quoted(&turn.model)
    );
    for (at, (answer, one)) in turn.answers.iter().zip(progress).enumerate() {
        let (tokens, prompt) = (0..one.generated, at / turn.n);
        let echoed = turn.echo.as_ref().map_or("", |texts| texts[prompt].as_str());
        let text = format!("{echoed}{}", answer.text(tokens.clone()));
        let _ = write!(out, "{}{{\"index\":{at},\"text\":", if at == 0 { "" } else { "," });
        quote(&text, &mut out);
        out.push_str(",\"logprobs\":");
        match turn.logprobs {
            Some(alternatives) => logprobs(answer, &tokens, alternatives, echoed.len(), &mut out),
            None => out.push_str("null"),
        }
        let (finish, stop) = reasons(answer, false);
        let (mut own, mut prompt_ids) = ("null".to_owned(), "null".to_owned());
        if turn.token_ids {
            own = list(&tokens.map(|index| answer.id(index)).collect::<Vec<_>>());
            prompt_ids = list(&turn.prompts[prompt]);
        }
        let _ = write!(
            out,
            r#","finish_reason":{finish},"stop_reason":{stop},"token_ids":{own},"prompt_logprobs":null,"prompt_token_ids":{prompt_ids},"routed_experts":null}}"#
        );
    }
    let metrics =
        turn.metrics(progress).map_or("null".to_owned(), |all| all + ",\"speculative_decoding\":null}");
    let usage = chat::usage(turn, turn.usage(progress), "null");
    let _ = write!(
        out,
        r#"],"service_tier":null,{FINGERPRINT},"usage":{usage},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":{metrics}}}"#
    );
    out
}
