//! Observers of lock waits.
//!
//! **Purpose.** An application may fix the order of its transactions itself. A replica, for instance, runs transactions
//! side by side and commits them in the order of the primary: if an earlier one waits for a lock of a later one, and
//! the later one for its turn to commit, both wait until the lock timeout. So the application gives the database a
//! [`LockWaitObserver`], which learns of each wait before it begins, with all transactions in the way, and may
//! interrupt one of them.
//!
//! **Invariants.**
//! - Each call of [`LockWaitObserver::wait_begins`] is followed by one of [`LockWaitObserver::wait_ended`], after the
//!   wait has left the lock table, whatever the outcome, and also if a callback panics (tests:
//!   `each_announced_wait_ends_once`, `a_panic_of_an_observer_ends_the_wait`).
//! - The list that a callback gets was complete when it was made, which is in the step that enqueues the request (test:
//!   `all_transactions_in_the_way_are_named`). A transaction that comes into the way afterwards marks the wait as
//!   outdated in the same step (test: `behaves_as_its_rules`), and wakes the waiter, which reports the new list (tests:
//!   `a_transaction_that_comes_into_the_way_is_reported`, `an_observed_wait_ends`).
//! - A wait that is resolved while a callback runs has ended when that returns: the waiter checks the outcome after
//!   each callback, before it sleeps (test: `an_observed_wait_ends`).
//! - A callback runs on the waiter's thread, which holds no lock of a rank but the mutex of its own transaction, and is
//!   inside no gate (checked by `locks/observer.rs::call`). It holds no key latch and no page latch (test:
//!   `no_money_is_made_or_lost`).
//! - A call from within a callback waits for no other call, statement or transaction: the thread counts as inside a
//!   gate (test: `a_callback_waits_for_no_lock_and_runs_no_statement`).
//! - Without an observer, no list is made and no waiter is marked (checked by `locks/owner.rs::outdate`).

use core::fmt;

use super::request::Lock;
use crate::{
    error::LockError,
    ids::TrxId,
    sync::{Arc, CountedInside, Held, Rank, is_inside, thread},
};

/// A transaction or statement that waits for a lock, or is in the way of one that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockParty {
    /// Its id.
    pub trx: TrxId,
    /// Its tag ([`TransactionOptions::tag`]); 0 if it has none. DDL statements and calls outside of transactions have
    /// none.
    ///
    /// [`TransactionOptions::tag`]: ../windfall/struct.TransactionOptions.html#method.tag
    pub tag: u64,
}

/// A wait for a lock, as an observer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObservedWait {
    /// The transaction or statement that waits.
    pub waiter: LockParty,
    /// The lock that it waits for.
    pub lock: Lock,
    /// All transactions and statements in its way, each once: holders of conflicting locks, then earlier waiters with
    /// conflicting requests. A deadlock is a cycle of these.
    pub blockers: Vec<LockParty>,
}

/// How a wait for a lock has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// The lock was granted.
    Granted,
    /// The lock timeout has passed.
    TimedOut,
    /// The waiter is the victim of a deadlock.
    Deadlock,
    /// The wait was interrupted, or the database was closed or has stopped.
    Interrupted,
}

impl WaitOutcome {
    pub(super) fn of(outcome: &Result<(), LockError>) -> Self {
        match outcome {
            Ok(()) => Self::Granted,
            Err(LockError::TimedOut { .. }) => Self::TimedOut,
            Err(LockError::Deadlock(_)) => Self::Deadlock,
            Err(_) => Self::Interrupted,
        }
    }
}

/// Is called around each wait for a lock of a row, of a range of keys or of a table: by transactions, by calls outside
/// of transactions, and by DDL statements that wait for transactions. Requests that are granted at once, or chosen as
/// deadlock victims at once, are not reported, nor are waits for anything else, such as names that a statement changes.
///
/// The callbacks are called on the thread that waits, one after the other, and of different waits at the same time. So
/// the waiter is also known by its thread, a DDL statement only so, because it has no tag. The thread holds no lock,
/// latch or gate of the database that another thread waits for, except the locks of its transaction or statement. A
/// callback may take its time, but it delays the waiter, and the lock timeout counts it.
///
/// A callback may interrupt any transaction, those in the way and the waiter itself (`InterruptHandle::interrupt`,
/// `Database::interrupt`), read the lists and metrics of the database (`Database::lock_waits`, for instance), and read
/// rows outside of transactions. The rules are those of a call from within the source of a value: what would wait for a
/// lock, for another call or for undo space is refused
/// ([`UsageError::WaitInCall`](crate::error::UsageError::WaitInCall)), and so is a DDL statement
/// ([`UsageError::StatementInCall`](crate::error::UsageError::StatementInCall)). A call of the waiting transaction is
/// refused, because it is in a call ([`TransactionError::Busy`](crate::error::TransactionError::Busy)).
///
/// A callback should not panic. If one does, the wait ends, the call fails with the panic, and its transaction rolls
/// back; after a DDL statement in the name of a transaction that stays open. The panic of a second one meanwhile, in
/// `wait_ended`, ends the process.
pub trait LockWaitObserver: Send + Sync {
    /// A thread is about to wait. It is in the queue already, so that no later request passes it, and the lock may be
    /// granted before the callback has returned.
    fn wait_begins(&self, wait: &ObservedWait);

    /// A transaction or statement has come into the way that the last callback of this wait did not name: it has got a
    /// further lock, or the place of an earlier waiter. The list is complete again. Those that have left the way are
    /// not reported, because a waiter has nothing to do about them.
    fn blockers_changed(&self, wait: &ObservedWait);

    /// The wait has ended. `wait` has the list of the last callback.
    fn wait_ended(&self, wait: &ObservedWait, outcome: WaitOutcome);
}

/// An observer that the options and the lock manager share.
#[derive(Clone)]
pub struct SharedObserver(Arc<dyn LockWaitObserver>);

impl SharedObserver {
    /// Runs a callback.
    pub(super) fn call(&self, run: impl FnOnce(&dyn LockWaitObserver)) {
        debug_assert!(
            !is_inside() || thread::panicking(),
            "an observer of lock waits is called inside a gate"
        );
        drop(Held::take(Rank::Session));
        let _counted = CountedInside::new();
        run(&*self.0);
    }
}

impl From<Arc<dyn LockWaitObserver>> for SharedObserver {
    fn from(observer: Arc<dyn LockWaitObserver>) -> Self {
        Self(observer)
    }
}

/// Two are equal if they are the same.
impl PartialEq for SharedObserver {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedObserver {}

impl fmt::Debug for SharedObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockWaitObserver")
    }
}
