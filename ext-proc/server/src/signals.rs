//! The engines' signals: whose are looked at, and where what they tell goes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ext_proc_pick::Observation;
use ext_proc_signals::{Kind, Outcome, Settings, Sink, Target};

use crate::config::{Config, EngineKind, PoolConfig, Signals};
use crate::endpoints::Endpoints;
use crate::pools::Pools;

/// Every endpoint that is looked at: those of vLLM pools, also the ones that are not ready, so that they are known once
/// they are.
pub(crate) fn targets(config: &Config, endpoints: &Endpoints) -> Arc<Vec<Target>> {
    let watched = |pool: &&PoolConfig| config.signals.enabled && pool.engine == EngineKind::Vllm;
    let of_pool = |pool: &PoolConfig| {
        let name: Arc<str> = pool.name.as_str().into();
        let target = move |address| Target { pool: Arc::clone(&name), address, kind: Kind::Vllm };
        endpoints.of(&pool.name).iter().map(move |entry| target(entry.address))
    };
    Arc::new(config.pools.iter().filter(watched).flat_map(of_pool).collect())
}

/// How often, and how patiently.
pub(crate) fn settings(signals: &Signals) -> Settings {
    Settings {
        idle: signals.idle,
        busy: signals.busy,
        within: signals.timeout,
        models_every: signals.models,
        stuck_after: signals.stuck,
    }
}

impl Sink for Pools {
    fn observe(&self, pool: &str, address: SocketAddr, observation: Observation) {
        self.take_look(pool, address, observation);
    }

    fn in_flight(&self, pool: &str, address: SocketAddr) -> u32 {
        self.in_flight_on(pool, address)
    }

    fn scraped(&self, pool: &str, address: SocketAddr, outcome: Outcome, took: Duration) {
        if outcome == Outcome::Restarted {
            self.forget_cache(pool, address);
        }
        self.note_look(pool, address, outcome.as_label(), took);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_endpoints_of_vllm_pools_are_looked_at_and_none_when_signals_are_off() {
        let parse = |more: &str| {
            let text = format!(
                "pools: [{{name: a, models: [m]}}, {{name: b, models: [n], engine: openai}}]\nendpoints: {{file: e.yaml}}\n{more}"
            );
            Config::parse(&text, Path::new("tokenweir.yaml")).expect("valid")
        };
        let config = parse("");
        let text = "pools: {a: [{address: '127.0.0.1:1'}, {address: '127.0.0.1:2', ready: false}], b: [{address: '127.0.0.1:3'}]}";
        let endpoints = Endpoints::parse(text, Path::new("e.yaml"), &config).expect("valid");
        let ports: Vec<_> = targets(&config, &endpoints)
            .iter()
            .map(|t| (t.pool.to_string(), t.address.port(), t.kind))
            .collect();
        assert_eq!(ports, [("a".to_owned(), 1, Kind::Vllm), ("a".to_owned(), 2, Kind::Vllm)]);
        assert!(targets(&parse("signals: {enabled: false}"), &endpoints).is_empty());
    }

    #[test]
    fn both_crates_have_the_same_defaults() {
        let text = "pools: [{name: a, models: [m]}]\nendpoints: {file: e.yaml}\n";
        let config = Config::parse(text, Path::new("tokenweir.yaml")).expect("valid");
        assert_eq!(settings(&config.signals), Settings::default());
    }
}
