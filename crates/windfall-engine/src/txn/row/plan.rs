//! The plan of a row change.
//!
//! **Purpose.** Determines, before the first page latch for a change, which secondary entries a change touches, and
//! checks that it may: key lengths, unique indexes, gap locks of others.
//!
//! **Invariants.** The call holds the key latch of the row (test: `rows_and_entries_stay_one_under_contention`), and,
//! from [`plan`] on, those of the keys of unique indexes that the row leaves or takes (test:
//! `one_of_several_inserts_of_a_unique_key_succeeds`). So the entries are found under the page latches as they were
//! planned.

use smallvec::SmallVec;

use super::{
    conflict::{Blocked, Stop},
    edit::Mode,
    entry::{Entry, EntryForm, IndexRef, SuppliedChange, SuppliedEntry},
    extract,
    row_lock::{check_gap, lock_gap, lock_other_row, lock_row, may_write, row_name},
    target::{IndexKeys, RowTarget, Secondary},
};
use crate::{
    error::{CorruptError, Error, Owner, Result, SchemaError, UsageError},
    ids::TrxId,
    log::LOG_OVERHEAD_BYTES,
    store::Tree,
    tree::{LeafHint, Seek, split_log_limit},
    txn::{
        locks::{
            RowMode,
            key_latch::{KeyLatchGuard, LatchName},
        },
        mvcc::CurrentVersion,
        trx::Trx,
        undo::record::{EntryBefore, EntryChange, Touch},
    },
};

/// Bytes of log for a change of a secondary entry and its rollback, in addition to the key.
const LOG_BYTES_PER_ENTRY_AND_ROLLBACK: u64 = 512;

/// A secondary entry that will be inserted, revived, delete-marked or given another value.
pub(super) struct Planned<'t> {
    pub tree: &'t Tree,
    pub touch: Touch,
    /// Its value afterwards, unless it is delete-marked.
    pub value: Vec<u8>,
    /// The name of the index, if the caller supplies its entries.
    pub supplied: Option<&'t str>,
    /// The leaf in which the entry was looked for.
    pub leaf: LeafHint,
}

impl Planned<'_> {
    /// Returns whether the index has the entry from now on, and had not before.
    pub(super) fn adds(&self) -> bool {
        matches!(self.touch.change, EntryChange::Inserted | EntryChange::Revived(_))
    }

    /// Returns whether a rollback restores a longer value, which may need a page split.
    fn grows_in_rollback(&self) -> bool {
        match &self.touch.change {
            EntryChange::Revived(before) | EntryChange::Replaced(before) => {
                before.value.len() > self.value.len()
            }
            EntryChange::Inserted | EntryChange::Marked(_) => false,
        }
    }
}

/// The planned change of a row.
#[derive(Default)]
pub(super) struct Plan<'t> {
    pub planned: Vec<Planned<'t>>,
    /// The log for page splits during a rollback to a longer value is reserved.
    pub has_log_for_splits: bool,
    /// A transaction that has ended; its version may be replaced.
    pub ended_writer: Option<TrxId>,
    /// The leaf in which the row was looked for, if it was.
    pub leaf: LeafHint,
}

impl Plan<'_> {
    /// Returns the log that the change and its rollback need at most, except for splits and the pages of a long value.
    /// The previous value may have any length: it goes into the undo record, and is restored from there.
    pub(super) fn log_bytes(&self, target: &RowTarget<'_>, key: &[u8]) -> u64 {
        let row = key.len() + target.clustered.inline_limit();
        let touches = self.planned.iter().map(|planned| {
            let before = planned.touch.change.before().map_or(0, |before| before.value.len());
            let bytes = 3 * planned.touch.key.len() + planned.value.len() + 3 * before;
            bytes as u64 + LOG_BYTES_PER_ENTRY_AND_ROLLBACK
        });
        LOG_OVERHEAD_BYTES + 4 * row as u64 + touches.sum::<u64>() + self.log_bytes_for_splits(target)
    }

    /// Returns the log that page splits need when a rollback gives entries their longer values again.
    pub(super) fn log_bytes_for_splits(&self, target: &RowTarget<'_>) -> u64 {
        let growing = self.planned.iter().filter(|planned| planned.grows_in_rollback()).count();
        growing as u64 * split_log_limit(target.clustered.store().page_size())
    }
}

