//! Crash recovery of the pages. `engine::open` has the order of a whole opening.
//!
//! **Purpose.** Brings the pages up to the end of the log: finds the end, collects the drops, repairs torn pages, and
//! replays changes (redo). The transaction layer rolls unfinished transactions back in the background, from the list
//! that is collected here.
//!
//! **Invariants.** Drops are collected before anything is replayed, so no work goes into a page of a dropped tablespace
//! (tests: `a_table_that_was_dropped_is_a_bit`, `a_torn_page_of_a_dropped_tablespace_is_not_missed`), and a file that a
//! drop has deleted is not reported missing (checked by `recovery/mod.rs::scan`). A change is replayed if the page's
//! LSN is below the end of its group (tests: `every_crash_point_of_short_histories`,
//! `first_runs_crash_at_every_operation`). A page that was never written must begin with a change that initialises it;
//! otherwise a file or a page is lost, which is damage if a record names the tablespace (tests:
//! `a_page_corrupted_on_disk_is_not_read`, `files_are_missing`). The content found in a file is made durable (test:
//! `writes_of_a_killed_process_are_synced_before_new_writes`) before anything else is written. Before a page is
//! rewritten, and before a batch overwrites another one, the content found in the doublewrite file is made durable
//! (tests: `pages_with_copies_that_a_killed_process_did_not_sync_are_written_again`,
//! `copies_that_a_killed_process_did_not_sync_are_durable_before_the_next_batch`). A sync does not prove that the
//! copies are durable, so they go to a new file (test:
//! `copies_whose_sync_has_failed_are_durable_before_the_next_batch`), except in two cases in which no new file is
//! possible (tests: `a_half_that_cannot_be_read_stays_where_it_is`,
//! `a_disk_without_room_for_a_new_file_keeps_no_database_closed`). Recovery may be interrupted at any point and started
//! again: the running engine would write everything else that recovery writes, too (tests:
//! `every_crash_point_of_short_histories`, `an_opening_that_is_cut_off_leaves_every_page`).
//!
//! *A file that refuses writes affects its own tablespace only*, here as in the flusher: a page of it that cannot be
//! restored from the doublewrite file becomes a torn, dirty page of the pool, with the content of its copy (test:
//! `a_file_that_takes_no_writes_keeps_no_database_closed`):
//!
//! - It is dirty since the low-water mark of the log, which stays there until the page is written or the drop of its
//!   tablespace is durable (tests: `a_file_that_takes_no_writes_keeps_no_database_closed`,
//!   `a_page_whose_tablespace_is_dropped_is_kept_until_the_drop_is_durable`). So its copy stays above the low-water
//!   mark, and the log has every later change.
//! - Its copy is overwritten only when a batch that contains the page, too, is durable: one half of the doublewrite
//!   file has copies of all such pages, and the first batch uses the other half (test:
//!   `all_pages_that_are_torn_are_in_every_batch`). The copy in that half need not be the newest one, if the log has
//!   every later change (test: `a_batch_that_is_cut_off_leaves_an_order_for_all_pages_that_are_torn`). If no half has
//!   all of them, or one half cannot be read, there is no such order, and the opening fails with the error of the write
//!   (tests: `copies_in_either_half_alone_are_an_error_that_loses_nothing`,
//!   `with_a_half_that_cannot_be_read_it_is_an_error_that_loses_nothing`).
//! - A page that only the earlier of two batches contains is not kept if it is whole in its place: it was durable there
//!   before the later batch began, and only the same bytes have been written over it (test:
//!   `copies_in_either_half_alone_are_an_error_that_loses_nothing`).
//! - Such pages take at most a quarter of the pool and half of a batch; more of them are an error, too (test:
//!   `unwritable_pages_beyond_the_pool_are_an_error_with_the_file`).
//! - A copy below the low-water mark cannot bring its page up to date, because either the page is damaged, or its
//!   tablespace was dropped below the mark and only the file is left: the page stays in memory like the others, and the
//!   tablespace is recorded as lost, which is an error only if a record names it (tests:
//!   `a_page_that_is_torn_below_the_low_water_mark_is_an_error_that_loses_nothing`,
//!   `a_page_of_a_tablespace_that_was_dropped_below_the_low_water_mark_is_not_missed`).
//!
//! After such an error every copy that is needed is where it was, or in each batch that was written since (tests:
//! `copies_in_either_half_alone_are_an_error_that_loses_nothing`,
//! `with_a_half_that_cannot_be_read_it_is_an_error_that_loses_nothing`,
//! `a_page_that_is_torn_below_the_low_water_mark_is_an_error_that_loses_nothing`).

