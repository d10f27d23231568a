//! DDL statements.
//!
//! **Purpose.** Create, drop, truncate, rename, swap; add and drop secondary trees. Each is atomic across a crash, as
//! all changes of the [catalog](super) are.
//!
//! **Invariants.** New tablespaces cannot be found before their record is committed (test:
//! `a_table_is_not_visible_before_it_is_complete`), with the durability that `flush_log_at_trx_commit` demands; old
//! ones are detached after their drop is committed in the same way (test: `a_drop_that_fails_has_touched_nothing`).
//! Dropped and replaced tables and trees are freed in the background ([`Catalog::free_step`]) (test:
//! `retired_tables_are_freed_in_the_background_once_unreferenced`): the work of a drop does not depend on the size or
//! the indexes of the table (test: `the_work_of_a_drop_depends_on_nothing`).

use core::time::Duration;
use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::{
    ddl_options::DdlOptions,
    key::KeySpec,
    names::{MetadataLock, Names, check_name, name_limit},
    pause::Pause,
    record::{IndexRecord, TableRecord},
    retired::Retired,
    table::{Table, TableSchema},
};
use crate::{
    buffer::{BufferPool, Durability, Space, with_reserved_frames},
    error::{Result, SchemaError, UsageError},
    health::Health,
    ids::{Lsn, SpaceId},
    log::{FlushLog, LOG_OVERHEAD_BYTES, Record},
    mtr::Mtr,
    store::Tree,
    sync::{
        Arc, Closed, Gate, Mutex, Rank,
        atomic::{AtomicBool, Ordering::SeqCst},
        is_inside,
        work::{self, WorkCounts},
    },
    system::{Change, Key, SystemTree, TABLE},
    tree::hash::{HashBudget, TreeHash},
    txn::{EntryForm, StatementLock, Transactions, locks::TableMode},
};

/// A statement's list of up to this many trees is on the stack. Directly after many tables were freed, a request for
/// memory can cost glibc hundreds of microseconds.
const TREES_ON_STACK: usize = 64;

/// The definition of a new table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableDefinition {
    /// Application bytes to store with the table.
    pub metadata: Vec<u8>,
    /// The secondary trees of the table.
    pub indexes: Vec<IndexDefinition>,
}

/// The definition of a new secondary tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexDefinition {
    /// The name of the index.
    pub name: String,
    /// Whether no two rows may have the same key.
    pub unique: bool,
    /// The parts of the index key.
    pub key: KeySpec,
    /// How its entries come apart.
    pub form: EntryForm,
}

/// The result of a drop.
#[derive(Clone, Debug, Default)]
pub struct DropReport {
    /// The number of tablespaces that were dropped.
    pub trees: usize,
    /// The work of the calling thread, from the first access to the catalog to the last push.
    pub work: WorkCounts,
    /// The LSN after the drop's group in the log; `None` for a temporary table, because its drop is not logged.
    pub lsn: Option<Lsn>,
}

impl DropReport {
    /// Runs a statement that drops trees, and reports it with the work of this thread.
    pub(super) fn of(statement: impl FnOnce() -> Result<Dropped>) -> Result<Self> {
        let (dropped, work) = work::in_drop(statement);
        dropped.map(|Dropped { trees, lsn }| Self { trees, work, lsn })
    }
}

/// The tables and trees that a statement has dropped.
pub(super) struct Dropped {
    pub(super) trees: usize,
    /// The end of its group in the log.
    pub(super) lsn: Option<Lsn>,
}

/// A statement that is to be finished in memory: it is in the log, or row calls note for it what they change. If a
/// panic keeps it from being finished, the database is poisoned, because memory is not what it should be from then on.
#[derive(Debug)]
#[must_use = "the database is poisoned unless the statement is finished"]
pub(super) struct UnfinishedStatement<'a>(&'a Health);

impl UnfinishedStatement<'_> {
    /// Marks the statement as finished.
    pub(super) fn finished(self) {
        core::mem::forget(self);
    }
}

