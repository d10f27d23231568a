//! The exact check of a tree.
//!
//! **Purpose.** Walks every page that the tree reaches and confirms all that its nodes promise to each other.
//!
//! **Invariants.** Reads only. Damage is an error that names the page, never a panic, and never an endless walk: levels
//! fall from node to node, and no page is visited twice. The tree must not be changed meanwhile: pages are latched
//! one at a time, so a change would look like damage. Between two pieces of a [`Walk`] it may be: each begins at the
//! root, and goes on at the key at which the one before has ended, be it amid a long value; if that is another value by
//! now, it goes on behind it.
//!
//! **May touch.** What `tree` may touch.

use super::{
    PageSet, Tree,
    overflow::{Link, OverflowRef},
    store::{Access, PageStore, Shared},
};
use crate::{
    error::Result,
    ids::{PageNo, TrxId},
    page::{self, Node, Page},
};

/// What a check has found in a sound tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeReport {
    /// Entries, those marked as deleted included.
    pub entries: u64,
    /// Entries marked as deleted.
    pub deleted: u64,
    /// The latest transaction of which there is an entry, and the leaf of one.
    pub newest: (TrxId, PageNo),
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
    /// Every page that the tree uses, the allocation maps left out: to be compared with those.
    pub pages: PageSet,
}

/// A node that is still to be visited, and what its parent says of it.
struct Visit {
    page: PageNo,
    level: Option<u8>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

/// An overflow chain that is looked at: what is left of it.
#[derive(Debug)]
struct Rest {
    chain: OverflowRef,
    next: PageNo,
    place: u32,
    /// Bytes in the pages before.
    length: u64,
}

/// A piece of it: the pages that it has looked at, and how many it may.
struct Piece {
    seen: PageSet,
    most: usize,
}

impl Piece {
    fn is_over(&self) -> bool {
        self.seen.len() >= self.most
    }
}

/// A check under way: what has been found up to where.
#[derive(Debug, Default)]
pub struct Walk {
    /// What has been found, with every page that was reached, over all pieces.
    report: TreeReport,
    /// The first key that was not looked at, or not to its end.
    next: Vec<u8>,
    /// What is left of its value.
    rest: Option<Rest>,
}

impl Walk {
    /// What has been found. Where the tree has changed between two pieces, the numbers are of different times.
    pub fn finish(self) -> TreeReport {
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

    /// Checks some leaves more, with all that hangs from them and the way to them. Counts down the pages that are left
    /// to be looked at, and ends behind the leaf, or the page of a long value, with which they are used up: so it looks
    /// at no more than the way to one leaf beyond that. Says whether it has come to the end of the tree.
    ///
    /// # Errors
    /// As [`Tree::check`].
    pub fn check_piece(&self, walk: &mut Walk, left: &mut usize) -> Result<bool> {
        if !self.is_rooted()? {
            return Ok(true);
        }
        let words = page::blank(self.store.page_size());
        let copy = Page::new(&words);
        let mut piece = Piece { seen: PageSet::default(), most: *left };
        let from = core::mem::take(&mut walk.next);
        let mut rest = walk.rest.take();
        let mut has_ended = true;
        let mut open = vec![Visit { page: PageNo::ROOT, level: None, lower: Vec::new(), upper: None }];
        while let Some(visit) = open.pop() {
            self.claim(visit.page, &mut piece.seen)?;
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
                walk.report.height = u32::from(node.level()) + 1;
            }
            // An earlier piece has counted a node whose range it has begun.
            let is_new = lower > from || lower == from && rest.is_none();
            if node.is_leaf() {
                if is_new {
                    walk.report.leaves += 1;
                    walk.report.leaf_bytes += (node.capacity() - node.free_words()) as u64 * 8;
                }
                let first = if lower < from { node.find(&from).0 } else { 0 };
                let begun = rest.take().map(|rest| (&from[..], rest));
                let next = self.check_entries(node, first, begun, walk, &mut piece)?;
                if let Some(next) = next.or_else(|| upper.filter(|_| piece.is_over())) {
                    (walk.next, has_ended) = (next, false);
                    break;
                }
            } else {
                walk.report.inner += u64::from(is_new);
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
        *left = left.saturating_sub(piece.seen.len());
        walk.report.pages.append(piece.seen);
        Ok(has_ended)
    }

    fn claim(&self, page: PageNo, seen: &mut PageSet) -> Result<()> {
        if seen.insert(page) { Ok(()) } else { Err(self.damaged(page, "it is reached twice")) }
    }

    /// Checks the entries of a leaf from a slot on, that with the key of `begun` from amid its value. Gives the key at
    /// which to go on, if the piece is over before the last one is.
    fn check_entries(
        &self,
        node: Node<'_>,
        first: usize,
        mut begun: Option<(&[u8], Rest)>,
        walk: &mut Walk,
        piece: &mut Piece,
    ) -> Result<Option<Vec<u8>>> {
        let leaf = node.page().id().page;
        let key = |slot| {
            let mut key = Vec::new();
            node.key_into(slot, &mut key);
            key
        };
        let mut value = Vec::new();
        for slot in first..node.count() {
            let begun = begun.take().filter(|(from, _)| key(slot) == *from).map(|(_, rest)| rest);
            let header = node.header(slot);
            let is_new = begun.is_none();
            walk.report.entries += u64::from(is_new);
            walk.report.deleted += u64::from(is_new && header.is_deleted());
            walk.report.newest = walk.report.newest.max((header.trx, leaf));
            if !header.is_overflow() {
                continue;
            }
            value.clear();
            node.value_into(slot, &mut value);
            let chain = OverflowRef::from_bytes(&value)
                .ok_or_else(|| self.damaged(leaf, "an entry has no overflow reference where it should"))?;
            let rest = begun.unwrap_or(Rest { chain, next: chain.first, place: 0, length: 0 });
            // What was begun may have been replaced.
            if rest.chain == chain {
                walk.rest = self.check_chain(rest, header.is_deleted(), &mut walk.report, piece)?;
            }
            if walk.rest.is_some() {
                return Ok(Some(key(slot)));
            }
            if piece.is_over() && slot + 1 < node.count() {
                return Ok(Some(key(slot + 1)));
            }
        }
        Ok(None)
    }

    /// Checks what is left of a chain, a page of it at the least. Gives what is left then, if the piece is over. Of an
    /// entry that is marked as deleted the chain may be on its way out: from its second page on, and its first page
    /// last.
    fn check_chain(
        &self,
        mut rest: Rest,
        deleted: bool,
        report: &mut TreeReport,
        piece: &mut Piece,
    ) -> Result<Option<Rest>> {
        let OverflowRef { first, stamp, length } = rest.chain;
        let mut pages = 0;
        while rest.next != PageNo::NONE {
            let page = self.store.share(&self.space, rest.next, Access::Scan)?;
            if deleted && rest.place == 1 {
                rest.place = Link::place_of(page.page());
            }
            let Some(link) = Link::of(page.page(), stamp, rest.place) else {
                if deleted && pages == 0 {
                    return Ok(None);
                }
                return Err(
                    self.damaged(rest.next, "it is not the page of the overflow chain that was expected")
                );
            };
            self.claim(rest.next, &mut piece.seen)?;
            pages += 1;
            report.overflow += 1;
            rest.length += link.len as u64;
            rest.place += 1;
            rest.next = link.next;
            if piece.is_over() && rest.next != PageNo::NONE {
                return Ok(Some(rest));
            }
        }
        if rest.length > length || rest.length < length && !deleted {
            return Err(self.damaged(first, "its overflow chain is not as long as its value"));
        }
        Ok(None)
    }
}
