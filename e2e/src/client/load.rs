//! Load: many connections, each sending one call after another; requests per second and latencies.

use super::{Call, Connection, Ended, Protocol, Reply};
use anyhow::Result;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a load run showed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub took: Duration,
    /// Responses by status; 0 stands for no response at all.
    pub statuses: BTreeMap<u16, u64>,
    /// Responses that did not come whole.
    pub broken: u64,
    /// Sorted, of whole responses.
    pub latencies: Vec<Duration>,
}

impl Report {
    /// Whole responses per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// Latency that `percent` of the responses stayed within.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        percentile(&self.latencies, percent)
    }

    /// One line for a log.
    #[must_use]
    pub fn line(&self, name: &str) -> String {
        format!(
            "{name}: {} whole in {:.1} s = {:.0}/s, p50 {:?}, p99 {:?}, statuses {:?}, broken {}",
            self.latencies.len(),
            self.took.as_secs_f64(),
            self.per_second(),
            self.percentile(50.0),
            self.percentile(99.0),
            self.statuses,
            self.broken
        )
    }
}

/// The value that `percent` of the sorted values stay within.
#[must_use]
pub fn percentile(sorted: &[Duration], percent: f64) -> Duration {
    if sorted.is_empty() {
        return Duration::ZERO;
    }
    let index = ((sorted.len() as f64) * percent / 100.0).ceil() as usize;
    sorted[index.clamp(1, sorted.len()) - 1]
}

/// When a load run ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this many calls in all.
    Calls(u64),
    /// After this long.
    Time(Duration),
}

/// Runs `connections` connections until `until`; `make` gives the n-th call. Every reply goes to `seen`.
pub async fn run(
    address: SocketAddr,
    connections: usize,
    until: Until,
    make: impl Fn(u64) -> Call + Send + Sync + 'static,
    seen: impl Fn(u64, &Reply) + Send + Sync + 'static,
) -> Result<Report> {
    let (make, seen, next) = (Arc::new(make), Arc::new(seen), Arc::new(AtomicU64::new(0)));
    let started = Instant::now();
    let mut workers = Vec::new();
    for _ in 0..connections {
        let (make, seen, next) = (Arc::clone(&make), Arc::clone(&seen), Arc::clone(&next));
        workers.push(tokio::spawn(async move {
            let mut report = Report::default();
            let mut connection: Option<Connection> = None;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let over = match until {
                    Until::Calls(most) => n >= most,
                    Until::Time(most) => started.elapsed() >= most,
                };
                if over {
                    return report;
                }
                let call = make(n);
                if connection.is_none() {
                    connection = Connection::open(address, Protocol::H1).await.ok();
                }
                let reply = match connection.as_mut() {
                    Some(open) => open.send(&call).await.ok(),
                    None => None,
                };
                let Some(reply) = reply else {
                    *report.statuses.entry(0).or_default() += 1;
                    report.broken += 1;
                    connection = None;
                    continue;
                };
                *report.statuses.entry(reply.status).or_default() += 1;
                seen(n, &reply);
                if reply.ended == Ended::Complete {
                    report.latencies.push(reply.took);
                } else {
                    report.broken += u64::from(reply.ended != Ended::HungUp);
                    connection = None;
                }
                if reply.header("connection").eq_ignore_ascii_case("close") {
                    connection = None;
                }
            }
        }));
    }
    let mut all = Report::default();
    for worker in workers {
        let one = worker.await?;
        all.broken += one.broken;
        all.latencies.extend(one.latencies);
        for (status, count) in one.statuses {
            *all.statuses.entry(status).or_default() += count;
        }
    }
    all.took = started.elapsed();
    all.latencies.sort_unstable();
    Ok(all)
}
