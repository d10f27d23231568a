//! The exact check of a tree.
//!
//! **Purpose.** Walks every page that the tree reaches and verifies that its nodes are consistent with each other.
//!
//! **Invariants.** A check only reads (test: `check_finds_planted_damage_and_names_the_page`). Damage causes an error
//! that names the page, never a panic (test: `check_finds_planted_damage_and_names_the_page`), and never an endless
//! walk: levels fall from node to node, no page is visited twice (test: `check_finds_wrong_links`), and no piece goes
//! back behind the one before (checked by `tree/check.rs::check_piece`). The tree may be changed between two pieces of
//! a [`Walk`] (test: `changes_between_two_pieces_are_not_reported_as_damage`), but not during a piece, because pages
//! are latched one at a time and the change would look like damage: each piece begins at the root and continues at the
//! key where the previous one ended, which may be in the middle of a long value. If that value has been replaced, the
//! new one is checked from its beginning (test: `a_long_value_may_go_while_it_is_looked_at`), except for the fields
//! that it still has (test: `a_field_may_go_while_its_row_is_looked_at`).

use super::{
    PageSet, Tree,
    descent::Bounds,
    fields::Chains,
    overflow::{Link, OverflowRef},
    store::{Access, PageStore, Shared},
};
use crate::{
    error::Result,
    ids::{PageNo, TrxId},
    page::{self, Node, Page},
    sync::LongWork,
};

/// The result of a check of an undamaged tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeReport {
    /// Entries, including delete-marked ones.
    pub entries: u64,
    /// Delete-marked entries.
    pub deleted: u64,
    /// The newest transaction in an entry's header, and a leaf with such an entry.
    pub newest: (TrxId, PageNo),
    /// Levels; 0 for a tree without a page.
    pub height: u32,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of inner nodes.
    pub inner: u64,
    /// Pages of overflow chains to which entries refer.
    pub overflow: u64,
    /// Bytes that slots, records and fences take in the leaves.
    pub leaf_bytes: u64,
    /// Bytes that they could take there.
    pub leaf_capacity: u64,
    /// Every page that the tree uses, except the allocation maps, with which the set is compared.
    pub pages: PageSet,
}

/// A node still to be visited, and its level and fences according to its parent.
struct Visit {
    page: PageNo,
    level: Option<u8>,
    bounds: Bounds,
}

/// The rest of an overflow chain that is being checked.
#[derive(Debug)]
struct Rest {
    chain: OverflowRef,
    next: PageNo,
    place: u32,
    /// Bytes of the value in the pages before.
    length: u64,
}

impl Rest {
    fn whole(chain: OverflowRef) -> Self {
        Self { chain, next: chain.first, place: 0, length: 0 }
    }
}

/// The chains of an entry that are being checked.
#[derive(Debug)]
struct Begun {
    rest: Rest,
    /// Those before, which were checked.
    done: Vec<OverflowRef>,
}

/// One piece of a walk: the pages that it has visited, and their maximum number.
struct Piece {
    seen: PageSet,
    most: usize,
    work: LongWork,
}

impl Piece {
    fn is_over(&self) -> bool {
        self.seen.len() >= self.most
    }
}

/// A check in progress: what it has found, and the position that it has reached.
#[derive(Debug, Default)]
pub struct Walk {
    /// The result so far, with every page that was reached, over all pieces.
    report: TreeReport,
    /// The first key that was not checked, or not completely.
    next: Vec<u8>,
    /// The rest of its chains.
    begun: Option<Begun>,
}

impl Walk {
    /// Returns whether a page was reached.
    pub fn has_begun(&self) -> bool {
        !self.report.pages.is_empty()
    }

    /// Returns the result. If the tree has changed between two pieces, the counts are of different times.
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

