//! The gRPC listeners: TCP (with or without TLS) and Unix sockets, all serving the same three services.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessorServer;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::AppError;
use crate::config::{Config, GrpcAddress, Listen};
use crate::generated::usage_reports_server::UsageReportsServer;
use crate::reports::Reports;
use crate::service::Service;
use crate::tls;

/// A dead Envoy is noticed by this much silence, and its answer being due in as much again.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// HTTP/2 windows are 31 bits wide.
const WINDOW_MAX: usize = (1 << 31) - 1;

/// A bound address.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// What every listener serves.
pub(super) struct Services<H: Health> {
    pub(super) ext_proc: ExternalProcessorServer<Service>,
    pub(super) reports: UsageReportsServer<Reports>,
    pub(super) health: HealthServer<H>,
}

impl<H: Health> Clone for Services<H> {
    fn clone(&self) -> Self {
        Self { ext_proc: self.ext_proc.clone(), reports: self.reports.clone(), health: self.health.clone() }
    }
}

/// Binds every gRPC address, before anything is served on any.
pub(super) async fn bind(listen: &Listen) -> Result<Vec<Listener>, AppError> {
    let mut bound = Vec::new();
    for address in &listen.grpc {
        let listener = match address {
            GrpcAddress::Tcp(tcp) => TcpListener::bind(tcp).await.map(Listener::Tcp),
            GrpcAddress::Unix(path) => {
                // A socket file that a killed process left behind; one in use answers, and is left alone.
                if tokio::net::UnixStream::connect(path).await.is_err() && path.exists() {
                    drop(std::fs::remove_file(path));
                }
                UnixListener::bind(path).map(Listener::Unix)
            }
        };
        bound.push(listener.map_err(|source| AppError::Listen { address: address.to_string(), source })?);
    }
    Ok(bound)
}

/// Binds the admin address.
pub(super) async fn bind_admin(address: SocketAddr) -> Result<TcpListener, AppError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| AppError::Listen { address: address.to_string(), source })
}

/// Serves on one listener until `closing`, and then until its streams have ended.
pub(super) fn serve<H: Health>(
    listener: Listener,
    config: &Config,
    services: Services<H>,
    closing: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<H>, AppError> {
    let message = config.limits.message_bytes_max();
    let window = |bytes: usize| u32::try_from(bytes.min(WINDOW_MAX)).ok();
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        // A whole body fits the window, so that Envoy never waits in the middle of one.
        .initial_stream_window_size(window(message))
        .initial_connection_window_size(window(message.saturating_mul(2)))
        .max_concurrent_streams(None);
    if let (Some(files), Listener::Tcp(_)) = (&config.listen.tls, &listener) {
        let tls = tls::server_config(files).map_err(|error| AppError::Tls(error.to_string()))?;
        server = server.tls_config(tls).map_err(|error| AppError::Tls(error.to_string()))?;
    }
    let router =
        server.add_service(services.ext_proc).add_service(services.reports).add_service(services.health);
    Ok(async move {
        let shutdown = closing.cancelled_owned();
        let served = match listener {
            Listener::Tcp(tcp) => router.serve_with_incoming_shutdown(incoming(tcp), shutdown).await,
            Listener::Unix(unix) => {
                router.serve_with_incoming_shutdown(UnixListenerStream::new(unix), shutdown).await
            }
        };
        if let Err(error) = served {
            tracing::error!(%error, "a gRPC listener failed");
        }
    })
}

/// Connections without Nagle's algorithm, which the server's own setting does not reach for a listener that is handed to
/// it: a verdict must not wait for Envoy's kernel to acknowledge the one before, up to 40 ms.
fn incoming(listener: TcpListener) -> TcpIncoming {
    TcpIncoming::from(listener).with_nodelay(Some(true))
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test]
    async fn no_verdict_waits_for_an_acknowledgement() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut incoming = incoming(listener);
        let _client = tokio::net::TcpStream::connect(address).await.unwrap();
        let accepted = incoming.next().await.unwrap().unwrap();
        assert!(accepted.nodelay().unwrap());
    }
}
