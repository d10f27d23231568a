//! The environment of the engine: time, randomness, and the threads of background work.
//!
//! **Purpose.** The product runs on a real clock and real threads. A simulation runs the same code on one thread, where
//! time and the order of background steps come from a seed, so that a failure can be replayed.
//!
//! **Invariants.** A background worker is a step that returns when it should run again (by type). The events for which
//! it may wait depend on its [`WorkerClass`]: in a simulation a wait that only workers of other classes could end
//! panics (test: `a_wait_runs_no_worker_of_a_later_class`). A foreground wait goes through [`Env::wait`], which in a
//! simulation runs steps until the condition holds (test: `a_background_step_may_end_a_wait_in_a_simulation`).
//!
//! **Design.** Each step does a limited amount of work, which the worker's own module states.

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

/// The result of a worker's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is more to do at once.
    Again,
    /// Nothing to do: run again when the worker's event is notified, or after this time.
    Idle(Duration),
    /// The worker has ended.
    Done,
}

/// The class of a worker: it limits the events for which its steps may wait. Each class may wait for more than the one
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerClass {
    /// Serves threads that wait for frames or for log space: it never waits for a page latch.
    Service,
    /// Serves threads that wait for the log: it waits for the system tree's lock, page latches and frames, and for
    /// nothing else.
    Recorder,
    /// Uses the engine like a client, and may wait like one.
    Client,
}

/// One bounded step of background work.
pub type Step = Box<dyn FnMut() -> Next + Send>;

/// A check of a database's invariants, which panics if one is violated. Returns whether the database still exists.
pub type Check = Box<dyn FnMut() -> bool + Send>;

/// Time, randomness and workers.
pub trait Env: Send + Sync + fmt::Debug {
    /// Returns the time since a fixed point; it never decreases.
    fn now(&self) -> Duration;

    /// Returns a random number.
    fn random(&self) -> u64;

    /// Starts a worker. A notification of `wake` ends the pause of an idle worker.
    ///
    /// # Errors
    /// When the system starts no more threads.
    fn spawn(&self, name: &'static str, class: WorkerClass, wake: Arc<Event>, step: Step) -> Result<Worker>;

    /// Waits until `ready` returns true. The thread that makes it true notifies `event`. The caller may hold page
    /// latches, and nothing else; in a simulation only [`WorkerClass::Service`] workers run meanwhile.
    fn wait(&self, event: &Event, ready: &mut dyn FnMut() -> bool);

    /// As [`Env::wait`], for a caller that holds neither a page latch nor the system tree: in a simulation
    /// [`WorkerClass::Recorder`] workers run, too.
    fn wait_unlatched(&self, event: &Event, ready: &mut dyn FnMut() -> bool) {
        self.wait(event, ready);
    }

    /// As [`Env::wait`], but at most this long.
    fn wait_for(&self, event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool);

    /// As [`Env::wait_for`], for a caller that holds nothing that a worker may wait for: in a simulation all workers
    /// run.
    fn wait_unhindered(&self, event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        self.wait_for(event, at_most, ready);
    }

    /// Waits for this long, as [`Env::wait_for`] does.
    fn sleep(&self, time: Duration) {
        self.wait_for(&Event::new(), time, &mut || false);
    }

    /// A yield point between two foreground operations: a simulation may run background steps here.
    fn yield_point(&self) {}

    /// Registers a check of a database's invariants, which only tests do. A simulation runs it at every yield point
    /// until it returns `false` because the database was dropped; a wrapper of another environment forwards it.
    fn at_yield_points(&self, _check: Check) {}
}

/// A running worker. Dropping it asks the worker to stop and waits until it has stopped.
pub struct Worker {
    stop: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Worker {
    /// Returns the handle of a worker; `stop` asks the worker to stop and waits until it has stopped.
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
