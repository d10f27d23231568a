//! Purge: the final removal of what committed transactions have left.
//!
//! **Purpose.** Delete-marked entries are removed, and the overflow chains of replaced and deleted values are freed, as
//! are those that a rollback has left. An undo slice is dropped as a whole once all its transactions are purged.
//!
//! **Invariants.** A record is purged once its transaction had ended for every possible reader ([`Snapshot`]) (test:
//! `a_pin_keeps_versions_and_a_reader_its_value`). An entry is removed only if it still carries the record's version
//! (test: `a_pin_keeps_versions_and_a_reader_its_value`), which a delete-marked one keeps until then (test:
//! `a_freeze_removes_the_headers_of_old_live_records_and_no_others`). A chain is freed only if it still has its stamp
//! (test: `crash_points_during_the_freeing_of_long_chains`). So a record may be purged any number of times, and
//! after a restart every record that still exists is purged again (test:
//! `after_a_restart_purge_skips_no_record_because_of_a_missing_one`). Of the records that were rolled back two kinds
//! matter: those of chains, and those that had revived an entry, because the record that had delete-marked it was
//! purged without effect while it was alive (test: `rows_match_the_model`).
//!
//! Purge holds the key latch of the row while it works on it, so that no call changes the row meanwhile; if the latch
//! is not free, the record is deferred (test: `a_record_of_a_locked_row_is_deferred_for_a_check`). A step examines a
//! bounded number of records and frees a bounded number of pages (test: `a_step_frees_a_bounded_number_of_pages`);
//! those that leave nothing to purge count by the page, and are not decoded (test:
//! `records_that_leave_nothing_are_passed_by_the_page`). A
//! record with a longer chain is purged again by the next step, and the latch is released meanwhile (test:
//! `a_value_far_longer_than_the_log_is_written_and_purged`). A stream is scanned in order (checked by
//! `undo/purge.rs::purge_locked`). The records of an active transaction are skipped, and purged by a walk of that
//! transaction's own records once it has ended (test:
//! `a_transaction_skipped_by_purge_is_purged_when_it_has_committed`). A slice that is known to hold nothing to purge is
//! skipped without being read (test: `slices_with_nothing_to_purge_go_unread`). A long transaction keeps the slices
//! that it wrote to, and no others; slices are dropped in any order (test:
//! `an_unfinished_transaction_keeps_only_its_own_undo_slices`). The streams of temporary tables are purged by the calls
//! on these tables (`temporary`) (checked by `undo/purge.rs::purge_temporary`), and what a transaction of several calls
//! has left there by the worker (checked by `undo/purge.rs::schedule_temporary`).
//!
//! The records of a quiesced table (`trx::quiesce`) are skipped and purged later, so a check blocks purge of its own
//! table only (test: `two_checks_defer_the_records_of_their_tables`). However many they are, one range of positions per
//! table covers them (checked by `undo/purge_state.rs::defer_quiesced`). The range is read again only when the table is
//! no longer quiesced (test: `purge_reads_no_deferred_record_while_the_check_lasts`). It may lead to records that were
//! purged already, and to records of transactions with a walk still to come, which are left to that walk (test:
//! `no_deferred_record_is_lost_during_concurrent_work`).
//!
//! The table of each record that was skipped and not purged is recorded (checked by `undo/purge_state.rs::note`): purge
//! can report for a table whether any of its records up to a position is still to be purged ([`Stream::is_purged_of`]).
//!
//! A page that cannot be read is a problem of its table only: the record that leads there is postponed, and retried
//! from time to time until it works or the table is dropped (test:
//! `a_record_that_could_not_be_read_is_deferred_for_a_check`). If there are too many, the oldest are given up (checked
//! by `undo/purge_state.rs::postpone`): the space that they would have freed stays allocated in that table.

use core::time::Duration;

use crossbeam_queue::SegQueue;

