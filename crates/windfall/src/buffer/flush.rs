//! Writing dirty pages to the data files.
//!
//! **Purpose.** A batch at a time: copy pages under a shared latch, make the log durable up to them, write them to the
//! doublewrite file, then to their places, and only when they are durable there let the log floor pass. Nobody waits
//! for a page while it is on its way to the disk.
//!
//! **Invariants.** Write-ahead: the log is durable up to the youngest copy before any copy is written. A page on its
//! way is not copied a second time, so two writes of a page never race; and it keeps its frame until the whole batch is
//! durable, so what could not be written is dirty again, since when it was. The next batch takes over the doublewrite
//! file, which may have the only whole copies of pages: so it begins only when the last one's writes are synced, and
//! with every page whose write has failed, until that has succeeded or the drop of its tablespace is durable. A
//! tablespace's file is made at the first flush; it counts as made when its name, its content and the log's word for it
//! are durable. Whether a tablespace gets a file, and whether a dropped one loses it, is decided under one lock, so a
//! file is never made behind the deleter's back.
//!
//! **May touch.** `disk`, `log`, the rest of `buffer`.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::{
    BufferPool, Durability, FileState, Space,
    arena::FrameNo,
    doublewrite::{Doublewrite, PAGES},
    frame::{DIRTY, WRITING},
    replace::PATIENCE,
};
use crate::{
    disk::{Action, Disk, FileName, Folder, IoBuffer, Queue, Request},
    error::{DiskError, Error, Result},
    ids::{Lsn, PageId, PageNo, SpaceId},
    log::{GroupWriter, Record},
    page,
    sync::{
        Arc, Bug, Event,
        atomic::Ordering::{Relaxed, Release},
        planted, work,
    },
};

/// How many tablespaces a round by age looks at.
const SPACES_A_ROUND: usize = 32;
/// How many frames a round frees, but for what one call of the reclaimer gives on top.
const FREED_A_ROUND: usize = 512;
/// How many frames the cleaner's clock passes in one round.
const CLEANER_REACH: usize = 32_768;
/// A failed write counts as so many fruitless rounds: a waiter gives up after a hundred of them.
const FRUITLESS_FAILURE: u64 = PATIENCE / 100;
/// So many failing batches in a row, a tenth of a second apart or less, are no passing trouble.
const FAILURES_IN_A_ROW: u64 = 20;
/// Files up to this many bytes grow as they are written; larger ones are preallocated in steps.
const PREALLOCATE_FROM: u64 = 1 << 20;
/// Rounds that write nothing after which the rest is left to the next checkpoint.
const IDLE_ROUNDS_MOST: u64 = 1000;
/// How long such a round is, but for the first ones.
const IDLE_PAUSE: Duration = Duration::from_millis(1);

/// What the flusher keeps between batches.
pub struct Flusher {
    queue: Box<dyn Queue>,
    doublewrite: Doublewrite,
    /// Copies whose write failed and whose pages are not dirty again yet.
    failed: Vec<Copy>,
    /// Logged pages whose last write failed: they may be torn in their places.
    torn: Vec<(Arc<Space>, PageNo)>,
    /// Buffers of the last batch, to be used again.
    spare: Vec<IoBuffer>,
}

impl core::fmt::Debug for Flusher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Flusher({} failed)", self.failed.len())
    }
}

impl Flusher {
    pub(super) fn new(disk: &dyn Disk) -> Self {
        Self {
            queue: disk.queue(),
            doublewrite: Doublewrite::default(),
            failed: Vec::new(),
            torn: Vec::new(),
            spare: Vec::new(),
        }
    }

    fn wait(&mut self, mut done: impl FnMut(u64, Result<(), DiskError>)) {
        while self.queue.pending() > 0 {
            for completion in self.queue.complete(true) {
                done(completion.token, completion.result);
                self.spare.push(completion.buffer);
            }
        }
    }
}

/// What is decided about files under the lock.
#[derive(Debug, Default)]
pub struct Files {
    /// Files that the log says were made, with the LSN where it says so, until a record in the catalog says so too.
    made: BTreeMap<SpaceId, Lsn>,
    /// The same in the order of the log: its floor asks for the first one.
    by_lsn: BTreeSet<(Lsn, SpaceId)>,
}

