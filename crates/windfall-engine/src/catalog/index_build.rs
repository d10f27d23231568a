//! Online index build: adding secondary trees to a table that is in use.
//!
//! **Purpose.** A statement adds one index or several, and may change the table in other ways as well. Index entries
//! are collected in bounded memory, sorted, and bulk-loaded into the new trees, each from its first page to its last;
//! entries that exceed the memory are written to sorted runs and merged. One scan of the rows serves all trees. Row
//! calls run meanwhile, and note the entries that they change ([`RowLog`]). The notes are applied in rounds, the last
//! one with exclusive access to the table. If the notes become too many while rows are collected, the collected entries
//! are put into the trees, and the rest follows piece by piece; while entries are put into a tree, notes go to runs
//! as entries do. At the end the plan of the statement is carried out ([`Plan`]), with the trees as filled ones.
//!
//! *Two steps.* An alteration in two steps ([`two_steps`]) fills the trees, and leaves the end to a second call, which
//! may come any time later and then has little to do. It has no metadata lock between the two, and the writers wait for
//! no room ([`RowLog`]).
//!
//! *Chosen fields.* The function that makes the entries of an index gets the first bytes of a row's value or, if the
//! definition of the index says so (`IndexOptions::reading`), the value as a reader of some fields reads it: these
//! fields whole, however long they are. The scan, each application of an entry, and the notes then read it in this one
//! way, from the stored value of a version of the row:
//! - The scan and an application read the present version. If purge has freed a chain since, the version has been
//!   replaced, and the present one is read instead (`txn::mvcc::value`).
//! - A change notes what it replaces, which its key latch protects from purge, and its new value as it is stored, with
//!   chains that it has just written or keeps. A rollback reads what it undoes before it restores the row.
//! - One row's fields are in memory at a time, besides the notes ([`RowLog`]).
//! - The gate of a temporary table is closed while its trees are filled, so nothing is noted.
//!
//! *Transactions.* They lock, change and roll back rows meanwhile as usual. A change notes inside the gate, a rollback
//! outside of it (`txn::undo::followers`), so the tree follows the rows, committed or not. The new entries carry no
//! transaction id, and no undo record names them: readers treat them as committed, and purge and rollback of earlier
//! changes have no reference to them. So when the tree becomes an index, there must be no change of the table that may
//! still roll back. The waits:
//! - The first closing of the gate waits for the calls in progress.
//! - At the end, the statement waits for the transactions that have changed or locked rows of the table, and for
//!   background rollbacks of it, up to its timeout ([`LockError`] then names them). It applies
//!   notes meanwhile, because these may wait for room there. A wait for a prepared transaction, or for one that lasts
//!   hours, does not block others for long: a new writer waits at most for one turn of the statement in the table's
//!   queue (`txn::locks::turns`).
//! - New writers in a transaction wait while the statement holds the table's lock: until the notes of the last turn are
//!   applied, and for a commit.
//! - A writer or a rollback waits for room (backpressure) if it changes rows faster than notes are applied; the
//!   background worker continues with other transactions meanwhile.
//!
//! To finish while a transaction is open, the entries of its rows would need their versions, and its undo records would
//! need the touched index entries, which they were written without.
//!
//! **Invariants.**
//! - The table's gate is closed briefly at the beginning and at the end, under the metadata lock: to put the [`RowLog`]
//!   into its schema, so that
//!   every later change is noted, and every earlier one has ended or belongs to an open transaction; and for the last
//!   round and the record (test: `deferred_entries_are_applied_while_calls_continue`). No row call waits for the work
//!   between (test: `rows_change_while_an_index_is_built`).
//! - All indexes and the other changes of the statement take effect as one, or nothing has happened (tests:
//!   `a_crash_while_several_indexes_are_built_leaves_all_or_nothing`,
//!   `an_alteration_whose_indexes_cannot_be_built_has_changed_nothing`,
//!   `several_indexes_on_a_full_disk_are_all_there_or_none`).
//! - An entry is *applied* under its row's key latch: afterwards it is in the tree if and only if the row has it (test:
//!   `rows_change_while_an_index_is_built`). The rows are collected after the first closing (test:
//!   `rows_change_while_an_index_is_built`), so the tree has each row's entry of some moment since, and if that was not
//!   the last state of the row, a change has noted the entries of both sides (test:
//!   `old_and_new_index_keys_are_noted_once_and_unchanged_ones_are_not`). All notes taken after the collected entries
//!   were put are applied (checked by `index_build/filler.rs::decide`), so at the end each row has its entry, and no
//!   other (test: `an_index_is_built_under_more_writers_than_it_can_follow`).
//! - The function gets a row's value with the same fields wherever it is called (test:
//!   `an_index_is_built_of_long_fields_while_transactions_run`), and what a reader with these fields would read (test:
//!   `a_function_gets_the_chosen_fields_as_a_reader_of_them`). If a chosen field cannot be read, the build fails, and
//!   not the change (test: `a_chosen_field_that_cannot_be_read_ends_the_build_alone`).
//! - A change that its writer may still roll back is not final: a duplicate, or a key that is too long, is deferred and
//!   applied again, finally with exclusive access to the table (test: `only_committed_duplicates_fail_an_index_build`).
//!   A row that a rollback brings back is noted, and applied then (test:
//!   `transactions_of_every_kind_go_on_while_an_index_is_built`).
//! - Deferred entries are bounded by bytes, not by transactions: one transaction may cause many (test:
//!   `deferred_entries_are_bounded`). From half of the bound on, each applied note also applies one deferred entry
//!   again, the oldest (test: `deferred_entries_are_checked_again_in_turn`), so entries make room once their
//!   transactions have ended (test: `deferred_entries_make_room_when_their_transactions_end`). None is applied while
//!   the tree is loaded (checked by `index_build/filler.rs::apply`).
//! - Two live rows with one key of a unique tree are an error only if both have it at one moment, under both key
//!   latches (test: `two_rows_of_one_key_are_refused_only_if_they_have_it_at_one_time`). This is checked whenever an
//!   entry is put or applied next to another one of the same key, unless that entry will be applied again anyway (test:
//!   `an_index_build_with_many_equal_keys_has_linear_cost`). Of two rows that have the key at the end, one was put or
//!   applied last, and its check found the other (test: `any_transactions_run_during_an_index_build`).
//! - Until the table's record names a tree, it has no readers, and no undo record refers to it (checked by
//!   `catalog/table.rs::change_schema`): on a failure, and after a crash, it is dropped like any tree (tests:
//!   `a_crash_during_a_concurrent_index_build_leaves_all_or_nothing`,
//!   `a_crash_while_an_index_is_built_of_long_fields_leaves_all_or_nothing`), and a rollback notes what it changes
//!   (test: `transactions_of_every_kind_go_on_while_an_index_is_built`).

