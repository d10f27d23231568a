//! A database in memory, on one thread, that keeps the guarantees of the levels. It is used to test the checker. It
//! keeps the versions of each row, locks rows and gaps as `InnoDB` does, and lets calls wait. On request it has a
//! fault.

mod locks;
mod session;

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::client::{Answer, Call, Change, Key, Level, Lock, Refusal, Row, Rows, Value};
use locks::{Locks, Request};
pub(crate) use session::Session;

/// An error that a database might have, with some probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A read view also sees the transaction that commits next.
    ViewTooNew,
    /// A read view does not see the transaction that committed last.
    ViewTooOld,
    /// A later read has a read view of its own.
    ViewRenewed,
    /// A plain read sees uncommitted versions.
    DirtyRead,
    /// A plain read does not see its own transaction's writes.
    OwnWriteUnseen,
    /// Instead of an older version, a version of another key is read.
    OtherKeysVersion,
    /// A version older than the visible one is read, as from undo that was reused.
    VersionTooOld,
    /// Gaps are not locked.
    GapNotLocked,
    /// A locking read locks nothing.
    ReadNotLocked,
    /// The lock of a written row is released before its transaction ends.
    WriteLockReleasedEarly,
    /// A row that has changed since the snapshot is overwritten.
    ChangeOverlooked,
    /// A write is based on the version in the read view.
    WriteFromTheView,
    /// A rollback does not restore a row.
    AbortedWriteKept,
    /// A commit loses the change of a row.
    WriteLost,
    /// A row of a commit becomes visible later than its other rows.
    TornCommit,
    /// An append is done twice.
    AppendedTwice,
}

impl Fault {
    pub(crate) const ALL: [Self; 16] = [
        Self::ViewTooNew,
        Self::ViewTooOld,
        Self::ViewRenewed,
        Self::DirtyRead,
        Self::OwnWriteUnseen,
        Self::OtherKeysVersion,
        Self::VersionTooOld,
        Self::GapNotLocked,
        Self::ReadNotLocked,
        Self::WriteLockReleasedEarly,
        Self::ChangeOverlooked,
        Self::WriteFromTheView,
        Self::AbortedWriteKept,
        Self::WriteLost,
        Self::TornCommit,
        Self::AppendedTwice,
    ];
}

type TrxId = usize;
/// The number of commits: a read view sees the commits up to one number.
type Commits = u64;

enum State {
    Active,
    Committed(Commits),
    Aborted,
    /// The transaction was chosen as the victim of a deadlock, and its client has not been informed yet.
    Victim,
}

struct Trx {
    level: Level,
    state: State,
    snapshot: Option<Commits>,
    wrote: Vec<Key>,
}

struct Version {
    trx: TrxId,
    /// The number of commits by which it becomes visible later than its transaction.
    late: Commits,
    value: Option<Value>,
}

/// Why a call does not continue.
enum Stop {
    Wait,
    Refused(Refusal),
}

pub(crate) struct Database {
    /// The versions of each row, the newest last.
    rows: BTreeMap<Key, Vec<Version>>,
    transactions: Vec<Trx>,
    locks: Locks,
    commits: Commits,
    chance: StdRng,
    fault: Option<Fault>,
    /// Whether some commits get no answer.
    forgetful: bool,
}

impl Database {
    pub(crate) fn new(seed: u64, fault: Option<Fault>, forgetful: bool) -> Self {
        Self {
            rows: BTreeMap::new(),
            transactions: Vec::new(),
            locks: Locks::default(),
            commits: 0,
            chance: StdRng::seed_from_u64(seed),
            fault,
            forgetful,
        }
    }

    fn begin(&mut self, level: Level) -> TrxId {
        self.transactions.push(Trx { level, state: State::Active, snapshot: None, wrote: Vec::new() });
        self.transactions.len() - 1
    }

    /// Executes a call, or as much of it as is possible without waiting. The next attempt continues it.
    fn call(&mut self, trx: TrxId, call: &Call) -> Answer {
        let result = match *call {
            _ if matches!(self.transactions[trx].state, State::Victim) => {
                Err(Stop::Refused(Refusal::Deadlock))
            }
            Call::Begin(_) => unreachable!("a session begins its transactions itself"),
            Call::Pick(_) => unreachable!("its loads pick no rows"),
            Call::Commit => return self.commit(trx),
            Call::Rollback => {
                self.rollback(trx);
                return Answer::Done;
            }
            Call::Read(rows, lock) => self.read(trx, &rows, lock).map(Answer::Rows),
            Call::Put(key, item) => self.write(trx, key, |_| vec![item]).map(|()| Answer::Done),
            Call::Append(key, item) => {
                let times = if self.has(Fault::AppendedTwice) { 2 } else { 1 };
                let append = |mut value: Value| {
                    value.extend([item].repeat(times));
                    value
                };
                self.write(trx, key, append).map(|()| Answer::Done)
            }
            Call::Delete(key, _) => self.delete(trx, key),
            Call::Change(rows, change) => self.change(trx, &rows, change).map(|()| Answer::Done),
        };
        match result {
            Ok(answer) => answer,
            Err(Stop::Wait) => Answer::Waits,
            Err(Stop::Refused(why)) => {
                self.rollback(trx);
                Answer::Refused(why)
            }
        }
    }

