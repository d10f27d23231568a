//! The B+tree, an algorithm over pages.
//!
//! **Purpose.** Ordered entries of a key, a version header and a value, written against the traits of [`store`]: point
//! reads ([`Tree::get_into`]), writes in two phases ([`Tree::seek_for_change`]), cursors, long values in overflow
//! chains, bulk load, an exact check, and an adaptive hash index.
//!
//! **Invariants.**
//! - The root is page 1 of its tablespace and never moves (test: `a_tree_that_is_emptied_in_any_order_is_one_page`). A
//!   tree without a page is empty; a tree that became empty again keeps its root (test:
//!   `a_tree_that_is_emptied_in_any_order_is_one_page`).
//! - Every page is in the tree, in an overflow chain, or free (test:
//!   `a_crash_between_any_two_groups_leaves_a_whole_tree`): a node that is removed from the tree is formatted as free
//!   before its number is returned to the free pages. A page that reads as a valid leaf of this tablespace is thus a
//!   leaf of this tree (test: `the_hash_index_finds_and_never_lies`).
//! - There are no sibling links: the fences of each node are the separators on both sides of its link in the parent, so
//!   a cursor or a hint verifies its position by the fences (test:
//!   `a_cursor_survives_splits_and_merges_between_its_calls`).
//! - Readers hold no latch: a child's version is read while the parent's version is still valid (optimistic lock
//!   coupling), and the descent restarts if validation fails (test: `readers_and_cursors_during_splits_and_merges`).
//! - A change of structure is one mini-transaction for one level: the parent, one or two nodes, a new or a freed page
//!   (test: `a_crash_between_any_two_groups_leaves_a_whole_tree`). Latches are taken parent before child, left before
//!   right, the allocation map last (checked by `tree/testpool.rs::hold_in_order`). Between the mini-transactions of a
//!   cascade the tree is consistent (test: `a_crash_between_any_two_groups_leaves_a_whole_tree`).

mod bulk_load;
mod change;
mod check;
mod cursor;
mod descent;
mod estimate;
pub mod fields;
pub mod freeze;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod hash;
mod look_up;
pub mod overflow;
mod page_set;
mod parts;
mod sample;
pub mod store;
mod structure;
#[cfg(any(test, feature = "fuzz"))]
pub mod testpool;
#[cfg(test)]
mod tests;

pub use bulk_load::BulkLoader;
pub use change::{Adjacent, LeafHint, Located, Room};
pub use check::{TreeReport, Walk};
pub use cursor::{Cursor, CursorMemory, Seek};
pub use fields::{Chains, StoredField, StoredFields};
pub use freeze::Horizon;
pub use look_up::LookUp;
pub use overflow::{OverflowReader, OverflowRef, OverflowWriter};
pub use page_set::PageSet;
pub use parts::Parts;
pub use sample::LeafCopy;
pub use structure::{ORDERED_FILL_PERCENT, PendingMerges, split_log_limit};

