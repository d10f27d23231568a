//! Long values, limits, and the hash index.
//!
//! **Purpose.** Overflow chains are written, read, shortened and freed; the hash index finds entries and never returns
//! a wrong one.
//!
//! **Invariants.** Every page is accounted for after every step (checked by `tree/tests/mod.rs::confirm`).

use proptest::prelude::*;

use super::{confirm, get, header, put, remove, tree, tree_on};
use crate::{
    error::{Error, UsageError},
    ids::{PageNo, SpaceId, TrxId},
    page::{EntryHeader, Node},
    sync::Arc,
    tree::{
        OverflowRef, PageSet, Room, Tree, TreeReport,
        hash::{HashBudget, TreeHash},
        overflow::VALUE_BYTES_MAX,
        store::{HashIndex as _, MiniTransaction, PageStore},
        structure::one_change,
        testpool::TestPool,
    },
};

pub(super) fn only_the_root() -> PageSet {
    PageSet::from_iter([PageNo::ROOT])
}

pub(super) fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|at| (at * 7 + at / 251) as u8).collect()
}

pub(super) fn write(tree: &Tree<TestPool>, stamp: u64, value: &[u8], chunk: usize) -> OverflowRef {
    let mut mtr = tree.store().begin().unwrap();
    let mut writer = tree.begin_overflow(&mut mtr, stamp).unwrap();
    mtr.commit().unwrap();
    for chunk in value.chunks(chunk.max(1)) {
        writer.write(chunk).unwrap();
    }
    writer.finish().unwrap().0
}

fn read(tree: &Tree<TestPool>, value: OverflowRef) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    tree.read_overflow(value).read_to_end(&mut out).map(|()| out)
}

pub(super) fn free(tree: &Tree<TestPool>, value: OverflowRef, at_once: usize) {
    while tree.shorten_overflow(value.first, value.stamp, at_once).unwrap() > 0 {}
    let mut mtr = tree.store().begin().unwrap();
    tree.free_overflow(&mut mtr, value.first, value.stamp).unwrap();
    mtr.commit().unwrap();
}

pub(super) fn refer(tree: &Tree<TestPool>, key: &[u8], value: OverflowRef) {
    put(tree, key, EntryHeader { flags: EntryHeader::OVERFLOW, ..header(1) }, &value.to_bytes());
}

/// The value is longer than a test can write, and is refused before a byte of it is read.
#[test]
fn nothing_follows_a_part_of_a_value_that_was_refused() {
    let tree = tree(4096);
    let mut mtr = tree.store().begin().unwrap();
    let mut writer = tree.begin_overflow(&mut mtr, 9).unwrap();
    mtr.commit().unwrap();
    writer.write(b"begin").unwrap();
    let refused = writer.write(&vec![0; VALUE_BYTES_MAX as usize]);
    assert!(matches!(refused, Err(Error::Usage(UsageError::ValueTooLong { .. }))), "{refused:?}");
    let refused = writer.write(b"end");
    assert!(matches!(refused, Err(Error::Usage(UsageError::Incomplete))), "{refused:?}");
    let refused = writer.finish();
    assert!(matches!(refused, Err(Error::Usage(UsageError::Incomplete))), "{refused:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn long_values_come_back(len in 0usize..100_000, chunk in 1usize..40_000, at_once in 1usize..9) {
        let tree = tree(4096);
        let value = bytes(len);
        let reference = write(&tree, 5, &value, chunk);
        prop_assert_eq!(OverflowRef::from_bytes(&reference.to_bytes()), Some(reference));
        refer(&tree, b"long", reference);
        prop_assert_eq!(read(&tree, reference).unwrap(), value);
        let report = confirm(&tree);
        prop_assert_eq!(report.overflow as usize, len.div_ceil(4096 - 48).max(1));
        remove(&tree, b"long");
        free(&tree, reference, at_once);
        prop_assert_eq!(confirm(&tree).pages, only_the_root());
        prop_assert_eq!(read(&tree, reference).is_err(), len > 0, "the chain is freed");
    }
}

#[test]
fn a_chain_can_be_walked_and_freed_however_far_it_was_written() {
    let tree = tree(4096);
    let mut mtr = tree.store().begin().unwrap();
    let mut writer = tree.begin_overflow(&mut mtr, 9).unwrap();
    mtr.commit().unwrap();
    writer.write(&bytes(50_000)).unwrap();
    let first = writer.first();
    drop(writer);
    assert!(tree.store().allocated(*tree.space()).len() > 10);
    // Some steps, then a crash, then again from the same first page.
    assert_eq!(tree.shorten_overflow(first, 9, 3).unwrap(), 3);
    assert_eq!(tree.shorten_overflow(first, 9, 3).unwrap(), 3);
    assert!(tree.has_overflow(first, 9).unwrap() && !tree.has_overflow(first, 8).unwrap());
    assert!(tree.shorten_overflow(first, 8, 3).is_err(), "another chain's stamp");
    free(&tree, OverflowRef { length: 0, stamp: 9, first }, 2);
    assert!(!tree.has_overflow(first, 9).unwrap(), "a second attempt to free the chain is detected");
    assert_eq!(confirm(&tree).pages, only_the_root());
}

