//! A prompt as a chain of hashes: one at the end of each chunk of its bytes, so that two prompts share exactly the
//! hashes of what they have in common from the start.
//!
//! Chunks end at fixed positions, fine near the front where prompts part and coarse far behind where only long
//! conversations reach: 251 chunks for 400 KB instead of 3,200. A chunk that is not full has no hash.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most chunks of a prompt; what lies behind them is not matched.
pub const CHUNKS_MAX: usize = 1024;

/// (position from which it holds, bytes a chunk).
const LADDER: [(u32, u32); 4] = [(0, 128), (2 << 10, 256), (16 << 10, 1 << 10), (128 << 10, 4 << 10)];

/// Stands before each text, with its kind. No UTF-8 text contains it.
const TEXT_MARK: u8 = 0xff;

/// Bytes of the chunk that starts at `position`.
pub(crate) fn chunk_bytes(position: u32) -> u32 {
    LADDER.iter().rev().find(|(from, _)| position >= *from).map_or(LADDER[0].1, |(_, bytes)| *bytes)
}

/// Bytes before the end of the first `chunks` chunks.
pub(crate) fn bytes_at(chunks: usize) -> u64 {
    let mut left = chunks as u64;
    let mut position = 0;
    for (rung, (from, bytes)) in LADDER.iter().enumerate() {
        let ends = LADDER.get(rung + 1).map_or(u64::MAX, |(next, _)| u64::from(next - from));
        let here = left.min(ends / u64::from(*bytes));
        position += here * u64::from(*bytes);
        left -= here;
    }
    position
}

/// Chunks that end within the first `bytes` bytes.
pub(crate) fn chunks_at(bytes: u64) -> usize {
    let mut chunks = 0;
    for (rung, (from, each)) in LADDER.iter().enumerate() {
        let ends = LADDER.get(rung + 1).map_or(u64::MAX, |(next, _)| u64::from(*next));
        chunks += bytes.min(ends).saturating_sub(u64::from(*from)) / u64::from(*each);
    }
    usize::try_from(chunks).unwrap_or(usize::MAX)
}

/// A prompt's chain. Cheap to clone; the default is a prompt of which nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    hashes: Arc<[u64]>,
    bytes: u64,
}

impl Prefix {
    /// Bytes that were hashed or would have been, the marks between texts included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of full chunks.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.hashes.len()
    }

    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes
    }
}

/// Builds a [`Prefix`] from a prompt's texts in order.
#[derive(Clone, Debug)]
pub struct PrefixBuilder {
    hashes: Vec<u64>,
    chain: u64,
    /// Where the open chunk started, and how long it will be.
    position: u32,
    wanted: usize,
    /// What the open chunk has so far, when it crosses texts.
    open: Vec<u8>,
    bytes: u64,
}

impl PrefixBuilder {
    /// Starts a chain. Prompts match only where all of the parts are the same: model, adapter, cache salt, tools.
    #[must_use]
    pub fn new(seed_parts: &[&[u8]]) -> Self {
        // Chained with the length first, so that ("ab", "c") and ("a", "bc") differ.
        let chain = seed_parts.iter().fold(0, |chain, part| {
            let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
            xxh3_64_with_seed(part, xxh3_64_with_seed(&length.to_le_bytes(), chain))
        });
        let wanted = chunk_bytes(0);
        Self { hashes: Vec::new(), chain, position: 0, wanted: wanted as usize, open: Vec::new(), bytes: 0 }
    }

    /// Adds a text. `kind` keeps texts of different roles apart, whatever is in them.
    #[must_use]
    pub fn text(mut self, kind: u8, bytes: &[u8]) -> Self {
        self.add(&[TEXT_MARK, kind]);
        self.add(bytes);
        self
    }

    fn add(&mut self, mut bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() && self.hashes.len() < CHUNKS_MAX {
            let missing = self.wanted.saturating_sub(self.open.len());
            let Some((head, rest)) = bytes.split_at_checked(missing) else {
                self.open.extend_from_slice(bytes);
                return;
            };
            if self.open.is_empty() {
                self.chain = xxh3_64_with_seed(head, self.chain);
            } else {
                self.open.extend_from_slice(head);
                self.chain = xxh3_64_with_seed(&self.open, self.chain);
                self.open.clear();
            }
            self.hashes.push(self.chain);
            self.position = self.position.saturating_add(u32::try_from(self.wanted).unwrap_or(u32::MAX));
            self.wanted = chunk_bytes(self.position) as usize;
            bytes = rest;
        }
    }

    /// The chain.
    #[must_use]
    pub fn finish(self) -> Prefix {
        Prefix { hashes: self.hashes.into(), bytes: self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::*;

    fn prefix(texts: &[(u8, Vec<u8>)]) -> Prefix {
        texts.iter().fold(PrefixBuilder::new(&[b"m"]), |b, (kind, text)| b.text(*kind, text)).finish()
    }

    #[test]
    fn positions_and_counts_of_chunks_are_each_others_inverse() {
        let mut position = 0;
        for chunks in 0..2_000 {
            assert_eq!(bytes_at(chunks), u64::from(position));
            assert_eq!(chunks_at(position.into()), chunks);
            let size = chunk_bytes(position);
            assert_eq!(chunks_at(u64::from(position + size - 1)), chunks);
            position += size;
        }
        assert_eq!(chunks_at(400_000), 249, "400 KB are cheap to look up");
    }

    #[test]
    fn a_chain_depends_on_the_seed_the_kinds_and_where_texts_part() {
        let text = vec![b'x'; 1_000];
        let of = |seed: &[&[u8]], texts: &[(u8, &[u8])]| {
            texts.iter().fold(PrefixBuilder::new(seed), |b, (k, t)| b.text(*k, t)).finish()
        };
        let plain = of(&[b"m", b""], &[(0, &text)]);
        assert_eq!((plain.chunks(), plain.bytes()), (7, 1_002));
        for other in [
            of(&[b"n", b""], &[(0, &text)]),
            of(&[b"", b"m"], &[(0, &text)]),
            of(&[b"m", b""], &[(1, &text)]),
            of(&[b"m", b""], &[(0, &text[..10]), (0, &text[10..])]),
        ] {
            assert_eq!(other.hashes().iter().filter(|h| plain.hashes().contains(h)).count(), 0);
        }
    }

    #[test]
    fn a_prompt_has_bounded_chunks() {
        let prefix = prefix(&[(0, vec![b'x'; 8 << 20])]);
        assert_eq!((prefix.chunks(), prefix.bytes()), (CHUNKS_MAX, (8 << 20) + 2));
    }

    proptest! {
        #[test]
        fn a_longer_prompt_begins_with_the_chain_of_the_shorter(
            texts in prop::collection::vec((0u8..3, prop::collection::vec(any::<u8>(), 0..700)), 1..6),
            more in prop::collection::vec(any::<u8>(), 0..3_000),
        ) {
            let short = prefix(&texts);
            let mut longer = texts;
            if let Some((_, last)) = longer.last_mut() {
                last.extend_from_slice(&more);
            }
            longer.push((1, more));
            let long = prefix(&longer);
            prop_assert_eq!(&long.hashes()[..short.chunks()], short.hashes());
            prop_assert_eq!(long.chunks(), chunks_at(long.bytes()));
        }
    }
}
