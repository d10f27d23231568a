//! The descriptor of a frame.
//!
//! **Purpose.** The id of the page, its links in the lists, and its pins: what `buf_page_t` and `buf_block_t` are in
//! `InnoDB`.
//!
//! **Invariants.** The page of a pinned frame is not evicted (checked by `pool/replace.rs::remove_hash_entries`). A
//! descriptor of zeros is that of a frame that holds nothing (test: `a_descriptor_of_zeros_holds_nothing`).
//!
//! **Locks.** The links of a list change only under the lock of that list, and the tag only under that of the page
//! hash; [`lists`](super::lists) and [`page_hash`](super::page_hash) check that. They are atomics because the lock
//! depends on the version.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use windfall::ids::{Lsn, PageId, PageNo, SpaceId};

/// The page has changes that are not in its file.
pub const DIRTY: u32 = 1;
/// The page is in the older part of the LRU list.
pub const OLD: u32 = 1 << 1;
/// The page has not been verified against its parent since it was read in.
pub const UNVERIFIED: u32 = 1 << 2;
/// Lazy drop: the page's tablespace was dropped.
pub const DELETED: u32 = 1 << 3;
/// The page is being read or written.
pub const IO: u32 = 1 << 4;
/// The page is bookkeeping only: it has no contents.
pub const SYNTHETIC: u32 = 1 << 5;

/// A frame's neighbour in a list, or none.
#[derive(Debug, Default)]
pub struct Link(AtomicU32);

impl Link {
    /// The neighbour.
    #[inline]
    pub fn get(&self) -> Option<u32> {
        self.0.load(Relaxed).checked_sub(1)
    }

    /// Sets the neighbour.
    #[inline]
    pub fn set(&self, frame: Option<u32>) {
        self.0.store(frame.map_or(0, |frame| frame + 1), Relaxed);
    }
}

/// A frame's descriptor.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Descriptor {
    space: AtomicU64,
    page: AtomicU32,
    /// The version of the tablespace when the page entered the pool.
    version: AtomicU32,
    state: AtomicU32,
    pins: AtomicU32,
    /// The links to the next younger and the next older frame.
    pub lru: [Link; 2],
    /// The links to the page that was dirtied next, and to the one that was dirtied before.
    pub flush: [Link; 2],
    /// The next frame in the same bucket of the page hash, or in the free list.
    pub chain: Link,
    /// Entries of the hash index that point to this frame.
    pub hashed: AtomicU32,
    /// The number of times that the hash index could have helped since it was last built for this page.
    pub helps: AtomicU32,
    /// The clock of the instance when the page was last made young.
    pub used_at: AtomicU32,
    oldest: AtomicU64,
}

impl Descriptor {
    /// Returns the id of the page; [`SpaceId::NONE`] if there is none.
    #[inline]
    pub fn tag(&self) -> PageId {
        PageId { space: SpaceId(self.space.load(Relaxed)), page: PageNo(self.page.load(Relaxed)) }
    }

    /// Returns the tablespace of the page.
    #[inline]
    pub fn space(&self) -> SpaceId {
        SpaceId(self.space.load(Relaxed))
    }

    /// Returns the version of the tablespace that the page belongs to.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Relaxed)
    }

    /// Assigns a page to the frame.
    pub fn set_tag(&self, id: PageId, version: u32, state: u32) {
        self.page.store(id.page.0, Relaxed);
        self.version.store(version, Relaxed);
        self.state.store(state, Relaxed);
        self.space.store(id.space.0, Release);
    }

    /// Removes the page from the frame.
    pub fn clear_tag(&self) {
        self.set_tag(PageId { space: SpaceId::NONE, page: PageNo::NONE }, 0, 0);
        self.helps.store(0, Relaxed);
    }

    /// Returns whether one of these bits is set.
    #[inline]
    pub fn is(&self, bits: u32) -> bool {
        self.state.load(Acquire) & bits != 0
    }

    /// Sets bits; returns the previous ones.
    pub fn set(&self, bits: u32) -> u32 {
        self.state.fetch_or(bits, AcqRel)
    }

    /// Clears bits; returns the previous ones.
    pub fn clear(&self, bits: u32) -> u32 {
        self.state.fetch_and(!bits, AcqRel)
    }

    /// Pins the page in its frame.
    #[inline]
    pub fn pin(&self) {
        self.pins.fetch_add(1, AcqRel);
    }

    /// Releases a pin.
    #[inline]
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, AcqRel);
        debug_assert!(before > 0, "a frame that is not pinned was unpinned");
    }

    /// Returns whether the frame is pinned.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Acquire) > 0
    }

    /// Returns the LSN of the oldest change that is not in the page's file: `oldest_modification` in `InnoDB`.
    pub fn oldest(&self) -> Lsn {
        Lsn(self.oldest.load(Relaxed))
    }

    /// Sets that LSN.
    pub fn set_oldest(&self, lsn: Lsn) {
        self.oldest.store(lsn.0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_zeros_holds_nothing() {
        let descriptor = Descriptor::default();
        assert_eq!(descriptor.space(), SpaceId::NONE);
        assert!(!descriptor.is(u32::MAX) && !descriptor.is_pinned());
        let links = descriptor.lru.iter().chain(&descriptor.flush).chain([&descriptor.chain]);
        assert!(links.map(Link::get).all(|link| link.is_none()));
    }
}
