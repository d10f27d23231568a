//! The shards of the lock table.
//!
//! **Purpose.** Locks are spread over shards, each with its own mutex, so that threads that lock different things do
//! not meet. A row is in one of the [`STRIPES`] shards of its tablespace, as the hash of its key says. The lock of a
//! table and the ranges of its tree, which no single key names, are in the first of these: a transaction locks a table
//! once, and an insert looks for ranges only while the shard has any. Tablespaces are spread over groups of shards in
//! the same way, so that two of them share shards rarely.
//!
//! **Invariants.**
//! - A lock, its holders and its waiters are in one shard, which is a function of its name (test:
//!   `the_shard_of_a_row_depends_on_its_name_alone`). So one mutex decides whether a request is granted, and a request
//!   that is granted at once takes no other one (test: `different_tables_and_rows_take_different_mutexes`).
//! - No thread takes the mutex of a shard while it holds that of another (checked by `sync/lock.rs::take`).
//! - A shard publishes whether it has rows, ranges and tables before its mutex is released (test:
//!   `a_row_that_is_locked_is_not_written`).
//! - A tablespace without locks has no entry, and a row without locks neither (test: `a_storm_leaves_no_locks`).

use core::hash::{BuildHasher, Hasher};
use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::BuildHasherDefault,
};

use crossbeam_utils::CachePadded;
use rustc_hash::FxHasher;

use super::{
    mode::{Modes, TableMode},
    owner::{Inserter, LockOwner, Spot, Wakes},
    queue::{LockQueue, Place},
    request::{Lock, LockRequest, RowName},
    rows::{Rows, row_mode},
    space::SpaceLocks,
};
use crate::{
    error::Blockers,
    ids::{SpaceId, TrxId},
    sync::{
        Arc, Mutex, Rank,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, Release, SeqCst},
            fence,
        },
    },
};

/// The shards of the rows of one tablespace. A model has few, or it would spend its time creating them.
pub(super) const STRIPES: u32 = if cfg!(feature = "model") { 2 } else { 8 };
/// The groups of shards over which tablespaces are spread.
const GROUPS: u32 = if cfg!(feature = "model") { 2 } else { 16 };
/// All shards.
const SHARDS: u32 = STRIPES * GROUPS;

/// Whether a shard has locks of a kind, for readers without its mutex.
#[derive(Debug, Default)]
struct Published(AtomicBool);

impl Published {
    /// Publishes it. Must be called under the mutex of the shard.
    fn set(&self, has_any: bool) {
        if self.0.load(Relaxed) != has_any {
            self.0.store(has_any, Release);
        }
    }

    /// Returns whether there are none. Earlier operations of the caller are ordered before the check.
    fn is_none(&self) -> bool {
        fence(SeqCst);
        !self.0.load(Relaxed)
    }
}

/// A shard.
#[derive(Debug)]
struct Shard {
    locks: Mutex<ShardLocks>,
    rows: Published,
    ranges: Published,
    tables: Published,
}

/// The locks of a shard.
#[derive(Debug, Default)]
pub(super) struct ShardLocks {
    pub rows: Rows,
    spaces: BTreeMap<SpaceId, SpaceLocks>,
    /// The tablespaces with locks on ranges, and those with locks on the table.
    with_ranges: usize,
    with_tables: usize,
    pub wakes: Wakes,
    /// Steps so far.
    #[cfg(test)]
    steps: u64,
}

/// All shards.
#[derive(Debug)]
pub(super) struct Shards {
    all: Box<[CachePadded<Shard>]>,
    hasher: RandomState,
}

fn fx(write: impl FnOnce(&mut FxHasher)) -> u64 {
    let mut hasher = BuildHasherDefault::<FxHasher>::default().build_hasher();
    write(&mut hasher);
    hasher.finish()
}

/// Returns the first shard of a tablespace.
fn first_of(space: SpaceId) -> u32 {
    (fx(|hasher| hasher.write_u64(space.0)) as u32 % GROUPS) * STRIPES
}

