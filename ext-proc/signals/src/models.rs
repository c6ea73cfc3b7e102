//! The answer to `/v1/models` → the names a target serves: base models and adapters alike.
//!
//! Only `id` counts: it is what a request names. `root` and `parent` say where weights come from.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::limits::{MODEL_BYTES_MAX, MODELS_MAX};

#[derive(Deserialize)]
struct List {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

/// The names. `None`: no list, an empty one, or a longer one than is kept.
pub(crate) fn read(body: &[u8]) -> Option<BTreeSet<String>> {
    let list: List = serde_json::from_slice(body).ok()?;
    if list.data.len() > MODELS_MAX {
        return None;
    }
    let names = list.data.into_iter().map(|model| model.id);
    let names: BTreeSet<String> =
        names.filter(|name| !name.is_empty() && name.len() <= MODEL_BYTES_MAX).collect();
    (!names.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_and_adapters_are_named_by_their_id() {
        // As vLLM 0.32 writes it, shortened.
        let body = br#"{"object":"list","data":[
            {"id":"tiny-llama","object":"model","owned_by":"vllm","root":"/models/tiny","parent":null,"permission":[{"id":"modelperm-1"}]},
            {"id":"lora-a","object":"model","root":"/models/lora-a","parent":"tiny-llama","max_model_len":null}]}"#;
        let names: Vec<_> = read(body).unwrap().into_iter().collect();
        assert_eq!(names, ["lora-a", "tiny-llama"]);
    }

    #[test]
    fn what_is_no_list_is_unknown() {
        for body in
            ["", "{}", "<html>", "{\"data\":[]}", "{\"data\":[{\"id\":1}]}", "{\"data\":[{\"id\":\"\"}]}"]
        {
            assert_eq!(read(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn a_list_past_its_bounds_is_not_cut_but_unknown() {
        let list = |count: usize| {
            let names: Vec<_> = (0..count).map(|at| format!("{{\"id\":\"m{at}\"}}")).collect();
            format!("{{\"data\":[{}]}}", names.join(","))
        };
        assert_eq!(read(list(MODELS_MAX).as_bytes()).map(|names| names.len()), Some(MODELS_MAX));
        assert_eq!(read(list(MODELS_MAX + 1).as_bytes()), None);
        let long =
            format!("{{\"data\":[{{\"id\":\"{}\"}},{{\"id\":\"m\"}}]}}", "n".repeat(MODEL_BYTES_MAX + 1));
        assert_eq!(
            read(long.as_bytes()).map(|names| names.into_iter().collect()),
            Some(vec!["m".to_owned()])
        );
    }
}
