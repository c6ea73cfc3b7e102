//! What each endpoint would cost: gathers what is known of it, blends what is old with the pool's mean.

use super::Pool;
use super::choose::Scratch;
use crate::ask::Ask;
use crate::cost::{Request, Site, explain};
use crate::explain::{Candidate, Excluded, Explanation};
use crate::prefix::{Prefix, bytes_at};
use crate::signal::Health;
use crate::signals::Foreign;
use crate::slot::{Adapter, Slot};
use xxhash_rust::xxh3::xxh3_64;

/// How good an endpoint is before its cost is even looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Fit,
    /// By its signals it would not serve.
    Unhealthy,
    /// It has failed lately.
    Penalised,
}

/// What stands in for signals that are old.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    foreign: Foreign,
    evicting: f64,
    /// Of those that have one.
    pace: f64,
}

impl Pool {
    pub(super) fn request(&self, ask: &Ask<'_>) -> Request {
        let bytes = ask.prompt_bytes.max(ask.prefix.bytes()) as f64;
        let tokens = bytes / self.learned.bytes_per_token() + ask.prompt_token_ids as f64;
        Request {
            prompt_tokens: tokens.max(1.0),
            output_tokens: self.learned.output_tokens(ask.output_tokens_max),
            usual_uncached: self.learned.uncached_tokens(),
            usual_prompt: self.learned.prompt_tokens(),
        }
    }

    pub(super) fn score(&self, ask: &Ask<'_>, request: &Request, scratch: &mut Scratch, now_ms: u64) {
        let Scratch { scored, explanations, depths, .. } = scratch;
        depths.clear();
        if self.uses_prefixes() && ask.prefix.chunks() > 0 {
            self.index.matches(ask.prefix.hashes(), self.slots.len(), depths);
        }
        let bytes_per_token = self.learned.bytes_per_token();
        let means = self.means(now_ms);
        let adapter = self.adapters.contains(ask.model).then(|| xxh3_64(ask.model.as_bytes()));
        for candidate in scored {
            candidate.at = explanations.len();
            let Some(slot) = self.slot(candidate.slot) else { continue };
            candidate.class = self.class(slot, now_ms);
            candidate.matched_chunks = depths.get(candidate.slot).map_or(0, |&depth| depth as usize);
            let matched = bytes_at(candidate.matched_chunks) as f64 / bytes_per_token * slot.trust();
            let cost = self.cost(slot, ask.model, adapter, request, &means, matched, now_ms);
            (candidate.total_s, candidate.step_s) = (cost.total_s, cost.step_s);
            candidate.matched_tokens = cost.matched_tokens;
            explanations.push(cost);
        }
    }

    fn class(&self, slot: &Slot, now_ms: u64) -> Class {
        if slot.faults.is_last(slot.load.in_flight(), now_ms) {
            return Class::Penalised;
        }
        match slot.signals.health(self.settings.stale_ms, now_ms) {
            Health::Unknown | Health::Ready => Class::Fit,
            Health::Unreachable | Health::Sleeping | Health::Paused | Health::Draining | Health::Stuck => {
                Class::Unhealthy
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one flat call on the hot path")]
    fn cost(
        &self,
        slot: &Slot,
        model: &str,
        adapter: Option<u64>,
        request: &Request,
        means: &Means,
        matched_tokens: f64,
        now_ms: u64,
    ) -> Explanation {
        let weight = slot.signals.weight(self.settings.stale_ms, now_ms);
        let blend = |own: f64, mean: f64| weight * own + (1.0 - weight) * mean;
        let foreign = slot.signals.foreign();
        let capacity = slot.signals.stats.kv_capacity_tokens.unwrap_or(self.settings.kv_capacity_tokens);
        let adapter = adapter.map_or(Adapter::Loaded, |name| slot.adapter(model, name));
        let pace = slot.pace.against(means.pace, now_ms);
        let site = Site {
            speed: &self.settings.speed.slowed(pace),
            pace,
            load: &slot.load,
            matched_tokens,
            foreign: Foreign {
                waiting: blend(foreign.waiting, means.foreign.waiting),
                running: blend(foreign.running, means.foreign.running),
                kv_tokens: blend(foreign.kv_tokens, means.foreign.kv_tokens),
            },
            evicting: blend(slot.signals.evicting(now_ms), means.evicting),
            kv_capacity_tokens: capacity as f64,
            kv_used_tokens: slot.signals.kv_used_tokens(),
            signal_weight: weight,
            lora_s: if adapter == Adapter::Loaded { 0.0 } else { self.settings.lora_load_s },
            lora_full: adapter == Adapter::Full,
            penalty_s: slot.faults.rest_s(now_ms),
        };
        Explanation {
            signal_age_ms: slot.signals.age_ms(now_ms),
            signal_weight: weight,
            ..explain(request, &site, now_ms)
        }
    }

    /// Means over the listed endpoints, each as far as its signals are believed.
    fn means(&self, now_ms: u64) -> Means {
        let (mut sum, mut total, mut paced) = (Means::default(), 0.0, 0.0);
        for slot in self.listed.iter().filter_map(|&number| self.slot(number)) {
            let weight = slot.signals.weight(self.settings.stale_ms, now_ms);
            let foreign = slot.signals.foreign();
            sum.foreign.waiting += weight * foreign.waiting;
            sum.foreign.running += weight * foreign.running;
            sum.foreign.kv_tokens += weight * foreign.kv_tokens;
            sum.evicting += weight * slot.signals.evicting(now_ms);
            total += weight;
            if let Some(ratio) = slot.pace.ratio() {
                sum.pace += ratio;
                paced += 1.0;
            }
        }
        let pace = if paced > 0.0 { sum.pace / paced } else { 1.0 };
        if total <= 0.0 {
            return Means { pace, ..Means::default() };
        }
        let foreign = Foreign {
            waiting: sum.foreign.waiting / total,
            running: sum.foreign.running / total,
            kv_tokens: sum.foreign.kv_tokens / total,
        };
        Means { foreign, evicting: sum.evicting / total, pace }
    }

    /// Every listed endpoint, and what an empty request would cost there.
    pub(super) fn survey(&self, now_ms: u64) -> Vec<Candidate> {
        let means = self.means(now_ms);
        let none = Prefix::default();
        let ask = Ask {
            model: "",
            prefix: &none,
            prompt_bytes: 0,
            prompt_token_ids: 0,
            output_tokens_max: None,
            stay: None,
        };
        let request = self.request(&ask);
        let of = |slot: &Slot| {
            let excluded = match (slot.ready, slot.signals.sleeps()) {
                (false, _) => Some(Excluded::NotReady),
                (_, true) => Some(Excluded::Sleeping),
                _ => None,
            };
            let explanation = self.cost(slot, "", None, &request, &means, 0.0, now_ms);
            self.candidate(slot, excluded, explanation, now_ms)
        };
        self.listed.iter().filter_map(|&number| self.slot(number)).map(of).collect()
    }
}
