//! The transactions of a database.
//!
//! **Purpose.** Owns the parts of the transaction layer and connects them: the table of active transactions, the lock
//! table, undo with its purge, prepared transactions and background rollbacks. The manager also notes the unfinished
//! transactions that a checkpoint must log, and locks tables for statements.
//!
//! **Invariants.** A statement is not a transaction and has no changes: its lock owner has a number of its own (checked
//! by `mvcc/active.rs::number`), and its locks are released when its guard is dropped (test:
//! `a_statement_waits_only_for_transactions_that_have_changed_its_table`). A statement in the name of a transaction has
//! the lock owner of that transaction, and so waits for all others and not for itself (test:
//! `a_statement_in_the_name_of_a_transaction_waits_for_all_others`). After it the transaction has its locks of before,
//! and none in a tablespace that the statement has dropped (test: `the_locks_after_a_statement_are_those_before_it`).
//! When lock waits are ended because the database has stopped or is being closed, every waiter gets the reason (test:
//! `a_wait_for_a_lock_gets_an_error_when_the_database_is_closed_or_stops`).

use core::time::Duration;
use std::collections::BTreeMap;

use super::{background_rollback, prepared::Prepared, rollback_queue::Rollbacks};
use crate::{
    buffer::{BufferPool, Space},
    checkpoint::TransactionNotes,
    error::{Error, LockError, Result},
    ids::{Lsn, SpaceId, TrxId, UndoPos},
    log::{GroupWriter, Log, Record},
    sync::{Arc, InterruptibleWait},
    system::SystemTree,
    txn::{
        locks::{
            HeldOnTable, LockManager, LockOwner, LockRequest, LockTimeout, LockWait, Modes, OwnerOptions,
            SharedObserver, TableMode, Waits, WholeTable, key_latch::KeyLatches,
        },
        mvcc::{
            Active, Ids, Snapshot,
            active::Noted,
            listing::{TransactionInfo, TransactionState},
        },
        undo::{Followers, Purge, Streams, UndoContext, UndoLimit, Versions},
    },
};

/// The default lock timeout of a call.
pub const LOCK_WAIT: Duration = Duration::from_secs(50);

/// The minimum timeout for each further table of a statement with a timeout above zero, even after its timeout has
/// passed.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// Part of a checkpoint's log group that is reserved for transactions that begin meanwhile, in bytes.
const NOTES_KEPT: usize = 1024;

/// Returns the most bytes that a checkpoint may log for the transactions: one group, less the reserve for transactions
/// that begin meanwhile.
pub(super) fn notes_most(pool: &BufferPool) -> usize {
    pool.context().log.max_group() - NOTES_KEPT
}

/// The transactions of a database: the parts of the transaction layer, and what they need of each other.
#[derive(Debug)]
pub struct Transactions {
    /// The context that undo streams, rollback and purge share.
    undo: Arc<UndoContext>,
    active: Arc<Active>,
    streams: Arc<Streams>,
    versions: Versions,
    purge: Arc<Purge>,
    undo_limit: UndoLimit,
    /// Observers of rows that are rolled back.
    followers: Arc<Followers>,
    /// Key latches, held for the length of a call.
    key_latches: Arc<KeyLatches>,
    /// The lock table: locks that transactions hold until they end.
    lock_manager: LockManager,
    /// The lock timeout of a call, if it is not the default.
    lock_wait: LockWait,
    /// Prepared transactions, which wait for the decision of an external coordinator.
    prepared: Prepared,
    /// Background rollbacks.
    rollbacks: Rollbacks,
}

/// The table locks of a statement.
#[derive(Debug)]
pub struct StatementLock<'a> {
    locks: &'a LockManager,
    lock_owner: Arc<LockOwner>,
    /// What the owner had before, if it is a transaction.
    of_transaction: Option<LocksBefore>,
}

/// The locks of a transaction before a statement in its name.
#[derive(Debug)]
struct LocksBefore {
    tables: Vec<(SpaceId, Modes)>,
    /// The trees of the tables.
    trees: Vec<Arc<Space>>,
}

