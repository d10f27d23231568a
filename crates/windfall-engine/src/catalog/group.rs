//! Groups of DDL statements ([`Catalog::run_group`]).
//!
//! **Purpose.** Several statements take effect as one: all of them are visible and durable at once, or none is. What
//! each table becomes is computed in memory, under the metadata locks on all names, and then carried out as a
//! [`Plan`]. A rename, a swap, and the drop and the creation of an index are groups of one statement. New indexes of a
//! table that may have rows are filled between the two ([`IndexBuild`]), or were filled before ([`BuiltIndexes`]).
//!
//! **Invariants.** A statement sees the effects of those before it (test: `statements_of_a_group_see_earlier_ones`). A
//! name that no statement gives another meaning keeps its record, and each other name gets one change of its record,
//! whatever the number of statements (checked by `catalog/group.rs::plan_records`). Long metadata and headers are
//! written when no statement can be refused any more for what it says (test: `a_refused_statement_writes_nothing`),
//! while lookups find the old meanings (test: `a_group_hides_its_names_only_while_it_commits`). What a group holds
//! counts as held by a drop if the group drops trees (test: `only_statements_that_drop_trees_are_drops`). A crash
//! leaves all of a group or nothing (test: `groups_crash_at_every_operation`). A table that is created and dropped by
//! one group never exists (test: `statements_of_a_group_see_earlier_ones`). A group in the name of a transaction waits
//! for all others (test: `a_statement_in_the_name_of_a_transaction_waits_for_all_others`).

use smallvec::SmallVec;

use super::{
    ddl_options::DdlOptions,
    definition::{IndexDefinition, TableDefinition},
    filled::Filled,
    index_build::{BuiltIndexes, IndexBuild, MakeEntryOf},
    key,
    names::MetadataLock,
    plan::{Closing, NextNumber, Plan},
    record::{IndexRecord, TableRecord},
    state::{Catalog, new_space, no_table, record_key},
    statement::{DropReport, Dropped},
    table::Table,
};
use crate::{
    buffer::Space,
    error::{Result, SchemaError, UsageError},
    ids::SpaceId,
    row::FieldSet,
    sync::{Arc, work},
    system::Change,
    tablespace::CounterKind,
    txn::{
        EntryForm,
        locks::{LockOwner, TableMode},
        mvcc::value::INDEXED,
    },
};

/// A statement of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DdlStatement {
    /// Creates an empty table.
    Create {
        /// The name of the table.
        name: String,
        /// Its definition.
        definition: TableDefinition,
    },
    /// Drops a table.
    Drop {
        /// The name of the table.
        name: String,
        /// Whether it may be missing.
        if_exists: bool,
    },
    /// Truncates a table.
    Truncate {
        /// The name of the table.
        name: String,
    },
    /// Renames a table.
    Rename {
        /// The name of the table.
        from: String,
        /// Its new name.
        to: String,
    },
    /// Swaps the names of two tables.
    Swap {
        /// One name.
        a: String,
        /// The other name.
        b: String,
    },
    /// Changes a table.
    Alter {
        /// The name of the table.
        name: String,
        /// The changes.
        changes: TableChanges,
    },
    /// Finishes an alteration in two steps.
    Finish {
        /// The name of the table.
        name: String,
        /// The place of the alteration among those that are finished.
        place: usize,
        /// The indexes that it has built.
        indexes: Vec<IndexRecord>,
        /// All its other changes.
        changes: TableChanges,
    },
}

/// Changes of one table, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChanges {
    /// Indexes to drop.
    pub drop_indexes: Vec<String>,
    /// Indexes to rename, all at once, each with its new name.
    pub rename_indexes: Vec<(String, String)>,
    /// Indexes to add.
    pub add_indexes: Vec<IndexDefinition>,
    /// New metadata.
    pub metadata: Option<Vec<u8>>,
    /// The next numbers of the counters, by [`CounterKind`].
    pub numbers: [Option<u64>; CounterKind::ALL.len()],
    /// The new name.
    pub name: Option<String>,
}

impl TableChanges {
    /// Returns the mode in which the table is locked at the end of an index build.
    fn build_mode(&self) -> TableMode {
        let adds = Self { add_indexes: self.add_indexes.clone(), ..Self::default() };
        // A reader of the table uses no index that is new.
        if *self == adds { TableMode::Shared } else { TableMode::Exclusive }
    }

