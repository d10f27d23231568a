//! A transaction: its undo, its end and its rollback.
//!
//! **Purpose.** All row changes are made by a transaction: by a single call, or by several, between which it is
//! [`Suspended`]. A transaction gets its id when it first writes or locks something.
//!
//! **Invariants.** `TrxBegin` is logged in the group of the first undo record. `TrxEnd` is logged in the group that
//! makes the last change, or in a group of its own; a commit is no more than that. A transaction that is dropped
//! without an end is rolled back.
//!
//! Rollback reads the records from the last to the first and undoes each of them (`rollback`). It may be interrupted
//! and restarted at any point. It needs a few small log groups per record, which were reserved before the change
//! ([`LogReservation`]). Between two calls of a transaction the log that its rollback needs stays
//! reserved, up to a fraction of the log. A longer transaction would hold as much log as it has undo, so its rollback
//! reserves log record by record. A rollback that fails, because a full disk leaves no such log or because a page
//! cannot be read, continues in the background (`rollbacks`).
//!
//! A prepared transaction is committed or rolled back when that is requested by its name (`prepared`), and by nothing
//! else, not even a crash. `TrxPrepare` records in the log that it is prepared, and also that it will be rolled back
//! after all, before its first record is undone.
//!
//! Changes after a savepoint are rolled back in the same way, and the records stay in the chain: the next record links
//! to them, a later rollback skips what is marked, and purge finds what they have left. The rows stay locked.

use smallvec::SmallVec;

use super::{
    Transactions,
    active::{Active, Ending, ReadView},
    locks::{LockOwner, RowMode, RowName},
    notes_most,
    rollback::{self, LOG_OF_END, LOG_PER_ENTRY, RollbackSpace},
    stream::{Place, Stream, Tail},
    undo_record::Body,
};
use crate::{
    buffer::{self, Durability},
    error::{Error, Owner, Result, TransactionError},
    ids::{Lsn, SpaceId, TrxId, UndoPos},
    log::{LogReservation, Record},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{Arc, Bug, is_inside, planted},
    tree::hash::TreeHash,
};

/// The divisor of the log size that limits the reservation of one transaction between its calls.
const STANDING: u64 = 16;

/// A transaction between two calls: the state that is needed to continue it or to roll it back.
#[derive(Debug, Default)]
pub struct Suspended {
    id: TrxId,
    /// The stream of its logged records, and the last of them ([`UndoPos::NONE`] if none is written yet).
    logged: Option<(u8, UndoPos)>,
    /// The same for the streams of temporary tables.
    temporary: SmallVec<[(Arc<Stream>, UndoPos); 1]>,
    /// Where it announces that it is about to log its end.
    ending: Option<Ending>,
    /// The number of records that it has written.
    records: u64,
    /// The number of partial rollbacks.
    rolled_back: u64,
    /// Interrupts up to this number came before its current call or statement.
    interrupts: u64,
    /// The log that its full rollback needs, in bytes.
    way_back: u64,
    /// The part of that which stays reserved, in bytes.
    reserved_bytes: u64,
    /// The tables that it has changed, by their clustered trees, except temporary ones.
    touched: SmallVec<[SpaceId; 2]>,
    /// It is prepared, and the log says so.
    prepared: bool,
    /// Its lock owner, once it has requested a lock.
    lock_owner: Option<Arc<LockOwner>>,
}

impl Suspended {
    /// A transaction that recovery has found unfinished, with its last record and the tables that it has changed. The
    /// log that its rollback needs is unknown.
    pub(super) fn found(
        active: &Active,
        id: TrxId,
        last: UndoPos,
        touched: impl IntoIterator<Item = SpaceId>,
        prepared: bool,
    ) -> Self {
        let logged = (last != UndoPos::NONE).then(|| (Stream::number_of(last), last));
        let touched = touched.into_iter().collect();
        Self {
            id,
            logged,
            ending: active.ending(id),
            way_back: u64::MAX,
            touched,
            prepared,
            ..Self::default()
        }
    }

    /// Returns the tables that it has changed, by their clustered trees, except temporary ones.
    pub(super) fn touched(&self) -> &[SpaceId] {
        &self.touched
    }

    /// Returns its id; [`TrxId::NONE`] while it has neither written nor locked.
    pub fn id(&self) -> TrxId {
        self.id
    }

