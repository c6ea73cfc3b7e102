//! What this crate is told and what it tells: settings, targets, and the sink that takes what was seen.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ext_proc_pick::Observation;

/// How often, and how patiently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Between two scrapes of a target without requests of ours.
    pub idle: Duration,
    /// Between two scrapes of a target with requests of ours.
    pub busy: Duration,
    /// Time limit of one scrape, connecting included.
    pub within: Duration,
    /// Between two looks at `/v1/models`.
    pub models_every: Duration,
    /// An engine that has requests and makes no progress for this long is stuck.
    pub stuck_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(1),
            busy: Duration::from_millis(250),
            within: Duration::from_secs(1),
            models_every: Duration::from_secs(10),
            stuck_after: Duration::from_secs(30),
        }
    }
}

/// What a target can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `/metrics` and `/v1/models`.
    Vllm,
    /// `/v1/models` and nothing else.
    OpenAi,
}

/// One endpoint of one pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The pool's name.
    pub pool: Arc<str>,
    /// Where it listens.
    pub address: SocketAddr,
    /// What it can be asked.
    pub kind: Kind,
}

/// Who takes what was seen. Called from the pollers' tasks: must not block.
pub trait Sink: Send + Sync + 'static {
    /// How a target is now. Comes after every scrape, also after a failed one (then without numbers), and again when the
    /// list of its models was read; only then it has the list. An *empty* list means that it is unknown again: it couldn't
    /// be read for too long. (A server that lists nothing isn't believed: no list comes of it.)
    fn observe(&self, pool: &str, address: SocketAddr, observation: Observation);

    /// Exchanges of ours in flight at a target.
    fn in_flight(&self, pool: &str, address: SocketAddr) -> u32;

    /// A scrape has ended; `took` is its whole time, waiting for a free slot excluded. After [`Outcome::Restarted`] all
    /// that was known of the engine's cache is void.
    fn scraped(&self, pool: &str, address: SocketAddr, outcome: Outcome, took: Duration);
}

/// How a scrape ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Read, and everything in it can be true.
    Ok,
    /// Read; the engine was restarted since the last one.
    Restarted,
    /// Read; numbers that can't be true were dropped, the others are used.
    Absurd,
    /// Read, but nothing in it has moved while requests are in flight: its numbers are old and not used.
    Frozen,
    /// No answer in time.
    Timeout,
    /// Nobody listens, or the connection was closed before an answer began.
    Refused,
    /// The connection broke in the middle of the answer.
    Broken,
    /// A status other than 200.
    Status,
    /// An answer without anything of vLLM's in it.
    NotMetrics,
    /// An answer longer than is read.
    TooLarge,
    /// `/v1/models` couldn't be read; the list from before stays for a while.
    NoModels,
}

impl Outcome {
    /// Every outcome, in the order of their declaration.
    pub const ALL: [Self; 11] = [
        Self::Ok,
        Self::Restarted,
        Self::Absurd,
        Self::Frozen,
        Self::Timeout,
        Self::Refused,
        Self::Broken,
        Self::Status,
        Self::NotMetrics,
        Self::TooLarge,
        Self::NoModels,
    ];

    /// Stable label.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Restarted => "restarted",
            Self::Absurd => "absurd",
            Self::Frozen => "frozen",
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::Broken => "broken",
            Self::Status => "status",
            Self::NotMetrics => "not_metrics",
            Self::TooLarge => "too_large",
            Self::NoModels => "no_models",
        }
    }
}
