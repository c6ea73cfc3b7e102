//! What an engine says: how many tokens, why it ends, and the text of each token.
//!
//! All of it follows from the prompt and the request, so the same request gives the same answer from every engine. An
//! answer is prose made of a seed, after a script where a tool has to be called.

use crate::ask::{Ask, Strings};
use crate::scheduler::Finish;
use crate::tokens;
use serde_json::Value;
use serde_json::value::RawValue;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Where a stop string is looked for at most, in tokens.
const STOP_SEARCH_MAX: u32 = 100_000;
/// The bias from which on the end token always wins.
const BIAS: f64 = 5.0;

/// A tool call that is being written.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// Whether the client named the tool; otherwise it only required one.
    pub(crate) named: bool,
    /// Where the arguments are in the script.
    pub(crate) arguments: Range<usize>,
}

/// One sequence's answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) seed: u64,
    script: String,
    pub(crate) script_ids: Arc<[u32]>,
    /// Where each token of the script ends.
    script_ends: Arc<[usize]>,
    pub(crate) call: Option<Call>,
    pub(crate) tokens: u32,
    /// Bytes of text that are shown.
    visible: usize,
    pub(crate) finish: Finish,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
}

/// What the answers of one request have in common.
pub(crate) struct Plan {
    call: Option<(String, Call)>,
    limit: u32,
    least: u32,
    natural: RangeInclusive<u32>,
    ignore_end: bool,
    end_at_once: bool,
    stops: Vec<String>,
}

impl Plan {
    /// `limit`: tokens that may be generated.
    pub(crate) fn new(ask: &Ask<'_>, limit: u32, natural: &RangeInclusive<u32>) -> Self {
        let mut stops = match &ask.stop {
            Some(Strings::One(one)) => vec![one.clone()],
            Some(Strings::Many(many)) => many.clone(),
            None => Vec::new(),
        };
        stops.extend(ask.stop_sequences.clone().unwrap_or_default());
        stops.retain(|stop| !stop.is_empty());
        let bias = ask.logit_bias.as_ref().and_then(|bias| bias.get(&tokens::IM_END.to_string()));
        Self {
            call: wanted_call(ask),
            limit: limit.max(1),
            least: ask.min_tokens.unwrap_or(0).min(limit.max(1)),
            natural: natural.clone(),
            ignore_end: ask.ignore_eos == Some(true),
            end_at_once: bias.is_some_and(|bias| *bias >= BIAS),
            stops,
        }
    }

    /// The answer number `choice` to `prompt`.
    pub(crate) fn answer(&self, prompt: &[u32], choice: u32) -> Answer {
        let seed = tokens::seed(prompt, choice);
        let (script, call) = match &self.call {
            Some((script, call)) => (script.clone(), Some(call.clone())),
            None => (String::new(), None),
        };
        let mut script_ids = Vec::new();
        tokens::encode(&script, &mut script_ids);
        let mut bytes = Vec::new();
        let script_ends = script_ids.iter().map(|&id| {
            tokens::decode_one(id, &mut bytes);
            bytes.len()
        });
        let script_ends: Arc<[usize]> = script_ends.collect();
        let (first, last) = (*self.natural.start(), (*self.natural.end()).max(*self.natural.start()));
        let drawn = first + (seed % u64::from(last - first + 1)) as u32;
        // The token that ends an answer counts, and has no text.
        let natural = if self.end_at_once {
            1
        } else if call.is_some() {
            script_ids.len() as u32 + 1
        } else {
            drawn.max(1)
        };
        let ends = !self.ignore_end && natural.max(self.least) <= self.limit;
        let mut answer = Answer {
            seed,
            script,
            script_ids: script_ids.into(),
            script_ends,
            call,
            tokens: if ends { natural.max(self.least) } else { self.limit },
            visible: usize::MAX,
            finish: if ends { Finish::Stop } else { Finish::Length },
            stop: None,
        };
        if ends {
            answer.visible = answer.position(answer.tokens - 1);
        }
        self.stop_early(&mut answer);
        answer
    }

