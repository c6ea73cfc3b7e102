//! Real Envoy 1.40 with the filter chain that Envoy Gateway programs: filters off on the listener and on per route,
//! ext_proc before wasm before router, early header removal, `override_host` with retries, limits raised.
//!
//! Routes: `open.local` fails open (default pool `a`), every other host fails closed (503 "no verdict").

use crate::client::{self, Call};
use crate::parts;
use crate::process::{Process, free_port, wait_for};
use crate::template::fill;
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BOOTSTRAP: &str = include_str!("../envoy/bootstrap.yaml");
const LISTENERS: &str = include_str!("../envoy/listeners.yaml");
const ROUTE_POOL: &str = include_str!("../envoy/route-pool.yaml");
const FILTER_EXT_PROC: &str = include_str!("../envoy/filter-ext-proc.yaml");
const FILTER_WASM: &str = include_str!("../envoy/filter-wasm.yaml");
const CLUSTERS: &str = include_str!("../envoy/clusters.yaml");
const CLUSTER_POOL: &str = include_str!("../envoy/cluster-pool.yaml");

/// A pool's retries, as Envoy Gateway writes them.
const RETRY: &str = "{retry_on: \"@ON@\", retriable_status_codes: [@STATUSES@], num_retries: @RETRIES@, \
    host_selection_retry_max_attempts: 5, retry_back_off: {base_interval: 0.010s, max_interval: 0.050s}, \
    retry_host_predicate: [{name: envoy.retry_host_predicates.previous_hosts, typed_config: {\"@type\": \
    type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}}]}";
const ON: &str = "{\"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, config: {}}";
const EXT_PROC_OPEN: &str = "{\"@type\": \
    type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, \
    overrides: {failure_mode_allow: true}}";

/// How the request body goes to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// Whole, before anything goes upstream.
    Buffered,
    /// Piece by piece, with request trailers.
    FullDuplexStreamed,
}

/// What a listener configuration is made of. Changing one and calling [`Envoy::replace_listener`] is a new configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// Body mode of the service's filter.
    pub body_mode: BodyMode,
    /// Whether the chain has the service's filter.
    pub ext_proc: bool,
    /// The filter module; `None` leaves the filter out.
    pub wasm: Option<PathBuf>,
    /// Whether the routes that fail open have the filter too, an instance of its own.
    pub wasm_on_open: bool,
    /// More members of the filter's configuration, as JSON members: `"tick_ms": 20`.
    pub filter_settings: BTreeMap<String, Value>,
    /// Listener buffer limit, in bytes.
    pub buffer_bytes: u64,
    /// Worker threads.
    pub concurrency: u32,
    /// How long a replaced listener's connections may live, in seconds.
    pub drain_time_s: u32,
    /// Pools: name and endpoint addresses.
    pub pools: Vec<(String, Vec<SocketAddr>)>,
    /// Where the service listens: `127.0.0.1:50051` or `unix:/path`.
    pub ext_proc_address: String,
    /// When a pool's route tries another endpoint.
    pub retry: Retry,
    /// How long a connection to an engine may be idle before Envoy closes it.
    pub upstream_idle: Duration,
}

/// When a pool's route tries another endpoint: `BackendTrafficPolicy.retry`.
///
/// By default once, and only while no response has begun: the connection failed or ended before the response's head
/// (`reset`; `reset-before-request` misses requests already written to a connection that is being closed), or the
/// engine answered 500 (vLLM while it drains) or 503 (its queue is full). Not more than once: a request that makes an
/// engine fail must not reach the whole pool.
#[derive(Clone, Debug)]
pub struct Retry {
    /// `retryOn.triggers`
    pub on: Vec<&'static str>,
    /// `retryOn.httpStatusCodes`
    pub statuses: Vec<u16>,
    /// `numRetries`, of all kinds together: Envoy has no limit for each.
    pub retries: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self { on: vec!["connect-failure", "refused-stream", "reset"], statuses: vec![500, 503], retries: 1 }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            body_mode: BodyMode::Buffered,
            ext_proc: true,
            wasm: None,
            wasm_on_open: true,
            filter_settings: BTreeMap::new(),
            // Just above the service's body limit, so that it answers 413 itself; and well below its message limit: a
            // message that is too long fails the stream, and an open route would let the request pass.
            buffer_bytes: (32 << 20) + (64 << 10),
            concurrency: 2,
            drain_time_s: 60,
            pools: Vec::new(),
            ext_proc_address: "127.0.0.1:1".to_owned(),
            retry: Retry::default(),
            upstream_idle: Duration::from_secs(4),
        }
    }
}

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    dir: PathBuf,
    version: u32,
    /// Where clients connect.
    pub address: SocketAddr,
    /// Envoy's admin interface.
    pub admin: SocketAddr,
    /// The configuration in force.
    pub options: Options,
}

