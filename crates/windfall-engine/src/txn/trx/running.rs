//! A transaction: its undo, its end and its rollback.
//!
//! **Purpose.** All row changes are made by a transaction: by a single call, or by several, between which it is
//! [`Suspended`]. A transaction gets its id when it first writes or locks something.
//!
//! **Invariants.** `TrxBegin` is logged in the group of the first undo record (test:
//! `runs_crash_between_the_groups_of_a_write`). `TrxEnd` is logged in the group that makes the last change, or in a
//! group of its own, and a commit logs no more than that (test: `a_commit_logs_nothing_but_its_end`). A transaction
//! that is dropped without an end is rolled back (test: `dropping_the_handle_rolls_back_the_transaction`).
//!
//! The rollback (`rollback`) needs a few small log groups per record, which were reserved before the change
//! ([`LogReservation`]) (test: `a_call_appends_no_more_than_its_reservation`). Between two calls of a transaction the
//! log that its rollback needs stays reserved, up to a fraction of the log (checked by `trx/running.rs::suspend`). A
//! longer transaction would hold as much log as it has undo, so its rollback reserves log record by record (test:
//! `a_rollback_stopped_by_a_full_disk_resumes_when_space_is_free`).
//!
//! A prepared transaction is committed or rolled back when that is requested by its handle or its name (`prepared`),
//! and by nothing else, not even a crash (test: `prepared_transactions_survive_every_crash_and_ended_ones_stay_ended`).
//! `TrxPrepare` records in the log that it is prepared, and also that it will be rolled back after all, before its
//! first record is undone (test: `a_partly_rolled_back_transaction_is_not_prepared_any_more`).

mod rollback;

pub(in crate::txn) use rollback::{RollbackCaller, RollbackStep};
use smallvec::SmallVec;

use super::{
    manager::{Transactions, notes_most},
    state::{RollbackLog, Savepoint, Suspended},
};
use crate::{
    buffer::Durability,
    error::{Error, Owner, Result, TransactionError},
    ids::{Lsn, SpaceId, TrxId, UndoPos},
    log::{LogReservation, Record},
    mtr::Mtr,
    page::EntryHeader,
    sync::Arc,
    txn::{
        locks::{Inserter, LockOwner, RowMode, RowName},
        mvcc::{Outcome, ReadView},
        undo::{
            Stream,
            position::byte_of,
            record::UndoRecord,
            rollback::{LOG_BYTES_OF_END, LOG_BYTES_PER_ENTRY, RollbackSpace},
            stream::{Appender, HEAD, Place},
        },
    },
};

/// The divisor of the log size that limits the reservation of one transaction between its calls.
const RESERVATION_DIVISOR: u64 = 16;

/// The requirements of an isolation level, or of a call, on changes.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Gap locking: a key that was found missing stays missing until the transaction has ended.
    pub gaps: bool,
    /// A version that this read view does not see must not be replaced.
    pub strict: Option<Arc<ReadView>>,
    /// The mode in which a row stays locked that has the key, or the key of a unique index, that a change would take.
    pub duplicate_lock: Option<RowMode>,
}

/// A running transaction.
#[derive(Debug)]
pub struct Trx<'e> {
    transactions: &'e Transactions,
    state: Suspended,
    /// Nothing is rolled back when it is dropped: it has ended, or its state is with another owner.
    disarmed: bool,
    rollback_space: RollbackSpace,
    /// Why a partial rollback has failed: the transaction must roll back as a whole.
    broken: Option<Error>,
    /// The requirements of its isolation level and its call on its changes.
    pub rules: Rules,
    /// The rows that this call has waited for, each with the mode in which it would hold the lock without the wait.
    waited_for: SmallVec<[(RowName, Option<RowMode>); 1]>,
    /// Log reserved for the changes of this call and for the rollback.
    reservation: Option<LogReservation<'e>>,
}

impl<'e> Trx<'e> {
    /// Returns a transaction that has written nothing yet.
    pub fn new(transactions: &'e Transactions) -> Self {
        let state = Suspended::default();
        Self {
            transactions,
            state,
            disarmed: false,
            rules: Rules::default(),
            waited_for: SmallVec::new(),
            rollback_space: RollbackSpace::Ahead,
            broken: None,
            reservation: None,
        }
    }

