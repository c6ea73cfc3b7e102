//! Endpoints that refuse or fail.

use ext_proc_pick::{Prefix, Reason, Settings, Used};

use crate::scene::{Scene, address, prompt, short};

#[test]
fn a_fast_failer_is_last_though_it_looks_idle_and_longer_each_time() {
    let mut scene = Scene::new(3);
    let small = prompt(&[('a', 400)]);
    let mut last_until = Vec::new();
    for _ in 0..5 {
        let ticket = scene.send(&small, 1);
        scene.pool.answered(ticket, Some(address(1)), 500, None, scene.now);
        scene.pool.release(ticket, Used::default(), scene.now);
        let from = scene.now;
        // Load on the others doesn't bring it back before its time.
        loop {
            let (ticket, pick) = scene.ask(&small);
            scene.pool.release(ticket, Used::default(), scene.now);
            assert_eq!(pick.order.len(), 3, "it can still be tried when all else fails");
            if pick.order[2] != address(1) {
                break;
            }
            scene.now += 500;
        }
        last_until.push((scene.now - from) / 1_000);
    }
    let doubled = [5, 10, 20, 40, 60];
    let about = |(is, should): (&u64, u64)| (should..should + 5).contains(is);
    assert!(last_until.iter().zip(doubled).all(about), "{last_until:?}");
}

#[test]
fn after_its_penalty_one_request_probes_it_and_success_brings_it_back() {
    let mut scene = Scene::new(2);
    let small = prompt(&[('a', 400)]);
    for _ in 0..2 {
        let ticket = scene.send(&small, 1);
        scene.pool.answered(ticket, Some(address(1)), 503, None, scene.now);
        scene.pool.release(ticket, Used::default(), scene.now);
        scene.now += 5_001;
    }
    scene.now += 10_000;
    let others = prompt(&[('b', 40_000)]);
    for _ in 0..3 {
        scene.put(&others, 2);
    }
    let (probe, pick) = scene.ask(&small);
    assert_eq!(pick.order[0], address(1), "its time is over, and it is idle");
    assert_eq!(
        scene.ask(&small).1.order,
        [2, 1].map(address),
        "but no second one before the first is answered"
    );
    scene.pool.answered(probe, Some(address(1)), 200, None, scene.now);
    assert_eq!(scene.ask(&small).1.order, [1, 2].map(address));
}

#[test]
fn retry_after_is_honoured_up_to_a_minute() {
    let mut scene = Scene::new(2);
    let small = prompt(&[('a', 400)]);
    for (retry_after_s, until_s) in [(1, 5), (20, 20), (86_400, 60)] {
        let mut scene = std::mem::replace(&mut scene, Scene::new(2));
        let ticket = scene.send(&small, 1);
        scene.pool.answered(ticket, Some(address(1)), 429, Some(retry_after_s * 1_000), scene.now);
        scene.pool.release(ticket, Used::default(), scene.now);
        let penalty = |scene: &Scene| scene.pool.candidates(scene.now).next().unwrap().explanation.penalty_s;
        assert!((penalty(&scene) - f64::from(until_s)).abs() < 0.01, "{retry_after_s}");
    }
}

#[test]
fn who_refused_is_penalised_and_the_load_is_where_it_was_served() {
    let mut scene = Scene::new(3);
    let (ticket, pick) = scene.ask(&prompt(&[('a', 4_000)]));
    let [first, second, third] = pick.order[..] else { panic!("three") };
    scene.pool.answered(ticket, Some(second), 200, None, scene.now);
    assert_eq!([first, second, third].map(|a| scene.pool.in_flight(a)), [0, 1, 0]);
    scene.pool.release(ticket, Used::default(), scene.now);
    assert_eq!(scene.pool.in_flight(second), 0);
    let (_, next) = scene.ask(&prompt(&[('a', 4_000)]));
    assert_eq!(
        (next.order[0], next.order[2]),
        (second, first),
        "the prompt is where it was served: {}",
        short(&next)
    );
}

#[test]
fn where_all_have_failed_they_are_all_taken() {
    let mut scene = Scene::new(2);
    let (ticket, _) = scene.ask(&Prefix::default());
    scene.pool.answered(ticket, None, 503, None, scene.now);
    scene.pool.release(ticket, Used::default(), scene.now);
    let (_, pick) = scene.ask(&Prefix::default());
    assert_eq!((pick.order.len(), pick.reason), (2, Reason::AllPenalised));
}

#[test]
fn exploration_never_goes_to_the_penalised_and_costs_little() {
    let mut scene = Scene::with(4, Settings { exploration: 0.1, ..Settings::default() });
    let small = prompt(&[('a', 400)]);
    let large = prompt(&[('b', 40_000)]);
    let failed = scene.send(&small, 1);
    scene.pool.answered(failed, Some(address(1)), 500, Some(60_000), scene.now);
    scene.pool.release(failed, Used::default(), scene.now);
    for port in [2, 3] {
        scene.serve(&small, port, 100, 0);
    }
    scene.serve(&large, 2, 10_000, 0);
    let mut explored = 0;
    for _ in 0..2_000 {
        for prefix in [&small, &large] {
            let (ticket, pick) = scene.ask(prefix);
            scene.pool.release(ticket, Used::default(), scene.now);
            assert_ne!(pick.order[0], address(1));
            if pick.reason == Reason::Explored {
                explored += 1;
                assert_eq!(prefix.bytes(), small.bytes(), "ten thousand tokens are too much for a look");
            }
        }
    }
    assert!((100..300).contains(&explored), "{explored} of 2,000 at 10 %");
}

#[test]
fn an_engine_that_refuses_twice_or_is_unreachable_has_lost_its_cache() {
    let known = prompt(&[('a', 8_000)]);
    let matched = |scene: &mut Scene| {
        let (ticket, pick) = scene.ask(&known);
        scene.pool.release(ticket, Used::default(), scene.now);
        let of = |port| pick.candidates.iter().find(|c| c.address == address(port)).expect("there");
        of(1).explanation.matched_tokens
    };
    let mut scene = Scene::new(3);
    scene.serve(&known, 1, 2_000, 0);
    assert!(matched(&mut scene) > 1_800);
    scene.health(1, ext_proc_pick::Health::Unreachable);
    assert!(matched(&mut scene) > 1_800, "it has just served: a look that failed proves nothing");
    scene.now += 3_000;
    scene.health(1, ext_proc_pick::Health::Unreachable);
    assert_eq!(matched(&mut scene), 0);

    let mut scene = Scene::new(3);
    scene.serve(&known, 1, 2_000, 0);
    for round in 0..2 {
        assert!(matched(&mut scene) > 1_800, "refusal {round}");
        let (ticket, pick) = scene.ask(&known);
        assert_eq!(pick.order[0], address(1));
        scene.pool.answered(ticket, Some(pick.order[1]), 200, None, scene.now);
        scene.pool.release(ticket, Used::default(), scene.now);
        scene.now += 20_000;
        // What it was served with elsewhere must not win the next round.
        scene.pool.forget(pick.order[1]);
    }
    assert_eq!(matched(&mut scene), 0);
}
