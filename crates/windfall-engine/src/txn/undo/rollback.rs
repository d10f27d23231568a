//! The rollback of one undo record.
//!
//! **Purpose.** Restores the entries of a row to their state before the record was written.
//!
//! **Invariants.** An entry is changed only if it still carries the version of the record (test:
//! `first_histories_are_judged`), and no longer carries it then (checked by `undo/rollback.rs::undo_row`): the record's
//! transaction id and undo position, or the transaction id alone in an entry that was inserted, which determines the
//! record, because the transaction does not insert the entry again before that record is undone. The versions of a
//! transaction are not frozen before it has ended (test: `an_active_transaction_keeps_the_headers_of_its_versions`).
//! The secondary entries come first, each in a mini-transaction of its own; the last mini-transaction restores the
//! clustered entry and marks the record (test: `runs_crash_between_the_groups_of_a_write`). So the rollback may be
//! interrupted and restarted at any point (test: `every_crash_point_of_short_histories`). A tablespace that was dropped
//! is skipped (test: `rows_of_a_dropped_table_are_passed_over`). Of a long value only the record is marked: its pages
//! are left to purge (`chains`) (test: `a_step_frees_a_bounded_number_of_pages`). Rollback needs no new undo and no new
//! disk space, only log ([`RollbackSpace`]) (test: `a_call_appends_no_more_than_its_reservation`).
//!
//! Leaves that hold little after a rollback, because the header or the value of an entry is shorter again, are merged,
//! as after removals, so that the rollback of a change of all rows leaves no tree of leaves that are nearly empty
//! (test: `a_rolled_back_change_of_loaded_rows_leaves_few_pages`).
//!
//! **Cost.** Leaves that are more than a third full stay, although a load fills them further.

use super::{
    followers::{Follower, Followers, Undone},
    record::{Body, EntryChange, RowChange, Touch, UndoRecord},
    stream::{Stream, UndoContext},
};
use crate::{
    buffer::BufferPool,
    error::{Error, Result},
    log::{Log, LogReservation},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::Arc,
    tablespace,
    tree::{Room, split_log_limit},
};

/// Bytes of log that the rollback of an entry needs, in addition to its value and without page splits.
pub(in crate::txn) const LOG_BYTES_PER_ENTRY: u64 = 512;
/// Bytes of log that the end of a rollback needs, or the mark on a record.
pub(in crate::txn) const LOG_BYTES_OF_END: u64 = 512;

/// The source of the log that a rollback needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::txn) enum RollbackSpace {
    /// The log of the rollback was reserved before each change.
    Ahead,
    /// The log of the rollback is reserved record by record, which may wait.
    PerRecord,
}

impl RollbackSpace {
    /// Reserves log for a step of the rollback, unless it was reserved already.
    ///
    /// # Errors
    /// A full disk, or another failure to make room.
    pub(in crate::txn) fn room(self, log: &Log, bytes: u64) -> Result<Option<LogReservation<'_>>> {
        match self {
            Self::Ahead => Ok(None),
            // If there is no space to wait for, the reserve for work that frees log may have some.
            Self::PerRecord => log.admit(bytes).or_else(|_| log.admit_rollback(bytes)).map(Some),
        }
    }
}

/// Returns the log that the rollback of a record needs, in bytes.
///
/// # Errors
/// Damage, I/O.
pub(in crate::txn) fn log_for(context: &UndoContext, record: &UndoRecord) -> Result<u64> {
    let mut bytes = LOG_BYTES_OF_END;
    if let Body::Row { space, key, change, touches } = &record.body {
        bytes += LOG_BYTES_PER_ENTRY * (1 + touches.len() as u64);
        for touch in touches {
            if let EntryChange::Revived(before) | EntryChange::Replaced(before) = &touch.change
                && !before.value.is_empty()
            {
                // Others may have used the space that it has left.
                bytes += before.value.len() as u64 + split_log_limit(context.pool.page_size());
            }
        }
        if let RowChange::Update { value, .. } = change {
            bytes += (key.len() + value.len()) as u64;
            let mut now = Vec::new();
            if let Some(tree) = context.tree(*space)
                && unless_dropped(tree.get_into(key, &mut now).map(|header| header.is_some()))?
                && now.len() < value.len()
            {
                // Others may have used the freed space.
                bytes += split_log_limit(context.pool.page_size());
            }
        }
    }
    Ok(bytes)
}

