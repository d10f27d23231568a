//! A tablespace's dirty set: its pages with changes that are not on disk, and the LSN of the oldest such change of
//! each.
//!
//! **Purpose.** The flusher takes pages oldest first, and the log may be truncated only below the oldest. The set
//! belongs to the tablespace, so a drop discards it as a whole.
//!
//! **Invariants.** A page is in `waiting` while its frame is `DIRTY`, under the LSN that the frame records (checked by
//! `buffer/invariants.rs::check_frame`). It is in `writing` from the moment a copy of it was taken until that copy is
//! durable in the data file (test: `a_low_water_mark_passes_nothing_that_only_the_log_knows`). It is in both if it
//! changed again meanwhile, and the oldest LSN counts both (test: `the_oldest_lsn_includes_pages_being_written`).

use std::collections::BTreeSet;

use crate::{
    ids::{Lsn, PageNo},
    sync::work::{self, Work},
};

/// The dirty set.
#[derive(Debug, Default)]
pub(super) struct DirtySet {
    pub(super) waiting: BTreeSet<(Lsn, PageNo)>,
    pub(super) writing: BTreeSet<(Lsn, PageNo)>,
}

impl DirtySet {
    /// Adds a page at its first change since it was last copied.
    pub(super) fn insert(&mut self, page: PageNo, since: Lsn) {
        self.waiting.insert((since, page));
    }

    /// Moves a page to `writing`: it was copied to be written.
    pub(super) fn start_writing(&mut self, page: PageNo, since: Lsn) {
        let was_waiting = self.waiting.remove(&(since, page));
        debug_assert!(was_waiting, "{page:?} is copied and does not wait to be written since {since:?}");
        let is_new = self.writing.insert((since, page));
        debug_assert!(is_new, "{page:?} is being written already");
    }

    /// Removes a page from `writing`: the copy is durable. Returns whether the page was there: the reclaimer may have
    /// taken the set of a dropped tablespace.
    pub(super) fn written(&mut self, page: PageNo, since: Lsn) -> bool {
        self.writing.remove(&(since, page))
    }

    /// Moves a page back to `waiting`: the copy could not be written. `changed_since` is the LSN of the next change, if
    /// the page changed again meanwhile. The page is dirty since the earlier change now.
    pub(super) fn not_written(&mut self, page: PageNo, since: Lsn, changed_since: Option<Lsn>) {
        let was_writing = self.writing.remove(&(since, page));
        debug_assert!(was_writing, "{page:?} was not being written since {since:?}");
        if let Some(later) = changed_since {
            debug_assert!(since <= later, "{page:?} changed again before the change that was copied");
            let was_waiting = self.waiting.remove(&(later, page));
            debug_assert!(was_waiting, "{page:?} is dirty and does not wait since {later:?}");
        }
        let is_new = self.waiting.insert((since, page));
        debug_assert!(is_new, "{page:?} waited to be written while its copy was");
    }

    /// Returns the LSN of the oldest change that is not durable in the data file.
    pub(super) fn oldest(&self) -> Option<Lsn> {
        let first = |set: &BTreeSet<(Lsn, PageNo)>| set.first().map(|(lsn, _)| *lsn);
        first(&self.waiting).into_iter().chain(first(&self.writing)).min()
    }

    /// Returns at most `most` of the pages that wait to be written, oldest first, up to this LSN.
    pub(super) fn oldest_waiting(&self, up_to: Lsn, most: usize) -> Vec<(Lsn, PageNo)> {
        let oldest: Vec<_> =
            self.waiting.iter().take_while(|(lsn, _)| *lsn <= up_to).take(most).copied().collect();
        work::add(Work::ListEntry, oldest.len() as u64);
        oldest
    }

    /// Returns the `n`-th of the pages that wait to be written, modulo their number.
    pub(super) fn nth_waiting(&self, n: usize) -> Option<PageNo> {
        let place = n.checked_rem(self.waiting.len())?;
        self.waiting.iter().nth(place).map(|(_, page)| *page)
    }

    /// Returns the number of pages that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether the set is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.writing.is_empty()
    }

    /// Removes at most `most` pages, and frees their memory. Returns whether there are more.
    pub(super) fn free_some(&mut self, most: usize) -> bool {
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
    fn the_oldest_lsn_includes_pages_being_written() {
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
    fn a_page_whose_write_failed_stays_dirty_with_its_lsn() {
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
