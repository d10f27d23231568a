//! The number of rows of a table, for the plan of a query.
//!
//! **Purpose.** Every change of a row changes a number in the tablespace of the table (`tablespace::rows`). A crash
//! makes it slightly wrong, which matters in a small table; so there the rows are counted once after an opening.
//!
//! **Invariants.** The rows of a small table are counted before their number is returned (test:
//! `a_small_table_is_counted_after_a_crash`). A count during which no row was inserted or deleted corrects the number,
//! once (test: `a_count_during_changes_is_refused`); after some attempts another one does, which is wrong by the
//! changes of a moment (test: `changes_during_counts_leave_a_small_error`). A truncation meanwhile is no error (test:
//! `rows_are_counted_during_truncations`).
//!
//! **Cost.** The rows are counted once, at most [`ATTEMPTS`] times if they change meanwhile, and not at all if there
//! are many entries of deleted rows. A count passes the gate of the table for a bounded number of entries at a time, so
//! that a statement which closes the gate waits for no more than those.

use super::{state::Catalog, table::Table};
use crate::{
    error::Result,
    log::LOG_OVERHEAD_BYTES,
    store::Tree,
    sync::Arc,
    tablespace,
    tree::{Cursor, Seek},
};

/// Below this many rows those that a crash has lost may be more than 1 %.
const SMALL_ROWS: i64 = 8192;
/// Counts of a table that is being changed.
const ATTEMPTS: usize = 3;
/// Entries that are counted within one passage of the gate.
const ENTRIES_PER_PASSAGE: usize = 256;
/// A table with more entries than in this many passages is not counted.
const PASSAGES: usize = 4 * SMALL_ROWS as usize / ENTRIES_PER_PASSAGE;

impl Table {
    /// Returns the number of rows, which counts those of transactions that have not ended.
    ///
    /// # Errors
    /// [`Error::TableDropped`](crate::error::Error::TableDropped); damage, I/O.
    pub fn row_count(self: &Arc<Self>) -> Result<u64> {
        let mut attempts = 0;
        loop {
            let (tree, recorded) = {
                let call = self.enter()?;
                let tree = call.clustered.clone();
                let is_counted = tree.space().row_count().is_counted();
                let recorded = recorded(&tree)?;
                if is_counted || recorded >= SMALL_ROWS {
                    return Ok(recorded.max(0).cast_unsigned());
                }
                (tree, recorded)
            };
            let count = tree.space().row_count();
            let changes = count.changes();
            match self.count_entries(&tree)? {
                Counted::Rows { rows, recorded } => {
                    attempts += 1;
                    let by = rows.cast_signed() - recorded;
                    if count.correct_unless_changed(changes, by) {
                        return Ok(rows);
                    }
                    if attempts == ATTEMPTS {
                        // It is wrong by the changes of a moment.
                        count.correct(by);
                        return Ok(rows);
                    }
                }
                Counted::TooManyEntries => {
                    count.correct(0);
                    return Ok(recorded.max(0).cast_unsigned());
                }
                Counted::OtherTree => {}
            }
        }
    }

    /// Counts the entries of rows that exist.
    fn count_entries(self: &Arc<Self>, tree: &Arc<Tree>) -> Result<Counted> {
        let mut cursor = Cursor::new(tree.clone());
        let mut rows = 0;
        for passage in 0..PASSAGES {
            let call = self.enter()?;
            if !Arc::ptr_eq(&call.clustered, tree) {
                return Ok(Counted::OtherTree);
            }
            for entry in 0..ENTRIES_PER_PASSAGE {
                let is_first = passage == 0 && entry == 0;
                let more = if is_first { cursor.seek(Seek::First)? } else { cursor.next()? };
                if !more {
                    return Ok(Counted::Rows { rows, recorded: recorded(tree)? });
                }
                rows += u64::from(cursor.header().is_some_and(|header| !header.is_deleted()));
            }
        }
        Ok(Counted::TooManyEntries)
    }
}

/// The outcome of a count.
enum Counted {
    /// The rows that exist, and their number as recorded after the count.
    Rows { rows: u64, recorded: i64 },
    /// There are far more entries than a small table has rows.
    TooManyEntries,
    /// The table was truncated.
    OtherTree,
}

/// Returns the number of rows, which may be slightly wrong after a crash.
pub(super) fn recorded(tree: &Tree) -> Result<i64> {
    tablespace::rows(tree.store(), tree.space())
}

impl Catalog {
    /// Writes the numbers of rows of all tables, when the database is closed.
    pub(crate) fn write_row_counts(&self) {
        for (name, table) in self.tables() {
            // Without the gate, which a statement may have closed that this would wait for.
            let tree = table.with_schema(|schema| schema.clustered.clone());
            if !tree.space().has_pending_rows() {
                continue;
            }
            let room = self.pool.context().log.admit_freeing(LOG_OVERHEAD_BYTES);
            let written = room.and_then(|_room| tablespace::write_rows(&self.pool, tree.space()));
            if let Err(error) = written {
                tracing::warn!(
                    target: "windfall::ddl",
                    %error, table = &*name, "its number of rows will be slightly wrong",
                );
            }
        }
    }
}
