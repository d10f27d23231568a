//! A transaction: its undo, its end, and the way back.
//!
//! **Purpose.** Whatever changes rows does it as a transaction: one call, or many, between which it is [`Suspended`]. It
//! gets its id when it first writes or locks something.
//!
//! **Invariants.** `TrxBegin` is logged in the group of the first undo record, `TrxEnd` in the group that makes the last
//! change, or in one of its own; a commit is no more than that. A transaction that is dropped without an end is rolled
//! back. The way back reads the records from the last to the first; each is taken back in mini-transactions that change an
//! entry only if it still carries this transaction and this undo position, and the last of them marks the record. So
//! it may be cut off and begun again at any point, and dropped tablespaces are passed over. Of a long value only the record
//! is marked: its pages are left to purge (`chains`). So the way back takes a few small groups of the log for each record,
//! which were promised before the change ([`Promise`]), needs no new undo and no new place on the disk; when even so it
//! fails, the database is poisoned. Between two calls of a transaction what the way back takes stays promised, up to a part
//! of the log: a longer one would hold as much log as it has undo, so it asks for it record by record. After a crash the
//! promises are gone. What they had made ready is there still, unless it was used up, and the way back asks for it record by
//! record: what it gets no log for stays for the next opening.
//!
//! What lies behind a savepoint is taken back in the same way, and the records stay in the chain: the next one leads to them, a
//! later rollback passes over what is marked, and purge finds what they have left. The rows stay locked.
//!
//! **May touch.** `buffer`, `mtr`, `log`, `tree` and what is below, the rest of this floor.

use smallvec::SmallVec;

use super::{
    Transactions,
    active::{Active, Ending, ReadView},
    locks::{Locker, RowName},
    stream::{Place, Stream, Tail},
    undo_record::{Body, Done, RowChange, Touch, UndoRecord},
};
use crate::{
    buffer::{self, BufferPool, Durability},
    error::{Error, Owner, Result, TransactionError},
    ids::{Lsn, SpaceId, TrxId, UndoPos},
    log::{Promise, Record},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{Arc, Bug, planted},
    tree::log_of_room,
};

/// Log that taking back an entry takes beside its value, but for splits.
const LOG_AN_ENTRY: u64 = 512;
/// Log that the end of a rollback takes, or the mark on a record.
const LOG_OF_END: u64 = 512;
/// What a checkpoint's record takes for a transaction, in bytes, and for how many more than there are it has room.
const LOG_OF_NAME: usize = 16;
const NAMES_KEPT: usize = 64;
/// The part of the log that may be promised to one transaction between its calls.
const STANDING: u64 = 16;

/// A transaction between two calls: what has to be known of it to go on, or to take it back.
#[derive(Debug, Default)]
pub struct Suspended {
    id: TrxId,
    /// The stream of its logged records, and the last of them; none yet.
    logged: Option<(u8, UndoPos)>,
    /// The same for the streams of temporary tables.
    temporary: SmallVec<[(Arc<Stream>, UndoPos); 1]>,
    /// Where it announces that it is about to log its end.
    ending: Option<Ending>,
    /// How many records it has written.
    records: u64,
    /// The log that taking all of them back takes.
    way_back: u64,
    /// What was promised of that, and stands.
    promised: u64,
    /// Its locks, once it has any.
    locker: Option<Arc<Locker>>,
}

impl Suspended {
    /// Its id; [`TrxId::NONE`] while it has neither written nor locked.
    pub fn id(&self) -> TrxId {
        self.id
    }

    /// How far it has come.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            logged: self.logged.map_or(UndoPos::NONE, |(_, last)| last),
            temporary: self.temporary.iter().map(|(_, last)| *last).collect(),
            records: self.records,
        }
    }
}

/// How far a transaction has come: what was done behind it can be taken back.
#[derive(Clone, Debug, Default)]
pub struct Savepoint {
    logged: UndoPos,
    temporary: SmallVec<[UndoPos; 1]>,
    records: u64,
}

impl Savepoint {
    /// Whether something was done between the other one and this.
    pub fn is_behind(&self, other: &Self) -> bool {
        self.records > other.records
    }
}

