//! The four APIs that generate: checks, admission, and the writer of the answer.

use super::{Call, Load};
use crate::ask::Ask;
use crate::books::{End, Entry};
use crate::config::Faults;
use crate::http::{NoAnswer, Reply};
use crate::refusal::Refusal;
use crate::state::{State, Ticket};
use crate::stream::{Streaming, Writer, ended};
use crate::turn::{Api, Turn};
use crate::{chat, completions, messages, prompt, responses};
use bytes::Bytes;
use http::Response;
use std::sync::Arc;

const PRIORITY: &str = "x-vllm-priority";
const RANK: &str = "x-data-parallel-rank";

impl Call {
    pub(super) async fn generate(
        self,
        api: Api,
        body: Bytes,
        load: Load,
    ) -> Result<Response<Reply>, NoAnswer> {
        let faults = self.state.faults();
        let entry = self.state.enter(self.entry(api));
        if faults.reset_after_tokens == Some(0) {
            self.busy.link().reset();
            self.close(entry, 0, End::Died);
            return Err(NoAnswer);
        }
        if faults.hangs() {
            self.state.awake().await;
        }
        let admitted = self.admit(api, &body, entry, &faults);
        drop(body);
        match admitted {
            Ok((turn, ticket, kept)) => self.accepted(turn, ticket, kept, load).await,
            Err(mut refusal) => {
                refusal.retry_after_s = faults.retry_after_s.filter(|_| refusal.status >= 429);
                self.close(entry, refusal.status, End::Refused);
                Ok(self.refuse(&refusal, api))
            }
        }
    }

    fn entry(&self, api: Api) -> Entry {
        Entry {
            request_id: self.head.request_id.clone(),
            id: String::new(),
            api: api.path(),
            model: String::new(),
            streamed: false,
            arrived_us: self.state.core().now() / 1000,
            status: 0,
            sequences: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            queued_us: None,
            first_token_us: None,
            last_token_us: None,
            end: End::Open,
        }
    }

    fn close(&self, entry: u64, status: u16, end: End) {
        self.state.books().change(entry, |entry| {
            entry.status = status;
            entry.end = end;
        });
    }

    /// Reads, checks and submits.
    fn admit(
        &self,
        api: Api,
        body: &[u8],
        entry: u64,
        faults: &Faults,
    ) -> Result<(Turn, Ticket, Option<Kept>), Refusal> {
        let state = &self.state;
        if let Some(status) = faults.fail_with {
            return Err(Refusal::new(status, "InternalServerError", "failed on purpose".to_owned(), None));
        }
        if faults.draining {
            return Err(Refusal::draining());
        }
        if state.is_dead() {
            return Err(Refusal::dead());
        }
        let header = |name: &str| self.head.headers.get(name).and_then(|value| value.to_str().ok());
        let ask: Ask<'_> = serde_json::from_slice(body).map_err(|error| Refusal::body(body, &error))?;
        let previous = ask.previous_response_id.as_deref().filter(|_| api == Api::Responses);
        let history = previous.map(|id| state.store().history(id)).transpose()?.unwrap_or_default();
        let priority = header(PRIORITY).and_then(|priority| priority.parse().ok());
        let mut turn = Turn::plan(api, &ask, &state.config, &history, priority)?;
        if let Some(rank) = header(RANK).filter(|rank| *rank != "0") {
            return Err(Refusal::rank(rank));
        }
        turn.id = match api {
            Api::Responses => ask.request_id.clone().unwrap_or_else(|| format!("resp_{}", state.random())),
            _ => {
                let given = self.head.request_id.as_deref().or(ask.request_id.as_deref());
                let kind = if api == Api::Completions { "cmpl" } else { "chatcmpl" };
                given.map_or_else(|| format!("{kind}-{}", state.random()), |id| format!("{kind}-{id}"))
            }
        };
        let background = ask.background == Some(true) && api == Api::Responses;
        if background && !state.config.responses_store {
            let message = "This vLLM engine does not support `store=True` and therefore does not support the background \
                           mode. To enable these features, set the environment variable \
                           `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.";
            return Err(Refusal::new(400, "invalid_request_error", message.to_owned(), Some("background")));
        }
        state.books().change(entry, |entry| {
            entry.id.clone_from(&turn.id);
            entry.model.clone_from(&turn.model);
            entry.streamed = turn.streamed;
            entry.sequences = turn.answers.len() as u32;
            entry.prompt_tokens = turn.prompt_tokens();
            entry.status = 200;
        });
        let ticket = state.submit(turn.jobs(), turn.n, entry).map_err(|_| Refusal::full())?;
        let kept = api == Api::Responses && state.config.responses_store && ask.store != Some(false);
        let kept = kept.then(|| {
            let mut turns = history;
            turns.extend(prompt::turns(&ask));
            state.store().open(&turn.id, responses::queued(&turn), turns);
            Kept { background }
        });
        Ok((turn, ticket, kept))
    }

