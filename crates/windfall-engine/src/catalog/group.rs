//! Groups of DDL statements ([`Catalog::run_group`]).
//!
//! **Purpose.** Several statements take effect as one: all of them are visible and durable at once, or none is. What
//! each table becomes is computed in memory, under the metadata locks on all names, and then carried out as a
//! [`Plan`]. A rename, a swap and the drop of an index are groups of one statement.
//!
//! **Invariants.** A statement sees the effects of those before it (test: `statements_of_a_group_see_earlier_ones`). A
//! name that no statement gives another meaning keeps its record, and each other name gets one change of its record,
//! whatever the number of statements (checked by `catalog/group.rs::plan`). A crash leaves all of a group or nothing
//! (test: `groups_crash_at_every_operation`). A table that is created and dropped by one group never exists (test:
//! `statements_of_a_group_see_earlier_ones`).

use smallvec::SmallVec;

use super::{
    ddl_options::DdlOptions,
    definition::TableDefinition,
    filled::Filled,
    names::MetadataLock,
    plan::{NextNumber, Plan},
    record::{Metadata, TableRecord},
    state::{Catalog, new_space, no_table, record_key},
    statement::{DropReport, Dropped},
    table::Table,
};
use crate::{
    error::{Result, SchemaError},
    sync::Arc,
    system::Change,
    tablespace::CounterKind,
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
}

/// Changes of one table, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChanges {
    /// Indexes to drop.
    pub drop_indexes: Vec<String>,
    /// Indexes to rename, all at once, each with its new name.
    pub rename_indexes: Vec<(String, String)>,
    /// New metadata.
    pub metadata: Option<Vec<u8>>,
    /// The next numbers of the counters, by [`CounterKind`].
    pub numbers: [Option<u64>; CounterKind::ALL.len()],
    /// The new name.
    pub name: Option<String>,
}

impl DdlStatement {
    /// Returns the names of its tables.
    fn names(&self) -> impl Iterator<Item = &str> {
        let (one, other) = match self {
            Self::Create { name, .. } | Self::Drop { name, .. } | Self::Truncate { name } => (name, None),
            Self::Alter { name, changes } => (name, changes.name.as_ref()),
            Self::Rename { from, to } => (from, Some(to)),
            Self::Swap { a, b } => (a, Some(b)),
        };
        core::iter::once(&**one).chain(other.map(|name| &**name))
    }

    fn renames(&self) -> bool {
        match self {
            Self::Rename { .. } | Self::Swap { .. } => true,
            Self::Alter { changes, .. } => changes.name.is_some(),
            Self::Create { .. } | Self::Drop { .. } | Self::Truncate { .. } => false,
        }
    }
}

/// A table, as the statements so far leave it.
struct Draft<'t> {
    /// The table, unless the group creates it.
    table: Option<&'t Arc<Table>>,
    /// Its record, if the group creates or changes the table.
    record: Option<TableRecord>,
    /// The next numbers that its counters get.
    numbers: [Option<u64>; CounterKind::ALL.len()],
}

impl Draft<'_> {
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

    /// Drops indexes, and renames others.
    fn change_indexes(&mut self, name: &str, changes: &TableChanges) -> Result<()> {
        if changes.drop_indexes.is_empty() && changes.rename_indexes.is_empty() {
            return Ok(());
        }
        let record = self.record();
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
        for (n, index) in record.indexes.iter().enumerate() {
            if record.indexes[..n].iter().any(|other| other.name == index.name) {
                return Err(SchemaError::IndexExists { table: name.into(), index: index.name.clone() }.into());
            }
        }
        Ok(())
    }
}

/// The meaning of a locked name after a group.
enum Meaning {
    Nothing,
    /// A table that had this name or another one before.
    Table(Arc<Table>),
    /// The next one of the tables that the group creates.
    New,
}

/// The tables of the locked names, as the statements so far leave them.
struct Drafts<'t, 'n> {
    catalog: &'t Catalog,
    locked: &'t MetadataLock<'n>,
    all: Vec<Option<Draft<'t>>>,
    /// The trees that are filled for the tables.
    filled: Filled<'t>,
    plan: Plan<'t>,
}

