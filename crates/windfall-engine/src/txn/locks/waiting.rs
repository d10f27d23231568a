//! The transactions that wait.
//!
//! **Purpose.** Under one mutex, which only transactions that wait take: the request of each, its outcome, the metrics
//! of waits, and the search for deadlocks.
//!
//! **Invariants.**
//! - A wait begins, and ends without the lock, under the mutex of the waits and then that of its shard (by type). A
//!   request is granted under that of its shard alone (test: `a_release_reaches_waiters_of_each_shard`). So while a
//!   thread has the mutex of the waits, no wait begins, no edge between two waiters is added, and such an edge
//!   disappears only when one of the two is granted its request. So what a search finds in one shard after another is
//!   a cycle if all its members still wait at its end.
//! - Between two steps there is no deadlock: each transaction that begins to wait, or that is granted a lock while it
//!   waits, is checked for a cycle (test: `behaves_as_its_rules`). The latter happens in
//!   [`LockManager::make_explicit`] alone, which has the mutex of the waits then (checked by
//!   `locks/waiting.rs::make_explicit`). A new range needs no such check, because its owner does not wait (checked by
//!   `locks/mod.rs::lock_range`), and every member of a cycle does (checked by `locks/deadlock.rs::break_cycles`).

use core::time::Duration;
use std::collections::{BTreeMap, HashSet};

use rustc_hash::FxBuildHasher;

use super::{
    LockManager,
    metrics::LockMetrics,
    observer::{LockParty, ObservedWait},
    owner::{LockOwner, Spot},
    queue::Place,
    request::{Deadlock, LockRequest, RowName, Waiting},
    rows::Explicit,
    shards::ShardLocks,
    wake,
};
use crate::{
    error::{Blockers, LockError},
    ids::TrxId,
    sync::{
        Arc, MutexGuard,
        atomic::{Ordering::SeqCst, fence},
        thread,
    },
};

/// A lock request that waits.
#[derive(Debug)]
pub(super) struct Wait {
    pub owner: Arc<LockOwner>,
    pub wanted: LockRequest,
    pub spot: Spot,
    pub place: Place,
    pub started_at: Duration,
    /// Why it has ended without the lock, until the waiter takes the outcome.
    pub refusal: Option<LockError>,
}

impl Wait {
    /// Returns whether it has no outcome yet. Another thread may grant it at any moment.
    pub(super) fn is_open(&self) -> bool {
        self.owner.waits()
    }
}

/// All transactions that wait, or have not taken the outcome of their wait yet.
#[derive(Debug, Default)]
pub(super) struct WaitTable {
    pub all: BTreeMap<TrxId, Wait>,
    tickets: u64,
    pub last_deadlock: Option<Deadlock>,
    pub metrics: LockMetrics,
    /// Waits are stopped.
    pub is_stopped: bool,
}

/// A step under the mutex of the waits.
pub(super) struct WaitStep<'a> {
    pub locks: &'a LockManager,
    pub waits: MutexGuard<'a, WaitTable>,
    /// The lock owners that must be woken at its end.
    woken: Vec<Arc<LockOwner>>,
}

impl LockManager {
    /// Runs a step under the mutex of the waits, and wakes the lock owners of the waits that it has ended.
    pub(super) fn wait_step<'a, T>(&'a self, run: impl FnOnce(&mut WaitStep<'a>) -> T) -> T {
        let mut step = WaitStep { locks: self, waits: self.waits.lock(), woken: Vec::new() };
        let result = run(&mut step);
        let WaitStep { waits, woken, .. } = step;
        drop(waits);
        fence(SeqCst);
        wake(woken);
        result
    }

    /// As [`WaitStep::grant_or_enqueue`], as a step of its own.
    #[cfg(test)]
    pub(super) fn grant_or_enqueue(
        &self,
        me: &Arc<LockOwner>,
        wanted: LockRequest,
        now: Duration,
    ) -> Result<bool, LockError> {
        self.wait_step(|step| step.grant_or_enqueue(me, wanted, now))
    }

    /// Ends a wait that began at `began`, because its outcome is known, or it was interrupted or has timed out.
    ///
    /// # Errors
    /// The reason why the wait has ended without the lock.
    pub(super) fn end_wait(
        &self,
        me: &Arc<LockOwner>,
        began: Duration,
        now: Duration,
        is_interrupted: bool,
    ) -> Result<(), LockError> {
        self.wait_step(|step| step.end_wait(me, began, now, is_interrupted))
    }

