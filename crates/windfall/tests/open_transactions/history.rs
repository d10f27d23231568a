//! A history: the engine executes each step, and the outcome is compared with the model.

use windfall::Isolation;

use crate::counts::Counts;
use crate::draw::draw;
use crate::model::locks::Conflict;
use crate::model::{Model, State, TableNo, TrxNo, Verdict, calls::HeldLatches, choose, expect};
use crate::outcome::{Outcome, Refusal};
use crate::steps::{Call, End, Move, Over, Party, Read, Shape, Step, Which, WriteMode};
use crate::value::{KEYS, Value};
use crate::world::{self, HEAD, World};

/// A failure and its step.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub at: usize,
    pub what: String,
}

pub(crate) struct History {
    world: World,
    model: Model,
    pub counts: Counts,
}

/// The most background steps in which all rollbacks must finish at the end of a history.
const AUDIT_STEPS: usize = 20_000;

impl History {
    pub(crate) fn new(seed: u64) -> Self {
        Self { world: World::new(seed), model: Model::new(), counts: Counts::default() }
    }

    /// Executes these steps of a seed's history, and ends everything that is open afterwards.
    pub(crate) fn run(seed: u64, steps: &[(usize, Step)]) -> Result<Counts, Wrong> {
        let mut history = Self::new(seed);
        let mut last = 0;
        for (at, step) in steps {
            history.step(step).map_err(|what| Wrong { at: *at, what })?;
            last = *at;
        }
        history
            .audit()
            .map_err(|what| Wrong { at: last + 1, what: format!("when all has ended: {what}") })?;
        Ok(history.counts)
    }

    /// Returns all steps of a seed's history, with their numbers.
    pub(crate) fn steps(seed: u64, many: usize) -> Vec<(usize, Step)> {
        draw(seed, many).into_iter().enumerate().collect()
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        if self.model.rolls_back && !self.world.rolls_back() {
            self.model.settle_pending();
        }
        self.make(step)?;
        self.compare_locks()
    }

    /// Compares whether each transaction holds locks.
    fn compare_locks(&self) -> Result<(), String> {
        for (slot, trx) in self.model.slots.iter().enumerate() {
            let Some(trx) = *trx else { continue };
            let (holds, expected) = (self.world.holds_locks(slot as u8), self.model.holds_locks(trx));
            if expected != Conflict::May && holds != (expected == Conflict::Must) {
                return Err(format!("transaction {trx} holds locks: {holds}, and not {expected:?}"));
            }
        }
        Ok(())
    }

