//! Online index build: adding a secondary tree to a table that is in use.
//!
//! **Purpose.** Index entries are collected in bounded memory, sorted, and bulk-loaded into the new tree from its first
//! page to its last; entries that exceed the memory are written to sorted runs and merged. Row calls run meanwhile, and
//! note the entries that they change ([`RowLog`]). The notes are applied in rounds, the last one with exclusive access
//! to the table. If the notes become too many while rows are collected, the collected entries are put into the tree,
//! and the rest follows piece by piece; while entries are put into the tree, notes go to a run like entries.
//!
//! *Transactions.* They lock, change and roll back rows meanwhile as usual. A change notes inside the gate, a rollback
//! outside of it (`txn::undo::followers`), so the tree follows the rows, committed or not. The new entries carry no
//! transaction id, and no undo record names them: readers treat them as committed, and purge and rollback of earlier
//! changes have no reference to them. So when the tree becomes an index, there must be no change of the table that may
//! still roll back. The waits:
//! - The first closing of the gate waits for the calls in progress.
//! - At the end, the statement waits for the transactions that have changed or locked rows of the table, and for
//!   background rollbacks of it, up to its timeout ([`LockError`](crate::error::LockError) then names them). It applies
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
//! - The table's gate is closed briefly at the beginning and at the end: to put the [`RowLog`] into its schema, so that
//!   every later change is noted, and every earlier one has ended or belongs to an open transaction; and for the last
//!   round and the record (test: `deferred_entries_are_applied_while_calls_continue`). No row call waits for the work
//!   between (test: `rows_change_while_an_index_is_built`).
//! - An entry is *applied* under its row's key latch: afterwards it is in the tree if and only if the row has it (test:
//!   `rows_change_while_an_index_is_built`). The rows are collected after the first closing (test:
//!   `rows_change_while_an_index_is_built`), so the tree has each row's entry of some moment since, and if that was not
//!   the last state of the row, a change has noted the entries of both sides (test:
//!   `old_and_new_index_keys_are_noted_once_and_unchanged_ones_are_not`). All notes taken after the collected entries
//!   were put are applied (checked by `index_build/filler.rs::decide`), so at the end each row has its entry, and no
//!   other (test: `an_index_is_built_under_more_writers_than_it_can_follow`).
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
//! - Until the table's record names the tree, it has no readers, and no undo record refers to it (checked by
//!   `catalog/table.rs::change_schema`): on a failure, and after a crash, it is dropped like any tree (test:
//!   `a_crash_during_a_concurrent_index_build_leaves_all_or_nothing`), and a rollback notes what it changes (test:
//!   `transactions_of_every_kind_go_on_while_an_index_is_built`).

mod deferred;
mod filler;

use self::filler::IndexFiller;
use super::{
    bulk::SORT_BUFFER_BYTES,
    ddl_options::DdlOptions,
    definition::IndexDefinition,
    entry_maker::{EntryMaker, MakeEntry},
    key,
    record::{IndexRecord, TableRecord},
    row_log::{NOTES_LIMIT_BYTES, RowLog},
    state::{Catalog, new_space, no_table, record_key},
    table::TableSchema,
};
use crate::{
    error::{Error, Result, SchemaError},
    log::FlushLog,
    store::Tree,
    sync::Arc,
    system::Change,
    txn::{locks::TableMode, trx::background_rollback},
};

/// Memory bounds, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Entries that are sorted in memory at a time.
    pub entries: usize,
    /// Notes while entries are collected or put; beyond that they are applied, or go to a run.
    pub notes: usize,
    /// Notes beyond which a change of a row waits. The same bound applies to deferred entries.
    pub most: usize,
}

impl Bounds {
    /// The bounds outside of tests.
    pub(super) const FULL: Self =
        Self { entries: SORT_BUFFER_BYTES, notes: NOTES_LIMIT_BYTES / 2, most: NOTES_LIMIT_BYTES };
}

