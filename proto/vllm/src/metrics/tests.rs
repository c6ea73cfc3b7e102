//! Real pages of vLLM 0.32 with their values read by hand, and pages that are none.

use proptest::prelude::*;

use super::*;

const BEFORE: &[u8] = include_bytes!("../../tests/captures/metrics-before-load.txt");
const DURING: &[u8] = include_bytes!("../../tests/captures/metrics-during-load.txt");
const AFTER: &[u8] = include_bytes!("../../tests/captures/metrics-after-load.txt");
const LORA: &[u8] = include_bytes!("../../tests/captures/metrics-lora-during-load.txt");
const DP2: &[u8] = include_bytes!("../../tests/captures/metrics-dp2.txt");

fn one(page: &str) -> EngineStats {
    let page = read(page.as_bytes()).unwrap();
    assert_eq!((page.engines.len(), page.flaws), (1, 0));
    page.engines.into_iter().next().unwrap()
}

fn has(stats: &EngineStats, want: &[(Field, f64)]) {
    for (field, value) in want {
        assert_eq!(stats.get(*field), Some(*value), "{field:?}");
    }
}

fn names(list: &[&str]) -> Vec<Box<str>> {
    list.iter().map(|name| (*name).into()).collect()
}

#[test]
fn a_page_under_load_is_read_whole() {
    let page = read(DURING).unwrap();
    assert_eq!((page.engines.len(), page.flaws, page.left_out, page.cut), (1, 0, 0, false));
    let stats = &page.engines[0];
    assert_eq!((&*stats.engine, &*stats.model), ("0", "tiny-llama"));
    has(
        stats,
        &[
            (Field::Running, 8.0),
            (Field::Waiting, 24.0),
            (Field::WaitingCapacity, 24.0),
            (Field::WaitingDeferred, 0.0),
            (Field::Awake, 1.0),
            (Field::WeightsOffloaded, 0.0),
            (Field::Discarded, 0.0),
            (Field::KvUsage, 0.525_490_196_078_431_4),
            (Field::PrefixQueries, 7868.0),
            (Field::PrefixHits, 0.0),
            (Field::ExternalQueries, 0.0),
            (Field::ExternalHits, 0.0),
            (Field::Preemptions, 0.0),
            (Field::PromptTokens, 7868.0),
            (Field::PromptComputed, 7868.0),
            (Field::PromptCacheHit, 0.0),
            (Field::PromptTransferred, 0.0),
            (Field::PromptCached, 0.0),
            (Field::CachedDevice, 0.0),
            (Field::CachedHost, 0.0),
            (Field::CachedPeer, 0.0),
            (Field::CachedDisk, 0.0),
            (Field::CachedOther, 0.0),
            (Field::GenerationTokens, 1078.0),
            (Field::FinishedStop, 0.0),
            (Field::FinishedLength, 8.0),
            (Field::FinishedAbort, 0.0),
            (Field::FinishedError, 0.0),
            (Field::FinishedRepetition, 0.0),
            (Field::FirstTokenCount, 16.0),
            (Field::FirstTokenSeconds, 4.896_250_009_536_743),
            (Field::InterTokenCount, 1062.0),
            (Field::InterTokenSeconds, 3.636_342_261_999_743_6),
            (Field::QueueCount, 8.0),
            (Field::QueueSeconds, 0.075_558_647_999_514_5),
            (Field::PrefillCount, 8.0),
            (Field::PrefillSeconds, 0.275_476_798_000_909_2),
            (Field::EndToEndCount, 8.0),
            (Field::EndToEndSeconds, 3.878_227_949_142_456),
        ],
    );
    for absent in [Field::WaitingOther, Field::KvFetching, Field::PromptOther, Field::FinishedOther] {
        assert_eq!(stats.get(absent), None, "{absent:?}");
    }
    let cache = CacheConfig {
        engine: "0".into(),
        block_size: Some(32),
        num_gpu_blocks: Some(256),
        kv_cache_size_tokens: Some(8192),
        hash_block_size: None,
        prefix_caching: Some(true),
    };
    assert_eq!((page.caches, page.lora), (vec![cache], None));
    let rejected = Rejected { queued_requests: Some(0.0), queued_tokens: Some(0.0), other: None };
    assert_eq!(page.rejected, rejected);
    assert_eq!(page.process.cpu_seconds, Some(6.83));
    assert_eq!(page.process.start_seconds, Some(1_796_099_590.59));
    assert_eq!(page.process.collections, Some(1551.0 + 140.0 + 10.0));
}

#[test]
fn pages_before_and_after_load_are_read() {
    let before = read(BEFORE).unwrap();
    has(
        &before.engines[0],
        &[
            (Field::Running, 0.0),
            (Field::Waiting, 0.0),
            (Field::KvUsage, 0.0),
            (Field::PromptTokens, 0.0),
            (Field::GenerationTokens, 0.0),
            (Field::FirstTokenCount, 0.0),
        ],
    );
    let after = read(AFTER).unwrap();
    has(
        &after.engines[0],
        &[
            (Field::Running, 0.0),
            (Field::Waiting, 0.0),
            (Field::KvUsage, 0.0),
            (Field::PrefixQueries, 34971.0),
            (Field::GenerationTokens, 3840.0),
            (Field::FinishedLength, 60.0),
        ],
    );
    assert_ne!(before.engines, after.engines);
}

