//! Iteration over a range of rows.
//!
//! **Purpose.** An iterator over a range of a tree, from either end.
//!
//! **Invariants.** There is one [`Cursor`] at each end; both stay within the range (test: `both_ends_of_a_range_meet`)
//! and read with the same view (test: `a_range_is_of_one_moment_from_both_ends`). The range ends when one cursor
//! reaches or passes the other, or after an error (test: `both_ends_of_a_range_meet`).

use core::ops::{Bound, RangeBounds};

use crate::{
    cursor::{Cursor, EntryRef, Move, Wanted},
    error::Result,
};

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
}

impl Bounds {
    pub(crate) fn of<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> Self {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Self { lower: own(range.start_bound()), upper: own(range.end_bound()) }
    }
}

/// An iterator over the rows of a table in the order of their keys.
///
/// The iterator's items are copied pairs of key and value. [`Range::next_ref`] lends a row without copying it.
///
/// ```
/// # fn main() -> windfall::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("windfall-range-{}", std::process::id()));
/// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
/// # let towns = db.create_table("towns", windfall::TableOptions::default())?;
/// for (town, people) in [("Basel", "177595"), ("Genoa", "560688"), ("Oslo", "717710")] {
///     towns.insert(town.as_bytes(), people.as_bytes())?;
/// }
/// let from_c: Vec<_> = towns.range("C"..)?.collect::<windfall::Result<_>>()?;
/// assert_eq!(from_c[0], (b"Genoa".to_vec(), b"560688".to_vec()));
///
/// let (mut rows, mut digits) = (towns.range("A"..="Genoa")?, 0);
/// while let Some((_, people)) = rows.next_ref()? {
///     digits += people.len();
/// }
/// assert_eq!(digits, 12);
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Range {
    /// The range, until the first step passes it to the cursors.
    bounds: Option<Bounds>,
    front: Cursor,
    back: Option<Cursor>,
    done: bool,
}

/// A borrowed row: key and value.
type Row<'a> = (&'a [u8], &'a [u8]);

impl Range {
    pub(crate) fn new(front: Cursor, bounds: Bounds) -> Self {
        Self { bounds: Some(bounds), front, back: None, done: false }
    }

    /// Returns the next row without copying it; `None` after the last one.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    pub fn next_ref(&mut self) -> Result<Option<Row<'_>>> {
        self.step_forward()?;
        Ok(if self.done { None } else { self.front.row() })
    }

    /// As [`Range::next_ref`], for a range of index entries: [`Cursor::entry`].
    pub(crate) fn next_entry(&mut self) -> Result<Option<EntryRef<'_>>> {
        self.step_forward()?;
        Ok(if self.done { None } else { self.front.entry() })
    }

    /// As [`Range::next_back_ref`], for a range of index entries.
    pub(crate) fn next_back_entry(&mut self) -> Result<Option<EntryRef<'_>>> {
        self.step_back()?;
        Ok(if self.done { None } else { self.back.as_ref().and_then(Cursor::entry) })
    }

    /// Returns the last row that was not returned yet, without copying it; `None` if there is none.
    ///
    /// # Errors
    /// As [`Range::next_ref`].
    pub fn next_back_ref(&mut self) -> Result<Option<Row<'_>>> {
        self.step_back()?;
        Ok(if self.done { None } else { self.back.as_ref().and_then(Cursor::row) })
    }

    fn step_forward(&mut self) -> Result<()> {
        self.advance(|range| {
            let Self { front, back, .. } = range;
            let back = back.as_ref().and_then(Cursor::key);
            front.go(Move::Next, Wanted::within(&|key| back.is_none_or(|back| key < back)))
        })
    }

    fn step_back(&mut self) -> Result<()> {
        self.advance(|range| {
            let Self { front, back, .. } = range;
            let back = back.get_or_insert_with(|| front.another());
            back.go(Move::Prev, Wanted::within(&|key| front.key().is_none_or(|front| front < key)))
        })
    }

    /// Makes a step, which returns whether it found a row. The iterator is done after a step without a row, and after
    /// an error.
    fn advance(&mut self, step: impl FnOnce(&mut Self) -> Result<bool>) -> Result<()> {
        if self.done {
            return Ok(());
        }
        self.done = true;
        if let Some(Bounds { lower, upper }) = self.bounds.take() {
            self.front.fix_range(lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]))?;
        }
        self.done = !step(self)?;
        debug_assert!(
            self.done
                || self
                    .front
                    .key()
                    .zip(self.back.as_ref().and_then(Cursor::key))
                    .is_none_or(|(front, back)| front < back),
            "the two ends of a range have passed each other"
        );
        Ok(())
    }
}

fn copied(row: Row<'_>) -> (Vec<u8>, Vec<u8>) {
    (row.0.to_vec(), row.1.to_vec())
}

impl Iterator for Range {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_ref().map(|row| row.map(copied)).transpose()
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_back_ref().map(|row| row.map(copied)).transpose()
    }
}
