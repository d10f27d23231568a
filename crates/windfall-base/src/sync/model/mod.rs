//! The primitives of a model: the same names as in `machine`, but a scheduler decides at each of them which thread
//! continues.
//!
//! **Purpose.** A test runs a scenario of a few threads many times ([`explore`]), each time in another order, and a
//! failure is replayed by its schedule. The scheduler is that of the crate `shuttle`; the threads of a scenario are its
//! tasks, on one thread of the machine.
//!
//! **Invariants.** Outside a scenario everything here behaves as the machine does, so other tests run in such a build,
//! too (test: `threads_outside_a_scenario_wait_as_those_of_the_machine`). A run may have any possible order of the
//! accesses of a scenario to our own atomics, locks and events (test: `a_race_has_every_outcome`). The atomics are
//! those of the machine, of the same size as in the product (by type); so frames, pages and the log's ring are explored
//! in place, in mapped memory. Locks, events and latches that must wait do so in a small parking lot ([`park`]), which
//! has no spurious wakeups: a lost wakeup is a deadlock, and that is reported (test:
//! `a_wait_that_nothing_ends_is_reported`). A timed wait lasts for a random small number of scheduler yields (test:
//! `a_short_wait_ends_by_itself`); a wait of an hour or more never ends by itself (test:
//! `a_wait_that_nothing_ends_is_reported`). A scenario finds the bugs that it names: in the copy of the source that has
//! them (`crates/windfall-mutation`) it runs once with each of them (checked by
//! `sync/model/explore.rs::check_bug_is_found`).
//!
//! **Method.** The mechanism is one call, [`point`], before each access to an atomic: the scheduler may switch to
//! another thread there. Only test builds with the feature `model` contain this module.
//!
//! **Limits.** The following is not covered:
//!
//! - Weak memory. In a scenario all accesses are sequentially consistent, whatever memory ordering they specify, and
//!   fences do nothing. A `Relaxed` that ought to be `Release` is not found: that is left to the thread sanitizer and
//!   to runs on real hardware.
//! - The internals of `crossbeam-epoch`, `crossbeam-queue`, `Arc` and `OnceLock`: one of their calls is one step. All
//!   threads of a scenario are one thread to epoch-based reclamation, so a pin of any of them holds back the memory
//!   that all of them free. A missing pin is not found: that is left to the address sanitizer.
//! - The inside of a walk over neighbouring words, as when a page is copied: there is a scheduling point every [`WALK`]
//!   words.
//! - Threads that the engine starts itself: a scenario calls the workers' steps from threads of its own.

pub mod atomic;
mod explore;
#[cfg(test)]
mod interleavings;
mod lock;

use core::{
    any::Any,
    cell::{Cell, RefCell},
    convert::Infallible,
    time::Duration,
};
use std::{collections::HashMap, rc::Rc};

pub use explore::{explore, spawn};
pub use lock::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, const_mutex, const_rwlock,
};
pub(super) use lock::{park, unpark_all};

/// In a model a second check in a row shows nothing new.
pub(super) const SPINS: u32 = 1;
/// The number of neighbouring words that are read or written in a row as one step.
const WALK: usize = 32;

/// A variable, and a thread of the scenario.
type Key = (usize, Option<usize>);

std::thread_local! {
    /// Whether the current check must be one step.
    static STILL: Cell<bool> = const { Cell::new(false) };
    /// The last word of the current walk, and its length.
    static LAST_WORD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// The thread-local values of the scenario's threads, by variable and thread.
    static LOCALS: RefCell<HashMap<Key, Rc<dyn Any>>> = RefCell::default();
}

/// Returns the current thread of the scenario; `None` outside of one.
fn current() -> Option<usize> {
    shuttle::current::try_get_current_task().map(usize::from)
}

/// Returns whether this is a thread of a scenario.
pub fn is_scenario() -> bool {
    current().is_some()
}

/// A scheduling point: the scheduler may switch to another thread here.
fn point() {
    if !STILL.get() && current().is_some() {
        // The scheduler has no clock: this call is only an opportunity to switch threads.
        shuttle::thread::sleep(Duration::ZERO);
    }
}

/// The scheduling point before an access to an atomic. A walk over neighbouring words has few of them.
fn access<T>(atomic: &T) {
    let address = core::ptr::from_ref(atomic) as usize;
    let (last, length) = LAST_WORD.get();
    if size_of::<T>() == 8 && address == last + 8 && length < WALK {
        LAST_WORD.set((address, length + 1));
    } else {
        point();
        LAST_WORD.set((address, 0));
    }
}

/// Runs something as one step.
fn still<T>(run: impl FnOnce() -> T) -> T {
    let before = STILL.replace(true);
    let result = run();
    STILL.set(before);
    result
}

/// Discards the state of an earlier run: each run must begin in the same state, or it could not be replayed.
fn begin() {
    lock::forget_waiters();
    LAST_WORD.set((0, 0));
    STILL.set(false);
    LOCALS.with_borrow_mut(|locals| locals.retain(|(_, thread), _| thread.is_none()));
}

/// Lets other threads run first.
pub(super) fn spin_loop() {
    if current().is_some() {
        shuttle::thread::yield_now();
    } else {
        core::hint::spin_loop();
    }
}

/// Returns this thread's own number, the same in every run.
pub fn thread_number() -> usize {
    current().unwrap_or(0)
}

/// A variable with a separate value for each thread of a scenario.
#[derive(Debug)]
pub struct Local<T: 'static>(fn() -> T);

impl<T: 'static> Local<T> {
    /// Returns a variable with this initial value in each thread.
    pub const fn new(init: fn() -> T) -> Self {
        Self(init)
    }

    /// Passes this thread's value to `look`.
    pub fn with<R>(&'static self, look: impl FnOnce(&T) -> R) -> R {
        let key = (core::ptr::from_ref(self) as usize, current());
        let found = LOCALS.with_borrow(|locals| locals.get(&key).cloned());
        let value = found.unwrap_or_else(|| {
            let new: Rc<dyn Any> = Rc::new(self.0());
            LOCALS.with_borrow_mut(|locals| locals.insert(key, new.clone()));
            new
        });
        look(value.downcast_ref().expect("a variable keeps its type"))
    }

    /// As [`Local::with`].
    ///
    /// # Errors
    /// None: here a value lasts until all threads have ended.
    pub fn try_with<R>(&'static self, look: impl FnOnce(&T) -> R) -> Result<R, Infallible> {
        Ok(self.with(look))
    }
}

impl<T: 'static> Local<Cell<T>> {
    /// Returns this thread's value.
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    /// Sets this thread's value.
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    /// Sets this thread's value and returns the previous one.
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> Local<RefCell<T>> {
    /// Changes this thread's value.
    pub fn with_borrow_mut<R>(&'static self, change: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| change(&mut cell.borrow_mut()))
    }

    /// Sets this thread's value and returns the previous one.
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

/// Declares thread-local variables as the standard macro does.
#[doc(hidden)]
#[macro_export]
macro_rules! scenario_local {
    () => {};
    ($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = const $init:block; $($rest:tt)*) => {
        $(#[$attribute])* $visible static $name: $crate::sync::model::Local<$type> =
            $crate::sync::model::Local::new(|| $init);
        $crate::sync::thread_local! { $($rest)* }
    };
    ($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $init:expr; $($rest:tt)*) => {
        $(#[$attribute])* $visible static $name: $crate::sync::model::Local<$type> =
            $crate::sync::model::Local::new(|| $init);
        $crate::sync::thread_local! { $($rest)* }
    };
}
pub use scenario_local as thread_local;
