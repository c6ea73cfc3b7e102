//! Metrics of the service: typed functions, so that a label can only hold what was meant, and its number of values is
//! bounded.
//!
//! Each [`Metrics`] has its own recorder and no global state. Handles are made once per label set and kept; an exchange
//! holds the [`Series`] of its labels, so counting is a few atomic additions.

mod endpoints;
mod exact;
pub(crate) mod families;
mod labels;
mod pool;
mod series;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{PrometheusHandle, PrometheusRecorder};

use crate::config::Config;
use crate::endpoints::Endpoints;
pub use endpoints::{ENDPOINT_SERIES_MAX, EndpointGauges};
use exact::Exact;
use families::{self as family, ALL, Family, Kind};
pub use labels::{NONE, OTHER, TENANT_LABEL_BYTES_MAX, TENANT_LABELS_MAX};
use labels::{Names, Tenants};
pub use pool::{Failure, PoolMeters, Prediction};
pub use series::{Ended, Labels, Series, Tokens};

/// Most label sets of exchanges; past it, new tenants are counted as `other`.
pub const SERIES_MAX: usize = 20_000;

/// Most label sets of one counter with fixed texts as labels. They come from enums, so this is a backstop.
pub const FIXED_LABEL_SETS_MAX: usize = 1024;

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportOutcome {
    /// It was new and is counted.
    Accepted,
    /// It had come before; nothing changed.
    Doubled,
    /// It is not valid; nothing changed.
    Refused,
}

impl ReportOutcome {
    /// Value of the `outcome` label.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Doubled => "doubled",
            Self::Refused => "refused",
        }
    }
}

/// The recorder behind all handles.
#[derive(Clone)]
pub(crate) struct Recorder(Arc<PrometheusRecorder>);

impl Recorder {
    fn key(family: &Family, values: &[&str]) -> Key {
        debug_assert_eq!(family.labels.len(), values.len(), "{}", family.name);
        let pairs = family.labels.iter().zip(values);
        Key::from_parts(
            family.name,
            pairs.map(|(key, value)| Label::new(*key, (*value).to_owned())).collect::<Vec<_>>(),
        )
    }

    fn metadata() -> Metadata<'static> {
        Metadata::new("tokenweir", Level::INFO, None)
    }

    fn counter(&self, family: &Family, values: &[&str]) -> Counter {
        self.0.register_counter(&Self::key(family, values), &Self::metadata())
    }

    fn gauge(&self, family: &Family, values: &[&str]) -> Gauge {
        self.0.register_gauge(&Self::key(family, values), &Self::metadata())
    }

    fn histogram(&self, family: &Family, values: &[&str]) -> Histogram {
        self.0.register_histogram(&Self::key(family, values), &Self::metadata())
    }
}

/// A counter whose labels are fixed texts, such as the `as_label` of an enum.
struct FixedCounter {
    family: &'static Family,
    handles: DashMap<[&'static str; 3], Counter>,
}

impl FixedCounter {
    fn new(family: &'static Family) -> Self {
        Self { family, handles: DashMap::new() }
    }

