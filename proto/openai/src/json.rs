//! A JSON scanner over bytes: one pass, no tree, no copy of any string.
//!
//! It accepts what Python's `json.loads` accepts, because that is what the engines behind use, and
//! a gateway that read a body differently from its engine could be talked past. So `NaN`,
//! `Infinity` and lone `\ud800` escapes pass, while raw control characters and invalid UTF-8 are
//! errors. Stricter than Python on purpose: no byte order mark, no UTF-16/32, no UTF-8-encoded
//! surrogates, and nesting only to [`NESTING_MAX`].

mod flaw;
mod text;

pub use flaw::{Flaw, JsonError};
pub use text::Text;
pub(crate) use text::push_json_string;

use crate::limits::{INTEGER_DIGITS_MAX, NESTING_MAX};

/// Result of a step of the scanner.
pub type Step<T> = Result<T, JsonError>;

/// What a value begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{`
    Object,
    /// `[`
    Array,
    /// `"`
    String,
    /// A digit or `-` (also `-Infinity`), `NaN`, `Infinity`.
    Number,
    /// `true` or `false`.
    Bool,
    /// `null`
    Null,
}

/// A position in a JSON text. Errors end a scan: after one, the position means nothing.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    /// All of it is known to be UTF-8.
    utf8: bool,
}

