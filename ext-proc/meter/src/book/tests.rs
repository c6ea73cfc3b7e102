use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::record::End as EndLabel;

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
    assert!(book.open(id(1), token(1), address(1), 0));
    book
}

#[test]
fn a_report_closes_the_record_once_and_releases_the_endpoint_that_served() {
    let mut book = opened();
    let moved = book.serve(id(1), 200, Some(address(2)), 1).expect("open");
    assert_eq!(
        moved,
        [Effect::Release("a".into(), address(1)), Effect::Reserve("a".into(), address(2))],
        "in-flight follows the endpoint that served"
    );
    let Outcome::Accepted(effects) = book.report(id(1), &token(1), &end(7), 2) else {
        panic!("not accepted")
    };
    assert_eq!(effects[0], Effect::Release("a".into(), address(2)));
    let record = records(&effects)[0];
    assert_eq!((record.revision, record.usage.output, record.end), (1, Some(7), EndLabel::Complete));
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
    assert_eq!((record.revision, record.usage_source, record.end), (0, Source::None, EndLabel::Unreported));
    assert!(effects.contains(&Effect::Release("a".into(), address(1))));
    assert_eq!(book.report(id(1), &token(1), &progress(1, 3), 1_001), Outcome::Late(Vec::new()));
    let Outcome::Late(effects) = book.report(id(1), &token(1), &end(7), 1_002) else { panic!("not late") };
    let record = records(&effects)[0];
    assert_eq!((record.revision, record.usage.output, record.flags.late), (1, Some(7), true));
    assert_eq!(book.report(id(1), &token(1), &end(7), 1_003), Outcome::Doubled);
}

#[test]
fn progress_renews_the_lease_and_is_what_remains_when_the_end_never_comes() {
    let mut book = opened();
    assert!(matches!(book.report(id(1), &token(1), &first(), 950), Outcome::Accepted(_)));
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
    assert_eq!(effects, [Effect::Reserve("a".into(), address(1))]);
    let Outcome::Accepted(effects) = book.report(id(1), &token(1), &end(9), 1) else { panic!("not closed") };
    assert_eq!(records(&effects)[0].usage.output, Some(9));
    assert!(effects.contains(&Effect::Release("a".into(), address(1))));
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
    assert!(book.open(id(1), token(1), address(1), 0));
    assert!(!book.open(id(2), token(2), address(1), 0));
    assert_eq!(book.report(id(2), &token(2), &first(), 0), Outcome::Accepted(Vec::new()));
    assert!(matches!(book.report(id(2), &token(2), &end(1), 0), Outcome::Accepted(_)));
}

#[test]
fn an_answer_from_no_endpoint_frees_the_place_at_once() {
    let mut book = opened();
    assert_eq!(book.serve(id(1), 503, None, 1), Ok(vec![Effect::Release("a".into(), address(1))]));
    assert_eq!(book.serve(id(9), 200, None, 1), Err(Unknown));
}

proptest! {
    /// Whatever comes in whatever order, doubled or not: each exchange that was opened is settled exactly once by a
    /// report, or once by its lease and at most once corrected, and every place that was reserved is released.
    #[test]
    fn every_exchange_is_settled_once_and_every_place_is_released(
        steps in prop::collection::vec((0u8..7, 0u8..4, any::<u8>()), 0..120),
    ) {
        let mut book = Book::new(LEASES, 64);
        let mut places = 0i64;
        let mut written: HashMap<(String, u32), u32> = HashMap::new();
        let mut opened = BTreeSet::new();
        let mut now = 0u64;
        for (step, n, x) in steps {
            now += u64::from(x) * 4;
            let effects = match step {
                0 if opened.insert(n) => {
                    assert!(book.open(id(n), token(n), address(1), now));
                    vec![Effect::Reserve("a".into(), address(1))]
                }
                1 => book.serve(id(n), 200, Some(address(u16::from(x % 3))), now).unwrap_or_default(),
                2 => { book.abandon(id(n), now); Vec::new() }
                3 => book.expire(now, 3).0,
                _ if !opened.contains(&n) => Vec::new(),
                4..=6 => {
                    let event = match step { 4 => first(), 5 => progress(u32::from(x % 4), 1), _ => end(1) };
                    match book.report(id(n), &token(n), &event, now) {
                        Outcome::Accepted(effects) | Outcome::Late(effects) => effects,
                        Outcome::Doubled | Outcome::Empty => Vec::new(),
                    }
                }
                _ => Vec::new(),
            };
            for effect in effects {
                match effect {
                    Effect::Reserve(..) => places += 1,
                    Effect::Release(..) => places -= 1,
                    Effect::Record(record) => *written.entry((record.exchange, record.revision)).or_default() += 1,
                }
            }
        }
        let mut more = true;
        while more {
            let (effects, left) = book.expire(u64::MAX, 2);
            more = left;
            for effect in effects {
                match effect {
                    Effect::Reserve(..) => places += 1,
                    Effect::Release(..) => places -= 1,
                    Effect::Record(record) => *written.entry((record.exchange, record.revision)).or_default() += 1,
                }
            }
        }
        prop_assert_eq!(places, 0, "every place is released");
        prop_assert!(written.values().all(|&times| times == 1), "no line twice: {:?}", written);
        let exchanges: BTreeSet<_> = written.keys().map(|(exchange, _)| exchange.clone()).collect();
        prop_assert_eq!(exchanges.len(), opened.len(), "every exchange has a record");
    }
}
