//! A read-write lock that is watched.
//!
//! **Purpose.** [`RwLock`], as the head of [`watch`](super) says.
//!
//! **Invariants.** Those of `watch`.
//!
//! **May touch.** What `watch` may touch.

use super::{BRIEFLY, Hold, Notes, Purpose, Report, Ways, guard};

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
        let ways = Ways {
            at_once: || self.inner.try_read(),
            soon: || self.inner.try_read_for(BRIEFLY),
            at_last: || self.inner.read(),
        };
        let (inner, hold) = self.notes.take(purpose, ways);
        // Readers share the line: only those who may stay for long, or are timed, leave their name.
        if hold.is_some() {
            self.notes.sign_shared(purpose);
        }
        ReadGuard { notes: &self.notes, inner: Some(inner), hold }
    }

    /// Waits until nobody else has it.
    pub fn write(&self, purpose: Purpose) -> WriteGuard<'_, T> {
        let ways = Ways {
            at_once: || self.inner.try_write(),
            soon: || self.inner.try_write_for(BRIEFLY),
            at_last: || self.inner.write(),
        };
        let (inner, hold) = self.notes.take(purpose, ways);
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
        assert_eq!((wait.purpose, wait.held_for), (Purpose::Hash, Purpose::Drop));
        assert!(report.longest(Purpose::Drop) >= Duration::from_millis(20), "{report:?}");
        assert_eq!(*lock.read(Purpose::Search), 2);
    }
}
