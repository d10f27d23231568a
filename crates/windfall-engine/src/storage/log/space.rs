//! The space of the log, and its background work.
//!
//! **Purpose.** The distance from the log's low-water mark to its end is its *age*. Operations request admission before
//! they latch anything, are throttled there while the log is old, and wait while it is too old. Appending itself never
//! waits for the low-water mark, because its caller holds latches that the checkpoint may need. So the files may exceed
//! the size somewhat.
//!
//! A thread that appends has a [`LogReservation`] of at least as many bytes: the disk has them, preallocated in
//! prepared segments. So a full disk is an error of the reservation, before anything is changed, and never of the
//! leader of group commit.
//!
//! **Invariants.** The low-water mark only rises (checked by `log/control.rs::update`), and only after the control file
//! records it (test: `no_segment_is_used_again_that_the_control_file_still_needs`). A step of the background worker
//! makes or removes at most one file, or writes what fills the buffer, or makes the log durable once (tests:
//! `a_step_of_the_worker_makes_or_removes_one_file_or_syncs`, `the_worker_writes_a_half_of_the_buffer_that_is_full`).
//! The prepared segments reach beyond the log's end by all outstanding reservations, and, when an ordinary reservation
//! is made, by [`EMERGENCY_RESERVE_BYTES`] bytes more (tests: `a_reservation_is_kept_on_a_full_disk`,
//! `reservations_leave_log_for_work_that_makes_room`). Only work that makes room uses those bytes (test:
//! `reservations_leave_log_for_work_that_makes_room`), and it reserves little: a request that is refused takes none of
//! them, not even while it is being refused (test: `a_request_that_is_refused_takes_nothing_of_what_is_kept`); half of
//! them may go to rollback ([`Log::admit_rollback`]). A reservation counts in full until it is dropped, so bytes
//! appended under it count twice for a while (test: `a_reservation_counts_in_full_until_it_is_dropped`). The
//! reservation of a change includes what its rollback appends, and lasts until the change has ended: rollback requests
//! nothing (tests: `a_call_appends_no_more_than_its_reservation`,
//! `a_long_value_and_a_disk_that_becomes_full_at_every_moment`). Long data, the pages of long values and of nodes that
//! are split or merged, is reserved for each mini-transaction separately (tests:
//! `a_call_appends_no_more_than_its_reservation`, `a_long_value_and_a_disk_that_becomes_full_at_every_moment`).
//!
//! | request | waits for the low-water mark | bytes that must be left beyond the reservations |
//! | --- | --- | --- |
//! | [`Log::admit`]: changes, loads, purge | yes | [`EMERGENCY_RESERVE_BYTES`] |
//! | [`Log::admit_now`]: small work on which the low-water mark depends | no | [`EMERGENCY_RESERVE_BYTES`] |
//! | [`Log::reserve`]: more, for an operation that was admitted | no | [`EMERGENCY_RESERVE_BYTES`] |
//! | [`Log::try_reserve`]: the same, if the segments are prepared | no | [`EMERGENCY_RESERVE_BYTES`] |
//! | [`Log::admit_rollback`]: rollback without a reservation, if [`Log::admit`] has failed | no | half of [`EMERGENCY_RESERVE_BYTES`] |
//! | [`Log::admit_freeing`]: drops, checkpoints, records of what is done already | no | none |

use core::time::Duration;

