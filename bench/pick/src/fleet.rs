//! What a run needs: for each strategy a pool with engines of its own, all behind one Envoy and one service, so that
//! every strategy meets the same machine at the same moment.

use crate::workload::{ENGINES, FULL, Flaw, SLOW, Workload};
use anyhow::{Context, Result};
use bench_engine::{Engine, EngineConfig, Faults};
use e2e::envoy::{Envoy, Options};
use e2e::parts;
use e2e::service::Service;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Tokens of an event after the first: enough for times of answers, and CPU left for the engines' own clocks.
const EVENT_TOKENS: u32 = 8;
/// Clock ticks of `/proc` in a second.
const TICKS: f64 = 100.0;

/// Everything that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Fleet {
    /// Where clients connect.
    pub address: SocketAddr,
    pools: Vec<Vec<Engine>>,
    service: Service,
    envoy: Envoy,
    _dir: TempDir,
}

/// CPU seconds so far of each part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    /// Envoy with the filter.
    pub envoy_s: f64,
    /// The service.
    pub service_s: f64,
    /// This process: the engines and the load.
    pub own_s: f64,
}

/// The model that is served by the pool of a strategy.
#[must_use]
pub fn model(strategy: &str) -> String {
    format!("sim-{strategy}")
}

/// The n-th strategy's pool; Envoy's configuration wants one that is called `a`.
fn pool_name(n: usize) -> String {
    (b'a'..=b'z').nth(n).map(char::from).unwrap_or('z').to_string()
}

impl Fleet {
    /// Starts engines, service and Envoy, each anew, for `workload` under each of `strategies`.
    ///
    /// # Errors
    /// When a part is missing or doesn't come up; the error shows the end of its log.
    pub async fn start(
        strategies: &[&str],
        workload: &Workload,
        engine: &EngineConfig,
        pick: &Value,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("tokenweir-pick-").tempdir()?;
        let (mut pools, mut addresses) = (Vec::new(), Vec::new());
        for (pool, strategy) in strategies.iter().enumerate() {
            let mut engines = Vec::new();
            for n in 0..ENGINES {
                let config = EngineConfig {
                    name: format!("{strategy}-{n}"),
                    model: model(strategy),
                    event_tokens: EVENT_TOKENS,
                    ..engine.clone()
                };
                let one = Engine::start(config).context("start an engine")?;
                if n == 0 {
                    one.set(|faults| spoil(faults, workload.flaw));
                }
                engines.push(one);
            }
            addresses.push((pool_name(pool), engines.iter().map(Engine::address).collect::<Vec<_>>()));
            pools.push(engines);
        }
        let mut service = Service::prepare(&dir.path().join("service"), false)?;
        service.config["pools"] =
            strategies.iter().enumerate().map(|(n, strategy)| pool(n, strategy, pick)).collect();
        let ready = |(name, list): &(String, Vec<SocketAddr>)| {
            (name.clone(), list.iter().map(|address| (*address, true)).collect())
        };
        service.write_endpoints(&addresses.iter().map(ready).collect::<Vec<_>>())?;
        service.start().await?;
        let options = Options {
            pools: addresses,
            ext_proc_address: service.grpc.clone(),
            wasm: Some(parts::wasm()?),
            ..Options::default()
        };
        let envoy = Envoy::start(&dir.path().join("envoy"), options).await?;
        Ok(Self { address: envoy.address, pools, service, envoy, _dir: dir })
    }

    /// CPU so far.
    pub fn cpu(&mut self) -> Result<Cpu> {
        let own = cpu_s(&std::process::id().to_string());
        let service = self.service.process()?.id();
        let envoy = self.envoy.process().id();
        Ok(Cpu { envoy_s: cpu_s(&envoy.to_string()), service_s: cpu_s(&service.to_string()), own_s: own })
    }

    /// Requests that each engine of each strategy's pool has had.
    #[must_use]
    pub fn requests(&self) -> Vec<Vec<usize>> {
        let of = |pool: &Vec<Engine>| pool.iter().map(|engine| engine.books().entries().len()).collect();
        self.pools.iter().map(of).collect()
    }

    /// An admin page of the service, as it is.
    ///
    /// # Errors
    /// When the service doesn't answer.
    pub async fn page(&self, path: &str) -> Result<String> {
        Ok(self.service.admin_get(path).await?.text())
    }

    /// Waits until the service has read every engine's metrics once.
    pub async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    /// Ends everything.
    ///
    /// # Errors
    /// When the service doesn't end by itself.
    pub async fn stop(mut self) -> Result<()> {
        self.envoy.process().kill()?;
        self.service.kill()?;
        self.pools.iter().flatten().for_each(Engine::stop);
        Ok(())
    }
}

fn pool(n: usize, strategy: &str, pick: &Value) -> Value {
    json!({
        "name": pool_name(n), "models": [model(strategy)], "strategy": strategy, "usage": "inject", "engine": "vllm",
        "pick": pick,
    })
}

fn spoil(faults: &mut Faults, flaw: Flaw) {
    match flaw {
        Flaw::None => {}
        Flaw::Slow => faults.slow = SLOW,
        Flaw::FullCache => faults.held_cache = FULL,
    }
}

/// User and system time of a process; 0 where it is gone.
fn cpu_s(pid: &str) -> f64 {
    let text = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    // After the name: state is field 3, user time 14, system time 15.
    let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(14) + ticks(15)) / TICKS
}
