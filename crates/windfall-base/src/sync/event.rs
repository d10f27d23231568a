//! An event that threads wait for.
//!
//! **Purpose.** A condition variable with its mutex and a generation. A notification between the check of a condition
//! and the wait for it is never lost, and notifying costs one atomic load when no thread waits.
//!
//! **Invariants.** A waiter announces itself and then checks the condition again; a notifier changes the condition and
//! then checks for waiters (test: `an_event_loses_no_notification`).
//!
//! **Ordering.** Both have a sequentially consistent fence in between, so that one of the two sees the other whatever
//! the ordering of the change. A model does not notice if the fence is missing, because it has no weak memory; a
//! processor then loses one notification in millions.

use core::time::Duration;
use std::time::Instant;

use super::{
    machine::{
        Condvar, Mutex,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
        const_mutex,
    },
    work::{self, Work},
};

/// An event to wait for. The condition itself is stored elsewhere, in atomics or under a lock of its own.
#[derive(Debug, Default)]
pub struct Event {
    waiters: AtomicU32,
    /// Whether there was a notification since the last timed wait.
    notified: AtomicBool,
    mutex: Mutex<u64>,
    condvar: Condvar,
}

impl Event {
    /// Returns an event without waiters.
    pub const fn new() -> Self {
        Self {
            waiters: AtomicU32::new(0),
            notified: AtomicBool::new(false),
            mutex: const_mutex(0),
            condvar: Condvar::new(),
        }
    }

    /// Wakes every waiter, which then checks its condition again.
    pub fn notify(&self) {
        // The change of the condition happens before the load of `notified`: a waiter that clears `notified` afterwards
        // sees the change.
        fence(SeqCst);
        if !self.notified.load(Relaxed) {
            self.notified.store(true, Relaxed);
            fence(SeqCst);
        }
        if self.waiters.load(SeqCst) > 0 {
            self.wake();
        }
    }

    /// As [`Event::notify`], for a condition that is changed by a sequentially consistent store and checked by
    /// sequentially consistent loads, or that is changed and checked under one lock. Such accesses are ordered already,
    /// so no fence is needed.
    pub fn notify_ordered(&self) {
        if !self.notified.load(SeqCst) {
            self.notified.store(true, SeqCst);
        }
        if self.waiters.load(SeqCst) > 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        *self.mutex.lock() += 1;
        work::count(Work::Wake);
        self.condvar.notify_all();
    }

    /// Waits until `ready` returns true. `ready` runs under no lock but the event's own and must be quick.
    pub fn wait(&self, mut ready: impl FnMut() -> bool) {
        self.wait_some(None, &mut ready);
    }

    /// Waits until `ready` returns true, or until the time has passed. Returns whether it was ready.
    pub fn wait_for(&self, at_most: Duration, mut ready: impl FnMut() -> bool) -> bool {
        self.wait_some(Some(at_most), &mut ready)
    }

    /// Waits for the next notification, or until the time has passed. A notification since the last timed wait ends it
    /// at once. Only one thread may call this at a time.
    pub fn timed_wait(&self, at_most: Duration) {
        self.wait_for(at_most, || self.notified.load(SeqCst));
        self.notified.store(false, SeqCst);
        // A notifier that still finds `notified` set has made its change before this fence: the caller's next reads see
        // it.
        fence(SeqCst);
    }

    /// Returns whether the next timed wait ends at once.
    pub fn is_notified(&self) -> bool {
        self.notified.load(SeqCst)
    }

    /// Returns whether a thread waits, or is about to wait and has not checked its condition again yet.
    pub fn has_waiters(&self) -> bool {
        self.waiters.load(SeqCst) > 0
    }

    fn wait_some(&self, at_most: Option<Duration>, ready: &mut dyn FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        self.waiters.fetch_add(1, SeqCst);
        fence(SeqCst);
        let began = at_most.map(|_| Instant::now());
        let mut generation = self.mutex.lock();
        let mut expired = false;
        let was_ready = loop {
            if ready() {
                break true;
            }
            if expired {
                break false;
            }
            work::count(Work::Wait);
            match at_most.zip(began) {
                None => self.condvar.wait(&mut generation),
                Some((time, began)) => {
                    // The timeout covers the whole wait, including all spurious wakeups.
                    let left = time.saturating_sub(began.elapsed());
                    expired = self.condvar.wait_for(&mut generation, left).timed_out();
                }
            }
        };
        drop(generation);
        let before = self.waiters.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a thread that waited was not counted");
        was_ready
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn no_wakeup_is_lost() {
        for _ in 0..500 {
            let shared = Arc::new((Event::new(), AtomicBool::new(false)));
            let other = shared.clone();
            let thread = std::thread::spawn(move || other.0.wait(|| other.1.load(SeqCst)));
            shared.1.store(true, SeqCst);
            shared.0.notify();
            thread.join().unwrap();
        }
    }

    const LONG: Duration = Duration::from_mins(10);

    #[test]
    fn a_wait_ends_in_time_however_often_it_is_woken() {
        let shared = Arc::new((Event::new(), AtomicBool::new(false)));
        let other = shared.clone();
        let start = Instant::now();
        let thread = std::thread::spawn(move || {
            while !other.1.load(SeqCst) && start.elapsed() < LONG {
                other.0.notify();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        assert!(!shared.0.wait_for(Duration::from_millis(30), || false));
        shared.1.store(true, SeqCst);
        thread.join().unwrap();
        let took = start.elapsed();
        assert!((Duration::from_millis(29)..LONG).contains(&took), "{took:?}");
    }

    #[test]
    fn a_timed_wait_ends_with_its_time_or_a_notification() {
        let event = Event::new();
        let start = Instant::now();
        event.timed_wait(Duration::from_millis(30));
        assert!(start.elapsed() >= Duration::from_millis(29), "it did not wait");
        // A notification before the timed wait ends it at once.
        event.notify();
        let before = work::so_far();
        event.timed_wait(Duration::from_millis(30));
        assert_eq!((work::so_far() - before).of(Work::Wait), 0, "it waited despite a notification");
        event.timed_wait(Duration::from_millis(1));
        assert!((work::so_far() - before).of(Work::Wait) > 0, "a notification ends one timed wait");
    }

    #[test]
    fn a_wait_ends_with_its_time() {
        assert!(!Event::new().wait_for(Duration::from_millis(5), || false));
    }
}
