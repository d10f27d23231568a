//! Read views.
//!
//! **Purpose.** A reader sees the versions of the transactions that had ended when its view was made, and purge keeps
//! these versions while the view exists.
//!
//! **Invariants.** A view is pinned in the table of active transactions (`active`) under the lock under which ids are
//! assigned: purge finds the pin, or has read a horizon that the view sees completely (checked by
//! `mvcc/active.rs::pin`). A view is replaced by a newer one only if that would see more: a seek of a cursor keeps its
//! view while no transaction has ended (test: `a_view_is_current_until_a_transaction_ends`). A view that was released
//! protects nothing and no read by it succeeds, until it is renewed (test:
//! `a_released_view_reads_nothing_until_it_is_renewed`).

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
        let is_ended = Arc::new(AtomicBool::new(false));
        let NewPin { snapshot, ends, number } = active.pin(&is_ended);
        Self { snapshot, ends, pin: Pin { active: active.clone(), number: Some(number), is_ended } }
    }

    /// Ends the view at the request of its owner, and keeps its memory for [`ReadView::renew`].
    pub fn release(&mut self) {
        self.pin.release();
        self.pin.is_ended.store(true, SeqCst);
    }

    /// Makes a released view a view of what is committed now.
    pub fn renew(&mut self) {
        let Self { snapshot, ends, pin } = self;
        assert!(pin.number.is_none(), "a view that protects versions is renewed");
        // This comes first: the pin that is made next may be ended at once.
        pin.is_ended.store(false, SeqCst);
        let made = pin.active.pin(&pin.is_ended);
        (*snapshot, *ends, pin.number) = (made.snapshot, made.ends, Some(made.number));
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
    /// `None` if it was released.
    number: Option<u64>,
    is_ended: Arc<AtomicBool>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.release();
    }
}

impl Pin {
    fn release(&mut self) {
        let Some(number) = self.number.take() else { return };
        let was_pinned = self.active.unpin(number);
        debug_assert!(
            was_pinned || cfg!(feature = "model") || self.is_ended.load(SeqCst),
            "purge did not wait for a read view that was valid"
        );
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::*;
    use crate::txn::{
        locks::OwnerOptions,
        tests::{Base, Setup},
    };

    #[test]
    fn a_released_view_reads_nothing_until_it_is_renewed() {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let base = Base::open(Setup::simulated(&disk, &env)).unwrap();
        let active = &Arc::new(Active::new(base.transactions.ids().clone(), Arc::new(env)));
        let held = |view: &ReadView| view.held(Ok::<(), TransactionError>(())).is_ok();
        let mut view = ReadView::new(active);
        let (trx, _) = active.begin(OwnerOptions::default()).unwrap();
        active.end(trx, crate::txn::mvcc::Outcome::Committed);
        assert!(held(&view) && !view.sees(trx));
        view.release();
        view.release();
        assert!(!held(&view) && !view.is_current(), "nothing protects what it would read");
        assert!(active.views().is_empty(), "it holds purge no more");
        view.renew();
        assert!(held(&view) && view.is_current() && view.sees(trx));
        assert_eq!(active.views().len(), 1);
        drop(view);
        assert!(active.views().is_empty());
    }
}
