//! The configuration file: one YAML file, read once at the start.
//!
//! [`ConfigFile`] is its shape, and the source of the JSON Schema; [`Config`] is what the rest of the service works
//! with, and exists only if everything in the file is right. All errors are reported at once, because a user who fixes
//! them one by one restarts the service as often.

mod check;
mod defaults;
mod drain;
mod endpoints;
mod errors;
mod exchange;
mod limits;
mod listen;
mod pick;
mod pools;
mod signals;
pub(crate) mod structure;
mod tenant;
mod token_keys;
pub(crate) mod yaml;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use check::{Check, read_text};
pub use drain::{Drain, DrainFile};
pub use endpoints::{EndpointsSection, EndpointsSource};
pub(crate) use errors::Collector;
pub use errors::{ConfigError, ConfigErrors};
pub use exchange::{Exchange, ExchangeFile};
pub use limits::{Limits, LimitsFile};
pub use listen::{
    GRPC_LISTENERS_MAX, GrpcAddress, Listen, ListenFile, OneOrMany, Tls, TlsFile, UDS_PATH_BYTES_MAX,
};
pub use pick::{PickFile, SpeedFile};
pub use pools::{
    EngineKind, MODEL_NAME_BYTES_MAX, POOL_MODELS_MAX, POOL_NAME_BYTES_MAX, POOLS_MAX, PoolConfig, PoolFile,
    Strategy, UsageMode,
};
pub use signals::{Signals, SignalsFile};
pub use tenant::{Tenant, TenantFile};
pub use token_keys::{
    Secret, TOKEN_KEY_BYTES_MAX, TOKEN_KEY_BYTES_MIN, TOKEN_KEY_ID_BYTES_MAX, TOKEN_KEYS_MAX, TokenKey,
    TokenKeyFile,
};

/// Largest configuration or endpoints file, bytes.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Longest replica name in bytes: a host name's.
pub const REPLICA_BYTES_MAX: usize = 63;

/// Configuration of the Tokenweir service.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// Where the service listens.
    #[serde(default)]
    pub listen: ListenFile,
    /// Name of this replica, in tokens and records: letters, digits, `.`, `_`, `-`; at most 63. Default: the host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub replica: Option<String>,
    /// Folder for the token key and the exchange log. Relative paths start at this file's folder.
    #[serde(default = "defaults::state_dir")]
    pub state_dir: PathBuf,
    /// What one request and one process may take.
    #[serde(default)]
    pub limits: LimitsFile,
    /// How long one exchange may take.
    #[serde(default)]
    pub exchange: ExchangeFile,
    /// Secrets that sign exchange tokens. The first signs, all verify: see *Token keys* for how to change one. Without
    /// any, the service makes one in `state_dir`, good for a single replica.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub token_keys: Vec<TokenKeyFile>,
    /// Whose request it is.
    #[serde(default)]
    pub tenant: TenantFile,
    /// How the service goes away on SIGTERM.
    #[serde(default)]
    pub drain: DrainFile,
    /// How the engines of vLLM pools are watched.
    #[serde(default)]
    pub signals: SignalsFile,
    /// Groups of endpoints that serve the same models.
    #[schemars(length(min = 1, max = 256))]
    pub pools: Vec<PoolFile>,
    /// Where the endpoints of the pools come from.
    pub endpoints: EndpointsSection,
}

/// The checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file it came from.
    pub file: PathBuf,
    /// Where the service listens.
    pub listen: Listen,
    /// Name of this replica.
    pub replica: String,
    /// Folder for the token key and the exchange log.
    pub state_dir: PathBuf,
    /// What one request and one process may take.
    pub limits: Limits,
    /// How long one exchange may take.
    pub exchange: Exchange,
    /// Secrets that sign exchange tokens, the signing one first; empty: `state_dir` holds one.
    pub token_keys: Vec<TokenKey>,
    /// Whose request it is.
    pub tenant: Tenant,
    /// How the service goes away.
    pub drain: Drain,
    /// How engines are watched.
    pub signals: Signals,
    /// Pools, at least one.
    pub pools: Vec<PoolConfig>,
    /// Where the endpoints come from.
    pub endpoints: EndpointsSource,
}

