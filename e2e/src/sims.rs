//! Simulated engines in the harness: they schedule and cache as vLLM does, fail on demand, and keep their own books.

use crate::{Harness, HarnessBuilder};
use anyhow::{Context, Result};
use bench_engine::{End, Engine, EngineConfig};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Pool `a` of simulated engines behind everything else.
#[derive(Debug)]
pub struct Sims {
    /// Behind Envoy, in order.
    pub engines: Vec<Engine>,
    harness: Harness,
}

impl Deref for Sims {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

impl DerefMut for Sims {
    fn deref_mut(&mut self) -> &mut Harness {
        &mut self.harness
    }
}

/// A small, quick engine that serves tiny-llama.
#[must_use]
pub fn tiny() -> EngineConfig {
    EngineConfig::preset("tiny").unwrap_or_default()
}

impl Sims {
    /// Starts engines with these configurations, and everything else; `pool`: members of the pool's configuration.
    pub async fn start(engines: Vec<EngineConfig>, pool: &Value) -> Result<Self> {
        Self::start_behind(engines, pool, Harness::builder(), |addresses| addresses).await
    }

    /// The same with another harness; `seen` says at which addresses Envoy and the service find the engines.
    pub async fn start_behind(
        engines: Vec<EngineConfig>,
        pool: &Value,
        builder: HarnessBuilder,
        seen: impl FnOnce(Vec<SocketAddr>) -> Vec<SocketAddr>,
    ) -> Result<Self> {
        let engines: Vec<Engine> = engines.into_iter().map(Engine::start).collect::<Result<_, _>>()?;
        let addresses = seen(engines.iter().map(Engine::address).collect());
        let mut settings =
            json!({"name": "a", "models": ["tiny-llama"], "usage": "inject", "engine": "vllm"});
        for (name, value) in pool.as_object().into_iter().flatten() {
            settings[name] = value.clone();
        }
        let builder = builder.endpoints(vec![("a".to_owned(), addresses)]).config(move |config| {
            config["pools"] = json!([settings]);
            // The engines are close and quick, and tests are short.
            config["signals"] =
                json!({"idle_ms": 200, "busy_ms": 100, "timeout_ms": 500, "models_s": 1, "stuck_s": 1});
        });
        Ok(Self { engines, harness: builder.start().await? })
    }

    /// Requests that each engine has had so far.
    #[must_use]
    pub fn asked(&self) -> Vec<usize> {
        self.engines.iter().map(|engine| engine.books().entries().len()).collect()
    }

    /// How often the engines ended the request of this id so.
    #[must_use]
    pub fn ended(&self, request_id: &str, ends: &[End]) -> usize {
        let of = |engine: &Engine| {
            let books = engine.books();
            let mine = books.entries().filter(|entry| entry.request_id.as_deref() == Some(request_id));
            mine.filter(|entry| ends.contains(&entry.end)).count()
        };
        self.engines.iter().map(of).sum()
    }

    /// What `/debug/endpoints` says of the n-th endpoint that the service was given.
    pub async fn endpoint(&mut self, address: SocketAddr) -> Result<Value> {
        let page = self.harness.service()?.admin_get("/debug/endpoints").await?.json();
        let list = page.pointer("/pools/0/endpoints").and_then(Value::as_array).context("no endpoints")?;
        let one = list.iter().find(|endpoint| endpoint["endpoint"] == address.to_string().as_str());
        one.cloned().with_context(|| format!("{address} is not in {page}"))
    }

    /// Waits until `/debug/endpoints` says `wanted` at `path` (a JSON pointer) of an endpoint.
    pub async fn wait_endpoint(&mut self, address: SocketAddr, path: &str, wanted: &str) -> Result<()> {
        let mut last = Value::Null;
        let found = crate::process::wait_for(path, Duration::from_secs(15), async || {
            last = self.endpoint(address).await.ok()?;
            (last.pointer(path).and_then(Value::as_str) == Some(wanted)).then_some(())
        });
        let found = found.await;
        found.with_context(|| format!("{wanted} at {path} of {address}; last seen: {last}"))
    }
}
