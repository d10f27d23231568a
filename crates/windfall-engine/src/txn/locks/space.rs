//! The locks of one tablespace.
//!
//! **Purpose.** Holds all locks of a tablespace: the lock of its table, row locks, range locks, and the waiters to
//! insert. A drop first waits for the transactions that have locked the table.
//!
//! **Invariants.** `held` has the rows of which a transaction is a holder (checked by `locks/space.rs::downgrade_row`),
//! and no others (checked by `locks/space.rs::release`). A row's queue exists as long as the row has a holder (checked
//! by `locks/space.rs::try_grant`). A waiter is granted its request in the step that removes the last conflict (test:
//! `behaves_as_its_rules`).

use core::{ops::Bound::Included, time::Duration};
use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::{
    mode::{Modes, RowMode, TableMode},
    owner::{Inserter, LockOwner, LockOwners, Wait},
    queue::{LockQueue, Place},
    ranges::Ranges,
    request::{Lock, LockRequest, RowName},
};
use crate::{
    error::Blockers,
    ids::{SpaceId, TrxId},
    keys::KeyRange,
    sync::Arc,
};

/// A key of the tree, which the holders of its row share.
type Key = Arc<[u8]>;

/// The locks.
#[derive(Debug)]
pub(super) struct SpaceLocks {
    id: SpaceId,
    table: LockQueue,
    rows: BTreeMap<Key, LockQueue>,
    held: BTreeMap<TrxId, BTreeSet<Key>>,
    ranges: BTreeMap<TrxId, GroupRanges>,
    inserters: BTreeSet<TrxId>,
}

/// The range locks of a transaction, and its ordering group.
#[derive(Debug)]
struct GroupRanges {
    ordering_group: u64,
    ranges: Ranges,
}

/// The number of locked rows, the number of transactions with range locks, and whether the table is locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LockCounts {
    pub rows: u64,
    pub ranges: u64,
    pub tables: u64,
}

fn row<'a>(rows: &'a mut BTreeMap<Key, LockQueue>, key: &[u8]) -> Option<(&'a Key, &'a mut LockQueue)> {
    rows.range_mut::<[u8], _>((Included(key), Included(key))).next()
}

fn row_or_new<'a>(rows: &'a mut BTreeMap<Key, LockQueue>, key: &[u8]) -> (&'a Key, &'a mut LockQueue) {
    if !rows.contains_key(key) {
        rows.insert(key.into(), LockQueue::default());
    }
    row(rows, key).expect("it was just made, or there before")
}

/// Grants the lock of a queue, if nothing blocks the request, and marks the waits that it now blocks.
fn try_grant(queue: &mut LockQueue, trx: TrxId, mode: TableMode, owners: &mut LockOwners) -> bool {
    if !owners.is_observed() || !queue.has_waiters() {
        return queue.try_grant(trx, mode);
    }
    let before = queue.held_by(trx);
    let taken = queue.try_grant(trx, mode);
    if queue.held_by(trx) != before {
        owners.outdate(queue.waiters_behind(trx));
    }
    taken
}

/// Grants the lock of a queue to all waiters that nothing blocks any more, and marks the waits that these now block.
fn grant_waiters(
    queue: &mut LockQueue,
    owners: &mut LockOwners,
    mut served: impl FnMut(TrxId, &mut LockOwners),
) {
    let marks = owners.is_observed() && queue.has_waiters_out_of_order();
    let mut granted = SmallVec::<[TrxId; 1]>::new();
    queue.grant_waiters(|trx| {
        served(trx, owners);
        if marks {
            granted.push(trx);
        }
    });
    for trx in granted {
        owners.outdate(queue.waiters_behind(trx));
    }
}

impl SpaceLocks {
    /// Returns a tablespace without locks.
    pub(super) fn new(id: SpaceId) -> Self {
        Self {
            id,
            table: LockQueue::default(),
            rows: BTreeMap::new(),
            held: BTreeMap::new(),
            ranges: BTreeMap::new(),
            inserters: BTreeSet::new(),
        }
    }

