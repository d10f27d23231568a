//! Changes of rows.
//!
//! **Purpose.** Insert, put, update and delete of one row with the entries of all its trees, each call a transaction; and
//! the same steps for a transaction of many calls.
//!
//! **Invariants.** The row's lock is held from before the first look to the end of the transaction, and so is, for each
//! unique index, the lock of every index key that the row leaves or takes. So what was planned without a latch is what
//! is found under it: nobody else changes the row or its secondary entries, which carry the row's key, and purge
//! keeps away. Order of the work: lengths, locks, duplicates; the overflow chain; the clustered entry with the undo
//! record of it all; the secondary entries. Whatever fails rolls back what was done.
//!
//! Index keys are made of the first bytes of a value, at most [`INDEXED`], however long it is: so the change of a
//! long value needs no more memory than that of a short one.
//!
//! **May touch.** `tree`, `mtr`, `buffer`, `log` and what is below, the rest of this floor.

use std::io::Read;

use super::{
    Transactions,
    lock::{LockName, RowGuard},
    read, secondary,
    stream::Stream,
    trx::Trx,
    undo_record::{Body, Done, RowChange, Touch, UndoRecord},
};
use crate::{
    buffer::Durability,
    error::{CorruptError, Owner, Result, SchemaError, UsageError},
    ids::Lsn,
    log::OVERHEAD,
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    tree::{OverflowRef, Seek, log_of_room, overflow::VALUE_LIMIT},
};

/// Bytes read from a source at once.
const CHUNK: usize = 64 << 10;
/// How many of a value's first bytes index keys are made of.
pub const INDEXED: usize = 64 << 10;
/// Log for a change of a secondary entry, and for its way back, beside the key.
const LOG_A_TOUCH: u64 = 512;
/// Log for the change of a clustered entry beside its key and value and the undo record: the operation, the begin and the
/// end of the transaction.
const LOG_AN_ENTRY: usize = 256;

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

/// Makes the index keys of a row, one for each secondary tree, of its key and the first bytes of its value; `None` for an
/// index that the row is not in.
pub type KeysOf<'a> = dyn Fn(&[u8], &[u8]) -> Result<Vec<Option<Vec<u8>>>> + Sync + 'a;

/// Is told of a change of a row that is about to be made under the row's lock: the row's key, and the first bytes of its
/// value before and after; `None` when there is no such row.
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
    pub temporary: Option<&'a Stream>,
    /// Who wants to know of changes.
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

/// What a write expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// There is no such row.
    Insert,
    /// Either way.
    Put,
    /// There is one.
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
    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Source { length, .. } => *length,
        }
    }
}

/// The first bytes of a value, and where the others come from.
struct Pieces<'v> {
    head: Vec<u8>,
    inline: Option<&'v [u8]>,
    source: Option<(&'v mut dyn Read, u64)>,
}

fn fill(source: &mut dyn Read, out: &mut [u8]) -> Result<()> {
    source.read_exact(out).map_err(|error| {
        let what = format!("the value's source ended early or failed: {error}");
        UsageError::Other(what.into()).into()
    })
}

impl<'v> Pieces<'v> {
    fn new(value: Value<'v>) -> Result<Self> {
        match value {
            Value::Bytes(bytes) => Ok(Self { head: Vec::new(), inline: Some(bytes), source: None }),
            Value::Source { length, source } => {
                let mut head = vec![0; usize::try_from(length).unwrap_or(INDEXED).min(INDEXED)];
                fill(source, &mut head)?;
                let left = length - head.len() as u64;
                Ok(Self { head, inline: None, source: Some((source, left)) })
            }
        }
    }

    fn start(&self) -> &[u8] {
        let bytes = self.inline.unwrap_or(&self.head);
        &bytes[..bytes.len().min(INDEXED)]
    }
}

/// A secondary entry that is going to be put or marked.
struct Planned<'t> {
    tree: &'t Tree,
    touch: Touch,
}

/// What is going to be done to a row.
#[derive(Default)]
struct Plan<'t> {
    planned: Vec<Planned<'t>>,
    /// The log has promised what splits on the way back of a shorter value take.
    is_way_back_promised: bool,
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

