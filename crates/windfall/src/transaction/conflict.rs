//! Who is in whose way.
//!
//! **Purpose.** A call that changes or locks a row finds out whether another transaction keeps it from that, and waits
//! for it where it holds nothing.
//!
//! **Invariants.** A rollback takes no turn at a row, so what a call finds of another transaction counts only if that
//! had ended before ([`Transactions::read_settled`]). Who has changed an entry and not ended has it locked: the entry's
//! transaction says so, and costs nothing. Who is to wait for him makes that lock explicit and queues up behind it. A
//! call says that it is blocked by [`Stop`], gives back its turn at the row, the table's gate and all latches, waits
//! ([`Transactions::await_lock`]), and begins anew: what it found may have changed. So no call waits for a transaction
//! while anybody could be waiting for that call but for its transaction's locks, and of these the lock table sees every
//! circle.
//!
//! A call from within the source of a value is inside another call: it is refused in place of waiting.
//!
//! **May touch.** `ids`, `error`, `store`, the rest of this floor.

use super::{
    Transactions,
    locks::{RowMode, RowName, Waits, Wanted},
    trx::Trx,
};
use crate::{
    error::{Error, Result, UsageError},
    ids::TrxId,
    page::EntryHeader,
    store::Tree,
    sync::is_inside,
};

/// What keeps a call from going on.
#[derive(Clone, Debug)]
pub enum Blocked {
    /// This transaction has changed it and has not ended.
    Writer(TrxId, RowName, RowMode),
    /// Others have locked it.
    Row(RowName, RowMode),
    /// Others have locked a range in which it would be a new entry.
    Range(RowName),
    /// Undo takes as much as it may.
    Undo,
}

/// By what name others ask for a row, or for a key of an index.
pub(super) fn name_of(tree: &Tree, key: &[u8]) -> RowName {
    RowName { space: tree.space().id(), key: key.into() }
}

/// Why a call ends before it has done what it was to do.
#[derive(Debug)]
pub enum Stop {
    /// It has to wait, and to begin anew then.
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
    /// Reads an entry until it is one that stays: its writer is `me`, or had ended before it was read. Who asks
    /// afterwards whether the writer has ended may hear so of one who was just taken back, and with him what was read.
    /// Gives the writer who has not ended, if that is what keeps it.
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

    /// Waits until what was in the way is not any more. What is locked then belongs to the transaction, which may
    /// [ease](Trx::ease_waits) it if the call comes to nothing.
    ///
    /// # Errors
    /// [`LockError`](crate::error::LockError), [`TransactionError`](crate::error::TransactionError); from within
    /// another call there is no waiting at all.
    pub fn await_lock(&self, trx: &mut Trx<'_>, blocked: Blocked, waits: &mut Waits) -> Result<()> {
        let wanted = match blocked {
            Blocked::Undo => return self.await_undo(trx, waits),
            // It has left its own gate, and is inside another one's.
            _ if is_inside() => {
                let what = "another transaction has locked this row, and a call from within the source of a value does \
                            not wait for it";
                return Err(UsageError::Other(what.into()).into());
            }
            Blocked::Writer(holder, row, mode) => {
                let holder = self.active.locker(holder, &self.row_locks);
                // Here the holder may end: a simulation lets it.
                self.ground.pool.ground().env.breathe();
                let is_explicit =
                    holder.is_some_and(|holder| self.row_locks.make_explicit(&holder, row.clone()));
                // Then there is nothing to wait for.
                if !is_explicit {
                    return Ok(());
                }
                Wanted::Row(row, mode)
            }
            Blocked::Row(row, mode) => Wanted::Row(row, mode),
            Blocked::Range(row) => Wanted::Insert(row),
        };
        let locker = trx.locker()?;
        if let Wanted::Row(row, _) = &wanted {
            trx.note_wait(row, self.row_locks.held_mode(&locker, row));
        }
        self.acquire_in_call(&locker, wanted, waits)
    }
}
