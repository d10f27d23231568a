//! The limit on undo on disk.
//!
//! **Purpose.** An old read view, or a long transaction, keeps undo without bound. Beyond a limit, changes are refused
//! with an error that names the cause; or the oldest read view is ended ([`UndoLimitAction`]).
//!
//! **Invariants.** Only a call that is about to change a row waits or is refused, before it has the key latch of the
//! row, and outside of its table's gate (test: `writers_that_outrun_purge_wait_for_it`). The end of a transaction, by
//! commit or rollback, needs no undo and proceeds (test:
//! `a_transaction_that_fills_the_undo_gets_an_error_and_ends_either_way`). Two slices per stream do not count, or no
//! transaction could begin: the last one, which is never dropped, and the next one (test:
//! `two_slices_of_a_stream_do_not_count_towards_the_limit`). Changes in progress may exceed the limit by one slice per
//! stream (test: `an_old_view_stops_changes_at_the_limit_until_it_ends`). A wait continues as long as purge makes
//! progress (test: `writers_that_outrun_purge_wait_for_it`), or a check blocks purge (test:
//! `a_change_waits_at_the_limit_for_a_check_that_purge_has_met`), but no longer than the lock timeout, which also ends
//! a deadlock of this wait and others for the locks of this transaction (test:
//! `an_old_view_stops_changes_at_the_limit_until_it_ends`).
//!
//! The read views that are ended are those that do not see the transaction at which purge is blocked: all of them must
//! be ended before its records can be purged (test: `no_view_is_ended_where_none_is_in_the_way`). They are at least
//! `CHECK_INTERVAL` old; a younger view that sees that transaction stays (test:
//! `views_that_hold_nothing_up_stay_however_old_they_are`). A longer read outside of transactions gets an error, and
//! the next one has a new view (test: `the_oldest_view_is_ended`). A check that blocks purge at the same time does not
//! change that, because after its end the views would still block purge (test:
//! `a_view_is_ended_at_the_limit_during_a_check`).

use core::time::Duration;

use super::{directory::Streams, purge::Purge, stream::UndoContext};
use crate::{
    error::{Error, LockError, Result, TransactionError},
    sync::{
        Arc, Held, InterruptibleWait, Rank, Seldom,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        is_inside,
    },
    txn::{
        locks::{LockOwner, LockTimeout, Waits},
        mvcc::Active,
    },
};

/// The policy for changes when undo exceeds its limit, and purge makes no progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UndoLimitAction {
    /// Changes are refused: [`TransactionError::UndoFull`].
    #[default]
    RefuseChanges,
    /// The oldest read views are ended, if they block purge and are more than 100 ms old. Further reads by them are
    /// refused: [`TransactionError::ViewEnded`]. Changes are refused if no read view is the cause. A change is also
    /// refused if it may not wait for purge, because of its `lock_wait` or because it is called from within the source
    /// of a value.
    EndOldestView,
}

/// The interval at which the progress of purge is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The number of checks without progress after which purge counts as blocked.
const MAX_IDLE_CHECKS: u32 = 30;

/// The limit on undo, and the waits for it.
#[derive(Debug)]
pub struct UndoLimit {
    context: Arc<UndoContext>,
    streams: Arc<Streams>,
    active: Arc<Active>,
    purge: Arc<Purge>,
    /// The limit, in bytes.
    bytes: AtomicU64,
    /// The number of times that a change has found the limit exceeded.
    waits: AtomicU64,
    /// Whether old read views are ended when the limit is exceeded.
    ends_views: AtomicBool,
    /// The number of read views ended.
    views_ended: AtomicU64,
    /// When there was an event of a refused change.
    warned: Seldom,
}

impl UndoLimit {
    /// Returns the limit on the undo of these streams, initially unbounded.
    pub(in crate::txn) fn new(
        context: Arc<UndoContext>,
        streams: Arc<Streams>,
        active: Arc<Active>,
        purge: Arc<Purge>,
    ) -> Self {
        let (waits, ends_views, views_ended, warned) = Default::default();
        Self {
            context,
            streams,
            active,
            purge,
            bytes: AtomicU64::new(u64::MAX),
            waits,
            ends_views,
            views_ended,
            warned,
        }
    }

    /// Changes the limit on undo, in bytes; two slices per stream do not count.
    pub fn set(&self, bytes: Option<u64>) {
        self.bytes.store(bytes.unwrap_or(u64::MAX), Relaxed);
        self.context.slice_dropped.notify();
    }

    /// Changes the policy for changes beyond the limit.
    pub fn set_policy(&self, then: UndoLimitAction) {
        self.ends_views.store(then == UndoLimitAction::EndOldestView, Relaxed);
    }

    /// Returns the number of read views ended.
    pub fn views_ended(&self) -> u64 {
        self.views_ended.load(Relaxed)
    }

