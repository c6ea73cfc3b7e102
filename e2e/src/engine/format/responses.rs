//! OpenAI's responses API, as vLLM serves it: no `[DONE]`; `response.completed` carries the usage.

use super::super::job::Job;
use super::super::text::{quoted, word};
use super::{CREATED, Cached, Piece};

fn text(job: &Job) -> String {
    (1..=job.output).map(|n| word(job.seed, n)).collect()
}

/// The response object; with its output and usage once it is finished.
fn object(job: &Job, cached: Cached, finished: bool) -> String {
    let (incomplete, output, status, usage) = if finished {
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
        ("null", "[]".to_owned(), "in_progress", "null".to_owned())
    };
    format!(
        "{{\"id\":\"{}\",\"created_at\":{CREATED},\"incomplete_details\":{incomplete},\"instructions\":null,\
         \"metadata\":null,\"model\":{},\"object\":\"response\",\"output\":{output},\"parallel_tool_calls\":true,\
         \"temperature\":1.0,\"tool_choice\":\"none\",\"tools\":[],\"top_p\":1.0,\"background\":false,\
         \"max_output_tokens\":{},\"max_tool_calls\":null,\"previous_response_id\":null,\"prompt\":null,\
         \"reasoning\":null,\"service_tier\":\"auto\",\"status\":\"{status}\",\"text\":null,\"top_logprobs\":null,\
         \"truncation\":\"disabled\",\"usage\":{usage},\"user\":null,\"presence_penalty\":0.0,\
         \"frequency_penalty\":0.0,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\
         \"input_messages\":null,\"output_messages\":null}}",
        job.id("resp_"),
        quoted(&job.model),
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
    let running = format!("\"response\":{}", object(job, cached, false));
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
    push("response.completed", &format!("\"response\":{}", object(job, cached, true)), out);
    pieces
}

pub(super) fn whole(job: &Job, cached: Cached) -> String {
    object(job, cached, true)
}
