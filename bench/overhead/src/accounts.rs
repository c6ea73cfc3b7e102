//! Recorded tokens against the engines' own books, with a tenth of the clients hanging up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::Harness;
use e2e::bodies::mixed;
use e2e::client::load::{Until, run};
use e2e::client::{Ended, Reply};
use e2e::engine::Outcome;
use e2e::engine::books::Entry;
use e2e::records::Record;

const TOKENS_MAX: u64 = 40;
/// How long records may take to arrive.
const RECORDS_LIMIT: Duration = Duration::from_secs(30);
/// Wrong exchanges that are described.
const SHOWN_MAX: usize = 5;

/// What the comparison showed.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    pub(crate) exchanges: usize,
    pub(crate) aborted: usize,
    /// Exchanges whose recorded tokens are not the engine's.
    pub(crate) tokens_off: usize,
    /// Aborted exchanges without a record.
    pub(crate) aborts_unrecorded: usize,
    /// The first wrong ones.
    pub(crate) shown: Vec<String>,
}

/// A mix of the APIs, streamed and not; every tenth client hangs up early.
pub(crate) async fn compare(exchanges: u64) -> Result<Accounts> {
    let mut harness = Harness::builder().start().await?;
    let seen: Arc<Mutex<HashMap<u64, Reply>>> = Arc::default();
    let keep = Arc::clone(&seen);
    let make = |n: u64| {
        let call = mixed(n, TOKENS_MAX).header("x-test-id", &n.to_string());
        if n % 10 == 3 {
            call.header("x-engine-interval-ms", "20").abort_after(usize::try_from(n % 4).unwrap_or(0))
        } else {
            call
        }
    };
    let report = run(harness.address(), 32, Until::Calls(exchanges), make, move |n, reply| {
        keep.lock().unwrap_or_else(PoisonError::into_inner).insert(n, reply.clone());
    });
    let report = report.await?;
    let whole = report.broken == 0 && report.statuses.keys().all(|status| *status == 200);
    ensure!(whole, "answers were not whole: {}", report.line("accounts"));
    let count = usize::try_from(exchanges)?;
    let service = harness.service()?;
    // A missing record is a figure, not an error of the bench.
    drop(service.records_when("all records", RECORDS_LIMIT, |log| log.newest().len() >= count).await);
    let records = service.records();
    let records = records.by_request_id();
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    let mut accounts = Accounts { exchanges: seen.len(), ..Accounts::default() };
    for (_, engine) in &harness.engines {
        let books = engine.books();
        for entry in books.entries() {
            let Some(reply) = entry.test_id.parse().ok().and_then(|id: u64| seen.get(&id)) else { continue };
            accounts.add(entry, reply, records.get(entry.request_id.as_str()).copied());
        }
    }
    Ok(accounts)
}

impl Accounts {
    fn add(&mut self, entry: &Entry, reply: &Reply, record: Option<&Record>) {
        let is_whole = entry.outcome == Outcome::Finished && reply.ended == Ended::Complete;
        self.aborted += usize::from(!is_whole);
        self.aborts_unrecorded += usize::from(!is_whole && record.is_none());
        let is_right = record.is_some_and(|record| {
            let output = record.usage.output.unwrap_or(0);
            if is_whole {
                record.usage.input == Some(entry.prompt_tokens)
                    && output == entry.completion_tokens
                    && record.usage.cached.unwrap_or(0) == entry.cached_tokens
            } else {
                // What the filter saw lies between what the client saw and what the engine sent.
                (reply.tokens_seen()..=entry.completion_tokens).contains(&output)
            }
        });
        if is_right {
            return;
        }
        self.tokens_off += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(format!("{entry:?}\n{record:?}"));
        }
    }
}
