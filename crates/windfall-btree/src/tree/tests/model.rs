//! The tree against a `BTreeMap`.
//!
//! **Purpose.** Random histories over difficult keys, for every page size, while the horizon rises and leaves are
//! frozen.
//!
//! **Invariants.** Tree and model agree at every step that is checked (test: `behaves_as_a_map_4k`). The model does not
//! know which entries share a leaf, so it does not know which are frozen: an entry has the header that was written, or
//! if it may be frozen no header (checked by `tree/tests/model.rs::is_version`).

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use proptest::prelude::*;

use super::{TestHorizon, confirm, get, header, put, remove, tree, tree_on, values::only_the_root};
use crate::{
    ids::UndoPos,
    page::{
        EntryHeader,
        node::{inline_limit, key_limit},
        record::HEADER_ALWAYS,
    },
    sync::Arc,
    tree::{Cursor, Horizon as _, Room, Seek, Tree, testpool::TestPool},
};

type Rows = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// The expected entries, and the horizon of the tree.
#[derive(Default)]
struct Model {
    rows: Rows,
    horizon: Arc<TestHorizon>,
}

impl Model {
    fn tree(&self, page_size: usize) -> Tree<TestPool> {
        tree(page_size).with_horizon(self.horizon.clone())
    }

    /// Returns whether an entry may have this header if the version of step `n` was written.
    fn is_version(&self, n: u64, found: EntryHeader) -> bool {
        let written = version(n);
        let may_be_frozen = written.trx < self.horizon.frozen_below() && !written.is_deleted();
        found == written || may_be_frozen && found == EntryHeader::UNVERSIONED
    }

    /// Checks an entry that was read.
    fn check(&self, key: &[u8], found: Option<(EntryHeader, &[u8])>) {
        let expected = self.rows.get(key);
        assert_eq!(found.map(|(_, value)| value), expected.map(|(_, value)| &value[..]), "{key:?}");
        if let (Some((header, _)), Some((n, _))) = (found, expected) {
            assert!(self.is_version(*n, header), "{key:?}: {header:?} of step {n}");
        }
    }
}

/// One step of a history.
#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, usize),
    Mark(Vec<u8>),
    Remove(Vec<u8>),
    /// Removes this many keys, beginning with the first one at or after the given key.
    RemoveRun(Vec<u8>, usize),
    /// Raises the horizon to this many steps before the present one.
    Raise(u64),
    Freeze(Vec<u8>),
}

/// Difficult keys: short ones, long common prefixes, zeros at the end, the longest possible.
fn key(limit: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(prop::sample::select(vec![0u8, 1, b'a', 255]), 0..6),
        4 => (0u64..400).prop_map(|n| n.to_be_bytes().to_vec()),
        3 => (0u32..200, 0usize..3).prop_map(|(n, zeros)| {
            let mut key = b"a prefix that many keys have in common/".to_vec();
            key.extend_from_slice(&n.to_be_bytes());
            key.resize(key.len() + zeros, 0);
            key
        }),
        2 => (0u8..8, 0u8..30).prop_map(move |(a, b)| {
            let mut key = vec![a; limit];
            key[limit - 1] = b;
            key
        }),
        1 => (0u8..8, 0usize..=limit).prop_map(|(a, len)| vec![a; len]),
    ]
}

fn steps(page_size: usize) -> impl Strategy<Value = Vec<Step>> {
    let key = || key(key_limit(page_size));
    let limit = inline_limit(page_size);
    let len = prop_oneof![4 => 0..40usize, 2 => 0..limit / 4, 1 => 0..=limit, 1 => Just(limit)];
    let step = prop_oneof![
        8 => (key(), len).prop_map(|(key, len)| Step::Put(key, len)),
        3 => key().prop_map(Step::Mark),
        2 => key().prop_map(Step::Remove),
        1 => (key(), 0usize..60).prop_map(|(key, n)| Step::RemoveRun(key, n)),
        1 => (0u64..100).prop_map(Step::Raise),
        1 => key().prop_map(Step::Freeze),
    ];
    prop::collection::vec(step, 1..400)
}

/// Headers that take as few and as many bytes as there are.
fn version(n: u64) -> EntryHeader {
    match n % 6 {
        0 => EntryHeader::UNVERSIONED,
        1 => EntryHeader { undo: UndoPos(0), ..header(n) },
        2 => EntryHeader { flags: EntryHeader::DELETED, ..header(n) },
        _ => header(n),
    }
}

