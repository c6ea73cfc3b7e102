//! Responses that live in one engine: whoever names one reaches the engine that made it, or a 404, and never another's.

use e2e::client::{self, Call, Ended, Reply};
use e2e::engine::{Engine, Entry};
use e2e::envoy::BodyMode;
use e2e::process::wait_for;
use e2e::{Harness, HarnessBuilder};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const SETTLED: Duration = Duration::from_secs(10);

async fn start(builder: HarnessBuilder) -> Harness {
    let harness = builder.start().await.unwrap();
    for (_, engine) in &harness.engines {
        engine.set(|settings| settings.keep_responses = true);
    }
    harness
}

fn duplex() -> HarnessBuilder {
    Harness::builder().envoy(|options| options.body_mode = BodyMode::FullDuplexStreamed)
}

/// One turn, after `previous` if there is one.
fn turn(previous: Option<&str>, stream: bool) -> Call {
    let input = format!("turn after {previous:?}");
    let mut body = json!({"model": "tiny-llama", "input": input, "max_output_tokens": 6, "stream": stream});
    if let Some(previous) = previous {
        body["previous_response_id"] = json!(previous);
    }
    Call::json("/v1/responses", &body).header("x-tenant", "team-a")
}

fn fetch(id: &str) -> Call {
    Call::get(&format!("/v1/responses/{id}")).header("x-tenant", "team-a")
}

fn cancel(id: &str) -> Call {
    let call = Call { method: "POST".parse().unwrap(), ..fetch(id) };
    Call { path: format!("{}/cancel", call.path), ..call }
}

/// The id of a response, whole or streamed; every event that carries a response carries this id.
fn id_of(reply: &Reply) -> String {
    assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete), "{}", reply.text());
    let whole = reply.json()["id"].as_str().map(str::to_owned);
    let events: BTreeSet<String> = reply
        .data()
        .iter()
        .filter_map(|data| data.pointer("/response/id").and_then(Value::as_str).map(str::to_owned))
        .collect();
    let id = whole.into_iter().chain(events).collect::<BTreeSet<_>>();
    assert_eq!(id.len(), 1, "{id:?}");
    let id = id.into_iter().next().unwrap();
    let digits = id.strip_prefix("resp_").unwrap();
    assert!(digits.len() == 48 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
    id
}

/// The engine, by its number, that answered this reply.
fn made_by(harness: &Harness, reply: &Reply) -> usize {
    let request = reply.request_id();
    let made = |engine: &Engine| engine.books().by_request_id().contains_key(request.as_str());
    harness.engines.iter().position(|(_, engine)| made(engine)).expect("some engine")
}

fn reached(harness: &Harness) -> usize {
    harness.reached().0
}

