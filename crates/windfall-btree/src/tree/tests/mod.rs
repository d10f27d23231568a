//! Tests of the tree on the test pool.
//!
//! **Purpose.** The guarantees of the tree, against a model, under concurrent change, and over a replay of its log.
//!
//! **Invariants.** At each call of [`confirm`] the pages equal those that a replay of the log builds from an empty pool
//! (checked by `tree/tests/mod.rs::confirm`).

mod concurrent;
mod damage;
mod estimates;
mod freezing;
mod look_ups;
mod model;
mod pieces;
mod samples;
mod scans;
mod values;

use super::{
    Horizon, Room, Tree, TreeReport,
    hash::{HashBudget, TreeHash},
    store::{MiniTransaction, PageStore},
    testpool::TestPool,
};
use crate::{
    ids::{SpaceId, TrxId, UndoPos},
    page::EntryHeader,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

/// A horizon that a test sets.
#[derive(Debug, Default)]
struct TestHorizon(AtomicU64);

impl TestHorizon {
    /// Raises it to this transaction, unless it is above.
    fn raise(&self, below: u64) {
        self.0.fetch_max(below, SeqCst);
    }
}

impl Horizon for TestHorizon {
    fn frozen_below(&self) -> TrxId {
        TrxId(self.0.load(SeqCst))
    }
}

/// Creates a tree on a pool of its own that keeps its log.
fn tree(page_size: usize) -> Tree<TestPool> {
    tree_on(&Arc::new(TestPool::new(page_size, true)))
}

fn tree_on(pool: &Arc<TestPool>) -> Tree<TestPool> {
    Tree::new(pool.clone(), SpaceId(77), TreeHash::new(Arc::new(HashBudget::new(1 << 20))))
}

fn header(n: u64) -> EntryHeader {
    EntryHeader::new(TrxId(n), UndoPos(n << 7))
}

/// Inserts or replaces an entry.
fn put(tree: &Tree<TestPool>, key: &[u8], header: EntryHeader, value: &[u8]) {
    let mut mtr = tree.store().begin().unwrap();
    let mut place = tree.seek_for_change(&mut mtr, key, Room::Value(value.len())).unwrap();
    if place.header().is_some() {
        place.replace(&mut mtr, header, value);
    } else {
        place.insert(&mut mtr, header, value);
    }
    mtr.commit().unwrap();
}

/// Removes an entry, and merges nodes if the removal returns that they should be merged.
fn remove(tree: &Tree<TestPool>, key: &[u8]) -> bool {
    let mut mtr = tree.store().begin().unwrap();
    let place = tree.seek_for_change(&mut mtr, key, Room::Keep).unwrap();
    let found = place.header().is_some();
    let small = found && place.remove(&mut mtr);
    mtr.commit().unwrap();
    if small {
        tree.maintain(key).unwrap();
    }
    found
}

fn get(tree: &Tree<TestPool>, key: &[u8]) -> Option<(EntryHeader, Vec<u8>)> {
    let mut value = Vec::new();
    tree.get_into(key, &mut value).unwrap().map(|header| (header, value))
}

/// Checks the tree, that its pages are exactly the allocated ones, and that a replay of the log builds the same pages.
fn confirm(tree: &Tree<TestPool>) -> TreeReport {
    let report = tree.check().unwrap();
    assert_eq!(report.pages, tree.store().allocated(*tree.space()));
    tree.store().replay().unwrap();
    report
}
