//! The visibility of versions.
//!
//! **Purpose.** Answers whether a read sees the versions of a transaction.
//!
//! **Invariants.** A read by a view counts only if the view was valid up to the end of the read.

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
    /// The versions that a read view sees, and those of this transaction.
    View(&'v ReadView, TrxId),
}

impl Visibility<'_> {
    /// Returns whether the versions of a transaction are visible.
    pub fn sees(&self, trx: TrxId) -> bool {
        match self {
            Self::Newest => true,
            Self::View(view, own) => view.sees(trx) || trx == *own && trx != TrxId::NONE,
        }
    }

    /// Refuses a tree that was created, or truncated, after the view was: the stamp of its creation is not visible.
    ///
    /// # Errors
    /// [`TransactionError::TableChanged`].
    pub fn check_known(&self, created_at: TrxId, owner: impl FnOnce() -> Owner) -> Result<()> {
        if self.sees(created_at) { Ok(()) } else { Err(TransactionError::TableChanged(owner()).into()) }
    }

    /// Returns the result of a read, if its view was valid up to the end of the read: [`ReadView::held`].
    pub(in crate::txn) fn held<T>(&self, looked: Result<T>) -> Result<T> {
        match self {
            Self::Newest => looked,
            Self::View(view, _) => view.held(looked),
        }
    }
}
