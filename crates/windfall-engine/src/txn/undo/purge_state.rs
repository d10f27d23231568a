//! The progress of purge in an undo stream.
//!
//! **Purpose.** The position up to which purge has processed the stream, and the records that it has skipped or
//! deferred on the way (`purge`).
//!
//! **Invariants.** Everything before the position was purged, or is noted here (test:
//! `a_transaction_skipped_by_purge_is_purged_when_it_has_committed`). A record is deferred or postponed once, however
//! often it is read (checked by `undo/purge_state.rs::note`). The numbers of deferred records (checked by
//! `undo/purge.rs::purge_locked`) and of those postponed (checked by `undo/purge_state.rs::postpone`) are bounded; the
//! records of a quiesced table are one range of positions (by type), however many they are.

use core::{ops::RangeInclusive, time::Duration};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crossbeam_queue::SegQueue;

use super::position::byte_of;
use crate::{
    ids::{SpaceId, TrxId, UndoPos},
    sync::{
        Mutex, Rank,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

/// The maximum number of records per stream that wait for a key latch.
pub(super) const MAX_DEFERRED: usize = 256;
/// The maximum number of records per stream that are postponed because of an unreadable page.
pub(super) const MAX_UNREADABLE: usize = 1024;

/// The progress of purge in a stream.
#[derive(Debug)]
pub(in crate::txn) struct StreamPurge {
    pub(super) state: Mutex<PurgeState>,
    /// Transactions that were skipped and have ended, each with its last record here.
    pub(super) ended: SegQueue<(TrxId, UndoPos)>,
    /// The position up to which purge has processed the stream, for readers without the lock.
    pub(super) passed: AtomicU64,
    /// The transaction at which purge is blocked: it has ended, but a read view may still need the versions before its
    /// own. Zero if there is none.
    blocked_at: AtomicU64,
    /// Whether the stream, which is one of temporary tables, waits for the worker.
    pub(super) is_scheduled: AtomicBool,
    /// The end of the stream when a transaction last ended that has changed temporary tables.
    pub(super) ended_at: AtomicU64,
    /// The tables that were quiesced when purge came to records of them, as of the end of the last step.
    pub(super) quiesced_tables: Mutex<Vec<SpaceId>>,
}

#[derive(Debug, Default)]
pub(super) struct PurgeState {
    /// The stream, which is one of temporary tables, was dropped.
    pub dropped: bool,
    /// Everything before was purged or is noted below.
    pub at: u64,
    /// Transactions with skipped records.
    pub left: BTreeMap<TrxId, SkippedRecords>,
    /// Ended transactions with skipped records, each with its next record to purge, until there is none left.
    pub walks: Vec<(TrxId, Option<UndoPos>)>,
    /// Records of rows with a busy key latch.
    pub deferred: Vec<Unpurged>,
    /// Per table that was quiesced: the range from its first record that was skipped meanwhile to the last.
    pub quiesced: BTreeMap<SpaceId, RangeInclusive<u64>>,
    /// Records of tables that could not be read.
    pub unreadable: VecDeque<Unpurged>,
    /// The time at which these are retried.
    pub retry_due: Duration,
    /// The last slice that was read ahead.
    pub ahead: Option<u64>,
}

/// The places of the skipped records of a transaction.
#[derive(Debug, Default)]
pub(super) struct SkippedRecords {
    pub slices: BTreeSet<u64>,
    /// The tables of these records.
    pub tables: BTreeSet<SpaceId>,
    /// Whether one of them leaves something to purge.
    pub leaves_something: bool,
}

impl SkippedRecords {
    /// Notes a record that was skipped.
    pub(super) fn note(
        &mut self,
        slices: impl IntoIterator<Item = u64>,
        table: SpaceId,
        leaves_nothing: bool,
    ) {
        self.slices.extend(slices);
        self.tables.insert(table);
        self.leaves_something |= !leaves_nothing;
    }
}

/// A record that was skipped, and is still to be purged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unpurged {
    pub at: u64,
    pub table: SpaceId,
}

/// The progress of purge with a table in a stream: if two of these are equal, there was none.
#[derive(PartialEq, Eq)]
pub(super) struct Progress {
    at: u64,
    walks: Vec<(TrxId, Option<UndoPos>)>,
    unpurged: usize,
    quiesced: Vec<RangeInclusive<u64>>,
}

/// The outcome for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Purged,
    /// The key latch of its row is busy.
    Busy,
    /// The table of the record is quiesced.
    Quiesced,
    /// The overflow chain of the record is longer than the rest of the step's allowance.
    Cut,
    /// The table of the record cannot be read.
    Unreadable,
}

