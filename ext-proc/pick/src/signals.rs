//! What an engine said of itself, less what we know of ourselves, and how far it is still to be believed.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::load::Load;
use crate::signal::{Health, Observation, Stats};

/// Signals older than this many times the stale age count for nothing.
const FORGOTTEN_AFTER: u64 = 4;
/// An endpoint that served something so lately is neither unreachable nor stuck, whatever its signals say. Milliseconds.
const ALIVE_MS: u64 = 2_000;
/// KV use from which a cache counts as evicting, and at which it does so fully.
const EVICTING: (f64, f64) = (0.85, 0.97);
/// Preemptions count as evicting for this long, milliseconds.
const PREEMPTED_MS: u64 = 5_000;
/// A queue that others are said to have is never longer: an absurd signal must not be stronger than any real one.
const FOREIGN_MAX: u32 = 4_096;

/// Load that isn't ours.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Foreign {
    pub(crate) waiting: f64,
    pub(crate) running: f64,
    /// KV cache that neither our requests nor the above ones hold, tokens.
    pub(crate) kv_tokens: f64,
}

/// One endpoint's signals.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signals {
    health: Health,
    health_at_ms: Option<u64>,
    stats_at_ms: Option<u64>,
    pub(crate) models: Option<Arc<BTreeSet<String>>>,
    pub(crate) stats: Stats,
    /// What the last two looks saw beyond our own requests: (waiting, running, KV tokens).
    foreign: [(u32, u32, u64); 2],
    preempted_ms: Option<u64>,
    alive_ms: Option<u64>,
}

impl Signals {
    /// Takes a look; `ours` is our load there at this moment.
    pub(crate) fn observe(&mut self, observation: Observation, ours: &Load, now_ms: u64) {
        self.health = observation.health;
        self.health_at_ms = Some(now_ms);
        if let Some(models) = observation.models {
            // An engine can't serve nothing: an empty list says that the list isn't known any more.
            self.models = Some(models).filter(|models| !models.is_empty());
        }
        if let Some(stats) = observation.stats {
            self.take(stats, ours, now_ms);
        }
    }

    fn take(&mut self, mut stats: Stats, ours: &Load, now_ms: u64) {
        stats.kv_usage = if stats.kv_usage.is_finite() { stats.kv_usage.clamp(0.0, 1.0) } else { 0.0 };
        if stats.preemptions > self.stats.preemptions && self.stats.preemptions.is_some() {
            self.preempted_ms = Some(now_ms);
        }
        stats.kv_capacity_tokens = stats.kv_capacity_tokens.or(self.stats.kv_capacity_tokens);
        // A request of ours that has its first token runs; one that has none waits or runs.
        let total = stats.waiting.saturating_add(stats.running).min(FOREIGN_MAX);
        let beyond = total.saturating_sub(ours.in_flight());
        let waiting = stats.waiting.saturating_sub(ours.prefilling).min(beyond);
        let capacity = stats.kv_capacity_tokens.unwrap_or_default() as f64;
        let held = (capacity * f64::from(stats.kv_usage)) as u64;
        let held = held.saturating_sub(ours.context_tokens.saturating_add(ours.prefill_context_tokens));
        let seen = (waiting, beyond.saturating_sub(waiting), held);
        let [_, last] = self.foreign;
        self.foreign = if self.stats_at_ms.is_some() { [last, seen] } else { [seen, seen] };
        self.stats = stats;
        self.stats_at_ms = Some(now_ms);
    }

    /// KV cache in use at the last look, tokens. `None`: not told, or told to be nothing although requests ran.
    pub(crate) fn kv_used_tokens(&self) -> Option<f64> {
        let capacity = self.stats.kv_capacity_tokens.filter(|_| self.stats_at_ms.is_some())?;
        let told = self.stats.kv_usage > 0.0 || self.stats.running == 0;
        told.then(|| capacity as f64 * f64::from(self.stats.kv_usage))
    }

    /// It answered a request.
    pub(crate) fn alive(&mut self, now_ms: u64) {
        self.alive_ms = Some(now_ms);
    }

    /// Its health, as far as it is believed now.
    pub(crate) fn health(&self, stale_ms: u64, now_ms: u64) -> Health {
        let Some(at) = self.health_at_ms else { return Health::Unknown };
        if now_ms.saturating_sub(at) > stale_ms.saturating_mul(FORGOTTEN_AFTER) {
            return Health::Unknown;
        }
        let alive = self.alive_ms.is_some_and(|alive| now_ms.saturating_sub(alive) <= ALIVE_MS);
        if alive && matches!(self.health, Health::Unreachable | Health::Stuck) {
            Health::Ready
        } else {
            self.health
        }
    }

    /// Whether the engine said that it sleeps, and nothing else since.
    pub(crate) fn sleeps(&self) -> bool {
        self.health == Health::Sleeping
    }

    /// Age of the numbers, milliseconds.
    pub(crate) fn age_ms(&self, now_ms: u64) -> Option<u64> {
        self.stats_at_ms.map(|at| now_ms.saturating_sub(at))
    }

    /// How far the numbers are believed: 1 until `stale_ms`, then less and less.
    pub(crate) fn weight(&self, stale_ms: u64, now_ms: u64) -> f64 {
        let Some(age) = self.age_ms(now_ms) else { return 0.0 };
        let over = age.saturating_sub(stale_ms) as f64;
        let span = stale_ms.saturating_mul(FORGOTTEN_AFTER - 1).max(1) as f64;
        (1.0 - over / span).clamp(0.0, 1.0)
    }

    /// Load beyond ours. The lesser of the last two looks: a request that is on its way is easily counted on one side only.
    pub(crate) fn foreign(&self) -> Foreign {
        let [(w0, r0, k0), (w1, r1, k1)] = self.foreign;
        Foreign {
            waiting: f64::from(w0.min(w1)),
            running: f64::from(r0.min(r1)),
            kv_tokens: k0.min(k1) as f64,
        }
    }

    /// 0: the cache has room; 1: whatever comes in pushes something out.
    pub(crate) fn evicting(&self, now_ms: u64) -> f64 {
        if self.preempted_ms.is_some_and(|at| now_ms.saturating_sub(at) <= PREEMPTED_MS) {
            return 1.0;
        }
        let (from, full) = EVICTING;
        ((f64::from(self.stats.kv_usage) - from) / (full - from)).clamp(0.0, 1.0)
    }
}
