//! Overflow chains that nobody needs any more.
//!
//! **Purpose.** Frees the pages of values that were replaced or deleted, and of values whose transaction was rolled
//! back, in pieces: a value has up to 4 GiB, which is up to a million pages.
//!
//! **Invariants.**
//! - Purge alone frees chains. A transaction that is rolled back only marks the record by which it began a chain; that
//!   takes one small group of the log, so rollback waits for no room there, at run time as little as in recovery, and
//!   does not depend on the length of what was written. An entry never refers to a chain whose record is marked: the
//!   entry was taken back before.
//! - A piece is a mini-transaction that frees up to [`PIECE`] pages behind the chain's first and links the first to
//!   the rest; the first page goes last, with nothing behind it. So whatever leads to the first page leads to all
//!   that is still to be freed, whenever a crash comes, and to nothing that was freed: no page is lost, and none is
//!   freed twice.
//! - What leads there, the undo record or an entry marked as deleted, stays until the first page is gone. The record is
//!   looked at again, and the slice that it lies in is kept.
//! - A chain's stamp is the position of the undo record that began it, which no other chain ever had, or a number of
//!   its own that is no position, when a table was made with it: freeing one that is gone is found out and does
//!   nothing.
//! - Pages are freed on an [`allowance`](free). Whoever gives one has asked the log for room before it took any lock,
//!   and gives no more than fits into what it asked for ([`LOG_A_PAGE`]).
//!
//! Between two pieces nobody is kept away from the row. A reader of the old value finds its chain gone and looks again.
//! An entry that is marked as deleted may be revived, and taken back: the chain that it names is then freed on account
//! of whichever record comes first, and the other one finds nothing.
//!
//! **May touch.** `tree`, `mtr`, `buffer` and what is below.

use crate::{
    error::Result,
    ids::PageNo,
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{Bug, planted},
    tree::OverflowRef,
};

/// Pages freed in one mini-transaction.
const PIECE: usize = 16;
/// Log that the freeing of a page takes, at most: the mark on the page, the bit in the map, its part of the first
/// page's link.
pub const LOG_A_PAGE: usize = 256;

/// Frees a chain, if it is still there, as far as the allowance of pages goes, which becomes less. Says whether the
/// chain is gone.
///
/// # Errors
/// Damage, I/O, a tablespace that was dropped.
pub fn free(tree: &Tree, first: PageNo, stamp: u64, allowance: &mut usize) -> Result<bool> {
    if !tree.has_overflow(first, stamp)? {
        return Ok(true);
    }
    while *allowance > 0 {
        let piece = if planted(Bug::ChainLeaked) { 0 } else { PIECE };
        let freed = tree.shorten_overflow(first, stamp, piece.min(*allowance))?;
        if freed == 0 {
            let mut mtr = Mtr::begin(tree.store())?;
            tree.free_overflow(&mut mtr, first, stamp)?;
            mtr.commit()?;
            *allowance -= 1;
            return Ok(true);
        }
        *allowance -= freed;
    }
    Ok(false)
}

/// Frees the chain of a version, if it has one, as [`free`] does. Says whether there is none any more.
///
/// # Errors
/// As [`free`].
pub fn free_of(tree: &Tree, header: EntryHeader, value: &[u8], allowance: &mut usize) -> Result<bool> {
    match OverflowRef::from_bytes(value) {
        Some(chain) if header.is_overflow() => free(tree, chain.first, chain.stamp, allowance),
        _ => Ok(true),
    }
}
