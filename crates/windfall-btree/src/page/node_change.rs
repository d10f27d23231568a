//! Changes of a node: the page operations of the tree, applied at run time and by recovery alike.
//!
//! **Purpose.** Insert, replace and remove records, freeze the records of a leaf, reduce a node to a range, build a
//! node from a list.
//!
//! **Invariants.** The result depends only on the page's content and the operation, compaction included (test:
//! `behaves_as_a_map_4k`). Everything is checked before the first word is written: on an error the page is unchanged
//! (checked by `page/fuzz.rs::redo`). No code here trusts the page's own counts and offsets, which may be damaged when
//! recovery reads them (test: `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`).

use core::{cmp::Ordering, ops::Range};

use super::{
    Page, PageType,
    fence::{CHECKSUM, Fence, Fences, are_short, fence_bytes, prefix_of},
    node::{
        COUNT, FLAGS, GARBAGE, HAS_UPPER, HEAP, LOWER_IS_CUT, LOWER_LEN, NODE_HEADER, Node, PREFIX, SKIP,
        SLOT, Slot, UPPER_IS_CUT, UPPER_LEN,
    },
    node_build::NodeImage,
    record::{EntryHeader, Fixed, LENGTH_MAX, Record},
};
use crate::ids::{PageId, PageNo, TrxId};

type Result<T = (), E = &'static str> = core::result::Result<T, E>;

const NO_NODE: &str = "the page is not a node of that kind";
const NO_SLOT: &str = "the node has no such slot";
const NO_ROOM: &str = "the record does not fit the node";
const MISCOUNTED: &str = "the node's garbage is miscounted";
const OUTSIDE_FENCES: &str = "a key lies outside the new fences";
const LONG_FENCE: &str = "a fence is too long for the node";
/// Records of this many bytes on average are laid out in key order by a split. A line of the processor's cache has 64.
const LONG_RECORD: usize = 128;
const OUTSIDE: &str = "a record lies outside the node's heap";

