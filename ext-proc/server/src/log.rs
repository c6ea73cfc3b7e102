//! The exchange log: one JSON object a line, appended by one thread. A report is acknowledged only after its record was
//! handed to the operating system, so a killed process loses none; a line that was torn by the kill was never
//! acknowledged, and is cut off at the next start.
//!
//! A full disk stops acknowledgements, not requests: the filter keeps its reports (bounded, counted) and sends them again.

mod file;

use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use ext_proc_meter::Record;
use proto_tokenweir::token::ExchangeId;
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::file::Closed;
use self::file::LogFile;
use crate::metrics::Metrics;

/// Records and barriers that wait for the writer.
const QUEUE_MAX: usize = 65_536;
/// Lines written with one call.
const BATCH_MAX: usize = 1_024;
/// Between two tries to write, when the disk refuses.
const RETRY: Duration = Duration::from_millis(200);

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    Barrier(oneshot::Sender<()>),
}

/// Where records go. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ExchangeLog {
    queue: mpsc::Sender<Item>,
    metrics: Metrics,
}

/// Places in the writer's queue; those that aren't used are given back.
pub(crate) struct Places<'a> {
    permits: mpsc::PermitIterator<'a, Item>,
    metrics: &'a Metrics,
}

impl Places<'_> {
    /// Hands a record to the writer, at once.
    pub(crate) fn put(&mut self, record: &Record) {
        let line = serde_json::to_vec(record).map(|mut line| {
            line.push(b'\n');
            line
        });
        match (line, self.permits.next()) {
            (Ok(line), Some(permit)) => permit.send(Item::Line(line)),
            // One event settles one exchange at most, so places can't run out; if they ever do, it is told.
            (Ok(_) | Err(_), _) => self.metrics.log_write_error(),
        }
    }
}

/// The writer has not confirmed in time, or is gone.
#[derive(Debug)]
pub(crate) struct NotWritten;

impl ExchangeLog {
    /// Opens `state_dir/exchanges.jsonl`, calls `recall` with every record in it that ended after `since_ms`, and starts
    /// the writer. The thread ends when the last clone is dropped and everything is written.
    pub(crate) fn open(
        state_dir: &Path,
        since_ms: u64,
        metrics: &Metrics,
        recall: impl FnMut(ExchangeId, &Closed),
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let file = LogFile::open(state_dir, since_ms, recall)?;
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let counted = metrics.clone();
        let thread = std::thread::Builder::new()
            .name("exchange-log".into())
            .spawn(move || write(file, items, &counted))?;
        Ok((Self { queue, metrics: metrics.clone() }, thread))
    }

    /// Takes places for `records` lines. To be done *before* anything is settled: what is settled must reach the writer
    /// without another wait, because a caller that waits can be dropped, and its records with it.
    pub(crate) async fn places(&self, records: usize, within: Duration) -> Result<Places<'_>, NotWritten> {
        let permits = tokio::time::timeout(within, self.queue.reserve_many(records)).await;
        let permits = permits.map_err(|_| NotWritten)?.map_err(|_| NotWritten)?;
        Ok(Places { permits, metrics: &self.metrics })
    }

    /// Waits until everything appended before is written.
    pub(crate) async fn written(&self, within: Duration) -> Result<(), NotWritten> {
        let (done, wait) = oneshot::channel();
        let barrier = async {
            self.queue.send(Item::Barrier(done)).await.map_err(|_| NotWritten)?;
            wait.await.map_err(|_| NotWritten)
        };
        tokio::time::timeout(within, barrier).await.map_err(|_| NotWritten)?
    }
}

fn write(mut file: LogFile, mut items: mpsc::Receiver<Item>, metrics: &Metrics) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let mut lines = Vec::new();
    while items.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
        let mut barriers = Vec::new();
        for item in batch.drain(..) {
            match item {
                Item::Line(line) => lines.extend_from_slice(&line),
                Item::Barrier(done) => barriers.push(done),
            }
        }
        let mut told = false;
        while let Err(error) = file.append(&lines) {
            metrics.log_write_error();
            if !told {
                tracing::error!(%error, "the exchange log can't be written; reports stay unacknowledged until it can");
                told = true;
            }
            std::thread::sleep(RETRY);
            if items.is_closed() && items.is_empty() {
                tracing::error!(
                    bytes = lines.len(),
                    "the service ends with records that could not be written"
                );
                return;
            }
        }
        lines.clear();
        for done in barriers {
            if done.send(()).is_err() {
                tracing::debug!("a report was given up before its record was written; it will come again");
            }
        }
    }
    if let Err(error) = file.sync() {
        tracing::error!(%error, "the exchange log could not be synced");
    }
}

#[cfg(test)]
mod tests;
