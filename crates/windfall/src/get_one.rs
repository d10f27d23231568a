//! Locking reads of single rows whose locks can be released.
//!
//! **Purpose.** A program that locks a row by its key and then does not want it need not keep its lock, at levels
//! without gap locks. A key alone does not show whether the transaction had locked the row before, so the read notes it
//! with the row: in [`OneRow`] and [`Values`](crate::Values).
//!
//! **Invariants.** A lock is released only by the transaction that has taken it with this read, and falls back to the
//! mode that the transaction had before (test: `a_row_that_a_read_by_key_does_not_want_is_unlocked`). What a batch of a
//! cursor has noted is as little of use in another transaction or table, whatever cursor is asked (test:
//! `a_batch_of_the_former_transaction_unlocks_nothing`). A row that was
//! read for several keys of one call stays locked until it was given up for each of them (test:
//! `a_row_that_a_read_by_key_does_not_want_is_unlocked`).

use crate::{
    error::Result,
    ids::{SpaceId, TrxId},
    index::OneRow,
    scope::{Inner, RowCall, RowLock, Scope},
    store::Tree,
    table::Table,
    tx_table::{Access, SemiConsistentRead, TxIndex, TxTable},
    txn::{Stop, Trx, locks::RowMode, row},
};

/// A lock on a row that a read has taken and that may be released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenLock {
    trx: TrxId,
    /// The tablespace of the row.
    space: SpaceId,
    /// The mode in which the transaction had locked the row before.
    before: Option<RowMode>,
    /// How often a part of the transaction had been rolled back.
    rolled_back: u64,
}

impl TakenLock {
    /// Returns the lock that a read takes next on this row, unless the transaction has it already. The table is locked.
    pub(crate) fn of_read(trx: &Trx<'_>, rows: &Tree, key: &[u8], mode: RowMode) -> Option<Self> {
        let before = row::held_before(trx, rows, key);
        let id = trx.id().expect("a transaction has an id once it has locked a table");
        Self { trx: id, space: rows.space().id(), before, rolled_back: trx.rolled_back() }.if_above(mode)
    }

    /// Returns it unless the transaction had locked the row in this mode or a stronger one before.
    fn if_above(self, mode: RowMode) -> Option<Self> {
        (self.before < Some(mode)).then_some(self)
    }

    /// Releases it, if this transaction has taken it on a row of this tree.
    pub(crate) fn release(self, scope: &Scope, inner: &mut Inner, rows: &Tree, key: &[u8]) -> Result<bool> {
        if inner.own() != Some(self.trx) || rows.space().id() != self.space {
            return Ok(false);
        }
        // A change of the row that was rolled back has locked it, maybe before the read.
        if inner.rolled_back() != self.rolled_back {
            return Ok(false);
        }
        row::unlock_row(&scope.running(inner), rows, key, self.before)
    }
}

/// What a transaction has locked before a read locks a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBefore {
    /// The mode in which the read locks; `None` if the lock is kept in any case.
    mode: Option<RowMode>,
    /// The tablespace of the row that was noted last, and the mode in which it was locked.
    noted: Option<(SpaceId, Option<RowMode>)>,
}

impl HeldBefore {
    /// Prepares to note it. At levels that lock gaps, and of a temporary table, no lock is released.
    pub(crate) fn a_read(scope: &Scope, lock: RowLock, is_temporary: bool) -> Self {
        let keeps_lock = scope.locks_gaps() || is_temporary;
        Self { mode: (!keeps_lock).then_some(lock.mode), noted: None }
    }

    /// Notes what the transaction has on a row, before this attempt locks it.
    pub(crate) fn note(&mut self, trx: &Trx<'_>, tree: &Tree, key: &[u8]) {
        if self.mode.is_some() {
            self.noted = Some((tree.space().id(), row::held_before(trx, tree, key)));
        }
    }

    /// Returns the lock that the read has taken on the row that was noted last.
    pub(crate) fn taken(self, inner: &Inner) -> Option<TakenLock> {
        let (Some(mode), Some((space, before)), Some(trx)) = (self.mode, self.noted, inner.own()) else {
            return None;
        };
        TakenLock { trx, space, before, rolled_back: inner.rolled_back() }.if_above(mode)
    }
}

impl<A: Access> Table<A> {
    /// Reads and locks a row. Returns whether there is one, and the lock if it may be released.
    pub(crate) fn read_and_note(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        key: &[u8],
        lock: RowLock,
        value: &mut Vec<u8>,
    ) -> Result<(bool, Option<TakenLock>)> {
        let mut before = HeldBefore::a_read(scope, lock, self.is_temporary());
        let call = scope.row_call(inner, self.kind(), lock.lock_timeout(scope));
        let is_there = call.run(|call| self.try_get_and_note(call, key, lock, value, &mut before))?;
        Ok((is_there, before.taken(inner).filter(|_| is_there)))
    }