    /// Grants a request, if nothing blocks it.
    pub(super) fn try_grant(
        &mut self,
        me: &Arc<LockOwner>,
        wanted: &LockRequest,
        owners: &mut LockOwners,
    ) -> bool {
        let trx = me.id();
        let taken = match wanted {
            LockRequest::Table(_, mode) => try_grant(&mut self.table, trx, *mode, owners),
            LockRequest::Row(row, mode) => {
                let (key, queue) = row_or_new(&mut self.rows, &row.key);
                let taken = try_grant(queue, trx, (*mode).into(), owners);
                debug_assert!(
                    queue.holders().next().is_some(),
                    "a row has a queue as long as it has a holder"
                );
                if taken {
                    let key = key.clone();
                    self.held.entry(trx).or_default().insert(key);
                }
                taken
            }
            LockRequest::Insert(row) => return !self.is_range_locked(me.inserter(), &row.key),
        };
        if taken {
            owners.enter(me).spaces.insert(self.id);
        }
        taken
    }

    /// Begins to wait for a request that was not granted.
    pub(super) fn enqueue(
        &mut self,
        me: &Arc<LockOwner>,
        wanted: LockRequest,
        started_at: Duration,
        owners: &mut LockOwners,
    ) {
        let (trx, ticket) = (me.id(), owners.ticket());
        let place = match &wanted {
            LockRequest::Table(_, mode) => self.table.enqueue(trx, *mode, ticket),
            LockRequest::Row(row, mode) => {
                debug_assert!(self.rows.contains_key(&*row.key), "a request waits for a row that is locked");
                row_or_new(&mut self.rows, &row.key).1.enqueue(trx, (*mode).into(), ticket)
            }
            LockRequest::Insert(_) => {
                let is_new = self.inserters.insert(trx);
                debug_assert!(is_new, "a transaction waits for one insert at a time");
                Place::NONE
            }
        };
        // A new request is the last one. An upgrade is placed before others.
        if owners.is_observed() && !place.is_new() {
            let behind = self.queue(&wanted).into_iter().flat_map(|(queue, _)| queue.waiters_behind(trx));
            owners.outdate(behind);
        }
        owners.begin_wait(me, Wait { wanted, place, started_at });
    }

    /// Ends a wait. Later waiters may be granted their requests.
    pub(super) fn dequeue(&mut self, trx: TrxId, wait: &Wait, owners: &mut LockOwners) {
        match &wait.wanted {
            LockRequest::Table(..) => {
                self.table.dequeue(wait.place);
                self.serve_table(owners);
            }
            LockRequest::Row(name, _) => {
                debug_assert!(self.rows.contains_key(&*name.key), "a row with a waiter has a queue");
                if let Some((_, queue)) = row(&mut self.rows, &name.key) {
                    queue.dequeue(wait.place);
                }
                self.serve_row(&name.key, owners);
            }
            LockRequest::Insert(_) => {
                let was_there = self.inserters.remove(&trx);
                debug_assert!(was_there, "a waiter to insert is in the list of these");
            }
        }
    }

    /// Sets whether later requests overtake the waiter for the table.
    pub(super) fn set_yielding(&mut self, trx: TrxId, place: Place, yields: bool, owners: &mut LockOwners) {
        self.table.set_yielding(place, yields);
        if yields {
            self.serve_table(owners);
        } else if owners.is_observed() {
            owners.outdate(self.table.waiters_behind(trx));
        }
    }

    fn serve_table(&mut self, owners: &mut LockOwners) {
        grant_waiters(&mut self.table, owners, |trx, owners| owners.grant(trx, self.id));
    }

    fn serve_row(&mut self, key: &[u8], owners: &mut LockOwners) {
        let Some((key, queue)) = row(&mut self.rows, key) else { return };
        grant_waiters(queue, owners, |trx, owners| {
            self.held.entry(trx).or_default().insert(key.clone());
            owners.grant(trx, self.id);
        });
        if queue.is_empty() {
            let key = key.clone();
            debug_assert!(
                self.held.values().all(|rows| !rows.contains(&key)),
                "a row without a holder is in the list of one"
            );
            self.rows.remove(&key);
        }
    }

    /// Grants the requests of waiters to insert with keys that no range lock covers any more.
    fn serve_inserters(&mut self, owners: &mut LockOwners) {
        let is_free =
            |trx: &TrxId| owners.awaited_insert(*trx).is_none_or(|(me, key)| !self.is_range_locked(me, key));
        let free: Vec<TrxId> = self.inserters.iter().copied().filter(is_free).collect();
        for trx in free {
            debug_assert!(
                owners.wait_of(trx).is_some(),
                "a transaction in the list of inserters does not wait"
            );
            self.inserters.remove(&trx);
            owners.end_wait(trx, Ok(()));
        }
    }

