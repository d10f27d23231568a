//! Followers: observers of rows that are rolled back.
//!
//! **Purpose.** A call notifies the builder of an index of the row that it is about to change, inside its table's gate.
//! A rollback passes no gate, whether of a transaction, to a savepoint, of a statement, in the background or by a
//! coordinator. An observer of the rows of a table is registered here, and is notified of each row that was rolled
//! back.
//!
//! **Invariants.** A rollback latches the leaf of the row, then looks up the follower of its table, then restores the
//! row, and a follower is first registered and then reads the rows, so it reads the restored row, or is notified of it
//! (test: `transactions_of_every_kind_go_on_while_an_index_is_built`). What a follower needs of the undone value is
//! read before the row is restored: the entry refers to its chains until then, and afterwards another transaction may
//! change the row and purge free those that the value before has as well (test:
//! `a_follower_gets_the_fields_that_the_undone_change_has_kept`). A follower that reads chosen fields is notified of
//! the values as these fields read, of those with which the entry was stored, so it is given what a reader of the same
//! fields reads (test: `an_index_is_built_of_long_fields_while_transactions_run`). Chosen fields that a change or a
//! rollback leaves in their chains are not read for it (test: `a_chosen_field_that_is_kept_is_not_read`), nor values
//! for which it has no room (test: `values_beyond_the_limit_of_notes_are_not_read`). An interrupt ends a change that
//! reads values for it, which then is undone, and no rollback (test:
//! `an_interrupt_ends_a_change_that_reads_what_it_notes`). When a transaction has ended all its notifications have been
//! made (checked by `running/rollback.rs::undo_record`).
//!
//! **Order in memory.** Both have a sequentially consistent fence between the two steps, and one of these fences is the
//! first in the total order. If it is the rollback's, the follower finds the leaf latched, and reads the restored row;
//! if it is the follower's, it is notified.

use core::fmt;
use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::{
    error::{Error, LockError, Owner, Result, UsageError},
    ids::SpaceId,
    page::EntryHeader,
    row::FieldSet,
    store::Tree,
    sync::{
        Arc, LongWork, Mutex, Rank,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    txn::mvcc::value::{self, RowReader},
};

/// An observer of the rows of a table.
pub trait Follower: Send + Sync + fmt::Debug {
    /// Notes that a row was rolled back: the first bytes of its value, as index keys are made of, before and after the
    /// rollback; `None` where there is no such row.
    fn note(&self, row: &[u8], before: Option<&[u8]>, after: Option<&[u8]>);

    /// Returns the sets of fields with which it reads values, besides their first bytes.
    fn readings(&self) -> &[FieldSet];

    /// Returns whether it notes the first bytes of values at all.
    fn notes_first_bytes(&self) -> bool;

    /// Returns whether there is room for notes of a row with values of so many bytes in all. If there is none, the
    /// follower ends with an error, as for notes that exceed its limit.
    fn has_room_for(&self, row: &[u8], values: &[u64]) -> bool;

    /// Begins a note of a row, to which a value is appended as one of the readings reads it.
    fn begin_note(&self, row: &[u8]) -> Vec<u8>;

    /// Notes that a row is about to change, or was rolled back: the notes of its values, as one of the readings reads
    /// them.
    fn note_read(&self, reading: usize, before: Option<Vec<u8>>, after: Option<Vec<u8>>);

    /// Returns whether it takes no notes any more.
    fn has_ended(&self) -> bool;

    /// Notes that a row is about to change or was rolled back, and its value cannot be read.
    fn note_unreadable(&self, error: Error);

    /// Returns whether its backlog exceeds its limit.
    fn is_full(&self) -> bool;

    /// Waits until its backlog is below the limit.
    fn wait_for_room(&self);
}

/// Bytes of a value that are read for a note between two tests of the interrupt.
const READ_BYTES: usize = 64 << 10;

/// The registered followers.
#[derive(Debug)]
pub struct Followers {
    count: AtomicUsize,
    /// By the clustered tree of their table: one statement at a time adds indexes to a table.
    by_table: Mutex<BTreeMap<SpaceId, Arc<dyn Follower>>>,
}

/// The registration of a follower, until this is dropped.
#[derive(Debug)]
#[must_use = "it follows as long as this is there"]
pub struct Following {
    followers: Arc<Followers>,
    table: SpaceId,
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut by_table = self.followers.by_table.lock();
        let follower = by_table.remove(&self.table);
        debug_assert!(follower.is_some(), "a follower was not registered until its end");
        self.followers.count.store(by_table.len(), SeqCst);
        drop(by_table);
        // Its backlog may be large, and is not freed under the lock.
        drop(follower);
    }
}

