//! Usage reports: settled exactly once, over restarts too.

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use proto_tokenweir::REPORT_VERSION;
use proto_tokenweir::token::KeyRing;
use proto_tokenweir::v1::{
    End, EndReason, ExchangeToken, ReportAck, ReportBatch, Usage, UsageEvent, UsageSource, usage_event,
};

use crate::play::{Served, Stream, decision};

pub(crate) async fn report(served: &Served, events: Vec<UsageEvent>) -> Result<ReportAck, tonic::Status> {
    let mut client = tonic::client::Grpc::new(served.channel().await);
    client.ready().await.expect("ready");
    let batch =
        ReportBatch { version: REPORT_VERSION, reporter: "test".into(), sequence: 1, events, dropped: 0 };
    let path = http::uri::PathAndQuery::from_static("/tokenweir.v1.UsageReports/Report");
    let codec = tonic_prost::ProstCodec::default();
    client.unary(tonic::Request::new(batch), path, codec).await.map(tonic::Response::into_inner)
}

fn end(token: &str, output: u64) -> UsageEvent {
    let end = End {
        usage: Some(Usage { input: Some(10), output: Some(output), ..Usage::default() }),
        source: UsageSource::Final.into(),
        reason: EndReason::Complete.into(),
        upstream_address: "127.0.0.1:9002".into(),
        status: 200,
        ..End::default()
    };
    UsageEvent { token: token.into(), at_unix_ms: 1, event: Some(usage_event::Event::End(end)) }
}

async fn token(served: &Served) -> String {
    let mut stream = Stream::open(served, BodySendMode::Buffered).await.expect("open");
    decision(&stream.verdict().await).expect("a token").1
}

#[tokio::test]
async fn a_report_is_written_before_it_is_acknowledged_and_a_doubled_one_is_not_written_again() {
    let served = Served::start("").await;
    let token = token(&served).await;
    let ack = report(&served, vec![end(&token, 7)]).await.expect("acknowledged");
    assert_eq!((ack.accepted, ack.doubled, ack.refused), (1, 0, 0));
    let records = served.records();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0]["usage"]["output"], 7);
    assert_eq!(records[0]["usage"]["cached"], serde_json::Value::Null);
    assert_eq!(records[0]["endpoint"], "127.0.0.1:9002");
    assert_eq!(records[0]["request_id"], "rid");
    let ack = report(&served, vec![end(&token, 7)]).await.expect("acknowledged");
    assert_eq!((ack.accepted, ack.doubled), (0, 1));
    assert_eq!(served.records().len(), 1);
}

#[tokio::test]
async fn after_a_kill_a_report_is_settled_from_its_token_and_a_replayed_one_is_known() {
    let mut served = Served::start("").await;
    let (before, after) = (token(&served).await, token(&served).await);
    report(&served, vec![end(&before, 1)]).await.expect("acknowledged");
    served.restart().await;
    let ack = report(&served, vec![end(&before, 1), end(&after, 2)]).await.expect("acknowledged");
    assert_eq!((ack.accepted, ack.doubled), (1, 1));
    let outputs: Vec<_> = served.records().iter().map(|record| record["usage"]["output"].clone()).collect();
    assert_eq!(outputs, [1, 2]);
}

#[tokio::test]
async fn forged_altered_expired_and_foreign_reports_are_refused_and_counted() {
    let served = Served::start("").await;
    let good = token(&served).await;
    let foreign =
        KeyRing::new([("own", [7u8; 32].as_slice())]).expect("ring").seal(&ExchangeToken::default());
    let mut altered = good.clone();
    let at = altered.find('.').expect("a dot") + 10;
    let swapped = if altered.as_bytes()[at] == b'A' { "B" } else { "A" };
    altered.replace_range(at..=at, swapped);
    // Signed by the service's own key, and past its lifetime.
    let key = std::fs::read(served.dir.join("state/token.key")).expect("the key");
    let old =
        ExchangeToken { version: 1, exchange: vec![1; 16], expires_unix_ms: 1, ..ExchangeToken::default() };
    let expired = KeyRing::new([("own", key.as_slice())]).expect("ring").seal(&old);
    let events = vec![end("nonsense", 1), end(&foreign, 1), end(&altered, 1), end(&expired, 1)];
    let ack = report(&served, events).await.expect("acknowledged");
    assert_eq!((ack.accepted, ack.refused), (0, 4));
    for reason in ["malformed", "forged", "expired"] {
        let name = format!("tokenweir_reports_total{{event=\"end\",outcome=\"refused\",reason=\"{reason}\"");
        assert!(served.metric(&name).await > 0.5, "{reason} is not counted");
    }
    assert!(served.records().is_empty(), "nothing is written for them");
    let ack = report(&served, vec![end(&good, 1)]).await.expect("acknowledged");
    assert_eq!(ack.accepted, 1, "the true one is still taken");
}