    /// Executes a step. Returns `None` if its transaction or table does not exist.
    fn make(&mut self, step: &Step) -> Result<Option<()>, String> {
        let slot_of = |model: &Model, slot: u8| model.slots[slot as usize];
        match *step {
            Step::Begin { slot, level, read_only, snapshot } => {
                if slot_of(&self.model, slot).is_none() {
                    self.world.begin(slot, level, read_only, snapshot);
                    self.model.begin(slot, level, read_only, snapshot);
                }
            }
            Step::End { slot, how } => {
                let Some(trx) = slot_of(&self.model, slot) else { return Ok(None) };
                self.end(slot, trx, how)?;
            }
            Step::Savepoint { slot, name } => {
                let Some(trx) = slot_of(&self.model, slot) else { return Ok(None) };
                let outcome = self.world.savepoint(slot, name);
                let allowed = self.model.savepoint(trx, name);
                self.hold(Some(trx), "savepoint", &outcome, &[allowed])?;
            }
            Step::RollBackTo { slot, name } => {
                let Some(trx) = slot_of(&self.model, slot) else { return Ok(None) };
                let outcome = self.world.rollback_to(slot, name);
                let allowed = self.model.rollback_to(trx, name);
                self.hold(Some(trx), "rollback to", &outcome, &[allowed])?;
            }
            Step::Release { slot, name } => {
                let Some(trx) = slot_of(&self.model, slot) else { return Ok(None) };
                let outcome = self.world.release(slot, name);
                let allowed = self.model.release(trx, name);
                self.hold(Some(trx), "release", &outcome, &[allowed])?;
            }
            Step::Prepare { slot, name } => {
                let Some(trx) = slot_of(&self.model, slot) else { return Ok(None) };
                self.close_cursors(trx);
                let outcome = self.world.prepare(slot, name);
                let allowed = self.model.prepare(trx, name);
                self.hold(Some(trx), "prepare", &outcome, &[allowed])?;
            }
            Step::EndPrepared { name, commits } => {
                let outcome = self.world.end_prepared(name, commits);
                let allowed = self.model.end_prepared(name, commits);
                self.hold(None, "end prepared", &outcome, &[allowed])?;
            }
            Step::Call { by, call } => {
                let Some((me, call)) = self.resolve(by, call) else { return Ok(None) };
                let outcome = self.world.call(by, call);
                self.judge_call(me, call, &HeldLatches::default(), &outcome)?;
            }
            Step::BeginStatement { slot } => {
                let Some(trx) = slot_of(&self.model, slot) else { return Ok(None) };
                let outcome = self.world.begin_statement(slot);
                let allowed = self.model.begin_statement(trx);
                self.hold(Some(trx), "begin statement", &outcome, &[allowed])?;
            }
            Step::EndStatement { slot, undo } => {
                let Some(trx) = slot_of(&self.model, slot) else { return Ok(None) };
                let outcome = self.world.end_statement(slot, undo);
                let allowed = self.model.end_statement(trx, undo);
                let kind = if undo { "undo statement" } else { "keep statement" };
                self.hold(Some(trx), kind, &outcome, &[allowed])?;
            }
            Step::Statement { slot, ref calls, fails } => return self.statement(slot, calls, fails),
            Step::Nested { by, table, key, value, late, inner } => {
                let outer = Call::Write { table, key, value, mode: WriteMode::Put };
                return self.nested(by, outer, late, inner);
            }
            Step::Race { slot, call, ending, commits } => return self.race(slot, call, ending, commits),
            Step::Open { place, by, table, over, shape, locking } => {
                let (Ok(me), Some(table)) = (self.model.party(by), self.model.pick(table)) else {
                    return Ok(None);
                };
                if self.model.check_open(me).is_some() {
                    return Ok(None);
                }
                self.close(place);
                let opened = self.model.open(me, table, over, shape, locking.filter(|_| me.is_some()));
                let outcome =
                    self.world.open(place, by, table, (over, shape), locking.filter(|_| me.is_some()));
                let allowed =
                    opened.as_ref().map_or_else(|refused| refused.clone().into(), |_| Outcome::Done);
                self.hold(me, "open", &outcome, &[allowed])?;
                self.model.cursors.extend(opened.map(|cursor| (place, cursor)));
            }
            Step::Move { place, to, times } => {
                for _ in 0..times {
                    let Some(cursor) = self.model.cursors.get(&place) else { return Ok(None) };
                    let (me, over) = (cursor.me, cursor.over);
                    let (locks, table) = (cursor.lock.is_some(), cursor.table);
                    let outcome = self.world.step(place, over, to);
                    self.count(me, if locks { "locking cursor" } else { "cursor" }, &outcome);
                    self.note_use(me, table);
                    self.model.judge_move(place, to, &outcome)?;
                    if matches!(outcome, Outcome::End | Outcome::Refused(_)) {
                        break;
                    }
                }
            }
            Step::Close { place } => self.close(place),
            Step::Look { by, table } => {
                let (Ok(me), Some(table)) = (self.model.party(by), self.model.pick(table)) else {
                    return Ok(None);
                };
                if self.model.check_open(me).is_some() || self.model.tables[table].is_dropped {
                    return Ok(None);
                }
                self.look_at(by, table)?;
            }
            Step::Ddl(ref ddl) => {
                let outcome = self.world.ddl(ddl);
                self.counts.add("statement", ddl.name(), &outcome);
                self.model.judge_statement(ddl, &outcome)?;
            }
            Step::Settle(steps) => self.world.run_workers(steps.into()),
            Step::Checkpoint => {
                let outcome = self.world.checkpoint();
                expect(&outcome, &[Outcome::Done])?;
            }
            Step::Check { live } => {
                let findings = self.world.check(live);
                if !findings.is_empty() {
                    return Err(format!("a check finds {findings:?}"));
                }
                self.counts.add("check", if live { "live" } else { "whole" }, &Outcome::Done);
            }
            Step::Crash(chance) => {
                self.world.restart(Some(chance), &self.model.names);
                self.model.restart(true);
                self.counts.add("restart", "crash", &Outcome::Done);
                self.look()?;
            }
            Step::Reopen => {
                // Open transactions are rolled back before, except prepared ones.
                for slot in 0..self.model.slots.len() as u8 {
                    if let Some(trx) = slot_of(&self.model, slot) {
                        self.end(slot, trx, End::Drop)?;
                    }
                }
                self.world.restart(None, &self.model.names);
                self.model.restart(false);
                self.counts.add("restart", "reopen", &Outcome::Done);
                self.look()?;
            }
        }
        Ok(Some(()))
    }

