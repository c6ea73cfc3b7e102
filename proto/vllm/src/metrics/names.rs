//! Which names of the page mean what, in vLLM's present and earlier spellings.
//!
//! One table decides. Counters are listed without `_total`: both spellings are read. An old name counts only where the
//! same engine doesn't also use the new one, so a version that writes both is not read twice.

/// One number of an [`EngineStats`](super::EngineStats). Counters count since the engine's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// Requests in the running batch.
    Running,
    /// Requests waiting, for whatever reason.
    Waiting,
    /// Of the waiting: for room in the batch or the cache.
    WaitingCapacity,
    /// Of the waiting: put off for a passing reason (LoRA slots, a KV transfer).
    WaitingDeferred,
    /// Of the waiting: for reasons this reader has no name for.
    WaitingOther,
    /// Requests whose KV blocks are being fetched, over all stages.
    KvFetching,
    /// 1 = awake, 0 = sleeping.
    Awake,
    /// 1 = sleeping with its weights offloaded.
    WeightsOffloaded,
    /// 1 = sleeping with everything discarded.
    Discarded,
    /// Share of the KV blocks in use, 0 to 1. Cached blocks that nobody uses don't count.
    KvUsage,
    /// Prompt tokens looked up in the prefix cache (counter).
    PrefixQueries,
    /// Prompt tokens found in the prefix cache (counter).
    PrefixHits,
    /// Prompt tokens looked up in a KV connector (counter).
    ExternalQueries,
    /// Prompt tokens found in a KV connector (counter).
    ExternalHits,
    /// Requests put back from running to waiting (counter).
    Preemptions,
    /// Prompt tokens processed (counter).
    PromptTokens,
    /// Of the prompt tokens: computed here (counter).
    PromptComputed,
    /// Of the prompt tokens: from the own prefix cache (counter).
    PromptCacheHit,
    /// Of the prompt tokens: brought by a KV transfer (counter).
    PromptTransferred,
    /// Of the prompt tokens: from sources this reader has no name for (counter).
    PromptOther,
    /// Prompt tokens that were cached anywhere (counter).
    PromptCached,
    /// Of the cached: in device memory (counter).
    CachedDevice,
    /// Of the cached: in host memory (counter).
    CachedHost,
    /// Of the cached: at a peer (counter).
    CachedPeer,
    /// Of the cached: on disk (counter).
    CachedDisk,
    /// Of the cached: anywhere else (counter).
    CachedOther,
    /// Tokens generated (counter).
    GenerationTokens,
    /// Requests finished by a stop condition (counter).
    FinishedStop,
    /// Requests finished by their length limit (counter).
    FinishedLength,
    /// Requests aborted (counter; aborts by a leaving client are not all counted by vLLM).
    FinishedAbort,
    /// Requests finished by an error (counter).
    FinishedError,
    /// Requests finished for repeating themselves (counter).
    FinishedRepetition,
    /// Requests finished for reasons this reader has no name for (counter).
    FinishedOther,
    /// Time to first token: sum in seconds (counter).
    FirstTokenSeconds,
    /// Time to first token: how often it was measured (counter).
    FirstTokenCount,
    /// Time between two tokens: sum in seconds (counter).
    InterTokenSeconds,
    /// Time between two tokens: how often it was measured (counter).
    InterTokenCount,
    /// Time in the queue: sum in seconds (counter).
    QueueSeconds,
    /// Time in the queue: how often it was measured (counter).
    QueueCount,
    /// Time of prefill: sum in seconds (counter).
    PrefillSeconds,
    /// Time of prefill: how often it was measured (counter).
    PrefillCount,
    /// Time of whole requests: sum in seconds (counter).
    EndToEndSeconds,
    /// Time of whole requests: how often it was measured (counter).
    EndToEndCount,
}

/// How many [`Field`]s there are.
pub(super) const FIELDS: usize = Field::EndToEndCount as usize + 1;
const _: () = assert!(FIELDS <= 64, "a set of fields is kept in 64 bits");

impl Field {
    /// Whether several lines add up to this number; of all other lines there is one per engine.
    pub(super) fn adds(self) -> bool {
        matches!(
            self,
            Self::WaitingOther
                | Self::KvFetching
                | Self::PromptOther
                | Self::CachedOther
                | Self::FinishedOther
        )
    }
}

