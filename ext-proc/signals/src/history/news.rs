//! What of a target's history is news: a change of health or outcome, and not too soon after the last one.
//!
//! What is held back is counted and told with the next line, and the last state is always told in the end.

use ext_proc_pick::Health;

use super::Failure;
use crate::limits::LOG_GAP_MS;
use crate::seam::Outcome;

/// A change that the log should tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) from: Health,
    pub(crate) to: Health,
    pub(crate) outcome: Outcome,
    /// Why there were no numbers.
    pub(crate) failure: Option<Failure>,
    /// Numbers that were dropped because they can't be true.
    pub(crate) absurd: u32,
    /// Restarts of the engine since the last line.
    pub(crate) restarts: u32,
    /// Changes since the last line, this one excluded.
    pub(crate) untold: u32,
}

/// What was told, and what has happened since.
#[derive(Debug, Default)]
pub(super) struct News {
    told: Option<(Health, Outcome)>,
    told_ms: Option<u64>,
    now: Option<(Health, Outcome)>,
    changes: u32,
    restarts: u32,
}

impl News {
    /// Takes the state of now. `Some`: to be told; the caller knows the rest of it.
    pub(super) fn tell(&mut self, health: Health, outcome: Outcome, now_ms: u64) -> Option<Change> {
        // A restart is over with the next page: an event rather than a state.
        let restarted = outcome == Outcome::Restarted;
        let state = (health, if restarted { Outcome::Ok } else { outcome });
        self.restarts = self.restarts.saturating_add(u32::from(restarted));
        self.changes = self.changes.saturating_add(u32::from(self.now != Some(state)));
        self.now = Some(state);
        let from = match self.told {
            // The first good look at a target is no news.
            None if outcome == Outcome::Ok => {
                (self.told, self.changes) = (Some(state), 0);
                return None;
            }
            None => Health::Unknown,
            Some(told) if told == state && self.restarts == 0 => return None,
            Some(told) => told.0,
        };
        if self.told_ms.is_some_and(|at| now_ms.saturating_sub(at) < LOG_GAP_MS) {
            return None;
        }
        let (untold, restarts) = (self.changes.saturating_sub(1), self.restarts);
        *self = Self { told: Some(state), told_ms: Some(now_ms), now: Some(state), changes: 0, restarts: 0 };
        Some(Change { from, to: health, outcome, failure: None, absurd: 0, restarts, untold })
    }
}