impl Config {
    /// Reads and checks `file`, and looks at the files that it names, less the endpoints file.
    ///
    /// # Errors
    /// Everything that is wrong, with its line.
    pub fn load(file: &Path) -> Result<Self, ConfigErrors> {
        let text = read_text(file)?;
        Self::parse(&text, file)
    }

    /// Checks `text` as the content of `file`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigErrors> {
        let mut errors = Collector::new(file);
        let (document, problems) = yaml::parse(text);
        for problem in problems {
            errors.yaml(problem);
        }
        let Some(document) = document else { return errors.finish(None) };
        structure::check::<ConfigFile>(&document, &mut errors);
        let config = sections(&document, &mut errors);
        errors.finish(config)
    }

    /// The JSON Schema of the file, as indented JSON text.
    pub fn schema() -> String {
        format!("{:#}", structure::schema_of::<ConfigFile>())
    }

    /// The pool that serves `model`.
    pub fn pool_of(&self, model: &str) -> Option<&PoolConfig> {
        self.pools.iter().find(|pool| pool.models.iter().any(|name| name == model))
    }
}

/// Reads section by section, so that a fault in one does not hide what is wrong in the others.
fn sections(document: &yaml::Document, errors: &mut Collector<'_>) -> Option<Config> {
    let listen = structure::read(document, "/listen", Some(ListenFile::default()), errors);
    let replica = structure::read(document, "/replica", Some(defaults::replica()), errors);
    let state_dir = structure::read(document, "/state_dir", Some(defaults::state_dir()), errors);
    let limits = structure::read(document, "/limits", Some(LimitsFile::default()), errors);
    let exchange = structure::read(document, "/exchange", Some(ExchangeFile::default()), errors);
    let token_keys = structure::read(document, "/token_keys", Some(Vec::new()), errors);
    let tenant = structure::read(document, "/tenant", Some(TenantFile::default()), errors);
    let drain = structure::read(document, "/drain", Some(DrainFile::default()), errors);
    let signals = structure::read(document, "/signals", Some(SignalsFile::default()), errors);
    let endpoints: Option<EndpointsSection> = structure::read(document, "/endpoints", None, errors);
    let count = document.value.pointer("/pools").and_then(|pools| pools.as_array()).map_or(0, Vec::len);
    let pools: Vec<(usize, PoolFile)> = (0..count.min(POOLS_MAX))
        .filter_map(|index| {
            Some((index, structure::read(document, &format!("/pools/{index}"), None, errors)?))
        })
        .collect();

    let mut check = Check::new(document, errors);
    let listen = listen.and_then(|raw| listen::check(&raw, &mut check));
    let replica = replica.inspect(|name| check_replica(name, &mut check));
    let state_dir = state_dir.map(|path| check.resolve_path(&path));
    let limits = limits.map(|raw| limits::check(&raw));
    let exchange = exchange.map(|raw| exchange::check(&raw, &mut check));
    let token_keys = token_keys.map(|raw: Vec<TokenKeyFile>| token_keys::check(&raw, &mut check));
    let tenant = tenant.and_then(|raw| tenant::check(&raw, &mut check));
    let drain = drain.map(|raw| drain::check(&raw));
    let signals = signals.map(|raw| signals::check(&raw, &mut check));
    if let Some(signals) = &signals {
        pick::check(&pools, signals, &mut check);
    }
    let pools = pools::check(&pools, &mut check);
    let endpoints = endpoints.map(|raw| endpoints::check(&raw, &check));
    Some(Config {
        file: check.file().to_owned(),
        listen: listen?,
        replica: replica?,
        state_dir: state_dir?,
        limits: limits?,
        exchange: exchange?,
        token_keys: token_keys?,
        tenant: tenant?,
        drain: drain?,
        signals: signals?,
        pools,
        endpoints: endpoints?,
    })
}

fn check_replica(name: &str, check: &mut Check<'_, '_>) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > REPLICA_BYTES_MAX || !name.bytes().all(plain) {
        let advice = format!("use 1 to {REPLICA_BYTES_MAX} letters, digits, `.`, `_` or `-`");
        check.error("/replica", format!("{name:?} is not a replica name"), advice);
    }
}

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;
