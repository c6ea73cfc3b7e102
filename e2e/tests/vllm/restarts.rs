//! Engines end one after the other while clients of both SDKs ask without a pause and without retries of their own.
//! Nobody fails but those whose answer had begun on the engine that ended; a drain cuts nobody.
//!
//! The endpoints file says all the time that both are ready: what hides an engine's end is Envoy's retry on the other one,
//! for as long as no response has begun.

use super::{SETTLED, Stage};
use e2e::client::{self, Call};
use e2e::process::{Process, wait_for};
use e2e::records::Record;
use e2e::{client::reports::now_ms, sdk};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of an engine that finishes what it has begun when it is asked to end, for this many seconds.
pub const DRAINS: [&str; 2] = ["--shutdown-timeout", "30"];
/// How long an engine may take to end before it is killed; one that does not drain, and may hang.
const GRACE: Duration = Duration::from_secs(60);
const SHORT_GRACE: Duration = Duration::from_secs(10);
/// Exchanges between two ends.
const BETWEEN: usize = 24;
const BUSY_LIMIT: Duration = Duration::from_secs(240);
const TENANT: &str = "restless";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// SIGTERM with `--shutdown-timeout`: running answers are finished; new requests get 500, later no connection.
    Drained,
    /// SIGTERM without it: running answers end with the finish reason `abort`. But vLLM kills its core at once, and then
    /// what the core had not aborted yet hangs until SIGKILL, which here as in Kubernetes comes after a grace period.
    Terminated,
    /// SIGKILL to all its processes.
    Killed,
    /// The engine's core dies: running streams get an error event, others 500.
    Crashed,
}

struct Act {
    how: How,
    endpoint: String,
    from_ms: u64,
    to_ms: u64,
    retried: u64,
}

/// One exchange, as the SDK told it.
#[derive(Debug, Deserialize)]
struct Told {
    kind: String,
    from_ms: u64,
    to_ms: u64,
    started: bool,
    error: Option<String>,
    finish: Option<String>,
    request_id: Option<String>,
}

impl Told {
    fn was_cut(&self) -> bool {
        self.error.is_some() || self.finish.as_deref() == Some("abort")
    }
}

/// The clients, and the file with what they told.
struct Clients {
    process: Process,
    out: PathBuf,
    until: PathBuf,
}

impl Clients {
    fn start(stage: &Stage) -> Self {
        let dir = stage.harness.dir();
        let (out, until) = (dir.join("restless.jsonl"), dir.join("restless.stop"));
        let url = format!("http://{}", stage.harness.address());
        let (out_text, until_text) = (out.display().to_string(), until.display().to_string());
        let args = ["--base-url", &url, "--until", &until_text, "--out", &out_text];
        let process = sdk::start("restless.py", &args, &dir.join("restless.log")).unwrap();
        Self { process, out, until }
    }

    /// Waits until that many more exchanges have ended.
    async fn go_on(&self, more: usize) {
        let before = told(&self.out).len();
        let more = wait_for("more exchanges", BUSY_LIMIT, async || {
            (told(&self.out).len() >= before + more).then_some(())
        });
        more.await.unwrap();
    }

    async fn stop(mut self) -> Vec<Told> {
        std::fs::write(&self.until, "").unwrap();
        let ended = self.process.wait(sdk::RUN_LIMIT).await.unwrap();
        assert!(ended.success(), "{}", self.process.tail());
        told(&self.out)
    }
}

