//! Look-ups by the first bytes of a key.
//!
//! **Purpose.** A read by a unique index key knows the first bytes of one entry. [`Tree::first_with`] finds it with one
//! descent, into buffers of the caller: without a cursor, which copies more entries than this one.
//!
//! **Invariants.** An entry is found as it was at one moment, and the entries with the same first bytes are found in
//! order (test: `entries_are_found_by_their_first_bytes`). If the look-up has read one leaf, no other entry with these
//! bytes was before the one that it has found, at the same moment (test: `entries_are_found_by_their_first_bytes`).

use super::{
    Tree,
    descent::{Bounds, Target},
    store::{Access, PageStore, Reading},
};
use crate::{
    error::Result,
    page::{EntryHeader, Node},
};

/// A look-up: the entry that it has found last, and its buffers. Used again, it keeps its memory.
#[derive(Debug, Default)]
pub struct LookUp {
    /// The key, or the bound from which the look-up goes on.
    key: Vec<u8>,
    value: Vec<u8>,
    /// The key in the copy of a page that may have changed meanwhile.
    copied: Vec<u8>,
    leaves: u32,
}

impl LookUp {
    /// Returns the key of the entry that was found last.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the value of the entry that was found last.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns the buffer with the value of the entry that was found last.
    pub fn value_mut(&mut self) -> &mut Vec<u8> {
        &mut self.value
    }

    /// Returns the number of leaves that were read since [`Tree::first_with`] was called.
    pub fn leaves(&self) -> u32 {
        self.leaves
    }
}

impl<S: PageStore> Tree<S> {
    /// Finds the first entry with a key that begins with these bytes, delete-marked or not. Returns its header, and its
    /// key and its value in `found`.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    pub fn first_with(&self, prefix: &[u8], found: &mut LookUp) -> Result<Option<EntryHeader>> {
        found.key.clear();
        found.key.extend_from_slice(prefix);
        found.leaves = 0;
        self.find_up(prefix, found)
    }

    /// Finds the entry after the one that was found last, if its key begins with these bytes, too.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    pub fn next_with(&self, prefix: &[u8], found: &mut LookUp) -> Result<Option<EntryHeader>> {
        // The least key above it.
        found.key.push(0);
        self.find_up(prefix, found)
    }

    /// Finds the first entry at or above `found.key` that begins with these bytes.
    fn find_up(&self, prefix: &[u8], found: &mut LookUp) -> Result<Option<EntryHeader>> {
        let LookUp { key, value, copied, leaves } = found;
        debug_assert!(key.starts_with(prefix), "a look-up goes on outside of its range");
        // Whether the upper fence of the leaf is needed and cut.
        let mut is_cut = false;
        loop {
            let target = Target::Key(key);
            let reached = if is_cut {
                self.reach_with_bounds(target, 0, Access::Point)?.map(|(path, bounds)| (path, Some(bounds)))
            } else {
                self.reach(target, 0, Access::Point)?.map(|path| (path, None))
            };
            let Some((path, bounds)) = reached else { return Ok(None) };
            let node = Node::new(path.node.page());
            let (slot, _) = node.find(key);
            copied.clear();
            value.clear();
            let header = (slot < node.count()).then(|| {
                node.key_into(slot, copied);
                node.version_into(slot, value)
            });
            let is_known = header.is_some() || bounds.is_some() || !node.has_cut_fence();
            let is_bounded = header.is_some()
                || match bounds {
                    Some(Bounds { upper, .. }) => {
                        copied.extend_from_slice(upper.as_deref().unwrap_or(&[]));
                        upper.is_some()
                    }
                    None => node.upper_into(copied),
                };
            if !path.node.is_valid() {
                continue;
            }
            is_cut = !is_known;
            if is_cut {
                continue;
            }
            *leaves += 1;
            if !is_bounded || !copied.starts_with(prefix) {
                return Ok(None);
            }
            core::mem::swap(key, copied);
            if header.is_some() {
                return Ok(header);
            }
            // The next leaf begins with its lower fence.
            if *key <= *copied {
                let page = node.page().id().page;
                return Err(self.damaged(page, "it does not reach beyond the key that it was found by"));
            }
        }
    }
}
