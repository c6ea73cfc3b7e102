//! `exchange`: how long one exchange may take, and what happens when its end is not heard of.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;

/// How long one exchange may take, and what happens when its end is not heard of.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExchangeFile {
    /// Keep the ext_proc stream open until the response ends, for gateways without the filter. A crash of the service
    /// then cuts running responses.
    pub hold_stream: bool,
    /// Seconds after the verdict until an exchange without any report is closed as not counted.
    #[schemars(range(min = 1, max = 86_400))]
    pub lease_s: u64,
    /// The same, counted anew from each progress report of a stream.
    #[schemars(range(min = 1, max = 86_400))]
    pub progress_lease_s: u64,
    /// Seconds that an exchange token stays valid; later reports are refused.
    #[schemars(range(min = 60, max = 2_592_000))]
    pub token_lifetime_s: u64,
    /// Seconds in the Retry-After header of a 503.
    #[schemars(range(min = 1, max = 3_600))]
    pub retry_after_s: u64,
}

/// Checked `exchange`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Keep streams open until the response ends.
    pub hold_stream: bool,
    /// From the verdict to the close without any report.
    pub lease: Duration,
    /// From a progress report to the close without a further one.
    pub progress_lease: Duration,
    /// How long an exchange token stays valid. Not shorter than `lease`.
    pub token_lifetime: Duration,
    /// What a 503 tells the client to wait.
    pub retry_after: Duration,
}

pub(super) fn check(raw: &ExchangeFile, check: &mut Check<'_, '_>) -> Exchange {
    if raw.token_lifetime_s < raw.lease_s {
        let what =
            format!("is {} s, shorter than exchange.lease_s ({} s)", raw.token_lifetime_s, raw.lease_s);
        check.error(
            "/exchange/token_lifetime_s",
            what,
            "make it at least as long: reports arrive within the lease",
        );
    }
    if raw.progress_lease_s > raw.lease_s {
        let what = format!("is {} s, longer than exchange.lease_s ({} s)", raw.progress_lease_s, raw.lease_s);
        check.error("/exchange/progress_lease_s", what, "make it at most as long as the lease");
    }
    Exchange {
        hold_stream: raw.hold_stream,
        lease: Duration::from_secs(raw.lease_s),
        progress_lease: Duration::from_secs(raw.progress_lease_s),
        token_lifetime: Duration::from_secs(raw.token_lifetime_s),
        retry_after: Duration::from_secs(raw.retry_after_s),
    }
}
