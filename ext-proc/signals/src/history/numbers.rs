//! A page's numbers → what the pick calculates with.
//!
//! What can't be true is dropped one by one and counted; the rest of the page is used. A load that is missing for once is
//! the one before, because an endpoint must not look idle for having said something odd.
//!
//! Ranks of a data-parallel server stand behind one address: requests, preemptions and room add up. KV use is their
//! mean, so that use times room is what is held; vLLM's own balancing sends the next request where there is room.

use std::collections::BTreeSet;
use std::sync::Arc;

use ext_proc_pick::Stats;
use proto_vllm::metrics::{CacheConfig, EngineStats, Field, Lora, Page};

use crate::limits::{ADAPTERS_MAX, BLOCK_TOKENS_MAX, CAPACITY_TOKENS_MAX, COUNT_MAX, HELD_MS, REQUESTS_MAX};

/// A number of the page before, and when that was.
type Held = Option<(f64, u64)>;

/// The loads of the last good page.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    running: Held,
    waiting: Held,
    kv_usage: Held,
}

impl Numbers {
    /// The numbers of a page, and how many of it were absurd. No numbers: the page says nothing of requests.
    pub(super) fn take(&mut self, page: &Page, now_ms: u64) -> (Option<Stats>, u32) {
        let mut absurd = 0;
        let running = Sum::over(page, REQUESTS_MAX, &mut absurd, |stats| stats.get(Field::Running));
        let waiting = Sum::over(page, REQUESTS_MAX, &mut absurd, waiting);
        let kv_usage = Sum::over(page, 1.0, &mut absurd, |stats| stats.get(Field::KvUsage));
        let preemptions = Sum::over(page, COUNT_MAX, &mut absurd, |stats| stats.get(Field::Preemptions));
        for counter in [Field::PromptTokens, Field::GenerationTokens] {
            Sum::over(page, COUNT_MAX, &mut absurd, |stats| stats.get(counter));
        }
        let (kv_capacity_tokens, block_tokens) = room(&page.caches, &mut absurd);
        let (lora_active, lora_max) = adapters(page.lora.as_ref(), &mut absurd);

        let running = hold(&mut self.running, running.total, running.whole, now_ms);
        let waiting = hold(&mut self.waiting, waiting.total, waiting.whole, now_ms);
        let kv_usage = hold(&mut self.kv_usage, kv_usage.mean(), kv_usage.whole, now_ms);
        if running.is_none() && waiting.is_none() {
            return (None, absurd);
        }
        let stats = Stats {
            running: requests(running),
            waiting: requests(waiting),
            kv_usage: kv_usage.unwrap_or_default() as f32,
            kv_capacity_tokens,
            block_tokens,
            // Whole, and far from the bounds of either type.
            preemptions: preemptions.total.map(|count| count as u64),
            lora_active,
            lora_max,
        };
        (Some(stats), absurd)
    }
}

/// A number over all ranks.
struct Sum {
    total: Option<f64>,
    ranks: u32,
    /// No rank's was dropped.
    whole: bool,
}

impl Sum {
    fn over(page: &Page, max: f64, absurd: &mut u32, get: impl Fn(&EngineStats) -> Option<f64>) -> Self {
        let mut sum = Self { total: None, ranks: 0, whole: true };
        for value in page.engines.iter().filter_map(get) {
            if believable(value, max) {
                sum.total = Some(sum.total.unwrap_or_default() + value);
                sum.ranks += 1;
            } else {
                *absurd += 1;
                sum.whole = false;
            }
        }
        sum
    }

    fn mean(&self) -> Option<f64> {
        self.total.map(|total| total / f64::from(self.ranks.max(1)))
    }
}

/// Whether a number can be true. `NaN` is in no range.
pub(super) fn believable(value: f64, max: f64) -> bool {
    (0.0..=max).contains(&value)
}

/// Requests waiting, from the parts where the whole isn't said.
pub(super) fn waiting(stats: &EngineStats) -> Option<f64> {
    stats.get(Field::Waiting).or_else(|| {
        let parts = [Field::WaitingCapacity, Field::WaitingDeferred, Field::WaitingOther];
        parts.into_iter().filter_map(|part| stats.get(part)).reduce(|sum, part| sum + part)
    })
}

/// The number of now where it is whole, else the one held where that is fresh, else what there is.
fn hold(held: &mut Held, now: Option<f64>, whole: bool, now_ms: u64) -> Option<f64> {
    match (now, whole) {
        (Some(value), true) => {
            *held = Some((value, now_ms));
            now
        }
        _ => held.filter(|(_, at)| now_ms.saturating_sub(*at) <= HELD_MS).map(|(value, _)| value).or(now),
    }
}

/// `as` saturates, and what is absurd is out.
fn requests(count: Option<f64>) -> u32 {
    count.unwrap_or_default() as u32
}

/// Tokens of room over all ranks, and tokens per block.
fn room(caches: &[CacheConfig], absurd: &mut u32) -> (Option<u64>, Option<u32>) {
    let mut known = |value: Option<u64>, max: u64| {
        let value = value?;
        if (1..=max).contains(&value) {
            return Some(value);
        }
        *absurd += 1;
        None
    };
    let block = caches.iter().filter_map(|cache| known(cache.block_size, BLOCK_TOKENS_MAX)).max();
    let sizes: Vec<Option<u64>> =
        caches.iter().map(|cache| known(cache.kv_cache_size_tokens, CAPACITY_TOKENS_MAX)).collect();
    let said = sizes.iter().copied().sum::<Option<u64>>().filter(|_| !sizes.is_empty());
    // Every rank says the blocks of all ranks: they don't add up.
    let blocks = caches.iter().filter_map(|cache| known(cache.num_gpu_blocks, CAPACITY_TOKENS_MAX)).max();
    let counted = blocks.zip(block).map(|(blocks, block)| blocks.saturating_mul(block));
    (
        said.or(counted.filter(|tokens| *tokens <= CAPACITY_TOKENS_MAX)),
        block.and_then(|block| block.try_into().ok()),
    )
}

fn adapters(lora: Option<&Lora>, absurd: &mut u32) -> (Option<Arc<BTreeSet<String>>>, Option<u32>) {
    let Some(lora) = lora else { return (None, None) };
    let names = lora.running.iter().chain(&lora.waiting).map(|name| String::from(&**name));
    let max = lora.max.filter(|max| *max <= ADAPTERS_MAX);
    if max.is_none() && lora.max.is_some() {
        *absurd += 1;
    }
    (Some(Arc::new(names.collect())), max.and_then(|max| max.try_into().ok()))
}
