//! The table of active transactions, read views, and the horizon of purge.
//!
//! **Purpose.** The table contains the transactions that have begun and not ended. Checkpoints log it, so that recovery
//! can roll them back. A reader sees the transactions that had ended when its read view (`view`) was made. Purge keeps
//! what a reader may still need.
//!
//! **Invariants.** An id is assigned and entered here under one lock (checked by `mvcc/active.rs::publish_oldest`), so
//! every lookup sees all transactions below the next id that have not ended. A transaction is entered before its
//! `TrxBegin` is logged (checked by `mvcc/active.rs::note_first`) and removed after its `TrxEnd` was (checked by
//! `trx/running.rs::append_trx_end`). So a copy of the table that is made after the end of the log was read misses no
//! transaction with records that recovery will not see. Before a transaction logs its end it announces where the log
//! ends, so that a checkpoint that still finds it here keeps its low-water mark below that position (test:
//! `a_transaction_that_ended_during_a_checkpoint_is_not_unfinished`). No thread waits while holding the lock (checked
//! by `sync/lock.rs::take`).
//!
//! *All transactions below [`Active::oldest`] have ended*, and it never decreases (checked by
//! `mvcc/active.rs::publish_oldest`). A thread that reads it first, and then an entry of a lower id, has read a final
//! version, because a transaction rolls back its entries before it ends (test:
//! `a_version_whose_writer_has_ended_since_is_read_again`). So the reverse order, the entry first and `oldest` second,
//! would be wrong.
//!
//! *Every reader sees the versions of all transactions below [`Active::frozen_below`]*, and so does every later one
//! (test: `versions_are_frozen_behind_all_views_and_transactions`): they are below `oldest`, and below the first
//! transaction that was active when the oldest pin was made. That of a later pin is no lower (checked by
//! `mvcc/active.rs::pin`). So no rollback, no purge and no reader needs the header of a live entry with such a version.
//!
//! **Frozen headers.** The reasons, by what might need the header:
//! - A rollback changes entries with versions of its own transaction, which is active up to its end: prepared ones,
//!   those that recovery has found, and those that are rolled back in the background are, too. What it restores may be
//!   a header that the entry had before it was frozen: with it or without it the entry is the same to all.
//! - Purge looks for delete-marked entries, which are not frozen. It frees the chain of a long value by the stamp in
//!   the value.
//! - A reader that sees a version looks at nothing before it. One whose pin was ended may see too much, and its result
//!   is discarded. A writer finds that the version is final, that it is not its own, and that its strict view sees it.

use core::time::Duration;
use std::collections::BTreeMap;

use super::{
    ids::Ids,
    listing::{TransactionInfo, TransactionState, ViewInfo},
    pins::{Pinned, Pins},
    snapshot::Snapshot,
};
use crate::{
    env::Env,
    error::{Result, UsageError},
    ids::{Lsn, TrxId, UndoPos},
    page::EntryHeader,
    sync::{
        Arc, Mutex, Rank,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
    },
    tree::Horizon,
    txn::locks::{LockManager, LockOwner, OwnerOptions},
};

#[derive(Debug, Default)]
struct ActiveEntry {
    /// When it got its id, or the database was opened.
    since: Duration,
    /// The first logged undo record of the transaction, once it has one.
    first: Option<UndoPos>,
    /// Purge has skipped some of its records.
    has_skipped_records: bool,
    /// The name by which it is prepared.
    prepared: Option<Arc<[u8]>>,
    ending: Ending,
    /// What its lock owner is created with.
    options: OwnerOptions,
    /// The lock owner of the transaction, once the transaction or a waiter for it has requested it.
    lock_owner: Option<Arc<LockOwner>>,
}

/// The transactions that a checkpoint logs.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::txn) struct Noted {
    /// The transactions with logged undo, each with its first record.
    pub active: Vec<(TrxId, UndoPos)>,
    /// The prepared transactions among `active`, each with its name.
    pub prepared: Vec<(TrxId, Arc<[u8]>)>,
}

/// The end of the log when a transaction was about to log its own end; [`NOT_ENDING`] before that.
#[derive(Clone, Debug)]
pub(in crate::txn) struct Ending(Arc<AtomicU64>);

