//! A value protected by a gate: a thread inside reads it without a lock, and a thread that has the gate closed replaces
//! it.
//!
//! **Purpose.** Every row call reads the schema version of its table, and statements change it occasionally. The gate
//! separates the two anyway, so reading the value costs only the passing of the gate.
//!
//! **Invariants.** The value changes only under a [`Closed`] of its own gate (checked by `sync/gate/value.rs::check`)
//! and under the lock (test: `those_inside_see_one_value_to_the_end`). A reader is inside the gate, has it closed, or
//! holds the lock (by type).
#![expect(unsafe_code, reason = "the gate keeps readers and the writer of one value apart")]

use core::{cell::UnsafeCell, fmt, ops::Deref};

use super::{Closed, Gate, Inside};
use crate::sync::{Event, Mutex, Rank, machine};

/// A value and its gate.
pub struct Gated<T> {
    gate: Gate,
    value: UnsafeCell<T>,
    /// For readers outside the gate.
    lock: Mutex<()>,
}

// SAFETY: as for a read-write lock: several threads get references to the value, and another thread than its creator
// may drop it. Which accesses exclude each other is argued where the value is accessed.
unsafe impl<T: Send + Sync> Sync for Gated<T> {}

/// The value, for a thread inside the gate. Dropping it leaves the gate.
#[derive(Debug)]
pub struct Entered<'a, T> {
    value: &'a T,
    _inside: Inside<'a>,
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> fmt::Debug for Gated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gated").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl<T> Gated<T> {
    /// Returns a value protected by an open gate.
    #[inline]
    pub fn new(value: T) -> Self {
        Self { gate: Gate::new(), value: UnsafeCell::new(value), lock: Mutex::new(Rank::Leaf, ()) }
    }

    /// Returns the gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Passes the gate without a wait, see [`Gate::try_enter`].
    pub fn try_enter(&self) -> Option<Entered<'_, T>> {
        self.gate.try_enter(machine::thread_number()).map(|inside| self.entered(inside))
    }

    /// Passes the gate, see [`Gate::enter_by`].
    pub fn enter_by(&self, wait: impl FnMut(&Event, &mut dyn FnMut() -> bool)) -> Option<Entered<'_, T>> {
        self.gate.enter_by(machine::thread_number(), wait).map(|inside| self.entered(inside))
    }

    fn entered<'a>(&'a self, inside: Inside<'a>) -> Entered<'a, T> {
        debug_assert!(inside.is_of(&self.gate), "a thread inside another gate reads a value");
        // SAFETY: the value is replaced only while a `Closed` of this gate exists, and then no thread is inside. The
        // reference lives as long as `inside`, because it is accessible through `Entered` alone.
        let value = unsafe { &*self.value.get() };
        Entered { value, _inside: inside }
    }

    /// Reads the value from outside the gate, under the lock; `read` must be short.
    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        let _lock = self.lock.lock();
        // SAFETY: the value is replaced only under the lock.
        read(unsafe { &*self.value.get() })
    }

    /// Returns the value, for the only owner of the gate.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    fn check(&self, closed: &Closed<'_>) {
        assert!(closed.is_of(&self.gate), "another gate is closed");
    }

    /// Returns the value; the caller has the gate closed.
    pub fn get<'a>(&'a self, closed: &'a Closed<'_>) -> &'a T {
        self.check(closed);
        // SAFETY: replacing the value needs a mutable borrow of the one `Closed`, which is borrowed here.
        unsafe { &*self.value.get() }
    }

    /// Replaces the value. Returns the old one.
    pub fn replace(&self, closed: &mut Closed<'_>, value: T) -> T {
        self.check(closed);
        let _lock = self.lock.lock();
        // SAFETY: no thread is inside, and none enters while the gate is closed; no `get` is in progress, because a
        // gate has one `Closed`, borrowed mutably here; and a reader outside the gate holds the lock.
        core::mem::replace(unsafe { &mut *self.value.get() }, value)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn those_inside_see_one_value_to_the_end() {
        let gated = Gated::new((0, 0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = 0;
                    while let Some(pair) = gated.enter_by(|event, ready| event.wait(ready)) {
                        let (first, second) = *pair;
                        assert!(first == second && first >= last, "{first} and {second} after {last}");
                        assert_eq!(*pair, (first, second), "it changed meanwhile");
                        last = first;
                        drop(pair);
                        assert!(gated.with(|(first, second)| first == second));
                    }
                });
            }
            for n in 1..500 {
                let mut closed = gated.gate().close();
                assert_eq!(*gated.get(&closed), (n - 1, n - 1));
                assert_eq!(gated.replace(&mut closed, (n, n)), (n - 1, n - 1));
            }
            gated.gate().close_permanently();
        });
        assert!(gated.enter_by(|event, ready| event.wait(ready)).is_none());
    }

    #[test]
    #[should_panic(expected = "another gate is closed")]
    fn another_gate_is_no_key() {
        let (gated, other) = (Gated::new(1), Gate::new());
        gated.replace(&mut other.close(), 2);
    }
}