mod replay;
mod spaces;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::{
    replay::{REPLAY_BATCH_BYTES, replay},
    spaces::SpaceSet,
};
use crate::{
    buffer::{
        BufferPool, Copies, CopyFound, Doublewrite, Durability, FileState, SMALLEST_ROOM, Space, words,
    },
    disk::{Action, Completion, Disk, FileName, Folder, IoBuffer, Request},
    error::{CorruptError, DiskError, Error, Result},
    ids::{Lsn, PageId, SpaceId, TrxId, UndoPos},
    log::{Control, GroupReader, LogReader, Record, file_of},
    page::{Page, blank},
    sync::{Arc, Phase, Progress, atomic::Ordering::Relaxed},
};

/// The contents of the log from the low-water mark to its end, besides changes of pages.
#[derive(Debug, Default)]
pub struct Scan {
    /// The end of the log.
    pub end: Lsn,
    /// Tablespaces with a change of a page, without the dropped ones.
    pub changed: BTreeSet<SpaceId>,
    /// Tablespaces that were dropped.
    pub dropped: SpaceSet,
    /// Tablespaces with a file that was made durable, without the dropped ones; with the first group that records it.
    pub made: BTreeMap<SpaceId, Lsn>,
    /// Transactions without an end, with their first undo record.
    pub unfinished: BTreeMap<TrxId, UndoPos>,
    /// The XIDs of those of them that are prepared.
    pub prepared: BTreeMap<TrxId, Arc<[u8]>>,
    /// The maximum number of transactions that were unfinished at one place of the log: the scan keeps at most that
    /// many at a time.
    pub most_unfinished: usize,
    /// All tablespace ids assigned so far are below this.
    pub space_ceiling: u64,
    /// All transaction ids assigned so far are below this.
    pub trx_ceiling: u64,
}

impl Scan {
    /// Adds the transactions that the control file's checkpoint has recorded.
    fn read_checkpoint(&mut self, disk: &Arc<dyn Disk>, control: &Control) -> Result<()> {
        // Nothing is read that the checkpoint did not make durable.
        let mut reader = LogReader::new(disk.clone(), control, control.checkpoint)?.up_to(control.durable);
        let Some((start, _, group)) = reader.next_group()? else { return Ok(()) };
        // There is no table if no transaction was active, or no checkpoint was made yet.
        if start != control.checkpoint {
            return Ok(());
        }
        for record in GroupReader::new(group) {
            let record = record.map_err(|what| damage(disk.as_ref(), start, what))?;
            self.check_transactions(&record).map_err(|what| damage(disk.as_ref(), start, &what))?;
            match record {
                Record::TrxTable { active } => self.unfinished.extend(active),
                Record::TrxPrepare { trx, xid } => self.trx_prepared(trx, &xid),
                _ => {}
            }
        }
        self.count();
        Ok(())
    }

    /// Checks that the transactions which a record names have ids that were assigned before, and undo to roll back.
    /// The record of a ceiling is durable before the first id below it is used, and a checkpoint reads its ceiling
    /// after the list of transactions.
    fn check_transactions(&self, record: &Record<'_>) -> Result<(), String> {
        let is_assigned = |trx: TrxId| (1..self.trx_ceiling).contains(&trx.0);
        let check = |name: &str, trx: TrxId, first: Option<UndoPos>| {
            if !is_assigned(trx) {
                let last = self.trx_ceiling.saturating_sub(1);
                return Err(format!(
                    "its record {name} names transaction {trx}, and all ids assigned before are from 1 to {last}"
                ));
            }
            match first {
                Some(UndoPos(0)) => {
                    Err(format!("its record {name} names transaction {trx} without its first undo record"))
                }
                _ => Ok(()),
            }
        };
        match record {
            Record::TrxBegin { trx, first } => check("TrxBegin", *trx, Some(*first)),
            Record::TrxTable { active } => {
                active.iter().try_for_each(|(trx, first)| check("TrxTable", *trx, Some(*first)))
            }
            Record::TrxPrepare { trx, .. } => check("TrxPrepare", *trx, None),
            Record::TrxEnd { trx, .. } => check("TrxEnd", *trx, None),
            Record::Page { .. } | Record::Drop { .. } | Record::FileMade { .. } | Record::Ceilings { .. } => {
                Ok(())
            }
        }
    }

