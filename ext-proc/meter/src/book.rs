//! The book of open exchanges: (state, event, now) → effects. Idempotent by (exchange, event).

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use proto_tokenweir::token::ExchangeId;
use proto_tokenweir::v1::{self, ExchangeToken, usage_event};

use crate::closed::{CLOSED_MAX, Closed};
use crate::record::{End, REVISION_LEASE, REVISION_REPORT, Record, Source, UsageRecord};

/// How long an exchange stays open without a sign of life, milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Leases {
    /// From the verdict, or the response headers, to the first report.
    pub first_ms: u64,
    /// From one progress report to the next.
    pub progress_ms: u64,
    /// Once Envoy has dropped the stream before it began to answer: the filter's report is due within a tick.
    pub abandoned_ms: u64,
}

/// What the caller does after a call. An exchange's place in its pool is known by the exchange: it is reserved before
/// [`Book::open`] or by [`Effect::Adopt`], and given back by exactly one [`Effect::Release`]; whatever else is said of it
/// comes in between.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// An exchange that was picked by another process: it takes a place from now on.
    Adopt {
        /// Its pool.
        pool: String,
        /// Whose place it is.
        exchange: ExchangeId,
        /// Where it was sent, as far as its token says.
        on: SocketAddr,
    },
    /// The response has begun: the place moves to who served, and whoever refused or failed is known by that.
    Answered {
        /// Its pool.
        pool: String,
        /// Whose place it is.
        exchange: ExchangeId,
        /// The endpoint that was to answer, as far as is known.
        picked: Option<SocketAddr>,
        /// How it was answered.
        answer: Answered,
    },
    /// The first token was generated: the prompt is computed.
    FirstToken {
        /// Its pool.
        pool: String,
        /// Whose place it is.
        exchange: ExchangeId,
    },
    /// The exchange has ended, and its place is free.
    Release {
        /// Its pool.
        pool: String,
        /// Whose place it was.
        exchange: ExchangeId,
        /// What is known of its tokens.
        used: UsageRecord,
        /// How many prompt tokens the pick thought to be cached where it was served.
        predicted: Option<u64>,
    },
    /// A line for the log: it must be written before the report is acknowledged.
    Record(Box<Record>),
}

/// The place that an exchange takes in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The endpoint that was picked.
    pub on: SocketAddr,
    /// Prompt tokens thought to be cached there; `None`: nobody asked.
    pub predicted: Option<u64>,
}

/// How a response began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The endpoint that really answered; `None`: none did.
    pub served: Option<SocketAddr>,
    /// Response status.
    pub status: u32,
    /// What `retry-after` said, milliseconds.
    pub retry_after_ms: Option<u64>,
}

/// What became of a reported event.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Taken.
    Accepted(Vec<Effect>),
    /// Taken, though the lease had closed the exchange: a correction, or a sign of life that comes too late.
    Late(Vec<Effect>),
    /// Seen before: nothing changed.
    Doubled,
    /// The event holds nothing that this version knows.
    Empty,
}

/// The exchange is not open here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

#[derive(Debug)]
struct Open {
    token: ExchangeToken,
    /// Its place in its pool, if it has one.
    place: Option<Place>,
    served: Option<SocketAddr>,
    status: u32,
    first_token: bool,
    ttft_us: Option<u64>,
    progress: u32,
    usage: Option<UsageRecord>,
    abandoned: bool,
    lease_ms: u64,
}

impl Open {
    /// Gives its place back, if it has one.
    fn release(self, exchange: ExchangeId, used: UsageRecord) -> Option<Effect> {
        self.place.map(|Place { predicted, .. }| Effect::Release {
            pool: self.token.pool,
            exchange,
            used,
            predicted,
        })
    }
}

/// Open exchanges, and which ones were closed lately.
#[derive(Debug)]
pub struct Book {
    open: HashMap<ExchangeId, Open>,
    /// (end of lease, exchange): the same exchanges as `open`, in order of time.
    due: BTreeSet<(u64, ExchangeId)>,
    closed: Closed,
    leases: Leases,
    open_max: usize,
}

