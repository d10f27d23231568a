//! Cursors that lock the rows that they return.
//!
//! **Purpose.** Each row is locked, and its newest version is read. At levels that lock gaps, no row can be inserted
//! between the rows that were returned.
//!
//! **Invariants.** A gap is locked before it is taken for empty (test: `an_insert_sees_the_range_or_is_seen`). A range
//! that an iterator returns is locked as a whole at its first step (checked by `cursor/locking.rs::fix_range`), and
//! that of a cursor on request (test: `a_range_is_locked_at_once_on_request`). Otherwise a cursor takes an entry for
//! the next one, that which it has read ahead if there is one, locks up to it, and then seeks the next entry, which is
//! in the locked gap, or is taken for the next one in turn (tests:
//! `no_row_appears_before_the_one_that_a_locking_cursor_has_found`, `no_row_appears_between_two_scans_that_lock`). It
//! locks nothing outside of its range (test: `a_locking_cursor_locks_its_range_row_by_row`). A row found by an index is
//! locked in the clustered tree if it still has the entry: a row that has left the index key is not locked (test:
//! `rows_that_have_left_the_range_since_it_read_ahead_are_not_locked`).
//!
//! *Entries that have left the index are skipped.* A delete-marked entry belongs to a row that no longer has this index
//! key, or will not have it once the entry's writer has committed, so if the writer has ended, the row is neither read
//! nor locked nor waited for (test: `a_locked_row_that_has_left_the_range_is_not_waited_for`). The set of ended
//! transactions is taken before the entry is read, so the writer's mark cannot be rolled back (checked by
//! `cursor/locking.rs::step_locked`). The entry is not revived later, or it does not matter:
//! - At levels that lock gaps, the range was locked before the entry was read, and a writer that revives an entry looks
//!   for such a range under the latch of the entry's leaf, and waits for this transaction; a change that already has
//!   the row, and has yet to revive the entry, finds the range as well and rolls itself back (test:
//!   `a_row_cannot_reenter_a_locked_range_in_which_it_was_skipped`).
//! - At the other levels a row may enter the range at any time, before or after this read (test:
//!   `a_row_cannot_reenter_a_locked_range_in_which_it_was_skipped`).
//! - This transaction itself may roll back its own mark: an entry that it has marked is read again at each step (test:
//!   `a_read_sees_rows_that_its_own_transaction_moved`).
//!
//! If a strict view does not see the mark, the read fails, as a read of the row itself would: the row has changed since
//! the view was taken (test: `a_strict_snapshot_is_refused_only_by_rows_of_its_range`).
//!
//! **Reasons.** How many entries of rows that have left the index there are depends on purge, and on views that have
//! nothing to do with this read.

use core::{mem::take, ops::Bound};

use super::{At, Condition, Cursor, Move, Reader, Seek, Wanted, split};
use crate::{
    error::Result,
    get_one::TakenLock,
    scope::{Inner, RowCall, RowLock, Scope, TableKind},
    store::Tree,
    sync::LongWork,
    txn::{
        Stop, Trx,
        locks::{RowMode, TableMode},
        row::{self, EntryOfRow, LockingRead},
    },
};

/// Returns the intention lock on the table that must precede locks on its rows.
pub(crate) fn intention(mode: RowMode) -> TableMode {
    match mode {
        RowMode::Shared => TableMode::IntentionShared,
        RowMode::Exclusive => TableMode::IntentionExclusive,
    }
}

