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
//! has a copy of every page that a failed write has torn, until one succeeds or the drop of its tablespace is durable.
//! Pages that recovery could not write in their places are such pages from the start: they come with the half of the
//! doublewrite file that has all their copies, and the first batch takes over the other one.
//!
//! *A file that takes no writes is the trouble of its tablespace alone.* While it fails, a batch takes one page of such
//! a tablespace, to see whether it still does, and no others. Only pages that are torn in their places, or cannot be
//! read there, have to be in every batch. They leave room for others, however many files fail:
//!
//! - A batch writes the pages that are new to it in two halves, and leaves the second one out when a page of the first
//!   one fails. So half of its room is free behind a failure.
//! - While torn pages have half of the room ([`TORN_MANY`]), each place is tried before its page is written: it has to
//!   be read, and the bytes that are found are written there again. If that stops halfway the place is whole all the
//!   same. Where either fails the page stays dirty, and takes no room.
//!
//! So the files that fail when a batch begins tear at most three quarters of a batch together. More is torn only in
//! places that fail in the moment behind their trial, or that no longer can be read when a trial has failed: such a
//! batch takes at most half of the room that is left, rounded up. With no room left (it takes six such batches, with no
//! torn page written or dropped between them) no other page is written: every flush says why, the pages stay dirty, and
//! the floor of the log stays below their changes.
//!
//! **May touch.** `disk`, `log`, the rest of `buffer`.

pub mod files;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    BufferPool, Durability, Space,
    arena::FrameNo,
    doublewrite::{Doublewrite, PAGES, words},
    frame::{DIRTY, UNPROVEN, WRITING},
    replace::PATIENCE,
};
use crate::{
    disk::{Action, Completion, Disk, FileName, IoBuffer, Queue, Request},
    error::{DiskError, Error, Result},
    ids::{Lsn, PageId, PageNo, SpaceId},
    page::{self, Page},
    sync::{Arc, Bug, Event, atomic::Ordering::Relaxed, planted, work},
};

/// How many tablespaces a round by age looks at.
const SPACES_A_ROUND: usize = 32;
/// So many torn pages are too many for more to come by pages that are written without a trial of their places.
const TORN_MANY: usize = PAGES / 2;
/// How many frames a round frees, but for what one call of the reclaimer gives on top.
const FREED_A_ROUND: usize = 512;
/// How many frames the cleaner's clock passes in one round.
const CLEANER_REACH: usize = 32_768;
/// A round that fails counts as so many fruitless rounds: a waiter gives up after a hundred of them.
const FRUITLESS_FAILURE: u64 = PATIENCE / 100;
/// A batch of which nothing is written counts as so many failures, for the next one may come so much later: one of
/// which a part is written counts as one.
const FAILURES_A_BATCH: u64 = 50;
/// So many failures in a row, two seconds or less, are no passing trouble.
const FAILURES_IN_A_ROW: u64 = 20 * FAILURES_A_BATCH;
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
    /// Logged pages that may be torn in their places: each from a write that failed until one succeeds or its
    /// tablespace's drop is durable. It is dirty or being written all the while. No more than a batch has room for.
    torn: Vec<Torn>,
    /// Tablespaces whose file could not be made, or not be written, the one that was tried last at the end, and those
    /// of which only torn pages are dirty. They know that they are here.
    failing: VecDeque<Arc<Space>>,
    /// Which page of such a tablespace is tried next.
    probe: usize,
    /// Buffers of the last batch, to be used again.
    spare: Vec<IoBuffer>,
}

/// A page that is torn in its place.
#[derive(Debug)]
struct Torn {
    space: Arc<Space>,
    page: PageNo,
    /// What was to be written.
    copy: IoBuffer,
}

impl Torn {
    fn id(&self) -> PageId {
        PageId { space: self.space.id(), page: self.page }
    }
}

/// The pages of a batch that were not written, by their places in it, and why, unless they were not tried.
type Unwritten = BTreeMap<usize, Option<DiskError>>;

