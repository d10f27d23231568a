//! Errors of requests for transactional locks.
//!
//! **Purpose.** The error for a lock that was not granted names the reason, the blocking transactions and the possible
//! remedies.
//!
//! **Invariants.** An error holds nothing (by type): the transaction keeps its locks until it ends.

use core::{fmt, time::Duration};

use crate::{
    ids::TrxId,
    sync::{Arc, Interrupted},
};

/// Why a lock was not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another lock owner blocks the request, and the request must not wait.
    #[error("{}", busy(.0))]
    Busy(Blockers),
    /// The caller's lock timeout has expired.
    #[error("lock wait timeout exceeded after {waited:?}: {}", timed_out(.blockers))]
    TimedOut {
        /// The blockers when the timeout expired.
        blockers: Blockers,
        /// The time that the caller has waited.
        waited: Duration,
    },
    /// Transactions waited for each other in a cycle, and this one was chosen as the deadlock victim.
    #[error("a deadlock: this transaction and {0} wait for each other: it was rolled back, begin it again")]
    Deadlock(Blockers),
    /// Another thread interrupted the call: a wait, or work that takes long.
    #[error(
        "another thread interrupted the call, which has changed no row: once the interrupt is withdrawn seek again, begin \
         the scan, the load or the statement again, or roll back"
    )]
    Interrupted,
}

#[doc(hidden)]
impl From<Interrupted> for LockError {
    fn from(_: Interrupted) -> Self {
        Self::Interrupted
    }
}

fn busy(blockers: &Blockers) -> String {
    if blockers.are_calls() {
        return format!("{CALLS_IN_PROGRESS}: try again, or let the call wait");
    }
    let hint = blockers.hint();
    format!(
        "the lock is held or requested by {blockers}: try again when that has ended, or let the call wait{hint}"
    )
}

fn timed_out(blockers: &Blockers) -> String {
    if blockers.are_calls() {
        return format!("{CALLS_IN_PROGRESS}; try again, or wait longer");
    }
    let hint = blockers.hint();
    format!("it is held or requested by {blockers}; try again when that has ended, or wait longer{hint}")
}

/// What a lock on a whole table waits for before it is requested.
const CALLS_IN_PROGRESS: &str =
    "calls in progress on the table, such as a long value that is written, have not ended in time";

/// The transactions that blocked a request, at most [`Blockers::MAX_NAMED`] of them; empty if a statement, or calls in
/// progress on a table that is locked as a whole, blocked it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blockers {
    named: Arc<Named>,
    own: Option<TrxId>,
}

/// The transactions that are named; behind the first `count` entries there is nothing.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    count: usize,
    ids: [TrxId; Blockers::MAX_NAMED],
    tags: [u64; Blockers::MAX_NAMED],
    are_calls: bool,
}

impl Blockers {
    /// The maximum number of transactions named: a longer list does not help the reader.
    pub const MAX_NAMED: usize = 8;

    /// Keeps the first distinct ids with their tags, up to [`Blockers::MAX_NAMED`]: the caller passes holders before
    /// waiters.
    #[doc(hidden)]
    pub fn new(transactions: impl IntoIterator<Item = (TrxId, u64)>) -> Self {
        let (ids, tags) = ([TrxId(0); Self::MAX_NAMED], [0; Self::MAX_NAMED]);
        let mut named = Named { count: 0, ids, tags, are_calls: false };
        for (trx, tag) in transactions {
            if named.count == Self::MAX_NAMED {
                break;
            }
            if !named.ids[..named.count].contains(&trx) {
                (named.ids[named.count], named.tags[named.count]) = (trx, tag);
                named.count += 1;
            }
        }
        Self { named: Arc::new(named), own: None }
    }

    /// Returns those of a request that calls in progress on a table have blocked: they have no transaction that others
    /// could wait for.
    #[doc(hidden)]
    pub fn calls() -> Self {
        let (ids, tags) = ([TrxId(0); Self::MAX_NAMED], [0; Self::MAX_NAMED]);
        Self { named: Arc::new(Named { count: 0, ids, tags, are_calls: true }), own: None }
    }

    fn are_calls(&self) -> bool {
        self.named.are_calls
    }

    /// Sets the result of [`Blockers::own`].
    #[doc(hidden)]
    #[must_use]
    pub fn with_own(self, own: Option<TrxId>) -> Self {
        Self { own, ..self }
    }

    /// Returns the ids of the transactions.
    pub fn ids(&self) -> &[TrxId] {
        &self.named.ids[..self.named.count]
    }

    /// Returns the tags of the transactions, in the order of their ids ([`Blockers::ids`]); 0 for one without a tag.
    pub fn tags(&self) -> &[u64] {
        &self.named.tags[..self.named.count]
    }

    /// Returns the transaction whose lock blocked a call outside of transactions, if the last call of that transaction
    /// was made by the same thread: this call may have been meant to be part of it.
    pub fn own(&self) -> Option<TrxId> {
        self.own
    }

    /// Returns the part of an error that says what to do if the call was meant to be part of a transaction.
    fn hint(&self) -> String {
        self.own.map_or_else(String::new, |trx| {
            format!(
                ". The last call of transaction {trx} was made by this thread: if this one belongs to it, make it on \
                 `Transaction::table`, and a statement on a table by `DdlGroup::commit_in`"
            )
        })
    }
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ids() {
            [] if self.are_calls() => f.write_str("calls in progress on the table"),
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
    fn an_error_names_the_blocking_transactions() {
        let of = |ids: &[u64]| Blockers::new(ids.iter().map(|id| (TrxId(*id), 10 * id)));
        assert_eq!(of(&[7]).to_string(), "transaction 7");
        assert_eq!(of(&[7, 9, 7, 8]).to_string(), "transactions 7, 9 and 8");
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).ids().len(), Blockers::MAX_NAMED);
        assert_eq!((of(&[]).tags(), of(&[7, 9, 7, 8]).tags()), (&[][..], &[70, 90, 80][..]));
        let error = LockError::TimedOut { blockers: of(&[7, 9]), waited: Duration::from_secs(2) };
        let text = error.to_string();
        assert!(text.contains("transactions 7 and 9") && text.contains("2s"), "{text}");
        let own = of(&[7, 9]).with_own(Some(TrxId(9)));
        for error in [
            LockError::Busy(own.clone()),
            LockError::TimedOut { blockers: own, waited: Duration::from_secs(2) },
        ] {
            let text = error.to_string();
            assert!(text.contains("last call of transaction 9 was made by this thread"), "{text}");
            assert!(text.contains("Transaction::table") && text.contains("transactions 7 and 9"), "{text}");
        }
        let busy = LockError::Busy(Blockers::calls());
        let timed_out = LockError::TimedOut { blockers: Blockers::calls(), waited: Duration::from_secs(2) };
        for text in [busy.to_string(), timed_out.to_string()] {
            assert!(
                text.contains("calls in progress on the table") && !text.contains("transaction"),
                "{text}"
            );
        }
        assert!(LockError::Busy(of(&[])).to_string().contains("another transaction or statement"));
        let text = crate::Error::from(LockError::Deadlock(of(&[7]))).to_string();
        assert!(text.contains("transaction 7") && text.contains("it was rolled back"), "{text}");
    }
}
