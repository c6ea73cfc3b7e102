//! What the instant upstream answers, and what a client must get: fixed bytes, so that checking an answer is comparing it.

use std::time::Duration;

/// `chat.completion` and streams carry these counts.
const PROMPT_TOKENS: u64 = 1_000;
/// Time between two events of a paced stream.
pub(crate) const PACE: Duration = Duration::from_millis(1);
/// Words that streamed events carry, in turn.
const WORDS: [&str; 8] = [" the", " water", " goes", " where", " the", " weir", " lets", " it"];

/// How an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One JSON body with usage.
    Whole,
    /// SSE with this many content events, written as fast as the connection takes them.
    Stream(usize),
    /// The same, one event a tick of [`PACE`], as engines send them: each is a chunk of its own wherever it passes.
    Paced(usize),
    /// The beginning of a stream that never goes on.
    Held,
}

impl Form {
    /// Its text in the request header that asks for it.
    pub(crate) fn header(self) -> String {
        match self {
            Self::Whole => "whole".to_owned(),
            Self::Stream(events) => format!("stream={events}"),
            Self::Paced(events) => format!("paced={events}"),
            Self::Held => "held".to_owned(),
        }
    }

    /// Reads that header.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"whole" => Some(Self::Whole),
            b"held" => Some(Self::Held),
            _ => {
                let (name, events) = std::str::from_utf8(text).ok()?.split_once('=')?;
                let events = events.parse().ok()?;
                match name {
                    "stream" => Some(Self::Stream(events)),
                    "paced" => Some(Self::Paced(events)),
                    _ => None,
                }
            }
        }
    }
}

/// A whole answer.
pub(crate) fn whole() -> Vec<u8> {
    let text: String = (0..64).map(|n| WORDS[n % WORDS.len()]).collect();
    format!(
        "{{\"id\":\"chatcmpl-5a1d\",\"object\":\"chat.completion\",\"created\":1796099437,\"model\":\"tiny-llama\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\",\"refusal\":null,\
         \"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null}},\"logprobs\":null,\
         \"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}}],\"service_tier\":null,\
         \"system_fingerprint\":\"vllm-0.32\",\"usage\":{{\"prompt_tokens\":{PROMPT_TOKENS},\"total_tokens\":{},\
         \"completion_tokens\":64,\"prompt_tokens_details\":{{\"cached_tokens\":512}}}}}}",
        PROMPT_TOKENS + 64
    )
    .into_bytes()
}

/// The events of a stream as vLLM sends them: with usage in each and at the end, or with none.
pub(crate) fn stream(events: usize, usage: bool) -> Vec<Vec<u8>> {
    let lead = "\"id\":\"chatcmpl-5a1d\",\"object\":\"chat.completion.chunk\",\"created\":1796099437,\
                \"model\":\"tiny-llama\"";
    let running = |n: usize| {
        let total = PROMPT_TOKENS + n as u64;
        let counts = format!(
            ",\"usage\":{{\"prompt_tokens\":{PROMPT_TOKENS},\"total_tokens\":{total},\"completion_tokens\":{n}}}"
        );
        if usage { counts } else { String::new() }
    };
    let event = |json: String| format!("data: {{{json}}}\n\n").into_bytes();
    let mut all = vec![event(format!(
        "{lead},\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
         \"finish_reason\":null}}]{}",
        running(0)
    ))];
    for n in 1..=events {
        let finish = if n == events { "\"length\",\"stop_reason\":null" } else { "null" };
        // vLLM puts the fingerprint on the usage event where there is one.
        let stamp = if n == events && !usage { ",\"system_fingerprint\":\"vllm-0.32\"" } else { "" };
        all.push(event(format!(
            "{lead},\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{}\"}},\"logprobs\":null,\
             \"finish_reason\":{finish},\"token_ids\":null}}]{stamp}{}",
            WORDS[n % WORDS.len()],
            running(n)
        )));
    }
    if usage {
        all.push(event(format!(
            "{lead},\"choices\":[]{},\"system_fingerprint\":\"vllm-0.32\"",
            running(events)
        )));
    }
    all.push(b"data: [DONE]\n\n".to_vec());
    all
}

/// A page of vLLM's `/metrics`, for whoever polls.
pub(crate) const METRICS: &str = "\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"tiny-llama\"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny-llama\"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny-llama\"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"8192\"} 1.0
";

/// `/v1/models`.
pub(crate) const MODELS: &str = "{\"object\":\"list\",\"data\":[{\"id\":\"tiny-llama\",\"object\":\"model\",\
    \"created\":1796099437,\"owned_by\":\"vllm\",\"root\":\"tiny-llama\",\"parent\":null,\"max_model_len\":131072}]}";
