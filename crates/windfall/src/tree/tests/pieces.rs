//! A check in pieces, between which the tree may change.

use super::{
    super::{
        Walk,
        store::{Access, Shared},
    },
    *,
};
use crate::{
    error::Result,
    ids::{PageId, PageNo},
    page::{Node, PageType},
};

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn some_tree(entries: u32) -> Tree<TestPool> {
    let tree = tree(4096);
    for n in 0..entries {
        put(&tree, &key(n), header(u64::from(n)), &vec![n as u8; 40 + n as usize % 100]);
    }
    tree
}

/// Walks the tree, so many pages at a time, with something done in between. Gives how many pieces there were, too.
fn walk(tree: &Tree<TestPool>, pages: usize, mut between: impl FnMut()) -> Result<(TreeReport, u32)> {
    let (mut walk, mut pieces) = (Walk::default(), 1);
    while !tree.check_piece(&mut walk, &mut { pages })? {
        between();
        pieces += 1;
    }
    Ok((walk.finish(), pieces))
}

#[test]
fn many_pieces_find_what_one_does() {
    let tree = some_tree(4000);
    let whole = tree.check().unwrap();
    assert!(whole.height >= 2 && whole.leaves > 100 && whole.inner > 0, "{whole:?}");
    for pages in [1, 4, 30, 1000] {
        let (report, pieces) = walk(&tree, pages, || {}).unwrap();
        assert_eq!(report, whole, "{pages} pages at a time");
        assert_eq!(pieces > 1, pages < 1000);
        // The way to a leaf counts, too.
        assert!(pieces >= (whole.leaves as u32) / pages as u32 / 2);
    }
}

#[test]
fn what_changes_between_two_pieces_is_no_damage() {
    let tree = some_tree(2000);
    let (mut n, mut turn) = (0, 0);
    let between = || {
        // Leaves before, at and behind the place of the walk are merged and split.
        turn += 1;
        for _ in 0..40 {
            n = (n + 611) % 2000;
            if turn % 2 == 0 {
                put(&tree, &key(n), header(1), &[7; 900]);
            } else {
                remove(&tree, &key(n));
            }
        }
    };
    let (report, pieces) = walk(&tree, 5, between).unwrap();
    assert!(report.leaves > 30 && pieces > 10, "{pieces} pieces, {report:?}");
    confirm(&tree);
}

#[test]
fn damage_in_a_later_piece_is_found() {
    let tree = some_tree(2000);
    let whole = tree.check().unwrap();
    let leaf = |page: &PageNo| {
        let shared = tree.store().share(tree.space(), *page, Access::Scan).unwrap();
        (shared.page().page_type() == PageType::Leaf as u8).then(|| {
            let mut lower = Vec::new();
            Node::new(shared.page()).lower_into(&mut lower);
            lower
        })
    };
    let last = whole.pages.iter().max_by_key(|page| leaf(page)).unwrap();
    tree.store().damage(PageId { space: *tree.space(), page: *last }, |page| page.set_u16(28, 9999));
    let mut pieces = 1;
    let error = walk(&tree, 5, || pieces += 1).unwrap_err();
    assert!(error.to_string().contains(&format!("page {last}")) && pieces > 10, "{error}, {pieces} pieces");
}
