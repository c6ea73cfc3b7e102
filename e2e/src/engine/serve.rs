//! Connections and requests.

use super::State;
use super::books::{Entry, Outcome};
use super::control::{Cache, Fault, Script, Settings};
use super::format::{self, Cached, Piece};
use super::job::{Job, Kind};
use super::pump::{self, Account, Link, Outgoing, Tail};
use super::refusal::Refusal;
use super::store::Fetched;
use super::{hostile, play, text};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Accepts until the other half of `stopped` is dropped.
pub(super) async fn accept(listener: TcpListener, state: Arc<State>, mut stopped: watch::Receiver<()>) {
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
            let reset = Arc::new(AtomicBool::new(false));
            let wire = Wire { stream, reset: Arc::clone(&reset) };
            let service = service_fn(move |request| answer(request, Arc::clone(&state), Arc::clone(&reset)));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(wire), service);
            tokio::select! {
                _ = connection => {}
                _ = ended.changed() => {}
            }
        });
    }
}

/// A socket that can be told to close with a reset.
struct Wire {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Acquire) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
    reset: Arc<AtomicBool>,
) -> Result<Response<Outgoing>, Infallible> {
    let (head, body) = request.into_parts();
    let settings = state.settings().clone();
    let path = head.uri.path().to_owned();
    let account = Account::open(&state, entry(&head.headers, head.method.as_str(), &path));
    let link = Link { account, reset };
    let Ok(body) = body.collect().await else {
        // The upload broke off: nobody reads this answer.
        return Ok(respond(link, Refusal::bad_json(false, 0)));
    };
    let body = body.to_bytes();
    link.account.update(|entry| entry.body_bytes = body.len() as u64);
    let plain = |status: u16, body: String| Refusal { status, body };
    Ok(match (head.method.as_str(), path.as_str()) {
        ("GET", "/v1/models") => respond(link, plain(200, format::models(&settings.models))),
        ("GET", "/health" | "/ping") => respond(link, plain(200, String::new())),
        ("GET", "/metrics") => {
            let running = state.books().count(Outcome::Running);
            let text = format!("vllm:num_requests_running{{engine=\"0\"}} {running}\n");
            respond(link, plain(200, text))
        }
        ("POST", path) if let Some(kind) = Kind::of(path) => {
            post(kind, &head.headers, &body, &state, &settings, link).await
        }
        (method, path) => match path.strip_prefix("/v1/responses/") {
            Some(rest) => kept(method, rest, head.uri.query().unwrap_or_default(), &state, link),
            None => respond(link, Refusal::unknown_path()),
        },
    })
}

fn entry(headers: &HeaderMap, method: &str, path: &str) -> Entry {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let header = |name: &str| headers.get(name).map(text).unwrap_or_default();
    Entry {
        request_id: header("x-request-id"),
        test_id: header("x-test-id"),
        method: method.to_owned(),
        path: path.to_owned(),
        model: String::new(),
        verdict: headers.contains_key("x-tokenweir-pool"),
        headers: headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body_bytes: 0,
        stream: false,
        include_usage: false,
        continuous_usage: false,
        prompt_tokens: 0,
        cached_tokens: 0,
        completion_tokens: 0,
        bytes_out: 0,
        status: 0,
        outcome: Outcome::Running,
    }
}

/// A whole small answer that is not metered: an error, a list.
fn respond(link: Link, answer: Refusal) -> Response<Outgoing> {
    link.account.update(|entry| entry.status = answer.status);
    let outcome = if answer.status < 400 { Outcome::Finished } else { Outcome::Refused };
    let pieces = vec![Piece { bytes: answer.body.into_bytes(), output: 0 }];
    let body = Outgoing::new(pieces, Tail::End, Duration::ZERO, true, link, outcome);
    build(answer.status, "application/json", None, body)
}

