//! The rollback of a transaction, as a whole or in part.
//!
//! **Purpose.** Reads the records of a transaction from the last to the first and undoes each of them
//! (`undo::rollback`). A transaction, or a part of it, is *rolled back*; a record is *undone*.
//!
//! **Invariants.** It may be interrupted and restarted at any point (test:
//! `closing_leaves_the_rest_to_the_next_opening`). The records that were undone stay in the chain of the transaction,
//! marked: a later rollback skips them, and purge visits them for what they have left (test:
//! `a_step_frees_a_bounded_number_of_pages`). A rollback that fails, because a full disk leaves no log or because a
//! page cannot be read, continues in the background (`background_rollback`) (test:
//! `a_rollback_stopped_by_a_full_disk_resumes_when_space_is_free`), unless the database has stopped (test:
//! `a_commit_that_the_disk_refuses_fails_all_active_transactions`).

use super::Trx;
use crate::{
    buffer::{self, Durability},
    error::{Error, Result, TransactionError},
    ids::{Lsn, SpaceId, UndoPos},
    sync::is_inside,
    txn::{
        locks::RowName,
        mvcc::Outcome,
        trx::{
            rollback_queue::ChecksExcluded,
            state::{RollbackFrom, RollbackLog, Savepoint, Suspended},
        },
        undo::{
            Stream,
            position::byte_of,
            record::Body,
            rollback::{self, LOG_BYTES_OF_END, RollbackSpace},
        },
    },
};

/// The caller of a rollback, which decides how it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::txn) enum RollbackCaller {
    /// The caller is inside the gate of the record's table.
    Inside,
    /// The caller may be inside or outside of gates, and waits while the table is quiesced.
    Outside,
    /// The background worker. It waits neither for a quiesced table nor for room in a follower, because it has other
    /// transactions to roll back meanwhile.
    Background,
}

/// A record was undone, or had been before.
struct Undone {
    /// The record before it.
    previous: Option<UndoPos>,
}

/// The outcome of a step of a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::txn) enum RollbackStep {
    /// All records of the step are undone.
    Advanced,
    /// The step stopped at a record because its table is quiesced, or the follower of the table has no room.
    Blocked,
}

