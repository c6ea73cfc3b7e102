//! Engines that restart, drain, fail fast, sleep and close connections, under load: what clients see, what is recorded,
//! where requests go.

use bench_engine::{End, EngineConfig};
use e2e::bodies::{Wish, chat, chat_call};
use e2e::client::load::{Until, run};
use e2e::client::{Call, Connection, Ended, Protocol, Reply};
use e2e::process::wait_for;
use e2e::records::Records;
use e2e::sims::{Sims, tiny};
use e2e::{Harness, client};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SETTLED: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(20);

/// Whether the n-th call asks for a stream.
fn streams(n: u64) -> bool {
    !n.is_multiple_of(3)
}

/// Streams and whole answers by turns, of some hundred milliseconds; prompts of a few conversations.
fn mixed(n: u64) -> Call {
    let mut body = chat(20 + n % 60, Wish::Nothing);
    body["stream"] = json!(streams(n));
    body["ignore_eos"] = json!(true);
    body["messages"][1]["content"] = json!(format!("{} {}", "How far is it? ".repeat(100), n % 7));
    Call::json("/v1/chat/completions", &body)
}

fn is_whole(reply: &Reply, streamed: bool) -> bool {
    reply.status == 200
        && reply.ended == Ended::Complete
        && (!streamed || reply.has_terminal_event())
        && !reply.text().contains("\"error\"")
}

async fn all_recorded(sims: &mut Sims, count: usize) -> Records {
    let service = sims.service().unwrap();
    let all = |log: &Records| log.newest().len() >= count;
    let records = service.records_when("a record of every request", SETTLED, all).await.unwrap();
    assert!(
        records.doubled().is_empty() && records.bad.is_empty(),
        "{:?} {:?}",
        records.doubled(),
        records.bad
    );
    assert_eq!(records.newest().len(), count);
    records
}

/// Waits until an engine has nothing to do.
async fn idle(sims: &Sims, n: usize) {
    let done = async || (sims.engines[n].unfinished() == 0).then_some(());
    wait_for("a draining engine to finish", LIMIT, done).await.unwrap();
}

/// Load until `stop`; every reply with its number.
fn load(
    sims: &Sims,
    time: Duration,
) -> (tokio::task::JoinHandle<anyhow::Result<client::load::Report>>, Replies) {
    let replies: Replies = Arc::default();
    let keep = Arc::clone(&replies);
    let address = sims.address();
    let seen = move |n: u64, reply: &Reply| keep.lock().unwrap().push((n, reply.clone()));
    (tokio::spawn(run(address, 16, Until::Time(time), mixed, seen)), replies)
}

type Replies = Arc<Mutex<Vec<(u64, Reply)>>>;

/// A rolling restart as Kubernetes does it, SIGTERM with drain: nobody notices, whoever asked whom when.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_drain_and_restart_one_after_another_fail_no_request() {
    let mut sims = Sims::start(vec![tiny(), tiny()], &Value::Null).await.unwrap();
    let (load, replies) = load(&sims, Duration::from_secs(10));
    for _ in 0..2 {
        for n in 0..2 {
            tokio::time::sleep(Duration::from_millis(800)).await;
            sims.engines[n].set(|faults| faults.draining = true);
            tokio::time::sleep(Duration::from_millis(300)).await;
            idle(&sims, n).await;
            sims.engines[n].stop();
            tokio::time::sleep(Duration::from_millis(300)).await;
            sims.engines[n].set(|faults| faults.draining = false);
            sims.engines[n].restart().await.unwrap();
        }
    }
    let report = load.await.unwrap().unwrap();
    println!("{}", report.line("drained"));
    let replies = std::mem::take(&mut *replies.lock().unwrap());
    for (n, reply) in &replies {
        assert!(is_whole(reply, streams(*n)), "{n}: {} {:?} {}", reply.status, reply.ended, reply.text());
    }
    assert_eq!((report.statuses.get(&0), report.broken), (None, 0));
    let records = all_recorded(&mut sims, replies.len()).await;
    let records = records.by_request_id();
    for (n, reply) in &replies {
        let id = reply.request_id();
        // Generated once, whoever refused it before; and the record says what was generated.
        assert_eq!(sims.ended(&id, &[End::Stop, End::Length]), 1, "{n}");
        assert_eq!(records[id.as_str()].usage.output, Some(20 + n % 60), "{:?}", records[id.as_str()]);
    }
    let refused: Vec<_> = sims
        .engines
        .iter()
        .flat_map(|engine| {
            let books = engine.books();
            books.entries().filter(|entry| entry.end == End::Refused).cloned().collect::<Vec<_>>()
        })
        .collect();
    println!(
        "{} requests, {} refused by a draining engine and served by the other",
        replies.len(),
        refused.len()
    );
    assert!(!refused.is_empty(), "no request met a draining engine, so nothing was proved");
    assert!(refused.iter().all(|entry| entry.status == 500 && entry.generated_tokens == 0), "{refused:?}");
}

