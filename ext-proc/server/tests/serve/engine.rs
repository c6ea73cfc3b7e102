//! A fake engine: `/metrics` and `/v1/models` as a test wants them, whatever they say.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;

/// What `/metrics` says.
#[derive(Clone, Debug)]
pub(crate) enum Page {
    /// A live page.
    Load { running: u32, waiting: u32, kv: f64 },
    /// A live page of an engine that sleeps.
    Asleep,
    /// The same page for ever.
    Frozen,
    /// Numbers that no engine can have.
    Absurd,
    /// Somebody else's page.
    Html,
    /// An error.
    Error,
    /// An answer that doesn't come in time.
    Slow,
}

#[derive(Debug)]
struct State {
    page: Page,
    models: Vec<&'static str>,
    /// Grows with every answer, as a live engine's counters do.
    asked: u64,
}

/// The engine; it serves as long as the test's runtime lives.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Engine {
    pub(crate) async fn start(page: Page, models: &[&'static str]) -> Self {
        let state = Arc::new(Mutex::new(State { page, models: models.to_vec(), asked: 0 }));
        let (metrics, list) = (Arc::clone(&state), Arc::clone(&state));
        let router = Router::new()
            .route("/metrics", get(async move || answer(&metrics).await))
            .route("/v1/models", get(async move || models_of(&list)));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = tokio_util::sync::CancellationToken::new();
        tokio::spawn(ext_proc_server::admin::serve(listener, router, stop));
        Self { address, state }
    }

    pub(crate) fn say(&self, page: Page) {
        self.state.lock().expect("the state").page = page;
    }
}

fn models_of(state: &Mutex<State>) -> String {
    let models = state.lock().expect("the state").models.clone();
    let list: Vec<_> = models.iter().map(|id| serde_json::json!({"id": id, "object": "model"})).collect();
    serde_json::json!({"object": "list", "data": list}).to_string()
}

async fn answer(state: &Mutex<State>) -> Response {
    let (page, asked) = {
        let mut state = state.lock().expect("the state");
        state.asked += 1;
        (state.page.clone(), state.asked)
    };
    match page {
        Page::Load { running, waiting, kv } => live(running, waiting, kv, 0, asked).into_response(),
        Page::Asleep => live(0, 0, 0.0, 1, asked).into_response(),
        Page::Frozen => live(1, 0, 0.1, 0, 7).into_response(),
        Page::Absurd => absurd(asked).into_response(),
        Page::Html => Html("<!doctype html><html><body>Welcome to nginx!</body></html>").into_response(),
        Page::Error => (StatusCode::INTERNAL_SERVER_ERROR, "out of order").into_response(),
        Page::Slow => {
            tokio::time::sleep(Duration::from_secs(5)).await;
            live(0, 0, 0.0, 0, asked).into_response()
        }
    }
}

fn live(running: u32, waiting: u32, kv: f64, asleep: u32, asked: u64) -> String {
    let labels = "{engine=\"0\",model_name=\"m\"}";
    format!(
        "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total {asked}.5\n\
         # TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{labels} {running}.0\n\
         vllm:num_requests_waiting{labels} {waiting}.0\n\
         vllm:kv_cache_usage_perc{labels} {kv}\n\
         vllm:num_preemptions_total{labels} 0.0\n\
         vllm:prompt_tokens_total{labels} {asked}0.0\n\
         vllm:generation_tokens_total{labels} {asked}0.0\n\
         vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"}} {}.0\n\
         vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"weights_offloaded\"}} {asleep}.0\n\
         vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"discard_all\"}} 0.0\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1000\",enable_prefix_caching=\"True\",engine=\"0\"}} 1.0\n",
        1 - asleep
    )
}

fn absurd(asked: u64) -> String {
    let labels = "{engine=\"0\",model_name=\"m\"}";
    format!(
        "process_cpu_seconds_total {asked}.5\n\
         vllm:num_requests_running{labels} -7.0\n\
         vllm:num_requests_waiting{labels} 1e300\n\
         vllm:kv_cache_usage_perc{labels} 4321.0\n\
         vllm:generation_tokens_total{labels} {asked}0.0\n"
    )
}
