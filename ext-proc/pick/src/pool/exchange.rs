//! An exchange from its reservation to its end, and what is learned from it.

use std::net::SocketAddr;

use xxhash_rust::xxh3::xxh3_64;

use super::choose::Scored;
use super::flight::{Flight, Told};
use super::{Pool, TICKETS_MAX};
use crate::ask::{Ask, Ticket, Used};
use crate::cost::{Request, prefill_s};
use crate::explain::{Explanation, LIST_MAX};
use crate::load::{Phase, Work};
use crate::prefix::{bytes_at, chunk_bytes, chunks_at};

/// An exchange is taken to generate when its first token is this many times later than reckoned, and a second more.
const OVERDUE: u64 = 4;
/// Refusals in a row after which an engine is taken to have been restarted.
const RESTARTED_AFTER: u32 = 2;
/// A reported hit may fall short of the predicted one by so many tokens (a few engine blocks), and by one chunk.
const SHORT_TOKENS: f64 = 64.0;

impl Pool {
    pub(super) fn reserve(
        &mut self,
        ticket: Ticket,
        ask: &Ask<'_>,
        request: &Request,
        (first, cost, order): (&Scored, &Explanation, &[SocketAddr]),
        now_ms: u64,
    ) {
        if self.flights.len() >= TICKETS_MAX || self.flights.contains_key(&ticket) {
            return;
        }
        self.picks += 1;
        let picks = self.picks;
        let work = self.work(request, cost.matched_tokens);
        self.learned.sent(request.prompt_tokens as u64, work.uncached_tokens);
        let expected_ms =
            (cost.wait_s + cost.foreign_s + cost.kv_wait_s) * 1e3 + work.prefill_us as f64 / 1e3;
        let due_ms =
            now_ms.saturating_add((expected_ms as u64).saturating_mul(OVERDUE)).saturating_add(1_000);
        let mut planned = [None; LIST_MAX];
        for (place, address) in planned.iter_mut().zip(order) {
            *place = Some(*address);
        }
        let is_adapter = self.adapters.contains(ask.model);
        if let Some(slot) = self.slot_mut(first.slot) {
            slot.load.dispatch(&work, now_ms);
            slot.picked = picks;
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
            matched_chunks: first.matched_chunks,
            request: *request,
            text_bytes: ask.prompt_bytes.max(ask.prefix.bytes()),
            token_ids: ask.prompt_token_ids,
            told: Told::Nothing,
            first: None,
        };
        self.remember(&flight);
        self.flights.insert(ticket, flight);
    }

    fn work(&self, request: &Request, matched_tokens: u64) -> Work {
        let prompt = request.prompt_tokens as u64;
        let uncached = prompt.saturating_sub(matched_tokens).max(1);
        let seconds = prefill_s(&self.settings.speed, uncached as f64, matched_tokens as f64);
        Work {
            uncached_tokens: uncached,
            prefill_us: (seconds * 1e6) as u64,
            context_tokens: prompt.saturating_add((request.output_tokens / 2.0) as u64),
        }
    }

    /// The endpoint that a flight is at has its prompt, or will have it before any later prompt.
    fn remember(&mut self, flight: &Flight) {
        if self.uses_prefixes() && flight.prefix.chunks() > 0 {
            let room = self.room(flight.slot);
            self.index.insert(index_slot(flight.slot), flight.prefix.hashes(), room);
        }
    }

    /// The response has begun: `served` is who sent it (`None`: nobody), with `status`. Moves the reservation there.
    /// Endpoints that were to be tried before it have refused or failed and are penalised, and so is `served` itself for
    /// a status of 429 or from 500 on; `retry_after_ms` is its Retry-After.
    pub fn answered(
        &mut self,
        ticket: Ticket,
        served: Option<SocketAddr>,
        status: u16,
        retry_after_ms: Option<u64>,
        now_ms: u64,
    ) {
        let Some(flight) = self.flights.get_mut(&ticket) else { return };
        let failed = status == 429 || status >= 500 || served.is_none();
        flight.told = if failed { Told::Failed } else { flight.told.max(Told::Answered) };
        let (order, planned) = (flight.order, flight.slot);
        for refused in order.iter().flatten().take_while(|&&address| Some(address) != served) {
            self.fail(*refused, None, true, now_ms);
        }
        let Some(served) = served else { return };
        if failed {
            self.fail(served, retry_after_ms, false, now_ms);
        }
        let number = self.number(served);
        if let Some(slot) = self.slot_mut(number) {
            if !failed {
                slot.faults.clear();
            }
            slot.signals.alive(now_ms);
        }
        if number != planned {
            self.relocate(ticket, number, now_ms);
        }
    }

    fn fail(&mut self, address: SocketAddr, retry_after_ms: Option<u64>, refused: bool, now_ms: u64) {
        let penalty_ms = self.settings.penalty_ms;
        let Some(&number) = self.by_address.get(&address) else { return };
        let Some(slot) = self.slot_mut(number) else { return };
        slot.faults.note(penalty_ms, retry_after_ms, now_ms);
        if refused && slot.faults.in_a_row() >= RESTARTED_AFTER {
            self.forget(address);
        }
    }

    fn relocate(&mut self, ticket: Ticket, number: usize, now_ms: u64) {
        let Some(mut flight) = self.flights.remove(&ticket) else { return };
        self.unload(flight.slot, &flight.work, flight.phase, now_ms);
        // It was never computed where it was meant to be.
        self.index.cut(index_slot(flight.slot), flight.prefix.hashes(), flight.matched_chunks);
        flight.slot = number;
        flight.matched_chunks = self.index.depth(index_slot(number), flight.prefix.hashes());
        let matched = bytes_at(flight.matched_chunks) as f64 / self.learned.bytes_per_token();
        flight.work = self.work(&flight.request, matched as u64);
        if let Some(slot) = self.slot_mut(number) {
            slot.load.dispatch(&flight.work, now_ms);
            if flight.phase == Phase::Decode {
                slot.load.start_decode(&flight.work, now_ms);
            }
        }
        self.remember(&flight);
        self.flights.insert(ticket, flight);
    }