impl Files {
    fn note(&mut self, space: SpaceId, lsn: Lsn) {
        self.forget(space);
        self.made.insert(space, lsn);
        self.by_lsn.insert((lsn, space));
    }

    fn forget(&mut self, space: SpaceId) {
        if let Some(lsn) = self.made.remove(&space) {
            self.by_lsn.remove(&(lsn, space));
        }
    }

    fn floor(&self) -> Lsn {
        self.by_lsn.first().map_or(Lsn::MAX, |(lsn, _)| *lsn)
    }
}

/// A copy of a page on its way to the disk.
#[derive(Debug)]
struct Copy {
    space: Arc<Space>,
    page: PageNo,
    frame: FrameNo,
    since: Lsn,
    lsn: Lsn,
    /// What is wrong with it, if anything: then it is memory that is damaged.
    wrong: Option<&'static str>,
}

impl Copy {
    fn id(&self) -> PageId {
        PageId { space: self.space.id(), page: self.page }
    }
}

impl BufferPool {
    /// One background round: frees frames until enough are ready, and writes what is dirty and cold, or else what
    /// changed at or before `up_to`. Says whether there is more to do at once.
    ///
    /// # Errors
    /// As [`BufferPool::flush`].
    pub fn clean_step(&self, up_to: Lsn) -> Result<bool> {
        let mut cold = Vec::new();
        let mut note = |frame| {
            if cold.len() < PAGES {
                cold.push(frame);
            }
        };
        let shrinking = self.shrink(&mut note);
        let (mut freed, mut reach) = (0, CLEANER_REACH);
        while self.free_frames() < self.wanted_free() && freed < FREED_A_ROUND {
            freed += match self.reclaim_some() {
                0 => match self.clock(&mut reach, &mut note) {
                    Some(frame) => {
                        self.give(frame);
                        1
                    }
                    None => break,
                },
                frames => frames,
            };
        }
        let short = self.free_frames() < self.wanted_free();
        let cold: Vec<_> = cold.into_iter().filter_map(|frame| self.page_in(frame)).collect();
        let mut written = self.flush(cold)?;
        if written < PAGES {
            written += self.flush(self.old_pages(up_to))?;
        }
        if freed == 0 && written == 0 && self.free_frames() <= self.kept_frames() {
            // A page that could not be written and is latched now keeps all others from being written.
            let failing = self.flush_error.lock().is_some();
            self.fruitless_rounds.fetch_add(if failing { FRUITLESS_FAILURE } else { 1 }, Release);
            self.frame_freed.notify();
        }
        Ok(shrinking || (short && freed + written > 0) || written == PAGES)
    }

    /// The page in a frame, with its tablespace.
    fn page_in(&self, frame: FrameNo) -> Option<(Arc<Space>, PageNo)> {
        let descriptor = self.arena.frame(frame);
        let id = descriptor.tag();
        Some((self.directory.at(descriptor.slot(), id.space)?, id.page))
    }

    /// Pages that changed at or before `up_to`, of the tablespaces with the oldest changes.
    fn old_pages(&self, up_to: Lsn) -> Vec<(Arc<Space>, PageNo)> {
        let (registered, durable) = (self.registered(), self.ground.log.durable());
        let mut pages: Vec<(Lsn, Arc<Space>, PageNo)> = Vec::new();
        for space in self.floor.oldest_spaces(up_to, SPACES_A_ROUND, durable, registered) {
            let oldest = space.dirty.lock().oldest_waiting(up_to, PAGES);
            pages.extend(oldest.into_iter().map(|(since, page)| (since, space.clone(), page)));
        }
        pages.sort_by_key(|(since, space, page)| (*since, space.id(), *page));
        pages.into_iter().map(|(_, space, page)| (space, page)).collect()
    }

