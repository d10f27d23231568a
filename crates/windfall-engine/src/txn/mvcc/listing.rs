//! Lists of running transactions and read views, to find out what delays others.
//!
//! **Purpose.** The transactions with their age and state, and the read views with versions that purge keeps.
//!
//! **Invariants.** A list is of one moment, except for the background rollbacks, which are queried after that (test:
//! `a_list_shows_the_active_transactions_and_their_states`).
//!
//! **Cost.** Making a list blocks other threads no longer than it takes to copy the table.

use core::time::Duration;

use crate::{ids::TrxId, txn::locks::Isolation};

/// A transaction that has changed or locked something and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionInfo {
    /// The id of the transaction, as in lists of locks.
    pub id: TrxId,
    /// The tag of the transaction; 0 if it has none.
    pub tag: u64,
    /// The time since it got that number: at its first change or lock, or when the database was opened.
    pub age: Duration,
    /// The isolation level; `None` for a call outside of transactions, and for a transaction that a crash has
    /// interrupted. A change of a row's key outside of transactions is one at [`Isolation::ReadCommitted`].
    pub isolation: Option<Isolation>,
    /// The number of rows that it has locked, except those that it has changed and no other waits for.
    pub row_locks: u64,
    /// The number of its changes of rows, also of those that it has undone: what counts at the choice of the victim of
    /// a deadlock. Those of temporary tables count only once it has locked anything, and then those before that by
    /// their undo records, of which a long value or a field with pages of its own has one more. Those before a crash
    /// do not count. It is 0 once the rollback of the transaction was handed over to the background.
    pub changes: u64,
    /// Whether it has changed anything that outlives the process.
    pub has_changes: bool,
    /// The state of the transaction.
    pub state: TransactionState,
}

/// The state of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionState {
    /// The transaction may do more, through its handle or in its own call.
    Open,
    /// The transaction was prepared by this name, and waits for its end.
    Prepared(Vec<u8>),
    /// The transaction is being rolled back in the background.
    RollingBack,
}

/// A read view of the state that was committed at one time. While it exists purge keeps what it may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewInfo {
    /// The time since it was made.
    pub age: Duration,
    /// The number of ids assigned since then, to transactions and statements.
    pub ids_since: u64,
}