/// An entry of a row: its header, and its stored value. `None` if the row does not exist.
pub(in crate::txn) type Version = Option<(EntryHeader, Vec<u8>)>;

/// What a follower needs of a value that is about to be undone.
pub(in crate::txn) struct Undone {
    /// Its first bytes, if the follower notes them.
    first: Option<Vec<u8>>,
    /// The note of the value as each of the follower's readings reads it; `None` if nothing is noted: the restored
    /// value reads the same, or there is no room.
    read: SmallVec<[Option<Vec<u8>>; 1]>,
}

impl Followers {
    pub(in crate::txn) fn new() -> Self {
        Self { count: AtomicUsize::new(0), by_table: Mutex::new(Rank::Leaf, BTreeMap::new()) }
    }

    /// Returns the follower of a table, unless it has ended. While there is no follower of any table it costs a fence
    /// and a load.
    pub(in crate::txn) fn of(&self, table: SpaceId) -> Option<Arc<dyn Follower>> {
        fence(SeqCst);
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        self.by_table.lock().get(&table).filter(|follower| !follower.has_ended()).cloned()
    }

    /// Registers the follower of a table, given by its clustered tree. Each row that it reads from now on is in its
    /// restored state, or the follower is notified.
    pub fn follow(self: &Arc<Self>, table: SpaceId, follower: Arc<dyn Follower>) -> Following {
        let mut by_table = self.by_table.lock();
        let before = by_table.insert(table, follower);
        debug_assert!(before.is_none(), "two statements build indexes of one table");
        self.count.store(by_table.len(), SeqCst);
        drop(by_table);
        fence(SeqCst);
        Following { followers: self.clone(), table }
    }

    /// Returns whether a table, given by its clustered tree, has a follower.
    pub fn has(&self, table: SpaceId) -> bool {
        self.by_table.lock().contains_key(&table)
    }
}

