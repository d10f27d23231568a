//! Transactions of several calls.
//!
//! **Purpose.** Begins, commits and rolls back transactions, and rolls back parts of them. The calls in a transaction
//! are those on table handles in it ([`Transaction::table`]).
//!
//! **Invariants.** A transaction runs one call at a time (test: `a_transaction_does_one_call_at_a_time`). It ends once,
//! by commit, by rollback, or by an error that makes it roll back (checked by `mvcc/active.rs::end`). Dropping the
//! handle rolls it back, unless it is prepared (test: `dropping_the_handle_rolls_back_the_transaction`). A call that
//! fails has changed nothing, and the transaction stays open (test: `a_failed_call_rolls_back_only_its_own_changes`).
//!
//! The handle of a transaction that has ended begins another one on request alone, and refuses calls until then (test:
//! `the_handle_of_an_ended_transaction_names_the_cure`). What was made in the former transaction is never part of the
//! later one: table and index handles by type, cursors by the number of the transaction (test:
//! `cursors_of_the_former_transaction_are_refused_after_a_restart`), savepoints by its serial number (test:
//! `savepoints_of_the_former_transaction_are_refused_after_a_restart`).

use core::time::Duration;

use crate::{
    engine::Engine,
    error::Result,
    ids::{Lsn, TrxId},
    interrupt::InterruptHandle,
    log::FlushLog,
    scope::{Scope, end::OpenStatement, statement::SavepointId},
    sync::Arc,
    table::Table,
    tx_table::{InTransaction, TxTable},
    txn::locks::OwnerOptions,
};

pub use crate::txn::locks::Isolation;

/// The action of a locking read on a row that another transaction has locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockWaitPolicy {
    /// Waits, up to the transaction's lock timeout.
    #[default]
    Wait,
    /// Fails at once with [`LockError::Busy`](crate::error::LockError::Busy): `NOWAIT` of SQL.
    NoWait,
    /// Skips the row, as if it did not exist: `SKIP LOCKED` of SQL. At [`Isolation::ReadCommitted`], many consumers of
    /// one queue then do not wait for each other. At stricter levels the gap locks of a range block inserts into it,
    /// whatever rows it skips.
    SkipLocked,
}

/// What becomes of the changes of a statement at its end ([`Transaction::end_statement`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatementEnd {
    /// They stay part of the transaction, and so do the savepoints that were set in the statement.
    Keep,
    /// They are rolled back. The rows stay locked.
    Undo,
}

/// A savepoint as a value ([`Transaction::set_savepoint`]). It owns nothing, and may be kept as 16 bytes.
///
/// A value is accepted by the transaction that has set it, as long as the savepoint exists. It ends with the
/// transaction, when it is released, by a rollback to an earlier savepoint, and with a statement in which it was set
/// and that is undone. A statement in progress hides the savepoints from before it. No later savepoint of the process
/// has the same value; after a restart of the process it means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Savepoint {
    /// The serial number of its transaction.
    pub(crate) transaction: u64,
    /// Its number in the transaction.
    pub(crate) number: u64,
}

impl Savepoint {
    /// Returns its bytes, from which [`Savepoint::from_bytes`] makes the same value.
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.transaction) << 64 | u128::from(self.number)).to_be_bytes()
    }

    /// Returns the savepoint with these bytes. Bytes that are not those of a savepoint make a value that no transaction
    /// accepts.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_be_bytes(bytes);
        Self { transaction: (both >> 64) as u64, number: both as u64 }
    }
}

/// Options of a new transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionOptions {
    pub(crate) isolation: Isolation,
    pub(crate) read_only: bool,
    pub(crate) snapshot: bool,
    pub(crate) lock_wait: Option<Duration>,
    pub(crate) owner: OwnerOptions,
    /// The transaction is a call outside of transactions, of several steps.
    pub(crate) is_single_call: bool,
}

impl TransactionOptions {
    /// Returns the options of the transaction that a call outside of transactions needs for its steps.
    pub(crate) fn of_single_call(isolation: Isolation) -> Self {
        Self { isolation, is_single_call: true, ..Self::default() }
    }

