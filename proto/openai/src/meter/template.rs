//! The event before as a template for the next one.
//!
//! With running usage every event of a stream must be read, and engines send nearly the same one every time: another
//! text, other counts, all else byte for byte alike. An event that differs from one that was read in nothing but these says
//! the same, so comparing it is reading it, at a fraction of the cost. Anything else is no match, and is read in full.

use std::ops::Range;

use memchr::memmem;

use super::chat::Chunk;
use crate::json::{Scanner, unsigned};
use crate::limits::{COUNT_MAX, TEMPLATE_BYTES_MAX};

/// Names of the counts that change with every event, as they stand before a count.
const COMPLETION: &[u8] = b"\"completion_tokens\":";
const TOTAL: &[u8] = b"\"total_tokens\":";

/// An event that was read, and where its text and its counts lie. Empty until one fits.
#[derive(Clone, Debug, Default)]
pub(super) struct Template {
    event: Vec<u8>,
    /// Where the text's opening quote lies.
    text_at: usize,
    /// From the text's closing quote, the first count, and the second count on: what stands between and behind.
    fixed: [Range<usize>; 3],
    /// The completion tokens come first.
    completion_first: bool,
    chunk: Chunk,
}

impl Template {
    /// What `data` says, if it is like the template.
    pub(super) fn read(&self, data: &[u8]) -> Option<Chunk> {
        let rest = data.strip_prefix(self.event.get(..self.text_at).filter(|lead| !lead.is_empty())?)?;
        if rest.first() != Some(&b'"') {
            return None;
        }
        let mut scanner = Scanner::new(rest);
        let text = scanner.string().ok().filter(|text| !text.is_empty())?.range();
        let behind = rest.get(scanner.at()..)?;
        let (first, tail) = count(behind.strip_prefix(self.part(0))?)?;
        let (second, tail) = count(tail.strip_prefix(self.part(1))?)?;
        if tail != self.part(2) {
            return None;
        }
        let (completion, total) = if self.completion_first { (first, second) } else { (second, first) };
        let mut chunk = self.chunk.clone();
        chunk.counts = chunk.counts.map(|counts| counts.with(completion, total));
        // What lies before the counts moves with the text's end, what lies behind them with the event's end.
        let (was, is) = (self.fixed[0].start, data.len() - behind.len());
        let forward = |at: usize| at - was + is;
        let backward = |at: usize| at + data.len() - self.event.len();
        chunk.text = Some(self.text_at + text.start..self.text_at + text.end);
        chunk.choices_end = chunk.choices_end.map(forward);
        chunk.usage_cut = chunk.usage_cut.map(|cut| forward(cut.start)..backward(cut.end));
        Some(chunk)
    }

    /// Takes an event that was read in full for the next template, if it can be one.
    pub(super) fn learn(&mut self, data: &[u8], chunk: &Chunk) {
        if !chunk.is_running() || data.len() > TEMPLATE_BYTES_MAX {
            return;
        }
        let Some((text, fixed, completion_first)) = parts(data, chunk) else { return };
        self.event.clear();
        self.event.extend_from_slice(data);
        self.text_at = text.start - 1;
        self.fixed = fixed;
        self.completion_first = completion_first;
        self.chunk = chunk.clone();
    }

    pub(super) const fn kept_bytes(&self) -> usize {
        self.event.capacity()
    }

    /// Frees the memory: the next event is read in full.
    pub(super) fn let_go(&mut self) {
        *self = Self::default();
    }

    fn part(&self, part: usize) -> &[u8] {
        let range = self.fixed.get(part).cloned().unwrap_or_default();
        self.event.get(range).unwrap_or_default()
    }
}

