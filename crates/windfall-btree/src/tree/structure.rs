//! Splits, merges, and the growing and shrinking of the root.
//!
//! **Purpose.** Splits nodes that have no room for an entry, and merges nodes and frees pages when entries are removed.
//! Entries are not shifted between nodes otherwise.
//!
//! **Invariants.** Each change is one mini-transaction that latches the parent, then the node (and its right
//! neighbour), then allocates or frees (checked by `tree/testpool.rs::hold_in_order`). If the parent has no room for a
//! separator, it is split first, in a mini-transaction of its own, and the descent restarts (test:
//! `making_room_for_an_entry_takes_no_more_log_than_is_reserved`). The root is split in place: its content moves to a
//! new child, which is then split like any other (checked by `tree/structure.rs::grow`). A node that is less than a
//! third full is merged with a neighbour if both fit one page with a reserve of an eighth (test:
//! `nodes_are_checked_for_a_merge_and_not_for_one_without_room`). Thus neighbours never both stay small, and the next
//! insert does not undo a merge. When inner nodes are merged, children that had different parents become neighbours,
//! and these are considered for a merge again (test: `a_tree_that_is_emptied_in_any_order_is_one_page`).
//!
//! A split always finds its place (test: `behaves_as_a_map_4k`), because a record takes less than 11/16 of a page, in
//! an inner node less than 7/16, and a stored fence little more than 1/16: between "the left part with its fences just
//! fits" and "the right part just fits" there is at least one boundary of records. If the new record is too large to
//! fit either half at once, the node is split without it, and again, with fewer records each time (test:
//! `behaves_as_a_map_4k`).
//!
//! A node is checked before its records are moved, so a change that finds damage returns an error (test:
//! `nodes_are_checked_for_a_merge_and_not_for_one_without_room`).
//!
//! Each of these changes reserves its own log space before it changes anything (checked by `storage/mtr.rs::reserve`).
//! A split during the rollback of a transaction uses the space that was reserved before ([`split_log_limit`]) (test:
//! `making_room_for_an_entry_takes_no_more_log_than_is_reserved`).

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{
    Room, Tree,
    descent::{Bounds, Target},
    store::{Access, Latched, MiniTransaction, PageStore, Reading},
};
use crate::{
    error::Result,
    ids::PageNo,
    page::{
        Node, NodeList, PageOp, PageType, check_change, check_entries,
        fence::{Fence, Fences, fence_bytes, prefix_of, shortened},
        node::{SLOT, common_prefix},
        record::{HEADER_MAX, inner_bytes, leaf_bytes},
    },
};

/// The share of a node that entries in key order fill, in percent, inserted or loaded. The rest is room for versions of
/// rows with headers and longer values.
pub const ORDERED_FILL_PERCENT: usize = 96;

/// The maximum number of splits for one entry: its leaf three times; each level above twice, because a separator takes
/// less than half of the room that the fences leave; and the root moves down once. That is enough for six levels of
/// nodes above the leaves. Longer keys can cause more levels, but splits still do not occur on all of them.
const MAX_SPLITS: u64 = 16;

/// Maximum of log that one change of the structure takes, in bytes: the image of a page, four fences with a prefix of
/// up to 3/8 of a page each, and a separator.
pub(super) const fn one_change(page_size: usize) -> u64 {
    3 * page_size as u64
}

/// Returns the maximum of log that making room for one entry takes, in bytes.
pub const fn split_log_limit(page_size: usize) -> u64 {
    MAX_SPLITS * one_change(page_size)
}

/// An entry that will be put into a node, or changed there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need<'k> {
    key: &'k [u8],
    content: Content,
}

/// The part of an entry that is not its key.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// Of an inner node.
    Child,
    /// A value of this length, with any header.
    Value(usize),
    /// The present value with any header; nothing if there is no entry.
    Header,
}

impl<'k> Need<'k> {
    /// Creates the need for an entry of a leaf; `None` if it needs no room.
    pub(super) fn leaf(key: &'k [u8], room: Room) -> Option<Self> {
        let content = match room {
            Room::Keep => return None,
            Room::Header => Content::Header,
            Room::Value(length) => Content::Value(length),
        };
        Some(Self { key, content })
    }

    fn inner(key: &'k [u8]) -> Self {
        Self { key, content: Content::Child }
    }

