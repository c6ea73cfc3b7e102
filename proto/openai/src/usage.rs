//! Token counts of one response, and how far they can be trusted.
//!
//! A count the engine did not give is *unknown* (`None`), never zero: "no token came from the
//! cache" and "nobody said" are different facts, and different prices.

mod counts;

pub(crate) use counts::Counts;

/// Token counts. `input` includes the cached and cache-written ones; `output` includes reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// Prompt tokens, however they were served.
    pub input: Option<u64>,
    /// Prompt tokens read from a cache.
    pub cached: Option<u64>,
    /// Prompt tokens written to a cache.
    pub cache_write: Option<u64>,
    /// Generated tokens.
    pub output: Option<u64>,
    /// Generated tokens spent on reasoning.
    pub reasoning: Option<u64>,
}

impl Usage {
    /// Whether no count is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it says anything about what was used: one of the two counts that are no details.
    #[must_use]
    pub const fn is_telling(&self) -> bool {
        self.input.is_some() || self.output.is_some()
    }

    /// Each count of `self`, or else that of `other`.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            input: self.input.or(other.input),
            cached: self.cached.or(other.cached),
            cache_write: self.cache_write.or(other.cache_write),
            output: self.output.or(other.output),
            reasoning: self.reasoning.or(other.reasoning),
        }
    }

    /// `input + output`, saturating; `None` while both are unknown.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        match (self.input, self.output) {
            (None, None) => None,
            (input, output) => Some(input.unwrap_or(0).saturating_add(output.unwrap_or(0))),
        }
    }

    /// Keeps the larger of each pair of known counts. Right for OpenAI streams, whose running
    /// counts only grow.
    pub fn merge_max(&mut self, other: &Self) {
        self.input = self.input.max(other.input);
        self.cached = self.cached.max(other.cached);
        self.cache_write = self.cache_write.max(other.cache_write);
        self.output = self.output.max(other.output);
        self.reasoning = self.reasoning.max(other.reasoning);
    }
}

/// Where a [`Usage`] comes from, worst first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UsageSource {
    /// Nothing is known.
    #[default]
    None,
    /// At least the output was counted from content events: a lower bound.
    Estimated,
    /// The engine's running numbers of a stream that did not reach its final ones: a lower bound.
    Cumulative,
    /// The engine's own final numbers.
    Final,
}

impl UsageSource {
    /// The name used in metrics and records.
    #[must_use]
    pub const fn as_label(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Estimated => "estimated",
            Self::Cumulative => "cumulative",
            Self::Final => "final",
        }
    }
}
