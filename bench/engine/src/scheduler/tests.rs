use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

const MS: u64 = 1_000_000;

fn limits() -> Limits {
    Limits {
        block_tokens: 16,
        blocks: 1001,
        seqs: 64,
        batched_tokens: 8192,
        loras: 1,
        caching: true,
        priority: false,
        queue_requests: None,
        queue_tokens: None,
        block_events: true,
    }
}

/// 1 ms a step, 1 us a prompt token: times are easy to say.
const SPEED: Speed =
    Speed { step_us: 1000.0, prefill_us: 1.0, attention_ns: 0.0, decode_us: 0.0, context_us: 0.0 };

fn job(prompt: Vec<u32>, output: u32) -> Job {
    Job {
        prompt: prompt.into(),
        output,
        seed: 1,
        script: Arc::from([]),
        finish: Finish::Length,
        priority: 0,
        lora: None,
        salt: 0,
        group: 1,
        max_tokens: None,
    }
}

fn prompt(kind: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| kind * 1_000_000 + at + 1000).collect()
}

/// Runs to the end; what was told last of each request, and when.
fn run(scheduler: &mut Scheduler) -> HashMap<u64, Output> {
    let mut last = HashMap::new();
    while let Some(at) = scheduler.step_ends() {
        scheduler.advance(at, &mut |output| {
            last.insert(output.id, output);
        });
    }
    last
}

fn submit(scheduler: &mut Scheduler, job: Job, now: u64) -> u64 {
    scheduler.advance(now, &mut |_| {});
    let id = scheduler.submit(job, now);
    scheduler.advance(now, &mut |_| {});
    id
}

#[test]
fn times_are_those_of_the_step_model() {
    let mut scheduler = Scheduler::new(limits(), SPEED);
    let id = submit(&mut scheduler, job(prompt(1, 100), 3), 5 * MS);
    let output = run(&mut scheduler)[&id];
    let timing = Timing { queued: 0, first: 1_100_000, last: 3_100_000 };
    assert_eq!((output.generated, output.finished, output.timing), (3, true, timing));
    assert_eq!(scheduler.stats().generation_tokens, 3);
    assert_eq!((scheduler.stats().first_token.count(), scheduler.stats().next_token.count()), (1, 2));
}

#[test]
fn a_long_prompt_is_computed_in_chunks_beside_those_that_run() {
    let mut scheduler = Scheduler::new(Limits { batched_tokens: 100, ..limits() }, SPEED);
    let short = submit(&mut scheduler, job(prompt(1, 20), 5), 0);
    // Comes during the first step; then 99, 99 and 52 tokens beside the other's one.
    let long = submit(&mut scheduler, job(prompt(2, 250), 1), 500_000);
    let told = run(&mut scheduler);
    let first = 1_020_000;
    assert_eq!(told[&long].timing.queued, first - 500_000);
    let chunks = [1_099_000, 1_099_000, 1_052_000];
    assert_eq!(told[&long].timing.first, first - 500_000 + chunks.iter().sum::<u64>());
    // The decoding one was delayed by the chunks.
    assert_eq!(told[&short].timing.last, first + chunks.iter().sum::<u64>() + MS);
    assert_eq!(scheduler.stats().steps, 5);
}

#[test]
fn admission_is_in_order_of_arrival_up_to_the_batch() {
    let mut scheduler = Scheduler::new(Limits { seqs: 2, ..limits() }, SPEED);
    let ids: Vec<u64> = (0..4).map(|kind| submit(&mut scheduler, job(prompt(kind, 20), 2), 0)).collect();
    scheduler.advance(0, &mut |_| {});
    let told = run(&mut scheduler);
    let starts: Vec<u64> = ids.iter().map(|id| told[id].timing.queued).collect();
    // The first went alone: the others came when its step had begun.
    assert!(starts.is_sorted() && starts[0] == 0 && starts[1] == 1_020_000, "{starts:?}");
    assert!(starts[2] > starts[1] && starts[3] > starts[2], "{starts:?}");
}

#[test]
fn hits_are_whole_blocks_and_the_last_token_is_always_computed() {
    // Prompt, then how much of it is found when it comes again.
    for (tokens, cached) in [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32), (100, 96)] {
        let mut scheduler = Scheduler::new(limits(), SPEED);
        submit(&mut scheduler, job(prompt(1, tokens), 1), 0);
        run(&mut scheduler);
        let again = submit(&mut scheduler, job(prompt(1, tokens), 1), 100 * MS);
        let output = run(&mut scheduler)[&again];
        assert_eq!(output.cached, cached, "{tokens}");
        assert_eq!(output.timing.first, MS + u64::from(tokens - cached) * 1000, "{tokens}");
        let stats = scheduler.stats();
        assert_eq!((stats.cache_queries, stats.cache_hits), (2 * u64::from(tokens), u64::from(cached)));
    }
}

