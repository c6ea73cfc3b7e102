//! Server-sent events of a request as it is being answered, one event for one HTTP chunk, as vLLM sends them.

use crate::api::Load;
use crate::books::End;
use crate::flow::{Death, Progress};
use crate::http::Link;
use crate::scheduler::Finish;
use crate::state::Ticket;
use crate::turn::Turn;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The end of a stream of OpenAI's older APIs.
pub(crate) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// Events to be sent.
#[derive(Default)]
pub(crate) struct Events(VecDeque<Bytes>);

impl Events {
    pub(crate) fn push(&mut self, event: Bytes) {
        self.0.push_back(event);
    }
}

/// An event from its lines.
pub(crate) fn event(mut lines: String) -> Bytes {
    lines.push_str("\n\n");
    Bytes::from(lines)
}

/// The events of one API.
pub(crate) trait Writer: Send {
    /// Before anything is generated.
    fn accepted(&mut self, _turn: &Turn, _events: &mut Events) {}
    /// Some more tokens of a sequence; `finished`: these are its last.
    fn tokens(
        &mut self,
        turn: &Turn,
        sequence: usize,
        tokens: Range<u32>,
        finished: bool,
        events: &mut Events,
    );
    /// All sequences are finished.
    fn end(&mut self, turn: &Turn, progress: &[Progress], events: &mut Events);
    /// The engine died.
    fn died(&mut self, turn: &Turn, death: Death, progress: &[Progress], events: &mut Events);
    /// What is to be kept of a finished answer.
    fn keep(&mut self) -> Option<String> {
        None
    }
}

/// A stream being written.
pub(crate) struct Streaming {
    turn: Turn,
    ticket: Ticket,
    writer: Box<dyn Writer>,
    events: Events,
    known: Vec<Progress>,
    written: Vec<u32>,
    /// Tokens of one event.
    stride: u32,
    /// The connection is reset when a sequence has this many tokens.
    reset_after: Option<u32>,
    ended: bool,
    begun: bool,
    link: Arc<Link>,
    /// The request counts as load until its end.
    load: Option<Load>,
}

impl Streaming {
    pub(crate) fn new(
        turn: Turn,
        ticket: Ticket,
        writer: Box<dyn Writer>,
        reset_after: Option<u32>,
        link: Arc<Link>,
    ) -> Self {
        let written = vec![0; turn.answers.len()];
        let stride = ticket.state.config.event_tokens.max(1);
        Self {
            turn,
            ticket,
            writer,
            events: Events::default(),
            known: Vec::new(),
            written,
            stride,
            reset_after,
            ended: false,
            begun: false,
            link,
            load: None,
        }
    }

    /// Counts it as load.
    pub(crate) fn loaded(mut self, load: Load) -> Self {
        self.load = Some(load);
        self
    }

    /// The next event; none at the end.
    pub(crate) fn poll_event(&mut self, context: &Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if !std::mem::replace(&mut self.begun, true) {
            self.writer.accepted(&self.turn, &mut self.events);
        }
        loop {
            if let Some(event) = self.events.0.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let death = match self.ticket.flow.poll(&mut self.known, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(death) => death,
            };
            self.write();
            if let Some(death) = death {
                self.writer.died(&self.turn, death, &self.known, &mut self.events);
                self.ended = true;
                self.ticket.end(End::Died);
            } else if self.known.iter().all(|one| one.finished) {
                self.finish();
            }
            if self.reset_after.is_some_and(|tokens| self.written.iter().any(|written| *written >= tokens)) {
                self.link.reset();
                self.ticket.end(End::Died);
                return Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into())));
            }
        }
    }

    /// Events of what is new, token by token over all sequences.
    fn write(&mut self) {
        loop {
            let mut any = false;
            for at in 0..self.known.len() {
                let (from, one) = (self.written[at], self.known[at]);
                // The first token is never kept back: its time is what clients wait for.
                let stride = if from == 0 { 1 } else { self.stride };
                let to = one.generated.min(from + stride);
                if to == from || (to - from < stride && !one.finished) {
                    continue;
                }
                let last = one.finished && to == one.generated;
                self.writer.tokens(&self.turn, at, from..to, last, &mut self.events);
                self.written[at] = to;
                any = true;
            }
            if !any {
                return;
            }
        }
    }

    fn finish(&mut self) {
        self.writer.end(&self.turn, &self.known, &mut self.events);
        if let Some(kept) = self.writer.keep() {
            let text = self.turn.answers.first().map(|answer| answer.text(0..answer.tokens));
            self.ticket.state.store().finish(&self.turn, kept, &text.unwrap_or_default());
        }
        self.ended = true;
        self.load = None;
        self.ticket.end(ended(&self.turn));
    }
}

/// How a finished request ended, in the books.
pub(crate) fn ended(turn: &Turn) -> End {
    match turn.answers.first().map(|answer| answer.finish) {
        Some(Finish::Length) => End::Length,
        _ => End::Stop,
    }
}
