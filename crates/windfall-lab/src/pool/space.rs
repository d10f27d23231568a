//! Tablespaces of the classic pool, and the map of their pages in use.
//!
//! **Purpose.** One tablespace is one file, and holds one tree or several: a tablespace of several tables assigns each
//! of its trees a range of page numbers.
//!
//! **Invariants.** A [`Tree`](windfall_btree::tree::Tree) uses its own page numbers and its own id; the pool uses the
//! page numbers in the file (test: `trees_of_a_tablespace_share_no_page`). A handle belongs to a *version* of its
//! tablespace: a truncation that keeps the tablespace creates a new one, and handles of the old one are refused (test:
//! `a_handle_belongs_to_a_version`). Pages that were freed become reusable when their mini-transaction has released its
//! latches (test: `a_freed_page_is_in_use_until_the_commit`). A thread that reads or writes a page announces the I/O
//! first and then checks whether the tablespace still exists; a drop marks the tablespace first and then waits for the
//! announced I/O: so a deleted file is not used any more (test: `tables_are_dropped_during_reads_writes_and_cleaning`).
//!
//! **Layout.** The map of pages in use is only in memory: the lab never opens its files again. 64 pages, one word of
//! the map, are an extent.

use core::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
};
use std::sync::Arc;

use parking_lot::Mutex;
use windfall::{
    error::{Error, Owner, Result, UsageError},
    ids::{PageId, PageNo, SpaceId},
};

/// Pages per extent.
pub const EXTENT: u32 = 64;
/// Page numbers per tree: 32-bit numbers are divided among [`TREES`] trees.
const TREE_PAGES: u32 = 1 << 26;
/// The maximum number of trees of a tablespace.
pub const TREES: u32 = u32::MAX / TREE_PAGES + 1;

/// Pages in use, one bit per page and one word per extent.
#[derive(Debug, Default)]
struct Pages {
    extents: Vec<u64>,
    /// Below this page number there is no free page.
    full_below: u32,
    /// Whether a page of the tree is, or was, in the pool.
    was_used: bool,
}

impl Pages {
    fn is_used(&self, page: u32) -> bool {
        self.extents.get((page / 64) as usize).is_some_and(|bits| bits & 1 << (page % 64) != 0)
    }

    fn first_free(&self, from: u32) -> u32 {
        let mut at = from;
        while let Some(bits) = self.extents.get((at / 64) as usize) {
            let free = !bits & (u64::MAX << (at % 64));
            if free != 0 {
                return at / 64 * 64 + free.trailing_zeros();
            }
            at = (at / 64 + 1) * 64;
        }
        at
    }

    /// Takes the lowest free page at or after `near`, else the lowest one.
    fn take(&mut self, near: u32) -> Option<u32> {
        let mut page = self.first_free(near.max(self.full_below));
        if page >= TREE_PAGES {
            page = self.first_free(self.full_below);
        }
        if page >= TREE_PAGES {
            return None;
        }
        let extent = (page / 64) as usize;
        self.extents.resize(self.extents.len().max(extent + 1), 0);
        self.extents[extent] |= 1 << (page % 64);
        if page == self.full_below {
            self.full_below = page + 1;
        }
        Some(page)
    }
}

/// A tablespace.
pub struct Space {
    /// The number, which also names the file.
    pub id: SpaceId,
    /// Whether the tablespace is temporary: its changes are not logged.
    pub temporary: bool,
    version: AtomicU32,
    dropped: AtomicBool,
    trees: Mutex<Vec<(SpaceId, Pages)>>,
    /// Pages of the tablespace with pending I/O.
    io: AtomicU32,
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tablespace {} version {}", self.id, self.version())
    }
}

impl Space {
    /// Creates an empty tablespace.
    pub fn new(id: SpaceId, temporary: bool) -> Arc<Self> {
        let (version, dropped, io) = (AtomicU32::new(0), AtomicBool::new(false), AtomicU32::new(0));
        Arc::new(Self { id, temporary, version, dropped, trees: Mutex::new(Vec::new()), io })
    }

