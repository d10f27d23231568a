//! Deadlock detection.
//!
//! **Purpose.** Finds a cycle in the wait-for graph as soon as it is closed, ends the wait of the transaction on it
//! that is preferred as the victim or loses the least work, and reports afterwards which transaction waited for which.
//!
//! **Invariants.** There was no cycle before, so a new one contains the transaction that has just begun to wait, or
//! that was granted a lock while it waits (test: `behaves_as_its_rules`). The search begins there, and visits each
//! transaction once (checked by `locks/deadlock.rs::cycle`). The victim is a transaction with the lowest priority;
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
    mode::TableMode,
    owner::{OwnerState, Wait},
    request::{Deadlock, DeadlockMember},
    table::LockTable,
};
use crate::{
    error::{Blockers, LockError},
    ids::{SpaceId, TrxId},
};

impl LockTable {
    /// Ends waits until no cycle contains this transaction.
    pub(super) fn break_cycles(&mut self, root: TrxId) {
        while let Some(mut cycle) = self.cycle(root) {
            debug_assert!(cycle.len() > 1, "a transaction waits for others only");
            debug_assert!(
                cycle.iter().all(|trx| self.owners.wait_of(*trx).is_some()),
                "every member of a cycle waits"
            );
            let order =
                |trx: TrxId| (self.deadlock_priority(trx), self.weight(trx), trx != root, Reverse(trx));
            let first = (0..cycle.len()).min_by_key(|at| order(cycle[*at]));
            cycle.rotate_left(first.unwrap_or_default());
            self.metrics.deadlocks += 1;
            self.last_deadlock = Some(self.describe(&cycle));
            let others = Blockers::new(cycle[1..].iter().map(|trx| (*trx, self.owners.tag(*trx))));
            self.stop(cycle[0], LockError::Deadlock(others));
        }
    }

    /// Returns a shortest cycle through a transaction: each waits for the next one, and the last one for the first.
    fn cycle(&self, root: TrxId) -> Option<Vec<TrxId>> {
        // No transaction waits for one that holds nothing, unless that is an earlier waiter; but this one is the last
        // waiter.
        if self.owners.get(root).is_none_or(|owner| owner.wait.is_none() || owner.spaces.is_empty()) {
            return None;
        }
        let mut search = Search {
            table: self,
            root,
            found_by: HashMap::default(),
            seen: BTreeMap::new(),
            open: VecDeque::from([root]),
        };
        let mut visited = 0;
        while let Some(trx) = search.open.pop_front() {
            visited += 1;
            debug_assert!(visited <= 1 + search.found_by.len(), "a search visits a transaction again");
            if let Some(wait) = self.owners.wait_of(trx)
                && search.visit(trx, wait)
            {
                let mut cycle = vec![trx];
                while let Some(before) = cycle.last().and_then(|trx| search.found_by.get(trx)) {
                    cycle.push(*before);
                }
                cycle.reverse();
                debug_assert!(
                    cycle[0] == root,
                    "transaction {root} is not on the cycle that was found for it"
                );
                return Some(cycle);
            }
        }
        None
    }

    /// Reports what each transaction on a cycle waited for and held.
    fn describe(&self, cycle: &[TrxId]) -> Deadlock {
        let waits: Vec<(TrxId, &Wait)> =
            cycle.iter().filter_map(|trx| Some((*trx, self.owners.wait_of(*trx)?))).collect();
        let blocked = |n: usize, (trx, wait): (TrxId, &Wait)| {
            let wanted = &waits[(n + waits.len() - 1) % waits.len()].1.wanted;
            let space = self.spaces.get(&wanted.space());
            DeadlockMember {
                trx,
                tag: self.owners.tag(trx),
                wanted: wait.wanted.clone().into(),
                held: space.and_then(|space| space.held_against(trx, wanted)),
                weight: self.weight(trx),
                deadlock_priority: self.deadlock_priority(trx),
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
    table: &'a LockTable,
    root: TrxId,
    /// For each transaction that was found, one that waits for it.
    found_by: HashMap<TrxId, TrxId, FxBuildHasher>,
    /// The number of waiters of a queue that were examined for a mode; its holders come first.
    seen: BTreeMap<(SpaceId, Option<&'a [u8]>, TableMode), usize>,
    open: VecDeque<TrxId>,
}

impl<'a> Search<'a> {
    /// Finds all transactions that a transaction waits for. Returns whether the root is among them.
    fn visit(&mut self, trx: TrxId, wait: &'a Wait) -> bool {
        let Some(space) = self.table.spaces.get(&wait.wanted.space()) else { return false };
        let Some((queue, mode)) = space.queue(&wait.wanted) else {
            let key = wait.wanted.key().unwrap_or_default();
            let Some(me) = self.table.owners.get(trx).map(OwnerState::inserter) else { return false };
            // Transactions that were found already are skipped: those are the majority under heavy contention.
            return space.ranges_against(me).any(|(other, ranges)| {
                !self.found_by.contains_key(&other) && ranges.cover(key) && self.find(other, trx)
            });
        };
        let name = (wait.wanted.space(), wait.wanted.key(), mode);
        let seen = self.seen.get(&name).copied();
        let holders = queue.holders_against(trx, mode).take_while(|_| seen.is_none());
        let from = seen.unwrap_or_default();
        let mut others = holders.chain(queue.waiters_against(wait.place, mode, from));
        if others.any(|other| self.find(other, trx)) {
            return true;
        }
        // The root has skipped itself as a holder; others must not.
        if trx != self.root {
            self.seen.insert(name, from.max(queue.position(wait.place)));
        }
        false
    }

    /// Notes that a transaction waits for another one. Returns whether that is the root.
    fn find(&mut self, other: TrxId, by: TrxId) -> bool {
        if other == self.root {
            return true;
        }
        if let Entry::Vacant(new) = self.found_by.entry(other) {
            new.insert(by);
            self.open.push_back(other);
        }
        false
    }
}
