//! The poller against a small server that misbehaves on demand.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test: what fails here must stop it"
)]

mod server;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ext_proc_pick::{Health, Observation};
use ext_proc_signals::{Kind, Outcome, Settings, Sink, Target, run};
use server::{Behaviour, Server};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const DURING: &str = include_str!("../../../../proto/vllm/tests/captures/metrics-during-load.txt");
const DP2: &str = include_str!("../../../../proto/vllm/tests/captures/metrics-dp2.txt");

/// Long enough for any of these things to happen on a busy machine; never waited for when they do.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps everything it is told.
#[derive(Default)]
struct Books {
    seen: Mutex<BTreeMap<SocketAddr, Vec<Observation>>>,
    outcomes: Mutex<BTreeMap<SocketAddr, Vec<Outcome>>>,
    in_flight: AtomicU32,
}

impl Sink for Books {
    fn observe(&self, pool: &str, address: SocketAddr, observation: Observation) {
        assert_eq!(pool, "a");
        self.seen.lock().unwrap().entry(address).or_default().push(observation);
    }

    fn in_flight(&self, _pool: &str, _address: SocketAddr) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn scraped(&self, _pool: &str, address: SocketAddr, outcome: Outcome, _took: Duration) {
        self.outcomes.lock().unwrap().entry(address).or_default().push(outcome);
    }
}

impl Books {
    fn seen(&self, address: SocketAddr) -> Vec<Observation> {
        self.seen.lock().unwrap().get(&address).cloned().unwrap_or_default()
    }

    fn outcomes(&self, address: SocketAddr) -> Vec<Outcome> {
        self.outcomes.lock().unwrap().get(&address).cloned().unwrap_or_default()
    }
}

/// Pollers at work; all of it ends with it.
struct Run {
    books: Arc<Books>,
    targets: watch::Sender<Arc<Vec<Target>>>,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<()>,
}

impl Run {
    fn start(settings: Settings, targets: &[(SocketAddr, Kind)]) -> Self {
        Self::start_with(Books::default(), settings, targets)
    }

    fn start_with(books: Books, settings: Settings, targets: &[(SocketAddr, Kind)]) -> Self {
        let books = Arc::new(books);
        let stop = CancellationToken::new();
        let (sender, receiver) = watch::channel(listed(targets));
        let sink: Arc<dyn Sink> = books.clone();
        let done = tokio::spawn(run(receiver, settings, sink, stop.clone()));
        Self { books, targets: sender, stop, done }
    }

    async fn until(&self, what: &str, is: impl Fn(&Books) -> bool) {
        let wait = async {
            while !is(&self.books) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let late = tokio::time::timeout(PATIENCE, wait).await;
        late.unwrap_or_else(|_| panic!("{what}; seen: {:?}", self.books.outcomes.lock().unwrap()));
    }

    async fn end(self) {
        self.stop.cancel();
        self.done.await.unwrap();
    }
}

fn listed(targets: &[(SocketAddr, Kind)]) -> Arc<Vec<Target>> {
    let target = |&(address, kind)| Target { pool: "a".into(), address, kind };
    Arc::new(targets.iter().map(target).collect())
}

fn quick() -> Settings {
    Settings {
        idle: Duration::from_millis(20),
        busy: Duration::from_millis(10),
        within: Duration::from_secs(5),
        models_every: Duration::from_millis(50),
        stuck_after: Duration::from_secs(300),
    }
}

fn last_health(books: &Books, address: SocketAddr) -> Option<Health> {
    books.seen(address).last().map(|observation| observation.health)
}

#[tokio::test]
async fn pages_and_models_arrive_over_one_connection() {
    let server = Server::start(Behaviour::default().page(DURING).models(&["m", "lora-a"])).await;
    let run = Run::start(quick(), &[(server.address, Kind::Vllm)]);
    run.until("ten looks", |books| books.outcomes(server.address).len() >= 10).await;
    let seen = run.books.seen(server.address);
    let stats = seen[0].stats.as_ref().unwrap();
    assert_eq!((seen[0].health, stats.running, stats.waiting), (Health::Ready, 8, 24));
    let models = seen.iter().find_map(|observation| observation.models.as_deref()).unwrap();
    assert_eq!(models.iter().collect::<Vec<_>>(), ["lora-a", "m"]);
    assert!(run.books.outcomes(server.address).iter().all(|outcome| *outcome == Outcome::Ok));
    assert_eq!(server.connections(), 1);
    let heads = server.heads();
    assert!(heads.iter().all(|head| !head.contains("accept-encoding")), "{heads:?}");

    // Loaded at run time, and unloaded again.
    server.set(Behaviour::default().page(DURING).models(&["m", "lora-b"]));
    let has = |books: &Books, name: &str| {
        books
            .seen(server.address)
            .iter()
            .any(|o| o.models.as_deref().is_some_and(|models| models.contains(name)))
    };
    run.until("the new adapter", |books| has(books, "lora-b")).await;
    run.end().await;
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_no_failed_scrape() {
    for behaviour in [
        // Properly, some time after the answer; in the moment the next request arrives; and after every answer.
        Behaviour { close_idle: Some(Duration::from_millis(5)), ..Behaviour::default() },
        Behaviour { close_on_request: 2, ..Behaviour::default() },
        Behaviour { reset_on_request: 2, ..Behaviour::default() },
        Behaviour { close_idle: Some(Duration::ZERO), ..Behaviour::default() },
    ] {
        let server = Server::start(behaviour.page(DURING).models(&["m"])).await;
        let run = Run::start(quick(), &[(server.address, Kind::Vllm)]);
        run.until("forty looks", |books| books.outcomes(server.address).len() >= 40).await;
        let outcomes = run.books.outcomes(server.address);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Ok), "{behaviour:?}: {outcomes:?}");
        assert!(server.connections() > 10, "{}", server.connections());
        run.end().await;
    }
}

