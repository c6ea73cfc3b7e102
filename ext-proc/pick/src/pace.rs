//! How slow an endpoint is against what its load explains, from the generations that it has finished.
//!
//! One number an endpoint, and only ever compared within the pool: priors that are wrong for all are wrong for none. It
//! keeps a slow or throttled engine from getting its full share until coefficients are learned one by one.

/// Weight of a new observation.
const MOVES: f64 = 0.1;
/// An endpoint that hasn't finished anything for so long is thought to be as fast as the others again, by and by. Milliseconds.
const FORGOTTEN_MS: u64 = 60_000;
/// A ratio outside is a wrong report: a response that wasn't streamed, or an engine that stood still.
const BELIEVED: std::ops::RangeInclusive<f64> = 0.1..=20.0;
/// Shortest output that says something, tokens.
const OUTPUT_MIN: u64 = 16;

/// One endpoint's pace: time a token over the reckoned time of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    ratio: Option<f64>,
    at_ms: u64,
}

impl Pace {
    /// `output` tokens took `took_ms` after the first, where a step was reckoned to take `step_s`.
    pub(crate) fn note(&mut self, output: u64, took_ms: u64, step_s: f64, now_ms: u64) {
        let ratio = took_ms as f64 / 1e3 / output.saturating_sub(1).max(1) as f64 / step_s.max(1e-9);
        if output >= OUTPUT_MIN && BELIEVED.contains(&ratio) {
            let before = self.ratio.unwrap_or(ratio);
            self.ratio = Some(before + MOVES * (ratio - before));
            self.at_ms = now_ms;
        }
    }

    /// The ratio, if one is known.
    pub(crate) fn ratio(&self) -> Option<f64> {
        self.ratio
    }

    /// How many times as slow as `mean` it is, 0.5 to 4.
    pub(crate) fn against(&self, mean: f64, now_ms: u64) -> f64 {
        let Some(ratio) = self.ratio else { return 1.0 };
        let age = now_ms.saturating_sub(self.at_ms) as f64 / FORGOTTEN_MS as f64;
        let believed = (1.0 - age).clamp(0.0, 1.0);
        (1.0 + believed * (ratio / mean.max(1e-9) - 1.0)).clamp(0.5, 4.0)
    }
}
