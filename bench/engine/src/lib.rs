//! A simulated vLLM on the wire: what a gateway is measured against where no GPU is.
//!
//! It answers as vLLM 0.32 does (paths, bodies, errors, metrics), schedules and caches as vLLM's V1 engine does, takes as
//! long as a step-time model says, fails on demand, and keeps its own books. It shares no parser, framer, counter or
//! routing code with the product: what it counted is evidence.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use bench_engine::{Engine, EngineConfig};
//! let config = EngineConfig::preset("qwen3-32b-h100-tp2").unwrap_or_default();
//! let engine = Engine::start(EngineConfig { time_scale: 10.0, ..config })?;
//! println!("http://{}/v1/models", engine.address());
//! engine.set(|faults| faults.draining = true);
//! println!("{} requests", engine.books().entries().len());
//! # Ok(())
//! # }
//! ```

mod answer;
mod api;
mod ask;
pub mod books;
pub mod cache;
mod chat;
mod completions;
pub mod config;
pub mod control;
mod core;
mod engine;
mod flow;
mod http;
mod messages;
mod metrics;
mod prompt;
mod refusal;
mod responses;
pub mod scheduler;
pub mod speed;
mod state;
mod stream;
pub mod tokens;
mod turn;

pub use books::{Books, End, Entry};
pub use cache::BlockEvent;
pub use config::{EngineConfig, Faults, MetricsFault};
pub use engine::Engine;
pub use speed::Speed;
