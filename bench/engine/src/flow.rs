//! How far the sequences of one request are: written by the scheduler's side, awaited by the connection's.
//!
//! Only counts are passed on. The text of a token is a function of its index, so the writer makes it when it writes.

use crate::scheduler::{Output, Timing};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What became of the engine under a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// The engine core failed: an error, then the end.
    Failed,
    /// The server was told to end at once: what there is, then the end.
    Ended,
}

/// How far one sequence is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) generated: u32,
    pub(crate) finished: bool,
    pub(crate) cached: u32,
    pub(crate) timing: Timing,
}

#[derive(Debug, Default)]
struct Inner {
    sequences: Vec<Progress>,
    death: Option<Death>,
    waker: Option<Waker>,
}

/// The sequences of one request.
#[derive(Debug, Default)]
pub(crate) struct Flow(Mutex<Inner>);

impl Flow {
    pub(crate) fn new(sequences: usize) -> Arc<Self> {
        let inner = Inner { sequences: vec![Progress::default(); sequences], ..Inner::default() };
        Arc::new(Self(Mutex::new(inner)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something new; whether anybody waited for it is no matter.
    pub(crate) fn tell(&self, sequence: usize, output: &Output) {
        let mut inner = self.lock();
        if let Some(progress) = inner.sequences.get_mut(sequence) {
            *progress = Progress {
                generated: output.generated,
                finished: output.finished,
                cached: output.cached,
                timing: output.timing,
            };
        }
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn kill(&self, death: Death) {
        let mut inner = self.lock();
        inner.death.get_or_insert(death);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Copies how far all are; ready where that is further than `known`, or the engine died.
    pub(crate) fn poll(&self, known: &mut Vec<Progress>, context: &Context<'_>) -> Poll<Option<Death>> {
        let mut inner = self.lock();
        let further = known.len() != inner.sequences.len()
            || known.iter().zip(&inner.sequences).any(|(old, new)| old.generated != new.generated);
        if further {
            known.clone_from(&inner.sequences);
        }
        let any = known.iter().any(|progress| progress.generated > 0);
        if further && any || inner.death.is_some() {
            return Poll::Ready(inner.death);
        }
        inner.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// How far all are.
    pub(crate) fn now(&self) -> Vec<Progress> {
        self.lock().sequences.clone()
    }

    /// Waits until all are finished, or the engine died.
    pub(crate) async fn finished(&self) -> (Vec<Progress>, Option<Death>) {
        let mut known = Vec::new();
        std::future::poll_fn(|context| {
            loop {
                match self.poll(&mut known, context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(death)) => return Poll::Ready(Some(death)),
                    Poll::Ready(None) if known.iter().all(|progress| progress.finished) => {
                        return Poll::Ready(None);
                    }
                    Poll::Ready(None) => {}
                }
            }
        })
        .await
        .map_or_else(|| (self.now(), None), |death| (self.now(), Some(death)))
    }
}