    /// Returns whether the transaction takes a snapshot when it begins.
    pub(crate) fn wants_view(&self) -> bool {
        self.snapshot && matches!(self.isolation, Isolation::RepeatableRead | Isolation::Snapshot)
    }

    /// Returns the options of the transaction as a lock owner.
    pub(crate) fn owner(&self) -> OwnerOptions {
        OwnerOptions { isolation: Some(self.isolation), ..self.owner }
    }

    /// Sets the isolation level. Default: [`Isolation::RepeatableRead`].
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Makes it read-only: it changes only temporary tables, which no other transaction uses, and locks only what plain
    /// reads lock at [`Isolation::Serializable`].
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Takes the snapshot of its plain reads when the transaction begins, and not at the first read. Has no effect at
    /// levels without a snapshot.
    #[must_use]
    pub fn consistent_snapshot(mut self) -> Self {
        self.snapshot = true;
        self
    }

    /// Sets the lock timeout of a call: the waits of one call together take at most this long; with zero it does not
    /// wait at all. Default: [`Options::lock_wait_timeout`]. [`Transaction::set_lock_wait_timeout`] changes it.
    ///
    /// [`Options::lock_wait_timeout`]: crate::Options::lock_wait_timeout
    #[must_use]
    pub fn lock_wait(mut self, at_most: Duration) -> Self {
        self.lock_wait = Some(at_most);
        self
    }

    /// Sets the tag: any number by which the program recognizes the transaction, such as that of its session. The lists
    /// of transactions, locks and waits show it, and so do blockers and deadlocks. Default: 0, which stands for none.
    /// It does not survive a crash.
    #[must_use]
    pub fn tag(mut self, tag: u64) -> Self {
        self.owner.tag = tag;
        self
    }

    /// Sets the priority among the members of a deadlock: the one with the lowest is the victim and rolls back; among
    /// equals it is the one that has changed and locked the least. Default: 0. [`i64::MIN`] is that of a DDL statement
    /// which lets others pass while it waits, and means one more here. [`Transaction::set_deadlock_priority`] changes
    /// it.
    #[must_use]
    pub fn deadlock_priority(mut self, priority: i64) -> Self {
        self.owner.deadlock_priority = priority.max(OwnerOptions::MIN_PRIORITY);
        self
    }

    /// Sets the ordering group. Transactions with the same number other than 0 are applied in an order that the program
    /// fixes itself, as the transactions that a replica runs side by side and commits in the order of the primary.
    /// Their gap locks do not block each other's inserts; those of all others do. Locks of rows and tables always
    /// block, and so do duplicate keys. Within the group, a range that one of them has locked is not protected from
    /// phantoms that another one inserts. Default: 0, which stands for no group. It does not survive a crash.
    #[must_use]
    pub fn ordering_group(mut self, group: u64) -> Self {
        self.owner.ordering_group = group;
        self
    }
}

/// A transaction: several calls on any tables, of which all take effect or none.
///
/// ```
/// # fn main() -> windfall::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("windfall-transaction-{}", std::process::id()));
/// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
/// use windfall::{TableOptions, TransactionOptions};
///
/// let accounts = db.create_table("accounts", TableOptions::default())?;
/// accounts.insert(b"alice", b"100")?;
/// accounts.insert(b"bob", b"0")?;
///
/// let transfer = db.begin(TransactionOptions::default());
/// let in_transfer = transfer.table(&accounts);
/// in_transfer.get_for_update(b"alice")?;
/// in_transfer.put(b"alice", b"60")?;
/// in_transfer.put(b"bob", b"40")?;
/// // No other transaction sees a part of it.
/// assert_eq!(accounts.get(b"alice")?, Some(b"100".to_vec()));
/// transfer.commit()?;
/// assert_eq!(accounts.get(b"bob")?, Some(b"40".to_vec()));
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction {
    pub(crate) scope: Arc<Scope>,
}

impl Transaction {
    pub(crate) fn begin(
        engine: Arc<Engine>,
        options: TransactionOptions,
        interrupt: Option<InterruptHandle>,
    ) -> Self {
        Self { scope: Arc::new(Scope::new(engine, options, interrupt)) }
    }

