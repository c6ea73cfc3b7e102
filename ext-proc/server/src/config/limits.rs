//! `limits`: what one request and one process may take.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one request and one process may take.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsFile {
    /// Largest request body in bytes; larger ones are answered 413. Envoy's own buffer limit must not be lower.
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    pub body_bytes_max: u64,
    /// Most ext_proc streams open at once, over all connections; further ones are refused with RESOURCE_EXHAUSTED.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub streams_max: u64,
    /// Bytes that one gRPC message may have beside a whole body: headers, attributes, framing.
    #[schemars(range(min = 65_536, max = 67_108_864))]
    pub message_headroom_bytes: u64,
}

/// Checked `limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body, bytes.
    pub body_bytes_max: usize,
    /// Most ext_proc streams open at once.
    pub streams_max: usize,
    /// Room in a gRPC message beside the body, bytes.
    pub message_headroom_bytes: usize,
}

impl Limits {
    /// Largest gRPC message to take, bytes: a whole body and its headroom.
    pub fn message_bytes_max(&self) -> usize {
        self.body_bytes_max.saturating_add(self.message_headroom_bytes)
    }
}

pub(super) fn check(raw: &LimitsFile) -> Limits {
    // The schema's ranges keep every value far inside.
    let size = |value| usize::try_from(value).unwrap_or(usize::MAX);
    Limits {
        body_bytes_max: size(raw.body_bytes_max),
        streams_max: size(raw.streams_max),
        message_headroom_bytes: size(raw.message_headroom_bytes),
    }
}
