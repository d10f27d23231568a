//! Checks of the invariants of the transaction layer, for simulations.
//!
//! **Purpose.** See `engine::invariants`.
//!
//! **Invariants.** Each part checks the invariants that its own module documents.

use super::Transactions;

impl Transactions {
    /// Checks the table of active transactions, the lock table, and the progress of purge.
    ///
    /// # Panics
    /// An invariant is violated.
    pub fn check_invariants(&self) {
        self.active().check_invariants();
        self.lock_manager().check_invariants();
        for stream in self.streams().all() {
            stream.check_invariants();
        }
    }
}
