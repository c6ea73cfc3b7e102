//! Request bodies for the suites, and a seeded mix of them.

use crate::client::Call;
use serde_json::{Value, json};

/// Which usage a streaming client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Nothing,
    Final,
    Continuous,
}

impl Wish {
    fn put(self, body: &mut Value) {
        match self {
            Self::Nothing => {}
            Self::Final => body["stream_options"] = json!({"include_usage": true}),
            Self::Continuous => {
                body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
            }
        }
    }
}

/// A streamed chat of `tokens` tokens for pool `a`.
#[must_use]
pub fn chat(tokens: u64, wish: Wish) -> Value {
    let mut body = json!({
        "model": "tiny-llama", "stream": true, "max_tokens": tokens,
        "messages": [{"role": "system", "content": "You count."}, {"role": "user", "content": "How far?"}],
    });
    wish.put(&mut body);
    body
}

/// A streamed chat as a call.
#[must_use]
pub fn chat_call(tokens: u64) -> Call {
    Call::json("/v1/chat/completions", &chat(tokens, Wish::Nothing))
}

/// The n-th call of a mix: the four streaming APIs and JSON bodies, every usage wish, tools, several choices, batches,
/// prompts of 10 bytes to some KiB. Models alternate between the pools.
#[must_use]
pub fn mixed(n: u64, tokens_max: u64) -> Call {
    let mut random = fastrand::Rng::with_seed(n ^ 0x7765_6972);
    let model = if random.u8(..4) == 0 { "tiny-b" } else { "tiny-llama" };
    let wish = [Wish::Nothing, Wish::Final, Wish::Continuous][random.usize(..3)];
    let stream = random.u8(..4) != 0;
    let tokens = random.u64(1..=tokens_max);
    let prompt: String = (0..random.usize(10..3000)).map(|_| random.alphanumeric()).collect();
    let api = random.u8(..9);
    let mut body = match api {
        0..=2 => {
            let mut body = json!({"model": model, "max_tokens": tokens, "n": random.u64(1..4),
                "messages": [{"role": "user", "content": prompt}]});
            if random.u8(..4) == 0 {
                body["tools"] =
                    json!([{"type": "function", "function": {"name": "measure", "parameters": {}}}]);
            }
            body
        }
        3 => {
            json!({"model": model, "max_tokens": tokens, "n": random.u64(1..3), "prompt": [prompt, "second"]})
        }
        4 => json!({"model": model, "max_tokens": tokens, "prompt": prompt}),
        5 => json!({"model": model, "max_output_tokens": tokens, "input": prompt}),
        6 | 7 => {
            let mut body = json!({"model": model, "max_tokens": tokens, "system": "You count.",
                "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}]});
            if api == 7 && stream {
                body["tools"] = json!([{"name": "measure", "input_schema": {"type": "object"}}]);
            }
            body
        }
        _ => json!({"model": model, "input": [prompt, "second"]}),
    };
    let path = match api {
        0..=2 => "/v1/chat/completions",
        3 | 4 => "/v1/completions",
        5 => "/v1/responses",
        6 | 7 => "/v1/messages",
        _ => "/v1/embeddings",
    };
    if api < 8 {
        body["stream"] = json!(stream);
    }
    if api < 5 && stream {
        wish.put(&mut body);
    }
    Call::json(path, &body)
}

/// How many choices an answer to `call` has: `n` for each prompt.
#[must_use]
pub fn choices(call: &Call) -> u64 {
    let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
    let prompts =
        body["prompt"].as_array().filter(|list| list.iter().all(|one| !one.is_number())).map_or(1, Vec::len);
    body["n"].as_u64().unwrap_or(1) * prompts as u64
}
