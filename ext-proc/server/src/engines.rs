//! What the engines' signals said last: for `/debug/endpoints` and the gauges. Nothing is picked by it; the pools keep
//! their own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ext_proc_pick::{Endpoint, Health, Observation, Stats};

/// Models and adapters of one endpoint that are shown.
pub(crate) const MODELS_SHOWN_MAX: usize = 64;

/// What is known of one engine. Times are milliseconds of the monotonic clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Engine {
    /// The last look: when it ended, how, and how long it took.
    pub(crate) look: Option<(u64, &'static str, Duration)>,
    /// What it was judged to be.
    pub(crate) health: Health,
    /// Its last numbers.
    pub(crate) stats: Option<(u64, Stats)>,
    /// Its last list of models.
    pub(crate) models: Option<(u64, Arc<BTreeSet<String>>)>,
}

type Table = BTreeMap<SocketAddr, Engine>;

/// The engines of one pool; as many as it has endpoints.
#[derive(Default)]
pub(crate) struct Engines(Mutex<Table>);

impl Engines {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what is known of those that stay, and takes up the new ones.
    pub(crate) fn replace(&self, endpoints: &[Endpoint]) {
        let mut table = self.table();
        let mut before = std::mem::take(&mut *table);
        for endpoint in endpoints {
            table.insert(endpoint.address, before.remove(&endpoint.address).unwrap_or_default());
        }
    }

    /// A look brought this.
    pub(crate) fn observed(&self, address: SocketAddr, observation: &Observation, now_ms: u64) {
        // An endpoint that left while it was looked at is not taken up again.
        if let Some(engine) = self.table().get_mut(&address) {
            engine.health = observation.health;
            if let Some(stats) = &observation.stats {
                engine.stats = Some((now_ms, stats.clone()));
            }
            if let Some(models) = &observation.models {
                engine.models = Some((now_ms, Arc::clone(models)));
            }
        }
    }

    /// A look ended so.
    pub(crate) fn looked(&self, address: SocketAddr, outcome: &'static str, took: Duration, now_ms: u64) {
        if let Some(engine) = self.table().get_mut(&address) {
            engine.look = Some((now_ms, outcome, took));
        }
    }

    /// What is known of one engine.
    pub(crate) fn get(&self, address: SocketAddr) -> Engine {
        self.table().get(&address).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_an_engine_stays_with_it_and_leaves_with_it() {
        let engines = Engines::default();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let listed = [Endpoint { address, ready: true }];
        let ready = Observation { health: Health::Ready, ..Observation::default() };
        engines.observed(address, &ready, 1);
        assert_eq!(engines.get(address).health, Health::Unknown, "nobody lists it");
        engines.replace(&listed);
        engines.observed(address, &Observation { stats: Some(Stats::default()), ..ready.clone() }, 2);
        engines.observed(address, &Observation { health: Health::Stuck, ..Observation::default() }, 3);
        engines.replace(&listed);
        let engine = engines.get(address);
        assert_eq!((engine.health, engine.stats.map(|(at, _)| at)), (Health::Stuck, Some(2)));
        engines.replace(&[]);
        assert!(engines.get(address).stats.is_none());
    }
}