    /// Returns the bytes of the record, of which `present` is the slot, if there is one.
    pub(super) fn record_bytes(&self, node: Node<'_>, present: Option<usize>) -> usize {
        let suffix = self.key.len().saturating_sub(node.prefix_len());
        match (self.content, present) {
            (Content::Child, _) => inner_bytes(suffix),
            (Content::Value(value), _) => leaf_bytes(HEADER_MAX, suffix, value),
            (Content::Header, Some(slot)) => leaf_bytes(HEADER_MAX, suffix, node.value_range(slot).1),
            (Content::Header, None) => 0,
        }
    }

    /// Returns whether the node has room for the entry, including that of the entry of the same key in slot `present`,
    /// which it replaces.
    pub(super) fn fits(&self, node: Node<'_>, present: Option<usize>) -> bool {
        let bytes = self.record_bytes(node, present);
        let free = node.free_bytes();
        match present {
            Some(slot) => bytes <= free + node.record_bytes(slot),
            None => bytes == 0 || SLOT + bytes <= free,
        }
    }
}

/// Returns whether a node should be merged with a neighbour.
pub(super) fn is_underfull(node: Node<'_>) -> bool {
    node.live_bytes() < node.capacity() / 3 || node.count() < if node.is_leaf() { 1 } else { 2 }
}

/// Returns the shortest key that is above `a` and not above `b`.
pub(super) fn separator<'b>(a: &[u8], b: &'b [u8]) -> &'b [u8] {
    &b[..(common_prefix(a, b) + 1).min(b.len())]
}

/// A record, present or new, when a node is about to be split.
struct Item {
    slot: Option<usize>,
    bytes: usize,
    /// Bytes without the new record.
    bytes_now: usize,
}

/// A place where a node may be split, in the order of preference.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    cost: usize,
    /// The first item of the right part.
    n: usize,
    /// The bytes of the left part.
    left: usize,
    records_left: usize,
}

/// Plans a split of a node after which `need` fits one of the parts, or at least will after further splits. Returns the
/// first slot of the right part, and the separator.
fn plan_split(node: Node<'_>, (lower, upper): Fences<'_>, need: &Need<'_>) -> Option<(usize, Vec<u8>)> {
    let (place, found) = node.find(need.key);
    let needed = SLOT + need.record_bytes(node, found.then_some(place));
    let mut items = Vec::with_capacity(node.count() + 1);
    for n in 0..node.count() {
        let bytes_now = SLOT + node.record_bytes(n);
        if n == place && found {
            items.push(Item { slot: Some(n), bytes: needed, bytes_now });
            continue;
        }
        if n == place {
            items.push(Item { slot: None, bytes: needed, bytes_now: 0 });
        }
        items.push(Item { slot: Some(n), bytes: bytes_now, bytes_now });
    }
    if place >= node.count() {
        items.push(Item { slot: None, bytes: needed, bytes_now: 0 });
    }
    let page_size = node.page().len();
    let full = node.capacity() * ORDERED_FILL_PERCENT / 100;
    // The left part has an upper fence, and so a longer prefix than the last node of its level.
    let shorter = common_prefix(lower.bytes, need.key).saturating_sub(node.prefix_len());
    let appending = !node.has_upper() && items.last().is_some_and(|item| item.slot.is_none());

    let key_of = |item: &Item, key: &mut Vec<u8>| {
        key.clear();
        match item.slot {
            Some(slot) => node.key_into(slot, key),
            None => key.extend_from_slice(need.key),
        }
    };
    let mut before = Vec::new();
    let mut behind = Vec::new();
    for with_need in [true, false] {
        let bytes = |item: &Item| if with_need { item.bytes } else { item.bytes_now };
        let is_counted = |item: &Item| usize::from(with_need || item.slot.is_some());
        let total: usize = items.iter().map(bytes).sum();
        let records: usize = items.iter().map(is_counted).sum();
        let (mut left, mut records_left) = (0, 0);
        let mut places: Vec<Place> = Vec::with_capacity(items.len());
        for n in 1..items.len() {
            left += bytes(&items[n - 1]);
            records_left += is_counted(&items[n - 1]);
            // An inner node's separator must be the key of a present child.
            if node.is_inner() && items[n].slot.is_none() {
                continue;
            }
            let cost = if appending {
                left.saturating_sub(n * shorter).abs_diff(full)
            } else {
                left.abs_diff(total - left)
            };
            places.push(Place { cost, n, left, records_left });
        }
        // Most often the first one fits.
        let mut places: BinaryHeap<_> = places.into_iter().map(Reverse).collect();
        while let Some(Reverse(Place { n, left, records_left, .. })) = places.pop() {
            key_of(&items[n - 1], &mut before);
            key_of(&items[n], &mut behind);
            let between = if node.is_leaf() { separator(&before, &behind) } else { &behind };
            let parts = [
                (left, records_left, lower, Some(Fence::whole(between))),
                (total - left, records - records_left, Fence::whole(between), upper),
            ];
            let parts = parts.map(|(bytes, records, lower, upper)| {
                // A longer prefix makes the records shorter, except the first one of an inner node.
                let shorter = prefix_of((lower, upper)).saturating_sub(node.prefix_len());
                let records = records.saturating_sub(usize::from(node.is_inner()));
                bytes.saturating_sub(records * shorter) + fence_bytes((lower, upper), page_size)
            });
            if parts.into_iter().any(|part| part > node.capacity()) {
                continue;
            }
            let first = items[n..].iter().find_map(|item| item.slot).unwrap_or(node.count());
            debug_assert!(first <= node.count(), "a node is split beyond its slots");
            debug_assert!(
                node.is_leaf() || (1..node.count()).contains(&first),
                "a half of an inner node has no child"
            );
            return Some((first, between.to_vec()));
        }
    }
    None
}

