//! The handle of a table: access to rows by their keys.
//!
//! **Purpose.** Reads and writes of single rows, ranges of rows, and streams of long values.
//!
//! **Invariants.** A call passes the table's gate, which DDL closes and drains, and works on the table schema that it
//! finds inside (test: `no_thread_is_inside_a_closed_gate`). It is atomic over all trees of the table (test:
//! `a_failed_call_rolls_back_only_its_own_changes`), and when it returns it is as durable as
//! `flush_log_at_trx_commit` says (test: `acknowledged_changes_survive_kills`). A handle that outlives its table
//! returns [`Error::TableDropped`], and keeps no page of the table alive (test: `ddl_statements_have_their_effects`).

use core::ops::{Bound, RangeBounds};
use std::io::{self, Read};

use crate::{
    buffer::Durability,
    catalog::{self, Call, TableSchema},
    cursor::{Cursor, Reader, intention},
    engine::Engine,
    error::{Error, Owner, Result, SchemaError, TransactionError, UsageError},
    ids::{SpaceId, TrxId},
    index::{Index, IndexNumber},
    range::{Bounds, Range},
    row::FieldSet,
    scope::{Inner, RowCall, RowLock, Scope, TableKind},
    session::SessionUndo,
    store::Tree,
    sync::Arc,
    tablespace,
    transaction::Isolation,
    tx_table::{Access, AutoCommit},
    txn::{
        Edit, Mode, ReadView, RowTarget, Stop, SuppliedChange, Trx, Value, Visibility, Watch,
        locks::{LockTimeout, RowMode, TableMode, WholeTable as _},
        row::{self, LockingRead, SingleCall},
        undo::TemporaryRead,
    },
};

/// A table. Clones are cheap and are handles of the same table.
///
/// Each call on a `Table` is a transaction of its own, [`AutoCommit`]. [`Transaction::table`] returns a [`TxTable`],
/// the same table for calls in a transaction, which has locking reads as well. A function for both takes a
/// `&Table<impl Access>`.
///
/// Besides the errors that each call names: a change fails if undo has reached its limit
/// ([`TransactionError::UndoFull`]). A call in a transaction fails with a [`TransactionError`] if the transaction
/// belongs to another database, is in another call, is prepared or has ended, or if its options or its view do not
/// allow the call. A deadlock ([`LockError::Deadlock`]) rolls the transaction back. Reads at
/// [`Isolation::Serializable`] lock rows, and so they may wait, and fail with a [`LockError`].
///
/// [`LockError`]: crate::error::LockError
/// [`LockError::Deadlock`]: crate::error::LockError::Deadlock
/// [`Transaction::table`]: crate::Transaction::table
/// [`TxTable`]: crate::TxTable
#[derive(Clone, Debug)]
pub struct Table<A = AutoCommit> {
    pub(crate) engine: Arc<Engine>,
    pub(crate) name: Arc<str>,
    pub(crate) inner: Arc<catalog::Table>,
    /// The undo of the session, if the table is temporary.
    undo: Option<Arc<SessionUndo>>,
    pub(crate) access: A,
    /// The fields that reads read of rows that are stored as fields.
    pub(crate) fields: FieldSet,
}

impl Table {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, table: Arc<catalog::Table>) -> Self {
        Self {
            engine,
            name: name.into(),
            inner: table,
            undo: None,
            access: AutoCommit,
            fields: FieldSet::ALL,
        }
    }

    pub(crate) fn temporary(
        engine: Arc<Engine>,
        name: &str,
        table: Arc<catalog::Table>,
        undo: Arc<SessionUndo>,
    ) -> Self {
        assert!(
            undo.stream().durability() == Durability::Temporary,
            "the undo of a temporary table would be logged"
        );
        Self { undo: Some(undo), ..Self::new(engine, name, table) }
    }

    /// Returns a handle of the same table for calls of another kind.
    pub(crate) fn with_access<A>(&self, access: A) -> Table<A> {
        let Self { engine, name, inner, undo, access: AutoCommit, fields } = self.clone();
        Table { engine, name, inner, undo, access, fields }
    }

    /// Turns the adaptive hash index of this table's trees on or off, and that of trees that it gets later.
    pub fn set_hash_index(&self, on: bool) {
        self.inner.set_hash_index(on);
    }

    /// Gives each tree of the table a hash index of this size in bytes, and touches all of it, as if as many keys had
    /// been read: for experiments with the memory of a table.
    ///
    /// # Panics
    /// If `hash_index_memory` has no room for it, or the hash index is off.
    #[cfg(feature = "lab")]
    pub fn simulate_hash_index(&self, bytes: u64) {
        let trees: Vec<_> = self.inner.with_schema(|schema| schema.trees().cloned().collect());
        for tree in trees {
            tree.hash().pretend(bytes);
        }
    }
}

