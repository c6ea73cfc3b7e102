//! Delivery: at least once, whatever happens to the calls, and never more than one root context's events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proto_tokenweir::v1::{End, FirstToken, Progress, usage_event::Event};

use super::*;
use crate::fake::{FakeHost, Sent};
use crate::root::Root;

const UNAVAILABLE: u32 = 14;

fn host() -> FakeHost {
    let host = FakeHost::default();
    host.now_us.set(1_000_000_000);
    host
}

fn config(clusters: &[&str]) -> Config {
    Config { report_clusters: clusters.iter().map(|c| (*c).to_owned()).collect(), ..Config::default() }
}

fn reporter(config: &Config) -> Reporter {
    let mut reporter = Reporter::new("r".to_owned());
    reporter.configure(config);
    reporter
}

fn end(token: &str) -> UsageEvent {
    UsageEvent { token: token.to_owned(), at_unix_ms: 1, event: Some(Event::End(End::default())) }
}

fn last(host: &FakeHost) -> Sent {
    host.calls.borrow().last().unwrap().clone()
}

#[test]
fn a_batch_is_kept_until_its_own_call_is_acknowledged() {
    let host = host();
    let mut reporter = reporter(&config(&["c"]));
    reporter.push(&host, &end("a"));
    reporter.tick(&host);
    let first = last(&host);
    assert_eq!((first.batch.version, first.batch.reporter.as_str(), first.batch.sequence), (1, "r", 1));
    reporter.push(&host, &end("b"));
    reporter.tick(&host);
    assert_eq!(host.calls.borrow().len(), 1, "one batch at a time");
    reporter.on_answer(&host, first.call, UNAVAILABLE);
    reporter.tick(&host);
    assert_eq!(host.calls.borrow().len(), 1, "not before the wait is over");
    host.pass_us(BACKOFF_MIN_US);
    reporter.tick(&host);
    let second = last(&host);
    assert_eq!(second.batch, first.batch, "the same batch, with its number");
    reporter.on_answer(&host, first.call, GRPC_OK);
    assert_eq!(reporter.pending(), 2, "the answer of an old call settles nothing");
    reporter.on_answer(&host, second.call, GRPC_OK);
    reporter.tick(&host);
    assert_eq!((last(&host).batch.sequence, last(&host).batch.events[0].token.as_str()), (2, "b"));
    reporter.on_answer(&host, last(&host).call, GRPC_OK);
    assert!(reporter.is_idle());
    assert_eq!(host.gauge.get(), 0);
    assert_eq!((host.counted(Counter::ReportsSent), host.counted(Counter::ReportsRetried)), (2, 1));
}

#[test]
fn waits_double_up_to_a_bound_and_start_afresh_after_a_success() {
    let host = host();
    let mut reporter = reporter(&config(&["c"]));
    reporter.push(&host, &end("a"));
    let mut waits = Vec::new();
    for _ in 0..10 {
        reporter.tick(&host);
        reporter.on_answer(&host, last(&host).call, UNAVAILABLE);
        let calls = host.calls.borrow().len();
        let since = host.now_us.get();
        while host.calls.borrow().len() == calls {
            host.pass_us(10_000);
            reporter.tick(&host);
        }
        waits.push((host.now_us.get() - since) / 1000);
    }
    assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000, 2000]);
    reporter.on_answer(&host, last(&host).call, GRPC_OK);
    reporter.push(&host, &end("b"));
    reporter.tick(&host);
    assert_eq!(host.calls.borrow().len(), 12);
    reporter.on_answer(&host, last(&host).call, UNAVAILABLE);
    host.pass_us(BACKOFF_MIN_US);
    reporter.tick(&host);
    assert_eq!(host.calls.borrow().len(), 13);
}

#[test]
fn clusters_take_turns_and_missing_ones_are_told_once() {
    let host = host();
    let mut reporter = reporter(&config(&["a", "b", "c"]));
    host.missing_clusters.replace(vec!["a".to_owned()]);
    reporter.push(&host, &end("x"));
    reporter.tick(&host);
    assert_eq!((last(&host).cluster.as_str(), host.counted(Counter::ReportClusterMiss)), ("b", 1));
    reporter.on_answer(&host, last(&host).call, UNAVAILABLE);
    host.pass_us(BACKOFF_MIN_US);
    reporter.tick(&host);
    assert_eq!(last(&host).cluster, "c");
    reporter.on_answer(&host, last(&host).call, GRPC_OK);
    reporter.push(&host, &end("y"));
    reporter.tick(&host);
    assert_eq!(last(&host).cluster, "c", "what worked is kept");
    reporter.on_answer(&host, last(&host).call, GRPC_OK);

    host.missing_clusters.replace(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]);
    reporter.push(&host, &end("z"));
    for _ in 0..5 {
        host.pass_us(BACKOFF_MAX_US);
        reporter.tick(&host);
    }
    assert_eq!(host.lines.borrow().iter().filter(|line| line.0 == Level::Error).count(), 1);
    assert_eq!(reporter.pending(), 1, "and the event is kept");
}

