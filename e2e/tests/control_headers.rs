//! A client's own control headers choose nothing, in any spelling, doubled, or in trailers.

use e2e::Harness;
use e2e::bodies::{Wish, chat, chat_call};
use e2e::client::raw::{self, Step};
use e2e::client::{Call, send_h2};
use std::time::Duration;

/// Names that a client must not be able to set, in several spellings.
const NAMES: [&str; 19] = [
    "x-tokenweir-pool",
    "X-Tokenweir-Pool",
    "X-TOKENWEIR-POOL",
    "x-tokenweir-anything",
    "x-gateway-destination-endpoint",
    "X-Gateway-Destination-Endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-vllm-priority",
    "X-Data-Parallel-Rank",
    "x-data-parallel-rank",
    "x-prefiller-host-port",
    "X-Prefiller-Url",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    "x-llm-d-inference-objective",
    "X-LLM-D-Anything",
    "x-gateway-inference-fairness-id",
];

/// What may reach an engine with the service's own value only, or not at all.
fn is_control(name: &str) -> bool {
    NAMES.iter().any(|control| control.eq_ignore_ascii_case(name))
        || ["x-tokenweir-", "x-gateway-destination-endpoint", "x-llm-d-", "x-gateway-inference-"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// What each forged header says: pool `b`'s endpoint, which must never be reached.
fn forged(harness: &Harness, name: &str) -> String {
    if name.to_ascii_lowercase().contains("pool") { "b".to_owned() } else { harness.engine(2).authority() }
}

fn assert_untouched(harness: &Harness, requests: usize) {
    assert_eq!(harness.engine(2).books().entries().len(), 0, "a client's header chose the endpoint");
    assert_eq!(harness.reached(), (requests, 0));
    for n in 0..2 {
        let (books, victim) = (harness.engine(n).books(), harness.engine(2).authority());
        let own = harness.engine(n).authority();
        for entry in books.entries() {
            for (name, value) in &entry.headers {
                assert!(!value.contains(&victim), "{name}: {value}");
                let allowed = match name.as_str() {
                    "x-tokenweir-pool" => value == "a",
                    "x-gateway-destination-endpoint" => value.contains(&own),
                    name => !is_control(name),
                };
                assert!(allowed, "{name}: {value} reached the engine");
            }
            let pools = entry.headers.iter().filter(|(name, _)| name == "x-tokenweir-pool").count();
            assert_eq!(pools, 1, "{:?}", entry.headers);
        }
    }
}

/// Headers, once and twice, over HTTP/1.1 and HTTP/2, on the protected route.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_headers_of_clients_are_ignored() {
    let harness = Harness::builder().start().await.unwrap();
    let mut requests = 0;
    for name in NAMES {
        let value = forged(&harness, name);
        let once = chat_call(2).header(name, &value);
        let twice = once.clone().header(name, &value).header("x-session-id", "s1");
        for call in [once, twice] {
            for reply in
                [harness.send(call.clone()).await.unwrap(), send_h2(harness.address(), call).await.unwrap()]
            {
                assert_eq!(reply.status, 200, "{name}: {}", reply.text());
                requests += 1;
            }
        }
    }
    assert_untouched(&harness, requests);
    let sessions = |n: usize| {
        let books = harness.engine(n).books();
        books.entries().iter().filter(|e| e.headers.iter().any(|(name, _)| name == "x-session-id")).count()
    };
    assert_eq!(sessions(0) + sessions(1), requests / 2, "x-session-id is the client's own and stays");
}

/// Spellings that only raw bytes can have: upper case, odd spaces, an empty value first, folded lines, trailers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_spellings_and_trailers_are_ignored() {
    let harness = Harness::builder().start().await.unwrap();
    let body = chat(2, Wish::Nothing).to_string();
    let length = format!("content-length: {}", body.len());
    let victim = harness.engine(2).authority();
    let lines = [
        "X-TOKENWEIR-POOL: b".to_owned(),
        "x-tokenweir-pool:b".to_owned(),
        "x-tokenweir-pool: \t b \t".to_owned(),
        "x-tokenweir-pool:\r\nx-tokenweir-pool: b".to_owned(),
        "x-tokenweir-pool : b".to_owned(),
        "x-tokenweir-pool: a\r\n b".to_owned(),
        "x_tokenweir_pool: b".to_owned(),
        format!("X-GATEWAY-destination-ENDPOINT: {victim}"),
        format!("connection: x-gateway-destination-endpoint\r\nx-gateway-destination-endpoint: {victim}"),
    ];
    for line in &lines {
        let text = raw::head("/v1/chat/completions", &[&length, "connection: close", line]) + &body;
        let answer =
            raw::converse(harness.address(), &[Step::text(&text)], Duration::from_secs(3)).await.unwrap();
        let status = raw::status(&answer);
        assert!(matches!(status, Some(200 | 400)), "{line:?}: {}", String::from_utf8_lossy(&answer));
    }
    let head =
        raw::head("/v1/chat/completions", &["transfer-encoding: chunked", "trailer: x-tokenweir-pool"]);
    let trailers = format!("0\r\nx-tokenweir-pool: b\r\nx-gateway-destination-endpoint: {victim}\r\n\r\n");
    let text = head + &raw::chunk(&body) + &trailers;
    let answer =
        raw::converse(harness.address(), &[Step::text(&text)], Duration::from_secs(3)).await.unwrap();
    assert_eq!(raw::status(&answer), Some(200), "{}", String::from_utf8_lossy(&answer));
    let (reached, _) = harness.reached();
    assert!(reached >= 5, "too few of the spellings were served to prove anything: {reached}");
    assert_untouched(&harness, reached);
}

/// On the open route, with the service gone, a client's headers still choose nothing: the default pool serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_headers_are_ignored_when_failing_open() {
    let mut harness = Harness::builder().start().await.unwrap();
    harness.service().unwrap().kill().unwrap();
    for name in NAMES {
        let call: Call = chat_call(2).open().header(name, &forged(&harness, name));
        let reply = harness.send(call).await.unwrap();
        assert_eq!(reply.status, 200, "{name}");
    }
    assert_eq!(harness.engine(2).books().entries().len(), 0);
    for n in 0..2 {
        for entry in harness.engine(n).books().entries() {
            assert!(!entry.verdict, "{entry:?}");
        }
    }
}
