//! Server-sent events, framed from bytes that may be cut anywhere.
//!
//! Lines end in LF, CR or CRLF; an empty line ends an event. Only events that are cut by a chunk's
//! end are copied. An event longer than [`EVENT_BYTES_MAX`] is handed on in raw parts, never read,
//! and so is one that the owner lets go of because memory is short.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr2;

use crate::limits::{EVENT_BYTES_MAX, ROOM_BYTES_MAX};

/// What a [`Framer`] hands on. All pieces together are the stream, byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A whole event, the empty line that ends it included.
    Event {
        /// Its bytes.
        raw: &'a [u8],
        /// Whether the stream begins with it, and so perhaps with a byte order mark.
        first: bool,
    },
    /// Part of an event that is too long.
    Long {
        /// Its bytes.
        raw: &'a [u8],
        /// Whether the event begins here.
        start: bool,
    },
    /// The LF of a CRLF whose CR ended the piece before. It shares that piece's fate.
    Tail,
}

/// Cuts a stream into events.
#[derive(Clone, Debug)]
pub struct Framer {
    /// The event that is not over yet; at most [`EVENT_BYTES_MAX`].
    carry: Vec<u8>,
    /// No byte of the current line was seen.
    line_empty: bool,
    /// The last byte was a CR: an LF now belongs to it.
    after_cr: bool,
    /// That CR ended an event.
    ended: bool,
    /// The current event is too long.
    long: bool,
    first: bool,
}

impl Default for Framer {
    fn default() -> Self {
        Self { carry: Vec::new(), line_empty: true, after_cr: false, ended: false, long: false, first: true }
    }
}

impl Framer {
    /// Takes a chunk and hands every event that ends in it to `sink`.
    pub fn push(&mut self, chunk: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        let mut start = 0;
        let mut at = 0;
        while let Some(&byte) = chunk.get(at) {
            if std::mem::take(&mut self.after_cr) && byte == b'\n' {
                at += 1;
                if std::mem::take(&mut self.ended) {
                    sink(Piece::Tail);
                    start = at;
                }
                continue;
            }
            self.ended = false;
            let rest = chunk.get(at..).unwrap_or_default();
            let Some(length) = memchr2(b'\n', b'\r', rest) else {
                self.line_empty = false;
                break;
            };
            let empty = self.line_empty && length == 0;
            self.line_empty = true;
            self.after_cr = rest.get(length) == Some(&b'\r');
            at += length + 1;
            if empty {
                self.ended = self.after_cr;
                self.event(chunk.get(start..at).unwrap_or_default(), sink);
                start = at;
            }
        }
        self.keep(chunk.get(start..).unwrap_or_default(), sink);
    }

    /// Hands on what is left when the stream is over. It may lack its empty line.
    pub fn finish(&mut self, sink: &mut impl FnMut(Piece<'_>)) {
        if !self.carry.is_empty() {
            self.event(&[], sink);
        }
        *self = Self::default();
    }

    /// Bytes of memory that are kept between chunks.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.carry.capacity()
    }

    /// Hands on what is kept of an unfinished event, and the rest of that event as it comes, unread.
    pub(crate) fn let_go(&mut self, sink: &mut impl FnMut(Piece<'_>)) {
        let carry = std::mem::take(&mut self.carry);
        if !carry.is_empty() {
            self.long = true;
            sink(Piece::Long { raw: &carry, start: true });
        }
    }

    /// Ends an event with `part`.
    fn event(&mut self, part: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        self.keep_long(part, sink);
        if std::mem::take(&mut self.long) {
            self.first = false;
            return;
        }
        let first = std::mem::take(&mut self.first);
        if self.carry.is_empty() {
            sink(Piece::Event { raw: part, first });
        } else {
            self.extend(part);
            sink(Piece::Event { raw: &self.carry, first });
            self.carry.clear();
            self.carry.shrink_to(ROOM_BYTES_MAX);
        }
    }

    /// Keeps `part` of an event that goes on.
    fn keep(&mut self, part: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        self.keep_long(part, sink);
        if !self.long {
            self.extend(part);
        }
    }

    /// Grows by doubling as a vector does, but never past the longest event.
    fn extend(&mut self, part: &[u8]) {
        let length = self.carry.len() + part.len();
        if length > self.carry.capacity() {
            let room = length.max(EVENT_BYTES_MAX.min(2 * self.carry.capacity()));
            self.carry.reserve_exact(room - self.carry.len());
        }
        self.carry.extend_from_slice(part);
    }

    /// Hands on `part` raw if with it the event is too long.
    fn keep_long(&mut self, part: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        if !self.long && self.carry.len() + part.len() > EVENT_BYTES_MAX {
            self.long = true;
            sink(Piece::Long { raw: &self.carry, start: true });
            self.carry = Vec::new();
        }
        if self.long {
            sink(Piece::Long { raw: part, start: false });
        }
    }
}

/// One event, its fields read.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// The value of `event:`; empty if there is none.
    pub name: &'a [u8],
    /// The value of `data:`, several lines joined with LF; `None` if there is no such line.
    pub data: Option<Cow<'a, [u8]>>,
    /// For each data line where it begins in `data` and in the raw event. One line: not in `more`.
    first_line: usize,
    more: Vec<(usize, usize)>,
    /// Whether there was any field or comment, that is, whether this is SSE at all.
    pub understood: bool,
}

impl<'a> Event<'a> {
    /// Reads the fields of a raw event; `first` as in [`Piece::Event`].
    #[must_use]
    pub fn read(raw: &'a [u8], first: bool) -> Self {
        let mut event = Self { name: &[], data: None, first_line: 0, more: Vec::new(), understood: false };
        let mut at = if first && raw.starts_with(&[0xEF, 0xBB, 0xBF]) { 3 } else { 0 };
        while at < raw.len() {
            let rest = raw.get(at..).unwrap_or_default();
            let length = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            event.line(raw, at..at + length);
            at += length + 1;
        }
        event
    }

    fn line(&mut self, raw: &'a [u8], range: Range<usize>) {
        let line = raw.get(range.clone()).unwrap_or_default();
        if let Some(value) = field(line, b"data") {
            let at = range.end - value.len();
            self.understood = true;
            match &mut self.data {
                None => {
                    self.first_line = at;
                    self.data = Some(Cow::Borrowed(value));
                }
                Some(data) => {
                    let data = data.to_mut();
                    data.push(b'\n');
                    self.more.push((data.len(), at));
                    data.extend_from_slice(value);
                }
            }
        } else if let Some(value) = field(line, b"event") {
            self.understood = true;
            self.name = value;
        } else if line.starts_with(b":") || field(line, b"id").is_some() || field(line, b"retry").is_some() {
            self.understood = true;
        }
    }

    /// Where a byte of `data` lies in the raw event. For the end of a range, ask for its last byte
    /// and add one.
    #[must_use]
    pub fn raw_at(&self, data_at: usize) -> usize {
        let line = self.more.iter().rev().find(|(joined, _)| *joined <= data_at);
        match line {
            Some((joined, raw)) => raw + (data_at - joined),
            None => self.first_line + data_at,
        }
    }
}

/// The value of a line if its field is `name`.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
