//! The adaptive hash index of a tree: from a key straight to its leaf.
//!
//! **Purpose.** Point reads of a tree that fits in memory skip the inner nodes. It can be switched at run time, and
//! costs one relaxed load while it is off.
//!
//! **Invariants.** The table is *lossy*: entries are hints that overwrite each other, are never removed, and prove
//! nothing. A hint counts only when the page is a valid leaf of this tablespace whose content answers for the key: the
//! key is in it, or lies within its fences. So no split, merge, free or re-use of a page ever has to look
//! for hints. The tables of all trees take memory within one [`HashBudget`]; a table that was replaced gives
//! its share back once no reader can see it any more. A table is replaced by a larger one, empty, when
//! it has been filled over often enough; a budget that is used up only stops the growth.
//!
//! **May touch.** What `tree` may touch.
#![expect(unsafe_code, reason = "tables are replaced under readers, by epochs")]

use crossbeam_epoch::{Atomic, Guard, Owned, Shared, pin};

use super::store::HashIndex;
use crate::{
    ids::PageNo,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
};

/// Entries of a tree's first table.
const FIRST_TABLE: usize = 1024;
/// How much larger the next one is.
const GROWTH: usize = 4;
/// One fill in so many is counted, chosen by the hash, so that readers do not meet at the counter.
const COUNTED: u64 = 16;

/// The memory that all hash indexes of a database may take.
#[derive(Debug)]
pub struct HashBudget {
    limit: u64,
    used: AtomicU64,
}

impl HashBudget {
    /// A budget of so many bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    fn reserve(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit());
        self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
}

#[derive(Debug)]
struct Table {
    /// The upper 16 bits of a key's hash, below them the slot, below that the page; 0 is an empty entry, as page 0 is
    /// no leaf.
    entries: Box<[AtomicU64]>,
    /// Counted fills since the table was made.
    fills: AtomicU64,
    budget: Arc<HashBudget>,
}

impl Table {
    /// `None` when the budget is used up.
    fn new(entries: usize, budget: &Arc<HashBudget>) -> Option<Self> {
        budget.reserve(bytes_of(entries)).then(|| Self {
            entries: (0..entries).map(|_| AtomicU64::new(0)).collect(),
            fills: AtomicU64::new(0),
            budget: budget.clone(),
        })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(bytes_of(self.entries.len()), Relaxed);
    }
}

fn bytes_of(entries: usize) -> u64 {
    entries as u64 * 8
}

/// A tree's hash index.
#[derive(Debug)]
pub struct TreeHash {
    on: AtomicBool,
    table: Atomic<Table>,
    budget: Arc<HashBudget>,
}

impl TreeHash {
    /// A hash index that is off.
    pub fn new(budget: Arc<HashBudget>) -> Self {
        Self { on: AtomicBool::new(false), table: Atomic::null(), budget }
    }

    /// Switches it. Off gives its memory back; on takes some when the first reads have come.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Relaxed);
        if !on {
            let guard = pin();
            retire(self.table.swap(Shared::null(), AcqRel, &guard), &guard);
        }
    }

    /// Bytes that its table takes.
    pub fn bytes(&self) -> u64 {
        let guard = pin();
        self.load(&guard).map_or(0, |table| bytes_of(table.entries.len()))
    }

    #[inline]
    fn load<'g>(&self, guard: &'g Guard) -> Option<&'g Table> {
        // SAFETY: a table is freed only by `retire`, after every guard that could have seen it here is gone, and its
        // content is published by the release half of the exchange that put it here.
        unsafe { self.table.load(Acquire, guard).as_ref() }
    }

    fn grow(&self, old: Shared<'_, Table>, entries: usize, guard: &Guard) {
        if let Some(table) = Table::new(entries, &self.budget)
            && self.table.compare_exchange(old, Owned::new(table), AcqRel, Relaxed, guard).is_ok()
        {
            retire(old, guard);
            if !self.is_on() {
                // It was switched off meanwhile, perhaps before the exchange.
                retire(self.table.swap(Shared::null(), AcqRel, guard), guard);
            }
        }
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
        drop(unsafe { core::mem::take(&mut self.table).try_into_owned() });
    }
}

/// Frees a table, once nobody can see it any more, after it was taken out of its place.
fn retire(table: Shared<'_, Table>, guard: &Guard) {
    if !table.is_null() {
        // SAFETY: the caller took the table out of the only place that readers find it in, by an atomic exchange that
        // only one thread wins, so it is retired once; readers that found it before hold guards.
        unsafe { guard.defer_destroy(table) };
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
