//! The database handle: the entry point of the library.
//!
//! **Purpose.** Opens a database, returns handles of tables and sessions, and runs DDL statements.
//!
//! **Invariants.** A [`Database`] is a handle: clones are cheap, and any thread may use any of them (test:
//! `handles_are_used_from_any_thread`). The database shuts down cleanly when it is closed (test:
//! `closing_during_concurrent_calls`), or when the last handle of any kind is dropped. Every call is atomic and, as
//! [`FlushLog`] says, durable on its own (test: `acknowledged_changes_survive_kills`).

mod indexes;
mod options;
mod statement;
mod table_info;

pub use options::{IndexOptions, TableOptions};
pub(crate) use statement::StatementOptions;
pub use table_info::TableInfo;

use core::time::Duration;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use tracing::{debug, info};

use crate::{
    buffer::MIN_FRAMES,
    catalog::{DropReport, Table as CatalogTable},
    check::{self, CheckReport},
    disk::Disk,
    engine::Engine,
    env::Env,
    error::{Owner, Result, UsageError},
    ids::{Lsn, SpaceId, TrxId},
    interrupt::InterruptHandle,
    log::FlushLog,
    metrics::Metrics,
    options::Options,
    scope::end::between_ordered_commits,
    session::{Session, TemporaryTable, TemporaryTableInfo},
    sync::{Arc, Progress, atomic::Ordering::Relaxed},
    table::Table,
    transaction::{Transaction, TransactionOptions},
    txn::{
        UndoLimitAction,
        locks::{Deadlock, HeldLock, Waiting},
        mvcc::listing::{TransactionInfo, ViewInfo},
        trx::{prepared::PreparedTransaction, two_phase},
    },
};

/// An open database.
#[derive(Clone, Debug)]
pub struct Database {
    pub(crate) engine: Arc<Engine>,
    /// What it has set for its DDL statements.
    statement_options: StatementOptions,
    /// What interrupts them and the transactions that it begins, if [`Database::with_interrupt`] has set one.
    interrupt: Option<InterruptHandle>,
}

