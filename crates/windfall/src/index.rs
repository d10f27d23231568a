//! The handle of a secondary index.
//!
//! **Purpose.** Reads rows in the order of an index key, or only the keys that the index itself holds.
//!
//! **Invariants.** An index entry contains its row's key, and the same view decides what is visible of both (test:
//! `an_entry_is_of_the_row_that_its_transaction_sees`). Without a view, the row may change between the read of the
//! entry and the read of the row; it is left out if it no longer has the entry (test:
//! `the_newest_version_of_a_row_is_found_by_its_own_entries_alone`). The [cursor](Cursor) over the entries returns the
//! values of the rows, unless it is [of entries alone](Cursor::of_entries_alone): an entry records the transaction that
//! inserted or delete-marked it, and a view that sees that change needs no more (test:
//! `the_keys_of_rows_are_found_without_them`). A view that does not see it must read the row, of which the visible
//! version has this entry or not (`txn/undo/entry_versions.rs`) (test:
//! `an_own_change_that_keeps_the_index_key_is_found_by_it`).

mod batch;
mod one;

use core::{
    marker::PhantomData,
    ops::{Bound, RangeBounds},
};

use crate::{
    composite::{CompositeKey, CompositeParts},
    cursor::{Condition, Cursor, CursorMemory, EntryRef, Move, Reader, Seek, Wanted, split},
    error::{Owner, Result},
    ids::SpaceId,
    range::{Bounds, Range},
    store::Tree,
    sync::Arc,
    table::Table,
    tx_table::{Access, AutoCommit},
    txn::EntryForm,
};

pub use batch::IndexBatch;
pub use one::OneRow;

/// A secondary index of a table. An index of a [`TxTable`](crate::TxTable) is a [`TxIndex`](crate::TxIndex).
#[derive(Clone, Debug)]
pub struct Index<A = AutoCommit> {
    pub(crate) table: Table<A>,
    name: Arc<str>,
    tree: Arc<Tree>,
    form: EntryForm,
}

/// A row found by an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRow {
    /// The index key.
    pub index_key: Vec<u8>,
    /// The row's key.
    pub key: Vec<u8>,
    /// The row's value.
    pub value: Vec<u8>,
    /// The payload of the entry; empty unless the caller supplied one ([`SuppliedEntry`](crate::SuppliedEntry)).
    pub payload: Vec<u8>,
}

/// The keys of a row, as an index entry contains them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexKey {
    /// The index key.
    pub index_key: Vec<u8>,
    /// The row's key.
    pub key: Vec<u8>,
    /// The payload of the entry; empty unless the caller supplied one ([`SuppliedEntry`](crate::SuppliedEntry)).
    pub payload: Vec<u8>,
}

/// A row found by an index, or only its entry, lent until the next step of the range or cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry<'a> {
    /// The index key.
    pub index_key: &'a [u8],
    /// The row's key.
    pub key: &'a [u8],
    /// The payload of the entry; empty unless the caller supplied one ([`SuppliedEntry`](crate::SuppliedEntry)).
    pub payload: &'a [u8],
    /// The row's value; empty if only entries are read.
    pub value: &'a [u8],
}

/// The item that an iterator over an index returns: a whole row, or only its keys.
pub trait IndexItem: Sized {
    /// Makes the item from what was found.
    fn of(entry: IndexEntry<'_>) -> Self;
}

impl IndexItem for IndexRow {
    fn of(entry: IndexEntry<'_>) -> Self {
        let IndexEntry { index_key, key, payload, value } = entry;
        Self {
            index_key: index_key.to_vec(),
            key: key.to_vec(),
            value: value.to_vec(),
            payload: payload.to_vec(),
        }
    }
}

impl IndexItem for IndexKey {
    fn of(entry: IndexEntry<'_>) -> Self {
        let IndexEntry { index_key, key, payload, .. } = entry;
        Self { index_key: index_key.to_vec(), key: key.to_vec(), payload: payload.to_vec() }
    }
}

impl<A: Access> Index<A> {
    pub(crate) fn new(table: Table<A>, name: Arc<str>, tree: Arc<Tree>, form: EntryForm) -> Self {
        Self { table, name, tree, form }
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner::Index { table: self.table.name.clone(), index: self.name.clone() }
    }