    /// Returns whether a range lock blocks an insert of this key.
    pub(super) fn is_range_locked(&self, me: Inserter, key: &[u8]) -> bool {
        self.ranges_against(me).any(|(_, ranges)| ranges.cover(key))
    }

    /// Returns whether another transaction holds the row.
    pub(super) fn is_held(&self, me: Option<TrxId>, key: &[u8]) -> bool {
        self.rows.get(key).is_some_and(|queue| queue.holders().any(|(trx, _)| Some(trx) != me))
    }

    /// Returns whether no other transaction holds a lock that conflicts with a shared lock on the row.
    pub(super) fn may_share(&self, me: Option<TrxId>, key: &[u8]) -> bool {
        self.rows.get(key).is_none_or(|queue| {
            queue.holders().all(|(trx, modes)| Some(trx) == me || !modes.conflict(TableMode::Shared))
        })
    }

    /// Makes the lock of a writer of the row explicit.
    pub(super) fn make_explicit(&mut self, holder: &Arc<LockOwner>, key: &[u8], owners: &mut LockOwners) {
        let trx = holder.id();
        let (name, queue) = row_or_new(&mut self.rows, key);
        if queue.held_by(trx).cover(TableMode::Exclusive) {
            return;
        }
        queue.grant(trx, TableMode::Exclusive);
        let name = name.clone();
        let owner = owners.enter(holder);
        owner.spaces.insert(self.id);
        // If it waits in this queue, its request is now an upgrade and moves before those that wait for it.
        if let Some(Wait { wanted: LockRequest::Row(wanted, mode), place, .. }) = &mut owner.wait
            && wanted.space == self.id
            && *wanted.key == *key
        {
            queue.dequeue(*place);
            *place = queue.enqueue(trx, (*mode).into(), place.ticket());
        }
        if owners.is_observed() {
            owners.outdate(queue.waiters_behind(trx));
        }
        self.held.entry(trx).or_default().insert(name);
        self.serve_row(key, owners);
    }

    /// Locks a range for a transaction.
    pub(super) fn lock_range(&mut self, me: &Arc<LockOwner>, range: KeyRange, owners: &mut LockOwners) {
        owners.enter(me).spaces.insert(self.id);
        let new = || GroupRanges { ordering_group: me.inserter().ordering_group, ranges: Ranges::default() };
        let GroupRanges { ordering_group, ranges } = self.ranges.entry(me.id()).or_insert_with(new);
        if owners.is_observed() {
            let is_new = |inserter: &TrxId| {
                owners.awaited_insert(*inserter).is_some_and(|(inserter, key)| {
                    let is_in_range = *range.from <= *key && !range.ends_at(key);
                    is_in_range && !ranges.cover(key) && inserter.is_blocked_by(me.id(), *ordering_group)
                })
            };
            let outdated: SmallVec<[TrxId; 1]> = self.inserters.iter().copied().filter(is_new).collect();
            owners.outdate(outdated);
        }
        let before = ranges.len();
        ranges.lock(range);
        debug_assert!(
            (1..=before + 1).contains(&ranges.len()),
            "a range was locked, and {before} ranges have become {}",
            ranges.len()
        );
    }

    /// Returns the mode in which a transaction holds a row, if it does.
    pub(super) fn held_mode(&self, trx: TrxId, key: &[u8]) -> Option<RowMode> {
        let held = self.rows.get(key)?.held_by(trx);
        held.iter().last().map(row_mode)
    }

    /// Releases the lock on one row, or downgrades it to this mode, and grants the requests that waited for that.
    pub(super) fn downgrade_row(
        &mut self,
        trx: TrxId,
        key: &[u8],
        to: Option<RowMode>,
        owners: &mut LockOwners,
    ) {
        let Some((_, queue)) = row(&mut self.rows, key) else { return };
        if let Some(mode) = to {
            if queue.downgrade(trx, mode.into()) {
                debug_assert!(
                    self.held.get(&trx).is_some_and(|held| held.contains(key)),
                    "a row is downgraded that is not in the list of its holder"
                );
                self.serve_row(key, owners);
            }
        } else if queue.release(trx) {
            if let Some(held) = self.held.get_mut(&trx) {
                let was_listed = held.remove(key);
                debug_assert!(was_listed, "a row that is held is in the list of its holder");
                if held.is_empty() {
                    self.held.remove(&trx);
                }
            }
            self.serve_row(key, owners);
        }
    }

