//! The filling of the trees of new indexes ([`IndexFiller`]).
//!
//! **Purpose.** Collects the entries of all rows, for all trees in one scan, loads or puts them into the trees, one
//! after the other, and applies the notes of what changes meanwhile, until nothing is left to apply. Between the steps
//! of an alteration there is no filler; the next one goes on with the deferred entries of the last.
//!
//! **Invariants.** Those of [`index_build`](super) (tests: `any_transactions_run_during_an_index_build`,
//! `several_indexes_are_built_while_any_transactions_run`). The bound of the entries in memory is one for all trees
//! (test: `the_memory_of_several_sorts_is_bounded_as_one`). A turn of a wait applies few notes, and fewer if they are
//! long (test: `long_notes_are_applied_few_at_a_time_during_a_wait`).

use core::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::{
    super::{
        bulk::{self, Load},
        entry_maker::{EntryKey, EntryMaker, readings_of},
        row_count,
        row_log::{NOTES_LIMIT_BYTES, Note, Noted, RowLog, bytes_of},
        runs::{EntryTail, Runs},
        state::Catalog,
    },
    Bounds, NewIndexes,
    deferred::Deferred,
};
use crate::{
    error::{LockError, Owner, Result, SchemaError, UsageError},
    ids::SpaceId,
    log::LogReservation,
    mtr::Mtr,
    page::EntryHeader,
    row::FieldSet,
    store::Tree,
    sync::{Arc, LongWork, Phase, ReportedWork},
    tree::{Room, Seek},
    txn::{
        locks::key_latch::KeyLatchGuard,
        mvcc::{CurrentVersion, value},
        row::Entry,
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

/// A secondary tree that is being filled.
struct Filling<'a, 'f> {
    /// Its place among the trees.
    place: usize,
    maker: &'a EntryMaker<'a, 'f>,
    tree: &'a Arc<Tree>,
    /// Whether its collected entries were loaded or put: until then it is no tree into which a noted entry can be put.
    takes_entries: Cell<bool>,
}

/// Fills secondary trees.
pub(super) struct IndexFiller<'a, 'f> {
    catalog: &'a Catalog,
    pub(super) of: &'a NewIndexes,
    trees: Vec<Filling<'a, 'f>>,
    rows: &'a Arc<Tree>,
    /// The different sets of fields with which the makers read rows.
    readings: SmallVec<[FieldSet; 1]>,
    row_log: &'a RowLog,
    bounds: Bounds,
    deferred: RefCell<Deferred>,
    /// The place of the tree on which it works, for errors.
    current: Cell<usize>,
}

/// Entries of each tree.
type Collected = Vec<Runs<EntryTail>>;

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

impl<'a, 'f> IndexFiller<'a, 'f> {
    /// Fills the trees of new indexes, each with the entries that its maker makes of the rows, or goes on with trees
    /// that are filled.
    pub(super) fn new(
        catalog: &'a Catalog,
        of: &'a NewIndexes,
        makers: &'a [EntryMaker<'a, 'f>],
        deferred: Deferred,
    ) -> Self {
        assert!(
            makers.len() == of.trees.len()
                && of.row_log.trees().zip(&of.trees).all(|(noted, tree)| Arc::ptr_eq(noted, tree)),
            "each tree that is filled has its maker and its notes"
        );
        let filling =
            |(place, (maker, tree))| Filling { place, maker, tree, takes_entries: Cell::new(of.are_filled) };
        Self {
            catalog,
            of,
            readings: readings_of(makers),
            trees: makers.iter().zip(&of.trees).enumerate().map(filling).collect(),
            rows: &of.rows,
            row_log: &of.row_log,
            bounds: of.bounds,
            deferred: RefCell::new(deferred),
            current: Cell::new(0),
        }
    }

    /// Returns the deferred entries, which the next filler of these trees applies.
    pub(super) fn into_deferred(self) -> Deferred {
        self.deferred.into_inner()
    }

    /// Gives an error of its work the name of the table or index.
    pub(super) fn owned<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| error.of(|space| self.owner_of(space)))
    }

    /// Makes a tree the one that errors name.
    fn work_on(&self, at: &Filling<'_, '_>) {
        self.current.set(at.place);
    }

    /// Puts the entries of all rows, and applies what is noted meanwhile, as [`IndexFiller::catch_up`].
    pub(super) fn fill(&self) -> Result<()> {
        self.owned(self.collect())?;
        Self::catch_up(core::slice::from_ref(self))
    }

    /// Applies what is noted for the fillers of some tables, in turn, until the notes are few in all, or no longer
    /// become fewer. [`IndexFiller::apply_the_rest`] applies the rest, with a lower limit of notes.
    pub(super) fn catch_up(all: &[Self]) -> Result<()> {
        let (mut fewest, mut rounds_without_progress) = (usize::MAX, 0);
        for _ in 0..ROUNDS {
            let applied = Self::apply_noted_of(all)?;
            rounds_without_progress = if applied < fewest { 0 } else { rounds_without_progress + 1 };
            fewest = fewest.min(applied);
            if applied <= NOTES_PER_CHECK || rounds_without_progress == NO_PROGRESS {
                break;
            }
        }
        Ok(())
    }

    /// Applies deferred entries before a wait for transactions, which must be able to continue until they end: notes
    /// are applied meanwhile, so a change that waits for room waits no longer than for that. Without the limit, changes
    /// faster than their notes are applied would leave any number of notes to the time under the locks.
    pub(super) fn begin_wait(&self) -> Result<()> {
        self.row_log.limit(self.bounds.most);
        self.apply_deferred()
    }

    /// Returns an error if the database has stopped, or the statement is interrupted.
    fn check_continues(&self) -> Result<()> {
        LongWork::check()?;
        self.catalog.pool.context().health.check()
    }

    /// Applies notes during a wait, those of the table that has the most: only some of them, so that a turn in the
    /// table's queue does not last as long as the application of all, whatever the number of tables. Returns whether
    /// there are more.
    pub(super) fn apply_during_wait(all: &[Self]) -> Result<bool> {
        ReportedWork::begin(Phase::Transactions, 0)?;
        let Some(most) = all.iter().max_by_key(|filler| filler.row_log.count()) else { return Ok(false) };
        most.check_continues()?;
        most.catalog.pause.pass();
        for filler in all {
            filler.of.provide(filler.catalog)?;
        }
        // Long notes are fewer: the turn lasts no longer because of them.
        most.owned(most.apply_few(NOTES_PER_CHECK)).map(|(_, are_more)| are_more)
    }

    /// Applies deferred entries, and notes until they are few in all. Transactions wait meanwhile.
    pub(super) fn apply_the_rest(all: &[Self]) -> Result<()> {
        // Deferred entries may be many. They can be decided now, except those of rows that the background still rolls
        // back.
        all.iter().try_for_each(|filler| filler.owned(filler.apply_deferred()))?;
        // Each round has a lower limit of notes than the one before, so the last notes are few however busy the row
        // calls are.
        let mut limit = NOTES_LIMIT_BYTES;
        for _ in 0..ROUNDS {
            limit = (limit / 8).max(MIN_NOTES_LIMIT_BYTES);
            let of_each = (limit / all.len().max(1)).max(1);
            for filler in all {
                filler.row_log.limit(of_each.min(filler.bounds.most));
            }
            if Self::apply_noted_of(all)? <= NOTES_PER_CHECK {
                break;
            }
        }
        Ok(())
    }

    /// Applies as many entries as are noted now for each of the tables. Returns how many it applied.
    fn apply_noted_of(all: &[Self]) -> Result<usize> {
        all.iter().try_fold(0, |applied, filler| {
            filler.catalog.pause.pass();
            Ok(applied + filler.owned(filler.apply_noted())?)
        })
    }

    /// The last round: no call is inside the table, and no change in it may still roll back.
    pub(super) fn decide(&self) -> Result<()> {
        // Unreported: the callback might use the table, whose gate is closed.
        while self.apply_some(NOTES_PER_CHECK)? == NOTES_PER_CHECK {}
        self.apply_deferred()?;
        let left = self.deferred.take().entries;
        assert!(left.is_empty(), "the rows of {} entries may still be rolled back", left.len());
        debug_assert!(self.row_log.count() == 0, "changes are noted that the new index does not have");
        Ok(())
    }

    /// Returns a collection without entries for each tree.
    fn collection(&self) -> Collected {
        self.trees.iter().map(|_| Runs::new(self.catalog.pool.clone())).collect()
    }

    fn collect(&self) -> Result<()> {
        let mut entries = self.collection();
        let mut whole = true;
        let rows = row_count::recorded(self.rows)?.max(0).cast_unsigned();
        let mut work = ReportedWork::begin(Phase::Rows, rows)?;
        let mut cursor = self.rows.cursor();
        let mut value = Vec::new();
        let mut more = cursor.seek(Seek::First)?;
        while more {
            self.check_continues()?;
            work.advance(1)?;
            if let Some(header) = cursor.header().filter(|header| !header.is_deleted()) {
                for reading in &self.readings {
                    value.clear();
                    value.extend_from_slice(cursor.value());
                    if value::resolve(self.rows, cursor.key(), header, *reading, &mut value)? {
                        self.collect_row(cursor.key(), &value, *reading, &mut entries)?;
                    }
                }
            }
            self.catalog.pause.pass();
            if entries.iter().map(Runs::bytes).sum::<usize>() >= self.bounds.entries {
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

    /// Collects the entries of a row that are made of its value as it was read.
    fn collect_row(
        &self,
        row: &[u8],
        value: &[u8],
        reading: FieldSet,
        entries: &mut Collected,
    ) -> Result<()> {
        let of_all = self.trees.iter().zip(entries);
        for (at, entries) in of_all.filter(|(at, _)| at.maker.reading() == reading) {
            self.work_on(at);
            for entry in at.maker.entries(row, value)? {
                if at.maker.check(&entry, value).is_ok() {
                    at.maker.collect(entry, entries);
                } else {
                    self.refuse_unfit(at, &EntryKey::from(&entry))?;
                }
            }
        }
        Ok(())
    }

    /// Loads entries into the empty trees, or puts them into trees that may hold others already. Notes go to runs when
    /// they become many, so that no call waits for the last entry, and are applied when all trees have their entries.
    fn empty(&self, entries: &mut Collected, load: bool) -> Result<()> {
        let mut noted = self.collection();
        let mut work = ReportedWork::begin(Phase::Entries, entries.iter().map(Runs::count).sum())?;
        for (at, entries) in self.trees.iter().zip(entries) {
            self.work_on(at);
            if load {
                self.load(at, entries, &mut noted, &mut work)?;
            } else {
                self.put(at, entries, &mut noted, &mut work)?;
            }
            at.takes_entries.set(true);
        }
        let mut work = ReportedWork::begin(Phase::Changes, noted.iter().map(Runs::count).sum())?;
        for (at, noted) in self.trees.iter().zip(&mut noted) {
            noted.drain(|key, tail| {
                self.work_on(at);
                work.advance(1)?;
                self.apply_note(at, &EntryKey::from(&at.maker.collected(key, &tail)?))?;
                self.catalog.pause.pass();
                if self.are_notes_many() { self.apply_noted().map(drop) } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    /// Loads an empty tree.
    fn load(
        &self,
        at: &Filling<'_, '_>,
        entries: &mut Runs<EntryTail>,
        noted: &mut Collected,
        work: &mut ReportedWork,
    ) -> Result<()> {
        let mut load = Load::new(at.tree);
        // The entries with the last entry's index part against which the next entry must be checked.
        let mut alike: Vec<EntryKey> = Vec::new();
        entries.drain(|key, tail| {
            self.work_on(at);
            work.advance(1)?;
            let entry = at.maker.collected(key, &tail)?;
            let loaded = load.push(&entry.key, EntryHeader::default(), &entry.value);
            loaded.map_err(|error| at.maker.of_equal_entries(error))?;
            if entry.is_unique {
                if !alike.first().is_some_and(|other| entry.key.starts_with(other.index_part())) {
                    alike.clear();
                }
                let entry = EntryKey::from(&entry);
                let mut is_done = false;
                for other in &alike {
                    is_done = is_done || self.refuse_both(at, &entry, other)?;
                }
                if !is_done {
                    alike.push(entry);
                }
            }
            self.spill_notes(noted)
        })?;
        load.finish()
    }

    fn put(
        &self,
        at: &Filling<'_, '_>,
        entries: &mut Runs<EntryTail>,
        noted: &mut Collected,
        work: &mut ReportedWork,
    ) -> Result<()> {
        entries.drain(|key, tail| {
            self.work_on(at);
            work.advance(1)?;
            let entry = at.maker.collected(key, &tail)?;
            let _room = self.admit(at, &entry.key)?;
            self.insert(at, &entry)?;
            self.refuse_duplicates(at, &entry)?;
            self.spill_notes(noted)
        })
    }

    fn are_notes_many(&self) -> bool {
        self.row_log.bytes() >= self.bounds.notes
    }

    fn spill_notes(&self, noted: &mut Collected) -> Result<()> {
        self.catalog.pause.pass();
        if !self.are_notes_many() {
            return Ok(());
        }
        let notes = self.row_log.take();
        // Notes of several versions of a row may be of one entry.
        let mut keys = BTreeSet::new();
        for note in &notes {
            self.for_each_noted(note, |at, key| {
                keys.insert((at.place, key));
                Ok(())
            })?;
        }
        for (place, key) in keys {
            let at = &self.trees[place];
            self.work_on(at);
            if at.maker.fits(&key) {
                at.maker.collect_key(&key, &mut noted[place]);
            } else {
                self.refuse_unfit(at, &key)?;
            }
        }
        self.spill(noted)
    }

    /// Writes collected entries to runs.
    fn spill(&self, entries: &mut Collected) -> Result<()> {
        for (at, entries) in self.trees.iter().zip(entries).filter(|(_, entries)| entries.bytes() > 0) {
            self.work_on(at);
            at.maker.spill(entries, self.catalog.transactions.ids())?;
        }
        Ok(())
    }

    /// Passes on the entries that may have changed according to a note, each with its tree.
    fn for_each_noted(
        &self,
        (noted, bytes): &Note,
        mut take: impl FnMut(&Filling<'_, '_>, EntryKey) -> Result<()>,
    ) -> Result<()> {
        let is_of = |at: &&Filling<'_, '_>| match *noted {
            Noted::Entry(place) => at.place == place,
            Noted::Row | Noted::Read(_) => {
                at.maker.notes_rows() && self.row_log.noted_with(at.maker.reading()) == *noted
            }
        };
        for at in self.trees.iter().filter(is_of) {
            self.work_on(at);
            at.maker.keys_of_note(bytes)?.into_iter().try_for_each(|key| take(at, key))?;
        }
        Ok(())
    }

    /// Applies as many entries as are noted now. Returns how many it applied.
    fn apply_noted(&self) -> Result<usize> {
        let (noted, mut applied) = (self.row_log.count(), 0);
        let mut work = ReportedWork::begin(Phase::Changes, noted as u64)?;
        loop {
            // The notes are taken in small batches: taken notes no longer count towards the limit, so more may be
            // noted.
            let some = self.apply_some(NOTES_PER_CHECK)?;
            applied += some;
            work.advance(some as u64)?;
            self.of.provide(self.catalog)?;
            if some < NOTES_PER_CHECK || applied >= noted {
                return Ok(applied);
            }
        }
    }

    /// Applies at most this many of the noted entries. Returns how many it applied.
    fn apply_some(&self, most: usize) -> Result<usize> {
        let mut applied = 0;
        while applied < most {
            let (some, _) = self.apply_few(most - applied)?;
            if some == 0 {
                break;
            }
            applied += some;
        }
        Ok(applied)
    }

    /// Applies what the row log gives at a time: at most this many of the noted entries, and few if they are long.
    /// Returns how many it applied, and whether there may be more.
    fn apply_few(&self, most: usize) -> Result<(usize, bool)> {
        self.row_log.check_notes()?;
        LongWork::check()?;
        let noted = self.row_log.take_some(most)?;
        let are_more = RowLog::are_enough(noted.len(), noted.iter().map(bytes_of).sum(), most);
        let apply = |note| self.for_each_noted(note, |at, key| self.apply_note(at, &key));
        if let Err(error) = noted.iter().try_for_each(apply) {
            // An alteration may go on after an error. To apply a note again does no harm.
            self.row_log.put_back(noted);
            return Err(error);
        }
        Ok((noted.len(), are_more))
    }

    /// Applies a noted entry, and before that the oldest deferred entry if these are many.
    fn apply_note(&self, at: &Filling<'_, '_>, entry: &EntryKey) -> Result<()> {
        let again = {
            let mut deferred = self.deferred.borrow_mut();
            if deferred.bytes < self.bounds.most / 2 { None } else { deferred.take_next() }
        };
        if let Some((place, again)) = again {
            let applied = self.apply(&self.trees[place], &again);
            applied.inspect_err(|_| self.deferred.borrow_mut().put(place, &again))?;
        }
        self.apply(at, entry)
    }

    /// Applies the deferred entries again.
    pub(super) fn apply_deferred(&self) -> Result<()> {
        let entries = self.deferred.take().entries;
        let applied = entries.iter().try_for_each(|(place, entry)| self.apply(&self.trees[*place], entry));
        applied.inspect_err(|_| {
            let mut deferred = self.deferred.borrow_mut();
            for (place, entry) in &entries {
                deferred.put(*place, entry);
            }
        })
    }

    fn apply(&self, at: &Filling<'_, '_>, key: &EntryKey) -> Result<()> {
        debug_assert!(at.takes_entries.get(), "an entry is applied while the tree is loaded");
        self.work_on(at);
        let _room = self.admit(at, &key.bytes)?;
        let row_lock = self.latch(&[key])?;
        let entry = match self.entry_state(at, key)? {
            EntryState::Present(entry) | EntryState::Deferred(entry) => entry,
            standing => {
                if at.maker.fits(key) {
                    self.remove(at, key)?;
                }
                return if matches!(standing, EntryState::Absent) { Ok(()) } else { self.defer(at, key) };
            }
        };
        self.insert(at, &entry)?;
        // Each row of a duplicate is checked under its latch, acquired in sorted order.
        drop(row_lock);
        self.refuse_duplicates(at, &entry)
    }

    /// Defers an entry until the transactions that have changed the table have ended.
    fn defer(&self, at: &Filling<'_, '_>, entry: &EntryKey) -> Result<()> {
        let mut deferred = self.deferred.borrow_mut();
        deferred.put(at.place, entry);
        if deferred.bytes < self.bounds.most {
            return Ok(());
        }
        Err(UsageError::TooManyDeferred(Owner::Unknown).into())
    }

    /// Waits for a log reservation for a change of an entry with this key.
    fn admit(&self, at: &Filling<'_, '_>, key: &[u8]) -> Result<LogReservation<'_>> {
        // A longer key is never written.
        let length = key.len().min(at.tree.key_limit());
        bulk::admit(&self.catalog.pool, length + at.maker.value_limit())
    }

    /// Puts an entry, or gives the one that is there its value.
    fn insert(&self, at: &Filling<'_, '_>, entry: &Entry) -> Result<()> {
        let mut mtr = Mtr::begin(&self.catalog.pool)?;
        let room = Room::Value(entry.value.len());
        let mut place = at.tree.seek_for_change(&mut mtr, &entry.key, room)?;
        let mut small = false;
        if place.header().is_none() {
            place.insert(&mut mtr, EntryHeader::default(), &entry.value);
        } else {
            let mut present = Vec::new();
            place.value_into(&mtr, &mut present);
            Self::check_row(at, &EntryKey::from(entry), &present)?;
            if present != entry.value {
                small = place.replace(&mut mtr, EntryHeader::default(), &entry.value);
            }
        }
        mtr.commit()?;
        if small { at.tree.maintain(&entry.key) } else { Ok(()) }
    }

    fn remove(&self, at: &Filling<'_, '_>, key: &EntryKey) -> Result<()> {
        let mut mtr = Mtr::begin(&self.catalog.pool)?;
        let place = at.tree.seek_for_change(&mut mtr, &key.bytes, Room::Keep)?;
        let mut small = false;
        if place.header().is_some() {
            let mut present = Vec::new();
            place.value_into(&mtr, &mut present);
            Self::check_row(at, key, &present)?;
            small = place.remove(&mut mtr);
        }
        mtr.commit()?;
        if small { at.tree.maintain(&key.bytes) } else { Ok(()) }
    }

    /// Refuses an entry with the bytes of another row's, which has this value in the tree.
    fn check_row(at: &Filling<'_, '_>, key: &EntryKey, present: &[u8]) -> Result<()> {
        if at.maker.key_in_tree(&key.bytes, present)? == *key {
            return Ok(());
        }
        Err(UsageError::EntryOfOtherRow { owner: at.maker.owner() }.into())
    }

    /// Returns the owner of the tablespace in an error: the table if it is the rows' tablespace, else the index of that
    /// tablespace or the one on which it worked.
    pub(super) fn owner_of(&self, space: Option<SpaceId>) -> Owner {
        if space == Some(self.rows.space().id()) {
            return Owner::Table(self.of.name.clone());
        }
        let at = self.trees.iter().find(|at| Some(at.tree.space().id()) == space);
        at.unwrap_or_else(|| &self.trees[self.current.get()]).maker.owner()
    }

    /// Latches the rows of these entries: no call is changing them.
    fn latch(&self, entries: &[&EntryKey]) -> Result<KeyLatchGuard<'_>, LockError> {
        let latches = self.catalog.transactions.key_latches();
        let space = self.rows.space().id();
        latches.latch_all(entries.iter().map(|entry| latches.name(space, entry.row())).collect())
    }

    /// Returns the state of an entry, according to its row. The row must be latched.
    ///
    /// # Errors
    /// The row has the index key, and the index cannot hold such an entry; those of the function that makes entries.
    fn entry_state(&self, at: &Filling<'_, '_>, key: &EntryKey) -> Result<EntryState> {
        let (mut value, mut header) = (Vec::new(), None);
        let mut read = || {
            header = value::get_with_header(self.rows, key.row(), at.maker.reading(), &mut value)?;
            Ok(header)
        };
        let current = self.catalog.transactions.active().read_final(None, &mut read)?;
        let is_final = matches!(current, CurrentVersion::Final(_));
        if header.is_none_or(EntryHeader::is_deleted) {
            return Ok(EntryState::Absent);
        }
        let entries = at.maker.entries(key.row(), &value)?;
        let Some(entry) = entries.into_iter().find(|entry| key.is_of(entry)) else {
            return Ok(EntryState::Absent);
        };
        match at.maker.check(&entry, &value) {
            Ok(()) if is_final => Ok(EntryState::Present(entry)),
            Ok(()) => Ok(EntryState::Deferred(entry)),
            Err(error) if is_final => Err(error),
            Err(_) => Ok(EntryState::DeferredAndUnfit),
        }
    }

    /// Refuses a row with an index key that the index cannot hold, unless the change may roll back or the row has just
    /// changed.
    fn refuse_unfit(&self, at: &Filling<'_, '_>, key: &EntryKey) -> Result<()> {
        let _row = self.latch(&[key])?;
        if matches!(self.entry_state(at, key)?, EntryState::Absent) { Ok(()) } else { self.defer(at, key) }
    }

    /// Refuses a key of a unique tree that the entry's row and another row have.
    fn refuse_duplicates(&self, at: &Filling<'_, '_>, entry: &Entry) -> Result<()> {
        if !entry.is_unique {
            return Ok(());
        }
        let (key, prefix) = (EntryKey::from(entry), entry.index_part());
        let mut cursor = at.tree.cursor();
        let mut more = cursor.seek(Seek::AtLeast(prefix))?;
        while more && cursor.key().starts_with(prefix) {
            if cursor.key() != entry.key {
                let other = at.maker.key_in_tree(cursor.key(), cursor.value())?;
                if self.refuse_both(at, &key, &other)? {
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
    fn refuse_both(&self, at: &Filling<'_, '_>, one: &EntryKey, other: &EntryKey) -> Result<bool> {
        let _rows = self.latch(&[one, other])?;
        match (self.entry_state(at, one)?, self.entry_state(at, other)?) {
            // The row has changed: its key may repeat now.
            (EntryState::Present(entry) | EntryState::Deferred(entry), _) if !entry.is_unique => Ok(false),
            (EntryState::Present(_), EntryState::Present(_)) => {
                let (owner, row) = (at.maker.owner(), other.row().into());
                Err(SchemaError::DuplicateKey { owner, index: None, row }.into())
            }
            (
                EntryState::Present(_) | EntryState::Deferred(_),
                EntryState::Present(_) | EntryState::Deferred(_),
            ) => self.defer(at, one).map(|()| true),
            (EntryState::Absent | EntryState::DeferredAndUnfit, _) => Ok(true),
            (_, EntryState::Absent | EntryState::DeferredAndUnfit) => Ok(false),
        }
    }
}
