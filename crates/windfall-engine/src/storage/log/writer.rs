//! Writing and syncing: group commit in the committing threads.
//!
//! **Purpose.** A thread that needs the log written or durable up to a position, and finds no other thread doing that,
//! becomes the leader: it writes every finished frame, syncs once for all of them, and wakes all waiters. The other
//! threads wait for the outcome. A thread that needs the log only written does not wait for a sync: it writes while the
//! sync runs.
//!
//! **Invariants.** There is one leader of syncs at a time (checked by `log/writer.rs::delay_for_group_commit`), and one
//! writer (checked by `log/writer.rs::write_out`): the holder of the respective mutex, obtained by `try_lock`. The
//! leader of a sync becomes the writer, too, for as long as it writes (test:
//! `a_commit_that_only_writes_does_not_wait_for_a_sync`). A thread that must wait for leadership waits on an event and
//! not on the mutex, so it ends with the database, even if the leader does not (test:
//! `a_follower_gets_the_error_while_the_leader_still_syncs`). `written` moves only after the ring below it is clear,
//! because it makes that space available (test: `a_full_ring_loses_and_mixes_nothing`). `durable` moves only after a
//! sync that succeeded, to the position up to which the log was written when that sync collected its segments (tests:
//! `an_acknowledged_commit_is_written_and_no_thread_waits_for_ever`,
//! `writes_during_a_sync_become_durable_with_the_next_sync`). A failed write or sync poisons the database before
//! leadership ends, so every waiter gets the error (tests: `every_write_fails`,
//! `a_failing_sync_is_reported_to_every_commit_and_acknowledges_none`).

use core::time::Duration;

use smallvec::SmallVec;

use super::{Log, frame::LOG_BLOCK_BYTES, segments::Segment};
use crate::{
    disk::FileName,
    error::{DiskError, Result},
    ids::Lsn,
    sync::{
        Event, Held, MutexGuard, Rank,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// The maximum length of one write, in bytes.
const WRITE_BYTES: u64 = 1 << 20;
/// The maximum group-commit delay: the time for which a leader waits for other committers before it syncs.
const GROUP_COMMIT_DELAY_MAX: Duration = Duration::from_millis(1);
/// The maximum number of fruitless delays that count: after this many in a row, one sync in 2^6 = 64 is still delayed.
const FRUITLESS_DELAYS_MAX: u64 = 6;

/// The state of the writer.
#[derive(Debug, Default)]
pub(super) struct Writer {
    buffer: Vec<u8>,
    /// The segment that is written to.
    current: Option<Segment>,
    /// Segments written to since the last sync collected them.
    unsynced: Segments,
}

/// Leadership. It ends with the value, and then the waiters are woken: the fields are dropped in this order.
pub(super) struct Lead<'a, T> {
    guard: MutexGuard<'a, T>,
    _end: NotifyOnDrop<'a>,
}

impl<'a, T> Lead<'a, T> {
    fn new(guard: MutexGuard<'a, T>, followers: &'a Event) -> Self {
        Self { guard, _end: NotifyOnDrop(followers) }
    }
}

impl Lead<'_, Writer> {
    /// The next write finds its segment again. All that was written is durable.
    pub(super) fn leave_segment(&mut self) {
        debug_assert!(self.guard.unsynced.is_empty(), "a segment is left that must still be synced");
        self.guard.current = None;
    }
}

/// Wakes the followers when it is dropped.
struct NotifyOnDrop<'a>(&'a Event);

impl Drop for NotifyOnDrop<'_> {
    fn drop(&mut self) {
        self.0.notify();
    }
}

/// The starts of segments, most of the time of one.
type Segments = SmallVec<[Lsn; 4]>;

/// The segments that a sync covers.
struct Unsynced {
    segments: Segments,
    /// The position up to which they are written.
    written: u64,
    /// The number of requests for a sync so far: approximately those that this sync serves. Only the group-commit delay
    /// uses it.
    arrived: u64,
}

/// Pads a write that enters a new block with zeros to the block's end. In a recycled segment that is no longer cached,
/// the system would otherwise have to read the block before changing a part of it, while every committer waits.
fn pad(buffer: &mut Vec<u8>, offset: u64) {
    let block = LOG_BLOCK_BYTES as u64;
    debug_assert!(offset >= block && !buffer.is_empty(), "a write is not after the segment's header");
    let end = offset + buffer.len() as u64;
    if (offset - 1) / block != (end - 1) / block {
        let padded = end.next_multiple_of(block) - offset;
        debug_assert!(padded as usize >= buffer.len(), "padding cuts off what is to be written");
        buffer.resize(padded as usize, 0);
    }
}

