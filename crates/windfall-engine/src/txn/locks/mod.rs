//! The lock manager: locks that transactions hold until they end.
//!
//! **Purpose.** A transaction that changes a row leaves its id in the entry, and that is an implicit exclusive lock as
//! long as it is active: it costs nothing and needs no entry in the lock table. The lock table is for the other cases:
//! transactions that lock what they only read, statements that lock a table, and all waiters. It queues requests
//! fairly. A wait ends early by its timeout, by an interrupt, or because it closes a cycle in the wait-for graph. The
//! table reports which transaction waits for which, also to an observer of the application (`observer`).
//!
//! **Mutexes.** The locks are spread over shards (`shards`), each with its own mutex: a request that is granted at
//! once takes that of one shard, and so does the release of a lock. Transactions that wait take another one first,
//! that of the waits (`waiting`), under which they search for deadlocks. What a lock owner holds is in a list of its
//! own (`owner`).
//!
//! **Invariants.**
//! - A lock is held until its transaction ends, except for a row lock that is released earlier
//!   ([`LockManager::release_row`]), or downgraded ([`LockManager::downgrade_row`]) (test: `behaves_as_its_rules`),
//!   and for the locks of a statement in the name of a transaction, and in tablespaces that it has dropped (test:
//!   `the_locks_after_a_statement_are_those_before_it`).
//! - A waiter holds no latch and no ranked lock (checked by `sync/lock.rs::take`), and waits for one lock at a time
//!   (checked by `locks/waiting.rs::grant_or_enqueue`). No thread waits while holding a mutex of the table (test:
//!   `a_background_step_may_end_a_wait_in_a_simulation`). Their ranks are above those of latches, so calls that do not
//!   wait may be made under a latch (test: `no_thread_waits_for_a_lock_under_a_latch`).
//! - No deadlock persists: as soon as a cycle is closed, the wait of one of its transactions is ended (test:
//!   `every_deadlock_that_a_wait_closes_is_broken`).
//! - *What writers see.* A writer checks for locks under the exclusive latch of the leaf ([`LockManager::may_write`],
//!   [`LockManager::may_insert`]), and a locking reader takes its lock first and then reads the leaf, so either the
//!   writer finds the lock, or the reader finds the entry or the latched leaf (tests:
//!   `an_insert_sees_the_range_or_is_seen`, `a_row_that_is_locked_is_not_written`).
//! - Range locks of transactions in one ordering group do not block each other's inserts; all other locks do (tests:
//!   `ranges_of_an_ordering_group_do_not_block_it`, `behaves_as_its_rules`). Uniqueness does not depend
//!   on ranges, but on locks of rows and keys (test: `gap_locks_do_not_block_an_ordering_group`).
//! - A step that enters locks publishes that its shard has some before it releases the mutex (test:
//!   `a_row_that_is_locked_is_not_written`), and a writer that sees that takes the mutex and looks for the lock (test:
//!   `behaves_as_its_rules`).
//!
//! A row is locked for a reader as follows: read the entry; if its writer is active, call
//! [`LockManager::make_explicit`] for the writer, then [`LockManager::acquire`] for the row, which waits for the
//! writer; read again (test: `the_lock_of_a_writer_is_made_explicit_until_it_ends`). If its writer is not active,
//! `acquire` first, and then read the entry again (test: `a_row_that_is_locked_is_not_written`). A reader that now
//! finds an active writer was late: it releases the row ([`LockManager::release_row`]) and starts again (test:
//! `a_request_too_late_for_a_writer_is_released_or_waits`).
//!
//! **Ordering groups.** An application that applies some transactions in a fixed order does not need their gap locks
//! against each other. It says so by a number of each transaction, and not by a callback for two of them, because a
//! writer compares the two under the latch of a leaf and the mutex of a shard.
//!
//! **Order in memory.** A sequentially consistent fence follows each step that enters locks, and a writer has another
//! one between latching the leaf and reading what is published. One of these fences is the first in the total order.
//! If it is the writer's, the reader, which reads the latch after its own fence, sees it taken or released, and waits
//! for what was written; that also holds for an optimistic read that validates a version. If it is the reader's, the
//! writer sees that there are locks, and takes the mutex. If it takes the mutex before the reader, the reader sees the
//! latch taken, because the mutex orders the two. If it takes the mutex after the reader, it finds the lock.