impl Drop for UnfinishedStatement<'_> {
    fn drop(&mut self) {
        self.0.poison("a statement was left unfinished");
    }
}

/// Tablespaces that a statement is filling; they are removed from the catalog's list when this is dropped.
#[derive(Debug)]
pub(super) struct SpacesBeingFilled<'a> {
    catalog: &'a Catalog,
    spaces: SmallVec<[SpaceId; 1]>,
}

impl Drop for SpacesBeingFilled<'_> {
    fn drop(&mut self) {
        let mut making = self.catalog.making.lock();
        for space in &self.spaces {
            let was_listed = making.remove(space);
            debug_assert!(was_listed, "tablespace {space} is being filled and was not listed");
        }
    }
}

/// The catalog of an open database.
#[derive(Debug)]
pub struct Catalog {
    pub(super) pool: Arc<BufferPool>,
    pub(super) system: Arc<SystemTree>,
    pub(super) transactions: Arc<Transactions>,
    pub(super) names: Names,
    /// Tables and trees that are to be freed in the background.
    pub(super) retired: Retired,
    budget: Arc<HashBudget>,
    /// Whether new trees get a hash index.
    hashed: AtomicBool,
    /// Tablespaces that statements are filling.
    making: Mutex<BTreeSet<SpaceId>>,
    /// Points within statements at which a test acts.
    pub pause: Pause,
}

pub(super) fn no_table(name: &str) -> SchemaError {
    SchemaError::NoTable(name.into())
}

/// Returns a tablespace that is attached to the pool only with its first page.
pub(super) fn new_space(id: SpaceId) -> Arc<Space> {
    Arc::new(Space::new(id, Durability::Logged))
}

pub(super) fn record_key(name: &str) -> Key {
    let mut key = Key::with_capacity(1 + name.len());
    key.push(TABLE);
    key.extend_from_slice(name.as_bytes());
    key
}

