//! Reading captures, and one response in chunks.

use std::path::PathBuf;

use proto_openai::{Api, BodyKind, Plan, ResponseMeter, Strip, Tally};

pub(crate) const STRIPS: [Strip; 3] = [Strip::Nothing, Strip::Continuous, Strip::All];

pub(crate) fn captures_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

/// The body of a capture: without its HTTP head, and out of its transfer chunks.
pub(crate) fn capture(file: &str) -> Vec<u8> {
    let bytes = std::fs::read(captures_dir().join(file)).unwrap();
    if !bytes.starts_with(b"HTTP/") {
        return bytes;
    }
    let (crlf, lf) = (find(&bytes, b"\r\n\r\n").map(|at| at + 4), find(&bytes, b"\n\n").map(|at| at + 2));
    let head = [crlf, lf].into_iter().flatten().min().unwrap();
    let body = bytes[head..].to_vec();
    if file.contains("raw-chunked") { dechunk(&body) } else { body }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let line = find(body, b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&body[..line]).unwrap(), 16).unwrap();
        if length == 0 {
            return out;
        }
        out.extend_from_slice(&body[line + 2..line + 2 + length]);
        body = &body[line + 2 + length + 2..];
    }
}

/// What a client gets and what is known, when `body` comes in these chunks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) client: Vec<u8>,
    pub(crate) tally: Tally,
    pub(crate) data_events: u64,
}

pub(crate) fn run<'a>(plan: Plan, kind: BodyKind, chunks: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut meter = ResponseMeter::new(plan, kind);
    let (mut client, mut data_events) = (Vec::new(), 0);
    for chunk in chunks {
        let before = client.len();
        let pushed = meter.push(chunk, &mut client);
        data_events += u64::from(pushed.data_events);
        if pushed.edited {
            assert_ne!(plan.strip, Strip::Nothing, "nothing to strip, so nothing to edit");
        } else {
            assert_eq!(client.len(), before, "an unedited chunk leaves `out` alone");
            client.extend_from_slice(chunk);
        }
    }
    let before = client.len();
    assert_eq!(meter.finish(&mut client), client.len() > before);
    let again = client.len();
    assert!(!meter.finish(&mut client) && client.len() == again, "finishing twice changes nothing");
    Outcome { client, tally: meter.tally(), data_events }
}

pub(crate) fn stream(api: Api, strip: Strip) -> Plan {
    Plan { api, stream: true, strip }
}
