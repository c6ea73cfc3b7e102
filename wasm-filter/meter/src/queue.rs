//! What waits to be reported, bounded in events and in bytes.
//!
//! When there is no room the least valuable event goes first: a sign of life, then a first token, and an end only when
//! the queue holds nothing but ends. Every drop is counted, and the count travels in each report.

use std::collections::VecDeque;

use prost::Message;
use proto_tokenweir::v1::{UsageEvent, usage_event::Event};

/// Most bytes of waiting events, whatever their number. A VM may hold 1 GiB; this is a small part of it.
pub const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What one waiting event costs beside its own bytes, estimated.
const EVENT_OVERHEAD_BYTES: usize = 64;

/// Waiting events, oldest first. Events are held encoded: one allocation each, and a report is a concatenation.
#[derive(Debug)]
pub struct Queue {
    events_max: usize,
    bytes_max: usize,
    bytes: usize,
    next: u64,
    progress: VecDeque<Waiting>,
    first_tokens: VecDeque<Waiting>,
    ends: VecDeque<Waiting>,
    dropped: u64,
}

#[derive(Debug)]
struct Waiting {
    place: u64,
    encoded: Vec<u8>,
}

impl Waiting {
    fn cost(&self) -> usize {
        self.encoded.len() + EVENT_OVERHEAD_BYTES
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Progress,
    FirstTokens,
    Ends,
}

impl Queue {
    /// An empty queue for at most `events_max` events and [`QUEUE_BYTES_MAX`] bytes.
    #[must_use]
    pub fn new(events_max: usize) -> Queue {
        Queue::with_bytes(events_max, QUEUE_BYTES_MAX)
    }

