//! Chat completions and completions.

use super::super::job::Job;
use super::super::text::{quoted, word};
use super::{CREATED, Cached, FINGERPRINT, Piece};

/// The members that every chunk begins with.
fn lead(job: &Job, prefix: &str, object: &str) -> String {
    format!(
        "\"id\":\"{}\",\"object\":\"{object}\",\"created\":{CREATED},\"model\":{}",
        job.id(prefix),
        quoted(&job.model)
    )
}

fn usage(prompt: u64, output: u64) -> String {
    format!("\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{output}", prompt + output)
}

/// `,"system_fingerprint":…`: on a choice's last chunk, unless a usage chunk follows.
fn stamp(job: &Job) -> String {
    if job.include_usage { String::new() } else { format!(",\"system_fingerprint\":\"{FINGERPRINT}\"") }
}

fn chat_usage(job: &Job, output: u64) -> String {
    if !job.continuous_usage {
        return String::new();
    }
    format!(",\"usage\":{{{},\"completion_tokens_details\":null}}", usage(job.prompt_tokens(), output))
}

fn chat_final(job: &Job, cached: Cached, output: u64) -> String {
    format!(
        "{{{},\"choices\":[],\"usage\":{{{},\"prompt_tokens_details\":{{\"cached_tokens\":{},\
         \"created_cache_tokens\":{}}}}},\"system_fingerprint\":\"{FINGERPRINT}\"}}",
        lead(job, "chatcmpl-", "chat.completion.chunk"),
        usage(job.prompt_tokens(), output),
        cached.read,
        cached.created
    )
}

pub(super) fn chat_stream(job: &Job, cached: Cached) -> Vec<Piece> {
    let lead = lead(job, "chatcmpl-", "chat.completion.chunk");
    let mut pieces = Vec::new();
    for index in 0..job.n {
        let delta = "{\"role\":\"assistant\",\"content\":\"\"}";
        let json = format!(
            "{{{lead},\"choices\":[{{\"index\":{index},\"delta\":{delta},\"logprobs\":null,\"finish_reason\":null}}]\
             {},\"prompt_token_ids\":null,\"prompt_text\":null}}",
            chat_usage(job, 0)
        );
        pieces.push(Piece::data(&json, 0));
    }
    let mut out = 0;
    for n in 1..=job.output {
        for index in 0..job.n {
            out += 1;
            let delta = chat_delta(job, index, n);
            let (finish, tail) = if n == job.output {
                ("\"length\",\"stop_reason\":null", stamp(job))
            } else {
                ("null", String::new())
            };
            let json = format!(
                "{{{lead},\"choices\":[{{\"index\":{index},\"delta\":{delta},\"logprobs\":null,\"finish_reason\":\
                 {finish},\"token_ids\":null}}]{tail}{}}}",
                chat_usage(job, n)
            );
            pieces.push(Piece::data(&json, out));
        }
    }
    if job.include_usage {
        pieces.push(Piece::data(&chat_final(job, cached, out), out));
    }
    pieces.push(Piece::done(out));
    pieces
}

fn chat_delta(job: &Job, index: u64, n: u64) -> String {
    let word = quoted(word(job.seed.wrapping_add(index), n));
    match &job.tool {
        None => format!("{{\"content\":{word}}}"),
        Some(tool) if n == 1 => format!(
            "{{\"content\":null,\"tool_calls\":[{{\"id\":\"{}\",\"type\":\"function\",\"index\":0,\"function\":\
             {{\"name\":{}}}}}]}}",
            job.id("chatcmpl-tool-"),
            quoted(tool)
        ),
        Some(_) => {
            format!(
                "{{\"content\":null,\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":{word}}}}}]}}"
            )
        }
    }
}

