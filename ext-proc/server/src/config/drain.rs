//! `drain`: how the service goes away on SIGTERM.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the service goes away on SIGTERM.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DrainFile {
    /// Seconds between "not ready" and the refusal of new streams: what Envoy needs to stop choosing this replica.
    #[schemars(range(min = 0, max = 300))]
    pub delay_s: u64,
    /// Most seconds to wait after that for open streams and reports.
    #[schemars(range(min = 0, max = 3_600))]
    pub grace_s: u64,
}

/// Checked `drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// From "not ready" to the refusal of new streams.
    pub delay: Duration,
    /// From the refusal of new streams to the exit, at most.
    pub grace: Duration,
}

pub(super) fn check(raw: &DrainFile) -> Drain {
    Drain { delay: Duration::from_secs(raw.delay_s), grace: Duration::from_secs(raw.grace_s) }
}
