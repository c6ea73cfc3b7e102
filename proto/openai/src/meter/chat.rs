//! Events of chat and completion streams.

use std::ops::Range;

use super::Tally;
use super::stream::{Marks, Seen};
use crate::json::{Kind, Scanner, Step, Text, unsigned};
use crate::usage::Counts;

/// Whether this is an ordinary event: choices, none finished, no usage. Then there is nothing to
/// parse, and the answer is whether it carries content. `None`: parse it.
pub(super) fn is_plain(data: &[u8], marks: &Marks) -> Option<bool> {
    if marks.usage.find(data).is_some() || marks.choices.find(data).is_none() {
        return None;
    }
    let mut rest = data;
    while let Some(at) = marks.finish_reason.find(rest) {
        rest = rest.get(at + marks.finish_reason.needle().len()..).unwrap_or_default();
        let value = rest.iter().find(|&&byte| !matches!(byte, b' ' | b':'));
        if value != Some(&b'n') {
            return None;
        }
    }
    let at = marks.content.find(data)? + marks.content.needle().len();
    // Empty here may mean full elsewhere: reasoning, or the arguments of a tool call.
    (data.get(at) != Some(&b'"')).then_some(true)
}

/// Members that every event of a response has alike.
const ENVELOPE: [&[u8]; 6] = [b"id", b"object", b"created", b"model", b"system_fingerprint", b"service_tier"];

/// What one event says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Chunk {
    /// `usage`, if it is an object.
    pub(super) counts: Option<Counts>,
    /// The bytes to cut to remove the member `usage`, one comma included.
    pub(super) usage_cut: Option<Range<usize>>,
    /// `choices` is an array that isn't empty.
    pub(super) has_choices: bool,
    /// `choices` is an empty array.
    pub(super) empty_choices: bool,
    /// The index of the choice, if there is one only.
    index: Option<usize>,
    /// A member that neither describes the response nor counts.
    payload: bool,
    /// The end of `choices`.
    pub(super) choices_end: Option<usize>,
    /// The value of `system_fingerprint`, unless it is null.
    pub(super) fingerprint: Option<Range<usize>>,
    /// `error` isn't null.
    pub(super) error: bool,
    /// A choice has a `finish_reason`.
    pub(super) finished: bool,
    abort: bool,
    content: bool,
    /// Where the content lies, if one string is all of it.
    pub(super) text: Option<Range<usize>>,
}

impl Chunk {
    pub(super) fn read(data: &[u8]) -> Step<Self> {
        let mut scanner = Scanner::new(data);
        let mut chunk = Self::default();
        scanner.peek()?;
        if scanner.peek()? != Kind::Object {
            scanner.skip()?;
            scanner.end()?;
            return Ok(chunk);
        }
        scanner.open()?;
        let mut first = true;
        // Where the value before ended. The first member has none, and takes its comma from behind.
        let mut previous = None;
        let mut cut_open = false;
        while let Some(key) = scanner.member(&mut first)? {
            let key_at = key.range().start - 1;
            if std::mem::take(&mut cut_open)
                && let Some(cut) = &mut chunk.usage_cut
            {
                cut.end = key_at;
            }
            let kind = scanner.peek()?;
            match &*key.name() {
                b"usage" => {
                    chunk.counts = Counts::read(&mut scanner)?;
                    chunk.usage_cut = Some(previous.unwrap_or(key_at)..scanner.at());
                    cut_open = previous.is_none();
                }
                b"choices" if kind == Kind::Array => {
                    chunk.choices(&mut scanner)?;
                    chunk.choices_end = Some(scanner.at());
                }
                b"system_fingerprint" if kind != Kind::Null => chunk.fingerprint = Some(scanner.value()?),
                b"error" => {
                    chunk.error |= kind != Kind::Null;
                    scanner.skip()?;
                }
                name => {
                    chunk.payload |= kind != Kind::Null && !ENVELOPE.contains(&name);
                    scanner.skip()?;
                }
            }
            previous = Some(scanner.at());
        }
        scanner.end()?;
        Ok(chunk)
    }

    fn choices(&mut self, scanner: &mut Scanner<'_>) -> Step<()> {
        scanner.open()?;
        let mut first = true;
        self.empty_choices = true;
        while scanner.element(&mut first)? {
            self.empty_choices = false;
            // An engine without indices has one choice.
            self.index = if self.has_choices { None } else { Some(0) };
            let sole = !std::mem::replace(&mut self.has_choices, true);
            if scanner.peek()? == Kind::Object { self.choice(scanner, sole)? } else { scanner.skip()? }
        }
        Ok(())
    }

    fn choice(&mut self, scanner: &mut Scanner<'_>, sole: bool) -> Step<()> {
        scanner.open()?;
        let mut first = true;
        while let Some(key) = scanner.member(&mut first)? {
            match (&*key.name(), scanner.peek()?) {
                (b"finish_reason", Kind::String) => {
                    self.finished = true;
                    self.abort |= scanner.string()?.is("abort");
                }
                (b"index", Kind::Number) => {
                    let index = unsigned(scanner.number()?);
                    if sole {
                        self.index = index.and_then(|index| usize::try_from(index).ok());
                    }
                }
                (b"text", Kind::String) => self.text(&scanner.string()?),
                (b"delta", Kind::Object) => self.delta(scanner)?,
                _ => scanner.skip()?,
            }
        }
        Ok(())
    }

    fn delta(&mut self, scanner: &mut Scanner<'_>) -> Step<()> {
        scanner.open()?;
        let mut first = true;
        while let Some(key) = scanner.member(&mut first)? {
            match (&*key.name(), scanner.peek()?) {
                (b"content" | b"reasoning" | b"reasoning_content" | b"refusal", Kind::String) => {
                    self.text(&scanner.string()?);
                }
                (b"tool_calls" | b"function_call" | b"audio", Kind::Array | Kind::Object) => {
                    // Shorter than this it is empty.
                    self.content |= scanner.value()?.len() > 2;
                    self.text = None;
                }
                _ => scanner.skip()?,
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &Text<'_>) {
        if text.is_empty() {
            return;
        }
        // A second one makes the first one less than all.
        self.text = (!self.content).then(|| text.range());
        self.content = true;
    }

    /// Whether the next event is likely to say the same but for its text and its counts: one choice that goes on, with
    /// text and counts.
    pub(super) fn is_running(&self) -> bool {
        let counts = self.counts.is_some_and(|counts| !counts.is_odd());
        counts && self.text.is_some() && self.index.is_some() && !self.finished && !self.error && !self.abort
    }

    /// Whether this is the usage event: no choices, but counts. Without so much as the member
    /// `choices` it is one too, if it says nothing else.
    pub(super) const fn is_usage_only(&self) -> bool {
        let is_bare = self.usage_cut.is_some() && self.choices_end.is_none() && !self.payload && !self.error;
        is_bare || (self.empty_choices && self.counts.is_some())
    }

    /// Adds what this event says to what was seen.
    pub(super) fn count(&self, seen: &mut Seen, tally: &mut Tally) {
        tally.error_event |= self.error;
        tally.engine_abort |= self.abort;
        seen.content += u64::from(self.content);
        if let Some(counts) = &self.counts {
            tally.unparsed |= counts.is_odd();
            let usage = counts.openai();
            if !usage.is_telling() {
                return;
            }
            seen.counted = true;
            if self.has_choices {
                seen.running.merge(self.index, &usage, self.finished);
            } else {
                seen.usage.merge_max(&usage);
                seen.last = true;
            }
        }
    }
}