    /// Returns them without the indexes that they add.
    pub(super) fn without_new_indexes(self) -> Self {
        Self { add_indexes: Vec::new(), ..self }
    }

    /// Returns them together with further ones, which are those that count where both set something.
    pub(super) fn and(mut self, more: Self) -> Self {
        self.drop_indexes.extend(more.drop_indexes);
        self.rename_indexes.extend(more.rename_indexes);
        self.add_indexes.extend(more.add_indexes);
        self.metadata = more.metadata.or(self.metadata);
        for (number, more) in self.numbers.iter_mut().zip(more.numbers) {
            *number = more.or(*number);
        }
        self.name = more.name.or(self.name);
        self
    }
}

impl DdlStatement {
    /// Returns whether it adds indexes to a table.
    fn adds_indexes(&self) -> bool {
        matches!(self, Self::Alter { changes, .. } | Self::Finish { changes, .. }
            if !changes.add_indexes.is_empty())
    }

    /// Returns the names of its tables.
    fn names(&self) -> impl Iterator<Item = &str> {
        let (one, other) = match self {
            Self::Create { name, .. } | Self::Drop { name, .. } | Self::Truncate { name } => (name, None),
            Self::Alter { name, changes } | Self::Finish { name, changes, .. } => {
                (name, changes.name.as_ref())
            }
            Self::Rename { from, to } => (from, Some(to)),
            Self::Swap { a, b } => (a, Some(b)),
        };
        core::iter::once(&**one).chain(other.map(|name| &**name))
    }
}

/// A table, as the statements so far leave it.
#[derive(Default)]
struct Draft<'t> {
    /// The table, unless the group creates it.
    table: Option<&'t Arc<Table>>,
    /// Its record, if the group creates or changes the table.
    record: Option<TableRecord>,
    /// The metadata, if the group sets them. Long ones are still to be written to the tree that the record names.
    metadata: Option<&'t [u8]>,
    /// The next numbers that its counters get.
    numbers: [Option<u64>; CounterKind::ALL.len()],
    /// The fields of which entries of new indexes are made, by the tablespace of the index.
    readings: Vec<(SpaceId, FieldSet)>,
}

/// New indexes of a table that are to be filled, each with the fields of which its entries are made.
type ToFill<'t> = (&'t Arc<Table>, Vec<(IndexRecord, FieldSet)>);

impl<'t> Draft<'t> {
    /// Returns whether it is this table.
    fn is(&self, other: Option<&Arc<Table>>) -> bool {
        self.table.zip(other).is_some_and(|(table, other)| Arc::ptr_eq(table, other))
    }

    /// Returns long metadata that are to be written, and their tablespace.
    fn long_metadata(&self) -> Option<(SpaceId, &'t [u8])> {
        let space = self.record.as_ref()?.metadata.space()?;
        Some((space, self.metadata?))
    }

    /// Returns whether something must be written before the group commits.
    fn needs_filling(&self) -> bool {
        self.long_metadata().is_some() || self.numbers.iter().any(Option::is_some)
    }

    /// Returns its record, for a change.
    fn record(&mut self) -> &mut TableRecord {
        let table = self.table;
        self.record.get_or_insert_with(|| {
            let table = table.expect("a table that a group creates has a record");
            let mut record = table.with_schema(|schema| schema.record.clone());
            record.version += 1;
            record
        })
    }

    /// Returns the indexes that the group adds to a table that may have rows.
    fn indexes_to_fill(&self) -> Vec<(IndexRecord, FieldSet)> {
        let reading = |index: &IndexRecord| {
            self.readings
                .iter()
                .find(|(space, _)| *space == index.space)
                .map_or(INDEXED, |(_, fields)| *fields)
        };
        match (self.table, &self.record) {
            (Some(table), Some(record)) if table.space() == record.clustered => table.with_schema(|schema| {
                let is_new = |index: &&IndexRecord| !schema.record.names(index.space);
                record.indexes.iter().filter(is_new).map(|index| (index.clone(), reading(index))).collect()
            }),
            _ => Vec::new(),
        }
    }

