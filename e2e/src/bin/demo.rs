//! The main job on one machine: two engines, the service, Envoy with the filter; a short conversation through it, and what
//! became of each request. `cargo xtask demo` builds what this needs.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bench_engine::{Engine, EngineConfig};
use e2e::client::{self, Call, Reply};
use e2e::envoy::{Envoy, Options};
use e2e::parts;
use e2e::records::Record;
use e2e::service::Service;
use e2e::vllm::Vllm;
use serde_json::{Value, json};

const SETTLED: Duration = Duration::from_secs(10);
const RULES: &str = "You are the keeper of a weir. You say how much water passed, where it went, and why it went there. \
    You answer in short words, you never guess, and you name the gauge that you read. The gauges are called north, south, \
    mill and tide; each is read every hour, and each reading is written into the book with its time.";
const QUESTIONS: [&str; 4] = [
    "How much water passed the north gauge this morning?",
    "And how much of it went to the mill?",
    "Why did the rest not go there?",
    "Write that into the book.",
];

struct Arguments {
    once: bool,
    vllm: bool,
}

fn arguments() -> Result<Arguments> {
    let mut arguments = Arguments { once: false, vllm: false };
    let mut list = std::env::args().skip(1);
    while let Some(word) = list.next() {
        match word.as_str() {
            "--once" => arguments.once = true,
            "--engine" => match list.next().as_deref() {
                Some("vllm") => arguments.vllm = true,
                Some("sim") => arguments.vllm = false,
                other => bail!("--engine takes sim or vllm, not {other:?}"),
            },
            other => bail!("unknown argument {other:?}; known are --once and --engine sim|vllm"),
        }
    }
    Ok(arguments)
}

/// The engines, whichever they are. Dropping them ends them.
enum Engines {
    Sim(Vec<Engine>),
    Vllm(Vec<Vllm>),
}

impl Engines {
    async fn start(vllm: bool, dir: &Path) -> Result<Self> {
        if !vllm {
            let preset = EngineConfig::preset("tiny").context("the preset of toy engines")?;
            let config = |name: &str| EngineConfig { name: name.to_owned(), ..preset.clone() };
            let engines = ["one", "two"].into_iter().map(|name| Engine::start(config(name)));
            return Ok(Self::Sim(engines.collect::<std::io::Result<_>>()?));
        }
        println!("starting two vLLM engines on the CPU; this takes about half a minute");
        let mut running = [0, 1].map(|n| Vllm::start(dir, n, &[])).into_iter().collect::<Result<Vec<_>>>()?;
        for engine in &mut running {
            engine.ready().await?;
        }
        Ok(Self::Vllm(running))
    }

    /// Asks vLLM to end; what doesn't is killed, workers and all.
    async fn stop(self) {
        let Self::Vllm(mut engines) = self else { return };
        for engine in &engines {
            drop(engine.terminate());
        }
        for engine in &mut engines {
            drop(engine.ended_within(Duration::from_secs(20)).await);
        }
    }

    /// Holds a record against the newest entry in the books of the simulated engine that answered.
    fn agree(&self, record: &Record) -> Result<()> {
        let Self::Sim(engines) = self else { return Ok(()) };
        let endpoint = record.endpoint.as_deref().unwrap_or_default();
        let engine = engines.iter().find(|engine| engine.address().to_string() == endpoint);
        let books = engine.with_context(|| format!("no engine listens on {endpoint:?}"))?.books();
        let entry = books.entries().last().context("the engine has no request in its books")?;
        let theirs = [entry.prompt_tokens, entry.generated_tokens, entry.cached_tokens].map(Some);
        let ours = [record.usage.input, record.usage.output, record.usage.cached];
        if ours != theirs {
            bail!("recorded input, output and cached tokens {ours:?}; the engine counted {theirs:?}");
        }
        Ok(())
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Sim(engines) => engines.iter().map(Engine::address).collect(),
            Self::Vllm(engines) => engines.iter().map(|engine| engine.address).collect(),
        }
    }
}

struct Stage {
    engines: Engines,
    service: Service,
    envoy: Envoy,
    _dir: tempfile::TempDir,
}

impl Stage {
    async fn start(vllm: bool) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("tokenweir-demo-").tempdir()?;
        let engines = Engines::start(vllm, dir.path()).await?;
        let mut service = Service::prepare(&dir.path().join("service"), false)?;
        service.config["pools"] = json!([{"name": "a", "models": ["tiny-llama"], "strategy": "least_work"}]);
        let endpoints = engines.addresses();
        service.write_endpoints(&[(
            "a".to_owned(),
            endpoints.iter().map(|address| (*address, true)).collect(),
        )])?;
        service.start().await?;
        let options = Options {
            pools: vec![("a".to_owned(), endpoints), ("b".to_owned(), Vec::new())],
            ext_proc_address: service.grpc.clone(),
            wasm: Some(parts::wasm()?),
            ..Options::default()
        };
        let envoy = Envoy::start(&dir.path().join("envoy"), options).await?;
        Ok(Self { engines, service, envoy, _dir: dir })
    }

    async fn ask(&self, call: Call) -> Result<(Reply, Record, String)> {
        let reply = client::send(self.envoy.address, call.header("x-tenant", "demo")).await?;
        if reply.status != 200 {
            bail!("{}: {}", reply.status, reply.text());
        }
        let id = self.newest_pick().await?;
        let exchange = id["exchange"].as_str().unwrap_or_default().to_owned();
        let log = self
            .service
            .records_when("the record of this request", SETTLED, |log| {
                log.newest().contains_key(exchange.as_str())
            })
            .await?;
        let record = log.newest().get(exchange.as_str()).copied().cloned().context("the record")?;
        self.engines.agree(&record)?;
        let why =
            format!("{}, {}", id["strategy"].as_str().unwrap_or("?"), id["reason"].as_str().unwrap_or("?"));
        Ok((reply, record, why))
    }

    async fn newest_pick(&self) -> Result<Value> {
        Ok(self.service.admin_get("/debug/picks").await?.json()["picks"][0].clone())
    }
}

