//! The number of rows of a table, for the plan of a query.
//!
//! **Purpose.** Every change of a row changes a number in the tablespace of the table (`tablespace::rows`). A crash
//! makes it slightly wrong, which matters in a small table; so there the rows are counted once after an opening.
//!
//! **Invariants.** The rows of a small table are counted before their number is returned (test:
//! `a_small_table_is_counted_after_a_crash`). A count during which no row was inserted or deleted corrects the number,
//! once (test: `changes_during_a_count_are_not_counted_twice`).
//!
//! **Cost.** A count passes the gate of the table for a bounded number of entries at a time, so that a statement which
//! closes the gate waits for no more than those.

use super::{ddl::Catalog, table::Table};
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

impl Table {
    /// Returns the number of rows, which counts those of transactions that have not ended.
    ///
    /// # Errors
    /// [`Error::TableDropped`](crate::error::Error::TableDropped); damage, I/O.
    pub fn row_count(&self) -> Result<u64> {
        let mut counted = 0;
        for _ in 0..ATTEMPTS {
            let tree = self.enter()?.clustered.clone();
            let count = tree.space().row_count();
            let rows = || tablespace::rows(tree.store(), tree.space());
            let recorded = rows()?;
            if count.is_counted() || recorded >= SMALL_ROWS {
                return Ok(recorded.max(0).cast_unsigned());
            }
            let changes = count.changes();
            let Some(found) = self.count_entries(&tree)? else { continue };
            counted = found;
            let recorded = rows()?;
            if count.changes() == changes {
                count.correct(counted.cast_signed() - recorded);
                return Ok(counted);
            }
        }
        // A number that is wrong by the changes of a moment.
        Ok(counted)
    }

    /// Counts the entries of rows that exist; `None` if the table has another tree meanwhile.
    fn count_entries(&self, tree: &Arc<Tree>) -> Result<Option<u64>> {
        let mut cursor = Cursor::new(tree.clone());
        let mut rows = 0;
        let mut is_first = true;
        loop {
            let call = self.enter()?;
            if !Arc::ptr_eq(&call.clustered, tree) {
                return Ok(None);
            }
            for _ in 0..ENTRIES_PER_PASSAGE {
                let more =
                    if core::mem::take(&mut is_first) { cursor.seek(Seek::First)? } else { cursor.next()? };
                if !more {
                    return Ok(Some(rows));
                }
                rows += u64::from(cursor.header().is_some_and(|header| !header.is_deleted()));
            }
        }
    }
}

impl Catalog {
    /// Writes the numbers of rows of all tables, when the database is closed.
    pub(crate) fn write_row_counts(&self) {
        for (name, table) in self.tables() {
            let Ok(tree) = table.enter().map(|call| call.clustered.clone()) else { continue };
            if !tree.space().has_pending_rows() {
                continue;
            }
            let room = self.pool.context().log.admit_freeing(LOG_OVERHEAD_BYTES);
            let written = room.and_then(|_room| tablespace::write_rows(&self.pool, tree.space()));
            if let Err(error) = written {
                tracing::warn!(%error, table = &*name, "its number of rows will be slightly wrong");
            }
        }
    }
}