fn value(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n as usize * 31 + at) as u8).collect()
}

fn run(tree: &Tree<TestPool>, model: &mut Model, step: &Step, n: u64) {
    use crate::tree::store::{MiniTransaction, PageStore};
    match step {
        Step::Put(key, len) => {
            put(tree, key, version(n), &value(n, *len));
            model.rows.insert(key.clone(), (n, value(n, *len)));
        }
        Step::Mark(key) => {
            let mut mtr = tree.store().begin().unwrap();
            // No header takes fewer bytes than this one.
            let room = if version(n) == EntryHeader::UNVERSIONED { Room::Keep } else { Room::Header };
            let mut place = tree.seek_for_change(&mut mtr, key, room).unwrap();
            let mut value = Vec::new();
            place.value_into(&mtr, &mut value);
            model.check(key, place.header().map(|header| (header, &value[..])));
            if place.header().is_some() {
                place.set_header(&mut mtr, version(n));
                model.rows.get_mut(key).unwrap().0 = n;
            }
            mtr.commit().unwrap();
        }
        Step::Remove(key) => assert_eq!(remove(tree, key), model.rows.remove(key).is_some()),
        Step::RemoveRun(from, n) => {
            let keys: Vec<_> =
                model.rows.range(from.clone()..).take(*n).map(|(key, _)| key.clone()).collect();
            for key in keys {
                assert!(remove(tree, &key));
                model.rows.remove(&key);
            }
        }
        Step::Raise(ago) => model.horizon.raise(n.saturating_sub(*ago)),
        Step::Freeze(key) => {
            tree.freeze(key, 1).unwrap();
            // A short entry is frozen wherever it may be.
            if let Some((header, value)) = get(tree, key)
                && key.len() + value.len() < HEADER_ALWAYS
                && header.trx < model.horizon.frozen_below()
                && !header.is_deleted()
            {
                assert_eq!(header, EntryHeader::UNVERSIONED, "{key:?}");
            }
        }
    }
}

fn compare(tree: &Tree<TestPool>, model: &Model) {
    for key in model.rows.keys() {
        check_get(tree, model, key);
    }
    let check = |cursor: &Cursor<&Tree<TestPool>>, key: &Vec<u8>| {
        assert_eq!(cursor.key(), key);
        model.check(key, cursor.header().map(|header| (header, cursor.value())));
    };
    let mut cursor = tree.cursor();
    for key in model.rows.keys() {
        assert!(cursor.next().unwrap());
        check(&cursor, key);
    }
    assert!(!cursor.next().unwrap());
    for key in model.rows.keys().rev() {
        assert!(cursor.prev().unwrap());
        check(&cursor, key);
    }
    assert!(!cursor.prev().unwrap());
}

fn check_get(tree: &Tree<TestPool>, model: &Model, key: &[u8]) {
    let found = get(tree, key);
    model.check(key, found.as_ref().map(|(header, value)| (*header, &value[..])));
}

/// Compares every kind of seek, from a key that may or may not be present.
fn compare_seeks(tree: &Tree<TestPool>, model: &Rows, key: &Vec<u8>) {
    let mut cursor = tree.cursor();
    let (below, above) = ((Unbounded, Excluded(key)), (Excluded(key), Unbounded));
    for (seek, expected) in [
        (Seek::AtLeast(key), model.range(key.clone()..).next()),
        (Seek::Above(key), model.range::<Vec<u8>, _>(above).next()),
        (Seek::AtMost(key), model.range(..=key.clone()).next_back()),
        (Seek::Below(key), model.range::<Vec<u8>, _>(below).next_back()),
        (Seek::First, model.iter().next()),
        (Seek::Last, model.iter().next_back()),
    ] {
        assert_eq!(cursor.seek(seek).unwrap(), expected.is_some(), "{seek:?}");
        assert_eq!(cursor.key(), expected.map_or(&[][..], |(key, _)| &key[..]), "{seek:?}");
        // Then step to its neighbours, in both directions.
        let Some((at, _)) = expected else { continue };
        let mut after = model.range::<Vec<u8>, _>((Excluded(at), Unbounded)).map(|(key, _)| key);
        for _ in 0..20 {
            let expected = after.next();
            assert_eq!(cursor.next().unwrap(), expected.is_some());
            assert_eq!(cursor.key(), expected.map_or(&[][..], |key| &key[..]));
        }
        assert!(cursor.seek(Seek::AtMost(at)).unwrap());
        let mut before = model.range(..at.clone()).rev().map(|(key, _)| key);
        for _ in 0..20 {
            let expected = before.next();
            assert_eq!(cursor.prev().unwrap(), expected.is_some());
            assert_eq!(cursor.key(), expected.map_or(&[][..], |key| &key[..]));
        }
    }
}

