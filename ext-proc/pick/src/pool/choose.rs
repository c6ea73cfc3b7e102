//! The pick itself: filter, cost, order, reserve.

use std::cmp::Ordering;
use std::net::SocketAddr;

use fastrand::Rng;
use xxhash_rust::xxh3::xxh3_64;

use super::flight::Flight;
use super::{Pool, TICKETS_MAX};
use crate::ask::{Ask, Ticket};
use crate::cost::{Request, Site, explain, prefill_s};
use crate::explain::{CANDIDATES_MAX, Candidate, Excluded, Explanation, LIST_MAX, NoPick, Pick, Reason};
use crate::load::{Phase, Work};
use crate::prefix::Prefix;
use crate::settings::Strategy;
use crate::signal::Health;
use crate::signals::Foreign;
use crate::slot::{Adapter, Slot};

/// An exchange is taken to generate when its first token is this many times later than reckoned, and a second more.
const OVERDUE: u64 = 4;

/// How good an endpoint is before its cost is even looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Fit,
    /// By its signals it would not serve.
    Unhealthy,
    /// It has failed lately.
    Penalised,
}

/// An eligible endpoint under consideration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scored {
    slot: usize,
    class: Class,
    in_flight: u32,
    explanation: Explanation,
}

/// Buffers that picks reuse.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    scored: Vec<Scored>,
    excluded: Vec<(usize, Excluded)>,
}

/// What stands in for signals that are old.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    foreign: Foreign,
    evicting: f64,
}

impl Pool {
    /// Picks an endpoint and reserves the request's load there under `ticket`.
    ///
    /// # Errors
    /// [`NoPick`]: nothing was reserved.
    pub fn pick(
        &mut self,
        ticket: Ticket,
        ask: &Ask<'_>,
        now_ms: u64,
        rng: &mut Rng,
    ) -> Result<Pick, NoPick> {
        self.promote(now_ms);
        let mut scratch = std::mem::take(&mut self.scratch);
        let picked = self.filter(ask, &mut scratch).and_then(|()| {
            let request = self.request(ask);
            self.score(ask, &request, &mut scratch.scored, now_ms);
            let reason = self.order(ask, &mut scratch.scored, rng);
            let first = *scratch.scored.first().ok_or(NoPick::NoneReady)?;
            let pick = self.write_down(&scratch, reason, now_ms);
            self.reserve(ticket, ask, &request, &first, &pick.order, now_ms);
            Ok(pick)
        });
        scratch.scored.clear();
        scratch.excluded.clear();
        self.scratch = scratch;
        picked
    }

    /// Parts the listed endpoints into eligible ones (scored later) and the rest.
    fn filter(&self, ask: &Ask<'_>, scratch: &mut Scratch) -> Result<(), NoPick> {
        let mut ready = false;
        let mut there = ask.stay.is_none();
        for &number in &self.listed {
            let Some(slot) = self.slot(number) else { continue };
            there = there || ask.stay == Some(slot.address);
            let excluded = if ask.stay.is_some_and(|stay| stay != slot.address) {
                Some(Excluded::NotTheOne)
            } else if !slot.ready {
                Some(Excluded::NotReady)
            } else if slot.signals.sleeps() {
                Some(Excluded::Sleeping)
            } else {
                ready = true;
                // Where a response lives is known; whether its model is still listed there doesn't matter.
                (ask.stay.is_none() && !slot.serves(ask.model)).then_some(Excluded::NotServing)
            };
            match excluded {
                Some(excluded) => scratch.excluded.push((number, excluded)),
                None => scratch.scored.push(Scored {
                    slot: number,
                    class: Class::Fit,
                    in_flight: slot.load.in_flight(),
                    explanation: Explanation::default(),
                }),
            }
        }
        match (there, ready, scratch.scored.is_empty()) {
            (false, ..) => Err(NoPick::Gone),
            (_, false, _) => Err(NoPick::NoneReady),
            (_, _, true) => Err(NoPick::NoneServes),
            _ => Ok(()),
        }
    }

    fn request(&self, ask: &Ask<'_>) -> Request {
        let bytes = ask.prompt_bytes.max(ask.prefix.bytes()) as f64;
        let tokens = bytes / self.learned.bytes_per_token() + ask.prompt_token_ids as f64;
        Request {
            prompt_tokens: tokens.max(1.0),
            output_tokens: self.learned.output_tokens(ask.output_tokens_max),
            usual_uncached: self.learned.uncached_tokens(),
            usual_prompt: self.learned.prompt_tokens(),
        }
    }

