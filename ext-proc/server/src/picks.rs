//! The last picks, explained: what `/debug/picks` shows. No prompt text, no tenant's key.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use ext_proc_pick::{Pick, Strategy};
use proto_tokenweir::token::ExchangeId;
use serde_json::{Value, json};

use crate::debug;

/// Picks that are kept.
const RECENT_MAX: usize = 256;

struct Note {
    at_unix_ms: u64,
    exchange: ExchangeId,
    model: String,
    pool: String,
    strategy: Strategy,
    pick: Pick,
}

/// A ring of explained picks.
#[derive(Default)]
pub(crate) struct RecentPicks {
    ring: Mutex<VecDeque<Note>>,
}

impl RecentPicks {
    pub(crate) fn note(
        &self,
        at_unix_ms: u64,
        exchange: ExchangeId,
        (model, pool): (&str, &str),
        strategy: Strategy,
        pick: Pick,
    ) {
        let note =
            Note { at_unix_ms, exchange, model: model.to_owned(), pool: pool.to_owned(), strategy, pick };
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() >= RECENT_MAX {
            ring.pop_front();
        }
        ring.push_back(note);
    }

    /// The picks as JSON, newest first.
    pub(crate) fn to_json(&self) -> Value {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        json!({ "picks": ring.iter().rev().map(note_json).collect::<Vec<_>>() })
    }
}

fn note_json(note: &Note) -> Value {
    json!({
        "at_unix_ms": note.at_unix_ms,
        "exchange": note.exchange.to_string(),
        "model": note.model,
        "pool": note.pool,
        "strategy": note.strategy.as_label(),
        "reason": note.pick.reason.as_label(),
        "order": note.pick.order.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "candidates": note.pick.candidates.iter().map(debug::candidate).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use ext_proc_pick::Reason;

    use super::*;

    #[test]
    fn the_newest_pick_comes_first_and_the_ring_is_bounded() {
        let recent = RecentPicks::default();
        for n in 0..=RECENT_MAX as u64 {
            let pick = Pick {
                order: vec![([127, 0, 0, 1], 9).into()],
                reason: Reason::Turn,
                candidates: Vec::new(),
            };
            recent.note(n, ExchangeId([1; 16]), ("m", "a"), Strategy::RoundRobin, pick);
        }
        let json = recent.to_json();
        assert_eq!(json["picks"].as_array().map(Vec::len), Some(RECENT_MAX));
        assert_eq!(json["picks"][0]["at_unix_ms"], RECENT_MAX as u64);
        assert_eq!(json["picks"][0]["reason"], "turn");
    }
}
