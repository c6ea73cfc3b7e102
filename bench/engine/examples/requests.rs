//! How many requests a second an engine answers, and what each costs it: `requests ADDRESS PID [BYTES] [SECONDS] [EVENTS]`.
//!
//! `PID` is the engine's process, whose processor time is read; `EVENTS` asks for a stream of that many tokens instead of
//! a whole answer of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CONNECTIONS: usize = 32;
/// Of the processor time in `/proc/PID/stat`.
const TICKS_PER_SECOND: f64 = 100.0;

fn processor_seconds(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' ').collect::<Vec<_>>());
    let ticks =
        |at: usize| fields.as_ref().and_then(|fields| fields.get(at)?.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

/// Reads one answer; whether it was a good one.
async fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>, streamed: bool) -> std::io::Result<bool> {
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if streamed {
            if buffer.ends_with(b"0\r\n\r\n") {
                return Ok(buffer.starts_with(b"HTTP/1.1 200"));
            }
            continue;
        }
        let Some(head) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
        let length =
            text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if buffer.len() >= head + 4 + length.unwrap_or(0) {
            return Ok(buffer.starts_with(b"HTTP/1.1 200"));
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, pid, rest @ ..] = &arguments[..] else {
        eprintln!("usage: requests ADDRESS PID [BYTES] [SECONDS] [EVENTS]");
        std::process::exit(2);
    };
    let number = |at: usize, default: u64| rest.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (bytes, seconds, events) = (number(0, 1024), number(1, 5), number(2, 0));
    let prompt = "water under the weir ".repeat(bytes as usize / 21 + 1);
    let body = format!(
        r#"{{"model":"tiny-llama","messages":[{{"role":"user","content":"{}"}}],"ignore_eos":true,"max_tokens":{},"stream":{}}}"#,
        &prompt[..bytes as usize],
        events.max(1),
        events > 0
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (request, done, bad) = (Arc::new(request), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (began, before) = (Instant::now(), processor_seconds(pid));
    let until = began + Duration::from_secs(seconds);
    let clients = (0..CONNECTIONS).map(|_| {
        let (address, request) = (address.clone(), Arc::clone(&request));
        let (done, bad) = (Arc::clone(&done), Arc::clone(&bad));
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            let mut buffer = Vec::with_capacity(1 << 20);
            while Instant::now() < until {
                stream.write_all(request.as_bytes()).await?;
                let good = answer(&mut stream, &mut buffer, events > 0).await?;
                if good { &done } else { &bad }.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, std::io::Error>(())
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("a client")?;
    }
    let (took, used) = (began.elapsed().as_secs_f64(), processor_seconds(pid) - before);
    let (done, bad) = (done.load(Ordering::Relaxed), bad.load(Ordering::Relaxed));
    println!(
        "{bytes} bytes, {events} events: {:.0} requests/s, {:.0} us of the engine's processor time each, {bad} bad",
        done as f64 / took,
        used * 1e6 / done.max(1) as f64
    );
    Ok(())
}
