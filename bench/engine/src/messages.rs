//! Answers of `/v1/messages`.

use crate::answer::Answer;
use crate::flow::{Death, Progress};
use crate::refusal::DEAD;
use crate::scheduler::Finish;
use crate::stream::{Events, Writer, event};
use crate::turn::{Turn, Usage, quoted};
use std::fmt::Write;
use std::ops::Range;

/// Why an answer ended, in two members.
fn reasons(answer: &Answer) -> (&'static str, String) {
    let stop = answer.stop.as_deref().map_or("null".to_owned(), quoted);
    let reason = match answer.finish {
        Finish::Length => "max_tokens",
        Finish::Stop if answer.stop.is_some() => "stop_sequence",
        Finish::Stop if answer.called().is_some() => "tool_use",
        Finish::Stop => "end_turn",
    };
    (reason, stop)
}

/// Input without what the cache gave and took.
fn usage(turn: &Turn, usage: Usage) -> String {
    let input = usage.prompt.saturating_sub(usage.cached + usage.created);
    if !turn.details {
        return format!(r#"{{"input_tokens":{},"output_tokens":{}}}"#, usage.prompt, usage.generated);
    }
    format!(
        r#"{{"input_tokens":{input},"output_tokens":{},"cache_creation_input_tokens":{},"cache_read_input_tokens":{}}}"#,
        usage.generated, usage.created, usage.cached
    )
}

/// Writes a stream of events.
pub(crate) struct Blocks {
    begun: bool,
    opened: bool,
    call_id: String,
}

fn named(name: &str, data: &str) -> bytes::Bytes {
    event(format!("event: {name}\ndata: {data}"))
}

impl Blocks {
    pub(crate) fn new(random: impl Fn() -> String) -> Self {
        Self { begun: false, opened: false, call_id: random() }
    }

    fn begin(&mut self, turn: &Turn, events: &mut Events) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let (id, model, prompt) = (quoted(&turn.id), quoted(&turn.model), turn.prompt_tokens());
        events.push(named(
            "message_start",
            &format!(
                r#"{{"type":"message_start","message":{{"id":{id},"type":"message","role":"assistant","content":[],"model":{model},"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{prompt},"output_tokens":0}}}}}}"#
            ),
        ));
    }

    fn open(&mut self, block: &str, events: &mut Events) {
        if !std::mem::replace(&mut self.opened, true) {
            let data = format!(r#"{{"type":"content_block_start","content_block":{block},"index":0}}"#);
            events.push(named("content_block_start", &data));
        }
    }
}

impl Writer for Blocks {
    fn tokens(&mut self, turn: &Turn, at: usize, tokens: Range<u32>, _finished: bool, events: &mut Events) {
        self.begin(turn, events);
        let answer = &turn.answers[at];
        let place = answer.place(&tokens);
        let (kind, member, text) = match &answer.call {
            Some(call) => {
                if place.end < call.arguments.start {
                    return;
                }
                let block = format!(
                    r#"{{"type":"tool_use","id":"chatcmpl-tool-{}","name":{},"input":{{}}}}"#,
                    self.call_id,
                    quoted(&call.name)
                );
                self.open(&block, events);
                let (from, to) = (place.start.max(call.arguments.start), place.end.min(call.arguments.end));
                ("input_json_delta", "partial_json", answer.script(from..to.max(from)))
            }
            None => {
                self.open(r#"{"type":"text","text":""}"#, events);
                ("text_delta", "text", answer.text(tokens))
            }
        };
        if !text.is_empty() {
            let data = format!(
                r#"{{"type":"content_block_delta","delta":{{"type":"{kind}","{member}":{}}},"index":0}}"#,
                quoted(&text)
            );
            events.push(named("content_block_delta", &data));
        }
    }

    fn end(&mut self, turn: &Turn, progress: &[Progress], events: &mut Events) {
        if self.opened {
            events.push(named("content_block_stop", r#"{"type":"content_block_stop","index":0}"#));
        }
        let (reason, stop) = reasons(&turn.answers[0]);
        let usage = usage(turn, turn.usage(progress));
        let data = format!(
            r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}","stop_sequence":{stop}}},"usage":{usage}}}"#
        );
        events.push(named("message_delta", &data));
        events.push(named("message_stop", r#"{"type":"message_stop"}"#));
    }

    fn died(&mut self, _turn: &Turn, _death: Death, _progress: &[Progress], events: &mut Events) {
        let data = format!(r#"{{"type":"error","error":{{"type":"internal_error","message":"{DEAD}"}}}}"#);
        events.push(named("error", &data));
    }
}

/// A whole answer.
pub(crate) fn whole(turn: &Turn, progress: &[Progress], random: impl Fn() -> String) -> String {
    let answer = &turn.answers[0];
    let mut out = format!(r#"{{"id":{},"type":"message","role":"assistant","content":["#, quoted(&turn.id));
    match answer.called() {
        Some(call) => {
            let (id, name) = (random(), quoted(&call.name));
            let input = answer.script(call.arguments.clone());
            let _ = write!(
                out,
                r#"{{"type":"tool_use","id":"chatcmpl-tool-{id}","name":{name},"input":{input}}}"#
            );
        }
        None => {
            let text = quoted(&answer.text(0..progress.first().map_or(0, |one| one.generated)));
            let _ = write!(out, r#"{{"type":"text","text":{text}}}"#);
        }
    }
    let (reason, stop) = reasons(answer);
    let stop = if stop == "null" { String::new() } else { format!(r#""stop_sequence":{stop},"#) };
    let _ = write!(
        out,
        r#"],"model":{},"stop_reason":"{reason}",{stop}"usage":{}}}"#,
        quoted(&turn.model),
        usage(turn, turn.usage(progress))
    );
    out
}
