//! Request bodies of an exact size: a chat of several messages, with the escapes and the non-ASCII text that real ones have.

use std::sync::Arc;

use fastrand::Rng;

use crate::answers::{self, Form};
use crate::load::Exchange;
use crate::upstream::FORM_HEADER;
use crate::wire::Expected;

/// Pieces of text; as JSON, so that sizes are exact.
const WORDS: [&str; 24] = [
    "river",
    "weir",
    "token",
    "the",
    "and",
    "of",
    "gauge",
    "\\n",
    "\\\"level\\\"",
    "flow",
    "été",
    "measure",
    "gate",
    "0.75",
    "spill",
    "→",
    "bank",
    "downstream",
    "fn main()",
    "{}",
    "\\t",
    "over",
    "水位",
    "again",
];
/// Different bodies of one size and seed.
pub(crate) const VARIANTS: usize = 16;

/// A chat body of exactly `bytes` bytes (at least 400), with or without `"stream": true`.
pub(crate) fn chat(bytes: usize, stream: bool, seed: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed);
    let mut body = String::with_capacity(bytes);
    body.push_str("{\"model\":\"tiny-llama\",\"messages\":[{\"role\":\"system\",\"content\":\"You keep the weir. Answer briefly.\"}");
    let tail = format!(
        "\"}}],\"max_tokens\":64,\"temperature\":0.7,\"top_p\":0.95,\"seed\":{},\"stream\":{stream}}}",
        rng.u32(1_000..9_999)
    );
    let room = bytes.saturating_sub(body.len() + tail.len());
    let messages = (room / 4096).clamp(3, 40);
    for message in 0..messages {
        let role = if message % 2 == 0 { "user" } else { "assistant" };
        if message > 0 {
            body.push_str("\"}");
        }
        body.push_str(&format!(",{{\"role\":\"{role}\",\"content\":\""));
        let end = body.len() + (bytes - tail.len() - body.len()) / (messages - message);
        text(&mut body, end, &mut rng);
    }
    body.push_str(&tail);
    body.into_bytes()
}

/// Words up to exactly `end`.
fn text(body: &mut String, end: usize, rng: &mut Rng) {
    // Left at the end: the longest word and what ends this message and begins the next.
    while body.len() + 64 < end {
        body.push_str(WORDS[rng.usize(..WORDS.len())]);
        body.push(' ');
    }
    while body.len() < end {
        body.push(char::from(rng.u8(b'a'..=b'z')));
    }
}

/// Exchanges through `host`: requests of this size, answered in this form, and what the client must get.
pub(crate) fn exchanges(host: &str, bytes: usize, form: Form, usage_seen: bool, seed: u64) -> Vec<Exchange> {
    let answer = Arc::new(match form {
        Form::Whole => Expected::whole(answers::whole()),
        Form::Stream(events) | Form::Paced(events) => Expected::stream(&answers::stream(events, usage_seen)),
        Form::Held => Expected::stream(&answers::stream(1, usage_seen)),
    });
    let exchange = |n: usize| {
        let body = chat(bytes, form != Form::Whole, seed * 1_000 + n as u64);
        Exchange { wire: Arc::new(request(host, form, &body)), answer: Arc::clone(&answer) }
    };
    (0..VARIANTS).map(exchange).collect()
}

fn request(host: &str, form: Form, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nuser-agent: OpenAI/Python 2.8.1\r\naccept: application/json\r\n\
         authorization: Bearer sk-bench-0123456789abcdef0123456789abcdef\r\nx-tenant: acme\r\ncontent-type: application/json\r\n\
         {FORM_HEADER}: {}\r\ncontent-length: {}\r\n\r\n",
        form.header(),
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_of_exactly_the_size_asked_for() {
        for bytes in [1 << 10, 8 << 10, 128 << 10, 400 << 10] {
            for seed in 0..20 {
                let body = chat(bytes, seed % 2 == 0, seed);
                assert_eq!(body.len(), bytes);
                let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert!(value["messages"].as_array().unwrap().len() >= 4);
            }
        }
    }
}
