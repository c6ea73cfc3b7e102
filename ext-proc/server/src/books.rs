//! The books of open exchanges, in shards so that streams and reports rarely wait for each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ext_proc_meter::{Answered, Book, Effect, Leases, Outcome, Place};
use proto_tokenweir::token::ExchangeId;
use proto_tokenweir::v1::{ExchangeToken, UsageEvent};

/// Open exchanges in all; beyond it requests are answered 503.
pub(crate) const OPEN_MAX: usize = 1 << 20;

pub(crate) struct Books {
    shards: Vec<Mutex<Book>>,
}

impl Books {
    /// Shards; a shard is named by its number.
    pub(crate) const SHARDS: usize = 16;
    /// Leases closed in one step, so that no lock is held long.
    pub(crate) const EXPIRE_MAX: usize = 256;

    pub(crate) fn new(leases: Leases) -> Self {
        Self {
            shards: (0..Self::SHARDS)
                .map(|_| Mutex::new(Book::new(leases, OPEN_MAX / Self::SHARDS)))
                .collect(),
        }
    }

    fn shard(&self, id: ExchangeId) -> Option<MutexGuard<'_, Book>> {
        // Ids are random, so any byte spreads them evenly.
        let index = usize::from(id.0[0]) % Self::SHARDS;
        self.shards.get(index).map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn open(&self, id: ExchangeId, token: ExchangeToken, place: Place, now_ms: u64) -> bool {
        self.shard(id).is_some_and(|mut book| book.open(id, token, place, now_ms))
    }

    /// `None`: closed already (its report came first), so nothing is left to be told.
    pub(crate) fn serve(&self, id: ExchangeId, answer: Answered, now_ms: u64) -> Option<Effect> {
        self.shard(id).and_then(|mut book| book.serve(id, answer, now_ms).ok())
    }

    pub(crate) fn abandon(&self, id: ExchangeId, now_ms: u64) {
        if let Some(mut book) = self.shard(id) {
            book.abandon(id, now_ms);
        }
    }

    pub(crate) fn close_by_stream(&self, id: ExchangeId, now_ms: u64) -> Vec<Effect> {
        self.shard(id).map(|mut book| book.close_by_stream(id, now_ms)).unwrap_or_default()
    }

    pub(crate) fn report(
        &self,
        id: ExchangeId,
        token: &ExchangeToken,
        event: &UsageEvent,
        now_ms: u64,
    ) -> Outcome {
        self.shard(id).map_or(Outcome::Empty, |mut book| book.report(id, token, event, now_ms))
    }

    pub(crate) fn recall(&self, id: ExchangeId, revision: u32) {
        if let Some(mut book) = self.shard(id) {
            book.recall(id, revision);
        }
    }

    /// Closes what has outlived its lease in one shard, at most [`Self::EXPIRE_MAX`]; the flag says whether more is due.
    pub(crate) fn expire(&self, shard: usize, now_ms: u64) -> (Vec<Effect>, bool) {
        let book = self.shards.get(shard).map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        book.map(|mut book| book.expire(now_ms, Self::EXPIRE_MAX)).unwrap_or_default()
    }

    pub(crate) fn open_count(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).open_count())
            .sum()
    }
}
