//! `envoy.service.ext_proc.v3.ExternalProcessor`: one stream per HTTP request.

pub(crate) mod decode;
mod encode;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use ext_proc_exchange::Rules;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use self::stream::ExchangeStream;
use crate::clock::unix_ms;
use crate::dispatch::Dispatcher;
use crate::log::ExchangeLog;
use crate::metrics::{Metrics, NONE};
use crate::settlement;

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
    /// Closes what has outlived its lease, and writes it.
    pub(crate) async fn expire_leases(&self) {
        let effects = self.dispatcher.books.expire(unix_ms());
        let records = self.dispatcher.pools.perform(effects);
        for record in &records {
            settlement::count_unreported(&self.metrics, record);
        }
        self.log.append(records).await;
    }

    /// Sets the gauges that hold what is so at the moment.
    pub(crate) fn set_gauges(&self) {
        self.metrics.open_exchanges(self.dispatcher.books.open_count());
        for (pool, candidates) in self.dispatcher.pools.candidates() {
            for candidate in candidates {
                self.metrics.in_flight(pool, candidate.address, u64::from(candidate.in_flight));
            }
        }
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
