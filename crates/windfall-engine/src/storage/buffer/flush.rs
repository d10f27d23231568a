//! Writing dirty pages to the data files.
//!
//! **Purpose.** Pages are written in batches. A batch copies the pages under a shared latch and makes the log durable
//! up to their LSNs. It writes the copies to the doublewrite file first, and then to the data files. The log's
//! low-water mark passes them only when they are durable there. No thread waits for a page while it is being written.
//!
//! **Invariants.** Write-ahead: the log is durable up to the newest LSN of the copies before any copy is written (test:
//! `a_low_water_mark_passes_nothing_that_only_the_log_knows`). A page that is being written is not copied a second
//! time, so two writes of a page never race (checked by `buffer/invariants.rs::check_invariants`). It keeps its frame
//! until the whole batch is durable (checked by `buffer/flush.rs::end_batch`), so a page with a failed write becomes
//! dirty again, with its old dirty-since LSN (test: `many_files_that_take_no_writes_hold_up_no_other`).
//!
//! The next batch begins only when the writes of the last one are synced, because it overwrites a half of the
//! doublewrite file, which may have the only whole copies of pages (test: `first_runs_crash_at_every_operation`). It
//! has a copy of every page that a failed write has torn, until a write succeeds or the drop of the page's tablespace
//! is durable (tests: `many_files_that_take_no_writes_hold_up_no_other`,
//! `a_torn_page_is_needed_until_the_drop_of_its_tablespace_is_durable`). Pages that recovery could not write to the
//! data files are treated as torn from the start: all their copies are in one half of the doublewrite file, and the
//! first batch overwrites the other (test: `all_pages_that_are_torn_are_in_every_batch`).
//!
//! *A file that rejects writes affects only its own tablespace.* As long as such files fail, a batch takes only one
//! page of all their tablespaces, to test whether the writes still fail (test:
//! `a_file_that_takes_no_writes_holds_up_no_other`). Only pages that are torn in their data files, or cannot be read
//! there, must be in every batch; they leave room for other pages, however many files fail (test:
//! `many_files_that_take_no_writes_hold_up_no_other`):
//!
//! - A batch writes its new pages in two halves, and skips the second half when a page of the first half fails: each
//!   half may tear at most half of the room that is left, rounded up (test:
//!   `many_files_that_take_no_writes_hold_up_no_other`). If that is one page, the page of a failing file comes first in
//!   every other batch only (test: `a_file_that_can_be_neither_written_nor_read_fills_no_batch`).
//! - While torn pages fill half of the room ([`trial_writes_from`]), a trial write comes before the write of each new
//!   page: the page's old bytes are read from the data file and written back (test:
//!   `many_files_that_take_no_writes_hold_up_no_other`). If the trial stops halfway, the page in the file stays whole,
//!   and if it fails, the page stays dirty and takes no room (test: `many_files_that_take_no_writes_hold_up_no_other`).
//!
//! The room is that of the doublewrite file, up to [`BATCH_PAGES`] pages, and less in a small database with a full disk
//! (tests: `without_space_the_batches_stay_small`, `with_little_space_the_file_grows_as_far_as_it_can`). The files that
//! fail when a batch begins tear at most three quarters of it together, rounded up (tests:
//! `many_files_that_take_no_writes_hold_up_no_other`, `a_file_that_can_be_neither_written_nor_read_fills_no_batch`). So
//! more pages are torn only if a write fails right after its trial succeeded, or if the page cannot be read any more
//! after its trial failed, and six such batches take all of a room for [`BATCH_PAGES`], if no torn page is written or
//! dropped between them. With no room left no other logged page is written: every flush returns the error, the pages
//! stay dirty, and the log's low-water mark stays below their changes (test:
//! `with_no_room_left_no_other_page_is_written`).

