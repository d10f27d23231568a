//! Tables that get many rows at once.
//!
//! **Purpose.** The fast way to load many rows into a new table, or into an empty one (bulk load): each tree is written
//! once, from its first page to its last, without undo.
//!
//! **Invariants.** A load that was begun owns all that it needs, and any thread may go on with it (by type). Its memory
//! is bounded (test: `many_loads_at_once_stay_within_their_memory`). After a failure or a crash the table has all these
//! rows or none, and a new one does not exist then (tests: `a_crash_during_a_load_leaves_all_or_nothing`,
//! `a_crash_during_a_load_of_a_table_leaves_all_or_nothing`).

use tracing::debug;

use crate::{
    catalog::{self, LoadLimits, LoadedValue, Order, Rows},
    database::{Database, TableOptions},
    error::Result,
    table::Table,
    txn::SuppliedChange,
};

/// How rows are loaded into a table ([`Database::load_table_with`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "options have no effect until a load begins with them"]
pub struct LoadOptions {
    pub(crate) limits: LoadLimits,
}

impl LoadOptions {
    /// The rows come in any order, and are sorted first. Without this they come in the order of their keys.
    pub fn unsorted(mut self) -> Self {
        self.limits.order = Order::Any;
        self
    }

    /// Sets the memory in which rows and entries are sorted, in bytes: 64 MiB by default. Less than 64 KiB counts as
    /// that. The load takes as much memory, up to twice as much for rows of a few bytes, that of one row, and some KiB
    /// for each index. What exceeds it is written to
    /// temporary files, each with a piece of that size. In the end the pieces are merged, with a page of memory for
    /// each: with 1 MiB and pages of 16 KiB that is 1 MiB more for each 64 MiB of rows or entries.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-loads-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{LoadOptions, TableLoad, TableOptions};
    ///
    /// // All partitions are loaded at once.
    /// let mut loads: Vec<TableLoad> = Vec::new();
    /// for n in 0..4 {
    ///     let name = format!("orders#p{n}");
    ///     db.create_table(&name, TableOptions::default())?;
    ///     loads.push(db.load_table_with(&name, LoadOptions::default().memory(1 << 20))?);
    /// }
    /// for n in 0..40u32 {
    ///     loads[n as usize % 4].push(&n.to_be_bytes(), b"an order", &[])?;
    /// }
    /// loads.into_iter().try_for_each(TableLoad::finish)?;
    /// assert_eq!(db.table("orders#p3")?.row_count()?, 10);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory(mut self, bytes: usize) -> Self {
        self.limits.memory = bytes;
        self
    }
}

/// A load of rows into an empty table, which [`Database::load_table`] begins. When it is dropped before it was
/// finished, the rows are discarded.
#[derive(Debug)]
#[must_use = "the rows are discarded unless the load is finished"]
pub struct TableLoad {
    name: String,
    inner: catalog::TableLoad,
    // The last handle of the database, possibly: dropped last.
    database: Database,
}

