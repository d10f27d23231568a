//! The space of the log, and its background work.
//!
//! **Purpose.** The log is as long as the distance from its floor to its end, its *age*. Operations ask for admission
//! before they latch anything, are slowed down there while the log is old, and wait while it is too old; appending
//! itself never waits for the floor, for its caller holds latches that the checkpoint may need. So the files may exceed
//! the size somewhat.
//!
//! Whoever appends has a [`Promise`] of as many bytes: the disk has them, reserved in segments that are prepared. So a
//! full disk is an error of who asks for a promise, before anything is changed, and never of who leads the log.
//!
//! **Invariants.** The floor only rises, and only after the control file names it. A step of the background worker
//! makes or removes at most one file, or syncs once. The segments that are prepared reach beyond the log's end by all
//! that is promised, and, when an ordinary promise is given, by [`KEPT`] more; of that only those take who make room,
//! and they promise little; half of it may go to those who take something back ([`Log::admit_way_back`]). A promise
//! counts in full until it is given back, so what was appended under it counts twice for a while. A change is given its
//! promise together with what taking it back appends, and keeps it until it has ended: rollback asks for nothing. What
//! is long, the pages of long values and of nodes that are split or merged, is promised for each mini-transaction on
//! its own.
//!
//! **May touch.** `ids`, `error`, `env`, `sync`, `frame`, `segments`.

use core::time::Duration;

use super::{Log, LogMetrics, frame};
use crate::{
    env::Next,
    error::{Error, Result},
    ids::Lsn,
    sync::{
        Arc, Bug, Event, Mutex, Rank,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
        },
        planted,
    },
};

/// Above this pressure operations are slowed down, in percent.
const CROWDED: u64 = 85;
/// By so much for each percent above.
const PAUSE_A_PERCENT: Duration = Duration::from_micros(100);
/// What is kept beyond all promises for work that makes room: drops, checkpoints.
const KEPT: u64 = 64 << 10;
/// Log for a change beside its keys and values, in bytes: records of the transaction, undo slices that it makes,
/// headers.
pub const OVERHEAD: u64 = 4 << 10;
/// Bytes of a marker.
const MARKER: u64 = frame::span(0) as u64;
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

    fn set(&self, error: Option<Error>) {
        // Most often there was none and is none.
        if error.is_some() || self.is_there() {
            let mut now = self.error.lock();
            self.is_there.store(error.is_some(), SeqCst);
            *now = error;
        }
    }
}

/// Room in the log for somebody who appends at most so many bytes before this is dropped.
#[derive(Debug)]
#[must_use = "the room is given back when this is dropped"]
pub struct Promise<'a> {
    log: &'a Log,
    bytes: u64,
}

