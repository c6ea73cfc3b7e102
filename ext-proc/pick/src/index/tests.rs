use proptest::prelude::{Just, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;

const WIDE: Room = Room { bytes: u64::MAX, chunks: usize::MAX };

/// A chain that goes the given way at each fork.
fn chain(ways: &[u8]) -> Vec<u64> {
    let step = |hash: &mut u64, &way: &u8| {
        *hash = xxhash_rust::xxh3::xxh3_64_with_seed(&[way], *hash);
        Some(*hash)
    };
    ways.iter().scan(7, step).collect()
}

/// What the index must be: per slot the chunks in order of last use, oldest first, nothing clever.
#[derive(Default)]
struct Naive {
    slots: Vec<Vec<(Vec<u8>, u64)>>,
}

impl Naive {
    fn slot(&mut self, slot: u32) -> &mut Vec<(Vec<u8>, u64)> {
        self.slots.resize(self.slots.len().max(slot as usize + 1), Vec::new());
        &mut self.slots[slot as usize]
    }

    fn insert(&mut self, slot: u32, ways: &[u8], room: Room) {
        let held = self.slot(slot);
        let fits = chunks_at(room.bytes).min(room.chunks).min(ways.len());
        let known = (0..fits).take_while(|&d| held.iter().any(|(w, _)| *w == ways[..=d])).count();
        let new = bytes_at(fits) - bytes_at(known);
        held.retain(|(w, _)| !(w.len() <= fits && *w == ways[..w.len()]));
        let chain = bytes_at(known);
        while !held.is_empty()
            && (held.iter().map(|(_, b)| b).sum::<u64>() + chain + new > room.bytes
                || held.len() + fits > room.chunks)
        {
            held.remove(0);
        }
        for depth in (1..=fits).rev() {
            held.push((ways[..depth].to_vec(), bytes_at(depth) - bytes_at(depth - 1)));
        }
    }

    fn cut(&mut self, slot: u32, ways: &[u8], from: usize) {
        if from < ways.len() {
            self.slot(slot).retain(|(w, _)| !w.starts_with(&ways[..=from]));
        }
    }

    fn depth(&mut self, slot: u32, ways: &[u8]) -> usize {
        let held = self.slot(slot);
        (0..ways.len()).take_while(|&d| held.iter().any(|(w, _)| *w == ways[..=d])).count()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u32, Vec<u8>),
    Cut(u32, Vec<u8>, usize),
    Clear(u32),
    Trim(u32, Room),
}

fn op() -> impl Strategy<Value = Op> {
    let slot = prop_oneof![0u32..4, Just(63), Just(64), Just(130)];
    let ways = || prop::collection::vec(0u8..3, 0..12);
    prop_oneof![
        8 => (slot.clone(), ways()).prop_map(|(s, w)| Op::Insert(s, w)),
        2 => (slot.clone(), ways(), 0usize..12).prop_map(|(s, w, f)| Op::Cut(s, w, f)),
        1 => slot.clone().prop_map(Op::Clear),
        1 => (slot, 0u64..3_000, 0usize..20).prop_map(|(s, bytes, chunks)| Op::Trim(s, Room { bytes, chunks })),
    ]
}

proptest! {
    #[test]
    fn the_index_is_the_naive_model_under_any_inserts_evictions_and_corrections(
        ops in prop::collection::vec(op(), 0..80),
        bytes in 0u64..6_000,
        chunks in 0usize..40,
        asks in prop::collection::vec(prop::collection::vec(0u8..3, 0..12), 1..6),
    ) {
        let room = Room { bytes, chunks };
        let (mut index, mut naive) = (Index::default(), Naive::default());
        for op in ops {
            match op {
                Op::Insert(slot, ways) => {
                    index.insert(slot, &chain(&ways), room);
                    naive.insert(slot, &ways, room);
                }
                Op::Cut(slot, ways, from) => {
                    index.cut(slot, &chain(&ways), from);
                    naive.cut(slot, &ways, from);
                }
                Op::Clear(slot) => {
                    index.clear(slot);
                    naive.slot(slot).clear();
                }
                Op::Trim(slot, room) => {
                    index.trim(slot, room);
                    let held = naive.slot(slot);
                    while held.len() > room.chunks || held.iter().map(|(_, b)| b).sum::<u64>() > room.bytes {
                        held.remove(0);
                    }
                }
            }
            let mut depths = Vec::new();
            for ways in &asks {
                index.matches(&chain(ways), 131, &mut depths);
                for slot in [0, 1, 2, 3, 63, 64, 130] {
                    let expected = naive.depth(slot, ways);
                    prop_assert_eq!(depths[slot as usize] as usize, expected);
                    prop_assert_eq!(index.depth(slot, &chain(ways)), expected);
                }
                prop_assert!(depths.iter().enumerate().all(|(s, &d)| d == 0 || [0, 1, 2, 3, 63, 64, 130].contains(&s)));
            }
            for slot in 0..131 {
                let held = naive.slot(slot).iter().map(|(_, b)| b).sum::<u64>();
                prop_assert_eq!(index.held(slot), (naive.slot(slot).len(), held));
            }
            let all: usize = naive.slots.iter().map(Vec::len).sum();
            prop_assert_eq!(index.len(), all);
        }
    }
}

#[test]
fn a_match_is_contiguous_from_the_start_whatever_lies_behind_a_gap() {
    let mut index = Index::default();
    let whole = chain(&[0, 1, 2, 0, 1, 2]);
    index.insert(0, &whole, WIDE);
    index.cut(0, &whole, 2);
    let mut depths = Vec::new();
    index.matches(&whole, 1, &mut depths);
    assert_eq!(depths, [2], "what was behind the cut is gone with it");
    assert_eq!(index.len(), 2);
}

#[test]
fn tails_go_before_heads_and_the_least_recently_used_branch_first() {
    let mut index = Index::default();
    let room = Room { bytes: u64::MAX, chunks: 6 };
    let [old, new] = [chain(&[0, 0, 1, 1]), chain(&[0, 0, 2, 2])];
    index.insert(0, &old, room);
    index.insert(0, &new, room);
    assert_eq!((index.depth(0, &old), index.depth(0, &new)), (4, 4), "six chunks: two shared, two each");
    index.insert(0, &chain(&[5]), room);
    assert_eq!(
        (index.depth(0, &old), index.depth(0, &new)),
        (3, 4),
        "the old branch lost its tail, not the head"
    );
    index.insert(0, &chain(&[6]), room);
    assert_eq!((index.depth(0, &old), index.depth(0, &new)), (2, 4));
}

#[test]
fn what_was_generated_takes_room_and_goes_before_the_prompt_it_hangs_on() {
    let mut index = Index::default();
    let room = Room { bytes: 1024, chunks: 100 };
    let prompt = chain(&[0, 0, 0, 0]);
    index.insert(0, &prompt, room);
    index.append(0, &prompt, 99, 512, room);
    assert_eq!(index.held(0), (5, 1024));
    index.insert(0, &chain(&[1]), room);
    assert_eq!((index.held(0), index.depth(0, &prompt)), ((5, 640), 4));
}

#[test]
fn a_prompt_larger_than_the_cache_is_held_as_far_as_it_fits() {
    let mut index = Index::default();
    let ways = vec![0; 100];
    index.insert(0, &chain(&ways), Room { bytes: 1_000, chunks: 1_000 });
    assert_eq!(index.held(0), (7, 896));
}
