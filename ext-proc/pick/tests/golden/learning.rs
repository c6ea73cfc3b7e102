//! What is learned when an exchange ends.

use ext_proc_pick::{Ask, Prefix, Settings, Stats, Ticket, Used};

use crate::scene::{Scene, address, plain, prompt};

fn matched(scene: &mut Scene, prefix: &Prefix, port: u16) -> u64 {
    let (ticket, pick) = scene.ask(prefix);
    // Nobody answered: it leaves no trace in the index.
    scene.pool.release(ticket, Used::default(), scene.now);
    pick.candidates.iter().find(|c| c.address == address(port)).unwrap().explanation.matched_tokens
}

#[test]
fn a_hit_that_was_predicted_and_not_found_cuts_what_hangs_on_it() {
    let mut scene = Scene::new(2);
    let conversation = |turn: char| prompt(&[('s', 8_000), (turn, 6_000)]);
    scene.serve(&conversation('a'), 1, 3_500, 0);
    scene.serve(&conversation('b'), 1, 3_500, 2_000);
    assert!(matched(&mut scene, &conversation('a'), 1) > 3_300);
    // The engine says that it had 500 tokens of what we thought were 2,000: the rest was pushed out, and with it what was
    // behind it.
    scene.serve(&conversation('c'), 1, 3_500, 500);
    let left = matched(&mut scene, &conversation('a'), 1);
    assert!(
        (1_900..2_100).contains(&left),
        "the system prompt was just computed again, the turn was not: {left}"
    );
    assert!(matched(&mut scene, &conversation('c'), 1) > 3_200);
}

#[test]
fn a_hit_that_falls_short_by_a_block_or_is_not_told_cuts_nothing() {
    let mut scene = Scene::new(2);
    let conversation = |turn: char| prompt(&[('s', 8_000), (turn, 6_000)]);
    scene.serve(&conversation('a'), 1, 3_500, 0);
    scene.serve(&conversation('b'), 1, 3_500, 1_950);
    let ticket = scene.put(&conversation('c'), 1);
    scene.pool.first_token(ticket, scene.now);
    scene.pool.release(ticket, Used { input: Some(3_500), cached: None, output: None }, scene.now);
    assert!(matched(&mut scene, &conversation('a'), 1) > 3_300);
}

#[test]
fn an_engine_that_caches_nothing_is_believed_in_the_end() {
    let mut scene = Scene::new(2);
    let known = prompt(&[('s', 8_000)]);
    for _ in 0..80 {
        scene.serve(&known, 1, 2_000, 0);
    }
    assert!(matched(&mut scene, &known, 1) < 200);
    for _ in 0..80 {
        scene.serve(&known, 1, 2_000, 1_990);
    }
    assert!(matched(&mut scene, &known, 1) > 1_800, "and so is one that has begun to");
}

#[test]
fn what_another_replica_put_there_is_known_once_we_have_sent_it_too() {
    let mut scene = Scene::new(2);
    let known = prompt(&[('s', 8_000)]);
    assert_eq!(matched(&mut scene, &known, 2), 0);
    scene.serve(&known, 2, 2_000, 1_984);
    assert!(matched(&mut scene, &known, 2) > 1_800);
}

#[test]
fn a_request_that_never_got_a_token_leaves_nothing_behind() {
    let mut scene = Scene::new(2);
    let known = prompt(&[('s', 8_000)]);
    let (ticket, pick) = scene.ask(&known);
    let port = pick.order[0].port();
    scene.pool.answered(ticket, Some(pick.order[0]), 503, None, scene.now);
    scene.pool.release(ticket, Used::default(), scene.now);
    scene.now += 60_000;
    assert_eq!(matched(&mut scene, &known, port), 0);
}

