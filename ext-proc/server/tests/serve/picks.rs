//! Picks over an exchange's life: the prefill's part, retries, failures, prefixes, and every strategy.

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use proto_tokenweir::v1::{End, EndReason, FirstToken, Usage, UsageEvent, UsageSource, usage_event};
use serde_json::Value;

use crate::play::{Served, Stream, decision, metadata};
use crate::reports::report;

const ENDPOINTS: &str = "{a: [{address: \"127.0.0.1:9001\"}, {address: \"127.0.0.1:9002\"}]}";

async fn served(pool: &str) -> Served {
    let pools = format!("[{{name: a, models: [m], {pool}}}]");
    Served::start_pools(&pools, ENDPOINTS, "signals: {enabled: false}\n").await
}

/// A chat request whose prompt has about `tokens` tokens.
fn chat(word: &str, tokens: usize) -> String {
    let text = word.repeat(tokens * 4 / word.len());
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"stream":true}}"#)
}

/// A verdict: the endpoints in order, the exchange token, the stream.
async fn verdict(served: &Served, body: &str) -> (Vec<String>, String, Stream) {
    let mut stream = Stream::open(served, BodySendMode::Buffered).await.expect("open");
    let reply = stream.verdict_on(body).await;
    let list = metadata(&reply, "envoy.lb", "x-gateway-destination-endpoint").expect("a verdict");
    let (_, token) = decision(&reply).expect("a token");
    (list.split(',').map(str::to_owned).collect(), token, stream)
}

async fn answered(stream: &mut Stream, upstream: Option<&str>, headers: &[(&str, &str)]) {
    stream.response(upstream, headers).await;
    stream.reply().await.expect("open").expect("go on");
}

fn first_token(token: &str) -> UsageEvent {
    let event = Some(usage_event::Event::FirstToken(FirstToken { ttft_us: 5 }));
    UsageEvent { token: token.into(), at_unix_ms: 1, event }
}

fn end(token: &str, upstream: &str, input: u64, cached: u64) -> UsageEvent {
    let usage = Usage { input: Some(input), output: Some(3), cached: Some(cached), ..Usage::default() };
    let end = End {
        usage: Some(usage),
        source: UsageSource::Final.into(),
        reason: EndReason::Complete.into(),
        upstream_address: upstream.into(),
        status: 200,
        ..End::default()
    };
    UsageEvent { token: token.into(), at_unix_ms: 1, event: Some(usage_event::Event::End(end)) }
}

/// What `/debug/endpoints` says of one endpoint.
async fn seen(served: &Served, endpoint: &str) -> Value {
    let page = served.json("/debug/endpoints").await;
    let list = page["pools"][0]["endpoints"].as_array().expect("a list").clone();
    list.into_iter().find(|entry| entry["endpoint"] == endpoint).expect("it is listed")
}

async fn in_flight(served: &Served, endpoint: &str) -> (u64, u64, u64) {
    let load = &seen(served, endpoint).await["in_flight"];
    let number = |key: &str| load[key].as_u64().expect("a number");
    (number("prefilling"), number("generating"), number("prefill_tokens"))
}

#[tokio::test]
async fn a_first_token_frees_the_prefill_and_the_end_frees_the_place() {
    let served = served("pick: {exploration: 0}").await;
    let (order, token, mut stream) = verdict(&served, &chat("word ", 1_000)).await;
    let (prefilling, generating, tokens) = in_flight(&served, &order[0]).await;
    assert_eq!((prefilling, generating), (1, 0));
    assert!((900..1_200).contains(&tokens), "{tokens}");
    let gauge = format!("tokenweir_prefill_tokens_in_flight{{pool=\"a\",endpoint=\"{}\"}}", order[0]);
    assert!(served.metric(&gauge).await > 900.0);

    answered(&mut stream, Some(&order[0]), &[(":status", "200")]).await;
    assert_eq!(in_flight(&served, &order[0]).await.0, 1, "headers come before the prompt is computed");
    report(&served, vec![first_token(&token)]).await.expect("acknowledged");
    assert_eq!(in_flight(&served, &order[0]).await, (0, 1, 0));
    report(&served, vec![end(&token, &order[0], 1_000, 0)]).await.expect("acknowledged");
    assert_eq!(in_flight(&served, &order[0]).await, (0, 0, 0));
}

#[tokio::test]
async fn a_retry_moves_the_place_and_who_refused_goes_last() {
    let served = served("pick: {exploration: 0, penalty_ms: 60000}").await;
    let (order, token, mut stream) = verdict(&served, &chat("word ", 100)).await;
    assert_eq!(in_flight(&served, &order[0]).await.0, 1);
    answered(&mut stream, Some(&order[1]), &[(":status", "200")]).await;
    assert_eq!((in_flight(&served, &order[0]).await.0, in_flight(&served, &order[1]).await.0), (0, 1));
    assert!(seen(&served, &order[0]).await["penalty_s"].as_f64() > Some(30.0));
    assert!(
        (served.metric("tokenweir_endpoint_failures_total{pool=\"a\",cause=\"refused\"}").await - 1.0).abs()
            < 0.1
    );
    let last = format!("tokenweir_endpoint_penalised{{pool=\"a\",endpoint=\"{}\"}}", order[0]);
    assert!((served.metric(&last).await - 1.0).abs() < 0.1);
    // The other one is busier, and is picked all the same.
    assert_eq!(verdict(&served, &chat("other ", 100)).await.0, [order[1].clone(), order[0].clone()]);
    report(&served, vec![end(&token, &order[1], 100, 0)]).await.expect("acknowledged");
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let served = served("pick: {exploration: 0, penalty_ms: 1000}").await;
    let (order, token, mut stream) = verdict(&served, &chat("word ", 100)).await;
    answered(&mut stream, Some(&order[0]), &[(":status", "503"), ("retry-after", "40")]).await;
    let rest = seen(&served, &order[0]).await["penalty_s"].as_f64().expect("a number");
    assert!(rest > 20.0 && rest <= 40.0, "{rest}");
    report(&served, vec![end(&token, &order[0], 0, 0)]).await.expect("acknowledged");
    for _ in 0..3 {
        assert_eq!(verdict(&served, &chat("word ", 100)).await.0[0], order[1]);
    }
}

