//! Responses that the engine keeps, as vLLM does with `VLLM_ENABLE_RESPONSES_API_STORE=1`: in memory, by the id that the body
//! gave or one of its own, until it ends.

use super::format::{self, Cached, Piece};
use super::job::Job;
use super::refusal::Refusal;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Kept responses by id.
#[derive(Debug, Default)]
pub struct Store {
    kept: HashMap<String, Kept>,
}

#[derive(Debug)]
struct Kept {
    job: Job,
    cached: Cached,
    /// When its last token is there.
    finished: Instant,
    cancelled: bool,
}

/// What a kept response is answered with.
#[derive(Debug)]
pub enum Fetched {
    Whole(String),
    Events(Vec<Piece>),
}

impl Kept {
    fn is_finished(&self) -> bool {
        self.finished <= Instant::now()
    }

    fn body(&self) -> String {
        match (self.cancelled, self.is_finished()) {
            (true, _) => format::response_without_output(&self.job, "cancelled"),
            (false, true) => format::whole(&self.job, self.cached),
            (false, false) => format::response_without_output(&self.job, "in_progress"),
        }
    }
}

impl Store {
    /// Keeps the response to `job`, which takes `interval` for each of its tokens.
    pub fn keep(&mut self, job: &Job, cached: Cached, interval: Duration) {
        let tokens = u32::try_from(job.output).unwrap_or(u32::MAX);
        let finished = Instant::now() + interval.saturating_mul(tokens);
        let kept = Kept { job: job.clone(), cached, finished, cancelled: false };
        self.kept.insert(job.response_id(), kept);
    }

    fn find(&mut self, id: &str) -> Result<&mut Kept, Refusal> {
        // vLLM keeps what runs in the background from its beginning, everything else at its end.
        let kept = self.kept.get_mut(id).filter(|kept| kept.job.background || kept.is_finished());
        kept.ok_or_else(|| Refusal::unknown_response(id))
    }

    /// What was said in the conversation so far, this response included.
    pub fn conversation(&mut self, id: &str) -> Result<String, Refusal> {
        let kept = self.find(id)?;
        Ok(format!("{}{}", kept.job.prompts.concat(), format::said(&kept.job)))
    }

    /// `GET /v1/responses/{id}`: whole, or as the events after a number.
    pub fn fetch(&mut self, id: &str, query: &str) -> Result<Fetched, Refusal> {
        let kept = self.find(id)?;
        let parameter = |name: &str| {
            query
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, v)| v)
        };
        if parameter("stream") != Some("true") {
            return Ok(Fetched::Whole(kept.body()));
        }
        if !kept.job.background || !kept.job.stream {
            return Err(Refusal::no_events(id));
        }
        let after = parameter("starting_after").and_then(|number| number.parse::<usize>().ok());
        let from = after.map_or(0, |number| number + 1);
        Ok(Fetched::Events(format::stream(&kept.job, kept.cached).into_iter().skip(from).collect()))
    }

    /// `POST /v1/responses/{id}/cancel`.
    pub fn cancel(&mut self, id: &str) -> Result<String, Refusal> {
        let kept = self.find(id)?;
        if kept.cancelled || kept.is_finished() {
            return Err(Refusal::not_in_background());
        }
        kept.cancelled = true;
        Ok(kept.body())
    }
}
