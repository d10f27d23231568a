//! The adaptive hash index of a tree: it maps a key directly to its leaf.
//!
//! **Purpose.** Point reads of a tree that fits in memory skip the inner nodes. The index can be switched on and off at
//! run time, and costs one relaxed load while it is off.
//!
//! **Invariants.** The table is *lossy*: entries are hints that overwrite each other, are never removed, and prove
//! nothing, so a hint is used only if the page is a valid leaf of this tablespace and its content answers for the key:
//! the leaf contains the key, or the key lies within its fences (test: `the_hash_index_finds_and_never_lies`). No
//! split, merge, free or re-use of a page therefore needs to look for hints (test:
//! `readers_and_cursors_during_splits_and_merges`). The tables of all trees take memory within one [`HashBudget`]
//! (test: `the_hash_index_finds_and_never_lies`). After about twice as many fills as it has entries, a table is
//! replaced by a larger, empty one, by one thread at a time (test: `one_thread_at_a_time_makes_a_larger_table`). An
//! exhausted budget only stops the growth (test: `the_hash_index_finds_and_never_lies`).
//!
//! The cost of a read or a drop does not depend on the size of a table (test:
//! `a_hash_index_of_megabytes_is_freed_by_no_statement_and_zeroed_by_no_read`). A new one costs a bounded time
//! ([`Words::new`]) (test: `large_areas_cost_a_call_each_to_make`). A table that was replaced, switched off or dropped
//! with its tree goes into a queue of the budget, whichever thread released it last (test:
//! `a_hash_table_switched_off_by_an_idle_thread_is_freed`). [`HashBudget::free_step`] frees it in the background in
//! small steps, which also return its share of the budget (test:
//! `a_table_is_freed_in_steps_and_by_no_thread_that_releases_it`).
#![expect(unsafe_code, reason = "tables are replaced under readers, by epochs")]

use crossbeam_epoch::{Atomic, Guard, Owned, Shared, pin};
use crossbeam_queue::SegQueue;

use super::store::HashIndex;
use crate::{
    ids::PageNo,
    memory::Words,
    sync::{
        Arc, Mutex, Rank,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
};

/// Entries of a tree's first table.
const FIRST_TABLE: usize = 1024;
/// The growth factor from one table to the next.
const GROWTH: usize = 4;
/// One of this many fills is counted, chosen by the hash, so that readers do not contend for the counter.
const COUNTED: u64 = 16;
/// Bytes that one step frees: about 50 us of system time.
const FREED_BYTES_PER_STEP: usize = 1 << 20;

/// The memory budget of all hash indexes of a database, and the tables that wait to be freed.
#[derive(Debug)]
pub struct HashBudget {
    limit: u64,
    used: AtomicU64,
    /// Tables that no tree uses any more.
    retired: SegQueue<Box<Table>>,
    /// The table that is being freed. Used only by the background step.
    freeing: Mutex<Option<Box<Table>>>,
}

impl HashBudget {
    /// Creates a budget of this many bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            used: AtomicU64::new(0),
            retired: SegQueue::new(),
            freeing: Mutex::new(Rank::Leaf, None),
        }
    }

    /// Returns the limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes in use, including those of tables that are still to be freed.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns whether this many bytes are left at this moment.
    fn has_room(&self, bytes: u64) -> bool {
        self.used().saturating_add(bytes) <= self.limit
    }

    fn reserve(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit());
        self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "more of the budget is given back than was taken");
    }

    /// Creates a table; `None` if the budget or the system's address space is exhausted.
    fn table(&self, entries: usize) -> Option<Table> {
        debug_assert!(entries.is_power_of_two(), "a table of {entries} entries cannot be indexed by a mask");
        let bytes = bytes_of(entries);
        if !self.reserve(bytes) {
            return None;
        }
        let entries = Words::new(entries);
        if entries.is_none() {
            self.give_back(bytes);
        }
        entries.map(|entries| Table { entries, fills: AtomicU64::new(0) })
    }

    /// Frees some of the memory of tables that no tree uses any more. Returns whether there is more. Must be called by
    /// one thread at a time, in the background.
    pub fn free_step(&self) -> bool {
        // Tables that readers could still see enter the queue when the epoch advances.
        pin().flush();
        let mut freeing = self.freeing.lock();
        let Some(mut table) = freeing.take().or_else(|| self.retired.pop()) else { return false };
        let freed = table.entries.free_some(FREED_BYTES_PER_STEP);
        debug_assert!(freed > 0, "a table without memory waits to be freed");
        self.give_back(freed as u64);
        *freeing = (!table.entries.is_empty()).then_some(table);
        freeing.is_some() || !self.retired.is_empty()
    }

    /// Takes over a table that no thread can see any more.
    fn retire(&self, table: Box<Table>) {
        debug_assert!(!table.entries.is_empty(), "a table is retired that was freed before");
        self.retired.push(table);
    }
}

