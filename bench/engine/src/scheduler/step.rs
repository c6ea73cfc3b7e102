//! One step: what goes in, and what comes out.

use super::request::{Finish, Output};
use super::{Scheduler, Step};
use crate::cache::BlockId;
use crate::speed::Batch;

impl Scheduler {
    /// Begins a step at `at`; false where there is nothing to compute.
    pub(super) fn start_step(&mut self, at: u64) -> bool {
        if self.requests.is_empty() {
            return false;
        }
        let mut parts: Vec<(u64, usize)> = Vec::with_capacity(self.running.len());
        loop {
            let mut budget = self.limits.batched_tokens;
            let preempted = self.schedule_running(&mut budget, &mut parts);
            if !preempted {
                self.admit(at, &mut budget, &mut parts);
            }
            // A step in which nothing but a preemption happened is no step: the next one follows at once. It ends, because
            // each time fewer are running.
            if !preempted || !parts.is_empty() {
                break;
            }
        }
        if parts.is_empty() {
            self.publish();
            return false;
        }
        let mut batch = Batch::default();
        for (id, count) in &parts {
            let Some(request) = self.requests.get(id) else { continue };
            if *count == 1 && request.output > 0 && request.computed + 1 == request.tokens.len() {
                batch.add_decode(request.tokens.len() as u64);
            } else {
                batch.add_prefill(*count as u64, request.computed as u64);
            }
        }
        let took = (self.speed.step_ns(&batch) as f64 * self.slow).round() as u64;
        self.stats.steps += 1;
        self.step = Some(Step { ends: at + took, parts });
        true
    }

    /// Running requests in order; whether one had to be preempted.
    fn schedule_running(&mut self, budget: &mut usize, parts: &mut Vec<(u64, usize)>) -> bool {
        let (mut at, mut preempted) = (0, false);
        while at < self.running.len() && *budget > 0 {
            let id = self.running[at];
            let Some(request) = self.requests.get(&id) else { break };
            let wanted = (request.tokens.len() - request.computed).min(*budget);
            let fits = loop {
                if self.allocate(id, wanted, &[], false) {
                    break true;
                }
                let victim = self.victim();
                let was = self.running.remove(victim);
                if victim < at {
                    at -= 1;
                }
                if let Some(part) = parts.iter().position(|(other, _)| *other == was) {
                    *budget += parts.remove(part).1;
                }
                self.preempt(was);
                preempted = true;
                if was == id {
                    break false;
                }
            };
            if !fits {
                break;
            }
            parts.push((id, wanted));
            *budget -= wanted;
            at += 1;
        }
        preempted
    }

    /// Which running request goes first when blocks run out.
    fn victim(&self) -> usize {
        let last = self.running.len() - 1;
        if !self.limits.priority {
            return last;
        }
        let key = |at: &usize| {
            self.requests.get(&self.running[*at]).map(|request| (request.job.priority, request.arrived))
        };
        (0..=last).max_by_key(key).unwrap_or(last)
    }

    fn preempt(&mut self, id: u64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        self.pool.release(&request.blocks);
        request.blocks.clear();
        request.stored = 0;
        request.computed = 0;
        request.preemptions += 1;
        self.stats.preemptions += 1;
        let at = if self.limits.priority { self.place(id) } else { 0 };
        self.waiting.insert(at, id);
    }

