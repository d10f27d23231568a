//! The possible outcomes of a cursor step.

use super::cursors::{Cursor, Place, place_of};
use super::locks::{Conflict, END, Lock, Pos, entry_pos, row_pos};
use super::{Effect, Model, Path, State, Verdict, choose, expect};
use crate::outcome::{Outcome, Refusal};
use crate::steps::{Move, Over};
use crate::value::{KEYS, Key};

/// The positions that a step may reach: from one to another, half-open, in one direction.
#[derive(Clone, Copy, Debug)]
struct Way {
    from: Pos,
    to: Pos,
    goes_up: bool,
}

/// An entry of the tree that a cursor reads.
#[derive(Clone, Copy, Debug)]
struct Met {
    pos: Pos,
    key: Key,
    /// The row has left this entry since a strict read view was taken.
    has_left: bool,
}

fn goes_up(to: Move) -> bool {
    matches!(to, Move::Next | Move::First | Move::AtLeast(_) | Move::Above(_))
}

/// Returns `None` if the cursor is already beyond that end.
fn way_of(cursor: &Cursor, to: Move) -> Option<Way> {
    if let Some((from, limit)) = cursor.limits {
        let from = if let Place::At(pos) = cursor.place { pos + 1 } else { from };
        return Some(Way { from, to: cursor.back.unwrap_or(limit), goes_up: goes_up(to) });
    }
    let up = |from| Some(Way { from, to: END, goes_up: true });
    let down = |to| Some(Way { from: 0, to, goes_up: false });
    match (to, cursor.place) {
        (Move::Next, Place::Behind) | (Move::Prev, Place::Before) => None,
        (Move::Next, Place::At(pos)) => up(pos + 1),
        (Move::Prev, Place::At(pos)) => down(pos),
        (Move::Next | Move::First, _) => up(0),
        (Move::Prev | Move::Last, _) => down(END),
        (Move::AtLeast(key), _) => up(cursor.around(key).0),
        (Move::Above(key), _) => up(cursor.around(key).1),
        (Move::AtMost(key), _) => down(cursor.around(key).1),
        (Move::Below(key), _) => down(cursor.around(key).0),
    }
}

impl Model {
    /// Compares a cursor step with its possible outcomes.
    pub(crate) fn judge_move(&mut self, place: u8, to: Move, outcome: &Outcome) -> Result<(), String> {
        let cursor = self.cursors[&place].clone();
        let me = cursor.me;
        if cursor.limits.is_some() && cursor.is_done {
            return expect(outcome, &[Outcome::End]);
        }
        let is_jump = cursor.limits.is_none() && !matches!(to, Move::Next | Move::Prev);
        let takes_new_view = !cursor.has_begun || is_jump;
        let up = goes_up(to);
        let way = way_of(&cursor, to);
        if let Some(lock) = cursor.lock {
            let exclusive = lock.exclusive;
            let verdicts = self.locked_step(&cursor, way, takes_new_view, exclusive);
            let effects = choose(verdicts, outcome)?;
            self.apply(me, effects);
            let gaps = self.locks_gaps(me);
            let cursor = self.cursors.get_mut(&place).expect("it is there");
            if takes_new_view || gaps && cursor.limits.is_none() {
                cursor.unsure.clear();
            }
        } else {
            self.plain_step(place, way, takes_new_view, outcome)?;
        }
        let cursor = self.cursors.get_mut(&place).expect("it is there");
        cursor.has_begun = true;
        match (outcome, place_of(outcome)) {
            (_, Some(pos)) if cursor.limits.is_some() && !up => cursor.back = Some(pos),
            (_, Some(pos)) => cursor.place = Place::At(pos),
            (Outcome::End, None) => {
                cursor.is_done = true;
                cursor.place = if up { Place::Behind } else { Place::Before };
            }
            _ => {
                cursor.is_done = true;
                cursor.place = Place::New;
                if cursor.limits.is_none() {
                    cursor.has_begun = false;
                }
            }
        }
        Ok(())
    }

