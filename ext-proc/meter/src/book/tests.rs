use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;

const LEASES: Leases = Leases { first_ms: 1_000, progress_ms: 100, abandoned_ms: 10 };

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn id(n: u8) -> ExchangeId {
    ExchangeId([n; 16])
}

fn token(n: u8) -> ExchangeToken {
    ExchangeToken {
        version: 1,
        exchange: vec![n; 16],
        pool: "a".into(),
        endpoints: vec![address(1).to_string(), address(2).to_string()],
        issued_unix_ms: 5,
        expires_unix_ms: u64::MAX,
        ..ExchangeToken::default()
    }
}

fn first() -> v1::UsageEvent {
    event(usage_event::Event::FirstToken(v1::FirstToken { ttft_us: 77 }))
}

fn progress(number: u32, output: u64) -> v1::UsageEvent {
    let usage = Some(v1::Usage { output: Some(output), ..v1::Usage::default() });
    event(usage_event::Event::Progress(v1::Progress { number, usage }))
}

fn end(output: u64) -> v1::UsageEvent {
    event(usage_event::Event::End(v1::End {
        usage: Some(v1::Usage { input: Some(10), output: Some(output), ..v1::Usage::default() }),
        source: v1::UsageSource::Final.into(),
        reason: v1::EndReason::Complete.into(),
        upstream_address: address(2).to_string(),
        status: 200,
        ..v1::End::default()
    }))
}

fn event(event: usage_event::Event) -> v1::UsageEvent {
    v1::UsageEvent { token: String::new(), at_unix_ms: 50, event: Some(event) }
}

fn records(effects: &[Effect]) -> Vec<&Record> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Record(record) => Some(record.as_ref()),
            _ => None,
        })
        .collect()
}

fn opened() -> Book {
    let mut book = Book::new(LEASES, 8);
    assert!(book.open(id(1), token(1), PLACE, 0));
    book
}

const PLACE: Place = Place { on: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1), predicted: Some(6) };

fn answered(served: Option<SocketAddr>, status: u32) -> Answered {
    Answered { served, status, retry_after_ms: None }
}

fn release(n: u8, used: UsageRecord, predicted: Option<u64>) -> Effect {
    Effect::Release { pool: "a".into(), exchange: id(n), used, predicted }
}

/// The release among `effects`, whatever was used.
fn released(effects: &[Effect]) -> Option<UsageRecord> {
    effects.iter().find_map(|effect| match effect {
        Effect::Release { used, .. } => Some(*used),
        _ => None,
    })
}

#[test]
fn a_report_closes_the_record_once_and_gives_the_place_back_with_what_was_used() {
    let mut book = opened();
    let answer = Answered { served: Some(address(2)), status: 200, retry_after_ms: Some(3_000) };
    let moved = book.serve(id(1), answer, 1).expect("open");
    assert_eq!(
        moved,
        Effect::Answered { pool: "a".into(), exchange: id(1), picked: Some(address(1)), answer }
    );
    let Outcome::Accepted(effects) = book.report(id(1), &token(1), &end(7), 2) else {
        panic!("not accepted")
    };
    let used = UsageRecord { input: Some(10), output: Some(7), ..UsageRecord::default() };
    assert_eq!(
        effects[0],
        release(1, used, None),
        "another endpoint served than the one that was thought of"
    );
    let record = records(&effects)[0];
    assert_eq!((record.revision, record.usage.output, record.end), (1, Some(7), End::Complete));
    assert_eq!(record.endpoint.as_deref(), Some("127.0.0.1:2"));
    assert_eq!(record.usage.cached, None, "unknown is not zero");
    assert_eq!(book.report(id(1), &token(1), &end(7), 3), Outcome::Doubled);
    assert_eq!(book.report(id(1), &token(1), &first(), 3), Outcome::Doubled);
    assert_eq!(book.open_count(), 0);
}

#[test]
fn a_lease_closes_without_usage_and_a_late_report_corrects_it_once() {
    let mut book = opened();
    assert_eq!(book.expire(999, 10), (Vec::new(), false));
    let (effects, more) = book.expire(1_000, 10);
    assert!(!more);
    let record = records(&effects)[0];
    assert_eq!((record.revision, record.usage_source, record.end), (0, Source::None, End::Unreported));
    assert!(effects.contains(&release(1, UsageRecord::default(), Some(6))));
    assert_eq!(book.report(id(1), &token(1), &progress(1, 3), 1_001), Outcome::Late(Vec::new()));
    let Outcome::Late(effects) = book.report(id(1), &token(1), &end(7), 1_002) else { panic!("not late") };
    assert_eq!(released(&effects), None, "the lease gave the place back");
    let record = records(&effects)[0];
    assert_eq!((record.revision, record.usage.output, record.flags.late), (1, Some(7), true));
    assert_eq!(book.report(id(1), &token(1), &end(7), 1_003), Outcome::Doubled);
}