#[derive(Debug)]
struct Table {
    /// The upper 16 bits of a key's hash, then the slot, then the page in the lowest bits. 0 is an empty entry, because
    /// page 0 is never a leaf.
    entries: Words,
    /// Counted fills since the table was created.
    fills: AtomicU64,
}

fn bytes_of(entries: usize) -> u64 {
    entries as u64 * 8
}

/// A tree's hash index.
#[derive(Debug)]
pub struct TreeHash {
    on: AtomicBool,
    /// Whether a thread is creating a larger table.
    growing: AtomicBool,
    table: Atomic<Table>,
    budget: Arc<HashBudget>,
}

impl TreeHash {
    /// Creates a hash index that is off.
    pub fn new(budget: Arc<HashBudget>) -> Self {
        Self { on: AtomicBool::new(false), growing: AtomicBool::new(false), table: Atomic::null(), budget }
    }

    /// Switches the index on or off. Switching it off releases its memory; once it is on, the first reads allocate
    /// some.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Relaxed);
        if !on {
            let guard = pin();
            self.retire(self.table.swap(Shared::null(), AcqRel, &guard), &guard);
        }
    }

    /// Returns the bytes that its table takes.
    pub fn bytes(&self) -> u64 {
        let guard = pin();
        self.load(&guard).map_or(0, |table| bytes_of(table.entries.len()))
    }

    /// Creates a table of this many bytes and touches all of it, as if that many keys had been read. Experiments can
    /// thus observe such a table without reading the keys.
    #[cfg(feature = "lab")]
    pub fn pretend(&self, bytes: u64) {
        let guard = pin();
        let entries = (bytes / 8).next_power_of_two() as usize;
        self.grow(self.table.load(Acquire, &guard), entries, &guard);
        let table = self.load(&guard).expect("there is room for a table");
        assert_eq!(table.entries.len(), entries, "the budget is used up");
        table.entries.iter().for_each(|entry| entry.store(0, Relaxed));
    }

    #[inline]
    fn load<'g>(&self, guard: &'g Guard) -> Option<&'g Table> {
        // SAFETY: a table is freed only after `retire`, when every guard that could have seen it here is dropped, and
        // its content is published by the release half of the exchange that put it here.
        unsafe { self.table.load(Acquire, guard).as_ref() }
    }

    /// Replaces `old` by an empty table of this many entries, if the budget has room and no other thread is doing so.
    fn grow(&self, old: Shared<'_, Table>, entries: usize, guard: &Guard) {
        if !self.budget.has_room(bytes_of(entries)) || self.growing.swap(true, Acquire) {
            return;
        }
        // `old` may have been replaced before this thread set `growing`; then no table is created for nothing.
        if self.table.load(Relaxed, guard) == old
            && let Some(table) = self.budget.table(entries)
        {
            let table = Owned::new(table);
            match self.table.compare_exchange(old, table, AcqRel, Relaxed, guard) {
                Ok(_) => self.retire(old, guard),
                Err(lost) => self.budget.retire(lost.new.into_box()),
            }
            if !self.is_on() {
                // The index was switched off meanwhile, perhaps before the exchange.
                self.retire(self.table.swap(Shared::null(), AcqRel, guard), guard);
            }
        }
        self.growing.store(false, Release);
    }

    /// Retires a table that was removed from `table`.
    fn retire(&self, table: Shared<'_, Table>, guard: &Guard) {
        if table.is_null() {
            return;
        }
        let budget = self.budget.clone();
        // SAFETY: the caller removed the table from the only place where readers find it, by an atomic exchange that
        // only one thread wins, so it is retired once. Readers that found it before hold guards, and the closure runs
        // when those are dropped. All that the closure touches, the budget and the table, may be sent to the thread
        // that runs it.
        unsafe { guard.defer_unchecked(move || budget.retire(table.into_owned().into_box())) };
        // Otherwise the closure would wait in this thread's bag until the thread defers more, which may never happen.
        guard.flush();
    }
}

impl HashIndex for TreeHash {
    #[inline]
    fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    #[inline]
    fn hint(&self, hash: u64) -> Option<(PageNo, usize)> {
        let guard = pin();
        let entries = &self.load(&guard)?.entries;
        let entry = entries[hash as usize & (entries.len() - 1)].load(Relaxed);
        let slot = usize::from((entry >> 32) as u16);
        (entry != 0 && entry >> 48 == hash >> 48).then_some((PageNo(entry as u32), slot))
    }

    fn note(&self, hash: u64, leaf: PageNo, slot: usize) {
        let guard = pin();
        let Some(table) = self.load(&guard) else {
            if hash.is_multiple_of(COUNTED) {
                self.grow(Shared::null(), FIRST_TABLE, &guard);
            }
            return;
        };
        let len = table.entries.len();
        debug_assert!(u16::try_from(slot).is_ok(), "a slot's number does not fit a hint");
        let entry = hash >> 48 << 48 | u64::from(slot as u16) << 32 | u64::from(leaf.0);
        table.entries[hash as usize & (len - 1)].store(entry, Relaxed);
        // The lowest bits choose the entry: use others, or only the fills of some entries would be counted.
        if (hash >> 28).is_multiple_of(COUNTED) {
            let fills = table.fills.fetch_add(1, Relaxed) + 1;
            if (fills * COUNTED).is_multiple_of(2 * len as u64) {
                let old = self.table.load(Relaxed, &guard);
                if core::ptr::eq(old.as_raw(), table) {
                    self.grow(old, len * GROWTH, &guard);
                }
            }
        }
    }
}

