//! Connections: accepted, reset, and closed when idle, as uvicorn does.

use crate::api::{self, Streaming};
use crate::state::State;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Accepts until the other half of `stopped` is dropped.
pub(crate) async fn accept(listener: TcpListener, state: Arc<State>, mut stopped: watch::Receiver<()>) {
    let ended = stopped.clone();
    loop {
        let stream = tokio::select! {
            _ = stopped.changed() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // Out of file descriptors, most likely: others will close.
                Err(_) => { tokio::time::sleep(Duration::from_millis(10)).await; continue }
            },
        };
        let _ = stream.set_nodelay(true);
        let (state, mut ended) = (Arc::clone(&state), ended.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = serve(stream, state) => {}
                _ = ended.changed() => {}
            }
        });
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let link = Arc::new(Link::default());
    link.touch();
    let wire = Wire { stream, link: Arc::clone(&link) };
    let (service_link, service_state) = (Arc::clone(&link), Arc::clone(&state));
    let service = service_fn(move |request| {
        let (busy, state) = (Busy::new(&service_link), Arc::clone(&service_state));
        async move { api::answer(request, state, busy).await }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(wire), service);
    let mut connection = std::pin::pin!(connection);
    let mut next = tokio::time::Instant::now() + idle_limit(&state);
    loop {
        tokio::select! {
            _ = &mut connection => return,
            () = tokio::time::sleep_until(next) => {
                let (limit, idle) = (idle_limit(&state), link.idle());
                match idle {
                    Some(idle) if idle >= limit => {
                        connection.as_mut().graceful_shutdown();
                        next += Duration::from_secs(3600);
                    }
                    _ => next = tokio::time::Instant::now() + limit.saturating_sub(idle.unwrap_or_default()),
                }
            }
        }
    }
}

fn idle_limit(state: &State) -> Duration {
    let limit = state.faults().keep_alive_ms.map_or(state.config.keep_alive, Duration::from_millis);
    limit.max(Duration::from_millis(1))
}

fn since_start() -> Duration {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

/// What a connection's socket and its requests share.
#[derive(Debug, Default)]
pub(crate) struct Link {
    reset: AtomicBool,
    busy: AtomicUsize,
    /// Microseconds of the process's clock when the newest answer ended.
    used: AtomicU64,
}

impl Link {
    fn touch(&self) {
        self.used.store(since_start().as_micros() as u64, Ordering::Relaxed);
    }

    /// How long nothing has been going on; none while something is.
    fn idle(&self) -> Option<Duration> {
        (self.busy.load(Ordering::Acquire) == 0)
            .then(|| since_start().saturating_sub(Duration::from_micros(self.used.load(Ordering::Relaxed))))
    }

    /// The connection ends with a reset, not with an end.
    pub(crate) fn reset(&self) {
        self.reset.store(true, Ordering::Release);
    }
}

/// A request is being answered while this lives.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Link>);

impl Busy {
    fn new(link: &Arc<Link>) -> Self {
        link.busy.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(link))
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A socket that can be told to end with a reset.
#[derive(Debug)]
struct Wire {
    stream: TcpStream,
    link: Arc<Link>,
}

impl Wire {
    fn broken(&self) -> io::Result<()> {
        if self.link.reset.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.link.reset.load(Ordering::Acquire) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        wire.broken()?;
        Pin::new(&mut wire.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        wire.broken()?;
        Pin::new(&mut wire.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        wire.broken()?;
        Pin::new(&mut wire.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        wire.broken()?;
        Pin::new(&mut wire.stream).poll_shutdown(cx)
    }
}

/// A response's body, and the connection that is busy with it.
pub(crate) struct Reply {
    content: Content,
    _busy: Busy,
}

enum Content {
    Whole(Bytes),
    Stream(Box<Streaming>),
}

impl Reply {
    pub(crate) fn whole(bytes: impl Into<Bytes>, busy: Busy) -> Self {
        Self { content: Content::Whole(bytes.into()), _busy: busy }
    }

    pub(crate) fn stream(streaming: Streaming, busy: Busy) -> Self {
        Self { content: Content::Stream(Box::new(streaming)), _busy: busy }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.get_mut().content {
            Content::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Content::Stream(streaming) => {
                streaming.poll_event(cx).map(|event| event.map(|event| event.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

/// Why there is no answer at all.
#[derive(Debug)]
pub(crate) struct NoAnswer;

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is to be reset")
    }
}

impl std::error::Error for NoAnswer {}

impl From<Infallible> for NoAnswer {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
