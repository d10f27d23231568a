//! The global adaptive hash index: one table over all trees, under one latch.
//!
//! **Purpose.** `InnoDB`'s: a page whose look-ups it could have spared often enough is hashed, all its keys at a time.
//! Searches share the latch, changes take it alone. An entry names a frame, and so has to go before the frame holds
//! another page: that is what a drop with the hash index pays for.
//!
//! **Invariants.** A frame's [`hashed`](super::descriptor::Descriptor::hashed) counts the entries that lead to it; it
//! is changed under the latch, and zero when the frame is given away. A page's keys are read under a latch on the page,
//! or when nobody else can reach it, and that comes before the index's latch.
//!
//! **May touch.** `descriptor`, `watch`, and of `windfall` the ids, the pages and the hash of a key.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustc_hash::FxHashMap;
use windfall::{
    ids::{PageNo, SpaceId},
    page::{Node, Page},
    tree::hash::hash_of,
};

use super::descriptor::Descriptor;
use crate::watch::{Purpose, Report, RwLock};

/// A page is hashed when it could have helped for this part of its records, as `BTR_SEARCH_PAGE_BUILD_LIMIT` says.
const BUILD_PART: u32 = 16;
/// And at least so often.
const BUILD_LEAST: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct Entry {
    frame: u32,
    /// The page's number in its tree.
    page: PageNo,
    tree: SpaceId,
}

/// What the latch guards.
#[derive(Debug, Default)]
struct Table {
    entries: FxHashMap<u64, Entry>,
    /// How many entries each tree has: `ref_count` of an index in `InnoDB`.
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

    /// Removes an entry if it leads to this frame. Says whether it did.
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

/// The key of an entry: whatever hashes alike in two trees is told apart.
#[inline]
fn fold(tree: SpaceId, hash: u64) -> u64 {
    hash ^ tree.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The hashes of all keys of a leaf; of other pages there are none.
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
    /// An empty one.
    pub fn new(on: bool) -> Self {
        let latch = RwLock::new("hash index", Table::default());
        Self { on: AtomicBool::new(on), latch, built: AtomicU64::new(0) }
    }

    /// Whether it is on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Its entries.
    pub fn len(&self) -> usize {
        self.latch.read(Purpose::Search).entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether any key of a tree is in it.
    pub fn knows(&self, tree: SpaceId) -> bool {
        self.latch.read(Purpose::Search).of_tree.contains_key(&tree)
    }

    /// Entries that lead into a tree.
    pub fn entries_of(&self, tree: SpaceId) -> u64 {
        self.latch.read(Purpose::Search).of_tree.get(&tree).copied().unwrap_or(0)
    }

    /// How often a page was hashed.
    pub fn built(&self) -> u64 {
        self.built.load(Relaxed)
    }

    /// The leaf of a tree that a key was last seen in.
    #[inline]
    pub fn search(&self, tree: SpaceId, hash: u64) -> Option<PageNo> {
        self.latch.read(Purpose::Search).entries.get(&fold(tree, hash)).map(|entry| entry.page)
    }

    /// A look-up has found its leaf by a descent. Says whether it is time to hash the page.
    pub fn could_have_helped(&self, descriptor: &Descriptor, records: usize) -> bool {
        if descriptor.hashed.load(Relaxed) > 0 {
            return false;
        }
        let helps = descriptor.helps.fetch_add(1, Relaxed) + 1;
        helps >= (records as u32 / BUILD_PART).max(BUILD_LEAST)
    }

    /// Enters all keys of a page, which the caller has latched.
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

    /// Enters a key that is new in a page that is hashed.
    pub fn insert(&self, frames: &[Descriptor], frame: u32, page: Page<'_>, key: &[u8]) {
        let id = page.id();
        let mut table = self.latch.write(Purpose::Hash);
        if self.is_on() {
            let entry = Entry { frame, page: id.page, tree: id.space };
            table.enter(frames, fold(id.space, hash_of(key)), entry);
        }
    }

    /// Removes a key that leaves a page.
    pub fn remove(&self, frames: &[Descriptor], frame: u32, page: Page<'_>, key: &[u8]) {
        let fold = fold(page.id().space, hash_of(key));
        self.latch.write(Purpose::Hash).leave(frames, fold, frame);
    }

    /// Removes all entries that lead to a page. The caller has latched it, or nobody else can reach it. Gives how many
    /// there were.
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

    /// Switches it. Off removes all entries, by a scan of these descriptors.
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

    /// What its latch has seen.
    pub fn report(&self) -> Report {
        self.latch.report()
    }

    /// Forgets what it has seen.
    pub fn reset(&self) {
        self.latch.reset();
    }
}
