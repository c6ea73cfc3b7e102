//! The top-level members of a request: which are read, which are refused, which may not repeat.

mod options;

use std::ops::Range;

use self::options::usage_wish;
use super::prompt::PromptReader;
use super::{BodyError, Prompt, Request, Session, SpanKind, StreamOptions, UsageWish, shown};
use crate::api::Api;
use crate::json::{Kind, Scanner, Text, unsigned};
use crate::limits::{MEMBERS_MAX, MODEL_BYTES_MAX};

/// Every top-level member that is read. Each may appear once.
const KEYS: [&str; 38] = [
    "model",
    "stream",
    "stream_options",
    "messages",
    "system",
    "prompt",
    "input",
    "instructions",
    "tools",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "best_of",
    "user",
    "prompt_cache_key",
    "previous_response_id",
    "metadata",
    "safety_identifier",
    "cache_salt",
    "priority",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "documents",
    "query",
    "queries",
    "items",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
    "tokens",
    "functions",
    "suffix",
    "encoding_format",
    "background",
    "request_id",
];

/// Members of `vllm_xargs` that reach into the engine's cache and transfers.
const RESERVED_XARGS: [&str; 3] = ["kv_cache_report_mode", "kv_transfer_params", "ec_transfer_params"];

/// Encodings of vectors that are no JSON.
const RAW_FORMATS: [&str; 2] = ["bytes", "bytes_only"];

