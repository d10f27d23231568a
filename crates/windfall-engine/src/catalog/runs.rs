//! Sorted runs: external sorting of entries that do not fit in memory.
//!
//! **Purpose.** Entries that were collected and sorted in memory are written to a *run*: a temporary tablespace,
//! bulk-loaded and read in order. Runs are merged, so that a tree of any size is written from its first page to its
//! last.
//!
//! **Invariants.** A key occurs only once in a run (checked by `catalog/runs.rs::drain`); equal keys of several runs
//! are returned one after the other (test: `a_refused_load_leaves_nothing`). A run is dropped when it is no longer read
//! (by type). An interrupt ends a sort before it begins, and in its writes and merges (test:
//! `an_interrupt_ends_a_sort_before_it_and_in_its_writes_and_merges`).

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use super::bulk::duplicate_key;
use crate::{
    buffer::{BufferPool, Durability},
    error::Result,
    ids::SpaceId,
    page::EntryHeader,
    store::Tree,
    sync::{Arc, LongWork},
    tree::{
        Cursor,
        hash::{HashBudget, TreeHash},
    },
};

/// Fill factor of a run's pages, in percent: nothing is added later.
pub(super) const RUN_FILL_PERCENT: usize = 100;

/// The content of an entry besides its key.
pub(super) trait Payload: Ord {
    /// Returns the bytes of heap memory that it takes, besides its own size.
    fn bytes(&self) -> usize;

    /// Returns the entry's header and value.
    fn entry(&self) -> (EntryHeader, &[u8]);

    /// Makes the payload of an entry.
    fn of(header: EntryHeader, value: &[u8]) -> Self;
}

/// The flag of an entry that may repeat, in a run of entries of a secondary tree. They have no overflow chains.
const MAY_REPEAT: u16 = EntryHeader::OVERFLOW;

/// The content of an entry of a secondary tree besides its key: its value, and whether a unique index accepts it
/// whatever other rows have.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryTail {
    /// `None` for an entry without a value that is like the other entries of its index. Boxed, because most are.
    rare: Option<Box<RareTail>>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RareTail {
    value: Vec<u8>,
    may_repeat: bool,
}

impl EntryTail {
    /// The tail of an entry with this value. `may_repeat` is to be set in a unique index only.
    pub(super) fn new(value: &[u8], may_repeat: bool) -> Self {
        let is_rare = may_repeat || !value.is_empty();
        Self { rare: is_rare.then(|| Box::new(RareTail { value: value.to_vec(), may_repeat })) }
    }

    /// Returns the value, and whether the entry may repeat.
    pub(super) fn parts(&self) -> (&[u8], bool) {
        self.rare.as_ref().map_or((&[], false), |rare| (&rare.value, rare.may_repeat))
    }
}

impl Payload for EntryTail {
    fn bytes(&self) -> usize {
        self.rare.as_ref().map_or(0, |rare| size_of::<RareTail>() + rare.value.capacity())
    }

    fn entry(&self) -> (EntryHeader, &[u8]) {
        let (value, may_repeat) = self.parts();
        let flags = if may_repeat { MAY_REPEAT } else { 0 };
        (EntryHeader { flags, ..EntryHeader::default() }, value)
    }

    fn of(header: EntryHeader, value: &[u8]) -> Self {
        Self::new(value, header.flags & MAY_REPEAT != 0)
    }
}

/// A run.
#[derive(Debug)]
pub(super) struct Run {
    pool: Arc<BufferPool>,
    pub(super) tree: Tree,
}

impl Run {
    /// Returns a run without entries, in a tablespace with this new id.
    pub(super) fn new(pool: &Arc<BufferPool>, budget: &Arc<HashBudget>, space: SpaceId) -> Self {
        let space = pool.attach(space, Durability::Temporary);
        Self { tree: Tree::new(pool.clone(), space, TreeHash::new(budget.clone())), pool: pool.clone() }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.pool.detach(self.tree.space(), None);
    }
}

/// A source of entries in order.
#[derive(Debug)]
enum Source<'a, P> {
    Memory(std::vec::Drain<'a, (Vec<u8>, P)>),
    Run(Cursor<&'a Tree>),
}

impl<P: Payload> Source<'_, P> {
    fn next(&mut self) -> Result<Option<(Vec<u8>, P)>> {
        match self {
            Self::Memory(entries) => Ok(entries.next()),
            Self::Run(cursor) => {
                if !cursor.next()? {
                    return Ok(None);
                }
                let header = cursor.header().unwrap_or_default();
                Ok(Some((cursor.key().to_vec(), P::of(header, cursor.value()))))
            }
        }
    }
}

/// Entries, of which some are in memory and the rest in runs.
#[derive(Debug)]
pub(super) struct Runs<P> {
    pool: Arc<BufferPool>,
    budget: Arc<HashBudget>,
    spilled: Vec<Run>,
    memory: Vec<(Vec<u8>, P)>,
    bytes: usize,
    /// The entries in memory and in runs.
    count: u64,
}

impl<P: Payload> Runs<P> {
    /// Returns a collection without entries.
    pub(super) fn new(pool: Arc<BufferPool>) -> Self {
        let budget = Arc::new(HashBudget::new(0));
        Self { pool, budget, spilled: Vec::new(), memory: Vec::new(), bytes: 0, count: 0 }
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, key: Vec<u8>, payload: P) {
        self.bytes += key.capacity() + payload.bytes() + size_of::<(Vec<u8>, P)>();
        self.memory.push((key, payload));
        self.count += 1;
        debug_assert!(
            self.bytes >= self.memory.len() * size_of::<(Vec<u8>, P)>(),
            "entries in memory are not counted"
        );
    }

