//! The queue of one lock: its holders and its waiters.
//!
//! **Purpose.** Decides which requests for a table or a row are granted, which transactions block a request, and which
//! request is next.
//!
//! **Invariants.**
//! - A new request waits for holders that conflict with it, and for earlier waiters that conflict with it: a new
//!   request never overtakes a conflicting one (test:
//!   `compatible_requests_are_granted_together_and_none_is_overtaken`). A waiter that yields keeps its place (checked
//!   by `locks/queue.rs::set_yielding`): it waits for holders and earlier waiters, but no request waits for it (test:
//!   `a_yielding_request_blocks_no_other`).
//! - An upgrade, requested by a holder of the lock, waits for the other holders only, and is placed before all waiters
//!   that hold nothing: these wait for the holder anyway, or would (test:
//!   `an_upgrade_is_queued_before_requests_without_a_lock`).
//! - A request that nothing blocks is granted in the same step in which that becomes so (test:
//!   `behaves_as_its_rules`); a queue without holders has no waiters (checked by `locks/queue.rs::grant_waiters`).
//!
//! Holders conflict in one case only (test: `behaves_as_its_rules`): a transaction was granted the lock although
//! another one had written the row, because the writer's implicit lock was made explicit only afterwards. Both keep
//! their locks, and neither is granted a further mode alongside the other (test:
//! `a_request_overtaken_by_a_writer_is_not_granted_with_it`).

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::{
    mode::{Modes, TableMode},
    owner::LockOwner,
};
use crate::{ids::TrxId, sync::Arc};

/// The place of a request in a queue: upgrades first, each in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Whether the requester holds nothing yet.
    is_new: bool,
    ticket: u64,
}

impl Place {
    /// Before all others.
    pub(super) const FIRST: Self = Self { is_new: false, ticket: 0 };
    /// The place where there is no order: among the waiters to insert.
    pub(super) const NONE: Self = Self { is_new: true, ticket: 0 };

    /// Returns whether the requester holds nothing yet.
    pub(super) const fn is_new(self) -> bool {
        self.is_new
    }

    /// Returns the ticket of the request.
    pub(super) const fn ticket(self) -> u64 {
        self.ticket
    }
}

#[derive(Clone, Debug)]
struct Holder {
    trx: TrxId,
    modes: Modes,
    owner: Arc<LockOwner>,
}

#[derive(Clone, Debug)]
struct Waiter {
    trx: TrxId,
    owner: Arc<LockOwner>,
    mode: TableMode,
    place: Place,
    /// Later requests overtake it.
    yields: bool,
}

/// The queue of one lock.
#[derive(Debug, Default)]
pub(super) struct LockQueue {
    /// By transaction.
    holders: SmallVec<[Holder; 1]>,
    /// By place.
    waiters: VecDeque<Waiter>,
}

impl LockQueue {
    /// Grants the lock, if nothing blocks it. Returns whether it was granted.
    pub(super) fn try_grant(&mut self, me: &Arc<LockOwner>, mode: TableMode) -> bool {
        let trx = me.id();
        let mine = self.held_by(trx);
        let is_passing = mine.is_empty() && self.waiters.iter().any(|w| !w.yields && w.mode.conflicts(mode));
        if is_passing || self.holders_against(trx, mode).next().is_some() {
            return false;
        }
        self.grant(me, mode);
        true
    }

    /// Grants the lock unconditionally.
    pub(super) fn grant(&mut self, me: &Arc<LockOwner>, mode: TableMode) {
        let trx = me.id();
        match self.find_holder(trx) {
            Ok(at) => self.holders[at].modes = self.holders[at].modes.with(mode),
            Err(at) => {
                self.holders.insert(at, Holder { trx, modes: mode.into(), owner: me.clone() });
                debug_assert!(
                    self.holders.get(at + 1).is_none_or(|next| trx < next.trx),
                    "holders are in order of transaction"
                );
            }
        }
        debug_assert!(self.held_by(trx).cover(mode), "a lock that is granted is held");
    }

