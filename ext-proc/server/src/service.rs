//! `envoy.service.ext_proc.v3.ExternalProcessor`: one stream per HTTP request.

pub(crate) mod decode;
mod encode;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use ext_proc_exchange::Rules;
use proto_tokenweir::token::ExchangeId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use self::stream::ExchangeStream;
use crate::books::Books;
use crate::clock::{monotonic_ms, unix_ms};
use crate::debug;
use crate::dispatch::Dispatcher;
use crate::log::ExchangeLog;
use crate::metrics::{Metrics, NONE};
use crate::settlement;

/// How long a close without a report may wait for its place in the log.
const PLACES_WITHIN: Duration = Duration::from_secs(5);

/// The two steps of going away.
#[derive(Clone, Default)]
pub(crate) struct DrainSteps {
    /// Streams that have their verdict end with OK; those without one may still get it.
    pub(crate) closing: CancellationToken,
    /// Every stream ends now.
    pub(crate) cutting: CancellationToken,
}

/// What every stream works with.
pub(crate) struct Shared {
    pub(crate) rules: Rules,
    pub(crate) tenant_header: String,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) log: ExchangeLog,
    pub(crate) metrics: Metrics,
    pub(crate) drain: DrainSteps,
    pub(crate) tasks: TaskTracker,
    pub(crate) streams_max: usize,
    pub(crate) streams: AtomicUsize,
}

impl Shared {
    /// Closes what has outlived its lease, and writes it; in steps, each with its places in the log.
    pub(crate) async fn expire_leases(&self) {
        for shard in 0..Books::SHARDS {
            let mut more = true;
            while more {
                let Ok(mut places) = self.log.places(Books::EXPIRE_MAX, PLACES_WITHIN).await else {
                    // The disk refuses: nothing is closed that could not be written.
                    return;
                };
                let (effects, left) = self.dispatcher.books.expire(shard, unix_ms());
                for record in effects.into_iter().filter_map(|effect| self.dispatcher.pools.perform(effect)) {
                    settlement::count_unreported(&self.metrics, &record);
                    places.put(&record);
                }
                more = left;
            }
        }
    }

    /// Closes an exchange whose held stream has ended, and writes it.
    pub(crate) async fn close_held(&self, id: ExchangeId) {
        // While the disk refuses, the exchange stays open, and its lease closes it later.
        let Ok(mut places) = self.log.places(1, PLACES_WITHIN).await else { return };
        for record in self.dispatcher.ended(id) {
            settlement::count_ended(&self.metrics, &record);
            places.put(&record);
        }
    }

    /// Sets the gauges that hold what is so at the moment.
    pub(crate) fn set_gauges(&self) {
        self.metrics.open_exchanges(self.dispatcher.books.open_count());
        let now_ms = monotonic_ms();
        let pools = self.dispatcher.pools.seen(now_ms);
        self.metrics.endpoints_seen(pools.flat_map(|(pool, _, seen)| {
            seen.into_iter()
                .map(move |seen| (pool.to_owned(), seen.candidate.address, debug::gauges(&seen, now_ms)))
        }));
    }
}

/// A place among the streams; given back on drop.
pub(crate) struct Slot(Arc<Shared>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.stream_closed();
    }
}

/// The gRPC service.
pub(crate) struct Service(pub(crate) Arc<Shared>);

impl Service {
    fn slot(&self) -> Option<Slot> {
        let open = self.0.streams.fetch_add(1, Ordering::Relaxed);
        self.0.metrics.stream_opened();
        // A refused stream's slot is dropped right here, and counts itself out.
        let slot = Slot(Arc::clone(&self.0));
        (open < self.0.streams_max).then_some(slot)
    }
}

#[tonic::async_trait]
impl ExternalProcessor for Service {
    type ProcessStream = ExchangeStream;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let Some(slot) = self.slot() else {
            self.0.metrics.rejected("overload", NONE);
            return Err(Status::resource_exhausted("as many streams are open as this replica takes"));
        };
        if self.0.drain.closing.is_cancelled() {
            self.0.metrics.rejected("drained", NONE);
            return Err(Status::unavailable("the service is going away"));
        }
        Ok(Response::new(ExchangeStream::new(request.into_inner(), Arc::clone(&self.0), slot)))
    }
}
