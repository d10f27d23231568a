//! Model checks: numbers are allocated in many interleavings, until the database is closed.

use std::collections::BTreeSet;

use super::*;
use crate::{
    buffer::{
        BufferPool,
        interleavings::{EMPTY, Prepared},
    },
    sync::model::{explore, spawn},
    tree::hash::{HashBudget, TreeHash},
};

fn new_counter() -> Counter {
    Counter::new(CounterKind::RowId)
}

/// Returns the next number after a crash now.
fn logged_ceiling(tree: &Arc<Tree>) -> u64 {
    tablespace::ceiling(tree.store(), tree.space(), CounterKind::RowId).unwrap()
}

fn new_tree(pool: &Arc<BufferPool>) -> Arc<Tree> {
    let space = pool.attach(EMPTY, Durability::Logged);
    Arc::new(Tree::new(pool.clone(), space, TreeHash::new(Arc::new(HashBudget::new(0)))))
}

/// Two threads allocate numbers, enough for the ceiling to rise repeatedly, while the database is closed.
///
/// Catches: a number that is allocated before the ceiling above it is logged; a number that is allocated between the
/// read of the next number and the end, and is allocated again after the next opening.
#[test]
fn a_number_comes_once_and_below_the_ceiling() {
    let prepared = Prepared::new();
    explore(4000, &["CeilingNotLoggedYet", "AutoIncrementEndsLate"], move || {
        let base = prepared.open(16);
        let tree = new_tree(&base.pool);
        let numbers = Arc::new(new_counter());
        // Creates the root, and a ceiling for the next numbers.
        assert_eq!(numbers.allocate(&tree, 1).unwrap(), 1..2);
        let takers = [1, 3].map(|count| {
            let (numbers, tree) = (numbers.clone(), tree.clone());
            spawn(move || {
                let mut taken = Vec::new();
                for _ in 0..4 {
                    match numbers.allocate(&tree, count) {
                        Ok(range) => {
                            let ceiling = logged_ceiling(&tree);
                            assert!(range.end <= ceiling, "{range:?} is above the ceiling, {ceiling}");
                            taken.extend(range);
                        }
                        Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
                    }
                }
                taken
            })
        });
        let closer = {
            let numbers = numbers.clone();
            spawn(move || numbers.close().unwrap())
        };
        let taken: Vec<u64> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
        closer.join().unwrap();
        let all: BTreeSet<u64> = taken.iter().copied().collect();
        assert_eq!(all.len(), taken.len(), "a number came twice");
        let next = new_counter().peek(&tree).unwrap();
        assert!(all.last().is_none_or(|last| *last < next), "{next} comes again");
        assert_eq!(next, all.len() as u64 + 2, "some are left out");
    });
}

/// Two threads allocate numbers while the next number is set to the one that it is, which is below the ceiling.
///
/// Catches: a number that is allocated below the ceiling of before, and returned while the one that is logged is lower.
#[test]
fn a_number_that_was_set_is_below_the_ceiling_before_it_is_returned() {
    let prepared = Prepared::new();
    explore(4000, &["CeilingOfBefore"], move || {
        let base = prepared.open(16);
        let tree = new_tree(&base.pool);
        let numbers = Arc::new(new_counter());
        assert_eq!(numbers.allocate(&tree, 4).unwrap(), 1..5);
        let takers = [2, 3].map(|count| {
            let (numbers, tree) = (numbers.clone(), tree.clone());
            spawn(move || numbers.allocate(&tree, count).unwrap())
        });
        numbers.set(&tree, 5).unwrap();
        let after = numbers.peek(&tree).unwrap();
        let taken = takers.map(|taker| taker.join().unwrap());
        let next = numbers.peek(&tree).unwrap();
        assert!(next >= after, "the next number falls from {after} to {next}, and was not set");
        let logged = logged_ceiling(&tree);
        assert!(next <= logged, "after {taken:?} the next number is {next}, and {logged} after a crash");
    });
}

/// A range is returned in part, while another thread allocates numbers and a third has chosen one of the range.
///
/// Catches: a number that is returned to the counter although it was chosen; one that is allocated twice.
#[test]
fn no_number_is_returned_below_one_that_was_chosen() {
    let prepared = Prepared::new();
    explore(4000, &["ChosenNumberTakenBack"], move || {
        let base = prepared.open(16);
        let tree = new_tree(&base.pool);
        let numbers = Arc::new(new_counter());
        assert_eq!(numbers.allocate(&tree, 6).unwrap(), 1..7);
        let taker = {
            let (numbers, tree) = (numbers.clone(), tree.clone());
            spawn(move || [(); 2].map(|()| numbers.allocate(&tree, 1).unwrap().start))
        };
        let chooser = {
            let (numbers, tree) = (numbers.clone(), tree.clone());
            spawn(move || {
                numbers.raise(&tree, 4).unwrap();
                numbers.peek(&tree).unwrap()
            })
        };
        let is_back = numbers.take_back(&(3..7));
        let (taken, after) = (taker.join().unwrap(), chooser.join().unwrap());
        let next = numbers.peek(&tree).unwrap();
        assert!(after > 4 && next > 4, "4 was chosen, and comes again before {next}");
        assert!(taken[0] < taken[1] && taken[1] < next, "{taken:?}, then {next}");
        assert!(taken[0] >= if is_back { 3 } else { 7 }, "{taken:?} came twice: {is_back}");
        assert!(next <= logged_ceiling(&tree), "{next} is above the ceiling");
    });
}
