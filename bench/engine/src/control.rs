//! The engines of one process over HTTP: books, faults, restarts.
//!
//! | Request | What |
//! |---|---|
//! | `GET /engines` | names, addresses, faults, gauges |
//! | `GET /engines/{n}/books` | every request |
//! | `DELETE /engines/{n}/books` | forgets them |
//! | `PUT /engines/{n}/faults` | replaces the faults by those of the body; what it leaves out is as it should be |
//! | `POST /engines/{n}/{stop,die,terminate,restart}` | as [`Engine`]'s functions |

use crate::engine::Engine;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Serves the control API of `engines` on `address` until the task is dropped. Returns where it listens.
pub async fn serve(engines: Arc<Vec<Engine>>, address: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let engines = Arc::clone(&engines);
            let service = service_fn(move |request| {
                let engines = Arc::clone(&engines);
                async move { Ok::<_, Infallible>(answer(&engines, request).await) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(address)
}

fn reply(status: u16, value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string() + "\n")));
    *response.status_mut() =
        http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

async fn answer(engines: &[Engine], request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
    if path == ["engines"] && parts.method == Method::GET {
        return reply(200, &engines.iter().map(about).collect());
    }
    let ["engines", number, what] = path[..] else {
        return reply(404, &json!({"error": "no such path; try GET /engines"}));
    };
    let Some(engine) = number.parse().ok().and_then(|at: usize| engines.get(at)) else {
        let count = engines.len();
        return reply(
            404,
            &json!({"error": format!("engines are numbered 0 to {}", count.saturating_sub(1))}),
        );
    };
    match (&parts.method, what) {
        (&Method::GET, "books") => {
            let books = engine.books();
            reply(200, &json!({"dropped": books.dropped(), "entries": books.entries().collect::<Vec<_>>()}))
        }
        (&Method::DELETE, "books") => {
            engine.clear_books();
            reply(200, &about(engine))
        }
        (&Method::PUT, "faults") => {
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            match serde_json::from_slice(&body) {
                Ok(faults) => {
                    engine.set(|current| *current = faults);
                    reply(200, &about(engine))
                }
                Err(error) => reply(400, &json!({"error": format!("faults: {error}")})),
            }
        }
        (&Method::POST, action) => act(engine, action).await,
        _ => reply(405, &json!({"error": "this path takes another method"})),
    }
}

async fn act(engine: &Engine, action: &str) -> Response<Full<Bytes>> {
    match action {
        "stop" => engine.stop(),
        "die" => engine.die(),
        "terminate" => engine.terminate(),
        "restart" => {
            if let Err(error) = engine.restart().await {
                return reply(500, &json!({"error": format!("{}: {error}", engine.address())}));
            }
        }
        _ => return reply(404, &json!({"error": "actions are stop, die, terminate and restart"})),
    }
    reply(200, &about(engine))
}

fn about(engine: &Engine) -> Value {
    let gauges = engine.gauges();
    json!({
        "name": engine.config().name,
        "address": engine.address().to_string(),
        "model": engine.config().model,
        "up": engine.is_running(),
        "faults": engine.faults(),
        "requests_running": gauges.running,
        "requests_waiting": gauges.waiting,
        "requests_unfinished": engine.unfinished(),
        "kv_usage": gauges.kv_usage,
        "requests_seen": engine.books().entries().len(),
    })
}
