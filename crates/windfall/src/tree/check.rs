//! The exact check of a tree.
//!
//! **Purpose.** Walks every page that the tree reaches and confirms all that its nodes promise to each other.
//!
//! **Invariants.** Reads only. Damage is an error that names the page, never a panic, and never an endless walk: levels
//! fall from node to node, and no page is visited twice. The tree must not be changed meanwhile: pages are latched
//! one at a time, so a change would look like damage.
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

impl<S: PageStore> Tree<S> {
    /// Checks the whole tree.
    ///
    /// # Errors
    /// The first damage found; those of [`PageStore::share`].
    pub fn check(&self) -> Result<TreeReport> {
        let mut report = TreeReport::default();
        if !self.is_rooted()? {
            return Ok(report);
        }
        let words: Vec<AtomicU64> = (0..self.store.page_size() / 8).map(|_| AtomicU64::new(0)).collect();
        let copy = Page::new(&words);
        let mut seen = HashSet::new();
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
                self.check_entries(visit.page, node, &mut report, &mut seen)?;
            } else {
                report.inner += 1;
                let mut upper = upper;
                // Pushed from the last to the first, so that the walk goes in key order.
                for slot in (0..node.count()).rev() {
                    let mut lower = Vec::new();
                    node.key_into(slot, &mut lower);
                    let child = node.child(slot);
                    open.push(Visit {
                        page: child,
                        level: Some(node.level() - 1),
                        lower: lower.clone(),
                        upper: upper.replace(lower),
                    });
                }
            }
        }
        report.pages = seen.into_iter().collect();
        report.pages.sort_unstable();
        Ok(report)
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
