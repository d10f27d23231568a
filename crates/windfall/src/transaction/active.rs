//! The table of active transactions, read views, and the horizon of purge.
//!
//! **Purpose.** Says which transactions have begun and not ended: to the checkpoint, so that recovery can roll them
//! back; to readers, who see what had ended when their [`ReadView`] was made; and to purge, so that it leaves alone
//! what someone may still want.
//!
//! **Invariants.** An id is handed out and entered here under one lock, so whoever looks sees every transaction below
//! the next id that has not ended. A transaction is entered before its `TrxBegin` is logged and taken out after its
//! `TrxEnd` was, so a snapshot taken after the log's end was read misses nobody whose records recovery will not see.
//! Before it logs its end it announces where the log ends, so that a checkpoint that still finds it here keeps the
//! floor below that. The lock is a moment's: nobody waits for anything while holding it.
//!
//! *All transactions below [`Active::oldest`] have ended*, and it never goes back. Who asks for it, and then reads an
//! entry of a lower id, has read what that transaction has left for good: had it been rolled back, its entries had been
//! taken back before. The other way round, first the entry and then the question, that would not hold.
//!
//! **May touch.** `ids`, `sync`, `ids` and `locks` of this floor.

use core::time::Duration;
use std::collections::BTreeMap;

use super::{
    ids::Ids,
    listing::{TransactionInfo, TransactionState, ViewInfo},
    locks::{Locker, Locks},
};
use crate::{
    error::{Result, TransactionError, UsageError},
    ids::{Lsn, TrxId, UndoPos},
    sync::{
        Arc, Bug, Mutex, Rank,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
        planted,
    },
};

/// What every look at the database from this moment on may see: the transactions that had ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// Transactions below this one had ended.
    low: TrxId,
    /// Transactions from this one on had not begun.
    high: TrxId,
    /// Those below that had not ended, in order.
    active: Vec<TrxId>,
}

impl Horizon {
    /// Whether this transaction had ended, and all before it.
    pub fn covers_all_up_to(&self, trx: TrxId) -> bool {
        trx < self.low
    }

    /// Whether the transaction had ended.
    pub fn covers(&self, trx: TrxId) -> bool {
        trx < self.low || trx < self.high && self.active.binary_search(&trx).is_err()
    }
}

/// What a reader sees: the versions of all transactions that had ended when it was made. While it is there, purge
/// leaves them alone.
///
/// It may be ended while somebody reads by it. That is noted before purge learns that it is gone; so who finds it there
/// behind a look ([`ReadView::held`]) has missed nothing.
#[derive(Debug)]
pub struct ReadView {
    horizon: Arc<Horizon>,
    pin: Pin,
}

impl ReadView {
    /// Whether it sees the versions of a transaction.
    pub fn sees(&self, trx: TrxId) -> bool {
        self.horizon.covers(trx)
    }

    /// Whether it was ended.
    pub fn is_ended(&self) -> bool {
        self.pin.is_ended.load(SeqCst)
    }

    /// What a look by this view has come to, if it was there up to the end of that.
    ///
    /// # Errors
    /// [`TransactionError::ViewEnded`].
    pub fn held<T, E: From<TransactionError>>(&self, looked: Result<T, E>) -> Result<T, E> {
        if self.is_ended() && !planted(Bug::EndedViewBelieved) {
            return Err(TransactionError::ViewEnded.into());
        }
        looked
    }
}

#[derive(Debug, Default)]
struct Running {
    /// When it got its number, or the database was opened.
    since: Duration,
    /// Its first logged undo record.
    first: UndoPos,
    /// Purge has passed by some of its records.
    left_behind: bool,
    /// The name it is prepared by.
    prepared: Option<Arc<[u8]>>,
    ending: Ending,
    /// Its locks, once it or somebody who waits for it has asked for them.
    locker: Option<Arc<Locker>>,
}

/// What a checkpoint notes of the transactions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Noted {
    /// Those with logged undo, each with its first record.
    pub active: Vec<(TrxId, UndoPos)>,
    /// Those of them that are prepared, each with its name.
    pub prepared: Vec<(TrxId, Arc<[u8]>)>,
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