    /// Writes at most [`PAGES`] pages: those whose last write failed, then of these. Gives how many were written.
    ///
    /// # Errors
    /// A full disk, or another failure to write, when no page was written at all: the pages stay dirty. A failing sync
    /// poisons the database.
    pub fn flush(&self, wanted: impl IntoIterator<Item = (Arc<Space>, PageNo)>) -> Result<usize> {
        let mut flusher = self.flusher.lock();
        self.ground.health.check()?;
        let mut failed = core::mem::take(&mut flusher.failed);
        failed.retain(|copy| !self.dirty_again(copy));
        flusher.failed = failed;
        let mut wanted = wanted.into_iter().peekable();
        if wanted.peek().is_none() {
            return Ok(0);
        }
        let mut batch = Vec::new();
        if !self.copy_torn(&mut flusher, &mut batch)? {
            flusher
                .failed
                .extend(batch.into_iter().map(|(copy, _)| copy).filter(|copy| !self.dirty_again(copy)));
            return Ok(0);
        }
        for (space, page) in wanted {
            if batch.len() >= PAGES {
                break;
            }
            batch.extend(self.copy_out(space, page, &mut flusher.spare));
        }
        if batch.is_empty() {
            return Ok(0);
        }
        let with_id = |(copy, buffer): (Copy, IoBuffer)| {
            let id = copy.id();
            (copy, (id, buffer))
        };
        let (copies, buffers): (Vec<_>, Vec<_>) = batch.into_iter().map(with_id).unzip();
        let (error, failed) = match self.write_out(&mut flusher, &copies, buffers) {
            Ok(failures) => {
                // The file of a dropped tablespace may be gone: nobody misses it.
                let missed = |n: &usize| !copies[*n].space.is_dropped();
                let failed: BTreeSet<_> = failures.keys().copied().filter(missed).collect();
                let first = failed.first().and_then(|n| failures.get(n)).cloned();
                (first.map(Error::from), failed)
            }
            Err(error) => (Some(error), (0..copies.len()).collect()),
        };
        let written = copies.len() - failed.len();
        for (n, copy) in copies.into_iter().enumerate() {
            if !failed.contains(&n) {
                // A frame that was taken from a dropped tablespace meanwhile is not on its way: there is one batch at
                // a time.
                self.arena.frame(copy.frame).clear(WRITING);
                copy.space.dirty.lock().written(copy.page, copy.since);
            } else if !self.dirty_again(&copy) {
                flusher.failed.push(copy);
            }
        }
        self.counters.writes.fetch_add(written as u64, Relaxed);
        if !work::is_background() {
            self.counters.foreground_writes.fetch_add(written as u64, Relaxed);
        }
        match error {
            Some(error) if written == 0 => {
                drop(flusher);
                self.flush_failed(&error);
                return Err(error);
            }
            Some(error) => {
                tracing::warn!(%error, "some pages could not be written: they stay in memory and in the log");
                self.note_failure(error);
            }
            None => {
                *self.flush_error.lock() = None;
                self.failures.store(0, Relaxed);
                self.ground.log.set_unflushed(None);
            }
        }
        Ok(written)
    }

    /// Copies the pages whose last write failed. Says whether all could be had that are still needed: without one of
    /// them there is no batch.
    fn copy_torn(&self, flusher: &mut Flusher, batch: &mut Vec<(Copy, IoBuffer)>) -> Result<bool> {
        let (mut all, mut dropped) = (true, Lsn::ZERO);
        let Flusher { torn, spare, .. } = flusher;
        torn.retain(|(space, page)| {
            match self.copy_out(space.clone(), *page, spare) {
                Some(copy) => batch.push(copy),
                None if space.is_dropped() => {
                    dropped = dropped.max(space.drop_lsn());
                    return false;
                }
                None => all = false,
            }
            true
        });
        // A drop that a crash may take back needs its pages whole.
        self.ground.log.sync_to(dropped)?;
        Ok(all)
    }

    /// Waits until nobody is writing pages, after the database was closed: nobody will again.
    pub fn quiesce(&self) {
        self.tell_freed();
        drop(self.flusher.lock());
    }

    /// Lets those who wait for a frame know that none may come.
    fn flush_failed(&self, error: &Error) {
        if matches!(error, Error::Disk(DiskError::Crashed)) {
            self.ground.health.poison(&error.to_string());
        }
        self.note_failure(error.clone());
        self.fruitless_rounds.fetch_add(FRUITLESS_FAILURE, Release);
        self.frame_freed.notify();
    }

    /// Notes why a batch was not written, or not all of it. After many in a row, nobody waits for the log's floor any
    /// more.
    fn note_failure(&self, error: Error) {
        *self.flush_error.lock() = Some(error.clone());
        if self.failures.fetch_add(1, Relaxed) + 1 >= FAILURES_IN_A_ROW {
            self.ground.log.set_unflushed(Some(error));
        }
    }

