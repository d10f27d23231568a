//! A frame's descriptor: 64 bytes that describe the page in the frame.
//!
//! **Purpose.** All that replacement, flushing and readers need of a frame is in one cache line. Except for the free
//! list the frame is in no list: frames are found by number or through the page table of their tablespace.
//!
//! **Invariants.** The tag (tablespace and page) changes only under the exclusive latch (checked by
//! `buffer/frame.rs::set_tag`). A change sets `DIRTY` under the exclusive latch (checked by
//! `buffer/mod.rs::mark_dirty`). A copy for writing clears it under the shared one, so the page is not changed at the
//! same time, and a failed write sets it again under the shared one (test:
//! `a_latched_page_is_neither_copied_nor_marked_dirty_again`). A frame that is dirty (checked by
//! `buffer/invariants.rs::check_dirty_set`) or being written (checked by `buffer/flush.rs::end_batch`) keeps its page,
//! unless the tablespace is dropped.

use crate::{
    ids::{Lsn, PageId, PageNo, SpaceId},
    sync::{
        atomic::{
            AtomicU8, AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
        latch::Latch,
    },
};

/// The page has changes that no copy for writing contains yet.
pub const DIRTY: u32 = 1;
/// A copy of the page is being written.
pub(crate) const WRITING: u32 = 2;
/// The frame is beyond the pool's current size and not in use.
pub(crate) const RETIRED: u32 = 4;
/// The page was read from disk and has not been verified against the page that points to it since.
pub const UNVERIFIED: u32 = 8;

/// The number of times that CLOCK spares a page that was used again.
const USED: u8 = 2;

/// The descriptor. Zeroed memory is a frame that holds nothing.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Frame {
    /// The latch on the page and on the tag.
    pub latch: Latch,
    space: AtomicU64,
    oldest: AtomicU64,
    page: AtomicU32,
    slot: AtomicU32,
    state: AtomicU32,
    /// The next frame in the free list.
    pub next_free: AtomicU32,
    clock: AtomicU8,
}

const _: () = assert!(size_of::<Frame>() == 64);

impl Frame {
    /// Returns the id of the page that the frame holds; [`SpaceId::NONE`] when none. Without a latch it is a hint,
    /// until the latch's version is validated.
    #[inline]
    pub fn tag(&self) -> PageId {
        PageId { space: SpaceId(self.space.load(Relaxed)), page: PageNo(self.page.load(Relaxed)) }
    }

    /// Returns whether the frame still holds the page: if not, it is useless to wait for the frame's latch.
    pub(crate) fn still_holds(&self, id: PageId) -> bool {
        self.tag() == id
    }

    /// Returns the slot of the tablespace in the pool's directory.
    pub fn slot(&self) -> u32 {
        self.slot.load(Relaxed)
    }

    /// Assigns a page to the frame. The caller must hold the exclusive latch.
    pub fn set_tag(&self, id: PageId, slot: u32) {
        debug_assert!(self.latch.version().is_none(), "the tag changes without the exclusive latch");
        debug_assert!(
            (id.space == SpaceId::NONE) == (slot == u32::MAX),
            "a frame has a slot exactly if it holds a page: {id}, slot {slot}"
        );
        self.space.store(id.space.0, Relaxed);
        self.page.store(id.page.0, Relaxed);
        self.slot.store(slot, Relaxed);
    }

    /// Removes the page from the frame. The caller must hold the exclusive latch. Returns whether the page was dirty.
    pub fn clear_tag(&self) -> bool {
        self.set_tag(PageId { space: SpaceId::NONE, page: PageNo::NONE }, u32::MAX);
        self.oldest.store(0, Relaxed);
        self.state.fetch_and(RETIRED, AcqRel) & DIRTY != 0
    }

    /// Returns whether one of these state bits is set.
    #[inline]
    pub fn is(&self, bits: u32) -> bool {
        self.state.load(Acquire) & bits != 0
    }

    /// Sets state bits; returns the state before.
    pub fn set(&self, bits: u32) -> u32 {
        self.state.fetch_or(bits, AcqRel)
    }

    /// Clears state bits; returns the state before.
    pub fn clear(&self, bits: u32) -> u32 {
        self.state.fetch_and(!bits, AcqRel)
    }

    /// Returns the LSN of the first change since the page was last copied for writing; its key in the dirty set.
    pub fn oldest(&self) -> Lsn {
        Lsn(self.oldest.load(Acquire))
    }

    /// Records the LSN of the first change.
    pub fn set_oldest(&self, lsn: Lsn) {
        self.oldest.store(lsn.0, Release);
    }

    /// Records that the page was used. Stores only if the value changes: the cache line is shared by all readers.
    #[inline]
    pub fn touch(&self) {
        if self.clock.load(Relaxed) < USED {
            self.clock.store(USED, Relaxed);
        }
    }

    /// Sets how often CLOCK spares a page that was just read in: 1 for a look-up, 0 for a page of a scan, which is thus
    /// evicted first unless it is used again.
    pub fn arrive(&self, spare: u8) {
        debug_assert!(spare <= USED, "a new page is spared more often than one that was used");
        self.clock.store(spare, Relaxed);
    }

    /// Counts a pass of the clock hand. Returns whether the page may be evicted.
    pub(crate) fn pass_hand(&self) -> bool {
        let left = self.clock.load(Relaxed);
        if left > 0 {
            self.clock.store(left - 1, Relaxed);
        }
        left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often the hand passes before the frame may be evicted.
    fn spared(frame: &Frame) -> usize {
        (0..9).take_while(|_| !frame.pass_hand()).count()
    }

    #[test]
    fn the_clock_spares_a_page_by_its_uses() {
        let frame = Frame::default();
        for (spare, used, passes) in [(0, 0, 0), (1, 0, 1), (0, 1, 2), (1, 1, 2), (1, 5, 2)] {
            frame.arrive(spare);
            (0..used).for_each(|_| frame.touch());
            assert_eq!(spared(&frame), passes, "it came with {spare} and was used {used} times");
        }
    }
}
