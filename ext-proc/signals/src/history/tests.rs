//! Every health, and what each kind of page or failure comes to; times are made up.

use ext_proc_pick::Stats;
use proptest::prelude::*;
use proto_vllm::metrics::read;

use super::*;

const DURING: &str = include_str!("../../../../proto/vllm/tests/captures/metrics-during-load.txt");
const DP2: &str = include_str!("../../../../proto/vllm/tests/captures/metrics-dp2.txt");
const LORA: &str = include_str!("../../../../proto/vllm/tests/captures/metrics-lora-during-load.txt");

const STUCK_MS: u64 = 30_000;

fn history() -> History {
    History::new(Kind::Vllm, Settings::default())
}

fn page(text: &str) -> Result<Page, Failure> {
    read(text.as_bytes()).map_err(Failure::NotMetrics)
}

/// A page of one engine. `cpu` is the process's CPU time, which moves with every page of a living process.
fn engine(running: u32, waiting: u32, generated: u64, cpu: f64) -> String {
    format!(
        "process_start_time_seconds 1000.0\nprocess_cpu_seconds_total {cpu}\n\
         vllm:num_requests_running{{engine=\"0\"}} {running}\nvllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n\
         vllm:kv_cache_usage_perc{{engine=\"0\"}} 0.5\nvllm:prompt_tokens_total{{engine=\"0\"}} 10\n\
         vllm:generation_tokens_total{{engine=\"0\"}} {generated}\n"
    )
}

fn health(look: &Look) -> Health {
    look.observation.health
}

/// Shows the same engine from `from_ms` on, every quarter of a second, until `to_ms`; the process itself lives.
fn show(
    history: &mut History,
    text: impl Fn(f64) -> String,
    in_flight: u32,
    from_ms: u64,
    to_ms: u64,
) -> Look {
    let mut last = None;
    for now_ms in (from_ms..=to_ms).step_by(250) {
        last = Some(history.metrics(page(&text(now_ms as f64 / 1000.0)), in_flight, now_ms));
    }
    last.unwrap()
}

#[test]
fn a_page_becomes_the_numbers_of_the_pick() {
    let look = history().metrics(page(DURING), 0, 0);
    let want = Stats {
        running: 8,
        waiting: 24,
        kv_usage: 0.525_490_2,
        kv_capacity_tokens: Some(8192),
        block_tokens: Some(32),
        preemptions: Some(0),
        lora_active: None,
        lora_max: None,
    };
    assert_eq!(look.observation, Observation { health: Health::Ready, stats: Some(want), models: None });
    assert_eq!((look.outcome, look.change), (Outcome::Ok, None));

    let stats = history().metrics(page(LORA), 0, 0).observation.stats.unwrap();
    let active: Vec<_> = stats.lora_active.as_deref().unwrap().iter().map(String::as_str).collect();
    assert_eq!((active, stats.lora_max), (vec!["lora-a", "lora-b"], Some(2)));
}

#[test]
fn ranks_add_up_and_their_use_is_the_mean() {
    let busy = DP2
        .replace(
            "vllm:num_requests_running{engine=\"0\",model_name=\"tiny-llama\"} 0.0",
            "vllm:num_requests_running{engine=\"0\",model_name=\"tiny-llama\"} 3",
        )
        .replace(
            "vllm:num_requests_running{engine=\"1\",model_name=\"tiny-llama\"} 0.0",
            "vllm:num_requests_running{engine=\"1\",model_name=\"tiny-llama\"} 4",
        )
        .replace(
            "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"tiny-llama\"} 0.0",
            "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"tiny-llama\"} 0.5",
        );
    let stats = history().metrics(page(&busy), 0, 0).observation.stats.unwrap();
    assert_eq!((stats.running, stats.waiting, stats.preemptions), (7, 0, Some(0)));
    assert_eq!(
        (stats.kv_usage, stats.kv_capacity_tokens, stats.block_tokens),
        (0.25, Some(16_384), Some(32))
    );
    // Earlier versions don't say the size; each rank says the blocks of both.
    let blocks = busy.replace("kv_cache_size_tokens", "elsewhere");
    let stats = history().metrics(page(&blocks), 0, 0).observation.stats.unwrap();
    assert_eq!(stats.kv_capacity_tokens, Some(16_384));
}

