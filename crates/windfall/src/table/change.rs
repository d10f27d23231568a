//! Changes of single rows.
//!
//! **Purpose.** Inserts, updates and deletes, in the transaction of a handle or in one of their own.
//!
//! **Invariants.** A change is atomic over all trees of the table (test:
//! `a_failed_call_rolls_back_only_its_own_changes`), also one of the row's key (tests:
//! `a_row_gets_another_key_and_keeps_its_unique_index_keys`, `a_change_of_a_key_crashes_at_every_operation`). When it
//! returns it is as durable as `flush_log_at_trx_commit` says (test: `acknowledged_changes_survive_kills`).

use std::io::Read;

use smallvec::SmallVec;

use super::Table;
#[cfg(doc)]
use crate::error::{TransactionError, UsageError};
use crate::{
    buffer::Durability,
    catalog::{Secondaries, TableSchema},
    error::{Error, LockError, Result, SchemaError},
    scope::{Inner, RowCall, Scope},
    transaction::{Isolation, Transaction, TransactionOptions},
    tx_table::{Access, InTransaction},
    txn::{
        Edit, FieldChange, Mode, RowTarget, Stop, SuppliedChange, Trx, Value, Watch,
        locks::{LockTimeout, TableMode, WholeTable as _},
        row::{self, SingleCall},
    },
};

/// What a row gets with another key.
#[derive(Clone, Copy)]
pub(crate) enum NewRow<'v> {
    /// A value.
    Value(&'v [u8]),
    /// Fields, of which those that are kept are the row's own.
    Fields(&'v [FieldChange<'v>]),
}

