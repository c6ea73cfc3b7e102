//! Clients: one call with its transcript, load with latencies, and raw TCP for uploads no library would send.

pub mod load;
pub mod raw;
pub mod reports;
pub mod transcript;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
pub use transcript::{Ended, Reply};

/// The longest that any call may take unless it says otherwise.
pub const CALL_LIMIT: Duration = Duration::from_secs(120);

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1
    H1,
    /// HTTP/2 without TLS, prior knowledge
    H2,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: Method,
    pub path: String,
    /// `Host` or `:authority`; it chooses the route: `open.local` fails open.
    pub authority: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Hang up after this many SSE events.
    pub abort_after: Option<usize>,
    pub limit: Duration,
}

impl Call {
    /// A GET of `path`.
    #[must_use]
    pub fn get(path: &str) -> Self {
        Self {
            method: Method::GET,
            path: path.to_owned(),
            authority: "protected.local".to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            abort_after: None,
            limit: CALL_LIMIT,
        }
    }

    /// A POST of JSON bytes.
    #[must_use]
    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        let call = Self { method: Method::POST, body: body.into(), ..Self::get(path) };
        call.header("content-type", "application/json")
    }

    /// A POST of a JSON value.
    #[must_use]
    pub fn json(path: &str, body: &serde_json::Value) -> Self {
        Self::post(path, body.to_string())
    }

    /// With one more header; an earlier one of the same name stays.
    ///
    /// # Panics
    /// On a name or value that HTTP does not allow.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().unwrap_or_else(|_| panic!("header name {name:?}"));
        let value: HeaderValue = value.parse().unwrap_or_else(|_| panic!("header value {value:?}"));
        self.headers.append(name, value);
        self
    }

    /// With another content type.
    #[must_use]
    pub fn content_type(mut self, value: &str) -> Self {
        self.headers.remove(http::header::CONTENT_TYPE);
        self.header("content-type", value)
    }

    /// For the route that fails open.
    #[must_use]
    pub fn open(mut self) -> Self {
        "open.local".clone_into(&mut self.authority);
        self
    }

    /// Hanging up after `events` SSE events.
    #[must_use]
    pub fn abort_after(mut self, events: usize) -> Self {
        self.abort_after = Some(events);
        self
    }

    /// With another time limit.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

enum Sender {
    H1(http1::SendRequest<Full<Bytes>>),
    H2(http2::SendRequest<Full<Bytes>>),
}

/// One connection that takes one call after another.
pub struct Connection {
    sender: Sender,
    driver: tokio::task::JoinHandle<()>,
}

