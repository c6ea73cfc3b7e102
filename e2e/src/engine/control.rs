//! How an engine behaves: for all requests by its handle, for one request by headers.

use http::HeaderMap;
use std::time::Duration;

/// What goes wrong, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// After this many events: vLLM's error event and `[DONE]`, as when its core dies.
    Die { after: usize },
    /// After this many events: finish reason `abort` and usage, as on SIGTERM without drain.
    Abort { after: usize },
    /// After this many events: the connection is reset.
    Reset { after: usize },
    /// After this many events: silence, with the connection open.
    Stall { after: usize },
    /// 503 with vLLM's body for a full queue.
    QueueFull,
    /// 500 with vLLM's body while it drains.
    Draining,
}

/// Where cached prompt tokens come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// 32-token blocks that this engine has seen before.
    #[default]
    Blocks,
    /// A function of the body: the same on every engine and every time, so that transcripts can be compared.
    FromBody,
    /// Always 0.
    Off,
}

/// An engine's behaviour until changed.
#[derive(Clone, Debug)]
pub struct Settings {
    pub models: Vec<String>,
    /// Time between two events.
    pub interval: Duration,
    pub fault: Fault,
    pub cache: Cache,
    /// Output tokens when the request names no maximum.
    pub default_tokens: u64,
    /// Usage for everyone, as with `--enable-force-include-usage`.
    pub force_usage: bool,
    /// Keeps responses, as with `VLLM_ENABLE_RESPONSES_API_STORE=1`.
    pub keep_responses: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            models: vec!["tiny-llama".to_owned()],
            interval: Duration::ZERO,
            fault: Fault::None,
            cache: Cache::Blocks,
            default_tokens: 16,
            force_usage: false,
            keep_responses: false,
        }
    }
}

/// One request's behaviour: the engine's settings, overridden by the request's `x-engine-*` headers.
#[derive(Clone, Debug)]
pub struct Script {
    pub interval: Duration,
    pub fault: Fault,
    /// Compress the response.
    pub gzip: bool,
    /// Cut the response's bytes at positions drawn from this seed.
    pub split: Option<u64>,
    /// Answer with garbage drawn from this seed.
    pub hostile: Option<u64>,
    /// Begin an event of this many bytes and never end it.
    pub unfinished: Option<usize>,
    /// Wait for the engine's release after this many events.
    pub hold_after: Option<usize>,
    /// Play this capture as it is.
    pub play: Option<String>,
}

impl Script {
    /// The behaviour for a request with these headers.
    #[must_use]
    pub fn of(settings: &Settings, headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str| text(name).and_then(|value| value.parse::<u64>().ok());
        let count = |name: &str| number(name).and_then(|value| usize::try_from(value).ok());
        let fault = if let Some(after) = count("x-engine-die-after") {
            Fault::Die { after }
        } else if let Some(after) = count("x-engine-abort-after") {
            Fault::Abort { after }
        } else if let Some(after) = count("x-engine-reset-after") {
            Fault::Reset { after }
        } else if let Some(after) = count("x-engine-stall-after") {
            Fault::Stall { after }
        } else {
            match text("x-engine-fault") {
                Some("queue-full") => Fault::QueueFull,
                Some("draining") => Fault::Draining,
                _ => settings.fault,
            }
        };
        Self {
            interval: number("x-engine-interval-ms").map_or(settings.interval, Duration::from_millis),
            fault,
            gzip: text("x-engine-gzip").is_some(),
            split: number("x-engine-split"),
            hostile: number("x-engine-hostile"),
            unfinished: count("x-engine-unfinished"),
            hold_after: count("x-engine-hold-after"),
            play: text("x-play").map(str::to_owned),
        }
    }
}
