//! Transactions of many calls.
//!
//! **Purpose.** Begins a transaction, ends it, and takes back a part of it. What is done in it is done by tables that
//! stand within it ([`Table::within`](crate::Table::within)).
//!
//! **Invariants.** A transaction does one call at a time. It ends once, by commit, by rollback, or by an error that
//! leaves no other way; a handle that is dropped rolls back, unless the transaction is prepared. A call that fails has
//! changed nothing, and the transaction goes on.
//!
//! **May touch.** `scope`.

use core::time::Duration;

use crate::{engine::Engine, error::Result, log::FlushLog, scope::Scope, sync::Arc};

/// What a transaction sees of others, with the meanings that users of `MariaDB` know.
///
/// A *plain read* locks nothing. All else, changes and reads that lock ([`Table::get_for_update`]), is of the newest
/// version of a row, and waits for whoever is changing it.
///
/// [`Table::get_for_update`]: crate::Table::get_for_update
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isolation {
    /// A plain read gives the newest version, committed or not.
    ReadUncommitted,
    /// Each plain read gives what was committed when it began.
    ReadCommitted,
    /// All plain reads give what was committed at the first of them. Locked ranges stay as they are.
    #[default]
    RepeatableRead,
    /// As [`Isolation::RepeatableRead`], and a row that has changed since is neither changed nor locked:
    /// [`TransactionError::Changed`](crate::error::TransactionError::Changed). So no update is lost. Temporary tables
    /// have no versions, and are read and changed as they are.
    Snapshot,
    /// Every plain read locks what it gives, and the gaps between, as a read for share.
    Serializable,
}

impl Isolation {
    /// All of them, from the one that sees most of others on.
    pub const ALL: &[Self] = &[
        Self::ReadUncommitted,
        Self::ReadCommitted,
        Self::RepeatableRead,
        Self::Snapshot,
        Self::Serializable,
    ];
}

/// What a read that locks does about a row that another transaction has locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IfLocked {
    /// It waits, as long as the transaction waits for locks.
    #[default]
    Wait,
    /// It is refused at once ([`LockError::Busy`](crate::error::LockError::Busy)): `NOWAIT` of SQL.
    Refuse,
    /// It passes the row over, as if it were not there: `SKIP LOCKED` of SQL. So many who take from one queue do not
    /// wait for each other, at [`Isolation::ReadCommitted`]: at stricter levels a range keeps others from inserting
    /// into it, whatever it passes over.
    Skip,
}

/// How a transaction begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionOptions {
    pub(crate) isolation: Isolation,
    pub(crate) read_only: bool,
    pub(crate) snapshot: bool,
    pub(crate) lock_wait: Option<Duration>,
}

impl TransactionOptions {
    /// At this level; [`Isolation::RepeatableRead`] without.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// It changes nothing but temporary tables, which nobody else has, and locks nothing but what plain reads lock at
    /// [`Isolation::Serializable`].
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// What its plain reads see is settled when it begins, and not at the first of them. Of no account at levels
    /// without a snapshot.
    #[must_use]
    pub fn consistent_snapshot(mut self) -> Self {
        self.snapshot = true;
        self
    }

    /// How long a call waits for locks, however many it has to wait for: not at all for zero. Without, as long as
    /// [`Options::lock_wait_timeout`] says.
    ///
    /// [`Options::lock_wait_timeout`]: crate::Options::lock_wait_timeout
    #[must_use]
    pub fn lock_wait(mut self, at_most: Duration) -> Self {
        self.lock_wait = Some(at_most);
        self
    }
}

/// A transaction: many calls on many tables, all of which are there afterwards, or none.
///
/// ```
/// # fn main() -> windfall::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("windfall-transaction-{}", std::process::id()));
/// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
/// use windfall::{TableOptions, TransactionOptions};
///
/// let accounts = db.create_table("accounts", TableOptions::default())?;
/// accounts.insert(b"alice", b"100")?;
/// accounts.insert(b"bob", b"0")?;
///
/// let transfer = db.begin(TransactionOptions::default());
/// let within = accounts.within(&transfer);
/// within.get_for_update(b"alice")?;
/// within.put(b"alice", b"60")?;
/// within.put(b"bob", b"40")?;
/// // Nobody else sees a part of it.
/// assert_eq!(accounts.get(b"alice")?, Some(b"100".to_vec()));
/// transfer.commit()?;
/// assert_eq!(accounts.get(b"bob")?, Some(b"40".to_vec()));
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction {
    pub(crate) scope: Arc<Scope>,
}

