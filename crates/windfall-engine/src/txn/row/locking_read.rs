//! Locking reads.
//!
//! **Purpose.** A row is read in its current version and stays so until the transaction has ended. If the isolation
//! level locks gaps, a row that is missing stays missing.
//!
//! **Invariants.** A row is read and locked under one key latch, so no call changes it in between (test:
//! `no_increment_is_lost_and_the_log_is_enough`). What is locked belongs to the transaction that reads (checked by
//! `row/locking_read.rs::lock_range`), which is active (checked by `row/locking_read.rs::read_locked`). A range is
//! locked before it is read, and an inserter checks for range locks under the latch of the leaf, so either it inserts
//! before the reader latches the leaf, and then the reader finds an entry of an unfinished transaction and waits for
//! it; or it finds the range lock (tests: `an_insert_sees_the_range_or_is_seen`, `first_histories_are_judged`).

use core::ops::Bound;

use super::{
    conflict::{Blocked, Stop},
    row_lock::{lock_gap, lock_row, row_name},
};
use crate::{
    error::{Owner, Result},
    page::EntryHeader,
    row::FieldSet,
    store::Tree,
    txn::{
        locks::RowMode,
        mvcc::{CurrentVersion, value},
        trx::Trx,
    },
};

/// What a locking read locks and reads.
pub struct LockingRead<'r> {
    /// The lock mode.
    pub mode: RowMode,
    /// The fields that are read of a row that is stored as fields. Without a set no value in overflow pages is read.
    pub fields: Option<FieldSet>,
    /// The index entry by which the row was found. A row that no longer has it is treated as missing, and neither it
    /// nor its gap is locked. A caller that must not miss its return has locked that range.
    pub entry: Option<EntryOfRow<'r>>,
}

/// An index entry by which a row was found.
pub struct EntryOfRow<'r> {
    /// The secondary tree.
    pub tree: &'r Tree,
    /// Its key there.
    pub key: &'r [u8],
    /// Gets its value, which no other transaction changes while the row is locked.
    pub value: &'r mut Vec<u8>,
}

/// Locks a row and reads it. Returns `false` if there is none.
///
/// # Errors
/// A row that has changed since a strict read view was made; damage, I/O, a dropped table.
pub fn read_locked(
    trx: &mut Trx<'_>,
    tree: &Tree,
    key: &[u8],
    read: LockingRead<'_>,
    out: &mut Vec<u8>,
    owner: impl FnOnce() -> Owner,
) -> Result<bool, Stop> {
    let LockingRead { mode, fields, entry } = read;
    let transactions = trx.transactions();
    let _latch =
        transactions.key_latches().latch_in_call(transactions.key_latches().name(tree.space().id(), key))?;
    let header = match transactions.active().read_final(trx.id(), || tree.get_into(key, out))? {
        CurrentVersion::Final(header) => header,
        CurrentVersion::Unfinished(writer) => {
            return Err(Stop::Blocked(Blocked::Writer(writer, row_name(tree, key), mode)));
        }
    };
    if let Some(header) = header {
        trx.check_unchanged(header, owner)?;
    }
    let Some(header) = header.filter(|header| !header.is_deleted()) else {
        if trx.rules.gaps {
            lock_gap(trx, tree, key)?;
        }
        return Ok(false);
    };
    // No other call changes the row or its entries before the key latch is released, and no rollback.
    if let Some(EntryOfRow { tree, key, value }) = entry {
        let now = tree.get_into(key, value)?;
        if now.is_none_or(EntryHeader::is_deleted) {
            return Ok(false);
        }
    }
    // A row that this transaction has changed is locked already.
    if Some(header.trx) != trx.id() {
        lock_row(trx, tree, key, mode)?;
    }
    debug_assert!(
        trx.id().is_some_and(|id| transactions.active().is_active(id)),
        "a row is locked for a transaction that has ended"
    );
    fields.map_or(Ok(true), |fields| Ok(value::resolve(tree, key, header, fields, out)?))
}

/// Reads an index entry and replaces the content of `out` with its value. Returns whether it is there and no rollback
/// of another transaction can change it.
///
/// # Errors
/// Damage, I/O, a dropped table.
pub fn read_final_entry(trx: &Trx<'_>, index: &Tree, entry: &[u8], out: &mut Vec<u8>) -> Result<bool> {
    let found = trx.transactions().active().read_final(trx.id(), || index.get_into(entry, out))?;
    Ok(matches!(found, CurrentVersion::Final(Some(header)) if !header.is_deleted()))
}

/// Returns whether the row of an index entry has finally left the entry's index key: the entry was removed, or was
/// delete-marked by a transaction that had ended before it was read, or by this one.
///
/// # Errors
/// A row that has left since a strict read view was made; damage, I/O, a dropped table.
pub fn has_left(trx: &Trx<'_>, index: &Tree, entry: &[u8], owner: impl FnOnce() -> Owner) -> Result<bool> {
    match trx.transactions().active().read_final(trx.id(), || index.get_into(entry, &mut Vec::new()))? {
        CurrentVersion::Final(None) => Ok(true),
        CurrentVersion::Final(Some(header)) if header.is_deleted() => {
            trx.check_unchanged(header, owner).map(|()| true)
        }
        CurrentVersion::Final(Some(_)) | CurrentVersion::Unfinished(_) => Ok(false),
    }
}

/// Locks a range of keys against inserts, if the isolation level locks gaps.
///
/// # Errors
/// If the log accepts no more records.
pub fn lock_range(trx: &mut Trx<'_>, tree: &Tree, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<()> {
    if trx.rules.gaps {
        let lock_owner = trx.lock_owner()?;
        trx.transactions().lock_manager().lock_range(&lock_owner, tree.space().id(), lower, upper);
        debug_assert!(
            trx.id() == Some(lock_owner.id()),
            "a range is locked for another transaction than the one that reads it"
        );
    }
    Ok(())
}