#[test]
fn what_cannot_be_true_is_dropped_alone() {
    let text = "vllm:num_requests_running NaN\nvllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 1.5\n\
                vllm:num_preemptions_total -4\nvllm:generation_tokens_total +Inf\n\
                vllm:cache_config_info{block_size=\"0\",kv_cache_size_tokens=\"99999999999999\"} 1\n";
    let look = history().metrics(page(text), 0, 0);
    assert_eq!((look.outcome, health(&look)), (Outcome::Absurd, Health::Ready));
    assert_eq!(look.observation.stats, Some(Stats { waiting: 3, ..Stats::default() }));
    assert_eq!(look.change.unwrap().absurd, 6);
    // A million requests may be, more can't.
    let look = history().metrics(
        page("vllm:num_requests_running 1000000\nvllm:num_requests_waiting 1000001\n"),
        0,
        0,
    );
    assert_eq!((look.outcome, look.observation.stats.unwrap().running), (Outcome::Absurd, 1_000_000));
}

#[test]
fn an_absurd_load_is_the_one_before_for_a_while() {
    let mut history = history();
    history.metrics(page("vllm:num_requests_running 7\nvllm:num_requests_waiting 5\n"), 0, 1_000);
    let odd = "vllm:num_requests_running -1\nvllm:num_requests_waiting 6\n";
    let stats = history.metrics(page(odd), 0, 5_000).observation.stats.unwrap();
    assert_eq!((stats.running, stats.waiting), (7, 6));
    let stats = history.metrics(page(odd), 0, 7_000).observation.stats.unwrap();
    assert_eq!((stats.running, stats.waiting), (0, 6));
}

#[test]
fn a_page_that_says_nothing_of_requests_has_no_numbers() {
    let look = history().metrics(page("vllm:something_new 1\n"), 0, 0);
    assert_eq!((look.outcome, look.observation.stats), (Outcome::Ok, None));
}

#[test]
fn asleep_is_what_the_engine_says() {
    let asleep = DURING.replace("sleep_state=\"awake\"} 1.0", "sleep_state=\"awake\"} 0.0");
    assert_eq!(health(&history().metrics(page(&asleep), 0, 0)), Health::Sleeping);
    let second = DP2.replace(
        "engine_sleep_state{engine=\"1\",model_name=\"tiny-llama\",sleep_state=\"awake\"} 1.0",
        "engine_sleep_state{engine=\"1\",model_name=\"tiny-llama\",sleep_state=\"awake\"} 0.0",
    );
    let mut history = history();
    assert_eq!(health(&history.metrics(page(&second), 0, 0)), Health::Sleeping);
    // One lost page doesn't wake it; the next good one does.
    assert_eq!(health(&history.metrics(Err(Failure::Timeout), 0, 1_000)), Health::Sleeping);
    assert_eq!(health(&history.metrics(page(DP2), 0, 2_000)), Health::Ready);
}

#[test]
fn requests_without_progress_are_stuck_and_progress_ends_it() {
    let mut history = history();
    let still = |cpu| engine(2, 1, 500, cpu);
    assert_eq!(health(&show(&mut history, still, 2, 0, STUCK_MS - 250)), Health::Ready);
    let look = show(&mut history, still, 2, STUCK_MS, STUCK_MS);
    assert_eq!((health(&look), look.outcome), (Health::Stuck, Outcome::Ok));
    assert!(look.observation.stats.is_some());
    assert_eq!(health(&history.metrics(page(&engine(2, 1, 501, 99.0)), 2, STUCK_MS + 250)), Health::Ready);
    // Also without requests of ours: somebody else's are stuck.
    let mut history = self::history();
    assert_eq!(health(&show(&mut history, |cpu| engine(0, 4, 0, cpu), 0, 0, STUCK_MS)), Health::Stuck);
}

#[test]
fn an_idle_engine_and_a_long_prefill_are_not_stuck() {
    let mut history = history();
    let idle = |cpu| engine(0, 0, 500, cpu);
    assert_eq!(health(&show(&mut history, idle, 0, 0, 3 * STUCK_MS)), Health::Ready);
    // Time at rest doesn't count once there is work.
    let work = |cpu| engine(1, 0, 500, cpu);
    assert_eq!(health(&show(&mut history, work, 1, 3 * STUCK_MS + 250, 4 * STUCK_MS)), Health::Ready);
    // Nor does it once the work is done; the next work is judged anew.
    let mut history = self::history();
    show(&mut history, work, 1, 0, STUCK_MS - 250);
    assert_eq!(health(&show(&mut history, idle, 0, STUCK_MS, 3 * STUCK_MS)), Health::Ready);
    assert_eq!(health(&show(&mut history, work, 1, 3 * STUCK_MS + 250, 4 * STUCK_MS)), Health::Ready);
    let late = 4 * STUCK_MS + 250;
    assert_eq!(health(&show(&mut history, work, 1, late, late)), Health::Stuck);
    // No token moves, but the cache fills.
    let fill = |cpu: f64| engine(1, 0, 500, cpu).replace(" 0.5\n", &format!(" {}\n", cpu / 1000.0));
    assert_eq!(health(&show(&mut self::history(), fill, 1, 0, 3 * STUCK_MS)), Health::Ready);
}

