//! The change of a clustered entry.
//!
//! **Purpose.** Changes the entry of a row and writes the undo record of the whole change, in one mini-transaction.
//!
//! **Invariants.** An attempt holds the undo stream and the latch of the leaf, so if it would have to wait, or needs a
//! check that must not be made under a latch, it ends with an [`Obstacle`]; the wait or the check follows without a
//! latch (checked by `sync/lock.rs::take`), and the next attempt reads the entry again. An attempt that does not
//! succeed has changed nothing (test: `rows_and_entries_stay_one_under_contention`).

use std::borrow::Cow;

use super::{
    conflict::{Blocked, Stop},
    edit::Mode,
    plan::{Plan, Planned, fits, is_wanted},
    row_lock::{blocked_by, check_gap, held_before, is_live, may_write, row_name},
    target::RowTarget,
};
use crate::{
    buffer::{BufferPool, Durability},
    error::Result,
    ids::Lsn,
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    tablespace,
    tree::{Located, Room, split_log_limit},
    txn::{
        locks::RowMode,
        trx::Trx,
        undo::{
            chains::chains_of,
            record::{ChangedRow, KeptChains, RowChange, bound},
            stream::HEAD,
        },
    },
};

/// Bytes of log for the change of a clustered entry, in addition to its key and value and the undo record: the
/// operation, and the records of the begin and the end of the transaction.
const LOG_BYTES_PER_CHANGE: usize = 256;

/// The stored form of a new value.
#[derive(Clone, Copy)]
pub(super) struct NewValue<'a> {
    /// The value, the reference to its overflow chain, or its fields.
    pub bytes: &'a [u8],
    /// The flags of its entry.
    pub flags: u16,
}