    /// Returns the transaction of a call, and the call on its table.
    fn resolve(&self, by: Party, call: Call) -> Option<(Option<TrxNo>, world::Call)> {
        let me = self.model.party(by).ok()?;
        let table = |pick| self.model.pick(pick);
        let call = match call {
            Call::Write { table: pick, key, value, mode } => {
                world::Call::Write { table: table(pick)?, key, value, mode }
            }
            Call::Get { table: pick, key, read } => world::Call::Get { table: table(pick)?, key, read },
            Call::Lock { table: pick, key, locking } => {
                me?;
                world::Call::Lock { table: table(pick)?, key, locking }
            }
        };
        Some((me, call))
    }

    fn verdicts(&self, me: Option<TrxNo>, call: world::Call, turns: &HeldLatches) -> Vec<Verdict> {
        match call {
            world::Call::Write { table, key, value, mode } => {
                self.model.write(me, (table, key), (mode, value), turns)
            }
            world::Call::Get { table, key, read } => self.model.get(me, (table, key), read, turns),
            world::Call::Lock { table, key, locking } => self.model.lock(me, (table, key), locking, turns),
        }
    }

    fn judge_call(
        &mut self,
        me: Option<TrxNo>,
        call: world::Call,
        turns: &HeldLatches,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let kind = match call {
            world::Call::Write { mode: WriteMode::Delete, .. } => "delete",
            world::Call::Write { .. } => "write",
            world::Call::Get { .. } => "read",
            world::Call::Lock { .. } => "locking read",
        };
        self.count(me, kind, outcome);
        self.note_use(me, call.table());
        let effects = choose(self.verdicts(me, call, turns), outcome)?;
        self.model.apply(me, effects);
        Ok(())
    }

    /// Notes a call on a table that may leave more than the model knows.
    fn note_use(&mut self, me: Option<TrxNo>, table: TableNo) {
        let known = &self.model.tables[table];
        if let Some(trx) = me.filter(|_| known.temporary || known.is_dropped) {
            self.model.trx_mut(trx).may_hold_locks = true;
        }
    }

    fn count(&mut self, me: Option<TrxNo>, kind: &'static str, outcome: &Outcome) {
        let level = me.map(|trx| self.model.trx(trx).level);
        self.counts.add(level_name(level), kind, outcome);
    }

    fn hold(
        &mut self,
        me: Option<TrxNo>,
        kind: &'static str,
        outcome: &Outcome,
        allowed: &[Outcome],
    ) -> Result<(), String> {
        self.count(me, kind, outcome);
        expect(outcome, allowed)
    }

    fn close(&mut self, place: u8) {
        self.world.close(place);
        self.model.cursors.remove(&place);
    }

    fn close_cursors(&mut self, trx: TrxNo) {
        for place in self.model.close_cursors(trx) {
            self.world.close(place);
        }
    }

    fn end(&mut self, slot: u8, trx: TrxNo, how: End) -> Result<(), String> {
        self.close_cursors(trx);
        let outcome = self.world.end(slot, how);
        let allowed = self.model.end(trx, how);
        self.hold(Some(trx), "end", &outcome, &[allowed])?;
        self.model.slots[slot as usize] = None;
        Ok(())
    }

