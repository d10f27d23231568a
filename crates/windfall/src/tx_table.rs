//! Tables and indexes in a transaction, and their locking reads.
//!
//! **Purpose.** A handle shows in its type whether its calls are part of a transaction. A lock on a row lasts as long
//! as a transaction, so only a handle in a transaction has locking reads.
//!
//! **Invariants.** A handle in a transaction cannot outlive the [`Transaction`] (by type). A range or a cursor can: a
//! further step after the end of the transaction returns an error (test:
//! `nothing_is_read_within_a_transaction_that_has_ended`), also when its handle has begun another one (test:
//! `cursors_of_the_former_transaction_are_refused_after_a_restart`).

use core::ops::RangeBounds;

use crate::{
    cursor::{Cursor, Reader, may_read_committed},
    error::Result,
    get_one::{HeldBefore, TakenLock},
    index::{Index, IndexCursor, IndexRange},
    range::{Bounds, Range},
    scope::{RowLock, Scope, ScopeRef, TableKind},
    sync::Arc,
    table::Table,
    transaction::{LockWaitPolicy, Transaction},
    txn::{
        Stop,
        locks::{LockTimeout, RowMode, TableMode},
    },
};

/// The mode of the calls on a handle: [`AutoCommit`] or [`InTransaction`]. No other type can implement it.
///
/// ```
/// # fn main() -> windfall::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("windfall-access-{}", std::process::id()));
/// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
/// use windfall::{Access, Result, Table, TableOptions, TransactionOptions};
///
/// fn count(table: &Table<impl Access>) -> Result<usize> {
///     table.rows()?.try_fold(0, |count, row| row.map(|_| count + 1))
/// }
///
/// let towns = db.create_table("towns", TableOptions::default())?;
/// towns.insert(b"Basel", b"177595")?;
/// let trx = db.begin(TransactionOptions::default());
/// trx.table(&towns).insert(b"Genoa", b"560688")?;
/// assert_eq!((count(&trx.table(&towns))?, count(&towns)?), (2, 1));
/// trx.commit()?;
/// assert_eq!(count(&towns)?, 2);
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
pub trait Access: Clone + sealed::Sealed {}

mod sealed {
    use super::{RowMode, Transaction};

    pub trait Sealed {
        /// Returns the transaction of the calls, if they are part of one.
        fn transaction(&self) -> Option<&Transaction>;

        /// Returns the mode in which a change locks the row that it conflicts with, if it is part of a transaction.
        fn duplicate_lock(&self) -> Option<RowMode>;
    }
}

/// Each call is a transaction of its own.
#[derive(Clone, Copy, Debug)]
pub struct AutoCommit;

impl Access for AutoCommit {}

impl sealed::Sealed for AutoCommit {
    #[inline]
    fn transaction(&self) -> Option<&Transaction> {
        None
    }

    #[inline]
    fn duplicate_lock(&self) -> Option<RowMode> {
        None
    }
}

/// Each call is part of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct InTransaction<'t> {
    transaction: &'t Transaction,
    /// The action of locking reads on a row that another transaction has locked.
    wait_policy: LockWaitPolicy,
    /// The mode in which changes lock the row that they conflict with.
    duplicate_lock: RowMode,
}

impl<'t> InTransaction<'t> {
    pub(crate) fn new(transaction: &'t Transaction) -> Self {
        Self { transaction, wait_policy: LockWaitPolicy::Wait, duplicate_lock: RowMode::Shared }
    }
}

impl Access for InTransaction<'_> {}

impl sealed::Sealed for InTransaction<'_> {
    #[inline]
    fn transaction(&self) -> Option<&Transaction> {
        Some(self.transaction)
    }

    #[inline]
    fn duplicate_lock(&self) -> Option<RowMode> {
        Some(self.duplicate_lock)
    }
}