mod deferred;
mod filler;
mod two_steps;

use core::{any::Any, cell::RefCell};
use std::panic::resume_unwind;

use smallvec::SmallVec;

use self::{deferred::Deferred, filler::IndexFiller};
use super::{
    bulk::SORT_BUFFER_BYTES,
    ddl_options::DdlOptions,
    entry_maker::{EntryMaker, MadeEntry, MakeEntry},
    names::MetadataLock,
    plan::{Done, Plan},
    record::IndexRecord,
    row_log::{FilledTree, NOTES_LIMIT_BYTES, RowLog},
    state::Catalog,
    table::{Table, TableSchema},
};
use crate::{
    env::Env,
    error::{Error, LockError, Result, UsageError},
    row::FieldSet,
    store::Tree,
    sync::{Arc, Closed, work},
    txn::{EntryForm, Following, StatementLock, locks::TableMode, trx::background_rollback},
};
pub use two_steps::BuiltIndexes;

/// Makes the entry of a row in the index of this table with this name, as [`MakeEntry`].
pub type MakeEntryOf<'a> = dyn FnMut(&str, &str, &[u8], &[u8], &mut MadeEntry) -> Result<bool> + 'a;

/// Bytes of notes in memory that are written to disk at once between the steps of an alteration.
const RUN_BYTES: usize = 8 << 20;
/// The number of times for which they are.
const RUNS: usize = 128;

