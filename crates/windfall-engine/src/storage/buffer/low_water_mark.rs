//! The oldest change that is only in the log: the pool's part of the log's low-water mark.
//!
//! **Purpose.** Computes the minimum over all dirty tablespaces, for 100,000 of them, without a scan and without a lock
//! that a page change or a drop would take.
//!
//! **Invariants.** A tablespace with a dirty page is in the inbox or in the heap (test:
//! `the_minimum_follows_changes_writes_and_drops`). Its key in the heap is at most its oldest LSN, now and later
//! (checked by `buffer/low_water_mark.rs::oldest_of`). So the top of the heap, once its key is up to date, is the
//! minimum. Groups register their pages in any order, and an older change may arrive after a newer one: a key never
//! rises above the LSN below which all changes are registered, and this LSN is read before the dirty set is examined
//! (test: `a_low_water_mark_waits_for_the_older_of_two_groups`). A dropped tablespace is included until its drop is
//! durable (test: `the_minimum_follows_changes_writes_and_drops`), or until the reclaimer has taken its dirty set. The
//! second case is safe because the control file records no low-water mark before the log is durable beyond everything
//! that was appended before (test: `a_low_water_mark_on_disk_passes_nothing_that_a_crash_would_miss`).

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crossbeam_queue::SegQueue;

use super::space::{Durability, Space};
use crate::{
    ids::{Lsn, PageNo},
    sync::{
        Arc, Mutex, Rank,
        atomic::Ordering::{AcqRel, Relaxed, Release},
        work::{self, Work},
    },
};

/// Computes the low-water mark of dirty pages: the oldest LSN that the log must keep because of them.
#[derive(Debug)]
pub(super) struct LowWaterMark {
    inbox: SegQueue<Arc<Space>>,
    heap: Mutex<Heap>,
}

#[derive(Debug, Default)]
struct Heap {
    order: BinaryHeap<(Reverse<Lsn>, usize)>,
    spaces: Vec<Option<Arc<Space>>>,
    unused: Vec<usize>,
}

impl Heap {
    fn push(&mut self, lsn: Lsn, space: Arc<Space>) {
        let place = self.unused.pop().unwrap_or_else(|| {
            self.spaces.push(None);
            self.spaces.len() - 1
        });
        debug_assert!(self.spaces[place].is_none(), "place {place} of the heap is used twice");
        self.spaces[place] = Some(space);
        self.order.push((Reverse(lsn), place));
        debug_assert!(
            self.order.len() + self.unused.len() == self.spaces.len(),
            "a place of the heap is neither used nor unused"
        );
    }

    fn pop(&mut self) -> Option<(Lsn, Arc<Space>)> {
        work::count(Work::ListEntry);
        let (Reverse(lsn), place) = self.order.pop()?;
        self.unused.push(place);
        debug_assert!(
            self.order.len() + self.unused.len() == self.spaces.len(),
            "a place of the heap is neither used nor unused"
        );
        Some((lsn, self.spaces[place].take().expect("every place in the order is taken")))
    }
}

impl Default for LowWaterMark {
    fn default() -> Self {
        Self { inbox: SegQueue::new(), heap: Mutex::new(Rank::Pool, Heap::default()) }
    }
}

impl LowWaterMark {
    /// Registers a page at its first change since it was last copied to be written.
    pub(super) fn page_dirtied(&self, space: &Arc<Space>, page: PageNo, since: Lsn) {
        let mut dirty = space.dirty.lock();
        let waiting = dirty.waiting();
        dirty.insert(page, since);
        debug_assert!(dirty.waiting() == waiting + 1, "{page:?} becomes dirty and is in the dirty set");
        // A temporary tablespace has no changes in the log.
        if space.durability() == Durability::Logged && !space.listed.swap(true, AcqRel) {
            self.inbox.push(space.clone());
        }
    }

    /// Returns the LSN of the oldest change of a page that is not durable in its data file, or `registered` if that is
    /// lower; `None` when there is none. `durable` is the LSN up to which the log is durable. Every change below
    /// `registered` must have been registered before the call.
    pub(super) fn oldest(&self, durable: Lsn, registered: Lsn) -> Option<Lsn> {
        let mut heap = self.heap.lock();
        self.empty_inbox(&mut heap);
        while let Some((key, space)) = heap.pop() {
            let oldest = Self::oldest_of(&space, durable, key).map(|lsn| lsn.min(registered));
            match oldest {
                None => {}
                Some(lsn) if lsn <= key => {
                    heap.push(key, space);
                    return Some(key);
                }
                Some(lsn) => heap.push(lsn, space),
            }
        }
        None
    }

    /// Returns the tablespace's oldest LSN; `key` is its key in the heap. A tablespace that is clean, or durably
    /// dropped, leaves the list: `None`.
    fn oldest_of(space: &Space, durable: Lsn, key: Lsn) -> Option<Lsn> {
        let dirty = space.dirty.lock();
        let oldest = dirty.oldest().filter(|_| !space.is_durably_dropped(durable));
        debug_assert!(
            oldest.is_none_or(|oldest| key <= oldest),
            "the log may be cut off above a change of tablespace {} that is not on disk",
            space.id()
        );
        if oldest.is_none() {
            // Under the lock of the dirty set: the thread that dirties the next page lists the tablespace again.
            space.listed.store(false, Release);
        }
        oldest
    }

