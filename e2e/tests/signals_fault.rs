//! One poisoned signal at a time: requests flow as before, load is spread sanely, and the reason is visible.

use bench_engine::MetricsFault;
use e2e::Harness;
use e2e::bodies::{Wish, chat};
use e2e::client::load::{Until, run};
use e2e::client::{self, Call, Ended, Reply};
use e2e::process::wait_for;
use e2e::sims::{Sims, tiny};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

const LIMIT: Duration = Duration::from_secs(15);

/// What a relay does with a GET of one path; all else passes.
#[derive(Clone, Copy, Debug)]
enum Poison {
    /// Closes the connection.
    Close,
    /// Answers with this status and body.
    Answer(u16, &'static str),
}

/// Stands in front of an engine and poisons what is asked at `path`. Its address.
async fn relay(engine: SocketAddr, path: &'static str, poison: Arc<Mutex<Option<Poison>>>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let poison = Arc::clone(&poison);
            // A connection that breaks is the peer's business.
            tokio::spawn(async move { drop(pass(stream, engine, path, &poison).await) });
        }
    });
    address
}

async fn pass(
    mut stream: TcpStream,
    engine: SocketAddr,
    path: &str,
    poison: &Mutex<Option<Poison>>,
) -> anyhow::Result<()> {
    let mut first = [0; 4];
    loop {
        if stream.peek(&mut first).await? == 0 {
            return Ok(());
        }
        if !first.starts_with(b"GET") {
            let mut upstream = TcpStream::connect(engine).await?;
            copy_bidirectional(&mut stream, &mut upstream).await?;
            return Ok(());
        }
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let asked = head.split(' ').nth(1).unwrap_or("/").to_owned();
        let set = *poison.lock().unwrap();
        let (status, body) = match set.filter(|_| asked == path) {
            Some(Poison::Close) => return Ok(()),
            Some(Poison::Answer(status, body)) => (status, body.as_bytes().to_vec()),
            None => {
                let reply = client::send(engine, Call::get(&asked)).await?;
                (reply.status, reply.body)
            }
        };
        let kind = if asked == "/metrics" { "text/plain" } else { "application/json" };
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status} Relayed\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
    }
}

fn call(n: u64) -> Call {
    let mut body = chat(40, Wish::Nothing);
    body["ignore_eos"] = json!(true);
    body["messages"][1]["content"] = json!(format!("{n} {}", "How far is it? ".repeat(60)));
    Call::json("/v1/chat/completions", &body)
}

/// Load for a while: all of it is served, and each of the two engines has its part.
async fn flows(sims: &mut Sims, what: &str) {
    let parts = load(sims, what).await;
    let all: usize = parts.iter().sum();
    assert!(all > 20, "{what}: too few to tell");
    assert!(parts.iter().all(|part| part * 4 >= all), "{what}: one engine has hardly anything: {parts:?}");
}

/// Load for a while: all of it is served. Requests of each engine.
async fn load(sims: &mut Sims, what: &str) -> Vec<usize> {
    let before = sims.asked();
    let bad: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = Arc::clone(&bad);
    let seen = move |n: u64, reply: &Reply| {
        if reply.status != 200 || reply.ended != Ended::Complete || !reply.has_terminal_event() {
            keep.lock().unwrap().push(format!("{n}: {} {:?} {}", reply.status, reply.ended, reply.text()));
        }
    };
    let report = run(sims.address(), 8, Until::Time(Duration::from_secs(3)), call, seen).await.unwrap();
    assert_eq!((report.broken, bad.lock().unwrap().as_slice()), (0, [].as_slice()), "{what}");
    let parts: Vec<usize> = sims.asked().iter().zip(&before).map(|(now, before)| now - before).collect();
    println!("{what}: {}, parts {parts:?}", report.line(""));
    parts
}

/// The outcome of a look, in the counters.
async fn counted(sims: &mut Sims, outcome: &str) -> f64 {
    let metrics = sims.service().unwrap().metrics().await.unwrap();
    metrics.sum("tokenweir_signals_scrapes_total", &[("pool", "a"), ("outcome", outcome)])
}

/// The reason is in `/debug/endpoints`, in the counters and in the log. Under a little load: an engine at rest whose
/// numbers stand still is no news.
async fn is_visible(sims: &mut Sims, address: SocketAddr, outcome: &str) {
    let name = address.to_string();
    let wanted = format!("\"outcome\":\"{outcome}\"");
    let (mut shown, mut line) = (false, None);
    let gateway = sims.address();
    let found = wait_for("the outcome to be told", LIMIT, async || {
        for reply in [client::send(gateway, call(1)), client::send(gateway, call(2))].map(tokio::spawn) {
            assert_eq!(reply.await.unwrap().unwrap().status, 200);
        }
        let endpoint = sims.endpoint(address).await.ok()?;
        let look = endpoint.pointer("/signals/last_look/outcome").and_then(Value::as_str);
        // What is stuck gets no request, and without any its standing still is no news.
        shown |= look == Some(outcome) || outcome == "frozen";
        let log = sims.service().ok()?.log();
        line = log.lines().find(|line| line.contains(&name) && line.contains(&wanted)).map(str::to_owned);
        (shown && line.is_some()).then_some(())
    });
    found.await.unwrap_or_else(|error| panic!("{outcome} shown: {shown}, logged: {line:?}: {error:#}"));
    assert!(counted(sims, outcome).await >= 1.0, "{outcome} is not counted");
    println!("  log: {}", line.unwrap_or_default());
}

