//! Row changes.
//!
//! **Purpose.** Insert, put, update and delete of one row together with the entries of all its trees.
//!
//! **Invariants.** A call holds the key latch of the row from before its first read of the row to its end. For each
//! unique index it likewise holds the key latch of every index key that the row leaves or takes. So what was planned
//! without a page latch is what is found under it: no other call changes the row or its secondary entries, which carry
//! the row's key, and purge keeps away. Nor does a rollback interfere, because a row with the changes of an unfinished
//! other transaction is not touched: the call is blocked ([`Stop`]). Order of the work: lengths, conflicts, duplicates;
//! the overflow chain; the clustered entry with the undo record of the whole change; the secondary entries. If any step
//! fails, the work done so far is rolled back.
//!
//! A new entry, or a delete-marked one that is revived, conflicts with the range locks of others. That is checked once
//! more under the latch of the leaf: a transaction that locks a range and then reads the leaf finds the entry, or the
//! writer has found the range lock.
//!
//! Index keys are made of the first bytes of a value, at most [`INDEXED`], regardless of its length: so the change of a
//! long value needs no more memory than that of a short one.

use std::{borrow::Cow, io::Read};

use super::{
    Transactions,
    conflict::{Blocked, Stop, name_of},
    key_latch::{KeyLatchGuard, LatchName},
    locks::RowMode,
    read, secondary,
    stream::Stream,
    trx::{RollbackCaller, Savepoint, Trx},
    undo_record::{Body, Done, RowChange, Touch, UndoRecord},
};
use crate::{
    buffer::Durability,
    error::{CorruptError, Error, Owner, Result, SchemaError, UsageError},
    ids::{Lsn, SpaceId, TrxId},
    log::OVERHEAD,
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::Arc,
    tree::{OverflowRef, Seek, overflow::VALUE_LIMIT, split_log_limit},
};

/// Bytes read from a source at once.
const CHUNK: usize = 64 << 10;
/// The number of first bytes of a value that index keys are made of.
pub const INDEXED: usize = 64 << 10;
/// Log for a change of a secondary entry and its rollback, in addition to the key.
const LOG_PER_TOUCH: u64 = 512;
/// Log for the change of a clustered entry, in addition to its key and value and the undo record: the operation, and
/// the records of the begin and the end of the transaction.
const LOG_PER_ENTRY: usize = 256;

/// A secondary tree.
#[derive(Clone, Copy, Debug)]
pub struct Secondary<'a> {
    /// The tree.
    pub tree: &'a Tree,
    /// Whether two rows may not have the same index key.
    pub unique: bool,
    /// The index, for messages.
    pub name: &'a str,
}

/// Makes the index keys of a row from its key and the first bytes of its value: one per secondary tree, `None` for an
/// index that does not contain the row.
pub type KeysOf<'a> = dyn Fn(&[u8], &[u8]) -> Result<Vec<Option<Vec<u8>>>> + Sync + 'a;

/// Is called with a row change that is about to be made under the row's key latch: the row's key, and the first bytes
/// of its value before and after; `None` if there is no such row.
pub type Watch<'a> = dyn Fn(&[u8], Option<&[u8]>, Option<&[u8]>) + Sync + 'a;

/// The trees of a table.
#[derive(Clone, Copy)]
pub struct RowTarget<'a> {
    /// The table, for messages.
    pub name: &'a str,
    /// The clustered tree.
    pub clustered: &'a Tree,
    /// The secondary trees.
    pub secondaries: &'a [Secondary<'a>],
    /// Makes their index keys.
    pub keys_of: &'a KeysOf<'a>,
    /// For a temporary table: the session's stream.
    pub temporary: Option<&'a Arc<Stream>>,
    /// The observer of changes.
    pub watch: Option<&'a Watch<'a>>,
}

impl core::fmt::Debug for RowTarget<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RowTarget({})", self.name)
    }
}

impl RowTarget<'_> {
    fn durability(&self) -> Durability {
        if self.temporary.is_some() { Durability::Temporary } else { Durability::Logged }
    }

    fn owner(&self) -> Owner {
        Owner::Table(self.name.into())
    }

    fn owner_of(&self, secondary: &Secondary<'_>) -> Owner {
        Owner::Index { table: self.name.into(), index: secondary.name.into() }
    }
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The row must not exist.
    Insert,
    /// The row may exist or not.
    Put,
    /// The row must exist.
    Update,
}