/// What a view keeps from purge.
#[derive(Debug)]
struct Pinned {
    horizon: Arc<Horizon>,
    since: Duration,
    is_ended: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Table {
    running: BTreeMap<TrxId, Running>,
    pins: BTreeMap<u64, Pinned>,
    next_pin: u64,
    /// What the names of those that are prepared take in a checkpoint's record.
    names: usize,
}

impl Running {
    /// What its name takes in a checkpoint's record.
    fn log_of_name(&self) -> usize {
        self.prepared.as_ref().map_or(0, |name| LOG_OF_ONE + name.len())
    }
}

impl Pinned {
    /// How many ids were given out since.
    fn behind(&self, ids: &Ids) -> u64 {
        ids.next_trx().0.saturating_sub(self.horizon.high.0)
    }
}

impl Table {
    /// Refuses more transactions than a checkpoint can note.
    fn check_room(&self, more: usize, most: usize) -> Result<()> {
        let bytes = LOG_OF_ONE * self.running.len() + self.names + more;
        if bytes <= most {
            return Ok(());
        }
        let what = format!(
            "{} transactions are under way, and log_buffer_size allows no more that change something or are prepared: end some, \
             or enlarge it",
            self.running.len()
        );
        Err(UsageError::Other(what.into()).into())
    }
}

/// What a checkpoint's record takes for a transaction, in bytes, beside its name if it is prepared.
const LOG_OF_ONE: usize = 16;

/// The table.
#[derive(Debug)]
pub struct Active {
    table: Mutex<Table>,
    oldest: AtomicU64,
}

impl Default for Active {
    fn default() -> Self {
        Self { table: Mutex::new(Rank::Transactions, Table::default()), oldest: AtomicU64::new(0) }
    }
}

/// Keeps versions from purge that were there when it was made.
#[derive(Debug)]
struct Pin {
    active: Arc<Active>,
    number: u64,
    is_ended: Arc<AtomicBool>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.active.table.lock().pins.remove(&self.number);
    }
}

impl Active {
    /// Begins a transaction, which has no logged undo yet.
    pub(super) fn begin(&self, ids: &Ids, now: Duration) -> Result<(TrxId, Ending)> {
        let ending = Ending::default();
        loop {
            {
                let mut table = self.table.lock();
                if let Some(trx) = ids.try_trx() {
                    let running = Running { since: now, ending: ending.clone(), ..Running::default() };
                    table.running.insert(trx, running);
                    self.tell_oldest(&table, trx);
                    return Ok((trx, ending));
                }
            }
            ids.raise()?;
        }
    }

    /// Enters a transaction that recovery has found unfinished, and the name it is prepared by.
    pub(super) fn resume(&self, trx: TrxId, first: UndoPos, prepared: Option<Arc<[u8]>>, now: Duration) {
        let running = Running { since: now, first, prepared, ..Running::default() };
        let mut table = self.table.lock();
        table.names += running.log_of_name();
        table.running.insert(trx, running);
    }

    /// Recovery has entered all that it has found, which a checkpoint has to be able to note.
    pub(super) fn opened(&self, ids: &Ids, most: usize) -> Result<()> {
        let table = self.table.lock();
        self.tell_oldest(&table, ids.next_trx());
        table.check_room(0, most)
    }

    /// Notes where the first logged undo record of a transaction is going to lie. What a checkpoint notes must not be
    /// more than so many bytes.
    pub(super) fn note_first(&self, trx: TrxId, first: UndoPos, most: usize) -> Result<()> {
        let mut table = self.table.lock();
        table.check_room(0, most)?;
        if let Some(running) = table.running.get_mut(&trx) {
            running.first = first;
        }
        Ok(())
    }

    /// Notes that a transaction is prepared, before it logs that; or that it is not any more, before it logs that. What
    /// a checkpoint notes must not be more than so many bytes.
    pub(super) fn set_prepared(&self, trx: TrxId, name: Option<&Arc<[u8]>>, most: usize) -> Result<()> {
        let mut table = self.table.lock();
        if let Some(name) = name {
            table.check_room(LOG_OF_ONE + name.len(), most)?;
        }
        if let Some(running) = table.running.get_mut(&trx) {
            let before = running.log_of_name();
            running.prepared = name.cloned();
            let now = running.log_of_name();
            table.names = table.names - before + now;
        }
        Ok(())
    }

    /// The name by which a transaction is prepared.
    pub(super) fn prepared(&self, trx: TrxId) -> Option<Arc<[u8]>> {
        self.table.lock().running.get(&trx)?.prepared.clone()
    }

    /// Ends a transaction. Says whether purge has passed by some of its records, and gives its locks.
    pub(super) fn end(&self, trx: TrxId, ids: &Ids) -> (bool, Option<Arc<Locker>>) {
        let mut table = self.table.lock();
        let ended = table.running.remove(&trx);
        table.names -= ended.as_ref().map_or(0, Running::log_of_name);
        self.tell_oldest(&table, ids.next_trx());
        drop(table);
        ended.map_or((false, None), |running| (running.left_behind, running.locker))
    }

    /// Ids are given out under the lock, so `next` is above all that have begun.
    fn tell_oldest(&self, table: &Table, next: TrxId) {
        let oldest = table.running.first_key_value().map_or(next, |(trx, _)| *trx);
        if self.oldest.load(Relaxed) != oldest.0 {
            self.oldest.store(oldest.0, Release);
        }
    }