    fn stop_early(&self, answer: &mut Answer) {
        if self.stops.is_empty() {
            return;
        }
        let text = answer.text(0..answer.tokens.min(STOP_SEARCH_MAX));
        let after = answer.position(self.least);
        let found = self.stops.iter().filter_map(|stop| {
            let at =
                text.match_indices(stop.as_str()).map(|(at, _)| at).find(|at| at + stop.len() > after)?;
            Some((at, stop))
        });
        let Some((at, stop)) = found.min_by_key(|(at, _)| *at) else { return };
        let end = at + stop.len();
        answer.tokens =
            (1..=answer.tokens).find(|&count| answer.position(count) >= end).unwrap_or(answer.tokens);
        answer.visible = at;
        answer.finish = Finish::Stop;
        answer.stop = Some(stop.clone());
    }
}

impl Answer {
    /// Bytes of text of the first `count` tokens, shown or not.
    fn position(&self, count: u32) -> usize {
        let count = count as usize;
        if count == 0 {
            return 0;
        }
        match self.script_ends.get(count - 1) {
            Some(&end) => end,
            None => self.script.len() + 4 * count.saturating_sub(self.script_ends.len()),
        }
    }

    /// Where the text of some tokens is, as far as it is shown.
    pub(crate) fn place(&self, tokens: &Range<u32>) -> Range<usize> {
        let end = self.position(tokens.end).min(self.visible);
        self.position(tokens.start).min(end)..end
    }

    /// The text of some tokens.
    pub(crate) fn text(&self, tokens: Range<u32>) -> String {
        let place = self.place(&tokens);
        let mut bytes = Vec::with_capacity(place.len());
        if place.start < self.script.len() {
            bytes.extend_from_slice(&self.script.as_bytes()[place.start..place.end.min(self.script.len())]);
        }
        let first = (self.script_ends.len() as u32).max(tokens.start);
        for index in first..tokens.end {
            bytes.extend_from_slice(tokens::piece(self.seed, index));
        }
        bytes.truncate(place.len());
        String::from_utf8(bytes)
            .unwrap_or_else(|bytes| String::from_utf8_lossy(bytes.as_bytes()).into_owned())
    }

    /// A part of the script.
    pub(crate) fn script(&self, place: Range<usize>) -> String {
        let place = place.start.min(self.script.len())..place.end.min(self.script.len());
        String::from_utf8_lossy(&self.script.as_bytes()[place]).into_owned()
    }

    /// Whether the whole tool call is written.
    pub(crate) fn called(&self) -> Option<&Call> {
        let complete = self.finish == Finish::Stop && self.stop.is_none();
        self.call.as_ref().filter(|call| complete && self.visible >= call.arguments.end)
    }

    /// The id of token `index`.
    pub(crate) fn id(&self, index: u32) -> u32 {
        let script = self.script_ids.get(index as usize).copied();
        if self.finish == Finish::Stop && self.stop.is_none() && index + 1 == self.tokens {
            return tokens::IM_END;
        }
        script.unwrap_or_else(|| tokens::pack(tokens::piece(self.seed, index)))
    }
}

