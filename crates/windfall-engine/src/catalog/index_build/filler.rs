//! The filling of the tree of a new index ([`IndexFiller`]).
//!
//! **Purpose.** Collects the entries of all rows, loads or puts them into the tree, and applies the notes of what
//! changes meanwhile, until nothing is left to apply.
//!
//! **Invariants.** Those of [`index_build`](super) (test: `any_transactions_run_during_an_index_build`).

use core::{
    cell::{Cell, RefCell},
    time::Duration,
};
use std::collections::BTreeSet;

use super::{
    super::{
        bulk::{self, Load},
        entry_maker::{EntryKey, EntryMaker},
        row_log::RowLog,
        runs::{EntryTail, Runs},
        state::Catalog,
        table::Table,
    },
    Bounds,
    deferred::Deferred,
};
use crate::{
    error::{Error, LockError, Owner, Result, SchemaError, UsageError},
    ids::SpaceId,
    log::LogReservation,
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{Arc, Closed, LongWork},
    tree::{Room, Seek},
    txn::{
        StatementLock,
        locks::key_latch::KeyLatchGuard,
        mvcc::{CurrentVersion, value},
        row::Entry,
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

/// Fills a secondary tree.
pub(super) struct IndexFiller<'a, 'f> {
    catalog: &'a Catalog,
    table: &'a str,
    maker: &'a EntryMaker<'a, 'f>,
    rows: &'a Arc<Tree>,
    row_log: Arc<RowLog>,
    bounds: Bounds,
    deferred: RefCell<Deferred>,
    /// Whether the tree is being loaded: until the load ends, it is no tree into which an entry can be put.
    is_loading: Cell<bool>,
}

/// The state of an entry, according to its row.
#[derive(Debug)]
enum EntryState {
    /// The row does not have this index key.
    Absent,
    /// The row has this index key, and its entry is this one.
    Present(Entry),
    /// The row has this entry, unless its writer rolls back.
    Deferred(Entry),
    /// As `Deferred`, and the index cannot hold such an entry.
    DeferredAndUnfit,
}

impl Drop for IndexFiller<'_, '_> {
    fn drop(&mut self) {
        // Wakes calls that wait for room, also when a panic has ended the build.
        self.row_log.end();
    }
}

impl<'a, 'f> IndexFiller<'a, 'f> {
    /// Fills the tree of a row log with the entries of these rows.
    pub(super) fn new(
        catalog: &'a Catalog,
        table: &'a str,
        maker: &'a EntryMaker<'a, 'f>,
        rows: &'a Arc<Tree>,
        row_log: Arc<RowLog>,
        bounds: Bounds,
    ) -> Self {
        Self {
            catalog,
            table,
            maker,
            rows,
            row_log,
            bounds,
            deferred: RefCell::default(),
            is_loading: Cell::new(false),
        }
    }

    fn tree(&self) -> &Arc<Tree> {
        self.row_log.tree()
    }

    /// Puts the entries of all rows, and applies what is noted meanwhile, until the notes are few or no longer become
    /// fewer. [`IndexFiller::apply_the_rest`] applies the rest, with a lower limit of notes.
    pub(super) fn fill(&self) -> Result<()> {
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
    pub(super) fn close<'t>(
        &self,
        table: &'t Table,
        at_most: Duration,
    ) -> Result<(StatementLock<'a>, Closed<'t>)> {
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
        LongWork::check()?;
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
    pub(super) fn decide(&self) -> Result<()> {
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
                    match self.maker.entry(cursor.key(), &value)? {
                        Some(entry) if self.maker.check(&entry, &value).is_ok() => {
                            self.maker.collect(entry, &mut entries);
                        }
                        Some(entry) => self.refuse_unfit(&EntryKey::from(&entry))?,
                        None => {}
                    }
                }
            }
            self.catalog.pause.pass();
            if entries.bytes() >= self.bounds.entries {
                self.spill(&mut entries)?;
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
    fn empty(&self, entries: &mut Runs<EntryTail>, load: bool) -> Result<()> {
        let mut noted = Runs::new(self.catalog.pool.clone());
        let emptied = if load { self.load(entries, &mut noted) } else { self.put(entries, &mut noted) };
        emptied?;
        noted.drain(|key, tail| {
            self.apply_note(&EntryKey::from(&self.maker.collected(key, &tail)?))?;
            self.catalog.pause.pass();
            if self.are_notes_many() { self.apply_noted().map(drop) } else { Ok(()) }
        })
    }

    /// Loads the empty tree.
    fn load(&self, entries: &mut Runs<EntryTail>, noted: &mut Runs<EntryTail>) -> Result<()> {
        let mut load = Load::new(self.tree());
        self.is_loading.set(true);
        // The entries with the last entry's index part against which the next entry must be checked.
        let mut alike: Vec<EntryKey> = Vec::new();
        entries.drain(|key, tail| {
            let entry = self.maker.collected(key, &tail)?;
            let loaded = load.push(&entry.key, EntryHeader::default(), &entry.value);
            loaded.map_err(|error| self.maker.of_equal_entries(error))?;
            if entry.is_unique {
                if !alike.first().is_some_and(|other| entry.key.starts_with(other.index_part())) {
                    alike.clear();
                }
                let entry = EntryKey::from(&entry);
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

    fn put(&self, entries: &mut Runs<EntryTail>, noted: &mut Runs<EntryTail>) -> Result<()> {
        entries.drain(|key, tail| {
            let entry = self.maker.collected(key, &tail)?;
            let _room = self.admit(&entry.key)?;
            self.insert(&entry)?;
            self.refuse_duplicates(&entry)?;
            self.spill_notes(noted)
        })
    }

    fn are_notes_many(&self) -> bool {
        self.row_log.bytes() >= self.bounds.notes
    }

    fn spill_notes(&self, noted: &mut Runs<EntryTail>) -> Result<()> {
        self.catalog.pause.pass();
        if !self.are_notes_many() {
            return Ok(());
        }
        let notes = self.row_log.take();
        // Notes of several versions of a row may be of one entry.
        let keys = notes.iter().filter_map(|note| self.maker.key_of_note(note).transpose());
        for key in keys.collect::<Result<BTreeSet<_>>>()? {
            if self.maker.fits(&key) {
                self.maker.collect_key(&key, noted);
            } else {
                self.refuse_unfit(&key)?;
            }
        }
        self.spill(noted)
    }

    /// Writes collected entries to a run.
    fn spill(&self, entries: &mut Runs<EntryTail>) -> Result<()> {
        let spilled = entries.spill(self.catalog.transactions.ids().space()?);
        spilled.map_err(|error| self.maker.of_equal_entries(error))
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
        LongWork::check()?;
        let noted = self.row_log.take_some(most);
        for note in &noted {
            if let Some(key) = self.maker.key_of_note(note)? {
                self.apply_note(&key)?;
            }
        }
        Ok(noted.len())
    }

    /// Applies a noted entry, and before that the oldest deferred entry if these are many.
    fn apply_note(&self, entry: &EntryKey) -> Result<()> {
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

    fn apply(&self, key: &EntryKey) -> Result<()> {
        debug_assert!(!self.is_loading.get(), "an entry is applied while the tree is loaded");
        let _room = self.admit(&key.bytes)?;
        let row_lock = self.latch(&[key]);
        let entry = match self.entry_state(key)? {
            EntryState::Present(entry) | EntryState::Deferred(entry) => entry,
            standing => {
                if self.maker.fits(key) {
                    self.remove(key)?;
                }
                return if matches!(standing, EntryState::Absent) { Ok(()) } else { self.defer(key) };
            }
        };
        self.insert(&entry)?;
        // Each row of a duplicate is checked under its latch, acquired in sorted order.
        drop(row_lock);
        self.refuse_duplicates(&entry)
    }

    /// Defers an entry until the transactions that have changed the table have ended.
    fn defer(&self, entry: &EntryKey) -> Result<()> {
        let mut deferred = self.deferred.borrow_mut();
        deferred.put(entry);
        if deferred.bytes < self.bounds.most {
            return Ok(());
        }
        Err(UsageError::TooManyDeferred(Owner::Unknown).into())
    }

    /// Waits for a log reservation for a change of an entry with this key.
    fn admit(&self, key: &[u8]) -> Result<LogReservation<'_>> {
        // A longer key is never written.
        let length = key.len().min(self.tree().key_limit());
        bulk::admit(&self.catalog.pool, length + self.maker.value_limit())
    }

    /// Puts an entry, or gives the one that is there its value.
    fn insert(&self, entry: &Entry) -> Result<()> {
        let mut mtr = Mtr::begin(&self.catalog.pool)?;
        let room = Room::Value(entry.value.len());
        let mut place = self.tree().seek_for_change(&mut mtr, &entry.key, room)?;
        let mut small = false;
        if place.header().is_none() {
            place.insert(&mut mtr, EntryHeader::default(), &entry.value);
        } else {
            let mut present = Vec::new();
            place.value_into(&mtr, &mut present);
            self.check_row(&EntryKey::from(entry), &present)?;
            if present != entry.value {
                small = place.replace(&mut mtr, EntryHeader::default(), &entry.value);
            }
        }
        mtr.commit()?;
        if small { self.tree().maintain(&entry.key) } else { Ok(()) }
    }

    fn remove(&self, key: &EntryKey) -> Result<()> {
        let mut mtr = Mtr::begin(&self.catalog.pool)?;
        let place = self.tree().seek_for_change(&mut mtr, &key.bytes, Room::Keep)?;
        let mut small = false;
        if place.header().is_some() {
            let mut present = Vec::new();
            place.value_into(&mtr, &mut present);
            self.check_row(key, &present)?;
            small = place.remove(&mut mtr);
        }
        mtr.commit()?;
        if small { self.tree().maintain(&key.bytes) } else { Ok(()) }
    }

    /// Refuses an entry with the bytes of another row's, which has this value in the tree.
    fn check_row(&self, key: &EntryKey, present: &[u8]) -> Result<()> {
        if self.maker.key_in_tree(&key.bytes, present)? == *key {
            return Ok(());
        }
        Err(UsageError::EntryOfOtherRow { owner: self.maker.owner() }.into())
    }

    /// Returns the owner of the tablespace in an error: the table if it is the rows' tablespace, else the index.
    pub(super) fn owner_of(&self, space: Option<SpaceId>) -> Owner {
        if space == Some(self.rows.space().id()) {
            Owner::Table(self.table.into())
        } else {
            self.maker.owner()
        }
    }

    /// Latches the rows of these entries: no call is changing them.
    fn latch(&self, entries: &[&EntryKey]) -> KeyLatchGuard<'_> {
        let latches = self.catalog.transactions.key_latches();
        let space = self.rows.space().id();
        latches.latch_all(entries.iter().map(|entry| latches.name(space, entry.row())).collect())
    }

    /// Returns the state of an entry, according to its row. The row must be latched.
    ///
    /// # Errors
    /// The row has the index key, and the index cannot hold such an entry; those of the function that makes entries.
    fn entry_state(&self, key: &EntryKey) -> Result<EntryState> {
        let (mut value, mut header) = (Vec::new(), None);
        let mut read = || {
            header = value::get_indexed(self.rows, key.row(), &mut value)?;
            Ok(header)
        };
        let current = self.catalog.transactions.active().read_final(None, &mut read)?;
        let is_final = matches!(current, CurrentVersion::Final(_));
        if header.is_none_or(EntryHeader::is_deleted) {
            return Ok(EntryState::Absent);
        }
        let Some(entry) = self.maker.entry(key.row(), &value)?.filter(|entry| key.is_of(entry)) else {
            return Ok(EntryState::Absent);
        };
        match self.maker.check(&entry, &value) {
            Ok(()) if is_final => Ok(EntryState::Present(entry)),
            Ok(()) => Ok(EntryState::Deferred(entry)),
            Err(error) if is_final => Err(error),
            Err(_) => Ok(EntryState::DeferredAndUnfit),
        }
    }

    /// Refuses a row with an index key that the index cannot hold, unless the change may roll back or the row has just
    /// changed.
    fn refuse_unfit(&self, key: &EntryKey) -> Result<()> {
        let _row = self.latch(&[key]);
        if matches!(self.entry_state(key)?, EntryState::Absent) { Ok(()) } else { self.defer(key) }
    }

    /// Refuses a key of a unique tree that the entry's row and another row have.
    fn refuse_duplicates(&self, entry: &Entry) -> Result<()> {
        if !entry.is_unique {
            return Ok(());
        }
        let (key, prefix) = (EntryKey::from(entry), entry.index_part());
        let mut cursor = self.tree().cursor();
        let mut more = cursor.seek(Seek::AtLeast(prefix))?;
        while more && cursor.key().starts_with(prefix) {
            if cursor.key() != entry.key {
                let other = self.maker.key_in_tree(cursor.key(), cursor.value())?;
                if self.refuse_both(&key, &other)? {
                    break;
                }
            }
            more = cursor.next()?;
        }
        Ok(())
    }

    /// Refuses two entries of one key if both rows have them now and neither change may roll back. If one may, the
    /// first entry is deferred; if one row has changed, that is noted. Returns whether the first entry will be applied
    /// again in any case, so that it need not be checked against others: a transaction may give very many rows one key.
    fn refuse_both(&self, one: &EntryKey, other: &EntryKey) -> Result<bool> {
        let _rows = self.latch(&[one, other]);
        match (self.entry_state(one)?, self.entry_state(other)?) {
            // The row has changed: its key may repeat now.
            (EntryState::Present(entry) | EntryState::Deferred(entry), _) if !entry.is_unique => Ok(false),
            (EntryState::Present(_), EntryState::Present(_)) => {
                Err(SchemaError::DuplicateKey { owner: self.maker.owner(), row: other.row().into() }.into())
            }
            (
                EntryState::Present(_) | EntryState::Deferred(_),
                EntryState::Present(_) | EntryState::Deferred(_),
            ) => self.defer(one).map(|()| true),
            (EntryState::Absent | EntryState::DeferredAndUnfit, _) => Ok(true),
            (_, EntryState::Absent | EntryState::DeferredAndUnfit) => Ok(false),
        }
    }
}