/// Refuses a row's key, or an index key, that is too long.
///
/// # Errors
/// [`UsageError::KeyTooLong`].
pub fn check_length(tree: &Tree, length: usize, owner: impl FnOnce() -> Owner) -> Result<()> {
    let limit = tree.key_part_limit();
    if length > limit {
        return Err(UsageError::KeyTooLong { owner: owner(), length, limit }.into());
    }
    Ok(())
}

/// Returns whether a change fits a row that exists (`live`) or does not. The mode of a delete is `None`.
pub(super) fn fits(mode: Option<Mode>, live: bool) -> bool {
    !matches!((mode, live), (Some(Mode::Insert), true) | (Some(Mode::Update) | None, false))
}

/// Returns whether the change must be made, given that the row is `live` or not. The mode of a delete is `None`. If it
/// must not be made, the row that is the reason stays locked, or the gap where gaps are locked.
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
    if live {
        // Only an insert does not fit a row that exists.
        if let Some(lock_mode) = trx.rules.duplicate_lock {
            lock_row(trx, target.clustered, key, lock_mode)?;
        }
    } else if trx.rules.gaps {
        lock_gap(trx, target.clustered, key)?;
    }
    match mode {
        Some(Mode::Insert) => {
            Err(SchemaError::DuplicateKey { owner: target.owner(), index: None, row: key.into() }.into())
        }
        Some(_) => Err(SchemaError::NoRow(target.name.into()).into()),
        None => Ok(false),
    }
}

/// An entry of a row in one index before and after its change.
struct Sides<'t, 's> {
    /// The position of the index among those of the table.
    n: usize,
    secondary: &'s Secondary<'t>,
    old: Option<Entry>,
    new: Option<Entry>,
}

/// Returns the entries of a row in each index in which they may change. `before` and `after` are the first bytes of the
/// row's values, `None` if there is no such row.
fn entries_of<'t, 's>(
    target: &'s RowTarget<'t>,
    key: &[u8],
    before: Option<&[u8]>,
    after: Option<&[u8]>,
    supplied: Option<&[SuppliedChange<'_>]>,
) -> Result<Vec<Sides<'t, 's>>> {
    let makes_some = target.secondaries.iter().any(|secondary| secondary.form == EntryForm::Terminated);
    let keys = |value: Option<&[u8]>| match value {
        Some(value) if makes_some => (target.keys_of)(value),
        _ => Ok(IndexKeys::default()),
    };
    let (old, new) = (keys(before)?, keys(after)?);
    debug_assert!(
        [&old, &new].iter().all(|keys| keys.is_empty() || keys.len() == target.secondaries.len()),
        "a row has index keys for another number of indexes than its table has"
    );
    let of_index = by_place(target, supplied.unwrap_or_default())?;
    let mut sides = Vec::new();
    for (n, secondary) in target.secondaries.iter().enumerate() {
        if let Some(extraction) = &secondary.extraction {
            let owner = || target.owner_of(secondary);
            // Also where it would not run: a table is changed with all its extractors, or not at all.
            extraction.extractor(owner)?;
            if before == after {
                continue;
            }
            let entries = |value: Option<&[u8]>| match value {
                Some(value) => extraction.entries(secondary.tree, secondary.unique, key, value, owner),
                None => Ok(Vec::new()),
            };
            let changed = extract::changed(entries(before)?, entries(after)?);
            sides.extend(changed.into_iter().map(|[old, new]| Sides { n, secondary, old, new }));
            continue;
        }
        let [old, new] = if secondary.form == EntryForm::Terminated {
            let keys = [&old, &new].map(|keys| keys.get(n));
            if keys[0] == keys[1] {
                continue;
            }
            keys.map(|index_key| Some(Entry::terminated(index_key?, key, secondary.unique)))
        } else {
            let change = of_index.get(n).copied().flatten().and_then(|at| supplied?.get(usize::from(at)));
            let owner = || target.owner_of(secondary);
            let Some(SuppliedChange { old, new, .. }) = change else {
                // An update without an entry leaves it as it is.
                if supplied.is_some() && before.is_some() && after.is_some() {
                    continue;
                }
                return Err(UsageError::EntryMissing { owner: owner() }.into());
            };
            if before.is_none() && old.is_some() || after.is_none() && new.is_some() {
                return Err(UsageError::WrongEntry { owner: owner() }.into());
            }
            let stored = |entry: &Option<SuppliedEntry<'_>>| {
                let Secondary { form, unique, .. } = *secondary;
                let limit = secondary.tree.inline_limit();
                let stored = |entry| Entry::supplied(entry, key, form, unique, limit, owner);
                entry.as_ref().map(stored).transpose()
            };
            [stored(old)?, stored(new)?]
        };
        sides.push(Sides { n, secondary, old, new });
    }
    Ok(sides)
}

