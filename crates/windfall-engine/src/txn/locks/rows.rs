//! The row locks of one shard.
//!
//! **Purpose.** Finds the queue of a row by the hash of its name, and keeps the lists of the holders in step with it.
//!
//! **Invariants.** A lock owner that holds a row has it in its list, once, and no other rows (checked by
//! `locks/rows.rs::check_invariants`). A row's queue exists as long as the row has a holder (checked by
//! `locks/rows.rs::try_lock`). A waiter is granted its request in the step that removes the last conflict (test:
//! `behaves_as_its_rules`). Rows with the same hash have entries of their own, so they never conflict (test:
//! `rows_of_one_hash_are_different_rows`).

use std::collections::{HashMap, hash_map::Entry};

use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use super::{
    mode::{RowMode, TableMode},
    owner::{HeldRow, LockOwner, Spot, Wakes},
    queue::{LockQueue, Place},
    request::{Lock, RowName},
    space::{grant_waiters, try_grant},
};
use crate::{
    ids::{SpaceId, TrxId},
    sync::Arc,
};

/// The rows for which an empty shard keeps memory.
const KEPT_ROWS: usize = 7;

/// A row that is locked.
#[derive(Debug)]
struct RowLock {
    space: SpaceId,
    /// The key of the row, which its holders share.
    key: Arc<[u8]>,
    queue: LockQueue,
}

impl RowLock {
    fn is(&self, space: SpaceId, key: &[u8]) -> bool {
        self.space == space && *self.key == *key
    }

    /// Grants the row to the waiters that nothing blocks any more.
    fn serve(&mut self, spot: Spot, wakes: &mut Wakes, held: &mut u64) {
        let Self { space, key, queue } = self;
        grant_waiters(queue, wakes, |owner| {
            *held += 1;
            let was_noted = owner.note_row(|| HeldRow { spot, space: *space, key: key.clone() });
            debug_assert!(was_noted, "{} gets a row after its end", owner.id());
        });
    }
}

/// Rows with the same hash: nearly always one.
type Bucket = SmallVec<[RowLock; 1]>;

fn find(bucket: &Bucket, space: SpaceId, key: &[u8]) -> Option<usize> {
    bucket.iter().position(|row| row.is(space, key))
}

fn find_or_add<'a>(bucket: &'a mut Bucket, row: &RowName) -> &'a mut RowLock {
    let at = find(bucket, row.space, &row.key).unwrap_or_else(|| {
        bucket.push(RowLock { space: row.space, key: row.key.clone(), queue: LockQueue::default() });
        bucket.len() - 1
    });
    &mut bucket[at]
}

/// The outcome of an attempt to make the lock of a writer explicit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Explicit {
    /// It is.
    Done,
    /// The writer is ending.
    Ended,
    /// The writer waits: the caller has not taken the mutex of the waits.
    Waits,
}

/// The rows.
#[derive(Debug, Default)]
pub(super) struct Rows {
    buckets: HashMap<u64, Bucket, FxBuildHasher>,
    /// The number of locks: of each row, its holders.
    held: u64,
}

impl Rows {
    /// Locks a row, if nothing blocks that.
    pub(super) fn try_lock(
        &mut self,
        me: &Arc<LockOwner>,
        spot: Spot,
        row: &RowName,
        mode: RowMode,
        wakes: &mut Wakes,
    ) -> bool {
        let lock = find_or_add(self.buckets.entry(spot.hash).or_default(), row);
        let was_holder = !lock.queue.held_by(me.id()).is_empty();
        let is_taken = try_grant(&mut lock.queue, me, mode.into(), wakes);
        debug_assert!(lock.queue.holders().next().is_some(), "a row has a queue as long as it has a holder");
        if is_taken && !was_holder {
            self.held += 1;
            let was_noted = me.note_row(|| HeldRow { spot, space: row.space, key: lock.key.clone() });
            debug_assert!(was_noted, "{} has ended and locks nothing", me.id());
        }
        is_taken
    }

    /// Returns the queue of a row that is locked.
    pub(super) fn queue(&self, spot: Spot, row: &RowName) -> Option<&LockQueue> {
        self.queue_of(spot, row.space, &row.key)
    }

    pub(super) fn queue_of(&self, spot: Spot, space: SpaceId, key: &[u8]) -> Option<&LockQueue> {
        let bucket = self.buckets.get(&spot.hash)?;
        Some(&bucket[find(bucket, space, key)?].queue)
    }

