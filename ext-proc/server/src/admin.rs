//! The operators' HTTP port: alive, ready, metrics, the endpoints, and what was picked lately.
//!
//! It answers GET and HEAD only, changes nothing, and is bounded in connections and in time, so that a stuck scraper
//! takes nothing from the service. It has no access control: `listen.admin` belongs on a private address.

mod readiness;
mod serve;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Response, StatusCode, header};
use axum::routing::get;

use crate::metrics::Metrics;
pub use readiness::{Condition, Readiness};
pub use serve::{CONNECTIONS_MAX, serve};

/// Gives a page as JSON text. It must hold no prompt text.
pub type Page = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// What the port shows.
#[derive(Clone)]
pub struct Admin {
    /// Rendered at `/metrics`.
    pub metrics: Metrics,
    /// Called before each rendering: sets the gauges that hold what is so at the moment.
    pub gauges: Arc<dyn Fn() + Send + Sync>,
    /// Answered at `/readyz`.
    pub readiness: Readiness,
    /// Answered at `/debug/picks`.
    pub picks: Page,
    /// Answered at `/debug/endpoints`.
    pub endpoints: Page,
}

/// The routes of the port.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/debug/picks", get(picks))
        .route("/debug/endpoints", get(endpoints))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(admin)
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

async fn healthz() -> Response<Body> {
    answer(StatusCode::OK, TEXT, "ok\n")
}

async fn readyz(State(admin): State<Admin>) -> Response<Body> {
    let status = if admin.readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(status, JSON, admin.readiness.to_json())
}

async fn metrics(State(admin): State<Admin>) -> Response<Body> {
    (admin.gauges)();
    answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", admin.metrics.render())
}

async fn picks(State(admin): State<Admin>) -> Response<Body> {
    answer(StatusCode::OK, JSON, (admin.picks)())
}

async fn endpoints(State(admin): State<Admin>) -> Response<Body> {
    answer(StatusCode::OK, JSON, (admin.endpoints)())
}

async fn unknown() -> Response<Body> {
    answer(
        StatusCode::NOT_FOUND,
        TEXT,
        "not found; here are /healthz /readyz /metrics /debug/picks /debug/endpoints\n",
    )
}

async fn wrong_method(method: Method) -> Response<Body> {
    let text = format!("{method} is not allowed; use GET\n");
    let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, text);
    response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
    response
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
