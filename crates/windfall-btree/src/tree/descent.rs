//! The descent from the root to a node, without latches.
//!
//! **Purpose.** One descent for all users: readers, writers, cursors and changes of structure.
//!
//! **Invariants.** A child's version is taken before its parent is validated for the last time: at that moment the page
//! was the parent's child, and reading on from that version is safe (test:
//! `readers_and_cursors_during_splits_and_merges`). Levels fall by one at each step, so a descent ends, whatever the
//! pages hold (checked by `tree/descent.rs::try_descend_by`).
//!
//! The first descent to a page that was read in from disk compares its fences with its parent, because a page whose
//! last write the disk has lost is intact but stale: it may be a node that was split or merged since (test:
//! `a_leaf_that_has_lost_its_split_is_reported_for_every_key`). Callers that look for an absent key, continue from a
//! node, or change one use [`Tree::reach`]: it detects that the node is the wrong one, even if the parent is the stale
//! page (test: `a_leaf_whose_last_write_was_lost_is_reported`). If a cut fence leaves that open, a second descent
//! compares it with the separators above (test: `a_leaf_with_cut_fences_whose_last_write_was_lost_is_reported`).

use super::{
    Tree,
    store::{Access, PageStore, Reading},
};
use crate::{
    error::{Error, Result},
    ids::PageNo,
    page::{
        Node,
        fence::{Fence, Fences},
    },
};

/// The target of a descent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'k> {
    /// The node with fences that contain this key.
    Key(&'k [u8]),
    /// The node that holds the keys just below this one, or the last node of its level.
    Below(Option<&'k [u8]>),
}

impl Target<'_> {
    /// Returns whether this is the right node, by its fences; `None` if a cut fence leaves that open.
    pub(super) fn is_at(self, node: Node<'_>) -> Option<bool> {
        match self {
            Target::Key(key) => node.contains(key),
            Target::Below(Some(key)) => node.contains_below(key),
            Target::Below(None) => Some(!node.has_upper()),
        }
    }

    /// Returns the slot of the child to which the target belongs.
    #[inline]
    pub(super) fn child_slot(self, node: Node<'_>) -> usize {
        match self {
            Target::Key(key) => node.child_slot(key),
            Target::Below(key) => node.child_slot_below(key),
        }
    }
}

/// The fences of a node, whole, as the nodes above it have them.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    pub lower: Vec<u8>,
    /// `None` is above every key.
    pub upper: Option<Vec<u8>>,
}

impl Bounds {
    /// Narrows the bounds of a node to those of a child.
    fn narrow(&mut self, parent: Node<'_>, slot: usize) {
        if slot > 0 {
            self.lower.clear();
            parent.key_into(slot, &mut self.lower);
        }
        if slot + 1 < parent.count() {
            let upper = self.upper.get_or_insert_default();
            upper.clear();
            parent.key_into(slot + 1, upper);
        }
    }

    /// Returns whether a key lies within them.
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.lower.as_slice() <= key && self.upper.as_deref().is_none_or(|upper| key < upper)
    }

    /// Returns whether these are the fences of the node.
    pub(super) fn are_of(&self, node: Node<'_>) -> bool {
        node.has_fences(self.fences())
    }

    /// Returns them as fences.
    pub(super) fn fences(&self) -> Fences<'_> {
        (Fence::whole(&self.lower), self.upper.as_deref().map(Fence::whole))
    }
}

/// The end of a descent.
pub(super) struct Path<'a, S: PageStore + 'a> {
    /// The node's parent, unless the node is the root. It was valid when the node's version was taken.
    pub parent: Option<S::Reading<'a>>,
    /// The node.
    pub node: S::Reading<'a>,
}

/// The outcome of one attempt to descend.
pub(super) enum Attempt<'t, S: PageStore + 't> {
    /// A node changed during the descent.
    Changed,
    /// The tree has no node at the level.
    TooLow,
    /// The node at the level.
    Reached(Path<'t, S>),
}

impl<S: PageStore> Tree<S> {
    /// Descends to a level. Returns `None` if the tree is not that high, or has no page.
    #[inline]
    pub(super) fn descend(
        &self,
        target: Target<'_>,
        level: u8,
        access: Access,
    ) -> Result<Option<Path<'_, S>>> {
        if !self.is_rooted()? {
            return Ok(None);
        }
        loop {
            match self.try_descend(target, level, access, |_| {})? {
                Attempt::Changed => {}
                Attempt::TooLow => return Ok(None),
                Attempt::Reached(path) => return Ok(Some(path)),
            }
        }
    }