/// No log ends here.
const NOT_ENDING: u64 = u64::MAX;

impl Default for Ending {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(NOT_ENDING)))
    }
}

impl Ending {
    /// Announces that the transaction is about to append its `TrxEnd`.
    pub(in crate::txn) fn announce(&self, log_end: Lsn) {
        self.0.store(log_end.0, SeqCst);
    }

    fn announced(&self) -> Option<Lsn> {
        Some(self.0.load(SeqCst)).filter(|end| *end != NOT_ENDING).map(Lsn)
    }
}

/// A pin that was just made.
#[derive(Debug)]
pub(super) struct NewPin {
    pub snapshot: Arc<Snapshot>,
    /// The number of transactions that had ended.
    pub ends: u64,
    pub number: u64,
}

#[derive(Debug, Default)]
struct ActiveTable {
    running: BTreeMap<TrxId, ActiveEntry>,
    pins: Pins,
    /// The snapshot of now, if one was made since a transaction last began or ended.
    snapshot: Option<Arc<Snapshot>>,
    /// Bytes that the names of prepared transactions take in a checkpoint's record.
    names: usize,
    /// How many of the transactions that have ended were rolled back.
    rolled_back: u64,
    /// How many of them were calls without an effect.
    without_effect: u64,
}

/// How a transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::txn) enum Outcome {
    Committed,
    RolledBack,
    /// It was one call outside of transactions, and has changed nothing.
    NoEffect,
}

impl ActiveEntry {
    /// Returns the bytes that its name takes in a checkpoint's record.
    fn log_of_name(&self) -> usize {
        self.prepared.as_ref().map_or(0, |name| LOG_BYTES_PER_TRX + name.len())
    }
}

impl Pinned {
    /// Returns the number of ids assigned since it was made.
    fn ids_since(&self, ids: &Ids) -> u64 {
        ids.next_trx().0.saturating_sub(self.snapshot.high.0)
    }
}

impl ActiveTable {
    /// Refuses more transactions than a checkpoint can log.
    fn check_room(&self, more: usize, most: usize) -> Result<()> {
        let bytes = LOG_BYTES_PER_TRX * self.running.len() + self.names + more;
        if bytes <= most {
            return Ok(());
        }
        Err(UsageError::TooManyTransactions { count: self.running.len() }.into())
    }
}

/// Bytes of a checkpoint's record per transaction, in addition to its name if it is prepared.
const LOG_BYTES_PER_TRX: usize = 16;

/// The table of active transactions.
#[derive(Debug)]
pub struct Active {
    ids: Arc<Ids>,
    env: Arc<dyn Env>,
    table: Mutex<ActiveTable>,
    oldest: AtomicU64,
    /// The number of transactions that have ended. It changes under the lock, before [`Active::end`] returns.
    ends: AtomicU64,
}

/// The result of a read of the newest version of an entry ([`Active::read_final`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurrentVersion {
    /// The header of the version, which no rollback removes any more; `None` if there is no entry.
    Final(Option<EntryHeader>),
    /// The transaction that made the version has not ended.
    Unfinished(TrxId),
}

impl Active {
    /// Returns a table without transactions, which assigns these ids.
    pub(in crate::txn) fn new(ids: Arc<Ids>, env: Arc<dyn Env>) -> Self {
        Self {
            ids,
            env,
            table: Mutex::new(Rank::Transactions, ActiveTable::default()),
            oldest: AtomicU64::new(0),
            ends: AtomicU64::new(0),
        }
    }

