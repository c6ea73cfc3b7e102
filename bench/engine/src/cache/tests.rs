use super::*;
use proptest::prelude::*;

fn taken(pool: &mut BlockPool, count: usize) -> Vec<BlockId> {
    let mut blocks = Vec::new();
    pool.take(count, &mut blocks);
    blocks
}

fn stored(pool: &mut BlockPool, hashes: &[u64]) -> Vec<BlockId> {
    let blocks = taken(pool, hashes.len());
    for (at, (id, hash)) in blocks.iter().zip(hashes).enumerate() {
        pool.store(*id, *hash, at.checked_sub(1).map(|before| hashes[before]), &[]);
    }
    blocks
}

#[test]
fn a_requests_tail_is_evicted_before_its_head() {
    let mut pool = BlockPool::new(6, true, true);
    let blocks = stored(&mut pool, &[1, 2, 3]);
    pool.release(&blocks);
    assert_eq!(pool.free(), 5);
    // Two blocks were never used; then the tail of what was.
    let more = taken(&mut pool, 3);
    assert_eq!(more, [4, 5, blocks[2]]);
    assert_eq!(pool.find(&[1, 2, 3]), blocks[..2]);
    assert_eq!(taken(&mut pool, 2), [blocks[1], blocks[0]]);
    let removed = |event: &BlockEvent| match event {
        BlockEvent::Removed { hash } => Some(*hash),
        _ => None,
    };
    assert_eq!(pool.take_events().iter().filter_map(removed).collect::<Vec<_>>(), [3, 2, 1]);
}

#[test]
fn the_longest_unused_goes_first_and_a_hit_counts_as_use() {
    let mut pool = BlockPool::new(4, true, false);
    let (first, second) = (stored(&mut pool, &[1]), stored(&mut pool, &[2]));
    pool.release(&first);
    pool.release(&second);
    let hit = pool.find(&[1]);
    assert_eq!((hit.as_slice(), pool.unreferenced(&hit)), (&first[..], 1));
    pool.touch(&hit);
    assert_eq!(pool.free(), 2);
    pool.release(&hit);
    assert_eq!(taken(&mut pool, 2), [3, second[0]]);
    assert_eq!((pool.find(&[1]), pool.find(&[2])), (first, Vec::new()));
}

#[test]
fn blocks_without_a_hash_are_reused_first() {
    let mut pool = BlockPool::new(5, true, false);
    let blocks = taken(&mut pool, 3);
    pool.store(blocks[0], 1, None, &[]);
    pool.release(&blocks);
    // The part-filled ones, the last of the request first; then the unused one; the cached one last.
    assert_eq!(taken(&mut pool, 4), [blocks[2], blocks[1], 4, blocks[0]]);
}

#[test]
fn equal_blocks_are_kept_apart() {
    let mut pool = BlockPool::new(4, true, true);
    let (first, second) = (stored(&mut pool, &[7]), stored(&mut pool, &[7]));
    pool.release(&first);
    pool.release(&second);
    assert_eq!(pool.find(&[7]), first);
    taken(&mut pool, 2);
    assert_eq!(pool.find(&[7]), second);
    taken(&mut pool, 1);
    assert!(pool.find(&[7]).is_empty());
    let events = pool.take_events();
    let removed = events.iter().filter(|event| matches!(event, BlockEvent::Removed { hash: 7 })).count();
    assert_eq!((events.len(), removed), (4, 2));
}

#[test]
fn reset_needs_an_idle_pool() {
    let mut pool = BlockPool::new(4, true, true);
    let blocks = stored(&mut pool, &[1]);
    assert!(!pool.reset());
    pool.release(&blocks);
    assert!(pool.reset());
    assert_eq!((pool.find(&[1]), pool.take_events().last()), (Vec::new(), Some(&BlockEvent::Cleared)));
}

/// The same rules, written as plainly as can be: a list of free blocks, and for each block its hash and references.
struct Naive {
    free: Vec<BlockId>,
    refs: Vec<u32>,
    hash: Vec<Option<u64>>,
    /// Blocks in the order in which they became visible.
    visible: Vec<BlockId>,
}

impl Naive {
    fn new(blocks: u32) -> Self {
        let count = blocks as usize;
        Self {
            free: (1..blocks).collect(),
            refs: vec![0; count],
            hash: vec![None; count],
            visible: Vec::new(),
        }
    }

    fn find(&self, hashes: &[u64]) -> Vec<BlockId> {
        let one = |hash: &u64| self.visible.iter().copied().find(|id| self.hash[*id as usize] == Some(*hash));
        hashes.iter().map_while(one).collect()
    }

    fn take(&mut self, count: usize) -> Vec<BlockId> {
        let taken: Vec<BlockId> = self.free.drain(..count).collect();
        for id in &taken {
            self.refs[*id as usize] = 1;
            self.hash[*id as usize] = None;
            self.visible.retain(|other| other != id);
        }
        taken
    }

    fn touch(&mut self, blocks: &[BlockId]) {
        for id in blocks {
            self.refs[*id as usize] += 1;
            self.free.retain(|other| other != id);
        }
    }

    fn store(&mut self, id: BlockId, hash: u64) {
        self.hash[id as usize] = Some(hash);
        self.visible.push(id);
    }

    fn release(&mut self, blocks: &[BlockId]) {
        let mut bare = Vec::new();
        for id in blocks.iter().rev() {
            self.refs[*id as usize] -= 1;
            if self.refs[*id as usize] == 0 {
                if self.hash[*id as usize].is_some() { self.free.push(*id) } else { bare.push(*id) }
            }
        }
        bare.append(&mut self.free);
        self.free = bare;
    }
}

proptest! {
    /// Requests over few prefixes come and go: both models always agree, and no block is lost.
    #[test]
    fn agrees_with_the_plain_model(steps in prop::collection::vec((0_u8..4, 0_usize..64, 1_usize..8), 1..120)) {
        let (mut pool, mut naive) = (BlockPool::new(24, true, false), Naive::new(24));
        let mut live: Vec<Vec<BlockId>> = Vec::new();
        for (what, which, length) in steps {
            if what == 0 && !live.is_empty() {
                let blocks = live.remove(which % live.len());
                pool.release(&blocks);
                naive.release(&blocks);
            } else {
                // Chains that share their beginnings.
                let hashes: Vec<u64> = (0..length).map(|at| (at as u64) << 8 | (which >> (5 - at.min(5))) as u64).collect();
                let hits = pool.find(&hashes);
                prop_assert_eq!(&hits, &naive.find(&hashes));
                let (missing, touched) = (length - hits.len(), pool.unreferenced(&hits));
                // The last block stays part-filled.
                if missing + touched < pool.free() {
                    pool.touch(&hits);
                    naive.touch(&hits);
                    let mut blocks = hits.clone();
                    pool.take(missing + 1, &mut blocks);
                    prop_assert_eq!(&blocks[hits.len()..], naive.take(missing + 1));
                    for at in hits.len()..length {
                        pool.store(blocks[at], hashes[at], None, &[]);
                        naive.store(blocks[at], hashes[at]);
                    }
                    live.push(blocks);
                }
            }
            let mut used: Vec<BlockId> = live.concat();
            used.sort_unstable();
            used.dedup();
            prop_assert_eq!(used.len() + pool.free(), pool.usable());
            prop_assert_eq!(naive.free.len(), pool.free());
        }
    }
}