    async fn accepted(
        self,
        turn: Turn,
        mut ticket: Ticket,
        kept: Option<Kept>,
        load: Load,
    ) -> Result<Response<Reply>, NoAnswer> {
        let reset_after = self.state.faults().reset_after_tokens;
        if kept.is_some_and(|kept| kept.background) && !turn.streamed {
            let json = responses::queued(&turn);
            tokio::spawn(in_background(Arc::clone(&self.state), turn, ticket));
            return Ok(self.json(200, json));
        }
        let state = Arc::clone(&self.state);
        let random = || state.random();
        if turn.streamed {
            let writer: Box<dyn Writer> = match turn.api {
                Api::Chat => Box::new(chat::Chunks::new(&turn, random)),
                Api::Completions => Box::new(completions::Chunks::new(&turn)),
                Api::Messages => Box::new(messages::Blocks::new(random)),
                Api::Responses => Box::new(responses::Steps::new(random)),
            };
            let link = Arc::clone(self.busy.link());
            return Ok(self.events(Streaming::new(turn, ticket, writer, reset_after, link).loaded(load)));
        }
        let (progress, death) = ticket.flow.finished().await;
        if death.is_some() {
            ticket.end(End::Died);
            self.state.books().change(ticket.entry(), |entry| entry.status = 500);
            return Ok(self.refuse(&Refusal::dead(), turn.api));
        }
        ticket.end(ended(&turn));
        if reset_after.is_some_and(|tokens| progress.iter().any(|one| one.generated >= tokens)) {
            self.busy.link().reset();
            return Err(NoAnswer);
        }
        let json = match turn.api {
            Api::Chat => chat::whole(&turn, &progress, random),
            Api::Completions => completions::whole(&turn, &progress),
            Api::Messages => messages::whole(&turn, &progress, random),
            Api::Responses => responses::whole(&turn, &progress, random),
        };
        if kept.is_some() {
            self.state.store().finish(&turn, json.clone(), &answer_text(&turn));
        }
        Ok(self.orca(turn.api, json))
    }

    /// A chat's answer with the load in a header, where that was asked for.
    fn orca(self, api: Api, json: String) -> Response<Reply> {
        let format =
            self.head.headers.get("endpoint-load-metrics-format").and_then(|value| value.to_str().ok());
        let gauges = self.state.core().scheduler.stats().gauges;
        let (waiting, usage) = (gauges.waiting as f64, gauges.kv_usage);
        let load = match format.filter(|_| api == Api::Chat) {
            Some("TEXT") => format!(
                "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
            ),
            Some("JSON") => format!(
                r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting:?}, "kv_cache_usage_perc": {usage:?}}}}}"#
            ),
            _ => return self.json(200, json),
        };
        let builder = self.head(200, Some("application/json")).header("endpoint-load-metrics", load);
        self.whole(builder, json)
    }
}

/// A response that the store has.
#[derive(Clone, Copy)]
struct Kept {
    background: bool,
}

fn answer_text(turn: &Turn) -> String {
    turn.answers.first().map(|answer| answer.text(0..answer.tokens)).unwrap_or_default()
}

/// Waits for a response that its client does not wait for. A cancelled one is aborted when its next token comes.
async fn in_background(state: Arc<State>, turn: Turn, mut ticket: Ticket) {
    let watched = Arc::clone(&ticket.flow);
    let (id, store) = (turn.id.clone(), Arc::clone(&state));
    let cancelled = async {
        let mut known = Vec::new();
        loop {
            let death = std::future::poll_fn(|context| watched.poll(&mut known, context)).await;
            if store.store().cancelled(&id) {
                return None;
            }
            if death.is_some() || known.iter().all(|one| one.finished) {
                return Some((known, death));
            }
        }
    };
    // Dropping the ticket aborts.
    let Some((progress, death)) = cancelled.await else { return };
    if death.is_some() {
        ticket.end(End::Died);
        return;
    }
    ticket.end(ended(&turn));
    let json = responses::whole(&turn, &progress, || state.random());
    state.store().finish(&turn, json, &answer_text(&turn));
}
