//! Cursors and ranges: their positions, the versions that they may see, and the rows that have changed since they last
//! read.
//!
//! Rows are read ahead. So a cursor that sees the newest versions, at READ UNCOMMITTED, may return a row that others
//! have changed either as it was when the cursor last read, or as it is now. These versions are its *candidates*, and a
//! row with only one candidate must be returned. What its own transaction has changed is returned as it is now. A
//! locking cursor reads each row in its current version, but may have missed a row that was inserted where it had
//! already read ahead. So it is *unsure* to meet a row that has changed since.

use std::collections::{BTreeMap, BTreeSet};

use windfall::Isolation;

use super::locks::{END, Pos, entry_pos, first_of, index_key, row_pos};
use super::{Model, Seq, TableNo, TreeId, TrxNo, Undone, Visibility};
use crate::outcome::{Outcome, Refusal};
use crate::steps::{Locking, Over, Shape};
use crate::value::{KEYS, Key, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    New,
    At(Pos),
    Before,
    Behind,
}

#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    pub me: Option<TrxNo>,
    pub table: TableNo,
    pub tree: TreeId,
    pub over: Over,
    /// The lock mode of the cursor, if it locks.
    pub lock: Option<Locking>,
    /// Whether the cursor sees the newest version at every step.
    pub sees_newest: bool,
    /// The range that it stays in, half-open; `None` for a cursor without limits.
    pub limits: Option<(Pos, Pos)>,
    pub has_begun: bool,
    pub is_done: bool,
    pub place: Place,
    /// The position of the other end of a range.
    pub back: Option<Pos>,
    pub view: Option<Seq>,
    pub candidates: BTreeMap<Key, Vec<Option<Value>>>,
    pub unsure: BTreeSet<Key>,
}

impl Cursor {
    /// Returns the position of a row with this value.
    pub(crate) fn pos(&self, key: Key, value: Value) -> Pos {
        match self.over {
            Over::Rows => row_pos(key),
            Over::Index(which) | Over::Keys(which) => entry_pos(index_key(value, which), key),
        }
    }

    /// Returns the position at which a key (of the index) begins, and the one after it.
    pub(crate) fn around(&self, key: u8) -> (Pos, Pos) {
        match self.over {
            Over::Rows => (row_pos(key), row_pos(key) + 1),
            Over::Index(_) | Over::Keys(_) => (first_of(key), first_of(key + 1)),
        }
    }

    /// Returns the outcome of a step that reaches this row.
    pub(crate) fn row(&self, key: Key, value: Value) -> Outcome {
        match self.over {
            Over::Rows => Outcome::Row { key, index_key: None, value: Some(value) },
            Over::Index(which) => {
                Outcome::Row { key, index_key: Some(index_key(value, which)), value: Some(value) }
            }
            Over::Keys(which) => Outcome::Row { key, index_key: Some(index_key(value, which)), value: None },
        }
    }
}

/// Returns the position of the row that a cursor has returned.
pub(crate) fn place_of(outcome: &Outcome) -> Option<Pos> {
    match outcome {
        Outcome::Row { key, index_key: None, .. } => Some(row_pos(*key)),
        Outcome::Row { key, index_key: Some(index_key), .. } => Some(entry_pos(*index_key, *key)),
        _ => None,
    }
}

