//! Adding a secondary tree to a table that is in use.
//!
//! **Purpose.** Entries are collected in bounded memory, sorted, and loaded into the new tree from its first page to
//! its last; what does not fit in memory is put aside in runs and merged. Row calls go on meanwhile, and note what they
//! change ([`Building`]); what was noted is looked at in rounds, the last one with the table to itself. When the notes
//! become too many while rows are collected, all is put into the tree that there is, and the rest follows piece by
//! piece; while entries are put into the tree, the notes are put aside like entries.
//!
//! *Transactions.* They lock, change and take back rows meanwhile as ever. A change notes in the gate, a rollback
//! outside of it (`transaction::followers`), so the tree follows what the rows are, committed or not. The new entries
//! carry no transaction, and no undo record names them: who reads them takes them for committed, and purge and
//! rollback of what came before do not know them. So at the moment in which the tree becomes an index there must be
//! no change of the table that may still be taken back. Who waits for what:
//! - The first closing of the gate waits for the calls under way.
//! - At the end the statement waits for the transactions that have changed or locked rows of the table, and for
//!   rollbacks of it in the background, as long as its terms say ([`LockError`] names them
//!   then); it goes on to settle notes, for they may wait for room there. To wait for a prepared transaction, or one
//!   that goes on for hours, costs others nothing: a new writer waits for a turn of the statement in the table's
//!   queue at most (`transaction::locks::turns`).
//! - New writers in a transaction wait from the moment in which the statement has the table's lock to its end: for
//!   the settling of what was noted in the last turn, and for a commit.
//! - A writer or a rollback waits for room where it changes rows faster than notes are settled; the background goes on
//!   with other tables meanwhile.
//!
//! To finish beside an open transaction the entries of its rows would need its versions, and its undo records the
//! touches of entries that they were written without.
//!
//! **Invariants.**
//! - The table's gate is closed twice, for a moment: to put the [`Building`] into its shape, so that every change from
//!   then on is noted and every change before has ended or is its transaction's; and for the last round and the record.
//!   No row call waits for the work between.
//! - An entry is *settled* under its row's lock: it is in the tree afterwards just when the row has it. The rows are
//!   collected after the first closing, so a row is in the tree as it was at some time since; if that was not its last
//!   state, the change noted the entries of both sides. All notes taken after the collected entries were put are
//!   settled, so at the end each row has its entry, and no other.
//! - What its writer may take back decides nothing: a duplicate, or a key that is too long, is put off and looked at
//!   again, at last with the table to itself. A row that comes back by a rollback is noted, and looked at then.
//! - What is put off is bounded by bytes, not by transactions: one may put off many rows. From half of the bound on one
//!   of them is looked at again for each note that is settled, the one that has waited longest, so those whose
//!   transactions have ended make room. While the tree is loaded none is.
//! - Two live rows with one key of a unique tree are an error only when both have it at one moment, under both locks.
//!   It is looked for whenever an entry is put or settled beside another one of the same key, unless that entry is
//!   going to be settled again anyway. Of two rows that have the key at the end, one was put or settled last, and found
//!   the other.
//! - Until the table's record names the tree nobody reads it: on a failure, and after a crash, it is dropped like any
//!   tree. Undo does not know it before: a rollback notes what it takes back.
//!
//! **May touch.** The rest of `catalog`, and what it may touch.

use core::{cell::RefCell, time::Duration};
use std::collections::{BTreeSet, VecDeque};

use super::{
    building::{Building, MOST, NOTE},
    bulk::{self, Load, PIECE},
    ddl::{Catalog, IndexDefinition, check_index, new_space, no_table, record_key},
    record::IndexRecord,
    runs::Runs,
    table::{Shape, Table},
    terms::Terms,
};
use crate::{
    error::{CorruptError, Error, LockError, Owner, Result, SchemaError, UsageError},
    ids::{SpaceId, TrxId},
    log::{FlushLog, Promise},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{Arc, Closed},
    system::Change,
    transaction::{
        StatementLock,
        lock::RowGuard,
        locks::TableMode,
        read,
        secondary::{entry_key, index_key_of, split},
    },
    tree::Seek,
};

