//! A frame's descriptor: 64 bytes that say what the frame holds.
//!
//! **Purpose.** All that replacement, flushing and readers ask of a frame lies in one cache line. It is in no list:
//! whatever needs to find frames finds them by number or through the page table of their tablespace.
//!
//! **Invariants.** The tag (tablespace and page) changes only under the exclusive latch. `DIRTY` is set under the
//! exclusive latch and cleared under at least the shared one, so a page that is being copied for writing is not changed
//! at the same time. A frame that is dirty or being written keeps its page.
//!
//! **May touch.** `ids`, `sync`.

use crate::{
    ids::{Lsn, PageId, PageNo, SpaceId},
    sync::{
        Bug,
        atomic::{
            AtomicU8, AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
        latch::Latch,
        planted,
    },
};

/// The page has changes that no write has taken along yet.
pub const DIRTY: u32 = 1;
/// A copy of the page is on its way to the disk.
pub const WRITING: u32 = 2;
/// The frame lies beyond the pool's present size and is not in use.
pub const RETIRED: u32 = 4;
/// The page came from the disk, and nobody has held it against what leads to it since.
pub const UNPROVEN: u32 = 8;

/// How often CLOCK passes over a page that was used: a page gets this when it is used again.
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
    /// Whose page the frame holds; [`SpaceId::NONE`] when none. Under no latch it is a hint, until the latch's version
    /// is validated.
    #[inline]
    pub fn tag(&self) -> PageId {
        PageId { space: SpaceId(self.space.load(Relaxed)), page: PageNo(self.page.load(Relaxed)) }
    }

    /// Whether it is of use to wait for the frame's latch: not once another page has come.
    pub fn still_holds(&self, id: PageId) -> bool {
        self.tag() == id || planted(Bug::WaitForWhateverCame)
    }

    /// The slot of the tablespace in the pool's directory.
    pub fn slot(&self) -> u32 {
        self.slot.load(Relaxed)
    }

    /// Gives the frame a page. The caller holds the exclusive latch.
    pub fn set_tag(&self, id: PageId, slot: u32) {
        self.space.store(id.space.0, Relaxed);
        self.page.store(id.page.0, Relaxed);
        self.slot.store(slot, Relaxed);
    }

    /// Takes the page away. The caller holds the exclusive latch. Says whether the page was dirty.
    pub fn clear_tag(&self) -> bool {
        self.set_tag(PageId { space: SpaceId::NONE, page: PageNo::NONE }, u32::MAX);
        self.oldest.store(0, Relaxed);
        self.state.fetch_and(RETIRED, AcqRel) & DIRTY != 0
    }

    /// Which of these state bits are set.
    #[inline]
    pub fn is(&self, bits: u32) -> bool {
        self.state.load(Acquire) & bits != 0
    }

    /// Sets state bits; gives the state before.
    pub fn set(&self, bits: u32) -> u32 {
        self.state.fetch_or(bits, AcqRel)
    }

    /// Clears state bits; gives the state before.
    pub fn clear(&self, bits: u32) -> u32 {
        self.state.fetch_and(!bits, AcqRel)
    }

    /// The LSN of the first change since the page was last taken along by a write; its key in the dirty set.
    pub fn oldest(&self) -> Lsn {
        Lsn(self.oldest.load(Acquire))
    }

    /// Notes the first change.
    pub fn set_oldest(&self, lsn: Lsn) {
        self.oldest.store(lsn.0, Release);
    }

    /// Notes that the page was used. Writes only when there is news: the line is shared by all readers.
    #[inline]
    pub fn touch(&self) {
        if self.clock.load(Relaxed) < USED {
            self.clock.store(USED, Relaxed);
        }
    }

    /// Sets how long CLOCK spares a page that has just come: 1 for a look-up, 0 for a page of a scan, which so leaves
    /// first unless it is used again.
    pub fn arrive(&self, spare: u8) {
        self.clock.store(spare, Relaxed);
    }

    /// The clock hand passes: whether the page's time is up.
    pub fn tick(&self) -> bool {
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

    /// How often the hand passes before it takes the frame.
    fn spared(frame: &Frame) -> usize {
        (0..9).take_while(|_| !frame.tick()).count()
    }

    #[test]
    fn a_page_is_spared_by_what_it_was_used_for() {
        let frame = Frame::default();
        for (spare, used, passes) in [(0, 0, 0), (1, 0, 1), (0, 1, 2), (1, 1, 2), (1, 5, 2)] {
            frame.arrive(spare);
            (0..used).for_each(|_| frame.touch());
            assert_eq!(spared(&frame), passes, "it came with {spare} and was used {used} times");
        }
    }
}
