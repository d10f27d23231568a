//! The B+tree, an algorithm over pages.
//!
//! **Purpose.** Ordered entries of a key, a version header and a value, written against the traits of [`store`]: point
//! reads ([`Tree::get_into`]), writes in two phases ([`Tree::seek_for_change`]), cursors, long values in overflow
//! chains, bulk load, an exact check, and a hash index.
//!
//! **Invariants.**
//! - The root is page 1 of its tablespace and never moves. A tree without a page is empty; a tree that became empty
//!   again keeps its root.
//! - Every page is in the tree, in an overflow chain, or free: a node that leaves the tree is formatted as free before
//!   its number is given back. Whatever reads a valid leaf of this tablespace thus reads a leaf of this tree.
//! - There are no sibling links. Each node's fences are the separators beside its link in the parent, so a cursor or
//!   a hint proves by the fences that it is in the right place.
//! - Readers hold no latch: a child's version is taken while the parent is still what it was (lock coupling by
//!   validation), and everything begins anew when it was not.
//! - A change of structure is one mini-transaction for one level: the parent, one or two nodes, a new or a freed page.
//!   Latches are taken parent before child, left before right, the allocation map last. Between the
//!   mini-transactions of a cascade the tree is whole.
//!
//! **May touch.** `ids`, `error`, `page`, `sync`.

mod change;
mod descent;
pub mod store;
mod structure;
#[cfg(any(test, feature = "test-pool"))]
pub mod testpool;
#[cfg(test)]
mod tests;

pub use change::Located;

use crate::{
    error::{CorruptError, Result, UsageError},
    ids::PageNo,
    page::{
        EntryHeader, Node, PageOp, PageType,
        node::{inline_limit, key_limit},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use descent::Toward;
use store::{Access, MiniTransaction, PageStore, Reading};

/// A tree: one tablespace of a store.
#[derive(Debug)]
pub struct Tree<S: PageStore> {
    store: Arc<S>,
    space: S::Space,
    /// The root exists. It never goes away, so a look at this spares a look at the tablespace.
    rooted: AtomicBool,
}

impl<S: PageStore> Tree<S> {
    /// The tree in this tablespace.
    pub fn new(store: Arc<S>, space: S::Space) -> Self {
        Self { store, space, rooted: AtomicBool::new(false) }
    }

    /// The store that keeps the pages.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// The tablespace.
    pub fn space(&self) -> &S::Space {
        &self.space
    }

    /// The longest key.
    pub fn key_limit(&self) -> usize {
        key_limit(self.store.page_size())
    }

    /// The longest value that an entry keeps; longer ones belong into overflow chains.
    pub fn inline_limit(&self) -> usize {
        inline_limit(self.store.page_size())
    }

    /// Reads the entry of a key: its version header, and its value into `value`, whose old content is lost. Entries
    /// that are marked as deleted are found too: whether they count is for the caller to say.
    ///
    /// # Errors
    /// Those of [`PageStore::read`].
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHeader>> {
        loop {
            value.clear();
            let Some(path) = self.descend(Toward::Key(key), 0, Access::Point)? else { return Ok(None) };
            let node = Node::new(path.node.page());
            let (slot, found) = node.find(key);
            let header = found.then(|| {
                node.value_into(slot, value);
                node.header(slot)
            });
            if path.node.is_valid() {
                return Ok(header);
            }
        }
    }

    /// Makes the root if there is none.
    ///
    /// # Errors
    /// Those of [`PageStore::begin`] and [`MiniTransaction::allocate`].
    pub(crate) fn ensure_root(&self) -> Result<()> {
        if !self.is_rooted()? {
            let mut mtr = self.store.begin()?;
            let root = mtr.allocate(&self.space, PageType::Leaf, 0, PageNo::ROOT)?;
            let page = mtr.page_no(root);
            if page != PageNo::ROOT {
                // Someone else made the root at the same time.
                mtr.apply(root, &PageOp::Format { kind: PageType::Free, level: 0 });
                mtr.free(&self.space, page)?;
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
            Err(UsageError::KeyTooLong { length: key.len(), limit }.into())
        } else {
            Ok(())
        }
    }

    /// The error for a structure that contradicts itself.
    fn damaged(&self, page: PageNo, what: &str) -> crate::error::Error {
        let space = self.store.space_id(&self.space);
        CorruptError::Structure { space, what: format!("page {page}: {what}").into() }.into()
    }
}
