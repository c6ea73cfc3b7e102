//! OpenAI's responses API, as vLLM serves it: no `[DONE]`; `response.completed` carries the usage.

use super::super::job::Job;
use super::super::text::{quoted, word};
use super::{CREATED, Cached, Piece};

pub(super) fn text(job: &Job) -> String {
    (1..=job.output).map(|n| word(job.seed, n)).collect()
}

/// A response without output.
pub(super) fn unfinished(job: &Job, status: &str) -> String {
    object(job, Cached::default(), Some(status))
}

/// The response object; with its output and usage once it is finished, till then with a status.
fn object(job: &Job, cached: Cached, unfinished: Option<&str>) -> String {
    let (incomplete, output, status, usage) = if unfinished.is_none() {
        (
            "{\"reason\":\"max_output_tokens\"}",
            format!("[{}]", item(job, &format!("[{}]", part(&text(job), "null")), "completed")),
            "incomplete",
            format!(
                "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{},\"cache_write_tokens\":0,\
                 \"input_tokens_per_turn\":[],\"cached_tokens_per_turn\":[]}},\"output_tokens\":{},\
                 \"output_tokens_details\":{{\"reasoning_tokens\":0,\"tool_output_tokens\":0,\
                 \"output_tokens_per_turn\":[],\"tool_output_tokens_per_turn\":[]}},\"total_tokens\":{}}}",
                job.prompt_tokens(),
                cached.read,
                job.output,
                job.prompt_tokens() + job.output
            ),
        )
    } else {
        ("null", "[]".to_owned(), unfinished.unwrap_or_default(), "null".to_owned())
    };
    let previous = job.previous.as_deref().map_or_else(|| "null".to_owned(), quoted);
    format!(
        "{{\"id\":\"{}\",\"created_at\":{CREATED},\"incomplete_details\":{incomplete},\"instructions\":null,\
         \"metadata\":null,\"model\":{},\"object\":\"response\",\"output\":{output},\"parallel_tool_calls\":true,\
         \"temperature\":1.0,\"tool_choice\":\"none\",\"tools\":[],\"top_p\":1.0,\"background\":{},\
         \"max_output_tokens\":{},\"max_tool_calls\":null,\"previous_response_id\":{previous},\"prompt\":null,\
         \"reasoning\":null,\"service_tier\":\"auto\",\"status\":\"{status}\",\"text\":null,\"top_logprobs\":null,\
         \"truncation\":\"disabled\",\"usage\":{usage},\"user\":null,\"presence_penalty\":0.0,\
         \"frequency_penalty\":0.0,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\
         \"input_messages\":null,\"output_messages\":null}}",
        job.response_id(),
        quoted(&job.model),
        job.background,
        job.output
    )
}

fn item(job: &Job, content: &str, status: &str) -> String {
    format!(
        "{{\"id\":\"{}\",\"content\":{content},\"role\":\"assistant\",\"status\":\"{status}\",\"type\":\"message\",\
         \"phase\":null}}",
        job.id("msg_")
    )
}

fn part(text: &str, logprobs: &str) -> String {
    format!(
        "{{\"annotations\":[],\"text\":{},\"type\":\"output_text\",\"logprobs\":{logprobs}}}",
        quoted(text)
    )
}

pub(super) fn stream(job: &Job, cached: Cached) -> Vec<Piece> {
    let (mut pieces, mut sequence) = (Vec::new(), 0);
    let mut push = |name: &str, members: &str, output: u64| {
        let json = format!("{{{members},\"sequence_number\":{sequence},\"type\":\"{name}\"}}");
        pieces.push(Piece::event(name, &json, output));
        sequence += 1;
    };
    let running = format!("\"response\":{}", object(job, cached, Some("in_progress")));
    push("response.created", &running, 0);
    push("response.in_progress", &running, 0);
    push(
        "response.output_item.added",
        &format!("\"item\":{},\"output_index\":0", item(job, "[]", "in_progress")),
        0,
    );
    let place = format!("\"content_index\":0,\"item_id\":\"{}\"", job.id("msg_"));
    push(
        "response.content_part.added",
        &format!("{place},\"output_index\":0,\"part\":{}", part("", "[]")),
        0,
    );
    for n in 1..=job.output {
        let delta = format!(
            "\"content_index\":0,\"delta\":{},\"item_id\":\"{}\",\"logprobs\":[],\"output_index\":0",
            quoted(word(job.seed, n)),
            job.id("msg_")
        );
        push("response.output_text.delta", &delta, n);
    }
    let (whole, out) = (text(job), job.output);
    let done = format!("{place},\"logprobs\":[],\"output_index\":0,\"text\":{}", quoted(&whole));
    push("response.output_text.done", &done, out);
    let part = part(&whole, "null");
    push("response.content_part.done", &format!("{place},\"output_index\":0,\"part\":{part}"), out);
    let item = item(job, &format!("[{part}]"), "completed");
    push("response.output_item.done", &format!("\"item\":{item},\"output_index\":0"), out);
    push("response.completed", &format!("\"response\":{}", object(job, cached, None)), out);
    pieces
}

pub(super) fn whole(job: &Job, cached: Cached) -> String {
    object(job, cached, None)
}
