//! Answers of `/v1/responses`, and the store of finished ones.

use crate::flow::{Death, Progress};
use crate::refusal::Refusal;
use crate::scheduler::Finish;
use crate::stream::{Events, Writer, event};
use crate::turn::{Turn, Usage, quoted};
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::ops::Range;

/// Responses that are kept; older ones go.
const STORED_MAX: usize = 10_000;

/// A response that is kept.
#[derive(Debug)]
struct Kept {
    json: String,
    /// What was said, as role and text: the input of the next one.
    turns: Vec<(String, String)>,
    open: bool,
    cancelled: bool,
}

/// Responses by their id.
#[derive(Debug, Default)]
pub(crate) struct Store {
    kept: HashMap<String, Kept>,
    order: VecDeque<String>,
}

impl Store {
    /// A response that is being answered; `json` is what it looks like so far.
    pub(crate) fn open(&mut self, id: &str, json: String, turns: Vec<(String, String)>) {
        if self.order.len() >= STORED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.kept.remove(&oldest);
        }
        self.order.push_back(id.to_owned());
        self.kept.insert(id.to_owned(), Kept { json, turns, open: true, cancelled: false });
    }

    /// A response that is answered.
    pub(crate) fn finish(&mut self, turn: &Turn, json: String, text: &str) {
        if let Some(kept) = self.kept.get_mut(&turn.id).filter(|kept| !kept.cancelled) {
            kept.json = json;
            kept.open = false;
            kept.turns.push(("assistant".to_owned(), text.to_owned()));
        }
    }

    /// What was said up to a response.
    pub(crate) fn history(&self, id: &str) -> Result<Vec<(String, String)>, Refusal> {
        self.finished(id).map(|kept| kept.turns.clone())
    }

    /// A response as JSON.
    pub(crate) fn get(&self, id: &str) -> Result<String, Refusal> {
        self.finished(id).map(|kept| kept.json.clone())
    }

    fn finished(&self, id: &str) -> Result<&Kept, Refusal> {
        self.kept.get(id).ok_or_else(|| Refusal::response_not_found(id))
    }

    /// Cancels a response that is being answered in the background.
    pub(crate) fn cancel(&mut self, id: &str) -> Result<String, Refusal> {
        let kept = self.kept.get_mut(id).ok_or_else(|| Refusal::response_not_found(id))?;
        if !kept.open {
            let message = "Cannot cancel a synchronous response.".to_owned();
            return Err(Refusal::new(400, "invalid_request_error", message, Some("response_id")));
        }
        kept.open = false;
        kept.cancelled = true;
        kept.json = kept.json.replacen(r#""status":"queued""#, r#""status":"cancelled""#, 1);
        Ok(kept.json.clone())
    }

    /// Whether a response was cancelled.
    pub(crate) fn cancelled(&self, id: &str) -> bool {
        self.kept.get(id).is_some_and(|kept| kept.cancelled)
    }
}

fn usage_json(usage: Usage, details: bool) -> String {
    let (cached, created) = if details { (usage.cached, usage.created) } else { (0, 0) };
    format!(
        r#"{{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{cached},"cache_write_tokens":{created},"input_tokens_per_turn":[],"cached_tokens_per_turn":[]}},"output_tokens":{},"output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]}},"total_tokens":{}}}"#,
        usage.prompt,
        usage.generated,
        usage.prompt + usage.generated
    )
}

