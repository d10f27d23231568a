//! Mini-transactions: latched pages, and their changes as one group of log records.
//!
//! **Purpose.** A change of several pages is atomic. Pages are latched as they are needed, and each change is applied
//! and recorded in one step. The commit appends the records as one group, marks the pages dirty and releases the
//! latches.
//!
//! **Invariants.** The latches on changed pages are held until the commit, so no other thread sees a part of the change
//! (checked by `storage/mtr.rs::unlatch`). The pages are registered dirty before the log's low-water mark can pass the
//! group ([`Log::begin_group`](crate::log::Log::begin_group)) (test:
//! `a_low_water_mark_passes_nothing_that_only_the_log_knows`). Applied changes must be committed: a mini-transaction
//! that is dropped after a change, by a panic or an error, poisons the database, because memory and log disagree from
//! then on (tests: `a_panic_during_a_change_of_several_pages_stops_the_database`,
//! `a_drop_under_the_hands_of_purge_does_not_stop_the_database`). The exception: every changed page belongs to a
//! tablespace that was dropped meanwhile, as may happen to purge, so that no thread reads these pages again, and no
//! other record was added (test: `a_drop_under_the_hands_of_purge_does_not_stop_the_database`). Changes of temporary
//! tablespaces are applied and not logged (test: `temporary_rows_leave_nothing_in_the_log`).

use smallvec::SmallVec;

use crate::{
    buffer::{BufferPool, Durability, ExclusivePage, OptimisticRead, Space},
    error::Result,
    ids::{Lsn, PageId, PageNo, SpaceId},
    log::{GroupWriter, LogReservation, Record},
    page::{Page, PageOp, PageType},
    sync::Arc,
};

/// A page latched by a mini-transaction: its index in the list of latched pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub usize);

#[derive(Debug)]
struct LatchedPage<'a> {
    space: Arc<Space>,
    page: ExclusivePage<'a>,
    id: PageId,
}

/// Returns the place of a page in the order in which pages are latched: those of trees come first, then undo pages, and
/// then allocation maps.
fn order_of(page: &ExclusivePage<'_>) -> u8 {
    const UNDO: u8 = PageType::Undo as u8;
    const MAP: u8 = PageType::Map as u8;
    match page.page().page_type() {
        UNDO => 1,
        MAP => 2,
        _ => 0,
    }
}

/// A mini-transaction.
#[derive(Debug)]
pub struct Mtr<'a> {
    pool: &'a BufferPool,
    /// Latched pages in the order of latching. A page that was unlatched early leaves a gap.
    pages: SmallVec<[Option<LatchedPage<'a>>; 4]>,
    group: GroupWriter,
    /// Whether a page was changed, logged or not.
    applied: bool,
    /// Whether a record was added that is not a change of a page.
    recorded: bool,
    /// The log reservation of a long change.
    reservation: Option<LogReservation<'a>>,
}

impl<'a> Mtr<'a> {
    /// Begins a mini-transaction.
    ///
    /// # Errors
    /// When the database is poisoned.
    pub fn begin(pool: &'a BufferPool) -> Result<Self> {
        pool.context().health.check()?;
        let group = GroupWriter::default();
        Ok(Self { pool, pages: SmallVec::new(), group, applied: false, recorded: false, reservation: None })
    }

    /// Reserves log space for a long change of a tablespace, before the first change. Short changes and rollbacks are
    /// covered by the log reservation of their caller.
    ///
    /// # Errors
    /// A full disk, or another failure to make room.
    pub fn reserve(&mut self, space: &Space, bytes: u64) -> Result<()> {
        debug_assert!(!self.applied, "what can fail comes before the first change");
        debug_assert!(self.reservation.is_none(), "a second reservation gives back the first one");
        if space.durability() == Durability::Logged {
            self.reservation = Some(self.pool.context().log.reserve(bytes)?);
        }
        Ok(())
    }