/// The result of a read for update that does not wait ([`TxTable::get_for_update_semi_consistent`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SemiConsistentRead {
    /// There is no row.
    Missing,
    /// The row is locked, and its newest version was read.
    Locked,
    /// Others have locked the row: its last committed version was read, and it is not locked.
    Committed,
}

impl SemiConsistentRead {
    pub(crate) fn of(is_there: bool, row: Self) -> Self {
        if is_there { row } else { Self::Missing }
    }
}

/// A table in a transaction ([`Transaction::table`]): its changes are part of the transaction, its reads see what the
/// transaction sees, and it has locking reads. It borrows the transaction.
///
/// ```
/// # fn main() -> windfall::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("windfall-tx-table-{}", std::process::id()));
/// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
/// # let stock = db.create_table("stock", windfall::TableOptions::default())?;
/// let trx = db.begin(windfall::TransactionOptions::default());
/// trx.table(&stock).get_for_update(b"apples")?;
/// # drop(trx);
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// A lock lasts as long as a transaction, so without one there is no locking read:
///
/// ```compile_fail,E0599
/// # fn main() -> windfall::Result<()> {
/// # let db = windfall::Database::open("", windfall::Options::default())?;
/// # let stock = db.create_table("stock", windfall::TableOptions::default())?;
/// stock.get_for_update(b"apples")?;
/// # Ok(())
/// # }
/// ```
pub type TxTable<'t> = Table<InTransaction<'t>>;

/// A secondary index in a transaction ([`TxTable::index`]).
pub type TxIndex<'t> = Index<InTransaction<'t>>;