#[test]
fn one_stuck_rank_is_a_stuck_endpoint() {
    let ranks = |now: f64| {
        let second = engine(1, 0, 500, now).replace("engine=\"0\"", "engine=\"1\"");
        format!("{}{second}", engine(1, 0, (now * 100.0) as u64, now))
    };
    assert_eq!(health(&show(&mut history(), ranks, 1, 0, STUCK_MS - 250)), Health::Ready);
    assert_eq!(health(&show(&mut history(), ranks, 1, 0, STUCK_MS)), Health::Stuck);
}

#[test]
fn requests_that_never_arrive_mean_paused() {
    let mut history = history();
    let rest = |cpu| engine(0, 0, 500, cpu);
    show(&mut history, rest, 0, 0, 1_000);
    assert_eq!(health(&show(&mut history, rest, 3, 1_250, 1_000 + STUCK_MS)), Health::Ready);
    assert_eq!(health(&show(&mut history, rest, 3, 1_250 + STUCK_MS, 1_250 + STUCK_MS)), Health::Paused);
    // They have arrived, though nothing has come of it yet.
    assert_eq!(health(&history.metrics(page(&engine(3, 0, 500, 98.0)), 3, 1_500 + STUCK_MS)), Health::Ready);
    // It goes on.
    let look = history.metrics(page(&engine(3, 0, 501, 99.0)), 3, 1_750 + STUCK_MS);
    assert_eq!(health(&look), Health::Ready);
}

#[test]
fn a_request_whose_end_was_not_heard_of_pauses_nobody() {
    let mut history = history();
    show(&mut history, |cpu| engine(0, 0, 500, cpu), 0, 0, 1_000);
    // It is sent and done between two pages, and stays in our books.
    let look = show(&mut history, |cpu| engine(0, 0, 520, cpu), 1, 1_250, 10 * STUCK_MS);
    assert_eq!(health(&look), Health::Ready);
}

#[test]
fn an_old_page_is_no_news_and_then_stuck() {
    let mut history = history();
    let copy = |_| engine(1, 0, 500, 7.0);
    // While nothing is in flight nobody can tell, and nobody cares.
    let look = show(&mut history, copy, 0, 0, 20_000);
    assert_eq!((look.outcome, look.observation.stats.is_some()), (Outcome::Ok, true));
    let look = show(&mut history, copy, 1, 20_250, 23_000);
    assert_eq!(look.outcome, Outcome::Ok);
    let look = show(&mut history, copy, 1, 23_250, 23_250);
    assert_eq!(
        (look.outcome, look.observation.stats, look.observation.health),
        (Outcome::Frozen, None, Health::Ready)
    );

    let mut history = self::history();
    let copy = |_| engine(0, 0, 500, 7.0);
    assert_eq!(health(&show(&mut history, copy, 1, 0, STUCK_MS - 250)), Health::Ready);
    assert_eq!(health(&show(&mut history, copy, 1, STUCK_MS, STUCK_MS)), Health::Stuck);
    // A living process at rest is no old page.
    let look = show(&mut self::history(), |cpu| engine(0, 0, 500, cpu), 1, 0, STUCK_MS);
    assert_eq!((look.outcome, health(&look)), (Outcome::Ok, Health::Ready));
}

#[test]
fn silence_is_believed_when_it_lasts() {
    for silence in [Failure::Timeout, Failure::Refused] {
        let mut history = history();
        history.metrics(page(DURING), 0, 0);
        let mut now_ms = 0;
        for want in [Health::Ready, Health::Ready, Health::Unreachable, Health::Unreachable] {
            now_ms += 1_000;
            let look = history.metrics(Err(silence), 0, now_ms);
            assert_eq!((health(&look), look.observation.stats), (want, None));
        }
        assert_eq!(health(&history.metrics(page(DURING), 0, 5_000)), Health::Ready);
        // Begins anew.
        assert_eq!(health(&history.metrics(Err(silence), 0, 6_000)), Health::Ready);
    }
}

