//! Engines' signals: they shape the pick; poisoned ones do no harm, and are seen.

use std::time::Duration;

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use serde_json::Value;

use crate::engine::{Engine, Page};
use crate::play::{Served, Stream, immediate, metadata};

const IDLE: Page = Page::Load { running: 0, waiting: 0, kv: 0.0 };
const BUSY: Page = Page::Load { running: 64, waiting: 200, kv: 0.99 };
/// Looks often, so that tests need not wait.
const QUICK: &str = "signals: {idle_ms: 100, busy_ms: 50, timeout_ms: 300, models_s: 1}\n";

async fn served(engines: &[&Engine]) -> Served {
    let pools = "[{name: a, models: [m], pick: {exploration: 0}}]";
    let list: Vec<String> =
        engines.iter().map(|engine| format!("{{address: \"{}\"}}", engine.address)).collect();
    Served::start_pools(pools, &format!("{{a: [{}]}}", list.join(", ")), QUICK).await
}

/// What `/debug/endpoints` says of one engine.
async fn seen(served: &Served, engine: &Engine) -> Value {
    let page = served.json("/debug/endpoints").await;
    let list = page["pools"][0]["endpoints"].as_array().expect("a list").clone();
    let address = engine.address.to_string();
    list.into_iter().find(|entry| entry["endpoint"] == address.as_str()).expect("it is listed")
}

