//! A real vLLM engine on the CPU, served by the kit: started, asked to end, killed with all its processes, and its own
//! counters read.

use crate::client::{self, Call};
use crate::metrics::Scrape;
use crate::process::{Process, free_port, wait_for};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// It loads for 20 s on a machine with nothing else to do.
pub const READY_LIMIT: Duration = Duration::from_secs(400);
/// A model of random weights writes white space for ever where a grammar allows it.
const GRAMMAR: &str = r#"{"backend": "xgrammar", "disable_any_whitespace": true}"#;

/// One engine, running or not. It keeps its port. Dropping it kills it with all its processes.
#[derive(Debug)]
pub struct Vllm {
    process: Option<Process>,
    pub address: SocketAddr,
    log: PathBuf,
}

/// What an engine has counted since its start, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// `vllm:prompt_tokens_total`: a prompt once for each sequence that it was asked for.
    pub prompt: u64,
    /// `vllm:generation_tokens_total`
    pub generation: u64,
    /// `vllm:prompt_tokens_cached_total`: those of `prompt` that needed no computing.
    pub cached: u64,
    /// `vllm:prefix_cache_hits_total`
    pub hits: u64,
}

impl Counted {
    /// Both engines' counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            prompt: self.prompt + other.prompt,
            generation: self.generation + other.generation,
            cached: self.cached + other.cached,
            hits: self.hits + other.hits,
        }
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            prompt: self.prompt - before.prompt,
            generation: self.generation - before.generation,
            cached: self.cached - before.cached,
            hits: self.hits - before.hits,
        }
    }
}

impl Vllm {
    /// Starts engine number `n` on a free port; its log goes to `dir`. `more`: further arguments of `vllm serve`.
    pub fn start(dir: &Path, n: usize, more: &[&str]) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let mut engine = Self { process: None, address, log: dir.join(format!("vllm-{n}.log")) };
        engine.again(more)?;
        Ok(engine)
    }

    /// Starts it (again), on the same port, without waiting.
    pub fn again(&mut self, more: &[&str]) -> Result<()> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("kits/vllm/up.sh").display().to_string();
        let port = self.address.port().to_string();
        let always = ["--disable-uvicorn-access-log", "--structured-outputs-config", GRAMMAR];
        let args = [&[script.as_str(), &port, "--"], &always[..], more].concat();
        let kept: Vec<(String, String)> = std::env::vars()
            .filter(|(name, _)| ["HOME", "PATH", "TOKENWEIR_CACHE"].contains(&name.as_str()))
            .collect();
        let mut env: Vec<(&str, &str)> =
            kept.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        // Without it a response lives no longer than its request.
        env.push(("VLLM_ENABLE_RESPONSES_API_STORE", "1"));
        self.process = Some(Process::start("vllm", Path::new("/bin/bash"), &args, &env, &self.log)?);
        Ok(())
    }

    /// Waits for `/health`.
    pub async fn ready(&mut self) -> Result<()> {
        let address = self.address;
        let process = self.process.as_mut().context("this engine is not running")?;
        let ready = wait_for("vLLM's /health", READY_LIMIT, async || {
            if !matches!(process.ended(), Ok(None)) {
                return Some(false);
            }
            let call = Call::get("/health").within(Duration::from_secs(5));
            (client::send(address, call).await.ok()?.status == 200).then_some(true)
        });
        if !ready.await? {
            bail!("vLLM did not start\n{}", process.tail());
        }
        Ok(())
    }

    /// Its counters now.
    pub async fn counted(&self) -> Result<Counted> {
        let scrape = Scrape::parse(&client::send(self.address, Call::get("/metrics")).await?.text());
        let sum = |name: &str| scrape.sum(name, &[]) as u64;
        Ok(Counted {
            prompt: sum("vllm:prompt_tokens_total"),
            generation: sum("vllm:generation_tokens_total"),
            cached: sum("vllm:prompt_tokens_cached_total"),
            hits: sum("vllm:prefix_cache_hits_total"),
        })
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&self) -> Result<()> {
        self.process.as_ref().context("this engine is not running")?.signal(Signal::TERM)
    }

    /// Whether it ended by itself within `grace`. If not, it is killed.
    pub async fn ended_within(&mut self, grace: Duration) -> Result<bool> {
        let mut process = self.process.take().context("this engine is not running")?;
        let rest = family(process.id());
        let ended = process.wait(grace).await.is_ok();
        if !ended {
            process.kill()?;
        }
        rest.into_iter().for_each(kill);
        Ok(ended)
    }

    /// SIGKILL to all its processes, as a container runtime does. vLLM's own workers would outlive their parent.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let rest = family(process.id());
        let done = process.kill();
        rest.into_iter().for_each(kill);
        done
    }

    /// The end of its log.
    #[must_use]
    pub fn tail(&self) -> String {
        format!("--- {} ---\n{}", self.log.display(), crate::process::tail(&self.log))
    }
}

impl Drop for Vllm {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = self.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
    }
}

fn kill(id: u32) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The children of a process, and theirs.
fn family(of: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for id in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything; after it come the state and the parent.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(id);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![of];
    while let Some(parent) = next.pop() {
        let ids = children.remove(&parent).unwrap_or_default();
        next.extend(&ids);
        found.extend(ids);
    }
    found
}
