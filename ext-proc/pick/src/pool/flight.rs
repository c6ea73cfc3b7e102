//! One exchange in flight.

use std::net::SocketAddr;

use crate::cost::Request;
use crate::explain::LIST_MAX;
use crate::load::{Phase, Work};
use crate::prefix::Prefix;

/// How far an exchange is known to have come; the later ones are stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    Nothing,
    Answered,
    FirstToken,
    Failed,
}

/// An exchange in flight: where it is, and what was reckoned of it when it was sent.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    /// The slot that it loads.
    pub(super) slot: usize,
    /// Whom Envoy tries, in order.
    pub(super) order: [Option<SocketAddr>; LIST_MAX],
    pub(super) work: Work,
    pub(super) phase: Phase,
    /// When it is taken to generate even if nobody tells.
    pub(super) due_ms: u64,
    pub(super) prefix: Prefix,
    /// Chunks that its endpoint was thought to hold.
    pub(super) matched_chunks: usize,
    pub(super) request: Request,
    pub(super) text_bytes: u64,
    pub(super) token_ids: u64,
    pub(super) told: Told,
}

impl Flight {
    /// One of before a restart.
    pub(super) fn adopted(slot: usize, work: Work) -> Self {
        Self {
            slot,
            order: [None; LIST_MAX],
            work,
            phase: Phase::Decode,
            due_ms: 0,
            prefix: Prefix::default(),
            matched_chunks: 0,
            request: Request::default(),
            text_bytes: 0,
            token_ids: 0,
            told: Told::FirstToken,
        }
    }
}
