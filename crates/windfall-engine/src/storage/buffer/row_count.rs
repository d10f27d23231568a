//! The changes of a table's number of rows that the header of its tablespace does not have yet.
//!
//! **Purpose.** A row that is inserted or deleted, or a rollback of that, adds to a stripe of this counter under the
//! latch of the row's leaf; the stripes are moved to the header of the tablespace (`tablespace::rows`) before they
//! count much. So a change costs an addition, and a crash loses few of them. The number of rows is the sum of both.
//!
//! **Invariants.** A stripe that has reached the limit is due, and is moved by the thread that has changed it; so all
//! stripes together differ from zero by less than 1/512 of the rows, or by [`STRIPES`] times [`MIN_LIMIT`] in a small
//! table (test: `a_stripe_is_due_at_its_limit`). No change is lost and none is moved twice while others add (test:
//! `changes_are_moved_once`). If they cannot be moved, the limit rises, so that few attempts follow (test:
//! `a_stripe_is_due_at_its_limit`). A change is counted in [`RowCount::changes`] before it is added, so a sum that was
//! taken while that number stayed the same is exact (test: `a_count_during_changes_is_refused`).

use crate::sync::{
    atomic::{
        AtomicU8, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    thread,
};

/// Threads share this many counters.
const STRIPES: usize = 4;
/// The changes that a stripe holds at least before they are moved to the header.
const MIN_LIMIT: u64 = 16;
/// All stripes together hold at most one change per this many rows.
const ROWS_PER_CHANGE: u64 = 512;

/// The rows were not counted since the tablespace was opened.
const UNCOUNTED: u8 = 0;
/// A thread corrects their number by a count.
const CORRECTING: u8 = 1;
/// The number was corrected.
const COUNTED: u8 = 2;

/// One counter; a cache line apart from the next, so that no two of them share one.
#[derive(Debug, Default)]
#[repr(C)]
struct Stripe {
    /// Rows inserted minus rows deleted; a negative number as its two's complement.
    rows: AtomicU64,
    /// The number of changes ever.
    changes: AtomicU64,
    apart: [u64; 6],
}

/// The counter.
#[derive(Debug)]
pub(crate) struct RowCount {
    stripes: [Stripe; STRIPES],
    /// A stripe that differs from zero by this much is due.
    limit: AtomicU64,
    /// [`UNCOUNTED`], [`CORRECTING`] or [`COUNTED`].
    counted: AtomicU8,
}

impl Default for RowCount {
    fn default() -> Self {
        Self {
            stripes: Default::default(),
            limit: AtomicU64::new(MIN_LIMIT),
            counted: AtomicU8::new(UNCOUNTED),
        }
    }
}

impl RowCount {
    /// Adds rows that were inserted, or subtracts rows that were deleted. Must be called under the latch of their leaf.
    #[inline]
    pub(crate) fn add(&self, rows: i64) {
        let stripe = self.own();
        stripe.changes.fetch_add(1, SeqCst);
        stripe.rows.fetch_add(rows.cast_unsigned(), SeqCst);
    }

    /// Returns whether this thread must move the changes to the header.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.own().rows.load(Relaxed).cast_signed().unsigned_abs() >= self.limit.load(Relaxed)
    }

    fn own(&self) -> &Stripe {
        &self.stripes[thread::number() % STRIPES]
    }

    /// Removes and returns the changes, which the caller adds to the header under its latch.
    pub(crate) fn take(&self) -> i64 {
        self.stripes.iter().map(|stripe| stripe.rows.swap(0, SeqCst).cast_signed()).sum()
    }

    /// Returns the changes that the header, whose latch is held, does not have.
    pub(crate) fn pending(&self) -> i64 {
        self.stripes.iter().map(|stripe| stripe.rows.load(SeqCst).cast_signed()).sum()
    }

    /// Returns the number of changes ever.
    pub(crate) fn changes(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.changes.load(SeqCst)).sum()
    }

    /// Sets the limit for a table with this many rows.
    pub(crate) fn set_limit(&self, rows: u64) {
        let limit = rows / ROWS_PER_CHANGE / STRIPES as u64;
        self.limit.store(limit.max(MIN_LIMIT), Relaxed);
    }

    /// Raises the limit, because the changes could not be moved.
    pub(crate) fn defer(&self) {
        self.limit.store(self.limit.load(Relaxed).saturating_mul(2), Relaxed);
    }

    /// Returns whether the rows were counted since the tablespace was opened. Their number must be read afterwards.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted.load(SeqCst) == COUNTED
    }

    /// As [`RowCount::correct`], unless rows were inserted or deleted since there were this many changes. Returns
    /// whether there were none.
    pub(crate) fn correct_unless_changed(&self, changes: u64, by: i64) -> bool {
        let is_exact = self.changes() == changes;
        if is_exact {
            self.correct(by);
        }
        is_exact
    }

    /// Corrects the number of rows by a count. Only the first count is used: two of them would correct the same
    /// difference twice.
    pub(crate) fn correct(&self, by: i64) {
        if self.counted.compare_exchange(UNCOUNTED, CORRECTING, SeqCst, SeqCst).is_ok() {
            self.own().rows.fetch_add(by.cast_unsigned(), SeqCst);
            self.counted.store(COUNTED, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_is_due_at_its_limit() {
        for (rows, limit) in [(0, 16_i64), (32_768, 16), (65_536, 32), (1 << 30, 1 << 19)] {
            for sign in [1, -1] {
                let count = RowCount::default();
                count.set_limit(rows);
                count.add(sign * (limit - 1));
                assert!(!count.is_due(), "{rows}");
                count.add(sign);
                assert!(count.is_due(), "{rows}");
                let most = limit.unsigned_abs() * STRIPES as u64;
                assert!(most <= rows / 512 || limit == 16, "{rows} rows, {most} changes");
                count.defer();
                assert!(!count.is_due());
                count.add(sign * limit);
                assert!(count.is_due());
            }
        }
    }

    #[test]
    fn changes_are_moved_once() {
        let count = RowCount::default();
        let moved = std::thread::scope(|scope| {
            let adders = [1, -1, 1].map(|rows| {
                let count = &count;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        count.add(rows);
                    }
                })
            });
            let mut moved = 0;
            while !adders.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                moved += count.take();
            }
            moved
        });
        assert_eq!(moved + count.pending(), 10_000);
        assert_eq!(count.changes(), 30_000);
    }

    #[test]
    fn a_count_during_changes_is_refused() {
        let count = RowCount::default();
        let before = count.changes();
        count.add(1);
        count.add(-1);
        assert_eq!(count.pending(), 0);
        assert!(!count.correct_unless_changed(before, 5), "as many rows as before, but not the same ones");
        assert!(count.pending() == 0 && !count.is_counted());
        assert!(count.correct_unless_changed(count.changes(), 5) && count.is_counted());
        count.correct(5);
        assert_eq!(count.pending(), 5, "the second count finds the first correction");
    }
}
