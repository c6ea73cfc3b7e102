//! One engine: continuous batching, chunked prefill under a token budget, first come first served, last-in preemption.
//! A step takes `c0 + Σ[c_p·n + c_a·n·(context + n/2)] + c_b·streams + c_kv·Σ context`.

use std::collections::VecDeque;
use std::rc::Rc;

use ext_proc_pick::{Speed, Stats};

use crate::cache::{BLOCK, Cache};
use crate::workload::Prompt;

/// Prompt tokens and streams a step.
const BUDGET: u64 = 8_192;
/// Streams in a batch.
const BATCH: usize = 256;

/// A request in an engine.
pub(crate) struct Running {
    pub(crate) id: usize,
    prompt: Rc<Prompt>,
    held: Vec<usize>,
    /// Prompt tokens that are computed or cached.
    done: u64,
    pub(crate) cached: u64,
    generated: u64,
    /// Prompt tokens in the step at hand.
    chunk: u64,
}

/// What a step brought forth.
pub(crate) enum Output {
    First(usize),
    Last { id: usize, cached: u64 },
}

/// How an engine is made.
#[derive(Clone, Copy)]
pub(crate) struct Make {
    pub(crate) speed: Speed,
    pub(crate) kv_tokens: u64,
    /// Share of the KV cache that someone else holds for good.
    pub(crate) taken: f64,
}

/// An engine.
pub(crate) struct Engine {
    make: Make,
    cache: Cache,
    waiting: VecDeque<Running>,
    running: Vec<Running>,
    pub(crate) busy: bool,
    preemptions: u64,
}

impl Engine {
    pub(crate) fn new(make: Make) -> Self {
        let cache = Cache::new((make.kv_tokens as f64 * (1.0 - make.taken)) as u64);
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self { make, cache, waiting, running, busy: false, preemptions: 0 }
    }

    pub(crate) fn submit(&mut self, id: usize, prompt: Rc<Prompt>) {
        let held = Vec::new();
        self.waiting.push_back(Running { id, prompt, held, done: 0, cached: 0, generated: 0, chunk: 0 });
    }

    pub(crate) fn stats(&self) -> Stats {
        let usage = self.make.taken + (1.0 - self.make.taken) * self.cache.used_share();
        Stats {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            kv_usage: usage as f32,
            kv_capacity_tokens: Some(self.make.kv_tokens),
            block_tokens: Some(BLOCK as u32),
            preemptions: Some(self.preemptions),
            lora_active: None,
            lora_max: None,
        }
    }

    /// Begins a step; its length in seconds, or nothing to do.
    pub(crate) fn begin(&mut self) -> Option<f64> {
        let speed = self.make.speed;
        let (mut budget, mut seconds) = (BUDGET, speed.c0);
        let mut at = 0;
        while at < self.running.len() {
            if !self.make_room(at) {
                continue;
            }
            let one = &mut self.running[at];
            let target = one.target();
            if one.done < target {
                one.chunk = (target - one.done).min(budget);
                budget -= one.chunk;
                seconds += prefill(&speed, one.chunk, one.done);
            } else {
                budget = budget.saturating_sub(1);
                seconds += speed.c_b + speed.c_kv * (one.prompt.tokens + one.generated) as f64;
            }
            at += 1;
        }
        while budget > 0 && self.running.len() < BATCH {
            let Some(mut one) = self.waiting.pop_front() else { break };
            let target = one.target();
            // The last token is always computed.
            let full = (target / BLOCK) as usize;
            let chain = &one.prompt.blocks[..full.min(one.prompt.blocks.len())];
            let hits = self.cache.matched(chain).min(((target - 1) / BLOCK) as usize);
            let Some(held) = self.cache.take(chain, hits, (target.div_ceil(BLOCK)) as usize - hits) else {
                self.waiting.push_front(one);
                break;
            };
            one.held = held;
            one.done = hits as u64 * BLOCK;
            if one.generated == 0 {
                one.cached = one.done;
            }
            one.chunk = (target - one.done).min(budget);
            budget -= one.chunk;
            seconds += prefill(&speed, one.chunk, one.done);
            self.running.push(one);
        }
        self.busy = !self.running.is_empty();
        self.busy.then_some(seconds)
    }

    /// Room for the next token of the stream at `at`; `false`: it was itself preempted.
    fn make_room(&mut self, at: usize) -> bool {
        let one = &self.running[at];
        let tokens = one.prompt.tokens + one.generated + 1;
        if one.done < one.target() || tokens.div_ceil(BLOCK) as usize <= one.held.len() {
            return true;
        }
        loop {
            if let Some(block) = self.cache.grow() {
                let one = &mut self.running[at];
                one.held.push(block);
                // The blocks before the new one are full: those of generated text get their names.
                let full = one.held.len() - 2;
                if let Some(&hash) = one.prompt.blocks.get(full) {
                    let block = one.held[full];
                    self.cache.fill(block, hash);
                }
                return true;
            }
            let Some(mut last) = self.running.pop() else { return false };
            self.preemptions += 1;
            self.cache.give_back(&last.held);
            (last.held, last.done, last.chunk) = (Vec::new(), 0, 0);
            self.waiting.push_front(last);
            if at >= self.running.len() {
                return false;
            }
        }
    }

    /// Ends the step.
    pub(crate) fn end(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        let mut at = 0;
        while at < self.running.len() {
            let one = &mut self.running[at];
            let target = one.target();
            one.done = (one.done + std::mem::take(&mut one.chunk)).min(target);
            if one.done == target {
                one.generated += 1;
                if one.generated > 1 {
                    one.done += 1;
                }
                if one.generated == 1 {
                    outputs.push(Output::First(one.id));
                }
            }
            if one.generated >= one.prompt.output {
                let one = self.running.remove(at);
                self.cache.give_back(&one.held);
                outputs.push(Output::Last { id: one.id, cached: one.cached });
            } else {
                at += 1;
            }
        }
        outputs
    }
}

impl Running {
    /// Tokens that must be computed before the next one can be generated: after a preemption, generated ones too.
    fn target(&self) -> u64 {
        self.prompt.tokens + self.generated.saturating_sub(1)
    }
}

fn prefill(speed: &Speed, tokens: u64, context: u64) -> f64 {
    let n = tokens as f64;
    speed.c_p * n + speed.c_a * n * (context as f64 + n / 2.0)
}
