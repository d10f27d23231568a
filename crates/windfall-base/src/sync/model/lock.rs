//! The locks of a model, and its parking lot.
//!
//! **Purpose.** A thread that must wait is not scheduled until another thread wakes it.
//!
//! **Invariants.** The locks are those of the machine, taken by trying only; so within a scenario the machine never
//! waits (test: `a_thread_waits_for_a_lock_without_the_machine`). A waiter enters the parking lot in the same step in
//! which it saw that it must wait (test: `a_thread_waits_for_a_lock_without_the_machine`).

use core::{
    cell::RefCell,
    ops::{Deref, DerefMut},
    time::Duration,
};
use std::{collections::HashMap, rc::Rc};

use shuttle::{
    future::batch_semaphore::{BatchSemaphore, Fairness},
    rand::{Rng, thread_rng},
};

use super::{current, point, still};

/// A timed wait of at least this length does not end by itself. Half an hour, so that a wait of one hour still counts
/// when a part of it has passed.
const FOREVER: Duration = Duration::from_mins(30);
/// A shorter wait lasts for at most a random number of scheduler yields, which is below this.
const TURNS: usize = 4;

/// A waiter's place in the parking lot, where it waits for its one wakeup.
type Waiter = Rc<BatchSemaphore>;

std::thread_local! {
    static WAITERS: RefCell<HashMap<usize, Vec<Waiter>>> = RefCell::default();
}

fn enqueue(key: usize) -> Waiter {
    let waiter = Rc::new(BatchSemaphore::new(0, Fairness::Unfair));
    WAITERS.with_borrow_mut(|lot| lot.entry(key).or_default().push(waiter.clone()));
    waiter
}

fn wait(waiter: &BatchSemaphore) {
    waiter.acquire_blocking(1).expect("a seat is never closed");
}

/// Discards the waiters of a run that was cut off.
pub(super) fn forget_waiters() {
    // A waiter may be on a stack that no longer exists: its seat must not be touched any more.
    WAITERS.with_borrow_mut(|lot| lot.drain().for_each(|(_, waiters)| core::mem::forget(waiters)));
}

/// Waits for a wakeup, if `blocked` returns true.
pub(crate) fn park(key: usize, blocked: impl FnOnce() -> bool) {
    point();
    if current().is_none() {
        std::thread::yield_now();
    } else if still(blocked) {
        wait(&enqueue(key));
    }
}

/// Wakes every thread that is parked under this key.
pub(crate) fn unpark_all(key: usize) {
    let waiters = WAITERS.with_borrow_mut(|lot| lot.remove(&key));
    for waiter in waiters.into_iter().flatten() {
        waiter.release(1);
    }
}

/// Returns the key under which waiters of a lock or a condition park.
fn key<T>(of: &T) -> usize {
    core::ptr::from_ref(of).addr()
}

/// Takes a lock if that needs no wait.
fn attempt<G>(key: usize, take: impl FnOnce() -> Option<G>) -> Option<Guard<G>> {
    point();
    take().map(|guard| Guard { key, inner: Some(guard) })
}

/// Takes a lock: by trying in a scenario, by waiting outside.
fn take<G>(key: usize, mut attempt: impl FnMut() -> Option<G>, wait: impl FnOnce() -> G) -> Guard<G> {
    if current().is_none() {
        return Guard { key, inner: Some(wait()) };
    }
    loop {
        let mut taken = None;
        park(key, || {
            taken = attempt();
            taken.is_none()
        });
        if taken.is_some() {
            return Guard { key, inner: taken };
        }
    }
}

/// The guard of a lock.
#[derive(Debug)]
pub struct Guard<G> {
    key: usize,
    inner: Option<G>,
}

impl<G> Guard<G> {
    fn held(&mut self) -> &mut G {
        self.inner.as_mut().expect("the lock is held")
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        self.inner.as_ref().expect("the lock is held")
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        self.held()
    }
}

impl<G> Drop for Guard<G> {
    fn drop(&mut self) {
        self.inner = None;
        unpark_all(self.key);
    }
}

/// A mutex.
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

/// The guard of [`Mutex::lock`].
pub type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;

/// Returns a mutex with this value.
pub const fn const_mutex<T>(value: T) -> Mutex<T> {
    Mutex(parking_lot::const_mutex(value))
}

impl<T> Mutex<T> {
    /// Waits for the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        take(key(self), || self.0.try_lock(), || self.0.lock())
    }

    /// Takes the mutex if no thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        attempt(key(self), || self.0.try_lock())
    }

    /// Returns whether a thread holds the mutex.
    pub fn is_locked(&self) -> bool {
        point();
        self.0.is_locked()
    }

    /// Returns the value; no other thread can hold the mutex.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// A read-write lock.
#[derive(Debug, Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

/// The guard of [`RwLock::read`].
pub type RwLockReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;

/// The guard of [`RwLock::write`].
pub type RwLockWriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;

/// Returns a read-write lock with this value.
pub const fn const_rwlock<T>(value: T) -> RwLock<T> {
    RwLock(parking_lot::const_rwlock(value))
}

impl<T> RwLock<T> {
    /// Waits for shared access.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        take(key(self), || self.0.try_read(), || self.0.read())
    }

    /// Takes shared access if no thread has exclusive access.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        attempt(key(self), || self.0.try_read())
    }

    /// Waits for exclusive access.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        take(key(self), || self.0.try_write(), || self.0.write())
    }

    /// Takes exclusive access if no other thread has access.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        attempt(key(self), || self.0.try_write())
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

/// Whether a wait ended by timeout.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns whether the wait timed out.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Returns a condition variable without waiters.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Wakes all current waiters.
    pub fn notify_all(&self) {
        point();
        if current().is_some() {
            unpark_all(key(self));
        } else {
            self.0.notify_all();
        }
    }

    /// Releases the mutex, waits, and takes the mutex again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if current().is_some() {
            self.wait_outside(guard, |waiter| {
                wait(waiter);
                false
            });
        } else {
            self.0.wait(guard.held());
        }
    }

    /// As [`Condvar::wait`], but at most this long.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) -> WaitTimeoutResult {
        if current().is_none() {
            return WaitTimeoutResult(self.0.wait_for(guard.held(), at_most).timed_out());
        }
        if at_most >= FOREVER {
            self.wait(guard);
            return WaitTimeoutResult(false);
        }
        let turns = thread_rng().gen_range(0..TURNS);
        let expired = self.wait_outside(guard, |waiter| {
            let woken = |_| {
                shuttle::thread::yield_now();
                waiter.available_permits() > 0
            };
            !(0..turns).any(woken)
        });
        WaitTimeoutResult(expired)
    }

    /// Enters the parking lot, releases the mutex during the wait, and takes it again.
    fn wait_outside<T>(&self, guard: &mut MutexGuard<'_, T>, wait: impl FnOnce(&Waiter) -> bool) -> bool {
        point();
        // The seat is taken first: from here on a notification finds this thread.
        let waiter = enqueue(key(self));
        let mutex = parking_lot::MutexGuard::mutex(guard.held());
        guard.inner = None;
        unpark_all(guard.key);
        let expired = wait(&waiter);
        WAITERS.with_borrow_mut(|lot| {
            if let Some(waiters) = lot.get_mut(&key(self)) {
                waiters.retain(|other| !Rc::ptr_eq(other, &waiter));
            }
        });
        let mut again = take(guard.key, || mutex.try_lock(), || mutex.lock());
        guard.inner = again.inner.take();
        core::mem::forget(again);
        expired
    }
}
