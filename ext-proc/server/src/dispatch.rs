//! Answers an exchange's question: pick, reserve, seal the token, open the record. All of it without waiting.

use std::sync::Arc;
use std::time::Duration;

use ext_proc_exchange::{Answer, Denial, Grant, Inquiry, ResponseHead};
use ext_proc_meter::{Answered, Place, Record};
use ext_proc_pick::{Ask, NoPick, Pick, Settings, Strategy};
use proto_tokenweir::response::Keeper;
use proto_tokenweir::token::{ExchangeId, KeyRing, TOKEN_VERSION};
use proto_tokenweir::v1::ExchangeToken;

use crate::books::Books;
use crate::clock::unix_ms;
use crate::picks::RecentPicks;
use crate::pools::Pools;
use crate::stored::StoredResponses;

/// What decisions are made with, and where they are remembered.
pub(crate) struct Dispatcher {
    pub(crate) pools: Arc<Pools>,
    pub(crate) books: Arc<Books>,
    pub(crate) stored: StoredResponses,
    pub(crate) picks: Arc<RecentPicks>,
    pub(crate) ring: Arc<KeyRing>,
    pub(crate) replica: String,
    pub(crate) token_lifetime: Duration,
}

impl Dispatcher {
    /// Decides. The id is that of the exchange that is now open, if one is.
    pub(crate) fn answer(&self, inquiry: &Inquiry) -> (Answer, Option<ExchangeId>) {
        let home = match self.stored.home(inquiry, &self.pools, &self.ring) {
            Ok(home) => home,
            Err(denial) => return (Answer::Denied(denial), None),
        };
        let stay = home.as_ref().and_then(|home| home.endpoint);
        // Who fetches a response names no model, and so no pool.
        let placed = home.map(|home| Inquiry { pool: home.pool, ..inquiry.clone() });
        let inquiry = placed.as_ref().unwrap_or(inquiry);
        let mut bytes = [0; 16];
        // The operating system's randomness can't fail once it is seeded; if it ever does, no exchange may be opened.
        if getrandom::fill(&mut bytes).is_err() {
            return (Answer::Denied(Denial::Full), None);
        }
        let id = ExchangeId(bytes);
        let ask = Ask {
            model: &inquiry.model,
            prefix: &inquiry.prefix,
            prompt_bytes: inquiry.prompt_bytes,
            prompt_token_ids: inquiry.prompt_token_ids,
            output_tokens_max: inquiry.output_tokens_max,
            stay,
        };
        let (strategy, pick) = match self.pools.pick(&inquiry.pool, id, &ask) {
            Ok(picked) => picked,
            Err(reason) => return (Answer::Denied(denial(reason)), None),
        };
        let now_ms = unix_ms();
        let token = self.token(inquiry, id, &pick, now_ms);
        let sealed = self.ring.seal(&token);
        let place = place(inquiry, &pick);
        if !place.is_some_and(|place| self.books.open(id, token, place, now_ms)) {
            self.pools.cancel(&inquiry.pool, id);
            return (Answer::Denied(Denial::Full), None);
        }
        let grant = Grant {
            pool: inquiry.pool.clone(),
            endpoints: pick.order.clone(),
            token: sealed,
            response_id: self.response_id(inquiry, id, &pick),
        };
        self.picks.note(now_ms, id, (&inquiry.model, &inquiry.pool), strategy, pick);
        (Answer::Granted(grant), Some(id))
    }

    /// The id for the response, where its engine takes one from us.
    fn response_id(&self, inquiry: &Inquiry, id: ExchangeId, pick: &Pick) -> Option<String> {
        let endpoint = *pick.order.first().filter(|_| inquiry.names_response)?;
        let keeper = Keeper { tenant: &inquiry.tenant, pool: &inquiry.pool, endpoint };
        Some(self.ring.name_response(id, keeper))
    }

    fn token(&self, inquiry: &Inquiry, id: ExchangeId, pick: &Pick, now_ms: u64) -> ExchangeToken {
        let lifetime_ms = u64::try_from(self.token_lifetime.as_millis()).unwrap_or(u64::MAX);
        ExchangeToken {
            version: TOKEN_VERSION,
            exchange: id.0.to_vec(),
            replica: self.replica.clone(),
            tenant: inquiry.tenant.clone(),
            key_id: String::new(),
            api: inquiry.api.as_label().to_owned(),
            model: inquiry.model.clone(),
            pool: inquiry.pool.clone(),
            endpoints: pick.order.iter().map(ToString::to_string).collect(),
            price_version: String::new(),
            policy_digests: Vec::new(),
            issued_unix_ms: now_ms,
            expires_unix_ms: now_ms.saturating_add(lifetime_ms),
            request_id: inquiry.request_id.clone(),
            stream: inquiry.stream,
            background: inquiry.background,
        }
    }

    /// The response has begun.
    pub(crate) fn served(&self, id: ExchangeId, head: ResponseHead) {
        let retry_after_ms =
            head.retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        let answer = Answered { served: head.upstream, status: head.status, retry_after_ms };
        if let Some(effect) = self.books.serve(id, answer, unix_ms()) {
            let record = self.pools.perform(effect);
            debug_assert!(record.is_none(), "the start of a response closes nothing");
        }
    }

    /// Envoy left after the verdict and before the response.
    pub(crate) fn abandoned(&self, id: ExchangeId) {
        self.books.abandon(id, unix_ms());
    }

    /// A held stream has ended, and the exchange with it.
    pub(crate) fn ended(&self, id: ExchangeId) -> Vec<Record> {
        let effects = self.books.close_by_stream(id, unix_ms());
        effects.into_iter().filter_map(|effect| self.pools.perform(effect)).collect()
    }
}

/// The place that a pick has reserved; never `None`, since a pick has a first endpoint.
fn place(inquiry: &Inquiry, pick: &Pick) -> Option<Place> {
    let on = *pick.order.first()?;
    let there = pick.candidates.iter().find(|candidate| candidate.address == on);
    let asked = there.filter(|_| inquiry.prefix.bytes() > 0);
    Some(Place { on, predicted: asked.map(|candidate| candidate.explanation.matched_tokens) })
}

/// Whether a pool's picks look at what prompts begin with.
pub(crate) fn uses_prefixes(settings: &Settings) -> bool {
    matches!(settings.strategy, Strategy::LeastWork | Strategy::PrefixOnly) && settings.chunks_max > 0
}

fn denial(reason: NoPick) -> Denial {
    match reason {
        NoPick::NoneReady => Denial::NoneReady,
        NoPick::NoneServes => Denial::NoneServes,
        NoPick::Gone => Denial::Gone,
    }
}
