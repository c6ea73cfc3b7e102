//! The wall clock, read at the edges only.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch; 0 on a clock set before it.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