    /// Copies a dirty page, if it can be had at once and no copy of it is under way.
    fn copy_out(
        &self,
        space: Arc<Space>,
        page: PageNo,
        spare: &mut Vec<IoBuffer>,
    ) -> Option<(Copy, IoBuffer)> {
        if space.is_dropped() {
            return None;
        }
        let no = space.pages.get(page)?;
        let frame = self.arena.frame(no);
        if !frame.latch.try_share() {
            return None;
        }
        let id = PageId { space: space.id(), page };
        let is_it = frame.tag() == id || planted(Bug::CopyWithoutTag);
        let wanted = is_it && frame.is(DIRTY) && !frame.is(WRITING);
        let copied = wanted.then(|| {
            let since = frame.oldest();
            let from = self.arena.page(no);
            let mut buffer = spare.pop().unwrap_or_else(|| IoBuffer::new(self.page_size));
            from.read(0, buffer.bytes_mut());
            frame.set(WRITING);
            frame.clear(DIRTY);
            self.counters.dirty.fetch_sub(1, Relaxed);
            let mut dirty = space.dirty.lock();
            dirty.start_writing(page, since);
            if planted(Bug::CleanWhenCopied) {
                dirty.written(page, since);
            }
            drop(dirty);
            let wrong =
                if from.id() == id { page::outline(from).err() } else { Some("it says to be another one") };
            (Copy { space, page, frame: no, since, lsn: from.lsn(), wrong }, buffer)
        });
        frame.latch.unshare();
        copied
    }

    /// Makes a page dirty again whose write failed. Says whether it is settled; if not, someone has it latched.
    fn dirty_again(&self, copy: &Copy) -> bool {
        let frame = self.arena.frame(copy.frame);
        if !frame.latch.try_share() {
            return false;
        }
        let mut dirty = copy.space.dirty.lock();
        // The frame of a dropped page may hold another one by now.
        if frame.tag() == copy.id() || planted(Bug::FailedWriteWithoutTag) {
            let changed_since = (frame.set(DIRTY) & DIRTY != 0).then(|| frame.oldest());
            if changed_since.is_none() {
                self.counters.dirty.fetch_add(1, Relaxed);
            }
            dirty.not_written(copy.page, copy.since, changed_since);
            frame.set_oldest(copy.since);
            frame.clear(WRITING);
        } else {
            dirty.written(copy.page, copy.since);
        }
        drop(dirty);
        frame.latch.unshare();
        true
    }

    /// Writes a batch. Gives the places in it of pages that could not be written.
    fn write_out(
        &self,
        flusher: &mut Flusher,
        copies: &[Copy],
        mut pages: Vec<(PageId, IoBuffer)>,
    ) -> Result<BTreeMap<usize, DiskError>> {
        let disk = &*self.ground.disk;
        let logged = |copy: &&Copy| copy.space.durability() == Durability::Logged;
        let youngest = copies.iter().filter(logged).map(|copy| copy.lsn).max();
        if let Some(lsn) = youngest
            && !planted(Bug::PagesBeforeTheLog)
        {
            self.ground.log.sync_to(lsn)?;
        }
        // A change that is left unfinished stops the database and lets go of its pages then: what was copied behind
        // that is found here.
        if !planted(Bug::HalfAChangeWritten) {
            self.ground.health.check()?;
        }
        self.check_copies(copies)?;
        for (_, buffer) in &mut pages {
            let crc = crc32c::crc32c(&buffer.bytes()[4..self.page_size]);
            buffer.bytes_mut()[..4].copy_from_slice(&crc.to_le_bytes());
        }
        let spaces: BTreeMap<SpaceId, &Arc<Space>> =
            copies.iter().map(|copy| (copy.space.id(), &copy.space)).collect();
        self.make_files(&spaces)?;
        if youngest.is_some() {
            flusher
                .doublewrite
                .write(disk, &mut *flusher.queue, &pages, self.page_size)
                .map_err(|error| self.unless_benign(error))?;
        }
        self.preallocate(&spaces, &pages);
        let requests = pages.into_iter().enumerate().map(|(n, (id, buffer))| Request {
            token: n as u64,
            file: FileName::Data(id.space),
            offset: self.offset(id.page),
            action: Action::Write,
            buffer,
        });
        flusher.queue.submit(requests.collect());
        let mut failures = BTreeMap::new();
        flusher.wait(|token, result| {
            if let Err(error) = result
                && !planted(Bug::FailedWriteForgotten)
            {
                failures.insert(token as usize, error);
            }
        });
        let torn = failures.keys().map(|n| &copies[*n]).filter(logged);
        flusher.torn = torn.map(|copy| (copy.space.clone(), copy.page)).collect();
        // After a failure, too: what did reach its place may be torn there while only the doublewrite file has it
        // whole.
        self.sync_files(&spaces)?;
        Ok(failures)
    }

