use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use axum::{Router, routing::get};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::*;

/// A page of vLLM's, as far as it matters here.
const PAGE: &str = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0.0\n\
    vllm:cache_config_info{block_size=\"16\",kv_cache_size_tokens=\"4096\",enable_prefix_caching=\"True\",engine=\"0\"} 1.0\n";

/// An engine that lists `models`, and its address.
async fn engine(models: &'static [&'static str]) -> String {
    engine_with(models, PAGE).await
}

/// An engine with this page of metrics; an empty one: none.
async fn engine_with(models: &'static [&'static str], page: impl Into<String>) -> String {
    let list: Vec<_> = models.iter().map(|id| json!({"id": id})).collect();
    let list = json!({"data": list}).to_string();
    let page = page.into();
    let mut router = Router::new().route("/v1/models", get(move || async move { list }));
    if !page.is_empty() {
        router = router.route("/metrics", get(move || async move { page }));
    }
    listening(router).await
}

async fn listening(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(crate::admin::serve(listener, router, CancellationToken::new()));
    address
}

/// An address that nothing listens on.
async fn unused() -> String {
    TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address").to_string()
}

async fn examined(folder: &Path, listen: &str, endpoints: &str) -> Report {
    std::fs::write(folder.join("endpoints.yaml"), endpoints).expect("written");
    let text = format!(
        "{listen}\nstate_dir: '{}'\npools: [{{name: a, models: [m]}}, {{name: b, models: [n], engine: openai}}]\nendpoints: {{file: endpoints.yaml}}\n",
        folder.display()
    );
    let config =
        Config::parse(&text, &folder.join("tokenweir.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    run(&config).await
}

fn assert_lines(report: &Report, lines: &[String]) {
    let text = report.to_string();
    for line in lines {
        assert!(text.lines().any(|have| have.starts_with(line.as_str())), "{line}\nis not in\n{text}");
    }
}

#[tokio::test]
async fn a_healthy_setup_has_no_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let (grpc, admin) = (unused().await, unused().await);
    let (a, b) = (engine(&["x", "m"]).await, engine(&["n"]).await);
    let listen = format!(
        "listen: {{grpc: ['{grpc}', 'unix:{}'], admin: '{admin}'}}",
        folder.path().join("s").display()
    );
    let report = examined(
        folder.path(),
        &listen,
        &format!("pools: {{a: [{{address: '{a}'}}], b: [{{address: '{b}'}}]}}"),
    )
    .await;
    assert!(report.is_well(), "{report}");
    assert_lines(
        &report,
        &[
            "ok    configuration: ".to_owned(),
            "ok    state_dir: ".to_owned(),
            "ok    token key: ".to_owned(),
            format!("ok    gRPC listener {grpc}: free"),
            "ok    gRPC listener unix:".to_owned(),
            format!("ok    admin listener {admin}: free"),
            format!("ok    endpoint {a} of pool a: answers and serves m"),
            format!(
                "ok    signals of {a} of pool a: /metrics is vLLM's: 1 engine(s), a KV cache of 4096 tokens, prefix caching on"
            ),
            "skip  pool a: whether vLLM runs with --enable-prompt-tokens-details".to_owned(),
        ],
    );
    assert!(!report.to_string().contains("pool b: whether vLLM"));
    assert!(!report.to_string().contains("of pool b: /metrics"), "only vLLM is watched");
    // Nothing is left behind.
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[tokio::test]
async fn what_is_amiss_is_said_with_advice() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("token.key");
    std::fs::write(&key, [1; 32]).expect("written");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("set");
    let (gone, wrong, html) = (unused().await, engine(&["other"]).await, listening(Router::new()).await);
    // Both of our own addresses are some other program's.
    let (grpc, admin) = (html.clone(), engine(&[]).await);
    let listen = format!("listen: {{grpc: ['{grpc}', 'unix:/nonexistent/s'], admin: '{admin}'}}");
    let endpoints = format!(
        "pools: {{a: [{{address: '{gone}'}}, {{address: '{wrong}'}}, {{address: '{html}'}}], b: [{{address: '{gone}', ready: false}}]}}"
    );
    let report = examined(folder.path(), &listen, &endpoints).await;
    assert!(!report.is_well());
    assert_lines(
        &report,
        &[
            format!("warn  token key: {} has mode 0644", key.display()),
            format!("FAIL  gRPC listener {grpc}: something listens that does not answer gRPC health"),
            "FAIL  gRPC listener unix:/nonexistent/s: its folder does not exist".to_owned(),
            format!("FAIL  admin listener {admin}: something listens that is not tokenweir's admin port"),
            format!("FAIL  endpoint {gone} of pool a: refuses connections"),
            format!("FAIL  endpoint {wrong} of pool a: answers, but does not list m"),
            format!("FAIL  endpoint {html} of pool a: answers 404"),
            "warn  pool b: has no ready endpoint".to_owned(),
            format!("warn  endpoint {gone} of pool b: refuses connections"),
        ],
    );
    let advised =
        |finding: &&Finding| matches!(finding.level, Level::Warn | Level::Fail) && finding.advice.is_empty();
    assert_eq!(report.findings.iter().find(advised), None);
}

#[tokio::test]
async fn engines_that_cannot_be_watched_are_told_with_advice() {
    let folder = tempfile::tempdir().expect("a folder");
    let (grpc, admin) = (unused().await, unused().await);
    let uncached = PAGE.replace("\"True\"", "\"False\"");
    let engines = [
        engine_with(&["m"], "").await,
        engine_with(&["m"], "<html>Welcome</html>").await,
        engine_with(&["m"], uncached).await,
        engine_with(&["m"], "vllm:cache_config_info{block_size=\"16\",engine=\"0\"} 1.0\n").await,
    ];
    let list: Vec<String> = engines.iter().map(|engine| format!("{{address: '{engine}'}}")).collect();
    let endpoints = format!("pools: {{a: [{}], b: []}}", list.join(", "));
    let listen = format!("listen: {{grpc: '{grpc}', admin: '{admin}'}}");
    let report = examined(folder.path(), &listen, &endpoints).await;
    assert!(report.is_well(), "requests flow without signals: {report}");
    let [none, html, uncached, empty] = &engines;
    assert_lines(
        &report,
        &[
            format!(
                "warn  signals of {none} of pool a: GET /metrics is not found; for an engine that isn't vLLM set"
            ),
            format!("warn  signals of {html} of pool a: GET /metrics: "),
            format!("warn  signals of {uncached} of pool a: the engine runs without prefix caching; "),
            format!("warn  signals of {empty} of pool a: /metrics has no numbers of an engine; "),
        ],
    );
    let report = examined(folder.path(), &format!("{listen}\nsignals: {{enabled: false}}"), &endpoints).await;
    assert!(!report.to_string().contains("signals of"), "nobody asked for them: {report}");
}

#[tokio::test]
async fn what_a_serving_tokenweir_has_counted_tells_whether_engines_tell_cached_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    for (counted, line) in [
        (
            "tokenweir_input_tokens_total{model=\"m\",pool=\"a\",tenant=\"t\"} 90\ntokenweir_prefix_prompt_tokens_total{pool=\"a\"} 90\n",
            "ok    pool a: its engines tell cached tokens",
        ),
        (
            "tokenweir_input_tokens_total{model=\"m\",pool=\"a\",tenant=\"t\"} 90\n",
            "warn  pool a: no answer so far told its cached tokens",
        ),
        ("", "skip  pool a: whether vLLM runs with --enable-prompt-tokens-details"),
    ] {
        let router = Router::new()
            .route("/readyz", get(|| async { "{}" }))
            .route("/metrics", get(move || async move { counted }));
        let (grpc, admin) = (unused().await, listening(router).await);
        let listen = format!("listen: {{grpc: '{grpc}', admin: '{admin}'}}");
        let report = examined(folder.path(), &listen, "pools: {}").await;
        assert_lines(&report, &[line.to_owned()]);
    }
}

