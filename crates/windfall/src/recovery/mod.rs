//! What happens between a crash and the first operation.
//!
//! **Purpose.** Brings the pages back to the end of the log: finds the end, collects what was dropped, repairs torn
//! pages, replays. What was unfinished is rolled back by the transaction floor in the background, from the list that is
//! made here.
//!
//! **Invariants.** Drops are collected before anything is replayed, so no work goes into a page that is gone, and a
//! file that a drop has deleted is not missed. A change is replayed if the page's LSN is below the end of its group. A
//! page that was never written must begin with a change that makes it anew; if it does not, a file or a page is lost,
//! which is damage, if a record names the tablespace. What is found in a file is durable before anything else is
//! written. If a page is to be written again, what is found in the doublewrite file is durable before that, and before
//! a batch is written over another one: a sync is no proof of that, so it goes to a new file, but for two cases in
//! which there can be none. Recovery may be cut at any point and begun again: all else that it writes the running
//! engine would write, too.
//!
//! *A file that takes no writes is the trouble of its tablespace alone*, here as in the flusher. What cannot be written
//! of it again from the doublewrite file becomes a torn, dirty page of the pool, with the content of its copy:
//!
//! - It is dirty since the floor of the log, which stays there until the page is written or the drop of its tablespace
//!   is durable. So its copy stays above the floor, and the log has every change that came behind it.
//! - Its copy is overwritten only when a batch that has it, too, is durable: one half of the doublewrite file has
//!   copies of all such pages, and the first batch takes over the other half. A copy there need not be the youngest
//!   one, if the log has what came behind it. Where no half has all of them, or one cannot be read, there is no such
//!   order, and the opening fails with the error of the write.
//! - No copy is kept of a page that only the earlier of two batches has, if it is whole in its place: it was durable
//!   there before the later batch was begun, and what was written over it are the same bytes.
//! - Such pages take a quarter of the pool and half of a batch at most. More of them are an error, too.
//! - A page whose copy the floor has passed is decayed in its place, or its tablespace was dropped: the file of a drop
//!   below the floor may still be there. So it makes its tablespace a lost one, and is kept like the others.
//!
//! Behind such an error every copy that is needed is where it was, or in each batch that was written since.
//!
//! **May touch.** `log`, `buffer`, `disk` and what is below.

mod spaces;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::spaces::SpaceSet;
use crate::{
    buffer::{BufferPool, Copies, CopyFound, Doublewrite, Durability, FileState, Space, words},
    disk::{Action, Completion, Disk, FileName, Folder, IoBuffer, Queue, Request},
    error::{CorruptError, DiskError, Error, Result},
    ids::{Lsn, PageId, PageNo, SpaceId, TrxId, UndoPos},
    log::{Control, GroupReader, LogReader, Record, segment_of},
    page::{Page, PageOp, blank},
    sync::{Arc, Bug, planted},
};

/// How many bytes of changes are collected before their pages are visited: each page of a batch is visited once.
const BATCH: usize = 32 << 20;

/// How far recovery has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// What is done in this phase, in the phase's unit.
    pub done: u64,
    /// What there is to do; zero while that is not known.
    pub total: u64,
}

/// The phases of recovery, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Looking for the end of the log and for drops, in bytes of the log.
    Scan,
    /// Making durable what was written before, in files.
    Settle,
    /// Applying changes to pages, in bytes of the log.
    Replay,
}

impl core::fmt::Display for Progress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let what = match self.phase {
            Phase::Scan => "reading the log",
            Phase::Settle => "syncing the data files",
            Phase::Replay => "applying the log",
        };
        match (self.done * 100).checked_div(self.total) {
            Some(percent) => write!(f, "{what}: {percent} %"),
            None => write!(f, "{what}: {} MB", self.done >> 20),
        }
    }
}

