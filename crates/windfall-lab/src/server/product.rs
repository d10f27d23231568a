//! Windfall as a server of the lab.
//!
//! **Purpose.** [`Product`]: the unmodified engine, with its own catalog, log, page cleaner and file deletion. Only the
//! rows are written to the trees directly, as on the other servers.
//!
//! **Method.** Statements are the engine's own. The folder is used once and never opened again, so it does no harm that
//! its rows have no transactions.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{collections::HashMap, sync::Arc, time::Instant};

use parking_lot::Mutex;
use windfall::{
    DropReport, FlushLog, Options,
    disk::{Disk, FileName, RealDisk, RealDiskOptions},
    env::RealEnv,
    error::Result,
    ids::SpaceId,
};
use windfall_engine::lab::{BufferPool, Engine, Log, TemporaryTable, Trees};

use super::{Dropped, PAGE_SIZE, Server, Start, Table, classic::bytes_of_files};
use crate::{policy::detach, results::LockSeen};

/// Tablespaces that share the pages of a fill.
const FILL_SPACES: u64 = 100;
/// The first of their ids, which the catalog never reaches.
const FILL_IDS: u64 = SpaceId::MAX.0 - FILL_SPACES;
/// Bytes per entry of a tree's hash index.
const HASH_ENTRY: u64 = 8;

/// The server.
#[derive(Debug)]
pub struct Product {
    engine: Engine,
    disk: Arc<dyn Disk>,
    /// Temporary tables by name: they are not in the catalog.
    temporary: Mutex<HashMap<String, TemporaryTable>>,
    /// Dropped tablespaces, the files of which may still exist.
    pending_deletions: Mutex<Vec<SpaceId>>,
    filled: AtomicU64,
    flush: FlushLog,
}

type Made = Arc<Table<BufferPool>>;

fn made(name: &str, Trees { rows, index }: Trees) -> Made {
    Arc::new(Table { name: name.to_owned(), rows, index })
}

fn dropped(start: Instant, report: &DropReport) -> Dropped {
    Dropped { steps: detach::steps(report), took: start.elapsed() }
}

impl Product {
    fn drop_all(&self, tables: &[&Table<BufferPool>]) -> Result<Dropped> {
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let start = Instant::now();
        let report = self.engine.drop_tables(&names, self.flush)?;
        let dropped = dropped(start, &report);
        let trees = tables.iter().flat_map(|table| table.trees());
        self.pending_deletions.lock().extend(trees.map(|tree| tree.space().id()));
        Ok(dropped)
    }
}

/// Returns the tables of these handles.
fn all_of(tables: &[Made]) -> Vec<&Table<BufferPool>> {
    tables.iter().map(|table| &**table).collect()
}

impl Server for Product {
    type Store = BufferPool;

    fn start(start: &Start<'_>) -> Result<Self> {
        let options = Options::default()
            .page_size(PAGE_SIZE)
            .buffer_pool_size(start.pages * PAGE_SIZE as u64)
            .buffer_pool_max_size(start.pages * PAGE_SIZE as u64)
            .log_size(start.log)
            .hash_index(start.system.hash_index)
            .hash_index_memory(1 << 30);
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(start.folder, RealDiskOptions::default())?);
        let engine = Engine::open(disk.clone(), Arc::new(RealEnv::default()), &options)?;
        Ok(Self {
            engine,
            disk,
            temporary: Mutex::default(),
            pending_deletions: Mutex::default(),
            filled: AtomicU64::new(0),
            flush: start.flush,
        })
    }

    fn log(&self) -> &Arc<Log> {
        self.engine.log()
    }

    fn flush_mode(&self) -> FlushLog {
        self.flush
    }

    fn create(&self, name: &str, indexed: bool) -> Result<Made> {
        Ok(made(name, self.engine.create_table(name, indexed, self.flush)?))
    }

    fn create_together(&self, names: &[String]) -> Result<Vec<Made>> {
        names.iter().map(|name| self.create(name, false)).collect()
    }

    fn create_temporary(&self, names: &[String]) -> Result<Vec<Made>> {
        let make = |name: &String| {
            let table = self.engine.create_temporary()?;
            let made = made(name, table.trees());
            self.temporary.lock().insert(name.clone(), table);
            Ok(made)
        };
        names.iter().map(make).collect()
    }

    fn drop_table(&self, table: &Table<BufferPool>) -> Result<Dropped> {
        self.drop_all(&[table])
    }

    fn drop_partitions(&self, tables: &[Made]) -> Result<Dropped> {
        self.drop_all(&all_of(tables))
    }

    fn drop_together(&self, tables: &[Made]) -> Result<Dropped> {
        self.drop_all(&all_of(tables))
    }

    fn end_session(&self, tables: &[Made]) -> Result<Dropped> {
        let mut all = Dropped::default();
        for table in tables {
            let Some(temporary) = self.temporary.lock().remove(&table.name) else { continue };
            let start = Instant::now();
            all += dropped(start, &self.engine.drop_temporary(&temporary));
        }
        Ok(all)
    }

    fn truncate(&self, table: &Table<BufferPool>) -> Result<(Made, Dropped)> {
        let start = Instant::now();
        let report = self.engine.truncate_table(&table.name, self.flush)?;
        let dropped = dropped(start, &report);
        Ok((made(&table.name, self.engine.trees(&table.name)?), dropped))
    }

    fn fill(&self, pages: u64, _dirty: u64, _seed: u64) -> Result<()> {
        let each = pages.div_ceil(FILL_SPACES);
        for n in 0..FILL_SPACES.min(pages) {
            let id = SpaceId(FILL_IDS + self.filled.fetch_add(1, Relaxed));
            self.engine.add_bookkeeping_pages(id, each.min(pages - (n * each).min(pages)))?;
        }
        Ok(())
    }

    fn entries(&self) -> [u64; 2] {
        self.engine.pages_in_pool()
    }

    fn flush(&self) -> Result<()> {
        self.engine.flush_all()
    }

    fn file_bytes(&self) -> u64 {
        bytes_of_files(&*self.disk)
    }

    fn used_bytes(&self, tables: &[Made]) -> Result<u64> {
        let mut pages = 0;
        for tree in tables.iter().flat_map(|table| table.trees()) {
            pages += self.engine.pages_in_use(tree)?;
        }
        Ok((pages * PAGE_SIZE) as u64)
    }

    fn is_deleting(&self) -> bool {
        let mut left = self.pending_deletions.lock();
        left.retain(|space| !matches!(self.disk.len(FileName::Data(*space)), Ok(None)));
        !left.is_empty()
    }

    fn hashed(&self, table: &Table<BufferPool>) -> u64 {
        table.trees().map(|tree| tree.hash().bytes() / HASH_ENTRY).sum()
    }

    fn locks(&self) -> Vec<LockSeen> {
        Vec::new()
    }

    fn reset_locks(&self) {}
}
