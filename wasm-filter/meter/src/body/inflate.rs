//! Inflates gzip and deflate bodies piece by piece, into a buffer of fixed size, under caps.
//!
//! The decompressor is driven by hand: the library's ready-made writers unwrap on corrupt data when they flush, and a
//! checksum is of no use for counting.

use flate2::{Decompress, FlushDecompress, Status};

/// Most bytes that one body may inflate to.
pub(crate) const INFLATE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most bytes out for each byte in, once [`INFLATE_RATIO_FROM`] bytes are out: beyond it lies a bomb and no text.
const INFLATE_RATIO_MAX: u64 = 200;
const INFLATE_RATIO_FROM: u64 = 1024 * 1024;
/// Bytes inflated at a time.
const PIECE_BYTES: usize = 16 * 1024;
/// What a body that is being inflated keeps: the piece, the window of 32 KiB, and the tables of the decompressor.
pub(crate) const INFLATE_KEPT_BYTES: usize = PIECE_BYTES + 48 * 1024;
/// Longest gzip header that is skipped, bytes.
const HEADER_BYTES_MAX: u32 = 64 * 1024;

/// Whether reading can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Readable,
    /// Corrupt, or over a cap: nothing more will come.
    Unreadable,
}

/// A decompressor between two chunks.
pub(crate) struct Inflate {
    state: State,
    format: Format,
    piece: Vec<u8>,
    bytes_in: u64,
    bytes_out: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Gzip,
    Deflate,
}

enum State {
    Header(Header),
    /// Deflate comes with a zlib header or, from some servers, without: the first byte tells.
    FirstByte,
    Data(Decompress),
    /// Bytes of the gzip trailer that are still to come.
    Trailer(u8),
    Ended,
    Broken,
}

impl Inflate {
    pub(crate) fn gzip() -> Inflate {
        Inflate::new(Format::Gzip, State::Header(Header::default()))
    }

    pub(crate) fn deflate() -> Inflate {
        Inflate::new(Format::Deflate, State::FirstByte)
    }

    fn new(format: Format, state: State) -> Inflate {
        Inflate { state, format, piece: vec![0; PIECE_BYTES], bytes_in: 0, bytes_out: 0 }
    }

    /// Inflates a chunk; `sink` gets the bytes in pieces of bounded size.
    pub(crate) fn push(&mut self, chunk: &[u8], mut sink: impl FnMut(&[u8])) -> Outcome {
        self.bytes_in = self.bytes_in.saturating_add(chunk.len() as u64);
        let mut rest = chunk;
        loop {
            match &mut self.state {
                State::Broken => return Outcome::Unreadable,
                State::Ended => return Outcome::Readable,
                State::Data(decompress) => {
                    let (before_in, before_out) = (decompress.total_in(), decompress.total_out());
                    let status = decompress.decompress(rest, &mut self.piece, FlushDecompress::None);
                    let used = (decompress.total_in() - before_in) as usize;
                    let made = (decompress.total_out() - before_out) as usize;
                    rest = rest.get(used..).unwrap_or_default();
                    sink(self.piece.get(..made).unwrap_or_default());
                    self.bytes_out = self.bytes_out.saturating_add(made as u64);
                    match status {
                        Err(_) => self.state = State::Broken,
                        Ok(_) if self.is_over_a_cap() => self.state = State::Broken,
                        Ok(Status::StreamEnd) if self.format == Format::Gzip => {
                            self.state = State::Trailer(8)
                        }
                        Ok(Status::StreamEnd) => self.state = State::Ended,
                        Ok(_) if used == 0 && made == 0 => return Outcome::Readable,
                        Ok(_) => {}
                    }
                }
                state => {
                    let Some((byte, after)) = rest.split_first() else { return Outcome::Readable };
                    if let State::FirstByte = state {
                        let zlib = byte & 0x0f == 8 && byte >> 4 <= 7;
                        *state = State::Data(Decompress::new(zlib));
                        continue;
                    }
                    rest = after;
                    state.step(*byte);
                }
            }
        }
    }

    fn is_over_a_cap(&self) -> bool {
        self.bytes_out > INFLATE_BYTES_MAX
            || (self.bytes_out > INFLATE_RATIO_FROM
                && self.bytes_out > self.bytes_in.saturating_mul(INFLATE_RATIO_MAX))
    }
}

impl State {
    /// A byte of a gzip header or trailer.
    fn step(&mut self, byte: u8) {
        match self {
            State::Header(header) => match header.step(byte) {
                Step::More => {}
                Step::Done => *self = State::Data(Decompress::new(false)),
                Step::Wrong => *self = State::Broken,
            },
            // A gzip body may be several members in a row.
            State::Trailer(1) => *self = State::Header(Header::default()),
            State::Trailer(left) => *left = left.saturating_sub(1),
            State::FirstByte | State::Data(_) | State::Ended | State::Broken => {}
        }
    }
}

/// A gzip header, read byte by byte.
#[derive(Default)]
struct Header {
    at: Part,
    flags: u8,
    bytes: u32,
}

#[derive(Default, Clone, Copy)]
enum Part {
    /// The ten fixed bytes, and how many of them were read.
    #[default]
    Start,
    ExtraLow,
    ExtraHigh(u8),
    Extra(u16),
    Name,
    Comment,
    Crc(u8),
}

enum Step {
    More,
    Done,
    Wrong,
}

const FLAG_CRC: u8 = 0x02;
const FLAG_EXTRA: u8 = 0x04;
const FLAG_NAME: u8 = 0x08;
const FLAG_COMMENT: u8 = 0x10;
const FIXED_BYTES: u32 = 10;