impl<'t, 'n> Drafts<'t, 'n> {
    fn new(catalog: &'t Catalog, locked: &'t MetadataLock<'n>) -> Self {
        let draft = |table: &'t Arc<Table>| Draft { table: Some(table), record: None, numbers: [None; 2] };
        let all = locked.tables().map(|(_, table)| table.map(draft)).collect();
        Self { catalog, locked, all, filled: Filled::new(catalog), plan: Plan::default() }
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

    fn apply(&mut self, statement: &DdlStatement) -> Result<()> {
        match statement {
            DdlStatement::Create { name, definition } => {
                self.catalog.check_name(name)?;
                self.check_free(name)?;
                let metadata = self.metadata(&definition.metadata)?;
                let record = self.catalog.new_record(definition, metadata)?;
                *self.at(name) = Some(Draft { table: None, record: Some(record), numbers: [None; 2] });
            }
            DdlStatement::Drop { name, if_exists } => match self.at(name).take() {
                Some(draft) => self.plan.dropped.extend(draft.table.map(|table| &**table)),
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
            DdlStatement::Alter { name, changes } => {
                for (_, to) in &changes.rename_indexes {
                    self.catalog.check_name(to)?;
                }
                self.existing(name)?.change_indexes(name, changes)?;
                if let Some(metadata) = &changes.metadata {
                    let metadata = self.metadata(metadata)?;
                    self.existing(name)?.record().metadata = metadata;
                }
                for (kind, next) in CounterKind::ALL.into_iter().zip(changes.numbers) {
                    if let Some(next) = next {
                        let draft = self.existing(name)?;
                        draft.record();
                        draft.numbers[kind as usize] = Some(next.max(1));
                    }
                }
                if let Some(to) = &changes.name {
                    self.rename(name, to)?;
                }
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

    /// Returns metadata for a record. Until long metadata is written, lookups need not wait for the statement.
    fn metadata(&mut self, metadata: &[u8]) -> Result<Metadata> {
        if !self.catalog.is_metadata_long(metadata) {
            return self.filled.metadata(metadata);
        }
        self.locked.downgrade();
        let metadata = self.filled.metadata(metadata);
        self.locked.upgrade();
        metadata
    }

    /// Plans the next numbers of the counters of a table, if it gets some. The clustered tree must have a header.
    fn plan_numbers(&mut self, draft: &Draft<'t>) -> Result<()> {
        let Draft { table, record: Some(record), numbers } = draft else { return Ok(()) };
        if numbers.iter().all(Option::is_none) {
            return Ok(());
        }
        let tree = match table {
            Some(table) if table.space() == record.clustered => {
                let tree = table.with_schema(|schema| schema.clustered.clone());
                self.catalog.ensure_header(&tree)?;
                tree
            }
            _ => self.filled.tree_with_header(record.clustered)?,
        };
        for (kind, next) in CounterKind::ALL.into_iter().zip(*numbers) {
            let next = next.map(|next| NextNumber {
                table: table.map(|table| &**table),
                tree: tree.clone(),
                kind,
                next,
            });
            self.plan.numbers.extend(next);
        }
        Ok(())
    }

    /// Returns the plan that makes of the tables what the statements have made of the drafts, and the new meanings of
    /// the names.
    fn plan(mut self) -> Result<(Plan<'t>, Vec<Meaning>, Filled<'t>)> {
        let all = core::mem::take(&mut self.all);
        for draft in all.iter().flatten() {
            self.plan_numbers(draft)?;
        }
        let Self { catalog, locked, filled, mut plan, .. } = self;
        let mut meanings = Vec::with_capacity(all.len());
        for ((name, before), draft) in locked.tables().zip(all) {
            let Some(Draft { table, record, .. }) = draft else {
                plan.records.extend(before.map(|_| Change::remove(record_key(name))));
                meanings.push(Meaning::Nothing);
                continue;
            };
            let is_here = table.is_some_and(|table| before.is_some_and(|before| Arc::ptr_eq(before, table)));
            debug_assert!(
                is_here || table.is_none() || locked.is_renaming(),
                "a table is renamed and its rename was not announced"
            );
            if !is_here || record.is_some() {
                let current = || table.map(|table| table.with_schema(|schema| schema.record.encode()));
                let encoded = record.as_ref().map(TableRecord::encode).or_else(current);
                let encoded = encoded.expect("a table that a group creates has a record");
                catalog.check_length(name, encoded.len())?;
                plan.records.push(Change::put(record_key(name), encoded));
            }
            match (table, record) {
                (Some(table), Some(record)) => plan.changed.push((table, record)),
                (Some(table), None) if !is_here => plan.moved.push(table),
                (Some(_), None) => {}
                (None, record) => {
                    let record = record.expect("a table that a group creates has a record");
                    let space = &mut |id| Ok(filled.space(id).unwrap_or_else(|| new_space(id)));
                    plan.created.push(catalog.schema(record, space)?);
                }
            }
            meanings.push(table.map_or(Meaning::New, |table| Meaning::Table(table.clone())));
        }
        assert!(
            plan.records.len() <= meanings.len(),
            "a group changes {} records of {} names",
            plan.records.len(),
            meanings.len()
        );
        plan.filled.extend(filled.spaces().cloned());
        Ok((plan, meanings, filled))
    }
}

impl Catalog {
    /// Runs statements as one step, with one group of the log.
    ///
    /// # Errors
    /// [`SchemaError`] for the names, as they are after the statements before; errors of the log. Nothing has changed
    /// then.
    pub fn run_group(&self, statements: &[DdlStatement], options: DdlOptions) -> Result<DropReport> {
        DropReport::of(|| self.try_group(statements, options))
    }

    fn try_group(&self, statements: &[DdlStatement], options: DdlOptions) -> Result<Dropped> {
        let names: SmallVec<[&str; 4]> = statements.iter().flat_map(DdlStatement::names).collect();
        let mut locked = self.lock_names(&names, options)?;
        if statements.iter().any(DdlStatement::renames) {
            locked.begin_rename();
        }
        let (done, meanings) = {
            let mut drafts = Drafts::new(self, &locked);
            statements.iter().try_for_each(|statement| drafts.apply(statement))?;
            let (plan, meanings, filled) = drafts.plan()?;
            if plan.records.is_empty() {
                // Whatever was filled has no name.
                return Ok(Dropped::NOTHING);
            }
            let named = plan.spaces();
            let done = self.carry_out(&locked, plan, options)?;
            // Trees of tables that the group has dropped again, or given other metadata, have no name.
            filled.named_are(&named);
            (done, meanings)
        };
        let mut created = done.created.iter().cloned();
        let tables = meanings.into_iter().map(|meaning| match meaning {
            Meaning::Nothing => None,
            Meaning::Table(table) => Some(table),
            Meaning::New => created.next(),
        });
        locked.set_all(tables);
        Ok(self.publish(locked, done))
    }

    /// Runs one statement as a group.
    pub(super) fn run(&self, statement: DdlStatement, options: DdlOptions) -> Result<DropReport> {
        self.run_group(&[statement], options)
    }
}