    /// Returns the handle of a table for calls in this transaction. This is cheap; the handle need not be kept.
    ///
    /// The handle shares what `table` refers to, and so may outlive it, but not the transaction: a structure that keeps
    /// both for many calls keeps the [`Table`] and the transaction, and makes the handle for each call. Reads and
    /// changes of a table of another database fail with [`TransactionError::OtherDatabase`].
    ///
    /// [`TransactionError::OtherDatabase`]: crate::error::TransactionError::OtherDatabase
    pub fn table(&self, table: &Table) -> TxTable<'_> {
        table.with_access(InTransaction::new(self))
    }

    /// Returns the id that lists of locks and error messages show; `None` while the transaction has neither changed nor
    /// locked anything.
    pub fn id(&self) -> Option<TrxId> {
        self.scope.id()
    }

    /// Returns the isolation level.
    pub fn isolation(&self) -> Isolation {
        self.scope.isolation()
    }

    /// Changes the lock timeout ([`TransactionOptions::lock_wait`]) for the calls that begin after this one; `None`
    /// sets it to that of the database ([`Options::lock_wait_timeout`](crate::Options::lock_wait_timeout)). May be
    /// called at any time. A wait in progress keeps its timeout.
    pub fn set_lock_wait_timeout(&self, at_most: Option<Duration>) {
        self.scope.set_lock_timeout(at_most);
    }

    /// Returns the handle that interrupts the calls of this transaction that begin after its creation: that of
    /// [`Database::with_interrupt`](crate::Database::with_interrupt), or one that the first of these calls creates.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-handle-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{TableOptions, TransactionOptions, error::{Error, LockError}};
    ///
    /// let stock = db.create_table("stock", TableOptions::default())?;
    /// stock.insert(b"apples", b"3")?;
    /// let (one, other) = (db.begin(TransactionOptions::default()), db.begin(TransactionOptions::default()));
    /// one.table(&stock).put(b"apples", b"2")?;
    /// let handle = other.interrupt_handle();
    /// std::thread::spawn(move || handle.interrupt());
    /// let waits = other.table(&stock).get_for_update(b"apples");
    /// assert!(matches!(waits, Err(Error::Lock(LockError::Interrupted))));
    /// # drop((one, other));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn interrupt_handle(&self) -> InterruptHandle {
        self.scope.interrupt_handle()
    }

    /// Changes the tag ([`TransactionOptions::tag`]). Errors and reports that exist keep the former one.
    ///
    /// # Errors
    /// The transaction is prepared or has ended, or a call of it is in progress.
    pub fn set_tag(&self, tag: u64) -> Result<()> {
        self.scope.change_owner(|owner| owner.tag = tag)
    }

    /// Changes the priority among the members of a deadlock ([`TransactionOptions::deadlock_priority`]). It applies to
    /// deadlocks that are found from now on.
    ///
    /// # Errors
    /// The transaction is prepared or has ended, or a call of it is in progress.
    pub fn set_deadlock_priority(&self, priority: i64) -> Result<()> {
        self.scope.change_owner(|owner| owner.deadlock_priority = priority.max(OwnerOptions::MIN_PRIORITY))
    }

    /// Returns whether the transaction has locks in the lock table ([`Database::locks`](crate::Database::locks)) or has
    /// changed anything, in a temporary table, too. What was rolled back to a savepoint counts, because its rows stay
    /// locked. A transaction that was rolled back as a whole holds none, also while its rollback continues in the
    /// background.
    ///
    /// # Errors
    /// [`TransactionError::Busy`](crate::error::TransactionError::Busy): a call of it is in progress.
    pub fn holds_locks(&self) -> Result<bool> {
        self.scope.holds_locks()
    }

    /// Commits the transaction. When this call returns, the commit is as durable as `flush_log_at_trx_commit` says. A
    /// step of a range or cursor of the transaction on another thread is part of it: the commit waits for that step.
    /// [`Database::interrupt`] ends a lock wait of that step. Other transactions see the changes before they are
    /// durable.
    ///
    /// Returns the position of the log at which the commit ends; `None` if the transaction has logged nothing. The
    /// commit is durable when the log is durable up to there ([`Database::await_durable`], [`Database::when_durable`]).
    ///
    /// # Errors
    /// An earlier error has rolled the transaction back. The log accepts no more records: the database has then
    /// stopped, and the next opening decides whether the transaction is committed. A transaction with more undo than
    /// log is reserved for cannot be committed while the disk is full: it is rolled back. A prepared one has log
    /// reserved for its commit, whatever its size.
    ///
    /// [`TransactionError::Busy`] if a call of the transaction is in progress, and the commit comes from within a call
    /// (a source, or an output that a value is written to), which must not wait. The transaction then rolls back when
    /// the call in progress has ended. A prepared one stays prepared, and must be ended by its name.
    ///
    /// [`TransactionError::StatementInProgress`] if a statement has not ended ([`Transaction::end_statement`]). The
    /// transaction is then rolled back.
    ///
    /// [`TransactionError::StatementInProgress`]: crate::error::TransactionError::StatementInProgress
    /// [`Database::interrupt`]: crate::Database::interrupt
    /// [`Database::await_durable`]: crate::Database::await_durable
    /// [`Database::when_durable`]: crate::Database::when_durable
    /// [`TransactionError::Busy`]: crate::error::TransactionError::Busy
    pub fn commit(self) -> Result<Option<Lsn>> {
        let mode = self.scope.engine.flush_mode();
        self.commit_with(mode)
    }

    /// As [`Transaction::commit`], but with this durability. A coordinator that commits many transactions in a certain
    /// order does so with [`FlushLog::Lazy`], and makes all of them durable by one call of
    /// [`Database::flush_log`](crate::Database::flush_log). The commits become visible in the order of these calls.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_with(self, mode: FlushLog) -> Result<Option<Lsn>> {
        self.scope.commit(mode, OpenStatement::Refuse)
    }

    /// As [`Transaction::commit_with`], but the handle is kept for [`Transaction::restart`].
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-restart-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{FlushLog, TableOptions, TransactionOptions};
    ///
    /// let stock = db.create_table("stock", TableOptions::default())?;
    /// let mut trx = db.begin(TransactionOptions::default());
    /// for n in 1..4u8 {
    ///     trx.table(&stock).put(b"apples", &[n])?;
    ///     trx.commit_and_keep(FlushLog::Lazy)?;
    ///     trx.restart(TransactionOptions::default())?;
    /// }
    /// assert_eq!(trx.table(&stock).get(b"apples")?, Some(vec![3]));
    /// # drop(trx);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::commit`], except that after [`TransactionError::Busy`] and
    /// [`TransactionError::StatementInProgress`] the transaction is open as before. After any other error it has been
    /// rolled back, or is prepared as before, or the database has stopped.
    ///
    /// [`TransactionError::Busy`]: crate::error::TransactionError::Busy
    /// [`TransactionError::StatementInProgress`]: crate::error::TransactionError::StatementInProgress
    pub fn commit_and_keep(&mut self, mode: FlushLog) -> Result<Option<Lsn>> {
        self.scope.commit(mode, OpenStatement::Refuse)
    }

    /// Ends the statement in progress, keeps its changes, and commits: one call for the end of an autocommit statement,
    /// instead of [`Transaction::end_statement`] and [`Transaction::commit_and_keep`].
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-commit-statement-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{FlushLog, TableOptions, TransactionOptions};
    ///
    /// let stock = db.create_table("stock", TableOptions::default())?;
    /// let mut trx = db.begin(TransactionOptions::default());
    /// trx.begin_statement()?;
    /// trx.table(&stock).put(b"apples", b"3")?;
    /// let end = trx.commit_statement(FlushLog::Lazy)?.expect("it has changed a row");
    /// db.await_durable(end)?; // or later, once for many commits
    /// trx.restart(TransactionOptions::default())?;
    /// # drop(trx);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`TransactionError::NoStatement`](crate::error::TransactionError::NoStatement): as for
    ///   [`Transaction::end_statement`].
    /// - [`TransactionError::StatementInProgress`](crate::error::TransactionError::StatementInProgress): the innermost
    ///   statement is within another one.
    /// - [`TransactionError::Prepared`](crate::error::TransactionError::Prepared).
    /// - As [`Transaction::commit_and_keep`].
    ///
    /// After the first three nothing has changed.
    pub fn commit_statement(&mut self, mode: FlushLog) -> Result<Option<Lsn>> {
        self.scope.commit(mode, OpenStatement::Keep)
    }

    /// As [`Transaction::commit_and_keep`], at a place in the order of commits: `note` runs when the commit is visible,
    /// with the position at which it ends, before any other ordered commit is visible, and before anything that
    /// [`Database::between_ordered_commits`](crate::Database::between_ordered_commits) runs. So a coordinator with a
    /// log of its own (a binary log, a queue) notes its position there, and finds a snapshot for exactly this position.
    /// The log is synced, if `mode` asks for it, after `note`, together with that of other commits.
    ///
    /// Meanwhile all other ordered commits wait: `note` should only store a few values. It may not commit in order. If
    /// it panics, the transaction is committed, and not synced.
    ///
    /// # Errors
    /// As [`Transaction::commit_and_keep`]; `note` does not run if the commit fails. If only the sync fails, it has
    /// run: the database has then stopped, and the next opening decides.
    /// [`UsageError::StatementInCall`](crate::error::UsageError::StatementInCall) from within a call or such a
    /// callback; the transaction is open as before.
    pub fn commit_ordered(&mut self, mode: FlushLog, note: impl FnOnce(Option<Lsn>)) -> Result<Option<Lsn>> {
        self.scope.commit_ordered(mode, note)
    }

    /// Rolls back the transaction. Waits for a call on another thread, as [`Transaction::commit`] does.
    ///
    /// # Errors
    /// An earlier error has rolled the transaction back. [`TransactionError::Busy`] and
    /// [`TransactionError::StatementInProgress`], as for [`Transaction::commit`]: a transaction whose statement has not
    /// ended is rolled back nevertheless, as it is when it is dropped. [`TransactionError::RollingBack`] if the
    /// rollback continues in the background. The disk is full, if the transaction is prepared, and it stays prepared.
    /// After any other error the database has stopped, and the next opening rolls back.
    ///
    /// [`TransactionError::Busy`]: crate::error::TransactionError::Busy
    /// [`TransactionError::RollingBack`]: crate::error::TransactionError::RollingBack
    /// [`TransactionError::StatementInProgress`]: crate::error::TransactionError::StatementInProgress
    pub fn rollback(self) -> Result<()> {
        self.scope.rollback()
    }

    /// As [`Transaction::rollback`], but the handle is kept for [`Transaction::restart`].
    ///
    /// # Errors
    /// As [`Transaction::rollback`], except that after [`TransactionError::Busy`] and
    /// [`TransactionError::StatementInProgress`] the transaction is open as before.
    ///
    /// [`TransactionError::Busy`]: crate::error::TransactionError::Busy
    /// [`TransactionError::StatementInProgress`]: crate::error::TransactionError::StatementInProgress
    pub fn rollback_and_keep(&mut self) -> Result<()> {
        self.scope.rollback()
    }

    /// Begins another transaction with this handle, as [`Database::begin`](crate::Database::begin) does, in the memory
    /// of the former one: a session that keeps its handle allocates nothing for a transaction of one statement that
    /// only reads, unless others have begun or ended since the one before. The
    /// former transaction has committed ([`Transaction::commit_and_keep`], [`Transaction::commit_statement`]), was
    /// rolled back ([`Transaction::rollback_and_keep`], a deadlock, another error), or is prepared. A prepared one
    /// stays prepared, as it does when its handle is dropped, and is ended by its name
    /// ([`Database::commit_prepared`](crate::Database::commit_prepared)). May be called on any thread.
    ///
    /// Two things are kept from the former transaction. One is the interrupt handle
    /// ([`Transaction::interrupt_handle`]): one that is set interrupts this transaction, too, until it is cleared. An
    /// interrupt by the number of the former transaction ([`Database::interrupt`](crate::Database::interrupt)) does not
    /// concern this one. The other is the tag, if `options` has none ([`TransactionOptions::tag`]). All else is as in
    /// `options`, the lock timeout and the priority included.
    ///
    /// Cursors and ranges of the former transaction fail from now on with
    /// [`TransactionError::Former`](crate::error::TransactionError::Former), and its savepoints are refused. Table and
    /// index handles cannot be kept that long:
    ///
    /// ```compile_fail,E0502
    /// # fn main() -> windfall::Result<()> {
    /// # let db = windfall::Database::open("", windfall::Options::default())?;
    /// # let stock = db.create_table("stock", windfall::TableOptions::default())?;
    /// # let mut trx = db.begin(windfall::TransactionOptions::default());
    /// let in_trx = trx.table(&stock);
    /// trx.restart(windfall::TransactionOptions::default())?;
    /// in_trx.get(b"apples")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TransactionError::NotEnded`](crate::error::TransactionError::NotEnded): the transaction is open, and stays
    /// open. [`TransactionError::Busy`](crate::error::TransactionError::Busy): a call of it is in progress, and this
    /// one comes from within a call.
    pub fn restart(&mut self, options: TransactionOptions) -> Result<()> {
        self.scope.restart(options)
    }

    /// The first phase of a two-phase commit. Afterwards the transaction can be committed whatever happens, and is
    /// committed or rolled back only on request; it accepts no other calls. `xid` is its name for such requests when
    /// the handle was dropped or lost in a crash ([`Database::commit_prepared`](crate::Database::commit_prepared)).
    /// Until then its changes stay locked, and DDL statements on its tables wait. Its other locks, those of rows and
    /// ranges that it has read, are lost in a crash. When this call returns, the prepare is as durable as
    /// `flush_log_at_trx_commit` says.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-prepare-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{TableOptions, TransactionOptions};
    ///
    /// let stock = db.create_table("stock", TableOptions::default())?;
    /// let trx = db.begin(TransactionOptions::default());
    /// trx.table(&stock).put(b"apples", b"3")?;
    /// trx.prepare(b"order 7")?;
    /// drop(trx); // it stays prepared, as it would in a crash
    /// assert_eq!(db.prepared()[0].xid, b"order 7");
    /// db.commit_prepared(b"order 7")?;
    /// assert_eq!(stock.get(b"apples")?.as_deref(), Some(&b"3"[..]));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The name is taken, empty, or longer than 255 bytes; the disk is full; a statement is in progress
    /// ([`Transaction::begin_statement`]), which may still be undone. The transaction then stays open as if this had
    /// not been called.
    pub fn prepare(&self, xid: &[u8]) -> Result<()> {
        self.prepare_with(xid, self.scope.engine.flush_mode())
    }

    /// As [`Transaction::prepare`], but with this durability.
    ///
    /// # Errors
    /// As [`Transaction::prepare`].
    pub fn prepare_with(&self, xid: &[u8], mode: FlushLog) -> Result<()> {
        self.scope.prepare(xid, mode)?;
        debug_assert!(self.id().is_some(), "a transaction is prepared and has no id");
        Ok(())
    }

    /// Sets a savepoint. A savepoint of the same name moves to this position.
    ///
    /// # Errors
    /// The transaction has ended, or a call of it is in progress.
    pub fn savepoint(&self, name: &str) -> Result<()> {
        self.scope.set_savepoint(Some(name)).map(drop)
    }

    /// Rolls back all changes since a savepoint. The savepoint stays; those set after it are removed. Locks are kept.
    ///
    /// # Errors
    /// There is no savepoint of this name.
    pub fn rollback_to(&self, name: &str) -> Result<()> {
        self.scope.rollback_to(SavepointId::Name(name))
    }

    /// Removes a savepoint, and those set after it. Changes since then are kept.
    ///
    /// # Errors
    /// There is no savepoint of this name.
    pub fn release(&self, name: &str) -> Result<()> {
        self.scope.release(SavepointId::Name(name))
    }

    /// Sets a savepoint without a name. It is found again by the value that this call returns.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-savepoint-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{Savepoint, TableOptions, TransactionOptions};
    ///
    /// let stock = db.create_table("stock", TableOptions::default())?;
    /// let trx = db.begin(TransactionOptions::default());
    /// let kept: [u8; 16] = trx.set_savepoint()?.to_bytes();
    /// trx.table(&stock).put(b"apples", b"3")?;
    /// trx.rollback_to_savepoint(&Savepoint::from_bytes(kept))?;
    /// trx.commit()?;
    /// assert_eq!(stock.get(b"apples")?, None);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::savepoint`].
    pub fn set_savepoint(&self) -> Result<Savepoint> {
        self.scope.set_savepoint(None)
    }

    /// As [`Transaction::rollback_to`]: the savepoint stays, and those set after it are removed, with names or without.
    ///
    /// # Errors
    /// [`TransactionError::StaleSavepoint`](crate::error::TransactionError::StaleSavepoint): the savepoint does not
    /// exist any more, is hidden by a statement, or is that of another transaction.
    pub fn rollback_to_savepoint(&self, savepoint: &Savepoint) -> Result<()> {
        self.scope.rollback_to(SavepointId::Value(*savepoint))
    }

    /// Removes a savepoint, and unlike [`Transaction::release`] no other one. Changes since then are kept.
    ///
    /// # Errors
    /// As [`Transaction::rollback_to_savepoint`].
    pub fn release_savepoint(&self, savepoint: &Savepoint) -> Result<()> {
        self.scope.release(SavepointId::Value(*savepoint))
    }

    /// Begins a statement: the calls until its end take effect together. It may be ended on another thread. Statements
    /// nest. Savepoints set before cannot be used until the statement ends; those that it has set are kept if it is.
    /// The transaction can be neither prepared nor ended meanwhile, except by dropping it, which rolls it back.
    ///
    /// At [`Isolation::ReadCommitted`] the plain reads of a statement, and of those within it, are of one snapshot,
    /// which the first of them takes, and see the changes of the transaction itself. The snapshot ends with the
    /// outermost statement; a range or a cursor that has begun in the statement keeps it until the cursor's next seek,
    /// or until it is dropped. One that has begun before the statement keeps its own until its next seek.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-statement-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{StatementEnd, TableOptions, TransactionOptions};
    ///
    /// let stock = db.create_table("stock", TableOptions::default())?;
    /// let trx = db.begin(TransactionOptions::default());
    /// trx.table(&stock).put(b"apples", b"3")?;
    /// trx.begin_statement()?;
    /// trx.table(&stock).put(b"apples", b"2")?;
    /// trx.table(&stock).put(b"pears", b"1")?;
    /// trx.end_statement(StatementEnd::Undo)?;
    /// trx.commit()?;
    /// assert_eq!(stock.rows()?.collect::<windfall::Result<Vec<_>>>()?, [(b"apples".to_vec(), b"3".to_vec())]);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The transaction is prepared or has ended, or a call of it is in progress.
    pub fn begin_statement(&self) -> Result<()> {
        self.scope.begin_statement()
    }

    /// Ends the innermost statement that [`Transaction::begin_statement`] has begun. Waits for a call on another
    /// thread, as [`Transaction::commit`] does. Locks are kept.
    ///
    /// # Errors
    /// - [`TransactionError::RolledBack`]: an earlier error has rolled the transaction back, and the statement with it.
    /// - [`TransactionError::NoStatement`]: there is none, or the innermost one is that of a closure
    ///   ([`Transaction::atomically`]).
    /// - [`TransactionError::Busy`]: as for [`Transaction::commit`], or a closure binds the transaction to another
    ///   thread. The statement has not ended.
    /// - Any other error: the changes could not be rolled back, and the transaction is rolled back as a whole.
    ///
    /// [`TransactionError::RolledBack`]: crate::error::TransactionError::RolledBack
    /// [`TransactionError::NoStatement`]: crate::error::TransactionError::NoStatement
    /// [`TransactionError::Busy`]: crate::error::TransactionError::Busy
    pub fn end_statement(&self, end: StatementEnd) -> Result<()> {
        self.scope.end_statement(end)
    }

    /// Runs several calls as one statement ([`Transaction::begin_statement`]): if `run` fails or panics, their changes
    /// are rolled back, and the transaction stays open. A statement that `run` has begun and not ended ends with it. If
    /// this is called from within a call of another transaction, or of none, the statement belongs to its thread: calls
    /// of other threads in this transaction are refused ([`TransactionError::Busy`]) until it ends.
    ///
    /// [`TransactionError::Busy`]: crate::error::TransactionError::Busy
    ///
    /// # Errors
    /// The errors of `run`. [`TransactionError::RolledBack`] if `run` succeeds although an error of one of its calls
    /// has rolled the transaction back.
    ///
    /// [`TransactionError::RolledBack`]: crate::error::TransactionError::RolledBack
    pub fn atomically<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.scope.atomically(run)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.scope.abandon();
    }
}
