//! Whether the database may still write and acknowledge.
//!
//! **Purpose.** After a failed fsync the state on disk is unknown, and after a panic inside a mini-transaction the
//! state in memory is unknown. From then on, and after the database is closed, nothing further may be written or
//! acknowledged. The loss of a background worker stops the database, too: otherwise other threads would wait for it
//! silently.
//!
//! **Invariants.** The first failure is kept and returned to every caller (test: `the_first_failure_sticks`). Waiting
//! threads are woken, and if a worker's panic poisons the database while it unwinds, the panic is reported as the
//! reason (test: `a_worker_that_panics_is_named_and_the_waiting_thread_is_woken`).

use core::{any::Any, fmt, panic::AssertUnwindSafe};
use std::panic::{catch_unwind, resume_unwind};

use crate::{
    env::Step,
    error::{Error, Result},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// The health of a database. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<State>);

#[derive(Debug, Default)]
struct State {
    failed: AtomicBool,
    closed: AtomicBool,
    reason: OnceLock<Arc<str>>,
    /// The first panic of a worker in a healthy database: the worker and the message.
    panicked: OnceLock<Arc<str>>,
    on_stop: OnceLock<StopCallback>,
}

/// The callback that wakes waiting threads.
struct StopCallback(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for StopCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StopCallback")
    }
}

impl Health {
    /// Returns a healthy state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks that an operation may continue.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after the first failure.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.0.failed.load(SeqCst) { Err(self.error()) } else { Ok(()) }
    }

    /// Returns whether [`Health::check`] would fail.
    pub fn is_poisoned(&self) -> bool {
        self.0.failed.load(SeqCst)
    }

    /// Stops the database for this reason, unless an earlier failure stopped it, and returns the error to report.
    pub fn poison(&self, reason: &str) -> Error {
        if self.0.reason.set(reason.into()).is_ok() && !self.0.closed.load(SeqCst) {
            tracing::error!(target: "windfall::engine", reason, "the database stops");
        }
        self.0.failed.store(true, SeqCst);
        if let Some(callback) = self.0.on_stop.get() {
            (callback.0)();
        }
        self.error()
    }

    /// Registers the callback that wakes waiting threads when the database stops. It may be called under any lock. Only
    /// the first registration counts.
    pub fn when_stopped(&self, callback: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.on_stop.set(StopCallback(Box::new(callback)));
    }

    /// Wraps a worker's steps so that a panic stops the database: no other thread would do the worker's work.
    pub fn watch(&self, name: &'static str, mut step: Step) -> Step {
        let health = self.clone();
        Box::new(move || {
            let was_well = !health.is_poisoned();
            catch_unwind(AssertUnwindSafe(&mut step)).unwrap_or_else(|panic| {
                let what = format!("the background worker {name} has panicked: {}", panic_message(&*panic));
                if was_well {
                    let _ = health.0.panicked.set(what.as_str().into());
                }
                health.poison(&what);
                resume_unwind(panic)
            })
        })
    }

    /// Marks the database as closed without a failure: nothing further is written or acknowledged.
    pub fn close(&self) {
        self.0.closed.store(true, SeqCst);
        self.0.failed.store(true, SeqCst);
    }

    fn error(&self) -> Error {
        if self.0.closed.load(SeqCst) {
            return Error::Closed;
        }
        let reason = self.0.panicked.get().or(self.0.reason.get());
        debug_assert!(reason.is_some(), "a failure is reported and its reason is not kept");
        Error::Poisoned(reason.cloned().unwrap_or_else(|| "unknown".into()))
    }
}

/// Returns a panic's message.
#[doc(hidden)]
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        env::{Env, Next, RealEnv, WorkerClass},
        sync::Event,
    };

    #[test]
    fn the_first_failure_sticks() {
        let health = Health::new();
        assert!(health.check().is_ok());
        health.poison("fsync failed");
        health.poison("later");
        assert!(health.clone().check().unwrap_err().to_string().contains("fsync failed"));
        let health = Health::new();
        health.close();
        assert!(matches!(health.check(), Err(Error::Closed)));
    }

    #[test]
    fn a_worker_that_panics_is_named_and_the_waiting_thread_is_woken() {
        let (health, woken) = (Health::new(), Arc::new(Event::new()));
        let event = woken.clone();
        health.when_stopped(move || event.notify());
        let env = RealEnv::default();
        let ill = health.clone();
        let step = move || {
            // An unfinished mini-transaction does this.
            ill.poison("a trace of it");
            panic!("a reason")
        };
        let worker = env
            .spawn("test", WorkerClass::Service, Arc::new(Event::new()), health.watch("test", Box::new(step)))
            .unwrap();
        woken.wait(|| health.is_poisoned());
        drop(worker);
        let error = health.check().unwrap_err().to_string();
        assert!(error.contains("test has panicked: a reason"), "{error}");
    }

    #[test]
    fn a_panic_after_the_end_is_not_its_reason() {
        let health = Health::new();
        health.poison("fsync failed");
        let mut step = health.watch("test", Box::new(|| panic!("a consequence")));
        assert!(catch_unwind(AssertUnwindSafe(&mut step)).is_err());
        assert!(health.check().unwrap_err().to_string().contains("fsync failed"));
        let mut calm = Health::new().watch("test", Box::new(|| Next::Done));
        assert_eq!(calm(), Next::Done);
    }
}
