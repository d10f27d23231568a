//! Checkpoints: the log floor rises behind the page cleaner.
//!
//! **Purpose.** A checkpoint is fuzzy: it stops nobody. The page cleaner writes old changes all the time; a checkpoint
//! only finds out up to where everything is in the data files, writes that to the control file, and lets the log go
//! below.
//!
//! **Invariants.** The floor is the minimum of: the start of every group whose pages are not all registered dirty, read
//! first; the oldest change of a page that is not durable in its file; files whose record is still to be written; and
//! what the transaction floor says ([`Unfinished::note`]). The record of unfinished transactions is logged at or above
//! the floor, and durable before the control file names the floor. The log is cut only afterwards.
//!
//! **May touch.** `buffer`, `log`, `transaction` by a trait of its own.

#[cfg(all(test, feature = "model"))]
mod interleavings;

use core::time::Duration;

use crate::{
    buffer::{BufferPool, FileState},
    env::{Env, Kind, Next, Worker},
    error::Result,
    ids::{Lsn, SpaceId},
    log::{ControlFile, GroupWriter},
    sync::{
        Arc, Bug, Event, Mutex, OnceLock, Rank,
        atomic::{AtomicU64, Ordering::Relaxed},
        planted,
    },
    transaction::Transactions,
};

/// The cleaner writes what is older than this part of the log's size, in percent: the rest is room for bursts.
const OLD_PERCENT: u64 = 40;
/// A checkpoint is made when the floor could rise by this part of the log's size, in percent.
const STEP_PERCENT: u64 = 5;
/// An idle cleaner looks again after this time.
const PAUSE: Duration = Duration::from_millis(100);
/// A worker that operations wait for, or are about to, looks again after this time.
const HURRY: Duration = Duration::from_millis(2);
/// What changed longer ago than this is written even when the log is young, so that a quiet database is soon clean.
const QUIET: Duration = Duration::from_secs(30);
/// In a quiet database, fewer bytes of log than this are not worth a checkpoint.
const WORTHWHILE: u64 = 4096;

/// What a checkpoint asks of the transactions.
pub trait Unfinished: Send + Sync {
    /// Appends the record of unfinished transactions. Gives the LSN above which the floor may not rise because of them.
    fn note(&self, group: &mut GroupWriter) -> Lsn;

    /// No tablespace id, and no transaction id, at or above these was handed out.
    fn ceilings(&self) -> (u64, u64);
}

/// Makes checkpoints.
pub struct Checkpointer {
    pool: Arc<BufferPool>,
    control: Mutex<ControlFile>,
    /// Who knows the transactions. While recovery replays nobody does, and there is no checkpoint.
    unfinished: OnceLock<Arc<dyn Unfinished>>,
    /// The log's end some time ago, to find what has been dirty for long.
    earlier: Mutex<Earlier>,
    /// When the last checkpoint was made, and the log's end behind its record.
    last: Mutex<(Duration, Lsn)>,
    made: AtomicU64,
    /// Wakes the checkpoint worker.
    pub wake: Arc<Event>,
}

/// Two looks at the log's end, half of [`QUIET`] apart.
#[derive(Debug)]
struct Earlier {
    at: Duration,
    before: Lsn,
    last: Lsn,
}

impl core::fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Checkpointer")
    }
}

impl Checkpointer {
    /// A checkpointer over an open control file. The floor stays where it is until [`Checkpointer::recovered`]: what
    /// recovery has not replayed yet is dirty nowhere.
    pub fn new(pool: Arc<BufferPool>, control: ControlFile) -> Self {
        let end = pool.ground().log.end();
        let wake = Arc::new(Event::new());
        pool.ground().log.set_checkpointer(wake.clone());
        Self {
            pool,
            control: Mutex::new(Rank::Checkpoint, control),
            unfinished: OnceLock::new(),
            earlier: Mutex::new(Rank::Leaf, Earlier { at: Duration::ZERO, before: Lsn::ZERO, last: end }),
            last: Mutex::new(Rank::Leaf, (Duration::ZERO, end)),
            made: AtomicU64::new(0),
            wake,
        }
    }

    /// Recovery has replayed everything, and this is who knows the transactions: from now on the floor may rise.
    pub fn recovered(&self, unfinished: Arc<dyn Unfinished>) {
        let _ = self.unfinished.set(unfinished);
    }

    /// Where the floor could be now.
    fn floor(&self) -> Lsn {
        // First the groups under way: a page that one of them dirties later is at or above it.
        let appending = self.pool.ground().log.append_floor();
        appending.min(self.pool.oldest_dirty()).min(self.pool.files_floor())
    }

