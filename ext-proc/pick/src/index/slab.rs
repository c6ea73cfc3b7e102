//! The entries of the index in one block of memory, linked by their places in it.

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// One chunk on one endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) hash: u64,
    pub(super) bytes: u32,
    pub(super) parent: u32,
    /// First of its children; they are linked as siblings.
    pub(super) child: u32,
    pub(super) next_sibling: u32,
    pub(super) previous_sibling: u32,
    /// Neighbours in order of last use.
    pub(super) older: u32,
    pub(super) newer: u32,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            hash: 0,
            bytes: 0,
            parent: NONE,
            child: NONE,
            next_sibling: NONE,
            previous_sibling: NONE,
            older: NONE,
            newer: NONE,
        }
    }
}

/// The block. Free places are linked by `older`.
#[derive(Debug)]
pub(super) struct Slab {
    entries: Vec<Entry>,
    free: u32,
}

impl Default for Slab {
    fn default() -> Self {
        Self { entries: Vec::new(), free: NONE }
    }
}

impl Slab {
    /// The entry at `place`; an empty one where there is none.
    pub(super) fn get(&self, place: u32) -> Entry {
        self.entries.get(place as usize).copied().unwrap_or_default()
    }

    /// Edits the entry at `place`; nothing where there is none.
    pub(super) fn edit(&mut self, place: u32, edit: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.entries.get_mut(place as usize) {
            edit(entry);
        }
    }

    pub(super) fn add(&mut self, entry: Entry) -> u32 {
        match self.entries.get_mut(self.free as usize) {
            Some(place) => {
                let at = self.free;
                self.free = place.older;
                *place = entry;
                at
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
            }
        }
    }

    pub(super) fn free(&mut self, place: u32) {
        let before = self.free;
        self.edit(place, |entry| *entry = Entry { older: before, ..Entry::default() });
        self.free = place;
    }
}
