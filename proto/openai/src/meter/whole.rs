//! A JSON response that goes by in chunks and is never buffered.
//!
//! Follows brackets and strings only, and keeps one value: the `usage` of the top-level object.
//! A `usage` anywhere deeper, in content or in the arguments of a tool call, is not looked at.

use memchr::memchr2;

use super::Tally;
use crate::api::{Api, Dialect};
use crate::json::Scanner;
use crate::limits::USAGE_BYTES_MAX;
use crate::usage::{Counts, UsageSource};

/// Longest name worth keeping.
const NAME_BYTES_MAX: usize = 16;

/// The state of one body.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    api: Api,
    depth: u32,
    /// Whether the containers at depth 1 to 3 are objects.
    objects: [bool; 3],
    state: State,
    /// Where strings and values go.
    take: Take,
    /// A member name is next at this depth.
    name_next: bool,
    name: Vec<u8>,
    /// The top-level member whose value goes by is `choices`.
    in_choices: bool,
    value: Vec<u8>,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Plain,
    String,
    Escape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    Nothing,
    Name,
    Usage,
    Error,
    FinishReason,
}

impl Whole {
    pub(super) const fn new(api: Api) -> Self {
        Self {
            api,
            depth: 0,
            objects: [false; 3],
            state: State::Plain,
            take: Take::Nothing,
            name_next: false,
            name: Vec::new(),
            in_choices: false,
            value: Vec::new(),
            closed: false,
        }
    }

    pub(super) fn push(&mut self, chunk: &[u8], tally: &mut Tally) {
        let mut at = 0;
        while let Some(&byte) = chunk.get(at) {
            match self.state {
                State::Plain => {
                    self.plain(byte, tally);
                    at += 1;
                }
                State::Escape => {
                    self.keep(&[byte], tally);
                    self.state = State::String;
                    at += 1;
                }
                State::String => {
                    let rest = chunk.get(at..).unwrap_or_default();
                    let length = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                    self.keep(rest.get(..length).unwrap_or_default(), tally);
                    at += length;
                    match rest.get(length) {
                        Some(b'"') => self.string_end(tally),
                        Some(_) => {
                            self.keep(b"\\", tally);
                            self.state = State::Escape;
                        }
                        None => {}
                    }
                    at += 1;
                }
            }
        }
    }

    fn keep(&mut self, bytes: &[u8], tally: &mut Tally) {
        match self.take {
            Take::Nothing | Take::Error => {}
            Take::Name | Take::FinishReason => {
                // One byte more than the longest, so that a longer one is not taken for it.
                let room = (NAME_BYTES_MAX + 1).saturating_sub(self.name.len());
                self.name.extend(bytes.iter().take(room));
            }
            Take::Usage => {
                if self.value.len() + bytes.len() > USAGE_BYTES_MAX {
                    tally.truncated = true;
                    self.take = Take::Nothing;
                    self.value = Vec::new();
                } else {
                    self.value.extend_from_slice(bytes);
                }
            }
        }
    }

    fn string_end(&mut self, tally: &mut Tally) {
        self.state = State::Plain;
        match self.take {
            Take::Usage => self.keep(b"\"", tally),
            Take::FinishReason => {
                tally.engine_abort |= self.name == b"abort";
                self.take = Take::Nothing;
            }
            Take::Name => self.take = Take::Nothing,
            Take::Nothing | Take::Error => {}
        }
        if self.depth == 0 {
            self.close(tally);
        }
    }

    fn is_object(&self) -> bool {
        let index = usize::try_from(self.depth).unwrap_or(usize::MAX).wrapping_sub(1);
        self.objects.get(index).copied().unwrap_or(false)
    }

    /// Whether members of the container around are looked at: the top level, and single choices.
    fn is_watched(&self) -> bool {
        self.is_object() && (self.depth == 1 || (self.depth == 3 && self.in_choices))
    }

    fn plain(&mut self, byte: u8, tally: &mut Tally) {
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return;
        }
        if self.closed {
            tally.unparsed = true;
            return;
        }
        if matches!(byte, b',' | b'}') && self.depth == 1 {
            self.value_end(tally);
        }
        if self.take == Take::Error {
            tally.error_event |= matches!(byte, b'{' | b'"');
            self.take = Take::Nothing;
        }
        if self.take == Take::FinishReason && byte != b'"' {
            self.take = Take::Nothing;
        }
        if self.take == Take::Usage {
            self.keep(&[byte], tally);
        }
        match byte {
            b'"' => self.string_start(),
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => {
                if self.depth == 0 {
                    tally.unparsed = true;
                    return;
                }
                self.depth -= 1;
                self.name_next = false;
                if self.depth == 0 {
                    self.close(tally);
                }
            }
            b',' => self.name_next = self.is_watched(),
            b':' => self.value_start(),
            _ => tally.unparsed |= self.depth == 0,
        }
    }

    fn string_start(&mut self) {
        self.state = State::String;
        if self.take == Take::FinishReason {
            self.name.clear();
        } else if std::mem::take(&mut self.name_next) {
            self.name.clear();
            self.take = Take::Name;
        }
    }

    fn open(&mut self, object: bool) {
        self.depth = self.depth.saturating_add(1);
        let index = usize::try_from(self.depth).unwrap_or(usize::MAX).wrapping_sub(1);
        if let Some(slot) = self.objects.get_mut(index) {
            *slot = object;
        }
        self.name_next = self.is_watched();
    }

    /// A `:`: what was read last, at a watched place, was a name.
    fn value_start(&mut self) {
        if !self.is_watched() || self.take != Take::Nothing {
            return;
        }
        if self.depth == 1 {
            self.in_choices = self.name == b"choices";
            self.take = match self.name.as_slice() {
                b"usage" => Take::Usage,
                b"error" => Take::Error,
                _ => Take::Nothing,
            };
            self.value.clear();
        } else if self.name == b"finish_reason" {
            self.take = Take::FinishReason;
        }
        self.name.clear();
    }

    fn value_end(&mut self, tally: &mut Tally) {
        if self.take != Take::Usage {
            return;
        }
        self.take = Take::Nothing;
        let mut scanner = Scanner::new(&self.value);
        match Counts::read(&mut scanner).and_then(|counts| scanner.end().map(|()| counts)) {
            Ok(Some(counts)) => {
                tally.unparsed |= counts.is_odd();
                match self.api.dialect() {
                    Dialect::OpenAi => tally.usage = counts.openai(),
                    Dialect::Anthropic => {
                        tally.usage = crate::usage::Usage::default();
                        counts.anthropic_into(&mut tally.usage);
                    }
                }
                tally.source = if tally.usage.is_telling() { UsageSource::Final } else { UsageSource::None };
            }
            Ok(None) => {}
            Err(_) => tally.unparsed = true,
        }
        self.value = Vec::new();
    }

    pub(super) const fn kept_bytes(&self) -> usize {
        self.value.capacity() + self.name.capacity()
    }

    pub(super) fn let_go(&mut self, tally: &mut Tally) {
        self.value = Vec::new();
        if self.take == Take::Usage {
            self.take = Take::Nothing;
            tally.truncated = true;
        }
    }

    fn close(&mut self, tally: &mut Tally) {
        self.closed = true;
        tally.complete = true;
    }
}
