//! Checks of the invariants of the transaction layer, for simulations.
//!
//! **Purpose.** As `buffer::invariants`, for what this layer adds. Each part checks the invariants that its own module
//! documents.
//!
//! **Invariants.** A violated invariant fails a simulation at its next yield point (test:
//! `a_simulation_finds_a_violated_invariant_at_its_next_yield_point`).

use super::Transactions;
use crate::sync::Arc;

impl Transactions {
    /// Has the simulation, if there is one, check this layer at every yield point.
    pub(crate) fn check_at_yield_points(self: &Arc<Self>) {
        let transactions = Arc::downgrade(self);
        let check = move || {
            let Some(transactions) = transactions.upgrade() else { return false };
            // A stopped database may have stopped in the middle of a change.
            if transactions.pool().context().health.check().is_ok() {
                transactions.check_invariants();
            }
            true
        };
        self.pool().context().env.at_yield_points(Box::new(check));
    }

    /// Checks the table of active transactions, the lock table, the background rollbacks, and the progress of purge.
    ///
    /// # Panics
    /// An invariant is violated.
    fn check_invariants(&self) {
        self.active().check_invariants();
        self.lock_manager().check_invariants();
        self.rollbacks().check_invariants();
        for stream in self.streams().all() {
            stream.check_invariants();
        }
    }
}
