//! Errors of a configuration file: all of them at once, each with its line, its key, what is wrong and what to do.

use std::fmt;
use std::path::{Path, PathBuf};

use super::yaml::{self, Document, Problem};

/// One thing that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file as the caller named it.
    pub file: PathBuf,
    /// Line, counted from 1; 0 where the file could not be read.
    pub line: usize,
    /// The key, as in `pools[0].name`; empty for the file as a whole.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}; {}", self.what, self.advice)
    }
}

/// Everything that is wrong in a file, by line. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// The errors, by line.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigError> {
        self.errors.iter()
    }

    /// One error about a file as a whole.
    pub(crate) fn file(file: &Path, what: impl Into<String>, advice: impl Into<String>) -> Self {
        let (what, advice) = (what.into(), advice.into());
        Self {
            errors: vec![ConfigError { file: file.to_owned(), line: 0, key: String::new(), what, advice }],
        }
    }
}

/// One error a line.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Collects errors while a file is checked.
pub(crate) struct Collector<'a> {
    file: &'a Path,
    errors: Vec<(String, ConfigError)>,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(file: &'a Path) -> Self {
        Self { file, errors: Vec::new() }
    }

    pub(crate) fn file(&self) -> &'a Path {
        self.file
    }

    pub(crate) fn yaml(&mut self, problem: Problem) {
        let Problem { position, pointer, what, advice } = problem;
        self.push(pointer, position.line, what, advice.to_owned());
    }

    /// An error of the value at `pointer`.
    pub(crate) fn value(
        &mut self,
        document: &Document,
        pointer: &str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let line = document.value_position(pointer).line;
        self.push(pointer.to_owned(), line, what.into(), advice.into());
    }

    /// An error of the key at `pointer`: of its name, or that it is missing.
    pub(crate) fn key(
        &mut self,
        document: &Document,
        pointer: &str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let line = document.key_position(pointer).line;
        self.push(pointer.to_owned(), line, what.into(), advice.into());
    }

    fn push(&mut self, pointer: String, line: usize, what: String, advice: String) {
        if self.errors.len() < yaml::PROBLEMS_MAX {
            let key = spelled(&pointer);
            self.errors.push((pointer, ConfigError { file: self.file.to_owned(), line, key, what, advice }));
        }
    }

    /// Whether anything at or below `pointer` is wrong so far.
    pub(crate) fn touches(&self, pointer: &str) -> bool {
        self.errors.iter().any(|(at, _)| {
            at.strip_prefix(pointer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// `value`, or everything that was found.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, ConfigErrors> {
        let mut errors: Vec<_> = self.errors.into_iter().map(|(_, error)| error).collect();
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            Some(_) | None => {
                errors.sort_by_key(|error| error.line);
                if errors.is_empty() {
                    return Err(ConfigErrors::file(
                        self.file,
                        "could not be read as a whole",
                        "report this as a bug",
                    ));
                }
                Err(ConfigErrors { errors })
            }
        }
    }
}

/// A JSON pointer as people write keys: `/pools/0/name` is `pools[0].name`.
fn spelled(pointer: &str) -> String {
    let mut out = String::new();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if !out.is_empty() && !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            out.push('[');
            out.push_str(&part);
            out.push(']');
            continue;
        }
        if !out.is_empty() {
            out.push('.');
        }
        // A key is the file's text: control characters must not reach a terminal.
        out.extend(part.chars().take(80).map(|c| if c.is_control() { '\u{fffd}' } else { c }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_spelled_as_people_write_keys() {
        assert_eq!(spelled(""), "");
        assert_eq!(spelled("/pools/0/name"), "pools[0].name");
        assert_eq!(spelled("/a~1b/c~0\u{1b}"), "a/b.c~\u{fffd}");
    }
}
