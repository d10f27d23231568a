//! Adding a secondary tree to a table that is in use.
//!
//! **Purpose.** Entries are collected in bounded memory, sorted, and loaded into the new tree from its first page to
//! its last; what does not fit in memory is put aside in runs and merged. Row calls go on meanwhile, and note what they
//! change ([`Building`]); what was noted is looked at in rounds, the last one with the table to itself. When the notes
//! become too many while rows are collected, all is put into the tree that there is, and the rest follows piece by
//! piece; while entries are put into the tree, the notes are put aside like entries.
//!
//! **Invariants.**
//! - The table's gate is closed twice, for a moment: to put the [`Building`] into its shape, so that every change from
//!   then on is noted and every change before has ended; and for the last round and the record. No row call waits for
//!   the work between.
//! - An entry is *settled* under its row's lock: it is in the tree afterwards just when the row has it. The rows are
//!   collected after the first closing, so a row is in the tree as it was at some time since; if that was not its last
//!   state, the change noted the entries of both sides. All notes taken after the collected entries were put are
//!   settled, so at the end each row has its entry, and no other.
//! - Two live rows with one key of a unique tree are an error only when both have it at one moment, under both locks.
//!   It is looked for whenever an entry is put or settled beside another one of the same key. Of two rows that have the
//!   key at the end, one was put or settled last, and found the other.
//! - Until the table's record names the tree nobody reads it: on a failure, and after a crash, it is dropped like any
//!   tree. Undo does not know it before: who rolls a change back has noted it.
//!
//! **May touch.** The rest of `catalog`, and what it may touch.

use super::{
    building::{Building, MOST},
    bulk::{self, Load, PIECE},
    ddl::{Catalog, IndexDefinition, check_index, new_space, no_table, record_key},
    record::IndexRecord,
    runs::Runs,
    table::Shape,
    terms::Terms,
};
use crate::{
    error::{CorruptError, Error, Owner, Result, SchemaError, UsageError},
    ids::SpaceId,
    log::{FlushLog, Promise},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::Arc,
    system::Change,
    transaction::{
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
/// So few notes, or little more, are settled while the gate is closed.
const FEW: usize = 256;
/// Bytes of notes that may always come before who changes a row waits.
const LEAST: usize = 16 << 10;

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
        // What a transaction has changed and not ended would have to be noted until it has: so those that change this
        // table wait, and calls that are transactions of their own go on.
        let _lock =
            self.transactions.lock_tables([table.space()], TableMode::Shared, self.wait_left(terms))?;
        let handed_over = || self.transactions.rollbacks().handed_over(table.space());
        let before = handed_over();
        self.transactions.await_rollbacks(table.space(), self.wait_left(terms))?;
        let _making = self.make([record.space]);
        let tree = self.tree(new_space(record.space));
        let env = self.pool.ground().env.clone();
        let building = Arc::new(Building::new(tree.clone(), record.key.clone(), env));
        let unfinished = self.unfinished();
        let mut closed = table.gate().close();
        drop(table.reshape(&mut closed, Shape { building: Some(building.clone()), ..old.clone() }));
        drop(closed);

        let filler = Filler { catalog: self, table: name, index: &record, rows: &old.clustered, building };
        let told = |error: Error| error.of(|space| filler.owner_of(space));
        let filled = filler.fill().map_err(told);
        let mut closed = table.gate().close();
        let stamped = self.transactions.stamp().map(|born| tree.space().set_born(born));
        let added = filled.and(stamped).and_then(|()| {
            filler.settle_noted().map_err(told)?;
            // What is taken back outside of the gate is noted by nobody.
            if handed_over() != before {
                let what = format!(
                    "while the index was made, a change of {name} could not be taken back at once: make the index again"
                );
                return Err(UsageError::Other(what.into()).into());
            }
            self.add_index(name, &old, &record, &tree, terms.flush)
        });
        let (added, shape) = match added {
            Ok(shape) => (Ok(()), shape),
            Err(error) => (Err(error), old.clone()),
        };
        drop(table.reshape(&mut closed, shape));
        drop(filler);
        drop(closed);
        unfinished.finished();
        if added.is_err() {
            self.discard(&[&tree])?;
        }
        added
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
}

impl Drop for Filler<'_> {
    fn drop(&mut self) {
        // Whoever waits for room is told, also when a panic has ended the work.
        self.building.end();
    }
}

