//! Quiesced tables, for a check.
//!
//! **Purpose.** Lets a check read the trees of one table while nothing changes them: its metadata lock keeps statements
//! away, the closed gate keeps calls away, and the work outside of gates, rollback and purge, waits here.
//!
//! **Invariants.** Only work on this table waits (test: `a_rollback_in_other_tables_does_not_wait_for_a_check`). A
//! rollback or purge of a record outside of a gate holds [`Space::check_lock`] of the record's table in shared mode,
//! for that one record, and a check holds it in exclusive mode, so each record of the table is then undone completely,
//! or not at all (test: `a_check_finds_nothing_during_concurrent_work_and_blocks_no_thread`). When it is held
//! exclusively, a client's rollback waits; purge and the background rollbacks defer the record, or the transaction, and
//! continue with others (test: `workers_continue_with_other_tables_during_a_check`). So in a simulation, which has one
//! thread, no step of a worker waits for the check that it runs within (test:
//! `a_check_during_a_rollback_with_a_view_that_holds_up_purge_comes_to_an_end`).
//!
//! A check is informed ([`Quiesced`]) of what others may still do to the trees, because its conclusions depend on that
//! (tests: `an_open_transaction_keeps_the_long_values_that_it_has_replaced`,
//! `a_check_waits_for_a_rollback_as_long_as_a_call_for_a_lock`):
//! - A page in use that no tree leads to may belong to a long value. Either a version leads to that value, or a
//!   transaction has written it and not yet put it into the tree, or has rolled it back: all these pages are named by
//!   records that purge has not finished (test:
//!   `rolled_back_changes_keep_their_long_values_until_the_transaction_has_ended`). Nothing of the table is logged
//!   while its gate is closed, so all these records are below the ends that the streams have at that time (test:
//!   `a_check_finds_nothing_during_concurrent_work_and_blocks_no_thread`).
//! - The numbers of rows and entries differ if a row change was interrupted: by a crash, until it is rolled back (test:
//!   `a_check_waits_for_a_rollback_as_long_as_a_call_for_a_lock`), or by a rollback that failed in the middle of a
//!   record ([`Rollbacks::may_have_partial_change`](super::rollback_queue::Rollbacks::may_have_partial_change)) (test:
//!   `versions_cut_off_by_a_failed_rollback_are_not_reported_as_damage`). An open or a prepared transaction does not
//!   matter, because each of its calls was complete (test: `damage_is_found_during_a_transaction_with_long_values`).

use super::manager::Transactions;
use crate::buffer::Space;

/// The state of a quiesced table, for the conclusions of a check.
#[derive(Clone, Copy, Debug)]
pub struct Quiesced {
    /// No version waits for purge, and no transaction can roll back a change: all pages in use are those of the rows.
    pub is_purged: bool,
    /// No row change was interrupted: each row has all its entries.
    pub has_whole_rows: bool,
}

/// Wakes the workers that have deferred work on the table.
struct Wake<'a>(&'a Transactions);

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        self.0.purge().wake().notify();
        self.0.rollbacks().wake().notify();
    }
}

/// Runs a closure on a table, given by the tablespace of its rows, while neither rollback nor purge changes it. The
/// table's gate is closed. With `catches_up` its remaining records are purged before, as far as nothing blocks that: a
/// reader that keeps versions, an unfinished transaction, a busy key latch. Damage that purge finds is left in place.
pub fn with_table_quiesced<T>(
    transactions: &Transactions,
    table: &Space,
    catches_up: bool,
    run: impl FnOnce(Quiesced) -> T,
) -> T {
    let ends: Vec<_> = transactions.streams().all().map(|stream| (stream, stream.end())).collect();
    if catches_up {
        // Before the table is quiesced: afterwards purge would defer its records.
        for (stream, end) in &ends {
            if let Err(error) = transactions.purge().catch_up(stream, table.id(), *end) {
                tracing::warn!(target: "windfall::undo", %error, "purge could not continue");
            }
        }
    }
    let _wake = Wake(transactions);
    let _still = table.check_lock().write();
    debug_assert!(
        ends.iter().all(|(stream, end)| *end <= stream.end()),
        "the end of a stream never moves back"
    );
    run(Quiesced {
        is_purged: ends.iter().all(|(stream, end)| stream.is_purged_of(table.id(), *end)),
        has_whole_rows: !transactions.rollbacks().may_have_partial_change(table.id()),
    })
}
