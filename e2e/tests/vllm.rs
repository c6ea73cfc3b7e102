//! Real Envoy, the service, the filter, the Python SDKs, and two real vLLM engines on the CPU.
//!
//! The engines take half a minute to start, so one test has them all the time, and its sections follow each other: those
//! that end engines come last. `cargo xtask e2e vllm` runs this; `TOKENWEIR_FULL=1` makes it longer.

#[path = "vllm/facts.rs"]
mod facts;
#[path = "vllm/idle.rs"]
mod idle;
#[path = "vllm/leaving.rs"]
mod leaving;
#[path = "vllm/prefixes.rs"]
mod prefixes;
#[path = "vllm/restarts.rs"]
mod restarts;
#[path = "vllm/sums.rs"]
mod sums;

use e2e::records::{Record, Records};
use e2e::service::Service;
use e2e::vllm::{Counted, Vllm};
use e2e::{Harness, sdk};
use serde_json::json;
use std::time::{Duration, Instant};

/// For a machine that does much else.
const SETTLED: Duration = Duration::from_secs(60);

/// Everything that runs.
struct Stage {
    harness: Harness,
    engines: [Vllm; 2],
    /// The engines' logs.
    _dir: tempfile::TempDir,
}

impl Stage {
    async fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("tokenweir-vllm-").tempdir().unwrap();
        // The first drains when it is asked to end; the second does not.
        let mut engines = [
            Vllm::start(dir.path(), 0, &restarts::DRAINS).unwrap(),
            Vllm::start(dir.path(), 1, &[]).unwrap(),
        ];
        for engine in &mut engines {
            engine.ready().await.unwrap();
        }
        let addresses = engines.iter().map(|engine| engine.address).collect();
        let harness = Harness::builder()
            .config(|config| {
                config["pools"] = json!([{"name": "a", "models": ["tiny-llama"], "engine": "vllm"}])
            })
            .endpoints(vec![("a".to_owned(), addresses)]);
        Self { harness: harness.start().await.unwrap(), engines, _dir: dir }
    }

    fn service(&mut self) -> &mut Service {
        self.harness.service().unwrap()
    }

    /// What both engines have counted, once they have nothing to do.
    async fn counted(&self) -> Counted {
        let mut last = None;
        let deadline = Instant::now() + SETTLED;
        loop {
            let (one, two) = (&self.engines[0], &self.engines[1]);
            let now = one.counted().await.unwrap().plus(two.counted().await.unwrap());
            if last == Some(now) {
                return now;
            }
            assert!(Instant::now() < deadline, "the engines never come to rest");
            last = Some(now);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// The records of a tenant, once there are `count` of them.
    async fn records_of(&mut self, tenant: &str, count: usize) -> Vec<Record> {
        let of = |log: &Records| -> Vec<Record> {
            let newest = log.newest().into_values();
            newest.filter(|record| record.tenant.as_deref() == Some(tenant)).cloned().collect()
        };
        let log = self.service().records_when("a record of each", SETTLED, |log| of(log).len() >= count);
        let log = log.await.unwrap();
        assert!(log.bad.is_empty() && log.doubled().is_empty(), "{:?} {:?}", log.bad, log.doubled());
        let records = of(&log);
        assert_eq!(records.len(), count, "more records than exchanges of {tenant}");
        records
    }
}

fn full() -> bool {
    std::env::var_os("TOKENWEIR_FULL").is_some()
}

/// All of it, in the order of how much is broken afterwards. `TOKENWEIR_SECTIONS`, separated by commas, chooses some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "cargo xtask e2e vllm"]
async fn real_engines() {
    let chosen = std::env::var("TOKENWEIR_SECTIONS").ok();
    let begun = Instant::now();
    let wanted = |section: &str| {
        let wanted = chosen.as_ref().is_none_or(|chosen| chosen.split(',').any(|one| one == section));
        if wanted {
            println!("--- {:.0} s: {section}", begun.elapsed().as_secs_f64());
        }
        wanted
    };
    let mut stage = Stage::start().await;
    if wanted("cases") {
        cases(&mut stage).await;
    }
    if wanted("facts") {
        facts::hold(&mut stage).await;
    }
    if wanted("sums") {
        sums::are_equal(&mut stage).await;
    }
    if wanted("leaving") {
        leaving::is_counted(&mut stage).await;
    }
    if wanted("prefixes") {
        prefixes::are_found(&mut stage).await;
    }
    if wanted("idle") {
        idle::connections_fail_nobody(&mut stage).await;
    }
    if wanted("restarts") {
        restarts::fail_nobody(&mut stage).await;
    }
    println!("--- {:.0} s: done", begun.elapsed().as_secs_f64());
}

/// The cases of `e2e sdk`, and those that only a real engine can answer.
async fn cases(stage: &mut Stage) {
    let (address, dir) = (stage.harness.address(), stage.harness.dir());
    let played = sdk::play(address, &dir, "vllm", &["answers", "refusals", "leaving"]).await.unwrap();
    let count = sdk::exchanges(&played);
    let log = stage.service().records_when("a record of each", SETTLED, |log| log.newest().len() >= count);
    let log = log.await.unwrap();
    sdk::agree(&played, &log).unwrap();
    assert_eq!(log.newest().len(), count, "more records than exchanges");
    println!("{} cases, {count} exchanges, each recorded as the SDK saw it", played.len());
}
