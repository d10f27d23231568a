//! Tables that are made with their rows.
//!
//! **Purpose.** The fast way for many rows into a new table: its trees are written once, from their first page to their
//! last, and nothing of it is undo.
//!
//! **Invariants.** The table is there with all its rows, or not at all, whatever fails or crashes.
//!
//! **May touch.** `engine`, `catalog`, `database`, `table`.

use tracing::debug;

use crate::{
    catalog::{Order, Rows},
    database::{Database, TableOptions},
    error::Result,
    table::Table,
};

impl Database {
    /// Creates a table with these rows, by key and value, which come in the order of their keys.
    ///
    /// Nobody finds the table before it is complete. Other statements on its name wait; so the rows must not be made
    /// by one. Whatever fails leaves nothing behind. What is in memory of it is no more than 64 MiB and a row.
    ///
    /// # Errors
    /// A name that is taken or cannot be used; rows that are out of order, told by their number, counted from 1, and
    /// their keys; two of one key, in a unique index too; keys and values that are too long. What the rows say; I/O.
    pub fn create_table_from(
        &self,
        name: &str,
        options: TableOptions,
        rows: impl IntoIterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
    ) -> Result<Table> {
        self.create_from(name, &options, &mut rows.into_iter(), Order::Ascending)
    }

    /// As [`Database::create_table_from`], with rows in any order, which are sorted first: 64 MiB at a time, the rest
    /// in temporary files.
    ///
    /// # Errors
    /// As there, but for the order.
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
        let table = self.engine.catalog.load_table(name, &options.definition, rows, order, self.terms())?;
        debug!(table = name, "created with its rows");
        Ok(Table::new(self.engine.clone(), name, table))
    }
}