impl Transaction {
    pub(crate) fn begin(engine: Arc<Engine>, options: TransactionOptions) -> Self {
        Self { scope: Arc::new(Scope::new(engine, options)) }
    }

    /// The number by which lists of locks and errors name it; `None` while it has neither changed nor locked anything.
    pub fn id(&self) -> Option<u64> {
        self.scope.id()
    }

    /// What it sees of others.
    pub fn isolation(&self) -> Isolation {
        self.scope.options.isolation
    }

    /// Makes all of it stay. When this returns it is as durable as `flush_log_at_trx_commit` says. A call of another
    /// thread that is under way belongs to it: that is waited for, and [`Database::interrupt`] ends its wait for a
    /// lock.
    ///
    /// # Errors
    /// It was rolled back by an earlier error; the log takes no more, and then the database has stopped, and the next
    /// opening decides. A prepared transaction that cannot be committed, as the disk is full, stays prepared.
    ///
    /// [`TransactionError::Busy`]: a call of it is under way, and this one comes from within a call (a source, or an
    /// output that a value is written to), where nothing is waited for. It is rolled back then, when that call has
    /// ended; if it is prepared it stays so, and is ended by its name.
    ///
    /// [`Database::interrupt`]: crate::Database::interrupt
    /// [`TransactionError::Busy`]: crate::error::TransactionError::Busy
    pub fn commit(self) -> Result<()> {
        let mode = self.scope.engine.flush_log();
        self.commit_with(mode)
    }

    /// As [`Transaction::commit`], as durable as this says. A coordinator that commits many in its order does so with
    /// [`FlushLog::Lazy`], and makes all of them durable by one call of
    /// [`Database::flush_log`](crate::Database::flush_log). Others see them in the order of these calls.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_with(self, mode: FlushLog) -> Result<()> {
        self.scope.commit(mode)
    }

    /// Takes all of it back. A call of another thread that is under way is waited for, as by [`Transaction::commit`].
    ///
    /// # Errors
    /// What keeps it from that: [`TransactionError::RollingBack`] if it goes on in the background; a full disk if it is
    /// prepared, and stays so; else the database has stopped, and the next opening does it.
    ///
    /// [`TransactionError::RollingBack`]: crate::error::TransactionError::RollingBack
    pub fn rollback(self) -> Result<()> {
        self.scope.roll_back()
    }

    /// The first phase of a commit in two: from now on it can be committed whatever happens, and is neither committed
    /// nor rolled back but when it is asked for. It does nothing else any more. `xid` is the name by which it is asked
    /// for when its handle is gone, by a drop or by a crash
    /// ([`Database::commit_prepared`](crate::Database::commit_prepared)); its changes stay locked until then, and so do
    /// its tables against statements. Of its other locks, those on what it has read, a crash leaves none. When this
    /// returns it is as durable as `flush_log_at_trx_commit` says.
    ///
    /// # Errors
    /// A name that is taken, empty, or longer than 255 bytes; a full disk; a statement that is under way
    /// ([`Transaction::atomically`]), which may still fail. The transaction goes on as if it had not been asked.
    pub fn prepare(&self, xid: &[u8]) -> Result<()> {
        self.prepare_with(xid, self.scope.engine.flush_log())
    }

    /// As [`Transaction::prepare`], as durable as this says.
    ///
    /// # Errors
    /// As [`Transaction::prepare`].
    pub fn prepare_with(&self, xid: &[u8], mode: FlushLog) -> Result<()> {
        self.scope.prepare(xid, mode)
    }

    /// Sets a savepoint. One of the same name moves here.
    ///
    /// # Errors
    /// The transaction has ended, or a call is under way.
    pub fn savepoint(&self, name: &str) -> Result<()> {
        self.scope.set_savepoint(name)
    }

    /// Takes back what was done since a savepoint, which stays; those set after it go. Locks are kept.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn rollback_to(&self, name: &str) -> Result<()> {
        self.scope.roll_back_to(name)
    }

    /// Forgets a savepoint, and those set after it. What was done since stays done.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn release(&self, name: &str) -> Result<()> {
        self.scope.release(name)
    }

    /// Does several calls as one statement: if it fails or panics, what they have done is taken back, and the
    /// transaction goes on. Savepoints that were set before are out of reach until it ends; those that it has set stay
    /// if it does. A statement that is made from within a call of another transaction, or of none, belongs to its
    /// thread: calls of other threads in this transaction are refused ([`TransactionError::Busy`]) until it ends.
    ///
    /// [`TransactionError::Busy`]: crate::error::TransactionError::Busy
    ///
    /// # Errors
    /// Those of `run`.
    pub fn atomically<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.scope.atomically(run)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.scope.abandon();
    }
}
