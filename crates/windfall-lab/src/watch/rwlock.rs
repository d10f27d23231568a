//! An instrumented read-write lock.
//!
//! **Purpose.** [`RwLock`], as described in [`watch`](super).
//!
//! **Invariants.** An exclusive holder writes its name into the lock, and so does a shared holder with a purpose that
//! is not brief (test: `a_writer_waits_for_a_reader`).

use super::{
    Hold, Order, Purpose, Report, Stats, guard, holder_name::HolderName, now, record::RoleAndPurpose,
};

/// A read-write lock that records its holds and waits. While a thread holds it, it acquires no other lock of the pool.
#[derive(Debug)]
pub struct RwLock<T> {
    stats: Stats,
    inner: parking_lot::RwLock<T>,
}

guard!(
    ReadGuard,
    RwLockReadGuard,
    "A guard of [`RwLock::read`].",
    |name: &HolderName, hold: Option<Hold>| {
        if hold.is_some_and(|hold| !hold.holder.purpose().is_brief()) {
            name.leave();
        }
    }
);
guard!(
    mut WriteGuard,
    RwLockWriteGuard,
    "A guard of [`RwLock::write`].",
    |name: &HolderName, _: Option<Hold>| {
        name.leave_alone();
    }
);

impl<T> RwLock<T> {
    /// Creates a lock with this name.
    pub fn new(name: &'static str, value: T) -> Self {
        Self { stats: Stats::new(name, Order::Last), inner: parking_lot::RwLock::new(value) }
    }

    /// Waits until the lock can be shared.
    #[inline]
    pub fn read(&self, purpose: Purpose) -> ReadGuard<'_, T> {
        let owner = RoleAndPurpose::this(purpose);
        let (inner, hold) =
            self.stats.take(owner, || self.inner.try_read(), |time| self.inner.try_read_for(time));
        if purpose.is_brief() {
            self.stats.holder_name.pass(owner);
        } else {
            self.stats.holder_name.enter(owner);
        }
        ReadGuard { stats: &self.stats, inner: Some(inner), hold }
    }

    /// Waits for exclusive access.
    pub fn write(&self, purpose: Purpose) -> WriteGuard<'_, T> {
        let owner = RoleAndPurpose::this(purpose);
        let (inner, hold) =
            self.stats.take(owner, || self.inner.try_write(), |time| self.inner.try_write_for(time));
        self.stats.holder_name.enter_alone(owner);
        WriteGuard { stats: &self.stats, inner: Some(inner), hold }
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
    use std::{sync::mpsc, thread, time::Duration};

    use super::{
        super::{Role, set_role},
        *,
    };
    use crate::testing::wait_until;

    /// Waits until a writer waits: from then on the lock cannot be shared any more.
    fn await_writer<T>(lock: &RwLock<T>) {
        wait_until("a writer waits", || lock.inner.try_read().is_none());
    }

    /// One thread shares the lock for a drop while other readers come and go; a writer waits.
    #[test]
    fn a_writer_waits_for_a_reader() {
        let lock = RwLock::new("hash index", 0);
        let (held, is_held) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                set_role(Role::Dropper);
                let shared = lock.read(Purpose::Drop);
                held.send(()).unwrap();
                await_writer(&lock);
                // The minimum hold time that the test checks.
                thread::sleep(Duration::from_millis(20));
                drop(shared);
            });
            is_held.recv().unwrap();
            (0..200).for_each(|_| drop(lock.read(Purpose::Search)));
            *lock.write(Purpose::Hash) += 1;
        });
        let report = lock.report();
        assert!(report.longest(Purpose::Drop) >= Duration::from_millis(20));
        let [wait] = report.waits[..] else { panic!("{:?}", report.waits) };
        assert_eq!((wait.role, wait.purpose), (Role::Client, Purpose::Hash));
        assert_eq!((wait.holder, wait.held_for), (Role::Dropper, Purpose::Drop));
        assert_eq!(*lock.read(Purpose::Search), 1);
    }

    #[test]
    fn readers_of_a_moment_are_named_if_no_reader_stays() {
        let lock = RwLock::new("page hash", ());
        drop(lock.write(Purpose::Load));
        thread::scope(|scope| {
            let shared = lock.read(Purpose::Lookup);
            scope.spawn(|| drop(lock.write(Purpose::Load)));
            await_writer(&lock);
            drop(shared);
        });
        let [wait] = lock.report().waits[..] else { panic!("{:?}", lock.report().waits) };
        assert_eq!((wait.purpose, wait.held_for), (Purpose::Load, Purpose::Lookup));
    }
}
