//! What engines say of themselves.

use ext_proc_pick::{Ask, Excluded, Health, NoPick, Prefix, Reason, Stats, Used};

use crate::scene::{Scene, address, names, plain, prompt, short, table};

fn busy(waiting: u32, running: u32) -> Stats {
    Stats { waiting, running, kv_capacity_tokens: Some(300_000), ..Stats::default() }
}

fn first(scene: &mut Scene) -> u16 {
    let (ticket, pick) = scene.ask(&prompt(&[('a', 4_000)]));
    scene.pool.release(ticket, Used::default(), scene.now);
    pick.order[0].port()
}

#[test]
fn what_cannot_serve_is_never_picked_and_says_why() {
    let mut scene = Scene::new(4);
    let list = [(1, true), (2, true), (3, true), (4, false)];
    scene.pool.replace(&list.map(|(p, ready)| ext_proc_pick::Endpoint { address: address(p), ready }));
    scene.health(1, Health::Sleeping);
    scene.models(2, &["other"]);
    let (_, pick) = scene.ask(&Prefix::default());
    let lines = table(&pick);
    assert!(lines.starts_with("3 only_ready\n3: "), "{lines}");
    assert!(lines.ends_with("1: sleeping\n2: not_serving\n4: not_ready\n"), "{lines}");

    scene.models(3, &["other"]);
    let none = Prefix::default();
    assert_eq!(scene.try_ask(&plain(&none)).1, Err(NoPick::NoneServes));
    scene.health(2, Health::Sleeping);
    scene.health(3, Health::Sleeping);
    assert_eq!(scene.try_ask(&plain(&none)).1, Err(NoPick::NoneReady));
}

#[test]
fn ill_health_shapes_the_order_and_stops_nothing() {
    for health in [Health::Unreachable, Health::Paused, Health::Draining, Health::Stuck] {
        let mut scene = Scene::new(3);
        scene.health(1, health);
        for _ in 0..20 {
            let (_, pick) = scene.ask(&Prefix::default());
            assert_eq!(pick.order[2], address(1), "{health:?}");
        }
        scene.health(2, health);
        scene.health(3, health);
        let (_, pick) = scene.ask(&Prefix::default());
        assert_eq!((pick.order.len(), pick.reason), (3, Reason::AllUnhealthy));
        scene.now += 20_001;
        let (_, pick) = scene.ask(&Prefix::default());
        assert_ne!(pick.reason, Reason::AllUnhealthy, "what was said so long ago is forgotten");
        assert_eq!(pick.candidates[0].health, Health::Unknown);
    }
}

#[test]
fn the_queue_of_others_costs_but_our_own_requests_do_not_count_twice() {
    let mut scene = Scene::new(2);
    scene.stats(1, busy(6, 4));
    scene.stats(2, busy(0, 0));
    assert_eq!(first(&mut scene), 2);
    let foreign =
        |scene: &Scene, n: usize| scene.pool.candidates(scene.now).nth(n).unwrap().explanation.foreign_s;
    assert!(foreign(&scene, 0) > 0.1);

    let mut scene = Scene::new(2);
    let waiting: Vec<_> = (0..6).map(|_| scene.put(&prompt(&[('a', 4_000)]), 1)).collect();
    for ticket in &waiting[..2] {
        scene.pool.first_token(*ticket, scene.now);
    }
    scene.stats(1, busy(4, 2));
    assert_eq!(foreign(&scene, 0), 0.0, "all of it is ours");
    scene.stats(1, busy(9, 2));
    scene.stats(1, busy(9, 2));
    assert!(foreign(&scene, 0) > 0.1, "five of it are not");
    scene.stats(1, busy(0, 0));
    assert_eq!(foreign(&scene, 0), 0.0, "less than ours is nothing, never negative");
}

#[test]
fn old_signals_fade_into_the_pools_mean() {
    let mut scene = Scene::new(3);
    for (port, waiting) in [(1, 30), (2, 0), (3, 0)] {
        scene.stats(port, busy(waiting, 0));
    }
    let gap = |scene: &Scene| {
        let foreign: Vec<f64> = scene.pool.candidates(scene.now).map(|c| c.explanation.foreign_s).collect();
        foreign[0] - foreign[1]
    };
    let fresh = gap(&scene);
    assert!(fresh > 1.0);
    let mut before = fresh;
    for age in [5_000, 10_000, 15_000, 19_000] {
        scene.now = 1_000 + age;
        let now = gap(&scene);
        assert!(now <= before, "{age}");
        before = now;
    }
    assert!(before < fresh * 0.1 && before > 0.0);
    scene.now = 1_000 + 20_000;
    assert_eq!(gap(&scene), 0.0, "nothing is believed any more");

    // One of them frozen: it isn't shunned for ever, nor taken for idle.
    scene.now = 100_000;
    for _ in 0..2 {
        scene.stats(2, busy(10, 0));
        scene.stats(3, busy(20, 0));
    }
    let foreign: Vec<f64> = scene.pool.candidates(scene.now).map(|c| c.explanation.foreign_s).collect();
    assert!(foreign[1] < foreign[0] && foreign[0] < foreign[2], "{foreign:?}");
}

