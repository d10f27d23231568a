//! The pool's state of a tablespace: the one object that a drop unlinks.
//!
//! **Purpose.** The page table, the dirty set and the state of the file belong to this object. A drop marks it and
//! pushes it on the reclaimer's queue; nothing else is visited.
//!
//! **Invariants.** A dropped tablespace stays dropped: its id is never reused (test:
//! `an_incarnation_is_never_used_twice`). A thread that installs a page checks the mark afterwards, and a drop marks
//! before the table is drained, so a page that is installed too late is removed by the thread that installed it (tests:
//! `a_page_that_arrives_after_a_drop_is_removed_at_once`, `a_drop_reclaims_every_frame_despite_concurrent_work`). A
//! tablespace is entered into the pool's directory at its first page, at the latest (checked by
//! `buffer/invariants.rs::check_frame`). A tablespace that is dropped before has nothing to free; its slot shows which
//! of the two cases it is (test: `a_tablespace_dropped_at_its_first_page_is_handed_back_or_never_known`). The memory
//! stays valid until the last handle is released (by type).

use super::{dirty::DirtySet, page_count::PageCount, page_table::PageTable, row_count::RowCount};
use crate::{
    error::{Error, Owner, Result},
    ids::{Lsn, SpaceId, TrxId},
    sync::{
        Mutex, OnceLock, Rank, RwLock,
        atomic::{
            AtomicBool, AtomicU8, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
    },
};

/// Whether a tablespace's changes are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Logged, checkpointed, recovered.
    Logged,
    /// Neither logged nor recovered: temporary, lost with the process.
    Temporary,
}

/// The state of the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FileState {
    /// There is no file: no page was ever flushed.
    None,
    /// The file was created; name and content may not be durable yet.
    Created,
    /// The file is durable, and the log has a record of that.
    Durable,
}

/// The slot of a tablespace that is not in the pool's directory yet.
const UNKNOWN: u32 = u32::MAX;
/// The slot of a tablespace that was dropped before it was in the directory.
const NEVER_ENTERED: u32 = u32::MAX - 1;

/// The mark of a tablespace that was not dropped.
const LIVE: u64 = u64::MAX;
/// The mark of a tablespace with a drop that is not in the log. No group ends at this LSN.
const UNLOGGED: u64 = 0;

/// The pool's state of a tablespace.
#[derive(Debug)]
pub struct Space {
    id: SpaceId,
    durability: Durability,
    /// The slot of the tablespace in the pool's directory, [`UNKNOWN`] or [`NEVER_ENTERED`].
    slot: AtomicU32,
    /// The end of the group that dropped it, [`UNLOGGED`] if the drop was not logged, or [`LIVE`]. Until that is
    /// durable, the file and the log that the tablespace needs are kept.
    dropped: AtomicU64,
    file: AtomicU8,
    /// The stamp of its creation: an older read view does not see it. Zero is no stamp.
    created_at: AtomicU64,
    /// Whether it has any page: an empty tree has none.
    has_pages: AtomicBool,
    /// No page below this is free: a search for a free one may start here.
    free_hint: AtomicU32,
    map_groups: AtomicU32,
    page_count: PageCount,
    /// The number of its resident pages; updated when pages are read in and evicted, never when they are used.
    resident: AtomicU32,
    /// The length in bytes for which the file is known to have blocks.
    allocated: AtomicU64,
    /// Whether it is in the flusher's list of failing tablespaces.
    failing: AtomicBool,
    pub(super) pages: PageTable,
    pub(super) dirty: Mutex<DirtySet>,
    /// Whether the tablespace is in the heap or the inbox from which the pool's low-water mark is computed. Changed
    /// under `dirty`.
    pub(super) listed: AtomicBool,
    check_lock: RwLock<()>,
    /// Only tablespaces with rows that change have it.
    row_count: OnceLock<Box<RowCount>>,
}

impl Space {
    /// Returns the stamp of its creation; without one, it was created before all read views.
    #[inline]
    pub fn created_at(&self) -> Option<TrxId> {
        Some(self.created_at.load(Acquire)).filter(|stamp| *stamp != 0).map(TrxId)
    }

    /// Sets the stamp of its creation. Must be called before any thread can find it.
    pub(crate) fn set_created_at(&self, stamp: Option<TrxId>) {
        self.created_at.store(stamp.map_or(0, |stamp| stamp.0), Release);
    }