    fn with_bytes(events_max: usize, bytes_max: usize) -> Queue {
        Queue {
            events_max,
            bytes_max,
            bytes: 0,
            next: 0,
            progress: VecDeque::new(),
            first_tokens: VecDeque::new(),
            ends: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Changes the bound. Events that wait already are kept.
    pub fn set_events_max(&mut self, events_max: usize) {
        self.events_max = events_max;
    }

    /// How many events wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.progress.len() + self.first_tokens.len() + self.ends.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Events dropped since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Counts an event that was lost before it came here.
    pub fn count_lost(&mut self) {
        self.dropped = self.dropped.saturating_add(1);
    }

    /// Takes an event in, at the cost of lesser ones where there is no room. Answers how many events were dropped, the
    /// new one perhaps among them.
    pub fn push(&mut self, event: &UsageEvent) -> u64 {
        let lane = match event.event {
            Some(Event::End(_)) => Lane::Ends,
            Some(Event::FirstToken(_)) => Lane::FirstTokens,
            Some(Event::Progress(_)) | None => Lane::Progress,
        };
        let waiting = Waiting { place: self.next, encoded: event.encode_to_vec() };
        let mut dropped = 0;
        while !self.has_room(waiting.cost()) {
            dropped += 1;
            if !self.evict_below(lane) {
                self.dropped = self.dropped.saturating_add(dropped);
                return dropped;
            }
        }
        self.next += 1;
        self.bytes += waiting.cost();
        self.lane(lane).push_back(waiting);
        self.dropped = self.dropped.saturating_add(dropped);
        dropped
    }

    /// Takes the oldest events out, as the encoded `events` field of a report: at most `events_max` events, and at most
    /// about `bytes_max` bytes, but one event at least. Answers the bytes and the number of events.
    pub fn take(&mut self, events_max: usize, bytes_max: usize) -> (Vec<u8>, usize) {
        let mut field = Vec::new();
        let mut events = 0;
        while events < events_max {
            let Some((lane, size)) = self.oldest() else { break };
            if events > 0 && field.len() + size > bytes_max {
                break;
            }
            let Some(waiting) = self.lane(lane).pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(waiting.cost());
            append_event(&mut field, &waiting.encoded);
            events += 1;
        }
        (field, events)
    }

    fn has_room(&self, cost: usize) -> bool {
        self.len() < self.events_max && self.bytes.saturating_add(cost) <= self.bytes_max
    }

    /// Drops the oldest event that is worth less than those of `lane`, the least one first.
    fn evict_below(&mut self, lane: Lane) -> bool {
        let victim = match lane {
            Lane::Progress => None,
            Lane::FirstTokens => self.progress.pop_front(),
            Lane::Ends => self.progress.pop_front().or_else(|| self.first_tokens.pop_front()),
        };
        match victim {
            Some(waiting) => {
                self.bytes = self.bytes.saturating_sub(waiting.cost());
                true
            }
            None => false,
        }
    }

    fn oldest(&self) -> Option<(Lane, usize)> {
        [(Lane::Progress, &self.progress), (Lane::FirstTokens, &self.first_tokens), (Lane::Ends, &self.ends)]
            .into_iter()
            .filter_map(|(lane, waiting)| waiting.front().map(|w| (w.place, lane, w.encoded.len())))
            .min_by_key(|(place, ..)| *place)
            .map(|(_, lane, size)| (lane, size))
    }

    fn lane(&mut self, lane: Lane) -> &mut VecDeque<Waiting> {
        match lane {
            Lane::Progress => &mut self.progress,
            Lane::FirstTokens => &mut self.first_tokens,
            Lane::Ends => &mut self.ends,
        }
    }
}

/// Field 4 of a `ReportBatch`, length-delimited.
const EVENTS_FIELD_KEY: u8 = (4 << 3) | 2;

fn append_event(field: &mut Vec<u8>, encoded: &[u8]) {
    field.push(EVENTS_FIELD_KEY);
    let mut length = encoded.len();
    while length >= 0x80 {
        field.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(encoded);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_tokenweir::v1::{End, FirstToken, Progress, ReportBatch};

    fn event(token: &str, event: Event) -> UsageEvent {
        UsageEvent { token: token.to_owned(), at_unix_ms: 1, event: Some(event) }
    }

    fn end(token: &str) -> UsageEvent {
        event(token, Event::End(End::default()))
    }

    fn first(token: &str) -> UsageEvent {
        event(token, Event::FirstToken(FirstToken { ttft_us: 1 }))
    }

    fn progress(token: &str) -> UsageEvent {
        event(token, Event::Progress(Progress { number: 1, usage: None }))
    }

    fn tokens(queue: &mut Queue) -> Vec<String> {
        let (field, count) = queue.take(usize::MAX, usize::MAX);
        let batch = ReportBatch::decode(field.as_slice()).unwrap();
        assert_eq!(batch.events.len(), count);
        batch.events.into_iter().map(|e| e.token).collect()
    }

    #[test]
    fn events_leave_in_the_order_in_which_they_came() {
        let mut queue = Queue::new(10);
        for event in [first("a"), progress("b"), end("c"), first("d"), end("e")] {
            assert_eq!(queue.push(&event), 0);
        }
        let (field, count) = queue.take(2, usize::MAX);
        assert_eq!(
            (ReportBatch::decode(field.as_slice()).unwrap().events.len(), count, queue.len()),
            (2, 2, 3)
        );
        assert_eq!(tokens(&mut queue), ["c", "d", "e"]);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn a_long_event_survives_the_encoding() {
        let mut queue = Queue::new(10);
        for length in (100..140).chain(16_300..16_400).chain([70_000]) {
            let long = end(&"t".repeat(length));
            queue.push(&long);
            let (field, _) = queue.take(10, 1);
            assert_eq!(ReportBatch::decode(field.as_slice()).unwrap().events, [long]);
        }
    }

    #[test]
    fn a_report_is_cut_by_bytes_but_never_empty() {
        let mut queue = Queue::new(10);
        for _ in 0..3 {
            queue.push(&end(&"t".repeat(100)));
        }
        assert_eq!(queue.take(10, 1).1, 1);
        assert_eq!(queue.take(10, 250).1, 2);
        assert_eq!(queue.take(10, 250), (Vec::new(), 0));
    }

    #[test]
    fn the_least_event_makes_room() {
        let mut queue = Queue::new(3);
        for event in [first("f1"), progress("p1"), end("e1")] {
            queue.push(&event);
        }
        assert_eq!(queue.push(&progress("p2")), 1, "a sign of life displaces nothing");
        assert_eq!(queue.push(&first("f2")), 1, "a first token displaces a sign of life");
        assert_eq!(queue.push(&end("e2")), 1, "an end displaces the older first token");
        assert_eq!(queue.push(&first("f3")), 1, "a first token displaces no end");
        assert_eq!(queue.push(&end("e3")), 1);
        assert_eq!(queue.push(&end("e4")), 1, "only ends are left: the new one is lost");
        assert_eq!(queue.dropped(), 6);
        assert_eq!(tokens(&mut queue), ["e1", "e2", "e3"]);
        for event in [first("f1"), end("e1"), progress("p1"), end("e2")] {
            queue.push(&event);
        }
        assert_eq!(tokens(&mut queue), ["f1", "e1", "e2"], "a sign of life is worth less than a first token");
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut queue = Queue::with_bytes(1000, 2000);
        for n in 0..100 {
            queue.push(&if n % 2 == 0 { progress(&"p".repeat(200)) } else { end(&"e".repeat(200)) });
            assert!(queue.bytes <= 2000);
        }
        assert_eq!(queue.push(&end(&"x".repeat(3000))), 1 + queue.dropped_by_giant());
        let left = queue.len() as u64;
        assert_eq!(left + queue.dropped(), 101);
        assert!(tokens(&mut queue).iter().all(|t| t.starts_with('e')), "ends outlive signs of life");
    }

    impl Queue {
        /// After a hundred events of both kinds no sign of life is left to make room for a giant.
        fn dropped_by_giant(&self) -> u64 {
            u64::from(!self.progress.is_empty())
        }
    }
}