impl Filler<'_> {
    fn tree(&self) -> &Tree {
        self.building.tree()
    }

    /// How many bytes of entries are sorted at a time, and of notes are kept while entries are collected.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "tests make it smaller"))]
    fn bounds(&self) -> (usize, usize) {
        #[cfg(test)]
        if let Some(bounds) = self.catalog.pause.bounds() {
            return bounds;
        }
        (PIECE, MOST / 2)
    }

    /// Puts the entries of all rows, and settles what is noted meanwhile until it is little.
    fn fill(&self) -> Result<()> {
        self.collect()?;
        // Each round lets fewer notes come than the one before, so that the last ones are few however busy the row
        // calls are.
        let mut limit = MOST;
        for _ in 0..ROUNDS {
            limit = (limit / 8).max(LEAST);
            self.building.narrow(limit);
            self.catalog.pause();
            if self.settle_noted()? <= FEW {
                break;
            }
        }
        Ok(())
    }

    fn collect(&self) -> Result<()> {
        let mut entries = Runs::new(self.catalog.pool.clone());
        let (entries_most, _) = self.bounds();
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
                    let entry = entry_key(&self.index.key.whole_key_of(&value)?, cursor.key());
                    if !self.is_too_long(&entry)? {
                        entries.push(entry, ());
                    }
                }
            }
            self.catalog.pause();
            if entries.bytes() >= entries_most {
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
            self.settle(&entry)?;
            self.catalog.pause();
            if self.are_notes_many() { self.settle_noted().map(drop) } else { Ok(()) }
        })
    }

    /// Loads the empty tree.
    fn load(&self, entries: &mut Runs<()>, noted: &mut Runs<()>) -> Result<()> {
        let mut load = Load::new(self.tree());
        // The entries with the key of the last one.
        let mut alike: Vec<Vec<u8>> = Vec::new();
        entries.drain(|entry, ()| {
            load.push(&entry, EntryHeader::default(), &[])?;
            if self.index.unique {
                if !alike.first().is_some_and(|other| other.starts_with(index_key_of(&entry))) {
                    alike.clear();
                }
                alike.iter().try_for_each(|other| self.refuse_both(&entry, other))?;
                alike.push(entry);
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
        self.building.bytes() >= self.bounds().1
    }

    fn put_notes_aside(&self, noted: &mut Runs<()>) -> Result<()> {
        self.catalog.pause();
        if !self.are_notes_many() {
            return Ok(());
        }
        for entry in self.building.take() {
            if !self.is_too_long(&entry)? {
                noted.push(entry, ());
            }
        }
        noted.put_aside(self.catalog.transactions.ids().space()?)
    }

    /// Settles what is noted. Says how many entries that were.
    fn settle_noted(&self) -> Result<usize> {
        let noted = self.building.take();
        for entry in &noted {
            self.settle(entry)?;
        }
        Ok(noted.len())
    }

    fn settle(&self, entry: &[u8]) -> Result<()> {
        let _room = self.admit(entry)?;
        let row_lock = self.lock(&[entry])?;
        let is_there = self.has(entry)?;
        if entry.len() > self.tree().key_limit() {
            return if is_there { Err(self.too_long(entry)) } else { Ok(()) };
        }
        if is_there {
            self.insert(entry)?;
        } else {
            self.remove(entry)?;
        }
        // Of duplicates each row is looked at under its lock, in an order of their own.
        drop(row_lock);
        if is_there { self.refuse_duplicates(entry) } else { Ok(()) }
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

    /// Whether the entry's row has it. The row is locked.
    fn has(&self, entry: &[u8]) -> Result<bool> {
        let (index_key, row) = self.parts(entry)?;
        let mut value = Vec::new();
        let header = read::get_indexed(self.rows, row, &mut value)?;
        Ok(header.is_some_and(|header| !header.is_deleted())
            && self.index.key.whole_key_of(&value)? == index_key)
    }

    /// Whether an entry that a row seemed to have is too long to be had: then the row has it no more.
    fn is_too_long(&self, entry: &[u8]) -> Result<bool> {
        if entry.len() <= self.tree().key_limit() {
            return Ok(false);
        }
        let _row = self.lock(&[entry])?;
        if self.has(entry)? { Err(self.too_long(entry)) } else { Ok(true) }
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
            if cursor.key() != entry {
                self.refuse_both(entry, cursor.key())?;
            }
            more = cursor.next()?;
        }
        Ok(())
    }

    /// Refuses two entries of one key, if both rows have them now. If not, one of the rows has changed, and that is
    /// noted.
    fn refuse_both(&self, one: &[u8], other: &[u8]) -> Result<()> {
        let _rows = self.lock(&[one, other])?;
        if self.has(one)? && self.has(other)? {
            return Err(SchemaError::DuplicateKey(self.owner()).into());
        }
        Ok(())
    }
}