/// Killed without a word, one after another: only streams that the killed engine had begun break; what had not begun is
/// served by the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_engines_take_only_the_streams_they_had_begun() {
    for gently in [false, true] {
        let mut sims = Sims::start(vec![tiny(), tiny()], &Value::Null).await.unwrap();
        let (load, replies) = load(&sims, Duration::from_secs(8));
        let mut in_flight = 0;
        for round in 0..4 {
            tokio::time::sleep(Duration::from_millis(1000)).await;
            let engine = &sims.engines[round % 2];
            in_flight += engine.unfinished();
            if gently {
                engine.die()
            } else {
                engine.stop()
            }
            tokio::time::sleep(Duration::from_millis(600)).await;
            engine.restart().await.unwrap();
        }
        let report = load.await.unwrap().unwrap();
        println!("{}", report.line(if gently { "died" } else { "killed" }));
        let replies = std::mem::take(&mut *replies.lock().unwrap());
        let mut broken = 0;
        for (n, reply) in &replies {
            if is_whole(reply, streams(*n)) {
                continue;
            }
            broken += 1;
            assert!(streams(*n), "{n} is no stream: {} {:?} {}", reply.status, reply.ended, reply.text());
            assert_eq!(reply.status, 200, "{n}: {}", reply.text());
            assert_eq!(sims.ended(&reply.request_id(), &[End::Died]), 1, "{n} did not die with an engine");
        }
        println!(
            "{} requests, {in_flight} in flight on killed engines, {broken} streams broken",
            replies.len()
        );
        assert_eq!(report.statuses.get(&0), None, "requests without any response");
        assert!(broken <= in_flight && in_flight > 0, "{broken} broken, {in_flight} in flight");
        all_recorded(&mut sims, replies.len()).await;
    }
}

/// An engine that has lost its cache with its restart isn't thought to have it still: requests are spread anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_forgets_what_the_engine_had_cached() {
    let mut sims = Sims::start(vec![tiny(), tiny()], &json!({"pick": {"exploration": 0.0}})).await.unwrap();
    for _ in 0..8 {
        assert_eq!(sims.send(mixed(1)).await.unwrap().status, 200);
    }
    let asked = sims.asked();
    let warm = usize::from(asked[1] > asked[0]);
    assert!(asked[warm] >= 7, "the same prompt goes where it is cached: {asked:?}");
    let address = sims.engines[warm].address();
    let chunks = async |sims: &mut Sims| sims.endpoint(address).await.unwrap()["prefix_chunks"].as_u64();
    assert!(chunks(&mut sims).await.is_some_and(|chunks| chunks > 0));
    sims.engines[warm].restart().await.unwrap();
    let forgotten = wait_for("the cache to be forgotten", LIMIT, async || {
        (chunks(&mut sims).await == Some(0)).then_some(())
    });
    forgotten.await.unwrap();
}

/// An engine that answers every request with 500 in a millisecond has the fewest requests in flight of all, and must not
/// get more of them for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_failer_attracts_nothing() {
    for strategy in ["least_work", "least_request"] {
        let mut sims = Sims::start(vec![tiny(), tiny()], &json!({"strategy": strategy})).await.unwrap();
        sims.engines[0].set(|faults| faults.fail_with = Some(500));
        let (load, replies) = load(&sims, Duration::from_secs(4));
        let report = load.await.unwrap().unwrap();
        let replies = std::mem::take(&mut *replies.lock().unwrap());
        let asked = sims.asked();
        println!("{strategy}: {} requests, asked {asked:?}; {}", replies.len(), report.line(""));
        assert!(replies.iter().all(|(n, reply)| is_whole(reply, streams(*n))), "{:?}", report.statuses);
        assert!(asked[0] >= 1, "the failing engine was never asked, so nothing was proved");
        assert!(asked[0] * 10 <= replies.len(), "{strategy}: {asked:?} of {}", replies.len());
        let metrics = sims.service().unwrap().metrics().await.unwrap();
        assert!(metrics.sum("tokenweir_endpoint_failures_total", &[("pool", "a")]) >= 1.0);
        let address = sims.engines[0].address().to_string();
        let labels = [("endpoint", address.as_str())];
        assert_eq!(metrics.sum("tokenweir_endpoint_penalised", &labels), 1.0, "{}", metrics.text);
        all_recorded(&mut sims, replies.len()).await;
    }
}

/// Whoever says `Retry-After` is left alone for so long, and asked again afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_honoured() {
    let pool = json!({"pick": {"penalty_ms": 100, "exploration": 0.0}});
    let sims = Sims::start(vec![tiny(), tiny()], &pool).await.unwrap();
    sims.engines[0].set(|faults| (faults.fail_with, faults.retry_after_s) = (Some(429), Some(3)));
    let (mut refused, mut served) = (0, 0);
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(2500) || refused == 0 {
        assert!(begun.elapsed() < LIMIT, "the refusing engine was never asked");
        // Every prompt is new: nothing is cached anywhere.
        let mut body = chat(4, Wish::Nothing);
        body["messages"][1]["content"] = json!(format!("{served} {}", "x".repeat(200)));
        match sims.send(Call::json("/v1/chat/completions", &body)).await.unwrap().status {
            200 => served += 1,
            429 => refused += 1,
            status => panic!("status {status}"),
        }
    }
    println!("{served} served, {refused} refused in 2.5 s; asked {:?}", sims.asked());
    assert_eq!(refused, 1, "asked again before its Retry-After was over");
    sims.engines[0].set(|faults| (faults.fail_with, faults.retry_after_s) = (None, None));
    let again = wait_for("it to be asked again", LIMIT, async || {
        sims.send(chat_call(4)).await.ok().filter(|reply| reply.status == 200)?;
        (sims.asked()[0] > 1).then_some(())
    });
    again.await.unwrap();
}

