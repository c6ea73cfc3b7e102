//! A pick, and why it was made: every term of the cost in seconds.

use std::net::SocketAddr;

use crate::signal::Health;

/// Most endpoints that a verdict lists: the pick, and where Envoy goes next when it is dead.
pub const LIST_MAX: usize = 3;
/// Most endpoints that a pick explains.
pub const CANDIDATES_MAX: usize = 64;

/// Why the pick is the pick: a stable label for metrics and the debug page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No other endpoint was eligible.
    OnlyReady,
    /// The request can be served there only.
    Stays,
    /// It was its turn.
    Turn,
    /// It alone had the fewest requests in flight.
    FewestInFlight,
    /// Several were equally good; one of them by chance.
    TieAtRandom,
    /// Several could not be told apart; the one that was picked longest ago.
    TieInTurn,
    /// By chance.
    AtRandom,
    /// Cheapest, and none knows more of the prompt.
    CheapestWarm,
    /// Cheapest; none knows the prompt.
    CheapestCold,
    /// Cheapest, though another knows more of the prompt: that one is busier than its cache is worth.
    WarmIsBusier,
    /// It knows most of the prompt.
    LongestPrefix,
    /// By chance, to keep every endpoint known.
    Explored,
    /// Every eligible endpoint has failed lately; the best of them.
    AllPenalised,
    /// Every eligible endpoint is unhealthy by its signals, so they were taken as if they were not.
    AllUnhealthy,
}

impl Reason {
    /// Stable label.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::OnlyReady => "only_ready",
            Self::Stays => "stays",
            Self::Turn => "turn",
            Self::FewestInFlight => "fewest_in_flight",
            Self::TieAtRandom => "tie_at_random",
            Self::TieInTurn => "tie_in_turn",
            Self::AtRandom => "at_random",
            Self::CheapestWarm => "cheapest_warm",
            Self::CheapestCold => "cheapest_cold",
            Self::WarmIsBusier => "warm_is_busier",
            Self::LongestPrefix => "longest_prefix",
            Self::Explored => "explored",
            Self::AllPenalised => "all_penalised",
            Self::AllUnhealthy => "all_unhealthy",
        }
    }
}

/// Why an endpoint could not be picked at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excluded {
    /// Discovery says that it isn't ready.
    NotReady,
    /// The engine sleeps.
    Sleeping,
    /// It doesn't serve the model.
    NotServing,
    /// The request must go to another one.
    NotTheOne,
}

impl Excluded {
    /// Stable label.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::NotReady => "not_ready",
            Self::Sleeping => "sleeping",
            Self::NotServing => "not_serving",
            Self::NotTheOne => "not_the_one",
        }
    }
}

/// The cost of one endpoint for one request. Seconds, unless a name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Explanation {
    /// Prompt tokens that it should have in its cache.
    pub matched_tokens: u64,
    /// Prompt tokens that it would have to compute.
    pub uncached_tokens: u64,
    /// Computing them.
    pub prefill_s: f64,
    /// One step of the engine as it is loaded: what is shorter can't be told apart. Not part of the sum.
    pub step_s: f64,
    /// Prefill that we dispatched there and that has no first token yet.
    pub wait_s: f64,
    /// Prefill that others wait for there, by its signals.
    pub foreign_s: f64,
    /// Waiting for room in its KV cache, beyond the waits above.
    pub kv_wait_s: f64,
    /// What the running generations and this request cost each other.
    pub decode_s: f64,
    /// Tax on uncached tokens where the cache is full: they push out what others will ask for.
    pub evicting_s: f64,
    /// Loading the adapter.
    pub lora_s: f64,
    /// Rest of its penalty for failing.
    pub penalty_s: f64,
    /// Sum of all the above seconds.
    pub total_s: f64,
    /// Age of its signals in milliseconds, if it has any.
    pub signal_age_ms: Option<u64>,
    /// How far its signals were believed: 1 fresh, 0 replaced by the pool's mean.
    pub signal_weight: f64,
}

/// What the pick knew of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its address.
    pub address: SocketAddr,
    /// Discovery's word.
    pub ready: bool,
    /// Its health by its signals, as far as it is believed.
    pub health: Health,
    /// Our requests in flight there, before this one.
    pub in_flight: u32,
    /// Why it could not be picked, if it could not.
    pub excluded: Option<Excluded>,
    /// What it would cost there.
    pub explanation: Explanation,
}

/// A pick, already reserved.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The endpoint first, then those to try next; 1 to [`LIST_MAX`].
    pub order: Vec<SocketAddr>,
    /// Why the first is first.
    pub reason: Reason,
    /// The endpoints as the pick saw them, best first, those that could not be picked last; at most
    /// [`CANDIDATES_MAX`].
    pub candidates: Vec<Candidate>,
}

/// Why nothing was picked. Nothing was reserved then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPick {
    /// No endpoint is ready; or the one that the request must go to is there but not ready.
    NoneReady,
    /// Some are ready, but none serves the model.
    NoneServes,
    /// The endpoint that the request must go to isn't in the pool any more.
    Gone,
}

impl NoPick {
    /// Stable label.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::NoneReady => "none_ready",
            Self::NoneServes => "none_serves",
            Self::Gone => "gone",
        }
    }
}
