//! Semi-consistent reads.
//!
//! **Purpose.** An `UPDATE` or `DELETE` with a condition waits for rows that it then does not want. So
//! `InnoDB` reads a row that others have locked in its last committed version, at levels without gap locks, and waits
//! for the lock only if that version satisfies the condition.
//!
//! **Invariants.** A row is read without its lock only in exclusive mode, at levels that lock no gaps (test:
//! `locked_rows_are_waited_for_at_other_levels_and_modes`), and never in a version that is not committed (test:
//! `rows_that_others_have_locked_are_read_as_committed`). A row that others have inserted and not committed is passed
//! over, and one that they have deleted is still there (test: `rows_that_others_have_locked_are_read_as_committed`).
//! [`Cursor::lock_row`] reads the newest version of the row, which may satisfy the condition no longer (test:
//! `no_increment_is_lost_by_semi_consistent_reads`).

use super::{At, Cursor, Reader};
use crate::{
    cursor::split,
    error::{Error, Owner, Result, TransactionError},
    ids::TrxId,
    scope::{RowCall, RowLock, Scope, TableKind},
    store::Tree,
    transaction::LockWaitPolicy,
    txn::{EntryAndRow, EntryForm, FoundEntry, Stop, Versions, Visibility, locks::RowMode},
};

/// What a cursor does with rows that others have locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockedRows {
    /// It waits for them.
    Await,
    /// It reads their last committed version, where it may.
    ReadCommitted,
}

/// Returns whether reads with this lock may be semi-consistent.
pub(crate) fn may_read_committed(scope: &Scope, lock: RowLock) -> bool {
    lock.mode == RowMode::Exclusive && !scope.locks_gaps() && lock.wait_policy != LockWaitPolicy::SkipLocked
}

impl Cursor {
    /// Makes a cursor that locks rows for update semi-consistent, at [`Isolation::ReadUncommitted`] and
    /// [`Isolation::ReadCommitted`]: a row that others have locked is not waited for, but returned in its last
    /// committed version, without a lock. [`Cursor::was_semi_consistent`] returns whether the row at the position was.
    /// If it satisfies the condition of the program, [`Cursor::lock_row`] waits for its lock and reads it again. A row
    /// that others have inserted and not committed is passed over.
    ///
    /// It has no effect on other cursors: at higher levels a locking read must find the newest version, and the same
    /// one again. With [`LockWaitPolicy::SkipLocked`] locked rows are still passed over.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-semi-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{Isolation, TableOptions, TransactionOptions};
    ///
    /// let jobs = db.create_table("jobs", TableOptions::default())?;
    /// jobs.insert(b"1", b"done")?;
    /// jobs.insert(b"2", b"new")?;
    /// let options = TransactionOptions::default().isolation(Isolation::ReadCommitted);
    /// let (other, trx) = (db.begin(options.clone()), db.begin(options));
    /// other.table(&jobs).put(b"1", b"done again")?;
    ///
    /// let within = trx.table(&jobs);
    /// let mut cursor = within.cursor_for_update()?;
    /// cursor.semi_consistent(true);
    /// while cursor.next()? {
    ///     if cursor.value() != Some(b"new") {
    ///         cursor.unlock_row()?; // it need not be locked, and was not waited for
    ///     } else if !cursor.was_semi_consistent() || cursor.lock_row()? && cursor.value() == Some(b"new") {
    ///         within.put(cursor.key().unwrap_or_default(), b"taken")?;
    ///     }
    /// }
    /// trx.commit()?;
    /// assert_eq!(jobs.get(b"2")?.as_deref(), Some(&b"taken"[..]));
    /// # drop(other);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Isolation::ReadUncommitted`]: crate::Isolation::ReadUncommitted
    /// [`Isolation::ReadCommitted`]: crate::Isolation::ReadCommitted
    pub fn semi_consistent(&mut self, on: bool) {
        self.locked_rows = if on { LockedRows::ReadCommitted } else { LockedRows::Await };
    }

    /// Returns whether the row at the position was read in its last committed version because others have locked it,
    /// and is not locked ([`Cursor::semi_consistent`]).
    pub fn was_semi_consistent(&self) -> bool {
        self.at == At::CommittedRow
    }

