//! The pools of this process, each behind its own short lock: pick and reserve are one step. What the books and the
//! signals say of an exchange or an engine is passed on to its pool here, with the time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ext_proc_meter::{Answered, Effect, Record};
use ext_proc_pick::{
    Ask, Candidate, Endpoint, NoPick, Observation, Occupancy, Pick, Pool, Settings, Strategy, Ticket, Used,
};
use fastrand::Rng;
use proto_tokenweir::token::ExchangeId;

use crate::clock::monotonic_ms;
use crate::engines::{Engine, Engines};
use crate::metrics::{Failure, Metrics, PoolMeters, Prediction};

/// A pool and the randomness that its picks use.
struct Entry {
    pool: Pool,
    rng: Rng,
}

/// One pool, and what is known and counted of it.
struct Slot {
    entry: Mutex<Entry>,
    strategy: Strategy,
    engines: Engines,
    meters: Arc<PoolMeters>,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Entry> {
        // A panic under the lock leaves counts, never a torn structure: going on is right.
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An endpoint as the pool sees it now, what is in flight there, and what its engine said last.
pub(crate) struct Seen {
    pub(crate) candidate: Candidate,
    pub(crate) occupancy: Occupancy,
    pub(crate) engine: Engine,
}

/// All pools by name. Which there are is fixed by the configuration; what is in them changes.
pub(crate) struct Pools {
    slots: BTreeMap<String, Slot>,
}

fn ticket(exchange: ExchangeId) -> Ticket {
    Ticket(u128::from_be_bytes(exchange.0))
}

impl Pools {
    pub(crate) fn new(pools: impl IntoIterator<Item = (String, Settings)>, metrics: &Metrics) -> Self {
        let slot = |name: &str, settings: Settings| Slot {
            entry: Mutex::new(Entry { pool: Pool::new(settings), rng: Rng::new() }),
            strategy: settings.strategy,
            engines: Engines::default(),
            meters: metrics.pool(name),
        };
        let slots = pools.into_iter().map(|(name, settings)| {
            let slot = slot(&name, settings);
            (name, slot)
        });
        Self { slots: slots.collect() }
    }

    /// Picks in `pool` and reserves there for `exchange`.
    pub(crate) fn pick(
        &self,
        pool: &str,
        exchange: ExchangeId,
        ask: &Ask<'_>,
    ) -> Result<(Strategy, Pick), NoPick> {
        let slot = self.slots.get(pool).ok_or(NoPick::NoneReady)?;
        let pick = {
            let mut guard = slot.lock();
            let Entry { pool, rng } = &mut *guard;
            pool.pick(ticket(exchange), ask, monotonic_ms(), rng)?
        };
        slot.meters.picked(pick.reason.as_label());
        Ok((slot.strategy, pick))
    }

    /// Gives back the place of an exchange that came to nothing.
    pub(crate) fn cancel(&self, pool: &str, exchange: ExchangeId) {
        self.release(pool, exchange, Used::default(), None);
    }

    /// The addresses of a pool, ready or not.
    pub(crate) fn endpoints(&self, pool: &str) -> Vec<SocketAddr> {
        let Some(slot) = self.slots.get(pool) else { return Vec::new() };
        slot.lock().pool.addresses().collect()
    }

    fn release(&self, pool: &str, exchange: ExchangeId, used: Used, predicted: Option<u64>) {
        let Some(slot) = self.slots.get(pool) else { return };
        slot.lock().pool.release(ticket(exchange), used, monotonic_ms());
        if let (Some(predicted), Some(prompt), Some(reported)) = (predicted, used.input, used.cached) {
            slot.meters.predicted(Prediction { prompt, predicted: predicted.min(prompt), reported });
        }
    }

    fn answered(&self, pool: &str, exchange: ExchangeId, picked: Option<SocketAddr>, answer: &Answered) {
        let Some(slot) = self.slots.get(pool) else { return };
        let status = u16::try_from(answer.status).unwrap_or_default();
        let (ticket, now_ms) = (ticket(exchange), monotonic_ms());
        let Some(served) = answer.served else {
            // No endpoint was even tried: none is to blame, and none works on it. Its end finds nothing left to release.
            slot.meters.failed(Failure::Unreached);
            return slot.lock().pool.release(ticket, Used::default(), now_ms);
        };
        slot.lock().pool.answered(ticket, Some(served), status, answer.retry_after_ms, now_ms);
        if picked.is_some_and(|picked| picked != served) {
            slot.meters.failed(Failure::Refused);
        }
        if status == 429 || status >= 500 {
            slot.meters.failed(Failure::Answered);
        }
    }

    /// Does what a book asks of the pools; gives back the record that it asks to write.
    pub(crate) fn perform(&self, effect: Effect) -> Option<Record> {
        match effect {
            Effect::Adopt { pool, exchange, on } => {
                if let Some(slot) = self.slots.get(&pool) {
                    slot.lock().pool.adopt(ticket(exchange), on, monotonic_ms());
                }
            }
            Effect::Answered { pool, exchange, picked, answer } => {
                self.answered(&pool, exchange, picked, &answer);
            }
            Effect::FirstToken { pool, exchange } => {
                if let Some(slot) = self.slots.get(&pool) {
                    slot.lock().pool.first_token(ticket(exchange), monotonic_ms());
                }
            }
            Effect::Release { pool, exchange, used, predicted } => {
                let used = Used { input: used.input, cached: used.cached, output: used.output };
                self.release(&pool, exchange, used, predicted);
            }
            Effect::Record(record) => return Some(*record),
        }
        None
    }

    /// Takes a new view of all pools; a pool that it doesn't name becomes empty.
    pub(crate) fn replace(&self, view: &BTreeMap<String, Vec<Endpoint>>) {
        for (name, slot) in &self.slots {
            let endpoints = view.get(name).map(Vec::as_slice).unwrap_or_default();
            slot.lock().pool.replace(endpoints);
            slot.engines.replace(endpoints);
        }
    }

    /// Every pool and its endpoints, as they are at `now_ms`.
    pub(crate) fn seen(&self, now_ms: u64) -> impl Iterator<Item = (&str, Strategy, Vec<Seen>)> + '_ {
        self.slots.iter().map(move |(name, slot)| {
            let (candidates, occupancy): (Vec<Candidate>, _) = {
                let entry = slot.lock();
                (entry.pool.candidates(now_ms).collect(), entry.pool.occupancy())
            };
            let seen = |candidate: Candidate| Seen {
                occupancy: occupancy.get(&candidate.address).copied().unwrap_or_default(),
                engine: slot.engines.get(candidate.address),
                candidate,
            };
            (name.as_str(), slot.strategy, candidates.into_iter().map(seen).collect())
        })
    }
}

/// What the signals tell.
impl Pools {
    /// A look at an engine brought this.
    pub(crate) fn take_look(&self, pool: &str, address: SocketAddr, observation: Observation) {
        if let Some(slot) = self.slots.get(pool) {
            let now_ms = monotonic_ms();
            slot.engines.observed(address, &observation, now_ms);
            slot.lock().pool.observe(address, observation, now_ms);
        }
    }

    /// Our exchanges in flight on an endpoint.
    pub(crate) fn in_flight_on(&self, pool: &str, address: SocketAddr) -> u32 {
        self.slots.get(pool).map_or(0, |slot| slot.lock().pool.in_flight(address))
    }

    /// The engine was restarted: its cache is empty.
    pub(crate) fn forget_cache(&self, pool: &str, address: SocketAddr) {
        if let Some(slot) = self.slots.get(pool) {
            slot.lock().pool.forget(address);
        }
    }

    /// A look at an engine ended with `outcome`, a fixed text.
    pub(crate) fn note_look(&self, pool: &str, address: SocketAddr, outcome: &'static str, took: Duration) {
        if let Some(slot) = self.slots.get(pool) {
            slot.engines.looked(address, outcome, took, monotonic_ms());
            slot.meters.scraped(outcome, took);
        }
    }
}
