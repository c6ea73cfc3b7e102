//! Bodies of the gateway's own errors, in the shape the client's API has for errors.
//!
//! A client library that parses an engine's errors must be able to parse these.

use crate::api::Dialect;
use crate::json::push_json_string;

/// One error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: u16,
    /// OpenAI's `type`. Anthropic's is a function of the status.
    pub kind: &'static str,
    /// What was wrong, where, and what to do. Never holds prompt text or keys.
    pub message: String,
    /// The request member that was wrong.
    pub param: Option<&'static str>,
}

impl ApiError {
    /// An error without a `param`.
    #[must_use]
    pub fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None }
    }

    /// A 400 about the request's body.
    #[must_use]
    pub fn bad_request(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self { status: 400, kind: "BadRequestError", message: message.into(), param }
    }

    /// The body to send, with `content-type: application/json`.
    #[must_use]
    pub fn body(&self, dialect: Dialect) -> Vec<u8> {
        let mut out = String::with_capacity(self.message.len() + 96);
        match dialect {
            Dialect::OpenAi => {
                out.push_str("{\"error\":{\"message\":");
                push_json_string(&mut out, &self.message);
                out.push_str(",\"type\":");
                push_json_string(&mut out, self.kind);
                out.push_str(",\"param\":");
                match self.param {
                    Some(param) => push_json_string(&mut out, param),
                    None => out.push_str("null"),
                }
                out.push_str(",\"code\":");
                out.push_str(&self.status.to_string());
                out.push_str("}}");
            }
            Dialect::Anthropic => {
                out.push_str("{\"type\":\"error\",\"error\":{\"type\":");
                push_json_string(&mut out, anthropic_kind(self.status));
                out.push_str(",\"message\":");
                push_json_string(&mut out, &self.message);
                out.push_str("}}");
            }
        }
        out.into_bytes()
    }
}

const fn anthropic_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(error: &ApiError, dialect: Dialect) -> Value {
        serde_json::from_slice(&error.body(dialect)).unwrap()
    }

    #[test]
    fn both_shapes_are_the_ones_the_engines_send() {
        let error = ApiError::bad_request("no \"model\"\n\u{1}é", Some("model"));
        assert_eq!(
            parsed(&error, Dialect::OpenAi),
            json!({"error": {"message": "no \"model\"\n\u{1}é", "type": "BadRequestError", "param": "model", "code": 400}})
        );
        assert_eq!(
            parsed(&error, Dialect::Anthropic),
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": "no \"model\"\n\u{1}é"}})
        );
        let none = ApiError::new(503, "Service Unavailable", "no endpoint");
        assert_eq!(parsed(&none, Dialect::OpenAi)["error"]["param"], Value::Null);
        assert_eq!(parsed(&none, Dialect::Anthropic)["error"]["type"], "overloaded_error");
    }

    #[test]
    fn anthropic_kinds_follow_the_status() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (405, "invalid_request_error"),
            (413, "request_too_large"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (503, "overloaded_error"),
        ] {
            assert_eq!(anthropic_kind(status), kind);
        }
    }
}
