//! Deadlock detection.
//!
//! **Purpose.** Finds a cycle in the wait-for graph as soon as it is closed, ends the wait of the transaction on it
//! that is preferred as the victim or loses the least work, and reports afterwards which transaction waited for which.
//!
//! **Invariants.** There was no cycle before, so a new one contains the transaction that has just begun to wait, or
//! that was granted a lock while it waits (test: `behaves_as_its_rules`). The search begins there, and visits each
//! transaction once (checked by `locks/deadlock.rs::search`). It has the mutex of the waits, and takes those of the
//! shards one after the other, so that requests without a wait go on (test:
//! `a_search_crosses_shards_while_locks_are_granted`).
//! What it remembers of a queue are places and not positions, because requests that are granted meanwhile leave the
//! queue (test: `a_request_behind_an_upgrade_closes_a_cycle`). A cycle counts if all its members wait at the end of the
//! search (checked by `locks/deadlock.rs::break_cycles`). The victim is a transaction with the lowest priority;
//! among those the lightest, among equals the one with which the search began, and then the youngest (tests:
//! `of_the_lowest_priority_the_lightest_is_the_victim`, `two_upgrades_of_one_row_are_a_deadlock`,
//! `a_long_chain_of_waits_is_searched_once`).
//!
//! **Cost.** A search examines each place of a queue once per mode, so many waiters for one lock cost no more than
//! their number.

use core::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque, hash_map::Entry};

use rustc_hash::FxBuildHasher;

use super::{
    LockManager,
    mode::TableMode,
    owner::LockOwner,
    queue::Place,
    request::{Deadlock, DeadlockMember, LockRequest},
    waiting::{Wait, WaitStep, WaitTable},
};
use crate::{
    error::{Blockers, LockError},
    ids::{SpaceId, TrxId},
    sync::Arc,
};

impl WaitStep<'_> {
    /// Ends waits until no cycle contains this transaction.
    pub(super) fn break_cycles(&mut self, root: TrxId) {
        while let Some(mut cycle) = self.cycle(root) {
            debug_assert!(cycle.len() > 1, "a transaction waits for others only");
            debug_assert!(
                cycle.iter().all(|trx| self.waits.all.get(trx).is_some_and(Wait::is_open)),
                "every member of a cycle waits"
            );
            let weights: BTreeMap<TrxId, (i64, u64)> = cycle
                .iter()
                .filter_map(|trx| {
                    let owner = &self.waits.all.get(trx)?.owner;
                    Some((*trx, (owner.deadlock_priority(), self.weight(owner))))
                })
                .collect();
            let order = |trx: TrxId| (weights.get(&trx), trx != root, Reverse(trx));
            let first = (0..cycle.len()).min_by_key(|at| order(cycle[*at]));
            cycle.rotate_left(first.unwrap_or_default());
            self.waits.metrics.deadlocks += 1;
            self.waits.last_deadlock = Some(self.describe(&cycle, &weights));
            let tag = |trx| self.waits.all.get(&trx).map_or(0, |wait| wait.owner.tag());
            let others = Blockers::new(cycle[1..].iter().map(|trx| (*trx, tag(*trx))));
            let was_stopped = self.stop(cycle[0], |_, _| LockError::Deadlock(others));
            debug_assert!(was_stopped, "a member of a cycle was granted its request");
        }
    }

    /// Returns a shortest cycle through a transaction: each waits for the next one, and the last one for the first.
    fn cycle(&self, root: TrxId) -> Option<Vec<TrxId>> {
        loop {
            // No transaction waits for one that holds nothing, unless that is an earlier waiter; but this one is the
            // last waiter.
            let wait = self.waits.all.get(&root)?;
            if !wait.is_open() || wait.owner.holds_nothing() {
                return None;
            }
            let cycle = self.search(root)?;
            debug_assert!(cycle[0] == root, "transaction {root} is not on the cycle that was found for it");
            if cycle.iter().all(|trx| self.waits.all.get(trx).is_some_and(Wait::is_open)) {
                return Some(cycle);
            }
        }
    }

    fn search(&self, root: TrxId) -> Option<Vec<TrxId>> {
        let mut search = Search {
            locks: self.locks,
            waits: &self.waits,
            root,
            found_by: HashMap::default(),
            seen: BTreeMap::new(),
            open: VecDeque::from([root]),
        };
        let mut visited = 0;
        while let Some(trx) = search.open.pop_front() {
            visited += 1;
            debug_assert!(visited <= 1 + search.found_by.len(), "a search visits a transaction again");
            if let Some(wait) = search.waits.all.get(&trx)
                && search.visit(trx, wait)
            {
                let mut cycle = vec![trx];
                while let Some(before) = cycle.last().and_then(|trx| search.found_by.get(trx)) {
                    cycle.push(*before);
                }
                cycle.reverse();
                return Some(cycle);
            }
        }
        None
    }

    /// Reports what each transaction on a cycle waited for and held.
    fn describe(&self, cycle: &[TrxId], weights: &BTreeMap<TrxId, (i64, u64)>) -> Deadlock {
        let waits: Vec<(TrxId, &Wait)> =
            cycle.iter().filter_map(|trx| Some((*trx, self.waits.all.get(trx)?))).collect();
        let blocked = |n: usize, (trx, wait): (TrxId, &Wait)| {
            let Wait { wanted, spot, .. } = waits[(n + waits.len() - 1) % waits.len()].1;
            let held = self.locks.shards.read(*spot, |shard| shard.held_against(trx, *spot, wanted));
            let (deadlock_priority, weight) = weights.get(&trx).copied().unwrap_or_default();
            DeadlockMember {
                trx,
                tag: wait.owner.tag(),
                wanted: wait.wanted.clone().into(),
                held,
                weight,
                deadlock_priority,
            }
        };
        Deadlock {
            detected_at: waits.iter().map(|(_, wait)| wait.started_at).max().unwrap_or_default(),
            cycle: waits.iter().enumerate().map(|(n, wait)| blocked(n, *wait)).collect(),
        }
    }
}