/// Our own 404, word for word vLLM's, and no engine was asked.
async fn is_unknown(harness: &Harness, call: Call, id: &str) {
    let before = reached(harness);
    let reply = harness.send(call).await.unwrap();
    let error = json!({"message": format!("Response with id '{id}' not found."), "type": "invalid_request_error",
        "param": "response_id", "code": 404});
    assert_eq!((reply.status, reply.json()), (404, json!({"error": error})));
    assert_eq!(reached(harness), before, "an engine was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_follow_their_conversation() {
    follow(Harness::builder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_follow_their_conversation_in_full_duplex() {
    follow(duplex()).await;
}

/// Two conversations on two engines, turn by turn, streamed and whole; each response is fetched. What is fetched is not
/// counted again.
async fn follow(builder: HarnessBuilder) {
    let mut harness = start(builder).await;
    let (mut ids, mut homes) = (Vec::new(), Vec::new());
    for n in 0..2 {
        let reply = harness.send(turn(None, n == 1)).await.unwrap();
        ids.push(id_of(&reply));
        homes.push(made_by(&harness, &reply));
    }
    assert_ne!(homes[0], homes[1], "round robin");
    let mut prompts = [0, 0];
    for round in 0..6 {
        for n in 0..2 {
            let reply = harness.send(turn(Some(&ids[n]), round % 2 == 0)).await.unwrap();
            let id = id_of(&reply);
            assert_eq!(made_by(&harness, &reply), homes[n], "round {round}");
            let books = harness.engine(homes[n]).books();
            let entry: &Entry = books.by_request_id()[reply.request_id().as_str()];
            assert!(entry.verdict && entry.prompt_tokens > prompts[n], "the engine knows the turns before");
            prompts[n] = entry.prompt_tokens;
            ids[n] = id;
            let fetched = harness.send(fetch(&ids[n])).await.unwrap();
            assert_eq!((id_of(&fetched), made_by(&harness, &fetched)), (ids[n].clone(), homes[n]));
            assert_eq!(fetched.json()["usage"]["input_tokens"], prompts[n], "{}", fetched.text());
        }
    }
    let service = harness.service().unwrap();
    let records = service.records_when("all records", SETTLED, |log| log.newest().len() >= 26).await.unwrap();
    assert!(records.bad.is_empty() && records.doubled().is_empty(), "{records:?}");
    let newest = records.newest();
    let fetches: Vec<_> =
        newest.values().filter(|record| record.api.as_deref() == Some("stored_response")).collect();
    assert_eq!((newest.len(), fetches.len()), (26, 12));
    for record in fetches {
        assert_eq!((record.usage, record.usage_source.as_deref()), (Default::default(), Some("none")));
        assert_eq!((record.end.as_deref(), record.tenant.as_deref()), (Some("complete"), Some("team-a")));
        assert_eq!((record.pool.as_deref(), record.endpoints.len()), (Some("a"), 1), "no other can serve it");
    }
    let metrics = service.metrics().await.unwrap();
    assert_eq!(metrics.sum("tokenweir_output_tokens_total", &[]) as u64, 14 * 6);
    assert_eq!(metrics.sum("tokenweir_unmetered_total", &[]) as u64, 0);
    assert_eq!(harness.reached().1, 0);
}

/// Foreign, forged and malformed ids reach no engine; what only the gateway may set is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_the_tenants_own_reaches_no_engine() {
    let harness = start(Harness::builder()).await;
    let id = id_of(&harness.send(turn(None, false)).await.unwrap());
    let foreign = |call: Call| {
        let mut call = call;
        call.headers.remove("x-tenant");
        call.header("x-tenant", "team-b")
    };
    let last = if id.ends_with('0') { "1" } else { "0" };
    let forged = format!("{}{last}", &id[..id.len() - 1]);
    for call in [foreign(fetch(&id)), foreign(cancel(&id)), foreign(turn(Some(&id), true))] {
        is_unknown(&harness, call, &id).await;
    }
    for other in [forged.as_str(), "resp_1", "x"] {
        for call in [fetch(other), cancel(other), turn(Some(other), false)] {
            is_unknown(&harness, call, other).await;
        }
    }
    is_unknown(&harness, turn(Some(""), false), "").await;
    let before = reached(&harness);
    for (member, value) in
        [("request_id", json!(id)), ("request_id", json!(null)), ("previous_response_id", json!([id]))]
    {
        let body = json!({"model": "tiny-llama", "input": "x", member: value});
        let reply = harness.send(Call::json("/v1/responses", &body)).await.unwrap();
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(member)),
            "{}",
            reply.text()
        );
    }
    let mut delete = fetch(&id);
    delete.method = "DELETE".parse().unwrap();
    let reply = harness.send(delete).await.unwrap();
    assert_eq!((reply.status, reply.header("allow")), (405, "GET"));
    let items = Call::get(&format!("/v1/responses/{id}/input_items"));
    assert_eq!(harness.send(items).await.unwrap().status, 404);
    assert_eq!(reached(&harness), before);
    assert_eq!(harness.send(fetch(&id)).await.unwrap().status, 200);
}