    /// Checks what is about to be written, as far as that costs next to nothing. What is wrong here has gone wrong in
    /// memory: on disk it would be damage.
    fn check_copies(&self, copies: &[Copy]) -> Result<()> {
        let durable = self.ground.log.durable();
        for copy in copies {
            let ahead = (copy.lsn > durable).then_some("its last change is not in the log");
            if let Some(what) = copy.wrong.or(ahead) {
                let id = copy.id();
                return Err(self
                    .ground
                    .health
                    .poison(&format!("{id} is not what it should be in memory: {what}")));
            }
        }
        Ok(())
    }

    /// A failure of the doublewrite file's sync leaves its content unknown; other failures leave nothing behind.
    fn unless_benign(&self, error: DiskError) -> Error {
        if error.is_of_sync() { self.ground.health.poison(&error.to_string()) } else { error.into() }
    }

    /// Makes the files of tablespaces that have none.
    fn make_files(&self, spaces: &BTreeMap<SpaceId, &Arc<Space>>) -> Result<()> {
        if spaces.values().all(|space| space.file() != FileState::None) {
            return Ok(());
        }
        let _deciding = self.files.lock();
        for (id, space) in spaces {
            let is_live = !space.is_dropped() || planted(Bug::FileBehindTheDeleter);
            if space.file() == FileState::None && is_live {
                self.ground.disk.create(FileName::Data(*id))?;
                self.counters.files_created.fetch_add(1, Relaxed);
                space.set_file(FileState::Created);
            }
        }
        Ok(())
    }

    /// Grows large files in steps, so that their blocks lie together and their length seldom changes. A failure is
    /// left to the write itself to report.
    fn preallocate(&self, spaces: &BTreeMap<SpaceId, &Arc<Space>>, pages: &[(PageId, IoBuffer)]) {
        for (id, space) in spaces {
            let file = FileName::Data(*id);
            let last = pages.iter().filter(|(page, _)| page.space == *id).map(|(page, _)| page.page).max();
            let Some(end) = last.map(|page| self.offset(page) + self.page_size as u64) else { continue };
            if end <= PREALLOCATE_FROM || end <= space.allocated() {
                continue;
            }
            let length = self.ground.disk.len(file).ok().flatten().unwrap_or(0);
            let mut allocated = length;
            if length < end {
                let step = (end / 8)
                    .clamp(PREALLOCATE_FROM, 64 * PREALLOCATE_FROM)
                    .next_multiple_of(self.page_size as u64);
                if self.ground.disk.preallocate(file, length, end + step - length).is_ok() {
                    allocated = end + step;
                }
            }
            space.set_allocated(allocated);
        }
    }

