//! The possible outcomes of a call on one row.

use windfall::{Isolation, RowMode};

use super::locks::{Conflict, Lock, entry_pos, first_of, index_key, row_pos};
use super::{Effect, Model, Path, TableNo, TreeId, TrxNo, Verdict, Visibility};
use crate::outcome::{Outcome, Refusal};
use crate::steps::{Locking, Read, Which, WriteMode};
use crate::value::{KEYS, Key, Value, duplicate_lock};

/// The key latches that a call holds while it reads its value from a source, from which another call is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldLatches {
    pub row: Option<(TreeId, Key)>,
    /// Keys of unique indexes.
    pub uniques: Vec<(TreeId, u8)>,
}

impl HeldLatches {
    fn busy(&self) -> Refusal {
        if self.row.is_some() { Refusal::BusyWithin } else { Refusal::Busy }
    }
}

pub(crate) const SURE: bool = true;

impl Model {
    /// Executes what comes before the rows of a table: checks whether the transaction may do it, locks the table, and
    /// checks whether the table is newer than its read view.
    fn begin_locking(
        &self,
        me: Option<TrxNo>,
        table: TableNo,
        exclusive: bool,
        path: &mut Path,
    ) -> Option<Refusal> {
        let Some(trx) = me else { return self.tables[table].is_dropped.then_some(Refusal::Dropped) };
        let known = &self.tables[table];
        if let Some(refused) = self.check_open(me) {
            return Some(refused);
        }
        if exclusive && self.trx(trx).read_only && !known.temporary {
            return Some(Refusal::ReadOnly);
        }
        if known.is_dropped {
            return Some(Refusal::Dropped);
        }
        if known.temporary {
            return None;
        }
        path.effect(Effect::LockTable(known.rows, Lock { exclusive, sure: SURE }));
        self.check_born(known.rows, self.strict_view(me))
    }

    /// Returns the possible outcomes of a write.
    pub(crate) fn write(
        &self,
        me: Option<TrxNo>,
        (table, key): (TableNo, Key),
        (mode, value): (WriteMode, Value),
        turns: &HeldLatches,
    ) -> Vec<Verdict> {
        let mut path = Path::default();
        if let Some(refused) = self.begin_locking(me, table, true, &mut path) {
            return path.end(refused);
        }
        let (known, pos, busy) = (&self.tables[table], row_pos(key), turns.busy());
        if turns.row == Some((known.rows, key)) {
            return path.end(Refusal::Turn);
        }
        let before = self.newest_value(table, key);
        let writer = self.written(table, key, me);
        let held = self.locks.row(known.rows, pos, me, true);
        // An insert reports an existing row although other transactions share a lock on it.
        let is_shared = self.locks.row(known.rows, pos, me, false) == Conflict::No;
        let exclusive = duplicate_lock(value) == RowMode::Exclusive;
        let is_told =
            mode == WriteMode::Insert && is_shared && before.is_some() && (me.is_none() || !exclusive);
        let held = match writer {
            Conflict::No if is_told => Conflict::No,
            Conflict::May if is_told => held.min(Conflict::May),
            _ => held,
        };
        if path.stop(held, busy.clone()) || path.stop(writer, busy.clone()) {
            return path.finish();
        }
        if writer == Conflict::May {
            path.effect(Effect::Finished(table, key));
        }
        if self.has_changed(table, key, me) {
            return path.end(Refusal::Changed);
        }
        let is_wanted = match mode {
            WriteMode::Insert => before.is_none(),
            WriteMode::Put => true,
            WriteMode::Update | WriteMode::Delete => before.is_some(),
        };
        if !is_wanted {
            match before {
                Some(_) if me.is_some() => {
                    path.effect(Effect::LockRow(known.rows, pos, Lock { exclusive, sure: SURE }));
                }
                None if self.locks_gaps(me) => {
                    path.effect(Effect::LockRange(known.rows, (pos, pos + 1), SURE));
                }
                _ => {}
            }
            return path.end(match mode {
                WriteMode::Insert => Outcome::from(Refusal::DuplicateRow(Some(key))),
                WriteMode::Delete => Outcome::Is(false),
                WriteMode::Update | WriteMode::Put => Refusal::NoRow.into(),
            });
        }
        if before.is_none() && path.stop(self.locks.gap(known.rows, pos, me), busy.clone()) {
            return path.finish();
        }
        let after = (mode != WriteMode::Delete).then_some(value);
        let keys = |which| {
            let of = |value: Option<Value>| value.map(|value| index_key(value, which));
            (of(before), of(after))
        };
        if let Some(tree) = known.index(Which::Unique) {
            let (old, new) = keys(Which::Unique);
            if old != new {
                let has_turn = |index_key: Option<u8>| {
                    index_key.is_some_and(|index_key| turns.uniques.contains(&(tree, index_key)))
                };
                if has_turn(old) || has_turn(new) {
                    return path.end(Refusal::Turn);
                }
                if let Some(index_key) = new
                    && self.stop_at_unique(me, (table, key), (tree, index_key), exclusive, turns, &mut path)
                {
                    return path.finish();
                }
            }
        }
        for (which, tree) in &known.indexes {
            if let (old, Some(new)) = keys(*which)
                && old != Some(new)
                && path.stop(self.locks.gap(*tree, entry_pos(new, key), me), busy.clone())
            {
                return path.finish();
            }
        }
        path.effect(Effect::Write(table, key, after));
        path.end(if mode == WriteMode::Delete { Outcome::Is(true) } else { Outcome::Done })
    }

