//! Which endpoints a pool has, from a file that may change at any time.
//!
//! A snapshot is published whole or not at all: an invalid file leaves the last good one in use, because balancing on
//! slightly old endpoints beats balancing on none.

mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Check, Collector, Config, ConfigErrors, read_text, structure, yaml};
pub use watch::{Latest, watch};

/// Most endpoints of one pool.
pub const POOL_ENDPOINTS_MAX: usize = 4096;

/// Endpoints of every pool.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointsFile {
    /// Pool name to its endpoints. A pool of the configuration that is absent here has none.
    pub pools: BTreeMap<String, Vec<EndpointFile>>,
}

/// One endpoint.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointFile {
    /// `IP:PORT` as Envoy knows the endpoint: Envoy compares addresses, so a name would never match.
    pub address: String,
    /// Whether it may be chosen.
    #[serde(default = "ready")]
    pub ready: bool,
}

fn ready() -> bool {
    true
}

/// An immutable set of endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Every pool of the configuration, in the file's order.
    pub pools: BTreeMap<String, Vec<EndpointEntry>>,
    /// Counts the snapshots of this process from 1.
    pub generation: u64,
}

/// One endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointEntry {
    /// Address as Envoy knows it.
    pub address: SocketAddr,
    /// Whether it may be chosen.
    pub ready: bool,
}

impl Endpoints {
    /// Reads and checks `file` against the pools of `config`. The generation is 1.
    ///
    /// # Errors
    /// Everything that is wrong, with its line.
    pub fn load(file: &Path, config: &Config) -> Result<Self, ConfigErrors> {
        let text = read_text(file)?;
        Self::parse(&text, file, config)
    }

    /// Checks `text` as the content of `file`.
    ///
    /// # Errors
    /// As [`Endpoints::load`].
    pub fn parse(text: &str, file: &Path, config: &Config) -> Result<Self, ConfigErrors> {
        let mut errors = Collector::new(file);
        let (document, problems) = yaml::parse(text);
        for problem in problems {
            errors.yaml(problem);
        }
        let Some(document) = document else { return errors.finish(None) };
        structure::check::<EndpointsFile>(&document, &mut errors);
        let pools = pools(&document, config, &mut errors);
        errors.finish(Some(Self { pools, generation: 1 }))
    }

    /// The endpoints of `pool`; none for an unknown pool.
    pub fn of(&self, pool: &str) -> &[EndpointEntry] {
        self.pools.get(pool).map_or(&[], Vec::as_slice)
    }

    /// The JSON Schema of the file, as indented JSON text.
    pub fn schema() -> String {
        format!("{:#}", structure::schema_of::<EndpointsFile>())
    }
}

fn pools(
    document: &yaml::Document,
    config: &Config,
    errors: &mut Collector<'_>,
) -> BTreeMap<String, Vec<EndpointEntry>> {
    let known: Vec<String> = config.pools.iter().map(|pool| pool.name.clone()).collect();
    let mut pools: BTreeMap<_, _> = known.iter().map(|name| (name.clone(), Vec::new())).collect();
    let listed = document.value.pointer("/pools").and_then(|pools| pools.as_object());
    for (name, list) in listed.into_iter().flatten() {
        let at = yaml::child("/pools", name);
        let Some(entries) = pools.get_mut(name) else {
            let advice = structure::suggestion(name, &known);
            let what = "is not a pool of the configuration";
            Check::new(document, errors).key_error(&at, what, advice);
            continue;
        };
        let count = list.as_array().map_or(0, Vec::len);
        if count > POOL_ENDPOINTS_MAX {
            let what = format!("has {count} endpoints, more than {POOL_ENDPOINTS_MAX}");
            Check::new(document, errors).key_error(&at, what, "split the pool");
            continue;
        }
        let mut seen = BTreeSet::new();
        for index in 0..count {
            let entry_at = format!("{at}/{index}");
            let Some(raw) = structure::read::<EndpointFile>(document, &entry_at, None, errors) else {
                continue;
            };
            let address_at = yaml::child(&entry_at, "address");
            let mut check = Check::new(document, errors);
            let Some(address) = address(&raw.address, &address_at, &mut check) else { continue };
            if seen.insert(address) {
                entries.push(EndpointEntry { address, ready: raw.ready });
            } else {
                check.error(&address_at, format!("{address} is listed twice"), "remove one of the two");
            }
        }
    }
    pools
}

fn address(text: &str, at: &str, check: &mut Check<'_, '_>) -> Option<SocketAddr> {
    let Ok(address) = text.parse::<SocketAddr>() else {
        let advice = "write the IP:PORT that Envoy knows, such as 10.0.0.7:8000 or [fd00::7]:8000; \
                      a name would never match, because Envoy compares addresses";
        check.error(at, format!("{text:?} is not IP:PORT"), advice);
        return None;
    };
    let ip = address.ip();
    if address.port() == 0 || ip.is_unspecified() || ip.is_multicast() {
        check.error(
            at,
            format!("{address} is not one server's address"),
            "write the IP:PORT that Envoy knows",
        );
        return None;
    }
    Some(address)
}

#[cfg(test)]
mod tests;
