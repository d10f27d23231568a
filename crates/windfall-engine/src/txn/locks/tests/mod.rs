//! Tests of the lock table: each rule by itself, all of them against a model, and many threads at once.

mod model;
mod observer;
mod rules;
mod sharding;
mod storm;
mod turns;
mod waits;

use core::time::Duration;

use windfall_sim::SimulatedEnv;

use super::*;
use crate::env::RealEnv;

const SPACE: SpaceId = SpaceId(20);
const OTHER: SpaceId = SpaceId(21);

/// A lock table without threads: the outcome of a wait is queried later.
struct TestLocks {
    locks: Arc<LockManager>,
    env: SimulatedEnv,
}

impl TestLocks {
    fn new() -> Self {
        Self::with(None)
    }

    /// Returns one with an observer of waits.
    fn observed(observer: Arc<dyn LockWaitObserver>) -> Self {
        Self::with(Some(observer))
    }

    fn with(observer: Option<Arc<dyn LockWaitObserver>>) -> Self {
        let env = SimulatedEnv::new(1);
        let mut locks = LockManager::new(Arc::new(env.clone()));
        if let Some(observer) = observer {
            locks.set_observer(observer.into());
        }
        Self { locks: Arc::new(locks), env }
    }

    fn lock_owners<const N: usize>(&self) -> [Arc<LockOwner>; N] {
        core::array::from_fn(|n| self.locks.lock_owner(TrxId(n as u64 + 1)))
    }

    /// As [`TestLocks::lock_owners`], with these priorities among the members of a deadlock.
    fn lock_owners_with<const N: usize>(&self, priorities: [i64; N]) -> [Arc<LockOwner>; N] {
        core::array::from_fn(|n| {
            let options = OwnerOptions { deadlock_priority: priorities[n], ..OwnerOptions::default() };
            self.locks.lock_owner_with(TrxId(n as u64 + 1), options)
        })
    }

    /// Requests a lock, and begins to wait if necessary. Returns whether it was granted.
    fn ask(&self, me: &Arc<LockOwner>, wanted: LockRequest) -> bool {
        let now = self.env.now();
        self.locks.grant_or_enqueue(me, wanted, now).unwrap()
    }

    /// Returns the outcome of the wait, if it has ended.
    fn outcome(&self, me: &Arc<LockOwner>) -> Option<Result<(), LockError>> {
        let now = self.env.now();
        me.is_resolved().then(|| self.locks.end_wait(me, now, now, false))
    }

    /// Returns whether the wait has ended with the lock.
    fn was_served(&self, me: &Arc<LockOwner>) -> bool {
        self.outcome(me).is_some_and(|outcome| outcome.is_ok())
    }

    fn try_now(&self, me: &Arc<LockOwner>, wanted: LockRequest) -> Result<(), LockError> {
        self.locks.acquire(me, wanted, LockTimeout::NoWait)
    }

    /// Ends all lock owners, and checks that nothing is left.
    fn close(&self, lock_owners: &[Arc<LockOwner>]) {
        for lock_owner in lock_owners {
            self.locks.end(lock_owner);
        }
        assert!(self.locks.is_empty(), "{:?}", self.locks.listing());
    }
}

fn name(space: SpaceId, key: &str) -> RowName {
    RowName { space, key: key.as_bytes().into() }
}

fn shared(key: &str) -> LockRequest {
    LockRequest::Row(name(SPACE, key), RowMode::Shared)
}

fn exclusive(key: &str) -> LockRequest {
    LockRequest::Row(name(SPACE, key), RowMode::Exclusive)
}

fn insert(key: &str) -> LockRequest {
    LockRequest::Insert(name(SPACE, key))
}

fn ids(ids: &[u64]) -> Vec<TrxId> {
    ids.iter().map(|id| TrxId(*id)).collect()
}

const MILLISECOND: Duration = Duration::from_millis(1);

fn real() -> Arc<LockManager> {
    Arc::new(LockManager::new(Arc::new(RealEnv::default())))
}
