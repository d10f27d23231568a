//! Background rollbacks.
//!
//! **Purpose.** Transactions that recovery has found unfinished are rolled back while the database is open for work; so
//! are transactions that a call could not roll back at once.
//!
//! **Invariants.**
//! - Until it is fully rolled back a transaction is active: its rows are locked, and readers see the versions before
//!   its changes.
//! - The records of an unfinished transaction are found by reading its stream from its first record to the end that the
//!   stream had when the database was opened. One such *search* serves all transactions of a stream, and none of them
//!   is rolled back before the search is complete.
//! - Prepared transactions are searched for before the database is open, and have locks on their tables from then on.
//! - All other transactions here have no locks except the implicit ones on the rows that they have changed. A drop or a
//!   truncation does not wait for them, because a table that is gone needs no rollback. A statement that must find no
//!   unfinished change in a table locks the table and then waits for them ([`Transactions::await_rollbacks`]). A call
//!   that is not part of a transaction is not kept out by that lock. So the statement checks with the table's gate
//!   closed whether a transaction was handed over meanwhile ([`Rollbacks::are_clear_of`]).
//! - A row change that was interrupted has some of its entries and not others. It belongs to a transaction that is
//!   here, or to one that has failed to roll back completely. The failure is noted before the table's gate, or its
//!   [`Space::check_lock`], is released ([`Rollbacks::may_have_cut_off`]).
//! - A rollback that cannot continue, because the disk is full or a page cannot be read, is retried from time to time,
//!   and the others continue meanwhile. Closing the database leaves the remaining rollbacks to the next opening.
//!
//! [`Space::check_lock`]: crate::buffer::Space::check_lock

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    Transactions,
    locks::{LockRequest, LockTimeout, TableMode},
    stream::Stream,
    trx::{RollbackStep, Suspended, Trx},
};
use crate::{
    error::{Blockers, LockError, Result},
    ids::{SpaceId, TrxId, UndoPos},
    sync::{
        Arc, Bug, Event, Mutex, Rank,
        atomic::{AtomicUsize, Ordering::SeqCst},
        planted,
    },
};

/// The time until a failed step is retried.
const PAUSE: Duration = Duration::from_secs(1);
/// The time until a transaction continues that has met a quiesced table, or a follower without room.
const REST_PAUSE: Duration = Duration::from_millis(20);
/// The interval at which a wait for a rollback calls other work.
const STEP: Duration = Duration::from_millis(50);
/// Records that a step undoes.
const RECORDS_PER_STEP: usize = 64;
/// Records that a step of a search examines.
const LOOKS_PER_STEP: usize = 1024;

/// The transactions that are being rolled back.
#[derive(Debug)]
pub struct Rollbacks {
    state: Mutex<State>,
    /// Wakes the worker early.
    wake: Arc<Event>,
    /// Signals that a rollback or a search has ended, or cannot continue.
    moved: Event,
    /// The number of transactions with a partly applied row change.
    cut_off: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    searches: VecDeque<Search>,
    waiting: VecDeque<Waiting>,
    /// Transactions with a partly applied row change, and its table.
    cut_off: BTreeMap<TrxId, SpaceId>,
}

/// A search for the records of a stream's unfinished transactions.
#[derive(Clone, Debug)]
struct Search {
    stream: u8,
    at: u64,
    end: u64,
    found: BTreeMap<TrxId, Found>,
    /// The next step runs no earlier than this.
    due: Duration,
    /// Whether the last step has failed.
    failed: bool,
}

#[derive(Clone, Debug, Default)]
struct Found {
    last: UndoPos,
    /// The clustered trees of the tables with changes.
    touched: BTreeSet<SpaceId>,
    /// The name by which it is prepared.
    name: Option<Arc<[u8]>>,
}

