//! Locks on whole tables, which applications request.
//!
//! **Purpose.** A transaction locks a table in shared mode, and no other one changes its rows until it ends; or in
//! exclusive mode, and no other one locks its rows either. For calls in transactions the queue of the table is enough,
//! because these lock the table before its rows. A call outside of transactions changes one row, ends inside the
//! table's gate, and would pay more for a table lock than for all its other locks. So it takes none as long as no
//! transaction has *announced* a lock on the whole table, which costs it one load, and it waits for no row.
//!
//! **Invariants.**
//! - A transaction announces its lock, then waits until the calls have left the gate that were inside, and then
//!   requests the lock; a call passes the gate and then looks whether a lock is announced; and all these accesses are
//!   sequentially consistent (test: `no_call_changes_a_table_that_is_locked`). So a call sees the announcement, or was
//!   inside before it and is waited for. A call that sees it locks the table itself (intention lock) before it
//!   changes anything, and releases that lock after its change is committed or rolled back (test:
//!   `a_change_outside_of_transactions_waits_for_the_lock_of_a_table`).
//! - An announcement lasts until the lock is released (checked by `locks/mod.rs::release`), or was not granted (test:
//!   `a_lock_that_is_not_granted_is_not_announced_any_more`).
//! - The wait for those inside the gate is part of no cycle: they wait for no lock, and no thread waits at the gate for
//!   this wait, because others pass meanwhile (test: `those_who_were_inside_have_left`). From inside a gate no whole
//!   table is locked (checked by `sync/gate.rs::await_passers`).
//! - A rollback in the background has no lock on the tables in which it has changes left, so a transaction that was
//!   granted the lock waits until there is none (test: `a_table_lock_waits_for_rollbacks_in_the_background`).
//! - A request that fails has locked nothing (tests: `a_table_lock_is_refused_where_a_lock_on_a_row_is`,
//!   `statements_wait_for_a_table_lock_and_it_for_them`).
//! - A call outside of transactions that must wait for a row locks the table first, or waits for the table: so no
//!   transaction locks the table while a row of it is granted to the call (test:
//!   `a_call_outside_of_transactions_waits_for_a_row_with_the_table_locked`).
//! - After a crash a prepared transaction has intention locks on the tables that it has changed, and no locks on whole
//!   tables, as it has none on rows that it has only read (test:
//!   `after_a_crash_a_prepared_transaction_has_intention_locks_alone`).

use core::{fmt, time::Duration};

use super::{
    LockManager,
    mode::{Modes, TableMode},
    owner::{Announcement, LockOwner},
    request::{LockRequest, LockTimeout},
};
use crate::{
    error::{Blockers, LockError},
    ids::SpaceId,
    sync::{
        Arc, Gate, InterruptibleWait,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

/// The interval at which a wait for those inside a gate looks for an interrupt.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);
/// The least time that a wait for those inside a gate lasts, whatever the timeout: plain reads are among them, and last
/// a moment.
pub(crate) const LEAST_FOR_PASSERS: Duration = Duration::from_millis(100);

/// A table, for locks on it as a whole.
pub trait WholeTable: fmt::Debug + Send + Sync + 'static {
    /// The gate that a call passes before it changes a row.
    fn gate(&self) -> &Gate;

    /// The number of transactions that have announced a lock on the whole table.
    fn announced_locks(&self) -> &AtomicU32;

    /// Returns whether a transaction has locked the whole table, or is about to. A call outside of transactions that
    /// changes rows asks this inside the gate.
    #[inline]
    fn is_lock_announced(&self) -> bool {
        self.announced_locks().load(SeqCst) != 0
    }
}

/// What a lock owner has on a table: the modes in which it has locked it, and whether a lock on the whole table is
/// announced for it.
#[derive(Clone, Copy, Debug)]
pub struct HeldOnTable {
    modes: Modes,
    has_announced: bool,
}

/// A lock on the whole table is announced until this is dropped.
#[derive(Debug)]
struct Announced<T: WholeTable>(Arc<T>);

impl<T: WholeTable> Announced<T> {
    fn new(table: &Arc<T>) -> Self {
        table.announced_locks().fetch_add(1, SeqCst);
        Self(table.clone())
    }
}

impl<T: WholeTable> Announcement for Announced<T> {}

impl<T: WholeTable> Drop for Announced<T> {
    fn drop(&mut self) {
        let before = self.0.announced_locks().fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "an announcement ends that was not counted");
    }
}