impl dyn Follower + '_ {
    /// Notifies the follower that a row is about to change, of which the caller holds the key latch: the stored values
    /// before and after, as its readings read them. A value that cannot be read is an error of the follower, and not of
    /// the change.
    ///
    /// # Errors
    /// [`LockError::Interrupted`]: the change must be given up. What was noted before is
    /// harmless: the row stays as it was.
    pub(in crate::txn) fn note_change(
        &self,
        tree: &Tree,
        key: &[u8],
        before: Option<(EntryHeader, &[u8])>,
        after: Option<(EntryHeader, &[u8])>,
    ) -> Result<()> {
        for (n, fields) in self.readings().iter().enumerate() {
            if before.zip(after).is_some_and(|(before, after)| value::read_alike(before, after, *fields)) {
                continue;
            }
            match self.read_sides(tree, key, [before, after], *fields, || Ok(LongWork::check()?)) {
                Ok(Some([before, after])) => self.note_read(n, before, after),
                Ok(None) => {}
                Err(error @ Error::Lock(LockError::Interrupted)) => return Err(error),
                Err(error) => self.note_unreadable(error),
            }
        }
        Ok(())
    }

    /// Returns the notes of values of a row, read with these fields. `None` if there is no room for them: then nothing
    /// was read.
    fn read_sides<const SIDES: usize>(
        &self,
        tree: &Tree,
        key: &[u8],
        sides: [Option<(EntryHeader, &[u8])>; SIDES],
        fields: FieldSet,
        check: impl Fn() -> Result<()>,
    ) -> Result<Option<[Option<Vec<u8>>; SIDES]>> {
        let mut readers = SmallVec::<[_; 2]>::new();
        for side in sides {
            let reader = side.map(|(header, stored)| RowReader::new(&tree, header, stored.to_vec(), fields));
            readers.push(reader.transpose()?);
        }
        let lengths: SmallVec<[u64; 2]> = readers.iter().flatten().map(RowReader::left).collect();
        if !self.has_room_for(key, &lengths) {
            return Ok(None);
        }
        let mut notes = [const { None }; SIDES];
        for (note, reader) in notes.iter_mut().zip(readers) {
            let Some(mut reader) = reader else { continue };
            let mut bytes = self.begin_note(key);
            // Once: a note takes no more memory than it counts.
            let length = usize::try_from(reader.left()).unwrap_or(usize::MAX);
            bytes
                .try_reserve_exact(length)
                .map_err(|_| UsageError::OutOfMemory { owner: Owner::Unknown, bytes: reader.left() })?;
            while reader.left() > 0 {
                check()?;
                let start = bytes.len();
                let more = usize::try_from(reader.left()).map_or(READ_BYTES, |left| left.min(READ_BYTES));
                bytes.resize(start + more, 0);
                let read = reader.read(&mut bytes[start..])?;
                bytes.truncate(start + read);
                debug_assert!(read > 0, "{} bytes of a value were not read", reader.left());
            }
            *note = Some(bytes);
        }
        Ok(Some(notes))
    }

    /// Reads what the follower needs of the stored value of an entry that is about to become `restored`.
    ///
    /// # Errors
    /// Damage, I/O.
    pub(in crate::txn) fn read_undone(
        &self,
        tree: &Tree,
        key: &[u8],
        (header, stored): (EntryHeader, &[u8]),
        restored: Option<(EntryHeader, &[u8])>,
    ) -> Result<Undone> {
        let read_first = || {
            let mut first = stored.to_vec();
            value::follow(tree, header, value::INDEXED, &mut first).map(|()| first)
        };
        let first = self.notes_first_bytes().then(read_first).transpose()?;
        let read = self.readings().iter().map(|fields| {
            if restored.is_some_and(|restored| value::read_alike((header, stored), restored, *fields)) {
                return Ok(None);
            }
            // A rollback ends, whatever interrupts the call.
            let notes = self.read_sides(tree, key, [Some((header, stored))], *fields, || Ok(()))?;
            Ok(notes.and_then(|[note]| note))
        });
        let read = read.collect::<Result<_>>()?;
        Ok(Undone { first, read })
    }

    /// Notifies the follower that a row was rolled back: what it needs of the value before the rollback, and its
    /// version since.
    pub(in crate::txn) fn note_rolled_back(
        &self,
        tree: &Tree,
        key: &[u8],
        undone: Option<Result<Undone>>,
        restored: Version,
    ) {
        if let Err(error) = self.try_note_rolled_back(tree, key, undone, restored) {
            self.note_unreadable(error);
        }
    }

    fn try_note_rolled_back(
        &self,
        tree: &Tree,
        key: &[u8],
        undone: Option<Result<Undone>>,
        restored: Version,
    ) -> Result<()> {
        let undone = undone.transpose()?;
        // A chain of the restored value may be freed as soon as another transaction has changed the row, and that
        // change then counts.
        let read = |fields| -> Result<Option<Vec<u8>>> {
            let Some((header, mut value)) = restored.clone() else { return Ok(None) };
            Ok(value::resolve(tree, key, header, fields, &mut value)?.then_some(value))
        };
        if self.notes_first_bytes() {
            let first = undone.as_ref().and_then(|undone| undone.first.as_deref());
            self.note(key, first, read(value::INDEXED)?.as_deref());
        }
        let (mut before, exists) = match undone {
            Some(undone) => (undone.read, true),
            None => (SmallVec::new(), false),
        };
        for (n, fields) in self.readings().iter().enumerate() {
            let before = before.get_mut(n).and_then(Option::take);
            if exists && before.is_none() {
                continue;
            }
            if let Some((header, stored)) = &restored {
                let length = RowReader::new(&tree, *header, stored.clone(), *fields)?.left();
                if !self.has_room_for(key, &[length]) {
                    return Ok(());
                }
            }
            let note_of = |mut value: Vec<u8>| {
                value.splice(..0, self.begin_note(key));
                value
            };
            self.note_read(n, before, read(*fields)?.map(note_of));
        }
        Ok(())
    }
}