    /// All transactions below this one have ended.
    pub fn oldest(&self) -> TrxId {
        TrxId(self.oldest.load(Acquire))
    }

    /// Whether a transaction has begun and not ended.
    pub fn is_active(&self, trx: TrxId) -> bool {
        trx >= self.oldest() && self.table.lock().running.contains_key(&trx)
    }

    /// The locks of a transaction, which are made if it has none yet. `None` when it has ended.
    pub(super) fn locker(&self, trx: TrxId, locks: &Locks) -> Option<Arc<Locker>> {
        let mut table = self.table.lock();
        let running = table.running.get_mut(&trx)?;
        Some(running.locker.get_or_insert_with(|| locks.locker(trx)).clone())
    }

    /// Takes the locks of a transaction away. Who wants what it has changed makes it new ones.
    pub(super) fn take_locker(&self, trx: TrxId) -> Option<Arc<Locker>> {
        self.table.lock().running.get_mut(&trx)?.locker.take()
    }

    /// An id that is nobody's.
    ///
    /// # Errors
    /// When the log takes no more.
    pub(super) fn number(&self, ids: &Ids) -> Result<TrxId> {
        loop {
            {
                let table = self.table.lock();
                if let Some(number) = ids.try_trx() {
                    self.tell_oldest(&table, ids.next_trx());
                    return Ok(number);
                }
            }
            ids.raise()?;
        }
    }

    /// An id for something that happens at this moment, which the views that are there do not see; [`TrxId::NONE`] when
    /// there are none.
    ///
    /// # Errors
    /// When the log takes no more.
    pub(super) fn stamp(&self, ids: &Ids) -> Result<TrxId> {
        if self.table.lock().pins.is_empty() { Ok(TrxId::NONE) } else { self.number(ids) }
    }

    /// Notes that purge passes by a record of an active transaction. `false` when it is not active.
    pub(super) fn leave_behind(&self, trx: TrxId) -> bool {
        match self.table.lock().running.get_mut(&trx) {
            Some(running) => {
                running.left_behind = true;
                true
            }
            None => false,
        }
    }

    /// The transactions with logged undo, each with its first record.
    pub fn snapshot(&self) -> Vec<(TrxId, UndoPos)> {
        Self::logged(&self.table.lock())
    }

    fn logged(table: &Table) -> Vec<(TrxId, UndoPos)> {
        let logged = table.running.iter().filter(|(_, running)| running.first != UndoPos::NONE);
        logged.map(|(trx, running)| (*trx, running.first)).collect()
    }

    /// Where a transaction is to announce its end.
    pub(super) fn ending(&self, trx: TrxId) -> Option<Ending> {
        self.table.lock().running.get(&trx).map(|running| running.ending.clone())
    }

    /// What a checkpoint notes, and the LSN at or below which all of them will have logged their end.
    pub(super) fn note(&self) -> (Noted, Lsn) {
        let table = self.table.lock();
        let active = Self::logged(&table);
        let prepared = table.running.iter().filter(|(_, running)| running.first != UndoPos::NONE);
        let prepared =
            prepared.filter_map(|(trx, running)| Some((*trx, running.prepared.clone()?))).collect();
        // The floor was read before: whoever's end lies below it had announced that end by then.
        let ending = table.running.values().map(|running| Lsn(running.ending.0.load(SeqCst)));
        (Noted { active, prepared }, ending.min().unwrap_or(Lsn::MAX))
    }

    /// How many are active.
    pub fn count(&self) -> usize {
        self.table.lock().running.len()
    }

    fn look(table: &Table, ids: &Ids) -> Horizon {
        let high = ids.next_trx();
        let active: Vec<TrxId> = table.running.keys().copied().collect();
        Horizon { low: active.first().copied().unwrap_or(high), high, active }
    }

    /// How many ids were given out since the oldest view was made; none without one.
    pub fn oldest_view(&self, ids: &Ids) -> u64 {
        let table = self.table.lock();
        table.pins.first_key_value().map_or(0, |(_, oldest)| oldest.behind(ids))
    }

    /// All transactions.
    pub(super) fn listing(&self, now: Duration) -> Vec<TransactionInfo> {
        let info = |(id, running): (&TrxId, &Running)| TransactionInfo {
            id: *id,
            age: now.saturating_sub(running.since),
            has_changes: running.first != UndoPos::NONE,
            state: match &running.prepared {
                Some(name) => TransactionState::Prepared(name.to_vec()),
                None => TransactionState::Open,
            },
        };
        self.table.lock().running.iter().map(info).collect()
    }

    /// All views.
    pub(super) fn views(&self, ids: &Ids, now: Duration) -> Vec<ViewInfo> {
        let info =
            |pinned: &Pinned| ViewInfo { age: now.saturating_sub(pinned.since), behind: pinned.behind(ids) };
        self.table.lock().pins.values().map(info).collect()
    }

