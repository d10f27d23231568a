//! DDL statements.
//!
//! **Purpose.** Create, drop, truncate, rename, swap; drop secondary trees. Each is atomic across a crash, as all
//! changes of the [catalog](super) are. [`statement`](super::statement) has the steps that they share.
//!
//! **Invariants.** New tablespaces cannot be found before their record is committed (test:
//! `a_table_is_not_visible_before_it_is_complete`), with the durability that `flush_log_at_trx_commit` demands; old
//! ones are detached after their drop is committed in the same way (test: `a_drop_that_fails_has_touched_nothing`).
//! Dropped and replaced tables and trees are freed in the background ([`Catalog::free_step`]) (test:
//! `retired_tables_are_freed_in_the_background_once_unreferenced`): the work of a drop does not depend on the size or
//! the indexes of the table (test: `the_work_of_a_drop_depends_on_nothing`).

use smallvec::SmallVec;

use super::{
    ddl_options::DdlOptions,
    definition::TableDefinition,
    names::MetadataLock,
    record::TableRecord,
    state::{Catalog, new_space, no_table, record_key},
    statement::{DropReport, Dropped, TREES_ON_STACK},
    table::{Table, TableSchema},
};
use crate::{
    buffer::{Durability, Space},
    error::{Result, SchemaError},
    ids::SpaceId,
    log::FlushLog,
    store::Tree,
    sync::{Arc, atomic::Ordering::SeqCst, work},
    system::Change,
};

impl Catalog {
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
