//! Requests per second through Envoy with and without Tokenweir: the same small chats through bare Envoy, through Envoy with
//! the service, and with service and filter, in turns, so that a noisy machine is noisy for all three. It reports; it
//! asserts only that every answer was whole. `cargo xtask bench throughput` builds what it needs.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::Harness;
use e2e::bodies::{Wish, chat};
use e2e::client::load::{Until, run};
use e2e::client::{Call, Reply};
use serde_json::{Value, json};

const CONNECTIONS: usize = 16;
const ROUNDS: u64 = 5;
const ROUND: Duration = Duration::from_secs(4);
const SETUPS: [&str; 3] = ["envoy", "envoy_service", "envoy_service_filter"];

/// A chat of about 1 KB; every second one streams eight tokens.
fn call(seed: u64) -> Call {
    let mut body = chat(8, Wish::Nothing);
    body["stream"] = json!(seed.is_multiple_of(2));
    body["messages"][1]["content"] = json!(format!("{seed:08}{}", "s".repeat(900)));
    Call::json("/v1/chat/completions", &body).open()
}

#[derive(Clone, Copy)]
struct Figure {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

async fn measure(harness: &Harness, seed: u64, time: Duration) -> Result<Figure> {
    let make = move |n: u64| call(seed * 1_000_000 + n);
    let report = run(harness.address(), CONNECTIONS, Until::Time(time), make, |_: u64, _: &Reply| ()).await?;
    let whole = report.broken == 0 && report.statuses.keys().all(|status| *status == 200);
    ensure!(whole, "answers were not whole: {}", report.line("throughput"));
    let ms = |percent| report.percentile(percent).as_secs_f64() * 1000.0;
    Ok(Figure { per_second: report.per_second(), p50_ms: ms(50.0), p99_ms: ms(99.0) })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn figures(all: &[Vec<Figure>; 3]) -> Vec<Value> {
    let of = |setup: usize, what: fn(&Figure) -> f64| median(all[setup].iter().map(what).collect());
    let mut figures = Vec::new();
    for (setup, name) in SETUPS.iter().enumerate() {
        for (figure, unit, value) in [
            ("rps", "1/s", of(setup, |f| f.per_second)),
            ("p50", "ms", of(setup, |f| f.p50_ms)),
            ("p99", "ms", of(setup, |f| f.p99_ms)),
        ] {
            figures.push(json!({"figure": format!("{figure}_{name}"), "value": value, "unit": unit}));
        }
    }
    for setup in [1, 2] {
        // Ratios within a round, then their median.
        let ratios =
            all[setup].iter().zip(&all[0]).map(|(one, bare)| one.per_second / bare.per_second).collect();
        let figure = format!("rps_{}_vs_envoy", SETUPS[setup]);
        figures.push(json!({"figure": figure, "value": median(ratios), "unit": "ratio"}));
    }
    figures
}

fn output(command: &str, args: &[&str]) -> String {
    let output = std::process::Command::new(command).args(args).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn machine() -> Value {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    json!({"cpu": model.trim_start_matches([' ', '\t', ':']), "cores": cores, "kernel": output("uname", &["-r"])})
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let file = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => None,
        [flag, file] if flag == "--json" => Some(file.clone()),
        other => anyhow::bail!("unknown arguments {other:?}; known is --json FILE"),
    };
    let setups = [
        Harness::builder().bare().start().await?,
        Harness::builder().without_filter().start().await?,
        Harness::builder().start().await?,
    ];
    let mut all: [Vec<Figure>; 3] = Default::default();
    for harness in &setups {
        // Connections, caches, compiled filter.
        measure(harness, 0, Duration::from_secs(1)).await?;
    }
    for seed in 1..=ROUNDS {
        for (setup, harness) in setups.iter().enumerate() {
            all[setup].push(measure(harness, seed, ROUND).await?);
        }
    }
    let figures = figures(&all);
    for figure in &figures {
        println!(
            "{:<40} {:>10.3} {}",
            figure["figure"].as_str().unwrap_or(""),
            figure["value"].as_f64().unwrap_or(0.0),
            figure["unit"].as_str().unwrap_or("")
        );
    }
    if let Some(file) = file {
        let raw: Vec<Value> = all
            .iter()
            .zip(SETUPS)
            .map(|(rounds, name)| json!({"setup": name, "rps": rounds.iter().map(|f| f.per_second).collect::<Vec<_>>()}))
            .collect();
        let result = json!({
            "bench": "throughput",
            "commit": output("git", &["rev-parse", "HEAD"]),
            "machine": machine(),
            "seeds": (1..=ROUNDS).collect::<Vec<_>>(),
            "figures": figures,
            "raw": raw,
        });
        std::fs::write(file, serde_json::to_string_pretty(&result)? + "\n")?;
    }
    Ok(())
}