    /// Returns the rows with index keys in a range, in order, from either end. If the caller supplies the entries
    /// ([`IndexOptions::supplied`](crate::IndexOptions::supplied)), the bounds may be any first bytes of entries: an
    /// included one includes all entries that begin with it, and an excluded one excludes them. This holds for all
    /// reads of the index.
    ///
    /// # Errors
    /// The table or the index was dropped.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<IndexRange> {
        self.range_of(self.table.reader()?, &range)
    }

    /// Estimates the number of rows with index keys in a range, as [`Table::estimate_rows`] does.
    ///
    /// # Errors
    /// As [`Table::estimate_rows`]; the index was dropped.
    pub fn estimate_rows<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let Bounds { lower, upper } = self.bounds_of(&range);
        self.table.estimate(&self.tree, &lower, &upper).map_err(|error| error.of(|_| self.owner()))
    }

    /// Returns the number of pages that the index takes, as [`Table::pages`] does.
    ///
    /// # Errors
    /// The table or the index was dropped; I/O.
    pub fn pages(&self) -> Result<u64> {
        self.table.pages_of(&self.tree).map_err(|error| error.of(|_| self.owner()))
    }

    /// Returns the number of levels of the index; 0 while it has no page.
    ///
    /// # Errors
    /// The table or the index was dropped; I/O.
    pub fn height(&self) -> Result<u32> {
        self.table.height_of(&self.tree).map_err(|error| error.of(|_| self.owner()))
    }

    /// Returns the keys of the rows with index keys in a range, in order, from either end, from the index alone. Pages
    /// of the table itself are read only for rows that were inserted, deleted or given another entry after the view was
    /// taken, and at [`Isolation::Serializable`](crate::Isolation::Serializable), which locks the rows.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-index-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, TableOptions};
    ///
    /// let by_country = TableOptions::default().index("country", IndexOptions::on_value(0..2));
    /// let towns = db.create_table("towns", by_country)?;
    /// for (town, value) in [("Basel", "CH 177595"), ("Genoa", "IT 560688"), ("Geneva", "CH 203856")] {
    ///     towns.insert(town.as_bytes(), value.as_bytes())?;
    /// }
    /// let swiss = towns.index("country")?.keys("CH"..="CH")?;
    /// let swiss: Vec<_> = swiss.map(|found| Ok(found?.key)).collect::<windfall::Result<_>>()?;
    /// assert_eq!(swiss, [&b"Basel"[..], &b"Geneva"[..]]);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Index::range`].
    pub fn keys<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<IndexRange<IndexKey>> {
        Ok(self.found(self.entries(self.table.reader()?)?.of_entries_alone(), &range))
    }

    /// Returns the rows with this index key, in the order of their own keys.
    ///
    /// # Errors
    /// As [`Index::range`].
    pub fn get(&self, index_key: &[u8]) -> Result<IndexRange> {
        self.range(index_key..=index_key)
    }

    /// Returns a composite key of these parts, for reads of this index: [`CompositeKey::of`].
    ///
    /// In an index of which an extractor makes the entries or the caller supplies them, a key of the first parts is the
    /// bound of all entries that begin with them: `index.range(first..=last)` with keys of one part each includes all
    /// entries with both.
    pub fn key(&self, parts: impl CompositeParts) -> CompositeKey {
        CompositeKey::of(parts)
    }

    /// Returns a cursor over all rows in the order of the index. It is not positioned yet.
    ///
    /// # Errors
    /// As [`Index::range`].
    pub fn cursor(&self) -> Result<IndexCursor> {
        self.cursor_of(self.table.reader()?)
    }

    /// Returns a cursor over the keys of all rows in the order of the index. It is not positioned yet, and reads what
    /// [`Index::keys`] reads.
    ///
    /// # Errors
    /// As [`Index::range`].
    pub fn key_cursor(&self) -> Result<IndexCursor> {
        self.key_cursor_of(self.table.reader()?)
    }

    pub(crate) fn cursor_of(&self, reader: Reader) -> Result<IndexCursor> {
        Ok(IndexCursor { entries: self.entries(reader)?, parts: self.parts(), bounds: Default::default() })
    }

    pub(crate) fn key_cursor_of(&self, reader: Reader) -> Result<IndexCursor> {
        let IndexCursor { entries, parts, bounds } = self.cursor_of(reader)?;
        Ok(IndexCursor { entries: entries.of_entries_alone(), parts, bounds })
    }

    pub(crate) fn range_of<K: AsRef<[u8]>>(
        &self,
        reader: Reader,
        range: &impl RangeBounds<K>,
    ) -> Result<IndexRange> {
        Ok(self.found(self.entries(reader)?, range))
    }

    fn found<T, K: AsRef<[u8]>>(&self, entries: Cursor, range: &impl RangeBounds<K>) -> IndexRange<T> {
        let entries = Range::new(entries, self.bounds_of(range));
        IndexRange { entries, parts: self.parts(), found: PhantomData }
    }

    /// Returns the range of entries for a range of index keys.
    fn bounds_of<K: AsRef<[u8]>>(&self, range: &impl RangeBounds<K>) -> Bounds {
        let mut buffers = <[Vec<u8>; 2]>::default();
        let (lower, upper) = entry_bounds(self.form, range, &mut buffers);
        Bounds { lower: lower.map(<[u8]>::to_vec), upper: upper.map(<[u8]>::to_vec) }
    }

    fn entries(&self, reader: Reader) -> Result<Cursor> {
        self.table.engine.check_open()?;
        let Table { engine, inner, .. } = &self.table;
        let cursor = Cursor::new(engine.clone(), inner.clone(), self.tree.clone(), self.owner(), reader)
            .reading(self.table.fields);
        Ok(cursor.of_index(self.form))
    }

    pub(crate) fn parts(&self) -> Parts {
        let (owner, space, form) = (self.owner(), self.tree.space().id(), self.form);
        Parts { owner, space, form, places: EntryPlaces::default(), unescaped: Vec::new() }
    }
}

