//! The four rules, at every phase of a request: nothing passes without a verdict; a dead service cuts nothing; every
//! report arrives; nothing is doubled.

use e2e::bodies::{Wish, chat, chat_call};
use e2e::client::raw::{self, Step};
use e2e::client::{self, Call, Ended, Open};
use e2e::fake::{Close, serve};
use e2e::{Harness, parts};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(60);

/// Requests in every phase at once: before the body, in the middle of it, waiting for the engine, streaming; and fresh
/// ones all the time. What the clients saw, by status.
async fn traffic_in_every_phase(harness: &Harness, during: impl Future<Output = ()>) -> BTreeMap<u16, u32> {
    let address = harness.address();
    let body = chat(4, Wish::Nothing).to_string();
    let mut tasks = JoinSet::new();
    for n in 0..24_u64 {
        let head = raw::head("/v1/chat/completions", &["transfer-encoding: chunked", "connection: close"]);
        let (first, second) = body.split_at(usize::try_from(n % 3).unwrap() * 20);
        let mut steps = vec![Step::text(&head)];
        if !first.is_empty() {
            steps.push(Step::text(&raw::chunk(first)));
        }
        steps.push(Step::Pause(Duration::from_millis(n * 60)));
        steps.push(Step::text(&(raw::chunk(second) + "0\r\n\r\n")));
        tasks.spawn(async move {
            let answer = raw::converse(address, &steps, Duration::from_secs(15)).await.unwrap();
            raw::status(&answer).unwrap_or(0)
        });
    }
    for n in 0..24_u64 {
        tasks.spawn(async move {
            let body = json!({"model": "tiny-llama", "max_tokens": 10, "messages": []});
            let whole = Call::json("/v1/chat/completions", &body);
            let call = if n % 2 == 0 { chat_call(40) } else { whole };
            let reply = client::send(address, call.header("x-engine-interval-ms", "40")).await;
            reply.map_or(0, |reply| reply.status)
        });
    }
    for _ in 0..8 {
        tasks.spawn(async move {
            let mut last = 0;
            for _ in 0..60 {
                let reply = client::send(address, chat_call(1)).await;
                last = reply.map_or(0, |reply| reply.status);
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            last
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    during.await;
    let mut statuses = BTreeMap::new();
    while let Some(status) = tasks.join_next().await {
        *statuses.entry(status.unwrap()).or_default() += 1;
    }
    statuses
}

/// SIGTERM with requests in every phase: no engine sees a request without a verdict, and no client an odd status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_nothing_pass_without_a_verdict() {
    let mut harness = Harness::builder().start().await.unwrap();
    for _ in 0..3 {
        let terminate = harness.service().unwrap().process().unwrap().id();
        let statuses = traffic_in_every_phase(&harness, async move { signal(terminate, "TERM") }).await;
        assert!(statuses.keys().all(|status| [200, 503].contains(status)), "{statuses:?}");
        assert_eq!(harness.reached().1, 0, "a request reached an engine without a verdict: {statuses:?}");
        let service = harness.service().unwrap();
        service.process().unwrap().wait(Duration::from_secs(30)).await.unwrap();
        service.start().await.unwrap();
    }
    assert!(harness.reached().0 > 50);
}

/// SIGKILL with requests in every phase: the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_lets_nothing_pass_without_a_verdict() {
    let mut harness = Harness::builder().start().await.unwrap();
    for _ in 0..3 {
        let victim = harness.service().unwrap().process().unwrap().id();
        let statuses = traffic_in_every_phase(&harness, async move { signal(victim, "KILL") }).await;
        assert!(statuses.keys().all(|status| [200, 503].contains(status)), "{statuses:?}");
        assert!(statuses.get(&503).is_some_and(|count| *count > 0), "the crash hit nothing: {statuses:?}");
        assert_eq!(harness.reached().1, 0, "a request reached an engine without a verdict: {statuses:?}");
        harness.service().unwrap().start().await.unwrap();
    }
}

fn signal(id: u32, name: &str) {
    let status = std::process::Command::new("kill").args(["-s", name, &id.to_string()]).status().unwrap();
    assert!(status.success());
}

/// A processor that closes with OK before the verdict, at each phase: Envoy takes it as "skip the rest", and the filter
/// refuses; without the filter the catch-all rule does. On the open route the same close is a bypass, which proves that
/// it happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_close_lets_nothing_pass() {
    for close in [Close::AtStart, Close::OnHeaders, Close::AfterHeaders, Close::OnBody, Close::AfterBody] {
        let address = serve(close).await.unwrap();
        for filter in [true, false] {
            let builder = Harness::builder().service_at(address);
            let builder = if filter { builder } else { builder.without_filter() };
            let harness = builder.start().await.unwrap();
            let bodiless = !matches!(close, Close::OnBody | Close::AfterBody);
            let gets = ["/v1/models", "/v1/responses/resp_1"].map(|path| bodiless.then(|| Call::get(path)));
            for call in [Some(chat_call(2))].into_iter().chain(gets).flatten() {
                let reply = harness.send(call.within(Duration::from_secs(5))).await.unwrap();
                assert_eq!(reply.status, 503, "{close:?}: {}", reply.text());
                assert_eq!(reply.text() == "no verdict (route)\n", !filter, "{close:?}: {}", reply.text());
            }
            assert_eq!(harness.reached().0, 0, "{close:?}");
            assert_eq!(harness.send(chat_call(2).open()).await.unwrap().status, 200, "{close:?}");
            assert_eq!(harness.reached(), (1, 1), "{close:?}: the processor did not close cleanly");
        }
    }
}

/// A panic in each phase: an error for that request, no bypass, and the service goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_lets_nothing_pass() {
    for phase in ["await_headers", "await_body", "await_stored", "await_answer", "await_response"] {
        let binary = parts::tokenweir_with_faults().unwrap();
        let fault = format!("panic:{phase}");
        let builder = Harness::builder().service(move |service| {
            service.binary = Some(binary);
            service.env.push(("TOKENWEIR_FAULT".to_owned(), fault));
        });
        let mut harness = builder.start().await.unwrap();
        let mut statuses = Vec::new();
        for _ in 0..5 {
            let cancel = Call::post("/v1/responses/resp_1/cancel", "{}");
            let call = if phase == "await_stored" { cancel } else { chat_call(2) };
            statuses.push(harness.send(call).await.unwrap().status);
        }
        assert_eq!(harness.reached().1, 0, "{phase}");
        let struck = harness.service().unwrap().metrics().await.unwrap().sum("tokenweir_panics_total", &[]);
        if phase != "await_response" {
            assert_eq!(statuses, [503; 5], "{phase}");
            assert_eq!(harness.reached().0, 0);
        }
        assert!(struck >= 5.0, "{phase}: {struck} panics");
        assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{phase}: {statuses:?}");
        assert_eq!(harness.service().unwrap().admin_get("/healthz").await.unwrap().status, 200, "{phase}");
    }
}

