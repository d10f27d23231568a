//! Transactions: ids, undo, rollback, read views, locks, purge and row changes.
//!
//! **Purpose.** A row and all its secondary entries change atomically, and so do all rows of a transaction, at run time
//! and across a crash. The isolation level decides which changes of other transactions are visible.
//!
//! **Invariants.**
//! - A row change takes the key latch of the row (`key_latch`), one mini-transaction for the undo record and the
//!   clustered entry, and one mini-transaction per secondary entry. A transaction of a single call logs `TrxEnd` in
//!   the last of them: without secondary entries it is one log group.
//! - Every entry carries its transaction id and the position of the undo record that made its version. Rollback and
//!   purge touch an entry only if it still carries both.
//! - Everything that a change may need is ensured before its first mini-transaction latches anything: undo slices, key
//!   lengths, uniqueness, log space for the change and for its rollback. Rollback needs nothing new.
//! - An overflow chain belongs to one version. An undo record names it before its first page is linked anywhere. Purge
//!   frees it in pieces, with the record that replaced or deleted the value, or with the chain's own record once that
//!   was rolled back.
//! - *Recovery.* A transaction is unfinished if it is in the `TrxTable` record that the control file names, or has a
//!   `TrxBegin` at or above the low-water mark of the log, and has no `TrxEnd` at or above that mark. Its undo records
//!   are found by reading its stream from its first record on. A checkpoint reads the table after all other parts of
//!   the low-water mark. The mark stays below the `TrxEnd` of every transaction that is in the table and about to log
//!   it ([`Transactions::note`]). Unfinished transactions are active again when the database opens, and are rolled back
//!   in the background (`rollbacks`).
//! - *Visibility.* A reader sees the version of an entry if its read view sees the transaction, or if the version is
//!   its own. Otherwise the undo record that made the version leads to the previous one (`version`). A commit is the
//!   removal of the id from the table of active transactions: from then on all its versions are visible. Purge and the
//!   drop of slices keep what a read view may still need.
//! - *Locks.* A transaction that has changed an entry and not ended holds an implicit lock on it. All other locks are
//!   in the lock table (`locks`). A blocked call holds no key latch, no gate and no page latch while it waits
//!   (`conflict`).
//!
//! Lock order: key latch of a row, key latches of unique index keys, an undo stream, the system tree, pages. Pages in
//! this order: pages of a tree, then undo pages, then allocation maps.

pub mod active;
mod chains;
pub mod conflict;
pub mod followers;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod ids;
pub mod key_latch;
pub mod listing;
mod locking_read;
pub mod locks;
pub mod prepared;
mod purge;
pub mod quiesce;
pub mod read;
mod rollback;
pub mod rollbacks;
pub mod row;
pub mod secondary;
pub mod stream;
pub mod streams;
mod temporary;
pub mod trx;
mod undo_limit;
pub mod undo_record;
mod version;

#[cfg(any(test, feature = "testing"))]
mod failpoint;
#[cfg(test)]
mod tests;

pub use active::{Active, ReadView, Snapshot};
pub use conflict::{Blocked, Stop};
pub use followers::{Follower, Following};
pub use ids::Ids;
pub use locks::LockManager;
pub use read::RowReader;
pub use row::{Edit, Mode, RowTarget, Secondary, Value, Watch};
pub use secondary::{entry_key, index_key_of};
pub use stream::Stream;
pub use trx::{Rules, Savepoint, Suspended, Trx};
pub use undo_limit::AtUndoLimit;
pub use version::Visibility;

use core::time::Duration;
use std::collections::BTreeMap;

use active::Noted;
use locks::{LockOwner, LockRequest, LockTimeout, TableMode, Waits};

use crate::{
    buffer::{BufferPool, Space},
    error::{Error, LockError, Result},
    ids::{Lsn, SpaceId, TrxId, UndoPos},
    log::{GroupWriter, Log, Record},
    sync::{
        Arc, Bug, Event,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        planted,
    },
    system::SystemTree,
    tree::hash::HashBudget,
};

/// The default lock timeout of a call.
pub const LOCK_WAIT: Duration = Duration::from_secs(50);

/// The least time that a statement that may wait at all is left for each further table, however late it is.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// Part of a checkpoint's log group that is reserved for transactions that begin meanwhile, in bytes.
const NOTES_KEPT: usize = 1024;

/// Returns the most bytes that a checkpoint may log for the transactions: one group, less the reserve for transactions
/// that begin meanwhile.
fn notes_most(pool: &BufferPool) -> usize {
    pool.context().log.max_group() - NOTES_KEPT
}

