//! An instrumented mutex.
//!
//! **Purpose.** [`Mutex`], as described in [`watch`](super).
//!
//! **Invariants.** The holder of the mutex writes its name into it (test: `a_wait_names_the_holder_and_his_purpose`).

use core::time::Duration;

use parking_lot::MutexGuard;

use super::{
    Hold, Order, Purpose, Report, Stats, guard, holder_name::HolderName, now, record::RoleAndPurpose,
};

/// A mutex that records its holds and waits.
#[derive(Debug)]
pub struct Mutex<T> {
    stats: Stats,
    inner: parking_lot::Mutex<T>,
}

guard!(mut Guard, MutexGuard, "A guard of [`Mutex::lock`].", |name: &HolderName, _: Option<Hold>| name
    .leave_alone());

impl<T> Mutex<T> {
    /// Creates a mutex of the pool with this name.
    pub fn new(name: &'static str, value: T) -> Self {
        Self { stats: Stats::new(name, Order::AfterPages), inner: parking_lot::Mutex::new(value) }
    }

    /// Creates a mutex that is held around whole calls of the pool.
    pub fn around_pool(name: &'static str, value: T) -> Self {
        Self { stats: Stats::new(name, Order::BeforePages), inner: parking_lot::Mutex::new(value) }
    }

    /// Waits for the mutex.
    #[inline]
    pub fn lock(&self, purpose: Purpose) -> Guard<'_, T> {
        self.lock_by(purpose, |time| self.inner.try_lock_for(time))
    }

    /// Waits for the mutex, with a timeout per attempt.
    #[inline]
    fn lock_by<'a>(
        &'a self,
        purpose: Purpose,
        within: impl Fn(Duration) -> Option<MutexGuard<'a, T>>,
    ) -> Guard<'a, T> {
        let owner = RoleAndPurpose::this(purpose);
        let (inner, hold) = self.stats.take(owner, || self.inner.try_lock(), within);
        self.stats.holder_name.enter_alone(owner);
        Guard { stats: &self.stats, inner: Some(inner), hold }
    }

    /// Returns the recorded holds and waits.
    pub fn report(&self) -> Report {
        self.stats.report()
    }

    /// Discards the recorded holds and waits.
    pub fn reset(&self) {
        self.stats.reset();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::{
        super::{Role, Waited, set_role},
        *,
    };
    use crate::testing::wait_until;

    /// Waits for the mutex, and reports each attempt.
    fn lock_audibly<'a>(mutex: &'a Mutex<()>, purpose: Purpose, tries: &mpsc::Sender<()>) -> Guard<'a, ()> {
        mutex.lock_by(purpose, |time| {
            let _ = tries.send(());
            mutex.inner.try_lock_for(time)
        })
    }

    /// Lets one thread wait for the mutex while the calling thread, which holds it, does something and releases it.
    /// Returns the wait.
    fn wait_of(mutex: &Mutex<()>, meanwhile: impl FnOnce(&mpsc::Receiver<()>)) -> Waited {
        thread::scope(|scope| {
            let (tries, tried) = mpsc::channel();
            scope.spawn(move || {
                // The first brief hold of a thread is timed anyway.
                drop(Mutex::new("other", ()).lock(Purpose::Lookup));
                drop(lock_audibly(mutex, Purpose::Lookup, &tries));
            });
            tried.recv().unwrap();
            meanwhile(&tried);
        });
        let [wait] = mutex.report().waits[..] else { panic!("{:?}", mutex.report().waits) };
        assert_eq!((wait.role, wait.purpose, wait.times.count), (Role::Client, Purpose::Lookup, 1));
        wait
    }

    #[test]
    fn a_wait_names_the_holder_and_his_purpose() {
        let mutex = Mutex::new("pool", ());
        set_role(Role::Dropper);
        let guard = mutex.lock(Purpose::Drop);
        let wait = wait_of(&mutex, |_| {
            // The minimum hold time that the test checks.
            thread::sleep(Duration::from_millis(20));
            drop(guard);
        });
        assert_eq!((wait.holder, wait.held_for), (Role::Dropper, Purpose::Drop));
        assert!(wait.times.total_ns > 0, "{wait:?}");
        assert!(mutex.report().longest(Purpose::Drop) >= Duration::from_millis(20));
        mutex.reset();
        assert!(mutex.report().holds.is_empty());
    }

    /// The mutex is taken before the name is written: a reader in between must not get the name of the previous
    /// holder.
    #[test]
    fn a_wait_names_no_previous_holder() {
        let mutex = Mutex::new("pool", ());
        drop(mutex.lock(Purpose::Drop));
        let taken = mutex.inner.lock();
        let wait = wait_of(&mutex, |tried| {
            mutex.stats.holder_name.enter_alone(RoleAndPurpose::this(Purpose::Flush));
            // The next attempt may have begun before that, but not the one after it.
            tried.try_iter().for_each(drop);
            (0..2).for_each(|_| tried.recv().unwrap());
            mutex.stats.holder_name.leave_alone();
            drop(taken);
        });
        assert_eq!(wait.held_for, Purpose::Flush);
    }

    #[test]
    fn a_wait_is_noted_when_the_lock_was_given_back() {
        let mutex = Mutex::new("pool", ());
        let guard = mutex.lock(Purpose::Flush);
        thread::scope(|scope| {
            let (tries, tried) = mpsc::channel();
            let mutex = &mutex;
            scope.spawn(move || {
                let guard = lock_audibly(mutex, Purpose::Load, &tries);
                assert!(mutex.report().waits.is_empty(), "it is noted while it is held");
                drop(guard);
            });
            tried.recv().unwrap();
            drop(guard);
        });
        assert_eq!(mutex.report().waits.len(), 1);
    }

    #[test]
    fn a_hold_is_recorded_after_the_release() {
        let mutex = Mutex::new("pool", ());
        // A thread that records something waits for this.
        let record = mutex.stats.record.lock();
        thread::scope(|scope| {
            let (held, is_held) = mpsc::channel();
            let mutex = &mutex;
            let holder = scope.spawn(move || {
                let guard = mutex.lock(Purpose::Flush);
                held.send(()).unwrap();
                drop(guard);
            });
            is_held.recv().unwrap();
            wait_until("the mutex is released", || mutex.inner.try_lock().is_some());
            assert!(!holder.is_finished(), "the hold is not recorded yet");
            drop(record);
        });
        assert_eq!(mutex.report().count(Purpose::Flush), 1);
    }

    #[test]
    fn brief_holds_are_counted_by_samples() {
        let mutex = Mutex::new("pool", ());
        for _ in 0..64 * super::super::SAMPLED {
            drop(mutex.lock(Purpose::Lookup));
            drop(mutex.lock(Purpose::Young));
        }
        drop(mutex.lock(Purpose::Flush));
        let report = mutex.report();
        assert_eq!(report.count(Purpose::Lookup), 64 * super::super::SAMPLED);
        assert_eq!(report.count(Purpose::Young), 64 * super::super::SAMPLED);
        assert_eq!(report.count(Purpose::Flush), 1);
    }
}