impl<S: PageStore> Tree<S> {
    /// Begins a mini-transaction that logs up to a page, with log space reserved for it.
    pub(super) fn begin_long(&self) -> Result<S::MiniTransaction<'_>> {
        let mut mtr = self.store.begin()?;
        mtr.reserve(&self.space, one_change(self.store.page_size()))?;
        Ok(mtr)
    }

    /// Begins a mini-transaction for a split.
    fn begin_split(&self) -> Result<S::MiniTransaction<'_>> {
        if self.log_reserved { self.store.begin() } else { self.begin_long() }
    }

    /// Splits the node of `need`'s key on this level until `need` fits.
    pub(super) fn split(&self, need: &Need<'_>, level: u8) -> Result<()> {
        loop {
            let reached = self.reach_with_fences(Target::Key(need.key), level, Access::Point)?;
            let Some((path, bounds)) = reached else { return Ok(()) };
            let Some(parent) = &path.parent else {
                let node = Node::new(path.node.page());
                let (slot, found) = node.find(need.key);
                if need.fits(node, found.then_some(slot)) && path.node.is_valid() {
                    return Ok(());
                }
                self.grow(&path.node)?;
                continue;
            };
            let mut mtr = self.begin_split()?;
            let Some(parent) = mtr.upgrade(&self.space, parent)? else { continue };
            let Some(child) = mtr.upgrade(&self.space, &path.node)? else { continue };
            let node = Node::new(mtr.page(child));
            debug_assert_eq!(node.level(), level, "a node of another level is split");
            debug_assert_eq!(
                Some(Node::new(mtr.page(parent)).level()),
                level.checked_add(1),
                "a child is not on the level below its parent"
            );
            let (slot, found) = node.find(need.key);
            if need.fits(node, found.then_some(slot)) {
                return Ok(());
            }
            self.check_node(node)?;
            // Unchanged since its bounds were read.
            let (lower, upper) = (node.lower_fence(), node.upper_fence());
            let own = (lower.as_deref(), upper.as_ref().map(Fence::as_deref));
            let fences = bounds.as_ref().map_or(own, Bounds::fences);
            let Some((at, between)) = plan_split(node, fences, need) else {
                return Err(self.damaged(mtr.page_no(child), "its records leave no place for a split"));
            };
            let need_above = Need::inner(&between);
            if !need_above.fits(Node::new(mtr.page(parent)), None) {
                drop(mtr);
                self.split(&need_above, level + 1)?;
                continue;
            }
            self.split_node(mtr, parent, child, fences, (at, &between))?;
        }
    }

    /// Checks a node before its records are moved: [`MiniTransaction::apply`] returns no error for an operation that
    /// does not fit its page, and keys that are out of order would be cut by a prefix that they do not have.
    fn check_node(&self, node: Node<'_>) -> Result<()> {
        check_entries(node.page()).map(drop).map_err(|what| self.damaged(node.page().id().page, what))
    }

    /// Checks that a root has no fence.
    fn check_root(&self, root: Node<'_>) -> Result<()> {
        if root.has_fence() { Err(self.damaged(PageNo::ROOT, "the root has a fence")) } else { Ok(()) }
    }

    /// Returns the slot for a new right neighbour of a child, with this lower fence, for which its parent has room.
    fn slot_after(&self, parent: Node<'_>, child: PageNo, lower: &[u8]) -> Result<usize> {
        let damaged = |what| self.damaged(parent.page().id().page, what);
        let (slot, found) = parent.find(lower);
        if found || slot == 0 || parent.child(slot - 1) != child || !parent.has_prefix_of(lower) {
            return Err(damaged("its separators are not the fences of its children"));
        }
        check_change(parent, None, Need::inner(lower).record_bytes(parent, None)).map_err(damaged)?;
        Ok(slot)
    }

    /// Moves the slots from `at` on to a new right neighbour, with a key between both.
    fn split_node<'a>(
        &'a self,
        mut mtr: S::MiniTransaction<'a>,
        parent: Latched,
        child: Latched,
        (lower, upper): Fences<'_>,
        (at, between): (usize, &[u8]),
    ) -> Result<()> {
        let node = Node::new(mtr.page(child));
        debug_assert!(node.contains(between) != Some(false), "a node is split at a key outside its fences");
        let (level, page_size) = (node.level(), self.store.page_size());
        let mut list = NodeList::default();
        list.push_node(node, at, node.count());
        let above = Node::new(mtr.page(parent));
        let slot = self.slot_after(above, mtr.page_no(child), between)?;
        let suffix = &between[above.prefix_len()..];

        let kind = if level == 0 { PageType::Leaf } else { PageType::Inner };
        let near = PageNo(mtr.page_no(child).0 + 1);
        let right = mtr.allocate(&self.space, kind, level, near)?;
        let fence = Fence::whole(between);
        let (from, to) = shortened((fence, upper), page_size);
        let image = list.image(prefix_of((from, to)));
        mtr.apply(right, &PageOp::NodeBuild { level, lower: from, upper: to, image: &image });
        let (lower, upper) = shortened((lower, Some(fence)), page_size);
        mtr.apply(child, &PageOp::NodeKeep { slots: [0, at as u16], lower, upper });
        debug_assert_eq!(Node::new(mtr.page(child)).count(), at, "the left half lacks records");
        debug_assert_eq!(Node::new(mtr.page(right)).count(), list.len(), "the right half lacks records");
        let link = mtr.page_no(right);
        mtr.apply(parent, &PageOp::InnerInsert { slot: slot as u16, child: link, suffix });
        debug_assert_eq!(Node::new(mtr.page(parent)).child(slot), link, "a new node is not in its parent");
        debug_assert!(
            Node::new(mtr.page(parent)).is_at(slot, between),
            "a parent does not have the lower fence of a new node"
        );
        mtr.commit()?;
        Ok(())
    }

    /// Moves the root's content to a new child, one level below. Does nothing if the root has changed.
    fn grow(&self, root: &S::Reading<'_>) -> Result<()> {
        let mut mtr = self.begin_split()?;
        let Some(root) = mtr.upgrade(&self.space, root)? else { return Ok(()) };
        let node = Node::new(mtr.page(root));
        self.check_root(node)?;
        self.check_node(node)?;
        let level = node.level();
        let mut list = NodeList::default();
        list.push_node(node, 0, node.count());
        let kind = if level == 0 { PageType::Leaf } else { PageType::Inner };
        let child = mtr.allocate(&self.space, kind, level, PageNo(PageNo::ROOT.0 + 1))?;
        let image = list.image(0);
        mtr.apply(child, &PageOp::NodeBuild { level, lower: Fence::whole(&[]), upper: None, image: &image });
        list.clear();
        list.push_inner(&[], mtr.page_no(child));
        let image = list.image(0);
        mtr.apply(
            root,
            &PageOp::NodeBuild { level: level + 1, lower: Fence::whole(&[]), upper: None, image: &image },
        );
        debug_assert!(
            Node::new(mtr.page(root)).is_parent_of(0, Node::new(mtr.page(child))),
            "the root is not the parent of what it held"
        );
        mtr.commit()?;
        Ok(())
    }

    /// Merges the leaf of a key with a neighbour if it is underfull, and so on upwards. Must be called after entries
    /// were removed, outside any mini-transaction that holds pages of this tree. Whether and when it is called affects
    /// only the space that the tree takes, never its content.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn maintain(&self, key: &[u8]) -> Result<()> {
        let mut pending = PendingMerges::default();
        pending.push_leaf(key.to_vec());
        while !pending.is_empty() {
            self.maintain_step(&mut pending)?;
        }
        Ok(())
    }

    /// As [`Tree::maintain`], but considers one node only, so that at most one pair of nodes is merged, or the root
    /// lowered by one level. The caller continues while merges are pending. Returns whether the structure has changed.
    ///
    /// # Errors
    /// The errors of the store. The node is no longer pending.
    pub fn maintain_step(&self, pending: &mut PendingMerges) -> Result<bool> {
        let Some(node) = pending.0.pop() else { return Ok(false) };
        let level = node.level;
        match self.merge_at(node.target(), level)? {
            Outcome::Stays => Ok(false),
            Outcome::Alone => {
                pending.0.push(PendingMerge { level: level + 1, ..node });
                Ok(false)
            }
            Outcome::Lowered => {
                debug_assert!(level > 0, "a leaf was lowered");
                pending.0.push(PendingMerge { level: level - 1, ..node });
                Ok(true)
            }
            Outcome::Merged(seam) => {
                debug_assert!(level > 0 || seam.is_none(), "a leaf has children that became neighbours");
                pending.0.push(PendingMerge { level: level + 1, ..node.clone() });
                pending.0.push(node);
                if let Some(key) = seam {
                    let left = PendingMerge { key, is_below: true, level: level - 1 };
                    pending.0.push(left.clone());
                    pending.0.push(PendingMerge { is_below: false, ..left });
                }
                Ok(true)
            }
        }
    }

    /// Merges a node of this level, if it should and can be merged.
    fn merge_at(&self, target: Target<'_>, level: u8) -> Result<Outcome> {
        loop {
            let Some(path) = self.reach(target, level, Access::Point)? else {
                return Ok(Outcome::Stays);
            };
            let node = Node::new(path.node.page());
            let small = is_underfull(node);
            let only_child = node.is_inner() && node.count() == 1;
            if !path.node.is_valid() {
                continue;
            }
            if !small {
                return Ok(Outcome::Stays);
            }
            let Some(parent) = path.parent else {
                let is_lowered = only_child && self.shrink_root()?;
                return Ok(if is_lowered { Outcome::Lowered } else { Outcome::Stays });
            };
            let mut mtr = self.begin_long()?;
            let Some(parent) = mtr.upgrade(&self.space, &parent)? else { continue };
            let above = Node::new(mtr.page(parent));
            debug_assert_eq!(
                Some(above.level()),
                level.checked_add(1),
                "a child is not on the level below its parent"
            );
            let slot = target.child_slot(above);
            if above.count() == 1 {
                return Ok(Outcome::Alone);
            }
            for right in [slot + 1, slot] {
                let above = Node::new(mtr.page(parent));
                if right == 0 || right >= above.count() {
                    continue;
                }
                let links = [above.child(right - 1), above.child(right)];
                let left = mtr.latch(&self.space, links[0])?;
                let right_page = mtr.latch(&self.space, links[1])?;
                let above = Node::new(mtr.page(parent));
                let nodes = [Node::new(mtr.page(left)), Node::new(mtr.page(right_page))];
                for (at, node) in nodes.into_iter().enumerate() {
                    if !above.is_parent_of(right - 1 + at, node) {
                        return Err(self.fence_mismatch(links[at]));
                    }
                }
                let mut between = Vec::new();
                above.key_into(right, &mut between);
                if let Some(merged) = self.try_merge(nodes, between)? {
                    check_change(above, Some(right), 0)
                        .map_err(|what| self.damaged(mtr.page_no(parent), what))?;
                    let Merged { level, lower, upper, image, .. } = &merged;
                    let (lower, upper) = (lower.as_deref(), upper.as_ref().map(Fence::as_deref));
                    let (lower, upper) = shortened((lower, upper), self.store.page_size());
                    let freeing = mtr.prepare_free(&self.space, right_page)?;
                    mtr.apply(left, &PageOp::NodeBuild { level: *level, lower, upper, image });
                    mtr.apply(parent, &PageOp::NodeRemove { slot: right as u16 });
                    debug_assert!(Node::new(mtr.page(parent)).count() > 0, "a parent has no child left");
                    debug_assert!(
                        Node::new(mtr.page(parent)).is_parent_of(right - 1, Node::new(mtr.page(left))),
                        "the fences of a merged node are not the separators on both sides of its link"
                    );
                    mtr.free(&self.space, freeing);
                    mtr.commit()?;
                    return Ok(Outcome::Merged(merged.seam));
                }
                mtr.unlatch(right_page);
                mtr.unlatch(left);
            }
            return Ok(Outcome::Stays);
        }
    }

    /// Moves the content of the root's only child into the root. Returns whether there was such a child.
    pub(super) fn shrink_root(&self) -> Result<bool> {
        let mut mtr = self.begin_long()?;
        let root = mtr.latch(&self.space, PageNo::ROOT)?;
        let node = Node::new(mtr.page(root));
        if !node.is_inner() || node.count() != 1 {
            return Ok(false);
        }
        let link = node.child(0);
        let child = mtr.latch(&self.space, link)?;
        let node = Node::new(mtr.page(child));
        self.check_root(Node::new(mtr.page(root)))?;
        if !Node::new(mtr.page(root)).is_parent_of(0, node) {
            return Err(self.fence_mismatch(link));
        }
        self.check_node(node)?;
        let level = node.level();
        let mut list = NodeList::default();
        list.push_node(node, 0, node.count());
        let image = list.image(0);
        let child = mtr.prepare_free(&self.space, child)?;
        mtr.apply(root, &PageOp::NodeBuild { level, lower: Fence::whole(&[]), upper: None, image: &image });
        mtr.free(&self.space, child);
        mtr.commit()?;
        Ok(true)
    }
}

