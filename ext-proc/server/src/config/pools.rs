//! `pools`: groups of endpoints that serve the same models.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, PickFile, defaults, pick, yaml::child};

/// Most pools.
pub const POOLS_MAX: usize = 256;

/// Most models of one pool.
pub const POOL_MODELS_MAX: usize = 256;

/// Longest pool name in bytes: it is a header value and a metric label.
pub const POOL_NAME_BYTES_MAX: usize = 63;

/// Longest model name, bytes.
pub const MODEL_NAME_BYTES_MAX: usize = 256;

/// A pool: endpoints that serve the same models.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolFile {
    /// Name of the pool: lower-case letters, digits and hyphens, at most 63. The gateway's routes match it in the header
    /// `x-tokenweir-pool`.
    pub name: String,
    /// Models that the pool serves, as clients name them. A model belongs to one pool.
    #[schemars(length(min = 1, max = 256))]
    pub models: Vec<String>,
    /// How an endpoint is chosen.
    #[serde(default = "defaults::strategy")]
    pub strategy: Strategy,
    /// What the choice of an endpoint goes by.
    #[serde(default)]
    pub pick: PickFile,
    /// How token counts are obtained.
    #[serde(default = "defaults::usage")]
    pub usage: UsageMode,
    /// What the endpoints run.
    #[serde(default = "defaults::engine")]
    pub engine: EngineKind,
}

/// How an endpoint of a pool is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The one that would have to work the least, in seconds: by its own signals, by our requests in flight there, and by
    /// how much of the prompt it has in its cache.
    LeastWork,
    /// The one that has most of the prompt in its cache.
    PrefixOnly,
    /// One after the other.
    RoundRobin,
    /// The one with the fewest requests in flight from this replica.
    LeastRequest,
    /// Any, by chance.
    Random,
}

/// How token counts of streams are obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsageMode {
    /// Ask the engine for usage in the request, and take it out again where the client did not ask.
    Inject,
    /// The engine always sends usage; requests are not edited.
    Forced,
}

/// What the endpoints of a pool run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// vLLM: usage can be had with every chunk.
    Vllm,
    /// Any other engine with OpenAI's API: usage comes at the end only.
    Openai,
}

impl EngineKind {
    /// The value of the `gen_ai_provider_name` label, and the spelling in the file.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Openai => "openai",
        }
    }
}

/// Checked pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Name, unique.
    pub name: String,
    /// Models, at least one; no model is in two pools.
    pub models: Vec<String>,
    /// How an endpoint is chosen, the strategy with it.
    pub pick: ext_proc_pick::Settings,
    /// How token counts are obtained.
    pub usage: UsageMode,
    /// What the endpoints run.
    pub engine: EngineKind,
}

/// Whether `name` can name a pool.
pub(crate) fn is_pool_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !name.is_empty()
        && name.len() <= POOL_NAME_BYTES_MAX
        && name.bytes().all(plain)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Checks pools that could be read, each with its place in the list.
pub(super) fn check(raw: &[(usize, PoolFile)], check: &mut Check<'_, '_>) -> Vec<PoolConfig> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut models: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, pool) in raw {
        let at = format!("/pools/{index}");
        let name_at = child(&at, "name");
        if !is_pool_name(&pool.name) {
            let advice = format!("use 1 to {POOL_NAME_BYTES_MAX} of a-z, 0-9 and -, with no - at either end");
            check.error(&name_at, format!("{:?} is not a pool name", pool.name), advice);
        } else if let Some(first) = names.insert(&pool.name, *index) {
            let what = format!("{} is also the name of pools[{first}]", pool.name);
            check.error(&name_at, what, "give every pool its own name");
        }
        for (place, model) in pool.models.iter().enumerate() {
            let model_at = format!("{at}/models/{place}");
            if model.is_empty() || model.len() > MODEL_NAME_BYTES_MAX || model.chars().any(char::is_control) {
                let advice = format!("use 1 to {MODEL_NAME_BYTES_MAX} bytes without control characters");
                check.error(&model_at, "is not a model name", advice);
                continue;
            }
            match models.insert(model, *index) {
                Some(first) if first == *index => {
                    check.error(&model_at, format!("{model} is listed twice"), "remove one of the two");
                }
                Some(first) => {
                    let what = format!("{model} is also in pools[{first}], and a model belongs to one pool");
                    check.error(&model_at, what, "remove it from one of the two");
                }
                None => {}
            }
        }
    }
    raw.iter().map(|(_, pool)| checked(pool)).collect()
}

fn checked(pool: &PoolFile) -> PoolConfig {
    PoolConfig {
        name: pool.name.clone(),
        models: pool.models.clone(),
        pick: pick::checked(pool.strategy, &pool.pick),
        usage: pool.usage,
        engine: pool.engine,
    }
}
