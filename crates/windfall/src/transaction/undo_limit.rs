//! What undo may take on the disk.
//!
//! **Purpose.** An old view, or a transaction that goes on for long, keeps undo without end. Beyond a limit, changes
//! are refused, and who makes them is told who it is; or the oldest view is ended ([`AtUndoLimit`]).
//!
//! **Invariants.** Only who is about to change a row waits or is refused, before it has the turn at the row, and
//! outside of its table's gate. What ends a transaction, either way, needs no undo and goes on. Two slices of each
//! stream do not count, or nobody could begin: the last one, which stays, and the next one. What is under way may pass
//! the limit by a slice for each stream. A wait goes on as long as purge gets rid of something, or a check is in its
//! way, and not longer than one for a lock: a cycle of a wait here and waits for this transaction's locks ends by that.
//! Of views those are ended that do not see the transaction before which purge stands: each of them has to go before
//! its records can. They are a pause old at least, and a read outside of transactions that takes longer begins again.
//! A check that is in the way at the same time does not change that: its end would not let purge pass by them.
//!
//! **May touch.** `sync`, `env`, `error`, the rest of this floor.

use core::time::Duration;

use super::{
    Transactions,
    locks::{Patience, Waits},
    trx::Trx,
};
use crate::{
    error::{LockError, Result, TransactionError},
    sync::{Arc, Held, Rank, atomic::Ordering::Relaxed, is_inside},
};

/// What becomes of changes when undo takes more than it may, and purge is held up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtUndoLimit {
    /// They are refused: [`TransactionError::UndoFull`].
    #[default]
    RefuseChanges,
    /// The oldest views are ended, as far as they hold purge up and were not made just now. Who reads by them is
    /// refused from then on: [`TransactionError::ViewEnded`]. Where it is no view that is in the way changes are
    /// refused; and so is one that may not wait for purge, by its `lock_wait` or because it was called by the source of
    /// a value.
    EndOldestView,
}

/// How often it is looked whether purge gets on.
const PAUSE: Duration = Duration::from_millis(100);
/// If it does not so many times, it is held up.
const FRUITLESS_MOST: u32 = 30;

impl Transactions {
    /// Changes what undo may take beside two slices of each stream, in bytes.
    pub fn set_undo_limit(&self, bytes: Option<u64>) {
        self.undo_limit.store(bytes.unwrap_or(u64::MAX), Relaxed);
        self.ground.slice_dropped.notify();
    }

    /// Changes what becomes of changes beyond it.
    pub fn set_at_undo_limit(&self, then: AtUndoLimit) {
        self.ends_views.store(then == AtUndoLimit::EndOldestView, Relaxed);
    }

    /// How many views were ended.
    pub fn views_ended(&self) -> u64 {
        self.views_ended.load(Relaxed)
    }

    /// Ends the views that hold purge up, if that is wished. Says whether there were any.
    fn end_views(&self) -> bool {
        if !self.ends_views.load(Relaxed) {
            return false;
        }
        let made_before = self.now().saturating_sub(PAUSE);
        let held_up = self.streams.all().filter_map(|stream| stream.purge.stands_before());
        let ended = held_up.map(|trx| self.active.end_views(trx, made_before)).sum();
        self.views_ended.fetch_add(ended, Relaxed);
        ended > 0
    }

    /// How often a change has found the limit passed.
    pub fn undo_waits(&self) -> u64 {
        self.undo_waits.load(Relaxed)
    }

    /// Whether changes may make more of it.
    pub(super) fn has_undo_room(&self) -> bool {
        self.streams.bytes_in_the_limit() <= self.undo_limit.load(Relaxed)
    }

    /// Waits until undo takes no more than it may, as long as purge gets on. The caller has left its table's gate.
    ///
    /// # Errors
    /// [`TransactionError::UndoFull`], [`LockError::Interrupted`].
    pub(super) fn await_undo(&self, trx: &mut Trx<'_>, waits: &mut Waits) -> Result<()> {
        let began = self.now();
        let done = self.await_room(trx, waits.left());
        waits.add(self.now().saturating_sub(began));
        done
    }

    fn await_room(&self, trx: &mut Trx<'_>, patience: Patience) -> Result<()> {
        self.undo_waits.fetch_add(1, Relaxed);
        let (ground, me) = (self.ground.pool.ground(), trx.locker()?);
        let began = self.now();
        // A call from within the source of a value holds up the table of the other one.
        let may_wait = |waited: Duration| match patience {
            _ if is_inside() => false,
            Patience::NoWait => false,
            Patience::AtMost(most) => waited < most,
            Patience::Forever => true,
        };
        let mut fruitless = 0;
        while fruitless < FRUITLESS_MOST && may_wait(self.now().saturating_sub(began)) {
            drop(Held::take(Rank::Row));
            let (purged, met_at_rest) = (self.purged.load(Relaxed), self.met_at_rest.load(Relaxed));
            self.ground.purge_wake.notify();
            let again = self.now() + PAUSE;
            let is_over = || self.has_undo_room() || ground.health.is_poisoned() || me.is_interrupted();
            let ready = || is_over() || self.now() >= again;
            ground.env.wait_unhindered(&self.ground.slice_dropped, PAUSE, &mut || ready());
            if me.take_interrupt() {
                return Err(LockError::Interrupted.into());
            }
            if is_over() {
                return ground.health.check();
            }
            let gets_on = self.purged.load(Relaxed) != purged;
            // A check that is in the way ends by itself, but a view beside it does not.
            let waits_for_check = || self.met_at_rest.load(Relaxed) != met_at_rest;
            fruitless = if gets_on || self.end_views() || waits_for_check() { 0 } else { fruitless + 1 };
        }
        let refused = TransactionError::UndoFull {
            bytes: self.streams.bytes_in_the_limit(),
            limit: self.undo_limit.load(Relaxed),
            oldest: self.who_keeps_undo(),
        };
        // Who may not wait leaves the way free for the next one.
        if self.end_views() {
            self.ground.purge_wake.notify();
        }
        Err(refused.into())
    }

    /// The oldest transaction with changes, the oldest view, and a check that purge waits for.
    fn who_keeps_undo(&self) -> Arc<str> {
        let age = |age: Duration| format!("{} s old", age.as_secs());
        let transaction = self.listing().into_iter().find(|info| info.has_changes);
        let transaction = transaction.map(|info| format!("transaction {}, {}", info.id, age(info.age)));
        let view = self.views().first().map(|view| format!("a view, {}", age(view.age)));
        let mut put_off = self.streams.all().flat_map(|stream| stream.purge.put_off());
        let waits_for_check = put_off.any(|table| self.is_at_rest(table));
        let check = waits_for_check.then(|| "a check of a table, which ends by itself".into());
        let keeps: Vec<String> = transaction.into_iter().chain(view).chain(check).collect();
        if keeps.is_empty() { "nothing old, purge is behind".into() } else { keeps.join("; ").into() }
    }
}
