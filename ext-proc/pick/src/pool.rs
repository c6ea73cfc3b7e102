//! One pool: its endpoints, what is in flight on each, and the pick.

use std::net::SocketAddr;

use fastrand::Rng;

/// Most endpoints in a pool.
pub const ENDPOINTS_MAX: usize = 4096;
/// Most endpoints that a verdict lists: the pick, and where Envoy goes next when it is dead.
pub const LIST_MAX: usize = 3;

/// How a pool orders its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Each in turn.
    RoundRobin,
    /// Fewest of our own requests in flight first; ties at random.
    LeastRequest,
    /// Any, evenly.
    Random,
}

/// An endpoint as discovery knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address exactly as Envoy knows it.
    pub address: SocketAddr,
    /// Whether it may be picked.
    pub ready: bool,
}

/// Why the pick is the pick: a stable label for metrics and the debug page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No other endpoint was ready.
    OnlyReady,
    /// It was its turn.
    Turn,
    /// It alone had the fewest requests in flight.
    FewestInFlight,
    /// Several had the fewest; one of them by chance.
    TieAtRandom,
    /// By chance.
    AtRandom,
}

impl Reason {
    /// Stable label.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::OnlyReady => "only_ready",
            Self::Turn => "turn",
            Self::FewestInFlight => "fewest_in_flight",
            Self::TieAtRandom => "tie_at_random",
            Self::AtRandom => "at_random",
        }
    }
}

/// What the pick knew of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its address.
    pub address: SocketAddr,
    /// Whether it could be picked.
    pub ready: bool,
    /// Our requests in flight there, before this one.
    pub in_flight: u32,
}

/// A pick, already reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The endpoint first, then those to try next; 1 to [`LIST_MAX`].
    pub order: Vec<SocketAddr>,
    /// Why the first is first.
    pub reason: Reason,
    /// Every endpoint of the pool, as the pick saw it.
    pub candidates: Vec<Candidate>,
}

/// No endpoint of the pool is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoneReady;

#[derive(Clone, Copy, Debug)]
struct Slot {
    endpoint: Endpoint,
    in_flight: u32,
    /// In the newest list. A slot that left it stays until its requests have ended.
    listed: bool,
}

/// One pool's endpoints and their load.
#[derive(Debug)]
pub struct Pool {
    strategy: Strategy,
    slots: Vec<Slot>,
    turn: usize,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(strategy: Strategy) -> Self {
        Self { strategy, slots: Vec::new(), turn: 0 }
    }

    /// The strategy in force.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Takes a new list of endpoints, at most [`ENDPOINTS_MAX`] of it; the load of those that stay is kept.
    pub fn replace(&mut self, endpoints: &[Endpoint]) {
        for slot in &mut self.slots {
            slot.listed = false;
        }
        for endpoint in endpoints.iter().take(ENDPOINTS_MAX) {
            match self.slots.iter_mut().find(|slot| slot.endpoint.address == endpoint.address) {
                Some(slot) => {
                    slot.endpoint = *endpoint;
                    slot.listed = true;
                }
                None => self.slots.push(Slot { endpoint: *endpoint, in_flight: 0, listed: true }),
            }
        }
        self.slots.retain(|slot| slot.listed || slot.in_flight > 0);
    }

    /// Picks an endpoint and counts the request as in flight there.
    ///
    /// # Errors
    /// [`NoneReady`]: nothing was reserved.
    pub fn pick(&mut self, rng: &mut Rng) -> Result<Pick, NoneReady> {
        let candidates: Vec<Candidate> = self
            .slots
            .iter()
            .filter(|slot| slot.listed)
            .map(|slot| Candidate {
                address: slot.endpoint.address,
                ready: slot.endpoint.ready,
                in_flight: slot.in_flight,
            })
            .collect();
        let mut ready: Vec<Candidate> = candidates.iter().copied().filter(|c| c.ready).collect();
        let reason = self.order(&mut ready, rng);
        let order: Vec<SocketAddr> = ready.iter().take(LIST_MAX).map(|c| c.address).collect();
        let first = *order.first().ok_or(NoneReady)?;
        self.reserve(first);
        Ok(Pick { order, reason, candidates })
    }

    fn order(&mut self, ready: &mut [Candidate], rng: &mut Rng) -> Reason {
        let reason = match self.strategy {
            Strategy::RoundRobin => {
                let len = ready.len().max(1);
                ready.rotate_left(self.turn % len);
                self.turn = self.turn.wrapping_add(1);
                Reason::Turn
            }
            Strategy::LeastRequest => {
                // Shuffled first and sorted stably after: ties stay in random order.
                rng.shuffle(ready);
                ready.sort_by_key(|c| c.in_flight);
                let mut loads = ready.iter().map(|c| c.in_flight);
                if loads.next() == loads.next() { Reason::TieAtRandom } else { Reason::FewestInFlight }
            }
            Strategy::Random => {
                rng.shuffle(ready);
                Reason::AtRandom
            }
        };
        if ready.len() == 1 { Reason::OnlyReady } else { reason }
    }

    /// Counts one more request on `address`, if the pool knows it.
    pub fn reserve(&mut self, address: SocketAddr) {
        if let Some(slot) = self.slot(address) {
            slot.in_flight = slot.in_flight.saturating_add(1);
        }
    }

