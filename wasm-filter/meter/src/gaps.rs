//! Time between the data events of one response, as a histogram of fixed size.

use proto_tokenweir::{GAP_BUCKETS, gap_bucket, v1::GapHistogram};

/// The gaps seen so far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Gaps {
    buckets: [u32; GAP_BUCKETS],
    count: u64,
    sum_us: u64,
    max_us: u64,
    last_us: Option<u64>,
}

impl Gaps {
    /// `events` data events arrived together at `now_us`: one gap since the events before, and none between themselves.
    pub(crate) fn arrive(&mut self, now_us: u64, events: u32) {
        if events == 0 {
            return;
        }
        if let Some(last) = self.last_us {
            self.add(now_us.saturating_sub(last), 1);
        }
        self.add(0, events - 1);
        self.last_us = Some(now_us);
    }

    fn add(&mut self, gap_us: u64, times: u32) {
        if times == 0 {
            return;
        }
        if let Some(bucket) = self.buckets.get_mut(gap_bucket(gap_us)) {
            *bucket = bucket.saturating_add(times);
        }
        self.count = self.count.saturating_add(u64::from(times));
        self.sum_us = self.sum_us.saturating_add(gap_us.saturating_mul(u64::from(times)));
        self.max_us = self.max_us.max(gap_us);
    }

    /// As it is reported; `None` when there was no gap.
    pub(crate) fn report(&self) -> Option<GapHistogram> {
        (self.count > 0).then(|| GapHistogram {
            buckets: self.buckets.to_vec(),
            count: self.count,
            sum_us: self.sum_us,
            max_us: self.max_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_chunk_have_no_gap_between_them() {
        let mut gaps = Gaps::default();
        gaps.arrive(10_000, 1);
        assert_eq!(gaps.report(), None);
        gaps.arrive(13_000, 3);
        gaps.arrive(13_000, 0);
        gaps.arrive(113_000, 1);
        let seen = gaps.report().unwrap();
        assert_eq!((seen.count, seen.sum_us, seen.max_us), (4, 103_000, 100_000));
        assert_eq!(seen.buckets.iter().map(|b| u64::from(*b)).sum::<u64>(), 4);
        assert_eq!((seen.buckets[0], seen.buckets[2], seen.buckets[7]), (2, 1, 1));
    }
}
