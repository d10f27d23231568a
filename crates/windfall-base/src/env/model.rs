//! The environment of a model: its threads wait by event, and the scheduler decides who goes on.
//!
//! **Purpose.** What a scenario of `sync::model` stands on where a part of the engine needs an environment.
//!
//! **Invariants.** The clock moves at each look, so that a run is the same whenever it is replayed. There are no
//! workers: a scenario calls their steps.
//!
//! **May touch.** `error`, `sync`.

use core::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{Env, Kind, Step, Worker};
use crate::{
    error::Result,
    sync::{Arc, Event},
};

/// The environment.
#[derive(Debug, Default)]
pub struct ModelEnv(AtomicU64);

impl Env for ModelEnv {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Relaxed))
    }

    fn random(&self) -> u64 {
        0
    }

    fn spawn(&self, name: &'static str, _kind: Kind, _wake: Arc<Event>, _step: Step) -> Result<Worker> {
        unreachable!("a scenario runs the steps of {name} itself")
    }

    fn wait(&self, event: &Event, ready: &mut dyn FnMut() -> bool) {
        event.wait(ready);
    }

    fn wait_for(&self, event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        event.wait_for(at_most, ready);
    }
}