    /// Checks further leaves, with the path to them and their overflow chains. Subtracts the visited pages from `left`,
    /// and ends after the leaf, or the page of a long value, that exhausts it. A piece thus exceeds `left` at most by
    /// the path to one leaf. Returns whether the walk has reached the end of the tree.
    ///
    /// # Errors
    /// As [`Tree::check`]; [`LockError::Interrupted`](crate::error::LockError::Interrupted). The walk cannot continue
    /// then.
    pub fn check_piece(&self, walk: &mut Walk, left: &mut usize) -> Result<bool> {
        if !self.is_rooted()? {
            return Ok(true);
        }
        let words = page::blank(self.store.page_size());
        let copy = Page::new(&words);
        let mut piece = Piece { seen: PageSet::default(), most: *left, work: LongWork::default() };
        let from = core::mem::take(&mut walk.next);
        let mut begun = walk.begun.take();
        let mut has_ended = true;
        let mut open = vec![Visit { page: PageNo::ROOT, level: None, bounds: Bounds::default() }];
        while let Some(visit) = open.pop() {
            self.claim(visit.page, &mut piece)?;
            copy.copy_from(self.store.share(&self.space, visit.page, Access::Scan)?.page());
            let node = page::validate(copy).map_err(|what| self.damaged(visit.page, what))?;
            if !visit.bounds.are_of(node) {
                return Err(
                    self.damaged(visit.page, "its fence keys do not match the separators in its parent")
                );
            }
            self.check_ends(node, &visit.bounds)?;
            let Bounds { lower, upper } = visit.bounds;
            if visit.level.is_some_and(|level| level != node.level()) {
                return Err(self.damaged(visit.page, "it is not on the level below its parent"));
            }
            if visit.level.is_none() {
                walk.report.height = u32::from(node.level()) + 1;
            }
            // If its range has begun in an earlier piece, the node is already counted.
            let is_new = lower > from || lower == from && begun.is_none();
            if node.is_leaf() {
                if is_new {
                    walk.report.leaves += 1;
                    walk.report.leaf_bytes += (node.capacity() - node.free_bytes()) as u64;
                    walk.report.leaf_capacity += node.capacity() as u64;
                }
                let first = if lower < from { node.find(&from).0 } else { 0 };
                let begun = begun.take().map(|begun| (&from[..], begun));
                let next = self.check_entries(node, first, begun, walk, &mut piece)?;
                if let Some(next) = next.or_else(|| upper.filter(|_| piece.is_over())) {
                    (walk.next, has_ended) = (next, false);
                    break;
                }
            } else {
                walk.report.inner += u64::from(is_new);
                let mut upper = upper;
                // Pushed from last to first, so that the walk proceeds in key order.
                for slot in (0..node.count()).rev() {
                    let mut begin = Vec::new();
                    if slot > 0 {
                        node.key_into(slot, &mut begin);
                    } else {
                        begin.clone_from(&lower);
                    }
                    let upper = upper.replace(begin.clone());
                    if upper.as_ref().is_some_and(|upper| *upper <= from) {
                        break;
                    }
                    let (page, level) = (node.child(slot), Some(node.level() - 1));
                    open.push(Visit { page, level, bounds: Bounds { lower: begin, upper } });
                }
            }
        }
        debug_assert!(has_ended || walk.next >= from, "a piece of a walk ends before it has begun");
        debug_assert!(
            has_ended || piece.is_over(),
            "a piece ends before the tree and has pages left to examine"
        );
        *left = left.saturating_sub(piece.seen.len());
        walk.report.pages.append(piece.seen);
        Ok(has_ended)
    }

    fn claim(&self, page: PageNo, piece: &mut Piece) -> Result<()> {
        piece.work.step()?;
        if piece.seen.insert(page) { Ok(()) } else { Err(self.damaged(page, "it is reached twice")) }
    }

    /// Checks that the first and the last key of a node lie within its bounds: its own fences may leave that open.
    fn check_ends(&self, node: Node<'_>, bounds: &Bounds) -> Result<()> {
        let first = usize::from(node.is_inner());
        let key = |slot| {
            let mut key = Vec::new();
            node.key_into(slot, &mut key);
            key
        };
        let is_inside = |slot| bounds.contains(&key(slot));
        if first < node.count() && !(is_inside(first) && is_inside(node.count() - 1)) {
            return Err(self.damaged(node.page().id().page, "a key lies outside the fences"));
        }
        Ok(())
    }

    /// Checks the entries of a leaf from a slot on; of the entry with the key of `begun` only the rest of its value.
    /// Returns the key at which to continue, if the piece is over before the last entry.
    fn check_entries(
        &self,
        node: Node<'_>,
        first: usize,
        mut begun: Option<(&[u8], Begun)>,
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
            let begun = begun.take().filter(|(from, _)| key(slot) == *from).map(|(_, begun)| begun);
            let header = node.header(slot);
            let is_new = begun.is_none();
            walk.report.entries += u64::from(is_new);
            walk.report.deleted += u64::from(is_new && header.is_deleted());
            walk.report.newest = walk.report.newest.max((header.trx, leaf));
            if header.is_plain() {
                continue;
            }
            value.clear();
            node.value_into(slot, &mut value);
            let chains = Chains::of(header, &value)
                .ok_or_else(|| self.damaged(leaf, "an entry has no overflow reference where it should"))?;
            walk.begun = self.check_chains(chains, begun, header.is_deleted(), &mut walk.report, piece)?;
            if walk.begun.is_some() {
                return Ok(Some(key(slot)));
            }
            if piece.is_over() && slot + 1 < node.count() {
                return Ok(Some(key(slot + 1)));
            }
        }
        Ok(None)
    }

    /// Checks the chains of an entry, at least one page of them, except those that were checked before. Returns what is
    /// still left if the piece is over. A chain that was begun may have been replaced.
    fn check_chains(
        &self,
        chains: Chains<'_>,
        begun: Option<Begun>,
        deleted: bool,
        report: &mut TreeReport,
        piece: &mut Piece,
    ) -> Result<Option<Begun>> {
        let (mut rest, mut done) = begun.map_or((None, Vec::new()), |begun| (Some(begun.rest), begun.done));
        let mut has_checked = false;
        for chain in chains {
            if done.contains(&chain) {
                continue;
            }
            let whole = || Rest::whole(chain);
            let here = rest.take_if(|rest| rest.chain == chain).unwrap_or_else(whole);
            if has_checked && piece.is_over() {
                return Ok(Some(Begun { rest: here, done }));
            }
            if let Some(rest) = self.check_chain(here, deleted, report, piece)? {
                return Ok(Some(Begun { rest, done }));
            }
            has_checked = true;
            done.push(chain);
        }
        Ok(None)
    }

    /// Checks the rest of a chain, at least one page of it. Returns what is still left if the piece is over. The chain
    /// of a delete-marked entry may be partly freed: chains are freed from their second page on, and their first page
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
            self.claim(rest.next, piece)?;
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