fn build(status: u16, content_type: &str, encoding: Option<&str>, body: Outgoing) -> Response<Outgoing> {
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert("server", http::HeaderValue::from_static("uvicorn"));
    if let Ok(value) = content_type.parse() {
        headers.insert("content-type", value);
    }
    if let Some(value) = encoding.and_then(|encoding| encoding.parse().ok()) {
        headers.insert("content-encoding", value);
    }
    response
}

/// Requests for a response that was kept.
fn kept(method: &str, rest: &str, query: &str, state: &State, link: Link) -> Response<Outgoing> {
    let fetched = match (method, rest.strip_suffix("/cancel")) {
        ("POST", Some(id)) => state.store().cancel(id).map(Fetched::Whole),
        ("GET", None) => state.store().fetch(rest, query),
        _ => Err(Refusal::unknown_path()),
    };
    match fetched {
        Ok(Fetched::Whole(body)) => respond(link, Refusal { status: 200, body }),
        Ok(Fetched::Events(pieces)) => {
            link.account.update(|entry| entry.status = 200);
            let body = Outgoing::new(pieces, Tail::End, Duration::ZERO, false, link, Outcome::Finished);
            build(200, "text/event-stream; charset=utf-8", None, body)
        }
        Err(refusal) => respond(link, refusal),
    }
}

async fn post(
    kind: Kind,
    headers: &HeaderMap,
    body: &Bytes,
    state: &Arc<State>,
    settings: &Settings,
    link: Link,
) -> Response<Outgoing> {
    let script = Script::of(settings, headers);
    match script.fault {
        Fault::QueueFull => return respond(link, Refusal::queue_full()),
        Fault::Draining => return respond(link, Refusal::draining(kind.is_anthropic())),
        _ => {}
    }
    if let Some(capture) = script.play.as_deref().and_then(play::load) {
        link.account.update(|entry| entry.status = capture.status);
        let sized = !capture.content_type.starts_with("text/event-stream");
        let mut pieces = capture.pieces();
        if let Some(seed) = script.split {
            pieces = pump::split(pieces, seed);
        }
        let body = Outgoing::new(pieces, Tail::End, script.interval, sized, link, Outcome::Finished);
        return build(capture.status, &capture.content_type, None, body);
    }
    let job = Job::parse(kind, headers, body, settings).and_then(|job| gone_on(job, state));
    let job = match job {
        Ok(job) => job,
        Err(refusal) => return respond(link, refusal),
    };
    let cached = cached(&job, state, settings.cache);
    link.account.update(|entry| {
        entry.model.clone_from(&job.model);
        entry.stream = job.stream;
        entry.include_usage = job.include_usage;
        entry.continuous_usage = job.continuous_usage;
        entry.prompt_tokens = job.prompt_tokens();
        entry.cached_tokens = cached.read;
        entry.status = 200;
    });
    if let Some(seed) = script.hostile {
        let hostile = hostile::answer(&job, seed);
        link.account.update(|entry| entry.status = hostile.status);
        let tail = if hostile.reset { Tail::Reset } else { Tail::End };
        let body = Outgoing::new(hostile.pieces, tail, script.interval, false, link, Outcome::Finished);
        return build(hostile.status, hostile.content_type, hostile.encoding, body);
    }
    if let Some(bytes) = script.unfinished {
        let pieces = vec![hostile::unfinished(bytes)];
        let body = Outgoing::new(pieces, Tail::Silence, script.interval, false, link, Outcome::Finished);
        return build(200, "text/event-stream", None, body);
    }
    if kind == Kind::Responses && job.store && (job.background || job.stream) {
        state.store().keep(&job, cached, script.interval);
    }
    if kind == Kind::Responses && job.background && !job.stream {
        return respond(link, plain_queued(&job));
    }
    if !job.stream {
        pump::generate(job.completion_tokens(), script.interval).await;
        if kind == Kind::Responses && job.store {
            state.store().keep(&job, cached, Duration::ZERO);
        }
        let bytes = format::whole(&job, cached).into_bytes();
        let pieces = vec![Piece { bytes, output: job.completion_tokens() }];
        return finish(pieces, Tail::End, "application/json", true, &script, link);
    }
    let (pieces, tail) = with_fault(&job, cached, script.fault);
    finish(pieces, tail, "text/event-stream; charset=utf-8", false, &script, link)
}