    /// Begins a transaction, which has no logged undo yet.
    pub(in crate::txn) fn begin(&self, options: OwnerOptions) -> Result<(TrxId, Ending)> {
        let (ending, since) = (Ending::default(), self.env.now());
        loop {
            {
                let mut table = self.table.lock();
                if let Some(trx) = self.ids.try_trx() {
                    // With `..ActiveEntry::default()` another end would be allocated, and freed.
                    let running = ActiveEntry {
                        since,
                        first: None,
                        has_skipped_records: false,
                        prepared: None,
                        ending: ending.clone(),
                        options,
                        lock_owner: None,
                    };
                    debug_assert!(trx.0 != 0, "zero is the id of no transaction");
                    debug_assert!(
                        trx < self.ids.next_trx(),
                        "ids grow: the next one is above all that were assigned"
                    );
                    table.running.insert(trx, running);
                    table.snapshot = None;
                    self.publish_oldest(&table, trx);
                    return Ok((trx, ending));
                }
            }
            self.ids.raise()?;
        }
    }

    /// Enters a transaction that recovery has found unfinished, and the name it is prepared by.
    pub(in crate::txn) fn resume(&self, trx: TrxId, first: UndoPos, prepared: Option<Arc<[u8]>>) {
        let first = Some(first);
        let running = ActiveEntry { since: self.env.now(), first, prepared, ..ActiveEntry::default() };
        let mut table = self.table.lock();
        table.names += running.log_of_name();
        let before = table.running.insert(trx, running);
        table.snapshot = None;
        debug_assert!(before.is_none(), "recovery enters a transaction once");
    }

    /// Checks that a checkpoint can log all transactions that recovery has entered.
    pub(in crate::txn) fn opened(&self, most: usize) -> Result<()> {
        let table = self.table.lock();
        debug_assert!(
            table.names == table.running.values().map(ActiveEntry::log_of_name).sum::<usize>(),
            "the bytes of names are those of the prepared transactions that recovery has entered"
        );
        self.publish_oldest(&table, self.ids.next_trx());
        table.check_room(0, most)
    }

    /// Notes the future position of a transaction's first logged undo record. The transactions must not take more than
    /// `most` bytes in a checkpoint.
    pub(in crate::txn) fn note_first(&self, trx: TrxId, first: UndoPos, most: usize) -> Result<()> {
        let mut table = self.table.lock();
        table.check_room(0, most)?;
        let running = table.running.get_mut(&trx);
        debug_assert!(running.is_some(), "a transaction that writes undo is active");
        if let Some(running) = running {
            running.first = Some(first);
        }
        Ok(())
    }

    /// Removes the note of a transaction that has written no record at that position and writes none from now on:
    /// recovery would look for its records.
    pub(in crate::txn) fn forget_first(&self, trx: TrxId) {
        let mut table = self.table.lock();
        let running = table.running.get_mut(&trx).expect("a transaction that is prepared is active");
        assert!(running.prepared.is_none(), "transaction {trx} is prepared, and has logged that");
        running.first = None;
    }

    /// Notes that a transaction is prepared, or no longer prepared, before it logs that. The transactions must not take
    /// more than `most` bytes in a checkpoint.
    pub(in crate::txn) fn set_prepared(
        &self,
        trx: TrxId,
        name: Option<&Arc<[u8]>>,
        most: usize,
    ) -> Result<()> {
        let mut table = self.table.lock();
        if let Some(name) = name {
            table.check_room(LOG_BYTES_PER_TRX + name.len(), most)?;
        }
        assert!(table.running.contains_key(&trx), "a transaction is prepared while it is active");
        if let Some(running) = table.running.get_mut(&trx) {
            let before = running.log_of_name();
            running.prepared = name.cloned();
            let now = running.log_of_name();
            table.names = table.names - before + now;
        }
        debug_assert!(
            table.names == table.running.values().map(ActiveEntry::log_of_name).sum::<usize>(),
            "the bytes of names are those of the prepared transactions"
        );
        Ok(())
    }

    /// Returns the name by which a transaction is prepared.
    pub(in crate::txn) fn prepared(&self, trx: TrxId) -> Option<Arc<[u8]>> {
        self.table.lock().running.get(&trx)?.prepared.clone()
    }