#[derive(Debug)]
struct Waiting {
    id: TrxId,
    /// `None` while the worker processes it.
    trx: Option<Suspended>,
    /// The record at which it continues; `None` before it has begun.
    from: Option<UndoPos>,
    /// The tables that it has changed.
    touched: Vec<SpaceId>,
    /// The next step runs no earlier than this.
    due: Duration,
    /// Whether the last step has failed.
    failed: bool,
}

impl Waiting {
    fn new(trx: Suspended) -> Self {
        let touched = trx.touched().to_vec();
        Self { id: trx.id(), trx: Some(trx), from: None, touched, due: Duration::ZERO, failed: false }
    }
}

impl Rollbacks {
    pub(super) fn new() -> Self {
        let state = Mutex::new(Rank::Leaf, State::default());
        Self { state, wake: Arc::new(Event::new()), moved: Event::new(), cut_off: AtomicUsize::new(0) }
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
    pub(super) fn all(&self) -> BTreeSet<TrxId> {
        let state = self.state.lock();
        let searched = state.searches.iter().flat_map(|search| search.found.keys().copied());
        searched.chain(state.waiting.iter().map(|waiting| waiting.id)).collect()
    }

    /// Hands over a transaction that could not be rolled back at once.
    pub(super) fn add(&self, trx: Suspended) {
        let waiting = Waiting::new(trx);
        debug_assert!(waiting.id != TrxId::NONE, "a transaction with changes has an id");
        self.state.lock().waiting.push_back(waiting);
        self.wake.notify();
    }

    /// Returns whether no transaction here has changes left in a table.
    pub fn are_clear_of(&self, space: SpaceId) -> bool {
        self.blockers(space).is_empty()
    }

    /// Returns the transactions here that may have changed a table.
    fn blockers(&self, space: SpaceId) -> Vec<TrxId> {
        if planted(Bug::HandedOverUnseen) {
            return Vec::new();
        }
        let state = self.state.lock();
        let searched = state.searches.iter().flat_map(|search| search.found.keys());
        let waiting = state.waiting.iter().filter(|waiting| waiting.touched.contains(&space));
        searched.copied().chain(waiting.map(|waiting| waiting.id)).collect()
    }

    /// Returns whether one of those that may have changed a table makes progress.
    fn gets_on(&self, space: SpaceId) -> bool {
        let state = self.state.lock();
        let mut waiting = state.waiting.iter().filter(|waiting| waiting.touched.contains(&space));
        state.searches.iter().any(|search| !search.failed) || waiting.any(|waiting| !waiting.failed)
    }

    /// Notes that a transaction has changed a row of a table in part, or has rolled back such a change in part. The
    /// caller is still inside the table's gate, or keeps the table from being quiesced.
    pub fn note_cut_off(&self, trx: TrxId, space: SpaceId) {
        if self.state.lock().cut_off.insert(trx, space).is_none() {
            self.cut_off.fetch_add(1, SeqCst);
        }
    }

    /// Notes that the change is rolled back, or the transaction has ended.
    pub(super) fn forget_cut_off(&self, trx: TrxId) {
        if self.cut_off.load(SeqCst) > 0 && self.state.lock().cut_off.remove(&trx).is_some() {
            self.cut_off.fetch_sub(1, SeqCst);
        }
    }

    /// Returns whether a row of this table may have a partly applied change that is still to be rolled back.
    pub(super) fn may_have_cut_off(&self, space: SpaceId) -> bool {
        let is_cut_off = || self.state.lock().cut_off.values().any(|table| *table == space);
        (!self.blockers(space).is_empty() || is_cut_off()) && !planted(Bug::CutOffUnseen)
    }

    /// Takes the next one that is due: a search, else a transaction. It is moved to the front.
    fn next(&self, now: Duration) -> Option<Next> {
        let mut state = self.state.lock();
        if let Some(at) = state.searches.iter().position(|search| search.due <= now) {
            state.searches.rotate_left(at);
            return state.searches.front().cloned().map(Next::Search);
        }
        let at = state.waiting.iter().position(|waiting| waiting.due <= now)?;
        state.waiting.rotate_left(at);
        let waiting = state.waiting.front_mut()?;
        let trx = waiting.trx.take().expect("there is one worker");
        Some(Next::Transaction(trx, waiting.from))
    }

    fn is_any_due(&self, now: Duration) -> bool {
        let state = self.state.lock();
        state.searches.iter().any(|search| search.due <= now)
            || state.waiting.iter().any(|waiting| waiting.due <= now)
    }
}

enum Next {
    Search(Search),
    Transaction(Suspended, Option<UndoPos>),
}

impl Transactions {
    /// Schedules the search for the records of unfinished transactions that recovery has found, and their rollback, in
    /// the steps that follow. Prepared transactions are searched for at once, and then wait for their coordinator.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn roll_back_unfinished(&self) -> Result<()> {
        let mut searches: BTreeMap<u8, Search> = BTreeMap::new();
        for (trx, first) in self.active.snapshot() {
            if planted(Bug::RollbackForgotten) {
                self.active.end(trx, &self.ids);
                continue;
            }
            let Some(stream) = self.streams.of(first) else {
                let what = format!(
                    "undo position {} of the unfinished transaction {} is in no undo stream",
                    first.0, trx.0
                );
                return Err(self.context.system.damaged(&what));
            };
            let at = Stream::byte_of(first);
            let search = searches.entry(stream.number()).or_insert_with(|| Search {
                stream: stream.number(),
                at,
                end: stream.end(),
                found: BTreeMap::new(),
                due: Duration::ZERO,
                failed: false,
            });
            search.at = search.at.min(at);
            search.found.insert(trx, Found { name: self.active.prepared(trx), ..Found::default() });
        }
        for mut search in searches.into_values() {
            if search.found.values().any(|found| found.name.is_some()) {
                // No other work may come between such a transaction and the locks on its tables.
                while !self.look(&mut search)? {}
                for (trx, mut found) in search.found.extract_if(.., |_, found| found.name.is_some()) {
                    if let Some(name) = found.name.take() {
                        self.resume_prepared(trx, &name, &found)?;
                    }
                }
            }
            if !search.found.is_empty() {
                self.rollbacks.state.lock().searches.push_back(search);
            }
        }
        Ok(())
    }

