//! Begin and end of transactions, savepoints, prepared transactions, crashes.

use std::collections::BTreeSet;

use windfall::Isolation;

use super::locks::{Lock, Locks};
use super::{Model, State, Statement, TreeId, TrxNo, Undone};
use crate::outcome::{Outcome, Refusal};
use crate::steps::End;

impl Model {
    pub(crate) fn begin(&mut self, slot: u8, level: Isolation, read_only: bool, snapshot: bool) {
        let trx = self.new_trx(level, read_only);
        if snapshot && level >= Isolation::RepeatableRead {
            self.trx_mut(trx).view = Some(self.seq);
        }
        self.slots[slot as usize] = Some(trx);
    }

    fn commit(&mut self, trx: TrxNo) {
        self.seq += 1;
        self.trx_mut(trx).state = State::Committed(self.seq);
        self.locks.release(trx);
        if !self.trx(trx).touched.is_empty() {
            self.undone.clear();
        }
    }

    fn rollback(&mut self, trx: TrxNo) {
        self.rollback_since(trx, 0, false);
        self.trx_mut(trx).state = State::RolledBack;
        self.locks.release(trx);
    }

    /// Ends a transaction, or drops its handle. Returns the outcome.
    pub(crate) fn end(&mut self, trx: TrxNo, how: End) -> Outcome {
        let is_within = !self.trx(trx).statements.is_empty();
        match how {
            // Its handle is dropped.
            End::Commit | End::RollBack if is_within => {
                self.drop_handle(trx);
                return Refusal::StatementInProgress.into();
            }
            End::Commit => self.commit(trx),
            End::RollBack => self.rollback(trx),
            End::Drop => self.drop_handle(trx),
        }
        Outcome::Done
    }

    pub(crate) fn begin_statement(&mut self, trx: TrxNo) -> Outcome {
        if let Some(refused) = self.check_open(Some(trx)) {
            return refused.into();
        }
        let mark = self.mark();
        let trx = self.trx_mut(trx);
        let hidden = core::mem::take(&mut trx.savepoints);
        trx.statements.push(Statement { mark, hidden });
        Outcome::Done
    }

    pub(crate) fn end_statement(&mut self, trx: TrxNo, undo: bool) -> Outcome {
        if let Some(refused) = self.check_open(Some(trx)) {
            return refused.into();
        }
        let Some(Statement { mark, hidden }) = self.trx_mut(trx).statements.pop() else {
            return Refusal::NoStatement.into();
        };
        if !self.keeps_view(Some(trx)) {
            self.trx_mut(trx).view = None;
        }
        let set = core::mem::replace(&mut self.trx_mut(trx).savepoints, hidden);
        if undo {
            self.rollback_since(trx, mark, true);
        } else {
            let savepoints = &mut self.trx_mut(trx).savepoints;
            savepoints.retain(|(known, _)| !set.iter().any(|(again, _)| again == known));
            savepoints.extend(set);
        }
        Outcome::Done
    }

    /// Drops the handle of a transaction.
    fn drop_handle(&mut self, trx: TrxNo) {
        match &mut self.trx_mut(trx).state {
            State::Open => self.rollback(trx),
            State::Prepared { has_handle, .. } => *has_handle = false,
            State::Pending | State::Committed(_) | State::RolledBack => {}
        }
    }

    pub(crate) fn savepoint(&mut self, trx: TrxNo, name: u8) -> Outcome {
        if let Some(refused) = self.check_open(Some(trx)) {
            return refused.into();
        }
        let mark = self.mark();
        let savepoints = &mut self.trx_mut(trx).savepoints;
        savepoints.retain(|(known, _)| *known != name);
        savepoints.push((name, mark));
        Outcome::Done
    }

    fn place_of(&self, trx: TrxNo, name: u8) -> Result<usize, Refusal> {
        if let Some(refused) = self.check_open(Some(trx)) {
            return Err(refused);
        }
        let place = self.trx(trx).savepoints.iter().position(|(known, _)| *known == name);
        place.ok_or(Refusal::NoSavepoint)
    }

    pub(crate) fn rollback_to(&mut self, trx: TrxNo, name: u8) -> Outcome {
        match self.place_of(trx, name) {
            Err(refused) => refused.into(),
            Ok(place) => {
                let mark = self.trx(trx).savepoints[place].1;
                self.trx_mut(trx).savepoints.truncate(place + 1);
                self.rollback_since(trx, mark, true);
                Outcome::Done
            }
        }
    }

