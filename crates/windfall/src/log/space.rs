//! The space of the log, and its background work.
//!
//! **Purpose.** The log is as long as the distance from its floor to its end, its *age*. Operations ask for admission
//! before they latch anything, are slowed down there while the log is old, and wait while it is too old; appending itself
//! never waits for the floor, for its caller holds latches that the checkpoint may need. So the files may exceed the size
//! somewhat.
//!
//! **Invariants.** The floor only rises, and only after the control file names it. A step of the background worker makes or
//! removes at most one file, or syncs once.
//!
//! **May touch.** `ids`, `error`, `env`, `sync`, `segments`.

use core::time::Duration;

use super::{Log, LogMetrics, frame::BLOCK};
use crate::{
    env::Next,
    error::{Error, Result},
    ids::Lsn,
    sync::{
        Arc, Event, Mutex, Rank,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// Above this pressure operations are slowed down, in percent.
const CROWDED: u64 = 85;
/// By so much for each percent above.
const PAUSE_A_PERCENT: Duration = Duration::from_micros(100);
/// How often the log is synced when commits do not.
const SECOND: Duration = Duration::from_secs(1);

/// What is in the way of the log, if anything.
#[derive(Debug)]
pub(super) struct Obstacle {
    is_there: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Default for Obstacle {
    fn default() -> Self {
        Self { is_there: AtomicBool::new(false), error: Mutex::new(Rank::Leaf, None) }
    }
}

impl Obstacle {
    fn is_there(&self) -> bool {
        self.is_there.load(SeqCst)
    }

    fn check(&self) -> Result<()> {
        let error = if self.is_there() { self.error.lock().clone() } else { None };
        error.map_or(Ok(()), Err)
    }

    fn set(&self, error: Error) {
        *self.error.lock() = Some(error);
        self.is_there.store(true, SeqCst);
    }

    fn clear(&self) {
        if self.is_there.swap(false, SeqCst) {
            *self.error.lock() = None;
        }
    }
}

impl Log {
    /// The age of the log in bytes: from its floor to its end.
    pub fn age(&self) -> u64 {
        self.reserved.load(SeqCst).saturating_sub(self.floor.load(SeqCst))
    }

    /// The floor as it was set last.
    pub fn floor(&self) -> Lsn {
        Lsn(self.floor.load(SeqCst))
    }

    /// The size that the age is kept below, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How urgent it is to raise the floor: the age in percent of the size. From 100 on operations wait.
    pub fn pressure(&self) -> u64 {
        self.age().saturating_mul(100) / self.size
    }

    /// Names the event that is notified when the age passes half of the size, and when someone waits for the floor.
    /// The first call counts.
    pub fn set_checkpointer(&self, wake: Arc<Event>) {
        let _ = self.checkpointer.set(wake);
    }

    pub(super) fn press(&self) {
        if self.pressure() >= 50
            && let Some(wake) = self.checkpointer.get()
        {
            wake.notify();
        }
    }

    /// Waits until the log has room for an operation that may append so many bytes. The caller holds no latch and no lock
    /// that a checkpoint or a page cleaner needs.
    ///
    /// # Errors
    /// A full file system, or another failure to write, before anything was changed; the failure that poisoned the database.
    pub fn admit(&self, bytes: u64) -> Result<()> {
        // One operation alone is let in whatever its size.
        let bytes = bytes.min(self.size / 2);
        let room = || self.age() + bytes <= self.size;
        if room() {
            self.slow_down();
        } else {
            self.counts.waits.fetch_add(1, Relaxed);
            let before = self.env.now();
            if let Some(wake) = self.checkpointer.get() {
                wake.notify();
            }
            let hopeless = || {
                self.unflushed.is_there()
                    || self.unrecorded.is_there()
                    || self.unprepared.is_there()
                    || self.health.is_poisoned()
            };
            self.env.wait(&self.room, &mut || room() || hopeless());
            let took = self.env.now().saturating_sub(before).as_nanos() as u64;
            self.counts.longest_wait.fetch_max(took, Relaxed);
            if !room() {
                self.unflushed.check()?;
                self.unrecorded.check()?;
            }
        }
        self.admit_now(bytes)
    }

    /// Before the log is full operations become slower, a little each, so that what makes room keeps up and none of them
    /// has to wait for long.
    fn slow_down(&self) {
        let crowd = || self.pressure().saturating_sub(CROWDED) as u32;
        if crowd() > 0 {
            let pause = PAUSE_A_PERCENT * crowd();
            self.env.wait_for(&self.room, pause, &mut || crowd() == 0 || self.health.is_poisoned());
        }
    }

    /// As [`Log::admit`], but without a wait for the floor: for small work that the floor waits for.
    ///
    /// # Errors
    /// As [`Log::admit`].
    pub fn admit_now(&self, bytes: u64) -> Result<()> {
        self.health.check()?;
        self.unprepared.check()?;
        self.have_segment(bytes)
    }

    /// As [`Log::admit`], but waiting for nothing, whatever is in the way of others, as long as there is a segment at hand: for
    /// work that makes room, drops and checkpoints.
    ///
    /// # Errors
    /// As [`Log::admit`], if the segment at hand is used up.
    pub fn admit_drop(&self, bytes: u64) -> Result<()> {
        self.health.check()?;
        self.have_segment(bytes)
    }

    /// The worker prepares segments ahead. Where it is late a full disk is found here, before anything is changed, and not
    /// by who leads the log, for whom it would be too late.
    fn have_segment(&self, bytes: u64) -> Result<()> {
        // A frame takes a little more than what is in it.
        let last = self.segments.geometry().number(Lsn(self.end().0 + bytes + BLOCK as u64));
        if self.segments.is_ready(last) { Ok(()) } else { self.segments.ready(last) }
    }

    /// Raises the floor: nothing below it will be read again. The control file has named it durably.
    pub fn set_floor(&self, floor: Lsn) {
        debug_assert!(floor <= self.durable(), "a floor above the durable end");
        self.floor.fetch_max(floor.0, SeqCst);
        self.segments.retire(floor);
        self.room.notify();
        self.wake.notify();
    }

    /// Pages cannot be written, so the floor may not rise for long: who waits for that is told why.
    pub fn set_unflushed(&self, error: Error) {
        self.unflushed.set(error);
        self.room.notify();
    }

    /// As [`Log::set_unflushed`], for the records of files that were made. `None` when they can be written.
    pub fn set_unrecorded(&self, error: Option<Error>) {
        match error {
            Some(error) => self.unrecorded.set(error),
            None => self.unrecorded.clear(),
        }
        self.room.notify();
    }

    /// Pages can be written again.
    pub fn clear_unflushed(&self) {
        self.unflushed.clear();
    }

    /// The event that brings the background worker back before its time: pass it to `Env::spawn` with [`Log::step`].
    pub fn wake(&self) -> Arc<Event> {
        self.wake.clone()
    }

    /// One step of the background worker: prepares a segment ahead, removes one that is not needed, syncs once a second.
    pub fn step(&self) -> Next {
        if self.health.is_poisoned() {
            return Next::Idle(SECOND);
        }
        let ahead = self.segments.geometry().number(self.end()) + 1;
        match self.segments.prepare(ahead) {
            Ok(prepared) => {
                self.unprepared.clear();
                if prepared {
                    return Next::Again;
                }
            }
            Err(error) => {
                // Nothing is lost yet: new operations are refused, those under way still have the segment at hand.
                tracing::warn!(%error, "no log segment could be prepared ahead");
                self.unprepared.set(error);
                self.room.notify();
            }
        }
        match self.segments.remove_one() {
            Ok(true) => return Next::Again,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "a log segment that is not needed could not be removed"),
        }
        self.every_second()
    }

    /// Syncs what lazy commits have left, then lets a marker say so: damage to it is told from a torn tail then.
    fn every_second(&self) -> Next {
        let since = self.env.now().saturating_sub(Duration::from_nanos(self.last_sync_at.load(Relaxed)));
        if since < SECOND {
            return Next::Idle(SECOND.checked_sub(since).unwrap_or(SECOND));
        }
        let done = if self.end() > self.durable() {
            self.sync_to(self.end())
        } else if self.durable() > Lsn(self.marked.load(SeqCst)) {
            self.mark()
        } else {
            Ok(())
        };
        if let Err(error) = done {
            tracing::error!(%error, "the log could not be synced");
        }
        Next::Idle(SECOND)
    }

    /// Appends a marker and writes it.
    fn mark(&self) -> Result<()> {
        let (_, end) = self.begin_group().append(&[])?;
        self.marked.fetch_max(end.0, SeqCst);
        self.write_to(end)
    }

    /// Makes everything durable, and leaves a marker that proves it. What was appended while this ran may stay out.
    ///
    /// # Errors
    /// A failure poisons the database.
    pub fn finish(&self) -> Result<Lsn> {
        self.sync_to(self.end())?;
        self.mark()?;
        self.sync_to(self.end())?;
        Ok(self.durable())
    }

    /// What the log has done so far.
    pub fn metrics(&self) -> LogMetrics {
        let counts = &self.counts;
        LogMetrics {
            fsyncs: counts.fsyncs.load(Relaxed),
            writes: counts.writes.load(Relaxed),
            bytes: counts.bytes.load(Relaxed),
            groups: self.groups(),
            follows: counts.follows.load(Relaxed),
            buffer_full: counts.full.load(Relaxed),
            waits: counts.waits.load(Relaxed),
            longest_wait: Duration::from_nanos(counts.longest_wait.load(Relaxed)),
            last_sync: self.last_sync(),
            age: self.age(),
            size: self.size,
        }
    }
}