/// Returns the shard of a row.
fn shard_of(space: SpaceId, key: &[u8]) -> u32 {
    first_of(space) + fx(|hasher| hasher.write(key)) as u32 % STRIPES
}

impl Shards {
    /// Returns shards without locks.
    pub(super) fn new() -> Self {
        let shard = |_| {
            let (rows, ranges, tables) = Default::default();
            let locks = Mutex::new(Rank::LockShard, ShardLocks::default());
            CachePadded::new(Shard { locks, rows, ranges, tables })
        };
        Self { all: (0..SHARDS).map(shard).collect(), hasher: RandomState::new() }
    }

    /// Marks waits from now on as outdated.
    pub(super) fn observe(&mut self) {
        for shard in &mut self.all {
            shard.locks.get_mut().wakes.observe();
        }
    }

    /// Returns the place of a lock on a row. Its hash is random, so that no application can choose keys of one hash.
    pub(super) fn spot(&self, space: SpaceId, key: &[u8]) -> Spot {
        self.in_shard(shard_of(space, key), space, key)
    }

    fn in_shard(&self, shard: u32, space: SpaceId, key: &[u8]) -> Spot {
        Spot { shard, hash: self.hasher.hash_one(key) ^ space.0 }
    }

    /// Returns the place of the locks on a table, or on ranges of its tree.
    pub(super) fn spot_of_space(space: SpaceId) -> Spot {
        Spot { shard: first_of(space), hash: 0 }
    }

    /// Returns the place of a request.
    pub(super) fn spot_of(&self, wanted: &LockRequest) -> Spot {
        match wanted {
            LockRequest::Row(row, _) => self.spot(row.space, &row.key),
            LockRequest::Table(space, _) => Self::spot_of_space(*space),
            LockRequest::Insert(row) => Self::spot_of_space(row.space),
        }
    }

    fn shard(&self, spot: Spot) -> &Shard {
        &self.all[spot.shard as usize]
    }

    /// Runs a step under the mutex of a shard, and publishes what it has then. Adds the lock owners that must be woken
    /// to `woken`.
    pub(super) fn step<T>(
        &self,
        spot: Spot,
        woken: &mut Vec<Arc<LockOwner>>,
        step: impl FnOnce(&mut ShardLocks) -> T,
    ) -> T {
        let shard = self.shard(spot);
        let mut locks = shard.locks.lock();
        let result = step(&mut locks);
        #[cfg(test)]
        {
            locks.steps += 1;
        }
        shard.rows.set(!locks.rows.is_empty());
        shard.ranges.set(locks.with_ranges > 0);
        shard.tables.set(locks.with_tables > 0);
        let mine = locks.wakes.take_woken();
        drop(locks);
        if !mine.is_empty() {
            woken.extend(mine);
        }
        result
    }

    /// Reads a shard under its mutex.
    pub(super) fn read<T>(&self, spot: Spot, read: impl FnOnce(&ShardLocks) -> T) -> T {
        read(&self.shard(spot).locks.lock())
    }

    /// Reads the rows of the shard of a row, if that has any.
    pub(super) fn read_row<T>(
        &self,
        space: SpaceId,
        key: &[u8],
        read: impl FnOnce(&Rows, Spot) -> T,
    ) -> Option<T> {
        let n = shard_of(space, key);
        let shard = &self.all[n as usize];
        (!shard.rows.is_none()).then(|| read(&shard.locks.lock().rows, self.in_shard(n, space, key)))
    }

    /// Returns whether a range lock blocks an insert.
    pub(super) fn is_range_locked(&self, me: Inserter, space: SpaceId, key: &[u8]) -> bool {
        let shard = self.shard(Self::spot_of_space(space));
        !shard.ranges.is_none()
            && shard.locks.lock().spaces.get(&space).is_some_and(|space| space.is_range_locked(me, key))
    }

    /// Returns whether any transaction has a lock on a table, or waits for one.
    pub(super) fn is_table_locked(&self, space: SpaceId) -> bool {
        let shard = self.shard(Self::spot_of_space(space));
        !shard.tables.is_none()
            && shard.locks.lock().spaces.get(&space).is_some_and(SpaceLocks::is_table_locked)
    }