#[test]
fn a_chain_on_its_way_out_is_sound_while_its_entry_is_marked_as_deleted() {
    let tree = tree(4096);
    let value = write(&tree, 9, &bytes(50_000), 50_000);
    let mark = |flags| {
        let header = EntryHeader { flags: EntryHeader::OVERFLOW | flags, ..header(1) };
        put(&tree, b"long", header, &value.to_bytes());
    };
    for left in [13, 9, 5, 1] {
        mark(EntryHeader::DELETED);
        assert_eq!(tree.check().unwrap().overflow, left);
        mark(0);
        assert_eq!(tree.check().is_ok(), left == 13, "the check misses lost pages");
        tree.shorten_overflow(value.first, 9, 4).unwrap();
    }
    mark(EntryHeader::DELETED);
    free(&tree, value, 4);
    let report = tree.check().unwrap();
    assert_eq!((report.overflow, report.pages), (0, only_the_root()));
    // The pages now belong to another chain.
    let other = write(&tree, 10, &bytes(50_000), 50_000);
    assert_eq!(other.first, value.first);
    refer(&tree, b"other", other);
    assert_eq!(confirm(&tree).overflow, 13);
}

#[test]
fn a_reader_never_takes_another_value_for_its_own() {
    let tree = tree(4096);
    let old = write(&tree, 1, &bytes(30_000), 1000);
    let mut reader = tree.read_overflow(old);
    reader.read(&mut [0; 6000]).unwrap();
    free(&tree, old, 100);
    let new = write(&tree, 2, &vec![9; 30_000], 1000);
    assert_eq!(new.first, old.first);
    let mut rest = Vec::new();
    let error = reader.read_to_end(&mut rest).unwrap_err();
    assert!(error.to_string().contains("overflow chain"), "{error}");
    assert_eq!(read(&tree, new).unwrap(), vec![9; 30_000]);
}

#[test]
fn exceeded_limits_are_reported() {
    let tree = tree(4096);
    let mut mtr = tree.store().begin().unwrap();
    let error = tree.seek_for_change(&mut mtr, &[1; 1539], Room::Keep).unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::KeyTooLong { length: 1539, limit: 1538, .. })));
    let error = tree.seek_for_change(&mut mtr, b"a", Room::Value(1025)).unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::ValueTooLong { length: 1025, limit: 1024, .. })));
    assert!(tree.store().is_empty(tree.space()).unwrap(), "nothing was made for a call that failed");
    assert_eq!(tree.check().unwrap(), TreeReport::default());
    assert_eq!(get(&tree, &[1; 5000]), None);
}

#[test]
fn the_hash_index_finds_and_never_lies() {
    let pool = Arc::new(TestPool::new(4096, false));
    let budget = Arc::new(HashBudget::new(100_000));
    let tree = Tree::new(pool.clone(), SpaceId(77), TreeHash::new(budget.clone()));
    tree.hash().switch(true);
    let key = |n: u64| (n * 10).to_be_bytes();
    for n in 0..5000 {
        put(&tree, &key(n), header(n), &n.to_le_bytes());
    }
    assert_eq!(budget.used(), 0, "nothing was read yet");
    for round in 0..6 {
        for n in 0..5000 {
            // Each earlier round has removed one residue class.
            let expected = (n % 7 >= round).then(|| (header(n), n.to_le_bytes().to_vec()));
            assert_eq!(get(&tree, &key(n)), expected);
            assert_eq!(get(&tree, &(n * 10 + 1).to_be_bytes()), None);
        }
        for n in (round..5000).step_by(7) {
            remove(&tree, &key(n));
        }
    }
    let used = tree.hash().bytes();
    assert!(used > 8192 && used <= 100_000, "{used} bytes");
    // All trees share the budget: a second tree gets only the rest.
    let second = Tree::new(pool.clone(), SpaceId(78), TreeHash::new(budget.clone()));
    second.hash().switch(true);
    for n in 0..50_000 {
        second.hash().note(crate::tree::hash::hash_of(&key(n)), PageNo(7), 0);
    }
    assert!(budget.used() <= 100_000);
    tree.hash().switch(false);
    drop(second);
    assert_eq!(tree.hash().bytes(), 0);
    // Memory is returned when the epoch has advanced.
    for _ in 0..100_000 {
        if budget.used() == 0 {
            break;
        }
        budget.free_step();
    }
    assert_eq!(budget.used(), 0);
    drop(tree_on(&pool));
}

