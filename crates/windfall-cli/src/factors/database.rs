//! A database in which statements are measured.
//!
//! **Purpose.** Three of them are open concurrently: one has little of the factor; the others have much, one in another
//! table than the dropped one, and the other in the dropped table itself.
//!
//! **Method.** A factor that is around a table, not in it, is present when the database is open: tables in the catalog,
//! prepared transactions. Both databases with much have the same amount of it.

use std::{
    collections::BTreeSet,
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use windfall::TransactionOptions;
use windfall_measure::Scale;

use super::factor::FactorKind;
use crate::{
    args::{Commit, Plant},
    engine::{self, Database, IndexOptions, Setup, Table, TableOptions},
    failure::{Failure, Result},
};

/// The maximum number of open data files: low enough that a few more evict one.
const OPEN_FILES: usize = 16;
/// The timeout for the background work of drops.
const TIMEOUT: Duration = Duration::from_mins(2);
/// The polling interval of such a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The time without log records after which the background counts as idle: the worker that merges pages of the system
/// tree pauses for less.
const IDLE_AFTER: Duration = Duration::from_millis(15);
/// The maximum bytes of undo that the creation of small tables leaves.
const LITTLE_HISTORY: u64 = 64 << 10;
/// Iterations of the artificial work per unit of the factor.
const PLANTED: u64 = 80;
/// Rows of the table that other clients read and write.
pub(super) const OTHERS: u64 = 10_000;

/// A database with a given amount of a factor.
pub(super) struct Side {
    pub db: Database,
    pub factor: FactorKind,
    pub amount: u64,
    /// The amount in tables other than the dropped one.
    pub in_other_table: u64,
    plant: Option<Plant>,
    /// A table that is not dropped.
    pub others: Table,
    /// Bytes of hash indexes before the creation of a table that is dropped.
    pub hashed_before: u64,
    /// The number of names used so far.
    names: u64,
    path: PathBuf,
}

impl Side {
    /// Opens a database, with `amount` of the factor in the dropped table and `in_other_table` in another one.
    pub(super) fn open(
        factor: FactorKind,
        [amount, in_other_table]: [u64; 2],
        scale: Scale,
        plant: Option<Plant>,
        path: &Path,
    ) -> Result<Self> {
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
        // Only hash indexes of dropped tables are counted.
        others.set_hash_index(false);
        let hashed_before = db.metrics().hash_index_bytes;
        let mut side = Self {
            db,
            factor,
            amount,
            in_other_table,
            plant,
            others,
            hashed_before,
            names: 0,
            path: path.into(),
        };
        side.create_environment()?;
        Ok(side)
    }

    /// Returns a name that no table has had.
    pub(super) fn name(&mut self) -> String {
        self.names += 1;
        format!("t{:08}", self.names)
    }

    fn create_environment(&mut self) -> Result<()> {
        let around = self.amount.max(self.in_other_table);
        match self.factor {
            FactorKind::Catalog => {
                for _ in 0..around {
                    let name = self.name();
                    self.db.create_table(&name, TableOptions::default())?;
                }
            }
            FactorKind::Prepared => {
                let table = self.db.create_table("prepared", TableOptions::default())?;
                for n in 0..around {
                    let trx = self.db.begin(TransactionOptions::default());
                    trx.table(&table).insert(&n.to_be_bytes(), b"prepared")?;
                    trx.prepare(format!("stays {n}").as_bytes())?;
                }
            }
            FactorKind::ClosedFile => {
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

    /// Opens other files until the file of a table that was written before is evicted from the cache of open files.
    pub(super) fn close_files(&self) -> Result<()> {
        for table in self.db.tables()?.iter().take(4 * OPEN_FILES) {
            self.db.table(&table.name)?.put(b"more", b"so that there is a page to be written")?;
        }
        Ok(self.db.checkpoint()?)
    }

    /// Returns evidence of the amount, as the engine or the system counts it.
    pub(super) fn seen(&self) -> Option<(&'static str, u64)> {
        let metrics = self.db.metrics();
        match self.factor {
            FactorKind::CleanPages => Some(("clean pages in the pool", metrics.pool_clean)),
            FactorKind::DirtyPages => Some(("dirty pages in the pool", metrics.pool_dirty)),
            FactorKind::HashIndex => Some(("bytes of hash indexes", metrics.hash_index_bytes)),
            FactorKind::History | FactorKind::Purge => {
                Some(("bytes of undo that purge has to pass", metrics.history_bytes))
            }
            FactorKind::Cursors => Some(("views", self.db.views().len() as u64)),
            FactorKind::Prepared => Some(("prepared transactions", self.db.prepared().len() as u64)),
            FactorKind::Catalog => Some(("tables", metrics.tables)),
            FactorKind::OpenFile => Some(("bytes of the largest open file", self.largest_file(true))),
            FactorKind::ClosedFile => Some(("bytes of the largest closed file", self.largest_file(false))),
            _ => None,
        }
    }

    /// Returns the bytes of the largest data file that is open, or is not.
    fn largest_file(&self, is_open: bool) -> u64 {
        let in_folder = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        let descriptors = in_folder(Path::new("/proc/self/fd"));
        let open: BTreeSet<PathBuf> =
            descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
        let files = in_folder(&self.path.canonicalize().unwrap_or_default().join("data"));
        let asked = files.filter(|file| open.contains(&file.path()) == is_open);
        asked.filter_map(|file| file.metadata().ok()).map(|about| about.len()).max().unwrap_or(0)
    }

    /// Waits until all background work of drops is done: frames, files and hash indexes of dropped tables are freed.
    pub(super) fn wait_until_freed(&self) -> Result<()> {
        let mut hashed = None;
        wait_until("what was dropped is still being freed", || {
            let metrics = self.db.metrics();
            let is_steady = hashed.replace(metrics.hash_index_bytes) == Some(metrics.hash_index_bytes);
            is_steady && metrics.drops_pending == 0 && metrics.files_pending == 0
        })
    }

    /// Waits as [`Side::wait_until_freed`] does, and until nothing has been logged for some time, while no client
    /// writes.
    pub(super) fn wait_until_idle(&self) -> Result<()> {
        self.wait_until_freed()?;
        let (mut groups, mut since) = (None, Instant::now());
        wait_until("the background still logs what it does", || {
            let logged = self.db.metrics().log_groups;
            if groups.replace(logged) != Some(logged) {
                since = Instant::now();
            }
            since.elapsed() >= IDLE_AFTER
        })
    }

    /// Waits as [`Side::wait_until_freed`] does, and until no table has a hash index and no undo remains to be purged.
    pub(super) fn wait_until_purged(&self) -> Result<()> {
        self.wait_until_freed()?;
        wait_until("a hash index or undo of a dropped table is still there", || {
            let metrics = self.db.metrics();
            metrics.hash_index_bytes <= self.hashed_before && metrics.history_bytes < LITTLE_HISTORY
        })
    }

    /// Executes the artificial work, if it is one of these kinds.
    pub(super) fn planted(&self, plants: &[Plant]) {
        let amount = match self.plant.filter(|plant| plants.contains(plant)) {
            None => return,
            Some(Plant::Owned | Plant::Next) => self.amount,
            Some(Plant::Around) => self.amount.max(self.in_other_table),
        };
        for round in 0..amount * PLANTED {
            black_box(round);
        }
    }

    /// From now on each commit is written, and none is synced.
    pub(super) fn write_commits(&self) {
        engine::set_commit(&self.db, Commit::Write);
    }

    /// From now on commits wait for nothing: for the preparation of a measurement.
    pub(super) fn lazy_commits(&self) {
        engine::set_commit(&self.db, Commit::Lazy);
    }
}

/// Waits until a condition is true, and fails after a timeout.
fn wait_until(not_yet: &str, mut is_done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_done() {
        if start.elapsed() > TIMEOUT {
            return Err(Failure::message(format!("{not_yet} after {} s", TIMEOUT.as_secs())));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Creates a table with rows of this length, at least 16 bytes, and `indexes` indexes.
pub(super) fn load(db: &Database, name: &str, rows: u64, length: usize, indexes: u64) -> Result<Table> {
    let row = |n: u64| {
        let mut value = vec![0; length.max(16)];
        value[..8].copy_from_slice(&n.to_be_bytes());
        value[8..16].copy_from_slice(&(!n).to_be_bytes());
        Ok((n.to_be_bytes().to_vec(), value))
    };
    Ok(db.create_table_from(name, options(indexes), (0..rows).map(row))?)
}

/// Returns the options of a table with `indexes` indexes.
pub(super) fn options(indexes: u64) -> TableOptions {
    (0..indexes).fold(TableOptions::default(), |options, n| {
        options.index(&index(n), IndexOptions::on_value(0..8 + 8 * (n % 2) as u32))
    })
}

/// Returns the name of an index.
pub(super) fn index(n: u64) -> String {
    format!("i{n}")
}
