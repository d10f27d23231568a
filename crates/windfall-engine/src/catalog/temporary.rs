//! Temporary tables, which have neither a name nor a record.
//!
//! **Purpose.** A temporary table exists as long as its owner holds it. Of its statements, only the allocation of
//! tablespace ids is logged.
//!
//! **Invariants.** The owner runs one statement on its table at a time, except that several threads may drop it
//! (checked by `sync/gate.rs::begin_to_close`). A truncation replaces all trees while the gate is closed, so a call
//! finds the rows of before or none (test: `calls_on_a_temporary_table_go_on_while_it_is_truncated`), and a transaction
//! has nothing to roll back in the trees that were dropped (test:
//! `a_temporary_table_without_a_session_is_renamed_truncated_and_dropped`). A load owns the trees that it fills, and
//! the owner may run other statements until it finishes the load; after one that changes the table, the load is refused
//! (test: `a_load_of_a_temporary_table_owns_what_it_needs`). A statement that fails has changed nothing, and leaves
//! none of its trees (test: `a_temporary_table_is_altered_as_a_whole_or_not_at_all`). A new index has the entry of each
//! row, and no undo that is still to be rolled back concerns a row (test:
//! `a_temporary_table_is_altered_as_a_whole_or_not_at_all`).

use core::{cell::RefCell, fmt, ops::Deref};
use std::panic::resume_unwind;

use super::{
    auto_increment::Counter,
    definition::{IndexDefinition, TableDefinition},
    entry_maker::{EntryMaker, readings_of},
    group::TableChanges,
    index_build::{MakeEntryOf, function_of},
    key,
    plan::Closing,
    record::{IndexRecord, Metadata, TableRecord},
    runs::{EntryTail, Runs},
    state::Catalog,
    statement::{DropReport, Dropped},
    table::{Table, TableSchema},
    table_load::{LoadLimits, LoadedValue, TableLoader, fill_secondary},
};
use crate::{
    buffer::{Durability, Space},
    error::{Error, Owner, Result, SchemaError, UsageError},
    ids::SpaceId,
    row::FieldSet,
    store::Tree,
    sync::{Arc, Phase, ReportedWork, work},
    tablespace::{self, CounterKind},
    tree::Seek,
    txn::{EntryForm, SuppliedChange, mvcc::value},
};

/// New trees of a temporary table, which are dropped with this unless the table has got them.
struct NewTrees<C: Deref<Target = Catalog>> {
    catalog: C,
    trees: Vec<Arc<Tree>>,
}

impl<C: Deref<Target = Catalog>> NewTrees<C> {
    fn spaces(&self) -> Vec<Arc<Space>> {
        self.trees.iter().map(|tree| tree.space().clone()).collect()
    }

    /// The table has them.
    fn named(mut self) {
        self.trees.clear();
    }
}

impl<C: Deref<Target = Catalog>> Drop for NewTrees<C> {
    fn drop(&mut self) {
        self.trees.iter().for_each(|tree| self.catalog.detach(tree, None));
    }
}

fn new_space(id: SpaceId) -> Arc<Space> {
    Arc::new(Space::new(id, Durability::Temporary))
}

/// A load of rows into an empty temporary table. What was pushed is discarded unless the load is finished.
#[must_use = "the rows are discarded unless the load is finished"]
pub struct TemporaryLoad {
    name: Arc<str>,
    table: Arc<Table>,
    /// The record that the table gets.
    record: TableRecord,
    loader: TableLoader,
    new: NewTrees<Arc<Catalog>>,
}

impl fmt::Debug for TemporaryLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TemporaryLoad({}, {} rows)", self.name, self.loader.rows())
    }
}

