//! A secondary index's handle.
//!
//! **Purpose.** Rows in the order of an index key.
//!
//! **Invariants.** An entry leads to the row by its key; a row whose value says otherwise by now, because it changed
//! between the look at the entry and the look at the row, is left out.
//!
//! **May touch.** `table`, `cursor`, `range`, `transaction`.

use core::ops::{Bound, RangeBounds};

use crate::{
    cursor::{Cursor, Move, Seek},
    error::{CorruptError, Owner, Result},
    range::{Bounds, Range},
    store::Tree,
    sync::Arc,
    table::Table,
    transaction::{read, row::INDEXED, secondary},
};

/// A secondary index of a table.
#[derive(Clone, Debug)]
pub struct Index {
    table: Table,
    name: Arc<str>,
    tree: Arc<Tree>,
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
}

impl Index {
    pub(crate) fn new(table: Table, name: Arc<str>, tree: Arc<Tree>) -> Self {
        Self { table, name, tree }
    }

    fn owner(&self) -> Owner {
        Owner::Index { table: self.table.name.clone(), index: self.name.clone() }
    }

    /// The rows whose index keys lie in a range, in order, from either end.
    ///
    /// # Errors
    /// A dropped table or index.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<IndexRange> {
        let entries = Range::new(self.entries()?, entry_bounds(Bounds::of(&range)));
        Ok(IndexRange { entries, index: self.clone() })
    }

    /// The rows with this index key, in the order of their own keys.
    ///
    /// # Errors
    /// As [`Index::range`].
    pub fn get(&self, index_key: &[u8]) -> Result<IndexRange> {
        self.range(index_key..=index_key)
    }

    /// A cursor over all rows in the order of the index, which is nowhere yet.
    ///
    /// # Errors
    /// As [`Index::range`].
    pub fn cursor(&self) -> Result<IndexCursor> {
        Ok(IndexCursor { entries: self.entries()?, index: self.clone(), row: None })
    }

    fn entries(&self) -> Result<Cursor> {
        self.table.engine.check_open()?;
        let Table { engine, inner, .. } = &self.table;
        Ok(Cursor::new(engine.clone(), inner.clone(), self.tree.clone(), self.owner()))
    }

    /// The row that an entry leads to, unless it has changed since.
    fn row(&self, entry: &[u8]) -> Result<Option<IndexRow>> {
        let space = self.tree.space().id();
        let (index_key, key) = secondary::split(entry).ok_or_else(|| {
            let what = "an entry of a secondary index makes no sense".into();
            CorruptError::Structure { owner: self.owner(), space, what }
        })?;
        let call = self.table.enter()?;
        let mut value = Vec::new();
        let found = read::get(&call.clustered, key, &mut value);
        if !found.map_err(|error| self.table.told(error))? {
            return Ok(None);
        }
        let window = &value[..value.len().min(INDEXED)];
        let place = call.secondaries.iter().position(|tree| tree.space().id() == space);
        let still = place.is_some_and(|n| call.record.indexes[n].key.key_of(window) == index_key);
        Ok(still.then(|| IndexRow { index_key, key: key.to_vec(), value }))
    }
}

/// Where the entries of all greater index keys begin: those of this key begin with its prefix, which ends in zeros.
fn behind(index_key: &[u8]) -> Vec<u8> {
    let mut prefix = secondary::prefix_of(index_key);
    if let Some(last) = prefix.last_mut() {
        *last = 1;
    }
    prefix
}

/// The range of entries for a range of index keys.
fn entry_bounds(keys: Bounds) -> Bounds {
    Bounds {
        lower: match keys.lower {
            Bound::Included(key) => Bound::Included(secondary::prefix_of(&key)),
            Bound::Excluded(key) => Bound::Included(behind(&key)),
            Bound::Unbounded => Bound::Unbounded,
        },
        upper: match keys.upper {
            Bound::Included(key) => Bound::Excluded(behind(&key)),
            Bound::Excluded(key) => Bound::Excluded(secondary::prefix_of(&key)),
            Bound::Unbounded => Bound::Unbounded,
        },
    }
}

/// Rows in the order of an index.
#[derive(Debug)]
pub struct IndexRange {
    entries: Range,
    index: Index,
}

impl IndexRange {
    fn next_row(
        &mut self,
        mut step: impl FnMut(&mut Range) -> Option<<Range as Iterator>::Item>,
    ) -> Option<Result<IndexRow>> {
        loop {
            match step(&mut self.entries)? {
                Err(error) => return Some(Err(error)),
                Ok((entry, _)) => {
                    if let Some(row) = self.index.row(&entry).transpose() {
                        return Some(row);
                    }
                }
            }
        }
    }
}

impl Iterator for IndexRange {
    type Item = Result<IndexRow>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_row(Range::next)
    }
}

impl DoubleEndedIterator for IndexRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_row(Range::next_back)
    }
}

/// A position among the rows of a table, in the order of an index key, and of the rows' keys where that is the same.
///
/// It moves like a [`Cursor`], and seeks by index keys.
#[derive(Debug)]
pub struct IndexCursor {
    entries: Cursor,
    index: Index,
    row: Option<IndexRow>,
}

impl IndexCursor {
    /// Goes to the first or last row whose index key is so. Says whether there is one; if not, the cursor is beyond that
    /// end.
    ///
    /// # Errors
    /// A dropped table or index; damage, I/O.
    pub fn seek(&mut self, to: Seek<'_>) -> Result<bool> {
        let place = match to {
            Seek::First | Seek::Last => Vec::new(),
            Seek::AtLeast(key) | Seek::Below(key) => secondary::prefix_of(key),
            Seek::Above(key) | Seek::AtMost(key) => behind(key),
        };
        match to {
            Seek::First => self.go(Move::To(Seek::First)),
            Seek::AtLeast(_) | Seek::Above(_) => self.go(Move::To(Seek::AtLeast(&place))),
            Seek::Last => self.go(Move::To(Seek::Last)),
            Seek::AtMost(_) | Seek::Below(_) => self.go(Move::To(Seek::Below(&place))),
        }
    }

    /// Goes to the next row. Says whether there is one; if not, the cursor is behind the last.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    #[expect(clippy::should_implement_trait, reason = "a cursor goes both ways and lends what it is at")]
    pub fn next(&mut self) -> Result<bool> {
        self.go(Move::Next)
    }

    /// Goes to the row before. Says whether there is one; if not, the cursor is before the first.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn prev(&mut self) -> Result<bool> {
        self.go(Move::Prev)
    }

    fn go(&mut self, to: Move<'_>) -> Result<bool> {
        self.row = self.find(to)?;
        Ok(self.row.is_some())
    }

    /// Moves, and on over entries whose rows have changed.
    fn find(&mut self, to: Move<'_>) -> Result<Option<IndexRow>> {
        self.row = None;
        let mut there = self.entries.go(to, |_| true)?;
        while there {
            match self.index.row(self.entries.key().unwrap_or_default()) {
                Ok(None) => there = self.entries.go(to.on(), |_| true)?,
                Ok(row) => return Ok(row),
                Err(error) => {
                    self.entries = self.entries.another();
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// The row that the cursor is at.
    pub fn row(&self) -> Option<&IndexRow> {
        self.row.as_ref()
    }
}