#[test]
fn blocks_are_visible_when_allocated_to_a_follower_in_the_same_step() {
    let mut scheduler = Scheduler::new(limits(), SPEED);
    submit(&mut scheduler, job(prompt(9, 20), 1), 0);
    let (first, second) = (job(prompt(1, 100), 1), job(prompt(1, 100), 1));
    let (first, second) = (scheduler.submit(first, 0), scheduler.submit(second, 0));
    let told = run(&mut scheduler);
    assert_eq!((told[&first].cached, told[&second].cached), (0, 96));
    assert_eq!(told[&first].timing.first, told[&second].timing.first);
}

#[test]
fn an_answer_is_found_by_the_next_turn() {
    let mut scheduler = Scheduler::new(limits(), SPEED);
    let first = job(prompt(1, 30), 40);
    let mut next: Vec<u32> = first.prompt.to_vec();
    next.extend((0..40).map(|index| first.token(index)));
    next.extend(prompt(2, 10));
    submit(&mut scheduler, first, 0);
    run(&mut scheduler);
    let id = submit(&mut scheduler, job(next, 1), 500 * MS);
    // 30 + 40 tokens, the last of them never computed: four full blocks.
    assert_eq!(run(&mut scheduler)[&id].cached, 64);
}

#[test]
fn salts_and_adapters_keep_blocks_apart() {
    let mut scheduler = Scheduler::new(limits(), SPEED);
    let plain = job(prompt(1, 64), 1);
    submit(&mut scheduler, plain.clone(), 0);
    run(&mut scheduler);
    let others =
        [Job { salt: 5, ..plain.clone() }, Job { lora: Some(Arc::from("a")), ..plain.clone() }, plain];
    let cached = others.map(|job| {
        let id = submit(&mut scheduler, job, 500 * MS);
        run(&mut scheduler)[&id].cached
    });
    assert_eq!(cached, [0, 0, 48]);
}

#[test]
fn the_last_in_is_preempted_and_computed_again() {
    // 9 blocks: two requests of 4 blocks that grow to 5 do not fit.
    let mut scheduler = Scheduler::new(Limits { blocks: 10, caching: false, ..limits() }, SPEED);
    let first = submit(&mut scheduler, job(prompt(1, 60), 20), 0);
    let second = submit(&mut scheduler, job(prompt(2, 60), 20), 0);
    let told = run(&mut scheduler);
    assert_eq!(scheduler.stats().preemptions, 1);
    assert!(told[&first].timing.last < told[&second].timing.last);
    assert_eq!((told[&first].generated, told[&second].generated), (20, 20));
    assert_eq!(scheduler.stats().generation_tokens, 40);
    // Prompt tokens count once, however often they are computed.
    assert_eq!(scheduler.stats().prompt_tokens, 120);
    assert_eq!(scheduler.blocks_accounted(), (0, 9, 9));
}

#[test]
fn with_priorities_the_least_important_is_preempted_and_the_most_important_admitted() {
    let mut scheduler =
        Scheduler::new(Limits { blocks: 10, caching: false, priority: true, ..limits() }, SPEED);
    let low = submit(&mut scheduler, Job { priority: 5, ..job(prompt(1, 60), 20) }, 0);
    let high = submit(&mut scheduler, Job { priority: -5, ..job(prompt(2, 60), 20) }, 0);
    let told = run(&mut scheduler);
    assert!(told[&high].timing.last < told[&low].timing.last);
    assert_eq!(scheduler.stats().preemptions, 1);
    let order: Vec<u64> =
        [7, 3, 5].map(|priority| scheduler.submit(Job { priority, ..job(prompt(3, 60), 1) }, 0)).to_vec();
    assert_eq!(scheduler.waiting, [order[1], order[2], order[0]]);
}

#[test]
fn a_request_is_admitted_only_where_its_whole_prompt_fits() {
    // Ten blocks. The first needs two of them and decodes; the second's first chunk would fit beside it, all of it not.
    let mut scheduler = Scheduler::new(Limits { blocks: 11, batched_tokens: 32, ..limits() }, SPEED);
    let first = submit(&mut scheduler, job(prompt(1, 20), 5), 0);
    let second = submit(&mut scheduler, job(prompt(2, 150), 1), 0);
    let told = run(&mut scheduler);
    assert_eq!(told[&second].timing.queued, told[&first].timing.last);
    assert_eq!(scheduler.stats().preemptions, 0);
}

