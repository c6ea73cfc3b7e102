//! Errors with vLLM's own words and shapes.

use super::text::quoted;

/// An error answer.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub status: u16,
    pub body: String,
}

impl Refusal {
    /// The shape that OpenAI's APIs use, or Anthropic's.
    #[must_use]
    pub fn new(anthropic: bool, status: u16, kind: &str, param: Option<&str>, message: &str) -> Self {
        let message = quoted(message);
        let body = if anthropic {
            format!("{{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":{message}}}}}")
        } else {
            let param = param.map_or_else(|| "null".to_owned(), quoted);
            format!(
                "{{\"error\":{{\"message\":{message},\"type\":\"{kind}\",\"param\":{param},\"code\":{status}}}}}"
            )
        };
        Self { status, body }
    }

    #[must_use]
    pub fn unknown_model(anthropic: bool, model: &str, known: &[String]) -> Self {
        let message = format!("The model `{model}` does not exist. Valid aliases: {}.", known.join(", "));
        Self::new(anthropic, 404, "NotFoundError", Some("model"), &message)
    }

    #[must_use]
    pub fn bad_json(anthropic: bool, at: usize) -> Self {
        let message = format!(
            "1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', \
             'input': '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
        );
        Self::new(anthropic, 400, "Bad Request", Some(&format!("body.{at}")), &message)
    }

    #[must_use]
    pub fn missing(anthropic: bool, field: &str) -> Self {
        let message = format!(
            "1 validation error:\n  {{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required', 'input': \
             '<dict of 1 items>'}}"
        );
        Self::new(anthropic, 400, "Bad Request", Some(&format!("body.{field}")), &message)
    }

    #[must_use]
    pub fn content_type(anthropic: bool) -> Self {
        let message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        Self::new(anthropic, 400, "Bad Request", None, message)
    }

    #[must_use]
    pub fn stream_options_without_stream() -> Self {
        let message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
        Self::new(false, 400, "BadRequestError", Some("stream_options"), message)
    }

    #[must_use]
    pub fn queue_full() -> Self {
        let message = "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                       different instance.";
        Self::new(false, 503, "Service Unavailable", None, message)
    }

    #[must_use]
    pub fn draining(anthropic: bool) -> Self {
        Self::new(anthropic, 500, "InternalServerError", None, "cannot schedule new futures after shutdown")
    }

    #[must_use]
    pub fn unknown_response(id: &str) -> Self {
        let message = format!("Response with id '{id}' not found.");
        Self::new(false, 404, "invalid_request_error", Some("response_id"), &message)
    }

    #[must_use]
    pub fn not_in_background() -> Self {
        let message = "Cannot cancel a synchronous response.";
        Self::new(false, 400, "invalid_request_error", Some("response_id"), message)
    }

    #[must_use]
    pub fn no_store() -> Self {
        let message = "This vLLM engine does not support `store=True` and therefore does not support the background mode.";
        Self::new(false, 400, "invalid_request_error", Some("background"), message)
    }

    #[must_use]
    pub fn no_events(id: &str) -> Self {
        let message = format!("Unknown response_id: {id} (parameter=response_id, value={id})");
        Self::new(false, 400, "BadRequestError", Some("response_id"), &message)
    }

    #[must_use]
    pub fn unknown_path() -> Self {
        Self { status: 404, body: "{\"detail\":\"Not Found\"}".to_owned() }
    }
}