    /// Returns whether this fault occurs now.
    fn has(&mut self, fault: Fault) -> bool {
        self.fault == Some(fault) && self.chance.random_ratio(1, 3)
    }

    fn commit(&mut self, trx: TrxId) -> Answer {
        let forgets = self.forgetful && self.chance.random_ratio(1, 20);
        if forgets && self.chance.random() {
            self.rollback(trx);
            return Answer::Unknown;
        }
        self.commits += 1;
        if self.has(Fault::WriteLost)
            && let Some(key) = self.transactions[trx].wrote.first()
        {
            self.rows.get_mut(key).expect("it was written").retain(|version| version.trx != trx);
        }
        if self.has(Fault::TornCommit)
            && let Some(key) = self.transactions[trx].wrote.first()
            && let Some(version) = self.rows.get_mut(key).and_then(|versions| versions.last_mut())
        {
            version.late = 2;
        }
        self.transactions[trx].state = State::Committed(self.commits);
        self.locks.release(trx);
        if forgets { Answer::Unknown } else { Answer::Done }
    }

    fn rollback(&mut self, trx: TrxId) {
        let wrote = core::mem::take(&mut self.transactions[trx].wrote);
        let stays = self.has(Fault::AbortedWriteKept);
        for key in &wrote[usize::from(stays).min(wrote.len())..] {
            self.rows.get_mut(key).expect("it was written").retain(|version| version.trx != trx);
        }
        self.transactions[trx].state = if stays { State::Committed(self.commits) } else { State::Aborted };
        self.locks.release(trx);
    }

    fn committed(&self, trx: TrxId) -> Option<Commits> {
        match self.transactions[trx].state {
            State::Committed(at) => Some(at),
            State::Active | State::Aborted | State::Victim => None,
        }
    }

    fn newest(&self, key: Key) -> Option<&Version> {
        self.rows.get(&key).and_then(|versions| versions.last())
    }

    fn read(&mut self, trx: TrxId, rows: &Rows, lock: Lock) -> Result<Vec<Row>, Stop> {
        let level = self.transactions[trx].level;
        let shared = lock == Lock::Shared || (lock == Lock::Plain && level == Level::Serializable);
        if (shared || lock == Lock::Exclusive) && !self.has(Fault::ReadNotLocked) {
            return self.lock_rows(trx, rows, !shared);
        }
        let view = self.view(trx);
        let found: Vec<Key> = self.rows.range(rows.first..=rows.last).map(|row| *row.0).collect();
        let mut seen = Vec::new();
        for key in found {
            if let Some(value) = self.version(trx, key, view)
                && rows.holds(&value)
            {
                seen.push((key, value));
            }
        }
        Ok(seen)
    }

    /// Returns the last commit that a plain read sees, or `None` if it sees uncommitted versions.
    fn view(&mut self, trx: TrxId) -> Option<Commits> {
        let level = self.transactions[trx].level;
        if self.has(Fault::DirtyRead) {
            return None;
        }
        let keeps = match level {
            Level::ReadUncommitted => return None,
            Level::ReadCommitted | Level::Serializable => false,
            Level::RepeatableRead | Level::Snapshot => !self.has(Fault::ViewRenewed),
        };
        if let Some(view) = self.transactions[trx].snapshot.filter(|_| keeps) {
            return Some(view);
        }
        let mut view = self.commits;
        if self.has(Fault::ViewTooNew) {
            view += 1;
        }
        if self.has(Fault::ViewTooOld) {
            view = view.saturating_sub(1);
        }
        if keeps {
            self.transactions[trx].snapshot = Some(view);
        }
        Some(view)
    }

    fn version(&mut self, trx: TrxId, key: Key, view: Option<Commits>) -> Option<Value> {
        let unseen = self.has(Fault::OwnWriteUnseen);
        let too_old = usize::from(self.has(Fault::VersionTooOld));
        let sees = |version: &&Version| {
            let is_own = version.trx == trx && !unseen;
            let is_old = |view| self.committed(version.trx).is_some_and(|at| at + version.late <= view);
            is_own || view.is_none_or(is_old)
        };
        let versions = self.rows.get(&key)?;
        let found = versions.iter().rposition(|version| sees(&version))?;
        let is_newest = found + 1 == versions.len();
        let at = if is_newest { found } else { found.saturating_sub(too_old) };
        let value = versions[at].value.clone();
        if !is_newest && self.has(Fault::OtherKeysVersion) {
            let other = self.rows.range(key + 1..).next();
            return other.and_then(|(_, versions)| versions.first()?.value.clone());
        }
        value
    }

