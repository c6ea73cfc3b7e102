//! Byte edits of a request: what must change changes, every other byte stays as the client wrote it.
//!
//! A body that is parsed and written again is another body: numbers lose digits, members move,
//! and what a client signed or an engine hashes no longer matches.

use std::ops::Range;

use crate::body::{Flag, Request, StreamOptions};
use crate::json::push_json_string;

/// Replacements of byte ranges of one body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// In the order of the body, without overlaps.
    list: Vec<Edit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Edit {
    range: Range<usize>,
    text: String,
}

impl Edits {
    fn new(range: Range<usize>, text: String) -> Self {
        Self { list: vec![Edit { range, text }] }
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The body with the edits made. `body` is the one the request was scanned from.
    #[must_use]
    pub fn apply(&self, body: &[u8]) -> Vec<u8> {
        let added: usize = self.list.iter().map(|edit| edit.text.len()).sum();
        let mut out = Vec::with_capacity(body.len() + added);
        let mut at = 0;
        for edit in &self.list {
            out.extend_from_slice(body.get(at..edit.range.start).unwrap_or_default());
            out.extend_from_slice(edit.text.as_bytes());
            at = edit.range.end;
        }
        out.extend_from_slice(body.get(at..).unwrap_or_default());
        out
    }

    /// Both edits of one body as one. They must touch different members.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.list.extend(other.list);
        self.list.sort_by_key(|edit| edit.range.start);
        self
    }
}

/// Where the first member of a scanned body begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstMember(usize);

impl FirstMember {
    /// The edit that gives the response its id: a vLLM takes the member `request_id` for that, which a client may not set.
    /// It becomes the first member of the body.
    #[must_use]
    pub fn name_response(self, id: &str) -> Edits {
        let mut member = String::with_capacity(id.len() + 16);
        member.push_str("\"request_id\":");
        push_json_string(&mut member, id);
        // A body that was scanned has at least its model.
        member.push(',');
        Edits::new(self.0..self.0, member)
    }
}

impl Request<'_> {
    /// The edit that makes the engine put usage into this stream: at the end, and, if `continuous`,
    /// into every event. `None` if there is nothing to do: not a stream, an API whose streams
    /// always carry usage, or the client asked for as much itself.
    ///
    /// An absent `stream_options` becomes the first member of the body; one that is there keeps
    /// all its other members.
    #[must_use]
    pub fn inject_usage(&self, continuous: bool) -> Option<Edits> {
        if !self.stream || !self.api.takes_stream_options() {
            return None;
        }
        let options = if continuous {
            r#"{"include_usage":true,"continuous_usage_stats":true}"#
        } else {
            r#"{"include_usage":true}"#
        };
        match &self.stream_options {
            StreamOptions::Absent => {
                let member = format!("\"stream_options\":{options},");
                Some(Edits::new(self.members_at..self.members_at, member))
            }
            StreamOptions::Null(range) => Some(Edits::new(range.clone(), options.into())),
            // Refused when it was scanned, since this is a stream.
            StreamOptions::Other => None,
            StreamOptions::Object { members_at, empty, include_usage, continuous_usage_stats } => {
                let mut edits = Edits::default();
                let mut added = Vec::new();
                let mut set = |flag: &Option<Flag>, name: &str| match flag {
                    Some(Flag { value: Some(true), .. }) => {}
                    Some(Flag { range, .. }) => {
                        edits.list.push(Edit { range: range.clone(), text: "true".into() });
                    }
                    None => added.push(format!("\"{name}\":true")),
                };
                set(include_usage, "include_usage");
                if continuous {
                    set(continuous_usage_stats, "continuous_usage_stats");
                }
                if !added.is_empty() {
                    let comma = if *empty { "" } else { "," };
                    edits.list.push(Edit {
                        range: *members_at..*members_at,
                        text: format!("{}{comma}", added.join(",")),
                    });
                }
                // Members stand in any order.
                let edits = edits.merge(Edits::default());
                (!edits.is_empty()).then_some(edits)
            }
        }
    }

    /// Where the first member of the body begins: what is needed of it once it is decided who serves.
    #[must_use]
    pub const fn first_member(&self) -> FirstMember {
        FirstMember(self.members_at)
    }

    /// The edit that asks for another model.
    #[must_use]
    pub fn rewrite_model(&self, model: &str) -> Edits {
        let inner = self.model.range();
        let mut text = String::with_capacity(model.len() + 2);
        push_json_string(&mut text, model);
        Edits::new(inner.start.saturating_sub(1)..inner.end + 1, text)
    }
}

#[cfg(test)]
mod tests;
