//! A transaction: its undo, its end, and the way back.
//!
//! **Purpose.** Whatever changes rows does it as a transaction: today one call, its records few; the same object carries
//! many calls. It gets its id when it first writes.
//!
//! **Invariants.** `TrxBegin` is logged in the group of the first undo record, `TrxEnd` in the group that makes the last
//! change, or in one of its own; a commit is no more than that. A transaction that is dropped without an end is rolled
//! back. The way back reads the records from the last to the first; each is taken back in mini-transactions that change an
//! entry only if it still carries this transaction and this undo position, and the last of them marks the record. So
//! it may be cut off and begun again at any point, and dropped tablespaces are passed over. Of a long value only the record
//! is marked: its pages are left to purge (`chains`). So the way back takes a few small groups of the log for each record,
//! which were promised before the change ([`Promise`]), needs no new undo and no new place on the disk; when even so it
//! fails, the database is poisoned. After a crash the promises are gone. What they had made ready is there still, unless it
//! was used up, and the way back asks for it record by record: what it gets no log for stays for the next opening.
//!
//! **May touch.** `buffer`, `mtr`, `log`, `tree` and what is below, the rest of this floor.

use super::{
    Transactions,
    active::{Active, Ending},
    stream::{Place, Stream, Tail},
    undo_record::{Body, Done, RowChange, Touch, UndoRecord},
};
use crate::{
    buffer::{self, BufferPool, Durability},
    error::{Error, Result},
    ids::{Lsn, SpaceId, TrxId, UndoPos},
    log::{Promise, Record},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{Bug, planted},
    tree::log_of_room,
};

/// Log that taking back an entry takes beside its value, but for splits.
const LOG_AN_ENTRY: u64 = 512;
/// Log that the end of a rollback takes, or the mark on a record.
const LOG_OF_END: u64 = 512;

/// A transaction's records in one stream.
#[derive(Clone, Copy, Debug)]
struct Chain<'e> {
    stream: &'e Stream,
    /// The last record; none yet.
    last: UndoPos,
}

/// A transaction under way.
#[derive(Debug)]
pub struct Trx<'e> {
    floor: &'e Transactions,
    id: TrxId,
    logged: Option<Chain<'e>>,
    temporary: Option<Chain<'e>>,
    /// Where it announces that it is about to log its end.
    ending: Option<Ending>,
    ended: bool,
    /// Log for what it does, and for the way back.
    promise: Option<Promise<'e>>,
}

impl<'e> Trx<'e> {
    /// A transaction that has written nothing yet.
    pub fn new(floor: &'e Transactions) -> Self {
        Self {
            floor,
            id: TrxId::NONE,
            logged: None,
            temporary: None,
            ending: None,
            ended: false,
            promise: None,
        }
    }

    /// One that recovery has found unfinished, with its last record.
    pub(super) fn resume(floor: &'e Transactions, id: TrxId, stream: &'e Stream, last: UndoPos) -> Self {
        let ending = floor.active.ending(id);
        let logged = Some(Chain { stream, last });
        Self { floor, id, logged, temporary: None, ending, ended: false, promise: None }
    }

