//! A database in which statements are measured.
//!
//! **Purpose.** Two of them are open side by side, equal but for the amount of what is varied.
//!
//! **Invariants.** What is varied around a table, not in it, is there when the database is open: tables in the catalog,
//! prepared transactions.
//!
//! **May touch.** `engine`, `windfall-measure`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use windfall::TransactionOptions;
use windfall_measure::Scale;

use super::owned::Owned;
use crate::{
    args::Commit,
    engine::{self, Database, IndexOptions, Setup, Table, TableOptions},
    failure::Result,
};

/// Data files that are kept open, so that a few more make one leave.
const OPEN_FILES: usize = 16;
/// Rows of the table that others read and write.
pub const OTHERS: u64 = 10_000;

/// A database with so much of what is varied.
pub struct Side {
    pub db: Database,
    pub owned: Owned,
    pub amount: u64,
    /// What the other database has of it.
    pub other_amount: u64,
    /// A table that nobody drops.
    pub others: Table,
    /// Bytes of hash indexes before there was a table to be dropped.
    pub hashed_before: u64,
    /// How many names were used.
    names: u64,
    path: PathBuf,
}

impl Side {
    /// Opens one, with so much of it, while the other database has another amount.
    pub fn open(owned: Owned, [amount, other_amount]: [u64; 2], scale: Scale, path: &Path) -> Result<Self> {
        const MB: u64 = 1 << 20;
        let setup = Setup {
            hash: Some(true),
            hash_memory: Some(scale.pick(MB, 64 * MB, 1024 * MB)),
            open_files: Some(OPEN_FILES),
            ..Setup::with_pool(scale.pick(32 * MB, 512 * MB, 1536 * MB))
        };
        let setup = setup.commit(Commit::Lazy).log(scale.pick(64 * MB, 1024 * MB, 2048 * MB));
        fs::create_dir_all(path)?;
        let db = setup.open(path)?;
        let others = load(&db, "others", OTHERS, 100, 0)?;
        // What is counted of hash indexes is of the tables that are dropped.
        others.set_hash_index(false);
        let hashed_before = db.metrics().hash_index_bytes;
        let mut side =
            Self { db, owned, amount, other_amount, others, hashed_before, names: 0, path: path.into() };
        side.surround()?;
        Ok(side)
    }

    /// A name that no table has had.
    pub fn name(&mut self) -> String {
        self.names += 1;
        format!("t{:08}", self.names)
    }

    fn surround(&mut self) -> Result<()> {
        match self.owned {
            Owned::Catalog => {
                for _ in 0..self.amount {
                    let name = self.name();
                    self.db.create_table(&name, TableOptions::default())?;
                }
            }
            Owned::Prepared => {
                let table = self.db.create_table("prepared", TableOptions::default())?;
                for n in 0..self.amount {
                    let trx = self.db.begin(TransactionOptions::default());
                    table.within(&trx).insert(&n.to_be_bytes(), b"prepared")?;
                    trx.prepare(format!("stays {n}").as_bytes())?;
                }
            }
            Owned::ClosedFile => {
                for _ in 0..4 * OPEN_FILES {
                    let name = self.name();
                    load(&self.db, &name, 1, 16, 0)?;
                }
                self.db.checkpoint()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Opens other files until the one of a table that was written before has left the cache of open files.
    pub fn close_files(&self) -> Result<()> {
        for table in self.db.tables()?.iter().take(4 * OPEN_FILES) {
            self.db.table(&table.name)?.put(b"more", b"so that there is a page to be written")?;
        }
        Ok(self.db.checkpoint()?)
    }

    /// What shows that so much is there, as the engine or the system counts it.
    pub fn seen(&self) -> Option<(&'static str, u64)> {
        let metrics = self.db.metrics();
        match self.owned {
            Owned::CleanPages => Some(("clean pages in the pool", metrics.pool_clean)),
            Owned::DirtyPages => Some(("dirty pages in the pool", metrics.pool_dirty)),
            Owned::HashIndex => Some(("bytes of hash indexes", metrics.hash_index_bytes)),
            Owned::History | Owned::Purge => {
                Some(("bytes of undo that purge has to pass", metrics.history_bytes))
            }
            Owned::Cursors => Some(("views", self.db.views().len() as u64)),
            Owned::Prepared => Some(("prepared transactions", self.db.prepared().len() as u64)),
            Owned::Catalog => Some(("tables", metrics.tables)),
            Owned::OpenFile | Owned::ClosedFile => {
                Some(("bytes of the largest open file", self.largest_open()))
            }
            _ => None,
        }
    }

    /// Bytes of the largest data file that is open.
    fn largest_open(&self) -> u64 {
        let folder = self.path.canonicalize().unwrap_or_default().join("data");
        let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let is_data = |path: &PathBuf| fs::read_link(path).is_ok_and(|file| file.starts_with(&folder));
        let sizes = open.map(|entry| entry.path()).filter(is_data).filter_map(|path| fs::metadata(path).ok());
        sizes.map(|about| about.len()).max().unwrap_or(0)
    }

    /// From now on each commit is written, and none is synced.
    pub fn write_commits(&self) {
        engine::set_commit(&self.db, Commit::Write);
    }

    /// Commits wait for nothing: for what is made before something is measured.
    pub fn lazy_commits(&self) {
        engine::set_commit(&self.db, Commit::Lazy);
    }
}

/// A table with rows of this length, at least 16 bytes, and so many indexes.
pub fn load(db: &Database, name: &str, rows: u64, length: usize, indexes: u64) -> Result<Table> {
    let row = |n: u64| {
        let mut value = vec![0; length.max(16)];
        value[..8].copy_from_slice(&n.to_be_bytes());
        value[8..16].copy_from_slice(&(!n).to_be_bytes());
        Ok((n.to_be_bytes().to_vec(), value))
    };
    Ok(db.create_table_from(name, options(indexes), (0..rows).map(row))?)
}

/// Options of a table with so many indexes.
pub fn options(indexes: u64) -> TableOptions {
    (0..indexes).fold(TableOptions::default(), |options, n| {
        options.index(&index(n), IndexOptions::on_value(0..8 + 8 * (n % 2) as u32))
    })
}

/// The name of an index.
pub fn index(n: u64) -> String {
    format!("i{n}")
}
