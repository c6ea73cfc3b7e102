//! Captures of a real vLLM 0.32, played as they are: `x-play: chat-stream-usage.sse`.

use super::format::Piece;
use std::path::{Path, PathBuf};

/// A capture: the response's head and body as they came.
#[derive(Clone, Debug)]
pub struct Capture {
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
}

/// The folder of captures.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures")
}

/// Loads a capture. `None` when there is none of that name.
#[must_use]
pub fn load(name: &str) -> Option<Capture> {
    if name.contains('/') {
        return None;
    }
    let bytes = std::fs::read(folder().join(name)).ok()?;
    let Some((head, body)) = head_and_body(&bytes) else {
        // The tails hold events only.
        return Some(Capture {
            status: 200,
            content_type: "text/event-stream; charset=utf-8".to_owned(),
            body: bytes,
        });
    };
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let content_type = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        .map_or("application/json", |(_, value)| value.trim());
    Some(Capture { status, content_type: content_type.to_owned(), body: body.to_vec() })
}

fn head_and_body(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    if !bytes.starts_with(b"HTTP/1.1") {
        return None;
    }
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some((bytes.get(..at)?, bytes.get(at + 4..)?))
}

impl Capture {
    /// One piece for each event.
    #[must_use]
    pub fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut from = 0;
        for at in 1..self.body.len() {
            if self.body[at - 1..=at] == *b"\n\n" {
                pieces.push(Piece { bytes: self.body[from..=at].to_vec(), output: 0 });
                from = at + 1;
            }
        }
        if from < self.body.len() {
            pieces.push(Piece { bytes: self.body[from..].to_vec(), output: 0 });
        }
        pieces
    }
}
