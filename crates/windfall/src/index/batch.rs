//! Entries of an index in batches.
//!
//! **Purpose.** As [`cursor/batch.rs`](crate::cursor::Batch), for a cursor over an index, with or without rows.
//!
//! **Invariants.** A batch has the entries that single steps would find (test: `batches_are_steps`), and with a
//! condition those for which it holds (test: `batches_with_a_condition_are_steps`). Each comes apart
//! as the cursor takes it apart at its position (test: `batches_are_steps`). A row with several entries in a batch
//! stays locked until it was given up for each of them (test:
//! `a_row_stays_locked_until_it_is_unlocked_for_each_entry`).

use super::{EntryPlaces, IndexCursor, IndexEntry, Parts};
use crate::{
    cursor::{BATCH_ROWS, Condition, EntryRef, Move, Sink, check_rows, is_full},
    error::Result,
    get_one::TakenLock,
};

/// Entries of an index, with or without their rows, that [`IndexCursor::next_batch`] has read, in the order of the
/// steps. Used again, it keeps its memory.
#[derive(Debug, Default)]
pub struct IndexBatch {
    entries: Vec<PlacedEntry>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct PlacedEntry {
    /// The place in `bytes` of the key of the entry. The row's value follows, then the payload, and then the index key,
    /// if the entry has it in another form.
    start: usize,
    key: usize,
    row: usize,
    end: usize,
    places: EntryPlaces,
    releasable: Option<TakenLock>,
    /// Whether the program may want the row for this entry.
    is_wanted: bool,
}

impl IndexBatch {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the entry at this place.
    pub fn get(&self, place: usize) -> Option<IndexEntry<'_>> {
        self.entries.get(place).map(|entry| self.entry(entry))
    }

    /// Returns the entries.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = IndexEntry<'_>> {
        self.entries.iter().map(|entry| self.entry(entry))
    }

    fn entry(&self, placed: &PlacedEntry) -> IndexEntry<'_> {
        let PlacedEntry { start, key, row, end, places, .. } = placed;
        let (key, row, rest) = (&self.bytes[*start..*key], &self.bytes[*key..*row], &self.bytes[*row..*end]);
        let (payload, unescaped) = rest.split_at(places.payload);
        places.of(key, payload, unescaped, row)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }

    pub(crate) fn push(
        &mut self,
        EntryRef { key, value, row }: EntryRef<'_>,
        Parts { places, unescaped, .. }: &Parts,
        releasable: Option<TakenLock>,
    ) {
        let places = *places;
        let Self { entries, bytes } = self;
        let start = bytes.len();
        bytes.extend_from_slice(key);
        let key = bytes.len();
        bytes.extend_from_slice(row);
        let row = bytes.len();
        bytes.extend_from_slice(&value[value.len() - places.payload..]);
        bytes.extend_from_slice(unescaped);
        let end = bytes.len();
        entries.push(PlacedEntry { start, key, row, end, places, releasable, is_wanted: true });
    }

    /// Gives up the row of the entry at this place. Returns the lock on it that may be released, once the row was given
    /// up for all its entries: the first that was read has the lock.
    fn give_up(&mut self, place: usize) -> Option<TakenLock> {
        self.entries.get_mut(place)?.is_wanted = false;
        let row = self.get(place)?.key;
        let is_of_row = |other: &&PlacedEntry| self.entry(other).key == row;
        if self.entries.iter().filter(|other| other.is_wanted).any(|other| is_of_row(&other)) {
            return None;
        }
        let at = self.entries.iter().position(|other| other.releasable.is_some() && is_of_row(&other))?;
        self.entries[at].releasable.take()
    }
}

impl IndexCursor {
    /// Moves up over the next rows and copies their entries into `batch`, with the rows unless the cursor is
    /// [of entries alone](crate::Index::key_cursor), as [`Cursor::next_batch`](crate::Cursor::next_batch) does. Returns
    /// their number; 0 if there is no further one. The cursor is then at the last of them, or, if there are none, past
    /// the end.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`]. There are no entries then.
    pub fn next_batch(&mut self, batch: &mut IndexBatch) -> Result<usize> {
        self.take_entries(Move::Next, BATCH_ROWS, None, batch)
    }

    /// As [`IndexCursor::next_batch`], but at most `at_most` rows, as
    /// [`Cursor::next_batch_of`](crate::Cursor::next_batch_of) does.
    ///
    /// # Errors
    /// As [`IndexCursor::next_batch`]; a number of rows that is 0 or more than [`BATCH_ROWS`]
    /// ([`UsageError::BatchRows`](crate::error::UsageError::BatchRows)), and the cursor stays where it is.
    pub fn next_batch_of(&mut self, batch: &mut IndexBatch, at_most: usize) -> Result<usize> {
        self.take_entries(Move::Next, at_most, None, batch)
    }