/// More streams than the service takes: the rest is refused, and nothing passes by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_lets_nothing_pass() {
    let builder = Harness::builder().config(|config| config["limits"] = json!({"streams_max": 4}));
    let harness = builder.start().await.unwrap();
    let address = harness.address();
    // Eight uploads that take their time hold all the streams there are.
    let mut uploads = JoinSet::new();
    for _ in 0..8 {
        let head = raw::head("/v1/chat/completions", &["transfer-encoding: chunked"]);
        let steps = [
            Step::text(&head),
            Step::text(&raw::chunk("{")),
            Step::Pause(Duration::from_secs(2)),
            Step::Reset,
        ];
        uploads.spawn(async move { raw::converse(address, &steps, Duration::from_secs(1)).await });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    for _ in 0..40 {
        let reply = harness.send(chat_call(1)).await.unwrap();
        assert!([429, 503].contains(&reply.status), "{}", reply.status);
    }
    assert_eq!(harness.reached().0, 0);
    while uploads.join_next().await.is_some() {}
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(harness.send(chat_call(1)).await.unwrap().status, 200, "the streams were not given back");
    assert_eq!(harness.reached(), (1, 0));
}

async fn open_streams(harness: &Harness, count: usize, tokens: u64, interval_ms: u32) -> Vec<Open> {
    let mut starting = JoinSet::new();
    for _ in 0..count {
        let address = harness.address();
        let call = chat_call(tokens).header("x-engine-interval-ms", &interval_ms.to_string());
        starting.spawn(async move {
            let mut open = client::open(address, call).await.unwrap();
            assert_eq!(open.reply.status, 200);
            open.until(2, LONG).await.unwrap();
            open
        });
    }
    starting.join_all().await
}

async fn finish_all(streams: Vec<Open>, tokens: u64) -> Vec<String> {
    let mut ids = Vec::new();
    for open in streams {
        let reply = open.finish(LONG).await;
        assert_eq!((&reply.ended, reply.has_terminal_event()), (&Ended::Complete, true));
        // The role, the tokens, and the end.
        assert_eq!(reply.events_so_far() as u64, tokens + 2, "events were lost");
        ids.push(reply.request_id());
    }
    ids
}