#[test]
fn ranks_are_told_apart_and_their_cache_is_said_per_rank() {
    let page = read(DP2).unwrap();
    assert_eq!((page.flaws, page.engines.len()), (0, 2));
    let labels: Vec<_> = page.engines.iter().map(|stats| (&*stats.engine, &*stats.model)).collect();
    assert_eq!(labels, [("0", "tiny-llama"), ("1", "tiny-llama")]);
    let first = [
        (Field::PromptTokens, 97.0),
        (Field::GenerationTokens, 903.0),
        (Field::PrefixHits, 0.0),
        (Field::FinishedLength, 4.0),
        (Field::InterTokenCount, 899.0),
    ];
    let second = [
        (Field::PromptTokens, 191.0),
        (Field::GenerationTokens, 906.0),
        (Field::PrefixHits, 64.0),
        (Field::PromptCacheHit, 64.0),
        (Field::CachedDevice, 64.0),
        (Field::FinishedLength, 5.0),
        (Field::EndToEndSeconds, 2.028_215_646_743_774_4),
    ];
    has(&page.engines[0], &first);
    has(&page.engines[1], &second);
    let room: Vec<_> = page
        .caches
        .iter()
        .map(|cache| (&*cache.engine, cache.num_gpu_blocks, cache.kv_cache_size_tokens))
        .collect();
    assert_eq!(room, [("0", Some(512), Some(8192)), ("1", Some(512), Some(8192))]);
    // Several processes write this page; there is none to speak for.
    assert_eq!(page.process, Process::default());
}

#[test]
fn the_newest_lora_series_counts() {
    let page = read(LORA).unwrap();
    let both = names(&["lora-a", "lora-b"]);
    assert_eq!(page.lora, Some(Lora { max: Some(2), running: both.clone(), waiting: both }));
    has(&page.engines[0], &[(Field::Running, 4.0), (Field::Waiting, 0.0), (Field::FirstTokenCount, 5.0)]);
    // The engine that has gone idle since: the list is empty, and known.
    let idle = "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.9e9\n";
    let lora = read(&[LORA, idle.as_bytes()].concat()).unwrap().lora.unwrap();
    assert_eq!((lora.running, lora.waiting, lora.max), (vec![], vec![], Some(2)));
}

#[test]
fn earlier_names_are_read_but_never_beside_the_present_ones() {
    let old = "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.25\n\
               vllm:gpu_prefix_cache_queries{model_name=\"m\"} 10\n\
               vllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 4\n\
               vllm:num_preemptions{model_name=\"m\"} 3\n\
               vllm:time_per_output_token_seconds_sum{model_name=\"m\"} 1.5\n\
               vllm:time_per_output_token_seconds_count{model_name=\"m\"} 30\n";
    let stats = one(old);
    assert_eq!((&*stats.engine, &*stats.model), ("", "m"));
    let want = [
        (Field::KvUsage, 0.25),
        (Field::PrefixQueries, 10.0),
        (Field::PrefixHits, 4.0),
        (Field::Preemptions, 3.0),
        (Field::InterTokenSeconds, 1.5),
        (Field::InterTokenCount, 30.0),
    ];
    has(&stats, &want);
    let new = "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.125\n";
    has(&one(&format!("{old}{new}")), &[(Field::KvUsage, 0.125)]);
    has(&one(&format!("{new}{old}")), &[(Field::KvUsage, 0.125)]);
}

#[test]
fn of_the_same_series_twice_the_larger_counts() {
    for order in [["3", "7"], ["7", "3"]] {
        let [first, second] =
            order.map(|value| format!("vllm:num_requests_running{{engine=\"0\"}} {value}\n"));
        has(&one(&format!("{first}{second}")), &[(Field::Running, 7.0)]);
    }
}

#[test]
fn labels_that_nobody_knows_add_up_or_stay_out() {
    let stats = one("vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"moon\"} 2\n\
                     vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"tide\"} 3\n\
                     vllm:num_requests_kv_fetch_by_stage{engine=\"0\",stage=\"a\"} 1\n\
                     vllm:num_requests_kv_fetch_by_stage{engine=\"0\",stage=\"b\"} 6\n\
                     vllm:engine_sleep_state{engine=\"0\",sleep_state=\"dreaming\"} 1\n");
    has(&stats, &[(Field::WaitingOther, 5.0), (Field::KvFetching, 7.0)]);
    assert_eq!((stats.get(Field::Awake), stats.get(Field::Discarded)), (None, None));
}

#[test]
fn names_may_hold_what_the_format_uses() {
    let stats = one(
        "vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"b},c=\\\\d\\ne\"} 1.0\r\n# EOF\r\nvllm:x 1\n",
    );
    assert_eq!((&*stats.model, stats.get(Field::Running)), ("a\"b},c=\\d\ne", Some(1.0)));
}