impl<A: Access> Table<A> {
    /// Inserts a row. Waits for locks on it up to the lock timeout, as every change does.
    ///
    /// # Errors
    /// [`SchemaError::DuplicateKey`] if a row has this key, or this key of a unique index: the error names that row,
    /// and in a transaction it is locked ([`TxTable::duplicate_lock`]); the key or the value is too long; an index
    /// takes its entries from the caller ([`UsageError::EntryMissing`]); a lock that is not granted
    /// ([`LockError`]); a dropped table; I/O. The table is then unchanged.
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
    /// not granted ([`LockError`]); I/O. The table is then unchanged.
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
    ///     people.insert_with(&[id], name.as_bytes(), &[SuppliedChange::new("name", None, new)])?;
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
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-update-with-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, SuppliedChange, SuppliedEntry, TableOptions};
    ///
    /// let by_town = TableOptions::default().index("town", IndexOptions::supplied(8));
    /// let people = db.create_table("people", by_town)?;
    /// let in_town = |town| Some(SuppliedEntry::new(town));
    /// people.insert_with(b"1", b"Ada", &[SuppliedChange::new("town", None, in_town(b"london\0"))])?;
    /// // She has no entry any more: the index is sparse.
    /// people.update_with(b"1", b"Ada, travelling", &[SuppliedChange::new("town", in_town(b"london\0"), None)])?;
    /// assert_eq!(people.index("town")?.keys::<&[u8]>(..)?.count(), 0);
    /// // The entry stays as it is.
    /// people.update_with(b"1", b"Ada, at sea", &[])?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
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

    /// Gives a row another key, and replaces its value and its entries in the indexes of which the caller supplies
    /// them: each of these indexes must be named, with the entry before and after. It is a deletion and an insertion as
    /// one step: both take effect or none, and a rollback or a read view has both or none. Index keys that the row
    /// keeps are no duplicates, also in unique indexes. With two equal keys it is [`Table::update_with`].
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-change-key-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, SuppliedChange, SuppliedEntry, TableOptions};
    ///
    /// let by_plate = TableOptions::default().index("plate", IndexOptions::supplied(5).unique());
    /// let cars = db.create_table("cars", by_plate)?;
    /// let plate = Some(SuppliedEntry::new(b"AB123"));
    /// cars.insert_with(b"1", b"red", &[SuppliedChange::new("plate", None, plate)])?;
    /// // The plate is in the index as before, and leads to the row by its new key.
    /// cars.change_key_with(b"1", b"2", b"blue", &[SuppliedChange::new("plate", plate, plate)])?;
    /// let found = cars.index("plate")?.get(b"AB123")?.next().transpose()?;
    /// assert_eq!(found.map(|car| (car.key, car.value)), Some((b"2".to_vec(), b"blue".to_vec())));
    /// assert_eq!(cars.get(b"1")?, None);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The locks are those of the two: in a transaction both keys stay locked, exclusively, until it ends. If the call
    /// is refused, what it has locked by then stays locked. Outside of a transaction the call is one of its own at
    /// [`Isolation::ReadCommitted`], which starts again after a deadlock.
    ///
    /// # Errors
    /// [`SchemaError::NoRow`] if no row has the old key; [`SchemaError::DuplicateKey`] if a row has the new one; as
    /// [`Table::delete_with`] and [`Table::insert_with`]. The table is then unchanged.
    pub fn change_key_with(
        &self,
        old_key: &[u8],
        new_key: &[u8],
        value: &[u8],
        entries: &[SuppliedChange<'_>],
    ) -> Result<()> {
        if old_key == new_key {
            return self.update_with(new_key, value, entries);
        }
        self.change_key([old_key, new_key], NewRow::Value(value), entries)
    }

    /// Gives a row another key, by a deletion and an insertion.
    pub(crate) fn change_key(
        &self,
        keys: [&[u8]; 2],
        new: NewRow<'_>,
        entries: &[SuppliedChange<'_>],
    ) -> Result<()> {
        debug_assert!(keys[0] != keys[1], "a row keeps its key, and is to be deleted and inserted");
        if let Some(transaction) = self.access.transaction() {
            return transaction.atomically(|| self.move_row(keys, new, entries));
        }
        loop {
            let options = TransactionOptions::of_single_call(Isolation::ReadCommitted);
            let transaction = Transaction::begin(self.engine.clone(), options, None);
            let within = self.with_access(InTransaction::new(&transaction));
            let moved = match within.move_row(keys, new, entries) {
                Ok(()) => transaction.commit().map(drop),
                Err(Error::Lock(LockError::Deadlock(_))) => continue,
                refused => {
                    drop(transaction);
                    refused
                }
            };
            self.purge_old_versions();
            return moved;
        }
    }

    /// Purges what a change of a temporary table outside of transactions has left.
    fn purge_old_versions(&self) {
        // The session's end waits for the calls inside the gate before it drops this stream.
        if let Some(undo) = &self.undo
            && let Ok(_call) = self.inner.enter()
        {
            self.engine.transactions.purge().purge_temporary(undo.stream());
        }
    }

    /// Deletes a row and inserts it again with another key. If it fails, the deletion may be made already.
    fn move_row(
        &self,
        [old_key, new_key]: [&[u8]; 2],
        new: NewRow<'_>,
        entries: &[SuppliedChange<'_>],
    ) -> Result<()> {
        type Entries<'e> = SmallVec<[SuppliedChange<'e>; 8]>;
        let before: Entries<'_> =
            entries.iter().map(|entry| SuppliedChange { new: None, ..*entry }).collect();
        let after: Entries<'_> = entries.iter().map(|entry| SuppliedChange { old: None, ..*entry }).collect();
        if !self.delete_with(old_key, &before)? {
            return Err(SchemaError::NoRow(self.name.clone()).into());
        }
        let edit = match new {
            NewRow::Value(value) => Edit::write(Value::Bytes(value), Mode::Insert),
            NewRow::Fields(fields) => {
                Edit::write(Value::Fields(fields), Mode::Insert).keeping_fields_of(old_key)
            }
        };
        self.change(new_key, edit.with_entries(&after)).map(drop)
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
        let mut secondaries = Secondaries::new();
        schema.secondaries_to_change(self.engine.catalog.extractors(), &mut secondaries);
        let keys_of = |value: &[u8]| schema.keys_of(value);
        let noting = schema.noting().filter(|row_log| row_log.notes_first_bytes()).map(|row_log| {
            |key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>| row_log.note(key, before, after)
        });
        let target = RowTarget {
            name: &self.name,
            clustered: &schema.clustered,
            secondaries: &secondaries,
            keys_of: &keys_of,
            temporary: self.undo.as_ref().map(|undo| undo.stream()),
            watch: noting.as_ref().map(|noting| noting as &Watch<'_>),
            reads: schema.noting().filter(|row_log| row_log.reads_fields()).map(|row_log| row_log as _),
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
            scope.uses(inner, undo);
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
}
