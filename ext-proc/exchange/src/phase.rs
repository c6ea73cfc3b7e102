//! The phases of an exchange, one type each, and the step from one to the next.

mod stored;

use ext_proc_pick::Prefix;
use proto_openai::limits::RESPONSE_ID_BYTES_MAX;
use proto_openai::{Api, BodyError, Dialect, Edits, FirstMember, Plan, Request, Route, Strip, UsageWish};

use self::stored::AwaitStored;

use crate::event::{
    Answer, BodyMode, Denial, Effect, Event, Finish, Grant, Inquiry, RequestHead, ResponseHead, StreamError,
};
use crate::prompt;
use crate::reject::{Immediate, RejectReason};
use crate::rules::{ModelRule, Rules, UsageMode};
use crate::verdict::{Reply, Verdict};

/// Proof that a stream may end with status OK: its verdict, or its immediate response, was made. Only this module can
/// make one.
#[derive(Debug, PartialEq, Eq)]
pub struct OkProof(());

/// Where an exchange stands.
#[derive(Debug)]
pub enum Phase {
    /// Nothing has come yet.
    AwaitHeaders(AwaitHeaders),
    /// The headers were good; the body is to come.
    AwaitBody(Box<AwaitBody>),
    /// The headers name a stored response; a body that says nothing is to come.
    AwaitStored(Box<AwaitStored>),
    /// The body was good; a decision is awaited.
    AwaitAnswer(Box<AwaitAnswer>),
    /// The verdict was given; the response is to come.
    AwaitResponse(AwaitResponse),
    /// The response runs and the stream is held until it ends.
    Held,
    /// The stream may end; nothing more is expected.
    Done,
}

impl Phase {
    /// The first phase.
    #[must_use]
    pub fn new(mode: Option<BodyMode>) -> Self {
        Self::AwaitHeaders(AwaitHeaders { mode })
    }

    /// Stable label.
    #[must_use]
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::AwaitHeaders(_) => "await_headers",
            Self::AwaitBody(_) => "await_body",
            Self::AwaitStored(_) => "await_stored",
            Self::AwaitAnswer(_) => "await_answer",
            Self::AwaitResponse(_) => "await_response",
            Self::Held => "held",
            Self::Done => "done",
        }
    }

    /// Whether the verdict has been given, or the request answered here.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        matches!(self, Self::AwaitResponse(_) | Self::Held | Self::Done)
    }
}

/// See [`Phase::AwaitHeaders`].
#[derive(Debug)]
pub struct AwaitHeaders {
    /// `None`: Envoy is set to a mode that can't work.
    mode: Option<BodyMode>,
}

/// See [`Phase::AwaitBody`].
#[derive(Debug)]
pub struct AwaitBody {
    mode: BodyMode,
    api: Api,
    tenant: String,
    head: RequestHead,
    body: Vec<u8>,
}

/// See [`Phase::AwaitAnswer`].
#[derive(Debug)]
pub struct AwaitAnswer {
    api: Api,
    pool: String,
    plan: Plan,
    edits: Option<Edits>,
    /// Where the response's id goes, if the engine takes it from us.
    named_at: Option<FirstMember>,
    /// The stored response that decides where the request goes.
    stored: Option<String>,
    head: RequestHead,
    body: Vec<u8>,
    trailers: bool,
}

/// See [`Phase::AwaitResponse`].
#[derive(Debug)]
pub struct AwaitResponse(());

type Step = (Phase, Vec<Effect>);

/// Takes one event; says where the exchange stands then, and what to do, in order.
#[must_use]
pub fn step(phase: Phase, event: Event, rules: &Rules) -> Step {
    match (phase, event) {
        (Phase::AwaitHeaders(phase), Event::RequestHeaders(head)) => phase.headers(head, rules),
        (Phase::AwaitBody(phase), Event::RequestBody { chunk, end }) => phase.body(chunk, end, rules),
        (Phase::AwaitBody(phase), Event::RequestTrailers) => phase.whole(true, rules),
        (Phase::AwaitStored(phase), Event::RequestBody { chunk, end }) => phase.body(chunk, end, rules),
        (Phase::AwaitStored(phase), Event::RequestTrailers) => phase.trailers(),
        (Phase::AwaitAnswer(phase), Event::Answer(answer)) => phase.answer(answer, rules),
        (Phase::AwaitResponse(_), Event::ResponseHeaders(head)) => respond(head, rules),
        // Trailers come after the verdict in buffered mode.
        (phase @ Phase::AwaitResponse(_), Event::RequestTrailers) => {
            (phase, vec![Effect::Reply(Reply::Trailers)])
        }
        // Envoy repeats the last chunk of large bodies in full-duplex mode; all of it was taken before.
        (
            phase @ (Phase::AwaitAnswer(_) | Phase::AwaitResponse(_) | Phase::Held),
            Event::RequestBody { .. },
        ) => (phase, Vec::new()),
        (Phase::AwaitResponse(_), Event::Closed) => (Phase::Done, vec![Effect::Abandoned, finish_ok()]),
        (Phase::Held, Event::Closed) => (Phase::Done, vec![Effect::Ended, finish_ok()]),
        (Phase::Done, _) => (Phase::Done, Vec::new()),
        (_, Event::Closed) => fail(StreamError::Gone),
        _ => fail(StreamError::OutOfOrder),
    }
}

