//! The engine's own account of every request that reached it.

use std::collections::BTreeMap;

/// How a request ended, as the engine saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Still being answered.
    Running,
    /// Its last byte was taken.
    Finished,
    /// The peer went away first.
    Aborted,
    /// The engine itself broke off, on purpose.
    Died,
    /// Answered with an error.
    Refused,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `x-request-id`, which Envoy sets; empty on a direct call.
    pub request_id: String,
    /// `x-test-id`, which a test sets.
    pub test_id: String,
    pub method: String,
    pub path: String,
    pub model: String,
    /// Whether the request carried `x-tokenweir-pool`: proof that a verdict sent it here.
    pub verdict: bool,
    /// Every header, for tests of what must not arrive.
    pub headers: Vec<(String, String)>,
    pub body_bytes: u64,
    pub stream: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// Tokens whose bytes were handed over so far.
    pub completion_tokens: u64,
    pub bytes_out: u64,
    pub status: u16,
    pub outcome: Outcome,
}

/// Where nothing is kept.
const NOT_KEPT: usize = usize::MAX;

/// All requests, in order of arrival; what the service asks the engine itself is none.
#[derive(Clone, Debug, Default)]
pub struct Books {
    entries: Vec<Entry>,
}

impl Books {
    pub(crate) fn open(&mut self, entry: Entry) -> usize {
        // Envoy gives every request an id: a GET without one is the service looking after the engine, no request.
        if entry.method == "GET" && entry.request_id.is_empty() {
            return NOT_KEPT;
        }
        self.entries.push(entry);
        self.entries.len() - 1
    }

    pub(crate) fn update(&mut self, index: usize, change: impl FnOnce(&mut Entry)) {
        // Cleared meanwhile: nothing to keep.
        if let Some(entry) = self.entries.get_mut(index) {
            change(entry);
        }
    }

    /// Every request.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Requests that reached the engine without a verdict. On a protected route this must stay 0.
    #[must_use]
    pub fn without_verdict(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.verdict).count()
    }

    /// Requests whose outcome is `outcome`.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.entries.iter().filter(|entry| entry.outcome == outcome).count()
    }

    /// By the request id that Envoy gave.
    #[must_use]
    pub fn by_request_id(&self) -> BTreeMap<&str, &Entry> {
        self.entries.iter().map(|entry| (entry.request_id.as_str(), entry)).collect()
    }

    /// The newest request with this test id.
    #[must_use]
    pub fn by_test_id(&self, id: &str) -> Option<&Entry> {
        self.entries.iter().rev().find(|entry| entry.test_id == id)
    }
}
