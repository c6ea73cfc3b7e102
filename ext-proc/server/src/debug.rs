//! What the admin port shows of endpoints and picks, as JSON. For people: names may change. No prompt text, no key.

use ext_proc_pick::{Candidate, Explanation, Stats};
use serde_json::{Value, json};

use crate::engines::{Engine, MODELS_SHOWN_MAX};
use crate::metrics::EndpointGauges;
use crate::pools::{Pools, Seen};

/// Endpoints of one pool that are shown.
const ENDPOINTS_SHOWN_MAX: usize = 1024;

/// Every pool and endpoint: what discovery says, what the engine said last and when, what we have in flight there.
pub(crate) fn endpoints(pools: &Pools, now_ms: u64) -> Value {
    let pool = |(name, strategy, seen): (&str, ext_proc_pick::Strategy, Vec<Seen>)| {
        let shown: Vec<Value> =
            seen.iter().take(ENDPOINTS_SHOWN_MAX).map(|seen| endpoint(seen, now_ms)).collect();
        json!({
            "pool": name,
            "strategy": strategy.as_label(),
            "endpoints": shown,
            "not_shown": seen.len().saturating_sub(ENDPOINTS_SHOWN_MAX),
        })
    };
    json!({ "pools": pools.seen(now_ms).map(pool).collect::<Vec<_>>() })
}

fn endpoint(seen: &Seen, now_ms: u64) -> Value {
    let Seen { candidate, occupancy, engine } = seen;
    json!({
        "endpoint": candidate.address.to_string(),
        "ready": candidate.ready,
        "excluded": candidate.excluded.map(ext_proc_pick::Excluded::as_label),
        "health": candidate.health.as_label(),
        "in_flight": {
            "requests": candidate.in_flight,
            "prefilling": occupancy.prefilling,
            "prefill_tokens": occupancy.prefill_tokens,
            "prefill_s": seconds(candidate.explanation.wait_s),
            "generating": occupancy.generating,
            "context_tokens": occupancy.context_tokens,
        },
        "penalty_s": seconds(candidate.explanation.penalty_s),
        "prefix_chunks": occupancy.chunks,
        "signals": signals(candidate, engine, now_ms),
    })
}

fn signals(candidate: &Candidate, engine: &Engine, now_ms: u64) -> Value {
    let age = |at_ms: u64| now_ms.saturating_sub(at_ms);
    let look = engine.look.map(|(at_ms, outcome, took)| {
        json!({"outcome": outcome, "age_ms": age(at_ms), "took_ms": took.as_millis()})
    });
    let numbers = engine.stats.as_ref().map(|(at_ms, stats)| numbers(stats, age(*at_ms)));
    let models = engine.models.as_ref().map(|(at_ms, models)| {
        let names: Vec<&str> = models.iter().map(String::as_str).take(MODELS_SHOWN_MAX).collect();
        json!({"age_ms": age(*at_ms), "names": names, "not_shown": models.len().saturating_sub(names.len())})
    });
    json!({
        "last_look": look,
        "health": engine.health.as_label(),
        "believed": hundredths(candidate.explanation.signal_weight),
        "numbers": numbers,
        "models": models,
    })
}

fn numbers(stats: &Stats, age_ms: u64) -> Value {
    let loaded = stats.lora_active.as_ref();
    json!({
        "age_ms": age_ms,
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_usage": hundredths(f64::from(stats.kv_usage)),
        "kv_capacity_tokens": stats.kv_capacity_tokens,
        "block_tokens": stats.block_tokens,
        "preemptions": stats.preemptions,
        "adapters": loaded.map(|names| names.iter().take(MODELS_SHOWN_MAX).collect::<Vec<_>>()),
        "adapters_max": stats.lora_max,
    })
}

/// What a pick knew of one endpoint.
pub(crate) fn candidate(candidate: &Candidate) -> Value {
    let Explanation { matched_tokens, uncached_tokens, signal_age_ms, signal_weight, .. } =
        candidate.explanation;
    json!({
        "endpoint": candidate.address.to_string(),
        "ready": candidate.ready,
        "excluded": candidate.excluded.map(ext_proc_pick::Excluded::as_label),
        "health": candidate.health.as_label(),
        "in_flight": candidate.in_flight,
        "matched_tokens": matched_tokens,
        "uncached_tokens": uncached_tokens,
        "cost_s": costs(&candidate.explanation),
        "signal_age_ms": signal_age_ms,
        "signal_believed": hundredths(signal_weight),
    })
}

fn costs(explanation: &Explanation) -> Value {
    let Explanation { prefill_s, wait_s, foreign_s, kv_wait_s, decode_s, .. } = *explanation;
    let Explanation { evicting_s, lora_s, penalty_s, total_s, .. } = *explanation;
    json!({
        "prefill": seconds(prefill_s),
        "wait": seconds(wait_s),
        "foreign": seconds(foreign_s),
        "kv_wait": seconds(kv_wait_s),
        "decode": seconds(decode_s),
        "evicting": seconds(evicting_s),
        "lora": seconds(lora_s),
        "penalty": seconds(penalty_s),
        "total": seconds(total_s),
    })
}

/// Whole microseconds: what lies below is noise.
fn seconds(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// The gauges of one endpoint.
pub(crate) fn gauges(seen: &Seen, now_ms: u64) -> EndpointGauges {
    let Seen { candidate, occupancy, engine } = seen;
    let stats = engine.stats.as_ref().map(|(_, stats)| stats);
    EndpointGauges {
        in_flight: candidate.in_flight,
        prefill_tokens: occupancy.prefill_tokens,
        health: candidate.health.as_label(),
        penalised: candidate.explanation.penalty_s > 0.0,
        signal_age_ms: engine.stats.as_ref().map(|(at_ms, _)| now_ms.saturating_sub(*at_ms)),
        running: stats.map(|stats| stats.running),
        waiting: stats.map(|stats| stats.waiting),
        kv_usage: stats.map(|stats| stats.kv_usage),
    }
}