#[test]
fn answers_of_no_use_mean_unknown_and_503_means_draining() {
    let html = page("<html></html>").unwrap_err();
    for (useless, outcome) in [
        (Failure::Status(500), Outcome::Status),
        (Failure::Status(302), Outcome::Status),
        (Failure::TooLarge, Outcome::TooLarge),
        (Failure::Broken, Outcome::Broken),
        (html, Outcome::NotMetrics),
    ] {
        let mut history = history();
        history.metrics(page(DURING), 0, 0);
        for want in [Health::Ready, Health::Ready, Health::Unknown, Health::Unknown] {
            let look = history.metrics(Err(useless), 0, 1_000);
            assert_eq!(
                (health(&look), look.outcome, look.observation.stats),
                (want, outcome, None),
                "{useless:?}"
            );
        }
    }
    let mut history = history();
    history.metrics(page(DURING), 0, 0);
    assert_eq!(health(&history.metrics(Err(Failure::Status(503)), 0, 1_000)), Health::Draining);
    assert_eq!(health(&history.metrics(Err(Failure::Refused), 0, 2_000)), Health::Draining);
    history.metrics(Err(Failure::Refused), 0, 3_000);
    assert_eq!(health(&history.metrics(Err(Failure::Refused), 0, 4_000)), Health::Unreachable);
}

#[test]
fn a_restart_is_seen_by_its_counters_or_its_birthday() {
    let before = engine(1, 0, 500, 50.0);
    let back = engine(0, 0, 499, 51.0);
    let reborn = engine(0, 0, 900, 0.5).replace("1000.0", "2000.0");
    for after in [back, reborn] {
        let mut history = history();
        history.metrics(page(&before), 0, 0);
        assert!(history.wants_models(0));
        history.models(Ok(BTreeSet::from(["m".to_owned()])), 0);
        assert!(!history.wants_models(100));
        // Whatever happens in between.
        history.metrics(Err(Failure::Refused), 0, 200);
        let look = history.metrics(page(&after), 0, 300);
        assert_eq!((look.outcome, health(&look)), (Outcome::Restarted, Health::Ready));
        assert!(history.wants_models(300), "the models are asked for at once");
        assert_eq!(history.metrics(page(&after), 0, 400).outcome, Outcome::Ok);
    }
    let mut history = history();
    history.metrics(page(&before), 0, 0);
    let more = engine(1, 0, 501, 51.0);
    assert_eq!(history.metrics(page(&more), 0, 300).outcome, Outcome::Ok);
    // A rank more or less is none.
    let other = more.replace("engine=\"0\"", "engine=\"1\"");
    assert_eq!(history.metrics(page(&format!("{more}{other}")), 0, 600).outcome, Outcome::Ok);
    assert_eq!(history.metrics(page(&more), 0, 900).outcome, Outcome::Ok);
}

#[test]
fn a_list_stays_while_it_cannot_be_read_and_then_is_unknown() {
    let mut history = history();
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let listed = |look: &Look| look.observation.models.as_deref().cloned();
    history.metrics(page(DURING), 0, 0);
    assert_eq!(listed(&history.models(Ok(names(&["m"])), 0)), Some(names(&["m"])));
    assert_eq!(listed(&history.metrics(page(DURING), 0, 9_000)), None, "nothing new");
    assert!(!history.wants_models(9_999));
    assert!(history.wants_models(10_000));
    assert_eq!(listed(&history.models(Ok(names(&["m", "lora"])), 10_000)), Some(names(&["lora", "m"])));
    let look = history.models(Err(Failure::NotModels), 20_000);
    assert_eq!((look.outcome, listed(&look), health(&look)), (Outcome::NoModels, None, Health::Ready));
    assert_eq!(look.change.unwrap().failure, Some(Failure::NotModels));
    let kept_ms = 10_000 + 10_000 * MODELS_KEPT_TIMES;
    assert_eq!(listed(&history.metrics(page(DURING), 0, kept_ms)), None);
    assert_eq!(
        listed(&history.metrics(page(DURING), 0, kept_ms + 1)),
        Some(BTreeSet::new()),
        "unknown again"
    );
    assert_eq!(listed(&history.metrics(page(DURING), 0, kept_ms + 2)), None, "said once");
    assert_eq!(listed(&history.models(Ok(names(&["m"])), kept_ms + 3)), Some(names(&["m"])));
}

#[test]
fn a_server_with_a_list_only_is_never_worse_than_unknown() {
    let mut history = History::new(Kind::OpenAi, Settings::default());
    let look = history.models(Ok(BTreeSet::from(["m".to_owned()])), 0);
    assert_eq!((health(&look), look.outcome), (Health::Ready, Outcome::Ok));
    for failure in [Failure::Refused, Failure::Timeout, Failure::Status(503), Failure::NotModels] {
        for _ in 0..5 {
            assert_eq!(health(&history.models(Err(failure), 1_000)), Health::Unknown);
        }
    }
}

