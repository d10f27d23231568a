//! The lock of one table, and the range locks of its tree.
//!
//! **Purpose.** Holds what is locked in a tablespace as a whole: the lock of the table, and the range locks with the
//! waiters to insert. A drop first waits for the transactions that have locked the table. Row locks are in `rows`.
//!
//! **Invariants.** A lock owner with a lock here has the tablespace in its list (checked by
//! `locks/space.rs::check_invariants`). A waiter is granted its request in the step that removes the last conflict
//! (test: `behaves_as_its_rules`).

use core::ops::Bound;
use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{
    mode::{Modes, TableMode},
    owner::{Inserter, LockOwner, Wakes},
    queue::LockQueue,
    ranges::Ranges,
    request::Lock,
};
use crate::{
    ids::{SpaceId, TrxId},
    keys::KeyRange,
    sync::Arc,
};

/// The locks.
#[derive(Debug)]
pub(super) struct SpaceLocks {
    id: SpaceId,
    pub(super) table: LockQueue,
    ranges: BTreeMap<TrxId, OwnedRanges>,
    inserters: BTreeMap<TrxId, WaitingInserter>,
}

/// The range locks of a transaction.
#[derive(Debug)]
struct OwnedRanges {
    owner: Arc<LockOwner>,
    ranges: Ranges,
}

/// A transaction that waits to insert a key.
#[derive(Debug)]
struct WaitingInserter {
    owner: Arc<LockOwner>,
    key: Box<[u8]>,
}

/// Grants the lock of a queue, if nothing blocks the request, and marks the waits that it now blocks.
pub(super) fn try_grant(
    queue: &mut LockQueue,
    me: &Arc<LockOwner>,
    mode: TableMode,
    wakes: &mut Wakes,
) -> bool {
    if !wakes.is_observed() || !queue.has_waiters() {
        return queue.try_grant(me, mode);
    }
    let before = queue.held_by(me.id());
    let taken = queue.try_grant(me, mode);
    if queue.held_by(me.id()) != before {
        wakes.outdate(queue.waiters_behind(me.id()));
    }
    taken
}

/// Grants the lock of a queue to all waiters that nothing blocks any more, and marks the waits that these now block.
/// `served` is given each that did not hold the lock before.
pub(super) fn grant_waiters(
    queue: &mut LockQueue,
    wakes: &mut Wakes,
    mut served: impl FnMut(&Arc<LockOwner>),
) {
    if !queue.has_waiters() {
        return;
    }
    let marks = wakes.is_observed() && queue.has_waiters_out_of_order();
    let mut granted = SmallVec::<[TrxId; 1]>::new();
    queue.grant_waiters(|owner, was_holder| {
        debug_assert!(!owner.has_ended(), "a lock is granted to {}, which has ended", owner.id());
        if marks {
            granted.push(owner.id());
        }
        if !was_holder {
            served(&owner);
        }
        wakes.resolve(owner);
    });
    for trx in granted {
        wakes.outdate(queue.waiters_behind(trx));
    }
}

impl SpaceLocks {
    /// Returns a tablespace without locks.
    pub(super) fn new(id: SpaceId) -> Self {
        Self { id, table: LockQueue::default(), ranges: BTreeMap::new(), inserters: BTreeMap::new() }
    }

    /// Locks the table, if nothing blocks that.
    pub(super) fn try_lock_table(&mut self, me: &Arc<LockOwner>, mode: TableMode, wakes: &mut Wakes) -> bool {
        let is_taken = try_grant(&mut self.table, me, mode, wakes);
        if is_taken {
            me.note_space(self.id);
        }
        is_taken
    }

    /// Grants the table to the waiters that nothing blocks any more.
    pub(super) fn serve_table(&mut self, wakes: &mut Wakes) {
        let id = self.id;
        grant_waiters(&mut self.table, wakes, |owner| owner.note_space(id));
    }

    /// Adds a waiter to insert a key.
    pub(super) fn add_inserter(&mut self, me: &Arc<LockOwner>, key: &[u8]) {
        let waiting = WaitingInserter { owner: me.clone(), key: key.into() };
        let other = self.inserters.insert(me.id(), waiting);
        debug_assert!(other.is_none(), "a transaction waits for one insert at a time");
    }

    /// Removes a waiter to insert.
    pub(super) fn remove_inserter(&mut self, trx: TrxId) {
        let removed = self.inserters.remove(&trx);
        debug_assert!(removed.is_some(), "a waiter to insert is in the list of these");
    }

    /// Grants the requests of waiters to insert with keys that no range lock covers any more.
    fn serve_inserters(&mut self, wakes: &mut Wakes) {
        let is_free =
            |waiting: &WaitingInserter| !self.is_range_locked(waiting.owner.inserter(), &waiting.key);
        let free: SmallVec<[TrxId; 1]> =
            self.inserters.iter().filter(|(_, waiting)| is_free(waiting)).map(|(trx, _)| *trx).collect();
        for trx in free {
            if let Some(waiting) = self.inserters.remove(&trx) {
                wakes.resolve(waiting.owner);
            }
        }
    }

    /// Returns whether a range lock blocks an insert of this key.
    pub(super) fn is_range_locked(&self, me: Inserter, key: &[u8]) -> bool {
        self.range_holders_against(me, key).next().is_some()
    }

    /// Returns whether a transaction has locked all keys between these bounds.
    pub(super) fn has_locked_range(&self, me: &LockOwner, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
        self.ranges.get(&me.id()).is_some_and(|held| held.ranges.cover_all(lower, upper))
    }

