//! What a statement does once it has the metadata locks on its names ([`Plan`]), and its execution.
//!
//! **Purpose.** All DDL statements end here, however many tables they create, drop, change and rename: one group of the
//! log with all their records, and then the same in memory.
//!
//! **Invariants.** Before anything changes, every name of the statement is locked, and the gates of the tables that end
//! or get another record are closed, after the transactions with locks on them have ended, except that in the name of
//! which the statement runs (checked by `catalog/statement.rs::close_gates`). In memory all tables are changed before
//! the first gate opens, and all gates are open, or closed permanently, before the first name is published (test:
//! `a_group_is_visible_as_one_step`). So a thread that has seen a part of the statement finds all of it. New names are
//! announced to listings after all waits for calls and transactions (test:
//! `a_group_hides_its_names_only_while_it_commits`).
//!
//! The locks are taken in an order that excludes deadlocks of statements: the names sorted, with one acquisition
//! (checked by `catalog/names.rs::take`); then the tables in the lock table, which detects cycles with transactions
//! (test: `a_deadlock_of_a_transaction_and_a_statement_is_broken`); then the gates, all as one (checked by
//! `catalog/statement.rs::close_gates`), which wait for calls and for no statement. A transaction in the name of which
//! a statement runs has table locks before the names: the wait of such a statement has a limit, which ends a cycle
//! (test: `a_statement_in_the_name_of_a_transaction_waits_for_all_others`).
//!
//! If the statement fails before its group is in the log, nothing has changed (test:
//! `a_group_that_is_refused_has_changed_nothing`); if the log fails after that, the database is poisoned.

use smallvec::SmallVec;

use super::{
    ddl_options::DdlOptions,
    names::MetadataLock,
    record::TableRecord,
    state::Catalog,
    statement::{Dropped, Effort, UnfinishedStatement},
    table::{Table, TableSchema},
};
use crate::{
    buffer::Space,
    error::Result,
    ids::{Lsn, SpaceId, TrxId},
    store::Tree,
    sync::{Arc, Closed, atomic::Ordering::SeqCst},
    system::Change,
    tablespace::CounterKind,
    txn::{StatementLock, locks::LockOwner},
};

/// A statement's list of up to this many trees is on the stack. Directly after many tables were freed, a request for
/// memory can cost glibc hundreds of microseconds.
const TREES_ON_STACK: usize = 64;

/// What a statement does to the tables of the names that it has locked. The lists are those of the caller, and most are
/// empty: a plan costs nothing for what it does not do.
#[derive(Default)]
pub(super) struct Plan<'a, 't> {
    /// The tables that end or get another record: their gates are closed meanwhile.
    pub(super) closing: &'a mut [Closing<'t>],
    /// The tables that get another name and nothing else: calls on them continue.
    pub(super) moved: &'a [&'t Table],
    /// Whether tables get other names.
    pub(super) renames: bool,
    /// The tables that begin.
    pub(super) created: &'a [Arc<Table>],
    /// Tablespaces of new trees that were filled before.
    pub(super) filled: &'a [Arc<Space>],
    /// The next numbers that counters get.
    pub(super) numbers: &'a [NextNumber<'t>],
    /// The changes of records that make all of it durable. They must not be used again.
    pub(super) records: &'a mut [Change],
    /// The transaction in the name of which it is carried out, if there is one: its own locks block nothing.
    pub(super) in_name_of: Option<&'a Arc<LockOwner>>,
}

/// A table that ends or gets another record.
pub(super) struct Closing<'t> {
    pub(super) table: &'t Arc<Table>,
    /// Its next record; `None` if it ends. Trees that it no longer names are dropped; trees that it newly names are
    /// empty, unless they were filled before.
    pub(super) record: Option<Box<TableRecord>>,
}

/// The next number that a counter gets.
pub(super) struct NextNumber<'t> {
    /// The table, unless it begins with this statement.
    pub(super) table: Option<&'t Table>,
    /// The clustered tree, which has a header.
    pub(super) tree: Arc<Tree>,
    pub(super) kind: CounterKind,
    pub(super) next: u64,
}

