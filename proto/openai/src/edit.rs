//! Byte edits of a request.

use std::ops::Range;

use crate::body::Request;

/// Replacements of byte ranges, in the order of the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    list: Vec<(Range<usize>, String)>,
}

impl Edits {
    /// The body with the edits made.
    #[must_use]
    pub fn apply(&self, body: &[u8]) -> Vec<u8> {
        body.to_vec()
    }

    /// Both edits.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.list.extend(other.list);
        self
    }
}

impl Request<'_> {
    /// The edit that makes a stream carry usage.
    #[must_use]
    pub fn inject_usage(&self, continuous: bool) -> Option<Edits> {
        let _ = continuous;
        None
    }

    /// The edit that asks for another model.
    #[must_use]
    pub fn rewrite_model(&self, model: &str) -> Edits {
        let _ = model;
        Edits::default()
    }
}