#[test]
fn the_index_is_no_larger_than_the_engines_cache_nor_than_the_pools_share() {
    let mut scene = Scene::new(2);
    scene.stats(1, Stats { kv_capacity_tokens: Some(5_000), ..Stats::default() });
    let text = |n: u32| prompt(&[(char::from_u32(200 + n).unwrap(), 8_000)]);
    for n in 0..4 {
        scene.serve(&text(n), 1, 2_000, 0);
        scene.serve(&text(n), 2, 2_000, 0);
    }
    assert_eq!(
        matched(&mut scene, &text(0), 1),
        0,
        "four times 2,100 don't fit into 5,000: the oldest is gone"
    );
    assert!(matched(&mut scene, &text(3), 1) > 1_800);
    assert!(matched(&mut scene, &text(0), 2) > 1_800, "the other one is larger");

    let mut scene = Scene::with(2, Settings { chunks_max: 100, exploration: 0.0, ..Settings::default() });
    for n in 0..3 {
        scene.serve(&text(n), 1, 2_000, 0);
    }
    assert_eq!(matched(&mut scene, &text(0), 1), 0, "50 chunks each: one prompt of 40 and no second");
    assert!(matched(&mut scene, &text(2), 1) > 1_800);
}

#[test]
fn bytes_a_token_and_expected_output_follow_what_engines_report() {
    let mut scene = Scene::new(1);
    let uncached = |scene: &mut Scene| {
        let (ticket, pick) = scene.ask(&prompt(&[('z', 8_000)]));
        scene.pool.release(ticket, Used::default(), scene.now);
        pick.candidates[0].explanation.uncached_tokens
    };
    assert_eq!(uncached(&mut scene), 2_000, "four bytes a token, until it is known");
    for n in 0..200 {
        let text = prompt(&[(char::from_u32('A' as u32 + n % 50).unwrap(), 8_000)]);
        let ticket = scene.put(&text, 1);
        scene.pool.first_token(ticket, scene.now);
        scene.pool.release(ticket, Used { input: Some(4_000), cached: None, output: Some(10) }, scene.now);
    }
    assert!((3_900..4_100).contains(&uncached(&mut scene)));
    // Nonsense moves nothing.
    for n in 0..200u128 {
        let none = Prefix::default();
        let ask = Ask { prompt_bytes: 1_000, ..plain(&none) };
        scene.pool.pick(Ticket((1 << 90) + n), &ask, scene.now, &mut scene.rng).unwrap();
        let used = Used { input: Some(u64::MAX), cached: Some(u64::MAX), output: Some(u64::MAX) };
        scene.pool.release(Ticket((1 << 90) + n), used, scene.now);
    }
    assert!((3_900..4_100).contains(&uncached(&mut scene)));
}

#[test]
fn token_ids_count_as_tokens_without_text() {
    let mut scene = Scene::new(1);
    let none = Prefix::default();
    let ask = Ask { prompt_token_ids: 5_000, ..plain(&none) };
    let pick = scene.try_ask(&ask).1.unwrap();
    assert_eq!(pick.candidates[0].explanation.uncached_tokens, 5_000);
}

#[test]
fn an_engine_that_generates_slowly_costs_more_until_that_is_forgotten() {
    let mut scene = Scene::new(2);
    for n in 0..20u32 {
        for (port, ms) in [(1, 90), (2, 30)] {
            let ticket = scene.put(&Prefix::default(), port);
            scene.pool.first_token(ticket, scene.now);
            scene.now += 99 * ms;
            scene.pool.release(ticket, Used { input: Some(10), cached: None, output: Some(100) }, scene.now);
        }
        let (ticket, pick) = scene.ask(&prompt(&[('a', 4_000)]));
        scene.pool.release(ticket, Used::default(), scene.now);
        assert_eq!(pick.order[0], address(2), "{n}");
    }
    let pace = |scene: &Scene| -> Vec<f64> {
        scene.pool.candidates(scene.now).map(|c| c.explanation.pace).collect()
    };
    let [slow, fast] = pace(&scene)[..] else { panic!("two") };
    assert!((2.5..3.5).contains(&(slow / fast)), "{slow} {fast}");
    scene.now += 60_000;
    assert_eq!(pace(&scene), [1.0, 1.0]);
}
