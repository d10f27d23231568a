//! Sorted entries that do not fit in memory.
//!
//! **Purpose.** What was collected and sorted in memory is put aside as a *run*: a temporary tablespace, loaded in bulk and
//! read in order. Runs are merged into one order, so that a tree of any size is written from its first page to its last.
//!
//! **Invariants.** No entry comes twice. A run is dropped when nobody reads it any more, at the cost of a drop.
//!
//! **May touch.** `store`, `buffer`, `tree`.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::{
    buffer::{BufferPool, Durability},
    error::Result,
    ids::{Lsn, SpaceId},
    page::EntryHeader,
    store::Tree,
    sync::Arc,
    tree::{Cursor, hash::HashBudget},
};

/// How full the pages of a run are, in percent: nothing is added later.
const FILL: usize = 100;

/// A run.
#[derive(Debug)]
struct Run {
    pool: Arc<BufferPool>,
    tree: Tree,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.pool.detach(self.tree.space(), Lsn::ZERO);
    }
}

/// Where entries come from, in order.
#[derive(Debug)]
enum Source<'a> {
    Memory(std::vec::Drain<'a, Vec<u8>>),
    Run(Cursor<&'a Tree>),
}

impl Source<'_> {
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Memory(entries) => Ok(entries.next()),
            Self::Run(cursor) => Ok(cursor.next()?.then(|| cursor.key().to_vec())),
        }
    }
}

/// Entries, of which some are in memory.
#[derive(Debug)]
pub(super) struct Runs {
    pool: Arc<BufferPool>,
    budget: Arc<HashBudget>,
    aside: Vec<Run>,
    memory: Vec<Vec<u8>>,
    bytes: usize,
}

impl Runs {
    /// No entries.
    pub fn new(pool: Arc<BufferPool>) -> Self {
        Self { pool, budget: Arc::new(HashBudget::new(0)), aside: Vec::new(), memory: Vec::new(), bytes: 0 }
    }

    /// Adds an entry.
    pub fn push(&mut self, entry: Vec<u8>) {
        self.bytes += entry.capacity() + size_of::<Vec<u8>>();
        self.memory.push(entry);
    }

    /// Bytes that the entries in memory take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts aside what is in memory, in a tablespace of this new id.
    ///
    /// # Errors
    /// I/O, a full disk.
    pub fn put_aside(&mut self, space: SpaceId) -> Result<()> {
        self.memory.sort_unstable();
        let space = self.pool.attach(space, Durability::Temporary);
        let run =
            Run { tree: Tree::new(self.pool.clone(), space, self.budget.clone()), pool: self.pool.clone() };
        let mut loader = run.tree.bulk_load(FILL)?;
        for entry in self.memory.drain(..) {
            loader.push(&entry, EntryHeader::default(), &[])?;
        }
        loader.finish()?;
        self.bytes = 0;
        self.aside.push(run);
        Ok(())
    }

    /// Hands out all entries in order. None is left.
    ///
    /// # Errors
    /// Damage, I/O, and what `take` says.
    pub fn drain(&mut self, mut take: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        self.memory.sort_unstable();
        self.bytes = 0;
        let runs = core::mem::take(&mut self.aside);
        let mut sources: Vec<Source<'_>> = runs.iter().map(|run| Source::Run(run.tree.cursor())).collect();
        sources.push(Source::Memory(self.memory.drain(..)));
        let mut heads = BinaryHeap::with_capacity(sources.len());
        for (n, source) in sources.iter_mut().enumerate() {
            heads.extend(source.next()?.map(|entry| Reverse((entry, n))));
        }
        while let Some(Reverse((entry, n))) = heads.pop() {
            heads.extend(sources[n].next()?.map(|entry| Reverse((entry, n))));
            take(entry)?;
        }
        Ok(())
    }
}
