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
//!   background rollbacks of it, up to its timeout ([`LockError`] then names them). It applies notes meanwhile, because
//!   these may wait for room there. A wait for a prepared transaction, or for one that lasts hours, does not block
//!   others for long: a new writer waits at most for one turn of the statement in the table's queue
//!   (`txn::locks::turns`).
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
//!   were put are applied (checked by `catalog/index_build.rs::decide`), so at the end each row has its entry, and no
//!   other (test: `an_index_is_built_under_more_writers_than_it_can_follow`).
//! - A change that its writer may still roll back is not final: a duplicate, or a key that is too long, is deferred and
//!   applied again, finally with exclusive access to the table (test: `only_committed_duplicates_fail_an_index_build`).
//!   A row that a rollback brings back is noted, and applied then (test:
//!   `transactions_of_every_kind_go_on_while_an_index_is_built`).
//! - Deferred entries are bounded by bytes, not by transactions: one transaction may cause many (test:
//!   `deferred_entries_are_bounded`). From half of the bound on, each applied note also applies one deferred entry
//!   again, the oldest (test: `deferred_entries_are_checked_again_in_turn`), so entries make room once their
//!   transactions have ended (test: `deferred_entries_make_room_when_their_transactions_end`). None is applied while
//!   the tree is loaded (checked by `catalog/index_build.rs::apply`).
//! - Two live rows with one key of a unique tree are an error only if both have it at one moment, under both key
//!   latches (test: `two_rows_of_one_key_are_refused_only_if_they_have_it_at_one_time`). This is checked whenever an
//!   entry is put or applied next to another one of the same key, unless that entry will be applied again anyway (test:
//!   `an_index_build_with_many_equal_keys_has_linear_cost`). Of two rows that have the key at the end, one was put or
//!   applied last, and its check found the other (test: `any_transactions_run_during_an_index_build`).
//! - Until the table's record names the tree, it has no readers, and no undo record refers to it (checked by
//!   `catalog/table.rs::change_schema`): on a failure, and after a crash, it is dropped like any tree (test:
//!   `a_crash_during_a_concurrent_index_build_leaves_all_or_nothing`), and a rollback notes what it changes (test:
//!   `transactions_of_every_kind_go_on_while_an_index_is_built`).

use core::{
    cell::{Cell, RefCell},
    time::Duration,
};
use std::collections::{BTreeSet, VecDeque};

use super::{
    bulk::{self, Load, SORT_BUFFER_BYTES},
    ddl_options::DdlOptions,
    definition::IndexDefinition,
    key,
    record::{IndexRecord, TableRecord},
    row_log::{NOTE_OVERHEAD_BYTES, NOTES_LIMIT_BYTES, RowLog},
    runs::Runs,
    state::{Catalog, new_space, no_table, record_key},
    table::{Table, TableSchema},
};
use crate::{
    error::{CorruptError, Error, LockError, Owner, Result, SchemaError, UsageError},
    ids::SpaceId,
    log::{FlushLog, LogReservation},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{Arc, Closed, Interrupt},
    system::Change,
    tree::{Room, Seek},
    txn::{
        StatementLock,
        locks::{TableMode, key_latch::KeyLatchGuard},
        mvcc::{CurrentVersion, value},
        row::secondary::{entry_key, index_key_of, split},
        trx::background_rollback,
    },
};

