//! What is in flight, and which prompt is where.

use std::collections::BTreeMap;

use ext_proc_pick::{Ask, NoPick, Prefix, Reason, Settings, Strategy, Ticket, Used};

use crate::scene::{Scene, address, plain, prompt, short, table};

#[test]
fn an_idle_pool_is_taken_in_turns_and_starts_anywhere() {
    let mut starts = std::collections::BTreeSet::new();
    for seed in 0..32 {
        let mut scene = Scene::new(3);
        scene.rng = fastrand::Rng::with_seed(seed);
        let mut seen = Vec::new();
        for _ in 0..6 {
            let (ticket, pick) = scene.ask(&Prefix::default());
            assert_eq!(pick.reason, Reason::TieInTurn);
            seen.push(pick.order[0].port());
            scene.pool.release(ticket, Used::default(), scene.now);
        }
        assert_eq!(seen[..3], seen[3..], "each once before any twice");
        starts.insert(seen[0]);
    }
    assert_eq!(starts.len(), 3);
}

#[test]
fn whoever_has_the_prompt_is_cheaper_by_its_prefill() {
    let mut scene = Scene::new(3);
    let known = prompt(&[('s', 16_000), ('q', 400)]);
    scene.serve(&known, 2, 4_101, 0);
    let (_, pick) = scene.ask(&prompt(&[('s', 16_000), ('r', 400)]));
    let lines = table(&pick);
    let mut lines: Vec<&str> = lines.lines().collect();
    lines[2..].sort_unstable();
    assert_eq!(
        lines,
        [
            "2,3,1 cheapest_warm",
            "2: 3968+133 tokens prefill 6 decode 417 = 424",
            "1: 0+4101 tokens prefill 182 decode 417 = 599",
            "3: 0+4101 tokens prefill 182 decode 417 = 599",
        ]
        .map(|line| line.replace("2,3,1", pick_order(&pick).as_str()))
    );
}

