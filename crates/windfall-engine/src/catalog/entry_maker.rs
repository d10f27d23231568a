//! The entries of an index that is being filled ([`EntryMaker`]).
//!
//! **Purpose.** Collects entries, and makes those of rows that exist. The entries of most indexes are made of the rows'
//! values. For an index of which the caller supplies the entries, a function of the caller makes them, given the key of
//! a row and the first bytes of its value, or its value as a reader of chosen fields reads it. The extractor of an
//! index makes those of its rows, as in each change of one.
//!
//! The function is called again for a row whenever that may have changed, possibly with the key latch of the row, so it
//! must give the same entry for the same row. What it calls in the database counts as called from within a call on the
//! table, and is refused if it would wait for one.
//!
//! **Invariants.** The function is called by the thread of the statement (by type). If it panics, the statement fails
//! as with any other error, and the panic goes on afterwards (test: `a_function_that_panics_fails_an_index_build`).

use core::cell::RefCell;
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use smallvec::{SmallVec, smallvec};

use super::{
    record::IndexRecord,
    row_log::row_of_note,
    runs::{EntryTail, Runs},
};
use crate::{
    error::{CorruptError, Error, Owner, Result, SchemaError, UsageError},
    row::FieldSet,
    store::Tree,
    sync::{Arc, CountedInside},
    txn::{
        EntryForm, Extraction, Ids,
        mvcc::value::INDEXED,
        row::{ENTRY_VALUE_MAX, Entry, SuppliedEntry, check_length},
    },
};

/// The entry of a row in an index, as a function of the caller makes it. The function gets an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MadeEntry {
    /// The key in the index, as in [`SuppliedEntry::key`].
    pub key: Vec<u8>,
    /// Bytes that are stored with it, as in [`SuppliedEntry::payload`].
    pub payload: Vec<u8>,
    /// Whether a unique index accepts it whatever other rows have, as in [`SuppliedEntry::may_repeat`].
    pub may_repeat: bool,
}

/// Makes the entry of a row, given the row's key and the first 64 KiB of its value, or the fields that were chosen.
/// Returns whether the row is in the index.
pub(super) type MakeEntry<'a> = dyn FnMut(&[u8], &[u8], &mut MadeEntry) -> Result<bool> + 'a;

/// The key of an entry, and where in it the key of the row begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryKey {
    pub(super) bytes: Arc<[u8]>,
    index_bytes: usize,
}

impl EntryKey {
    /// A key of which the first bytes are the index part.
    pub(super) fn new(bytes: &[u8], index_bytes: usize) -> Self {
        debug_assert!(index_bytes <= bytes.len(), "the index part of an entry reaches beyond its key");
        Self { bytes: bytes.into(), index_bytes }
    }

    /// Returns the index part.
    pub(super) fn index_part(&self) -> &[u8] {
        &self.bytes[..self.index_bytes]
    }

    /// Returns the key of the row.
    pub(super) fn row(&self) -> &[u8] {
        &self.bytes[self.index_bytes..]
    }

    /// Returns whether this is the key of an entry.
    pub(super) fn is_of(&self, entry: &Entry) -> bool {
        entry.index_bytes == self.index_bytes && *entry.key == *self.bytes
    }
}

impl From<&Entry> for EntryKey {
    fn from(entry: &Entry) -> Self {
        Self::new(&entry.key, entry.index_bytes)
    }
}

/// The caller's function, and what it writes to.
struct Function<'a, 'f> {
    make: &'a mut MakeEntry<'f>,
    made: MadeEntry,
    panic: Option<Box<dyn Any + Send>>,
}

/// Returns the different sets of fields with which makers read rows.
pub(super) fn readings_of(makers: &[EntryMaker<'_, '_>]) -> SmallVec<[FieldSet; 1]> {
    let mut readings = SmallVec::new();
    for maker in makers {
        if !readings.contains(&maker.reading) {
            readings.push(maker.reading);
        }
    }
    readings
}

