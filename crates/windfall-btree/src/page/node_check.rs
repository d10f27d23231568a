//! The exact check of one node.
//!
//! **Purpose.** Checks the guarantees of the layout about a single page: its header when it is read and written
//! ([`check_header`]), its entries before they move to other nodes ([`check_entries`]), and the whole page for the
//! check of a tree ([`validate`]).
//!
//! **Invariants.** A check only reads (test: `a_check_changes_nothing`). A damaged page causes an error, never a panic,
//! whatever it holds (test: `reading_a_damaged_page_is_an_error_or_an_answer_but_no_panic`).

use core::cmp::Ordering as Order;

use super::{
    Page, PageType,
    fence::{Fence, are_short},
    node::{GARBAGE, HEAP, Node, key_limit},
    node_change::{check_heap, checked, checked_slots},
};

/// Checks that the page's header fits its type, and that the heap that it describes consists of the node's records and
/// of garbage: a change of a node relies on that. Keys and values are not looked at. Done for any page, whenever it is
/// read from disk or written to it.
///
/// # Errors
/// A description of the contradiction.
pub fn check_header(page: Page<'_>) -> Result<(), &'static str> {
    match PageType::from_u8(page.page_type()) {
        Some(PageType::Leaf | PageType::Inner) => check_node_header(page).and_then(check_heap),
        Some(_) if page.level() == 0 => Ok(()),
        Some(_) => Err(WRONG_LEVEL),
        None => Err("it is of no known type"),
    }
}

const WRONG_LEVEL: &str = "its level does not fit its type";

/// Checks that the page is a node, that its areas do not overlap, and that its prefix is that of its fences: a change
/// cuts the prefix off whole keys.
fn check_node_header(page: Page<'_>) -> Result<Node<'_>, &'static str> {
    let leaf = page.page_type() == PageType::Leaf as u8;
    let node = checked(page, leaf)?;
    if leaf != (node.level() == 0) {
        return Err(WRONG_LEVEL);
    }
    if !node.has_whole_prefix() {
        return Err("its prefix is not that of its fences");
    }
    Ok(node)
}

/// Checks that the page is a node with consistent parts.
///
/// # Errors
/// A description of the contradiction.
pub fn validate(page: Page<'_>) -> Result<Node<'_>, &'static str> {
    let node = check_entries(page)?;
    let extent = |n| (node.slot(n).record(), node.record_bytes(n));
    let mut extents: Vec<_> = (0..node.count()).map(extent).collect();
    extents.sort_unstable();
    if extents.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        return Err("two records overlap");
    }
    Ok(node)
}

/// As [`validate`], but does not look for records that overlap, which costs as much as all other checks. A node that is
/// built from these entries is sound.
///
/// # Errors
/// A description of the contradiction.
pub fn check_entries(page: Page<'_>) -> Result<Node<'_>, &'static str> {
    let node = check_node_header(page)?;
    let (lower, upper) = (node.lower_fence(), node.upper_fence());
    let (lower, upper) = (lower.as_deref(), upper.as_ref().map(Fence::as_deref));
    let limit = key_limit(page.len());
    if !are_short((lower, upper), page.len()) || upper.is_some_and(|upper| !lower.can_be_below(upper)) {
        return Err("its fences are out of order or too long");
    }
    let (mut live, mut last, mut before) = (0, 0, (0, 0));
    for record in checked_slots(node, 0..node.count()) {
        let (n, slot, fixed) = record?;
        fixed.check(node.is_leaf(), page, slot.record())?;
        live += fixed.bytes();
        if node.prefix_len() + fixed.suffix > limit {
            return Err("a key is too long");
        }
        if slot.head() != node.head_with(n, node.skip()) {
            return Err("a slot's head is not that of its key");
        }
        if n < node.first_slot() && fixed.suffix > 0 {
            return Err("its first child has a key of its own");
        }
        if n >= node.first_slot() && fixed.suffix < node.skip() {
            return Err("a key does not begin with what all share");
        }
        // If nothing is skipped, a head is the beginning of its suffix: a greater head means a greater key.
        let is_above = n > node.first_slot() && node.skip() == 0 && last < slot.head();
        let suffix = (slot.record() + fixed.start, fixed.suffix);
        if n > node.first_slot() && !is_above && node.compare_ranges(before, suffix) != Order::Less {
            return Err("its keys are out of order");
        }
        (last, before) = (slot.head(), suffix);
    }
    check_ends(node, lower)?;
    if node.skip() > 0 && node.best_skip() < node.skip() {
        return Err("its keys do not share what they should");
    }
    if live + usize::from(page.u16(GARBAGE)) != usize::from(page.u16(HEAP)) {
        return Err("its garbage is miscounted");
    }
    Ok(node)
}