impl Database {
    /// Opens the database in this folder, or creates one.
    ///
    /// # Errors
    /// A problem with the folder, the files or the options; the message names it and says how to fix it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::open_with(path, &options, &|_| {})
    }

    /// As [`Database::open`], and reports the progress of recovery to `progress`.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open_with(path: impl AsRef<Path>, options: &Options, progress: &dyn Fn(Progress)) -> Result<Self> {
        Ok(Self::of(Engine::open_folder(path.as_ref(), options, progress)?))
    }

    /// Opens the database on this disk and in this environment, which may be simulated.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        env: Arc<dyn Env>,
        options: &Options,
        progress: &dyn Fn(Progress),
    ) -> Result<Self> {
        Ok(Self::of(Engine::open(disk, env, options, progress)?))
    }

    fn of(engine: Engine) -> Self {
        let (tables, frames) = (engine.catalog.count(), engine.pool.occupancy().frames);
        info!(
            target: "windfall::engine",
            tables, frames, log_end = engine.log.end().0, "the database is open",
        );
        Self { engine: Arc::new(engine), statement_options: StatementOptions::default(), interrupt: None }
    }

    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Begins a session, which can have temporary tables.
    pub fn session(&self) -> Session {
        Session::new(self.engine.clone())
    }

    /// Begins a transaction of several calls. Without one, each call is a transaction of its own.
    pub fn begin(&self, options: TransactionOptions) -> Transaction {
        Transaction::begin(self.engine.clone(), options, self.interrupt.clone())
    }

    /// Runs a closure between two ordered commits ([`Transaction::commit_ordered`]). A snapshot that is taken in it
    /// ([`TransactionOptions::consistent_snapshot`]) sees exactly the ordered commits whose callback has run, whatever
    /// position these have noted. Commits that are not ordered do not wait, and may become visible meanwhile.
    ///
    /// The closure should do no more than that: until it returns, all ordered commits wait, and a wait of the closure
    /// for a lock of such a transaction would only end at its lock timeout.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # use windfall::{Database, FlushLog, Options, TableOptions, TransactionOptions};
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-ordered-{}", std::process::id()));
    /// # let db = Database::open(&folder, Options::small())?;
    /// # let orders = db.create_table("orders", TableOptions::default())?;
    /// // The end of the coordinator's own log, of which every commit is a part.
    /// let noted = AtomicU64::new(0);
    /// let mut trx = db.begin(TransactionOptions::default());
    /// trx.table(&orders).insert(b"1", b"apples")?;
    /// trx.commit_ordered(FlushLog::Sync, |_| noted.store(1, Ordering::SeqCst))?;
    ///
    /// let (snapshot, position) = db.between_ordered_commits(|| {
    ///     let snapshot = db.begin(TransactionOptions::default().consistent_snapshot());
    ///     (snapshot, noted.load(Ordering::SeqCst))
    /// })?;
    /// assert_eq!((snapshot.table(&orders).get(b"1")?.is_some(), position), (true, 1));
    /// # drop(snapshot);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The database is closed or has stopped. [`UsageError::StatementInCall`] from within a call, the callback of an
    /// ordered commit, or such a closure.
    pub fn between_ordered_commits<T>(&self, run: impl FnOnce() -> T) -> Result<T> {
        between_ordered_commits(&self.engine, run)
    }

    /// Returns the prepared transactions in the order of their names ([`Transaction::prepare`]).
    pub fn prepared(&self) -> Vec<PreparedTransaction> {
        self.engine.transactions.prepared().listing()
    }

    /// Commits a prepared transaction that no longer has a handle. When this call returns, the commit is as durable as
    /// `flush_log_at_trx_commit` says. Returns the position of the log at which the commit ends, as
    /// [`Transaction::commit`] does.
    ///
    /// # Errors
    /// There is no prepared transaction of this name, or its handle still exists. The disk is full, and was so when the
    /// database was opened: otherwise log is reserved for the commit. The transaction then stays prepared.
    pub fn commit_prepared(&self, xid: &[u8]) -> Result<Option<Lsn>> {
        self.commit_prepared_with(xid, self.engine.flush_mode())
    }

    /// As [`Database::commit_prepared`], but the commit is as durable as this mode says: a coordinator that recovers
    /// ends any number of transactions with [`FlushLog::Lazy`], and then calls [`Database::flush_log`] once.
    ///
    /// # Errors
    /// As [`Database::commit_prepared`].
    pub fn commit_prepared_with(&self, xid: &[u8], mode: FlushLog) -> Result<Option<Lsn>> {
        self.engine.check_open()?;
        let end = two_phase::commit_prepared(&self.engine.transactions, xid)?;
        assert!(end.is_none_or(|end| end <= self.engine.log.end()), "a commit ends beyond the log's end");
        self.engine.await_log(end, mode)?;
        Ok(end)
    }

    /// Rolls back a prepared transaction that no longer has a handle. When this call returns, the rollback is as
    /// durable as `flush_log_at_trx_commit` says.
    ///
    /// # Errors
    /// There is no prepared transaction of this name, or its handle still exists; the disk is full, and then it stays
    /// prepared; [`TransactionError::RollingBack`](crate::error::TransactionError::RollingBack) if the rollback
    /// continues in the background.
    pub fn rollback_prepared(&self, xid: &[u8]) -> Result<()> {
        self.rollback_prepared_with(xid, self.engine.flush_mode())
    }

    /// As [`Database::rollback_prepared`], but the rollback is as durable as this mode says. After a crash before that
    /// the transaction is prepared again.
    ///
    /// # Errors
    /// As [`Database::rollback_prepared`].
    pub fn rollback_prepared_with(&self, xid: &[u8], mode: FlushLog) -> Result<()> {
        self.engine.check_open()?;
        let done = two_phase::rollback_prepared(&self.engine.transactions, xid)?;
        assert!(
            done.durable_to.is_none_or(|end| end <= self.engine.log.end()),
            "a prepare is revoked beyond the end of the log"
        );
        self.engine.await_log(done.durable_to, mode)?;
        done.rollback
    }

    /// Makes all commits and prepares so far durable, whatever `flush_log_at_trx_commit` says: one sync for many of
    /// them. Waits until the log is synced.
    ///
    /// # Errors
    /// The log cannot be written; the database has then stopped.
    pub fn flush_log(&self) -> Result<()> {
        self.await_durable(self.log_end())
    }

    /// Returns the end of the log. What has committed before this call, also by calls outside of transactions, is
    /// durable when the log is durable up to there.
    pub fn log_end(&self) -> Lsn {
        self.engine.log.end()
    }

    /// Returns the position up to which the log is durable.
    pub fn durable_lsn(&self) -> Lsn {
        self.engine.log.durable()
    }

    /// Makes the log durable up to a position, and waits until it is: one sync for all commits before it. `lsn` is a
    /// position that [`Transaction::commit`], [`Database::log_end`] or another call of this database has returned.
    ///
    /// # Errors
    /// [`UsageError::BeyondLog`]; the log cannot be written, and then the database has stopped.
    pub fn await_durable(&self, lsn: Lsn) -> Result<()> {
        self.engine.check_open()?;
        self.check_position(lsn)?;
        self.engine.log.sync_to(lsn)?;
        assert!(
            lsn <= self.engine.log.durable(),
            "the log was synced up to a position, and it is not durable"
        );
        Ok(())
    }

    /// Calls `callback` once when the log is durable up to a position, or with an error if it will not become so:
    /// because the database has stopped, or was closed before. This does not ask for a sync: one follows with the next
    /// commit that is synced, with [`Database::await_durable`], or within about a second. Callbacks are called in the
    /// order of their positions, one at a time, by a background thread, and what still waits when the database is
    /// closed, by the thread that closes it. A later one waits for an earlier one. They may use the database, and close
    /// it ([`Database::close`]). A panic of a callback is logged, and has no other effect.
    ///
    /// # Errors
    /// [`UsageError::BeyondLog`]; the database is closed or has stopped; the system starts no more threads. `callback`
    /// is then not called.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::mpsc;
    /// # use windfall::{Database, FlushLog, Options, TableOptions, TransactionOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let options = Options::default().buffer_pool_size(8 << 20);
    /// # let db = Database::open(folder.path(), options)?;
    /// # let table = db.create_table("t", TableOptions::default())?;
    /// let trx = db.begin(TransactionOptions::default());
    /// trx.table(&table).put(b"key", b"value")?;
    /// let (sender, durable) = mpsc::channel();
    /// if let Some(lsn) = trx.commit_with(FlushLog::Lazy)? {
    ///     db.when_durable(lsn, move |outcome| sender.send(outcome).unwrap())?;
    /// }
    /// durable.recv().unwrap()?;
    /// # Ok::<(), windfall::Error>(())
    /// ```
    pub fn when_durable(&self, lsn: Lsn, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        self.engine.check_open()?;
        self.check_position(lsn)?;
        self.engine.when_durable(lsn, Box::new(callback))
    }

    fn check_position(&self, lsn: Lsn) -> Result<()> {
        let end = self.engine.log.end();
        if lsn > end { Err(UsageError::BeyondLog { lsn, end }.into()) } else { Ok(()) }
    }

    /// Returns the transactions that have an id, in the order of their ids: those that have changed or locked something
    /// and have not ended.
    pub fn transactions(&self) -> Vec<TransactionInfo> {
        self.engine.transactions.listing()
    }

    /// Returns the open read views, the oldest first: those of transactions, and those that ranges, cursors and streams
    /// have taken for themselves. Purge keeps every version that the oldest view may read.
    pub fn views(&self) -> Vec<ViewInfo> {
        self.engine.transactions.active().views()
    }

    /// Returns the locks that transactions and statements hold. Locks of rows that a transaction has changed and no
    /// other transaction waits for are not listed: they are implicit and cost nothing. Each lock was held at some point
    /// during the call. Transactions that lock and release meanwhile may be listed with some of their locks.
    pub fn locks(&self) -> Vec<HeldLock> {
        self.engine.transactions.lock_manager().listing()
    }

    /// Returns the lock waits: each waiting transaction or statement, and those that it waits for.
    pub fn lock_waits(&self) -> Vec<Waiting> {
        self.engine.transactions.lock_manager().waits()
    }

    /// Interrupts the lock wait of a transaction or statement. `trx` is the id that [`Database::lock_waits`] and
    /// [`Transaction::id`] return. The waiting call fails with [`LockError::Interrupted`]; the transaction keeps its
    /// changes and locks. If it does not wait now, the next wait of the call or statement
    /// ([`Transaction::begin_statement`]) in progress is interrupted, so that an interrupt just before a wait is not
    /// lost. An interrupt that comes after that call or statement has no effect on later ones. Returns `false` if no
    /// transaction has this id, and no statement waits under it.
    ///
    /// [`Transaction::begin_statement`]: crate::Transaction::begin_statement
    /// [`LockError::Interrupted`]: crate::error::LockError::Interrupted
    pub fn interrupt(&self, trx: TrxId) -> bool {
        self.engine.transactions.interrupt(trx)
    }

    /// Returns the deadlock that was broken last: the cycle of waiting transactions, and the victim.
    pub fn last_deadlock(&self) -> Option<Deadlock> {
        self.engine.transactions.lock_manager().last_deadlock()
    }

    /// Creates an empty table.
    ///
    /// # Errors
    /// The name is taken or not allowed; the definition of an index is refused ([`IndexOptions`]); the definition takes
    /// more room than a record may have.
    pub fn create_table(&self, name: &str, options: TableOptions) -> Result<Table> {
        self.engine.check_open()?;
        let table = self.statement(|catalog, ddl| catalog.create_table(name, &options.definition, ddl))?;
        debug!(target: "windfall::ddl", table = name, "created");
        Ok(Table::new(self.engine.clone(), name, table))
    }

    /// Creates a temporary table that belongs to no session, and that any thread may use. The name is for messages
    /// alone: any number of such tables may have it. Its loads and alterations are interrupted as the statements of
    /// this handle are ([`Database::with_interrupt`]).
    ///
    /// ```
    /// # use windfall::{Database, Options, TableOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let db = Database::open(folder.path(), Options::default().buffer_pool_size(8 << 20))?;
    /// let mut copy = db.create_temporary_table("#copy", TableOptions::default())?;
    /// copy.insert(b"key", b"value")?;
    /// copy.rename("t");
    /// copy.truncate()?;
    /// assert_eq!(copy.get(b"key")?, None);
    /// let mut load = copy.load()?;
    /// load.push(b"key", b"loaded", &[])?;
    /// load.finish(&mut copy)?;
    /// assert_eq!(copy.get(b"key")?.as_deref(), Some(&b"loaded"[..]));
    /// # Ok::<(), windfall::Error>(())
    /// ```
    ///
    /// # Errors
    /// The definition of an index is refused ([`IndexOptions`]); the log accepts no more records: the allocation of
    /// tablespace ids is logged.
    pub fn create_temporary_table(&self, name: &str, options: TableOptions) -> Result<TemporaryTable> {
        TemporaryTable::create(self.engine.clone(), name, &options, self.interrupt.clone())
    }

    /// Returns information about the temporary tables, those of sessions too, in the order of their creation.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn temporary_tables(&self) -> Result<Vec<TemporaryTableInfo>> {
        self.engine.check_open()?;
        TemporaryTableInfo::all(&self.engine)
    }

    /// Returns the table of this name. Waits while a DDL statement decides about the name.
    ///
    /// # Errors
    /// There is no table of this name; an interrupt ([`Database::with_interrupt`]) while a statement decides about the
    /// name.
    pub fn table(&self, name: &str) -> Result<Table> {
        self.engine.check_open()?;
        let _interruptible = self.interruptible();
        Ok(Table::new(self.engine.clone(), name, self.engine.catalog.table(name)?))
    }

    /// Returns the maximum length of the name of a table or an index, in bytes: 1,024, and 767 with pages of 4 KiB.
    pub fn name_limit(&self) -> usize {
        self.engine.catalog.name_limit()
    }

    /// Returns the length of the longest key of a row, and of the longest index key, in bytes ([`Table::key_limit`]).
    pub fn key_limit(&self) -> usize {
        self.engine.catalog.key_limit()
    }

    /// Returns information about all tables, in order of name.
    ///
    /// # Errors
    /// The size of a file cannot be read.
    pub fn tables(&self) -> Result<Vec<TableInfo>> {
        self.engine.check_open()?;
        self.infos(self.engine.catalog.tables())
    }

    /// Returns information about the tables whose names begin with `prefix`, in order of name. Only their part of the
    /// system tree is read. A table that is renamed meanwhile from one such name to another is listed under one of
    /// them; one that is created or dropped meanwhile may be listed.
    ///
    /// # Errors
    /// The size of a file, or a page of the system tree, cannot be read.
    pub fn tables_with_prefix(&self, prefix: &str) -> Result<Vec<TableInfo>> {
        self.engine.check_open()?;
        self.infos(self.engine.catalog.tables_with_prefix(prefix)?)
    }

    /// Returns the names that begin with `prefix`, in order, as [`Database::tables_with_prefix`] does, without a look
    /// at the files of the tables.
    ///
    /// # Errors
    /// A page of the system tree cannot be read.
    pub fn table_names_with_prefix(&self, prefix: &str) -> Result<Vec<String>> {
        self.engine.check_open()?;
        let named = self.engine.catalog.tables_with_prefix(prefix)?;
        Ok(named.into_iter().map(|(name, _)| name.to_string()).collect())
    }

    /// Returns the table, the index or the metadata that a tablespace belongs to: for lists of locks, which name it.
    /// `None` for what was dropped, also by a truncation, and for temporary tables.
    pub fn owner_of(&self, space: SpaceId) -> Option<Owner> {
        self.owners_of(&[space]).pop().flatten()
    }

    /// As [`Database::owner_of`], for several tablespaces, in their order. All tables are looked at once, unless the
    /// buffer pool knows that all of these tablespaces were dropped.
    pub fn owners_of(&self, spaces: &[SpaceId]) -> Vec<Option<Owner>> {
        let pool = &self.engine.pool;
        // One without pages is not in the pool's directory.
        let may_be_live = |space: &&SpaceId| pool.space(**space).is_none_or(|space| !space.is_dropped());
        let wanted: BTreeSet<SpaceId> = spaces.iter().filter(may_be_live).copied().collect();
        let mut owners = BTreeMap::new();
        if !wanted.is_empty() {
            for (name, table) in self.engine.catalog.tables() {
                table.with_schema(|schema| {
                    owners.extend(schema.owners(&name).filter(|(space, _)| wanted.contains(space)));
                });
            }
        }
        spaces.iter().map(|space| owners.get(space).cloned()).collect()
    }

    fn infos(&self, named: Vec<(Arc<str>, Arc<CatalogTable>)>) -> Result<Vec<TableInfo>> {
        named.iter().map(|(name, table)| TableInfo::of(&self.engine, name, table)).collect()
    }

    /// Drops a table. Waits for transactions that have locked the table ([`Database::with_ddl_timeout`]), by a change
    /// or a locking read, and for row calls in progress. Plain readers, cursors and read views do not delay it. From
    /// now on, calls on its handles return [`Error::TableDropped`](crate::error::Error::TableDropped). In the middle of
    /// a transaction that has changed the table, [`DdlGroup::commit_in`](crate::DdlGroup::commit_in) drops it.
    ///
    /// # Errors
    /// There is no table of this name; transactions on it have not ended in time
    /// ([`LockError`](crate::error::LockError)).
    pub fn drop_table(&self, name: &str) -> Result<DropReport> {
        self.drop_tables(&[name])
    }

    /// Drops tables in one atomic step with one durable commit: all of them or, if one does not exist, none. Waits as
    /// [`Database::drop_table`] does.
    ///
    /// # Errors
    /// One of the tables does not exist; a lock timeout, as for [`Database::drop_table`].
    pub fn drop_tables(&self, names: &[&str]) -> Result<DropReport> {
        self.engine.check_open()?;
        let report = self.statement(|catalog, ddl| catalog.drop_tables(names, ddl))?;
        assert!(
            names.is_empty() || (report.trees > 0 && report.lsn.is_some()),
            "tables were dropped without their trees, or without a record in the log"
        );
        debug!(
            target: "windfall::ddl",
            tables = ?names, trees = report.trees, lsn = report.lsn.map(|lsn| lsn.0), "dropped",
        );
        Ok(report)
    }

    /// Drops all tables whose names begin with `prefix`, in one atomic step with one durable commit; with an empty one,
    /// all tables. Temporary tables are not affected. Without such a table it succeeds, with an empty report. Waits as
    /// [`Database::drop_table`] does, for each of the tables, and drops none of them if a wait fails.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-drop-prefix-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// for name in ["shop/orders", "shop/people", "log"] {
    ///     db.create_table(name, windfall::TableOptions::default())?;
    /// }
    /// assert_eq!(db.table_names_with_prefix("shop/")?, ["shop/orders", "shop/people"]);
    /// let report = db.drop_tables_with_prefix("shop/")?;
    /// assert_eq!((report.trees, db.tables()?.len()), (2, 1));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Every table that has the prefix when the call begins is dropped, also if it is renamed from one such name to
    /// another meanwhile. A table that is created meanwhile, or gets the prefix by a rename, may stay.
    ///
    /// The step takes up to 16 bytes of the log for each table and 8 for each of its trees, at most a quarter of
    /// [`Options::log_buffer_size`]: with the default 174,000 tables without indexes. And half of the buffer pool must
    /// have room for the pages with the records of the tables. The report counts the work after the tables were found
    /// and their names locked.
    ///
    /// # Errors
    /// A lock timeout, as for [`Database::drop_table`]; [`UsageError::StatementTooLong`] or
    /// [`UsageError::PoolTooSmall`] if there are too many tables. Nothing is dropped then.
    pub fn drop_tables_with_prefix(&self, prefix: &str) -> Result<DropReport> {
        self.engine.check_open()?;
        let report = self.statement(|catalog, ddl| catalog.drop_tables_with_prefix(prefix, ddl))?;
        assert!((report.trees > 0) == report.lsn.is_some(), "a drop of tables is logged if there are any");
        debug!(
            target: "windfall::ddl",
            prefix, trees = report.trees, lsn = report.lsn.map(|lsn| lsn.0), "dropped",
        );
        Ok(report)
    }

    /// Removes all rows of all tables whose names begin with `prefix`, in one atomic step with one durable commit. The
    /// tables are those of [`Database::drop_tables_with_prefix`], and each is truncated as
    /// [`Database::truncate_table`] does.
    ///
    /// The step takes up to 88 bytes of the log for each table, 23 for each index and 9 for each part of its key, and
    /// the names and the metadata, at most a quarter of [`Options::log_buffer_size`]: by default 38,000 tables with
    /// names of 20 bytes, without indexes. And half of the buffer pool must have room for the pages with the records
    /// of the tables, as for a drop.
    ///
    /// # Errors
    /// As [`Database::drop_tables_with_prefix`]. No table has changed then.
    pub fn truncate_tables_with_prefix(&self, prefix: &str) -> Result<DropReport> {
        self.engine.check_open()?;
        let report = self.statement(|catalog, ddl| catalog.truncate_tables_with_prefix(prefix, ddl))?;
        assert!((report.trees > 0) == report.lsn.is_some(), "a truncation is logged if there are tables");
        debug!(
            target: "windfall::ddl",
            prefix, trees = report.trees, lsn = report.lsn.map(|lsn| lsn.0), "truncated",
        );
        Ok(report)
    }

    /// Removes all rows of a table, at the cost of a drop. Waits as [`Database::drop_table`] does. Handles of the table
    /// remain valid. A cursor or range that began before returns
    /// [`Error::TableDropped`](crate::error::Error::TableDropped), and a read with an older view
    /// [`TransactionError::TableChanged`](crate::error::TransactionError::TableChanged).
    ///
    /// # Errors
    /// As [`Database::drop_table`].
    pub fn truncate_table(&self, name: &str) -> Result<DropReport> {
        self.engine.check_open()?;
        let report = self.statement(|catalog, ddl| catalog.truncate_table(name, ddl))?;
        assert!(report.trees > 0 && report.lsn.is_some(), "a truncation keeps the trees, or is not logged");
        debug!(
            target: "windfall::ddl",
            table = name, trees = report.trees, lsn = report.lsn.map(|lsn| lsn.0), "truncated",
        );
        Ok(report)
    }

    /// Renames a table. Waits for transactions that have locked it.
    ///
    /// # Errors
    /// There is no table `from`, or the name `to` is taken or not allowed; a lock timeout.
    pub fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        self.engine.check_open()?;
        self.statement(|catalog, ddl| catalog.rename_table(from, to, ddl))?;
        debug!(target: "windfall::ddl", from, to, "renamed");
        Ok(())
    }

    /// Swaps the names of two tables in one atomic step. Waits for transactions that have locked them.
    ///
    /// # Errors
    /// One of the tables does not exist; a lock timeout.
    pub fn swap_tables(&self, a: &str, b: &str) -> Result<()> {
        self.engine.check_open()?;
        self.statement(|catalog, ddl| catalog.swap_tables(a, b, ddl))?;
        debug!(target: "windfall::ddl", a, b, "swapped");
        Ok(())
    }

    /// Returns the mode that decides when commits become durable.
    pub fn flush_log_at_trx_commit(&self) -> FlushLog {
        self.engine.flush_mode()
    }

    /// Changes the mode that decides when commits become durable, beginning with the next commit.
    pub fn set_flush_log_at_trx_commit(&self, mode: FlushLog) {
        self.engine.set_flush_log(mode);
    }

    /// Changes the lock timeout, beginning with the next call ([`Options::lock_wait_timeout`]).
    pub fn set_lock_wait_timeout(&self, at_most: Duration) {
        self.engine.transactions.set_lock_wait(at_most);
    }

    /// Changes the limit of undo on disk, in bytes; `None` removes it ([`Options::undo_limit`]).
    ///
    /// # Errors
    /// The limit is less than 1 MiB.
    pub fn set_undo_limit(&self, bytes: Option<u64>) -> Result<()> {
        self.engine.set_undo_limit(bytes)
    }

    /// Sets what happens to row changes when undo has reached its limit ([`Options::undo_limit_action`]).
    pub fn set_undo_limit_action(&self, then: UndoLimitAction) {
        self.engine.transactions.undo_limit().set_policy(then);
    }

    /// Sets the buffer pool's size in bytes. Growing takes effect at once; shrinking continues in the background and
    /// blocks no other call.
    ///
    /// # Errors
    /// The size is less than the smallest allowed or more than `buffer_pool_max_size`.
    pub fn set_buffer_pool_size(&self, bytes: u64) -> Result<()> {
        let frames = bytes / self.engine.pool.page_size() as u64;
        let frames = usize::try_from(frames).unwrap_or(usize::MAX);
        if frames < MIN_FRAMES {
            let what = format!("{bytes} bytes are too few: give it at least {MIN_FRAMES} pages").into();
            return Err(UsageError::Option { name: "buffer_pool_size", what }.into());
        }
        self.engine.pool.resize(frames)?;
        info!(target: "windfall::engine", bytes, "the buffer pool was resized");
        Ok(())
    }

    /// Turns the adaptive hash indexes of all trees on or off.
    pub fn set_hash_index(&self, on: bool) {
        self.engine.catalog.set_hash_index(on);
    }

    /// Writes all dirty pages to the data files, so that the log before them can be truncated. Waits until they are
    /// written.
    ///
    /// # Errors
    /// The error of the page or log that could not be written.
    pub fn checkpoint(&self) -> Result<()> {
        self.engine.check_open()?;
        self.engine.checkpointer.checkpoint_all(false).map(drop)
    }

    /// Checks everything: every page of every file, every tree, the allocation maps, and the set of files. While a
    /// table is checked, calls and DDL statements on it wait, and so do rollbacks of changes in it; the larger the
    /// table, the longer. [`Database::check_live`] avoids that and needs the same amount of memory. Calls, rollbacks
    /// and purge of other tables continue.
    ///
    /// Transactions that a crash interrupted may still be rolling back; the check waits for them up to the lock
    /// timeout. A table with rows that still could not be compared with its indexes is listed in
    /// [`CheckReport::uncompared`].
    ///
    /// # Errors
    /// The check itself cannot continue; it was interrupted ([`Database::with_interrupt`]). Damage that it finds is not
    /// an error: it is in the report.
    pub fn check(&self) -> Result<CheckReport> {
        self.engine.check_open()?;
        let _interruptible = self.interruptible();
        check::check(&self.engine, usize::MAX)
    }

    /// Checks everything while other calls run. The check blocks a table for a few hundred pages at a time, however
    /// large the table and its values are, and then releases it for the same time, but for at most one second.
    ///
    /// Two findings are not reported for a table with more pages than that: that the numbers of its rows and of its
    /// index entries differ, and that a page that changed during the check is lost. A lost page of a long value is not
    /// reported for any table while purge lags, or while a transaction that has changed the table is open. All other
    /// findings are. The check skips tables that are created or renamed after it has begun, and indexes that are
    /// created after the check of their table has begun.
    ///
    /// The check takes less than half a byte of memory for each page of the largest tree.
    ///
    /// # Errors
    /// As [`Database::check`].
    pub fn check_live(&self) -> Result<CheckReport> {
        self.engine.check_open()?;
        let _interruptible = self.interruptible();
        check::check(&self.engine, check::CHECK_PAGES_PER_STEP)
    }

    /// Returns counters and gauges of the database.
    pub fn metrics(&self) -> Metrics {
        let engine = &self.engine;
        let (log, occupancy, deletions) =
            (engine.log.metrics(), engine.pool.occupancy(), engine.deleter.deletions());
        let (counters, locks) = (&engine.pool.counters, engine.transactions.lock_manager().metrics());
        let (undo_slices, undo_bytes) = engine.transactions.streams().extent();
        let (commits, rollbacks) = engine.transactions.active().outcomes();
        let micros = |time: Duration| time.as_micros() as u64;
        let frames = occupancy.frames as u64;
        let used = (occupancy.free + occupancy.dirty + occupancy.dropped) as u64;
        Metrics {
            page_size: engine.pool.page_size() as u64,
            pool_frames: frames,
            pool_free: occupancy.free as u64,
            pool_dirty: occupancy.dirty as u64,
            pool_dropped: occupancy.dropped as u64,
            pool_clean: frames.saturating_sub(used),
            pool_bookkeeping_bytes: frames * engine.pool.bookkeeping_per_frame() as u64,
            pool_reads: counters.reads.load(Relaxed),
            pool_reads_ahead: counters.reads_ahead.load(Relaxed),
            pool_writes: counters.writes.load(Relaxed),
            pool_foreground_writes: counters.foreground_writes.load(Relaxed),
            pool_evictions: counters.evictions.load(Relaxed),
            pool_reclaimed: counters.reclaimed.load(Relaxed),
            pool_frame_waits: counters.frame_waits.load(Relaxed),
            hash_index_bytes: engine.hash_budget.used(),
            hash_index_limit: engine.hash_budget.limit(),
            log_writes: log.writes,
            log_syncs: log.fsyncs,
            log_bytes: log.bytes,
            log_groups: log.groups,
            log_waits: log.waits,
            log_longest_wait: micros(log.longest_wait),
            log_last_sync: micros(log.last_sync),
            log_age: log.age,
            log_size: log.size,
            checkpoints: engine.checkpointer.made(),
            temporary_tables: engine.catalog.temporary_count() as u64,
            files_created: counters.files_created.load(Relaxed),
            files_deleted: deletions.files,
            files_deleted_bytes: deletions.bytes,
            files_pending: deletions.pending_files,
            files_pending_bytes: deletions.pending_bytes,
            drops_pending: occupancy.dropped_pending as u64,
            tables: engine.catalog.count() as u64,
            system_tree_height: u64::from(engine.system.tree().height().unwrap_or(0)),
            active_transactions: engine.transactions.active().count() as u64,
            prepared_transactions: engine.transactions.prepared().count() as u64,
            commits,
            rollbacks,
            rollbacks_pending: engine.transactions.rollbacks().count() as u64,
            locks_held: locks.held,
            lock_waiting: locks.waiting,
            lock_waits: locks.waits,
            lock_wait_time: micros(locks.wait_time),
            lock_longest_wait: micros(locks.longest_wait),
            lock_wait_classes: locks.wait_classes,
            lock_timeouts: locks.timeouts,
            deadlocks: locks.deadlocks,
            undo_slices,
            undo_bytes,
            undo_waits: engine.transactions.undo_limit().waits(),
            views_ended: engine.transactions.undo_limit().views_ended(),
            history_bytes: engine.transactions.purge().history_bytes(),
            oldest_view: engine.transactions.active().oldest_view(),
            #[cfg(feature = "drop-waits")]
            drop_waits: crate::sync::drop_mark::waits_on_drops(),
        }
    }

    /// Closes the database: writes all changes and marks it as cleanly shut down. From now on, calls on other handles
    /// return [`Error::Closed`](crate::error::Error::Closed). Without this call, the database is closed when its last
    /// handle is dropped.
    ///
    /// # Errors
    /// Something could not be written, or the database had stopped before. The next opening recovers the changes that
    /// are in the log. [`Error::Closed`](crate::error::Error::Closed) within a callback of [`Database::when_durable`],
    /// or the source or output of a value, if another thread is closing the database and may wait for that.
    pub fn close(self) -> Result<()> {
        self.engine.close()
    }
}
