//! `signals`: how the engines of vLLM pools are watched.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;

/// How the engines of vLLM pools are watched: each endpoint's `/metrics` and `/v1/models`. They only shape the choice of an
/// endpoint: without them requests flow all the same.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SignalsFile {
    /// Whether engines are watched at all.
    pub enabled: bool,
    /// Milliseconds between two looks at an endpoint that has none of our requests in flight.
    #[schemars(range(min = 100, max = 60_000))]
    pub idle_ms: u64,
    /// The same for an endpoint that works for us. One look costs an engine 5 to 8 ms of its API process.
    #[schemars(range(min = 50, max = 60_000))]
    pub busy_ms: u64,
    /// Milliseconds that one look may take.
    #[schemars(range(min = 50, max = 30_000))]
    pub timeout_ms: u64,
    /// Seconds between two readings of an endpoint's model list.
    #[schemars(range(min = 1, max = 3_600))]
    pub models_s: u64,
    /// Seconds without any progress, with requests running or waiting, after which an engine counts as stuck.
    #[schemars(range(min = 1, max = 3_600))]
    pub stuck_s: u64,
}

/// Checked `signals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signals {
    /// Whether engines are watched at all.
    pub enabled: bool,
    /// Between two looks at an idle endpoint.
    pub idle: Duration,
    /// Between two looks at an endpoint that works for us. Not longer than `idle`.
    pub busy: Duration,
    /// What one look may take.
    pub timeout: Duration,
    /// Between two readings of a model list.
    pub models: Duration,
    /// Without progress for so long, an engine with work is stuck.
    pub stuck: Duration,
}

pub(super) fn check(raw: &SignalsFile, check: &mut Check<'_, '_>) -> Signals {
    if raw.busy_ms > raw.idle_ms {
        let what = format!("is {} ms, longer than signals.idle_ms ({} ms)", raw.busy_ms, raw.idle_ms);
        check.error(
            "/signals/busy_ms",
            what,
            "make it at most as long: busy endpoints are looked at more often",
        );
    }
    Signals {
        enabled: raw.enabled,
        idle: Duration::from_millis(raw.idle_ms),
        busy: Duration::from_millis(raw.busy_ms),
        timeout: Duration::from_millis(raw.timeout_ms),
        models: Duration::from_secs(raw.models_s),
        stuck: Duration::from_secs(raw.stuck_s),
    }
}
