//! Builds the parts, owns the tasks, and takes everything down again in order.

mod listen;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessorServer;
use ext_proc_exchange::{ModelRule, Rules, TenantRule};
use ext_proc_meter::Leases;
use ext_proc_pick::Endpoint;
use ext_proc_signals::{Sink, Target};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{self, Admin, Condition, Readiness};
use crate::books::Books;
use crate::clock::{monotonic_ms, unix_ms};
use crate::config::{Config, ConfigErrors, EngineKind, UsageMode};
use crate::debug;
use crate::dispatch::{Dispatcher, uses_prefixes};
use crate::endpoints::{self, Endpoints, Latest};
use crate::generated::usage_reports_server::UsageReportsServer;
use crate::keys;
use crate::log::{Closed, ExchangeLog};
use crate::metrics::Metrics;
use crate::picks::RecentPicks;
use crate::pools::Pools;
use crate::reports::Reports;
use crate::service::{DrainSteps, Service, Shared};
use crate::signals;
use crate::stored::StoredResponses;
use crate::telemetry;

/// How often leases are looked at.
const TICK: Duration = Duration::from_secs(1);
/// What an exchange gets whose stream Envoy dropped before the response began: the filter's report is due within
/// milliseconds, a retry of it within seconds.
const ABANDONED_LEASE: Duration = Duration::from_secs(5);
/// How long connections and tasks get to end once every stream has.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The endpoints file is not good.
    #[error("{0}")]
    Endpoints(#[from] ConfigErrors),
    /// No key to seal exchange tokens with.
    #[error(transparent)]
    Keys(#[from] keys::KeysError),
    /// The state folder can't be used.
    #[error("the state folder {path} can't be used: {source}")]
    State {
        /// The folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// An address can't be listened on.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The TLS files are not good.
    #[error("{0}")]
    Tls(String),
    /// Signals can't be waited for.
    #[error("signals can't be handled: {0}")]
    Signals(std::io::Error),
}

/// The parts of a running service.
struct App {
    shared: Arc<Shared>,
    readiness: Readiness,
    writer: JoinHandle<()>,
    stop: CancellationToken,
}

/// Serves until a signal comes, then drains.
///
/// # Errors
/// See [`AppError`]: only before the service is ready.
pub async fn run(config: Config) -> Result<(), AppError> {
    // Before anything is bound: who can connect can also ask us to end.
    let mut signals = Signals::new().map_err(AppError::Signals)?;
    let config = Arc::new(config);
    let metrics = Metrics::new(&config);
    telemetry::install_panic_hook(metrics.clone());
    let first = Endpoints::load(&config.endpoints.file, &config)?;
    let app = App::build(&config, &metrics)?;
    app.shared.dispatcher.pools.replace(&view(&first));
    let (targets, listed) = watch::channel(signals::targets(&config, &first));
    let listeners = listen::bind(&config.listen).await?;
    let admin = listen::bind_admin(config.listen.admin).await?;

    let tasks = &app.shared.tasks;
    let (newest, watcher) = endpoints::watch(Arc::clone(&config), first, metrics.clone(), app.stop.clone());
    tasks.spawn(async move { drop(watcher.await) });
    tasks.spawn(telemetry::run_upkeep(metrics.clone(), app.stop.clone()));
    tasks.spawn(until(
        app.stop.clone(),
        follow(newest, Arc::clone(&config), targets, Arc::clone(&app.shared)),
    ));
    if config.signals.enabled {
        let sink: Arc<dyn Sink> = Arc::<Pools>::clone(&app.shared.dispatcher.pools);
        let settings = signals::settings(&config.signals);
        tasks.spawn(ext_proc_signals::run(listed, settings, sink, app.stop.clone()));
    }
    tasks.spawn(until(app.stop.clone(), tick(Arc::clone(&app.shared))));
    let picks = Arc::clone(&app.shared.dispatcher.picks);
    let pools = Arc::clone(&app.shared.dispatcher.pools);
    let gauged = Arc::clone(&app.shared);
    let router = admin::router(Admin {
        metrics: metrics.clone(),
        gauges: Arc::new(move || gauged.set_gauges()),
        readiness: app.readiness.clone(),
        picks: Arc::new(move || picks.to_json().to_string().into_bytes()),
        endpoints: Arc::new(move || debug::endpoints(&pools, monotonic_ms()).to_string().into_bytes()),
    });
    tasks.spawn(admin::serve(admin, router, app.stop.clone()));

    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<ExternalProcessorServer<Service>>().await;
    let services = listen::Services {
        ext_proc: ExternalProcessorServer::new(Service(Arc::clone(&app.shared)))
            .max_decoding_message_size(config.limits.message_bytes_max())
            .max_encoding_message_size(config.limits.message_bytes_max()),
        reports: UsageReportsServer::new(Reports(Arc::clone(&app.shared)))
            .max_decoding_message_size(config.limits.message_bytes_max()),
        health: health_service,
    };
    let servers = TaskTracker::new();
    for listener in listeners {
        let serving = listen::serve(listener, &config, services.clone(), app.shared.drain.closing.clone())?;
        servers.spawn(serving);
    }
    servers.close();
    // They hold the log's queue open, whose writer ends with its last sender.
    drop(services);
    app.readiness.set(Condition::Serving, true);
    tracing::info!(replica = config.replica, admin = %config.listen.admin, "serving");

    signals.wait().await;
    tracing::info!("going away");
    app.readiness.set(Condition::Draining, true);
    health.set_not_serving::<ExternalProcessorServer<Service>>().await;
    health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
    // Envoy learns from health checks, the endpoints from Kubernetes: until then new streams are still served.
    tokio::select! {
        () = tokio::time::sleep(config.drain.delay) => {}
        () = signals.wait() => {}
    }
    app.shared.drain.closing.cancel();
    if timeout(config.drain.grace, servers.wait()).await.is_err() {
        tracing::warn!(open = servers.len(), "the grace period is over; undecided streams end with an error");
        app.shared.drain.cutting.cancel();
        drop(timeout(LAST_WORDS, servers.wait()).await);
    }
    app.finish().await;
    tracing::info!("gone");
    Ok(())
}

impl App {
    fn build(config: &Config, metrics: &Metrics) -> Result<Self, AppError> {
        let state = |source| AppError::State { path: config.state_dir.clone(), source };
        std::fs::create_dir_all(&config.state_dir).map_err(state)?;
        let ring = Arc::new(keys::ring(config)?);
        let pools = config.pools.iter().map(|pool| (pool.name.clone(), pool.pick));
        let pools = Arc::new(Pools::new(pools, metrics));
        let books = Arc::new(Books::new(Leases {
            first_ms: millis(config.exchange.lease),
            progress_ms: millis(config.exchange.progress_lease),
            abandoned_ms: millis(ABANDONED_LEASE.min(config.exchange.lease)),
        }));
        let since_ms = unix_ms().saturating_sub(millis(config.exchange.token_lifetime));
        let stored = StoredResponses::new(config);
        let recall = |id, closed: &Closed| {
            books.recall(id, closed.revision);
            stored.recall(id, closed);
        };
        let (log, writer) = ExchangeLog::open(&config.state_dir, since_ms, metrics, recall).map_err(state)?;
        let dispatcher = Dispatcher {
            pools,
            books,
            stored,
            picks: Arc::new(RecentPicks::default()),
            ring,
            replica: config.replica.clone(),
            token_lifetime: config.exchange.token_lifetime,
        };
        let shared = Shared {
            rules: rules(config),
            tenant_header: config.tenant.header.as_str().to_owned(),
            dispatcher,
            log,
            metrics: metrics.clone(),
            drain: DrainSteps::default(),
            tasks: TaskTracker::new(),
            streams_max: config.limits.streams_max,
            streams: AtomicUsize::new(0),
        };
        let (readiness, stop) = (Readiness::default(), CancellationToken::new());
        readiness.set(Condition::Config, true);
        // Valid endpoints are in use. None of them being ready is an answer (503), not a reason to be left out.
        readiness.set(Condition::Endpoints, true);
        Ok(Self { shared: Arc::new(shared), readiness, writer, stop })
    }

    /// Ends the tasks, and the writer after the last record.
    async fn finish(self) {
        self.stop.cancel();
        self.shared.tasks.close();
        drop(timeout(LAST_WORDS, self.shared.tasks.wait()).await);
        if self.shared.log.written(LAST_WORDS).await.is_err() {
            tracing::error!("the exchange log did not take the last records");
        }
        drop(self.shared);
        // The writer ends when the last sender is gone; a task that outlived its time must not hold the exit.
        let joined = tokio::task::spawn_blocking(move || self.writer.join());
        drop(timeout(LAST_WORDS, joined).await);
    }
}

async fn until(stop: CancellationToken, work: impl Future<Output = ()>) {
    stop.run_until_cancelled_owned(work).await;
}

/// Takes every new view of the endpoints.
async fn follow(
    mut newest: Latest,
    config: Arc<Config>,
    targets: watch::Sender<Arc<Vec<Target>>>,
    shared: Arc<Shared>,
) {
    loop {
        let endpoints = Arc::clone(&newest.borrow_and_update());
        shared.dispatcher.pools.replace(&view(&endpoints));
        targets.send_replace(signals::targets(&config, &endpoints));
        if newest.changed().await.is_err() {
            return;
        }
    }
}

async fn tick(shared: Arc<Shared>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.expire_leases().await;
    }
}

struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn view(endpoints: &Endpoints) -> BTreeMap<String, Vec<Endpoint>> {
    let pool = |entries: &Vec<endpoints::EndpointEntry>| {
        entries.iter().map(|entry| Endpoint { address: entry.address, ready: entry.ready }).collect()
    };
    endpoints.pools.iter().map(|(name, entries)| (name.clone(), pool(entries))).collect()
}

fn rules(config: &Config) -> Rules {
    let mut models = BTreeMap::new();
    for pool in &config.pools {
        let usage = match (pool.usage, pool.engine) {
            (UsageMode::Forced, _) => ext_proc_exchange::UsageMode::Forced,
            (UsageMode::Inject, EngineKind::Vllm) => {
                ext_proc_exchange::UsageMode::Inject { continuous: true }
            }
            (UsageMode::Inject, EngineKind::Openai) => {
                ext_proc_exchange::UsageMode::Inject { continuous: false }
            }
        };
        let (prefix, keeps_responses) = (uses_prefixes(&pool.pick), pool.engine == EngineKind::Vllm);
        let rule = |model: &String| {
            (model.clone(), ModelRule { pool: pool.name.clone(), usage, prefix, keeps_responses })
        };
        models.extend(pool.models.iter().map(rule));
    }
    let tenant = match (config.tenant.trusted, &config.tenant.default) {
        (true, default) => TenantRule::Header { default: default.clone() },
        // A header that nobody vouches for is not read.
        (false, default) => TenantRule::Fixed(default.clone().unwrap_or_else(|| "anonymous".to_owned())),
    };
    Rules {
        models,
        tenant,
        body_bytes_max: config.limits.body_bytes_max,
        retry_after_s: config.exchange.retry_after.as_secs().max(1),
        hold_stream: config.exchange.hold_stream,
        since_unix_s: unix_ms() / 1000,
    }
}