/// How the entry that was found last comes apart, in bytes, and the index that it is of, for messages.
#[derive(Debug)]
pub(crate) struct Parts {
    owner: Owner,
    space: SpaceId,
    form: EntryForm,
    places: EntryPlaces,
    /// The index key, if the entry has it in another form; otherwise empty.
    unescaped: Vec<u8>,
}

/// The lengths of the parts of an entry, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct EntryPlaces {
    /// The part before the row's key.
    index_part: usize,
    /// The index key, with which the entry begins unless it has it in another form.
    index_key: usize,
    payload: usize,
}

impl EntryPlaces {
    /// Returns the parts of an entry, given its key, its payload, and the index key that was unescaped, if any.
    #[inline]
    fn of<'a>(
        self,
        key: &'a [u8],
        payload: &'a [u8],
        unescaped: &'a [u8],
        value: &'a [u8],
    ) -> IndexEntry<'a> {
        let index_key = if unescaped.is_empty() { &key[..self.index_key] } else { unescaped };
        IndexEntry { index_key, key: &key[self.index_part..], payload, value }
    }
}

impl Parts {
    /// Takes an entry apart.
    pub(crate) fn find(&mut self, EntryRef { key, value, .. }: EntryRef<'_>) -> Result<()> {
        let parts = split(self.form, (key, value), self.space, || self.owner.clone())?;
        let index_key = self.form.index_key(parts.index, &mut self.unescaped).len();
        self.places = EntryPlaces { index_part: parts.index.len(), index_key, payload: parts.payload.len() };
        debug_assert!(
            self.unescaped.is_empty() || self.unescaped.len() == index_key,
            "an index key is neither in its entry nor in the buffer"
        );
        Ok(())
    }

    /// Returns the parts of the entry that was taken apart last.
    fn of<'a>(&'a self, EntryRef { key, value, row }: EntryRef<'a>) -> IndexEntry<'a> {
        self.places.of(key, &value[value.len() - self.places.payload..], &self.unescaped, row)
    }
}

