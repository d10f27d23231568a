//! What a pool knows of a frame.
//!
//! **Purpose.** Whose page it holds, its place in the lists, and who uses it: what `buf_page_t` and `buf_block_t` are
//! in `InnoDB`.
//!
//! **Invariants.** The links of a list change under the lock of that list only, the tag under that of the page hash;
//! they are atomics because which lock that is depends on the version. A frame that is pinned keeps its page. Zeroed
//! memory is a frame that holds nothing.
//!
//! **May touch.** `windfall`'s ids.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use windfall::ids::{Lsn, PageId, PageNo, SpaceId};

/// The page has changes that its file has not.
pub const DIRTY: u32 = 1;
/// The page is in the older part of the LRU list.
pub const OLD: u32 = 1 << 1;
/// Nobody has held the page against its parent since it was read.
pub const UNPROVEN: u32 = 1 << 2;
/// Lazy drop: the page's tablespace was dropped.
pub const DELETED: u32 = 1 << 3;
/// The page is being read or written.
pub const IO: u32 = 1 << 4;
/// The page is bookkeeping alone: it has no bytes.
pub const PRETENDED: u32 = 1 << 5;

/// A frame's neighbour in a list, or none.
#[derive(Debug, Default)]
pub struct Link(AtomicU32);

impl Link {
    /// The neighbour.
    #[inline]
    pub fn get(&self) -> Option<u32> {
        self.0.load(Relaxed).checked_sub(1)
    }

    /// Sets it.
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
    /// The version of the tablespace when the page came.
    version: AtomicU32,
    state: AtomicU32,
    pins: AtomicU32,
    /// Towards the youngest, and towards the oldest.
    pub lru: [Link; 2],
    /// Towards the page that changed last, and towards the one that changed first.
    pub flush: [Link; 2],
    /// The next frame in the same bucket of the page hash, or in the free list.
    pub chain: Link,
    /// Entries of the hash index that lead here.
    pub hashed: AtomicU32,
    /// How often the hash index could have helped since it was last built for this page.
    pub helps: AtomicU32,
    /// The clock of its instance when the page was last made young.
    pub used_at: AtomicU32,
    oldest: AtomicU64,
}

impl Descriptor {
    /// Whose page it holds; [`SpaceId::NONE`] when none.
    #[inline]
    pub fn tag(&self) -> PageId {
        PageId { space: SpaceId(self.space.load(Relaxed)), page: PageNo(self.page.load(Relaxed)) }
    }

    /// Its tablespace alone.
    #[inline]
    pub fn space(&self) -> SpaceId {
        SpaceId(self.space.load(Relaxed))
    }

    /// The version of the tablespace that it is of.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Relaxed)
    }

    /// Gives it a page.
    pub fn set_tag(&self, id: PageId, version: u32, state: u32) {
        self.page.store(id.page.0, Relaxed);
        self.version.store(version, Relaxed);
        self.state.store(state, Relaxed);
        self.space.store(id.space.0, Release);
    }

    /// Takes the page away.
    pub fn clear_tag(&self) {
        self.set_tag(PageId { space: SpaceId::NONE, page: PageNo::NONE }, 0, 0);
        self.helps.store(0, Relaxed);
    }

    /// Whether one of these bits is set.
    #[inline]
    pub fn is(&self, bits: u32) -> bool {
        self.state.load(Acquire) & bits != 0
    }

    /// Sets bits; gives those before.
    pub fn set(&self, bits: u32) -> u32 {
        self.state.fetch_or(bits, AcqRel)
    }

    /// Clears bits; gives those before.
    pub fn clear(&self, bits: u32) -> u32 {
        self.state.fetch_and(!bits, AcqRel)
    }

    /// Keeps the page where it is.
    #[inline]
    pub fn pin(&self) {
        self.pins.fetch_add(1, AcqRel);
    }

    /// Ends that.
    #[inline]
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, AcqRel);
        debug_assert!(before > 0, "a frame was unpinned that nobody has pinned");
    }

    /// Whether somebody uses it.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Acquire) > 0
    }

    /// Where the log begins that the page's file has not.
    pub fn oldest(&self) -> Lsn {
        Lsn(self.oldest.load(Relaxed))
    }

    /// Notes that.
    pub fn set_oldest(&self, lsn: Lsn) {
        self.oldest.store(lsn.0, Relaxed);
    }
}
