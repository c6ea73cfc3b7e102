//! Finishing events that wait for the event after them.
//!
//! vLLM puts `system_fingerprint` on the finishing event of a direct call, but on the usage event
//! when usage was asked for. Where that usage event is taken out, the fingerprint would be lost;
//! so a finishing event waits for its successor, which the engine sends in the same step. If it is
//! the usage event, the fingerprint goes back where a direct call has it. If it is anything else
//! (another choice still generates), the wait is over and the event passes without.

use crate::limits::{HOLD_BYTES_MAX, HOLD_EVENTS_MAX, ROOM_BYTES_MAX};

/// What waits. Empty nearly always.
#[derive(Clone, Debug, Default)]
pub(super) struct Hold {
    bytes: Vec<u8>,
    /// Where in `bytes` a fingerprint would go, ascending.
    slots: Vec<usize>,
    /// The event handed on last was dropped.
    dropped: bool,
}

impl Hold {
    /// Lets `event` wait; `slot` is where in it a fingerprint would go.
    pub(super) fn hold(&mut self, event: &[u8], slot: usize, out: &mut Vec<u8>) {
        self.dropped = false;
        if self.bytes.len() + event.len() > HOLD_BYTES_MAX || self.slots.len() >= HOLD_EVENTS_MAX {
            self.flush(None, out);
            out.extend_from_slice(event);
            return;
        }
        self.slots.push(self.bytes.len() + slot);
        self.bytes.extend_from_slice(event);
    }

    /// Hands `raw` on, behind what waits.
    pub(super) fn pass(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        self.dropped = false;
        if self.bytes.len() + raw.len() > HOLD_BYTES_MAX {
            self.flush(None, out);
        }
        if self.slots.is_empty() { out.extend_from_slice(raw) } else { self.bytes.extend_from_slice(raw) }
    }

    /// Notes that an event was dropped.
    pub(super) const fn drop_event(&mut self) {
        self.dropped = true;
    }

    /// The LF that belongs to the event handed on last.
    pub(super) fn tail(&mut self, out: &mut Vec<u8>) {
        if !self.dropped {
            self.pass(b"\n", out);
        }
    }

    /// Ends the wait, with a fingerprint (a raw JSON value) or without.
    pub(super) fn flush(&mut self, fingerprint: Option<&[u8]>, out: &mut Vec<u8>) {
        let mut at = 0;
        if let Some(fingerprint) = fingerprint {
            for &slot in &self.slots {
                out.extend_from_slice(self.bytes.get(at..slot).unwrap_or_default());
                out.extend_from_slice(b",\"system_fingerprint\":");
                out.extend_from_slice(fingerprint);
                at = slot;
            }
        }
        out.extend_from_slice(self.bytes.get(at..).unwrap_or_default());
        self.bytes.clear();
        self.slots.clear();
        if self.kept_bytes() > ROOM_BYTES_MAX {
            (self.bytes, self.slots) = (Vec::new(), Vec::new());
        }
    }

    /// Bytes of memory that are kept between chunks.
    pub(super) const fn kept_bytes(&self) -> usize {
        self.bytes.capacity() + self.slots.capacity() * size_of::<usize>()
    }

    /// Ends the wait without a fingerprint, and frees the memory.
    pub(super) fn let_go(&mut self, out: &mut Vec<u8>) {
        self.flush(None, out);
        (self.bytes, self.slots) = (Vec::new(), Vec::new());
    }
}
