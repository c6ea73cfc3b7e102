//! The pick itself: filter, cost, order, reserve.

use fastrand::Rng;
use std::cmp::Ordering;

use super::Pool;
use super::price::Class;
use crate::ask::{Ask, Ticket};
use crate::explain::{CANDIDATES_MAX, Candidate, Excluded, Explanation, LIST_MAX, NoPick, Pick, Reason};
use crate::settings::Strategy;
use crate::slot::Slot;

/// An endpoint is explored only if it costs at most this share more than the best, or so many seconds.
const EXPLORED_SHARE: f64 = 0.5;
const EXPLORED_S: f64 = 0.05;
/// Costs that differ by less than this share of a step are alike.
const ALIKE_STEPS: f64 = 0.5;

/// An eligible endpoint under consideration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scored {
    pub(super) slot: usize,
    pub(super) class: Class,
    pub(super) in_flight: u32,
    pub(super) matched_chunks: usize,
    pub(super) matched_tokens: u64,
    pub(super) total_s: f64,
    pub(super) step_s: f64,
    /// Where its explanation is.
    pub(super) at: usize,
}

/// Buffers that picks reuse.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) scored: Vec<Scored>,
    /// Apart, so that ordering doesn't move them.
    pub(super) explanations: Vec<Explanation>,
    excluded: Vec<(usize, Excluded)>,
    pub(super) depths: Vec<u32>,
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
            self.score(ask, &request, &mut scratch, now_ms);
            let reason = self.order(ask, &mut scratch.scored, rng);
            let first = *scratch.scored.first().ok_or(NoPick::NoneReady)?;
            let pick = self.write_down(&scratch, reason, now_ms);
            let cost = scratch.explanations.get(first.at).copied().unwrap_or_default();
            self.reserve(ticket, ask, &request, (&first, &cost, &pick.order), now_ms);
            Ok(pick)
        });
        scratch.scored.clear();
        scratch.explanations.clear();
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
                    matched_chunks: 0,
                    in_flight: slot.load.in_flight(),
                    matched_tokens: 0,
                    total_s: 0.0,
                    step_s: 0.0,
                    at: scratch.scored.len(),
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
                    let matched = |s: &Scored| s.matched_tokens;
                    matched(b).cmp(&matched(a)).then(a.in_flight.cmp(&b.in_flight))
                };
                sort(scored, order, Reason::LongestPrefix)
            }
            Strategy::LeastWork => {
                rng.shuffle(scored);
                let order = |a: &Scored, b: &Scored| {
                    let cost = |s: &Scored| s.total_s;
                    cost(a).total_cmp(&cost(b)).then(a.in_flight.cmp(&b.in_flight))
                };
                let reason = sort(scored, order, Reason::CheapestCold);
                self.explore(scored, rng)
                    .or_else(|| self.take_turns(scored))
                    .unwrap_or_else(|| warmth(scored, reason))
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

    /// Now and then another fit endpoint comes first, by chance; only one where it costs little.
    fn explore(&self, scored: &mut [Scored], rng: &mut Rng) -> Option<Reason> {
        let best = scored.first().map_or(0.0, |s| s.total_s);
        let near = best + (best * EXPLORED_SHARE).max(EXPLORED_S);
        let is_near = |s: &&Scored| s.class == Class::Fit && s.total_s <= near;
        let fit = scored.iter().take_while(is_near).count();
        if fit < 2 || rng.f64() >= self.settings.exploration {
            return None;
        }
        let chosen = rng.usize(1..fit);
        scored.get_mut(..=chosen)?.rotate_right(1);
        Some(Reason::Explored)
    }

    /// An engine takes new prompts between steps only, so loads that differ by little beside a step are alike: of those, the one
    /// that was picked longest ago. A cached prefix is never given up for that.
    fn take_turns(&self, scored: &mut [Scored]) -> Option<Reason> {
        let best = *scored.first()?;
        let Scored { total_s, step_s, matched_tokens, .. } = best;
        let alike = |s: &Scored| {
            s.class == best.class
                && s.total_s - total_s < step_s * ALIKE_STEPS
                && s.matched_tokens >= matched_tokens
        };
        let picked = |s: &Scored| self.slot(s.slot).map_or(0, |slot| slot.picked);
        let all = scored.iter().enumerate().filter(|(_, s)| alike(s));
        let (chosen, _) = all.min_by_key(|(_, s)| picked(s))?;
        let others = scored.iter().filter(|s| alike(s)).count();
        scored.get_mut(..=chosen)?.rotate_right(1);
        (others > 1).then_some(Reason::TieInTurn)
    }

    fn write_down(&self, scratch: &Scratch, reason: Reason, now_ms: u64) -> Pick {
        let address = |number: usize| self.slot(number).map(|slot| slot.address);
        let order = scratch.scored.iter().take(LIST_MAX).filter_map(|s| address(s.slot)).collect();
        let explanation = |s: &Scored| scratch.explanations.get(s.at).copied().unwrap_or_default();
        let eligible = scratch.scored.iter().map(|s| (s.slot, None, explanation(s)));
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

    pub(super) fn candidate(
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
    let matched = |s: &Scored| s.matched_tokens;
    let first = scored.first().map_or(0, matched);
    let most = scored.iter().map(matched).max().unwrap_or_default();
    match (first, most) {
        (_, 0) => Reason::CheapestCold,
        (first, most) if first >= most => Reason::CheapestWarm,
        _ => Reason::WarmIsBusier,
    }
}