    fn unload(&mut self, number: usize, work: &Work, phase: Phase, now_ms: u64) {
        let Some(slot) = self.slot_mut(number) else { return };
        slot.load.end(work, phase, now_ms);
        if !slot.listed {
            self.leave(number);
        }
    }

    /// The first token has come: the prefill is done.
    pub fn first_token(&mut self, ticket: Ticket, now_ms: u64) {
        let speed = self.settings.speed;
        let Some(flight) = self.flights.get_mut(&ticket) else { return };
        let load =
            self.slots.get(flight.slot).and_then(Option::as_ref).map(|slot| slot.load).unwrap_or_default();
        let step_s = speed.step_s(f64::from(load.decoding) + 1.0, load.context_tokens as f64);
        flight.first = flight.first.or(Some((now_ms, step_s)));
        flight.told = flight.told.max(Told::FirstToken);
        if flight.phase == Phase::Decode {
            return;
        }
        flight.phase = Phase::Decode;
        self.due.remove(&(flight.due_ms, ticket));
        let (number, work) = (flight.slot, flight.work);
        if let Some(slot) = self.slot_mut(number) {
            slot.load.start_decode(&work, now_ms);
            slot.signals.alive(now_ms);
        }
    }

    /// Exchanges whose first token is long overdue are taken to generate.
    pub(super) fn promote(&mut self, now_ms: u64) {
        while let Some(&(due_ms, ticket)) = self.due.first().filter(|(due_ms, _)| *due_ms <= now_ms) {
            self.due.remove(&(due_ms, ticket));
            let Some(flight) = self.flights.get_mut(&ticket) else { continue };
            flight.phase = Phase::Decode;
            let (number, work) = (flight.slot, flight.work);
            if let Some(slot) = self.slot_mut(number) {
                slot.load.start_decode(&work, now_ms);
            }
        }
    }

    /// Counts an exchange that this process didn't dispatch (it was restarted since): it generates at `address`, and
    /// nothing else is known of it. A ticket that is known already stays as it is.
    pub fn adopt(&mut self, ticket: Ticket, address: SocketAddr, now_ms: u64) {
        if self.flights.contains_key(&ticket) || self.flights.len() >= TICKETS_MAX {
            return;
        }
        let context = self.learned.prompt_tokens() + self.learned.output_tokens(None) / 2.0;
        let work = Work { context_tokens: context as u64, ..Work::default() };
        let number = self.number(address);
        if let Some(slot) = self.slot_mut(number) {
            slot.load.dispatch(&work, now_ms);
            slot.load.start_decode(&work, now_ms);
        }
        self.flights.insert(ticket, Flight::adopted(number, work));
    }

    /// The exchange has ended with what it used. A ticket that isn't known is ignored.
    pub fn release(&mut self, ticket: Ticket, used: Used, now_ms: u64) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        self.due.remove(&(flight.due_ms, ticket));
        self.learned.ended(flight.text_bytes, flight.token_ids, &used);
        if let (Some((first_ms, step_s)), Some(output)) = (flight.first, used.output)
            && let Some(slot) = self.slot_mut(flight.slot)
        {
            slot.pace.note(output, now_ms.saturating_sub(first_ms), step_s, now_ms);
        }
        if flight.prefix.chunks() > 0 {
            self.correct(ticket, &flight, &used);
        }
        self.unload(flight.slot, &flight.work, flight.phase, now_ms);
    }

    /// Holds what was predicted of the cache against what the engine found in it.
    fn correct(&mut self, ticket: Ticket, flight: &Flight, used: &Used) {
        let slot = index_slot(flight.slot);
        let chain = flight.prefix.hashes();
        let served = used.input.is_some() || flight.told == Told::FirstToken;
        if !served {
            if flight.told != Told::Answered {
                self.index.cut(slot, chain, flight.matched_chunks);
            }
            return;
        }
        if let (Some(input), Some(cached)) = (used.input.filter(|&tokens| tokens > 0), used.cached) {
            let share = (cached as f64 / input as f64).min(1.0);
            let found = (share * flight.text_bytes as f64) as u64;
            let predicted = bytes_at(flight.matched_chunks);
            let chunk = chunk_bytes(u32::try_from(found).unwrap_or(u32::MAX));
            let slack = u64::from(chunk) + (SHORT_TOKENS * self.learned.bytes_per_token()) as u64;
            if found.saturating_add(slack) < predicted {
                // Tails go first: what isn't there any more has nothing behind it either.
                self.index.cut(slot, chain, chunks_at(found));
            }
            if predicted > 0
                && let Some(slot) = self.slot_mut(flight.slot)
            {
                slot.note_hit((found.saturating_add(slack) as f64 / predicted as f64).min(1.0));
            }
        }
        // Whatever was missing has been computed since, and the engine keeps it from now on.
        self.remember(flight);
        if self.uses_prefixes() {
            let room = self.room(flight.slot);
            let output = used.output.unwrap_or_default() as f64 * self.learned.bytes_per_token();
            let key = xxh3_64(&ticket.0.to_le_bytes());
            self.index.append(slot, chain, key, output as u64, room);
        }
    }
}

/// Slot numbers stay far below this: there are no more than listed endpoints and tickets.
pub(super) fn index_slot(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
