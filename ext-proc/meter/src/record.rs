//! What is written for an exchange.

use proto_tokenweir::v1;
use serde::{Deserialize, Serialize};

/// Revision of a close without a report.
pub(crate) const REVISION_LEASE: u32 = 0;
/// Revision of a close by the filter's report.
pub(crate) const REVISION_REPORT: u32 = 1;

/// Longest endpoint address that is written, characters: a report can say anything.
const ADDRESS_CHARS_MAX: usize = 256;

/// Tokens by the engine's own count; `None` is unknown, which is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// All prompt tokens, cached ones included.
    pub input: Option<u64>,
    /// Prompt tokens that came out of a cache.
    pub cached: Option<u64>,
    /// Prompt tokens that were written to a cache.
    pub cache_write: Option<u64>,
    /// All generated tokens, reasoning included.
    pub output: Option<u64>,
    /// Generated tokens that were reasoning.
    pub reasoning: Option<u64>,
}

impl From<&v1::Usage> for UsageRecord {
    fn from(usage: &v1::Usage) -> Self {
        Self {
            input: usage.input,
            cached: usage.cached,
            cache_write: usage.cache_write,
            output: usage.output,
            reasoning: usage.reasoning,
        }
    }
}

/// Where the usage comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The engine's closing usage.
    Final,
    /// The newest running count of a stream that ended early.
    Cumulative,
    /// Counted from events: a lower bound.
    Estimated,
    /// Nothing was seen.
    None,
}

impl From<v1::UsageSource> for Source {
    fn from(source: v1::UsageSource) -> Self {
        match source {
            v1::UsageSource::Final => Self::Final,
            v1::UsageSource::Cumulative => Self::Cumulative,
            v1::UsageSource::Estimated => Self::Estimated,
            v1::UsageSource::None => Self::None,
        }
    }
}

/// How the exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The response was whole.
    Complete,
    /// The client left.
    ClientAbort,
    /// The engine or the way to it failed.
    UpstreamError,
    /// A time limit of the proxy ran out.
    Timeout,
    /// No report came within the lease.
    Unreported,
}

impl End {
    /// Stable label.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientAbort => "client_abort",
            Self::UpstreamError => "upstream_error",
            Self::Timeout => "timeout",
            Self::Unreported => "unreported",
        }
    }
}

impl From<v1::EndReason> for End {
    fn from(reason: v1::EndReason) -> Self {
        match reason {
            v1::EndReason::Complete => Self::Complete,
            v1::EndReason::ClientAbort => Self::ClientAbort,
            v1::EndReason::UpstreamError => Self::UpstreamError,
            v1::EndReason::Timeout => Self::Timeout,
            v1::EndReason::Unspecified => Self::Unreported,
        }
    }
}

/// What to know when reading the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts of one response")]
pub struct RecordFlags {
    /// The body could not be read: compressed beyond the cap, or malformed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unparsed: bool,
    /// An event or usage object was longer than the filter keeps.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// The stream carried an error event.
    #[serde(default, skip_serializing_if = "is_false")]
    pub error_event: bool,
    /// A proxy's own reply, not an engine's answer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub local_reply: bool,
    /// The engine stopped before the end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub engine_abort: bool,
    /// The request was dropped between its verdict and its response, most likely by the client.
    #[serde(default, skip_serializing_if = "is_false")]
    pub abandoned: bool,
    /// The report came after the lease had closed the exchange: this is a correction.
    #[serde(default, skip_serializing_if = "is_false")]
    pub late: bool,
    /// The engine answered before it generated: without its closing usage nobody knows what it used.
    #[serde(default, skip_serializing_if = "is_false")]
    pub background: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// One line of the exchange log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Exchange id, 32 hexadecimal digits.
    pub exchange: String,
    /// See the crate's documentation.
    pub revision: u32,
    /// Envoy's request id, for joining its access log.
    pub request_id: String,
    /// Who pays.
    pub tenant: String,
    /// Client key, by id; empty: none.
    pub key_id: String,
    /// API label.
    pub api: String,
    /// Model as the client asked for it.
    pub model: String,
    /// Pool of the verdict.
    pub pool: String,
    /// Endpoints in the order of the verdict.
    pub endpoints: Vec<String>,
    /// The endpoint that served; `None`: none was reached, or nobody told.
    pub endpoint: Option<String>,
    /// Response status; 0: none was sent, or nobody told.
    pub status: u32,
    /// Tokens.
    pub usage: UsageRecord,
    /// Where they come from.
    pub usage_source: Source,
    /// How it ended.
    pub end: End,
    /// Verdict, milliseconds since the epoch.
    pub started_unix_ms: u64,
    /// End, milliseconds since the epoch, by the reporter's clock; never before the start.
    pub ended_unix_ms: u64,
    /// Verdict to first data, microseconds; `None`: no data came.
    pub ttft_us: Option<u64>,
    /// Verdict to end as the filter saw it, microseconds; `None`: no report.
    pub duration_us: Option<u64>,
    /// SSE events with data.
    pub events: u64,
    /// Bytes of the response body.
    pub body_bytes: u64,
    /// Envoy's response flags.
    pub response_flags: u64,
    /// What to know when reading the numbers.
    pub flags: RecordFlags,
    /// Replica that gave the verdict.
    pub replica: String,
}

impl Record {
    /// A record with what the token says, and nothing known of the end.
    pub(crate) fn of_token(id: &str, token: &v1::ExchangeToken, ended_unix_ms: u64) -> Self {
        Self {
            exchange: id.to_owned(),
            revision: REVISION_LEASE,
            request_id: token.request_id.clone(),
            tenant: token.tenant.clone(),
            key_id: token.key_id.clone(),
            api: token.api.clone(),
            model: token.model.clone(),
            pool: token.pool.clone(),
            endpoints: token.endpoints.clone(),
            endpoint: None,
            status: 0,
            usage: UsageRecord::default(),
            usage_source: Source::None,
            end: End::Unreported,
            started_unix_ms: token.issued_unix_ms,
            ended_unix_ms: ended_unix_ms.max(token.issued_unix_ms),
            ttft_us: None,
            duration_us: None,
            events: 0,
            body_bytes: 0,
            response_flags: 0,
            flags: RecordFlags { background: token.background, ..RecordFlags::default() },
            replica: token.replica.clone(),
        }
    }

    /// Fills in what the filter reported.
    pub(crate) fn close_by_report(&mut self, end: &v1::End, late: bool) {
        self.revision = REVISION_REPORT;
        if !end.upstream_address.is_empty() {
            self.endpoint = Some(end.upstream_address.chars().take(ADDRESS_CHARS_MAX).collect());
        }
        self.status = end.status;
        self.usage = end.usage.as_ref().map(UsageRecord::from).unwrap_or_default();
        self.usage_source = end.source().into();
        self.end = end.reason().into();
        self.ttft_us = (end.ttft_us > 0).then_some(end.ttft_us);
        self.duration_us = Some(end.duration_us);
        self.events = end.events;
        self.body_bytes = end.body_bytes;
        self.response_flags = end.response_flags;
        let flags = end.flags.unwrap_or_default();
        self.flags = RecordFlags {
            unparsed: flags.unparsed,
            truncated: flags.truncated,
            error_event: flags.error_event,
            local_reply: flags.local_reply,
            engine_abort: flags.engine_abort,
            abandoned: false,
            late,
            background: self.flags.background,
        };
    }
}
