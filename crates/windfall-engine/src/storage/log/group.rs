//! Appending: reservation by one atomic addition, and the low-water mark of groups being appended.
//!
//! **Purpose.** A mini-transaction appends its redo as one group and then registers its pages dirty. In between, only
//! its slot here informs a checkpoint that pages are about to become dirty from an older LSN on.
//!
//! **Invariants.** An appending thread publishes in a slot a lower bound of what it will reserve *before* it reserves
//! (checked by `log/group.rs::append`). [`Log::append_low_water_mark`] reads the reserved end first and the slots after
//! it, all of it sequentially consistently, so it either sees the slot, or the reservation happened after its read of
//! the end: the pages of every group below the returned mark have been registered by its appender (test:
//! `the_low_water_mark_of_appending_waits_for_the_appenders`). A thread waits for no latch while it holds a slot, whose
//! rank is above that of a page (checked by `sync/lock.rs::take`).

use core::cell::Cell;

use super::{
    Log,
    frame::{self, HEADER, Header, MAX_FRAME_BYTES},
};
use crate::{
    error::{Owner, Result, UsageError},
    ids::Lsn,
    sync::{
        Held, Rank,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
        thread, thread_local,
    },
};

/// The maximum number of concurrent appenders; more wait for a slot. A model has few, so that waiting does occur.
pub(super) const SLOTS: usize = if cfg!(all(test, feature = "model")) { 2 } else { 128 };
/// The bound of a free slot.
const FREE: u64 = u64::MAX;

thread_local! {
    /// The slot that this thread used last: most likely free, and in its cache.
    static LAST: Cell<usize> = Cell::new(thread::number());
}

/// A slot for one appending thread.
#[derive(Debug)]
pub(super) struct Slot {
    /// A lower bound of what the holder reserves, or [`FREE`].
    bound: AtomicU64,
    /// Groups appended by the holders so far: each thread counts in its own cache line.
    groups: AtomicU64,
}

impl Slot {
    /// Returns a free slot.
    pub(super) fn free() -> Self {
        Self { bound: AtomicU64::new(FREE), groups: AtomicU64::new(0) }
    }
}

/// An appending thread's hold of a slot. Dropping it declares that the pages of the appended groups are registered
/// dirty.
#[derive(Debug)]
pub struct AppendSlot<'a> {
    log: &'a Log,
    slot: usize,
    _held: Held,
}

impl Log {
    /// Begins to append. The caller must hold every latch that it needs; it appends, registers its pages dirty, and
    /// drops the guard.
    pub fn begin_group(&self) -> AppendSlot<'_> {
        let held = Held::take(Rank::Append);
        let first = LAST.get();
        loop {
            for n in 0..SLOTS {
                let slot = first.wrapping_add(n) % SLOTS;
                let cell = &self.slots[slot].bound;
                if cell.load(Relaxed) != FREE {
                    continue;
                }
                let bound = self.reserved.load(SeqCst);
                debug_assert!(bound != FREE, "a position is taken for the mark of a free slot");
                if cell.compare_exchange(FREE, bound, SeqCst, SeqCst).is_ok() {
                    LAST.set(slot);
                    return AppendSlot { log: self, slot, _held: held };
                }
            }
            self.env
                .wait(&self.slot_free, &mut || self.slots.iter().any(|slot| slot.bound.load(SeqCst) == FREE));
        }
    }

    /// Returns a position below which every group's pages have been registered dirty.
    pub fn append_low_water_mark(&self) -> Lsn {
        // Read the end first and the slots after it: a thread that takes a slot later appends at or above the end.
        let end = self.reserved.load(SeqCst);
        let low_water_mark = self.slots.iter().map(|slot| slot.bound.load(SeqCst)).fold(u64::MAX, u64::min);
        Lsn(end.min(low_water_mark))
    }

    /// Returns the number of appended groups.
    pub(super) fn groups(&self) -> u64 {
        self.slots.iter().map(|slot| slot.groups.load(Relaxed)).sum()
    }

    /// Returns the maximum payload of one group, in bytes.
    pub(crate) fn max_group(&self) -> usize {
        (self.ring.capacity() as usize / 4).min(MAX_FRAME_BYTES) - HEADER
    }

    /// Returns an error for a payload that is too long for a group. A caller with unbounded payloads must call this
    /// before it changes anything.
    ///
    /// # Errors
    /// [`UsageError::ChangeTooLong`].
    pub(crate) fn check_group(&self, bytes: usize) -> Result<()> {
        let limit = self.max_group();
        if bytes <= limit {
            return Ok(());
        }
        Err(UsageError::ChangeTooLong { owner: Owner::Unknown, bytes, limit }.into())
    }
}

