//! Overflow chains that nobody needs any more.
//!
//! **Purpose.** Rollback frees the chains that its transaction has begun, purge those of values that were replaced or
//! deleted.
//!
//! **Invariants.** A chain's stamp is the position of the undo record that began it, which no other chain ever had: freeing
//! one that is gone is found out and does nothing.
//!
//! **May touch.** `tree`, `mtr`, `buffer` and what is below.

use crate::{error::Result, ids::PageNo, mtr::Mtr, page::EntryHeader, store::Tree, tree::OverflowRef};

/// Pages freed in one mini-transaction.
const AT_ONCE: usize = 16;

/// Frees a chain, if it is still there.
///
/// # Errors
/// Damage, I/O, a tablespace that was dropped.
pub fn free(tree: &Tree, first: PageNo, stamp: u64) -> Result<()> {
    if !tree.has_overflow(first, stamp)? {
        return Ok(());
    }
    while tree.shorten_overflow(first, stamp, AT_ONCE)? {}
    let mut mtr = Mtr::begin(tree.store())?;
    tree.free_overflow(&mut mtr, first, stamp)?;
    mtr.commit()?;
    Ok(())
}

/// Frees the chain of a version, if it has one.
///
/// # Errors
/// As [`free`].
pub fn free_of(tree: &Tree, header: EntryHeader, value: &[u8]) -> Result<()> {
    match OverflowRef::from_bytes(value) {
        Some(chain) if header.is_overflow() => free(tree, chain.first, chain.stamp),
        _ => Ok(()),
    }
}
