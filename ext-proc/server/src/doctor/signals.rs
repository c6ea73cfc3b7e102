//! The engines' signals: whether `/metrics` answers and can be read, and whether the engine is set up so that a pick can
//! make something of its cache.

use std::net::SocketAddr;

use proto_vllm::metrics;

use super::probe::{self, NoAnswer};
use super::{Finding, Level, Report};
use crate::config::PoolConfig;

/// Looks at the `/metrics` of one endpoint. `None`: it doesn't answer at all, which is said elsewhere.
pub(super) async fn ask(pool: &PoolConfig, address: SocketAddr) -> Option<Finding> {
    let subject = format!("signals of {address} of pool {}", pool.name);
    // Without signals requests flow all the same.
    let amiss = |what: String, advice: &str| {
        let (level, advice) = (Level::Warn, advice.to_owned());
        Some(Finding { level, subject: subject.clone(), what, advice })
    };
    let unwatched = "requests to it are placed without its own word on its load; let this host reach the engine's own /metrics, \
                     or set signals.enabled: false";
    let body = match probe::get(address, "/metrics").await {
        Err(NoAnswer::Refused) => return None,
        Err(NoAnswer::Silent(why)) => return amiss(format!("no answer to GET /metrics: {why}"), unwatched),
        Ok((200, body)) => body,
        Ok((404, _)) => {
            let advice = "for an engine that isn't vLLM set engine: openai; for vLLM remove --disable-log-stats and whatever \
                          hides /metrics";
            return amiss("GET /metrics is not found".to_owned(), advice);
        }
        Ok((status, _)) => return amiss(format!("answers {status} to GET /metrics"), unwatched),
    };
    let page = match metrics::read(&body) {
        Ok(page) => page,
        Err(why) => return amiss(format!("GET /metrics: {why}"), unwatched),
    };
    if page.engines.is_empty() {
        let advice = "start the engine without --disable-log-stats";
        return amiss("/metrics has no numbers of an engine".to_owned(), advice);
    }
    if page.caches.iter().any(|cache| cache.prefix_caching == Some(false)) {
        let advice = "a prompt's beginning is computed anew each time; start the engine with --enable-prefix-caching, or choose \
                      strategy: least_request";
        return amiss("the engine runs without prefix caching".to_owned(), advice);
    }
    let tokens: u64 = page.caches.iter().filter_map(|cache| cache.kv_cache_size_tokens).sum();
    let size = if tokens > 0 { format!(", a KV cache of {tokens} tokens") } else { String::new() };
    let caching = page.caches.iter().any(|cache| cache.prefix_caching == Some(true));
    let caching = if caching { ", prefix caching on" } else { "" };
    let what = format!("/metrics is vLLM's: {} engine(s){size}{caching}", page.engines.len());
    Some(Finding { level: Level::Ok, subject, what, advice: String::new() })
}

/// Whether the engines of a pool tell how many prompt tokens they had cached: a running `tokenweir`, asked on its admin
/// port, knows it from what passed through it. `None`: none runs.
pub(super) fn prompt_details(pool: &PoolConfig, counted: Option<&str>, report: &mut Report) {
    let subject = format!("pool {}", pool.name);
    let sum = |name| counted.map_or(0.0, |text| sum(text, name, &pool.name));
    let told = sum("tokenweir_prefix_prompt_tokens_total") + sum("tokenweir_cached_tokens_total");
    if told > 0.0 {
        return report.ok(subject, "its engines tell cached tokens (--enable-prompt-tokens-details)");
    }
    let advice = "without it cached tokens are unknown; look at the engine's command line";
    if crate::dispatch::uses_prefixes(&pool.pick) && sum("tokenweir_input_tokens_total") > 0.0 {
        let what =
            "no answer so far told its cached tokens: vLLM runs without --enable-prompt-tokens-details";
        return report.add(
            Level::Warn,
            subject,
            what,
            "start it with the flag, so that wrong guesses about its cache are corrected",
        );
    }
    report.add(Level::Skip, subject, "whether vLLM runs with --enable-prompt-tokens-details", advice);
}

/// The sum of all series of `name` that have this pool.
fn sum(text: &str, name: &str, pool: &str) -> f64 {
    let label = format!("pool=\"{pool}\"");
    let of = |line: &str| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
        labels.split(',').any(|have| have == label).then(|| value.trim().parse::<f64>().ok())?
    };
    text.lines().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_series_of_the_name_and_the_pool_are_added_up() {
        let text = "# TYPE x counter\nx{model=\"m\",pool=\"a\"} 3\nx{pool=\"a\"} 4\nx{pool=\"ab\"} 5\nx_y{pool=\"a\"} 6\nx 7\n";
        assert!((sum(text, "x", "a") - 7.0).abs() < 1e-9);
    }
}
