//! The locks of a call on rows and on the gaps between them.
//!
//! **Purpose.** Requests and checks of locks that do not wait: what would have to wait is returned as [`Stop`].
//!
//! **Invariants.** None of these functions waits for another transaction, so they may be called under key latches
//! (test: `no_money_is_made_or_lost`). What they lock is held when they return (checked by
//! `row/row_lock.rs::acquire_row`). [`may_write`] and [`check_gap`] neither read a page nor assign an id, and may be
//! called under the latch of a leaf (by type).

use core::ops::Bound;

use super::{
    conflict::{Blocked, Stop},
    edit::Mode,
};
use crate::{
    error::{LockError, Result},
    ids::{SpaceId, TrxId},
    page::EntryHeader,
    store::Tree,
    txn::{
        locks::{LockRequest, LockTimeout, RowMode, RowName, TableMode},
        mvcc::CurrentVersion,
        trx::Trx,
    },
};

/// Returns the name under which a row, or a key of an index, is locked.
pub(super) fn row_name(tree: &Tree, key: &[u8]) -> RowName {
    RowName { space: tree.space().id(), key: key.into() }
}

/// Returns whether there is a row: an entry that is not delete-marked.
pub(super) fn is_live(header: Option<EntryHeader>) -> bool {
    header.is_some_and(|header| !header.is_deleted())
}

/// Returns that another transaction has changed the row and has not ended.
pub(super) fn blocked_by(writer: TrxId, tree: &Tree, key: &[u8]) -> Stop {
    Stop::Blocked(Blocked::Writer(writer, row_name(tree, key), RowMode::Exclusive))
}

/// Locks a table, by the tablespace of its rows, for a call outside of transactions that changes a row of it; or
/// returns that others have locked it.
///
/// # Errors
/// If the log accepts no more records.
pub fn lock_table(trx: &mut Trx<'_>, space: SpaceId) -> Result<(), Stop> {
    let lock_owner = trx.lock_owner()?;
    let wanted = LockRequest::Table(space, TableMode::IntentionExclusive);
    match trx.transactions().lock_manager().acquire(&lock_owner, wanted, LockTimeout::NoWait) {
        Err(LockError::Busy(_)) => Err(Stop::Blocked(Blocked::Table(space))),
        taken => Ok(taken?),
    }
}

/// As [`lock_table`], if a change must wait for the lock of a row: a call that is granted a row has locked the table.
///
/// # Errors
/// As [`lock_table`].
pub fn lock_table_if_blocked<T>(
    trx: &mut Trx<'_>,
    space: SpaceId,
    changed: &Result<T, Stop>,
) -> Result<(), Stop> {
    match changed {
        Ok(_) | Err(Stop::Failed(_) | Stop::Blocked(Blocked::Undo)) => Ok(()),
        Err(Stop::Blocked(_)) => lock_table(trx, space),
    }
}

/// Locks a row, or returns that others have locked it.
pub(super) fn lock_row(trx: &mut Trx<'_>, tree: &Tree, key: &[u8], mode: RowMode) -> Result<(), Stop> {
    // A row that is locked already is locked again often, which should cost no memory.
    if held_mode(trx, tree, key) < Some(mode) {
        acquire_row(trx, &row_name(tree, key), mode)?;
    }
    trx.note_lock(tree.space().id(), key, mode);
    Ok(())
}

/// Returns the mode in which the transaction has locked a row explicitly.
fn held_mode(trx: &Trx<'_>, tree: &Tree, key: &[u8]) -> Option<RowMode> {
    trx.transactions().lock_manager().held_mode(trx.lock_owner_if_any()?, tree.space().id(), key)
}

fn acquire_row(trx: &mut Trx<'_>, row: &RowName, mode: RowMode) -> Result<(), Stop> {
    let lock_owner = trx.lock_owner()?;
    let locks = trx.transactions().lock_manager();
    match locks.acquire(&lock_owner, LockRequest::Row(row.clone(), mode), LockTimeout::NoWait) {
        Err(LockError::Busy(_)) => Err(Stop::Blocked(Blocked::Row(row.clone(), mode))),
        taken => {
            taken?;
            debug_assert!(
                locks.held_mode(&lock_owner, row.space, &row.key) >= Some(mode),
                "{row} was locked, {mode}, and is held in a weaker mode"
            );
            Ok(())
        }
    }
}

