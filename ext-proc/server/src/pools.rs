//! The pools of this process, each behind its own short lock: pick and reserve are one step.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ext_proc_meter::Effect;
use ext_proc_pick::{Candidate, Endpoint, NoneReady, Pick, Pool, Reason, Strategy};
use fastrand::Rng;

/// A pool and the randomness that its picks use.
struct Entry {
    pool: Pool,
    rng: Rng,
}

/// All pools by name. Which there are is fixed by the configuration; what is in them changes.
pub(crate) struct Pools {
    entries: BTreeMap<String, Mutex<Entry>>,
}

impl Pools {
    pub(crate) fn new(pools: impl IntoIterator<Item = (String, Strategy)>) -> Self {
        let entry = |strategy| Mutex::new(Entry { pool: Pool::new(strategy), rng: Rng::new() });
        Self { entries: pools.into_iter().map(|(name, strategy)| (name, entry(strategy))).collect() }
    }

    fn lock(&self, pool: &str) -> Option<MutexGuard<'_, Entry>> {
        // A panic under the lock leaves counts, never a torn structure: going on is right.
        self.entries.get(pool).map(|entry| entry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Picks in `pool` and reserves there.
    pub(crate) fn pick(&self, pool: &str) -> Result<(Strategy, Pick), NoneReady> {
        let mut guard = self.lock(pool).ok_or(NoneReady)?;
        let Entry { pool, rng } = &mut *guard;
        pool.pick(rng).map(|pick| (pool.strategy(), pick))
    }

    /// Reserves at `stay`, the one endpoint that can serve.
    pub(crate) fn stay(&self, pool: &str, stay: SocketAddr) -> Result<(Strategy, Pick), NoneReady> {
        let mut entry = self.lock(pool).ok_or(NoneReady)?;
        let candidates: Vec<Candidate> = entry.pool.candidates().collect();
        if !candidates.iter().any(|candidate| candidate.address == stay && candidate.ready) {
            return Err(NoneReady);
        }
        entry.pool.reserve(stay);
        Ok((entry.pool.strategy(), Pick { order: vec![stay], reason: Reason::OnlyReady, candidates }))
    }

    /// The addresses of a pool, ready or not.
    pub(crate) fn endpoints(&self, pool: &str) -> Vec<SocketAddr> {
        let entry = self.lock(pool);
        entry.map(|entry| entry.pool.candidates().map(|c| c.address).collect()).unwrap_or_default()
    }

    pub(crate) fn reserve(&self, pool: &str, address: SocketAddr) {
        if let Some(mut entry) = self.lock(pool) {
            entry.pool.reserve(address);
        }
    }

    pub(crate) fn release(&self, pool: &str, address: SocketAddr) {
        if let Some(mut entry) = self.lock(pool) {
            entry.pool.release(address);
        }
    }

    /// Does what a book asks of the pools; gives back the records it asks to write.
    pub(crate) fn perform(&self, effects: Vec<Effect>) -> Vec<ext_proc_meter::Record> {
        let mut records = Vec::new();
        for effect in effects {
            match effect {
                Effect::Reserve(pool, address) => self.reserve(&pool, address),
                Effect::Release(pool, address) => self.release(&pool, address),
                Effect::Record(record) => records.push(*record),
            }
        }
        records
    }

    /// Takes a new view of all pools; a pool that it doesn't name becomes empty.
    pub(crate) fn replace(&self, view: &BTreeMap<String, Vec<Endpoint>>) {
        for (name, entry) in &self.entries {
            let endpoints = view.get(name).map(Vec::as_slice).unwrap_or_default();
            entry.lock().unwrap_or_else(PoisonError::into_inner).pool.replace(endpoints);
        }
    }

    /// Every pool, its endpoints and their load.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = (&str, Vec<Candidate>)> + '_ {
        self.entries.iter().map(|(name, entry)| {
            let entry = entry.lock().unwrap_or_else(PoisonError::into_inner);
            (name.as_str(), entry.pool.candidates().collect())
        })
    }
}