    /// Returns what has been published of the shard of a lock: whether it has rows, and ranges.
    pub(super) fn published(&self, spot: Spot) -> (bool, bool) {
        let shard = self.shard(spot);
        (shard.rows.0.load(Relaxed), shard.ranges.0.load(Relaxed))
    }

    /// Returns all locks: of each tablespace the table, the rows by key, and the ranges by transaction.
    pub(super) fn listing(&self) -> Vec<(Arc<LockOwner>, Lock)> {
        let mut all = Vec::new();
        for shard in &self.all {
            let locks = shard.locks.lock();
            let spaces =
                locks.spaces.values().flat_map(|space| space.table_locks().chain(space.range_locks()));
            all.extend(spaces.chain(locks.rows.listing()).map(|(owner, lock)| (owner.clone(), lock)));
        }
        all.sort_by(|(_, one), (_, other)| order(one).cmp(&order(other)));
        all
    }

    /// Returns the number of locks that are held.
    pub(super) fn held(&self) -> u64 {
        let held = |shard: &CachePadded<Shard>| {
            let locks = shard.locks.lock();
            locks.rows.held() + locks.spaces.values().map(SpaceLocks::held).sum::<u64>()
        };
        self.all.iter().map(held).sum()
    }

    /// Checks the shards in which no step is in progress.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check_invariants(&self) {
        for locks in self.all.iter().filter_map(|shard| shard.locks.try_lock()) {
            locks.rows.check_invariants();
            locks.spaces.values().for_each(SpaceLocks::check_invariants);
            let count =
                |has: fn(&SpaceLocks) -> bool| locks.spaces.values().filter(|space| has(space)).count();
            let counted = [count(SpaceLocks::has_ranges), count(SpaceLocks::is_table_locked)];
            assert!(counted == [locks.with_ranges, locks.with_tables], "{counted:?} tablespaces: {locks:?}");
        }
    }

    /// Returns whether there are no locks.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = |shard: &CachePadded<Shard>| {
            let locks = shard.locks.lock();
            let is_empty = locks.rows.is_empty() && locks.rows.held() == 0 && locks.spaces.is_empty();
            let is_published = [&shard.rows, &shard.ranges, &shard.tables].iter().any(|kind| !kind.is_none());
            assert!(!is_empty || !is_published, "a shard without locks publishes some");
            is_empty
        };
        self.all.iter().all(is_empty)
    }

    /// Returns the number of steps in each shard.
    #[cfg(test)]
    pub(super) fn steps(&self) -> Vec<u64> {
        self.all.iter().map(|shard| shard.locks.lock().steps).collect()
    }
}

/// Returns the place of a lock in a listing. Locks at one place stay in order of transaction.
fn order(lock: &Lock) -> (SpaceId, u8, &[u8]) {
    match lock {
        Lock::Table(space, _) => (*space, 0, &[]),
        Lock::Row(row, _) => (row.space, 1, &row.key),
        Lock::Range(space, _) => (*space, 2, &[]),
        Lock::Insert(row) => (row.space, 3, &row.key),
    }
}

impl ShardLocks {
    /// Runs a step on the locks of a tablespace, and removes them if there are none left.
    pub(super) fn in_space<T>(
        &mut self,
        id: SpaceId,
        step: impl FnOnce(&mut SpaceLocks, &mut Wakes) -> T,
    ) -> T {
        let space = self.spaces.entry(id).or_insert_with(|| SpaceLocks::new(id));
        let before = [space.has_ranges(), space.is_table_locked()].map(usize::from);
        let result = step(space, &mut self.wakes);
        let after = [space.has_ranges(), space.is_table_locked()].map(usize::from);
        self.with_ranges = self.with_ranges + after[0] - before[0];
        self.with_tables = self.with_tables + after[1] - before[1];
        if space.is_empty() {
            self.spaces.remove(&id);
        }
        result
    }

