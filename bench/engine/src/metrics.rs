//! `/metrics`: families in the order, words and numbers of vLLM's page, with values from the scheduler.
//!
//! `families.txt` lists them: a line `type|name|help` (a histogram's with the name of its values), then one line for each
//! series, `labels|value`, a value being a number or the name of one. `@` stands for the model.

mod traffic;

pub(crate) use traffic::Traffic;

use crate::config::EngineConfig;
use crate::scheduler::{Histogram, Stats};
use crate::state::State;
use std::fmt::Write;

const FAMILIES: &str = include_str!("metrics/families.txt");

/// A number as Python's client writes it.
pub(crate) fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let plain = format!("{value:?}");
    match plain.find('.') {
        Some(dot) if dot > 6 && value > 0.0 && !plain.contains('e') => {
            let digits = format!("{}.{}{}", &plain[..1], &plain[1..dot], &plain[dot + 1..]);
            format!("{}e+{:02}", digits.trim_end_matches(['0', '.']), dot - 1)
        }
        _ => plain,
    }
}

/// Writes one histogram's series. `labels` are sorted around `le`, which comes after those before it in the alphabet.
pub(crate) fn histogram(name: &str, before: &str, after: &str, values: &Histogram, out: &mut String) {
    let comma = |text: &str| if text.is_empty() { "" } else { "," };
    for (bound, count) in values.cumulative() {
        let (bound, count) = (number(bound), number(count as f64));
        let _ = writeln!(
            out,
            "{name}_bucket{{{before}{}le=\"{bound}\"{}{after}}} {count}",
            comma(before),
            comma(after)
        );
    }
    let labels = match (before, after) {
        ("", "") => String::new(),
        ("", one) | (one, "") => format!("{{{one}}}"),
        (one, two) => format!("{{{one},{two}}}"),
    };
    let _ = writeln!(out, "{name}_count{labels} {}", number(values.count() as f64));
    let _ = writeln!(out, "{name}_sum{labels} {}", number(values.sum()));
}

/// Writes the head of a family.
pub(crate) fn head(name: &str, kind: &str, help: &str, out: &mut String) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// What the page is made of.
struct Page<'a> {
    config: &'a EngineConfig,
    stats: Stats,
    asleep: bool,
    started: f64,
    out: String,
}

/// The whole page.
pub(crate) fn page(state: &State) -> String {
    let faults = state.faults();
    let core = state.core();
    let (mut stats, loras) = (core.scheduler.stats().clone(), core.loras.clone());
    drop(core);
    if faults.hangs() {
        // Whoever waits outside is not seen.
        stats.gauges.waiting = 0;
        stats.gauges.deferred = 0;
    }
    let started = *state.started.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let out = String::with_capacity(64 << 10);
    let mut page = Page { config: &state.config, stats, asleep: faults.sleeping, started, out };
    let mut lines = FAMILIES.lines().peekable();
    while let Some(line) = lines.next() {
        let mut series = Vec::new();
        while let Some(one) = lines.next_if(|next| next.starts_with(' ')) {
            series.push(one.trim_start());
        }
        match line.split_once('|') {
            None => state.traffic().write(started, &mut page.out),
            Some(("loras", help)) if !state.config.loras.is_empty() => page.loras(help, &loras),
            Some(("loras", _)) => {}
            Some(("cache_config", help)) => page.cache_config(help),
            Some((kind, rest)) => page.family(kind, rest, &series),
        }
    }
    page.out
}

