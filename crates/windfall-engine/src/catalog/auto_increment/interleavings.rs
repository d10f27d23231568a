//! Model checks: numbers are allocated in many interleavings, until the database is closed.

use std::collections::BTreeSet;

use super::*;
use crate::{
    buffer::interleavings::{EMPTY, Prepared},
    sync::model::{explore, spawn},
    tree::hash::{HashBudget, TreeHash},
};

/// Two threads allocate numbers, enough for the ceiling to rise repeatedly, while the database is closed.
///
/// Catches: a number that is allocated before the ceiling above it is logged; a number that is allocated between the
/// read of the next number and the end, and is allocated again after the next opening.
#[test]
fn a_number_comes_once_and_below_the_ceiling() {
    let prepared = Prepared::new();
    explore(4000, &["CeilingNotLoggedYet", "AutoIncrementEndsLate"], move || {
        let base = prepared.open(16);
        let space = base.pool.attach(EMPTY, Durability::Logged);
        let tree = Arc::new(Tree::new(base.pool.clone(), space, TreeHash::new(Arc::new(HashBudget::new(0)))));
        let numbers = Arc::new(AutoIncrement::default());
        // Creates the root, and a ceiling for the next numbers.
        assert_eq!(numbers.allocate(&tree, 1).unwrap(), 1..2);
        let takers = [1, 3].map(|count| {
            let (numbers, tree) = (numbers.clone(), tree.clone());
            spawn(move || {
                let mut taken = Vec::new();
                for _ in 0..4 {
                    match numbers.allocate(&tree, count) {
                        Ok(range) => {
                            let ceiling = tablespace::ceiling(tree.store(), tree.space()).unwrap();
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
        let next = AutoIncrement::default().peek(&tree).unwrap();
        assert!(all.last().is_none_or(|last| *last < next), "{next} comes again");
        assert_eq!(next, all.len() as u64 + 2, "some are left out");
    });
}
