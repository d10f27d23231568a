//! Indexes that are added to a table, and dropped.
//!
//! **Purpose.** An index is filled while the table is in use. Both are alterations of the table with one change.
//!
//! **Invariants.** Each is complete or has not begun, also after a crash (test:
//! `a_crash_during_an_index_build_leaves_all_or_nothing`).

use tracing::debug;

use super::{Database, IndexOptions};
use crate::{
    catalog::{DropReport, MadeEntry, MakeEntryOf, TableChanges},
    error::Result,
};

impl Database {
    /// Adds a secondary index and fills it from the rows. Calls on this table continue meanwhile, in transactions and
    /// outside of them. They wait only briefly at the beginning and at the end, while the statement waits for calls in
    /// progress and for the log. Other DDL statements on this table wait until the index is complete.
    ///
    /// [`Database::alter_table`] adds several indexes in one scan of the table, and together with other changes.
    ///
    /// When the index is filled, the statement waits for the transactions that have changed the table, prepared ones
    /// included, and for no others: at most as long as [`Database::with_ddl_timeout`] or else
    /// [`Options::lock_wait_timeout`] says. A transaction that begins to change the table meanwhile may have to queue
    /// after the statement, each time for at most a quarter of `lock_wait_timeout`, or 50 ms if that is more.
    /// Duplicates in a unique index are an error only if both rows are committed.
    ///
    /// # Errors
    /// Transactions that the statement waited for have not ended in time ([`LockError`](crate::error::LockError), which
    /// names them). There is no such table, the index name is taken, the definition would give different rows the same
    /// key ([`IndexOptions`]), two rows have the same key in a unique index, or an index key is too long. Too many
    /// uncommitted rows would have to be refused.
    ///
    /// [`Options::lock_wait_timeout`]: crate::Options::lock_wait_timeout
    pub fn create_index(&self, table: &str, name: &str, options: IndexOptions) -> Result<()> {
        self.add_index(table, name, options, None)
    }

    /// As [`Database::create_index`], for an index of which the caller supplies the entries
    /// ([`IndexOptions::supplied`]): `make` makes the entry of a row that exists, given the row's key and the first 64
    /// KiB of its value, or the fields that [`IndexOptions::reading`] chooses. It returns whether the row is in the
    /// index, and writes the entry to the one that it gets, which is empty. The entries are sorted, so their order does
    /// not matter. No call pushes entries into an index that exists and is empty: it gets its entries here, or by the
    /// load of an empty table ([`Database::load_table`]).
    ///
    /// The calling thread calls it, for each row at least once, and again for rows that change meanwhile: for the same
    /// row it must give the same entry. It may be called with a latch on the row: what it calls in the database itself
    /// counts as called from within a call, and is refused if it would wait for one.
    ///
    /// Writers supply no entries of the new index before it is complete ([`SchemaError::NoIndex`]), and must supply
    /// them from then on. An insertion and a deletion without them are refused, but [`Table::update_with`] leaves the
    /// entry of an index that is not named as it is: keep updates that were prepared before the end of this call away
    /// until their callers know the index.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-make-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, TableOptions};
    ///
    /// let towns = db.create_table("towns", TableOptions::default())?;
    /// towns.insert(b"1", b"Genf")?;
    /// towns.insert(b"2", b"BASEL")?;
    /// towns.insert(b"3", b"")?;
    /// // Towns by name, in lower case, with a terminator; those without a name are left out.
    /// db.create_index_with("towns", "name", IndexOptions::supplied(8), |_key, value, entry| {
    ///     entry.key.extend(value.iter().map(u8::to_ascii_lowercase).chain([0]));
    ///     entry.payload.extend_from_slice(value);
    ///     Ok(!value.is_empty())
    /// })?;
    /// let mut cursor = towns.index("name")?.key_cursor()?;
    /// assert!(cursor.seek(windfall::Seek::First)?);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::create_index`]; the index makes its entries of the value; two rows have the same entry; an error
    /// of `make` or a payload that is too long, also for a row that is not committed. A panic of `make` goes on when
    /// the index is dropped again.
    ///
    /// [`SchemaError::NoIndex`]: crate::error::SchemaError::NoIndex
    /// [`Table::update_with`]: crate::Table::update_with
    pub fn create_index_with(
        &self,
        table: &str,
        name: &str,
        options: IndexOptions,
        mut make: impl FnMut(&[u8], &[u8], &mut MadeEntry) -> Result<bool>,
    ) -> Result<()> {
        let mut make =
            |_: &str, _: &str, row: &[u8], value: &[u8], entry: &mut MadeEntry| make(row, value, entry);
        self.add_index(table, name, options, Some(&mut make))
    }

    fn add_index(
        &self,
        table: &str,
        name: &str,
        options: IndexOptions,
        make: Option<&mut MakeEntryOf<'_>>,
    ) -> Result<()> {
        let add_indexes = vec![options.definition(name)];
        self.alter(table, TableChanges { add_indexes, ..TableChanges::default() }, make)?;
        debug!(target: "windfall::ddl", table, index = name, "index created");
        Ok(())
    }

    /// Drops a secondary index. Waits as [`Database::drop_table`] does.
    ///
    /// # Errors
    /// There is no such table or index; a lock timeout, as for [`Database::drop_table`].
    pub fn drop_index(&self, table: &str, name: &str) -> Result<DropReport> {
        self.engine.check_open()?;
        let report = self.statement(|catalog, ddl| catalog.drop_index(table, name, ddl))?;
        assert!(
            report.trees > 0 && report.lsn.is_some(),
            "the drop of an index keeps its tree, or is not logged"
        );
        debug!(
            target: "windfall::ddl",
            table, index = name, lsn = report.lsn.map(|lsn| lsn.0), "index dropped",
        );
        Ok(report)
    }
}
