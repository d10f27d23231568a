//! Row changes.
//!
//! **Purpose.** Insert, put, update and delete of one row together with the entries of all its trees.
//!
//! **Invariants.** A call holds the key latch of the row from before its first read of the row to its end (test:
//! `rows_and_entries_stay_one_under_contention`). For each unique index it likewise holds the key latch of every index
//! key that the row leaves or takes (test: `one_of_several_inserts_of_a_unique_key_succeeds`). So a plan made without a
//! page latch is still valid under it: no other call changes the row or its secondary entries, which carry the row's
//! key, and purge defers its records of the row. Nor does a rollback interfere, because a row with the changes of an
//! unfinished other transaction is not touched: the call is blocked ([`Stop`]) (test:
//! `rows_and_entries_stay_one_under_contention`). If any step fails, the work done so far is rolled back (test:
//! `rows_match_the_model`).
//!
//! A new entry, or a delete-marked one that is revived, conflicts with the range locks of others (test:
//! `a_blocked_call_of_a_transaction_that_has_ended_fails`). That is checked once more under the latch of the leaf: a
//! transaction that locks a range and then reads the leaf finds the entry, or the writer has found the range lock
//! (test: `an_insert_sees_the_range_or_is_seen`).
//!
//! In a transaction, a row that has the key, or the key of a unique index, that a change would take is locked, at every
//! isolation level, and keeps that key until the transaction ends (test:
//! `a_row_that_is_in_the_way_is_named_and_stays_locked`). If its lock must be waited for, or its writer has not ended,
//! the call starts again, and so finds out whether the row is still in the way (test:
//! `a_row_that_is_being_changed_is_locked_after_its_writer_has_ended`). A call that succeeds keeps no lock on a row
//! that has turned out not to be in the way (test: `a_row_that_turns_out_not_to_be_in_the_way_is_not_locked`). A change
//! outside of transactions locks no other row (test:
//! `a_call_outside_of_transactions_leaves_no_lock_on_the_row_that_is_in_the_way`).
//!
//! Index keys are made of the first bytes of a value, at most `INDEXED_BYTES`, regardless of its length (checked by
//! `row/change.rs::try_change`). So the change of a long value needs no more memory than that of a short one.
//!
//! **Order of the work.** Lengths, conflicts, duplicates, which need no rollback; the overflow chain; the clustered
//! entry with the undo record of the whole change; the secondary entries.

use std::borrow::Cow;

use super::{
    clustered::{ClusteredChange, NewValue},
    conflict::{Blocked, Stop},
    edit::Edit,
    long_value::{ensure_chain, wait_for_log_space},
    new_fields::{self, NewFields},
    plan::{self, Plan, Planned, check_length, is_wanted},
    row_lock::{blocked_by, check_gap, is_live, is_shared_duplicate, may_write, row_name},
    target::RowTarget,
};
use crate::{
    buffer::Durability,
    error::{CorruptError, Owner, UsageError},
    ids::Lsn,
    mtr::Mtr,
    page::EntryHeader,
    tree::{LeafHint, Room, overflow::VALUE_BYTES_MAX},
    txn::{
        locks::{RowMode, key_latch::KeyLatchGuard},
        mvcc::{CurrentVersion, Outcome, value},
        trx::{Savepoint, Trx, rollback_queue::ChecksExcluded, running::RollbackCaller},
        undo::record::EntryChange,
    },
};

/// A row was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The LSN after the change, unless its table is temporary.
    pub end: Option<Lsn>,
}