fn plain_queued(job: &Job) -> Refusal {
    Refusal { status: 200, body: format::response_without_output(job, "queued") }
}

/// The job, with the conversation that it goes on from.
fn gone_on(mut job: Job, state: &State) -> Result<Job, Refusal> {
    if job.kind != Kind::Responses {
        return Ok(job);
    }
    if job.background && !job.store {
        return Err(Refusal::no_store());
    }
    if let (Some(previous), Some(prompt)) = (&job.previous, job.prompts.first_mut()) {
        prompt.insert_str(0, &state.store().conversation(previous)?);
    }
    Ok(job)
}

fn finish(
    mut pieces: Vec<Piece>,
    tail: Tail,
    content_type: &str,
    sized: bool,
    script: &Script,
    link: Link,
) -> Response<Outgoing> {
    let mut encoding = None;
    if script.gzip {
        pieces = pump::gzip(pieces);
        encoding = Some("gzip");
    }
    if let Some(seed) = script.split {
        pieces = pump::split(pieces, seed);
    }
    // What isn't streamed was waited for already.
    let interval = if sized { Duration::ZERO } else { script.interval };
    let gate = link.account.gate();
    let body =
        Outgoing::new(pieces, tail, interval, sized, link, Outcome::Finished).gated(script.hold_after, gate);
    build(200, content_type, encoding, body)
}

fn with_fault(job: &Job, cached: Cached, fault: Fault) -> (Vec<Piece>, Tail) {
    let mut pieces = format::stream(job, cached);
    let mut cut = |after: usize| {
        pieces.truncate(after);
        pieces.last().map_or(0, |piece| piece.output)
    };
    match fault {
        Fault::Die { after } => {
            let output = cut(after);
            pieces.push(Piece { bytes: format::death(job.kind), output });
            (pieces, Tail::Dead)
        }
        Fault::Abort { after } if job.kind == Kind::Chat => {
            let output = cut(after);
            pieces.push(Piece { bytes: format::abort(job, cached, output), output });
            (pieces, Tail::End)
        }
        Fault::Reset { after } => {
            cut(after);
            (pieces, Tail::Reset)
        }
        Fault::Stall { after } => {
            cut(after);
            (pieces, Tail::Silence)
        }
        Fault::None | Fault::Abort { .. } | Fault::QueueFull | Fault::Draining => (pieces, Tail::End),
    }
}

/// Prompt tokens that the prefix cache saves. As in vLLM, the last token is always computed.
fn cached(job: &Job, state: &State, mode: Cache) -> Cached {
    let mut cached = Cached::default();
    if matches!(job.kind, Kind::CountTokens | Kind::Tokenize | Kind::Embeddings) {
        return cached;
    }
    let mut known = state.cache();
    for (index, prompt) in job.prompts.iter().enumerate() {
        let full = (text::tokens(prompt) - 1) / text::BLOCK_TOKENS;
        let blocks: Vec<u64> =
            text::blocks(prompt).into_iter().take(usize::try_from(full).unwrap_or(0)).collect();
        let hits = match mode {
            Cache::Off => continue,
            Cache::Blocks => blocks.iter().take_while(|block| known.contains(block)).count(),
            Cache::FromBody => {
                let most = blocks.len() as u64 + 1;
                usize::try_from(text::mix(job.seed, 7) % most).unwrap_or(0)
            }
        };
        known.extend(blocks.iter().copied());
        // vLLM's completions report the first prompt's cache only.
        if job.kind != Kind::Completions || index == 0 {
            cached.read += hits as u64 * text::BLOCK_TOKENS;
            cached.created += (blocks.len() - hits) as u64 * text::BLOCK_TOKENS;
        }
    }
    cached
}
