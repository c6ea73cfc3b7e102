//! What a request asks for, read in one pass over its body.
//!
//! Engines are Python: of two members with the same name the last one wins there, and a name is
//! compared after its escapes are read. A gateway that decided by the first `model` would be
//! talked past, so every top-level member that is read here may appear once only. Where an engine
//! would coerce (`"stream": "true"`), the body is refused instead of guessed at.
//!
//! Members that are the gateway's to set (`cache_salt`, `priority`, …) are refused when a client
//! sets them: they reach into other tenants' caches and queues.

mod control;
mod prompt;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::api::Api;
use crate::error::ApiError;
use crate::json::{JsonError, Text};
use crate::limits::KEY_SHOWN_BYTES_MAX;

/// Whether the client wants to see usage in its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UsageWish {
    /// No.
    #[default]
    None,
    /// Once, at the end.
    Final,
    /// In every event.
    Continuous,
}

/// A request, as far as the gateway has to understand it. Borrows the body.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The API the request is for.
    pub api: Api,
    /// The model's name: 1 to 256 bytes, without lone surrogates.
    pub model: Text<'a>,
    /// Whether a stream is asked for; `false` where the API cannot stream.
    pub stream: bool,
    /// What usage the client wants to see in the stream.
    pub usage_wish: UsageWish,
    /// The smallest bound on generated tokens the request names. `None`: it names none, and the
    /// engine's default holds (16 for completions, else what fits).
    pub max_tokens: Option<u64>,
    /// Sequences generated per prompt: the larger of `n` and `best_of`, at least 1.
    pub n: u32,
    /// What goes into the prompt.
    pub prompt: Prompt,
    /// Where the raw value of `tools` lies, if it isn't null.
    pub tools: Option<Range<usize>>,
    /// Hints at which requests belong together.
    pub session: Session<'a>,
    /// The answer comes before anything was generated.
    pub background: bool,
    /// Where the first member would begin.
    pub(crate) members_at: usize,
    /// How `stream_options` is written.
    pub(crate) stream_options: StreamOptions,
}

/// How `stream_options` is written, for the edit that may follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum StreamOptions {
    #[default]
    Absent,
    /// `null`, there.
    Null(Range<usize>),
    Object {
        /// Where its first member would begin.
        members_at: usize,
        empty: bool,
        include_usage: Option<Flag>,
        continuous_usage_stats: Option<Flag>,
    },
    /// Neither an object nor null.
    Other,
}

/// A member that is `true`, `false` or `null`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    pub(crate) range: Range<usize>,
    /// `None`: neither of the three.
    pub(crate) value: Option<bool>,
}

/// The texts that go into the prompt, as byte ranges of the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The texts, in the order of the body.
    pub spans: Vec<Span>,
    /// Sum of the spans' lengths, in bytes, escapes as written.
    pub text_bytes: u64,
    /// Images, audio, video and files.
    pub media: u32,
    /// Token ids given instead of text.
    pub token_ids: u64,
}

impl Prompt {
    /// The text of one span, its escapes read, borrowed where there are none. `body` is the body
    /// that was scanned.
    #[must_use]
    pub fn text<'a>(&self, body: &'a [u8], span: &Span) -> Cow<'a, str> {
        Text::of(body, span.range.clone()).decode()
    }
}

/// One text of the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The raw text in the body.
    pub range: Range<usize>,
    /// Whose text it is.
    pub kind: SpanKind,
}

/// Whose text a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanKind {
    /// `system` or `developer`.
    System,
    /// `user`.
    User,
    /// `assistant`, tool-call arguments included.
    Assistant,
    /// `tool` or `function`: what a tool gave back.
    Tool,
    /// Text outside of any conversation: completion prompts, embedding inputs, documents.
    Plain,
}

/// Hints at which requests belong together. None of them is to be trusted.
#[derive(Clone, Debug, Default)]
pub struct Session<'a> {
    /// `user`
    pub user: Option<Text<'a>>,
    /// `prompt_cache_key`
    pub prompt_cache_key: Option<Text<'a>>,
    /// `previous_response_id`; of a response it is no hint, but what the engine goes on from, and may be empty
    pub previous_response_id: Option<Text<'a>>,
    /// `metadata.user_id`
    pub metadata_user_id: Option<Text<'a>>,
    /// `safety_identifier`
    pub safety_identifier: Option<Text<'a>>,
}

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyError {
    /// What is wrong, where, and what to do.
    pub message: String,
    /// The member at fault.
    pub param: Option<&'static str>,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BodyError {}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        Self::bad_request(error.message, error.param)
    }
}

impl BodyError {
    fn new(param: &'static str, message: String) -> Self {
        Self { message, param: Some(param) }
    }
}

impl From<JsonError> for BodyError {
    fn from(error: JsonError) -> Self {
        Self {
            message: format!("The body is not usable JSON: {error}. Send one JSON object in UTF-8."),
            param: None,
        }
    }
}

/// A key as an error message may show it.
fn shown(key: &Text<'_>) -> String {
    let key = key.decode();
    let end = key.floor_char_boundary(KEY_SHOWN_BYTES_MAX);
    key.get(..end).unwrap_or_default().escape_debug().collect()
}

/// Reads a request's body, whole, in one pass.
///
/// # Errors
/// A [`BodyError`] that says what is wrong, where, and what to change. It repeats member names of
/// the body, never values.
pub fn scan(api: Api, bytes: &[u8]) -> Result<Request<'_>, BodyError> {
    control::Reader::new(api, bytes).request()
}

#[cfg(test)]
mod tests;