impl Page<'_> {
    fn family(&mut self, kind: &str, rest: &str, series: &[&str]) {
        let mut parts = rest.split('|');
        let (name, help) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        head(name, kind, help, &mut self.out);
        let engine = format!("model_name=\"{}\"", self.config.model);
        if let Some(values) = parts.next() {
            let values = self.histogram_of(values).clone();
            histogram(name, "engine=\"0\"", &engine, &values, &mut self.out);
            let created = format!("{name}_created");
            head(&created, "gauge", help, &mut self.out);
            let _ = writeln!(self.out, "{created}{{engine=\"0\",{engine}}} {}", number(self.started));
            return;
        }
        let labelled = |labels: &str| {
            if labels.is_empty() {
                String::new()
            } else {
                format!("{{{}}}", labels.replace('@', &self.config.model))
            }
        };
        let mut created = String::new();
        for (labels, value) in series.iter().filter_map(|line| line.rsplit_once('|')) {
            let labels = labelled(labels);
            let _ = writeln!(self.out, "{name}{labels} {}", number(self.value(value)));
            let _ = writeln!(
                created,
                "{}_created{labels} {}",
                name.trim_end_matches("_total"),
                number(self.started)
            );
        }
        if kind == "counter" && name.starts_with("vllm:") {
            head(&format!("{}_created", name.trim_end_matches("_total")), "gauge", help, &mut self.out);
            self.out.push_str(&created);
        }
    }

    fn value(&self, name: &str) -> f64 {
        let (stats, gauges) = (&self.stats, &self.stats.gauges);
        let count = match name {
            "running" => gauges.running as u64,
            "waiting" => gauges.waiting as u64,
            "waiting_capacity" => (gauges.waiting - gauges.deferred) as u64,
            "waiting_deferred" => gauges.deferred as u64,
            "kv_usage" => return gauges.kv_usage,
            "started" => return self.started,
            "awake" => u64::from(!self.asleep),
            "asleep" => u64::from(self.asleep),
            "cache_queries" => stats.cache_queries,
            "cache_hits" => stats.cache_hits,
            "preemptions" => stats.preemptions,
            "prompt_tokens" => stats.prompt_tokens,
            "prompt_cached" => stats.prompt_cached,
            "prompt_computed" => stats.prompt_tokens - stats.prompt_cached,
            "generation_tokens" => stats.generation_tokens,
            "stopped" => stats.stopped,
            "at_length" => stats.at_length,
            "refused_requests" => stats.refused_requests,
            "refused_tokens" => stats.refused_tokens,
            plain => return plain.parse().unwrap_or(f64::NAN),
        };
        count as f64
    }

    fn histogram_of(&self, name: &str) -> &Histogram {
        let stats = &self.stats;
        match name {
            "request_prompt" => &stats.request_prompt,
            "request_generation" => &stats.request_generation,
            "iteration_tokens" => &stats.iteration_tokens,
            "request_generation_most" => &stats.request_generation_most,
            "request_n" => &stats.request_n,
            "request_max_tokens" => &stats.request_max_tokens,
            "first_token" => &stats.first_token,
            "next_token" => &stats.next_token,
            "per_token" => &stats.per_token,
            "whole" => &stats.whole,
            "queued" => &stats.queued,
            "inference" => &stats.inference,
            "prefill" => &stats.prefill,
            "decode" => &stats.decode,
            "request_preemptions" => &stats.request_preemptions,
            _ => &stats.request_computed,
        }
    }

    /// Series of sets that were active once stay; the largest value is the newest.
    fn loras(&mut self, help: &str, sets: &[(Vec<String>, f64)]) {
        head("vllm:lora_requests_info", "gauge", help, &mut self.out);
        for (names, at) in sets {
            let (names, most) = (names.join(","), self.config.max_loras);
            let _ = writeln!(
                self.out,
                "vllm:lora_requests_info{{max_lora=\"{most}\",running_lora_adapters=\"{names}\",waiting_lora_adapters=\"{names}\"}} {}",
                number(*at)
            );
        }
    }

    fn cache_config(&mut self, help: &str) {
        let config = self.config;
        let (size, blocks) = (config.block_tokens, config.blocks);
        let tokens = u64::from(size) * u64::from(blocks);
        let concurrency = tokens as f64 / f64::from(config.model_len());
        head("vllm:cache_config_info", "gauge", help, &mut self.out);
        let caching = if config.prefix_caching { "True" } else { "False" };
        let _ = writeln!(
            self.out,
            "vllm:cache_config_info{{_block_size_resolved=\"True\",block_size=\"{size}\",cache_dtype=\"auto\",\
             cache_hit_alignment_tokens=\"None\",effective_attention_block_size=\"{size}\",\
             enable_mamba_shared_prefix_checkpoint=\"False\",enable_prefix_caching=\"{caching}\",engine=\"0\",\
             gpu_memory_utilization=\"0.92\",hash_block_size=\"None\",is_attention_free=\"False\",\
             kv_cache_dtype_skip_layers=\"[]\",kv_cache_layout=\"None\",kv_cache_max_concurrency=\"{concurrency:?}\",\
             kv_cache_memory_bytes=\"1073741824\",kv_cache_size_tokens=\"{tokens}\",kv_offloading_backend=\"native\",\
             kv_offloading_size=\"None\",kv_sharing_fast_prefill=\"False\",mamba_block_size=\"None\",\
             mamba_cache_dtype=\"auto\",mamba_cache_mode=\"none\",mamba_page_size_padded=\"None\",\
             mamba_ssm_cache_dtype=\"float32\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
             num_gpu_blocks_override=\"{blocks}\",prefix_cache_retention_interval=\"0\",\
             prefix_caching_hash_algo=\"sha256_cbor\",prefix_match_unit=\"None\",replayssm_buffer_len=\"16\",\
             skip_page_size_padded=\"None\",sliding_window=\"None\",swa_bounded_replay=\"True\",\
             use_kda_recoverssm=\"False\",use_replayssm=\"False\",user_specified_block_size=\"True\"}} 1.0"
        );
    }
}

/// The page with every vLLM value replaced by one that nobody should believe.
pub(crate) fn absurd(page: &str) -> String {
    const VALUES: [&str; 6] = ["-1.0", "NaN", "+Inf", "1e+308", "-Inf", "18446744073709551616.0"];
    let line = |(at, line): (usize, &str)| match line.rsplit_once(' ') {
        Some((series, _)) if line.starts_with("vllm:") => format!("{series} {}\n", VALUES[at % VALUES.len()]),
        _ => format!("{line}\n"),
    };
    page.lines().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_python_writes_them() {
        assert_eq!(number(8.0), "8.0");
        assert_eq!(number(13760.0), "13760.0");
        assert_eq!(number(2_499_334_144.0), "2.499334144e+09");
        assert_eq!(number(1_796_099_590.59), "1.79609959059e+09");
        assert_eq!(number(20_000_000.0), "2e+07");
        assert_eq!(number(0.525_490_196_078_431_4), "0.5254901960784314");
        assert_eq!(number(f64::INFINITY), "+Inf");
    }
}
