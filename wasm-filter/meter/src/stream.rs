//! One HTTP stream: refuse it or let it pass, meter its response, and report its end.
//!
//! Every stream that was let through, or that a verdict was given for, has exactly one end, whatever became of it: Envoy
//! runs the log callback for complete, refused, reset and abandoned streams alike.

use std::cell::RefCell;
use std::rc::Rc;

use proto_openai::{Api, BodyKind, Plan, Route, Strip, Tally, Usage, UsageSource, route};
use proto_tokenweir::v1::{self, UsageEvent, usage_event::Event};
use proto_tokenweir::{METADATA_NAMESPACE, METADATA_VERDICT};

use crate::body::{Body, Encoding};
use crate::budget::Share;
use crate::config::Config;
use crate::gaps::Gaps;
use crate::host::{Counter, Host};
use crate::outcome::{Known, reason};
use crate::reporter::Reporter;

/// Longest exchange token that is taken, bytes.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Longest upstream address that is reported, bytes: a socket path may be one.
const ADDRESS_BYTES_MAX: usize = 256;

const NO_VERDICT_STATUS: u32 = 503;
const NO_VERDICT_HEADERS: &[(&str, &str)] = &[("content-type", "application/json"), ("retry-after", "1")];
const NO_VERDICT_BODY: &str = concat!(
    r#"{"error":{"message":"The gateway could not decide where to send this request. Try again.","#,
    r#""type":"service_unavailable","param":null,"code":"no_verdict"}}"#
);

/// Whether a request goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// To the next filter.
    Passed,
    /// Nowhere: it was answered here.
    Answered,
}

/// One HTTP stream, from its request headers to its log entry.
pub struct Stream {
    config: Option<Rc<Config>>,
    reporter: Rc<RefCell<Reporter>>,
    phase: Phase,
    /// As the verdict gave it; empty: none.
    token: String,
    /// By the verdict, or by the path where there is none; `None`: no API that is metered.
    plan: Option<Plan>,
    clock: Clock,
    /// 0: no response yet.
    status: u32,
    local_reply: bool,
    kind: BodyKind,
    body: Option<Body>,
    /// What `body` keeps, in the books of the root context.
    share: Share,
    /// The response was seen to its end.
    whole: bool,
    body_bytes: u64,
    ttft_us: Option<u64>,
    gaps: Gaps,
    progress_number: u32,
    progress_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No request headers were seen: an earlier filter answered, or the client left.
    Unseen,
    Passed,
    Refused,
    Logged,
}

/// The wall clock of one stream, which never runs back.
#[derive(Debug, Default, Clone, Copy)]
struct Clock {
    start_us: u64,
    now_us: u64,
}

impl Clock {
    fn start(host: &dyn Host) -> Clock {
        let now_us = host.now_us();
        Clock { start_us: now_us, now_us }
    }

    fn read(&mut self, host: &dyn Host) {
        self.now_us = self.now_us.max(host.now_us());
        if self.start_us == 0 {
            self.start_us = self.now_us;
        }
    }

    fn elapsed_us(&self) -> u64 {
        self.now_us.saturating_sub(self.start_us)
    }
}

impl Stream {
    /// A stream that reports to `reporter`. Without a configuration it refuses its request.
    #[must_use]
    pub(crate) fn new(config: Option<Rc<Config>>, reporter: Rc<RefCell<Reporter>>, share: Share) -> Stream {
        Stream {
            config,
            reporter,
            phase: Phase::Unseen,
            token: String::new(),
            plan: None,
            clock: Clock::default(),
            status: 0,
            local_reply: false,
            kind: BodyKind::Other,
            body: None,
            share,
            whole: false,
            body_bytes: 0,
            ttft_us: None,
            gaps: Gaps::default(),
            progress_number: 0,
            progress_us: 0,
        }
    }

