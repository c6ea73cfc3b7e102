//! `cargo xtask bench overhead`: what Tokenweir costs behind Envoy, in requests, CPU and memory, beside a no-op ext_proc and
//! beside none; and whether what it recorded is right. All of it in one run, by turns.
//!
//! The program is also its own upstream and its own no-op service, each in a process of its own so that its CPU shows.

mod accounts;
mod answers;
mod bodies;
mod load;
mod noop;
mod open;
mod process;
mod rounds;
mod setups;
mod upstream;
mod wire;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench_result::{Report, tell};
use clap::{Parser, Subcommand};
use e2e::harness::raise_file_limit;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::accounts::Accounts;
use crate::answers::Form;
use crate::rounds::{Case, Results};
use crate::setups::{Kind, Setup, Upstream};

/// What Tokenweir costs behind Envoy.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Where the result is written, as JSON; without it to bench/results/overhead.json.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only whether every answer and every record is right; measures nothing.
    #[arg(long)]
    quick: bool,
}

#[derive(Subcommand)]
enum Role {
    /// The no-op ext_proc service.
    #[command(hide = true)]
    Noop {
        /// Ports to listen on: always one.
        ports: usize,
    },
    /// The instant upstream.
    #[command(hide = true)]
    Upstream {
        /// Ports to listen on.
        ports: usize,
    },
    /// Keeps one of the compared under one load, for a profiler.
    Drive {
        /// Which.
        #[arg(value_enum)]
        setup: Kind,
        /// Which load: 1k, 8k, …, sse.
        case: String,
        /// How long.
        #[arg(default_value_t = 20)]
        seconds: u64,
    },
}

const CASES: [Case; 6] = [
    Case { name: "1k", body_bytes: 1 << 10, form: Form::Whole },
    Case { name: "8k", body_bytes: 8 << 10, form: Form::Whole },
    Case { name: "8k_edited", body_bytes: 8 << 10, form: Form::Stream(8) },
    Case { name: "128k", body_bytes: 128 << 10, form: Form::Whole },
    Case { name: "400k", body_bytes: 400 << 10, form: Form::Whole },
    Case { name: "400k_edited", body_bytes: 400 << 10, form: Form::Stream(8) },
];
/// As fast as it goes: then several events come in one chunk.
const BURST: Case = Case { name: "sse", body_bytes: 1 << 10, form: Form::Stream(1_000) };
/// As engines send: an event now and then, each a chunk of its own.
const PACED: Case = Case { name: "sse_paced", body_bytes: 1 << 10, form: Form::Paced(1_000) };

/// How much of everything.
struct Size {
    seeds: &'static [u64],
    window: Duration,
    exchanges: u64,
    open_streams: usize,
}

const FULL: Size = Size {
    seeds: &[1, 2, 3, 4, 5, 6, 7],
    window: Duration::from_millis(1200),
    exchanges: 2_000,
    open_streams: 5_000,
};
const QUICK: Size =
    Size { seeds: &[1], window: Duration::from_millis(300), exchanges: 500, open_streams: 200 };
/// Connections, caches and the compiled filter, before the first round.
const WARM_UP: Duration = Duration::from_millis(400);
/// Body of the open streams.
const OPEN_BODY_BYTES: usize = 8 << 10;
/// How long the records of the rounds may take to arrive.
const RECORDS_LIMIT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.role {
        Some(Role::Noop { .. }) => noop::serve(),
        Some(Role::Upstream { ports }) => upstream::serve(ports),
        Some(Role::Drive { setup, case, seconds }) => runtime()?.block_on(drive(setup, &case, seconds)),
        None => runtime()?.block_on(bench(arguments.json.as_deref(), arguments.quick)),
    }
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

async fn drive(kind: Kind, case: &str, seconds: u64) -> Result<()> {
    raise_file_limit();
    let case =
        CASES.into_iter().chain([BURST, PACED]).find(|known| known.name == case).context("no such load")?;
    let dir = tempfile::Builder::new().prefix("tokenweir-overhead-").tempdir()?;
    let upstream = Upstream::start(dir.path()).await?;
    let mut setup = Setup::start(kind, dir.path(), &upstream).await?;
    tell(&format!("envoy {} service {:?}", setup.envoy_pid(), setup.service_pid()?));
    let mut results = Results::default();
    results.round(case, 1, Duration::from_secs(seconds), &mut [&mut setup], &upstream).await?;
    tell(&serde_json::to_string_pretty(&results.to_json())?);
    Ok(())
}

async fn bench(json: Option<&Path>, quick: bool) -> Result<()> {
    raise_file_limit();
    let size = if quick { QUICK } else { FULL };
    let begun = Instant::now();
    let mut report = Report::begin("overhead", size.seeds);
    let dir = tempfile::Builder::new().prefix("tokenweir-overhead-").tempdir()?;
    let upstream = Upstream::start(dir.path()).await?;

    let mut results = Results::default();
    streams(&mut results, &size, dir.path(), &upstream).await?;
    told(begun, "streams");
    requests(&mut results, &size, dir.path(), &upstream).await?;
    told(begun, "requests");
    let mut held = Setup::start(Kind::Held, dir.path(), &upstream).await?;
    held.try_out().await?;
    let kib = open::kib_per_stream(&mut held, size.open_streams, OPEN_BODY_BYTES).await?;
    drop(held);
    told(begun, "open streams");
    let accounts = accounts::compare(size.exchanges).await?;
    told(begun, "accounts");

    if !quick {
        figures(&mut report, &results);
        report.figure("kib_per_open_stream", kib, "KiB");
        report.figure("tokens_off", accounts.tokens_off as f64, "count");
        report.figure("aborts_unrecorded", accounts.aborts_unrecorded as f64, "count");
        report.raw("rounds", results.to_json());
        report.raw("accounts", json!({"exchanges": accounts.exchanges, "aborted": accounts.aborted}));
        report.raw("took_s", json!(begun.elapsed().as_secs_f64().round()));
        report.finish(json)?;
    }
    check(&accounts)?;
    tell(&format!("every answer was whole; of {} exchanges every token is recorded", accounts.exchanges));
    Ok(())
}