/// What a level of isolation asks of changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'v> {
    /// What was not there stays away until the transaction has ended.
    pub gaps: bool,
    /// What this view does not see is not replaced.
    pub strict: Option<&'v ReadView>,
}

/// Where somebody is who takes something back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Inside the gate of the table that it is of.
    Inside,
    /// Anywhere.
    Outside,
}

/// How it comes to the log that taking it back needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WayBack {
    /// It was promised before each change.
    Promised,
    /// It is asked for record by record, and waited for.
    Asks,
    /// It is asked for record by record, and nobody is there to be waited for.
    AsksAtOnce,
}

/// A transaction under way.
#[derive(Debug)]
pub struct Trx<'e> {
    floor: &'e Transactions,
    state: Suspended,
    ended: bool,
    way_back: WayBack,
    /// What its level asks of its changes.
    pub rules: Rules<'e>,
    /// Log for what this call does, and for the way back.
    promise: Option<Promise<'e>>,
}

impl<'e> Trx<'e> {
    /// A transaction that has written nothing yet.
    pub fn new(floor: &'e Transactions) -> Self {
        let state = Suspended::default();
        Self {
            floor,
            state,
            ended: false,
            rules: Rules::default(),
            way_back: WayBack::Promised,
            promise: None,
        }
    }

    /// Goes on with one.
    pub fn resume(floor: &'e Transactions, mut state: Suspended) -> Self {
        let bytes = core::mem::take(&mut state.promised);
        let way_back = if state.way_back <= bytes { WayBack::Promised } else { WayBack::Asks };
        let promise = (bytes > 0).then(|| floor.ground.pool.ground().log.take_up(bytes));
        Self { floor, state, ended: false, rules: Rules::default(), way_back, promise }
    }

    /// Leaves it standing, to be resumed. What was promised for its way back stays promised, unless it is too much.
    pub fn suspend(mut self) -> Suspended {
        self.ended = true;
        let mut state = core::mem::take(&mut self.state);
        let most = self.floor.ground.pool.ground().log.size() / STANDING;
        let kept = if state.way_back <= most { state.way_back } else { 0 };
        state.promised = self.promise.take().map_or(0, |promise| promise.leave(kept));
        state
    }

    /// One that recovery has found unfinished, with its last record, if it has any.
    pub(super) fn found(floor: &'e Transactions, id: TrxId, last: UndoPos) -> Self {
        let logged = (last != UndoPos::NONE).then(|| (Stream::number_of(last), last));
        let state = Suspended { id, logged, ending: floor.active.ending(id), ..Suspended::default() };
        Self {
            floor,
            state,
            ended: false,
            rules: Rules::default(),
            way_back: WayBack::AsksAtOnce,
            promise: None,
        }
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

    /// Its id; [`TrxId::NONE`] while it has neither written nor locked.
    pub fn id(&self) -> TrxId {
        self.state.id
    }

    /// Its id, if it has one.
    pub(super) fn known_id(&self) -> Option<TrxId> {
        Some(self.state.id).filter(|id| *id != TrxId::NONE)
    }

    /// Refuses to replace a version that a strict view does not see.
    pub(super) fn check_unchanged(&self, header: EntryHeader, owner: impl FnOnce() -> Owner) -> Result<()> {
        match self.rules.strict {
            Some(view) if header.trx != self.state.id && !view.sees(header.trx) => {
                Err(TransactionError::Changed(owner()).into())
            }
            _ => Ok(()),
        }
    }

    /// Its id, which it gets now if it has none.
    ///
    /// # Errors
    /// When the log takes no more.
    pub fn ensure_id(&mut self) -> Result<TrxId> {
        if self.state.id == TrxId::NONE {
            let (id, ending) = self.floor.active.begin(&self.floor.ids)?;
            (self.state.id, self.state.ending) = (id, Some(ending));
        }
        Ok(self.state.id)
    }

    /// Its locks.
    ///
    /// # Errors
    /// As [`Trx::ensure_id`].
    pub fn locker(&mut self) -> Result<Arc<Locker>> {
        if let Some(locker) = &self.state.locker {
            return Ok(locker.clone());
        }
        let id = self.ensure_id()?;
        let locker = self.floor.active.locker(id, &self.floor.row_locks).expect("it is active until it ends");
        locker.add_weight(self.state.records);
        self.state.locker = Some(locker.clone());
        Ok(locker)
    }

    /// Its locks, if it has asked for any.
    pub(super) fn locker_if_any(&self) -> Option<&Locker> {
        self.state.locker.as_deref()
    }

    /// The right to append undo records: to the stream of temporary tables if one is given, else to a logged one. The
    /// caller holds no latch.
    ///
    /// # Errors
    /// When the log takes no more.
    pub fn tail<'t>(&mut self, temporary: Option<&'t Arc<Stream>>) -> Result<Tail<'t>>
    where
        'e: 't,
    {
        let floor = self.floor;
        if let Some(stream) = temporary {
            if !self.state.temporary.iter().any(|(known, _)| Arc::ptr_eq(known, stream)) {
                self.state.temporary.push((stream.clone(), UndoPos::NONE));
            }
            self.ensure_id()?;
            return Ok(stream.lock());
        }
        let (number, _) =
            *self.state.logged.get_or_insert_with(|| (floor.streams.pick().number(), UndoPos::NONE));
        let tail = floor.streams.get(number.into()).lock();
        self.ensure_id()?;
        Ok(tail)
    }

