//! The seam to Envoy: everything that the logic needs from the proxy during one callback, and nothing else.
//!
//! Request headers can only be read here. Under ABI 0.2.1 any edit of them clears Envoy's route cache, and the request
//! would be routed again after the verdict; so there is no way to ask for one.

use std::time::Duration;

/// What one callback may ask of the proxy. Calls that make no sense in the current callback answer `None` or do nothing.
pub trait Host {
    /// Wall clock, microseconds since the epoch. May jump either way: callers guard themselves.
    fn now_us(&self) -> u64;

    /// The bytes of an attribute: text as it is, integers as 8 bytes little-endian. `None`: absent or unreadable.
    fn property(&self, path: &[&str]) -> Option<Vec<u8>>;

    /// A request header. Only in the request-headers callback.
    fn request_header(&self, name: &str) -> Option<Vec<u8>>;

    /// The response headers, their names in lower case. Only in the response-headers callback.
    fn response_headers(&self) -> Vec<(String, Vec<u8>)>;

    /// Removes a response header. Only in the response-headers callback.
    fn remove_response_header(&self, name: &str);

    /// The response bytes of the current body callback, `size` as the callback said.
    fn chunk(&self, size: usize) -> Option<Vec<u8>>;

    /// Puts `bytes` in the place of the current response chunk of `size` bytes.
    fn replace_chunk(&self, size: usize, bytes: &[u8]);

    /// Answers the request here, now. Only in the request-headers callback.
    fn send_local_reply(&self, status: u32, headers: &[(&str, &str)], body: &[u8]);

    /// Adds to a counter.
    fn count(&self, counter: Counter, by: u64);

    /// Moves the gauge of queued events: it is shared by all workers, so each one adds and takes away its own.
    fn move_queue_gauge(&self, by: i64);

    /// Starts a unary gRPC call from the root context; its answer comes later, under the returned number.
    ///
    /// # Errors
    /// When the call could not be started at all: see [`DispatchError`].
    fn dispatch(&self, call: &Call<'_>) -> Result<u32, DispatchError>;

    /// Tells the proxy that a root context that held back its end is finished. At most once, and only after holding back.
    fn done(&self);

    /// Writes a line to the proxy's log. Never prompt text, keys or tokens.
    fn log(&self, level: Level, line: &str);
}

/// One unary gRPC call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Envoy cluster to send to.
    pub cluster: &'a str,
    /// Full gRPC service name.
    pub service: &'a str,
    /// gRPC method.
    pub method: &'a str,
    /// Encoded message.
    pub payload: &'a [u8],
    /// After this long Envoy gives the call up.
    pub timeout: Duration,
}

/// Why a call did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DispatchError {
    /// Envoy has no such cluster, or the cluster has no connection to offer: Envoy does not say which.
    Refused,
}

/// How loud a log line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Normal life.
    Info,
    /// Needs an operator.
    Error,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// The filter's counters. Few and without labels: Envoy keeps a stat for good once it exists.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Counter {
            $($(#[$doc])* $name,)*
        }

        impl Counter {
            /// All of them.
            pub const ALL: &'static [Counter] = &[$(Counter::$name,)*];

            /// Name of the stat, without Envoy's `wasmcustom.` prefix.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Counter::$name => $text,)*
                }
            }
        }
    };
}

counters! {
    /// Requests that reached the filter.
    Requests => "tokenweir_requests",
    /// Requests refused here for want of a valid verdict.
    NoVerdict => "tokenweir_no_verdict",
    /// Ends of exchanges, each reported once.
    Ends => "tokenweir_ends",
    /// Engine responses that could not be read, in whole or in part.
    Unparsed => "tokenweir_unparsed",
    /// Responses with an event or a usage object longer than the filter keeps.
    Truncated => "tokenweir_truncated",
    /// Responses that should have been stripped of usage and could not be, because they were compressed or had trailers.
    Unstripped => "tokenweir_unstripped",
    /// Events dropped because the queue was full.
    QueueDropped => "tokenweir_queue_dropped",
    /// Batches that a receiver acknowledged.
    ReportsSent => "tokenweir_reports_sent",
    /// Batches that failed once more and are kept for another try.
    ReportsRetried => "tokenweir_reports_retried",
    /// Report clusters that refused a call at once: unknown to Envoy, or without a connection.
    ReportClusterMiss => "tokenweir_report_cluster_miss",
    /// Prompt tokens of ended exchanges, by the engines' own count.
    InputTokens => "tokenweir_input_tokens",
    /// Generated tokens of ended exchanges, by the engines' own count.
    OutputTokens => "tokenweir_output_tokens",
}

/// Name of the gauge behind [`Host::move_queue_gauge`].
pub const QUEUE_GAUGE: &str = "tokenweir_queue_events";
