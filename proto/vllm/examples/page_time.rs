//! Prints how long one read of each given page takes: `cargo run --release -p proto-vllm --example page_time -- FILES`.
#![allow(clippy::print_stdout, reason = "a command that reports to its user")]

use std::hint::black_box;
use std::time::Instant;

use proto_vllm::metrics::read;

const ROUNDS: usize = 2_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let page = std::fs::read(&path)?;
        let mut micros = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            black_box(read(black_box(&page)))?;
            micros.push(start.elapsed().as_secs_f64() * 1e6);
        }
        micros.sort_by(f64::total_cmp);
        let at = |share: usize| micros.get(ROUNDS * share / 100).copied().unwrap_or_default();
        println!("{path}: {} bytes, p50 {:.1} us, p99 {:.1} us", page.len(), at(50), at(99));
    }
    Ok(())
}