mod deadlock;
mod isolation;
pub(crate) mod key_latch;
mod metrics;
mod mode;
mod observer;
mod owner;
mod queue;
mod ranges;
mod request;
mod rows;
mod shards;
mod space;
mod turns;
mod wait;
mod waiting;
mod whole_table;

#[cfg(all(test, feature = "model"))]
mod interleavings;
#[cfg(test)]
mod tests;

use core::ops::Bound;

pub use isolation::{Isolation, PlainRead};
pub use metrics::{LockMetrics, WAIT_CLASSES};
pub(crate) use mode::Modes;
pub use mode::{RowMode, TableMode};
pub use observer::{LockParty, LockWaitObserver, ObservedWait, SharedObserver, WaitOutcome};
pub use owner::{CallStart, Inserter, LockOwner, OwnerOptions};
pub use request::{
    Deadlock, DeadlockMember, HeldLock, Lock, LockRequest, LockTimeout, LockWait, RowName, Waiting, Waits,
};
pub(crate) use whole_table::LEAST_FOR_PASSERS;
pub use whole_table::{HeldOnTable, WholeTable};

use crate::{
    env::Env,
    error::LockError,
    ids::{SpaceId, TrxId},
    keys::KeyRange,
    sync::{
        Arc, Held, InterruptibleWait, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst, fence},
    },
};
use owner::{HeldLocks, Spot};
use rows::Explicit;
use shards::{ShardLocks, Shards};
use waiting::{WaitStep, WaitTable, own_blocker};

/// Warns of a wait that probably lasts until its timeout: for a lock of a transaction whose last call was made by this
/// thread.
fn warn_of_own(taken: &Result<(), LockError>) {
    if let Err(LockError::Busy(blockers)) = taken
        && let Some(trx) = blockers.own()
    {
        tracing::warn!(
            target: "windfall::locks",
            trx = trx.0,
            "a call outside of transactions waits for a transaction whose last call was made by this thread"
        );
    }
}

/// Wakes lock owners that have something to do, when the mutexes of a step are free.
fn wake(woken: Vec<Arc<LockOwner>>) {
    for lock_owner in woken {
        lock_owner.event().notify();
    }
}

/// The lock table of a database.
#[derive(Debug)]
pub struct LockManager {
    shards: Shards,
    /// The transactions that wait.
    waits: Mutex<WaitTable>,
    /// The number of interrupts so far: each has a number.
    interrupts: AtomicU64,
    /// Is called around waits.
    observer: Option<SharedObserver>,
    env: Arc<dyn Env>,
}

impl LockManager {
    /// Returns a table without locks.
    pub fn new(env: Arc<dyn Env>) -> Self {
        let waits = Mutex::new(Rank::LockWaits, WaitTable::default());
        Self { shards: Shards::new(), waits, interrupts: AtomicU64::default(), observer: None, env }
    }

    /// Sets the observer of waits.
    pub(crate) fn set_observer(&mut self, observer: SharedObserver) {
        self.shards.observe();
        self.observer = Some(observer);
    }

    /// Creates the lock owner of a transaction, once per transaction. The caller must call [`LockManager::end`] for
    /// it.
    pub fn lock_owner(&self, id: TrxId) -> Arc<LockOwner> {
        self.lock_owner_with(id, OwnerOptions::default())
    }

    /// As [`LockManager::lock_owner`], with options.
    pub fn lock_owner_with(&self, id: TrxId, options: OwnerOptions) -> Arc<LockOwner> {
        Arc::new(LockOwner::new(id, options))
    }

    /// Runs a step in a shard, and wakes the lock owners of the waits that it has ended.
    fn step<T>(&self, spot: Spot, step: impl FnOnce(&mut ShardLocks) -> T) -> T {
        let mut woken = Vec::new();
        let result = self.shards.step(spot, &mut woken, step);
        wake(woken);
        result
    }

    /// As [`LockManager::step`], of a step that enters locks.
    fn enter<T>(&self, spot: Spot, step: impl FnOnce(&mut ShardLocks) -> T) -> T {
        let result = self.step(spot, step);
        fence(SeqCst);
        result
    }