    /// Returns the number of entries.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the bytes that the entries in memory take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the entries in memory to a run, in a tablespace with this new id.
    ///
    /// # Errors
    /// [`SchemaError::DuplicateInputKey`](crate::error::SchemaError::DuplicateInputKey); I/O, a full disk.
    pub(super) fn spill(&mut self, space: SpaceId) -> Result<()> {
        debug_assert!(
            self.memory.is_empty() == (self.bytes == 0),
            "{} entries in memory take {} bytes",
            self.memory.len(),
            self.bytes
        );
        LongWork::check()?;
        self.memory.sort_unstable();
        if let Some(pair) = self.memory.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(duplicate_key(&pair[0].0, None));
        }
        let run = Run::new(&self.pool, &self.budget, space);
        let mut loader = run.tree.bulk_load(RUN_FILL_PERCENT)?;
        let mut work = LongWork::default();
        for (key, payload) in self.memory.drain(..) {
            work.step()?;
            let (header, value) = payload.entry();
            loader.push(&key, header, value)?;
        }
        loader.finish()?;
        self.bytes = 0;
        self.spilled.push(run);
        Ok(())
    }

    /// Passes all entries in order to `take`. None is left.
    ///
    /// # Errors
    /// Damage, I/O, and the errors of `take`.
    pub(super) fn drain(&mut self, mut take: impl FnMut(Vec<u8>, P) -> Result<()>) -> Result<()> {
        LongWork::check()?;
        self.memory.sort_unstable();
        (self.bytes, self.count) = (0, 0);
        let runs = core::mem::take(&mut self.spilled);
        let mut sources: Vec<Source<'_, P>> = runs.iter().map(|run| Source::Run(run.tree.cursor())).collect();
        sources.push(Source::Memory(self.memory.drain(..)));
        let mut heads = BinaryHeap::with_capacity(sources.len());
        for (n, source) in sources.iter_mut().enumerate() {
            heads.extend(source.next()?.map(|entry| Reverse((entry, n))));
        }
        let mut work = LongWork::default();
        while let Some(Reverse(((key, payload), n))) = heads.pop() {
            work.step()?;
            let next = sources[n].next()?;
            debug_assert!(
                next.as_ref().is_none_or(|(after, _)| match &sources[n] {
                    Source::Run(_) => *after > key,
                    Source::Memory(_) => *after >= key,
                }),
                "the entries of a run or of the memory are not in order"
            );
            heads.extend(next.map(|entry| Reverse((entry, n))));
            take(key, payload)?;
        }
        debug_assert!(
            sources.iter().all(|source| !matches!(source, Source::Memory(left) if left.len() > 0)),
            "a drain has left entries in memory"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::*;
    use crate::{
        engine::test_engine::open,
        error::{Error, LockError},
        options::Options,
        sync::Interrupt,
    };

    const ENTRIES: u32 = 3 * LongWork::STEPS;

    fn is_interrupted(done: &Result<()>) -> bool {
        matches!(done, Err(Error::Lock(LockError::Interrupted)))
    }

    /// An entry that sets an interrupt when it is written.
    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Setting(bool);

    static OF_WRITES: std::sync::OnceLock<Arc<Interrupt>> = std::sync::OnceLock::new();

    impl Payload for Setting {
        fn bytes(&self) -> usize {
            0
        }

        fn entry(&self) -> (EntryHeader, &[u8]) {
            if self.0 {
                OF_WRITES.get().unwrap().interrupt();
            }
            (EntryHeader::default(), &[])
        }

        fn of(_: EntryHeader, _: &[u8]) -> Self {
            Self(false)
        }
    }

    #[test]
    fn an_interrupt_ends_a_sort_before_it_and_in_its_writes_and_merges() {
        let options = Options::default().page_size(4096).buffer_pool_size(512 * 4096).log_size(4 << 20);
        let engine = open(&SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)), &options);
        let space = || engine.transactions.ids().space().unwrap();
        let interrupt = OF_WRITES.get_or_init(Arc::default).clone();
        let _entered = interrupt.enter();
        let filled = |setting: Option<u32>| {
            let mut runs = Runs::new(engine.pool.clone());
            let payload = |n| Setting(Some(n) == setting);
            (0..ENTRIES).for_each(|n| runs.push(n.to_be_bytes().to_vec(), payload(n)));
            runs
        };
        // Set before, and while a run is written.
        assert!(is_interrupted(&filled(Some(10)).spill(space())));
        assert!(interrupt.is_set());
        assert!(is_interrupted(&filled(None).spill(space())));
        let mut taken = 0;
        let drained = filled(None).drain(|_, _| {
            taken += 1;
            Ok(())
        });
        assert!(is_interrupted(&drained) && taken == 0);
        interrupt.clear();
        // While two runs are merged.
        let mut runs = filled(None);
        runs.spill(space()).unwrap();
        (ENTRIES..2 * ENTRIES).for_each(|n| runs.push(n.to_be_bytes().to_vec(), Setting(false)));
        runs.spill(space()).unwrap();
        let merged = runs.drain(|_, _| {
            taken += 1;
            if taken == 10 {
                interrupt.interrupt();
            }
            Ok(())
        });
        assert!(is_interrupted(&merged));
        assert!((10..=LongWork::STEPS).contains(&taken), "{taken} entries");
    }
}
