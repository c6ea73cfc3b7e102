//! Answers in vLLM's format, key for key: streams as a list of events, the rest as one JSON body.

mod anthropic;
mod openai;
mod responses;

use super::job::{Job, Kind};
use super::text;

/// `created` of every answer: fixed, so that answers can be compared.
const CREATED: u64 = 1_796_098_365;
const FINGERPRINT: &str = "vllm-0.32.0-260fbee7";
/// Numbers of one embedding.
const DIMENSIONS: u64 = 8;

/// Cached and newly cached prompt tokens of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cached {
    pub read: u64,
    pub created: u64,
}

/// One SSE event, and how many output tokens are out once it is.
#[derive(Clone, Debug)]
pub struct Piece {
    pub bytes: Vec<u8>,
    pub output: u64,
}

impl Piece {
    fn data(json: &str, output: u64) -> Self {
        Self { bytes: format!("data: {json}\n\n").into_bytes(), output }
    }

    fn event(name: &str, json: &str, output: u64) -> Self {
        Self { bytes: format!("event: {name}\ndata: {json}\n\n").into_bytes(), output }
    }

    fn done(output: u64) -> Self {
        Self { bytes: b"data: [DONE]\n\n".to_vec(), output }
    }
}

/// The events of a streamed answer.
#[must_use]
pub fn stream(job: &Job, cached: Cached) -> Vec<Piece> {
    match job.kind {
        Kind::Chat => openai::chat_stream(job, cached),
        Kind::Completions => openai::completions_stream(job, cached),
        Kind::Responses => responses::stream(job, cached),
        Kind::Messages => anthropic::stream(job, cached),
        Kind::CountTokens | Kind::Embeddings | Kind::Tokenize => Vec::new(),
    }
}

/// The words of an answer, for the conversation that goes on from it.
#[must_use]
pub fn said(job: &Job) -> String {
    responses::text(job)
}

/// A response that has no output yet, or never will.
#[must_use]
pub fn response_without_output(job: &Job, status: &str) -> String {
    responses::unfinished(job, status)
}

/// The body of an answer that is not streamed.
#[must_use]
pub fn whole(job: &Job, cached: Cached) -> String {
    match job.kind {
        Kind::Chat => openai::chat(job, cached),
        Kind::Completions => openai::completions(job, cached),
        Kind::Responses => responses::whole(job, cached),
        Kind::Messages => anthropic::whole(job, cached),
        Kind::CountTokens => {
            let count = job.prompt_tokens();
            format!(
                "{{\"input_tokens\":{count},\"context_management\":{{\"original_input_tokens\":{count}}}}}"
            )
        }
        Kind::Embeddings => embeddings(job),
        Kind::Tokenize => tokenize(job),
    }
}

/// What vLLM sends when its core dies mid-stream: an error event and `[DONE]`, without usage.
#[must_use]
pub fn death(kind: Kind) -> Vec<u8> {
    let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
    match kind {
        Kind::Messages => {
            let error = format!("{{\"type\":\"internal_error\",\"message\":\"{message}\"}}");
            format!("event: error\ndata: {{\"type\":\"error\",\"error\":{error}}}\n\n").into_bytes()
        }
        _ => format!(
            "data: {{\"error\": {{\"message\": \"{message}\", \"type\": \"InternalServerError\", \"param\": null, \
             \"code\": 500}}}}\n\ndata: [DONE]\n\n"
        )
        .into_bytes(),
    }
}

/// What vLLM sends on SIGTERM without drain, after `output` tokens of a chat.
#[must_use]
pub fn abort(job: &Job, cached: Cached, output: u64) -> Vec<u8> {
    openai::chat_abort(job, cached, output)
}

/// The models list.
#[must_use]
pub fn models(models: &[String]) -> String {
    let one = |model: &String| {
        format!(
            "{{\"id\":{},\"object\":\"model\",\"created\":{CREATED},\"owned_by\":\"vllm\",\"root\":\"/models/tiny\",\
             \"parent\":null,\"max_model_len\":2048,\"permission\":[]}}",
            text::quoted(model)
        )
    };
    let data: Vec<String> = models.iter().map(one).collect();
    format!("{{\"object\":\"list\",\"data\":[{}]}}", data.join(","))
}

fn embeddings(job: &Job) -> String {
    let one = |(index, prompt): (usize, &String)| {
        let seed = text::hash(prompt.as_bytes());
        let number = |n| format!("{:.6}", (text::mix(seed, n) % 2_000_000) as f64 / 1e6 - 1.0);
        let numbers: Vec<String> = (0..DIMENSIONS).map(number).collect();
        format!("{{\"index\":{index},\"object\":\"embedding\",\"embedding\":[{}]}}", numbers.join(","))
    };
    let data: Vec<String> = job.prompts.iter().enumerate().map(one).collect();
    let tokens = job.prompt_tokens();
    format!(
        "{{\"id\":\"{}\",\"object\":\"list\",\"created\":{CREATED},\"model\":{},\"data\":[{}],\"usage\":{{\
         \"prompt_tokens\":{tokens},\"total_tokens\":{tokens},\"completion_tokens\":0,\
         \"prompt_tokens_details\":null}}}}",
        job.id("embd-"),
        text::quoted(&job.model),
        data.join(",")
    )
}

fn tokenize(job: &Job) -> String {
    let count = job.prompt_tokens();
    let tokens: Vec<String> = (0..count).map(|n| (text::mix(job.seed, n) % 4096).to_string()).collect();
    format!(
        "{{\"count\":{count},\"max_model_len\":2048,\"tokens\":[{}],\"token_strs\":null}}",
        tokens.join(",")
    )
}