/// Rounds of settling before the gate is closed. With hundreds of threads at the table each of them may note something
/// between two rounds.
const ROUNDS: usize = 20;
/// So many rounds in a row with no fewer notes than the smallest one before: notes come as fast as they are settled,
/// and further rounds would find no fewer. A single one may be chance.
const IN_VAIN: usize = 2;
/// So few notes, or little more, are settled while the gate is closed; so many are settled at a time, and between two
/// looks at what is waited for.
const FEW: usize = 256;
/// Bytes of notes that may always come before who changes a row waits.
const LEAST: usize = 16 << 10;

/// How much is kept in memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Entries that are sorted at a time.
    pub entries: usize,
    /// Notes while entries are collected or put; then they are settled, or put aside.
    pub notes: usize,
    /// Notes from which on a change of a row waits; entries that are put off.
    pub most: usize,
}

impl Bounds {
    /// What is kept where no test asks for less.
    pub const FULL: Self = Self { entries: PIECE, notes: MOST / 2, most: MOST };
}

impl Catalog {
    /// Adds a secondary tree and fills it from the rows, while row calls go on.
    ///
    /// # Errors
    /// [`SchemaError`] for the names and the definition, and when two rows have one key in a unique tree; what the log
    /// says.
    pub fn create_index(&self, name: &str, index: &IndexDefinition, terms: Terms) -> Result<()> {
        check_index(index)?;
        let claim = self.claim(&[name], terms)?;
        let table = claim.table(name).ok_or_else(|| no_table(name))?;
        let old = table.shape();
        if old.record.indexes.iter().any(|other| *other.name == *index.name) {
            let (table, index) = (name.into(), index.name.as_str().into());
            return Err(SchemaError::IndexExists { table, index }.into());
        }
        let record = self.new_index(index)?;
        // Before any work is done: the record that names the tree has to fit.
        let mut named = old.record.clone();
        named.indexes.push(record.clone());
        self.check_length(name, named.encode().len())?;
        claim.keep();
        let patience = self.wait_left(terms);
        if patience.is_zero() {
            // What cannot be finished without a wait is not begun.
            drop(self.transactions.lock_tables([table.space()], TableMode::Shared, patience)?);
            self.transactions.await_rollbacks(table.space(), patience, &mut || Ok(false))?;
        }
        let _making = self.make([record.space]);
        let tree = self.tree(new_space(record.space));
        let env = self.pool.ground().env.clone();
        let bounds = self.bounds();
        let building = Arc::new(Building::new(tree.clone(), record.key.clone(), bounds.most, env));
        let _following = self.transactions.follow(table.space(), building.clone());
        let unfinished = self.unfinished();
        let mut closed = table.gate().close();
        drop(table.reshape(&mut closed, Shape { building: Some(building.clone()), ..old.clone() }));
        drop(closed);

        let filler = Filler {
            catalog: self,
            table: name,
            index: &record,
            rows: &old.clustered,
            building,
            bounds,
            undecided: RefCell::default(),
        };
        let told = |error: Error| error.of(|space| filler.owner_of(space));
        let (alone, mut closed) = match filler.fill().and_then(|()| filler.close(table, patience)) {
            Ok((lock, closed)) => (Ok(lock), closed),
            Err(error) => (Err(told(error)), table.gate().close()),
        };
        // The lock is given back when the gate is open again.
        let (added, _lock) = match alone {
            Ok(lock) => {
                let stamped = self.transactions.stamp().map(|born| tree.space().set_born(born));
                let decided = stamped.and_then(|()| filler.decide().map_err(told));
                let added = decided.and_then(|()| self.add_index(name, &old, &record, &tree, terms.flush));
                (added, Some(lock))
            }
            Err(error) => (Err(error), None),
        };
        let (added, shape) = match added {
            Ok(shape) => (Ok(()), shape),
            Err(error) => (Err(error), old.clone()),
        };
        drop(table.reshape(&mut closed, shape));
        drop(closed);
        // What was noted and put off may be much: it is freed while no call waits at the gate.
        drop(filler);
        unfinished.finished();
        if added.is_err()
            && let Err(error) = self.discard(&[&tree])
        {
            // Why the index was refused is what the caller has to learn.
            tracing::warn!(%error, "what was built of an index is dropped at the next opening");
        }
        added
    }

    /// How much the building of an index keeps in memory.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "tests make it smaller"))]
    pub(super) fn bounds(&self) -> Bounds {
        #[cfg(test)]
        if let Some(bounds) = self.pause.bounds() {
            return bounds;
        }
        Bounds::FULL
    }