    /// Descends to a leaf, and calls `visit` with each node on the way, the root first. If a node has changed, `visit`
    /// may have got it in the middle of the change, and the descent begins again at the root. Returns whether the tree
    /// has a leaf.
    pub(super) fn descend_through(
        &self,
        target: Target<'_>,
        mut visit: impl FnMut(Node<'_>),
    ) -> Result<bool> {
        if !self.is_rooted()? {
            return Ok(false);
        }
        while let Attempt::Changed = self.try_descend(target, 0, Access::Point, &mut visit)? {}
        Ok(true)
    }

    /// As [`Tree::descend`], but also checks that the node's own fences contain the target.
    pub(super) fn reach(&self, target: Target<'_>, level: u8, access: Access) -> Result<Option<Path<'_, S>>> {
        loop {
            let Some(path) = self.descend(target, level, access)? else { return Ok(None) };
            let is_there = target.is_at(Node::new(path.node.page()));
            let page = path.node.page().id().page;
            if path.node.is_valid() {
                return match is_there {
                    Some(true) => Ok(Some(path)),
                    Some(false) => Err(self.fence_mismatch(page)),
                    None => Ok(self.reach_with_bounds(target, level, access)?.map(|(path, _)| path)),
                };
            }
        }
    }

    /// As [`Tree::reach`]. Returns also the whole fences of the node, if one of them is cut.
    pub(super) fn reach_with_fences(
        &self,
        target: Target<'_>,
        level: u8,
        access: Access,
    ) -> Result<Option<(Path<'_, S>, Option<Bounds>)>> {
        let Some(path) = self.reach(target, level, access)? else { return Ok(None) };
        if !Node::new(path.node.page()).has_cut_fence() {
            return Ok(Some((path, None)));
        }
        let again = self.reach_with_bounds(target, level, access)?;
        Ok(again.map(|(path, bounds)| (path, Some(bounds))))
    }

    /// As [`Tree::reach`], but compares the node's fences with the separators above it. Returns these as well.
    ///
    /// The separators were read one after the other, but a node above has the same fences as long as its version is
    /// valid. So at the end they are those of the node, if that is still valid.
    #[cold]
    pub(super) fn reach_with_bounds(
        &self,
        target: Target<'_>,
        level: u8,
        access: Access,
    ) -> Result<Option<(Path<'_, S>, Bounds)>> {
        if !self.is_rooted()? {
            return Ok(None);
        }
        loop {
            let mut bounds = Bounds::default();
            let attempt = self.try_descend(target, level, access, |node| {
                if node.level() > level {
                    bounds.narrow(node, target.child_slot(node));
                }
            })?;
            match attempt {
                Attempt::Changed => {}
                Attempt::TooLow => return Ok(None),
                Attempt::Reached(path) => {
                    let node = Node::new(path.node.page());
                    let (are_its, page) = (bounds.are_of(node), node.page().id().page);
                    if path.node.is_valid() {
                        return if are_its {
                            Ok(Some((path, bounds)))
                        } else {
                            Err(self.fence_mismatch(page))
                        };
                    }
                }
            }
        }
    }

    /// Verifies a page that was read in from disk against its parent: their fences change together. The parent was
    /// valid when the page's version was taken. Returns `false` if one of them has changed since.
    ///
    /// The arguments are copies: references would keep both values out of registers in every descent, which makes point
    /// reads about 10 % slower.
    #[cold]
    fn verify_child(&self, parent: S::Reading<'_>, slot: usize, node: S::Reading<'_>) -> Result<bool> {
        let fits = Node::new(parent.page()).is_parent_of(slot, Node::new(node.page()));
        let page = node.page().id().page;
        if !parent.is_valid() || !node.is_valid() {
            return Ok(false);
        }
        if !fits {
            return Err(self.fence_mismatch(page));
        }
        node.mark_verified();
        Ok(true)
    }

    /// Returns the error for a fence mismatch: the fence keys of a page are not the separators in its parent.
    pub(super) fn fence_mismatch(&self, page: PageNo) -> Error {
        self.damaged(
            page,
            "its fence keys do not match the separators in its parent: a write of one of them was lost",
        )
    }

    /// Makes one attempt. Calls `visit` with each node, before it is known whether the node has changed meanwhile.
    #[inline]
    fn try_descend(
        &self,
        target: Target<'_>,
        level: u8,
        access: Access,
        visit: impl FnMut(Node<'_>),
    ) -> Result<Attempt<'_, S>> {
        self.try_descend_by(|node| target.child_slot(node), level, access, visit)
    }

    /// As [`Tree::try_descend`], to the children that `choose` returns the slots of.
    #[inline]
    pub(super) fn try_descend_by(
        &self,
        mut choose: impl FnMut(Node<'_>) -> usize,
        level: u8,
        access: Access,
        mut visit: impl FnMut(Node<'_>),
    ) -> Result<Attempt<'_, S>> {
        let at_level = |level| if level == 0 { access } else { Access::Point };
        let mut parent: Option<S::Reading<'_>> = None;
        let mut page = PageNo::ROOT;
        let mut node = self.store.read(&self.space, page, Access::Point)?;
        let mut expected = None;
        let mut slot = 0;
        loop {
            let view = Node::new(node.page());
            let at = view.level();
            let fits = if at == 0 { view.is_leaf() } else { view.is_inner() };
            if !fits || expected.is_some_and(|expected| expected != at) {
                if node.is_valid() {
                    return Err(self.damaged(page, "it is not a node of the level that its parent expects"));
                }
                return Ok(Attempt::Changed);
            }
            if node.is_unverified()
                && let Some(parent) = &parent
                && !self.verify_child(parent.clone(), slot, node.clone())?
            {
                return Ok(Attempt::Changed);
            }
            visit(view);
            if at <= level {
                return Ok(match node.is_valid() {
                    false => Attempt::Changed,
                    true if at < level => Attempt::TooLow,
                    true => Attempt::Reached(Path { parent, node }),
                });
            }
            slot = choose(view);
            page = view.child(slot);
            // A page number from a torn read must not make the store read from disk.
            if !node.is_valid() {
                return Ok(Attempt::Changed);
            }
            let child = self.store.read(&self.space, page, at_level(at - 1));
            if !node.is_valid() {
                return Ok(Attempt::Changed);
            }
            debug_assert!(expected.is_none_or(|expected| expected == at), "a descent has left out a level");
            expected = Some(at - 1);
            parent = Some(core::mem::replace(&mut node, child?));
        }
    }
}
