//! Writing and syncing: group commit in the committing threads.
//!
//! **Purpose.** Whoever needs the log written or durable up to a position and finds nobody at it becomes the leader: it
//! writes every finished frame, syncs once for all of them, and tells everybody. The others wait for the outcome.
//!
//! **Invariants.** One leader at a time: whoever gets the writer's mutex by trying. Followers wait on an event, never
//! on the mutex. `written` moves only after the ring behind it is clear, and so hands out that space; `durable` moves
//! only after a sync that worked. A failing write or sync poisons the database before leadership ends, so whoever
//! waits is told.
//!
//! **May touch.** `ids`, `error`, `disk`, `sync`, `ring`, `segments`.

use core::time::Duration;

use super::{Log, frame::BLOCK};
use crate::{
    disk::FileName,
    error::{DiskError, Error, Result},
    ids::Lsn,
    sync::{
        Bug, Held, MutexGuard, Rank,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
        planted,
    },
};

/// The most that is written at once, in bytes.
const CHUNK: u64 = 1 << 20;
/// The longest that a leader waits for company.
const MOMENT_MAX: Duration = Duration::from_millis(1);
/// When waiting for company was in vain again and again, one sync in 64 still tries.
const RARER_MAX: u64 = 6;

/// What the leader works with.
#[derive(Debug, Default)]
pub(super) struct Writer {
    buffer: Vec<u8>,
    /// Segments written to since they were synced.
    unsynced: Vec<u64>,
}

/// Leadership. It ends with the value, and then those who wait are told: the fields are dropped in this order.
struct Lead<'a> {
    writer: MutexGuard<'a, Writer>,
    _end: Progress<'a>,
}

/// Tells those who wait for the log's progress when it is dropped.
struct Progress<'a>(&'a Log);

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if !planted(Bug::LeaderTellsNobody) {
            self.0.progress.notify();
            self.0.synced.notify();
        }
    }
}

/// Whoever enters a block writes all of it, zeros behind the end: where a segment is used again and is in no cache any
/// more, the system would have to read the block before it could change a part of it, while everybody waits.
fn pad(buffer: &mut Vec<u8>, offset: u64) {
    let block = BLOCK as u64;
    let end = offset + buffer.len() as u64;
    if (offset - 1) / block != (end - 1) / block {
        let padded = end.next_multiple_of(block) - offset;
        buffer.resize(padded as usize, 0);
    }
}

impl Log {
    /// Writes the log up to a position, without making it durable: it then survives the end of the process. A position
    /// beyond the end means the end.
    ///
    /// # Errors
    /// A failure poisons the database.
    pub fn write_to(&self, lsn: Lsn) -> Result<()> {
        self.advance(lsn, false)
    }