impl Catalog {
    /// Adds a secondary tree and fills it from the rows, while row calls run. If the caller supplies the entries of
    /// the index, `make` makes those of the rows that exist.
    ///
    /// # Errors
    /// [`SchemaError`] for the names and the definition, and if two rows have one key in a unique tree;
    /// [`EntriesUnknown`](crate::error::UsageError::EntriesUnknown) without a function that the index needs; errors of
    /// the function and of the log.
    pub fn create_index(
        &self,
        name: &str,
        index: &IndexDefinition,
        make: Option<&mut MakeEntry<'_>>,
        options: DdlOptions,
    ) -> Result<()> {
        self.check_index(index)?;
        key::check_makes_entries(name, &index.name, index.form, make.is_some())?;
        let metadata_lock = self.lock_names(&[name], options)?;
        let table = metadata_lock.table(name).ok_or_else(|| no_table(name))?;
        let old = table.schema();
        let record = self.record_of_index(name, &old.record, index)?;
        metadata_lock.downgrade();
        let lock_timeout = self.wait_left(options);
        if lock_timeout.is_zero() {
            // A statement with a zero timeout does not begin what it could not finish without a wait.
            drop(self.transactions.lock_tables([table.space()], TableMode::Shared, lock_timeout)?);
            background_rollback::await_rollbacks(
                &self.transactions,
                table.space(),
                lock_timeout,
                &mut || Ok(false),
            )?;
        }
        let _making = self.make([record.space]);
        let tree = self.tree(new_space(record.space));
        let env = self.pool.context().env.clone();
        let bounds = self.pause.bounds();
        let key = make.is_none().then(|| record.key.clone());
        let row_log = Arc::new(RowLog::new(tree.clone(), key, bounds.most, env));
        let _following = self.transactions.followers().follow(table.space(), row_log.clone());
        let statement = self.unfinished_statement();
        let mut closed = table.gate().close();
        drop(table.change_schema(&mut closed, TableSchema { row_log: Some(row_log.clone()), ..old.clone() }));
        drop(closed);

        let maker = EntryMaker::new(name, &record, &tree, make);
        let filler = IndexFiller::new(self, name, &maker, &old.clustered, row_log, bounds);
        let with_owner = |error: Error| error.of(|space| filler.owner_of(space));
        let (alone, mut closed) = match filler.fill().and_then(|()| filler.close(table, lock_timeout)) {
            Ok((lock, closed)) => (Ok(lock), closed),
            Err(error) => (Err(with_owner(error)), table.gate().close()),
        };
        // The lock is released after the gate is opened again.
        let (added, _lock) = match alone {
            Ok(lock) => {
                let stamped =
                    self.transactions.stamp().map(|created_at| tree.space().set_created_at(created_at));
                let decided = stamped.and_then(|()| filler.decide().map_err(with_owner));
                let added = decided.and_then(|()| self.add_index(name, &old, &record, &tree, options.flush));
                (added, Some(lock))
            }
            Err(error) => (Err(error), None),
        };
        let (added, schema) = match added {
            Ok(schema) => (Ok(()), schema),
            Err(error) => (Err(error), old.clone()),
        };
        drop(table.change_schema(&mut closed, schema));
        drop(closed);
        // Notes and deferred entries may be many: they are freed while no call waits at the gate.
        drop(filler);
        statement.finished();
        if added.is_err()
            && let Err(error) = self.discard(&[&tree])
        {
            // The caller gets the error for which the index was refused, not this one.
            tracing::warn!(%error, "what was built of an index is dropped at the next opening");
        }
        maker.resume_panic();
        added
    }

    /// Returns the record of a new index of a table, if the table can have it.
    fn record_of_index(
        &self,
        name: &str,
        table: &TableRecord,
        index: &IndexDefinition,
    ) -> Result<IndexRecord> {
        if table.indexes.iter().any(|other| *other.name == *index.name) {
            let (table, index) = (name.into(), index.name.as_str().into());
            return Err(SchemaError::IndexExists { table, index }.into());
        }
        let record = self.new_index(index)?;
        // Checked before any work is done: the record that names the tree must fit.
        let mut named = table.clone();
        named.indexes.push(record.clone());
        self.check_length(name, named.encode().len())?;
        Ok(record)
    }

    /// Writes the table's record with the filled tree. Returns the new table schema. The gate must be closed.
    fn add_index(
        &self,
        name: &str,
        old: &TableSchema,
        index: &IndexRecord,
        tree: &Arc<Tree>,
        mode: FlushLog,
    ) -> Result<TableSchema> {
        assert!(
            tree.space().id() == index.space,
            "the record names another tree than the one that was filled"
        );
        let mut record = old.record.clone();
        record.version += 1;
        record.indexes.push(index.clone());
        debug_assert!(
            TableRecord::decode(&record.encode()).as_ref() == Some(&record),
            "the record of {name} would be read back as another one"
        );
        self.change(&mut [Change::put(record_key(name), record.encode())], &[], mode)?.1.finished();
        let mut secondaries = old.secondaries.clone();
        secondaries.push(tree.clone());
        Ok(TableSchema { record, secondaries, row_log: None, ..old.clone() })
    }
}
