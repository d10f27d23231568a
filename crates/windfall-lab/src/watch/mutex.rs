//! A mutex that is watched.
//!
//! **Purpose.** [`Mutex`], as the head of [`watch`](super) says.
//!
//! **Invariants.** The holder's name is written under the mutex, so who waits reads one who held it since the wait
//! began.
//!
//! **May touch.** What `watch` may touch.

use core::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

use super::{Hold, Purpose, Record, Report, Who, now};

/// A mutex that notes who held it and who waited.
#[derive(Debug)]
pub struct Mutex<T> {
    name: &'static str,
    holder: AtomicU8,
    inner: parking_lot::Mutex<T>,
    record: parking_lot::Mutex<Record>,
}

/// What [`Mutex::lock`] gives.
#[derive(Debug)]
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Gone only while the guard goes.
    inner: Option<parking_lot::MutexGuard<'a, T>>,
    hold: Option<Hold>,
}

impl<T> Mutex<T> {
    /// A mutex of this name.
    pub fn new(name: &'static str, value: T) -> Self {
        let inner = parking_lot::Mutex::new(value);
        Self { name, holder: AtomicU8::new(0), inner, record: parking_lot::Mutex::default() }
    }

    /// Waits for the mutex.
    #[inline]
    pub fn lock(&self, purpose: Purpose) -> Guard<'_, T> {
        let me = Who::this(purpose);
        let (inner, waited) = match self.inner.try_lock() {
            Some(inner) => (inner, false),
            None => (self.wait(me), true),
        };
        self.holder.store(me.0, Relaxed);
        Guard { mutex: self, inner: Some(inner), hold: Hold::begin(purpose, waited) }
    }

    #[cold]
    fn wait(&self, me: Who) -> parking_lot::MutexGuard<'_, T> {
        let (holder, start) = (Who(self.holder.load(Relaxed)), now());
        let inner = self.inner.lock();
        let took = now().saturating_sub(start);
        // The record's own lock is held for a moment only, and by nobody who waits for this one.
        self.record.lock().waited(me, holder, took);
        inner
    }

    /// What it has seen.
    pub fn report(&self) -> Report {
        self.record.lock().report(self.name)
    }

    /// Forgets what it has seen.
    pub fn reset(&self) {
        *self.record.lock() = Record::default();
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard that is there holds its lock")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("a guard that is there holds its lock")
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let held = self.hold.map(|hold| (hold, hold.took()));
        drop(self.inner.take());
        if let Some((hold, took)) = held {
            hold.note(took, &self.mutex.record);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::{
        super::{Role, play},
        *,
    };

    #[test]
    fn a_wait_names_the_holder_and_his_purpose() {
        let mutex = Mutex::new("pool", 7);
        let (held, is_held) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                play(Role::Dropper);
                let guard = mutex.lock(Purpose::Drop);
                held.send(()).unwrap();
                thread::sleep(Duration::from_millis(20));
                drop(guard);
            });
            is_held.recv().unwrap();
            assert_eq!(*mutex.lock(Purpose::Lookup), 7);
        });
        let report = mutex.report();
        let [wait] = report.waits[..] else { panic!("{report:?}") };
        assert_eq!((wait.role, wait.purpose), (Role::Client, Purpose::Lookup));
        assert_eq!((wait.holder, wait.held_for), (Role::Dropper, Purpose::Drop));
        assert!(wait.times.total_ns > 1_000_000, "{wait:?}");
        let [long] = report.long[..] else { panic!("{report:?}") };
        assert_eq!((long.role, long.purpose), (Role::Dropper, Purpose::Drop));
        assert!(report.longest(Purpose::Drop) >= Duration::from_millis(20));
        mutex.reset();
        assert!(mutex.report().holds.is_empty());
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