/// Memory bounds, in bytes, and the number of runs on disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Entries that are sorted in memory at a time.
    pub entries: usize,
    /// Notes while entries are collected or put; beyond that they are applied, or go to a run.
    pub notes: usize,
    /// Notes beyond which a change of a row waits. The same bound applies to deferred entries.
    pub most: usize,
    /// Notes between two steps, beyond which they go to a run.
    pub run: usize,
    /// The number of these runs.
    pub runs: usize,
}

impl Bounds {
    /// The bounds outside of tests.
    pub(super) const FULL: Self = Self {
        entries: SORT_BUFFER_BYTES,
        notes: NOTES_LIMIT_BYTES / 2,
        most: NOTES_LIMIT_BYTES,
        run: RUN_BYTES,
        runs: RUNS,
    };
}

/// The new secondary trees of a table that a statement fills.
pub(super) struct IndexBuild<'t> {
    pub(super) table: &'t Arc<Table>,
    /// The name of the table before the statement.
    pub(super) name: &'t str,
    /// The new indexes.
    pub(super) indexes: Vec<IndexRecord>,
    /// The fields of which the entries of each are made.
    pub(super) readings: Vec<FieldSet>,
    /// Their trees, which have no page yet.
    pub(super) trees: Vec<Arc<Tree>>,
    /// The mode in which the table is locked at the end: exclusive if the statement also does something else.
    pub(super) mode: TableMode,
}

/// New indexes whose trees are being filled, or are filled. Changes of rows are noted for them until this is dropped.
#[derive(Debug)]
struct NewIndexes {
    table: Arc<Table>,
    /// The name of the table before the statement.
    name: Arc<str>,
    indexes: Vec<IndexRecord>,
    readings: Vec<FieldSet>,
    trees: Vec<Arc<Tree>>,
    rows: Arc<Tree>,
    row_log: Arc<RowLog>,
    _following: Following,
    deferred: Deferred,
    /// Whether all entries that were collected are in the trees.
    are_filled: bool,
    bounds: Bounds,
}

impl Drop for NewIndexes {
    fn drop(&mut self) {
        // Wakes calls that wait for room, also when a panic has ended the build.
        self.row_log.end();
    }
}

/// Why an index build has failed.
pub(super) struct BuildFailed {
    error: Error,
    /// The panic of the function that makes entries.
    panic: Option<Box<dyn Any + Send>>,
}

impl BuildFailed {
    /// Returns the error, or goes on with the panic.
    pub(super) fn end(self) -> Error {
        match self.panic {
            Some(panic) => resume_unwind(panic),
            None => self.error,
        }
    }
}

impl NewIndexes {
    /// Begins to note the changes of a table, the name of which the caller has locked, for these indexes.
    ///
    /// # Errors
    /// As [`Table::close_all`].
    fn begin(catalog: &Catalog, build: &IndexBuild<'_>, options: DdlOptions) -> Result<Self, BuildFailed> {
        let IndexBuild { table, name, indexes, readings, trees, .. } = build;
        let filled = indexes.iter().zip(trees).zip(readings).map(|((index, tree), reading)| FilledTree {
            tree: tree.clone(),
            key: (!EntryMaker::notes_rows_of(index)).then(|| index.key.clone()),
            reading: *reading,
        });
        let (bounds, env) = (catalog.pause.bounds(), catalog.pool.context().env.clone());
        let row_log = Arc::new(RowLog::new(filled.collect(), bounds.most, env));
        let following = catalog.transactions.followers().follow(table.space(), row_log.clone());
        let closed = Table::close_all(core::iter::once(*table), catalog.time_limit(options));
        let mut closed = closed.map_err(|error| {
            // A rollback may wait for room in it.
            row_log.end();
            BuildFailed { error: error.into(), panic: None }
        })?;
        let closed = &mut closed[0];
        let old = table.closed_schema(closed).clone();
        let rows = old.clustered.clone();
        drop(table.change_schema(closed, TableSchema { row_log: Some(row_log.clone()), ..old }));
        Ok(Self {
            table: (*table).clone(),
            name: (*name).into(),
            indexes: indexes.clone(),
            readings: readings.clone(),
            trees: trees.clone(),
            rows,
            row_log,
            _following: following,
            deferred: Deferred::default(),
            are_filled: false,
            bounds,
        })
    }

