//! What holds of a pool whatever happens to it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::float_cmp,
    reason = "all of it is test code"
)]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ext_proc_pick::{
    Ask, Endpoint, Health, LIST_MAX, NoPick, Observation, Pool, Prefix, PrefixBuilder, Settings, Stats,
    Strategy as By, Ticket, Used,
};
use fastrand::Rng;
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

fn address(port: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], u16::from(port)))
}

#[derive(Clone, Debug)]
enum Op {
    Pick { text: u8, stay: Option<u8> },
    Answered { which: usize, served: Option<u8>, status: u16 },
    FirstToken { which: usize },
    Release { which: usize, used: Used },
    Adopt { port: u8 },
    Replace { ready: Vec<(u8, bool)> },
    Observe { port: u8, health: Health, stats: Option<(u32, u32, f32)> },
    Wait { ms: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let port = || 1u8..7;
    let which = || any::<usize>();
    let count = || prop::option::of(prop_oneof![0u64..5_000, Just(u64::MAX)]);
    let used = (count(), count(), count()).prop_map(|(input, cached, output)| Used { input, cached, output });
    let health = prop::sample::select(vec![
        Health::Unknown,
        Health::Ready,
        Health::Unreachable,
        Health::Sleeping,
        Health::Stuck,
    ]);
    let stats = prop::option::of((0u32..50, 0u32..50, prop_oneof![0f32..1.0, Just(f32::NAN), Just(1e9)]));
    prop_oneof![
        8 => (0u8..6, prop::option::weighted(0.1, port())).prop_map(|(text, stay)| Op::Pick { text, stay }),
        4 => (which(), prop::option::of(port()), prop::sample::select(vec![200u16, 400, 429, 503])).prop_map(|(which, served, status)| Op::Answered { which, served, status }),
        3 => which().prop_map(|which| Op::FirstToken { which }),
        6 => (which(), used).prop_map(|(which, used)| Op::Release { which, used }),
        1 => port().prop_map(|port| Op::Adopt { port }),
        1 => prop::collection::vec((port(), any::<bool>()), 0..6).prop_map(|ready| Op::Replace { ready }),
        3 => (port(), health, stats).prop_map(|(port, health, stats)| Op::Observe { port, health, stats }),
        2 => prop_oneof![0u64..100, 0u64..30_000].prop_map(|ms| Op::Wait { ms }),
    ]
}

fn text(n: u8) -> Prefix {
    PrefixBuilder::new(&[]).text(0, &vec![n / 2; 1_000]).text(1, &vec![n; 1_000 * usize::from(n)]).finish()
}

proptest! {
    #[test]
    fn a_pick_is_always_eligible_and_what_was_reserved_is_released_to_nothing(
        strategy in prop::sample::select(By::ALL.to_vec()),
        ops in prop::collection::vec(op(), 0..120),
        seed in any::<u64>(),
    ) {
        let settings = Settings { strategy, exploration: 0.1, chunks_max: 60, ..Settings::default() };
        let mut pool = Pool::new(settings);
        let mut listed: Vec<(u8, bool)> = (1..5).map(|port| (port, true)).collect();
        let list = |listed: &[(u8, bool)]| -> Vec<Endpoint> {
            listed.iter().map(|&(port, ready)| Endpoint { address: address(port), ready }).collect()
        };
        pool.replace(&list(&listed));
        let mut rng = Rng::with_seed(seed);
        let (mut now, mut next, mut open) = (0u64, 0u128, Vec::new());
        for op in ops {
            match op {
                Op::Pick { text: n, stay } => {
                    next += 1;
                    let prefix = text(n);
                    let ask = Ask {
                        model: "m",
                        prefix: &prefix,
                        prompt_bytes: prefix.bytes(),
                        prompt_token_ids: 0,
                        output_tokens_max: None,
                        stay: stay.map(address),
                    };
                    match pool.pick(Ticket(next), &ask, now, &mut rng) {
                        Ok(pick) => {
                            prop_assert!((1..=LIST_MAX).contains(&pick.order.len()));
                            let distinct: BTreeSet<_> = pick.order.iter().collect();
                            prop_assert_eq!(distinct.len(), pick.order.len());
                            for picked in &pick.order {
                                let candidate = pick.candidates.iter().find(|c| c.address == *picked);
                                prop_assert!(candidate.is_some_and(|c| c.ready && c.excluded.is_none()));
                                // The last word on an endpoint that the list names twice holds.
                                let ready = listed.iter().rfind(|(port, _)| address(*port) == *picked);
                                prop_assert!(ready.is_some_and(|(_, ready)| *ready));
                            }
                            prop_assert!(stay.is_none_or(|port| pick.order == [address(port)]));
                            prop_assert!(pick.candidates.iter().all(|c| c.explanation.total_s.is_finite()));
                            open.push(Ticket(next));
                        }
                        Err(NoPick::Gone) => {
                            prop_assert!(stay.is_some_and(|port| listed.iter().all(|(listed, _)| *listed != port)));
                        }
                        Err(NoPick::NoneReady) => {}
                        Err(NoPick::NoneServes) => prop_assert!(false, "no model list was ever given"),
                    }
                }
                Op::Answered { which, served, status } if !open.is_empty() => {
                    pool.answered(open[which % open.len()], served.map(address), status, None, now);
                }
                Op::FirstToken { which } if !open.is_empty() => pool.first_token(open[which % open.len()], now),
                Op::Release { which, used } if !open.is_empty() => {
                    pool.release(open.swap_remove(which % open.len()), used, now);
                }
                Op::Adopt { port } => {
                    next += 1;
                    pool.adopt(Ticket(next), address(port), now);
                    open.push(Ticket(next));
                }
                Op::Replace { ready } => {
                    pool.replace(&list(&ready));
                    listed = ready;
                }
                Op::Observe { port, health, stats } => {
                    let stats = stats.map(|(running, waiting, kv_usage)| Stats { running, waiting, kv_usage, ..Stats::default() });
                    pool.observe(address(port), Observation { health, stats, models: None }, now);
                }
                Op::Wait { ms } => now += ms,
                Op::Answered { .. } | Op::FirstToken { .. } | Op::Release { .. } => {}
            }
            let held: u32 = (1..7).map(|port| pool.in_flight(address(port))).sum();
            prop_assert_eq!(held as usize, open.len());
            let chunks: usize = pool.occupancy().values().map(|o| o.chunks).sum();
            prop_assert!(chunks <= 60, "{} chunks", chunks);
        }
        for ticket in open {
            pool.release(ticket, Used::default(), now);
        }
        for (_, left) in pool.occupancy() {
            prop_assert_eq!((left.prefilling, left.prefill_tokens, left.generating, left.context_tokens), (0, 0, 0, 0));
        }
        prop_assert!(pool.candidates(now).all(|c| c.in_flight == 0 && c.explanation.wait_s == 0.0));
    }
}
