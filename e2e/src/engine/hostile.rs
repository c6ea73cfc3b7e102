//! Answers that no engine should give, drawn from a seed: what a filter must survive.

use super::format::{self, Cached, Piece};
use super::job::Job;
use super::pump;
use std::sync::OnceLock;

/// The most bytes of one hostile answer, before any decompression.
const BYTES_MAX: usize = 1 << 20;
/// Bytes that a compressed bomb expands to.
const BOMB_BYTES: usize = 64 << 20;
const CONTENT_TYPES: [&str; 8] = [
    "text/event-stream",
    "text/event-stream; charset=utf-8",
    "application/json",
    "Text/Event-Stream;charset=\"x",
    "text/plain",
    "",
    ";;;,",
    "application/json; a=b; a=c",
];
const LINES: [&str; 14] = [
    "data:",
    "data: [DONE]\n\n",
    "data: {\"usage\":{\"prompt_tokens\":18446744073709551616,\"completion_tokens\":-1}}\n\n",
    "data: {\"usage\":{\"prompt_tokens\":1e400,\"completion_tokens\":null}}\n\n",
    "data: {\"choices\":[],\"usage\":{\"usage\":{\"usage\":[]}}}\n\n",
    "data: {\"usage\":\"\\ud800\"}\n\n",
    "event: message_delta\ndata: {\"usage\":{\"input_tokens\":5,\"output_tokens\":\"7\"}}\n\n",
    "event: message_delta\nevent: message_stop\ndata: {}\ndata: }\n\n",
    ": comment\r\r\n\n",
    "id: 1\nretry: 99999999999999999999\n\n",
    "\u{feff}data: {}\n\n",
    "data: {\"a\":\"\n\n",
    "data\n\n",
    "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":9999999999999999999}}}\n\n",
];

/// One hostile answer.
#[derive(Clone, Debug)]
pub struct Hostile {
    pub status: u16,
    pub content_type: &'static str,
    pub encoding: Option<&'static str>,
    pub pieces: Vec<Piece>,
    /// Whether the connection is reset after the last piece.
    pub reset: bool,
}

/// The beginning of an event, `bytes` bytes long.
#[must_use]
pub fn unfinished(bytes: usize) -> Piece {
    let mut event = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"".to_vec();
    event.resize(bytes, b'x');
    Piece { bytes: event, output: 1 }
}

/// The answer for `seed`. `job` gives a well-formed answer to damage.
#[must_use]
pub fn answer(job: &Job, seed: u64) -> Hostile {
    let mut random = fastrand::Rng::with_seed(seed);
    let content_type = CONTENT_TYPES[random.usize(..CONTENT_TYPES.len())];
    let mut encoding = match random.u8(..8) {
        0 => Some("gzip"),
        1 => Some("deflate"),
        2 => Some("br"),
        3 => Some("gzip, gzip"),
        _ => None,
    };
    let bytes = match random.u8(..9) {
        0 => noise(&mut random),
        1 => long_line(&mut random),
        2 => deep(&mut random),
        3 => lines(&mut random),
        4 => {
            encoding = Some("gzip");
            bomb()
        }
        5 => {
            encoding = Some("gzip");
            let mut bytes = joined(pump::gzip(format::stream(job, Cached::default())));
            damage(&mut bytes, &mut random);
            bytes
        }
        6 => {
            let mut bytes = joined(format::stream(job, Cached::default()));
            let keep = random.usize(..=bytes.len());
            bytes.truncate(keep);
            bytes
        }
        _ => {
            let mut bytes = joined(format::stream(job, Cached::default()));
            damage(&mut bytes, &mut random);
            bytes
        }
    };
    let status = [200, 200, 200, 200, 201, 206, 400, 429, 500, 503][random.usize(..10)];
    let pieces = pump::split(vec![Piece { bytes, output: 0 }], random.u64(..));
    Hostile { status, content_type, encoding, pieces: coarse(pieces), reset: random.u8(..6) == 0 }
}

/// At most some hundred pieces, so that a big answer doesn't take a minute in tiny frames.
fn coarse(pieces: Vec<Piece>) -> Vec<Piece> {
    let per = pieces.len().div_ceil(300).max(1);
    let join = |group: &[Piece]| Piece { bytes: joined(group.to_vec()), output: 0 };
    pieces.chunks(per).map(join).collect()
}

fn joined(pieces: Vec<Piece>) -> Vec<u8> {
    pieces.into_iter().flat_map(|piece| piece.bytes).collect()
}

fn noise(random: &mut fastrand::Rng) -> Vec<u8> {
    let length = random.usize(..64 << 10);
    (0..length).map(|_| random.u8(..)).collect()
}

fn long_line(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = b"data: {\"choices\":[{\"delta\":{\"content\":\"".to_vec();
    let length = random.usize(..BYTES_MAX);
    bytes.resize(length.max(bytes.len()), random.u8(..));
    bytes
}

fn deep(random: &mut fastrand::Rng) -> Vec<u8> {
    let depth = random.usize(..200_000);
    let open = if random.bool() { "[" } else { "{\"usage\":" };
    format!("data: {}", open.repeat(depth)).into_bytes()
}

fn lines(random: &mut fastrand::Rng) -> Vec<u8> {
    let count = random.usize(..400);
    (0..count).map(|_| LINES[random.usize(..LINES.len())]).collect::<String>().into_bytes()
}

/// Made once: compressing it takes longer than sending it.
fn bomb() -> Vec<u8> {
    static BOMB: OnceLock<Vec<u8>> = OnceLock::new();
    BOMB.get_or_init(compress_bomb).clone()
}

fn compress_bomb() -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let block = vec![b' '; 1 << 20];
    for _ in 0..BOMB_BYTES / block.len() {
        // Writing to memory does not fail.
        let _ = encoder.write_all(&block);
    }
    encoder.finish().unwrap_or_default()
}

fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..20) {
        if bytes.is_empty() {
            return;
        }
        let at = random.usize(..bytes.len());
        match random.u8(..4) {
            0 => bytes[at] = random.u8(..),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, random.u8(..)),
            _ => {
                let to = (at + random.usize(..64)).min(bytes.len());
                let copy = bytes[at..to].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
}
