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
    filled::Filled,
    group::{DdlStatement, TableChanges},
    names::MetadataLock,
    plan::{Closing, Plan},
    record::{Metadata, TableRecord},
    state::{Catalog, new_space, no_table, record_key},
    statement::{DropReport, Dropped},
    table::{Table, TableSchema},
};
use crate::{
    error::{Result, SchemaError},
    sync::{Arc, atomic::Ordering::SeqCst},
    system::Change,
};

impl Catalog {
    /// Takes the metadata lock on the name of a new table, makes its record, and writes long metadata. Also returns the
    /// record's stored form.
    pub(super) fn lock_new_name<'a>(
        &'a self,
        name: &'a str,
        definition: &TableDefinition,
        filled: &mut Filled<'_>,
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
        if let Metadata::Long(space) = record.metadata {
            // Lookups need not wait until it is written: they find no table before the end.
            metadata_lock.downgrade();
            filled.write_metadata(space, &definition.metadata)?;
        }
        Ok((metadata_lock, record, encoded))
    }

    /// Commits the record of a new table, and makes its name visible.
    pub(super) fn publish_table(
        &self,
        mut metadata_lock: MetadataLock<'_>,
        name: &str,
        schema: TableSchema,
        record: Vec<u8>,
        options: DdlOptions,
    ) -> Result<Arc<Table>> {
        assert!(
            metadata_lock.tables().map(|(name, table)| (name, table.is_none())).eq([(name, true)]),
            "the name of a new table is locked, and has no table yet"
        );
        debug_assert!(
            TableRecord::decode(&record).as_ref() == Some(&schema.record),
            "the record of {name} would be read back as another one"
        );
        let created = [self.new_table(schema)];
        let records = &mut [Change::put(record_key(name), record)];
        let plan = Plan { created: &created, records, ..Plan::default() };
        let done = self.carry_out(&metadata_lock, plan, options)?;
        metadata_lock.set_all(created.iter().cloned().map(Some));
        self.publish(metadata_lock, done, &created);
        let [table] = created;
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
        let mut filled = Filled::new(self);
        let (metadata_lock, record, encoded) = self.lock_new_name(name, definition, &mut filled, options)?;
        let space = &mut |id| Ok(filled.space(id).unwrap_or_else(|| new_space(id)));
        let schema = self.schema(record, space)?;
        let table = self.publish_table(metadata_lock, name, schema, encoded, options)?;
        filled.named();
        Ok(table)
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
        mut metadata_lock: MetadataLock<'_>,
        options: DdlOptions,
    ) -> Result<Dropped> {
        let done = {
            // The lists have their final capacity: the work per table does not depend on the number of tables.
            let count = metadata_lock.tables().count();
            let mut closing = SmallVec::<[Closing<'_>; 1]>::with_capacity(count);
            let mut records = SmallVec::<[Change; 1]>::with_capacity(count);
            for (name, table) in metadata_lock.tables() {
                let table = table.expect("a statement drops tables that exist");
                closing.push(Closing { table, record: None });
                records.push(Change::remove(record_key(name)));
            }
            let plan = Plan { closing: &mut closing, records: &mut records, ..Plan::default() };
            self.carry_out(&metadata_lock, plan, options)?
        };
        metadata_lock.set_all_unused();
        Ok(self.publish(metadata_lock, done, &[]))
    }

    /// Truncates a table: it gets new tablespaces, and the old ones are dropped.
    ///
    /// # Errors
    /// [`SchemaError::NoTable`]; errors of the log.
    pub fn truncate_table(&self, name: &str, options: DdlOptions) -> Result<DropReport> {
        DropReport::of(|| {
            let metadata_lock = self.lock_names(&[name], options)?;
            if metadata_lock.table(name).is_none() {
                return Err(no_table(name).into());
            }
            self.truncate_locked(metadata_lock, options)
        })
    }

    /// Truncates the tables of the locked names, of which each has one.
    pub(super) fn truncate_locked(
        &self,
        metadata_lock: MetadataLock<'_>,
        options: DdlOptions,
    ) -> Result<Dropped> {
        let done = {
            let count = metadata_lock.tables().count();
            let mut closing = SmallVec::<[Closing<'_>; 1]>::with_capacity(count);
            let mut records = SmallVec::<[Change; 1]>::with_capacity(count);
            for (name, table) in metadata_lock.tables() {
                let table = table.expect("a statement truncates tables that exist");
                // The metadata lock keeps other statements away: the definitions do not change.
                let mut record = table.with_schema(|schema| schema.record.clone());
                record.version += 1;
                self.renew_trees(&mut record)?;
                records.push(Change::put(record_key(name), record.encode()));
                closing.push(Closing { table, record: Some(Box::new(record)) });
            }
            let plan = Plan { closing: &mut closing, records: &mut records, ..Plan::default() };
            self.carry_out(&metadata_lock, plan, options)?
        };
        Ok(self.publish(metadata_lock, done, &[]))
    }

    /// Gives the trees of a record new tablespaces.
    pub(super) fn renew_trees(&self, record: &mut TableRecord) -> Result<()> {
        record.clustered = self.transactions.ids().space()?;
        for index in &mut record.indexes {
            index.space = self.transactions.ids().space()?;
        }
        Ok(())
    }

    /// Renames a table.
    ///
    /// # Errors
    /// [`SchemaError`] for the names; errors of the log.
    pub fn rename_table(&self, from: &str, to: &str, options: DdlOptions) -> Result<()> {
        self.run(DdlStatement::Rename { from: from.into(), to: to.into() }, options).map(drop)
    }

    /// Swaps the names of two tables, as one step.
    ///
    /// # Errors
    /// [`SchemaError::NoTable`]; errors of the log.
    pub fn swap_tables(&self, a: &str, b: &str, options: DdlOptions) -> Result<()> {
        self.run(DdlStatement::Swap { a: a.into(), b: b.into() }, options).map(drop)
    }

    /// Drops a secondary tree.
    ///
    /// # Errors
    /// [`SchemaError`] for the names; errors of the log.
    pub fn drop_index(&self, name: &str, index: &str, options: DdlOptions) -> Result<DropReport> {
        let changes = TableChanges { drop_indexes: vec![index.into()], ..TableChanges::default() };
        self.run(DdlStatement::Alter { name: name.into(), changes }, options)
    }

    /// Makes a table of a schema, with hash indexes if new trees get them.
    pub(super) fn new_table(&self, schema: TableSchema) -> Arc<Table> {
        Table::new(schema, self.hashed.load(SeqCst))
    }
}
