//! The visibility of versions.
//!
//! **Purpose.** Answers whether a read sees the versions of a transaction.
//!
//! **Invariants.** A read by a view counts only if the view was valid up to the end of the read (test:
//! `a_concurrent_reader_sees_one_snapshot_or_gets_an_error`).

use super::view::ReadView;
use crate::{
    error::{Owner, Result, TransactionError},
    ids::TrxId,
};

/// The versions that a read sees.
#[derive(Clone, Copy, Debug)]
pub enum Visibility<'v> {
    /// The current versions, regardless of the transaction that made them and of its end.
    Newest,
    /// The versions that a read view sees, and those of this transaction, once it has an id.
    View(&'v ReadView, Option<TrxId>),
}

impl Visibility<'_> {
    /// Returns whether the versions of a transaction are visible.
    pub fn sees(&self, trx: TrxId) -> bool {
        match self {
            Self::Newest => true,
            Self::View(view, own) => view.sees(trx) || Some(trx) == *own,
        }
    }

    /// Refuses a tree that was created, or truncated, after the view was: the stamp of its creation is not visible. A
    /// tree without a stamp is older than all views.
    ///
    /// # Errors
    /// [`TransactionError::TableChanged`].
    pub fn check_known(&self, created_at: Option<TrxId>, owner: impl FnOnce() -> Owner) -> Result<()> {
        if created_at.is_none_or(|stamp| self.sees(stamp)) {
            Ok(())
        } else {
            Err(TransactionError::TableChanged(owner()).into())
        }
    }

    /// Returns the result of a read, if its view was valid up to the end of the read: [`ReadView::held`].
    pub(in crate::txn) fn held<T>(&self, looked: Result<T>) -> Result<T> {
        match self {
            Self::Newest => looked,
            Self::View(view, _) => view.held(looked),
        }
    }
}
