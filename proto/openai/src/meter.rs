//! One response, chunk by chunk: what was used, and what the client gets to see.
//!
//! Chunk boundaries carry no meaning: whatever the cuts, the tally and the bytes for the client
//! are the same. Where nothing is to be stripped nothing is held back or copied.

mod chat;
mod hold;
mod messages;
mod responses;
mod running;
mod stream;
mod template;
mod whole;

use crate::plan::Plan;
use crate::usage::{Usage, UsageSource};

use stream::Stream;
use whole::Whole;

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
    /// The kind for a `content-type` header. A compressed body is [`BodyKind::Other`], whatever its type.
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
    /// The body reported an error.
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

/// Meters one response.
#[derive(Clone, Debug)]
pub struct ResponseMeter {
    tally: Tally,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Stream(Box<Stream>),
    Whole(Whole),
    Other,
}

impl ResponseMeter {
    /// A meter before the first chunk of a response of the given kind.
    #[must_use]
    pub fn new(plan: Plan, body: BodyKind) -> Self {
        let body = match body {
            BodyKind::Sse => Body::Stream(Box::new(Stream::new(plan))),
            BodyKind::Json => Body::Whole(Whole::new(plan.api)),
            BodyKind::Other => Body::Other,
        };
        Self { tally: Tally::default(), body }
    }

    /// Takes one chunk. If the client must get something else, that is appended to `out` (perhaps
    /// nothing, while an event is incomplete); if not, `out` is left alone.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Pushed {
        match &mut self.body {
            Body::Stream(stream) => stream.push(chunk, &mut self.tally, out),
            Body::Whole(whole) => {
                whole.push(chunk, &mut self.tally);
                Pushed::default()
            }
            Body::Other => {
                self.tally.unparsed |= !chunk.is_empty();
                Pushed::default()
            }
        }
    }

    /// Ends the response, complete or not: appends what was held back to `out` and returns whether
    /// there was anything. Take the last tally after this.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> bool {
        match &mut self.body {
            Body::Stream(stream) => stream.finish(&mut self.tally, out),
            Body::Whole(_) | Body::Other => false,
        }
    }

    /// Bytes of memory that the meter keeps between chunks, beyond its own size: the room of its
    /// buffers, not only what is in them.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        match &self.body {
            Body::Stream(stream) => stream.kept_bytes(),
            Body::Whole(whole) => whole.kept_bytes(),
            Body::Other => 0,
        }
    }

    /// Frees that memory, for a caller that is short of it: appends what was held back to `out`. An
    /// event or a value that was not over yet passes unread, and the tally says `truncated`.
    pub fn let_go(&mut self, out: &mut Vec<u8>) {
        match &mut self.body {
            Body::Stream(stream) => stream.let_go(&mut self.tally, out),
            Body::Whole(whole) => whole.let_go(&mut self.tally),
            Body::Other => {}
        }
    }

    /// What is known so far.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }
}

#[cfg(test)]
mod tests;