#[test]
fn pauses_follow_load_and_failures_within_a_fifth() {
    let mut history = history();
    history.metrics(page(DURING), 0, 0);
    let pauses = |history: &History, in_flight| {
        [0.0, 0.5, 1.0].map(|chance| history.pause(in_flight, chance).as_millis())
    };
    assert_eq!(pauses(&history, 0), [800, 1000, 1200]);
    assert_eq!(pauses(&history, 1), [200, 250, 300]);
    history.metrics(Err(Failure::Refused), 0, 0);
    assert_eq!(pauses(&history, 0), [80, 100, 120]);
    history.metrics(Err(Failure::Refused), 0, 0);
    assert_eq!(pauses(&history, 0), [80, 100, 120]);
    history.metrics(Err(Failure::Refused), 0, 0);
    assert_eq!(pauses(&history, 0), [800, 1000, 1200]);
    let zero = Settings { idle: Duration::ZERO, busy: Duration::ZERO, ..Settings::default() };
    assert_eq!(History::new(Kind::Vllm, zero).pause(0, 0.0), PAUSE_MIN);
    assert_eq!(History::new(Kind::OpenAi, zero).pause(5, 0.5), Duration::from_secs(10));
}

#[test]
fn only_changes_are_told_and_not_too_often() {
    let mut history = history();
    assert_eq!(history.metrics(page(&engine(0, 0, 5, 1.0)), 0, 0).change, None);
    assert_eq!(history.metrics(page(&engine(0, 0, 6, 2.0)), 0, 1_000).change, None);
    let change = history.metrics(Err(Failure::Status(500)), 0, 2_000).change.unwrap();
    assert_eq!((change.from, change.to, change.outcome), (Health::Ready, Health::Ready, Outcome::Status));
    assert_eq!((change.failure, change.untold), (Some(Failure::Status(500)), 0));
    // Held back, then told once, with what it hides.
    assert_eq!(history.metrics(Err(Failure::Status(500)), 0, 3_000).change, None);
    assert_eq!(history.metrics(Err(Failure::Status(500)), 0, 3_100).change, None);
    assert_eq!(history.metrics(page(&engine(0, 0, 3, 3.0)), 0, 4_000).change, None);
    let change = history.metrics(page(&engine(0, 0, 4, 4.0)), 0, 7_000).change.unwrap();
    assert_eq!((change.from, change.to, change.outcome), (Health::Ready, Health::Ready, Outcome::Ok));
    assert_eq!((change.untold, change.restarts), (1, 1));
    assert_eq!(history.metrics(page(&engine(0, 0, 5, 5.0)), 0, 60_000).change, None);
    // A restart alone is told, too.
    let change = history.metrics(page(&engine(0, 0, 1, 6.0)), 0, 70_000).change.unwrap();
    assert_eq!((change.outcome, change.restarts), (Outcome::Restarted, 1));
    assert_eq!(history.metrics(page(&engine(0, 0, 2, 7.0)), 0, 80_000).change, None);
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("NaN".to_owned()),
        Just("+Inf".to_owned()),
        Just("-1".to_owned()),
        any::<f64>().prop_map(|value| value.to_string()),
        (0u32..2_000).prop_map(|value| value.to_string()),
        (0.0..1.5f64).prop_map(|value| value.to_string()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever a page says: the numbers that come out can be true.
    #[test]
    fn no_page_makes_impossible_numbers(
        values in proptest::collection::vec((0usize..7, 0u8..3, number()), 1..20),
        in_flight in 0u32..5,
    ) {
        const NAMES: [&str; 7] = [
            "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
            "prompt_tokens_total", "generation_tokens_total", "engine_sleep_state",
        ];
        let mut history = history();
        for (now_ms, lines) in (0..).step_by(997).zip(values.chunks(4)) {
            let lines: String = lines
                .iter()
                .map(|(name, engine, value)| format!("vllm:{}{{engine=\"{engine}\"}} {value}\n", NAMES[*name]))
                .collect();
            let look = history.metrics(page(&lines), in_flight, now_ms);
            if let Some(stats) = look.observation.stats {
                prop_assert!((0.0..=1.0).contains(&stats.kv_usage));
                prop_assert!(stats.running <= 3_000_000 && stats.waiting <= 3_000_000);
            }
        }
    }
}