    /// What purge may take: the versions replaced by transactions that had ended when the oldest pin was made; without
    /// any, that have ended now.
    pub fn horizon(&self, ids: &Ids) -> Arc<Horizon> {
        let table = self.table.lock();
        match table.pins.first_key_value().filter(|_| !planted(Bug::PurgeIgnoresViews)) {
            Some((_, oldest)) => oldest.horizon.clone(),
            None => Arc::new(Self::look(&table, ids)),
        }
    }

    /// What has ended by now, whatever views see.
    pub(super) fn ended(&self, ids: &Ids) -> Horizon {
        Self::look(&self.table.lock(), ids)
    }

    /// A view of what has ended by now.
    pub fn view(this: &Arc<Self>, ids: &Ids, now: Duration) -> ReadView {
        let mut table = this.table.lock();
        let number = table.next_pin;
        table.next_pin += 1;
        let mut horizon = Self::look(&table, ids);
        if planted(Bug::ViewTooNew) {
            horizon.active.pop();
        }
        let (horizon, is_ended) = (Arc::new(horizon), Arc::new(AtomicBool::new(false)));
        let pinned = Pinned { horizon: horizon.clone(), since: now, is_ended: is_ended.clone() };
        table.pins.insert(number, pinned);
        ReadView { horizon, pin: Pin { active: this.clone(), number, is_ended } }
    }

    /// Ends the views that do not see a transaction, from the oldest one on to those that were made later than this.
    /// Says how many.
    pub(super) fn end_views(&self, trx: TrxId, made_before: Duration) -> u64 {
        let mut table = self.table.lock();
        let mut ended = 0;
        while let Some(oldest) = table.pins.first_entry()
            && oldest.get().since < made_before
            && !oldest.get().horizon.covers(trx)
        {
            // Purge looks for views under this lock.
            oldest.get().is_ended.store(true, SeqCst);
            oldest.remove();
            ended += 1;
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::{
        super::tests::{Base, Setup},
        *,
    };
    #[test]
    fn a_checkpoint_learns_of_ends_under_way_and_a_horizon_covers_what_ended() {
        let active = Arc::new(Active::default());
        for (trx, first) in [(5, 50), (7, 70), (9, 0)] {
            active.resume(TrxId(trx), UndoPos(first), None, Duration::ZERO);
        }
        // The third has written to temporary tables only.
        let all = vec![(TrxId(5), UndoPos(50)), (TrxId(7), UndoPos(70))];
        let noted = |active: &[_]| Noted { active: active.to_vec(), prepared: Vec::new() };
        assert_eq!(active.note(), (noted(&all), Lsn::MAX));
        let ending = active.ending(TrxId(5)).unwrap();
        ending.announce(Lsn(800));
        active.ending(TrxId(7)).unwrap().announce(Lsn(900));
        assert_eq!(active.note(), (noted(&all), Lsn(800)));
        let base = Base::open(Setup::simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1))).unwrap();
        let ids = base.transactions.ids();
        assert!(!active.end(TrxId(5), ids).0);
        assert_eq!(active.oldest(), TrxId(7));
        assert_eq!(active.note(), (noted(&all[1..]), Lsn(900)));
        // A name takes room in the checkpoint's record, and who has no logged undo is not noted.
        let name: Arc<[u8]> = b"name"[..].into();
        assert!(active.set_prepared(TrxId(7), Some(&name), 51).is_err());
        active.set_prepared(TrxId(7), Some(&name), 52).unwrap();
        active.set_prepared(TrxId(9), Some(&name), 72).unwrap();
        let both = Noted { prepared: vec![(TrxId(7), name)], ..noted(&all[1..]) };
        assert_eq!(active.note(), (both, Lsn(900)));
        // What recovery has found may be more than a smaller log buffer allows.
        let base = Base::open(Setup::simulated(&SimulatedDisk::new(2), &SimulatedEnv::new(2))).unwrap();
        let refused = active.opened(base.transactions.ids(), 71).unwrap_err().to_string();
        assert!(refused.contains("log_buffer_size"), "{refused}");
        active.opened(base.transactions.ids(), 72).unwrap();
        active.set_prepared(TrxId(7), None, 0).unwrap();
        assert_eq!(active.note(), (noted(&all[1..]), Lsn(900)));
        assert!(active.leave_behind(TrxId(7)) && !active.leave_behind(TrxId(5)));

        let horizon = Horizon { low: TrxId(5), high: TrxId(10), active: vec![TrxId(7), TrxId(9)] };
        let covered: Vec<u64> = (4..12).filter(|trx| horizon.covers(TrxId(*trx))).collect();
        assert_eq!(covered, [4, 5, 6, 8]);
        assert!(active.end(TrxId(7), ids).0);
    }
}
