//! Reads of temporary tables, which no read view protects from purge.
//!
//! **Purpose.** Undo and replaced values of temporary tables are purged by the calls that leave them, regardless of
//! read views.
//!
//! **Invariants.** A temporary table is read in its current version: no read follows its undo records to an older
//! version, so no read view keeps one (`versions`) (test:
//! `a_read_view_does_not_keep_old_versions_of_temporary_tables`). Purge keeps the records of an unfinished transaction
//! until it has ended, because it may roll back its changes as a whole, to a savepoint, or those of a statement, and
//! all of these walk its own records (test: `a_transaction_rolls_back_its_changes_to_a_temporary_table`). A long value
//! that is read piece by piece stays until the read is over: the reader is registered with the stream before it reads
//! the row ([`TemporaryRead`]), and a transaction that replaces the value that it reads ends, if at all, after this
//! registration (test: `a_value_of_a_temporary_table_that_is_read_is_that_of_the_beginning`).
//!
//! A call outside of transactions purges as far as possible before it returns (test:
//! `a_read_view_does_not_keep_old_versions_of_temporary_tables`). What a transaction of several calls has left, the
//! worker purges after its end (test: `a_commit_does_the_same_work_whatever_was_changed_in_temporary_tables`), also if
//! a coordinator ends it by its name (test: `what_prepared_transactions_leave_in_temporary_tables_is_purged`). If the
//! worker falls behind, the changes of the next transactions help it, so the undo that is kept is bounded (test:
//! `changes_of_temporary_tables_help_a_worker_that_falls_behind`), apart from that of a transaction in progress and of
//! the writes while a long value is read. Undo of temporary tables counts neither for the limit on undo nor for its
//! metrics (test: `temporary_rows_leave_nothing_in_the_log`).

use super::stream::Stream;
use crate::{buffer::Durability, sync::Arc, txn::mvcc::Active};

/// A read of a long value of a temporary table: what replaces the value is not purged.
#[derive(Debug)]
pub struct TemporaryRead {
    stream: Arc<Stream>,
    number: u64,
}

impl TemporaryRead {
    /// Registers a reader of a temporary table, which has not read its row yet.
    pub fn new(active: &Active, stream: &Arc<Stream>) -> Self {
        debug_assert!(
            stream.durability() == Durability::Temporary,
            "readers of logged tables have read views"
        );
        let number = stream.readers.enter(Arc::new(active.ended()));
        Self { stream: stream.clone(), number }
    }
}

impl Drop for TemporaryRead {
    fn drop(&mut self) {
        self.stream.readers.leave(self.number);
    }
}
