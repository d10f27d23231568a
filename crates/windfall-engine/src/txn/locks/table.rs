//! The lock table: all tablespaces with locks, and all lock owners that hold or request locks.
//!
//! **Purpose.** The operations under the mutex, each call one step.
//!
//! **Invariants.** A tablespace without locks has no entry (test: `a_storm_leaves_no_locks`). The counts are the sums
//! over the tablespaces (checked by `locks/table.rs::in_space`). Between two steps there is no deadlock: each
//! transaction that begins to wait, or that is granted a lock while it waits, is checked for a cycle
//! ([`LockTable::break_cycles`]) (test: `behaves_as_its_rules`). A new range needs no such check, because its owner
//! does not wait (checked by `locks/table.rs::lock_range`), and every member of a cycle does (checked by
//! `locks/deadlock.rs::break_cycles`).

use core::time::Duration;
use std::collections::{BTreeMap, HashSet};

use rustc_hash::FxBuildHasher;

use super::{
    metrics::LockMetrics,
    mode::{Modes, RowMode},
    observer::{LockParty, ObservedWait},
    owner::{Inserter, LockOwner, LockOwners, OwnerState},
    request::{Deadlock, HeldLock, Lock, LockRequest, RowName, Waiting},
    space::{LockCounts, SpaceLocks},
};
use crate::{
    error::{Blockers, LockError},
    ids::{SpaceId, TrxId},
    keys::KeyRange,
    sync::{Arc, thread},
};

/// The lock table.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    pub(super) spaces: BTreeMap<SpaceId, SpaceLocks>,
    pub(super) owners: LockOwners,
    pub(super) last_deadlock: Option<Deadlock>,
    pub(super) metrics: LockMetrics,
    counts: LockCounts,
    /// Waits are stopped.
    is_stopped: bool,
}

impl LockTable {
    /// Runs a step on a tablespace.
    fn in_space<T>(&mut self, id: SpaceId, step: impl FnOnce(&mut SpaceLocks, &mut LockOwners) -> T) -> T {
        let space = self.spaces.entry(id).or_insert_with(|| SpaceLocks::new(id));
        let before = space.counts();
        let result = step(space, &mut self.owners);
        let after = space.counts();
        debug_assert!(
            self.counts.rows >= before.rows
                && self.counts.ranges >= before.ranges
                && self.counts.tables >= before.tables,
            "the counts are sums that include this tablespace"
        );
        self.counts.rows = self.counts.rows + after.rows - before.rows;
        self.counts.ranges = self.counts.ranges + after.ranges - before.ranges;
        self.counts.tables = self.counts.tables + after.tables - before.tables;
        if space.is_empty() {
            self.spaces.remove(&id);
        }
        debug_assert!(
            !self.spaces.is_empty() || self.counts == LockCounts::default(),
            "locks are counted, and no tablespace has any"
        );
        result
    }

    /// Grants a request, or returns the transactions that block it.
    ///
    /// # Errors
    /// [`LockError::Busy`].
    pub(super) fn try_grant(&mut self, me: &Arc<LockOwner>, wanted: &LockRequest) -> Result<(), LockError> {
        debug_assert!(!me.has_ended(), "{:?} has ended and locks nothing", me.id());
        let blockers = self.in_space(wanted.space(), |space, owners| {
            (!space.try_grant(me, wanted, owners))
                .then(|| space.blockers(me.inserter(), wanted, None, owners))
        });
        match blockers {
            None => Ok(()),
            Some(blockers) => Err(LockError::Busy(blockers.with_own(self.own_blocker(me, wanted)))),
        }
    }

    /// For a change or statement outside of transactions, returns a transaction that blocks it by a lock and whose last
    /// call was made by this thread, if there is one.
    fn own_blocker(&self, me: &LockOwner, wanted: &LockRequest) -> Option<TrxId> {
        if me.thread().is_some() {
            return None;
        }
        let (space, here) = (self.spaces.get(&wanted.space())?, Some(thread::number()));
        let is_own = |trx| self.owners.get(trx).is_some_and(|owner| owner.thread() == here);
        space.find_holder(me, wanted, is_own)
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
        if self.try_grant(me, &wanted).is_ok() {
            return Ok(true);
        }
        if self.is_stopped || me.take_interrupt() {
            return Err(LockError::Interrupted);
        }
        self.metrics.waits += 1;
        self.in_space(wanted.space(), |space, owners| space.enqueue(me, wanted, now, owners));
        debug_assert!(self.owners.wait_of(me.id()).is_some(), "a request that was not granted waits");
        self.break_cycles(me.id());
        Ok(false)
    }