    /// Returns whether the table notes changes for it: no statement has changed, truncated or dropped it since.
    fn is_current(&self) -> bool {
        let is_noting = |schema: &TableSchema| {
            schema.row_log.as_ref().is_some_and(|row_log| Arc::ptr_eq(row_log, &self.row_log))
        };
        self.table.with_schema(is_noting) && !self.rows.space().is_dropped()
    }

    /// Ends the noting of changes for good. If calls stay on the table for long, the ended log stays in the schema
    /// until the next statement replaces that.
    fn end_notes(&self, env: &dyn Env) {
        self.row_log.end();
        if let Ok(mut closed) = Table::close_all(core::iter::once(&self.table), Some((env.now(), env))) {
            self.note_no_more(&mut closed[0]);
        }
    }

    /// Ends the noting of changes, with the table's gate closed. The trees have all entries, or will be dropped.
    fn note_no_more(&self, closed: &mut Closed<'_>) {
        if self.is_current() {
            let schema = self.table.closed_schema(closed).clone();
            drop(self.table.change_schema(closed, TableSchema { row_log: None, ..schema }));
        }
    }
}

impl Catalog {
    /// Refuses what a build would have to wait for at its end, if the statement may not wait: it does not begin what it
    /// could not finish.
    pub(super) fn check_without_wait(
        &self,
        table: &Table,
        mode: TableMode,
        options: DdlOptions,
    ) -> Result<()> {
        let at_most = self.wait_left(options);
        if !at_most.is_zero() {
            return Ok(());
        }
        drop(self.transactions.lock_tables([table.space()], mode, at_most)?);
        background_rollback::await_rollbacks(&self.transactions, table.space(), at_most, &mut || Ok(false))
    }

    /// Refuses a build for a table that has one in progress: an alteration of it is not finished. The caller has the
    /// metadata lock.
    pub(super) fn check_builds_none(&self, table: &Table, name: &str) -> Result<()> {
        if self.transactions.followers().has(table.space()) {
            return Err(UsageError::AlterationOpen(name.into()).into());
        }
        Ok(())
    }

