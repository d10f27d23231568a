//! Locks, events, atomics and counted work: the only door to the machine's primitives.
//!
//! **Purpose.** Everything that makes threads wait or see each other comes from here, so that a model checker can
//! take its place (`model`), the order of locks can be asserted, and what an operation did can be counted.
//!
//! **Invariants.** Locks are taken in the order of [`Rank`]; debug builds assert it at every acquisition. A wait is
//! by event, never by sleep.
//!
//! **May touch.** Nothing of the engine.

mod allocator;
pub mod bug;
mod event;
mod gate;
mod gated;
mod holders;
pub mod latch;
mod lock;
#[cfg(not(feature = "model"))]
mod machine;
#[cfg(feature = "model")]
pub mod model;
pub mod thread;
pub mod work;

#[cfg(all(test, feature = "model"))]
mod interleavings;

pub use std::sync::{Arc, OnceLock, Weak};

pub use allocator::CountingAllocator;
pub use bug::{Bug, planted};
pub use event::Event;
pub use gate::{Closed, Gate, Inside, is_inside, is_nested};
pub use gated::{Entered, Gated};
pub use holders::Watchdog;
use holders::{Note, What};
pub use lock::{Held, Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, as_another_thread};
pub use machine::atomic;
pub use machine::thread_local;
#[cfg(feature = "model")]
use model as machine;
