//! What a pick costs: `cargo run --release -p ext-proc-pick --example cost`. Noisy on a shared machine: read the least of
//! several runs.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Instant;

use ext_proc_pick::{Ask, Endpoint, Pool, PrefixBuilder, Settings, Ticket, Used};
use fastrand::Rng;

/// Rounds; the fastest counts.
const ROUNDS: usize = 7;
/// Exchanges a round.
const EXCHANGES: u32 = 2_000;

fn main() {
    for (endpoints, bytes) in
        [(8u16, 1_000), (64, 1_000), (64, 8_000), (64, 128_000), (64, 400_000), (1_000, 8_000)]
    {
        let mut pool = Pool::new(Settings::default());
        let list: Vec<Endpoint> = (0..endpoints)
            .map(|n| Endpoint { address: SocketAddr::from(([10, 0, 0, 1], 1_000 + n)), ready: true })
            .collect();
        pool.replace(&list);
        let mut rng = Rng::with_seed(1);
        let texts: Vec<Vec<u8>> = (0..64u8).map(|n| (0..bytes).map(|_| rng.u8(..) ^ n).collect()).collect();
        let (mut hash, mut pick, mut rest, mut now) = (f64::MAX, f64::MAX, f64::MAX, 0);
        let mut next = 0;
        for _ in 0..ROUNDS {
            let mut prefixes = Vec::new();
            let start = Instant::now();
            for text in texts.iter().cycle().take(EXCHANGES as usize) {
                prefixes.push(black_box(PrefixBuilder::new(&[b"model"]).text(1, text).finish()));
            }
            hash = hash.min(start.elapsed().as_secs_f64());
            let mut served = Vec::new();
            let start = Instant::now();
            for prefix in &prefixes {
                let ask = Ask {
                    model: "model",
                    prefix,
                    prompt_bytes: prefix.bytes(),
                    prompt_token_ids: 0,
                    output_tokens_max: None,
                    stay: None,
                };
                let pick = black_box(pool.pick(Ticket(next), &ask, now, &mut rng));
                served.push((Ticket(next), pick.ok().and_then(|pick| pick.order.first().copied())));
                next += 1;
            }
            pick = pick.min(start.elapsed().as_secs_f64());
            now += 100;
            let start = Instant::now();
            for (ticket, by) in served {
                pool.answered(ticket, by, 200, None, now);
                pool.first_token(ticket, now);
                let tokens = Some(bytes / 4);
                pool.release(ticket, Used { input: tokens, cached: tokens, output: Some(100) }, now);
            }
            rest = rest.min(start.elapsed().as_secs_f64());
        }
        let us = |seconds: f64| seconds * 1e6 / f64::from(EXCHANGES);
        println!(
            "{endpoints:5} endpoints, {bytes:6} bytes: hash {:6.2} us, pick {:6.2} us, answered + first token + release {:6.2} us",
            us(hash),
            us(pick),
            us(rest)
        );
    }
}
