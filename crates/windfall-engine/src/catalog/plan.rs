//! What a statement does once it has the metadata locks on its names ([`Plan`]), and its execution.
//!
//! **Purpose.** All DDL statements end here, however many tables they create, drop, change and rename: one group of the
//! log with all their records, and then the same in memory.
//!
//! **Invariants.** Before anything changes, every name of the statement is locked, and the gates of the tables that end
//! or get another record are closed, after the transactions with locks on them have ended (checked by
//! `catalog/statement.rs::close_gates`). In memory all tables are changed before the first gate opens, and all gates
//! are open, or closed permanently, before the first name is published (test: `a_group_is_visible_as_one_step`). So a
//! thread that has seen a part of the statement finds all of it.
//!
//! The locks are taken in an order that excludes deadlocks of statements: the names sorted, with one acquisition
//! (checked by `catalog/names.rs::take`); then the tables in the lock table, which detects cycles with transactions
//! (test: `a_deadlock_of_a_transaction_and_a_statement_is_broken`); then the gates, all as one (checked by
//! `catalog/statement.rs::close_gates`), which wait for calls and for no statement.
//!
//! If the statement fails before its group is in the log, nothing has changed (test:
//! `a_group_that_is_refused_has_changed_nothing`); if the log fails after that, the database is poisoned.

use smallvec::SmallVec;

use super::{
    ddl_options::DdlOptions,
    names::MetadataLock,
    record::TableRecord,
    state::{Catalog, new_space},
    statement::{Dropped, Effort, UnfinishedStatement},
    table::{Table, TableSchema},
};
use crate::{
    buffer::Space,
    error::Result,
    ids::{Lsn, SpaceId},
    store::Tree,
    sync::{Arc, Closed, atomic::Ordering::SeqCst},
    system::Change,
    tablespace::CounterKind,
    txn::StatementLock,
};

/// A statement's list of up to this many trees is on the stack. Directly after many tables were freed, a request for
/// memory can cost glibc hundreds of microseconds.
const TREES_ON_STACK: usize = 64;

