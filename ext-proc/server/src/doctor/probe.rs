//! The plain HTTP client of the checks: one request a connection, short patience, bounded answers.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Longest wait for a whole answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Largest answer, bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Why there was no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// Nothing listens.
    Refused,
    /// It listens, or may, but gave no HTTP answer.
    Silent(String),
}

/// Status and body of `GET path`.
pub(super) async fn get(address: SocketAddr, path: &str) -> Result<(u16, Bytes), NoAnswer> {
    match tokio::time::timeout(PATIENCE, exchange(address, path)).await {
        Ok(answer) => answer,
        Err(_late) => Err(NoAnswer::Silent(format!("no answer within {} s", PATIENCE.as_secs()))),
    }
}

async fn exchange(address: SocketAddr, path: &str) -> Result<(u16, Bytes), NoAnswer> {
    let silent = |error: &dyn std::fmt::Display| NoAnswer::Silent(error.to_string());
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => NoAnswer::Refused,
        _ => silent(&error),
    })?;
    let (mut client, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| silent(&error))?;
    let request = Request::get(path)
        .header(header::HOST, address.to_string())
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| silent(&error))?;
    let answer = async {
        let response = client.send_request(request).await.map_err(|error| silent(&error))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| silent(&error))?.to_bytes()))
    };
    // The connection must be driven while the answer is awaited; it has no result of its own to look at.
    let (answer, _closed) = tokio::join!(answer, connection);
    answer
}