    /// Fills the new trees of a table from its rows, while row calls run, and then carries out the plan that names
    /// them. `make` makes the entries of the indexes for which the caller supplies them.
    ///
    /// # Errors
    /// [`SchemaError::DuplicateKey`](crate::error::SchemaError::DuplicateKey); errors of the function and of the log.
    /// Nothing has changed then, and the trees must be dropped.
    pub(super) fn build_indexes<'c>(
        &'c self,
        metadata_lock: &MetadataLock<'_>,
        plan: Plan<'_, '_>,
        build: &IndexBuild<'_>,
        make: Option<&mut MakeEntryOf<'_>>,
        options: DdlOptions,
    ) -> Result<Done<'c>, BuildFailed> {
        self.reported(build, || {
            metadata_lock.downgrade();
            let mut new = NewIndexes::begin(self, build, options)?;
            let done = self.fill_with(&mut [&mut new], make, |fillers| {
                fillers.iter().try_for_each(IndexFiller::fill)?;
                self.carry_out_built(metadata_lock, plan, fillers, build.mode, options)
            });
            if done.is_err() {
                new.end_notes(&*self.pool.context().env);
            }
            done
        })
    }

    /// Reports the begin and the end of a build.
    fn reported<T>(
        &self,
        build: &IndexBuild<'_>,
        run: impl FnOnce() -> Result<T, BuildFailed>,
    ) -> Result<T, BuildFailed> {
        let IndexBuild { name, indexes, .. } = build;
        let began = self.pool.context().env.now();
        tracing::info!(
            target: "windfall::ddl",
            table = name, indexes = indexes.len(), first = &*indexes[0].name, "an index build begins",
        );
        let done = run();
        let ms = self.pool.context().env.now().saturating_sub(began).as_millis() as u64;
        match &done {
            Ok(_) => {
                tracing::info!(target: "windfall::ddl", table = name, ms, "an index build is complete");
            }
            Err(BuildFailed { error, .. }) => {
                tracing::info!(target: "windfall::ddl", table = name, ms, %error, "an index build failed");
            }
        }
        done
    }

    /// Runs a step of the builds of indexes, of one table each, with their fillers.
    fn fill_with<T>(
        &self,
        all: &mut [&mut NewIndexes],
        make: Option<&mut MakeEntryOf<'_>>,
        run: impl FnOnce(&[IndexFiller<'_, '_>]) -> Result<T>,
    ) -> Result<T, BuildFailed> {
        let statement = self.unfinished_statement();
        let deferred: Vec<_> = all.iter_mut().map(|new| core::mem::take(&mut new.deferred)).collect();
        let (done, deferred) = {
            let make = make.map(RefCell::new);
            let mut functions: Vec<Vec<_>> = all
                .iter()
                .map(|new| {
                    new.indexes.iter().map(|index| function_of(&new.name, index, make.as_ref())).collect()
                })
                .collect();
            let of_tables = all.iter().zip(&mut functions);
            let makers: Vec<_> = of_tables
                .map(|(new, functions)| {
                    self.makers(&new.name, &new.indexes, (&new.trees, &new.readings), functions)
                })
                .collect();
            let of = all.iter().zip(&makers).zip(deferred);
            let fillers: Vec<_> =
                of.map(|((new, makers), deferred)| IndexFiller::new(self, new, makers, deferred)).collect();
            let done = run(&fillers);
            let panic = || makers.iter().flatten().find_map(EntryMaker::take_panic);
            let done = done.map_err(|error| BuildFailed { error, panic: panic() });
            (done, fillers.into_iter().map(IndexFiller::into_deferred).collect::<Vec<_>>())
        };
        all.iter_mut().zip(deferred).for_each(|(new, deferred)| new.deferred = deferred);
        statement.finished();
        done
    }

    /// Applies the last notes of filled trees with exclusive access to their tables, and carries out the plan that
    /// names the trees.
    fn carry_out_built<'c>(
        &'c self,
        metadata_lock: &MetadataLock<'_>,
        plan: Plan<'_, '_>,
        fillers: &[IndexFiller<'_, '_>],
        mode: TableMode,
        options: DdlOptions,
    ) -> Result<Done<'c>> {
        let (lock, closed) = self.close_built(&plan, fillers, mode, options)?;
        for filler in fillers {
            let is_of = |closed: &Closed<'_>| closed.is_of(filler.of.table.gate());
            assert!(closed.iter().any(is_of), "the gate of a table that gets indexes is closed");
            filler.owned(filler.decide())?;
        }
        // The next schemas of the tables have no row log. If the plan cannot be carried out, an alteration goes on with
        // its own.
        metadata_lock.upgrade();
        let _drop = plan.drops_trees().then(work::DropScope::begin);
        self.carry_out_closed(metadata_lock, plan, closed, Some(lock), options)
    }

    /// Waits until no open transaction has changed the tables of a plan, or with [`TableMode::Exclusive`] used them,
    /// and then closes their gates. The lock keeps transactions from changing the tables, and the gates keep out all
    /// other calls.
    fn close_built<'c, 't>(
        &'c self,
        plan: &Plan<'_, 't>,
        fillers: &[IndexFiller<'_, '_>],
        mode: TableMode,
        options: DdlOptions,
    ) -> Result<(StatementLock<'c>, SmallVec<[Closed<'t>; 1]>)> {
        let at_most = self.wait_left(options);
        let (transactions, env) = (&self.transactions, &self.pool.context().env);
        let began = env.now();
        let waited = || env.now().saturating_sub(began);
        let left = || at_most.saturating_sub(waited());
        // The error of a wait that begins after the timeout, or with the rest of it, does not include the waits before.
        let in_all = |error: Error| match error {
            Error::Lock(LockError::Busy(blockers) | LockError::TimedOut { blockers, .. })
                if !at_most.is_zero() =>
            {
                LockError::TimedOut { blockers, waited: waited() }.into()
            }
            error => error,
        };
        let apply = &mut || IndexFiller::apply_during_wait(fillers);
        let spaces = || fillers.iter().map(|filler| filler.of.rows.space().id());
        loop {
            fillers.iter().try_for_each(|filler| filler.owned(filler.begin_wait()))?;
            for space in spaces() {
                background_rollback::await_rollbacks(transactions, space, left(), apply).map_err(in_all)?;
            }
            let lock = match (&*plan.closing, plan.moved) {
                ([closing], []) => {
                    transactions.lock_table_in_turns(closing.table.space(), mode, left(), apply)
                }
                (closing, moved) => {
                    let all = closing.iter().map(|closing| &**closing.table).chain(moved.iter().copied());
                    transactions.lock_tables_meanwhile(all.map(Table::space), mode, left(), apply)
                }
            };
            let lock = match lock {
                // Of several tables it has locked some, and is a deadlock victim: it has released them, so the
                // others go on, and it waits again. What was built is worth more than another wait.
                Err(Error::Lock(LockError::Deadlock(_))) if !left().is_zero() => {
                    apply().map(drop)?;
                    continue;
                }
                lock => lock.map_err(in_all)?,
            };
            IndexFiller::apply_the_rest(fillers)?;
            let tables = plan.closing.iter().map(|closing| closing.table);
            let closed =
                Table::close_all(tables, self.time_limit(options)).map_err(|error| in_all(error.into()))?;
            // A rollback of a call outside of transactions may have been handed to the background just now.
            if spaces().all(|space| transactions.rollbacks().are_clear_of(space)) {
                return Ok((lock, closed));
            }
        }
    }
}