    /// Makes what was written durable, and lets the log say which files were made.
    fn sync_files(&self, spaces: &BTreeMap<SpaceId, &Arc<Space>>) -> Result<()> {
        let disk = &*self.ground.disk;
        let poison = |error: DiskError| self.ground.health.poison(&error.to_string());
        let mut new = Vec::new();
        for (id, space) in spaces {
            if space.durability() != Durability::Logged {
                continue;
            }
            let synced = if planted(Bug::DataNotSynced) { Ok(()) } else { disk.sync(FileName::Data(*id)) };
            match synced {
                Ok(()) => {}
                // As for a page that could not be written: the drop has to be durable, and then nobody misses the file.
                Err(_) if space.is_dropped() => {
                    if !planted(Bug::FailedSyncOfDropped) {
                        self.ground.log.sync_to(space.drop_lsn())?;
                    }
                    continue;
                }
                Err(error) => return Err(poison(error)),
            }
            if space.file() == FileState::Created {
                new.push(*space);
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        if !planted(Bug::FolderNotSynced) {
            disk.sync_folder(Folder::Data).map_err(poison)?;
        }
        let mut group = GroupWriter::default();
        for space in &new {
            group.push(&Record::FileMade { space: space.id() });
        }
        // Where there is no place to say so, the batch has failed: it is written again.
        let _room = self.ground.log.admit_drop(group.log_bytes())?;
        let appending = self.ground.log.begin_group();
        let (start, _) = appending.append(group.bytes())?;
        let mut files = self.files.lock();
        for space in new {
            files.note(space.id(), start);
            space.set_file(FileState::Made);
        }
        drop(files);
        drop(appending);
        Ok(())
    }

    /// Makes files durable that were created and of which the log does not say so yet, and lets it say so: recovery
    /// may have found them with all their pages as they should be, so that no flush is to come.
    ///
    /// # Errors
    /// A failing sync poisons the database.
    pub fn say_files_made(&self) -> Result<()> {
        let created: Vec<_> =
            self.spaces().into_iter().filter(|space| space.file() == FileState::Created).collect();
        for some in created.chunks(SPACES_A_ROUND) {
            self.sync_files(&some.iter().map(|space| (space.id(), space)).collect())?;
        }
        Ok(())
    }

    /// Where the log says first of a file that it was made while no record in the catalog says so yet.
    pub fn files_floor(&self) -> Lsn {
        self.files.lock().floor()
    }

    /// Files that were made and whose record is still to be written: at most `most`.
    pub fn files_to_record(&self, most: usize) -> Vec<SpaceId> {
        self.files.lock().made.keys().take(most).copied().collect()
    }

    /// A file's record is written, or not needed any more.
    pub fn file_recorded(&self, space: SpaceId) {
        self.files.lock().forget(space);
    }

    /// Recovery found that the log says the file was made, and no record.
    pub fn file_was_made(&self, space: SpaceId, lsn: Lsn) {
        self.files.lock().note(space, lsn);
    }

    /// Asks whether a dropped tablespace has a file to delete. After this none will be made.
    pub fn file_of_dropped(&self, space: &Space) -> FileState {
        debug_assert!(space.is_dropped());
        let _deciding = self.files.lock();
        space.file()
    }

    /// Runs something while no page is being written.
    pub fn between_writes<T>(&self, run: impl FnOnce() -> T) -> T {
        let _flusher = self.flusher.lock();
        run()
    }

    /// Writes everything that is dirty now. Pages that change meanwhile may stay dirty.
    ///
    /// # Errors
    /// As [`BufferPool::flush`].
    pub fn flush_all(&self) -> Result<()> {
        let up_to = self.ground.log.end();
        let mut idle = 0;
        while self.oldest_dirty() < up_to && idle < IDLE_ROUNDS_MOST {
            idle = if self.flush(self.old_pages(up_to))? == 0 { idle + 1 } else { 0 };
            if idle > IDLE_ROUNDS_MOST / 10 {
                // Someone has a page latched, and may be waiting for something himself.
                self.ground.env.wait_for(&Event::new(), IDLE_PAUSE, &mut || false);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_pool::new_pool, *};

    #[test]
    fn what_was_dropped_gets_no_file() {
        let (disk, pool) = new_pool(64);
        let [dropped, live] = [100, 101].map(|id| pool.attach(SpaceId(id), Durability::Logged));
        pool.detach(&dropped, Lsn::ZERO);
        pool.make_files(&[&dropped, &live].map(|space| (space.id(), space)).into()).unwrap();
        let exists = |space: &Space| disk.len(FileName::Data(space.id())).unwrap().is_some();
        assert_eq!((exists(&dropped), exists(&live)), (false, true));
    }

    #[test]
    fn the_floor_of_files_is_the_oldest_that_is_not_recorded() {
        let mut files = Files::default();
        assert_eq!(files.floor(), Lsn::MAX);
        for (space, lsn) in [(7, 300), (3, 200), (9, 100), (3, 250)] {
            files.note(SpaceId(space), Lsn(lsn));
        }
        assert_eq!(files.floor(), Lsn(100));
        files.forget(SpaceId(9));
        files.forget(SpaceId(9));
        assert_eq!(files.floor(), Lsn(250));
        files.forget(SpaceId(3));
        files.forget(SpaceId(7));
        assert_eq!((files.floor(), files.by_lsn.len()), (Lsn::MAX, 0));
    }
}
