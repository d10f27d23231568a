//! The handle of a table: access to rows by their keys.
//!
//! **Purpose.** The handle itself, ranges of rows, statistics, and the way to an index. The calls on single rows are in
//! `table/change.rs` and `table/read.rs`.
//!
//! **Invariants.** A call passes the table's gate, which DDL closes and drains, and works on the table schema that it
//! finds inside (test: `no_thread_is_inside_a_closed_gate`). A handle that outlives its table returns
//! [`Error::TableDropped`], and keeps no page of the table alive (test: `ddl_statements_have_their_effects`).

mod change;
mod read;

pub(crate) use change::NewRow;

use core::ops::{Bound, RangeBounds};

#[cfg(doc)]
use crate::transaction::Isolation;
use crate::{
    buffer::Durability,
    catalog::{self, Call, TableSchema},
    cursor::{Cursor, Reader},
    engine::Engine,
    error::{Error, Owner, Result, SchemaError, TransactionError},
    ids::{IndexNumber, SpaceId},
    index::Index,
    range::{Bounds, Range},
    row::FieldSet,
    scope::{RowCall, Scope, ScopeRef, TableKind},
    session::SessionUndo,
    store::Tree,
    sync::Arc,
    tablespace,
    tx_table::{Access, AutoCommit},
    txn::locks::TableMode,
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
    /// Returns a handle of the same table for calls of another kind.
    pub(crate) fn with_access<B>(&self, access: B) -> Table<B> {
        let Self { engine, name, inner, undo, access: _, fields } = self.clone();
        Table { engine, name, inner, undo, access, fields }
    }

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
        self.inner.try_enter().map_or_else(|| self.wait_and_enter(), Ok)
    }

    #[cold]
    fn wait_and_enter(&self) -> Result<Call<'_>> {
        // It may be a call in a transaction that need not lock the state of that.
        let _interruptible = self.access.transaction().and_then(|trx| trx.scope.interruptible());
        self.inner.enter().map_err(|error| self.with_owner(error))
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
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-estimate-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// let rows = (0..10_000u32).map(|n| Ok((n.to_be_bytes().to_vec(), b"a page".to_vec())));
    /// let visits = db.create_table_from("visits", windfall::TableOptions::default(), rows)?;
    /// let some = visits.estimate_rows(2_000u32.to_be_bytes()..4_000u32.to_be_bytes())?;
    /// assert!((1_000..4_000).contains(&some));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
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
    /// The first call after an opening reads a page per 2 GiB of the table (with pages of 16 KiB); later ones read a
    /// number in memory.
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
            scope if self.undo.is_some() => Reader::Session(scope.map(ScopeRef::new)),
            Some(scope) => Reader::InTransaction(ScopeRef::new(scope), None),
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

    /// Returns the number of the secondary index of this name. It stands for the index where one is named
    /// ([`Table::index_at`], [`SuppliedChange`](crate::SuppliedChange)), and an error names the index by it
    /// ([`SchemaError::DuplicateKey`]). The number is valid for all handles of the table, in transactions or not,
    /// whatever indexes the table gets and loses, until the index is dropped, the table is truncated or a load of it is
    /// finished, or the database is closed. The rows of the load have it, too.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-index-number-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, SuppliedChange, SuppliedEntry, TableChanges, TableOptions};
    ///
    /// let towns = db.create_table("towns", TableOptions::default().index("name", IndexOptions::supplied(6)))?;
    /// let number = towns.index_number("name")?;
    /// db.alter_table("towns", TableChanges::default().rename_index("name", "by_name"))?;
    /// let entry = Some(SuppliedEntry::new(b"basel\0"));
    /// towns.insert_with(b"1", b"Basel", &[SuppliedChange::new(number, None, entry)])?;
    /// assert_eq!(towns.index_at(number)?.get(b"basel\0")?.count(), 1);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Table::index`].
    pub fn index_number(&self, name: &str) -> Result<IndexNumber> {
        self.engine.check_open()?;
        let call = self.enter()?;
        let place = self.index_place(&call, name)?;
        Ok(call.index_number(place))
    }

    /// Returns the secondary index of this number ([`Table::index_number`]).
    ///
    /// # Errors
    /// [`SchemaError::IndexNumberOutdated`]; the table was dropped.
    pub fn index_at(&self, number: IndexNumber) -> Result<Index<A>> {
        self.engine.check_open()?;
        let call = self.enter()?;
        let outdated = || SchemaError::IndexNumberOutdated(self.name.clone());
        let place = call.place_of(number).ok_or_else(outdated)?;
        Ok(self.index_in(&call, place))
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