/// The tool that has to be called, and the text that calls it.
fn wanted_call(ask: &Ask<'_>) -> Option<(String, Call)> {
    let tools: Vec<Value> =
        ask.tools.iter().flatten().filter_map(|tool| serde_json::from_str(tool.get()).ok()).collect();
    let choice: Value = serde_json::from_str(ask.tool_choice.map_or("null", RawValue::get)).ok()?;
    let name_of =
        |tool: &Value| tool["function"]["name"].as_str().or(tool["name"].as_str()).map(str::to_owned);
    let wanted = choice["function"]["name"].as_str().or(choice["name"].as_str());
    let required = choice == "required" || choice["type"] == "any";
    let tool = match wanted {
        Some(name) => tools.iter().find(|tool| name_of(tool).as_deref() == Some(name))?,
        None => tools.first().filter(|_| required)?,
    };
    let schema = [&tool["function"]["parameters"], &tool["parameters"], &tool["input_schema"]];
    let schema = schema.into_iter().find(|schema| !schema.is_null()).unwrap_or(&Value::Null);
    let name = name_of(tool)?;
    let head = format!("<tool_call>\n{{\"name\": {}, \"arguments\": ", Value::from(name.as_str()));
    let arguments = sample(schema, 0).to_string();
    let place = head.len()..head.len() + arguments.len();
    let script = format!("{head}{arguments}}}\n</tool_call>");
    Some((script, Call { name, named: wanted.is_some(), arguments: place }))
}

/// Deeper schemas give null.
const DEPTH_MAX: usize = 8;

/// Something that a schema allows.
fn sample(schema: &Value, depth: usize) -> Value {
    if depth > DEPTH_MAX {
        return Value::Null;
    }
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("string") => "weir".into(),
        Some("integer") => 7.into(),
        Some("number") => 0.5.into(),
        Some("boolean") => true.into(),
        Some("array") => Value::Array(vec![sample(&schema["items"], depth + 1)]),
        _ => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            Value::Object(fields.map(|(name, field)| (name.clone(), sample(field, depth + 1))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str, limit: u32) -> Answer {
        let ask: Ask<'_> = serde_json::from_str(body).expect("a body");
        Plan::new(&ask, limit, &(32..=400)).answer(&[1, 2, 3], 0)
    }

    #[test]
    fn limits() {
        let cut = answer("{}", 8);
        assert_eq!((cut.tokens, cut.finish, cut.text(0..8).len()), (8, Finish::Length, 32));
        let natural = answer("{}", 1000);
        assert_eq!(natural.finish, Finish::Stop);
        assert!((32..=400).contains(&natural.tokens));
        assert_eq!(natural.text(natural.tokens - 1..natural.tokens), "");
        assert_eq!(natural.id(natural.tokens - 1), tokens::IM_END);
        let forced = answer(r#"{"ignore_eos": true}"#, 1000);
        assert_eq!((forced.tokens, forced.finish), (1000, Finish::Length));
        let least = answer(r#"{"min_tokens": 500}"#, 1000);
        assert_eq!((least.tokens, least.finish), (500, Finish::Stop));
        let ended = answer(r#"{"logit_bias": {"2": 12}}"#, 40);
        assert_eq!((ended.tokens, ended.text(0..1).as_str()), (1, ""));
    }

    #[test]
    fn stop_strings_end_the_text_before_them() {
        let whole = answer(r#"{"ignore_eos": true}"#, 50);
        let text = whole.text(0..50);
        let stop = &text[41..45];
        let body = serde_json::json!({"ignore_eos": true, "stop": [stop]}).to_string();
        let cut = answer(&body, 50);
        let at = text.find(stop).expect("it is there");
        assert_eq!(cut.text(0..cut.tokens), text[..at]);
        assert_eq!((cut.finish, cut.stop.as_deref()), (Finish::Stop, Some(stop)));
        assert_eq!(cut.tokens as usize, (at + 4).div_ceil(4));
    }

    #[test]
    fn tools_are_called_as_their_schema_says() {
        let body = r#"{"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
            "properties":{"city":{"type":"string","enum":["Paris","Rome"]}}}}}],"tool_choice":"required"}"#;
        let called = answer(body, 100);
        let call = called.called().expect("a call");
        assert_eq!((call.name.as_str(), call.named), ("get_weather", false));
        assert_eq!(called.script(call.arguments.clone()), r#"{"city":"Paris"}"#);
        assert!(answer(body, 10).called().is_none());
    }
}