fn finish_ok() -> Effect {
    Effect::Finish(Finish::Ok(OkProof(())))
}

fn fail(error: StreamError) -> Step {
    (Phase::Done, vec![Effect::Finish(Finish::Error(error))])
}

fn immediate(response: Immediate) -> Step {
    (Phase::Done, vec![Effect::Reply(Reply::Immediate(response)), finish_ok()])
}

fn reject(reason: &RejectReason, dialect: Dialect, rules: &Rules) -> Step {
    immediate(Immediate::reject(reason, dialect, rules))
}

fn respond(head: ResponseHead, rules: &Rules) -> Step {
    let mut effects = vec![Effect::Served(head), Effect::Reply(Reply::ResponseHeaders)];
    if rules.hold_stream {
        return (Phase::Held, effects);
    }
    effects.push(finish_ok());
    (Phase::Done, effects)
}

impl AwaitHeaders {
    fn headers(self, head: RequestHead, rules: &Rules) -> Step {
        let api = match proto_openai::route(&head.method, &head.path) {
            Route::Body(api) => api,
            Route::StoredResponse(id) => {
                let id = id.to_owned();
                return self.stored(id, head, rules);
            }
            Route::Models => return immediate(Immediate::models(list_dialect(&head), rules)),
            Route::Model(name) => {
                let dialect = list_dialect(&head);
                return match Immediate::model(name, dialect, rules) {
                    Some(response) => immediate(response),
                    None => reject(&RejectReason::UnknownModel(name.to_owned()), dialect, rules),
                };
            }
            Route::WrongMethod { allow } => {
                let dialect = proto_openai::dialect_of(&head.path);
                return reject(&RejectReason::WrongMethod(allow), dialect, rules);
            }
            Route::Unknown => {
                let dialect = proto_openai::dialect_of(&head.path);
                return reject(&RejectReason::UnknownPath, dialect, rules);
            }
        };
        let dialect = api.dialect();
        match self.accept(&head, rules) {
            Err(reason) => reject(&reason, dialect, rules),
            Ok((mode, tenant)) => {
                let effects = match mode {
                    BodyMode::Buffered => vec![Effect::Reply(Reply::Proceed)],
                    // The reply to the headers carries the verdict, so it waits for the body.
                    BodyMode::FullDuplex => Vec::new(),
                };
                (Phase::AwaitBody(Box::new(AwaitBody { mode, api, tenant, head, body: Vec::new() })), effects)
            }
        }
    }

    fn accept(&self, head: &RequestHead, rules: &Rules) -> Result<(BodyMode, String), RejectReason> {
        let mode = self.mode.ok_or(RejectReason::BodyMode)?;
        let tenant = rules.tenant.tenant(&head.tenant)?;
        if head.end {
            return Err(RejectReason::EmptyBody);
        }
        if !head.content_type.as_deref().is_some_and(is_json) {
            return Err(RejectReason::ContentType);
        }
        if head.content_encoding.is_some() {
            return Err(RejectReason::ContentEncoding);
        }
        if head.content_length.is_some_and(|length| length > rules.body_bytes_max as u64) {
            return Err(RejectReason::TooLarge(rules.body_bytes_max));
        }
        Ok((mode, tenant))
    }
}

