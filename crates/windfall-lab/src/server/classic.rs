//! A historical server: a classic pool, a drop policy, a dictionary.
//!
//! **Purpose.** [`Classic`]: `innodb_file_per_table`, one tablespace and one file per table, with its tree of rows and
//! that of its index.
//!
//! **Steps.** A drop follows `row_drop_table_for_mysql`: the tablespace refuses its handles, the table is removed from
//! the dictionary, the policy removes its pages from the pool, the dropping thread deletes the file when no page of it
//! is being read or written, and the log is made as durable as for a commit. Up to 5.7 all of that is done under the
//! mutex of the dictionary, since 8.0 only the first two steps.

use core::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use std::{collections::BTreeMap, sync::Arc, thread, time::Instant};

use windfall::{
    FlushLog,
    disk::{Disk, FileName, Folder, RealDisk, RealDiskOptions},
    env::{RealEnv, Worker},
    error::Result,
    ids::SpaceId,
};
use windfall_btree::tree::Tree;
use windfall_engine::lab::Log;

use super::{Dropped, PAGE_SIZE, Server, Start, Table, rows};
use crate::{
    policy::{self, DropPolicy},
    pool::{ClassicPool, Context, PoolOptions, Space, TreeHash},
    results::LockSeen,
    watch::{self, Purpose, Report},
};

/// Pages of a new file: `FIL_IBD_FILE_INITIAL_SIZE`.
const FIRST_PAGES: u64 = 6;
/// `innodb_max_dirty_pages_pct`, as in the published experiments.
const DIRTY_PERCENT: u32 = 90;

/// The server.
#[derive(Debug)]
pub struct Classic {
    pool: Arc<ClassicPool>,
    policy: Box<dyn DropPolicy>,
    dictionary: Tree<ClassicPool>,
    /// `dict_sys->mutex`.
    dictionary_mutex: watch::Mutex<()>,
    next_id: AtomicU64,
    flush: FlushLog,
    _workers: Vec<Worker>,
}

type Made = Arc<Table<ClassicPool>>;

impl Classic {
    fn new_id(&self) -> SpaceId {
        SpaceId(self.next_id.fetch_add(1, Relaxed))
    }

    fn tree_in(pool: &Arc<ClassicPool>, space: &Arc<Space>, id: SpaceId) -> Result<Arc<Tree<ClassicPool>>> {
        let handle = space.tree(id)?;
        Ok(Arc::new(Tree::new(pool.clone(), handle.clone(), TreeHash::new(pool.clone(), handle))))
    }

    fn table_in(&self, space: &Arc<Space>, name: &str, indexed: bool) -> Result<Made> {
        let tree = || Self::tree_in(&self.pool, space, self.new_id());
        let index = indexed.then(tree).transpose()?;
        Ok(Arc::new(Table { name: name.to_owned(), rows: tree()?, index }))
    }

    /// Creates a tablespace with a file.
    fn new_space(pool: &Arc<ClassicPool>, id: SpaceId, temporary: bool) -> Result<Arc<Space>> {
        let (disk, file) = (&pool.context().disk, FileName::Data(id));
        disk.create(file)?;
        disk.preallocate(file, 0, FIRST_PAGES * PAGE_SIZE as u64)?;
        if !temporary {
            disk.sync(file)?;
        }
        let space = Space::new(id, temporary);
        pool.attach(&space);
        Ok(space)
    }

    /// Adds tables to the dictionary, durably.
    fn enter(&self, tables: &[Made]) -> Result<()> {
        let mut end = None;
        for table in tables {
            end = rows::put(&self.dictionary, table.name.as_bytes(), b"table")?;
        }
        self.commit(end)
    }

    /// Drops a tablespace with the tables of these names.
    fn drop_space(&self, space: &Arc<Space>, names: &[&str]) -> Result<Dropped> {
        let start = Instant::now();
        let mut serial = Some(self.dictionary_mutex.lock(Purpose::Dictionary));
        space.mark_dropped();
        let mut end = None;
        if !space.temporary {
            for name in names {
                end = rows::remove(&self.dictionary, name.as_bytes())?;
            }
        }
        if !self.policy.holds_dictionary() {
            serial = None;
        }
        let steps = self.policy.remove_tablespace(&self.pool, space, &space.trees());
        self.forget_file(space)?;
        self.commit(end)?;
        drop(serial);
        Ok(Dropped { steps, took: start.elapsed() })
    }

    fn forget_file(&self, space: &Space) -> Result<()> {
        self.await_io(space);
        self.pool.detach(space);
        Ok(self.pool.context().disk.remove(FileName::Data(space.id))?)
    }

    /// Waits until no page of a tablespace is being read or written: `fil_check_pending_operations`.
    fn await_io(&self, space: &Space) {
        while !space.is_quiet() && !self.pool.context().health.is_poisoned() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn space_of(table: &Table<ClassicPool>) -> &Arc<Space> {
        &table.rows.space().space
    }

    /// Creates several tables in one tablespace.
    fn together(&self, names: &[String], temporary: bool) -> Result<Vec<Made>> {
        let _serial = self.dictionary_mutex.lock(Purpose::Dictionary);
        let space = Self::new_space(&self.pool, self.new_id(), temporary)?;
        let tables =
            names.iter().map(|name| self.table_in(&space, name, false)).collect::<Result<Vec<_>>>()?;
        if !temporary {
            self.enter(&tables)?;
        }
        Ok(tables)
    }
}

impl Server for Classic {
    type Store = ClassicPool;