    /// Drops indexes, renames others, and adds these.
    fn change_indexes(&mut self, name: &str, changes: &TableChanges, added: Vec<IndexRecord>) -> Result<()> {
        if changes.drop_indexes.is_empty() && changes.rename_indexes.is_empty() && added.is_empty() {
            return Ok(());
        }
        self.record().change_indexes(name, changes, added)
    }
}

impl TableRecord {
    /// Drops indexes, renames others, and adds these.
    pub(super) fn change_indexes(
        &mut self,
        name: &str,
        changes: &TableChanges,
        added: Vec<IndexRecord>,
    ) -> Result<()> {
        let record = self;
        let place = |record: &TableRecord, index: &str| {
            let missing = || SchemaError::NoIndex { table: name.into(), index: index.into() };
            record.indexes.iter().position(|other| *other.name == *index).ok_or_else(missing)
        };
        for index in &changes.drop_indexes {
            let place = place(record, index)?;
            record.indexes.remove(place);
        }
        let renamed = changes.rename_indexes.iter().map(|(from, to)| Ok((place(record, from)?, from, to)));
        let renamed = renamed.collect::<Result<Vec<_>>>()?;
        for (n, (at, from, to)) in renamed.iter().enumerate() {
            if renamed[..n].iter().any(|(before, ..)| before == at) {
                return Err(SchemaError::NoIndex { table: name.into(), index: from.as_str().into() }.into());
            }
            record.indexes[*at].name = to.as_str().into();
        }
        record.indexes.extend(added);
        for (n, index) in record.indexes.iter().enumerate() {
            if record.indexes[..n].iter().any(|other| other.name == index.name) {
                return Err(SchemaError::IndexExists { table: name.into(), index: index.name.clone() }.into());
            }
        }
        Ok(())
    }
}

/// The tables of the locked names, as the statements so far leave them.
struct Drafts<'t, 'c, 'b> {
    catalog: &'c Catalog,
    locked: &'t MetadataLock<'c>,
    all: Vec<Option<Draft<'t>>>,
    /// The trees that are filled for the tables.
    filled: Filled<'c>,
    /// The mode of the table's lock, if a table gets indexes that must be filled.
    build: Option<TableMode>,
    /// The alterations that the group finishes.
    built: &'b [BuiltIndexes],
    planned: Planned<'t>,
}

/// The lists of the plan of a group.
#[derive(Default)]
struct Planned<'t> {
    closing: Vec<Closing<'t>>,
    moved: Vec<&'t Table>,
    renames: bool,
    created: Vec<Arc<Table>>,
    filled: Vec<Arc<Space>>,
    numbers: Vec<NextNumber<'t>>,
    records: Vec<Change>,
    build: Option<IndexBuild<'t>>,
    /// The new meanings of the locked names.
    meanings: Vec<Option<Arc<Table>>>,
}

impl<'t> Planned<'t> {
    fn plan(&mut self) -> Plan<'_, 't> {
        Plan {
            closing: &mut self.closing,
            moved: &self.moved,
            renames: self.renames,
            created: &self.created,
            filled: &self.filled,
            numbers: &self.numbers,
            records: &mut self.records,
            in_name_of: None,
        }
    }
}

impl<'t, 'c, 'b> Drafts<'t, 'c, 'b> {
    fn new(catalog: &'c Catalog, locked: &'t MetadataLock<'c>, built: &'b [BuiltIndexes]) -> Self {
        let draft = |table| Draft { table: Some(table), ..Draft::default() };
        let all = locked.tables().map(|(_, table)| table.map(draft)).collect();
        let planned = Planned::default();
        Self { catalog, locked, all, filled: Filled::new(catalog), build: None, built, planned }
    }