    pub(super) fn floor(&self) -> &'e Transactions {
        self.floor
    }

    /// Makes sure of log for a change and its way back, before the change. It is kept until the transaction has ended.
    ///
    /// # Errors
    /// A full disk, or another failure to make room.
    pub(super) fn promise(&mut self, bytes: u64) -> Result<()> {
        if let Some(promise) = &mut self.promise {
            return promise.extend(bytes);
        }
        self.promise = Some(self.floor.ground.pool.ground().log.promise(bytes)?);
        Ok(())
    }

    /// As [`Trx::promise`], for who holds a latch: no segment is made for it. Says whether it is promised.
    pub(super) fn promise_at_hand(&mut self, bytes: u64) -> Result<bool> {
        let Some(more) = self.floor.ground.pool.ground().log.promise_at_hand(bytes)? else {
            return Ok(false);
        };
        match &mut self.promise {
            Some(promise) => promise.join(more),
            None => self.promise = Some(more),
        }
        Ok(true)
    }

    /// Its id; [`TrxId::NONE`] before it writes.
    pub fn id(&self) -> TrxId {
        self.id
    }

    /// The right to append undo records: to the stream of temporary tables if one is given, else to a logged one. The
    /// caller holds no latch.
    ///
    /// # Errors
    /// When the log takes no more.
    pub fn tail(&mut self, temporary: Option<&'e Stream>) -> Result<Tail<'e>> {
        let floor = self.floor;
        let chain = if temporary.is_some() { &mut self.temporary } else { &mut self.logged };
        let chain = chain.get_or_insert_with(|| {
            let stream = temporary.unwrap_or_else(|| floor.streams.pick());
            Chain { stream, last: UndoPos::NONE }
        });
        let tail = chain.stream.lock();
        if chain.last == UndoPos::NONE {
            let first = if temporary.is_some() { UndoPos::NONE } else { tail.position() };
            if self.id == TrxId::NONE {
                let (id, ending) = floor.active.begin(&floor.ids, first)?;
                (self.id, self.ending) = (id, Some(ending));
            } else if first != UndoPos::NONE {
                floor.active.note_first(self.id, first);
            }
        }
        Ok(tail)
    }

    /// The record before the next one of the stream that [`Trx::tail`] gave.
    pub fn previous(&self, durability: Durability) -> UndoPos {
        self.chain(durability).map_or(UndoPos::NONE, |chain| chain.last)
    }

    fn chain(&self, durability: Durability) -> Option<&Chain<'e>> {
        match durability {
            Durability::Logged => self.logged.as_ref(),
            Durability::Temporary => self.temporary.as_ref(),
        }
    }

    /// Writes an undo record into its place, in the mini-transaction that makes the change.
    pub fn write_undo(&mut self, mtr: &mut Mtr<'_>, tail: &mut Tail<'_>, place: Place, record: &[u8]) {
        let pos = tail.write(mtr, place, record);
        let chain = match tail.durability() {
            Durability::Logged => &mut self.logged,
            Durability::Temporary => &mut self.temporary,
        };
        let chain = chain.as_mut().expect("the tail was given by this transaction");
        if chain.last == UndoPos::NONE && tail.durability() == Durability::Logged {
            mtr.record(&Record::TrxBegin { trx: self.id, first: pos });
        }
        chain.last = pos;
    }

    /// Logs the end in the mini-transaction that makes the last change. [`Trx::committed`] follows its commit.
    pub fn log_end(&self, mtr: &mut Mtr<'_>) {
        if let Some(chain) = self.logged.filter(|chain| chain.last != UndoPos::NONE) {
            if let Some(ending) = &self.ending {
                ending.announce(self.floor.ground.pool.ground().log.end());
            }
            mtr.record(&Record::TrxEnd { trx: self.id, stream: chain.stream.number() });
        }
    }

    /// The mini-transaction with the logged end was committed.
    pub fn committed(mut self) {
        self.end();
    }

    /// Commits. Gives the LSN to wait for; [`Lsn::ZERO`] when nothing was logged.
    ///
    /// # Errors
    /// When the log takes no more; the database is poisoned then.
    pub fn commit(mut self) -> Result<Lsn> {
        let end = self.end_on_its_own()?;
        self.end();
        Ok(end)
    }

    fn end_on_its_own(&self) -> Result<Lsn> {
        if self.logged.is_none_or(|chain| chain.last == UndoPos::NONE) {
            return Ok(Lsn::ZERO);
        }
        let mut mtr = Mtr::begin(&self.floor.ground.pool)?;
        self.log_end(&mut mtr);
        mtr.commit()
    }

    fn end(&mut self) {
        self.ended = true;
        if self.id == TrxId::NONE {
            return;
        }
        if self.floor.active.end(self.id) {
            for chain in [self.logged, self.temporary].into_iter().flatten() {
                chain.stream.purge.come_back(self.id, chain.last);
            }
            self.floor.ground.purge_wake.notify();
        }
    }

    /// Takes everything back. Gives the LSN behind it.
    ///
    /// # Errors
    /// What keeps it from that; the database is poisoned then.
    pub fn rollback(mut self) -> Result<Lsn> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<Lsn> {
        let done = buffer::on_kept_frames(|| self.try_take_back(false)).map_err(|error| match error {
            Error::Poisoned(_) => error,
            error => {
                let what = format!("transaction {} could not be rolled back: {error}", self.id);
                self.floor.ground.pool.ground().health.poison(&what)
            }
        });
        self.end();
        done
    }

    /// Takes everything back that recovery has found, whose promises are gone: it asks for log record by record, from what
    /// is kept for work that makes room.
    ///
    /// # Errors
    /// What keeps it from that; what is left is taken back at the next opening.
    pub(super) fn rollback_again(mut self) -> Result<Lsn> {
        let done = buffer::on_kept_frames(|| self.try_take_back(true));
        if done.is_ok() {
            self.end();
        }
        self.ended = true;
        done
    }

    fn try_take_back(&mut self, asks: bool) -> Result<Lsn> {
        for chain in [self.temporary, self.logged].into_iter().flatten() {
            let mut pos = chain.last;
            while pos != UndoPos::NONE {
                let at = Stream::byte_of(pos);
                let Some(stored) = chain.stream.record(at)? else { break };
                let record = chain.stream.decode(at, &stored)?;
                pos = record.previous;
                if !stored.taken_back {
                    let _room = asks.then(|| room_for(self.floor, &record)).transpose()?;
                    take_back(self.floor, chain.stream, at, &record)?;
                }
            }
        }
        let _room = asks.then(|| self.floor.ground.pool.ground().log.admit_drop(LOG_OF_END)).transpose()?;
        self.end_on_its_own()
    }
}