use super::{Log, LogMetrics, frame, segments::Cut};
use crate::{
    env::Next,
    error::{Error, LockError, Result},
    ids::Lsn,
    sync::{
        Arc, Event, Held, InterruptibleWait, Mutex, Rank,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// A wait for room of this length is worth a warning.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// Above this pressure operations are throttled, in percent.
const THROTTLE_PERCENT: u64 = 85;
/// The pause for each percent above it.
const PAUSE_PER_PERCENT: Duration = Duration::from_micros(100);
/// Bytes kept beyond all reservations for work that makes room: drops, checkpoints.
pub(super) const EMERGENCY_RESERVE_BYTES: u64 = 64 << 10;
/// Log for a change in addition to its keys and values, in bytes: records of the transaction, undo slices that it
/// makes, headers.
pub const LOG_OVERHEAD_BYTES: u64 = 4 << 10;
/// The size of all segments, in bytes, that an idle log keeps.
const IDLE_LOG_BYTES: u64 = 1 << 20;
/// Bytes of a marker frame.
const MARKER_BYTES: u64 = frame::span(0) as u64;
/// The interval at which the log is synced when commits do not sync it.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The error that blocks the log, if any.
#[derive(Debug)]
pub(super) struct Blocker {
    is_there: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Default for Blocker {
    fn default() -> Self {
        Self { is_there: AtomicBool::new(false), error: Mutex::new(Rank::Leaf, None) }
    }
}

impl Blocker {
    fn is_there(&self) -> bool {
        self.is_there.load(SeqCst)
    }

    fn check(&self) -> Result<()> {
        let error = if self.is_there() { self.error.lock().clone() } else { None };
        error.map_or(Ok(()), Err)
    }

    fn set(&self, error: Option<Error>) {
        // Usually there was no error and there is none.
        if error.is_some() || self.is_there() {
            let mut now = self.error.lock();
            self.is_there.store(error.is_some(), SeqCst);
            *now = error;
        }
    }
}

/// A log reservation: room for a thread to append at most this many bytes before the value is dropped.
#[derive(Debug)]
#[must_use = "the room is given back when this is dropped"]
pub struct LogReservation<'a> {
    log: &'a Log,
    bytes: u64,
}

impl LogReservation<'_> {
    /// Reserves more.
    ///
    /// # Errors
    /// As [`Log::reserve`]; the existing reservation remains.
    pub fn extend(&mut self, bytes: u64) -> Result<()> {
        self.join(self.log.reserve(bytes)?);
        Ok(())
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Leaves at most this much of it in force, for [`Log::attach_bytes`], and releases the rest. Returns how much it
    /// left.
    pub(crate) fn detach_bytes(mut self, at_most: u64) -> u64 {
        let left = self.bytes.min(at_most);
        self.bytes -= left;
        left
    }

    /// Merges two reservations.
    pub fn join(&mut self, mut more: Self) {
        debug_assert!(core::ptr::eq(self.log, more.log), "reservations of two logs are merged");
        self.bytes += core::mem::take(&mut more.bytes);
    }
}

impl Drop for LogReservation<'_> {
    fn drop(&mut self) {
        let before = self.log.reserved_bytes.fetch_sub(self.bytes, SeqCst);
        debug_assert!(before >= self.bytes, "more is given back than was reserved");
    }
}

impl Log {
    /// Returns the age of the log in bytes: the distance from its low-water mark to its end.
    pub fn age(&self) -> u64 {
        self.reserved.load(SeqCst).saturating_sub(self.low_water_mark.load(SeqCst))
    }

    /// Returns the low-water mark that was set last.
    pub fn low_water_mark(&self) -> Lsn {
        Lsn(self.low_water_mark.load(SeqCst))
    }

    /// Returns the size that the age is kept below, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the urgency of raising the low-water mark: the age in percent of the size. From 100 on operations wait.
    pub fn pressure(&self) -> u64 {
        self.age().saturating_mul(100) / self.size
    }

    /// Sets the event that is notified when the age exceeds half of the size, and when a thread waits for the
    /// low-water mark. Only the first call takes effect.
    pub fn set_checkpointer(&self, wake: Arc<Event>) {
        let _ = self.checkpointer.set(wake);
    }

    pub(super) fn wake_checkpointer_if_old(&self) {
        if self.pressure() >= 50
            && let Some(wake) = self.checkpointer.get()
        {
            wake.notify();
        }
    }

    /// Takes over a reservation that [`LogReservation::detach_bytes`] left in force.
    pub(crate) fn attach_bytes(&self, bytes: u64) -> LogReservation<'_> {
        debug_assert!(bytes <= self.reserved_bytes(), "a reservation is taken up that was not left in force");
        LogReservation { log: self, bytes }
    }

    /// Waits until the log has room for an operation that appends this many bytes, and reserves them:
    /// [`Log::wait_for_room`], then [`Log::reserve`].
    ///
    /// # Errors
    /// A full file system, or another failure to write, before anything was changed; the failure that poisoned the
    /// database.
    pub(crate) fn admit(&self, bytes: u64) -> Result<LogReservation<'_>> {
        self.wait_for_room(bytes)?;
        self.reserve(bytes)
    }

    /// Waits until the low-water mark leaves room for an operation that appends this many bytes. The caller holds no
    /// latch and no lock that a checkpoint or a page cleaner needs.
    ///
    /// # Errors
    /// As [`Log::admit`].
    pub fn wait_for_room(&self, bytes: u64) -> Result<()> {
        self.await_room(bytes, false)
    }

    /// As [`Log::wait_for_room`], for a call that the interrupt of its thread may end.
    ///
    /// # Errors
    /// As [`Log::admit`]; [`LockError::Interrupted`].
    pub fn wait_for_room_interruptibly(&self, bytes: u64) -> Result<()> {
        self.await_room(bytes, true)
    }

    fn await_room(&self, bytes: u64, is_interruptible: bool) -> Result<()> {
        // A single operation is admitted whatever its size.
        let bytes = bytes.min(self.size / 2);
        let room = || self.age() + bytes <= self.size;
        if room() {
            self.throttle();
        } else {
            self.counters.waits.fetch_add(1, Relaxed);
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
            let waiting = if is_interruptible {
                InterruptibleWait::begin(&self.room)
            } else {
                InterruptibleWait::never()
            };
            let is_over = || room() || hopeless() || waiting.is_interrupted();
            self.env.wait_unlatched(&self.room, &mut || is_over());
            let took = self.env.now().saturating_sub(before);
            self.counters.longest_wait.fetch_max(took.as_nanos() as u64, Relaxed);
            if took >= LONG_WAIT {
                tracing::warn!(
                    target: "windfall::log",
                    ms = took.as_millis() as u64, age = self.age(), size = self.size,
                    "a change has waited for room in the log: dirty pages are written too slowly",
                );
            }
            if !room() {
                self.unflushed.check()?;
                self.unrecorded.check()?;
                if waiting.is_interrupted() {
                    self.health.check()?;
                    return Err(LockError::Interrupted.into());
                }
            }
        }
        self.health.check()?;
        self.unprepared.check()
    }

    /// Throttles operations before the log is full, each a little, so that the work that makes room keeps up and no
    /// operation waits for long.
    fn throttle(&self) {
        let excess = || self.pressure().saturating_sub(THROTTLE_PERCENT) as u32;
        if excess() > 0 {
            let pause = PAUSE_PER_PERCENT * excess();
            self.env.wait_for(&self.room, pause, &mut || excess() == 0 || self.health.is_poisoned());
        }
    }

    /// As [`Log::admit`], but without waiting for the low-water mark: for small work that raising the mark depends on.
    ///
    /// # Errors
    /// As [`Log::admit`].
    pub(crate) fn admit_now(&self, bytes: u64) -> Result<LogReservation<'_>> {
        self.unprepared.check()?;
        self.reserve(bytes)
    }

    /// As [`Log::admit`], but never waits, whatever blocks other operations, as long as a prepared segment has space:
    /// for work that makes room (drops, checkpoints), and for records of work already done.
    ///
    /// # Errors
    /// As [`Log::admit`], if the prepared segment is used up.
    pub(crate) fn admit_freeing(&self, bytes: u64) -> Result<LogReservation<'_>> {
        self.reserve_before(bytes, 0)
    }

    /// As [`Log::admit_freeing`], for rollback: half of the bytes kept for work that makes room remain for that
    /// work.
    ///
    /// # Errors
    /// As [`Log::admit_freeing`].
    pub(crate) fn admit_rollback(&self, bytes: u64) -> Result<LogReservation<'_>> {
        self.reserve_before(bytes, EMERGENCY_RESERVE_BYTES / 2)
    }

    /// Reserves this many bytes for an operation that has been admitted. A caller that reserves more may hold latches:
    /// this never waits for the low-water mark.
    ///
    /// # Errors
    /// When no segment can be made for them; the failure that poisoned the database.
    pub fn reserve(&self, bytes: u64) -> Result<LogReservation<'_>> {
        self.reserve_before(bytes, EMERGENCY_RESERVE_BYTES)
    }

    /// Reserves bytes and makes sure that the segments for them exist. The worker prepares segments ahead. If it is
    /// late, a full disk is found here, before anything is changed; the leader of group commit would find it too late.
    fn reserve_before(&self, bytes: u64, kept: u64) -> Result<LogReservation<'_>> {
        self.health.check()?;
        let ready = |upto| self.segments.ready(upto).inspect_err(|error| self.warn_of_refusal(error));
        ready(self.needed(bytes, kept))?;
        // In most cases this is ready, too. If not, others have reserved something since, or the log was cut.
        let (reservation, needed) = self.count_reservation(bytes, kept);
        ready(needed)?;
        Ok(reservation)
    }

    /// Returns the position below which segments must be prepared for a reservation that does not count yet.
    fn needed(&self, bytes: u64, kept: u64) -> Lsn {
        Lsn(self.end().0 + self.reserved_bytes() + bytes + kept)
    }

    /// Emits an event of a reservation that was refused, unless there was one just now.
    #[cold]
    fn warn_of_refusal(&self, error: &Error) {
        if self.refused.is_due(self.env.now()) {
            tracing::warn!(target: "windfall::log", %error, "changes are refused: the log cannot be extended");
        }
    }

    /// Counts a reservation, and returns the position below which segments must be prepared for it. There seems to be
    /// room: a request that is refused and counts meanwhile would take the bytes kept from work that makes room.
    fn count_reservation(&self, bytes: u64, kept: u64) -> (LogReservation<'_>, Lsn) {
        // Add the reservation first and read the end afterwards: bytes appended under an older reservation move from
        // the one count to the other.
        let reserved_bytes = self.reserved_bytes.fetch_add(bytes, SeqCst) + bytes;
        self.reserved_ever.add(bytes);
        let needed = Lsn(self.end().0 + reserved_bytes + kept);
        (LogReservation { log: self, bytes }, needed)
    }

    /// Returns the bytes reserved at the moment.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(SeqCst)
    }

    /// As [`Log::reserve`], if the segments for it are prepared: for callers that hold a latch. `None` when segments
    /// would have to be made.
    ///
    /// # Errors
    /// The failure that poisoned the database.
    pub fn try_reserve(&self, bytes: u64) -> Result<Option<LogReservation<'_>>> {
        self.health.check()?;
        if !self.segments.is_ready(self.needed(bytes, EMERGENCY_RESERVE_BYTES)) {
            return Ok(None);
        }
        let (reservation, needed) = self.count_reservation(bytes, EMERGENCY_RESERVE_BYTES);
        Ok(self.segments.is_ready(needed).then_some(reservation))
    }

    /// Raises the low-water mark: nothing below it will be read again. The control file has recorded it durably.
    pub fn raise_low_water_mark(&self, low_water_mark: Lsn) {
        debug_assert!(low_water_mark <= self.durable(), "a low-water mark above the durable end");
        self.low_water_mark.fetch_max(low_water_mark.0, SeqCst);
        self.segments.retire(low_water_mark);
        self.room.notify();
        self.wake.notify();
    }

    /// Records why pages cannot be written, so that the low-water mark may not rise for long: waiting operations get
    /// this error. `None` when pages can be written.
    pub(crate) fn set_unflushed(&self, error: Option<Error>) {
        self.set_obstacle(&self.unflushed, error);
    }

    /// As [`Log::set_unflushed`], for the records of created files.
    pub(crate) fn set_unrecorded(&self, error: Option<Error>) {
        self.set_obstacle(&self.unrecorded, error);
    }

    fn set_obstacle(&self, obstacle: &Blocker, error: Option<Error>) {
        let is_there = error.is_some();
        obstacle.set(error);
        // The disappearance of an obstacle makes no room by itself, so waiters need no wakeup.
        if is_there {
            self.room.notify();
        }
    }

    /// Returns the event that wakes the background worker before its time: pass it to `Env::spawn` with [`Log::step`].
    pub fn wake(&self) -> Arc<Event> {
        self.wake.clone()
    }

    /// Returns the end of the log without a marker at its end: it stays the same while nothing happens.
    pub(crate) fn end_of_groups(&self) -> Lsn {
        let end = self.end().0;
        Lsn(if end == self.marked.load(SeqCst) { end.saturating_sub(MARKER_BYTES) } else { end })
    }

    /// Returns whether the log has so many segments, or such large ones, that an idle database should give them up.
    pub(crate) fn is_oversized(&self) -> bool {
        self.segments.total() > IDLE_LOG_BYTES
    }

    /// Continues in a small segment, if everything is durable and little is reserved. The large one is retired when the
    /// low-water mark reaches the end of the log of now. Returns whether the current segment is a small one; if not, it
    /// may be after another call. Commits wait meanwhile, so the log should be idle.
    ///
    /// # Errors
    /// I/O; the log is as it was then. The failure that poisoned the database.
    pub(crate) fn cut(&self) -> Result<bool> {
        drop(Held::take(Rank::LogWrite));
        let mut writer = self.become_writer()?;
        self.health.check()?;
        let at = self.written();
        if at != self.end() || at != self.durable() {
            return Ok(false);
        }
        // What was appended under a reservation counts in the end before it does not count as reserved any more.
        let needed = || {
            let reserved = self.reserved_bytes() + EMERGENCY_RESERVE_BYTES;
            Lsn(self.end().0 + reserved)
        };
        let done = self.segments.cut(at, &needed);
        writer.leave_segment();
        drop(writer);
        self.wake.notify();
        let done = done?;
        if done == Cut::BetweenSegments {
            // It moves the end into the next segment, which can then be cut.
            self.mark()?;
            self.sync_to(self.end())?;
        }
        Ok(done == Cut::Small)
    }

    /// Performs one step of the background worker: prepares a segment ahead, writes the half of the buffer that is
    /// full, removes an unneeded segment, or syncs once a second.
    pub fn step(&self) -> Next {
        if self.health.is_poisoned() {
            return Next::Idle(SYNC_INTERVAL);
        }
        match self.segments.prepare(self.wanted()) {
            Ok(prepared) => {
                self.set_obstacle(&self.unprepared, None);
                if prepared {
                    return Next::Again;
                }
            }
            Err(error) => {
                // Nothing is lost yet: new operations are refused, those in progress still have the prepared segment.
                tracing::warn!(target: "windfall::log", %error, "no log segment could be prepared ahead");
                self.set_obstacle(&self.unprepared, Some(error));
            }
        }
        // The sync of each second comes first: while the buffer fills as fast as it is written, it would never come.
        if self.is_to_be_written(self.written().0) && self.since_last_sync() < SYNC_INTERVAL {
            // A failure has poisoned the database.
            return self.write_to(self.end()).map_or(Next::Idle(SYNC_INTERVAL), |()| Next::Again);
        }
        if self.remove_segment() { Next::Again } else { self.every_second() }
    }

    /// A clock that jumps forwards or backwards does not keep the log from becoming durable.
    fn since_last_sync(&self) -> Duration {
        self.env.now().abs_diff(Duration::from_nanos(self.last_sync_at.load(Relaxed)))
    }

    /// Returns the position below which segments are to be prepared.
    fn wanted(&self) -> Lsn {
        let reserved = self.reserved_bytes() + EMERGENCY_RESERVE_BYTES;
        let end = self.end();
        Lsn(end.0 + reserved.max(self.segments.wanted_ahead(end)))
    }

    /// Removes an unneeded segment. Returns whether there was one.
    fn remove_segment(&self) -> bool {
        self.segments.remove_one().unwrap_or_else(|error| {
            tracing::warn!(
                target: "windfall::log",
                %error, "a log segment that is not needed could not be removed",
            );
            false
        })
    }

    /// Removes all unneeded segments. Must be called after the background worker has stopped.
    pub fn tidy(&self) {
        while self.remove_segment() {}
    }

    /// Syncs what lazy commits have left, then appends a marker that records the durable end: damage below it is then
    /// distinguished from a torn tail.
    fn every_second(&self) -> Next {
        let since = self.since_last_sync();
        if since < SYNC_INTERVAL {
            return Next::Idle(SYNC_INTERVAL.checked_sub(since).unwrap_or(SYNC_INTERVAL));
        }
        let done = if self.end() > self.durable() {
            self.sync_to(self.end())
        } else if self.durable() > Lsn(self.marked.load(SeqCst)) {
            self.mark()
        } else {
            Ok(())
        };
        if let Err(error) = done {
            tracing::error!(target: "windfall::log", %error, "the log could not be synced");
        }
        Next::Idle(SYNC_INTERVAL)
    }

    /// Appends a marker and writes it. If there is no room for it, none is needed: it only strengthens the proof.
    fn mark(&self) -> Result<()> {
        let Ok(_room) = self.admit_freeing(MARKER_BYTES) else { return self.health.check() };
        let (start, end) = self.begin_group().append(&[])?;
        debug_assert!(end.0 - start.0 == MARKER_BYTES, "a marker is larger than its reservation");
        self.marked.fetch_max(end.0, SeqCst);
        self.write_to(end)
    }

    /// Makes everything durable, and appends a marker that proves it. Groups that are appended while this runs may be
    /// left out.
    ///
    /// # Errors
    /// A failure poisons the database.
    pub fn finish(&self) -> Result<Lsn> {
        self.sync_to(self.end())?;
        self.mark()?;
        let end = self.end();
        self.sync_to(end)?;
        let durable = self.durable();
        assert!(durable >= end, "the log was synced and is not durable");
        Ok(durable)
    }

    /// Returns the counters of the log so far.
    pub fn metrics(&self) -> LogMetrics {
        let counts = &self.counters;
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
