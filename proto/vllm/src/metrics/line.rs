//! One line of Prometheus text: name, labels, value.
//!
//! Only what decides where something ends is looked at: quotes and escapes inside label values, so that a comma, a
//! brace or a quote in a model's name moves nothing. Timestamps and exemplars behind the value are skipped.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memchr3};

use super::limits::LABELS_MAX;

/// One label of a line; the value still has its escapes.
#[derive(Clone, Copy)]
pub(super) struct Label<'a> {
    pub(super) name: &'a [u8],
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> Label<'a> {
    /// The value as it was before it was written into the page.
    pub(super) fn value(&self) -> Cow<'a, [u8]> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        let mut value = Vec::with_capacity(self.raw.len());
        let mut bytes = self.raw.iter().copied();
        while let Some(byte) = bytes.next() {
            if byte != b'\\' {
                value.push(byte);
                continue;
            }
            match bytes.next() {
                Some(b'n') => value.push(b'\n'),
                Some(other) => value.push(other),
                None => {}
            }
        }
        Cow::Owned(value)
    }
}

/// The name of a line and what follows it (labels or value). `None`: there is no name.
pub(super) fn split_name(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr3(b'{', b' ', b'\t', line)?;
    (end > 0).then(|| line.split_at(end))
}

/// Hands every label to `each` and returns the value. `None`: the line isn't well-formed, or has too many labels.
pub(super) fn read_rest<'a>(rest: &'a [u8], mut each: impl FnMut(Label<'a>)) -> Option<f64> {
    let Some(mut rest) = rest.strip_prefix(b"{") else { return value(rest) };
    for _ in 0..=LABELS_MAX {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix(b"}") {
            return value(after);
        }
        let (name, after) = rest.split_at_checked(memchr(b'=', rest)?)?;
        let quoted = after.get(1..)?.trim_ascii_start().strip_prefix(b"\"")?;
        let (end, escaped) = closing_quote(quoted)?;
        let (raw, after) = quoted.split_at_checked(end)?;
        each(Label { name: name.trim_ascii_end(), raw, escaped });
        rest = after.get(1..)?.trim_ascii_start();
        match rest.strip_prefix(b",") {
            Some(after) => rest = after,
            None if rest.starts_with(b"}") => {}
            None => return None,
        }
    }
    None
}

/// Where the quoted text ends, and whether it has escapes.
fn closing_quote(text: &[u8]) -> Option<(usize, bool)> {
    let mut at = 0;
    let mut escaped = false;
    loop {
        let found = at + memchr2(b'"', b'\\', text.get(at..)?)?;
        if text.get(found) == Some(&b'"') {
            return Some((found, escaped));
        }
        escaped = true;
        at = found + 2;
    }
}

/// The number of a line: also `NaN`, `+Inf`, `-Inf` and exponents.
fn value(rest: &[u8]) -> Option<f64> {
    let rest = rest.trim_ascii();
    let end = memchr2(b' ', b'\t', rest).unwrap_or(rest.len());
    std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rest: &str) -> Option<(Vec<(String, String)>, f64)> {
        let mut labels = Vec::new();
        let value = read_rest(rest.as_bytes(), |label| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            labels.push((text(label.name), text(&label.value())));
        })?;
        Some((labels, value))
    }

    #[test]
    fn quotes_decide_where_a_value_ends() {
        let (labels, value) =
            read(r#"{a="x,}y",b="q\"\\\n{", c = "" , } 1.5e+03 1796099608 # {x="y"} 1"#).unwrap();
        let want = [("a", "x,}y"), ("b", "q\"\\\n{"), ("c", "")];
        assert_eq!(labels, want.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!((value - 1500.0).abs() < 1e-9);
    }

    #[test]
    fn every_form_of_a_number_is_read() {
        assert!(read(" NaN").unwrap().1.is_nan());
        for (text, want) in [
            (" +Inf", f64::INFINITY),
            (" -Inf\r", f64::NEG_INFINITY),
            ("\t1.7960987851373258e+09", 1_796_098_785.137_325_8),
            (" 7 1796099608000", 7.0),
            ("{} -3", -3.0),
        ] {
            assert_eq!(read(text).unwrap().1.to_bits(), want.to_bits(), "{text}");
        }
    }

    #[test]
    fn what_is_cut_or_malformed_is_no_line() {
        for text in [
            "",
            " ",
            "{",
            "{a",
            "{a=",
            "{a=\"",
            "{a=\"x\\",
            "{a=\"x\"",
            "{a=\"x\" b=\"y\"} 1",
            "{a=x} 1",
            "{} ",
            "{} x",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
        let many = format!("{{{}}} 1", "a=\"\",".repeat(LABELS_MAX));
        assert!(read(&many).is_some());
        let many = format!("{{{}}} 1", "a=\"\",".repeat(LABELS_MAX + 1));
        assert!(read(&many).is_none());
    }
}