use super::{
    chains,
    directory::Streams,
    pass::{InPage, PageRecords},
    position::byte_of,
    purge_state::{MAX_DEFERRED, Outcome, PurgeState, Unpurged},
    record::{Body, EntryChange, KeptChains, RowChange, Touch, UndoRecord},
    rollback::{carries, merge},
    stream::{Stored, Stream, UndoContext},
};
use crate::{
    buffer::Durability,
    error::{Error, Result},
    ids::{SpaceId, TrxId, UndoPos},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{
        Arc, Event,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    tree::Room,
    txn::{
        locks::key_latch::KeyLatches,
        mvcc::{Active, Snapshot},
    },
};

/// Records that a step examines.
const RECORDS_PER_STEP: usize = 256;
/// Pages of overflow chains that a step frees.
pub(in crate::txn) const PAGES_PER_STEP: usize = 128;
/// Slices that a step drops.
const SLICES_PER_STEP: usize = 64;
/// Slices of temporary tables, before the end of the last transaction, that changes leave to the worker.
const SLICES_LEFT_MOST: u64 = 4;
/// The time between retries of records that were postponed.
pub(in crate::txn) const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Rounds without progress after which the remaining records must be blocked by others.
const MAX_IDLE_CHECKS: usize = 20;
/// Bytes of log that a step may need.
const LOG_BYTES_PER_STEP: u64 = 256 << 10;
/// Bytes of log that the removal of a secondary entry may need.
const LOG_BYTES_PER_REMOVAL: u64 = 256;
const _: () = assert!(
    (PAGES_PER_STEP * chains::LOG_BYTES_PER_PAGE) as u64 <= LOG_BYTES_PER_STEP / 4,
    "the rest is for records"
);

/// The remaining budget of a step.
#[derive(Debug)]
struct Left {
    records: usize,
    pages: usize,
    /// The table of the first record that exceeded the budget.
    cut: Option<SpaceId>,
}

/// The result of a step.
#[derive(Debug)]
struct Stepped {
    /// More work can be done at once.
    more: bool,
    /// The table of the first record with a chain longer than what was left of the step.
    cut: Option<SpaceId>,
}

/// Purges the undo streams of a database.
#[derive(Debug)]
pub struct Purge {
    context: Arc<UndoContext>,
    streams: Arc<Streams>,
    active: Arc<Active>,
    key_latches: Arc<KeyLatches>,
    /// The streams of temporary tables that are to be purged by the worker.
    scheduled: SegQueue<Arc<Stream>>,
    /// The number of times that it has found a table quiesced.
    met_quiesced: AtomicU64,
    /// The number of records that it has finished, and of parts of chains that it has freed.
    purged: AtomicU64,
}

impl Purge {
    /// Returns the purge of these streams, which has not begun.
    pub(in crate::txn) fn new(
        context: Arc<UndoContext>,
        streams: Arc<Streams>,
        active: Arc<Active>,
        key_latches: Arc<KeyLatches>,
    ) -> Self {
        let (scheduled, met_quiesced, purged) = Default::default();
        Self { context, streams, active, key_latches, scheduled, met_quiesced, purged }
    }

    /// Returns two counters of progress: of finished records and parts of chains, and of tables that were found
    /// quiesced.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.purged.load(Relaxed), self.met_quiesced.load(Relaxed))
    }

    /// Returns the snapshot that limits purge of a stream now.
    fn horizon_of(&self, stream: &Stream) -> Arc<Snapshot> {
        if stream.durability() == Durability::Logged {
            return self.active.horizon();
        }
        // This comes first: a reader that is registered later finds final versions of the transactions that have ended
        // by now.
        let ended = Arc::new(self.active.ended());
        stream.readers.oldest().unwrap_or(ended)
    }

    /// Returns the bytes of undo that purge has not processed yet, without those of temporary tables.
    pub fn history_bytes(&self) -> u64 {
        let left = |stream: &Stream| stream.end().saturating_sub(stream.purge.passed.load(Relaxed));
        self.streams.all().map(left).sum()
    }

    /// Returns the event that wakes the worker early.
    pub fn wake(&self) -> Arc<Event> {
        self.context.purge_wake.clone()
    }

    /// Purges a stream up to a position, as far as one table is concerned and nothing blocks it. The table's gate is
    /// closed. Once purge has reached the position, progress on other tables, which may continue without end, does not
    /// count.
    ///
    /// # Errors
    /// Damage, I/O, no log space.
    pub(in crate::txn) fn catch_up(&self, stream: &Stream, table: SpaceId, before: u64) -> Result<()> {
        debug_assert!(before <= stream.end(), "purge is to reach a position that the stream does not have");
        stream.purge.state.lock().retry_due = Duration::ZERO;
        let mut idle = 0;
        let mut last = None;
        while idle < MAX_IDLE_CHECKS {
            let _room = self.context.log().admit(LOG_BYTES_PER_STEP)?;
            let mut state = stream.purge.state.lock();
            let Stepped { more, cut } = self.purge_locked(stream, &mut state)?;
            if state.is_done_with(table, before) {
                return Ok(());
            }
            let now = Some(state.progress_with(table, before));
            // A long chain takes many steps.
            let is_at_work = more && state.at < before || cut == Some(table);
            idle = if now == last && !is_at_work { idle + 1 } else { 0 };
            last = now;
            drop(state);
            self.context.pool.context().env.yield_point();
        }
        Ok(())
    }

    /// Runs one step of the purge worker. Returns whether more work can be done at once.
    ///
    /// # Errors
    /// Damage, I/O; the other streams were processed.
    pub fn step(&self) -> Result<bool> {
        let mut done = Ok(false);
        for stream in self.streams.all().filter(|stream| stream.purge.has_work(stream.end())) {
            match (self.step_in(stream), &mut done) {
                (Ok(more), Ok(any)) => *any |= more,
                (Ok(_), Err(_)) => {}
                (Err(error), _) => done = Err(error),
            }
        }
        let more = self.step_in_scheduled();
        done.map(|any| any || more)
    }

    /// Runs one step in each stream of temporary tables that was scheduled. Returns whether more work can be done at
    /// once. What is blocked is tried again when the worker runs next.
    fn step_in_scheduled(&self) -> bool {
        let mut any = false;
        for _ in 0..self.scheduled.len() {
            let Some(stream) = self.scheduled.pop() else { break };
            // A transaction that ends from now on schedules it again.
            stream.purge.is_scheduled.store(false, SeqCst);
            any |= self.step_in_temporary(&stream);
            if stream.purge.has_work(stream.end()) {
                self.enqueue(stream);
            }
        }
        any
    }

    fn enqueue(&self, stream: Arc<Stream>) {
        if !stream.purge.is_scheduled.swap(true, SeqCst) {
            self.scheduled.push(stream);
        }
    }

    /// Lets the worker purge what a transaction that has ended has left in temporary tables, which may be much.
    pub fn schedule_temporary(&self, stream: &Arc<Stream>) {
        debug_assert!(
            stream.durability() == Durability::Temporary,
            "the worker purges what is logged unasked"
        );
        stream.purge.ended_at.store(stream.end(), Relaxed);
        self.enqueue(stream.clone());
        self.wake().notify();
    }

    /// Helps the worker before a change in a temporary table, if many records of transactions that have ended are still
    /// to be purged: then each change purges more records than it adds.
    pub fn keep_up_with_temporary(&self, stream: &Stream) {
        debug_assert!(stream.durability() == Durability::Temporary, "a limit of its own bounds logged undo");
        let purge = &stream.purge;
        let left = purge.ended_at.load(Relaxed).saturating_sub(purge.passed.load(Relaxed));
        if left > SLICES_LEFT_MOST * stream.slice_bytes() {
            self.step_in_temporary(stream);
        }
    }

    /// Purges what a call on a session's temporary tables has left. The call has succeeded in any case: the rest is
    /// left to the next call.
    pub fn purge_temporary(&self, stream: &Stream) {
        debug_assert!(stream.durability() == Durability::Temporary, "the worker purges what is logged");
        let step = || match self.context.failpoint.pass() {
            Ok(()) => self.step_in_temporary(stream),
            Err(error) => warn_of(&error),
        };
        while step() {}
    }

    /// Runs one step in a stream of temporary tables. Returns whether more work can be done at once.
    fn step_in_temporary(&self, stream: &Stream) -> bool {
        match self.step_in(stream) {
            Ok(more) => more,
            // The table was dropped, and its stream with it.
            Err(Error::TableDropped(_)) => false,
            Err(error) => warn_of(&error),
        }
    }

    /// Runs one step in one stream. Returns whether more work can be done at once.
    pub(super) fn step_in(&self, stream: &Stream) -> Result<bool> {
        let is_logged = stream.durability() == Durability::Logged;
        let _room = is_logged.then(|| self.context.log().admit(LOG_BYTES_PER_STEP)).transpose()?;
        Ok(self.purge_locked(stream, &mut stream.purge.state.lock())?.more)
    }

    fn purge_locked(&self, stream: &Stream, state: &mut PurgeState) -> Result<Stepped> {
        debug_assert!(
            stream.durability() == Durability::Temporary
                || self.context.log().reserved_bytes() >= LOG_BYTES_PER_STEP,
            "a step appends no more than was reserved"
        );
        if state.dropped {
            return Ok(Stepped { more: false, cut: None });
        }
        let horizon = self.horizon_of(stream);
        let mut left = Left { records: RECORDS_PER_STEP, pages: PAGES_PER_STEP, cut: None };
        for _ in 0..stream.purge.ended.len() {
            state.walks.extend(stream.purge.ended.pop().map(|(trx, last)| (trx, Some(last))));
        }
        self.retry_deferred(stream, state, &mut left)?;
        self.retry_postponed(stream, state, &mut left)?;
        let mut walks = core::mem::take(&mut state.walks);
        let walked =
            walks.iter_mut().try_for_each(|walk| self.walk(stream, &horizon, state, walk, &mut left));
        for (trx, _) in walks.extract_if(.., |(_, next)| next.is_none()) {
            state.left.remove(&trx);
            debug_assert!(
                !self.active.is_active(trx),
                "the walk of transaction {trx} is over, and it is active"
            );
        }
        let needed = walks.iter().map(|(trx, _)| *trx).find(|trx| !horizon.covers(*trx));
        stream.purge.set_blocked_at(needed);
        state.walks = walks;
        walked?;
        self.purge_quiesced(stream, &horizon, state, &mut left)?;
        let before = state.at;
        let passed = self.pass(stream, &horizon, state, &mut left);
        debug_assert!(state.at >= before, "purge passes a stream in one direction");
        debug_assert!(state.deferred.len() <= MAX_DEFERRED, "more records are deferred than are kept");
        stream.purge.passed.store(state.at, Relaxed);
        *stream.purge.quiesced_tables.lock() = state.quiesced.keys().copied().collect();
        passed?;
        let dropped = Self::drop_slices(stream, state)?;
        let more = left.records == 0 || left.pages == 0 || dropped == SLICES_PER_STEP;
        Ok(Stepped { more, cut: left.cut })
    }

    fn retry_deferred(&self, stream: &Stream, state: &mut PurgeState, left: &mut Left) -> Result<()> {
        let mut done = Ok(());
        for record in core::mem::take(&mut state.deferred) {
            let outcome =
                if done.is_ok() { self.purge_again(stream, record, left) } else { Ok(Outcome::Busy) };
            // After a failure the remaining records stay deferred.
            let outcome = outcome.unwrap_or_else(|error| {
                done = Err(error);
                Outcome::Busy
            });
            if !state.note(record, outcome) {
                state.deferred.push(record);
            }
        }
        done
    }

    /// Retries the records that could not be read some time ago.
    fn retry_postponed(&self, stream: &Stream, state: &mut PurgeState, left: &mut Left) -> Result<()> {
        let now = self.context.now();
        if state.unreadable.is_empty() || now < state.retry_due {
            return Ok(());
        }
        state.retry_due = now + RETRY_PAUSE;
        for _ in 0..state.unreadable.len() {
            let Some(record) = state.unreadable.front().copied().filter(|_| left.records > 0) else { break };
            left.records -= 1;
            let outcome = self.purge_again(stream, record, left)?;
            state.unreadable.pop_front();
            match outcome {
                Outcome::Purged => {}
                // It can be read again, and is treated like other records.
                Outcome::Busy | Outcome::Cut if state.deferred.len() < MAX_DEFERRED => {
                    state.deferred.push(record);
                }
                Outcome::Quiesced => state.defer_quiesced(record),
                Outcome::Busy | Outcome::Cut | Outcome::Unreadable => state.unreadable.push_back(record),
            }
        }
        Ok(())
    }

    /// Purges the records of a transaction that was skipped, from the last to the first.
    fn walk(
        &self,
        stream: &Stream,
        horizon: &Snapshot,
        state: &mut PurgeState,
        (trx, next): &mut (TrxId, Option<UndoPos>),
        left: &mut Left,
    ) -> Result<()> {
        if horizon.covers(*trx) && state.left.get(trx).is_some_and(|skipped| !skipped.leaves_something) {
            // The pass purges the records that it has not come to.
            *next = None;
        }
        while let Some(pos) = next.filter(|_| horizon.covers(*trx) && left.records > 0) {
            if state.deferred.len() >= MAX_DEFERRED {
                break;
            }
            left.records -= 1;
            let at = byte_of(pos);
            let Some(stored) = stream.record(at)? else {
                *next = None;
                break;
            };
            let record = stream.decode(at, &stored)?;
            debug_assert!(
                record.trx == *trx,
                "a walk of transaction {trx} has come to a record of {}",
                record.trx
            );
            let outcome = self.purge_record(stream, at, &stored, &record, left)?;
            if !state.note(Unpurged { at, table: record.body.table() }, outcome) {
                break;
            }
            *next = record.previous;
        }
        Ok(())
    }

    /// Continues in the ranges of tables that are no longer quiesced, and purges their records. Nothing is read for the
    /// others.
    fn purge_quiesced(
        &self,
        stream: &Stream,
        horizon: &Snapshot,
        state: &mut PurgeState,
        left: &mut Left,
    ) -> Result<()> {
        let tables: Vec<SpaceId> = state.quiesced.keys().copied().collect();
        for table in tables {
            if self.is_quiesced(table) {
                self.met_quiesced.fetch_add(1, Relaxed);
                continue;
            }
            while left.records > 0 && state.deferred.len() < MAX_DEFERRED {
                let (next, last) = state.quiesced[&table].clone().into_inner();
                let Some((at, stored)) = stream.next_record(next)?.filter(|(at, _)| *at <= last) else {
                    state.quiesced.remove(&table);
                    break;
                };
                left.records -= 1;
                let record = stream.decode(at, &stored)?;
                let is_due = record.body.table() == table
                    && horizon.covers(record.trx)
                    && !state.is_to_be_walked(record.trx, at);
                if is_due {
                    read_ahead(stream, state, at);
                    let outcome = self.purge_record(stream, at, &stored, &record, left)?;
                    if outcome == Outcome::Quiesced || !state.note(Unpurged { at, table }, outcome) {
                        break;
                    }
                }
                debug_assert!(stored.next > next, "the range of a quiesced table is read in one direction");
                state.quiesced.insert(table, stored.next..=last);
            }
        }
        Ok(())
    }

    /// Returns whether a check has quiesced the table.
    pub(in crate::txn) fn is_quiesced(&self, table: SpaceId) -> bool {
        self.context.pool.space(table).is_some_and(|space| space.check_lock().try_read().is_none())
    }

    /// Continues the scan of the stream.
    fn pass(
        &self,
        stream: &Stream,
        horizon: &Snapshot,
        state: &mut PurgeState,
        left: &mut Left,
    ) -> Result<()> {
        let mut looked_at = None;
        let mut page = PageRecords::default();
        while left.records > 0 && state.deferred.len() < MAX_DEFERRED {
            let end = stream.end();
            let slice = state.at / stream.slice_bytes();
            if looked_at.replace(slice) != Some(slice)
                && let Some(sealed) = stream.sealed(slice)
                && sealed.leaves_nothing
                && horizon.covers_all_up_to(sealed.youngest)
            {
                state.skip_slice(slice, stream.slice_bytes(), sealed.youngest);
                continue;
            }
            if page.fill(stream, state.at)? {
                left.records -= 1;
            }
            let in_page = page.record(state.at);
            if let Some(record) = &in_page
                && passes_over(stream, horizon, state, record)
            {
                continue;
            }
            let found =
                in_page.map_or_else(|| stream.next_record(state.at), |record| Ok(Some(record.stored())));
            let Some((at, stored)) = found? else {
                state.at = state.at.max(end);
                break;
            };
            left.records = left.records.saturating_sub(1);
            let record = stream.decode(at, &stored)?;
            let (trx, table) = (record.trx, record.body.table());
            let slices = [at, stored.next - 1].map(|at| at / stream.slice_bytes());
            let leaves_nothing = UndoRecord::leaves_nothing(&stored.bytes);
            if let Some(passed) = state.left.get_mut(&trx) {
                // Its walk will visit the record, and needs each record to find the one before.
                passed.note(slices, table, leaves_nothing);
            } else if horizon.covers(trx) {
                debug_assert!(!self.active.is_active(trx), "the records of an active transaction are purged");
                read_ahead(stream, state, at);
                let outcome = self.purge_record(stream, at, &stored, &record, left)?;
                if !state.note(Unpurged { at, table }, outcome) {
                    break;
                }
            } else if self.active.note_skipped(trx) {
                state.left.entry(trx).or_default().note(slices, table, leaves_nothing);
            } else {
                // It has ended, and a reader may still need the versions before.
                stream.purge.set_blocked_at(Some(trx));
                break;
            }
            debug_assert!(
                stored.next <= stream.end(),
                "purge has passed a record beyond the end of its stream"
            );
            state.at = stored.next;
        }
        Ok(())
    }

    fn drop_slices(stream: &Stream, state: &PurgeState) -> Result<usize> {
        let passed = state.at / stream.slice_bytes();
        let mut candidates = stream.slices();
        candidates.retain(|(slice, _)| *slice < passed);
        // The newest is never dropped.
        if candidates.is_empty() {
            return Ok(0);
        }
        let pins = state.pins(stream.slice_bytes());
        let mut dropped = 0;
        for (slice, _) in candidates {
            if dropped < SLICES_PER_STEP && !pins.contains(&slice) && stream.drop_slice(slice)? {
                debug_assert!(
                    state.unpurged().all(|record| record.at / stream.slice_bytes() != slice),
                    "a slice with a record that is still to be purged was dropped"
                );
                dropped += 1;
            }
        }
        Ok(dropped)
    }

    /// Purges a record that was deferred.
    fn purge_again(&self, stream: &Stream, record: Unpurged, left: &mut Left) -> Result<Outcome> {
        let at = record.at;
        let Some(stored) = stream.record(at)? else { return Ok(Outcome::Purged) };
        self.purge_record(stream, at, &stored, &stream.decode(at, &stored)?, left)
    }

    fn purge_record(
        &self,
        stream: &Stream,
        at: u64,
        stored: &Stored,
        record: &UndoRecord,
        left: &mut Left,
    ) -> Result<Outcome> {
        let table = self.context.pool.space(record.body.table());
        let at_work = table.as_ref().map(|space| space.check_lock().try_read());
        if matches!(at_work, Some(None)) {
            self.met_quiesced.fetch_add(1, Relaxed);
            return Ok(Outcome::Quiesced);
        }
        match self.purge_decoded(stream, at, stored, record, left) {
            Err(error) if error.is_read_failure() => {
                tracing::warn!(
                    target: "windfall::undo",
                    %error, "what is left in this table could not be purged yet",
                );
                Ok(Outcome::Unreadable)
            }
            done => {
                if matches!(done, Ok(Outcome::Cut)) {
                    left.cut.get_or_insert(record.body.table());
                }
                let gets_on = matches!(done, Ok(Outcome::Purged | Outcome::Cut));
                if gets_on && stream.durability() == Durability::Logged {
                    self.purged.fetch_add(1, Relaxed);
                }
                done
            }
        }
    }

    fn purge_decoded(
        &self,
        stream: &Stream,
        at: u64,
        stored: &Stored,
        record: &UndoRecord,
        left: &mut Left,
    ) -> Result<Outcome> {
        let version = EntryHeader::new(record.trx, stream.undo_pos(at));
        let is_done = match &record.body {
            // The chain belongs to no version: no reader uses it.
            Body::Overflow { space, first } if stored.rolled_back => self
                .unless_dropped(*space, |tree| chains::free(tree, *first, version.undo.0, &mut left.pages))?,
            Body::Row { space, key, change, touches } => {
                let marks: Vec<(&Touch, EntryHeader)> = touches
                    .iter()
                    .filter_map(|touch| match &touch.change {
                        EntryChange::Marked(_) if !stored.rolled_back => Some((touch, version)),
                        // It is delete-marked again, as it was when the record that marked it first was purged without
                        // effect.
                        EntryChange::Revived(before) if stored.rolled_back => Some((touch, before.header)),
                        _ => None,
                    })
                    .collect();
                let leaves_something = match change {
                    RowChange::Insert => false,
                    RowChange::Update { header, .. } if stored.rolled_back => header.is_deleted(),
                    RowChange::Update { header, value, kept } => chains::has_replaced(*header, value, *kept),
                    RowChange::Delete { .. } => !stored.rolled_back,
                };
                if !leaves_something && marks.is_empty() {
                    return Ok(Outcome::Purged);
                }
                let Some(_latch) = self.key_latches.try_latch(self.key_latches.name(*space, key)) else {
                    return Ok(Outcome::Busy);
                };
                // A step has log for a number of records, regardless of the number of indexes.
                let room = || self.context.log().reserve(LOG_BYTES_PER_REMOVAL * marks.len() as u64);
                let is_logged = stream.durability() == Durability::Logged;
                let _room = (is_logged && !marks.is_empty()).then(room).transpose()?;
                for (touch, version) in &marks {
                    self.unless_dropped(touch.space, |tree| {
                        remove(tree, *version, &touch.key, &mut left.pages)
                    })?;
                }
                self.unless_dropped(*space, |tree| match change {
                    _ if !leaves_something => Ok(true),
                    RowChange::Update { header, .. } if stored.rolled_back => {
                        remove(tree, *header, key, &mut left.pages)
                    }
                    RowChange::Update { header, value, kept } => {
                        chains::free_of(tree, *header, value, *kept, &mut left.pages)
                    }
                    RowChange::Delete { .. } => remove(tree, version, key, &mut left.pages),
                    RowChange::Insert => Ok(true),
                })?
            }
            Body::Overflow { .. } => true,
        };
        Ok(if is_done { Outcome::Purged } else { Outcome::Cut })
    }

    /// Runs an operation on a tree. A tree that was dropped meanwhile needs nothing.
    fn unless_dropped(&self, space: SpaceId, run: impl FnOnce(&Tree) -> Result<bool>) -> Result<bool> {
        match self.context.tree(space).map(|tree| run(&tree)) {
            None | Some(Err(Error::TableDropped(_))) => Ok(true),
            Some(done) => done,
        }
    }
}

