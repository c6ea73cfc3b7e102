//! `tenant`: whose request it is.

use ext_proc_exchange::{TENANT_BYTES_MAX, is_tenant_name};
use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, defaults};
use crate::service::decode::is_control_header;

/// Headers that HTTP itself gives another meaning.
const HTTP_HEADERS: [&str; 9] = [
    "connection",
    "content-length",
    "content-type",
    "accept-encoding",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
    "x-request-id",
];

/// Whose request it is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantFile {
    /// Request header that names the tenant.
    #[serde(default = "defaults::tenant_header")]
    pub header: String,
    /// Whether the header is believed. Set it only where the gateway itself writes the header and removes the client's.
    #[serde(default)]
    pub trusted: bool,
    /// Tenant of a request without the header. Without it such a request is answered 401. A file without a `tenant`
    /// section has `anonymous`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub default: Option<String>,
}

/// Checked `tenant`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Request header that names the tenant.
    pub header: HeaderName,
    /// Whether the header is believed; otherwise every request is `default`'s.
    pub trusted: bool,
    /// Tenant of a request without the header; `None`: refuse it.
    pub default: Option<String>,
}

pub(super) fn check(raw: &TenantFile, check: &mut Check<'_, '_>) -> Option<Tenant> {
    if !raw.trusted && raw.default.is_none() {
        check.error(
            "/tenant",
            "trusted is false and there is no default, so every request would be refused",
            "give tenant.default, or set tenant.trusted where the gateway writes the header",
        );
    }
    if let Some(name) = &raw.default
        && !is_tenant_name(name)
    {
        let advice = format!("use 1 to {TENANT_BYTES_MAX} letters, digits and `-_./:@`, as for the header");
        check.error("/tenant/default", "is not a tenant name", advice);
    }
    const AT: &str = "/tenant/header";
    let Ok(header) = HeaderName::from_bytes(raw.header.as_bytes()) else {
        let advice = "use letters, digits and hyphens, such as x-tenant";
        check.error(AT, format!("{:?} is not a header name", raw.header), advice);
        return None;
    };
    let name = header.as_str();
    // A tenant must not arrive in a header that is stripped.
    if is_control_header(name) {
        check.error(
            AT,
            format!("{name} is a control header and is stripped"),
            "choose another, such as x-tenant",
        );
    } else if HTTP_HEADERS.contains(&name) {
        check.error(AT, format!("{name} has another meaning in HTTP"), "choose another, such as x-tenant");
    }
    Some(Tenant { header, trusted: raw.trusted, default: raw.default.clone() })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn no_header_that_is_stripped_can_name_the_tenant() {
        for header in ["x-tokenweir-tenant", "x-vllm-priority", "x-llm-d-tenant", "x-prefiller-url"] {
            let text = format!(
                "pools: [{{name: a, models: [m]}}]\nendpoints: {{file: e.yaml}}\n\
                 tenant: {{header: {header}, trusted: true}}\n"
            );
            let errors = Config::parse(&text, Path::new("t.yaml")).expect_err(header).to_string();
            assert!(errors.contains("is a control header"), "{errors}");
        }
    }
}
