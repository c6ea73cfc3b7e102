//! Rounds: each of the compared in turn under the same load, in another order each time, so that a busy neighbour is as
//! busy for all. A ratio is taken within a round, and the median of the rounds is told.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use bench_result::{median, ratios};
use serde_json::{Value, json};

use crate::answers::Form;
use crate::bodies;
use crate::load::{self, Load, Plan};
use crate::setups::{Kind, Setup, Upstream};

/// Connections of the load generator.
pub(crate) const CONNECTIONS: usize = 32;

/// A load that all of the compared get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) body_bytes: usize,
    pub(crate) form: Form,
}

/// One run of one of the compared.
pub(crate) struct Run {
    seed: u64,
    load: Load,
    /// Whether there is a service whose CPU stands last in the usage.
    has_service: bool,
}

impl Run {
    fn rate(&self, of: impl Fn(&Load) -> u64) -> f64 {
        of(&self.load) as f64 / self.load.seconds
    }

    /// CPU seconds of the service.
    fn service_cpu_s(&self) -> f64 {
        let usage = self.load.usage.last().filter(|_| self.has_service);
        usage.map_or(0.0, |usage| usage.cpu_s)
    }

    fn to_json(&self, case: &str, kind: &str) -> Value {
        let (load, rounded) = (&self.load, |value: f64| (value * 1000.0).round() / 1000.0);
        let cpu_us = |seconds: f64| rounded(seconds * 1e6 / (load.answers.max(1) as f64));
        json!({
            "case": case, "setup": kind, "seed": self.seed,
            "answers_per_s": rounded(self.rate(|load| load.answers)),
            "events_per_s": rounded(self.rate(|load| load.events)),
            "latency_ms_p50": rounded(load.latency_ms.0), "latency_ms_p99": rounded(load.latency_ms.1),
            "cpu_us_per_answer": {
                "envoy": cpu_us(load.usage[0].cpu_s),
                "upstream": cpu_us(load.usage[1].cpu_s),
                "service": cpu_us(self.service_cpu_s()),
                "load": cpu_us(load.own_cpu_s),
            },
            "load_busy": rounded(load.own_cpu_s / load.seconds),
            "load_late_ms_p99": rounded(load.late_ms.0), "load_late_ms_max": rounded(load.late_ms.1),
            "envoy_resident_mib": rounded(load.usage[0].resident_mib),
        })
    }
}

/// All runs so far, by case and by which of the compared.
#[derive(Default)]
pub(crate) struct Results {
    runs: BTreeMap<(&'static str, &'static str), Vec<Run>>,
}

impl Results {
    /// One round of a case: each of `setups`, the first of them changing with the seed.
    pub(crate) async fn round(
        &mut self,
        case: Case,
        seed: u64,
        window: Duration,
        setups: &mut [&mut Setup],
        upstream: &Upstream,
    ) -> Result<()> {
        let count = setups.len();
        for turn in 0..count {
            let setup = &mut setups[(turn + usize::try_from(seed)?) % count];
            let kind = setup.kind;
            let mut pids = vec![setup.envoy_pid(), upstream.pid()];
            pids.extend(setup.service_pid()?);
            let has_service = pids.len() > 2;
            let exchanges =
                bodies::exchanges(kind.host(), case.body_bytes, case.form, kind.shows_usage(), seed);
            let address = setup.envoy.address;
            let load = load::run(Plan { address, connections: CONNECTIONS, exchanges, window, pids }).await?;
            ensure!(load.wrong.is_empty(), "{} {}: wrong answers: {:#?}", case.name, kind.name(), load.wrong);
            self.runs.entry((case.name, kind.name())).or_default().push(Run { seed, load, has_service });
        }
        Ok(())
    }

    fn of(&self, case: &str, kind: Kind) -> &[Run] {
        let found = self.runs.iter().find(|((name, setup), _)| *name == case && *setup == kind.name());
        found.map_or(&[], |(_, runs)| runs)
    }

    /// Answers (or events) a second, one number a round.
    fn rates(&self, case: &str, kind: Kind, of: impl Fn(&Load) -> u64 + Copy) -> Vec<f64> {
        self.of(case, kind).iter().map(|run| run.rate(of)).collect()
    }

    /// Median over the rounds of the ratio of answers a second.
    pub(crate) fn answers_ratio(&self, case: &str, ours: Kind, theirs: Kind) -> f64 {
        let rates = |kind| self.rates(case, kind, |load| load.answers);
        median(&ratios(&rates(ours), &rates(theirs)))
    }

    /// The same of events.
    pub(crate) fn events_ratio(&self, case: &str, ours: Kind, theirs: Kind) -> f64 {
        let rates = |kind| self.rates(case, kind, |load| load.events);
        median(&ratios(&rates(ours), &rates(theirs)))
    }

    /// Median of answers a second.
    pub(crate) fn answers(&self, case: &str, kind: Kind) -> f64 {
        median(&self.rates(case, kind, |load| load.answers))
    }

    /// Median of events a second.
    pub(crate) fn events(&self, case: &str, kind: Kind) -> f64 {
        median(&self.rates(case, kind, |load| load.events))
    }

    /// CPU microseconds of the service an answer, over all rounds together: CPU time is counted in ticks of 10 ms.
    pub(crate) fn service_cpu_us(&self, case: &str, kind: Kind) -> f64 {
        let runs = self.of(case, kind);
        let cpu_s: f64 = runs.iter().map(Run::service_cpu_s).sum();
        let answers: u64 = runs.iter().map(|run| run.load.answers).sum();
        cpu_s * 1e6 / answers as f64
    }

    /// Events that pass for each second of Envoy's CPU, over all rounds together.
    pub(crate) fn events_per_envoy_cpu_s(&self, case: &str, kind: Kind) -> f64 {
        let runs = self.of(case, kind);
        let cpu_s: f64 = runs.iter().map(|run| run.load.usage[0].cpu_s).sum();
        runs.iter().map(|run| run.load.events).sum::<u64>() as f64 / cpu_s
    }

    /// Median of Envoy's memory at the end of a round, under load, MiB.
    pub(crate) fn envoy_mib(&self, case: &str, kind: Kind) -> f64 {
        median(&self.of(case, kind).iter().map(|run| run.load.usage[0].resident_mib).collect::<Vec<_>>())
    }

    /// Answers in all that one of the compared gave.
    pub(crate) fn answered(&self, kind: Kind) -> u64 {
        let runs =
            self.runs.iter().filter(|((_, setup), _)| *setup == kind.name()).flat_map(|(_, runs)| runs);
        runs.map(|run| run.load.all).sum()
    }

    /// Every run.
    pub(crate) fn to_json(&self) -> Value {
        let runs =
            self.runs.iter().flat_map(|((case, kind), runs)| runs.iter().map(|run| run.to_json(case, kind)));
        Value::Array(runs.collect())
    }
}