#[tokio::test]
async fn an_exchange_that_nobody_reports_is_closed_by_its_lease_and_a_late_report_corrects_it() {
    let served = Served::start("exchange: {lease_s: 1, progress_lease_s: 1}\n").await;
    let token = token(&served).await;
    for _ in 0..100 {
        if !served.records().is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let records = served.records();
    assert_eq!((&records[0]["revision"], &records[0]["end"]), (&0.into(), &"unreported".into()));
    let ack = report(&served, vec![end(&token, 5)]).await.expect("acknowledged");
    assert_eq!(ack.accepted, 1);
    let records = served.records();
    assert_eq!((&records[1]["revision"], &records[1]["flags"]["late"]), (&1.into(), &true.into()));
    assert!((served.metric("tokenweir_reports_late_total").await - 1.0).abs() < 0.1);
}

#[tokio::test]
async fn a_batch_of_another_version_is_not_acknowledged() {
    let served = Served::start("").await;
    let mut client = tonic::client::Grpc::new(served.channel().await);
    client.ready().await.expect("ready");
    let batch = ReportBatch { version: 9, ..ReportBatch::default() };
    let path = http::uri::PathAndQuery::from_static("/tokenweir.v1.UsageReports/Report");
    let codec = tonic_prost::ProstCodec::<ReportBatch, ReportAck>::default();
    let answer: Result<tonic::Response<ReportAck>, _> =
        client.unary(tonic::Request::new(batch), path, codec).await;
    assert_eq!(answer.expect_err("refused").code(), tonic::Code::Unimplemented);
}

/// Tokens of exchanges that this service never saw, sealed with its own key.
fn own_tokens(served: &Served, round: u8, count: usize) -> Vec<String> {
    let key = std::fs::read(served.dir.join("state/token.key")).expect("the key");
    let ring = KeyRing::new([("own", key.as_slice())]).expect("ring");
    let token = |n: usize| {
        let mut exchange = vec![round; 16];
        exchange[..8].copy_from_slice(&(n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        ExchangeToken { version: 1, exchange, expires_unix_ms: u64::MAX, ..ExchangeToken::default() }
    };
    (0..count).map(|n| ring.seal(&token(n))).collect()
}

/// Whoever carries a report may give the call up at any moment, and send the batch again: what was settled by the first
/// call must be in the log when the second is acknowledged.
#[tokio::test]
async fn a_report_whose_call_is_cut_loses_no_record() {
    const EVENTS: usize = 2_000;
    let served = Served::start("").await;
    let mut exchanges = 0;
    for round in 0..12u8 {
        let events: Vec<UsageEvent> =
            own_tokens(&served, round, EVENTS).iter().map(|token| end(token, 1)).collect();
        let patience = std::time::Duration::from_millis(u64::from(round) * 2);
        drop(tokio::time::timeout(patience, report(&served, events.clone())).await);
        let ack = report(&served, events).await.expect("acknowledged");
        assert_eq!((ack.accepted + ack.doubled) as usize, EVENTS);
        exchanges += EVENTS;
        let written: std::collections::BTreeSet<String> =
            served.records().iter().map(|record| record["exchange"].to_string()).collect();
        assert_eq!(written.len(), exchanges, "round {round}: acknowledged, and not in the log");
        assert_eq!(served.records().len(), exchanges, "round {round}: written twice");
    }
}