impl Envoy {
    /// Starts Envoy in `dir` and waits until it serves, or shows the end of its log.
    pub async fn start(dir: &Path, options: Options) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let binary = parts::envoy()?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let admin = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let folder = dir.display().to_string();
        let bootstrap = fill(BOOTSTRAP, &[("ADMIN_PORT", &admin.port().to_string()), ("DIR", &folder)])?;
        let config = dir.join("bootstrap.yaml");
        std::fs::write(&config, bootstrap)?;
        write_atomically(&dir.join("listeners.yaml"), &listeners(&options, dir, address.port(), 1)?)?;
        write_atomically(&dir.join("clusters.yaml"), &clusters(&options, 1)?)?;
        let concurrency = options.concurrency.to_string();
        let drain = options.drain_time_s.to_string();
        let config = config.display().to_string();
        let args = [
            "-c",
            &config,
            "--concurrency",
            &concurrency,
            "--drain-time-s",
            &drain,
            "--use-dynamic-base-id",
            "--disable-hot-restart",
            "--log-level",
            "warning",
        ];
        let process = Process::start("envoy", &binary, &args, &[], &dir.join("envoy.log"))?;
        let mut envoy = Self { process, dir: dir.to_path_buf(), version: 1, address, admin, options };
        let ready = wait_for("Envoy's listener", Duration::from_secs(30), async || {
            if !matches!(envoy.process.ended(), Ok(None)) {
                return Some(false);
            }
            let stats =
                envoy.stats("listener_manager.workers_started|listener_manager.total_listeners_active").await;
            let count = |name: &str| stats.as_ref().ok().and_then(|all| all.get(name).copied()).unwrap_or(0);
            let up = count("listener_manager.workers_started") == 1
                && count("listener_manager.total_listeners_active") > 0;
            up.then_some(true)
        });
        let ready = ready.await.unwrap_or(false);
        ensure!(ready, "Envoy did not come up\n{}", envoy.process.tail());
        Ok(envoy)
    }

    /// Counters and gauges whose names match the regular expression `filter`.
    pub async fn stats(&self, filter: &str) -> Result<BTreeMap<String, u64>> {
        let path = format!("/stats?format=json&filter={}", filter.replace('|', "%7C").replace('\\', "%5C"));
        let reply = client::send(self.admin, Call::get(&path)).await?;
        let body: Value = serde_json::from_slice(&reply.body).context("Envoy's stats are not JSON")?;
        let stats = body.get("stats").and_then(Value::as_array).cloned().unwrap_or_default();
        let pair =
            |stat: &Value| Some((stat.get("name")?.as_str()?.to_owned(), stat.get("value")?.as_u64()?));
        Ok(stats.iter().filter_map(pair).collect())
    }

    /// One counter or gauge; 0 when Envoy doesn't have it.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        let stats = self.stats(&format!("^{}$", name.replace('.', "\\."))).await?;
        Ok(stats.get(name).copied().unwrap_or(0))
    }

    /// Wasm VMs alive. For each filter instance: one for each worker, the main thread's, and the one it is cloned from.
    pub async fn vms_alive(&self) -> Result<u64> {
        self.stat("wasm.envoy.wasm.runtime.v8.active").await
    }

    /// The active configuration, as Envoy's admin interface shows it.
    pub async fn config_dump(&self) -> Result<Value> {
        let reply = client::send(self.admin, Call::get("/config_dump")).await?;
        Ok(serde_json::from_slice(&reply.body)?)
    }

    /// Replaces the listener's configuration while traffic runs, and waits until Envoy has taken it.
    pub async fn replace_listener(&mut self, change: impl FnOnce(&mut Options)) -> Result<()> {
        change(&mut self.options);
        self.version += 1;
        let text = listeners(&self.options, &self.dir, self.address.port(), self.version)?;
        self.replace("listeners.yaml", &text, "listener_manager.lds").await
    }

    /// Replaces the clusters' configuration while traffic runs, and waits until Envoy has taken it.
    pub async fn replace_clusters(&mut self, change: impl FnOnce(&mut Options)) -> Result<()> {
        change(&mut self.options);
        self.version += 1;
        let text = clusters(&self.options, self.version)?;
        self.replace("clusters.yaml", &text, "cluster_manager.cds").await
    }

    async fn replace(&mut self, file: &str, text: &str, scope: &str) -> Result<()> {
        let (good, bad) = (format!("{scope}.update_success"), format!("{scope}.update_rejected"));
        let (before, rejected) = (self.stat(&good).await?, self.stat(&bad).await?);
        write_atomically(&self.dir.join(file), text)?;
        let taken = wait_for("Envoy to take a new configuration", Duration::from_secs(20), async || {
            if self.stat(&bad).await.ok()? > rejected {
                return Some(false);
            }
            (self.stat(&good).await.ok()? > before).then_some(true)
        });
        let taken = taken.await?;
        ensure!(taken, "Envoy refused {file}\n{}", self.process.tail());
        Ok(())
    }

    /// Access log entries so far. Envoy flushes its log every second; this asks for a flush first.
    pub async fn access_log(&self) -> Result<Vec<Value>> {
        client::send(self.admin, Call::post("/reopen_logs", Vec::new())).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let text = std::fs::read_to_string(self.dir.join("access.jsonl")).unwrap_or_default();
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The child process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// SIGTERM, and waits for the end.
    pub async fn stop(&mut self, limit: Duration) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(limit).await?;
        Ok(())
    }
}