/// The tablespaces of a batch.
type Spaces<'a> = BTreeMap<SpaceId, &'a Arc<Space>>;

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
            failing: VecDeque::new(),
            probe: 0,
            spare: Vec::new(),
        }
    }

    /// Writes pages to their places, and waits until that is done. The token of each is its place in the batch; those
    /// whose write has failed go to `failed` with their copies.
    fn write(&mut self, requests: Vec<Request>, failed: &mut BTreeMap<usize, (DiskError, IoBuffer)>) {
        self.queue.submit(requests);
        while self.queue.pending() > 0 {
            for Completion { token, result, buffer } in self.queue.complete(true) {
                match result {
                    Err(error) if !planted(Bug::FailedWriteForgotten) => {
                        failed.insert(token as usize, (error, buffer));
                    }
                    _ => self.spare.push(buffer),
                }
            }
        }
    }

    /// Notes which files fail. `copies` are the pages that were tried and had not been torn before.
    fn note_failing<'a>(&mut self, copies: impl Iterator<Item = (&'a Copy, bool)> + Clone) {
        // If one of them can be written again, the others perhaps can be, too.
        let is_written = |(copy, failed): (&Copy, bool)| !failed && !copy.space.is_dropped();
        if copies.clone().any(|tried| is_written(tried) && tried.0.space.is_failing()) {
            self.failing.drain(..).for_each(|space| space.set_failing(false));
        }
        for (Copy { space, .. }, _) in copies.filter(|(_, failed)| *failed) {
            self.note_failing_space(space);
        }
    }

    fn note_failing_space(&mut self, space: &Arc<Space>) {
        if !space.is_failing() {
            space.set_failing(true);
            self.failing.push_back(space.clone());
        }
    }

    /// A dirty page of a tablespace whose file fails, another one each time. The torn pages are in the batch already.
    fn next_probe(&mut self) -> Option<(Arc<Space>, PageNo)> {
        // Where nothing else is dirty the torn pages show whether the file takes writes: that tablespace must not be
        // among those with the oldest changes, or enough of them would keep all others out.
        for Torn { space, .. } in &self.torn {
            if !space.is_failing() && space.dirty.lock().waiting() == 0 {
                space.set_failing(true);
                self.failing.push_back(space.clone());
            }
        }
        for _ in 0..self.failing.len() {
            let space = self.failing.pop_front()?;
            self.probe += 1;
            let page = space.dirty.lock().nth_waiting(self.probe).filter(|_| !space.is_dropped());
            if page.is_some() || self.torn.iter().any(|torn| Arc::ptr_eq(&torn.space, &space)) {
                self.failing.push_back(space.clone());
            } else {
                space.set_failing(false);
            }
            if let Some(page) = page {
                return Some((space, page));
            }
        }
        None
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
            if cold.len() < PAGES
                && let Some((space, page)) = self.page_in(frame).filter(|(space, _)| !space.is_failing())
            {
                cold.push((space, page));
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
        let old = if cold.len() < PAGES { self.old_pages(up_to) } else { Vec::new() };
        let flushed = self.flush(cold.into_iter().chain(old));
        let done = freed + flushed.as_ref().map_or(0, |written| *written);
        let has_frames = self.free_frames() > self.kept_frames();
        if self.rounds.end(done > 0 || has_frames, if flushed.is_err() { FRUITLESS_FAILURE } else { 1 }) {
            self.frame_freed.notify();
        }
        let written = flushed?;
        Ok(shrinking || (short && done > 0) || written == PAGES)
    }

    /// The page in a frame, with its tablespace.
    fn page_in(&self, frame: FrameNo) -> Option<(Arc<Space>, PageNo)> {
        let descriptor = self.arena.frame(frame);
        let id = descriptor.tag();
        Some((self.directory.at(descriptor.slot(), id.space)?, id.page))
    }

    /// Pages that changed at or before `up_to`, of the tablespaces with the oldest changes whose files do not fail.
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

    /// Writes at most [`PAGES`] pages: those that are torn, one of a file that fails, then of these, as far as their
    /// files do not. Gives how many were written.
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
        self.forget_dropped(&mut flusher)?;
        let mut batch = Vec::new();
        let kept = self.copy_torn(&mut flusher, &mut batch);
        let retried = batch.len();
        let room = PAGES - flusher.torn.len();
        let probe = flusher.next_probe();
        let Flusher { torn, spare, .. } = &mut *flusher;
        // A torn page that comes free only now stays out: the copy that is kept would outlive its write.
        let is_kept_out =
            |space: &Space, page| torn.iter().any(|torn| torn.space.id() == space.id() && torn.page == page);
        let wanted = wanted.into_iter().filter(|(space, _)| !space.is_failing());
        for (space, page) in probe.into_iter().chain(wanted) {
            if batch.len() - retried >= room {
                break;
            }
            if !is_kept_out(&space, page) {
                batch.extend(self.copy_out(space, page, spare));
            }
        }
        if batch.is_empty() {
            return Ok(0);
        }
        let with_id = |(copy, buffer): (Copy, IoBuffer)| {
            let id = copy.id();
            (copy, (id, buffer))
        };
        let (copies, buffers): (Vec<_>, Vec<_>) = batch.into_iter().map(with_id).unzip();
        let (error, failed) = match self.write_out(&mut flusher, &copies, buffers, retried, &kept) {
            Ok(mut unwritten) => {
                // The file of a dropped tablespace may be gone, and is not missed.
                unwritten.retain(|n, _| !copies[*n].space.is_dropped());
                let tried = copies.iter().enumerate().skip(retried).filter_map(|(n, copy)| {
                    unwritten
                        .get(&n)
                        .map_or(Some((copy, false)), |error| error.is_some().then_some((copy, true)))
                });
                flusher.note_failing(tried);
                let first = unwritten.values().flatten().next().cloned();
                (first.map(Error::from), unwritten.into_keys().collect::<BTreeSet<_>>())
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
                return Err(self.flush_failed(error));
            }
            Some(error) => {
                tracing::warn!(%error, "some pages could not be written: they stay in memory and in the log");
                self.note_failures(1, error);
            }
            None if !flusher.torn.is_empty() || !flusher.failing.is_empty() => {}
            None => {
                self.failures.store(0, Relaxed);
                self.ground.log.set_unflushed(None);
            }
        }
        *self.flush_error.lock() = None;
        Ok(written)
    }

    /// Forgets the torn pages of dropped tablespaces.
    fn forget_dropped(&self, flusher: &mut Flusher) -> Result<()> {
        let dropped = flusher.torn.iter().filter(|torn| torn.space.is_dropped());
        if let Some(lsn) = dropped.map(|torn| torn.space.drop_lsn()).max() {
            // A drop that a crash may take back needs its pages whole.
            self.ground.log.sync_to(lsn)?;
            flusher.torn.retain(|torn| torn.space.drop_lsn() > lsn);
        }
        Ok(())
    }

    /// Copies the torn pages. Gives the places of those that are latched now: of them the copies that are kept go into
    /// the doublewrite file again.
    fn copy_torn(&self, flusher: &mut Flusher, batch: &mut Vec<(Copy, IoBuffer)>) -> Vec<usize> {
        let Flusher { torn, spare, .. } = flusher;
        let mut kept = Vec::new();
        for (n, torn) in torn.iter().enumerate() {
            if let Some(copy) = self.copy_out(torn.space.clone(), torn.page, spare) {
                batch.push(copy);
                continue;
            }
            debug_assert!(
                self.is_unwritten(torn) || torn.space.is_dropped(),
                "a copy of {} has outlived its write",
                torn.id()
            );
            kept.push(n);
        }
        kept
    }

    /// Whether a torn page has still to be written. It keeps its frame until then.
    fn is_unwritten(&self, torn: &Torn) -> bool {
        let frame = torn.space.pages.get(torn.page).map(|no| self.arena.frame(no));
        frame.is_some_and(|frame| frame.tag() == torn.id() && frame.is(DIRTY | WRITING))
    }

    /// How many torn pages recovery may leave to batches: they have to leave room there, and in the pool.
    pub fn room_for_torn(&self) -> usize {
        TORN_MANY.min(self.limit.load(Relaxed) as usize / 4)
    }

    /// The first batch takes over the half of the doublewrite file that is not `kept`, and has the number behind this
    /// one. The `torn` pages could not be written in their places: each has a copy in the half that is kept, and is
    /// dirty since `since`. That no batch comes between them, this is one call, before there is any other page.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    pub fn begin_batches(
        &self,
        kept: usize,
        number: u32,
        torn: Vec<(Arc<Space>, PageNo, IoBuffer)>,
        since: Lsn,
    ) -> Result<()> {
        debug_assert!(torn.len() <= self.room_for_torn(), "{} torn pages are too many", torn.len());
        let mut flusher = self.flusher.lock();
        flusher.doublewrite.go_on(1 - kept as u64, number);
        for (space, page, copy) in torn {
            let mut latched = self.fresh(&space, page)?;
            let content = words(&copy.bytes()[..self.page_size]);
            latched.page().copy_from(Page::new(&content));
            self.arena.frame(latched.frame).set(UNPROVEN);
            latched.mark_dirty(&space, since);
            flusher.note_failing_space(&space);
            flusher.torn.push(Torn { space, page, copy });
        }
        Ok(())
    }

    /// Waits until nobody is writing pages, after the database was closed: nobody will again.
    pub fn quiesce(&self) {
        self.tell_freed();
        drop(self.flusher.lock());
    }

    /// Notes why nothing of a batch was written.
    fn flush_failed(&self, error: Error) -> Error {
        if matches!(error, Error::Disk(DiskError::Crashed)) {
            self.ground.health.poison(&error.to_string());
        }
        *self.flush_error.lock() = Some(error.clone());
        self.note_failures(FAILURES_A_BATCH, error.clone());
        error
    }

    /// Counts failures. After many in a row, operations do not wait for the log's floor any more.
    fn note_failures(&self, failures: u64, error: Error) {
        if self.failures.fetch_add(failures, Relaxed) + failures >= FAILURES_IN_A_ROW {
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

    /// Writes a batch. The first `retried` of its pages were torn before it, as are those of which only the `kept`
    /// copies are had: they go into the doublewrite file, and not to their places.
    fn write_out(
        &self,
        flusher: &mut Flusher,
        copies: &[Copy],
        mut pages: Vec<(PageId, IoBuffer)>,
        retried: usize,
        kept: &[usize],
    ) -> Result<Unwritten> {
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
        let mut spaces: Spaces<'_> = copies.iter().map(|copy| (copy.space.id(), &copy.space)).collect();
        let mut unwritten = Unwritten::new();
        for (id, error) in self.make_files(&spaces) {
            spaces.remove(&id);
            let of_it = copies.iter().enumerate().filter(|(_, copy)| copy.space.id() == id);
            unwritten.extend(of_it.map(|(n, _)| (n, Some(error.clone()))));
        }
        let to_copy = copies.iter().zip(&pages).enumerate();
        let to_copy: Vec<_> = to_copy
            .filter(|(n, (copy, _))| logged(copy) && !unwritten.contains_key(n))
            .map(|(_, (_, (id, buffer)))| (*id, buffer))
            .collect();
        if !to_copy.is_empty() {
            let kept = kept.iter().filter(|_| !planted(Bug::TornCopyForgotten)).map(|n| &flusher.torn[*n]);
            let pages: Vec<_> = kept.map(|torn| (torn.id(), &torn.copy)).chain(to_copy).collect();
            flusher
                .doublewrite
                .write(disk, &mut *flusher.queue, &pages, self.page_size)
                .map_err(|error| self.unless_benign(error))?;
        }
        self.preallocate(&spaces, &pages);
        let requests = pages.into_iter().enumerate().filter(|(n, _)| !unwritten.contains_key(n));
        let mut requests: Vec<_> = requests
            .map(|(n, (id, buffer))| Request {
                token: n as u64,
                file: FileName::Data(id.space),
                offset: self.offset(id.page),
                action: Action::Write,
                buffer,
            })
            .collect();
        let first = (retried + (PAGES - flusher.torn.len()) / 2).min(requests.len());
        let second = requests.split_off(first);
        let are_many = flusher.torn.len() >= TORN_MANY && !planted(Bug::PlaceNotTried);
        let mut failed = BTreeMap::new();
        for mut part in [requests, second] {
            if failed.range(retried..).next().is_some() {
                unwritten.extend(part.iter().map(|request| (request.token as usize, None)));
                flusher.spare.extend(part.into_iter().map(|request| request.buffer));
                break;
            }
            if are_many {
                let is_new = |request: &mut Request| request.token as usize >= retried;
                let new: Vec<_> = part.extract_if(.., is_new).collect();
                part.extend(self.try_places(flusher, new, copies, &mut unwritten, &mut failed));
            }
            flusher.write(part, &mut failed);
        }
        if let Some((error, _)) =
            failed.values().find(|(error, _)| matches!(error, DiskError::Panicked { .. }))
        {
            return Err(self.ground.health.poison(&error.to_string()));
        }
        let torn = core::mem::take(&mut flusher.torn).into_iter().enumerate();
        flusher.torn = torn.filter(|(n, _)| kept.contains(n)).map(|(_, torn)| torn).collect();
        for (n, (error, buffer)) in failed {
            unwritten.insert(n, Some(error));
            let copy = &copies[n];
            if logged(&copy) && !self.is_whole_in_place(copy.id()) {
                flusher.torn.push(Torn { space: copy.space.clone(), page: copy.page, copy: buffer });
            } else {
                flusher.spare.push(buffer);
            }
        }
        debug_assert!(flusher.torn.len() <= PAGES, "{} torn pages are more than a batch", flusher.torn.len());
        // After a failure, too: what did reach its place may be torn there while only the doublewrite file has it
        // whole.
        self.sync_files(&spaces)?;
        Ok(unwritten)
    }

    /// Tries the places of these pages: what is found in each is written there again. Gives the requests whose places
    /// took it. The pages of the others are `unwritten`, or have `failed` where the trial has torn the place. All have
    /// to be durable in the doublewrite file: a crash may leave a place that was being written unreadable.
    fn try_places(
        &self,
        flusher: &mut Flusher,
        requests: Vec<Request>,
        copies: &[Copy],
        unwritten: &mut Unwritten,
        failed: &mut BTreeMap<usize, (DiskError, IoBuffer)>,
    ) -> Vec<Request> {
        let mut trials = Vec::new();
        for &Request { token, file, offset, .. } in &requests {
            let mut buffer = flusher.spare.pop().unwrap_or_else(|| IoBuffer::new(self.page_size));
            let place = &mut buffer.bytes_mut()[..self.page_size];
            match self.ground.disk.read(file, offset, place) {
                Ok(read) => {
                    // Behind the end of the file.
                    place[read..].fill(0);
                    trials.push(Request { token, file, offset, action: Action::Write, buffer });
                }
                Err(error) => {
                    unwritten.insert(token as usize, Some(error));
                    flusher.spare.push(buffer);
                }
            }
        }
        let mut refused = BTreeMap::new();
        flusher.write(trials, &mut refused);
        let mut tried = Vec::new();
        for request in requests {
            let n = request.token as usize;
            if let Some((error, buffer)) = refused.remove(&n) {
                flusher.spare.push(buffer);
                if !matches!(error, DiskError::Panicked { .. }) && self.is_whole_in_place(copies[n].id()) {
                    unwritten.insert(n, Some(error));
                } else {
                    failed.insert(n, (error, request.buffer));
                    continue;
                }
            }
            if unwritten.contains_key(&n) {
                flusher.spare.push(request.buffer);
            } else {
                tried.push(request);
            }
        }
        tried
    }

    /// Whether a page that could not be written is whole in its place, or was never written there: then it needs no
    /// copy.
    fn is_whole_in_place(&self, id: PageId) -> bool {
        let words = page::blank(self.page_size);
        let found = Page::new(&words);
        let read = self.ground.disk.read_page(FileName::Data(id.space), self.offset(id.page), found.words());
        read.is_ok() && (found.is_zero() || found.verify(id).is_ok())
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

    /// A failure of the doublewrite file's sync leaves its content unknown, as does a panic; other failures leave
    /// nothing behind.
    fn unless_benign(&self, error: DiskError) -> Error {
        if error.is_of_sync() || matches!(error, DiskError::Panicked { .. }) {
            self.ground.health.poison(&error.to_string())
        } else {
            error.into()
        }
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