/// Entries as long and as short as possible, in every order, and headers that grow: the log that one of them takes to
/// make room stays within the reservation.
#[test]
fn making_room_for_an_entry_takes_no_more_log_than_is_reserved() {
    let mut seed = 5u64;
    let mut chance = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    // The largest numbers of splits for an entry and for a header.
    let mut worst = [0, 0];
    // The longest group, in tenths of a page.
    let mut most_at_once = 0;
    for page_size in [4096, 8192] {
        let tree = tree(page_size);
        let (longest_key, longest_value) = (tree.key_limit(), tree.inline_limit());
        let (mut before, mut keys) = (0, Vec::new());
        for n in 0..8000u64 {
            let is_entry = n % 2 == 0;
            if is_entry {
                let mut key = vec![chance(3) as u8; [2, 40, longest_key - 3][chance(3)]];
                key.extend([chance(250) as u8, chance(250) as u8, chance(4) as u8]);
                let value = vec![7; [0, 30, longest_value][chance(3)]];
                // Most short entries have no header yet.
                let header = if chance(4) == 0 { header(n + 1) } else { EntryHeader::UNVERSIONED };
                put(&tree, &key, header, &value);
                keys.push(key);
            } else {
                let key = &keys[chance(keys.len())];
                let mut mtr = tree.store().begin().unwrap();
                let mut place = tree.seek_for_change(&mut mtr, key, Room::Header).unwrap();
                place.set_header(&mut mtr, EntryHeader { flags: EntryHeader::DELETED, ..header(n + 1) });
                mtr.commit().unwrap();
            }
            let log = tree.store().log_since(before);
            before += log.len();
            // The last group is the change itself.
            let splits = &log[..log.len() - 1];
            let bytes: usize = splits.iter().flatten().map(|logged| logged.op.len() + 24).sum();
            for group in splits {
                let bytes: usize = group.iter().map(|logged| logged.op.len() + 24).sum();
                most_at_once = most_at_once.max(bytes * 10 / page_size);
                assert!(bytes as u64 <= one_change(page_size), "{bytes} bytes in one group");
            }
            let most = &mut worst[usize::from(!is_entry)];
            *most = splits.len().max(*most);
            assert!(
                bytes as u64 <= crate::tree::split_log_limit(page_size),
                "{} splits, {bytes} bytes",
                splits.len()
            );
        }
        confirm(&tree);
    }
    assert!(most_at_once > 20, "{most_at_once} tenths of a page: no group with long fences");
    assert!(
        worst[0] > 3 && worst[1] > 0,
        "{worst:?} splits: no entry met several full nodes, or no header one"
    );
}

#[test]
#[should_panic(expected = "was not announced")]
fn a_value_that_was_not_announced_is_not_written() {
    let tree = tree(4096);
    let mut mtr = tree.store().begin().unwrap();
    let mut place = tree.seek_for_change(&mut mtr, b"key", Room::Value(10)).unwrap();
    place.insert(&mut mtr, header(1), &[7; 11]);
}

/// A header that takes more bytes than its record has must be announced, because the leaf may be full.
#[test]
#[should_panic(expected = "a header that takes more bytes was not announced")]
fn a_header_that_was_not_announced_is_not_written() {
    let tree = tree(4096);
    put(&tree, b"key", EntryHeader::UNVERSIONED, b"value");
    let mut mtr = tree.store().begin().unwrap();
    let mut place = tree.seek_for_change(&mut mtr, b"key", Room::Keep).unwrap();
    place.set_header(&mut mtr, header(1));
}

/// The headers of all entries of a full leaf grow, and shrink again in place.
#[test]
fn headers_grow_in_full_leaves_and_shrink_in_place() {
    for len in [0, 3, 200] {
        let tree = tree(4096);
        let mut load = tree.bulk_load(100).unwrap();
        let key = |n: u16| n.to_be_bytes();
        let value = vec![7; len];
        (0..2000).for_each(|n| load.push(&key(n), EntryHeader::UNVERSIONED, &value).unwrap());
        load.finish().unwrap();
        let full = confirm(&tree).leaves;
        let set = |n, room, header| {
            let mut mtr = tree.store().begin().unwrap();
            tree.seek_for_change(&mut mtr, &key(n), room).unwrap().set_header(&mut mtr, header);
            mtr.commit().unwrap();
        };
        let marked = EntryHeader { flags: EntryHeader::DELETED, ..header(9) };
        (0..2000).for_each(|n| set(n, Room::Header, marked));
        let split = confirm(&tree).leaves;
        assert_eq!(split > full, len < 96, "only records of a whole header stay in place");
        (0..2000).for_each(|n| assert_eq!(get(&tree, &key(n)), Some((marked, value.clone()))));
        for before in [EntryHeader { trx: TrxId(5), ..EntryHeader::UNVERSIONED }, EntryHeader::UNVERSIONED] {
            (0..2000).for_each(|n| set(n, Room::Keep, before));
            (0..2000).for_each(|n| assert_eq!(get(&tree, &key(n)), Some((before, value.clone()))));
            assert_eq!(confirm(&tree).leaves, split);
        }
    }
}

