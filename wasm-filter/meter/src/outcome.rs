//! How an exchange ended, judged from what the engine said and from Envoy's response flags.
//!
//! The engine's own word comes first: a stream that carried its terminal event is complete, even if the client hung up
//! right after it; a stream that carried an error is not, however cleanly it was closed.

use proto_openai::Tally;
use proto_tokenweir::v1::EndReason;

/// Envoy's response flags as bits of the attribute `response.flags`, grouped by who ended the exchange.
mod flag {
    const FAILED_LOCAL_HEALTH_CHECK: u64 = 1;
    const NO_HEALTHY_UPSTREAM: u64 = 1 << 1;
    const UPSTREAM_REQUEST_TIMEOUT: u64 = 1 << 2;
    const LOCAL_RESET: u64 = 1 << 3;
    const UPSTREAM_REMOTE_RESET: u64 = 1 << 4;
    const UPSTREAM_CONNECTION_FAILURE: u64 = 1 << 5;
    const UPSTREAM_CONNECTION_TERMINATION: u64 = 1 << 6;
    const UPSTREAM_OVERFLOW: u64 = 1 << 7;
    const NO_ROUTE_FOUND: u64 = 1 << 8;
    const DOWNSTREAM_CONNECTION_TERMINATION: u64 = 1 << 14;
    const UPSTREAM_RETRY_LIMIT_EXCEEDED: u64 = 1 << 15;
    const STREAM_IDLE_TIMEOUT: u64 = 1 << 16;
    const DOWNSTREAM_PROTOCOL_ERROR: u64 = 1 << 18;
    const UPSTREAM_MAX_STREAM_DURATION_REACHED: u64 = 1 << 19;
    const DURATION_TIMEOUT: u64 = 1 << 22;
    const UPSTREAM_PROTOCOL_ERROR: u64 = 1 << 23;
    const NO_CLUSTER_FOUND: u64 = 1 << 24;
    const DNS_RESOLUTION_FAILED: u64 = 1 << 26;
    const DROP_OVERLOAD: u64 = 1 << 27;
    const DOWNSTREAM_REMOTE_RESET: u64 = 1 << 28;
    const UNCONDITIONAL_DROP_OVERLOAD: u64 = 1 << 29;

    pub(super) const CLIENT: u64 =
        DOWNSTREAM_CONNECTION_TERMINATION | DOWNSTREAM_REMOTE_RESET | DOWNSTREAM_PROTOCOL_ERROR;
    pub(super) const TIMEOUT: u64 = UPSTREAM_REQUEST_TIMEOUT
        | STREAM_IDLE_TIMEOUT
        | UPSTREAM_MAX_STREAM_DURATION_REACHED
        | DURATION_TIMEOUT;
    pub(super) const UPSTREAM: u64 = FAILED_LOCAL_HEALTH_CHECK
        | NO_HEALTHY_UPSTREAM
        | LOCAL_RESET
        | UPSTREAM_REMOTE_RESET
        | UPSTREAM_CONNECTION_FAILURE
        | UPSTREAM_CONNECTION_TERMINATION
        | UPSTREAM_OVERFLOW
        | NO_ROUTE_FOUND
        | UPSTREAM_RETRY_LIMIT_EXCEEDED
        | UPSTREAM_PROTOCOL_ERROR
        | NO_CLUSTER_FOUND
        | DNS_RESOLUTION_FAILED
        | DROP_OVERLOAD
        | UNCONDITIONAL_DROP_OVERLOAD;
}

/// What is known of an exchange at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// Envoy's response flags; 0 where they could not be read.
    pub(crate) flags: u64,
    /// Response status; 0: none.
    pub(crate) status: u32,
    /// The response was seen to its end.
    pub(crate) whole: bool,
    /// The body could be read, so that it would have shown its terminal event.
    pub(crate) readable: bool,
    /// What the engine's body said, if it had one that is metered.
    pub(crate) tally: Option<&'a Tally>,
}

