//! Σ records = Σ vLLM's own counters, over both engines, exactly.
//!
//! What vLLM's counters mean: `prompt_tokens_total` counts a prompt once for each *sequence*, when its first token comes
//! out: with `n` of 2 twice, while usage (and so the record) says it once. `generation_tokens_total` counts what the
//! sequences gave. A client that leaves after the last token changes neither.

use super::{Stage, full};
use e2e::records::Record;
use e2e::sdk;
use e2e::vllm::Counted;
use serde_json::Value;

/// Group, sequences for each prompt, exchanges.
const GROUPS: [(&str, u64, usize); 4] = [("one", 1, 210), ("many", 2, 36), ("batch", 1, 36), ("left", 1, 42)];

pub async fn are_equal(stage: &mut Stage) {
    let times = if full() { 4 } else { 1 };
    let (address, dir) = (stage.harness.address(), stage.harness.dir());
    let mut all = 0;
    println!(
        "group   exchanges          Σ records: input, output, cached     Σ vLLM: prompt, generation, cached, hits"
    );
    for (group, sequences, exchanges) in GROUPS {
        let exchanges = exchanges * times;
        let before = stage.counted().await;
        let out = dir.join(format!("load-{group}.json")).display().to_string();
        let (url, count) = (format!("http://{address}"), exchanges.to_string());
        let args = ["--base-url", &url, "--group", group, "--count", &count, "--out", &out];
        let mut load = sdk::start("load.py", &args, &dir.join("load.log")).unwrap();
        let ended = load.wait(sdk::RUN_LIMIT).await.unwrap();
        assert!(ended.success(), "{}", load.tail());
        let records = stage.records_of(group, exchanges).await;
        let counted = stage.counted().await.since(before);
        let sum = |of: fn(&Record) -> Option<u64>| records.iter().filter_map(of).sum::<u64>();
        let (input, output) = (sum(|record| record.usage.input), sum(|record| record.usage.output));
        let cached = sum(|record| record.usage.cached);
        let Counted { prompt, generation, cached: engines_cached, hits } = counted;
        println!(
            "{group:<7} {exchanges:>9} {input:>22} x {sequences}, {output:>6}, {cached:>6} {prompt:>27}, \
             {generation:>6}, {engines_cached:>6}, {hits:>6}"
        );
        assert!(records.iter().all(|record| record.usage.input.is_some()), "{records:#?}");
        assert_eq!(input * sequences, prompt, "{group}: prompt tokens");
        assert_eq!(output, generation, "{group}: generated tokens");
        if group == "one" {
            assert_eq!(cached, engines_cached, "cached tokens");
            assert_eq!(cached, hits, "cached tokens and the prefix cache's hits, without preemption");
            assert!(cached > 0, "nothing was cached, so nothing was compared");
        }
        as_the_sdks_saw(&out, group, &records);
        all += exchanges;
    }
    println!("{all} exchanges in all");
    assert!(all >= 300, "{all}");
}

/// What the SDKs were told is what is recorded.
fn as_the_sdks_saw(out: &str, group: &str, records: &[Record]) {
    let seen: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(out).unwrap()).unwrap();
    let told = |name: &str| -> Vec<u64> { seen.iter().filter_map(|one| one[name].as_u64()).collect() };
    let mut outputs: Vec<u64> = records.iter().filter_map(|record| record.usage.output).collect();
    for output in told("output") {
        let found = outputs.iter().position(|recorded| *recorded == output);
        outputs.swap_remove(found.unwrap_or_else(|| panic!("{group}: no record of {output} tokens is left")));
    }
    let asked = told("output").len();
    assert!(asked > 0 || group == "left", "{group}: no SDK was told any usage");
    assert!(asked < records.len(), "{group}: every SDK asked for usage, so injecting it was not tried");
}
