//! Any body: no panic, spans that lie in the body, and nothing accepted that isn't JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto_openai::{Api, ApiError, scan};

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, body) = input;
    let api = Api::ALL[usize::from(choice) % Api::ALL.len()];
    match scan(api, body) {
        Ok(request) => {
            assert!(std::str::from_utf8(body).is_ok());
            let name = request.model.decode();
            assert!(!name.is_empty() && name.len() <= proto_openai::limits::MODEL_BYTES_MAX);
            let mut text_bytes = 0;
            for span in &request.prompt.spans {
                assert!(!span.range.is_empty() && span.range.end <= body.len());
                text_bytes += span.range.len() as u64;
                let _ = request.prompt.text(body, span);
            }
            assert_eq!(text_bytes, request.prompt.text_bytes);
            if let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) {
                assert_eq!(value["model"], *name, "both read the same model");
                assert_eq!(request.stream, api.can_stream() && value["stream"] == true);
            }
        }
        Err(error) => {
            let api_error = ApiError::from(error);
            let body = api_error.body(api.dialect());
            assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
        }
    }
});
