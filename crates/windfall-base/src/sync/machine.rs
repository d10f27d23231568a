//! The machine's own primitives, as the product uses them.
//!
//! **Purpose.** What the rest of `sync` is made of, in one place: a build of the tests with the feature `model` puts
//! the module `model` here instead, whose primitives obey a model checker.
//!
//! **Invariants.** Names only, or calls that are compiled away: the product pays nothing for being replaceable.
//!
//! **May touch.** The machine. One of the few places with `unsafe`.

pub use core::{hint::spin_loop, sync::atomic};
pub use std::thread_local;

use atomic::{AtomicUsize, Ordering::Relaxed};
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, const_mutex, const_rwlock,
};

/// How often a waiter looks again before it parks: a page latch is held for a microsecond, or for an I/O.
pub const SPINS: u32 = 60;

/// Parks this thread, if `blocked` says so when nobody can unpark it any more unseen.
#[inline]
pub fn park(key: usize, blocked: impl FnOnce() -> bool) {
    // SAFETY: keys are addresses of latches, on which nobody else parks; the closures neither panic nor call into the
    // parking lot.
    unsafe {
        parking_lot_core::park(key, blocked, || {}, |_, _| {}, parking_lot_core::DEFAULT_PARK_TOKEN, None);
    }
}

/// Unparks every thread that is parked under this key.
#[inline]
pub fn unpark_all(key: usize) {
    // SAFETY: as for parking.
    unsafe { parking_lot_core::unpark_all(key, parking_lot_core::DEFAULT_UNPARK_TOKEN) };
}

/// A number of this thread's own, small and dense: which of several stripes or slots to try first.
#[inline]
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Relaxed);
    }
    NUMBER.with(|number| *number)
}
