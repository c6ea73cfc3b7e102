//! From answers to the numbers that are compared.

use serde_json::{Value, json};

/// What is good enough, in engine time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Seconds until the first token, at most.
    pub first_s: f64,
    /// Seconds between two tokens, on average over an answer, at most.
    pub gap_s: f64,
}

/// One answer, in engine time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answer {
    /// Whether it came whole, with 200 and usage.
    pub whole: bool,
    /// When it was due.
    pub due_s: f64,
    /// Seconds from when it was due until the first token.
    pub first_s: f64,
    /// Seconds from when it was due until the end.
    pub end_s: f64,
    /// Mean seconds between two tokens.
    pub gap_s: f64,
    /// Seconds that it was sent late.
    pub late_s: f64,
    /// Prompt tokens, as the usage says.
    pub prompt_tokens: u64,
    /// Those of them that were cached.
    pub cached_tokens: u64,
}

/// All answers of a strategy in one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Answers, whole or not.
    pub count: usize,
    /// Those that failed or weren't whole in time.
    pub failed: usize,
    /// Good answers a second of engine time.
    pub good_per_s: f64,
    /// Good answers of all.
    pub good_share: f64,
    /// Cached prompt tokens of all.
    pub hit_rate: f64,
    /// Median and 99th percentile of seconds until the first token.
    pub first_s: [f64; 2],
    /// Median and 99th percentile of seconds until the end.
    pub end_s: [f64; 2],
    /// Median of the mean gap of an answer, seconds.
    pub gap_p50_s: f64,
    /// 99th percentile of seconds that requests were sent late.
    pub late_p99_s: f64,
}

/// The value that `share` of `values` stay within; answers that failed count as infinite.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

impl Summary {
    /// Of `answers` to requests that were due from `warm_s` to `span_s` seconds of engine time; the earlier ones only fill
    /// caches and batches.
    #[must_use]
    pub fn of(answers: &[Answer], warm_s: f64, span_s: f64, objective: Objective) -> Self {
        let answers: Vec<Answer> = answers.iter().filter(|answer| answer.due_s >= warm_s).copied().collect();
        let is_good = |answer: &&Answer| {
            answer.whole && answer.first_s <= objective.first_s && answer.gap_s <= objective.gap_s
        };
        let good = answers.iter().filter(is_good).count() as f64;
        let sorted = |of: fn(&Answer) -> f64| -> Vec<f64> {
            let value = |answer: &Answer| if answer.whole { of(answer) } else { f64::INFINITY };
            answers.iter().map(value).collect()
        };
        let both = |mut values: Vec<f64>| [quantile(&mut values, 0.5), quantile(&mut values, 0.99)];
        let prompt: u64 = answers.iter().map(|answer| answer.prompt_tokens).sum();
        let cached: u64 = answers.iter().map(|answer| answer.cached_tokens).sum();
        Self {
            count: answers.len(),
            failed: answers.iter().filter(|answer| !answer.whole).count(),
            good_per_s: good / (span_s - warm_s),
            good_share: good / answers.len().max(1) as f64,
            hit_rate: cached as f64 / prompt.max(1) as f64,
            first_s: both(sorted(|answer| answer.first_s)),
            end_s: both(sorted(|answer| answer.end_s)),
            gap_p50_s: both(sorted(|answer| answer.gap_s))[0],
            late_p99_s: quantile(&mut answers.iter().map(|answer| answer.late_s).collect::<Vec<_>>(), 0.99),
        }
    }

    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "count": self.count, "failed": self.failed, "good_per_s": self.good_per_s,
            "good_share": self.good_share, "hit_rate": self.hit_rate,
            "ttft_p50_s": self.first_s[0], "ttft_p99_s": self.first_s[1],
            "e2e_p50_s": self.end_s[0], "e2e_p99_s": self.end_s[1],
            "gap_p50_s": self.gap_p50_s, "late_p99_s": self.late_p99_s,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(first_s: f64, gap_s: f64) -> Answer {
        let (prompt_tokens, cached_tokens) = (100, 25);
        Answer {
            whole: true,
            due_s: 3.0,
            first_s,
            end_s: first_s + 1.0,
            gap_s,
            late_s: 0.0,
            prompt_tokens,
            cached_tokens,
        }
    }

    #[test]
    fn good_is_both_objectives_and_whole() {
        let objective = Objective { first_s: 1.0, gap_s: 0.06 };
        let failed = Answer { whole: false, ..answer(0.1, 0.01) };
        let early = Answer { due_s: 1.9, ..answer(0.1, 0.01) };
        let answers = [answer(0.5, 0.05), answer(1.5, 0.05), answer(0.5, 0.07), failed, early];
        let summary = Summary::of(&answers, 2.0, 4.0, objective);
        assert_eq!((summary.count, summary.failed), (4, 1));
        assert!((summary.good_per_s - 0.5).abs() < 1e-12 && (summary.hit_rate - 0.25).abs() < 1e-12);
        assert!((summary.first_s[0] - 0.5).abs() < 1e-12);
        assert!(summary.first_s[1].is_infinite(), "who gave no answer waits for ever");
    }

    #[test]
    fn quantiles_of_few_and_none() {
        assert!((quantile(&mut [3.0, 1.0, 2.0], 0.5) - 2.0).abs() < 1e-12);
        assert!((quantile(&mut [3.0, 1.0, 2.0], 0.99) - 3.0).abs() < 1e-12);
        assert!(quantile(&mut [], 0.5).is_nan());
    }
}