    /// Grants a request, or returns the transactions that block it.
    fn try_grant(&self, me: &Arc<LockOwner>, wanted: &LockRequest) -> Result<(), LockError> {
        let spot = self.shards.spot_of(wanted);
        let taken = self.enter(spot, |shard| {
            if shard.try_grant(me, spot, wanted) {
                return Ok(());
            }
            let blockers = shard.reported_blockers(me.inserter(), spot, wanted, None);
            Err(LockError::Busy(blockers.with_own(own_blocker(shard, me, spot, wanted))))
        });
        debug_assert!(
            cfg!(feature = "model")
                || taken.is_err()
                || !matches!(wanted, LockRequest::Row(..))
                || self.shards.published(spot).0,
            "a row is locked, and writers do not look for row locks"
        );
        taken
    }

    /// Requests a lock, and waits for it as long as `lock_timeout` permits. A lock that is held already, in the same
    /// or a stronger mode, is not taken again; an upgrade waits for the other holders only. With
    /// [`LockTimeout::NoWait`] it may be called under a latch. The observer is called only if the request waits.
    ///
    /// # Errors
    /// - [`LockError::Busy`]: it would have to wait, and must not.
    /// - [`LockError::TimedOut`]: the timeout has passed.
    /// - [`LockError::Deadlock`]: the wait was part of a cycle. The transaction must roll back.
    /// - [`LockError::Interrupted`]: [`LockManager::interrupt`] was called, during the wait or before it; or
    ///   [`LockManager::stop`]; or the interrupt of the thread's call ([`Interrupt`](crate::sync::Interrupt)) is set.
    pub fn acquire(
        &self,
        me: &Arc<LockOwner>,
        wanted: LockRequest,
        lock_timeout: LockTimeout,
    ) -> Result<(), LockError> {
        if self.grant_at_once(me, &wanted, lock_timeout != LockTimeout::NoWait)? {
            return Ok(());
        }
        let waiting = InterruptibleWait::begin(me);
        if waiting.is_interrupted() {
            return Err(LockError::Interrupted);
        }
        let began = self.env.now();
        let Some(mut wait) = self.enqueue(me, wanted, began)? else { return Ok(()) };
        wait.last(lock_timeout, &waiting);
        wait.end(waiting.is_interrupted())
    }

    /// Takes a lock, if nothing is in its way. Returns `false` if the owner has to wait for it, and may.
    ///
    /// # Errors
    /// [`LockError::Busy`]: it would have to wait, and may not.
    fn grant_at_once(
        &self,
        me: &Arc<LockOwner>,
        wanted: &LockRequest,
        may_wait: bool,
    ) -> Result<bool, LockError> {
        let taken = self.try_grant(me, wanted);
        if taken.is_ok() || !may_wait {
            return taken.map(|()| true);
        }
        warn_of_own(&taken);
        drop(Held::take(Rank::Row));
        Ok(false)
    }

    /// Converts the implicit lock of a transaction on a row that it has written into an explicit one, so that others
    /// can queue for the row. Returns `false` if the transaction is ending or has ended; the row must then be read
    /// again. Does not wait, and may be called under the latch under which the entry was read.
    pub(crate) fn make_explicit(&self, holder: &Arc<LockOwner>, row: RowName) -> bool {
        let spot = self.shards.spot(row.space, &row.key);
        let explicit =
            self.enter(spot, |shard| shard.rows.make_explicit(holder, spot, &row, Err(()), &mut shard.wakes));
        match explicit {
            Explicit::Waits => self.wait_step(|step| step.make_explicit(holder, spot, &row)),
            Explicit::Done | Explicit::Ended => explicit == Explicit::Done,
        }
    }

    /// Locks a range of keys against inserts by others. Does not wait, and is compatible with every other range and
    /// with row locks. Ranges of one transaction that overlap or touch are merged; one that the transaction has locked
    /// already costs no memory. A caller that reads the leaf
    /// afterwards finds what was inserted before.
    pub fn lock_range(&self, me: &Arc<LockOwner>, space: SpaceId, lower: Bound<&[u8]>, upper: Bound<&[u8]>) {
        debug_assert!(!me.waits(), "{:?} waits and locks a range: that may close a cycle", me.id());
        let spot = Shards::spot_of_space(space);
        let is_locked = self.enter(spot, |shard| {
            if shard.space(space).is_some_and(|held| held.has_locked_range(me, lower, upper)) {
                return true;
            }
            let range = KeyRange::new(lower, upper);
            let is_locked = !range.is_empty();
            if is_locked {
                shard.in_space(space, |space, wakes| space.lock_range(me, range, wakes));
            }
            is_locked
        });
        debug_assert!(
            cfg!(feature = "model") || !is_locked || self.shards.published(spot).1,
            "a range is locked, and writers do not look for range locks"
        );
    }