    /// Makes sure that a record of up to so many bytes has slices to lie in, and a checkpoint knows where it is going to lie,
    /// if it is the first. The caller holds no latch.
    ///
    /// # Errors
    /// I/O, a full disk; more transactions than a checkpoint can name.
    pub fn reserve(&self, tail: &mut Tail<'_>, bytes: usize) -> Result<()> {
        tail.reserve(bytes)?;
        if tail.durability() == Durability::Logged && self.previous(tail) == UndoPos::NONE {
            let most = self.floor.ground.pool.ground().log.max_group() / LOG_OF_NAME - NAMES_KEPT;
            self.floor.active.note_first(self.state.id, tail.position(), most)?;
        }
        Ok(())
    }

    /// The record before the next one in the stream that [`Trx::tail`] gave the end of.
    pub fn previous(&self, tail: &Tail<'_>) -> UndoPos {
        match tail.durability() {
            Durability::Logged => self.state.logged.map_or(UndoPos::NONE, |(_, last)| last),
            Durability::Temporary => {
                let known = self.state.temporary.iter().find(|(stream, _)| tail.is_of(stream));
                known.map_or(UndoPos::NONE, |(_, last)| *last)
            }
        }
    }

    /// Writes an undo record into its place, in the mini-transaction that makes the change.
    ///
    /// `entries` are the secondary ones that it names.
    pub fn write_undo(
        &mut self,
        mtr: &mut Mtr<'_>,
        tail: &mut Tail<'_>,
        place: Place,
        record: &[u8],
        entries: usize,
    ) {
        let pos = tail.write(mtr, place, record);
        let last = match tail.durability() {
            Durability::Logged => self.state.logged.as_mut().map(|(_, last)| last),
            Durability::Temporary => {
                let mut known = self.state.temporary.iter_mut();
                known.find(|(stream, _)| tail.is_of(stream)).map(|(_, last)| last)
            }
        };
        let last = last.expect("the tail was given by this transaction");
        if *last == UndoPos::NONE && tail.durability() == Durability::Logged {
            mtr.record(&Record::TrxBegin { trx: self.state.id, first: pos });
        }
        *last = pos;
        if tail.durability() == Durability::Logged {
            let end = if self.state.way_back == 0 { LOG_OF_END } else { 0 };
            self.state.way_back +=
                end + LOG_OF_END + LOG_AN_ENTRY * (1 + entries as u64) + record.len() as u64;
        }
        self.state.records += 1;
    }

    /// The way back takes so much more, and it was promised.
    pub(super) fn lengthen_way_back(&mut self, bytes: u64) {
        self.state.way_back += bytes;
    }