    /// Ends a transaction. Returns whether purge has skipped some of its records, and its lock owner.
    pub(in crate::txn) fn end(&self, trx: TrxId, outcome: Outcome) -> (bool, Option<Arc<LockOwner>>) {
        let mut table = self.table.lock();
        match outcome {
            Outcome::Committed => {}
            Outcome::RolledBack => table.rolled_back += 1,
            Outcome::NoEffect => table.without_effect += 1,
        }
        let ended = table.running.remove(&trx);
        debug_assert!(ended.is_some(), "transaction {trx} ends and is not active");
        table.names -= ended.as_ref().map_or(0, ActiveEntry::log_of_name);
        debug_assert!(!table.running.is_empty() || table.names == 0, "names are counted of no transaction");
        self.publish_oldest(&table, self.ids.next_trx());
        self.ends.fetch_add(1, SeqCst);
        table.snapshot = None;
        drop(table);
        ended.map_or((false, None), |running| (running.has_skipped_records, running.lock_owner))
    }

    /// Ids are assigned under the lock, so `next` is above all that have begun.
    fn publish_oldest(&self, table: &ActiveTable, next: TrxId) {
        let oldest = table.running.first_key_value().map_or(next, |(trx, _)| *trx);
        let before = self.oldest.load(Relaxed);
        debug_assert!(
            before <= oldest.0,
            "transaction {oldest} is active, and all below {before} have ended"
        );
        if before != oldest.0 {
            self.oldest.store(oldest.0, Release);
        }
    }

    /// Returns an id below which all transactions have ended.
    pub fn oldest(&self) -> TrxId {
        TrxId(self.oldest.load(Acquire))
    }

    /// Returns whether a transaction has begun and not ended.
    pub fn is_active(&self, trx: TrxId) -> bool {
        trx >= self.oldest() && self.table.lock().running.contains_key(&trx)
    }

