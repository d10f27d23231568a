//! A secondary index's handle.
//!
//! **Purpose.** Rows in the order of an index key.
//!
//! **Invariants.** An entry leads to the row by its key; a row whose value says otherwise by now, because it changed between
//! the look at the entry and the look at the row, is left out.
//!
//! **May touch.** `table`, `range`, `transaction`.

use core::ops::{Bound, RangeBounds};

use crate::{
    error::{CorruptError, Result},
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
    pub(crate) fn new(table: Table, tree: Arc<Tree>) -> Self {
        Self { table, tree }
    }

    /// The rows whose index keys lie in a range, in order, from either end.
    ///
    /// # Errors
    /// A dropped table or index.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<IndexRange> {
        self.table.engine.check_open()?;
        let bounds = entry_bounds(Bounds::of(&range));
        Ok(IndexRange {
            entries: Range::new(
                self.table.engine.clone(),
                self.table.inner.clone(),
                self.tree.clone(),
                bounds,
            ),
            table: self.table.clone(),
        })
    }

    /// The rows with this index key, in the order of their own keys.
    ///
    /// # Errors
    /// As [`Index::range`].
    pub fn get(&self, index_key: &[u8]) -> Result<IndexRange> {
        self.range(index_key..=index_key)
    }
}

/// The range of entries for a range of index keys.
fn entry_bounds(keys: Bounds) -> Bounds {
    // All entries of an index key begin with its prefix, which ends in zeros: the next one begins no entry of it.
    let behind = |key: &[u8]| {
        let mut prefix = secondary::prefix_of(key);
        if let Some(last) = prefix.last_mut() {
            *last = 1;
        }
        prefix
    };
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
    table: Table,
}

impl IndexRange {
    fn row(&self, entry: &[u8]) -> Result<Option<IndexRow>> {
        let (index_key, key) = secondary::split(entry).ok_or_else(|| {
            let what = "an entry of a secondary index makes no sense".into();
            CorruptError::Structure { space: self.entries.space(), what }
        })?;
        let call = self.table.inner.enter()?;
        let mut value = Vec::new();
        if !read::get(&call.shape.clustered, key, &mut value)? {
            return Ok(None);
        }
        let window = &value[..value.len().min(INDEXED)];
        let place = call.shape.secondaries.iter().position(|tree| tree.space().id() == self.entries.space());
        let still = place.is_some_and(|n| call.shape.record.indexes[n].key.key_of(window) == index_key);
        Ok(still.then(|| IndexRow { index_key, key: key.to_vec(), value }))
    }

    fn next_row(
        &mut self,
        mut step: impl FnMut(&mut Range) -> Option<<Range as Iterator>::Item>,
    ) -> Option<Result<IndexRow>> {
        loop {
            match step(&mut self.entries)? {
                Err(error) => return Some(Err(error)),
                Ok((entry, _)) => {
                    if let Some(row) = self.row(&entry).transpose() {
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
