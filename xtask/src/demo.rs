//! `cargo xtask demo`: everything on one machine, with simulated engines or real vLLM.

use anyhow::Result;
use clap::ValueEnum;

use crate::parts;
use crate::suite::{command, run};

/// What the endpoints run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineKind {
    /// A small engine of our own.
    Sim,
    /// Real vLLM on the CPU, with a tiny model; installed on first use (3 GB).
    Vllm,
}

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Send the requests, print what happened, and exit.
    #[arg(long)]
    pub(crate) once: bool,
    /// What the endpoints run.
    #[arg(long, value_enum, default_value = "sim")]
    pub(crate) engine: EngineKind,
}

/// Builds and fetches what is missing, then runs the demo.
pub(crate) fn start(options: &Options) -> Result<()> {
    parts::envoy()?;
    let service = parts::service(false)?;
    let filter = parts::filter()?;
    if options.engine == EngineKind::Vllm {
        run(command("bash", &["e2e/kits/vllm/install.sh"])?)?;
    }
    let mut demo =
        command("cargo", &["run", "--locked", "--release", "--quiet", "-p", "e2e", "--bin", "demo", "--"])?;
    if options.once {
        demo.arg("--once");
    }
    if options.engine == EngineKind::Vllm {
        demo.args(["--engine", "vllm"]);
    }
    demo.env("TOKENWEIR_BIN", service).env("TOKENWEIR_WASM", filter);
    run(demo)
}
