//! Read views.
//!
//! **Purpose.** A reader sees the versions of the transactions that had ended when its view was made, and purge keeps
//! these versions while the view exists.
//!
//! **Invariants.** A view is pinned in the table of active transactions (`active`) under the lock under which ids are
//! assigned: purge finds the pin, or has read a horizon that the view sees completely (checked by
//! `mvcc/active.rs::pin`). A view is replaced by a newer one only if that would see more: a seek of a cursor keeps its
//! view while no transaction has ended (test: `a_view_is_current_until_a_transaction_ends`).

use super::{
    active::{Active, NewPin},
    snapshot::Snapshot,
};
use crate::{
    error::TransactionError,
    ids::TrxId,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// A read view: a reader sees the versions of all transactions that had ended when it was made. While it exists purge
/// keeps them.
///
/// A view may be ended while a reader uses it. The flag is set before the pin, which limits purge, is removed. A reader
/// that still finds the view valid after a read ([`ReadView::held`]) has missed nothing.
#[derive(Debug)]
pub struct ReadView {
    snapshot: Arc<Snapshot>,
    /// The number of transactions that had ended when it was made.
    ends: u64,
    pin: Pin,
}

impl ReadView {
    /// Creates a read view of what is committed now.
    pub(in crate::txn) fn new(active: &Arc<Active>) -> Self {
        let NewPin { snapshot, ends, number, is_ended } = active.pin();
        Self { snapshot, ends, pin: Pin { active: active.clone(), number, is_ended } }
    }

    /// Returns whether a view that is made now would see the same versions: no transaction has ended since this one was
    /// made. (`MySQL` 5.7 keeps the read view of an autocommit transaction on this condition.)
    #[inline]
    pub fn is_current(&self) -> bool {
        self.ends == self.pin.active.ends() && !self.is_ended()
    }

    /// Returns whether it sees the versions of a transaction.
    #[inline]
    pub fn sees(&self, trx: TrxId) -> bool {
        self.snapshot.covers(trx)
    }

    /// Returns whether it was ended.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.pin.is_ended.load(SeqCst)
    }

    /// Returns the result of a read by this view, if the view was valid up to the end of the read.
    ///
    /// # Errors
    /// [`TransactionError::ViewEnded`].
    pub fn held<T, E: From<TransactionError>>(&self, looked: Result<T, E>) -> Result<T, E> {
        if self.is_ended() {
            return Err(TransactionError::ViewEnded.into());
        }
        looked
    }
}

/// Protects from purge the versions that existed when it was made.
#[derive(Debug)]
struct Pin {
    active: Arc<Active>,
    number: u64,
    is_ended: Arc<AtomicBool>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let was_pinned = self.active.unpin(self.number);
        debug_assert!(
            was_pinned || cfg!(feature = "model") || self.is_ended.load(SeqCst),
            "purge did not wait for a read view that was valid"
        );
    }
}
