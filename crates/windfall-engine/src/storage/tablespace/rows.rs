//! The number of rows of a table, in the header of its tablespace.
//!
//! **Purpose.** A word of page 0 that has all changes of the number of rows but the pending ones (`buffer::row_count`).
//! It belongs to the tablespace as the tree does: a drop and a truncation discard it, a rename of the table keeps it.
//!
//! **Invariants.** The word and the pending changes are read, and changes are moved from these to the word, under the
//! latch of the header; so their sum is the number of rows (tests: `changes_are_moved_once`,
//! `the_number_of_rows_follows_every_change`). Changes of a transaction that has not ended count, and its rollback
//! takes them back (test: `the_number_of_rows_follows_every_change`). The changes that were pending at a crash are not
//! counted afterwards, which are few (test: `a_crash_loses_few_changes_of_the_number_of_rows`).

use super::ceiling::{latch_header, read_header};
use crate::{
    buffer::{BufferPool, Space},
    error::Result,
    mtr::Mtr,
    page::PageOp,
    sync::Arc,
};

const ROWS_AT: usize = 64;

/// Returns the number of rows; those of transactions that have not ended count. After a crash it may be slightly wrong,
/// and even negative: a rollback takes back rows that were lost from the count.
///
/// # Errors
/// When the tablespace is dropped; damage, I/O.
pub fn rows(pool: &BufferPool, space: &Arc<Space>) -> Result<i64> {
    read_header(pool, space, |header| {
        header.u64(ROWS_AT).cast_signed().wrapping_add(space.row_count().pending())
    })
}

/// Moves the pending changes to the header of a tablespace that has pages. No latch may be held.
///
/// # Errors
/// When the tablespace is dropped; damage, I/O. Nothing was moved then.
pub fn write_rows(pool: &BufferPool, space: &Arc<Space>) -> Result<()> {
    let mut mtr = Mtr::begin(pool)?;
    let header = latch_header(&mut mtr, space)?;
    let count = space.row_count();
    let rows = mtr.page(header).u64(ROWS_AT).cast_signed().wrapping_add(count.take());
    mtr.apply(header, &PageOp::Write { at: ROWS_AT as u32, bytes: &rows.to_le_bytes() });
    count.set_limit(rows.max(0).cast_unsigned());
    mtr.commit().map(drop)
}

/// Moves the pending changes to the header, if this thread has made many. No latch may be held. The change that made
/// them many is complete, so an error is left to the next call that needs the header.
#[inline]
pub fn write_rows_if_due(pool: &BufferPool, space: &Arc<Space>) {
    if space.row_count().is_due()
        && let Err(error) = write_rows(pool, space)
    {
        space.row_count().defer();
        tracing::warn!(
            target: "windfall::storage",
            %error, space = space.id().0, "a number of rows could not be written",
        );
    }
}
