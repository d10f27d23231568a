//! The table of active transactions, and the horizon of purge.
//!
//! **Purpose.** Says which transactions have begun and not ended: to the checkpoint, so that recovery can roll them back,
//! and to purge, so that it leaves alone what someone may still want.
//!
//! **Invariants.** An id is handed out and entered here under one lock, so whoever looks sees every transaction below
//! the next id that has not ended. A transaction is entered before its `TrxBegin` is logged and taken out after its
//! `TrxEnd` was, so a snapshot taken after the log's end was read misses nobody whose records recovery will not see.
//! Before it logs its end it announces where the log ends, so that a checkpoint that still finds it here keeps the
//! floor below that. The lock is a moment's: nobody waits for anything while holding it.
//!
//! **May touch.** `ids`, `sync`, `ids` of this floor.

use std::collections::{BTreeMap, btree_map::Entry};

use super::ids::Ids;
use crate::{
    error::Result,
    ids::{Lsn, TrxId, UndoPos},
    sync::{
        Arc, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
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
    ending: Ending,
}

/// Where the log ended when a transaction was about to log its own end; [`Lsn::MAX`] before that.
#[derive(Clone, Debug)]
pub(super) struct Ending(Arc<AtomicU64>);

impl Default for Ending {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(Lsn::MAX.0)))
    }
}

impl Ending {
    /// The transaction is about to append its `TrxEnd`.
    pub fn announce(&self, log_end: Lsn) {
        self.0.store(log_end.0, SeqCst);
    }
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
pub struct Pin {
    active: Arc<Active>,
    number: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.active.0.lock().pins.remove(&self.number);
    }
}

impl Active {
    /// Begins a transaction. `first` is where its first logged undo record is going to lie; none yet for one that has
    /// written to temporary tables only.
    pub(super) fn begin(&self, ids: &Ids, first: UndoPos) -> Result<(TrxId, Ending)> {
        let ending = Ending::default();
        loop {
            {
                let mut table = self.0.lock();
                if let Some(trx) = ids.try_trx() {
                    let running = Running { first, left_behind: false, ending: ending.clone() };
                    table.running.insert(trx, running);
                    return Ok((trx, ending));
                }
            }
            ids.raise()?;
        }
    }

    /// Enters a transaction that recovery has found unfinished.
    pub(super) fn resume(&self, trx: TrxId, first: UndoPos) {
        self.0.lock().running.insert(trx, Running { first, ..Running::default() });
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
        Self::logged(&self.0.lock())
    }

    fn logged(table: &Table) -> Vec<(TrxId, UndoPos)> {
        let logged = table.running.iter().filter(|(_, running)| running.first != UndoPos::NONE);
        logged.map(|(trx, running)| (*trx, running.first)).collect()
    }

    /// Where a transaction is to announce its end.
    pub(super) fn ending(&self, trx: TrxId) -> Option<Ending> {
        self.0.lock().running.get(&trx).map(|running| running.ending.clone())
    }

    /// The snapshot, and the LSN at or below which all of them will have logged their end.
    pub(super) fn note(&self) -> (Vec<(TrxId, UndoPos)>, Lsn) {
        let table = self.0.lock();
        let snapshot = Self::logged(&table);
        // The floor was read before: whoever's end lies below it had announced that end by then.
        let ending = table.running.values().map(|running| Lsn(running.ending.0.load(SeqCst)));
        (snapshot, ending.min().unwrap_or(Lsn::MAX))
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
    pub fn pin(this: &Arc<Self>, ids: &Ids) -> Pin {
        let mut table = this.0.lock();
        let number = table.next_pin;
        table.next_pin += 1;
        let horizon = Arc::new(Self::look(&table, ids));
        table.pins.insert(number, horizon);
        Pin { active: this.clone(), number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_learns_of_ends_under_way_and_a_horizon_covers_what_ended() {
        let active = Arc::new(Active::default());
        for (trx, first) in [(5, 50), (7, 70), (9, 0)] {
            active.resume(TrxId(trx), UndoPos(first));
        }
        // The third has written to temporary tables only.
        let all = vec![(TrxId(5), UndoPos(50)), (TrxId(7), UndoPos(70))];
        assert_eq!(active.note(), (all.clone(), Lsn::MAX));
        let ending = active.ending(TrxId(5)).unwrap();
        ending.announce(Lsn(800));
        active.ending(TrxId(7)).unwrap().announce(Lsn(900));
        assert_eq!(active.note(), (all.clone(), Lsn(800)));
        assert!(!active.end(TrxId(5)));
        assert_eq!(active.note(), (all[1..].to_vec(), Lsn(900)));
        assert!(active.leave_behind(TrxId(7)) && !active.leave_behind(TrxId(5)));

        let horizon = Horizon { high: TrxId(10), active: vec![TrxId(7), TrxId(9)] };
        let covered: Vec<u64> = (4..12).filter(|trx| horizon.covers(TrxId(*trx))).collect();
        assert_eq!(covered, [4, 5, 6, 8]);
        assert!(active.end(TrxId(7)));
    }
}
