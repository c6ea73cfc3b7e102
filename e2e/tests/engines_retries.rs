//! When Envoy asks another engine, and when it must not: retries on a pool's route.

use e2e::bodies::{Wish, chat, chat_call};
use e2e::client::{self, Call, Connection, Ended, Protocol, Reply};
use e2e::envoy::BodyMode;
use e2e::records::Record;
use e2e::rough::{Act, Rough};
use e2e::{Harness, HarnessBuilder};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

const SETTLED: Duration = Duration::from_secs(10);

/// Three rough engines in pool `a`.
async fn rough(builder: HarnessBuilder, acts: [Act; 3]) -> (Harness, [Rough; 3]) {
    // Looks at signals would be asked of these engines too, and counted.
    let builder = builder.config(|config| config["signals"] = json!({"enabled": false}));
    let mut harness = builder.engines(&[("a", 3), ("b", 1)]).start().await.unwrap();
    let engines = [0, 1, 2].map(|n| {
        harness.engine_mut(n).refuse();
        harness.engine(n).address
    });
    // The listeners close a moment after they are told.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = |n: usize| Rough::start(engines[n], acts[n]).unwrap();
    (harness, [start(0), start(1), start(2)])
}

fn addresses(harness: &Harness) -> [SocketAddr; 3] {
    [0, 1, 2].map(|n| harness.engine(n).address)
}

fn asked(engines: &[Rough; 3]) -> [usize; 3] {
    [0, 1, 2].map(|n| engines[n].requests())
}

/// The one record of a reply, and Envoy's own line about it.
async fn told(harness: &mut Harness, reply: &Reply) -> (Record, Value) {
    let id = reply.request_id();
    let service = harness.service().unwrap();
    let has = |log: &e2e::records::Records| log.by_request_id().contains_key(id.as_str());
    let records = service.records_when("the record", SETTLED, has).await.unwrap();
    let mine: Vec<_> = records.all.iter().filter(|record| record.request_id == id).collect();
    assert_eq!(mine.len(), 1, "{mine:?}");
    let record = mine[0].clone();
    let log = harness.envoy.access_log().await.unwrap();
    let line = log.into_iter().find(|line| line["request_id"] == id.as_str()).unwrap();
    (record, line)
}

/// An engine that answers 500 (it drains) or 503 (its queue is full), or whose connection ends before the response
/// begins, has generated nothing that anyone saw: the next endpoint *of the list* is asked, and its answer is the one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_goes_to_the_next_endpoint_of_the_list_and_the_record_names_who_served() {
    for act in [Act::Status(500), Act::Status(503), Act::Close, Act::Reset] {
        let (mut harness, engines) = rough(Harness::builder(), [act, Act::Serve, Act::Serve]).await;
        let list = addresses(&harness).map(|address| address.to_string());
        let mut met = 0;
        for n in 0..9 {
            let before = asked(&engines);
            let stream = n % 2 == 0;
            let mut body = chat(4, Wish::Nothing);
            body["stream"] = json!(stream);
            let reply = harness.send(Call::json("/v1/chat/completions", &body)).await.unwrap();
            assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete), "{act:?}: {}", reply.text());
            let (record, line) = told(&mut harness, &reply).await;
            let first = record.endpoints[0] == list[0];
            met += usize::from(first);
            let served = &record.endpoints[usize::from(first)];
            assert_eq!(record.endpoint.as_ref(), Some(served), "{act:?} {record:?}");
            assert_eq!(line["upstream"], served.as_str(), "{act:?} {line}");
            assert_eq!(line["attempts"], 1 + u64::from(first), "{act:?} {line}");
            let after = asked(&engines);
            let sum: usize = after.iter().sum::<usize>() - before.iter().sum::<usize>();
            assert_eq!(sum, 1 + usize::from(first), "{act:?}: asked {before:?} -> {after:?}");
        }
        assert!(met >= 1, "{act:?}: the refusing engine was never chosen, so nothing was proved");
    }
}

/// One retry in all: a request that makes every engine fail reaches two of them, not the whole pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_fails_everywhere_reaches_two_engines() {
    for act in [Act::Status(500), Act::Status(503), Act::Reset] {
        let (mut harness, engines) = rough(Harness::builder(), [act; 3]).await;
        let reply = harness.send(chat_call(4)).await.unwrap();
        let expected = if let Act::Status(status) = act { status } else { 503 };
        assert_eq!(reply.status, expected, "{}", reply.text());
        let (record, line) = told(&mut harness, &reply).await;
        assert_eq!(line["attempts"], 2);
        assert_eq!(line["upstream"], record.endpoints[1].as_str(), "{line} {record:?}");
        let asked = asked(&engines);
        assert_eq!(asked.iter().sum::<usize>(), 2, "{asked:?}");
        assert_eq!(asked.iter().max(), Some(&1), "the same engine was asked twice: {asked:?}");
        assert_eq!(record.usage.output.unwrap_or(0), 0, "{record:?}");
    }
}

/// What would fail elsewhere too, and what has begun, isn't asked for twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clients_own_errors_and_streams_that_have_begun_are_never_retried() {
    for act in [Act::Status(400), Act::Status(404), Act::Status(429), Act::Begin] {
        let (mut harness, engines) = rough(Harness::builder(), [act; 3]).await;
        let reply = harness.send(chat_call(4)).await.unwrap();
        if let Act::Status(status) = act {
            assert_eq!((reply.status, &reply.ended), (status, &Ended::Complete));
        } else {
            assert!(reply.status == 200 && matches!(reply.ended, Ended::Cut(_)), "{:?}", reply.ended);
        }
        let (_, line) = told(&mut harness, &reply).await;
        assert_eq!(
            (line["attempts"].as_u64(), asked(&engines).iter().sum::<usize>()),
            (Some(1), 1),
            "{line}"
        );
    }
}

