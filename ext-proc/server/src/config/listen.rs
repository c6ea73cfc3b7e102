//! `listen`: where the service answers Envoy and where it answers operators.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Check, defaults, yaml::child};

/// Most gRPC listeners.
pub const GRPC_LISTENERS_MAX: usize = 16;

/// Longest path of a Unix socket in bytes: what `sockaddr_un` holds, less the closing zero.
pub const UDS_PATH_BYTES_MAX: usize = 107;

/// Where the service listens.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ListenFile {
    /// Addresses for Envoy: ext_proc, usage reports and gRPC health. One text or a list; each is `IP:PORT` (port 0: any
    /// free one) or `unix:/absolute/path`.
    pub grpc: OneOrMany,
    /// `IP:PORT` for operators: health, readiness, metrics. It has no access control: keep it on a private address.
    pub admin: String,
    /// TLS on the TCP gRPC listeners. Without it they are plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TlsFile")]
    pub tls: Option<TlsFile>,
}

/// TLS on the TCP gRPC listeners.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsFile {
    /// PEM file with the certificate chain, own certificate first. Relative paths start at this file's folder.
    #[schemars(length(min = 1))]
    pub cert_file: String,
    /// PEM file with the private key.
    #[schemars(length(min = 1))]
    pub key_file: String,
    /// PEM file with the authorities that may sign client certificates. With it, clients without one are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1))]
    pub client_ca_file: Option<String>,
}

/// One text, or a list of texts.
#[derive(Clone, Debug, Serialize)]
pub struct OneOrMany(pub Vec<String>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            One(String),
            Many(Vec<String>),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::One(text) => Self(vec![text]),
            Either::Many(texts) => Self(texts),
        })
    }
}

impl JsonSchema for OneOrMany {
    fn schema_name() -> Cow<'static, str> {
        "OneOrMany".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A plain `type` list: an `anyOf` could not say which branch was meant.
        json_schema!({
            "type": ["string", "array"],
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": GRPC_LISTENERS_MAX,
        })
    }
}

/// Checked `listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Addresses for Envoy, at least one.
    pub grpc: Vec<GrpcAddress>,
    /// Address for operators.
    pub admin: SocketAddr,
    /// TLS on the TCP addresses of `grpc`.
    pub tls: Option<Tls>,
}

/// One gRPC listener.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GrpcAddress {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A Unix socket at an absolute path.
    Unix(PathBuf),
}

impl fmt::Display for GrpcAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Files of the TLS setup. They existed when the configuration was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Certificate chain.
    pub cert_file: PathBuf,
    /// Private key.
    pub key_file: PathBuf,
    /// Authorities for client certificates; `None`: clients need none.
    pub client_ca_file: Option<PathBuf>,
}

pub(super) fn check(raw: &ListenFile, check: &mut Check<'_, '_>) -> Option<Listen> {
    const AT: &str = "/listen";
    let many = check.document.value.pointer("/listen/grpc").is_some_and(serde_json::Value::is_array);
    let mut seen = BTreeSet::new();
    let mut grpc = Vec::new();
    for (index, text) in raw.grpc.0.iter().enumerate() {
        let at = if many { format!("/listen/grpc/{index}") } else { "/listen/grpc".to_owned() };
        let Some(address) = grpc_address(text, &at, check) else { continue };
        let any_port = matches!(address, GrpcAddress::Tcp(address) if address.port() == 0);
        if !any_port && !seen.insert(address.clone()) {
            check.error(&at, format!("{address} is listed twice"), "remove one of the two");
        }
        grpc.push(address);
    }
    let admin_at = child(AT, "admin");
    let admin = socket_address(&raw.admin, &admin_at, check);
    if let Some(admin) = admin.filter(|admin| admin.port() != 0 && seen.contains(&GrpcAddress::Tcp(*admin))) {
        check.error(&admin_at, format!("{admin} is also a gRPC listener"), "give the two different ports");
    }
    let tls = raw.tls.as_ref().map(|tls| tls_files(tls, check));
    if tls.is_some() && !grpc.is_empty() && !grpc.iter().any(|at| matches!(at, GrpcAddress::Tcp(_))) {
        check.error(
            "/listen/tls",
            "no TCP listener would use it",
            "add an IP:PORT to listen.grpc, or remove tls",
        );
    }
    Some(Listen { grpc, admin: admin.unwrap_or(defaults::ADMIN), tls })
}

fn grpc_address(text: &str, at: &str, check: &mut Check<'_, '_>) -> Option<GrpcAddress> {
    let Some(path) = text.strip_prefix("unix:") else {
        return socket_address(text, at, check).map(GrpcAddress::Tcp);
    };
    let path = PathBuf::from(path);
    let bytes = path.as_os_str().as_bytes().len();
    if !path.is_absolute() || path.file_name().is_none() {
        check.error(at, "the path of the Unix socket is not absolute", "write unix:/folder/name.sock");
    } else if bytes > UDS_PATH_BYTES_MAX {
        let what = format!("the path of the Unix socket has {bytes} bytes, more than {UDS_PATH_BYTES_MAX}");
        check.error(at, what, "choose a shorter path, such as unix:/run/tokenweir.sock");
    } else {
        return Some(GrpcAddress::Unix(path));
    }
    None
}

fn socket_address(text: &str, at: &str, check: &mut Check<'_, '_>) -> Option<SocketAddr> {
    let parsed = text.parse().ok();
    if parsed.is_none() {
        let what = format!("{text:?} is not IP:PORT");
        check.error(
            at,
            what,
            "write an address with its port, such as 127.0.0.1:50051 or [::1]:50051; names are not looked up",
        );
    }
    parsed
}

fn tls_files(raw: &TlsFile, check: &mut Check<'_, '_>) -> Tls {
    const AT: &str = "/listen/tls";
    Tls {
        cert_file: check.pem(&raw.cert_file, &child(AT, "cert_file"), "CERTIFICATE-----"),
        key_file: check.pem(&raw.key_file, &child(AT, "key_file"), "PRIVATE KEY-----"),
        client_ca_file: raw
            .client_ca_file
            .as_ref()
            .map(|file| check.pem(file, &child(AT, "client_ca_file"), "CERTIFICATE-----")),
    }
}
