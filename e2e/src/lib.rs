//! Suites with real parts: Envoy, the `tokenweir` service and the filter, with engines and clients of our own.
//!
//! A test builds a [`Harness`]: engines that keep their own books ([`engine`]), the service as a child process
//! ([`service`]), Envoy as a child process with the chain that Envoy Gateway programs ([`envoy`]), and talks to it
//! with [`client`]. Nothing here shares parsing code with the product, so that agreement between the two means something.

pub mod bodies;
pub mod client;
pub mod engine;
pub mod envoy;
pub mod fake;
pub mod harness;
pub mod metrics;
pub mod parts;
pub mod process;
pub mod records;
pub mod rough;
pub mod sdk;
pub mod service;
pub mod sims;
pub mod template;
pub mod vllm;

pub use harness::{Harness, HarnessBuilder};