/// Passes the entries of a new row with a value that begins with these bytes to `take`, each with the position of its
/// index.
///
/// # Errors
/// Supplied entries that are missing or wrong; keys and payloads that are too long. None is passed then.
pub fn entries_of_new_row(
    target: &RowTarget<'_>,
    key: &[u8],
    value: &[u8],
    supplied: Option<&[SuppliedChange<'_>]>,
    mut take: impl FnMut(usize, Entry),
) -> Result<()> {
    let sides = entries_of(target, key, None, Some(value), supplied)?;
    for Sides { secondary, new, .. } in &sides {
        if let Some(entry) = new {
            let length = secondary.form.key_bytes(entry.index_bytes);
            check_length(secondary.tree, length, || target.owner_of(secondary))?;
        }
    }
    for Sides { n, new, .. } in sides {
        if let Some(entry) = new {
            take(n, entry);
        }
    }
    Ok(())
}

/// For each index of a table the position of its entry among those that are supplied. Empty if there are none.
type ByPlace = SmallVec<[Option<u16>; 64]>;

/// Finds the indexes of supplied entries. Refuses those of an index that does not exist, that makes its entries itself,
/// or that is named twice.
fn by_place(target: &RowTarget<'_>, supplied: &[SuppliedChange<'_>]) -> Result<ByPlace> {
    let secondaries = target.secondaries;
    let mut found = ByPlace::new();
    if supplied.is_empty() {
        return Ok(found);
    }
    found.resize(secondaries.len(), None);
    let mut expected = 0;
    for (at, change) in supplied.iter().enumerate() {
        let place = match change.index {
            // Entries in the order of the indexes are found without a search.
            IndexRef::Name(name) => {
                let is_its = |secondary: &Secondary<'_>| *secondary.name == *name;
                let rest = secondaries[expected..].iter().position(is_its).map(|after| expected + after);
                rest.or_else(|| secondaries.iter().position(is_its)).ok_or_else(|| {
                    let (table, index) = (target.name.into(), name.into());
                    Error::from(SchemaError::NoIndex { table, index })
                })?
            }
            IndexRef::Number(number) => number
                .find(expected, secondaries.len(), |place| {
                    let secondary = &secondaries[place];
                    secondary.replaces.unwrap_or_else(|| secondary.number())
                })
                .ok_or_else(|| SchemaError::IndexNumberOutdated(target.name.into()))?,
        };
        let owner = || target.owner_of(&secondaries[place]);
        if !matches!(secondaries[place].form, EntryForm::Supplied { .. }) {
            return Err(UsageError::EntryNotSupplied { owner: owner() }.into());
        }
        if found[place].is_some() {
            return Err(UsageError::EntryTwice { owner: owner() }.into());
        }
        found[place] =
            Some(u16::try_from(at).expect("no more entries than indexes, of which a record counts 65,535"));
        expected = place + 1;
    }
    Ok(found)
}

/// Determines which secondary entries must change, and checks that they may.
pub(super) fn plan<'e, 't>(
    trx: &mut Trx<'e>,
    latch: &mut KeyLatchGuard<'e>,
    target: &RowTarget<'t>,
    key: &[u8],
    [before, after]: [Option<&[u8]>; 2],
    supplied: Option<&[SuppliedChange<'_>]>,
    plan: &mut Plan<'t>,
) -> Result<(), Stop> {
    let sides = entries_of(target, key, before, after, supplied)?;
    let latches = trx.transactions().key_latches();
    let mut names: Vec<LatchName> = Vec::new();
    for Sides { secondary, old, new, .. } in &sides {
        for entry in [old, new].into_iter().flatten() {
            let length = secondary.form.key_bytes(entry.index_bytes);
            check_length(secondary.tree, length, || target.owner_of(secondary))?;
        }
        let unique = [old, new].into_iter().flatten().filter(|entry| entry.is_unique);
        let space = secondary.tree.space().id();
        names.extend(unique.map(|entry| latches.name(space, entry.index_part())));
    }
    latch.latch_more(names)?;
    for Sides { secondary, new, .. } in &sides {
        // Also if the row has the entry already: it may have been one that may repeat.
        if let Some(new) = new.as_ref().filter(|new| new.is_unique) {
            check_unique(trx, target, secondary, new.index_part(), key)?;
        }
    }
    for Sides { secondary, old, new, .. } in sides {
        let (old, new) = match (old, new) {
            // The old value is the caller's word: the new one is compared with what is in the tree.
            (Some(old), Some(new)) if old.key == new.key => {
                plan.add(trx, target, secondary, Intent::Replace, new)?;
                continue;
            }
            sides => sides,
        };
        if let Some(old) = old {
            plan.add(trx, target, secondary, Intent::Mark, old)?;
        }
        if let Some(new) = new {
            plan.add(trx, target, secondary, Intent::Put, new)?;
        }
    }
    Ok(())
}

/// What a change does to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    /// The row gets the entry.
    Put,
    /// The row loses the entry.
    Mark,
    /// The entry gets another value.
    Replace,
}