/// A plan that was carried out: what is left is to set and publish the names.
#[must_use = "the database is poisoned unless the names are published"]
pub(super) struct Done<'c> {
    dropped: Dropped,
    lock: Option<StatementLock<'c>>,
    statement: UnfinishedStatement<'c>,
}

impl Closing<'_> {
    /// Returns the trees of the table that no record is going to name.
    fn unnamed<'a>(&'a self, schema: &'a TableSchema) -> impl Iterator<Item = &'a Arc<Tree>> {
        let is_unnamed =
            |tree: &&Arc<Tree>| self.record.as_ref().is_none_or(|record| !record.names(tree.space().id()));
        schema.trees().filter(is_unnamed)
    }
}

impl Plan<'_, '_> {
    /// Returns whether trees are dropped, as far as can be said before the gates are closed.
    pub(super) fn drops_trees(&self) -> bool {
        let drops = |closing: &Closing<'_>| {
            closing.table.with_schema(|schema| closing.unnamed(schema).next().is_some())
        };
        self.closing.iter().any(drops)
    }

    /// Adds the tablespaces that it drops, of tables that are closed.
    fn put_dropped(&self, closed: &[Closed<'_>], ids: &mut SmallVec<[SpaceId; TREES_ON_STACK]>) {
        let schemas = || {
            let tables = self.closing.iter().zip(closed);
            tables.map(|(closing, closed)| (closing, closing.table.closed_schema(closed)))
        };
        // It has its final capacity if no table gets another record: the work per table of a drop does not depend on
        // the number of tables.
        ids.reserve_exact(schemas().map(|(_, schema)| schema.tree_count()).sum());
        for (closing, schema) in schemas() {
            if let Some(record) = &closing.record {
                assert!(record.id == schema.record.id, "a table has the same id as long as it exists");
                assert!(
                    record.version != schema.record.version,
                    "a definition that changes has a new version"
                );
            }
            closing.unnamed(schema).for_each(|tree| ids.push(tree.space().id()));
        }
    }

    /// Returns whether tables begin, or get another record.
    fn makes_schemas(&self) -> bool {
        !self.created.is_empty() || self.closing.iter().any(|closing| closing.record.is_some())
    }
}