/// A change of a clustered entry.
pub(super) struct ClusteredChange<'a, 't> {
    pub target: &'a RowTarget<'t>,
    pub key: &'a [u8],
    /// The new value; `None` marks the entry as deleted.
    pub new: Option<NewValue<'a>>,
    /// The precondition; `None` for a deletion.
    pub mode: Option<Mode>,
    /// Whether the transaction ends with this change.
    pub last: bool,
    /// The entry as it was read under the key latch, if it was: its header and its value as it is stored.
    pub read: Option<(EntryHeader, &'a [u8])>,
}

/// Why an attempt has changed nothing.
enum Obstacle {
    /// The writer of this version may or may not have ended.
    WriterUnknown(EntryHeader),
    /// Another transaction has locked the row.
    Locked,
    /// The change does not fit a row that exists (`live`) or does not, or others have locked the gap.
    Unfit { live: bool },
    /// Page splits during a rollback need this many more bytes of reserved log.
    NoLog(u64),
}

/// The outcome of an attempt.
enum Attempt {
    /// The entry has this version now. The LSN after its group, if it was logged.
    Changed(EntryHeader, Option<Lsn>),
    Stopped(Obstacle),
}

impl<'t> ClusteredChange<'_, 't> {
    /// Changes the entry. Returns the new version, and the LSN if it was logged; `None` if there is no row
    /// to delete.
    pub(super) fn apply<'e: 't>(
        &self,
        trx: &mut Trx<'e>,
        plan: &mut Plan<'_>,
    ) -> Result<Option<(EntryHeader, Option<Lsn>)>, Stop> {
        debug_assert!(
            self.mode.is_some() == self.new.is_some(),
            "a write has a new value and a precondition, and a deletion has neither"
        );
        loop {
            match self.attempt(trx, plan)? {
                Attempt::Changed(version, end) => {
                    let tree = self.target.clustered;
                    tablespace::write_rows_if_due(tree.store(), tree.space());
                    return Ok(Some((version, end)));
                }
                Attempt::Stopped(obstacle) => {
                    if !self.overcome(obstacle, trx, plan)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Overcomes an obstacle, without a latch. Returns `false` if there is nothing to change.
    fn overcome(&self, obstacle: Obstacle, trx: &mut Trx<'_>, plan: &mut Plan<'_>) -> Result<bool, Stop> {
        let (target, key) = (self.target, self.key);
        match obstacle {
            Obstacle::WriterUnknown(header) => {
                if Some(header.trx) != trx.id() && trx.transactions().active().is_active(header.trx) {
                    return Err(blocked_by(header.trx, target.clustered, key));
                }
                trx.check_unchanged(header, || target.owner())?;
                plan.ended_writer = Some(header.trx);
                Ok(true)
            }
            Obstacle::Locked => {
                Err(Stop::Blocked(Blocked::Row(row_name(target.clustered, key), RowMode::Exclusive)))
            }
            Obstacle::Unfit { live } => is_wanted(trx, target, key, self.mode, live),
            Obstacle::NoLog(bytes) => {
                debug_assert!(!plan.has_log_for_splits, "log for page splits is reserved twice");
                // Log segments are created without a latch, so that no other thread waits for it.
                trx.reserve_log(bytes)?;
                plan.has_log_for_splits = true;
                Ok(true)
            }
        }
    }

    /// Returns whether a cursor of the transaction that locks what it finds may have read ahead without this entry, or
    /// without a row in it.
    fn may_be_unread(&self, trx: &Trx<'_>, header: Option<EntryHeader>) -> bool {
        let is_of_others = |header: EntryHeader| Some(header.trx) != trx.id();
        !is_live(header)
            || header.is_some_and(is_of_others) && held_before(trx, self.target.clustered, self.key).is_none()
    }

    fn attempt<'e: 't>(&self, trx: &mut Trx<'e>, plan: &Plan<'_>) -> Result<Attempt, Stop> {
        let Self { target, key, new, mode, last, read } = *self;
        let tree = target.clustered;
        let touches = plan.planned.iter().map(|planned| &planned.touch);
        let mut tail = trx.tail(target.temporary)?;
        let id = trx.writer_id();
        trx.reserve(&mut tail, bound(key, tree.inline_limit(), touches.clone()))?;
        let mut mtr = Mtr::begin(tree.store())?;
        let room = new.map_or(Room::Header, |new| Room::Value(new.bytes.len()));
        let mut located = tree.seek_for_change_near(&mut mtr, key, room, plan.leaf)?;
        let header = located.header();
        if let Some(header) = header
            && !may_replace(trx, plan, header)
        {
            return Ok(Attempt::Stopped(Obstacle::WriterUnknown(header)));
        }
        let live = is_live(header);
        // A lock may have been taken since the check without a latch: a rollback of a version locks the row first. An
        // insert that finds a row writes nothing.
        let writes = !live || mode != Some(Mode::Insert);
        if writes && header.is_none_or(|header| header.trx != id) && !may_write(trx, tree, key) {
            return Ok(Attempt::Stopped(Obstacle::Locked));
        }
        if !live && check_gap(trx, tree, key).is_err() || !fits(mode, live) {
            return Ok(Attempt::Stopped(Obstacle::Unfit { live }));
        }
        let change = change_of(new, tree, &located, &mtr, read)?;
        if let (RowChange::Update { value, .. }, Some(new), Durability::Logged) =
            (&change, new, target.durability())
            && value.len() > new.bytes.len()
        {
            // Others may have used the freed space by the time of a rollback.
            let bytes = split_log_limit(tree.store().page_size());
            if !plan.has_log_for_splits && !trx.try_reserve(bytes)? {
                return Ok(Attempt::Stopped(Obstacle::NoLog(bytes)));
            }
            trx.extend_rollback_space(bytes);
        }
        let mut record = tail.new_record();
        let changed = ChangedRow { space: tree.space().id(), key, change: &change, touches };
        changed.encode(id, trx.previous(&tail), &mut record);
        let place = tail.prepare(&mut mtr, record.len() - HEAD)?;
        // The undo record names every touched entry: with many indexes or long keys that may be much.
        let stored = new.map_or(0, |new| new.bytes.len());
        let group = LOG_BYTES_PER_CHANGE + key.len() + stored + record.len() + place.log_overhead();
        if target.durability() == Durability::Logged {
            mtr.check_may_log(group)?;
        }
        let version = EntryHeader::new(id, tail.position());
        write_version(new, version, &mut located, &mut mtr);
        if live != new.is_some() {
            tree.space().row_count().add(if live { -1 } else { 1 });
        }
        trx.write_undo(&mut mtr, &mut tail, place, record, tree.space().id(), plan.planned.len());
        if plan.planned.iter().any(Planned::adds) || new.is_some() && !last && self.may_be_unread(trx, header)
        {
            trx.note_addition();
        }
        if target.durability() == Durability::Logged {
            trx.extend_rollback_space(plan.log_bytes_for_splits(target));
        }
        debug_assert!(
            trx.previous(&tail) == Some(version.undo),
            "an entry names another undo record than the one that made its version"
        );
        if last && plan.planned.is_empty() {
            trx.append_trx_end(&mut mtr);
        }
        debug_assert!(mtr.logged() <= group, "{} bytes of a group of {group}", mtr.logged());
        Ok(Attempt::Changed(version, mtr.commit()?))
    }
}

/// Returns the change as its undo record has it: how the entry is before it.
#[inline]
fn change_of<'a>(
    new: Option<NewValue<'_>>,
    tree: &Tree,
    located: &Located<'_, BufferPool>,
    mtr: &Mtr<'_>,
    read: Option<(EntryHeader, &'a [u8])>,
) -> Result<RowChange<Cow<'a, [u8]>>> {
    Ok(match (new, located.header()) {
        (None, Some(header)) => RowChange::Delete { header },
        (Some(new), Some(header)) => {
            let value = match read {
                // Nothing has changed the entry since.
                Some((read, value)) if read == header => Cow::Borrowed(value),
                _ => {
                    let mut value = Vec::new();
                    located.value_into(mtr, &mut value);
                    Cow::Owned(value)
                }
            };
            debug_assert!(located.value_len(mtr) == Some(value.len()), "an undo record has another value");
            let kept = if header.has_fields() {
                let after = EntryHeader { flags: new.flags, ..EntryHeader::default() };
                KeptChains::of(chains_of(tree, header, &value)?, chains_of(tree, after, new.bytes)?)
            } else {
                KeptChains::default()
            };
            RowChange::Update { header, value, kept }
        }
        (_, None) => RowChange::Insert,
    })
}

/// Writes a version to the entry that was located: the new value, or the mark of a deletion.
#[inline]
fn write_version(
    new: Option<NewValue<'_>>,
    version: EntryHeader,
    located: &mut Located<'_, BufferPool>,
    mtr: &mut Mtr<'_>,
) {
    match (new, located.header()) {
        (None, header) => {
            let flags = header.map_or(0, |header| header.flags) | EntryHeader::DELETED;
            located.set_header(mtr, EntryHeader { flags, ..version });
        }
        (Some(new), None) => {
            located.insert(mtr, EntryHeader { flags: new.flags, ..version }.of_insert(), new.bytes);
        }
        (Some(new), Some(_)) => {
            located.replace(mtr, EntryHeader { flags: new.flags, ..version }, new.bytes);
        }
    }
}

/// Returns whether a version may be replaced: its writer has ended, or is this transaction, and a strict read view sees
/// it. This needs no lock. `false` may also mean that this is unknown; it must then be determined without a latch.
fn may_replace(trx: &Trx<'_>, plan: &Plan<'_>, header: EntryHeader) -> bool {
    let has_ended = || header.trx < trx.transactions().active().oldest() || Some(header.trx) == trx.id();
    Some(header.trx) == plan.ended_writer || trx.rules.strict.is_none() && has_ended()
}
