//! The books of open exchanges, in shards so that streams and reports rarely wait for each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ext_proc_meter::{Answered, Book, Effect, Leases, Outcome, Place, Record};
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

    /// Takes a reported event. A record that it closes an exchange with goes to `write` before anybody else can find that
    /// exchange closed: who is told "doubled" may count on the record's being on its way.
    pub(crate) fn report(
        &self,
        id: ExchangeId,
        token: &ExchangeToken,
        event: &UsageEvent,
        now_ms: u64,
        mut write: impl FnMut(&Record),
    ) -> Outcome {
        let Some(mut book) = self.shard(id) else { return Outcome::Empty };
        let outcome = book.report(id, token, event, now_ms);
        if let Outcome::Accepted(effects) | Outcome::Late(effects) = &outcome {
            for effect in effects {
                if let Effect::Record(record) = effect {
                    write(record);
                }
            }
        }
        outcome
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use proto_tokenweir::v1::{End, usage_event};

    use super::*;

    /// A report that comes twice at once: the second must not be told "doubled" while the first one's record could still
    /// be lost.
    #[test]
    fn nobody_is_told_doubled_before_the_record_is_handed_over() {
        let books = Books::new(Leases { first_ms: 1000, progress_ms: 1000, abandoned_ms: 1000 });
        let id = ExchangeId([3; 16]);
        let token = ExchangeToken::default();
        let event =
            UsageEvent { event: Some(usage_event::Event::End(End::default())), ..UsageEvent::default() };
        let (told, outcome) = mpsc::channel();
        std::thread::scope(|scope| {
            let mut handed = 0;
            let first = books.report(id, &token, &event, 5, |_| {
                handed += 1;
                let told = told.clone();
                let (books, token, event) = (&books, &token, &event);
                scope.spawn(move || told.send(books.report(id, token, event, 5, |_| {})));
                let early = outcome.recv_timeout(Duration::from_millis(200));
                assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
            });
            assert!(matches!(first, Outcome::Accepted(_)) && handed == 1);
            assert_eq!(outcome.recv_timeout(Duration::from_secs(30)), Ok(Outcome::Doubled));
        });
    }
}
