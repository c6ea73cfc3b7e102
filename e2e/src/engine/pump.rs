//! Sends an answer piece by piece, in its own time and with its own accidents, and books what was handed over.

use super::State;
use super::books::{Entry, Outcome};
use super::format::Piece;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// What follows the last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The proper end.
    End,
    /// The proper end of a broken answer: the engine died.
    Dead,
    /// A reset of the connection.
    Reset,
    /// Silence.
    Silence,
}

/// The entry of one request. When it goes before the answer has ended, the peer has gone.
#[derive(Debug)]
pub struct Account {
    state: Arc<State>,
    index: usize,
    closed: bool,
}

impl Account {
    pub fn open(state: &Arc<State>, entry: Entry) -> Self {
        let index = state.books().open(entry);
        Self { state: Arc::clone(state), index, closed: false }
    }

    pub fn update(&self, change: impl FnOnce(&mut Entry)) {
        self.state.books().update(self.index, change);
    }

    pub fn gate(&self) -> watch::Receiver<bool> {
        self.state.gate()
    }

    pub fn close(&mut self, outcome: Outcome) {
        self.closed = true;
        self.update(|entry| entry.outcome = outcome);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if !self.closed {
            self.close(Outcome::Aborted);
        }
    }
}

/// Where an answer goes: its entry in the books, and the switch that makes its socket reset on closing.
#[derive(Debug)]
pub struct Link {
    pub account: Account,
    pub reset: Arc<AtomicBool>,
}

type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A response body.
pub struct Outgoing {
    pieces: VecDeque<Piece>,
    tail: Tail,
    interval: Duration,
    pause: Option<Pause>,
    /// Before the piece that leaves this many, wait until the engine is released.
    gate: Option<(usize, watch::Receiver<bool>)>,
    length: Option<u64>,
    link: Link,
    /// How the books say it ended, if it ends as planned.
    outcome: Outcome,
}

impl Outgoing {
    /// A body of these pieces. `sized`: with a content length instead of chunks.
    pub fn new(
        pieces: Vec<Piece>,
        tail: Tail,
        interval: Duration,
        sized: bool,
        link: Link,
        outcome: Outcome,
    ) -> Self {
        let length = sized.then(|| pieces.iter().map(|piece| piece.bytes.len() as u64).sum());
        let mut body =
            Self { pieces: pieces.into(), tail, interval, pause: None, gate: None, length, link, outcome };
        if body.pieces.is_empty() && tail == Tail::End {
            body.link.account.close(outcome);
        }
        body
    }

    /// Holds the answer after `events` pieces until `gate` says true.
    #[must_use]
    pub fn gated(mut self, events: Option<usize>, gate: watch::Receiver<bool>) -> Self {
        self.gate = events.map(|events| (self.pieces.len().saturating_sub(events), gate));
        self
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if let Some(pause) = this.pause.as_mut() {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        if let Some((_, gate)) = this.gate.as_mut().filter(|(left, _)| *left == this.pieces.len()) {
            let mut gate = gate.clone();
            this.gate = None;
            // A dropped engine releases too.
            let mut wait: Pause = Box::pin(async move { drop(gate.wait_for(|open| *open).await) });
            if wait.as_mut().poll(cx).is_pending() {
                this.pause = Some(wait);
                return Poll::Pending;
            }
        }
        let Some(piece) = this.pieces.pop_front() else {
            return match this.tail {
                Tail::End => Poll::Ready(None),
                Tail::Dead => {
                    this.link.account.close(Outcome::Died);
                    Poll::Ready(None)
                }
                Tail::Reset => {
                    this.link.account.close(Outcome::Died);
                    this.link.reset.store(true, Ordering::Release);
                    Poll::Ready(Some(Err(io::Error::other("reset on purpose"))))
                }
                // The peer's leaving drops this body.
                Tail::Silence => Poll::Pending,
            };
        };
        this.link.account.update(|entry| {
            entry.completion_tokens = piece.output;
            entry.bytes_out += piece.bytes.len() as u64;
        });
        if this.pieces.is_empty() && this.tail == Tail::End {
            this.link.account.close(this.outcome);
        }
        if !this.interval.is_zero() {
            this.pause = Some(Box::pin(sleep_until(Instant::now() + this.interval)));
        }
        Poll::Ready(Some(Ok(Frame::data(piece.bytes.into()))))
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Waits as long as generating `tokens` tokens takes.
pub async fn generate(tokens: u64, interval: Duration) {
    let times = u32::try_from(tokens).unwrap_or(u32::MAX);
    let time = interval.saturating_mul(times);
    if !time.is_zero() {
        sleep(time).await;
    }
}

/// The same bytes, cut at other places.
#[must_use]
pub fn split(pieces: Vec<Piece>, seed: u64) -> Vec<Piece> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = Vec::new();
    // Where each piece ended, and the tokens that were out by then.
    let mut ends = VecDeque::new();
    for piece in pieces {
        bytes.extend_from_slice(&piece.bytes);
        ends.push_back((bytes.len(), piece.output));
    }
    let (mut out, mut from, mut output) = (Vec::new(), 0, 0);
    while from < bytes.len() {
        let length = if random.u8(..8) == 0 { 1 } else { random.usize(1..400) };
        let to = (from + length).min(bytes.len());
        while let Some((_, tokens)) = ends.pop_front_if(|(end, _)| *end <= to) {
            output = tokens;
        }
        out.push(Piece { bytes: bytes[from..to].to_vec(), output });
        from = to;
    }
    out
}

/// The same bytes as one gzip stream, flushed after every piece.
#[must_use]
pub fn gzip(pieces: Vec<Piece>) -> Vec<Piece> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut out = Vec::new();
    for piece in pieces {
        // Writing to memory does not fail.
        let _ = encoder.write_all(&piece.bytes).and_then(|()| encoder.flush());
        out.push(Piece { bytes: std::mem::take(encoder.get_mut()), output: piece.output });
    }
    let output = out.last().map_or(0, |piece| piece.output);
    out.push(Piece { bytes: encoder.finish().unwrap_or_default(), output });
    out
}
