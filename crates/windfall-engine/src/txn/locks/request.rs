//! Lock requests and their representation in reports.
//!
//! **Purpose.** The names of rows, the locks on tables, rows and ranges of keys, the timeout of a request, and the
//! report of a deadlock.
//!
//! **Invariants.** A row is named by its key and not by a hash of it: a false conflict could cause a false deadlock (by
//! type). The waits of a call share one timeout (test: `the_waits_of_one_call_last_no_longer_together_than_one`).

use core::{fmt, time::Duration};

use super::{mode::RowMode, mode::TableMode};
use crate::{
    error::Blockers,
    ids::{SpaceId, TrxId},
    keys::KeyRange,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The name of a row, or of an index key, which may exist or not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowName {
    /// The tablespace of the tree.
    pub space: SpaceId,
    /// The whole key, which copies of the name share, and the lock table.
    pub key: Arc<[u8]>,
}

/// A lock request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockRequest {
    /// A table, by the tablespace of its clustered tree.
    Table(SpaceId, TableMode),
    /// A row.
    Row(RowName, RowMode),
    /// The right to insert: no range lock of another transaction covers this key. The request leaves no lock.
    Insert(RowName),
}

impl LockRequest {
    /// Returns the tablespace of the request.
    pub fn space(&self) -> SpaceId {
        match self {
            Self::Table(space, _) => *space,
            Self::Row(row, _) | Self::Insert(row) => row.space,
        }
    }

    /// Returns the key, unless the request is for a table.
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Table(..) => None,
            Self::Row(row, _) | Self::Insert(row) => Some(&row.key),
        }
    }
}

/// The limit on the wait of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockTimeout {
    /// The request does not wait.
    NoWait,
    /// The request waits at most this long.
    AtMost(Duration),
    /// The request waits until the lock is granted or the wait is ended.
    Forever,
}

impl LockTimeout {
    /// Returns the timeout for a duration: zero does not wait.
    pub fn of(at_most: Duration) -> Self {
        if at_most.is_zero() { Self::NoWait } else { Self::AtMost(at_most) }
    }
}

/// A lock timeout that can be changed at any time, if there is one.
#[derive(Debug)]
pub struct LockWait(AtomicU64);

/// Stands for no timeout.
const NO_TIMEOUT: u64 = u64::MAX;

impl LockWait {
    /// Returns one with this timeout.
    pub fn new(at_most: Option<Duration>) -> Self {
        Self(AtomicU64::new(Self::of(at_most)))
    }

    /// Returns the timeout in microseconds, rounded up: only zero does not wait.
    fn of(at_most: Option<Duration>) -> u64 {
        let most = u128::from(NO_TIMEOUT - 1);
        at_most.map_or(NO_TIMEOUT, |time| time.as_nanos().div_ceil(1000).min(most) as u64)
    }

    /// Returns the timeout.
    pub fn get(&self) -> Option<Duration> {
        Some(self.0.load(Relaxed)).filter(|micros| *micros != NO_TIMEOUT).map(Duration::from_micros)
    }

    /// Changes the timeout.
    pub fn set(&self, at_most: Option<Duration>) {
        self.0.store(Self::of(at_most), Relaxed);
    }
}

/// The waits of one call, which share one timeout.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    lock_timeout: LockTimeout,
    so_far: Duration,
}

impl Waits {
    /// Returns the waits of a call that has not waited yet.
    pub fn new(lock_timeout: LockTimeout) -> Self {
        Self::after(Duration::ZERO, lock_timeout)
    }

    /// Returns the waits of a call that has waited for `so_far`.
    pub fn after(so_far: Duration, lock_timeout: LockTimeout) -> Self {
        Self { lock_timeout, so_far }
    }

    /// Returns the timeout of the next wait.
    pub fn left(&self) -> LockTimeout {
        match self.lock_timeout {
            LockTimeout::AtMost(most) => LockTimeout::AtMost(most.saturating_sub(self.so_far)),
            other => other,
        }
    }

