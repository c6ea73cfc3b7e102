//! The blocks of the KV cache: who refers to them, which are cached under a hash, and in which order they are taken away.
//!
//! As in vLLM's block pool. Block 0 is never given out (here it is the head of the free list). A freed block stays cached
//! until it is given out again: blocks are taken from the front of the free list; freed blocks with a hash go to its back,
//! those without to its front. A request frees its blocks from the last to the first, so its tail goes before its head.
//! Equal blocks of concurrent requests are kept apart, under one hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

#[cfg(test)]
mod tests;

/// The number of a block.
pub type BlockId = u32;

const HEAD: BlockId = 0;

/// What happened to the cached blocks, in order: what an engine announces as KV events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// A block became visible under `hash`.
    Stored {
        /// The block's hash.
        hash: u64,
        /// The hash of the block before it; none for the first of a prompt.
        parent: Option<u64>,
        /// Its tokens.
        tokens: Vec<u32>,
    },
    /// One block of this hash is gone.
    Removed {
        /// The block's hash.
        hash: u64,
    },
    /// All are gone.
    Cleared,
}

/// Keys are hashes already.
#[derive(Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

pub(crate) type ByHash<T> = HashMap<u64, T, BuildHasherDefault<Identity>>;

#[derive(Clone, Debug, Default)]
struct Block {
    refs: u32,
    hash: Option<u64>,
    prev: BlockId,
    next: BlockId,
}

/// The blocks under one hash: nearly always one.
#[derive(Debug)]
struct Holders {
    first: BlockId,
    more: Vec<BlockId>,
}

/// All blocks.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: usize,
    cached: ByHash<Holders>,
    caching: bool,
    /// Kept only where somebody wants them.
    events: Option<Vec<BlockEvent>>,
}

impl BlockPool {
    /// `blocks` counts block 0, which is never given out. `caching` keeps what was freed; `events` keeps [`BlockEvent`]s.
    #[must_use]
    pub fn new(blocks: u32, caching: bool, events: bool) -> Self {
        let count = blocks.max(2);
        let list = (0..count)
            .map(|id| Block {
                refs: 0,
                hash: None,
                prev: if id == HEAD { count - 1 } else { id - 1 },
                next: if id + 1 == count { HEAD } else { id + 1 },
            })
            .collect();
        Self {
            blocks: list,
            free: count as usize - 1,
            cached: ByHash::default(),
            caching,
            events: events.then(Vec::new),
        }
    }

    /// Blocks that can be had now, cached or not.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free
    }

    /// All blocks that can ever be had.
    #[must_use]
    pub fn usable(&self) -> usize {
        self.blocks.len() - 1
    }

    /// The share of blocks in use, 0 to 1.
    #[must_use]
    pub fn usage(&self) -> f64 {
        1.0 - self.free as f64 / self.usable() as f64
    }

    /// Whether freed blocks stay cached.
    #[must_use]
    pub fn caching(&self) -> bool {
        self.caching
    }

    /// Cached blocks of a chain of hashes, up to the first that is missing.
    #[must_use]
    pub fn find(&self, hashes: &[u64]) -> Vec<BlockId> {
        if !self.caching {
            return Vec::new();
        }
        hashes.iter().map_while(|hash| self.cached.get(hash).map(|holders| holders.first)).collect()
    }

    /// How many of `blocks` nobody refers to: taking them leaves fewer free ones.
    #[must_use]
    pub fn unreferenced(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|&&id| self.blocks[id as usize].refs == 0).count()
    }

    /// Refers to cached blocks.
    pub fn touch(&mut self, blocks: &[BlockId]) {
        for &id in blocks {
            if self.blocks[id as usize].refs == 0 {
                self.unlink(id);
            }
            self.blocks[id as usize].refs += 1;
        }
    }

    /// Takes `count` blocks, which must be free, and forgets what was cached in them.
    pub fn take(&mut self, count: usize, into: &mut Vec<BlockId>) {
        assert!(count <= self.free, "the caller checks that {count} of {} blocks are free", self.free);
        for _ in 0..count {
            let id = self.blocks[HEAD as usize].next;
            self.unlink(id);
            self.forget(id);
            self.blocks[id as usize].refs = 1;
            into.push(id);
        }
    }

    /// Makes a full block visible. A block that is visible already stays as it is.
    pub fn store(&mut self, id: BlockId, hash: u64, parent: Option<u64>, tokens: &[u32]) {
        let block = &mut self.blocks[id as usize];
        if !self.caching || block.hash.is_some() {
            return;
        }
        block.hash = Some(hash);
        self.cached
            .entry(hash)
            .and_modify(|holders| holders.more.push(id))
            .or_insert(Holders { first: id, more: Vec::new() });
        if let Some(events) = &mut self.events {
            events.push(BlockEvent::Stored { hash, parent, tokens: tokens.to_vec() });
        }
    }

    /// Gives up one reference to each of a request's blocks, given in the request's order.
    pub fn release(&mut self, blocks: &[BlockId]) {
        let mut bare_after = HEAD;
        for &id in blocks.iter().rev() {
            let block = &mut self.blocks[id as usize];
            block.refs -= 1;
            if block.refs > 0 {
                continue;
            }
            if block.hash.is_some() {
                self.link_after(self.blocks[HEAD as usize].prev, id);
            } else {
                self.link_after(bare_after, id);
                bare_after = id;
            }
        }
    }

    /// Forgets everything cached; false where blocks are in use.
    pub fn reset(&mut self) -> bool {
        if self.free != self.usable() {
            return false;
        }
        self.cached.clear();
        self.blocks.iter_mut().for_each(|block| block.hash = None);
        if let Some(events) = &mut self.events {
            events.push(BlockEvent::Cleared);
        }
        true
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<BlockEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn forget(&mut self, id: BlockId) {
        let Some(hash) = self.blocks[id as usize].hash.take() else { return };
        if let Some(holders) = self.cached.get_mut(&hash) {
            if holders.first != id {
                holders.more.retain(|&other| other != id);
            } else if holders.more.is_empty() {
                self.cached.remove(&hash);
            } else {
                holders.first = holders.more.remove(0);
            }
        }
        if let Some(events) = &mut self.events {
            events.push(BlockEvent::Removed { hash });
        }
    }

    fn unlink(&mut self, id: BlockId) {
        let (prev, next) = (self.blocks[id as usize].prev, self.blocks[id as usize].next);
        self.blocks[prev as usize].next = next;
        self.blocks[next as usize].prev = prev;
        self.free -= 1;
    }

    fn link_after(&mut self, prev: BlockId, id: BlockId) {
        let next = self.blocks[prev as usize].next;
        self.blocks[id as usize].prev = prev;
        self.blocks[id as usize].next = next;
        self.blocks[prev as usize].next = id;
        self.blocks[next as usize].prev = id;
        self.free += 1;
    }
}
