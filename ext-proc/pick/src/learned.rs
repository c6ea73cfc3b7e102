//! What a pool learns from exchanges that have ended: bytes a token, expected output, usual prompt.

use crate::ask::Used;
use crate::settings::Settings;

/// Weight of what was learned before, at each new exchange: the last hundred or so count.
const KEPT: f64 = 0.99;
/// Tokens a byte can't leave: what lies outside is a wrong report, not a tokenizer.
const BYTES_PER_TOKEN: std::ops::RangeInclusive<f64> = 0.25..=32.0;
/// An output reported larger counts as this; tokens.
const OUTPUT_MAX: f64 = 1e6;

/// Slowly moving means over a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Learned {
    bytes: f64,
    tokens: f64,
    output_tokens: f64,
    uncached_tokens: f64,
    prompt_tokens: f64,
}

/// Tokens of text that the prior counts for.
const PRIOR_TOKENS: f64 = 2_000.0;
/// Tokens of a usual prompt until one was seen.
const PRIOR_PROMPT_TOKENS: f64 = 1_000.0;

impl Learned {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            bytes: PRIOR_TOKENS * settings.bytes_per_token,
            tokens: PRIOR_TOKENS,
            output_tokens: settings.output_tokens,
            uncached_tokens: PRIOR_PROMPT_TOKENS,
            prompt_tokens: PRIOR_PROMPT_TOKENS,
        }
    }

    /// A request was sent: `uncached` of its `prompt` tokens are to be computed.
    pub(crate) fn sent(&mut self, prompt: u64, uncached: u64) {
        self.prompt_tokens = mean(self.prompt_tokens, prompt as f64);
        self.uncached_tokens = mean(self.uncached_tokens, uncached as f64);
    }

    /// An exchange whose prompt had `text_bytes` of text and `ids` token ids has ended.
    pub(crate) fn ended(&mut self, text_bytes: u64, ids: u64, used: &Used) {
        if let Some(output) = used.output.filter(|&tokens| tokens > 0) {
            self.output_tokens = mean(self.output_tokens, (output as f64).min(OUTPUT_MAX));
        }
        let tokens = used.input.unwrap_or_default().saturating_sub(ids) as f64;
        if ids == 0 && tokens > 0.0 && BYTES_PER_TOKEN.contains(&(text_bytes as f64 / tokens)) {
            self.bytes = self.bytes * KEPT + text_bytes as f64;
            self.tokens = self.tokens * KEPT + tokens;
        }
    }

    pub(crate) fn bytes_per_token(&self) -> f64 {
        (self.bytes / self.tokens.max(1.0)).clamp(*BYTES_PER_TOKEN.start(), *BYTES_PER_TOKEN.end())
    }

    /// Tokens that a request may be expected to generate.
    pub(crate) fn output_tokens(&self, max: Option<u64>) -> f64 {
        max.map_or(self.output_tokens, |max| self.output_tokens.min(max as f64)).max(1.0)
    }

    /// Uncached tokens of a usual request.
    pub(crate) fn uncached_tokens(&self) -> f64 {
        self.uncached_tokens
    }

    /// Prompt tokens of a usual request.
    pub(crate) fn prompt_tokens(&self) -> f64 {
        self.prompt_tokens
    }
}

fn mean(before: f64, new: f64) -> f64 {
    before * KEPT + new * (1.0 - KEPT)
}