fn pick_order(pick: &ext_proc_pick::Pick) -> String {
    short(pick).split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn a_request_that_follows_soon_finds_the_prompt_of_the_one_in_flight() {
    let mut scene = Scene::new(4);
    let (_, first) = scene.ask(&prompt(&[('s', 30_000), ('q', 400)]));
    // At once, waiting for that prefill and computing it again elsewhere would take equally long.
    scene.now += 200;
    let (_, second) = scene.ask(&prompt(&[('s', 30_000), ('r', 400)]));
    assert_eq!((second.order[0], second.reason), (first.order[0], Reason::CheapestWarm));
}

#[test]
fn a_popular_prefix_does_not_pile_on_one_endpoint_while_others_idle() {
    let mut scene = Scene::new(4);
    let of = |n: u32| prompt(&[('s', 30_000), (char::from_u32(200 + n).unwrap(), 4_000)]);
    scene.serve(&of(0), 1, 8_000, 0);
    let mut counts = BTreeMap::new();
    let mut warm = 0;
    for n in 1..=60 {
        let (_, pick) = scene.ask(&of(n));
        *counts.entry(pick.order[0].port()).or_insert(0) += 1;
        warm += u32::from(pick.candidates[0].explanation.matched_tokens > 7_000);
        scene.now += 5;
    }
    assert_eq!(counts.len(), 4, "{counts:?}");
    assert!(counts.values().all(|&n| n >= 9), "{counts:?}");
    assert_eq!(warm, 57, "each is warmed once, and used from then on");
}

#[test]
fn many_picks_between_two_looks_see_each_other() {
    for strategy in [Strategy::LeastWork, Strategy::LeastRequest, Strategy::RoundRobin] {
        let mut scene = Scene::with(4, Settings { strategy, exploration: 0.0, ..Settings::default() });
        for n in 0..80 {
            scene.ask(&prompt(&[(char::from_u32(200 + n).unwrap(), 2_000)]));
        }
        let held: Vec<u32> = (1..=4).map(|port| scene.pool.in_flight(address(port))).collect();
        assert!(held.iter().all(|n| (18..=22).contains(n)), "{strategy:?} {held:?}");
    }
}

#[test]
fn prefix_only_piles_on_the_warm_one_and_so_shows_what_load_is_for() {
    let mut scene = Scene::with(2, Settings { strategy: Strategy::PrefixOnly, ..Settings::default() });
    let known = prompt(&[('s', 8_000)]);
    scene.serve(&known, 2, 2_000, 0);
    for _ in 0..20 {
        let (_, pick) = scene.ask(&known);
        assert_eq!(short(&pick), "2,1 longest_prefix");
    }
}

#[test]
fn a_first_token_turns_waiting_prefill_into_a_stream_and_so_does_long_silence() {
    let mut scene = Scene::new(1);
    let big = prompt(&[('s', 40_000)]);
    let (ticket, _) = scene.ask(&big);
    let wait = |scene: &Scene| scene.pool.candidates(scene.now).next().unwrap().explanation.wait_s;
    assert!(wait(&scene) > 0.4);
    scene.pool.first_token(ticket, scene.now);
    assert_eq!((wait(&scene), scene.pool.in_flight(address(1))), (0.0, 1));

    let (_, _) = scene.ask(&prompt(&[('t', 40_000)]));
    let decode = |scene: &Scene| scene.pool.occupancy()[&address(1)].generating;
    assert_eq!(decode(&scene), 1);
    scene.now += 10_000;
    let _ = scene.ask(&Prefix::default());
    assert_eq!(decode(&scene), 2, "its first token is long overdue: nobody will tell of it");
}

#[test]
fn what_must_go_to_one_endpoint_goes_there_or_nowhere() {
    let mut scene = Scene::new(3);
    for _ in 0..10 {
        scene.put(&prompt(&[('s', 40_000)]), 2);
    }
    let none = Prefix::default();
    let stay = |port| Ask { stay: Some(address(port)), ..plain(&none) };
    let pick = scene.try_ask(&stay(2)).1.unwrap();
    assert_eq!((short(&pick).as_str(), pick.candidates.len()), ("2 stays", 3));
    assert_eq!(scene.try_ask(&stay(9)).1, Err(NoPick::Gone));
    scene.models(2, &["other"]);
    assert!(scene.try_ask(&stay(2)).1.is_ok(), "where its response lives, the model's name doesn't matter");
    let listed: Vec<_> = [(1, true), (2, false)]
        .map(|(p, ready)| ext_proc_pick::Endpoint { address: address(p), ready })
        .into();
    scene.pool.replace(&listed);
    assert_eq!(scene.try_ask(&stay(2)).1, Err(NoPick::NoneReady), "it may come back");
    assert_eq!(scene.try_ask(&stay(3)).1, Err(NoPick::Gone));
}

#[test]
fn a_gone_endpoint_keeps_its_load_but_not_its_cache() {
    let mut scene = Scene::new(2);
    let known = prompt(&[('s', 8_000)]);
    scene.serve(&known, 1, 2_000, 0);
    let ticket = scene.put(&known, 1);
    let all = [1, 2].map(|p| ext_proc_pick::Endpoint { address: address(p), ready: true });
    scene.pool.replace(&all[1..]);
    assert_eq!(scene.ask(&known).1.order, [address(2)]);
    scene.pool.replace(&all);
    assert_eq!(scene.pool.in_flight(address(1)), 1);
    let (_, pick) = scene.ask(&known);
    assert_eq!(
        pick.candidates.iter().find(|c| c.address == address(1)).unwrap().explanation.matched_tokens,
        0
    );
    scene.pool.replace(&all[1..]);
    scene.pool.release(ticket, Used::default(), scene.now);
    assert_eq!(scene.pool.in_flight(address(1)), 0);
}

#[test]
fn an_exchange_of_before_a_restart_counts_once() {
    let mut scene = Scene::new(2);
    for _ in 0..2 {
        scene.pool.adopt(Ticket(1 << 100), address(1), scene.now);
    }
    assert_eq!(scene.pool.in_flight(address(1)), 1);
    scene.pool.release(Ticket(1 << 100), Used::default(), scene.now);
    scene.pool.release(Ticket(1 << 100), Used::default(), scene.now);
    assert_eq!(scene.pool.in_flight(address(1)), 0);
}