/// Changes a row. With `last` the end of the transaction is logged with the last change, and the transaction has then
/// ended; it has also ended if the change fails. Returns `None` if there was no row to delete, in which case nothing is
/// logged.
///
/// If the call fails its changes are rolled back. A blocked call keeps a long value that it has written, in `edit`.
///
/// # Errors
/// [`DuplicateKey`], [`NoRow`], keys and values that are too long, a row that has changed since a strict read view was
/// made, a dropped table, damage, I/O.
///
/// [`DuplicateKey`]: crate::error::SchemaError::DuplicateKey
/// [`NoRow`]: crate::error::SchemaError::NoRow
pub fn change<'e: 't, 't>(
    trx: &mut Trx<'e>,
    target: &RowTarget<'t>,
    key: &[u8],
    edit: &mut Edit<'_>,
    last: bool,
) -> Result<Option<Changed>, Stop> {
    let transactions = trx.transactions();
    debug_assert!(trx.broken().is_none(), "a transaction continues although a partial rollback has failed");
    if target.durability() == Durability::Logged && !transactions.undo_limit().has_room() {
        return Err(Stop::Blocked(Blocked::Undo));
    }
    wait_for_log_space(transactions, target, edit.length())?;
    let latches = transactions.key_latches();
    // One call at a time reads and changes the row.
    let mut latch = latches.latch_in_call(latches.name(target.clustered.space().id(), key))?;
    let start = trx.savepoint();
    // After a long value, once that is written.
    let mut kept = start.clone();
    let mut done = try_change(trx, &mut latch, target, key, edit, last, &mut kept);
    if let (Ok(Some(_)), false, Some(lock_owner)) = (&done, last, trx.lock_owner_if_any()) {
        lock_owner.add_weight(1);
        // Other rows that seemed to have a unique key of this one do not have it.
        let space = target.clustered.space().id();
        trx.downgrade_waits_for(|row| row.space == space && *row.key != *key);
    }
    debug_assert!(
        !matches!(done, Ok(None)) || !trx.has_changed_since(&start),
        "a deletion has found no row and written undo"
    );
    // If the rollback fails, the row is left partly changed.
    let partly_changed_by = if done.is_err() && trx.has_changed_since(&start) { trx.id() } else { None };
    if let Some(id) = partly_changed_by {
        let space = target.clustered.space().id();
        transactions.rollbacks().note_partial_change(id, space, &ChecksExcluded::InsideGate);
    }
    match &done {
        // Before the key latch is released: the next call finds a row without unfinished changes.
        Ok(_) if last => trx.end(Outcome::Committed),
        Ok(_) => {}
        Err(Stop::Blocked(_)) => match trx.rollback_call(&kept) {
            // A rollback outside of the gate would not be reported to observers of the table.
            Err(error) if last => {
                trx.rollback_whole(RollbackCaller::Inside)?;
                // The transaction has ended: the call must not wait and continue in it.
                done = Err(Stop::Failed(error));
            }
            rolled_back => rolled_back?,
        },
        Err(Stop::Failed(_)) if last => drop(trx.rollback_whole(RollbackCaller::Inside)?),
        Err(Stop::Failed(_)) => trx.rollback_call(&start)?,
    }
    if let Some(id) = partly_changed_by {
        transactions.rollbacks().forget_partial_change(id);
    }
    done
}

fn try_change<'e: 't, 't>(
    trx: &mut Trx<'e>,
    latch: &mut KeyLatchGuard<'e>,
    target: &RowTarget<'t>,
    key: &[u8],
    edit: &mut Edit<'_>,
    last: bool,
    kept: &mut Savepoint,
) -> Result<Option<Changed>, Stop> {
    let tree = target.clustered;
    check_length(tree, key.len(), || target.owner())?;
    let length = edit.length();
    if length > VALUE_BYTES_MAX {
        return Err(UsageError::ValueTooLong { owner: target.owner(), length, limit: VALUE_BYTES_MAX }.into());
    }
    edit.begin()?;
    if !may_write(trx, tree, key) && !is_shared_duplicate(trx, tree, key, edit.mode())? {
        return Err(Stop::Blocked(Blocked::Row(row_name(tree, key), RowMode::Exclusive)));
    }
    let long = edit.fields().is_none() && length > tree.inline_limit() as u64;
    let mut plan = Plan::default();
    let (mut stored_before, mut stored_kept) = (Vec::new(), Vec::new());
    let (mut whole_before, mut new_fields, mut read_before) = (Cow::default(), None, None);
    if long
        || edit.fields().is_some()
        || !target.secondaries.is_empty()
        || target.watch.is_some()
        || target.reads.is_some()
        || edit.entries.is_some()
    {
        let active = trx.transactions().active();
        let mut leaf = LeafHint::default();
        let read = || {
            let (header, looked_in) = tree.get_before_change(key, &mut stored_before)?;
            leaf = looked_in;
            Ok(header)
        };
        let header = match active.read_final(trx.id(), read)? {
            CurrentVersion::Final(header) => header,
            CurrentVersion::Unfinished(writer) => return Err(blocked_by(writer, tree, key)),
        };
        plan.leaf = leaf;
        read_before = header;
        if let Some(header) = header {
            trx.check_unchanged(header, || target.owner())?;
            plan.ended_writer = Some(header.trx);
        }
        if !is_wanted(trx, target, key, edit.mode(), is_live(header))? {
            return Ok(None);
        }
        let header = header.filter(|header| !header.is_deleted());
        // The bytes of long values are read where something is made of them.
        let needs_bytes = target.needs_bytes();
        let mut first_bytes = Cow::Borrowed(&stored_before[..]);
        if let Some(header) = header.filter(|header| needs_bytes && !header.is_plain()) {
            value::indexed_of(tree, header, first_bytes.to_mut())?;
        }
        let before = header.map(|_| &first_bytes[..]);
        let mut after = edit.indexed().map(Cow::Borrowed);
        if let Some(changes) = edit.fields() {
            let kept_of = match edit.kept_from {
                Some(other) => Some(new_fields::read_deleted(trx, target, other, &mut stored_kept)?),
                None => header,
            };
            if let Some(header) = kept_of {
                let stored = if edit.kept_from.is_some() { &stored_kept } else { &stored_before };
                whole_before = new_fields::read_to_keep(target, changes, header, stored)?;
            }
            let before = kept_of.map(|header| (header, &whole_before[..]));
            let fields = NewFields::new(target, changes, before, edit.kept_from.is_some())?;
            let bytes = if needs_bytes { fields.indexed(target)? } else { Vec::new() };
            after = Some(Cow::Owned(bytes));
            new_fields = Some(fields);
        }
        let after = after.as_deref();
        debug_assert!(
            [before, after].into_iter().flatten().all(|bytes| bytes.len() <= value::INDEXED_BYTES),
            "an index key is made of more bytes of a value than are read of a long one"
        );
        plan::plan(trx, latch, target, key, [before, after], edit.entries, &mut plan)?;
        debug_assert!(
            plan.planned.len() <= 2 * target.secondaries.len()
                || target.secondaries.iter().any(|secondary| secondary.extraction.is_some()),
            "a change touches more than the old and the new entry of each index"
        );
        if let Some(watch) = target.watch {
            watch(key, before, after);
        }
    }
    trx.transactions().undo_context().failpoint.pass()?;
    if target.durability() == Durability::Logged {
        trx.reserve_log(plan.log_bytes(target, key))?;
    }
    let (stored, flags) = if let Some(fields) = new_fields {
        let (stored, flags) = fields.store(trx, target, edit, kept)?;
        (Some(Cow::Owned(stored)), flags)
    } else if long {
        let reference = ensure_chain(trx, target, edit)?.to_bytes();
        *kept = trx.savepoint();
        (Some(Cow::Owned(reference.to_vec())), EntryHeader::OVERFLOW)
    } else {
        (edit.known().map(Cow::Borrowed), 0)
    };
    if let Some(reads) = target.reads {
        let before = read_before.filter(|header| !header.is_deleted());
        let before = before.map(|header| (header, &stored_before[..]));
        let after = stored.as_deref().map(|bytes| (EntryHeader { flags, ..EntryHeader::default() }, bytes));
        // It may fail: the rollback of the call frees the chains that were written.
        reads.note_change(tree, key, before, after)?;
    }
    trx.transactions().undo_context().failpoint.pass()?;
    let new = stored.as_deref().map(|bytes| NewValue { bytes, flags });
    let read = read_before.map(|header| (header, &stored_before[..]));
    let change = ClusteredChange { target, key, new, mode: edit.mode(), last, read };
    let Some((version, mut end)) = change.apply(trx, &mut plan)? else { return Ok(None) };
    let count = plan.planned.len();
    for (n, planned) in plan.planned.iter().enumerate() {
        trx.transactions().undo_context().failpoint.pass()?;
        end = change_secondary(trx, target, planned, version, last && n + 1 == count)?;
    }
    Ok(Some(Changed { end }))
}