impl Drop for StatementLock<'_> {
    fn drop(&mut self) {
        let Some(LocksBefore { tables, trees }) = self.of_transaction.take() else {
            self.locks.end(&self.lock_owner);
            return;
        };
        // Otherwise calls that wait for a lock there would learn only at the end of the transaction what is dropped.
        for tree in trees.iter().filter(|tree| tree.is_dropped()) {
            self.locks.release_space(&self.lock_owner, tree.id());
        }
        for (space, before) in tables {
            if trees.iter().any(|tree| tree.id() == space && !tree.is_dropped()) {
                self.locks.restore_table(&self.lock_owner, space, before);
            }
        }
    }
}

impl Transactions {
    /// Opens the transaction layer of a database after recovery of its pages. `unfinished` has the transactions that
    /// recovery has found, each with its first undo record; `prepared` has the names of the prepared ones. They are
    /// active from now on. `attach` attaches a tablespace to the pool, with the recorded state of its file.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn open(
        pool: Arc<BufferPool>,
        system: Arc<SystemTree>,
        ids: Arc<Ids>,
        unfinished: &BTreeMap<TrxId, UndoPos>,
        prepared: &BTreeMap<TrxId, Arc<[u8]>>,
        attach: &mut dyn FnMut(SpaceId) -> Result<Arc<Space>>,
    ) -> Result<Self> {
        let env = pool.context().env.clone();
        let active = Arc::new(Active::new(ids.clone(), env.clone()));
        for (trx, first) in unfinished {
            active.resume(*trx, *first, prepared.get(trx).cloned());
        }
        active.opened(notes_most(&pool))?;
        let undo = Arc::new(UndoContext::new(pool, system, ids));
        let streams = Arc::new(Streams::open(undo.clone(), attach)?);
        let key_latches = Arc::new(KeyLatches::new(env.clone()));
        let purge = Arc::new(Purge::new(undo.clone(), streams.clone(), active.clone(), key_latches.clone()));
        Ok(Self {
            versions: Versions::new(active.clone(), streams.clone()),
            undo_limit: UndoLimit::new(undo.clone(), streams.clone(), active.clone(), purge.clone()),
            followers: Arc::new(Followers::new()),
            lock_manager: LockManager::new(env),
            lock_wait: LockWait::new(None),
            prepared: Prepared::default(),
            rollbacks: Rollbacks::new(),
            undo,
            active,
            streams,
            purge,
            key_latches,
        })
    }

    /// Sets the observer of lock waits.
    #[must_use]
    pub fn with_observer(mut self, observer: Option<SharedObserver>) -> Self {
        if let Some(observer) = observer {
            self.lock_manager.set_observer(observer);
        }
        self
    }

    /// Returns whether a transaction has, or had, this number.
    pub fn has_begun(&self, trx: TrxId) -> bool {
        trx < self.undo.ids.next_trx()
    }

    /// Returns the ids, for the creation of tablespaces and for checkpoints.
    pub fn ids(&self) -> &Arc<Ids> {
        &self.undo.ids
    }

    /// Returns the table of active transactions.
    pub fn active(&self) -> &Arc<Active> {
        &self.active
    }

    /// Returns the undo streams, for metrics and checks.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Returns the reads of visible versions.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Returns purge.
    pub fn purge(&self) -> &Arc<Purge> {
        &self.purge
    }

    /// Returns the limit on undo.
    pub fn undo_limit(&self) -> &UndoLimit {
        &self.undo_limit
    }

    /// Returns the observers of rows that are rolled back.
    pub(crate) fn followers(&self) -> &Arc<Followers> {
        &self.followers
    }

    /// Returns what undo streams, rollback and purge share.
    pub(in crate::txn) fn undo_context(&self) -> &Arc<UndoContext> {
        &self.undo
    }

    /// Returns the prepared transactions, which wait for the decision of an external coordinator.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Returns the background rollbacks.
    pub fn rollbacks(&self) -> &Rollbacks {
        &self.rollbacks
    }

    /// Returns the log.
    pub(in crate::txn) fn log(&self) -> &Log {
        self.undo.log()
    }

    /// Returns the key latches.
    pub(crate) fn key_latches(&self) -> &KeyLatches {
        &self.key_latches
    }

    /// Returns the lock table: locks that transactions hold until they end.
    pub fn lock_manager(&self) -> &LockManager {
        &self.lock_manager
    }

    /// Returns the lock timeout of a call.
    pub fn lock_wait(&self) -> Duration {
        self.lock_wait.get().unwrap_or(LOCK_WAIT)
    }

    /// Changes the lock timeout of calls.
    pub fn set_lock_wait(&self, at_most: Duration) {
        self.lock_wait.set(Some(at_most));
    }

    /// Returns a snapshot of the transactions that have ended. An entry of one of them that is read after this call is
    /// final.
    pub fn ended(&self) -> Snapshot {
        self.active.ended()
    }

    /// Returns a number for an event at this moment, which existing read views do not see; `None` if there are none.
    ///
    /// # Errors
    /// If the log accepts no more records.
    pub fn stamp(&self) -> Result<Option<TrxId>> {
        self.active.stamp()
    }

    /// Locks tables for a statement until the returned guard is dropped. Waits for the transactions that use the
    /// tables.
    ///
    /// # Errors
    /// [`LockError`]; why the database has stopped; [`Error::Closed`] if it is being closed.
    pub(crate) fn lock_tables(
        &self,
        spaces: impl IntoIterator<Item = SpaceId>,
        mode: TableMode,
        at_most: Duration,
    ) -> Result<StatementLock<'_>> {
        // A statement is not a transaction and has no changes. The number names it in lists and errors.
        let lock_owner = self.lock_manager.lock_owner(self.active.number()?);
        let lock = StatementLock { locks: &self.lock_manager, lock_owner, of_transaction: None };
        self.lock_each(lock, spaces, at_most, |lock_owner, space, left| {
            self.acquire(lock_owner, LockRequest::Table(space, mode), LockTimeout::of(left))
        })
    }

    /// As [`Transactions::lock_tables`]. Calls `between` repeatedly while it waits for one of the tables: again at once
    /// if it returns `true`, because it has more to do.
    ///
    /// # Errors
    /// As [`Transactions::lock_tables`]; errors of `between`.
    pub(crate) fn lock_tables_meanwhile(
        &self,
        spaces: impl IntoIterator<Item = SpaceId>,
        mode: TableMode,
        at_most: Duration,
        between: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<StatementLock<'_>> {
        let lock_owner = self.lock_manager.lock_owner(self.active.number()?);
        let lock = StatementLock { locks: &self.lock_manager, lock_owner, of_transaction: None };
        self.lock_each(lock, spaces, at_most, |lock_owner, space, left| {
            let wanted = LockRequest::Table(space, mode);
            self.stop_reason(self.lock_manager.acquire_meanwhile(lock_owner, wanted, left, between))
        })
    }

    /// As [`Transactions::lock_tables`], exclusively and in the name of a transaction: its own locks block nothing. At
    /// the end it has the locks that it had before, except those in tablespaces that were dropped meanwhile: these are
    /// released. `trees` are those of the tables.
    ///
    /// # Errors
    /// As [`Transactions::lock_tables`]; after a deadlock the transaction must roll back.
    pub(crate) fn lock_tables_for(
        &self,
        lock_owner: &Arc<LockOwner>,
        spaces: impl IntoIterator<Item = SpaceId> + Clone,
        trees: Vec<Arc<Space>>,
        at_most: Duration,
    ) -> Result<StatementLock<'_>> {
        let held = |space| (space, self.lock_manager.table_modes(lock_owner, space));
        let tables: Vec<_> = spaces.clone().into_iter().map(held).collect();
        debug_assert!(
            tables.iter().all(|(space, _)| trees.iter().any(|tree| tree.id() == *space)),
            "a table is locked, and none of the trees is that of its rows"
        );
        let lock = StatementLock {
            locks: &self.lock_manager,
            lock_owner: lock_owner.clone(),
            of_transaction: Some(LocksBefore { tables, trees }),
        };
        self.lock_each(lock, spaces, at_most, |lock_owner, space, left| {
            self.acquire(lock_owner, LockRequest::Table(space, TableMode::Exclusive), LockTimeout::of(left))
        })
    }

    fn lock_each<'a>(
        &self,
        lock: StatementLock<'a>,
        spaces: impl IntoIterator<Item = SpaceId>,
        at_most: Duration,
        mut acquire: impl FnMut(&Arc<LockOwner>, SpaceId, Duration) -> Result<()>,
    ) -> Result<StatementLock<'a>> {
        let began = self.now();
        for space in spaces {
            // The time limit is that of the statement, not of each of its tables.
            let left = at_most.saturating_sub(self.now().saturating_sub(began)).max(at_most.min(LEAST_WAIT));
            acquire(&lock.lock_owner, space, left)?;
        }
        Ok(lock)
    }

    /// Requests a lock and waits for it if necessary, as [`LockManager::acquire`] does.
    ///
    /// # Errors
    /// The errors of [`LockManager::acquire`]; the reason why the database has stopped; [`Error::Closed`] if it is
    /// being closed.
    pub fn acquire(&self, me: &Arc<LockOwner>, wanted: LockRequest, lock_timeout: LockTimeout) -> Result<()> {
        self.stop_reason(self.lock_manager.acquire(me, wanted, lock_timeout).map_err(Error::from))
    }

    /// Replaces the error of an interrupted wait by the reason for which the database has stopped or is closing, if
    /// that ended it.
    fn stop_reason(&self, taken: Result<()>) -> Result<()> {
        match taken {
            Err(Error::Lock(LockError::Interrupted)) if self.lock_manager.is_stopped() => {
                self.undo.pool.context().health.check()?;
                Err(Error::Closed)
            }
            taken => taken,
        }
    }

    /// Locks a table in this mode for a statement that blocks others only in short intervals. Each interval lasts at
    /// most a quarter of the lock timeout, or 50 ms if that is more, as in [`LockManager::acquire_yielding`].
    ///
    /// # Errors
    /// As [`Transactions::lock_tables`]; errors of `between`.
    pub(crate) fn lock_table_in_turns(
        &self,
        space: SpaceId,
        mode: TableMode,
        at_most: Duration,
        between: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<StatementLock<'_>> {
        let lock_owner = self.lock_manager.lock_owner_with(self.active.number()?, OwnerOptions::VICTIM);
        let lock = StatementLock { locks: &self.lock_manager, lock_owner, of_transaction: None };
        let longest = self.lock_wait() / 4;
        let wanted = (space, mode);
        let taken = self.lock_manager.acquire_yielding(&lock.lock_owner, wanted, at_most, longest, between);
        self.stop_reason(taken)?;
        Ok(lock)
    }

    /// As [`Transactions::acquire`], for a call with one time limit for all its waits.
    ///
    /// # Errors
    /// As [`Transactions::acquire`].
    pub fn acquire_in_call(&self, me: &Arc<LockOwner>, wanted: LockRequest, waits: &mut Waits) -> Result<()> {
        self.wait_in_call(waits, |left| Ok(self.lock_manager.acquire(me, wanted, left)?))
    }

    /// Locks a whole table ([`LockManager::lock_whole`]), for a call with one time limit for all its waits. Then waits
    /// until no rollback in the background has changes left in the table: such ones hold no lock on it. If they do not
    /// end in time, the table is not locked.
    ///
    /// # Errors
    /// As [`Transactions::acquire`].
    pub fn lock_whole_in_call<T: WholeTable>(
        &self,
        me: &Arc<LockOwner>,
        table: &Arc<T>,
        (space, mode): (SpaceId, TableMode),
        waits: &mut Waits,
    ) -> Result<()> {
        let before = self.lock_manager.held_on_table(me, space);
        self.wait_in_call(waits, |left| Ok(self.lock_manager.lock_whole(me, table, (space, mode), left)?))?;
        let clear = self.wait_in_call(waits, |left| self.await_rollbacks(me, space, left));
        if clear.is_err() {
            self.lock_manager.restore_whole(me, space, before);
        }
        clear
    }

    /// Returns what a lock owner has on a table.
    pub fn held_on_table(&self, me: &LockOwner, space: SpaceId) -> HeldOnTable {
        self.lock_manager.held_on_table(me, space)
    }

    /// Gives up what a lock owner has got on a table since ([`Transactions::lock_whole_in_call`]).
    pub fn restore_whole(&self, me: &LockOwner, space: SpaceId, before: HeldOnTable) {
        self.lock_manager.restore_whole(me, space, before);
    }

    /// Waits until no rollback in the background has changes left in a table.
    fn await_rollbacks(&self, me: &Arc<LockOwner>, space: SpaceId, lock_timeout: LockTimeout) -> Result<()> {
        let at_most = match lock_timeout {
            LockTimeout::NoWait => Duration::ZERO,
            LockTimeout::AtMost(most) => most,
            LockTimeout::Forever => Duration::MAX,
        };
        let waiting = InterruptibleWait::begin(me);
        let awaited = background_rollback::await_rollbacks(self, space, at_most, &mut || {
            if waiting.is_interrupted() || me.is_interrupted() || self.lock_manager.is_stopped() {
                me.take_interrupt();
                return Err(LockError::Interrupted.into());
            }
            Ok(false)
        });
        match awaited {
            // The call has waited, and its time was over before this wait.
            Err(Error::Lock(LockError::Busy(blockers))) if lock_timeout != LockTimeout::NoWait => {
                Err(LockError::TimedOut { blockers, waited: Duration::ZERO }.into())
            }
            awaited => awaited,
        }
    }

    fn wait_in_call(&self, waits: &mut Waits, wait: impl FnOnce(LockTimeout) -> Result<()>) -> Result<()> {
        let began = self.now();
        let taken = self.stop_reason(wait(waits.left()));
        waits.add(self.now().saturating_sub(began));
        match taken {
            Err(Error::Lock(LockError::TimedOut { blockers, .. })) => {
                Err(LockError::TimedOut { blockers, waited: waits.so_far() }.into())
            }
            taken => taken,
        }
    }

    /// Ends all waits for locks, because the database has stopped or is being closed. Each waiter gets the reason, and
    /// no call waits for a lock any more.
    pub(crate) fn end_lock_waits(&self) {
        self.lock_manager.stop();
    }

    /// Interrupts the wait of a transaction for a lock, or the next wait of its call if it does not wait now. Of a
    /// statement only the current wait is interrupted. Returns whether a transaction, or a statement that waits, has
    /// this number.
    pub fn interrupt(&self, trx: TrxId) -> bool {
        while let Some(lock_owner) = self.active.lock_owner(trx, &self.lock_manager) {
            if self.lock_manager.interrupt(&lock_owner) {
                return true;
            }
            // The transaction has released its locks meanwhile, and uses another lock owner from now on.
        }
        self.lock_manager.interrupt_wait(trx)
    }

    /// Makes the next change fail at this step, counted from 1.
    #[cfg(any(test, feature = "testing"))]
    pub fn fail_at(&self, step: u64) {
        self.undo.failpoint.set(step);
    }

    /// Returns the buffer pool.
    pub fn pool(&self) -> &Arc<BufferPool> {
        &self.undo.pool
    }

    /// Returns the time of the environment.
    pub(in crate::txn) fn now(&self) -> Duration {
        self.undo.now()
    }

    /// Releases the locks of a transaction except those on what it has changed, for which waiters create new ones.
    /// Returns its former lock owner.
    pub(in crate::txn) fn release_locks(&self, trx: TrxId) -> Option<Arc<LockOwner>> {
        let lock_owner = self.active.take_lock_owner(trx)?;
        self.lock_manager.end(&lock_owner);
        Some(lock_owner)
    }

    /// Returns all transactions with a number that have not ended, by number.
    pub fn listing(&self) -> Vec<TransactionInfo> {
        let mut list = self.active.listing();
        let rolled_back = self.rollbacks.all();
        for info in list.iter_mut().filter(|info| rolled_back.contains(&info.id)) {
            info.state = TransactionState::RollingBack;
        }
        list
    }
}

impl TransactionNotes for Transactions {
    fn note(&self, group: &mut GroupWriter) -> Option<Lsn> {
        let (Noted { active, prepared }, limit) = self.active.note();
        if !active.is_empty() {
            group.push(&Record::TrxTable { active });
        }
        for (trx, xid) in prepared {
            group.push(&Record::TrxPrepare { trx, xid: xid[..].into() });
        }
        debug_assert!(
            group.bytes().len() <= self.log().max_group(),
            "the transactions that a checkpoint names do not fit into a group"
        );
        limit
    }

    fn ceilings(&self) -> (u64, u64) {
        self.ids().ceilings()
    }
}