impl Book {
    /// An empty book that holds at most `open_max` open exchanges.
    #[must_use]
    pub fn new(leases: Leases, open_max: usize) -> Self {
        Self { open: HashMap::new(), due: BTreeSet::new(), closed: Closed::new(CLOSED_MAX), leases, open_max }
    }

    /// Exchanges that are open now.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Opens an exchange that has taken its place in its pool. False: the book is full and nothing was opened.
    #[must_use]
    pub fn open(&mut self, id: ExchangeId, token: ExchangeToken, place: Place, now_ms: u64) -> bool {
        if self.open.len() >= self.open_max {
            return false;
        }
        self.insert(id, token, Some(place), now_ms);
        true
    }

    fn insert(&mut self, id: ExchangeId, token: ExchangeToken, place: Option<Place>, now_ms: u64) {
        let lease_ms = now_ms.saturating_add(self.leases.first_ms);
        let open = Open {
            token,
            place,
            served: None,
            status: 0,
            first_token: false,
            ttft_us: None,
            progress: 0,
            usage: None,
            abandoned: false,
            lease_ms,
        };
        if let Some(before) = self.open.insert(id, open) {
            self.due.remove(&(before.lease_ms, id));
        }
        self.due.insert((lease_ms, id));
    }

    fn renew(&mut self, id: ExchangeId, lease_ms: u64) {
        if let Some(open) = self.open.get_mut(&id) {
            self.due.remove(&(open.lease_ms, id));
            open.lease_ms = lease_ms;
            self.due.insert((lease_ms, id));
        }
    }

    /// The response has begun.
    ///
    /// # Errors
    /// [`Unknown`]: closed already, or never opened.
    pub fn serve(&mut self, id: ExchangeId, answer: Answered, now_ms: u64) -> Result<Effect, Unknown> {
        let open = self.open.get_mut(&id).ok_or(Unknown)?;
        open.status = answer.status;
        open.served = answer.served;
        if let Some(place) = open.place.as_mut().filter(|place| Some(place.on) != answer.served) {
            // What was thought of one endpoint's cache says nothing of another's.
            place.predicted = None;
        }
        let picked = open.place.map(|place| place.on);
        let effect = Effect::Answered { pool: open.token.pool.clone(), exchange: id, picked, answer };
        self.renew(id, now_ms.saturating_add(self.leases.first_ms));
        Ok(effect)
    }

    /// Envoy dropped the stream before the response began: only the filter's report, due soon, can tell more.
    pub fn abandon(&mut self, id: ExchangeId, now_ms: u64) {
        if let Some(open) = self.open.get_mut(&id) {
            open.abandoned = true;
        }
        self.renew(id, now_ms.saturating_add(self.leases.abandoned_ms));
    }

    /// The stream that was held for the whole exchange has ended, and no filter reports here: closes at once.
    pub fn close_by_stream(&mut self, id: ExchangeId, now_ms: u64) -> Vec<Effect> {
        self.close_unreported(id, now_ms)
    }

    /// Takes one reported event whose token was verified.
    pub fn report(
        &mut self,
        id: ExchangeId,
        token: &ExchangeToken,
        event: &v1::UsageEvent,
        now_ms: u64,
    ) -> Outcome {
        let Some(kind) = &event.event else {
            return Outcome::Empty;
        };
        match self.closed.revision(id) {
            Some(REVISION_LEASE) => return self.report_late(id, token, event.at_unix_ms, kind),
            Some(_) => return Outcome::Doubled,
            None => {}
        }
        if let usage_event::Event::End(end) = kind {
            return Outcome::Accepted(self.close_reported(id, token, event.at_unix_ms, end, false));
        }
        let mut effects = Vec::new();
        if !self.open.contains_key(&id) {
            effects.extend(self.adopt(id, token, now_ms));
        }
        let Some(open) = self.open.get_mut(&id) else {
            // No room to adopt it: its end will be taken all the same.
            return Outcome::Accepted(effects);
        };
        let taken = match kind {
            usage_event::Event::FirstToken(first) if !open.first_token => {
                open.first_token = true;
                open.ttft_us = Some(first.ttft_us);
                if open.place.is_some() {
                    effects.push(Effect::FirstToken { pool: open.token.pool.clone(), exchange: id });
                }
                true
            }
            usage_event::Event::Progress(progress) if progress.number > open.progress => {
                open.progress = progress.number;
                open.usage = progress.usage.as_ref().map(UsageRecord::from).or(open.usage);
                true
            }
            _ => false,
        };
        // Whoever was adopted just now has a place that must be known of.
        if !taken && effects.is_empty() {
            return Outcome::Doubled;
        }
        self.renew(id, now_ms.saturating_add(self.leases.progress_ms));
        Outcome::Accepted(effects)
    }