fn told(out: &Path) -> Vec<Told> {
    let text = std::fs::read_to_string(out).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub async fn fail_nobody(stage: &mut Stage) {
    let clients = Clients::start(stage);
    clients.go_on(BETWEEN).await;
    let mut acts = Vec::new();
    let plan = [(0, How::Drained), (1, How::Terminated), (0, How::Killed), (1, How::Crashed)];
    for (step, (n, how)) in plan.into_iter().enumerate() {
        acts.push(end(stage, n, how).await);
        clients.go_on(BETWEEN).await;
        if step + 1 == plan.len() {
            break;
        }
        stage.engines[n].again(&[]).unwrap();
        stage.engines[n].ready().await.unwrap();
        is_used_again(stage, n).await;
        clients.go_on(BETWEEN).await;
    }
    let told = clients.stop().await;
    let records = stage.records_of(TENANT, told.len()).await;
    judge(&told, &records, &acts);
}

/// Ends an engine, and says when.
async fn end(stage: &mut Stage, n: usize, how: How) -> Act {
    let endpoint = stage.engines[n].address.to_string();
    let retries =
        async |stage: &Stage| stage.harness.envoy.stat("cluster.pool-a.upstream_rq_retry").await.unwrap();
    let before = retries(stage).await;
    let from_ms = now_ms();
    match how {
        How::Drained | How::Terminated => stage.engines[n].terminate().unwrap(),
        How::Killed => stage.engines[n].kill().unwrap(),
        How::Crashed => crash(stage, n).await,
    }
    if how != How::Killed {
        // Whatever its exit code: an engine whose core is dead ends with an error.
        let grace = if how == How::Terminated { SHORT_GRACE } else { GRACE };
        let ended = stage.engines[n].ended_within(grace).await.unwrap();
        println!("{how:?}: {}", if ended { "ended by itself" } else { "killed after its grace period" });
        assert!(ended || how == How::Terminated, "{}", stage.engines[n].tail());
    }
    // Answers that were cut are told a moment later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Act { how, endpoint, from_ms, to_ms: now_ms(), retried: retries(stage).await - before }
}

/// A prompt with a `seed` that does not fit into one step kills vLLM's CPU engine. Asked directly, so that Envoy can't
/// hand it to the other engine.
async fn crash(stage: &Stage, n: usize) {
    let address = stage.engines[n].address;
    let prompt = "water ".repeat(700);
    let mut calls = tokio::task::JoinSet::new();
    for seed in 0..8 {
        let body = json!({"model": "tiny-llama", "max_tokens": 4, "seed": seed, "prompt": format!("{seed} {prompt}")});
        let call = Call::json("/v1/completions", &body).within(Duration::from_secs(60));
        calls.spawn(client::send(address, call));
    }
    let mut statuses = Vec::new();
    while let Some(reply) = calls.join_next().await {
        statuses.push(reply.unwrap().map(|reply| reply.status).unwrap_or(0));
    }
    assert!(statuses.iter().any(|status| *status != 200), "the engine survived: {statuses:?}");
}

/// The engine that came back serves again.
async fn is_used_again(stage: &mut Stage, n: usize) {
    let (endpoint, since) = (stage.engines[n].address.to_string(), stage.service().records().all.len());
    let used = |log: &e2e::records::Records| {
        log.all.iter().skip(since).any(|record| record.endpoint.as_deref() == Some(&endpoint))
    };
    stage.service().records_when("the engine to be used again", SETTLED, used).await.unwrap();
}

fn judge(told: &[Told], records: &[Record], acts: &[Act]) {
    let records: BTreeMap<&str, &Record> =
        records.iter().map(|record| (record.request_id.as_str(), record)).collect();
    let mut cut: BTreeMap<usize, Vec<&Told>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for one in told.iter().filter(|one| one.was_cut()) {
        let record = one.request_id.as_deref().and_then(|id| records.get(id));
        let by = acts.iter().position(|act| {
            let served = record.and_then(|record| record.endpoint.as_deref()) == Some(&act.endpoint);
            served && one.from_ms <= act.to_ms && one.to_ms >= act.from_ms
        });
        // A whole answer that vLLM aborts is an answer that has begun: it says `abort` and how far it came.
        let began = one.started || one.finish.as_deref() == Some("abort");
        match by {
            Some(act) if began && acts[act].how != How::Drained => cut.entry(act).or_default().push(one),
            _ => wrong.push(format!("{one:?}\n    {record:?}")),
        }
    }
    println!("{} exchanges while engines ended", told.len());
    println!("how          retried by Envoy  answers cut that had begun there");
    for (n, act) in acts.iter().enumerate() {
        let of = cut.get(&n).map(Vec::as_slice).unwrap_or_default();
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for one in of {
            let error = one.error.as_deref().unwrap_or("finish reason abort");
            let error: String = error.chars().take(60).collect();
            *kinds.entry(format!("{} ({error})", one.kind)).or_default() += 1;
        }
        println!("{:<12} {:>16}  {}", format!("{:?}", act.how), act.retried, of.len());
        for (kind, count) in kinds {
            println!("{:31}{count} {kind}", "");
        }
    }
    assert!(wrong.is_empty(), "failed, and should not have:\n{}", wrong.join("\n"));
    let retried: u64 = acts.iter().map(|act| act.retried).sum();
    assert!(retried > 0, "no request met an engine that was ending, so nothing was proved");
    ends_are_recorded(&cut, &records, acts);
}

/// What was cut is recorded as what it was, with the tokens that had come.
fn ends_are_recorded(cut: &BTreeMap<usize, Vec<&Told>>, records: &BTreeMap<&str, &Record>, acts: &[Act]) {
    for (act, told) in cut {
        for one in told {
            let record = records[one.request_id.as_deref().unwrap()];
            // After SIGTERM vLLM ends a stream as if it were complete; then it is.
            let ends: &[&str] = match acts[*act].how {
                How::Terminated => &["complete", "upstream_error"],
                _ => &["upstream_error"],
            };
            assert!(ends.contains(&record.end.as_deref().unwrap_or("")), "{one:?}\n{record:?}");
        }
    }
}
