//! Ranges and cursors of the engine, of every kind.

use windfall::{
    Access, Cursor, IndexCursor, IndexItem, IndexKey, IndexRange, IndexRow, LockWaitPolicy, Range, Result,
    Seek, Table, TxTable,
};

use crate::outcome::{Outcome, Refusal};
use crate::steps::{Locking, Move, Over, Shape, Which};
use crate::value::{Value, key_of};

/// Returns the name of an index.
pub(crate) fn index_name(which: Which) -> &'static str {
    match which {
        Which::First => "first",
        Which::Unique => "unique",
    }
}

/// An open range or cursor of the engine.
pub(crate) enum Held {
    Rows(Range),
    Index(IndexRange),
    Keys(IndexRange<IndexKey>),
    RowCursor(Cursor),
    IndexCursor(IndexCursor),
    KeyCursor(IndexCursor),
}

fn row(key: &[u8], index_key: Option<u8>, value: Option<&[u8]>) -> Outcome {
    let damaged =
        || Outcome::from(Refusal::Other(format!("a row that was never written: {key:?}, {value:?}")));
    let Some(key) = key_of(key) else { return damaged() };
    let value = match value.map(Value::of) {
        Some(None) => return damaged(),
        Some(value) => value,
        None => None,
    };
    Outcome::Row { key, index_key, value }
}

fn index_row(which: Which, index_key: &[u8], key: &[u8], value: Option<&[u8]>) -> Outcome {
    let base = if which == Which::First { b'0' } else { b'A' };
    match index_key {
        [byte] if *byte >= base => row(key, Some(byte - base), value),
        _ => Refusal::Other(format!("an index key that was never written: {index_key:?}")).into(),
    }
}

fn base(over: Over) -> u8 {
    match over {
        Over::Rows => b'a',
        Over::Index(Which::First) | Over::Keys(Which::First) => b'0',
        Over::Index(Which::Unique) | Over::Keys(Which::Unique) => b'A',
    }
}

fn which(over: Over) -> Which {
    match over {
        Over::Index(which) | Over::Keys(which) => which,
        Over::Rows => Which::First,
    }
}

type Bounds = (core::ops::Bound<[u8; 1]>, core::ops::Bound<[u8; 1]>);

fn bounds(over: Over, range: Option<(u8, u8, bool)>) -> Bounds {
    use core::ops::Bound::{Excluded, Included, Unbounded};
    match range {
        None => (Unbounded, Unbounded),
        Some((from, to, true)) => (Included([base(over) + from]), Included([base(over) + to])),
        Some((from, to, false)) => (Excluded([base(over) + from]), Excluded([base(over) + to])),
    }
}

impl Held {
    /// Executes a move, and returns its outcome.
    pub(crate) fn step(&mut self, over: Over, to: Move) -> Outcome {
        let which = which(over);
        let of_row = |(key, value): (Vec<u8>, Vec<u8>)| row(&key, None, Some(&value));
        let of_index = |row: IndexRow| index_row(which, &row.index_key, &row.key, Some(&row.value));
        let of_key = |row: IndexKey| index_row(which, &row.index_key, &row.key, None);
        let forward = matches!(to, Move::Next | Move::First | Move::AtLeast(_) | Move::Above(_));
        match self {
            Self::Rows(range) => next(range, forward, of_row),
            Self::Index(range) => next(range, forward, of_index),
            Self::Keys(range) => next(range, forward, of_key),
            Self::RowCursor(cursor) => {
                let moved = go(to, over, |to| match to {
                    Go::Next => cursor.next(),
                    Go::Prev => cursor.prev(),
                    Go::To(seek) => cursor.seek(seek),
                });
                let found = || cursor.row().map(|(key, value)| row(key, None, Some(value)));
                Outcome::of(moved, |there| at(there, found()))
            }
            Self::IndexCursor(cursor) => {
                let moved = go(to, over, |to| match to {
                    Go::Next => cursor.next(),
                    Go::Prev => cursor.prev(),
                    Go::To(seek) => cursor.seek(seek),
                });
                Outcome::of(moved, |there| at(there, cursor.row().map(IndexItem::of).map(of_index)))
            }
            Self::KeyCursor(cursor) => {
                let moved = go(to, over, |to| match to {
                    Go::Next => cursor.next(),
                    Go::Prev => cursor.prev(),
                    Go::To(seek) => cursor.seek(seek),
                });
                Outcome::of(moved, |there| at(there, cursor.row().map(IndexItem::of).map(of_key)))
            }
        }
    }
}