impl Promise<'_> {
    /// Promises more.
    ///
    /// # Errors
    /// As [`Log::promise`]; what was promised stays promised.
    pub fn extend(&mut self, bytes: u64) -> Result<()> {
        self.join(self.log.promise(bytes)?);
        Ok(())
    }

    /// Leaves at most so much of it standing, for [`Log::take_up`], and gives the rest back. Says how much it left.
    pub fn leave(mut self, at_most: u64) -> u64 {
        let left = self.bytes.min(at_most);
        self.bytes -= left;
        left
    }

    /// Makes one promise of two.
    pub fn join(&mut self, mut more: Self) {
        self.bytes += core::mem::take(&mut more.bytes);
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.log.promised.fetch_sub(self.bytes, SeqCst);
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

    /// Takes up what was left standing of a promise.
    pub fn take_up(&self, bytes: u64) -> Promise<'_> {
        Promise { log: self, bytes }
    }

    /// Waits until the log has room for an operation that appends so many bytes, and promises them:
    /// [`Log::wait_for_room`], then [`Log::promise`].
    ///
    /// # Errors
    /// A full file system, or another failure to write, before anything was changed; the failure that poisoned the
    /// database.
    pub fn admit(&self, bytes: u64) -> Result<Promise<'_>> {
        self.wait_for_room(bytes)?;
        self.promise(bytes)
    }

    /// Waits until the floor leaves room for an operation that appends so many bytes. The caller holds no latch and no
    /// lock that a checkpoint or a page cleaner needs.
    ///
    /// # Errors
    /// As [`Log::admit`].
    pub fn wait_for_room(&self, bytes: u64) -> Result<()> {
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
            self.env.wait_unlatched(&self.room, &mut || room() || hopeless());
            let took = self.env.now().saturating_sub(before).as_nanos() as u64;
            self.counts.longest_wait.fetch_max(took, Relaxed);
            if !room() {
                self.unflushed.check()?;
                self.unrecorded.check()?;
            }
        }
        self.health.check()?;
        self.unprepared.check()
    }

    /// Before the log is full operations become slower, a little each, so that what makes room keeps up and none of
    /// them has to wait for long.
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
    pub fn admit_now(&self, bytes: u64) -> Result<Promise<'_>> {
        self.unprepared.check()?;
        self.promise(bytes)
    }

    /// As [`Log::admit`], but waiting for nothing, whatever is in the way of others, as long as there is a segment at
    /// hand: for work that makes room, drops and checkpoints, and for what is said of work that was done.
    ///
    /// # Errors
    /// As [`Log::admit`], if the segment at hand is used up.
    pub fn admit_drop(&self, bytes: u64) -> Result<Promise<'_>> {
        self.promise_before(bytes, 0)
    }

    /// As [`Log::admit_drop`], for who takes something back: half of what is kept for work that makes room is left to
    /// that.
    ///
    /// # Errors
    /// As [`Log::admit_drop`].
    pub fn admit_way_back(&self, bytes: u64) -> Result<Promise<'_>> {
        self.promise_before(bytes, KEPT / 2)
    }

    /// Promises so many bytes to somebody who has been let in. Whoever promises more may hold latches.
    ///
    /// # Errors
    /// When no segment can be made for them; the failure that poisoned the database.
    pub fn promise(&self, bytes: u64) -> Result<Promise<'_>> {
        self.promise_before(bytes, KEPT)
    }

    /// The worker prepares segments ahead. Where it is late a full disk is found here, before anything is changed, and
    /// not by who leads the log, for whom it would be too late.
    fn promise_before(&self, bytes: u64, kept: u64) -> Result<Promise<'_>> {
        self.health.check()?;
        let (promise, last) = self.note_promise(bytes, kept);
        if !planted(Bug::PromiseUncovered) {
            self.segments.ready(last)?;
        }
        Ok(promise)
    }

    /// Counts a promise, and tells the last segment that has to be there for it.
    fn note_promise(&self, bytes: u64, kept: u64) -> (Promise<'_>, u64) {
        let early = planted(Bug::PromiseLooksFirst).then(|| self.end());
        // First the promise and then the end: who appends under an older promise moves from the one to the other.
        let promised = self.promised.fetch_add(bytes, SeqCst) + bytes;
        #[cfg(test)]
        self.promised_ever.fetch_add(bytes, Relaxed);
        let end = early.unwrap_or_else(|| self.end());
        let last = self.segments.geometry().number(Lsn(end.0 + promised + kept));
        (Promise { log: self, bytes }, last)
    }

    /// What is promised at the moment, in bytes.
    pub fn promised(&self) -> u64 {
        self.promised.load(SeqCst)
    }

    /// As [`Log::promise`], if the segments for it are there: for who holds a latch. `None` when they would have to be
    /// made.
    ///
    /// # Errors
    /// The failure that poisoned the database.
    pub fn promise_at_hand(&self, bytes: u64) -> Result<Option<Promise<'_>>> {
        self.health.check()?;
        let (promise, last) = self.note_promise(bytes, KEPT);
        Ok(self.segments.is_ready(last).then_some(promise))
    }

    /// Raises the floor: nothing below it will be read again. The control file has named it durably.
    pub fn set_floor(&self, floor: Lsn) {
        debug_assert!(floor <= self.durable(), "a floor above the durable end");
        self.floor.fetch_max(floor.0, SeqCst);
        self.segments.retire(floor);
        self.room.notify();
        self.wake.notify();
    }

    /// Pages cannot be written, so the floor may not rise for long: who waits for that is told why. `None` when they
    /// can.
    pub fn set_unflushed(&self, error: Option<Error>) {
        self.tell_obstacle(&self.unflushed, error);
    }

    /// As [`Log::set_unflushed`], for the records of files that were made.
    pub fn set_unrecorded(&self, error: Option<Error>) {
        self.tell_obstacle(&self.unrecorded, error);
    }

    fn tell_obstacle(&self, obstacle: &Obstacle, error: Option<Error>) {
        let is_there = error.is_some();
        obstacle.set(error);
        // Who waits for room is brought no nearer to it by an obstacle that has gone.
        if is_there {
            self.room.notify();
        }
    }

    /// The event that brings the background worker back before its time: pass it to `Env::spawn` with [`Log::step`].
    pub fn wake(&self) -> Arc<Event> {
        self.wake.clone()
    }

    /// One step of the background worker: prepares a segment ahead, removes one that is not needed, syncs once a
    /// second.
    pub fn step(&self) -> Next {
        if self.health.is_poisoned() {
            return Next::Idle(SECOND);
        }
        let number = |behind| self.segments.geometry().number(Lsn(self.end().0 + behind));
        let ahead = (number(0) + 1).max(number(self.promised() + KEPT));
        match self.segments.prepare(ahead) {
            Ok(prepared) => {
                self.tell_obstacle(&self.unprepared, None);
                if prepared {
                    return Next::Again;
                }
            }
            Err(error) => {
                // Nothing is lost yet: new operations are refused, those under way still have the segment at hand.
                tracing::warn!(%error, "no log segment could be prepared ahead");
                self.tell_obstacle(&self.unprepared, Some(error));
            }
        }
        if self.remove_segment() { Next::Again } else { self.every_second() }
    }

    /// Removes a segment that is not needed. Says whether there was one.
    fn remove_segment(&self) -> bool {
        self.segments.remove_one().unwrap_or_else(|error| {
            tracing::warn!(%error, "a log segment that is not needed could not be removed");
            false
        })
    }

    /// Removes all segments that are not needed: nobody else does it any more.
    pub fn tidy(&self) {
        while self.remove_segment() {}
    }

    /// Syncs what lazy commits have left, then lets a marker say so: damage to it is told from a torn tail then.
    fn every_second(&self) -> Next {
        // A clock that has jumped, wherever to, keeps nothing from becoming durable.
        let since = self.env.now().abs_diff(Duration::from_nanos(self.last_sync_at.load(Relaxed)));
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

    /// Appends a marker and writes it. Where there is no place for it, none is needed: it only proves more.
    fn mark(&self) -> Result<()> {
        let Ok(_room) = self.admit_drop(MARKER) else { return self.health.check() };
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
