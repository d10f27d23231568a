//! Many threads on one tree.
//!
//! **Purpose.** Readers and cursors run concurrently with writers that freeze, split and merge.
//!
//! **Invariants.** Keys that are never removed are always found, with a value that was written as a whole, and every
//! cursor sees each of them once, in order (test: `readers_and_cursors_during_splits_and_merges`).

use std::time::{Duration, Instant};

use super::{TestHorizon, confirm, get, header, put, remove, tree};
use crate::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    tree::{Tree, store::HashIndex as _, testpool::TestPool},
};

const STAYING: u64 = 500;

/// The keys of a test.
#[derive(Clone, Copy)]
struct Keys {
    /// Bytes before the number, most of which few keys share.
    before: usize,
    /// Bytes behind it.
    behind: usize,
}

const SHORT: Keys = Keys { before: 16, behind: 0 };
/// Nodes have fences that are cut.
const LONG: Keys = Keys { before: 400, behind: 500 };

impl Keys {
    fn key(self, n: u64) -> Vec<u8> {
        let group = vec![b'a' + (n / 100_000) as u8; self.before];
        [group, n.to_be_bytes().to_vec(), vec![b'-'; self.behind]].concat()
    }

    fn number(self, key: &[u8]) -> u64 {
        u64::from_be_bytes(key[self.before..][..8].try_into().unwrap())
    }
}

fn key(n: u64) -> Vec<u8> {
    SHORT.key(n)
}

/// Returns a value that reveals when it is torn: its first byte repeated, and a length that follows from that byte.
fn value(seed: u64) -> Vec<u8> {
    vec![seed as u8; 8 + seed as u8 as usize]
}

fn check_value(value: &[u8]) {
    let first = value[0];
    assert!(
        value.len() == 8 + first as usize && value.iter().all(|byte| *byte == first),
        "a torn value: {value:?}"
    );
}

/// Writes. Each writer has keys of its own between those that are never removed.
fn write(tree: &Tree<TestPool>, keys: Keys, writer: u64, stop: &AtomicBool) {
    let key = |n| keys.key(n);
    let mut random = writer + 1;
    while !stop.load(Relaxed) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let base = (random >> 33) % STAYING * 1000;
        put(tree, &key(base), header(random >> 20 & 0xffff), &value(random >> 40));
        for n in 1..30 {
            put(tree, &key(base + n * 10 + writer), header(1), &value(n));
        }
        for n in 1..30 {
            assert!(remove(tree, &key(base + n * 10 + writer)));
        }
    }
}

/// Scans the tree at least once, even if `stop` is set before it has begun.
fn scan(tree: &Tree<TestPool>, keys: Keys, up: bool, stop: &AtomicBool) {
    let mut is_last = false;
    while !is_last {
        is_last = stop.load(Relaxed);
        let mut cursor = tree.cursor();
        let mut last = None;
        let mut staying = 0;
        while if up { cursor.next() } else { cursor.prev() }.unwrap() {
            check_value(cursor.value());
            let n = keys.number(cursor.key());
            assert!(last.is_none_or(|last| if up { last < n } else { last > n }), "{n} after {last:?}");
            last = Some(n);
            if n.is_multiple_of(1000) {
                assert_eq!(n / 1000, if up { staying } else { STAYING - 1 - staying }, "a key was left out");
                staying += 1;
            }
        }
        assert_eq!(staying, STAYING);
    }
}

fn read(tree: &Tree<TestPool>, keys: Keys, stop: &AtomicBool) {
    let key = |n| keys.key(n);
    let (mut reads, mut is_last) = (0, false);
    while !is_last {
        is_last = stop.load(Relaxed);
        let n = reads * 7919 % STAYING;
        check_value(&get(tree, &key(n * 1000)).expect("the key stays").1);
        assert_eq!(get(tree, &key(n * 1000 + 999)), None);
        reads += 1;
        if reads % 5000 == 0 {
            tree.hash().switch(!tree.hash().is_on());
        }
    }
}

#[test]
fn readers_and_cursors_during_splits_and_merges() {
    [SHORT, LONG].into_iter().for_each(read_and_scan_during_splits_and_merges);
}

fn read_and_scan_during_splits_and_merges(keys: Keys) {
    let horizon = Arc::new(TestHorizon::default());
    let tree = tree(4096).with_horizon(horizon.clone());
    for n in 0..STAYING {
        put(&tree, &keys.key(n * 1000), header(n), &value(n));
    }
    tree.hash().switch(true);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let (tree, stop) = (&tree, &stop);
        for writer in 0..3 {
            threads.spawn(move || write(tree, keys, writer, stop));
        }
        let scans = [true, false].map(|up| threads.spawn(move || scan(tree, keys, up, stop)));
        let reads = threads.spawn(move || read(tree, keys, stop));
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) && !reads.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
            // The versions of the rows that stay have any transaction up to 65,535.
            horizon.raise(begin.elapsed().as_millis() as u64 * 20);
        }
        stop.store(true, Relaxed);
        reads.join().unwrap();
        for scan in scans {
            scan.join().unwrap();
        }
    });
    assert_eq!(confirm(&tree).entries, STAYING);
}

#[test]
fn the_root_is_made_once() {
    for _ in 0..50 {
        let tree = tree(4096);
        std::thread::scope(|threads| {
            for n in 0..4 {
                let tree = &tree;
                threads.spawn(move || put(tree, &key(n), header(n), &value(n)));
            }
        });
        assert_eq!(confirm(&tree).entries, 4);
    }
}
