//! Transactions: ids, undo, rollback, views, locks, purge, and the changes of rows that they are for.
//!
//! **Purpose.** A row with all its secondary entries changes whole or not at all, and so do all rows of a transaction,
//! while the process runs and over a crash; and what is seen of others is what the level of isolation says.
//!
//! **Invariants.**
//! - A change of a row is: the turn at the row (`lock`); one undo record and the clustered entry in one
//!   mini-transaction; a mini-transaction for each secondary entry. A transaction of one call logs `TrxEnd` in the last
//!   of them: without secondary entries it is one group of the log.
//! - Every entry carries the transaction and the position of the undo record that made its version. Whoever takes back
//!   or purges touches an entry only if it still does.
//! - What a change may need is made sure of before its first mini-transaction latches anything: undo slices, lengths of
//!   keys, uniqueness, log for it and for its way back. Rollback needs nothing new.
//! - An overflow chain belongs to one version. It is noted in undo before its first page is linked anywhere. Purge
//!   frees it, piece by piece, with the record that replaced or deleted the value, or with its own one once that was
//!   taken back.
//! - *Recovery.* A transaction is unfinished if it is in the `TrxTable` record that the control file names, or has a
//!   `TrxBegin` at or above the floor, and has no `TrxEnd` at or above the floor. Its records are found by reading its
//!   stream from the first one on. The table is read after the rest of the floor is, and holds the floor below the end
//!   of whoever is in it and about to log that ([`Transactions::note`]). Unfinished transactions are active again when
//!   the database opens, and are rolled back in the background (`rollbacks`).
//! - *Visibility.* The version of an entry counts for a reader if his view sees its transaction, or it is his own; if
//!   not, the undo record that made it leads to the one before (`version`). A commit is the removal of the id from the
//!   table of active transactions: all that carries it is seen from then on. Purge and the drop of slices leave alone
//!   what a view may still need.
//! - *Locks.* Who has changed an entry and not ended has it locked; all else is in the lock table (`locks`). A call
//!   that is in somebody's way has no turn, no gate and no latch while it waits (`conflict`).
//!
//! **May touch.** `system`, `store`, `tree`, `mtr`, `buffer`, `log` and what is below.
//!
//! The order of locks: the turn at a row, at the keys of unique indexes, an undo stream, the system tree, pages: a
//! tree's, then undo pages, then allocation maps.

pub mod active;
mod chains;
pub mod conflict;
pub mod followers;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod ids;
pub mod listing;
pub mod lock;
mod locking;
pub mod locks;
pub mod prepared;
mod purge;
pub mod read;
pub mod rest;
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
mod way_back;

#[cfg(test)]
mod tests;

pub use active::{Active, Horizon, ReadView};
pub use conflict::{Blocked, Stop};
pub use followers::{Follower, Following};
pub use ids::Ids;
pub use locks::Locks;
pub use read::RowReader;
pub use row::{Edit, Mode, RowTarget, Secondary, Value, Watch};
pub use secondary::{entry_key, index_key_of};
pub use stream::Stream;
pub use trx::{Rules, Savepoint, Suspended, Trx};
pub use undo_limit::AtUndoLimit;
pub use version::Sight;

use core::time::Duration;
use std::collections::BTreeMap;

use active::Noted;
use locks::{Locker, Patience, TableMode, Waits, Wanted};

use crate::{
    buffer::{BufferPool, Space},
    error::{Error, LockError, Result},
    ids::{Lsn, SpaceId, TrxId, UndoPos},
    log::{GroupWriter, Record},
    sync::{
        Arc, Bug, Event,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        planted,
    },
    system::SystemTree,
    tree::hash::HashBudget,
};

/// How long a call waits for a lock unless it is told otherwise.
pub const LOCK_WAIT: Duration = Duration::from_secs(50);

/// What a statement that may wait is left for each further table, however late it is.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// What is kept of a checkpoint's group, in bytes, for transactions that begin meanwhile.
const NOTES_KEPT: usize = 1024;

/// What a checkpoint may note of the transactions, in bytes: one group, with room for some that begin meanwhile.
fn notes_most(pool: &BufferPool) -> usize {
    pool.ground().log.max_group() - NOTES_KEPT
}

