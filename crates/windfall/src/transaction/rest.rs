//! Tables at rest, for a check.
//!
//! **Purpose.** Lets a check look at the trees of one table while nothing changes them: its claim keeps statements
//! away, the closed gate keeps calls away, and what is done outside of gates, rollback and purge, waits here.
//!
//! **Invariants.** Only what concerns this very table waits. Whatever takes a record back or purges it outside of a
//! gate holds [`Space::rest`] of the record's table shared, for that one record; a check holds it exclusively, and then
//! each record of the table is taken back as a whole, or not at all. Of those that find it held a client's rollback
//! waits; purge and the rollbacks in the background put the record, or the transaction, off and go on with others. So
//! in a simulation, which has one thread, no step of a worker waits for the check that it runs within.
//!
//! What a check makes of the trees depends on what others may still do to them, and it is told ([`AtRest`]):
//! - A page that is in use and that no tree leads to may be one of a long value that a version leads to, or that a
//!   transaction has written and not yet put into the tree, or taken back. All of these are named by records that purge
//!   has not done with. Nothing of the table is logged while its gate is closed, so the records up to the ends that the
//!   streams have then are all of them.
//! - Rows and entries are not as many where a change of a row was cut off in the middle: by a crash, until it is taken
//!   back, or by the failure of a rollback in the middle of a record. Both are known
//!   ([`Rollbacks::may_have_cut_off`]). An open or a prepared transaction is no reason: each of its calls was whole.
//!
//! **May touch.** `buffer`, `sync`, the rest of this floor.
//!
//! [`Rollbacks::may_have_cut_off`]: super::rollbacks::Rollbacks::may_have_cut_off

use super::Transactions;
use crate::buffer::Space;

/// What is known of a table at rest.
#[derive(Clone, Copy, Debug)]
pub struct AtRest {
    /// No version waits for purge, and no transaction can take anything back: all pages in use are those of the rows.
    pub is_purged: bool,
    /// No change of a row was cut off in the middle: each row has all its entries.
    pub has_whole_rows: bool,
}

/// Wakes those that have put off what concerns the table.
struct Wake<'a>(&'a Transactions);

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        self.0.ground.purge_wake.notify();
        self.0.rollbacks.wake().notify();
    }
}

impl Transactions {
    /// Runs something on a table, by the tablespace of its rows, whose gate is closed, while neither rollback nor purge
    /// changes it. If it `catches_up`, what is left of its records is purged before, as far as nothing is in the way:
    /// a reader that keeps versions, a transaction that has not ended, a row that is locked. Damage that purge meets it
    /// leaves in place.
    pub fn with_table_at_rest<T>(&self, table: &Space, catches_up: bool, run: impl FnOnce(AtRest) -> T) -> T {
        let ends: Vec<_> = self.streams.all().map(|stream| (stream, stream.end())).collect();
        if catches_up {
            // Before it is at rest: purge would put its records off.
            for (stream, end) in &ends {
                if let Err(error) = self.catch_up(stream, table.id(), *end) {
                    tracing::warn!(%error, "purge could not go on");
                }
            }
        }
        let _wake = Wake(self);
        let _still = table.rest().write();
        run(AtRest {
            is_purged: ends.iter().all(|(stream, end)| stream.purge.is_done_with(table.id(), *end)),
            has_whole_rows: !self.rollbacks.may_have_cut_off(table.id()),
        })
    }
}