    /// Returns what a name means now.
    fn at(&mut self, name: &str) -> &mut Option<Draft<'t>> {
        &mut self.all[self.locked.place(name)]
    }

    fn existing(&mut self, name: &str) -> Result<&mut Draft<'t>> {
        self.at(name).as_mut().ok_or_else(|| no_table(name).into())
    }

    fn check_free(&mut self, name: &str) -> Result<()> {
        match self.at(name) {
            Some(_) => Err(SchemaError::TableExists(name.into()).into()),
            None => Ok(()),
        }
    }

    fn apply(&mut self, statement: &'t DdlStatement) -> Result<()> {
        match statement {
            DdlStatement::Create { name, definition } => {
                self.catalog.check_name(name)?;
                self.check_free(name)?;
                let record = Some(self.catalog.new_record(definition)?);
                let metadata = Some(&*definition.metadata);
                *self.at(name) = Some(Draft { record, metadata, ..Draft::default() });
            }
            DdlStatement::Drop { name, if_exists } => match self.at(name).take() {
                Some(draft) => {
                    let ends = |table: &'t Arc<Table>| Closing { table, record: None };
                    self.planned.closing.extend(draft.table.map(ends));
                }
                None if *if_exists => {}
                None => return Err(no_table(name).into()),
            },
            DdlStatement::Truncate { name } => {
                let catalog = self.catalog;
                let draft = self.existing(name)?;
                draft.numbers = [None; 2];
                catalog.renew_trees(draft.record())?;
            }
            DdlStatement::Rename { from, to } => self.rename(from, to)?,
            DdlStatement::Swap { a, b } => {
                self.existing(a)?;
                self.existing(b)?;
                let (a, b) = (self.locked.place(a), self.locked.place(b));
                self.all.swap(a, b);
            }
            DdlStatement::Alter { name, changes } => self.alter(name, changes, &[])?,
            DdlStatement::Finish { name, place, indexes, changes } => {
                let built = &self.built[*place];
                let draft = self.existing(name)?;
                let is_same = draft.is(Some(built.table()))
                    && draft.record.as_ref().is_none_or(|record| record.clustered == built.table().space());
                if !is_same || !built.is_current() {
                    return Err(SchemaError::DefinitionChanged(name.as_str().into()).into());
                }
                self.alter(name, changes, indexes)?;
            }
        }
        Ok(())
    }

    /// Changes a table, and adds indexes that are built in addition to those of the changes.
    fn alter(&mut self, name: &str, changes: &'t TableChanges, built: &[IndexRecord]) -> Result<()> {
        for (_, to) in &changes.rename_indexes {
            self.catalog.check_name(to)?;
        }
        let new = changes.add_indexes.iter().map(|index| {
            self.catalog.check_index(name, index)?;
            self.catalog.new_index(index)
        });
        let new = new.collect::<Result<Vec<_>>>()?;
        let readings = changes.add_indexes.iter().zip(&new);
        let readings =
            readings.map(|(index, record)| (record.space, index.filled_from())).collect::<Vec<_>>();
        let added = built.iter().cloned().chain(new).collect();
        let draft = self.existing(name)?;
        draft.change_indexes(name, changes, added)?;
        draft.readings.extend(readings);
        if let Some(metadata) = &changes.metadata {
            let stored = self.catalog.new_metadata(metadata)?;
            let draft = self.existing(name)?;
            draft.record().metadata = stored;
            draft.metadata = Some(metadata);
        }
        for (kind, next) in CounterKind::ALL.into_iter().zip(changes.numbers) {
            if let Some(next) = next {
                let draft = self.existing(name)?;
                draft.record();
                draft.numbers[kind as usize] = Some(next.max(1));
            }
        }
        match &changes.name {
            Some(to) => self.rename(name, to),
            None => Ok(()),
        }
    }

    /// Refuses alterations whose indexes a later statement has dropped, with their table or without it.
    fn check_built(&self) -> Result<()> {
        for built in self.built {
            let mut drafts = self.all.iter().flatten();
            let record =
                drafts.find(|draft| draft.is(Some(built.table()))).and_then(|draft| draft.record.as_ref());
            if !record.is_some_and(|record| built.spaces().all(|space| record.names(space))) {
                return Err(SchemaError::DefinitionChanged(built.name().clone()).into());
            }
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.catalog.check_name(to)?;
        self.existing(from)?;
        self.check_free(to)?;
        *self.at(to) = self.at(from).take();
        Ok(())
    }

    /// Plans the changes of the records. When it succeeds, all statements can be carried out.
    fn plan_records(&mut self) -> Result<()> {
        for ((name, before), draft) in self.locked.tables().zip(&self.all) {
            let Some(draft) = draft else {
                self.planned.records.extend(before.map(|_| Change::remove(record_key(name))));
                continue;
            };
            if draft.record.is_none() && draft.is(before) {
                continue;
            }
            let current = || draft.table.map(|table| table.with_schema(|schema| schema.record.encode()));
            let encoded = draft.record.as_ref().map(TableRecord::encode).or_else(current);
            let encoded = encoded.expect("a table that a group creates has a record");
            self.catalog.check_length(name, encoded.len())?;
            self.planned.records.push(Change::put(record_key(name), encoded));
        }
        assert!(
            self.planned.records.len() <= self.all.len(),
            "a group changes {} records of {} names",
            self.planned.records.len(),
            self.all.len()
        );
        Ok(())
    }

    /// Notes that indexes must be filled, if the group adds some to a table that may have rows. `can_build` says how
    /// the table is then locked at the end, if the group is a statement that can fill them; `makes_entries`, that a
    /// function makes the entries which the caller supplies.
    fn plan_build(&mut self, can_build: Option<TableMode>, makes_entries: bool) -> Result<()> {
        for (table, indexes) in self.to_fill() {
            let name = self.locked.name_of(table);
            if can_build.is_none() {
                let (table, index) = (name.into(), indexes[0].0.name.clone());
                return Err(UsageError::IndexInGroup { table, index }.into());
            }
            // A function without an index that needs it is a mistake.
            let is_supplied = |index: &IndexRecord| matches!(index.form, EntryForm::Supplied { .. });
            let needs_none = !indexes.iter().any(|(index, _)| is_supplied(index));
            for (index, _) in &indexes {
                let has_function = makes_entries && (is_supplied(index) || needs_none);
                key::check_makes_entries(name, &index.name, index.form, has_function)?;
            }
        }
        if self.to_fill().next().is_some() {
            self.build = can_build;
        }
        Ok(())
    }

    /// Returns the tables with indexes that must be filled.
    fn to_fill(&self) -> impl Iterator<Item = ToFill<'t>> {
        let drafts = self.all.iter().flatten();
        drafts.filter_map(|draft| {
            let mut new = draft.indexes_to_fill();
            new.retain(|(index, _)| {
                self.built.iter().all(|built| built.spaces().all(|space| space != index.space))
            });
            Some((draft.table?, new)).filter(|(_, new)| !new.is_empty())
        })
    }

    /// Writes what the group needs before it commits: long metadata, and headers for numbers. That may take long, and
    /// may wait for room in the log, so lookups of the names find their old meanings meanwhile.
    fn fill(&mut self) -> Result<()> {
        if !self.all.iter().flatten().any(Draft::needs_filling) {
            return Ok(());
        }
        self.locked.downgrade();
        // Tests look the names up here.
        self.catalog.pause.pass();
        for draft in self.all.iter().flatten() {
            if let Some((space, metadata)) = draft.long_metadata() {
                self.filled.write_metadata(space, metadata)?;
            }
            plan_numbers(draft, self.catalog, &mut self.filled, &mut self.planned)?;
        }
        self.locked.upgrade();
        Ok(())
    }

    /// Begins the trees of the indexes that are to be filled.
    fn begin_build(&mut self) -> Result<()> {
        let Some(mode) = self.build else { return Ok(()) };
        assert!(self.built.is_empty(), "a statement that builds indexes finishes an alteration");
        let to_fill = self.to_fill().next().expect("a build has a table");
        let name = self.locked.name_of(to_fill.0);
        self.planned.build = Some(begun(to_fill, name, &mut self.filled, mode)?);
        Ok(())
    }

    /// Returns the plan that makes of the tables what the statements have made of the drafts, and the trees that were
    /// filled for it.
    fn plan(mut self) -> Result<(Planned<'t>, Filled<'c>)> {
        self.fill()?;
        self.begin_build()?;
        let built = self.built.iter().flat_map(BuiltIndexes::trees).map(|tree| tree.space());
        self.planned.filled.extend(self.filled.spaces().chain(built).cloned());
        let Self { catalog, locked, all, filled, mut planned, .. } = self;
        for ((_, before), draft) in locked.tables().zip(all) {
            let Some(draft) = draft else {
                planned.meanings.push(None);
                continue;
            };
            let is_here = draft.is(before);
            let Draft { table, record, .. } = draft;
            planned.renames |= table.is_some() && !is_here;
            let meaning = match (table, record) {
                (Some(table), Some(record)) => {
                    planned.closing.push(Closing { table, record: Some(Box::new(record)) });
                    table.clone()
                }
                (Some(table), None) => {
                    if !is_here {
                        planned.moved.push(table);
                    }
                    table.clone()
                }
                (None, record) => {
                    let record = record.expect("a table that a group creates has a record");
                    let space = &mut |id| Ok(filled.space(id).unwrap_or_else(|| new_space(id)));
                    let table = catalog.new_table(catalog.schema(record, space)?);
                    planned.created.push(table.clone());
                    table
                }
            };
            planned.meanings.push(Some(meaning));
        }
        Ok((planned, filled))
    }
}