#[test]
fn progress_renews_the_lease_and_is_what_remains_when_the_end_never_comes() {
    let mut book = opened();
    let prefilled = Effect::FirstToken { pool: "a".into(), exchange: id(1) };
    assert_eq!(book.report(id(1), &token(1), &first(), 950), Outcome::Accepted(vec![prefilled]));
    assert_eq!(book.report(id(1), &token(1), &first(), 951), Outcome::Doubled);
    assert!(matches!(book.report(id(1), &token(1), &progress(1, 5), 1_040), Outcome::Accepted(_)));
    assert_eq!(book.report(id(1), &token(1), &progress(1, 5), 1_041), Outcome::Doubled);
    assert!(book.expire(1_139, 10).0.is_empty());
    let (effects, _) = book.expire(1_140, 10);
    let record = records(&effects)[0];
    assert_eq!((record.usage.output, record.usage_source), (Some(5), Source::Cumulative));
    assert_eq!(record.ttft_us, Some(77));
}

#[test]
fn after_a_restart_the_token_alone_is_enough() {
    let mut book = Book::new(LEASES, 8);
    let Outcome::Accepted(effects) = book.report(id(1), &token(1), &first(), 0) else {
        panic!("not adopted")
    };
    let (pool, exchange) = ("a".to_owned(), id(1));
    let adopt = Effect::Adopt { pool: pool.clone(), exchange, on: address(1) };
    assert_eq!(effects, [adopt, Effect::FirstToken { pool, exchange }]);
    let Outcome::Accepted(effects) = book.report(id(1), &token(1), &end(9), 1) else { panic!("not closed") };
    assert_eq!(records(&effects)[0].usage.output, Some(9));
    assert_eq!(released(&effects).map(|used| used.output), Some(Some(9)));
}

#[test]
fn a_token_that_names_no_endpoint_takes_no_place() {
    let mut book = Book::new(LEASES, 8);
    let nowhere = ExchangeToken { endpoints: vec!["engine-0".into()], ..token(1) };
    assert_eq!(book.report(id(1), &nowhere, &first(), 0), Outcome::Accepted(Vec::new()));
    let Outcome::Accepted(effects) = book.report(id(1), &nowhere, &end(9), 1) else { panic!("not closed") };
    assert_eq!(released(&effects), None);
}

#[test]
fn what_was_cut_short_teaches_no_output() {
    let mut book = opened();
    let mut event = end(3);
    if let Some(usage_event::Event::End(end)) = &mut event.event {
        end.reason = v1::EndReason::ClientAbort.into();
    }
    let Outcome::Accepted(effects) = book.report(id(1), &token(1), &event, 1) else { panic!("not accepted") };
    assert_eq!(released(&effects).map(|used| (used.input, used.output)), Some((Some(10), None)));
    assert_eq!(records(&effects)[0].usage.output, Some(3), "but it is on the record");
}

#[test]
fn after_a_restart_what_the_log_holds_is_not_written_again() {
    let mut book = Book::new(LEASES, 8);
    book.recall(id(1), 1);
    book.recall(id(1), 0);
    assert_eq!(book.report(id(1), &token(1), &end(9), 1), Outcome::Doubled);
    book.recall(id(2), 0);
    assert!(matches!(book.report(id(2), &token(2), &end(9), 1), Outcome::Late(_)));
}

#[test]
fn an_abandoned_stream_has_a_short_lease() {
    let mut book = opened();
    book.abandon(id(1), 5);
    let (effects, _) = book.expire(15, 10);
    assert!(records(&effects)[0].flags.abandoned);
}

#[test]
fn what_a_report_says_is_cut_before_it_is_written() {
    let mut book = opened();
    let mut event = end(1);
    if let Some(usage_event::Event::End(end)) = &mut event.event {
        end.upstream_address = "é".repeat(1_500_000);
    }
    let Outcome::Accepted(effects) = book.report(id(1), &token(1), &event, 1) else { panic!("not accepted") };
    assert_eq!(records(&effects)[0].endpoint.as_ref().map(|text| text.chars().count()), Some(256));
}

#[test]
fn a_full_book_opens_no_more_and_still_takes_every_end() {
    let mut book = Book::new(LEASES, 1);
    assert!(book.open(id(1), token(1), PLACE, 0));
    assert!(!book.open(id(2), token(2), PLACE, 0));
    assert_eq!(book.report(id(2), &token(2), &first(), 0), Outcome::Accepted(Vec::new()));
    assert!(matches!(book.report(id(2), &token(2), &end(1), 0), Outcome::Accepted(_)));
}