#[test]
fn a_call_that_is_never_answered_is_made_again() {
    let host = host();
    let mut reporter = reporter(&config(&["c"]));
    reporter.push(&host, &end("a"));
    reporter.tick(&host);
    host.pass_us(CALL_LOST_US - 1);
    reporter.tick(&host);
    assert_eq!(host.calls.borrow().len(), 1);
    host.pass_us(1);
    reporter.tick(&host);
    host.pass_us(BACKOFF_MIN_US);
    reporter.tick(&host);
    assert_eq!(host.calls.borrow().len(), 2);
    // A clock that is set back a year must not silence the reporter for a year.
    reporter.on_answer(&host, last(&host).call, UNAVAILABLE);
    host.now_us.set(1);
    reporter.tick(&host);
    host.pass_us(BACKOFF_MAX_US);
    reporter.tick(&host);
    assert_eq!(host.calls.borrow().len(), 3);
    // Nor may it make an unanswered call wait for so long.
    host.now_us.set(CALL_LOST_US * 100);
    reporter.on_answer(&host, last(&host).call, UNAVAILABLE);
    host.pass_us(BACKOFF_MAX_US);
    reporter.tick(&host);
    host.now_us.set(1);
    reporter.tick(&host);
    for _ in 0..2 {
        host.pass_us(CALL_LOST_US);
        reporter.tick(&host);
    }
    assert_eq!(host.calls.borrow().len(), 5);
}

#[test]
fn a_full_batch_does_not_wait_for_the_tick() {
    let host = host();
    let mut reporter = reporter(&Config { batch_events_max: 2, ..config(&["c"]) });
    for token in ["a", "b", "c", "d", "e"] {
        reporter.push(&host, &end(token));
    }
    reporter.tick(&host);
    reporter.on_answer(&host, last(&host).call, GRPC_OK);
    assert_eq!(last(&host).batch.events.len(), 2);
    reporter.on_answer(&host, last(&host).call, GRPC_OK);
    assert_eq!(host.calls.borrow().len(), 2, "the rest goes with the tick");
}

#[test]
fn drops_are_counted_in_the_report() {
    let host = host();
    let mut reporter = reporter(&Config { queue_events_max: 2, ..config(&["c"]) });
    for token in ["a", "b", "c"] {
        reporter.push(&host, &end(token));
    }
    reporter.tick(&host);
    assert_eq!((last(&host).batch.dropped, host.counted(Counter::QueueDropped)), (1, 1));
    assert_eq!(host.gauge.get(), 2);
}

#[test]
fn without_a_cluster_or_after_the_end_an_event_is_lost_and_counted() {
    let host = host();
    Reporter::new("r".to_owned()).push(&host, &end("a"));
    let mut reporter = reporter(&config(&["c"]));
    reporter.close();
    reporter.push(&host, &end("a"));
    assert_eq!((host.counted(Counter::QueueDropped), reporter.is_idle()), (2, true));
}

fn root(host: &FakeHost) -> Root {
    let mut root = Root::new("r".to_owned());
    let config = br#"{"report_clusters": ["c"], "batch_events_max": 1}"#;
    assert_eq!(root.configure(host, config), Some(Duration::from_millis(20)));
    root
}

/// A stream with a verdict that ends without a response.
fn end_stream(host: &FakeHost, root: &Root, token: &str) {
    host.set_verdict(token, "1;chat_completions;stream;strip=all");
    let mut stream = root.open_stream();
    stream.on_request_headers(host);
    stream.on_log(host);
}

#[test]
fn two_roots_share_nothing() {
    let host = host();
    let (mut old, mut new) = (root(&host), root(&host));
    end_stream(&host, &old, "a");
    new.on_tick(&host);
    assert!(host.calls.borrow().is_empty(), "the new root context does not see the old one's events");
    old.on_tick(&host);
    let call = last(&host).call;
    new.on_answer(&host, call, GRPC_OK);
    assert!(!old.on_done(&host), "nor does it take its answers");
    old.on_answer(&host, call, GRPC_OK);
    assert_eq!(host.done.get(), 1);
}

#[test]
fn a_root_ends_at_once_when_all_is_reported() {
    let host = host();
    let mut root = root(&host);
    assert!(root.on_done(&host));
    root.on_tick(&host);
    assert_eq!(host.done.get(), 0, "`done` is only for an end that was held back");
}

#[test]
fn a_root_holds_back_its_end_until_all_is_acknowledged() {
    let host = host();
    let mut root = root(&host);
    for token in ["a", "b", "c"] {
        end_stream(&host, &root, token);
    }
    root.on_tick(&host);
    assert_eq!(host.calls.borrow().len(), 1);
    assert!(!root.on_done(&host));
    let calls: Vec<u32> = host.calls.borrow().iter().map(|sent| sent.call).collect();
    assert_eq!(calls.len(), 3, "all is sent at once: Envoy may not wait");
    root.on_answer(&host, calls[1], GRPC_OK);
    root.on_answer(&host, calls[0], UNAVAILABLE);
    root.on_answer(&host, calls[2], UNAVAILABLE);
    end_stream(&host, &root, "late");
    for _ in 0..3 {
        assert_eq!(host.done.get(), 0);
        host.pass_us(BACKOFF_MAX_US);
        root.on_tick(&host);
    }
    let again: Vec<Sent> = host.calls.borrow().iter().skip(3).cloned().collect();
    let tokens: Vec<_> = again.iter().map(|sent| sent.batch.events[0].token.as_str()).collect();
    assert_eq!(tokens, ["a", "c", "late"]);
    for sent in &again {
        assert_eq!(host.done.get(), 0);
        root.on_answer(&host, sent.call, GRPC_OK);
    }
    root.on_tick(&host);
    root.on_answer(&host, again[0].call, GRPC_OK);
    assert_eq!(host.done.get(), 1, "and it ends once");
    assert_eq!(host.gauge.get(), 0);
}