impl<A: Access> Table<A> {
    /// Returns the name that the table had when this handle was made.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the bytes that the application has stored with the table ([`TableOptions::metadata`],
    /// [`TableChanges::metadata`]). Long ones are read from their pages.
    ///
    /// # Errors
    /// For metadata that are too long for the table's record: the table was dropped; damage, I/O.
    ///
    /// [`TableOptions::metadata`]: crate::TableOptions::metadata
    /// [`TableChanges::metadata`]: crate::TableChanges::metadata
    pub fn metadata(&self) -> Result<Vec<u8>> {
        self.inner.metadata().map_err(|error| self.with_owner(error))
    }

    /// Returns the length of the longest key of a row, and of the longest index key, in bytes: 3,072 with pages of 16
    /// KiB. In an index of the value each zero byte of the index key counts as two. Longer keys are refused when they
    /// are written.
    pub fn key_limit(&self) -> usize {
        self.inner.with_schema(|schema| schema.clustered.key_part_limit())
    }

    /// Adds the name of the table, or of its index, to an error of a call.
    #[cold]
    pub(crate) fn with_owner(&self, error: Error) -> Error {
        error.of(|space| {
            let (index, is_metadata) = self.inner.with_schema(|schema| {
                let index = schema.record.indexes.iter().find(|index| Some(index.space) == space);
                let metadata = schema.metadata.as_ref().map(|tree| tree.space().id());
                (index.map(|index| index.name.clone()), space.is_some() && metadata == space)
            });
            let table = self.name.clone();
            match index {
                Some(index) => Owner::Index { table, index },
                None if is_metadata => Owner::Metadata(table),
                None => Owner::Table(table),
            }
        })
    }