impl Model {
    /// Opens a cursor. Returns the cursor, or the refusal.
    pub(crate) fn open(
        &self,
        me: Option<TrxNo>,
        table: TableNo,
        over: Over,
        shape: Shape,
        locking: Option<Locking>,
    ) -> Result<Cursor, Refusal> {
        let known = &self.tables[table];
        let is_refused =
            locking.is_some() && !known.temporary && me.is_some_and(|trx| self.trx(trx).read_only);
        let tree = match over {
            Over::Rows if is_refused => return Err(Refusal::ReadOnly),
            _ if known.is_dropped => return Err(Refusal::Dropped),
            Over::Rows => known.rows,
            Over::Index(which) | Over::Keys(which) => known.index(which).ok_or(Refusal::NoIndex)?,
        };
        if is_refused {
            return Err(Refusal::ReadOnly);
        }
        let level = me.map(|trx| self.trx(trx).level);
        let of_level =
            (level == Some(Isolation::Serializable)).then_some(Locking { exclusive: false, skips: false });
        let lock = locking.or(of_level).filter(|_| !known.temporary);
        let mut cursor = Cursor {
            me,
            table,
            tree,
            over,
            lock,
            sees_newest: known.temporary || level == Some(Isolation::ReadUncommitted),
            limits: None,
            has_begun: false,
            is_done: false,
            place: Place::New,
            back: None,
            view: None,
            candidates: BTreeMap::new(),
            unsure: BTreeSet::new(),
        };
        cursor.limits = match shape {
            Shape::Cursor => None,
            Shape::Range(None) => Some((0, END)),
            Shape::Range(Some((from, to, true))) => Some((cursor.around(from).0, cursor.around(to).1)),
            Shape::Range(Some((from, to, false))) => Some((cursor.around(from).1, cursor.around(to).0)),
        };
        Ok(cursor)
    }

    /// Returns the candidates of each row for a cursor that reads now.
    pub(crate) fn candidates(&self, cursor: &Cursor) -> BTreeMap<Key, Vec<Option<Value>>> {
        let of = |key| {
            if cursor.sees_newest {
                return self.newest_of_all(cursor.table, key);
            }
            let seq = cursor.view.unwrap_or(self.seq);
            vec![self.visible(cursor.table, key, Visibility::View { seq, own: cursor.me })]
        };
        (0..KEYS).map(|key| (key, of(key))).collect()
    }

    /// Updates the cursors after a row has got another newest version: `me` has written it, or `None` if it was rolled
    /// back.
    pub(crate) fn row_changed(&mut self, table: TableNo, key: Key, me: Option<TrxNo>) {
        let newest = self.newest_of_all(table, key);
        let top = self.chain(table, key).last().and_then(|version| version.value);
        for cursor in self.cursors.values_mut().filter(|cursor| cursor.table == table) {
            let candidates = cursor.candidates.entry(key).or_default();
            if cursor.lock.is_some() {
                cursor.unsure.insert(key);
            } else if me.is_some() && cursor.me == me {
                *candidates = vec![top];
            } else if cursor.sees_newest {
                candidates.extend(&newest);
            }
        }
    }

    /// Removes versions that a transaction has rolled back from its own cursors, which do not return them even if they
    /// have read ahead.
    pub(crate) fn discard_batch(&mut self, trx: TrxNo, taken: &[Undone]) {
        for Undone { table, key, .. } in taken {
            let is_it = |(_, cursor): &(&u8, &Cursor)| cursor.me == Some(trx) && cursor.table == *table;
            let places: Vec<u8> = self.cursors.iter().filter(is_it).map(|(place, _)| *place).collect();
            for place in places {
                let now = self.candidates(&self.cursors[&place]).remove(key).unwrap_or_default();
                let cursor = self.cursors.get_mut(&place).expect("it is there");
                let candidates = cursor.candidates.entry(*key).or_default();
                let is_taken = |candidate: &Option<Value>| {
                    let stamp = candidate.map(|value| value.stamp);
                    let of = taken.iter().filter_map(|undone| undone.version.value);
                    stamp.is_some() && of.map(|value| value.stamp).any(|taken| Some(taken) == stamp)
                };
                candidates.retain(|candidate| !is_taken(candidate));
                candidates.extend(now);
            }
        }
    }

    /// Closes the cursors of a transaction before it ends.
    pub(crate) fn close_cursors(&mut self, trx: TrxNo) -> Vec<u8> {
        let of = |(place, cursor): (&u8, &Cursor)| (cursor.me == Some(trx)).then_some(*place);
        let places: Vec<u8> = self.cursors.iter().filter_map(of).collect();
        for place in &places {
            self.cursors.remove(place);
        }
        places
    }
}
