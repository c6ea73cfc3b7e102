//! The `tokenweir` service as a child process: its configuration, its endpoints file, signals, metrics and records.

use crate::client::{self, Call};
use crate::metrics::Scrape;
use crate::parts;
use crate::process::{Process, free_port, wait_for};
use crate::records::Records;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::time::Duration;

/// How long the service may take to become ready.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// The service, running or not. Its ports, configuration and state folder outlive its process.
#[derive(Debug)]
pub struct Service {
    dir: PathBuf,
    process: Option<Process>,
    /// More environment variables, `RUST_LOG` for one.
    pub env: Vec<(String, String)>,
    /// What Envoy dials: `127.0.0.1:50051` or `unix:/path`.
    pub grpc: String,
    pub admin: SocketAddr,
    /// The whole of `tokenweir.yaml`, as data: JSON is YAML. A test changes what it needs.
    pub config: Value,
    /// Another binary than the usual one.
    pub binary: Option<PathBuf>,
}

impl Service {
    /// Prepares a service in `dir`; `uds` chooses a Unix socket between Envoy and the service. Nothing runs yet.
    pub fn prepare(dir: &Path, uds: bool) -> Result<Self> {
        std::fs::create_dir_all(dir.join("state"))?;
        let grpc = if uds {
            format!("unix:{}", dir.join("grpc.sock").display())
        } else {
            format!("127.0.0.1:{}", free_port()?)
        };
        let admin = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let config = json!({
            "listen": {"grpc": grpc, "admin": admin.to_string()},
            "replica": "tokenweir-0",
            "state_dir": dir.join("state").display().to_string(),
            "tenant": {"header": "x-tenant", "trusted": true, "default": "anonymous"},
            "drain": {"delay_s": 0, "grace_s": 20},
            "pools": [
                {"name": "a", "models": ["tiny-llama"], "strategy": "round_robin", "usage": "inject", "engine": "vllm"},
                {"name": "b", "models": ["tiny-b"], "strategy": "least_request", "usage": "inject", "engine": "vllm"},
            ],
            "endpoints": {"file": dir.join("endpoints.yaml").display().to_string(), "poll_ms": 50},
        });
        Ok(Self { dir: dir.to_path_buf(), process: None, env: Vec::new(), grpc, admin, config, binary: None })
    }

    /// Writes the endpoints file by rename: name, and for each endpoint its address and whether it is ready.
    pub fn write_endpoints(&self, pools: &[(String, Vec<(SocketAddr, bool)>)]) -> Result<()> {
        let mut document = serde_json::Map::new();
        for (pool, endpoints) in pools {
            let list: Vec<Value> = endpoints
                .iter()
                .map(|(address, ready)| {
                    if *ready {
                        json!({"address": address.to_string()})
                    } else {
                        json!({"address": address.to_string(), "ready": false})
                    }
                })
                .collect();
            document.insert(pool.clone(), Value::Array(list));
        }
        let path = self.dir.join("endpoints.yaml");
        let fresh = self.dir.join("endpoints.fresh");
        std::fs::write(&fresh, json!({"pools": document}).to_string())?;
        Ok(std::fs::rename(fresh, path)?)
    }

    fn write_config(&self) -> Result<String> {
        let path = self.dir.join("tokenweir.yaml");
        std::fs::write(&path, serde_json::to_string_pretty(&self.config)?)?;
        Ok(path.display().to_string())
    }

    /// Starts it (again), with the same ports and state, and waits until it is ready.
    pub async fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_ready().await
    }

    /// Starts it without waiting.
    pub fn spawn(&mut self) -> Result<()> {
        let binary = self.binary.clone().map_or_else(parts::tokenweir, Ok)?;
        let path = self.write_config()?;
        let env: Vec<(&str, &str)> =
            self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let args = ["serve", "--config", &path];
        self.process =
            Some(Process::start("tokenweir", &binary, &args, &env, &self.dir.join("tokenweir.log"))?);
        Ok(())
    }

    /// Waits for `/readyz`.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let admin = self.admin;
        let process = self.process.as_mut().context("the service is not running")?;
        let ready = wait_for("/readyz of the service", READY_LIMIT, async || {
            if !matches!(process.ended(), Ok(None)) {
                return Some(false);
            }
            let call = Call::get("/readyz").within(Duration::from_secs(2));
            let reply = client::send(admin, call).await.ok()?;
            (reply.status == 200).then_some(true)
        });
        if ready.await.unwrap_or(false) {
            return Ok(());
        }
        bail!("the service did not become ready\n{}", self.log_tail())
    }

    /// `tokenweir COMMAND --config …` with the present configuration: `check`, `doctor`.
    pub fn command(&self, command: &str) -> Result<Output> {
        let path = self.write_config()?;
        let mut run = std::process::Command::new(parts::tokenweir()?);
        Ok(run.args([command, "--config", &path]).env_clear().output()?)
    }

    /// The child process, if it runs.
    pub fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("the service is not running")
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process()?.kill()?;
        self.process = None;
        Ok(())
    }

    /// SIGSTOP: it still accepts connections, and answers nothing.
    pub fn freeze(&mut self) -> Result<()> {
        self.process()?.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn thaw(&mut self) -> Result<()> {
        self.process()?.signal(Signal::CONT)
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&mut self) -> Result<()> {
        self.process()?.signal(Signal::TERM)
    }

    /// SIGTERM, and waits for the end.
    pub async fn stop(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.terminate()?;
        let status = self.process()?.wait(limit).await?;
        self.process = None;
        Ok(status)
    }

    /// A GET on the admin port.
    pub async fn admin_get(&self, path: &str) -> Result<client::Reply> {
        client::send(self.admin, Call::get(path)).await
    }

    /// `/metrics`, read.
    pub async fn metrics(&self) -> Result<Scrape> {
        Ok(Scrape::parse(&self.admin_get("/metrics").await?.text()))
    }

    /// Where the exchange log lies.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("state/exchanges.jsonl")
    }

    /// The exchange log.
    #[must_use]
    pub fn records(&self) -> Records {
        Records::read(&self.log_path())
    }

    /// Waits until `enough` holds of the log.
    pub async fn records_when(
        &self,
        what: &str,
        limit: Duration,
        enough: impl Fn(&Records) -> bool,
    ) -> Result<Records> {
        let found = wait_for(what, limit, async || {
            let records = self.records();
            enough(&records).then_some(records)
        });
        found.await.with_context(|| {
            let records = self.records();
            let last: Vec<String> =
                records.all.iter().rev().take(5).map(|record| format!("{record:?}")).collect();
            format!(
                "{} lines in the log, bad: {:?}, the last:\n{}",
                records.all.len(),
                records.bad,
                last.join("\n")
            )
        })
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let path = self.dir.join("tokenweir.log");
        format!("--- {} ---\n{}", path.display(), crate::process::tail(&path))
    }

    /// Its whole log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("tokenweir.log")).unwrap_or_default()
    }

    /// The key that it seals exchange tokens with.
    pub fn token_key(&self) -> Result<Vec<u8>> {
        std::fs::read(self.dir.join("state/token.key")).context("the service's token key")
    }

    /// The folder of its configuration and state.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}