#[tokio::test]
async fn an_answer_from_nowhere_blames_nobody_and_frees_the_place_at_once() {
    let served = served("pick: {exploration: 0}").await;
    let (order, _, mut stream) = verdict(&served, &chat("word ", 100)).await;
    answered(&mut stream, None, &[(":status", "503")]).await;
    for endpoint in &order {
        assert_eq!(in_flight(&served, endpoint).await.0, 0);
        assert_eq!(seen(&served, endpoint).await["penalty_s"], 0.0);
    }
    assert!(
        (served.metric("tokenweir_endpoint_failures_total{pool=\"a\",cause=\"unreached\"}").await - 1.0)
            .abs()
            < 0.1
    );
}

#[tokio::test]
async fn a_prompt_goes_where_its_beginning_is_and_the_prediction_is_held_against_the_report() {
    for strategy in ["least_work", "prefix_only"] {
        let served = served(&format!("strategy: {strategy}, pick: {{exploration: 0}}")).await;
        let (order, token, mut stream) = verdict(&served, &chat("sentence ", 2_000)).await;
        answered(&mut stream, Some(&order[0]), &[(":status", "200")]).await;
        report(&served, vec![first_token(&token), end(&token, &order[0], 2_000, 0)])
            .await
            .expect("acknowledged");
        assert!(seen(&served, &order[0]).await["prefix_chunks"].as_u64() > Some(10));
        // A few others go elsewhere, so that it isn't the turn of this one.
        for n in 0..6 {
            let (order, token, mut stream) = verdict(&served, &chat(&format!("word{n} "), 200)).await;
            answered(&mut stream, Some(&order[0]), &[(":status", "200")]).await;
            report(&served, vec![end(&token, &order[0], 200, 0)]).await.expect("acknowledged");
        }
        let before = served.metric("tokenweir_prefix_reported_tokens_total").await;
        let (again, token, mut stream) = verdict(&served, &chat("sentence ", 2_000)).await;
        assert_eq!(again[0], order[0], "{strategy}");
        let pick = &served.json("/debug/picks").await["picks"][0];
        let warm = &pick["candidates"][0];
        let matched = warm["matched_tokens"].as_u64().expect("a number");
        assert!(matched > 1_500 && warm["uncached_tokens"].as_u64() < Some(500), "{pick:#}");
        assert_eq!(warm["endpoint"], order[0].as_str());
        answered(&mut stream, Some(&order[0]), &[(":status", "200")]).await;
        report(&served, vec![end(&token, &order[0], 2_000, 1_984)]).await.expect("acknowledged");
        let metric = async |name: &str| served.metric(&format!("tokenweir_prefix_{name}_tokens_total")).await;
        assert!((metric("reported").await - before - 1_984.0).abs() < 0.1);
        assert!((metric("predicted").await - matched as f64).abs() < 0.1);
        assert!((metric("error").await - matched.abs_diff(1_984) as f64).abs() < 0.1);
        assert!(metric("prompt").await > 3_999.0);
    }
}

#[tokio::test]
async fn each_strategy_is_had_by_its_name() {
    for (strategy, reasons) in [
        (
            "least_work",
            &["tie_at_random", "tie_in_turn", "cheapest_cold", "cheapest_warm", "warm_is_busier"][..],
        ),
        ("prefix_only", &["tie_at_random", "longest_prefix"][..]),
        ("least_request", &["tie_at_random", "fewest_in_flight"][..]),
        ("round_robin", &["turn"][..]),
        ("random", &["at_random"][..]),
    ] {
        let served = served(&format!("strategy: {strategy}, pick: {{exploration: 0}}")).await;
        for n in 0..4 {
            verdict(&served, &chat(&format!("word{n} "), 200)).await;
        }
        let page = served.json("/debug/picks").await;
        for pick in page["picks"].as_array().expect("a list") {
            assert_eq!(pick["strategy"], strategy);
            let reason = pick["reason"].as_str().expect("a reason");
            assert!(reasons.contains(&reason), "{strategy}: {reason}");
            assert_eq!(pick["candidates"].as_array().map(Vec::len), Some(2));
            let counted = format!("tokenweir_picks_total{{pool=\"a\",reason=\"{reason}\"}}");
            assert!(served.metric(&counted).await > 0.5);
        }
        assert_eq!(served.json("/debug/endpoints").await["pools"][0]["strategy"], strategy);
    }
}
