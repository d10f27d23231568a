//! The primitives of the machine, as the product uses them.
//!
//! **Purpose.** The primitives on which the rest of `sync` is built, in one place. A test build with the feature
//! `model` has the module `model` here instead; a model checker schedules the primitives of that module. This is one of
//! the few modules with `unsafe`.
//!
//! **Invariants.** This module contains only names, and calls that are compiled away: the indirection costs the product
//! nothing (by type).

pub(super) use core::hint::spin_loop;
pub use core::sync::atomic;
pub use std::thread_local;

use atomic::{AtomicUsize, Ordering::Relaxed};
pub(super) use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, const_mutex, const_rwlock,
};

/// The number of checks of a waiter before it parks: a page latch is held for a microsecond, or for an I/O.
pub(super) const SPINS: u32 = 60;

/// Parks this thread if `blocked` returns true. `blocked` runs at a moment from which no unpark of this key can be
/// missed.
#[inline]
pub(super) fn park(key: usize, blocked: impl FnOnce() -> bool) {
    // SAFETY: keys are addresses of latches, on which no other code parks; the closures neither panic nor call into the
    // parking lot.
    unsafe {
        parking_lot_core::park(key, blocked, || {}, |_, _| {}, parking_lot_core::DEFAULT_PARK_TOKEN, None);
    }
}

/// Unparks every thread that is parked under this key.
#[inline]
pub(super) fn unpark_all(key: usize) {
    // SAFETY: as for parking.
    unsafe { parking_lot_core::unpark_all(key, parking_lot_core::DEFAULT_UNPARK_TOKEN) };
}

/// Returns this thread's own number, small and dense: it selects which of several stripes or slots to try first.
#[inline]
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Relaxed);
    }
    NUMBER.with(|number| *number)
}