impl<'a> Scanner<'a> {
    /// A scanner before the first byte.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0, utf8: false }
    }

    /// The same for a long text: whether it is UTF-8 is found out at once, which is far cheaper than string by string.
    /// If it is not, the string that says so is found as ever.
    #[must_use]
    pub fn long(bytes: &'a [u8]) -> Self {
        Self { utf8: simdutf8::basic::from_utf8(bytes).is_ok(), ..Self::new(bytes) }
    }

    /// The offset of the next byte.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    const fn flawed<T>(&self, flaw: Flaw) -> Step<T> {
        Err(JsonError { flaw, at: self.at })
    }

    fn byte(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// `flaw`, or [`Flaw::End`] where the text is over.
    fn unexpected<T>(&self, flaw: Flaw) -> Step<T> {
        self.flawed(if self.at < self.bytes.len() { flaw } else { Flaw::End })
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.byte() {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.byte() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Refuses the encodings that `json.loads` would guess.
    ///
    /// # Errors
    /// [`Flaw::Encoding`].
    pub fn check_encoding(&self) -> Step<()> {
        let marked = matches!(self.bytes, [0xEF, 0xBB, 0xBF, ..] | [0xFE, 0xFF, ..] | [0xFF, 0xFE, ..]);
        let wide = matches!(self.bytes, [0, ..] | [_, 0, ..]);
        if marked || wide { self.flawed(Flaw::Encoding) } else { Ok(()) }
    }

    /// Whether only white space is left.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.clone().end().is_ok()
    }

    /// Skips white space and says what the next value begins with, without consuming it.
    ///
    /// # Errors
    /// [`Flaw::Value`] or [`Flaw::End`] where no value begins.
    pub fn peek(&mut self) -> Step<Kind> {
        self.skip_space();
        match self.byte() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9' | b'N' | b'I') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'n') => Ok(Kind::Null),
            _ => self.unexpected(Flaw::Value),
        }
    }

    /// Enters an array or object whose bracket [`Scanner::peek`] has seen.
    ///
    /// # Errors
    /// [`Flaw::Nesting`] past the limit.
    pub fn open(&mut self) -> Step<()> {
        if self.depth >= NESTING_MAX {
            return self.flawed(Flaw::Nesting);
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// Moves to the next member of the object entered last; `None` once it is closed. `first`
    /// begins as `true` and is kept by the caller. After `Some`, the member's value is next.
    ///
    /// # Errors
    /// Any [`Flaw`] of a key, or of what stands between members.
    pub fn member(&mut self, first: &mut bool) -> Step<Option<Text<'a>>> {
        self.skip_space();
        if self.eat(b'}') {
            // A comma before the bracket was refused below.
            self.depth = self.depth.saturating_sub(1);
            return Ok(None);
        }
        if !std::mem::take(first) {
            if !self.eat(b',') {
                return self.unexpected(Flaw::Comma);
            }
            self.skip_space();
        }
        if self.byte() != Some(b'"') {
            return self.unexpected(Flaw::Key);
        }
        let key = self.string()?;
        self.skip_space();
        if !self.eat(b':') {
            return self.unexpected(Flaw::Colon);
        }
        Ok(Some(key))
    }

    /// Moves to the next element of the array entered last; `false` once it is closed.
    ///
    /// # Errors
    /// [`Flaw::Comma`], [`Flaw::Value`] or [`Flaw::End`].
    pub fn element(&mut self, first: &mut bool) -> Step<bool> {
        self.skip_space();
        if self.eat(b']') {
            self.depth = self.depth.saturating_sub(1);
            return Ok(false);
        }
        if !std::mem::take(first) {
            if !self.eat(b',') {
                return self.unexpected(Flaw::Comma);
            }
            self.skip_space();
            if self.byte() == Some(b']') {
                return self.flawed(Flaw::Value);
            }
        }
        Ok(true)
    }

    /// Reads the string that begins here.
    ///
    /// # Errors
    /// Any [`Flaw`] of a string.
    pub fn string(&mut self) -> Step<Text<'a>> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let length = text::plain_length(rest);
            let end = rest.get(length);
            if end.is_some_and(|&byte| byte < 0x20) {
                return Err(JsonError { flaw: Flaw::Control, at: self.at + length });
            }
            self.check_utf8(rest.get(..length).unwrap_or_default())?;
            self.at += length;
            match end {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Text::new(self.bytes, start..self.at - 1, escaped));
                }
                Some(_) => {
                    escaped = true;
                    self.escape()?;
                }
                None => return self.flawed(Flaw::End),
            }
        }
    }

    fn escape(&mut self) -> Step<()> {
        self.at += 1;
        match self.byte() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    match self.byte() {
                        Some(digit) if digit.is_ascii_hexdigit() => self.at += 1,
                        _ => return self.unexpected(Flaw::Escape),
                    }
                }
            }
            _ => return self.unexpected(Flaw::Escape),
        }
        Ok(())
    }

    fn check_utf8(&self, run: &[u8]) -> Step<()> {
        if !self.utf8
            && !run.is_ascii()
            && let Err(error) = std::str::from_utf8(run)
        {
            return Err(JsonError { flaw: Flaw::Utf8, at: self.at + error.valid_up_to() });
        }
        Ok(())
    }

    /// Reads `true` or `false`.
    ///
    /// # Errors
    /// [`Flaw::Value`] for any other word.
    pub fn bool(&mut self) -> Step<bool> {
        let value = self.byte() == Some(b't');
        self.word(if value { b"true" } else { b"false" })?;
        Ok(value)
    }

    /// Reads `null`.
    ///
    /// # Errors
    /// [`Flaw::Value`] for any other word.
    pub fn null(&mut self) -> Step<()> {
        self.word(b"null")
    }

    fn word(&mut self, word: &[u8]) -> Step<()> {
        if self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            self.at += word.len();
            return Ok(());
        }
        self.flawed(Flaw::Value)
    }

    /// Reads a number and returns its raw text.
    ///
    /// # Errors
    /// [`Flaw::Number`], [`Flaw::Digits`] or [`Flaw::Value`].
    pub fn number(&mut self) -> Step<&'a [u8]> {
        let start = self.at;
        let negative = self.eat(b'-');
        match self.byte() {
            Some(b'N') if !negative => self.word(b"NaN")?,
            Some(b'I') => self.word(b"Infinity")?,
            Some(b'0') => {
                self.at += 1;
                self.fraction()?;
            }
            Some(b'1'..=b'9') => {
                let digits = self.digits();
                let end = self.at;
                self.fraction()?;
                if self.at == end && digits > INTEGER_DIGITS_MAX {
                    return self.flawed(Flaw::Digits);
                }
            }
            _ => return self.unexpected(Flaw::Number),
        }
        Ok(self.bytes.get(start..self.at).unwrap_or_default())
    }

    fn fraction(&mut self) -> Step<()> {
        if self.eat(b'.') && self.digits() == 0 {
            return self.unexpected(Flaw::Number);
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _ = self.eat(b'+') || self.eat(b'-');
            if self.digits() == 0 {
                return self.unexpected(Flaw::Number);
            }
        }
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.byte() {
            self.at += 1;
        }
        self.at - start
    }

    /// Reads one value of any kind, checks it, and returns where its raw text lies. Needs no
    /// recursion and no memory, however the value is nested.
    ///
    /// # Errors
    /// Any [`Flaw`] but [`Flaw::Trailing`] and [`Flaw::Encoding`].
    pub fn value(&mut self) -> Step<std::ops::Range<usize>> {
        self.skip_space();
        let start = self.at;
        let floor = self.depth;
        // One bit per open bracket, innermost last: 1 for an object.
        let mut objects: u128 = 0;
        let mut first = true;
        loop {
            // A value is next.
            match self.peek()? {
                kind @ (Kind::Object | Kind::Array) => {
                    self.open()?;
                    objects = (objects << 1) | u128::from(kind == Kind::Object);
                    first = true;
                }
                Kind::String => {
                    self.string()?;
                }
                Kind::Number => {
                    self.number()?;
                }
                Kind::Bool => {
                    self.bool()?;
                }
                Kind::Null => self.null()?,
            }
            // Close what ends here, then stand before the next value.
            loop {
                if self.depth == floor {
                    return Ok(start..self.at);
                }
                let more = if objects & 1 == 1 {
                    self.member(&mut first)?.is_some()
                } else {
                    self.element(&mut first)?
                };
                if more {
                    break;
                }
                objects >>= 1;
                first = false;
            }
        }
    }

    /// Reads one value of any kind and checks it.
    ///
    /// # Errors
    /// As [`Scanner::value`].
    pub fn skip(&mut self) -> Step<()> {
        self.value().map(|_| ())
    }

    /// Checks that only white space is left.
    ///
    /// # Errors
    /// [`Flaw::Trailing`].
    pub fn end(&mut self) -> Step<()> {
        self.skip_space();
        if self.at < self.bytes.len() { self.flawed(Flaw::Trailing) } else { Ok(()) }
    }
}

/// Reads an unsigned integer: saturating, and `None` for anything negative, fractional or not a number.
#[must_use]
pub fn unsigned(number: &[u8]) -> Option<u64> {
    number.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'9' => Some(value.saturating_mul(10).saturating_add(u64::from(digit - b'0'))),
        _ => None,
    })
}

#[cfg(test)]
pub(crate) mod tests;