/// The least important request preempts itself while others run after it: the engine goes on.
#[test]
fn a_step_of_nothing_but_a_preemption_is_followed_by_another() {
    // Nine blocks: five of the first, four of the second. The first needs its sixth before the second needs its fifth.
    let limits = Limits { blocks: 10, caching: false, priority: true, ..limits() };
    let mut scheduler = Scheduler::new(limits, SPEED);
    let low = submit(&mut scheduler, Job { priority: 5, ..job(prompt(1, 64), 30) }, 0);
    let high = submit(&mut scheduler, Job { priority: 1, ..job(prompt(2, 49), 30) }, 10 * MS);
    let told = run(&mut scheduler);
    assert_eq!((told[&low].generated, told[&high].generated, scheduler.unfinished()), (30, 30, 0));
    assert!(scheduler.stats().preemptions > 0);
}

#[test]
fn adapters_beyond_the_batch_wait() {
    let mut scheduler = Scheduler::new(limits(), SPEED);
    let lora = |name: &str, kind| Job { lora: Some(Arc::from(name)), ..job(prompt(kind, 20), 3) };
    let first = submit(&mut scheduler, lora("a", 1), 0);
    let other = submit(&mut scheduler, lora("b", 2), 0);
    let plain = submit(&mut scheduler, job(prompt(3, 20), 3), 0);
    let ends = scheduler.step_ends().expect("a step");
    scheduler.advance(ends, &mut |_| {});
    let ends = scheduler.step_ends().expect("a step");
    scheduler.advance(ends, &mut |_| {});
    assert_eq!(scheduler.stats().gauges.deferred, 1);
    assert_eq!(scheduler.active_loras(), ["a", "b"]);
    let told = run(&mut scheduler);
    assert!(told[&plain].timing.queued < told[&other].timing.queued);
    assert!(told[&other].timing.queued >= told[&first].timing.last);
}

#[test]
fn queue_limits() {
    let mut scheduler = Scheduler::new(Limits { queue_requests: Some(2), ..limits() }, SPEED);
    submit(&mut scheduler, job(prompt(1, 20), 3), 0);
    assert_eq!(scheduler.refuses(1), None);
    assert_eq!(scheduler.refuses(2), Some(Full::Requests));
    let mut scheduler = Scheduler::new(Limits { queue_tokens: Some(30), ..limits() }, SPEED);
    submit(&mut scheduler, job(prompt(1, 20), 3), 0);
    assert_eq!(scheduler.refuses(1), None);
    submit(&mut scheduler, job(prompt(2, 20), 3), 0);
    assert_eq!(scheduler.refuses(1), Some(Full::Tokens));
    assert_eq!((scheduler.stats().refused_requests, scheduler.stats().refused_tokens), (0, 1));
}

#[test]
fn gauges_are_those_of_the_end_of_the_step() {
    let mut scheduler = Scheduler::new(Limits { seqs: 1, ..limits() }, SPEED);
    submit(&mut scheduler, job(prompt(1, 160), 2), 0);
    submit(&mut scheduler, job(prompt(2, 160), 2), 0);
    assert_eq!(scheduler.stats().gauges, Gauges::default());
    scheduler.advance(2 * MS, &mut |_| {});
    let expected = Gauges { running: 1, waiting: 1, deferred: 0, kv_usage: 1.0 - 990.0 / 1000.0 };
    assert_eq!(scheduler.stats().gauges, expected);
    run(&mut scheduler);
    assert_eq!(scheduler.stats().gauges, Gauges::default());
}

#[test]
fn aborted_requests_leave_nothing() {
    let mut scheduler = Scheduler::new(limits(), SPEED);
    let first = submit(&mut scheduler, job(prompt(1, 160), 50), 0);
    let second = submit(&mut scheduler, job(prompt(2, 160), 50), 0);
    scheduler.abort(first);
    scheduler.advance(5 * MS, &mut |output| assert_eq!(output.id, second));
    scheduler.abort(second);
    assert_eq!((scheduler.unfinished(), scheduler.blocks_accounted()), (0, (0, 1000, 1000)));
    run(&mut scheduler);
    assert_eq!(scheduler.stats().gauges, Gauges::default());
}

#[test]
fn a_held_cache_lets_nobody_in_until_it_is_given_back() {
    let mut scheduler = Scheduler::new(limits(), SPEED);
    scheduler.hold(1.0);
    assert!((scheduler.stats().gauges.kv_usage - 1.0).abs() < 1e-9);
    let id = submit(&mut scheduler, job(prompt(1, 20), 1), 0);
    assert_eq!(scheduler.step_ends(), None);
    scheduler.hold(0.5);
    scheduler.advance(7 * MS, &mut |_| {});
    assert_eq!(run(&mut scheduler)[&id].timing.queued, 7 * MS);
    assert_eq!(scheduler.blocks_accounted(), (500, 500, 1000));
}

