//! Which API a request belongs to, decided from method and path alone.
//!
//! The list is an allow-list: engines serve much more than a gateway may expose (`/sleep`,
//! `/collective_rpc`, `/metrics`, …), so what is not named here is [`Route::Unknown`].

use std::fmt;

use crate::limits::RESPONSE_ID_BYTES_MAX;

/// An API whose requests go to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Api {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/responses/{id}` and its `/cancel`: a response that an engine made before
    StoredResponse,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/messages` (Anthropic)
    Messages,
    /// `/v1/messages/count_tokens` (Anthropic)
    CountTokens,
    /// `/tokenize` (vLLM)
    Tokenize,
    /// `/detokenize` (vLLM)
    Detokenize,
    /// `/v1/rerank`, `/v2/rerank`, `/rerank`
    Rerank,
    /// `/v1/score`, `/score`
    Score,
}

/// The shape of errors and usage numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI, and everything that imitates it.
    OpenAi,
    /// Anthropic.
    Anthropic,
}

impl Api {
    /// Every API, in declaration order.
    pub const ALL: [Self; 11] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Responses,
        Self::StoredResponse,
        Self::Embeddings,
        Self::Messages,
        Self::CountTokens,
        Self::Tokenize,
        Self::Detokenize,
        Self::Rerank,
        Self::Score,
    ];

    /// The name used in metrics, records and plans.
    #[must_use]
    pub const fn as_label(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::StoredResponse => "stored_response",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::Rerank => "rerank",
            Self::Score => "score",
        }
    }

    /// The API that [`Api::as_label`] names so; `None` for any other text.
    #[must_use]
    pub fn from_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.as_label() == label)
    }

    /// Whose shapes this API speaks.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Messages | Self::CountTokens => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        }
    }

    /// Whether the engine computes tokens that are to be counted. Counting and (de)tokenizing compute none; the tokens of
    /// a stored response were counted when it was made, however often it is fetched.
    #[must_use]
    pub const fn is_metered(self) -> bool {
        !matches!(self, Self::CountTokens | Self::Tokenize | Self::Detokenize | Self::StoredResponse)
    }

    /// Whether `stream: true` means something here.
    #[must_use]
    pub const fn can_stream(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages)
    }

    /// Whether `stream_options` decides if a stream carries usage. The other two streaming APIs always do.
    #[must_use]
    pub const fn takes_stream_options(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Completions)
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_label())
    }
}

/// What a method and path ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// A body for this API follows.
    Body(Api),
    /// A response that an engine made before, by its id as written in the path: to be fetched, or to be cancelled.
    StoredResponse(&'a str),
    /// The list of models.
    Models,
    /// One model, by its name as written in the path.
    Model(&'a str),
    /// The path is known, the method isn't.
    WrongMethod {
        /// The value for the `allow` header of the 405.
        allow: &'static str,
    },
    /// Not exposed.
    Unknown,
}

/// Decides what `method` on `path` asks for.
///
/// | method | path | route |
/// |---|---|---|
/// | POST | `/v1/chat/completions` | `Body(ChatCompletions)` |
/// | POST | `/v1/completions` | `Body(Completions)` |
/// | POST | `/v1/responses` | `Body(Responses)` |
/// | GET | `/v1/responses/{id}` | `StoredResponse(id)` |
/// | POST | `/v1/responses/{id}/cancel` | `StoredResponse(id)` |
/// | POST | `/v1/embeddings` | `Body(Embeddings)` |
/// | POST | `/v1/messages` | `Body(Messages)` |
/// | POST | `/v1/messages/count_tokens` | `Body(CountTokens)` |
/// | POST | `/tokenize` | `Body(Tokenize)` |
/// | POST | `/detokenize` | `Body(Detokenize)` |
/// | POST | `/v1/rerank`, `/v2/rerank`, `/rerank` | `Body(Rerank)` |
/// | POST | `/v1/score`, `/score` | `Body(Score)` |
/// | GET | `/v1/models` | `Models` |
/// | GET | `/v1/models/{name}` | `Model(name)`; the name may contain `/` |
/// | any other | a path above | `WrongMethod` |
/// | any | anything else | `Unknown` |
///
/// `path` is the `:path` of the request: a query string is allowed and ignored. Paths are compared
/// as they are, without normalisation or percent-decoding, because the engine behind might read a
/// path that was "repaired" here differently.
#[must_use]
pub fn route<'a>(method: &str, path: &'a str) -> Route<'a> {
    let path = without_query(path);
    let (allow, found) = match path {
        "/v1/models" => ("GET", Route::Models),
        _ => match (body_api(path), stored_response(path), model_name(path)) {
            (Some(api), ..) => ("POST", Route::Body(api)),
            (None, Some((allow, id)), _) => (allow, Route::StoredResponse(id)),
            (None, None, Some(name)) => ("GET", Route::Model(name)),
            (None, None, None) => return Route::Unknown,
        },
    };
    if method == allow { found } else { Route::WrongMethod { allow } }
}

/// The shape of errors for `path`, known or not: `/v1/messages` and all below it are Anthropic's.
#[must_use]
pub fn dialect_of(path: &str) -> Dialect {
    match without_query(path).strip_prefix("/v1/messages") {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Dialect::Anthropic,
        _ => Dialect::OpenAi,
    }
}

fn without_query(path: &str) -> &str {
    path.split_once('?').map_or(path, |(before, _)| before)
}

fn body_api(path: &str) -> Option<Api> {
    Some(match path {
        "/v1/chat/completions" => Api::ChatCompletions,
        "/v1/completions" => Api::Completions,
        "/v1/responses" => Api::Responses,
        "/v1/embeddings" => Api::Embeddings,
        "/v1/messages" => Api::Messages,
        "/v1/messages/count_tokens" => Api::CountTokens,
        "/tokenize" => Api::Tokenize,
        "/detokenize" => Api::Detokenize,
        "/v1/rerank" | "/v2/rerank" | "/rerank" => Api::Rerank,
        "/v1/score" | "/score" => Api::Score,
        _ => return None,
    })
}

/// The method and the id of a path below `/v1/responses/`. An id has letters, digits, `-` and `_` only, so no path can be
/// written as another. What vLLM doesn't serve (`/input_items`) isn't named here.
fn stored_response(path: &str) -> Option<(&'static str, &str)> {
    let rest = path.strip_prefix("/v1/responses/")?;
    let (allow, id) = match rest.strip_suffix("/cancel") {
        Some(id) => ("POST", id),
        None => ("GET", rest),
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    ((1..=RESPONSE_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(plain)).then_some((allow, id))
}

/// A model name has no empty, `.` or `..` segment and no `%` or `#`: those are the ways to write
/// one path as another.
fn model_name(path: &str) -> Option<&str> {
    let name = path.strip_prefix("/v1/models/")?;
    let plain = |segment: &str| !matches!(segment, "" | "." | "..");
    (name.split('/').all(plain) && !name.contains(['%', '#', '\\'])).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_path_is_routed_and_the_wrong_method_named() {
        let posts = [
            ("/v1/chat/completions", Api::ChatCompletions),
            ("/v1/completions", Api::Completions),
            ("/v1/responses", Api::Responses),
            ("/v1/embeddings", Api::Embeddings),
            ("/v1/messages", Api::Messages),
            ("/v1/messages/count_tokens", Api::CountTokens),
            ("/tokenize", Api::Tokenize),
            ("/detokenize", Api::Detokenize),
            ("/v1/rerank", Api::Rerank),
            ("/v2/rerank", Api::Rerank),
            ("/rerank", Api::Rerank),
            ("/v1/score", Api::Score),
            ("/score", Api::Score),
        ];
        for (path, api) in posts {
            assert_eq!(route("POST", path), Route::Body(api), "{path}");
            assert_eq!(route("POST", &format!("{path}?beta=true")), Route::Body(api), "{path}");
            assert_eq!(route("GET", path), Route::WrongMethod { allow: "POST" }, "{path}");
            assert_eq!(
                route("post", path),
                Route::WrongMethod { allow: "POST" },
                "methods are case-sensitive"
            );
        }
        assert_eq!(route("GET", "/v1/models"), Route::Models);
        assert_eq!(route("GET", "/v1/models?limit=3"), Route::Models);
        assert_eq!(route("POST", "/v1/models"), Route::WrongMethod { allow: "GET" });
        assert_eq!(route("GET", "/v1/models/tiny-llama"), Route::Model("tiny-llama"));
        assert_eq!(route("GET", "/v1/models/meta-llama/Llama-3?x"), Route::Model("meta-llama/Llama-3"));
        assert_eq!(route("DELETE", "/v1/models/a"), Route::WrongMethod { allow: "GET" });
    }

    #[test]
    fn a_stored_response_is_fetched_and_cancelled_and_nothing_else() {
        let stored = Route::StoredResponse("resp_0a-Z");
        let only = |allow| Route::WrongMethod { allow };
        for (method, path, wanted) in [
            ("GET", "/v1/responses/resp_0a-Z", stored),
            ("GET", "/v1/responses/resp_0a-Z?stream=true&starting_after=7", stored),
            ("POST", "/v1/responses/resp_0a-Z/cancel", stored),
            ("POST", "/v1/responses/resp_0a-Z/cancel?x", stored),
            ("GET", "/v1/responses/cancel", Route::StoredResponse("cancel")),
            ("DELETE", "/v1/responses/resp_0a-Z", only("GET")),
            ("POST", "/v1/responses/resp_0a-Z", only("GET")),
            ("GET", "/v1/responses/resp_0a-Z/cancel", only("POST")),
        ] {
            assert_eq!(route(method, path), wanted, "{method} {path}");
        }
        let longest = format!("/v1/responses/{}", "x".repeat(RESPONSE_ID_BYTES_MAX));
        assert!(matches!(route("GET", &longest), Route::StoredResponse(_)));
    }

    #[test]
    fn everything_else_is_unknown() {
        let others = [
            "",
            "/",
            "*",
            "?",
            "/v1",
            "/metrics",
            "/health",
            "/ping",
            "/sleep",
            "/collective_rpc",
            "/load",
            "/v1/audio/speech",
            "/v1/audio/transcriptions",
            "/v1/responses/",
            "/v1/responses//cancel",
            "/v1/responses/..",
            "/v1/responses/resp_1/",
            "/v1/responses/resp_1/input_items",
            "/v1/responses/resp_1/cancel/",
            "/v1/responses/resp_1/cancel/cancel",
            "/v1/responses/resp_1%2fcancel",
            "/v1/responses/resp.1",
            "/v1/responses/../models",
            &format!("/v1/responses/{}", "x".repeat(RESPONSE_ID_BYTES_MAX + 1)),
            "/v1/chat/completions/",
            "/v1/chat/completions/render",
            "/V1/chat/completions",
            "//v1/chat/completions",
            "/v1//chat/completions",
            "/v1/./chat/completions",
            "/v1/x/../completions",
            "/v1%2fcompletions",
            "/v1/chat/completions#x",
            "/v1/chat/completions;x=1",
            "v1/chat/completions",
            "/v1/models/",
            "/v1/models//",
            "/v1/models/..",
            "/v1/models/../chat",
            "/v1/models/a//b",
            "/v1/models/./a",
            "/v1/models/%2e%2e",
            "/v1/models/a\\b",
            "/v1/load_lora_adapter",
            "/inference/v1/generate",
        ];
        for path in others {
            for method in ["GET", "POST", "DELETE", ""] {
                assert_eq!(route(method, path), Route::Unknown, "{method} {path}");
            }
        }
    }

    #[test]
    fn labels_round_trip_and_dialects_follow_the_path() {
        for api in Api::ALL {
            assert_eq!(Api::from_label(api.as_label()), Some(api));
            assert!(api.can_stream() || !api.takes_stream_options());
        }
        assert_eq!(Api::from_label("chat"), None);
        assert_eq!(dialect_of("/v1/messages?x=1"), Dialect::Anthropic);
        assert_eq!(dialect_of("/v1/messages/batches"), Dialect::Anthropic);
        assert_eq!(dialect_of("/v1/messagesx"), Dialect::OpenAi);
        assert_eq!(dialect_of("/v1/chat/completions"), Dialect::OpenAi);
        assert_eq!(Api::Messages.dialect(), dialect_of("/v1/messages"));
        let unmetered: Vec<_> = Api::ALL.into_iter().filter(|api| !api.is_metered()).collect();
        assert_eq!(unmetered, [Api::StoredResponse, Api::CountTokens, Api::Tokenize, Api::Detokenize]);
    }
}