    /// Returns the queue of a row that is locked, mutable.
    pub(super) fn queue_mut(&mut self, spot: Spot, row: &RowName) -> Option<&mut LockQueue> {
        let bucket = self.buckets.get_mut(&spot.hash)?;
        let at = find(bucket, row.space, &row.key)?;
        Some(&mut bucket[at].queue)
    }

    /// Changes the queue of a row, grants the row to the waiters that nothing blocks then, and removes a row that
    /// nothing locks any more. The change returns whether a holder has left.
    fn change(
        &mut self,
        spot: Spot,
        space: SpaceId,
        key: &[u8],
        wakes: &mut Wakes,
        change: impl FnOnce(&mut LockQueue) -> bool,
    ) {
        let Entry::Occupied(mut entry) = self.buckets.entry(spot.hash) else { return };
        let bucket = entry.get_mut();
        let Some(at) = find(bucket, space, key) else { return };
        let lock = &mut bucket[at];
        if change(&mut lock.queue) {
            self.held -= 1;
        }
        lock.serve(spot, wakes, &mut self.held);
        if !lock.queue.is_empty() {
            return;
        }
        bucket.swap_remove(at);
        if bucket.is_empty() {
            entry.remove();
            if self.buckets.is_empty() && self.buckets.capacity() > KEPT_ROWS {
                self.buckets = HashMap::default();
            }
        }
    }

    /// Removes a waiter from the queue of a row. Later ones may be granted the row.
    pub(super) fn dequeue(&mut self, spot: Spot, row: &RowName, place: Place, wakes: &mut Wakes) {
        debug_assert!(self.queue(spot, row).is_some(), "a row with a waiter has a queue");
        self.change(spot, row.space, &row.key, wakes, |queue| {
            queue.dequeue(place);
            false
        });
    }

    /// Releases a row that was in the list of its holder, and is not any more.
    pub(super) fn release(&mut self, trx: TrxId, row: &HeldRow, wakes: &mut Wakes) {
        self.change(row.spot, row.space, &row.key, wakes, |queue| {
            let was_held = queue.release(trx);
            debug_assert!(was_held, "a transaction holds the rows in its list");
            was_held
        });
    }

    /// Releases a row, or downgrades the lock on it to this mode, and grants the requests that waited for that.
    pub(super) fn downgrade(
        &mut self,
        me: &LockOwner,
        spot: Spot,
        row: &RowName,
        to: Option<RowMode>,
        wakes: &mut Wakes,
    ) {
        self.change(spot, row.space, &row.key, wakes, |queue| match to {
            Some(mode) => {
                queue.downgrade(me.id(), mode.into());
                false
            }
            None if queue.held_by(me.id()).is_empty() => false,
            None => {
                me.forget_row(row.space, &row.key);
                queue.release(me.id())
            }
        });
        debug_assert!(
            self.held_mode(me.id(), spot, row.space, &row.key) <= to,
            "transaction {} has downgraded {row}, and holds it in a stronger mode",
            me.id()
        );
    }

    /// Makes the lock of a writer of a row explicit. If the writer waits, the caller has the mutex of the waits, or
    /// gets
    /// [`Explicit::Waits`]. The place of a writer that waits for this very row is given: its request is now an
    /// upgrade, and moves before those that wait for it.
    pub(super) fn make_explicit(
        &mut self,
        holder: &Arc<LockOwner>,
        spot: Spot,
        row: &RowName,
        wait: Result<Option<(&mut Place, TableMode)>, ()>,
        wakes: &mut Wakes,
    ) -> Explicit {
        let trx = holder.id();
        if holder.has_ended() {
            return Explicit::Ended;
        }
        let known = self.queue(spot, row).map(|queue| queue.held_by(trx));
        if known.is_some_and(|held| held.cover(TableMode::Exclusive)) {
            return Explicit::Done;
        }
        let wait = match wait {
            Err(()) if holder.waits() => return Explicit::Waits,
            Err(()) => None,
            Ok(wait) => wait,
        };
        let lock = find_or_add(self.buckets.entry(spot.hash).or_default(), row);
        let is_new = lock.queue.held_by(trx).is_empty();
        if is_new && !holder.note_row(|| HeldRow { spot, space: row.space, key: lock.key.clone() }) {
            self.change(spot, row.space, &row.key, wakes, |_| false);
            return Explicit::Ended;
        }
        self.held += u64::from(is_new);
        lock.queue.grant(holder, TableMode::Exclusive);
        if let Some((place, mode)) = wait {
            lock.queue.dequeue(*place);
            *place = lock.queue.enqueue(holder, mode, place.ticket());
        }
        if wakes.is_observed() {
            wakes.outdate(lock.queue.waiters_behind(trx));
        }
        self.change(spot, row.space, &row.key, wakes, |_| false);
        Explicit::Done
    }

