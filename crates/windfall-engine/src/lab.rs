//! What the lab may use of the engine.
//!
//! **Purpose.** The crate `windfall-lab` puts the buffer pools of older servers below the tree of this engine, and
//! compares them with this engine's own. It names no other path of this crate (a house rule checks that), and takes
//! everything else from `windfall-btree` and the API. This module adds nothing to a statement or a page access: the lab
//! measures the work of the engine's own calls.
//!
//! | item | why the lab needs it |
//! | --- | --- |
//! | [`Log`], [`GroupWriter`], [`create_log`] | a classic pool writes the same redo log as the engine, so that logging is no difference between the servers that are compared |
//! | [`Frames`], [`Latch`], [`Version`] | a classic pool has its pages in the same memory, under the same latches, so that a page access is no difference either |
//! | [`Health`] | a classic pool stops after a failure, as the log to which it writes does |
//! | [`pages_of`] | a classic pool finds the pages in use in an allocation map, as the engine does |
//! | [`Engine`], [`Trees`], [`TemporaryTable`] | the engine as one of the servers: its DDL statements, and the trees of its tables, to which the lab writes without transactions |
//! | [`BufferPool`] | the page store of these trees |
//!
//! **Invariants.** The lab names no other path of this crate (test: `the_workspace_keeps_the_house_rules`).

use crate::{
    buffer::{
        Durability,
        arena::{Arena, FrameNo},
    },
    catalog::{self, DdlOptions, DropReport, IndexDefinition, KeyPart, KeySpec, TableDefinition},
    disk::Disk,
    engine,
    env::Env,
    error::Result,
    ids::{Lsn, PageNo, SpaceId},
    log::{Control, ControlFile, FlushLog, LogOptions},
    options::Options,
    page::Page,
    store::Tree,
    sync::Arc,
    tablespace,
    txn::EntryForm,
};

pub use crate::{
    buffer::BufferPool,
    health::Health,
    ids::pages_of,
    log::{GroupWriter, Log},
    sync::latch::{Latch, Version},
};

/// The maximum segment size of a log without an engine, in bytes. A log has at least two segments.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// Creates a log of this size, in bytes, for pages of `page_size` bytes, on a disk without files. Nothing recovers it.
///
/// # Errors
/// Errors of [`Log::open`].
pub fn create_log(
    disk: &Arc<dyn Disk>,
    env: Arc<dyn Env>,
    health: &Health,
    page_size: usize,
    size: u64,
) -> Result<Log> {
    let control = Control { page_size: page_size as u32, uuid: *b"windfall-the-lab", ..Control::default() };
    let mut control = ControlFile::create(disk.clone(), health.clone(), control)?;
    let options = LogOptions { size, segment: SEGMENT_BYTES_MAX.min(size / 2), ..LogOptions::default() };
    Log::open(disk.clone(), env, health.clone(), options, &mut control, Lsn::ZERO)
}

/// The pages of a pool, each with its latch. The memory is touched as it is used.
#[derive(Debug)]
pub struct Frames(Arena);

impl Frames {
    /// Reserves address space for `count` pages of `page_size` bytes.
    ///
    /// # Errors
    /// The operating system does not grant this much address space.
    pub fn new(count: usize, page_size: usize) -> Result<Self> {
        Ok(Self(Arena::new(count, page_size)?))
    }

    /// Returns the page of a frame.
    #[inline]
    pub fn page(&self, frame: u32) -> Page<'_> {
        self.0.page(FrameNo(frame))
    }

    /// Returns the latch of a frame.
    #[inline]
    pub fn latch(&self, frame: u32) -> &Latch {
        &self.0.frame(FrameNo(frame)).latch
    }
}

/// The trees of a table.
#[derive(Clone, Debug)]
pub struct Trees {
    /// The clustered tree.
    pub rows: Arc<Tree>,
    /// The secondary tree, if there is one.
    pub index: Option<Arc<Tree>>,
}

impl Trees {
    fn of(table: &catalog::Table) -> Self {
        let schema = table.schema();
        let index = schema.secondaries.first().cloned();
        Self { rows: schema.clustered, index }
    }
}

/// A temporary table, which is not in the catalog.
#[derive(Debug)]
pub struct TemporaryTable(Arc<catalog::Table>);

