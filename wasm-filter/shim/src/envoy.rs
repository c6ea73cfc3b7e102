//! [`Host`] by proxy-wasm's host calls.
//!
//! The SDK's methods unwrap what its functions return, so only the functions are used. They still panic on statuses that
//! Envoy does not give in the callbacks that [`Host`] names for them: each call here keeps to these.

use std::cell::Cell;
use std::time::UNIX_EPOCH;

use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, LogLevel, MapType, MetricType};
use wasm_filter_meter::host::{Call, Counter, DispatchError, Host, Level, QUEUE_GAUGE};

use crate::grpc_service::upstream;

/// Envoy, in the callback that is running.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envoy;

/// The stats, defined once for each VM: Envoy keeps an entry for every definition.
///
/// They are moved here first and told to Envoy once a tick: one request moves several, and each call to the host costs as
/// much as all the rest of a small response.
struct Metrics {
    counters: Vec<(Counter, Stat)>,
    queue: Option<Stat>,
}

struct Stat {
    id: u32,
    untold: Cell<i64>,
}

impl Stat {
    fn define(kind: MetricType, name: &str) -> Option<Stat> {
        Some(Stat { id: hostcalls::define_metric(kind, name).ok()?, untold: Cell::new(0) })
    }

    fn move_by(&self, by: i64) {
        self.untold.set(self.untold.get().saturating_add(by));
    }

    /// A stat that cannot be moved is no reason to disturb a request.
    fn tell(&self) {
        let by = self.untold.take();
        if by != 0 {
            hostcalls::increment_metric(self.id, by).unwrap_or(());
        }
    }
}

impl Metrics {
    fn define() -> Metrics {
        let counter =
            |counter: &Counter| Some((*counter, Stat::define(MetricType::Counter, counter.name())?));
        Metrics {
            counters: Counter::ALL.iter().filter_map(counter).collect(),
            queue: Stat::define(MetricType::Gauge, QUEUE_GAUGE),
        }
    }
}

thread_local! {
    static METRICS: Metrics = Metrics::define();
}

/// Makes all stats known to Envoy, at 0: an alarm needs something to watch before the first event.
pub(crate) fn define_metrics() {
    METRICS.with(|_| ());
}

/// Tells Envoy how far the stats have moved since the last time.
pub(crate) fn tell_metrics() {
    METRICS.with(|metrics| {
        metrics.counters.iter().map(|(_, stat)| stat).chain(&metrics.queue).for_each(Stat::tell);
    });
}

impl Host for Envoy {
    fn now_us(&self) -> u64 {
        let since_epoch =
            hostcalls::get_current_time().ok().and_then(|now| now.duration_since(UNIX_EPOCH).ok());
        since_epoch.and_then(|since| u64::try_from(since.as_micros()).ok()).unwrap_or(0)
    }

    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        hostcalls::get_property(path.to_vec()).ok().flatten()
    }

    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        hostcalls::get_map_value_bytes(MapType::HttpRequestHeaders, name).ok().flatten()
    }

    fn response_headers(&self) -> Vec<(String, Vec<u8>)> {
        hostcalls::get_map_bytes(MapType::HttpResponseHeaders).unwrap_or_default()
    }

    fn remove_response_header(&self, name: &str) {
        hostcalls::remove_map_value(MapType::HttpResponseHeaders, name).unwrap_or(());
    }

    fn chunk(&self, size: usize) -> Option<Vec<u8>> {
        hostcalls::get_buffer(BufferType::HttpResponseBody, 0, size).ok().flatten()
    }

    fn replace_chunk(&self, size: usize, bytes: &[u8]) {
        hostcalls::set_buffer(BufferType::HttpResponseBody, 0, size, bytes).unwrap_or(());
    }

    fn send_local_reply(&self, status: u32, headers: &[(&str, &str)], body: &[u8]) {
        hostcalls::send_http_response(status, headers.to_vec(), Some(body)).unwrap_or(());
    }

    fn count(&self, counter: Counter, by: u64) {
        METRICS.with(|metrics| {
            if let Some((_, stat)) = metrics.counters.iter().find(|(known, _)| *known == counter) {
                stat.move_by(i64::try_from(by).unwrap_or(i64::MAX));
            }
        });
    }

    fn move_queue_gauge(&self, by: i64) {
        METRICS.with(|metrics| {
            if let Some(stat) = &metrics.queue {
                stat.move_by(by);
            }
        });
    }

    fn dispatch(&self, call: &Call<'_>) -> Result<u32, DispatchError> {
        hostcalls::dispatch_grpc_call(
            &upstream(call.cluster),
            call.service,
            call.method,
            Vec::new(),
            Some(call.payload),
            call.timeout,
        )
        .map_err(|_| DispatchError::Refused)
    }

    fn done(&self) {
        hostcalls::done().unwrap_or(());
    }

    fn log(&self, level: Level, line: &str) {
        let level = match level {
            Level::Info => LogLevel::Info,
            Level::Error => LogLevel::Error,
        };
        hostcalls::log(level, line).unwrap_or(());
    }
}
