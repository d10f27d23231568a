//! Prepared transactions: those that wait for the word of an outer coordinator.
//!
//! **Purpose.** In a commit of two phases a transaction is first prepared: whatever happens, it can be committed. This
//! is the table of those that are, by the names that the coordinator has given them (XA calls such a name an xid).
//!
//! **Invariants.** A name stands for one transaction. That is in the hands of its handle, or of a call that ends it, or
//! it waits here; who has it in hand gives it back or takes the name out. Nothing here says what survives a crash: the
//! log does (`trx`), and recovery enters what it has found.
//!
//! **May touch.** `ids`, `error`, `sync`, the rest of this floor.

use std::collections::BTreeMap;

use super::{Suspended, Transactions, Trx};
use crate::{
    error::{Result, TransactionError, UsageError},
    ids::{Lsn, TrxId},
    sync::{Arc, Mutex, Rank},
};

/// The longest name, in bytes. An xid of XA takes at most 140.
pub const LONGEST_NAME: usize = 255;

/// The table.
#[derive(Debug)]
pub struct Prepared {
    table: Mutex<BTreeMap<Arc<[u8]>, Entry>>,
}

#[derive(Debug)]
struct Entry {
    id: TrxId,
    /// `None` while somebody has it in hand.
    waiting: Option<Suspended>,
}

/// A prepared transaction, as lists tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedTransaction {
    /// The name that it was given.
    pub xid: Vec<u8>,
    /// Its number.
    pub id: TrxId,
    /// Whether its handle is there still, which alone can end it then.
    pub in_use: bool,
}

impl Default for Prepared {
    fn default() -> Self {
        Self { table: Mutex::new(Rank::Leaf, BTreeMap::new()) }
    }
}

impl Prepared {
    /// Refuses what cannot be a name.
    ///
    /// # Errors
    /// It is empty, or too long.
    pub fn check_name(name: &[u8]) -> Result<()> {
        let what = match name.len() {
            0 => "the name of a prepared transaction is empty: give it one that nobody else has".into(),
            1..=LONGEST_NAME => return Ok(()),
            length => format!(
                "the name of a prepared transaction has {length} bytes: give it one of at most {LONGEST_NAME}"
            ),
        };
        Err(UsageError::Other(what.into()).into())
    }

    /// Takes a name for a transaction that the caller has in hand.
    ///
    /// # Errors
    /// [`TransactionError::NameTaken`].
    pub fn enter(&self, name: &Arc<[u8]>, id: TrxId) -> Result<()> {
        let mut table = self.table.lock();
        if let Some(entry) = table.get(name) {
            let xid = name.escape_ascii().to_string().into();
            return Err(TransactionError::NameTaken { xid, trx: entry.id }.into());
        }
        table.insert(name.clone(), Entry { id, waiting: None });
        Ok(())
    }

    /// Enters one that recovery has found.
    ///
    /// # Errors
    /// [`TransactionError::NameTaken`].
    pub(super) fn found(&self, name: &Arc<[u8]>, trx: Suspended) -> Result<()> {
        self.enter(name, trx.id())?;
        self.leave(name, trx);
        Ok(())
    }

    /// Gives a transaction back to wait here.
    pub fn leave(&self, name: &[u8], trx: Suspended) {
        if let Some(entry) = self.table.lock().get_mut(name) {
            entry.waiting = Some(trx);
        }
    }

    /// Takes a transaction in hand.
    ///
    /// # Errors
    /// [`TransactionError::NotPrepared`], [`TransactionError::InUse`].
    pub fn take(&self, name: &[u8]) -> Result<Suspended> {
        let xid = || name.escape_ascii().to_string().into();
        let mut table = self.table.lock();
        let entry = table.get_mut(name).ok_or_else(|| TransactionError::NotPrepared { xid: xid() })?;
        let (trx, waiting) = (entry.id, entry.waiting.take());
        Ok(waiting.ok_or_else(|| TransactionError::InUse { xid: xid(), trx })?)
    }

    /// Takes a name out, whose transaction the caller has in hand: it has ended.
    pub fn remove(&self, name: &[u8]) {
        self.table.lock().remove(name);
    }

    /// All of them, by name.
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

impl Transactions {
    /// Commits a transaction that waits. Gives the LSN to wait for; [`Lsn::ZERO`] when nothing was logged.
    ///
    /// # Errors
    /// Those of [`Prepared::take`]; when the log takes no more, and then it waits on.
    pub fn commit_prepared(&self, name: &[u8]) -> Result<Lsn> {
        let mut trx = Trx::resume(self, self.prepared.take(name)?);
        match trx.commit() {
            Ok(end) => {
                self.prepared.remove(name);
                Ok(end)
            }
            Err(error) => {
                self.prepared.leave(name, trx.suspend());
                Err(error)
            }
        }
    }

    /// Rolls a transaction back that waits. Gives the LSN from which on nobody finds it prepared again, and what else
    /// has come of it.
    ///
    /// # Errors
    /// Those of [`Prepared::take`]; a full disk, and then it waits on.
    pub fn roll_back_prepared(&self, name: &[u8]) -> Result<(Lsn, Result<()>)> {
        let mut trx = Trx::resume(self, self.prepared.take(name)?);
        let revoked = match trx.revoke() {
            Ok(revoked) => revoked,
            Err(error) => {
                self.prepared.leave(name, trx.suspend());
                return Err(error);
            }
        };
        self.prepared.remove(name);
        Ok((revoked, trx.rollback().map(drop)))
    }
}
