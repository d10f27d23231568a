//! Transactions: ids, undo, rollback, read views, locks, purge and row changes.
//!
//! **Purpose.** A row and all its secondary entries change atomically, and so do all rows of a transaction, at run time
//! and across a crash. The isolation level decides which changes of other transactions are visible.
//!
//! **Invariants.**
//! - A row change takes the key latch of the row (`locks::key_latch`) (test:
//!   `rows_and_entries_stay_one_under_contention`), one mini-transaction for the undo record and the clustered entry
//!   (test: `runs_crash_between_the_groups_of_a_write`), and one mini-transaction per secondary entry. A transaction of
//!   a single call logs `TrxEnd` in the last of them: without secondary entries it is one log group (test:
//!   `every_crash_point_of_short_histories`).
//! - Every entry carries its transaction id and, unless it was inserted, the position of the undo record that made its
//!   version (checked by `row/clustered.rs::attempt`). Rollback and purge touch an entry only if it still carries that
//!   version (tests: `first_histories_are_judged`, `a_pin_keeps_versions_and_a_reader_its_value`).
//! - Everything that a change may need is ensured before its first mini-transaction latches anything: undo slices
//!   (checked by `undo/stream.rs::write`), key lengths, uniqueness, log space for the change and for its rollback
//!   (test: `a_call_appends_no_more_than_its_reservation`). Rollback needs nothing new (test:
//!   `a_call_appends_no_more_than_its_reservation`).
//! - An overflow chain belongs to one version (test: `rows_match_the_model`). An undo record names it before its first
//!   page is linked anywhere (checked by `row/long_value.rs::begin_chain`). Purge frees it in pieces, with the record
//!   that replaced or deleted the value, or with the chain's own record once that was rolled back (test:
//!   `crash_points_during_the_freeing_of_long_chains`).
//! - *Recovery.* A transaction is unfinished if it is in the `TrxTable` record that the control file names, or has a
//!   `TrxBegin` at or above the low-water mark of the log, and has no `TrxEnd` at or above that mark (tests:
//!   `transactions_that_have_ended_are_not_kept`, `a_list_of_transactions_may_be_outdated_when_it_is_logged`). Its undo
//!   records are found by reading its stream from its first record on (test: `every_crash_point_of_short_histories`). A
//!   checkpoint reads the table after all other parts of the low-water mark (test:
//!   `a_transaction_that_ended_during_a_checkpoint_is_not_unfinished`). The mark stays below the `TrxEnd` of every
//!   transaction that is in the table and about to log it
//!   ([`TransactionNotes::note`](crate::checkpoint::TransactionNotes::note)) (test:
//!   `a_transaction_that_ended_during_a_checkpoint_is_not_unfinished`). Unfinished transactions are active again when
//!   the database opens, and are rolled back in the background (`trx::background_rollback`) (test:
//!   `the_database_is_open_while_unfinished_transactions_are_rolled_back`).
//! - *Visibility.* A reader sees the version of an entry if its read view sees the transaction, or if the version is
//!   its own (tests: `a_change_is_seen_by_its_own_transaction_alone`,
//!   `a_view_begins_with_the_first_read_or_with_the_transaction`). Otherwise the undo record that made the version
//!   leads to the previous one (`undo::versions`) (test: `a_snapshot_is_stable_while_rows_and_indexes_change`). A
//!   commit is the removal of the id from the table of active transactions: from then on all its versions are visible
//!   (test: `all_of_it_stays_or_nothing`). Purge and the drop of slices keep what a read view may still need (test:
//!   `a_pin_keeps_versions_and_a_reader_its_value`).
//! - *Locks.* A transaction that has changed an entry and not ended holds an implicit lock on it (test:
//!   `the_lock_of_a_writer_is_made_explicit_until_it_ends`). All its other locks are in the lock table (`locks`), which
//!   lists them (test: `held_and_requested_locks_are_listed`). A blocked call holds no key latch, no gate (test:
//!   `no_money_is_made_or_lost`) and no page latch (checked by `sync/lock.rs::take`) while it waits (`row::conflict`).
//!
//! Lock order: key latch of a row, key latches of unique index keys, an undo stream, the system tree, pages (checked by
//! `sync/lock.rs::take`). Pages are latched in this order: those of trees, then undo pages, then allocation maps
//! (checked by `storage/mtr.rs::check_order`).
//!
//! **Layers.** `locks` (locks and key latches), `mvcc` (ids, active transactions, what a reader sees), `undo` (records,
//! streams, rollback of a record, purge), `trx` (transactions), `row` (row changes and locking reads). Each depends
//! only on those before it. `commit_order` stands for itself.

pub mod commit_order;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod locks;
pub mod mvcc;
pub mod row;
pub mod trx;
pub mod undo;

#[cfg(any(test, feature = "testing"))]
mod invariants;
#[cfg(test)]
mod tests;

pub use locks::LockManager;
pub use mvcc::{Active, Ids, ReadView, Snapshot, Visibility, value::RowReader};
pub use row::{
    Blocked, Edit, EntryForm, EntryParts, Extract, ExtractedEntries, Extraction, Extractors, FieldChange,
    IndexKeys, IndexRef, Mode, RowTarget, Secondary, Stop, SuppliedChange, SuppliedEntry, Value, Watch,
    secondary::{entry_key, index_key_of},
};
pub use trx::{LOCK_WAIT, Rules, Savepoint, StatementLock, Suspended, Transactions, Trx};
pub use undo::{EntryAndRow, Follower, Following, FoundEntry, Stream, UndoLimitAction, Versions};