#[test]
fn what_cannot_be_true_is_handed_on() {
    let stats = one(
        "vllm:num_requests_running -1\nvllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc +Inf 17\n",
    );
    assert_eq!(stats.get(Field::Running), Some(-1.0));
    assert!(stats.get(Field::Waiting).unwrap().is_nan());
    assert_eq!(stats.get(Field::KvUsage), Some(f64::INFINITY));
    assert_eq!(stats, stats.clone());
}

#[test]
fn an_unfinished_last_line_is_not_believed() {
    let page = read(b"vllm:num_requests_running 8\nvllm:num_requests_waiting 2").unwrap();
    assert_eq!((page.cut, page.engines[0].get(Field::Waiting)), (true, None));
    let page = read(b"vllm:num_requests_running 8\n# EOF").unwrap();
    assert!(!page.cut);
}

#[test]
fn a_text_without_metrics_says_what_it_is() {
    for (text, seen) in [
        ("", Seen::Nothing),
        (" \n\n", Seen::Nothing),
        ("<!DOCTYPE html><html>vllm:num_requests_running 1</html>\n", Seen::Html),
        ("\n<HTML>", Seen::Html),
        ("{\"detail\":\"Not Found\"}", Seen::Json),
        ("# HELP x y\n# TYPE x gauge\nx 1\n", Seen::OtherMetrics),
        ("gone\n", Seen::Other),
        ("vllm:num_requests_running 8", Seen::Other),
    ] {
        assert_eq!(read(text.as_bytes()), Err(Unreadable::NotMetrics(seen)), "{text}");
    }
    let error = read(b"<html>").unwrap_err().to_string();
    assert!(error.starts_with("the page is HTML, not one line begins with `vllm:`"), "{error}");
    let error = read(&vec![b'\n'; limits::PAGE_BYTES_MAX + 1]).unwrap_err();
    assert_eq!(error, Unreadable::TooLarge(limits::PAGE_BYTES_MAX + 1));
}

#[test]
fn every_bound_holds_and_says_so() {
    let engine = |at: usize| format!("vllm:num_requests_running{{engine=\"{at}\"}} 1\n");
    let many: String = (0..limits::ENGINES_MAX + 3).map(engine).collect();
    let page = read(many.as_bytes()).unwrap();
    assert_eq!((page.engines.len(), page.left_out), (limits::ENGINES_MAX, 3));
    assert_eq!(&*page.engines[10].engine, "10");

    let name = "n".repeat(limits::NAME_BYTES_MAX);
    let page = format!("vllm:num_requests_running{{model_name=\"{name}\"}} 1\n");
    assert_eq!(one(&page).model.len(), limits::NAME_BYTES_MAX);
    let page = format!("vllm:num_requests_running{{model_name=\"{name}n\"}} 1\nvllm:up 1\n");
    let page = read(page.as_bytes()).unwrap();
    assert_eq!((page.engines.len(), page.flaws), (0, 1));

    let long = "x".repeat(limits::LINE_BYTES_MAX);
    let page = format!("vllm:cache_config_info{{a=\"{long}\"}} 1\nvllm:up 1\n");
    let page = read(page.as_bytes()).unwrap();
    assert_eq!((page.caches.len(), page.flaws), (0, 1));

    let list: Vec<String> = (0..=limits::ADAPTERS_MAX).map(|at| format!("a{at}")).collect();
    let page = format!("vllm:lora_requests_info{{running_lora_adapters=\"{}\"}} 1\n", list.join(","));
    assert_eq!(read(page.as_bytes()).unwrap().lora.unwrap().running.len(), limits::ADAPTERS_MAX);
}

fn captures() -> impl Strategy<Value = &'static [u8]> {
    prop_oneof![Just(BEFORE), Just(DURING), Just(AFTER), Just(LORA), Just(DP2)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = read(&text);
        let _ = read(&[b"vllm:", text.as_slice(), b"\n"].concat());
    }

    /// Any byte replaced, any piece cut out, any end: never a panic, and what is left is within its bounds.
    #[test]
    fn no_mutation_panics(
        page in captures(),
        at in any::<proptest::sample::Index>(),
        cut in 0usize..200,
        bytes in proptest::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b'}'), Just(b'\n'), any::<u8>()], 0..8),
    ) {
        let start = at.index(page.len());
        let mut text = page[..start].to_vec();
        text.extend_from_slice(&bytes);
        text.extend_from_slice(&page[(start + cut).min(page.len())..]);
        if let Ok(said) = read(&text) {
            prop_assert!(said.engines.len() <= 4);
        }
        let _ = read(&text[..start]);
    }

    #[test]
    fn the_order_of_lines_carries_no_meaning(page in captures(), seed in any::<u64>()) {
        let mut lines: Vec<&[u8]> = page.split_inclusive(|byte| *byte == b'\n').collect();
        // A cheap, seeded order; equal keys keep theirs.
        lines.sort_by_cached_key(|line| line.iter().fold(seed, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
        }));
        prop_assert_eq!(read(&lines.concat()).unwrap(), read(page).unwrap());
    }
}
