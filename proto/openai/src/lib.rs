//! OpenAI and Anthropic bodies, SSE framing and usage; pure, also wasm32.
//!
//! What a request asks for ([`body`]), the byte edits it may need ([`edit`]), what one response
//! used ([`meter`]), and the words both sides of the gateway share ([`api`], [`plan`], [`error`]).
//! Nothing here does I/O, reads a clock or panics; every buffer has its bound in [`limits`].

pub mod api;
pub mod body;
pub mod edit;
pub mod error;
pub mod json;
pub mod limits;
pub mod meter;
pub mod plan;
pub mod sse;
pub mod usage;

pub use api::{Api, Dialect, Route, dialect_of, route};
pub use body::{BodyError, Prompt, Request, Session, Span, SpanKind, UsageWish, scan};
pub use edit::{Edits, FirstMember};
pub use error::ApiError;
pub use json::Text;
pub use meter::{BodyKind, Pushed, ResponseMeter, Tally};
pub use plan::{Plan, PlanError, Strip};
pub use usage::{Usage, UsageSource};