/// Changes a secondary entry. Returns the LSN, if that was logged.
fn change_secondary(
    trx: &Trx<'_>,
    target: &RowTarget<'_>,
    planned: &Planned<'_>,
    version: EntryHeader,
    last: bool,
) -> Result<Option<Lsn>, Stop> {
    let Planned { tree, touch, value, supplied, leaf } = planned;
    debug_assert!(tree.space().id() == touch.space, "undo names the tree that is changed");
    let mut mtr = Mtr::begin(tree.store())?;
    let room = match touch.change {
        EntryChange::Marked(_) => Room::Header,
        EntryChange::Inserted | EntryChange::Revived(_) | EntryChange::Replaced(_) => {
            Room::Value(value.len())
        }
    };
    let mut located = tree.seek_for_change_near(&mut mtr, &touch.key, room, *leaf)?;
    let planned = touch.change.before().map(|before| before.header.is_deleted());
    if located.header().map(EntryHeader::is_deleted) != planned {
        // The key latch of this row does not protect an entry of another one.
        if let Some(index) = supplied {
            return Err(UsageError::EntryOfOtherRow { owner: target.owner_of_index(index) }.into());
        }
        let what = "a secondary entry is not as it was when its row was locked".into();
        return Err(CorruptError::Structure { owner: Owner::Unknown, space: touch.space, what }.into());
    }
    match touch.change {
        EntryChange::Marked(_) => {
            located.set_header(&mut mtr, EntryHeader { flags: EntryHeader::DELETED, ..version });
        }
        EntryChange::Replaced(_) => {
            located.replace(&mut mtr, version, value);
        }
        EntryChange::Inserted | EntryChange::Revived(_) => {
            // Another transaction may have locked the range since it was checked.
            check_gap(trx, tree, &touch.key)?;
            if touch.change == EntryChange::Inserted {
                located.insert(&mut mtr, version.of_insert(), value);
            } else {
                located.replace(&mut mtr, version, value);
            }
        }
    }
    if last {
        trx.append_trx_end(&mut mtr);
    }
    Ok(mtr.commit()?)
}