impl Catalog {
    /// Returns what makes the entries of new indexes of a table, in these trees, of values that are read with these
    /// fields.
    pub(super) fn makers<'m, 'f>(
        &'m self,
        table: &'m str,
        indexes: &'m [IndexRecord],
        (trees, readings): (&'m [Arc<Tree>], &[FieldSet]),
        functions: &'m mut [Option<Box<MakeEntry<'f>>>],
    ) -> Vec<EntryMaker<'m, 'f>> {
        let of = indexes.iter().zip(trees.iter().zip(readings)).zip(functions);
        of.map(|((index, (tree, reading)), function)| {
            let extraction = index.extractor.as_ref().map(|extractor| self.extractors.of(extractor));
            EntryMaker::new(table, index, (tree, *reading), function.as_deref_mut(), extraction)
        })
        .collect()
    }
}

/// Returns the function that makes the entries of an index of this table, if the caller supplies them.
pub(super) fn function_of<'f>(
    table: &'f str,
    index: &'f IndexRecord,
    make: Option<&'f RefCell<&'f mut MakeEntryOf<'_>>>,
) -> Option<Box<MakeEntry<'f>>> {
    let make = make.filter(|_| matches!(index.form, EntryForm::Supplied { .. }))?;
    Some(Box::new(|row, value, entry| (*make.borrow_mut())(table, &index.name, row, value, entry)))
}