pub(super) fn chat_abort(job: &Job, cached: Cached, output: u64) -> Vec<u8> {
    let lead = lead(job, "chatcmpl-", "chat.completion.chunk");
    let json = format!(
        "{{{lead},\"choices\":[{{\"index\":0,\"delta\":{{}},\"logprobs\":null,\"finish_reason\":\"abort\",\
         \"stop_reason\":null,\"token_ids\":null}}]{}}}",
        stamp(job)
    );
    let mut bytes = Piece::data(&json, output).bytes;
    if job.include_usage {
        bytes.extend(Piece::data(&chat_final(job, cached, output), output).bytes);
    }
    bytes.extend(Piece::done(output).bytes);
    bytes
}

fn sentence(job: &Job, index: u64) -> String {
    (1..=job.output).map(|n| word(job.seed.wrapping_add(index), n)).collect()
}

pub(super) fn chat(job: &Job, cached: Cached) -> String {
    let choice = |index: u64| {
        format!(
            "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{},\"refusal\":null,\
             \"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null}},\"logprobs\":null,\
             \"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null,\"routed_experts\":null}}",
            quoted(&sentence(job, index))
        )
    };
    let choices: Vec<String> = (0..job.n).map(choice).collect();
    format!(
        "{{{},\"choices\":[{}],\"service_tier\":null,\"system_fingerprint\":\"{FINGERPRINT}\",\"usage\":{{{},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{},\"created_cache_tokens\":{},\"multimodal_tokens\":null}},\
         \"completion_tokens_details\":null}},\"prompt_logprobs\":null,\"prompt_token_ids\":null,\
         \"prompt_text\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}",
        lead(job, "chatcmpl-", "chat.completion"),
        choices.join(","),
        usage(job.prompt_tokens(), job.completion_tokens()),
        cached.read,
        cached.created
    )
}

pub(super) fn completions_stream(job: &Job, cached: Cached) -> Vec<Piece> {
    let lead = lead(job, "cmpl-", "text_completion");
    let (mut pieces, mut out) = (Vec::new(), 0);
    for n in 1..=job.output {
        for (prompt_index, prompt) in job.prompts.iter().enumerate() {
            for choice in 0..job.n {
                out += 1;
                let index = prompt_index as u64 * job.n + choice;
                let last = n == job.output;
                let finish = if last { "\"length\"" } else { "null" };
                let tail = if last { stamp(job) } else { String::new() };
                let running = if job.continuous_usage {
                    format!(",\"usage\":{{{}}}", usage(super::text::tokens(prompt), n))
                } else {
                    String::new()
                };
                let json = format!(
                    "{{{lead},\"choices\":[{{\"index\":{index},\"text\":{},\"logprobs\":null,\"finish_reason\":\
                     {finish},\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}}]{tail}{running}}}",
                    quoted(word(job.seed.wrapping_add(index), n))
                );
                pieces.push(Piece::data(&json, out));
            }
        }
    }
    if job.include_usage {
        let json = format!(
            "{{{lead},\"choices\":[],\"usage\":{{{},\"prompt_tokens_details\":{{\"cached_tokens\":{}}}}},\
             \"system_fingerprint\":\"{FINGERPRINT}\"}}",
            usage(job.prompt_tokens(), out),
            cached.read
        );
        pieces.push(Piece::data(&json, out));
    }
    pieces.push(Piece::done(out));
    pieces
}

pub(super) fn completions(job: &Job, cached: Cached) -> String {
    let choice = |index: u64| {
        format!(
            "{{\"index\":{index},\"text\":{},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\
             \"token_ids\":null,\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"routed_experts\":null}}",
            quoted(&sentence(job, index))
        )
    };
    let choices: Vec<String> = (0..job.n * job.prompts.len() as u64).map(choice).collect();
    format!(
        "{{{},\"choices\":[{}],\"service_tier\":null,\"system_fingerprint\":\"{FINGERPRINT}\",\"usage\":{{{},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{},\"created_cache_tokens\":null,\"multimodal_tokens\":null}},\
         \"completion_tokens_details\":null}},\"kv_transfer_params\":null,\"ec_transfer_params\":null,\
         \"metrics\":null}}",
        lead(job, "cmpl-", "text_completion"),
        choices.join(","),
        usage(job.prompt_tokens(), job.completion_tokens()),
        cached.read
    )
}
