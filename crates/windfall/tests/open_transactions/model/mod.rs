//! The model of the histories: tables with all versions of their rows, transactions with their read views, and the
//! locks of each transaction.
//!
//! The model predicts the possible outcomes of each call ([`Verdict`]) from the rules of the levels and of the locks,
//! without asking the engine. The actual outcome then changes the model. Usually there is one verdict. There are
//! several if the outcome depends on something that the calls do not determine: the progress of background rollbacks,
//! and the rows that a cursor has read ahead.

pub(crate) mod calls;
pub(crate) mod control;
pub(crate) mod cursors;
pub(crate) mod locks;
pub(crate) mod statements;
pub(crate) mod steps_of_cursors;

use std::collections::{BTreeMap, BTreeSet};

use windfall::Isolation;

use crate::outcome::{Outcome, Refusal};
use crate::steps::{Party, Pick, SLOTS, Which};
use crate::value::{Key, Value};
use cursors::Cursor;
use locks::{Conflict, Lock, Locks, Pos, index_key, row_pos};

/// A tree contains the rows, or an index, of a table from one truncation to the next.
pub(crate) type TreeId = u32;
pub(crate) type TrxNo = u32;
/// An index into the list of all tables that have ever existed.
pub(crate) type TableNo = usize;
/// The number of commits and statements; a read view sees those up to one number.
pub(crate) type Seq = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// Under this name; its handle exists or was dropped.
    Prepared {
        name: u8,
        has_handle: bool,
    },
    /// A crash has left it unfinished, and it is rolled back in the background.
    Pending,
    Committed(Seq),
    RolledBack,
}

/// A statement in progress.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    /// The number of the last version at its beginning.
    mark: u64,
    /// The savepoints that were set before it.
    hidden: Vec<(u8, u64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Trx {
    pub level: Isolation,
    pub read_only: bool,
    pub state: State,
    pub view: Option<Seq>,
    /// The names of the savepoints, each with the number of the last version at that time.
    pub savepoints: Vec<(u8, u64)>,
    /// The outermost one first.
    pub statements: Vec<Statement>,
    /// A call of it was refused that may have left changes which were undone, or the lock on a dropped table.
    pub may_hold_locks: bool,
    /// The trees of rows that it has changed, including changes that were rolled back.
    pub touched: BTreeSet<TreeId>,
}

impl Trx {
    pub(crate) fn locks_gaps(&self) -> bool {
        self.level >= Isolation::RepeatableRead
    }

    /// Returns whether a crash may find it unfinished, if its end is not durable.
    pub(crate) fn may_be_found(&self) -> bool {
        matches!(self.state, State::Pending | State::RolledBack)
    }

    /// Returns whether it has not ended yet.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state, State::Open | State::Prepared { .. } | State::Pending)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub trx: TrxNo,
    pub value: Option<Value>,
    /// A serial number over all versions.
    pub number: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub temporary: bool,
    pub is_dropped: bool,
    /// A handle of the table exists, dropped or not.
    pub has_handle: bool,
    pub rows: TreeId,
    /// In the order of their creation.
    pub indexes: Vec<(Which, TreeId)>,
    pub versions: BTreeMap<Key, Vec<Version>>,
}

impl Table {
    pub(crate) fn index(&self, which: Which) -> Option<TreeId> {
        self.indexes.iter().find(|(known, _)| *known == which).map(|(_, tree)| *tree)
    }
}

/// The versions that a transaction sees ([`Visibility`] is its visibility rule).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Visibility {
    Newest,
    View { seq: Seq, own: Option<TrxNo> },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Effect {
    LockTable(TreeId, Lock),
    LockRow(TreeId, Pos, Lock),
    LockRange(TreeId, (Pos, Pos), bool),
    /// An implicit lock of another transaction becomes explicit, because this call has met it.
    Explicit(TreeId, Pos, TrxNo),
    TakeView,
    /// The rest of a background rollback of a row is done.
    Finished(TableNo, Key),
    Write(TableNo, Key, Option<Value>),
}

/// A possible outcome of a call, and its effects on the model.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub outcome: Outcome,
    pub effects: Vec<Effect>,
}

