//! Cursors that lock the rows they give.
//!
//! **Purpose.** Each row is locked and read as it is now; where the level locks gaps, no row comes between those that
//! were given.
//!
//! **Invariants.** The keys between two rows are locked before it is believed that there is none. A range that is known
//! beforehand is locked as a whole at its first step. A cursor that goes wherever it is told finds the next entry,
//! locks up to there, and looks once more whether that is the next one. A row of an index is locked in the tree of the
//! rows; whether it has the index key by then is looked at after that.
//!
//! *What has left an index is passed over.* An entry that is marked as deleted leads to a row that has not its index
//! key any more, or will not have it once the entry's writer has committed. If the writer has ended, the row is
//! neither read nor locked nor waited for: how many such entries there are is a matter of purge, and of views that
//! have nothing to do with this read. That the writer had ended is known before the entry was read, so it was not
//! about to be taken back. It cannot come back behind that:
//! - Where the level locks gaps the range was locked before the entry was read. Who revives an entry looks for such a
//!   range under the latch of its leaf, and waits for this transaction. A change that has the row already, and has
//!   yet to revive the entry, finds the range as well and takes itself back.
//! - At the other levels a row may come into the range at any time, before this read or behind it.
//! - This transaction itself may take its own mark back. An entry that it has marked is read again at each step.
//!
//! A strict view that does not see the mark is an error, as it is where the row itself is read: the row has changed
//! since.
//!
//! **May touch.** What `cursor` may touch.

use core::ops::Bound;

use super::{At, Cursor, Move, Reader, Seek, split};
use crate::{
    error::{Owner, Result},
    keys::KeyRange,
    scope::{Inner, RowLock, Scope, TableKind},
    transaction::{
        Stop, Trx,
        locks::{RowMode, TableMode},
    },
};

/// The lock on a table that goes before locks on its rows.
pub(crate) fn intention(mode: RowMode) -> TableMode {
    match mode {
        RowMode::Shared => TableMode::IntentionShared,
        RowMode::Exclusive => TableMode::IntentionExclusive,
    }
}

