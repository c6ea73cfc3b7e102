//! What is counted of one pool: picks, looks at its engines, and how well prefixes were predicted. Made once a pool.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Histogram};

use super::families::{self as family, Family};
use super::{OTHER, Recorder};

/// Most values of a fixed label. They come from enums, so this is a backstop.
const FIXED_MAX: usize = 64;

/// A counter of one pool with one more label, whose values are fixed texts.
struct ByLabel {
    family: &'static Family,
    counters: Mutex<Vec<(&'static str, Counter)>>,
}

impl ByLabel {
    fn new(family: &'static Family) -> Self {
        Self { family, counters: Mutex::new(Vec::new()) }
    }

    fn increment(&self, recorder: &Recorder, pool: &str, value: &'static str) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counter)) = counters.iter().find(|(seen, _)| *seen == value) {
            return counter.increment(1);
        }
        let value = if counters.len() < FIXED_MAX { value } else { OTHER };
        let counter = recorder.counter(self.family, &[pool, value]);
        counter.increment(1);
        if counters.len() < FIXED_MAX {
            counters.push((value, counter));
        }
    }
}

/// What an engine's cache was thought to hold of a prompt, and what it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// Prompt tokens.
    pub prompt: u64,
    /// Of these, thought to be cached.
    pub predicted: u64,
    /// Of these, cached by the engine's own count.
    pub reported: u64,
}

/// Why an endpoint that was picked was put last, or nobody answered at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It refused, or broke before it answered: another one served.
    Refused,
    /// It answered 429, or 500 or more.
    Answered,
    /// No endpoint was even tried.
    Unreached,
}

impl Failure {
    /// Value of the `cause` label.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Answered => "answered",
            Self::Unreached => "unreached",
        }
    }
}

/// The counters of one pool.
pub struct PoolMeters {
    recorder: Recorder,
    pool: String,
    picks: ByLabel,
    scrapes: ByLabel,
    scrape_seconds: Histogram,
    failures: ByLabel,
    prompt: Counter,
    predicted: Counter,
    reported: Counter,
    error: Counter,
}

impl PoolMeters {
    pub(super) fn new(recorder: Recorder, pool: &str) -> Self {
        let counter = |family| recorder.counter(family, &[pool]);
        Self {
            pool: pool.to_owned(),
            picks: ByLabel::new(&family::PICKS),
            scrapes: ByLabel::new(&family::SCRAPES),
            scrape_seconds: recorder.histogram(&family::SCRAPE_SECONDS, &[pool]),
            failures: ByLabel::new(&family::FAILURES),
            prompt: counter(&family::PREFIX_PROMPT),
            predicted: counter(&family::PREFIX_PREDICTED),
            reported: counter(&family::PREFIX_REPORTED),
            error: counter(&family::PREFIX_ERROR),
            recorder,
        }
    }

    /// An endpoint was chosen because of `reason`.
    pub fn picked(&self, reason: &'static str) {
        self.picks.increment(&self.recorder, &self.pool, reason);
    }

    /// A look at an engine ended so, after `took`.
    pub fn scraped(&self, outcome: &'static str, took: Duration) {
        self.scrapes.increment(&self.recorder, &self.pool, outcome);
        self.scrape_seconds.record(took.as_secs_f64());
    }

    /// A picked endpoint did not serve its request.
    pub fn failed(&self, failure: Failure) {
        self.failures.increment(&self.recorder, &self.pool, failure.as_label());
    }

    /// An exchange has ended for which both sides of a prediction are known.
    pub fn predicted(&self, prediction: Prediction) {
        let Prediction { prompt, predicted, reported } = prediction;
        self.prompt.increment(prompt);
        self.predicted.increment(predicted);
        self.reported.increment(reported);
        self.error.increment(predicted.abs_diff(reported));
    }
}