/// Checks that the first and the last key, and so all in order between them, lie within the fences, as far as the node
/// can tell. The lower fence itself is the key of an inner node's slot 0.
fn check_ends(node: Node<'_>, lower: Fence<&[u8]>) -> Result<(), &'static str> {
    let Some(last) = node.count().checked_sub(1) else {
        return if node.is_leaf() { Ok(()) } else { Err("an inner node without a child") };
    };
    let first = node.first_slot();
    if first > last {
        return Ok(());
    }
    let key = |slot| {
        let mut key = Vec::new();
        node.key_into(slot, &mut key);
        key
    };
    let begin = key(first);
    let is_outside = node.contains(&begin) == Some(false) || node.contains(&key(last)) == Some(false);
    if is_outside {
        return Err("a key lies outside the fences");
    }
    if node.is_inner() && lower.is_same(Fence::whole(&begin)) {
        return Err("its keys are out of order");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{
            EntryHeader, NodeList, PageOp, blank,
            fence::prefix_of,
            node::{PREFIX, SLOT},
        },
        *,
    };
    use crate::{
        ids::{PageId, PageNo, SpaceId, TrxId, UndoPos},
        sync::atomic::Ordering::Relaxed,
    };

    const ID: PageId = PageId { space: SpaceId(77), page: PageNo(3) };

    /// An insert into a node whose heap is said to be smaller than it is would overwrite a record.
    #[test]
    fn a_header_has_the_heap_of_its_records_and_no_other() {
        let words = blank(4096);
        let page = Page::new(&words);
        let build = PageOp::NodeBuild { level: 0, lower: Fence::whole(b""), upper: None, image: &[] };
        assert_eq!(build.apply(page, ID), Ok(()));
        for (slot, suffix) in (0..).zip([&b"a"[..], b"bcd", b"cdefghijkl"]) {
            let header = EntryHeader::new(TrxId(1), UndoPos(2));
            let insert = PageOp::LeafInsert { slot, header, suffix, value: b"value" };
            assert_eq!(insert.apply(page, ID), Ok(()));
        }
        let heap = page.u16(HEAP);
        for other in 0..200 {
            page.set_u16(HEAP, other);
            assert_eq!(check_header(page).is_ok(), other == heap, "{other} bytes of heap, and not {heap}");
        }
    }

    const OTHER: &str = "a record is not in its stored form";
    const UNKNOWN: &str = "a record has an info byte that no record has";

    /// Records of a leaf, as they may be stored and as they may not.
    const STORED: [(&[u8], Result<(), &str>); 16] = [
        (b"\0\x03key", Ok(())),
        (b"\x01\x03key\x07\0\0\0\0\0", Ok(())),
        (b"\x02\x03key\x07\0\0\0\0\0\x01\0\0\0\0\0\0\0", Ok(())),
        (b"\x06\x03key\0\0\0\0\0\0\0\0\0\0\0\0\0\0", Ok(())),
        (b"\x10\x03\x01key!", Ok(())),
        (b"\x30\x03\x01key!", Ok(())),
        // Headers that say less than they could.
        (b"\x01\x03key\0\0\0\0\0\0", Err(OTHER)),
        (b"\x02\x03key\x07\0\0\0\0\0\0\0\0\0\0\0\0\0", Err(OTHER)),
        // A mark without a header; lengths that take more bytes than they need.
        (b"\x04\x03key", Err(OTHER)),
        (b"\0\x80\x03key", Err(OTHER)),
        (b"\x10\x03\x80\x01key!", Err(OTHER)),
        // A value of no bytes, also before a header; a form and a bit that do not exist; two kinds of value.
        (b"\x10\x03\0key", Err(UNKNOWN)),
        (b"\x12\x03\0key\x07\0\0\0\0\0\x01\0\0\0\0\0\0\0", Err(UNKNOWN)),
        (b"\x03\x03key", Err(UNKNOWN)),
        (b"\x40\x03key", Err(UNKNOWN)),
        (b"\x38\x03\x01key!", Err(UNKNOWN)),
    ];

    /// Makes the page a node whose last record is stored like this.
    fn store(page: Page<'_>, level: u8, stored: &[u8]) {
        let mut list = NodeList::default();
        if level > 0 {
            list.push_inner(b"", PageNo(5));
            list.push_inner(b"key", PageNo(6));
        } else {
            list.push_leaf(b"key", EntryHeader::UNVERSIONED, b"");
        }
        let image = list.image(0);
        let build = PageOp::NodeBuild { level, lower: Fence::whole(b""), upper: None, image: &image };
        assert_eq!(build.apply(page, ID), Ok(()));
        // At another place than the record that was built.
        let last = usize::from(level > 0);
        let (old, heap) = (Node::new(page).record_bytes(last), image.len() + stored.len());
        page.set_u16(Node::new(page).slots_at() + last * SLOT, (4096 - heap) as u16);
        page.write(4096 - heap, stored);
        page.set_u16(HEAP, heap as u16);
        page.set_u16(GARBAGE, old as u16);
    }

    #[test]
    fn a_check_changes_nothing() {
        let words = blank(4096);
        let page = Page::new(&words);
        let content = || words.iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>();
        for (stored, _) in STORED {
            for level in [0, 1] {
                store(page, level, stored);
                let before = content();
                let _ = (check_header(page), check_entries(page), validate(page));
                assert!(content() == before, "{stored:x?} on level {level} was changed");
            }
        }
    }

    /// A record has one form only, so that a replay makes the same page.
    #[test]
    fn a_record_in_another_form_is_refused() {
        let words = blank(4096);
        let page = Page::new(&words);
        for (stored, expected) in STORED {
            store(page, 0, stored);
            assert_eq!(check_entries(page).map(drop), expected, "{stored:x?}");
        }
        for (stored, expected) in
            [(&b"\x03\x06\0\0\0key"[..], Ok(())), (b"\x80\x03\x06\0\0\0key", Err(OTHER))]
        {
            store(page, 1, stored);
            assert_eq!(check_entries(page).map(drop), expected, "{stored:x?}");
        }
    }

    /// A change does not check the form of the record. It is refused, or leaves the heap as its header describes it,
    /// and the key and the value as they are.
    #[test]
    fn a_change_of_a_record_in_another_form_is_refused_or_counted() {
        let words = blank(4096);
        let page = Page::new(&words);
        let content = || {
            let mut content = Vec::new();
            let (key, _) = Node::new(page).entry_into(0, &mut content);
            (key, content)
        };
        let undone = EntryHeader { trx: TrxId(5), ..EntryHeader::UNVERSIONED };
        for (stored, expected) in STORED {
            for header in [EntryHeader::UNVERSIONED, undone, EntryHeader::new(TrxId(5), UndoPos(6))] {
                store(page, 0, stored);
                let before = content();
                let done = PageOp::LeafHeader { slot: 0, header }.apply(page, ID);
                assert_eq!(done.is_err(), expected == Err(UNKNOWN), "{stored:x?}: {done:?}");
                if done.is_ok() {
                    assert_eq!(check_header(page), Ok(()), "{stored:x?}, {header:?}");
                    assert_eq!((Node::new(page).header(0), content()), (header, before), "{stored:x?}");
                }
            }
        }
    }

    /// With a shorter prefix, as in a merged node, its record could not state its length.
    #[test]
    fn a_key_that_is_longer_than_a_tree_takes_is_refused() {
        let words = blank(65_536);
        let page = Page::new(&words);
        let limit = key_limit(page.len());
        let lower = vec![7; limit];
        let upper = [&lower[..limit - 1], &[8]].concat();
        for len in [limit, limit + 1, 40_000] {
            let expected = if len > limit { Err("a key is too long") } else { Ok(()) };
            let key = [&lower[..], &vec![0; len - limit][..]].concat();
            let mut list = NodeList::default();
            list.push_leaf(&key, EntryHeader::UNVERSIONED, b"");
            let image = list.image(lower.len() - 1);
            let (lower, upper) = (Fence::whole(&lower[..]), Some(Fence::whole(&upper[..])));
            let build = PageOp::NodeBuild { level: 0, lower, upper, image: &image };
            assert_eq!(build.apply(page, ID), Ok(()));
            assert_eq!(check_entries(page).map(drop), expected, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn a_header_has_the_prefix_of_its_fences_and_no_other(
            shared in prop::collection::vec(0u8..3, 0..20), rests in prop::collection::btree_set(
                prop::collection::vec(0u8..3, 0..12), 2,
            ), last in any::<bool>(),
        ) {
            let fences: Vec<_> = rests.iter().map(|rest| [&shared[..], rest].concat()).collect();
            let (lower, upper) = (Fence::whole(&fences[0][..]), (!last).then_some(Fence::whole(&fences[1][..])));
            let words = blank(4096);
            let page = Page::new(&words);
            prop_assert_eq!(PageOp::NodeBuild { level: 0, lower, upper, image: &[] }.apply(page, ID), Ok(()));
            for prefix in 0..40 {
                page.set_u16(PREFIX, prefix);
                // The upper fence is stored without the prefix: another prefix means another fence.
                let node = Node::new(page);
                let (begin, end) = (node.lower_fence(), node.upper_fence());
                let (begin, end) = (begin.as_deref(), end.as_ref().map(Fence::as_deref));
                let is_whole = prefix_of((begin, end)) == usize::from(prefix)
                    && usize::from(prefix) <= lower.bytes.len();
                prop_assert_eq!(check_header(page).is_ok(), is_whole, "{}", prefix);
                prop_assert!(usize::from(prefix) != prefix_of((lower, upper)) || end == upper && begin == lower);
            }
        }
    }
}