/// What the log says from the floor to its end, besides changes of pages.
#[derive(Debug, Default)]
pub struct Scan {
    /// The end of the log.
    pub end: Lsn,
    /// Tablespaces with a change of a page that were not dropped.
    pub changed: BTreeSet<SpaceId>,
    /// Tablespaces that were dropped.
    pub dropped: SpaceSet,
    /// Tablespaces whose file was made durable and that were not dropped, with the first group that says so.
    pub made: BTreeMap<SpaceId, Lsn>,
    /// Transactions without an end, with their first undo record.
    pub unfinished: BTreeMap<TrxId, UndoPos>,
    /// The names of those of them that are prepared.
    pub prepared: BTreeMap<TrxId, Arc<[u8]>>,
    /// The most transactions that were unfinished at one place of the log: so many were kept at a time.
    pub most_unfinished: usize,
    /// No tablespace id at or above this was handed out.
    pub space_ceiling: u64,
    /// No transaction id at or above this was handed out.
    pub trx_ceiling: u64,
}

impl Scan {
    /// Takes in what the control file's checkpoint has noted.
    fn note(&mut self, disk: &Arc<dyn Disk>, control: &Control) -> Result<()> {
        // Nothing is looked at that the checkpoint did not make durable.
        let mut reader = LogReader::new(disk.clone(), control, control.checkpoint)?.up_to(control.durable);
        let Some((start, _, group)) = reader.next_group()? else { return Ok(()) };
        // There is nothing to read where no transaction was under way, or no checkpoint was made yet.
        if start != control.checkpoint {
            return Ok(());
        }
        for record in GroupReader::new(group) {
            match record.map_err(|what| damage(disk.as_ref(), control, start, what))? {
                Record::TrxTable { active } => self.unfinished.extend(active),
                Record::TrxPrepare { trx, xid } => self.prepare(trx, &xid),
                _ => {}
            }
        }
        self.count();
        Ok(())
    }

    /// All that is kept of a tablespace that was dropped is that it was.
    fn drop_space(&mut self, space: SpaceId) {
        self.dropped.insert(space);
        self.changed.remove(&space);
        self.made.remove(&space);
    }

    /// This may come after its drop, and so may a change of a page that purge had in its hands.
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

    fn begin(&mut self, trx: TrxId, first: UndoPos) {
        self.unfinished.insert(trx, first);
        self.count();
    }

