//! The history of one target: each page, or its absence → health, numbers, outcome, and when to look again.
//!
//! Pure. One failed scrape changes nothing but the age of the numbers: only several in a row are believed. Then silence
//! means *unreachable*, and answers of no use mean *unknown*, because whoever answers may well serve requests. 503 is the
//! exception: a server that says so takes nothing new, and so it counts as *draining* at once.

mod news;
mod numbers;
mod progress;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ext_proc_pick::{Health, Observation, Stats};
use proto_vllm::metrics::{Field, Page, Unreadable};

use crate::limits::{MISSES_BELIEVED, MODELS_KEPT_TIMES, PAUSE_MIN, RECHECK};
use crate::seam::{Kind, Outcome, Settings};
pub(crate) use news::Change;
use news::News;
use numbers::Numbers;
use progress::Progress;

/// Why there is no page, or no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Not in time.
    Timeout,
    /// No connection, or it was closed before an answer began.
    Refused,
    /// The connection broke in the middle of the answer.
    Broken,
    /// Another status than 200.
    Status(u16),
    /// Longer than is read.
    TooLarge,
    /// Nothing of vLLM's in it.
    NotMetrics(Unreadable),
    /// No list of models.
    NotModels,
}

impl Failure {
    fn outcome(self) -> Outcome {
        match self {
            Self::Timeout => Outcome::Timeout,
            Self::Refused => Outcome::Refused,
            Self::Broken => Outcome::Broken,
            Self::Status(_) => Outcome::Status,
            Self::TooLarge | Self::NotMetrics(Unreadable::TooLarge(_)) => Outcome::TooLarge,
            Self::NotMetrics(_) => Outcome::NotMetrics,
            Self::NotModels => Outcome::NoModels,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => {
                f.write_str("no answer in time: overloaded, or `signals.timeout_ms` is too short")
            }
            Self::Refused => f.write_str("nobody answers there: is the server up, and the address right?"),
            Self::Broken => f.write_str("the connection broke in the middle of the answer"),
            Self::Status(status) => {
                write!(f, "answered with status {status}; 200 is needed, redirects aren't followed")
            }
            Self::TooLarge => {
                f.write_str("the answer is longer than is read: is this the server's own address?")
            }
            Self::NotMetrics(why) => why.fmt(f),
            Self::NotModels => {
                f.write_str("the answer to /v1/models is no list of models, an empty one, or too long a one")
            }
        }
    }
}

/// What one scrape came to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Look {
    pub(crate) observation: Observation,
    pub(crate) outcome: Outcome,
    pub(crate) change: Option<Change>,
}

/// What is known of the list of models.
#[derive(Debug, Default)]
struct Models {
    /// When it was read last; `None`: never, or too long ago to be stood by.
    read_ms: Option<u64>,
    asked_ms: Option<u64>,
}

/// One target, as far as it is known.
#[derive(Debug)]
pub(crate) struct History {
    kind: Kind,
    settings: Settings,
    health: Health,
    progress: Progress,
    numbers: Numbers,
    models: Models,
    /// Failed scrapes in a row, and those of them where nobody answered.
    misses: u32,
    silent: u32,
    news: News,
    /// Of the list of models: it fails by its own.
    list_news: News,
}

impl History {
    pub(crate) fn new(kind: Kind, settings: Settings) -> Self {
        Self {
            kind,
            settings,
            health: Health::Unknown,
            progress: Progress::default(),
            numbers: Numbers::default(),
            models: Models::default(),
            misses: 0,
            silent: 0,
            news: News::default(),
            list_news: News::default(),
        }
    }

    /// Takes a page, or why there is none. `in_flight`: requests of ours there when it was asked for.
    pub(crate) fn metrics(&mut self, read: Result<Page, Failure>, in_flight: u32, now_ms: u64) -> Look {
        let (stats, outcome, failure, absurd) = match read {
            Ok(page) => {
                (self.misses, self.silent) = (0, 0);
                let judged = self.progress.judge(&page, in_flight, ms(self.settings.stuck_after), now_ms);
                if judged.restarted {
                    self.numbers = Numbers::default();
                    self.models.asked_ms = None;
                }
                let (stats, absurd) = self.numbers.take(&page, now_ms);
                self.health = match judged {
                    _ if asleep(&page) => Health::Sleeping,
                    judged if judged.stuck => Health::Stuck,
                    judged if judged.paused => Health::Paused,
                    _ => Health::Ready,
                };
                let outcome = match judged {
                    judged if judged.restarted => Outcome::Restarted,
                    judged if judged.frozen => Outcome::Frozen,
                    _ if absurd > 0 => Outcome::Absurd,
                    _ => Outcome::Ok,
                };
                (stats.filter(|_| !judged.frozen), outcome, None, absurd)
            }
            Err(failure) => {
                self.miss(failure);
                (None, failure.outcome(), Some(failure), 0)
            }
        };
        let change =
            self.news.tell(self.health, outcome, now_ms).map(|change| Change { failure, absurd, ..change });
        Look { observation: self.observation(stats, None, now_ms), outcome, change }
    }