    fn plain_step(
        &mut self,
        place: u8,
        way: Option<Way>,
        takes_new_view: bool,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let cursor = self.cursors[&place].clone();
        let keeps = self.keeps_view(cursor.me);
        if takes_new_view {
            let mut view = None;
            if !cursor.sees_newest {
                if keeps {
                    self.apply(cursor.me, vec![Effect::TakeView]);
                }
                let of_trx = cursor.me.filter(|_| keeps).and_then(|trx| self.trx(trx).view);
                view = Some(of_trx.unwrap_or(self.seq));
            }
            let again = Cursor { view, ..cursor.clone() };
            let candidates = self.candidates(&again);
            let cursor = self.cursors.get_mut(&place).expect("it is there");
            (cursor.view, cursor.candidates) = (view, candidates);
        }
        let cursor = &self.cursors[&place];
        if self.gone.contains(&cursor.tree) {
            return expect(outcome, &[Refusal::Dropped.into()]);
        }
        if let Some(refused) = self.check_born(cursor.tree, cursor.view) {
            return expect(outcome, &[refused.into()]);
        }
        let Some(Way { from, to, goes_up }) = way else { return expect(outcome, &[Outcome::End]) };
        let seen = match outcome {
            Outcome::End => (from, to),
            Outcome::Row { key, value, .. } => {
                let pos = place_of(outcome).filter(|pos| (from..to).contains(pos));
                let pos = pos.ok_or_else(|| format!("{outcome:?} lies outside of {from}..{to}"))?;
                let candidates = cursor.candidates.get(key).into_iter().flatten().flatten();
                let is_seen = candidates.clone().any(|candidate| {
                    cursor.pos(*key, *candidate) == pos && value.is_none_or(|value| value == *candidate)
                });
                if !is_seen {
                    let candidates: Vec<_> = candidates.collect();
                    return Err(format!("{outcome:?} is not what this cursor sees, which is {candidates:?}"));
                }
                if goes_up { (from, pos) } else { (pos + 1, to) }
            }
            other => return expect(other, &[Outcome::End]),
        };
        for (key, candidates) in &cursor.candidates {
            // With several candidates the row may be missed: one version is gone, and the other is at a position that
            // was passed.
            if let Some(Some(first)) = candidates.first()
                && candidates.iter().all(|candidate| *candidate == Some(*first))
                && (seen.0..seen.1).contains(&cursor.pos(*key, *first))
            {
                return Err(format!("the outcome is {outcome:?}, which skips row {key}, {first:?}"));
            }
        }
        Ok(())
    }

