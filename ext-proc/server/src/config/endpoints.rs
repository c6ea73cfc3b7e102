//! `endpoints`: where the service learns which endpoints a pool has. The file's own content is [`crate::endpoints`].

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, defaults};

/// Where the endpoints of the pools come from.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointsSection {
    /// YAML file with the endpoints of every pool. It is read again when its content changes. Relative paths start at
    /// this file's folder.
    #[schemars(length(min = 1))]
    pub file: String,
    /// Milliseconds between two looks at the file.
    #[serde(default = "defaults::poll_ms")]
    #[schemars(range(min = 50, max = 60_000))]
    pub poll_ms: u64,
}

/// Checked `endpoints`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointsSource {
    /// The endpoints file.
    pub file: PathBuf,
    /// Time between two looks at it.
    pub poll: Duration,
}

pub(super) fn check(raw: &EndpointsSection, check: &Check<'_, '_>) -> EndpointsSource {
    EndpointsSource { file: check.resolve(&raw.file), poll: Duration::from_millis(raw.poll_ms) }
}
