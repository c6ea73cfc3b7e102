//! Anthropic's messages, as vLLM serves them: `message_start` counts the whole prompt, `message_delta` leaves the
//! cached part out of `input_tokens`.

use super::super::job::Job;
use super::super::text::{quoted, word};
use super::{Cached, Piece};

fn usage(job: &Job, cached: Cached) -> String {
    format!(
        "{{\"input_tokens\":{},\"output_tokens\":{},\"cache_creation_input_tokens\":{},\
         \"cache_read_input_tokens\":{}}}",
        job.prompt_tokens() - cached.read - cached.created,
        job.output,
        cached.created,
        cached.read
    )
}

pub(super) fn stream(job: &Job, cached: Cached) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let start = format!(
        "{{\"type\":\"message_start\",\"message\":{{\"id\":\"{}\",\"type\":\"message\",\"role\":\"assistant\",\
         \"content\":[],\"model\":{},\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{{\"input_tokens\":{},\
         \"output_tokens\":0}}}}}}",
        job.id("chatcmpl-"),
        quoted(&job.model),
        job.prompt_tokens()
    );
    pieces.push(Piece::event("message_start", &start, 0));
    let block = match &job.tool {
        None => "{\"type\":\"text\",\"text\":\"\"}".to_owned(),
        Some(tool) => format!(
            "{{\"type\":\"tool_use\",\"id\":\"{}\",\"name\":{},\"input\":{{}}}}",
            job.id("chatcmpl-tool-"),
            quoted(tool)
        ),
    };
    let json = format!("{{\"type\":\"content_block_start\",\"content_block\":{block},\"index\":0}}");
    pieces.push(Piece::event("content_block_start", &json, 0));
    for n in 1..=job.output {
        let word = quoted(word(job.seed, n));
        let delta = match job.tool {
            None => format!("{{\"type\":\"text_delta\",\"text\":{word}}}"),
            Some(_) => format!("{{\"type\":\"input_json_delta\",\"partial_json\":{word}}}"),
        };
        let json = format!("{{\"type\":\"content_block_delta\",\"delta\":{delta},\"index\":0}}");
        pieces.push(Piece::event("content_block_delta", &json, n));
    }
    let stop = "{\"type\":\"content_block_stop\",\"index\":0}";
    pieces.push(Piece::event("content_block_stop", stop, job.output));
    let delta = format!(
        "{{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null}},\"usage\":{}}}",
        usage(job, cached)
    );
    pieces.push(Piece::event("message_delta", &delta, job.output));
    pieces.push(Piece::event("message_stop", "{\"type\":\"message_stop\"}", job.output));
    pieces
}

pub(super) fn whole(job: &Job, cached: Cached) -> String {
    let text: String = (1..=job.output).map(|n| word(job.seed, n)).collect();
    format!(
        "{{\"id\":\"{}\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{{\"type\":\"text\",\"text\":{}}}],\
         \"model\":{},\"stop_reason\":\"max_tokens\",\"usage\":{}}}",
        job.id("chatcmpl-"),
        quoted(&text),
        quoted(&job.model),
        usage(job, cached)
    )
}