/// Reads one body.
pub(super) struct Reader<'a> {
    api: Api,
    scanner: Scanner<'a>,
    prompt: PromptReader,
    model: Option<Text<'a>>,
    stream: bool,
    stream_options: StreamOptions,
    max_tokens: Option<u64>,
    n: u32,
    tools: Option<Range<usize>>,
    session: Session<'a>,
    background: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(api: Api, bytes: &'a [u8]) -> Self {
        Self {
            api,
            scanner: Scanner::long(bytes),
            prompt: PromptReader::default(),
            model: None,
            stream: false,
            stream_options: StreamOptions::Absent,
            max_tokens: None,
            n: 1,
            tools: None,
            session: Session::default(),
            background: false,
        }
    }

    pub(super) fn request(mut self) -> Result<Request<'a>, BodyError> {
        self.scanner.check_encoding()?;
        if self.scanner.is_blank() {
            let message = "The body is empty. Send a JSON object with at least `model`.".into();
            return Err(BodyError { message, param: None });
        }
        let kind = self.scanner.peek()?;
        if kind != Kind::Object {
            let message = format!("The body must be a JSON object, but it is {}.", a(kind));
            return Err(BodyError { message, param: None });
        }
        self.scanner.open()?;
        let members_at = self.scanner.at();
        self.members()?;
        self.scanner.end()?;
        self.finish(members_at)
    }

    fn members(&mut self) -> Result<(), BodyError> {
        let (mut first, mut seen, mut count) = (true, 0u64, 0);
        while let Some(key) = self.scanner.member(&mut first)? {
            count += 1;
            if count > MEMBERS_MAX {
                let message =
                    format!("The body has more than {MEMBERS_MAX} members. Send only those the API knows.");
                return Err(BodyError { message, param: None });
            }
            let name = key.name();
            match KEYS.iter().position(|known| known.as_bytes() == &*name) {
                Some(index) => {
                    let name = KEYS.get(index).copied().unwrap_or_default();
                    let bit = 1 << index;
                    if seen & bit != 0 {
                        return Err(twice(name, name, &key));
                    }
                    seen |= bit;
                    self.member(name)?;
                }
                None => self.scanner.skip()?,
            }
        }
        Ok(())
    }

    fn member(&mut self, name: &'static str) -> Result<(), BodyError> {
        let kind = self.scanner.peek()?;
        if kind == Kind::Null && !matches!(name, "model" | "stream_options" | "request_id") {
            return Ok(self.scanner.null()?);
        }
        match name {
            "model" => self.model(kind)?,
            "stream" => self.stream = self.switch(kind)?,
            "stream_options" => self.stream_options(kind)?,
            "messages" => self.prompt.read(&mut self.scanner, SpanKind::User)?,
            "system" | "instructions" => self.prompt.read(&mut self.scanner, SpanKind::System)?,
            "input" if self.api == Api::Responses => self.prompt.read(&mut self.scanner, SpanKind::User)?,
            "prompt" if self.api == Api::Responses => self.scanner.skip()?,
            "input" | "prompt" | "documents" | "query" | "queries" | "items" | "text_1" | "text_2"
            | "data_1" | "data_2" | "tokens" | "suffix" => {
                self.prompt.read(&mut self.scanner, SpanKind::Plain)?
            }
            "tools" => self.tools = Some(self.scanner.value()?),
            "max_tokens" | "max_completion_tokens" | "max_output_tokens" => self.max_tokens(name, kind)?,
            "n" | "best_of" => self.sequences(name, kind)?,
            "user" => self.session.user = self.hint(kind)?,
            "prompt_cache_key" => self.session.prompt_cache_key = self.hint(kind)?,
            "previous_response_id" if self.api == Api::Responses => self.previous_response(kind)?,
            "previous_response_id" => self.session.previous_response_id = self.hint(kind)?,
            "safety_identifier" => self.session.safety_identifier = self.hint(kind)?,
            "metadata" if kind == Kind::Object => self.metadata()?,
            "cache_salt" | "priority" | "kv_transfer_params" | "ec_transfer_params" => {
                return Err(reserved(name, name));
            }
            // Also as null: the gateway's own would stand beside it.
            "request_id" => return Err(reserved(name, name)),
            "encoding_format" if self.api.is_metered() && !self.api.can_stream() => {
                self.encoding_format(kind)?
            }
            "background" if self.api == Api::Responses => self.background(kind)?,
            "vllm_xargs" if kind == Kind::Object => self.xargs()?,
            _ => self.scanner.skip()?,
        }
        Ok(())
    }

    fn model(&mut self, kind: Kind) -> Result<(), BodyError> {
        let wrong = |what: String| BodyError::new("model", format!("`model` {what}."));
        if kind != Kind::String {
            return Err(wrong(format!("must be a non-empty string, but it is {}", a(kind))));
        }
        let text = self.scanner.string()?;
        // An escape is at most six times as long as what it stands for.
        if text.raw().len() > 6 * MODEL_BYTES_MAX || text.decode().len() > MODEL_BYTES_MAX {
            return Err(wrong(format!(
                "is longer than {MODEL_BYTES_MAX} bytes; no served model has such a name"
            )));
        }
        if text.has_lone_surrogate() {
            return Err(wrong("holds half a surrogate pair; write the character itself in UTF-8".into()));
        }
        if text.is_empty() {
            return Err(wrong("is empty; name a model, `GET /v1/models` lists them".into()));
        }
        self.model = Some(text);
        Ok(())
    }

    fn switch(&mut self, kind: Kind) -> Result<bool, BodyError> {
        if !self.api.can_stream() {
            self.scanner.skip()?;
            return Ok(false);
        }
        if kind != Kind::Bool {
            let message =
                format!("`stream` must be true, false or null, but it is {}. {NO_COERCION}", a(kind));
            return Err(BodyError::new("stream", message));
        }
        Ok(self.scanner.bool()?)
    }

    fn max_tokens(&mut self, name: &'static str, kind: Kind) -> Result<(), BodyError> {
        let applies = match self.api {
            Api::ChatCompletions => name != "max_output_tokens",
            Api::Completions | Api::Messages => name == "max_tokens",
            Api::Responses => name == "max_output_tokens",
            _ => false,
        };
        if !applies {
            self.scanner.skip()?;
            return Ok(());
        }
        let bound = self.integer(name, kind)?;
        self.max_tokens = match (self.max_tokens, bound) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Ok(())
    }

    fn sequences(&mut self, name: &'static str, kind: Kind) -> Result<(), BodyError> {
        if !matches!(self.api, Api::ChatCompletions | Api::Completions) {
            self.scanner.skip()?;
            return Ok(());
        }
        let count = self.integer(name, kind)?.unwrap_or(1);
        self.n = self.n.max(u32::try_from(count).unwrap_or(u32::MAX));
        Ok(())
    }

    /// An integer; `None` if it is negative, which is the engine's to refuse.
    fn integer(&mut self, name: &'static str, kind: Kind) -> Result<Option<u64>, BodyError> {
        let wrong = |what: &str| {
            BodyError::new(
                name,
                format!("`{name}` must be an integer or null, but it is {what}. {NO_COERCION}"),
            )
        };
        if kind != Kind::Number {
            return Err(wrong(a(kind)));
        }
        let number = self.scanner.number()?;
        match (unsigned(number), number.strip_prefix(b"-").and_then(unsigned)) {
            (None, None) => Err(wrong("not a whole number")),
            (value, _) => Ok(value),
        }
    }

    /// A string worth grouping by; anything else says nothing.
    fn hint(&mut self, kind: Kind) -> Result<Option<Text<'a>>, BodyError> {
        if kind != Kind::String {
            self.scanner.skip()?;
            return Ok(None);
        }
        let text = self.scanner.string()?;
        Ok((!text.is_empty()).then_some(text))
    }

    /// Answers in raw bytes have no usage that could be counted.
    fn encoding_format(&mut self, kind: Kind) -> Result<(), BodyError> {
        if kind != Kind::String {
            return Ok(self.scanner.skip()?);
        }
        let text = self.scanner.string()?;
        if RAW_FORMATS.iter().any(|format| text.is(format)) {
            let message = "`encoding_format` must be \"float\" or \"base64\": an answer in raw bytes carries no token counts, and the gateway serves none without.";
            return Err(BodyError::new("encoding_format", message.into()));
        }
        Ok(())
    }

    /// The response to go on from: only the engine that made it knows it, so it decides where the request goes.
    fn previous_response(&mut self, kind: Kind) -> Result<(), BodyError> {
        const NAME: &str = "previous_response_id";
        if kind != Kind::String {
            let message = format!("`{NAME}` must be a string or null, but it is {}. {NO_COERCION}", a(kind));
            return Err(BodyError::new(NAME, message));
        }
        self.session.previous_response_id = Some(self.scanner.string()?);
        Ok(())
    }

    fn background(&mut self, kind: Kind) -> Result<(), BodyError> {
        if kind != Kind::Bool {
            let message =
                format!("`background` must be true, false or null, but it is {}. {NO_COERCION}", a(kind));
            return Err(BodyError::new("background", message));
        }
        self.background = self.scanner.bool()?;
        Ok(())
    }

    fn metadata(&mut self) -> Result<(), BodyError> {
        self.scanner.open()?;
        let mut first = true;
        while let Some(key) = self.scanner.member(&mut first)? {
            let kind = self.scanner.peek()?;
            if key.is("user_id") {
                self.session.metadata_user_id = self.hint(kind)?;
            } else {
                self.scanner.skip()?;
            }
        }
        Ok(())
    }

    fn xargs(&mut self) -> Result<(), BodyError> {
        self.scanner.open()?;
        let mut first = true;
        while let Some(key) = self.scanner.member(&mut first)? {
            let reserved_key = RESERVED_XARGS.iter().find(|reserved| key.is(reserved));
            let kind = self.scanner.peek()?;
            match reserved_key {
                Some(inner) if kind != Kind::Null => {
                    return Err(reserved("vllm_xargs", &format!("vllm_xargs.{inner}")));
                }
                _ => self.scanner.skip()?,
            }
        }
        Ok(())
    }

    fn finish(self, members_at: usize) -> Result<Request<'a>, BodyError> {
        let Some(model) = self.model else {
            let message = "`model` is missing. Name a model; `GET /v1/models` lists them.".into();
            return Err(BodyError::new("model", message));
        };
        let usage_wish = if self.stream && self.api.takes_stream_options() {
            usage_wish(&self.stream_options)?
        } else {
            UsageWish::None
        };
        let prompt: Prompt = self.prompt.finish();
        Ok(Request {
            api: self.api,
            model,
            stream: self.stream,
            usage_wish,
            max_tokens: self.max_tokens,
            n: self.n,
            prompt,
            tools: self.tools,
            session: self.session,
            background: self.background,
            members_at,
            stream_options: self.stream_options,
        })
    }
}

const NO_COERCION: &str =
    "Strings and numbers are not converted here, since engines differ in how they do it.";

const fn a(kind: Kind) -> &'static str {
    match kind {
        Kind::Object => "an object",
        Kind::Array => "an array",
        Kind::String => "a string",
        Kind::Number => "a number",
        Kind::Bool => "a boolean",
        Kind::Null => "null",
    }
}

fn twice(param: &'static str, name: &str, key: &Text<'_>) -> BodyError {
    let written = shown(key);
    let at = key.range().start.saturating_sub(1);
    BodyError::new(
        param,
        format!(
            "`{name}` appears twice, the second time as \"{written}\" at byte {at}. JSON readers differ in which one they take; send it once."
        ),
    )
}

fn reserved(param: &'static str, name: &str) -> BodyError {
    BodyError::new(param, format!("`{name}` is set by the gateway, not by clients. Remove it from the body."))
}