    /// Waiting requests in order, until one doesn't fit.
    fn admit(&mut self, at: u64, budget: &mut usize, parts: &mut Vec<(u64, usize)>) {
        let mut loras: Vec<std::sync::Arc<str>> = Vec::new();
        for (id, _) in parts.iter() {
            let lora = self.requests.get(id).and_then(|request| request.job.lora.clone());
            loras.extend(lora.filter(|lora| !loras.contains(lora)));
        }
        let mut place = 0;
        while *budget > 0 && self.running.len() < self.limits.seqs {
            let Some(&id) = self.waiting.get(place) else { break };
            let size = self.limits.block_tokens;
            let Some(request) = self.requests.get_mut(&id) else { break };
            let lora = request.job.lora.clone();
            request.deferred =
                lora.as_ref().is_some_and(|lora| loras.len() >= self.limits.loras && !loras.contains(lora));
            if request.deferred {
                place += 1;
                continue;
            }
            // The last token is always computed: its result is the first answer.
            let reachable = (request.tokens.len() - 1) / size;
            let hits = self.pool.find(&request.hashes[..reachable.min(request.hashes.len())]);
            let found = hits.len() * size;
            let wanted = (request.tokens.len() - found).min(*budget);
            if !self.allocate(id, wanted, &hits, true) {
                break;
            }
            self.waiting.remove(place);
            self.running.push(id);
            let Some(request) = self.requests.get_mut(&id) else { break };
            request.computed = found;
            if request.scheduled.is_none() {
                request.scheduled = Some(at);
                request.cached = found;
                self.stats.cache_queries += request.prompt as u64;
                self.stats.cache_hits += found as u64;
            }
            loras.extend(lora.filter(|lora| !loras.contains(lora)));
            parts.push((id, wanted));
            *budget -= wanted;
        }
    }

    /// Room for `count` more tokens of a request after what `hits` hold; false where there is none. `whole`: only where all
    /// of the request would fit.
    fn allocate(&mut self, id: u64, count: usize, hits: &[BlockId], whole: bool) -> bool {
        let size = self.limits.block_tokens;
        let Some(request) = self.requests.get_mut(&id) else { return false };
        let before = request.computed + hits.len() * size;
        let have = request.blocks.len() + hits.len();
        let more = |tokens: usize| tokens.div_ceil(size).saturating_sub(have);
        let touched = self.pool.unreferenced(hits);
        let needed = more(before + count);
        let room = if whole { needed.max(more(request.tokens.len())) } else { needed };
        if room + touched > self.pool.free() {
            return false;
        }
        self.pool.touch(hits);
        request.blocks.extend_from_slice(hits);
        request.stored += hits.len();
        self.pool.take(needed, &mut request.blocks);
        let full = ((before + count).min(request.tokens.len()) / size).min(request.hashes.len());
        for at in request.stored..full {
            let parent = at.checked_sub(1).map(|before| request.hashes[before]);
            let tokens = &request.tokens[at * size..(at + 1) * size];
            self.pool.store(request.blocks[at], request.hashes[at], parent, tokens);
        }
        request.stored = request.stored.max(full);
        true
    }

    /// What a step produced.
    pub(super) fn finish_step(&mut self, step: &Step, told: &mut impl FnMut(Output)) {
        let mut produced = 0;
        for (id, count) in &step.parts {
            // Aborted meanwhile.
            let Some(request) = self.requests.get_mut(id) else { continue };
            request.computed += count;
            if request.computed < request.tokens.len() {
                continue;
            }
            let token = request.job.token(request.output);
            request.tokens.push(token);
            request.rehash(&self.limits);
            request.output += 1;
            if request.output == 1 {
                request.first = step.ends;
                produced += request.prompt as u64;
                self.stats.first_token(request, step.ends);
            } else {
                self.stats.next_token(step.ends - request.last);
            }
            request.last = step.ends;
            produced += 1;
            let finished = request.output >= request.job.output;
            told(request.told(*id, finished));
            if finished {
                self.end(*id);
            }
        }
        self.stats.iteration_tokens.observe(produced as f64);
        self.publish();
    }

    fn end(&mut self, id: u64) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.pool.release(&request.blocks);
        self.running.retain(|&other| other != id);
        self.stats.finished(&request);
        match request.job.finish {
            Finish::Stop => self.stats.stopped += 1,
            Finish::Length => self.stats.at_length += 1,
        }
    }

    /// Blocks that requests and the held share refer to, and those free: what conservation means.
    #[cfg(test)]
    pub(super) fn blocks_accounted(&self) -> (usize, usize, usize) {
        let mut used: Vec<BlockId> = self.held.clone();
        self.requests.values().for_each(|request| used.extend_from_slice(&request.blocks));
        used.sort_unstable();
        used.dedup();
        (used.len(), self.pool.free(), self.pool.usable())
    }
}