impl StreamPurge {
    pub(in crate::txn) fn new(at: u64) -> Self {
        let state = PurgeState { at, ..PurgeState::default() };
        let (passed, blocked_at) = (AtomicU64::new(at), AtomicU64::new(0));
        let quiesced_tables = Mutex::new(Rank::Leaf, Vec::new());
        Self {
            state: Mutex::new(Rank::Purge, state),
            ended: SegQueue::new(),
            passed,
            blocked_at,
            is_scheduled: AtomicBool::new(false),
            ended_at: AtomicU64::new(0),
            quiesced_tables,
        }
    }

    /// Returns the transaction at which read views block purge. If purge has moved on since, all views see that
    /// transaction.
    pub(in crate::txn) fn blocked_at(&self) -> Option<TrxId> {
        Some(self.blocked_at.load(Relaxed)).filter(|trx| *trx != 0).map(TrxId)
    }

    pub(super) fn set_blocked_at(&self, trx: Option<TrxId>) {
        debug_assert!(trx != Some(TrxId(0)), "zero is the id of no transaction");
        self.blocked_at.store(trx.map_or(0, |trx| trx.0), Relaxed);
    }

    /// Returns the tables that were quiesced when purge came to records of them. The check may have ended since. Does
    /// not wait for a step.
    pub(in crate::txn) fn quiesced_tables(&self) -> Vec<SpaceId> {
        self.quiesced_tables.lock().clone()
    }

    /// Returns whether no record of a table before this position is still to be purged, or can still be rolled back.
    /// Waits for the current step.
    pub(in crate::txn) fn is_done_with(&self, table: SpaceId, before: u64) -> bool {
        let state = self.state.lock();
        state.is_done_with(table, before)
    }

    /// Notes that the stream is dropped, and is not purged any more. Waits for the current step.
    pub(super) fn set_dropped(&self) {
        self.state.lock().dropped = true;
    }

    /// Schedules the walk of a transaction that purge had skipped and that has ended.
    pub(in crate::txn) fn schedule_walk(&self, trx: TrxId, last: UndoPos) {
        self.ended.push((trx, last));
    }

    /// Checks that what was skipped or deferred is in the stream, within its bounds, and that each transaction is
    /// walked once.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check_invariants(&self, end: impl FnOnce() -> u64) {
        let Some(state) = self.state.try_lock() else { return };
        let end = end();
        assert!(state.at <= end, "purge has processed a stream up to {}, and it ends at {end}", state.at);
        assert!(self.passed.load(Relaxed) <= state.at, "purge reports more than it has processed");
        assert!(state.deferred.len() <= MAX_DEFERRED, "more records are deferred than are kept");
        assert!(state.unreadable.len() <= MAX_UNREADABLE, "more records are postponed than are kept");
        // The walk of a transaction may be ahead of the position.
        let deferred = state.unpurged().map(|record| record.at);
        let last = deferred.chain(state.quiesced.values().map(|range| *range.end())).max();
        assert!(last.is_none_or(|last| last < end), "a record is deferred that the stream does not have");
        let mut walkers: Vec<TrxId> = state.walks.iter().map(|(trx, _)| *trx).collect();
        walkers.sort_unstable();
        walkers.dedup();
        assert!(walkers.len() == state.walks.len(), "a transaction is walked twice");
    }

    /// Returns whether purge has work in the stream, which ends at `end`.
    pub(super) fn has_work(&self, end: u64) -> bool {
        let state = self.state.lock();
        if state.dropped {
            return false;
        }
        state.at < end
            || !state.walks.is_empty()
            || !state.deferred.is_empty()
            || !state.quiesced.is_empty()
            || !state.unreadable.is_empty()
            || !self.ended.is_empty()
    }
}

impl PurgeState {
    pub(super) fn pins(&self, slice_bytes: u64) -> BTreeSet<u64> {
        let of = |at: &u64| at / slice_bytes;
        // A deferred record may extend into the next slice.
        let kept = self.unpurged().flat_map(|record| [of(&record.at), of(&record.at) + 1]);
        let quiesced = self.quiesced.values().flat_map(|range| of(range.start())..=of(range.end()) + 1);
        self.left.values().flat_map(|passed| &passed.slices).copied().chain(kept).chain(quiesced).collect()
    }

    /// Returns the records that were skipped and deferred.
    pub(super) fn unpurged(&self) -> impl Iterator<Item = &Unpurged> {
        self.deferred.iter().chain(&self.unreadable)
    }

    pub(super) fn has_left(&self, table: SpaceId) -> bool {
        self.left.values().any(|passed| passed.tables.contains(&table))
    }

    pub(super) fn is_done_with(&self, table: SpaceId, before: u64) -> bool {
        self.at >= before
            && !self.has_left(table)
            && !self.quiesced.contains_key(&table)
            && self.unpurged().all(|record| record.table != table)
    }

