//! Estimates of the number of entries in a range.
//!
//! **Purpose.** Estimates against the true numbers, in trees that were filled in different ways.
//!
//! **Invariants.** An estimate is exact, or within a factor of two (test: `an_estimate_is_within_a_factor_of_two`).

use core::ops::Bound;
use std::collections::BTreeMap;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{TestPool, Tree, header, put, remove, tree};
use crate::{
    page::node::key_limit,
    sync::work::{Work, so_far},
};

type Entries = BTreeMap<Vec<u8>, usize>;

fn key(n: u32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

/// Returns a tree with these keys, inserted in this order, with values of these lengths.
fn filled(entries: impl IntoIterator<Item = (u32, usize)>) -> (Tree<TestPool>, Entries) {
    let (tree, mut all) = (tree(4096), Entries::new());
    for (n, length) in entries {
        put(&tree, &key(n), header(1), &vec![1; length]);
        all.insert(key(n), length);
    }
    (tree, all)
}

fn random_bound(random: &mut StdRng) -> Bound<Vec<u8>> {
    match random.random_range(0..10) {
        0 => Bound::Unbounded,
        n if n < 6 => Bound::Included(key(random.random())),
        _ => Bound::Excluded(key(random.random())),
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Returns the true number of entries, 0 if the lower bound is above the upper one.
fn count(entries: &Entries, bounds: &[Bound<Vec<u8>>; 2]) -> u64 {
    let [lower, upper] = bounds;
    let is_above = |key: &Vec<u8>| match lower {
        Bound::Included(lower) => key >= lower,
        Bound::Excluded(lower) => key > lower,
        Bound::Unbounded => true,
    };
    let is_below = |key: &Vec<u8>| match upper {
        Bound::Included(upper) => key <= upper,
        Bound::Excluded(upper) => key < upper,
        Bound::Unbounded => true,
    };
    entries.keys().filter(|key| is_above(key) && is_below(key)).count() as u64
}

fn trees(seed: u64) -> Vec<(&'static str, Tree<TestPool>, Entries)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut draw = |count: u32| (0..count).map(|_| random.random()).collect::<Vec<u32>>();
    let (some, many) = (draw(3_000), draw(40_000));
    let spread = |n: u32| n * (u32::MAX / 40_000);
    let named = |name, (tree, entries)| (name, tree, entries);
    vec![
        named("empty", filled([])),
        named("one leaf", filled(some[..20].iter().map(|n| (*n, 30)))),
        named("random", filled(many.iter().map(|n| (*n, 30)))),
        named("ascending", filled((0..40_000).map(|n| (spread(n), 30)))),
        named("descending", filled((0..40_000).rev().map(|n| (spread(n), 30)))),
        named("values of many lengths", filled(some.iter().map(|n| (*n, *n as usize % 900)))),
    ]
}

#[test]
fn an_estimate_is_within_a_factor_of_two() {
    let mut longest = 0;
    for seed in 0..3 {
        let mut random = StdRng::seed_from_u64(seed);
        for (name, tree, entries) in trees(seed) {
            for _ in 0..200 {
                let bounds = [random_bound(&mut random), random_bound(&mut random)];
                let (expected, found) = (
                    count(&entries, &bounds),
                    tree.estimate(borrowed(&bounds[0]), borrowed(&bounds[1])).unwrap(),
                );
                assert!(
                    found >= expected / 2 && found <= 2 * expected,
                    "seed {seed}, {name}: {found} entries instead of {expected} in {bounds:?}"
                );
                longest = longest.max(expected);
            }
        }
    }
    assert!(longest > 10_000, "{longest}");
}

/// Returns long keys in order, of which neighbours differ in their last byte: most separators have their length.
fn long_key(n: u32) -> Vec<u8> {
    let mut key = vec![0; key_limit(4096)];
    key[..4].copy_from_slice(&(n / 64).to_be_bytes());
    *key.last_mut().unwrap() = (n % 64) as u8;
    key
}

/// The last nodes of each level have few children, and later many.
#[test]
fn an_estimate_up_to_the_end_of_a_growing_tree_is_within_a_factor_of_two() {
    let tree = tree(4096);
    for n in 0..6_000 {
        put(&tree, &long_key(n), header(1), &[]);
        for from in [0, n / 3] {
            let found = tree.estimate(Bound::Included(&long_key(from)), Bound::Unbounded).unwrap();
            let expected = u64::from(n + 1 - from);
            assert!(
                found >= expected / 2 && found <= 2 * expected,
                "{found} of {expected} entries from {from}, the tree has {} levels",
                tree.height().unwrap()
            );
        }
    }
    assert!(tree.height().unwrap() >= 5, "{:?}", tree.height());
}

#[test]
fn an_estimate_reads_few_pages() {
    let tree = tree(4096);
    (0..6_000).for_each(|n| put(&tree, &long_key(n), header(1), &[]));
    let height = u64::from(tree.height().unwrap());
    for (from, to) in [(10, 10), (10, 11), (700, 720), (100, 5_900)] {
        let before = so_far();
        tree.estimate(Bound::Included(&long_key(from)), Bound::Included(&long_key(to))).unwrap();
        let read = (so_far() - before).of(Work::Frame);
        // Of each node that is sampled, its parent is read again.
        let most = 2 * height + if to - from < 2 { 0 } else { 2 * 12 * (height - 1) };
        assert!(read <= most, "{read} pages for {from} to {to}, the tree has {height} levels");
    }
}

#[test]
fn an_estimate_of_a_few_leaves_is_exact() {
    let (tree, entries) = filled((0..2_000).map(|n| (n * 1000, n as usize % 700)));
    for (from, rows) in [(0, 1), (5, 3), (100, 10), (500, 25), (1_999, 1), (700, 0)] {
        let bounds = [Bound::Included(key(from * 1000)), Bound::Excluded(key((from + rows) * 1000))];
        let found = tree.estimate(borrowed(&bounds[0]), borrowed(&bounds[1])).unwrap();
        assert_eq!(found, count(&entries, &bounds), "{rows} rows from {from}");
        let bounds = [Bound::Excluded(key(from * 1000)), Bound::Included(key((from + rows) * 1000))];
        let found = tree.estimate(borrowed(&bounds[0]), borrowed(&bounds[1])).unwrap();
        assert_eq!(found, count(&entries, &bounds), "{rows} rows after {from}");
    }
}

/// Splits and merges between the descents and reads of an estimate only make it worse.
#[test]
fn an_estimate_ends_beside_changes() {
    let (tree, _) = filled((0..5_000).map(|n| (n * 1000, 100)));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0..20_000_u32 {
                let n = n.wrapping_mul(7919) % 5_000 * 1000;
                if n % 3 == 0 {
                    remove(&tree, &key(n));
                }
                put(&tree, &key(n + 1), header(2), &vec![2; n as usize % 400]);
            }
        });
        let mut estimates = 0;
        while !writer.is_finished() || estimates == 0 {
            let found = tree.estimate(Bound::Unbounded, Bound::Unbounded).unwrap();
            assert!((500..100_000).contains(&found), "{found}");
            estimates += 1;
        }
    });
}
