//! One pool: its endpoints, what is in flight on each, and what is learned when an exchange ends.

mod choose;
mod flight;
mod occupancy;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use flight::Flight;
pub use occupancy::Occupancy;

use crate::ask::{Ticket, Used};
use crate::explain::Candidate;
use crate::learned::Learned;
use crate::load::{Phase, Work};
use crate::prefix::Prefix;
use crate::settings::{Settings, Strategy};
use crate::signal::{Endpoint, Health, Observation};
use crate::slot::Slot;

/// Most endpoints in a pool.
pub const ENDPOINTS_MAX: usize = 4096;
/// Most exchanges whose load a pool keeps. One more is picked for, but its load isn't seen by the next.
pub const TICKETS_MAX: usize = 1 << 17;
/// Most names known to be adapters'.
const ADAPTERS_MAX: usize = 1024;

/// One pool's endpoints, their load, and their caches as far as known.
#[derive(Debug)]
pub struct Pool {
    settings: Settings,
    /// By slot number; a free place is `None`.
    slots: Vec<Option<Slot>>,
    by_address: BTreeMap<SocketAddr, usize>,
    /// The listed ones, in the order of the newest list.
    listed: Vec<usize>,
    flights: HashMap<Ticket, Flight>,
    /// When exchanges without a first token are taken to generate: nobody may ever tell.
    due: BTreeSet<(u64, Ticket)>,
    learned: Learned,
    /// Names that engines have called adapters.
    adapters: BTreeSet<String>,
    turn: usize,
    scratch: choose::Scratch,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            slots: Vec::new(),
            by_address: BTreeMap::new(),
            listed: Vec::new(),
            flights: HashMap::new(),
            due: BTreeSet::new(),
            learned: Learned::new(&settings),
            adapters: BTreeSet::new(),
            turn: 0,
            scratch: choose::Scratch::default(),
        }
    }

    /// The strategy in force.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        self.settings.strategy
    }

    /// Takes a new list of endpoints, at most [`ENDPOINTS_MAX`] of it. The load of those that stay is kept, and of those
    /// that left until their requests have ended; whatever else was known of those is forgotten.
    pub fn replace(&mut self, endpoints: &[Endpoint]) {
        for slot in self.slots.iter_mut().flatten() {
            slot.listed = false;
        }
        self.listed.clear();
        for endpoint in endpoints.iter().take(ENDPOINTS_MAX) {
            let number = self.number(endpoint.address);
            let Some(slot) = self.slot_mut(number) else { continue };
            slot.ready = endpoint.ready;
            let new = !std::mem::replace(&mut slot.listed, true);
            if new {
                self.listed.push(number);
            }
        }
        let left: Vec<usize> = self.by_address.values().copied().collect();
        for number in left {
            if self.slot(number).is_some_and(|slot| !slot.listed) {
                self.leave(number);
            }
        }
    }

    /// The slot of `address`, made if there is none: unlisted, so that it is gone with its last request.
    fn number(&mut self, address: SocketAddr) -> usize {
        if let Some(&number) = self.by_address.get(&address) {
            return number;
        }
        let slot = Slot::new(address);
        let number = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        match self.slots.get_mut(number) {
            Some(free) => *free = Some(slot),
            None => self.slots.push(Some(slot)),
        }
        self.by_address.insert(address, number);
        number
    }

    fn slot(&self, number: usize) -> Option<&Slot> {
        self.slots.get(number).and_then(Option::as_ref)
    }

    fn slot_mut(&mut self, number: usize) -> Option<&mut Slot> {
        self.slots.get_mut(number).and_then(Option::as_mut)
    }

    /// What is left to do when an endpoint isn't listed (any more): nothing of it is kept but its load.
    fn leave(&mut self, number: usize) {
        let Some(slot) = self.slot_mut(number) else { return };
        slot.signals = crate::signals::Signals::default();
        slot.faults = crate::faults::Faults::default();
        slot.forget();
        if slot.load.in_flight() == 0 {
            let address = slot.address;
            self.by_address.remove(&address);
            if let Some(place) = self.slots.get_mut(number) {
                *place = None;
            }
        }
    }

    /// Takes a look at an endpoint. One that isn't listed is ignored.
    pub fn observe(&mut self, address: SocketAddr, observation: Observation, now_ms: u64) {
        self.promote(now_ms);
        let stale_ms = self.settings.stale_ms;
        let Some(&number) = self.by_address.get(&address) else { return };
        let Some(slot) = self.slot_mut(number).filter(|slot| slot.listed) else { return };
        let ours = (slot.load.prefilling, slot.load.decoding);
        let unreachable = observation.health == Health::Unreachable;
        let active = observation.stats.as_ref().and_then(|stats| stats.lora_active.clone());
        slot.signals.observe(observation, ours, now_ms);
        let gone = unreachable && slot.signals.health(stale_ms, now_ms) == Health::Unreachable;
        if gone {
            self.forget(address);
        }
        for name in active.iter().flat_map(|active| active.iter()) {
            if self.adapters.len() < ADAPTERS_MAX && !self.adapters.contains(name) {
                self.adapters.insert(name.clone());
            }
        }
    }

    /// The engine at `address` was restarted, or has dropped its cache: what it held is forgotten.
    pub fn forget(&mut self, address: SocketAddr) {
        let Some(&number) = self.by_address.get(&address) else { return };
        if let Some(slot) = self.slot_mut(number) {
            slot.forget();
        }
    }

    /// Exchanges of ours in flight at `address`.
    #[must_use]
    pub fn in_flight(&self, address: SocketAddr) -> u32 {
        let slot = self.by_address.get(&address).and_then(|&number| self.slot(number));
        slot.map_or(0, |slot| slot.load.in_flight())
    }

    /// Every listed endpoint, and what an empty request would cost there.
    pub fn candidates(&self, now_ms: u64) -> impl Iterator<Item = Candidate> + '_ {
        self.survey(now_ms).into_iter()
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
        let Some(flight) = self.flights.get(&ticket) else { return };
        let (order, planned) = (flight.order, flight.slot);
        for refused in order.iter().flatten().take_while(|&&address| Some(address) != served) {
            self.fail(*refused, None, now_ms);
        }
        let Some(served) = served else { return };
        let failed = status == 429 || status >= 500;
        if failed {
            self.fail(served, retry_after_ms, now_ms);
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
        if let Some(flight) = self.flights.get_mut(&ticket) {
            flight.failed = failed;
        }
    }

    fn fail(&mut self, address: SocketAddr, retry_after_ms: Option<u64>, now_ms: u64) {
        let penalty_ms = self.settings.penalty_ms;
        let Some(&number) = self.by_address.get(&address) else { return };
        if let Some(slot) = self.slot_mut(number) {
            slot.faults.note(penalty_ms, retry_after_ms, now_ms);
        }
    }

    fn relocate(&mut self, ticket: Ticket, number: usize, now_ms: u64) {
        let Some(flight) = self.flights.get_mut(&ticket) else { return };
        let (work, phase) = (flight.work, flight.phase);
        let from = std::mem::replace(&mut flight.slot, number);
        self.unload(from, &work, phase, now_ms);
        if let Some(slot) = self.slot_mut(number) {
            slot.load.dispatch(&work, now_ms);
            if phase == Phase::Decode {
                slot.load.start_decode(&work, now_ms);
            }
        }
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
        let Some(flight) = self.flights.get_mut(&ticket) else { return };
        flight.first_token = true;
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
    fn promote(&mut self, now_ms: u64) {
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
        self.unload(flight.slot, &flight.work, flight.phase, now_ms);
        self.learned.ended(flight.text_bytes, flight.token_ids, &used);
    }
}