    /// Resumes a suspended transaction.
    pub fn resume(transactions: &'e Transactions, mut state: Suspended) -> Self {
        let bytes = core::mem::take(&mut state.reserved_bytes);
        let needed = state.rollback_log.within(bytes);
        debug_assert!(
            needed.is_none_or(|needed| needed == bytes),
            "more log stays reserved for transaction {:?} than its rollback needs",
            state.id()
        );
        let rollback_space = if needed.is_some() { RollbackSpace::Ahead } else { RollbackSpace::PerRecord };
        let reservation = (bytes > 0).then(|| transactions.log().attach_bytes(bytes));
        let (rules, waited_for) = (Rules::default(), SmallVec::new());
        Self {
            transactions,
            state,
            disarmed: false,
            rules,
            waited_for,
            rollback_space,
            broken: None,
            reservation,
        }
    }

    /// Suspends the transaction, to be resumed. The log reserved for its rollback stays reserved, unless it is too
    /// much; if the transaction is prepared, that for its end does in any case.
    pub fn suspend(mut self) -> Suspended {
        debug_assert!(!self.disarmed, "a transaction is suspended after its end, or twice");
        debug_assert!(self.broken.is_none(), "a transaction continues after a partial rollback has failed");
        self.disarmed = true;
        let mut state = core::mem::take(&mut self.state);
        let most = self.transactions.log().size() / RESERVATION_DIVISOR;
        let of_end = if state.prepared { LOG_BYTES_OF_END } else { 0 };
        let kept = state.rollback_log.within(most).unwrap_or(of_end);
        state.reserved_bytes =
            self.reservation.take().map_or(0, |reservation| reservation.detach_bytes(kept));
        debug_assert!(state.reserved_bytes <= most, "a transaction keeps more log reserved than it may");
        debug_assert!(
            state.reserved_bytes >= of_end || state.rollback_log == RollbackLog::Unknown,
            "transaction {:?} is prepared, and no log is reserved for its commit",
            state.id()
        );
        debug_assert!(
            state.id().is_none_or(|id| self.transactions.active().is_active(id)),
            "transaction {:?} is suspended and not active",
            state.id()
        );
        state
    }

