//! A set of tablespaces.
//!
//! **Purpose.** Every drop in the log must be known before anything is replayed, and a large log may contain the drops
//! of many million tables. Their tablespaces were numbered consecutively, so the numbers are close together.
//!
//! **Invariants.** 64 neighbouring numbers share a word, and no word is zero (test:
//! `a_space_set_has_its_members_and_neighbours_share_a_word`). So a tablespace takes half a byte if its neighbours are
//! in the set, too, and 32 bytes if it is alone.

use std::collections::BTreeMap;

use crate::ids::SpaceId;

/// A set of tablespace ids.
#[derive(Debug, Default)]
pub struct SpaceSet {
    words: BTreeMap<u64, u64>,
    count: usize,
}

/// Returns the word of a tablespace, and its bit there.
fn place(space: SpaceId) -> (u64, u64) {
    (space.0 / 64, 1 << (space.0 % 64))
}

impl SpaceSet {
    /// Adds a tablespace.
    pub fn insert(&mut self, space: SpaceId) {
        let (word, bit) = place(space);
        let word = self.words.entry(word).or_default();
        self.count += usize::from(*word & bit == 0);
        *word |= bit;
        debug_assert!(self.contains(space), "a tablespace was added and is not in the set");
        debug_assert!(self.words.len() <= self.count, "a word of the set is zero");
    }

    /// Returns whether it is in the set.
    pub fn contains(&self, space: SpaceId) -> bool {
        let (word, bit) = place(space);
        self.words.get(&word).is_some_and(|word| word & bit != 0)
    }

    /// Returns the number of tablespaces.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of stored words.
    #[cfg(test)]
    pub fn words(&self) -> usize {
        self.words.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_set_has_its_members_and_neighbours_share_a_word() {
        let mut set = SpaceSet::default();
        let ids = || (1000..2000).filter(|id| id % 3 != 0).chain([0, 63, 64, u64::MAX]);
        // Twice: inserting a member again changes nothing.
        ids().chain(ids()).for_each(|id| set.insert(SpaceId(id)));
        for id in (0..3000).chain([u64::MAX - 1, u64::MAX]) {
            assert_eq!(set.contains(SpaceId(id)), ids().any(|known| known == id), "{id}");
        }
        assert_eq!((set.len(), set.words()), (ids().count(), 17 + 3));
    }
}
