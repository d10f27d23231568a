//! A mutex that is watched.
//!
//! **Purpose.** [`Mutex`], as the head of [`watch`](super) says.
//!
//! **Invariants.** Who has the mutex signs it.
//!
//! **May touch.** What `watch` may touch.

use super::{Hold, Notes, Purpose, Report, guard, now, record::Who, sign::Sign};

/// A mutex that notes who held it and who waited.
#[derive(Debug)]
pub struct Mutex<T> {
    notes: Notes,
    inner: parking_lot::Mutex<T>,
}

guard!(mut Guard, MutexGuard, "What [`Mutex::lock`] gives.", |sign: &Sign, _: Option<Hold>| sign
    .leave_alone());

impl<T> Mutex<T> {
    /// A mutex of this name.
    pub fn new(name: &'static str, value: T) -> Self {
        Self { notes: Notes::new(name), inner: parking_lot::Mutex::new(value) }
    }

    /// Waits for the mutex.
    #[inline]
    pub fn lock(&self, purpose: Purpose) -> Guard<'_, T> {
        let who = Who::this(purpose);
        let (inner, hold) =
            self.notes.take(who, || self.inner.try_lock(), |time| self.inner.try_lock_for(time));
        self.notes.sign.enter_alone(who);
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
        super::{Role, Waited, play},
        *,
    };

    /// Has one thread wait for the mutex while this one does something, and gives its wait. Who gets the mutex at once
    /// because it was late has not waited: then all of it is done again.
    fn wait_of(mutex: &Mutex<()>, meanwhile: impl Fn(&dyn Fn())) -> Waited {
        for _ in 0..100 {
            mutex.reset();
            thread::scope(|scope| {
                meanwhile(&|| {
                    let (waits, is_waiting) = mpsc::channel();
                    scope.spawn(move || {
                        waits.send(()).unwrap();
                        drop(mutex.lock(Purpose::Lookup));
                    });
                    is_waiting.recv().unwrap();
                });
            });
            if let [wait] = mutex.report().waits[..] {
                assert_eq!((wait.role, wait.purpose, wait.times.count), (Role::Client, Purpose::Lookup, 1));
                return wait;
            }
        }
        panic!("nobody ever waits");
    }

    fn pause(ms: u64) {
        thread::sleep(Duration::from_millis(ms));
    }

    #[test]
    fn a_wait_names_the_holder_and_his_purpose() {
        let mutex = Mutex::new("pool", ());
        play(Role::Dropper);
        let wait = wait_of(&mutex, |begin| {
            let guard = mutex.lock(Purpose::Drop);
            begin();
            pause(20);
            drop(guard);
        });
        assert_eq!((wait.holder, wait.held_for), (Role::Dropper, Purpose::Drop));
        assert!(wait.times.total_ns > 0, "{wait:?}");
        assert!(mutex.report().longest(Purpose::Drop) >= Duration::from_millis(20));
        mutex.reset();
        assert!(mutex.report().holds.is_empty());
    }

    /// The mutex is taken first and signed then: who looks in between does not take the name of the one before.
    #[test]
    fn a_wait_names_nobody_who_has_given_it_back_before() {
        let mutex = Mutex::new("pool", ());
        drop(mutex.lock(Purpose::Drop));
        let wait = wait_of(&mutex, |begin| {
            let taken = mutex.inner.lock();
            begin();
            pause(5);
            mutex.notes.sign.enter_alone(Who::this(Purpose::Flush));
            pause(5);
            mutex.notes.sign.leave_alone();
            drop(taken);
        });
        assert_eq!(wait.held_for, Purpose::Flush);
    }

    #[test]
    fn a_wait_is_noted_when_the_lock_was_given_back() {
        let mutex = Mutex::new("pool", ());
        let (held, is_held) = mpsc::channel();
        for _ in 0..100 {
            let guard = mutex.lock(Purpose::Flush);
            thread::scope(|scope| {
                let (held, mutex) = (held.clone(), &mutex);
                scope.spawn(move || {
                    held.send(()).unwrap();
                    let guard = mutex.lock(Purpose::Load);
                    assert!(mutex.report().waits.is_empty(), "it is noted while it is held");
                    drop(guard);
                });
                is_held.recv().unwrap();
                pause(2);
                drop(guard);
            });
            if !mutex.report().waits.is_empty() {
                return;
            }
        }
        panic!("nobody ever waits");
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