impl LockManager {
    /// Locks a whole table, by the tablespace of its rows, in shared or exclusive mode until the transaction ends. The
    /// caller is inside no gate. The observer is called for the wait for other transactions, and not for the one before
    /// it, for calls outside of transactions.
    ///
    /// # Errors
    /// As [`LockManager::acquire`]. If calls outside of transactions did not end in time, it names no transaction.
    pub(crate) fn lock_whole<T: WholeTable>(
        &self,
        me: &Arc<LockOwner>,
        table: &Arc<T>,
        (space, mode): (SpaceId, TableMode),
        lock_timeout: LockTimeout,
    ) -> Result<(), LockError> {
        debug_assert!(
            mode.includes(TableMode::Shared),
            "a lock on a whole table keeps changes out, and an intention lock does not"
        );
        let mut left = lock_timeout;
        let announced = if me.has_announced(space) {
            None
        } else {
            let announced = Announced::new(table);
            left = self.await_passers(me, table.gate(), lock_timeout)?;
            Some(announced)
        };
        self.acquire(me, LockRequest::Table(space, mode), left)?;
        if let Some(announced) = announced {
            me.keep_announcement(space, Box::new(announced));
        }
        Ok(())
    }

    /// Returns what a lock owner has on a table.
    pub(crate) fn held_on_table(&self, me: &LockOwner, space: SpaceId) -> HeldOnTable {
        HeldOnTable { modes: self.table_modes(me, space), has_announced: me.has_announced(space) }
    }

    /// Gives up what a lock owner has got on a table since ([`LockManager::lock_whole`]).
    pub(crate) fn restore_whole(&self, me: &LockOwner, space: SpaceId, before: HeldOnTable) {
        self.restore_table(me, space, before.modes);
        if !before.has_announced {
            drop(me.take_announcements(space));
        }
    }

    /// Waits until the calls have left a gate that were inside when this was called. Returns the rest of the timeout.
    fn await_passers(
        &self,
        me: &Arc<LockOwner>,
        gate: &Gate,
        lock_timeout: LockTimeout,
    ) -> Result<LockTimeout, LockError> {
        let (began, waiting) = (self.env.now(), InterruptibleWait::begin(me));
        let waited = || self.env.now().saturating_sub(began);
        let most = match lock_timeout {
            LockTimeout::NoWait => LEAST_FOR_PASSERS,
            LockTimeout::AtMost(most) => most.max(LEAST_FOR_PASSERS),
            LockTimeout::Forever => Duration::MAX,
        };
        let left = || most.saturating_sub(waited());
        let is_interrupted = || waiting.is_interrupted() || me.is_interrupted() || self.is_stopped();
        let have_left = gate.await_passers(|event, ready| {
            let mut is_ready = ready();
            while !is_ready {
                let left = left();
                if left.is_zero() || is_interrupted() {
                    return;
                }
                self.env.wait_unhindered(event, left.min(INTERRUPT_INTERVAL), &mut || {
                    is_ready = ready();
                    is_ready
                });
            }
        });
        if have_left {
            return Ok(match lock_timeout {
                LockTimeout::AtMost(most) => LockTimeout::AtMost(most.saturating_sub(waited())),
                other => other,
            });
        }
        let blockers = Blockers::calls();
        Err(if is_interrupted() {
            me.take_interrupt();
            LockError::Interrupted
        } else if lock_timeout == LockTimeout::NoWait {
            LockError::Busy(blockers)
        } else {
            LockError::TimedOut { blockers, waited: waited() }
        })
    }
}