impl Trx<'_> {
    /// Rolls back the whole transaction. Returns the LSN after it, unless nothing was logged.
    ///
    /// # Errors
    /// The failure that stops it: unless the database has stopped, the rollback continues in the background.
    pub fn rollback(mut self) -> Result<Option<Lsn>> {
        self.rollback_whole(RollbackCaller::Outside)
    }

    /// As [`Trx::rollback`], for a caller that keeps the transaction.
    pub(in crate::txn) fn rollback_whole(&mut self, caller: RollbackCaller) -> Result<Option<Lsn>> {
        debug_assert!(!self.disarmed, "transaction {:?} is rolled back after its end", self.id());
        match buffer::with_reserved_frames(|| self.undo_all_records(caller)) {
            Err(error) if !matches!(error, Error::Poisoned(_) | Error::Closed) => Err(self.hand_over(&error)),
            done => {
                self.end(Outcome::RolledBack);
                done
            }
        }
    }

    /// Hands the transaction over to the background.
    fn hand_over(&mut self, error: &Error) -> Error {
        debug_assert!(
            self.state.records > 0 || self.state.prepared || self.state.rollback_log == RollbackLog::Unknown,
            "a transaction without changes could not be rolled back"
        );
        self.disarmed = true;
        self.reservation = None;
        let id = self.writer_id();
        tracing::warn!(
            target: "windfall::undo",
            trx = id.0, %error, "a transaction could not be rolled back at once",
        );
        let mut state = core::mem::take(&mut self.state);
        state.lock_owner = None;
        self.transactions.rollbacks().add(state);
        // Only what it has changed stays locked, as after a crash: no statement waits for it.
        self.transactions.release_locks(id);
        TransactionError::RollingBack { trx: id, why: error.to_string().into() }.into()
    }

    /// Rolls back to a savepoint. The rows stay locked.
    ///
    /// # Errors
    /// The failure that stops it; the transaction is [broken](Trx::broken) then.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        self.rollback_part(savepoint, RollbackCaller::Outside)
    }

    /// Rolls back to a savepoint the changes of a call that is still inside its gate.
    pub(in crate::txn) fn rollback_call(&mut self, savepoint: &Savepoint) -> Result<()> {
        self.rollback_part(savepoint, RollbackCaller::Inside)
    }

    fn rollback_part(&mut self, savepoint: &Savepoint, caller: RollbackCaller) -> Result<()> {
        if !self.has_changed_since(savepoint) {
            return Ok(());
        }
        debug_assert!(
            self.broken.is_none(),
            "a transaction that must roll back as a whole rolls back a part"
        );
        debug_assert!(
            savepoint.records < self.state.records,
            "transaction {:?} is rolled back to a later state",
            self.id()
        );
        debug_assert!(
            savepoint.temporary.len() <= self.state.temporary.len(),
            "transaction {:?} has lost a stream since a savepoint",
            self.id()
        );
        self.state.rolled_back += 1;
        let lock_owner = self.lock_owner()?;
        let keep = |space: SpaceId, key: &[u8]| {
            self.transactions.lock_manager().make_explicit(&lock_owner, RowName { space, key: key.into() });
        };
        let done = buffer::with_reserved_frames(|| self.undo_records_after(savepoint, caller, &keep));
        self.broken = done.as_ref().err().cloned();
        done
    }

    /// Rolls back up to `records` records. Returns no transaction once it has ended; otherwise returns the transaction,
    /// which continues at the new `from`.
    pub(in crate::txn) fn continue_rollback(
        mut self,
        from: &mut RollbackFrom,
        records: usize,
    ) -> (Option<Suspended>, Result<RollbackStep>) {
        match buffer::with_reserved_frames(|| self.undo_some_records(from, records)) {
            Ok(None) => {
                self.end(Outcome::RolledBack);
                (None, Ok(RollbackStep::Advanced))
            }
            Ok(Some(undone)) => (Some(self.suspend()), Ok(undone)),
            Err(error) => (Some(self.suspend()), Err(error)),
        }
    }

    /// Returns the outcome of the step, unless the rollback is complete.
    fn undo_some_records(&mut self, from: &mut RollbackFrom, records: usize) -> Result<Option<RollbackStep>> {
        let mut pos = match *from {
            RollbackFrom::Record(pos) => Some(pos),
            RollbackFrom::End => None,
            RollbackFrom::Begin => {
                self.revoke_prepare()?;
                // No check examines temporary tables.
                self.undo_temporary_records(&Savepoint::default(), RollbackCaller::Outside, &|_, _| {})?;
                self.logged().map(|(_, last)| last)
            }
        };
        if let Some((stream, _)) = self.logged() {
            for _ in 0..records {
                let Some(at) = pos else { break };
                let undone = self.undo_record(stream, at, RollbackCaller::Background, &|_, _| {})?;
                let Some(Undone { previous }) = undone else { return Ok(Some(RollbackStep::Blocked)) };
                debug_assert!(previous != Some(at), "a record of a transaction is its own predecessor");
                pos = previous;
                *from = previous.map_or(RollbackFrom::End, RollbackFrom::Record);
            }
        }
        if pos.is_some() {
            return Ok(Some(RollbackStep::Advanced));
        }
        self.log_end_of_rollback()?;
        Ok(None)
    }

    fn undo_all_records(&mut self, caller: RollbackCaller) -> Result<Option<Lsn>> {
        self.revoke_prepare()?;
        self.undo_records_after(&Savepoint::default(), caller, &|_, _| {})?;
        self.log_end_of_rollback()
    }

    fn log_end_of_rollback(&self) -> Result<Option<Lsn>> {
        if self.logged().is_none() {
            return Ok(None);
        }
        let _room = self.rollback_space.room(self.transactions.log(), LOG_BYTES_OF_END)?;
        self.append_end_group()
    }

    /// Undoes the records after a savepoint, the last one first. `keep` is called with each row before its record is
    /// undone. The records stay in the chain of the transaction: purge visits them for what they have left.
    fn undo_records_after(
        &self,
        savepoint: &Savepoint,
        caller: RollbackCaller,
        keep: &dyn Fn(SpaceId, &[u8]),
    ) -> Result<()> {
        self.undo_temporary_records(savepoint, caller, keep)?;
        let Some((stream, last)) = self.logged() else { return Ok(()) };
        let mut next = Some(last);
        while let Some(pos) = next.filter(|_| next != savepoint.logged) {
            let undone = self.undo_record(stream, pos, caller, keep)?;
            next = undone.expect("only the background does not wait").previous;
        }
        Ok(())
    }

    fn undo_temporary_records(
        &self,
        savepoint: &Savepoint,
        caller: RollbackCaller,
        keep: &dyn Fn(SpaceId, &[u8]),
    ) -> Result<()> {
        for (n, (stream, last)) in self.state.temporary.iter().enumerate() {
            let first = savepoint.temporary.get(n).copied().flatten();
            let mut next = *last;
            while let Some(pos) = next.filter(|_| next != first) {
                next = match self.undo_record(stream, pos, caller, keep) {
                    // The session of these tables has ended, and the tables are dropped.
                    Err(Error::TableDropped(_)) => break,
                    undone => undone?.expect("it waits while the table is quiesced").previous,
                };
            }
        }
        Ok(())
    }

    /// Undoes one record, unless it was purged or undone before. Returns `None` if the worker would have to wait
    /// because the table is quiesced or its follower has no room.
    fn undo_record(
        &self,
        stream: &Stream,
        pos: UndoPos,
        caller: RollbackCaller,
        keep: &dyn Fn(SpaceId, &[u8]),
    ) -> Result<Option<Undone>> {
        let at = byte_of(pos);
        let Some(stored) = stream.record(at)? else { return Ok(Some(Undone { previous: None })) };
        let record = stream.decode(at, &stored)?;
        let undone = Undone { previous: record.previous };
        if stored.rolled_back {
            return Ok(Some(undone));
        }
        if let Body::Row { space, .. } = &record.body
            && let Some(follower) = self.transactions.followers().of(*space)
        {
            match caller {
                RollbackCaller::Background if follower.is_full() => return Ok(None),
                // Making room may require waiting for a call that is inside a gate.
                RollbackCaller::Outside if !is_inside() => follower.wait_for_room(),
                RollbackCaller::Inside | RollbackCaller::Outside | RollbackCaller::Background => {}
            }
        }
        let table = self.transactions.pool().space(record.body.table());
        let excluded = match (caller, &table) {
            (RollbackCaller::Inside, _) => ChecksExcluded::InsideGate,
            (_, None) => ChecksExcluded::Dropped,
            (RollbackCaller::Outside, Some(table)) => {
                ChecksExcluded::Locked { _guard: table.check_lock().read() }
            }
            (RollbackCaller::Background, Some(table)) => match table.check_lock().try_read() {
                None => return Ok(None),
                Some(guard) => ChecksExcluded::Locked { _guard: guard },
            },
        };
        if let Body::Row { space, key, .. } = &record.body {
            keep(*space, key);
        }
        let asks = self.rollback_space != RollbackSpace::Ahead && stream.durability() == Durability::Logged;
        let bytes = if asks { rollback::log_for(self.transactions.undo_context(), &record)? } else { 0 };
        let _room = if asks { self.rollback_space.room(self.transactions.log(), bytes)? } else { None };
        rollback::undo(self.transactions.undo_context(), self.transactions.followers(), stream, at, &record)
            .inspect_err(|_| {
                let (id, table) = (self.writer_id(), record.body.table());
                self.transactions.rollbacks().note_partial_change(id, table, &excluded);
            })?;
        debug_assert!(
            self.transactions.active().is_active(record.trx),
            "transaction {} has ended, and the follower of a table learns only now that it was rolled back",
            record.trx
        );
        Ok(Some(undone))
    }
}