    /// Records a filled tree. Gives the table's new shape. The gate is closed.
    fn add_index(
        &self,
        name: &str,
        old: &Shape,
        index: &IndexRecord,
        tree: &Arc<Tree>,
        mode: FlushLog,
    ) -> Result<Shape> {
        let mut record = old.record.clone();
        record.version += 1;
        record.indexes.push(index.clone());
        self.change(&mut [Change::put(record_key(name), record.encode())], &[], mode)?.1.finished();
        let mut secondaries = old.secondaries.clone();
        secondaries.push(tree.clone());
        Ok(Shape { record, clustered: old.clustered.clone(), secondaries, building: None })
    }
}

/// Fills a secondary tree.
struct Filler<'a> {
    catalog: &'a Catalog,
    table: &'a str,
    index: &'a IndexRecord,
    rows: &'a Arc<Tree>,
    building: Arc<Building>,
    bounds: Bounds,
    undecided: RefCell<Undecided>,
}

/// Entries whose rows may still be taken back, and for which the index would have to be refused otherwise.
#[derive(Default)]
struct Undecided {
    entries: BTreeSet<Arc<[u8]>>,
    /// The same in the order in which they came.
    order: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

impl Undecided {
    fn put(&mut self, entry: &[u8]) {
        if !self.entries.contains(entry) {
            self.bytes += entry.len() + NOTE;
            let entry: Arc<[u8]> = entry.into();
            self.order.push_back(entry.clone());
            self.entries.insert(entry);
        }
    }

    /// Takes the one that came first. In the order of the keys those that come above others, one for each that is
    /// taken, would keep the others waiting.
    fn take_next(&mut self) -> Option<Arc<[u8]>> {
        let next = self.order.pop_front()?;
        self.entries.remove(&next);
        self.bytes -= next.len() + NOTE;
        Some(next)
    }
}

/// What the row of an entry says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The row has not this index key.
    Absent,
    /// It has.
    Present,
    /// It has, unless its writer takes it back.
    Undecided,
    /// The same, and there can be no such entry.
    UndecidedAndUnfit,
}

impl Drop for Filler<'_> {
    fn drop(&mut self) {
        // Whoever waits for room is told, also when a panic has ended the work.
        self.building.end();
    }
}

impl<'a> Filler<'a> {
    fn tree(&self) -> &Tree {
        self.building.tree()
    }

    /// Puts the entries of all rows, and settles what is noted meanwhile: until that is little, or becomes no less. The
    /// rest is left to [`Filler::settle_the_rest`], which lets fewer notes come.
    fn fill(&self) -> Result<()> {
        self.collect()?;
        let (mut fewest, mut in_vain) = (usize::MAX, 0);
        for _ in 0..ROUNDS {
            self.catalog.pause();
            let settled = self.settle_noted()?;
            in_vain = if settled < fewest { 0 } else { in_vain + 1 };
            fewest = fewest.min(settled);
            if settled <= FEW || in_vain == IN_VAIN {
                break;
            }
        }
        Ok(())
    }

