//! One response, chunk by chunk.

use crate::plan::Plan;
use crate::usage::{Usage, UsageSource};

/// What a response body is, by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BodyKind {
    /// `text/event-stream`
    Sse,
    /// `application/json`
    Json,
    /// Anything else: passed on unread.
    Other,
}

impl BodyKind {
    /// The kind for a `content-type` header.
    #[must_use]
    pub fn of(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("text/event-stream") {
            Self::Sse
        } else if essence.eq_ignore_ascii_case("application/json") {
            Self::Json
        } else {
            Self::Other
        }
    }
}

/// What one chunk led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Whether the client gets something else than the chunk: then it is in `out`.
    pub edited: bool,
    /// Events with data that ended in this chunk, `[DONE]` and comments not counted.
    pub data_events: u32,
}

/// What is known about a response so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Token counts.
    pub usage: Usage,
    /// Where they come from.
    pub source: UsageSource,
    /// The terminal event was seen, or the JSON closed.
    pub complete: bool,
    /// The body said `error`.
    pub error_event: bool,
    /// The engine cut the generation off itself.
    pub engine_abort: bool,
    /// Something that may have held usage couldn't be read.
    pub unparsed: bool,
    /// Something was longer than its bound and passed unread.
    pub truncated: bool,
    /// Events with data, `[DONE]` not counted.
    pub events: u64,
}

/// Meters one response. Chunk boundaries carry no meaning.
#[derive(Clone, Debug)]
pub struct ResponseMeter {
    tally: Tally,
}

impl ResponseMeter {
    /// A meter before the first chunk.
    #[must_use]
    pub fn new(plan: Plan, body: BodyKind) -> Self {
        let _ = (plan, body);
        Self { tally: Tally::default() }
    }

    /// Takes one chunk. If the client must get something else, that is appended to `out`.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Pushed {
        let _ = (chunk, out);
        Pushed::default()
    }

    /// Ends the response: appends what was held back; returns whether there was anything.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> bool {
        let _ = out;
        false
    }

    /// What is known so far.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }
}