    fn resume_prepared(&self, id: TrxId, name: &Arc<[u8]>, found: &Found) -> Result<()> {
        let lock_owner = self.active.lock_owner(id, &self.lock_manager).expect("it is active until it ends");
        for space in found.touched.iter().filter(|_| !planted(Bug::PreparedUnlocked)) {
            let wanted = LockRequest::Table(*space, TableMode::IntentionExclusive);
            self.lock_manager.acquire(&lock_owner, wanted, LockTimeout::NoWait)?;
        }
        let touched = found.touched.iter().copied();
        self.prepared.found(name, Suspended::found(&self.active, id, found.last, touched, true))
    }

    /// Runs one step of the worker. Returns whether more work can be done at once.
    pub fn rollback_step(&self) -> bool {
        let now = self.now();
        match self.rollbacks.next(now) {
            None => return false,
            Some(Next::Search(search)) => self.search_on(search, now + PAUSE),
            Some(Next::Transaction(trx, from)) => self.continue_rollback(trx, from, now),
        }
        self.rollbacks.is_any_due(self.now())
    }

    /// Continues the search at the front; if it fails, it is retried at `again`.
    fn search_on(&self, mut search: Search, again: Duration) {
        let looked = self.look(&mut search);
        if looked.as_ref().is_ok_and(|is_over| *is_over) {
            let found = search.found.into_iter().map(|(id, Found { last, touched, .. })| {
                Waiting::new(Suspended::found(&self.active, id, last, touched, false))
            });
            let found: Vec<_> = found.collect();
            let mut state = self.rollbacks.state.lock();
            debug_assert!(
                state.searches.front().is_some_and(|front| front.stream == search.stream),
                "the search that the worker continues is the first one"
            );
            state.searches.pop_front();
            state.waiting.extend(found);
            drop(state);
            return self.rollbacks.moved.notify();
        }
        search.failed = looked.is_err();
        if let Err(error) = looked {
            tracing::warn!(%error, "the records of unfinished transactions cannot be found yet");
            search.due = again;
        }
        let failed = search.failed;
        self.rollbacks.state.lock().searches[0] = search;
        if failed {
            self.rollbacks.moved.notify();
        }
    }