    /// Returns the locks of a tablespace, if there are any.
    pub(super) fn space(&self, id: SpaceId) -> Option<&SpaceLocks> {
        self.spaces.get(&id)
    }

    /// Grants a request, if nothing blocks it.
    pub(super) fn try_grant(&mut self, me: &Arc<LockOwner>, spot: Spot, wanted: &LockRequest) -> bool {
        debug_assert!(!me.has_ended(), "{:?} has ended and locks nothing", me.id());
        match wanted {
            LockRequest::Row(row, mode) => self.rows.try_lock(me, spot, row, *mode, &mut self.wakes),
            LockRequest::Table(space, mode) => {
                self.in_space(*space, |space, wakes| space.try_lock_table(me, *mode, wakes))
            }
            LockRequest::Insert(row) => {
                let space = self.spaces.get(&row.space);
                space.is_none_or(|space| !space.is_range_locked(me.inserter(), &row.key))
            }
        }
    }

    /// Adds a request that was not granted to its queue.
    pub(super) fn enqueue(
        &mut self,
        me: &Arc<LockOwner>,
        spot: Spot,
        wanted: &LockRequest,
        ticket: u64,
    ) -> Place {
        let Self { rows, spaces, wakes, .. } = self;
        let mut enqueue = |queue: Option<&mut LockQueue>, mode| {
            let queue = queue.expect("a request waits for a lock that others have");
            let place = queue.enqueue(me, mode, ticket);
            // A new request is the last one. An upgrade is placed before others.
            if wakes.is_observed() && !place.is_new() {
                wakes.outdate(queue.waiters_behind(me.id()));
            }
            place
        };
        match wanted {
            LockRequest::Table(space, mode) => {
                enqueue(spaces.get_mut(space).map(|space| &mut space.table), *mode)
            }
            LockRequest::Row(row, mode) => enqueue(rows.queue_mut(spot, row), (*mode).into()),
            LockRequest::Insert(row) => {
                self.in_space(row.space, |space, _| space.add_inserter(me, &row.key));
                Place::NONE
            }
        }
    }

    /// Removes a request from its queue, the wait for which ends without the lock. Later waiters may be granted
    /// theirs.
    pub(super) fn dequeue(&mut self, me: &Arc<LockOwner>, spot: Spot, wanted: &LockRequest, place: Place) {
        match wanted {
            LockRequest::Table(space, _) => self.in_space(*space, |space, wakes| {
                space.table.dequeue(place);
                space.serve_table(wakes);
            }),
            LockRequest::Row(row, _) => self.rows.dequeue(spot, row, place, &mut self.wakes),
            LockRequest::Insert(row) => {
                self.in_space(row.space, |space, _| space.remove_inserter(me.id()));
            }
        }
        self.wakes.resolve(me.clone());
    }

    /// Sets whether later requests overtake the waiter for a table.
    pub(super) fn set_yielding(&mut self, me: TrxId, space: SpaceId, place: Place, yields: bool) {
        self.in_space(space, |space, wakes| {
            space.table.set_yielding(place, yields);
            if yields {
                space.serve_table(wakes);
            } else if wakes.is_observed() {
                wakes.outdate(space.table.waiters_behind(me));
            }
        });
    }

    /// Returns the queue for a request and its mode; `None` for a request to insert, and if there is none.
    pub(super) fn queue(&self, spot: Spot, wanted: &LockRequest) -> Option<(&LockQueue, TableMode)> {
        match wanted {
            LockRequest::Table(space, mode) => Some((&self.spaces.get(space)?.table, *mode)),
            LockRequest::Row(row, mode) => Some((self.rows.queue(spot, row)?, (*mode).into())),
            LockRequest::Insert(_) => None,
        }
    }