    /// As [`Table::try_get_locked`], and notes what was locked before.
    pub(crate) fn try_get_and_note(
        &self,
        call: &mut RowCall<'_>,
        key: &[u8],
        lock: RowLock,
        value: &mut Vec<u8>,
        before: &mut HeldBefore,
    ) -> Result<Option<bool>, Stop> {
        // If the table is truncated between here and there, the transaction has locked no row of it.
        before.note(call.attempt()?, &self.inner.enter()?.clustered, key);
        self.try_get_locked(call, key, lock, Some(self.fields), value)
    }
}

impl TxTable<'_> {
    /// As [`TxTable::get_for_share_into`], into `one`, which keeps its memory and notes the lock:
    /// [`TxTable::unlock_row`] releases it. Returns the value of the row.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-unlock-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{Isolation, OneRow, TableOptions, TransactionOptions};
    ///
    /// let jobs = db.create_table("jobs", TableOptions::default())?;
    /// jobs.insert(b"1", b"done")?;
    /// let trx = db.begin(TransactionOptions::default().isolation(Isolation::ReadCommitted));
    /// let (within, mut job) = (trx.table(&jobs), OneRow::default());
    /// if within.get_one_for_update(b"1", &mut job)? == Some(b"done") {
    ///     assert!(within.unlock_row(&mut job)?); // other transactions may change it now
    /// }
    /// # drop(trx);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`].
    pub fn get_one_for_share<'b>(&self, key: &[u8], one: &'b mut OneRow) -> Result<Option<&'b [u8]>> {
        self.get_one_for(key, RowMode::Shared, one)
    }

    /// As [`TxTable::get_one_for_share`], but locked as [`TxTable::get_for_update_into`] does.
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`].
    pub fn get_one_for_update<'b>(&self, key: &[u8], one: &'b mut OneRow) -> Result<Option<&'b [u8]>> {
        self.get_one_for(key, RowMode::Exclusive, one)
    }

    /// As [`TxTable::get_one_for_update`], but a row that others have locked is read as
    /// [`TxTable::get_for_update_semi_consistent`] does. Returns the value as well; it is empty if there is no row.
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`].
    pub fn get_one_for_update_semi_consistent<'b>(
        &self,
        key: &[u8],
        one: &'b mut OneRow,
    ) -> Result<(SemiConsistentRead, &'b [u8])> {
        let (value, lock) = one.begin_locking();
        let (read, taken) = self.read_semi_consistent(key, value)?;
        *lock = taken.filter(|_| read == SemiConsistentRead::Locked);
        let value = one.note_locked_row(key);
        Ok((read, if read == SemiConsistentRead::Missing { &value[..0] } else { value }))
    }

    /// Releases the lock that the read of `one` took on its row, which the program does not want. Returns whether it
    /// was released. The lock stays if the transaction had locked the row before the read, and at levels that lock
    /// gaps; if the read has made a shared lock exclusive, it is shared again. A row that the transaction has changed
    /// stays locked in any case, and so does every row of a read before a rollback to a savepoint or of a statement.
    /// Any other lock that the transaction has taken on the row since is released with it: that of a cursor, of another
    /// read, or of a duplicate key. The value stays in `one`.
    ///
    /// # Errors
    /// The transaction is in another call, is prepared or has ended; damage, I/O, a dropped table.
    pub fn unlock_row(&self, one: &mut OneRow) -> Result<bool> {
        let Some((lock, key)) = one.taken_lock() else { return Ok(false) };
        let released = self.release(lock, key)?;
        if released {
            one.forget_lock();
        }
        Ok(released)
    }

    fn get_one_for<'b>(&self, key: &[u8], mode: RowMode, one: &'b mut OneRow) -> Result<Option<&'b [u8]>> {
        let (value, lock) = one.begin_locking();
        self.engine.check_open()?;
        let scope = self.holder()?;
        let mut call = scope.begin_call()?;
        let read = self.read_and_note(scope, &mut call.inner, key, self.lock(mode), value);
        let (is_there, taken) = call.finish(read).map_err(|error| self.with_owner(error))?;
        *lock = taken;
        let value = one.note_locked_row(key);
        Ok(is_there.then_some(value))
    }

    /// Releases a lock that a read of this transaction has taken.
    pub(crate) fn release(&self, lock: TakenLock, key: &[u8]) -> Result<bool> {
        let Some(scope) = self.scope()? else { return Ok(false) };
        let mut call = scope.begin_call()?;
        let inner = &mut call.inner;
        let done = self.inner.enter().and_then(|entered| lock.release(scope, inner, &entered.clustered, key));
        call.finish(done).map_err(|error| self.with_owner(error))
    }
}

impl TxIndex<'_> {
    /// Releases the lock that the read of `one` took on its row, as [`TxTable::unlock_row`] does.
    ///
    /// # Errors
    /// As [`TxTable::unlock_row`].
    pub fn unlock_row(&self, one: &mut OneRow) -> Result<bool> {
        self.table.unlock_row(one)
    }
}
