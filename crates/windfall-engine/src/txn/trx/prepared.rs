//! Prepared transactions: those that wait for the decision of an external coordinator.
//!
//! **Purpose.** In a two-phase commit a transaction is first prepared: from then on it can be committed in any case.
//! This module has the table of prepared transactions, by the names that the coordinator has given them (XA calls such
//! a name an xid).
//!
//! **Invariants.** A name denotes one transaction (test: `a_prepared_transaction_outlives_its_handle`). Either its
//! handle or a call that ends it is in possession of the transaction, or it waits here (checked by
//! `trx/prepared.rs::put_back`). The possessor returns it or removes the name (test:
//! `a_full_disk_leaves_it_prepared_or_lets_it_go`). Nothing here decides what survives a crash: the log does
//! (`running`), and recovery enters what it has found (test:
//! `prepared_transactions_survive_every_crash_and_ended_ones_stay_ended`).

use std::collections::BTreeMap;

use super::state::Suspended;
use crate::{
    error::{Result, TransactionError, UsageError},
    ids::TrxId,
    sync::{Arc, Mutex, Rank},
};

/// The longest name, in bytes. An xid of XA takes at most 140.
pub(crate) const XID_BYTES_MAX: usize = 255;

/// The table.
#[derive(Debug)]
pub struct Prepared {
    table: Mutex<BTreeMap<Arc<[u8]>, PreparedEntry>>,
}

#[derive(Debug)]
struct PreparedEntry {
    id: TrxId,
    /// `None` while a handle or a call is in possession of it.
    waiting: Option<Suspended>,
}

/// A prepared transaction, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedTransaction {
    /// The name that it was given.
    pub xid: Vec<u8>,
    /// The id of the transaction.
    pub id: TrxId,
    /// Whether its handle still exists; then only the handle can end it.
    pub in_use: bool,
}

impl Default for Prepared {
    fn default() -> Self {
        Self { table: Mutex::new(Rank::Leaf, BTreeMap::new()) }
    }
}

impl Prepared {
    /// Refuses an invalid name.
    ///
    /// # Errors
    /// The name is empty, or too long.
    pub fn check_name(name: &[u8]) -> Result<()> {
        match name.len() {
            1..=XID_BYTES_MAX => Ok(()),
            length => Err(UsageError::PreparedName { length, limit: XID_BYTES_MAX }.into()),
        }
    }

    /// Registers a name for a transaction that the caller possesses.
    ///
    /// # Errors
    /// [`TransactionError::NameTaken`].
    pub fn enter(&self, name: &Arc<[u8]>, id: TrxId) -> Result<()> {
        let mut table = self.table.lock();
        debug_assert!(Self::check_name(name).is_ok(), "a transaction is prepared by an invalid name");
        if let Some(entry) = table.get(name) {
            let xid = name.escape_ascii().to_string().into();
            return Err(TransactionError::NameTaken { xid, trx: entry.id }.into());
        }
        table.insert(name.clone(), PreparedEntry { id, waiting: None });
        Ok(())
    }

    /// Enters transaction `id`, which recovery has found.
    ///
    /// # Errors
    /// [`TransactionError::NameTaken`].
    pub(in crate::txn) fn insert_recovered(&self, name: &Arc<[u8]>, id: TrxId, trx: Suspended) -> Result<()> {
        self.enter(name, id)?;
        self.put_back(name, trx);
        Ok(())
    }

    /// Returns a transaction to the table, where it waits.
    pub fn put_back(&self, name: &[u8], trx: Suspended) {
        let mut table = self.table.lock();
        debug_assert!(table.contains_key(name), "a prepared transaction is returned under an unknown name");
        if let Some(entry) = table.get_mut(name) {
            debug_assert!(entry.waiting.is_none(), "a prepared transaction has one possessor");
            debug_assert!(Some(entry.id) == trx.id(), "a name gets another transaction than it was given to");
            debug_assert!(trx.may_wait_for_decision(), "a transaction waits for its end and is not prepared");
            entry.waiting = Some(trx);
        }
    }

    /// Takes possession of a transaction.
    ///
    /// # Errors
    /// [`TransactionError::NotPrepared`], [`TransactionError::InUse`].
    pub fn take(&self, name: &[u8]) -> Result<Suspended> {
        let xid = || name.escape_ascii().to_string().into();
        let mut table = self.table.lock();
        let entry = table.get_mut(name).ok_or_else(|| TransactionError::NotPrepared { xid: xid() })?;
        let (trx, waiting) = (entry.id, entry.waiting.take());
        debug_assert!(
            waiting
                .as_ref()
                .is_none_or(|waiting| waiting.id() == Some(trx) && waiting.may_wait_for_decision()),
            "a name leads to another transaction, or to one that is not prepared"
        );
        Ok(waiting.ok_or_else(|| TransactionError::InUse { xid: xid(), trx })?)
    }

    /// Removes the name of a transaction that the caller possesses and that has ended.
    pub fn remove(&self, name: &[u8]) {
        let removed = self.table.lock().remove(name);
        debug_assert!(
            removed.is_none_or(|entry| entry.waiting.is_none()),
            "the name of a transaction is removed by its possessor"
        );
    }

    /// Returns all prepared transactions, by name.
    pub fn listing(&self) -> Vec<PreparedTransaction> {
        let table = self.table.lock();
        let listed = table.iter().map(|(name, entry)| PreparedTransaction {
            xid: name.to_vec(),
            id: entry.id,
            in_use: entry.waiting.is_none(),
        });
        listed.collect()
    }
}
