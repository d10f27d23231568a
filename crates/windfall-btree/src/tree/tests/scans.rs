//! Cursors concurrent with changes, and bulk load.
//!
//! **Purpose.** The guarantees of a cursor when the tree changes between its calls; trees that were loaded in bulk.
//!
//! **Invariants.** Keys that are present throughout are seen once, in order (test:
//! `a_cursor_survives_splits_and_merges_between_its_calls`).

use core::ops::Bound;

use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{confirm, get, header, put, remove, tree};
use crate::{
    error::{Error, UsageError},
    keys::successor,
    page::node::key_limit,
    tree::Seek,
};

/// Returns a key that stays; the tests insert and remove other keys between such keys.
fn staying(n: u64) -> Vec<u8> {
    (n * 1000).to_be_bytes().to_vec()
}

#[test]
fn a_cursor_survives_splits_and_merges_between_its_calls() {
    for up in [true, false] {
        let tree = tree(4096);
        for n in 0..600 {
            put(&tree, &staying(n), header(n), &[7; 60]);
        }
        let mut cursor = tree.cursor();
        let mut seen = Vec::new();
        let mut round = 0u64;
        while if up { cursor.next() } else { cursor.prev() }.unwrap() {
            if u64::from_be_bytes(cursor.key().try_into().unwrap()).is_multiple_of(1000) {
                seen.push(cursor.key().to_vec());
            }
            // Leaves around the cursor split and merge.
            let base = round.wrapping_mul(7919) % 600 * 1000 + 1;
            for n in 0..20 {
                put(&tree, &(base + n).to_be_bytes(), header(1), &[1; 200]);
            }
            if round % 2 == 1 {
                let old = (round - 1).wrapping_mul(7919) % 600 * 1000 + 1;
                for n in (base..base + 20).chain(old..old + 20) {
                    remove(&tree, &n.to_be_bytes());
                }
            }
            round += 1;
        }
        let mut expected: Vec<_> = (0..600).map(staying).collect();
        if !up {
            expected.reverse();
        }
        assert_eq!(seen, expected, "upwards: {up}");
        confirm(&tree);
    }
}

#[test]
fn a_cursor_on_an_empty_tree_is_nowhere() {
    let tree = tree(4096);
    let mut cursor = tree.cursor();
    assert!(!cursor.next().unwrap() && !cursor.prev().unwrap() && !cursor.seek(Seek::AtLeast(b"a")).unwrap());
    assert_eq!((cursor.key(), cursor.header()), (&[][..], None));
    put(&tree, b"", header(1), b"the empty key is a key");
    assert!(cursor.seek(Seek::First).unwrap());
    assert_eq!((cursor.key(), cursor.value()), (&b""[..], &b"the empty key is a key"[..]));
    assert!(
        !cursor.next().unwrap()
            && cursor.prev().unwrap()
            && !cursor.prev().unwrap()
            && cursor.next().unwrap()
    );
    remove(&tree, b"");
    assert!(!cursor.seek(Seek::Last).unwrap() && !cursor.prev().unwrap());
}