    /// The request headers: is there a verdict? Nothing is ever written to them.
    pub fn on_request_headers(&mut self, host: &dyn Host) -> Passage {
        host.count(Counter::Requests, 1);
        self.clock = Clock::start(host);
        self.progress_us = self.clock.now_us;
        (self.plan, self.token) = verdict(host);
        let has_verdict = !self.token.is_empty() && self.plan.is_some();
        let is_open = self.config.as_ref().is_some_and(|config| !config.require_verdict);
        if has_verdict || is_open {
            self.plan = self.plan.or_else(|| plan_by_path(host));
            self.phase = Phase::Passed;
            return Passage::Passed;
        }
        self.phase = Phase::Refused;
        host.count(Counter::NoVerdict, 1);
        host.send_local_reply(NO_VERDICT_STATUS, NO_VERDICT_HEADERS, NO_VERDICT_BODY.as_bytes());
        Passage::Answered
    }

    /// The response headers: whose answer is it, and how will its body be read?
    pub fn on_response_headers(&mut self, host: &dyn Host, end_of_stream: bool) {
        self.clock.read(host);
        // All at once: each passage between Envoy and the VM costs more than the few that are not looked at.
        let headers = host.response_headers();
        self.status = header(&headers, ":status").as_deref().and_then(number).unwrap_or(0);
        self.whole = end_of_stream;
        self.local_reply = match host.property(&["response", "code_details"]) {
            Some(details) => details != b"via_upstream",
            None => host.property(&["upstream", "address"]).is_none(),
        };
        let Some(plan) = self.plan.filter(|plan| plan.api.is_metered() && self.phase == Phase::Passed) else {
            return;
        };
        let content_type = header(&headers, "content-type").unwrap_or_default();
        self.kind = std::str::from_utf8(&content_type).map_or(BodyKind::Other, BodyKind::of);
        if self.local_reply || end_of_stream || self.kind == BodyKind::Other {
            return;
        }
        let encoding = Encoding::of(header(&headers, "content-encoding").as_deref());
        let is_to_strip =
            plan.strip != Strip::Nothing && plan.stream && self.status == 200 && self.kind == BodyKind::Sse;
        // Bytes that are held back until the end could not be sent after trailers.
        let is_editable = || encoding == Encoding::Identity && header(&headers, "trailer").is_none();
        let strip = if !is_to_strip {
            Strip::Nothing
        } else if is_editable() {
            if header(&headers, "content-length").is_some() {
                host.remove_response_header("content-length");
            }
            plan.strip
        } else {
            host.count(Counter::Unstripped, 1);
            Strip::Nothing
        };
        self.body = Some(Body::open(Plan { strip, ..plan }, self.kind, encoding));
    }

    /// A chunk of the response body, `size` bytes long.
    pub fn on_response_body(&mut self, host: &dyn Host, size: usize, end_of_stream: bool) {
        self.clock.read(host);
        self.body_bytes = self.body_bytes.saturating_add(size as u64);
        self.whole |= end_of_stream;
        let Some(body) = self.body.as_mut() else { return };
        let mut out = Vec::new();
        let mut edited = false;
        let mut chunk = Vec::new();
        let mut data_events = 0;
        if size > 0 && body.reads() {
            if let Some(bytes) = host.chunk(size) {
                chunk = bytes;
                let pushed = body.push(&chunk, &mut out);
                (edited, data_events) = (pushed.edited, pushed.data_events);
            } else {
                body.lose();
            }
        }
        let mut held = Vec::new();
        if end_of_stream {
            body.finish(&mut held);
        }
        if !self.share.resize(body.kept_bytes()) {
            body.let_go(&mut held);
            self.share.resize(body.kept_bytes());
        }
        if let Some(client) = joined(chunk, edited.then_some(out), held) {
            host.replace_chunk(size, &client);
        }
        self.on_data(host, data_events, size);
    }

