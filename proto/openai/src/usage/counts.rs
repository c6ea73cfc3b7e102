//! The usage object as engines write it.

use super::Usage;
use crate::json::{Kind, Scanner, Step, unsigned};
use crate::limits::COUNT_MAX;

/// The counts of one usage object, under all the names they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    total_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation: Option<u64>,
    cache_read: Option<u64>,
    cached: Option<u64>,
    cache_write: Option<u64>,
    reasoning: Option<u64>,
    odd: bool,
}

impl Counts {
    /// Reads the object that the scanner stands before; `None` for any other value. Counts that
    /// aren't unsigned integers of at most [`COUNT_MAX`] are unknown.
    pub(crate) fn read(scanner: &mut Scanner<'_>) -> Step<Option<Self>> {
        if scanner.peek()? != Kind::Object {
            scanner.skip()?;
            return Ok(None);
        }
        let mut counts = Self::default();
        counts.members(scanner, 0)?;
        Ok(Some(counts))
    }

    fn members(&mut self, scanner: &mut Scanner<'_>, level: u8) -> Step<()> {
        scanner.open()?;
        let mut first = true;
        while let Some(key) = scanner.member(&mut first)? {
            let kind = scanner.peek()?;
            let name = key.name();
            if level == 0
                && kind == Kind::Object
                && matches!(
                    &*name,
                    b"prompt_tokens_details"
                        | b"input_tokens_details"
                        | b"completion_tokens_details"
                        | b"output_tokens_details"
                )
            {
                self.members(scanner, 1)?;
                continue;
            }
            let value = if kind == Kind::Number { unsigned(scanner.number()?) } else { None };
            if kind != Kind::Number {
                scanner.skip()?;
            }
            let slot = match (level, &*name) {
                (0, b"prompt_tokens") => &mut self.prompt_tokens,
                (0, b"completion_tokens") => &mut self.completion_tokens,
                (0, b"total_tokens") => &mut self.total_tokens,
                (0, b"input_tokens") => &mut self.input_tokens,
                (0, b"output_tokens") => &mut self.output_tokens,
                (0, b"cache_creation_input_tokens") => &mut self.cache_creation,
                (0, b"cache_read_input_tokens") => &mut self.cache_read,
                (1, b"cached_tokens") => &mut self.cached,
                (1, b"created_cache_tokens" | b"cache_write_tokens") => &mut self.cache_write,
                (1, b"reasoning_tokens") => &mut self.reasoning,
                _ => continue,
            };
            *slot = value.filter(|count| *count <= COUNT_MAX);
            self.odd |= slot.is_none() && kind != Kind::Null;
        }
        Ok(())
    }

    /// The same counts but for two, which change with every event.
    pub(crate) const fn with(mut self, completion_tokens: u64, total_tokens: u64) -> Self {
        self.completion_tokens = Some(completion_tokens);
        self.total_tokens = Some(total_tokens);
        self
    }

    /// Whether exactly these two are among the counts.
    pub(crate) fn has(&self, completion_tokens: u64, total_tokens: u64) -> bool {
        self.completion_tokens == Some(completion_tokens) && self.total_tokens == Some(total_tokens)
    }

    /// Whether a count was given that is none.
    pub(crate) const fn is_odd(&self) -> bool {
        self.odd
    }

    pub(crate) const fn has_output(&self) -> bool {
        self.output_tokens.is_some() || self.completion_tokens.is_some()
    }

    /// As OpenAI means them: the prompt count includes what came from a cache.
    pub(crate) fn openai(&self) -> Usage {
        let output = self.completion_tokens.or(self.output_tokens);
        let prompt = self.prompt_tokens.or(self.input_tokens);
        // Embeddings and scores generate nothing, so their total is the input.
        let input = prompt.or(if output.is_none() { self.total_tokens } else { None });
        Usage { input, cached: self.cached, cache_write: self.cache_write, output, reasoning: self.reasoning }
    }

    /// Takes over what a newer Anthropic usage object says. Its input count excludes both caches,
    /// and one with `input_tokens` replaces the whole input group: engines first send the whole
    /// prompt as `input_tokens`, then split it, so a maximum would count the cached part twice.
    pub(crate) fn anthropic_into(&self, usage: &mut Usage) {
        if let Some(fresh) = self.input_tokens {
            let caches = self.cache_creation.unwrap_or(0).saturating_add(self.cache_read.unwrap_or(0));
            usage.input = Some(fresh.saturating_add(caches));
            usage.cached = self.cache_read;
            usage.cache_write = self.cache_creation;
        }
        usage.output = usage.output.max(self.output_tokens);
        usage.reasoning = usage.reasoning.max(self.reasoning);
    }
}