    /// Reads an entry until its version is final: its writer is `me`, if that has an id, or had ended before the entry
    /// was read. The check must come first: a writer that ends after the read may have rolled back, and the version
    /// that was read is then undone.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(crate) fn read_final(
        &self,
        me: Option<TrxId>,
        mut read: impl FnMut() -> Result<Option<EntryHeader>>,
    ) -> Result<CurrentVersion> {
        let mut ended = None;
        loop {
            let oldest = self.oldest();
            let header = read()?;
            let Some(writer) = header.map(|header| header.trx) else {
                return Ok(CurrentVersion::Final(None));
            };
            if writer < oldest || Some(writer) == me || ended == Some(writer) {
                return Ok(CurrentVersion::Final(header));
            }
            if self.is_active(writer) {
                return Ok(CurrentVersion::Unfinished(writer));
            }
            ended = Some(writer);
        }
    }

    /// Returns the lock owner of a transaction, which is created if it has none yet. `None` if it has ended.
    pub(in crate::txn) fn lock_owner(&self, trx: TrxId, locks: &LockManager) -> Option<Arc<LockOwner>> {
        let mut table = self.table.lock();
        let running = table.running.get_mut(&trx)?;
        let create = || locks.lock_owner_with(trx, running.options);
        let lock_owner = running.lock_owner.get_or_insert_with(create).clone();
        debug_assert!(lock_owner.id() == trx, "transaction {trx} has the lock owner of another one");
        Some(lock_owner)
    }

    /// Changes the options of a transaction, except for its ordering group.
    pub(in crate::txn) fn set_options(&self, trx: TrxId, options: OwnerOptions) {
        let mut table = self.table.lock();
        let running = table.running.get_mut(&trx);
        debug_assert!(running.is_some(), "transaction {trx} gets other options and is not active");
        if let Some(running) = running {
            running.options = options;
            running.lock_owner.iter().for_each(|lock_owner| lock_owner.set_options(options));
        }
    }

    /// Returns the tag of a transaction; 0 if it has none, or has ended.
    pub(in crate::txn) fn tag(&self, trx: TrxId) -> u64 {
        self.table.lock().running.get(&trx).map_or(0, |running| running.options.tag)
    }

    /// Removes the lock owner of a transaction. A waiter for what it has changed creates a new one.
    pub(in crate::txn) fn take_lock_owner(&self, trx: TrxId) -> Option<Arc<LockOwner>> {
        self.table.lock().running.get_mut(&trx)?.lock_owner.take()
    }

    /// Returns an id that belongs to no transaction.
    ///
    /// # Errors
    /// If the log accepts no more records.
    pub(in crate::txn) fn number(&self) -> Result<TrxId> {
        loop {
            {
                let table = self.table.lock();
                if let Some(number) = self.ids.try_trx() {
                    debug_assert!(
                        !table.running.contains_key(&number),
                        "the number of a statement is the id of an active transaction"
                    );
                    self.publish_oldest(&table, self.ids.next_trx());
                    return Ok(number);
                }
            }
            self.ids.raise()?;
        }
    }

    /// Returns an id for an event at this moment, which existing read views do not see; `None` if there are none.
    ///
    /// # Errors
    /// If the log accepts no more records.
    pub(in crate::txn) fn stamp(&self) -> Result<Option<TrxId>> {
        if self.table.lock().pins.is_empty() { Ok(None) } else { self.number().map(Some) }
    }

    /// Notes that purge skips a record of an active transaction. Returns `false` if it is not active.
    pub(in crate::txn) fn note_skipped(&self, trx: TrxId) -> bool {
        match self.table.lock().running.get_mut(&trx) {
            Some(running) => {
                running.has_skipped_records = true;
                true
            }
            None => false,
        }
    }

    /// Returns the transactions with logged undo, each with its first record.
    pub(crate) fn first_records(&self) -> Vec<(TrxId, UndoPos)> {
        Self::logged(&self.table.lock())
    }

    fn logged(table: &ActiveTable) -> Vec<(TrxId, UndoPos)> {
        table.running.iter().filter_map(|(trx, running)| Some((*trx, running.first?))).collect()
    }

    /// Returns where a transaction announces its end.
    pub(in crate::txn) fn ending(&self, trx: TrxId) -> Option<Ending> {
        self.table.lock().running.get(&trx).map(|running| running.ending.clone())
    }

    /// Returns what a checkpoint logs, and an LSN below which none of these transactions has logged its end; `None` if
    /// none is about to.
    pub(in crate::txn) fn note(&self) -> (Noted, Option<Lsn>) {
        let table = self.table.lock();
        let active = Self::logged(&table);
        let prepared = table.running.iter().filter(|(_, running)| running.first.is_some());
        let prepared =
            prepared.filter_map(|(trx, running)| Some((*trx, running.prepared.clone()?))).collect();
        // The rest of the low-water mark was read before: a transaction with an end below it had announced that end by
        // then.
        let ending = table.running.values().filter_map(|running| running.ending.announced()).min();
        (Noted { active, prepared }, ending)
    }

    /// Checks that no active transaction is below [`Active::oldest`], and that the ids, the names and the pins are
    /// consistent.
    ///
    /// # Panics
    /// An invariant is violated.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::txn) fn check_invariants(&self) {
        let Some(table) = self.table.try_lock() else { return };
        let (next, oldest) = (self.ids.next_trx(), self.oldest());
        assert!(
            table.running.keys().all(|trx| *trx < next),
            "a transaction is active, and its id was not assigned"
        );
        let first = table.running.first_key_value().map_or(next, |(trx, _)| *trx);
        assert!(oldest <= first, "transaction {first} is active, and all below {oldest} have ended");
        let names: usize = table.running.values().map(ActiveEntry::log_of_name).sum();
        assert!(table.names == names, "the names take {names} bytes, and {} are counted", table.names);
        table.pins.check_invariants();
        let snapshots = || table.pins.values().map(|pinned| &pinned.snapshot);
        let is_sorted = |of: fn(&Snapshot) -> TrxId| snapshots().map(|snapshot| of(snapshot)).is_sorted();
        assert!(
            is_sorted(|snapshot| snapshot.low) && is_sorted(|snapshot| snapshot.high),
            "a later view sees fewer transactions than an earlier one"
        );
        let is_known = |snapshot: &Arc<Snapshot>| snapshot.high <= next;
        assert!(snapshots().all(is_known), "a view sees a transaction that has not begun");
    }

    /// Returns the number of active transactions.
    pub fn count(&self) -> usize {
        self.table.lock().running.len()
    }

    fn snapshot_of(&self, table: &ActiveTable) -> Snapshot {
        let high = self.ids.next_trx();
        let active: Vec<TrxId> = table.running.keys().copied().collect();
        Snapshot::new(active, high)
    }

    /// Returns the snapshot of now. Views that are made while no transaction begins or ends share it.
    fn shared_snapshot(&self, table: &mut ActiveTable) -> Arc<Snapshot> {
        if let Some(snapshot) =
            table.snapshot.as_ref().filter(|snapshot| snapshot.high == self.ids.next_trx())
        {
            debug_assert!(
                **snapshot == self.snapshot_of(table),
                "a transaction has begun or ended, and views share a snapshot of before"
            );
            return snapshot.clone();
        }
        let snapshot = Arc::new(self.snapshot_of(table));
        table.snapshot = Some(snapshot.clone());
        snapshot
    }

    /// Returns the number of ids assigned since the oldest read view was made; 0 without one.
    pub fn oldest_view(&self) -> u64 {
        let table = self.table.lock();
        table.pins.oldest().map_or(0, |oldest| oldest.ids_since(&self.ids))
    }

    /// Returns all active transactions.
    pub(in crate::txn) fn listing(&self) -> Vec<TransactionInfo> {
        let now = self.env.now();
        let info = |(id, running): (&TrxId, &ActiveEntry)| TransactionInfo {
            id: *id,
            tag: running.options.tag,
            age: now.saturating_sub(running.since),
            isolation: running.options.isolation,
            row_locks: running.lock_owner.as_ref().map_or(0, |owner| owner.held_rows()),
            changes: running.lock_owner.as_ref().map_or(0, |owner| owner.changed()),
            has_changes: running.first.is_some(),
            state: match &running.prepared {
                Some(name) => TransactionState::Prepared(name.to_vec()),
                None => TransactionState::Open,
            },
        };
        self.table.lock().running.iter().map(info).collect()
    }

    /// Returns all read views, the oldest first.
    pub fn views(&self) -> Vec<ViewInfo> {
        let now = self.env.now();
        let info = |pinned: &Pinned| ViewInfo {
            age: now.saturating_sub(pinned.since),
            ids_since: pinned.ids_since(&self.ids),
        };
        self.table.lock().pins.values().map(info).collect()
    }

    /// Returns the snapshot that limits purge: it may remove versions replaced by transactions that had ended when the
    /// oldest pin was made; without a pin, by those that have ended now.
    pub(crate) fn horizon(&self) -> Arc<Snapshot> {
        let mut table = self.table.lock();
        match table.pins.oldest() {
            Some(oldest) => oldest.snapshot.clone(),
            None => self.shared_snapshot(&mut table),
        }
    }

    /// Returns the transactions that have ended by now, regardless of read views.
    pub(in crate::txn) fn ended(&self) -> Snapshot {
        self.snapshot_of(&self.table.lock())
    }

    /// Returns the numbers of the transactions that have committed and that were rolled back, without calls outside of
    /// transactions that have changed nothing.
    pub fn outcomes(&self) -> (u64, u64) {
        let table = self.table.lock();
        (self.ends() - table.rolled_back - table.without_effect, table.rolled_back)
    }

    /// Returns the number of transactions that have ended: while it stays the same, a snapshot made now is the same.
    pub(super) fn ends(&self) -> u64 {
        self.ends.load(SeqCst)
    }

    /// Pins the versions that the transactions ended by now have made. Returns their snapshot, their number, and the
    /// number of the pin. The flag is set when the pin is ended.
    pub(super) fn pin(&self, is_ended: &Arc<AtomicBool>) -> NewPin {
        let since = self.env.now();
        let mut table = self.table.lock();
        let (snapshot, ends) = (self.shared_snapshot(&mut table), self.ends());
        let pinned = Pinned { snapshot: snapshot.clone(), since, is_ended: is_ended.clone() };
        debug_assert!(
            table.pins.newest().is_none_or(|last| {
                last.snapshot.high <= snapshot.high && last.snapshot.low <= snapshot.low
            }),
            "a later view sees no fewer transactions"
        );
        let number = table.pins.push(pinned);
        NewPin { snapshot, ends, number }
    }

    /// Removes a pin, unless it was ended. Returns whether it was there.
    pub(super) fn unpin(&self, number: u64) -> bool {
        self.table.lock().pins.remove(number).is_some()
    }

    /// Ends the read views that do not see a transaction, beginning with the oldest, if they were made before
    /// `made_before`. Returns the number of views ended.
    pub(in crate::txn) fn end_views(&self, trx: TrxId, made_before: Duration) -> u64 {
        let mut table = self.table.lock();
        let mut ended = 0;
        while let Some(oldest) = table.pins.oldest()
            && oldest.since < made_before
            && !oldest.snapshot.covers(trx)
        {
            // Purge searches for read views under this lock.
            let was_ended = oldest.is_ended.swap(true, SeqCst);
            debug_assert!(!was_ended, "a view was ended, and still keeps versions from purge");
            table.pins.remove_oldest();
            ended += 1;
        }
        ended
    }
}