#[tokio::test]
async fn every_poisoned_answer_has_its_outcome_and_no_numbers() {
    let huge = proto_vllm::metrics::limits::PAGE_BYTES_MAX + 1;
    for (behaviour, outcome, health) in [
        (Behaviour { status: 500, ..Behaviour::default() }, Outcome::Status, Health::Unknown),
        (Behaviour { status: 307, ..Behaviour::default() }, Outcome::Status, Health::Unknown),
        (Behaviour { status: 503, ..Behaviour::default() }, Outcome::Status, Health::Draining),
        (Behaviour { fill: huge, ..Behaviour::default() }, Outcome::TooLarge, Health::Unknown),
        (Behaviour { endless: true, ..Behaviour::default() }, Outcome::TooLarge, Health::Unknown),
        (Behaviour { half: true, ..Behaviour::default() }, Outcome::Broken, Health::Unknown),
        (Behaviour { close_on_request: 1, ..Behaviour::default() }, Outcome::Refused, Health::Unreachable),
    ] {
        poisoned(behaviour.page(DURING), outcome, health, quick()).await;
    }
    poisoned(
        Behaviour::default().page("<!doctype html><p>Sign in"),
        Outcome::NotMetrics,
        Health::Unknown,
        quick(),
    )
    .await;
    let slow = Behaviour { delay: Some(Duration::from_secs(3600)), ..Behaviour::default() };
    let hasty = Settings { within: Duration::from_millis(100), ..quick() };
    poisoned(slow.page(DURING), Outcome::Timeout, Health::Unreachable, hasty).await;
}

async fn poisoned(behaviour: Behaviour, outcome: Outcome, health: Health, settings: Settings) {
    let server = Server::start(behaviour).await;
    let run = Run::start(settings, &[(server.address, Kind::Vllm)]);
    let what = format!("{behaviour:?}");
    run.until(&what, |books| last_health(books, server.address) == Some(health)).await;
    assert!(run.books.outcomes(server.address).iter().all(|seen| *seen == outcome), "{what}");
    assert!(run.books.seen(server.address).iter().all(|seen| seen.stats.is_none()), "{what}");
    // Nobody followed a redirect, and nobody asked a failing server for its models.
    assert!(server.heads().iter().all(|head| head.starts_with("GET /metrics ")), "{what}");
    // Healed.
    server.set(Behaviour::default().page(DURING).models(&["m"]));
    run.until(&what, |books| last_health(books, server.address) == Some(Health::Ready)).await;
    run.end().await;
}

#[tokio::test]
async fn an_address_may_go_and_come_back() {
    let server = Server::start(Behaviour::default().page(DURING).models(&["m"])).await;
    let address = server.address;
    let run = Run::start(quick(), &[(address, Kind::Vllm)]);
    run.until("ready", |books| last_health(books, address) == Some(Health::Ready)).await;
    server.stop().await;
    run.until("gone", |books| last_health(books, address) == Some(Health::Unreachable)).await;
    assert!(run.books.outcomes(address).contains(&Outcome::Refused));
    let restarted = DURING.replace("_start_time_seconds 1.79609959059e+09", "_start_time_seconds 1.7961e+09");
    let server = Server::start_at(address, Behaviour::default().page(restarted.leak()).models(&["n"])).await;
    run.until("back", |books| last_health(books, address) == Some(Health::Ready)).await;
    run.until("restart told", |books| books.outcomes(address).contains(&Outcome::Restarted)).await;
    run.end().await;
    server.stop().await;
}

