//! Families that the exporter cannot hold well, kept and written here.
//!
//! *Inter-token gaps* come from the filter as histograms, thousands of gaps at once: the exporter would keep each gap as
//! a sample until its next upkeep. Here they are added bucket by bucket, and the sum is exact. *Gauges of endpoints* are
//! in a module of their own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use proto_tokenweir::GAP_BUCKETS;
use proto_tokenweir::v1::GapHistogram;

use super::endpoints::{self, Rows};
use super::families::{Family, INTER_TOKEN};

/// Gaps of one (model, pool).
#[derive(Debug, Default)]
pub(super) struct Gaps {
    buckets: [AtomicU64; GAP_BUCKETS],
    sum_us: AtomicU64,
}

impl Gaps {
    pub(super) fn add(&self, gaps: &GapHistogram) {
        for (bucket, count) in self.buckets.iter().zip(&gaps.buckets) {
            bucket.fetch_add(u64::from(*count), Ordering::Relaxed);
        }
        self.sum_us.fetch_add(gaps.sum_us, Ordering::Relaxed);
    }
}

type Table<K, V> = Mutex<BTreeMap<K, V>>;

#[derive(Debug, Default)]
pub(super) struct Exact {
    gaps: Table<(String, String), Arc<Gaps>>,
    endpoints: Mutex<Rows>,
}

impl Exact {
    pub(super) fn gaps(&self, model: &str, pool: &str) -> Arc<Gaps> {
        let mut table = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(table.entry((model.to_owned(), pool.to_owned())).or_default())
    }

    /// The endpoints of now, in place of those of before.
    pub(super) fn set_endpoints(&self, rows: Rows) {
        *self.endpoints.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// Appends all of it in Prometheus' text format.
    pub(super) fn render(&self, out: &mut String) {
        // Writing to a `String` cannot fail.
        let _ = self.render_gaps(out);
        endpoints::render(&self.endpoints.lock().unwrap_or_else(PoisonError::into_inner), out);
    }

    fn render_gaps(&self, out: &mut String) -> std::fmt::Result {
        let table = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        head(out, &INTER_TOKEN, "histogram")?;
        let name = INTER_TOKEN.name;
        for ((model, pool), gaps) in table.iter() {
            let labels = format!("model=\"{}\",pool=\"{}\"", escaped(model), escaped(pool));
            let mut total = 0_u64;
            let mut bound_ms = 1_u64;
            for bucket in gaps.buckets.iter().take(GAP_BUCKETS - 1) {
                total = total.saturating_add(bucket.load(Ordering::Relaxed));
                let (s, ms) = (bound_ms / 1000, bound_ms % 1000);
                writeln!(out, "{name}_bucket{{{labels},le=\"{s}.{ms:03}\"}} {total}")?;
                bound_ms = bound_ms.saturating_mul(2);
            }
            let rest = gaps.buckets.last().map_or(0, |bucket| bucket.load(Ordering::Relaxed));
            total = total.saturating_add(rest);
            let sum_us = gaps.sum_us.load(Ordering::Relaxed);
            writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {total}")?;
            writeln!(out, "{name}_sum{{{labels}}} {}.{:06}", sum_us / 1_000_000, sum_us % 1_000_000)?;
            writeln!(out, "{name}_count{{{labels}}} {total}")?;
        }
        out.write_char('\n')
    }
}

pub(super) fn head(out: &mut String, family: &Family, kind: &str) -> std::fmt::Result {
    writeln!(out, "# HELP {} {}\n# TYPE {} {kind}", family.name, family.help, family.name)
}

/// A label value as the text format wants it.
pub(super) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::EndpointGauges;

    #[test]
    fn gaps_add_up_bucket_by_bucket_with_an_exact_sum() {
        let exact = Exact::default();
        let mut gaps =
            GapHistogram { buckets: vec![0; GAP_BUCKETS], count: 5, sum_us: 70_000_123, max_us: 66_000_000 };
        gaps.buckets[0] = 3;
        gaps.buckets[2] = 1;
        gaps.buckets[GAP_BUCKETS - 1] = 1;
        exact.gaps("m\"", "p").add(&gaps);
        exact.gaps("m\"", "p").add(&gaps);
        let mut text = String::new();
        exact.render(&mut text);
        for line in [
            "tokenweir_inter_token_seconds_bucket{model=\"m\\\"\",pool=\"p\",le=\"0.001\"} 6",
            "tokenweir_inter_token_seconds_bucket{model=\"m\\\"\",pool=\"p\",le=\"0.004\"} 8",
            "tokenweir_inter_token_seconds_bucket{model=\"m\\\"\",pool=\"p\",le=\"65.536\"} 8",
            "tokenweir_inter_token_seconds_bucket{model=\"m\\\"\",pool=\"p\",le=\"+Inf\"} 10",
            "tokenweir_inter_token_seconds_sum{model=\"m\\\"\",pool=\"p\"} 140.000246",
            "tokenweir_inter_token_seconds_count{model=\"m\\\"\",pool=\"p\"} 10",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\nis not in\n{text}");
        }
    }

    #[test]
    fn an_endpoint_that_left_is_forgotten() {
        let exact = Exact::default();
        let row = |at: &str| ("p".to_owned(), at.parse().expect("an address"), EndpointGauges::default());
        exact.set_endpoints(vec![row("127.0.0.1:1"), row("[::1]:2")]);
        exact.set_endpoints(vec![row("127.0.0.1:1")]);
        let mut text = String::new();
        exact.render(&mut text);
        assert!(text.contains("tokenweir_in_flight{pool=\"p\",endpoint=\"127.0.0.1:1\"} 0"), "{text}");
        assert!(!text.contains("[::1]:2"), "{text}");
    }
}