impl Effect {
    /// Returns the uncertain form of the effect, if the same outcome is possible without it.
    fn unsure(self) -> Option<Self> {
        let unsure = |lock: Lock| Lock { sure: false, ..lock };
        Some(match self {
            Self::LockTable(tree, lock) => Self::LockTable(tree, unsure(lock)),
            Self::LockRow(tree, pos, lock) => Self::LockRow(tree, pos, unsure(lock)),
            Self::LockRange(tree, range, _) => Self::LockRange(tree, range, false),
            Self::Explicit(..) | Self::TakeView | Self::Finished(..) | Self::Write(..) => return None,
        })
    }
}

/// Returns the effects of the verdict with this outcome. If there are several, the effects that they share are certain,
/// and other locks are uncertain.
pub(crate) fn choose(verdicts: Vec<Verdict>, outcome: &Outcome) -> Result<Vec<Effect>, String> {
    let allowed: Vec<Outcome> = verdicts.iter().map(|verdict| verdict.outcome.clone()).collect();
    let chosen: Vec<Verdict> = verdicts.into_iter().filter(|verdict| verdict.outcome == *outcome).collect();
    if chosen.is_empty() {
        return Err(wrong(outcome, &allowed));
    }
    let mut effects: Vec<Effect> = Vec::new();
    for effect in chosen.iter().flat_map(|verdict| &verdict.effects) {
        if chosen.iter().all(|verdict| verdict.effects.contains(effect)) {
            if !effects.contains(effect) {
                effects.push(*effect);
            }
        } else {
            effects.extend(effect.unsure());
        }
    }
    Ok(effects)
}

pub(crate) fn expect(outcome: &Outcome, allowed: &[Outcome]) -> Result<(), String> {
    if allowed.contains(outcome) { Ok(()) } else { Err(wrong(outcome, allowed)) }
}

fn wrong(outcome: &Outcome, allowed: &[Outcome]) -> String {
    format!("the outcome is {outcome:?}, and only {allowed:?} is allowed")
}

/// The progress of a call past everything that may stop it.
#[derive(Debug, Default)]
pub(crate) struct Path {
    effects: Vec<Effect>,
    verdicts: Vec<Verdict>,
}

impl Path {
    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Adds a verdict: the call may end here.
    pub(crate) fn may_end(&mut self, outcome: impl Into<Outcome>) {
        self.verdicts.push(Verdict { outcome: outcome.into(), effects: self.effects.clone() });
    }

    pub(crate) fn end(mut self, outcome: impl Into<Outcome>) -> Vec<Verdict> {
        self.may_end(outcome);
        self.verdicts
    }

    /// If there is a conflict, the call may end here. Returns whether it certainly does.
    pub(crate) fn stop(&mut self, conflict: Conflict, outcome: impl Into<Outcome>) -> bool {
        if conflict > Conflict::No {
            self.may_end(outcome);
        }
        conflict == Conflict::Must
    }

    pub(crate) fn finish(self) -> Vec<Verdict> {
        self.verdicts
    }
}

/// The slot has no transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoTransaction;