    /// Counts one request fewer on `address`; forgets the endpoint if it left the list and this was its last.
    pub fn release(&mut self, address: SocketAddr) {
        if let Some(slot) = self.slot(address) {
            slot.in_flight = slot.in_flight.saturating_sub(1);
        }
        self.slots.retain(|slot| slot.listed || slot.in_flight > 0);
    }

    fn slot(&mut self, address: SocketAddr) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.endpoint.address == address)
    }

    /// Every listed endpoint and its load.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> + '_ {
        self.slots.iter().filter(|slot| slot.listed).map(|slot| Candidate {
            address: slot.endpoint.address,
            ready: slot.endpoint.ready,
            in_flight: slot.in_flight,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn pool(strategy: Strategy, ready: &[bool]) -> Pool {
        let mut pool = Pool::new(strategy);
        let endpoints: Vec<_> =
            (1u16..).zip(ready).map(|(port, &ready)| Endpoint { address: address(port), ready }).collect();
        pool.replace(&endpoints);
        pool
    }

    fn loads(pool: &Pool) -> Vec<u32> {
        pool.candidates().map(|c| c.in_flight).collect()
    }

    #[test]
    fn round_robin_takes_each_in_turn_and_lists_the_next_ones() {
        let mut pool = pool(Strategy::RoundRobin, &[true, true, true, true]);
        let mut rng = Rng::with_seed(1);
        let firsts: Vec<_> = (0..5).map(|_| pool.pick(&mut rng).expect("ready").order).collect();
        assert_eq!(firsts[0], [1, 2, 3].map(address));
        assert_eq!(firsts[3], [4, 1, 2].map(address));
        assert_eq!(firsts[4][0], address(1));
        assert_eq!(loads(&pool), [2, 1, 1, 1]);
    }

    #[test]
    fn least_request_takes_the_least_loaded_and_breaks_ties_at_random() {
        let mut pool = pool(Strategy::LeastRequest, &[true, true, true]);
        let mut rng = Rng::with_seed(7);
        pool.reserve(address(1));
        pool.reserve(address(2));
        let pick = pool.pick(&mut rng).expect("ready");
        assert_eq!((pick.order[0], pick.reason), (address(3), Reason::FewestInFlight));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..64 {
            let pick = pool.pick(&mut rng).expect("ready");
            if pick.reason == Reason::TieAtRandom {
                seen.insert(pick.order[0]);
            }
            pool.release(pick.order[0]);
        }
        assert_eq!(seen.len(), 3, "all three tie, so each is taken at times");
    }

    #[test]
    fn an_endpoint_that_is_not_ready_is_seen_but_never_listed() {
        let mut pool = pool(Strategy::Random, &[false, true]);
        let pick = pool.pick(&mut Rng::with_seed(1)).expect("one is ready");
        assert_eq!(pick.order, [address(2)]);
        assert_eq!(pick.reason, Reason::OnlyReady);
        assert_eq!(pick.candidates.len(), 2);
        assert_eq!(self::pool(Strategy::Random, &[false]).pick(&mut Rng::with_seed(1)), Err(NoneReady));
    }

    #[test]
    fn load_survives_a_new_list_and_a_gone_endpoint_leaves_with_its_last_request() {
        let mut pool = pool(Strategy::LeastRequest, &[true, true]);
        pool.reserve(address(1));
        pool.reserve(address(2));
        pool.replace(&[Endpoint { address: address(2), ready: true }]);
        assert_eq!(loads(&pool), [1]);
        pool.replace(&[1, 2].map(|p| Endpoint { address: address(p), ready: true }));
        assert_eq!(loads(&pool), [1, 1], "it came back before its request had ended");
        pool.replace(&[]);
        pool.release(address(1));
        pool.release(address(2));
        pool.replace(&[1, 2].map(|p| Endpoint { address: address(p), ready: true }));
        assert_eq!(loads(&pool), [0, 0]);
    }

    proptest! {
        #[test]
        fn a_pick_is_always_a_ready_endpoint_and_the_load_is_what_was_reserved_less_what_was_released(
            strategy in prop::sample::select(vec![Strategy::RoundRobin, Strategy::LeastRequest, Strategy::Random]),
            ready in prop::collection::vec(any::<bool>(), 0..8),
            seed in any::<u64>(),
            ends in prop::collection::vec(any::<bool>(), 0..60),
        ) {
            let mut pool = pool(strategy, &ready);
            let mut rng = Rng::with_seed(seed);
            let mut open = Vec::new();
            for end in ends {
                if let Some(address) = if end { open.pop() } else { None } {
                    pool.release(address);
                } else if let Ok(pick) = pool.pick(&mut rng) {
                    let usable = |a: &SocketAddr| pick.candidates.iter().any(|c| c.address == *a && c.ready);
                    prop_assert!(pick.order.iter().all(usable));
                    let distinct: std::collections::BTreeSet<_> = pick.order.iter().collect();
                    prop_assert_eq!(distinct.len(), pick.order.len());
                    open.push(pick.order[0]);
                } else {
                    prop_assert!(!ready.contains(&true));
                }
            }
            let held: u32 = loads(&pool).iter().sum();
            prop_assert_eq!(held as usize, open.len());
        }
    }
}
