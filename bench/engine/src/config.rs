//! What an engine is, and what is wrong with it.

use crate::scheduler::Limits;
use crate::speed::{self, Speed};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// What an engine is from its start on. Defaults are vLLM's, with the optional headers and token details on.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// What it is called in its books and addresses.
    pub name: String,
    /// Where it listens; port 0 takes a free one and keeps it over restarts.
    pub address: SocketAddr,
    /// The served model.
    pub model: String,
    /// Served LoRA adapters.
    pub loras: Vec<String>,
    /// Adapters of one batch.
    pub max_loras: usize,
    /// The step model.
    pub speed: Speed,
    /// Virtual seconds in one second.
    pub time_scale: f64,
    /// Steps end at multiples of this on the clock, so that many engines share timers. Zero: at their own time.
    pub tick: Duration,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks of the KV cache, with the one that vLLM keeps for itself.
    pub blocks: u32,
    /// Requests of one batch.
    pub max_num_seqs: usize,
    /// Tokens of one step.
    pub max_batched_tokens: usize,
    /// Prompt and answer together.
    pub max_model_len: u32,
    /// Whether blocks are found again.
    pub prefix_caching: bool,
    /// Whether a lower `priority` goes first; otherwise only 0 is taken.
    pub priority: bool,
    /// Unfinished requests beyond which new ones are refused with 503.
    pub queue_requests: Option<usize>,
    /// Prompt tokens in prefill from which on new requests are refused with 503.
    pub queue_tokens: Option<u64>,
    /// Tokens of an answer that nothing else limits, drawn from its prompt.
    pub answer_tokens: RangeInclusive<u32>,
    /// Tokens of one SSE event after the first; real engines put several into one when they are late.
    pub event_tokens: u32,
    /// `--enable-prompt-tokens-details`
    pub prompt_tokens_details: bool,
    /// `--enable-force-include-usage`
    pub force_include_usage: bool,
    /// `--enable-per-request-metrics`
    pub request_metrics: bool,
    /// `--enable-request-id-headers`
    pub request_id_headers: bool,
    /// `--enable-scale-out`: the render endpoints.
    pub render: bool,
    /// `VLLM_ENABLE_RESPONSES_API_STORE=1`
    pub responses_store: bool,
    /// Idle connections are closed after this; uvicorn's default is 5 s.
    pub keep_alive: Duration,
    /// Whether block events are kept for [`crate::Engine::block_events`].
    pub block_events: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let preset = speed::PRESETS[1];
        Self {
            name: "engine".to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            model: "tiny-llama".to_owned(),
            loras: Vec::new(),
            max_loras: 4,
            speed: preset.speed,
            time_scale: 1.0,
            tick: Duration::from_millis(1),
            block_tokens: 16,
            blocks: preset.kv_tokens / 16 + 1,
            max_num_seqs: 1024,
            max_batched_tokens: 8192,
            max_model_len: 131_072,
            prefix_caching: true,
            priority: false,
            queue_requests: None,
            queue_tokens: None,
            answer_tokens: 32..=400,
            event_tokens: 1,
            prompt_tokens_details: true,
            force_include_usage: false,
            request_metrics: false,
            request_id_headers: true,
            render: true,
            responses_store: true,
            keep_alive: Duration::from_secs(5),
            block_events: false,
        }
    }
}

impl EngineConfig {
    /// The defaults with the step model and the KV cache of a preset; none where there is no such preset.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        let preset = speed::preset(name)?;
        let block_tokens = 16;
        Some(Self {
            name: name.to_owned(),
            speed: preset.speed,
            block_tokens,
            blocks: preset.kv_tokens / block_tokens + 1,
            ..Self::default()
        })
    }

    /// The longest prompt and answer: vLLM does not start where that does not fit its cache.
    #[must_use]
    pub fn model_len(&self) -> u32 {
        self.max_model_len.min(self.blocks.saturating_sub(1).saturating_mul(self.block_tokens)).max(1)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            block_tokens: self.block_tokens.max(1) as usize,
            blocks: self.blocks,
            seqs: self.max_num_seqs.max(1),
            batched_tokens: self.max_batched_tokens.max(1),
            loras: self.max_loras.max(1),
            caching: self.prefix_caching,
            priority: self.priority,
            queue_requests: self.queue_requests,
            queue_tokens: self.queue_tokens,
            block_events: self.block_events,
        }
    }
}

/// What `/metrics` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricsFault {
    /// The truth.
    #[default]
    None,
    /// The page of the moment when this was set.
    Frozen,
    /// Negative, not-a-number, infinite and enormous values.
    Absurd,
    /// 500.
    Status500,
    /// The truth, after [`SLOW`].
    Slow,
    /// 200 with a page of HTML.
    Html,
    /// The truth and [`HUGE`] more bytes.
    Huge,
}

/// How late slow metrics are.
pub const SLOW: Duration = Duration::from_secs(3);
/// Bytes that huge metrics have too much.
pub const HUGE: usize = 16 << 20;

/// How an engine misbehaves. All may change at any time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Nothing is produced any more; new requests queue up; gauges stay as they are; `/health` says 200.
    pub stalled: bool,
    /// New requests hang; requests in flight stop; the sleep gauge says so.
    pub sleeping: bool,
    /// New requests hang; requests in flight stop.
    pub paused: bool,
    /// New requests get 500 `cannot schedule new futures after shutdown`; those in flight finish.
    pub draining: bool,
    /// The engine dies as soon as any stream has this many tokens.
    pub die_after_tokens: Option<u32>,
    /// The connection of every answer is reset when it has this many tokens; 0: before its head.
    pub reset_after_tokens: Option<u32>,
    /// Every request is answered with this status at once.
    pub fail_with: Option<u16>,
    /// Seconds of `Retry-After` beside `fail_with` and a full queue's 503, which vLLM does not send.
    pub retry_after_s: Option<u32>,
    /// Steps take this many times longer.
    pub slow: f64,
    /// This share of all blocks, 0 to 1, is in use by nobody's request.
    pub held_cache: f64,
    /// What `/metrics` does.
    pub metrics: MetricsFault,
    /// What `/health` and `/ping` answer.
    pub health: Option<u16>,
    /// Idle connections are closed after this many milliseconds, instead of the configured time.
    pub keep_alive_ms: Option<u64>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            stalled: false,
            sleeping: false,
            paused: false,
            draining: false,
            die_after_tokens: None,
            reset_after_tokens: None,
            fail_with: None,
            retry_after_s: None,
            slow: 1.0,
            held_cache: 0.0,
            metrics: MetricsFault::None,
            health: None,
            keep_alive_ms: None,
        }
    }
}

impl Faults {
    /// Whether virtual time stands still.
    #[must_use]
    pub fn frozen(&self) -> bool {
        self.stalled || self.hangs()
    }

    /// Whether new requests wait outside.
    #[must_use]
    pub fn hangs(&self) -> bool {
        self.sleeping || self.paused
    }
}