impl Horizon for Active {
    /// Nothing is known before [`Active::opened`].
    fn frozen_below(&self) -> TrxId {
        let table = self.table.lock();
        let pinned = table.pins.oldest().map_or(TrxId::MAX, |oldest| oldest.snapshot.low);
        pinned.min(self.oldest())
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::{
        super::{
            super::tests::{Base, Setup},
            ReadView,
        },
        *,
    };
    #[test]
    fn a_checkpoint_notes_running_commits_and_a_snapshot_covers_ended_ones() {
        let base = Base::open(Setup::simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1))).unwrap();
        let active = Active::new(base.transactions.ids().clone(), Arc::new(SimulatedEnv::new(1)));
        for (trx, first) in [(5, 50), (7, 70), (9, 90)] {
            active.resume(TrxId(trx), UndoPos(first), None);
        }
        // The third has written to temporary tables only.
        active.table.lock().running.get_mut(&TrxId(9)).unwrap().first = None;
        let all = vec![(TrxId(5), UndoPos(50)), (TrxId(7), UndoPos(70))];
        let noted = |active: &[_]| Noted { active: active.to_vec(), prepared: Vec::new() };
        assert_eq!(active.note(), (noted(&all), None));
        let ending = active.ending(TrxId(5)).unwrap();
        ending.announce(Lsn(800));
        active.ending(TrxId(7)).unwrap().announce(Lsn(900));
        assert_eq!(active.note(), (noted(&all), Some(Lsn(800))));
        assert!(!active.end(TrxId(5), Outcome::Committed).0);
        assert_eq!(active.oldest(), TrxId(7));
        assert_eq!(active.note(), (noted(&all[1..]), Some(Lsn(900))));
        // A name takes room in the checkpoint's record, and a transaction without logged undo is not in it.
        let name: Arc<[u8]> = b"name"[..].into();
        assert!(active.set_prepared(TrxId(7), Some(&name), 51).is_err());
        active.set_prepared(TrxId(7), Some(&name), 52).unwrap();
        active.set_prepared(TrxId(9), Some(&name), 72).unwrap();
        let both = Noted { prepared: vec![(TrxId(7), name)], ..noted(&all[1..]) };
        assert_eq!(active.note(), (both, Some(Lsn(900))));
        // The transactions that recovery has found may be more than a smaller log buffer allows.
        let refused = active.opened(71).unwrap_err().to_string();
        assert!(refused.contains("log_buffer_size"), "{refused}");
        active.opened(72).unwrap();
        active.set_prepared(TrxId(7), None, 0).unwrap();
        assert_eq!(active.note(), (noted(&all[1..]), Some(Lsn(900))));
        assert!(active.note_skipped(TrxId(7)) && !active.note_skipped(TrxId(5)));