/// Waits until `/debug/endpoints` says of an engine what is looked for.
async fn seen_when(served: &Served, engine: &Engine, what: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..400 {
        let entry = seen(served, engine).await;
        if what(&entry) {
            return entry;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never seen; at last {}", seen(served, engine).await)
}

/// The first endpoint of a verdict; its stream stays open.
async fn picked(served: &Served) -> (String, Stream) {
    let mut stream = Stream::open(served, BodySendMode::Buffered).await.expect("open");
    let reply = stream.verdict().await;
    let list = metadata(&reply, "envoy.lb", "x-gateway-destination-endpoint").expect("a verdict");
    (list.split(',').next().expect("an endpoint").to_owned(), stream)
}

/// Picks once, and ends the exchange at once by an answer from nowhere.
async fn picked_and_gone(served: &Served) -> String {
    let (first, mut stream) = picked(served).await;
    stream.response(None, &[(":status", "503")]).await;
    stream.reply().await.expect("open").expect("go on");
    first
}

#[tokio::test]
async fn an_engine_that_says_it_is_busy_is_left_alone_until_it_is_not() {
    let (busy, idle) = (Engine::start(BUSY, &["m"]).await, Engine::start(IDLE, &["m"]).await);
    let served = served(&[&busy, &idle]).await;
    for engine in [&busy, &idle] {
        seen_when(&served, engine, |entry| entry["signals"]["numbers"].is_object()).await;
    }
    for _ in 0..8 {
        assert_eq!(picked_and_gone(&served).await, idle.address.to_string());
    }
    let pick = &served.json("/debug/picks").await["picks"][0];
    assert_eq!(pick["strategy"], "least_work");
    let of = |engine: &Engine| {
        let list = pick["candidates"].as_array().expect("a list");
        list.iter()
            .find(|c| c["endpoint"] == engine.address.to_string().as_str())
            .expect("a candidate")
            .clone()
    };
    let (cost, age) = (of(&busy)["cost_s"]["foreign"].as_f64(), of(&busy)["signal_age_ms"].as_u64());
    assert!(cost > of(&idle)["cost_s"]["foreign"].as_f64() && age.is_some(), "{pick:#}");
    assert!(of(&busy)["cost_s"]["total"].as_f64() > of(&idle)["cost_s"]["total"].as_f64(), "{pick:#}");

    let numbers = seen(&served, &busy).await["signals"]["numbers"].clone();
    assert_eq!((&numbers["running"], &numbers["waiting"]), (&64.into(), &200.into()));
    assert_eq!(numbers["kv_capacity_tokens"], 16_000);
    let gauge = |name: &str, engine: &Engine| format!("{name}{{pool=\"a\",endpoint=\"{}\"", engine.address);
    assert!((served.metric(&gauge("tokenweir_engine_waiting_requests", &busy)).await - 200.0).abs() < 0.1);
    assert!(served.metric("tokenweir_signals_scrapes_total{pool=\"a\",outcome=\"ok\"}").await > 1.0);
    assert!(served.metric("tokenweir_signals_scrape_seconds_count{pool=\"a\"}").await > 1.0);

    busy.say(IDLE);
    idle.say(BUSY);
    seen_when(&served, &idle, |entry| entry["signals"]["numbers"]["waiting"] == 200).await;
    seen_when(&served, &busy, |entry| entry["signals"]["numbers"]["waiting"] == 0).await;
    // A queue that is seen once may be a request of ours that is counted on one side only; seen twice it is believed.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(picked_and_gone(&served).await, busy.address.to_string());
}

#[tokio::test]
async fn a_sleeping_engine_gets_nothing_and_one_without_the_model_neither() {
    let (asleep, other) = (Engine::start(Page::Asleep, &["m"]).await, Engine::start(IDLE, &["x"]).await);
    let right = Engine::start(IDLE, &["y", "m"]).await;
    let served = served(&[&asleep, &other, &right]).await;
    seen_when(&served, &asleep, |entry| entry["health"] == "sleeping").await;
    for engine in [&other, &right] {
        seen_when(&served, engine, |entry| entry["signals"]["models"].is_object()).await;
    }
    for _ in 0..4 {
        assert_eq!(picked_and_gone(&served).await, right.address.to_string());
    }
    let pick = &served.json("/debug/picks").await["picks"][0];
    let excluded: std::collections::BTreeSet<_> = pick["candidates"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|c| c["excluded"].as_str())
        .collect();
    assert_eq!(excluded, ["not_serving", "sleeping"].into(), "{pick:#}");
    let asleep_now = format!(
        "tokenweir_endpoint_health{{pool=\"a\",endpoint=\"{}\",health=\"sleeping\"}}",
        asleep.address
    );
    assert!((served.metric(&asleep_now).await - 1.0).abs() < 0.1);
}

#[tokio::test]
async fn where_no_engine_has_loaded_the_model_the_answer_says_so() {
    let engine = Engine::start(IDLE, &["x"]).await;
    let served = served(&[&engine]).await;
    seen_when(&served, &engine, |entry| entry["signals"]["models"].is_object()).await;
    let mut stream = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    let (status, body) = immediate(&stream.verdict().await);
    assert_eq!(status, 503);
    assert!(body.contains("No ready endpoint of pool `a` has loaded the requested model"), "{body}");
    assert!((served.metric("tokenweir_rejects_total{reason=\"none_serves\"").await - 1.0).abs() < 0.1);
}

/// One engine's signals are poisoned, the other's are good: requests still flow, to both where nothing else speaks
/// against it, and what is wrong is seen.
#[tokio::test]
async fn poisoned_signals_do_no_harm_and_are_seen() {
    for (page, outcome) in [
        (Page::Html, "not_metrics"),
        (Page::Error, "status"),
        (Page::Absurd, "absurd"),
        (Page::Slow, "timeout"),
    ] {
        let (poisoned, good) = (Engine::start(page, &["m"]).await, Engine::start(IDLE, &["m"]).await);
        let served = served(&[&poisoned, &good]).await;
        let entry =
            seen_when(&served, &poisoned, |entry| entry["signals"]["last_look"]["outcome"] == outcome).await;
        seen_when(&served, &good, |entry| entry["signals"]["last_look"]["outcome"] == "ok").await;
        assert_eq!(entry["excluded"], Value::Null, "{outcome}: it may still be picked");
        let counted = format!("tokenweir_signals_scrapes_total{{pool=\"a\",outcome=\"{outcome}\"}}");
        assert!(served.metric(&counted).await > 0.5, "{outcome}");
        for _ in 0..6 {
            picked_and_gone(&served).await;
        }
        drop(good);
    }
}

/// With all signals poisoned a pool works as it would without any.
#[tokio::test]
async fn a_pool_whose_signals_are_all_poisoned_still_spreads_its_load() {
    let engines = [Engine::start(Page::Html, &["m"]).await, Engine::start(Page::Error, &["m"]).await];
    let served = served(&[&engines[0], &engines[1]]).await;
    for engine in &engines {
        seen_when(&served, engine, |entry| entry["signals"]["last_look"].is_object()).await;
    }
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(picked(&served).await);
    }
    for engine in &engines {
        let count = open.iter().filter(|(first, _)| *first == engine.address.to_string()).count();
        assert!(count >= 2, "{count} of 8 went to {}", engine.address);
    }
}

#[tokio::test]
async fn a_page_that_never_changes_is_known_for_an_old_one() {
    let engine = Engine::start(Page::Frozen, &["m"]).await;
    let served = served(&[&engine]).await;
    let _open = picked(&served).await;
    let entry =
        seen_when(&served, &engine, |entry| entry["signals"]["last_look"]["outcome"] == "frozen").await;
    assert_eq!(entry["excluded"], Value::Null);
    assert_eq!(picked(&served).await.0, engine.address.to_string());
}

#[tokio::test]
async fn signals_that_are_off_ask_nobody() {
    let engine = Engine::start(BUSY, &["x"]).await;
    let pools = "[{name: a, models: [m]}]";
    let endpoints = format!("{{a: [{{address: \"{}\"}}]}}", engine.address);
    let served = Served::start_pools(pools, &endpoints, "signals: {enabled: false}\n").await;
    assert_eq!(picked(&served).await.0, engine.address.to_string());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let entry = seen(&served, &engine).await;
    assert_eq!((&entry["health"], &entry["signals"]["last_look"]), (&"unknown".into(), &Value::Null));
}
