//! One accepted request: what every API's writer needs to know of it.

use crate::answer::{Answer, Plan};
use crate::ask::{Ask, Logprobs};
use crate::config::EngineConfig;
use crate::flow::Progress;
use crate::prompt;
use crate::refusal::Refusal;
use crate::scheduler::Job;
use crate::tokens;
use std::fmt::Write;
use std::sync::Arc;

/// The API of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
}

impl Api {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }

    pub(crate) fn refusal(self, refusal: &Refusal) -> String {
        if self == Self::Messages { refusal.anthropic_json() } else { refusal.json() }
    }
}

/// Sequences and prompts that one request may have.
const SEQUENCES_MAX: usize = 1024;

/// What a request comes down to.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) api: Api,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) streamed: bool,
    pub(crate) prompts: Vec<Arc<[u32]>>,
    /// `n` for each prompt, one prompt after the other.
    pub(crate) answers: Vec<Answer>,
    pub(crate) n: usize,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) token_ids: bool,
    /// Alternatives beside each token; none: no logprobs.
    pub(crate) logprobs: Option<u32>,
    /// The prompts' texts, to be given back first.
    pub(crate) echo: Option<Vec<String>>,
    /// Members of the body of a response that are given back as they came.
    pub(crate) echoed: Echoed,
    pub(crate) details: bool,
    pub(crate) metrics: bool,
    priority: i64,
    lora: Option<Arc<str>>,
    salt: u64,
    block_tokens: u32,
    caching: bool,
}

/// Members of a response's request, as JSON.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echoed {
    pub(crate) instructions: String,
    pub(crate) metadata: String,
    pub(crate) tools: String,
    pub(crate) tool_choice: String,
    pub(crate) previous: String,
    pub(crate) temperature: f64,
    pub(crate) top_p: f64,
    pub(crate) background: bool,
}

/// What usage says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) generated: u64,
    pub(crate) cached: u64,
    /// Prompt tokens of full blocks that were not cached before.
    pub(crate) created: u64,
}

/// A string as JSON.
pub(crate) fn quote(text: &str, out: &mut String) {
    out.push('"');
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        out.push_str(text);
    } else {
        let quoted = serde_json::Value::from(text).to_string();
        out.push_str(&quoted[1..quoted.len() - 1]);
    }
    out.push('"');
}

pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    quote(text, &mut out);
    out
}

/// The prompts of a request, as tokens.
pub(crate) fn prompts(
    api: Api,
    ask: &Ask<'_>,
    history: &[(String, String)],
) -> Result<Vec<Vec<u32>>, Refusal> {
    let missing = |field: &str| {
        let given = usize::from(ask.model.is_some()) + usize::from(ask.max_tokens.is_some());
        Err(Refusal::missing(field, given))
    };
    match api {
        Api::Chat | Api::Messages if ask.messages.is_none() => missing("messages"),
        Api::Chat | Api::Messages => Ok(vec![prompt::of_messages(ask)]),
        Api::Responses if ask.input.is_none() => missing("input"),
        Api::Responses => Ok(vec![prompt::of_input(ask, history)]),
        Api::Completions => {
            ask.prompt.as_ref().map_or_else(|| missing("prompt"), |all| Ok(prompt::of_prompts(all)))
        }
    }
}

impl Turn {
    /// Checks a request as vLLM does, and plans its answers.
    pub(crate) fn plan(
        api: Api,
        ask: &Ask<'_>,
        config: &EngineConfig,
        history: &[(String, String)],
        priority: Option<i64>,
    ) -> Result<Self, Refusal> {
        let streamed = ask.stream == Some(true);
        if ask.stream_options.is_some() && !streamed {
            return Err(Refusal::stream_options());
        }
        let prompts = prompts(api, ask, history)?;
        let model = ask.model.as_ref().map_or(config.model.as_str(), |model| &model.0);
        let lora = config.loras.iter().find(|lora| *lora == model).map(|lora| Arc::from(lora.as_str()));
        if model != config.model && lora.is_none() {
            let served: Vec<&str> =
                std::iter::once(&config.model).chain(&config.loras).map(String::as_str).collect();
            return Err(Refusal::unknown_model(model, &served));
        }
        let priority = priority.or(ask.priority).unwrap_or(0);
        if priority != 0 && !config.priority {
            let message = "Got priority but the scheduling policy is not `priority`. (parameter=priority)";
            return Err(Refusal::bad(message.to_owned(), Some("priority")));
        }
        let limit = config.model_len();
        let max_tokens = max_tokens(ask, limit)?;
        let n = ask.n.unwrap_or(1).max(1) as usize;
        if n * prompts.len() > SEQUENCES_MAX {
            return Err(Refusal::bad(format!("at most {SEQUENCES_MAX} sequences"), Some("n")));
        }
        let mut answers = Vec::with_capacity(n * prompts.len());
        for prompt in &prompts {
            let Some(room) = limit.checked_sub(prompt.len() as u32).filter(|room| *room > 0) else {
                return Err(Refusal::too_long(limit));
            };
            if let Some(wanted) = max_tokens.filter(|wanted| *wanted > room) {
                return Err(Refusal::too_much(limit, wanted, prompt.len()));
            }
            let plan = Plan::new(ask, max_tokens.unwrap_or(room), &config.answer_tokens);
            answers.extend((0..n).map(|choice| plan.answer(prompt, choice as u32)));
        }
        let options = ask.stream_options.unwrap_or_default();
        let include_usage = options.include_usage == Some(true) || config.force_include_usage;
        let continuous = options.continuous_usage_stats == Some(true) || config.force_include_usage;
        let salt = ask.cache_salt.as_deref().unwrap_or_default().bytes();
        Ok(Self {
            api,
            id: String::new(),
            created: crate::state::seconds() as u64,
            model: model.to_owned(),
            streamed,
            answers,
            n,
            max_tokens,
            include_usage,
            continuous_usage: include_usage && continuous,
            token_ids: ask.return_token_ids == Some(true),
            logprobs: match ask.logprobs {
                Some(Logprobs::Flag(true)) => Some(ask.top_logprobs.unwrap_or(0)),
                Some(Logprobs::Count(count)) => Some(count),
                _ => None,
            },
            echo: (ask.echo == Some(true))
                .then(|| prompts.iter().map(|prompt| tokens::decode(prompt)).collect()),
            echoed: if api == Api::Responses { Echoed::of(ask) } else { Echoed::default() },
            prompts: prompts.into_iter().map(Arc::from).collect(),
            details: config.prompt_tokens_details,
            metrics: config.request_metrics,
            priority,
            lora,
            salt: salt.fold(0, |hash, byte| tokens::mix(hash, u64::from(byte))),
            block_tokens: config.block_tokens.max(1),
            caching: config.prefix_caching,
        })
    }

