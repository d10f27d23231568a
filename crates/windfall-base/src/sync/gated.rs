//! A value behind a gate: who is inside reads it without a lock, who has the gate closed replaces it.
//!
//! **Purpose.** Every row call looks at its table's shape, and statements change it now and then. The gate keeps the
//! two apart anyway, so a look costs nothing but the passing of the gate.
//!
//! **Invariants.** The value changes only under a [`Closed`] of its own gate and under the lock. Who reads it is inside
//! the gate, has it closed, or holds the lock.
//!
//! **May touch.** [`Gate`], `lock`.
#![expect(unsafe_code, reason = "the gate keeps readers and the writer of one value apart")]

use core::{cell::UnsafeCell, fmt, ops::Deref};

use super::{Closed, Gate, Inside, Mutex, Rank};

/// A value and its gate.
pub struct Gated<T> {
    gate: Gate,
    value: UnsafeCell<T>,
    /// For those who look from outside.
    lock: Mutex<()>,
}

// SAFETY: as for a read-write lock: references to the value go to several threads, and the value itself may be dropped
// by another thread than the one that made it. Who may reach it when is argued where it is reached.
unsafe impl<T: Send + Sync> Sync for Gated<T> {}

/// The value, for somebody inside the gate. Leaving is dropping it.
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
    /// A value behind an open gate.
    pub fn new(value: T) -> Self {
        Self { gate: Gate::new(), value: UnsafeCell::new(value), lock: Mutex::new(Rank::Leaf, ()) }
    }

    /// The gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Passes the gate, see [`Gate::enter`].
    pub fn enter(&self) -> Option<Entered<'_, T>> {
        let inside = self.gate.enter_here()?;
        // SAFETY: the value is replaced only while a `Closed` of this gate exists, and then nobody is inside. The
        // reference lives as long as `inside`, for it is reached through `Entered` alone.
        let value = unsafe { &*self.value.get() };
        Some(Entered { value, _inside: inside })
    }

    /// Looks at the value from outside, under a lock: for a short look.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let _lock = self.lock.lock();
        // SAFETY: the value is replaced only under the lock.
        look(unsafe { &*self.value.get() })
    }

    fn check(&self, closed: &Closed<'_>) {
        assert!(closed.is_of(&self.gate), "another gate is closed");
    }

    /// The value, for who has the gate closed.
    pub fn get<'a>(&'a self, closed: &'a Closed<'_>) -> &'a T {
        self.check(closed);
        // SAFETY: the value is replaced only by who borrows the one `Closed` mutably, which is borrowed here.
        unsafe { &*self.value.get() }
    }

    /// Replaces the value. Gives the one that was there.
    pub fn replace(&self, closed: &mut Closed<'_>, value: T) -> T {
        self.check(closed);
        let _lock = self.lock.lock();
        // SAFETY: nobody is inside, and nobody comes while the gate is closed; no `get` is under way, for there is one
        // `Closed` of a gate, borrowed mutably; and who looks from outside holds the lock.
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
                    while let Some(pair) = gated.enter() {
                        let (first, second) = *pair;
                        assert!(first == second && first >= last, "{first} and {second} after {last}");
                        assert_eq!(*pair, (first, second), "it changed meanwhile");
                        last = first;
                        drop(pair);
                        assert!(gated.look(|(first, second)| first == second));
                    }
                });
            }
            for n in 1..500 {
                let mut closed = gated.gate().close();
                assert_eq!(*gated.get(&closed), (n - 1, n - 1));
                assert_eq!(gated.replace(&mut closed, (n, n)), (n - 1, n - 1));
            }
            gated.gate().close_for_good();
        });
        assert!(gated.enter().is_none());
    }

    #[test]
    #[should_panic(expected = "another gate is closed")]
    fn another_gate_is_no_key() {
        let (gated, other) = (Gated::new(1), Gate::new());
        gated.replace(&mut other.close(), 2);
    }
}