impl Cursor {
    /// Restricts the cursor to this range and fixes its view. At levels that lock gaps, a locking cursor locks the
    /// range, so that no row is added to it.
    pub(crate) fn fix_range(&mut self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<()> {
        debug_assert!(
            !self.keeps_view && self.entries.is_new(),
            "a range is fixed twice, or after its first step"
        );
        self.keeps_view = true;
        self.entries.set_limits(lower, upper);
        self.look_or_lock().map_err(|error| error.of(|_| self.owner.clone()))
    }

    fn look_or_lock(&mut self) -> Result<()> {
        match self.reader.clone() {
            Reader::Session(_) => Ok(()),
            Reader::Alone => {
                self.take_view(self.engine.transactions.versions().view().into());
                Ok(())
            }
            Reader::InTransaction(scope, lock) => {
                let mode = lock.map(|lock| lock.mode).or(scope.plain_read_lock());
                let mut call = scope.begin_call()?;
                let done = self.look_or_lock_in_transaction(&scope, &mut call.inner, mode);
                call.finish(done)
            }
        }
    }

    fn look_or_lock_in_transaction(
        &mut self,
        scope: &Scope,
        inner: &mut Inner,
        mode: Option<RowMode>,
    ) -> Result<()> {
        if let Some(mode) = mode {
            return self.lock_limits(scope, inner, mode);
        }
        if let Some(view) = scope.view_of_plain_read(inner) {
            self.take_view(view);
        }
        Ok(())
    }

    /// Locks the whole range of a cursor that locks rows ([`Cursor::set_range`]) at once, at levels that lock gaps: no
    /// row is added to it before the transaction has ended. Then steps and batches read ahead, and cost a fraction of
    /// those that lock gap by gap: for a range that is read to its end, as without a `LIMIT`. The rows are still locked
    /// one by one, as the cursor moves. It is not positioned afterwards, like a new one. [`Cursor::set_range`] gives it
    /// another range, which is not locked yet.
    ///
    /// It has no effect on cursors that lock no rows, and at levels without gap locks.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-lock-range-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{TableOptions, TransactionOptions};
    ///
    /// let towns = db.create_table("towns", TableOptions::default())?;
    /// for town in ["Basel", "Genoa", "Oslo"] {
    ///     towns.insert(town.as_bytes(), b"")?;
    /// }
    /// let trx = db.begin(TransactionOptions::default());
    /// let within = trx.table(&towns);
    /// let mut cursor = within.cursor_for_update()?;
    /// cursor.set_range("B".."H");
    /// cursor.lock_range()?;
    /// while cursor.next()? {
    ///     within.put(cursor.key().unwrap_or_default(), b"seen")?;
    /// }
    /// trx.commit()?;
    /// assert_eq!(towns.get(b"Genoa")?.as_deref(), Some(&b"seen"[..]));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Cursor::seek`]: it waits while another transaction has locked the whole table, and for nothing else.
    pub fn lock_range(&mut self) -> Result<()> {
        let locked = self.try_lock_range();
        self.checked(locked)
    }

    fn try_lock_range(&mut self) -> Result<()> {
        self.engine.check_open()?;
        let Reader::InTransaction(scope, lock) = self.reader.clone() else { return Ok(()) };
        let mut call = scope.begin_call()?;
        let mode = lock.map(|lock| lock.mode).or(scope.plain_read_lock()).filter(|_| scope.locks_gaps());
        let locked = mode.map_or(Ok(()), |mode| self.lock_limits(&scope, &mut call.inner, mode));
        call.finish(locked)?;
        if mode.is_none() {
            return Ok(());
        }
        // What was read ahead may be older than the lock.
        self.entries.reset();
        (self.at, self.beyond, self.ended, self.releasable) = (At::Nothing, None, None, None);
        Ok(())
    }

    /// Locks the range of the cursor, at levels that lock gaps.
    fn lock_limits(&mut self, scope: &Scope, inner: &mut Inner, mode: RowMode) -> Result<()> {
        self.lock_table(scope, inner, mode)?;
        let (lower, upper) = self.entries.limits().bounds();
        scope.lock_range(inner, &self.tree, lower, upper)?;
        self.is_range_locked = true;
        Ok(())
    }

    /// Locks the table of the rows (intention lock).
    fn lock_table(&self, scope: &Scope, inner: &mut Inner, mode: RowMode) -> Result<()> {
        scope.lock_table(inner, self.table.space(), intention(mode))?;
        // During the wait the table may have been truncated: this cursor reads the tree from before the truncation.
        self.tree.space().check_live()?;
        scope.check_known(inner, || Ok(self.tree.space().created_at()), || self.owner.clone())
    }

    /// Moves to the next live row and locks it.
    pub(super) fn find_locked(
        &mut self,
        scope: &Scope,
        inner: &mut Inner,
        lock: RowLock,
        to: Move<'_>,
        wanted: &mut Wanted<'_>,
    ) -> Result<bool> {
        self.lock_table(scope, inner, lock.mode)?;
        let is_index = self.form.is_some();
        if is_index && (self.ended.is_none() || matches!(to, Move::To(_))) {
            self.ended = Some(self.engine.transactions.ended());
        }
        let on = to.on();
        let mut found = self.step_locked(scope, inner, to)?;
        let mut work = LongWork::default();
        while found && wanted.is_within(self.entries.key()) {
            if !is_index || !self.has_left(scope, inner) {
                let before = self.evaluate_unlocked(scope, inner, wanted)?;
                if before == Some(Condition::Ends) {
                    return Ok(false);
                }
                let at = if before == Some(Condition::Fails) {
                    At::Nothing
                } else {
                    let call = scope.row_call(inner, TableKind::Shared, lock.lock_timeout(scope));
                    call.run(|call| self.try_read_locked_or_committed(scope, call, lock).map(Some))?
                };
                if at != At::Nothing {
                    match self.evaluate(wanted)? {
                        Condition::Holds => {
                            self.at = at;
                            return Ok(true);
                        }
                        Condition::Fails => self.release_row(scope, inner)?,
                        Condition::Ends => return self.release_row(scope, inner).map(|()| false),
                    }
                }
            }
            work.step()?;
            found = self.step_locked(scope, inner, on)?;
        }
        Ok(false)
    }

    /// Evaluates the condition on the entry at the position before its row is locked, if that suffices: the keys of an
    /// entry never change, its payload may, so where there may be one it is read again. At levels that lock gaps, the
    /// next read must find the same payloads.
    fn evaluate_unlocked(
        &mut self,
        scope: &Scope,
        inner: &mut Inner,
        wanted: &mut Wanted<'_>,
    ) -> Result<Option<Condition>> {
        match self.form {
            Some(form) if wanted.has_condition() && !form.has_payloads() => {
                wanted.evaluate(self.entries.key(), self.entries.value()).map(Some)
            }
            Some(_) if wanted.has_condition() && !scope.locks_gaps() => {
                let _call = self.table.enter()?;
                self.tree.space().check_live()?;
                let trx = scope.running(inner);
                let key = self.entries.key();
                let is_final = row::read_final_entry(&trx, &self.tree, key, &mut self.entry_value)?;
                if is_final { self.evaluate(wanted).map(Some) } else { Ok(None) }
            }
            _ => Ok(None),
        }
    }

    /// Releases the lock on a row that was locked and is not wanted, if it may be released.
    fn release_row(&mut self, scope: &Scope, inner: &mut Inner) -> Result<()> {
        match self.releasable.take() {
            Some(lock) => self.unlock_in_transaction(scope, inner, self.row_key()?, lock).map(drop),
            None => Ok(()),
        }
    }

    /// Attempts to lock and read the row of the entry at the position. Returns whether it is there.
    pub(super) fn try_read_locked(
        &mut self,
        call: &mut RowCall<'_>,
        lock: RowLock,
        keeps_lock: bool,
    ) -> Result<bool, Stop> {
        let trx = call.attempt()?;
        let Self { table, tree, entries, long, entry_value, owner, form, covers, fields, releasable, .. } =
            self;
        let mut note_lock = |trx: &Trx<'_>, tree: &Tree, key: &[u8]| {
            *releasable = if keeps_lock { None } else { TakenLock::of_read(trx, tree, key, lock.mode) };
        };
        let entered = table.enter()?;
        tree.space().check_live()?;
        let fields = (!*covers).then_some(*fields);
        let Some(form) = *form else {
            note_lock(trx, tree, entries.key());
            let read = LockingRead { mode: lock.mode, fields, entry: None };
            let read = row::read_locked(trx, tree, entries.key(), read, long, || owner.clone());
            return lock.skip_locked(read);
        };
        let entry = (entries.key(), entries.value());
        let key = split(form, entry, tree.space().id(), || owner.clone())?.row;
        let has_left = |trx: &Trx<'_>| row::has_left(trx, tree, entries.key(), || owner.clone());
        if matches!(entries.header(), Some(header) if header.is_deleted()) && has_left(trx)? {
            return Ok(false);
        }
        note_lock(trx, &entered.clustered, key);
        let entry = Some(EntryOfRow { tree, key: entries.key(), value: entry_value });
        let read = LockingRead { mode: lock.mode, fields, entry };
        let read = row::read_locked(trx, &entered.clustered, key, read, long, || owner.clone());
        match lock.skip_locked(read) {
            // The row may have left the index since the entry was read: then the other transaction's lock does not
            // matter.
            Err(Stop::Blocked(_)) if has_left(trx)? => Ok(false),
            read => read,
        }
    }

