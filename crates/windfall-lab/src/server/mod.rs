//! Servers: tables over a pool, with the statements that experiments need.
//!
//! **Purpose.** The layer above the pools is the same for all systems. A table is one tree of rows and perhaps one of
//! an index; it is entered into a dictionary. A statement returns when it is as durable as the server's commits are.
//! [`Classic`](classic::Classic) has a classic pool with a drop policy, [`Product`](product::Product) is Windfall.
//! Rows are written to the trees directly, on both: transactions would only obscure the comparison.
//!
//! **Method.** A statement has exclusive use of its table: experiments ensure that. The steps of a drop are counted by
//! the code that does them.

pub mod classic;
pub mod product;
pub mod rows;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::{path::Path, sync::Arc};

use windfall::{FlushLog, error::Result, ids::Lsn};
use windfall_btree::tree::{Tree, store::PageStore};
use windfall_engine::lab::Log;

use crate::{policy::Steps, results::LockSeen, system::System};

/// A table.
#[derive(Debug)]
pub struct Table<S: PageStore> {
    /// The name.
    pub name: String,
    /// The tree of rows.
    pub rows: Arc<Tree<S>>,
    /// The tree of the index, if there is one.
    pub index: Option<Arc<Tree<S>>>,
}

impl<S: PageStore> Table<S> {
    /// Returns all trees of the table.
    pub fn trees(&self) -> impl Iterator<Item = &Arc<Tree<S>>> {
        [Some(&self.rows), self.index.as_ref()].into_iter().flatten()
    }
}

/// The work and the duration of a statement that drops.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dropped {
    /// The work in the pool.
    pub steps: Steps,
    /// The duration.
    pub took: Duration,
}

impl core::ops::AddAssign for Dropped {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.took += other.took;
    }
}

/// The settings with which a server is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The system.
    pub system: System,
    /// An empty folder for the files.
    pub folder: &'a Path,
    /// Pages that fit in the pool.
    pub pages: u64,
    /// Bytes of the redo log.
    pub log: u64,
    /// The durability that commits and statements wait for: `innodb_flush_log_at_trx_commit`.
    pub flush: FlushLog,
}

/// The page size of all servers, in bytes.
pub const PAGE_SIZE: usize = 16_384;

/// A server.
pub trait Server: Send + Sync + Sized + 'static {
    /// The page store of the trees.
    type Store: PageStore;

    /// Starts the server.
    ///
    /// # Errors
    /// The folder, the address space or the settings are unsuitable.
    fn start(start: &Start<'_>) -> Result<Self>;

    /// Returns the redo log.
    fn log(&self) -> &Arc<Log>;

    /// Creates a table, with an index or without, durably.
    ///
    /// # Errors
    /// Errors of the disk.
    fn create(&self, name: &str, indexed: bool) -> Result<Arc<Table<Self::Store>>>;

    /// Creates tables that will be dropped together: in one tablespace, if a tablespace can hold several.
    ///
    /// # Errors
    /// Errors of the disk; too many tables for a tablespace.
    fn create_together(&self, names: &[String]) -> Result<Vec<Arc<Table<Self::Store>>>>;

    /// Creates the temporary tables of a session: in its temporary tablespace, if the server has session tablespaces.
    ///
    /// # Errors
    /// Errors of the disk; too many tables for a tablespace.
    fn create_temporary(&self, names: &[String]) -> Result<Vec<Arc<Table<Self::Store>>>>;

    /// Drops a table, durably.
    ///
    /// # Errors
    /// Errors of the disk.
    fn drop_table(&self, table: &Table<Self::Store>) -> Result<Dropped>;

    /// Drops the partitions of a table, each of which is a table for the engine, in one statement.
    ///
    /// # Errors
    /// Errors of the disk.
    fn drop_partitions(&self, tables: &[Arc<Table<Self::Store>>]) -> Result<Dropped>;

    /// Drops the tables of a call of [`Server::create_together`].
    ///
    /// # Errors
    /// Errors of the disk.
    fn drop_together(&self, tables: &[Arc<Table<Self::Store>>]) -> Result<Dropped>;

    /// Ends the session that created these temporary tables.
    ///
    /// # Errors
    /// Errors of the disk.
    fn end_session(&self, tables: &[Arc<Table<Self::Store>>]) -> Result<Dropped>;

    /// Empties a table, durably; an undo tablespace is truncated in the same way. The old handle is refused.
    ///
    /// # Errors
    /// Errors of the disk.
    fn truncate(&self, table: &Table<Self::Store>) -> Result<(Arc<Table<Self::Store>>, Dropped)>;

    /// Fills the pool with this many pages that are bookkeeping only, of several tables: their descriptors and their
    /// places in hash and lists are real; their bytes are never touched. In a classic pool `seed` determines the order
    /// of the lists, and `dirty` of the pages, evenly spread, are dirty. Windfall has no lists over all tables: its
    /// pages are clean, and both numbers are ignored.
    ///
    /// # Errors
    /// The pages do not fit in the pool.
    fn fill(&self, pages: u64, dirty: u64, seed: u64) -> Result<()>;

    /// Returns the entries of the LRU lists and of the flush lists; for Windfall, which has none, pages in the pool
    /// and dirty ones.
    fn entries(&self) -> [u64; 2];

    /// Writes every dirty page.
    ///
    /// # Errors
    /// Errors of the disk.
    fn flush(&self) -> Result<()>;

    /// Returns the size in bytes of all table files.
    fn file_bytes(&self) -> u64;

    /// Returns the size in bytes of the pages in use by these tables.
    ///
    /// # Errors
    /// Errors of the disk.
    fn used_bytes(&self, tables: &[Arc<Table<Self::Store>>]) -> Result<u64>;

    /// Returns whether files of dropped tables are still being deleted.
    fn is_deleting(&self) -> bool;

    /// Returns the number of hash index entries that point into a table.
    fn hashed(&self, table: &Table<Self::Store>) -> u64;

    /// Returns the holds and waits recorded by the pool's locks since [`Server::reset_locks`], all instances together.
    fn locks(&self) -> Vec<LockSeen>;

    /// Discards the recorded holds and waits.
    fn reset_locks(&self);

    /// Returns the durability that commits and statements wait for.
    fn flush_mode(&self) -> FlushLog;

    /// Waits until the log up to this position is as durable as the server's setting demands. Does nothing if nothing
    /// was logged.
    ///
    /// # Errors
    /// Errors of the disk.
    fn commit(&self, end: Option<Lsn>) -> Result<()> {
        self.log().await_flush(end, self.flush_mode())
    }
}
