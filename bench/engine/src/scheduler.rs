//! Continuous batching in virtual time: which tokens of which requests each step computes, and when it ends.
//!
//! As vLLM's: running requests first, then admission in order of arrival (or priority); chunked prefill under a budget of
//! tokens; blocks are visible to others when they are allocated; the last token of a prompt is always computed; a request is
//! only admitted where its whole prompt fits; the last one in is preempted and computed again when blocks run out.
//! Pure: time is an argument, in virtual nanoseconds, so one set of arrivals gives one outcome at any scale.

mod request;
mod stats;
mod step;
#[cfg(test)]
mod tests;

pub use request::{Finish, Job, Output, Timing};
pub use stats::{Gauges, Histogram, Stats};

use crate::cache::{BlockEvent, BlockId, BlockPool, ByHash};
use crate::speed::Speed;
use request::Request;
use std::collections::VecDeque;

/// What a scheduler is built from.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Blocks, block 0 included.
    pub blocks: u32,
    /// Requests of one batch.
    pub seqs: usize,
    /// Tokens of one step.
    pub batched_tokens: usize,
    /// LoRA adapters of one batch.
    pub loras: usize,
    /// Whether freed blocks stay cached.
    pub caching: bool,
    /// Whether the lowest priority number goes first.
    pub priority: bool,
    /// Unfinished requests beyond which new ones are refused.
    pub queue_requests: Option<usize>,
    /// Prompt tokens still in prefill from which on new requests are refused.
    pub queue_tokens: Option<u64>,
    /// Whether block events are kept.
    pub block_events: bool,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Too many unfinished requests.
    Requests,
    /// Too many prompt tokens in prefill.
    Tokens,
}

/// A step being computed.
#[derive(Debug)]
struct Step {
    ends: u64,
    /// Requests and the tokens computed of each.
    parts: Vec<(u64, usize)>,
}

/// One engine's scheduler.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    speed: Speed,
    slow: f64,
    pool: BlockPool,
    requests: ByHash<Request>,
    waiting: VecDeque<u64>,
    running: Vec<u64>,
    step: Option<Step>,
    held: Vec<BlockId>,
    next_id: u64,
    stats: Stats,
}

impl Scheduler {
    /// An empty one.
    #[must_use]
    pub fn new(limits: Limits, speed: Speed) -> Self {
        let pool = BlockPool::new(limits.blocks, limits.caching, limits.block_events);
        Self {
            limits,
            speed,
            slow: 1.0,
            pool,
            requests: ByHash::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            step: None,
            held: Vec::new(),
            next_id: 1,
            stats: Stats::default(),
        }
    }

    /// Whether `sequences` more would be refused; counts the refusal.
    pub fn refuses(&mut self, sequences: usize) -> Option<Full> {
        if self.limits.queue_requests.is_some_and(|most| self.requests.len() + sequences > most) {
            self.stats.refused_requests += 1;
            return Some(Full::Requests);
        }
        let most = self.limits.queue_tokens?;
        let order = self.waiting.iter().chain(&self.running);
        let prefilling = order.filter_map(|id| self.requests.get(id)).filter(|request| request.output == 0);
        if prefilling.map(|request| request.prompt as u64).sum::<u64>() >= most {
            self.stats.refused_tokens += 1;
            return Some(Full::Tokens);
        }
        None
    }

    /// Takes a request that arrives `now`. The caller has advanced to `now`.
    pub fn submit(&mut self, job: Job, now: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let request = Request::new(job, &self.limits, now);
        self.requests.insert(id, request);
        let at = if self.limits.priority { self.place(id) } else { self.waiting.len() };
        self.waiting.insert(at, id);
        id
    }

    /// Forgets a request, wherever it is.
    pub fn abort(&mut self, id: u64) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.pool.release(&request.blocks);
        self.waiting.retain(|&other| other != id);
        self.running.retain(|&other| other != id);
        if self.requests.is_empty() {
            self.publish();
        }
    }

    /// Completes every step that ends by `now`, begins the next one where there is work, and tells what was produced.
    pub fn advance(&mut self, now: u64, told: &mut impl FnMut(Output)) {
        loop {
            let at = match &self.step {
                Some(step) if step.ends > now => return,
                Some(step) => step.ends,
                None => now,
            };
            if let Some(step) = self.step.take() {
                self.finish_step(&step, told);
            }
            if !self.start_step(at) {
                return;
            }
        }
    }

    /// When the current step ends; none where there is none.
    #[must_use]
    pub fn step_ends(&self) -> Option<u64> {
        self.step.as_ref().map(|step| step.ends)
    }

    /// Requests that are not finished.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.requests.len()
    }

    /// Steps take this many times longer from the next one on.
    pub fn set_slow(&mut self, factor: f64) {
        self.slow = factor.max(0.0);
    }

    /// Keeps `share` (0 to 1) of all blocks in use by nobody's request, as far as blocks are free.
    pub fn hold(&mut self, share: f64) {
        let wanted = (share.clamp(0.0, 1.0) * self.pool.usable() as f64) as usize;
        if wanted < self.held.len() {
            let freed = self.held.split_off(wanted);
            self.pool.release(&freed);
        } else {
            let more = (wanted - self.held.len()).min(self.pool.free());
            self.pool.take(more, &mut self.held);
        }
        self.publish();
    }

    /// Counters and histograms since the start.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// What happened to the blocks since the last call; empty where it isn't kept.
    pub fn take_block_events(&mut self) -> Vec<BlockEvent> {
        self.pool.take_events()
    }

    /// Adapters of running and waiting requests.
    #[must_use]
    pub fn active_loras(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for id in self.running.iter().chain(&self.waiting) {
            let Some(lora) = self.requests.get(id).and_then(|request| request.job.lora.as_deref()) else {
                continue;
            };
            if !names.iter().any(|name| name == lora) {
                names.push(lora.to_owned());
            }
        }
        names
    }

    /// Where a request belongs among the waiting ones by priority, then arrival.
    fn place(&self, id: u64) -> usize {
        let key = |id: &u64| self.requests.get(id).map(|request| (request.job.priority, request.arrived));
        let own = key(&id);
        self.waiting.iter().position(|other| key(other) > own).unwrap_or(self.waiting.len())
    }

    fn publish(&mut self) {
        let deferred =
            self.waiting.iter().filter(|id| self.requests.get(id).is_some_and(|request| request.deferred));
        self.stats.gauges = Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            deferred: deferred.count(),
            kv_usage: self.pool.usage(),
        };
    }
}