/// Compares a cursor within random limits with a position among the keys in these limits: the first key is at 1, and 0
/// is before it.
#[test]
fn a_cursor_stays_within_its_limits() {
    let chance = &mut StdRng::seed_from_u64(7);
    let tree = tree(4096);
    let mut all: Vec<Vec<u8>> = Vec::new();
    for n in 0..1_000_u64 {
        // Limits may lie between two keys; some leaves have a prefix, others have none.
        let key = [&b"ab"[..(n / 300 % 3) as usize], &(n * 3).to_be_bytes()[5..]].concat();
        put(&tree, &key, header(n), &vec![1; 10 + (n % 90) as usize]);
        all.push(key);
    }
    all.sort();
    let mut given = 0;
    for round in 0..600 {
        let near = |chance: &mut StdRng| {
            let key = &all[chance.random_range(0..all.len())];
            match chance.random_range(0..6) {
                0 => Vec::new(),
                1 => successor(key).into(),
                2 => key[..key.len() - 1].to_vec(),
                3 => vec![0xff; 3],
                _ => key.clone(),
            }
        };
        let from = near(chance);
        let until = Some(near(chance)).filter(|_| chance.random_range(0..5) > 0);
        let keys: Vec<_> = all
            .iter()
            .filter(|key| **key >= from && until.as_ref().is_none_or(|until| *key < until))
            .collect();
        let behind = keys.len() + 1;
        let mut cursor = tree.cursor();
        cursor.set_limits(Bound::Included(&from), until.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
        let mut at = None;
        let steps = chance.random_range(1..40);
        for step in 0..steps {
            let key = near(chance);
            let below = keys.partition_point(|other| **other < key);
            let up_to = keys.partition_point(|other| **other <= key);
            let onward = chance.random_range(1..120);
            // Discarding the entries that were read ahead does not change the cursor's position.
            if chance.random_range(0..3) == 0 {
                cursor.discard_batch().unwrap();
            }
            let (found, place) = match chance.random_range(0..12) {
                0 => (cursor.seek(Seek::First), 1),
                1 => (cursor.seek(Seek::Last), behind - 1),
                2 => (cursor.seek(Seek::AtLeast(&key)), below + 1),
                3 => (cursor.seek(Seek::Above(&key)), up_to + 1),
                4 => (cursor.seek(Seek::AtMost(&key)), up_to),
                5 => (cursor.seek(Seek::Below(&key)), below),
                n if n % 2 == 0 => {
                    for _ in 1..onward {
                        cursor.prev().unwrap();
                    }
                    (cursor.prev(), at.unwrap_or(behind).saturating_sub(onward))
                }
                _ => {
                    for _ in 1..onward {
                        cursor.next().unwrap();
                    }
                    (cursor.next(), behind.min(at.unwrap_or(0) + onward))
                }
            };
            at = Some(place);
            let due = place.checked_sub(1).and_then(|place| keys.get(place));
            assert_eq!(found.unwrap(), due.is_some(), "round {round}, step {step}");
            assert_eq!(cursor.key(), due.map_or(&[][..], |key| key), "round {round}, step {step}");
            given += u64::from(due.is_some());
        }
    }
    assert!(given > 2_000, "{given}");
}

fn loaded(page_size: usize, fill: usize, keys: &[Vec<u8>], value: impl Fn(usize) -> Vec<u8>) {
    let tree = tree(page_size);
    let mut load = tree.bulk_load(fill).unwrap();
    for (n, key) in keys.iter().enumerate() {
        load.push(key, header(n as u64), &value(n)).unwrap();
    }
    load.finish().unwrap();
    assert_eq!(confirm(&tree).entries, keys.len() as u64);
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(get(&tree, key), Some((header(n as u64), value(n))));
    }
    // The loaded tree can be changed like any other.
    for key in keys.iter().step_by(3) {
        put(&tree, key, header(1), &[9; 300]);
    }
    for key in keys.iter().skip(1).step_by(3) {
        assert!(remove(&tree, key));
    }
    confirm(&tree);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn bulk_load_takes_any_sorted_keys(
        keys in prop::collection::btree_set(prop_oneof![
            3 => prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..8),
            3 => (0u32..5000).prop_map(|n| n.to_be_bytes().to_vec()),
            2 => (0u8..4, any::<u16>()).prop_map(|(a, n)| {
                let mut key = vec![a; key_limit(4096) - 2];
                key.extend_from_slice(&n.to_be_bytes());
                key
            }),
            1 => (0u8..4, 0usize..=key_limit(4096)).prop_map(|(a, len)| vec![a; len]),
        ], 0..600),
        fill in 1usize..=100, lens in prop::collection::vec(0usize..=1024, 1..20),
    ) {
        let keys: Vec<_> = keys.into_iter().collect();
        loaded(4096, fill, &keys, |n| vec![n as u8; lens[n % lens.len()]]);
    }
}

#[test]
fn bulk_load_takes_nothing_and_one_entry() {
    loaded(4096, 90, &[], |_| Vec::new());
    loaded(4096, 90, &[Vec::new()], |_| vec![1; 1024]);
    loaded(4096, 1, &[vec![7; key_limit(4096)]], |_| Vec::new());
}

#[test]
fn bulk_load_of_sparse_pages_with_long_keys_stays_low() {
    let keys: Vec<Vec<u8>> = (0u16..400)
        .map(|n| {
            let mut key = vec![1; key_limit(4096) - 2];
            key.extend_from_slice(&n.to_be_bytes());
            key
        })
        .collect();
    loaded(4096, 1, &keys, |_| Vec::new());
}

#[test]
fn bulk_load_fills_pages_and_logs_each_once() {
    let tree = tree(4096);
    let mut load = tree.bulk_load(100).unwrap();
    for n in 0..50_000u64 {
        load.push(&n.to_be_bytes(), header(n), &[3; 50]).unwrap();
    }
    load.finish().unwrap();
    let report = confirm(&tree);
    assert!(report.leaves <= 50_000 / 55 + 1, "{} leaves", report.leaves);
    // Two groups for the root, its creation and its building, and one for every other page.
    assert_eq!(tree.store().log().len(), report.pages.len() + 1);
    let mut cursor = tree.cursor();
    let mut n = 0u64;
    while cursor.next().unwrap() {
        assert_eq!(cursor.key(), n.to_be_bytes());
        n += 1;
    }
    assert_eq!(n, 50_000);
}

#[test]
fn a_load_of_a_tree_that_has_got_an_entry_fails() {
    // The last tree has more than one leaf then.
    for entries in [1, 2000u64] {
        let tree = tree(4096);
        let mut load = tree.bulk_load(90).unwrap();
        load.push(b"a", header(1), b"").unwrap();
        (0..entries).for_each(|n| put(&tree, &n.to_be_bytes(), header(n), b"value"));
        let refused = load.finish();
        assert!(matches!(refused, Err(Error::Usage(UsageError::NotEmpty))), "{refused:?}");
        assert_eq!(confirm(&tree).entries, entries);
    }
}

#[test]
fn bulk_load_refuses_invalid_entries() {
    let tree = tree(4096);
    let mut load = tree.bulk_load(90).unwrap();
    load.push(b"b", header(1), b"").unwrap();
    assert!(load.push(b"a", header(1), b"").is_err());
    assert!(load.push(b"b", header(1), b"").is_err());
    assert!(load.push(&[1; 769], header(1), b"").is_err());
    assert!(load.push(b"c", header(1), &[1; 1025]).is_err());
    load.push(b"c", header(1), b"").unwrap();
    load.finish().unwrap();
    assert!(tree.bulk_load(90).is_err(), "the tree is not empty");
    assert_eq!(confirm(&tree).entries, 2);
    tree.bulk_load(90).err().unwrap();
}
