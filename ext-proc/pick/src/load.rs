//! What we ourselves have in flight on one endpoint. Whole numbers, so that what was reserved and released is exactly
//! zero again.

/// Steps that pass before a prompt counts as begun.
const STEPS_FIRST: f64 = 1.5;

/// What one request is to an engine, as reckoned when it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Prompt tokens to compute.
    pub(crate) uncached_tokens: u64,
    /// Computing them, microseconds.
    pub(crate) prefill_us: u64,
    /// Tokens that it holds in the KV cache on average while it generates.
    pub(crate) context_tokens: u64,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Sent; no first token yet.
    Prefill,
    /// Generating.
    Decode,
}

/// Sums over the requests in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Requests without a first token.
    pub(crate) prefilling: u32,
    /// Their prefill, microseconds.
    pub(crate) prefill_us: u64,
    /// Tokens that they will hold.
    pub(crate) prefill_context_tokens: u64,
    /// Those of them that no cache is thought to hold yet.
    pub(crate) prefill_new_tokens: u64,
    /// Prompt tokens to compute that the engine may not have held yet when it was last looked at.
    pub(crate) unseen_tokens: u64,
    /// Requests that generate.
    pub(crate) decoding: u32,
    /// Tokens that they hold.
    pub(crate) context_tokens: u64,
    /// When the engine is thought to have begun with the prefill that it is at.
    head_since_ms: u64,
}

impl Load {
    pub(crate) fn in_flight(&self) -> u32 {
        self.prefilling.saturating_add(self.decoding)
    }

    /// A request was sent.
    pub(crate) fn dispatch(&mut self, work: &Work, now_ms: u64) {
        if self.prefilling == 0 {
            self.head_since_ms = now_ms;
        }
        self.prefilling = self.prefilling.saturating_add(1);
        self.prefill_us = self.prefill_us.saturating_add(work.prefill_us);
        self.prefill_context_tokens = self.prefill_context_tokens.saturating_add(work.context_tokens);
        self.prefill_new_tokens = self.prefill_new_tokens.saturating_add(work.uncached_tokens);
        self.unseen_tokens = self.unseen_tokens.saturating_add(work.uncached_tokens);
    }

    /// The engine was looked at: what it had computed by then it has told.
    pub(crate) fn look(&mut self) {
        self.unseen_tokens = self.prefill_new_tokens;
    }

    /// It has its first token.
    pub(crate) fn start_decode(&mut self, work: &Work, now_ms: u64) {
        self.leave_prefill(work, now_ms);
        self.decoding = self.decoding.saturating_add(1);
        self.context_tokens = self.context_tokens.saturating_add(work.context_tokens);
    }

    /// It is gone.
    pub(crate) fn end(&mut self, work: &Work, phase: Phase, now_ms: u64) {
        match phase {
            Phase::Prefill => self.leave_prefill(work, now_ms),
            Phase::Decode => {
                self.decoding = self.decoding.saturating_sub(1);
                self.context_tokens = self.context_tokens.saturating_sub(work.context_tokens);
            }
        }
        if self.in_flight() == 0 {
            self.unseen_tokens = 0;
        }
    }

    fn leave_prefill(&mut self, work: &Work, now_ms: u64) {
        self.prefilling = self.prefilling.saturating_sub(1);
        self.prefill_us = self.prefill_us.saturating_sub(work.prefill_us);
        self.prefill_context_tokens = self.prefill_context_tokens.saturating_sub(work.context_tokens);
        self.prefill_new_tokens = self.prefill_new_tokens.saturating_sub(work.uncached_tokens);
        // Engines take prompts in order: one that is done means that the next one has begun.
        self.head_since_ms = now_ms;
    }

    /// Seconds of prefill still to come, less what the engine must have done of the prompt it is at.
    pub(crate) fn wait_s(&self, step_s: f64, now_ms: u64) -> f64 {
        // Nothing is done before the step at hand and the prompt's own are over.
        let since_us = now_ms.saturating_sub(self.head_since_ms).saturating_mul(1_000);
        let since_us = since_us.saturating_sub((step_s * STEPS_FIRST * 1e6) as u64);
        // It can't have done more than the prompt that it is at; which one that is isn't known, so the mean stands in.
        let head_us = self.prefill_us.checked_div(u64::from(self.prefilling)).unwrap_or_default();
        self.prefill_us.saturating_sub(since_us.min(head_us)) as f64 / 1e6
    }
}