impl Catalog {
    /// Commits a plan, and carries it out in memory, except for the names.
    pub(super) fn carry_out(
        &self,
        metadata_lock: &MetadataLock<'_>,
        plan: Plan<'_, '_>,
        options: DdlOptions,
    ) -> Result<Done<'_>> {
        let (closed, lock) = self.close_gates(metadata_lock, &plan, options)?;
        self.carry_out_closed(metadata_lock, plan, closed, lock, options)
    }

    /// As [`Catalog::carry_out`], once the gates of the plan are closed.
    pub(super) fn carry_out_closed<'c>(
        &'c self,
        metadata_lock: &MetadataLock<'_>,
        plan: Plan<'_, '_>,
        mut closed: SmallVec<[Closed<'_>; 1]>,
        lock: Option<StatementLock<'c>>,
        options: DdlOptions,
    ) -> Result<Done<'c>> {
        let mut ids = SmallVec::new();
        plan.put_dropped(&closed, &mut ids);
        let created_at = if plan.makes_schemas() { self.begin_schemas(&plan)? } else { None };
        if plan.renames {
            metadata_lock.begin_rename();
        }
        // If this fails, nothing has changed, or the database is poisoned.
        let effort = if plan.created.is_empty() { Effort::of(&ids) } else { Effort::NeedsRoom };
        let (lsn, statement) =
            self.change_with_numbers(plan.records, plan.numbers, &ids, effort, options.flush)?;
        self.pause.pass();
        for (closing, closed) in plan.closing.iter_mut().zip(&mut closed) {
            self.change_closed(closing, closed, lsn, plan.filled, created_at);
        }
        drop(closed);
        Ok(Done { dropped: Dropped { trees: ids.len(), lsn }, lock, statement })
    }

    /// Prepares tables that begin or get another record, whose gates are closed. Returns the time at which new trees
    /// begin.
    #[inline(never)]
    fn begin_schemas(&self, plan: &Plan<'_, '_>) -> Result<Option<TrxId>> {
        let created_at = self.transactions.stamp()?;
        for table in plan.created {
            table.with_schema(|schema| {
                debug_assert!(
                    schema.trees().all(|tree| !tree.space().is_dropped()),
                    "a tree was dropped before its table had a name"
                );
                schema.trees().for_each(|tree| tree.space().set_created_at(created_at));
            });
        }
        for number in plan.numbers {
            // The next request reads the ceiling again: that of before if the statement fails, which only skips some
            // numbers. A close of the database that comes meanwhile writes none.
            number.table.iter().for_each(|table| table.restart_counter(number.kind, number.next));
        }
        Ok(created_at)
    }

    /// Ends a table whose gate is closed, or gives it its next record. Trees that this does not name are dropped; `lsn`
    /// is the end of their drop in the log.
    pub(super) fn change_closed(
        &self,
        closing: &mut Closing<'_>,
        closed: &mut Closed<'_>,
        lsn: Option<Lsn>,
        filled: &[Arc<Space>],
        created_at: Option<TrxId>,
    ) {
        // Detached before they leave the table schema: until a tree is dropped it belongs to the table.
        closing.unnamed(closing.table.closed_schema(closed)).for_each(|tree| self.detach(tree, lsn));
        match closing.record.take() {
            Some(record) => self.change_schema(closing.table, closed, *record, filled, created_at),
            None => closing.table.end(),
        }
    }

    /// Gives a table the schema of its next record.
    #[inline(never)]
    fn change_schema(
        &self,
        table: &Table,
        closed: &mut Closed<'_>,
        record: TableRecord,
        filled: &[Arc<Space>],
        created_at: Option<TrxId>,
    ) {
        let schema = table.closed_schema(closed);
        let durability = schema.clustered.space().durability();
        // An alteration of the table that is not finished ends with its definition.
        schema.row_log.iter().for_each(|row_log| row_log.end());
        let kept = |id| schema.trees().find(|tree| tree.space().id() == id).cloned();
        let new = |id| {
            let space = filled.iter().find(|space| space.id() == id).cloned();
            let tree = self.tree(space.unwrap_or_else(|| Arc::new(Space::new(id, durability))));
            tree.space().set_created_at(created_at);
            tree
        };
        let tree = |id| kept(id).unwrap_or_else(|| new(id));
        let clustered = tree(record.clustered);
        let secondaries = record.indexes.iter().map(|index| tree(index.space)).collect();
        let metadata = record.metadata.space().map(tree);
        let schema = TableSchema { record, clustered, secondaries, metadata, row_log: None };
        assert!(
            schema.trees().all(|tree| !tree.space().is_dropped()),
            "a table gets a tree that was dropped"
        );
        self.retired.schema(table.change_schema(closed, schema));
    }

    /// Publishes the names of a plan that was carried out, after they were set; some may be those of `created` tables.
    pub(super) fn publish(
        &self,
        metadata_lock: MetadataLock<'_>,
        done: Done<'_>,
        created: &[Arc<Table>],
    ) -> Dropped {
        let Done { dropped, lock, statement } = done;
        // All but the names has changed.
        self.pause.pass();
        metadata_lock.publish_names(|before| {
            if before.take_ended() {
                self.retired.table(before);
            }
        });
        // A transaction that waits for a table then finds it dropped.
        drop(lock);
        statement.finished();
        // A switch of all tables did not find the new ones, because they were not visible yet.
        let hashed = self.hashed.load(SeqCst);
        for table in created {
            if table.is_hashed() != hashed {
                table.set_hash_index(hashed);
            }
        }
        dropped
    }
}

impl Dropped {
    /// The result of a statement that had nothing to do.
    pub(super) const NOTHING: Self = Self { trees: 0, lsn: None::<Lsn> };
}
