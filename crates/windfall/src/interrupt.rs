//! Handles that interrupt the calls of transactions and statements.
//!
//! **Purpose.** A session that waits, or works for long, is ended from outside: by another thread, which knows neither
//! the transaction nor what it waits for. The handle exists before the transaction has an id, and serves any number of
//! transactions and statements.
//!
//! Long work reports its progress to the callback of the handle, which can also end it.
//!
//! **Invariants.** A call whose wait is ended fails as after a timeout: it has changed nothing, and its transaction
//! continues (test: `an_interrupted_transaction_continues`). So does a call that passes over many entries (test:
//! `an_interrupt_ends_a_move_over_many_entries`). A statement whose wait is ended leaves its tables open (test:
//! `a_statement_that_gives_up_leaves_its_tables_open`). The end of a transaction, and a rollback, are not interrupted
//! (test: `an_interrupt_does_not_keep_a_transaction_from_its_end`).

use crate::sync::{Arc, Interrupt, Interruptible, Progress};

/// Interrupts the calls of the transactions and statements that have this handle
/// ([`Transaction::interrupt_handle`](crate::Transaction::interrupt_handle),
/// [`Database::with_interrupt`](crate::Database::with_interrupt)). Clones are the same handle. It may be used from any
/// thread, and does not wait.
///
/// It ends these waits, with [`LockError::Interrupted`](crate::error::LockError::Interrupted):
/// - those of a call in a transaction: for locks of rows, ranges and tables; for another call that is changing the same
///   row; for a statement that has closed the table; for space in the log and the undo log, before a change; and,
///   before a change, for the builder of a new index;
/// - those of a DDL statement: for transactions and background rollbacks that use its tables, for the calls in progress
///   on them, and for other statements with one of its names. All its tables are then in use again, as they were;
/// - that of [`Database::table`](crate::Database::table) for a statement that decides about the name, and those of
///   [`Database::check`](crate::Database::check) and [`Database::check_live`](crate::Database::check_live) for names,
///   calls and rollbacks in the background.
///
/// It ends this work, with the same error, once in a thousand steps or so if it lasts until then:
/// - the move of a cursor or range over entries that are deleted, invisible or not wanted, also in an index, and also
///   if the move locks rows: these stay locked, and the cursor is not positioned afterwards;
/// - a read of many rows by their keys, and of a version that has been replaced many times since;
/// - a statement that adds an index, creates a table from rows or loads rows into one: between two rows, and while it
///   sorts, merges and writes what it has collected; a load is then incomplete. Also for a temporary table;
/// - the copy of long fields to a row with another key ([`Table::change_key_fields`](crate::Table::change_key_fields));
/// - [`Database::check`](crate::Database::check) and [`Database::check_live`](crate::Database::check_live).
///   [`Table::check`](crate::Table::check) is ended by its callback, which may return `!handle.is_set()`.
///
/// It ends none of these: the wait of a check for a checkpoint; the wait until a commit is durable, also that of a
/// statement; commit, rollback and the end of a statement; the truncation of a temporary table; and calls outside of
/// transactions.
///
/// A call that a source of a value or rows makes while it is asked counts as a part of the call that asks it. So does
/// one that a condition on entries makes.
#[derive(Clone, Debug, Default)]
pub struct InterruptHandle(Arc<Interrupt>);

impl InterruptHandle {
    /// Returns a new handle, which is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a handle to which long work reports its progress: a statement that adds indexes, creates a table from
    /// rows or loads rows into one, and [`Database::check`](crate::Database::check) and
    /// [`Database::check_live`](crate::Database::check_live).
    ///
    /// The callback gets the progress whenever a phase begins ([`Phase`](crate::Phase)), and again after a thousand
    /// steps or so. If it returns `false` the work ends as by an interrupt, and the handle is not set; a panic of the
    /// callback ends the work as well. It is called by the thread of the work, between two steps, and may use other
    /// tables. What it calls in the database counts as called from within a call: a DDL statement is refused, and so is
    /// what would wait for another call. For the progress from another thread, let it store what it gets.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-progress-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use std::sync::{Arc, Mutex};
    /// use windfall::{IndexOptions, InterruptHandle, TableOptions};
    ///
    /// let rows = (0..5000u32).map(|n| Ok((n.to_be_bytes().to_vec(), b"a value".to_vec())));
    /// db.create_table_from("t", TableOptions::default(), rows)?;
    /// let latest = Arc::new(Mutex::new(String::new())); // another thread may read it at any time
    /// let stored = latest.clone();
    /// let handle = InterruptHandle::reporting(move |progress| {
    ///     *stored.lock().unwrap() = progress.to_string(); // such as "reading rows: 60 %"
    ///     true
    /// });
    /// db.with_interrupt(&handle).create_index("t", "i", IndexOptions::on_value(0..4))?;
    /// assert!(!latest.lock().unwrap().is_empty());
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn reporting(report: impl Fn(Progress) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(Interrupt::reporting(report)))
    }

    /// Ends the waits in progress, and sets the handle: until [`InterruptHandle::clear`] every call that would have to
    /// wait, or would work for long, fails instead.
    pub fn interrupt(&self) {
        self.0.interrupt();
    }

    /// Withdraws the interrupt: calls wait again, and long work continues unless it has ended already. Waits that were
    /// in progress at the interrupt have ended, or will end.
    pub fn clear(&self) {
        self.0.clear();
    }

    /// Returns whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.is_set()
    }

    /// Makes the waits of this thread those that it ends, until the guard is dropped.
    pub(crate) fn enter(&self) -> Interruptible {
        self.0.enter()
    }
}