impl Cursor {
    /// From now on it moves in this range alone, sees what it sees now, and keeps others from adding to it if it locks.
    pub(crate) fn settle(&mut self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<()> {
        self.settled = true;
        self.entries.keep_within(KeyRange::new(lower, upper));
        self.look_or_lock(lower, upper).map_err(|error| error.of(|_| self.owner.clone()))
    }

    fn look_or_lock(&mut self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<()> {
        match self.reader.clone() {
            Reader::Session(_) => Ok(()),
            Reader::Alone => {
                self.take_view(self.engine.transactions.view().into());
                Ok(())
            }
            Reader::Within(scope, lock) => scope.call(|inner| {
                let mode = lock.map(|lock| lock.mode).or(scope.lock_of_reads());
                match mode {
                    None => {
                        if let Some(view) = scope.view_of_plain_read(inner) {
                            self.take_view(view);
                        }
                        Ok(())
                    }
                    Some(mode) => {
                        self.intend(&scope, inner, mode)?;
                        self.range_locked = true;
                        scope.lock_range(inner, &self.tree, lower, upper)
                    }
                }
            }),
        }
    }

    /// Locks the table that its rows are of.
    fn intend(&self, scope: &Scope, inner: &mut Inner, mode: RowMode) -> Result<()> {
        scope.intend(inner, self.table.space(), intention(mode))?;
        // What was waited for may have emptied the table: this cursor is over what it was before.
        self.tree.space().check_live()?;
        scope.check_known(inner, || Ok(self.tree.space().born()), || self.owner.clone())
    }

    /// Moves to the next row that is there now, and locks it.
    pub(super) fn find_locked(
        &mut self,
        scope: &Scope,
        inner: &mut Inner,
        lock: RowLock,
        to: Move<'_>,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<bool> {
        let mode = lock.mode;
        self.intend(scope, inner, mode)?;
        let is_index = matches!(self.owner, Owner::Index { .. });
        if is_index && (self.ended.is_none() || matches!(to, Move::To(_))) {
            self.ended = Some(self.engine.transactions.ended());
        }
        let on = to.on();
        let mut found = self.step_locked(scope, inner, to)?;
        while found && wanted(self.entries.key()) {
            if is_index && self.has_left(scope, inner) {
                found = self.step_locked(scope, inner, on)?;
                continue;
            }
            let Self { table, tree, entries, long, owner, .. } = self;
            let is_there = scope.locked(inner, TableKind::Shared, lock.patience(scope), |trx| {
                let call = table.enter()?;
                tree.space().check_live()?;
                if !is_index {
                    let read = trx.read_locked(tree, entries.key(), mode, true, long, || owner.clone());
                    return lock.pass_over(read);
                }
                let space = tree.space().id();
                let (index_key, key) = split(entries.key(), space, || owner.clone())?;
                let has_left = |trx: &Trx<'_>| trx.has_left(tree, entries.key(), || owner.clone());
                if matches!(entries.header(), Some(header) if header.is_deleted()) && has_left(trx)? {
                    return Ok(false);
                }
                let read = trx.read_locked(&call.clustered, key, mode, true, long, || owner.clone());
                match lock.pass_over(read) {
                    // It may have left since the entry was read, and others work on it.
                    Err(Stop::Blocked(_)) if has_left(trx)? => Ok(false),
                    read => Ok(read? && call.is_indexed(space, &index_key, long)),
                }
            })?;
            if is_there {
                self.at = At::LongRow;
                return Ok(true);
            }
            found = self.step_locked(scope, inner, on)?;
        }
        Ok(false)
    }

    /// Whether the entry that it is at, as it was read, tells that its row has left.
    fn has_left(&self, scope: &Scope, inner: &Inner) -> bool {
        let marked = self.entries.header().filter(|header| header.is_deleted());
        marked.is_some_and(|header| {
            self.ended.as_ref().is_some_and(|ended| ended.covers(header.trx))
                && scope.strict_view(inner).is_none_or(|view| view.sees(header.trx))
        })
    }

    /// Moves to the next entry, be it a row or not, between which and this one there is none and none will be.
    fn step_locked(&mut self, scope: &Scope, inner: &mut Inner, to: Move<'_>) -> Result<bool> {
        if self.range_locked || !scope.locks_gaps() {
            return self.make(to);
        }
        let here = self.entries.key().to_vec();
        let beyond = self.beyond.take();
        let on = to.on();
        let to = match (to, beyond) {
            (Move::Next, Some(Move::Next)) | (Move::Prev, Some(Move::Prev)) => {
                self.beyond = beyond;
                return Ok(false);
            }
            (Move::Next, Some(_)) => Move::To(Seek::First),
            (Move::Prev, Some(_)) => Move::To(Seek::Last),
            (to, _) => to,
        };
        let to = match to {
            Move::To(seek) => seek,
            Move::Next if self.entries.is_new() => Seek::First,
            Move::Prev if self.entries.is_new() => Seek::Last,
            Move::Next => Seek::Above(&here),
            Move::Prev => Seek::Below(&here),
        };
        let mut seen = None;
        loop {
            let found = self.make(Move::To(to))?;
            let now = found.then(|| self.entries.key().to_vec());
            if seen.as_ref() == Some(&now) {
                self.beyond = (!found).then_some(on);
                return Ok(found);
            }
            let there = now.as_deref().map_or(Bound::Unbounded, Bound::Included);
            let (lower, upper) = match to {
                Seek::First => (Bound::Unbounded, there),
                Seek::AtLeast(key) => (Bound::Included(key), there),
                Seek::Above(key) => (Bound::Excluded(key), there),
                Seek::Last => (there, Bound::Unbounded),
                Seek::AtMost(key) => (there, Bound::Included(key)),
                Seek::Below(key) => (there, Bound::Excluded(key)),
            };
            scope.lock_range(inner, &self.tree, lower, upper)?;
            seen = Some(now);
        }
    }

    fn make(&mut self, to: Move<'_>) -> Result<bool> {
        let _call = self.table.enter()?;
        self.tree.space().check_live()?;
        to.make(&mut self.entries)
    }
}
