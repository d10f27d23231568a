//! The global adaptive hash index: one table over all trees, under one latch.
//!
//! **Purpose.** Works like that of `InnoDB`: a page is hashed, with all its keys at once, when the index could have
//! answered enough look-ups in it. Searches share the latch, changes hold it exclusively. An entry refers to a frame,
//! and so must be removed before the frame holds another page: a drop pays for that when the hash index is on.
//!
//! **Invariants.** A frame's [`hashed`](super::descriptor::Descriptor::hashed) counts the entries that point to it,
//! because it is changed under the latch (test: `a_tree_larger_than_the_pool_matches_the_model`). It is zero when the
//! frame is freed (checked by `pool/lists.rs::push`). The keys of an evicted page are read when no other thread can
//! reach it (checked by `pool/replace.rs::remove_hash_entries`), and those of another page under its latch (checked by
//! `sync/latch.rs::release_unchanged`). The page latch is taken before the index's latch (checked by
//! `watch/mod.rs::assert_not_held`).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustc_hash::FxHashMap;
use windfall::ids::{PageNo, SpaceId};
use windfall_btree::{
    page::{Node, Page},
    tree::hash::hash_of,
};

use super::descriptor::Descriptor;
use crate::watch::{Purpose, Report, RwLock};

/// A page is hashed when the index could have answered one look-up per this many records:
/// `BTR_SEARCH_PAGE_BUILD_LIMIT`.
const BUILD_PART: u32 = 16;
/// The minimum number of such look-ups.
const BUILD_LEAST: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct Entry {
    frame: u32,
    /// The page's number in its tree.
    page: PageNo,
    tree: SpaceId,
}

/// The data that the latch guards.
#[derive(Debug, Default)]
struct Table {
    entries: FxHashMap<u64, Entry>,
    /// The number of entries per tree: `ref_count` of an index in `InnoDB`.
    of_tree: FxHashMap<SpaceId, u64>,
}

impl Table {
    fn enter(&mut self, frames: &[Descriptor], fold: u64, entry: Entry) {
        frames[entry.frame as usize].hashed.fetch_add(1, Relaxed);
        *self.of_tree.entry(entry.tree).or_default() += 1;
        if let Some(other) = self.entries.insert(fold, entry) {
            self.forget(frames, other);
        }
    }

    /// Removes an entry if it points to this frame. Returns whether it did.
    fn leave(&mut self, frames: &[Descriptor], fold: u64, frame: u32) -> bool {
        let Some(entry) = self.entries.get(&fold).copied().filter(|entry| entry.frame == frame) else {
            return false;
        };
        self.entries.remove(&fold);
        self.forget(frames, entry);
        true
    }

    fn forget(&mut self, frames: &[Descriptor], entry: Entry) {
        frames[entry.frame as usize].hashed.fetch_sub(1, Relaxed);
        if let Some(count) = self.of_tree.get_mut(&entry.tree) {
            *count -= 1;
            if *count == 0 {
                self.of_tree.remove(&entry.tree);
            }
        }
    }
}

/// The index.
#[derive(Debug)]
pub struct HashIndex {
    on: AtomicBool,
    latch: RwLock<Table>,
    built: AtomicU64,
}