    /// Ends the read views that block purge, if the policy demands it. Returns whether there were any.
    fn end_views(&self) -> bool {
        if !self.ends_views.load(Relaxed) {
            return false;
        }
        let made_before = self.context.now().saturating_sub(CHECK_INTERVAL);
        let held_up = self.streams.all().filter_map(|stream| stream.purge.blocked_at());
        let ended = held_up.map(|trx| self.active.end_views(trx, made_before)).sum();
        self.views_ended.fetch_add(ended, Relaxed);
        if ended > 0 {
            tracing::warn!(target: "windfall::undo", ended, "read views were ended: undo has reached its limit");
        }
        ended > 0
    }

    /// Returns the number of times that a change has found the limit exceeded.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// Returns whether undo is within its limit.
    pub(in crate::txn) fn has_room(&self) -> bool {
        self.streams.bytes_in_the_limit() <= self.bytes.load(Relaxed)
    }

    /// Waits until undo is within its limit, as long as purge makes progress. The caller has left its table's gate.
    ///
    /// # Errors
    /// [`TransactionError::UndoFull`], [`LockError::Interrupted`].
    pub(in crate::txn) fn await_room(
        &self,
        me: impl FnOnce() -> Result<Arc<LockOwner>>,
        waits: &mut Waits,
    ) -> Result<()> {
        let began = self.context.now();
        self.waits.fetch_add(1, Relaxed);
        let done = me().and_then(|me| self.await_purge(&me, waits.left()));
        if let Err(Error::Transaction(error @ TransactionError::UndoFull { .. })) = &done
            && self.warned.is_due(self.context.now())
        {
            tracing::warn!(target: "windfall::undo", %error, "changes are refused");
        }
        waits.add(self.context.now().saturating_sub(began));
        done
    }

    fn await_purge(&self, me: &LockOwner, lock_timeout: LockTimeout) -> Result<()> {
        let context = self.context.pool.context();
        let began = self.context.now();
        // A call from within the source of a value blocks the table of the outer call.
        let may_wait = |waited: Duration| match lock_timeout {
            _ if is_inside() => false,
            LockTimeout::NoWait => false,
            LockTimeout::AtMost(most) => waited < most,
            LockTimeout::Forever => true,
        };
        let waiting = InterruptibleWait::begin(&self.context.slice_dropped);
        let is_interrupted = || waiting.is_interrupted() || me.is_interrupted();
        let mut fruitless = 0;
        while fruitless < MAX_IDLE_CHECKS && may_wait(self.context.now().saturating_sub(began)) {
            drop(Held::take(Rank::Row));
            let (purged, met_quiesced) = self.purge.progress();
            self.context.purge_wake.notify();
            let again = self.context.now() + CHECK_INTERVAL;
            let is_over = || self.has_room() || context.health.is_poisoned() || is_interrupted();
            let ready = || is_over() || self.context.now() >= again;
            context.env.wait_unhindered(&self.context.slice_dropped, CHECK_INTERVAL, &mut || ready());
            if me.take_interrupt() || waiting.is_interrupted() {
                return Err(LockError::Interrupted.into());
            }
            if is_over() {
                return context.health.check();
            }
            let (purged_now, met_quiesced_now) = self.purge.progress();
            debug_assert!(
                purged <= purged_now && met_quiesced <= met_quiesced_now,
                "the counters of the progress of purge have gone back"
            );
            let gets_on = purged_now != purged;
            // A check that blocks purge ends by itself, but a read view next to it does not.
            let waits_for_check = || met_quiesced_now != met_quiesced;
            fruitless = if gets_on || self.end_views() || waits_for_check() { 0 } else { fruitless + 1 };
        }
        let refused = TransactionError::UndoFull {
            bytes: self.streams.bytes_in_the_limit(),
            limit: self.bytes.load(Relaxed),
            oldest: self.holders(),
        };
        // A call that may not wait frees undo for the next one.
        if self.end_views() {
            self.context.purge_wake.notify();
        }
        Err(refused.into())
    }

    /// Returns the oldest transaction with changes, the oldest read view, and a check that purge waits for.
    fn holders(&self) -> Arc<str> {
        let age = |age: Duration| format!("{} s old", age.as_secs());
        let transaction = self.active.listing().into_iter().find(|info| info.has_changes);
        let transaction = transaction.map(|info| format!("transaction {}, {}", info.id, age(info.age)));
        let view = self.active.views().first().map(|view| format!("a view, {}", age(view.age)));
        let mut quiesced_tables = self.streams.all().flat_map(|stream| stream.purge.quiesced_tables());
        let waits_for_check = quiesced_tables.any(|table| self.purge.is_quiesced(table));
        let check = waits_for_check.then(|| "a check of a table, which ends by itself".into());
        let keeps: Vec<String> = transaction.into_iter().chain(view).chain(check).collect();
        if keeps.is_empty() { "nothing old, purge is behind".into() } else { keeps.join("; ").into() }
    }
}
