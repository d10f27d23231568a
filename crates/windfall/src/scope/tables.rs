//! The locks of a transaction on tables.
//!
//! **Purpose.** Intention locks, which a transaction takes before it changes or locks rows, and locks on whole tables.
//!
//! **Invariants.** The list of locked tables has those locks that the transaction holds in the lock table (checked by
//! `scope/tables.rs::lock_table`). No table lock is waited for inside a gate (test:
//! `a_table_lock_is_refused_where_a_lock_on_a_row_is`).

use super::{Inner, RunningTrx, Scope};
use crate::{
    catalog,
    error::{Owner, Result, UsageError},
    ids::SpaceId,
    sync::{Arc, is_inside},
    txn::locks::{HeldOnTable, LockRequest, LockTimeout, TableMode, Waits},
};

impl Scope {
    /// Locks a table, once, until the transaction ends.
    pub(crate) fn lock_table(&self, inner: &mut Inner, space: SpaceId, mode: TableMode) -> Result<()> {
        if inner.has_locked(space, mode) {
            return Ok(());
        }
        self.running(inner).lock_table(space, mode)
    }

    /// Locks a whole table in shared or exclusive mode, until the transaction ends. Refuses a table that was created or
    /// truncated after the strict view was taken. If it fails, the table is locked as before.
    pub(crate) fn lock_whole_table(
        &self,
        inner: &mut Inner,
        table: &Arc<catalog::Table>,
        mode: TableMode,
        lock_timeout: LockTimeout,
        owner: impl Fn() -> Owner,
    ) -> Result<()> {
        if is_inside() {
            return Err(UsageError::StatementInCall.into());
        }
        let created_at = || Ok(table.enter()?.clustered.space().created_at());
        self.check_known(inner, created_at, &owner)?;
        loop {
            let (space, before) = self.running(inner).lock_whole_table(table, mode, lock_timeout)?;
            let checked = self.check_whole_table(inner, table, space, &owner);
            if matches!(checked, Ok(true)) {
                if !inner.has_locked(space, mode) {
                    inner.tables.push((space, mode));
                }
                return Ok(());
            }
            self.running(inner).restore_whole_table(space, before)?;
            checked?;
        }
    }

    /// Returns whether this is still the tablespace of a table that was locked, and not replaced by a truncation.
    fn check_whole_table(
        &self,
        inner: &Inner,
        table: &Arc<catalog::Table>,
        space: SpaceId,
        owner: impl FnOnce() -> Owner,
    ) -> Result<bool> {
        // A statement that had closed the gate before the lock was granted is over once the gate is passed.
        let entered = table.enter()?;
        let clustered = entered.clustered.space();
        if clustered.id() != space {
            return Ok(false);
        }
        self.check_known(inner, || Ok(clustered.created_at()), owner)?;
        Ok(true)
    }
}

impl RunningTrx<'_> {
    /// Locks a table that is not locked yet, until the transaction ends.
    pub(super) fn lock_table(&mut self, space: SpaceId, mode: TableMode) -> Result<()> {
        let Self { scope, inner, trx, .. } = self;
        debug_assert!(!inner.has_locked(space, mode), "a table that is locked is locked again");
        let lock_owner = trx.lock_owner()?;
        // Inside the gate of another table, no table lock is waited for.
        let lock_timeout = if is_inside() { LockTimeout::NoWait } else { scope.lock_timeout() };
        let mut waits = Waits::after(inner.waited, lock_timeout);
        let wanted = LockRequest::Table(space, mode);
        let taken = scope.engine.transactions.acquire_in_call(&lock_owner, wanted, &mut waits);
        inner.waited = waits.so_far();
        taken?;
        inner.tables.push((space, mode));
        debug_assert!(inner.has_locked(space, mode), "a table was locked in a mode that no call asks for");
        Ok(())
    }

    /// Locks a whole table, until the transaction ends. Returns the tablespace that is locked, and what the transaction
    /// had on it before.
    fn lock_whole_table(
        &mut self,
        table: &Arc<catalog::Table>,
        mode: TableMode,
        lock_timeout: LockTimeout,
    ) -> Result<(SpaceId, HeldOnTable)> {
        let Self { scope, inner, trx, .. } = self;
        let lock_owner = trx.lock_owner()?;
        let mut waits = Waits::after(inner.waited, lock_timeout);
        let space = table.space();
        let transactions = &scope.engine.transactions;
        let before = transactions.held_on_table(&lock_owner, space);
        let locked = transactions.lock_whole_in_call(&lock_owner, table, (space, mode), &mut waits);
        inner.waited = waits.so_far();
        locked?;
        Ok((space, before))
    }

    /// Gives up a lock on a whole table that was just granted.
    fn restore_whole_table(&mut self, space: SpaceId, before: HeldOnTable) -> Result<()> {
        let Self { scope, trx, .. } = self;
        let lock_owner = trx.lock_owner()?;
        scope.engine.transactions.restore_whole(&lock_owner, space, before);
        Ok(())
    }
}

/// The changes of a transaction to one table that a cursor has taken into account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenChanges {
    /// How often a part of the transaction was rolled back.
    rolled_back: u64,
    /// The number of the last change of the table, of any kind or of those that have added entries.
    changed: u64,
}

/// A table that a transaction has changed.
#[derive(Debug)]
pub(super) struct ChangedTable {
    /// Its tablespace; `None` for temporary tables.
    space: Option<SpaceId>,
    /// The number of its last change.
    last: u64,
    /// The number of the last change that has added an entry to one of its trees; 0 if there was none.
    last_addition: u64,
}

impl Inner {
    /// Records that a call has changed rows of a table, or, without a tablespace, of a temporary one, and whether it
    /// has added entries to one of its trees.
    pub(super) fn note_change(&mut self, space: Option<SpaceId>, adds: bool) {
        self.changes += 1;
        let number = self.changes;
        let last_addition = if adds { number } else { 0 };
        match self.changed.iter_mut().find(|known| known.space == space) {
            Some(known) => {
                (known.last, known.last_addition) = (number, known.last_addition.max(last_addition));
            }
            None => self.changed.push(ChangedTable { space, last: number, last_addition }),
        }
    }

    /// Returns the changes of a table so far, for the next comparison. They differ after each change of the table by
    /// the transaction, and after each partial rollback.
    #[inline]
    pub(crate) fn changes_of(&self, space: Option<SpaceId>) -> SeenChanges {
        let of_table = self.changed.iter().find(|known| known.space == space);
        SeenChanges { rolled_back: self.rolled_back(), changed: of_table.map_or(0, |known| known.last) }
    }

    /// As [`Inner::changes_of`], but they differ only after changes that have added entries to a tree of the table, and
    /// after partial rollbacks: enough for a cursor that reads each row again when it locks it.
    pub(crate) fn additions_to(&self, space: SpaceId) -> SeenChanges {
        let of_table = self.changed.iter().find(|known| known.space == Some(space));
        SeenChanges {
            rolled_back: self.rolled_back(),
            changed: of_table.map_or(0, |known| known.last_addition),
        }
    }

    /// Returns whether the transaction has locked a table in this mode or a stronger one.
    pub(super) fn has_locked(&self, space: SpaceId, mode: TableMode) -> bool {
        self.tables.iter().any(|(known, held)| *known == space && held.includes(mode))
    }
}