/// Undoes one record.
///
/// # Errors
/// Damage, I/O; it may be repeated.
pub(in crate::txn) fn undo(
    context: &UndoContext,
    followers: &Followers,
    stream: &Stream,
    at: u64,
    record: &UndoRecord,
) -> Result<()> {
    context.failpoint.pass()?;
    let version = EntryHeader::new(record.trx, stream.undo_pos(at));
    let pool = &context.pool;
    match &record.body {
        Body::Row { space, key, change, touches } => {
            for touch in touches.iter().rev() {
                if let Some(tree) = context.tree(touch.space).map(Tree::with_log_reserved) {
                    unless_dropped(undo_touch(&tree, version, touch))?;
                }
            }
            let done = match context.tree(*space).map(Tree::with_log_reserved) {
                Some(tree) => unless_dropped(undo_row(followers, &tree, version, key, change, stream, at))?,
                None => false,
            };
            if !done {
                mark(pool, stream, at)?;
            }
        }
        Body::Overflow { .. } => mark(pool, stream, at)?,
    }
    Ok(())
}

/// A tablespace that was dropped meanwhile needs no rollback.
fn unless_dropped(done: Result<bool>) -> Result<bool> {
    match done {
        Err(Error::TableDropped(_)) => Ok(false),
        done => done,
    }
}

fn mark(pool: &BufferPool, stream: &Stream, at: u64) -> Result<()> {
    let mut mtr = Mtr::begin(pool)?;
    let (slot, op) = stream.latch_mark(&mut mtr, at)?;
    mtr.apply(slot, &op);
    mtr.commit()?;
    Ok(())
}

/// Returns whether an entry still carries the version, which is [`EntryHeader::of_insert`] if it was inserted.
pub(in crate::txn) fn carries(header: Option<EntryHeader>, version: EntryHeader) -> bool {
    header.is_some_and(|header| header.trx == version.trx && header.undo == version.undo)
}

/// Merges the leaf of a key with a neighbour, if possible. The content of the tree does not depend on it: a page that
/// cannot be read is reported to the next call that needs it.
pub(in crate::txn) fn merge(tree: &Tree, key: &[u8]) {
    if let Err(error) = tree.maintain(key) {
        tracing::warn!(target: "windfall::undo", %error, "a leaf that holds little could not be merged");
    }
}

fn undo_touch(tree: &Tree, version: EntryHeader, touch: &Touch) -> Result<bool> {
    let (version, room) = match &touch.change {
        EntryChange::Inserted => (version.of_insert(), Room::Keep),
        EntryChange::Marked(_) => (version, Room::Keep),
        EntryChange::Revived(before) | EntryChange::Replaced(before) => {
            // An entry that the change has not come to may have a shorter header, and needs no room. One with this
            // version has a whole header, so only a longer value may need a split, for which log is reserved. No other
            // thread changes it.
            if !carries(tree.get_into(&touch.key, &mut Vec::new())?, version) {
                return Ok(true);
            }
            (version, Room::Value(before.value.len()))
        }
    };
    let mut mtr = Mtr::begin(tree.store())?;
    let mut located = tree.seek_for_change(&mut mtr, &touch.key, room)?;
    if !carries(located.header(), version) {
        return Ok(true);
    }
    debug_assert!(
        touch.change.before().is_none_or(|before| !carries(Some(before.header), version)),
        "a secondary entry was changed by itself"
    );
    let small = match &touch.change {
        EntryChange::Inserted => located.remove(&mut mtr),
        EntryChange::Marked(before) => located.set_header(&mut mtr, before.header),
        EntryChange::Revived(before) | EntryChange::Replaced(before) => {
            located.replace(&mut mtr, before.header, &before.value)
        }
    };
    mtr.commit()?;
    if small {
        merge(tree, &touch.key);
    }
    Ok(true)
}

