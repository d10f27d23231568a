//! Throttled deletion of the files of dropped tablespaces.
//!
//! **Purpose.** Freeing the blocks of a large file competes with every fsync of the same file system, whichever thread
//! does it and for as long as it lasts. So a file is truncated from its end in small pieces, with pauses in between.
//! Small files are removed several at a time, as many as make one piece. The size of the pieces follows the sync times
//! of the log writer: if its syncs, including a running one, become slower than usual, the pieces shrink. If no thread
//! has written for a while, or free space is short, there are no pauses.
//!
//! **Invariants.** No file is deleted before the drop of its tablespace is durable (test:
//! `a_file_is_deleted_after_its_drop_and_not_created_again`). A step truncates one piece or removes one name (test:
//! `a_file_is_deleted_in_pieces_and_its_bytes_are_counted`). A file that a crash leaves partly deleted is named by no
//! record, and is deleted after recovery (test: `first_runs_crash_at_every_operation`).

use core::time::Duration;
use std::collections::VecDeque;

#[cfg(not(feature = "model"))]
use crate::buffer::Durability;
use crate::{
    buffer::{BufferPool, Space},
    disk::FileName,
    env::Next,
    error::DiskError,
    ids::{Lsn, SpaceId},
    sync::{
        Arc, Event, Mutex, Rank,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// The smallest and the largest piece.
const PIECE_BYTES: core::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;
/// The pause between pieces under load: even with the smallest piece at least 32 MB per second are freed.
const PIECE_PAUSE: Duration = Duration::from_millis(25);
/// The pause with nothing to do.
const IDLE_PAUSE: Duration = Duration::from_millis(500);
/// A sync that takes more than this percentage of the usual longest sync counts as slowed down by the deletion.
const SLOW_SYNC_PERCENT: u32 = 150;
/// The log counts as quiet if no thread has written for this long.
const QUIET_AFTER: Duration = Duration::from_millis(250);
/// The minimum that the removal of a file counts, in bytes.
const MIN_FILE_BYTES: u64 = 64 << 10;
/// With less free space than this, in percent, deletion is not throttled.
const SHORT_PERCENT: u64 = 5;
/// The number of new files of which a step reads the length.
const LENGTHS_PER_STEP: usize = 16;

#[derive(Debug)]
struct PendingFile {
    space: SpaceId,
    /// The LSN of its drop, if that was logged: recovery may have found a file without a record.
    dropped: Option<Lsn>,
    /// The bytes that are left, once the length was read.
    left: Option<u64>,
}

#[derive(Debug)]
struct Pace {
    piece: u64,
    /// The usual longest log sync between two samples when nothing is being deleted; zero as long as there was none.
    usual: Duration,
    /// The log's end at the last sample, if there was one.
    log_end: Option<Lsn>,
    /// Since when no thread has written, as far as the samples show.
    quiet_since: Option<Duration>,
    /// The bytes of small files removed since the last pause.
    deleted: u64,
}

/// A sample of the load that competes with a deletion.
#[derive(Clone, Copy, Debug, Default)]
struct LoadSample {
    /// The longest log sync since the last sample, zero if there was none. A committer may have waited for it.
    longest_sync: Duration,
    /// The log's end.
    log_end: Lsn,
    now: Duration,
    short_of_space: bool,
}

/// The deleter of files.
#[derive(Debug)]
pub struct Deleter {
    pool: Arc<BufferPool>,
    /// Files with a length that was not read yet.
    arrived: Mutex<VecDeque<PendingFile>>,
    queue: Mutex<VecDeque<PendingFile>>,
    /// The number of files that wait or are being truncated.
    pending: AtomicU64,
    /// The remaining bytes of files with a known length.
    pending_bytes: AtomicU64,
    pace: Mutex<Pace>,
    /// Tablespaces with a file that is deleted, for the code that keeps the records of files.
    deleted: Mutex<Vec<SpaceId>>,
    deleted_files: AtomicU64,
    deleted_bytes: AtomicU64,
    /// Wakes the worker.
    pub wake: Arc<Event>,
}

/// The files that wait to be deleted, and those that were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deletions {
    /// Files that wait, some of them perhaps without blocks.
    pub pending_files: u64,
    /// The remaining bytes of these, as far as their lengths are known.
    pub pending_bytes: u64,
    /// Files deleted since the database was opened.
    pub files: u64,
    /// Bytes freed since then, including pieces of files that are only truncated so far.
    pub bytes: u64,
}

impl Deleter {
    /// Returns a deleter that has nothing to do.
    pub fn new(pool: Arc<BufferPool>) -> Self {
        Self {
            pool,
            arrived: Mutex::new(Rank::Leaf, VecDeque::new()),
            queue: Mutex::new(Rank::Leaf, VecDeque::new()),
            pending: AtomicU64::new(0),
            pending_bytes: AtomicU64::new(0),
            pace: Mutex::new(Rank::Leaf, Pace::new()),
            deleted: Mutex::new(Rank::Leaf, Vec::new()),
            deleted_files: AtomicU64::new(0),
            deleted_bytes: AtomicU64::new(0),
            wake: Arc::new(Event::new()),
        }
    }

    /// Takes over the file of a dropped tablespace.
    pub fn push(&self, space: &Space) {
        assert!(space.is_dropped(), "the file of tablespace {}, which is live, is to be deleted", space.id());
        #[cfg(not(feature = "model"))]
        debug_assert!(
            space.durability() == Durability::Temporary
                || space.drop_lsn().is_some()
                || self.pool.context().health.is_poisoned(),
            "the file of tablespace {} is to be deleted, and its drop is not in the log",
            space.id()
        );
        self.take_over(PendingFile { space: space.id(), dropped: space.drop_lsn(), left: None });
    }

    /// Takes over a file that no record names.
    pub(crate) fn push_file(&self, space: SpaceId) {
        assert!(
            self.pool.space(space).is_none_or(|space| space.is_dropped()),
            "the file of tablespace {space}, which is in use, is to be deleted"
        );
        self.take_over(PendingFile { space, dropped: None, left: None });
    }

    fn take_over(&self, pending_file: PendingFile) {
        self.pending.fetch_add(1, SeqCst);
        self.arrived.lock().push_back(pending_file);
        self.wake.notify();
    }

    /// Returns the tablespaces with a file that was deleted since the last call.
    pub(crate) fn take_deleted(&self) -> Vec<SpaceId> {
        core::mem::take(&mut *self.deleted.lock())
    }

    /// Returns the counts of pending and finished deletions.
    pub fn deletions(&self) -> Deletions {
        Deletions {
            pending_files: self.pending.load(SeqCst),
            pending_bytes: self.pending_bytes.load(Relaxed),
            files: self.deleted_files.load(Relaxed),
            bytes: self.deleted_bytes.load(Relaxed),
        }
    }

    /// Runs one step.
    pub fn step(&self) -> Next {
        if self.pool.context().health.is_poisoned() {
            return Next::Idle(IDLE_PAUSE);
        }
        self.read_lengths();
        let first = self.queue.lock().pop_front();
        let Some(mut pending_file) = first else {
            self.sample_idle();
            return Next::Idle(IDLE_PAUSE);
        };
        let log = &self.pool.context().log;
        if let Some(dropped) = pending_file.dropped.filter(|dropped| *dropped > log.durable()) {
            // If the log is under pressure, it needs this drop to be durable: it is synced now.
            let synced = log.pressure() < 50 || log.sync_to(dropped).is_ok();
            self.queue.lock().push_back(pending_file);
            return Next::Idle(if synced { PIECE_PAUSE } else { IDLE_PAUSE });
        }
        match self.shrink(&mut pending_file) {
            Ok(true) => {
                self.deleted_files.fetch_add(1, Relaxed);
                tracing::debug!(
                    target: "windfall::storage",
                    space = pending_file.space.0, "a dropped tablespace's file is deleted",
                );
                self.deleted.lock().push(pending_file.space);
                let pending = self.pending.fetch_sub(1, SeqCst);
                assert!(pending > 0, "a file is deleted that was not pending");
                if self.pace.lock().count_removed(pending_file.left.unwrap_or(0)) {
                    self.pause()
                } else {
                    Next::Again
                }
            }
            Ok(false) => {
                self.queue.lock().push_front(pending_file);
                self.pause()
            }
            Err(error) => {
                tracing::warn!(
                    target: "windfall::storage",
                    %error, "a dropped tablespace's file could not be deleted yet",
                );
                self.queue.lock().push_back(pending_file);
                Next::Idle(IDLE_PAUSE)
            }
        }
    }

    /// Reads the lengths of some new files.
    fn read_lengths(&self) {
        for _ in 0..LENGTHS_PER_STEP {
            let first = self.arrived.lock().pop_front();
            let Some(mut pending_file) = first else { break };
            debug_assert!(pending_file.left.is_none(), "the bytes of a file are counted twice");
            // If the length cannot be read now, it is read when the file is next in the queue.
            pending_file.left =
                self.pool.context().disk.len(FileName::Data(pending_file.space)).ok().flatten();
            self.pending_bytes.fetch_add(pending_file.left.unwrap_or(0), Relaxed);
            self.queue.lock().push_back(pending_file);
        }
    }

    /// Truncates the file by a piece, or removes it when little is left. Returns whether it is deleted.
    fn shrink(&self, pending_file: &mut PendingFile) -> Result<bool, DiskError> {
        #[cfg(not(feature = "model"))]
        assert!(
            pending_file.dropped <= Some(self.pool.context().log.durable()),
            "the file of tablespace {} is deleted before its drop is durable",
            pending_file.space
        );
        let disk = &self.pool.context().disk;
        let file = FileName::Data(pending_file.space);
        let left = match pending_file.left {
            Some(left) => left,
            None => match disk.len(file)? {
                Some(length) => {
                    self.pending_bytes.fetch_add(length, Relaxed);
                    pending_file.left = Some(length);
                    length
                }
                None => return Ok(true),
            },
        };
        let piece = self.pace.lock().piece;
        assert!(PIECE_BYTES.contains(&piece), "a piece of {piece} bytes");
        if left > piece {
            if is_missing(disk.truncate(file, left - piece))? {
                self.count_deleted(left);
                return Ok(true);
            }
            self.deleted_bytes.fetch_add(piece, Relaxed);
            self.count_deleted(piece);
            pending_file.left = Some(left - piece);
            return Ok(false);
        }
        if !is_missing(disk.remove(file))? {
            self.deleted_bytes.fetch_add(left, Relaxed);
        }
        self.count_deleted(left);
        Ok(true)
    }

    /// Counts bytes that are not pending any more.
    fn count_deleted(&self, bytes: u64) {
        let pending = self.pending_bytes.fetch_sub(bytes, Relaxed);
        assert!(pending >= bytes, "{bytes} bytes are deleted, and {pending} were pending");
    }

    /// Chooses the next piece and the pause before it.
    fn pause(&self) -> Next {
        let load = self.sample_load();
        self.pace.lock().after(load)
    }

    /// With nothing to delete: measures the usual time of the log's syncs.
    fn sample_idle(&self) {
        let load = self.sample_load();
        self.pace.lock().sample_idle(load);
    }

    fn sample_load(&self) -> LoadSample {
        let context = self.pool.context();
        LoadSample {
            longest_sync: context.log.take_longest_sync(),
            log_end: context.log.end(),
            now: context.env.now(),
            short_of_space: context.disk.free_percent().is_some_and(|percent| percent < SHORT_PERCENT),
        }
    }
}

impl Pace {
    fn new() -> Self {
        Self {
            piece: *PIECE_BYTES.start(),
            usual: Duration::ZERO,
            log_end: None,
            quiet_since: None,
            deleted: 0,
        }
    }

    /// Counts a file of `bytes` bytes that was removed. Returns whether the files since the last pause make a piece.
    fn count_removed(&mut self, bytes: u64) -> bool {
        self.deleted += bytes.max(MIN_FILE_BYTES);
        self.deleted >= self.piece
    }

    /// Chooses the next piece and the pause, after a piece.
    fn after(&mut self, load: LoadSample) -> Next {
        self.deleted = 0;
        let sync = load.longest_sync;
        let writes = self.log_end.replace(load.log_end) != Some(load.log_end);
        let is_quiet = sync.is_zero() && !writes;
        self.quiet_since = is_quiet.then(|| self.quiet_since.unwrap_or(load.now));
        let quiet_for = self.quiet_since.map_or(Duration::ZERO, |since| load.now.saturating_sub(since));
        if load.short_of_space || quiet_for >= QUIET_AFTER {
            self.piece = (self.piece * 2).min(*PIECE_BYTES.end());
            return Next::Again;
        }
        // As long as the usual time is unknown it is zero, and the pieces become smaller.
        let piece = if sync.is_zero() {
            self.piece
        } else if sync <= self.usual * SLOW_SYNC_PERCENT / 100 {
            self.piece + self.piece / 4
        } else {
            self.piece / 2
        };
        // Under load the pieces stay small: a sync waits for the whole of one.
        self.piece = piece.clamp(*PIECE_BYTES.start(), *PIECE_BYTES.start() * 4);
        Next::Idle(PIECE_PAUSE)
    }

    /// Measures the usual sync time, with nothing to delete.
    fn sample_idle(&mut self, load: LoadSample) {
        self.piece = *PIECE_BYTES.start();
        self.log_end = Some(load.log_end);
        let longest = load.longest_sync;
        if !longest.is_zero() {
            self.usual = if self.usual.is_zero() { longest } else { (self.usual * 7 + longest) / 8 };
        }
    }
}

/// Returns whether the file had already been removed by something else.
fn is_missing(done: Result<(), DiskError>) -> Result<bool, DiskError> {
    match done {
        Ok(()) => Ok(false),
        Err(DiskError::Missing { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{buffer::test_pool::new_pool, disk::Disk};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_file_is_deleted_in_pieces_and_its_bytes_are_counted() {
        let (disk, pool) = new_pool(64);
        let deleter = Deleter::new(pool);
        let (one, other) = (SpaceId(20), SpaceId(21));
        let length = 5 * *PIECE_BYTES.end() / 2;
        for (space, length) in [(one, length), (other, 4096)] {
            disk.create(FileName::Data(space)).unwrap();
            disk.preallocate(FileName::Data(space), 0, length).unwrap();
            deleter.push_file(space);
        }
        let mut lengths = Vec::new();
        while deleter.deletions().pending_files > 0 {
            let before = deleter.deletions();
            let operations = disk.operations();
            let _ = deleter.step();
            let freed = deleter.deletions().bytes - before.bytes;
            assert!(freed <= *PIECE_BYTES.end(), "a step frees {freed} bytes");
            assert!(disk.operations() - operations <= 1, "a step truncates or removes more than once");
            let left = [one, other].map(|space| disk.len(FileName::Data(space)).unwrap());
            let Deletions { pending_files, pending_bytes, files, bytes } = deleter.deletions();
            assert_eq!(pending_bytes, left.iter().flatten().sum(), "after {lengths:?}");
            assert_eq!(pending_bytes + bytes, length + 4096, "after {lengths:?}");
            assert_eq!(
                [pending_files, files],
                [left.iter().flatten().count(), 2 - left.iter().flatten().count()].map(|n| n as u64)
            );
            lengths.extend(left[0]);
        }
        // The log is not synced: the pieces become larger.
        assert!(lengths.len() > 2 && lengths.is_sorted_by(|a, b| a > b), "{lengths:?}");
        assert_eq!(deleter.take_deleted(), [one, other]);
    }

    #[test]
    fn a_file_that_somebody_else_has_removed_is_not_waited_for() {
        let (disk, pool) = new_pool(64);
        let deleter = Deleter::new(pool);
        for (space, length) in [(SpaceId(20), 5 * *PIECE_BYTES.end()), (SpaceId(21), 4096)] {
            let file = FileName::Data(space);
            disk.create(file).unwrap();
            disk.preallocate(file, 0, length).unwrap();
            deleter.push_file(space);
        }
        // The deleter has read their lengths now.
        let _ = deleter.step();
        assert!(deleter.deletions().pending_bytes > 0);
        for space in [SpaceId(20), SpaceId(21)] {
            let _ = disk.remove(FileName::Data(space));
        }
        for _ in 0..10 {
            let _ = deleter.step();
        }
        let Deletions { pending_files, pending_bytes, .. } = deleter.deletions();
        assert_eq!((pending_files, pending_bytes), (0, 0));
    }

    fn synced(longest_sync: Duration) -> LoadSample {
        LoadSample { longest_sync, ..LoadSample::default() }
    }

    #[test]
    fn the_pace_of_deletion_follows_the_sync_times() {
        let mut pace = Pace::new();
        // Nothing is known yet, and the log is synced: the smallest pieces, and still at least 32 MB per second.
        assert!(matches!(pace.after(synced(MS)), Next::Idle(PIECE_PAUSE)));
        assert_eq!(pace.piece, *PIECE_BYTES.start());
        assert!(*PIECE_BYTES.start() as f64 / PIECE_PAUSE.as_secs_f64() > 32e6);
        (0..20).for_each(|_| pace.sample_idle(synced(2 * MS)));
        for _ in 0..20 {
            assert!(matches!(pace.after(synced(2 * MS)), Next::Idle(PIECE_PAUSE)));
        }
        assert_eq!(pace.piece, *PIECE_BYTES.start() * 4, "no sync is slow");
        let _ = pace.after(synced(10 * MS));
        assert_eq!(pace.piece, *PIECE_BYTES.start() * 2, "a sync is slow");
    }

    #[test]
    fn a_quiet_log_and_a_full_disk_mean_haste() {
        let mut pace = Pace::new();
        pace.sample_idle(synced(MS));
        let quiet = |now| LoadSample { now, ..LoadSample::default() };
        assert!(
            matches!(pace.after(quiet(MS)), Next::Idle(PIECE_PAUSE)),
            "that may be a pause between two commits"
        );
        assert!(matches!(pace.after(quiet(QUIET_AFTER)), Next::Idle(PIECE_PAUSE)));
        for _ in 0..10 {
            assert!(matches!(pace.after(quiet(QUIET_AFTER + MS)), Next::Again));
        }
        assert_eq!(pace.piece, *PIECE_BYTES.end());
        assert!(matches!(pace.after(synced(MS)), Next::Idle(PIECE_PAUSE)));
        assert_eq!(pace.piece, *PIECE_BYTES.start() * 4);
        for _ in 0..10 {
            let short = LoadSample { short_of_space: true, ..synced(50 * MS) };
            assert!(matches!(pace.after(short), Next::Again));
        }
        assert_eq!(pace.piece, *PIECE_BYTES.end());
    }

    /// A client that commits twenty times a second is most of the time between two commits.
    #[test]
    fn a_slow_writer_is_a_writer() {
        let mut pace = Pace::new();
        (0..20).for_each(|_| pace.sample_idle(synced(2 * MS)));
        for look in 1..100 {
            let seen = LoadSample {
                longest_sync: 2 * MS * (look % 2),
                log_end: Lsn(u64::from(look.div_ceil(2))),
                now: PIECE_PAUSE * look,
                short_of_space: false,
            };
            assert!(matches!(pace.after(seen), Next::Idle(PIECE_PAUSE)), "look {look}");
            assert!(pace.piece <= *PIECE_BYTES.start() * 4);
        }
    }

    /// With commits that are not synced the log grows and is synced once a second.
    #[test]
    fn a_log_that_grows_is_not_quiet() {
        let mut pace = Pace::new();
        pace.sample_idle(synced(MS));
        for end in 1..100 {
            let seen = LoadSample { log_end: Lsn(end.into()), now: 100 * MS * end, ..LoadSample::default() };
            assert!(matches!(pace.after(seen), Next::Idle(PIECE_PAUSE)));
            assert!(pace.piece <= *PIECE_BYTES.start() * 4);
        }
    }

    #[test]
    fn small_files_go_as_many_at_a_time_as_make_a_piece() {
        let mut pace = Pace::new();
        let count = |pace: &mut Pace, bytes| (1..1000).find(|_| pace.count_removed(bytes)).unwrap();
        assert_eq!(count(&mut pace, 0), *PIECE_BYTES.start() / MIN_FILE_BYTES);
        let _ = pace.after(synced(MS));
        assert_eq!(count(&mut pace, *PIECE_BYTES.start() / 4), 4);
        let _ = pace.after(synced(MS));
        assert_eq!(count(&mut pace, *PIECE_BYTES.end()), 1);
    }
}
