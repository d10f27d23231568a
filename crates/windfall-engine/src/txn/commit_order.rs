//! The order of commits that a log of the application follows.
//!
//! **Purpose.** A replica, and the log that it reads, must agree with this database on the order of commits. A commit
//! takes a place in the order: it becomes visible, and a callback notes it in that log, before the next one. A snapshot
//! that is taken between two places sees exactly the commits that the log has.
//!
//! **Invariants.** Callbacks run one at a time, in the order in which the commits become visible, and no snapshot that
//! is taken between ordered commits is taken between a commit and its callback (test:
//! `commits_are_noted_in_the_order_in_which_they_become_visible`). A commit that fails is not noted (test:
//! `a_commit_that_fails_is_not_noted`).

use crate::sync::{Mutex, Rank};

#[cfg(all(test, feature = "model"))]
mod interleavings;

/// The order of commits.
#[derive(Debug)]
pub struct CommitOrder(Mutex<()>);

impl Default for CommitOrder {
    fn default() -> Self {
        Self(Mutex::new(Rank::CommitOrder, ()))
    }
}

impl CommitOrder {
    /// Commits at the next place in the order: `commit` makes the changes visible, and `note` gets what it returns.
    ///
    /// # Errors
    /// Those of `commit`.
    pub fn commit<T, E>(&self, commit: impl FnOnce() -> Result<T, E>, note: impl FnOnce(&T)) -> Result<T, E> {
        let _order = self.0.lock();
        let committed = commit()?;
        note(&committed);
        Ok(committed)
    }

    /// Runs `run` between two places.
    pub fn between<T>(&self, run: impl FnOnce() -> T) -> T {
        let _order = self.0.lock();
        run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_fails_is_not_noted() {
        let order = CommitOrder::default();
        let mut noted = 0;
        assert_eq!(order.commit(|| Err::<u8, _>("full"), |_| noted += 1), Err("full"));
        assert_eq!(order.commit(|| Ok::<_, ()>(7), |end| noted += end), Ok(7));
        assert_eq!(order.between(|| noted), 7);
    }
}
