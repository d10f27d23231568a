//! Circles of transactions that wait for each other.
//!
//! **Purpose.** Finds a circle as soon as it is closed, ends the wait of the one on it whose work is the cheapest to
//! lose, and tells afterwards who waited for whom.
//!
//! **Invariants.** There was no circle before, so a new one goes through whoever has just begun to wait, or was given a
//! lock while he waits: the search begins there, visits each transaction once, and looks at each place of a queue once
//! for each mode. Who gives way is the lightest; among equals the one with whom the search began, and then the
//! youngest.
//!
//! **May touch.** `ids`, `error`.

use core::{cmp::Reverse, fmt, time::Duration};
use std::collections::{BTreeMap, HashMap, VecDeque, hash_map::Entry};

use rustc_hash::FxBuildHasher;

use super::{locker::Wait, mode::TableMode, request::Lock, table::Table};
use crate::{
    error::{InTheWay, LockError},
    ids::{SpaceId, TrxId},
};

/// A circle that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// When the last of them began to wait, by the clock of the environment.
    pub at: Duration,
    /// Each waits for the next one, and the last one for the first: that is who gave way.
    pub circle: Vec<Blocked>,
}

/// A transaction on a circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Who.
    pub trx: TrxId,
    /// What it waited for.
    pub wanted: Lock,
    /// What it held that the one before it wanted; none if it only stood before that one in the queue.
    pub held: Option<Lock>,
    /// How many rows it had changed and locks it held.
    pub weight: u64,
}

impl Deadlock {
    /// Who gave way.
    pub fn victim(&self) -> Option<TrxId> {
        self.circle.first().map(|blocked| blocked.trx)
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a circle of {} transactions, of which the first gave way:", self.circle.len())?;
        for (n, Blocked { trx, wanted, weight, .. }) in self.circle.iter().enumerate() {
            let next = &self.circle[(n + 1) % self.circle.len()];
            write!(
                f,
                "\n  transaction {trx} (weight {weight}) waited for {wanted}, behind transaction {}, which ",
                next.trx
            )?;
            match &next.held {
                Some(lock) => write!(f, "held {lock}")?,
                None => f.write_str("stood before it")?,
            }
        }
        Ok(())
    }
}

impl Table {
    /// Ends as many waits as it takes that nobody waits in a circle through this one.
    pub fn break_circles(&mut self, root: TrxId) {
        while let Some(mut circle) = self.circle(root) {
            let cheapest = |trx: &TrxId| (self.weight(*trx), *trx != root, Reverse(*trx));
            let first = (0..circle.len()).min_by_key(|at| cheapest(&circle[*at]));
            circle.rotate_left(first.unwrap_or_default());
            self.metrics.deadlocks += 1;
            self.last_deadlock = Some(self.tell(&circle));
            self.stop(circle[0], LockError::Deadlock(InTheWay::new(circle[1..].iter().copied())));
        }
    }

    /// A shortest circle through a transaction: each waits for the next one, and the last one for the first.
    fn circle(&self, root: TrxId) -> Option<Vec<TrxId>> {
        // Nobody waits for who has nothing, unless it stands before him; and it came last.
        if self.parties.get(root).is_none_or(|party| party.wait.is_none() || party.spaces.is_empty()) {
            return None;
        }
        let mut search = Search {
            table: self,
            root,
            found_by: HashMap::default(),
            seen: BTreeMap::new(),
            open: VecDeque::from([root]),
        };
        while let Some(trx) = search.open.pop_front() {
            if let Some(wait) = self.parties.wait_of(trx)
                && search.visit(trx, wait)
            {
                let mut circle = vec![trx];
                while let Some(before) = circle.last().and_then(|trx| search.found_by.get(trx)) {
                    circle.push(*before);
                }
                circle.reverse();
                return Some(circle);
            }
        }
        None
    }

    /// Says of each on a circle what it waited for and what it held.
    fn tell(&self, circle: &[TrxId]) -> Deadlock {
        let waits: Vec<(TrxId, &Wait)> =
            circle.iter().filter_map(|trx| Some((*trx, self.parties.wait_of(*trx)?))).collect();
        let blocked = |n: usize, (trx, wait): (TrxId, &Wait)| {
            let wanted = &waits[(n + waits.len() - 1) % waits.len()].1.wanted;
            let space = self.spaces.get(&wanted.space());
            Blocked {
                trx,
                wanted: wait.wanted.clone().into(),
                held: space.and_then(|space| space.held_against(trx, wanted)),
                weight: self.weight(trx),
            }
        };
        Deadlock {
            at: waits.iter().map(|(_, wait)| wait.since).max().unwrap_or_default(),
            circle: waits.iter().enumerate().map(|(n, wait)| blocked(n, *wait)).collect(),
        }
    }
}

/// A search for a circle.
struct Search<'a> {
    table: &'a Table,
    root: TrxId,
    /// Who waits for a transaction that was found.
    found_by: HashMap<TrxId, TrxId, FxBuildHasher>,
    /// Up to where a queue was looked at for a mode, its holders first.
    seen: BTreeMap<(SpaceId, Option<&'a [u8]>, TableMode), usize>,
    open: VecDeque<TrxId>,
}

impl<'a> Search<'a> {
    /// Finds everybody whom a transaction waits for. Says whether it waits for the root.
    fn visit(&mut self, trx: TrxId, wait: &'a Wait) -> bool {
        let Some(space) = self.table.spaces.get(&wait.wanted.space()) else { return false };
        let Some((queue, mode)) = space.queue(&wait.wanted) else {
            let key = wait.wanted.key().unwrap_or_default();
            // Who was found already need not be looked at, and that is most of them where many meet.
            return space.ranges().any(|(other, ranges)| {
                other != trx
                    && !self.found_by.contains_key(&other)
                    && ranges.cover(key)
                    && self.find(other, trx)
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
        // The root has not looked at itself as a holder, and others have to.
        if trx != self.root {
            self.seen.insert(name, from.max(queue.position(wait.place)));
        }
        false
    }

    /// A transaction waits for another one. Says whether that is the root.
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
