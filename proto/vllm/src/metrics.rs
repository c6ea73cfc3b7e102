//! The text of `GET /metrics` → one [`Page`].
//!
//! One pass, and no map of lines: a line's name is looked up in a fixed table, and all others (buckets, help, Python's
//! and the HTTP server's own) cost only the search for their end. Decided here: what a line means, under its present and
//! earlier names; that the order of lines carries no meaning; that an unfinished last line isn't believed; and that a
//! text without any line of vLLM's is an error rather than an engine without load.

pub mod limits;
mod line;
mod names;
mod stats;

use std::borrow::Cow;

use memchr::memchr;

use line::{read_rest, split_name};
pub use names::Field;
use names::Rule;
pub use stats::{CacheConfig, EngineStats, Lora, Page, Process, Rejected};

/// Why a text is no metrics page of vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Longer than [`limits::PAGE_BYTES_MAX`].
    #[error("the page has {0} bytes, more than the {max} that are read: is this the engine's own /metrics?", max = limits::PAGE_BYTES_MAX)]
    TooLarge(usize),
    /// Not one line begins with `vllm:`.
    #[error(
        "{0}, not one line begins with `vllm:`: is this address a vLLM server's, and is its /metrics on?"
    )]
    NotMetrics(Seen),
}

/// What a text looks like that has nothing of vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing at all.
    Nothing,
    /// HTML.
    Html,
    /// JSON.
    Json,
    /// Metrics of something else.
    OtherMetrics,
    /// Anything else.
    Other,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "the page is empty",
            Self::Html => "the page is HTML",
            Self::Json => "the page is JSON",
            Self::OtherMetrics => "the page has metrics of something else",
            Self::Other => "the page is no metrics page",
        })
    }
}

/// Reads a page.
///
/// # Errors
/// [`Unreadable`]: too long, or nothing of vLLM's in it.
pub fn read(page: &[u8]) -> Result<Page, Unreadable> {
    if page.len() > limits::PAGE_BYTES_MAX {
        return Err(Unreadable::TooLarge(page.len()));
    }
    let mut reader = Reader::new();
    let mut rest = page;
    while let Some((line, after)) = memchr(b'\n', rest).and_then(|end| rest.split_at_checked(end)) {
        rest = after.get(1..).unwrap_or_default();
        if line.starts_with(b"# EOF") {
            rest = &[];
            break;
        }
        reader.line(line);
    }
    reader.page.cut = !matches!(rest.trim_ascii(), b"" | b"# EOF");
    if reader.ours == 0 {
        return Err(Unreadable::NotMetrics(look(page)));
    }
    Ok(reader.finish())
}

fn look(page: &[u8]) -> Seen {
    let text = page.trim_ascii();
    let begins = |with: &[u8]| text.get(..with.len()).is_some_and(|head| head.eq_ignore_ascii_case(with));
    match text.first() {
        None => Seen::Nothing,
        Some(b'{' | b'[') => Seen::Json,
        _ if begins(b"<!doctype") || begins(b"<html") => Seen::Html,
        _ if begins(b"# HELP") || begins(b"# TYPE") || begins(b"python_") || begins(b"process_") => {
            Seen::OtherMetrics
        }
        _ => Seen::Other,
    }
}

struct Reader {
    page: Page,
    /// Lines of vLLM's that are well-formed.
    ours: usize,
    /// Where the engine of the line before is: lines of one engine stand together.
    last: usize,
    lora_at: f64,
}

impl Reader {
    fn new() -> Self {
        let page = Page {
            engines: Vec::new(),
            caches: Vec::new(),
            lora: None,
            rejected: Rejected::default(),
            process: Process::default(),
            flaws: 0,
            left_out: 0,
            cut: false,
        };
        Self { page, ours: 0, last: 0, lora_at: f64::NEG_INFINITY }
    }