/// Makes and collects the entries of an index.
pub(super) struct EntryMaker<'a, 'f> {
    table: &'a str,
    index: &'a IndexRecord,
    tree: &'a Tree,
    reading: FieldSet,
    function: Option<RefCell<Function<'a, 'f>>>,
    extraction: Option<Extraction<'a>>,
}

impl<'a, 'f> EntryMaker<'a, 'f> {
    /// Makes the entries of an index of this table, in this tree, of values that are read with these fields. Without a
    /// function it makes none of an index of which the caller supplies the entries, and without an extraction none of
    /// one of which an extractor makes them.
    pub(super) fn new(
        table: &'a str,
        index: &'a IndexRecord,
        (tree, reading): (&'a Tree, FieldSet),
        make: Option<&'a mut MakeEntry<'f>>,
        extraction: Option<Extraction<'a>>,
    ) -> Self {
        debug_assert!(
            matches!(index.form, EntryForm::Supplied { .. }) || make.is_none(),
            "a function makes the entries of an index, which are made otherwise"
        );
        debug_assert!(
            reading == INDEXED || matches!(index.form, EntryForm::Supplied { .. }),
            "the entries of an index are not made of what a change of a row makes them of"
        );
        let function = |make| RefCell::new(Function { make, made: MadeEntry::default(), panic: None });
        Self { table, index, tree, reading, function: make.map(function), extraction }
    }

    /// Returns the fields of which it makes entries.
    pub(super) fn reading(&self) -> FieldSet {
        self.reading
    }

    /// Returns whether the row log notes rows for this index, and not entries: it does not make these itself.
    pub(super) fn notes_rows(&self) -> bool {
        Self::notes_rows_of(self.index)
    }

    /// As [`EntryMaker::notes_rows`].
    pub(super) fn notes_rows_of(index: &IndexRecord) -> bool {
        index.form != EntryForm::Terminated
    }

    /// Returns the index, for messages.
    pub(super) fn owner(&self) -> Owner {
        Owner::Index { table: self.table.into(), index: self.index.name.clone() }
    }

    /// Returns the entries of a row with a value that reads like this; an extractor may make several. They may not fit
    /// the index ([`EntryMaker::check`]).
    ///
    /// # Errors
    /// Those of the caller's function, and of the extractor; a payload that is too long.
    pub(super) fn entries(&self, row: &[u8], value: &[u8]) -> Result<SmallVec<[Entry; 1]>> {
        match &self.extraction {
            Some(extraction) => {
                let owner = || self.owner();
                Ok(extraction.entries(self.tree, self.index.unique, row, value, owner)?.into())
            }
            None => Ok(self.entry(row, value)?.into_iter().collect()),
        }
    }

    fn entry(&self, row: &[u8], value: &[u8]) -> Result<Option<Entry>> {
        let IndexRecord { key, unique, form, .. } = self.index;
        let Some(function) = &self.function else {
            assert!(*form == EntryForm::Terminated, "no function makes the entries that the caller supplies");
            return Ok(Some(Entry::terminated(&key.key_of(value), row, *unique)));
        };
        let Function { make, made, panic } = &mut *function.borrow_mut();
        made.key.clear();
        made.payload.clear();
        made.may_repeat = false;
        // The key latch of the row may be held.
        let _counted = CountedInside::new();
        let is_in_index =
            catch_unwind(AssertUnwindSafe(|| make(row, value, made))).unwrap_or_else(|payload| {
                *panic = Some(payload);
                Err(UsageError::Other("the function that makes the entries of an index has panicked".into())
                    .into())
            })?;
        if !is_in_index {
            return Ok(None);
        }
        let supplied = SuppliedEntry { key: &made.key, payload: &made.payload, may_repeat: made.may_repeat };
        let limit = self.tree.inline_limit();
        Entry::supplied(&supplied, row, *form, *unique, limit, || self.owner()).map(Some)
    }

    /// Refuses an entry that the index cannot hold, of a row with a value that reads like this.
    ///
    /// # Errors
    /// [`UsageError::KeyTooLong`], [`UsageError::IndexedPartTooFar`].
    pub(super) fn check(&self, entry: &Entry, value: &[u8]) -> Result<()> {
        check_length(self.tree, self.index.form.key_bytes(entry.index_bytes), || self.owner())?;
        self.index.key.whole_key_of(value).map(drop)
    }

    /// Returns whether the index can hold an entry with this key.
    pub(super) fn fits(&self, key: &EntryKey) -> bool {
        self.index.form.key_bytes(key.index_bytes) <= self.tree.key_part_limit()
    }

    /// Returns the length of the longest value of an entry.
    pub(super) fn value_limit(&self) -> usize {
        match self.index.form {
            EntryForm::Terminated => 0,
            EntryForm::Supplied { .. } | EntryForm::Composite => {
                self.tree.inline_limit().min(ENTRY_VALUE_MAX)
            }
        }
    }

    /// Collects the key of an entry that is to be applied, whatever its value will be.
    pub(super) fn collect_key(&self, key: &EntryKey, entries: &mut Runs<EntryTail>) {
        let value = self.index.form.value_of(key.index_part(), &[]);
        entries.push(key.bytes.to_vec(), EntryTail::new(&value, false));
    }

    /// Collects an entry.
    pub(super) fn collect(&self, entry: Entry, entries: &mut Runs<EntryTail>) {
        let may_repeat = self.index.unique && !entry.is_unique;
        let tail = EntryTail::new(&entry.value, may_repeat);
        entries.push(entry.key, tail);
    }

    /// Writes collected entries to a run, if there are any in memory.
    ///
    /// # Errors
    /// Two entries are equal; I/O, a full disk.
    pub(super) fn spill(&self, entries: &mut Runs<EntryTail>, ids: &Ids) -> Result<()> {
        if entries.bytes() == 0 {
            return Ok(());
        }
        entries.spill(ids.space()?).map_err(|error| self.of_equal_entries(error))
    }

    /// Returns an entry that was collected.
    ///
    /// # Errors
    /// [`CorruptError::Structure`].
    pub(super) fn collected(&self, key: Vec<u8>, tail: &EntryTail) -> Result<Entry> {
        let (value, may_repeat) = tail.parts();
        let is_unique = self.index.unique && !may_repeat;
        Entry::of_stored(self.index.form, key, value.to_vec(), is_unique).ok_or_else(|| self.invalid())
    }

    /// Returns the key of an entry of the tree.
    ///
    /// # Errors
    /// [`CorruptError::Structure`].
    pub(super) fn key_in_tree(&self, key: &[u8], value: &[u8]) -> Result<EntryKey> {
        let parts = self.index.form.split(key, value).ok_or_else(|| self.invalid())?;
        Ok(EntryKey::new(key, parts.index.len()))
    }

    /// Returns the keys of the entries that a note of the row log says may have changed. A note of a row has those that
    /// the function or the extractor makes of it.
    ///
    /// # Errors
    /// As [`EntryMaker::entries`].
    pub(super) fn keys_of_note(&self, note: &[u8]) -> Result<SmallVec<[EntryKey; 1]>> {
        if !self.notes_rows() {
            return Ok(smallvec![self.key_in_tree(note, &[])?]);
        }
        let (row, value) = row_of_note(note);
        Ok(self.entries(row, value)?.iter().map(EntryKey::from).collect())
    }

    fn invalid(&self) -> Error {
        let what = "an entry that was just made makes no sense".into();
        CorruptError::Structure { owner: self.owner(), space: self.index.space, what }.into()
    }

    /// Gives an error of entries that are collected or loaded its meaning: two equal ones that the caller has supplied
    /// are of different rows.
    pub(super) fn of_equal_entries(&self, error: Error) -> Error {
        match error {
            error if !matches!(self.index.form, EntryForm::Supplied { .. }) => error,
            Error::Schema(SchemaError::DuplicateInputKey { .. })
            | Error::Usage(UsageError::KeysMustAscend) => {
                UsageError::EntryOfOtherRow { owner: self.owner() }.into()
            }
            error => error,
        }
    }

    /// Takes the panic of the caller's function, which is to go on.
    pub(super) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.function.as_ref()?.borrow_mut().panic.take()
    }
}