/// The response object. `output` and `usage` are JSON.
fn object(turn: &Turn, status: &str, output: &str, usage: &str) -> String {
    let echoed = &turn.echoed;
    let incomplete = if status == "incomplete" { r#"{"reason":"max_output_tokens"}"# } else { "null" };
    let most = turn.max_tokens.unwrap_or_else(|| turn.answers[0].tokens);
    let mut out = format!(
        r#"{{"id":{},"created_at":{},"incomplete_details":{incomplete},"instructions":{},"metadata":{},"model":{},"object":"response","output":[{output}],"#,
        quoted(&turn.id),
        turn.created,
        echoed.instructions,
        echoed.metadata,
        quoted(&turn.model)
    );
    let _ = write!(
        out,
        r#""parallel_tool_calls":true,"temperature":{:?},"tool_choice":{},"tools":{},"top_p":{:?},"background":{},"max_output_tokens":{most},"max_tool_calls":null,"previous_response_id":{},"prompt":null,"reasoning":null,"service_tier":"auto","status":"{status}","text":null,"top_logprobs":null,"truncation":"disabled","usage":{usage},"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}}"#,
        echoed.temperature,
        echoed.tool_choice,
        echoed.tools,
        echoed.top_p,
        echoed.background,
        echoed.previous
    );
    out
}

fn part(text: &str) -> String {
    format!(r#"{{"annotations":[],"text":{},"type":"output_text","logprobs":null}}"#, quoted(text))
}

fn item(id: &str, text: &str) -> String {
    let part = part(text);
    format!(
        r#"{{"id":"{id}","content":[{part}],"role":"assistant","status":"completed","type":"message","phase":null}}"#
    )
}

fn status(turn: &Turn) -> &'static str {
    if turn.answers[0].finish == Finish::Length { "incomplete" } else { "completed" }
}

fn finished(turn: &Turn, item_id: &str, progress: &[Progress]) -> String {
    let text = turn.answers[0].text(0..progress.first().map_or(0, |one| one.generated));
    object(turn, status(turn), &item(item_id, &text), &usage_json(turn.usage(progress), turn.details))
}

/// A response that waits for its answer in the background.
pub(crate) fn queued(turn: &Turn) -> String {
    object(turn, "queued", "", "null")
}

/// A whole answer.
pub(crate) fn whole(turn: &Turn, progress: &[Progress], random: impl Fn() -> String) -> String {
    finished(turn, &format!("msg_{}", random()), progress)
}

/// Writes a stream of events.
pub(crate) struct Steps {
    item: String,
    sequence: u64,
    begun: bool,
    finished: Option<String>,
}

impl Steps {
    pub(crate) fn new(random: impl Fn() -> String) -> Self {
        Self { item: format!("msg_{}", random()), sequence: 0, begun: false, finished: None }
    }

    /// An event; its number and type come last.
    fn push(&mut self, kind: &str, members: &str, events: &mut Events) {
        let number = self.sequence;
        self.sequence += 1;
        events.push(event(format!(
            "event: {kind}\ndata: {{{members},\"sequence_number\":{number},\"type\":\"{kind}\"}}"
        )));
    }
}

impl Writer for Steps {
    fn accepted(&mut self, turn: &Turn, events: &mut Events) {
        let response = format!("\"response\":{}", object(turn, "in_progress", "", "null"));
        self.push("response.created", &response, events);
        self.push("response.in_progress", &response, events);
    }

    fn tokens(&mut self, turn: &Turn, at: usize, tokens: Range<u32>, _finished: bool, events: &mut Events) {
        let item = self.item.clone();
        if !std::mem::replace(&mut self.begun, true) {
            let added = format!(
                r#""item":{{"id":"{item}","content":[],"role":"assistant","status":"in_progress","type":"message","phase":null}},"output_index":0"#
            );
            self.push("response.output_item.added", &added, events);
            let part = format!(
                r#""content_index":0,"item_id":"{item}","output_index":0,"part":{{"annotations":[],"text":"","type":"output_text","logprobs":[]}}"#
            );
            self.push("response.content_part.added", &part, events);
        }
        let text = turn.answers[at].text(tokens);
        if !text.is_empty() {
            let delta = format!(
                r#""content_index":0,"delta":{},"item_id":"{item}","logprobs":[],"output_index":0"#,
                quoted(&text)
            );
            self.push("response.output_text.delta", &delta, events);
        }
    }

    fn end(&mut self, turn: &Turn, progress: &[Progress], events: &mut Events) {
        let id = self.item.clone();
        let text = turn.answers[0].text(0..progress.first().map_or(0, |one| one.generated));
        let place = format!(r#""content_index":0,"item_id":"{id}","#);
        let done = format!(r#"{place}"logprobs":[],"output_index":0"#);
        // The text comes after the number here, as it does there.
        let number = self.sequence;
        self.sequence += 1;
        events.push(event(format!(
            "event: response.output_text.done\ndata: {{{done},\"sequence_number\":{number},\"text\":{},\"type\":\"response.output_text.done\"}}",
            quoted(&text)
        )));
        let part = format!(r#"{place}"output_index":0,"part":{}"#, part(&text));
        self.push("response.content_part.done", &part, events);
        let item = format!(r#""item":{},"output_index":0"#, item(&id, &text));
        self.push("response.output_item.done", &item, events);
        let response = finished(turn, &id, progress);
        self.push("response.completed", &format!("\"response\":{response}"), events);
        self.finished = Some(response);
    }

    fn died(&mut self, turn: &Turn, _death: Death, _progress: &[Progress], events: &mut Events) {
        let response = object(turn, "failed", "", "null");
        self.push("response.failed", &format!("\"response\":{response}"), events);
    }

    fn keep(&mut self) -> Option<String> {
        self.finished.take()
    }
}