/// A new value.
pub enum Value<'v> {
    /// In memory.
    Bytes(&'v [u8]),
    /// To be read.
    Source {
        /// Its length in bytes.
        length: u64,
        /// Where it comes from.
        source: &'v mut dyn Read,
    },
}

impl core::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Value of {} bytes", self.length())
    }
}

impl Value<'_> {
    /// Returns its length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Source { length, .. } => *length,
        }
    }
}

/// The intended change of a row. A call that must wait keeps it and continues with it: the bytes that were read from a
/// source are not read again, and a long value that was written stays written.
#[derive(Debug)]
pub struct Edit<'v> {
    /// The new value; `None` deletes the row.
    value: Option<(Value<'v>, Mode)>,
    /// The first bytes of a value from a source.
    head: Option<Vec<u8>>,
    /// The written overflow chain of a long value: its tablespace, and the reference to it.
    chain: Option<(SpaceId, OverflowRef)>,
}

fn fill(source: &mut dyn Read, out: &mut [u8]) -> Result<()> {
    source
        .read_exact(out)
        .map_err(|error| UsageError::Source { owner: Owner::Unknown, what: error.to_string().into() }.into())
}

impl<'v> Edit<'v> {
    /// Creates a write.
    pub fn write(value: Value<'v>, mode: Mode) -> Self {
        Self { value: Some((value, mode)), head: None, chain: None }
    }

    /// Creates a deletion.
    pub fn delete() -> Self {
        Self { value: None, head: None, chain: None }
    }

    fn mode(&self) -> Option<Mode> {
        self.value.as_ref().map(|(_, mode)| *mode)
    }

    fn length(&self) -> u64 {
        self.value.as_ref().map_or(0, |(value, _)| value.length())
    }

    /// Reads the first bytes of a source.
    fn begin(&mut self) -> Result<()> {
        if let (Some((Value::Source { length, source }, _)), None) = (&mut self.value, &self.head) {
            let mut head = vec![0; usize::try_from(*length).unwrap_or(INDEXED).min(INDEXED)];
            fill(*source, &mut head)?;
            self.head = Some(head);
        }
        Ok(())
    }

    /// Returns the first bytes of the new value, or all of them if they are in memory.
    fn known(&self) -> Option<&[u8]> {
        match &self.value {
            Some((Value::Bytes(bytes), _)) => Some(bytes),
            Some((Value::Source { .. }, _)) => self.head.as_deref(),
            None => None,
        }
    }

    /// Returns the bytes that index keys are made of.
    fn indexed(&self) -> Option<&[u8]> {
        self.known().map(|bytes| &bytes[..bytes.len().min(INDEXED)])
    }
}

/// A secondary entry that will be inserted, revived or delete-marked.
struct Planned<'t> {
    tree: &'t Tree,
    touch: Touch,
}

/// The planned change of a row.
#[derive(Default)]
struct Plan<'t> {
    planned: Vec<Planned<'t>>,
    /// The log for page splits during a rollback to a longer value is reserved.
    is_way_back_promised: bool,
    /// A transaction that has ended; its version may be replaced.
    settled: TrxId,
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

/// Returns whether a change fits a row that exists (`live`) or does not. No mode is a delete.
fn fits(mode: Option<Mode>, live: bool) -> bool {
    !matches!((mode, live), (Some(Mode::Insert), true) | (Some(Mode::Update) | None, false))
}

fn is_live(header: Option<EntryHeader>) -> bool {
    header.is_some_and(|header| !header.is_deleted())
}

/// Another transaction has changed the row and has not ended.
fn blocked_by(writer: TrxId, tree: &Tree, key: &[u8]) -> Stop {
    Stop::Blocked(Blocked::Writer(writer, name_of(tree, key), RowMode::Exclusive))
}

