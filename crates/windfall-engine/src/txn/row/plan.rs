//! The plan of a row change.
//!
//! **Purpose.** Determines, before the first page latch for a change, which secondary entries a change touches, and
//! checks that it may: key lengths, unique indexes, gap locks of others.
//!
//! **Invariants.** The call holds the key latch of the row (test: `rows_and_entries_stay_one_under_contention`), and,
//! from [`plan`] on, those of the keys of unique indexes that the row leaves or takes (test:
//! `one_of_several_inserts_of_a_unique_key_succeeds`). So the entries are found under the page latches as they were
//! planned.

use super::{
    conflict::{Blocked, Stop},
    edit::Mode,
    row_lock::{check_gap, lock_gap, lock_row, may_write, row_name, share_row},
    secondary,
    target::{RowTarget, Secondary},
};
use crate::{
    error::{CorruptError, Owner, Result, SchemaError, UsageError},
    ids::TrxId,
    log::LOG_OVERHEAD_BYTES,
    page::EntryHeader,
    store::Tree,
    tree::Seek,
    txn::{
        locks::{
            RowMode,
            key_latch::{KeyLatchGuard, LatchName},
        },
        mvcc::CurrentVersion,
        trx::Trx,
        undo::record::{EntryChange, Touch},
    },
};

/// Bytes of log for a change of a secondary entry and its rollback, in addition to the key.
const LOG_BYTES_PER_ENTRY_AND_ROLLBACK: u64 = 512;

/// A secondary entry that will be inserted, revived or delete-marked.
pub(super) struct Planned<'t> {
    pub tree: &'t Tree,
    pub touch: Touch,
}

/// The planned change of a row.
#[derive(Default)]
pub(super) struct Plan<'t> {
    pub planned: Vec<Planned<'t>>,
    /// The log for page splits during a rollback to a longer value is reserved.
    pub has_log_for_splits: bool,
    /// A transaction that has ended; its version may be replaced.
    pub ended_writer: Option<TrxId>,
}

impl Plan<'_> {
    /// Returns the log that the change and its rollback need at most, except for splits and the pages of a long value.
    /// The previous value may have any length: it goes into the undo record, and is restored from there.
    pub(super) fn log_bytes(&self, target: &RowTarget<'_>, key: &[u8]) -> u64 {
        let row = key.len() + target.clustered.inline_limit();
        let touches = self
            .planned
            .iter()
            .map(|planned| 3 * planned.touch.key.len() as u64 + LOG_BYTES_PER_ENTRY_AND_ROLLBACK);
        LOG_OVERHEAD_BYTES + 4 * row as u64 + touches.sum::<u64>()
    }
}

/// Refuses a key that is too long for a tree.
///
/// # Errors
/// [`UsageError::KeyTooLong`].
pub fn check_length(tree: &Tree, key: &[u8], owner: impl FnOnce() -> Owner) -> Result<()> {
    let limit = tree.key_limit();
    if key.len() > limit {
        return Err(UsageError::KeyTooLong { owner: owner(), length: key.len(), limit }.into());
    }
    Ok(())
}

/// Returns whether a change fits a row that exists (`live`) or does not. The mode of a delete is `None`.
pub(super) fn fits(mode: Option<Mode>, live: bool) -> bool {
    !matches!((mode, live), (Some(Mode::Insert), true) | (Some(Mode::Update) | None, false))
}

/// Returns whether the change must be made, given that the row is `live` or not. The mode of a delete is `None`. If it
/// must not be made, the row or the gap that is the reason stays locked where gaps are locked.
pub(super) fn is_wanted(
    trx: &mut Trx<'_>,
    target: &RowTarget<'_>,
    key: &[u8],
    mode: Option<Mode>,
    live: bool,
) -> Result<bool, Stop> {
    if fits(mode, live) {
        if !live {
            check_gap(trx, target.clustered, key)?;
        }
        return Ok(true);
    }
    if trx.rules.gaps {
        if live {
            lock_row(trx, target.clustered, key, RowMode::Shared)?;
        } else {
            lock_gap(trx, target.clustered, key)?;
        }
    }
    match mode {
        Some(Mode::Insert) => Err(SchemaError::DuplicateKey(target.owner()).into()),
        Some(_) => Err(SchemaError::NoRow(target.name.into()).into()),
        None => Ok(false),
    }
}