/// Begins the trees of the indexes that are to be filled.
fn begun<'t>(
    (table, new): ToFill<'t>,
    name: &'t str,
    filled: &mut Filled<'_>,
    mode: TableMode,
) -> Result<IndexBuild<'t>> {
    let trees = new.iter().map(|(index, _)| filled.tree(index.space)).collect::<Result<_>>()?;
    let (indexes, readings) = new.into_iter().unzip();
    Ok(IndexBuild { table, name, indexes, readings, trees, mode })
}

/// Plans the next numbers of the counters of a table, if it gets some. The clustered tree gets a header for them.
fn plan_numbers<'t>(
    draft: &Draft<'t>,
    catalog: &Catalog,
    filled: &mut Filled<'_>,
    planned: &mut Planned<'t>,
) -> Result<()> {
    let Draft { table, record: Some(record), numbers, .. } = draft else { return Ok(()) };
    if numbers.iter().all(Option::is_none) {
        return Ok(());
    }
    let tree = match table {
        Some(table) if table.space() == record.clustered => {
            let tree = table.with_schema(|schema| schema.clustered.clone());
            catalog.ensure_header(&tree)?;
            tree
        }
        _ => filled.tree_with_header(record.clustered)?,
    };
    for (kind, next) in CounterKind::ALL.into_iter().zip(*numbers) {
        let number = |next| NextNumber { table: table.map(|table| &**table), tree: tree.clone(), kind, next };
        planned.numbers.extend(next.map(number));
    }
    Ok(())
}