    /// Returns whether another transaction holds the row.
    pub(super) fn is_held(&self, me: Option<TrxId>, spot: Spot, space: SpaceId, key: &[u8]) -> bool {
        self.queue_of(spot, space, key)
            .is_some_and(|queue| queue.holders().any(|(owner, _)| Some(owner.id()) != me))
    }

    /// Returns whether no other transaction holds a lock that conflicts with a shared lock on the row.
    pub(super) fn may_share(&self, me: Option<TrxId>, spot: Spot, space: SpaceId, key: &[u8]) -> bool {
        self.queue_of(spot, space, key).is_none_or(|queue| {
            queue.holders().all(|(owner, modes)| Some(owner.id()) == me || !modes.conflict(TableMode::Shared))
        })
    }

    /// Returns the mode in which a transaction holds a row, if it does.
    pub(super) fn held_mode(&self, trx: TrxId, spot: Spot, space: SpaceId, key: &[u8]) -> Option<RowMode> {
        self.queue_of(spot, space, key)?.held_by(trx).iter().last().map(row_mode)
    }

    /// Returns the number of locks.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Returns whether no row is locked.
    pub(super) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Returns all locks, each with its holder.
    pub(super) fn listing(&self) -> impl Iterator<Item = (&Arc<LockOwner>, Lock)> {
        self.buckets.values().flatten().flat_map(|lock| {
            let name = |mode| Lock::Row(RowName { space: lock.space, key: lock.key.clone() }, row_mode(mode));
            lock.queue
                .holders()
                .flat_map(move |(owner, modes)| modes.iter().map(move |mode| (owner, name(mode))))
        })
    }

    /// Checks that rows and the lists of their holders agree.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check_invariants(&self) {
        let mut held = 0;
        for lock in self.buckets.values().flatten() {
            assert!(lock.queue.holders().next().is_some(), "{:?} has a queue, and no holder", lock.key);
            for (owner, _) in lock.queue.holders() {
                held += 1;
                let times = owner.times_listed(lock.space, &lock.key);
                let is_ending = owner.has_ended() && times == 0;
                assert!(
                    times == 1 || is_ending,
                    "{} has {:?} {times} times in its list",
                    owner.id(),
                    lock.key
                );
            }
        }
        assert!(held == self.held, "{held} row locks are held, and {} are counted", self.held);
    }
}

/// Converts a mode to that of a row, which has no intention locks.
pub(super) fn row_mode(mode: TableMode) -> RowMode {
    if mode == TableMode::Exclusive { RowMode::Exclusive } else { RowMode::Shared }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::locks::OwnerOptions;

    #[test]
    fn rows_of_one_hash_are_different_rows() {
        let (mut rows, mut wakes, spot) = (Rows::default(), Wakes::default(), Spot { shard: 0, hash: 7 });
        let [one, other] = [1, 2].map(|n| Arc::new(LockOwner::new(TrxId(n), OwnerOptions::default())));
        let names = [(20, b"a"), (20, b"b"), (21, b"a")]
            .map(|(space, key)| RowName { space: SpaceId(space), key: key[..].into() });
        let [a, b, elsewhere] = &names;
        let mut lock =
            |rows: &mut Rows, me, name| rows.try_lock(me, spot, name, RowMode::Exclusive, &mut wakes);
        assert!(lock(&mut rows, &one, a) && lock(&mut rows, &other, b) && lock(&mut rows, &other, elsewhere));
        assert!(!lock(&mut rows, &other, a) && !lock(&mut rows, &one, b));
        assert!(rows.is_held(Some(TrxId(1)), spot, b.space, &b.key));
        assert!(!rows.is_held(Some(TrxId(1)), spot, a.space, &a.key));
        rows.check_invariants();
        for row in one.end().rows {
            rows.release(one.id(), &row, &mut Wakes::default());
        }
        assert_eq!(
            (rows.queue(spot, a).is_some(), rows.queue(spot, b).is_some(), rows.held()),
            (false, true, 2)
        );
        rows.downgrade(&other, spot, b, None, &mut Wakes::default());
        rows.downgrade(&other, spot, elsewhere, None, &mut Wakes::default());
        assert!(rows.is_empty() && rows.held() == 0 && other.holds_nothing());
    }
}
