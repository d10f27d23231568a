//! Bulk load: a whole tree from sorted input, bottom up.
//!
//! **Purpose.** Loads at sequential speed: pages in ascending order, each written once, by one operation, in one
//! mini-transaction.
//!
//! **Invariants.** Until [`BulkLoader::finish`] the tree stays empty, because its root is built last (test:
//! `bulk_load_takes_any_sorted_keys`). A load that is abandoned leaves unreachable pages, so its tablespace must then
//! be dropped (test: `a_refused_load_leaves_nothing`). A load fails at its end if the tree was changed otherwise
//! meanwhile (test: `a_load_of_a_tree_that_has_got_an_entry_fails`). Of the entries collected for a node, all but the
//! last always fit a page together with the fences they then have, which is checked as each entry is added, because a
//! node's prefix, and so its size, depends on the next key (test: `bulk_load_takes_any_sorted_keys`).

use core::ops::Deref;

use super::{
    Parts, Tree,
    store::{Access, MiniTransaction, PageStore, Reading},
    structure::separator,
};
use crate::{
    error::{Result, UsageError},
    ids::{Lsn, PageNo},
    page::{
        EntryHeader, Node, NodeList, PageOp, PageType,
        fence::{Fence, fence_bytes, prefix_of, shortened},
        node::NODE_HEADER,
    },
};

/// The node that is being filled on one level.
#[derive(Debug, Default)]
struct Level {
    lower: Vec<u8>,
    list: NodeList,
    /// Bytes of slots and records, with a prefix of length `prefix` cut off.
    bytes: usize,
    prefix: usize,
    /// Whether a node of this level was written.
    written: bool,
}

/// Loads a tree from sorted input. `T` is a reference to the tree, borrowed or counted.
#[derive(Debug)]
pub struct BulkLoader<T> {
    tree: T,
    levels: Vec<Level>,
    fill_percent: usize,
    last_page: PageNo,
    /// The LSN after the last group, once one was logged.
    lsn: Option<Lsn>,
    /// If a node could not be written, its entries are lost.
    nodes: Parts,
}

impl<S: PageStore> Tree<S> {
    /// Begins to load the tree ([`BulkLoader::new`]).
    ///
    /// # Errors
    /// [`UsageError::NotEmpty`]; those of the store.
    pub fn bulk_load(&self, fill_percent: usize) -> Result<BulkLoader<&Self>> {
        BulkLoader::new(self, fill_percent)
    }
}

fn not_empty() -> crate::error::Error {
    UsageError::NotEmpty.into()
}

impl<S: PageStore, T: Deref<Target = Tree<S>>> BulkLoader<T> {
    /// Begins to load a tree, which must be empty. Pages are filled to `fill_percent` (1 to 100).
    ///
    /// # Errors
    /// [`UsageError::NotEmpty`]; those of the store.
    pub fn new(tree: T, fill_percent: usize) -> Result<Self> {
        tree.ensure_root()?;
        let root = loop {
            let root = tree.store.read(&tree.space, PageNo::ROOT, Access::Point)?;
            let node = Node::new(root.page());
            let empty = node.is_leaf() && node.count() == 0;
            if root.is_valid() {
                break empty;
            }
        };
        if !root {
            return Err(not_empty());
        }
        Ok(Self {
            tree,
            levels: vec![Level::default()],
            fill_percent: fill_percent.clamp(1, 100),
            last_page: PageNo::ROOT,
            lsn: None,
            nodes: Parts::default(),
        })
    }

    /// Appends an entry. Its key must be above all previous ones; a long value must already be an overflow reference.
    ///
    /// # Errors
    /// `KeyTooLong`, `ValueTooLong`, [`UsageError::KeysMustAscend`]: the load continues without the entry. Errors of
    /// the store: the load can only be abandoned, and every further call fails with [`UsageError::Incomplete`].
    pub fn push(&mut self, key: &[u8], header: EntryHeader, value: &[u8]) -> Result<()> {
        self.nodes.check()?;
        self.tree.check_key(key)?;
        self.tree.check_inline(value.len())?;
        let list = &self.levels[0].list;
        if !list.is_empty() && list.key(list.len() - 1) >= key {
            return Err(UsageError::KeysMustAscend.into());
        }
        self.nodes.begin()?;
        self.ensure_room(0, key)?;
        self.nodes.end();
        let level = &mut self.levels[0];
        level.list.push_leaf(key, header, value);
        level.bytes += level.list.bytes_of(level.list.len() - 1, level.prefix);
        Ok(())
    }