    /// Returns the version.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(SeqCst)
    }

    /// Returns whether the tablespace was dropped.
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(SeqCst)
    }

    /// Marks the tablespace as dropped: every handle is refused from now on.
    pub fn mark_dropped(&self) {
        self.dropped.store(true, SeqCst);
    }

    /// Creates a new, empty version: the handles of the old one are refused. Returns the ids of the old version's
    /// trees.
    pub fn renew(&self) -> Vec<SpaceId> {
        let mut trees = self.trees.lock();
        self.version.fetch_add(1, SeqCst);
        core::mem::take(&mut *trees).into_iter().map(|(id, _)| id).collect()
    }

    /// Creates a tree; its pages carry this id.
    ///
    /// # Errors
    /// The tablespace has [`TREES`] trees already.
    pub fn tree(self: &Arc<Self>, id: SpaceId) -> Result<Handle> {
        let mut trees = self.trees.lock();
        let number = trees.len() as u32;
        if number == TREES {
            let what = format!("a tablespace of the lab has at most {TREES} trees: make another one");
            return Err(UsageError::Other(what.into()).into());
        }
        trees.push((id, Pages::default()));
        let allocation = Arc::new(Mutex::new(()));
        Ok(Handle { space: self.clone(), tree: id, number, version: self.version(), allocation })
    }

    /// Returns the ids of the trees.
    pub fn trees(&self) -> Vec<SpaceId> {
        self.trees.lock().iter().map(|(id, _)| *id).collect()
    }

    /// Returns the pages in use, grouped by extent: their numbers in the file.
    pub fn extents(&self) -> Vec<Vec<PageNo>> {
        let trees = self.trees.lock();
        let of = |number: u32, pages: &Pages| {
            let extents: Vec<_> = (0..).zip(pages.extents.clone()).filter(|(_, bits)| *bits != 0).collect();
            let page = move |page: PageNo| PageNo(number * TREE_PAGES + page.0);
            extents
                .into_iter()
                .map(move |(at, bits)| windfall_engine::lab::pages_of(at, bits).map(page).collect())
        };
        (0..).zip(trees.iter()).flat_map(|(number, (_, pages))| of(number, pages)).collect()
    }

    /// Returns whether no I/O is pending.
    pub fn is_quiet(&self) -> bool {
        self.io.load(SeqCst) == 0
    }
}

/// An announced read or write of a page of a tablespace. After the announcement the thread checks whether the
/// tablespace still exists.
#[derive(Debug)]
pub struct PendingIo(Arc<Space>);

impl PendingIo {
    /// Announces the I/O.
    pub fn new(space: Arc<Space>) -> Self {
        space.io.fetch_add(1, SeqCst);
        Self(space)
    }

    /// Returns the tablespace.
    pub fn space(&self) -> &Space {
        &self.0
    }
}

impl Drop for PendingIo {
    fn drop(&mut self) {
        self.0.io.fetch_sub(1, SeqCst);
    }
}

/// A tree's reference to its tablespace.
#[derive(Clone)]
pub struct Handle {
    /// The tablespace.
    pub space: Arc<Space>,
    /// The id that the tree's pages carry.
    pub tree: SpaceId,
    number: u32,
    version: u32,
    /// Held while a page is allocated and entered into the pool. It is the tree's and not the tablespace's: a thread
    /// that creates the root of a new version waits here for the users of the dead page that is in its place, and they
    /// may be about to allocate in the old version.
    allocation: Arc<Mutex<()>>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tree {} of {:?}", self.tree, self.space)
    }
}

impl Handle {
    /// Returns the version of the tablespace that the tree belongs to.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns whether the tree still exists.
    pub fn is_live(&self) -> bool {
        !self.space.is_dropped() && self.space.version() == self.version
    }

    /// Refuses a tree that no longer exists.
    ///
    /// # Errors
    /// [`Error::TableDropped`].
    #[inline]
    pub fn check_live(&self) -> Result<()> {
        if self.is_live() { Ok(()) } else { Err(Error::TableDropped(Owner::Unknown)) }
    }

    /// Returns the id of a page of the tree as the pool uses it: with its number in the file.
    #[inline]
    pub fn in_file(&self, page: PageNo) -> PageId {
        PageId { space: self.space.id, page: PageNo(self.number * TREE_PAGES + page.0) }
    }

    /// Returns the id of a page of the tree as its header has it.
    pub fn in_tree(&self, page: PageNo) -> PageId {
        PageId { space: self.tree, page }
    }

    /// Returns whether the tree has no page.
    pub fn is_empty(&self) -> bool {
        let trees = self.space.trees.lock();
        trees.get(self.number as usize).is_none_or(|(_, pages)| !pages.was_used)
    }