pub(crate) struct Model {
    pub tables: Vec<Table>,
    /// The tables by name.
    pub names: BTreeMap<u8, TableNo>,
    pub temporary: Option<TableNo>,
    pub transactions: Vec<Trx>,
    pub slots: [Option<TrxNo>; SLOTS as usize],
    pub cursors: BTreeMap<u8, Cursor>,
    pub locks: Locks,
    pub seq: Seq,
    versions: u64,
    trees: TreeId,
    /// When tables were created or truncated, and indexes created, by tree.
    pub created_at: BTreeMap<TreeId, Seq>,
    /// Trees that were dropped.
    pub gone: BTreeSet<TreeId>,
    /// Versions that were rolled back since the log was last made durable: a crash may find them, and they are rolled
    /// back once more.
    pub undone: Vec<Undone>,
    /// Whether a rollback runs in the background since a crash, even of transactions that have changed nothing.
    pub rolls_back: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Undone {
    pub table: TableNo,
    pub rows: TreeId,
    pub key: Key,
    pub version: Version,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            tables: Vec::new(),
            names: BTreeMap::new(),
            temporary: None,
            transactions: Vec::new(),
            slots: [None; SLOTS as usize],
            cursors: BTreeMap::new(),
            locks: Locks::default(),
            seq: 0,
            versions: 0,
            trees: 0,
            created_at: BTreeMap::new(),
            gone: BTreeSet::new(),
            undone: Vec::new(),
            rolls_back: false,
        }
    }

    /// Returns the table of a step: usually one that exists, sometimes any table with a handle.
    pub(crate) fn pick(&self, pick: Pick) -> Option<TableNo> {
        let live = self.names.values().copied().chain(self.temporary);
        let has_handle = |table: &TableNo| self.tables[*table].has_handle;
        let all: Vec<TableNo> =
            if pick < 245 { live.collect() } else { (0..self.tables.len()).filter(has_handle).collect() };
        all.get((pick as usize).checked_rem(all.len())?).copied()
    }

    /// Returns the owner of a call ([`Party`]), if its slot has a transaction.
    pub(crate) fn party(&self, by: Party) -> Result<Option<TrxNo>, NoTransaction> {
        let Some(slot) = by else { return Ok(None) };
        self.slots[slot as usize].map(Some).ok_or(NoTransaction)
    }

    pub(crate) fn trx(&self, trx: TrxNo) -> &Trx {
        &self.transactions[trx as usize]
    }

    pub(crate) fn trx_mut(&mut self, trx: TrxNo) -> &mut Trx {
        &mut self.transactions[trx as usize]
    }

    pub(crate) fn new_trx(&mut self, level: Isolation, read_only: bool) -> TrxNo {
        let trx = Trx {
            level,
            read_only,
            state: State::Open,
            view: None,
            savepoints: Vec::new(),
            statements: Vec::new(),
            may_hold_locks: false,
            touched: BTreeSet::new(),
        };
        self.transactions.push(trx);
        self.transactions.len() as TrxNo - 1
    }

    fn new_tree(&mut self) -> TreeId {
        self.trees += 1;
        self.created_at.insert(self.trees, self.seq);
        self.trees
    }

    pub(crate) fn chain(&self, table: TableNo, key: Key) -> &[Version] {
        self.tables[table].versions.get(&key).map_or(&[], |versions| versions)
    }

    /// Returns the writer of the blocking version, an active transaction other than `me`, and how certain the conflict
    /// is.
    pub(crate) fn writer(&self, table: TableNo, key: Key, me: Option<TrxNo>) -> Option<(TrxNo, Conflict)> {
        let top = self.chain(table, key).last().filter(|top| Some(top.trx) != me)?;
        match self.trx(top.trx).state {
            State::Pending => Some((top.trx, Conflict::May)),
            State::Open | State::Prepared { .. } => Some((top.trx, Conflict::Must)),
            State::Committed(_) | State::RolledBack => None,
        }
    }

    /// As [`Model::writer`], but returns only the certainty.
    pub(crate) fn written(&self, table: TableNo, key: Key, me: Option<TrxNo>) -> Conflict {
        self.writer(table, key, me).map_or(Conflict::No, |(_, conflict)| conflict)
    }

    /// Returns the newest version, without those that are being rolled back in the background.
    pub(crate) fn newest(&self, table: TableNo, key: Key) -> Option<&Version> {
        let is_left = |version: &&Version| self.trx(version.trx).state != State::Pending;
        self.chain(table, key).iter().rev().find(is_left)
    }

    pub(crate) fn newest_value(&self, table: TableNo, key: Key) -> Option<Value> {
        self.newest(table, key).and_then(|version| version.value)
    }

    pub(crate) fn visible(&self, table: TableNo, key: Key, sight: Visibility) -> Option<Value> {
        let Visibility::View { seq, own } = sight else { return self.newest_value(table, key) };
        let sees = |version: &&Version| {
            let is_old = matches!(self.trx(version.trx).state, State::Committed(at) if at <= seq);
            Some(version.trx) == own || is_old
        };
        self.chain(table, key).iter().rev().find(sees).and_then(|version| version.value)
    }

    /// Returns all possible newest values during a background rollback.
    pub(crate) fn newest_of_all(&self, table: TableNo, key: Key) -> Vec<Option<Value>> {
        let pending = self.chain(table, key).iter().rev();
        let pending = pending.take_while(|version| self.trx(version.trx).state == State::Pending);
        let values = pending.map(|version| version.value);
        values.chain([self.newest_value(table, key)]).collect()
    }

    /// Returns whether the row has changed since the strict read view was taken.
    pub(crate) fn has_changed(&self, table: TableNo, key: Key, me: Option<TrxNo>) -> bool {
        let Some(view) = self.strict_view(me).filter(|_| !self.tables[table].temporary) else { return false };
        self.newest(table, key)
            .is_some_and(|version| Some(version.trx) != me && !self.sees(view, version.trx))
    }

    /// Returns whether a read view sees the changes of a transaction.
    pub(crate) fn sees(&self, view: Seq, trx: TrxNo) -> bool {
        matches!(self.trx(trx).state, State::Committed(at) if at <= view)
    }

    /// Returns whether a transaction holds a lock or has written anything.
    pub(crate) fn holds_locks(&self, trx: TrxNo) -> Conflict {
        let mut versions = self.tables.iter().flat_map(|table| table.versions.values().flatten());
        if versions.any(|version| version.trx == trx) {
            return Conflict::Must;
        }
        let may = if self.trx(trx).may_hold_locks { Conflict::May } else { Conflict::No };
        self.locks.any(trx).max(may)
    }

    /// Returns whether plain reads use one view, until the end of the transaction or of the outermost statement.
    pub(crate) fn keeps_view(&self, me: Option<TrxNo>) -> bool {
        me.map(|trx| self.trx(trx)).is_some_and(|trx| match trx.level {
            Isolation::RepeatableRead | Isolation::Snapshot => true,
            Isolation::ReadCommitted => !trx.statements.is_empty(),
            _ => false,
        })
    }

    pub(crate) fn strict_view(&self, me: Option<TrxNo>) -> Option<Seq> {
        let trx = self.trx(me?);
        trx.view.filter(|_| trx.level == Isolation::Snapshot)
    }

    pub(crate) fn locks_gaps(&self, me: Option<TrxNo>) -> bool {
        me.is_some_and(|trx| self.trx(trx).locks_gaps())
    }

    /// Returns the entries that a row has in an index, or is about to lose.
    pub(crate) fn entries(&self, table: TableNo, key: Key, which: Which) -> impl Iterator<Item = Entry> {
        let entries = self.all_entries(table, key, which).into_iter();
        entries.filter(|entry| entry.is_live || entry.writer.is_some())
    }

    /// Returns the entries that a row has or had in an index.
    pub(crate) fn all_entries(&self, table: TableNo, key: Key, which: Which) -> Vec<Entry> {
        let mut entries: BTreeMap<u8, Entry> = BTreeMap::new();
        let mut before: Option<Value> = None;
        for version in self.chain(table, key) {
            let writer = Some(version.trx).filter(|trx| self.trx(*trx).is_active());
            let of = |value: Option<Value>| value.map(|value| index_key(value, which));
            let (old, new) = (of(before), of(version.value));
            if old != new {
                let entry = |index_key, is_live| Entry { index_key, trx: version.trx, writer, is_live };
                if let Some(index_key) = old {
                    entries.insert(index_key, entry(index_key, false));
                }
                if let Some(index_key) = new {
                    entries.insert(index_key, entry(index_key, true));
                }
            }
            before = version.value;
        }
        entries.into_values().collect()
    }

    /// Refuses calls that a prepared transaction cannot make.
    pub(crate) fn check_open(&self, me: Option<TrxNo>) -> Option<Refusal> {
        let is_prepared = me.is_some_and(|trx| matches!(self.trx(trx).state, State::Prepared { .. }));
        is_prepared.then_some(Refusal::Prepared)
    }

    /// Refuses a tree that is newer than the read view.
    pub(crate) fn check_born(&self, tree: TreeId, view: Option<Seq>) -> Option<Refusal> {
        (view? < self.created_at[&tree]).then_some(Refusal::TableChanged)
    }

    pub(crate) fn apply(&mut self, me: Option<TrxNo>, effects: Vec<Effect>) {
        for effect in effects {
            match (effect, me) {
                (Effect::LockTable(tree, lock), Some(trx)) => self.locks.lock_table(tree, trx, lock),
                (Effect::LockRow(tree, pos, lock), Some(trx)) => self.locks.lock_row(tree, pos, trx, lock),
                (Effect::LockRange(tree, range, sure), Some(trx)) => {
                    self.locks.lock_range(tree, range, trx, sure);
                }
                (Effect::Explicit(tree, pos, trx), _) => {
                    self.locks.lock_row(tree, pos, trx, Lock { exclusive: true, sure: true });
                }
                (Effect::TakeView, Some(trx)) => {
                    let seq = self.seq;
                    self.trx_mut(trx).view.get_or_insert(seq);
                }
                (Effect::Finished(table, key), _) => self.finish_pending(table, key),
                (Effect::Write(table, key, value), me) => self.write_version(me, table, key, value),
                // A call outside of transactions holds nothing after its end.
                (_, None) => {}
            }
        }
    }

    fn finish_pending(&mut self, table: TableNo, key: Key) {
        let Self { transactions, tables, undone, .. } = self;
        let rows = tables[table].rows;
        if let Some(versions) = tables[table].versions.get_mut(&key) {
            let is_pending =
                |version: &mut Version| transactions[version.trx as usize].state == State::Pending;
            let taken = versions.extract_if(.., is_pending);
            undone.extend(taken.map(|version| Undone { table, rows, key, version }));
        }
    }

    fn write_version(&mut self, me: Option<TrxNo>, table: TableNo, key: Key, value: Option<Value>) {
        let trx = me.unwrap_or_else(|| {
            self.seq += 1;
            let trx = self.new_trx(Isolation::ReadCommitted, false);
            self.trx_mut(trx).state = State::Committed(self.seq);
            trx
        });
        self.versions += 1;
        let number = self.versions;
        self.tables[table].versions.entry(key).or_default().push(Version { trx, value, number });
        if !self.tables[table].temporary {
            let rows = self.tables[table].rows;
            self.trx_mut(trx).touched.insert(rows);
            if me.is_none() {
                self.undone.clear();
            }
        }
        self.row_changed(table, key, me);
    }

    /// Returns a mark for a rollback to this point: the number of the last version.
    pub(crate) fn mark(&self) -> u64 {
        self.versions
    }

    /// Rolls back what a transaction has written since the mark. If it continues, its rows stay locked.
    pub(crate) fn rollback_since(&mut self, trx: TrxNo, mark: u64, goes_on: bool) {
        let mut taken = Vec::new();
        for (no, table) in self.tables.iter_mut().enumerate() {
            let rows = table.rows;
            for (key, versions) in &mut table.versions {
                let of_it = versions.extract_if(.., |version| version.trx == trx && version.number > mark);
                taken.extend(of_it.map(|version| Undone { table: no, rows, key: *key, version }));
            }
        }
        for Undone { table, rows, key, .. } in &taken {
            if goes_on {
                self.locks.lock_row(*rows, row_pos(*key), trx, Lock { exclusive: true, sure: true });
            }
            self.row_changed(*table, *key, None);
        }
        self.discard_batch(trx, &taken);
        self.undone.extend(taken);
    }

    /// All background rollbacks have finished.
    pub(crate) fn settle_pending(&mut self) {
        for trx in 0..self.transactions.len() as TrxNo {
            if self.trx(trx).state == State::Pending {
                self.rollback_since(trx, 0, false);
                self.trx_mut(trx).state = State::RolledBack;
            }
        }
        self.rolls_back = false;
    }
}

/// An entry of an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub index_key: u8,
    /// The transaction that has created or delete-marked it.
    pub trx: TrxNo,
    /// That transaction, if it is active.
    pub writer: Option<TrxNo>,
    pub is_live: bool,
}