/// A search for a cycle.
struct Search<'a> {
    locks: &'a LockManager,
    waits: &'a WaitTable,
    root: TrxId,
    /// For each transaction that was found, one that waits for it.
    found_by: HashMap<TrxId, TrxId, FxBuildHasher>,
    /// The place up to which the waiters of a queue were examined for a mode; its holders come first.
    seen: BTreeMap<(SpaceId, Option<&'a [u8]>, TableMode), Place>,
    open: VecDeque<TrxId>,
}

impl<'a> Search<'a> {
    /// Finds all transactions that a transaction waits for. Returns whether the root is among them.
    fn visit(&mut self, trx: TrxId, wait: &'a Wait) -> bool {
        let Wait { owner, wanted, spot, place, .. } = wait;
        let shards = &self.locks.shards;
        shards.read(*spot, |shard| {
            if !wait.is_open() {
                return false;
            }
            if let LockRequest::Insert(row) = wanted {
                let Some(space) = shard.space(row.space) else { return false };
                // Transactions that were found already are skipped: those are the majority under heavy contention.
                let Self { found_by, open, root, .. } = self;
                return space.ranges_against(owner.inserter()).any(|(other, ranges)| {
                    !found_by.contains_key(&other.id())
                        && ranges.cover(&row.key)
                        && find(found_by, open, *root, other, trx)
                });
            }
            let Some((queue, mode)) = shard.queue(*spot, wanted) else { return false };
            let name = (wanted.space(), wanted.key(), mode);
            let seen = self.seen.get(&name).copied();
            let from = seen.unwrap_or(Place::FIRST);
            let holders = queue.holders_against(trx, mode).take_while(|_| seen.is_none());
            let mut others = holders.chain(queue.waiters_against(*place, mode, from));
            let Self { found_by, open, root, .. } = self;
            if others.any(|other| find(found_by, open, *root, other, trx)) {
                return true;
            }
            // The root has skipped itself as a holder; others must not. An upgrade has examined holders only.
            if trx != self.root {
                self.seen.insert(name, if place.is_new() { from.max(*place) } else { from });
            }
            false
        })
    }
}

/// Notes that a transaction waits for another one. Returns whether that is the root.
fn find(
    found_by: &mut HashMap<TrxId, TrxId, FxBuildHasher>,
    open: &mut VecDeque<TrxId>,
    root: TrxId,
    other: &Arc<LockOwner>,
    by: TrxId,
) -> bool {
    let other = other.id();
    if other == root {
        return true;
    }
    if let Entry::Vacant(new) = found_by.entry(other) {
        new.insert(by);
        open.push_back(other);
    }
    false
}