    /// Ends a wait that began at `began`, because its outcome is known, or it was interrupted or has timed out.
    ///
    /// # Errors
    /// The reason why the wait has ended without the lock.
    pub(super) fn end_wait(
        &mut self,
        me: &Arc<LockOwner>,
        began: Duration,
        now: Duration,
        is_interrupted: bool,
    ) -> Result<(), LockError> {
        let waited = now.saturating_sub(began);
        self.metrics.waited(waited);
        if is_interrupted {
            self.stop(me.id(), LockError::Interrupted);
        } else if let Some(wait) = self.owners.wait_of(me.id()) {
            let blockers = self.blockers(me.id()).with_own(self.own_blocker(me, &wait.wanted));
            self.metrics.timeouts += 1;
            self.stop(me.id(), LockError::TimedOut { blockers, waited });
        }
        debug_assert!(self.owners.wait_of(me.id()).is_none(), "a wait that has ended is still in the table");
        debug_assert!(
            cfg!(feature = "model") || me.is_resolved(),
            "a wait has ended, and its outcome is not known"
        );
        debug_assert!(
            self.metrics.wait_classes.iter().sum::<u64>() <= self.metrics.waits,
            "more waits have ended than have begun"
        );
        let owner = self.owners.get_mut(me.id());
        owner.and_then(|owner| owner.outcome.take()).expect("a wait has an outcome")
    }

    /// Sets whether later requests overtake one that waits for a table. Returns the transactions that it waits for.
    ///
    /// No cycle is closed when it no longer yields. It is a shared request of an owner without locks, so a later one
    /// that begins to wait for it is for a writer of rows, or exclusive; and such a request waits already for all that
    /// a shared one waits for, or for one that does.
    pub(super) fn set_yielding(&mut self, me: TrxId, yields: bool) -> Blockers {
        if let Some((space, place)) = self.owners.wait_of(me).map(|wait| (wait.wanted.space(), wait.place)) {
            debug_assert!(
                self.owners.get(me).is_some_and(|owner| owner.spaces.is_empty()),
                "transaction {me} has locks and yields: its next turn may close a cycle"
            );
            self.in_space(space, |space, owners| space.set_yielding(me, place, yields, owners));
        }
        self.blockers(me)
    }

    /// Returns whether any transaction has a lock on a table, or waits for one.
    pub(super) fn is_table_locked(&self, space: SpaceId) -> bool {
        self.spaces.get(&space).is_some_and(|space| space.counts().tables > 0)
    }

    /// Returns the transactions that a transaction waits for.
    pub(super) fn blockers(&self, trx: TrxId) -> Blockers {
        let wait = self.owners.get(trx).and_then(|owner| Some((owner.inserter(), owner.wait.as_ref()?)));
        let found = wait.and_then(|(me, wait)| {
            let space = self.spaces.get(&wait.wanted.space())?;
            Some(space.blockers(me, &wait.wanted, Some(wait.place), &self.owners))
        });
        found.unwrap_or_else(|| Blockers::new([]))
    }

    /// Returns the wait of a transaction for the observer, if there is one and the transaction waits.
    pub(super) fn take_report(&mut self, me: &LockOwner) -> Option<ObservedWait> {
        if !self.owners.begin_report(me.id()) {
            return None;
        }
        let wait = self.owners.wait_of(me.id())?;
        let space = self.spaces.get(&wait.wanted.space())?;
        let party = |trx| LockParty { trx, tag: self.owners.tag(trx) };
        let mut known = HashSet::<_, FxBuildHasher>::default();
        let all = space.all_blockers(me.inserter(), &wait.wanted, Some(wait.place));
        let blockers: Vec<_> = all.filter(|trx| known.insert(*trx)).map(party).collect();
        debug_assert!(!blockers.is_empty(), "transaction {} waits for no other one", me.id());
        Some(ObservedWait { waiter: party(me.id()), lock: wait.wanted.clone().into(), blockers })
    }

    /// Ends the wait of a transaction, if it waits. Returns whether it did.
    pub(super) fn stop(&mut self, trx: TrxId, error: LockError) -> bool {
        let Some(wait) = self.owners.get_mut(trx).and_then(|owner| owner.wait.take()) else { return false };
        self.in_space(wait.wanted.space(), |space, owners| space.dequeue(trx, &wait, owners));
        debug_assert!(
            self.owners.get(trx).is_some_and(|owner| owner.outcome.is_none()),
            "a wait that is stopped has an outcome already"
        );
        self.owners.end_wait(trx, Err(error));
        true
    }