/// Returns the range of entries for a range of index keys, in these buffers. In an index with supplied entries, the
/// keys may be any first bytes of entries.
fn entry_bounds<'b, K: AsRef<[u8]>>(
    form: EntryForm,
    keys: &impl RangeBounds<K>,
    [from, to]: &'b mut [Vec<u8>; 2],
) -> (Bound<&'b [u8]>, Bound<&'b [u8]>) {
    let lower = match keys.start_bound().map(AsRef::as_ref) {
        Bound::Included(key) => {
            form.start_into(key, from);
            Bound::Included(&from[..])
        }
        Bound::Excluded(key) if form.end_into(key, from) => Bound::Included(&from[..]),
        // No entry is greater: the range below the empty key, which is the least one, is empty.
        Bound::Excluded(_) => return (Bound::Unbounded, Bound::Excluded(&[])),
        Bound::Unbounded => Bound::Unbounded,
    };
    let upper = match keys.end_bound().map(AsRef::as_ref) {
        Bound::Included(key) if form.end_into(key, to) => Bound::Excluded(&to[..]),
        Bound::Excluded(key) => {
            form.start_into(key, to);
            Bound::Excluded(&to[..])
        }
        Bound::Included(_) | Bound::Unbounded => Bound::Unbounded,
    };
    (lower, upper)
}

/// Returns the move among entries that a move among index keys means; `bound` is the key of its target.
fn among_entries<'s>(form: EntryForm, entries: &Cursor, to: Move<'s>, bound: &'s mut Vec<u8>) -> Move<'s> {
    let Move::To(to) = to else { return to };
    match to {
        Seek::First | Seek::Last => return Move::To(to),
        Seek::AtLeast(key) | Seek::Below(key) => form.start_into(key, bound),
        Seek::Above(key) | Seek::AtMost(key) => {
            if !form.end_into(key, bound) {
                entries.key_above_all(bound);
            }
        }
    }
    Move::To(match to {
        Seek::Below(_) | Seek::AtMost(_) => Seek::Below(bound),
        _ => Seek::AtLeast(bound),
    })
}

/// An iterator over rows, or their keys, in the order of an index.
///
/// The iterator's items are copies. [`IndexRange::next_ref`] lends an entry without copying it.
#[derive(Debug)]
pub struct IndexRange<T = IndexRow> {
    entries: Range,
    parts: Parts,
    found: PhantomData<T>,
}

impl<T> IndexRange<T> {
    /// Returns the next entry without copying it; `None` after the last one.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn next_ref(&mut self) -> Result<Option<IndexEntry<'_>>> {
        let Self { entries, parts, .. } = self;
        let Some(entry) = entries.next_entry()? else { return Ok(None) };
        parts.find(entry)?;
        Ok(Some(parts.of(entry)))
    }

    /// Returns the last entry that was not returned yet, without copying it; `None` if there is none.
    ///
    /// # Errors
    /// As [`IndexRange::next_ref`].
    pub fn next_back_ref(&mut self) -> Result<Option<IndexEntry<'_>>> {
        let Self { entries, parts, .. } = self;
        let Some(entry) = entries.next_back_entry()? else { return Ok(None) };
        parts.find(entry)?;
        Ok(Some(parts.of(entry)))
    }
}

impl<T: IndexItem> Iterator for IndexRange<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_ref().map(|entry| entry.map(T::of)).transpose()
    }
}

impl<T: IndexItem> DoubleEndedIterator for IndexRange<T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_back_ref().map(|entry| entry.map(T::of)).transpose()
    }
}

