//! The loads that strategies are compared on.
//!
//! Two where a good pick wins: prompts that share long beginnings, and conversations; in both the fleet holds the working
//! set and one engine doesn't. Three where a pick that thinks too much of caches loses: short prompts that share nothing,
//! an engine that is slower than its signals say, an engine whose cache others have filled.

use crate::knee::Shape;
use bench_engine::Speed;

/// Engines that serve a strategy.
pub const ENGINES: usize = 2;
/// Share of the working set that one engine's cache holds.
const HELD: f64 = 0.7;
/// Cache of loads that reuse nothing, in tokens.
const CACHE_TOKENS: f64 = 300_000.0;
/// How much longer the slow engine's steps take.
pub const SLOW: f64 = 3.0;
/// Share of the full engine's cache that nobody here uses.
pub const FULL: f64 = 0.97;

/// One load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Its name in tables and results.
    pub name: &'static str,
    /// Times the knee.
    pub load: f64,
    /// How requests come.
    pub kind: Kind,
    /// What is wrong with the first engine.
    pub flaw: Flaw,
}

/// How requests come, and what they share. Sizes in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Poisson arrivals; each prompt is one of `groups` beginnings of `prefix` tokens, and `suffix` of its own.
    Shared {
        /// Different beginnings, each as likely.
        groups: usize,
        /// Tokens of a beginning.
        prefix: usize,
        /// Tokens of its own.
        suffix: usize,
        /// Generated tokens.
        output: usize,
    },
    /// Conversations that think between turns; a finished one is followed by a new one.
    Turns {
        /// Tokens of the first prompt.
        first: usize,
        /// Tokens of each later question.
        question: usize,
        /// Generated tokens of a turn.
        output: usize,
        /// Most turns; each conversation has half as many to as many.
        turns: usize,
        /// Mean of the (exponential) time between an answer and the next question, seconds.
        think_s: f64,
    },
    /// Poisson arrivals of prompts that share nothing.
    Unique {
        /// Prompt tokens.
        prompt: usize,
        /// Generated tokens.
        output: usize,
    },
}

/// What is wrong with the first engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// Its steps take [`SLOW`] times as long.
    Slow,
    /// Only 1 - [`FULL`] of its cache is left.
    FullCache,
}

const SHARED: Kind = Kind::Shared { groups: 40, prefix: 4000, suffix: 150, output: 96 };
const TURNS: Kind = Kind::Turns { first: 1500, question: 100, output: 96, turns: 8, think_s: 1.0 };
const SHORT: Kind = Kind::Unique { prompt: 200, output: 96 };
const MEDIUM: Kind = Kind::Unique { prompt: 1000, output: 96 };

/// All of them.
pub const WORKLOADS: [Workload; 7] = [
    Workload { name: "shared_1.0", load: 1.0, kind: SHARED, flaw: Flaw::None },
    Workload { name: "shared_1.3", load: 1.3, kind: SHARED, flaw: Flaw::None },
    Workload { name: "turns_1.0", load: 1.0, kind: TURNS, flaw: Flaw::None },
    Workload { name: "turns_1.3", load: 1.3, kind: TURNS, flaw: Flaw::None },
    Workload { name: "uniform_1.0", load: 1.0, kind: SHORT, flaw: Flaw::None },
    Workload { name: "one_slow_1.0", load: 1.0, kind: MEDIUM, flaw: Flaw::Slow },
    Workload { name: "one_full_1.0", load: 1.0, kind: MEDIUM, flaw: Flaw::FullCache },
];

