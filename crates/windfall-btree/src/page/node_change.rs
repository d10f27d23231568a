//! Changes of a node: the page operations of the tree, applied at run time and by recovery alike.
//!
//! **Purpose.** Insert, replace and remove records, reduce a node to a range, build a node from a list.
//!
//! **Invariants.** The result depends only on the page's content and the operation, compaction included. Everything is
//! checked before the first word is written: on an error the page is unchanged. No code here trusts the page's own
//! counts and offsets, which may be damaged when recovery reads them.

use super::{
    Page, PageType,
    node::{
        COUNT, EntryHeader, FLAGS, GARBAGE, HAS_UPPER, HEAP, INNER_RECORD, LEAF_RECORD, LOWER_LEN,
        NODE_HEADER, Node, PREFIX, SKIP, Slot, UPPER_LEN, record_words,
    },
    node_build::{ImageRecord, NodeImage, NodeList, fence_words, prefix_of},
};
use crate::ids::{PageId, PageNo};
use crate::sync::atomic::Ordering::Relaxed;

type Result<T = (), E = &'static str> = core::result::Result<T, E>;

const NO_NODE: &str = "the page is not a node of that kind";
const NO_SLOT: &str = "the node has no such slot";
const NO_ROOM: &str = "the record does not fit the node";
const MISCOUNTED: &str = "the node's garbage is miscounted";
const BAD_RECORD: &str = "a record lies outside the node's heap";

