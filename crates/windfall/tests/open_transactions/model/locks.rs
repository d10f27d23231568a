//! The locks and their owners. No call waits here, so there are no queues.

use std::collections::BTreeMap;

use super::{TreeId, TrxNo};
use crate::steps::Which;
use crate::value::Key;

/// A position in a tree, as a number. In a tree of rows it is the row's key, in an index the index key and then the
/// row's key. Between two neighbours there is a position directly after the first.
pub(crate) type Pos = u32;

pub(crate) const END: Pos = Pos::MAX;

pub(crate) fn row_pos(key: Key) -> Pos {
    Pos::from(key) << 1
}

pub(crate) fn entry_pos(index_key: u8, key: Key) -> Pos {
    Pos::from(index_key) << 9 | row_pos(key)
}

/// Returns the position at which the entries of an index key begin.
pub(crate) fn first_of(index_key: u8) -> Pos {
    Pos::from(index_key) << 9
}

/// Whether a lock or a version blocks a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Conflict {
    No,
    /// The conflict depends on state that the model does not track: the progress of background rollbacks, or entries
    /// that were read ahead.
    May,
    Must,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub exclusive: bool,
    /// Whether it is certainly held.
    pub sure: bool,
}

/// All locks. The lock on a unique index key is a row lock in the index's tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    pub tables: BTreeMap<TreeId, BTreeMap<TrxNo, Lock>>,
    pub rows: BTreeMap<(TreeId, Pos), BTreeMap<TrxNo, Lock>>,
    pub ranges: BTreeMap<TreeId, Vec<Range>>,
}

/// A half-open range of keys that no other transaction can insert (gap locks).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    trx: TrxNo,
    from: Pos,
    to: Pos,
    sure: bool,
}

fn add(locks: &mut BTreeMap<TrxNo, Lock>, trx: TrxNo, new: Lock) {
    let lock = locks.entry(trx).or_insert(new);
    // A stronger lock that is uncertain does not replace a weaker one that is certain.
    if new.exclusive && !lock.exclusive && !new.sure && lock.sure {
        return;
    }
    lock.sure = if new.exclusive == lock.exclusive { lock.sure || new.sure } else { lock.sure && new.sure };
    lock.exclusive |= new.exclusive;
}

impl Locks {
    pub(crate) fn lock_table(&mut self, tree: TreeId, trx: TrxNo, lock: Lock) {
        add(self.tables.entry(tree).or_default(), trx, lock);
    }

    pub(crate) fn lock_row(&mut self, tree: TreeId, pos: Pos, trx: TrxNo, lock: Lock) {
        add(self.rows.entry((tree, pos)).or_default(), trx, lock);
    }

    pub(crate) fn lock_range(&mut self, tree: TreeId, (from, to): (Pos, Pos), trx: TrxNo, sure: bool) {
        if from < to {
            self.ranges.entry(tree).or_default().push(Range { trx, from, to, sure });
        }
    }

    /// Returns whether another transaction prevents this one from locking the row in this mode.
    pub(crate) fn row(&self, tree: TreeId, pos: Pos, me: Option<TrxNo>, exclusive: bool) -> Conflict {
        let holders = self.rows.get(&(tree, pos)).into_iter().flatten();
        let others = holders.filter(|(trx, lock)| Some(**trx) != me && (exclusive || lock.exclusive));
        strongest(others.map(|(_, lock)| lock.sure))
    }

    /// Returns whether a range of another transaction blocks a new entry.
    pub(crate) fn gap(&self, tree: TreeId, pos: Pos, me: Option<TrxNo>) -> Conflict {
        let ranges = self.ranges.get(&tree).into_iter().flatten();
        let around = ranges.filter(|range| Some(range.trx) != me && (range.from..range.to).contains(&pos));
        strongest(around.map(|range| range.sure))
    }

    /// Returns whether transactions have locks on a table. `changing` counts only locks for changes.
    pub(crate) fn table(&self, tree: TreeId, changing: bool) -> Conflict {
        let holders = self.tables.get(&tree).into_iter().flatten();
        strongest(holders.filter(|(_, lock)| !changing || lock.exclusive).map(|(_, lock)| lock.sure))
    }

    /// Returns whether a transaction holds any lock.
    pub(crate) fn any(&self, trx: TrxNo) -> Conflict {
        let locks = self.tables.values().chain(self.rows.values()).filter_map(|locks| locks.get(&trx));
        let ranges = self.ranges.values().flatten().filter(|range| range.trx == trx);
        strongest(locks.map(|lock| lock.sure).chain(ranges.map(|range| range.sure)))
    }

    /// Releases the locks of a transaction that has ended.
    pub(crate) fn release(&mut self, trx: TrxNo) {
        for locks in self.tables.values_mut().chain(self.rows.values_mut()) {
            locks.remove(&trx);
        }
        self.ranges.values_mut().for_each(|ranges| ranges.retain(|range| range.trx != trx));
        self.rows.retain(|_, locks| !locks.is_empty());
    }
}

fn strongest(sure: impl Iterator<Item = bool>) -> Conflict {
    sure.map(|sure| if sure { Conflict::Must } else { Conflict::May }).max().unwrap_or(Conflict::No)
}

/// Returns the index key of a value in an index.
pub(crate) fn index_key(value: crate::value::Value, which: Which) -> u8 {
    match which {
        Which::First => value.first,
        Which::Unique => value.unique,
    }
}