    /// Locks a range for a transaction.
    pub(super) fn lock_range(&mut self, me: &Arc<LockOwner>, range: KeyRange, wakes: &mut Wakes) {
        me.note_space(self.id);
        let new = || OwnedRanges { owner: me.clone(), ranges: Ranges::default() };
        let ranges = &mut self.ranges.entry(me.id()).or_insert_with(new).ranges;
        if wakes.is_observed() {
            let is_new = |waiting: &&WaitingInserter| {
                let is_in_range = *range.from <= *waiting.key && !range.ends_at(&waiting.key);
                is_in_range && !ranges.cover(&waiting.key) && waiting.owner.inserter().is_blocked_by(me)
            };
            wakes.outdate(self.inserters.values().filter(is_new).map(|waiting| &waiting.owner));
        }
        let before = ranges.len();
        ranges.lock(range);
        debug_assert!(
            (1..=before + 1).contains(&ranges.len()),
            "a range was locked, and {before} ranges have become {}",
            ranges.len()
        );
    }

    /// Sets the lock of a transaction on the table back to what it was before.
    pub(super) fn restore_table(&mut self, me: &LockOwner, before: Modes, wakes: &mut Wakes) {
        self.table.restore(me.id(), before);
        if before.is_empty() && !self.ranges.contains_key(&me.id()) {
            me.forget_space(self.id);
        }
        self.serve_table(wakes);
    }

    /// Releases the locks of a transaction here, which has no row locks any more: the table lock covers these.
    pub(super) fn release(&mut self, trx: TrxId, wakes: &mut Wakes) {
        debug_assert!(
            !self.inserters.contains_key(&trx),
            "transaction {trx} releases its locks and waits to insert"
        );
        if self.ranges.remove(&trx).is_some() {
            self.serve_inserters(wakes);
        }
        if !self.table.held_by(trx).is_empty() && self.table.release(trx) {
            self.serve_table(wakes);
        }
    }

    /// Returns the range locks that block inserts of a transaction, and their holders.
    pub(super) fn ranges_against(&self, me: Inserter) -> impl Iterator<Item = (&Arc<LockOwner>, &Ranges)> {
        let rivals = self.ranges.values().filter(move |held| me.is_blocked_by(&held.owner));
        rivals.map(|held| (&held.owner, &held.ranges))
    }

    /// Returns the transactions with range locks that block an insert of this key.
    pub(super) fn range_holders_against(
        &self,
        me: Inserter,
        key: &[u8],
    ) -> impl Iterator<Item = &Arc<LockOwner>> {
        self.ranges_against(me).filter(move |(_, ranges)| ranges.cover(key)).map(|(owner, _)| owner)
    }

    /// Returns the range lock of a holder that contains this key.
    pub(super) fn range_around(&self, holder: TrxId, key: &[u8]) -> Option<Lock> {
        let range = self.ranges.get(&holder)?.ranges.around(key)?;
        Some(Lock::Range(self.id, range))
    }

    /// Returns the number of locks that a transaction holds here.
    pub(super) fn held_by(&self, trx: TrxId) -> u64 {
        let ranges = self.ranges.get(&trx).map_or(0, |held| held.ranges.len());
        (self.table.held_by(trx).iter().count() + ranges) as u64
    }

    /// Returns the number of locks held here.
    pub(super) fn held(&self) -> u64 {
        let table: usize = self.table.holders().map(|(_, modes)| modes.iter().count()).sum();
        let ranges: usize = self.ranges.values().map(|held| held.ranges.len()).sum();
        (table + ranges) as u64
    }

    /// Returns the locks on the table, each with its holder.
    pub(super) fn table_locks(&self) -> impl Iterator<Item = (&Arc<LockOwner>, Lock)> {
        self.table
            .holders()
            .flat_map(move |(owner, modes)| modes.iter().map(move |mode| (owner, Lock::Table(self.id, mode))))
    }

    /// Returns the locks on ranges, each with its holder.
    pub(super) fn range_locks(&self) -> impl Iterator<Item = (&Arc<LockOwner>, Lock)> {
        self.ranges.values().flat_map(move |held| {
            held.ranges.iter().map(move |range| (&held.owner, Lock::Range(self.id, range)))
        })
    }

    /// Returns whether any transaction has locked a range.
    pub(super) fn has_ranges(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Returns whether any transaction has locked the table, or waits for it.
    pub(super) fn is_table_locked(&self) -> bool {
        !self.table.is_empty()
    }

    /// Checks that each holder has this tablespace in its list, and that each inserter waits for a range.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check_invariants(&self) {
        assert!(!self.is_empty(), "tablespace {} has no locks, and an entry in the lock table", self.id);
        let holders = self.table.holders().map(|(owner, _)| owner);
        for owner in holders.chain(self.ranges.values().map(|held| &held.owner)) {
            let (_, spaces) = owner.held_counts();
            let knows = spaces.contains(&self.id);
            assert!(knows, "{} has locks in tablespace {}, not in its list", owner.id(), self.id);
        }
        for waiting in self.inserters.values() {
            let is_blocked = self.is_range_locked(waiting.owner.inserter(), &waiting.key);
            assert!(is_blocked && waiting.owner.waits(), "{} waits for no range", waiting.owner.id());
        }
    }

    /// Returns whether nothing is locked or waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.ranges.is_empty() && self.inserters.is_empty()
    }
}
