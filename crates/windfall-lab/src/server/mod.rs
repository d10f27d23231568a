//! Servers: tables over a pool, with the statements that experiments make.
//!
//! **Purpose.** What stands around the pools is the same for all: a table is one tree of rows and perhaps one of an
//! index; it is entered into a dictionary, and a statement returns when it is as durable as the server's commits are.
//! [`Classic`](classic::Classic) has a classic pool with a drop policy, [`Product`](product::Product) is Windfall. Rows
//! are written to the trees directly, on both: transactions would only stand in the way of what is compared.
//!
//! **Invariants.** A statement has a table for itself: experiments see to that. What a drop did is counted by those who
//! did it.
//!
//! **May touch.** `pool`, `policy`, `system`, `results`, and all of `windfall`.

pub mod classic;
pub mod product;
pub mod rows;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::{path::Path, sync::Arc};

use windfall::{
    error::Result,
    ids::Lsn,
    log::{FlushLog, Log},
    tree::{Tree, store::PageStore},
};

use crate::{policy::Steps, results::LockSeen, system::System};

/// A table.
#[derive(Debug)]
pub struct Table<S: PageStore> {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: Arc<Tree<S>>,
    /// Its index, if it has one.
    pub index: Option<Arc<Tree<S>>>,
}

impl<S: PageStore> Table<S> {
    /// All its trees.
    pub fn trees(&self) -> impl Iterator<Item = &Arc<Tree<S>>> {
        [Some(&self.rows), self.index.as_ref()].into_iter().flatten()
    }
}

/// What a statement that drops did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dropped {
    /// To the pool.
    pub steps: Steps,
    /// How long it took.
    pub took: Duration,
}

impl core::ops::AddAssign for Dropped {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.took += other.took;
    }
}

/// How a server is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The system.
    pub system: System,
    /// An empty folder for its files.
    pub folder: &'a Path,
    /// Pages that the pool has room for.
    pub pages: u64,
    /// Bytes of the redo log.
    pub log: u64,
    /// What commits and statements wait for: `innodb_flush_log_at_trx_commit`.
    pub flush: FlushLog,
}

/// The page size of all servers, in bytes.
pub const PAGE_SIZE: usize = 16_384;

/// A server.
pub trait Server: Send + Sync + Sized + 'static {
    /// What keeps its pages.
    type Store: PageStore;

    /// Starts it.
    ///
    /// # Errors
    /// What the folder, the address space or the settings do not allow.
    fn start(start: &Start<'_>) -> Result<Self>;

    /// Its redo log.
    fn log(&self) -> &Arc<Log>;

    /// Makes a table, with an index or without, durably.
    ///
    /// # Errors
    /// Those of the disk.
    fn create(&self, name: &str, indexed: bool) -> Result<Arc<Table<Self::Store>>>;

    /// Makes tables that will be dropped together: in one tablespace, where a tablespace can hold several.
    ///
    /// # Errors
    /// Those of the disk; too many tables for a tablespace.
    fn create_together(&self, names: &[String]) -> Result<Vec<Arc<Table<Self::Store>>>>;

    /// Makes the temporary tables of a session: in its temporary tablespace, where there is such a thing.
    ///
    /// # Errors
    /// Those of the disk; too many tables for a tablespace.
    fn create_temporary(&self, names: &[String]) -> Result<Vec<Arc<Table<Self::Store>>>>;

    /// Drops a table, durably.
    ///
    /// # Errors
    /// Those of the disk.
    fn drop_table(&self, table: &Table<Self::Store>) -> Result<Dropped>;

    /// Drops the partitions of a table, each of which is a table for the engine, in one statement.
    ///
    /// # Errors
    /// Those of the disk.
    fn drop_partitions(&self, tables: &[Arc<Table<Self::Store>>]) -> Result<Dropped>;

    /// Drops what [`Server::create_together`] has made.
    ///
    /// # Errors
    /// Those of the disk.
    fn drop_together(&self, tables: &[Arc<Table<Self::Store>>]) -> Result<Dropped>;

    /// Ends the session that made these temporary tables.
    ///
    /// # Errors
    /// Those of the disk.
    fn end_session(&self, tables: &[Arc<Table<Self::Store>>]) -> Result<Dropped>;

    /// Empties a table, durably; an undo tablespace is truncated in the same way. The old handle is refused.
    ///
    /// # Errors
    /// Those of the disk.
    fn truncate(&self, table: &Table<Self::Store>) -> Result<(Arc<Table<Self::Store>>, Dropped)>;

    /// Fills the pool with so many pages that are bookkeeping alone, of several tables: their descriptors and their
    /// places in hash and lists are real; their bytes are never touched. In a classic pool the lists are in an order
    /// that `seed` decides, and `dirty` of the pages, evenly among them, are dirty. Windfall has no lists over all
    /// tables: its pages are clean, and it needs neither number.
    ///
    /// # Errors
    /// When the pool has no room for them.
    fn fill(&self, pages: u64, dirty: u64, seed: u64) -> Result<()>;

    /// Entries of the LRU lists and of the flush lists; of Windfall, which has none, pages in the pool and dirty ones.
    fn entries(&self) -> [u64; 2];

    /// Writes every changed page.
    ///
    /// # Errors
    /// Those of the disk.
    fn flush(&self) -> Result<()>;

    /// Bytes of the files of its tables.
    fn file_bytes(&self) -> u64;

    /// Bytes of the pages in use by these tables.
    ///
    /// # Errors
    /// Those of the disk.
    fn used_bytes(&self, tables: &[Arc<Table<Self::Store>>]) -> Result<u64>;

    /// Whether files of dropped tables are still being deleted.
    fn is_deleting(&self) -> bool;

    /// Entries of the hash index that lead into a table.
    fn hashed(&self, table: &Table<Self::Store>) -> u64;

    /// What the locks of the pool have seen since [`Server::reset_locks`], all instances together.
    fn locks(&self) -> Vec<LockSeen>;

    /// Forgets that.
    fn reset_locks(&self);

    /// What commits and statements wait for.
    fn flush_log(&self) -> FlushLog;

    /// Waits until what was logged up to here is as durable as the server was told to make it.
    ///
    /// # Errors
    /// Those of the disk.
    fn commit(&self, lsn: Lsn) -> Result<()> {
        if lsn > Lsn::ZERO { self.log().commit(lsn, self.flush_log()) } else { Ok(()) }
    }
}