    /// Ensures that an entry with this key can be appended on a level.
    fn ensure_room(&mut self, level: usize, key: &[u8]) -> Result<()> {
        let (leaf, page_size) = (level == 0, self.tree.store.page_size());
        let node = &mut self.levels[level];
        if node.list.is_empty() {
            return Ok(());
        }
        let last = node.list.key(node.list.len() - 1);
        debug_assert!(last < key, "the keys of a load do not ascend");
        let upper = if leaf { separator(last, key) } else { key };
        // The prefix if the node were closed here; it shrinks as keys ascend.
        let fences = (Fence::whole(&node.lower[..]), Some(Fence::whole(upper)));
        let prefix = prefix_of(fences);
        if prefix != node.prefix {
            node.prefix = prefix;
            node.bytes = node.list.bytes(prefix);
        }
        let bytes = node.bytes + fence_bytes(fences, page_size);
        let room = (page_size - NODE_HEADER) * self.fill_percent / 100;
        // Two children at least, however sparse the nodes: with one child each, every entry would add a level.
        let fewest = if leaf { 1 } else { 2 };
        if node.list.len() > fewest && bytes > room { self.close_before_last(level) } else { Ok(()) }
    }

    /// Writes the node without its last entry, which begins the next node.
    fn close_before_last(&mut self, level: usize) -> Result<()> {
        let node = &mut self.levels[level];
        let mut rest = NodeList::default();
        let count = node.list.len();
        debug_assert!(count >= 2, "a node without its last entry would be empty");
        debug_assert_eq!(
            node.bytes,
            node.list.bytes(node.prefix),
            "the bytes of a node were counted wrong while it was filled"
        );
        let upper = if level == 0 {
            separator(node.list.key(count - 2), node.list.key(count - 1)).to_vec()
        } else {
            node.list.key(count - 1).to_vec()
        };
        node.list.move_last(&mut rest);
        let full = core::mem::replace(&mut node.list, rest);
        let lower = core::mem::replace(&mut node.lower, upper.clone());
        node.prefix = 0;
        node.bytes = node.list.bytes(0);
        node.written = true;
        self.write(level, &lower, Some(&upper), &full)
    }

    /// Writes a node and links it in the level above.
    fn write(&mut self, level: usize, lower: &[u8], upper: Option<&[u8]>, list: &NodeList) -> Result<()> {
        debug_assert!(!list.is_empty(), "a node without an entry is written");
        debug_assert!(
            if level == 0 { list.key(0) >= lower } else { list.key(0) == lower },
            "a node's first key does not fit its lower fence"
        );
        debug_assert!(
            upper.is_none_or(|upper| list.key(list.len() - 1) < upper),
            "a node's last key is not below its upper fence"
        );
        let kind = if level == 0 { PageType::Leaf } else { PageType::Inner };
        let mut mtr = self.tree.begin_long()?;
        let near = PageNo(self.last_page.0 + 1);
        let page = mtr.allocate(&self.tree.space, kind, level as u8, near)?;
        let (lower_fence, upper) =
            shortened((Fence::whole(lower), upper.map(Fence::whole)), self.tree.store.page_size());
        let image = list.image(prefix_of((lower_fence, upper)));
        let build = PageOp::NodeBuild { level: level as u8, lower: lower_fence, upper, image: &image };
        mtr.apply(page, &build);
        let child = mtr.page_no(page);
        self.lsn = mtr.commit()?;
        self.last_page = child;
        if self.levels.len() == level + 1 {
            self.levels.push(Level::default());
        }
        self.ensure_room(level + 1, lower)?;
        let above = &mut self.levels[level + 1];
        above.list.push_inner(lower, child);
        above.bytes += above.list.bytes_of(above.list.len() - 1, above.prefix);
        Ok(())
    }

    /// Writes the remaining nodes, the root last. Returns the LSN after the last group,
    /// if anything was logged.
    ///
    /// # Errors
    /// [`UsageError::Incomplete`] after an error of the store; [`UsageError::NotEmpty`] if entries have been put into
    /// the tree meanwhile; those of the store.
    pub fn finish(mut self) -> Result<Option<Lsn>> {
        self.nodes.check()?;
        let page_size = self.tree.store.page_size();
        let room = page_size - NODE_HEADER;
        let mut level = 0;
        loop {
            let node = &self.levels[level];
            // Without an upper fence there is no prefix to cut off.
            if node.list.len() > 1
                && node.list.bytes(0) + fence_bytes((Fence::whole(&node.lower), None), page_size) > room
            {
                self.close_before_last(level)?;
            }
            let node = core::mem::take(&mut self.levels[level]);
            if !node.written {
                return self.build_root(level as u8, &node.list);
            }
            self.write(level, &node.lower, None, &node.list)?;
            level += 1;
        }
    }

    fn build_root(self, level: u8, list: &NodeList) -> Result<Option<Lsn>> {
        debug_assert!(level == 0 || list.len() > 1, "an inner root has a single child");
        if list.is_empty() {
            return Ok(self.lsn);
        }
        let mut mtr = self.tree.begin_long()?;
        let root = mtr.latch(&self.tree.space, PageNo::ROOT)?;
        let node = Node::new(mtr.page(root));
        if !node.is_leaf() || node.count() > 0 {
            return Err(not_empty());
        }
        let image = list.image(0);
        mtr.apply(root, &PageOp::NodeBuild { level, lower: Fence::whole(&[]), upper: None, image: &image });
        mtr.commit()
    }
}