impl Drop for TreeHash {
    fn drop(&mut self) {
        // SAFETY: every reader of the table borrows the index, and no such borrow is left; a table that was removed
        // from here before has been replaced.
        if let Some(table) = unsafe { core::mem::take(&mut self.table).try_into_owned() } {
            self.budget.retire(table.into_box());
        }
    }
}

/// Returns the hash of a key, as the tree passes it to a [`HashIndex`]. Hashes exist only in memory, so the function
/// may change from release to release.
#[inline]
pub fn hash_of(key: &[u8]) -> u64 {
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xd1b5_4a32_d192_ed03;
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let mut hash = fold(key.len() as u64 ^ A, B);
    let (chunks, rest) = key.as_chunks::<8>();
    for chunk in chunks {
        hash = fold(hash ^ u64::from_le_bytes(*chunk), A);
    }
    let rest = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    fold(hash ^ rest, B)
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;
    use crate::sync::work::{self, Work};

    /// Returns a hash index with a table of at least this many entries, and the maximum of map calls that noting one
    /// key made.
    fn grown(budget: &Arc<HashBudget>, entries: usize) -> (TreeHash, u64) {
        let hash = TreeHash::new(budget.clone());
        hash.switch(true);
        let mut most = 0;
        for n in 0u64.. {
            let before = work::so_far();
            hash.note(hash_of(&n.to_le_bytes()), PageNo(7), 0);
            most = most.max((work::so_far() - before).of(Work::MapCall));
            if hash.bytes() >= bytes_of(entries) {
                break;
            }
        }
        (hash, most)
    }

    /// Runs steps until one frees memory, and returns its bytes. A retired table is not freed while readers may still
    /// see it.
    fn freed_in_a_step(budget: &HashBudget) -> u64 {
        let before = budget.used();
        while budget.used() == before {
            budget.free_step();
        }
        before - budget.used()
    }

    #[test]
    fn a_table_is_freed_in_steps_and_by_no_thread_that_releases_it() {
        let budget = Arc::new(HashBudget::new(1 << 30));
        for switched_off_before in [false, true] {
            let (hash, map_calls) = grown(&budget, 1 << 18);
            assert_eq!(map_calls, 1, "one mapping is made, and none is given back");
            // The smaller tables before it.
            while budget.used() > hash.bytes() {
                freed_in_a_step(&budget);
            }
            let before = work::so_far();
            if switched_off_before {
                hash.switch(false);
            }
            drop(hash);
            assert_eq!((work::so_far() - before).of(Work::MapCall), 0);
            assert_eq!(budget.used(), 8 << 18);
            let steps: Vec<u64> =
                core::iter::from_fn(|| (budget.used() > 0).then(|| freed_in_a_step(&budget))).collect();
            assert_eq!(steps, [FREED_BYTES_PER_STEP as u64; 2]);
        }
    }

    #[test]
    fn a_hash_table_switched_off_by_an_idle_thread_is_freed() {
        let budget = Arc::new(HashBudget::new(1 << 30));
        let (hash, _) = grown(&budget, 1 << 16);
        let (switched, done) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                hash.switch(false);
                switched.wait();
                // The thread keeps running, and defers nothing more to the epochs.
                done.wait();
            });
            switched.wait();
            while budget.used() > 0 {
                budget.free_step();
            }
            done.wait();
        });
    }

    #[test]
    fn one_thread_at_a_time_makes_a_larger_table() {
        let budget = Arc::new(HashBudget::new(1 << 30));
        let hash = TreeHash::new(budget.clone());
        hash.switch(true);
        let guard = pin();
        hash.growing.store(true, Relaxed);
        hash.grow(Shared::null(), FIRST_TABLE, &guard);
        assert_eq!((hash.bytes(), budget.used()), (0, 0));
        hash.growing.store(false, Relaxed);
        hash.grow(Shared::null(), FIRST_TABLE, &guard);
        assert_eq!((hash.bytes(), budget.used()), (8 * FIRST_TABLE as u64, 8 * FIRST_TABLE as u64));
        // The thread is late: the table that it was to replace has been replaced.
        hash.grow(Shared::null(), FIRST_TABLE * GROWTH, &guard);
        assert_eq!(hash.bytes(), 8 * FIRST_TABLE as u64);
    }

    #[test]
    fn dropping_the_last_hash_frees_the_budget() {
        let budget = Arc::new(HashBudget::new(1 << 30));
        let (hash, _) = grown(&budget, FIRST_TABLE);
        let weak = Arc::downgrade(&budget);
        drop(budget);
        drop(hash);
        assert_eq!(weak.strong_count(), 0, "a queue and its tables keep each other");
    }
}
