//! What is configured, as far as a request meets it. Immutable: a new configuration is a new value.

use std::collections::BTreeMap;

use crate::event::TenantHeader;
use crate::reject::RejectReason;

/// Longest tenant name, bytes.
pub const TENANT_BYTES_MAX: usize = 128;

/// How usage comes out of a pool's engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageMode {
    /// On request: ask for it in every stream.
    Inject {
        /// The engine knows `continuous_usage_stats` (vLLM).
        continuous: bool,
    },
    /// Always, and with every event (vLLM's `--enable-force-include-usage`): ask for nothing.
    Forced,
}

/// Where a model is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRule {
    /// Its pool.
    pub pool: String,
    /// How usage comes out of that pool.
    pub usage: UsageMode,
    /// The pool's pick looks at what prompts begin with.
    pub prefix: bool,
    /// Each engine keeps the responses that it made, under ids that we give (vLLM). False: a provider keeps them for all of
    /// its endpoints, under ids of its own.
    pub keeps_responses: bool,
}

/// How a tenant is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantRule {
    /// By a header that the listener vouches for; without it the default, or 401.
    Header {
        /// Who pays when the header is absent.
        default: Option<String>,
    },
    /// Everybody is one tenant.
    Fixed(String),
}

impl TenantRule {
    /// Who pays for a request with this header.
    ///
    /// # Errors
    /// The reason for refusing the request.
    pub fn tenant(&self, header: &TenantHeader) -> Result<String, RejectReason> {
        match (self, header) {
            (Self::Fixed(tenant), _) => Ok(tenant.clone()),
            (Self::Header { default: Some(default) }, TenantHeader::Absent) => Ok(default.clone()),
            (Self::Header { default: None }, TenantHeader::Absent) => Err(RejectReason::NoTenant),
            (Self::Header { .. }, TenantHeader::One(name)) if is_tenant_name(name) => Ok(name.clone()),
            (Self::Header { .. }, TenantHeader::One(_) | TenantHeader::Ambiguous) => {
                Err(RejectReason::BadTenant)
            }
        }
    }
}

/// Whether `text` can name a tenant: 1 to [`TENANT_BYTES_MAX`] letters, digits and `-_./:@`. One rule for headers and for
/// the configuration.
#[must_use]
pub fn is_tenant_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':' | b'@');
    !text.is_empty() && text.len() <= TENANT_BYTES_MAX && text.bytes().all(plain)
}

/// Everything that an exchange decides by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Model → where it is served. Also what `/v1/models` lists.
    pub models: BTreeMap<String, ModelRule>,
    /// How a tenant is known.
    pub tenant: TenantRule,
    /// Largest request body, bytes.
    pub body_bytes_max: usize,
    /// What `retry-after` says when nothing better is known, seconds.
    pub retry_after_s: u64,
    /// Keep the stream open until the exchange ends: for gateways without the filter.
    pub hold_stream: bool,
    /// When the service began, seconds since the epoch: `created` of the listed models.
    pub since_unix_s: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_the_header_the_default_or_nobody() {
        let strict = TenantRule::Header { default: None };
        let lax = TenantRule::Header { default: Some("anonymous".into()) };
        let one = |name: &str| TenantHeader::One(name.into());
        assert_eq!(strict.tenant(&one("team-a")), Ok("team-a".into()));
        assert_eq!(strict.tenant(&TenantHeader::Absent), Err(RejectReason::NoTenant));
        assert_eq!(lax.tenant(&TenantHeader::Absent), Ok("anonymous".into()));
        for bad in [one(""), one("a b"), one("a\nb"), one(&"x".repeat(129)), TenantHeader::Ambiguous] {
            assert_eq!(lax.tenant(&bad), Err(RejectReason::BadTenant), "{bad:?}");
        }
        let fixed = TenantRule::Fixed("all".into());
        assert_eq!(fixed.tenant(&one("spoofed")), Ok("all".into()), "an untrusted header is not read");
    }
}
