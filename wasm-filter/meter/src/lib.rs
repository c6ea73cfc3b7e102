//! The filter's logic: meter each response, report it at least once, and let nothing pass that has no verdict.
//!
//! Pure behind one [`host::Host`] trait, so that whole streams run in native tests. Nothing here may panic: a panic ends
//! the WebAssembly VM of its worker, and with it every request of that worker.

pub mod config;
pub mod host;
pub mod queue;
pub mod reporter;
pub mod root;
pub mod stream;

mod body;
mod budget;
mod gaps;
mod outcome;

#[cfg(test)]
mod fake;