    /// Returns whether no range lock of another transaction that is in no ordering group with this one covers this
    /// key. Must be called under the exclusive latch of the leaf into which the key goes; does not wait. While there
    /// are no range locks in the tree, and in the few that share its shard, it costs a fence and a load.
    pub(crate) fn may_insert(&self, me: impl Into<Inserter>, space: SpaceId, key: &[u8]) -> bool {
        !self.shards.is_range_locked(me.into(), space, key)
    }

    /// Returns whether no other transaction holds an explicit lock on this row. Must be called under the exclusive
    /// latch of the leaf, as [`LockManager::may_insert`]. While no row of the shard is locked it costs the choice of
    /// the shard, a fence and a load.
    pub(crate) fn may_write(&self, me: Option<TrxId>, space: SpaceId, key: &[u8]) -> bool {
        !self.shards.read_row(space, key, |rows, spot| rows.is_held(me, spot, space, key)).unwrap_or(false)
    }

    /// Returns whether no other transaction holds an explicit lock on this row that conflicts with a shared lock.
    pub(crate) fn may_share(&self, me: Option<TrxId>, space: SpaceId, key: &[u8]) -> bool {
        self.shards.read_row(space, key, |rows, spot| rows.may_share(me, spot, space, key)).unwrap_or(true)
    }

    /// Returns whether any transaction has a lock on one of these tables, in any mode, or waits for one. It costs a
    /// fence and a load for each, if no table of its shard is locked.
    pub fn is_any_table_locked(&self, mut spaces: impl Iterator<Item = SpaceId>) -> bool {
        spaces.any(|space| self.shards.is_table_locked(space))
    }

    /// Returns whether a lock owner holds any lock that is in the table.
    pub fn holds_any(&self, me: &LockOwner) -> bool {
        !me.holds_nothing()
    }

    /// Returns the number of locks that a lock owner holds.
    fn held_by(&self, me: &LockOwner) -> u64 {
        let (rows, spaces) = me.held_counts();
        let in_space = |space: &SpaceId| {
            self.shards.read(Shards::spot_of_space(*space), |shard| {
                shard.space(*space).map_or(0, |space| space.held_by(me.id()))
            })
        };
        rows + spaces.iter().map(in_space).sum::<u64>()
    }

    /// Returns the mode in which a transaction holds a row, if it does.
    pub(crate) fn held_mode(&self, me: &LockOwner, space: SpaceId, key: &[u8]) -> Option<RowMode> {
        self.shards.read_row(space, key, |rows, spot| rows.held_mode(me.id(), spot, space, key)).flatten()
    }

    /// Releases the lock on one row, in any mode, before the transaction ends.
    pub fn release_row(&self, me: &Arc<LockOwner>, row: &RowName) {
        self.downgrade_row(me, row, None);
    }

    /// Downgrades the lock on one row to at most this mode, before the transaction ends; `None` releases it.
    pub(crate) fn downgrade_row(&self, me: &LockOwner, row: &RowName, to: Option<RowMode>) {
        let spot = self.shards.spot(row.space, &row.key);
        self.step(spot, |shard| shard.rows.downgrade(me, spot, row, to, &mut shard.wakes));
    }

    /// Returns the modes in which a lock owner holds a table.
    pub(crate) fn table_modes(&self, me: &LockOwner, space: SpaceId) -> Modes {
        self.shards.read(Shards::spot_of_space(space), |shard| shard.table_modes(me.id(), space))
    }

    /// Sets the lock on a table back to what it was before ([`LockManager::table_modes`]).
    pub(crate) fn restore_table(&self, me: &LockOwner, space: SpaceId, before: Modes) {
        self.step(Shards::spot_of_space(space), |shard| {
            shard.in_space(space, |space, wakes| space.restore_table(me, before, wakes));
        });
    }

    /// Releases all locks of a transaction in a tablespace that was dropped, before the transaction ends.
    pub(crate) fn release_space(&self, me: &LockOwner, space: SpaceId) {
        debug_assert!(!me.has_ended(), "{:?} has ended and has no locks", me.id());
        let (rows, announcements) = (me.take_rows(space), me.take_announcements(space));
        me.forget_space(space);
        self.release(me, HeldLocks { rows, spaces: [space].into_iter().collect(), announcements });
    }

