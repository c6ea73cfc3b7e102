//! An engine that misbehaves below HTTP: it closes, resets, or answers nothing but a status. For what Envoy does then.

use anyhow::Result;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const DONE: &str = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
const FIRST_EVENT: &str = "f\r\ndata: {\"a\":1}\n\n\r\n";

/// What it does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Answers it whole: a stream of `[DONE]`.
    Serve,
    /// Answers with this status and `{}`.
    Status(u16),
    /// Reads it, and closes the connection.
    Close,
    /// Reads it, and resets the connection.
    Reset,
    /// Begins a stream, and resets the connection after one event.
    Begin,
    /// Answers a connection's first request, and closes the connection when the next one's first byte arrives,
    /// unread: a server whose idle timer ran out just then.
    CloseOnNext,
    /// Answers, and closes the connection when nothing came for this long.
    CloseIdle(Duration),
}

/// One rough engine; dropping it ends it.
#[derive(Debug)]
pub struct Rough {
    act: Arc<Mutex<Act>>,
    requests: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Rough {
    /// Listens on `address`, where nothing else may listen.
    pub fn start(address: SocketAddr, act: Act) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener: TcpListener = socket.listen(1024)?;
        let act = Arc::new(Mutex::new(act));
        let (requests, bytes, closed) = (Arc::default(), Arc::default(), Arc::default());
        let shared = (Arc::clone(&act), Arc::clone(&requests), Arc::clone(&bytes), Arc::clone(&closed));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (act, requests, bytes, closed) = shared.clone();
                tokio::spawn(async move { serve(stream, &act, &requests, &bytes, &closed).await });
            }
        });
        Ok(Self { act, requests, bytes, closed, accepting })
    }

    /// Whole requests that it has read.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes of their bodies.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Connections that it closed although a request was arriving or might have been.
    #[must_use]
    pub fn closed(&self) -> usize {
        self.closed.load(Ordering::Relaxed)
    }

    /// What it does from the next request on.
    pub fn set(&self, act: Act) {
        *self.act.lock().unwrap_or_else(PoisonError::into_inner) = act;
    }
}

impl Drop for Rough {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    act: &Mutex<Act>,
    requests: &AtomicUsize,
    bytes: &AtomicUsize,
    closed: &AtomicUsize,
) {
    let _ = stream.set_nodelay(true);
    while let Some(body) = read_request(&mut stream).await {
        requests.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(body, Ordering::Relaxed);
        let act = *act.lock().unwrap_or_else(PoisonError::into_inner);
        // A peer that went away ends the next read.
        let _ = match act {
            Act::Serve | Act::CloseOnNext | Act::CloseIdle(_) => {
                stream.write_all(format!("{STREAM_HEAD}{DONE}").as_bytes()).await
            }
            Act::Status(status) => {
                let head = format!("HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n");
                stream.write_all(format!("{head}content-length: 2\r\n\r\n{{}}").as_bytes()).await
            }
            Act::Close => return,
            Act::Reset => return drop(stream.set_zero_linger()),
            Act::Begin => {
                let _ = stream.write_all(format!("{STREAM_HEAD}{FIRST_EVENT}").as_bytes()).await;
                // So that Envoy has taken the event before it sees the reset.
                tokio::time::sleep(Duration::from_millis(50)).await;
                return drop(stream.set_zero_linger());
            }
        };
        let mut byte = [0];
        let idle = match act {
            Act::CloseOnNext => stream.peek(&mut byte).await.is_ok_and(|n| n > 0),
            Act::CloseIdle(limit) => tokio::time::timeout(limit, stream.peek(&mut byte)).await.is_err(),
            _ => false,
        };
        if idle {
            closed.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

/// Reads one request whole; the size of its body, or `None` at the end of the connection.
async fn read_request(stream: &mut TcpStream) -> Option<usize> {
    let mut seen = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    let mut body_at = None;
    loop {
        let n = stream.read(&mut chunk).await.ok()?;
        if n == 0 {
            return None;
        }
        seen.extend_from_slice(&chunk[..n]);
        if body_at.is_none() {
            body_at = seen.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4);
        }
        let Some(at) = body_at else { continue };
        let head = String::from_utf8_lossy(&seen[..at]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        match length.and_then(|value| value.trim().parse::<usize>().ok()) {
            Some(length) if seen.len() >= at + length => return Some(length),
            None if !head.contains("transfer-encoding") => return Some(0),
            None if seen.ends_with(b"0\r\n\r\n") => return Some(seen.len() - at),
            _ => {}
        }
    }
}