    fn line(&mut self, line: &[u8]) {
        let line = line.trim_ascii_start();
        let read = match line.strip_prefix(b"vllm:") {
            Some(line) => self.vllm(line),
            None if line.starts_with(b"pr") || line.starts_with(b"py") => {
                self.process(line);
                return;
            }
            None => return,
        };
        match read {
            Some(()) => self.ours += 1,
            None => self.page.flaws = self.page.flaws.saturating_add(1),
        }
    }

    /// `None`: a flaw.
    fn vllm(&mut self, line: &[u8]) -> Option<()> {
        let (name, rest) = split_name(line)?;
        if line.len() > limits::LINE_BYTES_MAX {
            return None;
        }
        match names::rule(name) {
            // Most lines; what they say isn't used, so how they are formed doesn't matter either.
            None => Some(()),
            Some(Rule::Is(field)) => self.sample(rest, "", |_| Some(*field), true),
            Some(Rule::Was(field)) => self.sample(rest, "", |_| Some(*field), false),
            Some(Rule::By(label, known, other)) => {
                let find = |value: &[u8]| {
                    let found = known.iter().find(|(text, _)| text.as_bytes() == value);
                    found.map(|(_, field)| *field).or(*other)
                };
                self.sample(rest, label, find, true)
            }
            Some(Rule::CacheConfig) => self.cache(rest),
            Some(Rule::Lora) => self.lora(rest),
            Some(Rule::Rejected) => self.rejected(rest),
        }
    }

    /// One number of an engine; the value of the label `by` decides which.
    fn sample(
        &mut self,
        rest: &[u8],
        by: &str,
        field: impl Fn(&[u8]) -> Option<Field>,
        current: bool,
    ) -> Option<()> {
        let (mut engine, mut model, mut value_of) = (Cow::default(), Cow::default(), Cow::default());
        let value = read_rest(rest, |label| match label.name {
            b"engine" => engine = label.value(),
            b"model_name" => model = label.value(),
            name if name == by.as_bytes() => value_of = label.value(),
            _ => {}
        })?;
        // A state this reader doesn't know: nothing to set, and nothing wrong.
        let Some(field) = field(&value_of) else { return Some(()) };
        if let Some(stats) = self.engine(&engine, &model)? {
            stats.set(field, value, current);
        }
        Some(())
    }

    /// `None`: a label that can't be a name; `Some(None)`: one engine too many.
    fn engine(&mut self, engine: &[u8], model: &[u8]) -> Option<Option<&mut EngineStats>> {
        let is = |stats: &EngineStats| stats.engine.as_bytes() == engine && stats.model.as_bytes() == model;
        if !self.page.engines.get(self.last).is_some_and(is) {
            self.last = match self.page.engines.iter().position(is) {
                Some(at) => at,
                None if self.page.engines.len() < limits::ENGINES_MAX => {
                    self.page.engines.push(EngineStats::new(kept(engine)?, kept(model)?));
                    self.page.engines.len() - 1
                }
                None => {
                    self.page.left_out = self.page.left_out.saturating_add(1);
                    return Some(None);
                }
            };
        }
        Some(self.page.engines.get_mut(self.last))
    }

    fn cache(&mut self, rest: &[u8]) -> Option<()> {
        let mut cache = CacheConfig::default();
        let mut named = true;
        read_rest(rest, |label| {
            let value = label.value();
            match label.name {
                b"engine" => match kept(&value) {
                    Some(engine) => cache.engine = engine,
                    None => named = false,
                },
                b"block_size" => cache.block_size = whole(&value),
                b"num_gpu_blocks" => cache.num_gpu_blocks = whole(&value),
                b"kv_cache_size_tokens" => cache.kv_cache_size_tokens = whole(&value),
                b"hash_block_size" => cache.hash_block_size = whole(&value),
                b"enable_prefix_caching" => cache.prefix_caching = truth(&value),
                _ => {}
            }
        })?;
        if !named {
            return None;
        }
        let full = self.page.caches.len() >= limits::ENGINES_MAX;
        match self.page.caches.iter_mut().find(|known| known.engine == cache.engine) {
            // Twice the same series: the larger, so that order carries no meaning.
            Some(known) => *known = cache.max(std::mem::take(known)),
            None if !full => self.page.caches.push(cache),
            None => self.page.left_out = self.page.left_out.saturating_add(1),
        }
        Some(())
    }