    /// Records a drop: nothing else is kept of a dropped tablespace.
    fn drop_space(&mut self, space: SpaceId) {
        self.dropped.insert(space);
        self.changed.remove(&space);
        self.made.remove(&space);
    }

    /// Records that a file was made. The record may follow the drop of its tablespace, and so may a change of a page
    /// that purge was working on.
    fn file_made(&mut self, space: SpaceId, lsn: Lsn) {
        if !self.dropped.contains(space) {
            self.made.entry(space).or_insert(lsn);
        }
    }

    fn page_changed(&mut self, space: SpaceId) {
        if !self.dropped.contains(space) {
            self.changed.insert(space);
        }
    }

    fn trx_begun(&mut self, trx: TrxId, first: UndoPos) {
        self.unfinished.insert(trx, first);
        self.count();
    }

    /// Records that a transaction is prepared under this XID, or, if it is empty, no longer prepared.
    fn trx_prepared(&mut self, trx: TrxId, xid: &[u8]) {
        if xid.is_empty() {
            self.prepared.remove(&trx);
        } else {
            self.prepared.insert(trx, Arc::from(xid));
        }
    }

    fn end_trx(&mut self, trx: TrxId) {
        self.unfinished.remove(&trx);
        self.prepared.remove(&trx);
    }

    fn count(&mut self) {
        self.most_unfinished = self.most_unfinished.max(self.unfinished.len());
    }
}

fn damage(disk: &dyn Disk, lsn: Lsn, what: &str) -> CorruptError {
    CorruptError::Log { file: disk.path(file_of(disk, lsn)), lsn, what: what.into() }
}

/// Reads the log from the low-water mark to its end. It keeps only the transactions that are unfinished at the same
/// time, however many there are in the log: those that the checkpoint has recorded are read first, and from the
/// low-water mark on a transaction is removed at its end record. The checkpoint records a transaction only if its end
/// was not logged below the low-water mark. A transaction with an id that was not assigned before is damage. A dropped
/// tablespace takes one bit ([`SpaceSet`]).
///
/// # Errors
/// [`CorruptError::Log`], I/O.
pub fn scan(disk: &Arc<dyn Disk>, control: &Control, progress: &dyn Fn(Progress)) -> Result<Scan> {
    let mut scan =
        Scan { space_ceiling: control.space_ceiling, trx_ceiling: control.trx_ceiling, ..Scan::default() };
    scan.read_checkpoint(disk, control)?;
    let mut reader = LogReader::new(disk.clone(), control, control.low_water_mark)?;
    let mut reported = control.low_water_mark.0;
    let mut last = None;
    while let Some((start, end, group)) = reader.next_group()? {
        let mut is_table = false;
        for record in GroupReader::new(group) {
            let record = record.map_err(|what| damage(disk.as_ref(), start, what))?;
            scan.check_transactions(&record).map_err(|what| damage(disk.as_ref(), start, &what))?;
            match record {
                Record::Drop { spaces } => spaces.iter().for_each(|space| scan.drop_space(*space)),
                Record::FileMade { space } => scan.file_made(space, start),
                Record::Ceilings { space, trx } => {
                    scan.space_ceiling = scan.space_ceiling.max(space.0);
                    scan.trx_ceiling = scan.trx_ceiling.max(trx.0);
                }
                Record::Page { id, .. } => {
                    if last != Some(id.space) {
                        last = Some(id.space);
                        scan.page_changed(id.space);
                    }
                }
                // The checkpoint's table was read before, and may name transactions that ended before it was logged. An
                // older one may name transactions with an end below the low-water mark.
                Record::TrxTable { .. } => is_table = true,
                Record::TrxPrepare { trx, xid } if !is_table => scan.trx_prepared(trx, &xid),
                Record::TrxPrepare { .. } => {}
                Record::TrxBegin { trx, first } => scan.trx_begun(trx, first),
                Record::TrxEnd { trx, .. } => scan.end_trx(trx),
            }
        }
        if end.0 - reported > REPLAY_BATCH_BYTES as u64 {
            reported = end.0;
            progress(Progress::new(Phase::Scan, end.0 - control.low_water_mark.0, 0));
        }
    }
    scan.end = reader.end();
    let Scan { unfinished, prepared, .. } = &mut scan;
    prepared.retain(|trx, _| unfinished.contains_key(trx));
    assert!(control.low_water_mark <= scan.end, "the log ends below its low-water mark");
    assert!(scan.space_ceiling >= control.space_ceiling, "the ceiling of tablespace ids has fallen");
    assert!(scan.trx_ceiling >= control.trx_ceiling, "the ceiling of transaction ids has fallen");
    assert!(scan.unfinished.len() <= scan.most_unfinished, "more transactions are unfinished than ever were");
    debug_assert!(
        scan.changed.iter().chain(scan.made.keys()).all(|space| !scan.dropped.contains(*space)),
        "a dropped tablespace is to be recovered"
    );
    let (low_water_mark, end, dropped, unfinished) =
        (control.low_water_mark.0, scan.end.0, scan.dropped.len(), scan.unfinished.len());
    let most_unfinished = scan.most_unfinished;
    tracing::info!(
        target: "windfall::recovery",
        low_water_mark, end, dropped, unfinished, most_unfinished, "the log was read",
    );
    Ok(scan)
}

