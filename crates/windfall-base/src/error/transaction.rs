//! Errors of the calls of a transaction.
//!
//! **Purpose.** Reports why a transaction does not carry out a call, and whether it can continue.
//!
//! **Invariants.** After [`TransactionError::Changed`] and [`TransactionError::TableChanged`] the transaction can
//! continue as if the call had not been made (test:
//! `a_strict_snapshot_changes_and_locks_no_table_that_it_does_not_know`). Repeating the call fails again, because the
//! snapshot does not change (test: `a_strict_snapshot_is_refused_only_by_rows_of_its_range`). The transaction can
//! continue after [`TransactionError::UndoFull`], too (test:
//! `a_transaction_that_fills_the_undo_gets_an_error_and_ends_either_way`). After [`TransactionError::ViewEnded`] it can
//! still change rows and read them with locks, unless its snapshot is strict (test: `the_oldest_view_is_ended`).

use super::Owner;
use crate::{ids::TrxId, sync::Arc};

/// Why a transaction did not carry out a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// A strict snapshot does not see the current version of the row.
    #[error("a row of {0} has changed since this transaction's snapshot: roll it back and begin it again")]
    Changed(Owner),
    /// The object of this name was created or truncated after the snapshot.
    #[error(
        "table definition changed: {0} was created or truncated after this transaction's snapshot: end it and begin it again"
    )]
    TableChanged(Owner),
    /// The transaction is read-only.
    #[error("this transaction is read-only: begin one without `read_only` to change or lock rows")]
    ReadOnly,
    /// The transaction was rolled back after an error that left no other choice.
    #[error("this transaction was rolled back ({0}): begin another one, or restart its handle")]
    RolledBack(Arc<str>),
    /// The transaction could not be rolled back at once. The rollback continues in the background until no change is
    /// left.
    #[error(
        "transaction {trx} is being rolled back in the background, because it could not be rolled back at once ({why}): until that is done its rows stay locked"
    )]
    RollingBack {
        /// The transaction.
        trx: TrxId,
        /// The error that prevented the rollback.
        why: Arc<str>,
    },
    /// The undo log has reached its limit, and purge is blocked, or the call had no time left to wait for purge.
    #[error(
        "undo takes {bytes} bytes, and undo_limit is {limit}: end what is old, raise the limit, or try again \
         (what keeps it: {oldest})"
    )]
    UndoFull {
        /// The size of the undo log in bytes, not counting two slices per undo stream.
        bytes: u64,
        /// The limit of that size, in bytes.
        limit: u64,
        /// The oldest transaction with changes and the oldest read view, each with its age, and a check that purge
        /// waits for.
        oldest: Arc<str>,
    },
    /// The read view was ended, because the undo log had exceeded its limit: `UndoLimitAction::EndOldestView`.
    #[error(
        "the read view was ended, because it was the oldest and undo had exceeded undo_limit: begin again, or \
         raise the limit"
    )]
    ViewEnded,
    /// The transaction is prepared.
    #[error("this transaction is prepared: commit it or roll it back")]
    Prepared,
    /// Another prepared transaction has this name.
    #[error(
        "transaction {trx} is prepared as \"{xid}\" already: give this one another name, or end that one"
    )]
    NameTaken {
        /// The name.
        xid: Arc<str>,
        /// The transaction that has this name.
        trx: TrxId,
    },
    /// No prepared transaction has this name.
    #[error("no transaction is prepared as \"{xid}\": it was never prepared, or has ended")]
    NotPrepared {
        /// The name.
        xid: Arc<str>,
    },
    /// The prepared transaction of this name is in use through another handle.
    #[error("transaction {trx}, prepared as \"{xid}\", is in use: end it by its handle, or drop that first")]
    InUse {
        /// The name.
        xid: Arc<str>,
        /// The transaction.
        trx: TrxId,
    },
    /// The transaction has committed.
    #[error("this transaction was committed: begin another one, or restart its handle")]
    Committed,
    /// The transaction is open, and its handle is to begin another one.
    #[error("this transaction has not ended: commit it or roll it back, and then restart its handle")]
    NotEnded,
    /// The cursor or range belongs to a transaction that has ended, and whose handle has begun another one.
    #[error(
        "this cursor or range is of a transaction that has ended: make another one in the present transaction"
    )]
    Former,
    /// Another call of the transaction is in progress.
    #[error("a call of this transaction is in progress: it runs one at a time, and none from within another")]
    Busy,
    /// A statement of the transaction is in progress and may still be undone: a transaction that is prepared, or has
    /// ended, cannot roll back a part of its changes.
    #[error(
        "a statement of this transaction is in progress: end that first, and then prepare the transaction or end it"
    )]
    StatementInProgress,
    /// No statement is in progress that a call has begun.
    #[error("no statement of this transaction was begun by a call and is in progress: begin one first")]
    NoStatement,
    /// There is no savepoint of this name.
    #[error(
        "there is no savepoint {0:?}: it was never set, or was released, or rolled back over, or the statement in \
         progress began after it"
    )]
    NoSavepoint(Arc<str>),
    /// This value is that of no savepoint to which the transaction can roll back now.
    #[error(
        "this savepoint cannot be used: it was released, or rolled back over, or the statement in which it was set was \
         undone, or the statement in progress began after it, or it is that of another transaction: set another one"
    )]
    StaleSavepoint,
    /// The transaction belongs to another database.
    #[error("the transaction belongs to another database: begin one on the database of the table")]
    OtherDatabase,
}
