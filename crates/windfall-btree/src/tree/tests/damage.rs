//! Damaged pages.
//!
//! **Purpose.** `check` finds planted damage. The effects of arbitrary bytes are tested by the fuzz targets
//! (`page/fuzz.rs`, `tree/fuzz.rs`).
//!
//! **Invariants.** Every damage that changes the meaning of the tree is found (test:
//! `check_finds_planted_damage_and_names_the_page`).

use super::{confirm, header, put, remove, tree};
use crate::{
    ids::{PageId, PageNo, SpaceId, TrxId},
    page::{Node, NodeList, Page, PageOp, PageType, fence::Fence, node::common_prefix},
    tree::{
        Room, Seek, Tree,
        store::{MiniTransaction, PageStore},
        testpool::TestPool,
    },
};

fn some_tree() -> Tree<TestPool> {
    let tree = tree(4096);
    for n in 0..400u64 {
        put(&tree, &(n * 3).to_be_bytes(), header(n), &[5; 40]);
    }
    tree
}

/// Moves the records of a leaf together at the end of its page: a split leaves garbage between them.
fn compact(tree: &Tree<TestPool>, leaf: PageNo) {
    let freeze = PageOp::LeafFreeze { below: TrxId(0) };
    tree.store().damage(id(leaf), |page| freeze.apply(page, id(leaf)).unwrap());
}

fn id(page: PageNo) -> PageId {
    PageId { space: SpaceId(77), page }
}

/// Returns the offset of a slot in a page.
fn slot(page: Page<'_>, n: usize) -> usize {
    40 + usize::from(page.u16(36) + page.u16(38)).next_multiple_of(8) + n * 4
}

/// Returns the offset of a record in a page.
fn record(page: Page<'_>, n: usize) -> usize {
    page.u16(slot(page, n)).into()
}

/// Changes a bit of the head of a slot.
fn change_head(page: Page<'_>, n: usize) {
    page.set_u32(slot(page, n), page.u32(slot(page, n)) ^ 1 << 31);
}