fn list_dialect(head: &RequestHead) -> Dialect {
    if head.anthropic { Dialect::Anthropic } else { Dialect::OpenAi }
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

impl AwaitBody {
    fn body(mut self, chunk: Vec<u8>, end: bool, rules: &Rules) -> Step {
        if self.body.len().saturating_add(chunk.len()) > rules.body_bytes_max {
            return reject(&RejectReason::TooLarge(rules.body_bytes_max), self.api.dialect(), rules);
        }
        if self.body.is_empty() {
            self.body = chunk;
        } else {
            self.body.extend_from_slice(&chunk);
        }
        // Buffered: one message is the whole body, whether or not trailers follow.
        if end || self.mode == BodyMode::Buffered {
            return self.whole(false, rules);
        }
        (Phase::AwaitBody(Box::new(self)), Vec::new())
    }

    fn whole(self, trailers: bool, rules: &Rules) -> Step {
        let dialect = self.api.dialect();
        match self.read(trailers, rules) {
            Ok((phase, inquiry)) => (Phase::AwaitAnswer(Box::new(phase)), vec![Effect::Ask(inquiry)]),
            Err(reason) => reject(&reason, dialect, rules),
        }
    }

    fn read(self, trailers: bool, rules: &Rules) -> Result<(AwaitAnswer, Inquiry), RejectReason> {
        if self.body.is_empty() {
            return Err(RejectReason::EmptyBody);
        }
        let request = proto_openai::scan(self.api, &self.body).map_err(RejectReason::Body)?;
        let model = request.model.decode().into_owned();
        let Some(rule) = rules.models.get(&model) else {
            return Err(RejectReason::UnknownModel(model));
        };
        let metered_stream = request.stream && self.api.takes_stream_options();
        let edits = match rule.usage {
            UsageMode::Inject { continuous } if metered_stream => request.inject_usage(continuous),
            UsageMode::Inject { .. } | UsageMode::Forced => None,
        };
        let strip = match (metered_stream, request.usage_wish) {
            (true, UsageWish::None) => Strip::All,
            (true, UsageWish::Final) if rule.usage.is_continuous() => Strip::Continuous,
            _ => Strip::Nothing,
        };
        // Where nothing is generated, little of a cache is used or left behind.
        let prefix = if rule.prefix && self.api.can_stream() {
            prompt::prefix(&model, &request, &self.body)
        } else {
            Prefix::default()
        };
        let stored = self.previous(&request, rule)?;
        let named = rule.keeps_responses && self.api == Api::Responses;
        let inquiry = Inquiry {
            api: self.api,
            model,
            pool: rule.pool.clone(),
            tenant: self.tenant,
            stream: request.stream,
            request_id: self.head.request_id.clone(),
            prefix,
            prompt_bytes: request.prompt.text_bytes,
            prompt_token_ids: request.prompt.token_ids,
            output_tokens_max: prompt::output_tokens_max(&request),
            stored: stored.clone(),
            names_response: named,
            background: request.background,
        };
        let plan = Plan { api: self.api, stream: request.stream, strip };
        let pool = rule.pool.clone();
        let phase = AwaitAnswer {
            api: self.api,
            pool,
            plan,
            edits,
            named_at: named.then(|| request.first_member()),
            stored,
            head: self.head,
            body: self.body,
            trailers,
        };
        Ok((phase, inquiry))
    }

    /// The stored response that the request goes on from, if an engine keeps it rather than a provider.
    fn previous(&self, request: &Request<'_>, rule: &ModelRule) -> Result<Option<String>, RejectReason> {
        if self.api != Api::Responses {
            return Ok(None);
        }
        if !rule.keeps_responses {
            // What a provider generates after its answer is paid for, and nobody would know for whom.
            return if request.background { Err(RejectReason::Body(background_refused())) } else { Ok(None) };
        }
        let Some(id) = &request.session.previous_response_id else { return Ok(None) };
        let id = id.decode();
        if id.len() > RESPONSE_ID_BYTES_MAX {
            return Err(RejectReason::UnknownResponse(id.into_owned()));
        }
        Ok(Some(id.into_owned()))
    }
}

fn background_refused() -> BodyError {
    BodyError {
        message: "`background` must be false or absent for this model: what its provider generates after the answer \
                  can't be counted. Use `stream` for a long response."
            .into(),
        param: Some("background"),
    }
}

impl AwaitAnswer {
    fn answer(self, answer: Answer, rules: &Rules) -> Step {
        let dialect = self.api.dialect();
        match answer {
            Answer::Granted(grant) => {
                let verdict = self.verdict(grant);
                let effects = vec![Effect::Reply(Reply::Verdict(verdict))];
                (Phase::AwaitResponse(AwaitResponse(())), effects)
            }
            Answer::Denied(Denial::NoneReady) if self.stored.is_some() => {
                reject(&RejectReason::ResponseAway, dialect, rules)
            }
            Answer::Denied(Denial::NoneReady) => reject(&RejectReason::NoneReady(self.pool), dialect, rules),
            Answer::Denied(Denial::NoneServes) => {
                reject(&RejectReason::NoneServes(self.pool), dialect, rules)
            }
            Answer::Denied(Denial::Gone) => {
                let id = self.stored.unwrap_or_default();
                reject(&RejectReason::UnknownResponse(id), dialect, rules)
            }
            Answer::Denied(Denial::Full) => reject(&RejectReason::Full, dialect, rules),
        }
    }

    fn verdict(self, grant: Grant) -> Verdict {
        let named = self.named_at.zip(grant.response_id).map(|(first, id)| first.name_response(&id));
        let edits = match (self.edits, named) {
            (Some(edits), Some(named)) => Some(edits.merge(named)),
            (edits, named) => edits.or(named),
        };
        let edited = edits.is_some();
        let body = match &edits {
            Some(edits) => edits.apply(&self.body),
            None => self.body,
        };
        Verdict {
            pool: grant.pool,
            endpoints: grant.endpoints,
            token: grant.token,
            plan: self.plan,
            remove: self.head.remove,
            body,
            edited,
            had_length: self.head.content_length.is_some(),
            trailers: self.trailers,
            bodiless: self.head.end,
        }
    }
}

#[cfg(test)]
mod tests;