impl Log {
    /// Writes the log up to a position, without making it durable: it then survives the end of the process. A position
    /// beyond the end means the end.
    ///
    /// # Errors
    /// A failure poisons the database.
    pub(crate) fn write_to(&self, lsn: Lsn) -> Result<()> {
        self.advance(lsn, false)
    }

    /// Makes the log durable up to a position, together with everything else that is in the buffer by then. A position
    /// beyond the end means the end.
    ///
    /// # Errors
    /// A failure poisons the database.
    pub fn sync_to(&self, lsn: Lsn) -> Result<()> {
        self.advance(lsn, true)
    }

    fn advance(&self, lsn: Lsn, sync: bool) -> Result<()> {
        let goal = lsn.min(self.end()).0;
        let reached = || if sync { &self.durable } else { &self.written }.load(SeqCst) >= goal;
        if reached() {
            return Ok(());
        }
        if sync {
            let arrived = self.arrived.fetch_add(1, SeqCst) + 1;
            if arrived >= self.expected.load(SeqCst) {
                self.arrival.notify();
            }
        }
        // Leader or not, the thread waits: for the system, or for the leader.
        drop(Held::take(if sync { Rank::LogSync } else { Rank::LogWrite }));
        let (followers, is_led): (&Event, &dyn Fn() -> bool) = if sync {
            (&self.synced, &|| self.syncer.is_locked())
        } else {
            (&self.progress, &|| self.writer.is_locked())
        };
        while !reached() {
            self.health.check()?;
            let has_led = if sync { self.lead_sync(goal)? } else { self.lead_write(goal)? };
            if !has_led {
                self.counters.follows.fetch_add(1, Relaxed);
                self.env.wait(followers, &mut || reached() || !is_led() || self.health.is_poisoned());
            }
        }
        Ok(())
    }

    /// Writes up to a position, unless another thread is the writer. Returns whether this thread was.
    fn lead_write(&self, goal: u64) -> Result<bool> {
        let Some(writer) = self.writer.try_lock() else { return Ok(false) };
        let mut lead = Lead::new(writer, &self.progress);
        if self.written.load(SeqCst) < goal {
            self.write_up_to(&mut lead.guard, goal)?;
        }
        Ok(true)
    }

