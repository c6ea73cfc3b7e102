//! Request bodies of all four APIs, as one set of fields. Prompt text is borrowed from the body.

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

/// A string, borrowed where it has no escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
            fn visit_string<E: Error>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }
        deserializer.deserialize_str(Strings)
    }
}

/// A message's content: the texts of its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content<'a>(pub(crate) Vec<Text<'a>>);

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
    #[serde(borrow, default)]
    content: Option<Content<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Contents;
        impl<'de> Visitor<'de> for Contents {
            type Value = Content<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of parts")
            }
            fn visit_unit<E: Error>(self) -> Result<Content<'de>, E> {
                Ok(Content::default())
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Content<'de>, E> {
                Ok(Content(vec![Text(Cow::Borrowed(text))]))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Content<'de>, E> {
                Ok(Content(vec![Text(Cow::Owned(text.to_owned()))]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content<'de>, A::Error> {
                let mut texts = Vec::new();
                while let Some(part) = parts.next_element::<Part<'de>>()? {
                    texts.extend(part.text);
                    texts.extend(part.content.into_iter().flat_map(|content| content.0));
                }
                Ok(Content(texts))
            }
        }
        deserializer.deserialize_any(Contents)
    }
}

/// One message, or one input item of a response.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow, default)]
    pub(crate) role: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(crate) content: Content<'a>,
    #[serde(borrow, default)]
    pub(crate) output: Option<Content<'a>>,
    #[serde(borrow, default)]
    pub(crate) tool_calls: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) arguments: Option<Text<'a>>,
}

/// Prompts of a completion.
#[derive(Debug)]
pub(crate) enum Prompts<'a> {
    Texts(Vec<Text<'a>>),
    Ids(Vec<Vec<u32>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Prompts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Any<'a> {
            #[serde(borrow)]
            One(Text<'a>),
            #[serde(borrow)]
            Many(Vec<Text<'a>>),
            Ids(Vec<u32>),
            Lists(Vec<Vec<u32>>),
        }
        Ok(match Any::deserialize(deserializer)? {
            Any::One(text) => Prompts::Texts(vec![text]),
            Any::Many(texts) => Prompts::Texts(texts),
            Any::Ids(ids) => Prompts::Ids(vec![ids]),
            Any::Lists(lists) => Prompts::Ids(lists),
        })
    }
}

/// The input of a response.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Input<'a> {
    #[serde(borrow)]
    Text(Text<'a>),
    #[serde(borrow)]
    Items(Vec<Message<'a>>),
}

/// `logprobs` is a flag of chats and a number of completions.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Logprobs {
    Flag(bool),
    Count(u32),
}

/// One string or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Strings {
    One(String),
    Many(Vec<String>),
}

/// `stream_options`
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
    pub(crate) continuous_usage_stats: Option<bool>,
}

/// A body. What an API doesn't have is simply not there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ask<'a> {
    #[serde(borrow)]
    pub(crate) model: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) messages: Option<Vec<Message<'a>>>,
    #[serde(borrow)]
    pub(crate) prompt: Option<Prompts<'a>>,
    #[serde(borrow)]
    pub(crate) input: Option<Input<'a>>,
    #[serde(borrow)]
    pub(crate) system: Option<Content<'a>>,
    #[serde(borrow)]
    pub(crate) instructions: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) tools: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    pub(crate) tool_choice: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) metadata: Option<&'a RawValue>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) max_tokens: Option<i64>,
    pub(crate) max_completion_tokens: Option<i64>,
    pub(crate) max_output_tokens: Option<i64>,
    pub(crate) min_tokens: Option<u32>,
    pub(crate) n: Option<u32>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) stop: Option<Strings>,
    pub(crate) stop_sequences: Option<Vec<String>>,
    pub(crate) logit_bias: Option<HashMap<String, f64>>,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) top_logprobs: Option<u32>,
    pub(crate) echo: Option<bool>,
    pub(crate) return_token_ids: Option<bool>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) priority: Option<i64>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) background: Option<bool>,
    pub(crate) store: Option<bool>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) tokens: Option<Vec<u32>>,
    pub(crate) return_token_strs: Option<bool>,
}
