//! Rows in order.
//!
//! **Purpose.** An iterator over a range of a tree, from either end.
//!
//! **Invariants.** Those of a [`Cursor`], one at each end, which see the same; a row is given by one of them. After an
//! error it has ended.
//!
//! **May touch.** `cursor`.

use core::ops::{Bound, RangeBounds};

use crate::{
    cursor::{Cursor, Move, Seek},
    error::Result,
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

    /// Whether a key that was come to from below is still in the range.
    fn reaches_up_to(&self, key: &[u8]) -> bool {
        match &self.upper {
            Bound::Included(upper) => key <= &upper[..],
            Bound::Excluded(upper) => key < &upper[..],
            Bound::Unbounded => true,
        }
    }

    /// Whether a key that was come to from above is still in the range.
    fn reaches_down_to(&self, key: &[u8]) -> bool {
        match &self.lower {
            Bound::Included(lower) => key >= &lower[..],
            Bound::Excluded(lower) => key > &lower[..],
            Bound::Unbounded => true,
        }
    }
}

/// Rows of a table in the order of their keys: pairs of key and value.
#[derive(Debug)]
pub struct Range {
    bounds: Bounds,
    front: Cursor,
    back: Option<Cursor>,
    begun: bool,
    done: bool,
}

/// The direction of a step.
#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

impl Range {
    pub(crate) fn new(front: Cursor, bounds: Bounds) -> Self {
        Self { bounds, front, back: None, begun: false, done: false }
    }

    /// Moves one end to its next row in the range.
    fn step(&mut self, end: End) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if !self.begun {
            self.begun = true;
            let Bounds { lower, upper } = &self.bounds;
            self.front.settle(lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]))?;
        }
        let Self { bounds, front, back, .. } = self;
        // What one end has given the other does not give again. As long as there is one end only it knows that itself.
        let both = back.is_some();
        let cursor = match end {
            End::Front => {
                let to = if front.is_new() { Move::To(bounds.first()) } else { Move::Next };
                front.go(to, |key| bounds.reaches_up_to(key))?;
                front
            }
            End::Back => {
                let back = back.get_or_insert_with(|| front.another());
                if let Some(given) = front.key().filter(|_| !both) {
                    exclude(&mut bounds.lower, given);
                }
                let to = if back.is_new() { Move::To(bounds.last()) } else { Move::Prev };
                back.go(to, |key| bounds.reaches_down_to(key))?;
                back
            }
        };
        let Some((key, value)) = cursor.row() else { return Ok(None) };
        match end {
            End::Front if both => exclude(&mut bounds.lower, key),
            End::Front => {}
            End::Back => exclude(&mut bounds.upper, key),
        }
        Ok(Some((key.to_vec(), value.to_vec())))
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

/// Excludes what lies up to a key, without a new buffer for each.
fn exclude(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    if let Bound::Excluded(last) = bound {
        key.clone_into(last);
    } else {
        *bound = Bound::Excluded(key.to_vec());
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
