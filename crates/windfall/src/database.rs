//! The database: the face of the library.
//!
//! **Purpose.** Opens a database, hands out tables and sessions, runs the statements.
//!
//! **Invariants.** A [`Database`] is a handle: clones are cheap, any thread may use any of them, and the database is
//! closed in good order when it is closed or the last handle of any kind goes. Every call is atomic and, by
//! [`FlushLog`], durable on its own.
//!
//! **May touch.** `engine` and what is below; the rest of the public API.

use core::time::Duration;
use std::path::Path;

use tracing::{debug, info};

use crate::{
    buffer::SMALLEST,
    catalog::{DropReport, IndexDefinition, KeyPart, KeySpec, TableDefinition, Terms},
    check::{self, CheckReport},
    disk::{Disk, RealDisk, RealDiskOptions},
    engine::Engine,
    env::{Env, RealEnv},
    error::{Result, UsageError},
    ids::TrxId,
    log::FlushLog,
    metrics::Metrics,
    options::{Options, check_undo_limit},
    recovery::Progress,
    session::Session,
    sync::{Arc, atomic::Ordering::Relaxed, work},
    table::Table,
    transact::{Transaction, TransactionOptions},
    transaction::{
        AtUndoLimit,
        listing::{TransactionInfo, ViewInfo},
        locks::{Deadlock, HeldLock, Waiting},
        prepared::PreparedTransaction,
    },
};

/// What a new table is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    pub(crate) definition: TableDefinition,
}

impl TableOptions {
    /// With a secondary index.
    #[must_use]
    pub fn index(mut self, name: &str, options: IndexOptions) -> Self {
        self.definition.indexes.push(options.definition(name));
        self
    }

    /// With bytes of the user's own, kept with the table ([`Table::metadata`]).
    #[must_use]
    pub fn metadata(mut self, metadata: Vec<u8>) -> Self {
        self.definition.metadata = metadata;
        self
    }
}

/// What a new secondary index is to be.
///
/// Its key is made of parts, one behind the other, with nothing between them. The keys of rows are to be equal only
/// where all parts are, and in the order of the first part, then of the second one, and so on. So a part may stand
/// before another one only if it has its full length in every row in which the other one is not empty:
///
/// - bytes of the value may be followed by bytes that lie behind them in the value, with a gap or without;
/// - the first bytes of the value may be followed by a field: up to byte 7 by field 0, and by 4 bytes more for each
///   further field;
/// - a field has no fixed length, and has to be the last part.
///
/// Another index is refused when it is made, alone or with its table, with
/// [`SchemaError::AmbiguousKey`](crate::error::SchemaError::AmbiguousKey). One that an earlier version has made works
/// as it did: its table opens, its rows can be read and changed; but rows that differ may have one key in it. Drop
/// it, and make another one in its place.
///
/// A value that ends before a part, or within it, has only what there is of it; a field that is missing is an empty
/// one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexOptions {
    unique: bool,
    parts: Vec<KeyPart>,
}

impl IndexOptions {
    /// An index whose key is these bytes of the row's value; what lies past its end is left out.
    pub fn on_value(bytes: core::ops::Range<u32>) -> Self {
        Self::default().and_value(bytes)
    }

    /// An index whose key is this field of a value made by [`row::encode`](crate::row::encode).
    pub fn on_field(number: u32) -> Self {
        Self::default().and_field(number)
    }

    /// With these bytes of the value behind what is there, which have to lie before them in the value.
    #[must_use]
    pub fn and_value(mut self, bytes: core::ops::Range<u32>) -> Self {
        self.parts
            .push(KeyPart::Value { offset: bytes.start, length: bytes.end.saturating_sub(bytes.start) });
        self
    }

    /// With this field of the value behind what is there. It is the last part.
    #[must_use]
    pub fn and_field(mut self, number: u32) -> Self {
        self.parts.push(KeyPart::Field { number });
        self
    }

    /// With no two rows of one key.
    #[must_use]
    pub fn unique(mut self) -> Self {
        self.unique = true;
        self
    }

    fn definition(self, name: &str) -> IndexDefinition {
        IndexDefinition { name: name.to_owned(), unique: self.unique, key: KeySpec { parts: self.parts } }
    }
}

