//! Strategies against each other on simulated engines in virtual time, by seed: what is asserted always holds or never.
//!
//! Engines batch continuously and keep prefix caches like vLLM; the pool gets what it gets in life: looks at the engines four
//! times a second and a little late, reports of first tokens and ends in batches of 20 ms, and priors that are half or
//! double the truth. `cargo test -p ext-proc-pick --test simulation -- --nocapture` prints the figures.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of it is test code"
)]

mod cache;
mod engine;
mod workload;
mod world;

use ext_proc_pick::Strategy;
use workload::Kind;
use world::{Fate, Plan, run};

/// Seconds of arrivals in a run; the first quarter isn't counted.
const SECONDS: f64 = 60.0;

/// A cell of the comparison, over its seeds.
#[derive(Clone, Copy, Debug)]
struct Figures {
    requests: usize,
    p50: f64,
    p99: f64,
    good: f64,
    hit: f64,
}

fn figures(fates: &[Fate]) -> Figures {
    let mut ttft: Vec<f64> = fates.iter().map(|fate| fate.ttft_s).collect();
    ttft.sort_by(f64::total_cmp);
    let at = |share: f64| ttft[((ttft.len() - 1) as f64 * share) as usize];
    let count = fates.len() as f64;
    Figures {
        requests: fates.len(),
        p50: at(0.5),
        p99: at(0.99),
        good: fates.iter().filter(|fate| fate.good).count() as f64 / count,
        hit: fates.iter().map(|fate| fate.hit).sum::<f64>() / count,
    }
}

/// All strategies at one load, printed.
struct Row {
    ours: Figures,
    simple: [Figures; 2],
    what: String,
}

fn row(kind: Kind, endpoints: usize, load: f64, seeds: &[u64]) -> Row {
    let what = format!("{kind:?} on {endpoints} at {load}");
    let of = |strategy: Strategy| {
        let fates: Vec<Fate> = seeds
            .iter()
            .flat_map(|&seed| run(Plan { kind, strategy, endpoints, load, seconds: SECONDS, seed }))
            .collect();
        let f = figures(&fates);
        println!(
            "{what:24} {:13} n {:6}  ttft p50 {:7.4} p99 {:8.4} s  good {:5.3}  hit {:5.3}",
            strategy.as_label(),
            f.requests,
            f.p50,
            f.p99,
            f.good,
            f.hit
        );
        f
    };
    let ours = of(Strategy::LeastWork);
    if is_full() {
        of(Strategy::PrefixOnly);
    }
    Row { ours, simple: [Strategy::LeastRequest, Strategy::RoundRobin].map(of), what }
}

fn is_full() -> bool {
    std::env::var_os("TOKENWEIR_FULL").is_some()
}

/// The loads of a kind; with `TOKENWEIR_FULL`, more of them and seeds that nothing was tuned on.
fn rows(kind: Kind) -> Vec<Row> {
    let (cells, seeds): (Vec<(usize, f64)>, Vec<u64>) = if is_full() {
        let loads = [0.5, 0.7, 0.85, 1.0, 1.15];
        (loads.iter().flat_map(|&load| [2, 4, 8].map(|n| (n, load))).collect(), (1..=10).collect())
    } else {
        (vec![(2, 0.7), (2, 1.0), (4, 0.7), (4, 1.0), (8, 1.0)], vec![1, 2, 3])
    };
    cells.into_iter().map(|(endpoints, load)| row(kind, endpoints, load, &seeds)).collect()
}

/// At each load no worse than 5 % against the better of the simple strategies, figure by figure. One that fails requests to
/// make the others fast isn't the better one: it counts for latency only where it serves as many well as we do.
fn loses_nowhere(rows: &[Row]) {
    for Row { ours, simple, what } in rows {
        let peers: Vec<&Figures> = simple.iter().filter(|peer| peer.good >= 0.95 * ours.good).collect();
        let best = |of: fn(&Figures) -> f64| peers.iter().map(|peer| of(peer)).fold(f64::INFINITY, f64::min);
        assert!(
            ours.p50 <= 1.05 * best(|f| f.p50),
            "{what}: median {} against {}",
            ours.p50,
            best(|f| f.p50)
        );
        assert!(ours.p99 <= 1.05 * best(|f| f.p99), "{what}: p99 {} against {}", ours.p99, best(|f| f.p99));
        let good = simple.iter().map(|peer| peer.good).fold(0.0, f64::max);
        assert!(ours.good >= 0.95 * good, "{what}: good {} against {good}", ours.good);
    }
}

/// At each load, median and tail of the time to the first token are at most these shares of the better simple strategy's.
fn wins(rows: &[Row], p50: f64, p99: f64) {
    for Row { ours, simple: [a, b], what } in rows {
        let (best50, best99) = (a.p50.min(b.p50), a.p99.min(b.p99));
        assert!(ours.p50 <= p50 * best50, "{what}: median {} against {best50}", ours.p50);
        assert!(ours.p99 <= p99 * best99, "{what}: p99 {} against {best99}", ours.p99);
        assert!(ours.hit > a.hit.max(b.hit), "{what}: hit rate");
        assert!(ours.good >= a.good.max(b.good), "{what}: good {}", ours.good);
    }
}

#[test]
fn shared_prefixes_are_won_clearly() {
    wins(&rows(Kind::SharedPrefix), 0.85, 0.9);
}

#[test]
fn conversations_are_won_clearly() {
    wins(&rows(Kind::MultiTurn), 0.88, 0.9);
}

#[test]
fn a_hot_prefix_that_flips_is_not_lost() {
    loses_nowhere(&rows(Kind::HotFlips));
}

#[test]
fn uniform_short_prompts_are_not_lost() {
    loses_nowhere(&rows(Kind::UniformShort));
}

#[test]
fn one_slow_engine_loses_nothing() {
    loses_nowhere(&rows(Kind::OneSlow));
}

#[test]
fn one_full_cache_loses_nothing() {
    loses_nowhere(&rows(Kind::OneFull));
}

#[test]
fn mixed_lengths_are_not_lost() {
    loses_nowhere(&rows(Kind::MixedLengths));
}