    fn statement(&mut self, slot: u8, calls: &[Call], fails: bool) -> Result<Option<()>, String> {
        let Some(trx) = self.model.slots[slot as usize] else { return Ok(None) };
        let calls: Vec<_> = calls.iter().filter_map(|call| self.resolve(Some(slot), *call)).collect();
        let of_world: Vec<world::Call> = calls.iter().map(|(_, call)| *call).collect();
        let mark = self.model.mark();
        let (outcomes, done) = self.world.statement(slot, &of_world, fails);
        if let Some(refused) = self.model.check_open(Some(trx)) {
            self.hold(Some(trx), "statement", &done, &[refused.into()])?;
            return Ok(Some(()));
        }
        for (outcome, (me, call)) in outcomes.iter().zip(&calls) {
            self.judge_call(*me, *call, &HeldLatches::default(), outcome)?;
        }
        let allowed = match outcomes.last().filter(|outcome| outcome.is_refused()) {
            Some(refused) => refused.clone(),
            None if outcomes.len() < calls.len() => return Err("calls of a statement were not made".into()),
            None if fails => Refusal::OnPurpose.into(),
            None => Outcome::Done,
        };
        self.hold(Some(trx), "statement", &done, &[allowed])?;
        if done.is_refused() {
            self.model.rollback_since(trx, mark, true);
        }
        Ok(Some(()))
    }

    fn nested(
        &mut self,
        by: Party,
        outer: Call,
        late: bool,
        (inner_by, inner): (Party, Call),
    ) -> Result<Option<()>, String> {
        let (Some((me, outer)), Some((other, inner))) =
            (self.resolve(by, outer), self.resolve(inner_by, inner))
        else {
            return Ok(None);
        };
        let world::Call::Write { table, key, value, .. } = outer else { return Ok(None) };
        if me.is_some() && me == other {
            return Ok(None);
        }
        let late = late && value.length as usize > HEAD;
        let (inner_outcome, outcome) = self.world.nested(by, (table, key, value), late, (inner_by, inner));
        if let Some(inner_outcome) = inner_outcome {
            let turns = self.turns(table, key, value, late);
            let kind = if late { "call within, late" } else { "call within" };
            self.count(other, kind, &inner_outcome);
            self.note_use(other, inner.table());
            let effects = choose(self.verdicts(other, inner, &turns), &inner_outcome)
                .map_err(|what| format!("the call from within the source: {what}"))?;
            self.model.apply(other, effects);
        }
        self.judge_call(me, outer, &HeldLatches::default(), &outcome)?;
        Ok(Some(()))
    }

    /// Returns the key latches ([`HeldLatches`]) that a write holds while its value is read.
    fn turns(&self, table: TableNo, key: u8, value: Value, late: bool) -> HeldLatches {
        let known = &self.model.tables[table];
        let mut turns = HeldLatches { row: Some((known.rows, key)), uniques: Vec::new() };
        if let Some(tree) = known.index(Which::Unique).filter(|_| late) {
            let before = self.model.newest_value(table, key).map(|value| value.unique);
            if before != Some(value.unique) {
                turns.uniques =
                    before.into_iter().chain([value.unique]).map(|unique| (tree, unique)).collect();
            }
        }
        turns
    }

    fn race(&mut self, slot: u8, call: Call, ending: u8, commits: bool) -> Result<Option<()>, String> {
        let Some((Some(me), call)) = self.resolve(Some(slot), call) else { return Ok(None) };
        let Some(other) = self.model.slots[ending as usize].filter(|other| *other != me) else {
            return Ok(None);
        };
        if self.model.trx(other).state != State::Open {
            return Ok(None);
        }
        self.close_cursors(other);
        let (outcome, ended) = self.world.race(slot, call, ending, commits);
        if let Some(ended) = ended {
            let allowed = self.model.end(other, if commits { End::Commit } else { End::RollBack });
            self.hold(Some(other), "end during a call", &ended, &[allowed])?;
            self.model.slots[ending as usize] = None;
        }
        self.judge_call(Some(me), call, &HeldLatches::default(), &outcome)?;
        Ok(Some(()))
    }