    fn lora(&mut self, rest: &[u8]) -> Option<()> {
        let mut lora = Lora { max: None, running: Vec::new(), waiting: Vec::new() };
        let at = read_rest(rest, |label| match label.name {
            b"max_lora" => lora.max = whole(&label.value()),
            b"running_lora_adapters" => lora.running = adapters(&label.value()),
            b"waiting_lora_adapters" => lora.waiting = adapters(&label.value()),
            _ => {}
        })?;
        if at.is_nan() {
            return None;
        }
        let key = |lora: &Lora| (lora.running.clone(), lora.waiting.clone(), lora.max);
        let newer = match (&self.page.lora, at.total_cmp(&self.lora_at)) {
            (None, _) => true,
            (Some(known), std::cmp::Ordering::Equal) => key(&lora) > key(known),
            (Some(_), order) => order.is_gt(),
        };
        if newer {
            self.page.lora = Some(lora);
            self.lora_at = at;
        }
        Some(())
    }

    fn rejected(&mut self, rest: &[u8]) -> Option<()> {
        let mut reason = Cow::default();
        let value = read_rest(rest, |label| {
            if label.name == b"reason" {
                reason = label.value();
            }
        })?;
        let rejected = &mut self.page.rejected;
        let slot = match reason.as_ref() {
            b"max_num_queued_reqs" => &mut rejected.queued_requests,
            b"max_num_queued_tokens" => &mut rejected.queued_tokens,
            _ => &mut rejected.other,
        };
        // One server may serve several model names: they add up.
        *slot = Some(slot.unwrap_or_default() + value);
        Some(())
    }

    fn process(&mut self, line: &[u8]) {
        let Some((name, rest)) = split_name(line) else { return };
        let process = &mut self.page.process;
        let (slot, adds) = match name {
            b"process_start_time_seconds" => (&mut process.start_seconds, false),
            b"process_cpu_seconds_total" => (&mut process.cpu_seconds, false),
            b"python_gc_collections_total" => (&mut process.collections, true),
            _ => return,
        };
        let Some(value) = read_rest(rest, |_| {}) else { return };
        *slot = Some(match *slot {
            Some(known) if adds => known + value,
            Some(known) => known.max(value),
            None => value,
        });
    }

    fn finish(mut self) -> Page {
        // Shorter labels first puts rank 10 behind rank 9.
        self.page.engines.sort_by(|a, b| {
            (a.engine.len(), &a.engine, &a.model).cmp(&(b.engine.len(), &b.engine, &b.model))
        });
        self.page.caches.sort_by(|a, b| (a.engine.len(), &a.engine).cmp(&(b.engine.len(), &b.engine)));
        self.page
    }
}

/// A label that is kept as a name. `None`: too long, or no text.
fn kept(value: &[u8]) -> Option<Box<str>> {
    let short = value.len() <= limits::NAME_BYTES_MAX;
    std::str::from_utf8(value).ok().filter(|_| short).map(Into::into)
}

/// A whole number in a label; vLLM writes `None` for what isn't set.
fn whole(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn truth(value: &[u8]) -> Option<bool> {
    match value {
        b"True" | b"true" => Some(true),
        b"False" | b"false" => Some(false),
        _ => None,
    }
}

fn adapters(list: &[u8]) -> Vec<Box<str>> {
    let names = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|name| !name.is_empty());
    let mut names: Vec<Box<str>> = names.filter_map(kept).take(limits::ADAPTERS_MAX).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests;