/// Whether the change is to be made of a row that is there or is not; no mode is a delete.
fn is_wanted(target: &RowTarget<'_>, mode: Option<Mode>, live: bool) -> Result<bool> {
    match (mode, live) {
        (Some(Mode::Insert), true) => Err(SchemaError::DuplicateKey(target.owner()).into()),
        (Some(Mode::Update), false) => Err(SchemaError::NoRow(target.name.into()).into()),
        (None, live) => Ok(live),
        _ => Ok(true),
    }
}

fn is_live(header: Option<EntryHeader>) -> bool {
    header.is_some_and(|header| !header.is_deleted())
}

impl Transactions {
    /// Writes a row, as a transaction. Gives the LSN to wait for.
    ///
    /// # Errors
    /// [`SchemaError::DuplicateKey`], [`SchemaError::NoRow`], keys and values that are too long, a dropped table, damage,
    /// I/O. The row is unchanged then.
    pub fn write(&self, target: &RowTarget<'_>, key: &[u8], value: Value<'_>, mode: Mode) -> Result<Lsn> {
        self.wait_for_room(target, value.length())?;
        let mut row = self.lock_row(target, key)?;
        let mut trx = Trx::new(self);
        let end = trx.change(&mut row, target, key, Some((value, mode)), true)?;
        trx.committed();
        Ok(end.unwrap_or(Lsn::ZERO))
    }

    /// Deletes a row, as a transaction. Gives the LSN to wait for; `None` when there is no such row.
    ///
    /// # Errors
    /// A dropped table, damage, I/O. The row is unchanged then.
    pub fn delete(&self, target: &RowTarget<'_>, key: &[u8]) -> Result<Option<Lsn>> {
        self.wait_for_room(target, 0)?;
        let mut row = self.lock_row(target, key)?;
        let mut trx = Trx::new(self);
        let end = trx.change(&mut row, target, key, None, true)?;
        trx.committed();
        Ok(end)
    }

