//! What the streams of one root context may keep in memory, together.
//!
//! The module's memory is bounded, and running out of it ends the VM with every stream of its worker. How much one stream
//! keeps is up to the engine's events; how many streams there are is up to the clients. So each stream books what it keeps,
//! and lets go where its share ends: the client still gets every byte, but one event passes unread.
//!
//! A share is a fraction of what the other streams leave free. It shrinks as the budget fills, so that streams that keep
//! much let go first, and ordinary ones, which keep half an event of some hundred bytes, hardly ever.

use std::cell::Cell;
use std::rc::Rc;

/// Most bytes that the streams of one root context keep together.
pub(crate) const ROOT_KEPT_BYTES_MAX: usize = 128 * 1024 * 1024;
/// One stream may keep this fraction of what the others leave free.
const SHARE_FRACTION: usize = 16;

/// The books of one root context: bytes kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Budget(Rc<Cell<usize>>);

impl Budget {
    pub(crate) fn share(&self) -> Share {
        Share { kept: 0, budget: self.clone() }
    }

    /// Bytes that all streams keep.
    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        self.0.get()
    }
}

/// What one stream keeps. It goes back to the budget with the stream.
#[derive(Debug)]
pub(crate) struct Share {
    kept: usize,
    budget: Budget,
}

impl Share {
    /// Books that the stream keeps `bytes`, and answers whether it may: it may always keep as much as before.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let others = self.budget.0.get().saturating_sub(self.kept);
        let free = ROOT_KEPT_BYTES_MAX.saturating_sub(others);
        let fits = bytes <= self.kept || bytes <= free / SHARE_FRACTION;
        self.budget.0.set(others.saturating_add(bytes));
        self.kept = bytes;
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let others = self.budget.0.get().saturating_sub(self.kept);
        self.budget.0.set(others);
    }
}