impl TemporaryLoad {
    /// Adds a row, with the entries that the caller supplies.
    ///
    /// # Errors
    /// As [`TableLoad::push`](super::TableLoad::push).
    pub fn push(
        &mut self,
        key: Vec<u8>,
        value: LoadedValue<'_>,
        supplied: Option<&[SuppliedChange<'_>]>,
    ) -> Result<()> {
        self.loader.push(key, value, supplied)
    }

    /// Gives the rows to the table, which the caller owns and which has this name now. Waits for the calls on the table
    /// that are in progress.
    ///
    /// # Errors
    /// Two rows have one key, also in a unique index; the table has got rows, has changed, or is not that of the load;
    /// errors of the log. The table is unchanged then, and the rows are discarded.
    pub fn finish(self, name: &Arc<str>, table: &Arc<Table>) -> Result<()> {
        let Self { name: _, table: loaded, record, loader, new } = self;
        Catalog::check_outside()?;
        if !Arc::ptr_eq(&loaded, table) {
            return Err(UsageError::LoadOfOtherTable(name.clone()).into());
        }
        let check_version = |schema: &TableSchema| {
            if schema.record.version + 1 == record.version {
                return Ok(());
            }
            Err(SchemaError::DefinitionChanged(name.clone()))
        };
        // Before the work of the load, which would be in vain.
        table.with_schema(check_version)?;
        loader.renamed(name).finish()?;
        let catalog = new.catalog.clone();
        let mut closed = table.close()?;
        check_version(table.closed_schema(&closed))?;
        catalog.check_empty(name, table.closed_schema(&closed))?;
        let next = table.next_numbers(&closed).map_err(|error| error.of(|_| Owner::Table(name.clone())))?;
        let mut closing = Closing { table, record: Some(Box::new(record)) };
        catalog.change_closed(&mut closing, &mut closed, None, &new.spaces(), None);
        new.named();
        drop(closed);
        // A table of which no number was requested has no ceiling.
        Catalog::set_temporary_numbers(table, next.map(|next| (next > 1).then_some(next)))
    }
}

impl Catalog {
    /// Makes a table without a name or a record. It exists as long as its owner holds it.
    ///
    /// # Errors
    /// [`SchemaError`] for the names of its indexes.
    pub fn temporary_table(&self, definition: &TableDefinition) -> Result<Arc<Table>> {
        Self::check_metadata(&definition.metadata)?;
        // It is never stored.
        let metadata = Metadata::Inline(definition.metadata.clone());
        let record = self.new_record_with(definition, metadata)?;
        let space = &mut |id| Ok(new_space(id));
        Ok(self.new_table(self.schema(record, space)?))
    }

    /// Lists a temporary table under a name, or gives it another one. It is listed until it is dropped.
    pub fn name_temporary(&self, table: &Arc<Table>, name: &Arc<str>) {
        let id = table.with_schema(|schema| schema.record.id);
        self.temporary.lock().insert(id, (name.clone(), table.clone()));
    }

    /// Returns the temporary tables with a name, in the order of their creation.
    pub fn temporary_tables(&self) -> Vec<(Arc<str>, Arc<Table>)> {
        self.temporary.lock().values().cloned().collect()
    }

    /// Returns their number.
    pub fn temporary_count(&self) -> usize {
        self.temporary.lock().len()
    }

    /// Refuses a table with rows, or with changes of a transaction that has not ended.
    fn check_empty(&self, name: &Arc<str>, schema: &TableSchema) -> Result<()> {
        let work = ReportedWork::unreported(Phase::Rows, 0);
        let not_empty = |_: &[u8], _: &[u8], _| Err(SchemaError::NotEmpty(name.clone()).into());
        self.each_row(name, &schema.clustered, work, &[FieldSet::NONE.cut_at(0)], not_empty)
    }

    /// Calls a function with the key and the value of each row of a temporary table, whose gate is closed: the value as
    /// it is read with each of these sets of fields.
    ///
    /// # Errors
    /// Those of the function; a transaction that has not ended has changed a row; damage, I/O.
    fn each_row(
        &self,
        name: &Arc<str>,
        clustered: &Tree,
        mut work: ReportedWork,
        readings: &[FieldSet],
        mut run: impl FnMut(&[u8], &[u8], FieldSet) -> Result<()>,
    ) -> Result<()> {
        let (mut cursor, mut bytes) = (clustered.cursor(), Vec::new());
        let mut more = cursor.seek(Seek::First)?;
        while more {
            work.advance(1)?;
            if let Some(header) = cursor.header() {
                if self.transactions.active().is_active(header.trx) {
                    return Err(UsageError::TemporaryInUse(name.clone()).into());
                }
                for reading in readings.iter().filter(|_| !header.is_deleted()) {
                    bytes.clear();
                    bytes.extend_from_slice(cursor.value());
                    value::follow(clustered, header, *reading, &mut bytes)?;
                    run(cursor.key(), &bytes, *reading)?;
                }
            }
            more = cursor.next()?;
        }
        Ok(())
    }

