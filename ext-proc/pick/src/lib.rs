//! Which endpoint serves a request: filter (ready) → order by the pool's strategy → pick and reserve in one step, so that
//! concurrent requests see each other. Pure: randomness and the endpoints come in as arguments.
//!
//! The load that the strategies see is our own: requests dispatched and not yet ended, following the endpoint that
//! *really* served (a dead pick is served by the next of the list).

mod pool;

pub use pool::{Candidate, ENDPOINTS_MAX, Endpoint, LIST_MAX, NoneReady, Pick, Pool, Reason, Strategy};
