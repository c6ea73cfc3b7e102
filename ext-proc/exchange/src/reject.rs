//! Answers that the service gives itself: the one table of reasons → status, type, message, and the model list.

use proto_openai::limits::RESPONSE_ID_BYTES_MAX;
use proto_openai::{ApiError, BodyError, Dialect};
use serde_json::{Value, json};

use crate::rules::Rules;

/// Models named in an "unknown model" answer, at most.
const MODELS_NAMED_MAX: usize = 20;

/// Why a request was answered here; the label goes into metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// No such path is exposed.
    UnknownPath,
    /// The path takes another method.
    WrongMethod(&'static str),
    /// Not `application/json`.
    ContentType,
    /// The body is compressed.
    ContentEncoding,
    /// A body is due and none came.
    EmptyBody,
    /// The body is longer than the limit, bytes.
    TooLarge(usize),
    /// The body can't be read.
    Body(BodyError),
    /// No pool serves the model.
    UnknownModel(String),
    /// No tenant, and no default.
    NoTenant,
    /// The tenant header can't be read.
    BadTenant,
    /// No endpoint of the pool is ready.
    NoneReady(String),
    /// Endpoints of the pool are ready, but none of them has the model loaded.
    NoneServes(String),
    /// No endpoint keeps the response of this id for this tenant.
    UnknownResponse(String),
    /// The endpoint that keeps the response is not ready.
    ResponseAway,
    /// As many exchanges are open as this replica holds.
    Full,
    /// Envoy is set to a body mode that can't work.
    BodyMode,
}

impl RejectReason {
    /// Stable label.
    #[must_use]
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::UnknownPath => "unknown_path",
            Self::WrongMethod(_) => "wrong_method",
            Self::ContentType => "content_type",
            Self::ContentEncoding => "content_encoding",
            Self::EmptyBody => "empty_body",
            Self::TooLarge(_) => "too_large",
            Self::Body(_) => "bad_body",
            Self::UnknownModel(_) => "unknown_model",
            Self::NoTenant => "no_tenant",
            Self::BadTenant => "bad_tenant",
            Self::NoneReady(_) => "none_ready",
            Self::NoneServes(_) => "none_serves",
            Self::UnknownResponse(_) => "unknown_response",
            Self::ResponseAway => "response_away",
            Self::Full => "full",
            Self::BodyMode => "body_mode",
        }
    }

    fn error(&self, rules: &Rules) -> ApiError {
        match self {
            Self::UnknownPath => ApiError::new(
                404,
                "NotFoundError",
                "This path is not served here. Served are POST /v1/chat/completions, /v1/completions, /v1/responses, \
                 /v1/embeddings, /v1/messages, /v1/messages/count_tokens, /v1/rerank, /v1/score, /tokenize, /detokenize, \
                 /v1/responses/{id}/cancel, and GET /v1/responses/{id}, /v1/models, /v1/models/{name}.",
            ),
            Self::WrongMethod(allow) => {
                ApiError::new(405, "MethodNotAllowed", format!("This path takes {allow} only."))
            }
            Self::ContentType => {
                ApiError::bad_request("The request needs the header `content-type: application/json`.", None)
            }
            Self::ContentEncoding => ApiError::bad_request(
                "The request body is compressed. Send it without `content-encoding`.",
                None,
            ),
            Self::EmptyBody => ApiError::bad_request(
                "The request has no body. Send a JSON object with at least `model`.",
                None,
            ),
            Self::TooLarge(max) => ApiError::new(
                413,
                "RequestTooLarge",
                format!("The request body is larger than the {max} bytes that this gateway takes."),
            ),
            Self::Body(error) => error.clone().into(),
            Self::UnknownModel(model) => unknown_model(model, rules),
            Self::NoTenant => ApiError::new(
                401,
                "AuthenticationError",
                "The request names no tenant. Send it through the gateway's authentication.",
            ),
            Self::BadTenant => ApiError::bad_request(
                "The tenant header must be one name of at most 128 letters, digits and `-_./:@`.",
                None,
            ),
            Self::NoneReady(pool) => ApiError::new(
                503,
                "ServiceUnavailable",
                format!("No endpoint of pool `{pool}` is ready. Try again later."),
            ),
            Self::NoneServes(pool) => ApiError::new(
                503,
                "ServiceUnavailable",
                format!(
                    "No ready endpoint of pool `{pool}` has loaded the requested model. Try again later."
                ),
            ),
            Self::UnknownResponse(id) => unknown_response(id),
            Self::ResponseAway => ApiError::new(
                503,
                "ServiceUnavailable",
                "The engine that keeps this response is not ready. Try again later.",
            ),
            Self::Full => ApiError::new(
                503,
                "ServiceUnavailable",
                "This gateway holds as many requests as it can. Try again later.",
            ),
            Self::BodyMode => ApiError::new(
                500,
                "InternalServerError",
                "The gateway's ext_proc filter must send request bodies as BUFFERED or FULL_DUPLEX_STREAMED; its \
                 configuration says otherwise.",
            ),
        }
    }
}