    /// Returns the number of partial rollbacks.
    pub fn rolled_back(&self) -> u64 {
        self.rolled_back
    }

    /// Begins a call or statement: interrupts of an earlier one no longer apply.
    pub fn forget_interrupts(&mut self, transactions: &Transactions) {
        self.interrupts = transactions.lock_manager.interrupts();
    }

    /// Returns the current position in its undo.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            logged: self.logged.map_or(UndoPos::NONE, |(_, last)| last),
            temporary: self.temporary.iter().map(|(_, last)| *last).collect(),
            records: self.records,
        }
    }
}

/// A position in a transaction's undo: the changes after it can be rolled back.
#[derive(Clone, Debug, Default)]
pub struct Savepoint {
    logged: UndoPos,
    temporary: SmallVec<[UndoPos; 1]>,
    records: u64,
}

/// The requirements of an isolation level on changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'v> {
    /// Gap locking: a key that was found missing stays missing until the transaction has ended.
    pub gaps: bool,
    /// A version that this read view does not see must not be replaced.
    pub strict: Option<&'v ReadView>,
}

/// The caller of a rollback, which decides how it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RollbackCaller {
    /// The caller is inside the gate of the record's table.
    Inside,
    /// The caller may be inside or outside of gates, and waits while the table is quiesced.
    Outside,
    /// The background worker. It waits neither for a quiesced table nor for room in a follower, because it has other
    /// transactions to roll back meanwhile.
    Background,
}

/// The outcome of a step of a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RollbackStep {
    /// All records of the step are undone.
    Advanced,
    /// The step stopped at a record because its table is quiesced, or the follower of the table has no room.
    Blocked,
}

/// A running transaction.
#[derive(Debug)]
pub struct Trx<'e> {
    transactions: &'e Transactions,
    state: Suspended,
    ended: bool,
    way_back: RollbackSpace,
    /// Why a partial rollback has failed: the transaction must roll back as a whole.
    broken: Option<Error>,
    /// The requirements of its isolation level on its changes.
    pub rules: Rules<'e>,
    /// The rows that this call has waited for, and the locks on them that it would have without that.
    waited_for: SmallVec<[(RowName, Option<RowMode>); 1]>,
    /// Log reserved for the changes of this call and for the rollback.
    reservation: Option<LogReservation<'e>>,
}

impl<'e> Trx<'e> {
    /// A transaction that has written nothing yet.
    pub fn new(transactions: &'e Transactions) -> Self {
        let state = Suspended::default();
        Self {
            transactions,
            state,
            ended: false,
            rules: Rules::default(),
            waited_for: SmallVec::new(),
            way_back: RollbackSpace::Ahead,
            broken: None,
            reservation: None,
        }
    }

    /// Resumes a suspended transaction.
    pub fn resume(transactions: &'e Transactions, mut state: Suspended) -> Self {
        let bytes = core::mem::take(&mut state.reserved_bytes);
        let way_back = if state.way_back <= bytes { RollbackSpace::Ahead } else { RollbackSpace::PerRecord };
        let reservation = (bytes > 0).then(|| transactions.log().take_up(bytes));
        let (rules, waited_for) = (Rules::default(), SmallVec::new());
        Self { transactions, state, ended: false, rules, waited_for, way_back, broken: None, reservation }
    }

    /// Suspends the transaction, to be resumed. The log reserved for its rollback stays reserved, unless it is too
    /// much.
    pub fn suspend(mut self) -> Suspended {
        self.ended = true;
        let mut state = core::mem::take(&mut self.state);
        let most = self.transactions.log().size() / STANDING;
        let kept = if state.way_back <= most { state.way_back } else { 0 };
        state.reserved_bytes = self.reservation.take().map_or(0, |reservation| reservation.leave(kept));
        state
    }