/// The maximum number of rounds before the gate is closed. With hundreds of threads at the table, each of them may note
/// something between two rounds.
const ROUNDS: usize = 20;
/// The rounds end after this many consecutive ones with no fewer notes than the best round before: notes arrive as
/// fast as they are applied, and further rounds would find no fewer. A single such round may be chance.
const NO_PROGRESS: usize = 2;
/// About this many notes may be left to apply while the gate is closed. Also the number of notes that are applied at a
/// time, and between two checks of a wait.
const NOTES_PER_CHECK: usize = 256;
/// The lowest limit of notes, in bytes, beyond which a change of a row waits.
const MIN_NOTES_LIMIT_BYTES: usize = 16 << 10;

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
    /// Adds a secondary tree and fills it from the rows, while row calls run.
    ///
    /// # Errors
    /// [`SchemaError`] for the names and the definition, and if two rows have one key in a unique tree; errors of the
    /// log.
    pub fn create_index(&self, name: &str, index: &IndexDefinition, options: DdlOptions) -> Result<()> {
        self.check_index(index)?;
        key::check_makes_entries(name, &index.name, index.form)?;
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
        let row_log = Arc::new(RowLog::new(tree.clone(), record.key.clone(), bounds.most, env));
        let _following = self.transactions.followers().follow(table.space(), row_log.clone());
        let statement = self.unfinished_statement();
        let mut closed = table.gate().close();
        drop(table.change_schema(&mut closed, TableSchema { row_log: Some(row_log.clone()), ..old.clone() }));
        drop(closed);

        let filler = IndexFiller {
            catalog: self,
            table: name,
            index: &record,
            rows: &old.clustered,
            row_log,
            bounds,
            deferred: RefCell::default(),
            is_loading: Cell::new(false),
        };
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

/// Fills a secondary tree.
struct IndexFiller<'a> {
    catalog: &'a Catalog,
    table: &'a str,
    index: &'a IndexRecord,
    rows: &'a Arc<Tree>,
    row_log: Arc<RowLog>,
    bounds: Bounds,
    deferred: RefCell<Deferred>,
    /// Whether the tree is being loaded: until the load ends, it is no tree into which an entry can be put.
    is_loading: Cell<bool>,
}

/// Deferred entries: the index would have to be refused because of them, but the changes of their rows may still roll
/// back.
#[derive(Default)]
struct Deferred {
    entries: BTreeSet<Arc<[u8]>>,
    /// The entries of `entries`, the oldest first.
    order: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

impl Deferred {
    fn put(&mut self, entry: &[u8]) {
        if !self.entries.contains(entry) {
            self.bytes += entry.len() + NOTE_OVERHEAD_BYTES;
            let entry: Arc<[u8]> = entry.into();
            self.order.push_back(entry.clone());
            self.entries.insert(entry);
        }
        debug_assert!(self.entries.len() == self.order.len(), "the order has each deferred entry once");
    }

    /// Takes the oldest one. If it took them in the order of their keys, a steady supply of new entries with higher
    /// keys could starve the others.
    fn take_next(&mut self) -> Option<Arc<[u8]>> {
        let next = self.order.pop_front()?;
        let was_there = self.entries.remove(&next);
        debug_assert!(was_there, "an entry in the order is deferred");
        self.bytes -= next.len() + NOTE_OVERHEAD_BYTES;
        debug_assert!(!self.entries.is_empty() || self.bytes == 0, "bytes are counted of no deferred entry");
        Some(next)
    }
}

/// The state of an entry, according to its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    /// The row does not have this index key.
    Absent,
    /// The row has this index key.
    Present,
    /// The row has this index key, unless its writer rolls back.
    Deferred,
    /// As `Deferred`, and the index cannot hold such an entry.
    DeferredAndUnfit,
}

impl Drop for IndexFiller<'_> {
    fn drop(&mut self) {
        // Wakes calls that wait for room, also when a panic has ended the build.
        self.row_log.end();
    }
}

impl<'a> IndexFiller<'a> {
    fn tree(&self) -> &Tree {
        self.row_log.tree()
    }

    /// Puts the entries of all rows, and applies what is noted meanwhile, until the notes are few or no longer become
    /// fewer. [`IndexFiller::apply_the_rest`] applies the rest, with a lower limit of notes.
    fn fill(&self) -> Result<()> {
        self.collect()?;
        let (mut fewest, mut rounds_without_progress) = (usize::MAX, 0);
        for _ in 0..ROUNDS {
            self.catalog.pause.pass();
            let applied = self.apply_noted()?;
            rounds_without_progress = if applied < fewest { 0 } else { rounds_without_progress + 1 };
            fewest = fewest.min(applied);
            if applied <= NOTES_PER_CHECK || rounds_without_progress == NO_PROGRESS {
                break;
            }
        }
        Ok(())
    }

