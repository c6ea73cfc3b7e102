//! Responses that live in one engine: which endpoint keeps the one that a request names.
//!
//! An id tells it by its tag, so nothing is kept here for most of them, and a restart forgets nothing. What the tag can't tell
//! is that the picked endpoint refused and Envoy went to the next one: those few are remembered, as the response headers, the
//! reports and the log of before a restart tell them.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ext_proc_exchange::{Denial, Inquiry};
use ext_proc_meter::Record;
use proto_openai::Api;
use proto_tokenweir::response::{Keeper, ResponseId};
use proto_tokenweir::token::{ExchangeId, KeyRing};

use crate::config::{Config, EngineKind};
use crate::log::Closed;
use crate::pools::Pools;

/// Responses remembered that were made elsewhere than their ids tell; the oldest are forgotten first.
const MOVED_MAX: usize = 65_536;

/// Where a request goes that names a stored response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Its pool.
    pub(crate) pool: String,
    /// The one endpoint that can serve it; `None`: a provider keeps it, for any of its endpoints.
    pub(crate) endpoint: Option<SocketAddr>,
}

/// Which pools keep responses, and where those are that their ids don't tell.
pub(crate) struct StoredResponses {
    /// Pools whose engines keep the responses that they made.
    engines: Vec<String>,
    /// The pool whose provider keeps its responses. `None`: there is none, or several, and no id tells which.
    provider: Option<String>,
    moved: Mutex<Moved>,
}

/// A response that another endpoint made than the one that was picked.
#[derive(Clone, Copy)]
struct Move {
    picked: SocketAddr,
    served: SocketAddr,
}

#[derive(Default)]
struct Moved {
    moves: HashMap<ExchangeId, Move>,
    order: VecDeque<ExchangeId>,
}

impl StoredResponses {
    pub(crate) fn new(config: &Config) -> Self {
        let of = |engine: EngineKind| {
            config.pools.iter().filter(move |pool| pool.engine == engine).map(|pool| pool.name.clone())
        };
        let mut providers = of(EngineKind::Openai);
        let provider = providers.next().filter(|_| providers.next().is_none());
        Self { engines: of(EngineKind::Vllm).collect(), provider, moved: Mutex::default() }
    }

    fn moved(&self) -> MutexGuard<'_, Moved> {
        // A panic under the lock can lose one entry at most: going on is right.
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the request goes because of the response that it names; `None`: it names none, and its pool picks.
    pub(crate) fn home(
        &self,
        inquiry: &Inquiry,
        pools: &Pools,
        ring: &KeyRing,
    ) -> Result<Option<Home>, Denial> {
        let Some(id) = &inquiry.stored else { return Ok(None) };
        let fetched = inquiry.api == Api::StoredResponse;
        // What goes on from a response runs where it is kept, so in the pool of its own model or nowhere.
        let own = std::slice::from_ref(&inquiry.pool);
        let names = if fetched { self.engines.as_slice() } else { own };
        let endpoints = names.iter().map(|name| (name.as_str(), pools.endpoints(name)));
        if let Some((pool, endpoint)) = self.find(ring, id, &inquiry.tenant, endpoints) {
            return Ok(Some(Home { pool: pool.to_owned(), endpoint: Some(endpoint) }));
        }
        match &self.provider {
            Some(provider) if fetched => Ok(Some(Home { pool: provider.clone(), endpoint: None })),
            _ => Err(Denial::Gone),
        }
    }

    /// The pool and the endpoint that keep this tenant's response, among the pools and endpoints that there are.
    fn find<'a>(
        &self,
        ring: &KeyRing,
        id: &str,
        tenant: &str,
        pools: impl Iterator<Item = (&'a str, Vec<SocketAddr>)>,
    ) -> Option<(&'a str, SocketAddr)> {
        let id = ResponseId::parse(id)?;
        let moved = self.moved().moves.get(&id.exchange).copied();
        for (pool, endpoints) in pools {
            let is_kept_by = |endpoint| ring.is_kept_by(id, Keeper { tenant, pool, endpoint });
            let home = match moved {
                // The endpoint that was picked may be gone by now: it still tells whose response it is.
                Some(Move { picked, served }) if is_kept_by(picked) => {
                    return endpoints.contains(&served).then_some((pool, served));
                }
                _ => endpoints.iter().find(|endpoint| is_kept_by(**endpoint)),
            };
            if let Some(home) = home {
                return Some((pool, *home));
            }
        }
        None
    }

    /// A response with an id of ours has begun, at `served`.
    pub(crate) fn served(&self, exchange: ExchangeId, picked: SocketAddr, served: SocketAddr) {
        if picked == served {
            return;
        }
        let mut moved = self.moved();
        if moved.moves.insert(exchange, Move { picked, served }).is_none() {
            moved.order.push_back(exchange);
        }
        if moved.order.len() > MOVED_MAX
            && let Some(oldest) = moved.order.pop_front()
        {
            moved.moves.remove(&oldest);
        }
    }

    /// Learns from a record that was just made: its response may have begun while another process was here.
    pub(crate) fn learn(&self, record: &Record) {
        if let Some(exchange) = ExchangeId::from_hex(&record.exchange) {
            let picked = record.endpoints.first().map(String::as_str);
            self.told(exchange, &record.api, record.status, picked, record.endpoint.as_deref());
        }
    }

    /// Learns, after a restart, from a line of the log.
    pub(crate) fn recall(&self, exchange: ExchangeId, line: &Closed) {
        let picked = line.endpoints.first().map(String::as_str);
        self.told(exchange, &line.api, line.status, picked, line.endpoint.as_deref());
    }

    fn told(&self, exchange: ExchangeId, api: &str, status: u32, picked: Option<&str>, served: Option<&str>) {
        if api != Api::Responses.as_label() || !(200..300).contains(&status) {
            return;
        }
        let address = |text: Option<&str>| text?.parse::<SocketAddr>().ok();
        if let (Some(picked), Some(served)) = (address(picked), address(served)) {
            self.served(exchange, picked, served);
        }
    }
}

#[cfg(test)]
mod tests;
