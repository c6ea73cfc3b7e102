//! Paths: which exist, what they take, and who answers.

mod generate;
mod info;

pub(crate) use crate::stream::Streaming;

use crate::config::{HUGE, MetricsFault, SLOW};
use crate::http::{Busy, NoAnswer, Reply};
use crate::metrics;
use crate::refusal::Refusal;
use crate::state::State;
use crate::turn::Api;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, SERVER, VARY};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Bytes of a request body; more are refused by vLLM too.
const BODY_BYTES_MAX: usize = 32 << 20;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request without its body.
pub(crate) struct Head {
    pub(crate) headers: HeaderMap,
    pub(crate) request_id: Option<String>,
}

/// One call's way to its answer.
pub(crate) struct Call {
    pub(crate) state: Arc<State>,
    pub(crate) head: Head,
    pub(crate) busy: Busy,
}

/// Counts a request as load while it lives.
pub(crate) struct Load(Arc<State>);

impl Drop for Load {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Generate(Api),
    Render(Api),
    CountTokens,
    Tokenize,
    Detokenize,
    Models,
    Load,
    Version,
    Health,
    Metrics,
    GetResponse,
    CancelResponse,
}

/// The route of a path, its pattern, and the part of the path that is no part of the pattern.
fn route<'a>(method: &Method, path: &'a str) -> Option<(Route, &'static str, &'a str)> {
    let (get, post) = (*method == Method::GET, *method == Method::POST);
    let plain = match path {
        "/v1/chat/completions" if post => (Route::Generate(Api::Chat), "/v1/chat/completions"),
        "/v1/completions" if post => (Route::Generate(Api::Completions), "/v1/completions"),
        "/v1/responses" if post => (Route::Generate(Api::Responses), "/v1/responses"),
        "/v1/messages" if post => (Route::Generate(Api::Messages), "/v1/messages"),
        "/v1/messages/count_tokens" if post => (Route::CountTokens, "/v1/messages/count_tokens"),
        "/v1/chat/completions/render" if post => (Route::Render(Api::Chat), "/v1/chat/completions/render"),
        "/v1/completions/render" if post => (Route::Render(Api::Completions), "/v1/completions/render"),
        "/v1/responses/render" if post => (Route::Render(Api::Responses), "/v1/responses/render"),
        "/v1/messages/render" if post => (Route::Render(Api::Messages), "/v1/messages/render"),
        "/tokenize" if post => (Route::Tokenize, "/tokenize"),
        "/detokenize" if post => (Route::Detokenize, "/detokenize"),
        "/v1/models" if get => (Route::Models, "/v1/models"),
        "/load" if get => (Route::Load, "/load"),
        "/version" if get => (Route::Version, "/version"),
        "/health" if get => (Route::Health, "/health"),
        "/ping" if get || post => (Route::Health, "/ping"),
        "/metrics" if get => (Route::Metrics, "/metrics"),
        _ => {
            let rest = path.strip_prefix("/v1/responses/")?;
            return match rest.strip_suffix("/cancel") {
                Some(id) if post => Some((Route::CancelResponse, "/v1/responses/{response_id}/cancel", id)),
                None if get => Some((Route::GetResponse, "/v1/responses/{response_id}", rest)),
                _ => None,
            };
        }
    };
    Some((plain.0, plain.1, ""))
}