    /// Its logged stream and the last record there, if it has written one.
    fn logged(&self) -> Option<(&'e Stream, UndoPos)> {
        let (number, last) = self.state.logged.filter(|(_, last)| *last != UndoPos::NONE)?;
        Some((self.floor.streams.get(number.into()), last))
    }

    /// Logs the end in the mini-transaction that makes the last change. [`Trx::end`] follows its commit.
    pub fn log_end(&self, mtr: &mut Mtr<'_>) {
        if let Some((stream, _)) = self.logged() {
            if let Some(ending) = &self.state.ending {
                ending.announce(self.floor.ground.pool.ground().log.end());
            }
            mtr.record(&Record::TrxEnd { trx: self.state.id, stream: stream.number() });
        }
    }

    /// Commits. Gives the LSN to wait for; [`Lsn::ZERO`] when nothing was logged.
    ///
    /// # Errors
    /// When the log takes no more; the database is poisoned then.
    pub fn commit(mut self) -> Result<Lsn> {
        let end = match self.logged() {
            Some(_) => {
                let _room = room(self.floor, self.way_back, LOG_OF_END)?;
                self.end_on_its_own()?
            }
            None => Lsn::ZERO,
        };
        self.end();
        Ok(end)
    }

    fn end_on_its_own(&self) -> Result<Lsn> {
        if self.logged().is_none() {
            return Ok(Lsn::ZERO);
        }
        let mut mtr = Mtr::begin(&self.floor.ground.pool)?;
        self.log_end(&mut mtr);
        mtr.commit()
    }

    /// It has logged its end, if it had to.
    pub(super) fn end(&mut self) {
        self.ended = true;
        if self.state.id == TrxId::NONE {
            return;
        }
        let (left_behind, locker) = self.floor.active.end(self.state.id, &self.floor.ids);
        // Who waited for it looks whether it has ended.
        if let Some(locker) = locker {
            self.floor.row_locks.end(&locker);
        }
        if left_behind {
            let id = self.state.id;
            if let Some((stream, last)) = self.logged() {
                stream.purge.come_back(id, last);
            }
            for (stream, last) in &self.state.temporary {
                stream.purge.come_back(id, *last);
            }
            self.floor.ground.purge_wake.notify();
        }
    }

    /// Takes everything back. Gives the LSN behind it.
    ///
    /// # Errors
    /// What keeps it from that; the database is poisoned then.
    pub fn rollback(mut self) -> Result<Lsn> {
        self.take_back(Gate::Outside)
    }

    pub(super) fn take_back(&mut self, gate: Gate) -> Result<Lsn> {
        let done = buffer::on_kept_frames(|| self.take_all_back(gate));
        let done = done.map_err(|error| self.stopped(error));
        self.end();
        done
    }

    /// What cannot be taken back stops the database.
    fn stopped(&self, error: Error) -> Error {
        match error {
            Error::Poisoned(_) | Error::Closed => error,
            error => {
                let what = format!("transaction {} could not be rolled back: {error}", self.state.id);
                self.floor.ground.pool.ground().health.poison(&what)
            }
        }
    }

    /// How far it has come.
    pub fn savepoint(&self) -> Savepoint {
        self.state.savepoint()
    }