/// Returns the mode in which the transaction had locked a row before this call, which may have waited for it since.
/// The lock that a row has by the transaction's own change does not count.
pub fn held_before(trx: &Trx<'_>, tree: &Tree, key: &[u8]) -> Option<RowMode> {
    trx.waited_for(tree.space().id(), key).unwrap_or_else(|| held_mode(trx, tree, key))
}

/// Lowers the lock of the transaction on a row to this mode; `None` releases it. Returns whether it was lowered: a row
/// that the transaction has changed stays locked, because a waiter that was granted it would hold a lock together with
/// that of the change.
///
/// # Errors
/// Damage, I/O, a dropped table.
pub fn unlock_row(trx: &Trx<'_>, tree: &Tree, key: &[u8], to: Option<RowMode>) -> Result<bool> {
    debug_assert!(!trx.rules.gaps, "a row is unlocked at a level whose reads must find it unchanged");
    let Some(lock_owner) = trx.lock_owner_if_any() else { return Ok(false) };
    let header = tree.get_into(key, &mut Vec::new())?;
    if header.is_some_and(|header| Some(header.trx) == trx.id()) {
        return Ok(false);
    }
    trx.transactions().lock_manager().downgrade_row(lock_owner, &row_name(tree, key), to);
    Ok(true)
}

/// Locks the gap at a key that is missing, so that it stays missing.
pub(super) fn lock_gap(trx: &mut Trx<'_>, tree: &Tree, key: &[u8]) -> Result<()> {
    let (lock_owner, this) = (trx.lock_owner()?, Bound::Included(key));
    let (locks, space) = (trx.transactions().lock_manager(), tree.space().id());
    locks.lock_range(&lock_owner, space, this, this);
    debug_assert!(!locks.may_insert(None, space, key), "a gap was locked, and others may insert there");
    Ok(())
}

/// Locks a row of which this call does not hold the key latch.
pub(super) fn lock_other_row(trx: &mut Trx<'_>, tree: &Tree, key: &[u8], mode: RowMode) -> Result<(), Stop> {
    let row = row_name(tree, key);
    acquire_row(trx, &row, mode)?;
    // A transaction that is changing the row came first. One that begins to change it finds the lock.
    match trx.transactions().active().read_final(trx.id(), || tree.get_into(key, &mut Vec::new()))? {
        CurrentVersion::Final(_) => {
            trx.note_lock(row.space, &row.key, mode);
            Ok(())
        }
        CurrentVersion::Unfinished(writer) => {
            let lock_owner = trx.lock_owner()?;
            trx.transactions().lock_manager().release_row(&lock_owner, &row);
            Err(Stop::Blocked(Blocked::Writer(writer, row, mode)))
        }
    }
}

/// Returns whether an insert finds a row that others have locked in shared mode: it is a duplicate, and the call need
/// not wait for them, unless it locks duplicates in exclusive mode.
pub(super) fn is_shared_duplicate(
    trx: &Trx<'_>,
    tree: &Tree,
    key: &[u8],
    mode: Option<Mode>,
) -> Result<bool> {
    let (transactions, space) = (trx.transactions(), tree.space().id());
    let is_exclusive = trx.rules.duplicate_lock == Some(RowMode::Exclusive);
    if mode != Some(Mode::Insert)
        || is_exclusive
        || !transactions.lock_manager().may_share(trx.id(), space, key)
    {
        return Ok(false);
    }
    let found = transactions.active().read_final(trx.id(), || tree.get_into(key, &mut Vec::new()))?;
    Ok(matches!(found, CurrentVersion::Final(header) if is_live(header)))
}

/// Returns whether no other transaction has locked the row or the index key.
pub(super) fn may_write(trx: &Trx<'_>, tree: &Tree, key: &[u8]) -> bool {
    trx.transactions().lock_manager().may_write(trx.id(), tree.space().id(), key)
}

/// Checks that no other transaction has locked the gap into which a new entry goes.
pub(super) fn check_gap(trx: &Trx<'_>, tree: &Tree, key: &[u8]) -> Result<(), Stop> {
    if trx.transactions().lock_manager().may_insert(trx.inserter(), tree.space().id(), key) {
        Ok(())
    } else {
        Err(Stop::Blocked(Blocked::Range(row_name(tree, key))))
    }
}