fn history(page_size: usize, steps: &[Step]) {
    let mut model = Model::default();
    let tree = model.tree(page_size);
    for (n, step) in (1..).zip(steps) {
        run(&tree, &mut model, step, n);
        if let Step::Put(key, _) | Step::Remove(key) | Step::Mark(key) | Step::Freeze(key) = step {
            check_get(&tree, &model, key);
        }
        if n % 50 == 0 {
            if let Step::Put(key, _) | Step::Remove(key) | Step::RemoveRun(key, _) = step {
                compare_seeks(&tree, &model.rows, key);
            }
            tree.hash().switch(n % 100 == 0);
        }
    }
    compare(&tree, &model);
    assert_eq!(confirm(&tree).entries, model.rows.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn behaves_as_a_map_4k(steps in steps(4096)) {
        history(4096, &steps);
    }

    #[test]
    fn behaves_as_a_map_16k(steps in steps(16_384)) {
        history(16_384, &steps);
    }

    #[test]
    fn a_crash_between_any_two_groups_leaves_a_whole_tree(steps in steps(4096)) {
        let mut model = Model::default();
        let tree = model.tree(4096);
        for (n, step) in (1..).zip(&steps) {
            run(&tree, &mut model, step, n);
        }
        let all = tree.store().log().len();
        // Every group of short histories, a hundred of long ones.
        for groups in (0..=all).step_by(all / 100 + 1) {
            let crashed = tree_on(&Arc::new(tree.store().after(groups).unwrap()));
            let report = crashed.check().unwrap();
            prop_assert_eq!(report.pages, crashed.store().allocated(*crashed.space()), "pages leak");
        }
    }

    #[test]
    fn behaves_as_a_map_64k(steps in steps(65_536)) {
        history(65_536, &steps);
    }
}

#[test]
fn many_rows_come_and_go() {
    let tree = tree(4096);
    let order = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    for n in 0..20_000 {
        put(&tree, &order(n).to_be_bytes(), header(n), &value(n, 50));
    }
    for n in 0..20_000 {
        assert_eq!(get(&tree, &order(n).to_be_bytes()), Some((header(n), value(n, 50))));
    }
    let before = tree.store().allocated(*tree.space()).len();
    for n in 0..20_000 {
        assert!(remove(&tree, &order(n).to_be_bytes()));
    }
    let after = tree.store().allocated(*tree.space()).len();
    assert!(before > 400 && after == 1, "{before} pages became {after}");
    confirm(&tree);
}

/// If separators are so long that a node has three or four children, nodes above the leaves cannot be merged for a long
/// time: their only children become neighbours late.
#[test]
fn a_tree_that_is_emptied_in_any_order_is_one_page() {
    let tree = tree(4096);
    let limit = tree.key_limit();
    for group in [2u64, 3, 5, 2000] {
        let key = |n: u64| {
            let mut key = vec![0x55; limit];
            key[..8].copy_from_slice(&(n / group).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            key[limit - 8..].copy_from_slice(&(n % group).to_be_bytes());
            key
        };
        for order in [1u64, 1999, 617, 1201] {
            for n in 0..2000 {
                put(&tree, &key(n), header(n), &value(n, n as usize % 5 * 250));
            }
            for n in 0..2000 {
                assert!(remove(&tree, &key(n * order % 2000)));
            }
            confirm(&tree);
            let pages = tree.store().allocated(*tree.space());
            assert_eq!(pages, only_the_root(), "groups of {group}, order {order}");
        }
    }
}

#[test]
fn ascending_keys_fill_their_pages() {
    let tree = tree(4096);
    for n in 0..20_000u64 {
        put(&tree, &n.to_be_bytes(), header(n), &value(n, 50));
    }
    // A row takes 79 bytes with its slot: 51 rows fill the last page. When the next begins, they have a prefix.
    let pages = tree.store().allocated(*tree.space()).len();
    assert!(pages < 20_000 / 50, "{pages} pages");
}