    /// Handles another row that has the unique key, or had it. Returns whether the call certainly ends here.
    fn stop_at_unique(
        &self,
        me: Option<TrxNo>,
        (table, key): (TableNo, Key),
        (tree, unique): (TreeId, u8),
        exclusive: bool,
        turns: &HeldLatches,
        path: &mut Path,
    ) -> bool {
        let (rows, prefix, busy) = (self.tables[table].rows, first_of(unique), turns.busy());
        if path.stop(self.locks.row(tree, prefix, me, true), busy.clone()) {
            return true;
        }
        for other in (0..KEYS).filter(|other| *other != key) {
            let mut entries = self.entries(table, other, Which::Unique);
            let Some(entry) = entries.find(|entry| entry.index_key == unique) else { continue };
            if let Some(writer) = entry.writer.filter(|writer| Some(*writer) != me) {
                let is_pending = self.trx(writer).state == super::State::Pending;
                if turns.row.is_none() && !is_pending {
                    path.effect(Effect::Explicit(tree, prefix, writer));
                }
                let conflict = if is_pending { Conflict::May } else { Conflict::Must };
                if path.stop(conflict, busy.clone()) {
                    return true;
                }
                // It has been rolled back by now, at least for this entry.
                let now = self.newest_value(table, other);
                if now.is_none_or(|value| value.unique != unique) {
                    continue;
                }
            } else if !entry.is_live {
                continue;
            }
            if me.is_some() {
                let held = self.locks.row(rows, row_pos(other), me, exclusive);
                if path.stop(held, busy.clone()) || path.stop(self.written(table, other, me), busy.clone()) {
                    return true;
                }
                path.effect(Effect::LockRow(rows, row_pos(other), Lock { exclusive, sure: SURE }));
            }
            path.may_end(Refusal::DuplicateIndexKey(Some(other)));
            return true;
        }
        false
    }