    /// Takes back what was done behind a savepoint. The rows stay locked.
    ///
    /// # Errors
    /// What keeps it from that; the database is poisoned then.
    pub fn roll_back_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        self.take_back_to(savepoint, Gate::Outside)
    }

    /// The same for what a call has done that is still inside its gate.
    pub(super) fn take_back_call(&mut self, savepoint: &Savepoint) -> Result<()> {
        self.take_back_to(savepoint, Gate::Inside)
    }

    fn take_back_to(&mut self, savepoint: &Savepoint, gate: Gate) -> Result<()> {
        if savepoint.records == self.state.records {
            return Ok(());
        }
        let locker = self.locker()?;
        let keep = |space: SpaceId, key: &[u8]| {
            self.floor.row_locks.make_explicit(&locker, RowName { space, key: key.into() });
        };
        let done = buffer::on_kept_frames(|| self.take_back_behind(savepoint, gate, &keep));
        done.map_err(|error| self.stopped(error))
    }

    /// Takes everything back that recovery has found, whose promises are gone: it asks for log record by record, from what
    /// is kept for work that makes room.
    ///
    /// # Errors
    /// What keeps it from that; what is left is taken back at the next opening.
    pub(super) fn rollback_again(mut self) -> Result<Lsn> {
        let done = buffer::on_kept_frames(|| self.take_all_back(Gate::Outside));
        if done.is_ok() {
            self.end();
        }
        self.ended = true;
        done
    }

    fn take_all_back(&self, gate: Gate) -> Result<Lsn> {
        self.take_back_behind(&Savepoint::default(), gate, &|_, _| {})?;
        if self.logged().is_none() {
            return Ok(Lsn::ZERO);
        }
        let _room = room(self.floor, self.way_back, LOG_OF_END)?;
        self.end_on_its_own()
    }

    /// Takes back what lies behind a savepoint, the last first. `keep` is told of each row before it is taken back. The
    /// records stay in the chain of the transaction: purge comes by for what they have left.
    fn take_back_behind(
        &self,
        savepoint: &Savepoint,
        gate: Gate,
        keep: &dyn Fn(SpaceId, &[u8]),
    ) -> Result<()> {
        let behind = (0..).zip(&self.state.temporary).map(|(n, (stream, last))| {
            (&**stream, *last, savepoint.temporary.get(n).copied().unwrap_or_default())
        });
        let logged = self.logged().map(|(stream, last)| (stream, last, savepoint.logged));
        for (stream, last, first) in behind.chain(logged) {
            let mut pos = last;
            while pos != first && pos != UndoPos::NONE {
                match self.take_back_one(stream, pos, gate, keep) {
                    Ok(previous) => pos = previous,
                    // The session of these tables has ended, and they with it.
                    Err(Error::TableDropped(_)) if stream.durability() == Durability::Temporary => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Takes one record back, if it is there and was not taken back before. Gives the one before it.
    fn take_back_one(
        &self,
        stream: &Stream,
        pos: UndoPos,
        gate: Gate,
        keep: &dyn Fn(SpaceId, &[u8]),
    ) -> Result<UndoPos> {
        let at = Stream::byte_of(pos);
        let Some(stored) = stream.record(at)? else { return Ok(UndoPos::NONE) };
        let record = stream.decode(at, &stored)?;
        if stored.taken_back {
            return Ok(record.previous);
        }
        let _moving = (gate == Gate::Outside).then(|| self.floor.rollbacks.read());
        if let Body::Row { space, key, .. } = &record.body {
            keep(*space, key);
        }
        let asks = self.way_back != WayBack::Promised && stream.durability() == Durability::Logged;
        let bytes = if asks { log_for(self.floor, &record)? } else { 0 };
        let _room = if asks { room(self.floor, self.way_back, bytes)? } else { None };
        take_back(self.floor, stream, at, &record)?;
        Ok(record.previous)
    }
}

impl Drop for Trx<'_> {
    fn drop(&mut self) {
        if !self.ended && self.take_back(Gate::Outside).is_err() {
            // The database is poisoned, and everybody will be told.
            self.ended = true;
        }
    }
}

/// A promise of so much log, unless it was promised already.
fn room(floor: &Transactions, way_back: WayBack, bytes: u64) -> Result<Option<Promise<'_>>> {
    let log = &floor.ground.pool.ground().log;
    match way_back {
        WayBack::Promised => Ok(None),
        // Where there is no room to wait for, there may be what is kept for work that makes some.
        WayBack::Asks => log.admit(bytes).or_else(|_| log.admit_drop(bytes)).map(Some),
        WayBack::AsksAtOnce => log.admit_drop(bytes).map(Some),
    }
}

/// Log for the taking back of a record, in bytes.
fn log_for(floor: &Transactions, record: &UndoRecord) -> Result<u64> {
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
    Ok(bytes)
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
