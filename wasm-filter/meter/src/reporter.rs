//! At-least-once delivery of one root context's events.
//!
//! One reporter belongs to one root context, and the streams that this root creates share it with nobody else: when Envoy
//! changes a plugin's configuration, the old and the new root context live in one VM and share its memory, and a queue that
//! both could see would be sent twice. A batch is kept, with its number, until gRPC status 0 came for the very call that
//! carries it. One batch is under way at a time; only a root context that is about to end sends all it has at once, because
//! Envoy may not wait for answers.

use std::time::Duration;

use prost::Message;
use proto_tokenweir::v1::{ReportBatch, UsageEvent};
use proto_tokenweir::{REPORT_METHOD, REPORT_SERVICE, REPORT_VERSION};

use crate::config::Config;
use crate::host::{Call, Counter, DispatchError, Host, Level};
use crate::queue::Queue;

/// Envoy gives a report up after this long.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A call without any answer for this long is taken as lost, should Envoy never answer it.
const CALL_LOST_US: u64 = 15_000_000;
/// First wait after a failure; it doubles with each further one.
const BACKOFF_MIN_US: u64 = 20_000;
/// Longest wait between two tries.
const BACKOFF_MAX_US: u64 = 2_000_000;
/// Most bytes of events in one report: well below the 4 MiB that gRPC servers take by default.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Most batches under way at once: as a rule, and when the root context is about to end.
const WINDOW: usize = 1;
const WINDOW_AT_END: usize = 64;
/// gRPC status OK.
const GRPC_OK: u32 = 0;

/// Sends events to the service until they are acknowledged.
#[derive(Debug)]
pub struct Reporter {
    name: String,
    clusters: Vec<String>,
    batch_events_max: usize,
    queue: Queue,
    /// Batches that are not acknowledged, oldest first.
    batches: Vec<Batch>,
    window: usize,
    sequence: u64,
    /// Index into `clusters` of the one that is tried first.
    cluster: usize,
    failures: u32,
    retry_at_us: u64,
    /// The last reading of a clock that may jump back.
    clock_us: u64,
    told_all_missing: bool,
    gauge: i64,
    /// The root context is gone or going: what comes now cannot be sent any more.
    closed: bool,
}

#[derive(Debug)]
struct Batch {
    payload: Vec<u8>,
    events: usize,
    call: Option<UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    call: u32,
    since_us: u64,
}

impl Reporter {
    /// A reporter with nothing to report. `name` goes into each report, for logs only.
    #[must_use]
    pub fn new(name: String) -> Reporter {
        let defaults = Config::default();
        Reporter {
            name,
            clusters: Vec::new(),
            batch_events_max: defaults.batch_events_max,
            queue: Queue::new(defaults.queue_events_max),
            batches: Vec::new(),
            window: WINDOW,
            sequence: 0,
            cluster: 0,
            failures: 0,
            retry_at_us: 0,
            clock_us: 0,
            told_all_missing: false,
            gauge: 0,
            closed: false,
        }
    }

    /// Takes a configuration over. What waits or is under way stays so.
    pub fn configure(&mut self, config: &Config) {
        self.clusters.clone_from(&config.report_clusters);
        self.batch_events_max = config.batch_events_max;
        self.queue.set_events_max(config.queue_events_max);
        self.cluster = 0;
    }

    /// Takes an event in. It goes out with the next tick. Lost, and counted, where nothing can be sent: before a
    /// configuration, and after the end.
    pub fn push(&mut self, host: &dyn Host, event: &UsageEvent) {
        if self.closed || self.clusters.is_empty() {
            self.queue.count_lost();
            host.count(Counter::QueueDropped, 1);
            return;
        }
        let dropped = self.queue.push(event);
        if dropped > 0 {
            host.count(Counter::QueueDropped, dropped);
        }
        self.show_gauge(host);
    }