#[tokio::test]
async fn ranks_of_one_address_are_one_endpoint() {
    let server = Server::start(Behaviour::default().page(DP2).models(&["m"])).await;
    let run = Run::start(quick(), &[(server.address, Kind::Vllm)]);
    run.until("a look", |books| !books.seen(server.address).is_empty()).await;
    let stats = run.books.seen(server.address)[0].stats.clone().unwrap();
    assert_eq!((stats.running, stats.kv_capacity_tokens), (0, Some(16_384)));
    run.end().await;
}

#[tokio::test]
async fn a_server_with_a_list_only_is_asked_for_nothing_else() {
    let server = Server::start(Behaviour::default().models(&["m"])).await;
    let run = Run::start(quick(), &[(server.address, Kind::OpenAi)]);
    run.until("two looks", |books| books.outcomes(server.address).len() >= 2).await;
    let seen = run.books.seen(server.address);
    assert_eq!((seen[0].health, seen[0].stats.clone()), (Health::Ready, None));
    assert!(seen[0].models.as_deref().unwrap().contains("m"));
    assert!(server.heads().iter().all(|head| head.starts_with("GET /v1/models ")));
    server.set(Behaviour { status: 500, ..Behaviour::default() });
    run.until("unknown", |books| last_health(books, server.address) == Some(Health::Unknown)).await;
    run.end().await;
}

#[tokio::test]
async fn a_list_that_fails_is_told_and_spoils_nothing() {
    let server = Server::start(Behaviour::default().page(DURING)).await;
    let run = Run::start(quick(), &[(server.address, Kind::Vllm)]);
    run.until("no list", |books| books.outcomes(server.address).contains(&Outcome::NoModels)).await;
    run.until("a page after it", |books| books.outcomes(server.address).last() == Some(&Outcome::Ok)).await;
    assert!(run.books.seen(server.address).iter().all(|o| o.health == Health::Ready && o.models.is_none()));
    run.end().await;
}

#[tokio::test]
async fn targets_come_and_go_at_any_time() {
    let first = Server::start(Behaviour::default().page(DURING).models(&["m"])).await;
    let second = Server::start(Behaviour::default().page(DURING).models(&["m"])).await;
    let (one, two) = (first.address, second.address);
    let run = Run::start(quick(), &[(one, Kind::Vllm), (one, Kind::Vllm)]);
    run.until("the first", |books| books.outcomes(one).len() >= 3).await;
    assert_eq!(first.connections(), 1, "listed twice, asked once");
    assert!(run.books.seen(two).is_empty());
    run.targets.send(listed(&[(two, Kind::Vllm)])).unwrap();
    run.until("the second", |books| !books.outcomes(two).is_empty()).await;
    // The first was ended before the second began.
    let before = run.books.seen(one).len();
    run.until("more of the second", |books| books.outcomes(two).len() >= 10).await;
    assert_eq!(run.books.seen(one).len(), before);
    // Who lists targets may go; the end is the token's.
    let Run { books, targets, stop, done } = run;
    drop(targets);
    let seen = books.outcomes(two).len();
    let wait = async {
        while books.outcomes(two).len() == seen {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
    stop.cancel();
    done.await.unwrap();
    let at_the_end = books.outcomes(two).len();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(books.outcomes(two).len(), at_the_end);
}

#[tokio::test]
async fn requests_in_flight_quicken_the_looks() {
    let server = Server::start(Behaviour::default().page(DURING).models(&["m"])).await;
    let settings = Settings { idle: Duration::from_secs(3600), ..quick() };
    let run = Run::start(settings, &[(server.address, Kind::Vllm)]);
    run.until("the first look", |books| !books.outcomes(server.address).is_empty()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(run.books.outcomes(server.address).len(), 1);
    run.end().await;
    let books = Books { in_flight: AtomicU32::new(1), ..Books::default() };
    let run = Run::start_with(books, settings, &[(server.address, Kind::Vllm)]);
    run.until("many looks", |books| books.outcomes(server.address).len() >= 10).await;
    run.end().await;
}