    pub(crate) fn enter(&self) -> Result<Call<'_>> {
        self.inner.enter().map_err(|error| self.with_owner(error))
    }

    /// Runs a change of rows on the table's trees, inside the gate.
    fn inside<T>(&self, run: impl FnOnce(&RowTarget<'_>) -> T) -> Result<T> {
        let call = self.inner.enter_to_change()?;
        let schema: &TableSchema = &call;
        debug_assert!(
            schema.secondaries.len() == schema.record.indexes.len(),
            "a change would leave out a tree of the table"
        );
        debug_assert!(
            self.undo.is_some() == (schema.clustered.space().durability() == Durability::Temporary),
            "the undo of a table is temporary, and the table is not, or the other way round"
        );
        let secondaries = schema.secondaries_to_change(self.engine.catalog.extractors());
        let keys_of = |value: &[u8]| schema.keys_of(value);
        let noting = schema.noting().map(|row_log| {
            |key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>| row_log.note(key, before, after)
        });
        let target = RowTarget {
            name: &self.name,
            clustered: &schema.clustered,
            secondaries: &secondaries,
            keys_of: &keys_of,
            temporary: self.undo.as_ref().map(|undo| undo.stream()),
            watch: noting.as_ref().map(|noting| noting as &Watch<'_>),
        };
        let done = run(&target);
        if let (Some(undo), None) = (&self.undo, self.access.transaction()) {
            // The session's end waits for the calls inside the gate before it drops this stream.
            self.engine.transactions.purge().purge_temporary(undo.stream());
        }
        Ok(done)
    }

    /// Changes a row, in the transaction of this handle or in one of its own. A change in its own transaction then
    /// waits for the log, outside the gate. Returns whether there was a row to change.
    pub(crate) fn change(&self, key: &[u8], mut edit: Edit<'_>) -> Result<bool> {
        self.engine.check_open()?;
        if let Some(scope) = self.scope()? {
            let mut call = scope.begin_call()?;
            let changed = self.change_in_transaction(scope, &mut call.inner, key, &mut edit);
            return call.finish(changed).map_err(|error| self.with_owner(error));
        }
        let changed = self.change_alone(key, &mut edit).map_err(|error| self.with_owner(error))?;
        self.engine.await_log(changed.and_then(|changed| changed.end), self.engine.flush_mode())?;
        self.engine.env.yield_point();
        Ok(changed.is_some())
    }

    /// Changes a row in a transaction of its own. A deadlock is no error of such a call: it has changed nothing yet and
    /// starts again, which a call in a longer transaction cannot do ([`RowCall::run`]).
    fn change_alone(&self, key: &[u8], edit: &mut Edit<'_>) -> Result<Option<row::Changed>> {
        let lock_timeout = LockTimeout::of(self.engine.lock_wait());
        let mut call = SingleCall::new(&self.engine.transactions, lock_timeout);
        row::retry(&mut call, |call| self.try_change_alone(&mut call.trx, key, edit).map(Some))
    }

    fn try_change_alone(
        &self,
        trx: &mut Trx<'_>,
        key: &[u8],
        edit: &mut Edit<'_>,
    ) -> Result<Option<row::Changed>, Stop> {
        self.inside(|target| {
            let space = target.clustered.space().id();
            if self.inner.is_lock_announced() {
                row::lock_table(trx, space)?;
            }
            let changed = row::change(trx, target, key, edit, true);
            if self.undo.is_none() {
                row::lock_table_if_blocked(trx, space, &changed)?;
            }
            changed
        })?
    }

    fn change_in_transaction(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        key: &[u8],
        edit: &mut Edit<'_>,
    ) -> Result<bool> {
        self.check_may_change(scope)?;
        if let Some(undo) = &self.undo {
            inner.uses(undo);
        }
        let call = scope.row_call(inner, self.kind(), scope.lock_timeout());
        call.run(|call| self.try_change(call, key, edit))
    }

    /// Attempts a change in a transaction. Returns `None` if the table was truncated before it was locked.
    fn try_change(
        &self,
        call: &mut RowCall<'_>,
        key: &[u8],
        edit: &mut Edit<'_>,
    ) -> Result<Option<bool>, Stop> {
        let space = self.lock_table(call, TableMode::IntentionExclusive)?;
        let trx = call.attempt()?;
        trx.rules.duplicate_lock = self.access.duplicate_lock();
        self.inside(|target| {
            if target.clustered.space().id() != space {
                return Ok(None);
            }
            row::change(trx, target, key, edit, false).map(|changed| Some(changed.is_some()))
        })?
    }

    /// Locks the table, for a call that changes or locks its rows. Returns the tablespace that is locked, which a
    /// truncation may have replaced before.
    pub(crate) fn lock_table(&self, call: &mut RowCall<'_>, mode: TableMode) -> Result<SpaceId> {
        let space = self.inner.space();
        if self.undo.is_none() {
            let created_at = || Ok(self.inner.enter()?.clustered.space().created_at());
            call.lock_table(space, mode, created_at, || self.owner())?;
        }
        Ok(space)
    }

    /// Reads and locks a row in a transaction. Returns `false` also for a row that is skipped.
    pub(crate) fn get_locked(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        key: &[u8],
        lock: RowLock,
        fields: Option<FieldSet>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        let call = scope.row_call(inner, self.kind(), lock.lock_timeout(scope));
        call.run(|call| self.try_get_locked(call, key, lock, fields, value))
    }

    /// Attempts a locking read. Returns `None` if the table was truncated before it was locked.
    pub(crate) fn try_get_locked(
        &self,
        call: &mut RowCall<'_>,
        key: &[u8],
        lock: RowLock,
        fields: Option<FieldSet>,
        value: &mut Vec<u8>,
    ) -> Result<Option<bool>, Stop> {
        let space = self.lock_table(call, intention(lock.mode))?;
        let trx = call.attempt()?;
        let entered = self.inner.enter()?;
        if entered.clustered.space().id() != space {
            return Ok(None);
        }
        let owner = || self.owner();
        let read = LockingRead { mode: lock.mode, fields, entry: None };
        let read = row::read_locked(trx, &entered.clustered, key, read, value, owner);
        lock.skip_locked(read).map(Some)
    }

    /// Reads a row; without a set of fields, no value in overflow pages is read. Returns whether there is one.
    fn read(&self, key: &[u8], fields: Option<FieldSet>, value: &mut Vec<u8>) -> Result<bool> {
        self.engine.check_open()?;
        let transactions = &self.engine.transactions;
        let found = match self.scope()? {
            Some(scope) => {
                let mut call = scope.begin_call()?;
                let found = self.read_in_transaction(scope, &mut call.inner, key, fields, value);
                call.finish(found)
            }
            None => self.inner.enter().and_then(|call| match self.undo {
                // A temporary table has one user at a time, which reads its own changes.
                Some(_) => {
                    transactions.versions().get_in(&call.clustered, key, Visibility::Newest, fields, value)
                }
                None => transactions.versions().get_committed(&call.clustered, key, None, fields, value),
            }),
        };
        found.map_err(|error| self.with_owner(error))
    }

    fn read_in_transaction(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        key: &[u8],
        fields: Option<FieldSet>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        let transactions = &self.engine.transactions;
        let own = inner.own();
        let visibility = match scope.options.isolation {
            _ if self.undo.is_some() => Visibility::Newest,
            Isolation::Serializable => {
                return self.get_locked(scope, inner, key, RowMode::Shared.into(), fields, value);
            }
            Isolation::ReadUncommitted => Visibility::Newest,
            Isolation::ReadCommitted if !scope.keeps_view(inner) => {
                let call = self.inner.enter()?;
                return transactions.versions().get_committed(&call.clustered, key, own, fields, value);
            }
            Isolation::ReadCommitted | Isolation::RepeatableRead | Isolation::Snapshot => {
                Visibility::View(scope.view(inner), own)
            }
        };
        let call = self.inner.enter()?;
        visibility.check_known(call.clustered.space().created_at(), || self.owner())?;
        transactions.versions().get_in(&call.clustered, key, visibility, fields, value)
    }

    /// Returns the transaction of the calls on this handle, if any.
    pub(crate) fn scope(&self) -> Result<Option<&Arc<Scope>>> {
        self.access.transaction().map(|transaction| self.checked(&transaction.scope)).transpose()
    }

    /// Refuses a transaction of another database.
    pub(crate) fn checked<'s>(&self, scope: &'s Arc<Scope>) -> Result<&'s Arc<Scope>> {
        if Arc::ptr_eq(&scope.engine, &self.engine) {
            Ok(scope)
        } else {
            Err(TransactionError::OtherDatabase.into())
        }
    }

    pub(crate) fn is_temporary(&self) -> bool {
        self.undo.is_some()
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner::Table(self.name.clone())
    }

    pub(crate) fn kind(&self) -> TableKind {
        if self.undo.is_some() { TableKind::Temporary } else { TableKind::Shared }
    }

    /// Refuses a change in a read-only transaction. Temporary tables are exempt, because they have one user at a time.
    pub(crate) fn check_may_change(&self, scope: &Scope) -> Result<()> {
        if self.kind() == TableKind::Temporary { Ok(()) } else { scope.check_may_change() }
    }

    /// Inserts a row. Waits for locks on it up to the lock timeout, as every change does.
    ///
    /// # Errors
    /// [`SchemaError::DuplicateKey`] if a row has this key, or this key of a unique index: the error names that row,
    /// and in a transaction it is locked ([`TxTable::duplicate_lock`]); the key or the value is too long; an index
    /// takes its entries from the caller ([`UsageError::EntryMissing`]); a lock that is not granted
    /// ([`LockError`](crate::error::LockError)); a dropped table; I/O. The table is then unchanged.
    ///
    /// [`TxTable::duplicate_lock`]: crate::TxTable::duplicate_lock
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(key, Value::Bytes(value), Mode::Insert)
    }

    /// Inserts a row, or replaces the value of the row with this key.
    ///
    /// # Errors
    /// As [`Table::insert`], except that the row's key may exist.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(key, Value::Bytes(value), Mode::Put)
    }

    /// Replaces the value of a row.
    ///
    /// # Errors
    /// [`SchemaError::NoRow`] if no row has this key; otherwise as [`Table::insert`].
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(key, Value::Bytes(value), Mode::Update)
    }

    /// Deletes a row. Returns whether there was one.
    ///
    /// # Errors
    /// The table was dropped; an index takes its entries from the caller ([`UsageError::EntryMissing`]); a lock that is
    /// not granted ([`LockError`](crate::error::LockError)); I/O. The table is then unchanged.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.change(key, Edit::delete())
    }

    fn write(&self, key: &[u8], value: Value<'_>, mode: Mode) -> Result<()> {
        self.change(key, Edit::write(value, mode)).map(drop)
    }

    /// Inserts a row, with its entries in the indexes of which the caller supplies them ([`IndexOptions::supplied`]):
    /// each of these indexes must be named. The other indexes make theirs of the value.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-supplied-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, SuppliedChange, SuppliedEntry, TableOptions};
    ///
    /// // By the name, regardless of case; the payload is the name as it was written.
    /// let by_name = TableOptions::default().index("name", IndexOptions::supplied(0));
    /// let people = db.create_table("people", by_name)?;
    /// for (id, name) in [(1u8, "Zoe"), (2, "adam"), (3, "Bob")] {
    ///     let key = [name.to_lowercase().as_bytes(), b"\0"].concat();
    ///     let new = Some(SuppliedEntry::new(&key).payload(name.as_bytes()));
    ///     people.insert_with(&[id], name.as_bytes(), &[SuppliedChange { index: "name", old: None, new }])?;
    /// }
    /// let names: Vec<_> = people.index("name")?.keys::<&[u8]>(..)?.map(|key| Ok(key?.payload))
    ///     .collect::<windfall::Result<_>>()?;
    /// assert_eq!(names, [&b"adam"[..], b"Bob", b"Zoe"]);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Table::insert`]; an entry that is missing ([`UsageError::EntryMissing`]), or is for an index that does not
    /// exist, makes its entries itself or is named twice; entries that do not fit the row ([`UsageError::WrongEntry`],
    /// [`UsageError::EntryOfOtherRow`]); a payload that is too long. The table is then unchanged.
    ///
    /// [`IndexOptions::supplied`]: crate::IndexOptions::supplied
    pub fn insert_with(&self, key: &[u8], value: &[u8], entries: &[SuppliedChange<'_>]) -> Result<()> {
        let edit = Edit::write(Value::Bytes(value), Mode::Insert);
        self.change(key, edit.with_entries(entries)).map(drop)
    }

    /// Replaces the value of a row, and its entries in the named indexes. In an index that is not named the entry stays
    /// as it is. The old entries must be those that the row has, so it is usually read before, with a lock; their
    /// payload does not matter.
    ///
    /// # Errors
    /// As [`Table::update`] and [`Table::insert_with`], except that no index need be named. The table is then
    /// unchanged.
    pub fn update_with(&self, key: &[u8], value: &[u8], entries: &[SuppliedChange<'_>]) -> Result<()> {
        let edit = Edit::write(Value::Bytes(value), Mode::Update);
        self.change(key, edit.with_entries(entries)).map(drop)
    }

    /// Deletes a row, with its entries in the indexes of which the caller supplies them: each of these indexes must be
    /// named. Returns whether there was a row.
    ///
    /// # Errors
    /// As [`Table::delete`] and [`Table::update_with`].
    pub fn delete_with(&self, key: &[u8], entries: &[SuppliedChange<'_>]) -> Result<bool> {
        self.change(key, Edit::delete().with_entries(entries))
    }

    /// Inserts a row with a value of `length` bytes that is read from `source` piece by piece, so that it is never in
    /// memory as a whole.
    ///
    /// The row is locked meanwhile, and DDL statements on this table wait. `source` may call this table and others, but
    /// not in the transaction of this call ([`TransactionError::Busy`]). It must not run a DDL statement, which would
    /// wait for this very call: that is an error. A call from within a source does not wait for a row that another call
    /// is changing: that is an error, too. The last two also hold for tables of other databases.
    ///
    /// # Errors
    /// As [`Table::insert`]; the source fails or ends early.
    pub fn insert_stream(&self, key: &[u8], length: u64, source: &mut dyn Read) -> Result<()> {
        self.write(key, Value::Source { length, source }, Mode::Insert)
    }

    /// As [`Table::put`], with the value read from `source`.
    ///
    /// # Errors
    /// As [`Table::put`]; the source fails or ends early.
    pub fn put_stream(&self, key: &[u8], length: u64, source: &mut dyn Read) -> Result<()> {
        self.write(key, Value::Source { length, source }, Mode::Put)
    }

    /// Returns the value of a row.
    ///
    /// # Errors
    /// The table was dropped; damage, I/O.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Reads the value of a row into `value`, replacing its content; this saves an allocation per row. Returns whether
    /// there is a row.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.read(key, Some(self.fields), value)
    }

    /// Returns whether there is a row with this key.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.read(key, None, &mut Vec::new())
    }

    /// Writes the value of a row to `out`, piece by piece. Returns its length in bytes; `None` if there is no such row.
    ///
    /// The whole value is the one that the row has when the call begins, whatever happens to the row meanwhile. At
    /// [`Isolation::ReadUncommitted`], too, it is a committed one or this transaction's own. Between two pieces the
    /// table can be changed, dropped and truncated, also by `out` itself, but `out` can make no call in the transaction
    /// of this call ([`TransactionError::Busy`]).
    ///
    /// # Errors
    /// As [`Table::get`]; `out` fails; [`Error::TableDropped`] if the table is dropped or truncated meanwhile, or
    /// [`TransactionError::ViewEnded`]. A part of the value may then have been written.
    pub fn read_stream(&self, key: &[u8], out: &mut dyn io::Write) -> Result<Option<u64>> {
        self.engine.check_open()?;
        match self.scope()? {
            None => self.stream_out(key, Arc::new(self.engine.transactions.versions().view()), None, out),
            // The whole read is one call of the transaction, so `out` can make none in it: a rollback to a savepoint
            // could remove the very version that is being read, if the transaction has written it.
            Some(scope) => {
                let mut call = scope.begin_call()?;
                let written = self.stream_out_in_transaction(scope, &mut call.inner, key, out);
                call.finish(written)
            }
        }
    }

    fn stream_out_in_transaction(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        key: &[u8],
        out: &mut dyn io::Write,
    ) -> Result<Option<u64>> {
        if scope.plain_read_lock().is_some() && self.undo.is_none() {
            self.get_locked(scope, inner, key, RowMode::Shared.into(), None, &mut Vec::new())?;
        }
        let view = scope.view_of_read(inner);
        self.stream_out(key, view, inner.own(), out)
    }

    fn stream_out(
        &self,
        key: &[u8],
        view: Arc<ReadView>,
        own: Option<TrxId>,
        out: &mut dyn io::Write,
    ) -> Result<Option<u64>> {
        let undo = self.undo.as_ref();
        let _kept = undo.map(|undo| TemporaryRead::new(self.engine.transactions.active(), undo.stream()));
        let opened = {
            let call = self.enter()?;
            let visibility =
                if self.undo.is_some() { Visibility::Newest } else { Visibility::View(&view, own) };
            visibility.check_known(call.clustered.space().created_at(), || self.owner())?;
            let opened =
                self.engine.transactions.versions().open_value(&call.clustered, key, visibility, self.fields);
            opened.map_err(|error| self.with_owner(error))?
        };
        let Some(mut reader) = opened else { return Ok(None) };
        let length = reader.left();
        let mut piece = vec![0; 64 << 10];
        while reader.left() > 0 {
            self.engine.check_open()?;
            let n = {
                // The view keeps the version from purge. If its tablespace was dropped, the call returns that the table
                // was dropped.
                let _call = self.enter()?;
                let read = reader.read(&mut piece);
                let held = if undo.is_some() { read } else { view.held(read) };
                held.map_err(|error| self.with_owner(error))?
            };
            assert!(n > 0, "a value with bytes left returns none of them");
            // No gate and no latch is held while `out` runs.
            let owner = || self.owner();
            let failed =
                |error: io::Error| UsageError::Output { owner: owner(), what: error.to_string().into() };
            out.write_all(&piece[..n]).map_err(failed)?;
        }
        Ok(Some(length))
    }

    /// Returns the rows with keys in a range, in order, from either end.
    ///
    /// All rows are of one snapshot: outside of a transaction, it is taken when the first row is read; in a
    /// transaction, its isolation level decides.
    ///
    /// # Errors
    /// The table was dropped.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Range> {
        Ok(Range::new(self.cursor()?, Bounds::of(&range)))
    }

    /// Returns all rows, in order.
    ///
    /// # Errors
    /// The table was dropped.
    pub fn rows(&self) -> Result<Range> {
        self.range::<&[u8]>(..)
    }

    /// Estimates the number of rows with keys in a range, for the plan of a query: two descents in the tree, and at
    /// most twelve nodes more of each level. Within a few leaves they are counted. Rows that transactions have inserted
    /// or deleted and not committed count, as do deleted rows that purge has not removed yet. The estimate of a longer
    /// range is usually within a factor of two, if rows near the ends of the range are as long as those between.
    ///
    /// # Errors
    /// The table was dropped; I/O.
    pub fn estimate_rows<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let call = self.enter()?;
        let Bounds { lower, upper } = Bounds::of(&range);
        self.estimate(&call.clustered, &lower, &upper).map_err(|error| self.with_owner(error))
    }

    pub(crate) fn estimate(
        &self,
        tree: &Tree,
        lower: &Bound<Vec<u8>>,
        upper: &Bound<Vec<u8>>,
    ) -> Result<u64> {
        self.check_readable(tree)?;
        tree.estimate(lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]))
    }

    /// Returns the number of rows, for the plan of a query. Those that transactions have inserted count before the
    /// commit, and those that they have deleted do not. It is kept over a restart. Each crash may make it wrong by 64
    /// rows, or by 1/512 of those that the table had then if these were more than 32,768. A table of less than 8,192
    /// rows is counted at the first call after an opening.
    ///
    /// # Errors
    /// The table was dropped; I/O.
    pub fn row_count(&self) -> Result<u64> {
        self.engine.check_open()?;
        self.inner.row_count().map_err(|error| self.with_owner(error))
    }

    /// Returns the number of pages that the tree of the rows takes, with those of long values and the allocation map.
    /// Reads a page per 2 GiB of the table (with pages of 16 KiB).
    ///
    /// # Errors
    /// The table was dropped; I/O.
    pub fn pages(&self) -> Result<u64> {
        let call = self.enter()?;
        self.pages_of(&call.clustered).map_err(|error| self.with_owner(error))
    }

    pub(crate) fn pages_of(&self, tree: &Tree) -> Result<u64> {
        self.check_readable(tree)?;
        tablespace::count_pages(&self.engine.pool, tree.space())
    }

    /// Returns the number of levels of the tree of the rows; 0 while it has no page.
    ///
    /// # Errors
    /// The table was dropped; I/O.
    pub fn height(&self) -> Result<u32> {
        let call = self.enter()?;
        self.height_of(&call.clustered).map_err(|error| self.with_owner(error))
    }

    pub(crate) fn height_of(&self, tree: &Tree) -> Result<u32> {
        self.check_readable(tree)?;
        tree.height()
    }

    /// Returns an error if the database is closed, or the tree was dropped.
    pub(crate) fn check_readable(&self, tree: &Tree) -> Result<()> {
        self.engine.check_open()?;
        tree.space().check_live()
    }

    /// Returns a cursor over all rows. It is not positioned yet.
    ///
    /// # Errors
    /// The table was dropped.
    pub fn cursor(&self) -> Result<Cursor> {
        self.cursor_of(self.reader()?)
    }

    pub(crate) fn cursor_of(&self, reader: Reader) -> Result<Cursor> {
        self.engine.check_open()?;
        debug_assert!(
            matches!(reader, Reader::Session(_)) == self.undo.is_some(),
            "a cursor reads a temporary table by views, or another table without"
        );
        let call = self.enter()?;
        let owner = self.owner();
        let (engine, inner, tree) = (self.engine.clone(), self.inner.clone(), call.clustered.clone());
        Ok(Cursor::new(engine, inner, tree, owner, reader).reading(self.fields))
    }

    /// Returns how plain reads on this handle read.
    pub(crate) fn reader(&self) -> Result<Reader> {
        Ok(match self.scope()? {
            // A temporary table has one user at a time, which sees its own changes.
            scope if self.undo.is_some() => Reader::Session(scope.cloned()),
            Some(scope) => Reader::InTransaction(scope.clone(), None),
            None => Reader::Alone,
        })
    }

    /// Returns the secondary index of this name.
    ///
    /// # Errors
    /// There is no index of this name; the table was dropped.
    pub fn index(&self, name: &str) -> Result<Index<A>> {
        self.engine.check_open()?;
        let call = self.enter()?;
        let place = self.index_place(&call, name)?;
        Ok(self.index_in(&call, place))
    }

    /// Returns the number of the secondary index of this name, with which [`Table::index_at`] finds it without its
    /// name. The number is valid for all handles of the table, in transactions or not, until the table is altered,
    /// truncated or loaded, or the database is closed.
    ///
    /// # Errors
    /// As [`Table::index`].
    pub fn index_number(&self, name: &str) -> Result<IndexNumber> {
        self.engine.check_open()?;
        let call = self.enter()?;
        let place = self.index_place(&call, name)?;
        Ok(self.number_of(&call, place))
    }

    /// Returns the secondary index of this number ([`Table::index_number`]).
    ///
    /// # Errors
    /// [`SchemaError::IndexNumberOutdated`]; the table was dropped.
    pub fn index_at(&self, number: IndexNumber) -> Result<Index<A>> {
        self.engine.check_open()?;
        let call = self.enter()?;
        if number != self.number_of(&call, number.place) {
            return Err(SchemaError::IndexNumberOutdated(self.name.clone()).into());
        }
        Ok(self.index_in(&call, number.place))
    }

    fn number_of(&self, schema: &TableSchema, place: usize) -> IndexNumber {
        let (table, version) = (schema.record.id, schema.record.version);
        IndexNumber { opening: self.engine.opening, table, version, place }
    }

    fn index_place(&self, schema: &TableSchema, name: &str) -> Result<usize> {
        let place = schema.record.indexes.iter().position(|index| *index.name == *name);
        place.ok_or_else(|| SchemaError::NoIndex { table: self.name.clone(), index: name.into() }.into())
    }

    fn index_in(&self, schema: &TableSchema, place: usize) -> Index<A> {
        let (index, tree) = (&schema.record.indexes[place], &schema.secondaries[place]);
        debug_assert!(
            tree.space().id() == index.space,
            "the name of an index leads to the tree of another one"
        );
        Index::new(self.clone(), index.name.clone(), tree.clone(), index.form)
    }
}