/// The transaction floor of a database.
#[derive(Debug)]
pub struct Transactions {
    ground: Arc<stream::Ground>,
    ids: Arc<Ids>,
    active: Arc<Active>,
    streams: streams::Streams,
    /// Turns at rows, for the length of a call.
    locks: lock::RowLocks,
    /// What transactions have locked until they end.
    row_locks: Locks,
    /// How long a call waits for a lock, in microseconds.
    lock_wait: AtomicU64,
    /// For the trees that rollback and purge look into: they have no hash index.
    no_hash: Arc<HashBudget>,
    /// Transactions that wait for the word of an outer coordinator.
    prepared: prepared::Prepared,
    /// What is taken back in the background.
    rollbacks: rollbacks::Rollbacks,
    /// How often purge has met a table at rest.
    met_at_rest: AtomicU64,
    /// What has to know of the rows that are taken back.
    followers: followers::Followers,
    slices_dropped: AtomicU64,
    /// What purge has got rid of: records that it was done with, and parts of chains.
    purged: AtomicU64,
    /// What undo may take, in bytes.
    undo_limit: AtomicU64,
    /// How often a change has found it passed.
    undo_waits: AtomicU64,
    /// Whether old views are ended then.
    ends_views: AtomicBool,
    views_ended: AtomicU64,
    #[cfg(test)]
    failpoint: tests::Failpoint,
}

/// The locks of a statement on tables.
#[derive(Debug)]
pub struct StatementLock<'a> {
    locks: &'a Locks,
    locker: Arc<Locker>,
}

impl Drop for StatementLock<'_> {
    fn drop(&mut self) {
        self.locks.end(&self.locker);
    }
}

