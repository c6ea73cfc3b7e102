//! `tokenweir-engine`: simulated engines in one process. Prints where they listen as one line of JSON, and runs until it is
//! told to end.

use anyhow::{Context, Result, bail};
use bench_engine::{Engine, EngineConfig, control, speed};
use clap::Parser;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Simulated vLLM engines.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// How many engines.
    #[arg(long, default_value_t = 1)]
    count: u16,
    /// Where they listen.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// The first engine's port, the next ones counting up; 0: any free ones.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// The control API's port; 0: any free one.
    #[arg(long, default_value_t = 0)]
    control_port: u16,
    /// The model's and machine's speed and KV cache.
    #[arg(long, default_value = "llama-3.1-8b-h100")]
    preset: String,
    /// The served model.
    #[arg(long, default_value = "tiny-llama")]
    model: String,
    /// A LoRA adapter; may be repeated.
    #[arg(long)]
    lora: Vec<String>,
    /// Virtual seconds in one second.
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
    /// Steps end on a grid of this many milliseconds.
    #[arg(long, default_value_t = 1)]
    tick_ms: u64,
    /// Tokens of a block.
    #[arg(long, default_value_t = 16)]
    block_size: u32,
    /// Blocks of the KV cache instead of the preset's.
    #[arg(long)]
    num_gpu_blocks: Option<u32>,
    /// Requests of one batch.
    #[arg(long, default_value_t = 1024)]
    max_num_seqs: usize,
    /// Tokens of one step.
    #[arg(long, default_value_t = 8192)]
    max_num_batched_tokens: usize,
    /// Prompt and answer together.
    #[arg(long, default_value_t = 131_072)]
    max_model_len: u32,
    /// Unfinished requests beyond which new ones get 503.
    #[arg(long)]
    max_num_queued_reqs: Option<usize>,
    /// Prompt tokens in prefill from which on new requests get 503.
    #[arg(long)]
    max_num_queued_tokens: Option<u64>,
    /// Nothing is found again in the cache.
    #[arg(long)]
    no_prefix_caching: bool,
    /// A lower `priority` goes first.
    #[arg(long)]
    priority: bool,
    /// No `prompt_tokens_details`.
    #[arg(long)]
    no_prompt_tokens_details: bool,
    /// Seconds after which idle connections are closed.
    #[arg(long, default_value_t = 5)]
    keep_alive_s: u64,
    /// Threads; 0: one for each processor.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

impl Arguments {
    fn config(&self, number: u16) -> Result<EngineConfig> {
        let Some(preset) = EngineConfig::preset(&self.preset) else {
            let known: Vec<&str> = speed::PRESETS.iter().map(|preset| preset.name).collect();
            bail!("no preset {:?}; there are {}", self.preset, known.join(", "));
        };
        if self.time_scale <= 0.0 || self.block_size == 0 {
            bail!("--time-scale and --block-size are more than 0");
        }
        let port =
            if self.port == 0 { 0 } else { self.port.checked_add(number).context("ports end at 65535")? };
        let kv_tokens = preset.blocks.saturating_sub(1) * preset.block_tokens;
        Ok(EngineConfig {
            name: format!("engine-{number}"),
            address: SocketAddr::new(self.host, port),
            model: self.model.clone(),
            loras: self.lora.clone(),
            time_scale: self.time_scale,
            tick: Duration::from_millis(self.tick_ms),
            block_tokens: self.block_size,
            blocks: self.num_gpu_blocks.unwrap_or(kv_tokens / self.block_size + 1),
            max_num_seqs: self.max_num_seqs,
            max_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            prefix_caching: !self.no_prefix_caching,
            priority: self.priority,
            queue_requests: self.max_num_queued_reqs,
            queue_tokens: self.max_num_queued_tokens,
            prompt_tokens_details: !self.no_prompt_tokens_details,
            keep_alive: Duration::from_secs(self.keep_alive_s),
            ..preset
        })
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if arguments.threads > 0 {
        builder.worker_threads(arguments.threads);
    }
    builder.enable_all().build().context("starting the runtime")?.block_on(run(arguments))
}

async fn run(arguments: Arguments) -> Result<()> {
    let mut engines = Vec::new();
    for number in 0..arguments.count {
        let config = arguments.config(number)?;
        let address = config.address;
        engines.push(Engine::start(config).with_context(|| format!("an engine on {address}"))?);
    }
    let addresses: Vec<String> = engines.iter().map(|engine| engine.address().to_string()).collect();
    let control = control::serve(Arc::new(engines), SocketAddr::new(arguments.host, arguments.control_port));
    let control = control.await.context("the control API")?;
    println!("{}", json!({"engines": addresses, "control": control.to_string()}));
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        done = tokio::signal::ctrl_c() => done?,
        _ = term.recv() => {}
    }
    Ok(())
}
