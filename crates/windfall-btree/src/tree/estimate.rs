//! Estimates of the number of entries in a range.
//!
//! **Purpose.** A query planner compares ranges before it reads one of them. [`Tree::estimate`] costs two descents, and
//! reads a few nodes more.
//!
//! **Invariants.** A range within one leaf, or with few leaves between its ends, is counted (test:
//! `an_estimate_of_a_few_leaves_is_exact`). Of a longer range the nodes between the two paths are counted at the level
//! where the paths part, and each is taken to have as many children, or entries, as some nodes of its level between the
//! paths have on average (test: `an_estimate_is_within_a_factor_of_two`). The nodes on the paths do not count for it:
//! the last ones of a growing tree have few children (test:
//! `an_estimate_up_to_the_end_of_a_growing_tree_is_within_a_factor_of_two`). An estimate takes no latch, and changes
//! meanwhile may make it wrong, but nothing else (test: `an_estimate_ends_beside_changes`).

use core::ops::Bound;

use super::{
    Tree,
    descent::Target,
    store::{Access, PageStore, Reading},
};
use crate::{error::Result, ids::PageNo, page::Node};

/// The number of nodes of a level that are counted if all of them have one parent.
const COUNTED_NODES: usize = 8;
/// The number of children of a node that are read otherwise.
const SAMPLED_NODES: usize = 4;

/// An end of a range.
#[derive(Clone, Copy)]
struct End<'k> {
    bound: Bound<&'k [u8]>,
    is_lower: bool,
}

/// A step of a path from the root to a leaf.
#[derive(Clone, Copy, Debug)]
struct Step {
    page: PageNo,
    /// In a leaf, the number of entries before the end; in an inner node, the slot of the child on the path.
    slot: usize,
    /// The number of entries or children.
    count: usize,
}

/// Some children of an inner node, by their slots.
#[derive(Clone, Copy, Debug)]
struct Children {
    parent: PageNo,
    from: usize,
    to: usize,
}

/// What was found in some nodes of a level.
#[derive(Debug, Default)]
struct Sample {
    nodes: u64,
    /// Their entries, or their children.
    entries: u64,
    /// The children of the last of them.
    last: Option<Children>,
}

impl<'k> End<'k> {
    fn target(self) -> Target<'k> {
        match self.bound {
            Bound::Included(key) | Bound::Excluded(key) => Target::Key(key),
            Bound::Unbounded if self.is_lower => Target::Key(&[]),
            Bound::Unbounded => Target::Below(None),
        }
    }

    fn slot(self, node: Node<'_>) -> usize {
        let (Bound::Included(key) | Bound::Excluded(key)) = self.bound else {
            let last = if node.is_leaf() { node.count() } else { node.count().saturating_sub(1) };
            return if self.is_lower { 0 } else { last };
        };
        if !node.is_leaf() {
            return node.child_slot(key);
        }
        let (slot, found) = node.find(key);
        // An entry that has this very key is before a lower end that excludes it, and an upper end that includes it.
        let is_before = found && matches!(self.bound, Bound::Excluded(_)) == self.is_lower;
        slot + usize::from(is_before)
    }
}

impl<S: PageStore> Tree<S> {
    /// Estimates the number of entries in a range, delete-marked ones included. Reads two pages of each level, and at
    /// most twelve others, each of them with its parent.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    pub fn estimate(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<u64> {
        let are_apart = match (lower, upper) {
            (Bound::Included(low), Bound::Included(high)) => low > high,
            (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
                low >= high
            }
            _ => false,
        };
        if are_apart {
            return Ok(0);
        }
        let [first, last] = [End { bound: lower, is_lower: true }, End { bound: upper, is_lower: false }];
        loop {
            let [first, last] = [self.path(first)?, self.path(last)?];
            if first.is_empty() || last.is_empty() {
                return Ok(0);
            }
            // From the leaves up. If no node is on both, the root has got another level between the two descents.
            if let Some(level) = first.iter().zip(&last).position(|(a, b)| a.page == b.page) {
                return self.entries_between(&first, &last, level);
            }
        }
    }

    /// Estimates the number of entries between two paths that meet at a level.
    fn entries_between(&self, first: &[Step], last: &[Step], meet: usize) -> Result<u64> {
        let apart = (last[meet].slot as u64).saturating_sub(first[meet].slot as u64);
        if meet == 0 {
            return Ok(apart);
        }
        // The number of nodes between the paths, of the level that the loop has reached.
        let mut nodes = apart.saturating_sub(1);
        let between = Children { parent: first[meet].page, from: first[meet].slot + 1, to: last[meet].slot };
        let mut inside = None;
        for level in (0..meet).rev() {
            let [low, high] = [first[level + 1], last[level + 1]];
            let after_low = Children { parent: low.page, from: low.slot + 1, to: low.count };
            let before_high = Children { parent: high.page, from: 0, to: high.slot };
            let mut sample = Sample::default();
            if level + 1 == meet {
                self.sample(between, level, COUNTED_NODES, &mut sample)?;
            } else {
                for children in [Some(after_low), Some(before_high), inside].into_iter().flatten() {
                    self.sample(children, level, SAMPLED_NODES, &mut sample)?;
                }
            }
            let [low, high] = [first[level], last[level]];
            let (sum, of) = match sample.nodes {
                0 => (low.count as u64 + high.count as u64, 2),
                of => (sample.entries, of),
            };
            let (after, before) = (low.count.saturating_sub(low.slot) as u64, high.slot as u64);
            nodes = nodes * sum / of + before + if level == 0 { after } else { after.saturating_sub(1) };
            inside = sample.last;
        }
        Ok(nodes)
    }

    /// Returns the path to an end, the leaf first; nothing if the tree is empty.
    fn path(&self, end: End<'_>) -> Result<Vec<Step>> {
        let mut path = Vec::new();
        self.descend_through(end.target(), |node| {
            let page = node.page().id().page;
            if page == PageNo::ROOT {
                path.clear();
            }
            path.push(Step { page, slot: end.slot(node), count: node.count() });
        })?;
        path.reverse();
        Ok(path)
    }

    /// Counts the entries, or the children, of nodes of a level; of at most `most` of them, evenly spaced.
    fn sample(&self, of: Children, level: usize, most: usize, sample: &mut Sample) -> Result<()> {
        let slots = of.to.saturating_sub(of.from);
        let samples = slots.min(most);
        let is_at = |node: Node<'_>, level: usize| {
            usize::from(node.level()) == level && if level == 0 { node.is_leaf() } else { node.is_inner() }
        };
        for n in 0..samples {
            let slot = of.from + n * slots / samples;
            let reading = self.store.read(&self.space, of.parent, Access::Point)?;
            let node = Node::new(reading.page());
            let page = (is_at(node, level + 1) && slot < node.count()).then(|| node.child(slot));
            // A node that has changed since, or that is no longer there, is left out.
            let Some(page) = page.filter(|_| reading.is_valid()) else { continue };
            let child = self.store.read(&self.space, page, Access::Point);
            if !reading.is_valid() {
                continue;
            }
            let child = child?;
            let node = Node::new(child.page());
            let (is_of_level, count) = (is_at(node, level), node.count());
            if is_of_level && child.is_valid() {
                sample.nodes += 1;
                sample.entries += count as u64;
                sample.last = Some(Children { parent: page, from: 0, to: count });
            }
        }
        Ok(())
    }
}