/// Returns the key of an entry: keys with equal hashes in two trees get different values.
#[inline]
fn fold(tree: SpaceId, hash: u64) -> u64 {
    hash ^ tree.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the hashes of all keys of a leaf; none for other pages.
fn folds(page: Page<'_>) -> Vec<u64> {
    let node = Node::new(page);
    if !node.is_leaf() {
        return Vec::new();
    }
    let (tree, mut key) = (page.id().space, Vec::new());
    let fold_at = |slot| {
        key.clear();
        node.key_into(slot, &mut key);
        fold(tree, hash_of(&key))
    };
    (0..node.count()).map(fold_at).collect()
}

impl HashIndex {
    /// Creates an empty index.
    pub fn new(on: bool) -> Self {
        let latch = RwLock::new("hash index", Table::default());
        Self { on: AtomicBool::new(on), latch, built: AtomicU64::new(0) }
    }

    /// Returns whether the index is on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.latch.read(Purpose::Search).entries.len()
    }

    /// Returns whether the index has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the index has an entry of a tree.
    pub fn has_entries_of(&self, tree: SpaceId) -> bool {
        self.latch.read(Purpose::Search).of_tree.contains_key(&tree)
    }

    /// Returns the number of entries that point into a tree.
    pub fn entries_of(&self, tree: SpaceId) -> u64 {
        self.latch.read(Purpose::Search).of_tree.get(&tree).copied().unwrap_or(0)
    }

    /// Returns how often a page was hashed.
    pub fn built(&self) -> u64 {
        self.built.load(Relaxed)
    }

    /// Returns the leaf of a tree in which a key was last seen.
    #[inline]
    pub fn search(&self, tree: SpaceId, hash: u64) -> Option<PageNo> {
        self.latch.read(Purpose::Search).entries.get(&fold(tree, hash)).map(|entry| entry.page)
    }

    /// Counts a look-up that found its leaf by a descent. Returns whether the page is due to be hashed.
    pub fn count_missed_help(&self, descriptor: &Descriptor, records: usize) -> bool {
        if descriptor.hashed.load(Relaxed) > 0 {
            return false;
        }
        let helps = descriptor.helps.fetch_add(1, Relaxed) + 1;
        helps >= (records as u32 / BUILD_PART).max(BUILD_LEAST)
    }

    /// Adds all keys of a page, which the caller has latched.
    pub fn build(&self, frames: &[Descriptor], frame: u32, page: Page<'_>) {
        let folds = folds(page);
        let entry = Entry { frame, page: page.id().page, tree: page.id().space };
        let mut table = self.latch.write(Purpose::Hash);
        if !self.is_on() {
            return;
        }
        for fold in folds {
            table.enter(frames, fold, entry);
        }
        frames[frame as usize].helps.store(0, Relaxed);
        self.built.fetch_add(1, Relaxed);
    }

    /// Adds a key that was inserted into a hashed page.
    pub fn insert(&self, frames: &[Descriptor], frame: u32, page: Page<'_>, key: &[u8]) {
        let id = page.id();
        let mut table = self.latch.write(Purpose::Hash);
        if self.is_on() {
            let entry = Entry { frame, page: id.page, tree: id.space };
            table.enter(frames, fold(id.space, hash_of(key)), entry);
        }
    }

    /// Removes a key that is removed from a page.
    pub fn remove(&self, frames: &[Descriptor], frame: u32, page: Page<'_>, key: &[u8]) {
        let fold = fold(page.id().space, hash_of(key));
        self.latch.write(Purpose::Hash).leave(frames, fold, frame);
    }

    /// Removes all entries that point to a page. The caller has latched the page, or no other thread can reach it.
    /// Returns the number of removed entries.
    pub fn drop_page(&self, frames: &[Descriptor], frame: u32, page: Page<'_>, purpose: Purpose) -> u64 {
        if frames[frame as usize].hashed.load(Relaxed) == 0 {
            return 0;
        }
        let folds = folds(page);
        let mut table = self.latch.write(purpose);
        folds.into_iter().map(|fold| u64::from(table.leave(frames, fold, frame))).sum()
    }

    /// Shares the latch, as a scan of the pool does.
    pub fn share(&self, purpose: Purpose) -> impl Drop {
        self.latch.read(purpose)
    }

    /// Switches the index on or off. Switching it off removes all entries, by a scan of these descriptors.
    pub fn switch(&self, on: bool, frames: &[Descriptor]) {
        let mut table = self.latch.write(Purpose::Hash);
        self.on.store(on, Relaxed);
        if !on {
            table.entries = FxHashMap::default();
            table.of_tree = FxHashMap::default();
            for descriptor in frames {
                descriptor.hashed.store(0, Relaxed);
            }
        }
    }

    /// Returns the recorded holds and waits of the latch.
    pub fn report(&self) -> Report {
        self.latch.report()
    }

    /// Discards the recorded holds and waits.
    pub fn reset(&self) {
        self.latch.reset();
    }
}
