//! The handles of one label set, made once and shared by all its exchanges.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Histogram};
use proto_tokenweir::v1::GapHistogram;

use super::Recorder;
use super::exact::Gaps;
use super::families as family;

/// What an exchange is counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels<'a> {
    /// Model as the client named it; one that no pool serves is counted as `other`, an empty one as `none`.
    pub model: &'a str,
    /// Pool of the verdict; empty: none was chosen.
    pub pool: &'a str,
    /// Tenant; past the cap it is counted as `other`.
    pub tenant: &'a str,
    /// `Api::as_label`, or another fixed text.
    pub api: &'static str,
}

/// Tokens of one exchange. `None`: the engine did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Prompt tokens, cached ones included.
    pub input: Option<u64>,
    /// Generated tokens.
    pub output: Option<u64>,
    /// Prompt tokens from the engine's cache.
    pub cached: Option<u64>,
}

/// The end of an exchange, as reported.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// From the request headers to the end.
    pub duration: Duration,
    /// From the request headers to the first data; `None`: none came.
    pub first_token: Option<Duration>,
    /// What was counted.
    pub tokens: Tokens,
    /// Gaps between data events; `None` for a body that is not a stream.
    pub gaps: Option<&'a GapHistogram>,
}

/// Resolved label values.
pub(super) struct Values<'a> {
    pub(super) model: &'a str,
    pub(super) pool: &'a str,
    pub(super) tenant: &'a str,
    pub(super) api: &'static str,
    pub(super) provider: &'static str,
}

/// The handles of one label set.
pub struct Series {
    recorder: Recorder,
    labels: [String; 4],
    /// By status, few a series.
    requests: Mutex<Vec<(u16, Counter)>>,
    input: Counter,
    output: Counter,
    cached: Counter,
    input_size: Histogram,
    output_size: Histogram,
    first_token: Histogram,
    end_to_end: Histogram,
    gaps: Arc<Gaps>,
    gen_ai: GenAi,
}

struct GenAi {
    input: Histogram,
    output: Histogram,
    first_token: Histogram,
    per_token: Histogram,
    duration: Histogram,
}

impl Series {
    pub(super) fn new(recorder: Recorder, values: &Values<'_>, gaps: Arc<Gaps>) -> Self {
        let Values { model, pool, tenant, api, provider } = *values;
        let count = |family| recorder.counter(family, &[model, pool, tenant]);
        let measure = |family| recorder.histogram(family, &[model, pool]);
        let operation = operation(api);
        let gen_ai = |family| recorder.histogram(family, &[operation, provider, model]);
        let usage = |kind| recorder.histogram(&family::GEN_AI_TOKENS, &[operation, provider, model, kind]);
        Self {
            input: count(&family::INPUT),
            output: count(&family::OUTPUT),
            cached: count(&family::CACHED),
            input_size: measure(&family::INPUT_SIZE),
            output_size: measure(&family::OUTPUT_SIZE),
            first_token: measure(&family::FIRST_TOKEN),
            end_to_end: measure(&family::END_TO_END),
            gen_ai: GenAi {
                input: usage("input"),
                output: usage("output"),
                first_token: gen_ai(&family::GEN_AI_FIRST_TOKEN),
                per_token: gen_ai(&family::GEN_AI_PER_TOKEN),
                duration: gen_ai(&family::GEN_AI_DURATION),
            },
            requests: Mutex::new(Vec::new()),
            labels: [model, pool, tenant, api].map(str::to_owned),
            gaps,
            recorder,
        }
    }

    /// The client got `status` (0: the exchange ended without any).
    pub fn answered(&self, status: u16) {
        // What is no status must not become a label.
        let status = if (100..600).contains(&status) { status } else { 0 };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counter)) = requests.iter().find(|(seen, _)| *seen == status) {
            counter.increment(1);
            return;
        }
        let [model, pool, tenant, api] = &self.labels;
        let (code, class) = (status.to_string(), class(status));
        let counter = self.recorder.counter(&family::REQUESTS, &[model, pool, tenant, api, &code, class]);
        counter.increment(1);
        requests.push((status, counter));
    }

    /// The first data came `after` the request headers.
    pub fn first_token(&self, after: Duration) {
        self.first_token.record(after.as_secs_f64());
        self.gen_ai.first_token.record(after.as_secs_f64());
    }

    /// The exchange ended. Its first token is counted by [`Series::first_token`], not here.
    pub fn ended(&self, ended: &Ended<'_>) {
        let Tokens { input, output, cached } = ended.tokens;
        if let Some(input) = input {
            self.input.increment(input);
            self.input_size.record(tokens(input));
            self.gen_ai.input.record(tokens(input));
        }
        if let Some(output) = output {
            self.output.increment(output);
            self.output_size.record(tokens(output));
            self.gen_ai.output.record(tokens(output));
        }
        if let Some(cached) = cached {
            self.cached.increment(cached);
        }
        self.end_to_end.record(ended.duration.as_secs_f64());
        self.gen_ai.duration.record(ended.duration.as_secs_f64());
        if let Some(gaps) = ended.gaps {
            self.gaps.add(gaps);
            let rest = ended.first_token.map(|first| ended.duration.saturating_sub(first));
            if let (Some(rest), Some(output @ 2..)) = (rest, output) {
                self.gen_ai.per_token.record(rest.as_secs_f64() / tokens(output.saturating_sub(1)));
            }
        }
    }
}

/// A count as a sample. Exact up to 2^32, far beyond any context.
fn tokens(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn class(status: u16) -> &'static str {
    match status {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        500..600 => "5xx",
        _ => "none",
    }
}

/// OpenTelemetry's name of the operation behind an API; our own where it has none.
fn operation(api: &'static str) -> &'static str {
    match api {
        "chat_completions" | "messages" | "responses" => "chat",
        "completions" => "text_completion",
        other => other,
    }
}