#[test]
fn absurd_numbers_are_no_stronger_than_real_ones() {
    let mut scene = Scene::new(2);
    let absurd = Stats { kv_usage: f32::NAN, kv_capacity_tokens: Some(u64::MAX), ..busy(u32::MAX, u32::MAX) };
    scene.stats(1, absurd);
    scene.stats(2, Stats { kv_usage: -5.0, kv_capacity_tokens: Some(0), ..busy(0, 0) });
    for _ in 0..50 {
        let (_, pick) = scene.ask(&prompt(&[('a', 4_000)]));
        assert!(pick.candidates.iter().all(|c| c.explanation.total_s.is_finite()), "{}", table(&pick));
        assert_eq!(pick.order.len(), 2);
    }
}

#[test]
fn a_full_or_preempting_cache_taxes_what_is_not_in_it() {
    let mut scene = Scene::new(2);
    let full = |kv_usage, preemptions| Stats { kv_usage, preemptions: Some(preemptions), ..busy(0, 0) };
    scene.stats(1, full(0.99, 0));
    scene.stats(2, full(0.5, 0));
    assert_eq!(first(&mut scene), 2);
    let evicting = |scene: &mut Scene| {
        let (ticket, pick) = scene.ask(&prompt(&[('b', 4_000)]));
        scene.pool.release(ticket, Used::default(), scene.now);
        [1, 2]
            .map(|p| pick.candidates.iter().find(|c| c.address == address(p)).unwrap().explanation.evicting_s)
    };
    let [one, two] = evicting(&mut scene);
    assert!(one > 0.03 && two == 0.0, "{one} {two}");
    scene.stats(1, full(0.5, 0));
    scene.stats(2, full(0.5, 3));
    let [one, two] = evicting(&mut scene);
    assert!(one == 0.0 && two > 0.03, "preemptions have moved: {one} {two}");
    scene.now += 5_001;
    assert_eq!(evicting(&mut scene), [0.0, 0.0]);
}

#[test]
fn where_there_is_no_room_in_the_cache_a_request_waits() {
    let mut scene = Scene::new(2);
    for (port, kv_usage) in [(1, 0.97), (2, 0.1)] {
        scene.stats(port, Stats { kv_usage, kv_capacity_tokens: Some(20_000), ..busy(0, 0) });
    }
    let (_, pick) = scene.ask(&prompt(&[('a', 8_000)]));
    assert_eq!(pick.order[0], address(2));
    assert!(pick.candidates[1].explanation.kv_wait_s > 1.0, "{}", table(&pick));
}

#[test]
fn an_adapter_is_cheapest_where_it_is_loaded_and_dearest_where_it_must_push_one_out() {
    let mut scene = Scene::new(3);
    let lora = |active: &[&str]| Stats { lora_active: Some(names(active)), lora_max: Some(2), ..busy(0, 0) };
    scene.stats(1, lora(&["b", "c"]));
    scene.stats(2, lora(&["b"]));
    scene.stats(3, lora(&["a"]));
    let none = Prefix::default();
    let ask = Ask { model: "a", ..plain(&none) };
    let (_, pick) = scene.try_ask(&ask);
    assert_eq!(short(&pick.unwrap()), "3,2,1 cheapest_cold");
    let (_, pick) = scene.try_ask(&plain(&none));
    assert!(
        pick.unwrap().candidates.iter().all(|c| c.explanation.lora_s == 0.0),
        "the base model needs nothing"
    );
    // It is idle now and no metric shows it, but we sent it there.
    scene.stats(3, lora(&[]));
    let (_, pick) = scene.try_ask(&ask);
    let pick = pick.unwrap();
    assert_eq!((pick.order[0], pick.candidates[0].explanation.lora_s), (address(3), 0.0));
    assert!(pick.candidates.iter().all(|c| c.excluded != Some(Excluded::NotServing)));
}
