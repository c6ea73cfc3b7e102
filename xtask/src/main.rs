//! The project's tasks: `cargo xtask <task>`.

mod wasm;

use clap::{Parser, Subcommand};

/// Tasks of the Tokenweir project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Builds the filter: target/wasm/tokenweir.wasm.
    Wasm,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Wasm => wasm::run(),
    }
}