/// An engine that restarted says itself that it knows nothing; one that left the pool is a 404 of ours; one that is not ready
/// is worth another try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_gone_is_a_404_and_what_is_away_a_503() {
    let mut harness = start(Harness::builder()).await;
    let reply = harness.send(turn(None, false)).await.unwrap();
    let (id, home) = (id_of(&reply), made_by(&harness, &reply));
    let mut ready = [true, true, true];
    ready[home] = false;
    harness.set_ready(&ready).unwrap();
    let away = async || (harness.send(fetch(&id)).await.ok()?.status == 503).then_some(());
    wait_for("503", SETTLED, away).await.unwrap();
    let reply = harness.send(turn(Some(&id), false)).await.unwrap();
    assert_eq!((reply.status, reply.header("retry-after")), (503, "1"), "{}", reply.text());
    harness.set_ready(&[true, true, true]).unwrap();
    let back = async || (harness.send(fetch(&id)).await.ok()?.status == 200).then_some(());
    wait_for("200", SETTLED, back).await.unwrap();

    harness.engine_mut(home).refuse();
    // Its port is free once its listener has noticed.
    wait_for("the port", SETTLED, async || harness.engine_mut(home).listen().ok()).await.unwrap();
    for call in [fetch(&id), cancel(&id), turn(Some(&id), true)] {
        let before = reached(&harness);
        let reply = harness.send(call).await.unwrap();
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (404, &json!("response_id")));
        assert_eq!(
            (reached(&harness), made_by(&harness, &reply)),
            (before + 1, home),
            "the engine's own word"
        );
    }

    let left: Vec<_> = (0..2).filter(|n| *n != home).map(|n| (harness.engine(n).address, true)).collect();
    let b = vec![(harness.engine(2).address, true)];
    harness.service().unwrap().write_endpoints(&[("a".to_owned(), left), ("b".to_owned(), b)]).unwrap();
    let ours = async || {
        let before = reached(&harness);
        let status = harness.send(fetch(&id)).await.ok()?.status;
        (status == 404 && reached(&harness) == before).then_some(())
    };
    wait_for("our own 404", SETTLED, ours).await.unwrap();
    for call in [fetch(&id), cancel(&id), turn(Some(&id), true)] {
        is_unknown(&harness, call, &id).await;
    }
}

