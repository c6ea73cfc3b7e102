//! One engine response's body, read for counting: as it is, or inflated under caps, or not at all.
//!
//! A compressed body is inflated for counting only and passes unchanged. Bytes that cannot be read are told as `unparsed`,
//! never guessed.

use proto_openai::{BodyKind, Plan, Pushed, ResponseMeter, Tally};

use crate::body::inflate::{INFLATE_KEPT_BYTES, Inflate, Outcome};

mod inflate;

/// How a response body is encoded, by its `content-encoding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    Deflate,
    /// An encoding, or a stack of them, that is not read.
    Other,
}

impl Encoding {
    pub(crate) fn of(content_encoding: Option<&[u8]>) -> Encoding {
        let value = content_encoding.unwrap_or_default().trim_ascii();
        let is = |name: &[u8]| value.eq_ignore_ascii_case(name);
        match () {
            () if value.is_empty() || is(b"identity") => Encoding::Identity,
            () if is(b"gzip") || is(b"x-gzip") => Encoding::Gzip,
            () if is(b"deflate") => Encoding::Deflate,
            () => Encoding::Other,
        }
    }
}

/// A body that is being read.
pub(crate) struct Body {
    meter: ResponseMeter,
    reader: Reader,
    /// Bytes were lost to the meter before it had seen all.
    unreadable: bool,
}

enum Reader {
    Plain,
    Inflated(Box<Inflate>),
    Nothing,
}

impl Body {
    /// A body of `kind`. If it is compressed it passes unchanged, whatever `plan` says about stripping.
    pub(crate) fn open(plan: Plan, kind: BodyKind, encoding: Encoding) -> Body {
        let reader = match encoding {
            Encoding::Identity => Reader::Plain,
            Encoding::Gzip => Reader::Inflated(Box::new(Inflate::gzip())),
            Encoding::Deflate => Reader::Inflated(Box::new(Inflate::deflate())),
            Encoding::Other => Reader::Nothing,
        };
        let unreadable = encoding == Encoding::Other;
        Body { meter: ResponseMeter::new(plan, kind), reader, unreadable }
    }

    /// Whether chunks are of any use to it.
    pub(crate) fn reads(&self) -> bool {
        !matches!(self.reader, Reader::Nothing)
    }

    /// Reads a chunk; as [`ResponseMeter::push`].
    pub(crate) fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Pushed {
        match &mut self.reader {
            Reader::Plain => self.meter.push(chunk, out),
            Reader::Nothing => Pushed { edited: false, data_events: 0 },
            Reader::Inflated(inflate) => {
                let mut data_events = 0_u32;
                // What the client gets is the chunk as it came: the meter has nothing to strip here.
                let mut ignored = Vec::new();
                let outcome = inflate.push(chunk, |bytes| {
                    data_events =
                        data_events.saturating_add(self.meter.push(bytes, &mut ignored).data_events);
                    ignored.clear();
                });
                if outcome == Outcome::Unreadable {
                    self.lose();
                }
                Pushed { edited: false, data_events }
            }
        }
    }

    /// The body is at its end: bytes that were held back go to `out`. As [`ResponseMeter::finish`].
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> bool {
        match self.reader {
            Reader::Plain => self.meter.finish(out),
            Reader::Nothing => false,
            Reader::Inflated(_) => {
                self.meter.finish(&mut Vec::new());
                false
            }
        }
    }

    /// Bytes of memory that the body keeps between chunks.
    pub(crate) fn kept_bytes(&self) -> usize {
        let inflate = match &self.reader {
            Reader::Inflated(_) => INFLATE_KEPT_BYTES,
            Reader::Plain | Reader::Nothing => 0,
        };
        inflate + self.meter.kept_bytes()
    }

    /// Frees that memory. As [`ResponseMeter::let_go`]; of a compressed body nothing can be read any more.
    pub(crate) fn let_go(&mut self, out: &mut Vec<u8>) {
        match self.reader {
            Reader::Plain => self.meter.let_go(out),
            Reader::Nothing | Reader::Inflated(_) => {
                self.meter.let_go(&mut Vec::new());
                self.lose();
            }
        }
    }

    /// The rest of the body cannot be read.
    pub(crate) fn lose(&mut self) {
        self.reader = Reader::Nothing;
        self.unreadable |= !self.meter.tally().complete;
    }

    /// Whether the meter has seen all that came.
    pub(crate) fn is_readable(&self) -> bool {
        !self.unreadable
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = self.meter.tally();
        tally.unparsed |= self.unreadable;
        tally
    }
}