#[test]
fn instant_engines_answer_when_asked() {
    let mut scheduler = Scheduler::new(limits(), Speed::INSTANT);
    let id = scheduler.submit(job(prompt(1, 100), 1000), 3);
    let mut last = None;
    scheduler.advance(3, &mut |output| last = Some(output));
    let last = last.expect("an output");
    assert_eq!((last.id, last.generated, last.finished, last.timing), (id, 1000, true, Timing::default()));
    assert_eq!(scheduler.step_ends(), None);
}

/// Arrivals in virtual time, looked at as a clock of a certain scale and grid would: what each request waited and took.
fn outcomes(arrivals: &[(u64, u32, u32, u32)], real_tick: u64, scale: u64) -> Vec<Output> {
    let mut scheduler = Scheduler::new(Limits { blocks: 200, seqs: 4, ..limits() }, SPEED);
    let (mut last, mut next, mut real) = (HashMap::new(), 0, 0);
    while last.len() < arrivals.len() || scheduler.unfinished() > 0 {
        while let Some((at, kind, tokens, output)) = arrivals.get(next).filter(|one| one.0 <= real * scale) {
            let mut keep = |output: Output| {
                last.insert(output.id, output);
            };
            scheduler.advance(*at, &mut keep);
            scheduler.submit(job(prompt(*kind, *tokens), *output), *at);
            scheduler.advance(*at, &mut keep);
            next += 1;
        }
        scheduler.advance(real * scale, &mut |output| {
            last.insert(output.id, output);
        });
        real += real_tick;
    }
    let mut all: Vec<Output> = last.into_values().collect();
    all.sort_by_key(|output| output.id);
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// How fast the clock runs and how late it is looked at change nothing.
    #[test]
    fn virtual_times_do_not_depend_on_the_clock(
        gaps in prop::collection::vec((0_u64..4_000_000, 0_u32..4, 1_u32..300, 1_u32..20), 1..25),
        tick in 1_u64..3_000_000,
    ) {
        let mut now = 0;
        let arrivals: Vec<_> = gaps.into_iter().map(|(gap, kind, tokens, output)| {
            now += gap;
            (now, kind, tokens, output)
        }).collect();
        let plain = outcomes(&arrivals, 100_000, 1);
        prop_assert_eq!(plain.len(), arrivals.len());
        prop_assert_eq!(&plain, &outcomes(&arrivals, tick, 1));
        prop_assert_eq!(&plain, &outcomes(&arrivals, 10_000, 50));
    }

    /// Requests and aborts under a small cache: every block is in use once or free, and all ends.
    #[test]
    fn blocks_are_conserved(
        steps in prop::collection::vec((0_u8..5, 0_u32..6, 1_u32..200, 1_u32..60), 1..60),
        priority: bool,
    ) {
        let limits = Limits { blocks: 41, seqs: 6, batched_tokens: 64, priority, ..limits() };
        let mut scheduler = Scheduler::new(limits, SPEED);
        let mut live = Vec::new();
        for (at, (what, kind, tokens, output)) in steps.into_iter().enumerate() {
            let now = at as u64 * 3 * MS;
            if what == 0 && !live.is_empty() {
                scheduler.abort(live.swap_remove(kind as usize % live.len()));
            } else {
                let job = Job { priority: i64::from(kind), ..job(prompt(kind, tokens), output) };
                live.push(submit(&mut scheduler, job, now));
            }
            let (used, free, all) = scheduler.blocks_accounted();
            prop_assert_eq!(used + free, all);
        }
        scheduler.advance(1_000_000 * MS, &mut |_| {});
        prop_assert_eq!(scheduler.unfinished(), 0);
        prop_assert_eq!(scheduler.blocks_accounted(), (0, 40, 40));
        // What was stored and not removed is what can still be found.
        let mut stored: HashMap<u64, i64> = HashMap::new();
        for event in scheduler.take_block_events() {
            match event {
                BlockEvent::Stored { hash, tokens, .. } => {
                    prop_assert_eq!(tokens.len(), 16);
                    *stored.entry(hash).or_default() += 1;
                }
                BlockEvent::Removed { hash } => *stored.entry(hash).or_default() -= 1,
                BlockEvent::Cleared => {}
            }
        }
        for (hash, count) in stored {
            prop_assert!(count >= 0);
            prop_assert_eq!(scheduler.pool.find(&[hash]).len(), usize::from(count > 0));
        }
    }
}
