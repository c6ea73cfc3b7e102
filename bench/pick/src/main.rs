//! `cargo xtask bench pick`: what a strategy of the pick is worth, workload by workload, against the others.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bench_engine::EngineConfig;
use bench_pick::drive::{Pace, drive};
use bench_pick::fleet::{Cpu, Fleet, model};
use bench_pick::plan::Plan;
use bench_pick::summary::{Objective, Summary};
use bench_pick::tables::{self, BySeed};
use bench_pick::wire::Target;
use bench_pick::workload::{Kind, WORKLOADS, Workload};
use bench_result::{Report, tell};
use clap::Parser;
use serde_json::{Value, json};

/// What is compared with all others.
const OURS: &str = "least_work";
/// Seconds of engine time in which requests come; conversations need longer to be told.
const SPAN_S: f64 = 14.0;
const TURNS_SPAN_S: f64 = 18.0;
/// Seconds of those in which caches and batches fill; requests of this time are sent and not counted.
const WARM_S: f64 = 4.0;
/// Seconds of engine time after which an answer counts as failed.
const LIMIT_S: f64 = 10.0;
/// Lateness of the load that makes a run worthless, seconds of engine time.
const LATE_S: f64 = 0.05;

/// Strategies of the pick, the same load for each.
#[derive(Parser)]
struct Arguments {
    /// Where the result is written, as JSON; without it to bench/results/pick.json.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Seeds of the loads.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// One seed, two thirds of the time.
    #[arg(long)]
    quick: bool,
    /// Only workloads whose name begins so.
    #[arg(long, default_value = "")]
    only: String,
    /// Strategies, each with engines of its own.
    #[arg(long, value_delimiter = ',', default_value = "least_work,round_robin,least_request,prefix_only")]
    strategies: Vec<String>,
    /// The engines' step model; the service's priors are those of qwen3-32b-h100-tp2.
    #[arg(long, default_value = "qwen3-32b-h100-tp2")]
    preset: String,
    /// Seconds of engine time in a second.
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
    /// Good: seconds until the first token, at most.
    #[arg(long, default_value_t = 1.0)]
    first_s: f64,
    /// Good: mean seconds of a token, at most.
    #[arg(long, default_value_t = 0.06)]
    gap_s: f64,
    /// Members of the pools' `pick` configuration, as JSON.
    #[arg(long, default_value = "{}", value_parser = parse_json)]
    pick: Value,
    /// Prints an admin page of the service at the end of each run: /debug/picks.
    #[arg(long)]
    page: Option<String>,
}

fn parse_json(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text)
}

fn main() -> Result<()> {
    e2e::harness::raise_file_limit();
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> Result<()> {
    let seeds = if arguments.quick {
        arguments.seeds.iter().take(1).copied().collect()
    } else {
        arguments.seeds.clone()
    };
    let mut report = Report::begin("pick", &seeds);
    let objective = Objective { first_s: arguments.first_s, gap_s: arguments.gap_s };
    report.raw("objective", json!({"ttft_s": objective.first_s, "gap_s": objective.gap_s}));
    report.raw("engines", json!({"preset": arguments.preset, "time_scale": arguments.time_scale}));
    let begun = Instant::now();
    let mut results: BTreeMap<String, BySeed> = BTreeMap::new();
    let mut runs = Vec::new();
    for workload in WORKLOADS.iter().filter(|one| one.name.starts_with(&arguments.only)) {
        let all = results.entry(workload.name.to_owned()).or_default();
        for seed in &seeds {
            let run = Run::of(arguments, workload, objective, *seed)?;
            let (summaries, note) = run.go(arguments).await.with_context(|| workload.name)?;
            runs.push(note);
            for (strategy, summary) in arguments.strategies.iter().zip(summaries) {
                all.entry(strategy.clone()).or_default().push(summary);
            }
        }
        tell(&tables::summaries(workload.name, all, &seeds));
    }
    tell(&tables::advantages(OURS, &results));
    for (workload, all) in &results {
        let Some(ours) = all.get(OURS) else { continue };
        for (rival, theirs) in all.iter().filter(|(strategy, _)| *strategy != OURS) {
            for measure in tables::MEASURES {
                let name = format!("{workload}_{}_vs_{rival}", measure.0);
                report.figure(&name, tables::advantage(ours, theirs, measure), "ratio");
            }
        }
    }
    report.raw("runs", Value::Array(runs));
    tell(&format!("took {:.0} s", begun.elapsed().as_secs_f64()));
    report.finish(arguments.json.as_deref())
}

/// One workload, one seed, all strategies at the same time.
struct Run<'a> {
    workload: &'a Workload,
    seed: u64,
    engine: EngineConfig,
    objective: Objective,
    rate: f64,
    sessions: usize,
    span_s: f64,
}