/// Returns the page as a node, after checking that its areas lie within the page and do not overlap.
pub(super) fn checked(page: Page<'_>, leaf: bool) -> Result<Node<'_>> {
    let node = Node::new(page);
    if !(if leaf { node.is_leaf() } else { node.is_inner() }) {
        return Err(NO_NODE);
    }
    let lower = usize::from(page.u16(LOWER_LEN));
    let upper = usize::from(page.u16(UPPER_LEN));
    let fences = lower.next_multiple_of(8) + upper.next_multiple_of(8);
    let words = usize::from(page.u16(COUNT)) + usize::from(page.u16(HEAP));
    let shared = if page.u16(FLAGS) & HAS_UPPER != 0 { lower.min(upper) } else { 0 };
    if NODE_HEADER + words * 8 + fences > page.len()
        || page.u16(GARBAGE) > page.u16(HEAP)
        || node.prefix_len() > shared
    {
        return Err("the node's header contradicts itself");
    }
    Ok(node)
}

/// Returns the offset of the heap. Must be called with a [`checked`] node.
fn heap_start(node: Node<'_>) -> usize {
    node.page().len() - usize::from(node.page().u16(HEAP)) * 8
}

/// Returns a slot, after checking that its record lies within the heap, and the words of that record.
pub(super) fn checked_slot(node: Node<'_>, slot: usize) -> Result<(Slot, usize)> {
    if slot >= node.count() {
        return Err(NO_SLOT);
    }
    let words = node.words_of(slot);
    let slot = node.slot(slot);
    if slot.record() < heap_start(node) || slot.record() + words * 8 > node.page().len() {
        return Err(BAD_RECORD);
    }
    Ok((slot, words))
}

/// Returns whether a node with this many slots must be compacted before it takes a record of `words`.
fn needs_compaction(node: Node<'_>, slots: usize, words: usize) -> bool {
    heap_start(node) < node.slots_at() + (slots + words) * 8
}

/// Checks that the heap consists of the records and of garbage, so that the node can be compacted. Must be called with
/// a [`checked`] node.
pub(super) fn check_heap(node: Node<'_>) -> Result {
    let mut live = 0;
    for n in 0..node.count() {
        live += checked_slot(node, n)?.1;
    }
    let garbage = usize::from(node.page().u16(GARBAGE));
    if live + garbage == node.page().u16(HEAP).into() { Ok(()) } else { Err(MISCOUNTED) }
}

/// Checks that a change for which the node has room cannot fail: the removal of the record in `slot`, if given, or a
/// change of its header, and the insert of a record of `words` in its place, if that is not 0.
///
/// # Errors
/// A description of the contradiction in the node.
pub fn check_change(node: Node<'_>, slot: Option<usize>, words: usize) -> Result {
    let present = slot.map_or(Ok(0), |slot| checked_slot(node, slot).map(|(_, words)| words))?;
    // The removed record becomes garbage.
    if usize::from(node.page().u16(GARBAGE)) + present > node.page().u16(HEAP).into() {
        return Err(MISCOUNTED);
    }
    if words > present && needs_compaction(node, node.count() + 1, words) {
        check_heap(node)?;
    }
    Ok(())
}

fn add(page: Page<'_>, field: usize, n: usize) {
    page.set_u16(field, page.u16(field).wrapping_add(n as u16));
}

fn put_slot(node: Node<'_>, slot: usize, value: Slot) {
    node.page().set_u64(node.slots_at() + slot * 8, value.0);
}

/// The content of a record other than its suffix.
#[derive(Clone, Copy)]
enum Body<'a> {
    Leaf(EntryHeader, &'a [u8]),
    Inner(PageNo),
}

impl<'a> Body<'a> {
    fn words(self, suffix_len: usize) -> usize {
        match self {
            Self::Leaf(_, value) => record_words(LEAF_RECORD, suffix_len, value.len()),
            Self::Inner(_) => record_words(INNER_RECORD, suffix_len, 0),
        }
    }

    fn of(leaf: bool, logged: &'a [u8]) -> Result<Self> {
        const BAD: &str = "a logged record has no header";
        if leaf {
            let (a, rest) = logged.split_first_chunk().ok_or(BAD)?;
            let (b, value) = rest.split_first_chunk().ok_or(BAD)?;
            let header = EntryHeader::from_words([u64::from_le_bytes(*a), u64::from_le_bytes(*b)]);
            Ok(Self::Leaf(header, value))
        } else {
            let child = logged.try_into().map_err(|_| BAD)?;
            Ok(Self::Inner(PageNo(u32::from_le_bytes(child))))
        }
    }

    /// Writes the whole record.
    fn write(self, page: Page<'_>, at: usize, suffix: &[u8]) {
        page.set_u64(at + (self.words(suffix.len()) - 1) * 8, 0);
        match self {
            Self::Leaf(header, value) => {
                let [a, b] = header.words();
                page.set_u64(at, a);
                page.set_u64(at + 8, b);
                page.set_u16(at + 16, value.len() as u16);
                page.write(at + LEAF_RECORD, suffix);
                page.write(at + LEAF_RECORD + suffix.len(), value);
            }
            Self::Inner(child) => {
                page.set_u32(at, child.0);
                page.write(at + INNER_RECORD, suffix);
            }
        }
    }
}

/// Inserts a leaf's record.
pub(super) fn leaf_insert(
    page: Page<'_>,
    slot: u16,
    header: EntryHeader,
    suffix: &[u8],
    value: &[u8],
) -> Result {
    insert(checked(page, true)?, slot.into(), suffix, Body::Leaf(header, value))
}

/// Inserts an inner node's record.
pub(super) fn inner_insert(page: Page<'_>, slot: u16, child: PageNo, suffix: &[u8]) -> Result {
    insert(checked(page, false)?, slot.into(), suffix, Body::Inner(child))
}

fn insert(node: Node<'_>, slot: usize, suffix: &[u8], body: Body<'_>) -> Result {
    let page = node.page();
    let words = body.words(suffix.len());
    if slot > node.count() || slot < node.first_slot() {
        return Err(NO_SLOT);
    }
    if node.free_words() < words + 1 {
        return Err(NO_ROOM);
    }
    if needs_compaction(node, node.count() + 1, words) {
        compact(node)?;
    }
    debug_assert!(
        node.slots_at() + (node.count() + 1 + words) * 8 <= heap_start(node),
        "a record was assigned room that its node does not have"
    );
    let record = heap_start(node) - words * 8;
    let first = node.slots_at() / 8 + slot;
    page.move_words(first, first + 1, node.count() - slot);
    put_slot(node, slot, Slot::new(0, record, suffix.len()));
    body.write(page, record, suffix);
    add(page, COUNT, 1);
    add(page, HEAP, words);
    debug_assert_eq!(Node::new(page).count(), node.count() + 1, "an insert adds one slot");
    debug_assert_eq!(heap_start(node), record, "an inserted record is not the first of the heap");
    let node = Node::new(page);
    let skip = node.skip();
    // Only a new first or last key can lack the shared bytes, and `best_skip` compares these two.
    if node.count().is_power_of_two() || (skip > 0 && node.best_skip() < skip) {
        set_skip(node, node.best_skip());
    } else {
        put_slot(node, slot, Slot::new(node.head_with(slot, skip), record, suffix.len()));
    }
    debug_assert!(checked(page, node.is_leaf()).is_ok(), "the areas of a node overlap after an insert");
    Ok(())
}

/// Sets the skip, and updates all heads.
fn set_skip(node: Node<'_>, skip: usize) {
    debug_assert!(u8::try_from(skip).is_ok(), "a skip does not fit its field");
    for n in 0..node.count() {
        let slot = node.slot(n);
        put_slot(node, n, Slot::new(node.head_with(n, skip), slot.record(), slot.suffix_len()));
    }
    node.page().set_u8(SKIP, skip as u8);
}

/// Moves the live records together at the page's end, in slot order.
fn compact(node: Node<'_>) -> Result {
    let page = node.page();
    let live = usize::from(page.u16(HEAP)) - usize::from(page.u16(GARBAGE));
    let start = page.len() - live * 8;
    debug_assert!(node.slots_at() + node.count() * 8 <= start, "live records reach into the slots");
    let mut moved = Vec::with_capacity(live);
    let mut slots = Vec::with_capacity(node.count());
    for n in 0..node.count() {
        let (slot, words) = checked_slot(node, n)?;
        slots.push(Slot::new(slot.head(), start + moved.len() * 8, slot.suffix_len()));
        let record = slot.record() / 8;
        moved.extend(page.words()[record..record + words].iter().map(|word| word.load(Relaxed)));
    }
    if moved.len() != live {
        return Err(MISCOUNTED);
    }
    for (n, slot) in slots.into_iter().enumerate() {
        put_slot(node, n, slot);
    }
    for (n, word) in moved.into_iter().enumerate() {
        page.words()[start / 8 + n].store(word, Relaxed);
    }
    page.set_u16(HEAP, live as u16);
    page.set_u16(GARBAGE, 0);
    debug_assert_eq!(heap_start(node), start, "a compacted heap does not begin at its first record");
    Ok(())
}

/// Removes a slot; its record becomes garbage.
pub(super) fn remove(page: Page<'_>, slot: u16) -> Result {
    let node = checked(page, page.page_type() == PageType::Leaf as u8)?;
    let (_, words) = checked_slot(node, slot.into())?;
    if usize::from(slot) < node.first_slot() {
        return Err("the child at a node's lower fence cannot go");
    }
    remove_slot(node, slot.into(), words);
    Ok(())
}

fn remove_slot(node: Node<'_>, slot: usize, words: usize) {
    debug_assert!(slot < node.count(), "a slot is removed that the node does not have");
    let page = node.page();
    let first = node.slots_at() / 8 + slot;
    page.move_words(first + 1, first, node.count() - slot - 1);
    page.set_u16(COUNT, node.count() as u16 - 1);
    debug_assert_eq!(Node::new(page).count() + 1, node.count(), "a removal takes one slot");
    if node.count() - 1 <= node.first_slot() {
        page.set_u8(SKIP, 0);
    }
    if node.count() == 1 {
        page.set_u16(HEAP, 0);
        page.set_u16(GARBAGE, 0);
    } else {
        add(page, GARBAGE, words);
    }
}

/// Replaces the version header and the value of a leaf's record.
pub(super) fn leaf_replace(page: Page<'_>, slot: u16, header: EntryHeader, value: &[u8]) -> Result {
    let node = checked(page, true)?;
    let (at, old) = checked_slot(node, slot.into())?;
    let body = Body::Leaf(header, value);
    let new = body.words(at.suffix_len());
    if new > old + node.free_words() {
        return Err(NO_ROOM);
    }
    let mut suffix = Vec::new();
    node.suffix_into(slot.into(), &mut suffix);
    if new <= old {
        body.write(page, at.record(), &suffix);
        add(page, GARBAGE, old - new);
        return Ok(());
    }
    if needs_compaction(node, node.count(), new) {
        // Before anything changes.
        check_heap(node)?;
    }
    remove_slot(node, slot.into(), old);
    let inserted = insert(Node::new(page), slot.into(), &suffix, body);
    debug_assert!(inserted.is_ok(), "a record was removed, and what replaces it cannot be inserted");
    inserted
}

/// Replaces the version header of a leaf's record.
pub(super) fn leaf_header(page: Page<'_>, slot: u16, header: EntryHeader) -> Result {
    let (slot, _) = checked_slot(checked(page, true)?, slot.into())?;
    let [a, b] = header.words();
    page.set_u64(slot.record(), a);
    page.set_u64(slot.record() + 8, b);
    Ok(())
}

/// Reduces a node to the slots `from..to` and to narrower fences.
pub(super) fn keep(
    page: Page<'_>,
    id: PageId,
    slots: [u16; 2],
    lower: &[u8],
    upper: Option<&[u8]>,
) -> Result {
    let leaf = page.page_type() == PageType::Leaf as u8;
    let node = checked(page, leaf)?;
    let [from, to] = slots.map(usize::from);
    if from > to || to > node.count() {
        return Err(NO_SLOT);
    }
    for n in from..to {
        checked_slot(node, n)?;
    }
    let prefix = prefix_of(lower, upper);
    let mut list = NodeList::default();
    list.push_node(node, from, to);
    let mut cut = lower.to_vec();
    cut.truncate(prefix);
    if (0..list.len()).any(|n| !list.key(n).starts_with(&cut)) {
        return Err("a key lies outside the new fences");
    }
    let lsn = page.lsn();
    build(page, id, node.level(), lower, upper, &list.image(lower, upper))?;
    page.set_lsn(lsn);
    debug_assert_eq!(Node::new(page).count(), to - from, "a node keeps other slots than it should");
    Ok(())
}

/// Makes the page a node with these fences and records, whatever it held before.
pub(super) fn build(
    page: Page<'_>,
    id: PageId,
    level: u8,
    lower: &[u8],
    upper: Option<&[u8]>,
    image: &[u8],
) -> Result {
    let leaf = level == 0;
    let mut words = 0;
    let mut count = 0;
    for record in NodeImage(image) {
        let ImageRecord { suffix, body } = record?;
        words += Body::of(leaf, body)?.words(suffix.len());
        count += 1;
    }
    if NODE_HEADER + (count + words + fence_words(lower, upper)) * 8 > page.len() {
        return Err(NO_ROOM);
    }
    page.format(id, if leaf { PageType::Leaf } else { PageType::Inner }, level);
    page.set_u16(FLAGS, upper.map_or(0, |_| HAS_UPPER));
    page.set_u16(COUNT, count as u16);
    page.set_u16(HEAP, words as u16);
    page.set_u16(PREFIX, prefix_of(lower, upper) as u16);
    page.set_u16(LOWER_LEN, lower.len() as u16);
    page.set_u16(UPPER_LEN, upper.map_or(0, <[u8]>::len) as u16);
    page.write(NODE_HEADER, lower);
    page.write(NODE_HEADER + lower.len().next_multiple_of(8), upper.unwrap_or(&[]));
    let node = Node::new(page);
    let mut record = page.len() - words * 8;
    for (n, logged) in NodeImage(image).enumerate() {
        let ImageRecord { suffix, body } = logged?;
        let body = Body::of(leaf, body)?;
        put_slot(node, n, Slot::new(0, record, suffix.len()));
        body.write(page, record, suffix);
        record += body.words(suffix.len()) * 8;
    }
    set_skip(node, node.best_skip());
    debug_assert_eq!(record, page.len(), "the records of a new node do not fill its heap");
    debug_assert_eq!(Node::new(page).count(), count, "a new node has another number of slots than its image");
    debug_assert!(checked(page, leaf).is_ok(), "the areas of a new node overlap");
    Ok(())
}