    /// Waits until no open transaction has changed the table, and then closes the table's gate. The lock keeps
    /// transactions from changing the table, and the gate keeps out all other calls.
    fn close<'t>(&self, table: &'t Table, at_most: Duration) -> Result<(StatementLock<'a>, Closed<'t>)> {
        let catalog = self.catalog;
        let (transactions, env) = (&catalog.transactions, &catalog.pool.context().env);
        let (space, began) = (table.space(), env.now());
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
        loop {
            // Transactions must be able to continue until they end.
            self.row_log.limit(self.bounds.most);
            self.apply_deferred()?;
            background_rollback::await_rollbacks(transactions, space, left(), &mut || {
                self.apply_during_wait()
            })
            .map_err(in_all)?;
            let lock = transactions
                .lock_table_in_turns(space, left(), &mut || self.apply_during_wait())
                .map_err(in_all)?;
            self.apply_the_rest()?;
            let closed = table.gate().close();
            // A rollback of a call outside of transactions may have been handed to the background just now.
            if transactions.rollbacks().are_clear_of(space) {
                return Ok((lock, closed));
            }
        }
    }

    /// Returns an error if the database has stopped, or the statement is interrupted.
    fn check_continues(&self) -> Result<()> {
        if Interrupt::is_current_set() {
            return Err(LockError::Interrupted.into());
        }
        self.catalog.pool.context().health.check()
    }

    /// Applies notes during a wait: only some of them, so that a turn in the table's queue does not last as long as the
    /// application of all. Returns whether there are more.
    fn apply_during_wait(&self) -> Result<bool> {
        self.check_continues()?;
        self.catalog.pause.pass();
        Ok(self.apply_some(NOTES_PER_CHECK)? == NOTES_PER_CHECK)
    }

    /// Applies deferred entries, and notes until they are few. Transactions wait meanwhile.
    fn apply_the_rest(&self) -> Result<()> {
        // Deferred entries may be many. They can be decided now, except those of rows that the background still rolls
        // back.
        self.apply_deferred()?;
        // Each round has a lower limit of notes than the one before, so the last notes are few however busy the row
        // calls are.
        let mut limit = self.bounds.most;
        for _ in 0..ROUNDS {
            limit = (limit / 8).max(MIN_NOTES_LIMIT_BYTES);
            self.row_log.limit(limit.min(self.bounds.most));
            self.catalog.pause.pass();
            if self.apply_noted()? <= NOTES_PER_CHECK {
                break;
            }
        }
        Ok(())
    }

    /// The last round: no call is inside the table, and no change in it may still roll back.
    fn decide(&self) -> Result<()> {
        self.apply_noted()?;
        self.apply_deferred()?;
        let left = self.deferred.take().entries;
        assert!(left.is_empty(), "the rows of {} entries may still be rolled back", left.len());
        debug_assert!(self.row_log.count() == 0, "changes are noted that the new index does not have");
        Ok(())
    }

    fn collect(&self) -> Result<()> {
        let mut entries = Runs::new(self.catalog.pool.clone());
        let mut whole = true;
        let mut cursor = self.rows.cursor();
        let mut value = Vec::new();
        let mut more = cursor.seek(Seek::First)?;
        while more {
            self.check_continues()?;
            if let Some(header) = cursor.header().filter(|header| !header.is_deleted()) {
                value.clear();
                value.extend_from_slice(cursor.value());
                if value::resolve_indexed(self.rows, cursor.key(), header, &mut value)? {
                    let entry = entry_key(&self.index.key.key_of(&value), cursor.key());
                    if entry.len() <= self.tree().key_limit() && self.index.key.whole_key_of(&value).is_ok() {
                        entries.push(entry, ());
                    } else {
                        self.refuse_unfit(entry)?;
                    }
                }
            }
            self.catalog.pause.pass();
            if entries.bytes() >= self.bounds.entries {
                entries.spill(self.catalog.transactions.ids().space()?)?;
            }
            more = if self.are_notes_many() {
                whole = false;
                self.empty(&mut entries, false)?;
                self.apply_noted()?;
                // The cursor has read ahead entries with notes that were applied just now.
                let last = cursor.key().to_vec();
                cursor.seek(Seek::Above(&last))?
            } else {
                cursor.next()?
            };
        }
        self.empty(&mut entries, whole)
    }

    /// Loads entries into the empty tree, or puts them into a tree that may hold others already. Notes go to a run when
    /// they become many, so that no call waits for the last entry, and are applied afterwards.
    fn empty(&self, entries: &mut Runs<()>, load: bool) -> Result<()> {
        let mut noted = Runs::new(self.catalog.pool.clone());
        let emptied = if load { self.load(entries, &mut noted) } else { self.put(entries, &mut noted) };
        emptied?;
        noted.drain(|entry, ()| {
            self.apply_note(&entry)?;
            self.catalog.pause.pass();
            if self.are_notes_many() { self.apply_noted().map(drop) } else { Ok(()) }
        })
    }

    /// Loads the empty tree.
    fn load(&self, entries: &mut Runs<()>, noted: &mut Runs<()>) -> Result<()> {
        let mut load = Load::new(self.tree());
        self.is_loading.set(true);
        // The entries with the last entry's key against which the next entry must be checked.
        let mut alike: Vec<Vec<u8>> = Vec::new();
        entries.drain(|entry, ()| {
            load.push(&entry, EntryHeader::default(), &[])?;
            if self.index.unique {
                if !alike.first().is_some_and(|other| other.starts_with(index_key_of(&entry))) {
                    alike.clear();
                }
                let mut is_done = false;
                for other in &alike {
                    is_done = is_done || self.refuse_both(&entry, other)?;
                }
                if !is_done {
                    alike.push(entry);
                }
            }
            self.spill_notes(noted)
        })?;
        load.finish()?;
        self.is_loading.set(false);
        Ok(())
    }

    fn put(&self, entries: &mut Runs<()>, noted: &mut Runs<()>) -> Result<()> {
        entries.drain(|entry, ()| {
            let _room = self.admit(&entry)?;
            self.insert(&entry)?;
            self.refuse_duplicates(&entry)?;
            self.spill_notes(noted)
        })
    }

    fn are_notes_many(&self) -> bool {
        self.row_log.bytes() >= self.bounds.notes
    }

    fn spill_notes(&self, noted: &mut Runs<()>) -> Result<()> {
        self.catalog.pause.pass();
        if !self.are_notes_many() {
            return Ok(());
        }
        for entry in self.row_log.take() {
            if entry.len() <= self.tree().key_limit() {
                noted.push(entry, ());
            } else {
                self.refuse_unfit(entry)?;
            }
        }
        noted.spill(self.catalog.transactions.ids().space()?)
    }

    /// Applies as many entries as are noted now. Returns how many it applied.
    fn apply_noted(&self) -> Result<usize> {
        let (noted, mut applied) = (self.row_log.count(), 0);
        loop {
            // The notes are taken in small batches: taken notes no longer count towards the limit, so more may be
            // noted.
            let some = self.apply_some(NOTES_PER_CHECK)?;
            applied += some;
            if some < NOTES_PER_CHECK || applied >= noted {
                return Ok(applied);
            }
        }
    }

    /// Applies at most this many of the noted entries. Returns how many it applied.
    fn apply_some(&self, most: usize) -> Result<usize> {
        self.row_log.check_notes()?;
        let noted = self.row_log.take_some(most);
        for entry in &noted {
            self.apply_note(entry)?;
        }
        Ok(noted.len())
    }

    /// Applies a noted entry, and before that the oldest deferred entry if these are many.
    fn apply_note(&self, entry: &[u8]) -> Result<()> {
        let again = {
            let mut deferred = self.deferred.borrow_mut();
            if deferred.bytes < self.bounds.most / 2 { None } else { deferred.take_next() }
        };
        if let Some(again) = again {
            self.apply(&again)?;
        }
        self.apply(entry)
    }

    /// Applies the deferred entries again.
    fn apply_deferred(&self) -> Result<()> {
        let entries = self.deferred.take().entries;
        entries.iter().try_for_each(|entry| self.apply(entry))
    }

    fn apply(&self, entry: &[u8]) -> Result<()> {
        debug_assert!(!self.is_loading.get(), "an entry is applied while the tree is loaded");
        let _room = self.admit(entry)?;
        let row_lock = self.latch(&[entry])?;
        match self.entry_state(entry)? {
            EntryState::Present | EntryState::Deferred => self.insert(entry)?,
            standing => {
                if entry.len() <= self.tree().key_limit() {
                    self.remove(entry)?;
                }
                return if standing == EntryState::Absent { Ok(()) } else { self.defer(entry) };
            }
        }
        // Each row of a duplicate is checked under its latch, acquired in sorted order.
        drop(row_lock);
        self.refuse_duplicates(entry)
    }

    /// Defers an entry until the transactions that have changed the table have ended.
    fn defer(&self, entry: &[u8]) -> Result<()> {
        let mut deferred = self.deferred.borrow_mut();
        deferred.put(entry);
        if deferred.bytes < self.bounds.most {
            return Ok(());
        }
        Err(UsageError::TooManyDeferred(Owner::Unknown).into())
    }

    /// Waits for a log reservation for a change of an entry.
    fn admit(&self, entry: &[u8]) -> Result<LogReservation<'_>> {
        bulk::admit(&self.catalog.pool, entry.len())
    }

    fn insert(&self, entry: &[u8]) -> Result<()> {
        let mut mtr = Mtr::begin(&self.catalog.pool)?;
        let mut place = self.tree().seek_for_change(&mut mtr, entry, Room::Value(0))?;
        if place.header().is_none() {
            place.insert(&mut mtr, EntryHeader::default(), &[]);
        }
        mtr.commit()?;
        Ok(())
    }

    fn remove(&self, entry: &[u8]) -> Result<()> {
        let mut mtr = Mtr::begin(&self.catalog.pool)?;
        let place = self.tree().seek_for_change(&mut mtr, entry, Room::Keep)?;
        let small = place.header().is_some() && place.remove(&mut mtr);
        mtr.commit()?;
        if small { self.tree().maintain(entry) } else { Ok(()) }
    }

    fn owner(&self) -> Owner {
        Owner::Index { table: self.table.into(), index: self.index.name.clone() }
    }

    /// Returns the owner of the tablespace in an error: the table if it is the rows' tablespace, else the index.
    fn owner_of(&self, space: Option<SpaceId>) -> Owner {
        if space == Some(self.rows.space().id()) { Owner::Table(self.table.into()) } else { self.owner() }
    }

    fn parts<'e>(&self, entry: &'e [u8]) -> Result<(Vec<u8>, &'e [u8])> {
        split(entry).ok_or_else(|| {
            let what = "an entry that was just made makes no sense".into();
            CorruptError::Structure { owner: self.owner(), space: self.index.space, what }.into()
        })
    }

    /// Latches the rows of these entries: no call is changing them.
    fn latch(&self, entries: &[&[u8]]) -> Result<KeyLatchGuard<'_>> {
        let latches = self.catalog.transactions.key_latches();
        let space = self.rows.space().id();
        let names = entries.iter().map(|entry| Ok(latches.name(space, self.parts(entry)?.1)));
        Ok(latches.latch_all(names.collect::<Result<_>>()?))
    }

    /// Returns the state of an entry, according to its row. The row must be latched.
    ///
    /// # Errors
    /// The row has the index key, and the index cannot hold such an entry.
    fn entry_state(&self, entry: &[u8]) -> Result<EntryState> {
        let (index_key, row) = self.parts(entry)?;
        let (mut value, mut header) = (Vec::new(), None);
        let mut read = || {
            header = value::get_indexed(self.rows, row, &mut value)?;
            Ok(header)
        };
        let current = self.catalog.transactions.active().read_final(None, &mut read)?;
        let is_final = matches!(current, CurrentVersion::Final(_));
        let is_live = header.is_some_and(|header| !header.is_deleted());
        if !is_live || self.index.key.key_of(&value) != index_key {
            return Ok(EntryState::Absent);
        }
        let fits = if entry.len() > self.tree().key_limit() {
            Err(self.too_long(entry))
        } else {
            self.index.key.whole_key_of(&value).map(drop)
        };
        match fits {
            Ok(()) if is_final => Ok(EntryState::Present),
            Ok(()) => Ok(EntryState::Deferred),
            Err(error) if is_final => Err(error),
            Err(_) => Ok(EntryState::DeferredAndUnfit),
        }
    }

    /// Refuses a row with an index key that the index cannot hold, unless the change may roll back or the row has just
    /// changed.
    fn refuse_unfit(&self, entry: Vec<u8>) -> Result<()> {
        let _row = self.latch(&[&entry])?;
        if self.entry_state(&entry)? == EntryState::Absent { Ok(()) } else { self.defer(&entry) }
    }

    fn too_long(&self, entry: &[u8]) -> Error {
        UsageError::KeyTooLong { owner: self.owner(), length: entry.len(), limit: self.tree().key_limit() }
            .into()
    }

    /// Refuses a key of a unique tree that the entry's row and another row have.
    fn refuse_duplicates(&self, entry: &[u8]) -> Result<()> {
        if !self.index.unique {
            return Ok(());
        }
        let prefix = index_key_of(entry);
        let mut cursor = self.tree().cursor();
        let mut more = cursor.seek(Seek::AtLeast(prefix))?;
        while more && cursor.key().starts_with(prefix) {
            if cursor.key() != entry && self.refuse_both(entry, cursor.key())? {
                break;
            }
            more = cursor.next()?;
        }
        Ok(())
    }

    /// Refuses two entries of one key if both rows have them now and neither change may roll back. If one may, the
    /// first entry is deferred; if one row has changed, that is noted. Returns whether the first entry will be applied
    /// again in any case, so that it need not be checked against others: a transaction may give very many rows one key.
    fn refuse_both(&self, one: &[u8], other: &[u8]) -> Result<bool> {
        let _rows = self.latch(&[one, other])?;
        match (self.entry_state(one)?, self.entry_state(other)?) {
            (EntryState::Present, EntryState::Present) => {
                let row = other[index_key_of(other).len()..].into();
                Err(SchemaError::DuplicateKey { owner: self.owner(), row }.into())
            }
            (EntryState::Present | EntryState::Deferred, EntryState::Present | EntryState::Deferred) => {
                self.defer(one).map(|()| true)
            }
            (EntryState::Absent | EntryState::DeferredAndUnfit, _) => Ok(true),
            (_, EntryState::Absent | EntryState::DeferredAndUnfit) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_entries_are_checked_again_in_turn() {
        let mut deferred = Deferred::default();
        let entries = |from: u32| (from..from + 50).map(u32::to_be_bytes);
        entries(1000).for_each(|entry| deferred.put(&entry));
        // For each one that is taken and deferred again, a new one arrives: with a higher key than all others, or a
        // lower one.
        for (from, there) in [(2000, 50), (0, 100)] {
            let mut look_again = |entry: [u8; 4]| {
                let next = deferred.take_next().unwrap();
                deferred.put(&next);
                deferred.put(&next);
                deferred.put(&entry);
                next
            };
            let seen: BTreeSet<_> = (from..from + there).map(|n: u32| look_again(n.to_be_bytes())).collect();
            assert!(entries(1000).all(|entry| seen.contains(&entry[..])), "{from}: some were passed over");
        }
        assert_eq!(deferred.bytes, 200 * (4 + NOTE_OVERHEAD_BYTES));
        assert_eq!(core::iter::from_fn(|| deferred.take_next()).count(), 200);
        assert_eq!((deferred.bytes, deferred.entries.len()), (0, 0));
    }
}
