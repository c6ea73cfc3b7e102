//! What is in flight on each endpoint, for people to read. No pick goes by it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::Pool;
use super::exchange::index_slot;
use crate::load::Phase;

/// Our own exchanges on one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Requests without a first token.
    pub prefilling: u32,
    /// Their prompt tokens that were thought not to be cached.
    pub prefill_tokens: u64,
    /// Requests that generate.
    pub generating: u32,
    /// Tokens that these are thought to hold in the KV cache.
    pub context_tokens: u64,
    /// Chunks of prompts that its cache is thought to hold.
    pub chunks: usize,
}

impl Pool {
    /// What is in flight on each endpoint, those that left the list included. An endpoint that has nothing in flight may
    /// be absent.
    #[must_use]
    pub fn occupancy(&self) -> BTreeMap<SocketAddr, Occupancy> {
        let mut by_address: BTreeMap<SocketAddr, Occupancy> = BTreeMap::new();
        for (number, slot) in self.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let (chunks, _) = self.index.held(index_slot(number));
            let occupancy = Occupancy {
                prefilling: slot.load.prefilling,
                prefill_tokens: 0,
                generating: slot.load.decoding,
                context_tokens: slot.load.context_tokens,
                chunks,
            };
            by_address.insert(slot.address, occupancy);
        }
        // Those that wait for their first token are the ones that are due; the rest needn't be looked at.
        for (_, ticket) in &self.due {
            let Some(flight) = self.flights.get(ticket).filter(|flight| flight.phase == Phase::Prefill)
            else {
                continue;
            };
            let address = self.slot(flight.slot).map(|slot| slot.address);
            if let Some(occupancy) = address.and_then(|address| by_address.get_mut(&address)) {
                occupancy.prefill_tokens =
                    occupancy.prefill_tokens.saturating_add(flight.work.uncached_tokens);
            }
        }
        by_address
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::{Ask, Endpoint, Prefix, Settings, Ticket, Used};

    #[test]
    fn a_request_is_prefill_until_its_first_token_and_then_a_stream() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut pool = Pool::new(Settings::default());
        pool.replace(&[Endpoint { address, ready: true }]);
        let ask = Ask {
            model: "m",
            prefix: &Prefix::default(),
            prompt_bytes: 4_000,
            prompt_token_ids: 0,
            output_tokens_max: None,
            stay: None,
        };
        for ticket in 0..2 {
            pool.pick(Ticket(ticket), &ask, 1, &mut Rng::with_seed(1)).expect("a pick");
        }
        let there = |pool: &Pool| pool.occupancy().get(&address).copied().unwrap_or_default();
        assert_eq!(
            (there(&pool).prefilling, there(&pool).prefill_tokens, there(&pool).generating),
            (2, 2_000, 0)
        );
        pool.first_token(Ticket(0), 2);
        assert_eq!(
            (there(&pool).prefilling, there(&pool).prefill_tokens, there(&pool).generating),
            (1, 1_000, 1)
        );
        assert!(there(&pool).context_tokens >= 1_000);
        for ticket in 0..2 {
            pool.release(Ticket(ticket), Used::default(), 3);
        }
        assert_eq!(there(&pool), Occupancy::default());
    }
}
