//! Damaged pages and damaged logs.
//!
//! **Purpose.** `check` finds what was planted; whatever a page or a logged operation holds, nothing panics.
//!
//! **Invariants.** Every damage that changes what the tree means is found.
//!
//! **May touch.** What `tree` may touch.

use proptest::prelude::*;

use super::{confirm, header, put, remove, tree};
use crate::{
    ids::{PageId, PageNo, SpaceId},
    page::{self, Node, Page, PageOp, PageType},
    sync::atomic::AtomicU64,
    tree::{Seek, Tree, store::PageStore, testpool::TestPool},
};

fn some_tree() -> Tree<TestPool> {
    let tree = tree(4096);
    for n in 0..400u64 {
        put(&tree, &(n * 3).to_be_bytes(), header(n), &[5; 40]);
    }
    tree
}

fn id(page: PageNo) -> PageId {
    PageId { space: SpaceId(77), page }
}

/// Where a slot lies in a page.
fn slot(page: Page<'_>, n: usize) -> usize {
    let fence = |at| usize::from(page.u16(at)).next_multiple_of(8);
    40 + fence(36) + fence(38) + n * 8
}

/// A leaf that is not the root.
fn leaf(tree: &Tree<TestPool>) -> PageNo {
    let mut found = None;
    for page in tree.check().unwrap().pages {
        tree.store().damage(id(page), |page| {
            if Node::new(page).is_leaf() {
                found = Some(page.id().page);
            }
        });
    }
    found.unwrap()
}

#[test]
fn check_finds_planted_damage_and_names_the_page() {
    type Damage = fn(Page<'_>);
    let damages: [(&str, Damage); 12] = [
        ("another type", |page| page.set_u8(4, PageType::Overflow as u8)),
        ("another level", |page| page.set_u8(5, 1)),
        ("a slot more", |page| page.set_u16(28, page.u16(28) + 1)),
        ("a slot less", |page| page.set_u16(28, page.u16(28) - 1)),
        ("two slots changed places", |page| {
            let (a, b) = (page.u64(slot(page, 0)), page.u64(slot(page, 1)));
            page.set_u64(slot(page, 0), b);
            page.set_u64(slot(page, 1), a);
        }),
        ("one record for two slots", |page| page.set_u64(slot(page, 1), page.u64(slot(page, 0)))),
        ("a wrong head", |page| page.set_u64(slot(page, 0), page.u64(slot(page, 0)) ^ 1 << 63)),
        ("a record outside", |page| page.set_u64(slot(page, 0), page.u64(slot(page, 0)) | 0xffff_0000)),
        ("no upper fence", |page| page.set_u16(6, page.u16(6) ^ 1)),
        ("a shorter prefix", |page| page.set_u16(34, page.u16(34).wrapping_sub(1))),
        ("garbage that is none", |page| page.set_u16(32, 3)),
        ("a value that is too long", |page| {
            let record = (page.u64(slot(page, 0)) >> 16) as u16 as usize * 8;
            page.set_u16(record + 16, 60_000);
        }),
    ];
    for (name, damage) in damages {
        let tree = some_tree();
        let leaf = leaf(&tree);
        tree.store().damage(id(leaf), damage);
        let error = tree.check().expect_err(name).to_string();
        assert!(error.contains(&format!("page {leaf}:")), "{name}: {error}");
    }
}

#[test]
fn check_finds_wrong_links() {
    let link = |n: usize, to: u32| {
        let tree = some_tree();
        tree.store().damage(id(PageNo::ROOT), |page| {
            let record = (page.u64(slot(page, n)) >> 16) as u16 as usize * 8;
            page.set_u32(record, to);
        });
        tree.check().unwrap_err().to_string()
    };
    assert!(link(1, 1).contains("page 1: it is reached twice"));
    assert!(link(1, 2).contains("page 2:"), "the first leaf twice");
    assert!(link(1, 9999).contains("9999"), "a page that is none");
}

#[test]
fn reading_a_damaged_page_is_an_error_or_an_answer_but_no_panic() {
    let tree = some_tree();
    let root = id(PageNo::ROOT);
    tree.store().damage(root, |page| page.set_u8(4, PageType::Undo as u8));
    assert!(tree.get_into(b"abc", &mut Vec::new()).is_err());
    assert!(tree.cursor().next().is_err());
    assert!(tree.cursor().seek(Seek::Last).is_err());
    assert!(tree.check().is_err());
}

/// A leaf as it was before a merge, under a parent that knows of the merge: nothing goes in circles, and what lies
/// outside of its fences is not taken for absent.
#[test]
fn a_leaf_whose_last_write_was_lost_is_told() {
    let tree = some_tree();
    let key = |n: u64| (n * 3).to_be_bytes();
    let images = || -> Vec<(PageNo, Vec<u8>)> {
        let pages = tree.check().unwrap().pages.into_iter().filter(|page| *page != PageNo::ROOT);
        let mut all = Vec::new();
        for page in pages {
            let mut bytes = Vec::new();
            tree.store().damage(id(page), |page| page.append_to(0, 4096, &mut bytes));
            all.push((page, bytes));
        }
        all
    };
    let before = images();
    (0..400).filter(|n| n % 4 != 0).for_each(|n| assert!(remove(&tree, &key(n))));
    let merged = images();
    assert!(merged.len() > 1 && merged.len() < before.len());
    for (page, now) in &merged {
        let (_, old) = before.iter().find(|(n, _)| n == page).unwrap();
        tree.store().damage(id(*page), |page| page.write(0, old));
        let told = |n: &u64| tree.get_into(&key(*n), &mut Vec::new()).is_err();
        let missed: Vec<u64> = (0..400).filter(told).collect();
        assert!(!missed.is_empty(), "page {page}");
        let mut mtr = tree.store().begin().unwrap();
        assert!(missed.iter().all(|n| tree.seek_for_change(&mut mtr, &key(*n), None).is_err()));
        drop(mtr);
        let (mut up, mut down) = (tree.cursor(), tree.cursor());
        assert!((0..1000).map(|_| up.next()).find(|step| !matches!(step, Ok(true))).unwrap().is_err());
        assert!((0..1000).map(|_| down.prev()).find(|step| !matches!(step, Ok(true))).unwrap().is_err());
        tree.store().damage(id(*page), |page| page.write(0, now));
    }
    confirm(&tree);
}

fn page_words(bytes: &[u8]) -> Vec<AtomicU64> {
    let words: Vec<_> = (0..512).map(|_| AtomicU64::new(0)).collect();
    let page = Page::new(&words);
    page.write(0, &bytes[..bytes.len().min(4096)]);
    words
}

/// Looks at everything that a reader may look at.
fn look_around(page: Page<'_>, key: &[u8]) {
    let node = Node::new(page);
    let mut out = Vec::new();
    let (slot, _) = node.find(key);
    for slot in [0, slot, node.count(), usize::from(u16::MAX)] {
        node.key_into(slot, &mut out);
        node.value_into(slot, &mut out);
        node.lower_into(&mut out);
        node.upper_into(&mut out);
        let _ = (node.header(slot), node.child(slot), node.words_of(slot));
    }
    let _ =
        (node.contains(key), node.has_prefix_of(key), node.child_slot(key), node.child_slot_below(Some(key)));
    let _ = (node.free_words(), node.live_words(), node.child_slot_below(None));
    let _ = page::validate(page);
}

/// Operations of every kind with arbitrary fields.
fn any_op(n: u8, slots: [u16; 2], a: &[u8], b: &[u8]) -> PageOp<'static> {
    let (a, b): (&'static [u8], &'static [u8]) = (a.to_vec().leak(), b.to_vec().leak());
    let header = header(slots[1].into());
    let slot = slots[0];
    let upper = slots[1].is_multiple_of(2).then_some(b);
    match n {
        0 => PageOp::Write { at: slot.into(), bytes: a },
        1 => PageOp::LeafInsert { slot, header, suffix: a, value: b },
        2 => PageOp::LeafReplace { slot, header, value: a },
        3 => PageOp::LeafHeader { slot, header },
        4 => PageOp::InnerInsert { slot, child: PageNo(7), suffix: a },
        5 => PageOp::NodeRemove { slot },
        6 => PageOp::NodeKeep { slots, lower: a, upper },
        7 => PageOp::NodeBuild { level: slots[1] as u8 % 2, lower: a, upper, image: b },
        _ => PageOp::Format { kind: PageType::Leaf, level: 0 },
    }
}

