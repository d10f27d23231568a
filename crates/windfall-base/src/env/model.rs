//! The environment of a model: its threads wait by event, and the scheduler decides which one continues.
//!
//! **Purpose.** The environment that a scenario of `sync::model` uses where a part of the engine needs one.
//!
//! **Invariants.** The clock counts its reads, so that a replayed run is the same (test: `the_clock_counts_its_reads`).
//! No worker runs (test: `a_worker_is_refused`): a scenario calls the steps itself.

use core::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{Env, Step, Worker, WorkerClass};
use crate::{
    error::Result,
    sync::{Arc, Event},
};

/// The environment of a model.
#[derive(Debug, Default)]
pub struct ModelEnv(AtomicU64);

impl Env for ModelEnv {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Relaxed))
    }

    fn random(&self) -> u64 {
        0
    }

    fn spawn(
        &self,
        name: &'static str,
        _class: WorkerClass,
        _wake: Arc<Event>,
        _step: Step,
    ) -> Result<Worker> {
        unreachable!("a scenario runs the steps of {name} itself")
    }

    fn wait(&self, event: &Event, ready: &mut dyn FnMut() -> bool) {
        event.wait(ready);
    }

    fn wait_for(&self, event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        event.wait_for(at_most, ready);
    }
}