/// What to do with the lines of one name.
pub(super) enum Rule {
    /// The value is this field.
    Is(Field),
    /// The same by an earlier name.
    Was(Field),
    /// A label's value decides which field; the last is that of any other value.
    By(&'static str, &'static [(&'static str, Field)], Option<Field>),
    /// `cache_config_info`: the labels are the content.
    CacheConfig,
    /// `lora_requests_info`: the labels are the content, the value is the time.
    Lora,
    /// `admission_rejections`, of the server rather than of an engine.
    Rejected,
}

/// The rule for a name without `vllm:`. `None`: nothing to know here.
pub(super) fn rule(name: &[u8]) -> Option<&'static Rule> {
    let name = name.strip_suffix(b"_total").unwrap_or(name);
    let at = RULES.binary_search_by(|(known, _)| known.as_bytes().cmp(name)).ok()?;
    RULES.get(at).map(|(_, rule)| rule)
}

/// Sorted by name, for the search.
static RULES: [(&str, Rule); 35] = [
    ("admission_rejections", Rule::Rejected),
    ("cache_config_info", Rule::CacheConfig),
    ("e2e_request_latency_seconds_count", Rule::Is(Field::EndToEndCount)),
    ("e2e_request_latency_seconds_sum", Rule::Is(Field::EndToEndSeconds)),
    ("engine_sleep_state", SLEEP),
    ("external_prefix_cache_hits", Rule::Is(Field::ExternalHits)),
    ("external_prefix_cache_queries", Rule::Is(Field::ExternalQueries)),
    ("generation_tokens", Rule::Is(Field::GenerationTokens)),
    ("gpu_cache_usage_perc", Rule::Was(Field::KvUsage)),
    ("gpu_prefix_cache_hits", Rule::Was(Field::PrefixHits)),
    ("gpu_prefix_cache_queries", Rule::Was(Field::PrefixQueries)),
    ("inter_token_latency_seconds_count", Rule::Is(Field::InterTokenCount)),
    ("inter_token_latency_seconds_sum", Rule::Is(Field::InterTokenSeconds)),
    ("kv_cache_usage_perc", Rule::Is(Field::KvUsage)),
    ("lora_requests_info", Rule::Lora),
    ("num_preemptions", Rule::Is(Field::Preemptions)),
    ("num_requests_kv_fetch_by_stage", Rule::By("stage", &[], Some(Field::KvFetching))),
    ("num_requests_running", Rule::Is(Field::Running)),
    ("num_requests_waiting", Rule::Is(Field::Waiting)),
    ("num_requests_waiting_by_reason", WAITING),
    ("prefix_cache_hits", Rule::Is(Field::PrefixHits)),
    ("prefix_cache_queries", Rule::Is(Field::PrefixQueries)),
    ("prompt_tokens", Rule::Is(Field::PromptTokens)),
    ("prompt_tokens_by_source", SOURCES),
    ("prompt_tokens_cached", Rule::Is(Field::PromptCached)),
    ("prompt_tokens_cached_by_source", CACHED),
    ("request_prefill_time_seconds_count", Rule::Is(Field::PrefillCount)),
    ("request_prefill_time_seconds_sum", Rule::Is(Field::PrefillSeconds)),
    ("request_queue_time_seconds_count", Rule::Is(Field::QueueCount)),
    ("request_queue_time_seconds_sum", Rule::Is(Field::QueueSeconds)),
    ("request_success", FINISHED),
    ("time_per_output_token_seconds_count", Rule::Was(Field::InterTokenCount)),
    ("time_per_output_token_seconds_sum", Rule::Was(Field::InterTokenSeconds)),
    ("time_to_first_token_seconds_count", Rule::Is(Field::FirstTokenCount)),
    ("time_to_first_token_seconds_sum", Rule::Is(Field::FirstTokenSeconds)),
];

const SLEEP: Rule = Rule::By(
    "sleep_state",
    &[
        ("awake", Field::Awake),
        ("weights_offloaded", Field::WeightsOffloaded),
        ("discard_all", Field::Discarded),
    ],
    None,
);
const WAITING: Rule = Rule::By(
    "reason",
    &[("capacity", Field::WaitingCapacity), ("deferred", Field::WaitingDeferred)],
    Some(Field::WaitingOther),
);
const SOURCES: Rule = Rule::By(
    "source",
    &[
        ("local_compute", Field::PromptComputed),
        ("local_cache_hit", Field::PromptCacheHit),
        ("external_kv_transfer", Field::PromptTransferred),
    ],
    Some(Field::PromptOther),
);
const CACHED: Rule = Rule::By(
    "source",
    &[
        ("device", Field::CachedDevice),
        ("host", Field::CachedHost),
        ("p2p", Field::CachedPeer),
        ("disk", Field::CachedDisk),
    ],
    Some(Field::CachedOther),
);
const FINISHED: Rule = Rule::By(
    "finished_reason",
    &[
        ("stop", Field::FinishedStop),
        ("length", Field::FinishedLength),
        ("abort", Field::FinishedAbort),
        ("error", Field::FinishedError),
        ("repetition", Field::FinishedRepetition),
    ],
    Some(Field::FinishedOther),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_name_is_found() {
        assert!(RULES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (name, _) in &RULES {
            assert!(rule(name.as_bytes()).is_some(), "{name}");
            assert!(rule(format!("{name}_total").as_bytes()).is_some(), "{name}");
        }
        assert!(rule(b"prompt_tokens_created").is_none());
    }
}
