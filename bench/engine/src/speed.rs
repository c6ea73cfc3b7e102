//! How long a step takes: a linear model of prefill, attention, batch and context, with measured or estimated constants.
//!
//! `t = c0 + Σ_prefill[c_p·n + c_a·n·(ctx + n/2)] + c_b·B + c_kv·Σctx`. Published simulators disagree on prefill by far
//! more than any router gains, so the constants are data and every one can be replaced.

use serde::{Deserialize, Serialize};

/// The constants of the step model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speed {
    /// `c0`: microseconds of every step.
    pub step_us: f64,
    /// `c_p`: microseconds of one prompt token.
    pub prefill_us: f64,
    /// `c_a`: nanoseconds of one prompt token for each token of context before it.
    pub attention_ns: f64,
    /// `c_b`: microseconds of one decoding request.
    pub decode_us: f64,
    /// `c_kv`: microseconds of one token of context of a decoding request.
    pub context_us: f64,
}

/// What one step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Batch {
    /// Prompt tokens computed.
    pub prefill: u64,
    /// `Σ n·(ctx + n/2)` over the prefill parts.
    pub attention: f64,
    /// Requests that decode one token.
    pub decodes: u64,
    /// Tokens of context of those.
    pub context: u64,
}

impl Batch {
    /// Adds `n` prompt tokens that come after `context` tokens.
    pub fn add_prefill(&mut self, n: u64, context: u64) {
        self.prefill += n;
        self.attention += n as f64 * (context as f64 + n as f64 / 2.0);
    }

    /// Adds a request that decodes one token after `context` tokens.
    pub fn add_decode(&mut self, context: u64) {
        self.decodes += 1;
        self.context += context;
    }
}

impl Speed {
    /// No step takes any time.
    pub const INSTANT: Self =
        Self { step_us: 0.0, prefill_us: 0.0, attention_ns: 0.0, decode_us: 0.0, context_us: 0.0 };

    /// Nanoseconds of a step.
    #[must_use]
    pub fn step_ns(&self, batch: &Batch) -> u64 {
        let us = self.step_us
            + self.prefill_us * batch.prefill as f64
            + self.attention_ns / 1000.0 * batch.attention
            + self.decode_us * batch.decodes as f64
            + self.context_us * batch.context as f64;
        (us * 1000.0).round().max(0.0) as u64
    }

    /// Whether every step takes no time.
    #[must_use]
    pub fn is_instant(&self) -> bool {
        *self == Self::INSTANT
    }
}

/// A model on a machine.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name, as in `--preset`.
    pub name: &'static str,
    /// The step model.
    pub speed: Speed,
    /// Tokens that the KV cache holds.
    pub kv_tokens: u32,
}

/// The known presets.
pub const PRESETS: [Preset; 5] = [
    // Prefill fits a measured 20,480 tokens/s at 8,192 new tokens; decode from a fitted simulator.
    Preset {
        name: "qwen3-32b-h100-tp2",
        speed: Speed {
            step_us: 14_000.0,
            prefill_us: 40.0,
            attention_ns: 2.1,
            decode_us: 20.0,
            context_us: 0.076,
        },
        kv_tokens: 300_000,
    },
    // Prefill is about 65 % of the peak; decode from a fitted simulator (7.0, 9.3, 16.9, 26.9 ms at B = 1, 16, 64, 128).
    Preset {
        name: "llama-3.1-8b-h100",
        speed: Speed {
            step_us: 6_700.0,
            prefill_us: 22.0,
            attention_ns: 0.53,
            decode_us: 5.0,
            context_us: 0.076,
        },
        kv_tokens: 430_000,
    },
    // Decode from a fitted simulator; prefill only estimated, by parameters and processors, from the row above.
    Preset {
        name: "llama-3.1-70b-h100-tp4",
        speed: Speed {
            step_us: 16_700.0,
            prefill_us: 50.0,
            attention_ns: 0.7,
            decode_us: 20.0,
            context_us: 0.047,
        },
        kv_tokens: 450_000,
    },
    // A toy on a CPU: short steps, so that a demonstration shows streaming and ends.
    Preset {
        name: "tiny",
        speed: Speed {
            step_us: 2_000.0,
            prefill_us: 10.0,
            attention_ns: 0.0,
            decode_us: 20.0,
            context_us: 0.0,
        },
        kv_tokens: 65_536,
    },
    Preset { name: "instant", speed: Speed::INSTANT, kv_tokens: 300_000 },
];

/// The preset called `name`.
#[must_use]
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(name: &str, batch: &Batch) -> f64 {
        preset(name).expect("a known preset").speed.step_ns(batch) as f64 / 1e6
    }

    #[test]
    fn eight_billion_decodes_as_the_fitted_simulator() {
        for (requests, expected) in [(1, 7.0), (16, 9.3), (64, 16.9), (128, 26.9)] {
            let mut batch = Batch::default();
            (0..requests).for_each(|_| batch.add_decode(2048));
            let took = ms("llama-3.1-8b-h100", &batch);
            assert!((took / expected - 1.0).abs() < 0.03, "{requests}: {took} against {expected}");
        }
    }

    #[test]
    fn qwen_prefills_as_measured() {
        let mut batch = Batch::default();
        batch.add_prefill(8192, 0);
        // 14 + 8192 · 0.04 + 2.1e-6 · 8192 · 4096 = 412.15 ms: 20,480 tokens/s would be 400 ms.
        assert!((ms("qwen3-32b-h100-tp2", &batch) - 412.145).abs() < 0.01);
    }

    #[test]
    fn each_constant_has_its_unit() {
        let speed = Speed {
            step_us: 1.0,
            prefill_us: 10.0,
            attention_ns: 100.0,
            decode_us: 1000.0,
            context_us: 10_000.0,
        };
        let mut batch = Batch::default();
        batch.add_prefill(4, 8);
        batch.add_decode(3);
        // 1 + 40 + 0.1 · 4 · 10 + 1000 + 30000 us
        assert_eq!(speed.step_ns(&batch), 31_045_000);
        assert!(Speed::INSTANT.is_instant() && !speed.is_instant());
    }
}
