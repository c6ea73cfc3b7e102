//! What the outside tells an exchange, and what the exchange wants done.

use std::net::SocketAddr;
use std::time::Duration;

use ext_proc_pick::Prefix;
use proto_openai::Api;

use crate::phase::OkProof;
use crate::rules::UsageMode;
use crate::verdict::Reply;

/// How Envoy sends the request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// Whole, in one message, after our reply to the headers.
    Buffered,
    /// In chunks, without waiting; every chunk must be sent back.
    FullDuplex,
}

/// The header that names the tenant, as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TenantHeader {
    /// Not there.
    #[default]
    Absent,
    /// There once, or several times with one value.
    One(String),
    /// There with different values, or not text.
    Ambiguous,
}

/// What matters of the request's headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// `:method`.
    pub method: String,
    /// `:path`, with its query string.
    pub path: String,
    /// `content-type`.
    pub content_type: Option<String>,
    /// `content-length`, where there is one that can be read.
    pub content_length: Option<u64>,
    /// `content-encoding` other than `identity`.
    pub content_encoding: Option<String>,
    /// The tenant's header.
    pub tenant: TenantHeader,
    /// Envoy's request id, for joining logs only.
    pub request_id: String,
    /// An `anthropic-version` header is there.
    pub anthropic: bool,
    /// Headers that must not reach the engine: the client's copies of control headers, and `accept-encoding`.
    pub remove: Vec<String>,
    /// No body follows.
    pub end: bool,
}

/// What matters of the response's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// `:status`.
    pub status: u32,
    /// The endpoint that served, by Envoy's `upstream.address`; `None`: none was reached.
    pub upstream: Option<SocketAddr>,
    /// `retry-after`, where it can be read.
    pub retry_after: Option<Duration>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request's headers.
    RequestHeaders(RequestHead),
    /// A piece of the request's body, or all of it.
    RequestBody {
        /// Its bytes.
        chunk: Vec<u8>,
        /// It is the last.
        end: bool,
    },
    /// The request's trailers: the body has ended.
    RequestTrailers,
    /// The answer to [`Effect::Ask`].
    Answer(Answer),
    /// The response's headers.
    ResponseHeaders(ResponseHead),
    /// Envoy has ended or dropped the stream.
    Closed,
}

/// What a decision needs to know of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// API of the request.
    pub api: Api,
    /// Model as the client asked for it.
    pub model: String,
    /// Pool that serves the model.
    pub pool: String,
    /// Who pays.
    pub tenant: String,
    /// The client asked for a stream.
    pub stream: bool,
    /// Envoy's request id, for joining logs only.
    pub request_id: String,
    /// What the prompt begins with; of nothing where the pool's pick doesn't look at it.
    pub prefix: Prefix,
    /// Bytes of prompt text.
    pub prompt_bytes: u64,
    /// Tokens of the prompt that were given as token ids.
    pub prompt_token_ids: u64,
    /// The most tokens that may be generated; `None`: the request doesn't say.
    pub output_tokens_max: Option<u64>,
    /// The stored response that is asked for, or gone on from, by its id: only the endpoint that keeps it can serve. One
    /// that is asked for names neither model nor pool; both are empty then.
    pub stored: Option<String>,
    /// The engine takes the id of its response from us: the grant has to name one.
    pub names_response: bool,
    /// The engine answers before it generates.
    pub background: bool,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Dispatch.
    Granted(Grant),
    /// Don't.
    Denied(Denial),
}

/// Where a request goes; its place is reserved and its record open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Pool of the endpoints.
    pub pool: String,
    /// The pick, then those to try next; never empty.
    pub endpoints: Vec<SocketAddr>,
    /// The exchange token, sealed.
    pub token: String,
    /// Id that the engine has to give its response.
    pub response_id: Option<String>,
}

/// Why a request isn't dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// No endpoint of the pool is ready.
    NoneReady,
    /// Endpoints are ready, but none of them has the model loaded.
    NoneServes,
    /// As many exchanges are open as this replica holds.
    Full,
    /// No endpoint keeps the stored response (any more), or it is another tenant's: nobody is told which.
    Gone,
}

/// What the exchange wants done, in order.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Decide, and come back with [`Event::Answer`].
    Ask(Inquiry),
    /// Send this to Envoy.
    Reply(Reply),
    /// The response has begun.
    Served(ResponseHead),
    /// Envoy left after the verdict and before the response.
    Abandoned,
    /// The stream was held, and has ended: so has the exchange.
    Ended,
    /// The stream may end, like this and not otherwise.
    Finish(Finish),
}

/// How a stream ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Finish {
    /// With status OK.
    Ok(OkProof),
    /// With an error.
    Error(StreamError),
}

/// Why a stream ends with an error. Envoy fails the request, or, on an open route, lets it pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// Envoy sent something that cannot come now.
    OutOfOrder,
    /// Envoy ended the stream before the verdict.
    Gone,
}

impl StreamError {
    /// Stable label.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::OutOfOrder => "out_of_order",
            Self::Gone => "gone",
        }
    }
}

/// How a pool's engines report usage, as far as a request is concerned.
impl UsageMode {
    /// Whether the engine sends running counts with every event.
    pub(crate) fn is_continuous(self) -> bool {
        match self {
            Self::Inject { continuous } => continuous,
            Self::Forced => true,
        }
    }
}