/// The result of recovery, for the code that reads the records of the system tree.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The data files that existed when recovery began.
    pub files: Files,
    /// Tablespaces that could not be brought up to the end of the log.
    pub lost: Lost,
}

/// Data files, by their tablespaces.
pub type Files = BTreeSet<SpaceId>;

/// Tablespaces that could not be brought up to the end of the log, and the error: it is damage if a record names them.
/// No record names a tablespace with a drop below the low-water mark that purge was still using when the drop was
/// logged.
pub type Lost = BTreeMap<SpaceId, Error>;

/// Brings the pages up to the end of the log, which is open again. Before this call, no data file is written.
///
/// # Errors
/// Damage of the log, I/O. Damage of a page, or a missing file, makes its tablespace a lost one.
pub fn recover(
    pool: &BufferPool,
    control: &Control,
    scan: &Scan,
    progress: &dyn Fn(Progress),
) -> Result<Recovered> {
    assert!(control.low_water_mark <= scan.end, "the log ends below its low-water mark");
    assert!(scan.end <= pool.context().log.end(), "the log was not opened at its end");
    assert!(pool.counters.writes.load(Relaxed) == 0, "a page was written before recovery");
    let disk = &*pool.context().disk;
    // Listed once, before anything is written: a file that replay creates must not hide that one was lost.
    let files: Files = disk
        .list(Folder::Data)?
        .into_iter()
        .filter_map(|file| match file {
            FileName::Data(space) => Some(space),
            _ => None,
        })
        .collect();
    Doublewrite::remove_new(disk);
    sync_changed_files(disk, scan, &files, progress)?;
    let lost = repair_torn_pages(pool, control.low_water_mark, scan, &files)?;
    if !Doublewrite::has_room(disk, pool.page_size())? {
        // Without it no page could ever be written. If it is there, its creation was interrupted.
        tracing::warn!(
            target: "windfall::recovery",
            "the doublewrite file is missing or too short: it is created again",
        );
        Doublewrite::create(disk, pool.page_size(), SMALLEST_ROOM)?;
    }
    // A killed process may have created this file, or the control file, before its name was durable.
    disk.sync_folder(Folder::Root)?;
    pool.set_recovering(true);
    let lost = replay(pool, control, scan, &files, lost, progress)?;
    pool.set_recovering(false);
    Ok(Recovered { files, lost })
}

