//! An engine's prefix cache: 16-token blocks, shared while in use, freed tail first, evicted least recently used.

use std::collections::{BTreeMap, HashMap};

/// Tokens a block.
pub(crate) const BLOCK: u64 = 16;

#[derive(Clone, Copy, Default)]
struct Block {
    /// 0: not (yet) full, or its content is held by another block.
    hash: u64,
    users: u32,
    freed: u64,
}

/// The blocks.
pub(crate) struct Cache {
    blocks: Vec<Block>,
    by_hash: HashMap<u64, usize>,
    /// Free blocks in the order in which they will be taken.
    free: BTreeMap<u64, usize>,
    clock: u64,
}

impl Cache {
    pub(crate) fn new(tokens: u64) -> Self {
        let count = (tokens / BLOCK) as usize;
        let free = (0..count).map(|n| (n as u64, n)).collect();
        let blocks = (0..count).map(|n| Block { freed: n as u64, ..Block::default() }).collect();
        Self { blocks, by_hash: HashMap::new(), free, clock: count as u64 }
    }

    pub(crate) fn used_share(&self) -> f64 {
        1.0 - self.free.len() as f64 / self.blocks.len() as f64
    }

    /// Blocks of the chain that are there, from the start.
    pub(crate) fn matched(&self, chain: &[u64]) -> usize {
        chain.iter().take_while(|hash| self.by_hash.contains_key(hash)).count()
    }

    /// Takes the chain's first `hits` blocks as they are and `new` others, or nothing.
    pub(crate) fn take(&mut self, chain: &[u64], hits: usize, new: usize) -> Option<Vec<usize>> {
        let mut held: Vec<usize> = chain[..hits].iter().map(|hash| self.by_hash[hash]).collect();
        let idle = held.iter().filter(|&&block| self.blocks[block].users == 0).count();
        if self.free.len() < idle + new {
            return None;
        }
        for &block in &held {
            if self.blocks[block].users == 0 {
                self.free.remove(&self.blocks[block].freed);
            }
            self.blocks[block].users += 1;
        }
        for n in 0..new {
            let block = self.grow().expect("counted");
            if let Some(&hash) = chain.get(hits + n) {
                self.fill(block, hash);
            }
            held.push(block);
        }
        Some(held)
    }

    /// One more block.
    pub(crate) fn grow(&mut self) -> Option<usize> {
        let (_, block) = self.free.pop_first()?;
        let hash = std::mem::take(&mut self.blocks[block].hash);
        if hash != 0 {
            self.by_hash.remove(&hash);
        }
        self.blocks[block].users = 1;
        Some(block)
    }

    /// The block is full now.
    pub(crate) fn fill(&mut self, block: usize, hash: u64) {
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.by_hash.entry(hash) {
            vacant.insert(block);
            self.blocks[block].hash = hash;
        }
    }

    /// A request is done with its blocks.
    pub(crate) fn give_back(&mut self, held: &[usize]) {
        for &block in held.iter().rev() {
            self.blocks[block].users -= 1;
            if self.blocks[block].users == 0 {
                self.clock += 1;
                self.blocks[block].freed = self.clock;
                self.free.insert(self.clock, block);
            }
        }
    }
}
