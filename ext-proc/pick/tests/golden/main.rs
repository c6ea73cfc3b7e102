//! Given a state of the pool, who is picked, in which order, and why.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::float_cmp,
    reason = "all of it is test code"
)]

mod faults;
mod learning;
mod load;
mod scene;
mod signals;