/// The transaction layer of a database.
#[derive(Debug)]
pub struct Transactions {
    context: Arc<stream::UndoContext>,
    ids: Arc<Ids>,
    active: Arc<Active>,
    streams: streams::Streams,
    /// Key latches, held for the length of a call.
    key_latches: key_latch::KeyLatches,
    /// The lock table: locks that transactions hold until they end.
    lock_manager: LockManager,
    /// The lock timeout of a call, in microseconds.
    lock_wait: AtomicU64,
    /// For the trees that rollback and purge access: they have no hash index.
    no_hash: Arc<HashBudget>,
    /// Prepared transactions, which wait for the decision of an external coordinator.
    prepared: prepared::Prepared,
    /// Background rollbacks.
    rollbacks: rollbacks::Rollbacks,
    /// The number of times that purge has found a table quiesced.
    met_quiesced: AtomicU64,
    /// Observers of rows that are rolled back.
    followers: followers::Followers,
    slices_dropped: AtomicU64,
    /// The number of records that purge has finished, and of parts of chains that it has freed.
    purged: AtomicU64,
    /// The limit on undo, in bytes.
    undo_limit: AtomicU64,
    /// The number of times that a change has found the limit exceeded.
    undo_waits: AtomicU64,
    /// Whether old read views are ended when the limit is exceeded.
    ends_views: AtomicBool,
    views_ended: AtomicU64,
    #[cfg(any(test, feature = "testing"))]
    failpoint: failpoint::Failpoint,
}

/// The table locks of a statement.
#[derive(Debug)]
pub struct StatementLock<'a> {
    locks: &'a LockManager,
    lock_owner: Arc<LockOwner>,
}

impl Drop for StatementLock<'_> {
    fn drop(&mut self) {
        self.locks.end(&self.lock_owner);
    }
}