/// Passes over a record that needs no look at its row: it leaves nothing to purge, or a walk will visit it. Returns
/// whether it does.
fn passes_over(stream: &Stream, horizon: &Snapshot, state: &mut PurgeState, record: &InPage<'_>) -> bool {
    let [at, next] = record.at;
    debug_assert!(state.at == at && next <= stream.end(), "purge passes the records of a stream in order");
    if let Some(passed) = state.left.get_mut(&record.trx) {
        passed.note([at / stream.slice_bytes()], record.table, record.leaves_nothing());
    } else if horizon.covers(record.trx) && record.leaves_nothing() {
        read_ahead(stream, state, at);
    } else {
        return false;
    }
    state.at = next;
    true
}

/// Reports that temporary tables cannot be purged now. Returns that no more work can be done at once.
fn warn_of(error: &Error) -> bool {
    tracing::warn!(target: "windfall::undo", %error, "temporary tables could not be purged");
    false
}

/// Reads ahead the slice of a record that can be purged: the records after it can probably be purged, too.
fn read_ahead(stream: &Stream, state: &mut PurgeState, at: u64) {
    if state.reads_ahead(at / stream.slice_bytes()) {
        stream.read_ahead(at);
    }
}

/// Removes an entry that was delete-marked by this version, after freeing the chains of its value. Returns whether both
/// are done.
fn remove(tree: &Tree, version: EntryHeader, key: &[u8], pages: &mut usize) -> Result<bool> {
    let is_it = |header: &EntryHeader| header.is_deleted() && carries(Some(*header), version);
    let mut chains_are_freed = false;
    loop {
        let mut mtr = Mtr::begin(tree.store())?;
        let located = tree.seek_for_change(&mut mtr, key, Room::Keep)?;
        let Some(header) = located.header().filter(is_it) else { return Ok(true) };
        if header.is_plain() || chains_are_freed {
            let small = located.remove(&mut mtr);
            mtr.commit()?;
            if small {
                merge(tree, key);
            }
            return Ok(true);
        }
        drop(mtr);
        let mut value = Vec::new();
        let Some(header) = tree.get_into(key, &mut value)?.filter(is_it) else { return Ok(true) };
        if !chains::free_of(tree, header, &value, KeptChains::default(), pages)? {
            return Ok(false);
        }
        chains_are_freed = true;
    }
}
