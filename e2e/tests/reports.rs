//! Reports that no filter of ours would send: forged, altered, expired and replayed ones are refused or ignored, and
//! counted.

use e2e::Harness;
use e2e::bodies::chat_call;
use e2e::client::reports::{end, report, token};
use std::net::SocketAddr;
use std::time::Duration;

/// Key id of the service's own key.
const OWN: &str = "own";

/// A forged, an altered, an expired and a malformed token settle nothing; a good one settles once however often it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_good_reports_settle_and_only_once() {
    let mut harness = Harness::builder().start().await.unwrap();
    assert_eq!(harness.send(chat_call(3)).await.unwrap().status, 200);
    let service = harness.service().unwrap();
    let limit = Duration::from_secs(10);
    service.records_when("the honest record", limit, |log| log.all.len() == 1).await.unwrap();
    let key = service.token_key().unwrap();
    let address: SocketAddr = service.grpc.parse().unwrap();

    let honest = token(OWN, &key, 1, 60_000).unwrap();
    let forged = token(OWN, &[7; 32], 2, 60_000).unwrap();
    let unknown = token("k9", &key, 3, 60_000).unwrap();
    let expired = token(OWN, &key, 4, -1).unwrap();
    let mut altered = honest.clone();
    let middle = altered.len() / 2;
    let other = if &altered[middle..=middle] == "A" { "B" } else { "A" };
    altered.replace_range(middle..=middle, other);
    let bad =
        [forged, unknown, expired, altered, "tw1.own.x.y".to_owned(), "x".repeat(100_000), String::new()];
    // The last, without a token, is what open routes send: accepted as unmetered or refused, but no record of an exchange.
    let count = u32::try_from(bad.len()).unwrap();
    let events = bad.iter().map(|token| end(token, 1000, 1000)).collect();
    let ack = report(address, "forger", 1, events).await.unwrap();
    assert!(ack.refused >= count - 1 && ack.accepted <= 1, "{ack:?}");

    for sequence in 2..5 {
        let ack = report(address, "replayer", sequence, vec![end(&honest, 11, 7)]).await.unwrap();
        let expected = if sequence == 2 { (1, 0, 0) } else { (0, 1, 0) };
        assert_eq!((ack.accepted, ack.doubled, ack.refused), expected, "report {sequence}");
    }
    let twice = vec![end(&honest, 11, 7), end(&honest, 999, 999)];
    assert_eq!(report(address, "replayer", 5, twice).await.unwrap().doubled, 2);

    let records = service.records_when("the second record", limit, |log| log.all.len() >= 2).await.unwrap();
    let usages: Vec<_> = records.all.iter().map(|record| record.usage.output).collect();
    assert_eq!(usages, [Some(3), Some(7)], "{records:?}");
    let metrics = service.metrics().await.unwrap();
    let refused =
        |reason| metrics.sum("tokenweir_reports_total", &[("outcome", "refused"), ("reason", reason)]);
    for reason in ["forged", "unknown_key", "expired", "malformed"] {
        assert!(refused(reason) >= 1.0, "{reason}: {}", metrics.text);
    }
    assert!(metrics.sum("tokenweir_reports_total", &[("outcome", "doubled")]) >= 4.0);
    assert_eq!(metrics.sum("tokenweir_output_tokens_total", &[]), 10.0);
}
