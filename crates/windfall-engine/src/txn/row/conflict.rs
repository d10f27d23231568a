//! Conflicts between a call and other transactions.
//!
//! **Purpose.** A call that changes or locks a row determines whether another transaction blocks it, and waits for that
//! transaction at a point where it holds nothing.
//!
//! **Invariants.** A rollback takes no key latch, so an entry of another transaction is relied on only if that
//! transaction had ended before the entry was read ([`Active::read_final`]). A transaction that has changed an entry
//! and not ended holds an implicit lock on it: the transaction id in the entry represents it, at no cost. A waiter
//! makes that lock explicit and queues for it. A blocked call returns [`Stop`], releases its key latches, the table's
//! gate and all page latches, waits ([`await_lock`]), and starts again, because what it found may have changed. So
//! while a call waits for a transaction, others can only be waiting for the locks of its own transaction, and the lock
//! table finds every cycle among those.
//!
//! A call from within the source of a value is inside another call: it is refused instead of waiting.
//!
//! [`Active::read_final`]: crate::txn::mvcc::Active::read_final

use crate::{
    error::{Error, Owner, Result, RowHolder, UsageError},
    ids::TrxId,
    sync::is_inside,
    txn::{
        locks::{LockRequest, RowMode, RowName, Waits},
        trx::Trx,
    },
};

/// The reason why a call is blocked.
#[derive(Clone, Debug)]
pub enum Blocked {
    /// Another transaction has changed the row and has not ended.
    Writer(TrxId, RowName, RowMode),
    /// Others have locked the row.
    Row(RowName, RowMode),
    /// Others have locked a range into which the call would insert a new entry.
    Range(RowName),
    /// Undo has reached its limit.
    Undo,
}

/// The reason why a call ends before its work is done.
#[derive(Debug)]
pub enum Stop {
    /// The call must wait, and then start again.
    Blocked(Blocked),
    /// The call has failed.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Waits until the call is no longer blocked. A lock that is acquired belongs to the transaction, which may
/// [downgrade](Trx::downgrade_waits) it if the call fails.
///
/// # Errors
/// [`LockError`](crate::error::LockError), [`TransactionError`](crate::error::TransactionError); a call from within
/// another call is refused instead of waiting.
fn await_lock(trx: &mut Trx<'_>, blocked: Blocked, waits: &mut Waits) -> Result<()> {
    let transactions = trx.transactions();
    let locks = transactions.lock_manager();
    let wanted = match blocked {
        Blocked::Undo => return transactions.undo_limit().await_room(|| trx.lock_owner(), waits),
        // The call has left its own gate, but is inside the gate of another call.
        _ if is_inside() => {
            let holder = RowHolder::Transaction;
            return Err(UsageError::WaitInCall { owner: Owner::Unknown, holder }.into());
        }
        Blocked::Writer(holder, row, mode) => {
            debug_assert!(Some(holder) != trx.id(), "a transaction does not wait for itself");
            let holder = transactions.active().lock_owner(holder, locks);
            // The holder may end at this point: a yield point, so that a simulation can schedule that.
            transactions.pool().context().env.yield_point();
            let is_explicit = holder.is_some_and(|holder| locks.make_explicit(&holder, row.clone()));
            // If it has ended there is nothing to wait for.
            if !is_explicit {
                return Ok(());
            }
            LockRequest::Row(row, mode)
        }
        Blocked::Row(row, mode) => LockRequest::Row(row, mode),
        Blocked::Range(row) => LockRequest::Insert(row),
    };
    let lock_owner = trx.lock_owner()?;
    if let LockRequest::Row(row, _) = &wanted {
        trx.note_wait(row, locks.held_mode(&lock_owner, row));
    }
    transactions.acquire_in_call(&lock_owner, wanted, waits)
}

/// Takes the outcome of an attempt of a call. If the call was blocked, waits until it no longer is, and returns `None`:
/// it must begin again.
///
/// # Errors
/// The failure of the attempt; those of [`await_lock`].
pub fn wait_if_blocked<T>(
    trx: &mut Trx<'_>,
    attempted: Result<T, Stop>,
    waits: &mut Waits,
) -> Result<Option<T>> {
    match attempted {
        Ok(done) => Ok(Some(done)),
        Err(Stop::Failed(error)) => Err(error),
        Err(Stop::Blocked(blocked)) => await_lock(trx, blocked, waits).map(|()| None),
    }
}