    /// Makes the log durable up to a position, together with whatever else is in the buffer by then. A position beyond
    /// the end means the end.
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
        // Leader or not, it waits: for the system, or for the leader.
        drop(Held::take(Rank::LogWrite));
        while !reached() {
            self.health.check()?;
            if let Some(writer) = self.writer.try_lock() {
                let mut lead = Lead { writer, _end: Progress(self) };
                if !reached() {
                    self.lead(&mut lead.writer, goal, sync)?;
                }
            } else {
                self.counts.follows.fetch_add(1, Relaxed);
                let progress = if sync { &self.synced } else { &self.progress };
                self.env.wait(progress, &mut || {
                    reached() || !self.writer.is_locked() || self.health.is_poisoned()
                });
            }
        }
        Ok(())
    }

    fn lead(&self, writer: &mut Writer, goal: u64, sync: bool) -> Result<()> {
        // It may have been closed since this was looked at.
        self.health.check()?;
        if sync {
            self.gather();
        }
        loop {
            let from = Lsn(self.written.load(SeqCst));
            let upto = self.ring.published(from);
            if upto > from {
                self.write_out(writer, from, upto).map_err(|error| self.health.poison(&error.to_string()))?;
            } else if from.0 < goal {
                // Someone has reserved this space and is still copying. If it waits for room in the ring, there is
                // some: everything before it has just been written, and it was told.
                self.env
                    .wait(&self.published, &mut || self.ring.is_published(from) || self.health.is_poisoned());
                self.health.check()?;
            } else {
                break;
            }
            if upto.0 >= goal {
                break;
            }
        }
        if sync {
            self.sync_written(writer).map_err(|error| {
                if planted(Bug::FailureIsForgotten) {
                    return Error::Closed;
                }
                self.health.poison(&error.to_string())
            })?;
        }
        Ok(())
    }

    /// Gives those who are about to commit a moment to come along. Without it two halves of the committers take turns,
    /// each syncing while the other one appends: twice the syncs, and half the commits. Whoever was here when the last
    /// sync ended is expected back; a moment in vain makes the next ones rarer.
    /// One thread alone never waits here, so a simulation does not either.
    fn gather(&self) {
        let expected = self.served.load(Relaxed) + self.crowd.load(Relaxed);
        let vain = self.vain.load(Relaxed);
        let turn = self.turns.fetch_add(1, Relaxed);
        let before = self.arrived.load(SeqCst);
        if before < expected && turn.is_multiple_of(1 << vain.min(RARER_MAX)) {
            let moment = self.last_sync().min(MOMENT_MAX);
            self.expected.store(expected, SeqCst);
            self.arrival.wait_for(moment, || self.arrived.load(SeqCst) >= expected);
            self.expected.store(u64::MAX, SeqCst);
            let in_vain = self.arrived.load(SeqCst) == before;
            self.vain.store(if in_vain { vain.saturating_add(1) } else { 0 }, Relaxed);
        }
    }

    /// Lets everybody who waits for the log see that the database has stopped: whoever puts the log to work has
    /// [`Health::when_stopped`](crate::health::Health::when_stopped) call it.
    pub fn tell_stopped(&self) {
        self.published.notify();
        self.room.notify();
        self.progress.notify();
        self.synced.notify();
    }

    /// Waits until nobody is writing, after the database was closed: nobody will again.
    pub fn quiesce(&self) {
        self.tell_stopped();
        drop(self.writer.lock());
    }

    fn write_out(&self, writer: &mut Writer, from: Lsn, upto: Lsn) -> Result<()> {
        let geometry = self.segments.geometry();
        let mut at = from;
        while at < upto {
            let number = geometry.number(at);
            self.segments.ready(number)?;
            let bytes = (upto.0 - at.0).min(geometry.left(at)).min(CHUNK) as usize;
            self.ring.copy_out(at, bytes, &mut writer.buffer);
            if writer.unsynced.last() != Some(&number) {
                writer.unsynced.push(number);
            }
            let offset = geometry.offset(at);
            pad(&mut writer.buffer, offset);
            self.disk.write(FileName::Log(number), offset, &writer.buffer)?;
            if planted(Bug::SpaceGivenBeforeItIsClear) {
                self.written.store(at.0 + bytes as u64, SeqCst);
            }
            self.ring.clear(at, bytes);
            at.0 += bytes as u64;
            self.written.store(at.0, SeqCst);
            self.progress.notify_ordered();
            // Only the leader counts here.
            let more = |count: &AtomicU64, n| count.store(count.load(Relaxed) + n, Relaxed);
            more(&self.counts.writes, 1);
            more(&self.counts.bytes, bytes as u64);
        }
        if geometry.number(upto) != geometry.number(from) {
            self.wake.notify();
        }
        self.press();
        Ok(())
    }

    fn sync_written(&self, writer: &mut Writer) -> Result<(), DiskError> {
        let written = self.written.load(SeqCst);
        if self.durable.load(SeqCst) >= written {
            return Ok(());
        }
        // Whoever has arrived by now has appended before: this sync serves it, and perhaps some more.
        let (served, arrived) = (self.served.load(Relaxed), self.arrived.load(SeqCst));
        if planted(Bug::DurableBeforeTheSync) {
            self.durable.store(written, SeqCst);
        }
        for number in &writer.unsynced {
            let before = self.env.now();
            self.syncing_since.store((before.as_nanos() as u64).max(1), Relaxed);
            let done =
                if planted(Bug::LogNotSynced) { Ok(()) } else { self.disk.sync(FileName::Log(*number)) };
            self.syncing_since.store(0, Relaxed);
            done?;
            let now = self.env.now();
            self.counts.fsyncs.fetch_add(1, Relaxed);
            let took = now.saturating_sub(before).as_nanos() as u64;
            self.last_sync_took.store(took, Relaxed);
            self.longest_sync.fetch_max(took, Relaxed);
            self.last_sync_at.store(now.as_nanos() as u64, Relaxed);
        }
        writer.unsynced.clear();
        // Those who were served are expected back, and those who came meanwhile wait already.
        self.crowd.store(self.arrived.load(SeqCst) - served, Relaxed);
        self.served.store(arrived, Relaxed);
        self.durable.store(written, SeqCst);
        Ok(())
    }

    /// How long the last sync of the log took.
    pub fn last_sync(&self) -> Duration {
        Duration::from_nanos(self.last_sync_took.load(Relaxed))
    }

    /// How long the longest sync since the last call took, or has taken that is under way; zero if there was none: what
    /// the worker that loads the device adapts its pace to. For one caller.
    pub fn take_longest_sync(&self) -> Duration {
        let ended = Duration::from_nanos(self.longest_sync.swap(0, Relaxed));
        match self.syncing_since.load(Relaxed) {
            0 => ended,
            // However short: somebody waits.
            since => self.env.now().saturating_sub(Duration::from_nanos(since - 1)).max(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_entered_with_all_of_it() {
        let padded = |offset, bytes| {
            let mut buffer = vec![1; bytes];
            pad(&mut buffer, offset);
            assert!(buffer[..bytes].iter().all(|b| *b == 1) && buffer[bytes..].iter().all(|b| *b == 0));
            buffer.len()
        };
        let block = BLOCK as u64;
        assert_eq!(padded(block, 80), BLOCK);
        assert_eq!(padded(block + 80, 80), 80, "the block was entered before");
        assert_eq!(padded(2 * block - 80, 80), 80, "the end of a block is not the next one");
        assert_eq!(padded(2 * block - 80, 81), 80 + BLOCK);
        assert_eq!(padded(block, BLOCK), BLOCK);
        assert_eq!(padded(block + 8, 3 * BLOCK), 4 * BLOCK - 8);
    }
}
