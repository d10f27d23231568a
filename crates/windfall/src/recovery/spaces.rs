//! A set of tablespaces.
//!
//! **Purpose.** Every drop in the log has to be known before anything is replayed, and a large log may have those of
//! many million tables. Their tablespaces were numbered one after the other, so the numbers lie close together.
//!
//! **Invariants.** 64 neighbouring numbers share a word, and no word is zero. So a tablespace takes half a byte where
//! its neighbours are in the set, too, and 32 bytes where it is alone.
//!
//! **May touch.** `ids`.

use std::collections::BTreeMap;

use crate::ids::SpaceId;

/// The set.
#[derive(Debug, Default)]
pub struct SpaceSet {
    words: BTreeMap<u64, u64>,
    count: usize,
}

/// The word of a tablespace, and its bit there.
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
    }

    /// Whether it is in the set.
    pub fn contains(&self, space: SpaceId) -> bool {
        let (word, bit) = place(space);
        self.words.get(&word).is_some_and(|word| word & bit != 0)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// How many words are kept.
    #[cfg(test)]
    pub fn words(&self) -> usize {
        self.words.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_added_and_neighbours_share_a_word() {
        let mut set = SpaceSet::default();
        let ids = || (1000..2000).filter(|id| id % 3 != 0).chain([0, 63, 64, u64::MAX]);
        // Twice: one that is there changes nothing.
        ids().chain(ids()).for_each(|id| set.insert(SpaceId(id)));
        for id in (0..3000).chain([u64::MAX - 1, u64::MAX]) {
            assert_eq!(set.contains(SpaceId(id)), ids().any(|known| known == id), "{id}");
        }
        assert_eq!((set.len(), set.words()), (ids().count(), 17 + 3));
    }
}
