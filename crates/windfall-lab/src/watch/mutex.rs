//! A mutex that is watched.
//!
//! **Purpose.** [`Mutex`], as the head of [`watch`](super) says.
//!
//! **Invariants.** The holder's name is written under the mutex.
//!
//! **May touch.** What `watch` may touch.

use super::{BRIEFLY, Hold, Notes, Purpose, Report, Ways, guard};

/// A mutex that notes who held it and who waited.
#[derive(Debug)]
pub struct Mutex<T> {
    notes: Notes,
    inner: parking_lot::Mutex<T>,
}

guard!(Guard, MutexGuard, mut, "What [`Mutex::lock`] gives.");

impl<T> Mutex<T> {
    /// A mutex of this name.
    pub fn new(name: &'static str, value: T) -> Self {
        Self { notes: Notes::new(name), inner: parking_lot::Mutex::new(value) }
    }

    /// Waits for the mutex.
    #[inline]
    pub fn lock(&self, purpose: Purpose) -> Guard<'_, T> {
        let ways = Ways {
            at_once: || self.inner.try_lock(),
            soon: || self.inner.try_lock_for(BRIEFLY),
            at_last: || self.inner.lock(),
        };
        let (inner, hold) = self.notes.take(purpose, ways);
        self.notes.sign(purpose);
        Guard { notes: &self.notes, inner: Some(inner), hold }
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
        assert!(wait.times.total_ns > 0, "{wait:?}");
        assert!(report.longest(Purpose::Drop) >= Duration::from_millis(20));
        mutex.reset();
        assert!(mutex.report().holds.is_empty());
    }

    #[test]
    fn a_long_wait_is_not_put_down_to_who_held_the_lock_before() {
        let mutex = Mutex::new("pool", ());
        drop(mutex.lock(Purpose::Flush));
        // Somebody who has taken the lock and not yet left his name.
        let unsigned = mutex.inner.lock();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(mutex.lock(Purpose::Young)));
            let begun = super::super::now();
            while super::super::now() < begun + 10 * BRIEFLY {
                thread::yield_now();
                // He leaves it while the other one waits already, or before.
                mutex.notes.sign(Purpose::Drop);
            }
            thread::sleep(Duration::from_millis(20));
            drop(unsigned);
            waiting.join().unwrap();
        });
        let [wait] = mutex.report().waits[..] else { panic!("{:?}", mutex.report()) };
        assert_eq!((wait.purpose, wait.held_for), (Purpose::Young, Purpose::Drop));
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
