//! What the pool knows of a tablespace: the branch that a drop unlinks.
//!
//! **Purpose.** The page table, the dirty set and the state of the file hang from this one object. A drop marks it and
//! pushes it on the reclaimer's queue; nothing else is looked at.
//!
//! **Invariants.** Once dropped, never live again: the incarnation is not used a second time. Who installs a page looks
//! at the mark afterwards; who drops marks before the table is drained; so a page installed too late is taken out by
//! whoever installed it. The pool learns of a tablespace with its first page, at the latest; one that is dropped before
//! has nothing to give back, and its slot settles which of the two it is. The memory stays valid until the last handle
//! goes.
//!
//! **May touch.** `ids`, `sync`.

use super::{dirty::DirtySet, page_table::PageTable};
use crate::{
    error::{Error, Owner, Result},
    ids::{Lsn, SpaceId, TrxId},
    sync::{
        Bug, Mutex, Rank, RwLock,
        atomic::{
            AtomicBool, AtomicU8, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
        planted,
    },
};

/// Whether a tablespace's changes are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Logged, checkpointed, recovered.
    Logged,
    /// Neither: temporary, gone with the process.
    Temporary,
}

/// What is known of the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FileState {
    /// There is none: no page was ever flushed.
    None,
    /// It was created; name and content may not be durable yet.
    Created,
    /// It is durable, and the log says so.
    Made,
}

/// The slot of a tablespace that the pool does not know yet.
const UNKNOWN: u32 = u32::MAX;
/// The slot of one that was dropped before the pool knew it.
const NEVER: u32 = u32::MAX - 1;

/// A tablespace, as the pool knows it.
#[derive(Debug)]
pub struct Space {
    id: SpaceId,
    durability: Durability,
    /// Its place in the pool's directory, [`UNKNOWN`] or [`NEVER`].
    slot: AtomicU32,
    /// The end of the group that dropped it, [`Lsn::MAX`] while it lives; until that is durable the file and the log
    /// floor wait.
    dropped: AtomicU64,
    file: AtomicU8,
    /// When it was made: a view from before knows nothing of it.
    born: AtomicU64,
    /// Whether it has any page: an empty tree has none.
    has_pages: AtomicBool,
    /// No page below this is free: where a search for a free one may start.
    free_hint: AtomicU32,
    map_groups: AtomicU32,
    /// How many of its pages are in the pool; counted where pages come and go, never where they are used.
    resident: AtomicU32,
    /// Up to where the file is known to have blocks, in bytes.
    allocated: AtomicU64,
    /// Whether the file could not be made, or not be written, when that was last tried.
    failing: AtomicBool,
    pub(super) pages: PageTable,
    pub(super) dirty: Mutex<DirtySet>,
    /// Whether the floor's heap, or its inbox, knows the space. Changed under `dirty`.
    pub(super) listed: AtomicBool,
    rest: RwLock<()>,
}

impl Space {
    /// When it was made; [`TrxId::NONE`] is before all views.
    pub fn born(&self) -> TrxId {
        TrxId(self.born.load(Acquire))
    }

    /// Says when it was made, before anybody can find it.
    pub fn set_born(&self, stamp: TrxId) {
        self.born.store(stamp.0, Release);
    }

    /// A tablespace without pages and file.
    pub fn new(id: SpaceId, durability: Durability) -> Self {
        Self {
            id,
            durability,
            slot: AtomicU32::new(UNKNOWN),
            dropped: AtomicU64::new(Lsn::MAX.0),
            file: AtomicU8::new(FileState::None as u8),
            born: AtomicU64::new(TrxId::NONE.0),
            has_pages: AtomicBool::new(false),
            free_hint: AtomicU32::new(0),
            map_groups: AtomicU32::new(0),
            resident: AtomicU32::new(0),
            allocated: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            pages: PageTable::default(),
            dirty: Mutex::new(Rank::Dirty, DirtySet::default()),
            listed: AtomicBool::new(false),
            rest: RwLock::new(Rank::RollBack, ()),
        }
    }

    /// Of the tablespace of a table's rows: held shared by whatever changes the trees of the table outside of its gate,
    /// for one undo record at a time, and exclusively by a check of the table.
    pub fn rest(&self) -> &RwLock<()> {
        &self.rest
    }

    /// Its incarnation.
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// Whether its changes are logged.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether it was dropped.
    #[inline]
    pub fn is_dropped(&self) -> bool {
        self.drop_lsn() != Lsn::MAX
    }

    /// Refuses work on a dropped tablespace.
    ///
    /// # Errors
    /// [`Error::TableDropped`].
    pub fn check_live(&self) -> Result<()> {
        if self.is_dropped() { Err(Error::TableDropped(Owner::Unknown)) } else { Ok(()) }
    }

