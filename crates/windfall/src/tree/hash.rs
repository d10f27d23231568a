//! The adaptive hash index of a tree: from a key straight to its leaf.
//!
//! **Purpose.** Point reads of a tree that fits in memory skip the inner nodes. It can be switched at run time, and
//! costs one relaxed load while it is off.
//!
//! **Invariants.** The table is *lossy*: entries are hints that overwrite each other, are never removed, and prove
//! nothing. A hint counts only when the page is a valid leaf of this tablespace whose content answers for the key: the
//! key is in it, or lies within its fences. So no split, merge, free or re-use of a page ever has to look for
//! hints. The tables of all trees take memory within one [`HashBudget`]. A table is replaced by a larger one,
//! empty, when it has been filled over often enough, by one thread at a time; a budget that is used up only stops the
//! growth.
//!
//! No thread that reads or drops pays for the size of a table. A new one costs a bounded time ([`Words::new`]). One
//! that was replaced, switched off or dropped with its tree goes into a queue of the budget, whichever thread has let
//! go of it last, and [`HashBudget::free_step`] frees it in the background in small steps; its share of the budget
//! comes back with them.
//!
//! **May touch.** What `tree` may touch.
#![expect(unsafe_code, reason = "tables are replaced under readers, by epochs")]

use crossbeam_epoch::{Atomic, Guard, Owned, Shared, pin};
use crossbeam_queue::SegQueue;

use super::store::HashIndex;
use crate::{
    ids::PageNo,
    memory::Words,
    sync::{
        Arc, Bug, Mutex, Rank,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
        planted,
    },
};

/// Entries of a tree's first table.
const FIRST_TABLE: usize = 1024;
/// How much larger the next one is.
const GROWTH: usize = 4;
/// One fill in so many is counted, chosen by the hash, so that readers do not meet at the counter.
const COUNTED: u64 = 16;
/// How much one step frees, in bytes: some 50 us of the system's time.
const FREED_A_STEP: usize = 1 << 20;

/// The memory that all hash indexes of a database may take, and the tables on their way out.
#[derive(Debug)]
pub struct HashBudget {
    limit: u64,
    used: AtomicU64,
    /// Tables that no tree has any more.
    retired: SegQueue<Box<Table>>,
    /// The one that is being freed. For the background step alone.
    freeing: Mutex<Option<Box<Table>>>,
}

impl HashBudget {
    /// A budget of so many bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            used: AtomicU64::new(0),
            retired: SegQueue::new(),
            freeing: Mutex::new(Rank::Leaf, None),
        }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in use, those of tables that are still to be freed included.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Whether so many bytes are left, at this moment.
    fn has_room(&self, bytes: u64) -> bool {
        self.used().saturating_add(bytes) <= self.limit
    }

    fn reserve(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit());
        self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    /// A table; `None` when the budget is used up, or the system's address space.
    fn table(&self, entries: usize) -> Option<Table> {
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

    /// Frees some of the memory of tables that no tree has any more. Says whether there is more. For one thread at a
    /// time, in the background.
    pub fn free_step(&self) -> bool {
        // Tables that readers could still see come into the queue when the epochs move on.
        pin().flush();
        let mut freeing = self.freeing.lock();
        let Some(mut table) = freeing.take().or_else(|| self.retired.pop()) else { return false };
        self.give_back(table.entries.free_some(FREED_A_STEP) as u64);
        *freeing = (!table.entries.is_empty()).then_some(table);
        freeing.is_some() || !self.retired.is_empty()
    }

    /// Takes over a table that nobody can see any more.
    fn retire(&self, table: Box<Table>) {
        if planted(Bug::HashTableFreedAtOnce) {
            self.give_back(table.entries.bytes() as u64);
            return;
        }
        self.retired.push(table);
    }
}

#[derive(Debug)]
struct Table {
    /// The upper 16 bits of a key's hash, below them the slot, below that the page; 0 is an empty entry, as page 0 is
    /// no leaf.
    entries: Words,
    /// Counted fills since the table was made.
    fills: AtomicU64,
}

fn bytes_of(entries: usize) -> u64 {
    entries as u64 * 8
}

/// A tree's hash index.
#[derive(Debug)]
pub struct TreeHash {
    on: AtomicBool,
    /// Whether a thread is making a larger table.
    growing: AtomicBool,
    table: Atomic<Table>,
    budget: Arc<HashBudget>,
}

impl TreeHash {
    /// A hash index that is off.
    pub fn new(budget: Arc<HashBudget>) -> Self {
        Self { on: AtomicBool::new(false), growing: AtomicBool::new(false), table: Atomic::null(), budget }
    }

