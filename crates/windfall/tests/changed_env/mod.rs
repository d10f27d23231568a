//! An environment that forwards to another one, except for the functions that a test changes.

use core::{fmt::Debug, time::Duration};
use std::sync::Arc;

use windfall::{
    Result,
    env::{Check, Env, Step, Worker, WorkerClass},
};
use windfall_base::sync::Event;

/// The changes of a test.
pub(crate) trait Change: Debug + Send + Sync {
    fn now(&self, env: &dyn Env) -> Duration {
        env.now()
    }

    /// Returns the step that a worker executes in place of its own.
    fn step(&self, _name: &'static str, step: Step) -> Step {
        step
    }

    fn spawn(
        &self,
        env: &dyn Env,
        name: &'static str,
        class: WorkerClass,
        wake: Arc<Event>,
        step: Step,
    ) -> Result<Worker> {
        env.spawn(name, class, wake, self.step(name, step))
    }

    /// Waits for a lock, or for another event with a timeout.
    fn wait_unhindered(
        &self,
        env: &dyn Env,
        event: &Event,
        at_most: Duration,
        ready: &mut dyn FnMut() -> bool,
    ) {
        env.wait_unhindered(event, at_most, ready);
    }

    fn yield_point(&self, env: &dyn Env) {
        env.yield_point();
    }

    fn at_yield_points(&self, env: &dyn Env, check: Check) {
        env.at_yield_points(check);
    }
}

#[derive(Debug)]
pub(crate) struct Changed<C> {
    pub env: Arc<dyn Env>,
    pub change: C,
}

impl<C: Change> Env for Changed<C> {
    fn now(&self) -> Duration {
        self.change.now(self.env.as_ref())
    }

    fn random(&self) -> u64 {
        self.env.random()
    }

    fn spawn(&self, name: &'static str, class: WorkerClass, wake: Arc<Event>, step: Step) -> Result<Worker> {
        self.change.spawn(self.env.as_ref(), name, class, wake, step)
    }

    fn wait(&self, event: &Event, ready: &mut dyn FnMut() -> bool) {
        self.env.wait(event, ready);
    }

    fn wait_unlatched(&self, event: &Event, ready: &mut dyn FnMut() -> bool) {
        self.env.wait_unlatched(event, ready);
    }

    fn wait_for(&self, event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        self.env.wait_for(event, at_most, ready);
    }

    fn wait_unhindered(&self, event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        self.change.wait_unhindered(self.env.as_ref(), event, at_most, ready);
    }

    fn yield_point(&self) {
        self.change.yield_point(self.env.as_ref());
    }

    fn at_yield_points(&self, check: Check) {
        self.change.at_yield_points(self.env.as_ref(), check);
    }
}
