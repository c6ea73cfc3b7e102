//! The binary, served for real, with a tonic client that plays Envoy: in order, out of order, and leaving early.

mod play;
mod reports;
mod streams;