    /// Waits until nobody has changed the table and not ended, and closes its gate then. The lock keeps transactions
    /// from changing it, and the gate keeps all others.
    fn close<'t>(&self, table: &'t Table, at_most: Duration) -> Result<(StatementLock<'a>, Closed<'t>)> {
        let catalog = self.catalog;
        let (transactions, env) = (&catalog.transactions, &catalog.pool.ground().env);
        let (space, began) = (table.space(), env.now());
        let waited = || env.now().saturating_sub(began);
        let left = || at_most.saturating_sub(waited());
        // A wait that begins when the time is over, or with what was left of it, knows nothing of those before.
        let in_all = |error: Error| match error {
            Error::Lock(LockError::Busy(in_the_way) | LockError::TimedOut { in_the_way, .. })
                if !at_most.is_zero() =>
            {
                LockError::TimedOut { in_the_way, waited: waited() }.into()
            }
            error => error,
        };
        loop {
            // They have to get on to come to their ends.
            self.building.limit(self.bounds.most);
            self.settle_undecided()?;
            transactions.await_rollbacks(space, left(), &mut || self.keep_up()).map_err(in_all)?;
            let lock = transactions
                .lock_table_in_turns(space, TableMode::Shared, left(), &mut || self.keep_up())
                .map_err(in_all)?;
            self.settle_the_rest()?;
            let closed = table.gate().close();
            // A call that is no part of a transaction may have been handed over just now.
            if transactions.rollbacks().are_clear_of(space) {
                return Ok((lock, closed));
            }
        }
    }

    /// Looks after the notes while it waits: after some of them, so that a turn in the table's queue does not last as
    /// long as the settling of all. Says whether there are more.
    fn keep_up(&self) -> Result<bool> {
        self.catalog.pool.ground().health.check()?;
        self.catalog.pause();
        Ok(self.settle_some(FEW)? == FEW)
    }

    /// Settles what was put off, and what is noted until that is little. Transactions wait meanwhile.
    fn settle_the_rest(&self) -> Result<()> {
        // It may be much, and can be decided now, as far as the background takes nothing of it back.
        self.settle_undecided()?;
        // Each round lets fewer notes come than the one before, so that the last ones are few however busy the row
        // calls are.
        let mut limit = self.bounds.most;
        for _ in 0..ROUNDS {
            limit = (limit / 8).max(LEAST);
            self.building.limit(limit.min(self.bounds.most));
            self.catalog.pause();
            if self.settle_noted()? <= FEW {
                break;
            }
        }
        Ok(())
    }

    /// The last round: nobody is at the table, and nothing in it may be taken back.
    fn decide(&self) -> Result<()> {
        self.settle_noted()?;
        self.settle_undecided()?;
        let left = self.undecided.take().entries;
        assert!(left.is_empty(), "{} entries are of rows that may still be taken back", left.len());
        Ok(())
    }

    fn collect(&self) -> Result<()> {
        let mut entries = Runs::new(self.catalog.pool.clone());
        let mut whole = true;
        let mut cursor = self.rows.cursor();
        let mut value = Vec::new();
        let mut more = cursor.seek(Seek::First)?;
        while more {
            self.catalog.pool.ground().health.check()?;
            if let Some(header) = cursor.header().filter(|header| !header.is_deleted()) {
                value.clear();
                value.extend_from_slice(cursor.value());
                if read::resolve_indexed(self.rows, cursor.key(), header, &mut value)? {
                    let entry = entry_key(&self.index.key.key_of(&value), cursor.key());
                    if entry.len() <= self.tree().key_limit() && self.index.key.whole_key_of(&value).is_ok() {
                        entries.push(entry, ());
                    } else {
                        self.refuse_unfit(entry)?;
                    }
                }
            }
            self.catalog.pause();
            if entries.bytes() >= self.bounds.entries {
                entries.put_aside(self.catalog.transactions.ids().space()?)?;
            }
            more = if self.are_notes_many() {
                whole = false;
                self.empty(&mut entries, false)?;
                self.settle_noted()?;
                // The cursor remembers entries whose notes were settled just now.
                let last = cursor.key().to_vec();
                cursor.seek(Seek::Above(&last))?
            } else {
                cursor.next()?
            };
        }
        self.empty(&mut entries, whole)
    }

    /// Loads entries into the empty tree, or puts them into one that may hold others already. What is noted meanwhile
    /// is put aside when it becomes much, so that nobody waits for the last entry, and settled behind it.
    fn empty(&self, entries: &mut Runs<()>, load: bool) -> Result<()> {
        let mut noted = Runs::new(self.catalog.pool.clone());
        let emptied = if load { self.load(entries, &mut noted) } else { self.put(entries, &mut noted) };
        emptied?;
        noted.drain(|entry, ()| {
            self.settle_note(&entry)?;
            self.catalog.pause();
            if self.are_notes_many() { self.settle_noted().map(drop) } else { Ok(()) }
        })
    }

    /// Loads the empty tree.
    fn load(&self, entries: &mut Runs<()>, noted: &mut Runs<()>) -> Result<()> {
        let mut load = Load::new(self.tree());
        // Of the entries with the key of the last one those that the next one is held against.
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
            self.put_notes_aside(noted)
        })?;
        load.finish()
    }

    fn put(&self, entries: &mut Runs<()>, noted: &mut Runs<()>) -> Result<()> {
        entries.drain(|entry, ()| {
            let _room = self.admit(&entry)?;
            self.insert(&entry)?;
            self.refuse_duplicates(&entry)?;
            self.put_notes_aside(noted)
        })
    }

    fn are_notes_many(&self) -> bool {
        self.building.bytes() >= self.bounds.notes
    }

    fn put_notes_aside(&self, noted: &mut Runs<()>) -> Result<()> {
        self.catalog.pause();
        if !self.are_notes_many() {
            return Ok(());
        }
        for entry in self.building.take() {
            if entry.len() <= self.tree().key_limit() {
                noted.push(entry, ());
            } else {
                self.refuse_unfit(entry)?;
            }
        }
        noted.put_aside(self.catalog.transactions.ids().space()?)
    }

    /// Settles as many entries as are noted. Says how many that were.
    fn settle_noted(&self) -> Result<usize> {
        let (noted, mut settled) = (self.building.count(), 0);
        loop {
            // What is taken is no note any more, and more may come: of what is taken there is little at a time.
            let some = self.settle_some(FEW)?;
            settled += some;
            if some < FEW || settled >= noted {
                return Ok(settled);
            }
        }
    }

    /// Settles so many of the entries that are noted, or all of them. Says how many that were.
    fn settle_some(&self, most: usize) -> Result<usize> {
        self.building.check_track()?;
        let noted = self.building.take_some(most);
        for entry in &noted {
            self.settle_note(entry)?;
        }
        Ok(noted.len())
    }

    /// Settles an entry that was noted, and before that one of those that were put off, where these are many.
    fn settle_note(&self, entry: &[u8]) -> Result<()> {
        let again = {
            let mut undecided = self.undecided.borrow_mut();
            if undecided.bytes < self.bounds.most / 2 { None } else { undecided.take_next() }
        };
        if let Some(again) = again {
            self.settle(&again)?;
        }
        self.settle(entry)
    }

    /// Settles anew what could not be decided.
    fn settle_undecided(&self) -> Result<()> {
        let entries = self.undecided.take().entries;
        entries.iter().try_for_each(|entry| self.settle(entry))
    }

    fn settle(&self, entry: &[u8]) -> Result<()> {
        let _room = self.admit(entry)?;
        let row_lock = self.lock(&[entry])?;
        match self.standing(entry)? {
            Standing::Present | Standing::Undecided => self.insert(entry)?,
            standing => {
                if entry.len() <= self.tree().key_limit() {
                    self.remove(entry)?;
                }
                return if standing == Standing::Absent { Ok(()) } else { self.put_off(entry) };
            }
        }
        // Of duplicates each row is looked at under its lock, in an order of their own.
        drop(row_lock);
        self.refuse_duplicates(entry)
    }

    /// An entry is looked at again when those who have changed the table have ended.
    fn put_off(&self, entry: &[u8]) -> Result<()> {
        let mut undecided = self.undecided.borrow_mut();
        undecided.put(entry);
        if undecided.bytes < self.bounds.most {
            return Ok(());
        }
        let what = "rows that transactions have changed and not committed would be refused in it, and they are too many to \
                    wait for: end these transactions, and make the index again";
        Err(UsageError::Other(what.into()).into())
    }

    /// Waits for room in the log for a change of an entry.
    fn admit(&self, entry: &[u8]) -> Result<Promise<'_>> {
        bulk::admit(&self.catalog.pool, entry.len())
    }

    fn insert(&self, entry: &[u8]) -> Result<()> {
        let mut mtr = Mtr::begin(&self.catalog.pool)?;
        let mut place = self.tree().seek_for_change(&mut mtr, entry, Some(0))?;
        if place.header().is_none() {
            place.insert(&mut mtr, EntryHeader::default(), &[]);
        }
        mtr.commit()?;
        Ok(())
    }

    fn remove(&self, entry: &[u8]) -> Result<()> {
        let mut mtr = Mtr::begin(&self.catalog.pool)?;
        let place = self.tree().seek_for_change(&mut mtr, entry, None)?;
        let small = place.header().is_some() && place.remove(&mut mtr);
        mtr.commit()?;
        if small { self.tree().maintain(entry) } else { Ok(()) }
    }

    fn owner(&self) -> Owner {
        Owner::Index { table: self.table.into(), index: self.index.name.clone() }
    }

    /// Whose tablespace it is, if it is not the index that fails.
    fn owner_of(&self, space: Option<SpaceId>) -> Owner {
        if space == Some(self.rows.space().id()) { Owner::Table(self.table.into()) } else { self.owner() }
    }

    fn parts<'e>(&self, entry: &'e [u8]) -> Result<(Vec<u8>, &'e [u8])> {
        split(entry).ok_or_else(|| {
            let what = "an entry that was just made makes no sense".into();
            CorruptError::Structure { owner: self.owner(), space: self.index.space, what }.into()
        })
    }

    /// Locks the rows of entries: nobody has a change of them under way.
    fn lock(&self, entries: &[&[u8]]) -> Result<RowGuard<'_>> {
        let locks = self.catalog.transactions.locks();
        let space = self.rows.space().id();
        let names = entries.iter().map(|entry| Ok(locks.name(space, self.parts(entry)?.1)));
        Ok(locks.lock_all(names.collect::<Result<_>>()?))
    }

    /// What the row of an entry says of it. The row is locked.
    ///
    /// # Errors
    /// A row has the index key, and there can be no such entry.
    fn standing(&self, entry: &[u8]) -> Result<Standing> {
        let (index_key, row) = self.parts(entry)?;
        let (mut value, mut header) = (Vec::new(), None);
        let mut read = || {
            header = read::get_indexed(self.rows, row, &mut value)?;
            Ok(header)
        };
        let is_settled = self.catalog.transactions.read_settled(TrxId::NONE, &mut read)?.is_ok();
        let is_live = header.is_some_and(|header| !header.is_deleted());
        if !is_live || self.index.key.key_of(&value) != index_key {
            return Ok(Standing::Absent);
        }
        let fits = if entry.len() > self.tree().key_limit() {
            Err(self.too_long(entry))
        } else {
            self.index.key.whole_key_of(&value).map(drop)
        };
        match fits {
            Ok(()) if is_settled => Ok(Standing::Present),
            Ok(()) => Ok(Standing::Undecided),
            Err(error) if is_settled => Err(error),
            Err(_) => Ok(Standing::UndecidedAndUnfit),
        }
    }

    /// Refuses a row with an index key of which there can be no entry, unless that may be taken back or was just
    /// changed.
    fn refuse_unfit(&self, entry: Vec<u8>) -> Result<()> {
        let _row = self.lock(&[&entry])?;
        if self.standing(&entry)? == Standing::Absent { Ok(()) } else { self.put_off(&entry) }
    }

    fn too_long(&self, entry: &[u8]) -> Error {
        UsageError::KeyTooLong { owner: self.owner(), length: entry.len(), limit: self.tree().key_limit() }
            .into()
    }

    /// Refuses a key of a unique tree that this entry's row and another one have.
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

    /// Refuses two entries of one key, if both rows have them now and neither may be taken back. If one may, the first
    /// entry is looked at again; if one row has changed, that is noted. Says whether the first one is looked at again
    /// in any case, and so need not be held against others: a transaction may give very many rows one key.
    fn refuse_both(&self, one: &[u8], other: &[u8]) -> Result<bool> {
        let _rows = self.lock(&[one, other])?;
        match (self.standing(one)?, self.standing(other)?) {
            (Standing::Present, Standing::Present) => Err(SchemaError::DuplicateKey(self.owner()).into()),
            (Standing::Present | Standing::Undecided, Standing::Present | Standing::Undecided) => {
                self.put_off(one).map(|()| true)
            }
            (Standing::Absent | Standing::UndecidedAndUnfit, _) => Ok(true),
            (_, Standing::Absent | Standing::UndecidedAndUnfit) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_off_is_looked_at_again_in_turn() {
        let mut undecided = Undecided::default();
        let entries = |from: u32| (from..from + 50).map(u32::to_be_bytes);
        entries(1000).for_each(|entry| undecided.put(&entry));
        // For each that is taken, and put off again, another one comes: above all others, or below.
        for (from, there) in [(2000, 50), (0, 100)] {
            let mut look_again = |entry: [u8; 4]| {
                let next = undecided.take_next().unwrap();
                undecided.put(&next);
                undecided.put(&next);
                undecided.put(&entry);
                next
            };
            let seen: BTreeSet<_> = (from..from + there).map(|n: u32| look_again(n.to_be_bytes())).collect();
            assert!(entries(1000).all(|entry| seen.contains(&entry[..])), "{from}: some were passed over");
        }
        assert_eq!(undecided.bytes, 200 * (4 + NOTE));
        assert_eq!(core::iter::from_fn(|| undecided.take_next()).count(), 200);
        assert_eq!((undecided.bytes, undecided.entries.len()), (0, 0));
    }
}
