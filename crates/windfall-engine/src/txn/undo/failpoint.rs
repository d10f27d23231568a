//! A point within changes of rows at which a test makes them fail.
//!
//! **Purpose.** A change, a rollback and the purge of a temporary table pass it before each of their steps.
//!
//! **Invariants.** Only tests, and builds with the feature `testing`, have this module.

use crate::{
    error::{Result, UsageError},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Makes a change fail after some steps.
#[derive(Debug, Default)]
pub(in crate::txn) struct Failpoint(pub(in crate::txn) AtomicU64);

impl Failpoint {
    /// Sets the step, counted from 1, at which the change fails; 0 for none.
    pub(in crate::txn) fn set(&self, step: u64) {
        self.0.store(step, Relaxed);
    }

    /// Fails if this is the step.
    pub(in crate::txn) fn pass(&self) -> Result<()> {
        let left = self.0.load(Relaxed);
        if left > 0 {
            self.0.store(left - 1, Relaxed);
        }
        if left == 1 { Err(UsageError::Other("failpoint".into()).into()) } else { Ok(()) }
    }
}
