//! What undo may take on the disk.
//!
//! **Purpose.** An old view, or a transaction that goes on for long, keeps undo without end. Beyond a limit, changes
//! are refused, and who does so is told who it is.
//!
//! **Invariants.** Only who is about to change a row waits or is refused, before it has the turn at the row, and
//! outside of its table's gate. What ends a transaction, either way, needs no undo and goes on. Two slices of each
//! stream do not count, or nobody could begin: the last one, which stays, and the next one. What is under way may pass
//! the limit by a slice for each stream. A wait goes on as long as purge comes to further records, and not longer than
//! one for a lock.
//!
//! **May touch.** `sync`, `env`, `error`, the rest of this floor.

use core::time::Duration;

use super::{Transactions, stream::PAGES};
use crate::{
    error::{Result, TransactionError},
    sync::{
        atomic::Ordering::{Relaxed, SeqCst},
        is_inside,
    },
};

/// How often it is looked whether purge gets on.
const PAUSE: Duration = Duration::from_millis(100);
/// If it does not so many times, it is held up.
const FRUITLESS_MOST: u32 = 10;

impl Transactions {
    /// Changes what undo may take beside two slices of each stream, in bytes.
    pub fn set_undo_limit(&self, bytes: Option<u64>) {
        self.undo_limit.store(bytes.unwrap_or(u64::MAX), Relaxed);
        self.ground.slice_dropped.notify();
    }

    /// How often a change has waited for undo to go.
    pub fn undo_waits(&self) -> u64 {
        self.undo_waits.load(Relaxed)
    }

    /// What undo takes of its limit, in bytes.
    fn undo_in_the_limit(&self) -> u64 {
        let slices = self.ground.slices.load(Relaxed).saturating_sub(2 * self.streams.count() as u64);
        slices * PAGES * self.ground.pool.page_size() as u64
    }

    /// Whether changes may make more of it.
    pub(super) fn has_undo_room(&self) -> bool {
        self.undo_in_the_limit() <= self.undo_limit.load(Relaxed)
    }

    /// Waits until undo takes no more than it may, as long as purge gets on. The caller has left its table's gate.
    ///
    /// # Errors
    /// [`TransactionError::UndoFull`].
    pub(super) fn await_undo(&self) -> Result<()> {
        self.undo_waits.fetch_add(1, Relaxed);
        let ground = self.ground.pool.ground();
        let end = self.now() + self.lock_wait();
        let mut fruitless = 0;
        // A call from within the source of a value holds up the table of the other one.
        while !is_inside() && fruitless < FRUITLESS_MOST && self.now() < end {
            let looked_at = self.looked_at.load(Relaxed);
            self.ground.purge_wake.notify();
            let ready = || self.has_undo_room() || ground.health.is_poisoned();
            ground.env.wait_unhindered(&self.ground.slice_dropped, PAUSE, &mut || ready());
            if ready() {
                return ground.health.check();
            }
            let is_held_up = self.looked_at.load(Relaxed) == looked_at && self.purge_pauses.load(SeqCst) == 0;
            fruitless = if is_held_up { fruitless + 1 } else { 0 };
        }
        let age = |age: Duration| format!("{} s old", age.as_secs());
        let transaction = self.listing().into_iter().max_by_key(|info| info.age);
        let transaction = transaction.map(|info| format!("transaction {}, {}", info.id, age(info.age)));
        let view = self.views().first().map(|view| format!("a view, {}", age(view.age)));
        let oldest: Vec<String> = transaction.into_iter().chain(view).collect();
        Err(TransactionError::UndoFull {
            bytes: self.undo_in_the_limit(),
            limit: self.undo_limit.load(Relaxed),
            oldest: if oldest.is_empty() { "none".into() } else { oldest.join("; ").into() },
        }
        .into())
    }
}
