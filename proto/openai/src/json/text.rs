//! A JSON string where it lies, and the ways to read it that need no copy.

use std::borrow::Cow;
use std::ops::Range;

/// Bytes before the first quote, backslash or control character: what a string's text is made of, UTF-8 or not.
///
/// Eight bytes at a time, in one pass: strings are short runs between escapes, for which a vectorised search costs more to
/// begin than it saves.
pub(super) fn plain_length(bytes: &[u8]) -> usize {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The lowest bit set in a result belongs to the first such byte; what a borrow sets lies behind it.
    let zero = |word: u64| word.wrapping_sub(LOW) & !word & HIGH;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut length = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        let control = word.wrapping_sub(LOW * 0x20) & !word & HIGH;
        let ends = control | zero(word ^ (LOW * 0x22)) | zero(word ^ (LOW * 0x5c));
        if ends != 0 {
            return length + (ends.trailing_zeros() / 8) as usize;
        }
        length += 8;
    }
    let ends = |byte: &u8| *byte < 0x20 || matches!(byte, b'"' | b'\\');
    length + rest.iter().position(ends).unwrap_or(rest.len())
}

/// A string of a JSON text, still escaped.
#[derive(Clone, Debug)]
pub struct Text<'a> {
    raw: &'a [u8],
    range: Range<usize>,
    escaped: bool,
}

impl<'a> Text<'a> {
    pub(super) fn new(bytes: &'a [u8], range: Range<usize>, escaped: bool) -> Self {
        Self { raw: bytes.get(range.clone()).unwrap_or_default(), range, escaped }
    }

    /// The string whose raw bytes are `range` of `bytes`.
    pub(crate) fn of(bytes: &'a [u8], range: Range<usize>) -> Self {
        let raw = bytes.get(range.clone()).unwrap_or_default();
        Self { raw, range, escaped: memchr::memchr(b'\\', raw).is_some() }
    }

    /// The string as bytes, its escapes read, to be matched against names.
    pub(crate) fn name(&self) -> Cow<'a, [u8]> {
        if self.escaped {
            Cow::Owned(self.decode().into_owned().into_bytes())
        } else {
            Cow::Borrowed(self.raw)
        }
    }

    /// Where the raw string lies in the text that was scanned, without its quotes.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The raw bytes, without the quotes and with escapes as they were written.
    #[must_use]
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The string, its escapes read. Lone surrogates become U+FFFD. Copies only if there are escapes.
    #[must_use]
    pub fn decode(&self) -> Cow<'a, str> {
        if !self.escaped {
            return String::from_utf8_lossy(self.raw);
        }
        let mut out = String::with_capacity(self.raw.len());
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            out.push_str(&String::from_utf8_lossy(rest.get(..at).unwrap_or_default()));
            let (read, length) = escape(rest.get(at..).unwrap_or_default());
            out.push(read.unwrap_or(char::REPLACEMENT_CHARACTER));
            rest = rest.get(at + length..).unwrap_or_default();
        }
        out.push_str(&String::from_utf8_lossy(rest));
        Cow::Owned(out)
    }

    /// Whether an escape names half a surrogate pair. Python keeps such a string; no other part of
    /// a gateway can.
    #[must_use]
    pub fn has_lone_surrogate(&self) -> bool {
        let mut rest = if self.escaped { self.raw } else { &[] };
        while let Some(at) = memchr::memchr(b'\\', rest) {
            let (read, length) = escape(rest.get(at..).unwrap_or_default());
            if read.is_none() {
                return true;
            }
            rest = rest.get(at + length..).unwrap_or_default();
        }
        false
    }

    /// Whether the string, its escapes read, is `other`.
    #[must_use]
    pub fn is(&self, other: &str) -> bool {
        if self.escaped {
            self.decode() == other && !self.has_lone_surrogate()
        } else {
            self.raw == other.as_bytes()
        }
    }

    /// Whether the string is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }
}

/// Reads the escape that `bytes` begins with: its character, `None` for half a surrogate pair, and
/// its length, at least 1. A pair of surrogates is one escape.
fn escape(bytes: &[u8]) -> (Option<char>, usize) {
    let plain = match bytes.get(1) {
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return unicode_escape(bytes),
        Some(&other) => char::from(other),
        None => return (None, 1),
    };
    (Some(plain), 2)
}

fn unicode_escape(bytes: &[u8]) -> (Option<char>, usize) {
    let Some(unit) = code_unit(bytes) else { return (None, 2) };
    if (0xD800..0xDC00).contains(&unit)
        && let Some(low @ 0xDC00..=0xDFFF) = bytes.get(6..).and_then(code_unit)
    {
        let point = 0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
        return (char::from_u32(point), 12);
    }
    (char::from_u32(unit), 6)
}

/// The four digits of `\uXXXX`.
fn code_unit(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, &digit| Some((unit << 4) | char::from(digit).to_digit(16)?))
}

/// Appends `text` as a JSON string, quotes included.
pub(crate) fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{0}'..='\u{1f}' | '\u{7f}' => {
                out.push_str("\\u00");
                for digit in [u32::from(c) >> 4, u32::from(c) & 15] {
                    out.push(char::from_digit(digit, 16).unwrap_or('0'));
                }
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}