fn told(begun: Instant, what: &str) {
    tell(&format!("{:>6.1} s  {what} done", begun.elapsed().as_secs_f64()));
}

/// Long streams with and without the filter: two fresh Envoys under the same load, for memory as well.
async fn streams(results: &mut Results, size: &Size, dir: &Path, upstream: &Upstream) -> Result<()> {
    let dir = dir.join("streams");
    let mut with = Setup::start(Kind::Tokenweir, &dir, upstream).await?;
    let mut without = Setup::start(Kind::WithoutFilter, &dir, upstream).await?;
    with.try_out().await?;
    without.try_out().await?;
    let mut warm_up = Results::default();
    warm_up.round(BURST, 0, WARM_UP, &mut [&mut with, &mut without], upstream).await?;
    let before = results.answered(Kind::Tokenweir);
    for seed in size.seeds {
        for case in [BURST, PACED] {
            results.round(case, *seed, size.window, &mut [&mut with, &mut without], upstream).await?;
        }
    }
    let answered = warm_up.answered(Kind::Tokenweir) + results.answered(Kind::Tokenweir) - before;
    recorded(&mut with, 1 + answered).await
}

/// Requests of all sizes: Envoy alone, the no-op, Tokenweir.
async fn requests(results: &mut Results, size: &Size, dir: &Path, upstream: &Upstream) -> Result<()> {
    let dir = dir.join("requests");
    let mut bare = Setup::start(Kind::Bare, &dir, upstream).await?;
    let mut noop = Setup::start(Kind::Noop, &dir, upstream).await?;
    let mut ours = Setup::start(Kind::Tokenweir, &dir, upstream).await?;
    for setup in [&bare, &noop, &ours] {
        setup.try_out().await?;
    }
    let mut setups = [&mut bare, &mut noop, &mut ours];
    let mut warm_up = Results::default();
    for case in [CASES[0], CASES[5]] {
        warm_up.round(case, 0, WARM_UP, &mut setups, upstream).await?;
    }
    let before = results.answered(Kind::Tokenweir);
    for seed in size.seeds {
        for case in CASES {
            results.round(case, *seed, size.window, &mut setups, upstream).await?;
        }
    }
    let answered = warm_up.answered(Kind::Tokenweir) + results.answered(Kind::Tokenweir) - before;
    recorded(&mut ours, 1 + answered).await
}

/// Every answer has its record, once.
async fn recorded(setup: &mut Setup, answers: u64) -> Result<()> {
    let log = setup.service()?.log_path();
    let lines = || std::fs::read(&log).map_or(0, |bytes| memchr::memchr_iter(b'\n', &bytes).count() as u64);
    let begun = Instant::now();
    while lines() < answers && begun.elapsed() < RECORDS_LIMIT {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let lines = lines();
    ensure!(lines == answers, "{answers} exchanges were answered, {lines} are recorded");
    Ok(())
}

fn figures(report: &mut Report, results: &Results) {
    let (noop, ours, bare) = (Kind::Noop, Kind::Tokenweir, Kind::Bare);
    for case in CASES {
        let name = case.name;
        report.figure(&format!("rps_vs_noop_{name}"), results.answers_ratio(name, ours, noop), "ratio");
    }
    for name in ["8k", "400k"] {
        let ratio = results.service_cpu_us(name, ours) / results.service_cpu_us(name, noop);
        report.figure(&format!("cpu_vs_noop_{name}"), ratio, "ratio");
    }
    let burst = results.events_ratio(BURST.name, ours, Kind::WithoutFilter);
    report.figure("sse_with_filter", burst, "ratio");
    // A paced stream is as fast as its pace; what differs is how many of them a worker can carry.
    let carried = |kind| results.events_per_envoy_cpu_s(PACED.name, kind);
    report.figure("sse_paced_with_filter", carried(ours) / carried(Kind::WithoutFilter), "ratio");
    let added = results.envoy_mib(BURST.name, ours) - results.envoy_mib(BURST.name, Kind::WithoutFilter);
    report.figure("filter_mib_per_worker", added, "MiB");
    // For orientation.
    for case in CASES {
        for kind in [bare, noop, ours] {
            let name = format!("rps_{}_{}", kind.name(), case.name);
            report.figure(&name, results.answers(case.name, kind), "1/s");
        }
    }
    for name in ["1k", "8k", "400k"] {
        for kind in [noop, ours] {
            let figure = format!("cpu_{}_{name}", kind.name());
            report.figure(&figure, results.service_cpu_us(name, kind), "us");
        }
    }
    for kind in [ours, Kind::WithoutFilter] {
        let name = kind.name();
        report.figure(&format!("events_per_envoy_cpu_s_{name}"), carried(kind), "1/s");
        report.figure(&format!("events_{name}"), results.events(BURST.name, kind), "1/s");
    }
}

fn check(accounts: &Accounts) -> Result<()> {
    ensure!(
        accounts.tokens_off == 0 && accounts.aborts_unrecorded == 0,
        "{} exchanges have wrong tokens, {} aborts no record; the first:\n{}",
        accounts.tokens_off,
        accounts.aborts_unrecorded,
        accounts.shown.join("\n")
    );
    Ok(())
}
