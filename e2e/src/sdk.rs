//! Plays the Python cases of `e2e/sdk` with the SDKs that the kit installs, and holds what they saw against the records.
//!
//! A case is a tenant of its own: whatever became of its requests, its records are found by that name.

use crate::process::Process;
use crate::records::{Record, Records};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The most that one run of cases may take: for a machine that is busy with much else.
pub const RUN_LIMIT: Duration = Duration::from_secs(600);

/// One exchange as a case saw it. What it could not know is `None`.
#[derive(Clone, Debug, Deserialize)]
pub struct Seen {
    pub api: String,
    pub end: String,
    #[serde(default)]
    pub status: Option<u32>,
    #[serde(default)]
    pub input: Option<u64>,
    #[serde(default)]
    pub output: Option<u64>,
    #[serde(default)]
    pub cached: Option<u64>,
    /// Tokens that the client had read when it left: no fewer may be recorded.
    #[serde(default)]
    pub at_least: Option<u64>,
}

/// What became of one case.
#[derive(Clone, Debug, Deserialize)]
pub struct Played {
    pub case: String,
    pub error: Option<String>,
    pub exchanges: Vec<Seen>,
}

/// The Python that has the SDKs; installs them on first use.
pub fn python() -> Result<PathBuf> {
    let script = folder().join("../kits/sdk/install.sh");
    let run = Command::new("bash").arg(&script).output().context("starting the SDK kit")?;
    ensure!(run.status.success(), "{} failed:\n{}", script.display(), String::from_utf8_lossy(&run.stderr));
    let told = String::from_utf8(run.stdout)?;
    Ok(told.lines().last().context("the kit names no python")?.into())
}

/// Where the Python files lie.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk")
}

/// Starts a Python file of `e2e/sdk` as a child; its output goes to `log`.
pub fn start(file: &str, args: &[&str], log: &Path) -> Result<Process> {
    let file = folder().join(file).display().to_string();
    let args: Vec<&str> = [file.as_str()].into_iter().chain(args.iter().copied()).collect();
    // Proxies of this machine must not stand between the SDKs and Envoy, so the environment is empty but for this.
    let env = [("PYTHONDONTWRITEBYTECODE", "1"), ("PYTHONUNBUFFERED", "1")];
    Process::start("python", &python()?, &args, &env, log)
}

/// Cases that run while the test does something else.
#[derive(Debug)]
pub struct Running {
    process: Process,
    out: PathBuf,
}

/// Starts the cases of these groups against Envoy. `engine` is what answers: `small`, `sim` or `vllm`.
pub fn begin(address: SocketAddr, dir: &Path, engine: &str, groups: &[&str]) -> Result<Running> {
    let name = groups.join("-");
    let out = dir.join(format!("sdk-{name}.jsonl"));
    let (url, file) = (format!("http://{address}"), out.display().to_string());
    let mut args = vec!["--base-url", &url, "--engine", engine, "--out", &file];
    for group in groups {
        args.extend(["--group", group]);
    }
    let process = start("run.py", &args, &dir.join(format!("sdk-{name}.log")))?;
    Ok(Running { process, out })
}

impl Running {
    /// Waits for the end. A case that failed is an error that shows all of its output.
    pub async fn finish(mut self) -> Result<Vec<Played>> {
        let status = self.process.wait(RUN_LIMIT).await?;
        let text = std::fs::read_to_string(&self.out).unwrap_or_default();
        let played: Vec<Played> = text
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()
            .context("what the cases wrote")?;
        let failed: Vec<String> = played
            .iter()
            .filter_map(|one| Some(format!("case {}:\n{}", one.case, one.error.as_ref()?)))
            .collect();
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        ensure!(status.success() && !played.is_empty(), "the cases did not run\n{}", self.process.tail());
        Ok(played)
    }
}

/// Plays the cases of these groups.
pub async fn play(address: SocketAddr, dir: &Path, engine: &str, groups: &[&str]) -> Result<Vec<Played>> {
    begin(address, dir, engine, groups)?.finish().await
}

/// How many exchanges the cases began.
#[must_use]
pub fn exchanges(played: &[Played]) -> usize {
    played.iter().map(|one| one.exchanges.len()).sum()
}

/// Every exchange that a case saw has one record that says the same; no record is left over.
pub fn agree(played: &[Played], records: &Records) -> Result<()> {
    ensure!(
        records.bad.is_empty() && records.doubled().is_empty(),
        "{:?} {:?}",
        records.bad,
        records.doubled()
    );
    let newest = records.newest();
    let mut wrong = Vec::new();
    for one in played {
        let mut left: Vec<&Record> =
            newest.values().filter(|record| record.tenant.as_deref() == Some(&one.case)).copied().collect();
        // Those of whom most is known choose first.
        let mut seen: Vec<&Seen> = one.exchanges.iter().collect();
        seen.sort_by_key(|seen| seen.output.is_none());
        for seen in seen {
            match left.iter().position(|record| says_the_same(seen, record)) {
                Some(found) => drop(left.swap_remove(found)),
                None => wrong.push(format!("{}: no record says {seen:?}; there are {left:#?}", one.case)),
            }
        }
        if !left.is_empty() {
            wrong.push(format!("{}: records of what the client never saw: {left:#?}", one.case));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("{}", wrong.join("\n"))
}

fn says_the_same(seen: &Seen, record: &Record) -> bool {
    let usage = &record.usage;
    let equal =
        |known: Option<u64>, recorded: Option<u64>| known.is_none_or(|known| recorded.unwrap_or(0) == known);
    let metered = seen.status.is_none_or(|status| status < 400) && seen.end == "complete";
    record.api.as_deref() == Some(&seen.api)
        && record.end.as_deref() == Some(&seen.end)
        && seen.status.is_none_or(|status| record.status == Some(status))
        && equal(seen.input, usage.input)
        && equal(seen.output, usage.output)
        && equal(seen.cached, usage.cached)
        && seen.at_least.is_none_or(|least| usage.output.unwrap_or(0) >= least)
        // Whatever the client asked for, the gateway knows.
        && (!metered || usage.input.is_some_and(|input| input > 0) || seen.api == "count_tokens")
}