/// A node that is still to be considered for a merge.
#[derive(Clone, Debug)]
struct PendingMerge {
    key: Vec<u8>,
    /// Whether it is the node of the keys just below `key`, and not that of `key`.
    is_below: bool,
    level: u8,
}

impl PendingMerge {
    fn target(&self) -> Target<'_> {
        if self.is_below { Target::Below(Some(&self.key)) } else { Target::Key(&self.key) }
    }
}

/// The nodes that are still to be considered for a merge, the next one last.
#[derive(Debug, Default)]
pub struct PendingMerges(Vec<PendingMerge>);

impl PendingMerges {
    /// Adds the leaf of a key, as the next node.
    pub fn push_leaf(&mut self, key: Vec<u8>) {
        self.0.push(PendingMerge { key, is_below: false, level: 0 });
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no node is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The outcome for a node that is considered for a merge.
enum Outcome {
    /// The node stays as it is.
    Stays,
    /// The node is its parent's only child: it gets a neighbour when the parent is merged.
    Alone,
    /// The node was the root, and has the content of its only child now: it may have an only child again.
    Lowered,
    /// The node was merged: see [`Merged::seam`].
    Merged(Option<Vec<u8>>),
}

/// Two neighbours as one node.
struct Merged {
    level: u8,
    lower: Fence<Vec<u8>>,
    upper: Option<Fence<Vec<u8>>>,
    image: Vec<u8>,
    /// For inner nodes, the key between two of their children, which had different parents and are now neighbours.
    seam: Option<Vec<u8>>,
}

impl<S: PageStore> Tree<S> {
    /// Merges two neighbours, with this key between them. `None` if they do not fit one page with a reserve.
    fn try_merge(&self, [left, right]: [Node<'_>; 2], between: Vec<u8>) -> Result<Option<Merged>> {
        debug_assert_eq!(left.level(), right.level(), "nodes of two levels are merged");
        let (lower, upper) = (left.lower_fence(), right.upper_fence());
        let fences = (lower.as_deref(), upper.as_ref().map(Fence::as_deref));
        // The prefix of the merged node is no longer than that of either, so no record takes fewer bytes than now.
        let fence_bytes = fence_bytes(fences, self.store.page_size());
        let least = left.live_bytes() + right.live_bytes() + fence_bytes;
        let reserve = if left.count() == 0 || right.count() == 0 { 0 } else { left.capacity() / 8 };
        // Most merges that have no room are refused here, before the checks of both nodes.
        if least + reserve > left.capacity() {
            return Ok(None);
        }
        self.check_node(left)?;
        self.check_node(right)?;
        debug_assert!(
            left.upper_fence().is_some_and(|end| end.as_deref().is_same(right.lower_fence().as_deref())),
            "two nodes are merged that are no neighbours"
        );
        let mut list = NodeList::default();
        list.push_node(left, 0, left.count());
        if right.is_leaf() {
            list.push_node(right, 0, right.count());
        } else {
            list.push_inner(&between, right.child(0));
            list.push_node(right, 1, right.count());
        }
        let prefix = prefix_of(fences);
        let bytes = list.bytes(prefix) + fence_bytes;
        debug_assert!(least <= bytes, "a merged node takes fewer bytes than its two parts");
        if bytes + reserve > left.capacity() {
            return Ok(None);
        }
        let image = list.image(prefix);
        let seam = left.is_inner().then_some(between);
        Ok(Some(Merged { level: left.level(), lower, upper, image, seam }))
    }
}
