//! What can come of asking for a lock of a transaction.
//!
//! **Purpose.** Who did not get a lock learns why, who was in the way, and what may be done.
//!
//! **Invariants.** An error holds nothing: the transaction keeps the locks that it had, until it ends.
//!
//! **May touch.** `ids`, `sync`.

use core::{fmt, time::Duration};

use crate::{ids::TrxId, sync::Arc};

/// Why a lock was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody was in the way, and the caller did not want to wait.
    #[error("the lock is not free, for {0} came first: try again when that has ended, or let the call wait")]
    Busy(InTheWay),
    /// The time that the caller would wait has passed.
    #[error(
        "no lock after a wait of {waited:?}, for {in_the_way} came first: try again when that has ended, or wait longer"
    )]
    TimedOut {
        /// Who was in the way at last.
        in_the_way: InTheWay,
        /// How long the caller has waited.
        waited: Duration,
    },
    /// Transactions waited for each other in a circle, and this one was chosen to give way.
    #[error(
        "a deadlock: this transaction and {0} wait for each other in a circle: roll it back and begin it again"
    )]
    Deadlock(InTheWay),
    /// Somebody ended the wait from outside.
    #[error(
        "the wait for a lock was interrupted: the transaction has what it had, and may go on or be rolled back"
    )]
    Interrupted,
}

/// The transactions that were in somebody's way, at most [`InTheWay::MOST`] of them; none where a statement was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTheWay(Arc<[TrxId]>);

impl InTheWay {
    /// So many are named: a list of a thousand helps nobody.
    pub const MOST: usize = 8;

    /// The first of these, holders before those who wait.
    #[doc(hidden)]
    pub fn new(transactions: impl IntoIterator<Item = TrxId>) -> Self {
        let mut first = Vec::new();
        for trx in transactions {
            if first.len() == Self::MOST {
                break;
            }
            if !first.contains(&trx) {
                first.push(trx);
            }
        }
        Self(first.into())
    }

    /// Their ids.
    pub fn ids(&self) -> &[TrxId] {
        &self.0
    }
}

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            [] => f.write_str("another transaction or statement"),
            [one] => write!(f, "transaction {one}"),
            [first @ .., last] => {
                f.write_str("transactions ")?;
                for (n, trx) in first.iter().enumerate() {
                    write!(f, "{}{trx}", if n == 0 { "" } else { ", " })?;
                }
                write!(f, " and {last}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_who_was_in_the_way() {
        let of = |ids: &[u64]| InTheWay::new(ids.iter().map(|id| TrxId(*id)));
        assert_eq!(of(&[7]).to_string(), "transaction 7");
        assert_eq!(of(&[7, 9, 7, 8]).to_string(), "transactions 7, 9 and 8");
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).ids().len(), InTheWay::MOST);
        let error = LockError::TimedOut { in_the_way: of(&[7, 9]), waited: Duration::from_secs(2) };
        let text = error.to_string();
        assert!(text.contains("transactions 7 and 9") && text.contains("2s"), "{text}");
        let text = crate::Error::from(LockError::Deadlock(of(&[7]))).to_string();
        assert!(text.contains("transaction 7") && text.contains("roll it back"), "{text}");
    }
}