/// Only in a transaction.
impl TxTable<'_> {
    /// Returns a handle of the same table with this behaviour of `_for_share` and `_for_update` reads if another
    /// transaction has locked a row. The locks on the table that these need are still waited for, and so are those that
    /// a change needs. A single call that is changing a row at this moment is waited for until it is done.
    #[must_use]
    pub fn lock_wait_policy(&self, then: LockWaitPolicy) -> Self {
        let mut table = self.clone();
        table.access.wait_policy = then;
        table
    }

    /// Returns a handle of the same table with this mode of the lock on the row that a change conflicts with
    /// ([`SchemaError::DuplicateKey`](crate::error::SchemaError::DuplicateKey), which names the row). The lock is kept
    /// until the transaction ends, at every isolation level, so that row has that key until then. Default:
    /// [`RowMode::Shared`]. With [`RowMode::Exclusive`] a transaction that then changes that row need not wait, nor be
    /// the victim of a deadlock with another one that has found the same row: `REPLACE` and `INSERT ... ON DUPLICATE
    /// KEY UPDATE` of SQL.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-duplicate-lock-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{Error, IndexOptions, RowMode, TableOptions, TransactionOptions, error::SchemaError};
    ///
    /// let by_name = TableOptions::default().index("name", IndexOptions::on_value(0..3).unique());
    /// let people = db.create_table("people", by_name)?;
    /// people.insert(b"1", b"ada, London")?;
    /// let trx = db.begin(TransactionOptions::default());
    /// let in_trx = trx.table(&people).duplicate_lock(RowMode::Exclusive);
    /// if let Err(Error::Schema(SchemaError::DuplicateKey { row, .. })) = in_trx.insert(b"2", b"ada, Torino") {
    ///     in_trx.put(&row, b"ada, Torino")?;
    /// }
    /// trx.commit()?;
    /// assert_eq!(people.get(b"1")?.as_deref(), Some(&b"ada, Torino"[..]));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn duplicate_lock(&self, mode: RowMode) -> Self {
        let mut table = self.clone();
        table.access.duplicate_lock = mode;
        table
    }

    /// Locks the whole table (shared) until the transaction ends: no other transaction, and no call outside of
    /// transactions, changes a row of it. Waits until those have ended that have changed or locked rows of the table,
    /// for as long as for any lock. Other transactions may lock the table and its rows in shared mode, and plain reads
    /// do not wait. The transaction itself may change rows, when no other one has locked the table.
    ///
    /// The plain reads of this transaction see what they would see without the lock: at [`Isolation::RepeatableRead`]
    /// lock the table before the first of them. The lock is kept when the transaction rolls back to a savepoint or
    /// undoes a statement. It does not survive a crash of a prepared transaction, which then has locks on what it has
    /// changed. A statement of the transaction itself that drops or truncates the table releases it. On a temporary
    /// table it does nothing: changes of such a table by other threads go on.
    ///
    /// First it waits for the calls in progress on the table, at least 100 ms whatever the timeout, because plain reads
    /// are among them; [`Database::lock_waits`](crate::Database::lock_waits) does not list this wait. After the lock is
    /// granted it waits for rollbacks in the background that have changes left in the table. With
    /// [`LockWaitPolicy::NoWait`] ([`TxTable::lock_wait_policy`]) it waits for nothing but those calls. With
    /// [`LockWaitPolicy::SkipLocked`] it waits as usual.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-table-lock-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// # let stock = db.create_table("stock", windfall::TableOptions::default())?;
    /// stock.insert(b"apples", b"3")?;
    /// let trx = db.begin(windfall::TransactionOptions::default());
    /// trx.table(&stock).lock_shared()?;
    /// assert_eq!(trx.table(&stock).rows()?.count(), 1); // and none is added, changed or deleted meanwhile
    /// trx.commit()?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The transaction is read-only; the lock is not granted ([`LockError`](crate::error::LockError)), or the calls in
    /// progress on the table have not ended in time, and then the error names no transaction; a call from within the
    /// source of a value ([`UsageError::StatementInCall`](crate::error::UsageError::StatementInCall)); at
    /// [`Isolation::Snapshot`] a table that was created or truncated since; a dropped table.
    ///
    /// [`Isolation::RepeatableRead`]: crate::Isolation::RepeatableRead
    /// [`Isolation::Snapshot`]: crate::Isolation::Snapshot
    pub fn lock_shared(&self) -> Result<()> {
        self.lock_whole(TableMode::Shared)
    }

    /// As [`TxTable::lock_shared`], but exclusive: no other transaction locks the table or a row of it either. Plain
    /// reads do not wait, except those at [`Isolation::Serializable`](crate::Isolation::Serializable), which lock rows.
    ///
    /// # Errors
    /// As [`TxTable::lock_shared`].
    pub fn lock_exclusive(&self) -> Result<()> {
        self.lock_whole(TableMode::Exclusive)
    }

    fn lock_whole(&self, mode: TableMode) -> Result<()> {
        self.engine.check_open()?;
        let scope = self.holder()?;
        let mut call = scope.begin_call()?;
        if self.is_temporary() {
            return call.finish(Ok(()));
        }
        let lock_timeout = match self.access.wait_policy {
            LockWaitPolicy::NoWait => LockTimeout::NoWait,
            LockWaitPolicy::Wait | LockWaitPolicy::SkipLocked => scope.lock_timeout(),
        };
        let owner = || self.owner();
        let locked = scope.lock_whole_table(&mut call.inner, &self.inner, mode, lock_timeout, owner);
        call.finish(locked).map_err(|error| self.with_owner(error))
    }

    /// Reads and locks a row (shared): returns its newest value, and no other transaction can change the row before
    /// this one has ended. Waits until a transaction that is changing it has ended. At levels that lock gaps, a missing
    /// row stays missing. [`TxTable::get_one_for_share`] reads and locks it so that the lock can be released earlier.
    ///
    /// # Errors
    /// The transaction is read-only and the table is not temporary; the lock is not granted
    /// ([`LockError`](crate::error::LockError)); as [`Table::get`].
    pub fn get_for_share(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_for(key, RowMode::Shared)
    }

    /// As [`TxTable::get_for_share`], but with an exclusive lock: no other transaction can lock the row before this one
    /// has ended.
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`].
    pub fn get_for_update(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_for(key, RowMode::Exclusive)
    }

    /// As [`TxTable::get_for_share`], into `value`, which it replaces. Returns whether there is such a row.
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`].
    pub fn get_for_share_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.get_for_into(key, RowMode::Shared, value)
    }

    /// As [`TxTable::get_for_update`], into `value`, which it replaces. Returns whether there is such a row.
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`].
    pub fn get_for_update_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.get_for_into(key, RowMode::Exclusive, value)
    }

    /// As [`TxTable::get_for_update_into`], but at [`Isolation::ReadUncommitted`] and [`Isolation::ReadCommitted`] a
    /// row that others have locked is not waited for: its last committed version is read, without a lock, as by a
    /// [semi-consistent](Cursor::semi_consistent) cursor. If that is wanted, [`TxTable::get_for_update_into`] waits for
    /// the lock.
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`].
    ///
    /// [`Isolation::ReadUncommitted`]: crate::Isolation::ReadUncommitted
    /// [`Isolation::ReadCommitted`]: crate::Isolation::ReadCommitted
    pub fn get_for_update_semi_consistent(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<SemiConsistentRead> {
        self.read_semi_consistent(key, value).map(|(read, _)| read)
    }

    /// As [`TxTable::get_for_update_semi_consistent`]. Returns the lock, too, if it may be released.
    pub(crate) fn read_semi_consistent(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<(SemiConsistentRead, Option<TakenLock>)> {
        self.engine.check_open()?;
        let scope = self.holder()?;
        let lock = self.lock(RowMode::Exclusive);
        let reads_committed = may_read_committed(scope, lock) && !self.is_temporary();
        let mut before = HeldBefore::a_read(scope, lock, self.is_temporary());
        let mut call = scope.begin_call()?;
        let row_call = scope.row_call(&mut call.inner, self.kind(), lock.lock_timeout(scope));
        let read = row_call.run(|call| match self.try_get_and_note(call, key, lock, value, &mut before) {
            Err(Stop::Blocked(_)) if reads_committed => {
                let own = call.attempt()?.id();
                let (entered, versions) = (self.inner.enter()?, self.engine.transactions.versions());
                let is_there =
                    versions.get_committed(&entered.clustered, key, own, Some(self.fields), value)?;
                Ok(Some(SemiConsistentRead::of(is_there, SemiConsistentRead::Committed)))
            }
            read => read.map(|read| {
                read.map(|is_there| SemiConsistentRead::of(is_there, SemiConsistentRead::Locked))
            }),
        });
        let read = read.map(|read| (read, before.taken(&call.inner)));
        call.finish(read).map_err(|error| self.with_owner(error))
    }

    fn get_for(&self, key: &[u8], mode: RowMode) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_for_into(key, mode, &mut value)?.then_some(value))
    }

    fn get_for_into(&self, key: &[u8], mode: RowMode, value: &mut Vec<u8>) -> Result<bool> {
        self.engine.check_open()?;
        let scope = self.holder()?;
        let mut call = scope.begin_call()?;
        let found = self.get_locked(scope, &mut call.inner, key, self.lock(mode), Some(self.fields), value);
        call.finish(found).map_err(|error| self.with_owner(error))
    }

    /// Returns the newest rows of a range, and locks each as [`TxTable::get_for_share`] does. At levels that lock gaps,
    /// no row is added to the range before the transaction has ended.
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`].
    pub fn range_for_share<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Range> {
        Ok(Range::new(self.cursor_for(RowMode::Shared)?, Bounds::of(&range)))
    }

    /// Returns the newest rows of a range, and locks each as [`TxTable::get_for_update`] does.
    ///
    /// # Errors
    /// As [`TxTable::get_for_update`].
    pub fn range_for_update<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Range> {
        Ok(Range::new(self.cursor_for(RowMode::Exclusive)?, Bounds::of(&range)))
    }

    /// Returns a cursor that locks each row it moves to as [`TxTable::get_for_share`] does, and at levels that lock
    /// gaps also the gaps between.
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`].
    pub fn cursor_for_share(&self) -> Result<Cursor> {
        self.cursor_for(RowMode::Shared)
    }

    /// Returns a cursor that locks each row it moves to as [`TxTable::get_for_update`] does.
    ///
    /// # Errors
    /// As [`TxTable::get_for_update`].
    pub fn cursor_for_update(&self) -> Result<Cursor> {
        self.cursor_for(RowMode::Exclusive)
    }

    fn cursor_for(&self, mode: RowMode) -> Result<Cursor> {
        self.cursor_of(self.locking_reader(mode)?)
    }

    pub(crate) fn lock(&self, mode: RowMode) -> RowLock {
        RowLock { mode, wait_policy: self.access.wait_policy }
    }

    /// Refuses locks in a read-only transaction.
    pub(crate) fn check_may_lock(&self) -> Result<()> {
        self.holder().map(drop)
    }

    /// Returns the transaction that will own the locks.
    pub(crate) fn holder(&self) -> Result<&Arc<Scope>> {
        let scope = self.checked(&self.access.transaction.scope)?;
        self.check_may_change(scope)?;
        Ok(scope)
    }

    /// Returns how locking reads on this handle read and lock.
    fn locking_reader(&self, mode: RowMode) -> Result<Reader> {
        let scope = ScopeRef::new(self.holder()?);
        Ok(match self.kind() {
            TableKind::Temporary => Reader::Session(Some(scope)),
            TableKind::Shared => Reader::InTransaction(scope, Some(self.lock(mode))),
        })
    }
}