/// Where the text lies, what stands behind it around the two counts, and whether the completion tokens come first.
fn parts(data: &[u8], chunk: &Chunk) -> Option<(Range<usize>, [Range<usize>; 3], bool)> {
    let text = chunk.text.clone()?;
    let cut = chunk.usage_cut.clone()?;
    let after = text.end + 1;
    if chunk.choices_end.is_none_or(|end| end < after || end > cut.start) {
        return None;
    }
    let usage = data.get(cut.clone())?;
    let find = |name: &[u8]| {
        let at = cut.start + memmem::find(usage, name)? + name.len();
        // Twice: which one counts is not for a template to say.
        let once = memmem::rfind(usage, name)? + name.len() == at - cut.start;
        let (value, rest) = count(data.get(at..)?)?;
        once.then_some((at..data.len() - rest.len(), value))
    };
    let ((completion, completion_tokens), (total, total_tokens)) = (find(COMPLETION)?, find(TOTAL)?);
    if !chunk.counts.is_some_and(|counts| counts.has(completion_tokens, total_tokens)) {
        return None;
    }
    let completion_first = completion.start < total.start;
    let (first, second) = if completion_first { (completion, total) } else { (total, completion) };
    let fixed = [after..first.start, first.end..second.start, second.end..data.len()];
    Some((text, fixed, completion_first))
}

/// The count that `bytes` begins with, as JSON writes one, and what follows.
fn count(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = bytes.split_at_checked(length)?;
    let is_plain = matches!(digits, [b'0'] | [b'1'..=b'9', ..]) && digits.len() <= 15;
    // Otherwise it goes on, and is no integer.
    let is_over = matches!(rest, [b',' | b'}', ..]);
    let value = unsigned(digits).filter(|value| is_plain && is_over && *value <= COUNT_MAX)?;
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str, usage: &str) -> String {
        format!(
            "{{\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\
             \"finish_reason\":null}}],\"usage\":{{{usage},\"completion_tokens_details\":null}}}}"
        )
    }

    fn counts(completion: &str, total: &str) -> String {
        format!("\"prompt_tokens\":9,\"total_tokens\":{total},\"completion_tokens\":{completion}")
    }

    fn learned(data: &str) -> Template {
        let mut template = Template::default();
        template.learn(data.as_bytes(), &Chunk::read(data.as_bytes()).unwrap());
        template
    }

    #[test]
    fn a_match_says_what_reading_says() {
        let template = learned(&event("one", &counts("1", "10")));
        let mut matched = 0;
        for text in ["two", "longer text", "\\n", "\\\"", "é", "}", "\\u00e9", "\",\"x\":\"", ""] {
            for count in
                ["1", "0", "12", "99999", "01", "1.0", "1e3", "-1", "null", "\"1\"", "999999999999999"]
            {
                let data = event(text, &counts(count, "77"));
                if let Some(chunk) = template.read(data.as_bytes()) {
                    assert_eq!(Ok(chunk), Chunk::read(data.as_bytes()), "{data}");
                    matched += 1;
                }
            }
        }
        assert_eq!(matched, 7 * 4, "7 texts and 4 counts are like the template");
    }

    #[test]
    fn no_changed_byte_makes_a_match_that_reads_otherwise() {
        let base = event("one", &counts("1", "10"));
        let template = learned(&base);
        for at in 0..base.len() {
            for byte in [0, b'"', b'\\', b'{', b'}', b',', b':', b'0', b'7', b'n', b' ', 0xc3, 0xff] {
                let mut data = base.clone().into_bytes();
                data[at] = byte;
                if let Some(chunk) = template.read(&data) {
                    assert_eq!(Ok(chunk), Chunk::read(&data), "{}", String::from_utf8_lossy(&data));
                }
                let cut = data.get(..at).unwrap();
                assert_eq!(template.read(cut), None);
            }
        }
    }

    #[test]
    fn what_is_special_is_no_template() {
        let usage = counts("1", "10");
        for data in [
            event("one", &usage).replace("null}]", "\"stop\"}]"),
            event("", &usage),
            event("one", "\"prompt_tokens\":9"),
            event("one", &format!("{usage},\"total_tokens\":11")),
            event("one", &usage).replace("}],", "},{\"index\":1,\"delta\":{\"content\":\"x\"}}],"),
            event("one", &usage).replace("\"delta\"", "\"text\":\"x\",\"delta\""),
            event("one", &usage).replace("\"choices\"", "\"error\":{},\"choices\""),
            event(&"x".repeat(TEMPLATE_BYTES_MAX), &usage),
        ] {
            let template = learned(&data);
            assert_eq!((template.read(data.as_bytes()), template.kept_bytes()), (None, 0), "{data}");
        }
    }
}
