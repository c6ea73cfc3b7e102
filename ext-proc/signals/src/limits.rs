//! Every bound of this crate, in one place.

use std::time::Duration;

/// Most targets that are polled at a time; the rest is left out, and the log says so.
pub const TARGETS_MAX: usize = 4096;

/// Most scrapes under way at a time, over all targets.
pub const SCRAPES_MAX: usize = 256;

/// Most bytes of an answer to `/v1/models`.
pub(crate) const MODELS_BYTES_MAX: usize = 1 << 20;

/// Most names of models and adapters of one target. A longer list is no list: half of one would exclude what is served.
pub(crate) const MODELS_MAX: usize = 1024;

/// Longest name that is kept, bytes. No request can ask for a longer one.
pub(crate) const MODEL_BYTES_MAX: usize = 256;

/// Most bytes a connection reads ahead, and so the longest response head.
pub(crate) const READ_BYTES_MAX: usize = 256 << 10;

/// Memory for a page that a target keeps between two scrapes, bytes. What a longer page took is given back.
pub(crate) const PAGE_BYTES_KEPT: usize = 512 << 10;

/// Shortest pause between two scrapes of a target, whatever the settings say.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Pause before a failed scrape is repeated, until the failures are enough to be believed.
pub(crate) const RECHECK: Duration = Duration::from_millis(100);

/// Failed scrapes in a row that change a target's health.
pub(crate) const MISSES_BELIEVED: u32 = 3;

/// A page that stays the same for this long while requests are in flight, down to the CPU time of its process, is an old one.
pub(crate) const FROZEN_MS: u64 = 3_000;

/// A number that is missing for once is taken from the page before, if that isn't older than this.
pub(crate) const HELD_MS: u64 = 5_000;

/// A list of models is unknown again when it couldn't be read for this many times its interval.
pub(crate) const MODELS_KEPT_TIMES: u64 = 6;

/// Least time between two lines in the log about one target.
pub(crate) const LOG_GAP_MS: u64 = 5_000;

/// Most requests that an engine can have running or waiting.
pub(crate) const REQUESTS_MAX: f64 = 1e6;

/// Largest count that is believed: above it, neighbours can't be told apart.
pub(crate) const COUNT_MAX: f64 = 9_007_199_254_740_992.0;

/// Most tokens that a KV cache can hold.
pub(crate) const CAPACITY_TOKENS_MAX: u64 = 1_000_000_000_000;

/// Most tokens that one block of a KV cache can hold.
pub(crate) const BLOCK_TOKENS_MAX: u64 = 1 << 20;

/// Most adapters that an engine can have in one batch.
pub(crate) const ADAPTERS_MAX: u64 = 1 << 20;