impl Transactions {
    /// Acquires the key latch of a row: one call at a time reads and changes it.
    ///
    /// # Errors
    /// If the call would have to wait and must not.
    pub fn latch_row(&self, target: &RowTarget<'_>, key: &[u8]) -> Result<KeyLatchGuard<'_>> {
        self.key_latches.latch_in_call(self.key_latches.name(target.clustered.space().id(), key))
    }

    /// Waits for log space for the first bytes of a value, if the table is logged.
    fn wait_for_room(&self, target: &RowTarget<'_>, value: u64) -> Result<()> {
        match target.durability() {
            Durability::Logged => {
                self.context.pool.context().log.wait_for_room(2 * value.min(CHUNK as u64) + OVERHEAD)
            }
            Durability::Temporary => Ok(()),
        }
    }
}

/// Returns the log that a change and its rollback need at most, except for splits and the pages of a long value. The
/// previous value may have any length: it goes into the undo record, and is restored from there.
fn log_of(target: &RowTarget<'_>, key: &[u8], plan: &Plan<'_>) -> u64 {
    let row = key.len() + target.clustered.inline_limit();
    let touches = plan.planned.iter().map(|planned| 3 * planned.touch.key.len() as u64 + LOG_PER_TOUCH);
    OVERHEAD + 4 * row as u64 + touches.sum::<u64>()
}

impl<'e> Trx<'e> {
    /// Changes a row. With `last` the end of the transaction is logged with the last change, and the transaction has
    /// then ended; it has also ended if the change fails. Returns the LSN after the change; `None` if there was no row
    /// to delete, in which case nothing is logged.
    ///
    /// If the call fails its changes are rolled back. A blocked call keeps a long value that it has written, in `edit`.
    ///
    /// # Errors
    /// [`SchemaError::DuplicateKey`], [`SchemaError::NoRow`], keys and values that are too long, a row that has changed
    /// since a strict read view was made, a dropped table, damage, I/O.
    pub fn change<'t>(
        &mut self,
        target: &RowTarget<'t>,
        key: &[u8],
        edit: &mut Edit<'_>,
        last: bool,
    ) -> Result<Option<Lsn>, Stop>
    where
        'e: 't,
    {
        if target.durability() == Durability::Logged && !self.transactions().has_undo_room() {
            return Err(Stop::Blocked(Blocked::Undo));
        }
        self.transactions().wait_for_room(target, edit.length())?;
        let mut latch = self.transactions().latch_row(target, key)?;
        let start = self.savepoint();
        // After a long value, once that is written.
        let mut kept = start.clone();
        let done = self.try_change(&mut latch, target, key, edit, last, &mut kept);
        if let (Ok(Some(_)), false, Some(lock_owner)) = (&done, last, self.lock_owner_if_any()) {
            lock_owner.add_weight(1);
        }
        // If the rollback fails, the row is left partly changed.
        let is_cut_off = done.is_err() && self.has_changed_since(&start);
        if is_cut_off {
            self.transactions().rollbacks.note_cut_off(self.id(), target.clustered.space().id());
        }
        match &done {
            // Before the key latch is released: the next call finds a row without unfinished changes.
            Ok(_) if last => self.end(),
            Ok(_) => {}
            Err(Stop::Blocked(_)) => match self.roll_back_call(&kept) {
                // A rollback outside of the gate would not be reported to observers of the table.
                Err(_) if last => drop(self.roll_back(RollbackCaller::Inside)?),
                done => done?,
            },
            Err(Stop::Failed(_)) if last => drop(self.roll_back(RollbackCaller::Inside)?),
            Err(Stop::Failed(_)) => self.roll_back_call(&start)?,
        }
        if is_cut_off {
            self.transactions().rollbacks.forget_cut_off(self.id());
        }
        done
    }