    /// Waits for the lock of a row.
    ///
    /// # Errors
    /// When it must not wait.
    pub fn lock_row(&self, target: &RowTarget<'_>, key: &[u8]) -> Result<RowGuard<'_>> {
        self.locks.lock_in_call(self.locks.name(target.clustered.space().id(), key))
    }

    /// Waits for room in the log for some bytes of a value, if they are going to be there.
    fn wait_for_room(&self, target: &RowTarget<'_>, value: u64) -> Result<()> {
        match target.durability() {
            Durability::Logged => {
                self.ground.pool.ground().log.wait_for_room(2 * value.min(CHUNK as u64) + OVERHEAD)
            }
            Durability::Temporary => Ok(()),
        }
    }
}

/// Log that a change takes beside splits and the pages of a long value, and its way back with it, at most. The value before
/// may be as long as any: it goes into the undo record, and back from there.
fn log_of(target: &RowTarget<'_>, key: &[u8], plan: &Plan<'_>) -> u64 {
    let row = key.len() + target.clustered.inline_limit();
    let touches = plan.planned.iter().map(|planned| 3 * planned.touch.key.len() as u64 + LOG_A_TOUCH);
    OVERHEAD + 4 * row as u64 + touches.sum::<u64>()
}

impl<'e> Trx<'e> {
    /// Changes a row whose lock is held: writes it, or deletes it. With `last` the transaction's end is logged with the
    /// last change, and [`Trx::committed`] must follow. Gives the LSN behind the change; `None` when there was no row to
    /// delete, and then nothing is logged.
    ///
    /// After an error the changes of this call may have been made in part: the transaction has to be rolled back.
    ///
    /// # Errors
    /// As [`Transactions::write`].
    pub fn change(
        &mut self,
        row: &mut RowGuard<'e>,
        target: &RowTarget<'e>,
        key: &[u8],
        new: Option<(Value<'_>, Mode)>,
        last: bool,
    ) -> Result<Option<Lsn>> {
        let tree = target.clustered;
        check_length(tree, key, || target.owner())?;
        let (value, mode) = match new {
            Some((value, mode)) => (Some(value), Some(mode)),
            None => (None, None),
        };
        let length = value.as_ref().map_or(0, Value::length);
        if length > VALUE_LIMIT {
            return Err(UsageError::ValueTooLong { owner: target.owner(), length, limit: VALUE_LIMIT }.into());
        }
        let long = length > tree.inline_limit() as u64;
        let pieces = value.map(Pieces::new).transpose()?;
        let mut plan = Plan::default();
        if long || !target.secondaries.is_empty() || target.watch.is_some() {
            let mut before = Vec::new();
            let header = read::get_indexed(tree, key, &mut before)?;
            if !is_wanted(target, mode, is_live(header))? {
                return Ok(None);
            }
            let before = is_live(header).then_some(&before[..]);
            let after = pieces.as_ref().map(Pieces::start);
            self.plan(row, target, key, before, after, &mut plan)?;
            if let Some(watch) = target.watch {
                watch(key, before, after);
            }
        }
        #[cfg(test)]
        self.floor().failpoint.pass()?;
        if target.durability() == Durability::Logged {
            self.promise(log_of(target, key, &plan))?;
        }
        let stored = match pieces {
            Some(pieces) if long => Some(self.write_chain(target, pieces)?.to_bytes().to_vec()),
            Some(Pieces { inline: Some(bytes), .. }) => Some(bytes.to_vec()),
            Some(Pieces { head, .. }) => Some(head),
            None => None,
        };
        #[cfg(test)]
        self.floor().failpoint.pass()?;
        let flags = if long { EntryHeader::OVERFLOW } else { 0 };
        let new = stored.as_deref().map(|stored| (stored, flags));
        let Some(version) = self.change_clustered(target, key, new, mode, &mut plan, last)? else {
            return Ok(None);
        };
        let (version, mut end) = version;
        let count = plan.planned.len();
        for (n, planned) in plan.planned.iter().enumerate() {
            #[cfg(test)]
            self.floor().failpoint.pass()?;
            end = self.change_secondary(planned, version, last && n + 1 == count)?;
        }
        Ok(Some(end))
    }

    /// Finds out which secondary entries have to change, and that they may.
    fn plan(
        &self,
        row: &mut RowGuard<'e>,
        target: &RowTarget<'e>,
        key: &[u8],
        before: Option<&[u8]>,
        after: Option<&[u8]>,
        plan: &mut Plan<'e>,
    ) -> Result<()> {
        let keys = |value: Option<&[u8]>| match value {
            Some(value) if !target.secondaries.is_empty() => (target.keys_of)(key, value),
            _ => Ok(Vec::new()),
        };
        let (old, new) = (keys(before)?, keys(after)?);
        let locks = self.floor().locks();
        let mut names: Vec<LockName> = Vec::new();
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
                // What is there is looked up once the locks are held.
                let done = if put { Done::Inserted } else { Done::Marked(EntryHeader::default()) };
                let touch = Touch { space, key: entry, done };
                plan.planned.push(Planned { tree: secondary.tree, touch });
            }
        }
        locks.lock_more(row, names)?;
        for (secondary, index_key) in taken {
            check_unique(target, secondary, index_key, key)?;
        }
        let mut value = Vec::new();
        for Planned { tree, touch } in &mut plan.planned {
            let header = tree.get_into(&touch.key, &mut value)?;
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

    /// Writes a long value to an overflow chain.
    fn write_chain(&mut self, target: &RowTarget<'e>, pieces: Pieces<'_>) -> Result<OverflowRef> {
        let tree = target.clustered;
        let pool = tree.store();
        tree.ensure_root()?;
        let mut tail = self.tail(target.temporary)?;
        tail.reserve(UndoRecord::OVERFLOW_LENGTH)?;
        let mut mtr = Mtr::begin(pool)?;
        let place = tail.prepare(&mut mtr, UndoRecord::OVERFLOW_LENGTH)?;
        let mut writer = tree.begin_overflow(&mut mtr, tail.position().0)?;
        let body = Body::Overflow { space: tree.space().id(), first: writer.first() };
        let previous = self.previous(target.durability());
        let mut record = Vec::with_capacity(UndoRecord::OVERFLOW_LENGTH);
        UndoRecord { trx: self.id(), previous, body }.encode(&mut record);
        self.write_undo(&mut mtr, &mut tail, place, &record);
        mtr.commit()?;
        drop(tail);
        // Between pieces the log may have to be waited for: a row's lock is all that is held.
        let floor = self.floor();
        let mut write = |chunk: &[u8]| {
            floor.wait_for_room(target, chunk.len() as u64)?;
            writer.write(chunk)
        };
        for chunk in pieces.inline.unwrap_or(&pieces.head).chunks(CHUNK) {
            write(chunk)?;
        }
        if let Some((source, mut left)) = pieces.source {
            let mut buffer = vec![0; CHUNK];
            while left > 0 {
                let chunk = &mut buffer[..usize::try_from(left).unwrap_or(CHUNK).min(CHUNK)];
                fill(source, chunk)?;
                write(chunk)?;
                left -= chunk.len() as u64;
            }
        }
        Ok(writer.finish()?.0)
    }

    /// Changes the clustered entry and writes the undo record of the whole change. Gives the new version and the LSN.
    fn change_clustered(
        &mut self,
        target: &RowTarget<'e>,
        key: &[u8],
        new: Option<(&[u8], u16)>,
        mode: Option<Mode>,
        plan: &mut Plan<'_>,
        last: bool,
    ) -> Result<Option<(EntryHeader, Lsn)>> {
        let tree = target.clustered;
        let touches: Vec<Touch> = plan.planned.iter().map(|planned| planned.touch.clone()).collect();
        let mut tail = self.tail(target.temporary)?;
        tail.reserve(UndoRecord::row_bound(key.len(), tree.inline_limit(), &touches))?;
        let mut mtr = Mtr::begin(tree.store())?;
        let mut located = tree.seek_for_change(&mut mtr, key, new.map(|(stored, _)| stored.len()))?;
        let header = located.header();
        if !is_wanted(target, mode, is_live(header))? {
            return Ok(None);
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
            // Others may have taken the room by the time it is taken back.
            let bytes = log_of_room(tree.store().page_size());
            if !plan.is_way_back_promised && !self.promise_at_hand(bytes)? {
                // Segments are made while nobody waits for a latch.
                drop((located, mtr, tail));
                self.promise(bytes)?;
                plan.is_way_back_promised = true;
                return self.change_clustered(target, key, new, mode, plan, last);
            }
        }
        let body = Body::Row { space: tree.space().id(), key: key.to_vec(), change, touches };
        let mut record = Vec::new();
        let previous = self.previous(target.durability());
        UndoRecord { trx: self.id(), previous, body }.encode(&mut record);
        let place = tail.prepare(&mut mtr, record.len())?;
        // The undo record names every entry that is touched: of a table with many indexes, or long keys, that may be much.
        let stored = new.map_or(0, |(stored, _)| stored.len());
        let group = LOG_AN_ENTRY + key.len() + stored + record.len() + place.log_beside();
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
        self.write_undo(&mut mtr, &mut tail, place, &record);
        if last && plan.planned.is_empty() {
            self.log_end(&mut mtr);
        }
        debug_assert!(mtr.logged() <= group, "{} bytes of a group of {group}", mtr.logged());
        let end = mtr.commit()?;
        Ok(Some((version, end)))
    }

    fn change_secondary(&self, planned: &Planned<'_>, version: EntryHeader, last: bool) -> Result<Lsn> {
        let Planned { tree, touch } = planned;
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
            (_, Some(_)) => located.set_header(&mut mtr, version),
            (_, None) => located.insert(&mut mtr, version, &[]),
        }
        if last {
            self.log_end(&mut mtr);
        }
        mtr.commit()
    }
}

/// Refuses an index key that a live entry of another row has. The index key's lock is held.
fn check_unique(
    target: &RowTarget<'_>,
    secondary: &Secondary<'_>,
    index_key: &[u8],
    key: &[u8],
) -> Result<()> {
    let prefix = secondary::prefix_of(index_key);
    let mut cursor = secondary.tree.cursor();
    let mut more = cursor.seek(Seek::AtLeast(&prefix))?;
    while more && cursor.key().starts_with(&prefix) {
        if is_live(cursor.header()) && &cursor.key()[prefix.len()..] != key {
            return Err(SchemaError::DuplicateKey(target.owner_of(secondary)).into());
        }
        more = cursor.next()?;
    }
    Ok(())
}
