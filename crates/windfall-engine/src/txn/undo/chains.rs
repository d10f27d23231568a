//! Overflow chains that are no longer needed.
//!
//! **Purpose.** Frees the pages of values that were replaced or deleted, and of values that a rolled-back transaction
//! has written, in pieces: a value has up to 4 GiB, which is up to a million pages.
//!
//! **Invariants.**
//! - Only purge frees chains. A rollback merely marks the record by which the transaction began a chain. That takes one
//!   small log group, so rollback never waits for log space for the pages of a chain, neither at run time nor in
//!   recovery, and does not depend on the length of the value. An entry never refers to a chain with a marked record:
//!   the entry was restored before.
//! - A piece is a mini-transaction that frees up to [`PAGES_PER_GROUP`] pages after the first page of the chain and
//!   links the first page to the rest; the first page is freed last, when no page follows it. So whenever a crash
//!   occurs, every reference to the first page leads to all pages that are still to be freed, and to none that was
//!   freed: no page is lost, and none is freed twice.
//! - The reference, which is the undo record or a delete-marked entry, stays until the first page is freed. The record
//!   is processed again, and its slice is kept.
//! - A chain's stamp is the position of the undo record that began it, which no other chain ever had. If the value was
//!   written with the creation of a table, it is a unique number that is no position. So freeing a chain that was freed
//!   before is detected and does nothing.
//! - Pages are freed on an [`allowance`](free). The caller that grants one has reserved log before it took any mutex or
//!   latch, and grants no more than fits into its reservation ([`LOG_BYTES_PER_PAGE`]).
//!
//! Between two pieces other calls may access the row. A reader of the old value finds its chain freed and reads the
//! entry again. A delete-marked entry may be revived, and that rolled back: the chain that it names is then freed by
//! whichever record comes first, and the other one finds nothing.

use crate::{error::Result, ids::PageNo, mtr::Mtr, page::EntryHeader, store::Tree, tree::OverflowRef};

/// Pages freed in one mini-transaction.
const PAGES_PER_GROUP: usize = 16;
/// Bytes of log that freeing a page takes, at most: the mark on the page, the bit in the map, its share of the first
/// page's link.
pub(in crate::txn) const LOG_BYTES_PER_PAGE: usize = 256;

/// Frees a chain, if it still exists, as far as the allowance of pages permits, which is reduced accordingly. Returns
/// whether the whole chain is freed.
///
/// # Errors
/// Damage, I/O, a tablespace that was dropped.
pub(super) fn free(tree: &Tree, first: PageNo, stamp: u64, allowance: &mut usize) -> Result<bool> {
    if !tree.has_overflow(first, stamp)? {
        return Ok(true);
    }
    while *allowance > 0 {
        let freed = tree.shorten_overflow(first, stamp, PAGES_PER_GROUP.min(*allowance))?;
        if freed == 0 {
            let mut mtr = Mtr::begin(tree.store())?;
            tree.free_overflow(&mut mtr, first, stamp)?;
            mtr.commit()?;
            *allowance -= 1;
            return Ok(true);
        }
        debug_assert!(freed <= *allowance, "more pages were freed than was permitted");
        *allowance -= freed;
    }
    Ok(false)
}

/// Frees the chain of a version, if it has one, as [`free`] does. Returns whether no chain is left.
///
/// # Errors
/// As [`free`].
pub(super) fn free_of(tree: &Tree, header: EntryHeader, value: &[u8], allowance: &mut usize) -> Result<bool> {
    match OverflowRef::from_bytes(value) {
        Some(chain) if header.is_overflow() => free(tree, chain.first, chain.stamp, allowance),
        _ => Ok(true),
    }
}
