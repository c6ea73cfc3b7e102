//! The ext_proc service, as a library: its binary is `tokenweir`.
//!
//! ```text
//! service → exchange (the state machine) → dispatch → pools, books     one stream per HTTP request
//! reports → books → pools, log                                          what the filter counted
//! app                                                                   builds all, owns the tasks, drains
//! ```

pub mod admin;
pub mod app;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod endpoints;
pub mod keys;
pub mod metrics;
pub mod telemetry;
pub mod tls;

mod books;
mod clock;
mod debug;
mod dispatch;
mod engines;
#[cfg(feature = "faults")]
mod faults;
mod generated;
mod log;
mod picks;
mod pools;
mod reports;
mod service;
mod settlement;
mod signals;
mod stored;