    pub(crate) fn release(&mut self, trx: TrxNo, name: u8) -> Outcome {
        match self.place_of(trx, name) {
            Err(refused) => refused.into(),
            Ok(place) => {
                self.trx_mut(trx).savepoints.truncate(place);
                Outcome::Done
            }
        }
    }

    /// Returns the transaction that is prepared under a name.
    pub(crate) fn prepared(&self, name: u8) -> Option<TrxNo> {
        let is_it =
            |trx: &super::Trx| matches!(trx.state, State::Prepared { name: known, .. } if known == name);
        self.transactions.iter().position(is_it).map(|trx| trx as TrxNo)
    }

    /// Returns all names of prepared transactions.
    pub(crate) fn all_prepared(&self) -> BTreeSet<u8> {
        let name =
            |trx: &super::Trx| if let State::Prepared { name, .. } = trx.state { Some(name) } else { None };
        self.transactions.iter().filter_map(name).collect()
    }

    pub(crate) fn prepare(&mut self, trx: TrxNo, name: u8) -> Outcome {
        if let Some(refused) = self.check_open(Some(trx)) {
            return refused.into();
        }
        if !self.trx(trx).statements.is_empty() {
            return Refusal::StatementInProgress.into();
        }
        if self.prepared(name).is_some() {
            return Refusal::NameTaken.into();
        }
        let prepared = self.trx_mut(trx);
        prepared.state = State::Prepared { name, has_handle: true };
        prepared.view = None;
        prepared.savepoints.clear();
        if !prepared.touched.is_empty() {
            self.undone.clear();
        }
        Outcome::Done
    }

    pub(crate) fn end_prepared(&mut self, name: u8, commits: bool) -> Outcome {
        let Some(trx) = self.prepared(name) else { return Refusal::NotPrepared.into() };
        if matches!(self.trx(trx).state, State::Prepared { has_handle: true, .. }) {
            return Refusal::InUse.into();
        }
        if commits {
            self.commit(trx);
        } else {
            self.rollback(trx);
        }
        Outcome::Done
    }

    /// Returns whether a transaction has a version in a tree of rows, and so holds a lock on one of its rows.
    fn has_version(&self, trx: TrxNo, rows: TreeId) -> bool {
        let of = self.tables.iter().filter(|table| table.rows == rows);
        of.flat_map(|table| table.versions.values().flatten()).any(|version| version.trx == trx)
    }

    /// Another process opens the database: prepared transactions are still there, temporary tables are not, and
    /// unfinished transactions are rolled back in the background.
    pub(crate) fn restart(&mut self, is_crash: bool) {
        self.rolls_back |= is_crash;
        if !is_crash {
            self.undone.clear();
        }
        self.cursors.clear();
        self.slots = Default::default();
        if let Some(temporary) = self.temporary.take() {
            self.forget_table(temporary);
        }
        self.tables.iter_mut().for_each(|table| table.has_handle &= !table.is_dropped);
        self.locks = Locks::default();
        for trx in 0..self.transactions.len() as TrxNo {
            let touched: Vec<TreeId> = self.trx(trx).touched.iter().copied().collect();
            let is_logged = !touched.is_empty();
            match self.trx(trx).state.clone() {
                State::Open | State::Prepared { .. } if !is_logged => self.rollback(trx),
                State::Open => self.trx_mut(trx).state = State::Pending,
                State::Prepared { name, .. } => {
                    self.trx_mut(trx).state = State::Prepared { name, has_handle: false };
                    for rows in touched {
                        // Rows that were rolled back before may still be found, or may be purged.
                        let sure = self.has_version(trx, rows);
                        self.locks.lock_table(rows, trx, Lock { exclusive: true, sure });
                    }
                }
                State::Pending | State::Committed(_) | State::RolledBack => {}
            }
        }
        for Undone { table, rows, key, version } in core::mem::take(&mut self.undone) {
            let known = &mut self.tables[table];
            if known.rows == rows
                && !known.is_dropped
                && self.transactions[version.trx as usize].may_be_found()
            {
                self.transactions[version.trx as usize].state = State::Pending;
                let versions = known.versions.entry(key).or_default();
                versions.push(version);
                versions.sort_by_key(|version| version.number);
            }
        }
        // After an opening all read views are newer than all trees.
        self.created_at.values_mut().for_each(|created_at| *created_at = 0);
    }
}
