//! Every metric: name, kind, labels, help. `docs/metrics.md` lists the same, and a test holds the two together.

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// What a metric measures, which decides its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    /// Histogram of seconds, 1 ms to 300 s.
    Seconds,
    /// Histogram of seconds of our own work, 10 µs to 1 s.
    ShortSeconds,
    /// Histogram of seconds, fed whole from the filter's gap histograms.
    Gaps,
    /// Histogram of tokens, 1 to 1 Mi.
    Tokens,
    /// Histogram of bytes, 256 B to 256 MiB.
    Bytes,
    /// Histograms with the buckets that OpenTelemetry's GenAI conventions give.
    GenAiTokens,
    GenAiFirstToken,
    GenAiPerToken,
    GenAiDuration,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

macro_rules! families {
    ($($id:ident = $name:literal, $kind:ident, [$($label:literal),*], $help:literal;)*) => {
        $(pub(crate) const $id: Family =
            Family { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*
        /// All of them.
        pub(crate) const ALL: &[Family] = &[$($id),*];
    };
}

families! {
    BUILD = "tokenweir_build_info", Gauge, ["version"], "1, with the version of the service";
    REQUESTS = "tokenweir_requests_total", Counter, ["model", "pool", "tenant", "api", "status", "status_class"],
        "Exchanges by the status that the client got";
    INPUT = "tokenweir_input_tokens_total", Counter, ["model", "pool", "tenant"], "Prompt tokens, cached ones included";
    OUTPUT = "tokenweir_output_tokens_total", Counter, ["model", "pool", "tenant"], "Generated tokens";
    CACHED = "tokenweir_cached_tokens_total", Counter, ["model", "pool", "tenant"],
        "Prompt tokens that the engine took from its KV cache";
    INPUT_SIZE = "tokenweir_request_input_tokens", Tokens, ["model", "pool"], "Prompt tokens of one exchange";
    OUTPUT_SIZE = "tokenweir_request_output_tokens", Tokens, ["model", "pool"], "Generated tokens of one exchange";
    BODY_SIZE = "tokenweir_request_body_bytes", Bytes, ["api"], "Size of request bodies";
    FIRST_TOKEN = "tokenweir_time_to_first_token_seconds", Seconds, ["model", "pool"],
        "From the request headers to the first data of the response";
    INTER_TOKEN = "tokenweir_inter_token_seconds", Gaps, ["model", "pool"], "Gaps between the data events of streams";
    END_TO_END = "tokenweir_end_to_end_seconds", Seconds, ["model", "pool"],
        "From the request headers to the end of the response";
    VERDICT = "tokenweir_verdict_seconds", ShortSeconds, [], "From the last request byte to the verdict";
    PICKS = "tokenweir_picks_total", Counter, ["pool", "reason"], "Endpoint choices by reason";
    IN_FLIGHT = "tokenweir_in_flight", Gauge, ["pool", "endpoint"], "Exchanges that an endpoint works on for this replica";
    PREFILL_TOKENS = "tokenweir_prefill_tokens_in_flight", Gauge, ["pool", "endpoint"],
        "Prompt tokens sent to an endpoint, not in its cache as far as known, that have no first token yet";
    PENALISED = "tokenweir_endpoint_penalised", Gauge, ["pool", "endpoint"],
        "1 for an endpoint that goes last because it refused or failed a request";
    FAILURES = "tokenweir_endpoint_failures_total", Counter, ["pool", "cause"],
        "Requests that the picked endpoint did not serve (refused: another one did; answered: 429 or 5xx; unreached: none was tried)";
    HEALTH = "tokenweir_endpoint_health", Gauge, ["pool", "endpoint", "health"],
        "1 for what an endpoint's signals say of it (unknown, ready, unreachable, sleeping, paused, draining, stuck)";
    SIGNAL_AGE = "tokenweir_signal_age_seconds", Gauge, ["pool", "endpoint"], "Age of an engine's own numbers";
    SCRAPES = "tokenweir_signals_scrapes_total", Counter, ["pool", "outcome"], "Looks at engines by how they ended";
    SCRAPE_SECONDS = "tokenweir_signals_scrape_seconds", ShortSeconds, ["pool"], "Time that looks at engines took";
    ENGINE_RUNNING = "tokenweir_engine_running_requests", Gauge, ["pool", "endpoint"],
        "Requests that an engine runs, by its own count, from everybody";
    ENGINE_WAITING = "tokenweir_engine_waiting_requests", Gauge, ["pool", "endpoint"],
        "Requests that wait in an engine, by its own count, from everybody";
    ENGINE_KV_USAGE = "tokenweir_engine_kv_usage_ratio", Gauge, ["pool", "endpoint"],
        "Share of an engine's KV cache that running requests hold, by its own count";
    PREFIX_PROMPT = "tokenweir_prefix_prompt_tokens_total", Counter, ["pool"],
        "Prompt tokens of exchanges whose cached tokens were predicted and reported";
    PREFIX_PREDICTED = "tokenweir_prefix_predicted_tokens_total", Counter, ["pool"],
        "Of these, predicted to be in the engine's cache";
    PREFIX_REPORTED = "tokenweir_prefix_reported_tokens_total", Counter, ["pool"],
        "Of these, in the engine's cache by its own count";
    PREFIX_ERROR = "tokenweir_prefix_error_tokens_total", Counter, ["pool"],
        "Differences between predicted and reported, added up over exchanges without their sign";
    ENDPOINTS = "tokenweir_endpoints", Gauge, ["pool", "state"], "Endpoints of a pool by state (ready, not_ready)";
    OPEN = "tokenweir_open_exchanges", Gauge, [], "Exchanges with a verdict and no end yet";
    STREAMS = "tokenweir_ext_proc_streams", Gauge, [], "Open ext_proc streams";
    UNMETERED = "tokenweir_unmetered_total", Counter, ["reason"], "Answered exchanges without a token count";
    REPORTS = "tokenweir_reports_total", Counter, ["event", "outcome", "reason"],
        "Reports of the filter by what became of them (accepted, doubled, refused)";
    REPORTS_LATE = "tokenweir_reports_late_total", Counter, [], "Reports that came after their exchange was closed";
    REJECTS = "tokenweir_rejects_total", Counter, ["reason", "api"], "Requests answered by the service itself";
    LEASES = "tokenweir_lease_expired_total", Counter, [], "Exchanges closed because no report came in time";
    ABANDONED = "tokenweir_abandoned_total", Counter, [],
        "Requests dropped between verdict and response whose end nobody reported";
    LOG_ERRORS = "tokenweir_log_write_errors_total", Counter, [], "Records that the exchange log could not take";
    PANICS = "tokenweir_panics_total", Counter, [], "Panics caught: a bug each";
    RELOADS = "tokenweir_endpoints_reload_total", Counter, ["result"], "Readings of a changed endpoints file (ok, invalid)";
    ENDPOINTS_AGE = "tokenweir_endpoints_age_seconds", Gauge, [],
        "Time since the endpoints in use were last seen to be the file's content";
    GEN_AI_TOKENS = "gen_ai_client_token_usage", GenAiTokens,
        ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_token_type"],
        "OpenTelemetry gen_ai.client.token.usage";
    GEN_AI_FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds", GenAiFirstToken,
        ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"],
        "OpenTelemetry gen_ai.server.time_to_first_token";
    GEN_AI_PER_TOKEN = "gen_ai_server_time_per_output_token_seconds", GenAiPerToken,
        ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"],
        "OpenTelemetry gen_ai.server.time_per_output_token";
    GEN_AI_DURATION = "gen_ai_server_request_duration_seconds", GenAiDuration,
        ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"],
        "OpenTelemetry gen_ai.server.request.duration";
}

impl Kind {
    /// Upper bounds of the buckets; empty for what is not a histogram of the exporter's.
    fn buckets(self) -> &'static [f64] {
        match self {
            Self::Counter | Self::Gauge | Self::Gaps => &[],
            Self::Seconds => &[
                0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
                200.0, 300.0,
            ],
            Self::ShortSeconds => &[
                0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02,
                0.05, 0.1, 0.2, 0.5, 1.0,
            ],
            Self::Tokens => {
                &[1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0]
            }
            Self::Bytes => &[
                256.0,
                1024.0,
                4096.0,
                16_384.0,
                65_536.0,
                262_144.0,
                1_048_576.0,
                4_194_304.0,
                16_777_216.0,
                67_108_864.0,
                268_435_456.0,
            ],
            Self::GenAiTokens => &[
                1.0,
                4.0,
                16.0,
                64.0,
                256.0,
                1024.0,
                4096.0,
                16_384.0,
                65_536.0,
                262_144.0,
                1_048_576.0,
                4_194_304.0,
                16_777_216.0,
                67_108_864.0,
            ],
            Self::GenAiFirstToken => {
                &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
            }
            Self::GenAiPerToken => &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5],
            Self::GenAiDuration => {
                &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
            }
        }
    }
}

/// A builder that knows every family's buckets.
pub(super) fn builder() -> PrometheusBuilder {
    ALL.iter().fold(PrometheusBuilder::new(), |builder, family| {
        let buckets = family.kind.buckets();
        if buckets.is_empty() {
            return builder;
        }
        let matcher = Matcher::Full(family.name.to_owned());
        // The only error is an empty list.
        builder.set_buckets_for_metric(matcher, buckets).unwrap_or_else(|_| PrometheusBuilder::new())
    })
}
