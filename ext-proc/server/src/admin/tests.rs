use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::config::Config;

struct Port {
    address: SocketAddr,
    admin: Admin,
    stop: CancellationToken,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn port() -> Port {
    let text = "pools: [{name: a, models: [m]}]\nendpoints: {file: e.yaml}\n";
    let config = Config::parse(text, Path::new("tokenweir.yaml")).expect("valid");
    let picks: Page = Arc::new(|| br#"[{"pool":"a"}]"#.to_vec());
    let endpoints: Page = Arc::new(|| br#"{"pools":[]}"#.to_vec());
    let metrics = Metrics::new(&config);
    let counted = metrics.clone();
    let gauges = Arc::new(move || counted.open_exchanges(7));
    let admin = Admin { metrics, gauges, readiness: Readiness::default(), picks, endpoints };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, stop) = (listener.local_addr().expect("an address"), CancellationToken::new());
    tokio::spawn(serve(listener, router(admin.clone()), stop.clone()));
    Port { address, admin, stop }
}

impl Port {
    /// Status, head and body of the answer to one raw request.
    async fn ask(&self, line: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        let request = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut answer))
            .await
            .expect("in time")
            .expect("read");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (
            head.split(' ').nth(1).expect("a status").parse().expect("a number"),
            head.to_ascii_lowercase(),
            body.to_owned(),
        )
    }
}

#[tokio::test]
async fn every_route_answers_what_it_should() {
    let port = port().await;
    assert_eq!(port.ask("GET /healthz").await.0, 200);

    let (status, head, body) = port.ask("GET /readyz").await;
    assert_eq!(status, 503);
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(body.contains("\"ready\":false") && body.contains("\"serving\""), "{body}");
    for condition in [Condition::Config, Condition::Endpoints, Condition::Serving] {
        port.admin.readiness.set(condition, true);
    }
    assert_eq!(port.ask("GET /readyz?verbose").await.0, 200);

    port.admin.metrics.lease_expired();
    let (status, head, body) = port.ask("GET /metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\ntokenweir_lease_expired_total 1\n"), "{body}");
    assert!(
        body.contains("\ntokenweir_open_exchanges 7\n"),
        "gauges are set when they are asked for: {body}"
    );

    let (status, _, body) = port.ask("GET /debug/picks").await;
    assert_eq!((status, body.as_str()), (200, r#"[{"pool":"a"}]"#));
    let (status, _, body) = port.ask("GET /debug/endpoints").await;
    assert_eq!((status, body.as_str()), (200, r#"{"pools":[]}"#));
    assert_eq!(port.ask("HEAD /healthz").await.2, "");
}

#[tokio::test]
async fn nothing_else_is_answered() {
    let port = port().await;
    for line in ["GET /", "GET /metrics/", "GET /debug", "POST /x", "GET //healthz"] {
        assert_eq!(port.ask(line).await.0, 404, "{line}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let (status, head, _) = port.ask(&format!("{method} /readyz")).await;
        assert_eq!(status, 405, "{method}");
        assert!(head.contains("allow: get, head"), "{head}");
    }
    let long = format!("GET /{}", "x".repeat(64 * 1024));
    let mut stream = TcpStream::connect(port.address).await.expect("connected");
    let _ = stream.write_all(format!("{long} HTTP/1.1\r\n\r\n").as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 2"));
}

#[tokio::test]
async fn connections_past_the_limit_wait_for_a_place() {
    let port = port().await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        idle.push(TcpStream::connect(port.address).await.expect("connected"));
    }
    let waited = tokio::time::timeout(Duration::from_millis(300), port.ask("GET /healthz")).await;
    assert!(waited.is_err(), "answered although no place was free");
    idle.clear();
    assert_eq!(port.ask("GET /healthz").await.0, 200);
}

#[tokio::test]
async fn the_port_closes_when_told() {
    let port = port().await;
    assert_eq!(port.ask("GET /healthz").await.0, 200);
    let mut open = TcpStream::connect(port.address).await.expect("connected");
    port.stop.cancel();
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), open.read_to_end(&mut rest))
        .await
        .expect("closed")
        .unwrap_or(0);
}
