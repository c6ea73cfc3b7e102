//! One pool: its endpoints, what is in flight on each, and what is learned when an exchange ends.

mod choose;
mod exchange;
mod flight;
mod occupancy;
mod price;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use exchange::index_slot;
use flight::Flight;
pub use occupancy::Occupancy;

use crate::ask::Ticket;
use crate::explain::Candidate;
use crate::index::{Index, Room};
use crate::learned::Learned;
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
    /// What each endpoint should have in its cache.
    index: Index,
    /// Names that engines have called adapters.
    adapters: BTreeSet<String>,
    turn: usize,
    /// Picks made.
    picks: u64,
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
            index: Index::default(),
            adapters: BTreeSet::new(),
            turn: 0,
            picks: 0,
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
        // More endpoints share the pool's memory: each may hold less.
        for number in self.listed.clone() {
            self.index.trim(index_slot(number), self.room(number));
        }
    }

    fn uses_prefixes(&self) -> bool {
        matches!(self.settings.strategy, Strategy::LeastWork | Strategy::PrefixOnly)
    }

    /// How much of prompts an endpoint may hold in the index: its cache's size, and its share of the pool's memory. One
    /// that isn't listed holds nothing.
    fn room(&self, number: usize) -> Room {
        let Some(slot) = self.slot(number).filter(|slot| slot.listed) else {
            return Room { bytes: 0, chunks: 0 };
        };
        let tokens = slot.signals.stats.kv_capacity_tokens.unwrap_or(self.settings.kv_capacity_tokens);
        let bytes = (tokens as f64 * self.learned.bytes_per_token()) as u64;
        Room { bytes, chunks: self.settings.chunks_max / self.listed.len().max(1) }
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
        let idle = slot.load.in_flight() == 0;
        let address = slot.address;
        self.index.clear(index_slot(number));
        if idle {
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
        let ours = slot.load;
        let unreachable = observation.health == Health::Unreachable;
        let active = observation.stats.as_ref().and_then(|stats| stats.lora_active.clone());
        if observation.stats.is_some() {
            slot.load.look();
        }
        slot.signals.observe(observation, &ours, now_ms);
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
        self.index.clear(index_slot(number));
    }

    /// Exchanges of ours in flight at `address`.
    #[must_use]
    pub fn in_flight(&self, address: SocketAddr) -> u32 {
        let slot = self.by_address.get(&address).and_then(|&number| self.slot(number));
        slot.map_or(0, |slot| slot.load.in_flight())
    }

    /// The addresses of the newest list, ready or not.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.listed.iter().filter_map(|&number| self.slot(number)).map(|slot| slot.address)
    }

    /// Every listed endpoint, and what an empty request would cost there.
    pub fn candidates(&self, now_ms: u64) -> impl Iterator<Item = Candidate> + '_ {
        self.survey(now_ms).into_iter()
    }
}
