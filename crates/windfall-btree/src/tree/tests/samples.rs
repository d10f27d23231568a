//! Samples of leaves.
//!
//! **Purpose.** Samples against the true contents of a tree.
//!
//! **Invariants.** Those of `tree/sample.rs`.

use std::thread;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{TestPool, Tree, header, put, tree};
use crate::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    tree::LeafCopy,
};

/// Returns the leaves at so many evenly spaced places, each once: the keys, and the number of leaves that each stands
/// for.
fn sample(tree: &Tree<TestPool>, places: u64, random: &mut StdRng) -> Vec<(Vec<Vec<u8>>, f64)> {
    let (step, mut leaf) = (u64::MAX / places, LeafCopy::default());
    let first = random.random_range(0..step);
    let mut leaves: Vec<(Vec<Vec<u8>>, f64)> = Vec::new();
    let mut seen: Option<Vec<u8>> = None;
    for n in 0..places {
        assert!(tree.copy_leaf_at(first + n * step, &mut leaf).unwrap());
        assert!(leaf.entries().all(|(_, key, value)| key.len() == 4 && !value.is_empty()));
        let low = leaf.low().to_vec();
        if seen.as_ref().is_some_and(|seen| low <= *seen) {
            assert_eq!(seen, Some(low), "a later place leads to an earlier leaf");
            continue;
        }
        seen = Some(low);
        let keys: Vec<_> = leaf.entries().map(|(_, key, _)| key.to_vec()).collect();
        assert!(keys.iter().all(|key| **key >= *leaf.low() && leaf.high().is_none_or(|high| **key < *high)));
        leaves.push((keys, (leaf.weight() / places as f64).max(1.0)));
    }
    leaves
}

#[test]
fn evenly_spaced_places_are_a_sample() {
    let (tree, mut random) = (tree(4096), StdRng::seed_from_u64(3));
    assert!(!tree.copy_leaf_at(0, &mut LeafCopy::default()).unwrap());
    // Leaves of very different numbers of entries, below nodes of different numbers of children.
    for n in 0..6_000u32 {
        let length = if n < 2_000 { 700 } else { 10 };
        put(&tree, &n.wrapping_mul(0x9E37_79B9).to_be_bytes(), header(1), &vec![1; length]);
    }
    for n in 0..4_000u32 {
        put(&tree, &n.to_be_bytes(), header(1), &[1; 300]);
    }
    let entries = {
        let (mut cursor, mut entries) = (tree.cursor(), 0);
        while cursor.next().unwrap() {
            entries += 1;
        }
        f64::from(entries)
    };
    assert!(tree.height().unwrap() >= 3);
    for (places, rounds, within) in [(20, 400, 0.1), (200, 40, 0.1), (1 << 20, 1, 0.0)] {
        let mut sum = 0.0;
        for _ in 0..rounds {
            let leaves = sample(&tree, places, &mut random);
            assert!(leaves.len() as u64 <= places);
            let keys: Vec<_> = leaves.iter().flat_map(|(keys, _)| keys).collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "a leaf comes twice, or out of order");
            sum += leaves.iter().map(|(keys, stands_for)| keys.len() as f64 * stands_for).sum::<f64>();
        }
        let mean = sum / f64::from(rounds);
        assert!((mean / entries - 1.0).abs() <= within, "{places} places: {mean} of {entries}");
    }
}

#[test]
fn a_sample_ends_beside_changes() {
    let tree = &tree(4096);
    (0..500u32).for_each(|n| put(tree, &n.to_be_bytes(), header(1), &[1; 200]));
    let is_done = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut random = StdRng::seed_from_u64(9);
            for n in 0..3_000u32 {
                put(
                    tree,
                    &random.random_range(0..600u32).to_be_bytes(),
                    header(2),
                    &vec![2; 10 + n as usize % 500],
                );
            }
            is_done.store(true, SeqCst);
        });
        let (mut leaf, mut random, mut leaves) = (LeafCopy::default(), StdRng::seed_from_u64(1), 0);
        while !is_done.load(SeqCst) || leaves == 0 {
            leaves += 1;
            assert!(tree.copy_leaf_at(random.random(), &mut leaf).unwrap());
            // An entry of a torn copy would have bytes of two values.
            for (header, _, value) in leaf.entries() {
                assert!(value.iter().all(|byte| u64::from(*byte) == header.trx.0), "{value:?}");
            }
        }
    });
}