impl Catalog {
    /// Runs statements as one step, with one group of the log.
    ///
    /// # Errors
    /// [`SchemaError`] for the names, as they are after the statements before; errors of the log. Nothing has changed
    /// then.
    pub fn run_group(&self, statements: &[DdlStatement], options: DdlOptions) -> Result<DropReport> {
        DropReport::counted(|| self.try_group(statements, &mut [], None, None, options))
    }

    /// As [`Catalog::run_group`], with alterations in two steps that statements of the group finish. `make` makes the
    /// entries of rows that have changed since the indexes were built.
    ///
    /// # Errors
    /// As [`Catalog::run_group`] and [`BuiltIndexes::catch_up`]; a statement drops what an alteration has built. The
    /// alterations are as before then, and can be finished by another call.
    pub fn finish_alterations(
        &self,
        statements: &[DdlStatement],
        built: &mut [BuiltIndexes],
        make: Option<&mut MakeEntryOf<'_>>,
        options: DdlOptions,
    ) -> Result<DropReport> {
        DropReport::counted(|| self.try_group(statements, built, None, make, options))
    }

    /// Changes a table. `make` makes the entries of rows that exist in the new indexes for which the caller supplies
    /// them.
    ///
    /// # Errors
    /// As [`Catalog::run_group`], and those of the function;
    /// [`EntriesUnknown`](crate::error::UsageError::EntriesUnknown) without a function that a new index needs,
    /// [`EntryNotSupplied`](crate::error::UsageError::EntryNotSupplied) with one that none needs; two rows have one
    /// key in a unique index.
    pub fn alter_table(
        &self,
        name: &str,
        changes: TableChanges,
        make: Option<&mut MakeEntryOf<'_>>,
        options: DdlOptions,
    ) -> Result<DropReport> {
        let statement = [DdlStatement::Alter { name: name.into(), changes }];
        DropReport::counted(|| self.try_group(&statement, &mut [], None, make, options))
    }

    /// As [`Catalog::run_group`], in the name of a transaction: its own locks on the tables are not waited for, and its
    /// changes in trees that are dropped are not rolled back, because there is nothing to roll back.
    ///
    /// # Errors
    /// As [`Catalog::run_group`]; after a deadlock the transaction must roll back.
    pub fn run_group_for(
        &self,
        statements: &[DdlStatement],
        transaction: &Arc<LockOwner>,
        options: DdlOptions,
    ) -> Result<DropReport> {
        DropReport::counted(|| self.try_group(statements, &mut [], Some(transaction), None, options))
    }

