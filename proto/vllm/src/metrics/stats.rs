//! What a page says, as values.

use super::names::{FIELDS, Field};

/// The numbers of one engine (one rank of a data-parallel server) and model. They are as the page has them: also what
/// can't be true (negative, `NaN`, infinite) is handed on, because only who uses a number knows what it may be.
#[derive(Clone, Debug)]
pub struct EngineStats {
    /// The `engine` label: the data-parallel rank. Empty where the page has none.
    pub engine: Box<str>,
    /// The `model_name` label: the base model, never a LoRA adapter. Empty where the page has none.
    pub model: Box<str>,
    values: [f64; FIELDS],
    present: u64,
    /// Fields that were set by their present name.
    current: u64,
}

impl EngineStats {
    pub(super) fn new(engine: Box<str>, model: Box<str>) -> Self {
        Self { engine, model, values: [0.0; FIELDS], present: 0, current: 0 }
    }

    /// One number. `None`: the page doesn't have it.
    #[must_use]
    pub fn get(&self, field: Field) -> Option<f64> {
        let known = self.present & bit(field) != 0;
        known.then(|| self.values.get(field as usize).copied()).flatten()
    }

    /// Takes one line's value. Of two lines for the same number the present name wins, else the larger value: the
    /// order of lines carries no meaning.
    pub(super) fn set(&mut self, field: Field, value: f64, current: bool) {
        let bit = bit(field);
        let Some(slot) = self.values.get_mut(field as usize) else { return };
        if self.present & bit == 0 || (current && self.current & bit == 0) {
            *slot = value;
        } else if !current && self.current & bit != 0 {
            return;
        } else if field.adds() {
            *slot += value;
        } else {
            *slot = slot.max(value);
        }
        self.present |= bit;
        if current {
            self.current |= bit;
        }
    }
}

/// Bit for bit, so that a page equals itself also where it says `NaN`.
impl PartialEq for EngineStats {
    fn eq(&self, other: &Self) -> bool {
        let bits = |stats: &Self| stats.values.map(f64::to_bits);
        self.engine == other.engine
            && self.model == other.model
            && self.present == other.present
            && bits(self) == bits(other)
    }
}

impl Eq for EngineStats {}

fn bit(field: Field) -> u64 {
    1 << field as u32
}

/// How the KV cache of one engine is laid out (`cache_config_info`). `None`: not said, or no number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheConfig {
    /// The `engine` label.
    pub engine: Box<str>,
    /// Tokens per block.
    pub block_size: Option<u64>,
    /// Blocks of the cache. A data-parallel server says the sum over its ranks here, at each rank.
    pub num_gpu_blocks: Option<u64>,
    /// Tokens this rank's cache has room for.
    pub kv_cache_size_tokens: Option<u64>,
    /// Tokens per block hash, where that isn't the block size.
    pub hash_block_size: Option<u64>,
    /// Whether prompts share cached prefixes.
    pub prefix_caching: Option<bool>,
}

/// LoRA adapters in use (`lora_requests_info`), from the series written last: older ones stay in the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lora {
    /// Adapters that fit in one batch.
    pub max: Option<u64>,
    /// Adapters of running requests, sorted.
    pub running: Vec<Box<str>>,
    /// Adapters of waiting requests, sorted. vLLM 0.32 writes the same list into both.
    pub waiting: Vec<Box<str>>,
}

/// Requests turned away before any engine saw them, since the server's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rejected {
    /// For too many requests in the queue.
    pub queued_requests: Option<f64>,
    /// For too many tokens in the queue.
    pub queued_tokens: Option<f64>,
    /// For reasons this reader has no name for.
    pub other: Option<f64>,
}

/// The server's process. All of it is absent where the server runs as several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// When it started, in seconds since 1970.
    pub start_seconds: Option<f64>,
    /// CPU time used since, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Python garbage collections since.
    pub collections: Option<f64>,
}

/// One page. Two pages are equal when they say the same in every number that is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// One for each engine and model, in the order of their labels, ranks as numbers.
    pub engines: Vec<EngineStats>,
    /// One for each engine, in the same order.
    pub caches: Vec<CacheConfig>,
    /// Absent where the engine has no LoRA configured.
    pub lora: Option<Lora>,
    /// What the server turned away.
    pub rejected: Rejected,
    /// The server's process.
    pub process: Process,
    /// Lines that begin like vLLM's and can't be read, or whose labels are too long.
    pub flaws: u32,
    /// Lines of engines past [`ENGINES_MAX`](super::limits::ENGINES_MAX).
    pub left_out: u32,
    /// The last line has no end. It wasn't read: what is left of a number is another number.
    pub cut: bool,
}