impl Header {
    fn step(&mut self, byte: u8) -> Step {
        self.bytes += 1;
        if self.bytes > HEADER_BYTES_MAX {
            return Step::Wrong;
        }
        let next = match self.at {
            Part::Start => match (self.bytes, byte) {
                (1, 0x1f) | (2, 0x8b) | (3, 8) => return Step::More,
                (1..=3, _) => return Step::Wrong,
                (4, flags) => {
                    self.flags = flags;
                    return Step::More;
                }
                (FIXED_BYTES, _) => self.after_start(),
                _ => return Step::More,
            },
            Part::ExtraLow => Some(Part::ExtraHigh(byte)),
            Part::ExtraHigh(low) => match u16::from_le_bytes([low, byte]) {
                0 => self.after_extra(),
                length => Some(Part::Extra(length)),
            },
            Part::Extra(1) => self.after_extra(),
            Part::Extra(left) => Some(Part::Extra(left.saturating_sub(1))),
            Part::Name if byte == 0 => self.after_name(),
            Part::Comment if byte == 0 => self.after_comment(),
            Part::Name | Part::Comment => return Step::More,
            Part::Crc(0) => Some(Part::Crc(1)),
            Part::Crc(_) => None,
        };
        match next {
            Some(part) => {
                self.at = part;
                Step::More
            }
            None => Step::Done,
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn after_start(&self) -> Option<Part> {
        if self.has(FLAG_EXTRA) { Some(Part::ExtraLow) } else { self.after_extra() }
    }

    fn after_extra(&self) -> Option<Part> {
        if self.has(FLAG_NAME) { Some(Part::Name) } else { self.after_name() }
    }

    fn after_name(&self) -> Option<Part> {
        if self.has(FLAG_COMMENT) { Some(Part::Comment) } else { self.after_comment() }
    }

    fn after_comment(&self) -> Option<Part> {
        self.has(FLAG_CRC).then_some(Part::Crc(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, GzBuilder, write::DeflateEncoder, write::ZlibEncoder};
    use std::io::Write;

    fn text() -> Vec<u8> {
        (0..20_000_u32).flat_map(|n| format!("data: {n}\n\n").into_bytes()).collect()
    }

    fn inflated(mut inflate: Inflate, bytes: &[u8], step: usize) -> (Vec<u8>, Outcome) {
        let mut out = Vec::new();
        let mut outcome = Outcome::Readable;
        for chunk in bytes.chunks(step) {
            outcome = inflate.push(chunk, |piece| out.extend_from_slice(piece));
        }
        (out, outcome)
    }

    #[test]
    fn every_wrapping_gives_the_text_back_whatever_the_cuts() {
        let text = text();
        let mut gzip = GzBuilder::new()
            .filename("n")
            .comment("c")
            .extra(vec![1; 300])
            .write(Vec::new(), Compression::fast());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&text).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::fast());
        raw.write_all(&text).unwrap();
        let (zlib, raw) = (zlib.finish().unwrap(), raw.finish().unwrap());
        for step in [1, 2, 3, 7, 1000, usize::MAX] {
            assert_eq!(
                inflated(Inflate::gzip(), &gzip, step),
                (text.clone(), Outcome::Readable),
                "gzip, {step}"
            );
            assert_eq!(
                inflated(Inflate::deflate(), &zlib, step),
                (text.clone(), Outcome::Readable),
                "zlib, {step}"
            );
            assert_eq!(
                inflated(Inflate::deflate(), &raw, step),
                (text.clone(), Outcome::Readable),
                "raw, {step}"
            );
        }
        let twice = [gzip.as_slice(), &gzip].concat();
        assert_eq!(inflated(Inflate::gzip(), &twice, 11).0.len(), 2 * text.len());
    }

    #[test]
    fn what_a_flushed_chunk_carries_comes_out_with_this_chunk() {
        let mut gzip = GzBuilder::new().write(Vec::new(), Compression::fast());
        let mut inflate = Inflate::gzip();
        for n in 0..50 {
            let event = format!("data: {n}\n\n");
            gzip.write_all(event.as_bytes()).unwrap();
            gzip.flush().unwrap();
            let chunk = std::mem::take(gzip.get_mut());
            let mut out = Vec::new();
            assert_eq!(inflate.push(&chunk, |piece| out.extend_from_slice(piece)), Outcome::Readable);
            assert_eq!(out, event.as_bytes());
        }
    }

    #[test]
    fn a_bomb_is_given_up_early() {
        let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
        gzip.write_all(&vec![b'a'; 100 * 1024 * 1024]).unwrap();
        let mut inflate = Inflate::gzip();
        let mut made = 0;
        let outcome = inflate.push(&gzip.finish().unwrap(), |piece| made += piece.len() as u64);
        assert_eq!(outcome, Outcome::Unreadable);
        assert!(made <= INFLATE_BYTES_MAX + PIECE_BYTES as u64, "{made}");
        assert_eq!(inflate.push(b"more", |_| panic!("nothing comes after the cap")), Outcome::Unreadable);
    }

    #[test]
    fn corrupt_bytes_are_told() {
        for bytes in [b"not gzip".as_slice(), &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff]] {
            assert_eq!(inflated(Inflate::gzip(), bytes, 1).1, Outcome::Unreadable);
        }
        let endless = [[0x1f, 0x8b, 8, FLAG_NAME, 0, 0, 0, 0, 0, 0].as_slice(), &[1; 70_000]].concat();
        assert_eq!(inflated(Inflate::gzip(), &endless, 4096).1, Outcome::Unreadable);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..2000), step in 1_usize..50) {
            let framed = [[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0].as_slice(), &bytes].concat();
            inflated(Inflate::gzip(), &framed, step);
            inflated(Inflate::deflate(), &bytes, step);
        }
    }
}