/// What a statement does to the tables of the names that it has locked.
#[derive(Default)]
pub(super) struct Plan<'t> {
    /// The tables that end.
    pub(super) dropped: SmallVec<[&'t Table; 1]>,
    /// The tables that get another record. Trees that it no longer names are dropped; trees that it newly names are
    /// empty, unless they were filled before.
    pub(super) changed: SmallVec<[(&'t Table, TableRecord); 1]>,
    /// The tables that get another name and nothing else: calls on them continue.
    pub(super) moved: SmallVec<[&'t Table; 1]>,
    /// The tables that begin.
    pub(super) created: SmallVec<[TableSchema; 1]>,
    /// Tablespaces of new trees that were filled before.
    pub(super) filled: SmallVec<[Arc<Space>; 1]>,
    /// The next numbers that counters get.
    pub(super) numbers: Vec<NextNumber<'t>>,
    /// The changes of records that make all of it durable.
    pub(super) records: SmallVec<[Change; 1]>,
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
    /// The new tables, in the order of the plan.
    pub(super) created: SmallVec<[Arc<Table>; 1]>,
    /// Whether new tables got hash indexes.
    hashed: bool,
    lock: Option<StatementLock<'c>>,
    statement: UnfinishedStatement<'c>,
}

impl Plan<'_> {
    /// Returns the tablespaces that its new records name, if some were filled.
    pub(super) fn spaces(&self) -> Vec<SpaceId> {
        if self.filled.is_empty() {
            return Vec::new();
        }
        let created = self.created.iter().map(|schema| &schema.record);
        let records = self.changed.iter().map(|(_, record)| record).chain(created);
        records.flat_map(TableRecord::spaces).collect()
    }
}

impl Catalog {
    /// Commits a plan, and carries it out in memory, except for the names.
    pub(super) fn carry_out(
        &self,
        metadata_lock: &MetadataLock<'_>,
        plan: Plan<'_>,
        options: DdlOptions,
    ) -> Result<Done<'_>> {
        let closing = plan.dropped.iter().copied().chain(plan.changed.iter().map(|(table, _)| *table));
        let (closed, lock) = self.close_gates(metadata_lock, closing, &plan.moved, options)?;
        self.carry_out_closed(plan, closed, lock, options)
    }

    /// As [`Catalog::carry_out`], once the gates are closed: of the tables that end, then of those that get another
    /// record.
    pub(super) fn carry_out_closed<'c>(
        &'c self,
        plan: Plan<'_>,
        mut closed: SmallVec<[Closed<'_>; 1]>,
        lock: Option<StatementLock<'c>>,
        options: DdlOptions,
    ) -> Result<Done<'c>> {
        let Plan { dropped, changed, created, filled, numbers, mut records, .. } = plan;
        let (closed_dropped, closed_changed) = closed.split_at_mut(dropped.len());
        let schemas =
            || dropped.iter().zip(&*closed_dropped).map(|(table, closed)| table.closed_schema(closed));
        let trees = || schemas().flat_map(TableSchema::trees);
        // It has its final capacity if no table changes: the work per table of a drop does not depend on their number.
        let mut ids = SmallVec::<[SpaceId; TREES_ON_STACK]>::with_capacity(
            schemas().map(TableSchema::tree_count).sum(),
        );
        trees().for_each(|tree| ids.push(tree.space().id()));
        for ((table, record), closed) in changed.iter().zip(&*closed_changed) {
            let schema = table.closed_schema(closed);
            assert!(record.id == schema.record.id, "a table has the same id as long as it exists");
            assert!(record.version != schema.record.version, "a definition that changes has a new version");
            ids.extend(schema.spaces().filter(|id| !record.names(*id)));
        }
        let is_drop = changed.is_empty() && created.is_empty();
        let created_at = if is_drop { None } else { Some(self.transactions.stamp()?) };
        let new_tree = |tree: &Tree| created_at.iter().for_each(|at| tree.space().set_created_at(*at));
        for schema in &created {
            debug_assert!(
                schema.trees().all(|tree| !tree.space().is_dropped()),
                "a tree was dropped before its table had a name"
            );
            schema.trees().for_each(|tree| new_tree(tree));
        }
        for number in &numbers {
            // The next request reads the ceiling again: that of before if the statement fails, which only skips some
            // numbers. A close of the database that comes meanwhile writes none.
            number.table.iter().for_each(|table| table.restart_counter(number.kind, number.next));
        }
        // If this fails, nothing has changed, or the database is poisoned.
        let effort = if created.is_empty() { Effort::of(&ids) } else { Effort::NeedsRoom };
        let (lsn, statement) =
            self.change_with_numbers(&mut records, &numbers, &ids, effort, options.flush)?;
        let hashed = self.hashed.load(SeqCst);
        let created = created.into_iter().map(|schema| Table::new(schema, hashed)).collect();
        if !is_drop {
            self.pause.pass();
        }
        for ((table, record), closed) in changed.into_iter().zip(closed_changed) {
            let schema = table.closed_schema(closed);
            let kept = |id| schema.trees().find(|tree| tree.space().id() == id).cloned();
            let new = |id| {
                let space = filled.iter().find(|space| space.id() == id).cloned();
                let tree = self.tree(space.unwrap_or_else(|| new_space(id)));
                new_tree(&tree);
                tree
            };
            let tree = |id| kept(id).unwrap_or_else(|| new(id));
            let clustered = tree(record.clustered);
            let secondaries = record.indexes.iter().map(|index| tree(index.space)).collect();
            let metadata = record.metadata.space().map(tree);
            // Detached before it leaves the table schema: until it is dropped it belongs to the table.
            let unnamed = |tree: &&Arc<Tree>| !record.names(tree.space().id());
            schema.trees().filter(unnamed).for_each(|tree| self.detach(tree, lsn));
            let schema = TableSchema { record, clustered, secondaries, metadata, row_log: None };
            assert!(
                schema.trees().all(|tree| !tree.space().is_dropped()),
                "a table gets a tree that was dropped"
            );
            self.retired.schema(table.change_schema(closed, schema));
        }
        trees().for_each(|tree| self.detach(tree, lsn));
        debug_assert!(trees().all(|tree| tree.space().is_dropped()), "a tree of a dropped table is in use");
        dropped.iter().for_each(|table| table.gate().close_permanently());
        dropped.iter().for_each(|table| table.restart_counters());
        drop(closed);
        Ok(Done { dropped: Dropped { trees: ids.len(), lsn }, created, hashed, lock, statement })
    }

    /// Publishes the names of a plan that was carried out, after they were set.
    pub(super) fn publish(&self, metadata_lock: MetadataLock<'_>, done: Done<'_>) -> Dropped {
        let Done { dropped, created, hashed, lock, statement } = done;
        metadata_lock.publish_names(|before| {
            if before.with_schema(|schema| schema.clustered.space().is_dropped()) {
                self.retired.table(before);
            }
        });
        // A transaction that waits for a table then finds it dropped.
        drop(lock);
        statement.finished();
        // A switch of all tables did not find the new ones, because they were not visible yet.
        let now = self.hashed.load(SeqCst);
        if now != hashed {
            created.iter().for_each(|table| table.set_hash_index(now));
        }
        dropped
    }
}

impl Dropped {
    /// The result of a statement that had nothing to do.
    pub(super) const NOTHING: Self = Self { trees: 0, lsn: None::<Lsn> };
}
