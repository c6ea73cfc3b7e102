//! Requests for a response that an engine made before: to fetch it, or to cancel it. They name it in the path, so all there is
//! to know comes with the headers, and where no body follows the reply to the headers is the verdict.
//!
//! A body has nothing to say here. Some client libraries send an empty object all the same; a small one goes on as it is.

use ext_proc_pick::Prefix;
use proto_openai::{Api, Plan, Strip};

use super::{AwaitAnswer, AwaitHeaders, Phase, Step, fail, reject};
use crate::event::{BodyMode, Effect, Inquiry, RequestHead, StreamError};
use crate::reject::RejectReason;
use crate::rules::Rules;
use crate::verdict::Reply;

/// Longest body, bytes.
const BODY_BYTES_MAX: usize = 4096;

/// See [`Phase::AwaitStored`].
#[derive(Debug)]
pub struct AwaitStored {
    mode: BodyMode,
    tenant: String,
    id: String,
    head: RequestHead,
    body: Vec<u8>,
}

impl AwaitHeaders {
    pub(super) fn stored(self, id: String, head: RequestHead, rules: &Rules) -> Step {
        let accepted = self
            .mode
            .ok_or(RejectReason::BodyMode)
            .and_then(|mode| rules.tenant.tenant(&head.tenant).map(|tenant| (mode, tenant)));
        let (mode, tenant) = match accepted {
            Ok(accepted) => accepted,
            Err(reason) => return reject(&reason, Api::StoredResponse.dialect(), rules),
        };
        if head.content_length.is_some_and(|length| length > BODY_BYTES_MAX as u64) {
            return too_large(rules);
        }
        let phase = AwaitStored { mode, tenant, id, head, body: Vec::new() };
        if phase.head.end {
            return phase.whole(false);
        }
        let effects = match mode {
            BodyMode::Buffered => vec![Effect::Reply(Reply::Proceed)],
            BodyMode::FullDuplex => Vec::new(),
        };
        (Phase::AwaitStored(Box::new(phase)), effects)
    }
}

fn too_large(rules: &Rules) -> Step {
    reject(&RejectReason::TooLarge(BODY_BYTES_MAX), Api::StoredResponse.dialect(), rules)
}

impl AwaitStored {
    pub(super) fn body(mut self, chunk: Vec<u8>, end: bool, rules: &Rules) -> Step {
        if self.body.len().saturating_add(chunk.len()) > BODY_BYTES_MAX {
            return too_large(rules);
        }
        self.body.extend_from_slice(&chunk);
        // Buffered: one message is the whole body, whether or not trailers follow.
        if end || self.mode == BodyMode::Buffered {
            return self.whole(false);
        }
        (Phase::AwaitStored(Box::new(self)), Vec::new())
    }

    pub(super) fn trailers(self) -> Step {
        match self.mode {
            // The reply to the headers is gone, and one to trailers can carry no verdict.
            BodyMode::Buffered => fail(StreamError::OutOfOrder),
            BodyMode::FullDuplex => self.whole(true),
        }
    }

    fn whole(self, trailers: bool) -> Step {
        let inquiry = Inquiry {
            api: Api::StoredResponse,
            model: String::new(),
            pool: String::new(),
            tenant: self.tenant,
            stream: false,
            request_id: self.head.request_id.clone(),
            prefix: Prefix::default(),
            prompt_bytes: 0,
            prompt_token_ids: 0,
            output_tokens_max: None,
            stored: Some(self.id.clone()),
            names_response: false,
            background: false,
        };
        let phase = AwaitAnswer {
            api: Api::StoredResponse,
            pool: String::new(),
            plan: Plan { api: Api::StoredResponse, stream: false, strip: Strip::Nothing },
            edits: None,
            named_at: None,
            stored: Some(self.id),
            head: self.head,
            body: self.body,
            trailers,
        };
        (Phase::AwaitAnswer(Box::new(phase)), vec![Effect::Ask(inquiry)])
    }
}

#[cfg(test)]
mod tests;
