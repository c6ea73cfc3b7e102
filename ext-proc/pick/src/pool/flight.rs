//! One exchange in flight.

use std::net::SocketAddr;

use super::Prefix;
use crate::explain::LIST_MAX;
use crate::load::{Phase, Work};

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
    pub(super) text_bytes: u64,
    pub(super) token_ids: u64,
    /// Its first token was seen.
    pub(super) first_token: bool,
    /// It was answered with a failure.
    pub(super) failed: bool,
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
            text_bytes: 0,
            token_ids: 0,
            first_token: true,
            failed: false,
        }
    }
}