    /// Switches it. Off gives its memory back; on takes some when the first reads have come.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Relaxed);
        if !on {
            let guard = pin();
            self.retire(self.table.swap(Shared::null(), AcqRel, &guard), &guard);
        }
    }

    /// Bytes that its table takes.
    pub fn bytes(&self) -> u64 {
        let guard = pin();
        self.load(&guard).map_or(0, |table| bytes_of(table.entries.len()))
    }

    /// Makes a table of so many bytes and touches all of it, as if as many keys had been read: what becomes of it can
    /// be seen without them.
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
        // SAFETY: a table is freed only after `retire`, when every guard that could have seen it here is gone, and its
        // content is published by the release half of the exchange that put it here.
        unsafe { self.table.load(Acquire, guard).as_ref() }
    }

    /// Puts an empty table of so many entries in the place of `old`, if there is room, unless another thread is doing
    /// so.
    fn grow(&self, old: Shared<'_, Table>, entries: usize, guard: &Guard) {
        if !self.budget.has_room(bytes_of(entries)) || self.growing.swap(true, Acquire) {
            return;
        }
        // `old` may have been replaced before this thread's turn: then no table is made for nothing.
        if self.table.load(Relaxed, guard) == old
            && let Some(table) = self.budget.table(entries)
        {
            let table = Owned::new(table);
            match self.table.compare_exchange(old, table, AcqRel, Relaxed, guard) {
                Ok(_) => self.retire(old, guard),
                Err(lost) => self.budget.retire(lost.new.into_box()),
            }
            if !self.is_on() {
                // It was switched off meanwhile, perhaps before the exchange.
                self.retire(self.table.swap(Shared::null(), AcqRel, guard), guard);
            }
        }
        self.growing.store(false, Release);
    }

    /// Gives up a table that was taken out of its place.
    fn retire(&self, table: Shared<'_, Table>, guard: &Guard) {
        if table.is_null() {
            return;
        }
        let budget = self.budget.clone();
        // SAFETY: the caller took the table out of the only place that readers find it in, by an atomic exchange that
        // only one thread wins, so it is retired once; readers that found it before hold guards, and this runs when
        // they are gone. What it touches, the budget and the table, may be sent to the thread that runs it.
        unsafe { guard.defer_unchecked(move || budget.retire(table.into_owned().into_box())) };
        // It would wait in this thread's bag until the thread has more to put there, which may be never.
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
        let entry = hash >> 48 << 48 | u64::from(slot as u16) << 32 | u64::from(leaf.0);
        table.entries[hash as usize & (len - 1)].store(entry, Relaxed);
        // The lowest bits choose the entry: take others, or only some entries would be counted.
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
        // SAFETY: whoever looks for the table borrows the index, which nobody does any more; and what was taken out of
        // here before was replaced.
        if let Some(table) = unsafe { core::mem::take(&mut self.table).try_into_owned() } {
            self.budget.retire(table.into_box());
        }
    }
}

/// The hash of a key, as the tree asks a [`HashIndex`] for it. It lives in memory only, so it may change from release
/// to release.
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

    /// A hash index whose table has at least so many entries, and what the thread that noted them paid at most for one.
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

    /// Steps until a table has gone that readers could still see until now.
    fn freed_in_a_step(budget: &HashBudget) -> u64 {
        let before = budget.used();
        while budget.used() == before {
            budget.free_step();
        }
        before - budget.used()
    }

    #[test]
    fn a_table_is_freed_in_steps_and_by_no_thread_that_lets_go_of_it() {
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
            assert_eq!(steps, [FREED_A_STEP as u64; 2]);
        }
    }

    #[test]
    fn a_table_that_was_switched_off_is_freed_whatever_its_thread_does_next() {
        let budget = Arc::new(HashBudget::new(1 << 30));
        let (hash, _) = grown(&budget, 1 << 16);
        let (switched, done) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                hash.switch(false);
                switched.wait();
                // It lives on, and has nothing more for the epochs.
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
        // Its turn comes late: the table that it was to replace has gone.
        hash.grow(Shared::null(), FIRST_TABLE * GROWTH, &guard);
        assert_eq!(hash.bytes(), 8 * FIRST_TABLE as u64);
    }

    #[test]
    fn what_the_last_handle_leaves_goes_with_the_budget() {
        let budget = Arc::new(HashBudget::new(1 << 30));
        let (hash, _) = grown(&budget, FIRST_TABLE);
        let weak = Arc::downgrade(&budget);
        drop(budget);
        drop(hash);
        assert_eq!(weak.strong_count(), 0, "a queue and its tables keep each other");
    }
}
