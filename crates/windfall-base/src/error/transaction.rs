//! What can come of a transaction's calls.
//!
//! **Purpose.** Says why a transaction does not do what was asked, and whether it can go on.
//!
//! **Invariants.** After [`TransactionError::Changed`] and [`TransactionError::TableChanged`] the transaction goes on
//! as if the call had not been made, but to ask again is in vain: its snapshot stays what it is. It goes on after
//! [`TransactionError::UndoFull`], too. After [`TransactionError::ViewEnded`] it can still change rows and read them
//! with locks, unless its snapshot is strict.
//!
//! **May touch.** `ids`, `sync`.

use super::Owner;
use crate::{ids::TrxId, sync::Arc};

/// Why a transaction did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// A strict snapshot does not see the row that is there now.
    #[error("a row of {0} has changed since this transaction's snapshot: roll it back and begin it again")]
    Changed(Owner),
    /// What the name stands for has been made, or truncated, since the snapshot.
    #[error(
        "table definition changed: {0} was made or truncated after this transaction's snapshot: end it and begin it again"
    )]
    TableChanged(Owner),
    /// It only reads.
    #[error("this transaction only reads: begin one without `read_only` to change or lock rows")]
    ReadOnly,
    /// It was taken back after an error that left no other way.
    #[error("this transaction was rolled back ({0}): begin another one")]
    RolledBack(Arc<str>),
    /// What it has changed could not be taken back at once. That goes on in the background, and nothing of it stays.
    #[error(
        "transaction {trx} is being rolled back in the background, for it could not be at once ({why}): until that is done its rows stay locked"
    )]
    RollingBack {
        /// Which.
        trx: TrxId,
        /// What is in the way.
        why: Arc<str>,
    },
    /// Undo takes as much as it may, and purge is held up, or the call had no more time to wait for it.
    #[error(
        "undo takes {bytes} bytes, and undo_limit is {limit}: end what is old, raise the limit, or try again \
         (what keeps it: {oldest})"
    )]
    UndoFull {
        /// What it takes, in bytes: two slices for each stream do not count.
        bytes: u64,
        /// What it may take.
        limit: u64,
        /// The oldest transaction with changes and the oldest view, each with its age, and a check that purge waits
        /// for.
        oldest: Arc<str>,
    },
    /// What was read from was ended, because undo had passed its limit: `AtUndoLimit::EndOldestView`.
    #[error(
        "the view that is read from was ended, for it was the oldest and undo had passed undo_limit: begin anew, or \
         raise the limit"
    )]
    ViewEnded,
    /// It is prepared.
    #[error("this transaction is prepared: commit it or roll it back")]
    Prepared,
    /// Another prepared transaction has this name.
    #[error(
        "transaction {trx} is prepared as \"{xid}\" already: give this one another name, or end that one"
    )]
    NameTaken {
        /// The name.
        xid: Arc<str>,
        /// Whose it is.
        trx: TrxId,
    },
    /// No prepared transaction has this name.
    #[error("no transaction is prepared as \"{xid}\": it was never prepared, or has ended")]
    NotPrepared {
        /// The name.
        xid: Arc<str>,
    },
    /// The prepared transaction of this name is in somebody's hands.
    #[error("transaction {trx}, prepared as \"{xid}\", is in use: end it by its handle, or drop that first")]
    InUse {
        /// The name.
        xid: Arc<str>,
        /// Which it is.
        trx: TrxId,
    },
    /// It has ended.
    #[error("this transaction was committed: begin another one")]
    Committed,
    /// A call of it is under way.
    #[error("a call of this transaction is under way: it does one at a time, and none from within the other")]
    Busy,
    /// A statement of it is under way, which may still fail: what is prepared is not taken back in part.
    #[error("a statement of this transaction is under way: prepare it when that has ended")]
    StatementUnderWay,
    /// There is no savepoint of this name.
    #[error(
        "there is no savepoint {0:?}: it was never set, or was released, or rolled back over, or the statement that is \
         under way began after it"
    )]
    NoSavepoint(Arc<str>),
    /// A read that locks, outside of a transaction.
    #[error("a lock lasts as long as a transaction: begin one, and ask the table `within` it")]
    Outside,
    /// The transaction is one of another database.
    #[error("the transaction belongs to another database: begin one on the database of the table")]
    OtherDatabase,
}