impl Connection {
    /// Connects to `address`.
    pub async fn open(address: SocketAddr, protocol: Protocol) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        let io = TokioIo::new(stream);
        Ok(match protocol {
            Protocol::H1 => {
                let (sender, connection) = http1::handshake(io).await?;
                let driver = tokio::spawn(async move { drop(connection.await) });
                Self { sender: Sender::H1(sender), driver }
            }
            Protocol::H2 => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(16 << 20)
                    .initial_connection_window_size(64 << 20)
                    .handshake(io)
                    .await?;
                let driver = tokio::spawn(async move { drop(connection.await) });
                Self { sender: Sender::H2(sender), driver }
            }
        })
    }

    /// Sends a call and waits for the response headers.
    pub async fn start(&mut self, call: &Call) -> Result<(http::response::Parts, Incoming)> {
        let response = match &mut self.sender {
            Sender::H1(sender) => {
                let mut request = Request::builder().method(&call.method).uri(&call.path);
                request = request.header("host", &call.authority);
                let mut request = request.body(Full::new(call.body.clone()))?;
                extend(request.headers_mut(), &call.headers);
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::H2(sender) => {
                let uri = format!("http://{}{}", call.authority, call.path);
                let mut request =
                    Request::builder().method(&call.method).uri(uri).body(Full::new(call.body.clone()))?;
                extend(request.headers_mut(), &call.headers);
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        Ok(response.into_parts())
    }

    /// Sends a call and reads its reply whole.
    pub async fn send(&mut self, call: &Call) -> Result<Reply> {
        let started = Instant::now();
        let head = tokio::time::timeout(call.limit, self.start(call)).await;
        let (head, body) = head.with_context(|| format!("no response headers within {:?}", call.limit))??;
        Ok(read(head, body, started, call.abort_after, call.limit).await)
    }

    /// Closes the connection at once, whatever runs on it.
    pub fn hang_up(self) {
        drop(self);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn extend(to: &mut HeaderMap, from: &HeaderMap) {
    for (name, value) in from {
        to.append(name.clone(), value.clone());
    }
}

async fn read(
    head: http::response::Parts,
    mut body: Incoming,
    started: Instant,
    abort_after: Option<usize>,
    limit: Duration,
) -> Reply {
    let mut reply = Reply::new(head.status.as_u16(), head.headers, started.elapsed());
    let deadline = tokio::time::Instant::from_std(started + limit);
    loop {
        if abort_after.is_some_and(|most| reply.events_so_far() >= most) {
            reply.end(Ended::HungUp, started.elapsed());
            return reply;
        }
        match tokio::time::timeout_at(deadline, body.frame()).await {
            Err(_) => {
                reply.end(Ended::TimedOut, started.elapsed());
                return reply;
            }
            Ok(None) => {
                reply.end(Ended::Complete, started.elapsed());
                return reply;
            }
            Ok(Some(Err(error))) => {
                reply.end(Ended::Cut(error.to_string()), started.elapsed());
                return reply;
            }
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => reply.push(&data, started.elapsed()),
                Err(frame) => reply.trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// One call on a connection of its own, over HTTP/1.1.
pub async fn send(address: SocketAddr, call: Call) -> Result<Reply> {
    Connection::open(address, Protocol::H1).await?.send(&call).await
}

/// One call on a connection of its own, over HTTP/2.
pub async fn send_h2(address: SocketAddr, call: Call) -> Result<Reply> {
    Connection::open(address, Protocol::H2).await?.send(&call).await
}

/// A response that is still coming: for tests that do something to the other parts meanwhile.
pub struct Open {
    /// What came so far.
    pub reply: Reply,
    body: Incoming,
    started: Instant,
    // The connection lives as long as the response does.
    _connection: Connection,
}

/// Sends a call and returns once the response headers are there.
pub async fn open(address: SocketAddr, call: Call) -> Result<Open> {
    let started = Instant::now();
    let mut connection = Connection::open(address, Protocol::H1).await?;
    let head = tokio::time::timeout(call.limit, connection.start(&call)).await;
    let (head, body) = head.context("no response headers in time")??;
    let reply = Reply::new(head.status.as_u16(), head.headers, started.elapsed());
    Ok(Open { reply, body, started, _connection: connection })
}

impl Open {
    /// Reads on until `events` SSE events are there in all.
    pub async fn until(&mut self, events: usize, limit: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + limit;
        while self.reply.events_so_far() < events {
            let frame = tokio::time::timeout_at(deadline, self.body.frame()).await;
            match frame.with_context(|| format!("{} of {events} events", self.reply.events_so_far()))? {
                None => bail!("the response ended after {} of {events} events", self.reply.events_so_far()),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.reply.push(&data, self.started.elapsed());
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads to the end.
    pub async fn finish(mut self, limit: Duration) -> Reply {
        let deadline = tokio::time::Instant::now() + limit;
        let ended = loop {
            match tokio::time::timeout_at(deadline, self.body.frame()).await {
                Err(_) => break Ended::TimedOut,
                Ok(None) => break Ended::Complete,
                Ok(Some(Err(error))) => break Ended::Cut(error.to_string()),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.reply.push(&data, self.started.elapsed());
                    }
                }
            }
        };
        self.reply.end(ended, self.started.elapsed());
        self.reply
    }

    /// Hangs up now.
    #[must_use]
    pub fn hang_up(mut self) -> Reply {
        self.reply.end(Ended::HungUp, self.started.elapsed());
        self.reply
    }
}
