//! Allocation of frames.
//!
//! **Purpose.** A frame is taken from the free list, else from the old end of the LRU list. A clean or dead page is
//! evicted at once; a dirty one is first written, by the thread that needs the frame, as `buf_LRU_get_free_block`
//! does.
//!
//! **Invariants.** A page is evicted only if it is not pinned (checked by `pool/replace.rs::remove_hash_entries`): that
//! is determined under the locks of LRU list and page hash. Its entries in the hash index are removed before the frame
//! is used again (checked by `pool/access.rs::enter`).

use core::{sync::atomic::Ordering::Relaxed, time::Duration};

use windfall::{error::Result, ids::PageId};

use super::{
    ClassicPool,
    descriptor::{DELETED, DIRTY, IO, SYNTHETIC},
    era::Part,
    instance::{HeldLocks, Instance},
};
use crate::watch::Purpose;

/// The number of pages from the old end of the LRU list that are searched for one that can be evicted at once:
/// `BUF_LRU_SEARCH_SCAN_THRESHOLD`. If there is none, all pages are searched.
pub(super) const SEARCHED: usize = 100;
/// The maximum wait for the cleaner if no page can be evicted.
const FRAME_WAIT: Duration = Duration::from_millis(10);

impl ClassicPool {
    /// Returns a frame that is in no list.
    pub(super) fn allocate_frame(&self, instance: &Instance) -> Result<u32> {
        loop {
            let free = {
                let _held = instance.lock(&[Part::Free], Purpose::Load);
                instance.free.pop(&self.frames)
            };
            if let Some(frame) = free {
                return Ok(frame);
            }
            let one = self.evict_one(instance, SEARCHED).or_else(|| self.evict_one(instance, usize::MAX));
            if let Some(frame) = one {
                return Ok(frame);
            }
            self.context.health.check()?;
            if !self.write_for_a_frame(instance)? {
                self.cleaner_wake.notify();
                self.frame_freed.wait_for(FRAME_WAIT, || !instance.free.is_empty());
            }
        }
    }

    /// Evicts one of the `searched` oldest pages that need not be written.
    pub(super) fn evict_one(&self, instance: &Instance, searched: usize) -> Option<u32> {
        let mut held = instance.lock(&[Part::Lru], Purpose::Load);
        let oldest = instance.lru.from_oldest(&self.frames).take(searched);
        for frame in oldest {
            if self.evict(instance, &mut held, frame) {
                drop(held);
                self.remove_hash_entries(frame, Purpose::Hash);
                return Some(frame);
            }
        }
        None
    }

    /// Evicts a page if possible: it must be unused, and clean, dead or bookkeeping only. Before and after the call,
    /// the caller holds the LRU list's lock, and none of a part that has a separate lock. The entries in the hash
    /// index remain: [`ClassicPool::remove_hash_entries`] removes them.
    pub(crate) fn evict(&self, instance: &Instance, held: &mut HeldLocks<'_>, frame: u32) -> bool {
        let descriptor = &self.frames[frame as usize];
        let mut is_dirty = descriptor.is(DIRTY);
        let is_to_be_written = is_dirty && !descriptor.is(SYNTHETIC) && !self.is_dead(frame);
        if descriptor.is_pinned() || descriptor.is(IO) || is_to_be_written {
            return false;
        }
        if is_dirty {
            held.acquire(Part::Flush);
        }
        let latched = held.latch_page(descriptor.tag());
        // From here on the page cannot be pinned. Since the first check it may have been pinned, changed or written.
        if descriptor.is_pinned() || !is_dirty && descriptor.is(DIRTY) {
            drop(latched);
            held.release(Part::Flush);
            return false;
        }
        is_dirty = descriptor.is(DIRTY);
        instance.pages.remove(&self.frames, frame);
        drop(latched);
        instance.lru.remove(&self.frames, frame);
        instance.lru.tick();
        if is_dirty {
            instance.flush.remove(&self.frames, frame);
        }
        held.release(Part::Flush);
        descriptor.clear(DIRTY | DELETED);
        self.counters.evictions.fetch_add(1, Relaxed);
        true
    }

    /// Removes the hash entries of an evicted page, and clears the descriptor.
    pub(crate) fn remove_hash_entries(&self, frame: u32, purpose: Purpose) -> u64 {
        debug_assert!(!self.frames[frame as usize].is_pinned(), "the page of a pinned frame is evicted");
        let removed = self.hash.drop_page(&self.frames, frame, self.page(frame), purpose);
        self.frames[frame as usize].clear_tag();
        removed
    }

    /// Adds a frame to the free list.
    pub(crate) fn free_frame(&self, instance: &Instance, frame: u32) {
        {
            let _held = instance.lock(&[Part::Free], Purpose::Load);
            instance.free.push(&self.frames, frame);
        }
        self.notify_freed();
    }

    /// Adds a frame to the free list that is in no list and may still be pinned for a short time.
    pub(super) fn free_when_unpinned(&self, instance: &Instance, frame: u32) {
        while self.frames[frame as usize].is_pinned() {
            std::thread::yield_now();
        }
        self.free_frame(instance, frame);
    }

    /// Adds a frame to the free list that the caller has just evicted, under the locks that it holds.
    pub(crate) fn free_frame_under(&self, instance: &Instance, held: &mut HeldLocks<'_>, frame: u32) {
        held.acquire(Part::Free);
        instance.free.push(&self.frames, frame);
        self.notify_freed();
    }

    /// Removes the hash entries of a pinned page under its latch.
    pub(crate) fn remove_hash_entries_under_latch(&self, frame: u32) -> u64 {
        self.await_exclusive(frame);
        self.remove_hash_entries_and_unlatch(frame)
    }

    /// As [`ClassicPool::remove_hash_entries_under_latch`], for a caller that holds the pool mutex, and so must
    /// not wait for a latch: does nothing if the latch is taken.
    pub(crate) fn try_remove_hash_entries(&self, frame: u32) -> u64 {
        if self.latch(frame).try_exclusive() { self.remove_hash_entries_and_unlatch(frame) } else { 0 }
    }

    fn remove_hash_entries_and_unlatch(&self, frame: u32) -> u64 {
        let removed = self.hash.drop_page(&self.frames, frame, self.page(frame), Purpose::Drop);
        self.latch(frame).release_unchanged();
        removed
    }

    /// Frees a dead page that was found. Returns whether the page is freed: `false` while it is in use.
    pub(super) fn free_dead(&self, frame: u32, id: PageId) -> bool {
        let instance = self.instance_of(id);
        let mut held = instance.lock(&[Part::Lru], Purpose::Load);
        // Another thread may have evicted the page: it leaves the page hash before its tag is cleared. While the LRU
        // list's lock is held it stays in the page hash.
        let is_there = {
            let _latched = held.latch_page(id);
            instance.pages.find(&self.frames, id) == Some(frame)
        };
        if !is_there || !self.is_dead(frame) {
            return true;
        }
        if !self.evict(instance, &mut held, frame) {
            return false;
        }
        drop(held);
        self.remove_hash_entries(frame, Purpose::Hash);
        self.free_frame(instance, frame);
        true
    }
}