    fn start(start: &Start<'_>) -> Result<Self> {
        let direct = RealDiskOptions::default();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(start.folder, direct)?);
        let env = Arc::new(RealEnv::default());
        let context = Context::new(disk, env.clone(), PAGE_SIZE, start.log)?;
        let policy = policy::of(start.system.policy).ok_or_else(|| {
            windfall::error::UsageError::Other(format!("{} has no classic pool", start.system).into())
        })?;
        let options = PoolOptions {
            era: policy.era(),
            instances: start.system.instances as usize,
            frames: start.pages as usize,
            page_size: PAGE_SIZE,
            hash_index: start.system.hash_index,
            dirty_percent: DIRTY_PERCENT,
        };
        let pool = Arc::new(ClassicPool::new(context, options)?);
        let workers = pool.spawn(&*env)?;
        let space = Self::new_space(&pool, SpaceId::SYSTEM, false)?;
        let dictionary = Self::tree_in(&pool, &space, SpaceId(2))?;
        let dictionary = Arc::into_inner(dictionary).expect("no other reference exists yet");
        Ok(Self {
            pool,
            policy,
            dictionary,
            dictionary_mutex: watch::Mutex::around_pool("dictionary", ()),
            next_id: AtomicU64::new(SpaceId::FIRST.0),
            flush: start.flush,
            _workers: workers,
        })
    }

    fn log(&self) -> &Arc<Log> {
        &self.pool.context().log
    }

    fn flush_mode(&self) -> FlushLog {
        self.flush
    }

    fn create(&self, name: &str, indexed: bool) -> Result<Made> {
        let _serial = self.dictionary_mutex.lock(Purpose::Dictionary);
        let space = Self::new_space(&self.pool, self.new_id(), false)?;
        let table = self.table_in(&space, name, indexed)?;
        self.enter(core::slice::from_ref(&table))?;
        Ok(table)
    }

    fn create_together(&self, names: &[String]) -> Result<Vec<Made>> {
        self.together(names, false)
    }

    fn create_temporary(&self, names: &[String]) -> Result<Vec<Made>> {
        self.together(names, true)
    }

    fn drop_table(&self, table: &Table<ClassicPool>) -> Result<Dropped> {
        self.drop_space(Self::space_of(table), &[&table.name])
    }

    fn drop_partitions(&self, tables: &[Made]) -> Result<Dropped> {
        let mut all = Dropped::default();
        for table in tables {
            all += self.drop_table(table)?;
        }
        Ok(all)
    }

    fn drop_together(&self, tables: &[Made]) -> Result<Dropped> {
        let Some(first) = tables.first() else { return Ok(Dropped::default()) };
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        self.drop_space(Self::space_of(first), &names)
    }

    fn end_session(&self, tables: &[Made]) -> Result<Dropped> {
        self.drop_together(tables)
    }

    fn truncate(&self, table: &Table<ClassicPool>) -> Result<(Made, Dropped)> {
        if !self.policy.truncates_in_place() {
            let mut dropped = self.drop_table(table)?;
            let start = Instant::now();
            let made = self.create(&table.name, table.index.is_some())?;
            dropped.took += start.elapsed();
            return Ok((made, dropped));
        }
        let start = Instant::now();
        let space = Self::space_of(table);
        let trees = space.renew();
        let steps = self.policy.remove_tablespace(&self.pool, space, &trees);
        self.await_io(space);
        let file = FileName::Data(space.id);
        self.pool.context().disk.truncate(file, FIRST_PAGES * PAGE_SIZE as u64)?;
        let made = self.table_in(space, &table.name, table.index.is_some())?;
        self.enter(core::slice::from_ref(&made))?;
        Ok((made, Dropped { steps, took: start.elapsed() }))
    }

    fn fill(&self, pages: u64, dirty: u64, seed: u64) -> Result<()> {
        self.pool.add_bookkeeping_pages(|| self.new_id(), pages, dirty, seed)
    }

    fn entries(&self) -> [u64; 2] {
        let [lru, flush, _] = self.pool.occupancy();
        [lru, flush]
    }

    fn flush(&self) -> Result<()> {
        self.pool.flush_all()
    }

    fn file_bytes(&self) -> u64 {
        bytes_of_files(&*self.pool.context().disk)
    }

    fn used_bytes(&self, tables: &[Made]) -> Result<u64> {
        let pages = |table: &Made| Self::space_of(table).extents().iter().map(Vec::len).sum::<usize>();
        Ok(tables.iter().map(|table| (pages(table) * PAGE_SIZE) as u64).sum())
    }

    fn is_deleting(&self) -> bool {
        false
    }

    fn hashed(&self, table: &Table<ClassicPool>) -> u64 {
        let hash = self.pool.hash_index();
        table.trees().map(|tree| hash.entries_of(tree.space().tree)).sum()
    }

    fn locks(&self) -> Vec<LockSeen> {
        let mut by_name: BTreeMap<&str, Vec<Report>> = BTreeMap::new();
        for report in self.pool.lock_reports().into_iter().chain([self.dictionary_mutex.report()]) {
            by_name.entry(report.name).or_default().push(report);
        }
        let seen = by_name.into_iter().map(|(name, reports)| LockSeen::of(name, &reports));
        seen.filter(|seen| !seen.holds.is_empty()).collect()
    }

    fn reset_locks(&self) {
        self.pool.reset_locks();
        self.dictionary_mutex.reset();
    }
}

/// Returns the size in bytes of all data files.
pub(super) fn bytes_of_files(disk: &dyn Disk) -> u64 {
    let files = disk.list(Folder::Data).unwrap_or_default();
    files.into_iter().filter_map(|file| disk.len(file).ok().flatten()).sum()
}