#[test]
fn a_held_stream_gives_the_place_back_at_its_end() {
    let mut book = opened();
    book.serve(id(1), answered(Some(address(2)), 200), 1).expect("open");
    let effects = book.close_by_stream(id(1), 2);
    assert_eq!(released(&effects), Some(UsageRecord::default()));
    assert_eq!(records(&effects)[0].endpoint.as_deref(), Some("127.0.0.1:2"));
    assert_eq!(book.close_by_stream(id(1), 3), Vec::new());
    assert_eq!(book.serve(id(1), answered(None, 200), 4), Err(Unknown));
}

/// What became of one exchange's place, by the effects.
#[derive(Default)]
struct Course {
    taken: u32,
    first_tokens: u32,
    released: u32,
}

impl Course {
    fn is_open(&self) -> bool {
        self.taken == 1 && self.released == 0
    }
}

/// The pools and the log, as the effects shape them.
#[derive(Default)]
struct World {
    places: BTreeMap<ExchangeId, Course>,
    written: BTreeMap<(String, u32), u32>,
}

impl World {
    fn take(&mut self, exchange: ExchangeId) {
        self.places.entry(exchange).or_default().taken += 1;
    }

    /// The place must be taken and not given back yet.
    fn open(&mut self, exchange: ExchangeId) -> &mut Course {
        let place = self.places.entry(exchange).or_default();
        assert!(place.is_open(), "{exchange}: taken {}, released {}", place.taken, place.released);
        place
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Adopt { exchange, .. } => self.take(exchange),
                Effect::Answered { exchange, .. } => drop(self.open(exchange)),
                Effect::FirstToken { exchange, .. } => self.open(exchange).first_tokens += 1,
                Effect::Release { exchange, .. } => self.open(exchange).released += 1,
                Effect::Record(record) => {
                    *self.written.entry((record.exchange, record.revision)).or_default() += 1;
                }
            }
        }
    }
}

proptest! {
    /// Whatever comes in whatever order, doubled or not, for exchanges of ours and of a process before us: each is
    /// settled exactly once by a report, or once by its lease and at most once corrected, and every place that was taken
    /// is given back once, with nothing said of it before or after.
    #[test]
    fn every_exchange_is_settled_once_and_every_place_is_released_once(
        steps in prop::collection::vec((0u8..8, 0u8..6, any::<u8>()), 0..160),
    ) {
        let mut book = Book::new(LEASES, 4);
        let mut world = World::default();
        let mut seen = BTreeSet::new();
        let mut now = 0u64;
        for (step, n, x) in steps {
            now += u64::from(x) * 4;
            let effects = match step {
                // A pick reserves before the book opens; a book that is full gives the place back by the same hand.
                0 if !seen.contains(&n) => {
                    if book.open(id(n), token(n), PLACE, now) {
                        seen.insert(n);
                        world.take(id(n));
                    }
                    Vec::new()
                }
                1 => {
                    let served = (x % 3 > 0).then(|| address(u16::from(x % 3)));
                    let status = if x > 200 { 503 } else { 200 };
                    book.serve(id(n), answered(served, status), now).into_iter().collect()
                }
                2 => { book.abandon(id(n), now); Vec::new() }
                3 => book.expire(now, 3).0,
                4 if x > 200 => book.close_by_stream(id(n), now),
                5..=7 => {
                    let event = match step { 5 => first(), 6 => progress(u32::from(x % 4), 1), _ => end(1) };
                    match book.report(id(n), &token(n), &event, now) {
                        Outcome::Accepted(effects) => {
                            if step == 7 || book.open.contains_key(&id(n)) {
                                seen.insert(n);
                            }
                            effects
                        }
                        Outcome::Late(effects) => effects,
                        Outcome::Doubled | Outcome::Empty => Vec::new(),
                    }
                }
                _ => Vec::new(),
            };
            world.perform(effects);
        }
        let mut more = true;
        while more {
            let (effects, left) = book.expire(u64::MAX, 2);
            more = left;
            world.perform(effects);
        }
        for (exchange, place) in &world.places {
            prop_assert_eq!((place.taken, place.released), (1, 1), "{}", exchange);
            prop_assert!(place.first_tokens <= 1, "{}", exchange);
        }
        prop_assert!(world.written.values().all(|&times| times == 1), "no line twice: {:?}", world.written);
        let exchanges: BTreeSet<_> = world.written.keys().map(|(exchange, _)| exchange.clone()).collect();
        prop_assert_eq!(exchanges.len(), seen.len(), "every exchange has a record");
    }
}
