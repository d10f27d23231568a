//! The second phase of a two-phase commit, by name.
//!
//! **Purpose.** A coordinator ends a prepared transaction without a handle: it was dropped, or lost in a crash.
//!
//! **Invariants.** A call takes the transaction out of the table of prepared ones (`prepared`), and returns it or
//! removes its name. So one call at a time ends it (checked by `trx/prepared.rs::put_back`), and after a failure it is
//! still prepared (checked by `trx/prepared.rs::take`).

use super::{manager::Transactions, running::Trx};
use crate::{error::Result, ids::Lsn};

/// Commits a transaction that waits. Returns the LSN to wait for, unless nothing was logged.
///
/// # Errors
/// The errors of [`Prepared::take`](super::prepared::Prepared::take). If the log accepts no more records, the
/// transaction continues to wait.
pub fn commit_prepared(transactions: &Transactions, name: &[u8]) -> Result<Option<Lsn>> {
    let mut trx = Trx::resume(transactions, transactions.prepared().take(name)?);
    match trx.commit() {
        Ok(end) => {
            transactions.prepared().remove(name);
            Ok(end)
        }
        Err(error) => {
            transactions.prepared().put_back(name, trx.suspend());
            Err(error)
        }
    }
}

/// Rolls back a transaction that waits. Returns the LSN up to which the log must be durable so that recovery does not
/// find it prepared (`None` if it was not logged), and the result of the rollback.
///
/// # Errors
/// The errors of [`Prepared::take`](super::prepared::Prepared::take). On a full disk the transaction continues to wait.
pub fn roll_back_prepared(transactions: &Transactions, name: &[u8]) -> Result<(Option<Lsn>, Result<()>)> {
    let mut trx = Trx::resume(transactions, transactions.prepared().take(name)?);
    let revoked = match trx.revoke_prepare() {
        Ok(revoked) => revoked,
        Err(error) => {
            transactions.prepared().put_back(name, trx.suspend());
            return Err(error);
        }
    };
    transactions.prepared().remove(name);
    Ok((revoked, trx.rollback().map(drop)))
}