    fn try_change<'t>(
        &mut self,
        latch: &mut KeyLatchGuard<'e>,
        target: &RowTarget<'t>,
        key: &[u8],
        edit: &mut Edit<'_>,
        last: bool,
        kept: &mut Savepoint,
    ) -> Result<Option<Lsn>, Stop>
    where
        'e: 't,
    {
        let tree = target.clustered;
        check_length(tree, key, || target.owner())?;
        let length = edit.length();
        if length > VALUE_LIMIT {
            return Err(UsageError::ValueTooLong { owner: target.owner(), length, limit: VALUE_LIMIT }.into());
        }
        edit.begin()?;
        if !self.may_write(tree, key) && !self.is_shared_duplicate(tree, key, edit.mode())? {
            return Err(Stop::Blocked(Blocked::Row(name_of(tree, key), RowMode::Exclusive)));
        }
        let long = length > tree.inline_limit() as u64;
        let mut plan = Plan::default();
        if long || !target.secondaries.is_empty() || target.watch.is_some() {
            let mut before = Vec::new();
            let header = self
                .transactions()
                .read_settled(self.id(), || read::get_indexed(tree, key, &mut before))?
                .map_err(|writer| blocked_by(writer, tree, key))?;
            if let Some(header) = header {
                self.check_unchanged(header, || target.owner())?;
                plan.settled = header.trx;
            }
            if !self.is_wanted(target, key, edit.mode(), is_live(header))? {
                return Ok(None);
            }
            let before = is_live(header).then_some(&before[..]);
            let after = edit.indexed();
            self.plan(latch, target, key, before, after, &mut plan)?;
            if let Some(watch) = target.watch {
                watch(key, before, after);
            }
        }
        #[cfg(any(test, feature = "testing"))]
        self.transactions().failpoint.pass()?;
        if target.durability() == Durability::Logged {
            self.reserve_log(log_of(target, key, &plan))?;
        }
        let stored = if long {
            let reference = self.chain_of(target, edit)?.to_bytes();
            *kept = self.savepoint();
            Some(Cow::Owned(reference.to_vec()))
        } else {
            edit.known().map(Cow::Borrowed)
        };
        #[cfg(any(test, feature = "testing"))]
        self.transactions().failpoint.pass()?;
        let flags = if long { EntryHeader::OVERFLOW } else { 0 };
        let new = stored.as_deref().map(|stored| (stored, flags));
        let Some(version) = self.change_clustered(target, key, new, edit.mode(), &mut plan, last)? else {
            return Ok(None);
        };
        let (version, mut end) = version;
        let count = plan.planned.len();
        for (n, planned) in plan.planned.iter().enumerate() {
            #[cfg(any(test, feature = "testing"))]
            self.transactions().failpoint.pass()?;
            end = self.change_secondary(planned, version, last && n + 1 == count)?;
        }
        Ok(Some(end))
    }

    /// Returns whether the change must be made, given that the row is `live` or not. No mode is a delete. If it must
    /// not, the reason for that stays locked where gaps are locked.
    fn is_wanted(
        &mut self,
        target: &RowTarget<'_>,
        key: &[u8],
        mode: Option<Mode>,
        live: bool,
    ) -> Result<bool, Stop> {
        if fits(mode, live) {
            if !live {
                self.check_gap(target.clustered, key)?;
            }
            return Ok(true);
        }
        if self.rules.gaps {
            if live {
                self.lock_row(target.clustered, key, RowMode::Shared)?;
            } else {
                self.lock_gap(target.clustered, key)?;
            }
        }
        match mode {
            Some(Mode::Insert) => Err(SchemaError::DuplicateKey(target.owner()).into()),
            Some(_) => Err(SchemaError::NoRow(target.name.into()).into()),
            None => Ok(false),
        }
    }

    /// Determines which secondary entries must change, and checks that they may.
    fn plan<'t>(
        &mut self,
        latch: &mut KeyLatchGuard<'e>,
        target: &RowTarget<'t>,
        key: &[u8],
        before: Option<&[u8]>,
        after: Option<&[u8]>,
        plan: &mut Plan<'t>,
    ) -> Result<(), Stop> {
        let keys = |value: Option<&[u8]>| match value {
            Some(value) if !target.secondaries.is_empty() => (target.keys_of)(key, value),
            _ => Ok(Vec::new()),
        };
        let (old, new) = (keys(before)?, keys(after)?);
        let locks = self.transactions().key_latches();
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
                    names.push(locks.name(space, index_key));
                    if put {
                        taken.push((secondary, index_key));
                    }
                }
                // The present entries are looked up once the key latches are held.
                let done = if put { Done::Inserted } else { Done::Marked(EntryHeader::default()) };
                let touch = Touch { space, key: entry, done };
                plan.planned.push(Planned { tree: secondary.tree, touch });
            }
        }
        locks.lock_more(latch, names)?;
        for (secondary, index_key) in taken {
            self.check_unique(target, secondary, index_key, key)?;
        }
        let mut value = Vec::new();
        for Planned { tree, touch } in &mut plan.planned {
            let header = tree.get_into(&touch.key, &mut value)?;
            if touch.done == Done::Inserted {
                self.check_gap(tree, &touch.key)?;
            }
            touch.done = match (touch.done, header) {
                (Done::Inserted, None) => Done::Inserted,
                (Done::Inserted, Some(header)) if header.is_deleted() => Done::Revived(header),
                (Done::Marked(_), Some(header)) if !header.is_deleted() => Done::Marked(header),
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

    /// Refuses an index key that a live entry of another row has. The key latch of the index key is held. Where the
    /// isolation level locks gaps, that row stays as it is, like a row that has the same primary key.
    fn check_unique(
        &mut self,
        target: &RowTarget<'_>,
        secondary: &Secondary<'_>,
        index_key: &[u8],
        key: &[u8],
    ) -> Result<(), Stop> {
        let prefix = secondary::prefix_of(index_key);
        let name = || name_of(secondary.tree, &prefix);
        if !self.may_write(secondary.tree, &prefix) {
            return Err(Stop::Blocked(Blocked::Row(name(), RowMode::Exclusive)));
        }
        let mut cursor = secondary.tree.cursor();
        let mut more = cursor.seek(Seek::AtLeast(&prefix))?;
        while more && cursor.key().starts_with(&prefix) {
            if &cursor.key()[prefix.len()..] != key {
                // Whether the entry is final depends on its writer. The copy of the cursor may be stale.
                let there = self
                    .transactions()
                    .read_settled(self.id(), || secondary.tree.get_into(cursor.key(), &mut Vec::new()))?;
                match there {
                    Err(writer) => {
                        return Err(Stop::Blocked(Blocked::Writer(writer, name(), RowMode::Exclusive)));
                    }
                    Ok(Some(header)) if !header.is_deleted() => {
                        if self.rules.gaps {
                            self.keep(target.clustered, &cursor.key()[prefix.len()..])?;
                        }
                        return Err(SchemaError::DuplicateKey(target.owner_of(secondary)).into());
                    }
                    Ok(_) => {}
                }
            }
            more = cursor.next()?;
        }
        Ok(())
    }

    /// Locks, in shared mode, a row of which this call does not hold the key latch.
    fn keep(&mut self, tree: &Tree, key: &[u8]) -> Result<(), Stop> {
        self.lock_row(tree, key, RowMode::Shared)?;
        // A transaction that is changing the row came first.
        match self.transactions().read_settled(self.id(), || tree.get_into(key, &mut Vec::new()))? {
            Ok(_) => Ok(()),
            Err(writer) => {
                let (lock_owner, row) = (self.lock_owner()?, name_of(tree, key));
                self.transactions().lock_manager.release_row(&lock_owner, &row);
                Err(Stop::Blocked(Blocked::Writer(writer, row, RowMode::Shared)))
            }
        }
    }

    /// Returns whether an insert finds a row that others have locked in shared mode: it is a duplicate, and the call
    /// need not wait for them.
    fn is_shared_duplicate(&self, tree: &Tree, key: &[u8], mode: Option<Mode>) -> Result<bool> {
        let (transactions, space) = (self.transactions(), tree.space().id());
        if mode != Some(Mode::Insert) || !transactions.lock_manager.may_share(self.known_id(), space, key) {
            return Ok(false);
        }
        let found = transactions.read_settled(self.id(), || tree.get_into(key, &mut Vec::new()))?;
        Ok(found.is_ok_and(is_live))
    }

    /// Returns whether no other transaction has locked the row or the index key.
    fn may_write(&self, tree: &Tree, key: &[u8]) -> bool {
        self.transactions().lock_manager.may_write(self.known_id(), tree.space().id(), key)
    }

    /// Checks that no other transaction has locked the gap into which a new entry goes.
    fn check_gap(&self, tree: &Tree, key: &[u8]) -> Result<(), Stop> {
        if self.transactions().lock_manager.may_insert(self.known_id(), tree.space().id(), key) {
            Ok(())
        } else {
            Err(Stop::Blocked(Blocked::Range(name_of(tree, key))))
        }
    }

    /// Returns the overflow chain of a long value, which is written unless it was before.
    fn chain_of<'t>(&mut self, target: &RowTarget<'t>, edit: &mut Edit<'_>) -> Result<OverflowRef>
    where
        'e: 't,
    {
        let space = target.clustered.space().id();
        match edit.chain {
            Some((written, chain)) if written == space => return Ok(chain),
            // A source that was read cannot be read again.
            Some(_) if edit.head.is_some() => return Err(Error::TableDropped(target.owner())),
            _ => {}
        }
        let chain = self.write_chain(target, edit)?;
        edit.chain = Some((space, chain));
        Ok(chain)
    }

    /// Writes a long value to an overflow chain.
    fn write_chain<'t>(&mut self, target: &RowTarget<'t>, edit: &mut Edit<'_>) -> Result<OverflowRef>
    where
        'e: 't,
    {
        let tree = target.clustered;
        let pool = tree.store();
        tree.ensure_root()?;
        let mut tail = self.tail(target.temporary)?;
        self.reserve(&mut tail, UndoRecord::OVERFLOW_LENGTH)?;
        let mut mtr = Mtr::begin(pool)?;
        let place = tail.prepare(&mut mtr, UndoRecord::OVERFLOW_LENGTH)?;
        let mut writer = tree.begin_overflow(&mut mtr, tail.position().0)?;
        let body = Body::Overflow { space: tree.space().id(), first: writer.first() };
        let previous = self.previous(&tail);
        let mut record = Vec::with_capacity(UndoRecord::OVERFLOW_LENGTH);
        UndoRecord { trx: self.id(), previous, body }.encode(&mut record);
        self.write_undo(&mut mtr, &mut tail, place, &record, target.clustered.space().id(), 0);
        mtr.commit()?;
        drop(tail);
        // Between pieces the thread may have to wait for log space: it holds only the key latch of the row.
        let transactions = self.transactions();
        let mut write = |chunk: &[u8]| {
            transactions.wait_for_room(target, chunk.len() as u64)?;
            writer.write(chunk)
        };
        for chunk in edit.known().unwrap_or_default().chunks(CHUNK) {
            write(chunk)?;
        }
        if let (Some((Value::Source { length, source }, _)), Some(head)) = (&mut edit.value, &edit.head) {
            let mut left = *length - head.len() as u64;
            let mut buffer = vec![0; CHUNK];
            while left > 0 {
                let chunk = &mut buffer[..usize::try_from(left).unwrap_or(CHUNK).min(CHUNK)];
                fill(*source, chunk)?;
                write(chunk)?;
                left -= chunk.len() as u64;
            }
        }
        Ok(writer.finish()?.0)
    }

    /// Changes the clustered entry and writes the undo record of the whole change. Returns the new version and the LSN.
    fn change_clustered<'t>(
        &mut self,
        target: &RowTarget<'t>,
        key: &[u8],
        new: Option<(&[u8], u16)>,
        mode: Option<Mode>,
        plan: &mut Plan<'_>,
        last: bool,
    ) -> Result<Option<(EntryHeader, Lsn)>, Stop>
    where
        'e: 't,
    {
        let tree = target.clustered;
        let touches: Vec<Touch> = plan.planned.iter().map(|planned| planned.touch.clone()).collect();
        let mut tail = self.tail(target.temporary)?;
        self.reserve(&mut tail, UndoRecord::row_bound(key.len(), tree.inline_limit(), &touches))?;
        let mut mtr = Mtr::begin(tree.store())?;
        let mut located = tree.seek_for_change(&mut mtr, key, new.map(|(stored, _)| stored.len()))?;
        let header = located.header();
        let is_settled =
            |trx| trx < self.transactions().active().oldest() || trx == plan.settled || trx == self.id();
        if let Some(header) = header
            && !(is_settled(header.trx) && (self.rules.strict.is_none() || header.trx == plan.settled))
        {
            // Whether its writer has ended is checked without a latch; then the entry is read again.
            drop((located, mtr, tail));
            if header.trx != self.id() && self.transactions().active().is_active(header.trx) {
                return Err(blocked_by(header.trx, tree, key));
            }
            self.check_unchanged(header, || target.owner())?;
            plan.settled = header.trx;
            return self.change_clustered(target, key, new, mode, plan, last);
        }
        let live = is_live(header);
        // A lock may have been taken since the check without a latch: a rollback of a version locks the row first. An
        // insert that finds a row writes nothing.
        let writes = !live || mode != Some(Mode::Insert);
        if writes && header.is_none_or(|header| header.trx != self.id()) && !self.may_write(tree, key) {
            drop((located, mtr, tail));
            return Err(Stop::Blocked(Blocked::Row(name_of(tree, key), RowMode::Exclusive)));
        }
        if !live && self.check_gap(tree, key).is_err() || !fits(mode, live) {
            drop((located, mtr, tail));
            return if self.is_wanted(target, key, mode, live)? {
                self.change_clustered(target, key, new, mode, plan, last)
            } else {
                Ok(None)
            };
        }
        let change = match (new, header) {
            (None, Some(header)) => RowChange::Delete { header },
            (Some(_), Some(header)) => {
                let mut value = Vec::new();
                located.value_into(&mtr, &mut value);
                RowChange::Update { header, value }
            }
            (_, None) => RowChange::Insert,
        };
        if let (RowChange::Update { value, .. }, Some((stored, _)), Durability::Logged) =
            (&change, new, target.durability())
            && value.len() > stored.len()
        {
            // Others may have used the freed space by the time of a rollback.
            let bytes = split_log_limit(tree.store().page_size());
            if !plan.is_way_back_promised && !self.try_reserve(bytes)? {
                // Log segments are created without a latch, so that no other thread waits for it.
                drop((located, mtr, tail));
                self.reserve_log(bytes)?;
                plan.is_way_back_promised = true;
                return self.change_clustered(target, key, new, mode, plan, last);
            }
            self.extend_rollback_space(bytes);
        }
        let body = Body::Row { space: tree.space().id(), key: key.to_vec(), change, touches };
        let mut record = Vec::new();
        let previous = self.previous(&tail);
        UndoRecord { trx: self.id(), previous, body }.encode(&mut record);
        let place = tail.prepare(&mut mtr, record.len())?;
        // The undo record names every touched entry: with many indexes or long keys that may be much.
        let stored = new.map_or(0, |(stored, _)| stored.len());
        let group = LOG_PER_ENTRY + key.len() + stored + record.len() + place.log_overhead();
        if target.durability() == Durability::Logged {
            mtr.check_may_log(group)?;
        }
        let version = EntryHeader::new(self.id(), tail.position());
        match (new, header) {
            (None, header) => {
                let flags = header.map_or(0, |header| header.flags) | EntryHeader::DELETED;
                located.set_header(&mut mtr, EntryHeader { flags, ..version });
            }
            (Some((stored, flags)), None) => {
                located.insert(&mut mtr, EntryHeader { flags, ..version }, stored);
            }
            (Some((stored, flags)), Some(_)) => {
                located.replace(&mut mtr, EntryHeader { flags, ..version }, stored);
            }
        }
        self.write_undo(
            &mut mtr,
            &mut tail,
            place,
            &record,
            target.clustered.space().id(),
            plan.planned.len(),
        );
        if last && plan.planned.is_empty() {
            self.log_end(&mut mtr);
        }
        debug_assert!(mtr.logged() <= group, "{} bytes of a group of {group}", mtr.logged());
        let end = mtr.commit()?;
        Ok(Some((version, end)))
    }

    fn change_secondary(&self, planned: &Planned<'_>, version: EntryHeader, last: bool) -> Result<Lsn, Stop> {
        let Planned { tree, touch } = planned;
        debug_assert!(tree.space().id() == touch.space, "undo names the tree that is changed");
        let mut mtr = Mtr::begin(tree.store())?;
        let room = if matches!(touch.done, Done::Marked(_)) { None } else { Some(0) };
        let mut located = tree.seek_for_change(&mut mtr, &touch.key, room)?;
        match (touch.done, located.header()) {
            (Done::Marked(_), Some(_)) => {
                located.set_header(&mut mtr, EntryHeader { flags: EntryHeader::DELETED, ..version });
            }
            (Done::Marked(_), None) => {
                let what = "a secondary entry has vanished while its row was locked".into();
                return Err(
                    CorruptError::Structure { owner: Owner::Unknown, space: touch.space, what }.into()
                );
            }
            (_, there) => {
                // Another transaction may have locked the range since it was checked.
                self.check_gap(tree, &touch.key)?;
                match there {
                    Some(_) => located.set_header(&mut mtr, version),
                    None => located.insert(&mut mtr, version, &[]),
                }
            }
        }
        if last {
            self.log_end(&mut mtr);
        }
        Ok(mtr.commit()?)
    }
}
