//! The port's listener: HTTP/1.1, few connections, short patience.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Most connections at once. Further ones wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 256;

/// Largest request head, bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Longest wait for a request head, on a fresh or an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest life of a connection: a client that does not read its answer is cut then.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause after a failed accept (out of file descriptors), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `stop`; then open connections are dropped.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = tokio::select! {
            () = stop.cancelled() => return,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        // Only a closed semaphore fails, and nobody closes it.
        let Ok(place) = place else { return };
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (router, stop) = (router.clone(), stop.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection(stream, router)) => {}
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the admin port cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let service = TowerToHyperService::new(router);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "an admin connection ended early");
    }
}
