//! Conflicts between a call and other transactions.
//!
//! **Purpose.** A call that changes or locks a row determines whether another transaction blocks it, and waits for that
//! transaction at a point where it holds nothing.
//!
//! **Invariants.** A rollback takes no key latch, so an entry of another transaction is relied on only if that
//! transaction had ended before the entry was read ([`Transactions::read_settled`]). A transaction that has changed an
//! entry and not ended holds an implicit lock on it: the transaction id in the entry says so, at no cost. A waiter
//! makes that lock explicit and queues for it. A blocked call returns [`Stop`], releases its key latches, the table's
//! gate and all page latches, waits ([`Transactions::await_lock`]), and starts again, because what it found may have
//! changed. So while a call waits for a transaction, others can only be waiting for the locks of its own transaction,
//! and the lock table sees every cycle among those.
//!
//! A call from within the source of a value is inside another call: it is refused instead of waiting.

use super::{
    Transactions,
    locks::{LockRequest, RowMode, RowName, Waits},
    trx::Trx,
};
use crate::{
    error::{Error, Owner, Result, RowHolder, UsageError},
    ids::TrxId,
    page::EntryHeader,
    store::Tree,
    sync::is_inside,
};

/// The reason why a call is blocked.
#[derive(Clone, Debug)]
pub enum Blocked {
    /// This transaction has changed the row and has not ended.
    Writer(TrxId, RowName, RowMode),
    /// Others have locked the row.
    Row(RowName, RowMode),
    /// Others have locked a range into which the call would insert a new entry.
    Range(RowName),
    /// Undo has reached its limit.
    Undo,
}

/// Returns the name under which a row, or a key of an index, is locked.
pub(super) fn name_of(tree: &Tree, key: &[u8]) -> RowName {
    RowName { space: tree.space().id(), key: key.into() }
}

/// The reason why a call ends before its work is done.
#[derive(Debug)]
pub enum Stop {
    /// It must wait, and then start again.
    Blocked(Blocked),
    /// It has failed.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Transactions {
    /// Reads an entry until its version is final: its writer is `me`, or had ended before the entry was read. The check
    /// must come first: a writer that ends after the read may have rolled back, and the version that was read is then
    /// gone. If the writer has not ended, returns the writer instead.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read_settled(
        &self,
        me: TrxId,
        mut read: impl FnMut() -> Result<Option<EntryHeader>>,
    ) -> Result<Result<Option<EntryHeader>, TrxId>> {
        let mut ended = None;
        loop {
            let oldest = self.active.oldest();
            let header = read()?;
            let Some(writer) = header.map(|header| header.trx) else { return Ok(Ok(None)) };
            if writer < oldest || writer == me || ended == Some(writer) {
                return Ok(Ok(header));
            }
            if self.active.is_active(writer) {
                return Ok(Err(writer));
            }
            ended = Some(writer);
        }
    }

    /// Waits until the call is no longer blocked. A lock that is acquired belongs to the transaction, which may
    /// [ease](Trx::ease_waits) it if the call fails.
    ///
    /// # Errors
    /// [`LockError`](crate::error::LockError), [`TransactionError`](crate::error::TransactionError); a call from within
    /// another call is refused instead of waiting.
    pub fn await_lock(&self, trx: &mut Trx<'_>, blocked: Blocked, waits: &mut Waits) -> Result<()> {
        let wanted = match blocked {
            Blocked::Undo => return self.await_undo(trx, waits),
            // The call has left its own gate, but is inside the gate of another call.
            _ if is_inside() => {
                let holder = RowHolder::Transaction;
                return Err(UsageError::WaitInCall { owner: Owner::Unknown, holder }.into());
            }
            Blocked::Writer(holder, row, mode) => {
                debug_assert!(holder != trx.id(), "a transaction does not wait for itself");
                let holder = self.active.lock_owner(holder, &self.lock_manager);
                // The holder may end at this point: a yield point, so that a simulation can schedule that.
                self.context.pool.context().env.yield_point();
                let is_explicit =
                    holder.is_some_and(|holder| self.lock_manager.make_explicit(&holder, row.clone()));
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
            trx.note_wait(row, self.lock_manager.held_mode(&lock_owner, row));
        }
        self.acquire_in_call(&lock_owner, wanted, waits)
    }
}
