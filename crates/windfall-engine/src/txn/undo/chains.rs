//! Overflow chains that are no longer needed.
//!
//! **Purpose.** Frees the pages of values that were replaced or deleted, and of values that a rolled-back transaction
//! has written, in pieces: a value has up to 4 GiB, which is up to a million pages.
//!
//! **Invariants.**
//! - Only purge frees chains: a rollback merely marks the record by which the transaction began a chain (test:
//!   `a_step_frees_a_bounded_number_of_pages`). An entry never refers to a chain with a marked record, because the
//!   entry was restored before (test: `crash_points_during_the_freeing_of_long_chains`).
//! - A piece is a mini-transaction that frees up to [`PAGES_PER_GROUP`] pages after the first page of the chain and
//!   links the first page to the rest (checked by `tree/overflow.rs::shorten_overflow`); the first page is freed last,
//!   when no page follows it. So whenever a crash occurs, every reference to the first page leads to all pages that are
//!   still to be freed, and to none that was freed: no page is lost, and none is freed twice (test:
//!   `crash_points_during_the_freeing_of_long_chains`).
//! - The reference, which is the undo record or a delete-marked entry, stays until the first page is freed: the record
//!   is processed again, and its slice is kept (test: `a_value_far_longer_than_the_log_is_written_and_purged`).
//! - A chain's stamp is the position of the undo record that began it, which no other chain ever had (checked by
//!   `row/long_value.rs::begin_chain`), or, if the value was written with the creation of a table, its number among the
//!   chains of that load, with a bit that no position has (checked by `catalog/bulk.rs::load_chain`). So freeing a
//!   chain that was freed before is detected and does nothing (test: `crash_points_during_the_freeing_of_long_chains`).
//! - Pages are freed on an [`allowance`](free) (checked by `undo/chains.rs::free`). The caller that grants one has
//!   reserved log before it took any mutex or latch, and grants no more than fits into its reservation
//!   ([`LOG_BYTES_PER_PAGE`]) (checked by `undo/purge.rs::purge_locked`).
//! - Between two pieces other calls may access the row, so a reader of the old value finds its chain freed (test:
//!   `a_reader_never_takes_another_value_for_its_own`) and reads the entry again. A delete-marked entry may be revived,
//!   and that rolled back: the chain that it names is then freed by whichever record comes first, and the other one
//!   finds nothing (test: `crash_points_during_the_freeing_of_long_chains`).
//!
//! **Reasons.** To mark a record takes one small log group. So rollback never waits for log space for the pages of a
//! chain, neither at run time nor in recovery, and does not depend on the length of the value.

use super::record::KeptChains;
use crate::{
    error::{CorruptError, Owner, Result},
    ids::PageNo,
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    tree::Chains,
};

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
        assert!(freed <= PAGES_PER_GROUP.min(*allowance), "more pages were freed than was permitted");
        *allowance -= freed;
    }
    Ok(false)
}

/// Frees the chains of a version, except those that the next version has kept, as [`free`] does. Returns whether none
/// is left.
///
/// # Errors
/// As [`free`].
pub(super) fn free_of(
    tree: &Tree,
    header: EntryHeader,
    value: &[u8],
    kept: KeptChains,
    allowance: &mut usize,
) -> Result<bool> {
    for chain in kept.others_of(chains_of(tree, header, value)?) {
        if !free(tree, chain.first, chain.stamp, allowance)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether a version has chains that the next version has not kept, or makes no sense, which [`free_of`]
/// reports.
pub(super) fn has_replaced(header: EntryHeader, value: &[u8], kept: KeptChains) -> bool {
    Chains::of(header, value).is_none_or(|chains| kept.others_of(chains).next().is_some())
}

/// Returns the chains of an entry.
///
/// # Errors
/// Damage.
pub(in crate::txn) fn chains_of<'v>(tree: &Tree, header: EntryHeader, value: &'v [u8]) -> Result<Chains<'v>> {
    Chains::of(header, value).ok_or_else(|| {
        let what = "an entry has no references to overflow chains where it should".into();
        CorruptError::Structure { owner: Owner::Unknown, space: tree.space().id(), what }.into()
    })
}
