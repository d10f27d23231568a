//! Rows in trees, without transactions.
//!
//! **Purpose.** One call, one mini-transaction: the tree operations of every server's workload and dictionary. Entries
//! carry no transaction id: every reader sees them.

use windfall::{error::Result, ids::Lsn};
use windfall_btree::{
    page::EntryHeader,
    tree::{
        Room, Tree,
        store::{MiniTransaction as _, PageStore},
    },
};

/// The header of all entries.
pub const HEADER: EntryHeader = EntryHeader::UNVERSIONED;

/// Inserts a row, or replaces it. Returns the LSN, if it was logged.
///
/// # Errors
/// Errors of the tree.
pub fn put<S: PageStore>(tree: &Tree<S>, key: &[u8], value: &[u8]) -> Result<Option<Lsn>> {
    let mut mtr = tree.store().begin()?;
    let mut place = tree.seek_for_change(&mut mtr, key, Room::Value(value.len()))?;
    match place.header() {
        Some(_) => {
            place.replace(&mut mtr, HEADER, value);
        }
        None => place.insert(&mut mtr, HEADER, value),
    }
    mtr.commit()
}

/// Removes a row, if it is there. Returns the LSN, if that was logged.
///
/// # Errors
/// Errors of the tree.
pub fn remove<S: PageStore>(tree: &Tree<S>, key: &[u8]) -> Result<Option<Lsn>> {
    let mut mtr = tree.store().begin()?;
    let place = tree.seek_for_change(&mut mtr, key, Room::Keep)?;
    if place.header().is_none() {
        place.release(&mut mtr);
        return Ok(None);
    }
    let is_underfull = place.remove(&mut mtr);
    let end = mtr.commit()?;
    if is_underfull {
        tree.maintain(key)?;
    }
    Ok(end)
}

/// Returns the value of a row.
///
/// # Errors
/// Errors of the tree.
pub fn get<S: PageStore>(tree: &Tree<S>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut value = Vec::new();
    Ok(tree.get_into(key, &mut value)?.map(|_| value))
}
