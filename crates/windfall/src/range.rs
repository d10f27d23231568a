//! Rows in order.
//!
//! **Purpose.** An iterator over a range of a tree, from either end.
//!
//! **Invariants.** It holds no latch between two rows, and passes the table's gate at each. When the tablespace it began on was
//! dropped, by a drop or a truncation, it ends with [`Error::TableDropped`](crate::error::Error::TableDropped),
//! whatever the table has become.
//!
//! **May touch.** `engine`, `catalog`, `transaction`, `tree`.

use core::ops::{Bound, RangeBounds};

use crate::{
    catalog::Table,
    engine::Engine,
    error::Result,
    ids::SpaceId,
    store::Tree,
    sync::Arc,
    transaction::read,
    tree::{Cursor, Seek},
};

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
}

impl Bounds {
    pub fn of<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> Self {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Self { lower: own(range.start_bound()), upper: own(range.end_bound()) }
    }

    fn first(&self) -> Seek<'_> {
        match &self.lower {
            Bound::Included(key) => Seek::AtLeast(key),
            Bound::Excluded(key) => Seek::Above(key),
            Bound::Unbounded => Seek::First,
        }
    }

    fn last(&self) -> Seek<'_> {
        match &self.upper {
            Bound::Included(key) => Seek::AtMost(key),
            Bound::Excluded(key) => Seek::Below(key),
            Bound::Unbounded => Seek::Last,
        }
    }

    fn contains(&self, key: &[u8]) -> bool {
        let lower = match &self.lower {
            Bound::Included(lower) => key >= &lower[..],
            Bound::Excluded(lower) => key > &lower[..],
            Bound::Unbounded => true,
        };
        lower
            && match &self.upper {
                Bound::Included(upper) => key <= &upper[..],
                Bound::Excluded(upper) => key < &upper[..],
                Bound::Unbounded => true,
            }
    }
}

type TreeCursor = Cursor<Arc<Tree>>;

/// Rows of a table in the order of their keys: pairs of key and value.
#[derive(Debug)]
pub struct Range {
    engine: Arc<Engine>,
    table: Arc<Table>,
    tree: Arc<Tree>,
    bounds: Bounds,
    front: Option<TreeCursor>,
    back: Option<TreeCursor>,
    done: bool,
}

/// The direction of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

impl Range {
    pub(crate) fn new(engine: Arc<Engine>, table: Arc<Table>, tree: Arc<Tree>, bounds: Bounds) -> Self {
        Self { engine, table, tree, bounds, front: None, back: None, done: false }
    }

    pub(crate) fn space(&self) -> SpaceId {
        self.tree.space().id()
    }

    /// Moves one end to its next live entry in the range.
    fn step(&mut self, end: End) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.engine.check_open()?;
        // While this call lasts nobody reshapes the table; that it was reshaped before shows in the tablespace.
        let _call = self.table.enter()?;
        self.tree.space().check_live()?;
        loop {
            let cursor = if end == End::Front { &mut self.front } else { &mut self.back };
            let found = match (cursor.as_mut(), end) {
                (Some(cursor), End::Front) => cursor.next()?,
                (Some(cursor), End::Back) => cursor.prev()?,
                (None, _) => {
                    let cursor = cursor.insert(Cursor::new(self.tree.clone()));
                    cursor.seek(if end == End::Front { self.bounds.first() } else { self.bounds.last() })?
                }
            };
            let cursor = if end == End::Front { &self.front } else { &self.back };
            let Some(cursor) = cursor.as_ref().filter(|cursor| found && self.bounds.contains(cursor.key()))
            else {
                return Ok(None);
            };
            let key = cursor.key().to_vec();
            let mut value = cursor.value().to_vec();
            let header = cursor.header().filter(|header| !header.is_deleted());
            // What one end has given the other does not give again.
            match end {
                End::Front => self.bounds.lower = Bound::Excluded(key.clone()),
                End::Back => self.bounds.upper = Bound::Excluded(key.clone()),
            }
            if let Some(header) = header
                && read::resolve(&self.tree, &key, header, &mut value)?
            {
                return Ok(Some((key, value)));
            }
        }
    }

    fn advance(&mut self, end: End) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        if self.done {
            return None;
        }
        let row = self.step(end).transpose();
        self.done = !matches!(row, Some(Ok(_)));
        row
    }
}

impl Iterator for Range {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(End::Front)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(End::Back)
    }
}