    fn miss(&mut self, failure: Failure) {
        self.misses = self.misses.saturating_add(1);
        let silent = matches!(failure, Failure::Timeout | Failure::Refused);
        self.silent = if silent { self.silent.saturating_add(1) } else { 0 };
        if self.silent >= MISSES_BELIEVED {
            self.health = Health::Unreachable;
        } else if failure == Failure::Status(503) {
            self.health = Health::Draining;
        } else if self.misses >= MISSES_BELIEVED {
            self.health = Health::Unknown;
        }
    }

    /// Whether it is time to ask for the models. Not while the last scrape failed: the list would only cost time.
    pub(crate) fn wants_models(&self, now_ms: u64) -> bool {
        let due = |at: u64| now_ms.saturating_sub(at) >= ms(self.settings.models_every);
        self.misses == 0 && self.models.asked_ms.is_none_or(due)
    }

    /// Takes a list of models, or why there is none.
    pub(crate) fn models(&mut self, read: Result<BTreeSet<String>, Failure>, now_ms: u64) -> Look {
        self.models.asked_ms = Some(now_ms);
        let failure = read.as_ref().err().copied();
        let names = read.ok().map(Arc::new);
        if names.is_some() {
            self.models.read_ms = Some(now_ms);
        }
        let outcome = match (failure, self.kind) {
            (None, _) => Outcome::Ok,
            (Some(_), Kind::Vllm) => Outcome::NoModels,
            (Some(failure), Kind::OpenAi) => failure.outcome(),
        };
        if self.kind == Kind::OpenAi {
            // Nothing else is asked, and a server may well serve without a list: no worse than unknown.
            self.health = if failure.is_none() { Health::Ready } else { Health::Unknown };
        }
        // Of a vLLM target the health is told with its pages.
        let change = match self.kind {
            Kind::OpenAi => self.list_news.tell(self.health, outcome, now_ms),
            Kind::Vllm => self.list_news.tell(Health::Unknown, outcome, now_ms).map(|change| Change {
                from: self.health,
                to: self.health,
                ..change
            }),
        };
        let change = change.map(|change| Change { failure, ..change });
        Look { observation: self.observation(None, names, now_ms), outcome, change }
    }

    fn observation(
        &mut self,
        stats: Option<Stats>,
        names: Option<Arc<BTreeSet<String>>>,
        now_ms: u64,
    ) -> Observation {
        let kept_ms = ms(self.settings.models_every).saturating_mul(MODELS_KEPT_TIMES);
        let aged = self.models.read_ms.is_some_and(|at| now_ms.saturating_sub(at) > kept_ms);
        if aged {
            self.models.read_ms = None;
        }
        Observation { health: self.health, stats, models: names.or_else(|| aged.then(Arc::default)) }
    }

    /// When to look again, counted from the beginning of the last look. `chance` is in 0..1 and spreads the looks of many
    /// targets by a fifth to either side.
    pub(crate) fn pause(&self, in_flight: u32, chance: f64) -> Duration {
        let base = match self.kind {
            Kind::OpenAi => self.settings.models_every,
            Kind::Vllm if (1..MISSES_BELIEVED).contains(&self.misses) => RECHECK.min(self.settings.idle),
            Kind::Vllm if in_flight > 0 => self.settings.busy,
            Kind::Vllm => self.settings.idle,
        };
        base.mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0)).max(PAUSE_MIN)
    }
}

/// Whether any engine behind the address sleeps: `/sleep` puts all of them to sleep.
fn asleep(page: &Page) -> bool {
    let is = |value: Option<f64>, want: f64| value.is_some_and(|value| (value - want).abs() < f64::EPSILON);
    page.engines.iter().any(|stats| {
        is(stats.get(Field::Awake), 0.0)
            || is(stats.get(Field::WeightsOffloaded), 1.0)
            || is(stats.get(Field::Discarded), 1.0)
    })
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