    /// Allocates the lowest free page at or after `near`, else the lowest one, and has it entered into the pool,
    /// latched. Allocations of a tree are serialised: a thread that gets a page other than the first one finds the
    /// first one in the pool.
    ///
    /// # Errors
    /// The tree is dropped or full, or `enter` fails.
    pub fn allocate<T>(&self, near: PageNo, enter: impl FnOnce(PageNo) -> Result<T>) -> Result<(PageNo, T)> {
        let _allocating = self.allocation.lock();
        let page = self.take_page(near)?;
        let entered = enter(page).inspect_err(|_| self.free_page(page))?;
        let mut trees = self.space.trees.lock();
        if let Some((_, pages)) = trees.get_mut(self.number as usize).filter(|_| self.is_live()) {
            pages.was_used = true;
        }
        drop(trees);
        Ok((page, entered))
    }

    /// Takes a free page. Page 0 is reserved.
    fn take_page(&self, near: PageNo) -> Result<PageNo> {
        let mut trees = self.space.trees.lock();
        self.check_live()?;
        let (_, pages) = &mut trees[self.number as usize];
        if !pages.is_used(0) {
            pages.take(0);
        }
        let full = || UsageError::Other(format!("tree {} is full", self.tree).into());
        Ok(PageNo(pages.take(near.0).ok_or_else(full)?))
    }

    /// Frees a page.
    pub fn free_page(&self, page: PageNo) {
        let mut trees = self.space.trees.lock();
        if self.is_live() {
            let (_, pages) = &mut trees[self.number as usize];
            debug_assert!(pages.is_used(page.0), "{page} was freed twice");
            pages.extents[(page.0 / 64) as usize] &= !(1 << (page.0 % 64));
            pages.full_below = pages.full_below.min(page.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_of_a_tablespace_share_no_page() {
        let space = Space::new(SpaceId(20), false);
        let (one, two) = (space.tree(SpaceId(100)).unwrap(), space.tree(SpaceId(101)).unwrap());
        assert!(one.is_empty());
        let pages: Vec<PageNo> = (0..100).map(|_| one.take_page(PageNo(0)).unwrap()).collect();
        assert_eq!((pages[0], pages[99]), (PageNo(1), PageNo(100)));
        assert_eq!(two.take_page(PageNo(7)).unwrap(), PageNo(7));
        assert_ne!(one.in_file(PageNo(7)), two.in_file(PageNo(7)));
        let extents = space.extents();
        assert_eq!(extents.iter().map(Vec::len).collect::<Vec<_>>(), [64, 37, 2]);
        one.free_page(PageNo(50));
        assert_eq!(one.take_page(PageNo(80)).unwrap(), PageNo(101));
        assert_eq!(one.take_page(PageNo(0)).unwrap(), PageNo(50));
    }

    #[test]
    fn a_handle_belongs_to_a_version() {
        let space = Space::new(SpaceId(20), false);
        let old = space.tree(SpaceId(100)).unwrap();
        old.take_page(PageNo(1)).unwrap();
        space.renew();
        assert!(matches!(old.check_live(), Err(Error::TableDropped(_))));
        assert!(old.take_page(PageNo(1)).is_err());
        let new = space.tree(SpaceId(101)).unwrap();
        assert!(new.is_empty() && new.check_live().is_ok());
        space.mark_dropped();
        assert!(new.check_live().is_err());
    }

    #[test]
    fn an_allocation_does_not_wait_for_one_in_a_new_version() {
        let space = Space::new(SpaceId(20), false);
        let old = space.tree(SpaceId(100)).unwrap();
        space.renew();
        let new = space.tree(SpaceId(101)).unwrap();
        let entered = new.allocate(PageNo(0), |_| {
            assert!(old.allocation.try_lock().is_some());
            Ok(old.allocate(PageNo(0), |_| Ok(())))
        });
        assert!(matches!(entered, Ok((PageNo(1), Err(Error::TableDropped(_))))));
    }

    #[test]
    fn a_tablespace_has_a_last_tree() {
        let space = Space::new(SpaceId(20), false);
        (0..TREES).for_each(|n| drop(space.tree(SpaceId(u64::from(n) + 100)).unwrap()));
        assert!(space.tree(SpaceId(999)).is_err());
    }
}