impl Transactions {
    /// Opens the transaction layer of a database after recovery of its pages. `unfinished` has the transactions that
    /// recovery has found, each with its first undo record; `prepared` has the names of the prepared ones. They are
    /// active from now on. `attach` makes a tablespace known to the pool, with what is known of its file.
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
        let purge_wake = Arc::new(Event::new());
        let context = Arc::new(stream::UndoContext {
            pool,
            system,
            ids: ids.clone(),
            purge_wake,
            slices: AtomicU64::new(0),
            slice_dropped: Event::new(),
        });
        let active = Arc::new(Active::default());
        for (trx, first) in unfinished {
            active.resume(*trx, *first, prepared.get(trx).cloned(), env.now());
        }
        active.opened(&ids, notes_most(&context.pool))?;
        Ok(Self {
            streams: streams::Streams::open(context.clone(), attach)?,
            context,
            ids,
            active,
            key_latches: key_latch::KeyLatches::new(env.clone()),
            lock_manager: LockManager::new(env),
            lock_wait: AtomicU64::new(LOCK_WAIT.as_micros() as u64),
            no_hash: Arc::new(HashBudget::new(0)),
            prepared: prepared::Prepared::default(),
            rollbacks: rollbacks::Rollbacks::new(),
            met_quiesced: AtomicU64::new(0),
            followers: followers::Followers::new(),
            slices_dropped: AtomicU64::new(0),
            purged: AtomicU64::new(0),
            undo_limit: AtomicU64::new(u64::MAX),
            undo_waits: AtomicU64::new(0),
            ends_views: AtomicBool::new(false),
            views_ended: AtomicU64::new(0),
            #[cfg(any(test, feature = "testing"))]
            failpoint: failpoint::Failpoint::default(),
        })
    }

    /// Appends the unfinished transactions to a checkpoint's group. Returns the LSN that the checkpoint's low-water
    /// mark must not exceed. The other parts of the low-water mark were read before.
    pub fn note(&self, group: &mut GroupWriter) -> Lsn {
        let (Noted { active, prepared }, limit) = self.active.note();
        if !active.is_empty() {
            group.push(&Record::TrxTable { active });
        }
        for (trx, xid) in prepared.into_iter().filter(|_| !planted(Bug::PreparedNotNoted)) {
            group.push(&Record::TrxPrepare { trx, xid: xid[..].into() });
        }
        limit
    }

    /// Returns whether a transaction has, or had, this number.
    pub fn has_begun(&self, trx: TrxId) -> bool {
        trx < self.ids.next_trx()
    }

    /// Returns the ids, for the creation of tablespaces and for checkpoints.
    pub fn ids(&self) -> &Arc<Ids> {
        &self.ids
    }

    /// Returns the undo streams, for metrics and checks.
    pub fn streams(&self) -> &streams::Streams {
        &self.streams
    }

    /// Returns the prepared transactions, which wait for the decision of an external coordinator.
    pub fn prepared(&self) -> &prepared::Prepared {
        &self.prepared
    }

    /// Returns the background rollbacks.
    pub fn rollbacks(&self) -> &rollbacks::Rollbacks {
        &self.rollbacks
    }

    /// Returns the log.
    fn log(&self) -> &Log {
        &self.context.pool.context().log
    }

    /// Returns the key latches.
    pub fn key_latches(&self) -> &key_latch::KeyLatches {
        &self.key_latches
    }

    /// Returns the lock table: locks that transactions hold until they end.
    pub fn lock_manager(&self) -> &LockManager {
        &self.lock_manager
    }

    /// Returns the lock timeout of a call.
    pub fn lock_wait(&self) -> Duration {
        Duration::from_micros(self.lock_wait.load(Relaxed))
    }

    /// Changes the lock timeout of calls.
    pub fn set_lock_wait(&self, at_most: Duration) {
        self.lock_wait.store(u64::try_from(at_most.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns a snapshot of the transactions that have ended. An entry of one of them that is read after this call is
    /// final.
    pub fn ended(&self) -> Snapshot {
        self.active.ended(&self.ids)
    }

    /// Returns a number for an event at this moment, which existing read views do not see.
    ///
    /// # Errors
    /// If the log accepts no more records.
    pub fn stamp(&self) -> Result<TrxId> {
        self.active.stamp(&self.ids)
    }

    /// Locks tables for a statement until the returned guard is dropped. Waits for the transactions that use the
    /// tables.
    ///
    /// # Errors
    /// [`LockError`]; why the database has stopped; [`Error::Closed`] if it is being closed.
    pub fn lock_tables(
        &self,
        spaces: impl IntoIterator<Item = SpaceId>,
        mode: TableMode,
        at_most: Duration,
    ) -> Result<StatementLock<'_>> {
        // A statement is no transaction and has no changes. The number names it in lists and errors.
        let lock_owner = self.lock_manager.lock_owner(self.active.number(&self.ids)?);
        let lock = StatementLock { locks: &self.lock_manager, lock_owner };
        let began = self.now();
        for space in spaces {
            // The time limit is that of the statement, not of each of its tables.
            let left = at_most.saturating_sub(self.now().saturating_sub(began)).max(at_most.min(LEAST_WAIT));
            self.acquire(&lock.lock_owner, LockRequest::Table(space, mode), LockTimeout::of(left))?;
        }
        Ok(lock)
    }

    /// Requests a lock and waits for it if necessary, as [`LockManager::acquire`] does.
    ///
    /// # Errors
    /// Those of [`LockManager::acquire`]; why the database has stopped; [`Error::Closed`] if it is being closed.
    pub fn acquire(&self, me: &Arc<LockOwner>, wanted: LockRequest, lock_timeout: LockTimeout) -> Result<()> {
        self.stop_reason(self.lock_manager.acquire(me, wanted, lock_timeout).map_err(Error::from))
    }

    /// Replaces the error of an interrupted wait by the reason for which the database has stopped or is closing, if
    /// that ended it.
    fn stop_reason(&self, taken: Result<()>) -> Result<()> {
        match taken {
            Err(Error::Lock(LockError::Interrupted)) if self.lock_manager.is_stopped() => {
                self.context.pool.context().health.check()?;
                Err(Error::Closed)
            }
            taken => taken,
        }
    }

    /// Locks a table for a statement that blocks others only in short intervals. Each interval lasts at most a quarter
    /// of the lock timeout, or 50 ms if that is more, as in [`LockManager::acquire_yielding`].
    ///
    /// # Errors
    /// As [`Transactions::lock_tables`]; errors of `between`.
    pub fn lock_table_in_turns(
        &self,
        space: SpaceId,
        mode: TableMode,
        at_most: Duration,
        between: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<StatementLock<'_>> {
        let lock_owner = self.lock_manager.lock_owner(self.active.number(&self.ids)?);
        let lock = StatementLock { locks: &self.lock_manager, lock_owner };
        let longest = self.lock_wait() / 4;
        let taken =
            self.lock_manager.acquire_yielding(&lock.lock_owner, space, mode, at_most, longest, between);
        self.stop_reason(taken)?;
        Ok(lock)
    }

    /// As [`Transactions::acquire`], for a call with one time limit for all its waits.
    ///
    /// # Errors
    /// As [`Transactions::acquire`].
    pub fn acquire_in_call(&self, me: &Arc<LockOwner>, wanted: LockRequest, waits: &mut Waits) -> Result<()> {
        let began = self.now();
        let taken = self.acquire(me, wanted, waits.left());
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
    pub fn end_lock_waits(&self) {
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

    /// Returns the number of undo slices dropped since the database was opened.
    pub fn slices_dropped(&self) -> u64 {
        self.slices_dropped.load(Relaxed)
    }

    /// Makes the next change fail at this step, counted from 1.
    #[cfg(any(test, feature = "testing"))]
    pub fn fail_at(&self, step: u64) {
        self.failpoint.set(step);
    }

    /// Returns the buffer pool.
    pub fn pool(&self) -> &Arc<BufferPool> {
        &self.context.pool
    }

    fn now(&self) -> Duration {
        self.context.pool.context().env.now()
    }
}