impl Workload {
    /// The average request with an ideal pick.
    #[must_use]
    pub fn shape(&self) -> Shape {
        match self.kind {
            Kind::Shared { prefix, suffix, output, .. } => {
                Shape { uncached: suffix as f64, cached: prefix as f64, output: output as f64 }
            }
            Kind::Turns { first, question, output, turns, .. } => {
                // Conversations of half as many to as many turns: three quarters of them on average.
                let turns = turns as f64 * 0.75;
                let prompt = first as f64 + (turns - 1.0) / 2.0 * (question + output) as f64;
                let uncached = (first as f64 + (turns - 1.0) * question as f64) / turns;
                Shape { uncached, cached: prompt - uncached, output: output as f64 }
            }
            Kind::Unique { prompt, output } => {
                Shape { uncached: prompt as f64, cached: 0.0, output: output as f64 }
            }
        }
    }

    /// Engines' worth of work that the engines with their flaw can do.
    #[must_use]
    pub fn engines(&self) -> f64 {
        match self.flaw {
            Flaw::None => ENGINES as f64,
            Flaw::Slow => ENGINES as f64 - 1.0 + 1.0 / SLOW,
            Flaw::FullCache => ENGINES as f64 - 1.0,
        }
    }

    /// Requests a second, in engine time; `gap_s`: the objective for one token.
    #[must_use]
    pub fn rate(&self, speed: &Speed, gap_s: f64) -> f64 {
        self.load * self.engines() * self.shape().knee(speed, gap_s)
    }

    /// Conversations that are open at once at that rate; 0 where there are none.
    #[must_use]
    pub fn sessions(&self, speed: &Speed, gap_s: f64) -> usize {
        let Kind::Turns { think_s, output, .. } = self.kind else { return 0 };
        // At the knee a token takes half of the objective.
        let answer_s = output as f64 * gap_s / 2.0;
        (self.rate(speed, gap_s) * (think_s + answer_s)).round() as usize
    }

    /// Tokens that an engine's cache holds, for all that runs and for what is kept.
    #[must_use]
    pub fn cache_tokens(&self, speed: &Speed, gap_s: f64) -> u32 {
        let tokens = match self.kind {
            Kind::Shared { groups, prefix, suffix, output } => {
                let running = self.rate(speed, gap_s) / ENGINES as f64 * output as f64 * gap_s / 2.0;
                HELD * (groups * prefix) as f64 + running * (suffix + output) as f64
            }
            Kind::Turns { output, .. } => {
                let shape = self.shape();
                let context = shape.cached + shape.uncached + output as f64;
                HELD * self.sessions(speed, gap_s) as f64 * context
            }
            Kind::Unique { .. } => CACHE_TOKENS,
        };
        tokens as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Speed =
        Speed { step_us: 14_000.0, prefill_us: 40.0, attention_ns: 2.1, decode_us: 20.0, context_us: 0.076 };

    #[test]
    fn the_fleet_holds_the_working_set_and_one_engine_does_not() {
        for workload in WORKLOADS {
            let held = f64::from(workload.cache_tokens(&SPEED, 0.06));
            let set = match workload.kind {
                Kind::Shared { groups, prefix, .. } => (groups * prefix) as f64,
                Kind::Turns { .. } => workload.sessions(&SPEED, 0.06) as f64 * 2100.0,
                Kind::Unique { .. } => continue,
            };
            assert!(held < set && held * ENGINES as f64 > 1.2 * set, "{}: {held} of {set}", workload.name);
        }
    }

    #[test]
    fn rates_are_what_two_cores_can_carry() {
        for workload in WORKLOADS {
            let rate = workload.rate(&SPEED, 0.06);
            assert!((8.0..110.0).contains(&rate), "{}: {rate}", workload.name);
        }
    }

    #[test]
    fn a_flaw_takes_capacity() {
        let rate = |name: &str| {
            WORKLOADS.iter().find(|one| one.name == name).map_or(0.0, |one| one.rate(&SPEED, 0.06))
        };
        assert!((rate("one_slow_1.0") / rate("one_full_1.0") - 4.0 / 3.0).abs() < 1e-9);
        assert!((rate("shared_1.3") / rate("shared_1.0") - 1.3).abs() < 1e-9);
    }
}