    /// Adds the duration of a wait.
    pub fn add(&mut self, waited: Duration) {
        self.so_far += waited;
    }

    /// Returns the time that the call has waited.
    pub fn so_far(&self) -> Duration {
        self.so_far
    }
}

/// A lock, for listings and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    /// On a table, by the tablespace of its clustered tree.
    Table(SpaceId, TableMode),
    /// On a row.
    Row(RowName, RowMode),
    /// On a range of keys, against inserts by others.
    Range(SpaceId, KeyRange),
    /// The right to insert: it is waited for, and never held.
    Insert(RowName),
}

impl From<LockRequest> for Lock {
    fn from(wanted: LockRequest) -> Self {
        match wanted {
            LockRequest::Table(space, mode) => Self::Table(space, mode),
            LockRequest::Row(row, mode) => Self::Row(row, mode),
            LockRequest::Insert(row) => Self::Insert(row),
        }
    }
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The holder.
    pub trx: TrxId,
    /// The tag of the holder; 0 if it has none.
    pub tag: u64,
    /// The lock.
    pub lock: Lock,
}

/// A transaction that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The transaction.
    pub trx: TrxId,
    /// The tag of the transaction; 0 if it has none.
    pub tag: u64,
    /// The lock that it waits for.
    pub lock: Lock,
    /// The point in time at which the wait began, as the time elapsed since the start of the environment's clock
    /// (`Env::now`), which by default is the opening of the database.
    pub started_at: Duration,
    /// The transactions that it waits for: holders, then earlier waiters.
    pub blockers: Blockers,
}

impl fmt::Debug for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" of tablespace {}", self.key.escape_ascii(), self.space)
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(space, mode) => write!(f, "table of tablespace {space}, {mode}"),
            Self::Row(row, mode) => write!(f, "row {row}, {mode}"),
            Self::Range(space, range) => write!(f, "keys {range} of tablespace {space}, against inserts"),
            Self::Insert(row) => write!(f, "key {row}, to insert it"),
        }
    }
}

/// A deadlock that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The point in time at which the last member of the cycle began to wait, as the time elapsed since the start of
    /// the environment's clock (`Env::now`), which by default is the opening of the database.
    pub detected_at: Duration,
    /// The members of the cycle: each waits for the next one, and the last one for the first, which is the victim.
    pub cycle: Vec<DeadlockMember>,
}

/// A transaction on a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlockMember {
    /// The transaction.
    pub trx: TrxId,
    /// The tag of the transaction; 0 if it has none.
    pub tag: u64,
    /// The lock that it waited for.
    pub wanted: Lock,
    /// The lock that it held and that the one before it wanted; `None` if it was only an earlier waiter in the queue.
    pub held: Option<Lock>,
    /// The number of rows that it had changed and of locks that it held.
    pub weight: u64,
    /// Its priority: the victim has the lowest one of the cycle.
    pub deadlock_priority: i64,
}

impl Deadlock {
    /// Returns the victim.
    pub fn victim(&self) -> Option<TrxId> {
        self.cycle.first().map(|blocked| blocked.trx)
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a cycle of {} transactions, of which the first was rolled back:", self.cycle.len())?;
        for (n, DeadlockMember { trx, wanted, weight, deadlock_priority, .. }) in
            self.cycle.iter().enumerate()
        {
            let next = &self.cycle[(n + 1) % self.cycle.len()];
            write!(f, "\n  transaction {trx} (weight {weight}")?;
            if *deadlock_priority != 0 {
                write!(f, ", priority {deadlock_priority}")?;
            }
            write!(f, ") waited for {wanted}, after transaction {}, which ", next.trx)?;
            match &next.held {
                Some(lock) => write!(f, "held {lock}")?,
                None => f.write_str("was before it in the queue")?,
            }
        }
        Ok(())
    }
}
