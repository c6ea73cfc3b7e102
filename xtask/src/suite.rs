//! Steps of a gate: each is one command or function, timed, and told in a table at the end.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The workspace's root: cargo runs this program with the path of its own package.
pub(crate) fn workspace() -> Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").context("run this as `cargo xtask <task>`")?;
    let root = Path::new(&package).parent().context("xtask lies in the workspace")?;
    Ok(root.to_owned())
}

/// Tells one line.
#[allow(clippy::print_stdout, reason = "what a task tells goes to its standard output")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// A command in the workspace's root.
pub(crate) fn command(program: impl AsRef<OsStr>, args: &[&str]) -> Result<Command> {
    let mut command = Command::new(program);
    command.current_dir(workspace()?).args(args);
    Ok(command)
}

/// Runs a command to its end; anything but success is an error.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let text = format!("{command:?}");
    let status = command.status().with_context(|| format!("starting {text}"))?;
    ensure!(status.success(), "failed ({status}): {text}");
    Ok(())
}

/// Runs cargo.
pub(crate) fn cargo(args: &[&str]) -> Result<()> {
    run(command("cargo", args)?)
}

/// The suites that ran, and how long each took.
#[derive(Default)]
pub(crate) struct Suites {
    done: Vec<(&'static str, Duration)>,
}

impl Suites {
    /// Runs one suite. The first that fails ends the gate; the table says how far it came.
    pub(crate) fn run(&mut self, name: &'static str, suite: impl FnOnce() -> Result<()>) -> Result<()> {
        say(&format!("\n=== {name}"));
        let begun = Instant::now();
        let result = suite();
        self.done.push((name, begun.elapsed()));
        result.with_context(|| {
            self.tell();
            format!("suite `{name}` failed")
        })
    }

    /// Prints the table of minutes.
    pub(crate) fn tell(&self) {
        say("\nsuite                              minutes");
        let mut total = Duration::ZERO;
        for (name, took) in &self.done {
            say(&format!("{name:<34} {:>7.2}", took.as_secs_f64() / 60.0));
            total += *took;
        }
        say(&format!("{:<34} {:>7.2}", "all", total.as_secs_f64() / 60.0));
    }
}