    /// Returns the wait of a transaction for the observer, if there is one and the transaction waits.
    pub(super) fn take_report(&self, me: &LockOwner) -> Option<ObservedWait> {
        self.observer.as_ref()?;
        self.wait_step(|step| step.take_report(me))
    }

    /// Returns the transactions that a transaction waits for.
    pub(super) fn blockers_of(&self, me: &LockOwner) -> Blockers {
        self.wait_step(|step| step.blockers(me.id()))
    }
}

impl WaitStep<'_> {
    /// Runs a step in a shard.
    pub(super) fn in_shard<T>(&mut self, spot: Spot, step: impl FnOnce(&mut ShardLocks) -> T) -> T {
        self.locks.shards.step(spot, &mut self.woken, step)
    }

    /// Grants a request or begins to wait for it. Returns whether it was granted.
    ///
    /// # Errors
    /// [`LockError::Interrupted`], if it was interrupted before, or waits are stopped.
    pub(super) fn grant_or_enqueue(
        &mut self,
        me: &Arc<LockOwner>,
        wanted: LockRequest,
        now: Duration,
    ) -> Result<bool, LockError> {
        let (spot, is_stopped) = (self.locks.shards.spot_of(&wanted), self.waits.is_stopped);
        let ticket = self.waits.tickets + 1;
        debug_assert!(!self.waits.all.contains_key(&me.id()), "a lock owner waits for one lock at a time");
        let place = self.in_shard(spot, |shard| {
            if shard.try_grant(me, spot, &wanted) {
                return Ok(None);
            }
            if is_stopped || me.take_interrupt() {
                return Err(LockError::Interrupted);
            }
            me.begin_wait();
            Ok(Some(shard.enqueue(me, spot, &wanted, ticket)))
        })?;
        let Some(place) = place else { return Ok(true) };
        self.waits.tickets = ticket;
        self.waits.metrics.waits += 1;
        let wait = Wait { owner: me.clone(), wanted, spot, place, started_at: now, refusal: None };
        self.waits.all.insert(me.id(), wait);
        self.break_cycles(me.id());
        Ok(false)
    }

    fn end_wait(
        &mut self,
        me: &Arc<LockOwner>,
        began: Duration,
        now: Duration,
        is_interrupted: bool,
    ) -> Result<(), LockError> {
        let waited = now.saturating_sub(began);
        self.waits.metrics.waited(waited);
        if is_interrupted {
            self.stop(me.id(), |_, _| LockError::Interrupted);
        } else {
            let timed_out = self.stop(me.id(), |shard, wait| {
                let Wait { owner, wanted, spot, place, .. } = wait;
                let blockers = shard.reported_blockers(owner.inserter(), *spot, wanted, Some(*place));
                let blockers = blockers.with_own(own_blocker(shard, me, *spot, wanted));
                LockError::TimedOut { blockers, waited }
            });
            self.waits.metrics.timeouts += u64::from(timed_out);
        }
        debug_assert!(
            cfg!(feature = "model") || me.is_resolved(),
            "a wait has ended, and its outcome is not known"
        );
        debug_assert!(
            self.waits.metrics.wait_classes.iter().sum::<u64>() <= self.waits.metrics.waits,
            "more waits have ended than have begun"
        );
        let wait = self.waits.all.remove(&me.id()).expect("a wait that ends has begun");
        wait.refusal.map_or(Ok(()), Err)
    }

    /// Ends the wait of a transaction with this error, unless it has an outcome. Returns whether it had none.
    pub(super) fn stop(&mut self, trx: TrxId, error: impl FnOnce(&ShardLocks, &Wait) -> LockError) -> bool {
        let Self { locks, waits, woken } = self;
        let Some(wait) = waits.all.get_mut(&trx).filter(|wait| wait.is_open()) else { return false };
        let refusal = locks.shards.step(wait.spot, woken, |shard| {
            // It may have been granted meanwhile.
            wait.is_open().then(|| {
                let error = error(shard, wait);
                shard.dequeue(&wait.owner, wait.spot, &wait.wanted, wait.place);
                error
            })
        });
        debug_assert!(wait.refusal.is_none(), "a wait that is stopped has an outcome already");
        let is_stopped = refusal.is_some();
        wait.refusal = refusal;
        is_stopped
    }

    /// Ends all waits, and refuses new ones.
    pub(super) fn stop_all(&mut self) {
        self.waits.is_stopped = true;
        for trx in self.waits.all.keys().copied().collect::<Vec<_>>() {
            self.stop(trx, |_, _| LockError::Interrupted);
        }
        debug_assert!(
            self.waits.all.values().all(|wait| !wait.is_open()),
            "waits are stopped, and a lock owner waits"
        );
    }

    /// Makes the lock of a writer explicit that waited when this was last looked at. Returns `false` if it has ended.
    pub(super) fn make_explicit(&mut self, holder: &Arc<LockOwner>, spot: Spot, row: &RowName) -> bool {
        let Self { locks, waits, woken } = self;
        let mut own = waits.all.get_mut(&holder.id());
        let explicit = locks.shards.step(spot, woken, |shard| {
            let own = own.as_mut().filter(|wait| wait.is_open());
            let here = own.and_then(|wait| match &wait.wanted {
                LockRequest::Row(wanted, mode) if wanted == row => Some((&mut wait.place, (*mode).into())),
                _ => None,
            });
            shard.rows.make_explicit(holder, spot, row, Ok(here), &mut shard.wakes)
        });
        debug_assert!(explicit != Explicit::Waits, "the caller has the mutex of the waits");
        self.break_cycles(holder.id());
        explicit == Explicit::Done
    }

    /// Sets whether later requests overtake one that waits for a table. Returns the transactions that it waits for.
    ///
    /// It is a request of an owner without locks. If it is shared, no cycle is closed when it no longer yields: a later
    /// one that begins to wait for it is for a writer of rows, or exclusive; and such a request waits already for all
    /// that a shared one waits for, or for one that does. An exclusive one may close a cycle, through a reader that
    /// waits behind it and has what a holder of the table waits for. That lasts until it yields again.
    pub(super) fn set_yielding(&mut self, me: &LockOwner, yields: bool) -> Blockers {
        let Self { locks, waits, woken } = self;
        if let Some(wait) = waits.all.get(&me.id()) {
            debug_assert!(
                me.holds_nothing() || !wait.is_open(),
                "transaction {} has locks and yields: its next turn may close a cycle",
                me.id()
            );
            locks.shards.step(wait.spot, woken, |shard| {
                if wait.is_open() {
                    shard.set_yielding(me.id(), wait.wanted.space(), wait.place, yields);
                }
            });
        }
        self.blockers(me.id())
    }

    /// Returns the transactions that a transaction waits for.
    pub(super) fn blockers(&self, trx: TrxId) -> Blockers {
        let wait = self.waits.all.get(&trx).filter(|wait| wait.is_open());
        let found = wait.and_then(|wait| {
            self.locks.shards.read(wait.spot, |shard| {
                let me = wait.owner.inserter();
                wait.is_open().then(|| shard.reported_blockers(me, wait.spot, &wait.wanted, Some(wait.place)))
            })
        });
        found.unwrap_or_else(|| Blockers::new([]))
    }

    pub(super) fn take_report(&mut self, me: &LockOwner) -> Option<ObservedWait> {
        let wait = self.waits.all.get(&me.id())?;
        let party = |owner: &Arc<LockOwner>| LockParty { trx: owner.id(), tag: owner.tag() };
        self.locks.shards.read(wait.spot, |shard| {
            if !wait.is_open() {
                return None;
            }
            me.begin_report();
            let mut known = HashSet::<_, FxBuildHasher>::default();
            let all = shard.blockers(me.inserter(), wait.spot, &wait.wanted, Some(wait.place));
            let blockers: Vec<_> = all.filter(|owner| known.insert(owner.id())).map(party).collect();
            debug_assert!(!blockers.is_empty(), "transaction {} waits for no other one", me.id());
            Some(ObservedWait { waiter: party(&wait.owner), lock: wait.wanted.clone().into(), blockers })
        })
    }

    /// Returns the number of rows changed plus the number of locks held.
    pub(super) fn weight(&self, owner: &LockOwner) -> u64 {
        owner.changed() + self.locks.held_by(owner)
    }

    /// Returns all waiters.
    pub(super) fn listing(&self) -> Vec<Waiting> {
        let waiting = |(trx, wait): (&TrxId, &Wait)| {
            let blockers = self.blockers(*trx);
            wait.is_open().then(|| {
                let (lock, tag) = (wait.wanted.clone().into(), wait.owner.tag());
                Waiting { trx: *trx, tag, lock, started_at: wait.started_at, blockers }
            })
        };
        self.waits.all.iter().filter_map(waiting).collect()
    }
}

/// For a change or statement outside of transactions, returns a transaction that blocks it by a lock and whose last
/// call was made by this thread, if there is one.
pub(super) fn own_blocker(
    shard: &ShardLocks,
    me: &LockOwner,
    spot: Spot,
    wanted: &LockRequest,
) -> Option<TrxId> {
    if me.thread().is_some() {
        return None;
    }
    shard.holder_of_thread(me, spot, wanted, thread::number())
}