    /// Reads all rows outside of any transaction, in all ways.
    fn look(&mut self) -> Result<(), String> {
        let mut prepared = self.world.prepared();
        prepared.sort_unstable();
        if !prepared.iter().eq(&self.model.all_prepared()) {
            return Err(format!("prepared are {prepared:?}, and not {:?}", self.model.all_prepared()));
        }
        let tables: Vec<TableNo> = self.model.names.values().copied().collect();
        for table in tables {
            for key in 0..KEYS {
                let call = world::Call::Get { table, key, read: Read::Get };
                let outcome = self.world.call(None, call);
                let effects = choose(self.verdicts(None, call, &HeldLatches::default()), &outcome);
                effects.map_err(|what| format!("row {key} of table {table}: {what}"))?;
            }
            self.look_at(None, table)?;
        }
        Ok(())
    }

    /// Reads all rows of a table by key, by each index, and by the keys of each index alone.
    fn look_at(&mut self, by: Party, table: TableNo) -> Result<(), String> {
        let indexes = self.model.tables[table].indexes.clone();
        let overs = indexes.into_iter().flat_map(|(which, _)| [Over::Index(which), Over::Keys(which)]);
        for over in overs.chain([Over::Rows]) {
            self.walk(by, table, over).map_err(|what| format!("table {table}, {over:?}: {what}"))?;
        }
        Ok(())
    }

    fn walk(&mut self, by: Party, table: TableNo, over: Over) -> Result<(), String> {
        let (place, shape) = (0, Shape::Range(None));
        let Ok(me) = self.model.party(by) else { return Ok(()) };
        self.close(place);
        let cursor =
            self.model.open(me, table, over, shape, None).map_err(|refused| format!("{refused:?}"))?;
        expect(&self.world.open(place, by, table, (over, shape), None), &[Outcome::Done])?;
        self.model.cursors.insert(place, cursor);
        loop {
            let outcome = self.world.step(place, over, Move::Next);
            self.model.judge_move(place, Move::Next, &outcome)?;
            self.count(me, "look", &outcome);
            if matches!(outcome, Outcome::End | Outcome::Refused(_)) {
                self.close(place);
                return Ok(());
            }
        }
    }

    /// Ends everything that is open. Then nothing may be left, and every check must pass.
    fn audit(&mut self) -> Result<(), String> {
        let places: Vec<u8> = self.model.cursors.keys().copied().collect();
        for place in places {
            self.close(place);
        }
        for slot in 0..self.model.slots.len() as u8 {
            if let Some(trx) = self.model.slots[slot as usize] {
                self.end(slot, trx, End::Drop)?;
            }
        }
        for name in self.model.all_prepared() {
            let outcome = self.world.end_prepared(name, name % 2 == 0);
            let allowed = self.model.end_prepared(name, name % 2 == 0);
            expect(&outcome, &[allowed])?;
        }
        for _ in 0..AUDIT_STEPS {
            if !self.world.rolls_back() {
                break;
            }
            self.world.run_workers(1);
        }
        if self.world.rolls_back() {
            return Err("a rollback in the background does not come to its end".into());
        }
        self.model.settle_pending();
        let (locks, transactions) = (self.world.db.locks(), self.world.db.transactions());
        if !locks.is_empty() || !transactions.is_empty() {
            return Err(format!("locks are left: {locks:?}, of transactions {transactions:?}"));
        }
        let views = self.world.db.views();
        if !views.is_empty() {
            return Err(format!("views are left: {views:?}"));
        }
        self.look()?;
        let findings = self.world.check(false);
        if findings.is_empty() { Ok(()) } else { Err(format!("a check finds {findings:?}")) }
    }
}

pub(crate) fn level_name(level: Option<Isolation>) -> &'static str {
    match level {
        None => "alone",
        Some(Isolation::ReadUncommitted) => "read uncommitted",
        Some(Isolation::ReadCommitted) => "read committed",
        Some(Isolation::RepeatableRead) => "repeatable read",
        Some(Isolation::Snapshot) => "snapshot",
        Some(_) => "serializable",
    }
}