    /// Unused places are empty texts.
    fn increment(&self, recorder: &Recorder, values: [&'static str; 3]) {
        if let Some(counter) = self.handles.get(&values) {
            counter.increment(1);
            return;
        }
        let full = self.handles.len() >= FIXED_LABEL_SETS_MAX;
        let values = if full { [OTHER; 3] } else { values };
        let make =
            || recorder.counter(self.family, values.get(..self.family.labels.len()).unwrap_or(&values));
        self.handles.entry(values).or_insert_with(make).increment(1);
    }
}

type SeriesKey = (u16, u16, u16, &'static str);

struct Inner {
    recorder: Recorder,
    handle: PrometheusHandle,
    exact: Exact,
    models: Names,
    pools: Names,
    /// Engine label of each pool.
    providers: BTreeMap<u16, &'static str>,
    tenants: Tenants,
    series: DashMap<SeriesKey, Arc<Series>>,
    series_count: AtomicUsize,
    bodies: DashMap<&'static str, Histogram>,
    unmetered: FixedCounter,
    reports: FixedCounter,
    rejects: FixedCounter,
    single: Single,
}

/// Handles of the metrics without varying labels.
struct Single {
    verdict: Histogram,
    open: Gauge,
    streams: Gauge,
    late: Counter,
    leases: Counter,
    abandoned: Counter,
    log_errors: Counter,
    panics: Counter,
    reload_ok: Counter,
    reload_invalid: Counter,
    age: Gauge,
}

/// Metrics of one service. Clones share everything.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

impl Metrics {
    /// Metrics with the models and pools of `config` as label values.
    pub fn new(config: &Config) -> Self {
        let prometheus = families::builder().build_recorder();
        let handle = prometheus.handle();
        for family in ALL {
            let (name, help) = (family.name.into(), family.help.into());
            match family.kind {
                Kind::Counter => prometheus.describe_counter(name, None, help),
                Kind::Gauge => prometheus.describe_gauge(name, None, help),
                _ => prometheus.describe_histogram(name, None, help),
            }
        }
        let recorder = Recorder(Arc::new(prometheus));
        recorder.gauge(&family::BUILD, &[env!("CARGO_PKG_VERSION")]).set(1.0);
        let pools = Names::pools(config);
        let single = Single {
            verdict: recorder.histogram(&family::VERDICT, &[]),
            open: recorder.gauge(&family::OPEN, &[]),
            streams: recorder.gauge(&family::STREAMS, &[]),
            late: recorder.counter(&family::REPORTS_LATE, &[]),
            leases: recorder.counter(&family::LEASES, &[]),
            abandoned: recorder.counter(&family::ABANDONED, &[]),
            log_errors: recorder.counter(&family::LOG_ERRORS, &[]),
            panics: recorder.counter(&family::PANICS, &[]),
            reload_ok: recorder.counter(&family::RELOADS, &["ok"]),
            reload_invalid: recorder.counter(&family::RELOADS, &["invalid"]),
            age: recorder.gauge(&family::ENDPOINTS_AGE, &[]),
        };
        let inner = Inner {
            providers: config
                .pools
                .iter()
                .map(|pool| (pools.id(&pool.name), pool.engine.as_label()))
                .collect(),
            recorder,
            handle,
            exact: Exact::default(),
            models: Names::models(config),
            pools,
            tenants: Tenants::default(),
            series: DashMap::new(),
            series_count: AtomicUsize::new(0),
            bodies: DashMap::new(),
            unmetered: FixedCounter::new(&family::UNMETERED),
            reports: FixedCounter::new(&family::REPORTS),
            rejects: FixedCounter::new(&family::REJECTS),
            single,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Everything in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut text = self.inner.handle.render();
        self.inner.exact.render(&mut text);
        text
    }

    /// Moves samples into their buckets. Without a scrape or this call they pile up: call it every few seconds.
    pub fn upkeep(&self) {
        self.inner.handle.run_upkeep();
    }

    /// The handles for `labels`.
    pub fn series(&self, labels: &Labels<'_>) -> Arc<Series> {
        let inner = &*self.inner;
        let (model, pool) = (inner.models.id(labels.model), inner.pools.id(labels.pool));
        let mut key = (model, pool, inner.tenants.id(labels.tenant), labels.api);
        if let Some(series) = inner.series.get(&key) {
            return Arc::clone(&series);
        }
        let mut tenant = if key.2 == 0 { OTHER } else { labels.tenant };
        if inner.series_count.load(Ordering::Relaxed) >= SERIES_MAX {
            key.2 = 0;
            tenant = OTHER;
        }
        let entry = inner.series.entry(key).or_insert_with(|| {
            inner.series_count.fetch_add(1, Ordering::Relaxed);
            let (model, pool) = (inner.models.name(key.0), inner.pools.name(key.1));
            let provider = inner.providers.get(&key.1).copied().unwrap_or(NONE);
            let values = series::Values { model, pool, tenant, api: labels.api, provider };
            Arc::new(Series::new(inner.recorder.clone(), &values, inner.exact.gaps(model, pool)))
        });
        Arc::clone(&entry)
    }

    /// A whole request body of `bytes` was read.
    pub fn request_body(&self, api: &'static str, bytes: usize) {
        let size = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
        let make = || self.inner.recorder.histogram(&family::BODY_SIZE, &[api]);
        self.inner.bodies.entry(api).or_insert_with(make).record(size);
    }

    /// A verdict was reached `after` the last request byte.
    pub fn verdict(&self, after: Duration) {
        self.inner.single.verdict.record(after.as_secs_f64());
    }

    /// The counters of `pool`, to be kept.
    pub fn pool(&self, pool: &str) -> Arc<PoolMeters> {
        let name = self.inner.pools.name(self.inner.pools.id(pool));
        Arc::new(PoolMeters::new(self.inner.recorder.clone(), name))
    }

    /// All endpoints as they are now, at most [`ENDPOINT_SERIES_MAX`] of them.
    pub fn endpoints_seen(&self, endpoints: impl Iterator<Item = (String, SocketAddr, EndpointGauges)>) {
        self.inner.exact.set_endpoints(endpoints.take(ENDPOINT_SERIES_MAX).collect());
    }

    /// `count` exchanges have a verdict and no end yet.
    pub fn open_exchanges(&self, count: usize) {
        self.inner.single.open.set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
    }

    /// An ext_proc stream was opened.
    pub fn stream_opened(&self) {
        self.inner.single.streams.increment(1.0);
    }

    /// An ext_proc stream was closed.
    pub fn stream_closed(&self) {
        self.inner.single.streams.decrement(1.0);
    }

    /// An answered exchange has no token count because of `reason`.
    pub fn unmetered(&self, reason: &'static str) {
        self.inner.unmetered.increment(&self.inner.recorder, [reason, "", ""]);
    }

    /// A report of `event` came. `reason` says why it was refused, and is empty otherwise.
    pub fn report(&self, event: &'static str, outcome: ReportOutcome, reason: &'static str) {
        self.inner.reports.increment(&self.inner.recorder, [event, outcome.as_label(), reason]);
    }

    /// A report came after its exchange was closed.
    pub fn report_late(&self) {
        self.inner.single.late.increment(1);
    }

    /// The service answered a request itself.
    pub fn rejected(&self, reason: &'static str, api: &'static str) {
        self.inner.rejects.increment(&self.inner.recorder, [reason, api, ""]);
    }

    /// An exchange was closed because no report came in time.
    pub fn lease_expired(&self) {
        self.inner.single.leases.increment(1);
    }

    /// Envoy dropped a request between its verdict and its response, and nobody reported its end.
    pub fn abandoned(&self) {
        self.inner.single.abandoned.increment(1);
    }

    /// The exchange log could not take a record.
    pub fn log_write_error(&self) {
        self.inner.single.log_errors.increment(1);
    }

    /// A panic was caught.
    pub fn panicked(&self) {
        self.inner.single.panics.increment(1);
    }

    /// A changed endpoints file was read: `Some` is now in use, `None` was not valid.
    pub fn endpoints_read(&self, now: Option<&Endpoints>) {
        let Some(now) = now else { return self.inner.single.reload_invalid.increment(1) };
        self.inner.single.reload_ok.increment(1);
        for (pool, entries) in &now.pools {
            let ready = entries.iter().filter(|entry| entry.ready).count();
            for (state, count) in [("ready", ready), ("not_ready", entries.len().saturating_sub(ready))] {
                let gauge = self.inner.recorder.gauge(&family::ENDPOINTS, &[pool, state]);
                gauge.set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
            }
        }
    }

    /// The endpoints in use were last seen to be the file's content `age` ago.
    pub fn endpoints_age(&self, age: Duration) {
        self.inner.single.age.set(age.as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