/// Makes unsynced writes of a killed process durable: the page cache shows them, so replay finds them done,
/// and nothing else would sync it before the low-water mark of the log passes. Pages that were not durable have a
/// change above the low-water mark, so the log names all these files. Must be called before anything is written: the
/// doublewrite file may have the only whole copies of such pages.
fn sync_changed_files(
    disk: &dyn Disk,
    scan: &Scan,
    files: &Files,
    progress: &dyn Fn(Progress),
) -> Result<()> {
    let total = scan.changed.len() as u64;
    for (done, space) in (0..).zip(&scan.changed) {
        progress(Progress::new(Phase::SyncFiles, done, total));
        if files.contains(space) {
            disk.sync(FileName::Data(*space))?;
        }
    }
    Ok(disk.sync_folder(Folder::Data)?)
}

/// A page that must be restored from its copy.
struct Repair<'a> {
    id: PageId,
    copy: &'a CopyFound,
    is_torn: bool,
}

/// Restores pages that are torn, or cannot be read, from whole copies. A page that equals its copy is rewritten, too,
/// unless the low-water mark has passed it: if the sync of its place failed it may be torn on the disk although it
/// reads whole, and the doublewrite file is about to lose the copy. The copies are made durable first, if there is any
/// such page. Pages of files that refuse writes are left to the pool. Returns the tablespaces of those that have their
/// copy at or below the low-water mark.
///
/// If one half of the doublewrite file cannot be read, a copy in the other half may be outdated. A copy at or above
/// the low-water mark is good all the same: the log has every later change. All pages that are written here, or by a
/// batch, have such a copy, so what a crash leaves of them can be restored whether that half can be read or not.
fn repair_torn_pages(pool: &BufferPool, low_water_mark: Lsn, scan: &Scan, files: &Files) -> Result<Lost> {
    let (disk, page_size) = (&*pool.context().disk, pool.page_size());
    let copies = Doublewrite::copies(disk, page_size)?;
    let mut repairs = Vec::new();
    for (&id, copy) in &copies.pages {
        // A missing file was never synced: redo initialises its pages again.
        if !files.contains(&id.space) || scan.dropped.contains(id.space) {
            continue;
        }
        let words = blank(page_size);
        let page = Page::new(&words);
        let is_good = copies.unread.is_none() || copy.lsn >= low_water_mark;
        let is_torn = match disk.read_page(FileName::Data(id.space), pool.offset(id.page), page.words()) {
            // A page that no good copy can repair stays damaged, and its readers report it.
            Ok(()) => is_good && page.verify(id).is_err(),
            // A device may leave a block unreadable after an interrupted write, until the block is written again.
            Err(error) if error.is_read_error() && is_good => true,
            Err(error) => return Err(error.of_page(id.page).into()),
        };
        if is_torn {
            tracing::warn!(
                target: "windfall::recovery",
                page = %id, "a page that is torn, or cannot be read, is restored from its copy",
            );
        } else if page.lsn() != copy.lsn || copy.lsn <= low_water_mark {
            continue;
        }
        repairs.push(Repair { id, copy, is_torn });
    }
    if !repairs.is_empty() {
        // An interrupted write may tear a page that reads whole here, and the next batch overwrites a half.
        Doublewrite::make_durable(disk, &copies, page_size)?;
    }
    let refused = write_again(pool, &repairs)?;
    let room = if refused.is_empty() { 0 } else { pool.room_for_torn(refused.len())? };
    let (mut torn, mut lost) = (Vec::new(), Lost::new());
    let mut kept = [true; 2];
    let mut why = None;
    for (n, (error, buffer)) in refused {
        let repair = &repairs[n];
        if !repair.is_torn && is_durable_in_place(pool, repair, &copies) {
            continue;
        }
        let Repair { id, copy, .. } = repair;
        let is_enough = |lsn: Lsn| lsn > low_water_mark || lsn == copy.lsn;
        kept = [0, 1].map(|half| kept[half] && copy.lsns[half].is_some_and(is_enough));
        let is_sound = pool.verify(*id, Page::new(&words(&copy.bytes))).is_ok();
        if !is_sound || copies.unread.is_some() || torn.len() == room {
            return Err(error.into());
        }
        tracing::warn!(
            target: "windfall::recovery",
            page = %id, %error, "a page cannot be written in its place: it stays in memory",
        );
        if copy.lsn <= low_water_mark {
            lost.entry(id.space).or_insert_with(|| error.clone().into());
        }
        torn.push((space_of(pool, scan, files, id.space)?, id.page, buffer));
        why.get_or_insert(error);
    }
    let kept = match (copies.unread, why) {
        // That half may have the only whole copy of a page, which can be restored once the half can be read again.
        (Some(half), _) => half as usize,
        (None, None) => copies.later().unwrap_or(1),
        (None, Some(error)) => kept.iter().position(|has_all| *has_all).ok_or(error)?,
    };
    assert!(kept < 2, "the doublewrite file has two halves");
    pool.begin_batches(kept, copies.last_number(), torn, low_water_mark)?;
    Ok(lost)
}

