//! One exchange as a state machine: (phase, event) → (phase, effects). Read this crate first.
//!
//! ```text
//! AwaitHeaders ─ request headers ─► AwaitBody ─ whole body ─► AwaitAnswer ─ granted ─► AwaitResponse ─ response headers ─► Done
//!      │   └─ of a stored response ─► AwaitStored ─ body, if any ─┘  └─ denied             └─ held: Held ─ stream ends ─┘
//!      └── rejected: an immediate response, Done ◄── any of them
//! ```
//!
//! Pure: no I/O, no clock. Who may use which endpoint is asked for by an effect ([`Effect::Ask`]) and answered by an event
//! ([`Event::Answer`]), so that an answer may take its time (admission) without this crate knowing.
//!
//! **No verdict, no OK.** Envoy takes a stream that ends with status OK before its verdict as "skip the rest" and lets the
//! request pass. So a stream may end with OK only for an [`OkProof`], which exists only once a verdict or an immediate
//! response has been made; every other end is a [`StreamError`].

mod event;
mod phase;
mod prompt;
mod reject;
mod rules;
mod verdict;

pub use event::{
    Answer, BodyMode, Denial, Effect, Event, Finish, Grant, Inquiry, RequestHead, ResponseHead, StreamError,
    TenantHeader,
};
pub use phase::{OkProof, Phase, step};
pub use reject::{Immediate, RejectReason};
pub use rules::{ModelRule, Rules, TENANT_BYTES_MAX, TenantRule, UsageMode, is_tenant_name};
pub use verdict::{Reply, Verdict};