    /// Response trailers: the body is at its end, and no byte can be added to it any more.
    pub fn on_response_trailers(&mut self, host: &dyn Host) {
        self.clock.read(host);
        self.whole = true;
        if let Some(body) = self.body.as_mut() {
            body.finish(&mut Vec::new());
            self.share.resize(body.kept_bytes());
        }
    }

    /// The stream is over. Runs once for every stream, whatever way it ended.
    pub fn on_log(&mut self, host: &dyn Host) {
        let phase = std::mem::replace(&mut self.phase, Phase::Logged);
        if phase == Phase::Logged {
            return;
        }
        self.clock.read(host);
        if phase == Phase::Unseen {
            self.token = verdict(host).1;
        }
        let is_metered = phase == Phase::Passed && self.plan.is_some();
        if self.token.is_empty() && !is_metered {
            return;
        }
        let end = self.end(host, phase);
        host.count(Counter::Ends, 1);
        self.report(host, Event::End(end));
    }

    /// First token, gaps and signs of life, for the events that a chunk brought.
    fn on_data(&mut self, host: &dyn Host, data_events: u32, size: usize) {
        let is_stream = self.kind == BodyKind::Sse;
        let is_success = (200..300).contains(&self.status);
        if !is_success {
            return;
        }
        if self.ttft_us.is_none() && (data_events > 0 || (!is_stream && size > 0)) {
            let ttft_us = self.clock.elapsed_us();
            self.ttft_us = Some(ttft_us);
            if is_stream {
                self.report(host, Event::FirstToken(v1::FirstToken { ttft_us }));
            }
        }
        self.gaps.arrive(self.clock.now_us, data_events);
        self.report_progress(host, is_stream);
    }

    fn report_progress(&mut self, host: &dyn Host, is_stream: bool) {
        let Some(progress) = self.config.as_ref().map(|config| config.progress) else { return };
        let since_us = self.clock.now_us.saturating_sub(self.progress_us);
        if !is_stream || self.ttft_us.is_none() || u128::from(since_us) < progress.as_micros() {
            return;
        }
        let Some(tally) = self.body.as_ref().map(Body::tally) else { return };
        self.progress_us = self.clock.now_us;
        self.progress_number = self.progress_number.saturating_add(1);
        let progress = v1::Progress { number: self.progress_number, usage: Some(usage(&tally.usage)) };
        self.report(host, Event::Progress(progress));
    }

    fn end(&self, host: &dyn Host, phase: Phase) -> v1::End {
        let tally = self.body.as_ref().map(Body::tally);
        let flags = integer(host, &["response", "flags"]).unwrap_or(0);
        // Envoy's own word on the status counts: a reply may be sent after the headers passed here.
        let status = integer(host, &["response", "code"])
            .and_then(|code| u32::try_from(code).ok())
            .filter(|code| *code > 0)
            .unwrap_or(self.status);
        let readable = self.body.as_ref().is_some_and(Body::is_readable);
        let known = Known { flags, status, whole: self.whole, readable, tally: tally.as_ref() };
        let local_reply = self.local_reply || phase == Phase::Refused;
        let seen = tally.unwrap_or_default();
        count_tally(host, &seen);
        v1::End {
            usage: Some(usage(&seen.usage)),
            source: source(seen.source).into(),
            reason: reason(known).into(),
            duration_us: self.clock.elapsed_us(),
            ttft_us: self.ttft_us.unwrap_or(0),
            gaps: self.gaps.report(),
            upstream_address: address(host),
            status,
            response_flags: flags,
            body_bytes: self.body_bytes,
            events: seen.events,
            flags: Some(v1::Flags {
                unparsed: seen.unparsed,
                truncated: seen.truncated,
                error_event: seen.error_event,
                local_reply,
                engine_abort: seen.engine_abort,
            }),
        }
    }

