//! One kept-alive HTTP/1.1 connection to one target.
//!
//! A server closes a connection that was idle for a while (uvicorn: 5 s), and may do so at the very moment a request is
//! written. So a request that gets no answer on a connection that was used before is sent once more on a fresh one; both
//! requests only read. Decided too: nothing is compressed, redirects are not followed, and a connection whose answer
//! wasn't read to its end is not used again.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::history::Failure;
use crate::limits::READ_BYTES_MAX;

/// A connection, and the task that drives it.
struct Open {
    sender: SendRequest<Empty<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

/// The way to one target.
pub(crate) struct Link {
    address: SocketAddr,
    open: Option<Open>,
}

impl Link {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, open: None }
    }

    /// Reads the answer to `GET path` into `body`, at most `bytes_max` long and `within` that time.
    pub(crate) async fn get(
        &mut self,
        path: &'static str,
        bytes_max: usize,
        within: Duration,
        body: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        // Out of the link while it is in use: what ends early, for whatever reason, leaves no half-read connection.
        let kept = self.open.take();
        let exchange = exchange(self.address, kept, path, bytes_max, body);
        self.open = tokio::time::timeout(within, exchange).await.map_err(|_late| Failure::Timeout)??;
        Ok(())
    }
}

async fn exchange(
    address: SocketAddr,
    kept: Option<Open>,
    path: &'static str,
    bytes_max: usize,
    body: &mut Vec<u8>,
) -> Result<Option<Open>, Failure> {
    let (open, response) = answer(address, kept, path).await?;
    let status = response.status();
    if status != StatusCode::OK {
        return Err(Failure::Status(status.as_u16()));
    }
    body.clear();
    let mut incoming = response.into_body();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|_broken| Failure::Broken)?;
        let Some(data) = frame.data_ref() else { continue };
        if body.len().saturating_add(data.len()) > bytes_max {
            return Err(Failure::TooLarge);
        }
        body.extend_from_slice(data);
    }
    Ok((!open.sender.is_closed()).then_some(open))
}

/// The head of the answer: from the kept connection where there is one, else, or if that says nothing, from a fresh one.
async fn answer(
    address: SocketAddr,
    kept: Option<Open>,
    path: &'static str,
) -> Result<(Open, Response<Incoming>), Failure> {
    if let Some(mut open) = kept
        && open.sender.ready().await.is_ok()
        && let Ok(response) = open.sender.send_request(request(address, path)?).await
    {
        return Ok((open, response));
    }
    let mut open = connect(address).await.ok_or(Failure::Refused)?;
    let response = open.sender.send_request(request(address, path)?).await;
    response.map(|response| (open, response)).map_err(|_closed| Failure::Refused)
}

async fn connect(address: SocketAddr) -> Option<Open> {
    let stream = TcpStream::connect(address).await.ok()?;
    stream.set_nodelay(true).ok()?;
    let handshake = http1::Builder::new().max_buf_size(READ_BYTES_MAX).handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.ok()?;
    let driver = tokio::spawn(async move {
        // How the connection ends is seen by who uses it.
        let _ended = connection.await;
    });
    Some(Open { sender, _driver: AbortOnDropHandle::new(driver) })
}

fn request(address: SocketAddr, path: &'static str) -> Result<Request<Empty<Bytes>>, Failure> {
    let request = Request::get(path)
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, concat!("tokenweir/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT, "*/*")
        .body(Empty::new());
    // Only a path that is no path could fail here, and both are written above.
    request.map_err(|_malformed| Failure::Refused)
}