/// A position among the rows of a table, in the order of an index key, and by the rows' keys where index keys are
/// equal.
///
/// An index cursor moves like a [`Cursor`], and seeks by index keys. A cursor of [`Index::key_cursor`] lends only the
/// entries, without the values of the rows.
///
/// The find modes of a SQL server, for a whole key or for a prefix of the parts of one:
///
/// | find mode | calls |
/// | --- | --- |
/// | exact key | [`set_range(key..=key)`](IndexCursor::set_range), then [`next`](IndexCursor::next) |
/// | key or next | [`seek(Seek::AtLeast(key))`](IndexCursor::seek) |
/// | key or previous | `seek(Seek::AtMost(key))` |
/// | after key | `seek(Seek::Above(key))` |
/// | before key | `seek(Seek::Below(key))` |
/// | prefix | `set_range(prefix..=prefix)`, then `next` |
/// | last of prefix | `set_range(prefix..=prefix)`, then [`prev`](IndexCursor::prev) |
/// | last of prefix or previous | `seek(Seek::AtMost(prefix))` |
///
/// [`Index::get_one`] reads the row of an exact key without a cursor. Further steps go on from there; in a range they
/// end with it. Without a key, `seek(Seek::First)` and
/// `seek(Seek::Last)` find the ends.
///
/// Which bytes are a prefix depends on the entries of the index:
/// - *Supplied entries.* Any first bytes, also past the index key into the key of the row: `index_key` followed by the
///   first bytes of a row key bounds the rows with that index key from there on. The key of the row is compared as it
///   is stored, so the bound of the entry of one row is `index_key` and its whole key.
/// - *Extracted entries.* A composite key of the first parts ([`Index::key`]). The row key follows a byte 0 behind the
///   last part: the composite key, that byte, and first bytes of a row key reach into it.
/// - *Entries made of the value.* An index key is matched whole: `key..=key` finds the rows with this key alone, and
///   bounds do not reach into the row key. The index keys that begin with a prefix are the range from it to the next
///   greater prefix, which is not included.
#[derive(Debug)]
pub struct IndexCursor {
    entries: Cursor,
    parts: Parts,
    /// Buffers for the bounds of entries that bounds of index keys mean.
    bounds: [Vec<u8>; 2],
}

impl IndexCursor {
    /// Drops the cursor, and returns its memory, as [`Cursor::into_memory`] does.
    pub fn into_memory(self) -> CursorMemory {
        let Self { entries, parts, bounds } = self;
        let mut memory = entries.into_memory();
        (memory.unescaped, memory.bounds) = (parts.unescaped, bounds);
        memory
    }

    /// Makes the cursor use the memory of one that was dropped, as [`Cursor::with_memory`] does.
    #[must_use]
    pub fn with_memory(mut self, memory: CursorMemory) -> Self {
        let CursorMemory { unescaped, bounds, .. } = self.entries.use_memory(memory);
        (self.parts.unescaped, self.bounds) = (unescaped, bounds);
        self
    }

    /// Restricts the cursor to the rows with index keys in a range, as [`Cursor::set_range`] does. If the caller
    /// supplies the entries, the bounds may be any first bytes of entries, as for [`Index::range`].
    pub fn set_range<K: AsRef<[u8]>>(&mut self, range: impl RangeBounds<K>) {
        let (lower, upper) = entry_bounds(self.parts.form, &range, &mut self.bounds);
        self.entries.restrict(lower, upper);
    }

    /// Locks the whole range of a cursor that locks rows at once, as [`Cursor::lock_range`] does: the range of entries.
    ///
    /// # Errors
    /// As [`Cursor::lock_range`]; the index was dropped.
    pub fn lock_range(&mut self) -> Result<()> {
        self.entries.lock_range()
    }

    /// Moves to the first or last row with an index key that satisfies `to`. Returns whether there is one; if not, the
    /// cursor is past that end.
    ///
    /// # Errors
    /// As [`Cursor::seek`]; the index was dropped.
    pub fn seek(&mut self, to: Seek<'_>) -> Result<bool> {
        self.go(Move::To(to))
    }

    /// Moves to the next row. Returns whether there is one; if not, the cursor is after the last.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    #[expect(clippy::should_implement_trait, reason = "a cursor goes both ways and lends what it is at")]
    pub fn next(&mut self) -> Result<bool> {
        self.go(Move::Next)
    }

