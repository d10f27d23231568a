//! A secondary index's handle.
//!
//! **Purpose.** Rows in the order of an index key.
//!
//! **Invariants.** An entry leads to the row by its key, and both are seen by one view; where there is none, a row
//! whose value says otherwise by now, because it changed between the look at the entry and the look at the row, is left
//! out. The [cursor](Cursor) over the entries gives the values of the rows.
//!
//! **May touch.** `table`, `cursor`, `range`, `transaction`.

use core::ops::{Bound, RangeBounds};

use crate::{
    cursor::{Cursor, Move, Reader, Seek, split},
    error::{Owner, Result},
    range::{Bounds, Range},
    store::Tree,
    sync::Arc,
    table::Table,
    transaction::{locks::RowMode, secondary},
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
        let entries = Range::new(self.entries(self.table.reader()?)?, entry_bounds(Bounds::of(&range)));
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
        Ok(IndexCursor { entries: self.entries(self.table.reader()?)?, index: self.clone(), row: None })
    }

    /// As [`Index::range`], each row locked as [`Table::get_for_share`] does. Where the level says so, no row gets an
    /// index key in the range before the transaction has ended.
    ///
    /// # Errors
    /// As [`Index::range`] and [`Table::get_for_share`].
    pub fn range_for_share<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<IndexRange> {
        self.range_for(RowMode::Shared, &range)
    }

    /// As [`Index::range`], each row locked as [`Table::get_for_update`] does.
    ///
    /// # Errors
    /// As [`Index::range`] and [`Table::get_for_update`].
    pub fn range_for_update<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<IndexRange> {
        self.range_for(RowMode::Exclusive, &range)
    }

    fn range_for<K: AsRef<[u8]>>(&self, mode: RowMode, range: &impl RangeBounds<K>) -> Result<IndexRange> {
        let reader = self.table.locking_reader(mode)?;
        let entries = Range::new(self.entries(reader)?, entry_bounds(Bounds::of(range)));
        Ok(IndexRange { entries, index: self.clone() })
    }

    fn entries(&self, reader: Reader) -> Result<Cursor> {
        self.table.engine.check_open()?;
        let Table { engine, inner, .. } = &self.table;
        Ok(Cursor::new(engine.clone(), inner.clone(), self.tree.clone(), self.owner(), reader))
    }

    /// The row that an entry leads to, with its value.
    fn row(&self, (entry, value): (&[u8], &[u8])) -> Result<IndexRow> {
        let (index_key, key) = split(entry, self.tree.space().id(), || self.owner())?;
        Ok(IndexRow { index_key, key: key.to_vec(), value: value.to_vec() })
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

impl Iterator for IndexRange {
    type Item = Result<IndexRow>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { entries, index } = self;
        entries.next_ref().transpose().map(|row| index.row(row?))
    }
}

impl DoubleEndedIterator for IndexRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        let Self { entries, index } = self;
        entries.next_back_ref().transpose().map(|row| index.row(row?))
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
    /// Goes to the first or last row whose index key is so. Says whether there is one; if not, the cursor is beyond
    /// that end.
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
        self.row = None;
        self.entries.go(to, |_| true)?;
        self.row = self.entries.row().map(|row| self.index.row(row)).transpose()?;
        Ok(self.row.is_some())
    }

    /// The row that the cursor is at.
    pub fn row(&self) -> Option<&IndexRow> {
        self.row.as_ref()
    }
}
