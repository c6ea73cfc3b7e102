//! What a vLLM engine tells about itself, read without I/O.
//!
//! [`metrics`] reads the text of `GET /metrics` into one [`metrics::EngineStats`] per engine and model. It reports what
//! the page says, also where that can't be true: who routes by it decides what to believe. Nothing here panics, and
//! every list, label and page has its bound in [`metrics::limits`].

pub mod metrics;
