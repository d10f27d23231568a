//! Fuzz targets of pages and of their changes.
//!
//! **Purpose.** [`page`] treats arbitrary bytes as a page that was read from disk, and [`redo`] treats them as logged
//! changes.
//!
//! **Invariants.** No content of a page makes a reader panic (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`). A node that passes [`validate`] finds each of its
//! records (checked by `page/fuzz.rs::check_searches`), can be rebuilt from them (checked by
//! `page/fuzz.rs::check_rebuild`), and stays valid under changes that fit it (checked by
//! `page/fuzz.rs::check_changes`), and when it is frozen (checked by `page/fuzz.rs::check_freeze`). An operation that
//! fails has changed nothing (checked by `page/fuzz.rs::redo`).

use super::{
    EntryHeader, HEADER, Node, NodeList, Page, PageOp, PageType, blank,
    fence::{Fence, prefix_of, shortened},
    freezable_bytes,
    node::{NODE_HEADER, key_limit},
    record::HEADER_ALWAYS,
    validate,
};
use crate::{
    ids::{Lsn, PageId, PageNo, SpaceId, TrxId, UndoPos},
    sync::atomic::AtomicU64,
};

/// The size of the pages.
pub const SIZE: usize = 4096;

/// The maximum number of operations that are applied to one page: a longer log finds no more defects.
const OPS: usize = 64;

/// The identity of the pages.
const ID: PageId = PageId { space: SpaceId(77), page: PageNo(3) };

/// Returns a page that begins with these bytes; its rest is zero.
pub fn words(bytes: &[u8]) -> Box<[AtomicU64]> {
    let words = blank(SIZE);
    Page::new(&words).write(0, &bytes[..bytes.len().min(SIZE)]);
    words
}

/// Returns the bytes of a page.
pub fn bytes(page: Page<'_>) -> Vec<u8> {
    let mut bytes = vec![0; page.len()];
    page.read(0, &mut bytes);
    bytes
}

/// Returns the last few bytes, as a key.
fn some_key(data: &[u8]) -> &[u8] {
    &data[data.len() - data.len().min(12)..]
}

/// Reads everything that an optimistic reader may read.
fn read_everything(page: Page<'_>, key: &[u8]) {
    let node = Node::new(page);
    let mut out = Vec::new();
    let (slot, _) = node.find(key);
    for slot in [0, slot, node.count(), usize::from(u16::MAX)] {
        out.clear();
        node.key_into(slot, &mut out);
        node.value_into(slot, &mut out);
        out.extend(node.lower_fence().bytes);
        out.extend(node.upper_fence().map_or(Vec::new(), |upper| upper.bytes));
        assert!(out.len() <= 6 * page.len(), "a record is longer than its page");
        let _ = (node.header(slot), node.child(slot), node.record_bytes(slot), node.is_at(slot, key));
    }
    let _ =
        (node.contains(key), node.has_prefix_of(key), node.child_slot(key), node.child_slot_below(Some(key)));
    let _ = (node.free_bytes(), node.live_bytes(), node.child_slot_below(None));
}