/// Restores the clustered entry and marks the record, in one mini-transaction; then notifies the follower of the table.
fn undo_row(
    followers: &Followers,
    tree: &Tree,
    version: EntryHeader,
    key: &[u8],
    change: &RowChange,
    stream: &Stream,
    at: u64,
) -> Result<bool> {
    let (version, room) = match change {
        RowChange::Insert => (version.of_insert(), Room::Keep),
        RowChange::Update { value, .. } => (version, Room::Value(value.len())),
        RowChange::Delete { .. } => (version, Room::Keep),
    };
    // What a follower needs of the undone value, if that is not in the entry.
    let mut long: Option<(Arc<dyn Follower>, Result<Undone>)> = None;
    let (mut mtr, mut located, follower) = loop {
        let mut mtr = Mtr::begin(tree.store())?;
        let located = tree.seek_for_change(&mut mtr, key, room)?;
        let header = located.header().filter(|header| carries(Some(*header), version));
        let is_long = header.is_some_and(|header| !header.is_deleted() && !header.is_plain());
        // One that is registered later reads the restored row.
        let follower = followers.of(tree.space().id());
        let needed = follower.as_ref().filter(|_| is_long);
        let is_read = |follower| long.as_ref().is_some_and(|(read, _)| Arc::ptr_eq(read, follower));
        let Some(reads) = needed.filter(|follower| !is_read(*follower)).cloned() else {
            break (mtr, located, follower);
        };
        // Without a latch. No other thread changes the row.
        drop((located, mtr));
        let mut stored = Vec::new();
        if let Some(header) = tree.get_into(key, &mut stored)? {
            let restored = change.restores(&stored).filter(|(header, _)| !header.is_deleted());
            let undone = reads.read_undone(tree, key, (header, &stored), restored);
            long = Some((reads, undone));
        }
    };
    let (slot, op) = stream.latch_mark(&mut mtr, at)?;
    let mut small = false;
    let mut sides = None;
    if let Some(header) = located.header().filter(|header| carries(Some(*header), version)) {
        let mut stored = Vec::new();
        located.value_into(&mtr, &mut stored);
        let restored = change.restores(&stored).map(|(header, value)| (header, value.to_vec()));
        debug_assert!(
            restored.as_ref().is_none_or(|(before, _)| !carries(Some(*before), version)),
            "an entry that was rolled back still carries the version that is undone"
        );
        if let RowChange::Update { value, .. } = change {
            // A version has a whole header. So only a longer value may need a split, for which log is reserved.
            debug_assert!(
                value.len() > stored.len() || located.has_room_for(&mtr, value.len()),
                "a value that is no longer than the present one needs more room"
            );
        }
        let is_live = |(header, _): &(EntryHeader, Vec<u8>)| !header.is_deleted();
        let (undone, restored) = (Some((header, stored)).filter(is_live), restored.filter(is_live));
        let rows = i64::from(restored.is_some()) - i64::from(undone.is_some());
        if rows != 0 {
            tree.space().row_count().add(rows);
        }
        sides = follower.map(|follower| {
            let before = restored.as_ref().map(|(header, value)| (*header, &**value));
            let undone = undone.and_then(|(header, stored)| match long {
                _ if header.is_plain() => Some(follower.read_undone(tree, key, (header, &stored), before)),
                long => long.map(|(_, undone)| undone),
            });
            (follower, undone, restored)
        });
        small = match change {
            RowChange::Insert => located.remove(&mut mtr),
            RowChange::Update { header, value, .. } => located.replace(&mut mtr, *header, value),
            RowChange::Delete { header } => located.set_header(&mut mtr, *header),
        };
    }
    mtr.apply(slot, &op);
    mtr.commit()?;
    tablespace::write_rows_if_due(tree.store(), tree.space());
    if let Some((follower, undone, restored)) = sides {
        follower.note_rolled_back(tree, key, undone, restored);
    }
    if small {
        merge(tree, key);
    }
    Ok(true)
}