    /// A transaction is prepared by this name, or, without one, is not any more.
    fn prepare(&mut self, trx: TrxId, xid: &[u8]) {
        if xid.is_empty() {
            self.prepared.remove(&trx);
        } else if !planted(Bug::PreparedForgotten) {
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

fn damage(disk: &dyn Disk, control: &Control, lsn: Lsn, what: &str) -> CorruptError {
    let file = disk.path(FileName::Log(segment_of(control.segment_size, lsn)));
    CorruptError::Log { file, lsn, what: what.into() }
}

/// Reads the log from the floor to its end. It keeps no more transactions than are unfinished at a time, however many
/// there are in the log: what the checkpoint has noted of them is read first, and from the floor on a transaction is
/// forgotten with its end. It is noted only if that end was not logged below the floor. Of a tablespace that was
/// dropped it keeps a bit ([`SpaceSet`]).
///
/// # Errors
/// [`CorruptError::Log`], I/O.
pub fn scan(disk: &Arc<dyn Disk>, control: &Control, progress: &dyn Fn(Progress)) -> Result<Scan> {
    let mut scan =
        Scan { space_ceiling: control.space_ceiling, trx_ceiling: control.trx_ceiling, ..Scan::default() };
    scan.note(disk, control)?;
    let mut reader = LogReader::new(disk.clone(), control, control.floor)?;
    let mut told = control.floor.0;
    let mut last = None;
    while let Some((start, end, group)) = reader.next_group()? {
        let mut is_table = false;
        for record in GroupReader::new(group) {
            match record.map_err(|what| damage(disk.as_ref(), control, start, what))? {
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
                // The checkpoint's is known, and may name transactions that have ended before it was logged. An older
                // one may name such whose end lies below the floor.
                Record::TrxTable { .. } => is_table = true,
                Record::TrxPrepare { trx, xid } if !is_table => scan.prepare(trx, &xid),
                Record::TrxPrepare { .. } => {}
                Record::TrxBegin { trx, first } => scan.begin(trx, first),
                Record::TrxEnd { trx, .. } => scan.end_trx(trx),
            }
        }
        if end.0 - told > BATCH as u64 {
            told = end.0;
            progress(Progress { phase: Phase::Scan, done: end.0 - control.floor.0, total: 0 });
        }
    }
    scan.end = reader.end();
    let Scan { unfinished, prepared, .. } = &mut scan;
    prepared.retain(|trx, _| unfinished.contains_key(trx));
    let (floor, end, dropped, unfinished) =
        (control.floor.0, scan.end.0, scan.dropped.len(), scan.unfinished.len());
    let most_unfinished = scan.most_unfinished;
    tracing::info!(floor, end, dropped, unfinished, most_unfinished, "the log was read");
    Ok(scan)
}

/// What recovery leaves to whoever reads the records.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The data files that were there when it began.
    pub files: Files,
    /// Tablespaces that could not be brought to the end of the log.
    pub lost: Lost,
}

/// Data files, by their tablespaces.
pub type Files = BTreeSet<SpaceId>;

/// Tablespaces that could not be brought to the end of the log, and what is wrong: damage, if anything names them.
/// Nothing names one whose drop lies below the floor while purge still had its hands in it when the drop was logged.
pub type Lost = BTreeMap<SpaceId, Error>;

/// Brings the pages to the end of the log, which is open again. Before this, nothing writes.
///
/// # Errors
/// Damage of the log, I/O. Damage of a page, or a missing file, makes its tablespace a lost one.
pub fn recover(
    pool: &BufferPool,
    control: &Control,
    scan: &Scan,
    progress: &dyn Fn(Progress),
) -> Result<Recovered> {
    let disk = &*pool.ground().disk;
    // Once, and before anything is written: what replay makes must not stand for what was lost.
    let files: Files = disk
        .list(Folder::Data)?
        .into_iter()
        .filter_map(|file| match file {
            FileName::Data(space) => Some(space),
            _ => None,
        })
        .collect();
    Doublewrite::remove_new(disk);
    settle_files(disk, scan, &files, progress)?;
    let lost = if planted(Bug::TornPageKept) {
        Lost::new()
    } else {
        repair_torn_pages(pool, control.floor, scan, &files)?
    };
    if disk.len(FileName::Doublewrite)?.is_none() {
        // Without it no page could ever be written.
        tracing::warn!("the doublewrite file is missing: it is made anew");
        Doublewrite::create(disk, pool.page_size())?;
    }
    // A process that was killed may have made this file, or the control file, before its name was durable.
    disk.sync_folder(Folder::Root)?;
    pool.set_recovering(true);
    let lost = replay(pool, control, scan, &files, lost, progress)?;
    pool.set_recovering(false);
    Ok(Recovered { files, lost })
}

/// Makes durable what a process that was killed has written and not synced: the page cache shows it, so replay finds
/// it done, and nobody would sync it any more before the floor of the log passes. Pages that were not durable have a
/// change above the floor, so the log names all these files. To be done before anything is written: the doublewrite
/// file may have the only whole copies of such pages.
fn settle_files(disk: &dyn Disk, scan: &Scan, files: &Files, progress: &dyn Fn(Progress)) -> Result<()> {
    let total = scan.changed.len() as u64;
    for (done, space) in (0..).zip(&scan.changed) {
        progress(Progress { phase: Phase::Settle, done, total });
        if files.contains(space) && !planted(Bug::KilledWritesNotSynced) {
            disk.sync(FileName::Data(*space))?;
        }
    }
    Ok(disk.sync_folder(Folder::Data)?)
}

/// A page that is to be as its copy.
struct Repair<'a> {
    id: PageId,
    copy: &'a CopyFound,
    is_torn: bool,
}

/// Puts whole copies in the place of pages that are torn, or cannot be read. A page that is as its copy is written
/// again, too, unless the floor has passed it: if the sync of its place has failed it may be torn on the disk though it
/// is read whole, and the doublewrite file is about to lose the copy. The copies are made durable before; if there is
/// no such page, none is needed. Pages whose file takes no writes are left to the pool; gives the tablespaces of those
/// that are so below the floor.
///
/// Beside a half of the doublewrite file that cannot be read a copy may be outdated. One at or above the floor is good
/// all the same: the log has every later change. All pages that are written here, or by a batch, have such a copy, so
/// what a crash leaves of them can be restored whether that half can be read or not.
fn repair_torn_pages(pool: &BufferPool, floor: Lsn, scan: &Scan, files: &Files) -> Result<Lost> {
    let (disk, page_size) = (&*pool.ground().disk, pool.page_size());
    let copies = Doublewrite::copies(disk, page_size)?;
    let mut repairs = Vec::new();
    for (&id, copy) in &copies.pages {
        // A file that is not there was never synced: redo makes its pages anew.
        if !files.contains(&id.space) || scan.dropped.contains(id.space) {
            continue;
        }
        let words = blank(page_size);
        let page = Page::new(&words);
        let is_good = copies.unread.is_none() || copy.lsn >= floor;
        let is_torn = match disk.read_page(FileName::Data(id.space), pool.offset(id.page), page.words()) {
            // What no good copy repairs stays damage, which the page's readers find.
            Ok(()) => is_good && page.verify(id).is_err(),
            // A device may leave a block so whose write was cut off, until it is written again.
            Err(error) if error.is_of_read() && is_good => true,
            Err(error) => return Err(error.of_page(id.page).into()),
        };
        if is_torn {
            tracing::warn!(page = %id, "a page that is torn, or cannot be read, is restored from its copy");
        } else if page.lsn() != copy.lsn || copy.lsn <= floor {
            continue;
        }
        repairs.push(Repair { id, copy, is_torn });
    }
    if !repairs.is_empty() {
        // A write that is cut off may tear a page that is read whole here, and the next batch overwrites a half.
        Doublewrite::make_durable(disk, &copies, page_size)?;
    }
    let refused = write_again(pool, &repairs)?;
    let (mut torn, mut lost) = (Vec::new(), Lost::new());
    let mut kept = [true; 2];
    let mut why = None;
    for (n, (error, buffer)) in refused {
        let repair = &repairs[n];
        if !repair.is_torn && is_durable_in_place(pool, repair, &copies) {
            continue;
        }
        let Repair { id, copy, .. } = repair;
        let is_enough = |lsn: Lsn| lsn > floor || lsn == copy.lsn;
        kept = [0, 1].map(|half| kept[half] && copy.lsns[half].is_some_and(is_enough));
        let is_sound = pool.verify(*id, Page::new(&words(&copy.bytes))).is_ok();
        if !is_sound || copies.unread.is_some() || torn.len() == pool.room_for_torn() {
            return Err(error.into());
        }
        tracing::warn!(page = %id, %error, "a page cannot be written in its place: it stays in memory");
        if copy.lsn <= floor {
            lost.entry(id.space).or_insert_with(|| error.clone().into());
        }
        torn.push((space_of(pool, scan, files, id.space)?, id.page, buffer));
        why.get_or_insert(error);
    }
    let kept = match (copies.unread, why) {
        // It may have the only whole copy of a page, which can be restored once it can be read again.
        (Some(half), _) => half as usize,
        (None, None) => copies.later().unwrap_or(1),
        (None, Some(error)) => kept.iter().position(|has_all| *has_all).ok_or(error)?,
    };
    pool.begin_batches(kept, copies.last_number(), torn, floor)?;
    Ok(lost)
}

/// Writes copies in their places, and makes them durable there. Gives those whose place takes no write, by their
/// number, and why.
fn write_again(pool: &BufferPool, repairs: &[Repair<'_>]) -> Result<BTreeMap<usize, (DiskError, IoBuffer)>> {
    let (disk, page_size) = (&*pool.ground().disk, pool.page_size());
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
                Err(error @ (DiskError::Panicked { .. } | DiskError::Crashed)) => return Err(error.into()),
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

/// Whether a page that could not be written again is durable in its place all the same: what was to be written is
/// there, and was before the last batch came to the places of its pages.
fn is_durable_in_place(pool: &BufferPool, Repair { id, copy, .. }: &Repair<'_>, copies: &Copies) -> bool {
    let words = blank(pool.page_size());
    let page = Page::new(&words);
    let read = pool.ground().disk.read_page(FileName::Data(id.space), pool.offset(id.page), page.words());
    copies.was_durable_before_last_batch(id)
        && read.is_ok()
        && page.verify(*id).is_ok()
        && page.lsn() == copy.lsn
}

/// The tablespace, with what is known of its file.
fn space_of(pool: &BufferPool, scan: &Scan, files: &Files, id: SpaceId) -> Result<Arc<Space>> {
    if let Some(space) = pool.space(id) {
        return Ok(space);
    }
    let space = pool.attach(id, Durability::Logged);
    attach_file(pool, &space, files.contains(&id), scan.made.get(&id).copied())?;
    Ok(space)
}

/// The changes of one page in a batch: group start, group end, and where the change lies in the batch's bytes.
type Changes = Vec<(Lsn, Lsn, core::ops::Range<usize>)>;

struct Replay<'a> {
    pool: &'a BufferPool,
    scan: &'a Scan,
    files: &'a Files,
    lost: Lost,
    queue: Box<dyn Queue>,
    bytes: Vec<u8>,
    pages: BTreeMap<PageId, Changes>,
}

/// Replays the log into the pool, up to the end that the scan found.
fn replay(
    pool: &BufferPool,
    control: &Control,
    scan: &Scan,
    files: &Files,
    lost: Lost,
    progress: &dyn Fn(Progress),
) -> Result<Lost> {
    let disk = &pool.ground().disk;
    let mut replay =
        Replay { pool, scan, files, lost, queue: disk.queue(), bytes: Vec::new(), pages: BTreeMap::new() };
    // One that is missing may have been dropped below the floor while its last pages were being written: then nothing
    // names it any more. If something does, the file is missed when its tablespace is attached or changed.
    for space in scan.made.keys().filter(|space| files.contains(space)) {
        replay.space(*space)?;
    }
    let mut reader = LogReader::new(disk.clone(), control, control.floor)?.up_to(scan.end);
    let total = scan.end.0 - control.floor.0;
    while let Some((start, end, group)) = reader.next_group()? {
        for record in GroupReader::new(group) {
            if let Record::Page { id, op } =
                record.map_err(|what| damage(disk.as_ref(), control, start, what))?
                && !scan.dropped.contains(id.space)
            {
                replay.collect(id, start, end, &op);
            }
        }
        if replay.bytes.len() >= BATCH {
            replay.apply()?;
            progress(Progress { phase: Phase::Replay, done: end.0 - control.floor.0, total });
        }
    }
    replay.apply()?;
    progress(Progress { phase: Phase::Replay, done: total, total });
    Ok(replay.lost)
}

impl Replay<'_> {
    fn collect(&mut self, id: PageId, start: Lsn, end: Lsn, op: &PageOp<'_>) {
        let changes = self.pages.entry(id).or_default();
        if op.makes_page_anew() {
            // Whatever the page was before does not matter any more.
            changes.clear();
        }
        let at = self.bytes.len();
        op.encode(&mut self.bytes);
        changes.push((start, end, at..self.bytes.len()));
    }

    fn space(&self, id: SpaceId) -> Result<Arc<Space>> {
        space_of(self.pool, self.scan, self.files, id)
    }

    /// Visits every page of the batch once.
    fn apply(&mut self) -> Result<()> {
        let pages = core::mem::take(&mut self.pages);
        let bytes = core::mem::take(&mut self.bytes);
        let decode =
            |range: &core::ops::Range<usize>| PageOp::decode(&bytes[range.clone()]).map(|(op, _)| op);
        let mut work = Vec::with_capacity(pages.len());
        for (id, changes) in pages {
            let fresh =
                changes.first().is_some_and(|(_, _, at)| decode(at).is_ok_and(|op| op.makes_page_anew()));
            match self.space(id.space) {
                Ok(space) => work.push((space, id, fresh, changes)),
                Err(error) => self.lose(id.space, error)?,
            }
        }
        for batch in work.chunks(crate::buffer::READ_AHEAD) {
            let reads: Vec<_> =
                batch.iter().filter(|w| !w.2).map(|(space, id, ..)| (space.clone(), id.page)).collect();
            self.pool.read_ahead(&mut *self.queue, &reads)?;
            for (space, id, fresh, changes) in batch {
                if let Err(error) = self.visit(space, *id, *fresh, changes, &decode) {
                    self.lose(id.space, error)?;
                }
            }
        }
        Ok(())
    }

    /// Notes damage of a tablespace: whether it matters is known when the records are read.
    fn lose(&mut self, space: SpaceId, error: Error) -> Result<()> {
        match error {
            Error::Corrupt(_) | Error::Disk(DiskError::Missing { .. }) => {
                self.lost.entry(space).or_insert(error);
                Ok(())
            }
            error => Err(error),
        }
    }

    fn visit<'b>(
        &self,
        space: &Arc<Space>,
        id: PageId,
        fresh: bool,
        changes: &Changes,
        decode: &dyn Fn(&core::ops::Range<usize>) -> Result<PageOp<'b>, &'static str>,
    ) -> Result<()> {
        let mut latched =
            if fresh { self.pool.fresh(space, id.page)? } else { self.pool.exclusive(space, id.page)? };
        if id.page == PageNo::HEADER {
            space.set_has_pages();
        }
        // From the first change on, done or not: what is read may not be durable, if a sync has failed. So a page that
        // was found done is written once more, too, before the floor of the log passes.
        let since = changes.first().map_or(Lsn::MAX, |(start, ..)| *start);
        // As it was found: a group may change a page several times, and all its changes carry one LSN.
        let found = if fresh { Lsn::ZERO } else { latched.page().lsn() };
        let is_due = |end: Lsn| end > found || planted(Bug::ReplayedTwice);
        for (_, end, at) in changes.iter().filter(|(_, end, _)| is_due(*end)) {
            let page = latched.page();
            let damaged = |what: &str| {
                let file = self.pool.ground().disk.path(FileName::Data(id.space));
                CorruptError::Page { file, page: id, lsn: page.lsn(), what: what.into() }
            };
            let op = decode(at).map_err(damaged)?;
            op.apply(page, id).map_err(damaged)?;
            page.set_lsn(*end);
            latched.mark_dirty(space, since);
        }
        if !planted(Bug::FoundDoneNotDirty) {
            latched.mark_dirty(space, since);
        }
        Ok(())
    }
}

/// Notes what is known of a tablespace's file. `made` is where the log says that it was made, or zero when a record of
/// the system tree says so.
///
/// # Errors
/// [`DiskError::Missing`] when it was made and is not there.
pub fn attach_file(pool: &BufferPool, space: &Arc<Space>, exists: bool, made: Option<Lsn>) -> Result<()> {
    match (exists, made) {
        (false, Some(_)) => {
            let path = pool.ground().disk.path(FileName::Data(space.id()));
            return Err(DiskError::Missing { path }.into());
        }
        (true, Some(lsn)) => {
            if lsn > Lsn::ZERO {
                pool.file_was_made(space.id(), lsn);
            }
            space.set_file(FileState::Made);
        }
        // It was created, and perhaps not durably: the next flush makes it so and says so.
        (true, None) => space.set_file(FileState::Created),
        (false, None) => {}
    }
    Ok(())
}