/// Answers one request.
pub(crate) async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
    busy: Busy,
) -> Result<Response<Reply>, NoAnswer> {
    let begun = Instant::now();
    let (parts, body) = request.into_parts();
    let text =
        |name: &HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let request_id = text(&REQUEST_ID);
    let in_bytes = text(&CONTENT_LENGTH).and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    let Some((route, pattern, rest)) = route(&parts.method, parts.uri.path()) else {
        let call = Call { state, head: Head { headers: parts.headers, request_id }, busy };
        return Ok(call.json(404, r#"{"detail":"Not Found"}"#.to_owned()));
    };
    let counted = Arc::clone(&state);
    let call = Call { state, head: Head { headers: parts.headers, request_id }, busy };
    let method = if parts.method == Method::POST { "POST" } else { "GET" };
    let response = match route {
        Route::Health => call.health(),
        Route::Metrics => return Ok(call.metrics().await),
        Route::Load => {
            let load = call.state.load.load(Ordering::Relaxed);
            call.json(200, format!(r#"{{"server_load":{load}}}"#))
        }
        Route::Version => call.json(200, r#"{"version":"0.32.0"}"#.to_owned()),
        Route::Models => {
            let models = call.models();
            call.json(200, models)
        }
        Route::GetResponse => {
            let kept = call.state.store().get(rest);
            call.settled(kept, Api::Responses)
        }
        Route::CancelResponse => {
            let kept = call.state.store().cancel(rest);
            call.settled(kept, Api::Responses)
        }
        Route::Generate(_) | Route::Render(_) | Route::CountTokens | Route::Tokenize | Route::Detokenize => {
            call.state.load.fetch_add(1, Ordering::Relaxed);
            let load = Load(Arc::clone(&call.state));
            let body = match Limited::new(body, BODY_BYTES_MAX).collect().await {
                Ok(body) => body.to_bytes(),
                // Too large, or the client went away.
                Err(_) => return Ok(call.refuse(&Refusal::content_type(), Api::Chat)),
            };
            call.with_body(route, body, load).await?
        }
    };
    let watched = !matches!(route, Route::Health | Route::Load | Route::Version);
    if watched {
        let length =
            response.headers().get(CONTENT_LENGTH).and_then(|bytes| bytes.to_str().ok()?.parse().ok());
        let took = begun.elapsed().as_secs_f64();
        let bytes = (in_bytes, length.unwrap_or(0));
        counted.traffic().count(pattern, method, response.status().as_u16(), bytes, took);
    }
    Ok(response)
}

impl Call {
    async fn with_body(self, route: Route, body: Bytes, load: Load) -> Result<Response<Reply>, NoAnswer> {
        let content_type = self.head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        let api = match route {
            Route::Generate(api) | Route::Render(api) => api,
            Route::CountTokens => Api::Messages,
            _ => Api::Chat,
        };
        if !media.eq_ignore_ascii_case("application/json") {
            return Ok(self.refuse(&Refusal::content_type(), api));
        }
        match route {
            Route::Generate(api) => self.generate(api, body, load).await,
            Route::Render(api) => Ok(self.render(api, &body)),
            Route::CountTokens => Ok(self.count_tokens(&body)),
            Route::Tokenize => Ok(self.tokenize(&body)),
            _ => Ok(self.detokenize(&body)),
        }
    }

    /// A response with the headers of every response.
    fn head(&self, status: u16, content_type: Option<&'static str>) -> http::response::Builder {
        let id = match &self.head.request_id {
            Some(id) => HeaderValue::from_str(id).ok(),
            None => HeaderValue::from_str(&(self.state.random() + &self.state.random())).ok(),
        };
        let mut builder =
            Response::builder().status(status).header(SERVER, HeaderValue::from_static("uvicorn"));
        if let Some(content_type) = content_type {
            builder = builder.header(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        builder = builder.header(VARY, HeaderValue::from_static("Origin"));
        match id.filter(|_| self.state.config.request_id_headers) {
            Some(id) => builder.header(REQUEST_ID, id),
            None => builder,
        }
    }

    fn whole(self, builder: http::response::Builder, body: impl Into<Bytes>) -> Response<Reply> {
        let body = body.into();
        let builder = builder.header(CONTENT_LENGTH, body.len());
        let reply = Reply::whole(body, self.busy);
        // Every header was made from valid parts.
        builder.body(reply).unwrap_or_else(|error| panic!("a response of fixed parts: {error}"))
    }

    pub(crate) fn json(self, status: u16, body: String) -> Response<Reply> {
        let builder = self.head(status, Some("application/json"));
        self.whole(builder, body)
    }

    pub(crate) fn refuse(self, refusal: &Refusal, api: Api) -> Response<Reply> {
        let mut builder = self.head(refusal.status, Some("application/json"));
        if let Some(seconds) = refusal.retry_after_s {
            builder = builder.header(http::header::RETRY_AFTER, seconds);
        }
        self.whole(builder, api.refusal(refusal))
    }

    fn settled(self, outcome: Result<String, Refusal>, api: Api) -> Response<Reply> {
        match outcome {
            Ok(json) => self.json(200, json),
            Err(refusal) => self.refuse(&refusal, api),
        }
    }

    pub(crate) fn events(self, streaming: Streaming) -> Response<Reply> {
        let builder = self.head(200, Some("text/event-stream; charset=utf-8"));
        let reply = Reply::stream(streaming, self.busy);
        builder.body(reply).unwrap_or_else(|error| panic!("a response of fixed parts: {error}"))
    }

    fn health(self) -> Response<Reply> {
        let status = if self.state.is_dead() { 503 } else { self.state.faults().health.unwrap_or(200) };
        let builder = self.head(status, None);
        self.whole(builder, Bytes::new())
    }

    async fn metrics(self) -> Response<Reply> {
        const TEXT: &str = "text/plain; version=1.0.0; charset=utf-8";
        let fault = self.state.faults().metrics;
        if fault == MetricsFault::Slow {
            tokio::time::sleep(SLOW).await;
        }
        let (status, kind, body) = match fault {
            MetricsFault::Status500 => {
                (500, "text/plain; charset=utf-8", Bytes::from("Internal Server Error"))
            }
            MetricsFault::Html => {
                (200, "text/html; charset=utf-8", Bytes::from("<html><body><h1>Welcome</h1></body></html>\n"))
            }
            MetricsFault::Frozen => {
                let page =
                    self.state.frozen_page.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
                (200, TEXT, page.unwrap_or_default())
            }
            MetricsFault::Absurd => (200, TEXT, Bytes::from(metrics::absurd(&metrics::page(&self.state)))),
            MetricsFault::Huge => {
                let mut page = metrics::page(&self.state);
                let comment = "# more of nothing, and more of nothing, and more of nothing\n";
                page.push_str(&comment.repeat(HUGE / comment.len() + 1));
                (200, TEXT, Bytes::from(page))
            }
            MetricsFault::None | MetricsFault::Slow => (200, TEXT, Bytes::from(metrics::page(&self.state))),
        };
        let builder = self.head(status, Some(kind));
        self.whole(builder, body)
    }
}
