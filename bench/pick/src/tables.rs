//! A run's tables and figures.

use crate::summary::Summary;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Ratios beyond this say only "far".
const FAR: f64 = 999.0;
/// How much worse than a rival counts as losing.
pub const LOSS: f64 = 0.05;

/// The summaries of one workload: strategy to one summary for each seed.
pub type BySeed = BTreeMap<String, Vec<Summary>>;

/// What is compared: name, the number of a summary, whether higher is better.
type Measure = (&'static str, fn(&Summary) -> f64, bool);

/// In the order of the tables.
pub const MEASURES: [Measure; 6] = [
    ("goodput", |summary| summary.good_per_s, true),
    ("hit_rate", |summary| summary.hit_rate, true),
    ("ttft_p50", |summary| summary.first_s[0], false),
    ("ttft_p99", |summary| summary.first_s[1], false),
    ("e2e_p50", |summary| summary.end_s[0], false),
    ("e2e_p99", |summary| summary.end_s[1], false),
];

fn mean(summaries: &[Summary], of: fn(&Summary) -> f64) -> f64 {
    summaries.iter().map(of).sum::<f64>() / summaries.len().max(1) as f64
}

/// The advantage of `ours` over `theirs`, above 1 where ours is better: the means over the seeds, divided.
#[must_use]
pub fn advantage(ours: &[Summary], theirs: &[Summary], (_, of, higher): Measure) -> f64 {
    let (ours, theirs) = (mean(ours, of), mean(theirs, of));
    let (better, worse) = if higher { (ours, theirs) } else { (theirs, ours) };
    if better.total_cmp(&worse).is_eq() { 1.0 } else { (better / worse.max(1e-9)).min(FAR) }
}

/// Every summary of a workload, a line each.
#[must_use]
pub fn summaries(workload: &str, all: &BySeed, seeds: &[u64]) -> String {
    let mut text = format!(
        "{workload:<13} {:<13} {:>4} {:>6} {:>5} {:>7} {:>6} {:>6} {:>7} {:>7} {:>7} {:>7} {:>6}\n",
        "strategy",
        "seed",
        "n",
        "fail",
        "good/s",
        "good",
        "hits",
        "ttft50",
        "ttft99",
        "e2e50",
        "e2e99",
        "gap50"
    );
    for (strategy, summaries) in all {
        for (summary, seed) in summaries.iter().zip(seeds) {
            let ms = |seconds: f64| format!("{:.0}", seconds * 1000.0);
            let _ = writeln!(
                text,
                "{:<13} {strategy:<13} {seed:>4} {:>6} {:>5} {:>7.2} {:>5.0}% {:>5.0}% {:>7} {:>7} {:>7} {:>7} {:>6}",
                "",
                summary.count,
                summary.failed,
                summary.good_per_s,
                summary.good_share * 100.0,
                summary.hit_rate * 100.0,
                ms(summary.first_s[0]),
                ms(summary.first_s[1]),
                ms(summary.end_s[0]),
                ms(summary.end_s[1]),
                ms(summary.gap_p50_s),
            );
        }
    }
    text
}

/// Advantages of `ours` over every rival, a line each; then where it loses by more than [`LOSS`].
#[must_use]
pub fn advantages(ours: &str, results: &BTreeMap<String, BySeed>) -> String {
    let mut text = format!("{:<13} {ours} over", "advantage of");
    for (name, ..) in MEASURES {
        let _ = write!(text, " {name:>9}");
    }
    text.push('\n');
    let mut losses = String::new();
    for (workload, all) in results {
        let Some(own) = all.get(ours) else { continue };
        for (rival, theirs) in all.iter().filter(|(strategy, _)| *strategy != ours) {
            let _ = write!(text, "{workload:<13} {rival:<15}");
            for measure in MEASURES {
                let value = advantage(own, theirs, measure);
                let _ = write!(text, " {value:>9.2}");
                if value < 1.0 - LOSS {
                    let _ = writeln!(losses, "!!! LOSES: {workload} {} to {rival}: {value:.3}", measure.0);
                }
            }
            text.push('\n');
        }
    }
    text + &losses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(good_per_s: f64, first_s: f64) -> Summary {
        Summary { good_per_s, first_s: [first_s; 2], end_s: [1.0; 2], hit_rate: 0.5, ..Summary::default() }
    }

    #[test]
    fn above_one_is_better_whatever_the_direction() {
        let (ours, theirs) = ([summary(6.0, 0.1), summary(4.0, 0.3)], [summary(2.0, 0.4), summary(3.0, 0.4)]);
        assert!((advantage(&ours, &theirs, MEASURES[0]) - 2.0).abs() < 1e-9);
        assert!((advantage(&ours, &theirs, MEASURES[2]) - 2.0).abs() < 1e-9);
        assert!(
            (advantage(&[summary(1.0, 1.0)], &[summary(0.0, f64::INFINITY)], MEASURES[0]) - FAR).abs() < 1e-9
        );
        assert!((advantage(&[summary(0.0, 1.0)], &[summary(0.0, 1.0)], MEASURES[0]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_loss_is_told() {
        let all = BTreeMap::from([
            ("least_work".to_owned(), vec![summary(9.0, 0.1)]),
            ("round_robin".to_owned(), vec![summary(10.0, 0.1)]),
        ]);
        let text = advantages("least_work", &BTreeMap::from([("uniform".to_owned(), all)]));
        assert!(text.contains("!!! LOSES: uniform goodput to round_robin: 0.900"), "{text}");
        assert_eq!(text.matches("LOSES").count(), 1, "{text}");
    }
}