    pub(super) fn progress_with(&self, table: SpaceId, before: u64) -> Progress {
        let is_of = |trx: &TrxId| self.left.get(trx).is_some_and(|passed| passed.tables.contains(&table));
        // Walks run in this order: those before one of the table must end first, and none is inserted before it.
        let walks = self.walks.iter().rposition(|(trx, _)| is_of(trx)).map_or(0, |last| last + 1);
        Progress {
            at: self.at.min(before),
            walks: self.walks[..walks].to_vec(),
            unpurged: self.unpurged().filter(|record| record.table == table).count(),
            // Ranges are read in this order. If this table has one, those before it matter, too.
            quiesced: if self.quiesced.contains_key(&table) {
                self.quiesced.range(..=table).map(|(_, range)| range.clone()).collect()
            } else {
                Vec::new()
            },
        }
    }

    /// Skips the slice at the current position, in which nothing is to be purged.
    pub(super) fn skip_slice(&mut self, slice: u64, slice_bytes: u64, youngest: TrxId) {
        // A pending walk needs each record of its transaction to find the record before. There may be one here, which
        // may extend into the next slice.
        for (_, passed) in self.left.range_mut(..=youngest) {
            passed.slices.extend([slice, slice + 1]);
        }
        debug_assert!(
            self.at / slice_bytes == slice,
            "another slice is skipped than the one at the position"
        );
        self.at = (slice + 1) * slice_bytes;
        debug_assert!(
            self.left.range(..=youngest).all(|(_, skipped)| skipped.slices.contains(&slice)),
            "a slice is skipped that a transaction with a walk to come does not keep"
        );
    }

    /// Notes the outcome for a record. Returns `false` if the record must be purged again before any other.
    pub(super) fn note(&mut self, record: Unpurged, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Purged => {}
            // A record that is read again may be noted already.
            Outcome::Busy | Outcome::Unreadable if self.unpurged().any(|known| known.at == record.at) => {}
            Outcome::Busy => self.deferred.push(record),
            Outcome::Quiesced => self.defer_quiesced(record),
            Outcome::Cut => return false,
            Outcome::Unreadable => self.postpone(record),
        }
        debug_assert!(
            outcome == Outcome::Purged || !self.is_done_with(record.table, 0),
            "a record is still to be purged, and its table counts as purged"
        );
        debug_assert!(
            self.unpurged().filter(|known| known.at == record.at).count() <= 1,
            "the record at {} is deferred or postponed twice",
            record.at
        );
        true
    }

    pub(super) fn defer_quiesced(&mut self, record: Unpurged) {
        let range = self.quiesced.entry(record.table).or_insert(record.at..=record.at);
        *range = record.at.min(*range.start())..=record.at.max(*range.end());
        debug_assert!(range.contains(&record.at), "a record of a quiesced table is not in its range");
    }

    /// Returns whether the slice of a record that can be purged is still to be read ahead, and notes it as read.
    pub(super) fn reads_ahead(&mut self, slice: u64) -> bool {
        self.ahead.replace(slice) != Some(slice)
    }

    /// Returns whether the walk of this record's transaction has yet to reach it.
    pub(super) fn is_to_be_walked(&self, trx: TrxId, at: u64) -> bool {
        let has_come_to = |next: Option<UndoPos>| next.is_some_and(|next| at <= byte_of(next));
        self.left.contains_key(&trx)
            && self.walks.iter().find(|(walker, _)| *walker == trx).is_none_or(|(_, next)| has_come_to(*next))
    }

    pub(super) fn postpone(&mut self, record: Unpurged) {
        if self.unreadable.len() == MAX_UNREADABLE {
            self.unreadable.pop_front();
        }
        self.unreadable.push_back(record);
        debug_assert!(self.unreadable.len() <= MAX_UNREADABLE, "more records are postponed than are kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_read_again_is_deferred_once() {
        let mut state = PurgeState::default();
        for at in [100, 200] {
            let record = Unpurged { at, table: SpaceId(20) };
            for outcome in [Outcome::Busy, Outcome::Unreadable, Outcome::Busy] {
                assert!(state.note(record, outcome));
            }
        }
        assert_eq!(state.unpurged().map(|record| record.at).collect::<Vec<_>>(), [100, 200]);
    }

    #[test]
    #[should_panic(expected = "a record is deferred that the stream does not have")]
    fn a_deferred_record_after_the_end_is_found() {
        let purge = StreamPurge::new(100);
        purge.state.lock().deferred.push(Unpurged { at: 199, table: SpaceId(20) });
        purge.check_invariants(|| 200);
        purge.state.lock().deferred.push(Unpurged { at: 200, table: SpaceId(20) });
        purge.check_invariants(|| 200);
    }
}