/// As vLLM words it, so that a client sees no difference between an engine that forgot and one that is gone.
fn unknown_response(id: &str) -> ApiError {
    let shown = id.get(..id.floor_char_boundary(RESPONSE_ID_BYTES_MAX)).unwrap_or_default();
    ApiError {
        status: 404,
        kind: "invalid_request_error",
        message: format!("Response with id '{shown}' not found."),
        param: Some("response_id"),
    }
}

fn unknown_model(model: &str, rules: &Rules) -> ApiError {
    let mut names: Vec<&str> = rules.models.keys().map(String::as_str).take(MODELS_NAMED_MAX + 1).collect();
    if names.len() > MODELS_NAMED_MAX {
        names.pop();
        names.push("… (GET /v1/models lists all)");
    }
    ApiError {
        status: 404,
        kind: "NotFoundError",
        message: format!("The model `{model}` does not exist. Valid models: {}.", names.join(", ")),
        param: Some("model"),
    }
}

/// An answer of the service itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// HTTP status.
    pub status: u16,
    /// Headers beside `content-type: application/json`.
    pub headers: Vec<(&'static str, String)>,
    /// JSON.
    pub body: Vec<u8>,
    /// Stable label of the reason.
    pub label: &'static str,
}

impl Immediate {
    pub(crate) fn reject(reason: &RejectReason, dialect: Dialect, rules: &Rules) -> Self {
        let error = reason.error(rules);
        let headers = match reason {
            RejectReason::WrongMethod(allow) => vec![("allow", (*allow).to_owned())],
            RejectReason::NoneReady(_)
            | RejectReason::NoneServes(_)
            | RejectReason::ResponseAway
            | RejectReason::Full => {
                vec![("retry-after", rules.retry_after_s.to_string())]
            }
            _ => Vec::new(),
        };
        Self { status: error.status, headers, body: error.body(dialect), label: reason.as_label() }
    }

    /// The list of models, in the shape of the client's API.
    pub(crate) fn models(dialect: Dialect, rules: &Rules) -> Self {
        let names: Vec<&str> = rules.models.keys().map(String::as_str).collect();
        Self {
            status: 200,
            headers: Vec::new(),
            body: models_body(&names, dialect, rules).to_string().into_bytes(),
            label: "models",
        }
    }

    /// One model, or `None` if it doesn't exist.
    pub(crate) fn model(name: &str, dialect: Dialect, rules: &Rules) -> Option<Self> {
        rules.models.contains_key(name).then(|| Self {
            status: 200,
            headers: Vec::new(),
            body: model_entry(name, dialect, rules).to_string().into_bytes(),
            label: "models",
        })
    }
}

fn model_entry(name: &str, dialect: Dialect, rules: &Rules) -> Value {
    match dialect {
        Dialect::OpenAi => {
            json!({"id": name, "object": "model", "created": rules.since_unix_s, "owned_by": "tokenweir"})
        }
        // A configured model has no birthday; the epoch is what Anthropic's API says when none is known.
        Dialect::Anthropic => {
            json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"})
        }
    }
}

fn models_body(names: &[&str], dialect: Dialect, rules: &Rules) -> Value {
    let list: Vec<Value> = names.iter().map(|name| model_entry(name, dialect, rules)).collect();
    match dialect {
        Dialect::OpenAi => json!({"object": "list", "data": list}),
        Dialect::Anthropic => {
            json!({"data": list, "has_more": false, "first_id": names.first(), "last_id": names.last()})
        }
    }
}
