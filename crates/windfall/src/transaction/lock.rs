//! Row locks.
//!
//! **Purpose.** Two calls that change one row, or compete for one key of a unique index, take turns. A lock is held from
//! before the first look at the row until the call has ended.
//!
//! **Invariants.** A lock is named by tablespace and hash of the key, so two keys may share one, which costs time and nothing
//! else. Whoever waits is served in the order of coming. A call locks its row first, then, in one sorted
//! acquisition, the keys of unique indexes; rows and index keys are of different tablespaces, so there is no circle.
//! Nobody waits for a row while holding a lock or latch of another kind; the rank is asserted. A call that is made from
//! within another one, by the source of a value, does not wait at all: the other one holds locks that belong before.
//!
//! **May touch.** `ids`, `env`, `sync`.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, RandomState},
};

use crate::{
    env::Env,
    error::{Error, Result, UsageError},
    ids::SpaceId,
    sync::{Arc, Event, Held, Mutex, Rank, is_nested},
};

const SHARDS: usize = 64;

/// The name of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName {
    space: SpaceId,
    hash: u64,
}

/// Who holds a lock, and who comes next.
#[derive(Debug)]
struct Queue {
    serving: u64,
    next: u64,
}

#[derive(Debug)]
struct Shard {
    queues: Mutex<HashMap<LockName, Queue>>,
    moved: Event,
}

/// The locks that are held or waited for.
#[derive(Debug)]
pub struct RowLocks {
    shards: Box<[Shard]>,
    hasher: RandomState,
    env: Arc<dyn Env>,
}

/// Locks that are held; dropping it gives them back.
#[derive(Debug)]
pub struct RowGuard<'a> {
    locks: &'a RowLocks,
    held: Vec<LockName>,
}

fn busy() -> Error {
    let what =
        "another call changes this row, and a call from within the source of a value does not wait for it";
    UsageError::Other(what.into()).into()
}

impl RowLocks {
    /// A table without locks.
    pub fn new(env: Arc<dyn Env>) -> Self {
        let shard = |_| Shard { queues: Mutex::new(Rank::Leaf, HashMap::new()), moved: Event::new() };
        Self { shards: (0..SHARDS).map(shard).collect(), hasher: RandomState::new(), env }
    }

    /// The lock of a key.
    pub fn name(&self, space: SpaceId, key: &[u8]) -> LockName {
        LockName { space, hash: self.hasher.hash_one(key) }
    }

    fn shard(&self, name: LockName) -> &Shard {
        &self.shards[(name.hash ^ name.space.0) as usize % SHARDS]
    }

    /// Takes a lock, waiting for those who came before.
    pub fn lock(&self, name: LockName) -> RowGuard<'_> {
        let mut guard = RowGuard { locks: self, held: Vec::with_capacity(1) };
        self.take(&mut guard, name);
        guard
    }

    /// Takes the lock of the row of a call, which waits unless it was made from within another one.
    ///
    /// # Errors
    /// [`UsageError::Other`] when it would have to wait and must not.
    pub fn lock_in_call(&self, name: LockName) -> Result<RowGuard<'_>> {
        if is_nested() { self.try_lock(name).ok_or_else(busy) } else { Ok(self.lock(name)) }
    }

    /// Takes the locks of several rows of one tablespace. Only whoever fills a new secondary tree does so, one at a time for a
    /// tablespace: who holds one of these locks meanwhile asks for none of the others.
    pub fn lock_all(&self, names: Vec<LockName>) -> RowGuard<'_> {
        let mut guard = RowGuard { locks: self, held: Vec::with_capacity(names.len()) };
        self.take_all(&mut guard, names);
        guard
    }

    /// Takes a lock if nobody holds it.
    pub fn try_lock(&self, name: LockName) -> Option<RowGuard<'_>> {
        match self.shard(name).queues.lock().entry(name) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                vacant.insert(Queue { serving: 0, next: 1 });
                Some(RowGuard { locks: self, held: vec![name] })
            }
        }
    }

    /// Takes more locks, of other tablespaces than those that are held.
    ///
    /// # Errors
    /// As [`RowLocks::lock_in_call`].
    pub fn lock_more(&self, guard: &mut RowGuard<'_>, mut names: Vec<LockName>) -> Result<()> {
        if is_nested() {
            names.sort_unstable();
            names.dedup();
            for name in names {
                guard.held.append(&mut self.try_lock(name).ok_or_else(busy)?.held);
            }
        } else {
            self.take_all(guard, names);
        }
        Ok(())
    }

    fn take_all(&self, guard: &mut RowGuard<'_>, mut names: Vec<LockName>) {
        names.sort_unstable();
        names.dedup();
        for name in names {
            self.take(guard, name);
        }
    }

    fn take(&self, guard: &mut RowGuard<'_>, name: LockName) {
        drop(Held::take(Rank::Row));
        let shard = self.shard(name);
        let ticket = {
            let mut queues = shard.queues.lock();
            let queue = queues.entry(name).or_insert(Queue { serving: 0, next: 0 });
            queue.next += 1;
            queue.next - 1
        };
        let served = || shard.queues.lock().get(&name).is_some_and(|queue| queue.serving == ticket);
        if ticket > 0 && !served() {
            self.env.wait(&shard.moved, &mut || served());
        }
        guard.held.push(name);
    }
}

impl Drop for RowGuard<'_> {
    fn drop(&mut self) {
        for name in self.held.drain(..).rev() {
            let shard = self.locks.shard(name);
            let mut queues = shard.queues.lock();
            if let Entry::Occupied(mut queue) = queues.entry(name) {
                queue.get_mut().serving += 1;
                if queue.get().serving == queue.get().next {
                    queue.remove();
                }
            }
            drop(queues);
            shard.moved.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{
        env::RealEnv,
        sync::atomic::{AtomicU64, Ordering::Relaxed},
    };

    #[test]
    fn those_who_change_one_row_take_turns() {
        let locks = Arc::new(RowLocks::new(Arc::new(RealEnv::default())));
        let sum = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4u64)
            .map(|n| {
                let (locks, sum) = (locks.clone(), sum.clone());
                thread::spawn(move || {
                    for round in 0..2000u64 {
                        let key = [(round + n) as u8 % 3];
                        let mut guard = locks.lock(locks.name(SpaceId(20), &key));
                        let more = [1u8, 2, 3].map(|k| locks.name(SpaceId(21), &[k]));
                        locks.lock_more(&mut guard, more.to_vec()).unwrap();
                        let before = sum.load(Relaxed);
                        sum.store(before + 1, Relaxed);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(sum.load(Relaxed), 8000);
        assert!(locks.shards.iter().all(|shard| shard.queues.lock().is_empty()));
    }

    #[test]
    fn a_held_lock_is_not_taken_again() {
        let locks = RowLocks::new(Arc::new(RealEnv::default()));
        let name = locks.name(SpaceId(20), b"key");
        let first = locks.lock(name);
        assert!(locks.try_lock(name).is_none());
        drop(first);
        assert!(locks.try_lock(name).is_some());
    }
}
