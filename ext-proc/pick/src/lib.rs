//! Which endpoint serves a request: filter → cost in seconds → pick and reserve in one step → who to try next.
//!
//! The crate is pure: time and randomness are arguments. A [`Pool`] is used under one lock, so that of two concurrent
//! requests the second sees what the first reserved.
//!
//! What a pick knows, freshest first: what we ourselves have in flight on each endpoint, which prompts we sent
//! where before ([`Prefix`]), and what each engine said of itself a moment ago ([`Observation`]). All of it becomes
//! seconds, so that the terms can be added, learned and read: see [`Explanation`].

mod ask;
mod cost;
mod explain;
mod faults;
mod index;
mod learned;
mod load;
mod pool;
mod prefix;
mod settings;
mod signal;
mod signals;
mod slot;

pub use ask::{Ask, Ticket, Used};
pub use explain::{CANDIDATES_MAX, Candidate, Excluded, Explanation, LIST_MAX, NoPick, Pick, Reason};
pub use pool::{ENDPOINTS_MAX, Occupancy, Pool, TICKETS_MAX};
pub use prefix::{CHUNKS_MAX, Prefix, PrefixBuilder};
pub use settings::{Settings, Speed, Strategy};
pub use signal::{Endpoint, Health, Observation, Stats};
