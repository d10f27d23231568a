//! Checkpoints: the log's low-water mark advances as the page cleaner writes.
//!
//! **Purpose.** Checkpoints are fuzzy: they stop no thread. The page cleaner writes old changes all the time. A
//! checkpoint only finds the LSN below which all changes are in the data files, and writes it to the control file. Then
//! the log space below may be reused. This LSN is the low-water mark: the oldest LSN that recovery still needs.
//!
//! A database that has logged nothing for [`IDLE_AFTER`] and has a large log makes it small: the page cleaner writes
//! all changes, the log continues in a small segment (`Log::cut`), and a checkpoint retires the large ones.
//!
//! **Invariants.** The low-water mark is the minimum of four LSNs: the start of the oldest group with pages that are
//! not all registered dirty, which is read first; the oldest change of a page that is not durable in its data file; the
//! log record of the oldest data file that has no catalog record yet; the limit that transactions set
//! ([`TransactionNotes::note`]) (tests: `a_low_water_mark_passes_nothing_that_only_the_log_knows`,
//! `a_low_water_mark_on_disk_passes_nothing_that_a_crash_would_miss`,
//! `the_low_water_mark_passes_no_file_without_a_record`,
//! `a_transaction_that_ended_during_a_checkpoint_is_not_unfinished`). The record of unfinished transactions is logged
//! at or above the low-water mark (checked by `storage/checkpoint.rs::checkpoint`), and is durable before the control
//! file records the mark (test: `a_low_water_mark_on_disk_passes_nothing_that_a_crash_would_miss`). The log is
//! truncated only afterwards (test: `no_segment_is_used_again_that_the_control_file_still_needs`). No checkpoint
//! follows that of a clean shutdown (test: `no_checkpoint_comes_after_that_of_a_clean_shutdown`).

#[cfg(all(test, feature = "model"))]
pub(crate) mod interleavings;
#[cfg(test)]
pub(crate) mod tests;

use core::time::Duration;

use crate::{
    buffer::{BufferPool, FileState},
    env::{Env, Next, Worker, WorkerClass},
    error::Result,
    ids::{Lsn, SpaceId},
    log::{ControlFile, GroupWriter},
    sync::{
        Arc, Event, Mutex, OnceLock, Rank,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The page cleaner writes changes that are older than this, in percent of the log's size: the rest of the log is room
/// for bursts.
const OLD_PERCENT: u64 = 40;
/// A checkpoint is made when the low-water mark can rise by this part of the log's size, in percent.
const STEP_PERCENT: u64 = 5;
/// The pause of an idle worker between two checks.
const IDLE_PAUSE: Duration = Duration::from_millis(100);
/// The pause of a worker while operations wait for it, or will soon wait.
const SHORT_PAUSE: Duration = Duration::from_millis(2);
/// Changes older than this are written even when the log has room, so that a quiet database is soon clean.
const QUIET_AFTER: Duration = Duration::from_secs(30);
/// The database is idle when it has logged nothing for this long: then a large log is made small.
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// In a quiet database, fewer bytes of log than this are not worth a checkpoint.
const QUIET_LOG_BYTES: u64 = 4096;

/// The transactions' part of a checkpoint.
pub(crate) trait TransactionNotes: Send + Sync {
    /// Appends the record of unfinished transactions. Returns the LSN that limits the low-water mark because of
    /// them, if any.
    fn note(&self, group: &mut GroupWriter) -> Option<Lsn>;

    /// Returns upper bounds of the tablespace ids and the transaction ids assigned so far: all are below these.
    fn ceilings(&self) -> (u64, u64);
}

/// Makes checkpoints.
pub struct Checkpointer {
    pool: Arc<BufferPool>,
    control: Mutex<ControlFile>,
    /// The transactions. Not set while recovery replays the log: until then there is no checkpoint.
    transactions: OnceLock<Arc<dyn TransactionNotes>>,
    /// The log's end some time ago, to find pages that have been dirty for long.
    earlier: Mutex<Earlier>,
    idle: Mutex<Idle>,
    /// The time of the last checkpoint, and the log's end after its record.
    last: Mutex<(Duration, Lsn)>,
    made: AtomicU64,
    /// Wakes the checkpoint worker.
    pub wake: Arc<Event>,
}

/// Two samples of the log's end, at least half of [`QUIET_AFTER`] apart.
#[derive(Debug)]
struct Earlier {
    at: Duration,
    before: Lsn,
    last: Lsn,
}

/// How long nothing has been logged.
#[derive(Debug)]
struct Idle {
    since: Duration,
    end: Lsn,
    /// The end of the log when it was made small, apart from what that has logged: more is not to be done there.
    shrunk: Option<Lsn>,
}

impl core::fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Checkpointer")
    }
}