/// Engines that sleep, are paused or make no progress say 200 to health checks and let requests hang. Once that is seen,
/// they get none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_lets_requests_hang_gets_no_more_of_them() {
    for state in ["sleeping", "paused", "stuck"] {
        let pool = json!({"pick": {"exploration": 0.0}});
        let mut sims = Sims::start(vec![tiny(), tiny()], &pool).await.unwrap();
        let address = sims.engines[0].address();
        sims.wait_endpoint(address, "/health", "ready").await.unwrap();
        sims.engines[0].set(|faults| match state {
            "sleeping" => faults.sleeping = true,
            "paused" => faults.paused = true,
            _ => faults.stalled = true,
        });
        let gateway = sims.address();
        // Sleep shows by itself. Of the others a request in flight that gets nowhere is what shows.
        let mut hanging = tokio::task::JoinSet::new();
        if state != "sleeping" {
            for _ in 0..8 {
                hanging.spawn(async move { client::send(gateway, chat_call(4).within(LIMIT)).await });
            }
        }
        // A pause shows as "paused" or, where requests had begun, as "stuck".
        let seen = wait_for(state, LIMIT, async || {
            let health = sims.endpoint(address).await.ok()?["health"].as_str()?.to_owned();
            (health == state || state == "paused" && health == "stuck").then_some(health)
        });
        let seen = seen.await.unwrap();
        let before = sims.asked()[0];
        for n in 0..60 {
            let reply = sims.send(mixed(n).within(Duration::from_secs(5))).await.unwrap();
            assert!(is_whole(&reply, streams(n)), "{state} {n}: {}", reply.text());
        }
        let asked = sims.asked();
        println!("{state}: {before} requests hung before it was seen as {seen}, then {asked:?}");
        // Requests in front of a sleeping or paused engine's door are in its books, too.
        assert_eq!(asked[0], before, "{state}: it got more");
        let metrics = sims.service().unwrap().metrics().await.unwrap();
        let name = address.to_string();
        let labels = [("endpoint", name.as_str()), ("health", seen.as_str())];
        assert_eq!(metrics.sum("tokenweir_endpoint_health", &labels), 1.0, "{}", metrics.text);
        // It goes on, and so do those that hung.
        sims.engines[0].set(|faults| *faults = bench_engine::Faults::default());
        while let Some(reply) = hanging.join_next().await {
            let reply = reply.unwrap().unwrap();
            assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete));
        }
        sims.wait_endpoint(address, "/health", "ready").await.unwrap();
    }
}

/// The engine's server closes idle connections, and clients come back just then; Envoy doesn't close first here. Many
/// hundred times, no client notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_races_with_closing_connections_are_no_clients_error() {
    const IDLE_MS: u64 = 300;
    const ROUNDS: u64 = 6;
    const CLIENTS: u64 = 100;
    // The other keeps its connections: one retry is enough for one closed connection, not for two in a row.
    let config = |ms| EngineConfig { keep_alive: Duration::from_millis(ms), ..tiny() };
    let patient = Harness::builder().envoy(|options| options.upstream_idle = Duration::from_secs(60));
    let pool = json!({"strategy": "round_robin"});
    let start =
        Sims::start_behind(vec![config(IDLE_MS), config(60_000)], &pool, patient, |addresses| addresses);
    let mut sims = start.await.unwrap();
    let address = sims.address();
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..CLIENTS {
        clients.spawn(async move {
            let mut connection = Connection::open(address, Protocol::H1).await.unwrap();
            for _ in 0..ROUNDS {
                let reply = connection.send(&chat_call(2)).await.unwrap();
                assert!(is_whole(&reply, true), "{} {}", reply.status, reply.text());
                tokio::time::sleep(Duration::from_millis(IDLE_MS - 8 + n % 16)).await;
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let stats =
        sims.envoy.stats("cluster.pool-a.upstream_(cx_destroy_remote|rq_retry|cx_total)$").await.unwrap();
    println!("{} requests, {stats:?}", CLIENTS * ROUNDS);
    let closed = stats["cluster.pool-a.upstream_cx_destroy_remote"];
    assert!(closed >= CLIENTS, "only {closed} connections were closed by the engines");
    let records = all_recorded(&mut sims, (CLIENTS * ROUNDS) as usize).await;
    let ids: BTreeSet<&str> = records.newest().values().map(|record| record.request_id.as_str()).collect();
    assert!(ids.iter().all(|id| sims.ended(id, &[End::Stop, End::Length]) == 1));
}
