//! Conflicts between a call and other transactions.
//!
//! **Purpose.** A call that changes or locks a row determines whether another transaction blocks it, and waits for that
//! transaction at a point where it holds nothing.
//!
//! **Invariants.** A rollback takes no key latch, so an entry of another transaction is relied on only if that
//! transaction had ended before the entry was read ([`Active::read_final`](crate::txn::mvcc::Active::read_final))
//! (test: `rows_and_entries_stay_one_under_contention`). A transaction that has changed an entry and not ended holds an
//! implicit lock on it: the transaction id in the entry represents it, at no cost (test:
//! `a_lock_timeout_fails_the_call_but_not_the_transaction`). A waiter makes that lock explicit and queues for it (test:
//! `a_lock_timeout_fails_the_call_but_not_the_transaction`). A blocked call returns [`Stop`], releases its key latches,
//! the table's gate (test: `no_money_is_made_or_lost`) and all page latches (checked by `sync/lock.rs::take`), waits,
//! and starts again ([`retry`]), because what it found may have changed. So while a call waits for a transaction,
//! others can only be waiting for the locks of its own transaction, and the lock table finds every cycle among those.
//!
//! A call from within the source of a value is inside another call: it is refused instead of waiting (test:
//! `a_call_from_within_a_source_waits_for_no_lock`).

use crate::{
    error::{Error, LockError, Owner, Result, RowHolder, UsageError},
    ids::{SpaceId, TrxId},
    sync::is_inside,
    txn::{
        locks::{LockRequest, LockTimeout, OwnerOptions, RowMode, RowName, TableMode, Waits},
        trx::{Suspended, Transactions, Trx},
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
    /// Others have locked the whole table, which a call outside of transactions would change.
    Table(SpaceId),
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
/// [`LockError`], [`TransactionError`](crate::error::TransactionError); a call from within another call is refused
/// instead of waiting.
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
        Blocked::Table(space) => LockRequest::Table(space, TableMode::IntentionExclusive),
    };
    let lock_owner = trx.lock_owner()?;
    if let LockRequest::Row(row, _) = &wanted {
        trx.note_wait(row, locks.held_mode(&lock_owner, row.space, &row.key));
    }
    transactions.acquire_in_call(&lock_owner, wanted, waits)
}

/// A call that changes or locks a row: it makes attempts until one is not blocked ([`retry`]).
pub trait Attempts<'t> {
    /// Whether a deadlock is no error of the call, because the call is the only one of its transaction.
    const RESTARTS_AFTER_DEADLOCK: bool;

    /// Returns the transaction of the call.
    fn trx(&mut self) -> &mut Trx<'t>;

    /// Returns the waits of the call so far.
    fn waits(&self) -> Waits;

    /// Replaces the waits of the call, after one more.
    fn set_waits(&mut self, waits: Waits);
}

/// The only call of a transaction, which changes one row.
#[derive(Debug)]
pub struct SingleCall<'t> {
    /// The transaction.
    pub trx: Trx<'t>,
    waits: Waits,
}

impl<'t> SingleCall<'t> {
    /// Begins a transaction and its call. It is the victim of deadlocks with other transactions: to start again costs
    /// it nothing.
    pub fn new(transactions: &'t Transactions, lock_timeout: LockTimeout) -> Self {
        let options =
            OwnerOptions { deadlock_priority: OwnerOptions::MIN_PRIORITY, ..OwnerOptions::default() };
        let trx = Trx::resume(transactions, Suspended::new(options).of_single_call());
        Self { trx, waits: Waits::new(lock_timeout) }
    }
}

impl<'t> Attempts<'t> for SingleCall<'t> {
    const RESTARTS_AFTER_DEADLOCK: bool = true;

    fn trx(&mut self) -> &mut Trx<'t> {
        &mut self.trx
    }

    fn waits(&self) -> Waits {
        self.waits
    }

    fn set_waits(&mut self, waits: Waits) {
        self.waits = waits;
    }
}

/// Repeats the attempt of a call until it has an outcome. An attempt that was blocked is repeated after a wait; one
/// that returns `None`, because the table was truncated, at once.
///
/// # Errors
/// The call's changes and its locks are then still in the transaction: the caller rolls back to the start of the call
/// and [downgrades](Trx::downgrade_waits) its waits, or ends the transaction. The failure of an attempt; those of
/// [`await_lock`]; [`TransactionError::ViewEnded`].
///
/// [`TransactionError::ViewEnded`]: crate::error::TransactionError::ViewEnded
pub fn retry<'t, C: Attempts<'t>, T>(
    call: &mut C,
    mut attempt: impl FnMut(&mut C) -> Result<Option<T>, Stop>,
) -> Result<T> {
    loop {
        let attempted = attempt(call);
        // Check after the attempt as well, whatever its result: once the view is ended, a row that is missing may have
        // been purged.
        let checked = call.trx().check_strict();
        let done = match (attempted, checked) {
            (Err(Stop::Blocked(blocked)), _) => {
                let mut waits = call.waits();
                let waited = await_lock(call.trx(), blocked, &mut waits);
                call.set_waits(waits);
                waited.map(|()| None)
            }
            (Ok(_) | Err(Stop::Failed(_)), Err(ended)) => Err(ended),
            (Err(Stop::Failed(error)), Ok(())) => Err(error),
            (Ok(done), Ok(())) => Ok(done),
        };
        match done {
            Ok(Some(done)) => return Ok(done),
            Ok(None) => {}
            // The call has changed nothing yet, and starts again without its locks.
            Err(Error::Lock(LockError::Deadlock(_))) if C::RESTARTS_AFTER_DEADLOCK => {
                call.trx().release_unchanged();
            }
            Err(error) => return Err(error),
        }
    }
}