fn listeners(options: &Options, dir: &Path, port: u16, version: u32) -> Result<String> {
    let (mut filters, mut open, mut protected) = (String::new(), Vec::new(), Vec::new());
    if options.ext_proc {
        let (mode, trailers) = match options.body_mode {
            BodyMode::Buffered => ("BUFFERED", "SKIP"),
            BodyMode::FullDuplexStreamed => ("FULL_DUPLEX_STREAMED", "SEND"),
        };
        let values = [("REQUEST_BODY_MODE", mode), ("REQUEST_TRAILER_MODE", trailers)];
        filters.push_str(&fill(FILTER_EXT_PROC, &values)?);
        protected.push(format!("tokenweir-ext-proc: {ON}"));
        // Envoy refuses failure_mode_allow beside full duplex.
        let open_config = if options.body_mode == BodyMode::Buffered { EXT_PROC_OPEN } else { ON };
        open.push(format!("tokenweir-ext-proc: {open_config}"));
    }
    if let Some(module) = &options.wasm {
        let module = module.display().to_string();
        for (name, require, on) in
            [("tokenweir-protected", true, &mut protected), ("tokenweir-open", false, &mut open)]
        {
            if !require && !options.wasm_on_open {
                continue;
            }
            let mut settings = options.filter_settings.clone();
            settings.insert("require_verdict".to_owned(), Value::Bool(require));
            settings.entry("report_clusters".to_owned()).or_insert_with(|| serde_json::json!(["ext_proc"]));
            let settings = serde_json::to_string(&settings)?;
            let values = [("NAME", name), ("MODULE", module.as_str()), ("CONFIGURATION", settings.as_str())];
            filters.push_str(&fill(FILTER_WASM, &values)?);
            on.push(format!("{name}: {ON}"));
        }
    }
    let retry = retry_policy(&options.retry)?;
    let (open, protected) = (format!("{{{}}}", open.join(", ")), format!("{{{}}}", protected.join(", ")));
    let routes = |kind: &str, on: &str| -> Result<String> {
        let mut text = String::new();
        for (pool, _) in &options.pools {
            let values =
                [("KIND", kind), ("POOL", pool.as_str()), ("RETRY", retry.as_str()), ("FILTERS_ON", on)];
            text.push_str(&fill(ROUTE_POOL, &values)?);
        }
        Ok(text)
    };
    fill(
        LISTENERS,
        &[
            ("VERSION", &version.to_string()),
            ("PORT", &port.to_string()),
            ("BUFFER_BYTES", &options.buffer_bytes.to_string()),
            ("DIR", &dir.display().to_string()),
            ("FILTERS", &filters),
            ("POOL_ROUTES_OPEN", &routes("open", &open)?),
            ("POOL_ROUTES_PROTECTED", &routes("protected", &protected)?),
            ("RETRY", retry.as_str()),
            ("OPEN", &open),
            ("PROTECTED", &protected),
        ],
    )
}

fn retry_policy(retry: &Retry) -> Result<String> {
    let mut on = retry.on.clone();
    if !retry.statuses.is_empty() {
        on.push("retriable-status-codes");
    }
    let statuses: Vec<String> = retry.statuses.iter().map(u16::to_string).collect();
    let values =
        [("ON", on.join(",")), ("STATUSES", statuses.join(", ")), ("RETRIES", retry.retries.to_string())];
    let values: Vec<(&str, &str)> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Ok(fill(RETRY, &values)?.trim_end().to_owned())
}

fn clusters(options: &Options, version: u32) -> Result<String> {
    let mut pools = String::new();
    let idle = format!("{:.3}s", options.upstream_idle.as_secs_f64());
    for (pool, endpoints) in &options.pools {
        let endpoints: Vec<String> = endpoints
            .iter()
            .map(|address| format!("{{endpoint: {{address: {}}}}}", socket(*address)))
            .collect();
        let values = [("POOL", pool.as_str()), ("ENDPOINTS", &endpoints.join(", ")), ("IDLE", &idle)];
        pools.push_str(&fill(CLUSTER_POOL, &values)?);
    }
    let ext_proc = match options.ext_proc_address.strip_prefix("unix:") {
        Some(path) => format!("{{pipe: {{path: \"{path}\"}}}}"),
        None => socket(options.ext_proc_address.parse().context("the service's address")?),
    };
    fill(CLUSTERS, &[("VERSION", &version.to_string()), ("POOLS", &pools), ("EXT_PROC_ADDRESS", &ext_proc)])
}

fn socket(address: SocketAddr) -> String {
    format!("{{socket_address: {{address: \"{}\", port_value: {}}}}}", address.ip(), address.port())
}

/// Envoy watches for renames, and must never read half a file.
fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text)?;
    std::fs::rename(&fresh, path)?;
    Ok(())
}
