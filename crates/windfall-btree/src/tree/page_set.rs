//! A set of page numbers.
//!
//! **Purpose.** The pages that a tree reaches, to be compared with its allocation maps in words of 64 pages, as the
//! maps store them.
//!
//! **Invariants.** No word is zero (test: `is_a_set`). Adjacent pages, as those of a tree mostly are, take less than
//! half a byte each (test: `adjacent_pages_take_less_than_half_a_byte_each`). The set grows by small nodes, so adding a
//! page never copies the whole set (by type).

use std::collections::{BTreeMap, btree_map::Entry};

use crate::ids::{PageNo, pages_of};

/// A set of pages, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    /// Keyed by the number of the first page divided by 64.
    words: BTreeMap<u32, u64>,
    len: usize,
}

impl PageSet {
    /// Adds a page. Returns whether it was absent.
    pub fn insert(&mut self, page: PageNo) -> bool {
        let (word, bit) = (self.words.entry(page.0 / 64).or_default(), 1 << (page.0 % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        self.len += usize::from(is_new);
        debug_assert!(self.words.len() <= self.len, "a word of the set is zero");
        is_new
    }

    /// Adds all pages of another set.
    pub fn append(&mut self, other: Self) {
        for (at, bits) in other.words {
            debug_assert!(bits != 0, "a set of pages has an empty word");
            match self.words.entry(at) {
                Entry::Vacant(word) => {
                    word.insert(bits);
                    self.len += bits.count_ones() as usize;
                }
                Entry::Occupied(mut word) => {
                    self.len += (bits & !word.get()).count_ones() as usize;
                    *word.get_mut() |= bits;
                }
            }
        }
        debug_assert!(self.words.len() <= self.len, "a word of the set is zero");
    }

    /// Returns the number of pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the 64 pages from `64 * at` on as bits, the lowest bit first.
    pub fn word(&self, at: u32) -> u64 {
        self.words.get(&at).copied().unwrap_or(0)
    }

    /// Returns the position, divided by 64, of the next word with a page from `64 * at` on.
    pub fn next(&self, at: u32) -> Option<u32> {
        self.words.range(at..).next().map(|(at, _)| *at)
    }

    /// Returns the pages in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = PageNo> {
        self.words.iter().flat_map(|(at, bits)| pages_of(*at, *bits))
    }
}

impl FromIterator<PageNo> for PageSet {
    fn from_iter<I: IntoIterator<Item = PageNo>>(pages: I) -> Self {
        let mut set = Self::default();
        for page in pages {
            set.insert(page);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_set(one in proptest::collection::vec(0..400u32, 0..80), two in proptest::collection::vec(0..400u32, 0..80)) {
            let (mut set, mut model) = (PageSet::default(), BTreeSet::new());
            for page in &one {
                prop_assert_eq!(set.insert(PageNo(*page)), model.insert(PageNo(*page)));
            }
            set.append(two.iter().copied().map(PageNo).collect());
            model.extend(two.iter().copied().map(PageNo));
            prop_assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
            prop_assert!(set.iter().eq(model.iter().copied()));
            for at in 0..8 {
                prop_assert_eq!(set.next(at), model.range(PageNo(at * 64)..).next().map(|page| page.0 / 64));
                prop_assert!(pages_of(at, set.word(at)).eq(model.range(PageNo(at * 64)..PageNo(at * 64 + 64)).copied()));
            }
        }
    }
}