    /// Returns whether waits are stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Ends all waits, and refuses new ones.
    pub(super) fn stop_all(&mut self) {
        self.is_stopped = true;
        let waiting = self.owners.iter().filter(|(_, owner)| owner.wait.is_some());
        for trx in waiting.map(|(trx, _)| trx).collect::<Vec<_>>() {
            self.stop(trx, LockError::Interrupted);
        }
        debug_assert!(
            self.owners.iter().all(|(_, owner)| owner.wait.is_none()),
            "waits are stopped, and a lock owner waits"
        );
    }

    /// Makes the lock of a writer explicit, unless it has ended.
    pub(super) fn make_explicit(&mut self, holder: &Arc<LockOwner>, row: &RowName) -> bool {
        if holder.has_ended() {
            return false;
        }
        self.in_space(row.space, |space, owners| space.make_explicit(holder, &row.key, owners));
        debug_assert!(
            self.held_mode(holder, row) == Some(RowMode::Exclusive),
            "the explicit lock of a writer is exclusive"
        );
        self.break_cycles(holder.id());
        true
    }

    /// Locks a range.
    pub(super) fn lock_range(&mut self, me: &Arc<LockOwner>, space: SpaceId, range: KeyRange) {
        debug_assert!(!me.has_ended(), "{:?} has ended and locks nothing", me.id());
        debug_assert!(
            self.owners.wait_of(me.id()).is_none(),
            "transaction {} waits and locks a range: that may close a cycle",
            me.id()
        );
        self.in_space(space, |space, owners| space.lock_range(me, range, owners));
        debug_assert!(
            self.owners.get(me.id()).is_some_and(|owner| owner.spaces.contains(&space)),
            "a tablespace with a lock of an owner is in the owner's list"
        );
    }

    /// Returns whether a range lock blocks an insert of this key.
    pub(super) fn is_range_locked(&self, me: Inserter, space: SpaceId, key: &[u8]) -> bool {
        self.spaces.get(&space).is_some_and(|space| space.is_range_locked(me, key))
    }

    /// Returns whether another transaction holds this row.
    pub(super) fn is_held(&self, me: Option<TrxId>, space: SpaceId, key: &[u8]) -> bool {
        self.spaces.get(&space).is_some_and(|space| space.is_held(me, key))
    }

    /// Returns whether no other transaction holds a lock that conflicts with a shared lock on this row.
    pub(super) fn may_share(&self, me: Option<TrxId>, space: SpaceId, key: &[u8]) -> bool {
        self.spaces.get(&space).is_none_or(|space| space.may_share(me, key))
    }

    /// Returns the mode in which a transaction holds a row, if it does.
    pub(super) fn held_mode(&self, me: &LockOwner, row: &RowName) -> Option<RowMode> {
        self.spaces.get(&row.space)?.held_mode(me.id(), &row.key)
    }

    /// Releases the lock on one row, or downgrades it to this mode.
    pub(super) fn downgrade_row(&mut self, me: &LockOwner, row: &RowName, to: Option<RowMode>) {
        self.in_space(row.space, |space, owners| space.downgrade_row(me.id(), &row.key, to, owners));
        debug_assert!(
            self.held_mode(me, row) <= to,
            "transaction {} has downgraded {row}, and holds it in a stronger mode",
            me.id()
        );
    }

    /// Returns the modes in which a lock owner holds a table.
    pub(super) fn table_modes(&self, me: &LockOwner, space: SpaceId) -> Modes {
        self.spaces.get(&space).map_or_else(Modes::default, |space| space.table_modes(me.id()))
    }

    /// Sets the lock on a table back to what it was before.
    pub(super) fn restore_table(&mut self, me: &LockOwner, space: SpaceId, before: Modes) {
        self.in_space(space, |space, owners| space.restore_table(me.id(), before, owners));
    }

    /// Releases at most `rows` row locks of an owner that goes on, in one tablespace, and the locks that go with them.
    /// Returns whether it has none left there.
    pub(super) fn release_space(&mut self, me: &LockOwner, id: SpaceId, mut rows: usize) -> bool {
        debug_assert!(!me.has_ended(), "{:?} has ended and has no locks", me.id());
        let is_done = self.in_space(id, |space, owners| space.release(me.id(), &mut rows, owners));
        if is_done && let Some(owner) = self.owners.get_mut(me.id()) {
            owner.spaces.remove(&id);
        }
        debug_assert!(
            !is_done || self.spaces.get(&id).is_none_or(|space| space.held_by(me.id()) == 0),
            "{:?} has released a tablespace and holds locks in it",
            me.id()
        );
        is_done
    }