    pub(super) fn transactions(&self) -> &'e Transactions {
        self.transactions
    }

    /// Reserves log for a change and its rollback, before the change. It is kept until the transaction has ended.
    ///
    /// # Errors
    /// A full disk, or another failure to make room.
    pub(super) fn reserve_log(&mut self, bytes: u64) -> Result<()> {
        if let Some(reservation) = &mut self.reservation {
            return reservation.extend(bytes);
        }
        self.reservation = Some(self.transactions.log().reserve(bytes)?);
        Ok(())
    }

    /// As [`Trx::reserve_log`], for a caller that holds a latch: no log segment is created. Returns whether the log is
    /// reserved.
    pub(super) fn try_reserve(&mut self, bytes: u64) -> Result<bool> {
        let Some(more) = self.transactions.log().try_reserve(bytes)? else {
            return Ok(false);
        };
        match &mut self.reservation {
            Some(reservation) => reservation.join(more),
            None => self.reservation = Some(more),
        }
        Ok(true)
    }

    /// Returns its id; [`TrxId::NONE`] while it has neither written nor locked.
    pub fn id(&self) -> TrxId {
        self.state.id
    }

    /// Returns its id, if it has one.
    pub(super) fn known_id(&self) -> Option<TrxId> {
        Some(self.state.id).filter(|id| *id != TrxId::NONE)
    }

    /// Refuses to replace a version that a strict read view does not see.
    pub(super) fn check_unchanged(&self, header: EntryHeader, owner: impl FnOnce() -> Owner) -> Result<()> {
        match self.rules.strict {
            Some(view) if header.trx != self.state.id && !view.sees(header.trx) => {
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
        self.rules.strict.map_or(Ok(()), |view| view.held(Ok(())))
    }

    /// Returns its id, and assigns one if it has none.
    ///
    /// # Errors
    /// If the log accepts no more records.
    pub fn ensure_id(&mut self) -> Result<TrxId> {
        if self.state.id == TrxId::NONE {
            let all = self.transactions;
            let (id, ending) = all.active.begin(&all.ids, all.now())?;
            (self.state.id, self.state.ending) = (id, Some(ending));
        }
        Ok(self.state.id)
    }

    /// Returns its lock owner.
    ///
    /// # Errors
    /// As [`Trx::ensure_id`].
    pub fn lock_owner(&mut self) -> Result<Arc<LockOwner>> {
        if let Some(lock_owner) = &self.state.lock_owner {
            lock_owner.forget_interrupts(self.state.interrupts);
            return Ok(lock_owner.clone());
        }
        let id = self.ensure_id()?;
        let all = self.transactions;
        let owner = all.active.lock_owner(id, &all.lock_manager).expect("it is active until it ends");
        owner.add_weight(self.state.records);
        owner.forget_interrupts(self.state.interrupts);
        self.state.lock_owner = Some(owner.clone());
        Ok(owner)
    }

    /// Notes that it is about to wait for a row on which it holds this lock.
    pub(super) fn note_wait(&mut self, row: &RowName, held: Option<RowMode>) {
        if self.waited_for.iter().all(|(known, _)| known != row) {
            self.waited_for.push((row.clone(), held));
        }
    }

    /// Notes a request for a lock that it would have taken without the wait, too.
    pub(super) fn note_lock(&mut self, row: &RowName, mode: RowMode) {
        if let Some((_, held)) = self.waited_for.iter_mut().find(|(known, _)| known == row) {
            *held = (*held).max(Some(mode));
        }
    }

    /// The call has failed: of the locks that it has waited for it keeps only what it would hold without the wait. A
    /// lock that was waited for is exclusive, so that several waiters for one key do not all upgrade a shared lock.
    pub fn ease_waits(&mut self) {
        let Some(lock_owner) = &self.state.lock_owner else { return };
        for (row, held) in self.waited_for.drain(..) {
            self.transactions.lock_manager.downgrade_row(lock_owner, &row, held);
        }
    }

    /// Returns whether it has written undo records since the savepoint.
    pub fn has_changed_since(&self, savepoint: &Savepoint) -> bool {
        self.state.records != savepoint.records
    }

    /// Returns its lock owner, if it has requested any lock.
    pub(super) fn lock_owner_if_any(&self) -> Option<&LockOwner> {
        self.state.lock_owner.as_deref()
    }

    /// Acquires the right to append undo records: to the stream of temporary tables if one is given, else to a logged
    /// one. Must be called without a latch.
    ///
    /// # Errors
    /// If the log accepts no more records.
    pub fn tail<'t>(&mut self, temporary: Option<&'t Arc<Stream>>) -> Result<Tail<'t>>
    where
        'e: 't,
    {
        let transactions = self.transactions;
        if let Some(stream) = temporary {
            if !self.state.temporary.iter().any(|(known, _)| Arc::ptr_eq(known, stream)) {
                self.state.temporary.push((stream.clone(), UndoPos::NONE));
            }
            self.ensure_id()?;
            return Ok(stream.lock());
        }
        let (number, _) =
            *self.state.logged.get_or_insert_with(|| (transactions.streams.pick().number(), UndoPos::NONE));
        let tail = transactions.streams.get(number.into()).lock();
        self.ensure_id()?;
        Ok(tail)
    }

    /// Ensures that a record of up to `bytes` bytes has slices to be written to. If it is the first one, it also notes
    /// its future position for checkpoints. Must be called without a latch.
    ///
    /// # Errors
    /// I/O, a full disk; more transactions than a checkpoint can name.
    pub fn reserve(&self, tail: &mut Tail<'_>, bytes: usize) -> Result<()> {
        tail.reserve(bytes)?;
        if tail.durability() == Durability::Logged && self.previous(tail) == UndoPos::NONE {
            self.transactions.active.note_first(
                self.state.id,
                tail.position(),
                notes_most(&self.transactions.context.pool),
            )?;
        }
        Ok(())
    }

    /// Returns the record before the next one in the stream of `tail`, which [`Trx::tail`] has returned.
    pub fn previous(&self, tail: &Tail<'_>) -> UndoPos {
        match tail.durability() {
            Durability::Logged => self.state.logged.map_or(UndoPos::NONE, |(_, last)| last),
            Durability::Temporary => {
                let known = self.state.temporary.iter().find(|(stream, _)| tail.is_of(stream));
                known.map_or(UndoPos::NONE, |(_, last)| *last)
            }
        }
    }

    /// Writes an undo record into its place, in the mini-transaction that makes the change.
    ///
    /// `table` is the clustered tree. `entries` is the number of secondary entries that the record names.
    pub fn write_undo(
        &mut self,
        mtr: &mut Mtr<'_>,
        tail: &mut Tail<'_>,
        place: Place,
        record: &[u8],
        table: SpaceId,
        entries: usize,
    ) {
        // Usually it is the table of the record before.
        let touched = &mut self.state.touched;
        if tail.durability() == Durability::Logged
            && touched.last() != Some(&table)
            && !touched.contains(&table)
        {
            touched.push(table);
        }
        let pos = tail.write(mtr, place, record);
        let last = match tail.durability() {
            Durability::Logged => self.state.logged.as_mut().map(|(_, last)| last),
            Durability::Temporary => {
                let mut known = self.state.temporary.iter_mut();
                known.find(|(stream, _)| tail.is_of(stream)).map(|(_, last)| last)
            }
        };
        let last = last.expect("the tail was given by this transaction");
        if *last == UndoPos::NONE && tail.durability() == Durability::Logged {
            mtr.record(&Record::TrxBegin { trx: self.state.id, first: pos });
        }
        *last = pos;
        if tail.durability() == Durability::Logged {
            let end = if self.state.way_back == 0 { LOG_OF_END } else { 0 };
            self.state.way_back +=
                end + LOG_OF_END + LOG_PER_ENTRY * (1 + entries as u64) + record.len() as u64;
        }
        self.state.records += 1;
    }

    /// Adds to the log that the rollback needs; the caller has reserved it.
    pub(super) fn extend_rollback_space(&mut self, bytes: u64) {
        self.state.way_back += bytes;
    }

    /// Returns its logged stream and the last record there, if it has written one.
    fn logged(&self) -> Option<(&'e Stream, UndoPos)> {
        let (number, last) = self.state.logged.filter(|(_, last)| *last != UndoPos::NONE)?;
        Some((self.transactions.streams.get(number.into()), last))
    }

    /// Logs the end in the mini-transaction that makes the last change. [`Trx::end`] follows its commit.
    pub fn log_end(&self, mtr: &mut Mtr<'_>) {
        if let Some((stream, _)) = self.logged() {
            if let Some(ending) = &self.state.ending {
                ending.announce(self.transactions.log().end());
            }
            mtr.record(&Record::TrxEnd { trx: self.state.id, stream: stream.number() });
        }
    }

    /// Prepares the transaction: from now on it survives a crash, by this name, and no more changes are allowed.
    /// Returns the LSN to wait for; [`Lsn::ZERO`] if it has logged nothing, and so has nothing to lose.
    ///
    /// # Errors
    /// A full disk, or more names than a checkpoint can note: the transaction continues as if this had not been called.
    pub fn prepare(&mut self, name: &Arc<[u8]>) -> Result<Lsn> {
        self.ensure_id()?;
        if self.logged().is_none() {
            return Ok(Lsn::ZERO);
        }
        let log = self.transactions.log();
        // Log to prepare and to revoke that.
        let _room = log.admit(LOG_OF_END)?;
        self.reserve_log(LOG_OF_END)?;
        self.extend_rollback_space(LOG_OF_END);
        let most = notes_most(&self.transactions.context.pool);
        self.transactions.active.set_prepared(self.state.id, Some(name), most)?;
        let end = self.log_prepared(name)?;
        self.state.prepared = true;
        Ok(end)
    }

    /// Revokes the prepare, because a transaction that is partly rolled back must not be committed after a crash.
    /// Returns the LSN from which on recovery does not find it prepared; [`Lsn::ZERO`] if it was not.
    ///
    /// # Errors
    /// A full disk: it is still prepared.
    pub fn revoke(&mut self) -> Result<Lsn> {
        if !self.state.prepared || planted(Bug::PreparedDuringRollback) {
            return Ok(Lsn::ZERO);
        }
        let _room = self.way_back.room(self.transactions, LOG_OF_END)?;
        // This comes first: a checkpoint that reads the table in between relies on the record, which is above its
        // low-water mark.
        self.transactions.active.set_prepared(self.state.id, None, 0)?;
        let end = self.log_prepared(&[])?;
        self.state.prepared = false;
        Ok(end)
    }

    fn log_prepared(&self, name: &[u8]) -> Result<Lsn> {
        let mut mtr = Mtr::begin(&self.transactions.context.pool)?;
        mtr.record(&Record::TrxPrepare { trx: self.state.id, xid: name.into() });
        mtr.commit()
    }

    /// Commits. Returns the LSN to wait for; [`Lsn::ZERO`] if nothing was logged.
    ///
    /// # Errors
    /// If the log accepts no more records: the transaction has not ended then.
    pub fn commit(&mut self) -> Result<Lsn> {
        let end = match self.logged() {
            Some(_) => {
                let _room = self.way_back.room(self.transactions, LOG_OF_END)?;
                self.end_on_its_own()?
            }
            None => Lsn::ZERO,
        };
        self.end();
        Ok(end)
    }

    fn end_on_its_own(&self) -> Result<Lsn> {
        if self.logged().is_none() {
            return Ok(Lsn::ZERO);
        }
        let mut mtr = Mtr::begin(&self.transactions.context.pool)?;
        self.log_end(&mut mtr);
        mtr.commit()
    }

    /// Ends the transaction, which has logged its end if it had to.
    pub(super) fn end(&mut self) {
        self.ended = true;
        if self.state.id == TrxId::NONE {
            return;
        }
        self.transactions.rollbacks.forget_cut_off(self.state.id);
        let (left_behind, lock_owner) = self.transactions.active.end(self.state.id, &self.transactions.ids);
        // Waiters for its locks check whether it has ended.
        if let Some(lock_owner) = lock_owner {
            self.transactions.lock_manager.end(&lock_owner);
        }
        if left_behind {
            let id = self.state.id;
            if let Some((stream, last)) = self.logged() {
                stream.purge.come_back(id, last);
            }
            for (stream, last) in &self.state.temporary {
                stream.purge.come_back(id, *last);
            }
            self.transactions.context.purge_wake.notify();
        }
    }

    /// Rolls back the whole transaction. Returns the LSN after it.
    ///
    /// # Errors
    /// The failure that stops it: unless the database has stopped, the rollback continues in the background.
    pub fn rollback(mut self) -> Result<Lsn> {
        self.roll_back(RollbackCaller::Outside)
    }

    pub(super) fn roll_back(&mut self, caller: RollbackCaller) -> Result<Lsn> {
        match buffer::with_reserved_frames(|| self.roll_back_all(caller)) {
            Err(error) if !matches!(error, Error::Poisoned(_) | Error::Closed) => Err(self.hand_over(&error)),
            done => {
                self.end();
                done
            }
        }
    }

    /// Hands the transaction over to the background.
    fn hand_over(&mut self, error: &Error) -> Error {
        self.ended = true;
        self.reservation = None;
        let id = self.state.id;
        tracing::warn!(trx = id.0, %error, "a transaction could not be rolled back at once");
        let mut state = core::mem::take(&mut self.state);
        state.lock_owner = None;
        self.transactions.rollbacks.add(state);
        // Only what it has changed stays locked, as after a crash: no statement waits for it.
        self.transactions.forget_locks(id);
        TransactionError::RollingBack { trx: id, why: error.to_string().into() }.into()
    }

    /// Releases its locks except those on what it has changed.
    pub fn release_unchanged(&mut self) {
        self.state.lock_owner = None;
        let before = self.transactions.forget_locks(self.state.id);
        // The interrupt was not delivered yet.
        if before.is_some_and(|lock_owner| lock_owner.take_interrupt()) {
            self.transactions.interrupt(self.state.id);
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

    /// Rolls back to a savepoint. The rows stay locked.
    ///
    /// # Errors
    /// The failure that stops it; the transaction is [broken](Trx::broken) then.
    pub fn roll_back_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        self.roll_back_since(savepoint, RollbackCaller::Outside)
    }

    /// The same for the changes of a call that is still inside its gate.
    pub(super) fn roll_back_call(&mut self, savepoint: &Savepoint) -> Result<()> {
        self.roll_back_since(savepoint, RollbackCaller::Inside)
    }

    fn roll_back_since(&mut self, savepoint: &Savepoint, caller: RollbackCaller) -> Result<()> {
        if !self.has_changed_since(savepoint) {
            return Ok(());
        }
        self.state.rolled_back += 1;
        let lock_owner = self.lock_owner()?;
        let keep = |space: SpaceId, key: &[u8]| {
            self.transactions.lock_manager.make_explicit(&lock_owner, RowName { space, key: key.into() });
        };
        let done = buffer::with_reserved_frames(|| self.roll_back_after(savepoint, caller, &keep));
        self.broken = done.as_ref().err().cloned();
        done
    }

    /// Rolls back up to `records` records, from `from` or from the last record on. Returns no transaction once it has
    /// ended; otherwise returns the transaction, which continues at the new `from`.
    pub(super) fn continue_rollback(
        mut self,
        from: &mut Option<UndoPos>,
        records: usize,
    ) -> (Option<Suspended>, Result<RollbackStep>) {
        match buffer::with_reserved_frames(|| self.roll_back_some(from, records)) {
            Ok(None) => {
                self.end();
                (None, Ok(RollbackStep::Advanced))
            }
            Ok(Some(gone)) => (Some(self.suspend()), Ok(gone)),
            Err(error) => (Some(self.suspend()), Err(error)),
        }
    }

    /// Returns the outcome of the step, unless the rollback is complete.
    fn roll_back_some(&mut self, from: &mut Option<UndoPos>, records: usize) -> Result<Option<RollbackStep>> {
        let mut pos = match (*from, self.logged()) {
            (Some(pos), _) => pos,
            (None, logged) => {
                self.revoke()?;
                // No check examines temporary tables.
                self.roll_back_temporary(&Savepoint::default(), RollbackCaller::Outside, &|_, _| {})?;
                logged.map_or(UndoPos::NONE, |(_, last)| last)
            }
        };
        if let Some((stream, _)) = self.logged() {
            for _ in 0..records {
                if pos == UndoPos::NONE {
                    break;
                }
                let previous = self.roll_back_one(stream, pos, RollbackCaller::Background, &|_, _| {})?;
                let Some(previous) = previous else { return Ok(Some(RollbackStep::Blocked)) };
                (pos, *from) = (previous, Some(previous));
            }
        }
        if pos != UndoPos::NONE {
            return Ok(Some(RollbackStep::Advanced));
        }
        self.log_end_of_way_back()?;
        Ok(None)
    }

    fn roll_back_all(&mut self, caller: RollbackCaller) -> Result<Lsn> {
        self.revoke()?;
        self.roll_back_after(&Savepoint::default(), caller, &|_, _| {})?;
        self.log_end_of_way_back()
    }

    fn log_end_of_way_back(&self) -> Result<Lsn> {
        if self.logged().is_none() {
            return Ok(Lsn::ZERO);
        }
        let _room = self.way_back.room(self.transactions, LOG_OF_END)?;
        self.end_on_its_own()
    }

    /// Rolls back to a savepoint, the last record first. `keep` is called with each row before it is rolled back. The
    /// records stay in the chain of the transaction: purge visits them for what they have left.
    fn roll_back_after(
        &self,
        savepoint: &Savepoint,
        caller: RollbackCaller,
        keep: &dyn Fn(SpaceId, &[u8]),
    ) -> Result<()> {
        self.roll_back_temporary(savepoint, caller, keep)?;
        let Some((stream, mut pos)) = self.logged() else { return Ok(()) };
        while pos != savepoint.logged && pos != UndoPos::NONE {
            pos = self.roll_back_one(stream, pos, caller, keep)?.expect("only the background does not wait");
        }
        Ok(())
    }

    fn roll_back_temporary(
        &self,
        savepoint: &Savepoint,
        caller: RollbackCaller,
        keep: &dyn Fn(SpaceId, &[u8]),
    ) -> Result<()> {
        for (n, (stream, last)) in self.state.temporary.iter().enumerate() {
            let first = savepoint.temporary.get(n).copied().unwrap_or_default();
            let mut pos = *last;
            while pos != first && pos != UndoPos::NONE {
                pos = match self.roll_back_one(stream, pos, caller, keep) {
                    // The session of these tables has ended, and the tables are dropped.
                    Err(Error::TableDropped(_)) => break,
                    previous => previous?.expect("it waits while the table is quiesced"),
                };
            }
        }
        Ok(())
    }

    /// Undoes one record, unless it is gone or was undone before. Returns the record before it. Returns `None` if the
    /// worker would have to wait because the table is quiesced or its follower has no room.
    fn roll_back_one(
        &self,
        stream: &Stream,
        pos: UndoPos,
        caller: RollbackCaller,
        keep: &dyn Fn(SpaceId, &[u8]),
    ) -> Result<Option<UndoPos>> {
        let at = Stream::byte_of(pos);
        let Some(stored) = stream.record(at)? else { return Ok(Some(UndoPos::NONE)) };
        let record = stream.decode(at, &stored)?;
        if stored.rolled_back {
            return Ok(Some(record.previous));
        }
        if let Body::Row { space, .. } = &record.body
            && let Some(follower) = self.transactions.followers.of(*space)
        {
            match caller {
                RollbackCaller::Background if follower.is_full() => return Ok(None),
                // Making room may require waiting for a call that is inside a gate.
                RollbackCaller::Outside if !is_inside() => follower.wait_for_room(),
                RollbackCaller::Inside | RollbackCaller::Outside | RollbackCaller::Background => {}
            }
        }
        let table = self.transactions.context.pool.space(record.body.table());
        let _at_work = match (caller, &table) {
            (RollbackCaller::Inside, _) | (_, None) => None,
            (RollbackCaller::Outside, Some(table)) => Some(table.check_lock().read()),
            (RollbackCaller::Background, Some(table)) => match table.check_lock().try_read() {
                None => return Ok(None),
                at_work => at_work,
            },
        };
        if let Body::Row { space, key, .. } = &record.body {
            keep(*space, key);
        }
        let asks = self.way_back != RollbackSpace::Ahead && stream.durability() == Durability::Logged;
        let bytes = if asks { rollback::log_for(self.transactions, &record)? } else { 0 };
        let _room = if asks { self.way_back.room(self.transactions, bytes)? } else { None };
        rollback::roll_back(self.transactions, stream, at, &record)
            .inspect_err(|_| self.transactions.rollbacks.note_cut_off(self.state.id, record.body.table()))?;
        Ok(Some(record.previous))
    }
}

impl Drop for Trx<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // A failure is reported to callers that wait for its rows, or has stopped the database.
            let _ = self.roll_back(RollbackCaller::Outside);
        }
    }
}

impl Transactions {
    /// Returns the tree in a tablespace, unless it was dropped.
    pub(super) fn tree(&self, space: SpaceId) -> Option<Tree> {
        let space = self.context.pool.space(space).filter(|space| !space.is_dropped())?;
        Some(Tree::new(self.context.pool.clone(), space, TreeHash::new(self.no_hash.clone())))
    }

    /// Releases the locks of a transaction except those on what it has changed, for which waiters create new ones.
    /// Returns its former lock owner.
    fn forget_locks(&self, trx: TrxId) -> Option<Arc<LockOwner>> {
        let lock_owner = self.active.take_lock_owner(trx)?;
        self.lock_manager.end(&lock_owner);
        Some(lock_owner)
    }

    /// Returns the table of active transactions.
    pub fn active(&self) -> &Active {
        &self.active
    }
}
