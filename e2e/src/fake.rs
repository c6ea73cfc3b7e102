//! An external processor that closes its streams cleanly, without a verdict, at a phase of one's choice. Envoy takes
//! that as "skip the rest": it is what the second and third lock (the route and the filter) are for.

use anyhow::Result;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// When the stream is closed with OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// At once.
    AtStart,
    /// Instead of a reply to the request headers.
    OnHeaders,
    /// After an empty reply to the request headers.
    AfterHeaders,
    /// Instead of a reply to the request body.
    OnBody,
    /// After an empty reply to the request body.
    AfterBody,
}

/// gRPC messages that hold an empty reply: to the request headers (field 1), to the request body (field 3).
const HEADERS_REPLY: &[u8] = &[0, 0, 0, 0, 2, 0x0a, 0];
const BODY_REPLY: &[u8] = &[0, 0, 0, 0, 2, 0x1a, 0];

struct Stream(mpsc::Receiver<Frame<Bytes>>);

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

/// Serves until the runtime ends. Its address.
pub async fn serve(close: Close) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let service = service_fn(move |request| async move { answer(request, close) });
                // A broken connection is Envoy's business.
                let _ = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    Ok(address)
}

fn answer(request: Request<Incoming>, close: Close) -> Result<Response<Stream>, Infallible> {
    let (frames, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut body = request.into_body();
        let steps: &[Option<&[u8]>] = match close {
            Close::AtStart => &[],
            Close::OnHeaders => &[None],
            Close::AfterHeaders => &[Some(HEADERS_REPLY)],
            Close::OnBody => &[Some(HEADERS_REPLY), None],
            Close::AfterBody => &[Some(HEADERS_REPLY), Some(BODY_REPLY)],
        };
        for step in steps {
            // One frame of data is at least the beginning of the message that the step waits for.
            if body.frame().await.is_none() {
                break;
            }
            if let Some(reply) = step {
                let _ = frames.send(Frame::data(Bytes::from_static(reply))).await;
            }
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let _ = frames.send(Frame::trailers(trailers)).await;
    });
    let mut response = Response::new(Stream(receiver));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}