impl TableLoad {
    /// Adds a row, with its entries in the indexes of which the caller supplies them, as for
    /// [`Table::insert_with`].
    ///
    /// # Errors
    /// The key is not greater than the last, in a load of rows in order; the key, the value or an entry is too long; an
    /// entry is missing or wrong: the row is not added, and the load can go on. Any other error, such as a full disk:
    /// every further call fails with [`UsageError::Incomplete`](crate::error::UsageError::Incomplete). So does a key
    /// that occurs twice among rows in any order, which is found here or by [`TableLoad::finish`].
    pub fn push(&mut self, key: &[u8], value: &[u8], entries: &[SuppliedChange<'_>]) -> Result<()> {
        self.push_value(key, LoadedValue::Whole(value.to_vec()), entries)
    }

    /// As [`TableLoad::push`], with the fields of the row, as for [`Table::insert_fields`].
    ///
    /// # Errors
    /// As [`TableLoad::push`]; too many fields
    /// ([`UsageError::TooManyFields`](crate::error::UsageError::TooManyFields)): the row is not added.
    pub fn push_fields(
        &mut self,
        key: &[u8],
        fields: &[&[u8]],
        entries: &[SuppliedChange<'_>],
    ) -> Result<()> {
        self.push_value(key, LoadedValue::Fields(fields), entries)
    }

    fn push_value(
        &mut self,
        key: &[u8],
        value: LoadedValue<'_>,
        entries: &[SuppliedChange<'_>],
    ) -> Result<()> {
        self.database.engine.check_open()?;
        let _interruptible = self.database.interruptible();
        self.inner.push(key.to_vec(), value, Some(entries))
    }

    /// Gives the table the rows, as one step, with the durability of a commit. The statement waits for transactions
    /// that have locked or changed the table, as [`Database::truncate_table`] does, also for one of the calling thread
    /// and for those that are rolled back in the background.
    ///
    /// # Errors
    /// Two rows have the same key, also in a unique index; two entries of different rows have the same bytes. The table
    /// was dropped, renamed or truncated, its definition has changed, or it has rows of others. A lock timeout; I/O.
    /// The table is as before then, and the rows are discarded: begin the load again.
    pub fn finish(self) -> Result<()> {
        let Self { name, inner, database } = self;
        database.engine.check_open()?;
        database.statement(|_, ddl| inner.finish(ddl))?;
        debug!(target: "windfall::ddl", table = name, "loaded");
        Ok(())
    }
}

impl Database {
    /// Creates a table with these rows, given as pairs of key and value in the order of their keys.
    ///
    /// No other call finds the table before it is complete. Other DDL statements on its name wait, so the iterator of
    /// the rows must not run one. A failure leaves nothing of the table. The load takes at most 64 MiB of memory, and
    /// that of one row.
    ///
    /// # Errors
    /// As [`Database::create_table`]; rows are out of order (the error names their keys, and their number counted from
    /// 1); two rows have the same key, also in a unique index; keys or values are too long; an error of `rows`; I/O.
    pub fn create_table_from(
        &self,
        name: &str,
        options: TableOptions,
        rows: impl IntoIterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
    ) -> Result<Table> {
        self.create_from(name, &options, &mut rows.into_iter(), Order::Ascending)
    }

    /// As [`Database::create_table_from`], with rows in any order. The rows are sorted first, 64 MiB at a time; the
    /// rest is in temporary files.
    ///
    /// # Errors
    /// As [`Database::create_table_from`], except for the order.
    pub fn create_table_from_unsorted(
        &self,
        name: &str,
        options: TableOptions,
        rows: impl IntoIterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
    ) -> Result<Table> {
        self.create_from(name, &options, &mut rows.into_iter(), Order::Any)
    }

    /// Begins to load rows, in the order of their keys, into a table that exists and is empty. The caller pushes them,
    /// from any thread; the table gets all of them when the load is finished, and until then other calls find it empty.
    /// Its counters continue. Read views of before then find it truncated.
    ///
    /// The load locks nothing: what others insert before its end makes it fail, so keep them away, or load a table that
    /// has its final name later ([`Database::swap_tables`]). It takes at most 64 MiB of memory, and that of one row.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-load-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, SuppliedChange, SuppliedEntry, TableOptions};
    ///
    /// let options = TableOptions::default().index("name", IndexOptions::supplied(8));
    /// let towns = db.create_table("towns", options)?;
    /// let mut load = db.load_table("towns")?;
    /// for (number, name) in [(1u32, "Basel"), (2, "Genf")] {
    ///     let key = [name.to_lowercase().as_bytes(), b"\0"].concat();
    ///     let entry = SuppliedChange::new("name", None, Some(SuppliedEntry::new(&key)));
    ///     load.push(&number.to_be_bytes(), name.as_bytes(), &[entry])?;
    /// }
    /// load.finish()?;
    /// assert_eq!(towns.index("name")?.get(b"genf\0")?.count(), 1);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// There is no such load of an index alone: a table with rows gets a new index from a function that makes the entry
    /// of each row ([`Database::create_index_with`], [`Database::build_indexes_with`]).
    ///
    /// # Errors
    /// There is no such table, or it has rows, also such as are not committed; I/O. Rows whose deletion is not
    /// committed are found by [`TableLoad::finish`]. A table of which many rows were deleted is better truncated first:
    /// the load reads all entries that purge has not removed yet, in the end while no call on the table continues.
    pub fn load_table(&self, name: &str) -> Result<TableLoad> {
        self.load_table_with(name, LoadOptions::default())
    }

    /// As [`Database::load_table`], with rows in any order. The rows are sorted first, 64 MiB at a time; the rest is in
    /// temporary files.
    ///
    /// # Errors
    /// As [`Database::load_table`].
    pub fn load_table_unsorted(&self, name: &str) -> Result<TableLoad> {
        self.load_table_with(name, LoadOptions::default().unsorted())
    }

    /// As [`Database::load_table`], with these options. Many loads at once, such as those of the partitions of a table,
    /// are each given a part of the memory ([`LoadOptions::memory`]).
    ///
    /// # Errors
    /// As [`Database::load_table`].
    pub fn load_table_with(&self, name: &str, options: LoadOptions) -> Result<TableLoad> {
        self.engine.check_open()?;
        let _interruptible = self.interruptible();
        let inner = self.engine.catalog.begin_load(name, options.limits)?;
        Ok(TableLoad { name: name.into(), inner, database: self.clone() })
    }

    fn create_from(
        &self,
        name: &str,
        options: &TableOptions,
        rows: &mut Rows<'_>,
        order: Order,
    ) -> Result<Table> {
        self.engine.check_open()?;
        let table = self.statement(|_, ddl| {
            self.engine.catalog.create_loaded_table(name, &options.definition, rows, order, ddl)
        })?;
        debug!(target: "windfall::ddl", table = name, "created with its rows");
        Ok(Table::new(self.engine.clone(), name, table))
    }
}