    /// Releases the lock that the last move took on the row at the cursor's position, for a row that the program reads
    /// and does not want. Returns whether it was released. The lock stays if the transaction had locked the row before,
    /// and at levels that lock gaps, whose reads find the same rows again. A row that the transaction has changed stays
    /// locked in any case. Any other lock that the transaction has taken on the row since the move is released with it:
    /// that of another cursor, of a locking read, or of a duplicate key. The cursor still lends the row.
    ///
    /// # Errors
    /// The transaction is in another call, is prepared or has ended.
    pub fn unlock_row(&mut self) -> Result<bool> {
        match self.releasable.take() {
            Some(lock) => self.unlock(lock, self.row_key()?),
            None => Ok(false),
        }
    }

    /// Returns the key of the row at the position.
    fn row_key(&self) -> Result<&[u8]> {
        let key = self.entries.key();
        let Some(form) = self.form else { return Ok(key) };
        Ok(split(form, (key, &self.entry_value), self.tree.space().id(), || self.owner.clone())?.row)
    }

    /// Releases a lock that this cursor has taken on the row with this key.
    pub(crate) fn unlock(&self, lock: TakenLock, key: &[u8]) -> Result<bool> {
        let Reader::InTransaction(scope, _) = &self.reader else { return Ok(false) };
        let mut call = scope.begin_call()?;
        let done = self.unlock_in_transaction(scope, &mut call.inner, key, lock);
        call.finish(done).map_err(|error| error.of(|_| self.owner.clone()))
    }

