//! The texts of a prompt, wherever an API lets them stand.
//!
//! One walk serves all APIs: strings, arrays of strings or token ids, messages with content parts,
//! tool calls and their results. It errs towards finding too much: a policy that looks for
//! secrets must not be evaded by an odd but accepted shape, so of two members with the same name
//! both are reported, and what is unknown but named like text counts as text.

use super::{BodyError, Prompt, Span, SpanKind};
use crate::json::{Kind, Scanner, Text};
use crate::limits::SPANS_MAX;

/// Collects spans. Until its owner is known, a span is [`SpanKind::Plain`].
#[derive(Default)]
pub(super) struct PromptReader {
    prompt: Prompt,
}

/// What the members of one object said about it.
#[derive(Default)]
struct Traits {
    kind: Option<SpanKind>,
    media: bool,
    uuid: bool,
}

impl PromptReader {
    pub(super) fn finish(self) -> Prompt {
        self.prompt
    }

    /// Reads one top-level value whose texts are `kind`'s unless they say otherwise.
    pub(super) fn read(&mut self, scanner: &mut Scanner<'_>, kind: SpanKind) -> Result<(), BodyError> {
        let start = self.prompt.spans.len();
        self.texts(scanner)?;
        self.claim(start, kind);
        Ok(())
    }

    /// Gives the spans from `start` on that nobody owns to `kind`.
    fn claim(&mut self, start: usize, kind: SpanKind) {
        for span in self.prompt.spans.iter_mut().skip(start) {
            if span.kind == SpanKind::Plain {
                span.kind = kind;
            }
        }
    }

    /// Any value that may hold text. Recursion ends at the scanner's nesting limit.
    fn texts(&mut self, scanner: &mut Scanner<'_>) -> Result<(), BodyError> {
        match scanner.peek()? {
            Kind::String => {
                let text = scanner.string()?;
                self.push(&text)
            }
            Kind::Array => {
                scanner.open()?;
                let mut first = true;
                while scanner.element(&mut first)? {
                    self.texts(scanner)?;
                }
                Ok(())
            }
            Kind::Object => self.object(scanner),
            Kind::Number => {
                scanner.number()?;
                self.prompt.token_ids += 1;
                Ok(())
            }
            Kind::Bool | Kind::Null => Ok(scanner.skip()?),
        }
    }

    fn push(&mut self, text: &Text<'_>) -> Result<(), BodyError> {
        if !text.is_empty() {
            self.push_range(text.range())?;
        }
        Ok(())
    }

    fn push_range(&mut self, range: std::ops::Range<usize>) -> Result<(), BodyError> {
        if self.prompt.spans.len() >= SPANS_MAX {
            let message = format!("The prompt has more than {SPANS_MAX} separate texts. Split the request.");
            return Err(BodyError { message, param: None });
        }
        self.prompt.text_bytes += range.len() as u64;
        self.prompt.spans.push(Span { range, kind: SpanKind::Plain });
        Ok(())
    }

    /// A message, an item, a content part, a tool call.
    fn object(&mut self, scanner: &mut Scanner<'_>) -> Result<(), BodyError> {
        let start = self.prompt.spans.len();
        let mut traits = Traits::default();
        scanner.open()?;
        let mut first = true;
        while let Some(key) = scanner.member(&mut first)? {
            self.member(scanner, &key, &mut traits)?;
        }
        if traits.media {
            self.prompt.media = self.prompt.media.saturating_add(1);
            if traits.uuid {
                let message = "A media part sets `uuid`, by which engines share cached media between requests. \
                               That is the gateway's to set; remove it.";
                return Err(BodyError { message: message.into(), param: None });
            }
        }
        if let Some(kind) = traits.kind {
            self.claim(start, kind);
        }
        Ok(())
    }

    fn member(
        &mut self,
        scanner: &mut Scanner<'_>,
        key: &Text<'_>,
        traits: &mut Traits,
    ) -> Result<(), BodyError> {
        let kind = scanner.peek()?;
        match &*key.name() {
            b"role" if kind == Kind::String => traits.kind = role(&scanner.string()?).or(traits.kind),
            b"type" if kind == Kind::String => {
                let text = scanner.string()?;
                let name = text.name();
                traits.media |= is_media(&name);
                traits.kind = traits.kind.or(item_kind(&name));
            }
            b"content" | b"text" | b"thinking" | b"output" | b"summary" | b"refusal" | b"reasoning"
            | b"reasoning_content" | b"documents" | b"prompt" => self.texts(scanner)?,
            b"arguments" | b"input" => {
                let start = self.prompt.spans.len();
                match kind {
                    Kind::Object | Kind::Array => {
                        let range = scanner.value()?;
                        self.push_range(range)?;
                    }
                    Kind::String => {
                        let text = scanner.string()?;
                        self.push(&text)?;
                    }
                    _ => scanner.skip()?,
                }
                self.claim(start, SpanKind::Assistant);
            }
            b"tool_calls" | b"function" | b"function_call" | b"custom" if kind != Kind::String => {
                let start = self.prompt.spans.len();
                self.texts(scanner)?;
                self.claim(start, SpanKind::Assistant);
            }
            b"source" if kind == Kind::Object => self.source(scanner)?,
            b"uuid" => {
                traits.uuid |= kind != Kind::Null;
                scanner.skip()?;
            }
            name => {
                traits.media |= kind != Kind::Null && is_media_key(name);
                scanner.skip()?;
            }
        }
        Ok(())
    }

    /// The `source` of an Anthropic image or document: text for documents of type `text` or `content`.
    fn source(&mut self, scanner: &mut Scanner<'_>) -> Result<(), BodyError> {
        scanner.open()?;
        let (mut first, mut is_text, mut data) = (true, false, None);
        while let Some(key) = scanner.member(&mut first)? {
            let kind = scanner.peek()?;
            match (&*key.name(), kind) {
                (b"type", Kind::String) => is_text = scanner.string()?.is("text"),
                (b"data", Kind::String) => data = Some(scanner.string()?),
                (b"content", _) => self.texts(scanner)?,
                _ => scanner.skip()?,
            }
        }
        match data {
            Some(text) if is_text => self.push(&text),
            _ => Ok(()),
        }
    }
}

fn role(text: &Text<'_>) -> Option<SpanKind> {
    Some(match &*text.name() {
        b"system" | b"developer" => SpanKind::System,
        b"user" => SpanKind::User,
        b"assistant" => SpanKind::Assistant,
        b"tool" | b"function" => SpanKind::Tool,
        _ => return None,
    })
}

fn item_kind(name: &[u8]) -> Option<SpanKind> {
    Some(match name {
        b"tool_result" | b"function_call_output" | b"custom_tool_call_output" | b"computer_call_output" => {
            SpanKind::Tool
        }
        b"tool_use" | b"function_call" | b"custom_tool_call" | b"thinking" | b"reasoning"
        | b"output_text" | b"refusal" => SpanKind::Assistant,
        _ => return None,
    })
}

fn is_media(part_type: &[u8]) -> bool {
    matches!(part_type, b"image" | b"document" | b"input_file") || is_media_key(part_type)
}

fn is_media_key(name: &[u8]) -> bool {
    matches!(
        name,
        b"image_url"
            | b"input_image"
            | b"image_pil"
            | b"image_embeds"
            | b"input_audio"
            | b"audio_url"
            | b"audio_embeds"
            | b"video_url"
            | b"input_video"
            | b"video_embeds"
            | b"image"
            | b"audio"
            | b"video"
            | b"file"
            | b"file_data"
            | b"file_url"
    )
}