    /// Marks it dropped by the group that ends at `lsn`. Says whether this call did.
    pub(super) fn mark_dropped(&self, lsn: Lsn) -> bool {
        self.dropped.compare_exchange(Lsn::MAX.0, lsn.0, SeqCst, Relaxed).is_ok()
    }

    /// Its place in the pool's directory, once it has one.
    pub(super) fn slot(&self) -> Option<u32> {
        Some(self.slot.load(Acquire)).filter(|slot| *slot < NEVER)
    }

    /// Gives it a place, unless it was dropped before. For the directory, under its lock.
    pub(super) fn set_slot(&self, slot: u32) -> Result<()> {
        let set = self.slot.compare_exchange(UNKNOWN, slot, SeqCst, Relaxed);
        set.map(drop).map_err(|_| Error::TableDropped(Owner::Unknown))
    }

    /// It was marked dropped: if the pool does not know it, it never will. Says whether it does.
    pub(super) fn is_known_for_good(&self) -> bool {
        if planted(Bug::DropLeavesItUnknown) {
            return self.slot().is_some();
        }
        self.slot.compare_exchange(UNKNOWN, NEVER, SeqCst, Relaxed).is_err()
    }

    /// Where its drop was logged.
    pub fn drop_lsn(&self) -> Lsn {
        Lsn(self.dropped.load(SeqCst))
    }

    /// The state of its file.
    pub fn file(&self) -> FileState {
        match self.file.load(Acquire) {
            0 => FileState::None,
            1 => FileState::Created,
            _ => FileState::Made,
        }
    }

    /// Notes the state of its file.
    pub fn set_file(&self, state: FileState) {
        self.file.store(state as u8, Release);
        if state != FileState::None {
            self.set_has_pages();
        }
    }

    /// Whether the file could not be made, or not be written, when that was last tried.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// Notes whether it could. For the flusher, which alone decides by it.
    pub(super) fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Relaxed);
    }

    /// Whether it has any page.
    pub fn has_pages(&self) -> bool {
        self.has_pages.load(Acquire)
    }

    /// Notes that its header page was made.
    pub fn set_has_pages(&self) {
        self.has_pages.store(true, Release);
    }

    /// No page below this is free, unless the hint is behind.
    pub fn free_hint(&self) -> u32 {
        self.free_hint.load(Relaxed)
    }

    /// Moves the hint up, unless it moved meanwhile.
    pub fn raise_free_hint(&self, from: u32, to: u32) {
        let _ = self.free_hint.compare_exchange(from, to, Relaxed, Relaxed);
    }

    /// A page was freed.
    pub fn lower_free_hint(&self, page: u32) {
        self.free_hint.fetch_min(page, Relaxed);
    }

    /// How many allocation-map pages are known to exist; there may be more.
    pub fn map_groups(&self) -> u32 {
        self.map_groups.load(Relaxed)
    }

    /// Notes how many allocation-map pages exist. Who has looked before somebody else takes nothing back.
    pub fn raise_map_groups(&self, groups: u32) {
        self.map_groups.fetch_max(groups, Relaxed);
    }

    /// Knows as little of its pages as after a restart.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        self.map_groups.store(0, Relaxed);
        self.free_hint.store(0, Relaxed);
    }

    /// How many of its pages are in the pool.
    pub fn resident(&self) -> u32 {
        self.resident.load(SeqCst)
    }

    /// A page has come.
    pub(super) fn page_came(&self) {
        self.resident.fetch_add(1, SeqCst);
    }

    /// A page has gone.
    pub(super) fn page_went(&self) {
        self.resident.fetch_sub(1, Relaxed);
    }

    /// Up to where the file is known to have blocks.
    pub(super) fn allocated(&self) -> u64 {
        self.allocated.load(Relaxed)
    }

    /// Notes up to where the file has blocks.
    pub(super) fn set_allocated(&self, bytes: u64) {
        self.allocated.store(bytes, Relaxed);
    }

    /// How many of its pages wait to be written.
    pub fn dirty_pages(&self) -> usize {
        self.dirty.lock().waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_tablespace_is_small() {
        assert!(size_of::<Space>() <= 256, "{} bytes", size_of::<Space>());
        let space = Space::new(SpaceId(99), Durability::Logged);
        assert!(space.check_live().is_ok());
        assert!(space.mark_dropped(Lsn(5)) && !space.mark_dropped(Lsn(9)));
        assert_eq!(space.drop_lsn(), Lsn(5), "a second drop changes nothing");
        assert!(matches!(space.check_live(), Err(Error::TableDropped(_))));
    }
}