impl Drop for Trx<'_> {
    fn drop(&mut self) {
        if !self.ended && self.take_back().is_err() {
            // The database is poisoned, and everybody will be told.
            self.ended = true;
        }
    }
}

/// Log for the taking back of a record.
fn room_for<'e>(floor: &'e Transactions, record: &UndoRecord) -> Result<Promise<'e>> {
    let mut bytes = LOG_OF_END;
    if let Body::Row { space, key, change, touches } = &record.body {
        bytes += LOG_AN_ENTRY * (1 + touches.len() as u64);
        if let RowChange::Update { value, .. } = change {
            bytes += (key.len() + value.len()) as u64;
            let mut now = Vec::new();
            if let Some(tree) = floor.tree(*space)
                && unless_dropped(tree.get_into(key, &mut now).map(|header| header.is_some()))?
                && now.len() < value.len()
            {
                // Others may have taken the room.
                bytes += log_of_room(floor.ground.pool.page_size());
            }
        }
    }
    floor.ground.pool.ground().log.admit_drop(bytes)
}

/// Takes one record back.
fn take_back(floor: &Transactions, stream: &Stream, at: u64, record: &UndoRecord) -> Result<()> {
    let version = EntryHeader::new(record.trx, stream.undo_pos(at));
    let pool = &floor.ground.pool;
    match &record.body {
        Body::Row { space, key, change, touches } => {
            let entries = if planted(Bug::EntriesNotTakenBack) { &[][..] } else { touches };
            for touch in entries.iter().rev() {
                if let Some(tree) = floor.tree(touch.space) {
                    unless_dropped(take_back_touch(&tree, version, touch))?;
                }
            }
            let done = match floor.tree(*space).map(Tree::promised) {
                Some(tree) => unless_dropped(take_back_row(&tree, version, key, change, stream, at))?,
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

/// A tablespace that was dropped meanwhile needs nothing taken back.
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

/// Whether an entry still carries the version.
pub(super) fn carries(header: Option<EntryHeader>, version: EntryHeader) -> bool {
    header.is_some_and(|header| header.trx == version.trx && header.undo == version.undo)
}

/// Merges the leaf of a key with a neighbour, if that can be done. What the tree holds does not depend on it: a page that
/// cannot be read is the trouble of whoever needs it.
pub(super) fn merge(tree: &Tree, key: &[u8]) {
    if let Err(error) = tree.maintain(key) {
        tracing::warn!(%error, "a leaf that holds little could not be merged");
    }
}

fn take_back_touch(tree: &Tree, version: EntryHeader, touch: &Touch) -> Result<bool> {
    let mut mtr = Mtr::begin(tree.store())?;
    let mut located = tree.seek_for_change(&mut mtr, &touch.key, None)?;
    if !carries(located.header(), version) {
        return Ok(true);
    }
    let small = match touch.done {
        Done::Inserted => located.remove(&mut mtr),
        Done::Revived(before) | Done::Marked(before) => {
            located.set_header(&mut mtr, before);
            false
        }
    };
    mtr.commit()?;
    if small {
        merge(tree, &touch.key);
    }
    Ok(true)
}

/// Takes the clustered entry back and marks the record, in one mini-transaction.
fn take_back_row(
    tree: &Tree,
    version: EntryHeader,
    key: &[u8],
    change: &RowChange,
    stream: &Stream,
    at: u64,
) -> Result<bool> {
    let room = match change {
        RowChange::Update { value, .. } => Some(value.len()),
        RowChange::Insert | RowChange::Delete { .. } => None,
    };
    let mut mtr = Mtr::begin(tree.store())?;
    let mut located = tree.seek_for_change(&mut mtr, key, room)?;
    let (slot, op) = stream.latch_mark(&mut mtr, at)?;
    let mut small = false;
    if carries(located.header(), version) {
        match change {
            RowChange::Insert => small = located.remove(&mut mtr),
            RowChange::Update { header, value } => located.replace(&mut mtr, *header, value),
            RowChange::Delete { header } => located.set_header(&mut mtr, *header),
        }
    }
    mtr.apply(slot, &op);
    mtr.commit()?;
    if small {
        merge(tree, key);
    }
    Ok(true)
}

impl Transactions {
    /// The tree in a tablespace, unless it was dropped.
    pub(super) fn tree(&self, space: SpaceId) -> Option<Tree> {
        let space = self.ground.pool.space(space).filter(|space| !space.is_dropped())?;
        Some(Tree::new(self.ground.pool.clone(), space, self.no_hash.clone()))
    }

    /// The transactions that have begun and not ended.
    pub fn active(&self) -> &Active {
        &self.active
    }
}
