//! Leaves that are frozen instead of being split.
//!
//! **Purpose.** A freeze saves the room of old headers, changes nothing else, and is tried before a split only.
//!
//! **Invariants.** As in [`super`]: the pages equal those that a replay of the log builds (checked by
//! `tree/tests/mod.rs::confirm`).

use super::{TestHorizon, confirm, get, header, put, tree};
use crate::{
    ids::TrxId,
    page::{EntryHeader, PageOp},
    sync::Arc,
    tree::{
        Room, Tree,
        store::{MiniTransaction, PageStore},
        testpool::TestPool,
    },
};

fn frozen_tree(page_size: usize) -> (Tree<TestPool>, Arc<TestHorizon>) {
    let horizon = Arc::new(TestHorizon::default());
    (tree(page_size).with_horizon(horizon.clone()), horizon)
}

/// Returns the number of freezes in the log.
fn freezes(tree: &Tree<TestPool>) -> usize {
    let log = tree.store().log();
    let is_freeze = |op: &[u8]| matches!(PageOp::decode(op), Ok((PageOp::LeafFreeze { .. }, _)));
    log.iter().flatten().filter(|logged| is_freeze(&logged.op)).count()
}

fn key(n: u32) -> [u8; 4] {
    // Of different numbers different keys, in no order.
    let mixed = (n ^ n >> 15).wrapping_mul(0x2c1b_3c6d);
    (mixed ^ mixed >> 12).wrapping_mul(0x297a_2d39).to_be_bytes()
}

/// Inserts rows in a random order, each of a transaction of its own unless they are `bare`. All transactions before the
/// one that inserts have ended.
fn random_build(bare: bool) -> Tree<TestPool> {
    let (tree, horizon) = frozen_tree(4096);
    for n in 1..=20_000 {
        horizon.raise(n.into());
        let header = if bare { EntryHeader::UNVERSIONED } else { header(n.into()).of_insert() };
        put(&tree, &key(n), header, &n.to_be_bytes());
    }
    tree
}

/// The tree has hardly more leaves than one without headers has, however full those are at that number of rows.
#[test]
fn a_random_build_of_short_entries_leaves_few_headers() {
    let (tree, bare) = (random_build(false), random_build(true));
    let (leaves, least) = (confirm(&tree).leaves, confirm(&bare).leaves);
    assert!(leaves * 10 <= least * 11, "{leaves} leaves, and {least} without headers");
    // A leaf is frozen a few times before it is split, and not for each of its entries.
    let count = freezes(&tree) as u64;
    assert!((leaves..6 * leaves).contains(&count), "{count} freezes, {leaves} leaves");
    assert_eq!(freezes(&bare), 0, "there is nothing to freeze");
    let mut frozen = 0;
    for n in 1..=20_000 {
        let (header, value) = get(&tree, &key(n)).unwrap();
        frozen += usize::from(header == EntryHeader::UNVERSIONED);
        assert!(header == EntryHeader::UNVERSIONED || header.trx == TrxId(n.into()));
        assert_eq!(value, n.to_be_bytes());
    }
    assert!(frozen > 15_000, "{frozen} of 20,000 entries are frozen");
}

/// The root is a leaf without a parent: it is not frozen by another way than other leaves.
#[test]
fn a_full_root_is_frozen_before_it_grows() {
    let (tree, horizon) = frozen_tree(4096);
    let mut n = 0;
    while tree.height().unwrap() < 2 {
        n += 1;
        put(&tree, &key(n), header(n.into()), b"");
        horizon.raise(n.into());
    }
    assert!(freezes(&tree) > 0);
    // An entry with its slot takes 24 bytes, and 10 without its header.
    assert!(n > 4000 / 12, "a root of {n} entries has grown");
    confirm(&tree);
}

