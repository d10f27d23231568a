//! A read-write lock that is watched.
//!
//! **Purpose.** [`RwLock`], as the head of [`watch`](super) says.
//!
//! **Invariants.** Of several who share it, the last one to come is the holder that a wait names.
//!
//! **May touch.** What `watch` may touch.

use core::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

use super::{Hold, Purpose, Record, Report, Who, now};

/// A read-write lock that notes who held it and who waited.
#[derive(Debug)]
pub struct RwLock<T> {
    name: &'static str,
    holder: AtomicU8,
    inner: parking_lot::RwLock<T>,
    record: parking_lot::Mutex<Record>,
}

macro_rules! guard {
    ($name:ident, $inner:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug)]
        pub struct $name<'a, T> {
            lock: &'a RwLock<T>,
            /// Gone only while the guard goes.
            inner: Option<parking_lot::$inner<'a, T>>,
            hold: Option<Hold>,
        }

        impl<T> Deref for $name<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                self.inner.as_ref().expect("a guard that is there holds its lock")
            }
        }

        impl<T> Drop for $name<'_, T> {
            #[inline]
            fn drop(&mut self) {
                let held = self.hold.map(|hold| (hold, hold.took()));
                drop(self.inner.take());
                if let Some((hold, took)) = held {
                    hold.note(took, &self.lock.record);
                }
            }
        }
    };
}
guard!(ReadGuard, RwLockReadGuard, "What [`RwLock::read`] gives.");
guard!(WriteGuard, RwLockWriteGuard, "What [`RwLock::write`] gives.");

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("a guard that is there holds its lock")
    }
}

impl<T> RwLock<T> {
    /// A lock of this name.
    pub fn new(name: &'static str, value: T) -> Self {
        let inner = parking_lot::RwLock::new(value);
        Self { name, holder: AtomicU8::new(0), inner, record: parking_lot::Mutex::default() }
    }

    /// Waits until it can be shared.
    #[inline]
    pub fn read(&self, purpose: Purpose) -> ReadGuard<'_, T> {
        let me = Who::this(purpose);
        let (inner, waited) = match self.inner.try_read() {
            Some(inner) => (inner, false),
            None => (self.wait(me, || self.inner.read()), true),
        };
        let hold = Hold::begin(purpose, waited);
        // Readers share the line: only those who stay for long, or are timed, leave their name.
        if hold.is_some() {
            self.holder.store(me.0, Relaxed);
        }
        ReadGuard { lock: self, inner: Some(inner), hold }
    }

    /// Waits until nobody else has it.
    pub fn write(&self, purpose: Purpose) -> WriteGuard<'_, T> {
        let me = Who::this(purpose);
        let (inner, waited) = match self.inner.try_write() {
            Some(inner) => (inner, false),
            None => (self.wait(me, || self.inner.write()), true),
        };
        self.holder.store(me.0, Relaxed);
        WriteGuard { lock: self, inner: Some(inner), hold: Hold::begin(purpose, waited) }
    }

    #[cold]
    fn wait<G>(&self, me: Who, lock: impl FnOnce() -> G) -> G {
        let (holder, start) = (Who(self.holder.load(Relaxed)), now());
        let inner = lock();
        let took = now().saturating_sub(start);
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn a_writer_waits_for_one_who_shares() {
        let lock = RwLock::new("hash index", 1);
        let (held, is_held) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let shared = lock.read(Purpose::Drop);
                held.send(()).unwrap();
                thread::sleep(Duration::from_millis(20));
                drop(shared);
            });
            is_held.recv().unwrap();
            assert_eq!(*lock.read(Purpose::Search), 1);
            *lock.write(Purpose::Hash) += 1;
        });
        let report = lock.report();
        let [wait] = report.waits[..] else { panic!("{report:?}") };
        assert_eq!((wait.purpose, report.long.len()), (Purpose::Hash, 1));
        assert_eq!(*lock.read(Purpose::Search), 2);
    }
}