fn tell(what: &str, record: &Record, why: &str, reply: &Reply) -> Result<()> {
    let count = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
    // Of a whole answer the first byte is no first token.
    let ttft = record
        .ttft_us
        .filter(|_| record.events.is_some_and(|events| events > 0))
        .map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us as f64 / 1000.0));
    let usage = &record.usage;
    println!("{what}");
    println!("    endpoint {} ({why})", record.endpoint.as_deref().unwrap_or("none"));
    println!(
        "    tokens in {}, out {}, cached {}   time to first token {ttft}   usage {}, end {}",
        count(usage.input),
        count(usage.output),
        count(usage.cached),
        record.usage_source.as_deref().unwrap_or("?"),
        record.end.as_deref().unwrap_or("?")
    );
    // The gateway asks the engine for usage; a client that did not ask must not see it.
    let seen = reply.text().contains("\"usage\"");
    println!("    usage in the client's answer: {}", if seen { "yes" } else { "no" });
    if seen && record.api.as_deref() == Some("chat_completions") {
        bail!("the client did not ask for usage and got it");
    }
    Ok(())
}

async fn converse(stage: &Stage) -> Result<()> {
    let mut messages = vec![json!({"role": "system", "content": RULES})];
    for (turn, question) in (1..).zip(QUESTIONS) {
        messages.push(json!({"role": "user", "content": question}));
        let body = json!({"model": "tiny-llama", "messages": messages, "max_tokens": 24, "stream": true, "temperature": 0});
        let (reply, record, why) = stage.ask(Call::json("/v1/chat/completions", &body)).await?;
        tell(&format!("turn {turn}, POST /v1/chat/completions, streamed"), &record, &why, &reply)?;
        messages.push(json!({"role": "assistant", "content": reply.answer()}));
    }
    let body = json!({"model": "tiny-llama", "max_tokens": 12, "system": RULES,
        "messages": [{"role": "user", "content": "Thank you."}]});
    let (reply, record, why) = stage.ask(Call::json("/v1/messages", &body)).await?;
    tell("POST /v1/messages, one JSON answer", &record, &why, &reply)?;
    let refused = client::send(
        stage.envoy.address,
        Call::json("/v1/chat/completions", &json!({"model": "gpt-9", "messages": []})),
    )
    .await?;
    println!("a model that nobody serves: {} {}", refused.status, refused.text());
    Ok(())
}

async fn show_metrics(stage: &Stage) -> Result<()> {
    let text = stage.service.admin_get("/metrics").await?.text();
    println!("\nhttp://{}/metrics says:", stage.service.admin);
    let shown = [
        "tokenweir_requests_total",
        "tokenweir_input_tokens_total",
        "tokenweir_output_tokens_total",
        "tokenweir_cached_tokens_total",
        "tokenweir_picks_total",
        "tokenweir_in_flight",
        "tokenweir_time_to_first_token_seconds_sum",
        "tokenweir_time_to_first_token_seconds_count",
        "tokenweir_unmetered_total",
        "tokenweir_rejects_total",
    ];
    // The exporter's order changes from run to run.
    let mut lines: Vec<&str> =
        text.lines().filter(|line| shown.iter().any(|name| line.starts_with(name))).collect();
    lines.sort_unstable();
    for line in lines {
        println!("    {line}");
    }
    Ok(())
}

fn invite(stage: &Stage) {
    let envoy = stage.envoy.address;
    println!("\nIt stays up until Ctrl-C. Try:");
    println!("  curl http://{envoy}/v1/models");
    println!(
        "  curl -N http://{envoy}/v1/chat/completions -H 'content-type: application/json' -H 'x-tenant: me' \\\n    \
         -d '{{\"model\":\"tiny-llama\",\"stream\":true,\"max_tokens\":20,\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'"
    );
    println!("  curl http://{}/debug/picks", stage.service.admin);
    println!("  curl http://{}/metrics", stage.service.admin);
    println!("  curl 'http://{}/stats?filter=wasmcustom'", stage.envoy.admin);
    println!("  tail -f {}", stage.service.log_path().display());
}

/// Ctrl-C, or whatever else ends a process politely.
async fn asked_to_end() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut hangup) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    tokio::select! {
        done = tokio::signal::ctrl_c() => done?,
        _ = term.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = arguments()?;
    let stage = Stage::start(arguments.vllm).await?;
    let engines: Vec<String> = stage.engines.addresses().iter().map(ToString::to_string).collect();
    println!(
        "client -> Envoy {} -> tokenweir {} -> engines {}\n",
        stage.envoy.address,
        stage.service.grpc,
        engines.join(", ")
    );
    let told = async {
        converse(&stage).await?;
        show_metrics(&stage).await
    };
    let told = told.await;
    if told.is_ok() && !arguments.once {
        invite(&stage);
        asked_to_end().await?;
    }
    stage.engines.stop().await;
    told
}