    /// Returns a tablespace without pages and file.
    pub fn new(id: SpaceId, durability: Durability) -> Self {
        Self {
            id,
            durability,
            slot: AtomicU32::new(UNKNOWN),
            dropped: AtomicU64::new(LIVE),
            file: AtomicU8::new(FileState::None as u8),
            created_at: AtomicU64::new(0),
            has_pages: AtomicBool::new(false),
            free_hint: AtomicU32::new(0),
            map_groups: AtomicU32::new(0),
            page_count: PageCount::default(),
            resident: AtomicU32::new(0),
            allocated: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            pages: PageTable::default(),
            dirty: Mutex::new(Rank::Dirty, DirtySet::default()),
            listed: AtomicBool::new(false),
            check_lock: RwLock::new(Rank::RollBack, ()),
            row_count: OnceLock::new(),
        }
    }

    /// Returns a lock of the tablespace that has a table's rows. Threads that change the trees of the table without
    /// having passed its gate hold it shared, for one undo record at a time; a check of the table holds it exclusively.
    pub fn check_lock(&self) -> &RwLock<()> {
        &self.check_lock
    }

    /// Returns the number of its pages that are in use, as far as they are counted.
    pub(crate) fn page_count(&self) -> &PageCount {
        &self.page_count
    }

    /// Returns the changes of the number of rows that its header does not have.
    #[inline]
    pub(crate) fn row_count(&self) -> &RowCount {
        self.row_count.get_or_init(Box::default)
    }

    /// Returns whether its header lacks changes of the number of rows.
    pub(crate) fn has_pending_rows(&self) -> bool {
        self.row_count.get().is_some_and(|count| count.pending() != 0)
    }