mod batch;
pub(super) mod files;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    BufferPool, Durability, Space,
    arena::FrameNo,
    doublewrite::{BATCH_PAGES, Doublewrite, words},
    frame::{DIRTY, UNVERIFIED, WRITING},
    replace::FRUITLESS_ROUNDS_MAX,
};
use crate::{
    disk::{Completion, Disk, IoBuffer, Queue, Request},
    error::{DiskError, Error, Result},
    ids::{Lsn, PageId, PageNo, SpaceId},
    page::{self, Page},
    sync::{Arc, atomic::Ordering::Relaxed, work},
};

/// The maximum number of tablespaces that a round by age examines.
const SPACES_PER_ROUND: usize = 32;
/// The frames that a round frees, apart from the surplus of one call of the reclaimer.
const FREED_PER_ROUND: usize = 512;
/// The maximum number of frames that the cleaner's clock hand passes in one round.
const CLEANER_REACH_FRAMES: usize = 32_768;
/// A round that fails counts as this number of fruitless rounds: a waiter gives up after a hundred of them.
const FRUITLESS_FAILURE: u64 = FRUITLESS_ROUNDS_MAX / 100;
/// A batch that writes nothing counts as this number of failures, because the next one may come that much later. A
/// batch that is written in part counts as one failure.
const FAILURES_PER_BATCH: u64 = 50;
/// The number of failures in a row, in two seconds or less, from which the problem is not a temporary one.
const FAILURES_IN_A_ROW: u64 = 20 * FAILURES_PER_BATCH;
/// After this number of rounds without a write, the rest is left to the next checkpoint.
const IDLE_ROUNDS_MAX: u64 = 1000;
/// The pause after such a round, except for the first ones.
const IDLE_PAUSE: Duration = Duration::from_millis(1);

/// Returns the number of torn pages from which no page may be written without a trial write, so that hardly any are
/// added. `room` is that of the doublewrite file.
fn trial_writes_from(room: usize) -> usize {
    room / 2
}

/// The state that the flusher keeps between batches.
pub(super) struct Flusher {
    queue: Box<dyn Queue>,
    doublewrite: Doublewrite,
    /// The room of the doublewrite file for the batch, in pages; zero before the first one.
    room: usize,
    /// Copies with a failed write and pages that are not yet marked dirty again.
    failed: Vec<Copy>,
    /// Logged pages that may be torn in their data files: each from a failed write until one succeeds or the drop of
    /// its tablespace is durable. All the while such a page is dirty or being written. There are no more than the
    /// doublewrite file has room for in a batch.
    torn: Vec<Torn>,
    /// Tablespaces with a file that could not be made or written, and those that have no dirty pages except torn ones.
    /// The one tried last is at the end. Each has its flag `Space::is_failing` set.
    failing: VecDeque<Arc<Space>>,
    /// Selects the page of such a tablespace that is tried next.
    probe: usize,
    /// Whether the last such page came after the pages of working files, because the first half had room for one page
    /// only.
    probe_was_last: bool,
    /// Buffers of the last batch, for reuse.
    spare: Vec<IoBuffer>,
}

/// A page that is torn in its data file.
#[derive(Debug)]
struct Torn {
    space: Arc<Space>,
    page: PageNo,
    /// The bytes that its failed write had.
    copy: IoBuffer,
}

impl Torn {
    fn id(&self) -> PageId {
        PageId { space: self.space.id(), page: self.page }
    }
}

/// The pages of a batch that were not written, by their indexes in the batch, with the error, or `None` if no write was
/// tried.
type Unwritten = BTreeMap<usize, Option<DiskError>>;