impl Checkpointer {
    /// Returns a checkpointer over an open control file. The low-water mark stays where it is until
    /// [`Checkpointer::end_recovery`]: changes that recovery has not replayed yet are in no dirty set.
    pub fn new(pool: Arc<BufferPool>, control: ControlFile) -> Self {
        let end = pool.context().log.end();
        let wake = Arc::new(Event::new());
        pool.context().log.set_checkpointer(wake.clone());
        Self {
            pool,
            control: Mutex::new(Rank::Checkpoint, control),
            transactions: OnceLock::new(),
            earlier: Mutex::new(Rank::Leaf, Earlier { at: Duration::ZERO, before: Lsn::ZERO, last: end }),
            idle: Mutex::new(Rank::Leaf, Idle { since: Duration::ZERO, end: Lsn::ZERO, shrunk: None }),
            last: Mutex::new(Rank::Leaf, (Duration::ZERO, end)),
            made: AtomicU64::new(0),
            wake,
        }
    }

    /// Must be called with the transactions when recovery has replayed everything: from then on the low-water mark may
    /// rise.
    pub(crate) fn end_recovery(&self, transactions: Arc<dyn TransactionNotes>) {
        let is_first = self.transactions.set(transactions).is_ok();
        assert!(is_first, "recovery has ended twice, and checkpoints use the earlier transactions");
    }

    /// Returns the LSN to which the low-water mark could rise now, apart from transactions.
    fn low_water_mark(&self) -> Lsn {
        // First the groups that are being appended: a page that one of them dirties later is at or above this LSN.
        let appending = self.pool.context().log.append_low_water_mark();
        let others = [self.pool.oldest_dirty(), self.pool.files_low_water_mark()];
        others.into_iter().flatten().fold(appending, Ord::min)
    }

    /// Makes a checkpoint, unless recovery is still in progress. Returns the low-water mark. `clean` says that nothing
    /// will be written after this checkpoint: a worker that is still running makes none any more.
    ///
    /// # Errors
    /// When the log has no space for the record. All other errors, of the log or the control file, poison the database.
    pub fn checkpoint(&self, clean: bool) -> Result<Lsn> {
        let mut control = self.control.lock();
        let log = &self.pool.context().log;
        let Some(transactions) = self.transactions.get() else { return Ok(log.low_water_mark()) };
        if control.control().clean && !clean {
            return Ok(log.low_water_mark());
        }
        let low_water_mark = self.low_water_mark();
        let system = self.pool.space(SpaceId::SYSTEM);
        let system_made = system.is_some_and(|space| space.file() == FileState::Durable);
        let mut group = GroupWriter::default();
        let ending = transactions.note(&mut group);
        let low_water_mark = ending.map_or(low_water_mark, |ending| low_water_mark.min(ending));
        // A checkpoint makes room in the log, so it is admitted without a wait.
        let _room = log.admit_freeing(group.log_bytes())?;
        let (start, end) = log.begin_group().append(group.bytes())?;
        assert!(low_water_mark <= start, "the record of unfinished transactions is below the low-water mark");
        assert!(control.control().durable <= start, "the durable position moves back");
        log.sync_to(end)?;
        assert!(end <= log.durable(), "the record of unfinished transactions is not durable");
        let (space_ceiling, trx_ceiling) = transactions.ceilings();
        control.update(|control| {
            control.low_water_mark = low_water_mark.max(control.low_water_mark);
            control.checkpoint = start;
            control.durable = end;
            control.space_ceiling = space_ceiling;
            control.trx_ceiling = trx_ceiling;
            control.clean = clean;
            // The log record of the file's creation may be truncated from now on.
            control.system_made |= system_made;
        })?;
        let recorded = control.control();
        assert!(low_water_mark <= recorded.low_water_mark, "the log is truncated beyond the recorded mark");
        assert!(recorded.low_water_mark <= recorded.durable, "the low-water mark is above the durable log");
        log.raise_low_water_mark(low_water_mark);
        *self.last.lock() = (self.pool.context().env.now(), end);
        self.made.fetch_add(1, Relaxed);
        tracing::debug!(
            target: "windfall::log",
            low_water_mark = low_water_mark.0, end = end.0, "checkpoint",
        );
        Ok(low_water_mark)
    }