    /// Returns the buffer pool that it works in.
    pub fn pool(&self) -> &'a BufferPool {
        self.pool
    }

    /// Returns the slot of a page, if the page is latched.
    pub fn find(&self, id: PageId) -> Option<Slot> {
        self.pages.iter().position(|memo| memo.as_ref().is_some_and(|m| m.id == id)).map(Slot)
    }

    fn keep(&mut self, space: &Arc<Space>, id: PageId, page: ExclusivePage<'a>) -> Slot {
        debug_assert!(self.find(id).is_none(), "page {id} is latched twice");
        debug_assert!(space.id() == id.space, "page {id} belongs to another tablespace");
        debug_assert!(page.id() == id, "the latched frame holds another page than {id}");
        self.pages.push(Some(LatchedPage { space: space.clone(), page, id }));
        Slot(self.pages.len() - 1)
    }

    /// Asserts that a page which was formatted before is latched in the order of pages.
    fn check_order(&self, page: &ExclusivePage<'_>) {
        debug_assert!(
            self.pages.iter().flatten().all(|held| order_of(&held.page) <= order_of(page)),
            "{} is latched after a page that comes later in the order: tree, undo, allocation map",
            page.id()
        );
    }

    fn memo(&self, slot: Slot) -> &LatchedPage<'a> {
        self.pages[slot.0].as_ref().expect("the page is latched")
    }

    /// Returns the latched pages of a tablespace.
    pub fn latched(&self, space: SpaceId) -> impl Iterator<Item = PageNo> {
        self.pages.iter().flatten().filter(move |memo| memo.id.space == space).map(|memo| memo.id.page)
    }

    /// Latches a page exclusively, or returns its slot if it is latched already.
    ///
    /// # Errors
    /// `TableDropped`, damage, I/O.
    pub fn latch(&mut self, space: &Arc<Space>, page: PageNo) -> Result<Slot> {
        let id = PageId { space: space.id(), page };
        if let Some(slot) = self.find(id) {
            return Ok(slot);
        }
        let latched = self.pool.exclusive(space, page)?;
        self.check_order(&latched);
        Ok(self.keep(space, id, latched))
    }

    /// Latches a page that will be formatted; it is not read from disk.
    ///
    /// # Errors
    /// As [`Mtr::latch`].
    pub fn latch_fresh(&mut self, space: &Arc<Space>, page: PageNo) -> Result<Slot> {
        let id = PageId { space: space.id(), page };
        if let Some(slot) = self.find(id) {
            return Ok(slot);
        }
        let latched = self.pool.latch_for_format(space, page)?;
        Ok(self.keep(space, id, latched))
    }

    /// Latches the header page of a tablespace without pages, to be formatted. Returns `None` when the tablespace has
    /// pages by now.
    ///
    /// # Errors
    /// As [`Mtr::latch`].
    pub(crate) fn latch_first(&mut self, space: &Arc<Space>) -> Result<Option<Slot>> {
        let id = PageId { space: space.id(), page: PageNo::HEADER };
        debug_assert!(self.find(id).is_none(), "the header of a tablespace without pages is latched");
        let latched = self.pool.first(space)?;
        Ok(latched.map(|page| self.keep(space, id, page)))
    }

    /// Latches the page of an optimistic read exclusively, if the page is unchanged since.
    pub fn upgrade(&mut self, space: &Arc<Space>, reading: &OptimisticRead<'_>) -> Option<Slot> {
        let latched = self.pool.upgrade(reading)?;
        let id = latched.id();
        self.check_order(&latched);
        Some(self.keep(space, id, latched))
    }

    /// Releases the latch of a page that was not changed.
    pub fn unlatch(&mut self, slot: Slot) {
        let memo = self.pages[slot.0].take();
        assert!(!memo.is_some_and(|m| m.page.is_changed()), "a changed page is latched to the commit");
    }

    /// Returns whether a latched page was changed.
    pub fn is_changed(&self, slot: Slot) -> bool {
        self.memo(slot).page.is_changed()
    }

    /// Returns an error if one more latched page would leave too small a pool for other threads. Must be called before
    /// each page by code that latches as many pages as its own caller requests.
    ///
    /// # Errors
    /// [`UsageError::PoolTooSmall`](crate::error::UsageError::PoolTooSmall).
    pub(crate) fn check_may_latch(&self) -> Result<()> {
        self.pool.check_may_hold(self.pages.len() + 1)
    }

    /// Returns an error if `bytes` more of log would make the group too large. Must be called before the first change
    /// by code that changes as much as its own caller requests.
    ///
    /// # Errors
    /// As [`Log::check_group`](crate::log::Log::check_group).
    pub(crate) fn check_may_log(&self, bytes: usize) -> Result<()> {
        self.pool.context().log.check_group(self.group.bytes().len() + bytes)
    }

    /// Returns the bytes of log that the changes made so far will take.
    pub fn logged(&self) -> usize {
        self.group.bytes().len()
    }

    /// Releases all latches; no page may have been changed.
    pub(crate) fn unlatch_all(&mut self) {
        (0..self.pages.len()).for_each(|slot| self.unlatch(Slot(slot)));
    }

    /// Returns a latched page.
    pub fn page(&self, slot: Slot) -> Page<'_> {
        self.memo(slot).page.page()
    }

    /// Returns the id of a latched page.
    pub fn id(&self, slot: Slot) -> PageId {
        self.memo(slot).id
    }

    /// Changes a latched page and records the change.
    pub fn apply(&mut self, slot: Slot, op: &PageOp<'_>) {
        self.applied = true;
        let memo = self.pages[slot.0].as_mut().expect("the page is latched");
        memo.page.changed();
        if let Err(what) = op.apply(memo.page.page(), memo.id) {
            // The operation was made for this very page: if it does not fit, the engine has a bug.
            let what = format!("{}: {what}: {op:?}", memo.id);
            self.pool.context().health.poison(&what);
            panic!("{what}");
        }
        if memo.space.durability() == Durability::Logged {
            self.group.page(memo.id, op);
        }
    }

    /// Adds a record that is not a change of a page.
    pub fn record(&mut self, record: &Record<'_>) {
        debug_assert!(!matches!(record, Record::Page { .. }), "a change of a page is not applied");
        debug_assert!(
            !matches!(record, Record::Drop { spaces } if spaces.is_empty()),
            "a drop of no tablespace is logged"
        );
        self.applied = true;
        self.recorded = true;
        self.group.push(record);
    }

    /// Commits: appends one group to the log, marks the pages dirty and releases all latches. Returns the LSN after the
    /// group, unless there was nothing to log.
    ///
    /// # Errors
    /// When the log accepts no more groups; the database is poisoned then.
    pub fn commit(mut self) -> Result<Option<Lsn>> {
        if !self.applied {
            return Ok(None);
        }
        let log = &self.pool.context().log;
        let appending = log.begin_group();
        let logged = !self.group.is_empty();
        let (start, end) = if logged {
            let (start, end) = appending.append(self.group.bytes())?;
            debug_assert!(start < end, "the group ends where it starts");
            (start, Some(end))
        } else {
            (log.end(), None)
        };
        debug_assert!(logged || !self.recorded, "a record was added that is not in the group");
        debug_assert!(
            self.reservation.as_ref().is_none_or(|room| self.group.bytes().len() as u64 <= room.bytes()),
            "a long change logs more than it has reserved"
        );
        #[cfg(not(feature = "model"))]
        debug_assert!(
            self.pages.iter().flatten().all(|memo| memo.page.id() == memo.id),
            "a frame got another page while it was latched"
        );
        for memo in self.pages.iter_mut().flatten().filter(|memo| memo.page.is_changed()) {
            if memo.space.durability() == Durability::Logged {
                let end = end.expect("a change of a logged page is in the group");
                #[cfg(not(feature = "model"))]
                debug_assert!(
                    memo.page.page().lsn() < end,
                    "the last change of {} is above the end of the log",
                    memo.id
                );
                memo.page.page().set_lsn(end);
            }
            memo.page.mark_dirty(&memo.space, start);
        }
        drop(appending);
        self.applied = false;
        self.pages.clear();
        Ok(end)
    }
}

impl Drop for Mtr<'_> {
    fn drop(&mut self) {
        let mut changed = self.pages.iter().flatten().filter(|memo| memo.page.is_changed());
        if self.applied && (self.recorded || !changed.all(|memo| memo.space.is_dropped())) {
            self.pool.context().health.poison("a change of several pages was left unfinished");
        }
    }
}
