//! Snapshots of the transactions that had ended.
//!
//! **Purpose.** Answers for each transaction whether it had ended when the snapshot was made.
//!
//! **Invariants.** All transactions below `low` had ended, none from `high` on had begun, and `active` has those
//! between the two that had not ended (test: `histories_of_the_engine_are_accepted`), in order (checked by
//! `mvcc/snapshot.rs::new`). `low` is the first of these, or `high` (test:
//! `the_first_active_transaction_is_the_lowest_that_had_not_ended`).

use crate::ids::TrxId;

/// The transactions that had ended at one moment. Every read from that moment on may see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// All transactions below this one had ended.
    pub(super) low: TrxId,
    /// No transaction from this one on had begun.
    pub(super) high: TrxId,
    /// The transactions between the two that had not ended, in order.
    pub(super) active: Vec<TrxId>,
}

impl Snapshot {
    /// Returns the snapshot at which these transactions were active, in order, and `high` was the next id.
    pub(in crate::txn) fn new(active: Vec<TrxId>, high: TrxId) -> Self {
        debug_assert!(
            active.is_sorted_by(|a, b| a < b),
            "the active transactions are not in order: {active:?}"
        );
        debug_assert!(
            active.last().is_none_or(|last| *last < high),
            "a transaction is active, and its id is still to be assigned"
        );
        Self { low: active.first().copied().unwrap_or(high), high, active }
    }

    /// Returns whether this transaction and all before it had ended.
    pub(crate) fn covers_all_up_to(&self, trx: TrxId) -> bool {
        trx < self.low
    }

    /// Returns whether the transaction had ended.
    pub fn covers(&self, trx: TrxId) -> bool {
        trx < self.low || trx < self.high && self.active.binary_search(&trx).is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_active_transaction_is_the_lowest_that_had_not_ended() {
        for (active, high) in
            [(vec![], 9), (vec![5], 9), (vec![5, 7], 9), (vec![8], 9), (vec![5, 6, 7, 8], 9)]
        {
            let snapshot = Snapshot::new(active.iter().copied().map(TrxId).collect(), TrxId(high));
            for trx in 4..11 {
                let had_ended = |trx: u64| trx < high && !active.contains(&trx);
                assert_eq!(snapshot.covers(TrxId(trx)), had_ended(trx), "{trx}, {snapshot:?}");
                let all_had = (0..=trx).all(had_ended);
                assert_eq!(snapshot.covers_all_up_to(TrxId(trx)), all_had, "up to {trx}, {snapshot:?}");
            }
        }
    }
}
