//! Tables that are created with their rows.
//!
//! **Purpose.** The fast way to load many rows into a new table (bulk load): each tree is written once, from its first
//! page to its last, without undo.
//!
//! **Invariants.** After a failure or a crash the table exists with all its rows, or not at all (test:
//! `a_crash_during_a_load_leaves_all_or_nothing`).

use tracing::debug;

use crate::{
    catalog::{Order, Rows},
    database::{Database, TableOptions},
    error::Result,
    table::Table,
};

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

    fn create_from(
        &self,
        name: &str,
        options: &TableOptions,
        rows: &mut Rows<'_>,
        order: Order,
    ) -> Result<Table> {
        self.engine.check_open()?;
        let table =
            self.statement(|catalog, ddl| catalog.load_table(name, &options.definition, rows, order, ddl))?;
        debug!(table = name, "created with its rows");
        Ok(Table::new(self.engine.clone(), name, table))
    }
}
