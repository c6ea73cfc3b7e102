//! What is known of an endpoint from outside: discovery's word, and what the engine says of itself.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// An endpoint as discovery knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address exactly as Envoy knows it.
    pub address: SocketAddr,
    /// Discovery's word. `false`: never picked.
    pub ready: bool,
}

/// How an engine is, judged from its signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Nothing is known (yet, or any more).
    #[default]
    Unknown,
    /// It answers and makes progress.
    Ready,
    /// Its signals can't be had because nobody answers there.
    Unreachable,
    /// The engine sleeps: requests would hang. Never picked.
    Sleeping,
    /// The engine was paused: requests would hang until it goes on.
    Paused,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It has requests and generates nothing.
    Stuck,
}

impl Health {
    /// Stable label.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Ready => "ready",
            Self::Unreachable => "unreachable",
            Self::Sleeping => "sleeping",
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::Stuck => "stuck",
        }
    }
}

/// An engine's own numbers. They contain our requests and everybody else's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests that wait for a place in it.
    pub waiting: u32,
    /// Share of the KV cache that running requests hold, 0 to 1.
    pub kv_usage: f32,
    /// Size of the KV cache in tokens.
    pub kv_capacity_tokens: Option<u64>,
    /// Tokens a cache block.
    pub block_tokens: Option<u32>,
    /// Preemptions since the engine's start.
    pub preemptions: Option<u64>,
    /// Adapters with running or waiting requests.
    pub lora_active: Option<Arc<BTreeSet<String>>>,
    /// Most adapters in one batch.
    pub lora_max: Option<u32>,
}

/// One look at an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// How it is.
    pub health: Health,
    /// Its numbers; `None` when this look brought none.
    pub stats: Option<Stats>,
    /// Names of the models and adapters it serves; `None` when this look brought no list, empty when
    /// what was known of it holds no longer.
    pub models: Option<Arc<BTreeSet<String>>>,
}
