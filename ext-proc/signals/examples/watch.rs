//! Prints what the poller sees: `cargo run -p ext-proc-signals --example watch -- SECONDS ADDRESS… [--in-flight N]`.
#![allow(clippy::print_stdout, reason = "a command that reports to its user")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ext_proc_pick::Observation;
use ext_proc_signals::{Kind, Outcome, Settings, Sink, Target, run};
use tokio_util::sync::CancellationToken;

struct Printer {
    begun: Instant,
    in_flight: u32,
    /// How often each outcome came, and how long it took at most.
    outcomes: Mutex<BTreeMap<(SocketAddr, &'static str), (u32, Duration)>>,
    last: Mutex<BTreeMap<SocketAddr, String>>,
}

impl Sink for Printer {
    fn observe(&self, _pool: &str, address: SocketAddr, observation: Observation) {
        let Observation { health, stats, models } = observation;
        let stats = stats.map(|s| {
            let lora =
                s.lora_active.iter().flat_map(|names| names.iter()).cloned().collect::<Vec<_>>().join(",");
            format!(
                "running={} waiting={} kv={:.2} room={:?} lora=[{lora}]",
                s.running, s.waiting, s.kv_usage, s.kv_capacity_tokens
            )
        });
        let line = format!("{} {}", health.as_label(), stats.unwrap_or_else(|| "no numbers".to_owned()));
        let models = models.map(|models| format!(" models={models:?}")).unwrap_or_default();
        let Ok(mut last) = self.last.lock() else { return };
        if last.get(&address) != Some(&line) || !models.is_empty() {
            println!("{:8.3} {address} {line}{models}", self.begun.elapsed().as_secs_f64());
            last.insert(address, line);
        }
    }

    fn in_flight(&self, _pool: &str, _address: SocketAddr) -> u32 {
        self.in_flight
    }

    fn scraped(&self, _pool: &str, address: SocketAddr, outcome: Outcome, took: Duration) {
        if outcome != Outcome::Ok {
            println!("{:8.3} {address} outcome {}", self.begun.elapsed().as_secs_f64(), outcome.as_label());
        }
        let Ok(mut outcomes) = self.outcomes.lock() else { return };
        let entry = outcomes.entry((address, outcome.as_label())).or_default();
        *entry = (entry.0 + 1, entry.1.max(took));
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let seconds: u64 = words.next().ok_or("SECONDS is missing")?.parse()?;
    let (mut targets, mut in_flight) = (Vec::new(), 0);
    while let Some(word) = words.next() {
        if word == "--in-flight" {
            in_flight = words.next().ok_or("--in-flight needs a number")?.parse()?;
        } else {
            targets.push(Target { pool: "watched".into(), address: word.parse()?, kind: Kind::Vllm });
        }
    }
    let printer = Arc::new(Printer {
        begun: Instant::now(),
        in_flight,
        outcomes: Mutex::default(),
        last: Mutex::default(),
    });
    let (_targets, listed) = tokio::sync::watch::channel(Arc::new(targets));
    let stop = CancellationToken::new();
    let settings = Settings { stuck_after: Duration::from_secs(5), ..Settings::default() };
    let sink: Arc<dyn Sink> = printer.clone();
    let polling = tokio::spawn(run(listed, settings, sink, stop.clone()));
    // Until then, or until it is interrupted.
    let _interrupted = tokio::time::timeout(Duration::from_secs(seconds), tokio::signal::ctrl_c()).await;
    stop.cancel();
    polling.await?;
    for ((address, outcome), (count, longest)) in printer.outcomes.lock().map_err(|_| "poisoned")?.iter() {
        println!("{address}: {count} {outcome}, longest {longest:?}");
    }
    Ok(())
}
