//! A set of page numbers.
//!
//! **Purpose.** Which pages a tree reaches, to be compared with its allocation maps: in pieces, 64 pages at a time, as
//! the maps have them.
//!
//! **Invariants.** No word is zero. Pages that lie side by side, as those of a tree mostly do, take less than half a
//! byte each; the set grows by small nodes, so adding one never copies them all.
//!
//! **May touch.** `ids`.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::ids::{PageNo, pages_of};

/// A set of pages, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    /// By the number of the first page divided by 64.
    words: BTreeMap<u32, u64>,
    len: usize,
}

impl PageSet {
    /// Adds a page. Says whether it was not there.
    pub fn insert(&mut self, page: PageNo) -> bool {
        let (word, bit) = (self.words.entry(page.0 / 64).or_default(), 1 << (page.0 % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        self.len += usize::from(is_new);
        is_new
    }

    /// Adds all pages of another set.
    pub fn append(&mut self, other: Self) {
        for (at, bits) in other.words {
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
    }

    /// How many pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The 64 pages from `64 * at` on, the lowest bit first.
    pub fn word(&self, at: u32) -> u64 {
        self.words.get(&at).copied().unwrap_or(0)
    }

    /// Where the next page from `64 * at` on is, divided by 64.
    pub fn next(&self, at: u32) -> Option<u32> {
        self.words.range(at..).next().map(|(at, _)| *at)
    }

    /// The pages, ascending.
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