    /// Becomes the writer, after the current one.
    pub(super) fn become_writer(&self) -> Result<Lead<'_, Writer>> {
        loop {
            if let Some(writer) = self.writer.try_lock() {
                return Ok(Lead::new(writer, &self.progress));
            }
            self.env.wait(&self.progress, &mut || !self.writer.is_locked() || self.health.is_poisoned());
            self.health.check()?;
        }
    }

    /// Makes the log durable up to a position, unless another thread leads. Returns whether this thread led.
    fn lead_sync(&self, goal: u64) -> Result<bool> {
        let Some(syncer) = self.syncer.try_lock() else { return Ok(false) };
        let _lead = Lead::new(syncer, &self.synced);
        if self.durable.load(SeqCst) >= goal {
            return Ok(true);
        }
        // The database may have been closed since the last check.
        self.health.check()?;
        self.delay_for_group_commit();
        let unsynced = {
            let mut lead = self.become_writer()?;
            self.write_up_to(&mut lead.guard, goal)?;
            let segments = core::mem::take(&mut lead.guard.unsynced);
            Unsynced { segments, written: self.written.load(SeqCst), arrived: self.arrived.load(SeqCst) }
        };
        debug_assert!(unsynced.written >= goal, "the log is synced before it is written");
        self.sync_written(&unsynced).map_err(|error| self.health.poison(&error.to_string()))?;
        #[cfg(not(feature = "model"))]
        debug_assert!(self.durable.load(SeqCst) >= goal, "a sync has ended and its goal is not durable");
        Ok(true)
    }

    /// Writes complete frames up to a position, and those above it that are already complete.
    fn write_up_to(&self, writer: &mut Writer, goal: u64) -> Result<()> {
        // The database may have been closed since the last check.
        self.health.check()?;
        loop {
            let from = Lsn(self.written.load(SeqCst));
            let upto = self.ring.published(from);
            if upto > from {
                self.write_out(writer, from, upto).map_err(|error| self.health.poison(&error.to_string()))?;
            } else if from.0 < goal {
                // Another thread has reserved this space and is still copying. If that thread waits for room in the
                // ring, there is some: everything before it has just been written, and the thread was notified.
                self.env
                    .wait(&self.published, &mut || self.ring.is_published(from) || self.health.is_poisoned());
                self.health.check()?;
            } else {
                return Ok(());
            }
            if upto.0 >= goal {
                return Ok(());
            }
        }
    }

    /// The group-commit delay: gives threads that are about to commit a moment to join. Without it two halves of the
    /// committers alternate, each syncing while the other one appends: twice the syncs, and half the commits. The
    /// threads present when the last sync ended are expected to return; a fruitless delay makes the next ones rarer.
    /// One thread alone is never delayed here, so a simulation is not either.
    fn delay_for_group_commit(&self) {
        let expected = self.served.load(Relaxed) + self.recent_committers.load(Relaxed);
        let fruitless_delays = self.fruitless_delays.load(Relaxed);
        let group_commit = self.group_commits.fetch_add(1, Relaxed);
        let before = self.arrived.load(SeqCst);
        if before < expected && group_commit.is_multiple_of(1 << fruitless_delays.min(FRUITLESS_DELAYS_MAX)) {
            let delay = self.last_sync().min(GROUP_COMMIT_DELAY_MAX);
            #[cfg(not(feature = "model"))]
            debug_assert!(self.expected.load(SeqCst) == u64::MAX, "two leaders wait for committers");
            self.expected.store(expected, SeqCst);
            self.arrival.wait_for(delay, || self.arrived.load(SeqCst) >= expected);
            self.expected.store(u64::MAX, SeqCst);
            let was_fruitless = self.arrived.load(SeqCst) == before;
            self.fruitless_delays
                .store(if was_fruitless { fruitless_delays.saturating_add(1) } else { 0 }, Relaxed);
        }
    }

    /// Wakes every thread that waits for the log, so that it sees that the database has stopped. The creator of the
    /// log registers this with [`Health::when_stopped`](crate::health::Health::when_stopped).
    pub fn wake_all_waiters(&self) {
        self.published.notify();
        self.room.notify();
        self.progress.notify();
        self.synced.notify();
    }

    /// Waits until no thread is writing, after the database was closed: no thread will write again.
    pub fn quiesce(&self) {
        self.wake_all_waiters();
        drop(self.syncer.lock());
        drop(self.writer.lock());
    }

    fn write_out(&self, writer: &mut Writer, from: Lsn, upto: Lsn) -> Result<()> {
        #[cfg(not(feature = "model"))]
        debug_assert!(upto <= self.end(), "more is written than was reserved");
        #[cfg(not(feature = "model"))]
        debug_assert!(self.written.load(SeqCst) == from.0, "two threads write the log");
        let mut at = from;
        while at < upto {
            let segment = self.segment_to_write(writer, at)?;
            let bytes = (upto.0 - at.0).min(segment.left(at)).min(WRITE_BYTES) as usize;
            debug_assert!(bytes > 0 && bytes.is_multiple_of(8), "a write is some whole words of the ring");
            debug_assert!(
                writer.unsynced.last().is_none_or(|last| *last <= segment.start),
                "the log is written in another order than it was appended"
            );
            self.ring.copy_out(at, bytes, &mut writer.buffer);
            if writer.unsynced.last() != Some(&segment.start) {
                writer.unsynced.push(segment.start);
            }
            let offset = segment.offset(at);
            pad(&mut writer.buffer, offset);
            debug_assert!(writer.buffer.len() as u64 <= segment.left(at), "a write goes beyond its segment");
            self.disk.write(segment.file(), offset, &writer.buffer)?;
            self.ring.clear(at, bytes);
            at.0 += bytes as u64;
            self.written.store(at.0, SeqCst);
            self.progress.notify_ordered();
            // Only the writer updates these counters.
            let more = |count: &AtomicU64, n| count.store(count.load(Relaxed) + n, Relaxed);
            more(&self.counters.writes, 1);
            more(&self.counters.bytes, bytes as u64);
        }
        debug_assert!(at == upto, "another part of the log was written");
        // The worker prepares the next segment when half of the current one is used.
        let wanted = |segment| Lsn(upto.0 + self.segments.wanted_ahead_in(segment));
        if writer.current.is_some_and(|segment| !self.segments.is_ready(wanted(segment))) {
            self.wake.notify();
        }
        self.wake_checkpointer_if_old();
        Ok(())
    }

    /// Returns the segment that a position is written to.
    fn segment_to_write(&self, writer: &mut Writer, at: Lsn) -> Result<Segment> {
        if let Some(segment) = writer.current.filter(|segment| at < segment.end()) {
            return Ok(segment);
        }
        self.segments.ready(Lsn(at.0 + 1))?;
        let segment = self.segments.locate(at);
        writer.current = Some(segment);
        Ok(segment)
    }

    fn sync_written(&self, unsynced: &Unsynced) -> Result<(), DiskError> {
        let Unsynced { segments, written, arrived } = unsynced;
        let served = self.served.load(Relaxed);
        // This thread leads: no other one moves the durable position.
        // In a model, a load would be a step of its schedule.
        #[cfg(not(feature = "model"))]
        debug_assert!(self.durable.load(SeqCst) <= *written, "the log is durable beyond what is written");
        #[cfg(not(feature = "model"))]
        debug_assert!(
            segments.last() == Some(&self.segments.locate(Lsn(written - 1)).start),
            "the log is synced up to {written}, and not the segment of its last byte"
        );
        debug_assert!(*arrived >= served, "fewer requests have arrived than were served");
        // Bytes written from here on are for the next sync, however long this one takes.
        self.last_sync_at.store(self.env.now().as_nanos() as u64, Relaxed);
        for start in segments {
            let before = self.env.now();
            self.syncing_since.store((before.as_nanos() as u64).max(1), Relaxed);
            let done = self.disk.sync(FileName::Log(start.0));
            self.syncing_since.store(0, Relaxed);
            done?;
            let now = self.env.now();
            self.counters.fsyncs.fetch_add(1, Relaxed);
            let took = now.saturating_sub(before).as_nanos() as u64;
            self.last_sync_took.store(took, Relaxed);
            self.longest_sync.fetch_max(took, Relaxed);
        }
        // Served threads are expected to return, and threads that arrived meanwhile are waiting already.
        self.recent_committers.store(self.arrived.load(SeqCst) - served, Relaxed);
        self.served.store(*arrived, Relaxed);
        // Bytes that other threads have written meanwhile may be too late for this sync.
        self.durable.store(*written, SeqCst);
        self.notifications.wake_if_due(Lsn(*written));
        Ok(())
    }

    /// Returns the duration of the log's last sync.
    pub fn last_sync(&self) -> Duration {
        Duration::from_nanos(self.last_sync_took.load(Relaxed))
    }

    /// Returns the duration of the longest sync since the last call, including the elapsed time of a sync in progress;
    /// zero if there was none. The worker that loads the device adapts its pace to it. Only one caller may use it.
    pub(crate) fn take_longest_sync(&self) -> Duration {
        let ended = Duration::from_nanos(self.longest_sync.swap(0, Relaxed));
        match self.syncing_since.load(Relaxed) {
            0 => ended,
            // At least 1 ns, even if the sync has just begun: a thread is waiting.
            since => self.env.now().saturating_sub(Duration::from_nanos(since - 1)).max(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{
        super::tests::{new_database, open_in},
        *,
    };
    use crate::{env::RealEnv, sync::Arc};

    #[test]
    fn a_follower_gets_the_error_while_the_leader_still_syncs() {
        let disk = new_database();
        let life = open_in(disk.clone(), Arc::new(RealEnv::default()));
        let log = &life.log;
        let append = || log.begin_group().append(&[1; 100]).unwrap().1;
        // The segment already exists.
        log.sync_to(append()).unwrap();
        let end = append();
        disk.set_slow_sync(true);
        thread::scope(|scope| {
            let leader = scope.spawn(|| log.sync_to(end));
            while log.syncing_since.load(Relaxed) == 0 {
                thread::yield_now();
            }
            let arrived = log.arrived.load(SeqCst);
            let follower = scope.spawn(|| log.sync_to(end));
            while log.arrived.load(SeqCst) == arrived {
                thread::yield_now();
            }
            let _ = log.health.poison("stopped by a test");
            let patience = std::time::Instant::now() + Duration::from_mins(1);
            while !follower.is_finished() && std::time::Instant::now() < patience {
                thread::sleep(Duration::from_millis(1));
            }
            let has_ended = [&follower, &leader].map(thread::ScopedJoinHandle::is_finished);
            // Before any assertion: the scope waits for both threads.
            disk.set_slow_sync(false);
            assert_eq!(has_ended, [true, false]);
            follower.join().unwrap().unwrap_err();
            drop(leader.join().unwrap());
        });
    }

    #[test]
    fn a_block_is_entered_with_all_of_it() {
        let padded = |offset, bytes| {
            let mut buffer = vec![1; bytes];
            pad(&mut buffer, offset);
            assert!(buffer[..bytes].iter().all(|b| *b == 1) && buffer[bytes..].iter().all(|b| *b == 0));
            buffer.len()
        };
        let block = LOG_BLOCK_BYTES as u64;
        assert_eq!(padded(block, 80), LOG_BLOCK_BYTES);
        assert_eq!(padded(block + 80, 80), 80, "the block was entered before");
        assert_eq!(padded(2 * block - 80, 80), 80, "the end of a block is not the next one");
        assert_eq!(padded(2 * block - 80, 81), 80 + LOG_BLOCK_BYTES);
        assert_eq!(padded(block, LOG_BLOCK_BYTES), LOG_BLOCK_BYTES);
        assert_eq!(padded(block + 8, 3 * LOG_BLOCK_BYTES), 4 * LOG_BLOCK_BYTES - 8);
    }
}