    fn empty_inbox(&self, heap: &mut Heap) {
        // Only as many as there are now: other threads may continue to push.
        for _ in 0..self.inbox.len() {
            if let Some(space) = self.inbox.pop() {
                debug_assert!(space.listed.load(Relaxed), "tablespace {} was queued unlisted", space.id());
                // Zero is below any LSN of the tablespace; the key is corrected when it reaches the top.
                heap.push(Lsn::ZERO, space);
            }
        }
    }

    /// Returns at most `most` live tablespaces with old dirty pages, oldest first: their oldest change is at or before
    /// `up_to`, and their file is not failing. `durable` and `registered` are as for [`LowWaterMark::oldest`].
    pub(super) fn oldest_spaces(
        &self,
        up_to: Lsn,
        most: usize,
        durable: Lsn,
        registered: Lsn,
    ) -> Vec<Arc<Space>> {
        let mut heap = self.heap.lock();
        self.empty_inbox(&mut heap);
        let mut found = Vec::new();
        let mut kept = Vec::new();
        while found.len() < most
            && let Some((key, space)) = heap.pop()
        {
            match Self::oldest_of(&space, durable, key).map(|lsn| lsn.min(registered)) {
                None => {}
                Some(lsn) if lsn > key => heap.push(lsn, space),
                Some(_) if key > up_to => {
                    heap.push(key, space);
                    break;
                }
                Some(_) => {
                    if !space.is_dropped() && !space.is_failing() {
                        found.push(space.clone());
                    }
                    kept.push((key, space));
                }
            }
        }
        for (key, space) in kept {
            heap.push(key, space);
        }
        debug_assert!(found.len() <= most, "{} tablespaces are more than the {most} requested", found.len());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SpaceId;

    #[test]
    fn the_minimum_follows_changes_writes_and_drops() {
        let low_water_mark = LowWaterMark::default();
        let spaces: Vec<_> =
            (0..4).map(|n| Arc::new(Space::new(SpaceId(20 + n), Durability::Logged))).collect();
        assert_eq!(low_water_mark.oldest(Lsn(0), Lsn::MAX), None);
        for (n, space) in spaces.iter().enumerate() {
            low_water_mark.page_dirtied(space, PageNo(1), Lsn(100 + n as u64));
            low_water_mark.page_dirtied(space, PageNo(2), Lsn(200 + n as u64));
        }
        assert_eq!(low_water_mark.oldest(Lsn(0), Lsn::MAX), Some(Lsn(100)));
        let write = |space: &Space, page, lsn| {
            space.dirty.lock().start_writing(page, lsn);
            space.dirty.lock().written(page, lsn);
        };
        write(&spaces[0], PageNo(1), Lsn(100));
        assert_eq!(low_water_mark.oldest(Lsn(0), Lsn::MAX), Some(Lsn(101)));
        // A tablespace is left out once its drop is durable.
        spaces[1].mark_dropped(Some(Lsn(500)));
        assert_eq!(low_water_mark.oldest(Lsn(499), Lsn::MAX), Some(Lsn(101)));
        assert_eq!(low_water_mark.oldest(Lsn(500), Lsn::MAX), Some(Lsn(102)));
        assert_eq!(
            low_water_mark
                .oldest_spaces(Lsn(150), 9, Lsn(500), Lsn::MAX)
                .iter()
                .map(|s| s.id().0)
                .collect::<Vec<_>>(),
            [22, 23]
        );
        assert_eq!(low_water_mark.oldest_spaces(Lsn(250), 2, Lsn(500), Lsn::MAX).len(), 2);
        for (n, space) in spaces.iter().enumerate().skip(2) {
            write(space, PageNo(1), Lsn(100 + n as u64));
            write(space, PageNo(2), Lsn(200 + n as u64));
        }
        assert_eq!(low_water_mark.oldest(Lsn(500), Lsn::MAX), Some(Lsn(200)));
        write(&spaces[0], PageNo(2), Lsn(200));
        assert_eq!(low_water_mark.oldest(Lsn(500), Lsn::MAX), None);
        low_water_mark.page_dirtied(&spaces[2], PageNo(1), Lsn(900));
        assert_eq!(low_water_mark.oldest(Lsn(500), Lsn::MAX), Some(Lsn(900)));
    }

    #[test]
    fn an_older_change_may_be_registered_after_a_younger_one() {
        let low_water_mark = LowWaterMark::default();
        let space = |n| Arc::new(Space::new(SpaceId(n), Durability::Logged));
        let (late, other) = (space(20), space(21));
        // The group at 100 is slow: the one at 200 registers its page first, and a check comes in between.
        low_water_mark.page_dirtied(&late, PageNo(2), Lsn(200));
        assert_eq!(low_water_mark.oldest(Lsn(0), Lsn(100)), Some(Lsn(100)));
        assert_eq!(low_water_mark.oldest_spaces(Lsn(300), 9, Lsn(0), Lsn(100)).len(), 1);
        low_water_mark.page_dirtied(&late, PageNo(1), Lsn(100));
        low_water_mark.page_dirtied(&other, PageNo(1), Lsn(150));
        assert_eq!(low_water_mark.oldest(Lsn(0), Lsn(300)), Some(Lsn(100)));
    }
}
