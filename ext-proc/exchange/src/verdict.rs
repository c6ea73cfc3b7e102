//! The verdict: where a request goes. It exists before any stream ends with OK.

use std::net::SocketAddr;

use proto_openai::Plan;

use crate::reject::Immediate;

/// Where a request goes, and in what form. Made by the state machine alone.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    pub(crate) pool: String,
    pub(crate) endpoints: Vec<SocketAddr>,
    pub(crate) token: String,
    pub(crate) plan: Plan,
    pub(crate) remove: Vec<String>,
    pub(crate) body: Vec<u8>,
    pub(crate) edited: bool,
    pub(crate) had_length: bool,
    pub(crate) trailers: bool,
    pub(crate) bodiless: bool,
}

impl Verdict {
    /// The pool: `x-tokenweir-pool`.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The endpoints in order, `a:port,b:port`: `x-gateway-destination-endpoint`.
    #[must_use]
    pub fn destination(&self) -> String {
        let list: Vec<String> = self.endpoints.iter().map(ToString::to_string).collect();
        list.join(",")
    }

    /// The exchange token.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// What the filter must do with the response.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// Request headers that must not reach the engine.
    #[must_use]
    pub fn remove(&self) -> &[String] {
        &self.remove
    }

    /// The body that the engine gets.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Takes the body out.
    #[must_use]
    pub fn take_body(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.body)
    }

    /// The body differs from the client's.
    #[must_use]
    pub fn is_edited(&self) -> bool {
        self.edited
    }

    /// The request had a `content-length`, which an edit makes wrong.
    #[must_use]
    pub fn had_length(&self) -> bool {
        self.had_length
    }

    /// The request has no body: the verdict is the reply to its headers.
    #[must_use]
    pub fn is_bodiless(&self) -> bool {
        self.bodiless
    }

    /// Trailers follow the body (full duplex: they need their own reply).
    #[must_use]
    pub fn has_trailers(&self) -> bool {
        self.trailers
    }
}

/// A reply to Envoy, in our terms.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// To the request headers, in buffered mode: send the body.
    Proceed,
    /// The verdict: to the body (buffered), or to headers, body and trailers at once (full duplex); in both modes to the
    /// headers alone where no body follows.
    Verdict(Verdict),
    /// The request is answered here.
    Immediate(Immediate),
    /// To request trailers after the verdict: go on.
    Trailers,
    /// To the response headers: go on.
    ResponseHeaders,
}