    fn set_temporary_numbers(table: &Arc<Table>, next: [Option<u64>; CounterKind::ALL.len()]) -> Result<()> {
        let call = table.enter()?;
        for (kind, next) in CounterKind::ALL.into_iter().zip(next) {
            if let Some(next) = next {
                let counter: &Counter = table.counter(&call, kind);
                let end = counter.set(&call.clustered, next)?;
                debug_assert!(end.is_none(), "a number of a temporary table is logged");
            }
        }
        Ok(())
    }

    /// Begins to load rows into an empty temporary table.
    ///
    /// # Errors
    /// [`SchemaError::NotEmpty`]; damage, I/O.
    pub fn begin_temporary_load(
        self: &Arc<Self>,
        name: &Arc<str>,
        table: &Arc<Table>,
        limits: LoadLimits,
    ) -> Result<TemporaryLoad> {
        let before: TableSchema = {
            let call = table.enter()?;
            self.check_empty(name, &call)?;
            (*call).clone()
        };
        let mut record = before.record.clone();
        record.version += 1;
        self.renew_trees(&mut record)?;
        let schema = self.schema(record.clone(), &mut |id| Ok(new_space(id)))?;
        let new = NewTrees { catalog: self.clone(), trees: schema.trees().cloned().collect() };
        let loader = TableLoader::new(self, name, schema, limits).replacing(&before);
        Ok(TemporaryLoad { name: name.clone(), table: table.clone(), record, loader, new })
    }

    /// Changes a temporary table. Calls on it wait meanwhile. `make` makes the entries of new indexes for which the
    /// caller supplies them.
    ///
    /// # Errors
    /// [`SchemaError`] for the indexes; two rows have one key in a new unique index; a transaction that has not ended
    /// has changed a row, and an index is added; errors of the function. Nothing has changed then.
    pub fn alter_temporary(
        &self,
        name: &Arc<str>,
        table: &Arc<Table>,
        changes: &TableChanges,
        make: Option<&mut MakeEntryOf<'_>>,
    ) -> Result<DropReport> {
        Self::check_outside()?;
        if let Some(metadata) = &changes.metadata {
            Self::check_metadata(metadata)?;
        }
        for (_, to) in &changes.rename_indexes {
            self.check_name(to)?;
        }
        let mut added = Vec::with_capacity(changes.add_indexes.len());
        for index in &changes.add_indexes {
            self.check_index(name, index)?;
            let has_function = make.is_some() && matches!(index.form, EntryForm::Supplied { .. });
            key::check_makes_entries(name, &index.name, index.form, has_function)?;
            added.push(self.new_index(index)?);
        }
        let mut record = table.with_schema(|schema| schema.record.clone());
        record.version += 1;
        record.change_indexes(name, changes, added.clone())?;
        if let Some(metadata) = &changes.metadata {
            record.metadata = Metadata::Inline(metadata.clone());
        }
        let trees = added.iter().map(|index| self.tree(new_space(index.space))).collect();
        let new = NewTrees { catalog: self, trees };
        let report = DropReport::of(|| {
            let mut closed = table.close()?;
            if !added.is_empty() {
                let _refuses = closed.refuse_own_calls();
                let readings = changes.add_indexes.iter().map(IndexDefinition::filled_from);
                let trees = (&*new.trees, &*readings.collect::<Vec<_>>());
                self.fill_temporary(name, &table.closed_schema(&closed).clustered, &added, trees, make)?;
            }
            let mut closing = Closing { table, record: Some(Box::new(record)) };
            let trees = table.closed_schema(&closed).tree_count() + added.len();
            self.change_closed(&mut closing, &mut closed, None, &new.spaces(), None);
            new.named();
            let trees = trees - table.closed_schema(&closed).tree_count();
            Ok(Dropped { trees, lsn: None })
        })?;
        Self::set_temporary_numbers(table, changes.numbers)?;
        Ok(report)
    }