    /// What the scheduler gets: one job for each sequence.
    pub(crate) fn jobs(&self) -> Vec<Job> {
        let job = |(at, answer): (usize, &Answer)| Job {
            prompt: Arc::clone(&self.prompts[at / self.n]),
            output: answer.tokens,
            seed: answer.seed,
            script: Arc::clone(&answer.script_ids),
            finish: answer.finish,
            priority: self.priority,
            lora: self.lora.clone(),
            salt: self.salt,
            group: if at % self.n == 0 { self.n as u32 } else { 0 },
            max_tokens: self.max_tokens,
        };
        self.answers.iter().enumerate().map(job).collect()
    }

    /// Usage of the whole request.
    pub(crate) fn usage(&self, progress: &[Progress]) -> Usage {
        let mut usage = Usage::default();
        for (at, prompt) in self.prompts.iter().enumerate() {
            let cached = progress.get(at * self.n).map_or(0, |first| u64::from(first.cached));
            let size = u64::from(self.block_tokens);
            usage.prompt += prompt.len() as u64;
            usage.cached += cached;
            if self.caching {
                usage.created += (prompt.len() as u64 / size * size).saturating_sub(cached);
            }
        }
        usage.generated = progress.iter().map(|one| u64::from(one.generated)).sum();
        usage
    }

    /// Prompt tokens of the request.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.len() as u64).sum()
    }

    /// `"metrics":…` of one request, as far as they are asked for.
    pub(crate) fn metrics(&self, progress: &[Progress]) -> Option<String> {
        let first = progress.first().filter(|_| self.metrics)?;
        let ms = |ns: u64| ns as f64 / 1e6;
        let (generated, time) = (f64::from(first.generated), first.timing);
        let decode = ms(time.last - time.first);
        let gaps = (generated - 1.0).max(1.0);
        let rate =
            if time.last == time.queued { 0.0 } else { generated * 1000.0 / ms(time.last - time.queued) };
        Some(format!(
            r#"{{"time_to_first_token_ms":{:?},"generation_time_ms":{decode:?},"queue_time_ms":{:?},"mean_itl_ms":{:?},"tokens_per_second":{rate:?}"#,
            ms(time.first),
            ms(time.queued),
            decode / gaps,
        ))
    }
}

fn max_tokens(ask: &Ask<'_>, limit: u32) -> Result<Option<u32>, Refusal> {
    let fields = [
        ("max_completion_tokens", ask.max_completion_tokens),
        ("max_output_tokens", ask.max_output_tokens),
        ("max_tokens", ask.max_tokens),
    ];
    let Some((field, wanted)) = fields.into_iter().find_map(|(field, value)| Some((field, value?))) else {
        return Ok(None);
    };
    match u32::try_from(wanted) {
        Ok(count) if count >= 1 && count <= limit => Ok(Some(count)),
        _ => Err(Refusal::max_tokens(field, wanted, limit)),
    }
}

impl Echoed {
    fn of(ask: &Ask<'_>) -> Self {
        let tools = ask.tools.iter().flatten().enumerate().fold(String::from("["), |mut list, (at, tool)| {
            let _ = write!(list, "{}{}", if at == 0 { "" } else { "," }, tool.get());
            list
        });
        let none = ask.tools.as_ref().is_none_or(Vec::is_empty);
        let choice =
            ask.tool_choice.map_or(if none { "\"none\"" } else { "\"auto\"" }, |choice| choice.get());
        Self {
            instructions: ask.instructions.as_ref().map_or("null".to_owned(), |text| quoted(&text.0)),
            metadata: ask.metadata.map_or("null", |metadata| metadata.get()).to_owned(),
            tools: tools + "]",
            tool_choice: choice.to_owned(),
            previous: ask.previous_response_id.as_deref().map_or("null".to_owned(), quoted),
            temperature: ask.temperature.unwrap_or(1.0),
            top_p: ask.top_p.unwrap_or(1.0),
            background: ask.background == Some(true),
        }
    }
}