impl<'t> Plan<'t> {
    /// Adds the change of an entry, given what is in the tree. The key latches of the row and of its unique index keys
    /// are held.
    fn add(
        &mut self,
        trx: &Trx<'_>,
        target: &RowTarget<'_>,
        secondary: &Secondary<'t>,
        intent: Intent,
        Entry { key, value, index_bytes, .. }: Entry,
    ) -> Result<(), Stop> {
        let Secondary { tree, form, .. } = *secondary;
        let mut present = Vec::new();
        let (header, leaf) = tree.get_before_change(&key, &mut present)?;
        if matches!(form, EntryForm::Supplied { .. })
            && header.is_some()
            && form.split(&key, &present).is_none_or(|parts| parts.index.len() != index_bytes)
        {
            return Err(UsageError::EntryOfOtherRow { owner: target.owner_of(secondary) }.into());
        }
        if intent == Intent::Put {
            check_gap(trx, tree, &key)?;
        }
        let before = header.map(|header| EntryBefore { header, value: present });
        let is_live = |before: &EntryBefore| !before.header.is_deleted();
        let change = match (intent, before) {
            (Intent::Put, None) => EntryChange::Inserted,
            (Intent::Put, Some(before)) if !is_live(&before) => EntryChange::Revived(before),
            (Intent::Mark, Some(before)) if is_live(&before) => EntryChange::Marked(before),
            (Intent::Replace, Some(before)) if is_live(&before) && before.value == value => return Ok(()),
            (Intent::Replace, Some(before)) if is_live(&before) => EntryChange::Replaced(before),
            _ if form == EntryForm::Terminated => {
                let what = "a secondary entry contradicts its row".into();
                let space = tree.space().id();
                return Err(CorruptError::Structure { owner: Owner::Unknown, space, what }.into());
            }
            _ => {
                let owner = target.owner_of(secondary);
                return Err(match secondary.extraction {
                    None => UsageError::WrongEntry { owner },
                    Some(extraction) => {
                        UsageError::ExtractorDiffers { owner, extractor: extraction.name().into() }
                    }
                }
                .into());
            }
        };
        let touch = Touch { space: tree.space().id(), key, change };
        let is_supplied = matches!(form, EntryForm::Supplied { .. });
        let supplied = is_supplied.then_some(secondary.name);
        self.planned.push(Planned { tree, touch, value, supplied, leaf });
        Ok(())
    }
}

/// Refuses an index part that a live entry of another row has. The key latch of the index part is held, so that row
/// keeps the entry until it is locked, like a row that has the same primary key.
fn check_unique(
    trx: &mut Trx<'_>,
    target: &RowTarget<'_>,
    secondary: &Secondary<'_>,
    prefix: &[u8],
    key: &[u8],
) -> Result<(), Stop> {
    let name = || row_name(secondary.tree, prefix);
    if !may_write(trx, secondary.tree, prefix) {
        return Err(Stop::Blocked(Blocked::Row(name(), RowMode::Exclusive)));
    }
    let mut cursor = secondary.tree.cursor();
    let mut more = cursor.seek(Seek::AtLeast(prefix))?;
    while more && cursor.key().starts_with(prefix) {
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
                    let row = &cursor.key()[prefix.len()..];
                    if let Some(mode) = trx.rules.duplicate_lock {
                        lock_other_row(trx, target.clustered, row, mode)?;
                    }
                    let (owner, row) = (target.owner_of(secondary), row.into());
                    let index = Some(secondary.number());
                    return Err(SchemaError::DuplicateKey { owner, index, row }.into());
                }
                CurrentVersion::Final(_) => {}
            }
        }
        more = cursor.next()?;
    }
    Ok(())
}
