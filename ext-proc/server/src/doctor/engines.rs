//! The engines: whether each endpoint answers, serves the models of its pool, and can be watched.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::task::JoinSet;

use super::probe::{self, NoAnswer};
use super::signals;
use super::{Finding, Level, Report};
use crate::config::{Config, EngineKind, PoolConfig};
use crate::endpoints::{EndpointEntry, Endpoints};

/// Most endpoints asked at once.
const ASKED_AT_ONCE: usize = 16;

/// Most endpoints asked of one pool: a sample tells what is wrong with a large one.
const ASKED_MAX: usize = 256;

/// `counted`: the metrics of a `tokenweir` that runs here.
pub(super) async fn examine(
    config: &Config,
    endpoints: &Endpoints,
    counted: Option<&str>,
    report: &mut Report,
) {
    for pool in &config.pools {
        let entries = endpoints.of(&pool.name);
        if !entries.iter().any(|entry| entry.ready) {
            let advice = "requests to it are answered 503; list one in the endpoints file, or set it ready";
            report.add(Level::Warn, format!("pool {}", pool.name), "has no ready endpoint", advice);
        }
        let watched = config.signals.enabled && pool.engine == EngineKind::Vllm;
        report.findings.extend(ask_all(pool, entries, watched).await);
        if let Some(more) = entries.len().checked_sub(ASKED_MAX).filter(|more| *more > 0) {
            report.add(
                Level::Skip,
                format!("pool {}", pool.name),
                format!("{more} more endpoints were not asked"),
                "",
            );
        }
        if pool.engine == EngineKind::Vllm {
            signals::prompt_details(pool, counted, report);
        }
    }
}

/// Findings in the order of `entries`.
async fn ask_all(pool: &PoolConfig, entries: &[EndpointEntry], watched: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for group in entries.iter().take(ASKED_MAX).copied().collect::<Vec<_>>().chunks(ASKED_AT_ONCE) {
        let mut asked = JoinSet::new();
        for (place, entry) in group.iter().copied().enumerate() {
            let pool = pool.clone();
            asked.spawn(async move {
                let served = ask(&pool, entry).await;
                let signals = if watched { signals::ask(&pool, entry.address).await } else { None };
                (place, served, signals)
            });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(place, ..)| *place);
        findings
            .extend(answers.into_iter().flat_map(|(_, served, signals)| [Some(served), signals]).flatten());
    }
    findings
}

async fn ask(pool: &PoolConfig, entry: EndpointEntry) -> Finding {
    let EndpointEntry { address, ready } = entry;
    let subject = format!("endpoint {address} of pool {}", pool.name);
    // What is not to be chosen may be away.
    let amiss = if ready { Level::Fail } else { Level::Warn };
    let finding = |level, what: String, advice: &str| {
        let advice = advice.to_owned();
        Finding { level, subject, what, advice }
    };
    match models(address).await {
        Ok(served) => {
            let missing: Vec<_> =
                pool.models.iter().filter(|model| !served.contains(*model)).cloned().collect();
            if missing.is_empty() {
                finding(Level::Ok, format!("answers and serves {}", pool.models.join(", ")), "")
            } else {
                let advice = "start the engine with --served-model-name, or correct pools[].models";
                finding(amiss, format!("answers, but does not list {}", missing.join(", ")), advice)
            }
        }
        Err(what) => finding(amiss, what, "start the engine, correct its address, or set ready: false"),
    }
}

/// The model names that an endpoint lists.
async fn models(address: SocketAddr) -> Result<BTreeSet<String>, String> {
    let (status, body) = probe::get(address, "/v1/models").await.map_err(|error| match error {
        NoAnswer::Refused => "refuses connections".to_owned(),
        NoAnswer::Silent(why) => format!("does not answer: {why}"),
    })?;
    if status != 200 {
        return Err(format!("answers {status} to GET /v1/models"));
    }
    let list: Value =
        serde_json::from_slice(&body).map_err(|_| "answers GET /v1/models without JSON".to_owned())?;
    let entries = list.get("data").and_then(Value::as_array).into_iter().flatten();
    Ok(entries.filter_map(|entry| entry.get("id")?.as_str().map(str::to_owned)).collect())
}
