//! Retired tables and trees: statements have dropped or replaced them.
//!
//! **Purpose.** The memory of a table (its record, its trees and their hash indexes) is freed in the background, and
//! not by the statement that drops the table, nor by the thread that has the last handle.
//!
//! One case is freed at once: a table of one tree that has never had a page, and to which nothing else refers. It is a
//! few small blocks, whatever the database holds. An allocator that keeps what a thread frees for the same thread
//! creates the next table in the same memory, and does not wait for the background at the lock of an arena.
//!
//! **Invariants.** An item here has no name, and a dropped tree is in exactly one item (test:
//! `retired_tables_are_freed_in_the_background_once_unreferenced`). An item contains no tree that is still in use
//! (checked by `catalog/retired.rs::give_up_hash_indexes`). So each item is the only owner of its trees once all
//! handles are dropped; until then it is kept, so that no handle is the last owner (test:
//! `retired_tables_are_freed_in_the_background_once_unreferenced`). Hash indexes are freed at once, even if handles to
//! the trees are left: they are no longer read (test: `the_last_handle_of_a_dropped_table_frees_nothing`). A step
//! handles a bounded number of items (test: `a_step_handles_a_bounded_number_of_items`).

use std::collections::VecDeque;

use crossbeam_queue::SegQueue;

use super::{
    record::TableRecord,
    table::{Table, TableSchema},
};
use crate::{
    memory,
    store::Tree,
    sync::{Arc, Mutex, Rank},
    tree::store::HashIndex as _,
};

/// Items that one step takes in, and items with remaining owners that it checks.
const ITEMS_PER_STEP: usize = 32;

/// A retired object.
#[derive(Debug)]
enum Item {
    /// A dropped table.
    Table(Arc<Table>),
    /// The old schema of a table that was truncated, or has lost an index.
    TableSchema(Box<OldSchema>),
}

const _: () = assert!(memory::queue_block_is_small::<Item>());

/// An old record, and the trees that were dropped.
#[derive(Debug)]
struct OldSchema {
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
            Self::Table(table) => table.with_schema(|schema| schema.trees().for_each(give_up)),
            Self::TableSchema(old) => old.trees.iter().for_each(give_up),
        }
    }

    /// Returns whether nothing else owns it or any of its trees.
    fn is_alone(&self) -> bool {
        let alone = |tree: &Arc<Tree>| Arc::strong_count(tree) == 1;
        match self {
            Self::Table(table) => {
                Arc::strong_count(table) == 1 && table.with_schema(|schema| schema.trees().all(alone))
            }
            Self::TableSchema(old) => old.trees.iter().all(alone),
        }
    }
}

impl TableSchema {
    /// Returns whether its memory is a few small blocks that nothing else owns: its only tree has never had a page.
    fn is_small_and_alone(&self) -> bool {
        self.secondaries.is_empty() && self.metadata.is_none() && is_small_and_alone(&self.clustered)
    }
}

/// Returns whether a dropped tree has never had a page, and nothing else owns it.
fn is_small_and_alone(tree: &Arc<Tree>) -> bool {
    let space = tree.space();
    Arc::strong_count(tree) == 1 && Arc::strong_count(space) == 1 && space.never_entered()
}

/// All retired objects that are not freed yet.
#[derive(Debug)]
pub(super) struct Retired {
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
    pub(super) fn table(&self, mut table: Arc<Table>) {
        debug_assert!(
            table.with_schema(|schema| schema.trees().all(|tree| tree.space().is_dropped())),
            "a table is to be freed, and a tree of it is in use"
        );
        let alone = Arc::get_mut(&mut table);
        if !alone.is_some_and(|table| table.own_schema().is_small_and_alone()) {
            self.arrived.push(Item::Table(table));
        }
    }

    /// Takes over the old schema of a table that was changed. References to trees that are still in use are dropped
    /// here.
    pub(super) fn schema(&self, schema: TableSchema) {
        if schema.clustered.space().is_dropped() && schema.is_small_and_alone() {
            return;
        }
        let TableSchema { record, clustered, secondaries: mut trees, metadata, .. } = schema;
        trees.push(clustered);
        trees.extend(metadata);
        trees.retain(|tree| tree.space().is_dropped());
        if trees.is_empty() {
            // Only names or short metadata have changed.
            return;
        }
        self.arrived.push(Item::TableSchema(Box::new(OldSchema { _record: record, trees })));
    }

    /// One background step. Returns whether there may be more to do at once.
    pub(super) fn free_step(&self) -> bool {
        let arrived: Vec<Item> = core::iter::from_fn(|| self.arrived.pop()).take(ITEMS_PER_STEP).collect();
        arrived.iter().for_each(Item::give_up_hash_indexes);
        let more = arrived.len() == ITEMS_PER_STEP;
        let mut waiting = self.waiting.lock();
        waiting.extend(arrived);
        let looked_at: Vec<Item> = {
            let most = waiting.len().min(ITEMS_PER_STEP);
            waiting.drain(..most).collect()
        };
        drop(waiting);
        let (alone, kept): (Vec<Item>, Vec<Item>) = looked_at.into_iter().partition(Item::is_alone);
        self.waiting.lock().extend(kept);
        debug_assert!(alone.iter().all(Item::is_alone), "what is freed has another owner");
        // Freed here, without a lock.
        more || alone.len() == ITEMS_PER_STEP
    }

    /// Returns the number of items.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn count(&self) -> usize {
        self.arrived.len() + self.waiting.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::record::Metadata, *};
    use crate::{
        buffer::{Durability, test_pool::new_pool},
        ids::SpaceId,
        tree::hash::{HashBudget, TreeHash},
    };

    #[test]
    fn a_step_handles_a_bounded_number_of_items() {
        let (_, pool) = new_pool(64);
        let budget = Arc::new(HashBudget::new(0));
        let retired = Retired::default();
        let items = 3 * ITEMS_PER_STEP + 5;
        let retire = |n: usize| {
            let clustered = SpaceId(100 + n as u64);
            let space = pool.attach(clustered, Durability::Temporary);
            let tree = Arc::new(Tree::new(pool.clone(), space.clone(), TreeHash::new(budget.clone())));
            let record = TableRecord {
                id: 1,
                version: 1,
                clustered,
                metadata: Metadata::default(),
                indexes: Vec::new(),
            };
            let schema = TableSchema {
                record,
                clustered: tree,
                secondaries: Vec::new(),
                metadata: None,
                row_log: None,
            };
            let table = Table::new(schema, false);
            pool.detach(&space, None);
            retired.table(table.clone());
            table
        };
        let handles: Vec<_> = (0..items).map(retire).collect();
        let taken_in = |()| {
            retired.free_step();
            retired.waiting.lock().len()
        };
        let expected = [1, 2, 3].map(|steps| steps * ITEMS_PER_STEP);
        assert_eq!([(); 3].map(taken_in), expected, "a step takes in more than it may");
        assert_eq!(retired.count(), items, "handles refer to all of them");
        drop(handles);
        let left = |()| {
            retired.free_step();
            retired.count()
        };
        let expected = [1, 2, 3].map(|steps| items - steps * ITEMS_PER_STEP);
        assert_eq!([(); 3].map(left), expected, "a step frees more than it may");
        assert_eq!((left(()), retired.free_step()), (0, false));
    }
}