    /// Returns the modes in which a transaction holds the table.
    pub(super) fn table_modes(&self, trx: TrxId) -> Modes {
        self.table.held_by(trx)
    }

    /// Sets the lock of a transaction on the table back to what it was before.
    pub(super) fn restore_table(&mut self, trx: TrxId, before: Modes, owners: &mut LockOwners) {
        self.table.restore(trx, before);
        self.serve_table(owners);
    }

    /// Releases the locks of a transaction here, at most `rows` row locks: the table lock last, because it covers the
    /// rows. Returns whether all are released.
    pub(super) fn release(&mut self, trx: TrxId, rows: &mut usize, owners: &mut LockOwners) -> bool {
        debug_assert!(
            !self.inserters.contains(&trx),
            "transaction {trx} releases its locks and waits to insert"
        );
        if self.ranges.remove(&trx).is_some() {
            self.serve_inserters(owners);
        }
        while let Some(key) = self.held.get_mut(&trx).and_then(BTreeSet::pop_first) {
            let was_held = self.rows.get_mut(&key).is_some_and(|queue| queue.release(trx));
            debug_assert!(was_held, "a transaction holds the rows in its list");
            self.serve_row(&key, owners);
            *rows = rows.saturating_sub(1);
            if *rows == 0 {
                return false;
            }
        }
        self.held.remove(&trx);
        if self.table.release(trx) {
            self.serve_table(owners);
        }
        true
    }

    /// Returns the queue for a request and its mode; `None` for a request to insert.
    pub(super) fn queue(&self, wanted: &LockRequest) -> Option<(&LockQueue, TableMode)> {
        match wanted {
            LockRequest::Table(_, mode) => Some((&self.table, *mode)),
            LockRequest::Row(row, mode) => Some((self.rows.get(&*row.key)?, (*mode).into())),
            LockRequest::Insert(_) => None,
        }
    }

    /// Returns the range locks that block inserts of a transaction, and their holders.
    pub(super) fn ranges_against(&self, me: Inserter) -> impl Iterator<Item = (TrxId, &Ranges)> {
        let rivals =
            self.ranges.iter().filter(move |(trx, held)| me.is_blocked_by(**trx, held.ordering_group));
        rivals.map(|(trx, held)| (*trx, &held.ranges))
    }

    /// Returns the transactions that block a request at this place, or at the end of the queue if it does not wait.
    pub(super) fn blockers(
        &self,
        me: Inserter,
        wanted: &LockRequest,
        place: Option<Place>,
        owners: &LockOwners,
    ) -> Blockers {
        Blockers::new(self.all_blockers(me, wanted, place).map(|trx| (trx, owners.tag(trx))))
    }

    /// As [`SpaceLocks::blockers`], without a limit: holders, then earlier waiters. An upgrade that waits is in both.
    pub(super) fn all_blockers(
        &self,
        me: Inserter,
        wanted: &LockRequest,
        place: Option<Place>,
    ) -> impl Iterator<Item = TrxId> {
        let trx = me.trx.unwrap_or_default();
        let queued = self.queue(wanted).map(|(queue, mode)| {
            let place = place.unwrap_or_else(|| queue.place(trx, u64::MAX));
            queue.holders_against(trx, mode).chain(queue.waiters_against(place, mode, 0))
        });
        queued.into_iter().flatten().chain(self.range_holders_against(me, wanted))
    }

    /// Returns a transaction with a lock that blocks a request, and that satisfies `is_sought`.
    pub(super) fn find_holder(
        &self,
        me: &LockOwner,
        wanted: &LockRequest,
        is_sought: impl Fn(TrxId) -> bool,
    ) -> Option<TrxId> {
        match self.queue(wanted) {
            Some((queue, mode)) => queue.holders_against(me.id(), mode).find(|holder| is_sought(*holder)),
            None => self.range_holders_against(me.inserter(), wanted).find(|holder| is_sought(*holder)),
        }
    }

    /// Returns the transactions with range locks that block a request, if that is for an insert.
    fn range_holders_against(&self, me: Inserter, wanted: &LockRequest) -> impl Iterator<Item = TrxId> {
        let key = if let LockRequest::Insert(row) = wanted { Some(&*row.key) } else { None };
        key.into_iter().flat_map(move |key| {
            self.ranges_against(me).filter(move |(_, ranges)| ranges.cover(key)).map(|(trx, _)| trx)
        })
    }

