//! uvicorn closes a connection that was idle for 5 s, just when Envoy may want to use it again. No client may see that.

use super::{Stage, full};
use e2e::client::{self, Call, Ended};
use serde_json::json;
use std::time::Duration;

const AT_ONCE: usize = 10;
/// Around uvicorn's 5 s, in milliseconds.
const GAPS: [u64; 4] = [4970, 4995, 5005, 5030];

pub async fn connections_fail_nobody(stage: &mut Stage) {
    let address = stage.harness.address();
    let before = stage.harness.envoy.stats("cluster.pool-a.upstream_cx_").await.unwrap();
    let rounds = if full() { 5 } else { 1 };
    let mut sent = 0;
    for gap in GAPS.iter().cycle().take(GAPS.len() * rounds) {
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..AT_ONCE {
            let body = json!({"model": "tiny-llama", "max_tokens": 2, "stream": n % 2 == 0,
                "messages": [{"role": "user", "content": "hello"}]});
            calls.spawn(client::send(
                address,
                Call::json("/v1/chat/completions", &body).header("x-tenant", "idle"),
            ));
        }
        while let Some(reply) = calls.join_next().await {
            let reply = reply.unwrap().unwrap();
            assert_eq!((reply.status, &reply.ended), (200, &Ended::Complete), "{}", reply.text());
            sent += 1;
        }
        tokio::time::sleep(Duration::from_millis(*gap)).await;
    }
    stage.records_of("idle", sent).await;
    let after = stage.harness.envoy.stats("cluster.pool-a.upstream_cx_").await.unwrap();
    let more = |name: &str| {
        let of = |stats: &std::collections::BTreeMap<String, u64>| stats.get(name).copied().unwrap_or(0);
        of(&after) - of(&before)
    };
    let idle = more("cluster.pool-a.upstream_cx_idle_timeout");
    println!(
        "{sent} requests over connections at the end of their idle time; Envoy closed {idle} of them first"
    );
    assert!(idle > 0, "no connection was idle long enough, so nothing was proved: {after:?}");
}