fn bytes(page: Page<'_>) -> Vec<u8> {
    let mut bytes = vec![0; page.len()];
    page.read(0, &mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn decoding_and_applying_noise_never_panics(
        noise in prop::collection::vec(any::<u8>(), 0..200), tag in 0u8..12, page in prop::collection::vec(any::<u8>(), 64..300),
    ) {
        let mut noise = noise;
        noise.insert(0, tag);
        let words = page_words(&page);
        let page = Page::new(&words);
        for kind in [PageType::Leaf, PageType::Inner] {
            page.set_u8(4, kind as u8);
            look_around(page, &noise);
            let mut rest = &noise[..];
            while let Ok((op, behind)) = PageOp::decode(rest) {
                let mut encoded = Vec::new();
                op.encode(&mut encoded);
                prop_assert_eq!(&encoded[..], &rest[..rest.len() - behind.len()]);
                let before = bytes(page);
                if op.apply(page, id(PageNo(3))).is_err() {
                    prop_assert_eq!(before, bytes(page), "an operation failed and changed the page: {:?}", op);
                }
                look_around(page, &noise);
                rest = behind;
            }
        }
    }

    #[test]
    fn operations_on_noisy_nodes_never_panic(
        n in 0u8..9, slots in prop::array::uniform2(prop_oneof![4 => 0u16..40, 1 => any::<u16>()]),
        a in prop::collection::vec(any::<u8>(), 0..40), b in prop::collection::vec(any::<u8>(), 0..600),
        hits in prop::collection::vec((28usize..200, any::<u8>()), 0..6), inner in any::<bool>(), rows in 1u64..40,
    ) {
        let words = page_words(&[]);
        let page = Page::new(&words);
        let mut list = page::NodeList::default();
        for n in 0..rows {
            let key = [b"common", &n.to_be_bytes()[..]].concat();
            if inner { list.push_inner(&key, PageNo(n as u32)) } else { list.push_leaf(&key, header(n), &[4; 40]) }
        }
        let (lower, upper) = (&b"common"[..], Some(&b"commonX"[..]));
        let image = list.image(lower, upper);
        PageOp::NodeBuild { level: inner.into(), lower, upper, image: &image }.apply(page, id(PageNo(3))).unwrap();
        if !inner {
            prop_assert!(page::validate(page).is_ok());
        }
        let sound = hits.is_empty();
        for (at, bits) in hits {
            page.set_u8(at, page.u8(at) ^ bits);
        }
        look_around(page, &a);
        let op = any_op(n, slots, &a, &b);
        let mut encoded = Vec::new();
        op.encode(&mut encoded);
        prop_assert_eq!(PageOp::decode(&encoded), Ok((op, &[][..])));
        let before = bytes(page);
        if op.apply(page, id(PageNo(3))).is_err() {
            prop_assert_eq!(before, bytes(page), "{:?} failed and changed the page (sound: {})", op, sound);
        }
        look_around(page, &a);
    }
}