    /// Moves to the previous row. Returns whether there is one; if not, the cursor is before the first.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn prev(&mut self) -> Result<bool> {
        self.go(Move::Prev)
    }

    /// As [`IndexCursor::seek`], and passes over the rows of which the condition fails, in the direction of a further
    /// step. It is evaluated on the entry (its value is empty), before the row is read or locked; if another
    /// transaction is changing the entry, afterwards, and a lock is then released as [`IndexCursor::unlock_row`] does.
    /// In an index of which the caller supplies the entries, or an extractor makes them, a locking cursor locks the row
    /// first at levels that lock gaps, because the payload may change until then, unless the index is
    /// [without payloads](crate::IndexOptions::without_payload).
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-seek-where-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{Condition, IndexOptions, Seek, TableOptions};
    ///
    /// let by_name = TableOptions::default().index("name", IndexOptions::on_value(0..4));
    /// let people = db.create_table("people", by_name)?;
    /// for (id, name) in [(1u8, "Adam"), (2, "Bert"), (3, "Bill"), (4, "Carl")] {
    ///     people.insert(&[id], name.as_bytes())?;
    /// }
    /// let mut cursor = people.index("name")?.cursor()?;
    /// let found = cursor.seek_where(Seek::AtLeast(b"B"), |entry| match entry.index_key {
    ///     [b'B', .., b'l'] => Condition::Holds,
    ///     [b'B', ..] => Condition::Fails,
    ///     _ => Condition::Ends,
    /// })?;
    /// assert_eq!((found, cursor.row().map(|row| row.key)), (true, Some(&[3][..])));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The condition must not call the database. If it [ends](Condition::Ends) the move, the cursor is at no row, and a
    /// further step goes on behind that entry.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn seek_where(
        &mut self,
        to: Seek<'_>,
        condition: impl FnMut(IndexEntry<'_>) -> Condition,
    ) -> Result<bool> {
        self.go_where(Move::To(to), condition)
    }

    /// As [`IndexCursor::next`], and passes over rows as [`IndexCursor::seek_where`] does.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn next_where(&mut self, condition: impl FnMut(IndexEntry<'_>) -> Condition) -> Result<bool> {
        self.go_where(Move::Next, condition)
    }

    /// As [`IndexCursor::prev`], and passes over rows as [`IndexCursor::seek_where`] does.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn prev_where(&mut self, condition: impl FnMut(IndexEntry<'_>) -> Condition) -> Result<bool> {
        self.go_where(Move::Prev, condition)
    }

    /// Releases the lock that the last move took, as [`Cursor::unlock_row`] does.
    ///
    /// # Errors
    /// As [`Cursor::unlock_row`].
    pub fn unlock_row(&mut self) -> Result<bool> {
        self.entries.unlock_row()
    }

    /// Makes the cursor semi-consistent, as [`Cursor::semi_consistent`] does.
    pub fn semi_consistent(&mut self, on: bool) {
        self.entries.semi_consistent(on);
    }

    /// Returns whether the row at the position is not locked, as [`Cursor::was_semi_consistent`] does.
    pub fn was_semi_consistent(&self) -> bool {
        self.entries.was_semi_consistent()
    }

    /// Locks the row at the position and reads it again, as [`Cursor::lock_row`] does. Returns whether it is still
    /// there, with this index key; its payload and its value may be others.
    ///
    /// # Errors
    /// As [`Cursor::lock_row`].
    pub fn lock_row(&mut self) -> Result<bool> {
        self.entries.lock_row()?;
        self.take_apart()
    }

    fn go_where(
        &mut self,
        to: Move<'_>,
        mut condition: impl FnMut(IndexEntry<'_>) -> Condition,
    ) -> Result<bool> {
        let Self { entries, parts, bounds: [bound, _] } = self;
        let to = among_entries(parts.form, entries, to, bound);
        let mut evaluate = |key: &[u8], value: &[u8]| {
            let entry = EntryRef { key, value, row: &[] };
            parts.find(entry)?;
            Ok(condition(parts.of(entry)))
        };
        entries.go(to, Wanted::if_holds(&mut evaluate))?;
        self.take_apart()
    }

    fn go(&mut self, to: Move<'_>) -> Result<bool> {
        let Self { entries, parts, bounds: [bound, _] } = self;
        let to = among_entries(parts.form, entries, to, bound);
        entries.go(to, Wanted::within(&|_| true))?;
        self.take_apart()
    }

    /// Takes the entry at the position apart. Returns whether there is one.
    fn take_apart(&mut self) -> Result<bool> {
        let Some(entry) = self.entries.entry() else { return Ok(false) };
        self.parts.find(entry)?;
        Ok(true)
    }

    /// Returns the row at the cursor's position, or its entry, without copying it.
    #[inline]
    pub fn row(&self) -> Option<IndexEntry<'_>> {
        self.entries.entry().map(|entry| self.parts.of(entry))
    }
}