/// Who ended the exchange.
pub(crate) fn reason(known: Known<'_>) -> EndReason {
    // A refusal is an answer: the engine says what is wrong with the request, and has not failed.
    let refused = (400..500).contains(&known.status);
    let engine_failed = known.tally.is_some_and(|t| t.engine_abort || (t.error_event && !refused));
    let engine_finished = known.tally.is_some_and(|t| t.complete);
    let success = (200..300).contains(&known.status);
    // The body of an error, or one that nobody could read, has no terminal event to wait for.
    let must_finish = success && known.readable && known.tally.is_some();
    match () {
        () if engine_failed => EndReason::UpstreamError,
        () if engine_finished => EndReason::Complete,
        () if known.flags & flag::CLIENT != 0 => EndReason::ClientAbort,
        () if known.flags & flag::TIMEOUT != 0 => EndReason::Timeout,
        () if known.flags & flag::UPSTREAM != 0 => EndReason::UpstreamError,
        () if known.whole && !must_finish => EndReason::Complete,
        () => EndReason::UpstreamError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT_LEFT: u64 = 0x4000;
    const CLIENT_RESET: u64 = 0x1000_0000;
    const IDLE: u64 = 0x1_0000;
    const UPSTREAM_TIMEOUT: u64 = 0x4;
    const UPSTREAM_RESET: u64 = 0x10;
    const RATE_LIMITED: u64 = 0x800;

    fn judged(flags: u64, status: u32, whole: bool, tally: Option<Tally>) -> EndReason {
        reason(Known { flags, status, whole, readable: true, tally: tally.as_ref() })
    }

    #[test]
    fn the_engines_word_comes_first() {
        let complete = Tally { complete: true, ..Tally::default() };
        let failed = Tally { error_event: true, ..complete };
        let aborted = Tally { engine_abort: true, ..complete };
        for flags in [0, CLIENT_LEFT, IDLE, UPSTREAM_RESET] {
            for whole in [false, true] {
                assert_eq!(judged(flags, 200, whole, Some(complete)), EndReason::Complete);
                assert_eq!(judged(flags, 200, whole, Some(failed)), EndReason::UpstreamError);
                assert_eq!(judged(flags, 200, whole, Some(aborted)), EndReason::UpstreamError);
            }
        }
    }

    #[test]
    fn an_error_is_a_failure_of_the_engine_unless_it_refuses_the_request() {
        let failed = Tally { error_event: true, complete: true, ..Tally::default() };
        for (status, expected) in [
            (200, EndReason::UpstreamError),
            (400, EndReason::Complete),
            (404, EndReason::Complete),
            (429, EndReason::Complete),
            (499, EndReason::Complete),
            (500, EndReason::UpstreamError),
            (503, EndReason::UpstreamError),
        ] {
            assert_eq!(judged(0, status, true, Some(failed)), expected, "{status}");
        }
        let cut = Tally { complete: false, ..failed };
        assert_eq!(judged(CLIENT_LEFT, 400, false, Some(cut)), EndReason::ClientAbort);
        assert_eq!(judged(UPSTREAM_RESET, 400, false, Some(cut)), EndReason::UpstreamError);
    }

    #[test]
    fn an_unfinished_stream_is_judged_by_the_flags() {
        let open = Some(Tally::default());
        for (flags, expected) in [
            (CLIENT_LEFT, EndReason::ClientAbort),
            (CLIENT_RESET, EndReason::ClientAbort),
            (IDLE, EndReason::Timeout),
            (UPSTREAM_TIMEOUT, EndReason::Timeout),
            (UPSTREAM_RESET, EndReason::UpstreamError),
            (0, EndReason::UpstreamError),
        ] {
            assert_eq!(judged(flags, 200, false, open), expected, "{flags:x}");
        }
        assert_eq!(
            judged(0, 200, true, open),
            EndReason::UpstreamError,
            "closed cleanly, but before its end"
        );
    }

    #[test]
    fn what_has_no_terminal_event_is_complete_when_it_was_seen_whole() {
        let open = Tally::default();
        for (status, tally) in [(429, Some(open)), (200, None), (503, None)] {
            assert_eq!(judged(0, status, true, tally), EndReason::Complete);
            assert_eq!(judged(0, status, false, tally), EndReason::UpstreamError);
        }
        let unread =
            |whole| reason(Known { flags: 0, status: 200, whole, readable: false, tally: Some(&open) });
        assert_eq!((unread(true), unread(false)), (EndReason::Complete, EndReason::UpstreamError));
        assert_eq!(judged(RATE_LIMITED, 429, true, None), EndReason::Complete);
    }
}
