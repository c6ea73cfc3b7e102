//! One endpoint of a pool, with everything that is known of it.

use std::net::SocketAddr;

use crate::faults::Faults;
use crate::load::Load;
use crate::signals::Signals;

/// Most adapters that are remembered as loaded on an endpoint whose own limit isn't known.
const ADAPTERS_UNTOLD: usize = 8;
/// Most adapters that are remembered as loaded on any endpoint.
const ADAPTERS_MAX: usize = 64;

/// Weight of a new outcome in the trust in predicted hits.
const TRUST_MOVES: f64 = 0.05;

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) address: SocketAddr,
    /// Discovery's word.
    pub(crate) ready: bool,
    /// In the newest list. A slot that left it stays until its requests have ended.
    pub(crate) listed: bool,
    pub(crate) load: Load,
    pub(crate) signals: Signals,
    pub(crate) faults: Faults,
    /// Hashes of the names of adapters that we sent requests for, the latest last: an idle adapter stays loaded but
    /// shows in no metric.
    adapters: Vec<u64>,
    /// Number of the pool's pick that last took it; 0: none did.
    pub(crate) picked: u64,
    /// Share of predicted hits that the engine really found, lately.
    trust: f64,
}

/// What an adapter finds on an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adapter {
    /// It is loaded.
    Loaded,
    /// It must be loaded, and there is a place.
    Room,
    /// It must be loaded in place of another one.
    Full,
}

impl Slot {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            ready: false,
            listed: false,
            load: Load::default(),
            signals: Signals::default(),
            faults: Faults::default(),
            adapters: Vec::new(),
            picked: 0,
            trust: 1.0,
        }
    }

    /// Whether it serves `model`, as far as that is known. Without a name every endpoint does.
    pub(crate) fn serves(&self, model: &str) -> bool {
        if model.is_empty() {
            return true;
        }
        let listed = self.signals.models.as_ref().is_none_or(|models| models.contains(model));
        listed || self.signals.stats.lora_active.as_ref().is_some_and(|active| active.contains(model))
    }

    fn adapters_max(&self) -> usize {
        let told = self.signals.stats.lora_max.and_then(|max| usize::try_from(max).ok());
        told.unwrap_or(ADAPTERS_UNTOLD).clamp(1, ADAPTERS_MAX)
    }

    /// A request for the adapter with this name hash was sent there.
    pub(crate) fn note_adapter(&mut self, name: u64) {
        self.adapters.retain(|&known| known != name);
        while self.adapters.len() >= self.adapters_max() {
            self.adapters.remove(0);
        }
        self.adapters.push(name);
    }

    /// What the adapter `model` finds there.
    pub(crate) fn adapter(&self, model: &str, name: u64) -> Adapter {
        let active = self.signals.stats.lora_active.as_ref();
        if self.adapters.contains(&name) || active.is_some_and(|active| active.contains(model)) {
            Adapter::Loaded
        } else if active.map_or(0, |active| active.len()) >= self.adapters_max() {
            Adapter::Full
        } else {
            Adapter::Room
        }
    }

    /// The engine found `share` of a predicted hit, 0 to 1.
    pub(crate) fn note_hit(&mut self, share: f64) {
        self.trust += TRUST_MOVES * (share - self.trust);
    }

    /// How far predicted hits are believed, 0 to 1. An engine that caches nothing ends at 0.
    pub(crate) fn trust(&self) -> f64 {
        self.trust
    }

    /// Nothing that the engine held is there any more.
    pub(crate) fn forget(&mut self) {
        self.adapters.clear();
        self.trust = 1.0;
    }
}
