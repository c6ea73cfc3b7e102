//! The thin whole: one request travels client → Envoy → service → engine → filter, and its tokens are counted.

use e2e::bodies::{Wish, chat, chat_call, choices};
use e2e::client::{self, Call, Ended};
use e2e::engine::Cache;
use e2e::envoy::BodyMode;
use e2e::{Harness, HarnessBuilder};
use serde_json::json;
use std::time::Duration;

const SETTLED: Duration = Duration::from_secs(10);

/// Each API, streamed and whole: the answer equals a direct call's, and the record equals the engine's books.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_api_travels_the_whole_way_and_is_counted() {
    travel(Harness::builder()).await;
}

/// The same over a Unix socket between Envoy and the service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_over_a_unix_socket() {
    travel(Harness::builder().over_unix_socket()).await;
}

/// The same with the request body sent piece by piece.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_in_full_duplex() {
    travel(Harness::builder().envoy(|options| options.body_mode = BodyMode::FullDuplexStreamed)).await;
}

async fn travel(builder: HarnessBuilder) {
    let mut harness = builder.start().await.unwrap();
    for (_, engine) in &harness.engines {
        engine.set(|settings| settings.cache = Cache::FromBody);
    }
    let long = "x".repeat(900);
    let tools = json!([{"name": "measure", "input_schema": {}}]);
    let calls = [
        ("chat_completions", Call::json("/v1/chat/completions", &chat(12, Wish::Nothing))),
        ("chat_completions", Call::json("/v1/chat/completions", &chat(12, Wish::Final))),
        ("chat_completions", Call::json("/v1/chat/completions", &chat(12, Wish::Continuous))),
        (
            "chat_completions",
            Call::json(
                "/v1/chat/completions",
                &json!({"model": "tiny-llama", "max_tokens": 5,
            "messages": [{"role": "user", "content": long}]}),
            ),
        ),
        (
            "completions",
            Call::json(
                "/v1/completions",
                &json!({"model": "tiny-llama", "max_tokens": 7, "n": 2,
            "stream": true, "prompt": [long, "b"]}),
            ),
        ),
        (
            "responses",
            Call::json(
                "/v1/responses",
                &json!({"model": "tiny-llama", "max_output_tokens": 9,
            "stream": true, "input": long}),
            ),
        ),
        ("responses", Call::json("/v1/responses", &json!({"model": "tiny-llama", "input": long}))),
        (
            "messages",
            Call::json(
                "/v1/messages",
                &json!({"model": "tiny-llama", "max_tokens": 9, "stream": true,
            "messages": [{"role": "user", "content": long}], "tools": tools}),
            ),
        ),
        (
            "messages",
            Call::json(
                "/v1/messages",
                &json!({"model": "tiny-llama", "max_tokens": 4,
            "messages": [{"role": "user", "content": "x"}]}),
            ),
        ),
        ("embeddings", Call::json("/v1/embeddings", &json!({"model": "tiny-llama", "input": ["x", long]}))),
    ];
    let mut sent = Vec::new();
    for (api, call) in calls {
        let reply = harness.send(call.clone()).await.unwrap();
        assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete), "{api}: {}", reply.text());
        sent.push((api, reply.request_id()));
        let choices = choices(&call);
        let direct = client::send(harness.engine(0).address, call).await.unwrap();
        assert_eq!(reply.comparable(choices), direct.comparable(choices), "{api}");
    }
    let count = sent.len();
    let service = harness.service().unwrap();
    let records =
        service.records_when("all records", SETTLED, |log| log.newest().len() >= count).await.unwrap();
    assert!(records.bad.is_empty() && records.doubled().is_empty(), "{records:?}");
    let records = records.by_request_id();
    let metrics = service.metrics().await.unwrap();
    let (mut input, mut output, mut cached) = (0, 0, 0);
    for (api, id) in sent {
        let record = records[id.as_str()];
        let engine = harness
            .engines
            .iter()
            .find(|(_, engine)| engine.books().by_request_id().contains_key(id.as_str()));
        let (pool, engine) = engine.unwrap_or_else(|| panic!("{id} reached no engine"));
        let books = engine.books();
        let entry = books.by_request_id()[id.as_str()];
        assert!(entry.verdict, "{entry:?}");
        assert_eq!(record.api.as_deref(), Some(api));
        assert_eq!(record.pool.as_ref(), Some(pool));
        assert_eq!(record.endpoint.as_deref(), Some(engine.authority().as_str()));
        assert_eq!(record.usage.input, Some(entry.prompt_tokens), "{record:?}\n{entry:?}");
        assert_eq!(record.usage.output.unwrap_or(0), entry.completion_tokens, "{record:?}\n{entry:?}");
        assert_eq!(record.usage.cached.unwrap_or(0), entry.cached_tokens, "{record:?}\n{entry:?}");
        assert_eq!(
            (record.usage_source.as_deref(), record.end.as_deref()),
            (Some("final"), Some("complete"))
        );
        input += entry.prompt_tokens;
        output += entry.completion_tokens;
        cached += entry.cached_tokens;
    }
    assert!(cached > 0, "the cached column was never tested");
    let sum = |name| metrics.sum(name, &[("pool", "a")]) as u64;
    assert_eq!(sum("tokenweir_input_tokens_total"), input);
    assert_eq!(sum("tokenweir_output_tokens_total"), output);
    assert_eq!(sum("tokenweir_cached_tokens_total"), cached);
}

/// A bodiless request gets its answer from the service, in both directions of the question "does it exist".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_listed_by_the_service() {
    let harness = Harness::builder().start().await.unwrap();
    let list = harness.send(Call::get("/v1/models")).await.unwrap();
    assert_eq!(list.status, 200);
    let ids: Vec<_> = list.json()["data"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, ["tiny-b", "tiny-llama"]);
    assert_eq!(harness.send(Call::get("/v1/models/tiny-b")).await.unwrap().json()["id"], "tiny-b");
    assert_eq!(harness.send(Call::get("/v1/models/none")).await.unwrap().status, 404);
    assert_eq!(harness.reached().0, 0);
}

/// The model chooses the pool, and the pool's rule in Envoy the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_chooses_the_pool() {
    let harness = Harness::builder().start().await.unwrap();
    let mut body = chat(3, Wish::Nothing);
    body["model"] = json!("tiny-b");
    let reply = harness.send(Call::json("/v1/chat/completions", &body)).await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(harness.engine(2).books().entries().len(), 1);
    assert_eq!(harness.send(chat_call(3)).await.unwrap().status, 200);
    assert_eq!((harness.reached(), harness.engine(2).books().entries().len()), ((2, 0), 1));
    let log = harness.envoy.access_log().await.unwrap();
    assert!(log.iter().any(|line| line["route"] == "protected-pool-b"), "{log:?}");
}

/// Round robin spreads over the pool's endpoints, and Envoy follows each choice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pick_decides_which_endpoint_serves() {
    let harness = Harness::builder().engines(&[("a", 4), ("b", 1)]).start().await.unwrap();
    for _ in 0..12 {
        assert_eq!(harness.send(chat_call(2)).await.unwrap().status, 200);
    }
    for n in 0..4 {
        assert_eq!(harness.engine(n).books().entries().len(), 3, "engine {n}");
    }
}