impl TemporaryTable {
    /// Returns its trees.
    pub fn trees(&self) -> Trees {
        Trees::of(&self.0)
    }
}

/// The unmodified engine, with the statements of the API on tables, and without rows.
#[derive(Debug)]
pub struct Engine(engine::Engine);

/// The definition of a table, with an index over the first four bytes of the value or without one.
fn definition(indexed: bool) -> TableDefinition {
    let key = KeySpec { parts: vec![KeyPart::Value { offset: 0, length: 4 }] };
    let index = IndexDefinition {
        name: "k_1".into(),
        unique: false,
        key,
        form: EntryForm::Terminated,
        without_payload: false,
        extractor: None,
        reading: None,
    };
    TableDefinition { indexes: if indexed { vec![index] } else { Vec::new() }, ..TableDefinition::default() }
}

fn durable(flush: FlushLog) -> DdlOptions {
    DdlOptions { flush, until: None }
}

impl Engine {
    /// Opens a database, as the API does.
    ///
    /// # Errors
    /// Errors of [`engine::Engine::open`].
    pub fn open(disk: Arc<dyn Disk>, env: Arc<dyn Env>, options: &Options) -> Result<Self> {
        Ok(Self(engine::Engine::open(disk, env, options, &|_| {})?))
    }

    /// Returns the redo log.
    pub fn log(&self) -> &Arc<Log> {
        &self.0.log
    }

    /// Creates a table, with an index over the first four bytes of the value or without one.
    ///
    /// # Errors
    /// Errors of [`catalog::Catalog::create_table`].
    pub fn create_table(&self, name: &str, indexed: bool, flush: FlushLog) -> Result<Trees> {
        Ok(Trees::of(&*self.0.catalog.create_table(name, &definition(indexed), durable(flush))?))
    }

    /// Creates a temporary table without an index.
    ///
    /// # Errors
    /// Errors of [`catalog::Catalog::temporary_table`].
    pub fn create_temporary(&self) -> Result<TemporaryTable> {
        Ok(TemporaryTable(self.0.catalog.temporary_table(&definition(false))?))
    }

    /// Drops these tables in one statement.
    ///
    /// # Errors
    /// Errors of [`catalog::Catalog::drop_tables`].
    pub fn drop_tables(&self, names: &[&str], flush: FlushLog) -> Result<DropReport> {
        self.0.catalog.drop_tables(names, durable(flush))
    }

    /// Drops a temporary table.
    pub fn drop_temporary(&self, table: &TemporaryTable) -> DropReport {
        self.0.catalog.drop_temporary(&table.0)
    }

    /// Empties a table.
    ///
    /// # Errors
    /// Errors of [`catalog::Catalog::truncate_table`].
    pub fn truncate_table(&self, name: &str, flush: FlushLog) -> Result<DropReport> {
        self.0.catalog.truncate_table(name, durable(flush))
    }

    /// Returns the present trees of a table.
    ///
    /// # Errors
    /// There is no table of this name.
    pub fn trees(&self, name: &str) -> Result<Trees> {
        Ok(Trees::of(&*self.0.catalog.table(name)?))
    }

    /// Adds pages without bytes to the pool, of a tablespace with this id, which the catalog must not reach: their
    /// descriptors and their entries in the page table are real, and their memory is never touched.
    ///
    /// # Errors
    /// The pages do not fit in the pool.
    pub fn add_bookkeeping_pages(&self, space: SpaceId, pages: u64) -> Result<()> {
        let space = self.0.pool.attach(space, Durability::Temporary);
        (0..pages).try_for_each(|page| self.0.pool.pretend(&space, PageNo(page as u32)))
    }

    /// Returns the numbers of pages in the pool and of dirty ones; pages of dropped tables are not counted.
    pub fn pages_in_pool(&self) -> [u64; 2] {
        let occupancy = self.0.pool.occupancy();
        [(occupancy.frames - occupancy.free - occupancy.dropped) as u64, occupancy.dirty as u64]
    }

    /// Writes every dirty page.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn flush_all(&self) -> Result<()> {
        self.0.pool.flush_all()
    }

    /// Returns the number of pages in use by a tree, including map pages. Reads every map page.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn pages_in_use(&self, tree: &Tree) -> Result<usize> {
        Ok(tablespace::pages_in_use(&self.0.pool, tree.space())?.len())
    }
}