    /// Returns the possible outcomes of a locking read.
    pub(crate) fn lock(
        &self,
        me: Option<TrxNo>,
        (table, key): (TableNo, Key),
        locking: Locking,
        turns: &HeldLatches,
    ) -> Vec<Verdict> {
        let mut path = Path::default();
        let (Some(trx), known) = (me, &self.tables[table]) else {
            return path.end(Refusal::Other("outside".into()));
        };
        // The read-only check comes first, for any lock mode.
        if self.trx(trx).read_only && !known.temporary {
            return path.end(Refusal::ReadOnly);
        }
        if let Some(refused) = self.begin_locking(me, table, locking.exclusive, &mut path) {
            return path.end(refused);
        }
        self.read_locked(me, (table, key), locking, turns, path, Outcome::Value)
    }

    fn read_locked(
        &self,
        me: Option<TrxNo>,
        (table, key): (TableNo, Key),
        locking: Locking,
        turns: &HeldLatches,
        mut path: Path,
        outcome: fn(Option<Value>) -> Outcome,
    ) -> Vec<Verdict> {
        let rows = self.tables[table].rows;
        if turns.row == Some((rows, key)) {
            return path.end(Refusal::Turn);
        }
        let blocked = || if locking.skips { outcome(None) } else { turns.busy().into() };
        let writer = self.written(table, key, me);
        if path.stop(writer, blocked()) {
            return path.finish();
        }
        if writer == Conflict::May {
            path.effect(Effect::Finished(table, key));
        }
        if self.has_changed(table, key, me) {
            return path.end(Refusal::Changed);
        }
        let pos = row_pos(key);
        let Some(newest) = self.newest(table, key).filter(|newest| newest.value.is_some()) else {
            if self.locks_gaps(me) {
                path.effect(Effect::LockRange(rows, (pos, pos + 1), SURE));
            }
            return path.end(outcome(None));
        };
        if Some(newest.trx) != me {
            if path.stop(self.locks.row(rows, pos, me, locking.exclusive), blocked()) {
                return path.finish();
            }
            path.effect(Effect::LockRow(rows, pos, Lock { exclusive: locking.exclusive, sure: SURE }));
        }
        path.end(outcome(newest.value))
    }

    /// Returns the possible outcomes of a plain read.
    pub(crate) fn get(
        &self,
        me: Option<TrxNo>,
        (table, key): (TableNo, Key),
        read: Read,
        turns: &HeldLatches,
    ) -> Vec<Verdict> {
        let outcome: fn(Option<Value>) -> Outcome = match read {
            Read::Contains => |value| Outcome::Is(value.is_some()),
            Read::Get | Read::Stream => Outcome::Value,
        };
        let (mut path, known) = (Path::default(), &self.tables[table]);
        if let Some(refused) = self.check_open(me) {
            return path.end(refused);
        }
        let level = me.map(|trx| self.trx(trx).level);
        let keeps_view = self.keeps_view(me);
        if level == Some(Isolation::Serializable) && !known.temporary {
            if let Some(refused) = self.begin_locking(me, table, false, &mut path) {
                return path.end(refused);
            }
            let share = Locking { exclusive: false, skips: false };
            return self.read_locked(me, (table, key), share, turns, path, outcome);
        }
        if keeps_view && (!known.temporary || read == Read::Stream) {
            path.effect(Effect::TakeView);
        }
        if known.is_dropped {
            return path.end(Refusal::Dropped);
        }
        let view = me.filter(|_| keeps_view).and_then(|trx| self.trx(trx).view);
        let sight = match level {
            _ if known.temporary => Visibility::Newest,
            Some(Isolation::ReadUncommitted) if read != Read::Stream => Visibility::Newest,
            _ => Visibility::View { seq: view.unwrap_or(self.seq), own: me },
        };
        if let Visibility::View { .. } = sight
            && let Some(refused) = self.check_born(known.rows, view)
        {
            return path.end(refused);
        }
        match sight {
            Visibility::Newest => {
                for value in self.newest_of_all(table, key) {
                    path.may_end(outcome(value));
                }
                path.finish()
            }
            Visibility::View { .. } => path.end(outcome(self.visible(table, key, sight))),
        }
    }
}
