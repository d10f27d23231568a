//! The real clock and real threads.
//!
//! **Purpose.** The environment of the product.
//!
//! **Invariants.** The drop of a worker's handle joins its thread (test:
//! `a_worker_that_panics_is_named_and_the_waiting_thread_is_woken`).

use core::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    time::Duration,
};
use std::{
    hash::{BuildHasher, RandomState},
    thread,
    time::Instant,
};

use super::{Env, Next, Step, Worker, WorkerClass};
use crate::{
    error::{Result, UsageError},
    sync::{Arc, Event, work::in_background},
};

/// The environment of the product.
#[derive(Debug)]
pub struct RealEnv {
    start: Instant,
    chance: RandomState,
    drawn: AtomicU64,
}

impl Default for RealEnv {
    fn default() -> Self {
        Self { start: Instant::now(), chance: RandomState::new(), drawn: AtomicU64::new(0) }
    }
}

impl Env for RealEnv {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn random(&self) -> u64 {
        self.chance.hash_one(self.drawn.fetch_add(1, SeqCst))
    }

    fn spawn(
        &self,
        name: &'static str,
        _class: WorkerClass,
        wake: Arc<Event>,
        mut step: Step,
    ) -> Result<Worker> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_requested, woken) = (stop.clone(), wake.clone());
        let thread = thread::Builder::new().name(format!("windfall-{name}")).spawn(move || {
            while !stop_requested.load(SeqCst) {
                match in_background(&mut step) {
                    Next::Again => {}
                    Next::Done => break,
                    Next::Idle(time) => woken.timed_wait(time),
                }
            }
        });
        let thread =
            thread.map_err(|error| UsageError::NoThread { worker: name, error: error.to_string().into() })?;
        Ok(Worker::new(move || {
            stop.store(true, SeqCst);
            wake.notify();
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
                debug_assert!(
                    Arc::strong_count(&stop) == 1,
                    "the thread of worker {name} runs after its end"
                );
            }
        }))
    }

    fn wait(&self, event: &Event, ready: &mut dyn FnMut() -> bool) {
        event.wait(ready);
    }

    fn wait_for(&self, event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        event.wait_for(at_most, ready);
    }
}