impl AppendSlot<'_> {
    /// Appends a group and returns its start and end. Nothing is durable yet. When a half of the buffer is full, the
    /// background worker writes it; when all of it is full, this call writes. An empty payload appends a marker, which
    /// no reader returns.
    ///
    /// # Errors
    /// [`UsageError`] when the payload is longer than [`Log::max_group`]; nothing is changed then. A failure to write
    /// poisons the database.
    pub fn append(&self, payload: &[u8]) -> Result<(Lsn, Lsn)> {
        let log = self.log;
        log.health.check()?;
        log.check_group(payload.len())?;
        let span = frame::span(payload.len()) as u64;
        debug_assert!(span <= log.ring.capacity() / 4, "a group takes more than a quarter of the ring");
        let start = Lsn(log.reserved.fetch_add(span, SeqCst));
        let end = Lsn(start.0 + span);
        debug_assert!(start.0.is_multiple_of(frame::ALIGN), "the group begins where no frame can begin");
        // Only this thread changes the bound while it holds the slot.
        // In a model, a load would be a step of its schedule.
        #[cfg(not(feature = "model"))]
        debug_assert!(
            log.slots[self.slot].bound.load(Relaxed) <= start.0,
            "the group begins below the bound of its slot"
        );
        #[cfg(not(feature = "model"))]
        debug_assert!(
            log.written.load(SeqCst) <= start.0,
            "the log is written beyond a frame that is not complete"
        );
        let needed = Lsn(end.0.saturating_sub(log.ring.capacity()));
        let written = log.written.load(SeqCst);
        let half = log.ring.capacity() / 2;
        if start.0 / half != end.0 / half && log.is_to_be_written(written) {
            // The background worker writes this half while the other one is filled.
            log.wake.notify();
        }
        if written < needed.0 {
            log.counters.full.fetch_add(1, Relaxed);
            log.write_to(needed)?;
            #[cfg(not(feature = "model"))]
            debug_assert!(log.written.load(SeqCst) >= needed.0, "the ring has no room after the write");
        }
        let durable = Lsn(log.durable.load(SeqCst));
        debug_assert!(durable <= start, "the log is durable beyond a frame that is not complete");
        log.ring.put(&Header::new(log.seed, start, log.incarnation, durable, payload), payload);
        log.published.notify_ordered();
        let groups = &log.slots[self.slot].groups;
        groups.store(groups.load(Relaxed) + 1, Relaxed);
        Ok((start, end))
    }
}

impl Log {
    /// Returns whether the background worker is to write the buffer: at least a quarter of it is not written yet, so
    /// no leader of commits is about to do it.
    pub(super) fn is_to_be_written(&self, written: u64) -> bool {
        self.end().0.saturating_sub(written) >= self.ring.capacity() / 4
    }
}

impl Drop for AppendSlot<'_> {
    fn drop(&mut self) {
        #[cfg(not(feature = "model"))]
        debug_assert!(
            self.log.slots[self.slot].bound.load(Relaxed) != FREE,
            "a slot is released twice, and may be another thread's by now"
        );
        self.log.slots[self.slot].bound.store(FREE, SeqCst);
        self.log.slot_free.notify_ordered();
    }
}
