//! Information about tables ([`TableInfo`]).
//!
//! **Purpose.** What a server shows of a table without reading it, for one table or for a list of them.
//!
//! **Invariants.** A table has the same information in a list and by itself (test:
//! `a_table_has_the_information_that_the_list_has`).

use crate::{
    buffer::FileState, catalog, disk::FileName, engine::Engine, error::Result, table::Table, tx_table::Access,
};

/// Information about a table that is available without reading the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// The table's name.
    pub name: String,
    /// The names of its secondary indexes.
    pub indexes: Vec<String>,
    /// Pages of the table that are in the buffer pool.
    pub resident_pages: u64,
    /// Pages of the table in the buffer pool with changes that are not yet written to its files.
    pub dirty_pages: u64,
    /// The size of its data files in bytes; zero for a table that was never flushed.
    pub file_bytes: u64,
}

impl TableInfo {
    pub(super) fn of(engine: &Engine, name: &str, table: &catalog::Table) -> Result<Self> {
        let schema = table.schema();
        let mut info = Self {
            name: name.into(),
            indexes: schema.record.indexes.iter().map(|index| index.name.to_string()).collect(),
            resident_pages: 0,
            dirty_pages: 0,
            file_bytes: 0,
        };
        for tree in schema.trees() {
            let space = tree.space();
            info.resident_pages += u64::from(space.resident());
            info.dirty_pages += space.dirty_pages() as u64;
            if space.file() != FileState::None {
                info.file_bytes += engine.disk.len(FileName::Data(space.id()))?.unwrap_or(0);
            }
        }
        Ok(info)
    }
}

impl<A: Access> Table<A> {
    /// Returns the information that [`Database::tables`](crate::Database::tables) has of this table, without a look at
    /// others. The name is that of the handle ([`Table::name`]). Outside of the buffer pool a temporary table has no
    /// page, and so no file.
    ///
    /// # Errors
    /// The table was dropped; the size of a file cannot be read.
    pub fn info(&self) -> Result<TableInfo> {
        self.engine.check_open()?;
        drop(self.enter()?);
        TableInfo::of(&self.engine, &self.name, &self.inner).map_err(|error| self.with_owner(error))
    }
}