    /// Ends a transaction: releases all its locks, each in a step of its own, so that others are not blocked by the
    /// end of one with a million row locks, and grants them to the next waiters. From the start of the call on, its
    /// implicit locks are not made explicit any more.
    pub fn end(&self, me: &Arc<LockOwner>) {
        debug_assert!(!me.waits(), "a transaction ends when its calls have");
        self.release(me, me.end());
    }

    /// Releases locks that have left the list of their holder: the tables last, because they cover the rows, and then
    /// what has announced them.
    fn release(&self, me: &LockOwner, HeldLocks { rows, spaces, announcements }: HeldLocks) {
        for row in rows {
            self.step(row.spot, |shard| shard.rows.release(me.id(), &row, &mut shard.wakes));
        }
        for space in spaces {
            self.step(Shards::spot_of_space(space), |shard| {
                shard.in_space(space, |space, wakes| space.release(me.id(), wakes));
            });
        }
        for (space, announcement) in announcements {
            debug_assert!(
                self.table_modes(me, space).is_empty(),
                "the lock of {} on table {space} is not announced any more, and held",
                me.id()
            );
            drop(announcement);
        }
    }

    /// Ends the wait of a transaction with [`LockError::Interrupted`]; or its next wait, if it does not wait and does
    /// not [forget](LockOwner::forget_interrupts) the interrupt before. Returns `false` if the transaction no longer
    /// uses this lock owner.
    pub fn interrupt(&self, lock_owner: &LockOwner) -> bool {
        let number = self.interrupts.fetch_add(1, SeqCst) + 1;
        self.wait_step(|step| {
            let may_wait = !lock_owner.has_ended();
            if may_wait && !step.stop(lock_owner.id(), |_, _| LockError::Interrupted) {
                lock_owner.interrupt_next(number);
            }
            may_wait
        })
    }

    /// Begins a call of a transaction on this thread.
    pub fn begin_call(&self) -> CallStart {
        CallStart::new(self.interrupts())
    }

    /// Returns the number of interrupts so far, which is the number of the last one.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(SeqCst)
    }

    /// Ends the wait of the transaction or statement with this number with [`LockError::Interrupted`]. Returns `false`
    /// if none with this number waits.
    pub(crate) fn interrupt_wait(&self, trx: TrxId) -> bool {
        self.wait_step(|step| step.stop(trx, |_, _| LockError::Interrupted))
    }

    /// Stops all waits, because the database has stopped or is being closed: every wait ends with
    /// [`LockError::Interrupted`], as does every later request that would have to wait. Takes the mutexes of
    /// the lock table.
    pub fn stop(&self) {
        self.wait_step(WaitStep::stop_all);
    }

    /// Returns whether waits are stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.waits.lock().is_stopped
    }

    /// Returns all held locks, by tablespace; within each the table, the rows by key, and the ranges by transaction.
    /// Each lock was held at some point during the call, and all of one shard at the same.
    pub fn listing(&self) -> Vec<HeldLock> {
        let all = self.shards.listing().into_iter();
        all.map(|(owner, lock)| HeldLock { trx: owner.id(), tag: owner.tag(), lock }).collect()
    }

    /// Returns all waiters, by transaction.
    pub fn waits(&self) -> Vec<Waiting> {
        self.wait_step(|step| step.listing())
    }

    /// Returns the last deadlock that was broken.
    pub fn last_deadlock(&self) -> Option<Deadlock> {
        self.waits.lock().last_deadlock.clone()
    }

    /// Checks the lock table, except for shards with a step in progress.
    ///
    /// # Panics
    /// An invariant is violated.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check_invariants(&self) {
        self.shards.check_invariants();
        self.wait_step(|step| {
            for (trx, wait) in &step.waits.all {
                let blockers = step.blockers(*trx);
                let has_outcome = !wait.is_open();
                assert!(
                    has_outcome || !blockers.ids().is_empty(),
                    "transaction {trx} waits for no other one"
                );
                assert!(has_outcome || wait.refusal.is_none(), "{trx} waits, and its wait has an outcome");
            }
        });
    }

    /// Returns whether there are no locks and no waiters.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.waits.lock().all.values().all(|wait| !wait.is_open()) && self.shards.is_empty()
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> LockMetrics {
        let held = self.shards.held();
        let waits = self.waits.lock();
        let waiting = waits.all.values().filter(|wait| wait.is_open()).count() as u64;
        LockMetrics { held, waiting, ..waits.metrics.clone() }
    }
}
