//! One request over a kept connection, with the times of its tokens.

use crate::plan::Question;
use anyhow::{Context, Result, ensure};
use e2e::client::{Call, Connection, Protocol};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Idle connections that are kept.
const IDLE_MAX: usize = 1024;

/// Where requests of one strategy go.
pub struct Target {
    address: SocketAddr,
    model: String,
    idle: Mutex<Vec<Connection>>,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The generated text.
    pub text: String,
    /// When the first and the last token came.
    pub first: Option<Instant>,
    /// When the last token came.
    pub last: Option<Instant>,
    /// Prompt, cached and generated tokens, as the usage says.
    pub usage: Option<[u64; 3]>,
}

impl Target {
    /// `model` chooses the pool, and so the strategy.
    #[must_use]
    pub fn new(address: SocketAddr, model: &str) -> Self {
        Self { address, model: model.to_owned(), idle: Mutex::default() }
    }

    /// The body that asks `question` after `history`, pairs of question and answer.
    fn body(&self, question: &Question, history: &[(String, String)]) -> Value {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let mut messages = Vec::new();
        if !question.system.is_empty() {
            messages.push(message("system", &question.system));
        }
        for (asked, answered) in history {
            messages.extend([message("user", asked), message("assistant", answered)]);
        }
        messages.push(message("user", &question.user));
        json!({
            "model": self.model, "messages": messages, "stream": true,
            "max_tokens": question.output, "ignore_eos": true, "stream_options": {"include_usage": true},
        })
    }

    /// Asks, and reads the answer to its end.
    ///
    /// # Errors
    /// No connection, a status other than 200, an answer that breaks off, or none within `limit`.
    pub async fn ask(
        &self,
        question: &Question,
        history: &[(String, String)],
        limit: Duration,
    ) -> Result<Received> {
        let call = Call::json("/v1/chat/completions", &self.body(question, history));
        tokio::time::timeout(limit, self.exchange(&call)).await.context("no whole answer in time")?
    }

    async fn exchange(&self, call: &Call) -> Result<Received> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(self.address, Protocol::H1).await?,
        };
        let (head, mut body) = connection.start(call).await?;
        let mut received = Received::default();
        let (mut buffer, mut done) = (Vec::new(), false);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            buffer.extend_from_slice(&data);
            let now = Instant::now();
            while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = buffer.drain(..end + 2).collect();
                done |= received.take(&event, now);
            }
        }
        ensure!(head.status == 200, "status {}: {}", head.status, String::from_utf8_lossy(&buffer));
        ensure!(done && received.usage.is_some(), "the stream ended before its end");
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        Ok(received)
    }
}

impl Received {
    /// Takes one event; whether it was the last.
    fn take(&mut self, event: &[u8], now: Instant) -> bool {
        let Some(data) = event.trim_ascii().strip_prefix(b"data: ") else { return false };
        let Ok(data) = serde_json::from_slice::<Value>(data) else { return data == b"[DONE]" };
        let content = data.pointer("/choices/0/delta/content").and_then(Value::as_str).unwrap_or("");
        if !content.is_empty() {
            self.text.push_str(content);
            self.first.get_or_insert(now);
            self.last = Some(now);
        }
        if let Some(usage) = data.get("usage").filter(|usage| usage.is_object()) {
            let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).unwrap_or(0);
            let cached = count("/prompt_tokens_details/cached_tokens");
            self.usage = Some([count("/prompt_tokens"), cached, count("/completion_tokens")]);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_usage_and_end_are_seen() {
        let mut received = Received::default();
        let now = Instant::now();
        let role =
            br#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}"#;
        assert!(!received.take(role, now) && received.first.is_none());
        assert!(!received.take(br#"data: {"choices":[{"index":0,"delta":{"content":" ab"}}]}"#, now));
        let usage = br#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        assert!(!received.take(usage, now));
        assert!(received.take(b"data: [DONE]\n\n", now));
        assert_eq!((received.text.as_str(), received.usage), (" ab", Some([9, 4, 3])));
        assert_eq!(received.first, Some(now));
    }
}