/// Metrics that stand still, can't be true, fail, are late, are something else or are far too long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poisoned_metrics_change_nothing_for_requests_and_are_visible() {
    let cases = [
        (MetricsFault::Frozen, "frozen"),
        (MetricsFault::Absurd, "absurd"),
        (MetricsFault::Status500, "status"),
        (MetricsFault::Slow, "timeout"),
        (MetricsFault::Html, "not_metrics"),
        (MetricsFault::Huge, "too_large"),
    ];
    let mut sims = Sims::start(vec![tiny(), tiny()], &json!({"pick": {"stale_ms": 500}})).await.unwrap();
    let address = sims.engines[0].address();
    flows(&mut sims, "nothing").await;
    for (fault, outcome) in cases {
        sims.engines[0].set(|faults| faults.metrics = fault);
        flows(&mut sims, outcome).await;
        assert!(counted(&mut sims, outcome).await >= 1.0, "{outcome} is not counted");
        is_visible(&mut sims, address, outcome).await;
        if fault == MetricsFault::Frozen {
            // By now it counts as stuck, and may get little; what it gets is served.
            load(&mut sims, "frozen for long").await;
        }
        sims.engines[0].set(|faults| faults.metrics = MetricsFault::None);
        let looks = async |sims: &mut Sims| {
            let endpoint = sims.endpoint(address).await.ok()?;
            let look = endpoint.pointer("/signals/last_look/outcome").and_then(Value::as_str)?.to_owned();
            (look == "ok" || look == "restarted").then_some(())
        };
        wait_for("good signals again", LIMIT, async || looks(&mut sims).await).await.unwrap();
    }
}

/// Metrics whose connection is closed without an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_that_are_refused_change_nothing_for_requests_and_are_visible() {
    let poison = Arc::new(Mutex::new(None));
    let (mut sims, address) = relayed("/metrics", &poison).await;
    flows(&mut sims, "nothing, relayed").await;
    *poison.lock().unwrap() = Some(Poison::Close);
    is_visible(&mut sims, address, "refused").await;
    flows(&mut sims, "refused").await;
}

/// Lists of models that fail, are empty or are nothing of the kind: what was known stays, and nothing is filtered away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poisoned_model_lists_change_nothing_for_requests_and_are_visible() {
    let cases = [
        Poison::Answer(500, "{\"error\":\"no\"}"),
        Poison::Answer(200, "{\"object\":\"list\",\"data\":[]}"),
        Poison::Answer(200, "<html>models</html>"),
        Poison::Close,
    ];
    for from_the_start in [false, true] {
        for case in cases {
            let poison = Arc::new(Mutex::new(from_the_start.then_some(case)));
            let (mut sims, address) = relayed("/v1/models", &poison).await;
            if !from_the_start {
                let listed = wait_for("a list of models", LIMIT, async || {
                    let endpoint = sims.endpoint(address).await.ok()?;
                    endpoint.pointer("/signals/models/names/0").map(|_| ())
                });
                listed.await.unwrap();
                *poison.lock().unwrap() = Some(case);
            }
            let seen = wait_for("no_models to be counted", LIMIT, async || {
                (counted(&mut sims, "no_models").await >= 1.0).then_some(())
            });
            seen.await.unwrap_or_else(|error| panic!("{case:?}: {error:#}"));
            flows(&mut sims, &format!("{case:?}, from the start: {from_the_start}")).await;
            let log = sims.service().unwrap().log();
            let told =
                log.lines().any(|line| line.contains("no_models") && line.contains(&address.to_string()));
            assert!(told, "{case:?} is not in the log:\n{log}");
        }
    }
}

/// Two engines, the first behind a relay that can poison one path; the address that the service knows it by.
async fn relayed(path: &'static str, poison: &Arc<Mutex<Option<Poison>>>) -> (Sims, SocketAddr) {
    let engine = bench_engine::Engine::start(tiny()).unwrap();
    let front = relay(engine.address(), path, Arc::clone(poison)).await;
    let mut sims = Sims::start_behind(vec![tiny()], &Value::Null, Harness::builder(), |mut addresses| {
        addresses.insert(0, front);
        addresses
    })
    .await
    .unwrap();
    sims.engines.insert(0, engine);
    (sims, front)
}
