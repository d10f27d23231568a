//! Tables and trees that statements have taken out of use.
//!
//! **Purpose.** What a table is in memory, its record, its trees and their hash indexes, is freed in the background and
//! not by the statement that drops it, nor by whichever thread has the last handle.
//!
//! **Invariants.** What is here is found by no name. A tree that was dropped is in one item only, which never has a
//! tree that lives on. So each item is the only owner of its trees once others have let go of them; until then it is
//! kept, and no other thread is the last to let go. Hash indexes are given up at once, whatever still has the trees:
//! nothing reads them any more. A step looks at a bounded number of items.
//!
//! **May touch.** `record`, `table`, `store`, `memory`, `sync`.

use std::collections::VecDeque;

use crossbeam_queue::SegQueue;

use super::{
    record::TableRecord,
    table::{Shape, Table},
};
use crate::{
    memory,
    store::Tree,
    sync::{Arc, Mutex, Rank},
    tree::store::HashIndex as _,
};

/// How many items one step takes in, and how many it looks at of those that others still have.
const A_STEP: usize = 32;

/// What was taken out of use.
#[derive(Debug)]
enum Item {
    /// A dropped table.
    Table(Arc<Table>),
    /// Of a table that was truncated, or has lost an index.
    Shape(Box<OldShape>),
}

const _: () = assert!(memory::queue_block_is_small::<Item>());

/// What a table was, and the trees that were dropped.
#[derive(Debug)]
struct OldShape {
    _record: TableRecord,
    trees: Vec<Arc<Tree>>,
}

impl Item {
    fn give_up_hash_indexes(&self) {
        let give_up = |tree: &Arc<Tree>| {
            debug_assert!(tree.space().is_dropped(), "a tree that is in use was taken out of it");
            if tree.hash().is_on() {
                tree.hash().switch(false);
            }
        };
        match self {
            Self::Table(table) => table.look(|shape| shape.trees().for_each(give_up)),
            Self::Shape(old) => old.trees.iter().for_each(give_up),
        }
    }

    /// Whether nothing else has it, nor any of its trees.
    fn is_alone(&self) -> bool {
        let alone = |tree: &Arc<Tree>| Arc::strong_count(tree) == 1;
        match self {
            Self::Table(table) => {
                Arc::strong_count(table) == 1 && table.look(|shape| shape.trees().all(alone))
            }
            Self::Shape(old) => old.trees.iter().all(alone),
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

    /// Takes over what a table was that goes on as another shape. Trees that live on are let go of here.
    pub fn shape(&self, shape: Shape) {
        let Shape { record, clustered, secondaries: mut trees, .. } = shape;
        trees.push(clustered);
        trees.retain(|tree| tree.space().is_dropped());
        self.arrived.push(Item::Shape(Box::new(OldShape { _record: record, trees })));
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