    /// Returns the number of checkpoints made.
    pub fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }

    /// Writes all dirty pages and makes a checkpoint.
    ///
    /// # Errors
    /// As [`Checkpointer::checkpoint`], and errors of the data files.
    pub fn checkpoint_all(&self, clean: bool) -> Result<Lsn> {
        self.pool.flush_all()?;
        self.checkpoint(clean)
    }

    /// Returns whether the database is idle, and its log is larger than it needs then.
    fn may_shrink_log(&self) -> bool {
        let (now, log) = (self.pool.context().env.now(), &self.pool.context().log);
        let end = log.end_of_groups();
        let mut idle = self.idle.lock();
        if idle.end != end {
            (idle.since, idle.end) = (now, end);
        }
        let is_idle = now.saturating_sub(idle.since) >= IDLE_AFTER && idle.shrunk != Some(end);
        drop(idle);
        is_idle && self.transactions.get().is_some() && log.is_oversized()
    }

    /// Makes the log small: it continues in a small segment, and a checkpoint retires those before. Returns whether
    /// that was possible: not while too much is reserved.
    fn shrink_log(&self) -> Result<bool> {
        let log = &self.pool.context().log;
        let is_cut = log.cut()?;
        if is_cut {
            self.checkpoint(false)?;
            self.idle.lock().shrunk = Some(log.end_of_groups());
        }
        Ok(is_cut)
    }

    /// Returns the LSN up to which changes must be written now.
    fn old_up_to(&self) -> Lsn {
        let log = &self.pool.context().log;
        if self.may_shrink_log() {
            return log.end();
        }
        let now = self.pool.context().env.now();
        let mut earlier = self.earlier.lock();
        let end = log.end();
        debug_assert!(earlier.before <= earlier.last && earlier.last <= end, "the end of the log moves back");
        if now.saturating_sub(earlier.at) >= QUIET_AFTER / 2 {
            *earlier = Earlier { at: now, before: earlier.last, last: end };
        }
        Lsn(end.0.saturating_sub(log.size() / 100 * OLD_PERCENT)).max(earlier.before)
    }

    /// Returns whether all changes are in the data files, and the last checkpoint is at least [`QUIET_AFTER`] and
    /// [`QUIET_LOG_BYTES`] bytes of log ago.
    fn is_quiet(&self) -> bool {
        let (at, end) = *self.last.lock();
        let now = self.pool.context().env.now();
        let log_end = self.pool.context().log.end();
        debug_assert!(end <= log_end, "the log ends below its last checkpoint");
        log_end.0 - end.0 >= QUIET_LOG_BYTES
            && now.saturating_sub(at) >= QUIET_AFTER
            && self.low_water_mark() >= log_end
    }

    /// One step of the page cleaner.
    pub(crate) fn clean_step(&self) -> Next {
        if self.pool.context().health.is_poisoned() {
            self.pool.notify_freed();
            return Next::Idle(IDLE_PAUSE);
        }
        match self.pool.clean_step(self.old_up_to()) {
            Ok(true) => {
                self.wake.notify();
                Next::Again
            }
            Ok(false) => Next::Idle(if self.pool.is_waited_for() { SHORT_PAUSE } else { IDLE_PAUSE }),
            Err(error) => {
                tracing::warn!(
                    target: "windfall::storage",
                    %error, "dirty pages could not be written: they stay in memory and in the log",
                );
                Next::Idle(IDLE_PAUSE)
            }
        }
    }

    /// One step of the checkpoint worker.
    pub fn step(&self) -> Next {
        let log = &self.pool.context().log;
        if self.pool.context().health.is_poisoned() {
            log.wake_all_waiters();
            return Next::Idle(IDLE_PAUSE);
        }
        if log.pressure() >= OLD_PERCENT {
            self.pool.cleaner_wake.notify();
        }
        let rise = self.low_water_mark().min(log.end()).0.saturating_sub(log.low_water_mark().0);
        // The fuller the log, the smaller the steps: operations then have many short waits instead of a few long ones.
        let step = match log.pressure() {
            0..80 => STEP_PERCENT,
            80..95 => 1,
            _ => 0,
        };
        let pause = if step == STEP_PERCENT { IDLE_PAUSE } else { SHORT_PAUSE };
        let due = rise > 0 && rise >= log.size() / 100 * step;
        if !due && !self.is_quiet() {
            if self.may_shrink_log() && self.low_water_mark() >= log.end() {
                let is_shrunk = self.shrink_log().unwrap_or_else(|error| {
                    tracing::warn!(
                        target: "windfall::log",
                        %error, "the log of an idle database could not be made smaller yet",
                    );
                    false
                });
                if !is_shrunk {
                    self.idle.lock().since = self.pool.context().env.now();
                }
            }
            return Next::Idle(pause);
        }
        if let Err(error) = self.checkpoint(false) {
            tracing::error!(target: "windfall::log", %error, "the checkpoint failed");
        }
        Next::Idle(pause)
    }

    /// Starts the page cleaner and the checkpoint worker.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn spawn(self: &Arc<Self>, env: &dyn Env) -> Result<[Worker; 2]> {
        let (cleaner, checkpointer) = (self.clone(), self.clone());
        let health = &self.pool.context().health;
        let clean = health.watch("cleaner", Box::new(move || cleaner.clean_step()));
        let step = health.watch("checkpoint", Box::new(move || checkpointer.step()));
        Ok([
            env.spawn("cleaner", WorkerClass::Service, self.pool.cleaner_wake.clone(), clean)?,
            env.spawn("checkpoint", WorkerClass::Service, self.wake.clone(), step)?,
        ])
    }
}
