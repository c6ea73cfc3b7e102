//! How much load is "near the knee": from the engines' step model, so that it is the same on every machine.
//!
//! With requests arriving at a rate `r`, the batch grows until as many leave as come. A step then takes
//! `c0 / (1 - r·w)` where `w` is the work of one request without the share of `c0`: prefill of what isn't cached, and
//! for each token of output its own decode cost. Above `1/w` no batch is large enough. The knee is the rate at which a
//! step takes half of the objective for a token.

use bench_engine::Speed;

/// What an average request is made of, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Prompt tokens that must be computed where the rest is cached.
    pub uncached: f64,
    /// Prompt tokens that an ideal pick finds cached.
    pub cached: f64,
    /// Generated tokens.
    pub output: f64,
}

impl Shape {
    /// Seconds of work of one request, without a share of `c0`.
    #[must_use]
    pub fn work_s(&self, speed: &Speed) -> f64 {
        let attention = self.uncached * (self.cached + self.uncached / 2.0);
        let context = self.cached + self.uncached + self.output / 2.0;
        let prefill = speed.prefill_us * self.uncached + speed.attention_ns / 1000.0 * attention;
        (prefill + self.output * (speed.decode_us + speed.context_us * context)) / 1e6
    }

    /// Requests a second that one engine takes at the knee; `gap_s`: the objective for one token.
    #[must_use]
    pub fn knee(&self, speed: &Speed, gap_s: f64) -> f64 {
        let step_s = speed.step_us / 1e6;
        (1.0 - step_s / (gap_s / 2.0)).max(0.1) / self.work_s(speed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_knee_a_step_takes_half_of_the_objective() {
        let speed =
            Speed { step_us: 15_000.0, prefill_us: 40.0, attention_ns: 0.0, decode_us: 0.0, context_us: 0.0 };
        let shape = Shape { uncached: 1000.0, cached: 9000.0, output: 100.0 };
        assert!((shape.work_s(&speed) - 0.04).abs() < 1e-12);
        // 15 ms of 30 ms: half of each second is left for 40 ms of work a request.
        assert!((shape.knee(&speed, 0.06) - 12.5).abs() < 1e-9);
    }

    #[test]
    fn context_and_attention_cost() {
        let speed =
            Speed { step_us: 0.0, prefill_us: 0.0, attention_ns: 2.0, decode_us: 20.0, context_us: 0.1 };
        let shape = Shape { uncached: 100.0, cached: 900.0, output: 10.0 };
        // 100 · 950 · 2 ns + 10 · (20 us + 1005 · 0.1 us)
        assert!((shape.work_s(&speed) - 0.001_395).abs() < 1e-9);
    }
}
