//! What can be wrong with a JSON text, and how that is said.

use std::fmt;

use crate::limits::{INTEGER_DIGITS_MAX, NESTING_MAX};

/// What is wrong with a text that isn't JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The text ends in the middle of a value.
    End,
    /// A value was expected here.
    Value,
    /// A member name in double quotes was expected here.
    Key,
    /// `:` was expected here.
    Colon,
    /// `,` or the closing bracket was expected here.
    Comma,
    /// A number is malformed here.
    Number,
    /// An integer has more digits than engines read; it ends here.
    Digits,
    /// An escape sequence is malformed here.
    Escape,
    /// A control character stands unescaped in a string.
    Control,
    /// A string isn't valid UTF-8.
    Utf8,
    /// Arrays and objects are nested too deeply.
    Nesting,
    /// Something follows the value.
    Trailing,
    /// The text begins with a byte order mark, or is UTF-16 or UTF-32.
    Encoding,
}

/// A flaw and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// What is wrong.
    pub flaw: Flaw,
    /// Byte offset from the start of the text.
    pub at: usize,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at;
        match self.flaw {
            Flaw::End => write!(f, "the JSON ends too early, at byte {at}"),
            Flaw::Value => write!(f, "a JSON value was expected at byte {at}"),
            Flaw::Key => write!(f, "a member name in double quotes was expected at byte {at}"),
            Flaw::Colon => write!(f, "`:` was expected at byte {at}"),
            Flaw::Comma => write!(f, "`,` or a closing bracket was expected at byte {at}"),
            Flaw::Number => write!(f, "a number is malformed at byte {at}"),
            Flaw::Digits => {
                write!(
                    f,
                    "an integer has more than {INTEGER_DIGITS_MAX} digits, up to byte {at}; no engine reads it"
                )
            }
            Flaw::Escape => write!(f, "an escape sequence is malformed at byte {at}"),
            Flaw::Control => write!(f, "a control character must be escaped at byte {at}"),
            Flaw::Utf8 => write!(f, "a string is not valid UTF-8 at byte {at}"),
            Flaw::Nesting => {
                write!(f, "arrays and objects are nested deeper than {NESTING_MAX} at byte {at}")
            }
            Flaw::Trailing => write!(f, "something follows the JSON value at byte {at}"),
            Flaw::Encoding => write!(f, "the body must be UTF-8 without a byte order mark"),
        }
    }
}

impl std::error::Error for JsonError {}
