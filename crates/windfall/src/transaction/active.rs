//! The table of active transactions, and the horizon of purge.
//!
//! **Purpose.** Says which transactions have begun and not ended: to the checkpoint, so that recovery can roll them back,
//! and to purge, so that it leaves alone what someone may still want.
//!
//! **Invariants.** An id is handed out and entered here under one lock, so whoever looks sees every transaction below the next
//! id that has not ended. A transaction is entered before its `TrxBegin` is logged and taken out after its `TrxEnd` was, so
//! a snapshot taken after the log's end was read misses nobody whose records recovery will not see. The lock is a
//! moment's: nobody waits for anything while holding it.
//!
//! **May touch.** `ids`, `sync`, `ids` of this floor.

use std::collections::{BTreeMap, btree_map::Entry};

use super::ids::Ids;
use crate::{
    error::Result,
    ids::{TrxId, UndoPos},
    sync::{Arc, Mutex, Rank},
};

/// What every look at the database from this moment on may see: the transactions that had ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// Transactions from this one on had not begun.
    high: TrxId,
    /// Those below that had not ended, in order.
    active: Vec<TrxId>,
}

impl Horizon {
    /// Whether the transaction had ended.
    pub fn covers(&self, trx: TrxId) -> bool {
        trx < self.high && self.active.binary_search(&trx).is_err()
    }
}

#[derive(Debug, Default)]
struct Running {
    /// Its first logged undo record.
    first: UndoPos,
    /// Purge has passed by some of its records.
    left_behind: bool,
}

#[derive(Debug, Default)]
struct Table {
    running: BTreeMap<TrxId, Running>,
    pins: BTreeMap<u64, Arc<Horizon>>,
    next_pin: u64,
}

/// The table.
#[derive(Debug)]
pub struct Active(Mutex<Table>);

impl Default for Active {
    fn default() -> Self {
        Self(Mutex::new(Rank::Transactions, Table::default()))
    }
}

/// Keeps versions from purge that were there when it was made.
#[derive(Debug)]
pub struct Pin<'a> {
    active: &'a Active,
    number: u64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.active.0.lock().pins.remove(&self.number);
    }
}

impl Active {
    /// Begins a transaction. `first` is where its first logged undo record is going to lie; none yet for one that has
    /// written to temporary tables only.
    pub(super) fn begin(&self, ids: &Ids, first: UndoPos) -> Result<TrxId> {
        loop {
            {
                let mut table = self.0.lock();
                if let Some(trx) = ids.try_trx() {
                    table.running.insert(trx, Running { first, left_behind: false });
                    return Ok(trx);
                }
            }
            ids.raise()?;
        }
    }

    /// Enters a transaction that recovery has found unfinished.
    pub(super) fn resume(&self, trx: TrxId, first: UndoPos) {
        self.0.lock().running.insert(trx, Running { first, left_behind: false });
    }

    /// Notes the first logged undo record of a transaction that had none so far.
    pub(super) fn note_first(&self, trx: TrxId, first: UndoPos) {
        if let Entry::Occupied(mut running) = self.0.lock().running.entry(trx) {
            running.get_mut().first = first;
        }
    }

    /// Ends a transaction. Says whether purge has passed by some of its records.
    pub(super) fn end(&self, trx: TrxId) -> bool {
        self.0.lock().running.remove(&trx).is_some_and(|running| running.left_behind)
    }

    /// Notes that purge passes by a record of an active transaction. `false` when it is not active.
    pub(super) fn leave_behind(&self, trx: TrxId) -> bool {
        match self.0.lock().running.get_mut(&trx) {
            Some(running) => {
                running.left_behind = true;
                true
            }
            None => false,
        }
    }

    /// The transactions with logged undo, each with its first record.
    pub fn snapshot(&self) -> Vec<(TrxId, UndoPos)> {
        let table = self.0.lock();
        let logged = table.running.iter().filter(|(_, running)| running.first != UndoPos::NONE);
        logged.map(|(trx, running)| (*trx, running.first)).collect()
    }

    /// How many are active.
    pub fn count(&self) -> usize {
        self.0.lock().running.len()
    }

    fn look(table: &Table, ids: &Ids) -> Horizon {
        Horizon { high: ids.next_trx(), active: table.running.keys().copied().collect() }
    }

    /// What purge may take: the versions replaced by transactions that had ended when the oldest pin was made; without
    /// any, that have ended now.
    pub fn horizon(&self, ids: &Ids) -> Arc<Horizon> {
        let table = self.0.lock();
        match table.pins.first_key_value() {
            Some((_, oldest)) => oldest.clone(),
            None => Arc::new(Self::look(&table, ids)),
        }
    }

    /// Keeps what is there now from purge.
    pub fn pin(&self, ids: &Ids) -> Pin<'_> {
        let mut table = self.0.lock();
        let number = table.next_pin;
        table.next_pin += 1;
        let horizon = Arc::new(Self::look(&table, ids));
        table.pins.insert(number, horizon);
        Pin { active: self, number }
    }
}
