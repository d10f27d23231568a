//! Whether the database may still write and acknowledge.
//!
//! **Purpose.** After a failed fsync nobody knows what is on disk, and after a panic inside a mini-transaction nobody
//! knows what is in memory. From then on nothing further may be written or acknowledged; nor after the database is closed.
//!
//! **Invariants.** The first failure sticks; it is what everyone is told.
//!
//! **May touch.** `error`, `sync`.

use crate::{
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
}

impl Health {
    /// A healthy state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether an operation may go on.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after the first failure.
    pub fn check(&self) -> Result<()> {
        if self.0.failed.load(SeqCst) { Err(self.error()) } else { Ok(()) }
    }

    /// Whether [`Health::check`] would fail.
    pub fn is_poisoned(&self) -> bool {
        self.0.failed.load(SeqCst)
    }

    /// Stops the database for this reason, unless an earlier one stopped it, and gives the error to return.
    pub fn poison(&self, reason: &str) -> Error {
        if self.0.reason.set(reason.into()).is_ok() && !self.0.closed.load(SeqCst) {
            tracing::error!(reason, "the database stops");
        }
        self.0.failed.store(true, SeqCst);
        self.error()
    }

    /// The database is closed: nothing further is written or acknowledged, in good order.
    pub fn close(&self) {
        self.0.closed.store(true, SeqCst);
        self.0.failed.store(true, SeqCst);
    }

    fn error(&self) -> Error {
        if self.0.closed.load(SeqCst) {
            return Error::Closed;
        }
        Error::Poisoned(self.0.reason.get().cloned().unwrap_or_else(|| "unknown".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
