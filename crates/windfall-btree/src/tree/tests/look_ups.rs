//! Look-ups by the first bytes of a key.
//!
//! **Purpose.** They find what a cursor finds.
//!
//! **Invariants.** Those of `tree/look_up.rs`.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{confirm, get, header, put, remove, tree};
use crate::tree::{
    LookUp, Room, Seek,
    store::{MiniTransaction, PageStore},
};

#[test]
fn entries_are_found_by_their_first_bytes() {
    let (tree, mut random, mut found) = (tree(4096), StdRng::seed_from_u64(5), LookUp::default());
    assert_eq!(tree.first_with(b"a", &mut found).unwrap(), None, "the tree has no page");
    let mut across = 0;
    for round in 0..400u64 {
        for _ in 0..10 {
            let length = random.random_range(1..6);
            let key: Vec<u8> = (0..length).map(|_| random.random_range(b'a'..b'd')).collect();
            match random.random_range(0..4) {
                0 => drop(remove(&tree, &key)),
                _ => put(&tree, &key, header(round), &vec![round as u8; random.random_range(0..700)]),
            }
        }
        let prefix: Vec<u8> =
            (0..random.random_range(0..5)).map(|_| random.random_range(b'a'..b'd')).collect();
        let mut cursor = tree.cursor();
        let mut more = cursor.seek(Seek::AtLeast(&prefix)).unwrap() && cursor.key().starts_with(&prefix);
        let mut next = tree.first_with(&prefix, &mut found).unwrap();
        while let Some(header) = next {
            assert!(more, "{:?} was found by {prefix:?}", found.key());
            assert_eq!((found.key(), found.value()), (cursor.key(), cursor.value()));
            assert_eq!(Some(header), cursor.header());
            more = cursor.next().unwrap() && cursor.key().starts_with(&prefix);
            next = tree.next_with(&prefix, &mut found).unwrap();
            assert!(found.leaves() >= 2);
        }
        assert!(!more, "{:?} was not found by {prefix:?}", cursor.key());
        let first = tree.first_with(&prefix, &mut found).unwrap();
        assert!(found.leaves() <= 2, "one descent, or two at the end of a leaf");
        across += u32::from(first.is_some() && found.leaves() == 2);
    }
    assert!(across > 0, "no entry was the first one of the next leaf");
}

/// Between a look-up and a change other threads may split and merge the leaf, or free it. The change is made where the
/// key belongs.
#[test]
fn a_hint_at_another_leaf_is_not_followed() {
    let (tree, mut random, mut model) = (tree(4096), StdRng::seed_from_u64(6), BTreeMap::new());
    let value = |n: u64| vec![n as u8; 300];
    let mut moved = 0;
    for n in 0..3000u64 {
        let key = random.random_range(0..400u32).to_be_bytes();
        let (found, hint) = tree.get_before_change(&key, &mut Vec::new()).unwrap();
        assert_eq!(found.is_some(), model.contains_key(&key));
        // Phases in which the tree grows and shrinks.
        for _ in 0..random.random_range(0..12) {
            let other = random.random_range(0..400u32).to_be_bytes();
            if n / 300 % 2 == 0 {
                put(&tree, &other, header(n), &value(n));
                model.insert(other, n);
            } else {
                remove(&tree, &other);
                model.remove(&other);
            }
        }
        let mut mtr = tree.store().begin().unwrap();
        let mut place = tree.seek_for_change_near(&mut mtr, &key, Room::Value(300), hint).unwrap();
        assert_eq!(place.header().is_some(), model.contains_key(&key), "a change of another leaf");
        let leaf = mtr.page_no(place.leaf());
        if place.header().is_some() {
            place.replace(&mut mtr, header(n), &value(n));
        } else {
            place.insert(&mut mtr, header(n), &value(n));
        }
        mtr.commit().unwrap();
        model.insert(key, n);
        moved += usize::from(hint.0.map(|(page, _)| page) != Some(leaf));
        assert_eq!(get(&tree, &key), Some((header(n), value(n))));
    }
    confirm(&tree);
    assert!(moved > 30, "{moved} hints at another leaf");
}

/// Entries are appended, and between them others are inserted and the last ones removed, until leaves merge.
#[test]
fn the_end_of_a_tree_is_found_without_a_descent_and_only_the_end() {
    let (tree, mut random) = (tree(4096), StdRng::seed_from_u64(9));
    let mut model = BTreeMap::new();
    let key = |n: u32| n.to_be_bytes();
    let end = |model: &BTreeMap<u32, u64>| model.last_key_value().map_or(1000, |(last, _)| last + 2);
    let mut by_hint = 0;
    for n in 0..6000u64 {
        let at_end = end(&model);
        let at = match random.random_range(0..10) {
            0 => at_end - random.random_range(0..1000).min(at_end),
            _ => at_end,
        };
        let new = key(at);
        by_hint += usize::from(tree.end_for(&new).is_some());
        if n / 500 % 2 == 1 {
            let last = at_end - 2;
            assert_eq!(remove(&tree, &key(last)), model.remove(&last).is_some());
        }
        let (found, hint) = tree.get_before_change(&new, &mut Vec::new()).unwrap();
        assert_eq!(found.is_some(), model.contains_key(&at), "{at}");
        let mut mtr = tree.store().begin().unwrap();
        let mut place = tree.seek_for_change_near(&mut mtr, &new, Room::Value(100), hint).unwrap();
        if place.header().is_some() {
            place.replace(&mut mtr, header(n), &[7; 100]);
        } else {
            place.insert(&mut mtr, header(n), &[7; 100]);
        }
        mtr.commit().unwrap();
        model.insert(at, n);
        if n / 500 % 4 == 3 {
            let last = end(&model) - 2;
            assert_eq!(remove(&tree, &key(last)), model.remove(&last).is_some());
        }
    }
    for (at, n) in &model {
        assert_eq!(get(&tree, &key(*at)), Some((header(*n), vec![7; 100])));
    }
    confirm(&tree);
    assert!((1000..5500).contains(&by_hint), "{by_hint} entries at the end");
}