    /// Releases at most `rows` row locks of a transaction, and the locks that go with them. Returns whether it has none
    /// left.
    pub(super) fn release(&mut self, me: &LockOwner, mut rows: usize) -> bool {
        me.set_ended();
        let trx = me.id();
        while let Some(id) = self.owners.get(trx).and_then(|owner| owner.spaces.last().copied()) {
            if !self.in_space(id, |space, owners| space.release(trx, &mut rows, owners)) {
                return false;
            }
            if let Some(owner) = self.owners.get_mut(trx) {
                owner.spaces.remove(&id);
            }
        }
        self.owners.remove(trx);
        debug_assert!(
            self.spaces.values().all(|space| space.held_by(trx) == 0),
            "transaction {trx} has ended and holds locks"
        );
        true
    }

    /// Ends the current wait of a transaction, or the next one of its call. Returns `false` if this lock owner has
    /// ended.
    pub(super) fn interrupt(&mut self, lock_owner: &LockOwner, number: u64) -> bool {
        if lock_owner.has_ended() {
            return false;
        }
        if !self.interrupt_wait(lock_owner.id()) {
            lock_owner.interrupt_next(number);
        }
        true
    }

    /// Ends the current wait of a transaction or statement. Returns whether it waited.
    pub(super) fn interrupt_wait(&mut self, trx: TrxId) -> bool {
        self.stop(trx, LockError::Interrupted)
    }

    /// Returns the priority of a lock owner among the members of a deadlock.
    pub(super) fn deadlock_priority(&self, trx: TrxId) -> i32 {
        self.owners.get(trx).map_or(0, OwnerState::deadlock_priority)
    }

    /// Returns the number of rows changed plus the number of locks held.
    pub(super) fn weight(&self, trx: TrxId) -> u64 {
        self.owners.get(trx).map_or(0, OwnerState::changed) + self.held_by(trx)
    }

    /// Returns the number of locks that a lock owner holds.
    pub(super) fn held_by(&self, trx: TrxId) -> u64 {
        let Some(owner) = self.owners.get(trx) else { return 0 };
        owner.spaces.iter().filter_map(|id| self.spaces.get(id)).map(|space| space.held_by(trx)).sum()
    }

    /// Returns all held locks.
    pub(super) fn listing(&self) -> Vec<HeldLock> {
        let held = |(trx, lock): (TrxId, Lock)| HeldLock { trx, tag: self.owners.tag(trx), lock };
        self.spaces.values().flat_map(SpaceLocks::listing).map(held).collect()
    }

    /// Returns all waiters.
    pub(super) fn waits(&self) -> Vec<Waiting> {
        let waiting = |(trx, owner): (TrxId, &OwnerState)| {
            let wait = owner.wait.as_ref()?;
            let lock = wait.wanted.clone().into();
            let (tag, blockers) = (owner.tag(), self.blockers(trx));
            Some(Waiting { trx, tag, lock, started_at: wait.started_at, blockers })
        };
        self.owners.iter().filter_map(waiting).collect()
    }

    /// Returns the metrics.
    pub(super) fn metrics(&self) -> LockMetrics {
        LockMetrics {
            held: self.spaces.values().map(SpaceLocks::held).sum(),
            waiting: self.owners.iter().filter(|(_, owner)| owner.wait.is_some()).count() as u64,
            ..self.metrics.clone()
        }
    }

    /// Returns the counts of all tablespaces.
    pub(super) fn counts(&self) -> LockCounts {
        self.counts
    }

    /// Checks that locks, counts and owners agree, and that each waiter waits for another owner.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check_invariants(&self) {
        let mut counts = LockCounts::default();
        for (id, space) in &self.spaces {
            assert!(!space.is_empty(), "tablespace {id} has no locks, and an entry in the lock table");
            space.check_invariants(&self.owners);
            let LockCounts { rows, ranges, tables } = space.counts();
            counts = LockCounts {
                rows: counts.rows + rows,
                ranges: counts.ranges + ranges,
                tables: counts.tables + tables,
            };
        }
        assert!(self.counts == counts, "the locks are {counts:?}, and {:?} are counted", self.counts);
        for (trx, owner) in self.owners.iter().filter(|(_, owner)| owner.wait.is_some()) {
            let blockers = self.blockers(trx);
            assert!(!blockers.ids().is_empty(), "transaction {trx} waits for no other one");
            assert!(owner.outcome.is_none(), "transaction {trx} waits, and its wait has an outcome");
        }
    }

    /// Returns whether there are no locks and no lock owners.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = self.spaces.is_empty() && self.owners.iter().next().is_none();
        assert!(
            !is_empty || self.counts == LockCounts::default(),
            "counted, and not there: {:?}",
            self.counts
        );
        is_empty
    }
}