/// What the rollback of a change of all entries does.
#[test]
fn leaves_are_merged_whose_entries_have_become_shorter() {
    let key = |n: u16| n.to_be_bytes();
    let marked = EntryHeader { flags: EntryHeader::DELETED, ..header(9) };
    for long in [false, true] {
        let tree = tree(4096);
        let mut load = tree.bulk_load(100).unwrap();
        (0..4000).for_each(|n| load.push(&key(n), EntryHeader::UNVERSIONED, b"abc").unwrap());
        load.finish().unwrap();
        let full = confirm(&tree).leaves;
        let change = |n, room, header| {
            let key = key(n);
            let mut mtr = tree.store().begin().unwrap();
            let mut place = tree.seek_for_change(&mut mtr, &key, room).unwrap();
            let value = [7; 40];
            let asks = match room {
                Room::Value(length) => place.replace(&mut mtr, header, &value[..length]),
                _ => place.set_header(&mut mtr, header),
            };
            mtr.commit().unwrap();
            asks
        };
        let (forth, back) = if long { (Room::Value(40), Room::Value(3)) } else { (Room::Header, Room::Keep) };
        (0..4000).for_each(|n| assert!(!change(n, forth, marked), "an entry has become longer"));
        let split = confirm(&tree).leaves;
        for n in (0..4000).rev() {
            if change(n, back, EntryHeader::UNVERSIONED) {
                tree.maintain(&key(n)).unwrap();
            }
        }
        let TreeReport { leaves, leaf_bytes, leaf_capacity, .. } = confirm(&tree);
        // Without merges they are 24 and 9 percent full. Of a pair too full for a merge, a leaf is more than half full.
        assert!(
            leaf_bytes * 3 >= leaf_capacity,
            "{full} leaves, {split} with whole headers, {leaves} in the end"
        );
    }
}

/// The frequency of merges is a trade-off of cost: a leaf does not request one after each of many removals, and a root
/// never requests one.
#[test]
fn merges_are_asked_for_by_leaves_that_hold_little() {
    for (rows, expected) in [(20, &[][..]), (200, &[32, 24, 16, 8, 7, 6, 5, 4, 3, 2, 1, 0])] {
        let tree = tree(4096);
        for n in 0..rows {
            put(&tree, &[n], header(1), &[7; 20]);
        }
        let mut asked = (0..rows / 2).collect::<Vec<_>>();
        asked.reverse();
        asked.retain(|n| {
            let mut mtr = tree.store().begin().unwrap();
            let asks = tree.seek_for_change(&mut mtr, &[*n], Room::Keep).unwrap().remove(&mut mtr);
            mtr.commit().unwrap();
            asks
        });
        assert_eq!(asked, expected, "of {rows} rows");
    }
}

/// A caller that has latched a leaf relies on it: a descent to that leaf would wait for ever.
#[test]
fn the_keys_of_a_leaf_with_cut_fences_are_adjacent_and_no_others() {
    let tree = tree(4096);
    let key = |n: u32| [&vec![b'a' + n as u8 / 20; 300][..], &n.to_be_bytes(), &[b'-'; 300]].concat();
    let keys: Vec<_> = (0..200).map(key).collect();
    for key in &keys {
        put(&tree, key, header(1), b"value");
    }
    let mut open = 0;
    for one in &keys {
        let mut mtr = tree.store().begin().unwrap();
        let place = tree.seek_for_change(&mut mtr, one, Room::Keep).unwrap();
        let node = Node::new(mtr.page(place.leaf()));
        let is_here = |key: &&Vec<u8>| node.has_prefix_of(key) && node.find(key).1;
        let here: Vec<_> = keys.iter().filter(is_here).collect();
        open += here.iter().filter(|key| node.contains(key).is_none()).count();
        for key in &keys {
            let adjacent = tree.seek_adjacent(&mtr, &place, key, Room::Keep).unwrap();
            assert_eq!(adjacent.is_some(), here.contains(&key), "{key:?} and the leaf of {one:?}");
        }
    }
    assert!(open > 20, "{open} keys of which a cut fence leaves open where they belong");
}