    fn try_group(
        &self,
        statements: &[DdlStatement],
        built: &mut [BuiltIndexes],
        in_name_of: Option<&Arc<LockOwner>>,
        make: Option<&mut MakeEntryOf<'_>>,
        options: DdlOptions,
    ) -> Result<Dropped> {
        let names: SmallVec<[&str; 4]> = statements.iter().flat_map(DdlStatement::names).collect();
        built.iter().try_for_each(|built| built.check_function(make.is_some()))?;
        let mut locked = self.lock_names(&names, options)?;
        let mut drafts = Drafts::new(self, &locked, built);
        statements.iter().try_for_each(|statement| drafts.apply(statement))?;
        drafts.check_built()?;
        let can_build = match statements {
            [DdlStatement::Alter { changes, .. }] if in_name_of.is_none() => Some(changes.build_mode()),
            _ => None,
        };
        if statements.iter().any(DdlStatement::adds_indexes) {
            drafts.plan_build(can_build, make.is_some())?;
        }
        drafts.plan_records()?;
        if let Some((mode, (table, _))) = drafts.build.zip(drafts.to_fill().next()) {
            self.check_builds_none(table, locked.name_of(table))?;
            locked.downgrade();
            self.check_without_wait(table, mode, options)?;
        }
        let (mut planned, filled) = drafts.plan()?;
        if planned.records.is_empty() {
            return Ok(Dropped::NOTHING);
        }
        let build = planned.build.take();
        let plan = Plan { in_name_of, ..planned.plan() };
        let drops_trees = plan.drops_trees();
        let (done, _drop) = match &build {
            None if !built.is_empty() => {
                let mode = match statements {
                    [DdlStatement::Finish { changes, .. }] => changes.build_mode(),
                    _ => TableMode::Exclusive,
                };
                let done = self.carry_out_alterations(&locked, plan, built, make, (mode, options))?;
                (done, drops_trees.then(work::DropScope::begin))
            }
            None => {
                let scope = drops_trees.then(work::DropScope::begin);
                (self.carry_out(&locked, plan, options)?, scope)
            }
            Some(build) => match self.build_indexes(&locked, plan, build, make, options) {
                Ok(done) => (done, drops_trees.then(work::DropScope::begin)),
                Err(failed) => {
                    drop(filled);
                    return Err(failed.end());
                }
            },
        };
        let Planned { created, meanings, .. } = planned;
        locked.set_all(meanings.into_iter());
        let dropped = self.publish(locked, done, &created);
        // Not before the names are published: a check looks for the owner of a file in this order.
        filled.named();
        built.iter_mut().for_each(BuiltIndexes::published);
        Ok(dropped)
    }

    /// Makes the trees of the indexes that a statement adds to a table, and has them filled under the metadata lock.
    pub(super) fn with_build<T>(
        &self,
        name: &str,
        changes: &TableChanges,
        makes_entries: bool,
        options: DdlOptions,
        filled: &mut Filled<'_>,
        fill: impl FnOnce(&MetadataLock<'_>, &IndexBuild<'_>) -> Result<T>,
    ) -> Result<T> {
        let statement = DdlStatement::Alter { name: name.into(), changes: changes.clone() };
        let names: SmallVec<[&str; 2]> = statement.names().collect();
        let locked = self.lock_names(&names, options)?;
        let mut drafts = Drafts::new(self, &locked, &[]);
        drafts.apply(&statement)?;
        drafts.plan_build(Some(changes.build_mode()), makes_entries)?;
        drafts.plan_records()?;
        let Some(to_fill) = drafts.to_fill().next() else {
            return Err(UsageError::NothingToBuild(name.into()).into());
        };
        self.check_builds_none(to_fill.0, name)?;
        fill(&locked, &begun(to_fill, name, filled, changes.build_mode())?)
    }

    /// Runs one statement as a group.
    pub(super) fn run(&self, statement: DdlStatement, options: DdlOptions) -> Result<DropReport> {
        self.run_group(&[statement], options)
    }
}