    /// Whether everything was acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.batches.is_empty() && self.queue.is_empty()
    }

    /// Events that are not acknowledged yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.queue.len() + self.batches.iter().map(|batch| batch.events).sum::<usize>()
    }

    /// No event can be sent after this: the root context has ended.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// The root context is about to end: all that waits is sent at once, now.
    pub fn drain(&mut self, host: &dyn Host) {
        self.window = WINDOW_AT_END;
        self.tick(host);
    }

    /// Sends what waits, as far as reports under way and the wait after a failure allow.
    pub fn tick(&mut self, host: &dyn Host) {
        if self.is_idle() {
            return;
        }
        let now_us = self.now(host);
        let mut lost = false;
        for batch in &mut self.batches {
            if batch.call.as_ref().is_some_and(|call| now_us.saturating_sub(call.since_us) >= CALL_LOST_US) {
                batch.call = None;
                lost = true;
            }
        }
        if lost {
            self.fail(host, now_us);
        }
        if now_us >= self.retry_at_us {
            self.send(host, now_us);
        }
    }

    /// The answer to a call. An answer to a call that carries no batch any more is ignored.
    pub fn on_answer(&mut self, host: &dyn Host, call: u32, grpc_status: u32) {
        let carries = |batch: &Batch| batch.call.as_ref().is_some_and(|under_way| under_way.call == call);
        let Some(at) = self.batches.iter().position(carries) else { return };
        let now_us = self.now(host);
        if grpc_status != GRPC_OK {
            if let Some(batch) = self.batches.get_mut(at) {
                batch.call = None;
            }
            self.fail(host, now_us);
            return;
        }
        self.batches.remove(at);
        self.failures = 0;
        self.retry_at_us = 0;
        if std::mem::take(&mut self.told_all_missing) {
            host.log(Level::Info, "a report cluster takes calls again");
        }
        host.count(Counter::ReportsSent, 1);
        self.show_gauge(host);
        if self.queue.len() >= self.batch_events_max || self.window > WINDOW {
            self.send(host, now_us);
        }
    }

    /// Starts a call for each batch that has none, and makes new batches as the window allows.
    fn send(&mut self, host: &dyn Host, now_us: u64) {
        loop {
            let at = match self.batches.iter().position(|batch| batch.call.is_none()) {
                Some(at) => at,
                None if self.batches.len() >= self.window => return,
                None => match self.next_batch() {
                    Some(batch) => {
                        self.batches.push(batch);
                        continue;
                    }
                    None => return,
                },
            };
            let Some(call) = self.dispatch(host, at) else {
                self.tell_all_missing(host);
                self.fail(host, now_us);
                return;
            };
            if let Some(batch) = self.batches.get_mut(at) {
                batch.call = Some(UnderWay { call, since_us: now_us });
            }
        }
    }

    /// Offers a batch to the clusters in turn, first the one that took the last call.
    fn dispatch(&mut self, host: &dyn Host, at: usize) -> Option<u32> {
        let batch = self.batches.get(at)?;
        let count = self.clusters.len();
        for step in 0..count {
            let index = (self.cluster + step) % count;
            let call = Call {
                cluster: self.clusters.get(index)?,
                service: REPORT_SERVICE,
                method: REPORT_METHOD,
                payload: &batch.payload,
                timeout: CALL_TIMEOUT,
            };
            match host.dispatch(&call) {
                Ok(call) => {
                    self.cluster = index;
                    return Some(call);
                }
                Err(DispatchError::Refused) => host.count(Counter::ReportClusterMiss, 1),
            }
        }
        None
    }

    fn tell_all_missing(&mut self, host: &dyn Host) {
        if std::mem::replace(&mut self.told_all_missing, true) {
            return;
        }
        host.log(
            Level::Error,
            "no report cluster takes a call: usage is kept and not reported. Check `report_clusters` in the plugin \
             configuration, and that the tokenweir service is up",
        );
    }

    fn next_batch(&mut self) -> Option<Batch> {
        let (field, events) = self.queue.take(self.batch_events_max, BATCH_BYTES_MAX);
        if events == 0 {
            return None;
        }
        self.sequence += 1;
        let mut payload = ReportBatch {
            version: REPORT_VERSION,
            reporter: self.name.clone(),
            sequence: self.sequence,
            events: Vec::new(),
            dropped: self.queue.dropped(),
        }
        .encode_to_vec();
        payload.extend_from_slice(&field);
        Some(Batch { payload, events, call: None })
    }

    /// A try came to nothing: the batch is kept, and the next cluster has the next turn, after a wait.
    fn fail(&mut self, host: &dyn Host, now_us: u64) {
        host.count(Counter::ReportsRetried, 1);
        if now_us < self.retry_at_us {
            // Another call of the same round has failed already.
            return;
        }
        if !self.clusters.is_empty() {
            self.cluster = (self.cluster + 1) % self.clusters.len();
        }
        let wait_us = BACKOFF_MIN_US.saturating_mul(1 << self.failures.min(16)).min(BACKOFF_MAX_US);
        self.failures = self.failures.saturating_add(1);
        self.retry_at_us = now_us.saturating_add(wait_us);
    }

    fn now(&mut self, host: &dyn Host) -> u64 {
        let now_us = host.now_us();
        if now_us < self.clock_us {
            // The clock was set back: waits that were counted on it would last as long as the jump.
            self.retry_at_us = self.retry_at_us.min(now_us.saturating_add(BACKOFF_MAX_US));
            for call in self.batches.iter_mut().filter_map(|batch| batch.call.as_mut()) {
                call.since_us = call.since_us.min(now_us);
            }
        }
        self.clock_us = now_us;
        now_us
    }

    fn show_gauge(&mut self, host: &dyn Host) {
        let pending = i64::try_from(self.pending()).unwrap_or(i64::MAX);
        if pending != self.gauge {
            host.move_queue_gauge(pending - self.gauge);
            self.gauge = pending;
        }
    }
}

#[cfg(test)]
mod tests;