    /// Examines the next records. Returns whether the search is complete.
    fn look(&self, search: &mut Search) -> Result<bool> {
        let stream = self.streams.get(search.stream.into());
        for _ in 0..LOOKS_PER_STEP {
            let next = stream.next_record(search.at)?.filter(|(at, _)| *at < search.end);
            let Some((at, stored)) = next else { return Ok(true) };
            if let Some(found) = search.found.get_mut(&stream.trx_of(at, &stored)?) {
                found.last = stream.undo_pos(at);
                found.touched.insert(stream.decode(at, &stored)?.body.table());
            }
            search.at = stored.next;
        }
        Ok(false)
    }

    /// Continues the rollback of the transaction at the front.
    fn continue_rollback(&self, trx: Suspended, mut from: Option<UndoPos>, now: Duration) {
        let id = trx.id();
        let (left, done) = Trx::resume(self, trx).continue_rollback(&mut from, RECORDS_PER_STEP);
        let mut state = self.rollbacks.state.lock();
        // Others were only added after it.
        let waiting = state.waiting.front_mut().expect("it stands first");
        debug_assert!(waiting.id == id, "the transaction that the worker rolls back is the first one");
        debug_assert!(waiting.trx.is_none(), "a transaction is with the worker, or it waits");
        if left.is_none() {
            state.waiting.pop_front();
            drop(state);
            self.rollbacks.moved.notify();
            return tracing::info!(trx = id.0, "a transaction is rolled back");
        }
        (waiting.trx, waiting.from, waiting.failed) = (left, from, done.is_err());
        match done {
            Ok(RollbackStep::Advanced) => {}
            Ok(RollbackStep::Blocked) => waiting.due = now + REST_PAUSE,
            Err(error) => {
                waiting.due = now + PAUSE;
                drop(state);
                tracing::warn!(trx = id.0, %error, "a transaction cannot be rolled back yet");
                self.rollbacks.moved.notify();
            }
        }
    }

    /// Waits until no background rollback has changes left in a table, or those that have cannot continue.
    pub fn await_rollbacks_that_get_on(&self, space: SpaceId, at_most: Duration) {
        let env = &self.context.pool.context().env;
        let is_over = || !self.rollbacks.gets_on(space);
        env.wait_unhindered(&self.rollbacks.moved, at_most, &mut || is_over());
    }

    /// Waits until no background rollback has changes left in a table, and calls `between` from time to time: again at
    /// once if that returns that it has more to do.
    ///
    /// # Errors
    /// [`LockError`]; errors of `between`.
    pub fn await_rollbacks(
        &self,
        space: SpaceId,
        at_most: Duration,
        between: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<()> {
        let env = &self.context.pool.context().env;
        let began = self.now();
        let is_clear = || self.rollbacks.are_clear_of(space);
        let mut has_more = false;
        loop {
            let left = at_most.saturating_sub(self.now().saturating_sub(began));
            if is_clear() || left.is_zero() {
                break;
            }
            let step = if has_more { Duration::ZERO } else { STEP };
            env.wait_unhindered(&self.rollbacks.moved, left.min(step), &mut || is_clear());
            has_more = between()?;
        }
        let blockers = self.rollbacks.blockers(space);
        if blockers.is_empty() {
            return Ok(());
        }
        let blockers = Blockers::new(blockers);
        Err(match LockTimeout::of(at_most) {
            LockTimeout::NoWait => LockError::Busy(blockers),
            _ => LockError::TimedOut { blockers, waited: self.now().saturating_sub(began) },
        }
        .into())
    }
}