/// What frees nothing, or little, is left to the split.
#[test]
fn a_leaf_is_split_if_a_freeze_frees_little() {
    for (length, behind, expected) in [(100, 0, false), (20, 200_000, false), (20, 0, true)] {
        let (tree, horizon) = frozen_tree(4096);
        for n in 1..=1000u32 {
            put(&tree, &key(n), header(n.into()), &vec![7; length]);
            horizon.raise(u64::from(n).saturating_sub(behind));
        }
        assert_eq!(freezes(&tree) > 0, expected, "{length} bytes, {behind} behind");
        assert!(confirm(&tree).leaves > 1);
    }
    // Eight old headers of 14 bytes are less than a thirty-second of the page, and nine are more.
    for (old, expected) in [(9, 0), (10, 1)] {
        let (tree, horizon) = frozen_tree(4096);
        let mut n = 0;
        while freezes(&tree) == 0 && tree.height().unwrap() < 2 {
            n += 1;
            put(&tree, &key(n), header(n.into()), b"");
            horizon.raise(n.min(old + 1).into());
        }
        assert_eq!(freezes(&tree), expected, "{old} old entries");
    }
}

/// An entry that is to get a longer header may be frozen to make room for it.
#[test]
fn the_entry_that_needs_room_is_frozen_too() {
    let (tree, horizon) = frozen_tree(4096);
    // With its slot an entry takes 16 bytes: the root is full.
    let n = 4050 / 16;
    (1..=n).for_each(|n| put(&tree, &key(n), header(n.into()).of_insert(), b""));
    assert_eq!(tree.height().unwrap(), 1);
    horizon.raise(u64::from(n) + 1);
    let marked = EntryHeader { flags: EntryHeader::DELETED, ..header(100_000) };
    for key in (1..=n).map(key) {
        let mut mtr = tree.store().begin().unwrap();
        let mut place = tree.seek_for_change(&mut mtr, &key, Room::Header).unwrap();
        let found = place.header().unwrap();
        assert!(found == EntryHeader::UNVERSIONED || found.trx <= TrxId(n.into()));
        place.set_header(&mut mtr, marked);
        mtr.commit().unwrap();
    }
    assert!(freezes(&tree) > 0);
    (1..=n).for_each(|n| assert_eq!(get(&tree, &key(n)), Some((marked, Vec::new()))));
    confirm(&tree);
}

/// Hints of the hash index and the position of a cursor are those of before.
#[test]
fn a_tree_is_the_same_map_when_its_leaves_are_frozen() {
    let (tree, horizon) = frozen_tree(4096);
    for n in 1..=2000u32 {
        put(&tree, &key(n), header(n.into()), &n.to_be_bytes());
    }
    tree.hash().switch(true);
    let rows = || {
        let mut cursor = tree.cursor();
        let mut rows = Vec::new();
        while cursor.next().unwrap() {
            rows.push((cursor.key().to_vec(), cursor.value().to_vec()));
        }
        rows
    };
    let before = rows();
    (1..=2000).for_each(|n| drop(get(&tree, &key(n))));
    horizon.raise(1001);
    let mut cursor = tree.cursor();
    for (at, row) in before.iter().enumerate() {
        assert!(cursor.next().unwrap());
        assert_eq!((cursor.key(), cursor.value()), (&row.0[..], &row.1[..]));
        if at % 3 == 0 {
            tree.freeze(&row.0, 1).unwrap();
        }
    }
    assert!(!cursor.next().unwrap());
    assert!(freezes(&tree) > 10);
    assert_eq!(rows(), before);
    for n in 1..=2000 {
        let expected = if n <= 1000 { EntryHeader::UNVERSIONED } else { header(n.into()) };
        assert_eq!(get(&tree, &key(n)), Some((expected, n.to_be_bytes().to_vec())));
    }
    confirm(&tree);
}

/// A tree without a horizon, as that of the system, freezes nothing.
#[test]
fn a_tree_without_a_horizon_is_not_frozen() {
    let tree = tree(4096);
    for n in 1..=2000u32 {
        put(&tree, &key(n), header(n.into()), b"");
        tree.freeze(&key(n), 1).unwrap();
    }
    assert_eq!(freezes(&tree), 0);
}