    /// An exchange of a replica that is gone, or of ours before a restart: its token says enough to go on.
    fn adopt(&mut self, id: ExchangeId, token: &ExchangeToken, now_ms: u64) -> Vec<Effect> {
        if self.open.len() >= self.open_max {
            return Vec::new();
        }
        let on = token.endpoints.first().and_then(|address| address.parse::<SocketAddr>().ok());
        self.insert(id, token.clone(), on.map(|on| Place { on, predicted: None }), now_ms);
        on.map(|on| Effect::Adopt { pool: token.pool.clone(), exchange: id, on }).into_iter().collect()
    }

    fn report_late(
        &mut self,
        id: ExchangeId,
        token: &ExchangeToken,
        at_ms: u64,
        kind: &usage_event::Event,
    ) -> Outcome {
        match kind {
            usage_event::Event::End(end) => Outcome::Late(self.close_reported(id, token, at_ms, end, true)),
            usage_event::Event::FirstToken(_) | usage_event::Event::Progress(_) => Outcome::Late(Vec::new()),
        }
    }

    fn close_reported(
        &mut self,
        id: ExchangeId,
        token: &ExchangeToken,
        at_ms: u64,
        end: &v1::End,
        late: bool,
    ) -> Vec<Effect> {
        let mut record = Record::of_token(&id.to_string(), token, at_ms);
        record.close_by_report(end, late);
        let mut effects = Vec::with_capacity(2);
        if let Some(open) = self.remove(id) {
            // What was cut short says nothing of how long answers are.
            let output = record.usage.output.filter(|_| record.end == End::Complete);
            effects.extend(open.release(id, UsageRecord { output, ..record.usage }));
        }
        self.closed.insert(id, REVISION_REPORT);
        effects.push(Effect::Record(Box::new(record)));
        effects
    }

    fn close_unreported(&mut self, id: ExchangeId, now_ms: u64) -> Vec<Effect> {
        let Some(open) = self.remove(id) else {
            return Vec::new();
        };
        let mut record = Record::of_token(&id.to_string(), &open.token, now_ms);
        record.endpoint = open.served.map(|address| address.to_string());
        record.status = open.status;
        record.ttft_us = open.ttft_us;
        record.flags.abandoned = open.abandoned && !open.first_token;
        if let Some(usage) = open.usage {
            record.usage = usage;
            record.usage_source = Source::Cumulative;
        }
        self.closed.insert(id, REVISION_LEASE);
        let mut effects = Vec::with_capacity(2);
        // A running count is no whole one: nothing is to be learned from it.
        effects.extend(open.release(id, UsageRecord::default()));
        effects.push(Effect::Record(Box::new(record)));
        effects
    }

    fn remove(&mut self, id: ExchangeId) -> Option<Open> {
        let open = self.open.remove(&id)?;
        self.due.remove(&(open.lease_ms, id));
        Some(open)
    }

    /// Closes what has outlived its lease, at most `max` of it; the flag says whether more is due.
    pub fn expire(&mut self, now_ms: u64, max: usize) -> (Vec<Effect>, bool) {
        let due: Vec<ExchangeId> =
            self.due.iter().take_while(|(lease, _)| *lease <= now_ms).take(max).map(|(_, id)| *id).collect();
        let effects = due.iter().flat_map(|id| self.close_unreported(*id, now_ms)).collect();
        let more = self.due.first().is_some_and(|(lease, _)| *lease <= now_ms);
        (effects, more)
    }

    /// Remembers, after a restart, that the log already holds this revision of an exchange.
    pub fn recall(&mut self, id: ExchangeId, revision: u32) {
        self.closed.insert(id, revision);
    }
}

#[cfg(test)]
mod tests;