    /// Locks the existing rows of a range, and the gaps between them where the level locks gaps. At the levels without
    /// gap locks, a row that does not match is released at once.
    fn lock_rows(&mut self, trx: TrxId, rows: &Rows, exclusive: bool) -> Result<Vec<Row>, Stop> {
        let Trx { level, snapshot, .. } = self.transactions[trx];
        let with_gaps = level >= Level::RepeatableRead && self.fault != Some(Fault::GapNotLocked);
        let concerns = |versions: &Vec<Version>| {
            versions.last().is_some_and(|newest| {
                let committed = self.committed(newest.trx);
                let strict = snapshot.filter(|_| level == Level::Snapshot);
                let changed = strict.is_some_and(|view| committed > Some(view));
                newest.value.is_some() || committed.is_none() || changed
            })
        };
        let range = self.rows.range(rows.first..=rows.last).filter(|row| concerns(row.1));
        let keys: Vec<Key> = range.map(|row| *row.0).collect();
        let mut found = Vec::new();
        for key in keys {
            if with_gaps {
                self.locks.add_gap(trx, rows.first, key);
            }
            let held = self.locks.holds(trx, key);
            self.lock(trx, Request { key, exclusive, insert: false })?;
            self.look_for_changes(trx, key)?;
            match self.newest(key).and_then(|version| version.value.clone()) {
                Some(value) if rows.holds(&value) => found.push((key, value)),
                _ if !held && level <= Level::ReadCommitted => self.locks.release_row(trx, key),
                _ => {}
            }
        }
        if with_gaps {
            self.locks.add_gap(trx, rows.first, rows.last);
        }
        Ok(found)
    }

    fn change(&mut self, trx: TrxId, rows: &Rows, change: Change) -> Result<(), Stop> {
        for (key, value) in self.lock_rows(trx, rows, true)? {
            let value = match change {
                Change::Set(number) => Some(vec![number]),
                Change::Add(number) => Some(vec![value[0] + number]),
                Change::Delete => None,
            };
            self.put(trx, key, value);
        }
        Ok(())
    }

    fn delete(&mut self, trx: TrxId, key: Key) -> Result<Answer, Stop> {
        let found = self.lock_rows(trx, &Rows::key(key), true)?;
        if found.is_empty() {
            return Ok(Answer::Rows(found));
        }
        self.put(trx, key, None);
        Ok(Answer::Done)
    }

    fn write(&mut self, trx: TrxId, key: Key, change: impl FnOnce(Value) -> Value) -> Result<(), Stop> {
        let exists = self.newest(key).is_some_and(|version| version.value.is_some());
        self.lock(trx, Request { key, exclusive: true, insert: !exists })?;
        self.look_for_changes(trx, key)?;
        let before = if let Some(view) = self.transactions[trx].snapshot
            && self.has(Fault::WriteFromTheView)
        {
            self.version(trx, key, Some(view))
        } else {
            self.newest(key).and_then(|version| version.value.clone())
        };
        self.put(trx, key, Some(change(before.unwrap_or_default())));
        if self.has(Fault::WriteLockReleasedEarly) {
            self.locks.release_row(trx, key);
        }
        Ok(())
    }

    fn put(&mut self, trx: TrxId, key: Key, value: Option<Value>) {
        let versions = self.rows.entry(key).or_default();
        match versions.last_mut() {
            Some(newest) if newest.trx == trx => newest.value = value,
            _ => {
                versions.push(Version { trx, late: 0, value });
                self.transactions[trx].wrote.push(key);
            }
        }
    }

    /// At the level with strict snapshots, a row that has changed since the snapshot is not locked.
    fn look_for_changes(&mut self, trx: TrxId, key: Key) -> Result<(), Stop> {
        let Trx { level, snapshot, .. } = self.transactions[trx];
        if let (Level::Snapshot, Some(view)) = (level, snapshot)
            && let Some(newest) = self.newest(key)
            && self.committed(newest.trx).is_some_and(|at| at > view)
            && !self.has(Fault::ChangeOverlooked)
        {
            return Err(Stop::Refused(Refusal::Changed));
        }
        Ok(())
    }

    /// Requests a lock, or waits for it. The victim of a deadlock is the transaction that has done least, and among
    /// equals the one that waited last.
    fn lock(&mut self, trx: TrxId, request: Request) -> Result<(), Stop> {
        while !self.locks.take(trx, request) {
            let circle = self.locks.cycle(trx);
            let done = |trx: &TrxId| self.transactions[*trx].wrote.len() + self.locks.count(*trx);
            // The first in the cycle is the one that waited last.
            let Some(victim) = circle.iter().copied().min_by_key(done) else { return Err(Stop::Wait) };
            if victim == trx {
                return Err(Stop::Refused(Refusal::Deadlock));
            }
            self.rollback(victim);
            self.transactions[victim].state = State::Victim;
        }
        Ok(())
    }
}
