//! A tablespace's dirty set: which of its pages have changes that are not on disk, and since when.
//!
//! **Purpose.** The flusher takes pages oldest first; the log may be cut only below the oldest. The set belongs to
//! the tablespace, so a drop leaves it behind in one piece.
//!
//! **Invariants.** A page is in `waiting` while its frame is `DIRTY`, under the LSN that the frame notes. It is in
//! `writing` from the moment a copy of it was taken until that copy is durable in the data file. It may be in both,
//! when it changed again meanwhile. The oldest LSN counts both.
//!
//! **May touch.** `ids`, `sync`.

use std::collections::BTreeSet;

use crate::{
    ids::{Lsn, PageNo},
    sync::work::{self, Work},
};

/// The dirty set.
#[derive(Debug, Default)]
pub struct DirtySet {
    waiting: BTreeSet<(Lsn, PageNo)>,
    writing: BTreeSet<(Lsn, PageNo)>,
}

impl DirtySet {
    /// A page has its first change since it was last copied.
    pub fn insert(&mut self, page: PageNo, since: Lsn) {
        self.waiting.insert((since, page));
    }

    /// The page was copied for writing.
    pub fn start_writing(&mut self, page: PageNo, since: Lsn) {
        self.waiting.remove(&(since, page));
        self.writing.insert((since, page));
    }

    /// The copy is durable.
    pub fn written(&mut self, page: PageNo, since: Lsn) {
        self.writing.remove(&(since, page));
    }

    /// The copy could not be written. `changed_since` is when the page changed again meanwhile, if it did: it is
    /// dirty since the earlier change now.
    pub fn not_written(&mut self, page: PageNo, since: Lsn, changed_since: Option<Lsn>) {
        self.writing.remove(&(since, page));
        if let Some(later) = changed_since {
            self.waiting.remove(&(later, page));
        }
        self.waiting.insert((since, page));
    }

    /// The oldest change that is not durable in the data file.
    pub fn oldest(&self) -> Option<Lsn> {
        let first = |set: &BTreeSet<(Lsn, PageNo)>| set.first().map(|(lsn, _)| *lsn);
        first(&self.waiting).into_iter().chain(first(&self.writing)).min()
    }

    /// The pages that wait to be written, oldest first, up to this LSN and at most so many.
    pub fn oldest_waiting(&self, up_to: Lsn, most: usize) -> Vec<(Lsn, PageNo)> {
        let oldest: Vec<_> =
            self.waiting.iter().take_while(|(lsn, _)| *lsn <= up_to).take(most).copied().collect();
        work::add(Work::ListEntry, oldest.len() as u64);
        oldest
    }

    /// One of the pages that wait: of so many as there are, the `n`-th, counted on from the first behind the last.
    pub fn nth_waiting(&self, n: usize) -> Option<PageNo> {
        let place = n.checked_rem(self.waiting.len())?;
        self.waiting.iter().nth(place).map(|(_, page)| *page)
    }

    /// How many pages wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is no page in it.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.writing.is_empty()
    }

    /// Forgets at most so many pages, and frees their memory. Says whether there are more.
    pub fn free_some(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let _ = self.waiting.pop_first().or_else(|| self.writing.pop_first());
        }
        !self.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_counts_what_is_being_written() {
        let mut set = DirtySet::default();
        set.insert(PageNo(1), Lsn(10));
        set.insert(PageNo(2), Lsn(20));
        set.start_writing(PageNo(1), Lsn(10));
        set.insert(PageNo(1), Lsn(30));
        assert_eq!(set.oldest(), Some(Lsn(10)));
        assert_eq!(set.oldest_waiting(Lsn(25), 9), vec![(Lsn(20), PageNo(2))]);
        set.written(PageNo(1), Lsn(10));
        assert_eq!(set.oldest(), Some(Lsn(20)));
        set.start_writing(PageNo(2), Lsn(20));
        set.written(PageNo(2), Lsn(20));
        assert_eq!((set.oldest(), set.waiting()), (Some(Lsn(30)), 1));
    }

    #[test]
    fn what_could_not_be_written_waits_as_before() {
        for changed_since in [None, Some(Lsn(30))] {
            let mut set = DirtySet::default();
            set.insert(PageNo(1), Lsn(10));
            set.start_writing(PageNo(1), Lsn(10));
            if let Some(later) = changed_since {
                set.insert(PageNo(1), later);
            }
            set.not_written(PageNo(1), Lsn(10), changed_since);
            assert_eq!(set.oldest_waiting(Lsn(99), 9), vec![(Lsn(10), PageNo(1))]);
            set.start_writing(PageNo(1), Lsn(10));
            set.written(PageNo(1), Lsn(10));
            assert_eq!((set.oldest(), set.waiting()), (None, 0));
        }
    }
}
