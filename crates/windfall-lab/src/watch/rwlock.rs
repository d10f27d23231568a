//! A read-write lock that is watched.
//!
//! **Purpose.** [`RwLock`], as the head of [`watch`](super) says.
//!
//! **Invariants.** Of several who share it, the last one whose hold is timed is the holder that a wait names.
//!
//! **May touch.** What `watch` may touch.

use super::{Hold, Notes, Purpose, Report, guard};

/// A read-write lock that notes who held it and who waited.
#[derive(Debug)]
pub struct RwLock<T> {
    notes: Notes,
    inner: parking_lot::RwLock<T>,
}

guard!(ReadGuard, RwLockReadGuard, "What [`RwLock::read`] gives.");
guard!(WriteGuard, RwLockWriteGuard, mut, "What [`RwLock::write`] gives.");

impl<T> RwLock<T> {
    /// A lock of this name.
    pub fn new(name: &'static str, value: T) -> Self {
        Self { notes: Notes::new(name), inner: parking_lot::RwLock::new(value) }
    }

    /// Waits until it can be shared.
    #[inline]
    pub fn read(&self, purpose: Purpose) -> ReadGuard<'_, T> {
        let (inner, hold) = self.notes.take(purpose, || self.inner.try_read(), || self.inner.read());
        // Readers share the line: only those who stay for long, or are timed, leave their name.
        if hold.is_some() {
            self.notes.sign(purpose);
        }
        ReadGuard { notes: &self.notes, inner: Some(inner), hold }
    }

    /// Waits until nobody else has it.
    pub fn write(&self, purpose: Purpose) -> WriteGuard<'_, T> {
        let (inner, hold) = self.notes.take(purpose, || self.inner.try_write(), || self.inner.write());
        self.notes.sign(purpose);
        WriteGuard { notes: &self.notes, inner: Some(inner), hold }
    }

    /// What it has seen.
    pub fn report(&self) -> Report {
        self.notes.report()
    }

    /// Forgets what it has seen.
    pub fn reset(&self) {
        self.notes.reset();
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