    fn find_holder(&self, trx: TrxId) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&trx, |holder| holder.trx)
    }

    /// Returns the place that a request would get now. Later requests have larger tickets.
    pub(super) fn place(&self, trx: TrxId, ticket: u64) -> Place {
        Place { is_new: self.held_by(trx).is_empty(), ticket }
    }

    /// Adds a request to the queue, at its place in the order.
    pub(super) fn enqueue(&mut self, me: &Arc<LockOwner>, mode: TableMode, ticket: u64) -> Place {
        let trx = me.id();
        debug_assert!(self.waiters.iter().all(|w| w.trx != trx), "a transaction waits once in a queue");
        let place = self.place(trx, ticket);
        let at = self.position(place);
        self.waiters.insert(at, Waiter { trx, owner: me.clone(), mode, place, yields: false });
        debug_assert!(
            self.waiters.get(at + 1).is_none_or(|next| place < next.place),
            "waiters are in order of place"
        );
        place
    }

    /// Sets whether later requests overtake the waiter at this place. It is granted the lock when nothing blocks it,
    /// in either case.
    pub(super) fn set_yielding(&mut self, place: Place, yields: bool) {
        let at = self.position(place);
        let waiter = self.waiters.get_mut(at).filter(|w| w.place == place);
        debug_assert!(waiter.is_some(), "a request that yields is at its place");
        if let Some(waiter) = waiter {
            waiter.yields = yields;
        }
    }

    /// Removes a request from the queue.
    pub(super) fn dequeue(&mut self, place: Place) {
        let at = self.position(place);
        let is_there = self.waiters.get(at).is_some_and(|w| w.place == place);
        debug_assert!(is_there, "a request that leaves a queue is at its place");
        if is_there {
            self.waiters.remove(at);
        }
    }

    /// Releases the lock. Returns whether it was held.
    pub(super) fn release(&mut self, trx: TrxId) -> bool {
        let was_held = self.find_holder(trx).map(|at| self.holders.remove(at)).is_ok();
        debug_assert!(self.held_by(trx).is_empty(), "a lock that was released is held by {trx}");
        was_held
    }

    /// Downgrades the lock to this mode, if it is held in a stronger one. Returns whether it was.
    pub(super) fn downgrade(&mut self, trx: TrxId, mode: TableMode) -> bool {
        let held = self.held_by(trx);
        let is_stronger = held.cover(mode) && held != mode.into();
        if is_stronger && let Ok(at) = self.find_holder(trx) {
            self.holders[at].modes = mode.into();
            debug_assert!(
                !self.held_by(trx).cover(TableMode::Exclusive),
                "a lock was downgraded and is exclusive"
            );
        }
        is_stronger
    }

    /// Sets the lock back to these modes, which the transaction had before it was granted further ones.
    pub(super) fn restore(&mut self, trx: TrxId, before: Modes) {
        let held = self.held_by(trx);
        debug_assert!(
            before.iter().all(|mode| held.cover(mode)),
            "a lock is set back to a mode that it lacks"
        );
        if before.is_empty() {
            self.release(trx);
        } else if let Ok(at) = self.find_holder(trx) {
            self.holders[at].modes = before;
        }
        debug_assert!(self.held_by(trx) == before, "{trx} holds other modes than those that were set back");
    }

    /// Grants the lock to all waiters that nothing blocks any more. `served` is given each, and whether it held the
    /// lock in another mode before.
    pub(super) fn grant_waiters(&mut self, mut served: impl FnMut(Arc<LockOwner>, bool)) {
        let mut passed = Modes::default();
        let mut at = 0;
        while let Some(Waiter { trx, mode, place, yields, .. }) = self.waiters.get(at) {
            let (trx, mode, is_new) = (*trx, *mode, place.is_new);
            if is_new && passed.cover(TableMode::Exclusive) {
                break;
            }
            let is_passing = is_new && passed.conflict(mode);
            if is_passing || self.holders_against(trx, mode).next().is_some() {
                if !yields {
                    passed = passed.with(mode);
                }
                at += 1;
            } else if let Some(Waiter { owner, .. }) = self.waiters.remove(at) {
                let was_holder = !self.held_by(trx).is_empty();
                self.grant(&owner, mode);
                served(owner, was_holder);
            }
        }
        debug_assert!(
            !self.holders.is_empty() || self.waiters.is_empty(),
            "a queue without holders has waiters"
        );
    }

    /// Returns the modes in which a transaction holds the lock.
    pub(super) fn held_by(&self, trx: TrxId) -> Modes {
        self.find_holder(trx).map_or(Modes::default(), |at| self.holders[at].modes)
    }

    /// Returns the holders and their modes.
    pub(super) fn holders(&self) -> impl Iterator<Item = (&Arc<LockOwner>, Modes)> {
        self.holders.iter().map(|holder| (&holder.owner, holder.modes))
    }

    /// Returns the holders that conflict with a request of a transaction for this mode.
    pub(super) fn holders_against(
        &self,
        trx: TrxId,
        mode: TableMode,
    ) -> impl Iterator<Item = &Arc<LockOwner>> {
        let against = move |holder: &&Holder| holder.trx != trx && holder.modes.conflict(mode);
        self.holders.iter().filter(against).map(|holder| &holder.owner)
    }

    /// Returns the waiters from place `from` on that are before a place and conflict with a request for this mode.
    pub(super) fn waiters_against(
        &self,
        place: Place,
        mode: TableMode,
        from: Place,
    ) -> impl Iterator<Item = &Arc<LockOwner>> {
        let to = if place.is_new { self.position(place) } else { 0 };
        let waiters = self.waiters.range(self.position(from).min(to)..to);
        waiters.filter(move |w| !w.yields && w.mode.conflicts(mode)).map(|w| &w.owner)
    }

    /// Returns the number of waiters before a place.
    fn position(&self, place: Place) -> usize {
        self.waiters.partition_point(|w| w.place < place)
    }

    /// Returns whether any request waits.
    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Returns whether a grant may bring the new holder into the way of a waiter for the first time. Otherwise it is
    /// in the way of later waiters as an earlier one already, and earlier ones do not conflict with it.
    pub(super) fn has_waiters_out_of_order(&self) -> bool {
        self.waiters.iter().any(|w| w.yields || !w.place.is_new)
    }

    /// Returns the waiters that wait for a transaction, as a holder or as an earlier waiter.
    pub(super) fn waiters_behind(&self, trx: TrxId) -> impl Iterator<Item = &Arc<LockOwner>> {
        let held = self.held_by(trx);
        let own = self.waiters.iter().find(|w| w.trx == trx && !w.yields);
        let waits = move |w: &&Waiter| {
            let is_before =
                |own: &Waiter| w.place.is_new && own.place < w.place && own.mode.conflicts(w.mode);
            w.trx != trx && (held.conflict(w.mode) || own.is_some_and(is_before))
        };
        self.waiters.iter().filter(waits).map(|w| &w.owner)
    }

    /// Returns whether the queue has no holders and no waiters.
    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        TableMode::{Exclusive, IntentionExclusive, IntentionShared, Shared},
        *,
    };
    use crate::txn::locks::OwnerOptions;

    fn trx(n: u64) -> TrxId {
        TrxId(n)
    }

    fn own(n: u64) -> Arc<LockOwner> {
        Arc::new(LockOwner::new(trx(n), OwnerOptions::default()))
    }

    /// Returns the transactions that are granted the lock when this one has released it.
    fn served_after(queue: &mut LockQueue, n: u64) -> Vec<u64> {
        assert!(queue.release(trx(n)));
        let mut served = Vec::new();
        queue.grant_waiters(|owner, _| served.push(owner.id().0));
        served
    }

    #[test]
    fn compatible_requests_are_granted_together_and_none_is_overtaken() {
        let mut queue = LockQueue::default();
        assert!(queue.try_grant(&own(1), Exclusive));
        for (n, mode) in [(2, Shared), (3, Shared), (4, Exclusive), (5, Shared)] {
            assert!(!queue.try_grant(&own(n), mode));
            queue.enqueue(&own(n), mode, n);
        }
        assert_eq!(served_after(&mut queue, 1), [2, 3], "the fifth waits behind the fourth");
        assert!(!queue.try_grant(&own(6), Shared), "it would pass the fourth");
        assert_eq!(served_after(&mut queue, 2), []);
        assert_eq!(served_after(&mut queue, 3), [4]);
        assert_eq!(served_after(&mut queue, 4), [5]);
        assert_eq!(served_after(&mut queue, 5), []);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_compatible_request_waits_for_no_other() {
        let mut queue = LockQueue::default();
        assert!(queue.try_grant(&own(1), IntentionExclusive));
        let shared = queue.enqueue(&own(2), Shared, 1);
        assert!(queue.try_grant(&own(3), IntentionShared), "it is compatible with both");
        assert!(!queue.try_grant(&own(4), IntentionExclusive), "it would pass the second");
        let place = queue.enqueue(&own(4), IntentionExclusive, 2);
        assert_eq!(queue.holders_against(trx(4), IntentionExclusive).count(), 0);
        let before: Vec<TrxId> =
            queue.waiters_against(place, IntentionExclusive, Place::FIRST).map(|w| w.id()).collect();
        assert_eq!(before, [trx(2)]);
        queue.dequeue(shared);
        let mut served = Vec::new();
        queue.grant_waiters(|owner, _| served.push(owner.id().0));
        assert_eq!(served, [4]);
    }

    #[test]
    fn a_yielding_request_blocks_no_other() {
        let mut queue = LockQueue::default();
        let serve = |queue: &mut LockQueue| {
            let mut served = Vec::new();
            queue.grant_waiters(|owner, _| served.push(owner.id().0));
            served
        };
        assert!(queue.try_grant(&own(1), IntentionExclusive));
        let place = queue.enqueue(&own(2), Shared, 1);
        assert!(!queue.try_grant(&own(3), IntentionExclusive));
        let third = queue.enqueue(&own(3), IntentionExclusive, 2);
        queue.set_yielding(place, true);
        assert_eq!(queue.waiters_against(third, IntentionExclusive, Place::FIRST).count(), 0);
        assert_eq!(serve(&mut queue), [3]);
        assert!(queue.try_grant(&own(4), IntentionExclusive));
        queue.set_yielding(place, false);
        assert!(!queue.try_grant(&own(5), IntentionExclusive));
        queue.set_yielding(place, true);
        // It is granted the lock when that is free, however long that takes.
        assert_eq!((served_after(&mut queue, 1), served_after(&mut queue, 3)), (vec![], vec![]));
        assert_eq!(served_after(&mut queue, 4), [2]);
        assert!(queue.held_by(trx(2)).cover(Shared) && !queue.try_grant(&own(5), IntentionExclusive));
    }

    #[test]
    fn an_upgrade_is_queued_before_requests_without_a_lock() {
        let mut queue = LockQueue::default();
        assert!(queue.try_grant(&own(1), Shared) && queue.try_grant(&own(2), Shared));
        queue.enqueue(&own(3), Exclusive, 1);
        assert!(queue.try_grant(&own(1), Shared), "it has that");
        assert!(!queue.try_grant(&own(1), Exclusive));
        let place = queue.enqueue(&own(1), Exclusive, 2);
        assert_eq!(queue.position(place), 0);
        assert_eq!(queue.waiters_against(place, Exclusive, Place::FIRST).count(), 0);
        assert_eq!(served_after(&mut queue, 2), [1]);
        assert!(queue.held_by(trx(1)).cover(Exclusive));
        assert_eq!(served_after(&mut queue, 1), [3]);
    }

    #[test]
    fn a_downgraded_lock_is_granted_to_shared_requests() {
        let mut queue = LockQueue::default();
        assert!(queue.try_grant(&own(1), Exclusive));
        for (n, mode) in [(2, Shared), (3, Exclusive), (4, Shared)] {
            queue.enqueue(&own(n), mode, n);
        }
        assert!(
            queue.downgrade(trx(1), Shared)
                && !queue.downgrade(trx(1), Shared)
                && !queue.downgrade(trx(1), Exclusive)
        );
        let mut served = Vec::new();
        queue.grant_waiters(|owner, _| served.push(owner.id().0));
        assert_eq!(served, [2], "the fourth waits behind the third");
        assert!(queue.held_by(trx(1)).cover(Shared) && !queue.held_by(trx(1)).cover(Exclusive));
        assert!(!queue.downgrade(trx(5), Shared), "it holds nothing");
        assert_eq!((served_after(&mut queue, 2), served_after(&mut queue, 1)), (vec![], vec![3]));
    }

    #[test]
    fn a_lock_that_is_set_back_blocks_no_more_than_before() {
        let mut queue = LockQueue::default();
        assert!(queue.try_grant(&own(1), IntentionExclusive) && queue.try_grant(&own(1), Shared));
        let before = queue.held_by(trx(1));
        assert!(queue.try_grant(&own(1), Exclusive));
        queue.enqueue(&own(2), IntentionShared, 1);
        queue.restore(trx(1), before);
        let mut served = Vec::new();
        queue.grant_waiters(|owner, _| served.push(owner.id().0));
        assert_eq!((served, queue.held_by(trx(1))), (vec![2], before));
        queue.restore(trx(1), Modes::default());
        assert!(queue.try_grant(&own(2), Exclusive));
        queue.restore(trx(3), Modes::default());
    }

    #[test]
    fn a_compatible_upgrade_is_granted_without_a_wait() {
        let mut queue = LockQueue::default();
        assert!(queue.try_grant(&own(1), IntentionShared));
        queue.enqueue(&own(2), Exclusive, 1);
        assert!(queue.try_grant(&own(1), Exclusive), "no other transaction holds anything");
        assert_eq!(served_after(&mut queue, 1), [2]);
    }

    #[test]
    fn a_request_overtaken_by_a_writer_is_not_granted_with_it() {
        let mut queue = LockQueue::default();
        assert!(queue.try_grant(&own(1), Exclusive));
        queue.grant(&own(2), Exclusive);
        assert!(!queue.try_grant(&own(1), Exclusive) && !queue.try_grant(&own(2), Shared));
        assert!(queue.release(trx(1)) && queue.try_grant(&own(2), Shared));
        assert!(!queue.release(trx(1)), "it is given back once");
    }
}
