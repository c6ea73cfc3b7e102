//! Which exchanges are closed, so that a doubled report is known as one. Bounded: the oldest are forgotten first, long
//! after the filter has stopped repeating them; a report from beyond that memory writes a line whose key is already in
//! the log, which its readers count once.

use std::collections::{HashMap, VecDeque};

use proto_tokenweir::token::ExchangeId;

/// Closed exchanges remembered by one book.
pub const CLOSED_MAX: usize = 131_072;

#[derive(Debug)]
pub(crate) struct Closed {
    revision: HashMap<ExchangeId, u32>,
    order: VecDeque<ExchangeId>,
    max: usize,
}

impl Closed {
    pub(crate) fn new(max: usize) -> Self {
        Self { revision: HashMap::new(), order: VecDeque::new(), max }
    }

    /// The revision an exchange was closed with.
    pub(crate) fn revision(&self, id: ExchangeId) -> Option<u32> {
        self.revision.get(&id).copied()
    }

    pub(crate) fn insert(&mut self, id: ExchangeId, revision: u32) {
        match self.revision.insert(id, revision) {
            // Closed before: the highest revision holds, whatever order a log is read in.
            Some(before) if before > revision => {
                self.revision.insert(id, before);
            }
            Some(_) => {}
            None => self.order.push_back(id),
        }
        while self.order.len() > self.max {
            if let Some(oldest) = self.order.pop_front() {
                self.revision.remove(&oldest);
            }
        }
    }
}