    /// As [`IndexCursor::next_batch_of`], and passes over the rows of which the condition fails, as
    /// [`IndexCursor::next_where`] does: it is evaluated on the entry, before the row is read or locked. If it
    /// [ends](Condition::Ends) the move, the batch ends with the rows before, and the cursor is at the last of them;
    /// if there are none, it is at no row, and a further step goes on behind the entry that has ended it.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-batch-where-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{Condition, IndexBatch, IndexOptions, Seek, TableOptions};
    ///
    /// let by_name = TableOptions::default().index("name", IndexOptions::on_value(0..4));
    /// let people = db.create_table("people", by_name)?;
    /// for (id, name) in [(1u8, "Adam"), (2, "Bert"), (3, "Bill"), (4, "Carl")] {
    ///     people.insert(&[id], name.as_bytes())?;
    /// }
    /// let (mut cursor, mut batch) = (people.index("name")?.cursor()?, IndexBatch::default());
    /// cursor.set_range("B"..);
    /// let rows = cursor.next_batch_where(&mut batch, 16, |entry| match entry.index_key {
    ///     [b'B', .., b't'] => Condition::Holds,
    ///     [b'B', ..] => Condition::Fails,
    ///     _ => Condition::Ends,
    /// })?;
    /// assert_eq!((rows, batch.get(0).map(|row| row.value)), (1, Some(&b"Bert"[..])));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`IndexCursor::next_batch_of`].
    pub fn next_batch_where(
        &mut self,
        batch: &mut IndexBatch,
        at_most: usize,
        mut condition: impl FnMut(IndexEntry<'_>) -> Condition,
    ) -> Result<usize> {
        self.take_entries(Move::Next, at_most, Some(&mut condition), batch)
    }

    /// As [`IndexCursor::next_batch`], but moves down: the last entry is the first one of the batch.
    ///
    /// # Errors
    /// As [`IndexCursor::next_batch`].
    pub fn prev_batch(&mut self, batch: &mut IndexBatch) -> Result<usize> {
        self.take_entries(Move::Prev, BATCH_ROWS, None, batch)
    }

    /// As [`IndexCursor::next_batch_of`], but moves down: the last entry is the first one of the batch.
    ///
    /// # Errors
    /// As [`IndexCursor::next_batch_of`].
    pub fn prev_batch_of(&mut self, batch: &mut IndexBatch, at_most: usize) -> Result<usize> {
        self.take_entries(Move::Prev, at_most, None, batch)
    }

    /// As [`IndexCursor::next_batch_where`], but moves down: the last entry is the first one of the batch.
    ///
    /// # Errors
    /// As [`IndexCursor::next_batch_of`].
    pub fn prev_batch_where(
        &mut self,
        batch: &mut IndexBatch,
        at_most: usize,
        mut condition: impl FnMut(IndexEntry<'_>) -> Condition,
    ) -> Result<usize> {
        self.take_entries(Move::Prev, at_most, Some(&mut condition), batch)
    }

    /// Releases the lock on the row at this place of a batch, which this cursor has read last, as
    /// [`IndexCursor::unlock_row`] does. Returns whether it was released. A row with several entries in the batch stays
    /// locked until this was called for the place of each of them.
    ///
    /// # Errors
    /// As [`IndexCursor::unlock_row`].
    pub fn unlock_row_of(&mut self, batch: &mut IndexBatch, place: usize) -> Result<bool> {
        match (batch.give_up(place), batch.get(place)) {
            (Some(lock), Some(entry)) => self.entries.unlock(lock, entry.key),
            _ => Ok(false),
        }
    }

    fn take_entries(
        &mut self,
        step: Move<'static>,
        at_most: usize,
        condition: Option<&mut EntryCondition<'_>>,
        batch: &mut IndexBatch,
    ) -> Result<usize> {
        batch.clear();
        check_rows(at_most)?;
        let done = self.try_take_entries(step, at_most, condition, batch);
        done.inspect_err(|_| batch.clear())?;
        Ok(batch.len())
    }

    fn try_take_entries(
        &mut self,
        step: Move<'static>,
        at_most: usize,
        condition: Option<&mut EntryCondition<'_>>,
        batch: &mut IndexBatch,
    ) -> Result<()> {
        let Self { entries, parts, .. } = self;
        let is_full = entries.take(step, &mut Entries { batch, parts, at_most, condition })?;
        match batch.entries.last() {
            Some(PlacedEntry { start, key, row, end, places, .. }) if !is_full => {
                let bytes = &batch.bytes;
                let (value, unescaped) = bytes[*row..*end].split_at(places.payload);
                // The condition may have taken apart another entry since.
                parts.places = *places;
                parts.unescaped.clear();
                parts.unescaped.extend_from_slice(unescaped);
                entries
                    .return_to(step, EntryRef { key: &bytes[*start..*key], value, row: &bytes[*key..*row] })
            }
            _ => Ok(()),
        }
    }
}

/// A condition on entries.
type EntryCondition<'f> = dyn FnMut(IndexEntry<'_>) -> Condition + 'f;

/// The entries of an index, into a batch.
struct Entries<'b, 'f> {
    batch: &'b mut IndexBatch,
    parts: &'b mut Parts,
    at_most: usize,
    condition: Option<&'b mut EntryCondition<'f>>,
}

impl Sink for Entries<'_, '_> {
    fn has_condition(&self) -> bool {
        self.condition.is_some()
    }

    fn evaluate(&mut self, key: &[u8], value: &[u8]) -> Result<Condition> {
        let Some(condition) = &mut self.condition else { return Ok(Condition::Holds) };
        let entry = EntryRef { key, value, row: &[] };
        self.parts.find(entry)?;
        Ok(condition(self.parts.of(entry)))
    }

    #[inline]
    fn push(&mut self, entry: EntryRef<'_>, releasable: Option<TakenLock>) -> Result<bool> {
        let Self { batch, parts, at_most, .. } = self;
        parts.find(entry)?;
        batch.push(entry, parts, releasable);
        Ok(is_full(batch.entries.len(), *at_most, &batch.bytes))
    }
}