pub(crate) fn open(table: &Table<impl Access>, over: Over, shape: Shape) -> Result<Held> {
    let index = |which| table.index(index_name(which));
    Ok(match (over, shape) {
        (Over::Rows, Shape::Range(range)) => Held::Rows(table.range(bounds(over, range))?),
        (Over::Rows, Shape::Cursor) => Held::RowCursor(table.cursor()?),
        (Over::Index(which), Shape::Range(range)) => Held::Index(index(which)?.range(bounds(over, range))?),
        (Over::Index(which), Shape::Cursor) => Held::IndexCursor(index(which)?.cursor()?),
        (Over::Keys(which), Shape::Range(range)) => Held::Keys(index(which)?.keys(bounds(over, range))?),
        (Over::Keys(which), Shape::Cursor) => Held::KeyCursor(index(which)?.key_cursor()?),
    })
}

/// As [`open`], with locks, where there is a locking read.
pub(crate) fn open_locking(table: &TxTable<'_>, over: Over, shape: Shape, locking: Locking) -> Result<Held> {
    let then = if locking.skips { LockWaitPolicy::SkipLocked } else { LockWaitPolicy::Wait };
    let table = &table.lock_wait_policy(then);
    let index = |which| table.index(index_name(which));
    Ok(match (over, shape, locking.exclusive) {
        (Over::Rows, Shape::Range(range), false) => Held::Rows(table.range_for_share(bounds(over, range))?),
        (Over::Rows, Shape::Range(range), true) => Held::Rows(table.range_for_update(bounds(over, range))?),
        (Over::Rows, Shape::Cursor, false) => Held::RowCursor(table.cursor_for_share()?),
        (Over::Rows, Shape::Cursor, true) => Held::RowCursor(table.cursor_for_update()?),
        (Over::Index(which), Shape::Range(range), false) => {
            Held::Index(index(which)?.range_for_share(bounds(over, range))?)
        }
        (Over::Index(which), Shape::Range(range), true) => {
            Held::Index(index(which)?.range_for_update(bounds(over, range))?)
        }
        (Over::Index(which), Shape::Cursor, false) => Held::IndexCursor(index(which)?.cursor_for_share()?),
        (Over::Index(which), Shape::Cursor, true) => Held::IndexCursor(index(which)?.cursor_for_update()?),
        (Over::Keys(_), ..) => open(table, over, shape)?,
    })
}

enum Go<'a> {
    Next,
    Prev,
    To(Seek<'a>),
}

fn go(to: Move, over: Over, mut run: impl FnMut(Go<'_>) -> Result<bool>) -> Result<bool> {
    let place = |key: u8| [base(over) + key];
    match to {
        Move::Next => run(Go::Next),
        Move::Prev => run(Go::Prev),
        Move::First => run(Go::To(Seek::First)),
        Move::Last => run(Go::To(Seek::Last)),
        Move::AtLeast(key) => run(Go::To(Seek::AtLeast(&place(key)))),
        Move::Above(key) => run(Go::To(Seek::Above(&place(key)))),
        Move::AtMost(key) => run(Go::To(Seek::AtMost(&place(key)))),
        Move::Below(key) => run(Go::To(Seek::Below(&place(key)))),
    }
}

fn at(there: bool, row: Option<Outcome>) -> Outcome {
    match row {
        Some(row) if there => row,
        None if !there => Outcome::End,
        row => Refusal::Other(format!("it says {there}, and is at {row:?}")).into(),
    }
}

fn next<T>(
    range: &mut impl DoubleEndedIterator<Item = Result<T>>,
    forward: bool,
    row: impl Fn(T) -> Outcome,
) -> Outcome {
    let found = if forward { range.next() } else { range.next_back() };
    found.map_or(Outcome::End, |found| Outcome::of(found, row))
}