/// Determines which secondary entries must change, and checks that they may.
pub(super) fn plan<'e, 't>(
    trx: &mut Trx<'e>,
    latch: &mut KeyLatchGuard<'e>,
    target: &RowTarget<'t>,
    key: &[u8],
    before: Option<&[u8]>,
    after: Option<&[u8]>,
    plan: &mut Plan<'t>,
) -> Result<(), Stop> {
    let keys = |value: Option<&[u8]>| match value {
        Some(value) if !target.secondaries.is_empty() => (target.keys_of)(value),
        _ => Ok(Vec::new()),
    };
    let (old, new) = (keys(before)?, keys(after)?);
    debug_assert!(
        [&old, &new].iter().all(|keys| keys.is_empty() || keys.len() == target.secondaries.len()),
        "a row has index keys for another number of indexes than its table has"
    );
    let latches = trx.transactions().key_latches();
    let mut names: Vec<LatchName> = Vec::new();
    let mut taken = Vec::new();
    for (n, secondary) in target.secondaries.iter().enumerate() {
        let old = old.get(n).and_then(Option::as_ref);
        let new = new.get(n).and_then(Option::as_ref);
        if old == new {
            continue;
        }
        let space = secondary.tree.space().id();
        for (index_key, put) in [(old, false), (new, true)] {
            let Some(index_key) = index_key else { continue };
            let entry = secondary::entry_key(index_key, key);
            check_length(secondary.tree, &entry, || target.owner_of(secondary))?;
            if secondary.unique {
                names.push(latches.name(space, index_key));
                if put {
                    taken.push((secondary, index_key));
                }
            }
            // The present entries are looked up once the key latches are held.
            let change =
                if put { EntryChange::Inserted } else { EntryChange::Marked(EntryHeader::default()) };
            let touch = Touch { space, key: entry, change };
            plan.planned.push(Planned { tree: secondary.tree, touch });
        }
    }
    latch.latch_more(names)?;
    for (secondary, index_key) in taken {
        check_unique(trx, target, secondary, index_key, key)?;
    }
    let mut value = Vec::new();
    for Planned { tree, touch } in &mut plan.planned {
        let header = tree.get_into(&touch.key, &mut value)?;
        if touch.change == EntryChange::Inserted {
            check_gap(trx, tree, &touch.key)?;
        }
        touch.change = match (touch.change, header) {
            (EntryChange::Inserted, None) => EntryChange::Inserted,
            (EntryChange::Inserted, Some(header)) if header.is_deleted() => EntryChange::Revived(header),
            (EntryChange::Marked(_), Some(header)) if !header.is_deleted() => EntryChange::Marked(header),
            _ => {
                let what = "a secondary entry contradicts its row".into();
                return Err(
                    CorruptError::Structure { owner: Owner::Unknown, space: touch.space, what }.into()
                );
            }
        };
    }
    Ok(())
}

/// Refuses an index key that a live entry of another row has. The key latch of the index key is held. If the
/// isolation level locks gaps, that row stays as it is, like a row that has the same primary key.
fn check_unique(
    trx: &mut Trx<'_>,
    target: &RowTarget<'_>,
    secondary: &Secondary<'_>,
    index_key: &[u8],
    key: &[u8],
) -> Result<(), Stop> {
    let prefix = secondary::prefix_of(index_key);
    let name = || row_name(secondary.tree, &prefix);
    if !may_write(trx, secondary.tree, &prefix) {
        return Err(Stop::Blocked(Blocked::Row(name(), RowMode::Exclusive)));
    }
    let mut cursor = secondary.tree.cursor();
    let mut more = cursor.seek(Seek::AtLeast(&prefix))?;
    while more && cursor.key().starts_with(&prefix) {
        if &cursor.key()[prefix.len()..] != key {
            // Whether the entry is final depends on its writer. The copy of the cursor may be stale.
            let there = trx
                .transactions()
                .active()
                .read_final(trx.id(), || secondary.tree.get_into(cursor.key(), &mut Vec::new()))?;
            match there {
                CurrentVersion::Unfinished(writer) => {
                    return Err(Stop::Blocked(Blocked::Writer(writer, name(), RowMode::Exclusive)));
                }
                CurrentVersion::Final(Some(header)) if !header.is_deleted() => {
                    if trx.rules.gaps {
                        share_row(trx, target.clustered, &cursor.key()[prefix.len()..])?;
                    }
                    return Err(SchemaError::DuplicateKey(target.owner_of(secondary)).into());
                }
                CurrentVersion::Final(_) => {}
            }
        }
        more = cursor.next()?;
    }
    Ok(())
}
