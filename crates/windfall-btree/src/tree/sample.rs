//! Single leaves, for statistics.
//!
//! **Purpose.** Statistics of a large tree are estimated from some of its leaves. Each is found by a descent to a
//! *place*: the part of the children that are left of the path, at each level, as a fraction of 64 bits. Leaves at
//! evenly spaced places, from a random one, are a systematic sample.
//!
//! **Invariants.** A place leads to one leaf, and rising places to the leaves in order (test:
//! `evenly_spaced_places_are_a_sample`). The leaves that a place may lead to have the product of the numbers of
//! children on their path as their *weight*: a leaf takes the part 1/weight of all places (test:
//! `evenly_spaced_places_are_a_sample`). The copy of a leaf is of one moment (test: `a_sample_ends_beside_changes`).

use super::{
    Tree,
    descent::Attempt,
    store::{Access, PageStore, Reading},
};
use crate::{
    error::Result,
    page::{EntryHeader, Node},
};

/// The copy of a leaf. Used again, it keeps its memory.
#[derive(Debug, Default)]
pub struct LeafCopy {
    bytes: Vec<u8>,
    /// For each entry the start of its key in `bytes`, the end of the key, and the header; the value follows.
    entries: Vec<(usize, usize, EntryHeader)>,
    low: Vec<u8>,
    high: Vec<u8>,
    is_bounded: bool,
    weight: f64,
}

impl LeafCopy {
    /// Returns the number of leaves that the tree would have if all nodes had as many children as those on the path to
    /// this one.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Returns the lower bound of its keys.
    pub fn low(&self) -> &[u8] {
        &self.low
    }

    /// Returns the bound above its keys; `None` for the last leaf.
    pub fn high(&self) -> Option<&[u8]> {
        self.is_bounded.then_some(&self.high[..])
    }

    /// Returns the entries in order, delete-marked ones included: header, key and value.
    pub fn entries(&self) -> impl Iterator<Item = (EntryHeader, &[u8], &[u8])> {
        let ends = self.entries.iter().skip(1).map(|next| next.0).chain([self.bytes.len()]);
        self.entries.iter().zip(ends).map(|((start, middle, header), end)| {
            (*header, &self.bytes[*start..*middle], &self.bytes[*middle..end])
        })
    }
}

impl<S: PageStore> Tree<S> {
    /// Copies the leaf at a place into `leaf`: one descent. Returns `false` if the tree has no page.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    pub fn copy_leaf_at(&self, place: u64, leaf: &mut LeafCopy) -> Result<bool> {
        if !self.is_rooted()? {
            return Ok(false);
        }
        loop {
            let (mut left, mut weight) = (place, 1.0);
            let choose = |node: Node<'_>| {
                let children = node.count();
                let at = u128::from(left) * children as u128;
                left = at as u64;
                weight *= children as f64;
                (at >> u64::BITS) as usize
            };
            let Attempt::Reached(path) = self.try_descend_by(choose, 0, Access::Scan, |_| {})? else {
                continue;
            };
            let node = Node::new(path.node.page());
            let LeafCopy { bytes, entries, low, high, .. } = leaf;
            for buffer in [&mut *bytes, &mut *low, &mut *high] {
                buffer.clear();
            }
            entries.clear();
            for slot in 0..node.count() {
                let start = bytes.len();
                let (key, header) = node.entry_into(slot, bytes);
                entries.push((start, start + key, header));
            }
            node.lower_into(low);
            leaf.is_bounded = node.upper_into(high);
            leaf.weight = weight;
            if path.node.is_valid() {
                return Ok(true);
            }
        }
    }
}