impl TxIndex<'_> {
    /// As [`Index::range`], and locks each row as [`TxTable::get_for_share`] does. At levels that lock gaps, no row
    /// gets an index key in the range before the transaction has ended.
    ///
    /// # Errors
    /// As [`Index::range`] and [`TxTable::get_for_share`].
    pub fn range_for_share<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<IndexRange> {
        self.range_of(self.table.locking_reader(RowMode::Shared)?, &range)
    }

    /// As [`Index::range`], and locks each row as [`TxTable::get_for_update`] does.
    ///
    /// # Errors
    /// As [`Index::range`] and [`TxTable::get_for_update`].
    pub fn range_for_update<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<IndexRange> {
        self.range_of(self.table.locking_reader(RowMode::Exclusive)?, &range)
    }

    /// Returns a cursor in the order of the index that locks each row it moves to as [`TxTable::get_for_share`] does,
    /// and at levels that lock gaps also the gaps of the index between.
    ///
    /// # Errors
    /// As [`Index::range`] and [`TxTable::get_for_share`].
    pub fn cursor_for_share(&self) -> Result<IndexCursor> {
        self.cursor_of(self.table.locking_reader(RowMode::Shared)?)
    }

    /// As [`TxIndex::cursor_for_share`], but returns the entries alone, without the values of the rows that it locks,
    /// as [`Index::key_cursor`] does.
    ///
    /// # Errors
    /// As [`TxIndex::cursor_for_share`].
    pub fn key_cursor_for_share(&self) -> Result<IndexCursor> {
        self.key_cursor_of(self.table.locking_reader(RowMode::Shared)?)
    }

    /// As [`TxIndex::key_cursor_for_share`], and locks each row as [`TxTable::get_for_update`] does.
    ///
    /// # Errors
    /// As [`TxIndex::cursor_for_update`].
    pub fn key_cursor_for_update(&self) -> Result<IndexCursor> {
        self.key_cursor_of(self.table.locking_reader(RowMode::Exclusive)?)
    }

    /// As [`TxIndex::cursor_for_share`], and locks each row as [`TxTable::get_for_update`] does.
    ///
    /// # Errors
    /// As [`Index::range`] and [`TxTable::get_for_update`].
    pub fn cursor_for_update(&self) -> Result<IndexCursor> {
        self.cursor_of(self.table.locking_reader(RowMode::Exclusive)?)
    }
}