#[derive(Debug, Clone)]
enum Move {
    Push(u8),
    Tick,
    /// Answers one of the newest calls: how far back, and the status.
    Answer(usize, u32),
    Pass(u64),
    Miss(bool),
    Configure(usize, usize),
    Drain,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (0..3_u8).prop_map(Move::Push),
        4 => Just(Move::Tick),
        4 => (0..4_usize, prop_oneof![3 => Just(GRPC_OK), 2 => Just(UNAVAILABLE)]).prop_map(|(b, s)| Move::Answer(b, s)),
        3 => (0..3_000_000_u64).prop_map(Move::Pass),
        1 => any::<bool>().prop_map(Move::Miss),
        1 => (1..12_usize, 1..5_usize).prop_map(|(queue, batch)| Move::Configure(queue, batch)),
        1 => Just(Move::Drain),
    ];
    proptest::collection::vec(one, 0..200)
}

proptest! {
    #[test]
    fn every_end_arrives_or_its_loss_is_counted(moves in moves()) {
        let host = host();
        let mut queue_max = 8;
        let mut reporter = reporter(&Config { queue_events_max: queue_max, batch_events_max: 3, ..config(&["a", "b"]) });
        let mut pushed = BTreeMap::new();
        let mut acknowledged: BTreeSet<String> = BTreeSet::new();
        let mut answered = BTreeSet::new();
        let mut take = |reporter: &mut Reporter, host: &FakeHost, sent: &Sent, status: u32| {
            // Envoy answers a call once.
            if answered.insert(sent.call) {
                if status == GRPC_OK {
                    acknowledged.extend(sent.batch.events.iter().map(|event| event.token.clone()));
                }
                reporter.on_answer(host, sent.call, status);
            }
        };
        for (n, step) in moves.into_iter().enumerate() {
            match step {
                Move::Push(kind) => {
                    let event = match kind {
                        0 => Event::Progress(Progress::default()),
                        1 => Event::FirstToken(FirstToken::default()),
                        _ => Event::End(End::default()),
                    };
                    let token = format!("{n}");
                    reporter.push(&host, &UsageEvent { token: token.clone(), at_unix_ms: 1, event: Some(event) });
                    pushed.insert(token, kind);
                }
                Move::Tick => reporter.tick(&host),
                Move::Answer(back, status) => {
                    let sent = host.calls.borrow().iter().rev().nth(back).cloned();
                    if let Some(sent) = sent {
                        take(&mut reporter, &host, &sent, status);
                    }
                }
                Move::Pass(us) => host.pass_us(us),
                Move::Miss(all) => {
                    host.missing_clusters.replace(if all { vec!["a".to_owned(), "b".to_owned()] } else { Vec::new() });
                }
                Move::Configure(queue, batch) => {
                    queue_max = queue_max.max(queue);
                    let config = Config { queue_events_max: queue, batch_events_max: batch, ..config(&["a", "b"]) };
                    reporter.configure(&config);
                }
                Move::Drain => reporter.drain(&host),
            }
            prop_assert!(reporter.pending() <= queue_max + reporter.window * 5, "bounded");
            prop_assert_eq!(host.gauge.get(), reporter.pending() as i64);
        }
        host.missing_clusters.replace(Vec::new());
        for _ in 0..1000 {
            if reporter.is_idle() {
                break;
            }
            host.pass_us(CALL_LOST_US);
            reporter.tick(&host);
            let open: Vec<Sent> = host.calls.borrow().clone();
            for sent in open {
                take(&mut reporter, &host, &sent, GRPC_OK);
            }
        }
        prop_assert!(reporter.is_idle(), "everything is delivered in the end");
        let lost: Vec<_> = pushed.iter().filter(|(token, _)| !acknowledged.contains(*token)).collect();
        prop_assert_eq!(lost.len() as u64, host.counted(Counter::QueueDropped));
        let sequences: BTreeMap<u64, BTreeSet<Vec<u8>>> =
            host.calls.borrow().iter().fold(BTreeMap::new(), |mut all, sent| {
                all.entry(sent.batch.sequence).or_default().insert(sent.batch.encode_to_vec());
                all
            });
        prop_assert!(sequences.values().all(|batches| batches.len() == 1), "a number names one batch");
        prop_assert_eq!(sequences.keys().copied().collect::<Vec<_>>(), (1..=sequences.len() as u64).collect::<Vec<_>>());
    }
}
