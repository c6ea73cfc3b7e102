//! The stream of replies to one exchange: reads Envoy's messages, steps the state machine, performs its effects. It ends
//! with OK only for the state machine's proof; whatever else stops it (a panic, a drain, a lost task) is an error, which
//! Envoy can't take for "let it pass".

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use ext_proc_exchange::{
    Answer, BodyMode, Effect, Event, Finish, Immediate, OkProof, Phase, Reply, StreamError, step,
};
use futures_core::Stream;
use proto_openai::{Api, Route};
use proto_tokenweir::token::ExchangeId;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Status, Streaming};

use super::{Shared, decode, encode};
use crate::metrics::NONE;

/// How the stream ends.
enum End {
    Ok(OkProof),
    Error(Status),
    /// Told already.
    Over,
}

/// One exchange's stream of replies.
pub(crate) struct ExchangeStream {
    inbound: Streaming<ProcessingRequest>,
    shared: Arc<Shared>,
    phase: Phase,
    /// `None` until the first message.
    mode: Option<BodyMode>,
    started: bool,
    /// API label, once it is known; for metrics.
    api: &'static str,
    id: Option<ExchangeId>,
    /// The endpoint that the response's id tells, if it got one from us.
    named_for: Option<SocketAddr>,
    outbox: VecDeque<ProcessingResponse>,
    end: Option<End>,
    /// The service goes away: decided streams end with OK.
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The service is about to be gone: every stream ends now.
    cutting: Pin<Box<WaitForCancellationFutureOwned>>,
    /// When the newest message came.
    received: Instant,
    _slot: super::Slot,
}

impl ExchangeStream {
    pub(super) fn new(inbound: Streaming<ProcessingRequest>, shared: Arc<Shared>, slot: super::Slot) -> Self {
        Self {
            closing: Box::pin(shared.drain.closing.clone().cancelled_owned()),
            cutting: Box::pin(shared.drain.cutting.clone().cancelled_owned()),
            inbound,
            shared,
            phase: Phase::new(None),
            mode: None,
            started: false,
            api: NONE,
            id: None,
            named_for: None,
            outbox: VecDeque::new(),
            end: None,
            received: Instant::now(),
            _slot: slot,
        }
    }

    fn message(&mut self, message: ProcessingRequest) {
        self.received = Instant::now();
        if !self.started {
            self.started = true;
            self.mode = decode::body_mode(message.protocol_config.as_ref());
            self.phase = Phase::new(self.mode);
        }
        match decode::event(message, &self.shared.tenant_header) {
            Some(event) => {
                if let Event::RequestHeaders(head) = &event {
                    self.api = match proto_openai::route(&head.method, &head.path) {
                        Route::Body(api) => api.as_label(),
                        Route::StoredResponse(_) => Api::StoredResponse.as_label(),
                        _ => self.api,
                    };
                }
                self.take(event);
            }
            None => self.finish(Finish::Error(StreamError::OutOfOrder)),
        }
    }