    fn report(&self, host: &dyn Host, event: Event) {
        let event = UsageEvent {
            token: self.token.clone(),
            at_unix_ms: self.clock.now_us / 1000,
            event: Some(event),
        };
        match self.reporter.try_borrow_mut() {
            Ok(mut reporter) => reporter.push(host, &event),
            Err(_) => host.count(Counter::QueueDropped, 1),
        }
    }
}

/// What the client gets in the place of `chunk`: what the meter made of it, then what the meter had held back. `None`: the
/// chunk as it is.
fn joined(chunk: Vec<u8>, edited: Option<Vec<u8>>, mut held: Vec<u8>) -> Option<Vec<u8>> {
    if edited.is_none() && held.is_empty() {
        return None;
    }
    let mut client = edited.unwrap_or(chunk);
    client.append(&mut held);
    Some(client)
}

fn count_tally(host: &dyn Host, tally: &Tally) {
    for (counter, by) in [
        (Counter::InputTokens, tally.usage.input.unwrap_or(0)),
        (Counter::OutputTokens, tally.usage.output.unwrap_or(0)),
        (Counter::Unparsed, u64::from(tally.unparsed)),
        (Counter::Truncated, u64::from(tally.truncated)),
    ] {
        if by > 0 {
            host.count(counter, by);
        }
    }
}

/// What the service decided: the plan, and the token, which is opaque but text that can be a token at all.
fn verdict(host: &dyn Host) -> (Option<Plan>, String) {
    let bytes = host.property(&["metadata", "filter_metadata", METADATA_NAMESPACE, METADATA_VERDICT]);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    let Some((plan, token)) = text.split_once(' ') else { return (None, String::new()) };
    let is_token = token.len() <= TOKEN_BYTES_MAX && token.bytes().all(|b| b.is_ascii_graphic());
    (plan.parse().ok(), if is_token { token.to_owned() } else { String::new() })
}

/// The value of a header, as Envoy gives one: several are joined with commas. `None`: it isn't there.
fn header(headers: &[(String, Vec<u8>)], name: &str) -> Option<Vec<u8>> {
    let values: Vec<&[u8]> =
        headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_slice()).collect();
    (!values.is_empty()).then(|| values.join(&b","[..]))
}

/// How to meter a request that nobody gave a verdict for: by its path, and nothing is taken out.
fn plan_by_path(host: &dyn Host) -> Option<Plan> {
    let method = String::from_utf8(host.request_header(":method")?).ok()?;
    let path = String::from_utf8(host.request_header(":path")?).ok()?;
    match route(&method, &path) {
        Route::Body(api) => Some(open_plan(api)),
        Route::StoredResponse(_)
        | Route::Models
        | Route::Model(_)
        | Route::WrongMethod { .. }
        | Route::Unknown => None,
    }
}

fn open_plan(api: Api) -> Plan {
    Plan { api, stream: api.can_stream(), strip: Strip::Nothing }
}

fn address(host: &dyn Host) -> String {
    let bytes = host.property(&["upstream", "address"]).unwrap_or_default();
    let cut = bytes.get(..ADDRESS_BYTES_MAX).unwrap_or(&bytes);
    String::from_utf8_lossy(cut).into_owned()
}

fn integer(host: &dyn Host, path: &[&str]) -> Option<u64> {
    Some(u64::from_le_bytes(host.property(path)?.try_into().ok()?))
}

fn number(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn usage(usage: &Usage) -> v1::Usage {
    v1::Usage {
        input: usage.input,
        cached: usage.cached,
        cache_write: usage.cache_write,
        output: usage.output,
        reasoning: usage.reasoning,
    }
}

fn source(source: UsageSource) -> v1::UsageSource {
    match source {
        UsageSource::None => v1::UsageSource::None,
        UsageSource::Final => v1::UsageSource::Final,
        UsageSource::Cumulative => v1::UsageSource::Cumulative,
        UsageSource::Estimated => v1::UsageSource::Estimated,
    }
}

#[cfg(test)]
mod tests;