async fn assert_settled(harness: &mut Harness, ids: &[String], tokens: u64, limit: Duration) {
    let service = harness.service().unwrap();
    let all = service.records_when("every record", limit, |log| {
        let records = log.by_request_id();
        ids.iter()
            .all(|id| records.get(id.as_str()).is_some_and(|record| record.usage.output == Some(tokens)))
    });
    let records = all.await.unwrap();
    assert!(
        records.doubled().is_empty() && records.bad.is_empty(),
        "{:?} {:?}",
        records.doubled(),
        records.bad
    );
    assert_eq!(records.newest().len(), ids.len(), "records of exchanges that were not there");
}

/// kill -9 of the service under 200 streams that have begun to answer: none is cut, and after a restart every token is
/// recorded. New requests meanwhile get a clear 503 and reach no engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_under_200_streams_cuts_none_and_loses_no_token() {
    let mut harness = Harness::builder().start().await.unwrap();
    let streams = open_streams(&harness, 200, 100, 50).await;
    harness.service().unwrap().kill().unwrap();
    for _ in 0..10 {
        assert_eq!(harness.send(chat_call(1)).await.unwrap().status, 503);
    }
    assert_eq!(harness.reached(), (200, 0));
    let ids = finish_all(streams, 100).await;
    harness.service().unwrap().start().await.unwrap();
    assert_settled(&mut harness, &ids, 100, Duration::from_secs(20)).await;
}

/// The service is away for 30 s while streams end: every report arrives once it is back, each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_report_arrives_after_30_seconds_away() {
    let mut harness = Harness::builder().start().await.unwrap();
    let streams = open_streams(&harness, 60, 40, 50).await;
    harness.service().unwrap().kill().unwrap();
    let ids = finish_all(streams, 40).await;
    tokio::time::sleep(Duration::from_secs(28)).await;
    harness.service().unwrap().start().await.unwrap();
    assert_settled(&mut harness, &ids, 40, Duration::from_secs(20)).await;
    let dropped = harness.envoy.stats("tokenweir_queue_dropped").await.unwrap();
    assert!(dropped.values().all(|count| *count == 0), "{dropped:?}");
}

/// The service is frozen, not dead: connections stay open and nothing is answered. Reports arrive after it thaws.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_service_loses_and_doubles_nothing() {
    let mut harness = Harness::builder().start().await.unwrap();
    let streams = open_streams(&harness, 60, 40, 50).await;
    harness.service().unwrap().freeze().unwrap();
    let ids = finish_all(streams, 40).await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    harness.service().unwrap().thaw().unwrap();
    assert_settled(&mut harness, &ids, 40, Duration::from_secs(20)).await;
}

/// Listener and filter configuration replaced five times while streams end and the service is away: nothing lost, nothing
/// doubled, no worker's VM lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_the_configuration_loses_and_doubles_nothing() {
    let mut harness = Harness::builder().envoy(|options| options.drain_time_s = 3).start().await.unwrap();
    let alive = harness.envoy.vms_alive().await.unwrap();
    assert!(alive >= 6, "two filters on two workers and the main thread: {alive}");
    let mut streams = Vec::new();
    let mut ids = Vec::new();
    for round in 0..5_u64 {
        streams.push(open_streams(&harness, 30, 20, 40).await);
        if round == 2 {
            harness.service().unwrap().kill().unwrap();
        }
        let change = |options: &mut e2e::envoy::Options| {
            options.filter_settings.insert("tick_ms".to_owned(), json!(20 + round));
            options.buffer_bytes += 4096;
        };
        harness.envoy.replace_listener(change).await.unwrap();
        for done in streams.drain(..) {
            ids.extend(finish_all(done, 20).await);
        }
        if round == 2 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            harness.service().unwrap().start().await.unwrap();
        }
    }
    assert_settled(&mut harness, &ids, 20, Duration::from_secs(20)).await;
    // Past the drain of the last one.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(harness.envoy.vms_alive().await.unwrap(), alive, "a VM was lost, or old ones were kept");
    for _ in 0..8 {
        assert_eq!(harness.send(chat_call(1)).await.unwrap().status, 200);
    }
    assert_eq!(harness.reached().1, 0);
}

/// On the open route a missing service is no outage: the default pool serves, without a verdict, and the answer is whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_open_route_serves_without_the_service() {
    let mut harness = Harness::builder().start().await.unwrap();
    let served = harness.send(chat_call(3).open()).await.unwrap();
    assert_eq!((served.status, harness.reached()), (200, (1, 0)));
    harness.service().unwrap().kill().unwrap();
    for _ in 0..6 {
        let reply = harness.send(chat_call(3).open()).await.unwrap();
        assert_eq!((reply.status, reply.has_terminal_event()), (200, true));
    }
    assert_eq!(harness.reached(), (7, 6));
}