/// The server closes an idle connection at the very moment when the next request arrives on it: Envoy has written the
/// request, so `reset-before-request` wouldn't cover it. No client sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_closed_as_the_request_arrives_is_no_clients_error() {
    const RACES: usize = 300;
    let acts = [Act::CloseOnNext, Act::Serve, Act::Serve];
    // Whoever closes like this goes last for a while; here it must go on being asked.
    let builder = Harness::builder().config(|config| config["pools"][0]["pick"] = json!({"penalty_ms": 0}));
    let (mut harness, engines) = rough(builder, acts).await;
    let mut connection = Connection::open(harness.address(), Protocol::H1).await.unwrap();
    let mut sent = 0;
    while engines[0].closed() < RACES {
        let reply = connection.send(&chat_call(4)).await.unwrap();
        assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete), "{}", reply.text());
        sent += 1;
        assert!(sent < RACES * 20, "only {} races in {sent} requests", engines[0].closed());
    }
    let service = harness.service().unwrap();
    let all = |log: &e2e::records::Records| log.newest().len() >= sent;
    let records = service.records_when("all records", SETTLED, all).await.unwrap();
    assert!(records.doubled().is_empty() && records.newest().len() == sent);
    println!("{} closed as a request arrived, {sent} requests, all answered", engines[0].closed());
}

/// A server that closes connections after 5 s idle, as uvicorn does, and clients that come back just then: Envoy has
/// closed its side before (4 s), and nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_closes_idle_connections_after_5_s_is_no_clients_error() {
    const CLIENTS: u64 = 300;
    let idle = Act::CloseIdle(Duration::from_secs(5));
    let (mut harness, engines) = rough(Harness::builder(), [idle; 3]).await;
    let address = harness.address();
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..CLIENTS {
        clients.spawn(async move {
            let mut connection = Connection::open(address, Protocol::H1).await.unwrap();
            for _ in 0..3 {
                let reply = connection.send(&chat_call(4)).await.unwrap();
                assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete), "{}", reply.text());
                // Around both timers: Envoy's 4 s and the server's 5 s.
                let wait = if n % 3 == 0 { 3950 + n % 100 } else { 4900 + n % 200 };
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let closed: usize = engines.iter().map(Rough::closed).sum();
    let retries = harness.envoy.stat("cluster.pool-a.upstream_rq_retry").await.unwrap();
    println!("{CLIENTS} clients, 3 requests each: closed by the servers {closed}, retried {retries}");
    assert_eq!(asked(&engines).iter().sum::<usize>() as u64, CLIENTS * 3 + retries);
    let service = harness.service().unwrap();
    let all = |log: &e2e::records::Records| log.newest().len() as u64 >= CLIENTS * 3;
    assert!(service.records_when("all records", SETTLED, all).await.unwrap().doubled().is_empty());
}

/// Retries need the whole request. 20 MB are still there for the second attempt, in both body modes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_20_mb_is_retried_too() {
    for mode in [BodyMode::Buffered, BodyMode::FullDuplexStreamed] {
        for act in [Act::Status(500), Act::Reset] {
            let builder = Harness::builder().envoy(|options| options.body_mode = mode);
            let (mut harness, engines) = rough(builder, [act, Act::Serve, Act::Serve]).await;
            for _ in 0..3 {
                let reply = client::send_h2(harness.address(), long(20 << 20)).await.unwrap();
                assert_eq!(
                    (reply.status, &reply.ended),
                    (200, &Ended::Complete),
                    "{mode:?} {act:?} {}",
                    reply.text()
                );
                told(&mut harness, &reply).await;
            }
            let (asked, bytes) = (asked(&engines), engines.iter().map(Rough::body_bytes));
            let bytes: usize = bytes.sum();
            println!("{mode:?} {act:?}: asked {asked:?}, {bytes} bytes");
            assert!(asked[0] >= 1, "the refusing engine was never chosen");
            assert!(bytes > (20 << 20) * asked.iter().sum::<usize>());
        }
    }
}

fn long(bytes: usize) -> Call {
    let mut body = chat(4, Wish::Nothing);
    body["messages"][1]["content"] = json!("a".repeat(bytes));
    Call::json("/v1/chat/completions", &body)
}

/// A request above Envoy's limit is streamed on and can't be sent again: an engine's refusal of it reaches the client.
/// The limit is the listener's buffer for HTTP/1 and the stream window for HTTP/2: both belong above the service's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn above_envoys_buffer_limit_a_refusal_is_final() {
    let builder = Harness::builder().envoy(|options| {
        options.body_mode = BodyMode::FullDuplexStreamed;
        options.buffer_bytes = 1 << 20;
    });
    let (mut harness, engines) = rough(builder, [Act::Status(500), Act::Serve, Act::Serve]).await;
    let refusing = addresses(&harness)[0].to_string();
    let mut met = 0;
    for _ in 0..6 {
        let reply = client::send(harness.address(), long(8 << 20)).await.unwrap();
        let (record, line) = told(&mut harness, &reply).await;
        let refused = record.endpoints[0] == refusing;
        met += usize::from(refused);
        assert_eq!(reply.status, if refused { 500 } else { 200 }, "{line}");
        assert_eq!(line["attempts"], 1, "{line}");
    }
    let abandoned = harness.envoy.stat("cluster.pool-a.retry_or_shadow_abandoned").await.unwrap();
    println!("refused {met} of 6, asked {:?}, given up for the size: {abandoned}", asked(&engines));
    assert!(met >= 1);
}