    pub(in crate::txn) fn transactions(&self) -> &'e Transactions {
        self.transactions
    }

    /// Reserves log for a change and its rollback, before the change. It is kept until the transaction has ended.
    ///
    /// # Errors
    /// A full disk, or another failure to make room.
    pub(in crate::txn) fn reserve_log(&mut self, bytes: u64) -> Result<()> {
        debug_assert!(!self.disarmed, "log is reserved for a transaction that has ended");
        if let Some(reservation) = &mut self.reservation {
            return reservation.extend(bytes);
        }
        self.reservation = Some(self.transactions.log().reserve(bytes)?);
        Ok(())
    }

    /// As [`Trx::reserve_log`], for a caller that holds a latch: no log segment is created. Returns whether the log is
    /// reserved.
    pub(in crate::txn) fn try_reserve(&mut self, bytes: u64) -> Result<bool> {
        let Some(more) = self.transactions.log().try_reserve(bytes)? else {
            return Ok(false);
        };
        match &mut self.reservation {
            Some(reservation) => reservation.join(more),
            None => self.reservation = Some(more),
        }
        Ok(true)
    }

    /// Returns its id; `None` while it has neither written nor locked.
    pub fn id(&self) -> Option<TrxId> {
        self.state.id()
    }

    /// Returns the number of partial rollbacks.
    pub fn rolled_back(&self) -> u64 {
        self.state.rolled_back()
    }

    /// Returns how many of its changes have added entries to a tree, those that were rolled back included.
    pub fn added(&self) -> u64 {
        self.state.added
    }

    /// Records that the change of a row adds entries to its trees.
    pub(in crate::txn) fn note_addition(&mut self) {
        self.state.added += 1;
    }

    /// Returns it as the transaction of an insert.
    pub(in crate::txn) fn inserter(&self) -> Inserter {
        Inserter { trx: self.id(), ordering_group: self.state.options.ordering_group }
    }

    /// Returns its id, which it has because it has written, or is about to.
    pub(in crate::txn) fn writer_id(&self) -> TrxId {
        self.id().expect("a transaction that writes has an id")
    }

    /// Refuses to replace a version that a strict read view does not see.
    pub(in crate::txn) fn check_unchanged(
        &self,
        header: EntryHeader,
        owner: impl FnOnce() -> Owner,
    ) -> Result<()> {
        match &self.rules.strict {
            Some(view) if Some(header.trx) != self.id() && !view.sees(header.trx) => {
                Err(TransactionError::Changed(owner()).into())
            }
            _ => Ok(()),
        }
    }

    /// Refuses work by a strict read view that was ended before the work was complete: rows may have been missed.
    ///
    /// # Errors
    /// [`TransactionError::ViewEnded`].
    pub fn check_strict(&self) -> Result<()> {
        self.rules.strict.as_ref().map_or(Ok(()), |view| view.held(Ok(())))
    }

    /// Returns its id, and assigns one if it has none.
    ///
    /// # Errors
    /// If the log accepts no more records.
    pub fn ensure_id(&mut self) -> Result<TrxId> {
        debug_assert!(!self.disarmed, "a transaction that has ended gets an id");
        if let Some(id) = self.id() {
            return Ok(id);
        }
        let (id, ending) = self.transactions.active().begin(self.state.options)?;
        self.state.identity = Some((id, ending));
        Ok(id)
    }

    /// Returns its lock owner.
    ///
    /// # Errors
    /// As [`Trx::ensure_id`].
    pub fn lock_owner(&mut self) -> Result<Arc<LockOwner>> {
        if let Some(lock_owner) = &self.state.lock_owner {
            return Ok(lock_owner.clone());
        }
        let id = self.ensure_id()?;
        let all = self.transactions;
        let owner = all.active().lock_owner(id, all.lock_manager()).expect("it is active until it ends");
        debug_assert!(!self.disarmed, "transaction {id} has ended and requests a lock");
        owner.add_weight(self.state.records);
        owner.begin_call(self.state.call);
        self.state.lock_owner = Some(owner.clone());
        Ok(owner)
    }

    /// Notes that it is about to wait for a row on which it holds this lock.
    pub(in crate::txn) fn note_wait(&mut self, row: &RowName, held: Option<RowMode>) {
        if self.waited_for.iter().all(|(known, _)| known != row) {
            self.waited_for.push((row.clone(), held));
        }
    }

    /// Returns the lock that it held on a row for which this call has waited; `None` if the call has not.
    #[expect(clippy::option_option, reason = "a row that was waited for may have been locked before or not")]
    pub(in crate::txn) fn waited_for(&self, space: SpaceId, key: &[u8]) -> Option<Option<RowMode>> {
        let is_it = |known: &RowName| known.space == space && *known.key == *key;
        self.waited_for.iter().find(|(known, _)| is_it(known)).map(|(_, held)| *held)
    }

    /// Notes a request for a lock that it would have taken without the wait, too.
    pub(in crate::txn) fn note_lock(&mut self, space: SpaceId, key: &[u8], mode: RowMode) {
        let is_it = |known: &RowName| known.space == space && *known.key == *key;
        if let Some((_, held)) = self.waited_for.iter_mut().find(|(known, _)| is_it(known)) {
            *held = (*held).max(Some(mode));
        }
    }

    /// The call has failed: of the locks that it has waited for it keeps only what it would hold without the wait. A
    /// lock that was waited for is exclusive, so that several waiters for one key do not all upgrade a shared lock.
    pub fn downgrade_waits(&mut self) {
        self.downgrade_waits_for(|_| true);
    }

    /// As [`Trx::downgrade_waits`], for certain rows.
    pub(in crate::txn) fn downgrade_waits_for(&mut self, is_meant: impl Fn(&RowName) -> bool) {
        let Some(lock_owner) = &self.state.lock_owner else { return };
        let locks = self.transactions.lock_manager();
        self.waited_for.retain(|(row, held)| {
            let is_meant = is_meant(row);
            if is_meant {
                locks.downgrade_row(lock_owner, row, *held);
            }
            !is_meant
        });
    }

    /// Returns whether it has written undo records since the savepoint.
    pub fn has_changed_since(&self, savepoint: &Savepoint) -> bool {
        self.state.records != savepoint.records
    }

    /// Returns its lock owner, if it has requested any lock.
    pub(in crate::txn) fn lock_owner_if_any(&self) -> Option<&LockOwner> {
        self.state.lock_owner.as_deref()
    }

    /// Acquires the right to append undo records: to the stream of temporary tables if one is given, else to a logged
    /// one. Must be called without a latch.
    ///
    /// # Errors
    /// If the log accepts no more records.
    pub fn tail<'t>(&mut self, temporary: Option<&'t Arc<Stream>>) -> Result<Appender<'t>>
    where
        'e: 't,
    {
        debug_assert!(!self.state.prepared, "a prepared transaction appends undo");
        let transactions = self.transactions;
        if let Some(stream) = temporary {
            debug_assert!(
                stream.durability() == Durability::Temporary,
                "the stream of a temporary table is logged"
            );
            if !self.state.temporary.iter().any(|(known, _)| Arc::ptr_eq(known, stream)) {
                self.state.temporary.push((stream.clone(), None));
            }
            self.ensure_id()?;
            return Ok(stream.lock());
        }
        let (number, _) =
            *self.state.logged.get_or_insert_with(|| (transactions.streams().pick().number(), None));
        let tail = transactions.streams().get(number.into()).lock();
        debug_assert!(tail.durability() == Durability::Logged, "a row that is logged has undo that is not");
        self.ensure_id()?;
        Ok(tail)
    }

    /// Ensures that a record of up to `bytes` bytes has slices to be written to. If it is the first one, it also notes
    /// its future position for checkpoints. Must be called without a latch.
    ///
    /// # Errors
    /// I/O, a full disk; more transactions than a checkpoint can name.
    pub fn reserve(&self, tail: &mut Appender<'_>, bytes: usize) -> Result<()> {
        tail.reserve(bytes)?;
        if tail.durability() == Durability::Logged && self.previous(tail).is_none() {
            self.transactions.active().note_first(
                self.writer_id(),
                tail.position(),
                notes_most(self.transactions.pool()),
            )?;
        }
        Ok(())
    }

    /// Returns the record before the next one in the stream of `tail`, which [`Trx::tail`] has returned; `None` if the
    /// next one is the first.
    pub fn previous(&self, tail: &Appender<'_>) -> Option<UndoPos> {
        match tail.durability() {
            Durability::Logged => self.state.logged.and_then(|(_, last)| last),
            Durability::Temporary => {
                let known = self.state.temporary.iter().find(|(stream, _)| tail.is_of(stream));
                known.and_then(|(_, last)| *last)
            }
        }
    }

    /// Writes an undo record into its place, in the mini-transaction that makes the change. The record is in a buffer
    /// of `tail`.
    ///
    /// `table` is the clustered tree. `entries` is the number of secondary entries that the record names.
    pub(crate) fn write_undo(
        &mut self,
        mtr: &mut Mtr<'_>,
        tail: &mut Appender<'_>,
        place: Place,
        record: Vec<u8>,
        table: SpaceId,
        entries: usize,
    ) {
        let id = self.writer_id();
        debug_assert!(!self.disarmed, "transaction {id} writes undo after its end");
        debug_assert!(!self.state.prepared, "transaction {id} writes undo and is prepared");
        debug_assert!(
            UndoRecord::decode(&record[HEAD..])
                .is_ok_and(|made| (made.trx, made.previous) == (id, self.previous(tail))),
            "the record is no part of the chain of transaction {id}"
        );
        // Usually it is the table of the record before.
        let touched = &mut self.state.touched;
        if tail.durability() == Durability::Logged
            && touched.last() != Some(&table)
            && !touched.contains(&table)
        {
            touched.push(table);
        }
        let length = record.len() as u64;
        let pos = tail.write(mtr, place, record);
        let last = match tail.durability() {
            Durability::Logged => self.state.logged.as_mut().map(|(_, last)| last),
            Durability::Temporary => {
                let mut known = self.state.temporary.iter_mut();
                known.find(|(stream, _)| tail.is_of(stream)).map(|(_, last)| last)
            }
        };
        let last = last.expect("the tail was given by this transaction");
        debug_assert!(
            last.is_none_or(|last| byte_of(last) < byte_of(pos)),
            "the records of transaction {id} in a stream do not follow each other"
        );
        if last.is_none() && tail.durability() == Durability::Logged {
            mtr.record(&Record::TrxBegin { trx: id, first: pos });
        }
        *last = Some(pos);
        if tail.durability() == Durability::Logged {
            let end = if self.state.rollback_log == RollbackLog::Bytes(0) { LOG_BYTES_OF_END } else { 0 };
            self.state
                .rollback_log
                .add(end + LOG_BYTES_OF_END + LOG_BYTES_PER_ENTRY * (1 + entries as u64) + length);
        }
        self.state.records += 1;
    }

    /// Adds to the log that the rollback needs; the caller has reserved it.
    pub(in crate::txn) fn extend_rollback_space(&mut self, bytes: u64) {
        self.state.rollback_log.add(bytes);
    }

    /// Returns its logged stream and the last record there, if it has written one.
    fn logged(&self) -> Option<(&'e Stream, UndoPos)> {
        let (number, last) = self.state.logged?;
        Some((self.transactions.streams().get(number.into()), last?))
    }

    /// Logs the end in the mini-transaction that makes the last change. [`Trx::end`] follows its commit.
    pub(crate) fn append_trx_end(&self, mtr: &mut Mtr<'_>) {
        debug_assert!(!self.disarmed, "transaction {:?} logs its end after it", self.id());
        if let (Some((stream, _)), Some((id, ending))) = (self.logged(), &self.state.identity) {
            ending.announce(self.transactions.log().end());
            mtr.record(&Record::TrxEnd { trx: *id, stream: stream.number() });
        }
    }

    /// Prepares the transaction: from now on it survives a crash, by this name, and no more changes are allowed.
    /// Returns the LSN to wait for; `None` if it has logged nothing, and so has nothing to lose.
    ///
    /// # Errors
    /// A full disk, or more names than a checkpoint can note: the transaction continues as if this had not been called.
    pub fn prepare(&mut self, name: &Arc<[u8]>) -> Result<Option<Lsn>> {
        debug_assert!(
            !self.disarmed && !self.state.prepared,
            "a transaction is prepared twice, or after its end"
        );
        let id = self.ensure_id()?;
        if self.logged().is_none() {
            // A call that has failed may have noted a position.
            self.transactions.active().forget_first(id);
            return Ok(None);
        }
        let log = self.transactions.log();
        // Log to prepare and to revoke that.
        let _room = log.admit(LOG_BYTES_OF_END)?;
        self.reserve_log(LOG_BYTES_OF_END)?;
        self.extend_rollback_space(LOG_BYTES_OF_END);
        let most = notes_most(self.transactions.pool());
        self.transactions.active().set_prepared(id, Some(name), most)?;
        let end = self.log_prepared(id, name)?;
        debug_assert!(
            self.transactions.active().prepared(id).as_deref() == Some(&name[..]),
            "transaction {id} is prepared by another name than a checkpoint would give it"
        );
        self.state.prepared = true;
        Ok(end)
    }

    /// Revokes the prepare, because a transaction that is partly rolled back must not be committed after a crash.
    /// Returns the LSN up to which the log must be durable so that recovery does not find it prepared; `None` if it was
    /// not.
    ///
    /// # Errors
    /// A full disk: it is still prepared.
    pub fn revoke_prepare(&mut self) -> Result<Option<Lsn>> {
        if !self.state.prepared {
            return Ok(None);
        }
        let id = self.writer_id();
        let _room = self.rollback_space.room(self.transactions.log(), LOG_BYTES_OF_END)?;
        // This comes first: a checkpoint that reads the table in between relies on the record, which is above its
        // low-water mark.
        self.transactions.active().set_prepared(id, None, 0)?;
        let end = self.log_prepared(id, &[])?;
        debug_assert!(
            self.transactions.active().prepared(id).is_none(),
            "the prepare of transaction {id} is revoked, and a checkpoint would name it as prepared"
        );
        self.state.prepared = false;
        Ok(end)
    }

    fn log_prepared(&self, trx: TrxId, name: &[u8]) -> Result<Option<Lsn>> {
        let mut mtr = Mtr::begin(self.transactions.pool())?;
        mtr.record(&Record::TrxPrepare { trx, xid: name.into() });
        mtr.commit()
    }

    /// Commits: other transactions see the changes when this returns, before they are durable. Returns the LSN to wait
    /// for, unless nothing was logged.
    ///
    /// # Errors
    /// If the log accepts no more records, or the disk is full and no log was reserved ahead: the transaction has not
    /// ended then. A prepared transaction has log reserved, unless the disk was full when the database was opened.
    pub fn commit(&mut self) -> Result<Option<Lsn>> {
        assert!(self.broken.is_none(), "a transaction commits and could not roll back a part of it");
        let end = match self.logged() {
            Some(_) if self.has_log_of_end() => self.append_end_group()?,
            Some(_) => {
                let _room = self.rollback_space.room(self.transactions.log(), LOG_BYTES_OF_END)?;
                self.append_end_group()?
            }
            None => None,
        };
        self.end(Outcome::Committed);
        Ok(end)
    }

    /// Returns whether the transaction is prepared, and has kept log for its end since then.
    fn has_log_of_end(&self) -> bool {
        let reserved = self.reservation.as_ref().map_or(0, LogReservation::bytes);
        self.state.prepared && reserved >= LOG_BYTES_OF_END
    }

    fn append_end_group(&self) -> Result<Option<Lsn>> {
        if self.logged().is_none() {
            return Ok(None);
        }
        let mut mtr = Mtr::begin(self.transactions.pool())?;
        self.append_trx_end(&mut mtr);
        mtr.commit()
    }

    /// Ends the transaction, which has logged its end if it had to.
    pub(in crate::txn) fn end(&mut self, outcome: Outcome) {
        debug_assert!(!self.disarmed, "transaction {:?} ends twice", self.id());
        self.disarmed = true;
        let Some(id) = self.id() else { return };
        self.transactions.rollbacks().forget_partial_change(id);
        // It may have an id all the same: it has waited for a lock, or was about to write undo.
        let has_effect = !self.state.is_single_call || self.state.records > 0;
        let outcome = if has_effect { outcome } else { Outcome::NoEffect };
        let (has_skipped_records, lock_owner) = self.transactions.active().end(id, outcome);
        // Waiters for its locks check whether it has ended.
        if let Some(lock_owner) = lock_owner {
            self.transactions.lock_manager().end(&lock_owner);
        }
        if has_skipped_records {
            if let Some((stream, last)) = self.logged() {
                stream.schedule_walk(id, last);
            }
            for (stream, last) in &self.state.temporary {
                if let Some(last) = last {
                    stream.schedule_walk(id, *last);
                    self.transactions.purge().schedule_temporary(stream);
                }
            }
            self.transactions.purge().wake().notify();
        }
    }

    /// Releases its locks except those on what it has changed.
    pub fn release_unchanged(&mut self) {
        self.state.lock_owner = None;
        let Some(id) = self.id() else { return };
        let before = self.transactions.release_locks(id);
        // The interrupt was not delivered yet.
        if before.is_some_and(|lock_owner| lock_owner.take_interrupt()) {
            self.transactions.interrupt(id);
        }
    }

    /// Returns why a partial rollback has failed. The whole transaction is rolled back when it is dropped.
    pub fn broken(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    /// Returns the current position in its undo.
    pub fn savepoint(&self) -> Savepoint {
        self.state.savepoint()
    }
}

impl Drop for Trx<'_> {
    fn drop(&mut self) {
        if !self.disarmed {
            // A failure is reported to callers that wait for its rows, or has stopped the database.
            let _ = self.rollback_whole(RollbackCaller::Outside);
        }
    }
}