    /// Makes a checkpoint, unless recovery is not done. Gives the floor. `clean` says that nothing will be written
    /// after it.
    ///
    /// # Errors
    /// What the log or the control file says; either poisons the database.
    pub fn checkpoint(&self, clean: bool) -> Result<Lsn> {
        let mut control = self.control.lock();
        let log = &self.pool.ground().log;
        let Some(unfinished) = self.unfinished.get() else { return Ok(log.floor()) };
        let floor = self.floor();
        let system = self.pool.space(SpaceId::CATALOG);
        let system_made = system.is_some_and(|space| space.file() == FileState::Made);
        let mut group = GroupWriter::default();
        let ending = unfinished.note(&mut group);
        let floor = if planted(Bug::EndNotNoted) { floor } else { floor.min(ending) };
        // This makes room.
        let _room = log.admit_drop(group.log_bytes())?;
        let (start, end) = log.begin_group().append(group.bytes())?;
        if !planted(Bug::FloorBeforeTheLog) {
            log.sync_to(end)?;
        }
        let (space_ceiling, trx_ceiling) = unfinished.ceilings();
        if planted(Bug::LogCutBeforeTheControlFile) {
            log.set_floor(floor);
        }
        control.update(|control| {
            control.floor = floor.max(control.floor);
            control.checkpoint = start;
            control.durable = end;
            control.space_ceiling = space_ceiling;
            control.trx_ceiling = trx_ceiling;
            control.clean = clean;
            // The log's word for it may be cut from now on.
            control.system_made |= system_made && !planted(Bug::SystemTreeForgotten);
        })?;
        log.set_floor(floor);
        *self.last.lock() = (self.pool.ground().env.now(), end);
        self.made.fetch_add(1, Relaxed);
        tracing::debug!(floor = floor.0, end = end.0, "checkpoint");
        Ok(floor)
    }

    /// How many checkpoints were made.
    pub fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }

    /// Writes everything that is dirty and makes a checkpoint.
    ///
    /// # Errors
    /// As [`Checkpointer::checkpoint`], and what the data files say.
    pub fn checkpoint_all(&self, clean: bool) -> Result<Lsn> {
        self.pool.flush_all()?;
        self.checkpoint(clean)
    }

    /// Changes at or before this LSN are to be written now.
    fn old_up_to(&self) -> Lsn {
        let log = &self.pool.ground().log;
        let end = log.end();
        let now = self.pool.ground().env.now();
        let mut earlier = self.earlier.lock();
        if now.saturating_sub(earlier.at) >= QUIET / 2 {
            *earlier = Earlier { at: now, before: earlier.last, last: end };
        }
        Lsn(end.0.saturating_sub(log.size() / 100 * OLD_PERCENT)).max(earlier.before)
    }

    /// Whether everything is in the data files for a while and the control file does not say so.
    fn is_quiet(&self) -> bool {
        let (at, end) = *self.last.lock();
        let now = self.pool.ground().env.now();
        let log_end = self.pool.ground().log.end();
        log_end.0 - end.0 >= WORTHWHILE && now.saturating_sub(at) >= QUIET && self.floor() >= log_end
    }

    /// One step of the page cleaner.
    pub fn clean_step(&self) -> Next {
        if self.pool.ground().health.is_poisoned() {
            self.pool.tell_freed();
            return Next::Idle(PAUSE);
        }
        match self.pool.clean_step(self.old_up_to()) {
            Ok(true) => {
                self.wake.notify();
                Next::Again
            }
            Ok(false) => Next::Idle(if self.pool.is_waited_for() { HURRY } else { PAUSE }),
            Err(error) => {
                tracing::warn!(%error, "dirty pages could not be written: they stay in memory and in the log");
                Next::Idle(PAUSE)
            }
        }
    }

    /// One step of the checkpoint worker.
    pub fn step(&self) -> Next {
        let log = &self.pool.ground().log;
        if self.pool.ground().health.is_poisoned() {
            log.tell_stopped();
            return Next::Idle(PAUSE);
        }
        if log.pressure() >= OLD_PERCENT {
            self.pool.cleaner_wake.notify();
        }
        let rise = self.floor().min(log.end()).0.saturating_sub(log.floor().0);
        // The fuller the log, the smaller the steps: operations then wait often and shortly instead of seldom and long.
        let step = match log.pressure() {
            0..80 => STEP_PERCENT,
            80..95 => 1,
            _ => 0,
        };
        let pause = if step == STEP_PERCENT { PAUSE } else { HURRY };
        let due = rise > 0 && rise >= log.size() / 100 * step;
        if !due && !self.is_quiet() {
            return Next::Idle(pause);
        }
        if let Err(error) = self.checkpoint(false) {
            tracing::error!(%error, "the checkpoint failed");
        }
        Next::Idle(pause)
    }

    /// Starts the page cleaner and the checkpoint worker.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn spawn(self: &Arc<Self>, env: &dyn Env) -> Result<[Worker; 2]> {
        let (cleaner, checkpointer) = (self.clone(), self.clone());
        let health = &self.pool.ground().health;
        let clean = health.watch("cleaner", Box::new(move || cleaner.clean_step()));
        let step = health.watch("checkpoint", Box::new(move || checkpointer.step()));
        Ok([
            env.spawn("cleaner", Kind::Service, self.pool.cleaner_wake.clone(), clean)?,
            env.spawn("checkpoint", Kind::Service, self.wake.clone(), step)?,
        ])
    }
}

impl Unfinished for Transactions {
    fn note(&self, group: &mut GroupWriter) -> Lsn {
        Self::note(self, group)
    }

    fn ceilings(&self) -> (u64, u64) {
        self.ids().ceilings()
    }
}
