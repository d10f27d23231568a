//! A wait in the lock table.
//!
//! **Purpose.** Waits until a request that was enqueued has an outcome, and tells the observer, if there is one.
//!
//! **Invariants.** A wait that was enqueued is ended once, also by a panic (tests:
//! `a_panic_during_a_wait_in_turns_ends_it`, `a_panic_of_an_observer_ends_the_wait`). The time of callbacks counts as
//! time of the wait (test: `the_time_of_a_callback_counts`).

use core::time::Duration;
use std::collections::HashSet;

use rustc_hash::FxBuildHasher;

use super::{
    LockManager,
    observer::{LockWaitObserver, ObservedWait, WaitOutcome},
    owner::LockOwner,
    request::{LockRequest, LockTimeout},
};
use crate::{
    error::LockError,
    sync::{Arc, InterruptibleWait},
};

/// A wait of this length is worth an event.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// A wait that is ended even if a callback fails or panics: others would wait for it forever otherwise.
pub(super) struct EnqueuedWait<'a> {
    pub locks: &'a LockManager,
    pub me: &'a Arc<LockOwner>,
    began: Duration,
    /// What the observer was given last. `None` without an observer, and if the wait has ended at once.
    observed: Option<ObservedWait>,
    has_ended: bool,
}

impl LockManager {
    /// Enqueues a request, and announces the wait to the observer. Returns `None` if the request was granted.
    ///
    /// # Errors
    /// [`LockError::Interrupted`], if it was interrupted before, or waits are stopped.
    pub(super) fn enqueue<'a>(
        &'a self,
        me: &'a Arc<LockOwner>,
        wanted: LockRequest,
        began: Duration,
    ) -> Result<Option<EnqueuedWait<'a>>, LockError> {
        let enqueued = self.wait_step(|step| -> Result<_, LockError> {
            let is_granted = step.grant_or_enqueue(me, wanted, began)?;
            Ok((!is_granted).then(|| self.observer.as_ref().and_then(|_| step.take_report(me))))
        })?;
        let Some(observed) = enqueued else { return Ok(None) };
        let wait = EnqueuedWait { locks: self, me, began, observed, has_ended: false };
        wait.notify(|observer, wait| observer.wait_begins(wait));
        Ok(Some(wait))
    }
}

impl EnqueuedWait<'_> {
    /// Waits until the wait is resolved, is interrupted, or has timed out.
    pub(super) fn last(&mut self, lock_timeout: LockTimeout, thread: &InterruptibleWait) {
        let (me, env) = (self.me, &self.locks.env);
        let mut is_over = || me.is_resolved() || me.is_outdated() || thread.is_interrupted();
        loop {
            let mut is_late = false;
            match lock_timeout {
                LockTimeout::AtMost(time) => {
                    let left = time.saturating_sub(env.now().saturating_sub(self.began));
                    env.wait_unhindered(me.event(), left, &mut is_over);
                    is_late = left.is_zero();
                }
                LockTimeout::NoWait | LockTimeout::Forever => env.wait(me.event(), &mut is_over),
            }
            if is_late || thread.is_interrupted() || !self.report_change() {
                return;
            }
        }
    }

    /// Tells the observer which transactions have come into the way. Returns whether the wait was marked as outdated
    /// and goes on.
    pub(super) fn report_change(&mut self) -> bool {
        if !self.me.is_outdated() {
            return false;
        }
        let (me, Some(before)) = (self.me, self.observed.take()) else { return false };
        let Some(now) = self.locks.take_report(me) else {
            self.observed = Some(before);
            return false;
        };
        let known: HashSet<_, FxBuildHasher> = before.blockers.iter().map(|party| party.trx).collect();
        let has_new = now.blockers.iter().any(|party| !known.contains(&party.trx));
        self.observed = Some(now);
        if has_new {
            self.notify(|observer, wait| observer.blockers_changed(wait));
        }
        true
    }

    /// Ends the wait, because its outcome is known, or it was interrupted or has timed out. Returns the outcome.
    pub(super) fn end(mut self, is_interrupted: bool) -> Result<(), LockError> {
        self.leave(is_interrupted)
    }

    fn leave(&mut self, is_interrupted: bool) -> Result<(), LockError> {
        let (now, me) = (self.locks.env.now(), self.me);
        let outcome = self.locks.end_wait(me, self.began, now, is_interrupted);
        self.has_ended = true;
        if let Err(LockError::Deadlock(others)) = &outcome {
            let others = others.ids();
            tracing::info!(
                target: "windfall::locks",
                trx = me.id().0, ?others, "a deadlock is broken: this transaction must roll back",
            );
        }
        let waited = now.saturating_sub(self.began);
        if waited >= LONG_WAIT {
            let is_granted = outcome.is_ok();
            tracing::info!(
                target: "windfall::locks",
                trx = me.id().0, ms = waited.as_millis() as u64, is_granted, "a long wait for a lock has ended",
            );
        }
        self.notify(|observer, wait| observer.wait_ended(wait, WaitOutcome::of(&outcome)));
        outcome
    }

    fn notify(&self, callback: impl FnOnce(&dyn LockWaitObserver, &ObservedWait)) {
        if let Some((observer, wait)) = self.locks.observer.as_ref().zip(self.observed.as_ref()) {
            observer.call(|observer| callback(observer, wait));
        }
    }
}

impl Drop for EnqueuedWait<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // A lock that was granted meanwhile is released with the others.
            let _ = self.leave(true);
        }
    }
}