/// What is known of a table without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// Its secondary indexes.
    pub indexes: Vec<String>,
    /// Pages of it that are in the buffer pool.
    pub resident_pages: u64,
    /// Pages of it that have changes to be written.
    pub dirty_pages: u64,
    /// Bytes of its data files; a table that was never flushed has none.
    pub file_bytes: u64,
}

/// An open database.
#[derive(Clone, Debug)]
pub struct Database {
    pub(crate) engine: Arc<Engine>,
    /// How long its statements wait, if that was said.
    statement_wait: Option<Duration>,
}

impl Database {
    /// Opens the database in this folder, or makes one.
    ///
    /// # Errors
    /// What is wrong with the folder, the files or the options, by name and with the cure.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::open_with(path, &options, &|_| {})
    }

    /// As [`Database::open`], telling how recovery goes.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open_with(path: impl AsRef<Path>, options: &Options, progress: &dyn Fn(Progress)) -> Result<Self> {
        options.check()?;
        let disk_options = RealDiskOptions {
            open_files: options.open_files,
            io_threads: options.io_threads,
            direct: options.direct_io,
            create: options.create_if_missing,
        };
        Self::open_on(
            Arc::new(RealDisk::open(path, disk_options)?),
            Arc::new(RealEnv::default()),
            options,
            progress,
        )
    }

    /// Opens the database on a disk and in a world of the caller's choice: this is how simulations begin.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        env: Arc<dyn Env>,
        options: &Options,
        progress: &dyn Fn(Progress),
    ) -> Result<Self> {
        options.check()?;
        let engine = Engine::open(disk, env, options, progress)?;
        let (tables, frames) = (engine.catalog.count(), engine.pool.occupancy().frames);
        info!(tables, frames, log_end = engine.log.end().0, "the database is open");
        Ok(Self { engine: Arc::new(engine), statement_wait: None })
    }

    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The same database, whose statements wait at most so long for others that are at their tables: transactions, and
    /// statements. With zero they are refused at once. (`WAIT n` and `NOWAIT` of `MariaDB`'s DDL.) Single calls that
    /// are under way are waited for until they are done. By default a statement waits for transactions as long as
    /// [`Options::lock_wait_timeout`] says, and for another statement until that is done.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-wait-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use std::time::Duration;
    /// use windfall::{TableOptions, TransactionOptions, error::{Error, LockError}};
    ///
    /// let towns = db.create_table("towns", TableOptions::default())?;
    /// let trx = db.begin(TransactionOptions::default());
    /// towns.within(&trx).insert(b"Basel", b"177595")?;
    /// let refused = db.statements_wait(Duration::ZERO).drop_table("towns").unwrap_err();
    /// assert!(matches!(refused, Error::Lock(LockError::Busy(_))));
    /// trx.commit()?;
    /// db.drop_table("towns")?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn statements_wait(&self, at_most: Duration) -> Self {
        Self { statement_wait: Some(at_most), ..self.clone() }
    }

    /// On what terms a statement is made that begins now.
    pub(crate) fn terms(&self) -> Terms {
        let until = self.statement_wait.map(|at_most| self.engine.env.now().saturating_add(at_most));
        Terms { flush: self.engine.flush_log(), until }
    }

    /// A session, which can have temporary tables.
    pub fn session(&self) -> Session {
        Session::new(self.engine.clone())
    }

    /// Begins a transaction of many calls. Without one, each call is a transaction of its own.
    pub fn begin(&self, options: TransactionOptions) -> Transaction {
        Transaction::begin(self.engine.clone(), options)
    }

    /// The transactions that are prepared, by their names: [`Transaction::prepare`].
    pub fn prepared(&self) -> Vec<PreparedTransaction> {
        self.engine.transactions.prepared().listing()
    }

    /// Commits a prepared transaction whose handle is gone. When this returns it is as durable as
    /// `flush_log_at_trx_commit` says.
    ///
    /// # Errors
    /// There is none of this name, or its handle is there still; a full disk, and then it stays prepared.
    pub fn commit_prepared(&self, xid: &[u8]) -> Result<()> {
        self.engine.check_open()?;
        let end = self.engine.transactions.commit_prepared(xid)?;
        self.engine.await_log(end, self.engine.flush_log())
    }

    /// Rolls a prepared transaction back whose handle is gone. When this returns that is as durable as
    /// `flush_log_at_trx_commit` says.
    ///
    /// # Errors
    /// There is none of this name, or its handle is there still; a full disk, and then it stays prepared;
    /// [`TransactionError::RollingBack`](crate::error::TransactionError::RollingBack) if it goes on in the background.
    pub fn rollback_prepared(&self, xid: &[u8]) -> Result<()> {
        self.engine.check_open()?;
        let (revoked, done) = self.engine.transactions.roll_back_prepared(xid)?;
        self.engine.await_log(revoked, self.engine.flush_log())?;
        done
    }

    /// Makes everything durable that was committed or prepared before, whatever `flush_log_at_trx_commit` says: one
    /// sync for many.
    ///
    /// # Errors
    /// When the log cannot be written; the database has stopped then.
    pub fn flush_log(&self) -> Result<()> {
        self.engine.check_open()?;
        self.engine.log.sync_to(self.engine.log.end())
    }

    /// Every transaction that has a number, by that: it has changed or locked something, and not ended.
    pub fn transactions(&self) -> Vec<TransactionInfo> {
        self.engine.transactions.listing()
    }

    /// Every view of what was committed at one time, the oldest first: those of transactions, and those of ranges and
    /// cursors. What the oldest may see purge leaves alone.
    pub fn views(&self) -> Vec<ViewInfo> {
        self.engine.transactions.views()
    }

    /// Every lock that a transaction or a statement holds, but for those of rows that it has changed and nobody waits
    /// for: these cost nothing, and are in no list.
    pub fn locks(&self) -> Vec<HeldLock> {
        self.engine.transactions.row_locks().listing()
    }

    /// Everybody who waits for a lock, and for whom.
    pub fn lock_waits(&self) -> Vec<Waiting> {
        self.engine.transactions.row_locks().waits()
    }

    /// Ends the wait of a transaction or statement for a lock, by the number that [`Database::lock_waits`] and
    /// [`Transaction::id`] give: its call ends with [`LockError::Interrupted`], and the transaction has what it had.
    /// One that does not wait is interrupted at the next wait of the call that is under way, or of the statement
    /// ([`Transaction::atomically`]), so that nothing is lost if it was just about to. What comes too late for that is
    /// no concern of a later one. `false` when nobody has this number.
    ///
    /// [`Transaction::atomically`]: crate::Transaction::atomically
    /// [`LockError::Interrupted`]: crate::error::LockError::Interrupted
    pub fn interrupt(&self, trx: u64) -> bool {
        self.engine.transactions.interrupt(TrxId(trx))
    }

    /// The deadlock that was broken last: who waited for whom, and who had to give way.
    pub fn last_deadlock(&self) -> Option<Deadlock> {
        self.engine.transactions.row_locks().last_deadlock()
    }

    /// Creates an empty table.
    ///
    /// # Errors
    /// A name that is taken or cannot be used.
    pub fn create_table(&self, name: &str, options: TableOptions) -> Result<Table> {
        self.engine.check_open()?;
        let table = self.engine.catalog.create_table(name, &options.definition, self.terms())?;
        debug!(table = name, "created");
        Ok(Table::new(self.engine.clone(), name, table))
    }

    /// The table of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn table(&self, name: &str) -> Result<Table> {
        self.engine.check_open()?;
        Ok(Table::new(self.engine.clone(), name, self.engine.catalog.table(name)?))
    }

    /// All tables, in order of name.
    ///
    /// # Errors
    /// A file that cannot be looked at.
    pub fn tables(&self) -> Result<Vec<TableInfo>> {
        self.engine.check_open()?;
        let mut tables = Vec::new();
        for (name, table) in self.engine.catalog.tables() {
            let shape = table.shape();
            let mut info = TableInfo {
                name: name.to_string(),
                indexes: shape.record.indexes.iter().map(|index| index.name.to_string()).collect(),
                resident_pages: 0,
                dirty_pages: 0,
                file_bytes: 0,
            };
            for tree in shape.trees() {
                let space = tree.space();
                info.resident_pages += u64::from(space.resident());
                info.dirty_pages += space.dirty_pages() as u64;
                if space.file() != crate::buffer::FileState::None {
                    let file = crate::disk::FileName::Data(space.id());
                    info.file_bytes += self.engine.disk.len(file)?.unwrap_or(0);
                }
            }
            tables.push(info);
        }
        Ok(tables)
    }

    /// Drops a table. Row calls on it that are under way are waited for; handles of it answer
    /// [`Error::TableDropped`](crate::error::Error::TableDropped) from now on.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn drop_table(&self, name: &str) -> Result<DropReport> {
        self.drop_tables(&[name])
    }

    /// Drops tables as one atomic step with one durable commit: all of them or, when one does not exist, none.
    ///
    /// # Errors
    /// One of them does not exist.
    pub fn drop_tables(&self, names: &[&str]) -> Result<DropReport> {
        self.engine.check_open()?;
        let report = self.engine.catalog.drop_tables(names, self.terms())?;
        debug!(tables = ?names, trees = report.trees, lsn = report.lsn.0, "dropped");
        Ok(report)
    }

    /// Empties a table, at the cost of a drop.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn truncate_table(&self, name: &str) -> Result<DropReport> {
        self.engine.check_open()?;
        let report = self.engine.catalog.truncate_table(name, self.terms())?;
        debug!(table = name, trees = report.trees, lsn = report.lsn.0, "truncated");
        Ok(report)
    }

    /// Gives a table another name.
    ///
    /// # Errors
    /// There is none of this name, or the other name is taken or cannot be used.
    pub fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        self.engine.check_open()?;
        self.engine.catalog.rename_table(from, to, self.terms())?;
        debug!(from, to, "renamed");
        Ok(())
    }

    /// Lets two tables change their names with each other, as one atomic step.
    ///
    /// # Errors
    /// One of them does not exist.
    pub fn swap_tables(&self, a: &str, b: &str) -> Result<()> {
        self.engine.check_open()?;
        self.engine.catalog.swap_tables(a, b, self.terms())?;
        debug!(a, b, "swapped");
        Ok(())
    }

    /// Adds a secondary index, filled from the rows. Calls on this table go on meanwhile, in transactions and outside
    /// of them; they wait for a moment at the beginning and at the end, for calls under way and the log. Other
    /// statements on this table wait for the index.
    ///
    /// When all is filled, it waits for the transactions that have changed the table, prepared ones too, and for no
    /// others: as long as [`Database::statements_wait`] says, or else [`Options::lock_wait_timeout`]. Who begins to
    /// change the table meanwhile may have to wait behind it, each time for no more than a quarter of
    /// `lock_wait_timeout`, or 50 ms if that is more. Of two rows with one key of a unique index it is refused for
    /// those that are committed.
    ///
    /// # Errors
    /// Transactions in whose way it was have not ended in time ([`LockError`](crate::error::LockError), which names
    /// them). There is no such table, the name is taken, rows that differ could have one key by the definition
    /// ([`IndexOptions`]), or two rows have one key in a unique index.
    pub fn create_index(&self, table: &str, name: &str, options: IndexOptions) -> Result<()> {
        self.engine.check_open()?;
        self.engine.catalog.create_index(table, &options.definition(name), self.terms())?;
        debug!(table, index = name, "index created");
        Ok(())
    }

    /// Drops a secondary index.
    ///
    /// # Errors
    /// There is no such table or index.
    pub fn drop_index(&self, table: &str, name: &str) -> Result<DropReport> {
        self.engine.check_open()?;
        let report = self.engine.catalog.drop_index(table, name, self.terms())?;
        debug!(table, index = name, lsn = report.lsn.0, "index dropped");
        Ok(report)
    }

    /// When commits are durable.
    pub fn flush_log_at_trx_commit(&self) -> FlushLog {
        self.engine.flush_log()
    }

    /// Changes when commits are durable, from the next one on.
    pub fn set_flush_log_at_trx_commit(&self, mode: FlushLog) {
        self.engine.set_flush_log(mode);
    }

    /// Changes how long calls wait for a lock, from the next one on: [`Options::lock_wait_timeout`].
    pub fn set_lock_wait_timeout(&self, at_most: Duration) {
        self.engine.transactions.set_lock_wait(at_most);
    }

    /// Changes what undo may take on the disk: [`Options::undo_limit`].
    ///
    /// # Errors
    /// Less than 1 MiB.
    pub fn set_undo_limit(&self, bytes: Option<u64>) -> Result<()> {
        check_undo_limit(bytes)?;
        self.engine.transactions.set_undo_limit(bytes);
        Ok(())
    }

    /// Changes what becomes of changes beyond that: [`Options::at_undo_limit`].
    pub fn set_at_undo_limit(&self, then: AtUndoLimit) {
        self.engine.transactions.set_at_undo_limit(then);
    }

    /// Sets the buffer pool's size. Growing is at once; shrinking goes on in the background, without stopping anyone.
    ///
    /// # Errors
    /// A size below the smallest or above `buffer_pool_max_size`.
    pub fn set_buffer_pool_size(&self, bytes: u64) -> Result<()> {
        let frames = bytes / self.engine.pool.page_size() as u64;
        let frames = usize::try_from(frames).unwrap_or(usize::MAX);
        if frames < SMALLEST {
            let what = format!("{bytes} bytes are too few: give it at least {SMALLEST} pages").into();
            return Err(UsageError::Option { name: "buffer_pool_size", what }.into());
        }
        self.engine.pool.resize(frames)?;
        info!(bytes, "the buffer pool has another size");
        Ok(())
    }

    /// Switches the adaptive hash indexes of all trees on or off.
    pub fn set_hash_index(&self, on: bool) {
        self.engine.catalog.set_hash_index(on);
    }

    /// Writes all changed pages to the data files and lets the log go below them.
    ///
    /// # Errors
    /// What could not be written.
    pub fn checkpoint(&self) -> Result<()> {
        self.engine.check_open()?;
        self.engine.checkpointer.checkpoint_all(false).map(drop)
    }

    /// Checks everything: every page of every file, every tree, the allocation maps, the files. While it is a table's
    /// turn, calls and statements on it wait, and rollbacks of what was changed in it, and the larger it is the longer;
    /// see [`Database::check_live`], which takes as much memory. Calls, rollbacks and purge of other tables go on.
    ///
    /// What a crash has cut off, and is still being taken back, is waited for as a call waits for a lock; a table whose
    /// rows could not be compared with its indexes even so is in [`CheckReport::uncompared`].
    ///
    /// # Errors
    /// When the check itself cannot go on; damage that it finds is in the report.
    pub fn check(&self) -> Result<CheckReport> {
        self.engine.check_open()?;
        check::check(&self.engine, usize::MAX)
    }

    /// Checks everything beside the work of others: a table is held for a few hundred pages at a time, however large it
    /// and its values are, and left to them for as long in between, at most a second. Of a table larger than that it is
    /// not told whether its rows and the entries of its indexes are as many, nor whether a page is lost that was
    /// changed during the check; and of none whether a page of a long value is lost while purge is behind, or a
    /// transaction that has changed the table has not ended. All else is. A table that is made or
    /// renamed after the check has begun is passed over, and so is an index that is made after its table's turn has.
    ///
    /// It takes less than half a byte of memory for each page of the largest tree.
    ///
    /// # Errors
    /// As [`Database::check`].
    pub fn check_live(&self) -> Result<CheckReport> {
        self.engine.check_open()?;
        check::check(&self.engine, check::PIECE)
    }

    /// What the database has done and how it stands.
    pub fn metrics(&self) -> Metrics {
        let engine = &self.engine;
        let (log, occupancy, deletions) =
            (engine.log.metrics(), engine.pool.occupancy(), engine.deleter.deletions());
        let (counters, locks) = (&engine.pool.counters, engine.transactions.row_locks().metrics());
        let (undo_slices, undo_bytes) = engine.transactions.streams().extent();
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
            files_created: counters.files_created.load(Relaxed),
            files_deleted: deletions.files,
            files_deleted_bytes: deletions.bytes,
            files_pending: deletions.pending_files,
            files_pending_bytes: deletions.pending_bytes,
            drops_pending: occupancy.dropped_pending as u64,
            tables: engine.catalog.count() as u64,
            catalog_height: u64::from(engine.system.tree().height().unwrap_or(0)),
            active_transactions: engine.transactions.active().count() as u64,
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
            undo_waits: engine.transactions.undo_waits(),
            views_ended: engine.transactions.views_ended(),
            history_bytes: engine.transactions.history_bytes(),
            oldest_view: engine.transactions.active().oldest_view(engine.transactions.ids()),
            drop_waits: work::waits_on_drops(),
        }
    }

    /// Closes the database: writes everything and marks it as shut down cleanly. Other handles answer
    /// [`Error::Closed`](crate::error::Error::Closed) from now on. Without this call the last handle that goes closes
    /// it.
    ///
    /// # Errors
    /// What could not be written; the log has it then, and the next opening recovers it.
    pub fn close(self) -> Result<()> {
        self.engine.close()
    }
}