    fn locked_step(
        &self,
        cursor: &Cursor,
        way: Option<Way>,
        takes_new_view: bool,
        exclusive: bool,
    ) -> Vec<Verdict> {
        let (me, mut path) = (cursor.me, Path::default());
        let rows = self.tables[cursor.table].rows;
        if self.gone.contains(&cursor.tree) {
            // After a truncation it may have a lock on the table.
            path.effect(Effect::LockTable(rows, Lock { exclusive, sure: false }));
            return path.end(Refusal::Dropped);
        }
        path.effect(Effect::LockTable(rows, Lock { exclusive, sure: true }));
        if let Some(refused) = self.check_born(cursor.tree, self.strict_view(me)) {
            return path.end(refused);
        }
        if let Some((from, to)) = cursor.limits.filter(|_| !cursor.has_begun && self.locks_gaps(me)) {
            path.effect(Effect::LockRange(cursor.tree, (from, to), true));
        }
        let Some(way) = way else { return path.end(Outcome::End) };
        // It locks up to each entry that it reaches, and then reads again.
        let steps = self.locks_gaps(me) && cursor.limits.is_none();
        let up_to = |met: Option<Pos>| {
            let (from, to) = match (met, way.goes_up) {
                (None, _) => (way.from, way.to),
                (Some(pos), true) => (way.from, pos + 1),
                (Some(pos), false) => (pos, way.to),
            };
            steps.then_some(Effect::LockRange(cursor.tree, (from, to), true))
        };
        let ends = |path: &mut Path, outcome: Outcome, met: Option<Pos>| {
            let before = path.effects.len();
            path.effects.extend(up_to(met));
            path.may_end(outcome);
            path.effects.truncate(before);
        };
        let skips = cursor.lock.is_some_and(|lock| lock.skips);
        for Met { pos, key, has_left } in self.met(cursor, way) {
            let is_sure = steps || takes_new_view || !cursor.unsure.contains(&key);
            let writer = self.written(cursor.table, key, me);
            if writer > Conflict::No && !has_left {
                if !skips {
                    ends(&mut path, Refusal::Busy.into(), Some(pos));
                }
                if writer == Conflict::Must && is_sure && !skips {
                    return path.finish();
                }
                if writer == Conflict::Must {
                    continue;
                }
            }
            if has_left || self.has_changed(cursor.table, key, me) {
                ends(&mut path, Refusal::Changed.into(), Some(pos));
                if is_sure {
                    return path.finish();
                }
                continue;
            }
            let Some(newest) = self.newest(cursor.table, key) else { continue };
            let Some(value) = newest.value.filter(|value| cursor.pos(key, *value) == pos) else { continue };
            let before = path.effects.len();
            if Some(newest.trx) != me {
                let held = self.locks.row(rows, row_pos(key), me, exclusive);
                if held > Conflict::No && !skips {
                    ends(&mut path, Refusal::Busy.into(), Some(pos));
                    if held == Conflict::Must && is_sure {
                        return path.finish();
                    }
                }
                if held == Conflict::Must {
                    continue;
                }
                path.effect(Effect::LockRow(rows, row_pos(key), Lock { exclusive, sure: true }));
            }
            if writer == Conflict::May {
                path.effect(Effect::Finished(cursor.table, key));
            }
            ends(&mut path, cursor.row(key, value), Some(pos));
            let is_maybe = writer == Conflict::May || skips && self.has_may(cursor, key);
            if is_sure && !is_maybe {
                return path.finish();
            }
            path.effects.truncate(before);
            if is_sure && !skips {
                // Either the uncertain conflict exists, or this row is returned.
                return path.finish();
            }
        }
        ends(&mut path, Outcome::End, None);
        path.finish()
    }

    /// Returns whether it is uncertain that another transaction blocks the row.
    fn has_may(&self, cursor: &Cursor, key: Key) -> bool {
        let rows = self.tables[cursor.table].rows;
        self.locks.row(rows, row_pos(key), cursor.me, true) == Conflict::May
            || self.written(cursor.table, key, cursor.me) == Conflict::May
    }

    /// Returns the entries on the way of a step, in its direction.
    fn met(&self, cursor: &Cursor, way: Way) -> Vec<Met> {
        let mut met: Vec<Met> = Vec::new();
        for key in 0..KEYS {
            match cursor.over {
                Over::Rows if self.chain(cursor.table, key).is_empty() => {}
                Over::Rows => met.push(Met { pos: row_pos(key), key, has_left: false }),
                Over::Index(which) | Over::Keys(which) => {
                    let view = self.strict_view(cursor.me);
                    for entry in self.all_entries(cursor.table, key, which) {
                        // A delete-marked entry of its own leads to a row that it has changed itself, and one of a
                        // transaction that has ended leads to a row that has left.
                        let is_own = Some(entry.trx) == cursor.me;
                        let is_mark = !entry.is_live && entry.writer.is_none();
                        let has_left = is_mark && view.is_some_and(|view| !self.sees(view, entry.trx));
                        if entry.is_live || !is_own && (!is_mark || has_left) {
                            met.push(Met { pos: entry_pos(entry.index_key, key), key, has_left });
                        }
                    }
                    let pending = self.chain(cursor.table, key).last();
                    let is_pending = pending.is_some_and(|top| self.trx(top.trx).state == State::Pending);
                    if let Some(value) = self.newest_value(cursor.table, key).filter(|_| is_pending) {
                        met.push(Met { pos: cursor.pos(key, value), key, has_left: false });
                    }
                }
            }
        }
        met.retain(|met| (way.from..way.to).contains(&met.pos));
        met.sort_by_key(|met| met.pos);
        met.dedup_by_key(|met| met.pos);
        if !way.goes_up {
            met.reverse();
        }
        met
    }
}
