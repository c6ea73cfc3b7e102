//! How a pool picks: strategy and priors. The caller has validated the ranges; out-of-range values make bad picks,
//! never a fault.

/// How a pool orders its endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Least cost in seconds: load, cached prefix and health together.
    #[default]
    LeastWork,
    /// Most of the prompt in the cache; load only breaks ties. For comparison.
    PrefixOnly,
    /// Fewest of our own requests in flight first; ties at random.
    LeastRequest,
    /// Each in turn.
    RoundRobin,
    /// Any, evenly.
    Random,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::LeastWork, Self::PrefixOnly, Self::LeastRequest, Self::RoundRobin, Self::Random];

    /// Stable label, also the name in the configuration.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::LeastWork => "least_work",
            Self::PrefixOnly => "prefix_only",
            Self::LeastRequest => "least_request",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
        }
    }
}

/// How fast an engine is: one step takes
/// `c0 + Σ prefilled [c_p·n + c_a·n·(context + n/2)] + c_b·streams + c_kv·Σ context` seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Seconds of a step by itself.
    pub c0: f64,
    /// Seconds a prompt token computed.
    pub c_p: f64,
    /// Seconds a prompt token computed and token before it (attention).
    pub c_a: f64,
    /// Seconds a generating stream and step.
    pub c_b: f64,
    /// Seconds a token of context read and step.
    pub c_kv: f64,
}

impl Default for Speed {
    /// A 32B dense model on two H100: prefill as published for Qwen3-32B (20,480 tokens/s at 8,192 tokens), decode
    /// from BLIS's fitted coefficients. Only ratios matter much while all endpoints share one prior.
    fn default() -> Self {
        Self { c0: 0.014, c_p: 40e-6, c_a: 2.1e-9, c_b: 20e-6, c_kv: 0.076e-6 }
    }
}

/// How a pool picks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How endpoints are ordered.
    pub strategy: Strategy,
    /// Age in milliseconds until which signals are fully believed; 500 to 60,000. At four times this age they count
    /// for nothing, and the pool's mean stands in.
    pub stale_ms: u64,
    /// Share of picks made by chance to keep every endpoint known; 0 to 0.1.
    pub exploration: f64,
    /// Milliseconds that an endpoint is last after a failure; 0 (off) to 60,000. Doubles with each failure in a row.
    pub penalty_ms: u64,
    /// How fast engines are thought to be.
    pub speed: Speed,
    /// Bytes of prompt a token, until learned; 1 to 16.
    pub bytes_per_token: f64,
    /// Generated tokens a request, until learned; 1 to 100,000.
    pub output_tokens: f64,
    /// Tokens in an engine's KV cache, until it says so; 1,000 to 100,000,000.
    pub kv_capacity_tokens: u64,
    /// Seconds it takes an engine to load an adapter; 0 to 60.
    pub lora_load_s: f64,
    /// Prefix chunks remembered over all endpoints of the pool, about 100 bytes each; 0 (no prefixes) to 16,777,216.
    pub chunks_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strategy: Strategy::LeastWork,
            stale_ms: 5_000,
            exploration: 0.01,
            penalty_ms: 5_000,
            speed: Speed::default(),
            bytes_per_token: 4.0,
            output_tokens: 300.0,
            kv_capacity_tokens: 300_000,
            lora_load_s: 0.3,
            chunks_max: 1 << 19,
        }
    }
}