/// Returns a leaf that is not the root.
fn leaf(tree: &Tree<TestPool>) -> PageNo {
    let mut found = None;
    for page in tree.check().unwrap().pages.iter() {
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
    let damages: [(&str, Damage); 15] = [
        ("another type", |page| page.set_u8(4, PageType::Overflow as u8)),
        ("another level", |page| page.set_u8(5, 1)),
        ("a slot more", |page| page.set_u16(28, page.u16(28) + 1)),
        ("a slot less", |page| page.set_u16(28, page.u16(28) - 1)),
        ("two slots changed places", |page| {
            let (a, b) = (page.u32(slot(page, 0)), page.u32(slot(page, 1)));
            page.set_u32(slot(page, 0), b);
            page.set_u32(slot(page, 1), a);
        }),
        ("one record for two slots", |page| page.set_u32(slot(page, 1), page.u32(slot(page, 0)))),
        ("a wrong head", |page| change_head(page, 0)),
        ("a record outside", |page| page.set_u16(slot(page, 0), 0xffff)),
        ("no upper fence", |page| page.set_u16(6, page.u16(6) ^ 1)),
        ("a shorter prefix", |page| page.set_u16(34, page.u16(34).wrapping_sub(1))),
        ("garbage that is none", |page| page.set_u16(32, 3)),
        ("a value that is too long", |page| page.set_u8(record(page, 0) + 2, 60)),
        ("a header of an unknown form", |page| page.set_u8(record(page, 0), 0x13)),
        ("a header that says nothing", |page| {
            assert_eq!(page.u8(record(page, 0)), 0x12, "a value and a whole header");
            page.fill_zero(record(page, 0) + 3 + usize::from(page.u8(record(page, 0) + 1)) + 40, 14);
        }),
        ("an unknown flag", |page| page.set_u8(record(page, 0), 0x32)),
    ];
    for (name, damage) in damages {
        let tree = some_tree();
        let leaf = leaf(&tree);
        tree.store().damage(id(leaf), damage);
        let state = || (image(&tree, leaf).bytes, tree.store().log().len());
        let before = state();
        let error = tree.check().expect_err(name).to_string();
        assert!(error.contains(&format!("page {leaf}:")), "{name}: {error}");
        assert!(state() == before, "{name}: the check has changed the leaf");
    }
}

#[test]
fn check_finds_wrong_links() {
    let link = |n: usize, to: u32| {
        let tree = some_tree();
        tree.store().damage(id(PageNo::ROOT), |page| {
            let at = record(page, n);
            assert!(page.u8(at) < 0x80, "the length of the suffix takes one byte");
            page.set_u32(at + 1, to);
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

/// A leaf as it was before a merge, under a parent that records the merge: no read loops for ever, and a key outside
/// the leaf's fences is not reported as absent.
#[test]
fn a_leaf_whose_last_write_was_lost_is_reported() {
    a_lost_write_is_reported(|n| (n * 3).to_be_bytes().to_vec());
}

/// Of each 20 keys all begin alike, and differ behind the part of a fence that is stored.
#[test]
fn a_leaf_with_cut_fences_whose_last_write_was_lost_is_reported() {
    let cut = a_lost_write_is_reported(|n| {
        [&vec![n as u8 / 20; 300][..], &(n * 3).to_be_bytes(), &[b'-'; 100]].concat()
    });
    assert!(cut > 5, "{cut} leaves with cut fences");
}

/// Returns the number of leaves with a cut fence.
fn a_lost_write_is_reported(key: impl Fn(u64) -> Vec<u8>) -> usize {
    let tree = tree(4096);
    (0..400).for_each(|n| put(&tree, &key(n), header(n), &[5; 40]));
    let images = || leaves(&tree).into_iter().map(|page| (page, image(&tree, page))).collect::<Vec<_>>();
    let before = images();
    (0..400).filter(|n| n % 4 != 0).for_each(|n| assert!(remove(&tree, &key(n))));
    let merged = images();
    assert!(merged.len() > 1 && merged.len() < before.len());
    let mut lost = 0;
    for (page, now) in &merged {
        let (_, old) = before.iter().find(|(n, _)| n == page).unwrap();
        if (&now.lower, &now.upper) == (&old.lower, &old.upper) {
            continue;
        }
        lost += 1;
        put_back(&tree, *page, old);
        let fails = |n: &u64| tree.get_into(&key(*n), &mut Vec::new()).is_err();
        let missed: Vec<u64> = (0..400).filter(fails).collect();
        assert!(!missed.is_empty(), "page {page}");
        for key in now.keys.iter().filter(|key| !old.keys.contains(key)) {
            assert!(tree.get_into(key, &mut Vec::new()).is_err(), "page {page} is said not to have {key:?}");
        }
        let mut mtr = tree.store().begin().unwrap();
        assert!(missed.iter().all(|n| tree.seek_for_change(&mut mtr, &key(*n), Room::Keep).is_err()));
        drop(mtr);
        let (mut up, mut down) = (tree.cursor(), tree.cursor());
        assert!((0..1000).map(|_| up.next()).find(|step| !matches!(step, Ok(true))).unwrap().is_err());
        assert!((0..1000).map(|_| down.prev()).find(|step| !matches!(step, Ok(true))).unwrap().is_err());
        put_back(&tree, *page, now);
    }
    assert!(lost > 1, "{lost} leaves were merged");
    confirm(&tree);
    let mut cut = 0;
    for (page, _) in before {
        tree.store().damage(id(page), |page| cut += usize::from(Node::new(page).has_cut_fence()));
    }
    cut
}

/// A leaf: its bytes, its fences and its keys.
#[derive(Debug, Default)]
struct Image {
    bytes: Vec<u8>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    keys: Vec<Vec<u8>>,
}

fn image(tree: &Tree<TestPool>, page: PageNo) -> Image {
    let mut image = Image::default();
    tree.store().damage(id(page), |page| {
        let (node, mut upper) = (Node::new(page), Vec::new());
        page.append_to(0, 4096, &mut image.bytes);
        node.lower_into(&mut image.lower);
        image.upper = node.upper_into(&mut upper).then_some(upper);
        for slot in 0..node.count() {
            let mut key = Vec::new();
            node.key_into(slot, &mut key);
            image.keys.push(key);
        }
    });
    image
}

fn put_back(tree: &Tree<TestPool>, page: PageNo, image: &Image) {
    tree.store().damage(id(page), |page| page.write(0, &image.bytes));
}

/// Returns the leaves of a tree of two levels.
fn leaves(tree: &Tree<TestPool>) -> Vec<PageNo> {
    tree.check().unwrap().pages.iter().filter(|page| *page != PageNo::ROOT).collect()
}

/// A leaf as it was before a split, under a parent that records the split: it may still contain keys that have moved
/// since, with old entries. The error is reported as soon as the page is read in from disk, and no change is based on
/// the page.
#[test]
fn a_leaf_that_has_lost_its_split_is_reported_for_every_key() {
    let tree = tree(4096);
    let put_all = |odd: u32, value: &[u8]| {
        (0..300).for_each(|n: u32| put(&tree, &(n * 2 + odd).to_be_bytes(), header(1), value));
    };
    put_all(0, &[1; 60]);
    let before: Vec<_> = leaves(&tree).into_iter().map(|page| (page, image(&tree, page))).collect();
    put_all(1, &[2; 60]);
    let mut split = 0;
    for (page, old) in before {
        let now = image(&tree, page);
        if (&now.lower, &now.upper) == (&old.lower, &old.upper) {
            continue;
        }
        split += 1;
        put_back(&tree, page, &old);
        let error = tree.check().unwrap_err().to_string();
        assert!(error.contains(&format!("page {page}: its fence keys")), "{error}");
        for key in &now.keys {
            let error = tree.get_into(key, &mut Vec::new()).unwrap_err().to_string();
            assert!(error.contains(&format!("page {page}:")), "{error}");
            let mut mtr = tree.store().begin().unwrap();
            assert!(tree.seek_for_change(&mut mtr, key, Room::Value(3)).is_err());
        }
        put_back(&tree, page, &now);
    }
    assert!(split > 3, "{split} leaves were split");
    confirm(&tree);
}

/// A merge reaches a leaf by a descent, but not its neighbour. It must therefore verify the neighbour itself.
#[test]
fn a_neighbour_that_has_lost_its_split_is_not_merged() {
    let tree = tree(4096);
    let put_some =
        |from: u32| (from..from + 200).for_each(|n| put(&tree, &n.to_be_bytes(), header(1), &[1; 60]));
    put_some(0);
    let page = leaves(&tree).into_iter().find(|page| image(&tree, *page).upper.is_none()).unwrap();
    let old = image(&tree, page);
    put_some(200);
    let now = image(&tree, page);
    assert!(old.upper != now.upper, "it was not split");
    let images = leaves(&tree).into_iter().map(|page| image(&tree, page));
    let below = images.into_iter().find(|leaf| leaf.upper.as_ref() == Some(&now.lower)).unwrap().keys;
    // Emptied, so that it must be merged: with its right neighbour, if possible.
    for key in &below {
        let mut mtr = tree.store().begin().unwrap();
        let place = tree.seek_for_change(&mut mtr, key, Room::Keep).unwrap();
        place.remove(&mut mtr);
        mtr.commit().unwrap();
    }
    // A page from before the split; or a page of another level or type, with fences that fit by chance.
    let damages: [&dyn Fn(); 3] = [
        &|| put_back(&tree, page, &old),
        &|| tree.store().damage(id(page), |page| page.set_u8(5, 1)),
        &|| tree.store().damage(id(page), |page| page.set_u8(4, PageType::Overflow as u8)),
    ];
    for damage in damages {
        damage();
        let error = tree.maintain(&below[0]).unwrap_err().to_string();
        assert!(error.contains(&format!("page {page}:")), "{error}");
        put_back(&tree, page, &now);
    }
    tree.maintain(&below[0]).unwrap();
    confirm(&tree);
}

/// The check of two nodes costs as much as the merge itself: it is made only if the merge has room.
#[test]
fn nodes_are_checked_for_a_merge_and_not_for_one_without_room() {
    let tree = some_tree();
    let first = leaf_of(&tree, &0u64.to_be_bytes());
    let upper = image(&tree, first).upper.unwrap();
    let next = leaves(&tree).into_iter().find(|page| image(&tree, *page).lower == upper).unwrap();
    let keep = |page: PageNo, number: usize| {
        for key in &image(&tree, page).keys[number..] {
            let mut mtr = tree.store().begin().unwrap();
            tree.seek_for_change(&mut mtr, key, Room::Keep).unwrap().remove(&mut mtr);
            mtr.commit().unwrap();
        }
    };
    let damage = || {
        tree.store().damage(id(next), |page| change_head(page, 0));
    };
    let is_merged = || !leaves(&tree).contains(&next);
    // Both fit one page, but not with the reserve of an eighth.
    keep(first, 18);
    keep(next, 38);
    damage();
    tree.maintain(&[]).unwrap();
    damage();
    assert!(!is_merged());
    keep(next, 20);
    damage();
    let error = tree.maintain(&[]).unwrap_err().to_string();
    assert!(error.contains(&format!("page {next}: a slot's head is not that of its key")), "{error}");
    damage();
    assert!(!is_merged());
    tree.maintain(&[]).unwrap();
    assert!(is_merged());
    confirm(&tree);
}

#[test]
fn the_root_takes_over_no_page_that_is_not_its_child() {
    let tree = some_tree();
    // The root has one child left, which has a right neighbour according to its fences.
    tree.store().damage(id(PageNo::ROOT), |page| page.set_u16(28, 1));
    let error = tree.shrink_root().unwrap_err().to_string();
    assert!(error.contains("its fence keys do not match the separators in its parent"), "{error}");
    tree.store().damage(id(PageNo::ROOT), |page| assert!(Node::new(page).is_inner()));
}

/// Returns the leaf that holds a key.
fn leaf_of(tree: &Tree<TestPool>, key: &[u8]) -> PageNo {
    let holds = |page: &PageNo| image(tree, *page).keys.iter().any(|other| other == key);
    leaves(tree).into_iter().find(holds).unwrap()
}

/// Inserts entries until one is refused, and returns the error.
fn refused(tree: &Tree<TestPool>, keys: impl Iterator<Item = Vec<u8>>, len: usize) -> String {
    for key in keys {
        let mut mtr = tree.store().begin().unwrap();
        match tree.seek_for_change(&mut mtr, &key, Room::Value(len)) {
            Ok(mut place) => place.insert(&mut mtr, header(1), &vec![7; len]),
            Err(error) => return error.to_string(),
        }
        mtr.commit().unwrap();
    }
    panic!("all entries were inserted");
}

#[test]
fn a_node_with_a_key_that_lacks_the_prefix_is_not_split() {
    let tree = some_tree();
    // The keys of this leaf share a shorter prefix than those of its right half.
    let wide = |page: &PageNo| {
        let Image { lower, upper, keys, .. } = image(&tree, *page);
        let shared = |key| upper.as_ref().map(|upper| common_prefix(key, upper));
        shared(&lower) == Some(6) && shared(&keys[keys.len() / 2]) == Some(7)
    };
    let page = leaves(&tree).into_iter().find(wide).unwrap();
    let last = image(&tree, page).keys.pop().unwrap();
    compact(&tree, page);
    tree.store().damage(id(page), |page| {
        let at = record(page, Node::new(page).count() - 3);
        page.set_u8(at + 1, 0);
    });
    let below = (1..100).map(|n| [&last[..7], &[last[7] - 1, n]].concat());
    let error = refused(&tree, below, 100);
    assert!(error.contains(&format!("page {page}: a slot's head is not that of its key")), "{error}");
}

#[test]
fn a_leaf_that_cannot_be_compacted_takes_no_entry() {
    let tree = tree(4096);
    let key = |n: u8| vec![n, 7];
    (0..20).for_each(|n| put(&tree, &key(n), header(1), &[1; 150]));
    (0..20).step_by(2).for_each(|n| assert!(remove(&tree, &key(n))));
    tree.store().damage(id(PageNo::ROOT), |page| page.set_u16(32, page.u16(32) - 1));
    let error = refused(&tree, (30..200).map(key), 150);
    assert!(error.contains("page 1: the node's garbage is miscounted"), "{error}");
}

#[test]
fn a_leaf_with_more_garbage_than_its_heap_allows_loses_no_entry() {
    let tree = tree(4096);
    let key = |n: u8| vec![n, 7];
    (0..9).for_each(|n| put(&tree, &key(n), header(1), &[1; 150]));
    // The header states that the whole heap is garbage.
    tree.store().damage(id(PageNo::ROOT), |page| page.set_u16(32, page.u16(30)));
    for room in [Room::Keep, Room::Header, Room::Value(40)] {
        let mut mtr = tree.store().begin().unwrap();
        let error = tree.seek_for_change(&mut mtr, &key(3), room).unwrap_err().to_string();
        assert!(error.contains("page 1: the node's garbage is miscounted"), "{error}");
    }
}

#[test]
fn an_entry_outside_its_page_is_not_changed() {
    let tree = some_tree();
    let page = leaf_of(&tree, &30u64.to_be_bytes());
    compact(&tree, page);
    let keys = image(&tree, page).keys;
    let mut key = Vec::new();
    tree.store().damage(id(page), |page| {
        // The last record of the page, whose value is now longer than the rest of it.
        let last = (0..keys.len()).max_by_key(|n| record(page, *n)).unwrap();
        page.set_u8(record(page, last) + 2, 0x7f);
        key.clone_from(&keys[last]);
    });
    assert_ne!(key, 33u64.to_be_bytes());
    for room in [Room::Keep, Room::Header, Room::Value(40)] {
        let mut mtr = tree.store().begin().unwrap();
        let error = tree.seek_for_change(&mut mtr, &key, room).unwrap_err().to_string();
        assert!(error.contains(&format!("page {page}: a record lies outside the node's heap")), "{error}");
        // The leaf is not latched any more.
        tree.seek_for_change(&mut mtr, &33u64.to_be_bytes(), room).unwrap();
    }
}

#[test]
fn a_parent_with_a_record_outside_its_heap_loses_no_child() {
    let tree = some_tree();
    let page = leaf_of(&tree, &600u64.to_be_bytes());
    let keys = image(&tree, page).keys;
    for key in &keys {
        let mut mtr = tree.store().begin().unwrap();
        tree.seek_for_change(&mut mtr, key, Room::Keep).unwrap().remove(&mut mtr);
        mtr.commit().unwrap();
    }
    tree.store().damage(id(PageNo::ROOT), |page| page.set_u16(30, 1));
    let error = tree.maintain(&keys[0]).unwrap_err().to_string();
    assert!(error.contains("page 1: a record lies outside the node's heap"), "{error}");
}

#[test]
fn a_root_with_fences_does_not_grow() {
    let tree = tree(4096);
    tree.ensure_root().unwrap();
    let key = |n: u8| [0, 0, 0, 0, 0, 0, 1, n];
    let mut list = NodeList::default();
    (0..149).for_each(|n| list.push_leaf(&key(n), header(1), &[7; 4]));
    let (lower, upper) = (Fence::whole(&[0; 6][..]), Some(Fence::whole(&[0, 0, 0, 0, 0, 0, 9][..])));
    let image = list.image(lower.bytes.len());
    let build = PageOp::NodeBuild { level: 0, lower, upper, image: &image };
    tree.store().damage(id(PageNo::ROOT), |page| build.apply(page, id(PageNo::ROOT)).unwrap());
    let error = refused(&tree, (150..160).map(|n| key(n).to_vec()), 4);
    assert!(error.contains("page 1: the root has a fence"), "{error}");
}

#[test]
fn a_chain_that_leads_back_to_its_first_page_is_reported_and_keeps_it() {
    for at_most in [1, 3] {
        let tree = tree(4096);
        let mut mtr = tree.store().begin().unwrap();
        let mut writer = tree.begin_overflow(&mut mtr, 9).unwrap();
        mtr.commit().unwrap();
        writer.write(&vec![7; 20_000]).unwrap();
        let (first, _) = writer.finish().unwrap();
        let pages = tree.store().allocated(*tree.space());
        tree.store().damage(id(first.first), |page| page.set_u32(28, first.first.0));
        let error = tree.shorten_overflow(first.first, 9, at_most).unwrap_err().to_string();
        assert!(error.contains("not the page of the overflow chain"), "{error}");
        assert_eq!(tree.store().allocated(*tree.space()), pages);
    }
}
