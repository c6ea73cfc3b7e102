//! Counters and histograms of one scheduler, as vLLM's `/metrics` shows them. Times are virtual seconds.

use super::request::Request;

const TOKENS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0];
const ITERATION: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const SEQUENCES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const NEXT_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const WHOLE: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

/// Counts by upper bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub(crate) fn observe(&mut self, value: f64) {
        let at = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[at] += 1;
        self.sum += value;
    }

    /// How many were observed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Upper bounds and how many were at most that; the last bound is infinite.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        }))
    }
}

/// What was so at the end of the newest step: vLLM sets its gauges then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Requests in the batch.
    pub running: usize,
    /// Requests not in the batch.
    pub waiting: usize,
    /// Those of the waiting ones that wait for an adapter's place.
    pub deferred: usize,
    /// Share of blocks in use, 0 to 1.
    pub kv_usage: f64,
}

/// Everything counted since the start.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each is the vLLM metric of the same meaning")]
pub struct Stats {
    pub gauges: Gauges,
    pub steps: u64,
    pub preemptions: u64,
    pub cache_queries: u64,
    pub cache_hits: u64,
    pub prompt_tokens: u64,
    pub prompt_cached: u64,
    pub generation_tokens: u64,
    pub stopped: u64,
    pub at_length: u64,
    pub refused_requests: u64,
    pub refused_tokens: u64,
    pub iteration_tokens: Histogram,
    pub request_prompt: Histogram,
    pub request_generation: Histogram,
    pub request_generation_most: Histogram,
    pub request_n: Histogram,
    pub request_max_tokens: Histogram,
    pub first_token: Histogram,
    pub next_token: Histogram,
    pub per_token: Histogram,
    pub whole: Histogram,
    pub queued: Histogram,
    pub inference: Histogram,
    pub prefill: Histogram,
    pub decode: Histogram,
    pub request_preemptions: Histogram,
    pub request_computed: Histogram,
}

impl Default for Stats {
    fn default() -> Self {
        let of = Histogram::new;
        Self {
            gauges: Gauges::default(),
            steps: 0,
            preemptions: 0,
            cache_queries: 0,
            cache_hits: 0,
            prompt_tokens: 0,
            prompt_cached: 0,
            generation_tokens: 0,
            stopped: 0,
            at_length: 0,
            refused_requests: 0,
            refused_tokens: 0,
            iteration_tokens: of(ITERATION),
            request_prompt: of(TOKENS),
            request_generation: of(TOKENS),
            request_generation_most: of(TOKENS),
            request_n: of(SEQUENCES),
            request_max_tokens: of(TOKENS),
            first_token: of(FIRST_TOKEN),
            next_token: of(NEXT_TOKEN),
            per_token: of(NEXT_TOKEN),
            whole: of(WHOLE),
            queued: of(WHOLE),
            inference: of(WHOLE),
            prefill: of(WHOLE),
            decode: of(WHOLE),
            request_preemptions: of(PREEMPTIONS),
            request_computed: of(TOKENS),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Stats {
    pub(super) fn first_token(&mut self, request: &Request, now: u64) {
        self.prompt_tokens += request.prompt as u64;
        self.prompt_cached += request.cached as u64;
        self.generation_tokens += 1;
        self.first_token.observe(seconds(now - request.arrived));
    }

    pub(super) fn next_token(&mut self, gap: u64) {
        self.generation_tokens += 1;
        self.next_token.observe(seconds(gap));
    }

    pub(super) fn finished(&mut self, request: &Request) {
        let scheduled = request.scheduled.unwrap_or(request.arrived);
        let decode = seconds(request.last - request.first);
        self.request_prompt.observe(request.prompt as f64);
        self.request_generation.observe(f64::from(request.output));
        self.request_generation_most.observe(f64::from(request.output));
        if request.job.group > 0 {
            self.request_n.observe(f64::from(request.job.group));
        }
        self.request_max_tokens.observe(f64::from(request.job.max_tokens.unwrap_or(request.job.output)));
        let gaps = request.output.saturating_sub(1);
        self.per_token.observe(if gaps == 0 { 0.0 } else { decode / f64::from(gaps) });
        self.whole.observe(seconds(request.last - request.arrived));
        self.queued.observe(seconds(scheduled - request.arrived));
        self.inference.observe(seconds(request.last - scheduled));
        self.prefill.observe(seconds(request.first - scheduled));
        self.decode.observe(decode);
        self.request_preemptions.observe(f64::from(request.preemptions));
        self.request_computed.observe((request.prompt - request.cached) as f64);
    }
}