use crate::{
    error::{CorruptError, Owner, Result, UsageError},
    ids::PageNo,
    page::{
        EntryHeader, Node, PageType,
        node::{inline_limit, key_limit, key_part_limit},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};
use descent::Target;
use hash::hash_of;
use store::{Access, HashIndex as _, MiniTransaction, PageStore, Reading};

/// A tree, which is one tablespace of a store.
#[derive(Debug)]
pub struct Tree<S: PageStore> {
    store: Arc<S>,
    space: S::Space,
    /// Whether the root exists. It is never removed, so this flag saves an access to the tablespace.
    rooted: AtomicBool,
    hash: S::Hash,
    /// The last leaf, while entries are inserted at the end of the tree.
    end_leaf: EndLeaf,
    /// Whether users of this handle have reserved log space for splits: [`split_log_limit`].
    log_reserved: bool,
    /// What is old enough to be frozen.
    horizon: Option<Arc<dyn Horizon>>,
}

/// A hint at the last leaf of a tree, which proves nothing. It has a cache line of its own, because inserts change it
/// and every call reads the fields next to it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct EndLeaf(AtomicU32);

impl EndLeaf {
    fn get(&self) -> Option<PageNo> {
        // The header is no leaf.
        Some(PageNo(self.0.load(Relaxed))).filter(|page| *page != PageNo::HEADER)
    }

    fn set(&self, page: Option<PageNo>) {
        let page = page.unwrap_or(PageNo::HEADER);
        if self.0.load(Relaxed) != page.0 {
            self.0.store(page.0, Relaxed);
        }
    }
}

/// The result of a read by a hint of the hash index.
enum ByHint {
    /// The leaf that the hint names cannot tell.
    Unknown,
    /// The header of the entry, or that there is no entry, and where it is or belongs.
    Answer(Option<EntryHeader>, LeafHint),
}

impl<S: PageStore> Tree<S> {
    /// Creates a handle of the tree in this tablespace, with its hash index.
    pub fn new(store: Arc<S>, space: S::Space, hash: S::Hash) -> Self {
        let (rooted, end_leaf) = (AtomicBool::new(false), EndLeaf::default());
        Self { store, space, rooted, hash, end_leaf, log_reserved: false, horizon: None }
    }

    /// Marks the handle as one whose users reserve log space ([`split_log_limit`]) for each entry that they make
    /// longer: its splits reserve none.
    #[must_use]
    pub fn with_log_reserved(self) -> Self {
        debug_assert!(self.horizon.is_none(), "log that was reserved for splits is used to freeze");
        Self { log_reserved: true, ..self }
    }

    /// Returns the store of the pages.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// Returns the tablespace.
    pub fn space(&self) -> &S::Space {
        &self.space
    }

    /// Returns the hash index.
    pub fn hash(&self) -> &S::Hash {
        &self.hash
    }

    /// Returns the maximum length of a key, in bytes.
    pub fn key_limit(&self) -> usize {
        key_limit(self.store.page_size())
    }

    /// Returns the maximum length of one part of a key, in bytes: a key consists of one or two.
    pub fn key_part_limit(&self) -> usize {
        key_part_limit(self.store.page_size())
    }

    /// Returns the maximum length of a value in an entry, in bytes; longer ones are stored in overflow chains.
    pub fn inline_limit(&self) -> usize {
        inline_limit(self.store.page_size())
    }

    /// Returns the number of levels; 0 if the tree has no page.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    pub fn height(&self) -> Result<u32> {
        if !self.is_rooted()? {
            return Ok(0);
        }
        loop {
            let root = self.store.read(&self.space, PageNo::ROOT, Access::Point)?;
            let height = u32::from(Node::new(root.page()).level()) + 1;
            if root.is_valid() {
                return Ok(height);
            }
        }
    }

    /// Reads the entry of a key: returns its version header, and replaces the content of `value` by its value.
    /// Delete-marked entries are returned too; the caller decides about their visibility.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    #[inline]
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHeader>> {
        self.get(key, value).map(|(header, _)| header)
    }

    /// As [`Tree::get_into`]. Returns also in which leaf the key was looked for, for
    /// [`Tree::seek_for_change_near`].
    ///
    /// # Errors
    /// As [`Tree::get_into`].
    pub fn get_before_change(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<(Option<EntryHeader>, LeafHint)> {
        // The hash index notes the places of new keys, too.
        let end = if self.hash.is_on() { None } else { self.end_for(key) };
        if end.is_some() {
            value.clear();
            return Ok((None, LeafHint(end)));
        }
        self.get(key, value)
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<(Option<EntryHeader>, LeafHint)> {
        let hash = self.hash.is_on().then(|| hash_of(key));
        if let Some(hash) = hash
            && let ByHint::Answer(header, leaf) = self.get_by_hint(hash, key, value)
        {
            return Ok((header, leaf));
        }
        loop {
            value.clear();
            let Some(path) = self.descend(Target::Key(key), 0, Access::Point)? else {
                return Ok((None, LeafHint::default()));
            };
            let node = Node::new(path.node.page());
            let (slot, found) = node.find(key);
            let header = found.then(|| node.version_into(slot, value));
            let leaf = node.page().id().page;
            let is_there = if found { Some(true) } else { node.contains(key) };
            if path.node.is_valid() {
                match is_there {
                    Some(true) => {}
                    Some(false) => return Err(self.fence_mismatch(leaf)),
                    // Reports a leaf that is not the right one.
                    None => drop(self.reach_with_bounds(Target::Key(key), 0, Access::Point)?),
                }
                // If the root is a leaf, the descent is as fast as a hint.
                if let Some(hash) = hash.filter(|_| path.parent.is_some()) {
                    self.hash.note(hash, leaf, slot);
                }
                return Ok((header, LeafHint(Some((leaf, slot)))));
            }
        }
    }

    /// Reads an entry from the leaf that the hash index hints at.
    fn get_by_hint(&self, hash: u64, key: &[u8], value: &mut Vec<u8>) -> ByHint {
        let Some((page, hint)) = self.hash.hint(hash) else { return ByHint::Unknown };
        // If this read fails, the descent returns the right error, if there is one.
        let Ok(reading) = self.store.read(&self.space, page, Access::Point) else { return ByHint::Unknown };
        let node = Node::new(reading.page());
        // A page that has not been verified against its parent yet may be stale.
        if !node.is_leaf() || !node.has_prefix_of(key) || reading.is_unverified() {
            return ByHint::Unknown;
        }
        value.clear();
        let (slot, found) = if node.is_at(hint, key) { (hint, true) } else { node.find(key) };
        if found {
            let header = node.version_into(slot, value);
            if !reading.is_valid() {
                return ByHint::Unknown;
            }
            if slot != hint {
                self.hash.note(hash, page, slot);
            }
            return ByHint::Answer(Some(header), LeafHint(Some((page, slot))));
        }
        if node.contains(key) == Some(true) && reading.is_valid() {
            ByHint::Answer(None, LeafHint(Some((page, slot))))
        } else {
            ByHint::Unknown
        }
    }

    /// Creates the root if there is none.
    ///
    /// # Errors
    /// The errors of [`PageStore::begin`] and [`MiniTransaction::allocate`].
    pub fn ensure_root(&self) -> Result<()> {
        if !self.is_rooted()? {
            let mut mtr = self.store.begin()?;
            let root = mtr.allocate(&self.space, PageType::Leaf, 0, PageNo::ROOT)?;
            debug_assert!(Node::new(mtr.page(root)).is_leaf(), "a new root is not a leaf");
            if mtr.page_no(root) != PageNo::ROOT {
                // Another thread created the root at the same time. The allocation map that shows it is latched.
                let page = mtr.prepare_free(&self.space, root)?;
                mtr.free(&self.space, page);
            }
            mtr.commit()?;
            self.rooted.store(true, Relaxed);
        }
        Ok(())
    }

    fn is_rooted(&self) -> Result<bool> {
        if self.rooted.load(Relaxed) {
            return Ok(true);
        }
        let rooted = !self.store.is_empty(&self.space)?;
        self.rooted.store(rooted, Relaxed);
        Ok(rooted)
    }

    fn check_key(&self, key: &[u8]) -> Result<()> {
        let limit = self.key_limit();
        if key.len() > limit {
            Err(UsageError::KeyTooLong { owner: Owner::Unknown, length: key.len(), limit }.into())
        } else {
            Ok(())
        }
    }

    /// Returns an error if a value is too long to be stored in a node.
    ///
    /// # Errors
    /// `ValueTooLong`.
    pub fn check_inline(&self, length: usize) -> Result<()> {
        let limit = self.inline_limit();
        if length > limit {
            let (length, limit) = (length as u64, limit as u64);
            Err(UsageError::ValueTooLong { owner: Owner::Unknown, length, limit }.into())
        } else {
            Ok(())
        }
    }

    /// Returns the error for a structure that contradicts itself.
    fn damaged(&self, page: PageNo, what: &str) -> crate::error::Error {
        let space = self.store.space_id(&self.space);
        CorruptError::Structure { owner: Owner::Unknown, space, what: format!("page {page}: {what}").into() }
            .into()
    }
}
