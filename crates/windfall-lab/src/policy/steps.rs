//! The steps that policies consist of, with their counters.
//!
//! **Purpose.** Steps that several versions have in common are here once. The file of each policy defines which of
//! them it does, in which order and under which locks.
//!
//! **Invariants.** Each step counts its own work, where it is done: the counts are those that a scan of all descriptors
//! finds (tests: `lru_scan_walks_the_whole_list_under_the_pool_mutex`, `lazy_mark_flags_and_frees_nothing`,
//! `extent_ahi_asks_for_each_page_and_walks_both_lists`).

use core::{ops::AddAssign, sync::atomic::Ordering::Relaxed};
use std::{thread, time::Duration};

use serde::{Deserialize, Serialize};
use windfall::ids::{PageId, SpaceId};

use crate::{
    pool::{
        ClassicPool, Space,
        descriptor::{DIRTY, IO},
        era::Part,
        instance::{HeldLocks, Instance},
    },
    watch::Purpose,
};

/// Pages that are handled between two pauses, or collected before their hash entries are removed:
/// `BUF_LRU_DROP_SEARCH_SIZE`.
pub(super) const BATCH: usize = 1024;
/// The wait before the next scan if a page was in use, as in `InnoDB`.
const RETRY_WAIT: Duration = Duration::from_millis(20);

/// The counted work of a drop in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// Entries of LRU lists that were examined.
    pub lru_walked: u64,
    /// Entries of flush lists that were examined.
    pub flush_walked: u64,
    /// Descriptors that were examined besides these.
    pub frames_scanned: u64,
    /// Pages that were looked up in the page hash. Windfall has none: there it is the pages that were latched.
    pub looked_up: u64,
    /// Pages that were marked as deleted.
    pub flagged: u64,
    /// Pages that were evicted; their frames were freed.
    pub freed: u64,
    /// Dirty pages that were removed from the flush list without being written or freed.
    pub unflushed: u64,
    /// The number of times that locks were released and taken again before the work was done.
    pub released: u64,
    /// Pages that had entries removed from the hash index.
    pub unhashed: u64,
    /// The entries that were removed.
    pub hash_entries: u64,
    /// Lists that were scanned again because a page was in use.
    pub repeated: u64,
}

impl AddAssign for Steps {
    fn add_assign(&mut self, other: Self) {
        self.lru_walked += other.lru_walked;
        self.flush_walked += other.flush_walked;
        self.frames_scanned += other.frames_scanned;
        self.looked_up += other.looked_up;
        self.flagged += other.flagged;
        self.freed += other.freed;
        self.unflushed += other.unflushed;
        self.released += other.released;
        self.unhashed += other.unhashed;
        self.hash_entries += other.hash_entries;
        self.repeated += other.repeated;
    }
}

impl Steps {
    /// Counts a page whose hash entries were removed.
    pub fn count_unhashed(&mut self, entries: u64) {
        self.unhashed += u64::from(entries > 0);
        self.hash_entries += entries;
    }

    /// Scans the LRU list, whose lock the caller holds, and frees every page of the tablespace. Returns whether none
    /// was in use. Locks for parts that the mutex of the list does not guard are taken per page.
    pub fn free_pages(
        &mut self,
        pool: &ClassicPool,
        instance: &Instance,
        held: &mut HeldLocks<'_>,
        space: SpaceId,
    ) -> bool {
        let mut all = true;
        for frame in instance.lru.from_oldest(pool.frames()) {
            self.lru_walked += 1;
            if pool.frames()[frame as usize].space() != space {
                continue;
            }
            if pool.evict(instance, held, frame) {
                self.count_unhashed(pool.remove_hash_entries(frame, Purpose::Drop));
                pool.free_frame_under(instance, held, frame);
                held.release(Part::Free);
                self.freed += 1;
            } else {
                all = false;
            }
        }
        all
    }

    /// Counts a repetition and sleeps, so that the users of a page can release it.
    pub fn wait_for_users(&mut self) {
        self.repeated += 1;
        thread::sleep(RETRY_WAIT);
    }

    /// Removes the dirty pages of the tablespace from an instance's flush list, in batches, with a pause after each.
    pub fn remove_dirty(&mut self, pool: &ClassicPool, instance: &Instance, space: SpaceId) {
        let frames = pool.frames();
        loop {
            let mut held = lock_lists(instance);
            let mut at = instance.flush.oldest();
            let (mut removed, mut all) = (0, true);
            while let Some(frame) = at {
                self.flush_walked += 1;
                let descriptor = &frames[frame as usize];
                at = instance.flush.newer(frames, frame);
                if descriptor.space() != space {
                    continue;
                }
                if descriptor.is(IO) {
                    all = false;
                    continue;
                }
                descriptor.clear(DIRTY);
                instance.flush.remove(frames, frame);
                self.unflushed += 1;
                removed += 1;
                if removed == BATCH
                    && let Some(next) = at
                {
                    // The next page is pinned meanwhile. If it was written, and perhaps changed again, its position in
                    // the list has changed.
                    let since = frames[next as usize].oldest();
                    frames[next as usize].pin();
                    drop(held);
                    self.released += 1;
                    thread::yield_now();
                    held = lock_lists(instance);
                    removed = 0;
                    let is_there = frames[next as usize].is(DIRTY) && frames[next as usize].oldest() == since;
                    frames[next as usize].unpin();
                    if !is_there {
                        at = instance.flush.oldest();
                    }
                }
            }
            drop(held);
            if all {
                return;
            }
            self.wait_for_users();
        }
    }

    /// Looks a page up. If it has entries in the hash index, removes them under the page's exclusive latch.
    pub fn remove_hash_entries_of(&mut self, pool: &ClassicPool, id: PageId) {
        self.looked_up += 1;
        let Some(frame) = pool.instance_of(id).pin(pool.frames(), id, Purpose::Drop) else { return };
        if pool.frames()[frame as usize].hashed.load(Relaxed) > 0 {
            self.count_unhashed(pool.remove_hash_entries_under_latch(frame));
        }
        pool.frames()[frame as usize].unpin();
    }

    /// Scans the LRU list of an instance and removes the hash entries of the tablespace's pages. The pages are
    /// collected in batches. The list's lock is released while a batch is processed; after that the scan begins again.
    pub fn remove_hash_entries_by_lru(&mut self, pool: &ClassicPool, instance: &Instance, space: &Space) {
        loop {
            let mut batch = Vec::new();
            {
                let _held = instance.lock(&[Part::Lru], Purpose::Drop);
                for frame in instance.lru.from_oldest(pool.frames()) {
                    self.lru_walked += 1;
                    let descriptor = &pool.frames()[frame as usize];
                    if descriptor.space() == space.id && descriptor.hashed.load(Relaxed) > 0 {
                        batch.push(descriptor.tag());
                        if batch.len() == BATCH {
                            break;
                        }
                    }
                }
            }
            let is_last = batch.len() < BATCH;
            for id in batch {
                self.remove_hash_entries_of(pool, id);
            }
            if is_last {
                return;
            }
            self.released += 1;
        }
    }
}

/// Acquires the pool mutex, if one guards the LRU list, or the LRU list mutex, and then the mutex of the flush list.
fn lock_lists(instance: &Instance) -> HeldLocks<'_> {
    let mut held = instance.lock(&[Part::Lru], Purpose::Drop);
    held.acquire(Part::Flush);
    held
}
