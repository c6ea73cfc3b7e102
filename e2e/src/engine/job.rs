//! One request as the engine understands it: what to say, how much, and which usage the client asked for.

use super::control::Settings;
use super::refusal::Refusal;
use super::text;
use http::{HeaderMap, header};
use serde_json::Value;

/// The most output tokens of one answer.
const OUTPUT_MAX: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Completions,
    Responses,
    Messages,
    CountTokens,
    Embeddings,
    Tokenize,
}

impl Kind {
    /// The API of a path.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/embeddings" => Self::Embeddings,
            "/tokenize" => Self::Tokenize,
            _ => return None,
        })
    }

    #[must_use]
    pub fn is_anthropic(self) -> bool {
        matches!(self, Self::Messages | Self::CountTokens)
    }
}

/// A request that will be answered.
#[derive(Clone, Debug)]
pub struct Job {
    pub kind: Kind,
    pub model: String,
    pub stream: bool,
    /// A last chunk with usage.
    pub include_usage: bool,
    /// Usage so far on every chunk.
    pub continuous_usage: bool,
    /// Output tokens of each choice.
    pub output: u64,
    pub n: u64,
    /// Name of the first tool, when there are tools.
    pub tool: Option<String>,
    /// The texts that are completed, one for each prompt of a batch.
    pub prompts: Vec<String>,
    /// A function of the body but for `stream_options` and `request_id`.
    pub seed: u64,
    /// The id that the response is to have.
    pub response_id: Option<String>,
    /// The response to go on from.
    pub previous: Option<String>,
    /// Keep the response.
    pub store: bool,
    /// Answer before generating.
    pub background: bool,
}

impl Job {
    /// Reads a body as vLLM would.
    pub fn parse(kind: Kind, headers: &HeaderMap, body: &[u8], settings: &Settings) -> Result<Self, Refusal> {
        let anthropic = kind.is_anthropic();
        let content_type =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        if content_type.split(';').next().is_none_or(|kind| kind.trim() != "application/json") {
            return Err(Refusal::content_type(anthropic));
        }
        let mut value: Value =
            serde_json::from_slice(body).map_err(|error| Refusal::bad_json(anthropic, error.column()))?;
        let mut take = |name: &str| value.as_object_mut().and_then(|object| object.remove(name));
        let (options, request_id) = (take("stream_options"), take("request_id"));
        let model = value.get("model").and_then(Value::as_str).unwrap_or("").to_owned();
        if !settings.models.contains(&model) {
            return Err(Refusal::unknown_model(anthropic, &model, &settings.models));
        }
        let stream = value.get("stream").and_then(Value::as_bool).unwrap_or(false);
        let takes_options = matches!(kind, Kind::Chat | Kind::Completions);
        if takes_options && !stream && options.as_ref().is_some_and(|options| !options.is_null()) {
            return Err(Refusal::stream_options_without_stream());
        }
        let wish = |name: &str| {
            options.as_ref().and_then(|options| options.get(name)).and_then(Value::as_bool).unwrap_or(false)
        };
        let include_usage = stream && (settings.force_usage || wish("include_usage"));
        let continuous_usage = include_usage && (settings.force_usage || wish("continuous_usage_stats"));
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let output = match kind {
            Kind::Responses => number("max_output_tokens"),
            _ => number("max_completion_tokens").or_else(|| number("max_tokens")),
        };
        let tool = value.pointer("/tools/0/function/name").or_else(|| value.pointer("/tools/0/name"));
        Ok(Self {
            kind,
            prompts: prompts(kind, &value)?,
            model,
            stream,
            include_usage,
            continuous_usage,
            output: output.unwrap_or(settings.default_tokens).clamp(1, OUTPUT_MAX),
            n: number("n").unwrap_or(1).clamp(1, 64),
            tool: tool.and_then(Value::as_str).map(str::to_owned),
            seed: text::hash(value.to_string().as_bytes()),
            response_id: request_id.as_ref().and_then(Value::as_str).map(str::to_owned),
            previous: value.get("previous_response_id").and_then(Value::as_str).map(str::to_owned),
            store: settings.keep_responses && value.get("store").and_then(Value::as_bool).unwrap_or(true),
            background: value.get("background").and_then(Value::as_bool).unwrap_or(false),
        })
    }

    /// Prompt tokens of all prompts.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| text::tokens(prompt)).sum()
    }

    /// Output tokens of all choices.
    #[must_use]
    pub fn completion_tokens(&self) -> u64 {
        match self.kind {
            Kind::Embeddings | Kind::CountTokens | Kind::Tokenize => 0,
            Kind::Chat | Kind::Completions => self.output * self.n * self.prompts.len() as u64,
            Kind::Responses | Kind::Messages => self.output,
        }
    }

    /// The id of the response that this makes.
    #[must_use]
    pub fn response_id(&self) -> String {
        self.response_id.clone().unwrap_or_else(|| self.id("resp_"))
    }

    /// `chatcmpl-…` and the like.
    #[must_use]
    pub fn id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}", text::mix(self.seed, text::hash(prefix.as_bytes())))
    }
}

fn prompts(kind: Kind, value: &Value) -> Result<Vec<String>, Refusal> {
    let field = match kind {
        Kind::Chat | Kind::Messages | Kind::CountTokens => "messages",
        Kind::Completions => "prompt",
        Kind::Responses | Kind::Embeddings => "input",
        Kind::Tokenize if value.get("messages").is_some() => "messages",
        Kind::Tokenize => "prompt",
    };
    let Some(prompt) = value.get(field) else {
        return Err(Refusal::missing(kind.is_anthropic(), field));
    };
    let batch = matches!(kind, Kind::Completions | Kind::Embeddings);
    match prompt.as_array() {
        // A list of texts or of token lists is a batch; a list of numbers is one prompt.
        Some(items) if batch && !items.is_empty() && !items.iter().all(Value::is_number) => {
            Ok(items.iter().map(|item| text_of(&[Some(item)])).collect())
        }
        _ => Ok(vec![text_of(&[
            value.get("tools"),
            value.get("system"),
            value.get("instructions"),
            Some(prompt),
        ])]),
    }
}

fn text_of(parts: &[Option<&Value>]) -> String {
    let mut out = String::new();
    parts.iter().flatten().for_each(|part| text::collect(part, &mut out));
    out
}
