//! Which endpoint should hold how much of a prompt: learned from what we sent where, nothing else.
//!
//! Per endpoint a tree of prefix chunks in order of last use. Two rules keep it like an engine's cache:
//! *a match is contiguous* from the start, and *tails go first*: a chunk is never older than those behind it, so the
//! oldest one is always a leaf, and evicting it leaves whole prefixes. Whatever is held is therefore closed under
//! prefixes, and how far each of many endpoints matches can be found by bisection instead of chunk by chunk.

mod slab;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use slab::{Entry, NONE, Slab};

use crate::prefix::{bytes_at, chunks_at};

/// Slots whose holders fit into one word.
const WORD: usize = 64;

/// The keys are hashes already, so hashing them again would be waste.
#[derive(Clone, Copy, Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 ^= word;
    }

    fn write_u32(&mut self, word: u32) {
        // An odd constant with well-mixed bits, so that one chunk's endpoints land far apart.
        self.0 = (self.0 ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// The slots that hold a chunk: a bit each.
#[derive(Clone, Debug, Default)]
struct Holders {
    low: u64,
    high: Vec<u64>,
}

impl Holders {
    fn word(&self, word: usize) -> u64 {
        match word.checked_sub(1) {
            None => self.low,
            Some(high) => self.high.get(high).copied().unwrap_or_default(),
        }
    }

    fn word_mut(&mut self, word: usize) -> &mut u64 {
        let Some(high) = word.checked_sub(1) else { return &mut self.low };
        if self.high.len() <= high {
            self.high.resize(high + 1, 0);
        }
        self.high.get_mut(high).unwrap_or(&mut self.low)
    }

    fn is_empty(&self) -> bool {
        self.low == 0 && self.high.iter().all(|&word| word == 0)
    }
}

/// One endpoint's tree.
#[derive(Clone, Copy, Debug)]
struct Tree {
    oldest: u32,
    newest: u32,
    bytes: u64,
    chunks: usize,
}

impl Default for Tree {
    fn default() -> Self {
        Self { oldest: NONE, newest: NONE, bytes: 0, chunks: 0 }
    }
}

/// What an endpoint may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes of prompt.
    pub(crate) bytes: u64,
    /// Chunks of it.
    pub(crate) chunks: usize,
}

/// The chunks of all endpoints of a pool.
#[derive(Debug, Default)]
pub(crate) struct Index {
    holders: Map<u64, Holders>,
    places: Map<(u64, u32), u32>,
    slab: Slab,
    trees: Vec<Tree>,
    /// The chain at hand; kept for its buffer.
    chain: Vec<u32>,
}

impl Index {
    /// Chunks held, those of each endpoint counted.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Chunks and bytes that `slot` holds.
    pub(crate) fn held(&self, slot: u32) -> (usize, u64) {
        let tree = self.tree(slot);
        (tree.chunks, tree.bytes)
    }

    fn tree(&self, slot: u32) -> Tree {
        self.trees.get(slot as usize).copied().unwrap_or_default()
    }

    fn tree_mut(&mut self, slot: u32) -> Option<&mut Tree> {
        let slot = slot as usize;
        if self.trees.len() <= slot {
            self.trees.resize(slot + 1, Tree::default());
        }
        self.trees.get_mut(slot)
    }

    /// For each slot below `slots`, how many of the chain's chunks it holds from the start.
    pub(crate) fn matches(&self, chain: &[u64], slots: usize, depths: &mut Vec<u32>) {
        depths.clear();
        depths.resize(slots, 0);
        for (word, depths) in depths.chunks_mut(WORD).enumerate() {
            let held = |depth: usize| match depth.checked_sub(1).and_then(|chunk| chain.get(chunk)) {
                None => u64::MAX,
                Some(hash) => self.holders.get(hash).map_or(0, |holders| holders.word(word)),
            };
            bisect(0, u64::MAX, chain.len(), held(chain.len()), &held, depths);
        }
    }

    /// How many of the chain's chunks `slot` holds from the start.
    pub(crate) fn depth(&self, slot: u32, chain: &[u64]) -> usize {
        chain.partition_point(|&hash| self.places.contains_key(&(hash, slot)))
    }

    /// `slot` uses the chain: what it holds of it becomes newest, and the rest is added. Old leaves make room.
    pub(crate) fn insert(&mut self, slot: u32, chain: &[u64], room: Room) {
        let fits = chunks_at(room.bytes).min(room.chunks).min(chain.len());
        let chain = chain.get(..fits).unwrap_or_default();
        let mut places = std::mem::take(&mut self.chain);
        places.clear();
        places.extend(chain.iter().map_while(|&hash| self.places.get(&(hash, slot)).copied()));
        for &place in places.iter().rev() {
            self.touch(slot, place);
        }
        let new = fits - places.len();
        let new_bytes = bytes_at(fits).saturating_sub(bytes_at(places.len()));
        self.make_room(slot, room, new, new_bytes);
        for depth in places.len()..fits {
            let Some(&hash) = chain.get(depth) else { break };
            let bytes = bytes_at(depth + 1).saturating_sub(bytes_at(depth));
            let parent = places.last().copied().unwrap_or(NONE);
            places.push(self.add(slot, hash, parent, u32::try_from(bytes).unwrap_or(u32::MAX)));
        }
        // Added front to back; used back to front.
        for &place in places.iter().rev().filter(|_| new > 0) {
            self.touch(slot, place);
        }
        self.chain = places;
    }

    /// `slot` holds `bytes` more behind the chain that no prompt will be matched against by itself: what was generated.
    /// They take room until they are the oldest.
    pub(crate) fn append(&mut self, slot: u32, chain: &[u64], key: u64, bytes: u64, room: Room) {
        let depth = self.depth(slot, chain);
        let parent = depth.checked_sub(1).and_then(|last| chain.get(last));
        let parent = parent.and_then(|&hash| self.places.get(&(hash, slot)).copied()).unwrap_or(NONE);
        let held = bytes_at(depth).saturating_add(bytes);
        if bytes == 0 || held > room.bytes || depth >= room.chunks || self.places.contains_key(&(key, slot)) {
            return;
        }
        self.make_room(slot, room, 1, bytes);
        self.add(slot, key, parent, u32::try_from(bytes).unwrap_or(u32::MAX));
        // It is older than the chain that it hangs on.
        let mut above = parent;
        while above != NONE {
            self.touch(slot, above);
            above = self.slab.get(above).parent;
        }
    }

    /// `slot` holds nothing of the chain from its chunk `from` on, nor anything behind that.
    pub(crate) fn cut(&mut self, slot: u32, chain: &[u64], from: usize) {
        let root = chain.get(from).and_then(|&hash| self.places.get(&(hash, slot)).copied());
        let Some(root) = root else { return };
        let mut at = root;
        loop {
            let entry = self.slab.get(at);
            if entry.child == NONE {
                self.remove_leaf(slot, at);
                if at == root {
                    return;
                }
                at = entry.parent;
            } else {
                at = entry.child;
            }
        }
    }

    /// `slot` holds nothing.
    pub(crate) fn clear(&mut self, slot: u32) {
        while self.evict(slot) {}
    }

    /// Evicts until `slot` holds no more than `room`.
    pub(crate) fn trim(&mut self, slot: u32, room: Room) {
        self.make_room(slot, room, 0, 0);
    }

    fn make_room(&mut self, slot: u32, room: Room, chunks: usize, bytes: u64) {
        loop {
            let tree = self.tree(slot);
            let fits = tree.bytes.saturating_add(bytes) <= room.bytes && tree.chunks + chunks <= room.chunks;
            if fits || !self.evict(slot) {
                return;
            }
        }
    }

    /// The oldest goes. It is a leaf: using a chunk uses all before it.
    fn evict(&mut self, slot: u32) -> bool {
        let oldest = self.tree(slot).oldest;
        oldest != NONE && self.remove_leaf(slot, oldest)
    }

    fn add(&mut self, slot: u32, hash: u64, parent: u32, bytes: u32) -> u32 {
        let sibling = if parent == NONE { NONE } else { self.slab.get(parent).child };
        let place = self.slab.add(Entry { hash, bytes, parent, next_sibling: sibling, ..Entry::default() });
        self.slab.edit(sibling, |entry| entry.previous_sibling = place);
        self.slab.edit(parent, |entry| entry.child = place);
        self.places.insert((hash, slot), place);
        *self.holders.entry(hash).or_default().word_mut(slot as usize / WORD) |= 1 << (slot as usize % WORD);
        if let Some(tree) = self.tree_mut(slot) {
            tree.bytes = tree.bytes.saturating_add(u64::from(bytes));
            tree.chunks += 1;
        }
        self.push_newest(slot, place);
        place
    }

    fn remove_leaf(&mut self, slot: u32, place: u32) -> bool {
        let entry = self.slab.get(place);
        self.unlink(slot, place);
        self.slab.edit(entry.next_sibling, |next| next.previous_sibling = entry.previous_sibling);
        if entry.previous_sibling == NONE {
            self.slab.edit(entry.parent, |parent| parent.child = entry.next_sibling);
        } else {
            self.slab.edit(entry.previous_sibling, |previous| previous.next_sibling = entry.next_sibling);
        }
        self.places.remove(&(entry.hash, slot));
        if let Some(holders) = self.holders.get_mut(&entry.hash) {
            *holders.word_mut(slot as usize / WORD) &= !(1 << (slot as usize % WORD));
            if holders.is_empty() {
                self.holders.remove(&entry.hash);
            }
        }
        if let Some(tree) = self.tree_mut(slot) {
            tree.bytes = tree.bytes.saturating_sub(u64::from(entry.bytes));
            tree.chunks = tree.chunks.saturating_sub(1);
        }
        self.slab.free(place);
        true
    }

    fn touch(&mut self, slot: u32, place: u32) {
        if self.tree(slot).newest != place {
            self.unlink(slot, place);
            self.push_newest(slot, place);
        }
    }

    fn unlink(&mut self, slot: u32, place: u32) {
        let Entry { older, newer, .. } = self.slab.get(place);
        self.slab.edit(older, |entry| entry.newer = newer);
        self.slab.edit(newer, |entry| entry.older = older);
        if let Some(tree) = self.tree_mut(slot) {
            if tree.oldest == place {
                tree.oldest = newer;
            }
            if tree.newest == place {
                tree.newest = older;
            }
        }
    }

    fn push_newest(&mut self, slot: u32, place: u32) {
        let Some(tree) = self.tree_mut(slot) else { return };
        let before = std::mem::replace(&mut tree.newest, place);
        if before == NONE {
            tree.oldest = place;
        }
        self.slab.edit(before, |entry| entry.newer = place);
        self.slab.edit(place, |entry| (entry.older, entry.newer) = (before, NONE));
    }
}

/// Writes into `depths` how deep each bit's slot goes. Those in `at_low` hold `low` chunks, those in `at_high` hold `high`;
/// the latter are among the former.
fn bisect(
    low: usize,
    at_low: u64,
    high: usize,
    at_high: u64,
    held: &impl Fn(usize) -> u64,
    depths: &mut [u32],
) {
    let mut dropping = at_low & !at_high;
    if high - low > 1 && dropping != 0 {
        let middle = low + (high - low) / 2;
        let at_middle = held(middle);
        bisect(low, at_low, middle, at_middle, held, depths);
        bisect(middle, at_middle, high, at_high, held, depths);
        return;
    }
    let write = |bits: &mut u64, depth: usize, depths: &mut [u32]| {
        while *bits != 0 {
            if let Some(place) = depths.get_mut(bits.trailing_zeros() as usize) {
                *place = u32::try_from(depth).unwrap_or(u32::MAX);
            }
            *bits &= *bits - 1;
        }
    };
    if high > low {
        write(&mut dropping, low, depths);
    }
    write(&mut { at_high }, high, depths);
}

#[cfg(test)]
mod tests;