impl Transactions {
    /// The transactions of a database whose pages are recovered: `unfinished` are those that recovery has found, each
    /// with its first undo record, and `prepared` the names of those that are prepared. They count as active from now
    /// on. `attach` makes a tablespace known to the pool, with what is known of its file.
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
        let env = pool.ground().env.clone();
        let purge_wake = Arc::new(Event::new());
        let ground = Arc::new(stream::Ground {
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
        active.opened(&ids, notes_most(&ground.pool))?;
        Ok(Self {
            streams: streams::Streams::open(ground.clone(), attach)?,
            ground,
            ids,
            active,
            locks: lock::RowLocks::new(env.clone()),
            row_locks: Locks::new(env),
            lock_wait: AtomicU64::new(LOCK_WAIT.as_micros() as u64),
            no_hash: Arc::new(HashBudget::new(0)),
            prepared: prepared::Prepared::default(),
            rollbacks: rollbacks::Rollbacks::new(),
            met_at_rest: AtomicU64::new(0),
            followers: followers::Followers::new(),
            slices_dropped: AtomicU64::new(0),
            purged: AtomicU64::new(0),
            undo_limit: AtomicU64::new(u64::MAX),
            undo_waits: AtomicU64::new(0),
            ends_views: AtomicBool::new(false),
            views_ended: AtomicU64::new(0),
            #[cfg(test)]
            failpoint: tests::Failpoint::default(),
        })
    }

    /// What a checkpoint notes: the unfinished transactions. Gives the LSN above which its floor must not be. The rest
    /// of the floor was read before.
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

    /// Whether a transaction has this number, or had it.
    pub fn has_begun(&self, trx: TrxId) -> bool {
        trx < self.ids.next_trx()
    }

    /// The ids, for whoever makes tablespaces, and for checkpoints.
    pub fn ids(&self) -> &Arc<Ids> {
        &self.ids
    }

    /// The undo streams, for metrics and checks.
    pub fn streams(&self) -> &streams::Streams {
        &self.streams
    }

    /// Transactions that wait for the word of an outer coordinator.
    pub fn prepared(&self) -> &prepared::Prepared {
        &self.prepared
    }

    /// What is taken back in the background.
    pub fn rollbacks(&self) -> &rollbacks::Rollbacks {
        &self.rollbacks
    }

    /// The row locks.
    pub fn locks(&self) -> &lock::RowLocks {
        &self.locks
    }

    /// What transactions have locked until they end.
    pub fn row_locks(&self) -> &Locks {
        &self.row_locks
    }

    /// How long a call waits for a lock.
    pub fn lock_wait(&self) -> Duration {
        Duration::from_micros(self.lock_wait.load(Relaxed))
    }

    /// Changes how long calls wait for a lock.
    pub fn set_lock_wait(&self, at_most: Duration) {
        self.lock_wait.store(u64::try_from(at_most.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The transactions that have ended by now: an entry of one of them that is read from now on is one that stays.
    pub fn ended(&self) -> Horizon {
        self.active.ended(&self.ids)
    }

    /// The number of something that happens at this moment, which the views that are there do not see.
    ///
    /// # Errors
    /// When the log takes no more.
    pub fn stamp(&self) -> Result<TrxId> {
        self.active.stamp(&self.ids)
    }

    /// Locks tables for a statement, until what is returned goes: it waits for the transactions that have to do with
    /// them.
    ///
    /// # Errors
    /// [`LockError`]; why the database has stopped, or that it is closed.
    pub fn lock_tables(
        &self,
        spaces: impl IntoIterator<Item = SpaceId>,
        mode: TableMode,
        at_most: Duration,
    ) -> Result<StatementLock<'_>> {
        // It is no transaction, and has no changes; the number is a name for lists and errors.
        let locker = self.row_locks.locker(self.active.number(&self.ids)?);
        let lock = StatementLock { locks: &self.row_locks, locker };
        let began = self.now();
        for space in spaces {
            // The time is that of the statement, not of each of its tables.
            let left = at_most.saturating_sub(self.now().saturating_sub(began)).max(at_most.min(LEAST_WAIT));
            self.acquire(&lock.locker, Wanted::Table(space, mode), Patience::of(left))?;
        }
        Ok(lock)
    }

    /// Takes a lock, or waits for it: as [`Locks::acquire`].
    ///
    /// # Errors
    /// What [`Locks::acquire`] says; why the database has stopped, if it has, or is being closed.
    pub fn acquire(&self, me: &Arc<Locker>, wanted: Wanted, patience: Patience) -> Result<()> {
        self.why_not(self.row_locks.acquire(me, wanted, patience).map_err(Error::from))
    }

    /// Says why the database has stopped, or is being closed, if that has ended a wait.
    fn why_not(&self, taken: Result<()>) -> Result<()> {
        match taken {
            Err(Error::Lock(LockError::Interrupted)) if self.row_locks.is_stopped() => {
                self.ground.pool.ground().health.check()?;
                Err(Error::Closed)
            }
            taken => taken,
        }
    }

    /// Locks a table for a statement that is in the way of others in turns only, each of which lasts no longer than a
    /// quarter of what is set for the waits of all, or 50 ms if that is more: as [`Locks::acquire_in_turns`].
    ///
    /// # Errors
    /// As [`Transactions::lock_tables`]; that of `between`.
    pub fn lock_table_in_turns(
        &self,
        space: SpaceId,
        mode: TableMode,
        at_most: Duration,
        between: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<StatementLock<'_>> {
        let locker = self.row_locks.locker(self.active.number(&self.ids)?);
        let lock = StatementLock { locks: &self.row_locks, locker };
        let longest = self.lock_wait() / 4;
        let taken = self.row_locks.acquire_in_turns(&lock.locker, space, mode, at_most, longest, between);
        self.why_not(taken)?;
        Ok(lock)
    }

    /// As [`Transactions::acquire`], for a call whose waits count together.
    ///
    /// # Errors
    /// As [`Transactions::acquire`].
    pub fn acquire_in_call(&self, me: &Arc<Locker>, wanted: Wanted, waits: &mut Waits) -> Result<()> {
        let began = self.now();
        let taken = self.acquire(me, wanted, waits.left());
        waits.add(self.now().saturating_sub(began));
        match taken {
            Err(Error::Lock(LockError::TimedOut { in_the_way, .. })) => {
                Err(LockError::TimedOut { in_the_way, waited: waits.so_far() }.into())
            }
            taken => taken,
        }
    }

    /// The database has stopped, or is being closed: nobody waits for a lock any more, and who does is told why.
    pub fn end_lock_waits(&self) {
        self.row_locks.stop();
    }

    /// Ends the wait of a transaction for a lock, or the next one of its call if it does not wait; of a statement only
    /// the wait that is under way. Says whether there is one of this number.
    pub fn interrupt(&self, trx: TrxId) -> bool {
        while let Some(locker) = self.active.locker(trx, &self.row_locks) {
            if self.row_locks.interrupt(&locker) {
                return true;
            }
            // It has given way, and locks by another one from now on.
        }
        self.row_locks.interrupt_wait(trx)
    }

    /// Undo slices dropped since the database was opened.
    pub fn slices_dropped(&self) -> u64 {
        self.slices_dropped.load(Relaxed)
    }

    /// Fails the next change at this step, counted from 1.
    #[cfg(test)]
    pub(crate) fn fail_at(&self, step: u64) {
        self.failpoint.set(step);
    }

    /// The pages.
    pub fn pool(&self) -> &Arc<BufferPool> {
        &self.ground.pool
    }

    fn now(&self) -> Duration {
        self.ground.pool.ground().env.now()
    }
}
