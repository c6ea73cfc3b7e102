//! The command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::Config;
use crate::endpoints::Endpoints;
use crate::{app, doctor, telemetry};
use clap::{Parser, Subcommand};

/// Exit status of a configuration that is not good.
const EXIT_CONFIG: u8 = 2;

/// Chooses the endpoint of every LLM request that passes Envoy, and counts its tokens.
#[derive(Parser)]
#[command(name = "tokenweir", version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve ext_proc and usage reports.
    Serve(ConfigArg),
    /// Check the configuration and the endpoints file; tell everything that is wrong.
    Check(ConfigArg),
    /// Check what the service needs to work here: files, addresses, endpoints, a running instance.
    Doctor(ConfigArg),
    /// Print the JSON Schema of the configuration file.
    Schema,
}

#[derive(clap::Args)]
struct ConfigArg {
    /// The configuration file.
    #[arg(long, default_value = "/etc/tokenweir/tokenweir.yaml")]
    config: PathBuf,
}

/// Runs the command that the arguments name.
#[must_use]
pub fn main() -> ExitCode {
    match Args::parse().command {
        Command::Serve(arg) => with_config(&arg, serve),
        Command::Check(arg) => with_config(&arg, check),
        Command::Doctor(arg) => with_config(&arg, examine),
        Command::Schema => say(&Config::schema(), ExitCode::SUCCESS),
    }
}

fn say(text: &str, code: ExitCode) -> ExitCode {
    // A closed pipe is the reader's choice, not a failure of ours.
    drop(writeln!(std::io::stdout().lock(), "{}", text.trim_end()));
    code
}

fn complain(text: &str, code: u8) -> ExitCode {
    drop(writeln!(std::io::stderr().lock(), "{}", text.trim_end()));
    ExitCode::from(code)
}

fn with_config(arg: &ConfigArg, then: fn(&Config) -> ExitCode) -> ExitCode {
    match Config::load(&arg.config) {
        Ok(config) => then(&config),
        Err(errors) => complain(&errors.to_string(), EXIT_CONFIG),
    }
}

/// Half of the cores: the other half is Envoy's, and to hand a small message to another thread costs more than to work on
/// it. The environment variable `TOKIO_WORKER_THREADS` goes before.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        builder.worker_threads((cores / 2).max(1));
    }
    builder.enable_all().build()
}

fn serve(config: &Config) -> ExitCode {
    if let Err(error) = telemetry::install_logs() {
        return complain(&error.to_string(), EXIT_CONFIG);
    }
    match runtime() {
        Ok(runtime) => match runtime.block_on(app::run(config.clone())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(&format!("tokenweir can't serve: {error}"), 1),
        },
        Err(error) => complain(&format!("tokenweir can't start its threads: {error}"), 1),
    }
}

fn check(config: &Config) -> ExitCode {
    match Endpoints::load(&config.endpoints.file, config) {
        Ok(_) => say(&format!("{} is good", config.file.display()), ExitCode::SUCCESS),
        Err(errors) => complain(&errors.to_string(), EXIT_CONFIG),
    }
}

fn examine(config: &Config) -> ExitCode {
    match runtime() {
        Ok(runtime) => {
            let report = runtime.block_on(doctor::run(config));
            say(&report.to_string(), if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(error) => complain(&format!("tokenweir can't start its threads: {error}"), 1),
    }
}