/// Returns the page as a node, after checking that its areas lie within the page and do not overlap.
pub(super) fn checked(page: Page<'_>, leaf: bool) -> Result<Node<'_>> {
    let node = Node::new(page);
    if !(if leaf { node.is_leaf() } else { node.is_inner() }) {
        return Err(NO_NODE);
    }
    let (lower, upper) = (usize::from(page.u16(LOWER_LEN)), page.u16(UPPER_LEN));
    let used = usize::from(page.u16(COUNT)) * SLOT + usize::from(page.u16(HEAP));
    if node.slots_at() + used > page.len()
        || page.u16(GARBAGE) > page.u16(HEAP)
        || node.prefix_len() > if node.has_upper() { lower } else { 0 }
        || upper > 0 && !node.has_upper()
        || !node.has_known_flags()
    {
        return Err("the node's header contradicts itself");
    }
    Ok(node)
}

/// Returns the offset of the heap. Must be called with a [`checked`] node.
fn heap_start(node: Node<'_>) -> usize {
    node.page().len() - usize::from(node.page().u16(HEAP))
}

/// Returns a slot and the lengths of its record, after checking that the record lies within the heap.
pub(super) fn checked_slot(node: Node<'_>, slot: usize) -> Result<(Slot, Fixed)> {
    if slot < node.count() { checked_record(node, slot, heap_start(node)) } else { Err(NO_SLOT) }
}

/// As [`checked_slot`], for each slot of a range that the node has.
pub(super) fn checked_slots(
    node: Node<'_>,
    slots: Range<usize>,
) -> impl Iterator<Item = Result<(usize, Slot, Fixed)>> {
    let heap = heap_start(node);
    slots.map(move |n| checked_record(node, n, heap).map(|(slot, fixed)| (n, slot, fixed)))
}

#[inline]
fn checked_record(node: Node<'_>, slot: usize, heap: usize) -> Result<(Slot, Fixed)> {
    let slot = node.slot(slot);
    let fixed = node.fixed(slot);
    if slot.record() < heap || slot.record() + fixed.bytes() > node.page().len() {
        return Err(OUTSIDE);
    }
    if !fixed.is_known() {
        return Err("a record has an info byte that no record has");
    }
    Ok((slot, fixed))
}

/// Returns whether a node with this many slots must be compacted before it takes a record of this many bytes.
fn needs_compaction(node: Node<'_>, slots: usize, bytes: usize) -> bool {
    heap_start(node) < node.slots_at() + slots * SLOT + bytes
}

/// Checks that the heap consists of the records and of garbage, so that the node can be compacted. Must be called with
/// a [`checked`] node.
pub(super) fn check_heap(node: Node<'_>) -> Result {
    let mut live = 0;
    for record in checked_slots(node, 0..node.count()) {
        live += record?.2.bytes();
    }
    let garbage = usize::from(node.page().u16(GARBAGE));
    if live + garbage == node.page().u16(HEAP).into() { Ok(()) } else { Err(MISCOUNTED) }
}

/// Checks that a change for which the node has room cannot fail: the removal of the record in `slot`, if given, or a
/// change of its header that takes no more bytes, and the insert of a record of `bytes` in its place, if that is not 0.
///
/// # Errors
/// A description of the contradiction in the node.
pub fn check_change(node: Node<'_>, slot: Option<usize>, bytes: usize) -> Result {
    let present = slot.map_or(Ok(0), |slot| checked_slot(node, slot).map(|(_, fixed)| fixed.bytes()))?;
    // The removed record becomes garbage.
    if usize::from(node.page().u16(GARBAGE)) + present > node.page().u16(HEAP).into() {
        return Err(MISCOUNTED);
    }
    if bytes > present && needs_compaction(node, node.count() + 1, bytes) {
        check_heap(node)?;
    }
    Ok(())
}

fn add(page: Page<'_>, field: usize, n: usize) {
    page.set_u16(field, page.u16(field).wrapping_add(n as u16));
}

fn put_slot(node: Node<'_>, slot: usize, value: Slot) {
    node.page().set_u32(node.slots_at() + slot * SLOT, value.0);
}

/// Inserts a leaf's record.
pub(super) fn leaf_insert(
    page: Page<'_>,
    slot: u16,
    header: EntryHeader,
    suffix: &[u8],
    value: &[u8],
) -> Result {
    insert(checked(page, true)?, slot.into(), Record::Leaf { header, suffix, value })
}

/// Inserts an inner node's record.
pub(super) fn inner_insert(page: Page<'_>, slot: u16, child: PageNo, suffix: &[u8]) -> Result {
    insert(checked(page, false)?, slot.into(), Record::Inner { child, suffix })
}

fn insert(node: Node<'_>, slot: usize, record: Record<'_>) -> Result {
    let page = node.page();
    let bytes = record.bytes();
    if slot > node.count() || slot < node.first_slot() {
        return Err(NO_SLOT);
    }
    if !record.has_lengths() || node.free_bytes() < SLOT + bytes {
        return Err(NO_ROOM);
    }
    if needs_compaction(node, node.count() + 1, bytes) {
        compact(node, None)?;
    }
    debug_assert!(
        node.slots_at() + (node.count() + 1) * SLOT + bytes <= heap_start(node),
        "a record was assigned room that its node does not have"
    );
    let at = heap_start(node) - bytes;
    let first = node.slots_at() / SLOT;
    page.move_halves_up(first + slot, first + node.count());
    put_slot(node, slot, Slot::new(0, at));
    record.write(page, at);
    add(page, COUNT, 1);
    add(page, HEAP, bytes);
    debug_assert_eq!(Node::new(page).count(), node.count() + 1, "an insert adds one slot");
    debug_assert_eq!(heap_start(node), at, "an inserted record is not the first of the heap");
    let node = Node::new(page);
    let skip = node.skip();
    // Only a new first or last key can lack the shared bytes, and `best_skip` compares these two.
    let is_end = slot == node.first_slot() || slot + 1 == node.count();
    if node.count().is_power_of_two() || (skip > 0 && is_end && node.best_skip() < skip) {
        set_skip(node, node.best_skip());
    } else {
        put_slot(node, slot, Slot::new(node.head_with(slot, skip), at));
    }
    debug_assert!(checked(page, node.is_leaf()).is_ok(), "the areas of a node overlap after an insert");
    Ok(())
}

/// Sets the skip, and updates all heads.
fn set_skip(node: Node<'_>, skip: usize) {
    debug_assert!(u8::try_from(skip).is_ok(), "a skip does not fit its field");
    for n in 0..node.count() {
        put_slot(node, n, Slot::new(node.head_with(n, skip), node.slot(n).record()));
    }
    node.page().set_u8(SKIP, skip as u8);
}

/// Returns the bytes that live records take.
fn live_bytes(page: Page<'_>) -> usize {
    usize::from(page.u16(HEAP)).saturating_sub(page.u16(GARBAGE).into())
}

/// Moves the live records together at the page's end, in slot order, except that of slot `without`, which the caller
/// replaces.
fn compact(node: Node<'_>, without: Option<usize>) -> Result {
    let page = node.page();
    gather(node, |n, slot, fixed, moved| {
        let stays = without != Some(n);
        if stays {
            page.append_to(slot.record(), fixed.bytes(), moved);
        }
        stays
    })
}

/// Rewrites the heap: it is what `append` appends for the slots, one after the other, no more than the record takes
/// now. A slot for which that returns `false` is left to the caller.
fn gather(node: Node<'_>, append: impl Fn(usize, Slot, Fixed, &mut Vec<u8>) -> bool) -> Result {
    let page = node.page();
    let mut live = 0;
    let mut moved = Vec::with_capacity(live_bytes(page));
    let mut slots = Vec::with_capacity(node.count());
    for record in checked_slots(node, 0..node.count()) {
        let (n, slot, fixed) = record?;
        live += fixed.bytes();
        let at = moved.len();
        if append(n, slot, fixed, &mut moved) {
            slots.push((n, slot.head(), at));
        }
    }
    if live != live_bytes(page) {
        return Err(MISCOUNTED);
    }
    debug_assert!(moved.len() <= live, "gathered records take more bytes than before");
    let start = page.len() - moved.len();
    debug_assert!(node.slots_at() + node.count() * SLOT <= start, "live records reach into the slots");
    for (n, head, at) in slots {
        put_slot(node, n, Slot::new(head, start + at));
    }
    page.write(start, &moved);
    page.set_u16(HEAP, moved.len() as u16);
    page.set_u16(GARBAGE, 0);
    debug_assert_eq!(heap_start(node), start, "a compacted heap does not begin at its first record");
    Ok(())
}

/// Removes a slot; its record becomes garbage.
pub(super) fn remove(page: Page<'_>, slot: u16) -> Result {
    let node = checked(page, page.page_type() == PageType::Leaf as u8)?;
    let (_, fixed) = checked_slot(node, slot.into())?;
    if usize::from(slot) < node.first_slot() {
        return Err("the child at a node's lower fence cannot go");
    }
    remove_slot(node, slot.into(), fixed.bytes());
    Ok(())
}

fn remove_slot(node: Node<'_>, slot: usize, bytes: usize) {
    debug_assert!(slot < node.count(), "a slot is removed that the node does not have");
    let page = node.page();
    let first = node.slots_at() / SLOT;
    page.move_halves_down(first + slot + 1, first + node.count());
    page.set_u16(COUNT, node.count() as u16 - 1);
    debug_assert_eq!(Node::new(page).count() + 1, node.count(), "a removal takes one slot");
    if node.count() - 1 <= node.first_slot() {
        page.set_u8(SKIP, 0);
    }
    if node.count() == 1 {
        page.set_u16(HEAP, 0);
        page.set_u16(GARBAGE, 0);
    } else {
        add(page, GARBAGE, bytes);
    }
}

/// Replaces the version header and the value of a leaf's record.
pub(super) fn leaf_replace(page: Page<'_>, slot: u16, header: EntryHeader, value: &[u8]) -> Result {
    let node = checked(page, true)?;
    let (at, fixed) = checked_slot(node, slot.into())?;
    if value.len() == fixed.value && header.bytes(fixed.suffix + fixed.value) == fixed.header_bytes() {
        // Nothing moves, and the suffix stays.
        page.write(at.record() + fixed.start + fixed.suffix, value);
        fixed.set_header(page, at.record(), header);
        return Ok(());
    }
    let mut suffix = Vec::with_capacity(fixed.suffix);
    node.suffix_into(slot.into(), &mut suffix);
    replace(node, slot.into(), Record::Leaf { header, suffix: &suffix, value })
}

/// Replaces the version header of a leaf's record.
pub(super) fn leaf_header(page: Page<'_>, slot: u16, header: EntryHeader) -> Result {
    let node = checked(page, true)?;
    let (at, fixed) = checked_slot(node, slot.into())?;
    if let Some(rest) = fixed.header_bytes().checked_sub(header.bytes(fixed.suffix + fixed.value)) {
        fixed.set_header(page, at.record(), header);
        add(page, GARBAGE, rest);
        return Ok(());
    }
    let mut record = Vec::with_capacity(fixed.suffix + fixed.value);
    page.append_to(at.record() + fixed.start, fixed.suffix + fixed.value, &mut record);
    let (suffix, value) = record.split_at(fixed.suffix);
    replace(node, slot.into(), Record::Leaf { header, suffix, value })
}

/// Replaces a leaf's record by one with the same suffix, in place if it takes no more bytes.
fn replace(node: Node<'_>, slot: usize, record: Record<'_>) -> Result {
    let page = node.page();
    let (at, fixed) = checked_slot(node, slot)?;
    let (old, new) = (fixed.bytes(), record.bytes());
    if !record.has_lengths() || new > old + node.free_bytes() {
        return Err(NO_ROOM);
    }
    if new <= old {
        record.write(page, at.record());
        add(page, GARBAGE, old - new);
        return Ok(());
    }
    if needs_compaction(node, node.count(), new) {
        compact(node, Some(slot))?;
    } else {
        add(page, GARBAGE, old);
    }
    debug_assert!(
        node.slots_at() + node.count() * SLOT + new <= heap_start(node),
        "a record was assigned room that its node does not have"
    );
    let moved = heap_start(node) - new;
    put_slot(node, slot, Slot::new(at.head(), moved));
    record.write(page, moved);
    add(page, HEAP, new);
    debug_assert!(checked(page, true).is_ok(), "the areas of a node overlap after a replacement");
    Ok(())
}

/// Returns the bytes that freezing the versions of transactions below this one frees in a leaf. If it succeeds, so does
/// the freeze.
///
/// # Errors
/// A description of the contradiction in the node.
pub fn freezable_bytes(page: Page<'_>, below: TrxId) -> Result<usize> {
    let node = checked(page, true)?;
    let (mut live, mut freezable) = (0, 0);
    for record in checked_slots(node, 0..node.count()) {
        let (_, slot, fixed) = record?;
        live += fixed.bytes();
        if fixed.is_frozen_below(below, page, slot.record()) {
            freezable += fixed.header_bytes();
        }
    }
    if live == live_bytes(page) { Ok(freezable) } else { Err(MISCOUNTED) }
}

/// Freezes the records of a leaf with versions of transactions below this one.
pub(super) fn leaf_freeze(page: Page<'_>, below: TrxId) -> Result {
    let node = checked(page, true)?;
    gather(node, |_, slot, fixed, moved| {
        let at = slot.record();
        if fixed.is_frozen_below(below, page, at) {
            fixed.append_frozen(page, at, moved);
        } else {
            page.append_to(at, fixed.bytes(), moved);
        }
        true
    })
}

/// Reduces a node to the slots `from..to` and to narrower fences. If there is room for the fences, each record keeps
/// its place and loses the beginning of its suffix; what it and the records of other slots leave is garbage. Long
/// records that are not nearly in key order move, and so do records that overlap in a damaged node, which is sound
/// afterwards.
pub(super) fn keep(page: Page<'_>, id: PageId, slots: [u16; 2], fences: Fences<'_>) -> Result {
    let leaf = page.page_type() == PageType::Leaf as u8;
    let node = checked(page, leaf)?;
    let [from, to] = slots.map(usize::from);
    if from > to || to > node.count() {
        return Err(NO_SLOT);
    }
    let shared = &fences.0.bytes[..prefix_of(fences)];
    let mut was = Vec::with_capacity(node.prefix_len());
    page.append_to(NODE_HEADER, node.prefix_len(), &mut was);
    if !was.iter().zip(shared).all(|(was, is)| was == is) {
        return Err(OUTSIDE_FENCES);
    }
    // A shorter prefix leaves longer suffixes.
    let (behind, added) = (shared.get(was.len()..).unwrap_or(&[]), was.get(shared.len()..).unwrap_or(&[]));
    // Where each record begins afterwards if its end stays where it is, and its bytes before the rest of the suffix.
    let mut starts = Vec::with_capacity(to - from);
    let mut extents = Vec::with_capacity(to - from);
    let (mut live, mut heap, mut is_in_place) = (0, page.len(), added.is_empty());
    for record in checked_slots(node, from..to) {
        let (n, slot, fixed) = record?;
        // The first record of an inner node has no suffix.
        let cut = if !leaf && n == from { fixed.suffix } else { behind.len() };
        let begins = || page.compare(slot.record() + fixed.start, cut, behind) == Ordering::Equal;
        if (leaf || n > from) && (fixed.suffix < cut || !begins()) {
            return Err(OUTSIDE_FENCES);
        }
        if added.len() + fixed.suffix - cut > LENGTH_MAX {
            return Err(NO_ROOM);
        }
        let (start, bytes, end) = fixed.cut(leaf, (page, slot.record()), cut);
        let at = slot.record() + fixed.start + cut - bytes;
        live += end - at;
        heap = heap.min(at);
        is_in_place &= end <= slot.record() + fixed.bytes();
        starts.push((at, start, bytes));
        extents.push((slot.record(), slot.record() + fixed.bytes()));
    }
    // A scan finds long records in the processor's cache if they lie in key order: the cache reads ahead.
    let descents = extents.windows(2).filter(|pair| pair[0] > pair[1]).count();
    is_in_place &= live < LONG_RECORD * extents.len() || descents <= extents.len() / 8;
    // No check before a split looks for records that overlap, and one would be changed with the other.
    extents.sort_unstable();
    is_in_place &= extents.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    if !are_short(fences, page.len()) {
        return Err(LONG_FENCE);
    }
    let slots_end = NODE_HEADER + fence_bytes(fences, page.len()) + (to - from) * SLOT;
    if !is_in_place || slots_end > heap {
        return keep_moved(node, id, from..to, fences, (behind.len(), added));
    }
    let garbage = (page.len() - heap).checked_sub(live).ok_or(MISCOUNTED)?;
    for (at, start, bytes) in &starts {
        page.write(*at, &start[..*bytes]);
    }
    page.set_u16(HEAP, (page.len() - heap) as u16);
    page.set_u16(GARBAGE, garbage as u16);
    put_slots(page, fences, starts.iter().map(|(at, ..)| *at));
    debug_assert!(checked(page, leaf).is_ok(), "the areas of a reduced node overlap");
    Ok(())
}

/// As [`keep`], of a node in which the records must move.
fn keep_moved(
    node: Node<'_>,
    id: PageId,
    slots: Range<usize>,
    fences: Fences<'_>,
    (cut, added): (usize, &[u8]),
) -> Result {
    let (page, leaf) = (node.page(), node.is_leaf());
    let mut image = Vec::with_capacity(live_bytes(page));
    let mut offsets = Vec::with_capacity(slots.len());
    for record in checked_slots(node, slots.clone()) {
        let (n, slot, fixed) = record?;
        let behind = if !leaf && n == slots.start { (fixed.suffix, &[][..]) } else { (cut, added) };
        offsets.push(image.len());
        fixed.append_behind(leaf, (page, slot.record()), behind, &mut image);
    }
    let lsn = page.lsn();
    lay_out(page, id, node.level(), fences, (&image, &offsets))?;
    page.set_lsn(lsn);
    debug_assert_eq!(Node::new(page).count(), slots.len(), "a node keeps other slots than it should");
    Ok(())
}

/// Writes a fence without its first bytes. Returns the bytes that it takes.
fn put_fence(page: Page<'_>, at: usize, fence: Fence<&[u8]>, from: usize) -> usize {
    let rest = &fence.bytes[from..];
    page.write(at, rest);
    let Some(checksum) = fence.checksum else { return rest.len() };
    page.write(at + rest.len(), &checksum.to_le_bytes());
    rest.len() + CHECKSUM
}

/// Makes the page a node with these fences and records, whatever it held before.
pub(super) fn build(page: Page<'_>, id: PageId, level: u8, fences: Fences<'_>, image: &[u8]) -> Result {
    let leaf = level == 0;
    let mut offsets = Vec::with_capacity(image.len() / 32);
    for record in NodeImage::new(leaf, image) {
        let (at, record) = record?;
        if !leaf && offsets.is_empty() && !record.suffix().is_empty() {
            return Err("a node's first child has a key of its own");
        }
        offsets.push(at);
    }
    lay_out(page, id, level, fences, (image, &offsets))
}

/// Makes the page a node with these fences and an image whose records have these offsets.
fn lay_out(
    page: Page<'_>,
    id: PageId,
    level: u8,
    fences: Fences<'_>,
    (image, offsets): (&[u8], &[usize]),
) -> Result {
    let leaf = level == 0;
    let count = offsets.len();
    if !are_short(fences, page.len()) {
        return Err(LONG_FENCE);
    }
    if NODE_HEADER + fence_bytes(fences, page.len()) + count * SLOT + image.len() > page.len() {
        return Err(NO_ROOM);
    }
    page.format(id, if leaf { PageType::Leaf } else { PageType::Inner }, level);
    page.set_u16(HEAP, image.len() as u16);
    let heap = page.len() - image.len();
    page.write(heap, image);
    put_slots(page, fences, offsets.iter().map(|at| heap + at));
    debug_assert_eq!(Node::new(page).count(), count, "a new node has another number of slots than its image");
    debug_assert!(checked(page, leaf).is_ok(), "the areas of a new node overlap");
    Ok(())
}

/// Gives a node these fences, and a slot for each record in its heap, at these offsets.
fn put_slots(page: Page<'_>, fences: Fences<'_>, records: impl ExactSizeIterator<Item = usize>) {
    let prefix = prefix_of(fences);
    let (lower, upper) = fences;
    let cut = |fence: Option<Fence<_>>, flag| fence.and_then(|fence| fence.checksum).map_or(0, |_| flag);
    let has_upper = upper.map_or(0, |_| HAS_UPPER);
    page.set_u16(FLAGS, has_upper | cut(Some(lower), LOWER_IS_CUT) | cut(upper, UPPER_IS_CUT));
    page.set_u16(COUNT, records.len() as u16);
    page.set_u16(PREFIX, prefix as u16);
    let lower_len = put_fence(page, NODE_HEADER, lower, 0);
    let upper_len = upper.map_or(0, |upper| put_fence(page, NODE_HEADER + lower_len, upper, prefix));
    page.set_u16(LOWER_LEN, lower_len as u16);
    page.set_u16(UPPER_LEN, upper_len as u16);
    let node = Node::new(page);
    let fences_end = NODE_HEADER + lower_len + upper_len;
    page.fill_zero(fences_end, node.slots_at() - fences_end);
    for (n, at) in records.enumerate() {
        put_slot(node, n, Slot::new(0, at));
    }
    set_skip(node, node.best_skip());
}

#[cfg(test)]
mod tests {
    use super::{
        super::{NodeList, PageOp, blank, check_entries, validate},
        *,
    };
    use crate::ids::{SpaceId, UndoPos};

    /// A node of the largest page holds a key that is longer than a record can state, if a fence has half of it.
    #[test]
    fn a_node_is_not_kept_with_a_key_that_its_record_cannot_state() {
        let id = PageId { space: SpaceId(77), page: PageNo(3) };
        let words = blank(65_536);
        let page = Page::new(&words);
        let lower = vec![7; 20_000];
        let (key, upper) = ([&lower[..], &vec![5; 20_000]].concat(), [&lower[..], &[9]].concat());
        let (lower, upper) = (Fence::whole(&lower[..]), Some(Fence::whole(&upper[..])));
        let mut list = NodeList::default();
        list.push_leaf(&key, EntryHeader::UNVERSIONED, b"value");
        let image = list.image(lower.bytes.len());
        let build = PageOp::NodeBuild { level: 0, lower, upper, image: &image };
        assert_eq!(build.apply(page, id), Ok(()));
        let content = || {
            let mut bytes = vec![0; page.len()];
            page.read(0, &mut bytes);
            bytes
        };
        let before = content();
        for upper in [None, Some(Fence::whole(&b"\x08"[..]))] {
            let keep = PageOp::NodeKeep { slots: [0, 1], lower: Fence::whole(b""), upper };
            assert_eq!(keep.apply(page, id), Err(NO_ROOM));
            assert!(content() == before, "an operation was refused and has changed the page");
        }
        let keep = PageOp::NodeKeep { slots: [0, 1], lower, upper };
        assert_eq!(keep.apply(page, id), Ok(()));
        assert_eq!(Node::new(page).find(&key), (0, true));
    }

    /// A check of entries does not look for records that overlap: one lies in the value of the next one here.
    #[test]
    fn a_node_with_records_that_overlap_is_reduced_to_a_sound_one() {
        let id = PageId { space: SpaceId(77), page: PageNo(3) };
        let key = |n: usize| [b'k', b'a' + n as u8];
        for inner in [0, 1] {
            for (lower, kept) in [(&b""[..], 6), (b"", 3), (b"k", 3), (b"k", 6)] {
                let words = blank(4096);
                let page = Page::new(&words);
                let mut list = NodeList::default();
                (0..6).for_each(|n| list.push_leaf(&key(n), EntryHeader::UNVERSIONED, &[n as u8; 20]));
                let image = list.image(0);
                let build =
                    PageOp::NodeBuild { level: 0, lower: Fence::whole(b""), upper: None, image: &image };
                assert_eq!(build.apply(page, id), Ok(()));
                let mut record = Vec::new();
                let stored =
                    Record::Leaf { header: EntryHeader::UNVERSIONED, suffix: &key(inner), value: b"!" };
                stored.encode(&mut record);
                let node = Node::new(page);
                let (at, _) = node.value_range(inner + 1);
                let left_out = node.record_bytes(inner) - record.len();
                page.write(at, &record);
                put_slot(node, inner, Slot::new(node.slot(inner).head(), at));
                page.set_u16(GARBAGE, left_out as u16);
                assert!(check_entries(page).is_ok() && validate(page).is_err());
                let entries = || {
                    let entry = |n| {
                        let mut entry = Vec::new();
                        (Node::new(page).entry_into(n, &mut entry), entry).1
                    };
                    (0..kept).map(entry).collect::<Vec<_>>()
                };
                let before = entries();
                let (lower, upper) = (Fence::whole(lower), Some(Fence::whole(&b"kg"[..])));
                let keep = PageOp::NodeKeep { slots: [0, kept as u16], lower, upper };
                assert_eq!(keep.apply(page, id), Ok(()), "record {inner}");
                assert!(validate(page).is_ok(), "record {inner}: {:?}", validate(page));
                assert_eq!(entries(), before, "record {inner}");
            }
        }
    }

    /// Where the slots' records begin in a leaf into which they were inserted from below, half of them kept by a split.
    fn places_after_a_split(value: usize) -> Vec<usize> {
        let id = PageId { space: SpaceId(77), page: PageNo(3) };
        let words = blank(4096);
        let page = Page::new(&words);
        let build = PageOp::NodeBuild { level: 0, lower: Fence::whole(b""), upper: None, image: &[] };
        assert_eq!(build.apply(page, id), Ok(()));
        for n in 0..16 {
            let (suffix, value) = (&[b'k', n as u8][..], &vec![n as u8; value][..]);
            let insert = PageOp::LeafInsert { slot: n, header: EntryHeader::UNVERSIONED, suffix, value };
            assert_eq!(insert.apply(page, id), Ok(()));
        }
        let (lower, upper) = (Fence::whole(&b"k"[..]), Some(Fence::whole(&b"k"[..])));
        assert_eq!(PageOp::NodeKeep { slots: [0, 8], lower, upper }.apply(page, id), Ok(()));
        assert!(validate(page).is_ok());
        (0..8).map(|n| Node::new(page).slot(n).record()).collect()
    }

    #[test]
    fn a_split_lays_long_records_in_key_order_and_leaves_short_ones_where_they_are() {
        assert!(places_after_a_split(LONG_RECORD).is_sorted());
        assert!(places_after_a_split(LONG_RECORD / 2).iter().rev().is_sorted());
    }

    const OLD: EntryHeader = EntryHeader { trx: TrxId(9), flags: 0, undo: UndoPos(70) };

    fn with(header: EntryHeader, flags: u16) -> EntryHeader {
        EntryHeader { flags, ..header }
    }

    /// Records with their headers after a freeze below transaction 10, and the bytes of header that it leaves out.
    fn records() -> Vec<(EntryHeader, usize, EntryHeader, usize)> {
        let (new, inserted) = (EntryHeader { trx: TrxId(10), ..OLD }, OLD.of_insert());
        let (deleted, overflow) = (EntryHeader::DELETED, EntryHeader::OVERFLOW);
        vec![
            (OLD, 5, EntryHeader::UNVERSIONED, 14),
            (inserted, 5, EntryHeader::UNVERSIONED, 6),
            (inserted, 0, EntryHeader::UNVERSIONED, 6),
            (EntryHeader::UNVERSIONED, 5, EntryHeader::UNVERSIONED, 0),
            (with(OLD, overflow), 20, with(EntryHeader::UNVERSIONED, overflow), 14),
            // Not old, needed by purge, or no shorter without its header.
            (new, 5, new, 0),
            (new.of_insert(), 5, new.of_insert(), 0),
            (EntryHeader { trx: TrxId::MAX, ..OLD }, 5, EntryHeader { trx: TrxId::MAX, ..OLD }, 0),
            (with(OLD, deleted), 5, with(OLD, deleted), 0),
            (with(OLD, deleted | overflow), 20, with(OLD, deleted | overflow), 0),
            (OLD, 94, EntryHeader::UNVERSIONED, 14),
            (OLD, 95, OLD, 0),
            (inserted, 95, inserted, 0),
            (OLD, 300, OLD, 0),
        ]
    }

    #[test]
    fn a_freeze_removes_the_headers_of_old_live_records_and_no_others() {
        let id = PageId { space: SpaceId(77), page: PageNo(3) };
        let words = blank(4096);
        let page = Page::new(&words);
        let build = PageOp::NodeBuild { level: 0, lower: Fence::whole(b""), upper: None, image: &[] };
        assert_eq!(build.apply(page, id), Ok(()));
        // In an order of their own, so that the records are not in the order of the slots, and with a hole.
        for (n, (header, length, ..)) in records().into_iter().enumerate().rev() {
            let insert =
                PageOp::LeafInsert { slot: 0, header, suffix: &[n as u8], value: &vec![n as u8; length] };
            assert_eq!(insert.apply(page, id), Ok(()));
        }
        let hole = PageOp::LeafInsert { slot: 0, header: OLD, suffix: b"", value: b"removed" };
        assert_eq!(hole.apply(page, id), Ok(()));
        assert_eq!(PageOp::NodeRemove { slot: 0 }.apply(page, id), Ok(()));
        let free = Node::new(page).free_bytes();
        let total: usize = records().into_iter().map(|(.., gain)| gain).sum();
        assert_eq!(freezable_bytes(page, TrxId(9)), Ok(0), "no transaction is older than 9");
        // What is frozen once has nothing left to freeze.
        for gain in [total, 0] {
            assert_eq!(freezable_bytes(page, TrxId(10)), Ok(gain));
            assert_eq!(PageOp::LeafFreeze { below: TrxId(10) }.apply(page, id), Ok(()));
            let node = validate(page).unwrap();
            for (n, (_, length, header, _)) in records().into_iter().enumerate() {
                let mut entry = Vec::new();
                assert_eq!(node.entry_into(n, &mut entry), (1, header));
                assert_eq!(entry, vec![n as u8; 1 + length]);
            }
            assert_eq!((page.u16(GARBAGE), node.free_bytes()), (0, free + total));
        }
    }

    #[test]
    fn a_page_that_is_no_sound_leaf_is_not_frozen() {
        let id = PageId { space: SpaceId(77), page: PageNo(3) };
        let words = blank(4096);
        let page = Page::new(&words);
        let freeze = PageOp::LeafFreeze { below: TrxId(10) };
        let mut list = NodeList::default();
        list.push_inner(b"", PageNo(9));
        let inner =
            PageOp::NodeBuild { level: 1, lower: Fence::whole(b""), upper: None, image: &list.image(0) };
        assert_eq!(inner.apply(page, id), Ok(()));
        assert_eq!(freeze.apply(page, id), Err(NO_NODE));
        list.clear();
        list.push_leaf(b"key", OLD, b"value");
        let leaf =
            PageOp::NodeBuild { level: 0, lower: Fence::whole(b""), upper: None, image: &list.image(0) };
        assert_eq!(leaf.apply(page, id), Ok(()));
        page.set_u16(HEAP, page.u16(HEAP) + 1);
        for below in [TrxId(0), TrxId(10)] {
            assert_eq!(freezable_bytes(page, below), Err(MISCOUNTED));
            assert_eq!(PageOp::LeafFreeze { below }.apply(page, id), Err(MISCOUNTED));
            assert_eq!(Node::new(page).header(0), OLD);
        }
    }
}