    /// Returns its id, which is unique to this incarnation.
    #[inline]
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// Returns whether its changes are logged.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Returns whether it was dropped.
    #[inline]
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(SeqCst) != LIVE
    }

    /// Returns an error if it was dropped.
    ///
    /// # Errors
    /// [`Error::TableDropped`].
    #[inline]
    pub fn check_live(&self) -> Result<()> {
        if self.is_dropped() { Err(Error::TableDropped(Owner::Unknown)) } else { Ok(()) }
    }

    /// Marks it dropped by the group that ends at `lsn`, if that was logged. Returns whether this call did.
    pub(super) fn mark_dropped(&self, lsn: Option<Lsn>) -> bool {
        let mark = lsn.map_or(UNLOGGED, |lsn| lsn.0);
        assert!(mark < LIVE, "tablespace {} is dropped with the mark of a live one", self.id);
        self.dropped.compare_exchange(LIVE, mark, SeqCst, Relaxed).is_ok()
    }

    /// Returns its slot in the pool's directory, once it has one.
    pub(super) fn slot(&self) -> Option<u32> {
        Some(self.slot.load(Acquire)).filter(|slot| *slot < NEVER_ENTERED)
    }

    /// Assigns it a slot, unless it was dropped before. For the directory, under its lock.
    pub(super) fn set_slot(&self, slot: u32) -> Result<()> {
        assert!(slot < NEVER_ENTERED, "the directory has no slot {slot}");
        let set = self.slot.compare_exchange(UNKNOWN, slot, SeqCst, Relaxed);
        set.map(drop).map_err(|_| Error::TableDropped(Owner::Unknown))
    }

    /// Must be called after it was marked dropped: if it is not in the pool's directory, it is never entered from now
    /// on. Returns whether it is in the directory.
    pub(super) fn close_directory_entry(&self) -> bool {
        assert!(self.is_dropped(), "tablespace {} is live, and may still be entered", self.id);
        self.slot.compare_exchange(UNKNOWN, NEVER_ENTERED, SeqCst, Relaxed).is_err()
    }

    /// Returns whether it was dropped before it was in the directory: it has never had a page in memory.
    pub(crate) fn never_entered(&self) -> bool {
        self.slot.load(Acquire) == NEVER_ENTERED
    }

    /// Returns the end of the group that dropped it; `None` while it is live, and if its drop is not in the log.
    pub(crate) fn drop_lsn(&self) -> Option<Lsn> {
        Some(self.dropped.load(SeqCst)).filter(|mark| ![LIVE, UNLOGGED].contains(mark)).map(Lsn)
    }

    /// Returns whether it was dropped, and no crash undoes that if the log is durable up to `durable`.
    pub(super) fn is_durably_dropped(&self, durable: Lsn) -> bool {
        self.dropped.load(SeqCst) <= durable.0
    }

    /// Returns the state of its file.
    pub fn file(&self) -> FileState {
        match self.file.load(Acquire) {
            0 => FileState::None,
            1 => FileState::Created,
            _ => FileState::Durable,
        }
    }

    /// Sets the state of its file.
    pub(crate) fn set_file(&self, state: FileState) {
        debug_assert!(self.file() as u8 <= state as u8, "the file of {:?} is {state:?} again", self.id);
        self.file.store(state as u8, Release);
        if state != FileState::None {
            self.set_has_pages();
        }
    }

    /// Returns whether it is in the flusher's list of failing tablespaces.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// Sets whether it is in that list. Only the choice of pages to flush depends on it.
    pub(super) fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Relaxed);
    }

    /// Returns whether it has any page.
    pub(crate) fn has_pages(&self) -> bool {
        self.has_pages.load(Acquire)
    }

    /// Records that its header page was created.
    pub(crate) fn set_has_pages(&self) {
        self.has_pages.store(true, Release);
    }

    /// Returns a page number below which no page is free, if the hint is up to date.
    pub(crate) fn free_hint(&self) -> u32 {
        self.free_hint.load(Relaxed)
    }

    /// Raises the hint, unless it changed meanwhile.
    pub(crate) fn raise_free_hint(&self, from: u32, to: u32) {
        let _ = self.free_hint.compare_exchange(from, to, Relaxed, Relaxed);
    }

    /// Lowers the hint: this page was freed.
    pub(crate) fn lower_free_hint(&self, page: u32) {
        self.free_hint.fetch_min(page, Relaxed);
    }

    /// Returns how many allocation-map pages are known to exist; there may be more.
    pub(crate) fn map_groups(&self) -> u32 {
        self.map_groups.load(Relaxed)
    }

    /// Records how many allocation-map pages exist. A thread with an older count does not lower it.
    pub(crate) fn raise_map_groups(&self, groups: u32) {
        self.map_groups.fetch_max(groups, Relaxed);
    }

    /// Resets what is known of its pages, as a restart does.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        self.map_groups.store(0, Relaxed);
        self.free_hint.store(0, Relaxed);
        self.page_count.forget();
    }

    /// Returns the number of its resident pages.
    pub fn resident(&self) -> u32 {
        self.resident.load(SeqCst)
    }

    /// Counts a page that was entered.
    pub(super) fn page_entered(&self) {
        self.resident.fetch_add(1, SeqCst);
    }

    /// Counts a page that was removed.
    pub(super) fn page_removed(&self) {
        let resident = self.resident.fetch_sub(1, Relaxed);
        debug_assert!(resident > 0, "a page of tablespace {} was not counted", self.id);
    }

    /// Returns the length for which the file is known to have blocks.
    pub(super) fn allocated(&self) -> u64 {
        self.allocated.load(Relaxed)
    }

    /// Sets the length for which the file has blocks.
    pub(super) fn set_allocated(&self, bytes: u64) {
        self.allocated.store(bytes, Relaxed);
    }

    /// Returns how many of its pages wait to be written.
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
        assert!(!space.is_durably_dropped(Lsn(9)) && space.drop_lsn().is_none());
        assert!(space.mark_dropped(Some(Lsn(5))) && !space.mark_dropped(Some(Lsn(9))));
        assert_eq!(space.drop_lsn(), Some(Lsn(5)), "a second drop changes nothing");
        assert!(!space.is_durably_dropped(Lsn(4)) && space.is_durably_dropped(Lsn(5)));
        assert!(matches!(space.check_live(), Err(Error::TableDropped(_))));
        let temporary = Space::new(SpaceId(100), Durability::Temporary);
        assert!(temporary.mark_dropped(None) && !temporary.mark_dropped(None));
        assert!(temporary.is_dropped() && temporary.drop_lsn().is_none());
        assert!(temporary.is_durably_dropped(Lsn::ZERO), "a crash leaves nothing of it");
    }
}
