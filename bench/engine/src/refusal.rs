//! Errors in the shapes, words and statuses of vLLM.

use serde_json::Value;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    kind: &'static str,
    message: String,
    param: Option<String>,
    pub(crate) retry_after_s: Option<u32>,
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Refusal {
    pub(crate) fn new(status: u16, kind: &'static str, message: String, param: Option<&str>) -> Self {
        Self { status, kind, message, param: param.map(str::to_owned), retry_after_s: None }
    }

    /// Refused by the validation of fields.
    fn invalid(detail: &str, param: Option<&str>) -> Self {
        Self::new(400, "Bad Request", format!("1 validation error:\n  {detail}"), param)
    }

    pub(crate) fn bad(message: String, param: Option<&str>) -> Self {
        Self::new(400, "BadRequestError", message, param)
    }

    pub(crate) fn content_type() -> Self {
        Self::invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    }

    pub(crate) fn unknown_model(model: &str, served: &[&str]) -> Self {
        let message = format!("The model `{model}` does not exist. Valid aliases: {}.", served.join(", "));
        Self::new(404, "NotFoundError", message, Some("model"))
    }

    pub(crate) fn too_long(limit: u32) -> Self {
        let over = limit + 1;
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your prompt contains at least {over} input \
             tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input \
             prompt. (parameter=input_tokens, value={over})"
        );
        Self::bad(message, Some("input_tokens"))
    }

    pub(crate) fn too_much(limit: u32, wanted: u32, prompt: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, you requested {wanted} output tokens and your \
             prompt contains {prompt} input tokens. (parameter=input_tokens, value={prompt})"
        );
        Self::bad(message, Some("input_tokens"))
    }

    pub(crate) fn max_tokens(field: &str, wanted: i64, limit: u32) -> Self {
        if wanted < 1 {
            return Self::bad(
                format!("{field} must be at least 1, got {wanted}. (parameter={field}, value={wanted})"),
                Some(field),
            );
        }
        let message = format!(
            "{field}={wanted} cannot be greater than max_model_len={limit}. Please request fewer output tokens. \
             (parameter={field}, value={wanted})"
        );
        Self::bad(message, Some(field))
    }

    pub(crate) fn stream_options() -> Self {
        let message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
        Self::bad(message.to_owned(), Some("stream_options"))
    }

    pub(crate) fn rank(rank: &str) -> Self {
        Self::bad(format!("data_parallel_rank {rank} is out of range [0, 1)."), None)
    }

    pub(crate) fn full() -> Self {
        let message = "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                       different instance.";
        Self::new(503, "Service Unavailable", message.to_owned(), None)
    }

    pub(crate) fn draining() -> Self {
        Self::new(500, "InternalServerError", "cannot schedule new futures after shutdown".to_owned(), None)
    }

    pub(crate) fn dead() -> Self {
        Self::new(500, "InternalServerError", DEAD.to_owned(), None)
    }

    pub(crate) fn response_not_found(id: &str) -> Self {
        let message = format!("Response with id '{id}' not found.");
        Self::new(404, "invalid_request_error", message, Some("response_id"))
    }

    pub(crate) fn missing(field: &str, fields: usize) -> Self {
        let place = format!("body.{field}");
        let detail = format!(
            "{{'type': 'missing', 'loc': '{place}', 'msg': 'Field required', 'input': '<dict of {fields} items>'}}"
        );
        Self::invalid(&detail, Some(&place))
    }

    /// Why a body could not be read.
    pub(crate) fn body(body: &[u8], error: &serde_json::Error) -> Self {
        let Ok(value) = serde_json::from_slice::<Value>(body) else {
            let place = format!("body.{}", offset(body, error));
            let detail = format!(
                "{{'type': 'json_invalid', 'loc': '{place}', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', \
                 'ctx': {{'error': 'Expecting value'}}}}"
            );
            return Self::invalid(&detail, Some(&place));
        };
        for field in ["max_tokens", "max_completion_tokens", "max_output_tokens", "n", "min_tokens"] {
            if let Some(text) = value[field].as_str() {
                let place = format!("body.{field}");
                let detail = format!(
                    "{{'type': 'int_parsing', 'loc': '{place}', 'msg': 'Input should be a valid integer, unable to parse \
                     string as an integer', 'input': '{text}'}}"
                );
                return Self::invalid(&detail, Some(&place));
            }
        }
        Self::invalid(&format!("{{'type': 'value_error', 'loc': 'body', 'msg': '{error}'}}"), Some("body"))
    }

    /// The body of an error of OpenAI's APIs.
    pub(crate) fn json(&self) -> String {
        format!(
            r#"{{"error":{{"message":{},"type":{},"param":{},"code":{}}}}}"#,
            quoted(&self.message),
            quoted(self.kind),
            self.param.as_deref().map_or("null".to_owned(), quoted),
            self.status
        )
    }

    /// The body of an error of Anthropic's API.
    pub(crate) fn anthropic_json(&self) -> String {
        format!(
            r#"{{"type":"error","error":{{"type":{},"message":{}}}}}"#,
            quoted(self.kind),
            quoted(&self.message)
        )
    }
}

/// What a dead engine core says.
pub(crate) const DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

/// Where in `body` an error is, in bytes.
fn offset(body: &[u8], error: &serde_json::Error) -> usize {
    let before: usize = body
        .split(|&byte| byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(|line| line.len() + 1)
        .sum();
    (before + error.column()).min(body.len())
}
