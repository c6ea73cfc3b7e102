//! All parts together: engines, the service, Envoy. Everything ends with the harness; a failed test shows the logs.

use crate::client::{self, Call, Reply};
use crate::engine::Engine;
use crate::envoy::{Envoy, Options};
use crate::parts;
use crate::service::Service;
use anyhow::{Context, Result};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use tempfile::TempDir;

type Change = Box<dyn FnOnce(&mut Service) + Send>;

/// What to start. The default: two engines in pool `a`, one in pool `b`, the service on TCP, Envoy with both filters.
pub struct HarnessBuilder {
    engines: Vec<(String, usize)>,
    with_service: bool,
    uds: bool,
    wasm: bool,
    envoy: Options,
    changes: Vec<Change>,
    others: Vec<(String, Vec<SocketAddr>)>,
}

impl Default for HarnessBuilder {
    fn default() -> Self {
        let engines = vec![("a".to_owned(), 2), ("b".to_owned(), 1)];
        Self {
            engines,
            with_service: true,
            uds: false,
            wasm: true,
            envoy: Options::default(),
            changes: Vec::new(),
            others: Vec::new(),
        }
    }
}

impl HarnessBuilder {
    /// How many engines each pool has.
    #[must_use]
    pub fn engines(mut self, pools: &[(&str, usize)]) -> Self {
        self.engines = pools.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        self
    }

    /// Engines of another kind, which run already: these pools and no others.
    #[must_use]
    pub fn endpoints(mut self, pools: Vec<(String, Vec<SocketAddr>)>) -> Self {
        self.engines.clear();
        self.others = pools;
        self
    }

    /// Envoy and engines only: no service and no filter. Only `open.local` has routes that lead anywhere.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.with_service = false;
        self.wasm = false;
        self.envoy.ext_proc = false;
        self
    }

    /// Something else in the service's place.
    #[must_use]
    pub fn service_at(mut self, address: SocketAddr) -> Self {
        self.with_service = false;
        self.envoy.ext_proc_address = address.to_string();
        self
    }

    /// Without the wasm filter.
    #[must_use]
    pub fn without_filter(mut self) -> Self {
        self.wasm = false;
        self
    }

    /// A Unix socket between Envoy and the service.
    #[must_use]
    pub fn over_unix_socket(mut self) -> Self {
        self.uds = true;
        self
    }

    /// Changes Envoy's configuration.
    #[must_use]
    pub fn envoy(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.envoy);
        self
    }

    /// Changes the service's configuration before it starts.
    #[must_use]
    pub fn config(self, change: impl FnOnce(&mut Value) + Send + 'static) -> Self {
        self.service(|service| change(&mut service.config))
    }

    /// Changes the service before it starts: its binary, its environment.
    #[must_use]
    pub fn service(mut self, change: impl FnOnce(&mut Service) + Send + 'static) -> Self {
        self.changes.push(Box::new(change));
        self
    }

    /// Starts everything, in the order engines, service, Envoy.
    pub async fn start(mut self) -> Result<Harness> {
        raise_file_limit();
        let dir = tempfile::Builder::new().prefix("tokenweir-e2e-").tempdir()?;
        let mut engines = Vec::new();
        for (pool, count) in &self.engines {
            for n in 0..*count {
                let engine = Engine::start(&format!("{pool}{n}"))?;
                // Pool `a` serves tiny-llama; every other pool its own model.
                if pool != "a" {
                    engine.set(|settings| settings.models = vec![format!("tiny-{pool}")]);
                }
                engines.push((pool.clone(), engine));
            }
        }
        self.envoy.pools = pools_of(&self.engines, &engines);
        self.envoy.pools.append(&mut self.others);
        let mut service = None;
        if self.with_service {
            let mut prepared = Service::prepare(&dir.path().join("service"), self.uds)?;
            for change in self.changes.drain(..) {
                change(&mut prepared);
            }
            let ready = |(name, list): &(String, Vec<SocketAddr>)| {
                (name.clone(), list.iter().map(|address| (*address, true)).collect())
            };
            let endpoints: Vec<(String, Vec<(SocketAddr, bool)>)> =
                self.envoy.pools.iter().map(ready).collect();
            prepared.write_endpoints(&endpoints)?;
            prepared.start().await?;
            self.envoy.ext_proc_address.clone_from(&prepared.grpc);
            service = Some(prepared);
        }
        if self.wasm {
            self.envoy.wasm = Some(parts::wasm()?);
        }
        let envoy = Envoy::start(&dir.path().join("envoy"), self.envoy).await?;
        Ok(Harness { engines, service, envoy, dir: Some(dir) })
    }
}

fn pools_of(wanted: &[(String, usize)], engines: &[(String, Engine)]) -> Vec<(String, Vec<SocketAddr>)> {
    let addresses = |name: &String| {
        engines.iter().filter(|(pool, _)| pool == name).map(|(_, engine)| engine.address).collect()
    };
    wanted.iter().map(|(name, _)| (name.clone(), addresses(name))).collect()
}

/// The running whole.
#[derive(Debug)]
pub struct Harness {
    /// Pool and engine, in order.
    pub engines: Vec<(String, Engine)>,
    service: Option<Service>,
    pub envoy: Envoy,
    dir: Option<TempDir>,
}

impl Harness {
    /// Two engines in pool `a`, one in `b`, everything else as the product ships it.
    #[must_use]
    pub fn builder() -> HarnessBuilder {
        HarnessBuilder::default()
    }

    /// The service.
    pub fn service(&mut self) -> Result<&mut Service> {
        self.service.as_mut().context("this harness has no service")
    }

    /// The n-th engine.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn engine(&self, n: usize) -> &Engine {
        &self.engines[n].1
    }

    /// The n-th engine, to stop or start it.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn engine_mut(&mut self, n: usize) -> &mut Engine {
        &mut self.engines[n].1
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.envoy.address
    }

    /// One call through Envoy.
    pub async fn send(&self, call: Call) -> Result<Reply> {
        client::send(self.envoy.address, call).await
    }

    /// Requests that reached any engine, and how many of them without a verdict.
    #[must_use]
    pub fn reached(&self) -> (usize, usize) {
        let books: Vec<_> = self.engines.iter().map(|(_, engine)| engine.books()).collect();
        (books.iter().map(|b| b.entries().len()).sum(), books.iter().map(|b| b.without_verdict()).sum())
    }

    /// Rewrites the service's endpoints file: for each engine in order whether it is ready.
    pub fn set_ready(&mut self, ready: &[bool]) -> Result<()> {
        let mut pools: Vec<(String, Vec<(SocketAddr, bool)>)> = Vec::new();
        for (index, (pool, engine)) in self.engines.iter().enumerate() {
            let one = (engine.address, ready.get(index).copied().unwrap_or(true));
            match pools.iter_mut().find(|(name, _)| name == pool) {
                Some((_, list)) => list.push(one),
                None => pools.push((pool.clone(), vec![one])),
            }
        }
        self.service()?.write_endpoints(&pools)
    }

    /// The folder with configurations and logs.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.dir.as_ref().map(|dir| dir.path().to_path_buf()).unwrap_or_default()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        if let Some(service) = &self.service {
            eprintln!("{}", service.log_tail());
        }
        eprintln!("{}", self.envoy.process().tail());
        if let Some(dir) = self.dir.take() {
            eprintln!("kept for a look: {}", dir.keep().display());
        }
    }
}

/// Thousands of streams need thousands of sockets; Envoy inherits the limit.
pub fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused: then the old limit stays, and a big test says so.
    let _ = setrlimit(Resource::Nofile, limit);
}