    fn unlock_in_transaction(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        key: &[u8],
        lock: TakenLock,
    ) -> Result<bool> {
        lock.release(scope, inner, &self.table.enter()?.clustered, key)
    }

    /// Returns whether the entry at the position, as it was read, shows that its row has left the index.
    fn has_left(&self, scope: &Scope, inner: &Inner) -> bool {
        let ended = self.ended.as_ref().expect("it is taken before an entry is read");
        let marked = self.entries.header().filter(|header| header.is_deleted());
        marked.is_some_and(|header| {
            ended.covers(header.trx) && scope.strict_view(inner).is_none_or(|view| view.sees(header.trx))
        })
    }

    /// Moves to the adjacent entry, live row or not. At levels that lock gaps, no entry can then be inserted between
    /// the old position and the new one.
    fn step_locked(&mut self, scope: &Scope, inner: &mut Inner, to: Move<'_>) -> Result<bool> {
        debug_assert!(
            self.ended.is_some() || self.form.is_none(),
            "an entry is read before the set of ended transactions is taken"
        );
        if self.is_range_locked || !scope.locks_gaps() {
            return self.make(to);
        }
        let mut gap = take(&mut self.gap);
        let found = self.step_over_gap(scope, inner, to, &mut gap);
        self.gap = gap;
        found
    }

    /// As [`Cursor::step_locked`], at levels that lock gaps. `gap` are buffers.
    fn step_over_gap(
        &mut self,
        scope: &Scope,
        inner: &mut Inner,
        to: Move<'_>,
        [here, there]: &mut [Vec<u8>; 2],
    ) -> Result<bool> {
        let Self { table, tree, entries, beyond, .. } = self;
        let (on, passed) = (to.on(), beyond.take());
        let up = matches!(on, Move::Next);
        let to = match (to, passed) {
            (Move::Next, Some(Move::Next)) | (Move::Prev, Some(Move::Prev)) => {
                *beyond = passed;
                return Ok(false);
            }
            (Move::Next, Some(_)) => Move::To(Seek::First),
            (Move::Prev, Some(_)) => Move::To(Seek::Last),
            (to, _) => to,
        };
        copy_into(entries.key(), here);
        let to = match to {
            Move::To(seek) => seek,
            Move::Next if entries.is_new() => Seek::First,
            Move::Prev if entries.is_new() => Seek::Last,
            Move::Next => Seek::Above(here),
            Move::Prev => Seek::Below(here),
        };
        let _call = table.enter()?;
        tree.space().check_live()?;
        // Not up to the entry that was read ahead: the gap beyond one that came since would be locked, too.
        let mut reached = Reached::Nothing;
        loop {
            if reached != Reached::Nothing {
                let there = match reached {
                    Reached::Entry => Bound::Included(&there[..]),
                    _ => Bound::Unbounded,
                };
                let (lower, upper) = match to {
                    Seek::First => (Bound::Unbounded, there),
                    Seek::AtLeast(key) => (Bound::Included(key), there),
                    Seek::Above(key) => (Bound::Excluded(key), there),
                    Seek::Last => (there, Bound::Unbounded),
                    Seek::AtMost(key) => (there, Bound::Included(key)),
                    Seek::Below(key) => (there, Bound::Excluded(key)),
                };
                // At the end of its range the cursor locks no gap beyond it.
                let (lower, upper) = entries.limits().clip(lower, upper);
                scope.lock_range(inner, tree, lower, upper)?;
            }
            let found = Move::To(to).make(entries)?;
            let is_locked = match reached {
                Reached::Nothing => false,
                Reached::Entry if up => found && entries.key() <= &there[..],
                Reached::Entry => found && entries.key() >= &there[..],
                Reached::End => true,
            };
            if is_locked {
                *beyond = (!found).then_some(on);
                return Ok(found);
            }
            reached = if found { Reached::Entry } else { Reached::End };
            copy_into(entries.key(), there);
        }
    }

    fn make(&mut self, to: Move<'_>) -> Result<bool> {
        if to.is_read_ahead(&self.entries) {
            self.tree.space().check_live()?;
            return to.make(&mut self.entries);
        }
        let _call = self.table.enter()?;
        self.tree.space().check_live()?;
        to.make(&mut self.entries)
    }
}

/// How far a step has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    Nothing,
    /// Up to an entry, with it.
    Entry,
    /// Up to the end of the range.
    End,
}

fn copy_into(key: &[u8], buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.extend_from_slice(key);
}
