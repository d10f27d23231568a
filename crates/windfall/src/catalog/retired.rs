//! Tables, and definitions of tables, that statements have taken out of use.
//!
//! **Purpose.** What a table is in memory, its record, its trees and their hash indexes, is freed in the background and
//! not by the statement that drops it, nor by whichever thread has the last handle.
//!
//! **Invariants.** What is here is found by no name. It is kept until nothing else has it or any of its trees, so no
//! other thread is the last to let go of it. Its hash indexes are given up at once, whoever still has it: nothing reads
//! the trees any more. A step looks at a bounded number of tables.
//!
//! **May touch.** `table`, `sync`.

use std::collections::VecDeque;

use crossbeam_queue::SegQueue;

use super::table::{Shape, Table};
use crate::{
    sync::{Arc, Mutex, Rank},
    tree::store::HashIndex as _,
};

/// How many one step takes in, and how many it looks at of those that others still have.
const A_STEP: usize = 32;

/// What was taken out of use.
#[derive(Debug)]
enum Item {
    /// A dropped table.
    Table(Arc<Table>),
    /// What a table was before it was truncated, or lost an index: some of the trees may live on.
    Shape(Box<Shape>),
}

impl Item {
    fn give_up_hash_indexes(&self) {
        let give_up = |shape: &Shape| {
            let dropped = shape.trees().filter(|tree| tree.space().is_dropped() && tree.hash().is_on());
            dropped.for_each(|tree| tree.hash().switch(false));
        };
        match self {
            Self::Table(table) => table.look(give_up),
            Self::Shape(shape) => give_up(shape),
        }
    }

    /// Whether nothing else has it, nor any of its trees that were dropped.
    fn is_alone(&self) -> bool {
        let alone = |shape: &Shape| {
            shape.trees().all(|tree| Arc::strong_count(tree) == 1 || !tree.space().is_dropped())
        };
        match self {
            Self::Table(table) => Arc::strong_count(table) == 1 && table.look(alone),
            Self::Shape(shape) => alone(shape),
        }
    }
}

/// All that was taken out of use and is not freed yet.
#[derive(Debug)]
pub struct Retired {
    arrived: SegQueue<Item>,
    waiting: Mutex<VecDeque<Item>>,
}

impl Default for Retired {
    fn default() -> Self {
        Self { arrived: SegQueue::new(), waiting: Mutex::new(Rank::Leaf, VecDeque::new()) }
    }
}

impl Retired {
    /// Takes over a table that was dropped.
    pub fn table(&self, table: Arc<Table>) {
        self.arrived.push(Item::Table(table));
    }

    /// Takes over what a table was made of.
    pub fn shape(&self, shape: Shape) {
        self.arrived.push(Item::Shape(Box::new(shape)));
    }

    /// One background step. Says whether there may be more to do at once.
    pub fn free_step(&self) -> bool {
        let arrived: Vec<Item> = core::iter::from_fn(|| self.arrived.pop()).take(A_STEP).collect();
        arrived.iter().for_each(Item::give_up_hash_indexes);
        let more = arrived.len() == A_STEP;
        let mut waiting = self.waiting.lock();
        waiting.extend(arrived);
        let looked_at: Vec<Item> = {
            let most = waiting.len().min(A_STEP);
            waiting.drain(..most).collect()
        };
        drop(waiting);
        let (alone, kept): (Vec<Item>, Vec<Item>) = looked_at.into_iter().partition(Item::is_alone);
        self.waiting.lock().extend(kept);
        // Freed here, under no lock.
        more || alone.len() == A_STEP
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.arrived.len() + self.waiting.lock().len()
    }
}