impl<'a> Run<'a> {
    fn of(arguments: &Arguments, workload: &'a Workload, objective: Objective, seed: u64) -> Result<Self> {
        let mut engine = EngineConfig::preset(&arguments.preset)
            .with_context(|| format!("--preset {}: no such step model", arguments.preset))?;
        engine.time_scale = arguments.time_scale;
        let gap_s = objective.gap_s;
        engine.blocks = workload.cache_tokens(&engine.speed, gap_s) / engine.block_tokens + 1;
        let span_s = if matches!(workload.kind, Kind::Turns { .. }) { TURNS_SPAN_S } else { SPAN_S };
        Ok(Self {
            workload,
            seed,
            rate: workload.rate(&engine.speed, gap_s),
            sessions: workload.sessions(&engine.speed, gap_s),
            span_s: if arguments.quick { span_s / 1.5 } else { span_s },
            objective,
            engine,
        })
    }

    async fn go(&self, arguments: &Arguments) -> Result<(Vec<Summary>, Value)> {
        let strategies: Vec<&str> = arguments.strategies.iter().map(String::as_str).collect();
        let plan = Plan::draw(self.workload, self.rate, self.sessions, self.span_s, self.seed);
        let mut fleet = Fleet::start(&strategies, self.workload, &self.engine, &arguments.pick).await?;
        fleet.settle().await;
        let before = fleet.cpu()?;
        let begun = tokio::time::Instant::now();
        let pace = Pace { start: begun, scale: arguments.time_scale, span_s: self.span_s, limit_s: LIMIT_S };
        let lanes: Vec<_> = strategies
            .iter()
            .map(|strategy| Arc::new(Target::new(fleet.address, &model(strategy))))
            .map(|target| tokio::spawn(drive(plan.clone(), target, pace)))
            .collect();
        let mut summaries = Vec::new();
        for lane in lanes {
            summaries.push(Summary::of(&lane.await?, WARM_S, self.span_s, self.objective));
        }
        let took_s = begun.elapsed().as_secs_f64();
        let cpu = share(fleet.cpu()?, before, took_s);
        let late = summaries.iter().map(|summary| summary.late_p99_s).fold(0.0, f64::max);
        let requests = fleet.requests();
        tell(&format!(
            "# {} seed {}: {:.1} req/s each, {} conversations, cache {} tokens; took {took_s:.1} s, late p99 {:.0} ms, \
             cores: Envoy {:.2}, service {:.2}, engines and load {:.2}; load average {}; per engine {requests:?}{}",
            self.workload.name,
            self.seed,
            self.rate,
            self.sessions,
            self.engine.blocks * self.engine.block_tokens,
            late * 1000.0,
            cpu.envoy_s,
            cpu.service_s,
            cpu.own_s,
            bench_result::machine::load(),
            if late > LATE_S { " !!! LATE: this run says little" } else { "" },
        ));
        if let Some(page) = &arguments.page {
            tell(&fleet.page(page).await?);
        }
        ensure!(summaries.iter().all(|summary| summary.count > 0), "nothing was asked");
        let by_strategy: serde_json::Map<String, Value> = strategies
            .iter()
            .zip(&summaries)
            .map(|(strategy, summary)| ((*strategy).to_owned(), summary.to_json()))
            .collect();
        let note = json!({
            "workload": self.workload.name, "seed": self.seed, "rate_per_s": self.rate,
            "conversations": self.sessions, "cache_tokens": self.engine.blocks * self.engine.block_tokens,
            "warm_s": WARM_S, "span_s": self.span_s, "took_s": took_s, "late_p99_s": late, "load_average": bench_result::machine::load(),
            "cores": {"envoy": cpu.envoy_s, "service": cpu.service_s, "engines_and_load": cpu.own_s},
            "requests_per_engine": requests, "strategies": by_strategy,
        });
        fleet.stop().await?;
        Ok((summaries, note))
    }
}

/// Cores in use between two looks.
fn share(now: Cpu, before: Cpu, took_s: f64) -> Cpu {
    Cpu {
        envoy_s: (now.envoy_s - before.envoy_s) / took_s,
        service_s: (now.service_s - before.service_s) / took_s,
        own_s: (now.own_s - before.own_s) / took_s,
    }
}