    fn score(&self, ask: &Ask<'_>, request: &Request, scored: &mut [Scored], now_ms: u64) {
        let means = self.means(now_ms);
        let adapter = self.adapters.contains(ask.model).then(|| xxh3_64(ask.model.as_bytes()));
        for candidate in scored {
            let Some(slot) = self.slot(candidate.slot) else { continue };
            candidate.class = self.class(slot, now_ms);
            candidate.explanation = self.cost(slot, ask.model, adapter, request, &means, 0.0, now_ms);
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
        let site = Site {
            speed: &self.settings.speed,
            load: &slot.load,
            matched_tokens,
            foreign: Foreign {
                waiting: blend(foreign.waiting, means.foreign.waiting),
                running: blend(foreign.running, means.foreign.running),
            },
            evicting: blend(slot.signals.evicting(now_ms), means.evicting),
            kv_capacity_tokens: capacity as f64,
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
        let (mut sum, mut total) = (Means::default(), 0.0);
        for slot in self.listed.iter().filter_map(|&number| self.slot(number)) {
            let weight = slot.signals.weight(self.settings.stale_ms, now_ms);
            let foreign = slot.signals.foreign();
            sum.foreign.waiting += weight * foreign.waiting;
            sum.foreign.running += weight * foreign.running;
            sum.evicting += weight * slot.signals.evicting(now_ms);
            total += weight;
        }
        if total <= 0.0 {
            return Means::default();
        }
        let foreign = Foreign { waiting: sum.foreign.waiting / total, running: sum.foreign.running / total };
        Means { foreign, evicting: sum.evicting / total }
    }

    /// Best first.
    fn order(&mut self, ask: &Ask<'_>, scored: &mut [Scored], rng: &mut Rng) -> Reason {
        let mut reason = match self.settings.strategy {
            Strategy::RoundRobin => {
                let len = scored.len().max(1);
                scored.rotate_left(self.turn % len);
                self.turn = self.turn.wrapping_add(1);
                scored.sort_by_key(|s| s.class);
                Reason::Turn
            }
            Strategy::Random => {
                rng.shuffle(scored);
                scored.sort_by_key(|s| s.class);
                Reason::AtRandom
            }
            // Shuffled first and sorted stably after: ties stay in random order.
            Strategy::LeastRequest => {
                rng.shuffle(scored);
                sort(scored, |a, b| a.in_flight.cmp(&b.in_flight), Reason::FewestInFlight)
            }
            Strategy::PrefixOnly => {
                rng.shuffle(scored);
                let order = |a: &Scored, b: &Scored| {
                    let matched = |s: &Scored| s.explanation.matched_tokens;
                    matched(b).cmp(&matched(a)).then(a.in_flight.cmp(&b.in_flight))
                };
                sort(scored, order, Reason::LongestPrefix)
            }
            Strategy::LeastWork => {
                rng.shuffle(scored);
                let order = |a: &Scored, b: &Scored| {
                    let cost = |s: &Scored| s.explanation.total_s;
                    cost(a).total_cmp(&cost(b)).then(a.in_flight.cmp(&b.in_flight))
                };
                let reason = sort(scored, order, Reason::CheapestCold);
                self.explore(scored, rng).unwrap_or_else(|| warmth(scored, reason))
            }
        };
        match scored.first().map(|s| s.class) {
            Some(Class::Penalised) => reason = Reason::AllPenalised,
            Some(Class::Unhealthy) => reason = Reason::AllUnhealthy,
            _ => {}
        }
        if ask.stay.is_some() {
            Reason::Stays
        } else if scored.len() == 1 {
            Reason::OnlyReady
        } else {
            reason
        }
    }

    /// Now and then another fit endpoint comes first, by chance.
    fn explore(&self, scored: &mut [Scored], rng: &mut Rng) -> Option<Reason> {
        let fit = scored.iter().take_while(|s| s.class == Class::Fit).count();
        if fit < 2 || rng.f64() >= self.settings.exploration {
            return None;
        }
        let chosen = rng.usize(1..fit);
        scored.get_mut(..=chosen)?.rotate_right(1);
        Some(Reason::Explored)
    }

    fn write_down(&self, scratch: &Scratch, reason: Reason, now_ms: u64) -> Pick {
        let address = |number: usize| self.slot(number).map(|slot| slot.address);
        let order = scratch.scored.iter().take(LIST_MAX).filter_map(|s| address(s.slot)).collect();
        let eligible = scratch.scored.iter().map(|s| (s.slot, None, s.explanation));
        let excluded = scratch.excluded.iter().map(|&(slot, why)| (slot, Some(why), Explanation::default()));
        let candidates = eligible
            .chain(excluded)
            .take(CANDIDATES_MAX)
            .filter_map(|(number, excluded, explanation)| {
                self.slot(number).map(|slot| self.candidate(slot, excluded, explanation, now_ms))
            })
            .collect();
        Pick { order, reason, candidates }
    }

    fn candidate(
        &self,
        slot: &Slot,
        excluded: Option<Excluded>,
        explanation: Explanation,
        now_ms: u64,
    ) -> Candidate {
        Candidate {
            address: slot.address,
            ready: slot.ready,
            health: slot.signals.health(self.settings.stale_ms, now_ms),
            in_flight: slot.load.in_flight(),
            excluded,
            explanation,
        }
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

    fn reserve(
        &mut self,
        ticket: Ticket,
        ask: &Ask<'_>,
        request: &Request,
        first: &Scored,
        order: &[SocketAddr],
        now_ms: u64,
    ) {
        if self.flights.len() >= TICKETS_MAX || self.flights.contains_key(&ticket) {
            return;
        }
        let cost = &first.explanation;
        let prompt = request.prompt_tokens as u64;
        let seconds =
            prefill_s(&self.settings.speed, cost.uncached_tokens as f64, cost.matched_tokens as f64);
        let work = Work {
            uncached_tokens: cost.uncached_tokens,
            prefill_us: (seconds * 1e6) as u64,
            context_tokens: prompt.saturating_add((request.output_tokens / 2.0) as u64),
        };
        self.learned.sent(prompt, cost.uncached_tokens);
        let expected_ms = ((cost.wait_s + cost.foreign_s + cost.kv_wait_s + seconds) * 1e3) as u64;
        let due_ms = now_ms.saturating_add(expected_ms.saturating_mul(OVERDUE)).saturating_add(1_000);
        let mut planned = [None; LIST_MAX];
        for (place, address) in planned.iter_mut().zip(order) {
            *place = Some(*address);
        }
        let is_adapter = self.adapters.contains(ask.model);
        if let Some(slot) = self.slot_mut(first.slot) {
            slot.load.dispatch(&work, now_ms);
            if is_adapter {
                slot.note_adapter(xxh3_64(ask.model.as_bytes()));
            }
        }
        self.due.insert((due_ms, ticket));
        let flight = Flight {
            slot: first.slot,
            order: planned,
            work,
            phase: Phase::Prefill,
            due_ms,
            prefix: ask.prefix.clone(),
            text_bytes: ask.prompt_bytes,
            token_ids: ask.prompt_token_ids,
            first_token: false,
            failed: false,
        };
        self.flights.insert(ticket, flight);
    }
}

/// Sorts by class, then by `order`; says whether the first two are equal.
fn sort(scored: &mut [Scored], order: impl Fn(&Scored, &Scored) -> Ordering, alone: Reason) -> Reason {
    scored.sort_by(|a, b| a.class.cmp(&b.class).then_with(|| order(a, b)));
    match scored {
        [a, b, ..] if a.class == b.class && order(a, b) == Ordering::Equal => Reason::TieAtRandom,
        _ => alone,
    }
}

/// Why the cheapest is cheapest.
fn warmth(scored: &[Scored], reason: Reason) -> Reason {
    if reason == Reason::TieAtRandom {
        return reason;
    }
    let matched = |s: &Scored| s.explanation.matched_tokens;
    let first = scored.first().map_or(0, matched);
    let most = scored.iter().map(matched).max().unwrap_or_default();
    match (first, most) {
        (_, 0) => Reason::CheapestCold,
        (first, most) if first >= most => Reason::CheapestWarm,
        _ => Reason::WarmIsBusier,
    }
}