/// The pages of a batch.
struct Batch {
    copies: Vec<Copy>,
    /// Their bytes.
    pages: Vec<(PageId, IoBuffer)>,
    /// The number of pages at the front that were torn before.
    retried: usize,
    /// The indexes of the torn pages of which only the copies can be written, because other threads have them latched.
    kept: Vec<usize>,
}

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
            room: 0,
            failed: Vec::new(),
            torn: Vec::new(),
            failing: VecDeque::new(),
            probe: 0,
            probe_was_last: false,
            spare: Vec::new(),
        }
    }

    /// Writes pages to their data files, and waits until that is done. The token of each is its index in the batch.
    /// Failed writes go to `failed` with their copies.
    fn write(&mut self, requests: Vec<Request>, failed: &mut BTreeMap<usize, (DiskError, IoBuffer)>) {
        debug_assert!(
            self.queue.pending() == 0,
            "pages are written while other writes are still in progress"
        );
        let mut left = requests.len();
        self.queue.submit(requests);
        while self.queue.pending() > 0 {
            for Completion { token, result, buffer } in self.queue.complete(true) {
                left -= 1;
                match result {
                    Err(error) => drop(failed.insert(token as usize, (error, buffer))),
                    Ok(()) => self.spare.push(buffer),
                }
            }
        }
        assert!(left == 0, "the outcome of {left} writes is unknown");
    }

    /// Notes which files took the writes of a batch. Returns its first error, and the indexes of the pages that are
    /// still to be written.
    fn note_unwritten(
        &mut self,
        copies: &[Copy],
        retried: usize,
        mut unwritten: Unwritten,
    ) -> (Option<Error>, BTreeSet<usize>) {
        // The file of a dropped tablespace may be deleted, and is not needed.
        unwritten.retain(|n, _| !copies[*n].space.is_dropped());
        let tried = copies.iter().enumerate().skip(retried).filter_map(|(n, copy)| {
            unwritten.get(&n).map_or(Some((copy, false)), |error| error.is_some().then_some((copy, true)))
        });
        self.note_failing(tried);
        let first = unwritten.values().flatten().next().cloned();
        (first.map(Error::from), unwritten.into_keys().collect())
    }

    /// Records which files fail. `copies` are the pages that were tried and had not been torn before.
    fn note_failing<'a>(&mut self, copies: impl Iterator<Item = (&'a Copy, bool)> + Clone) {
        // If one of them can be written again, perhaps the others can, too.
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

    /// Returns a dirty page of a tablespace with a failing file, another one each time. The torn pages are in the batch
    /// already.
    fn next_probe(&mut self) -> Option<(Arc<Space>, PageNo)> {
        // If a tablespace has no other dirty pages, its torn pages show whether the file accepts writes. It must not be
        // among the tablespaces with the oldest changes: enough of these would crowd out all others.
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

/// A copy of a page that is being written.
#[derive(Debug)]
struct Copy {
    space: Arc<Space>,
    page: PageNo,
    frame: FrameNo,
    since: Lsn,
    lsn: Lsn,
    /// The defect of the copy, if any: then the page was damaged in memory.
    wrong: Option<&'static str>,
}

impl Copy {
    fn id(&self) -> PageId {
        PageId { space: self.space.id(), page: self.page }
    }
}

impl BufferPool {
    /// Runs one background round: frees frames until enough are ready, and writes dirty cold pages, or else pages that
    /// changed at or before `up_to`. Returns whether there is more to do at once.
    ///
    /// # Errors
    /// As [`BufferPool::flush`].
    pub(crate) fn clean_step(&self, up_to: Lsn) -> Result<bool> {
        let mut cold = Vec::new();
        let mut note = |frame| {
            if cold.len() < BATCH_PAGES
                && let Some((space, page)) = self.page_in(frame).filter(|(space, _)| !space.is_failing())
            {
                cold.push((space, page));
            }
        };
        let shrinking = self.shrink(&mut note);
        let (mut freed, mut reach) = (0, CLEANER_REACH_FRAMES);
        while self.free_frames() < self.wanted_free() && freed < FREED_PER_ROUND {
            freed += match self.reclaim_some() {
                0 => match self.clock(&mut reach, &mut note) {
                    Some(frame) => {
                        self.free_empty(frame);
                        1
                    }
                    None => break,
                },
                frames => frames,
            };
        }
        let short = self.free_frames() < self.wanted_free();
        let old = if cold.len() < BATCH_PAGES { self.old_pages(up_to) } else { Vec::new() };
        let flushed = self.flush(cold.into_iter().chain(old));
        let done = freed + flushed.as_ref().map_or(0, |written| *written);
        let has_frames = self.free_frames() > self.reserved_frames();
        if self.rounds.end(done > 0 || has_frames, if flushed.is_err() { FRUITLESS_FAILURE } else { 1 }) {
            self.frame_freed.notify();
        }
        let written = flushed?;
        // A full batch: there may be more.
        let room = self.flusher.lock().doublewrite.room(&*self.context.disk, self.page_size)?;
        Ok(shrinking || (short && done > 0) || (written > 0 && written >= room))
    }

    /// Returns the page in a frame, with its tablespace.
    fn page_in(&self, frame: FrameNo) -> Option<(Arc<Space>, PageNo)> {
        let descriptor = self.arena.frame(frame);
        let id = descriptor.tag();
        Some((self.directory.at(descriptor.slot(), id.space)?, id.page))
    }

    /// Returns pages that changed at or before `up_to`, of the tablespaces with the oldest changes and no failing file.
    fn old_pages(&self, up_to: Lsn) -> Vec<(Arc<Space>, PageNo)> {
        let (registered, durable) = (self.registered(), self.context.log.durable());
        let mut pages: Vec<(Lsn, Arc<Space>, PageNo)> = Vec::new();
        for space in self.low_water_mark.oldest_spaces(up_to, SPACES_PER_ROUND, durable, registered) {
            let oldest = space.dirty.lock().oldest_waiting(up_to, BATCH_PAGES);
            pages.extend(oldest.into_iter().map(|(since, page)| (since, space.clone(), page)));
        }
        pages.sort_by_key(|(since, space, page)| (*since, space.id(), *page));
        pages.into_iter().map(|(_, space, page)| (space, page)).collect()
    }

    /// Writes at most [`BATCH_PAGES`] pages: the torn ones, one of a failing file, then pages of `wanted` without a
    /// failing file. Returns the number of pages written.
    ///
    /// # Errors
    /// A full disk, or another failure to write, when no page was written at all: the pages stay dirty. A failing sync
    /// poisons the database.
    pub fn flush(&self, wanted: impl IntoIterator<Item = (Arc<Space>, PageNo)>) -> Result<usize> {
        let mut flusher = self.flusher.lock();
        self.context.health.check()?;
        debug_assert!(
            flusher.failing.iter().all(|space| space.is_failing()),
            "a tablespace is among the failing ones without its flag"
        );
        self.mark_failed_dirty(&mut flusher);
        self.forget_dropped(&mut flusher)?;
        let Batch { copies, pages, retried, kept } = match self.fill_batch(&mut flusher, wanted) {
            Ok(batch) => batch,
            Err(error) => {
                drop(flusher);
                return Err(self.flush_failed(error));
            }
        };
        if copies.is_empty() {
            return Ok(0);
        }
        let (error, failed) = match self.write_out(&mut flusher, &copies, pages, retried, &kept) {
            Ok(unwritten) => flusher.note_unwritten(&copies, retried, unwritten),
            Err(error) => (Some(error), (0..copies.len()).collect()),
        };
        assert!(failed.last().is_none_or(|n| *n < copies.len()), "a page outside the batch has failed");
        let written = copies.len() - failed.len();
        self.end_batch(&mut flusher, copies, &failed);
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
                tracing::warn!(
                    target: "windfall::storage",
                    %error, "some pages could not be written: they stay in memory and in the log",
                );
                self.note_failures(1, error);
            }
            None if !flusher.torn.is_empty() || !flusher.failing.is_empty() => {}
            None => {
                self.failures.store(0, Relaxed);
                self.context.log.set_unflushed(None);
            }
        }
        *self.flush_error.lock() = None;
        Ok(written)
    }

    /// Marks the pages of failed writes dirty again, except for those that are latched now.
    fn mark_failed_dirty(&self, flusher: &mut Flusher) {
        let mut failed = core::mem::take(&mut flusher.failed);
        failed.retain(|copy| !self.dirty_again(copy));
        flusher.failed = failed;
    }

    /// Copies the pages of a batch: the torn ones, one of a failing file, then those of `wanted` whose file works.
    /// First it makes room for them in the doublewrite file.
    fn fill_batch(
        &self,
        flusher: &mut Flusher,
        wanted: impl IntoIterator<Item = (Arc<Space>, PageNo)>,
    ) -> Result<Batch> {
        let mut batch = Vec::new();
        let kept = self.copy_torn(flusher, &mut batch);
        let retried = batch.len();
        let probe = flusher.next_probe();
        let has_probe = probe.is_some();
        let wanted = wanted.into_iter().filter(|(space, _)| !space.is_failing());
        let mut wanted: Vec<_> = probe.into_iter().chain(wanted).collect();
        let is_logged = |space: &Space| space.durability() == Durability::Logged;
        let logged = wanted.iter().filter(|(space, _)| is_logged(space)).count();
        let pages = flusher.torn.len() + logged;
        match flusher.doublewrite.make_room(&*self.context.disk, self.page_size, pages) {
            Ok(room) => flusher.room = room,
            Err(error) => {
                // The torn pages are not written after all.
                let copies: Vec<_> = batch.into_iter().map(|(copy, _)| copy).collect();
                let all = (0..copies.len()).collect();
                self.end_batch(flusher, copies, &all);
                return Err(self.poison_if_unknown(error));
            }
        }
        let left = flusher.room.saturating_sub(flusher.torn.len());
        if has_probe && left <= 2 {
            // A failing file must not take the first half of every batch.
            flusher.probe_was_last = !flusher.probe_was_last;
            wanted.rotate_left(usize::from(flusher.probe_was_last));
        }
        let Flusher { torn, spare, .. } = flusher;
        // A torn page that is unlatched only now stays out of the batch: its copy in `torn` would outlive its write.
        let is_kept_out =
            |space: &Space, page| torn.iter().any(|torn| torn.space.id() == space.id() && torn.page == page);
        let mut logged = 0;
        for (space, page) in wanted {
            if batch.len() - retried >= BATCH_PAGES - torn.len() {
                break;
            }
            // Pages of temporary tablespaces take no room in the doublewrite file.
            if is_kept_out(&space, page) || is_logged(&space) && logged >= left {
                continue;
            }
            let is_logged = is_logged(&space);
            if let Some(copy) = self.copy_out(space, page, spare) {
                logged += usize::from(is_logged);
                batch.push(copy);
            }
        }
        assert!(
            batch.len() + kept.len() <= BATCH_PAGES,
            "{} pages and {} kept copies are more than a batch",
            batch.len(),
            kept.len()
        );
        let with_id = |(copy, buffer): (Copy, IoBuffer)| {
            let id = copy.id();
            (copy, (id, buffer))
        };
        let (copies, pages) = batch.into_iter().map(with_id).unzip();
        Ok(Batch { copies, pages, retried, kept })
    }

    /// Ends a batch: its pages are written, except for those in `failed`, which become dirty again.
    fn end_batch(&self, flusher: &mut Flusher, copies: Vec<Copy>, failed: &BTreeSet<usize>) {
        for (n, copy) in copies.into_iter().enumerate() {
            if !failed.contains(&n) {
                // A frame that was reclaimed from a dropped tablespace meanwhile is not being written: there is one
                // batch at a time.
                let before = self.arena.frame(copy.frame).clear(WRITING);
                let was_written = copy.space.dirty.lock().written(copy.page, copy.since);
                debug_assert!(
                    before & WRITING != 0 && was_written
                        || cfg!(feature = "model")
                        || copy.space.is_dropped(),
                    "{} was written, and neither its frame nor its dirty set says so",
                    copy.id()
                );
            } else if !self.dirty_again(&copy) {
                flusher.failed.push(copy);
            }
        }
    }

    /// Forgets the torn pages of dropped tablespaces.
    fn forget_dropped(&self, flusher: &mut Flusher) -> Result<()> {
        // If a crash undoes a drop, its pages must be whole.
        if let Some(lsn) = flusher.torn.iter().filter_map(|torn| torn.space.drop_lsn()).max() {
            self.context.log.sync_to(lsn)?;
        }
        let durable = self.context.log.durable();
        flusher.torn.retain(|torn| !torn.space.is_durably_dropped(durable));
        Ok(())
    }

    /// Copies the torn pages. Returns the indexes of those that are latched now: their copies in `torn` go into the
    /// doublewrite file again.
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

    /// Returns whether a torn page must still be written. It keeps its frame until then.
    fn is_unwritten(&self, torn: &Torn) -> bool {
        let frame = torn.space.pages.get(torn.page).map(|no| self.arena.frame(no));
        frame.is_some_and(|frame| frame.tag() == torn.id() && frame.is(DIRTY | WRITING))
    }

    /// Returns how many of this number of torn pages recovery may leave to batches: they must leave room there, and in
    /// the pool. If possible, makes the doublewrite file large enough; its copies must be durable.
    ///
    /// # Errors
    /// I/O.
    pub(crate) fn room_for_torn(&self, torn: usize) -> Result<usize> {
        let mut flusher = self.flusher.lock();
        let room = flusher.doublewrite.make_room(&*self.context.disk, self.page_size, 2 * torn)?;
        Ok(torn.min(trial_writes_from(room)).min(self.limit.load(Relaxed) as usize / 4))
    }

    /// Prepares the first batch: it overwrites the half of the doublewrite file that is not `kept`, and has the number
    /// after `number`. The `torn` pages could not be written to their data files: there are no more than
    /// [`BufferPool::room_for_torn`] allows, each has a copy in the half that is kept, and is dirty since `since`. This
    /// must be one call, made before the pool has any other page, so that no batch comes in between.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    pub(crate) fn begin_batches(
        &self,
        kept: usize,
        number: u32,
        torn: Vec<(Arc<Space>, PageNo, IoBuffer)>,
        since: Lsn,
    ) -> Result<()> {
        assert!(kept < 2, "the doublewrite file has two halves, and no half {kept}");
        let mut flusher = self.flusher.lock();
        assert!(flusher.torn.is_empty() && flusher.failed.is_empty(), "a batch came before the first one");
        let room = flusher.doublewrite.room(&*self.context.disk, self.page_size)?;
        debug_assert!(
            torn.len() <= trial_writes_from(room),
            "{} torn pages, and room for {room}",
            torn.len()
        );
        assert!(self.counters.writes.load(Relaxed) == 0, "a page was written before recovery chose the half");
        flusher.doublewrite.set_position(1 - kept as u64, number);
        for (space, page, copy) in torn {
            let mut latched = self.latch_for_format(&space, page)?;
            let content = words(&copy.bytes()[..self.page_size]);
            debug_assert!(
                self.verify(PageId { space: space.id(), page }, Page::new(&content)).is_ok(),
                "the copy of {page:?} of tablespace {} is not whole",
                space.id()
            );
            latched.page().copy_from(Page::new(&content));
            self.arena.frame(latched.frame).set(UNVERIFIED);
            latched.mark_dirty(&space, since);
            flusher.note_failing_space(&space);
            flusher.torn.push(Torn { space, page, copy });
        }
        Ok(())
    }

    /// Waits until no thread is writing pages. Must be called after the database was closed: no thread writes pages
    /// afterwards.
    pub fn quiesce(&self) {
        self.notify_freed();
        drop(self.flusher.lock());
    }

    /// Records why no page of a batch was written.
    fn flush_failed(&self, error: Error) -> Error {
        // A disk that was released takes no writes any more.
        if matches!(error, Error::Closed) {
            self.context.health.poison(&error.to_string());
        }
        *self.flush_error.lock() = Some(error.clone());
        self.note_failures(FAILURES_PER_BATCH, error.clone());
        error
    }

    /// Counts failures. After many in a row, operations no longer wait for the log's low-water mark.
    fn note_failures(&self, failures: u64, error: Error) {
        if self.failures.fetch_add(failures, Relaxed) + failures >= FAILURES_IN_A_ROW {
            self.context.log.set_unflushed(Some(error));
        }
    }

    /// Copies a dirty page, if its latch is free and no copy of it is being written.
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
        let wanted = frame.tag() == id && frame.is(DIRTY) && !frame.is(WRITING);
        let copied = wanted.then(|| {
            let since = frame.oldest();
            let from = self.arena.page(no);
            let mut buffer = spare.pop().unwrap_or_else(|| IoBuffer::new(self.page_size));
            from.read(0, buffer.bytes_mut());
            let before = frame.set(WRITING);
            debug_assert!(before & (DIRTY | WRITING) == DIRTY, "{id} is copied and was not just dirty");
            frame.clear(DIRTY);
            let counted = self.counters.dirty.fetch_sub(1, Relaxed);
            debug_assert!(counted > 0, "{id} was dirty and was not counted");
            space.dirty.lock().start_writing(page, since);
            let wrong = if from.id() == id {
                page::check_header(from).err()
            } else {
                Some("it says to be another one")
            };
            (Copy { space, page, frame: no, since, lsn: from.lsn(), wrong }, buffer)
        });
        frame.latch.unshare();
        copied
    }

    /// Marks a page dirty again after its write failed. Returns whether that is done; if not, another thread has
    /// latched the page.
    fn dirty_again(&self, copy: &Copy) -> bool {
        let frame = self.arena.frame(copy.frame);
        if !frame.latch.try_share() {
            return false;
        }
        let mut dirty = copy.space.dirty.lock();
        // The frame of a dropped page may hold another page by now.
        if frame.tag() == copy.id() {
            let before = frame.set(DIRTY);
            debug_assert!(before & WRITING != 0, "{} was not being written", copy.id());
            let changed_since = (before & DIRTY != 0).then(|| frame.oldest());
            if changed_since.is_none() {
                self.counters.dirty.fetch_add(1, Relaxed);
            }
            dirty.not_written(copy.page, copy.since, changed_since);
            frame.set_oldest(copy.since);
            frame.clear(WRITING);
        } else {
            #[cfg(not(feature = "model"))]
            debug_assert!(copy.space.is_dropped(), "{} lost its frame while it was written", copy.id());
            dirty.written(copy.page, copy.since);
        }
        drop(dirty);
        frame.latch.unshare();
        true
    }

    /// Runs `run` while no page is being written.
    pub fn between_writes<T>(&self, run: impl FnOnce() -> T) -> T {
        let _flusher = self.flusher.lock();
        run()
    }

    /// Writes all pages that are dirty now. Pages that change meanwhile may stay dirty.
    ///
    /// # Errors
    /// As [`BufferPool::flush`].
    pub fn flush_all(&self) -> Result<()> {
        let up_to = self.context.log.end();
        let mut idle = 0;
        while self.oldest_dirty().is_some_and(|oldest| oldest < up_to) && idle < IDLE_ROUNDS_MAX {
            idle = if self.flush(self.old_pages(up_to))? == 0 { idle + 1 } else { 0 };
            if idle > IDLE_ROUNDS_MAX / 10 {
                // Another thread has a page latched, and may itself be waiting for something.
                self.context.env.sleep(IDLE_PAUSE);
            }
        }
        Ok(())
    }
}