/// The picked endpoint refused and the next one served: the response is found there, also once the dead one is back, and
/// also after the service was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_is_found_where_it_was_made_after_a_dead_pick_and_a_killed_service() {
    let mut harness = start(Harness::builder()).await;
    harness.engine_mut(0).refuse();
    let mut ids = Vec::new();
    for n in 0..4 {
        let reply = harness.send(turn(None, n % 2 == 0)).await.unwrap();
        ids.push(id_of(&reply));
        assert_eq!(made_by(&harness, &reply), 1);
    }
    // Who followed the ids alone would ask this one, and get its 404.
    harness.engine_mut(0).listen().unwrap();
    let dead = harness.engine(0).authority();
    for id in &ids {
        for call in [fetch(id), turn(Some(id), true)] {
            let reply = harness.send(call).await.unwrap();
            assert_eq!((reply.status, made_by(&harness, &reply)), (200, 1), "{}", reply.text());
        }
    }
    let service = harness.service().unwrap();
    let records = service.records_when("all records", SETTLED, |log| log.newest().len() >= 12).await.unwrap();
    let retried = |record: &&&e2e::records::Record| {
        record.api.as_deref() == Some("responses") && record.endpoints.first() == Some(&dead)
    };
    assert!(records.newest().values().filter(retried).count() >= 1, "the dead endpoint was never picked");
    service.kill().unwrap();
    let reply = harness.send(fetch(&ids[0])).await.unwrap();
    assert_eq!(reply.status, 503);
    harness.service().unwrap().start().await.unwrap();
    for id in &ids {
        for call in [fetch(id), turn(Some(id), false)] {
            let reply = harness.send(call).await.unwrap();
            assert_eq!((reply.status, made_by(&harness, &reply)), (200, 1), "{}", reply.text());
        }
    }
    assert_eq!(harness.reached().1, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_in_the_background_is_fetched_and_cancelled() {
    background(Harness::builder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_in_the_background_is_fetched_and_cancelled_in_full_duplex() {
    background(duplex()).await;
}

async fn background(builder: HarnessBuilder) {
    let mut harness = start(builder).await;
    let begin = |stream: bool, pace: &str| {
        let body = json!({"model": "tiny-llama", "input": "x", "max_output_tokens": 6, "background": true, "stream": stream});
        Call::json("/v1/responses", &body).header("x-tenant", "team-a").header("x-engine-interval-ms", pace)
    };
    // Of the three that are cancelled one has no body, one an empty object, one an empty body that HTTP/2 ends by itself.
    for n in 0..3 {
        let reply = harness.send(begin(false, "60000")).await.unwrap();
        let (id, home) = (id_of(&reply), made_by(&harness, &reply));
        assert_eq!((&reply.json()["status"], &reply.json()["usage"]), (&json!("queued"), &json!(null)));
        assert_eq!(harness.send(fetch(&id)).await.unwrap().json()["status"], "in_progress");
        let call = match n {
            0 => cancel(&id),
            1 => Call { body: "{}".into(), ..cancel(&id) }.header("content-type", "application/json"),
            _ => cancel(&id),
        };
        let cancelled = if n == 2 {
            client::send_h2(harness.address(), call).await.unwrap()
        } else {
            harness.send(call).await.unwrap()
        };
        assert_eq!((id_of(&cancelled), made_by(&harness, &cancelled)), (id.clone(), home));
        assert_eq!(cancelled.json()["status"], "cancelled");
        let again = harness.send(cancel(&id)).await.unwrap();
        assert_eq!((again.status, made_by(&harness, &again)), (400, home), "the engine's own word");
    }
    let reply = harness.send(begin(false, "0")).await.unwrap();
    let id = id_of(&reply);
    assert_eq!(harness.send(fetch(&id)).await.unwrap().json()["usage"]["output_tokens"], 6);

    let streamed = harness.send(begin(true, "0")).await.unwrap();
    let (id, home) = (id_of(&streamed), made_by(&harness, &streamed));
    for (query, skipped) in [("?stream=true", 0), ("?stream=true&starting_after=4", 5)] {
        let call = fetch(&id);
        let call = Call { path: call.path.clone() + query, ..call };
        let fetched = harness.send(call).await.unwrap();
        assert_eq!((id_of(&fetched), made_by(&harness, &fetched)), (id.clone(), home));
        assert_eq!(fetched.events(), streamed.events()[skipped..], "{query}");
    }
    let service = harness.service().unwrap();
    let counted = async || {
        let metrics = service.metrics().await.ok()?;
        (metrics.sum("tokenweir_unmetered_total", &[("reason", "background")]) >= 4.0).then_some(metrics)
    };
    let metrics = wait_for("four unmetered", SETTLED, counted).await.unwrap();
    assert_eq!(metrics.sum("tokenweir_unmetered_total", &[]), 4.0);
    let output = async || {
        let sum = service.metrics().await.ok()?.sum("tokenweir_output_tokens_total", &[]);
        (sum >= 6.0).then_some(sum)
    };
    assert_eq!(
        wait_for("the stream's tokens", SETTLED, output).await.unwrap(),
        6.0,
        "a stream tells its usage"
    );
    let all = |log: &e2e::records::Records| {
        log.all.iter().filter(|record| record.flags["background"] == true).count() == 5
    };
    service.records_when("five in the background", SETTLED, all).await.unwrap();
}

/// A provider's pool: its ids pass as they are, nothing is added, and nothing may go on after its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_providers_responses_keep_their_ids() {
    let harness =
        start(Harness::builder().config(|config| config["pools"][0]["engine"] = json!("openai"))).await;
    let reply = harness.send(turn(None, false)).await.unwrap();
    let id = reply.json()["id"].as_str().unwrap().to_owned();
    assert!(reply.status == 200 && id.len() < 40, "the engine's own: {id}");
    let home = made_by(&harness, &reply);
    let mut answers = BTreeSet::new();
    for _ in 0..2 {
        for call in [fetch(&id), turn(Some(&id), false)] {
            let reply = harness.send(call).await.unwrap();
            answers.insert((made_by(&harness, &reply) == home, reply.status));
        }
    }
    assert!(answers.contains(&(true, 200)) && answers.len() >= 2, "any endpoint: {answers:?}");
    let body = json!({"model": "tiny-llama", "input": "x", "background": true});
    let reply = harness.send(Call::json("/v1/responses", &body)).await.unwrap();
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("background")));
}

/// No verdict, no OK, also where the reply to the headers is the verdict: without the service nothing passes a protected
/// route, and an open one lets it pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_service_nothing_passes_a_protected_route() {
    let mut harness = start(Harness::builder()).await;
    let id = id_of(&harness.send(turn(None, false)).await.unwrap());
    assert_eq!(harness.send(fetch(&id).open()).await.unwrap().status, 200, "a verdict on an open route");
    assert_eq!(harness.reached().1, 0);
    let before = reached(&harness);
    harness.service().unwrap().kill().unwrap();
    for call in [fetch(&id), cancel(&id), Call { body: "{}".into(), ..cancel(&id) }] {
        assert_eq!(harness.send(call).await.unwrap().status, 503);
    }
    assert_eq!(reached(&harness), before);
    let reply = harness.send(fetch(&id).open()).await.unwrap();
    assert!([200, 404].contains(&reply.status), "{}", reply.text());
    assert_eq!(harness.reached(), (before + 1, 1), "Envoy's own balancing");
}