    /// Fills new secondary trees of a temporary table, whose gate is closed.
    fn fill_temporary(
        &self,
        name: &Arc<str>,
        clustered: &Tree,
        indexes: &[IndexRecord],
        (trees, readings): (&[Arc<Tree>], &[FieldSet]),
        make: Option<&mut MakeEntryOf<'_>>,
    ) -> Result<()> {
        let make = make.map(RefCell::new);
        let mut functions: Vec<_> =
            indexes.iter().map(|index| function_of(name, index, make.as_ref())).collect();
        let makers = self.makers(name, indexes, (trees, readings), &mut functions);
        let different = readings_of(&makers);
        let mut entries: Vec<Runs<EntryTail>> =
            indexes.iter().map(|_| Runs::new(self.pool.clone())).collect();
        let fill = || {
            let rows = tablespace::rows(&self.pool, clustered.space())?.max(0).cast_unsigned();
            let work = ReportedWork::begin(Phase::Rows, rows)?;
            self.each_row(name, clustered, work, &different, |key, value, reading| {
                let of_all = makers.iter().zip(&mut entries);
                for (maker, entries) in of_all.filter(|(maker, _)| maker.reading() == reading) {
                    for entry in maker.entries(key, value)? {
                        maker.check(&entry, value)?;
                        maker.collect(entry, entries);
                    }
                }
                if entries.iter().map(Runs::bytes).sum::<usize>() >= self.pause.bounds().entries {
                    let ids = self.transactions.ids();
                    makers
                        .iter()
                        .zip(&mut entries)
                        .try_for_each(|(maker, entries)| maker.spill(entries, ids))?;
                }
                Ok(())
            })?;
            let mut work = ReportedWork::begin(Phase::Entries, entries.iter().map(Runs::count).sum())?;
            for ((n, entries), tree) in (0..).zip(entries).zip(trees) {
                let maker = &makers[n];
                let filled = fill_secondary((n, maker), tree, entries, &mut work);
                filled.map_err(|error| match error {
                    // The rows are those of the table, not input.
                    Error::Schema(SchemaError::DuplicateInputKey { owner, row_key: row, .. }) => {
                        SchemaError::DuplicateKey { owner, index: None, row }.into()
                    }
                    other => other.of(|_| maker.owner()),
                })?;
            }
            Ok(())
        };
        let filled: Result<()> = fill();
        match makers.iter().find_map(EntryMaker::take_panic) {
            Some(panic) => resume_unwind(panic),
            None => filled.map_err(|error| error.of(|_| Owner::Table(name.clone()))),
        }
    }

    /// Truncates a temporary table: it gets new tablespaces, and the old ones are dropped. Waits for the calls on the
    /// table that are in progress. The caller owns the table, and runs no other statement on it meanwhile.
    ///
    /// # Errors
    /// [`StatementInCall`](crate::error::UsageError::StatementInCall); the log accepts no more records.
    pub fn truncate_temporary(&self, table: &Arc<Table>) -> Result<DropReport> {
        Self::check_outside()?;
        let mut record = table.with_schema(|schema| schema.record.clone());
        record.version += 1;
        self.renew_trees(&mut record)?;
        DropReport::of(|| {
            let mut closing = Closing { table, record: Some(Box::new(record)) };
            let mut closed = table.close()?;
            let trees = table.closed_schema(&closed).tree_count();
            self.change_closed(&mut closing, &mut closed, None, &[], None);
            Ok(Dropped { trees, lsn: None })
        })
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
        let id = table.with_schema(|schema| schema.record.id);
        drop(self.temporary.lock().remove(&id));
        DropReport { trees, work, lsn: None }
    }
}
