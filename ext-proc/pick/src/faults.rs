//! Endpoints that fail fast must not look idle: each failure makes an endpoint last for a while, longer each time.

/// A penalty never lasts longer, whatever the doubling or a Retry-After says. Milliseconds.
pub(crate) const PENALTY_MAX_MS: u64 = 60_000;

/// One endpoint's failures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    in_a_row: u32,
    until_ms: u64,
}

impl Faults {
    /// It failed. Failures of requests that were all sent before the penalty began count once.
    pub(crate) fn note(&mut self, penalty_ms: u64, retry_after_ms: Option<u64>, now_ms: u64) {
        if penalty_ms == 0 {
            return;
        }
        if now_ms >= self.until_ms {
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
        let doubled = penalty_ms.saturating_mul(1 << self.in_a_row.saturating_sub(1).min(16));
        let lasts = doubled.max(retry_after_ms.unwrap_or_default()).min(PENALTY_MAX_MS);
        self.until_ms = self.until_ms.max(now_ms.saturating_add(lasts));
    }

    /// It served.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Failures in a row, those of one penalty counted once.
    pub(crate) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Whether it goes last: it is serving its penalty, or its first request after it isn't answered yet.
    pub(crate) fn is_last(&self, in_flight: u32, now_ms: u64) -> bool {
        self.in_a_row > 0 && (now_ms < self.until_ms || in_flight > 0)
    }

    /// Rest of the penalty, seconds.
    pub(crate) fn rest_s(&self, now_ms: u64) -> f64 {
        self.until_ms.saturating_sub(now_ms) as f64 / 1e3
    }
}
