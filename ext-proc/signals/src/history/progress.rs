//! Whether an engine gets on with its requests.
//!
//! Three things can be wrong while `/health` says 200. *Stuck*: a rank has requests, and neither its tokens nor its
//! finished requests nor its cache move. *Paused*: we sent requests since anything moved last, and the engine says it has
//! none. *Frozen*: the whole page stays the same, down to the CPU time that writing it takes; then it is somebody's
//! copy of an old page, and its numbers are worth nothing.

use proto_vllm::metrics::{EngineStats, Field, Page};

use super::numbers::{believable, waiting};
use crate::limits::{COUNT_MAX, FROZEN_MS, REQUESTS_MAX};

/// What one rank has done so far: any change is progress. KV use is in it for a long prefill, which moves nothing else
/// until its end.
type Mark = [Option<u64>; 5];

#[derive(Debug)]
struct Rank {
    engine: Box<str>,
    model: Box<str>,
    mark: Mark,
    /// Since when the mark is the same and there are requests.
    moved_ms: u64,
    idle: bool,
}

/// What the last pages say about progress.
#[derive(Debug, Default)]
pub(super) struct Progress {
    ranks: Vec<Rank>,
    last: Option<Page>,
    /// Since when the page is the same.
    same_ms: u64,
    /// Since when requests are in flight.
    busy_ms: Option<u64>,
    /// Least requests in flight since something moved last. What is above it was sent since, or is sent without effect.
    level: u32,
    /// Since when more than that are in flight.
    raised_ms: Option<u64>,
}

/// How an engine gets on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) restarted: bool,
    pub(super) stuck: bool,
    pub(super) paused: bool,
    /// The page's numbers are old.
    pub(super) frozen: bool,
}

impl Progress {
    /// Judges a page; `in_flight` are our own requests at the time it was asked for.
    pub(super) fn judge(&mut self, page: &Page, in_flight: u32, stuck_ms: u64, now_ms: u64) -> Judgement {
        let restarted = self.last.as_ref().is_some_and(|last| restarted(last, page));
        if restarted {
            *self = Self::default();
        }
        let (moved, stuck, load) = self.move_ranks(page, stuck_ms, now_ms);
        if self.last.as_ref() != Some(page) {
            self.same_ms = now_ms;
        }
        self.last = Some(page.clone());
        self.count_in_flight(in_flight, moved, now_ms);

        let since = |at: u64| now_ms.saturating_sub(at);
        let same = self.busy_ms.map(|busy| since(busy.max(self.same_ms))).unwrap_or_default();
        // Without the process's own counters an engine at work on something long can write the same page for a while.
        let alive = page.process.cpu_seconds.is_some();
        Judgement {
            restarted,
            stuck: stuck || (alive && in_flight > 0 && same >= stuck_ms),
            paused: load <= 0.0 && self.raised_ms.is_some_and(|at| since(at) >= stuck_ms),
            frozen: in_flight > 0 && same >= if alive { FROZEN_MS.min(stuck_ms) } else { stuck_ms },
        }
    }

    /// Whether any rank moved, whether any is stuck, and the requests of all.
    fn move_ranks(&mut self, page: &Page, stuck_ms: u64, now_ms: u64) -> (bool, bool, f64) {
        let (mut any_moved, mut any_stuck, mut all) = (false, false, 0.0);
        self.ranks.retain(|rank| page.engines.iter().any(|stats| is(rank, stats)));
        for stats in &page.engines {
            let mark = mark(stats);
            let load = load(stats);
            all += load;
            let Some(rank) = self.ranks.iter_mut().find(|rank| is(rank, stats)) else {
                let (engine, model) = (stats.engine.clone(), stats.model.clone());
                self.ranks.push(Rank { engine, model, mark, moved_ms: now_ms, idle: load <= 0.0 });
                any_moved = true;
                continue;
            };
            any_moved |= rank.mark != mark;
            if rank.mark != mark || rank.idle {
                rank.mark = mark;
                rank.moved_ms = now_ms;
            }
            rank.idle = load <= 0.0;
            // A page without any counter can't show progress, and so no lack of it.
            let shows = mark.iter().any(Option::is_some);
            any_stuck |= shows && !rank.idle && now_ms.saturating_sub(rank.moved_ms) >= stuck_ms;
        }
        (any_moved, any_stuck, all)
    }

    fn count_in_flight(&mut self, in_flight: u32, moved: bool, now_ms: u64) {
        if in_flight == 0 {
            self.busy_ms = None;
        } else {
            self.busy_ms.get_or_insert(now_ms);
        }
        // A request whose end we haven't heard of stays in flight for us while the engine rests: it isn't above the level.
        self.level = if moved { in_flight } else { self.level.min(in_flight) };
        if in_flight > self.level {
            self.raised_ms.get_or_insert(now_ms);
        } else {
            self.raised_ms = None;
        }
    }
}

fn is(rank: &Rank, stats: &EngineStats) -> bool {
    rank.engine == stats.engine && rank.model == stats.model
}

fn count(stats: &EngineStats, field: Field) -> Option<f64> {
    stats.get(field).filter(|value| believable(*value, COUNT_MAX))
}

fn finished(stats: &EngineStats) -> Option<f64> {
    let reasons = [
        Field::FinishedStop,
        Field::FinishedLength,
        Field::FinishedAbort,
        Field::FinishedError,
        Field::FinishedRepetition,
        Field::FinishedOther,
    ];
    reasons.into_iter().filter_map(|reason| count(stats, reason)).reduce(|sum, part| sum + part)
}

fn mark(stats: &EngineStats) -> Mark {
    [
        count(stats, Field::PromptTokens),
        count(stats, Field::GenerationTokens),
        finished(stats),
        count(stats, Field::Preemptions),
        count(stats, Field::KvUsage),
    ]
    .map(|value| value.map(f64::to_bits))
}

fn load(stats: &EngineStats) -> f64 {
    let parts = [stats.get(Field::Running), waiting(stats)];
    parts.into_iter().flatten().filter(|value| believable(*value, REQUESTS_MAX)).sum()
}

/// Counters that ran back, or a process with another birthday.
fn restarted(last: &Page, page: &Page) -> bool {
    let born = |page: &Page| page.process.start_seconds.filter(|at| believable(*at, COUNT_MAX));
    let reborn = born(last).zip(born(page)).is_some_and(|(then, now)| (then - now).abs() > 1.0);
    let back = |then: &EngineStats, now: &EngineStats| {
        let counts = |stats: &EngineStats| {
            [count(stats, Field::PromptTokens), count(stats, Field::GenerationTokens), finished(stats)]
        };
        counts(then)
            .into_iter()
            .zip(counts(now))
            .any(|pair| matches!(pair, (Some(then), Some(now)) if now < then))
    };
    let same = |then: &EngineStats, now: &EngineStats| then.engine == now.engine && then.model == now.model;
    reborn
        || last.engines.iter().any(|then| page.engines.iter().any(|now| same(then, now) && back(then, now)))
}