/// The fences of a node and its records, each with its whole key.
#[derive(Debug, PartialEq)]
struct Content {
    level: u8,
    lower: Fence<Vec<u8>>,
    upper: Option<Fence<Vec<u8>>>,
    records: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Content {
    fn of(node: Node<'_>) -> Self {
        let mut list = NodeList::default();
        list.push_node(node, 0, node.count());
        let (lower, upper) = (node.lower_fence(), node.upper_fence());
        let record = |n| {
            let mut record = Vec::new();
            list.record(n, 0).encode(&mut record);
            (list.key(n).to_vec(), record)
        };
        Self { level: node.level(), lower, upper, records: (0..list.len()).map(record).collect() }
    }
}

/// Checks that a valid node finds each of its records, and the gap after each.
fn check_searches(node: Node<'_>, content: &Content) {
    for (n, (key, _)) in content.records.iter().enumerate() {
        if n < node.first_slot() && content.lower.checksum.is_some() {
            continue;
        }
        assert!(node.contains(key) != Some(false) && node.has_prefix_of(key));
        let (at, len) = node.value_range(n);
        assert!(!node.is_leaf() || at + len <= node.page().len());
        if n >= node.first_slot() {
            assert_eq!(node.find(key), (n, true));
            assert!(node.is_at(n, key));
        }
        assert!(node.is_leaf() || node.child_slot(key) == n);
        let behind = [key, &[0][..]].concat();
        let next = content.records.get(n + 1).is_some_and(|(next, _)| *next == behind);
        if node.contains(&behind) == Some(true) {
            assert_eq!(node.find(&behind), (n + 1, next));
        }
    }
}

/// Checks that a valid node can be rebuilt from its content.
fn check_rebuild(node: Node<'_>, content: &Content) {
    let mut list = NodeList::default();
    list.push_node(node, 0, node.count());
    let (lower, upper) = (content.lower.as_deref(), content.upper.as_ref().map(Fence::as_deref));
    let image = list.image(prefix_of((lower, upper)));
    let words = words(&[]);
    let page = Page::new(&words);
    let op = PageOp::NodeBuild { level: content.level, lower, upper, image: &image };
    assert_eq!(op.apply(page, ID), Ok(()), "what was in a node does not fit one");
    match validate(page) {
        Ok(node) => assert_eq!(Content::of(node), *content),
        Err(what) => panic!("a node built from a valid one is damaged: {what}"),
    }
}

/// Changes a valid node as a tree would. Checks that it stays valid and holds what was put into it.
fn check_changes(page: Page<'_>, data: &[u8]) {
    for chunk in data.chunks(9).take(8) {
        let node = Node::new(page);
        let mut key = Vec::new();
        page.append_to(NODE_HEADER, node.prefix_len(), &mut key);
        key.extend_from_slice(&chunk[..chunk.len() / 2]);
        let (slot, found) = node.find(&key);
        let lower = node.lower_fence();
        let is_taken = key.len() <= key_limit(SIZE) && node.contains(&key) == Some(true);
        // The lower fence of an inner node has its child already.
        if !is_taken || node.is_inner() && lower.as_deref().is_same(Fence::whole(&key)) {
            continue;
        }
        let (index, header) = (slot as u16, header(u64::from(chunk[0]) / 3));
        let suffix = &key[node.prefix_len()..];
        let (op, there) = match (found, node.is_leaf()) {
            (true, true) if chunk[0] % 3 == 0 => {
                (PageOp::LeafReplace { slot: index, header, value: data }, true)
            }
            (true, true) if chunk[0] % 3 == 1 => (PageOp::LeafHeader { slot: index, header }, true),
            (true, _) => (PageOp::NodeRemove { slot: index }, false),
            (false, true) => (PageOp::LeafInsert { slot: index, header, suffix, value: chunk }, true),
            (false, false) => (PageOp::InnerInsert { slot: index, child: PageNo(8), suffix }, true),
        };
        if op.apply(page, ID).is_err() {
            // The node has no room. Only an operation that makes it longer may fail for that reason.
            assert!(there, "{op:?} does not fit a sound node");
            continue;
        }
        match validate(page) {
            Ok(node) => {
                assert_eq!(node.find(&key), (slot, there), "{op:?}");
                assert!(!there || node.is_inner() || node.header(slot) == header, "{op:?}");
            }
            Err(what) => panic!("{what}, after {op:?}"),
        }
    }
}

/// Freezes a valid leaf. Checks that only the headers of old live records change.
fn check_freeze(page: Page<'_>, below: TrxId) {
    let entries = |page| {
        let node = Node::new(page);
        let entry = |slot| {
            let mut entry = Vec::new();
            (node.entry_into(slot, &mut entry), entry, node.record_bytes(slot))
        };
        (0..node.count()).map(entry).collect::<Vec<_>>()
    };
    let (before, bytes) = (entries(page), freezable_bytes(page, below));
    let (free, prefix) = (Node::new(page).free_bytes(), Node::new(page).prefix_len());
    assert_eq!(PageOp::LeafFreeze { below }.apply(page, ID), Ok(()));
    assert_eq!(bytes, Ok(Node::new(page).free_bytes() - free));
    assert!(validate(page).is_ok(), "a valid leaf is damaged by a freeze");
    let expected = before.into_iter().map(|((key, header), entry, bytes)| {
        let length = entry.len() - prefix;
        let is_frozen = header.trx < below && !header.is_deleted() && length < HEADER_ALWAYS;
        let left_out = if is_frozen { header.bytes(length) } else { 0 };
        let header = if is_frozen { header.frozen() } else { header };
        ((key, header), entry, bytes - left_out)
    });
    assert!(expected.eq(entries(page)), "a freeze changes more or less than the headers of old live records");
}

/// Reads the page as a node, and checks a valid one thoroughly.
fn look(page: Page<'_>, data: &[u8]) {
    read_everything(page, some_key(data));
    let Ok(node) = validate(page) else { return };
    let content = Content::of(node);
    check_searches(node, &content);
    check_rebuild(node, &content);
}

/// Tests a page that was read from disk.
pub fn page(data: &[u8]) {
    let words = words(data);
    let page = Page::new(&words);
    let id = page.id();
    let found = page.verify(id);
    let whole = page.u32(0) == page.checksum();
    assert_eq!(found.is_ok(), whole, "the checksum decides");
    page.seal();
    assert_eq!(page.verify(id), Ok(()));
    assert!(page.verify(PageId { page: PageNo(id.page.0 ^ 1), ..id }).is_err());
    let _ = (page.lsn(), page.is_zero(), PageType::from_u8(page.page_type()));
    look(page, data);
    if validate(page).is_ok() {
        check_changes(page, data);
    }
    if validate(page).is_ok_and(Node::is_leaf) {
        check_freeze(page, TrxId(data.first().map_or(0, |byte| u64::from(*byte))));
    }
}

/// Applies logged changes to a page that was never written.
pub fn redo(data: &[u8]) {
    let words = words(&[]);
    let page = Page::new(&words);
    let mut rest = data;
    for _ in 0..OPS {
        let Ok((op, behind)) = PageOp::decode(rest) else { break };
        let mut encoded = Vec::new();
        op.encode(&mut encoded);
        assert_eq!(encoded, rest[..rest.len() - behind.len()], "{op:?}");
        let before = bytes(page);
        if op.apply(page, ID).is_err() {
            assert!(before == bytes(page), "an operation failed and changed the page: {op:?}");
        }
        look(page, data);
        rest = behind;
    }
    if validate(page).is_ok() {
        check_changes(page, data);
    }
}

/// Returns headers of every form.
fn header(n: u64) -> EntryHeader {
    let undo = if n.is_multiple_of(5) { 0 } else { n << 7 };
    EntryHeader { trx: TrxId(n.saturating_sub(2)), flags: n as u16 % 3, undo: UndoPos(undo) }
}

/// Returns the logged form of operations, one after the other.
fn logged(ops: &[PageOp<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for op in ops {
        op.encode(&mut out);
    }
    out
}

/// Builds the operation for a node of this many records, and passes it to `run`.
fn build<T>(rows: u32, level: u8, upper: Option<&[u8]>, run: impl FnOnce(PageOp<'_>) -> T) -> T {
    let lower: &[u8] = if upper.is_some() { b"common" } else { b"" };
    build_between(lower, upper, rows, level, run)
}

/// As [`build`], for a node with these fences.
fn build_between<T>(
    lower: &[u8],
    upper: Option<&[u8]>,
    rows: u32,
    level: u8,
    run: impl FnOnce(PageOp<'_>) -> T,
) -> T {
    let mut list = NodeList::default();
    if level > 0 {
        list.push_inner(lower, PageNo(40));
    }
    for n in 0..rows {
        let key = [if lower.is_empty() { b"common" } else { lower }, &n.to_be_bytes()[..]].concat();
        if level > 0 {
            list.push_inner(&key, PageNo(n));
        } else {
            list.push_leaf(&key, header(n.into()), &[n as u8; 20][..n as usize % 20]);
        }
    }
    let (lower, upper) = shortened((Fence::whole(lower), upper.map(Fence::whole)), SIZE);
    let image = list.image(prefix_of((lower, upper)));
    run(PageOp::NodeBuild { level, lower, upper, image: &image })
}

/// Returns two fences that are cut behind a common prefix.
fn long_fences() -> [Vec<u8>; 2] {
    [b"low", b"top"].map(|end| [&[b'k'; 400][..], &end.repeat(100)].concat())
}

/// Returns logs with every operation, on nodes that the operations fit.
pub fn redo_seeds() -> Vec<Vec<u8>> {
    let upper = Some(&b"commonX"[..]);
    let leaf = [
        PageOp::LeafInsert { slot: 0, header: header(1), suffix: b"", value: b"the first" },
        PageOp::LeafInsert { slot: 3, header: header(2), suffix: &[0, 0, 0, 1, 5], value: b"between" },
        PageOp::LeafReplace { slot: 2, header: header(3), value: b"shorter" },
        PageOp::LeafReplace { slot: 2, header: header(4), value: &[7; 90] },
        PageOp::LeafHeader { slot: 1, header: header(5) },
        PageOp::LeafFreeze { below: TrxId(3) },
        PageOp::NodeRemove { slot: 4 },
        PageOp::NodeKeep { slots: [1, 4], lower: Fence::whole(b"c"), upper: Some(Fence::whole(b"d")) },
    ];
    let inner = [
        PageOp::InnerInsert { slot: 1, child: PageNo(9), suffix: b"\0\0" },
        PageOp::NodeRemove { slot: 2 },
        PageOp::NodeKeep { slots: [0, 3], lower: Fence::whole(b"common"), upper: None },
    ];
    let raw = [
        PageOp::Format { kind: PageType::Map, level: 0 },
        PageOp::Write { at: 32, bytes: b"WFSPACE1" },
        PageOp::Format { kind: PageType::Leaf, level: 0 },
        PageOp::Write { at: 28, bytes: &[1, 0, 4, 0] },
        PageOp::LeafInsert { slot: 0, header: header(6), suffix: b"key", value: b"value" },
        PageOp::Format { kind: PageType::Undo, level: 0 },
        PageOp::UndoWrite { at: 0, begins: false, bytes: b"the rest" },
        PageOp::UndoWrite { at: 8, begins: true, bytes: b"a record" },
    ];
    let [low, top] = long_fences();
    let with = |op: PageOp<'_>, ops: &[PageOp<'_>]| [logged(&[op]), logged(ops)].concat();
    vec![
        build(6, 0, upper, |op| with(op, &leaf)),
        build(9, 0, None, |op| with(op, &leaf[1..6])),
        build(6, 1, upper, |op| with(op, &inner)),
        build(6, 2, None, |op| with(op, &inner)),
        build(0, 0, None, |op| with(op, &leaf[..1])),
        logged(&raw),
        build_between(&low, Some(&top), 4, 0, |op| with(op, &[])),
        build_between(&low, Some(&top), 4, 1, |op| with(op, &[PageOp::NodeRemove { slot: 1 }])),
    ]
}

/// Returns pages of every type.
pub fn page_seeds() -> Vec<Vec<u8>> {
    let words = words(&[]);
    let page = Page::new(&words);
    let mut seeds = Vec::new();
    let mut keep = || {
        page.set_lsn(Lsn(4711));
        page.seal();
        seeds.push(bytes(page));
    };
    for (rows, level, upper) in
        [(0, 0, None), (3, 0, None), (40, 0, Some(&b"commonX"[..])), (12, 1, Some(b"d")), (30, 3, None)]
    {
        let built = build(rows, level, upper, |op| op.apply(page, ID));
        assert_eq!(built, Ok(()));
        if rows > 0 {
            // Makes a hole in the heap.
            assert_eq!(PageOp::NodeRemove { slot: 1 }.apply(page, ID), Ok(()));
        }
        keep();
    }
    let [low, top] = long_fences();
    for level in [0, 1] {
        assert_eq!(build_between(&low, Some(&top), 6, level, |op| op.apply(page, ID)), Ok(()));
        keep();
    }
    for kind in [PageType::Free, PageType::Map, PageType::Overflow, PageType::Undo] {
        page.format(ID, kind, 0);
        page.write(HEADER, b"some content");
        keep();
    }
    seeds
}
