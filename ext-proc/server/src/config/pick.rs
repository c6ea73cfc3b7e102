//! `pools[].pick`: what a pool's choice of an endpoint goes by.

use ext_proc_pick::{Settings, Speed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::signals::Signals;
use super::{Check, EngineKind, PoolFile, Strategy};

/// What the choice of an endpoint goes by.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PickFile {
    /// Age in milliseconds until which an engine's signals are fully believed. At four times this age they count for
    /// nothing, and the pool's mean stands in.
    #[schemars(range(min = 500, max = 60_000))]
    pub stale_ms: u64,
    /// Share of requests that go elsewhere by chance, so that every endpoint stays known.
    #[schemars(range(min = 0.0, max = 0.1))]
    pub exploration: f64,
    /// Milliseconds that an endpoint is last after it refused or failed a request; 0: never. It doubles with each failure
    /// in a row. A longer `retry-after` of the engine counts instead.
    #[schemars(range(min = 0, max = 60_000))]
    pub penalty_ms: u64,
    /// Bytes of prompt a token, until the engines' own counts have taught better.
    #[schemars(range(min = 1.0, max = 16.0))]
    pub bytes_per_token: f64,
    /// Generated tokens a request, until learned.
    #[schemars(range(min = 1.0, max = 100_000.0))]
    pub output_tokens: f64,
    /// Tokens in an engine's KV cache, until its signals tell.
    #[schemars(range(min = 1_000, max = 100_000_000))]
    pub kv_capacity_tokens: u64,
    /// Milliseconds that it takes an engine to load an adapter (LoRA).
    #[schemars(range(min = 0, max = 60_000))]
    pub lora_load_ms: u64,
    /// Pieces of prompts that are remembered over all endpoints of the pool, about 100 bytes each; 0: none.
    #[schemars(range(min = 0, max = 16_777_216))]
    pub prefix_chunks_max: u64,
    /// How fast the engines are.
    pub speed: SpeedFile,
}

/// How fast the engines are thought to be. A step takes `step_ms`, and more for what is computed in it. The defaults are a
/// 32B model on two H100; where all engines of a pool are alike, only ratios matter.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpeedFile {
    /// Milliseconds of a step by itself.
    #[schemars(range(min = 0.0, max = 10_000.0))]
    pub step_ms: f64,
    /// Microseconds a prompt token that is computed.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub prefill_us: f64,
    /// Nanoseconds a prompt token that is computed and token before it.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub attention_ns: f64,
    /// Microseconds a stream that generates, in each step.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub stream_us: f64,
    /// Microseconds a token of context, in each step.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub context_us: f64,
}

/// What a pool picks by.
pub(super) fn checked(strategy: Strategy, raw: &PickFile) -> Settings {
    let strategy = match strategy {
        Strategy::LeastWork => ext_proc_pick::Strategy::LeastWork,
        Strategy::PrefixOnly => ext_proc_pick::Strategy::PrefixOnly,
        Strategy::LeastRequest => ext_proc_pick::Strategy::LeastRequest,
        Strategy::RoundRobin => ext_proc_pick::Strategy::RoundRobin,
        Strategy::Random => ext_proc_pick::Strategy::Random,
    };
    let speed = Speed {
        c0: raw.speed.step_ms * 1e-3,
        c_p: raw.speed.prefill_us * 1e-6,
        c_a: raw.speed.attention_ns * 1e-9,
        c_b: raw.speed.stream_us * 1e-6,
        c_kv: raw.speed.context_us * 1e-6,
    };
    Settings {
        strategy,
        stale_ms: raw.stale_ms,
        exploration: raw.exploration,
        penalty_ms: raw.penalty_ms,
        speed,
        bytes_per_token: raw.bytes_per_token,
        output_tokens: raw.output_tokens,
        kv_capacity_tokens: raw.kv_capacity_tokens,
        // The schema's range keeps it far inside.
        lora_load_s: f64::from(u32::try_from(raw.lora_load_ms).unwrap_or(u32::MAX)) * 1e-3,
        chunks_max: usize::try_from(raw.prefix_chunks_max).unwrap_or(usize::MAX),
    }
}

/// Signals that come more rarely than they go stale are always stale.
pub(super) fn check(pools: &[(usize, PoolFile)], signals: &Signals, check: &mut Check<'_, '_>) {
    let idle_ms = signals.idle.as_millis();
    for (index, pool) in pools {
        let watched = signals.enabled && pool.engine == EngineKind::Vllm;
        if watched && u128::from(pool.pick.stale_ms) < idle_ms {
            let what = format!("is {} ms, shorter than signals.idle_ms ({idle_ms} ms)", pool.pick.stale_ms);
            let advice = "make it at least as long, or an idle endpoint's signals are always stale";
            check.error(&format!("/pools/{index}/pick/stale_ms"), what, advice);
        }
    }
}
