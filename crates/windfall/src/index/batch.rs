//! Entries of an index in batches.
//!
//! **Purpose.** As [`cursor/batch.rs`](crate::cursor::Batch), for a cursor over an index, with or without rows.
//!
//! **Invariants.** A batch has the entries that single steps would find (test: `batches_are_steps`). Each comes apart
//! as the cursor takes it apart at its position (test: `batches_are_steps`). A row with several entries in a batch
//! stays locked until it was given up for each of them (test:
//! `a_row_stays_locked_until_it_is_unlocked_for_each_entry`).

use super::{EntryPlaces, IndexCursor, IndexEntry, Parts};
use crate::{
    cursor::{EntryRef, Move, Releasable, is_full},
    error::Result,
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
    releasable: Option<Releasable>,
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
        releasable: Option<Releasable>,
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
    fn give_up(&mut self, place: usize) -> Option<Releasable> {
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
        self.take_entries(Move::Next, batch)
    }

    /// As [`IndexCursor::next_batch`], but moves down: the last entry is the first one of the batch.
    ///
    /// # Errors
    /// As [`IndexCursor::next_batch`].
    pub fn prev_batch(&mut self, batch: &mut IndexBatch) -> Result<usize> {
        self.take_entries(Move::Prev, batch)
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

    fn take_entries(&mut self, step: Move<'static>, batch: &mut IndexBatch) -> Result<usize> {
        batch.clear();
        let done = self.try_take_entries(step, batch);
        done.inspect_err(|_| batch.clear())?;
        Ok(batch.len())
    }

    fn try_take_entries(&mut self, step: Move<'static>, batch: &mut IndexBatch) -> Result<()> {
        let Self { entries, parts } = self;
        let is_full = entries.take(step, |entry, releasable| {
            parts.find(entry)?;
            batch.push(entry, parts, releasable);
            Ok(is_full(batch.entries.len(), &batch.bytes))
        })?;
        match batch.entries.last() {
            Some(PlacedEntry { start, key, row, places, .. }) if !is_full => {
                let bytes = &batch.bytes;
                let value = &bytes[*row..*row + places.payload];
                entries
                    .return_to(step, EntryRef { key: &bytes[*start..*key], value, row: &bytes[*key..*row] })
            }
            _ => Ok(()),
        }
    }
}
