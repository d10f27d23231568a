//! Locks, events, atomics and counted work: the only access to the machine's primitives.
//!
//! **Purpose.** Every primitive by which threads wait for each other or share data comes from here. So a model checker
//! can replace them (`model`), the lock order can be asserted, and the work of an operation can be counted.
//!
//! **Invariants.** Locks are taken in the order of [`Rank`]; debug builds assert it at every acquisition (checked by
//! `sync/lock.rs::take`). Threads wait for events, and never sleep to poll a condition (test:
//! `the_workspace_keeps_the_house_rules`).

mod allocator;
pub mod drop_mark;
mod event;
mod gate;
mod holders;
mod interrupt;
pub mod latch;
mod lock;
#[cfg(not(feature = "model"))]
mod machine;
#[cfg(feature = "model")]
pub mod model;
mod progress;
mod seldom;
pub mod thread;
pub mod work;

#[cfg(all(test, feature = "model"))]
mod interleavings;

pub use std::sync::{Arc, OnceLock, Weak};

pub use allocator::CountingAllocator;
pub use event::Event;
pub use gate::{Closed, CountedInside, Entered, Gate, Gated, Inside, is_inside, is_nested};
pub use holders::Watchdog;
use holders::{HeldObject, HoldNote};
pub use interrupt::{Interrupt, Interrupted, Interruptible, InterruptibleWait, LongWork, Wake};
pub use lock::{Held, Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, as_another_thread};
pub use machine::atomic;
pub use machine::thread_local;
#[cfg(feature = "model")]
use model as machine;
pub use progress::{Phase, Progress, ReportedWork};
pub use seldom::Seldom;
