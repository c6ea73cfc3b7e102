//! What real vLLM does on the wire and the gateway builds on. When a newer vLLM does otherwise, this says so.

use super::Stage;
use e2e::client::{Call, Ended, Reply};
use serde_json::{Value, json};

pub async fn hold(stage: &mut Stage) {
    ends(stage).await;
    anthropic_leaves_cached_tokens_out(stage).await;
    nothing_is_told_that_was_not_asked_for(stage).await;
}

fn messages(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

async fn ask(stage: &Stage, path: &str, body: &Value) -> Reply {
    let reply = stage.harness.send(Call::json(path, body).header("x-tenant", "facts")).await.unwrap();
    assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete), "{}", reply.text());
    reply
}

/// `[DONE]` ends chats and completions; responses and messages end with an event of their own.
async fn ends(stage: &Stage) {
    let chat = json!({"model": "tiny-llama", "max_tokens": 4, "stream": true, "messages": messages("hello")});
    let prompt = json!({"model": "tiny-llama", "max_tokens": 4, "stream": true, "prompt": "hello"});
    let input = json!({"model": "tiny-llama", "max_output_tokens": 4, "stream": true, "input": "hello"});
    for (path, body, done, last) in [
        ("/v1/chat/completions", &chat, true, "data: [DONE]"),
        ("/v1/completions", &prompt, true, "data: [DONE]"),
        ("/v1/responses", &input, false, "event: response."),
        ("/v1/messages", &chat, false, "event: message_stop"),
    ] {
        let text = ask(stage, path, body).await.text();
        assert_eq!(text.contains("[DONE]"), done, "{path}: {text}");
        let end = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
        assert!(end.starts_with(last), "{path}: {end}");
    }
}

/// `message_start` says the whole prompt; `message_delta` says it without what was cached or newly cached. Their sum is
/// what is recorded.
async fn anthropic_leaves_cached_tokens_out(stage: &mut Stage) {
    let text = "Where did the water go, and why did it go there? ".repeat(20);
    let body = json!({"model": "tiny-llama", "max_tokens": 4, "stream": true, "messages": messages(&text)});
    let mut most = 0;
    // One of two engines has seen it by the third time.
    for _ in 0..3 {
        let reply = ask(stage, "/v1/messages", &body).await;
        let text = reply.text();
        let event = |kind: &str| -> Value {
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            let mut events = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
            events.find(|event| event["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {text}"))
        };
        let whole = event("message_start")["message"]["usage"]["input_tokens"].as_u64().unwrap();
        let usage = event("message_delta")["usage"].clone();
        let part = |name: &str| usage[name].as_u64().unwrap_or(0);
        let (rest, cached) = (part("input_tokens"), part("cache_read_input_tokens"));
        assert_eq!(rest + cached + part("cache_creation_input_tokens"), whole, "{text}");
        assert!(rest < whole, "{text}");
        let id = reply.request_id();
        let found = stage
            .service()
            .records_when("its record", super::SETTLED, |log| log.by_request_id().contains_key(id.as_str()));
        let log = found.await.unwrap();
        let record = log.by_request_id()[id.as_str()];
        assert_eq!(
            (record.usage.input, record.usage.cached.unwrap_or(0)),
            (Some(whole), cached),
            "{record:?}"
        );
        most = most.max(cached);
    }
    assert!(most > 0, "nothing was cached");
}

/// The engine is asked for usage and the client is not told, not even by an empty list of choices.
async fn nothing_is_told_that_was_not_asked_for(stage: &Stage) {
    let chat = json!({"model": "tiny-llama", "max_tokens": 6, "stream": true, "messages": messages("hello")});
    let text = ask(stage, "/v1/chat/completions", &chat).await.text();
    assert!(!text.contains("\"usage\"") && !text.contains("\"choices\":[]"), "{text}");
    let direct = e2e::client::send(stage.engines[0].address, Call::json("/v1/chat/completions", &chat)).await;
    let keys = |text: &str| -> Vec<String> {
        let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("data: ").to_owned();
        let object = serde_json::from_str::<Value>(&first).unwrap();
        object.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(keys(&text), keys(&direct.unwrap().text()), "the same members as without the gateway");
}
