//! Any body that is accepted: an edited body reads the same but for what was edited.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto_openai::{Api, scan};
use serde_json::Value;

fn without_edited(mut value: Value) -> Value {
    let map = value.as_object_mut().expect("an object was accepted");
    map.remove("model");
    map.remove("stream_options");
    value
}

fuzz_target!(|input: (bool, &str, &[u8])| {
    let (continuous, model, body) = input;
    let Ok(request) = scan(Api::ChatCompletions, body) else { return };
    let rewrite = request.rewrite_model(model);
    let edits = match request.inject_usage(continuous) {
        Some(inject) => inject.merge(rewrite),
        None => rewrite,
    };
    let after = edits.apply(body);
    if !model.is_empty() && model.len() <= proto_openai::limits::MODEL_BYTES_MAX {
        match scan(Api::ChatCompletions, &after) {
            Ok(again) => {
                assert_eq!(again.model.decode(), model);
                assert!(again.inject_usage(continuous).is_none());
            }
            // The one member that an edit may add.
            Err(error) => assert!(error.message.contains("members"), "{error}"),
        }
    }
    let (Ok(old), Ok(new)) = (serde_json::from_slice::<Value>(body), serde_json::from_slice::<Value>(&after)) else {
        return;
    };
    assert_eq!(new["model"], model);
    assert_eq!(without_edited(old), without_edited(new));
});
