//! A check in pieces, between which the tree may change.

use super::{
    super::{
        OverflowRef, StoredField, Walk,
        fields::encode_fields,
        store::{Access, Shared},
    },
    values::{bytes, free, refer, write},
    *,
};
use crate::{
    error::Result,
    ids::{PageId, PageNo},
    page::{Node, PageType},
    sync::work::{self, Work},
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

/// Walks the tree, this many pages at a time, and calls `between` between pieces. Also returns the number of pieces.
fn walk(tree: &Tree<TestPool>, pages: usize, mut between: impl FnMut()) -> Result<(TreeReport, u32)> {
    let (mut walk, mut pieces) = (Walk::default(), 1);
    while !tree.check_piece(&mut walk, &mut { pages })? {
        between();
        pieces += 1;
    }
    Ok((walk.finish(), pieces))
}

#[test]
fn a_check_in_pieces_has_the_result_of_a_whole_check() {
    let tree = some_tree(4000);
    let whole = tree.check().unwrap();
    assert!(whole.height >= 2 && whole.leaves > 100 && whole.inner > 0, "{whole:?}");
    for pages in [1, 4, 30, 1000] {
        let (report, pieces) = walk(&tree, pages, || {}).unwrap();
        assert_eq!(report, whole, "{pages} pages at a time");
        assert_eq!(pieces > 1, pages < 1000);
        // The path to a leaf counts, too.
        assert!(pieces >= (whole.leaves as u32) / pages as u32 / 2);
    }
}

/// Creates a tree with long and short values. Returns the chains of the long ones, by their keys.
fn tree_of_long_values() -> (Tree<TestPool>, Vec<(u32, OverflowRef)>) {
    let tree = some_tree(400);
    let mut chains = Vec::new();
    for (n, length) in [(0, 30_000), (7, 400_000), (8, 5_000), (250, 90_000), (399, 200_000)] {
        let chain = write(&tree, u64::from(n), &bytes(length), length);
        refer(&tree, &key(n), chain);
        chains.push((n, chain));
    }
    (tree, chains)
}

#[test]
fn a_long_value_is_looked_at_in_pieces_too() {
    let (tree, _) = tree_of_long_values();
    let whole = tree.check().unwrap();
    assert!(whole.overflow > 150 && whole.leaves > 5, "{whole:?}");
    for pages in [1, 4, 30] {
        let (mut walk, mut most, mut pieces) = (Walk::default(), 0, 0);
        loop {
            let before = work::so_far();
            let has_ended = tree.check_piece(&mut walk, &mut { pages }).unwrap();
            most = most.max((work::so_far() - before).of(Work::Frame));
            pieces += 1;
            if has_ended {
                break;
            }
        }
        assert_eq!(walk.finish(), whole, "{pages} pages at a time");
        let bound = pages as u64 + u64::from(whole.height);
        assert!(most <= bound, "{most} pages in a piece of {pages}");
        assert!(pieces >= whole.pages.len() as u64 / bound, "{pieces} pieces of {pages}");
    }
}

#[test]
fn a_long_value_may_go_while_it_is_looked_at() {
    type Change = fn(&Tree<TestPool>, u32, OverflowRef);
    fn mark(tree: &Tree<TestPool>, n: u32, chain: OverflowRef) {
        let header = EntryHeader { flags: EntryHeader::OVERFLOW | EntryHeader::DELETED, ..header(1) };
        put(tree, &key(n), header, &chain.to_bytes());
    }
    let changes: [Change; 6] = [
        |tree, n, _| put(tree, &key(n), header(1), b"short"),
        |tree, n, _| assert!(remove(tree, &key(n))),
        |tree, n, chain| {
            let other = write(tree, 1000, &bytes(70_000), 1000);
            refer(tree, &key(n), other);
            free(tree, chain, 100);
        },
        |tree, n, chain| {
            remove(tree, &key(n));
            free(tree, chain, 100);
            write(tree, 1000, &bytes(300_000), 1000);
        },
        mark,
        |tree, n, chain| {
            mark(tree, n, chain);
            tree.shorten_overflow(chain.first, chain.stamp, 16).unwrap();
        },
    ];
    for (which, change) in changes.iter().enumerate() {
        for after in 1..60 {
            let (tree, chains) = tree_of_long_values();
            let mut pieces = 0;
            let (report, _) = walk(&tree, 3, || {
                pieces += 1;
                if pieces == after {
                    for (n, chain) in &chains {
                        change(&tree, *n, *chain);
                    }
                }
            })
            .unwrap_or_else(|error| panic!("change {which} after piece {after}: {error}"));
            assert!(report.entries >= 395, "{report:?}");
        }
    }
}

/// Gives entries the same short field, and fields with these chains.
fn refer_to_all(tree: &Tree<TestPool>, key: &[u8], chains: &[OverflowRef]) {
    let chains = chains.iter().map(|chain| StoredField::Chain(*chain));
    let fields: Vec<_> = [StoredField::Inline(b"short")].into_iter().chain(chains).collect();
    put(tree, key, EntryHeader { flags: EntryHeader::FIELDS, ..header(1) }, &encode_fields(&fields));
}

#[test]
fn a_field_may_go_while_its_row_is_looked_at() {
    let tree_of_fields = || {
        let tree = some_tree(100);
        let rows: Vec<(u32, Vec<OverflowRef>)> = [0, 50, 99]
            .into_iter()
            .map(|n| {
                let lengths = [3_000, 70_000, 40_000];
                let chain = |at: usize| {
                    let length = lengths[at];
                    write(&tree, u64::from(n) * 10 + at as u64, &bytes(length), length)
                };
                (n, (0..3).map(chain).collect())
            })
            .collect();
        for (n, chains) in &rows {
            refer_to_all(&tree, &key(*n), chains);
        }
        (tree, rows)
    };
    let (tree, _) = tree_of_fields();
    let whole = tree.check().unwrap();
    for pages in [1, 3, 10] {
        assert_eq!(walk(&tree, pages, || {}).unwrap().0, whole, "{pages} pages at a time");
    }
    for (replaced, after) in (0..3).flat_map(|replaced| (1..45).map(move |after| (replaced, after))) {
        let (tree, rows) = tree_of_fields();
        let (mut pieces, mut kept) = (0, Vec::new());
        let (report, _) = walk(&tree, 3, || {
            pieces += 1;
            if pieces == after {
                for (n, chains) in &rows {
                    let other = write(&tree, 1000 + u64::from(*n), &bytes(20_000), 20_000);
                    let mut chains = chains.clone();
                    let old = core::mem::replace(&mut chains[replaced], other);
                    refer_to_all(&tree, &key(*n), &chains);
                    free(&tree, old, 100);
                    kept.push(chains);
                }
            }
        })
        .unwrap_or_else(|error| panic!("field {replaced} after piece {after}: {error}"));
        // Whatever the row has kept was reached: it is in use since before the check.
        let first_pages = rows.iter().zip(&kept).flat_map(|((_, old), new)| {
            new.iter().filter(|chain| old.contains(chain)).map(|chain| chain.first)
        });
        for page in first_pages {
            assert!(
                report.pages.iter().any(|reached| reached == page),
                "field {replaced} after piece {after}: {page}"
            );
        }
    }
}

#[test]
fn a_page_that_a_long_value_has_lost_is_found_in_any_piece() {
    for pages in [1, 3, 1000] {
        let (tree, chains) = tree_of_long_values();
        let (_, chain) = chains[1];
        // Frees the five pages after the first, under an entry that is not delete-marked.
        tree.shorten_overflow(chain.first, chain.stamp, 5).unwrap();
        let error = walk(&tree, pages, || {}).unwrap_err().to_string();
        assert!(error.contains("overflow chain"), "{pages} pages at a time: {error}");
    }
}

#[test]
fn changes_between_two_pieces_are_not_reported_as_damage() {
    let tree = some_tree(2000);
    let (mut n, mut turn) = (0, 0);
    let between = || {
        // Leaves before, at and after the position of the walk are merged and split.
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
    let leaf = |page: PageNo| {
        let shared = tree.store().share(tree.space(), page, Access::Scan).unwrap();
        (shared.page().page_type() == PageType::Leaf as u8).then(|| {
            let mut lower = Vec::new();
            Node::new(shared.page()).lower_into(&mut lower);
            lower
        })
    };
    let last = whole.pages.iter().max_by_key(|page| leaf(*page)).unwrap();
    tree.store().damage(PageId { space: *tree.space(), page: last }, |page| page.set_u16(28, 9999));
    let mut pieces = 1;
    let error = walk(&tree, 5, || pieces += 1).unwrap_err();
    assert!(error.to_string().contains(&format!("page {last}")) && pieces > 10, "{error}, {pieces} pieces");
}