    /// Returns the lock of a holder that conflicts with a request; `None` if it is only an earlier waiter.
    pub(super) fn held_against(&self, holder: TrxId, wanted: &LockRequest) -> Option<Lock> {
        if let Some((queue, mode)) = self.queue(wanted) {
            let rival = queue.held_by(holder).iter().filter(|held| held.conflicts(mode)).last()?;
            return Some(match wanted.key() {
                None => Lock::Table(self.id, rival),
                Some(key) => Lock::Row(self.name(key), row_mode(rival)),
            });
        }
        let range = self.ranges.get(&holder)?.ranges.around(wanted.key()?)?;
        Some(Lock::Range(self.id, range))
    }

    fn name(&self, key: &[u8]) -> RowName {
        RowName { space: self.id, key: key.into() }
    }

    /// Returns the number of locks that a transaction holds here.
    pub(super) fn held_by(&self, trx: TrxId) -> u64 {
        let rows = self.held.get(&trx).map_or(0, BTreeSet::len);
        let ranges = self.ranges.get(&trx).map_or(0, |held| held.ranges.len());
        (self.table.held_by(trx).iter().count() + rows + ranges) as u64
    }

    /// Returns the number of locks held here.
    pub(super) fn held(&self) -> u64 {
        let table: usize = self.table.holders().map(|(_, modes)| modes.iter().count()).sum();
        let rows: usize = self.held.values().map(BTreeSet::len).sum();
        let ranges: usize = self.ranges.values().map(|held| held.ranges.len()).sum();
        (table + rows + ranges) as u64
    }

    /// Returns all locks held here, each with its holder.
    pub(super) fn listing(&self) -> impl Iterator<Item = (TrxId, Lock)> {
        let table = self
            .table
            .holders()
            .flat_map(move |(trx, modes)| modes.iter().map(move |mode| (trx, Lock::Table(self.id, mode))));
        let rows = self.rows.iter().flat_map(move |(key, queue)| {
            queue.holders().flat_map(move |(trx, modes)| {
                let lock = move |mode| Lock::Row(self.name(key), row_mode(mode));
                modes.iter().map(move |mode| (trx, lock(mode)))
            })
        });
        let ranges = self.ranges.iter().flat_map(move |(trx, held)| {
            held.ranges.iter().map(move |range| (*trx, Lock::Range(self.id, range)))
        });
        table.chain(rows).chain(ranges)
    }

    /// Returns the published counts, for readers that only check whether there are any locks.
    pub(super) fn counts(&self) -> LockCounts {
        LockCounts {
            rows: self.rows.len() as u64,
            ranges: self.ranges.len() as u64,
            tables: u64::from(!self.table.is_empty()),
        }
    }

    /// Checks that rows and their holders agree, and that each holder has this tablespace in its list.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check_invariants(&self, owners: &LockOwners) {
        for (key, queue) in &self.rows {
            assert!(queue.holders().next().is_some(), "a row without a holder has a queue: {key:?}");
            for (trx, _) in queue.holders() {
                let is_listed = self.held.get(&trx).is_some_and(|rows| rows.contains(key));
                assert!(is_listed, "transaction {trx} holds row {key:?}, which is not in its list");
            }
        }
        for (trx, rows) in &self.held {
            let is_held = |key| self.rows.get(key).is_some_and(|queue| !queue.held_by(*trx).is_empty());
            assert!(rows.iter().all(is_held), "a row in the list of transaction {trx} is not held by it");
        }
        let holders = self.table.holders().map(|(trx, _)| trx);
        for trx in holders.chain(self.held.keys().copied()).chain(self.ranges.keys().copied()) {
            let knows = owners.get(trx).is_some_and(|owner| owner.spaces.contains(&self.id));
            assert!(knows, "transaction {trx} has locks in tablespace {}, not in its list", self.id);
        }
    }

    /// Returns whether nothing is locked or waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.rows.is_empty() && self.ranges.is_empty() && self.inserters.is_empty()
    }
}

/// Converts a mode to that of a row, which has no intention locks.
fn row_mode(mode: TableMode) -> RowMode {
    if mode == TableMode::Exclusive { RowMode::Exclusive } else { RowMode::Shared }
}
