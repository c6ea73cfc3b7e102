//! The binary, served for real, with a tonic client that plays Envoy: in order, out of order, and leaving early.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test: what fails here must stop it"
)]

mod edges;
mod engine;
mod picks;
mod play;
mod reports;
mod signals;
mod streams;
