//! Prepared transactions: those that wait for the decision of an external coordinator.
//!
//! **Purpose.** In a two-phase commit a transaction is first prepared: from then on it can be committed in any case.
//! This module has the table of prepared transactions, by the names that the coordinator has given them (XA calls such
//! a name an xid). A commit with two phases passes it twice, so the names are spread over shards by their hash, each
//! with its own mutex.
//!
//! **Invariants.** A name denotes one transaction (test: `a_prepared_transaction_outlives_its_handle`), and is in the
//! shard of its hash (test: `names_are_spread_over_shards_and_listed_in_order`). Either its
//! handle or a call that ends it is in possession of the transaction, or it waits here (checked by
//! `trx/prepared.rs::put_back`). The possessor returns it or removes the name (test:
//! `a_full_disk_leaves_it_prepared_or_lets_it_go`). Nothing here decides what survives a crash: the log does
//! (`running`), and recovery enters what it has found (test:
//! `prepared_transactions_survive_every_crash_and_ended_ones_stay_ended`).

use core::hash::BuildHasher;
use std::collections::{BTreeMap, hash_map::RandomState};

use crossbeam_utils::CachePadded;

use super::state::Suspended;
use crate::{
    error::{Result, TransactionError, UsageError},
    ids::TrxId,
    sync::{Arc, Mutex, MutexGuard, Rank},
};

/// The longest name, in bytes. An xid of XA takes at most 140.
pub(crate) const XID_BYTES_MAX: usize = 255;

/// The number of shards.
const SHARDS: usize = 16;

type Names = BTreeMap<Arc<[u8]>, PreparedEntry>;

/// The table.
#[derive(Debug)]
pub struct Prepared {
    shards: [CachePadded<Mutex<Names>>; SHARDS],
    hasher: RandomState,
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
        let shard = |_| CachePadded::new(Mutex::new(Rank::Leaf, BTreeMap::new()));
        Self { shards: core::array::from_fn(shard), hasher: RandomState::new() }
    }
}

impl Prepared {
    fn shard(&self, name: &[u8]) -> MutexGuard<'_, Names> {
        self.shards[self.hasher.hash_one(name) as usize % SHARDS].lock()
    }

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
        let mut table = self.shard(name);
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
        let mut table = self.shard(name);
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
        let mut table = self.shard(name);
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
        let removed = self.shard(name).remove(name);
        debug_assert!(
            removed.is_none_or(|entry| entry.waiting.is_none()),
            "the name of a transaction is removed by its possessor"
        );
    }

    /// Returns the number of prepared transactions. Those of one shard are counted at the same moment.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Returns all prepared transactions, by name. Those of one shard are of the same moment.
    pub fn listing(&self) -> Vec<PreparedTransaction> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().iter().map(|(name, entry)| PreparedTransaction {
                xid: name.to_vec(),
                id: entry.id,
                in_use: entry.waiting.is_none(),
            }));
        }
        all.sort_unstable_by(|one, other| one.xid.cmp(&other.xid));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spread_over_shards_and_listed_in_order() {
        let prepared = Prepared::default();
        let names: Vec<Arc<[u8]>> = (0..1000u32).map(|n| n.to_be_bytes()[..].into()).collect();
        for (n, name) in names.iter().enumerate().rev() {
            prepared.enter(name, TrxId(n as u64 + 1)).unwrap();
        }
        let lengths = prepared.shards.each_ref().map(|shard| shard.lock().len());
        assert!(lengths.iter().all(|length| (20..150).contains(length)), "{lengths:?}");
        let listed: Vec<(Vec<u8>, TrxId)> =
            prepared.listing().into_iter().map(|listed| (listed.xid, listed.id)).collect();
        let expected = names.iter().enumerate().map(|(n, name)| (name.to_vec(), TrxId(n as u64 + 1)));
        assert_eq!(listed, expected.collect::<Vec<_>>());
        for name in &names {
            assert!(prepared.enter(name, TrxId(5000)).is_err(), "the name is taken, in its shard");
            prepared.remove(name);
        }
        assert!(prepared.listing().is_empty());
    }
}
