//! What is compared: Envoy alone, with the no-op ext_proc, with Tokenweir and its filter, and with Tokenweir without the
//! filter. One Envoy worker each, the same templates, the same upstream; all up at once so that rounds can alternate.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::client::{self, Call};
use e2e::envoy::{Envoy, Options};
use e2e::parts;
use e2e::process::{Process, wait_for};
use e2e::service::Service;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Endpoints of the pool: ports of one upstream process.
const ENDPOINTS: usize = 8;
/// How long a child may take to listen.
const UP_LIMIT: Duration = Duration::from_secs(20);

/// Which of the compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Envoy alone.
    Bare,
    /// A no-op ext_proc.
    Noop,
    /// The service and the filter.
    Tokenweir,
    /// The service without the filter: clients see the usage that was asked for.
    WithoutFilter,
    /// The service and the filter, with ext_proc streams that stay open to the end of the response.
    Held,
}

impl Kind {
    /// Its name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Noop => "noop",
            Self::Tokenweir => "tokenweir",
            Self::WithoutFilter => "without_filter",
            Self::Held => "held",
        }
    }

    /// The host that requests name. Without a verdict only the open route leads anywhere; with Tokenweir it is the
    /// protected one, where nothing passes that was not decided.
    pub(crate) fn host(self) -> &'static str {
        if self.is_tokenweir() { "protected.local" } else { "open.local" }
    }

    fn is_tokenweir(self) -> bool {
        !matches!(self, Self::Bare | Self::Noop)
    }

    /// Whether clients see usage that they did not ask for.
    pub(crate) fn shows_usage(self) -> bool {
        self == Self::WithoutFilter
    }
}

/// The instant upstream, in a process of its own.
pub(crate) struct Upstream {
    process: Process,
    addresses: Vec<SocketAddr>,
}

impl Upstream {
    pub(crate) async fn start(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let (process, addresses) = role("upstream", ENDPOINTS, &dir.join("upstream.log")).await?;
        Ok(Self { process, addresses })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

/// This program in another role, once it listens on `ports` ports: it chooses them itself, and prints them.
async fn role(name: &str, ports: usize, log: &Path) -> Result<(Process, Vec<SocketAddr>)> {
    let args = [name, &ports.to_string()];
    let process = Process::start("bench-overhead", &std::env::current_exe()?, &args, &[], log)?;
    let listening = wait_for("a child to listen", UP_LIMIT, async || {
        let text = std::fs::read_to_string(log).ok()?;
        let addresses: Vec<SocketAddr> = text.lines().filter_map(|line| line.parse().ok()).collect();
        (addresses.len() == ports).then_some(addresses)
    });
    let addresses = listening.await.with_context(|| process.tail())?;
    Ok((process, addresses))
}

/// Binds a port of the kernel's choice, and prints it for who started this process.
pub(crate) async fn listen() -> Result<TcpListener> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    bench_result::tell(&listener.local_addr()?.to_string());
    Ok(listener)
}

enum Backend {
    None,
    Noop(Process),
    Tokenweir(Box<Service>),
}

/// One of the compared, running.
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) envoy: Envoy,
    backend: Backend,
}

impl Setup {
    /// Starts it in a folder of its own under `dir`.
    pub(crate) async fn start(kind: Kind, dir: &Path, upstream: &Upstream) -> Result<Self> {
        let dir = dir.join(kind.name());
        std::fs::create_dir_all(&dir)?;
        let pools = vec![("a".to_owned(), upstream.addresses.clone())];
        let mut options =
            Options { concurrency: 1, pools, ext_proc: kind != Kind::Bare, ..Options::default() };
        let backend = match kind {
            Kind::Bare => Backend::None,
            Kind::Noop => {
                let (process, addresses) = role("noop", 1, &dir.join("noop.log")).await?;
                options.ext_proc_address = addresses.first().context("its address")?.to_string();
                Backend::Noop(process)
            }
            Kind::Tokenweir | Kind::WithoutFilter | Kind::Held => {
                let mut service = Service::prepare(&dir, false)?;
                configure(&mut service.config, kind == Kind::Held);
                let ready = upstream.addresses.iter().map(|address| (*address, true)).collect();
                service.write_endpoints(&[("a".to_owned(), ready)])?;
                service.start().await?;
                options.ext_proc_address.clone_from(&service.grpc);
                Backend::Tokenweir(Box::new(service))
            }
        };
        if matches!(kind, Kind::Tokenweir | Kind::Held) {
            options.wasm = Some(parts::wasm()?);
        }
        let envoy = Envoy::start(&dir.join("envoy"), options).await?;
        Ok(Self { kind, envoy, backend })
    }

    pub(crate) fn envoy_pid(&mut self) -> u32 {
        self.envoy.process().id()
    }

    /// The ext_proc service's process, if there is one.
    pub(crate) fn service_pid(&mut self) -> Result<Option<u32>> {
        Ok(match &mut self.backend {
            Backend::None => None,
            Backend::Noop(process) => Some(process.id()),
            Backend::Tokenweir(service) => Some(service.process()?.id()),
        })
    }

    /// Tokenweir.
    pub(crate) fn service(&mut self) -> Result<&mut Service> {
        match &mut self.backend {
            Backend::Tokenweir(service) => Ok(service),
            Backend::None | Backend::Noop(_) => anyhow::bail!("{} has no Tokenweir", self.kind.name()),
        }
    }

    /// One call through it, as a check that it is up.
    pub(crate) async fn try_out(&self) -> Result<()> {
        let mut call = Call::post("/v1/chat/completions", crate::bodies::chat(1 << 10, false, 0));
        self.kind.host().clone_into(&mut call.authority);
        let reply =
            client::send(self.envoy.address, call.header(crate::upstream::FORM_HEADER, "whole")).await?;
        anyhow::ensure!(reply.status == 200, "{}: {} {}", self.kind.name(), reply.status, reply.text());
        Ok(())
    }
}

/// Pool `a` with everything as it is by default.
fn configure(config: &mut Value, hold_stream: bool) {
    config["pools"] = json!([{"name": "a", "models": ["tiny-llama"]}]);
    if hold_stream {
        config["exchange"]["hold_stream"] = json!(true);
    }
}
