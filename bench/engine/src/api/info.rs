//! Everything that answers without generating: tokens, rendered prompts, models.

use super::Call;
use crate::ask::Ask;
use crate::chat::list;
use crate::http::Reply;
use crate::refusal::Refusal;
use crate::turn::{Api, prompts, quoted};
use crate::{prompt, tokens};
use http::Response;
use std::fmt::Write;

fn read(body: &[u8]) -> Result<Ask<'_>, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::body(body, &error))
}

impl Call {
    pub(super) fn models(&self) -> String {
        let config = &self.state.config;
        let created = crate::state::seconds() as u64;
        let one = |id: &str, parent: Option<&str>| {
            let most = parent.map_or(config.model_len().to_string(), |_| "null".to_owned());
            let (name, parent) = (quoted(id), parent.map_or("null".to_owned(), quoted));
            let (root, permission) = (quoted(&format!("/models/{id}")), self.state.random());
            format!(
                r#"{{"id":{name},"object":"model","created":{created},"owned_by":"vllm","root":{root},"parent":{parent},"max_model_len":{most},"permission":[{{"id":"modelperm-{permission}","object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}"#
            )
        };
        let mut all = vec![one(&config.model, None)];
        all.extend(config.loras.iter().map(|lora| one(lora, Some(&config.model))));
        format!(r#"{{"object":"list","data":[{}]}}"#, all.join(","))
    }

    pub(super) fn count_tokens(self, body: &[u8]) -> Response<Reply> {
        let counted = read(body).and_then(|ask| prompts(Api::Messages, &ask, &[]));
        let counted = counted.map(|prompts| {
            let count = prompts.first().map_or(0, Vec::len);
            format!(r#"{{"input_tokens":{count},"context_management":{{"original_input_tokens":{count}}}}}"#)
        });
        self.settled(counted, Api::Messages)
    }

    pub(super) fn tokenize(self, body: &[u8]) -> Response<Reply> {
        let most = self.state.config.model_len();
        let answer = read(body).and_then(|ask| {
            let tokens = match (&ask.prompt, &ask.messages) {
                (Some(all), _) => prompt::of_prompts(all).into_iter().next().unwrap_or_default(),
                (None, Some(_)) => prompt::of_messages(&ask),
                (None, None) => return Err(Refusal::missing("prompt", usize::from(ask.model.is_some()))),
            };
            let texts = if ask.return_token_strs == Some(true) {
                // Byte-level vocabularies show a space as this letter.
                let text = |token: &u32| quoted(&tokens::decode(&[*token]).replace(' ', "\u{120}"));
                format!("[{}]", tokens.iter().map(text).collect::<Vec<_>>().join(","))
            } else {
                "null".to_owned()
            };
            Ok(format!(
                r#"{{"count":{},"max_model_len":{most},"tokens":{},"token_strs":{texts}}}"#,
                tokens.len(),
                list(&tokens)
            ))
        });
        self.settled(answer, Api::Chat)
    }

    pub(super) fn detokenize(self, body: &[u8]) -> Response<Reply> {
        let answer = read(body).and_then(|ask| match &ask.tokens {
            Some(ids) => Ok(format!(r#"{{"prompt":{}}}"#, quoted(&tokens::decode(ids)))),
            None => Err(Refusal::missing("tokens", usize::from(ask.model.is_some()))),
        });
        self.settled(answer, Api::Chat)
    }

    pub(super) fn render(self, api: Api, body: &[u8]) -> Response<Reply> {
        if !self.state.config.render {
            return self.json(403, r#"{"detail":"Forbidden"}"#.to_owned());
        }
        let config = &self.state.config;
        let rendered = read(body).and_then(|ask| {
            let all = prompts(api, &ask, &[])?;
            let model = ask.model.as_ref().map_or(config.model.as_str(), |model| &model.0);
            let most = ask.max_completion_tokens.or(ask.max_output_tokens).or(ask.max_tokens);
            let one = |ids: &Vec<u32>| {
                let room = i64::from(config.model_len()) - ids.len() as i64;
                let id = self.state.random();
                let id = match api {
                    Api::Completions => format!("cmpl-{id}"),
                    Api::Responses => format!("resp_{id}"),
                    Api::Chat | Api::Messages => format!("chatcmpl-{id}"),
                };
                rendered(&id, ids, model, most.unwrap_or(room), &ask, api)
            };
            let all: Vec<String> = all.iter().map(one).collect();
            let joined = all.join(",");
            Ok(if api == Api::Completions { format!("[{joined}]") } else { joined })
        });
        self.settled(rendered, api)
    }
}

fn rendered(id: &str, ids: &[u32], model: &str, most: i64, ask: &Ask<'_>, api: Api) -> String {
    let extra = if api == Api::Responses { r#""extra_args":{},"# } else { "" };
    let mut out = format!(
        r#"{{"request_id":"{id}","token_ids":{},"token_offsets":null,"features":null,"content_parts":null,"sampling_params":{{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":{:?},"top_p":{:?},"min_p":0.0,"stop":[],"stop_token_ids":[],"max_tokens":{most},"output_kind":2,"skip_clone":true,{extra}"bad_words":[],"skip_reading_prefix_cache":false}},"#,
        list(ids),
        ask.temperature.unwrap_or(1.0),
        ask.top_p.unwrap_or(1.0),
    );
    let stream = ask.stream == Some(true);
    let salt = ask.cache_salt.as_deref().map_or("null".to_owned(), quoted);
    let priority = ask.priority.unwrap_or(0);
    let _ = write!(
        out,
        r#""model":{},"reasoning_ended":null,"reasoning_parser_kwargs":null,"return_token_ids":null,"output_mode":"tokens","stream":{stream},"stream_options":null,"cache_salt":{salt},"priority":{priority},"kv_transfer_params":null,"ec_transfer_params":null}}"#,
        quoted(model)
    );
    out
}