    /// Returns the transactions that block a request at this place, or at the end of the queue if it does not wait:
    /// holders, then earlier waiters. An upgrade that waits is in both.
    pub(super) fn blockers(
        &self,
        me: Inserter,
        spot: Spot,
        wanted: &LockRequest,
        place: Option<Place>,
    ) -> impl Iterator<Item = &Arc<LockOwner>> {
        let trx = me.trx.unwrap_or_default();
        let queued = self.queue(spot, wanted).map(|(queue, mode)| {
            let place = place.unwrap_or_else(|| queue.place(trx, u64::MAX));
            queue.holders_against(trx, mode).chain(queue.waiters_against(place, mode, Place::FIRST))
        });
        queued.into_iter().flatten().chain(self.range_holders(me, wanted))
    }

    /// As [`ShardLocks::blockers`], for reports.
    pub(super) fn reported_blockers(
        &self,
        me: Inserter,
        spot: Spot,
        wanted: &LockRequest,
        place: Option<Place>,
    ) -> Blockers {
        Blockers::new(self.blockers(me, spot, wanted, place).map(|owner| (owner.id(), owner.tag())))
    }

    /// Returns the holders of range locks that block a request to insert.
    fn range_holders(&self, me: Inserter, wanted: &LockRequest) -> impl Iterator<Item = &Arc<LockOwner>> {
        let row = if let LockRequest::Insert(row) = wanted { Some(row) } else { None };
        row.into_iter().flat_map(move |row| {
            let space = self.spaces.get(&row.space);
            space.into_iter().flat_map(move |space| space.range_holders_against(me, &row.key))
        })
    }

    /// Returns a transaction with a lock that blocks a request, and whose last call was made by this thread.
    pub(super) fn holder_of_thread(
        &self,
        me: &LockOwner,
        spot: Spot,
        wanted: &LockRequest,
        thread: usize,
    ) -> Option<TrxId> {
        let queued = self.queue(spot, wanted).map(|(queue, mode)| queue.holders_against(me.id(), mode));
        let holders = queued.into_iter().flatten().chain(self.range_holders(me.inserter(), wanted));
        holders.filter(|owner| owner.thread() == Some(thread)).map(|owner| owner.id()).next()
    }

    /// Returns the lock of a holder that conflicts with a request; `None` if it is only an earlier waiter.
    pub(super) fn held_against(&self, holder: TrxId, spot: Spot, wanted: &LockRequest) -> Option<Lock> {
        if let LockRequest::Insert(RowName { space, key }) = wanted {
            return self.spaces.get(space)?.range_around(holder, key);
        }
        let (queue, mode) = self.queue(spot, wanted)?;
        let rival = queue.held_by(holder).iter().filter(|held| held.conflicts(mode)).last()?;
        Some(match wanted {
            LockRequest::Row(row, _) => Lock::Row(row.clone(), row_mode(rival)),
            _ => Lock::Table(wanted.space(), rival),
        })
    }

    /// Returns the modes in which a transaction holds a table.
    pub(super) fn table_modes(&self, trx: TrxId, space: SpaceId) -> Modes {
        self.spaces.get(&space).map_or_else(Modes::default, |space| space.table.held_by(trx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_of_a_row_depends_on_its_name_alone() {
        let shards = Shards::new();
        for space in (20..200).map(SpaceId) {
            let first = Shards::spot_of_space(space).shard;
            for key in 0..100u32 {
                let spot = shards.spot(space, &key.to_be_bytes());
                assert_eq!(spot, shards.spot(space, &key.to_be_bytes()));
                assert!((first..first + STRIPES).contains(&spot.shard) && spot.shard < SHARDS);
            }
        }
    }

    #[test]
    fn rows_and_tables_are_spread_evenly() {
        let mut rows = [0; SHARDS as usize];
        (0..8000u32).for_each(|key| rows[shard_of(SpaceId(20), &key.to_be_bytes()) as usize] += 1);
        assert!(rows.iter().all(|n| *n == 0 || (700..1300).contains(n)), "{rows:?}");
        // Tables with any number of indexes: their ids are at equal distances.
        for step in 1..9 {
            let mut groups = [0; SHARDS as usize];
            (0..1600).for_each(|n| groups[first_of(SpaceId(20 + n * step)) as usize] += 1);
            assert!(groups.iter().all(|n| *n == 0 || (50..200).contains(n)), "step {step}: {groups:?}");
        }
    }
}
