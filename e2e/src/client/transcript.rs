//! What a client saw of one response.

use http::HeaderMap;
use serde_json::Value;
use std::time::Duration;

/// How a response ended, as the client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With its proper end.
    Complete,
    /// The client hung up, as it was told to.
    HungUp,
    /// The connection or the stream broke.
    Cut(String),
    /// The client's limit passed.
    TimedOut,
    /// Still coming.
    Running,
}

/// One response.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub trailers: Option<HeaderMap>,
    pub body: Vec<u8>,
    pub ended: Ended,
    /// From the call to the response headers.
    pub headers_after: Duration,
    /// From the call to the first body byte.
    pub first_byte_after: Option<Duration>,
    /// From the call to the end.
    pub took: Duration,
    events: usize,
}

impl Reply {
    pub(super) fn new(status: u16, headers: HeaderMap, headers_after: Duration) -> Self {
        Self {
            status,
            headers,
            trailers: None,
            body: Vec::new(),
            ended: Ended::Running,
            headers_after,
            first_byte_after: None,
            took: Duration::ZERO,
            events: 0,
        }
    }

    pub(super) fn push(&mut self, data: &[u8], after: Duration) {
        self.first_byte_after.get_or_insert(after);
        // The blank line may lie across two chunks.
        let from = self.body.len().saturating_sub(1);
        self.body.extend_from_slice(data);
        self.events += self.body[from..].windows(2).filter(|pair| pair == b"\n\n").count();
    }

    pub(super) fn end(&mut self, ended: Ended, took: Duration) {
        self.ended = ended;
        self.took = took;
    }

    /// Finished SSE events so far.
    #[must_use]
    pub fn events_so_far(&self) -> usize {
        self.events
    }

    /// Tokens of a chat or completion stream that came so far: each event of a choice carries one, but for the first of a
    /// chat's choice.
    #[must_use]
    pub fn tokens_seen(&self) -> u64 {
        let text = String::from_utf8_lossy(&self.body);
        let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
        let is_token =
            |event: &&str| event.contains("\"choices\":[{") && !event.contains("\"role\":\"assistant\"");
        whole.split("\n\n").filter(is_token).count() as u64
    }

    /// One header, empty when absent or not text.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The request id that Envoy gave the request.
    #[must_use]
    pub fn request_id(&self) -> String {
        self.header("x-request-id").to_owned()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; `Null` when it is not.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The SSE events, as text without their blank line.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.text().split("\n\n").filter(|event| !event.is_empty()).map(str::to_owned).collect()
    }

    /// The `data` of every event that is JSON.
    #[must_use]
    pub fn data(&self) -> Vec<Value> {
        let line = |event: &String| -> Option<Value> {
            let data = event.lines().find_map(|line| line.strip_prefix("data: "))?;
            serde_json::from_str(data).ok()
        };
        self.events().iter().filter_map(line).collect()
    }

    /// Whether the stream says that it is whole: `[DONE]`, `message_stop` or `response.completed`.
    #[must_use]
    pub fn has_terminal_event(&self) -> bool {
        let text = self.text();
        let last = text.trim_end().rsplit("\n\n").next().unwrap_or("");
        last.contains("data: [DONE]")
            || last.contains("\"type\":\"message_stop\"")
            || last.contains("\"type\":\"response.completed\"")
    }

    /// The text of the answer, whichever API it is of.
    #[must_use]
    pub fn answer(&self) -> String {
        let mut out = String::new();
        for data in self.data() {
            let pieces =
                ["/choices/0/delta/content", "/choices/0/text", "/delta/text", "/delta/partial_json"];
            let piece = pieces.iter().find_map(|path| data.pointer(path).and_then(Value::as_str));
            out.push_str(piece.unwrap_or(""));
            if data.get("type").and_then(Value::as_str) == Some("response.output_text.delta") {
                out.push_str(data.get("delta").and_then(Value::as_str).unwrap_or(""));
            }
        }
        out
    }

    /// The body, to be compared with a direct call's. With one choice every byte counts, but for the id of a response, which
    /// the gateway gives. With several, a choice that finishes while others still generate doesn't get its
    /// `system_fingerprint` back (the filter would have to hold its last event until the end), so that member is left out
    /// of the comparison; vLLM writes it on the last chunk, or on the usage chunk when there is one.
    #[must_use]
    pub fn comparable(&self, choices: u64) -> String {
        let text = without(&self.text(), "\"id\":\"resp_");
        if choices <= 1 { text } else { without(&text, ",\"system_fingerprint\":\"") }
    }
}

/// The text without what begins with `marker` and ends with the next quote.
fn without(text: &str, marker: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(marker) {
        out.push_str(&rest[..at]);
        let value = &rest[at + marker.len()..];
        rest = value.find('"').map_or("", |end| &value[end + 1..]);
    }
    out.push_str(rest);
    out
}