/// Writes copies to their places, and makes them durable there. Returns those that were refused, by their index, with
/// the error.
fn write_again(pool: &BufferPool, repairs: &[Repair<'_>]) -> Result<BTreeMap<usize, (DiskError, IoBuffer)>> {
    let (disk, page_size) = (&*pool.context().disk, pool.page_size());
    let request = |(token, Repair { id, copy, .. }): (u64, &Repair<'_>)| {
        let mut buffer = IoBuffer::new(page_size);
        buffer.bytes_mut()[..page_size].copy_from_slice(&copy.bytes);
        Request {
            token,
            file: FileName::Data(id.space),
            offset: pool.offset(id.page),
            action: Action::Write,
            buffer,
        }
    };
    let mut refused = BTreeMap::new();
    let mut queue = disk.queue();
    queue.submit((0..).zip(repairs).map(request).collect());
    while queue.pending() > 0 {
        for Completion { token, result, buffer } in queue.complete(true) {
            match result {
                Ok(()) => {}
                Err(error @ (DiskError::Panicked { .. } | DiskError::Released)) => return Err(error.into()),
                Err(error) => drop(refused.insert(token as usize, (error, buffer))),
            }
        }
    }
    let written: BTreeSet<_> = repairs.iter().map(|repair| FileName::Data(repair.id.space)).collect();
    for file in written {
        disk.sync(file)?;
    }
    Ok(refused)
}

/// Returns whether a page that could not be rewritten is durable in its place all the same: the bytes to be written
/// are there, and were before the last batch wrote to the places of its pages.
fn is_durable_in_place(pool: &BufferPool, Repair { id, copy, .. }: &Repair<'_>, copies: &Copies) -> bool {
    let words = blank(pool.page_size());
    let page = Page::new(&words);
    let read = pool.context().disk.read_page(FileName::Data(id.space), pool.offset(id.page), page.words());
    copies.was_durable_before_last_batch(id)
        && read.is_ok()
        && page.verify(*id).is_ok()
        && page.lsn() == copy.lsn
}

/// Returns the tablespace, with what is known of its file.
fn space_of(pool: &BufferPool, scan: &Scan, files: &Files, id: SpaceId) -> Result<Arc<Space>> {
    if let Some(space) = pool.space(id) {
        return Ok(space);
    }
    let space = pool.attach(id, Durability::Logged);
    attach_file(pool, &space, files.contains(&id), scan.made.get(&id).copied().map(FileRecord::Log))?;
    Ok(space)
}

/// The place of the record that a tablespace's file was created durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileRecord {
    /// In the log, at this LSN.
    Log(Lsn),
    /// In the system tree, or, for the file of that tree, in the control file.
    Permanent,
}

/// Records what is known of a tablespace's file: whether it exists, and what records that it was made.
///
/// # Errors
/// [`DiskError::Missing`] when it was created and does not exist.
pub(crate) fn attach_file(
    pool: &BufferPool,
    space: &Arc<Space>,
    exists: bool,
    made: Option<FileRecord>,
) -> Result<()> {
    match (exists, made) {
        (false, Some(_)) => {
            let path = pool.context().disk.path(FileName::Data(space.id()));
            return Err(DiskError::Missing { path }.into());
        }
        (true, Some(record)) => {
            if let FileRecord::Log(lsn) = record {
                pool.file_was_made(space.id(), lsn);
            }
            space.set_file(FileState::Durable);
        }
        // It was created, perhaps not durably: the next flush makes it durable and records it.
        (true, None) => space.set_file(FileState::Created),
        (false, None) => {}
    }
    Ok(())
}