        let snapshot = Snapshot { low: TrxId(5), high: TrxId(10), active: vec![TrxId(7), TrxId(9)] };
        let covered: Vec<u64> = (4..12).filter(|trx| snapshot.covers(TrxId(*trx))).collect();
        assert_eq!(covered, [4, 5, 6, 8]);
        assert!(active.end(TrxId(7), Outcome::Committed).0);
    }

    /// The writer of an entry rolls back and ends after the entry was read, and before it is looked up.
    #[test]
    fn a_version_whose_writer_has_ended_since_is_read_again() {
        let base = Base::open(Setup::simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1))).unwrap();
        let active = Active::new(base.transactions.ids().clone(), Arc::new(SimulatedEnv::new(1)));
        let (writer, _) = active.begin(OwnerOptions::default()).unwrap();
        let mut reads = 0;
        let found = active.read_final(None, || {
            reads += 1;
            let inserted = EntryHeader { trx: writer, ..EntryHeader::default() };
            let there = active.is_active(writer).then_some(inserted);
            if there.is_some() {
                active.end(writer, Outcome::Committed);
            }
            Ok(there)
        });
        assert_eq!((found.unwrap(), reads), (CurrentVersion::Final(None), 2));
    }

    #[test]
    fn a_view_is_current_until_a_transaction_ends() {
        let base = Base::open(Setup::simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1))).unwrap();
        let active = Arc::new(Active::new(base.transactions.ids().clone(), Arc::new(SimulatedEnv::new(1))));
        let (trx, _) = active.begin(OwnerOptions::default()).unwrap();
        let view = ReadView::new(&active);
        let (later, _) = active.begin(OwnerOptions::default()).unwrap();
        assert!(view.is_current(), "a view that is made now would see neither transaction, as this one");
        active.end(later, Outcome::Committed);
        assert!(!view.is_current(), "a view that is made now sees transaction {later}");
        let view = ReadView::new(&active);
        assert!(view.is_current() && view.sees(later) && !view.sees(trx));
        active.end_views(trx, Duration::MAX);
        assert!(!view.is_current(), "the versions that it needs may be purged");
    }

    #[test]
    fn versions_are_frozen_behind_all_views_and_transactions() {
        let base = Base::open(Setup::simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1))).unwrap();
        let active = Arc::new(Active::new(base.transactions.ids().clone(), Arc::new(SimulatedEnv::new(1))));
        // Recovery has still to enter the unfinished transactions.
        assert_eq!(active.frozen_below(), TrxId(0));
        active.ids.raise().unwrap();
        let old = active.ids.try_trx().unwrap();
        active.resume(old, UndoPos(50), None);
        assert_eq!(active.frozen_below(), TrxId(0));
        active.opened(1000).unwrap();
        assert_eq!(active.frozen_below(), old);
        let begin = || active.begin(OwnerOptions::default()).unwrap().0;
        let (one, two) = (begin(), begin());
        let name: Arc<[u8]> = b"name"[..].into();
        active.set_prepared(old, Some(&name), 1000).unwrap();
        active.end(one, Outcome::Committed);
        assert_eq!(active.frozen_below(), old, "a prepared transaction is active");
        active.end(old, Outcome::Committed);
        assert_eq!(active.frozen_below(), two);
        // A view that does not see the second transaction, and later one that does.
        let view = ReadView::new(&active);
        active.end(two, Outcome::Committed);
        assert!(!view.sees(two) && view.sees(one));
        assert_eq!(active.frozen_below(), two);
        let later = ReadView::new(&active);
        let three = begin();
        active.end(three, Outcome::Committed);
        assert!(later.sees(two) && !later.sees(three));
        assert_eq!(active.frozen_below(), two, "the oldest view decides");
        drop(view);
        assert_eq!(active.frozen_below(), three);
        // An ended view is not waited for; what it has read does not count.
        assert_eq!(active.end_views(three, Duration::MAX), 1);
        assert!(later.is_ended());
        let next = begin();
        assert_eq!(active.frozen_below(), next);
        active.end(next, Outcome::Committed);
        let number = active.number().unwrap();
        assert!(active.frozen_below() > number, "the number of a statement is of no transaction");
        drop(later);
    }

    #[test]
    #[should_panic(expected = "are counted")]
    fn a_wrong_count_of_the_bytes_of_names_is_found() {
        let base = Base::open(Setup::simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1))).unwrap();
        let active = base.transactions.active();
        active.check_invariants();
        active.table.lock().names += 1;
        active.check_invariants();
    }
}