#[tokio::test]
async fn a_serving_tokenweir_is_recognised() {
    let folder = tempfile::tempdir().expect("a folder");
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let grpc = incoming.local_addr().expect("an address");
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let ready = Router::new().route("/readyz", get(|| async { "{}" }));
    let admin = listening(ready).await;
    let report =
        examined(folder.path(), &format!("listen: {{grpc: '{grpc}', admin: '{admin}'}}"), "pools: {}").await;
    assert_lines(
        &report,
        &[
            format!("ok    gRPC listener {grpc}: tokenweir is serving"),
            format!("ok    admin listener {admin}: tokenweir is ready"),
        ],
    );
    reporter.set_service_status("", tonic_health::ServingStatus::NotServing).await;
    let report =
        examined(folder.path(), &format!("listen: {{grpc: '{grpc}', admin: '{admin}'}}"), "pools: {x: []}")
            .await;
    assert_lines(
        &report,
        &[
            format!("warn  gRPC listener {grpc}: gRPC health says NOT_SERVING"),
            "FAIL  endpoints: ".to_owned(),
        ],
    );
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "state_dir: none\npools: [{name: a, models: [m]}]\nendpoints: {file: none.yaml}\n";
    let config = Config::parse(text, &folder.path().join("tokenweir.yaml")).expect("valid");
    let report = run(&config).await;
    assert_lines(&report, &["FAIL  state_dir: ".to_owned(), "FAIL  endpoints: ".to_owned()]);
}