    /// Locks the row at the position, if it was read without a lock, and reads it again: its value may be another one
    /// now. Returns whether it is still there; if not, the cursor is at no row, and a further step goes on behind it.
    ///
    /// # Errors
    /// As [`Cursor::seek`]. The cursor is not positioned then.
    pub fn lock_row(&mut self) -> Result<bool> {
        if !self.was_semi_consistent() {
            return Ok(self.at != At::Nothing);
        }
        self.at = At::Nothing;
        let locked = self.lock_row_again();
        let is_there = self.checked(locked)?;
        if is_there {
            self.at = At::CopiedRow;
        } else {
            self.releasable = None;
        }
        Ok(is_there)
    }

    fn lock_row_again(&mut self) -> Result<bool> {
        let Reader::InTransaction(scope, Some(lock)) = self.reader.clone() else { return Ok(false) };
        self.engine.check_open()?;
        let mut call = scope.begin_call()?;
        let row_call = scope.row_call(&mut call.inner, TableKind::Shared, lock.lock_timeout(&scope));
        let locked = row_call.run(|call| self.try_read_locked(call, lock, scope.locks_gaps()).map(Some));
        call.finish(locked)
    }

    /// Attempts to lock and read the row of the entry at the position, or reads its last committed version if others
    /// have locked it and the cursor is semi-consistent. Returns what the cursor is at.
    pub(super) fn try_read_locked_or_committed(
        &mut self,
        scope: &Scope,
        call: &mut RowCall<'_>,
        lock: RowLock,
    ) -> Result<At, Stop> {
        match self.try_read_locked(call, lock, scope.locks_gaps()) {
            Err(Stop::Blocked(_))
                if self.locked_rows == LockedRows::ReadCommitted && may_read_committed(scope, lock) =>
            {
                self.releasable = None;
                let own = call.attempt()?.id();
                Ok(if self.read_committed(own)? { At::CommittedRow } else { At::Nothing })
            }
            read => Ok(if read? { At::CopiedRow } else { At::Nothing }),
        }
    }

    /// Reads the last committed version of the row of the entry at the position. Returns whether there is one that has
    /// this entry.
    fn read_committed(&mut self, own: Option<TrxId>) -> Result<bool> {
        let entered = self.table.enter()?;
        self.tree.space().check_live()?;
        let versions = self.engine.transactions.versions();
        let Self { tree, entries, long, entry_value, owner, form, fields, .. } = self;
        let Some(form) = *form else {
            return versions.get_committed(tree, entries.key(), own, Some(*fields), long);
        };
        let out = EntryAndRow { fields: *fields, entry: entry_value, row: long };
        let entry = (&**tree, form, entries.key());
        read_committed_by_entry(versions, &entered.clustered, entry, own, out, || owner.clone())
    }
}

/// Reads the last committed version of the row of an index entry, or that of the transaction `own`, and of the entry:
/// the entry is given by its tree, its form and its key. Returns whether there is one that has this entry.
pub(crate) fn read_committed_by_entry(
    versions: &Versions,
    rows: &Tree,
    (index, form, entry): (&Tree, EntryForm, &[u8]),
    own: Option<TrxId>,
    EntryAndRow { fields, entry: entry_value, row: out }: EntryAndRow<'_>,
    owner: impl Fn() -> Owner,
) -> Result<bool> {
    let mut value = Vec::new();
    loop {
        let view = versions.view();
        // The entry that was found before is older than the view.
        let Some(header) = index.get_into(entry, &mut value)? else { return Ok(false) };
        let row = split(form, (entry, &value), index.space().id(), &owner)?.row;
        let found = FoundEntry { index, entry, header, value: &value, row };
        let out = EntryAndRow { fields, entry: &mut *entry_value, row: &mut *out };
        match versions.get_by_entry(rows, found, Visibility::View(&view, own), out) {
            // The view was created for this read only, so the read can be repeated.
            Err(Error::Transaction(TransactionError::ViewEnded)) => {}
            done => return done,
        }
    }
}
