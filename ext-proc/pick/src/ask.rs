//! What a pick is asked, and what is told when the exchange has ended.

use std::net::SocketAddr;

use crate::prefix::Prefix;

/// An exchange's id: what its reservation is kept under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u128);

/// A request, as far as the pick needs to know it.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The model's or adapter's name as the engine knows it; empty: the request names none (who fetches a stored response).
    pub model: &'a str,
    /// The prompt's chunks; the default where the prompt isn't known as text.
    pub prefix: &'a Prefix,
    /// Bytes of prompt text, all of it.
    pub prompt_bytes: u64,
    /// Tokens of the prompt that came as token ids.
    pub prompt_token_ids: u64,
    /// The most tokens that the client lets the engine generate.
    pub output_tokens_max: Option<u64>,
    /// The only endpoint that can serve this request.
    pub stay: Option<SocketAddr>,
}

/// What an exchange used, from the engine's own report. `None` is "not told", never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Prompt tokens, cached ones included.
    pub input: Option<u64>,
    /// Prompt tokens that the engine found in its cache.
    pub cached: Option<u64>,
    /// Generated tokens.
    pub output: Option<u64>,
}