    /// Steps on one event, and on every answer that it leads to.
    fn take(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            #[cfg(feature = "faults")]
            crate::faults::strike(self.phase.as_label());
            let phase = std::mem::replace(&mut self.phase, Phase::Done);
            let (phase, effects) = step(phase, event, &self.shared.rules);
            self.phase = phase;
            for effect in effects {
                next = self.perform(effect).or(next);
            }
        }
    }

    fn perform(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Ask(inquiry) => {
                let (answer, id) = self.shared.dispatcher.answer(&inquiry);
                self.id = id;
                if let Answer::Granted(grant) = &answer
                    && grant.response_id.is_some()
                {
                    self.named_for = grant.endpoints.first().copied();
                }
                return Some(Event::Answer(answer));
            }
            Effect::Reply(reply) => {
                self.observe(&reply);
                self.outbox.extend(encode::messages(reply, self.mode.unwrap_or(BodyMode::Buffered)));
            }
            Effect::Served(head) => {
                if let Some(id) = self.id {
                    self.shared.dispatcher.served(id, head);
                    if let (Some(picked), Some(served), 200..300) =
                        (self.named_for, head.upstream, head.status)
                    {
                        self.shared.dispatcher.stored.served(id, picked, served);
                    }
                }
            }
            Effect::Abandoned => {
                if let Some(id) = self.id {
                    self.shared.dispatcher.abandoned(id);
                }
            }
            Effect::Ended => self.ended(),
            Effect::Finish(finish) => self.finish(finish),
        }
        None
    }

    fn observe(&self, reply: &Reply) {
        match reply {
            Reply::Verdict(verdict) => {
                self.shared.metrics.verdict(self.received.elapsed());
                self.shared.metrics.request_body(verdict.plan().api.as_label(), verdict.body().len());
            }
            Reply::Immediate(Immediate { label, .. }) => self.shared.metrics.rejected(label, self.api),
            Reply::Proceed | Reply::Trailers | Reply::ResponseHeaders => {}
        }
    }

    fn ended(&self) {
        let Some(id) = self.id else { return };
        let shared = Arc::clone(&self.shared);
        // The stream is gone by now; its record must not be.
        self.shared.tasks.spawn(async move { shared.close_held(id).await });
    }

    fn finish(&mut self, finish: Finish) {
        self.end = Some(match finish {
            Finish::Ok(proof) => End::Ok(proof),
            Finish::Error(error) => {
                self.shared.metrics.rejected(error.as_label(), self.api);
                End::Error(match error {
                    StreamError::OutOfOrder => Status::invalid_argument("message out of order"),
                    StreamError::Gone => Status::cancelled("the stream ended before its verdict"),
                })
            }
        });
    }

    /// The drain has come: a decided stream ends with OK, for whose verdict the state machine vouches.
    fn close(&mut self) {
        if self.phase.is_decided() && self.end.is_none() {
            self.take(Event::Closed);
        }
    }

    fn cut(&mut self) {
        if self.end.is_none() {
            self.shared.metrics.rejected("drained", self.api);
            self.end = Some(End::Error(Status::unavailable("the service is going away")));
        }
    }

    /// Polls what can move the exchange on. True: something did.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> bool {
        if self.phase.is_decided() && self.closing.as_mut().poll_once(cx) {
            self.close();
            return true;
        }
        if self.cutting.as_mut().poll_once(cx) {
            self.cut();
            return true;
        }
        match Pin::new(&mut self.inbound).poll_next(cx) {
            Poll::Ready(Some(Ok(message))) => self.message(message),
            // Envoy reset the stream or ended it: the same to us.
            Poll::Ready(Some(Err(_)) | None) => self.take(Event::Closed),
            Poll::Pending => return false,
        }
        true
    }
}

trait PollOnce {
    fn poll_once(self, cx: &mut Context<'_>) -> bool;
}

impl PollOnce for Pin<&mut WaitForCancellationFutureOwned> {
    fn poll_once(self, cx: &mut Context<'_>) -> bool {
        self.poll(cx).is_ready()
    }
}

impl Stream for ExchangeStream {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(message) = this.outbox.pop_front() {
                return Poll::Ready(Some(Ok(message)));
            }
            match this.end.replace(End::Over) {
                Some(End::Ok(OkProof { .. }) | End::Over) => return Poll::Ready(None),
                Some(End::Error(status)) => return Poll::Ready(Some(Err(status))),
                None => this.end = None,
            }
            match catch_unwind(AssertUnwindSafe(|| this.poll_event(cx))) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(_) => {
                    // Counted and logged by the panic hook.
                    this.outbox.clear();
                    if let Some(id) = this.id {
                        this.shared.dispatcher.abandoned(id);
                    }
                    this.end = Some(End::Error(Status::internal("the service failed")));
                }
            }
        }
    }
}

impl Drop for ExchangeStream {
    fn drop(&mut self) {
        // Envoy dropped the stream. If that was the exchange's end as well, its record must learn of it.
        if self.end.is_none() {
            self.take(Event::Closed);
        }
    }
}
