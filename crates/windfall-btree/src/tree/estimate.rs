//! Estimates of the number of entries in a range.
//!
//! **Purpose.** A query planner compares ranges before it reads one of them. [`Tree::estimate`] costs two descents, and
//! reads a few leaves.
//!
//! **Invariants.** A range within one leaf, or with few leaves between its ends, is counted (test:
//! `an_estimate_of_a_few_leaves_is_exact`). Of a longer range the nodes between the two paths are counted at the level
//! where the paths part, and each is taken to have as many children, or entries, as nodes of its level near the two
//! ends have on average (test: `an_estimate_is_within_a_factor_of_two`). An estimate takes no latch, and changes
//! meanwhile may make it wrong, but nothing else (test: `an_estimate_ends_beside_changes`).

use core::ops::Bound;

use super::{
    Tree,
    descent::Target,
    store::{Access, PageStore, Reading},
};
use crate::{error::Result, ids::PageNo, page::Node};

/// The number of leaves between the two ends of a range that are read to count their entries.
const COUNTED_LEAVES: usize = 8;
/// The number of leaves near each end of a longer range that are read for the average.
const SAMPLED_LEAVES: usize = 4;

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
    /// most eight leaves more.
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
    fn entries_between(&self, first: &[Step], last: &[Step], level: usize) -> Result<u64> {
        let between = |level: usize| (last[level].slot as u64).saturating_sub(first[level].slot as u64);
        if level == 0 {
            return Ok(between(0));
        }
        let inside = |level: usize| {
            let after = first[level].count.saturating_sub(first[level].slot) as u64;
            (after, last[level].slot as u64)
        };
        let (after, before) = inside(0);
        let leaves = between(level).saturating_sub(1);
        if level == 1 && leaves <= COUNTED_LEAVES as u64 {
            let counted = self.entries_of(first[1].page, first[1].slot + 1, last[1].slot, COUNTED_LEAVES)?;
            return Ok(after + before + counted.0);
        }
        // Whole nodes between the paths, at the level below.
        let mut nodes = leaves;
        for level in (1..level).rev() {
            let fan_out = (first[level].count + last[level].count) as u64 / 2;
            let (after, before) = inside(level);
            nodes = nodes * fan_out + after.saturating_sub(1) + before;
        }
        let [near_first, near_last] = if level == 1 {
            let middle = usize::midpoint(first[1].slot, last[1].slot);
            [(first[1].page, first[1].slot + 1, middle), (last[1].page, middle, last[1].slot)]
        } else {
            [(first[1].page, first[1].slot + 1, first[1].count), (last[1].page, 0, last[1].slot)]
        };
        let (mut entries, mut seen) = (first[0].count as u64 + last[0].count as u64, 2);
        for (page, from, to) in [near_first, near_last] {
            let (more, read) = self.entries_of(page, from, to, SAMPLED_LEAVES)?;
            entries += more;
            seen += read;
        }
        Ok(after + before + nodes * entries / seen)
    }

    /// Returns the path to an end, the leaf first; nothing if the tree is empty.
    fn path(&self, end: End<'_>) -> Result<Vec<Step>> {
        let mut path = Vec::new();
        while let Some(found) = self.descend(end.target(), path.len() as u8, Access::Point)? {
            let node = Node::new(found.node.page());
            let step = Step { page: node.page().id().page, slot: end.slot(node), count: node.count() };
            if found.node.is_valid() {
                path.push(step);
            }
        }
        Ok(path)
    }

    /// Counts the entries of leaves that are children of a node of level 1, in slots `from..to`; of at most `most` of
    /// them, evenly spaced. Returns the number of leaves read as well.
    fn entries_of(&self, parent: PageNo, from: usize, to: usize, most: usize) -> Result<(u64, u64)> {
        let (mut entries, mut read) = (0, 0);
        let slots = to.saturating_sub(from);
        let samples = slots.min(most);
        for n in 0..samples {
            let slot = from + n * slots / samples;
            let reading = self.store.read(&self.space, parent, Access::Point)?;
            let node = Node::new(reading.page());
            let child =
                (node.is_inner() && node.level() == 1 && slot < node.count()).then(|| node.child(slot));
            // A node that has changed since, or that is no longer there, is left out.
            let Some(child) = child.filter(|_| reading.is_valid()) else { continue };
            let leaf = self.store.read(&self.space, child, Access::Point);
            if !reading.is_valid() {
                continue;
            }
            let leaf = leaf?;
            let node = Node::new(leaf.page());
            let (is_leaf, count) = (node.is_leaf(), node.count());
            if is_leaf && leaf.is_valid() {
                entries += count as u64;
                read += 1;
            }
        }
        Ok((entries, read))
    }
}
