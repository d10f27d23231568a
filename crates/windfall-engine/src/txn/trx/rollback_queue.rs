//! The transactions that are being rolled back in the background.
//!
//! **Purpose.** The queue of the worker that rolls them back (`background_rollback`), and the queries on it: which
//! tables these transactions have changed, and whether a row change was interrupted.
//!
//! **Invariants.** A transaction is here from the moment that it is handed over until it is fully rolled back, also
//! while the worker processes it (test: `the_database_is_open_while_unfinished_transactions_are_rolled_back`). The
//! interruption of a row change is noted before the table's gate, or its
//! [`Space::check_lock`](crate::buffer::Space::check_lock), is released ([`ChecksExcluded`]) (by type).

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::state::{RollbackFrom, Suspended};
use crate::{
    ids::{SpaceId, TrxId, UndoPos},
    sync::{
        Arc, Event, Mutex, Rank, RwLockReadGuard,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

/// The transactions that are being rolled back.
#[derive(Debug)]
pub struct Rollbacks {
    pub(super) state: Mutex<RollbackQueueState>,
    /// Wakes the worker early.
    wake: Arc<Event>,
    /// Signals that a rollback or a search has ended, or cannot continue.
    pub(super) moved: Event,
    /// The number of transactions with a partly applied row change.
    partial_changes: AtomicUsize,
}

#[derive(Debug, Default)]
pub(super) struct RollbackQueueState {
    pub searches: VecDeque<Search>,
    pub waiting: VecDeque<PendingRollback>,
    /// Transactions with a partly applied row change, and its table.
    pub partial_changes: BTreeMap<TrxId, SpaceId>,
}

/// What keeps a check of a table away from a change of a row that is in progress.
#[derive(Debug)]
pub(in crate::txn) enum ChecksExcluded<'t> {
    /// The caller is inside the table's gate.
    InsideGate,
    /// The caller holds the table's check lock.
    Locked {
        /// Released after the change.
        _guard: RwLockReadGuard<'t, ()>,
    },
    /// The table was dropped.
    Dropped,
}

/// A search for the records of a stream's unfinished transactions.
#[derive(Clone, Debug)]
pub(super) struct Search {
    pub stream: u8,
    pub at: u64,
    pub end: u64,
    pub found: BTreeMap<TrxId, Found>,
    /// The next step runs no earlier than this.
    pub due: Duration,
    /// Whether the last step has failed.
    pub failed: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// The last record of the transaction, once the search has found one.
    pub last: Option<UndoPos>,
    /// The clustered trees of the tables with changes.
    pub touched: BTreeSet<SpaceId>,
    /// The name by which it is prepared.
    pub name: Option<Arc<[u8]>>,
}

#[derive(Debug)]
pub(super) struct PendingRollback {
    pub id: TrxId,
    /// `None` while the worker processes it.
    pub trx: Option<Suspended>,
    /// The point at which the rollback continues.
    pub from: RollbackFrom,
    /// The tables that it has changed.
    pub touched: Vec<SpaceId>,
    /// The next step runs no earlier than this.
    pub due: Duration,
    /// Whether the last step has failed.
    pub failed: bool,
}

impl PendingRollback {
    pub(super) fn new(trx: Suspended) -> Self {
        let id = trx.id().expect("a transaction with changes has an id");
        let touched = trx.touched().to_vec();
        Self { id, trx: Some(trx), from: RollbackFrom::Begin, touched, due: Duration::ZERO, failed: false }
    }
}

impl Rollbacks {
    pub(in crate::txn) fn new() -> Self {
        let state = Mutex::new(Rank::Leaf, RollbackQueueState::default());
        Self {
            state,
            wake: Arc::new(Event::new()),
            moved: Event::new(),
            partial_changes: AtomicUsize::new(0),
        }
    }

    /// Returns the event that wakes the worker early.
    pub fn wake(&self) -> Arc<Event> {
        self.wake.clone()
    }

    /// Returns the number of transactions that are being rolled back.
    pub fn count(&self) -> usize {
        let state = self.state.lock();
        state.waiting.len() + state.searches.iter().map(|search| search.found.len()).sum::<usize>()
    }

    /// Returns the transactions that are being rolled back.
    pub(in crate::txn) fn all(&self) -> BTreeSet<TrxId> {
        let state = self.state.lock();
        let searched = state.searches.iter().flat_map(|search| search.found.keys().copied());
        searched.chain(state.waiting.iter().map(|waiting| waiting.id)).collect()
    }

    /// Hands over a transaction that could not be rolled back at once.
    pub(in crate::txn) fn add(&self, trx: Suspended) {
        let waiting = PendingRollback::new(trx);
        let mut state = self.state.lock();
        debug_assert!(
            state.waiting.back().is_none_or(|last| last.id != waiting.id),
            "transaction {} is handed over twice",
            waiting.id
        );
        state.waiting.push_back(waiting);
        drop(state);
        self.wake.notify();
    }

    /// Checks that a transaction is here once.
    ///
    /// # Panics
    /// An invariant is violated.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::txn) fn check_invariants(&self) {
        let Some(state) = self.state.try_lock() else { return };
        let searched = state.searches.iter().flat_map(|search| search.found.keys().copied());
        let mut all: Vec<_> = searched.chain(state.waiting.iter().map(|waiting| waiting.id)).collect();
        all.sort_unstable();
        let number = all.len();
        all.dedup();
        assert!(all.len() == number, "a transaction is handed over twice");
    }

    /// Returns whether no transaction here has changes left in a table.
    pub(crate) fn are_clear_of(&self, space: SpaceId) -> bool {
        self.blockers(space).is_empty()
    }

    /// Returns the transactions here that may have changed a table.
    pub(super) fn blockers(&self, space: SpaceId) -> Vec<TrxId> {
        let state = self.state.lock();
        let searched = state.searches.iter().flat_map(|search| search.found.keys());
        let waiting = state.waiting.iter().filter(|waiting| waiting.touched.contains(&space));
        searched.copied().chain(waiting.map(|waiting| waiting.id)).collect()
    }

    /// Returns whether one of those that may have changed a table makes progress.
    pub(super) fn makes_progress(&self, space: SpaceId) -> bool {
        let state = self.state.lock();
        let mut waiting = state.waiting.iter().filter(|waiting| waiting.touched.contains(&space));
        state.searches.iter().any(|search| !search.failed) || waiting.any(|waiting| !waiting.failed)
    }

    /// Notes that a transaction has changed a row of a table in part, or has rolled back such a change in part.
    pub(in crate::txn) fn note_partial_change(&self, trx: TrxId, space: SpaceId, _: &ChecksExcluded<'_>) {
        if self.state.lock().partial_changes.insert(trx, space).is_none() {
            self.partial_changes.fetch_add(1, SeqCst);
        }
    }

    /// As a rollback that has failed in the middle of a change: the rest of it is left to the end of the transaction.
    #[cfg(feature = "testing")]
    pub fn cut_off(&self, trx: TrxId, space: SpaceId) {
        self.note_partial_change(trx, space, &ChecksExcluded::InsideGate);
    }

    /// Notes that the change is rolled back, or the transaction has ended.
    pub(in crate::txn) fn forget_partial_change(&self, trx: TrxId) {
        if self.partial_changes.load(SeqCst) > 0 && self.state.lock().partial_changes.remove(&trx).is_some() {
            let before = self.partial_changes.fetch_sub(1, SeqCst);
            debug_assert!(before > 0, "a partly applied change of transaction {trx} was not counted");
        }
    }

    /// Returns whether a row of this table may have a partly applied change that is still to be rolled back.
    pub(in crate::txn) fn may_have_partial_change(&self, space: SpaceId) -> bool {
        let is_cut_off = || self.state.lock().partial_changes.values().any(|table| *table == space);
        !self.blockers(space).is_empty() || is_cut_off()
    }

    /// Takes the next one that is due: a search, else a transaction. It is moved to the front.
    pub(super) fn next(&self, now: Duration) -> Option<NextTask> {
        let mut state = self.state.lock();
        if let Some(at) = state.searches.iter().position(|search| search.due <= now) {
            state.searches.rotate_left(at);
            return state.searches.front().cloned().map(NextTask::Search);
        }
        let at = state.waiting.iter().position(|waiting| waiting.due <= now)?;
        state.waiting.rotate_left(at);
        let waiting = state.waiting.front_mut()?;
        let trx = waiting.trx.take().expect("there is one worker");
        debug_assert!(trx.id() == Some(waiting.id), "a background rollback is that of another transaction");
        Some(NextTask::Transaction(trx, waiting.from))
    }

    pub(super) fn is_any_due(&self, now: Duration) -> bool {
        let state = self.state.lock();
        state.searches.iter().any(|search| search.due <= now)
            || state.waiting.iter().any(|waiting| waiting.due <= now)
    }
}

/// The next task of the worker.
pub(super) enum NextTask {
    Search(Search),
    Transaction(Suspended, RollbackFrom),
}
