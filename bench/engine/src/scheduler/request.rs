//! One sequence: its tokens, its blocks, and its times.

use super::Limits;
use crate::cache::BlockId;
use crate::tokens;
use std::sync::Arc;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// By itself.
    Stop,
    /// At its limit.
    Length,
}

/// What is asked of the scheduler.
#[derive(Clone, Debug)]
pub struct Job {
    /// The prompt.
    pub prompt: Arc<[u32]>,
    /// Tokens that will be generated, at least 1.
    pub output: u32,
    /// Says the generated token ids; the text is the caller's matter.
    pub seed: u64,
    /// Ids that are generated before those of the seed.
    pub script: Arc<[u32]>,
    /// Why it will end.
    pub finish: Finish,
    /// Lower goes first, where the scheduler looks at it.
    pub priority: i64,
    /// The adapter.
    pub lora: Option<Arc<str>>,
    /// Keeps its blocks apart from those of other salts.
    pub salt: u64,
    /// Sequences of the same request, for the histograms; 0 for all but the first of them.
    pub group: u32,
    /// The limit that the client set, for the histograms.
    pub max_tokens: Option<u32>,
}

impl Job {
    /// The id of generated token `index`.
    #[must_use]
    pub fn token(&self, index: u32) -> u32 {
        match self.script.get(index as usize) {
            Some(&id) => id,
            None => tokens::pack(tokens::piece(self.seed, index)),
        }
    }
}

/// Virtual nanoseconds of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From arrival until it was first scheduled.
    pub queued: u64,
    /// From arrival until its first token.
    pub first: u64,
    /// From arrival until its last token so far.
    pub last: u64,
}

/// Something new of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// What [`super::Scheduler::submit`] returned.
    pub id: u64,
    /// Tokens generated so far.
    pub generated: u32,
    /// Whether these are all.
    pub finished: bool,
    /// Prompt tokens that came from the cache.
    pub cached: u32,
    /// Times so far.
    pub timing: Timing,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) job: Job,
    /// Prompt, then output.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    /// Of the full blocks of `tokens`.
    pub(super) hashes: Vec<u64>,
    pub(super) blocks: Vec<BlockId>,
    /// How many of `blocks` are visible.
    pub(super) stored: usize,
    pub(super) computed: usize,
    pub(super) output: u32,
    pub(super) cached: usize,
    pub(super) preemptions: u32,
    pub(super) deferred: bool,
    pub(super) arrived: u64,
    pub(super) scheduled: Option<u64>,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Request {
    pub(super) fn new(job: Job, limits: &Limits, now: u64) -> Self {
        let mut request = Self {
            tokens: Vec::with_capacity(job.prompt.len() + job.output.min(4096) as usize),
            prompt: job.prompt.len(),
            job,
            hashes: Vec::new(),
            blocks: Vec::new(),
            stored: 0,
            computed: 0,
            output: 0,
            cached: 0,
            preemptions: 0,
            deferred: false,
            arrived: now,
            scheduled: None,
            first: now,
            last: now,
        };
        request.tokens.extend_from_slice(&request.job.prompt);
        request.rehash(limits);
        request
    }

    /// Hashes the blocks that are full by now.
    pub(super) fn rehash(&mut self, limits: &Limits) {
        if !limits.caching {
            return;
        }
        let size = limits.block_tokens;
        while (self.hashes.len() + 1) * size <= self.tokens.len() {
            let parent = self.hashes.last().copied().unwrap_or_else(|| self.root());
            let at = self.hashes.len() * size;
            self.hashes.push(tokens::chain(parent, &self.tokens[at..at + size]));
        }
    }

    /// What the chain of its blocks begins with.
    fn root(&self) -> u64 {
        let lora = self.job.lora.as_deref().unwrap_or_default().bytes();
        lora.fold(tokens::mix(self.job.salt, 1), |hash, byte| tokens::mix(hash, u64::from(byte)))
    }

    pub(super) fn told(&self, id: u64, finished: bool) -> Output {
        Output {
            id,
            generated: self.output,
            finished,
            cached: self.cached as u32,
            timing: Timing {
                queued: self.scheduled.unwrap_or(self.arrived) - self.arrived,
                first: self.first - self.arrived,
                last: self.last - self.arrived,
            },
        }
    }
}
