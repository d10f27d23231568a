//! The world around the engine: time, chance, and the threads of background work.
//!
//! **Purpose.** The product runs on a real clock and real threads; a simulation runs the same code on one thread,
//! where time and the order of background steps come from a seed, so that a failure can be replayed.
//!
//! **Invariants.** Every background worker is a bounded step: it does a limited amount of work, never waits for
//! another worker inside a step, and says when it wants to run again. A foreground wait goes through [`Env::wait`],
//! which in a simulation runs steps until the condition holds.
//!
//! **May touch.** `error`, `sync`.

#[cfg(feature = "model")]
mod model;
mod real;

use core::{fmt, time::Duration};

#[cfg(feature = "model")]
pub use model::ModelEnv;
pub use real::RealEnv;

use crate::{
    error::Result,
    sync::{Arc, Event},
};

/// What a worker says after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is more to do at once.
    Again,
    /// Nothing to do: run again when the worker's event is notified, or after this time.
    Idle(Duration),
    /// The worker has ended.
    Done,
}

/// What a worker's steps may wait for: each kind for more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Serves those who wait (for frames, for log space): it never waits for a page latch.
    Service,
    /// Serves those who wait for the log: it waits for the system tree's lock, page latches and frames, and for nothing
    /// else.
    Recorder,
    /// Uses the engine as its clients do, and may wait as they do.
    Tenant,
}

/// One bounded piece of background work.
pub type Step = Box<dyn FnMut() -> Next + Send>;

/// Time, chance and workers.
pub trait Env: Send + Sync + fmt::Debug {
    /// The time since some fixed point; it never goes back.
    fn now(&self) -> Duration;

    /// A random number.
    fn random(&self) -> u64;

    /// Starts a worker. `wake` brings an idle one back before its time.
    ///
    /// # Errors
    /// The system starts no more threads.
    fn spawn(&self, name: &'static str, kind: Kind, wake: Arc<Event>, step: Step) -> Result<Worker>;

    /// Waits until `ready` says so. Whoever makes it so notifies `event`. The caller may hold page latches, and nothing
    /// else; in a simulation only [`Kind::Service`] workers run meanwhile.
    fn wait(&self, event: &Event, ready: &mut dyn FnMut() -> bool);

    /// As [`Env::wait`], for a caller who holds neither a page latch nor the system tree: in a simulation
    /// [`Kind::Recorder`] workers run, too.
    fn wait_unlatched(&self, event: &Event, ready: &mut dyn FnMut() -> bool) {
        self.wait(event, ready);
    }

    /// As [`Env::wait`], but not longer than this.
    fn wait_for(&self, event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool);

    /// As [`Env::wait_for`], for a caller who holds nothing that a worker may want: in a simulation all of them run.
    fn wait_unhindered(&self, event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        self.wait_for(event, at_most, ready);
    }

    /// A point between two operations of the foreground: a simulation may run background steps here.
    fn breathe(&self) {}
}

/// A running worker. Dropping it asks the worker to stop and waits until it has.
pub struct Worker {
    stop: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Worker {
    /// A worker that `stop` asks to stop and waits for.
    pub fn new(stop: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { stop: Some(Box::new(stop)) }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop();
        }
    }
}
