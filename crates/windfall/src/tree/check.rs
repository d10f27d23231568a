//! The exact check of a tree.
//!
//! **Purpose.** Walks every page that the tree reaches and confirms all that its nodes promise to each other.
//!
//! **Invariants.** Reads only. Damage is an error that names the page, never a panic, and never an endless walk: levels
//! fall from node to node, and no page is visited twice. The tree must not be changed meanwhile: pages are latched
//! one at a time, so a change would look like damage. Between two pieces of a [`Walk`] it may be: each begins at the
//! root, and goes on at the key at which the one before has ended.
//!
//! **May touch.** What `tree` may touch.

use std::collections::HashSet;

use super::{
    Tree,
    overflow::{Link, OverflowRef},
    store::{Access, PageStore, Shared},
};
use crate::{
    error::Result,
    ids::PageNo,
    page::{self, Node, Page},
    sync::atomic::AtomicU64,
};

/// What a check has found in a sound tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeReport {
    /// Entries, those marked as deleted included.
    pub entries: u64,
    /// Entries marked as deleted.
    pub deleted: u64,
    /// Levels; 0 for a tree without a page.
    pub height: u32,
    /// Leaves.
    pub leaves: u64,
    /// Inner nodes.
    pub inner: u64,
    /// Pages of overflow chains that entries refer to.
    pub overflow: u64,
    /// Bytes that slots, records and fences take in the leaves.
    pub leaf_bytes: u64,
    /// Every page that the tree uses, ascending, the allocation maps left out: to be compared with those.
    pub pages: Vec<PageNo>,
}

/// A node that is still to be visited, and what its parent says of it.
struct Visit {
    page: PageNo,
    level: Option<u8>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

/// A check under way: what has been found up to where.
#[derive(Debug, Default)]
pub struct Walk {
    report: TreeReport,
    /// Every page that was reached, over all pieces.
    reached: HashSet<PageNo>,
    /// The first key that was not looked at.
    next: Vec<u8>,
}

impl Walk {
    /// What has been found. Where the tree has changed between two pieces, the numbers are of different times.
    pub fn finish(mut self) -> TreeReport {
        self.report.pages = self.reached.into_iter().collect();
        self.report.pages.sort_unstable();
        self.report
    }
}

impl<S: PageStore> Tree<S> {
    /// Checks the whole tree.
    ///
    /// # Errors
    /// The first damage found; those of [`PageStore::share`].
    pub fn check(&self) -> Result<TreeReport> {
        let mut walk = Walk::default();
        self.check_piece(&mut walk, &mut { usize::MAX })?;
        Ok(walk.finish())
    }

    /// Checks some leaves more, with all that hangs from them and the way to them. Counts down the pages that are left to
    /// be looked at, and ends behind the leaf with which they are used up. Says whether it has come to the end of the
    /// tree.
    ///
    /// # Errors
    /// As [`Tree::check`].
    pub fn check_piece(&self, walk: &mut Walk, left: &mut usize) -> Result<bool> {
        let Walk { report, reached, next } = walk;
        if !self.is_rooted()? {
            return Ok(true);
        }
        let words: Vec<AtomicU64> = (0..self.store.page_size() / 8).map(|_| AtomicU64::new(0)).collect();
        let copy = Page::new(&words);
        let mut seen = HashSet::new();
        let from = core::mem::take(next);
        let mut open = vec![Visit { page: PageNo::ROOT, level: None, lower: Vec::new(), upper: None }];
        while let Some(visit) = open.pop() {
            self.claim(visit.page, &mut seen)?;
            copy.copy_from(self.store.share(&self.space, visit.page, Access::Scan)?.page());
            let node = page::validate(copy).map_err(|what| self.damaged(visit.page, what))?;
            let (mut lower, mut upper) = (Vec::new(), Vec::new());
            node.lower_into(&mut lower);
            let upper = node.upper_into(&mut upper).then_some(upper);
            if lower != visit.lower || upper != visit.upper {
                return Err(self.damaged(visit.page, "its fences are not the separators in its parent"));
            }
            if visit.level.is_some_and(|level| level != node.level()) {
                return Err(self.damaged(visit.page, "it is not on the level below its parent"));
            }
            if visit.level.is_none() {
                report.height = u32::from(node.level()) + 1;
            }
            if node.is_leaf() {
                report.leaves += 1;
                report.leaf_bytes += (node.capacity() - node.free_words()) as u64 * 8;
                self.check_entries(visit.page, node, report, &mut seen)?;
                if seen.len() >= *left
                    && let Some(upper) = upper
                {
                    *next = upper;
                    break;
                }
            } else {
                // An earlier piece has counted a node whose range it has begun.
                report.inner += u64::from(lower >= from);
                let mut upper = upper;
                // Pushed from the last to the first, so that the walk goes in key order.
                for slot in (0..node.count()).rev() {
                    let mut lower = Vec::new();
                    node.key_into(slot, &mut lower);
                    let upper = upper.replace(lower.clone());
                    if upper.as_ref().is_some_and(|upper| *upper <= from) {
                        break;
                    }
                    let (page, level) = (node.child(slot), Some(node.level() - 1));
                    open.push(Visit { page, level, lower, upper });
                }
            }
        }
        *left = left.saturating_sub(seen.len());
        reached.extend(seen);
        Ok(next.is_empty())
    }

    fn claim(&self, page: PageNo, seen: &mut HashSet<PageNo>) -> Result<()> {
        if seen.insert(page) { Ok(()) } else { Err(self.damaged(page, "it is reached twice")) }
    }

    fn check_entries(
        &self,
        leaf: PageNo,
        node: Node<'_>,
        report: &mut TreeReport,
        seen: &mut HashSet<PageNo>,
    ) -> Result<()> {
        let mut value = Vec::new();
        for slot in 0..node.count() {
            let header = node.header(slot);
            report.entries += 1;
            report.deleted += u64::from(header.is_deleted());
            if header.is_overflow() {
                value.clear();
                node.value_into(slot, &mut value);
                let chain = OverflowRef::from_bytes(&value).ok_or_else(|| {
                    self.damaged(leaf, "an entry has no overflow reference where it should")
                })?;
                report.overflow += self.check_chain(chain, header.is_deleted(), seen)?;
            }
        }
        Ok(())
    }

    /// Of an entry that is marked as deleted the chain may be on its way out: from its second page on, and its first
    /// page last.
    fn check_chain(&self, chain: OverflowRef, deleted: bool, seen: &mut HashSet<PageNo>) -> Result<u64> {
        let mut no = chain.first;
        let mut place = 0;
        let mut length = 0;
        let mut pages = 0;
        while no != PageNo::NONE {
            let page = self.store.share(&self.space, no, Access::Scan)?;
            if deleted && pages == 1 {
                place = Link::place_of(page.page());
            }
            let Some(link) = Link::of(page.page(), chain.stamp, place) else {
                if deleted && pages == 0 {
                    return Ok(0);
                }
                return Err(self.damaged(no, "it is not the page of the overflow chain that was expected"));
            };
            self.claim(no, seen)?;
            length += link.len as u64;
            place += 1;
            pages += 1;
            no = link.next;
        }
        if length > chain.length || length < chain.length && !deleted {
            return Err(self.damaged(chain.first, "its overflow chain is not as long as its value"));
        }
        Ok(pages)
    }
}
