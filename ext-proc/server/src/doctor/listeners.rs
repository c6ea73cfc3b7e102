//! The service's own addresses: free, or served by a `tokenweir`.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixStream};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::probe::{self, NoAnswer, PATIENCE};
use super::{Level, Report};
use crate::config::{GrpcAddress, Listen};

const OTHER_PROGRAM: &str = "stop the program that uses it, or choose another address";

/// Gives back the metrics of a `tokenweir` that serves here, if one does.
pub(super) async fn examine(listen: &Listen, report: &mut Report) -> Option<String> {
    for address in &listen.grpc {
        let subject = format!("gRPC listener {address}");
        match address {
            GrpcAddress::Tcp(at) if at.port() == 0 => {
                report.add(Level::Skip, subject, "the port is chosen at the start", "");
            }
            GrpcAddress::Tcp(at) => tcp(subject, *at, listen.tls.is_some(), report).await,
            GrpcAddress::Unix(path) => unix(subject, path, report).await,
        }
    }
    admin(listen.admin, report).await
}

/// Where to reach a listener on this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(ip, address.port())
}

async fn tcp(subject: String, address: SocketAddr, tls: bool, report: &mut Report) {
    let at = reachable(address);
    let connected = tokio::time::timeout(PATIENCE, TcpStream::connect(at)).await;
    if !matches!(connected, Ok(Ok(_))) {
        return free(subject, address, report).await;
    }
    if tls {
        let what = "something listens; whether it is tokenweir is not visible behind TLS";
        return report.add(Level::Skip, subject, what, "");
    }
    health(subject, format!("http://{at}"), report).await;
}

async fn unix(subject: String, path: &Path, report: &mut Report) {
    match UnixStream::connect(path).await {
        Ok(_) => health(subject, format!("unix:{}", path.display()), report).await,
        // A socket without a listener is left by a killed process; the service removes it.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            if path.parent().is_some_and(Path::is_dir) {
                report.ok(subject, "free; tokenweir is not running");
            } else {
                report.add(Level::Fail, subject, "its folder does not exist", "make the folder");
            }
        }
        Err(error) => {
            report.add(
                Level::Fail,
                subject,
                format!("cannot be used: {error}"),
                "give the folder to the service's user",
            );
        }
    }
}

async fn free(subject: String, address: SocketAddr, report: &mut Report) {
    match TcpListener::bind(address).await {
        Ok(_) => report.ok(subject, "free; tokenweir is not running"),
        Err(error) => {
            report.add(
                Level::Fail,
                subject,
                format!("cannot be opened: {error}"),
                "choose an address of this machine",
            );
        }
    }
}

async fn health(subject: String, uri: String, report: &mut Report) {
    let asked = tokio::time::timeout(PATIENCE, async {
        let channel = Endpoint::from_shared(uri)?.connect_timeout(Duration::from_secs(1)).connect().await?;
        let request = HealthCheckRequest { service: String::new() };
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(
            HealthClient::new(channel).check(request).await?.into_inner(),
        )
    });
    match asked.await {
        Ok(Ok(answer)) if answer.status() == ServingStatus::Serving => {
            report.ok(subject, "tokenweir is serving (gRPC health)");
        }
        Ok(Ok(answer)) => {
            let what = format!("gRPC health says {}", answer.status().as_str_name());
            report.add(Level::Warn, subject, what, "see the admin address for the reasons");
        }
        Ok(Err(_)) | Err(_) => {
            report.add(
                Level::Fail,
                subject,
                "something listens that does not answer gRPC health",
                OTHER_PROGRAM,
            );
        }
    }
}

async fn admin(address: SocketAddr, report: &mut Report) -> Option<String> {
    let subject = format!("admin listener {address}");
    if address.port() == 0 {
        report.add(Level::Skip, subject, "the port is chosen at the start", "");
        return None;
    }
    match probe::get(reachable(address), "/readyz").await {
        Ok((200, _)) => {
            report.ok(subject, "tokenweir is ready");
            let (_, metrics) = probe::get(reachable(address), "/metrics").await.ok()?;
            return String::from_utf8(metrics.to_vec()).ok();
        }
        Ok((503, body)) => {
            let reasons: String =
                String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(400).collect();
            report.add(Level::Warn, subject, format!("tokenweir is not ready: {reasons}"), "");
        }
        Err(NoAnswer::Refused) => free(subject, address, report).await,
        Ok(_) | Err(NoAnswer::Silent(_)) => {
            report.add(
                Level::Fail,
                subject,
                "something listens that is not tokenweir's admin port",
                OTHER_PROGRAM,
            );
        }
    }
    None
}
