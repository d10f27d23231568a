//! The second phase of a two-phase commit, by name.
//!
//! **Purpose.** A coordinator ends a prepared transaction without a handle: it was dropped, or lost in a crash.
//!
//! **Invariants.** A call takes the transaction out of the table of prepared ones (`prepared`), and returns it or
//! removes its name (test: `a_full_disk_leaves_it_prepared_or_lets_it_go`). So one call at a time ends it (checked by
//! `trx/prepared.rs::put_back`), and after a failure it is still prepared (checked by `trx/prepared.rs::take`).

use smallvec::SmallVec;

use super::{manager::Transactions, running::Trx};
use crate::{error::Result, ids::Lsn, sync::Arc, txn::undo::Stream};

/// Takes out a transaction that waits. Returns the streams of the temporary tables that it has changed as well.
fn take<'t>(transactions: &'t Transactions, name: &[u8]) -> Result<(Trx<'t>, SmallVec<[Arc<Stream>; 1]>)> {
    let trx = transactions.prepared().take(name)?;
    let temporary = trx.temporary.iter().map(|(stream, _)| stream.clone()).collect();
    Ok((Trx::resume(transactions, trx), temporary))
}

/// Lets the worker purge what a transaction has left in temporary tables: no handle does so.
fn schedule_purge(transactions: &Transactions, temporary: &[Arc<Stream>]) {
    for stream in temporary {
        transactions.purge().schedule_temporary(stream);
    }
}

/// Commits a transaction that waits. Returns the LSN to wait for, unless nothing was logged.
///
/// # Errors
/// The errors of [`Prepared::take`](super::prepared::Prepared::take). If the log accepts no more records, the
/// transaction continues to wait.
pub fn commit_prepared(transactions: &Transactions, name: &[u8]) -> Result<Option<Lsn>> {
    let (mut trx, temporary) = take(transactions, name)?;
    match trx.commit() {
        Ok(end) => {
            transactions.prepared().remove(name);
            schedule_purge(transactions, &temporary);
            Ok(end)
        }
        Err(error) => {
            transactions.prepared().put_back(name, trx.suspend());
            Err(error)
        }
    }
}

/// A prepared transaction that was rolled back, at once or in the background.
#[derive(Debug)]
pub struct RolledBackPrepared {
    /// The LSN up to which the log must be durable so that recovery does not find the transaction prepared. `None` if
    /// it was not logged.
    pub durable_to: Option<Lsn>,
    /// The result of the rollback.
    pub rollback: Result<()>,
}

/// Rolls back a transaction that waits.
///
/// # Errors
/// The errors of [`Prepared::take`](super::prepared::Prepared::take). On a full disk the transaction continues to wait.
pub fn rollback_prepared(transactions: &Transactions, name: &[u8]) -> Result<RolledBackPrepared> {
    let (mut trx, temporary) = take(transactions, name)?;
    let durable_to = match trx.revoke_prepare() {
        Ok(durable_to) => durable_to,
        Err(error) => {
            transactions.prepared().put_back(name, trx.suspend());
            return Err(error);
        }
    };
    transactions.prepared().remove(name);
    let rollback = trx.rollback().map(drop);
    schedule_purge(transactions, &temporary);
    Ok(RolledBackPrepared { durable_to, rollback })
}
