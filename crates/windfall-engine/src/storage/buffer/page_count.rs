//! The number of pages of a tablespace that are in use.
//!
//! **Purpose.** A server asks for this statistic with every statement. It is counted from the allocation maps once
//! after an opening, and then follows each allocation, so that it is read without a latch.
//!
//! **Invariants.** The count has the pages of the groups that are counted, and of no others (test:
//! `pages_are_counted_once_and_then_follow_the_maps`): a group is counted under the shared latch of its map page, and a
//! change of the map is added under the exclusive one, if the group is counted (test:
//! `pages_are_counted_while_others_change`). The group that follows the last one is made under the latch of that one's
//! map page, so all groups are counted once the last one is (test: `pages_are_counted_once_and_then_follow_the_maps`).
//! A tablespace that gets its first page has nothing to count (checked by `buffer/page_count.rs::begin_empty`). Nothing
//! of this is stored, so a crash makes no count wrong (test: `the_number_of_pages_is_exact_after_a_crash`).

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The bits of the number of pages; those above are the number of groups that are counted.
const PAGES_BITS: u32 = 33;
const PAGES: u64 = (1 << PAGES_BITS) - 1;
/// Stands for all groups.
const ALL: u64 = u64::MAX >> PAGES_BITS;

/// What is known of the number of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The number of pages in use.
    Pages(u64),
    /// The groups before this one are counted.
    Before(u32),
}

/// The counter: the pages of the groups that are counted, and the number of these.
#[derive(Debug, Default)]
pub(crate) struct PageCount(AtomicU64);

impl PageCount {
    /// Returns what is known.
    pub(crate) fn known(&self) -> Known {
        let now = self.0.load(Relaxed);
        match now >> PAGES_BITS {
            ALL => Known::Pages(now & PAGES),
            groups => Known::Before(groups as u32),
        }
    }

    /// Counts that a page of this group was allocated, or freed. The latch of its map page is held.
    pub(crate) fn change(&self, group: u32, is_used: bool) {
        if self.0.load(Relaxed) >> PAGES_BITS <= u64::from(group) {
            return;
        }
        if is_used {
            self.0.fetch_add(1, Relaxed);
        } else {
            let before = self.0.fetch_sub(1, Relaxed);
            debug_assert!(before & PAGES > 0, "a page is freed that was not counted");
        }
    }

    /// Counts the pages of a group, unless they are counted, or those of a group before are not. The latch of its map
    /// page is held.
    pub(crate) fn add_group(&self, group: u32, pages: u64, is_last: bool) {
        let mut now = self.0.load(Relaxed);
        while now >> PAGES_BITS == u64::from(group) {
            let groups = if is_last { ALL } else { u64::from(group) + 1 };
            let next = groups << PAGES_BITS | ((now & PAGES) + pages);
            match self.0.compare_exchange(now, next, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(found) => now = found,
            }
        }
    }

    /// Begins the count of a tablespace that gets its first page. The latch of its first map page is held.
    pub(crate) fn begin_empty(&self) {
        self.add_group(0, 0, true);
        debug_assert!(self.known() == Known::Pages(0), "a tablespace without a map page has pages");
    }

    /// Forgets everything, as a restart does.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}
