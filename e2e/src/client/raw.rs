//! Raw TCP: requests that no HTTP library would send.

use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The most of an answer that is kept.
const ANSWER_MAX: usize = 1 << 20;

/// One step of a raw conversation.
#[derive(Clone, Debug)]
pub enum Step {
    /// Write these bytes.
    Write(Vec<u8>),
    /// Wait.
    Pause(Duration),
    /// Close the writing half.
    Shut,
    /// Close with a reset, and read nothing more.
    Reset,
}

impl Step {
    /// Text to write.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Write(text.as_bytes().to_vec())
    }
}

/// Runs the steps, then reads until the peer closes or `quiet` passes without a byte. What came back.
pub async fn converse(address: SocketAddr, steps: &[Step], quiet: Duration) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
    for step in steps {
        match step {
            // The peer may have answered and closed by now; its answer is what counts.
            Step::Write(bytes) => drop(stream.write_all(bytes).await),
            Step::Pause(time) => tokio::time::sleep(*time).await,
            Step::Shut => drop(stream.shutdown().await),
            Step::Reset => {
                stream.set_zero_linger()?;
                return Ok(Vec::new());
            }
        }
    }
    let mut answer = Vec::new();
    let mut chunk = vec![0; 16 << 10];
    while answer.len() < ANSWER_MAX {
        match tokio::time::timeout(quiet, stream.read(&mut chunk)).await {
            Err(_) | Ok(Err(_) | Ok(0)) => break,
            Ok(Ok(n)) => answer.extend_from_slice(&chunk[..n]),
        }
    }
    Ok(answer)
}

/// The status of a raw HTTP/1.1 answer; `None` when there is none.
#[must_use]
pub fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|b| *b == b'\r').next()?;
    std::str::from_utf8(line).ok()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// The head of a POST with these header lines (each without its line end).
#[must_use]
pub fn head(path: &str, lines: &[&str]) -> String {
    let mut text =
        format!("POST {path} HTTP/1.1\r\nhost: protected.local\r\ncontent-type: application/json\r\n");
    for line in lines {
        text.push_str(line);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text
}

/// `body` as one HTTP chunk.
#[must_use]
pub fn chunk(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n", body.len())
}
