//! Frames: where one comes from.
//!
//! **Purpose.** From the free list, else from the end of the LRU list: a clean or dead page is evicted, a dirty one is
//! written first, by whoever needs the frame, as `buf_LRU_get_free_block` does.
//!
//! **Invariants.** A page is evicted under the locks of LRU list and page hash when nobody has pinned it. Its entries
//! in the hash index go before the frame is given to anybody.
//!
//! **May touch.** What `pool` may touch.

use core::{sync::atomic::Ordering::Relaxed, time::Duration};

use windfall::{error::Result, ids::PageId};

use super::{
    ClassicPool,
    descriptor::{DELETED, DIRTY, IO, PRETENDED},
    era::Part,
    instance::{Holding, Instance},
};
use crate::watch::Purpose;

/// So many pages from the end of the LRU list are looked at for one that can go at once:
/// `BUF_LRU_SEARCH_SCAN_THRESHOLD`. If none can, all are.
pub(super) const SEARCHED: usize = 100;
/// Who found none waits for the cleaner, but not longer than this.
const PATIENCE: Duration = Duration::from_millis(10);

impl ClassicPool {
    /// A frame that is in no list.
    pub(super) fn take_frame(&self, instance: &Instance) -> Result<u32> {
        loop {
            let free = {
                let _held = instance.hold(&[Part::Free], Purpose::Load);
                instance.free.pop(&self.frames)
            };
            if let Some(frame) = free {
                return Ok(frame);
            }
            let one = self.evict_one(instance, SEARCHED).or_else(|| self.evict_one(instance, usize::MAX));
            if let Some(frame) = one {
                return Ok(frame);
            }
            self.ground.health.check()?;
            if !self.write_for_a_frame(instance)? {
                self.cleaner_wake.notify();
                self.frame_freed.wait_for(PATIENCE, || !instance.free.is_empty());
            }
        }
    }

    /// Evicts one of so many of the oldest pages that can go without being written.
    pub(super) fn evict_one(&self, instance: &Instance, searched: usize) -> Option<u32> {
        let mut held = instance.hold(&[Part::Lru], Purpose::Load);
        let oldest = instance.lru.from_oldest(&self.frames).take(searched);
        for frame in oldest {
            if self.evict(instance, &mut held, frame) {
                drop(held);
                self.unhash(frame, Purpose::Hash);
                return Some(frame);
            }
        }
        None
    }

    /// Takes a page out of the pool if it can go: nobody uses it, and it is clean, or dead, or bookkeeping alone. The
    /// LRU list is held, and nothing that has a lock of its own beside it, before and after. Its entries in the hash
    /// index are still to go: [`ClassicPool::unhash`].
    pub(crate) fn evict(&self, instance: &Instance, held: &mut Holding<'_>, frame: u32) -> bool {
        let descriptor = &self.frames[frame as usize];
        let mut is_dirty = descriptor.is(DIRTY);
        let is_to_be_written = is_dirty && !descriptor.is(PRETENDED) && !self.is_dead(frame);
        if descriptor.is_pinned() || descriptor.is(IO) || is_to_be_written {
            return false;
        }
        if is_dirty {
            held.also(Part::Flush);
        }
        let latched = held.latch_page(descriptor.tag());
        // Nobody can pin it any more; somebody may have since the first look, and changed it, or written it.
        if descriptor.is_pinned() || !is_dirty && descriptor.is(DIRTY) {
            drop(latched);
            held.without(Part::Flush);
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
        held.without(Part::Flush);
        descriptor.clear(DIRTY | DELETED);
        self.counters.evictions.fetch_add(1, Relaxed);
        true
    }

    /// Removes the hash entries of a page that was evicted, and with that all that was known of it.
    pub(crate) fn unhash(&self, frame: u32, purpose: Purpose) -> u64 {
        let removed = self.hash.drop_page(&self.frames, frame, self.page(frame), purpose);
        self.frames[frame as usize].clear_tag();
        removed
    }

    /// Gives a frame to the free list.
    pub(crate) fn give_frame(&self, instance: &Instance, frame: u32) {
        {
            let _held = instance.hold(&[Part::Free], Purpose::Load);
            instance.free.push(&self.frames, frame);
        }
        self.tell_freed();
    }

    /// The same for a frame in no list that some may have pinned, who let go of it soon.
    pub(super) fn give_when_unpinned(&self, instance: &Instance, frame: u32) {
        while self.frames[frame as usize].is_pinned() {
            std::thread::yield_now();
        }
        self.give_frame(instance, frame);
    }

    /// The same for a frame that the caller has just evicted, under the locks that he holds.
    pub(crate) fn give_frame_under(&self, instance: &Instance, held: &mut Holding<'_>, frame: u32) {
        held.also(Part::Free);
        instance.free.push(&self.frames, frame);
        self.tell_freed();
    }

    /// Removes the hash entries of a pinned page under its latch.
    pub(crate) fn unhash_latched(&self, frame: u32) -> u64 {
        self.latch(frame).exclusive();
        self.unhash_and_unlatch(frame)
    }

    /// The same for who holds the pool mutex, and so waits for no latch: nothing is done if somebody has it.
    pub(crate) fn try_unhash(&self, frame: u32) -> u64 {
        if self.latch(frame).try_exclusive() { self.unhash_and_unlatch(frame) } else { 0 }
    }

    fn unhash_and_unlatch(&self, frame: u32) -> u64 {
        let removed = self.hash.drop_page(&self.frames, frame, self.page(frame), Purpose::Drop);
        self.latch(frame).release_unchanged();
        removed
    }

    /// Frees a dead page that somebody has met. Says whether it is gone; it is not while somebody uses it.
    pub(super) fn free_dead(&self, frame: u32, id: PageId) -> bool {
        let instance = self.instance_of(id);
        let mut held = instance.hold(&[Part::Lru], Purpose::Load);
        // Somebody else may have evicted it: its tag goes later than it leaves the page hash. Who holds the LRU list
        // keeps it there.
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
        self.unhash(frame, Purpose::Hash);
        self.give_frame(instance, frame);
        true
    }
}
