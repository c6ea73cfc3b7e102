//! Every default of the configuration, in one place.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::drain::DrainFile;
use super::exchange::ExchangeFile;
use super::limits::LimitsFile;
use super::listen::{ListenFile, OneOrMany};
use super::pick::{PickFile, SpeedFile};
use super::pools::{EngineKind, Strategy, UsageMode};
use super::signals::SignalsFile;
use super::tenant::TenantFile;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Default of `listen.admin`.
pub(crate) const ADMIN: SocketAddr = SocketAddr::new(LOOPBACK, 9090);

impl Default for ListenFile {
    fn default() -> Self {
        Self { grpc: OneOrMany(vec!["127.0.0.1:50051".to_owned()]), admin: ADMIN.to_string(), tls: None }
    }
}

/// Default of `state_dir`.
pub(crate) fn state_dir() -> PathBuf {
    PathBuf::from("/var/lib/tokenweir")
}

/// Default of `replica`: the host name, which in Kubernetes is the pod's.
pub(crate) fn replica() -> String {
    let name = std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname")).unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "tokenweir".to_owned() } else { name.to_owned() }
}

impl Default for LimitsFile {
    fn default() -> Self {
        Self { body_bytes_max: 32 << 20, streams_max: 65_536, message_headroom_bytes: 1 << 20 }
    }
}

impl Default for ExchangeFile {
    fn default() -> Self {
        Self {
            hold_stream: false,
            lease_s: 600,
            progress_lease_s: 60,
            token_lifetime_s: 86_400,
            retry_after_s: 1,
        }
    }
}

/// A file without a `tenant` section: every request is one tenant's.
impl Default for TenantFile {
    fn default() -> Self {
        Self { header: tenant_header(), trusted: false, default: Some("anonymous".to_owned()) }
    }
}

/// Default of `tenant.header`.
pub(crate) fn tenant_header() -> String {
    "x-tenant".to_owned()
}

impl Default for DrainFile {
    fn default() -> Self {
        Self { delay_s: 5, grace_s: 60 }
    }
}

impl Default for SignalsFile {
    fn default() -> Self {
        Self { enabled: true, idle_ms: 1_000, busy_ms: 250, timeout_ms: 1_000, models_s: 10, stuck_s: 30 }
    }
}

impl Default for PickFile {
    fn default() -> Self {
        Self {
            stale_ms: 5_000,
            exploration: 0.01,
            penalty_ms: 5_000,
            bytes_per_token: 4.0,
            output_tokens: 300.0,
            kv_capacity_tokens: 300_000,
            lora_load_ms: 300,
            prefix_chunks_max: 1 << 19,
            speed: SpeedFile::default(),
        }
    }
}

impl Default for SpeedFile {
    fn default() -> Self {
        Self { step_ms: 14.0, prefill_us: 40.0, attention_ns: 2.1, stream_us: 20.0, context_us: 0.076 }
    }
}

/// Default of `pools[].strategy`.
pub(crate) fn strategy() -> Strategy {
    Strategy::LeastWork
}

/// Default of `pools[].usage`.
pub(crate) fn usage() -> UsageMode {
    UsageMode::Inject
}

/// Default of `pools[].engine`.
pub(crate) fn engine() -> EngineKind {
    EngineKind::Vllm
}

/// Default of `endpoints.poll_ms`.
pub(crate) fn poll_ms() -> u64 {
    500
}
