//! What the engine puts on the wire against what vLLM 0.32 put there, field by field.
//!
//! `table.rs` says what may differ, and why. Every capture in the repository is either compared or named there.

mod faults;
mod node;
mod table;

use bench_engine::{Engine, EngineConfig};
use node::{Free, Node, differences};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use table::{Case, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const FOLDERS: [&str; 3] = ["tests/captures", "../../e2e/captures", "../../proto/vllm/tests/captures"];

fn capture(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let found = FOLDERS.iter().map(|folder| root.join(folder).join(name)).find(|path| path.exists());
    let bytes =
        std::fs::read(found.unwrap_or_else(|| panic!("no capture {name}"))).expect("a readable capture");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn config(kind: Kind) -> EngineConfig {
    let preset = EngineConfig::preset("tiny").expect("a preset");
    EngineConfig {
        block_tokens: 32,
        blocks: 256,
        max_num_seqs: 8,
        max_model_len: 2048,
        time_scale: 10.0,
        force_include_usage: kind == Kind::Forced,
        request_metrics: matches!(kind, Kind::Forced | Kind::Timed),
        queue_requests: (kind == Kind::Full).then_some(0),
        ..preset
    }
}

/// A response as it came.
struct Reply {
    status: u16,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    body: String,
    /// HTTP chunks, where there are any.
    chunks: Vec<String>,
}

impl Reply {
    fn names(&self) -> BTreeSet<&str> {
        self.headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Events: their names and data.
    fn events(&self) -> Vec<(String, String)> {
        let events = self.body.split("\n\n").filter(|event| !event.trim().is_empty());
        let line = |event: &str, name: &str| {
            let found = event.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
            found.unwrap_or_default()
        };
        events.map(|event| (line(event, "event: "), line(event, "data: "))).collect()
    }

    /// From the head and the body without its framing.
    fn read(text: &str) -> Self {
        // Some captures were saved with the line ends of text files.
        let (head, body) = text.split_once("\r\n\r\n").or(text.split_once("\n\n")).expect("a head");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").expect("a header");
            (name.to_ascii_lowercase(), value.to_owned())
        };
        Self { status, headers: lines.map(header).collect(), body: body.to_owned(), chunks: Vec::new() }
    }
}

/// Sends a request over a connection of its own and reads until it is closed.
async fn send(
    address: SocketAddr,
    path: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> std::io::Result<Reply> {
    let mut stream = TcpStream::connect(address).await?;
    let method = if body.is_empty() { "GET" } else { "POST" };
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "content-type") && !body.is_empty() {
        request.push_str("content-type: application/json\r\n");
    }
    headers.iter().for_each(|(name, value)| request.push_str(&format!("{name}: {value}\r\n")));
    request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    let text = String::from_utf8_lossy(&bytes);
    if text.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut reply = Reply::read(&text);
    reply.headers.retain(|(name, _)| name != "connection");
    if reply.header("transfer-encoding") == Some("chunked") {
        (reply.chunks, reply.body) = unchunk(&reply.body);
    }
    Ok(reply)
}

fn unchunk(body: &str) -> (Vec<String>, String) {
    let (mut rest, mut chunks) = (body, Vec::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        if size == 0 || after.len() < size {
            break;
        }
        chunks.push(after[..size].to_owned());
        rest = &after[size + 2..];
    }
    let whole = chunks.concat();
    (chunks, whole)
}

/// A sum that usage must hold, in both.
fn check_usage(name: &str, usage: &Node) {
    let number = |path: &str| usage.number(path);
    if let (Some(prompt), Some(total), Some(completion)) =
        (number("prompt_tokens"), number("total_tokens"), number("completion_tokens"))
    {
        assert!((prompt + completion - total).abs() < 0.5, "{name}: {usage:?}");
        let details = |member: &str| number(&format!("prompt_tokens_details.{member}")).unwrap_or(0.0);
        let (cached, created) = (details("cached_tokens"), details("created_cache_tokens"));
        assert!(cached + created <= prompt && (cached + created) % 32.0 == 0.0, "{name}: {usage:?}");
    }
    if let (Some(input), Some(output), Some(total)) =
        (number("input_tokens"), number("output_tokens"), number("total_tokens"))
    {
        assert!((input + output - total).abs() < 0.5, "{name}: {usage:?}");
    }
}

fn compare_json(name: &str, ours: &str, theirs: &str, found: &mut Vec<String>) {
    let (ours, theirs) = (Node::parse(ours), Node::parse(theirs));
    [&ours, &theirs].iter().for_each(|node| check_usage(name, node.at("usage")));
    differences("", &ours, &theirs, &|path| table::free(name, path), found);
}

/// Events of the same kind that follow each other, as one: how many there are depends on the text.
fn runs(name: &str, events: &[(String, String)]) -> Vec<(String, Vec<Node>)> {
    let mut runs: Vec<(String, Vec<Node>)> = Vec::new();
    for (event, data) in events {
        let node = if data == "[DONE]" { Node::Text(data.clone()) } else { Node::parse(data) };
        let shape = format!("{event} {}", node.shape("", &|path| shape_free(name, path)));
        match runs.last_mut() {
            Some((last, nodes)) if *last == shape => nodes.push(node),
            _ => runs.push((shape, vec![node])),
        }
    }
    runs
}

/// A list of tokens may be empty or not; everything else has its shape.
fn shape_free(name: &str, path: &str) -> Free {
    if path.ends_with("token_ids") { Free::Anything } else { table::free(name, path) }
}

fn compare_events(name: &str, ours: &Reply, theirs: &Reply, found: &mut Vec<String>) {
    let (ours, theirs) = (runs(name, &ours.events()), runs(name, &theirs.events()));
    let shapes =
        |runs: &[(String, Vec<Node>)]| runs.iter().map(|(shape, _)| shape.clone()).collect::<Vec<_>>();
    // Choices take turns: with two of them, runs are as long as tokens are apart.
    if shapes(&ours) != shapes(&theirs) {
        found.push(format!(
            "events\n  {}\nagainst\n  {}",
            shapes(&ours).join("\n  "),
            shapes(&theirs).join("\n  ")
        ));
        return;
    }
    for ((_, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        ours.iter().chain(theirs).for_each(|node| check_usage(name, node.at("usage")));
        let pairs = [(ours.first(), theirs.first()), (ours.last(), theirs.last())];
        // Running usage and choices change within a run: the first against the first, the last against the last.
        for (ours, theirs) in pairs.into_iter().filter_map(|(ours, theirs)| Some((ours?, theirs?))) {
            let free = |path: &str| {
                let running =
                    path.ends_with(".usage.completion_tokens") && !theirs.at("choices.0").eq(&Node::Null);
                if running { Free::Value } else { table::free(name, path) }
            };
            differences("", ours, theirs, &free, found);
        }
    }
}

async fn compare(case: &Case, address: SocketAddr) -> Vec<String> {
    let theirs = Reply::read(&capture(case.capture));
    let ours = send(address, case.path, &case.body, case.headers).await.expect("an answer");
    let mut found = Vec::new();
    if ours.status != theirs.status {
        found.push(format!("status {} against {}: {}", ours.status, theirs.status, ours.body));
    }
    if ours.names() != theirs.names() {
        found.push(format!("headers {:?} against {:?}", ours.names(), theirs.names()));
    }
    for name in ["content-type", "server", "vary", "endpoint-load-metrics"] {
        if ours.header(name) != theirs.header(name) {
            found.push(format!("{name} {:?} against {:?}", ours.header(name), theirs.header(name)));
        }
    }
    let stream = theirs.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    if stream {
        compare_events(case.capture, &ours, &theirs, &mut found);
        let one_each =
            ours.chunks.iter().all(|chunk| chunk.ends_with("\n\n") && chunk.matches("\n\n").count() == 1);
        if !one_each {
            found.push("an HTTP chunk does not hold exactly one event".to_owned());
        }
    } else if theirs.body.trim().is_empty() {
        if !ours.body.is_empty() {
            found.push(format!("a body: {}", ours.body));
        }
    } else {
        compare_json(case.capture, &ours.body, theirs.body.trim(), &mut found);
    }
    found
}

#[tokio::test]
async fn answers_are_those_of_the_captures() {
    let engines = [Kind::Plain, Kind::Forced, Kind::Timed, Kind::Full]
        .map(|kind| (kind, Engine::start(config(kind)).expect("an engine")));
    let mut breaches = Vec::new();
    for case in table::cases() {
        let engine = engines.iter().find(|(kind, _)| *kind == case.kind).expect("an engine of this kind");
        let found = compare(&case, engine.1.address()).await;
        breaches.extend(found.iter().map(|what| format!("{}: {what}", case.capture)));
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn every_capture_is_compared() {
    let compared: BTreeSet<String> = table::cases().iter().map(|case| case.capture.to_owned()).collect();
    let elsewhere = [
        // One HTTP chunk for one event: checked of every stream.
        "chat-stream-raw-chunked.http",
        // Faults.
        "chat-stream-engine-death-tail.sse",
        "chat-stream-sigterm-no-drain-tail.sse",
        // LoRA and metrics.
        "models-lora.json",
        "metrics-before-load.txt",
        "metrics-during-load.txt",
        "metrics-after-load.txt",
        "metrics-lora-during-load.txt",
    ];
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut missed = Vec::new();
    for folder in FOLDERS {
        for file in std::fs::read_dir(root.join(folder)).expect("a folder") {
            let name = file.expect("a file").file_name().to_string_lossy().into_owned();
            let known = compared.contains(&name)
                || elsewhere.contains(&name.as_str())
                || table::NOT_SIMULATED.contains(&name.as_str());
            if !known && [".http", ".sse", ".txt", ".json"].iter().any(|end| name.ends_with(end)) {
                missed.push(name);
            }
        }
    }
    assert!(missed.is_empty(), "captures that nothing is compared with: {missed:?}");
}

#[tokio::test]
async fn adapters_are_listed_as_models() {
    let loras = vec!["lora-a".to_owned()];
    let engine = Engine::start(EngineConfig { loras, ..config(Kind::Plain) }).expect("an engine");
    let ours = send(engine.address(), "/v1/models", "", &[]).await.expect("an answer");
    let mut found = Vec::new();
    compare_json("models-lora.json", &ours.body, &capture("models-lora.json"), &mut found);
    assert!(found.is_empty(), "{found:?}");
}

/// Lines without their values, and without what names a moment or a machine.
fn series(page: &str) -> Vec<String> {
    let line = |line: &str| {
        if line.starts_with('#') { line } else { line.rsplit_once(' ').map_or(line, |(series, _)| series) }
            .to_owned()
    };
    page.lines().filter(|line| !line.is_empty()).map(line).collect()
}

async fn compare_metrics(engine: &Engine, name: &str) {
    let ours = send(engine.address(), "/metrics", "", &[]).await.expect("an answer");
    let (ours, theirs) = (series(&ours.body), series(&capture(name)));
    for (at, (one, other)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(one, other, "{name}, line {at}");
    }
    assert_eq!(ours.len(), theirs.len(), "{name}");
}

#[tokio::test]
async fn metrics_are_those_of_the_captures() {
    let engine = Engine::start(config(Kind::Plain)).expect("an engine");
    compare_metrics(&engine, "metrics-before-load.txt").await;
    let body = r#"{"messages":[{"role":"user","content":"hello there"}],"max_tokens":3}"#;
    send(engine.address(), "/v1/chat/completions", body, &[]).await.expect("an answer");
    compare_metrics(&engine, "metrics-during-load.txt").await;
    compare_metrics(&engine, "metrics-after-load.txt").await;
}

#[tokio::test]
async fn adapters_have_series_that_stay() {
    let loras = ["lora-a", "lora-b"].map(str::to_owned).to_vec();
    let engine =
        Engine::start(EngineConfig { loras, max_loras: 2, ..config(Kind::Plain) }).expect("an engine");
    let body = r#"{"model":"lora-a","prompt":"hello there","max_tokens":3}"#;
    send(engine.address(), "/v1/completions", body, &[]).await.expect("an answer");
    let page = engine.metrics();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("vllm:lora_requests_info")).collect();
    let labels = |names: &str| {
        format!(
            "vllm:lora_requests_info{{max_lora=\"2\",running_lora_adapters=\"{names}\",waiting_lora_adapters=\"{names}\"}}"
        )
    };
    assert!(lines[0].starts_with(&labels("lora-a")) && lines[1].starts_with(&labels("")), "{lines:?}");
    assert!(capture("metrics-lora-during-load.txt").contains(&labels("lora-a")));
}
