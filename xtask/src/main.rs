//! The project's tasks: `cargo xtask <task>`.

mod bench;
mod ci;
mod demo;
mod e2e;
mod parts;
mod suite;
mod tidy;
mod wasm;

use clap::{Parser, Subcommand, ValueEnum};

/// Tasks of the Tokenweir project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything on one machine: Envoy, the service, the filter, two engines; sends requests, prints what happened.
    Demo(demo::Options),
    /// The one gate: every check and suite.
    Ci {
        /// The long forms too.
        #[arg(long)]
        full: bool,
    },
    /// Builds the filter: target/wasm/tokenweir.wasm.
    Wasm,
    /// Suites with real parts.
    E2e {
        /// Which.
        #[arg(value_enum, default_value = "envoy")]
        suite: E2eSuite,
        /// The long forms too.
        #[arg(long)]
        full: bool,
    },
    /// Measures, and reports.
    Bench {
        /// Which.
        #[arg(value_enum)]
        bench: Bench,
        /// Where the result is written, as JSON.
        #[arg(long)]
        json: Option<String>,
        /// The short form: of `overhead` only whether every answer is right, of `pick` one seed.
        #[arg(long)]
        quick: bool,
        /// Seeds of the loads of `pick`, with commas between.
        #[arg(long)]
        seeds: Option<String>,
    },
    /// House rules that no compiler checks.
    Tidy,
}

#[derive(Clone, Copy, ValueEnum)]
enum E2eSuite {
    /// Real Envoy, the service, the filter, engines.
    Envoy,
    /// The same with the OpenAI and Anthropic Python SDKs as clients.
    Sdk,
    /// The same with two real vLLM engines on the CPU (3 GB on first use).
    Vllm,
}

#[derive(Clone, Copy, ValueEnum)]
enum Bench {
    /// What Tokenweir costs behind Envoy, beside a no-op ext_proc and beside none.
    Overhead,
    /// Strategies of the pick against each other, to simulated engines.
    Pick,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Demo(options) => demo::start(&options),
        Task::Ci { full } => ci::gate(full),
        Task::Wasm => wasm::run(),
        Task::E2e { suite: E2eSuite::Envoy, full } => e2e::envoy(full),
        Task::E2e { suite: E2eSuite::Sdk, full: _ } => e2e::sdk(),
        Task::E2e { suite: E2eSuite::Vllm, full } => e2e::vllm(full),
        Task::Bench { bench: Bench::Overhead, json, quick, seeds: _ } => {
            bench::overhead(json.as_deref(), quick)
        }
        Task::Bench { bench: Bench::Pick, json, quick, seeds } => {
            bench::pick(json.as_deref(), quick, seeds.as_deref())
        }
        Task::Tidy => tidy::check(),
    }
}