impl Catalog {
    /// Opens the catalog: reads all table records from the system tree. `attach` attaches a tablespace to the pool,
    /// with the recorded state of its file.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn open(
        pool: Arc<BufferPool>,
        system: Arc<SystemTree>,
        transactions: Arc<Transactions>,
        budget: Arc<HashBudget>,
        hashed: bool,
        attach: &mut dyn FnMut(SpaceId) -> Result<Arc<Space>>,
    ) -> Result<Self> {
        let names = Names::new(pool.context().env.clone());
        let catalog = Self {
            pool,
            system,
            transactions,
            names,
            retired: Retired::default(),
            budget,
            hashed: AtomicBool::new(hashed),
            making: Mutex::new(Rank::Leaf, BTreeSet::new()),
            pause: Pause::default(),
        };
        let mut failure = None;
        catalog.system.scan(&[TABLE], &mut |key, value| {
            let entered = catalog.enter(&key[1..], value, attach);
            failure = entered.err();
            failure.is_none()
        })?;
        failure.map_or(Ok(catalog), Err)
    }

    fn enter(
        &self,
        name: &[u8],
        value: &[u8],
        attach: &mut dyn FnMut(SpaceId) -> Result<Arc<Space>>,
    ) -> Result<()> {
        let name = core::str::from_utf8(name).ok();
        let (Some(name), Some(record)) = (name, TableRecord::decode(value)) else {
            return Err(self.system.damaged("a table's record is damaged"));
        };
        let schema = self.schema(record, attach)?;
        if self.names.enter(name, Table::new(schema, self.hashed.load(SeqCst))) {
            return Ok(());
        }
        Err(self.system.damaged(&format!("two records have the name {name}")))
    }

    pub(super) fn schema(
        &self,
        record: TableRecord,
        attach: &mut dyn FnMut(SpaceId) -> Result<Arc<Space>>,
    ) -> Result<TableSchema> {
        let clustered = self.tree(attach(record.clustered)?);
        let secondaries =
            record.indexes.iter().map(|index| Ok(self.tree(attach(index.space)?))).collect::<Result<_>>()?;
        Ok(TableSchema { record, clustered, secondaries, row_log: None })
    }

    /// Returns the tree of a table in this tablespace.
    pub(super) fn tree(&self, space: Arc<Space>) -> Arc<Tree> {
        let tree = Tree::new(self.pool.clone(), space, TreeHash::new(self.budget.clone()));
        Arc::new(tree.with_horizon(self.transactions.active().clone()))
    }

    /// Turns the hash indexes of all present and future tables on or off. A session's temporary tables stay as they
    /// are.
    pub fn set_hash_index(&self, on: bool) {
        self.hashed.store(on, SeqCst);
        for (_, table) in self.tables() {
            table.set_hash_index(on);
        }
    }

    /// A background step: frees some of the tables and trees that statements have retired. Returns whether there may be
    /// more.
    pub fn free_step(&self) -> bool {
        self.retired.free_step()
    }

    /// Returns the number of tables.
    pub fn count(&self) -> usize {
        self.names.count()
    }

    /// Returns the maximum length of the name of a table or an index, in bytes.
    pub fn name_limit(&self) -> usize {
        name_limit(self.pool.page_size())
    }

    fn check_name(&self, name: &str) -> Result<()> {
        check_name(name, self.pool.page_size())
    }

    /// Refuses an index definition that is invalid for any table.
    pub(super) fn check_index(&self, index: &IndexDefinition) -> Result<()> {
        self.check_name(&index.name)?;
        index.key.check_for(index.form, &index.name)
    }

    /// Returns the table of this name.
    ///
    /// # Errors
    /// [`SchemaError::NoTable`].
    pub fn table(&self, name: &str) -> Result<Arc<Table>> {
        self.names.get(name).ok_or_else(|| no_table(name).into())
    }

    /// Returns all names and tables, in order of name.
    pub fn tables(&self) -> Vec<(Arc<str>, Arc<Table>)> {
        self.names.all()
    }

    /// Refuses a statement from within a row call, because the statement might wait for that call.
    ///
    /// # Errors
    /// [`UsageError::StatementInCall`].
    pub fn check_outside() -> Result<()> {
        if !is_inside() {
            return Ok(());
        }
        Err(UsageError::StatementInCall.into())
    }

    pub(super) fn lock_names<'a>(
        &'a self,
        names: &[&'a str],
        options: DdlOptions,
    ) -> Result<MetadataLock<'a>> {
        Self::check_outside()?;
        Ok(self.names.lock_names(names, options.until)?)
    }

    /// Runs something on a table while no statement and no row call uses the table. Returns `None` if there is no table
    /// of this name.
    pub fn alone<T>(&self, name: &str, run: impl FnOnce(&Table) -> T) -> Option<T> {
        let metadata_lock = self.names.lock_names(&[name], None).expect("it waits as long as it takes");
        let table = metadata_lock.table(name)?;
        let _closed = table.gate().close();
        Some(run(table))
    }

    /// Closes the gates of tables under this statement's metadata lock, while no transaction has locked any of them.
    /// The returned locks block transactions that request locks on these tables.
    ///
    /// The names remain visible during a wait. In the common case there is no such transaction, and the only cost is a
    /// check.
    fn close_gates<'c, 't>(
        &'c self,
        metadata_lock: &MetadataLock<'_>,
        tables: &[&'t Table],
        options: DdlOptions,
    ) -> Result<(SmallVec<[Closed<'t>; 1]>, Option<StatementLock<'c>>)> {
        let mut lock = None;
        loop {
            if lock.is_none() {
                lock = self.lock_out(metadata_lock, tables, options)?;
            }
            let closed = Gate::close_all(tables.iter().map(|table| table.gate()));
            assert!(closed.len() == tables.len(), "a table's gate is not closed");
            debug_assert!(
                closed.iter().zip(tables).all(|(closed, table)| closed.is_of(table.gate())),
                "a closed gate is that of another table"
            );
            // A transaction that has locked one since the check has changed something, or is about to.
            if lock.is_some() || !self.are_locked(tables) {
                return Ok((closed, lock));
            }
        }
    }

    /// Returns whether transactions have locked any of these tables.
    fn are_locked(&self, tables: &[&Table]) -> bool {
        let locks = self.transactions.lock_manager();
        locks.is_any_table_locked(tables.iter().map(|table| table.space()))
    }

    /// Waits for the transactions that have locked tables under this statement's metadata lock, and then locks these
    /// tables exclusively. Returns `None` if there are none.
    fn lock_out<'c>(
        &'c self,
        metadata_lock: &MetadataLock<'_>,
        tables: &[&Table],
        options: DdlOptions,
    ) -> Result<Option<StatementLock<'c>>> {
        if !self.are_locked(tables) {
            return Ok(None);
        }
        metadata_lock.downgrade();
        let spaces = tables.iter().map(|table| table.space());
        let lock = self.transactions.lock_tables(spaces, TableMode::Exclusive, self.wait_left(options))?;
        metadata_lock.upgrade();
        Ok(Some(lock))
    }

    /// Returns how long a statement may still wait for transactions.
    pub(super) fn wait_left(&self, options: DdlOptions) -> Duration {
        let left = options.until.map(|until| until.saturating_sub(self.pool.context().env.now()));
        left.unwrap_or_else(|| self.transactions.lock_wait())
    }

    /// Records that a statement is filling these tablespaces, which no record names, until the returned value is
    /// dropped. By then they are named or dropped.
    pub(super) fn make(&self, spaces: impl IntoIterator<Item = SpaceId>) -> SpacesBeingFilled<'_> {
        let spaces: SmallVec<[SpaceId; 1]> = spaces.into_iter().collect();
        let mut making = self.making.lock();
        for space in &spaces {
            let is_new = making.insert(*space);
            debug_assert!(is_new, "two statements fill one tablespace");
        }
        drop(making);
        SpacesBeingFilled { catalog: self, spaces }
    }

    /// Returns the tablespaces that statements are filling.
    pub fn making(&self) -> BTreeSet<SpaceId> {
        self.making.lock().clone()
    }

    pub(super) fn unfinished_statement(&self) -> UnfinishedStatement<'_> {
        UnfinishedStatement(&self.pool.context().health)
    }

    /// Changes records as one group, together with the drop record of `dropped`, and waits for the log.
    pub(super) fn change(
        &self,
        changes: &mut [Change],
        dropped: &[SpaceId],
        mode: FlushLog,
    ) -> Result<(Option<Lsn>, UnfinishedStatement<'_>)> {
        let log = &self.pool.context().log;
        // All of it is one group: whether it fits must be known before the first page is changed.
        let dropping = size_of_val(dropped) + 1 + size_of::<u64>();
        let bytes = changes.iter().map(Change::log_bytes).sum::<usize>() + dropping;
        if bytes > log.max_group() {
            let (tables, limit) = (changes.len(), log.max_group());
            return Err(UsageError::StatementTooLong { tables, bytes, limit }.into());
        }
        let bytes = bytes as u64 + LOG_OVERHEAD_BYTES;
        let _room = if dropped.is_empty() {
            log.admit(bytes)?
        } else {
            // A drop frees space on disk and in the log: it waits for no space, and is not refused for lack of it.
            log.admit_freeing(bytes)?
        };
        let mut mtr = Mtr::begin(&self.pool)?;
        if dropped.is_empty() {
            self.system.change(&mut mtr, changes)?;
        } else {
            with_reserved_frames(|| self.system.change(&mut mtr, changes))?;
        }
        if !dropped.is_empty() {
            mtr.record(&Record::Drop { spaces: dropped.into() });
        }
        debug_assert!(mtr.logged() as u64 <= bytes, "a statement logs more than it has reserved");
        let end = mtr.commit()?;
        // Logged but not yet durable: tests run background steps here, to find any that should have waited for
        // durability.
        self.pool.context().env.yield_point();
        self.pool.context().log.await_flush(end, mode)?;
        Ok((end, self.unfinished_statement()))
    }

    fn new_record(&self, definition: &TableDefinition) -> Result<TableRecord> {
        let mut indexes = Vec::with_capacity(definition.indexes.len());
        for (n, index) in definition.indexes.iter().enumerate() {
            self.check_index(index)?;
            if definition.indexes[..n].iter().any(|other| other.name == index.name) {
                let (table, index) = ("the new table".into(), index.name.as_str().into());
                return Err(SchemaError::IndexExists { table, index }.into());
            }
            indexes.push(self.new_index(index)?);
        }
        let clustered = self.transactions.ids().space()?;
        Ok(TableRecord {
            id: clustered.0,
            version: 1,
            clustered,
            metadata: definition.metadata.clone(),
            indexes,
        })
    }

    /// Refuses a definition if its record, which has this length, does not fit in the system tree.
    pub(super) fn check_length(&self, table: &str, length: usize) -> Result<()> {
        let limit = self.system.tree().inline_limit();
        if length <= limit {
            return Ok(());
        }
        Err(UsageError::DefinitionTooLong { table: table.into(), length, limit }.into())
    }

    pub(super) fn new_index(&self, index: &IndexDefinition) -> Result<IndexRecord> {
        Ok(IndexRecord {
            name: index.name.as_str().into(),
            space: self.transactions.ids().space()?,
            unique: index.unique,
            form: index.form,
            key: index.key.clone(),
        })
    }

    /// Takes the metadata lock on the name of a new table, and makes its record. Also returns the record's stored form.
    pub(super) fn lock_new_name<'a>(
        &'a self,
        name: &'a str,
        definition: &TableDefinition,
        options: DdlOptions,
    ) -> Result<(MetadataLock<'a>, TableRecord, Vec<u8>)> {
        self.check_name(name)?;
        let metadata_lock = self.lock_names(&[name], options)?;
        if metadata_lock.table(name).is_some() {
            return Err(SchemaError::TableExists(name.into()).into());
        }
        let record = self.new_record(definition)?;
        let encoded = record.encode();
        self.check_length(name, encoded.len())?;
        Ok((metadata_lock, record, encoded))
    }

    /// Commits the record of a new table, and makes its name visible.
    pub(super) fn publish(
        &self,
        mut metadata_lock: MetadataLock<'_>,
        name: &str,
        schema: TableSchema,
        record: Vec<u8>,
        mode: FlushLog,
    ) -> Result<Arc<Table>> {
        assert!(metadata_lock.table(name).is_none(), "the name of a new table has no table yet");
        debug_assert!(
            schema.trees().all(|tree| !tree.space().is_dropped()),
            "a tree was dropped before its table had a name"
        );
        debug_assert!(
            TableRecord::decode(&record).as_ref() == Some(&schema.record),
            "the record of {name} would be read back as another one"
        );
        let created_at = self.transactions.stamp()?;
        schema.trees().for_each(|tree| tree.space().set_created_at(created_at));
        let (_, statement) = self.change(&mut [Change::put(record_key(name), record)], &[], mode)?;
        let hashed = self.hashed.load(SeqCst);
        let table = Table::new(schema, hashed);
        self.pause.pass();
        metadata_lock.set(name, Some(table.clone()));
        drop(metadata_lock);
        statement.finished();
        // A switch of all tables did not find this one, because it was not visible yet.
        let now = self.hashed.load(SeqCst);
        if now != hashed {
            table.set_hash_index(now);
        }
        Ok(table)
    }

    /// Creates an empty table. It has no page and no file until it has a row.
    ///
    /// # Errors
    /// [`SchemaError`] for the name; errors of the log.
    pub fn create_table(
        &self,
        name: &str,
        definition: &TableDefinition,
        options: DdlOptions,
    ) -> Result<Arc<Table>> {
        let (metadata_lock, record, encoded) = self.lock_new_name(name, definition, options)?;
        let schema = self.schema(record, &mut |space| Ok(new_space(space)))?;
        self.publish(metadata_lock, name, schema, encoded, options.flush)
    }

    /// Drops tables as one step: all of them or, if one does not exist, none.
    ///
    /// # Errors
    /// [`SchemaError::NoTable`]; errors of the log.
    pub fn drop_tables(&self, names: &[&str], options: DdlOptions) -> Result<DropReport> {
        DropReport::of(|| self.try_drop_tables(names, options))
    }

    fn try_drop_tables(&self, names: &[&str], options: DdlOptions) -> Result<Dropped> {
        let metadata_lock = self.lock_names(names, options)?;
        if let Some((name, _)) = metadata_lock.tables().find(|(_, table)| table.is_none()) {
            return Err(no_table(name).into());
        }
        self.drop_locked(metadata_lock, options)
    }

    /// Drops the tables of the locked names, of which each has one.
    pub(super) fn drop_locked(
        &self,
        metadata_lock: MetadataLock<'_>,
        options: DdlOptions,
    ) -> Result<Dropped> {
        let tables = || metadata_lock.tables().filter_map(|(_, table)| table);
        // The lists have their final capacity: the work per table of a group does not depend on the number of tables.
        let mut all = SmallVec::<[&Table; 1]>::with_capacity(metadata_lock.tables().count());
        all.extend(tables().map(|table| &**table));
        let (closed, lock) = self.close_gates(&metadata_lock, &all, options)?;
        let schemas = || all.iter().zip(&closed).map(|(table, closed)| table.closed_schema(closed));
        let trees = || schemas().flat_map(TableSchema::trees);
        let mut ids = SmallVec::<[SpaceId; TREES_ON_STACK]>::with_capacity(
            schemas().map(|schema| 1 + schema.secondaries.len()).sum(),
        );
        trees().for_each(|tree| ids.push(tree.space().id()));
        let mut changes = SmallVec::<[Change; 1]>::with_capacity(all.len());
        changes.extend(metadata_lock.tables().map(|(name, _)| Change::remove(record_key(name))));
        assert!(changes.len() == all.len(), "a drop removes one record per table");
        // If this fails, nothing has changed, or the database is poisoned.
        let (lsn, statement) = self.change(&mut changes, &ids, options.flush)?;
        trees().for_each(|tree| self.detach(tree, lsn));
        debug_assert!(trees().all(|tree| tree.space().is_dropped()), "a tree of a dropped table is in use");
        tables().for_each(|table| table.gate().close_permanently());
        tables().for_each(|table| table.restart_counters());
        drop((closed, all));
        metadata_lock.remove_tables(|table| self.retired.table(table));
        // A transaction that waits for the table then finds it dropped.
        drop(lock);
        statement.finished();
        Ok(Dropped { trees: ids.len(), lsn })
    }

    /// Truncates a table: it gets new tablespaces, and the old ones are dropped.
    ///
    /// # Errors
    /// [`SchemaError::NoTable`]; errors of the log.
    pub fn truncate_table(&self, name: &str, options: DdlOptions) -> Result<DropReport> {
        DropReport::of(|| {
            let metadata_lock = self.lock_table(name, options)?;
            self.truncate_locked(&metadata_lock, options)
        })
    }

    /// Takes the metadata lock on the name of a table that exists.
    fn lock_table<'a>(&'a self, name: &'a str, options: DdlOptions) -> Result<MetadataLock<'a>> {
        let metadata_lock = self.lock_names(&[name], options)?;
        if metadata_lock.table(name).is_none() {
            return Err(no_table(name).into());
        }
        Ok(metadata_lock)
    }

    /// Truncates the tables of the locked names, of which each has one.
    pub(super) fn truncate_locked(
        &self,
        metadata_lock: &MetadataLock<'_>,
        options: DdlOptions,
    ) -> Result<Dropped> {
        self.change_schemas(metadata_lock, options, |record| {
            record.clustered = self.transactions.ids().space()?;
            for index in &mut record.indexes {
                index.space = self.transactions.ids().space()?;
            }
            Ok(())
        })
    }

    /// Changes the records of the tables of the locked names while their gates are closed. Trees that a record no
    /// longer names are dropped; trees that it newly names are empty.
    fn change_schemas(
        &self,
        metadata_lock: &MetadataLock<'_>,
        options: DdlOptions,
        change: impl Fn(&mut TableRecord) -> Result<()>,
    ) -> Result<Dropped> {
        let named = || metadata_lock.tables().filter_map(|(name, table)| Some((name, table?)));
        let count = named().count();
        // The metadata lock keeps other statements away: the definitions do not change.
        let mut records = SmallVec::<[TableRecord; 1]>::with_capacity(count);
        for (_, table) in named() {
            let mut record = table.with_schema(|schema| schema.record.clone());
            change(&mut record)?;
            record.version += 1;
            records.push(record);
        }
        let mut all = SmallVec::<[&Table; 1]>::with_capacity(count);
        all.extend(named().map(|(_, table)| &**table));
        let (mut closed, _lock) = self.close_gates(metadata_lock, &all, options)?;
        let mut dropped = SmallVec::<[SpaceId; TREES_ON_STACK]>::new();
        for ((table, closed), record) in all.iter().zip(&closed).zip(&records) {
            let schema = table.closed_schema(closed);
            assert!(record.id == schema.record.id, "a table has the same id as long as it exists");
            assert!(record.version != schema.record.version, "a definition that changes has a new version");
            dropped.extend(schema.spaces().filter(|id| !record.names(*id)));
        }
        let created_at = self.transactions.stamp()?;
        let mut changes = SmallVec::<[Change; 1]>::with_capacity(count);
        let encoded = |((name, _), record): ((&str, _), &TableRecord)| (record_key(name), record.encode());
        changes.extend(named().zip(&records).map(encoded).map(|(key, value)| Change::put(key, value)));
        let (lsn, statement) = self.change(&mut changes, &dropped, options.flush)?;
        self.pause.pass();
        for ((table, closed), record) in all.into_iter().zip(&mut closed).zip(records) {
            let schema = table.closed_schema(closed);
            let kept = |id| schema.trees().find(|tree| tree.space().id() == id).cloned();
            let new = |id| {
                let tree = self.tree(new_space(id));
                tree.space().set_created_at(created_at);
                tree
            };
            let tree = |id| kept(id).unwrap_or_else(|| new(id));
            let clustered = tree(record.clustered);
            let secondaries = record.indexes.iter().map(|index| tree(index.space)).collect();
            // Detached before it leaves the table schema: until it is dropped it belongs to the table.
            let unnamed = |tree: &&Arc<Tree>| !record.names(tree.space().id());
            schema.trees().filter(unnamed).for_each(|tree| self.detach(tree, lsn));
            let schema = TableSchema { record, clustered, secondaries, row_log: None };
            assert!(
                schema.trees().all(|tree| !tree.space().is_dropped()),
                "a table gets a tree that was dropped"
            );
            self.retired.schema(table.change_schema(closed, schema));
        }
        statement.finished();
        Ok(Dropped { trees: dropped.len(), lsn })
    }

    /// Renames a table.
    ///
    /// # Errors
    /// [`SchemaError`] for the names; errors of the log.
    pub fn rename_table(&self, from: &str, to: &str, options: DdlOptions) -> Result<()> {
        self.check_name(to)?;
        let mut metadata_lock = self.lock_names(&[from, to], options)?;
        let table = metadata_lock.table(from).ok_or_else(|| no_table(from))?.clone();
        if metadata_lock.table(to).is_some() {
            return Err(SchemaError::TableExists(to.into()).into());
        }
        let _lock = self.lock_out(&metadata_lock, &[&*table], options)?;
        let record = table.with_schema(|schema| schema.record.encode());
        let mut changes = [Change::remove(record_key(from)), Change::put(record_key(to), record)];
        metadata_lock.begin_rename();
        let (_, statement) = self.change(&mut changes, &[], options.flush)?;
        metadata_lock.set(from, None);
        metadata_lock.set_moved(to, table);
        drop(metadata_lock);
        statement.finished();
        Ok(())
    }

    /// Swaps the names of two tables, as one step.
    ///
    /// # Errors
    /// [`SchemaError::NoTable`]; errors of the log.
    pub fn swap_tables(&self, a: &str, b: &str, options: DdlOptions) -> Result<()> {
        let mut metadata_lock = self.lock_names(&[a, b], options)?;
        let table_a = metadata_lock.table(a).ok_or_else(|| no_table(a))?.clone();
        let table_b = metadata_lock.table(b).ok_or_else(|| no_table(b))?.clone();
        if a == b {
            return Ok(());
        }
        let _lock = self.lock_out(&metadata_lock, &[&*table_a, &*table_b], options)?;
        assert!(!Arc::ptr_eq(&table_a, &table_b), "a table has one name");
        let put = |name: &str, table: &Table| {
            Change::put(record_key(name), table.with_schema(|schema| schema.record.encode()))
        };
        metadata_lock.begin_rename();
        let (_, statement) = self.change(&mut [put(a, &table_b), put(b, &table_a)], &[], options.flush)?;
        metadata_lock.set_moved(a, table_b);
        metadata_lock.set_moved(b, table_a);
        drop(metadata_lock);
        statement.finished();
        Ok(())
    }

    /// Drops a secondary tree.
    ///
    /// # Errors
    /// [`SchemaError`] for the names; errors of the log.
    pub fn drop_index(&self, name: &str, index: &str, options: DdlOptions) -> Result<DropReport> {
        DropReport::of(|| {
            let metadata_lock = self.lock_table(name, options)?;
            self.change_schemas(&metadata_lock, options, |record| {
                let place = record.indexes.iter().position(|other| *other.name == *index);
                let missing = || SchemaError::NoIndex { table: name.into(), index: index.into() };
                record.indexes.remove(place.ok_or_else(missing)?);
                Ok(())
            })
        })
    }

    /// Drops trees that no record has ever named.
    pub(super) fn discard(&self, trees: &[&Arc<Tree>]) -> Result<()> {
        let spaces: Vec<SpaceId> = trees.iter().map(|tree| tree.space().id()).collect();
        let _room =
            self.pool.context().log.admit_freeing(LOG_OVERHEAD_BYTES + size_of_val(&spaces[..]) as u64)?;
        let mut mtr = Mtr::begin(&self.pool)?;
        mtr.record(&Record::Drop { spaces: spaces.into() });
        let end = mtr.commit()?;
        for tree in trees {
            self.detach(tree, end);
        }
        Ok(())
    }

    /// Detaches the tablespace of a tree from the pool, once its drop is logged.
    fn detach(&self, tree: &Tree, lsn: Option<Lsn>) {
        let is_first = self.pool.detach(tree.space(), lsn);
        debug_assert!(is_first, "tablespace {} is dropped twice", tree.space().id());
    }

    /// Makes a table without a name or a record. It exists as long as its owner holds it.
    ///
    /// # Errors
    /// [`SchemaError`] for the names of its indexes.
    pub fn temporary_table(&self, definition: &TableDefinition) -> Result<Arc<Table>> {
        let record = self.new_record(definition)?;
        let space = &mut |id| Ok(Arc::new(Space::new(id, Durability::Temporary)));
        let schema = self.schema(record, space)?;
        Ok(Table::new(schema, self.hashed.load(SeqCst)))
    }

    /// Drops a temporary table: no record, no log. The first call passes it to the background to be freed; each call
    /// waits for the calls on the table that are in progress.
    pub fn drop_temporary(&self, table: &Arc<Table>) -> DropReport {
        let (trees, work) = work::in_drop(|| {
            table.gate().close_permanently();
            let (trees, dropped) = table.with_schema(|schema| {
                let detach = |tree: &Arc<Tree>| self.pool.detach(tree.space(), None);
                (schema.trees().count(), schema.trees().map(detach).fold(false, core::ops::BitOr::bitor))
            });
            if dropped {
                table.restart_counters();
                self.retired.table(table.clone());
            }
            trees
        });
        DropReport { trees, work, lsn: None }
    }
}
